//! The records that a controller keeps of an owner beside the caches, and their removal.

use std::sync::Arc;

use crate::controllers::runner::{Change, Mapper};
use crate::objects::{Object, ObjectKey, Uid};

/// A record of each owner, by its key.
pub trait OwnerRecord: Send + Sync {
    /// Drops the record of `owner`. A record with a uid stays if that is the uid of another owner
    /// of this name; `None`: any uid.
    fn forget(&self, owner: &ObjectKey, uid: Option<&Uid>);
}

/// All records that a controller keeps of its owners. Cheap to clone.
#[derive(Clone, Default)]
pub struct OwnerRecords(Vec<Arc<dyn OwnerRecord>>);

impl OwnerRecords {
    /// Adds `record`, for the controller to read and write, and for [`OwnerRecords::forget`] to
    /// drop.
    pub fn add<R: OwnerRecord + 'static>(&mut self, record: R) -> Arc<R> {
        let record = Arc::new(record);
        self.share(&record);
        record
    }

    /// Adds `record`, which another part of the controller holds as well.
    pub fn share<R: OwnerRecord + 'static>(&mut self, record: &Arc<R>) {
        self.0.push(record.clone());
    }

    /// Drops all records of `owner`, as [`OwnerRecord::forget`] does.
    pub fn forget(&self, owner: &ObjectKey, uid: Option<&Uid>) {
        self.0.iter().for_each(|record| record.forget(owner, uid));
    }

    /// Returns the mapper of owners: every change of one queues its own key. The records of a
    /// deleted owner are dropped first: a new owner of the same name starts without them.
    pub fn mapper<T: Object>(&self) -> impl Mapper<T, ObjectKey> + use<T> {
        let records = self.clone();
        move |change: Change<'_, T>, queue| {
            let meta = change.object().meta();
            if let Change::Deleted(_) = change {
                records.forget(&meta.key(), Some(&meta.uid));
            }
            queue.add(meta.key());
        }
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::cache::Deleted;
    use crate::clock::SystemClock;
    use crate::controllers::QueuePolicy;
    use crate::controllers::runner::Queue;
    use crate::objects::{Meta, ReplicaSet};

    type Forgotten = Mutex<Vec<(ObjectKey, Option<Uid>)>>;

    impl OwnerRecord for Forgotten {
        fn forget(&self, owner: &ObjectKey, uid: Option<&Uid>) {
            self.lock().push((owner.clone(), uid.cloned()));
        }
    }

    #[test]
    fn a_deleted_owner_is_forgotten_and_queued() {
        let mut records = OwnerRecords::default();
        let all = [records.add(Forgotten::default()), records.add(Forgotten::default())];
        let queue = Queue::new("", QueuePolicy::default(), SystemClock::shared());
        let meta =
            Meta { namespace: "ns".into(), name: "a".into(), uid: "1".into(), ..Meta::default() };
        let set = &Arc::new(ReplicaSet { meta, ..ReplicaSet::default() });
        let mut mapper = records.mapper();
        mapper(Change::Added { new: set, initial: false }, &queue);
        assert!(queue.len() == 1 && all[0].lock().is_empty());
        mapper(Change::Deleted(&Deleted::Known(set.clone())), &queue);
        let key = set.meta.key();
        records.forget(&key, None);
        let forgotten = [(key.clone(), Some(Uid::new("1"))), (key, None)];
        assert!(all.iter().all(|record| *record.lock() == forgotten));
    }
}
