//! The work loop of the scheduler and the kubelet: events of an informer wake keys, and workers
//! sync them. Independent of the controllers' runner.

use std::sync::Arc;
use std::time::Duration;

use futures_lite::future::Boxed;
use kube_controller_manager::cache::{Deleted, EventHandler, SharedIndexInformer};
use kube_controller_manager::client;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::{Object, ObjectKey};
use kube_controller_manager::task::{StopToken, TaskGroup};
use kube_controller_manager::workqueue::{RateLimitingQueue, default_controller_rate_limiter};

/// When a key is synced again after a success.
pub enum Next {
    Done,
    After(Duration),
}

/// Every failure is retried with backoff.
pub type SyncResult = client::Result<Next>;

/// The keys that wait for a worker. Cheap to clone.
#[derive(Clone)]
pub struct Keys(RateLimitingQueue<ObjectKey>);

impl Keys {
    pub fn add(&self, key: ObjectKey) {
        self.0.add(key);
    }

    pub fn add_after(&self, key: ObjectKey, delay: Duration) {
        self.0.add_after(key, delay);
    }
}

/// An event about one object.
pub enum Event<'a, T> {
    /// Added, changed or resynced.
    Seen(&'a T),
    /// Deleted; the object's last known state.
    Gone(&'a T),
}

struct Handler<F>(F);

impl<T: Object, F: FnMut(Event<'_, T>) + Send + 'static> EventHandler<T> for Handler<F> {
    fn on_add(&mut self, object: &Arc<T>, _: bool) {
        (self.0)(Event::Seen(object));
    }

    fn on_update(&mut self, old: &Arc<T>, new: &Arc<T>) {
        if old.meta().uid != new.meta().uid {
            (self.0)(Event::Gone(old));
        }
        (self.0)(Event::Seen(new));
    }

    fn on_delete(&mut self, object: &Deleted<T>) {
        (self.0)(Event::Gone(object.object()));
    }
}

/// A queue, the informers that fill it, and the workers that empty it.
pub struct Worker {
    name: &'static str,
    keys: Keys,
    /// Resolve when the informers have delivered their first lists.
    synced: Vec<Boxed<()>>,
}

impl Worker {
    pub fn new(name: &'static str, clock: &SharedClock) -> Worker {
        let limiter = default_controller_rate_limiter(clock.clone());
        let keys = Keys(RateLimitingQueue::new(name, clock.clone(), limiter));
        Worker { name, keys, synced: Vec::new() }
    }

    pub fn keys(&self) -> Keys {
        self.keys.clone()
    }

    /// Hands every event of `informer` to `handle`.
    pub fn watch<T: Object>(
        &mut self,
        informer: &SharedIndexInformer<T>,
        handle: impl FnMut(Event<'_, T>) + Send + 'static,
    ) {
        let informer = informer.clone();
        let registration =
            informer.add_handler(self.name, Handler(handle), informer.default_resync());
        self.synced.push(Box::pin(async move {
            informer.synced().await;
            registration.synced().await;
        }));
    }

    /// Queues the keys of the objects for which `matters` returns true, whenever they are seen.
    pub fn queue_matching<T: Object>(
        &mut self,
        informer: &SharedIndexInformer<T>,
        matters: impl Fn(&T) -> bool + Send + 'static,
    ) {
        let keys = self.keys();
        self.watch(informer, move |event| {
            if let Event::Seen(object) = event
                && matters(object)
            {
                keys.add(object.meta().key());
            }
        });
    }

    /// Waits for the first list of an informer that wakes no key.
    pub fn read<T: Object>(&mut self, informer: &SharedIndexInformer<T>) {
        self.watch(informer, |_| {});
    }

    /// Syncs keys with `count` workers until the stop. Keys that still wait then are dropped.
    pub async fn run<S, F>(self, count: usize, stop: StopToken, sync: S)
    where
        S: Fn(ObjectKey) -> F + Send + Sync + 'static,
        F: Future<Output = SyncResult> + Send + 'static,
    {
        let Worker { name, keys: Keys(queue), synced } = self;
        let all_synced = async {
            for synced in synced {
                synced.await;
            }
        };
        if stop.unless_stopped(all_synced).await.is_none() {
            return;
        }
        let sync = Arc::new(sync);
        let tasks = TaskGroup::new();
        for _ in 0..count {
            let (queue, sync, stop) = (queue.clone(), sync.clone(), stop.clone());
            tasks.spawn(async move {
                while let Some(key) = queue.get().await {
                    if !stop.is_stopped() {
                        let result = sync(key.clone()).await;
                        finish_sync(name, &queue, &key, result);
                    }
                    queue.done(&key);
                }
            });
        }
        stop.stopped().await;
        queue.shut_down();
        tasks.join().await;
    }
}

/// Queues a key again if the result of its sync says so: after a delay, or with backoff after an
/// error.
fn finish_sync(
    name: &str,
    queue: &RateLimitingQueue<ObjectKey>,
    key: &ObjectKey,
    result: SyncResult,
) {
    match result {
        Ok(next) => {
            queue.forget(key);
            if let Next::After(delay) = next {
                queue.add_after(key.clone(), delay);
            }
        }
        Err(error) => {
            log::error!("{name}: {key}: {error}");
            queue.add_rate_limited(key.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::{block_on, yield_now};
    use kube_controller_manager::clock::FakeClock;
    use kube_controller_manager::objects::Timestamp;
    use kube_controller_manager::task::spawn;
    use parking_lot::Mutex;

    use super::*;

    #[test]
    fn failures_and_delays_are_synced_again() {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let worker = Worker::new("test-worker", &(clock.clone() as SharedClock));
        let keys = worker.keys();
        for name in ["fails", "later", "done"] {
            keys.add(ObjectKey::cluster(name));
        }
        let calls: Arc<Mutex<Vec<String>>> = Arc::default();
        let (seen, stop) = (calls.clone(), StopToken::new());
        let running = spawn(worker.run(2, stop.clone(), move |key: ObjectKey| {
            let mut calls = seen.lock();
            let is_first = !calls.contains(&key.name.to_string());
            calls.push(key.name.to_string());
            async move {
                match &*key.name {
                    "fails" if is_first => Err(client::Error::Config("unavailable".to_owned())),
                    "later" if is_first => Ok(Next::After(Duration::from_secs(1))),
                    _ => Ok(Next::Done),
                }
            }
        }));
        block_on(async {
            while calls.lock().len() < 5 {
                clock.advance(Duration::from_millis(5));
                yield_now().await;
            }
            stop.stop();
            running.await;
        });
        let mut calls = calls.lock().clone();
        calls.sort();
        assert_eq!(calls, ["done", "fails", "fails", "later", "later"]);
    }
}
