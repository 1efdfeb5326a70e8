//! Registration of the Node. Upstream: `Kubelet.registerWithAPIServer`, `initialNode`,
//! `tryRegisterWithAPIServer`.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kube_controller_manager::client::Patch;
use kube_controller_manager::objects::{Node, ObjectKey, Quantity, Resource};

use super::heartbeat::{Error, Heartbeats};
use super::huge_pages;
use super::labels::{self, Taint};
use super::patch;
use super::status;
use crate::whole_object::WholeObject;

/// Says that the volumes of the node are attached by a controller.
/// Upstream: `ControllerManagedAttachAnnotation`.
const CONTROLLER_ATTACHES: &str = "volumes.kubernetes.io/controller-managed-attach-detach";

/// The taint of a node that its cloud's controller has not seen yet.
/// Upstream: `TaintExternalCloudProvider`.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// The waits before the attempts. Upstream: `registerWithAPIServer`.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const MAX_DELAY: Duration = Duration::from_secs(7);

/// The delay before the next attempt.
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
}

impl Registration {
    /// The Node without its status. Upstream: `initialNode`.
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

/// Creates the Node, or brings an existing one up to date. Each request has a time of its own.
///
/// # Errors
/// Those of the requests: another attempt may succeed.
pub async fn try_register(heartbeats: &Heartbeats, initial: &core::Node) -> Result<(), Error> {
    let nodes = heartbeats.client().resource(&Node::RESOURCE);
    let created = heartbeats.within(nodes.create_for_metadata("", initial)).await;
    let Err(error) = created else { return Ok(()) };
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
    let change = patch::between(before, &after);
    if change.as_object().is_some_and(|members| !members.is_empty()) {
        let change = Patch::StrategicMerge(change);
        let status = nodes.subresource("status");
        heartbeats.within(status.patch_for_metadata(&key, &change)).await?;
    }
    Ok(())
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

/// Sets all resources of an empty list, and else those of huge pages; others of huge pages are removed.
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
