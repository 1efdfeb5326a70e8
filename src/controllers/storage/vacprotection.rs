//! Keeps a VolumeAttributesClass that is being deleted while a volume or a claim names it.
//! Upstream: `pkg/controller/volume/vacprotection`.

use std::sync::Arc;

use super::protection::Protection;
use crate::cache::{Index, IndexValue, Lister};
use crate::client::Client;
use crate::controllers::runner::{Change, keys};
use crate::controllers::{Controller, Next, Queue, QueuePolicy, SyncResult};
use crate::objects::{
    Istr, Object, ObjectKey, PersistentVolume, PersistentVolumeClaim, VolumeAttributesClass,
};

/// Upstream: `volumeutil.VACProtectionFinalizer`.
const PROTECTION: Protection = Protection("kubernetes.io/vac-protection");
/// Makes the index of volumes or claims by the classes that they name.
const fn class_index<T: NamesClasses>() -> Index<T> {
    Index::new("volumeAttributesClassName", |object, emit| {
        object.classes().into_iter().for_each(|class| emit(IndexValue::Text(class)));
    })
}

/// Sets up the controller `volumeattributesclass-protection-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let classes = c.lister::<VolumeAttributesClass>();
    let volumes = c.lister::<PersistentVolume>();
    let claims = c.lister::<PersistentVolumeClaim>();
    c.index(&volumes, &class_index());
    c.index(&claims, &class_index());
    let queue = c.queue(QueuePolicy::default());
    let needs_sync = |class: &VolumeAttributesClass| PROTECTION.concerns(&class.meta);
    c.watch(&classes, &queue, keys::of_current(needs_sync));
    c.watch(&volumes, &queue, queue_released::<PersistentVolume>);
    c.watch(&claims, &queue, queue_released::<PersistentVolumeClaim>);
    let this = Arc::new(VacProtection { client: c.client(), classes, volumes, claims });
    c.sync(queue, &this, VacProtection::sync);
    Ok(())
}

/// A kind whose objects name VolumeAttributesClasses.
trait NamesClasses: Object {
    fn classes(&self) -> Vec<Istr>;
}

impl NamesClasses for PersistentVolume {
    fn classes(&self) -> Vec<Istr> {
        let name = self.spec.volume_attributes_class_name.as_ref();
        match name {
            Some(name) if !name.is_empty() => vec![name.clone()],
            _ => Vec::new(),
        }
    }
}

impl NamesClasses for PersistentVolumeClaim {
    fn classes(&self) -> Vec<Istr> {
        self.volume_attributes_classes().into_iter().cloned().collect()
    }
}

/// Queues the classes that an object no longer names.
fn queue_released<T: NamesClasses>(change: Change<'_, T>, queue: &Queue) {
    let released = match change {
        Change::Updated { old, new } => {
            let named = new.classes();
            old.classes().into_iter().filter(|class| !named.contains(class)).collect()
        }
        Change::Deleted(last) => last.object().classes(),
        Change::Added { .. } | Change::Resync { .. } => Vec::new(),
    };
    released.iter().for_each(|class| queue.add(ObjectKey::cluster(class)));
}

struct VacProtection {
    client: Client,
    classes: Lister<VolumeAttributesClass>,
    volumes: Lister<PersistentVolume>,
    claims: Lister<PersistentVolumeClaim>,
}

impl VacProtection {
    /// Adds the finalizer to a class, or removes it from a deleted class that is not used.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(class) = self.classes.get(&key) else { return Ok(Next::Done) };
        if PROTECTION.is_deletion_candidate(&class.meta) && !self.is_used(&key.name) {
            PROTECTION.remove(&self.client, &*class).await?;
        }
        if PROTECTION.is_missing(&class.meta) {
            PROTECTION.add(&self.client, &*class).await?;
        }
        Ok(Next::Done)
    }

    /// Returns whether a volume or a claim names the class.
    fn is_used(&self, class: &str) -> bool {
        let class = IndexValue::Text(class.into());
        !self.volumes.by_index(&class_index(), &class).is_empty()
            || !self.claims.by_index(&class_index(), &class).is_empty()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cache::Deleted;
    use crate::clock::FakeClock;
    use crate::objects::Timestamp;

    #[test]
    fn classes_that_are_no_longer_named_are_queued() {
        let claim = |spec: Value, status: Value| -> Arc<PersistentVolumeClaim> {
            Arc::new(serde_json::from_value(json!({ "spec": spec, "status": status })).unwrap())
        };
        let all = claim(
            json!({ "volumeAttributesClassName": "wanted" }),
            json!({
                "currentVolumeAttributesClassName": "current",
                "modifyVolumeStatus": { "targetVolumeAttributesClassName": "target" },
            }),
        );
        let moved = claim(
            json!({ "volumeAttributesClassName": "wanted" }),
            json!({ "currentVolumeAttributesClassName": "target" }),
        );
        let queue = Queue::for_test(FakeClock::new(Timestamp::from_secs(0)));
        let queued = |change: Change<'_, PersistentVolumeClaim>| {
            queue_released(change, &queue);
            let mut names: Vec<String> =
                queue.drain().iter().map(|key| key.name.to_string()).collect();
            names.sort();
            names
        };
        assert_eq!(queued(Change::Updated { old: &all, new: &moved }), ["current"]);
        assert!(queued(Change::Updated { old: &moved, new: &all }).is_empty());
        assert!(queued(Change::Added { new: &all, initial: false }).is_empty());
        let deleted = Deleted::Known(all.clone());
        assert_eq!(queued(Change::Deleted(&deleted)), ["current", "target", "wanted"]);
    }
}
