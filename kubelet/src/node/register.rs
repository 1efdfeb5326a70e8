//! Registration of the Node. Upstream: `Kubelet.registerWithAPIServer`, `initialNode`,
//! `tryRegisterWithAPIServer`.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kube_controller_manager::client::Patch;
use kube_controller_manager::objects::{Node, ObjectKey, Quantity, Resource};
use serde::Deserialize;

use super::heartbeat::{Error, Heartbeats};
use super::huge_pages;
use super::labels::{self, Taint};
use super::patch;
use super::resources;
use super::status;
use crate::whole_object::WholeObject;

/// Says that the volumes of the node are attached by a controller.
/// Upstream: `ControllerManagedAttachAnnotation`.
const CONTROLLER_ATTACHES: &str = "volumes.kubernetes.io/controller-managed-attach-detach";

/// The taint of a node that its cloud's controller has not seen yet.
/// Upstream: `TaintExternalCloudProvider`.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// Below the root folder: what device plugins have registered with upstream's kubelet.
/// Upstream: `kubeletDeviceManagerCheckpoint`.
const DEVICE_CHECKPOINT: &str = "device-plugins/kubelet_internal_checkpoint";

/// The waits before the attempts. Upstream: `registerWithAPIServer`.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const MAX_DELAY: Duration = Duration::from_secs(7);

/// Returns the delay before the next attempt.
pub fn next_delay(last: Option<Duration>) -> Duration {
    last.map_or(FIRST_DELAY, |last| (last * 2).min(MAX_DELAY))
}

/// What a Node is registered with, beside its status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registration {
    pub name: String,
    /// `--node-labels`.
    pub labels: BTreeMap<String, String>,
    /// `registerWithTaints`.
    pub taints: Vec<Taint>,
    pub provider_id: String,
    /// `--cloud-provider=external`.
    pub is_external: bool,
    /// `enableControllerAttachDetach`.
    pub controller_attaches: bool,
    /// See [`former_devices`].
    pub former_devices: Vec<String>,
}

/// Lists the extended resources that device plugins advertised by a former kubelet of this root
/// folder. No plugin provides them now. A checkpoint that cannot be read names none. Blocks.
pub fn former_devices(root: &Path) -> Vec<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Checkpoint {
        data: Devices,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Devices {
        // Go writes null for an empty map.
        registered_devices: Option<BTreeMap<String, serde_json::Value>>,
    }
    let path = root.join(DEVICE_CHECKPOINT);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            log::warn!("{}: {error}", path.display());
            return Vec::new();
        }
    };
    let checkpoint = serde_json::from_slice::<Checkpoint>(&text)
        .inspect_err(|error| log::warn!("{}: {error}", path.display()));
    let devices = checkpoint.ok().and_then(|checkpoint| checkpoint.data.registered_devices);
    let names = devices.unwrap_or_default().into_keys();
    names.filter(|name| resources::is_extended(name)).collect()
}

impl Registration {
    /// Builds the Node without its status. Upstream: `initialNode`.
    pub fn node(&self) -> core::Node {
        let mut node = core::Node::default();
        node.metadata.name = Some(self.name.clone());
        let defaults = [
            (labels::HOSTNAME, self.name.as_str()),
            (labels::OS, status::OS),
            (labels::ARCHITECTURE, status::architecture()),
            (labels::BETA_OS, status::OS),
            (labels::BETA_ARCHITECTURE, status::architecture()),
        ];
        let mut all: BTreeMap<String, String> =
            defaults.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        all.extend(self.labels.clone());
        node.metadata.labels = Some(all);
        if self.controller_attaches {
            let annotation = (CONTROLLER_ATTACHES.to_owned(), "true".to_owned());
            node.metadata.annotations = Some(BTreeMap::from([annotation]));
        }
        let uninitialized = Taint {
            key: UNINITIALIZED.to_owned(),
            value: "true".to_owned(),
            effect: "NoSchedule".to_owned(),
        };
        let of_cloud = self.is_external.then_some(&uninitialized);
        let taints: Vec<_> = self.taints.iter().chain(of_cloud).map(Taint::of_node).collect();
        node.spec = Some(core::NodeSpec {
            taints: (!taints.is_empty()).then_some(taints),
            provider_id: Some(self.provider_id.clone()).filter(|id| !id.is_empty()),
            ..core::NodeSpec::default()
        });
        node
    }
}

/// Creates the Node, or brings an existing one up to date; returns whether it is new. Each request
/// has a time of its own. `former_devices`: extended resources that no plugin provides now.
///
/// # Errors
/// Those of the requests: another attempt may succeed.
pub async fn try_register(
    heartbeats: &Heartbeats,
    initial: &core::Node,
    former_devices: &[String],
) -> Result<bool, Error> {
    let nodes = heartbeats.client().resource(&Node::RESOURCE);
    let created = heartbeats.within(nodes.create_for_metadata("", initial)).await;
    let Err(error) = created else { return Ok(true) };
    // A node may be allowed to read and update its Node, and not to create it.
    if !error.is_already_exists() && !error.is_forbidden() {
        return Err(error);
    }
    let name = initial.metadata.name.as_deref().unwrap_or_default();
    let key = ObjectKey::cluster(name);
    let existing = match heartbeats.within(nodes.get::<WholeObject<core::Node>>(&key)).await {
        Ok(existing) => existing,
        // The first error says more.
        Err(other) if error.is_forbidden() => {
            log::debug!("node {name}: {other}");
            return Err(error);
        }
        Err(other) => return Err(other),
    };
    log::info!("Node was previously registered: {name}");
    let before = existing.object();
    let mut after = (**before).clone();
    reconcile(initial, &mut after);
    withdraw(former_devices, &mut after);
    let change = patch::between(before, &after);
    if change.as_object().is_some_and(|members| !members.is_empty()) {
        let change = Patch::StrategicMerge(change);
        let status = nodes.subresource("status");
        heartbeats.within(status.patch_for_metadata(&key, &change)).await?;
    }
    Ok(false)
}

/// Brings an existing Node up to date with what the kubelet would register: default labels, the
/// annotation for volumes, and huge pages. Everything else is left as it is.
/// Upstream: `reconcileCMADAnnotationWithExistingNode`, `updateDefaultLabels`,
/// `reconcileHugePageResource`.
fn reconcile(initial: &core::Node, existing: &mut core::Node) {
    let annotation = |node: &core::Node| {
        let annotations = node.metadata.annotations.as_ref();
        annotations.and_then(|all| all.get(CONTROLLER_ATTACHES)).cloned()
    };
    let wanted = annotation(initial);
    if wanted.clone().unwrap_or_default() != annotation(existing).unwrap_or_default() {
        let state = wanted.is_some();
        log::info!("Controller attach-detach setting changed to {state}; updating existing Node");
        let annotations = existing.metadata.annotations.get_or_insert_default();
        match wanted {
            Some(value) => drop(annotations.insert(CONTROLLER_ATTACHES.to_owned(), value)),
            None => drop(annotations.remove(CONTROLLER_ATTACHES)),
        }
    }
    for label in labels::RECONCILED {
        let Some(value) = initial.metadata.labels.as_ref().and_then(|all| all.get(label)) else {
            continue;
        };
        let all = existing.metadata.labels.get_or_insert_default();
        match value.as_str() {
            "" => drop(all.remove(label)),
            value => drop(all.insert(label.to_owned(), value.to_owned())),
        }
    }
    let of_initial = initial.status.clone().unwrap_or_default();
    let status = existing.status.get_or_insert_default();
    let (capacity, allocatable) = (&mut status.capacity, &mut status.allocatable);
    set_huge_pages(&of_initial.capacity.unwrap_or_default(), capacity);
    set_huge_pages(&of_initial.allocatable.unwrap_or_default(), allocatable);
}

/// Sets these resources of an existing Node to 0: no plugin provides them now. Upstream: the
/// stopped endpoints of `ManagerImpl.GetCapacity`.
fn withdraw(resources: &[String], existing: &mut core::Node) {
    let Some(status) = &mut existing.status else { return };
    for list in [&mut status.capacity, &mut status.allocatable].into_iter().flatten() {
        for name in resources {
            if let Some(quantity) = list.get_mut(name) {
                log::info!("Zero out resource capacity of {name} in existing node");
                *quantity = ApiQuantity("0".to_owned());
            }
        }
    }
}

/// Brings the huge pages of a list up to date with those that are wanted; others are removed. As
/// upstream, without a list all resources that are wanted become the list.
fn set_huge_pages(
    wanted: &BTreeMap<String, ApiQuantity>,
    list: &mut Option<BTreeMap<String, ApiQuantity>>,
) {
    let Some(list) = list else {
        *list = Some(wanted.clone());
        return;
    };
    let amount = |of: Option<&ApiQuantity>| of.and_then(|text| text.0.parse::<Quantity>().ok());
    let is_pages = |name: &str| huge_pages::size_of(name).is_some();
    list.retain(|name, _| !is_pages(name) || wanted.contains_key(name));
    for (name, quantity) in wanted.iter().filter(|(name, _)| is_pages(name)) {
        let before = amount(list.get(name));
        let is_same = before.zip(amount(Some(quantity))).is_some_and(|(a, b)| a.compare(b).is_eq());
        if !is_same {
            list.insert(name.clone(), quantity.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn node_has_labels_taints_and_its_cloud() {
        let registration = Registration {
            name: "n".to_owned(),
            labels: BTreeMap::from([
                ("a".to_owned(), "b".to_owned()),
                (labels::HOSTNAME.to_owned(), "other".to_owned()),
            ]),
            taints: vec![Taint::parse("x=y:NoExecute").expect("a taint")],
            provider_id: "cloud://1".to_owned(),
            is_external: true,
            controller_attaches: true,
            former_devices: Vec::new(),
        };
        let arch = status::architecture();
        assert_eq!(
            serde_json::to_value(registration.node()).expect("JSON"),
            json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {
                    "name": "n",
                    "labels": {
                        "a": "b", "kubernetes.io/hostname": "other", "kubernetes.io/os": "linux",
                        "kubernetes.io/arch": arch, "beta.kubernetes.io/os": "linux",
                        "beta.kubernetes.io/arch": arch,
                    },
                    "annotations": {CONTROLLER_ATTACHES: "true"},
                },
                "spec": {
                    "providerID": "cloud://1",
                    "taints": [{"key": "x", "value": "y", "effect": "NoExecute"},
                               {"key": UNINITIALIZED, "value": "true", "effect": "NoSchedule"}],
                },
            })
        );
        let plain = Registration { name: "n".to_owned(), ..Registration::default() }.node();
        assert_eq!(plain.spec, Some(core::NodeSpec::default()));
        assert_eq!(plain.metadata.annotations, None);
    }

    #[test]
    fn existing_node_keeps_what_others_set() {
        let initial = json!({
            "metadata": {"labels": {labels::HOSTNAME: "n", labels::OS: "linux", "mine": "1"},
                         "annotations": {CONTROLLER_ATTACHES: "true", "a": "b"}},
            "spec": {"taints": [{"key": "t", "effect": "NoSchedule"}]},
            "status": {"capacity": {"cpu": "4", "hugepages-2Mi": "2Mi"},
                       "allocatable": {"cpu": "3", "hugepages-2Mi": "2Mi"}},
        });
        let full = json!({
            "metadata": {"labels": {labels::HOSTNAME: "n", labels::OS: "linux", "other": "2"},
                         "annotations": {CONTROLLER_ATTACHES: "true"}},
            "status": {"capacity": {"cpu": "8", "x/y": "1", "hugepages-2Mi": "2048Ki"},
                       "allocatable": {"cpu": "8", "hugepages-2Mi": "2Mi"}},
        });
        let change = |path: &str, value: Value| {
            let mut node = full.clone();
            *node.pointer_mut(path).expect("a member") = value;
            node
        };
        for (existing, expected) in [
            (full.clone(), None),
            (
                change("/metadata/labels", json!({labels::OS: "windows", "other": "2"})),
                Some(json!({"metadata": {"labels": {labels::HOSTNAME: "n", labels::OS: "linux"}}})),
            ),
            (
                change("/metadata/annotations", json!({"c": "d"})),
                Some(json!({"metadata": {"annotations": {CONTROLLER_ATTACHES: "true"}}})),
            ),
            (
                change("/status/capacity", json!({"cpu": "8", "hugepages-1Gi": "1Gi"})),
                Some(json!({"status": {"capacity": {"hugepages-1Gi": null,
                                                    "hugepages-2Mi": "2Mi"}}})),
            ),
            (
                change("/status", json!({})),
                Some(json!({"status": {
                    "capacity": {"cpu": "4", "hugepages-2Mi": "2Mi"},
                    "allocatable": {"cpu": "3", "hugepages-2Mi": "2Mi"},
                }})),
            ),
        ] {
            let node = |value: &Value| -> core::Node {
                serde_json::from_value(value.clone()).expect("a node")
            };
            let (before, mut after) = (node(&existing), node(&existing));
            reconcile(&node(&initial), &mut after);
            let patch = patch::between(&before, &after);
            assert_eq!(patch, expected.unwrap_or(json!({})), "{existing}");
        }
    }

    #[test]
    fn devices_of_a_former_kubelet_are_withdrawn() {
        let root = std::env::temp_dir().join(format!("kubelet-devices-{}", std::process::id()));
        let file = root.join(DEVICE_CHECKPOINT);
        fs::create_dir_all(file.parent().expect("a folder")).expect("made");
        assert!(former_devices(&root).is_empty(), "there is no checkpoint");
        for (text, expected) in [
            ("{", &[][..]),
            (r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":null},"Checksum":1}"#, &[]),
            (
                r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"x/gpu":["a","b"],
                    "x/gone":[]}},"Checksum":1}"#,
                &["x/gone", "x/gpu"],
            ),
        ] {
            fs::write(&file, text).expect("written");
            assert_eq!(former_devices(&root), expected, "{text}");
        }
        let former = former_devices(&root);
        fs::remove_dir_all(&root).expect("removed");
        let status = json!({"capacity": {"cpu": "4", "x/gpu": "2", "x/y": "1"},
                            "allocatable": {"cpu": "3", "x/gpu": "2", "x/y": "1"}});
        let mut node: core::Node =
            serde_json::from_value(json!({"status": status})).expect("a node");
        withdraw(&former, &mut node);
        assert_eq!(
            serde_json::to_value(node.status).expect("JSON"),
            json!({"capacity": {"cpu": "4", "x/gpu": "0", "x/y": "1"},
                   "allocatable": {"cpu": "3", "x/gpu": "0", "x/y": "1"}})
        );
    }

    #[test]
    fn attempts_are_rarer_with_time() {
        let mut delay = None;
        let mut all = Vec::new();
        for _ in 0..9 {
            delay = Some(next_delay(delay));
            all.push(delay.unwrap_or_default().as_millis());
        }
        assert_eq!(all, [100, 200, 400, 800, 1600, 3200, 6400, 7000, 7000]);
    }
}
