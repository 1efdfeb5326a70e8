//! Which piece of a controller's work a task does, for code far below that has to know it.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// One call of a controller's sync or job, with the tasks that it spawned.
pub struct Run {
    /// The controller's name.
    pub controller: &'static str,
    /// The key that is synced; empty: work that belongs to no key.
    pub key: Arc<str>,
    /// How long after its end the same work is done again, without a supervisor; zero: that depends
    /// on events.
    pub period: Duration,
    parent: Option<Arc<Run>>,
    is_derailed: AtomicBool,
    has_ended: AtomicBool,
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<Run>>> = const { RefCell::new(None) };
}

/// The run that the calling task belongs to.
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

/// The output of `work`, which belongs to `run` from its first poll to its end.
pub async fn in_run<T>(run: Arc<Run>, mut work: Pin<Box<dyn Future<Output = T> + Send>>) -> T {
    poll_fn(|context| {
        let _former = Entered(CURRENT.replace(Some(run.clone())));
        work.as_mut().poll(context)
    })
    .await
}

impl Run {
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

    /// A part of the run that goes on beside it.
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

    /// One of its writes was not made: what the run, or one that waits for it, does from now on is
    /// what it does after a failure.
    pub fn mark_unwritten(&self) {
        let mut run = Some(self);
        while let Some(derailed) = run {
            derailed.is_derailed.store(true, Ordering::Relaxed);
            run = derailed.parent.as_deref();
        }
    }

    pub fn is_derailed(&self) -> bool {
        self.is_derailed.load(Ordering::Relaxed)
    }

    /// The sync or job has returned. Its parts may go on.
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
        assert!(second.has_ended(), "it goes on alone");
    }
}
