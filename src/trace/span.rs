//! The scope of the code on this thread: the span of the trace, and the sync.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project::pin_project;

thread_local! {
    static CURRENT: Cell<Scope> = const { Cell::new(Scope { span: 0, sync: 0 }) };
}

/// What code works for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// The span of the event or sync; 0 when it is not traced.
    pub span: u64,
    /// The number of the sync, which its lines in the log carry; 0 outside of syncs. Upstream:
    /// controller-runtime's `reconcileID`.
    pub sync: u64,
}

/// Returns the scope of the code on this thread.
pub fn scope() -> Scope {
    CURRENT.get()
}

/// Returns the span of the event or sync that runs on this thread; 0 when it is not traced.
pub fn current() -> u64 {
    scope().span
}

/// The guard of [`enter`].
#[must_use]
pub struct Entered {
    before: Scope,
}

/// Makes `scope` the current one until the result is dropped. Must not be held across an `await`.
pub fn enter(scope: Scope) -> Entered {
    Entered { before: CURRENT.replace(scope) }
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}

/// A future that runs in a scope.
#[pin_project]
pub struct Traced<F> {
    scope: Scope,
    #[pin]
    future: F,
}

impl<F> Traced<F> {
    /// Makes `future` run in `scope`; without a span and a sync, it runs in the scope of its
    /// caller.
    pub fn new(scope: Scope, future: F) -> Traced<F> {
        Traced { scope, future }
    }
}

/// Makes a future run in the scope that is current now, wherever it is spawned.
pub fn carried<F>(future: F) -> Traced<F> {
    Traced::new(scope(), future)
}

impl<F: Future> Future for Traced<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        if *this.scope == Scope::default() {
            return this.future.poll(cx);
        }
        let _entered = enter(*this.scope);
        this.future.poll(cx)
    }
}
