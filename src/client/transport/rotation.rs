//! Watches end when the client certificate that they were started with has been replaced.
//! Upstream: `transport.certRotatingDialer`, `connrotation`.

use parking_lot::Mutex;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use event_listener::Event;
use futures_lite::AsyncBufRead;
use futures_lite::future::Boxed;
use futures_lite::io::AsyncRead;
use pin_project::pin_project;

/// Counts how often the client certificate was replaced.
#[derive(Default)]
pub(super) struct Rotations {
    count: AtomicU64,
    more: Event,
}

impl Rotations {
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Counts a rotation, and ends the watches that wait for one.
    pub fn increment(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.more.notify(usize::MAX);
    }

    /// Waits until there were more rotations than `count`.
    async fn changed_since(self: Arc<Self>, count: u64) {
        loop {
            let more = self.more.listen();
            if self.count() != count {
                return;
            }
            more.await;
        }
    }
}

/// A body that ends with the next rotation, as if the server had closed it.
#[pin_project]
pub(super) struct UntilRotated<R> {
    #[pin]
    reader: R,
    rotations: Arc<Rotations>,
    /// The number of rotations when the watch was started.
    count: u64,
    /// The lock makes it `Sync`.
    rotated: Mutex<Boxed<()>>,
}

impl<R> UntilRotated<R> {
    pub fn new(reader: R, rotations: Arc<Rotations>, count: u64) -> UntilRotated<R> {
        let rotated = Mutex::new(Box::pin(rotations.clone().changed_since(count)) as Boxed<()>);
        UntilRotated { reader, rotations, count, rotated }
    }
}

/// Returns the bytes that were read, or the end once `rotated` is ready.
fn or_end<T: Default>(
    read: Poll<io::Result<T>>,
    rotated: &mut Mutex<Boxed<()>>,
    context: &mut Context<'_>,
) -> Poll<io::Result<T>> {
    if read.is_ready() {
        return read;
    }
    let rotated = rotated.get_mut();
    rotated.as_mut().poll(context).map(|()| Ok(T::default()))
}

impl<R: AsyncRead> AsyncRead for UntilRotated<R> {
    /// Reads bytes; returns the end after a rotation, also while bytes are left.
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        output: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.project();
        if this.rotations.count() != *this.count {
            return Poll::Ready(Ok(0));
        }
        or_end(this.reader.poll_read(context, output), this.rotated, context)
    }
}

impl<R: AsyncBufRead> AsyncBufRead for UntilRotated<R> {
    /// Returns the buffered bytes; after a rotation none, which is the end.
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.project();
        if this.rotations.count() != *this.count {
            return Poll::Ready(Ok(&[]));
        }
        or_end(this.reader.poll_fill_buf(context), this.rotated, context)
    }

    fn consume(self: Pin<&mut Self>, count: usize) {
        self.project().reader.consume(count);
    }
}
