//! Warns about pods that use one volume with SELinux labels or policies that one node does not
//! allow at the same time. Off by default. Upstream: `pkg/controller/volume/selinuxwarning`.

mod conflicts;
mod metrics;

use std::sync::Arc;

use parking_lot::Mutex;

use self::conflicts::{Conflict, VolumeUse, VolumeUses};
use super::claims::emit_claims;
use super::volume_specs::{AttachmentSource, Plugin, Resolver, Spec, of_inline};
use crate::cache::{Index, IndexValue, Lister, Scope};
use crate::controllers::runner::Change;
use crate::controllers::{Controller, Error, Next, Queue, QueuePolicy, SyncResult};
use crate::events::Recorder;
use crate::lookup::Lookup;
use crate::objects::{
    CSIDriver, ClaimVolume, InlineVolume, Istr, ObjectKey, PersistentVolume, PersistentVolumeClaim,
    Resource, SelinuxPod,
};

const BY_CLAIM: Index<SelinuxPod> = Index::new("pod-pvc-index", |pod, emit| {
    emit_claims(&pod.meta, &pod.shape.claims, emit);
});
const RECURSIVE: &str = "Recursive";
const MOUNT_OPTION: &str = "MountOption";

/// Sets up the controller `selinux-warning-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    // Nothing else reads containers' mounts and contexts, so they are in a cache of their own.
    let pods = c.lister_of::<SelinuxPod>(Scope::all(SelinuxPod::RESOURCE));
    let claims = c.lister::<PersistentVolumeClaim>();
    let volumes = c.lister::<PersistentVolume>();
    let drivers = c.lister::<CSIDriver>();
    c.index(&pods, &BY_CLAIM);
    let queue = c.queue(QueuePolicy::default());
    let this = Arc::new(SelinuxWarning {
        recorder: c.recorder(),
        pods: pods.clone(),
        resolver: Resolver {
            claims: claims.clone(),
            volumes: volumes.clone(),
            drivers: drivers.clone(),
            flex: None,
        },
        mounts_labels: c.feature("SELinuxMountReadWriteOncePod"),
        uses: Mutex::default(),
    });
    c.watch(&pods, &queue, |change, queue| {
        let pod = change.object();
        let matters = match change {
            // The only relevant change of a pod is its end.
            Change::Updated { old, new } => old.has_ended != new.has_ended && new.has_ended,
            Change::Resync { .. } => false,
            Change::Added { .. } | Change::Deleted(_) => true,
        };
        if matters && !pod.shape.mounts.is_empty() {
            queue.add(pod.meta.key());
        }
    });
    let users = pods.clone();
    c.watch(&claims, &queue, move |change, queue| {
        let (old, new) = match change {
            Change::Added { new, .. } => (None, new),
            Change::Updated { old, new } => (Some(&old.spec.volume_name), new),
            _ => return,
        };
        let volume = &new.spec.volume_name;
        if !volume.is_empty() && old != Some(volume) {
            queue_users(&users, &new.meta.key(), queue);
        }
    });
    let users = pods.clone();
    c.watch(&volumes, &queue, move |change, queue| {
        let (old, new) = match change {
            Change::Added { new, .. } => (None, new),
            Change::Updated { old, new } => (old.spec.claim_ref.as_ref(), new),
            _ => return,
        };
        let Some(claim) = new.spec.claim_ref.as_ref().filter(|claim| !claim.uid.is_empty()) else {
            return;
        };
        if old.is_none_or(|old| old.uid != claim.uid) {
            queue_users(&users, &ObjectKey::new(&claim.namespace, &claim.name), queue);
        }
    });
    let handler = this.clone();
    c.watch(&drivers, &queue, move |change, queue| {
        let mounts = |driver: &CSIDriver| driver.spec.se_linux_mount == Some(true);
        let matters = match &change {
            Change::Added { .. } => true,
            Change::Updated { old, new } => mounts(old) != mounts(new),
            Change::Deleted(last) => mounts(last.object()),
            Change::Resync { .. } => false,
        };
        if matters {
            let pods = handler.uses.lock().pods_of_driver(&change.object().meta.name);
            pods.into_iter().for_each(|pod| queue.add(pod));
        }
    });
    metrics::report(&this);
    c.sync_by(1, queue, &this, async |this, key| this.sync(&key));
    Ok(())
}

/// Queues the pods whose volumes name `claim`.
fn queue_users(pods: &Lister<SelinuxPod>, claim: &ObjectKey, queue: &Queue) {
    for pod in pods.by_index(&BY_CLAIM, &IndexValue::Key(claim.clone())) {
        queue.add(pod.meta.key());
    }
}

struct SelinuxWarning {
    recorder: Recorder,
    pods: Lister<SelinuxPod>,
    resolver: Resolver,
    /// Whether kubelets mount volumes with labels at all.
    mounts_labels: bool,
    uses: Mutex<VolumeUses>,
}

impl SelinuxWarning {
    /// Records how the pod uses its volumes, and reports conflicts with other pods. Fails, to be
    /// retried, if a claim is not bound yet or the pod mounts a volume with several labels.
    fn sync(&self, key: &ObjectKey) -> SyncResult {
        let Some(pod) = self.pods.get(key).filter(|pod| !pod.has_ended) else {
            self.uses.lock().remove(key);
            return Ok(Next::Done);
        };
        let claims = Lookup::new(&pod.shape.claims, |claim| claim.volume.as_str());
        let inline = Lookup::new(&pod.shape.inline_volumes, |inline| inline.name.as_str());
        let mut errors = Vec::new();
        for mount in &pod.shape.mounts {
            let spec = match (claims.get(&mount.volume), inline.get(&mount.volume)) {
                (Some(claim), _) => self.spec_of_claim(&pod, claim).transpose(),
                (None, inline) => {
                    Ok(inline.and_then(|inline| SelinuxWarning::spec_of_inline(&pod, inline)))
                }
            };
            let spec = match spec {
                Ok(spec) => spec,
                Err(error) => {
                    errors.push(error);
                    continue;
                }
            };
            if mount.labels.len() > 1 && self.mounts_labels {
                let text = format!(
                    "Volume {:?} is mounted twice with different SELinux labels inside this pod",
                    mount.volume
                );
                self.recorder.warning(&*pod, "MultipleSELinuxLabels", &text);
                errors.push(Error::NotYet(text));
                continue;
            }
            let Some(spec) = spec else { continue };
            let label = mount.labels.first().cloned().unwrap_or_default();
            let used = decide(label, pod.shape.change_policy.as_ref(), self.supports_mount(&spec));
            let driver = spec.csi.as_ref().map_or("", |csi| &csi.driver);
            let conflicts = self.uses.lock().add(&spec.volume, driver, key, used);
            self.report(&conflicts);
        }
        match Error::many(errors) {
            Some(error) => Err(error),
            None => Ok(Next::Done),
        }
    }

    /// Returns the spec of a claim's volume: an error if it is not bound yet; `None` if it has no
    /// labels, or its plugin does not support them.
    fn spec_of_claim(&self, pod: &SelinuxPod, claim: &ClaimVolume) -> Option<Result<Spec, Error>> {
        let Some(bound) = self.resolver.volume_of_claim(&pod.meta, claim) else {
            let text = format!("the claim of volume {} is not bound", claim.volume);
            return Some(Err(Error::NotYet(text)));
        };
        let spec = super::volume_specs::of_volume(&bound, claim.read_only);
        spec.filter(|spec| spec.plugin != Plugin::Flex).map(Ok)
    }

    /// Returns the spec of an inline volume; `None` if it has no labels, or its plugin does not
    /// support them.
    fn spec_of_inline(pod: &SelinuxPod, inline: &InlineVolume) -> Option<Spec> {
        let spec = of_inline(inline, &pod.meta.namespace)?;
        let is_ephemeral =
            spec.csi.as_ref().is_some_and(|csi| csi.source == AttachmentSource::Never);
        (!is_ephemeral && spec.plugin != Plugin::Flex).then_some(spec)
    }

    /// Returns whether the volume can be mounted with an SELinux label.
    /// Upstream: `SupportsSELinuxContextMount`.
    fn supports_mount(&self, spec: &Spec) -> bool {
        self.mounts_labels
            && match (&spec.csi, spec.plugin) {
                (Some(csi), _) => {
                    let driver = self.resolver.drivers.get(&ObjectKey::cluster(&csi.driver));
                    driver.is_some_and(|driver| driver.spec.se_linux_mount == Some(true))
                }
                (None, plugin) => plugin != Plugin::Flex,
            }
    }

    /// Records an event for each conflict.
    fn report(&self, conflicts: &[Conflict]) {
        for conflict in conflicts {
            // A conflict with a deleted pod does not exist any more; as upstream, the rest is not
            // reported either.
            let Some(pod) = self.pods.get(&conflict.pod) else { return };
            self.recorder.normal(&*pod, &conflict.reason(), conflict.message());
        }
    }
}

/// Returns how a pod uses a volume that all its containers mount with `label`: with the label, or
/// with files that are relabelled recursively. Upstream: `GetMountSELinuxLabel`, `syncVolume`.
fn decide(label: Istr, policy: Option<&Istr>, supports_mount: bool) -> VolumeUse {
    let is_recursive = policy.is_some_and(|policy| *policy == RECURSIVE);
    if is_recursive || !supports_mount || label.is_empty() {
        return VolumeUse { label: Istr::default(), policy: RECURSIVE.into() };
    }
    let policy = policy.cloned().unwrap_or_else(|| MOUNT_OPTION.into());
    VolumeUse { label, policy }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_count_where_volumes_are_mounted_with_them() {
        for (label, policy, supports, expected) in [
            (":::s0", None, true, (":::s0", MOUNT_OPTION)),
            (":::s0", Some(MOUNT_OPTION), true, (":::s0", MOUNT_OPTION)),
            (":::s0", Some(RECURSIVE), true, ("", RECURSIVE)),
            (":::s0", None, false, ("", RECURSIVE)),
            ("", None, true, ("", RECURSIVE)),
        ] {
            let found = decide(label.into(), policy.map(Istr::new).as_ref(), supports);
            assert_eq!((&*found.label, &*found.policy), expected, "{label} {policy:?} {supports}");
        }
    }
}
