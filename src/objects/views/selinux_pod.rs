//! A view of pods for the controller that warns about SELinux labels. It is off by default, so the
//! fields that only it reads are not in the shared view.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use serde::Deserialize;

use super::pod::{WirePod, WireVolume, kept_volumes};
use crate::lookup::Lookup;
use crate::objects::values::intern::{Interned, Pool};
use crate::objects::{
    ClaimVolume, InlineVolume, Istr, Meta, Object, Pod, PodPhase, Resource, ResourceType,
    null_as_default,
};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "WirePod<WireSpec, WireStatus>")]
pub struct SelinuxPod {
    pub meta: Meta,
    /// Whether the pod has succeeded or failed.
    pub has_ended: bool,
    pub shape: Interned<SelinuxShape>,
}

/// The fields that pods of one template have in common; pods with equal fields share one copy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SelinuxShape {
    pub claims: Box<[ClaimVolume]>,
    pub inline_volumes: Box<[InlineVolume]>,
    pub mounts: Box<[LabelledMount]>,
    /// `spec.securityContext.seLinuxChangePolicy`
    pub change_policy: Option<Istr>,
}

/// A volume that containers mount.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LabelledMount {
    pub volume: Istr,
    /// The distinct labels of the containers with a context: `user:role:type:level`, or empty.
    pub labels: Box<[Istr]>,
}

impl Resource for SelinuxPod {
    const RESOURCE: ResourceType = Pod::RESOURCE;
}

impl Object for SelinuxPod {
    fn meta(&self) -> &Meta {
        &self.meta
    }
}

static SHAPES: LazyLock<Pool<Interned<SelinuxShape>>> = LazyLock::new(Pool::new);

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireStatus {
    #[serde(deserialize_with = "null_as_default")]
    phase: PodPhase,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireSpec {
    volumes: Option<Vec<WireVolume>>,
    containers: Option<Vec<WireContainer>>,
    init_containers: Option<Vec<WireContainer>>,
    ephemeral_containers: Option<Vec<WireContainer>>,
    security_context: Option<WireContext>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireContainer {
    volume_mounts: Option<Vec<WireMount>>,
    security_context: Option<WireContext>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireMount {
    name: Istr,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireContext {
    se_linux_options: Option<WireOptions>,
    se_linux_change_policy: Option<Istr>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireOptions {
    user: Istr,
    role: Istr,
    r#type: Istr,
    level: Istr,
}

impl WireContext {
    /// Returns the file label of the SELinux options, empty if all of them are empty; `None`
    /// without options. Upstream: `SELinuxOptionsToFileLabel`.
    fn label(&self) -> Option<Istr> {
        let WireOptions { user, role, r#type, level } = self.se_linux_options.as_ref()?;
        let label = format!("{user}:{role}:{type}:{level}");
        Some(if label == ":::" { Istr::default() } else { label.into() })
    }
}

impl From<WirePod<WireSpec, WireStatus>> for SelinuxPod {
    /// Converts the wire form of a pod to the view: its volumes, and the SELinux labels with which
    /// containers mount them.
    fn from(wire: WirePod<WireSpec, WireStatus>) -> SelinuxPod {
        let WirePod { metadata: meta, spec, status } = wire;
        let context = spec.security_context.unwrap_or_default();
        let all = [spec.init_containers, spec.containers, spec.ephemeral_containers];
        let mounts = labels_by_volume(all.into_iter().flatten().flatten(), context.label());
        let (claims, inline_volumes) = kept_volumes(spec.volumes);
        // Other volumes are not relabelled. They are kept where containers mount them with several
        // labels, which is reported.
        let by_claim = Lookup::new(&claims, |claim| claim.volume.as_str());
        let inline = Lookup::new(&inline_volumes, |inline| inline.name.as_str());
        let is_kept = |volume: &Istr, labels: &BTreeSet<Istr>| {
            labels.len() > 1 || by_claim.contains(volume) || inline.contains(volume)
        };
        let mounts = mounts
            .into_iter()
            .filter(|(volume, labels)| is_kept(volume, labels))
            .map(|(volume, labels)| LabelledMount { volume, labels: labels.into_iter().collect() })
            .collect();
        let shape = SelinuxShape {
            claims,
            inline_volumes,
            mounts,
            change_policy: context.se_linux_change_policy,
        };
        let has_ended = matches!(status.phase, PodPhase::Succeeded | PodPhase::Failed);
        SelinuxPod { meta, has_ended, shape: SHAPES.intern(shape) }
    }
}

/// Collects the labels with which `containers` mount each volume; `of_pod` counts where a container
/// has none.
fn labels_by_volume(
    containers: impl Iterator<Item = WireContainer>,
    of_pod: Option<Istr>,
) -> BTreeMap<Istr, BTreeSet<Istr>> {
    let mut mounts: BTreeMap<Istr, BTreeSet<Istr>> = BTreeMap::new();
    for container in containers {
        let of_container = container.security_context.as_ref().and_then(WireContext::label);
        for mount in container.volume_mounts.into_iter().flatten() {
            let labels = mounts.entry(mount.name).or_default();
            labels.extend(of_container.clone().or_else(|| of_pod.clone()));
        }
    }
    mounts
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn mounts_carry_the_labels_of_their_containers() {
        let level = |level: &str| json!({ "seLinuxOptions": { "level": level } });
        let mount = json!([{ "name": "data" }, { "name": "config" }]);
        let all = json!([{ "name": "data" }, { "name": "config" }, { "name": "token" }]);
        let pod: SelinuxPod = serde_json::from_value(json!({ "spec": {
            "securityContext": {
                "seLinuxOptions": { "level": "s0:c1" }, "seLinuxChangePolicy": "MountOption",
            },
            "volumes": [
                { "name": "data", "persistentVolumeClaim": { "claimName": "c" } },
                { "name": "config", "configMap": {} },
                { "name": "token", "projected": {} },
            ],
            "initContainers": [{ "volumeMounts": mount, "securityContext": level("s0:c2") }],
            "containers": [
                { "volumeMounts": all },
                { "volumeMounts": mount, "securityContext": { "privileged": true } },
            ],
        } }))
        .unwrap();
        // A volume without labels of its own counts where it is mounted with several.
        let [config, data] = &*pod.shape.mounts else { panic!("{:?}", pod.shape) };
        assert_eq!((&*config.volume, &*data.volume), ("config", "data"));
        for mount in [config, data] {
            assert_eq!(*mount.labels, [Istr::new(":::s0:c1"), Istr::new(":::s0:c2")]);
        }
        assert_eq!(pod.shape.change_policy.as_deref(), Some("MountOption"));
        let plain: SelinuxPod = serde_json::from_value(json!({ "spec": {
            "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "c" } }],
            "containers": [{ "volumeMounts": [{ "name": "data" }] }],
        } }))
        .unwrap();
        assert!(plain.shape.mounts[0].labels.is_empty());
    }
}
