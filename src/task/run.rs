//! The controller and key that a task works for. The client and the shadow mode read it, although
//! they are far below the controller's code.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// One call of a controller's sync or job, with the tasks that it spawned. Upstream has no
/// counterpart: a `context.Context` with values is the nearest.
pub struct Run {
    /// The controller's name.
    pub controller: &'static str,
    /// The key that is synced; empty: work that belongs to no key.
    pub key: Arc<str>,
    /// For a job: how long after its end it is called again where no supervisor decides that. Zero:
    /// a sync, which events cause.
    pub period: Duration,
    parent: Option<Arc<Run>>,
    is_derailed: AtomicBool,
    has_ended: AtomicBool,
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<Run>>> = const { RefCell::new(None) };
}

/// The run that the calling task belongs to; `None` outside of all runs.
pub fn current_run() -> Option<Arc<Run>> {
    CURRENT.with_borrow(Clone::clone)
}

/// Restores the run that was current before when dropped.
struct Entered(Option<Arc<Run>>);

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// The output of `work`, which belongs to `run` while it is polled. Nested runs are restored when a
/// poll ends. Dropping this future drops `work`; the run is not marked as ended.
pub async fn in_run<T>(run: Arc<Run>, mut work: Pin<Box<dyn Future<Output = T> + Send>>) -> T {
    poll_fn(|context| {
        let _former = Entered(CURRENT.replace(Some(run.clone())));
        work.as_mut().poll(context)
    })
    .await
}

impl Run {
    /// A run that has no parent, has not ended and has made all its writes.
    pub fn new(controller: &'static str, key: impl Into<Arc<str>>, period: Duration) -> Arc<Run> {
        Arc::new(Run {
            controller,
            key: key.into(),
            period,
            parent: None,
            is_derailed: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
        })
    }

    /// The run of a task that this run has spawned: the same controller and key. It inherits
    /// [`is_derailed`](Run::is_derailed) as it is now.
    pub fn child(self: &Arc<Run>) -> Arc<Run> {
        Arc::new(Run {
            controller: self.controller,
            key: self.key.clone(),
            period: self.period,
            parent: Some(self.clone()),
            is_derailed: AtomicBool::new(self.is_derailed()),
            has_ended: AtomicBool::new(false),
        })
    }

    /// Records that a write was requested and not made (shadow mode). From now on this run, and
    /// each run that it is a part of, behaves as after a failure: its further requests do not show
    /// what it would do in charge. Runs beside it are not marked.
    pub fn mark_unwritten(&self) {
        let mut run = Some(self);
        while let Some(derailed) = run {
            derailed.is_derailed.store(true, Ordering::Relaxed);
            run = derailed.parent.as_deref();
        }
    }

    /// Whether a write of this run or of its parts was not made: see
    /// [`mark_unwritten`](Run::mark_unwritten).
    pub fn is_derailed(&self) -> bool {
        self.is_derailed.load(Ordering::Relaxed)
    }

    /// Records that the sync or job has returned. Tasks that it spawned may continue.
    pub fn end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    /// Whether the sync or job that this is a part of has returned.
    pub fn has_ended(&self) -> bool {
        let own = self.has_ended.load(Ordering::Relaxed);
        own || self.parent.as_ref().is_some_and(|parent| parent.has_ended())
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::{block_on, yield_now};

    use super::*;
    use crate::task::spawn;

    fn name() -> String {
        current_run().map_or_else(String::new, |run| run.key.to_string())
    }

    #[test]
    fn tasks_belong_to_the_run_that_spawned_them() {
        let work = |key: &'static str| {
            in_run(
                Run::new("c", key, Duration::ZERO),
                Box::pin(async {
                    yield_now().await;
                    let child = spawn(async {
                        yield_now().await;
                        name()
                    });
                    (name(), child.await, name())
                }),
            )
        };
        let (one, two) = block_on(futures_lite::future::zip(work("a/b"), work("c/d")));
        assert_eq!(one, ("a/b".into(), "a/b".into(), "a/b".into()));
        assert_eq!(two, ("c/d".into(), "c/d".into(), "c/d".into()));
        assert_eq!(name(), "");
    }

    #[test]
    fn a_derailed_part_derails_what_waits_for_it_but_not_its_siblings() {
        let run = Run::new("c", "a/b", Duration::ZERO);
        let (first, second) = (run.child(), run.child());
        first.mark_unwritten();
        assert!(run.is_derailed() && first.is_derailed() && !second.is_derailed());
        assert!(run.child().is_derailed(), "it begins after the failure");
        assert!(!second.has_ended());
        run.end();
        assert!(second.has_ended(), "it continues alone");
    }
}
