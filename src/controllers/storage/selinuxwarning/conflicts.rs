//! The labels with which pods use volumes, and the conflicts between them. No I/O.
//! Upstream: `selinuxwarning/cache`, `selinuxwarning/translator`.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::objects::{Istr, ObjectKey};

/// How a pod uses a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeUse {
    /// `user:role:type:level`; empty: none.
    pub label: Istr,
    pub policy: Istr,
}

/// Two pods use one volume in ways that one node does not allow at the same time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// `SELinuxLabel` or `SELinuxChangePolicy`.
    pub property: &'static str,
    pub pod: ObjectKey,
    pub value: Istr,
    pub other: ObjectKey,
    pub other_value: Istr,
}

impl Conflict {
    pub fn reason(&self) -> String {
        format!("{}Conflict", self.property)
    }

    /// Returns the text about a conflict, which does not name a pod of another namespace.
    pub fn message(&self) -> String {
        let Conflict { property, pod, value, other, other_value } = self;
        const END: &str =
            "If both pods land on the same node, only one of them may access the volume.";
        if pod.namespace == other.namespace {
            return format!(
                "{property} \"{value}\" conflicts with pod {} that uses the same volume as this pod \
                 with {property} \"{other_value}\". {END}",
                other.name
            );
        }
        // The property stands before the value without a space, as upstream.
        format!(
            "{property}\"{value}\" conflicts with another pod that uses the same volume as this pod \
             with a different {property}. {END}"
        )
    }
}

/// The volumes that pods use, and the conflicts between the uses.
#[derive(Default)]
pub struct VolumeUses {
    volumes: HashMap<Istr, Volume>,
    pods: HashMap<ObjectKey, BTreeSet<Istr>>,
}

#[derive(Default)]
struct Volume {
    /// The CSI driver; empty: another kind of volume.
    driver: Istr,
    pods: BTreeMap<ObjectKey, VolumeUse>,
    /// The conflicts, in both directions.
    conflicts: Vec<Conflict>,
}

impl VolumeUses {
    /// Adds the use of a volume by a pod, in place of an earlier one. Returns the conflicts that it
    /// causes, in both directions; none if the same use is known already.
    /// Upstream: `VolumeCache.AddVolume`.
    pub fn add(
        &mut self,
        volume: &Istr,
        driver: &str,
        pod: &ObjectKey,
        new: VolumeUse,
    ) -> Vec<Conflict> {
        self.pods.entry(pod.clone()).or_default().insert(volume.clone());
        let volume = self
            .volumes
            .entry(volume.clone())
            .or_insert_with(|| Volume { driver: driver.into(), ..Volume::default() });
        if volume.pods.get(pod) == Some(&new) {
            return Vec::new();
        }
        let mut conflicts = Vec::new();
        for (other, old) in volume.pods.iter().filter(|(other, _)| *other != pod) {
            let mut add_conflict = |property, value: &Istr, other_value: &Istr| {
                conflicts.push(Conflict {
                    property,
                    pod: pod.clone(),
                    value: value.clone(),
                    other: other.clone(),
                    other_value: other_value.clone(),
                });
                conflicts.push(Conflict {
                    property,
                    pod: other.clone(),
                    value: other_value.clone(),
                    other: pod.clone(),
                    other_value: value.clone(),
                });
            };
            if old.policy != new.policy {
                add_conflict("SELinuxChangePolicy", &new.policy, &old.policy);
            }
            if labels_conflict(&old.label, &new.label) {
                add_conflict("SELinuxLabel", &new.label, &old.label);
            }
        }
        volume.pods.insert(pod.clone(), new);
        volume.forget(pod);
        volume.conflicts.extend(conflicts.iter().cloned());
        conflicts
    }

    /// Forgets the volumes that a pod uses.
    /// Upstream: `VolumeCache.DeletePod`.
    pub fn remove(&mut self, pod: &ObjectKey) {
        for name in self.pods.remove(pod).into_iter().flatten() {
            let Some(volume) = self.volumes.get_mut(&name) else { continue };
            volume.forget(pod);
            volume.pods.remove(pod);
            if volume.pods.is_empty() {
                self.volumes.remove(&name);
            }
        }
    }

    /// Returns the pods that use volumes of a CSI driver, a pod once for each such volume.
    pub fn pods_of_driver(&self, driver: &str) -> Vec<ObjectKey> {
        let volumes = self.volumes.values().filter(|volume| volume.driver == *driver);
        volumes.flat_map(|volume| volume.pods.keys().cloned()).collect()
    }

    /// Returns all conflicts, each once even if it is about several volumes.
    pub fn conflicts(&self) -> BTreeSet<Conflict> {
        self.volumes.values().flat_map(|volume| volume.conflicts.iter().cloned()).collect()
    }
}

impl Volume {
    /// Drops the conflicts of the pod.
    fn forget(&mut self, pod: &ObjectKey) {
        self.conflicts.retain(|known| known.pod != *pod && known.other != *pod);
    }
}

/// Returns whether two labels conflict. A user, role or type that is empty becomes the node's
/// default, which is not known here, and conflicts with nothing; an empty level stays empty.
/// Upstream: `ControllerSELinuxTranslator.Conflicts`.
fn labels_conflict(one: &str, other: &str) -> bool {
    let parts = |label: &str| -> [String; 4] {
        let mut parts = label.splitn(4, ':').map(str::to_owned);
        std::array::from_fn(|_| parts.next().unwrap_or_default())
    };
    let (one, other) = (parts(one), parts(other));
    let known = |at: usize| !one[at].is_empty() && !other[at].is_empty();
    one[3] != other[3] || (0..3).any(|at| known(at) && one[at] != other[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_conflict_where_both_are_known() {
        for (one, other, conflict) in [
            ("", "", false),
            ("u:r:t:s0:c1,c2", "u:r:t:s0:c1,c2", false),
            ("system_u:system_r:container_t:s0:c1,c2", ":::s0:c1,c2", false),
            ("system_u:system_r:container_t:s0:c1,c2", ":::s0:c98,c99", true),
            (":::s0:c1,c2", "", true),
            ("a:r:t:s0", "b:r:t:s0", true),
            ("a::t:s0", ":r:t:s0", false),
        ] {
            assert_eq!(labels_conflict(one, other), conflict, "{one} {other}");
            assert_eq!(labels_conflict(other, one), conflict, "{other} {one}");
        }
    }

    fn used(label: &str, policy: &str) -> VolumeUse {
        VolumeUse { label: label.into(), policy: policy.into() }
    }

    #[test]
    fn conflicts_are_reported_once_and_removed_with_their_pods() {
        let mut uses = VolumeUses::default();
        let volume = Istr::new("v");
        let [a, b] = ["a", "b"].map(|name| ObjectKey::new("ns", name));
        let elsewhere = ObjectKey::new("other", "c");
        assert_eq!(uses.add(&volume, "d", &a, used(":::s0:c1", "MountOption")), []);
        let first = uses.add(&volume, "d", &b, used(":::s0:c2", "MountOption"));
        let texts: Vec<String> = first.iter().map(Conflict::message).collect();
        assert_eq!(
            texts,
            [
                "SELinuxLabel \":::s0:c2\" conflicts with pod a that uses the same volume as this \
                 pod with SELinuxLabel \":::s0:c1\". If both pods land on the same node, only one of \
                 them may access the volume.",
                "SELinuxLabel \":::s0:c1\" conflicts with pod b that uses the same volume as this \
                 pod with SELinuxLabel \":::s0:c2\". If both pods land on the same node, only one of \
                 them may access the volume.",
            ]
        );
        assert_eq!(first[0].reason(), "SELinuxLabelConflict");
        assert_eq!(uses.add(&volume, "d", &b, used(":::s0:c2", "MountOption")), [], "it is known");
        assert_eq!(uses.conflicts().len(), 2);
        let third = uses.add(&volume, "d", &elsewhere, used(":::s0:c2", "Recursive"));
        assert_eq!(third.len(), 6, "two policies, and the label of a");
        assert_eq!(
            third[0].message(),
            "SELinuxChangePolicy\"Recursive\" conflicts with another pod that uses the same volume \
             as this pod with a different SELinuxChangePolicy. If both pods land on the same node, \
             only one of them may access the volume."
        );
        assert_eq!(uses.pods_of_driver("d").len(), 3);
        assert!(uses.pods_of_driver("e").is_empty());
        uses.remove(&a);
        assert_eq!(uses.conflicts().len(), 2, "the policies of b and c");
        uses.remove(&elsewhere);
        uses.remove(&b);
        assert!(uses.conflicts().is_empty() && uses.volumes.is_empty() && uses.pods.is_empty());
    }

    #[test]
    fn a_changed_use_replaces_its_conflicts() {
        let mut uses = VolumeUses::default();
        let volume = Istr::new("v");
        let [a, b] = ["a", "b"].map(|name| ObjectKey::new("ns", name));
        uses.add(&volume, "", &a, used(":::s0:c1", "MountOption"));
        uses.add(&volume, "", &b, used(":::s0:c2", "MountOption"));
        assert_eq!(uses.add(&volume, "", &b, used(":::s0:c1", "MountOption")), []);
        assert!(uses.conflicts().is_empty());
    }
}
