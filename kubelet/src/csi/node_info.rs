//! What drivers say about this node, in the API server: the CSINode, and annotations and labels of
//! the Node. Upstream: `pkg/volume/csi/nodeinfomanager`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use event_listener::{Event, EventListener};
use futures_lite::FutureExt;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::storage::v1 as storage;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube_controller_manager::client::{Client, Delete, Patch};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::{Node, ObjectKey, Resource, ResourceType};
use kube_controller_manager::task::notify_all;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::Drivers;
use super::api::NodeGetInfoResponse;
use super::error::Error;
use crate::causes::chain;
use crate::node::own::OwnNode;
use crate::whole_object::WholeObject;

const CSI_NODES: ResourceType =
    ResourceType::fixed("storage.k8s.io", "v1", "CSINode", "csinodes", false);

/// The annotation of the Node with the names that drivers have for it.
const NODE_IDS: &str = "csi.volume.kubernetes.io/nodeid";
/// The annotation of the CSINode with the plugins whose volumes CSI drivers have.
const MIGRATED: &str = "storage.alpha.kubernetes.io/migrated-plugins";
const MIGRATED_PLUGINS: &str = "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,\
    kubernetes.io/azure-file,kubernetes.io/cinder,kubernetes.io/gce-pd,\
    kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume";

/// The waits between attempts at an update. Upstream: `updateBackoff`.
const WAITS: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(50), Duration::from_millis(250)];
/// The longest wait between attempts at the first CSINode.
const MAX_WAIT: Duration = Duration::from_secs(16);

/// What changes for a driver.
#[derive(Clone, Copy)]
enum Update<'a> {
    /// The Node. `None`: the driver is gone.
    Annotate(Option<&'a NodeGetInfoResponse>),
    /// The CSINode.
    Add(&'a NodeGetInfoResponse),
    Remove,
}

/// Writes what drivers say about this node to its CSINode and Node. Cheap to clone: clones do one
/// update at a time.
#[derive(Clone)]
pub struct NodeInfo {
    client: Client,
    own: OwnNode,
    clock: SharedClock,
    updating: Arc<async_lock::Mutex<()>>,
    first: Arc<First>,
}

/// The first CSINode of this process.
struct First {
    /// Why it is not there; `None`: it is.
    fault: Mutex<Option<String>>,
    /// An attempt at it has ended.
    attempted: Event,
}

const NOT_YET: &str = "CSINode is not yet initialized";

impl NodeInfo {
    pub fn new(client: Client, own: OwnNode, clock: SharedClock) -> NodeInfo {
        let fault = Mutex::new(Some(NOT_YET.to_owned()));
        let first = Arc::new(First { fault, attempted: Event::new() });
        NodeInfo { client, own, clock, updating: Arc::default(), first }
    }

    /// Returns why the node takes no pods yet: without its CSINode the scheduler would count no
    /// volumes. `None`: the CSINode is there. Upstream: `SetKubeletError`, `storageErrors`.
    pub fn fault(&self) -> Option<String> {
        self.first.fault.lock().clone()
    }

    /// Returns a listener that wakes when an attempt at the first CSINode has ended. Listen before
    /// you ask [`fault`].
    ///
    /// [`fault`]: Self::fault
    pub fn attempted(&self) -> EventListener {
        self.first.attempted.listen()
    }

    /// Records how an attempt at the first CSINode has ended, and wakes those who wait for it.
    fn conclude(&self, fault: Option<String>) {
        *self.first.fault.lock() = fault;
        notify_all(&self.first.attempted);
    }

    /// Makes the CSINode once the Node is registered, and tries until it is there. Until then the
    /// node has a [`fault`](Self::fault). Upstream: `initializeCSINode`, whose kubelet ends after
    /// six attempts.
    pub async fn initialize(&self) {
        let mut wait = Duration::from_millis(30);
        loop {
            let changed = self.own.changed();
            let updating = self.updating.lock().await;
            let made = self.ensure_csi_node().await;
            drop(updating);
            match made {
                Ok(_) => return self.conclude(None),
                Err(Error::NoNode) => {
                    changed.await;
                    continue;
                }
                Err(error) => {
                    let error = chain(&error);
                    log::error!("Failed to initialize CSINode: {error}");
                    self.conclude(Some(format!("failed to initialize CSINode: {error}")));
                }
            }
            self.clock.sleep(wait).or(changed).await;
            wait = (wait * 8).min(MAX_WAIT);
        }
    }

    /// Publishes a driver that is registered, and what it has said about the node. Upstream:
    /// `InstallCSIDriver`.
    ///
    /// # Errors
    /// The last attempt's.
    pub async fn install(&self, driver: &str, info: &NodeGetInfoResponse) -> Result<(), Error> {
        if info.node_id.is_empty() {
            return Err(Error::NoNodeId);
        }
        self.persistently(driver, Update::Annotate(Some(info))).await?;
        self.persistently(driver, Update::Add(info)).await
    }

    /// Asks a registered driver about the node, and writes what has changed to the CSINode.
    /// Upstream: `updateCSIDriver`.
    ///
    /// # Errors
    /// The driver is not registered, or not any more when it has answered; that of the call, or the
    /// last attempt's to write.
    pub async fn refresh(&self, name: &str, drivers: &Drivers) -> Result<(), Error> {
        let driver = drivers.get(name)?;
        let info = driver.info().await?;
        let _updating = self.updating.lock().await;
        // A driver that goes is removed before its `uninstall`, which waits for the lock.
        match drivers.has(&driver) {
            true => self.repeat(name, Update::Add(&info)).await,
            false => Err(Error::NotRegistered(name.to_owned())),
        }
    }

    /// Removes a driver that is gone from the CSINode and the Node. Upstream: `UninstallCSIDriver`.
    ///
    /// # Errors
    /// The last attempt's.
    pub async fn uninstall(&self, driver: &str) -> Result<(), Error> {
        self.persistently(driver, Update::Remove).await?;
        self.persistently(driver, Update::Annotate(None)).await
    }

    fn key(&self) -> ObjectKey {
        ObjectKey::cluster(self.own.name())
    }

    /// Does an update, with a few retries. No other update is done meanwhile.
    async fn persistently(&self, driver: &str, update: Update<'_>) -> Result<(), Error> {
        let _updating = self.updating.lock().await;
        self.repeat(driver, update).await
    }

    /// Does an update, with a few retries. The caller holds the lock `updating`.
    async fn repeat(&self, driver: &str, update: Update<'_>) -> Result<(), Error> {
        for wait in WAITS {
            match self.update(driver, update).await {
                Ok(()) => return Ok(()),
                Err(error) => log::debug!("CSI information of the node: {}", chain(&error)),
            }
            self.clock.sleep(wait).await;
        }
        self.update(driver, update).await
    }

    /// Does one update of the CSINode, or of the Node's annotation and labels. What is as wanted is
    /// not written, and from an absent CSINode nothing is removed.
    async fn update(&self, driver: &str, update: Update<'_>) -> Result<(), Error> {
        match update {
            Update::Annotate(info) => self.annotate(driver, info).await,
            Update::Add(info) => {
                let mut node = self.ensure_csi_node().await?;
                match set_driver(&mut node, driver, info) {
                    true => self.replace(&node).await,
                    false => Ok(()),
                }
            }
            Update::Remove => {
                let nodes = self.client.resource(&CSI_NODES);
                let mut node: storage::CSINode = match nodes.get(&self.key()).await {
                    Err(error) if error.is_not_found() => return Ok(()),
                    found => found?,
                };
                let before = node.spec.drivers.len();
                node.spec.drivers.retain(|other| other.name != driver);
                match node.spec.drivers.len() == before {
                    true => Ok(()),
                    false => self.replace(&node).await,
                }
            }
        }
    }

    /// Writes what a driver says about the Node, or removes it if `info` is `None`, unless that is
    /// done already. Upstream: `tryUpdateNode`.
    async fn annotate(
        &self,
        driver: &str,
        info: Option<&NodeGetInfoResponse>,
    ) -> Result<(), Error> {
        let nodes = self.client.resource(&Node::RESOURCE);
        let node: WholeObject<core::Node> = nodes.get(&self.key()).await?;
        let Some(change) = node_change(node.object(), driver, info)? else { return Ok(()) };
        // A kubelet may change its Node by the status alone.
        let status = nodes.subresource("status");
        status.patch_for_metadata(&self.key(), &Patch::Merge(change)).await?;
        Ok(())
    }

    /// Returns the CSINode of this Node, and creates it if it is missing. Deletes one that an
    /// earlier Node of this name owns, and fails: the next attempt creates it. Upstream:
    /// `InitializeCSINodeWithAnnotation`, `ensureNodeOwnsCSINode`.
    async fn ensure_csi_node(&self) -> Result<storage::CSINode, Error> {
        let registered = self.own.registered().ok_or(Error::NoNode)?;
        let uid = registered.metadata.uid.clone().unwrap_or_default();
        let nodes = self.client.resource(&CSI_NODES);
        let mut node: storage::CSINode = match nodes.get(&self.key()).await {
            Err(error) if error.is_not_found() => {
                let new = new_csi_node(self.own.name(), uid);
                return Ok(nodes.create("", &new).await?);
            }
            found => found?,
        };
        let is_own = |owner: &OwnerReference| {
            owner.kind == "Node" && owner.name == self.own.name() && owner.uid == uid
        };
        if !node.metadata.owner_references.iter().flatten().any(is_own) {
            nodes.delete(&self.key(), Delete::new()).await?;
            return Err(Error::OtherOwner);
        }
        let annotations = node.metadata.annotations.get_or_insert_default();
        let before = annotations.insert(MIGRATED.to_owned(), MIGRATED_PLUGINS.to_owned());
        match before.as_deref() == Some(MIGRATED_PLUGINS) {
            true => Ok(node),
            false => Ok(nodes.update(&self.key(), &node).await?),
        }
    }

    /// Writes the changed CSINode.
    async fn replace(&self, node: &storage::CSINode) -> Result<(), Error> {
        self.client.resource(&CSI_NODES).update_for_metadata(&self.key(), node).await?;
        Ok(())
    }
}

/// Builds the CSINode of the Node of this name and uid, which owns it.
fn new_csi_node(name: &str, uid: String) -> storage::CSINode {
    let mut node = storage::CSINode::default();
    node.metadata.name = Some(name.to_owned());
    node.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: name.to_owned(),
        uid,
        ..OwnerReference::default()
    }]);
    let annotations = [(MIGRATED.to_owned(), MIGRATED_PLUGINS.to_owned())];
    node.metadata.annotations = Some(annotations.into());
    node
}

/// Sets a driver's entry in the CSINode to what the driver says. Returns false if the entry was the
/// same before. Upstream: `installDriverToCSINode`.
fn set_driver(node: &mut storage::CSINode, driver: &str, info: &NodeGetInfoResponse) -> bool {
    let count = match info.max_volumes_per_node {
        0 => None,
        count if count < 0 => {
            log::error!("Invalid attach limit value {count} of CSI driver {driver} is left out");
            None
        }
        count => Some(i32::try_from(count).unwrap_or(i32::MAX)),
    };
    let topology = info.accessible_topology.iter().flat_map(|topology| topology.segments.keys());
    let mut keys: Vec<String> = topology.cloned().collect();
    keys.sort();
    let new = storage::CSINodeDriver {
        name: driver.to_owned(),
        node_id: info.node_id.clone(),
        topology_keys: Some(keys),
        allocatable: count.map(|count| storage::VolumeNodeResources { count: Some(count) }),
    };
    let sorted = |driver: &storage::CSINodeDriver| {
        let mut keys = driver.topology_keys.clone().unwrap_or_default();
        keys.sort();
        let count = driver.allocatable.as_ref().and_then(|allocatable| allocatable.count);
        (driver.node_id.clone(), keys, count)
    };
    let drivers = &mut node.spec.drivers;
    if drivers.iter().any(|old| old.name == driver && sorted(old) == sorted(&new)) {
        return false;
    }
    drivers.retain(|old| old.name != driver);
    drivers.push(new);
    true
}

/// Builds the change of the Node's annotation and labels that a driver needs. `None`: they are as
/// they have to be. `info`: what the driver says; `None`: it is gone, and its labels stay.
/// Upstream: `updateNodeIDInNode`, `updateTopologyLabels`.
///
/// # Errors
/// The annotation is malformed, or a label has another value than the driver says.
fn node_change(
    node: &core::Node,
    driver: &str,
    info: Option<&NodeGetInfoResponse>,
) -> Result<Option<Value>, Error> {
    let annotations = node.metadata.annotations.as_ref();
    let text = annotations.and_then(|all| all.get(NODE_IDS)).filter(|text| !text.is_empty());
    let before: BTreeMap<String, String> = match text {
        Some(text) => serde_json::from_str(text).map_err(Error::Annotation)?,
        None => BTreeMap::new(),
    };
    let mut ids = before.clone();
    let mut labels = BTreeMap::new();
    match info {
        Some(info) => {
            ids.insert(driver.to_owned(), info.node_id.clone());
            let segments = info.accessible_topology.iter().flat_map(|topology| &topology.segments);
            for (key, reported) in segments {
                let existing = node.metadata.labels.as_ref().and_then(|all| all.get(key));
                match existing {
                    Some(existing) if existing == reported => {}
                    Some(existing) => {
                        let (key, reported) = (key.clone(), reported.clone());
                        let existing = existing.clone();
                        return Err(Error::TopologyCollision { key, reported, existing });
                    }
                    None => drop(labels.insert(key.clone(), reported.clone())),
                }
            }
        }
        None => drop(ids.remove(driver)),
    }
    if ids == before && labels.is_empty() {
        return Ok(None);
    }
    let annotation = match ids.is_empty() {
        true => Value::Null,
        false => json!(json!(ids).to_string()),
    };
    let mut change = json!({"metadata": {"annotations": {NODE_IDS: annotation}}});
    if !labels.is_empty() {
        change["metadata"]["labels"] = json!(labels);
    }
    Ok(Some(change))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csi::api::Topology;

    fn info(id: &str, max: i64, topology: &[(&str, &str)]) -> NodeGetInfoResponse {
        let segments = topology.iter().map(|(key, value)| (key.to_string(), value.to_string()));
        NodeGetInfoResponse {
            node_id: id.to_owned(),
            max_volumes_per_node: max,
            accessible_topology: Some(Topology { segments: segments.collect() }),
        }
    }

    #[test]
    fn drivers_are_in_the_csi_node_as_they_say() {
        let mut node = new_csi_node("n", "u".to_owned());
        let shown = |node: &storage::CSINode| {
            let value = serde_json::to_value(&node.spec.drivers).expect("JSON");
            value.to_string()
        };
        assert!(set_driver(&mut node, "d", &info("id", 2, &[("z", "1"), ("a", "2")])));
        let one =
            r#"[{"allocatable":{"count":2},"name":"d","nodeID":"id","topologyKeys":["a","z"]}]"#;
        assert_eq!(shown(&node), one);
        // The values of the topology are labels of the Node.
        assert!(!set_driver(&mut node, "d", &info("id", 2, &[("a", "3"), ("z", "1")])));
        assert!(set_driver(&mut node, "e", &info("x", 0, &[])));
        assert!(set_driver(&mut node, "d", &info("id", 1 << 40, &[])));
        let two = r#"[{"name":"e","nodeID":"x","topologyKeys":[]},{"allocatable":{"count":2147483647},"name":"d","nodeID":"id","topologyKeys":[]}]"#;
        assert_eq!(shown(&node), two);
        assert!(set_driver(&mut node, "d", &info("id", -1, &[])));
        assert!(node.spec.drivers[1].allocatable.is_none());
    }

    #[test]
    fn node_has_ids_and_topology() {
        let node = |annotation: Option<&str>, label: Option<&str>| -> core::Node {
            let mut node = json!({"metadata": {"annotations": {}, "labels": {}}});
            if let Some(text) = annotation {
                node["metadata"]["annotations"][NODE_IDS] = json!(text);
            }
            if let Some(value) = label {
                node["metadata"]["labels"]["zone"] = json!(value);
            }
            serde_json::from_value(node).expect("a node")
        };
        let here = info("id", 0, &[("zone", "a")]);
        let annotation = |text: Value| json!({"annotations": {NODE_IDS: text}});
        for (node, info, expected) in [
            (
                node(None, None),
                Some(&here),
                Ok(Some(json!({"annotations": {NODE_IDS: r#"{"d":"id"}"#},
                               "labels": {"zone": "a"}}))),
            ),
            (node(Some(r#"{"d":"id"}"#), Some("a")), Some(&here), Ok(None)),
            (
                node(Some(r#"{"d":"old","e":"x"}"#), Some("a")),
                Some(&here),
                Ok(Some(annotation(json!(r#"{"d":"id","e":"x"}"#)))),
            ),
            (
                node(None, Some("b")),
                Some(&here),
                Err(
                    r#"detected topology value collision: driver reported "zone":"a" but existing label is "zone":"b""#,
                ),
            ),
            (
                node(Some("{"), None),
                Some(&here),
                Err("failed to parse node's annotation of drivers"),
            ),
            (node(None, None), None, Ok(None)),
            (node(Some(r#"{"e":"x"}"#), None), None, Ok(None)),
            (
                node(Some(r#"{"d":"id","e":"x"}"#), None),
                None,
                Ok(Some(annotation(json!(r#"{"e":"x"}"#)))),
            ),
            (node(Some(r#"{"d":"id"}"#), None), None, Ok(Some(annotation(Value::Null)))),
        ] {
            let found = node_change(&node, "d", info).map_err(|error| error.to_string());
            let found = found.map(|change| change.map(|mut change| change["metadata"].take()));
            assert_eq!(found, expected.map_err(str::to_owned));
        }
    }
}
