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
pub struct SyncScope {
    /// The controller's name.
    pub controller: &'static str,
    /// The key that is synced; empty: work that belongs to no key.
    pub key: Arc<str>,
    /// For a job: how long after its end it is called again where no supervisor decides that. Zero:
    /// a sync, which events cause.
    pub period: Duration,
    parent: Option<Arc<SyncScope>>,
    has_unwritten: AtomicBool,
    has_ended: AtomicBool,
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<SyncScope>>> = const { RefCell::new(None) };
}

/// Returns the scope that the calling task belongs to; `None` outside of all syncs and jobs.
pub fn current_scope() -> Option<Arc<SyncScope>> {
    CURRENT.with_borrow(Clone::clone)
}

/// Restores the earlier scope when dropped.
struct Entered(Option<Arc<SyncScope>>);

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// Runs `work` and returns its output; it belongs to `scope` while it is polled. Nested scopes are
/// restored when a poll ends. Dropping this future drops `work`; the scope is not marked as ended.
pub async fn in_scope<T>(
    scope: Arc<SyncScope>,
    mut work: Pin<Box<dyn Future<Output = T> + Send>>,
) -> T {
    poll_fn(|context| {
        let _former = Entered(CURRENT.replace(Some(scope.clone())));
        work.as_mut().poll(context)
    })
    .await
}

impl SyncScope {
    /// Makes a scope that has no parent, has not ended and has made all its writes.
    pub fn new(
        controller: &'static str,
        key: impl Into<Arc<str>>,
        period: Duration,
    ) -> Arc<SyncScope> {
        Arc::new(SyncScope {
            controller,
            key: key.into(),
            period,
            parent: None,
            has_unwritten: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
        })
    }

    /// Makes the scope of a task that this one has spawned: the same controller and key. It
    /// inherits [`has_unwritten`](SyncScope::has_unwritten) as it is now.
    pub fn child(self: &Arc<SyncScope>) -> Arc<SyncScope> {
        Arc::new(SyncScope {
            controller: self.controller,
            key: self.key.clone(),
            period: self.period,
            parent: Some(self.clone()),
            has_unwritten: AtomicBool::new(self.has_unwritten()),
            has_ended: AtomicBool::new(false),
        })
    }

    /// Records that a write was requested and not made (shadow mode). From now on this scope, and
    /// each one that it is a part of, behaves as after a failure: its further requests do not show
    /// what it would do in charge. Scopes beside it are not marked.
    pub fn mark_unwritten(&self) {
        let mut next = Some(self);
        while let Some(scope) = next {
            scope.has_unwritten.store(true, Ordering::Relaxed);
            next = scope.parent.as_deref();
        }
    }

    /// Returns whether a write of this scope or of its parts was not made: see
    /// [`mark_unwritten`](SyncScope::mark_unwritten).
    pub fn has_unwritten(&self) -> bool {
        self.has_unwritten.load(Ordering::Relaxed)
    }

    /// Records that the sync or job has returned. Tasks that it spawned may continue.
    pub fn end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    /// Returns whether the sync or job that this is a part of has returned.
    pub fn has_ended(&self) -> bool {
        let has_ended = self.has_ended.load(Ordering::Relaxed);
        has_ended || self.parent.as_ref().is_some_and(|parent| parent.has_ended())
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::{block_on, yield_now};

    use super::*;
    use crate::task::spawn;

    fn name() -> String {
        current_scope().map_or_else(String::new, |run| run.key.to_string())
    }

    #[test]
    fn tasks_belong_to_the_run_that_spawned_them() {
        let work = |key: &'static str| {
            in_scope(
                SyncScope::new("c", key, Duration::ZERO),
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
    fn an_unwritten_part_marks_its_parents_but_not_its_siblings() {
        let run = SyncScope::new("c", "a/b", Duration::ZERO);
        let (first, second) = (run.child(), run.child());
        first.mark_unwritten();
        assert!(run.has_unwritten() && first.has_unwritten() && !second.has_unwritten());
        assert!(run.child().has_unwritten(), "it begins after the failure");
        assert!(!second.has_ended());
        run.end();
        assert!(second.has_ended(), "it continues alone");
    }
}
