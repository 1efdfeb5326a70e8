//! A pool of buffers that are reused.
//!
//! A connection holds a buffer only while something is in it, and the bytes of an object are freed
//! once it is decoded. Getting each buffer from musl's allocator is expensive, because that returns
//! the pages of large blocks at once: a Job of 2,000 pods took 9,800 mappings, and the page faults
//! that follow.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_lite::io::AsyncRead;

/// The most buffers that a thread keeps.
const MAX_KEPT: usize = 3;
/// The most bytes in a buffer that is kept.
const MAX_CAPACITY: usize = 32 << 10;
/// The number of bytes in one read.
const READ_SIZE: usize = 16 << 10;

thread_local! {
    /// Empty buffers with capacity, for [`take`].
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    /// The buffers that bytes are read into: one, or two where a reader reads from another one: TLS through a proxy with TLS.
    static READ_BUFFERS: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

/// Returns an empty buffer, with capacity if the pool has one.
pub fn take() -> Vec<u8> {
    SPARE.with_borrow_mut(Vec::pop).unwrap_or_default()
}

/// Returns a copy of `bytes`, in a buffer whose capacity the caller gives back to the pool.
pub fn copied(bytes: &[u8]) -> Vec<u8> {
    let mut copy = take();
    copy.extend_from_slice(bytes);
    copy
}

/// Gives a buffer without capacity one from the pool, if the pool has one.
pub fn refill(buffer: &mut Vec<u8>) {
    if buffer.capacity() == 0 {
        *buffer = take();
    }
}

/// Puts an empty buffer without capacity in place of `used`, whose own goes to the pool; it is
/// freed if it is too large or the pool is full.
pub fn give(used: &mut Vec<u8>) {
    let mut used = std::mem::take(used);
    if used.capacity() == 0 || used.capacity() > MAX_CAPACITY {
        return;
    }
    used.clear();
    // A thread that ends has no pool any more.
    let _ = SPARE.try_with(|spare| {
        let mut spare = spare.borrow_mut();
        if spare.len() < MAX_KEPT {
            spare.push(used);
        }
    });
}

/// Appends the available bytes of `from` to `to`, which gets capacity only when there are any.
/// Returns the number of bytes; zero at the end.
pub fn poll_read(
    from: &mut (impl AsyncRead + Unpin),
    context: &mut Context<'_>,
    to: &mut Vec<u8>,
) -> Poll<io::Result<usize>> {
    with_read_buffer(|buffer| {
        let read = Pin::new(from).poll_read(context, buffer);
        if let Poll::Ready(Ok(count @ 1..)) = read {
            refill(to);
            to.extend_from_slice(&buffer[..count]);
        }
        read
    })
}

/// Calls `read` with a buffer to read into. Most attempts find nothing, so the buffer is not
/// cleared for each: it holds the bytes of earlier reads.
fn with_read_buffer<T>(read: impl FnOnce(&mut [u8]) -> T) -> T {
    let buffer = READ_BUFFERS.with_borrow_mut(Vec::pop);
    let mut buffer = buffer.unwrap_or_else(|| vec![0; READ_SIZE].into());
    let result = read(&mut buffer);
    READ_BUFFERS.with_borrow_mut(|buffers| buffers.push(buffer));
    result
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn used(room: usize) -> Vec<u8> {
        let mut buffer = Vec::with_capacity(room);
        buffer.push(1);
        buffer
    }

    #[test]
    fn a_buffer_is_used_again_and_is_empty() {
        let mut buffer = used(100);
        give(&mut buffer);
        assert_eq!(buffer.capacity(), 0);
        let next = take();
        assert_eq!((next.len(), next.capacity()), (0, 100));
        assert_eq!(take().capacity(), 0);
    }

    #[test]
    fn a_reader_in_a_reader_has_its_own_buffer_and_both_are_reused() {
        let places = || {
            with_read_buffer(|outer| {
                let inner = with_read_buffer(|inner| inner.as_ptr() as usize);
                [outer.as_ptr() as usize, inner]
            })
        };
        let [outer, inner] = places();
        assert_ne!(outer, inner);
        assert_eq!(places().into_iter().collect::<BTreeSet<_>>(), [outer, inner].into());
    }

    #[test]
    fn only_a_few_small_buffers_are_kept() {
        give(&mut used(MAX_CAPACITY + 1));
        assert_eq!(take().capacity(), 0);
        (0..2 * MAX_KEPT).for_each(|_| give(&mut used(10)));
        assert_eq!((0..2 * MAX_KEPT).filter(|_| take().capacity() > 0).count(), MAX_KEPT);
    }
}
