//! The tasks that run, counted by the place in the source that spawned them.

use std::collections::BTreeMap;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use pin_project::pin_project;

/// A place in the source: the call that spawned a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The path of the source file, as the compiler was given it.
    pub file: &'static str,
    /// The line, from 1.
    pub line: u32,
}

/// The number of tasks that run, by the place that spawned them.
static RUNNING: Mutex<BTreeMap<Place, u64>> = Mutex::new(BTreeMap::new());

/// Returns how many tasks run now, by where they were spawned, in the order of the places. A place
/// without tasks is left out. A snapshot: tasks start and end meanwhile.
pub fn running() -> Vec<(Place, u64)> {
    RUNNING.lock().iter().map(|(place, count)| (*place, *count)).collect()
}

/// A task's future, which is counted until it is dropped.
#[pin_project]
pub(super) struct Counted<F> {
    #[pin]
    future: F,
    _place: Registered,
}

/// The entry of one task in `RUNNING`, which its drop removes.
struct Registered(Place);

impl<F> Counted<F> {
    /// Counts a task at the place of `caller`, and wraps its future.
    pub fn new(future: F, caller: &'static Location<'static>) -> Counted<F> {
        let place = Place { file: caller.file(), line: caller.line() };
        *RUNNING.lock().entry(place).or_default() += 1;
        Counted { future, _place: Registered(place) }
    }
}

impl Drop for Registered {
    /// Counts the task down.
    fn drop(&mut self) {
        let mut running = RUNNING.lock();
        if let Some(count) = running.get_mut(&self.0) {
            *count -= 1;
            if *count == 0 {
                running.remove(&self.0);
            }
        }
    }
}

impl<F: Future> Future for Counted<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.project().future.poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;

    use super::super::{Latch, TaskGroup, spawn};
    use super::*;

    #[test]
    fn tasks_are_counted_by_their_place_until_they_end() {
        let (latch, group) = (Latch::new(), TaskGroup::new());
        let mut tasks = Vec::new();
        for _ in 0..3 {
            let latch = latch.clone();
            tasks.push(spawn(async move { latch.opened().await }));
        }
        let waiting = latch.clone();
        group.spawn(async move { waiting.opened().await });
        let here = || -> Vec<u64> {
            let here = running().into_iter().filter(|(place, _)| place.file == file!());
            here.map(|(_, count)| count).collect()
        };
        assert_eq!(here(), [3, 1]);
        latch.open();
        block_on(async {
            for task in tasks {
                task.await;
            }
            group.join().await;
        });
        while !here().is_empty() {
            std::thread::yield_now();
        }
    }
}
