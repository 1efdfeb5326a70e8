//! The notifications that wait for one handler, and the handler itself while none wait.

use std::collections::VecDeque;
use std::task::{Poll, Waker};

use futures_lite::future::poll_fn;
use parking_lot::Mutex;

/// An unbounded queue with one reader. While the queue is empty it holds the reader. A watched
/// resource has several such queues, and most are empty most of the time: an empty one has no
/// buffer and no task.
pub struct Backlog<T, R> {
    state: Mutex<State<T, R>>,
}

/// The state of a [`Backlog`], under its lock.
struct State<T, R> {
    waiting: VecDeque<T>,
    /// The reader, while it does not run.
    reader: Option<R>,
    is_closed: bool,
    /// The waker of the task that waits for the end.
    watcher: Option<Waker>,
}

impl<T, R> Backlog<T, R> {
    pub fn new(reader: R) -> Backlog<T, R> {
        let (waiting, reader) = (VecDeque::new(), Some(reader));
        let state = State { waiting, reader, is_closed: false, watcher: None };
        Backlog { state: Mutex::new(state) }
    }

    /// Appends an item. Does nothing after [`Self::close`].
    pub fn push(&self, item: T) {
        let mut state = self.state.lock();
        if !state.is_closed {
            state.waiting.push_back(item);
        }
    }

    pub fn len(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Drops all waiting items, and the reader. A running reader is dropped by [`Self::next`].
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        let items_and_reader = (std::mem::take(&mut state.waiting), state.reader.take());
        let watcher = state.watcher.take();
        // The items and the reader are dropped without the lock.
        drop(state);
        drop(items_and_reader);
        watcher.into_iter().for_each(Waker::wake);
    }

    /// Takes the reader out, if it is here and an item waits. The caller passes it to
    /// [`Self::next`] until that returns `None`.
    pub fn take_reader(&self) -> Option<R> {
        let mut state = self.state.lock();
        if state.waiting.is_empty() { None } else { state.reader.take() }
    }

    /// Returns the next item, in order, with its reader. Returns `None` if the queue is empty, and
    /// keeps the reader then, or if it is closed, and drops the reader.
    pub fn next(&self, reader: R) -> Option<(T, R)> {
        let mut state = self.state.lock();
        if state.is_closed {
            drop(state);
            drop(reader);
            return None;
        }
        let next = state.waiting.pop_front();
        if state.waiting.is_empty() {
            // Frees the buffer.
            state.waiting = VecDeque::new();
        }
        match next {
            Some(item) => Some((item, reader)),
            None => {
                state.reader = Some(reader);
                None
            }
        }
    }

    /// Resolves once the backlog is closed. Only the reader may call it: one waker is kept.
    pub async fn closed(&self) {
        poll_fn(|context| {
            let mut state = self.state.lock();
            if state.is_closed {
                return Poll::Ready(());
            }
            state.watcher = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_lite::future::block_on;

    use super::*;

    #[test]
    fn the_reader_takes_items_in_order_and_stays_in_the_empty_queue() {
        let backlog = Backlog::new("reader");
        assert_eq!(backlog.take_reader(), None, "nothing waits yet");
        (1..=3).for_each(|n| backlog.push(n));
        let reader = backlog.take_reader().expect("it was in the queue");
        assert_eq!(backlog.take_reader(), None, "it is taken out");
        let next = || backlog.next(reader).map(|(item, _)| item);
        assert_eq!((next(), next(), backlog.len()), (Some(1), Some(2), 1));
        assert_eq!((next(), next()), (Some(3), None));
        assert_eq!(backlog.state.lock().waiting.capacity(), 0, "an empty queue holds no memory");
        backlog.push(4);
        assert_eq!(backlog.take_reader(), Some("reader"));
    }

    #[test]
    fn close_drops_waiting_items_and_the_reader() {
        for is_running in [false, true] {
            let reader = Arc::new(());
            let backlog = Backlog::new(reader.clone());
            backlog.push(1);
            let taken = is_running.then(|| backlog.take_reader().expect("it was in the queue"));
            backlog.close();
            backlog.push(2);
            assert_eq!(backlog.len(), 0);
            if let Some(taken) = taken {
                assert!(backlog.next(taken).is_none());
            }
            assert!(backlog.take_reader().is_none());
            assert_eq!(Arc::strong_count(&reader), 1);
        }
    }

    #[test]
    fn closed_resolves_when_the_queue_is_closed() {
        let backlog = Backlog::<u8, ()>::new(());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| block_on(backlog.closed()));
            while backlog.state.lock().watcher.is_none() {
                std::thread::yield_now();
            }
            backlog.close();
            waits.join().expect("no panic");
        });
    }
}
