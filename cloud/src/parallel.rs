//! Work on many items at once.

use std::sync::Arc;

use kube_controller_manager::task::{self, caught};
use parking_lot::Mutex;

/// Calls `work` with each item, `limit` of them at once, and returns the outputs in the order in
/// which the calls end. When this future is dropped, the calls continue. Upstream:
/// `workqueue.ParallelizeUntil`.
///
/// # Panics
/// When a call panicked, after the other workers have ended.
pub async fn for_each<I, T, F, Fut>(items: Vec<I>, limit: usize, work: F) -> Vec<T>
where
    I: Send + 'static,
    T: Send + 'static,
    F: Fn(I) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = T> + Send + 'static,
{
    let workers = limit.clamp(1, items.len().max(1));
    let (items, work) = (Arc::new(Mutex::new(items.into_iter())), Arc::new(work));
    let worker = || {
        let (items, work) = (items.clone(), work.clone());
        task::spawn(caught(async move {
            let mut outputs = Vec::new();
            loop {
                let Some(item) = items.lock().next() else { return outputs };
                outputs.push(work(item).await);
            }
        }))
    };
    let tasks: Vec<_> = (0..workers).map(|_| worker()).collect();
    let mut outputs = Vec::new();
    let mut panic = None;
    for task in tasks {
        match task.await {
            Ok(more) => outputs.extend(more),
            Err(text) => panic = Some(text),
        }
    }
    match panic {
        Some(text) => panic!("{text}"),
        None => outputs,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_lite::future::{block_on, yield_now};

    use super::*;

    #[test]
    fn every_item_is_worked_on_and_never_too_many_at_once() {
        for (count, limit) in [(0, 3), (1, 3), (10, 3), (10, 0), (3, 100)] {
            let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let (running, peak) = (now.clone(), most.clone());
            let mut outputs =
                block_on(for_each((0..count).collect(), limit, move |item: usize| {
                    let (running, peak) = (running.clone(), peak.clone());
                    async move {
                        peak.fetch_max(
                            running.fetch_add(1, Ordering::SeqCst) + 1,
                            Ordering::SeqCst,
                        );
                        yield_now().await;
                        running.fetch_sub(1, Ordering::SeqCst);
                        item
                    }
                }));
            outputs.sort_unstable();
            assert_eq!(outputs, (0..count).collect::<Vec<_>>());
            assert!(most.load(Ordering::SeqCst) <= limit.max(1), "{count} {limit}");
        }
    }
}
