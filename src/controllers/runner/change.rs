//! The events of an informer as controllers see them, and the functions that turn them into keys.

use std::sync::Arc;

use super::Queue;
use crate::cache::{Deleted, EventHandler};
use crate::objects::Object;
use crate::workqueue::Key;

/// One event of an informer, as mappers see it. Events about one object come in their order; states
/// between two events may be skipped. When an object was deleted and created again between two
/// events, the mapper gets `Deleted` and then `Added`. Upstream: the methods of
/// `ResourceEventHandler`.
pub enum Change<'a, T> {
    /// The object is in the cache now.
    Added {
        /// Its state.
        new: &'a Arc<T>,
        /// Whether it belongs to the list with which the handler began. Upstream:
        /// `isInInitialList`.
        initial: bool,
    },
    /// The object has changed, or was relisted: the two states may be of one version.
    Updated {
        /// The state of the event before.
        old: &'a Arc<T>,
        /// The state in the cache now.
        new: &'a Arc<T>,
    },
    /// The periodic resync: nothing changed. Upstream: an update with two equal objects.
    Resync {
        /// The state in the cache.
        object: &'a Arc<T>,
    },
    /// The object is no longer in the cache. Its last state may be older than the deletion.
    Deleted(&'a Deleted<T>),
}

impl<T> Change<'_, T> {
    /// Returns the newest known state of the object; of a deleted one the last.
    pub fn object(&self) -> &Arc<T> {
        match self {
            Change::Added { new, .. } | Change::Updated { new, .. } => new,
            Change::Resync { object } => object,
            Change::Deleted(deleted) => deleted.object(),
        }
    }
}

/// Adds the keys that a change concerns to a queue: a closure `|change, queue| …`. Runs on the
/// informer's handler task, so it does not wait and does no I/O. The Listers may be ahead of the
/// change, not behind it.
pub trait Mapper<T, K>: FnMut(Change<'_, T>, &Queue<K>) + Send + 'static {}

impl<T, K, F: FnMut(Change<'_, T>, &Queue<K>) + Send + 'static> Mapper<T, K> for F {}

/// Passes an informer's events to a mapper.
pub(super) struct Mapped<M, K> {
    pub mapper: M,
    pub queue: Queue<K>,
}

impl<T: Object, K: Key, M: Mapper<T, K>> EventHandler<T> for Mapped<M, K> {
    fn on_add(&mut self, object: &Arc<T>, initial: bool) {
        (self.mapper)(Change::Added { new: object, initial }, &self.queue);
    }

    /// Passes an update to the mapper; another uid means a deletion and an addition.
    fn on_update(&mut self, old: &Arc<T>, new: &Arc<T>) {
        // The informer's resync passes the same object twice.
        if Arc::ptr_eq(old, new) {
            return (self.mapper)(Change::Resync { object: new }, &self.queue);
        }
        if old.meta().uid != new.meta().uid {
            let deleted = Deleted::FinalStateUnknown(old.clone());
            (self.mapper)(Change::Deleted(&deleted), &self.queue);
            return (self.mapper)(Change::Added { new, initial: false }, &self.queue);
        }
        (self.mapper)(Change::Updated { old, new }, &self.queue);
    }

    fn on_delete(&mut self, object: &Deleted<T>) {
        (self.mapper)(Change::Deleted(object), &self.queue);
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::clock::FakeClock;
    use crate::objects::{Pod, Timestamp, Uid};

    #[test]
    fn each_event_becomes_its_changes() {
        let pod = |uid: &str| {
            let mut pod = Pod::default();
            pod.meta.uid = Uid::new(uid);
            Arc::new(pod)
        };
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        let mapper = move |change: Change<'_, Pod>, _: &Queue| {
            let what = match &change {
                Change::Added { initial, .. } => format!("added {initial}"),
                Change::Updated { .. } => "updated".into(),
                Change::Resync { .. } => "resync".into(),
                Change::Deleted(Deleted::Known(_)) => "deleted".into(),
                Change::Deleted(Deleted::FinalStateUnknown(_)) => "lost".into(),
            };
            log.lock().push(format!("{what} {}", change.object().meta.uid));
        };
        let queue = Queue::for_test(FakeClock::new(Timestamp::from_secs(0)));
        let mut handler = Mapped { mapper, queue };
        let (a, a2, b) = (pod("a"), pod("a"), pod("b"));
        handler.on_add(&a, true);
        handler.on_update(&a, &a);
        handler.on_update(&a, &a2);
        handler.on_update(&a2, &b);
        handler.on_delete(&Deleted::Known(b));
        assert_eq!(
            *seen.lock(),
            ["added true a", "resync a", "updated a", "lost a", "added false b", "deleted b"]
        );
    }
}
