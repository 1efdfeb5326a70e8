//! The threads that run the tasks.

use std::future::{Future, pending};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::thread;

use async_executor::StaticExecutor;
use futures_lite::future::block_on;

use super::reactor::{Bell, Reactor};

pub(super) struct Runtime {
    executor: StaticExecutor,
    pub reactor: Reactor,
}

/// How many threads the first use starts; zero: one a core.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// Effective before the first task. `ASYNC_STD_THREAD_COUNT` in the environment has precedence.
pub(super) fn set_threads(threads: usize) {
    let named = std::env::var("ASYNC_STD_THREAD_COUNT").ok();
    let named = named.and_then(|text| text.parse().ok()).filter(|count| *count > 0);
    THREADS.store(named.unwrap_or(threads), Ordering::SeqCst);
}

/// The process's one runtime, which the first use starts.
pub(super) fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let threads = match THREADS.load(Ordering::SeqCst) {
            0 => thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        for at in 0..threads {
            let run = if at == 0 { drive } else { help };
            let thread = thread::Builder::new().name("executor".to_owned());
            thread.spawn(run).expect("a process can start a thread");
        }
        let reactor = Reactor::new().expect("a process can open two descriptors");
        Runtime { executor: StaticExecutor::new(), reactor }
    })
}

/// Runs tasks, and waits for sockets and time when there are none to run.
fn drive() {
    let Runtime { executor, reactor } = runtime();
    let bell = Arc::new(Bell { reactor, rung: AtomicBool::new(false) });
    let waker = Waker::from(bell.clone());
    let mut events = Vec::new();
    forever(|| {
        let mut running = pin!(executor.run(pending::<()>()));
        loop {
            bell.rung.store(false, Ordering::SeqCst);
            let _ = running.as_mut().poll(&mut Context::from_waker(&waker));
            reactor.turn(&bell.rung, &mut events);
        }
    });
}

/// Runs tasks beside [`drive`].
fn help() {
    forever(|| block_on(runtime().executor.run(pending::<()>())));
}

/// A task's panic is for its joiner. One that comes out of the executor all the same does not end
/// the thread.
fn forever(mut run: impl FnMut()) {
    loop {
        let _ = catch_unwind(AssertUnwindSafe(&mut run));
    }
}

/// A running task. Dropping it lets the task go on; `await` joins it, and panics when it panicked.
pub struct Task<T>(Option<async_executor::Task<T>>);

impl<T> Task<T> {
    pub(super) fn spawn(future: impl Future<Output = T> + Send + 'static) -> Task<T>
    where
        T: Send + 'static,
    {
        Task(Some(runtime().executor.spawn(future)))
    }
}

impl<T> Future for Task<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let task = self.0.as_mut().expect("it is there until the drop");
        Pin::new(task).poll(context)
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.detach();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_task_goes_on_and_a_panic_reaches_the_joiner() {
        let (done, is_done) = async_channel::bounded(1);
        drop(Task::spawn(async move { done.send(1).await }));
        assert_eq!(block_on(is_done.recv()), Ok(1));
        let task = Task::spawn(async { panic!("as the test asks") });
        let joined = catch_unwind(AssertUnwindSafe(|| block_on(task)));
        assert!(joined.is_err());
        assert_eq!(block_on(Task::spawn(async { 2 })), 2, "tasks run on");
    }
}
