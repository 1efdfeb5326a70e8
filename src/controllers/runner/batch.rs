//! Runs many requests of one sync at the same time.

use std::iter;
use std::ops::Range;

use crate::controllers::Error;
use crate::task;
use crate::trace;

/// The size of the first batch. Upstream: `controller.SlowStartInitialBatchSize`.
const FIRST_BATCH: usize = 1;
/// The largest batch. Only the controller of StatefulSets makes more attempts in one sync.
/// Upstream: `statefulset.MaxBatchSize`.
const LARGEST_BATCH: usize = 500;

/// Runs all `jobs` at once, each as a task, and returns their outputs in the order of the jobs.
/// When this future is dropped, the jobs continue.
///
/// # Panics
/// When a job panicked, after all have ended.
pub async fn together<T, Fut>(jobs: impl IntoIterator<Item = Fut>) -> Vec<T>
where
    T: Send + 'static,
    Fut: Future<Output = T> + Send + 'static,
{
    let start = |job| task::spawn(task::caught(trace::carried(job)));
    let tasks: Vec<task::Task<Result<T, String>>> = jobs.into_iter().map(start).collect();
    let mut outputs = Vec::with_capacity(tasks.len());
    for task in tasks {
        outputs.push(task.await);
    }
    let outputs: Result<Vec<T>, String> = outputs.into_iter().collect();
    outputs.unwrap_or_else(|panic| panic!("{panic}"))
}

/// Makes up to `count` attempts in batches that double from 1 to 500, and stops after a batch with
/// a failure: so when a quota is exhausted, a few requests fail, not `count`. `attempt` gets the
/// numbers from 0; `None` means that this attempt has nothing to do, which counts as a success.
/// Returns the number of successes and the first failure in the order of the attempts; attempts
/// that were not made count as neither. When this future is dropped, the batch under way continues.
/// Upstream: `slowStartBatch`.
///
/// # Panics
/// When an attempt panicked, after its batch has ended.
pub async fn slow_start<Fut>(
    count: usize,
    attempt: impl Fn(usize) -> Option<Fut>,
) -> (usize, Option<Error>)
where
    Fut: Future<Output = Result<(), Error>> + Send + 'static,
{
    let mut successes = 0;
    for batch in batches(count) {
        successes += batch.len();
        let results = together(batch.filter_map(&attempt)).await;
        let mut failure = None;
        for error in results.into_iter().filter_map(Result::err) {
            successes -= 1;
            failure.get_or_insert(error);
        }
        if failure.is_some() {
            return (successes, failure);
        }
    }
    (successes, None)
}

/// Returns the attempt numbers of each batch: below `count` in all, and each batch twice as large
/// as the one before, from [`FIRST_BATCH`] to [`LARGEST_BATCH`].
fn batches(count: usize) -> impl Iterator<Item = Range<usize>> {
    let (mut made, mut size) = (0, FIRST_BATCH);
    iter::from_fn(move || {
        let batch = made..count.min(made + size);
        (made, size) = (batch.end, LARGEST_BATCH.min(2 * size));
        Some(batch).filter(|batch| !batch.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn batches_double_until_one_fails() {
        // count, the first with something to do, how many succeed, and then: successes, attempts
        // made
        for (count, first, good, successes, attempts) in [
            (0, 0, 9, 0, 0),
            (1, 0, 0, 0, 1),
            (10, 0, 10, 10, 10),
            (10, 0, 3, 3, 7),
            (10, 0, 5, 5, 7),
            (10, 0, 0, 0, 1),
            (500, 0, 499, 499, 500),
            // Attempts without work also make the batches larger.
            (10, 3, 3, 3, 4),
            (10, 9, 9, 9, 1),
            (10, 10, 0, 10, 0),
        ] {
            let made = Arc::new(AtomicUsize::new(0));
            let run = slow_start(count, |mine| {
                let made = made.clone();
                (mine >= first).then_some(async move {
                    made.fetch_add(1, Ordering::SeqCst);
                    if mine < good { Ok(()) } else { Err(Error::other("quota")) }
                })
            });
            let (succeeded, failure) = futures_lite::future::block_on(run);
            assert_eq!(succeeded, successes, "{count} of which {good} are good");
            assert_eq!(made.load(Ordering::SeqCst), attempts);
            assert_eq!(failure.is_some(), successes < count);
        }
    }

    #[test]
    fn a_batch_has_at_most_500_attempts() {
        let sizes = |count| batches(count).map(|batch| batch.len()).collect::<Vec<_>>();
        assert!(sizes(0).is_empty());
        assert_eq!(sizes(6), [1, 2, 3]);
        assert_eq!(sizes(2000), [1, 2, 4, 8, 16, 32, 64, 128, 256, 500, 500, 489]);
        assert_eq!(batches(6).last(), Some(3..6));
    }

    #[test]
    fn a_panic_in_a_job_reaches_the_caller_after_all_jobs() {
        use futures_lite::future::{block_on, yield_now};
        let ended = Arc::new(AtomicUsize::new(0));
        let jobs = (0..3).map(|job| {
            let ended = ended.clone();
            async move {
                assert_ne!(job, 0, "as the test asks");
                for _ in 0..10_000 {
                    yield_now().await;
                }
                ended.fetch_add(1, Ordering::SeqCst);
            }
        });
        let panic = block_on(task::caught(together(jobs))).expect_err("a job has panicked");
        assert!(panic.contains("as the test asks"), "{panic}");
        assert_eq!(ended.load(Ordering::SeqCst), 2, "the others have ended too");
    }
}
