//! Locks by name, for what is done to one volume or pod at a time. Upstream: `keymutex`.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use async_lock::{Mutex, MutexGuardArc};

/// A held lock.
pub type Held = MutexGuardArc<()>;

/// The locks by name. One that nothing holds or waits for is removed by the next `lock`.
#[derive(Default)]
pub struct Locks(parking_lot::Mutex<HashMap<String, Weak<Mutex<()>>>>);

impl Locks {
    /// Waits for the lock of a name. The future may be dropped at any time.
    pub async fn lock(&self, name: &str) -> Held {
        let lock = {
            let mut locks = self.0.lock();
            locks.retain(|_, lock| lock.strong_count() > 0);
            match locks.get(name).and_then(Weak::upgrade) {
                Some(lock) => lock,
                None => {
                    let lock = Arc::new(Mutex::new(()));
                    locks.insert(name.to_owned(), Arc::downgrade(&lock));
                    lock
                }
            }
        };
        lock.lock_arc().await
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_lite::future::{block_on, poll_once};

    use super::*;

    #[test]
    fn one_holds_the_lock_of_a_name() {
        block_on(async {
            let locks = Locks::default();
            let held = locks.lock("a").await;
            let mut second = pin!(locks.lock("a"));
            assert!(poll_once(&mut second).await.is_none());
            let _other = locks.lock("b").await;
            drop(held);
            let _held = second.await;
            assert_eq!(locks.0.lock().len(), 2);
        });
    }
}
