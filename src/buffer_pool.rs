//! Buffers that go from one use to the next.
//!
//! A connection holds a buffer only while something is in it, and the bytes of an object are gone
//! once it is decoded. To get each buffer from the allocator is expensive with musl's, which returns
//! the pages of large blocks at once: a Job of 2,000 pods took 9,800 mappings, and the page faults
//! that follow.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_lite::io::AsyncRead;

/// A thread keeps no more than this many, each with no more room than this many bytes.
const KEPT: usize = 3;
const ROOM: usize = 32 << 10;
/// Bytes that are read at once.
const READ: usize = 16 << 10;

thread_local! {
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    /// One, or two where a reader reads from another one: TLS through a proxy with TLS.
    static ROOMS: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer, with room if the pool has one.
pub fn take() -> Vec<u8> {
    SPARE.with_borrow_mut(Vec::pop).unwrap_or_default()
}

/// A copy, in a buffer of which the caller gives the room back.
pub fn copied(bytes: &[u8]) -> Vec<u8> {
    let mut copy = take();
    copy.extend_from_slice(bytes);
    copy
}

/// Gives room to a buffer that has none, if the pool has some.
pub fn refill(buffer: &mut Vec<u8>) {
    if buffer.capacity() == 0 {
        *buffer = take();
    }
}

/// Leaves an empty buffer without room in place of `used`, and keeps its room for the next.
pub fn give(used: &mut Vec<u8>) {
    let mut used = std::mem::take(used);
    if used.capacity() == 0 || used.capacity() > ROOM {
        return;
    }
    used.clear();
    // A thread that ends has no spare buffers any more.
    let _ = SPARE.try_with(|spare| {
        let mut spare = spare.borrow_mut();
        if spare.len() < KEPT {
            spare.push(used);
        }
    });
}

/// Appends what `from` has to `to`, which gets room only when something is there. Returns the number
/// of bytes; zero at the end.
pub fn poll_read(
    from: &mut (impl AsyncRead + Unpin),
    context: &mut Context<'_>,
    to: &mut Vec<u8>,
) -> Poll<io::Result<usize>> {
    with_room(|room| {
        let read = Pin::new(from).poll_read(context, room);
        if let Poll::Ready(Ok(count @ 1..)) = read {
            refill(to);
            to.extend_from_slice(&room[..count]);
        }
        read
    })
}

/// Calls `read` with room for what it reads. Most attempts find nothing, so the room is not cleared
/// for each: it holds what was read into it before.
fn with_room<T>(read: impl FnOnce(&mut [u8]) -> T) -> T {
    let room = ROOMS.with_borrow_mut(Vec::pop);
    let mut room = room.unwrap_or_else(|| vec![0; READ].into());
    let result = read(&mut room);
    ROOMS.with_borrow_mut(|rooms| rooms.push(room));
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
    fn a_reader_in_a_reader_has_room_of_its_own_and_both_are_used_again() {
        let places = || {
            with_room(|outer| {
                let inner = with_room(|inner| inner.as_ptr() as usize);
                [outer.as_ptr() as usize, inner]
            })
        };
        let [outer, inner] = places();
        assert_ne!(outer, inner);
        assert_eq!(places().into_iter().collect::<BTreeSet<_>>(), [outer, inner].into());
    }

    #[test]
    fn few_are_kept_and_none_that_is_large() {
        give(&mut used(ROOM + 1));
        assert_eq!(take().capacity(), 0);
        (0..2 * KEPT).for_each(|_| give(&mut used(10)));
        assert_eq!((0..2 * KEPT).filter(|_| take().capacity() > 0).count(), KEPT);
    }
}
