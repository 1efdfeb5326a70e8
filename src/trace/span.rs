//! The current span of the code on this thread.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project::pin_project;

use super::is_on;

thread_local! {
    /// 0: no span.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

/// The span of the event or sync that runs on this thread; 0 when it is not traced.
pub fn current() -> u64 {
    CURRENT.get()
}

/// The guard of [`enter`].
#[must_use]
pub struct Entered {
    before: u64,
}

/// Makes `span` the current one until the result is dropped. Must not be held across an `await`.
pub fn enter(span: u64) -> Entered {
    Entered { before: CURRENT.replace(span) }
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}

/// A future that runs under a span.
#[pin_project]
pub struct Traced<F> {
    span: u64,
    #[pin]
    future: F,
}

impl<F> Traced<F> {
    /// `span`: 0 for none.
    pub fn new(span: u64, future: F) -> Traced<F> {
        Traced { span, future }
    }
}

/// Wraps a future: it runs under the span that is current now, wherever it is spawned.
pub fn carried<F>(future: F) -> Traced<F> {
    Traced::new(if is_on() { current() } else { 0 }, future)
}

impl<F: Future> Future for Traced<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        if *this.span == 0 {
            return this.future.poll(cx);
        }
        let _entered = enter(*this.span);
        this.future.poll(cx)
    }
}
