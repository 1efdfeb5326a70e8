//! What waits for one handler.

use std::collections::VecDeque;
use std::task::{Poll, Waker};

use futures_lite::future::poll_fn;
use parking_lot::Mutex;

/// An unbounded queue with one reader. It holds no memory while it is empty, as most are for most
/// of the time: a watched resource has several.
pub struct Backlog<T> {
    state: Mutex<State<T>>,
}

struct State<T> {
    waiting: VecDeque<T>,
    is_closed: bool,
    reader: Option<Waker>,
}

impl<T> Default for Backlog<T> {
    fn default() -> Backlog<T> {
        let state = State { waiting: VecDeque::new(), is_closed: false, reader: None };
        Backlog { state: Mutex::new(state) }
    }
}

impl<T> Backlog<T> {
    /// After [`Self::close`] it does nothing.
    pub fn push(&self, item: T) {
        let mut state = self.state.lock();
        if state.is_closed {
            return;
        }
        state.waiting.push_back(item);
        let reader = state.reader.take();
        drop(state);
        reader.into_iter().for_each(Waker::wake);
    }

    pub fn len(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Drops all that waits, and ends the reader.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        let (dropped, reader) = (std::mem::take(&mut state.waiting), state.reader.take());
        drop(state);
        drop(dropped);
        reader.into_iter().for_each(Waker::wake);
    }

    /// The next item, in order; `None` once closed. May be dropped at any time.
    pub async fn next(&self) -> Option<T> {
        poll_fn(|context| {
            let mut state = self.state.lock();
            let next = state.waiting.pop_front();
            if state.waiting.is_empty() {
                state.waiting = VecDeque::new();
            }
            if next.is_none() && !state.is_closed {
                state.reader = Some(context.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(next)
        })
        .await
    }

    /// Resolves once closed. For the reader alone.
    pub async fn closed(&self) {
        poll_fn(|context| {
            let mut state = self.state.lock();
            if state.is_closed {
                return Poll::Ready(());
            }
            state.reader = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::{block_on, poll_once};

    use super::*;

    #[test]
    fn items_come_in_order_until_the_queue_is_closed() {
        let backlog = Backlog::default();
        let next = || block_on(poll_once(backlog.next()));
        assert_eq!(next(), None, "nothing has come yet");
        (1..=3).for_each(|n| backlog.push(n));
        assert_eq!((next(), next(), backlog.len()), (Some(Some(1)), Some(Some(2)), 1));
        assert_eq!(next(), Some(Some(3)));
        assert_eq!(backlog.state.lock().waiting.capacity(), 0, "an empty queue holds no memory");
        backlog.push(4);
        backlog.close();
        backlog.push(5);
        assert_eq!((next(), backlog.len()), (Some(None), 0));
    }

    #[test]
    fn the_reader_is_woken_by_an_item_and_by_the_end() {
        let backlog = Backlog::default();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                block_on(async {
                    let first = backlog.next().await;
                    backlog.closed().await;
                    (first, backlog.next().await)
                })
            });
            backlog.push(1);
            while backlog.len() > 0 {
                std::thread::yield_now();
            }
            backlog.close();
            assert_eq!(reader.join().expect("no panic"), (Some(1), None));
        });
    }
}
