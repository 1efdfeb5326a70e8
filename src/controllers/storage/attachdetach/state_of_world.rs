//! What is wanted, what is attached, and what nodes report. No I/O.
//! Upstream: `DesiredStateOfWorld`, `ActualStateOfWorld`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::operations::{Operations, PodRef, Stage};
use crate::controllers::storage::volume_specs::{
    AttachmentSource, Plugin, Spec, attachment_name, driver_and_handle,
};
use crate::objects::{AttachedVolume, Istr, ObjectKey, Uid};

/// Volumes by their unique names, and nodes by theirs.
#[derive(Default)]
pub struct StateOfWorld {
    pub(super) volumes: HashMap<Istr, Volume>,
    /// Behind a pointer, so that an empty slot of the table takes one word, not a whole `Node`.
    pub(super) nodes: HashMap<Istr, Box<Node>>,
    pods: HashMap<ObjectKey, WantingPod>,
    /// The volumes of VolumeAttachments.
    attachments: HashMap<Istr, Istr>,
    /// Nodes whose report has changed since they were last taken.
    unwritten: BTreeSet<Istr>,
}

/// A volume that a pod wants or a node has.
#[derive(Default)]
pub(super) struct Volume {
    /// The pods that want it, by their nodes.
    pub wanted: BTreeMap<Istr, Wanted>,
    /// The nodes that it is, or may be, attached to.
    pub attached: BTreeMap<Istr, Attached>,
    /// The spec of the last attachment; `None`: it was attached before the start and no pod uses
    /// it.
    pub spec: Option<Arc<Spec>>,
    device_path: Istr,
    pub operations: Operations,
}

/// The pods of one node that want a volume.
pub(super) struct Wanted {
    pub spec: Arc<Spec>,
    pub pods: BTreeSet<PodRef>,
    pub multi_attach_reported: bool,
}

/// The attachment of a volume to one node.
#[derive(Default)]
pub(super) struct Attached {
    /// Whether it is certain. Not if an operation failed half-way, or the attachment was found at
    /// the start.
    pub confirmed: bool,
    /// The time since which no pod on the node uses it.
    pub unwanted_since: Option<Duration>,
    /// The time at which the attachment, which does not say "attached", is checked again.
    pub verify_at: Option<Duration>,
}

/// A node with volumes, or whose volumes this controller manages.
#[derive(Default)]
pub(super) struct Node {
    /// Whether its kubelet leaves attaching to this controller.
    managed: bool,
    /// Whether it was deleted while pods still wanted volumes on it.
    gone: bool,
    /// The volumes that the kubelet uses, and those that were attached since its status was last
    /// seen.
    in_use: BTreeSet<Istr>,
    /// Volumes that are attached, or may be.
    pub attached: BTreeSet<Istr>,
    wanted: BTreeSet<Istr>,
    /// The volumes that the status is to list as attached; `None`: nothing was ever attached.
    report: Option<BTreeSet<Istr>>,
    /// Counts the changes of the report, and those that are written.
    changes: u64,
    pub written: u64,
    pub listed: Listed,
    /// Counts how often the node appeared or was deleted: a write to an earlier node of the name
    /// does not count for a later one.
    incarnation: u64,
}

/// What the status of a node is known to list.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Listed {
    /// What the cached Node lists.
    #[default]
    Cached,
    /// What was written last.
    Written(Vec<AttachedVolume>),
    /// The answer to the last write is lost.
    Unknown,
}

/// A pod and the volumes that it wants on its node.
struct WantingPod {
    uid: Uid,
    node: Istr,
    volumes: BTreeSet<Istr>,
}

/// What the status of a node is to list.
#[derive(Debug, PartialEq)]
pub struct Report {
    pub change: u64,
    pub volumes: Vec<AttachedVolume>,
    pub listed: Listed,
    incarnation: u64,
}

/// Nodes.
impl StateOfWorld {
    /// Marks a node as one whose kubelet leaves attaching to this controller. Returns whether it
    /// was not marked. Upstream: `addNodeToDswp`.
    pub fn manage(&mut self, node: &Istr) -> bool {
        let node = self.nodes.entry(node.clone()).or_default();
        node.gone = false;
        !std::mem::replace(&mut node.managed, true)
    }

    pub fn is_managed(&self, node: &str) -> bool {
        self.nodes.get(node).is_some_and(|node| node.managed)
    }

    /// Replaces the list of volumes that the kubelet of a node reports as in use. Returns the
    /// attached volumes that this adds or removes. Upstream: `SetVolumesMountedByNode`.
    pub fn set_in_use(&mut self, name: &Istr, volumes: &[Istr]) -> Vec<Istr> {
        if volumes.is_empty() && !self.nodes.contains_key(name) {
            return Vec::new();
        }
        let node = self.nodes.entry(name.clone()).or_default();
        let is_same = node.in_use.len() == volumes.len()
            && volumes.iter().all(|volume| node.in_use.contains(volume));
        if is_same {
            return Vec::new();
        }
        let now: BTreeSet<Istr> = volumes.iter().cloned().collect();
        let before = std::mem::replace(&mut node.in_use, now);
        let changed = before.symmetric_difference(&node.in_use);
        changed.filter(|volume| node.attached.contains(*volume)).cloned().collect()
    }

    /// Returns the volumes that are, or may be, attached to a node.
    pub fn attached_to(&self, node: &str) -> Vec<Istr> {
        let node = self.nodes.get(node);
        node.into_iter().flat_map(|node| node.attached.iter().cloned()).collect()
    }

    /// Records that a node was added. Its attached volumes are written into its status again, as
    /// the new object may lack the list. Upstream: `SetNodeStatusUpdateNeeded`.
    pub fn record_node_added(&mut self, name: &Istr) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        node.incarnation += 1;
        node.listed = Listed::Cached;
        if node.report.is_none() {
            return;
        }
        node.changes += 1;
        self.unwritten.insert(name.clone());
    }

    /// Records that a node was deleted. One that pods still want volumes on stays managed as long
    /// as they do. `in_use`: the last list of its kubelet; the result is that of
    /// [`StateOfWorld::set_in_use`]. Upstream: `DeleteNode`.
    pub fn record_node_deleted(&mut self, name: &Istr, in_use: &[Istr]) -> Vec<Istr> {
        let Some(node) = self.nodes.get_mut(name) else { return Vec::new() };
        node.gone = true;
        node.incarnation += 1;
        node.listed = Listed::Cached;
        let changed = self.set_in_use(name, in_use);
        self.remove_idle_node(name);
        changed
    }

    /// Ends the management of a deleted node on which no pod wants volumes. Forgets a node that is
    /// not managed, has no volumes and lists none in its status.
    fn remove_idle_node(&mut self, name: &str) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.managed &= !(node.gone && node.wanted.is_empty());
        }
        let idle = |node: &Node| {
            !node.managed
                && node.wanted.is_empty()
                && node.attached.is_empty()
                && node.changes == node.written
                && node.report.as_ref().is_none_or(BTreeSet::is_empty)
        };
        if self.nodes.get(name).is_some_and(|node| idle(node)) {
            self.nodes.remove(name);
        }
    }

    /// Marks the volume as in use on a node whose object is gone, so that it cannot say whether it
    /// uses it.
    pub fn assume_in_use(&mut self, volume: &Istr, node: &Istr) {
        self.nodes.entry(node.clone()).or_default().in_use.insert(volume.clone());
    }

    pub fn is_in_use(&self, volume: &str, node: &str) -> bool {
        self.nodes.get(node).is_some_and(|node| node.in_use.contains(volume))
    }
}

/// What pods want.
impl StateOfWorld {
    /// Records that a pod on `node` wants a volume, and returns whether that is new. Upstream:
    /// `DesiredStateOfWorld.AddPod`.
    pub fn add_pod_volume(&mut self, pod: &PodRef, node: &Istr, spec: &Arc<Spec>) -> bool {
        let of_node = self.nodes.entry(node.clone()).or_default();
        of_node.wanted.insert(spec.volume.clone());
        let wanting = self.pods.entry(pod.key.clone()).or_insert_with(|| WantingPod {
            uid: pod.uid.clone(),
            node: node.clone(),
            volumes: BTreeSet::new(),
        });
        wanting.volumes.insert(spec.volume.clone());
        let volume = self.volumes.entry(spec.volume.clone()).or_default();
        let wanted = volume.wanted.entry(node.clone()).or_insert_with(|| Wanted {
            spec: spec.clone(),
            pods: BTreeSet::new(),
            multi_attach_reported: false,
        });
        wanted.pods.insert(pod.clone())
    }

    /// Forgets what a pod wants, unless `current`, its uid and node, are those that are known.
    /// Returns its volumes.
    pub fn forget_pod(&mut self, key: &ObjectKey, current: Option<(&Uid, &str)>) -> Vec<Istr> {
        let is_same = |pod: &WantingPod| {
            current.is_some_and(|(uid, node)| pod.uid == *uid && pod.node == *node)
        };
        if self.pods.get(key).is_none_or(is_same) {
            return Vec::new();
        }
        let Some(pod) = self.pods.remove(key) else { return Vec::new() };
        let reference = PodRef { key: key.clone(), uid: pod.uid };
        for volume in &pod.volumes {
            self.remove_pods(volume, &pod.node, |of| *of == reference);
        }
        pod.volumes.into_iter().collect()
    }

    /// Removes the pods that `is_removed` selects from those that want the volume on `node`.
    fn remove_pods(&mut self, name: &Istr, node: &Istr, is_removed: impl Fn(&PodRef) -> bool) {
        let Some(volume) = self.volumes.get_mut(name) else { return };
        let Some(wanted) = volume.wanted.get_mut(node) else { return };
        wanted.pods.retain(|pod| !is_removed(pod));
        if wanted.pods.is_empty() {
            volume.wanted.remove(node);
            if let Some(node) = self.nodes.get_mut(node) {
                node.wanted.remove(name);
            }
            self.remove_idle_node(node);
        }
        self.remove_idle_volume(name);
    }

    /// Forgets that pods want the volumes of a CSI driver, which does not attach them any more, and
    /// returns these volumes.
    pub fn forget_driver(&mut self, driver: &str) -> Vec<Istr> {
        let of_driver =
            |wanted: &Wanted| wanted.spec.csi.as_ref().is_some_and(|csi| csi.driver == *driver);
        let volumes: Vec<Istr> = self
            .volumes
            .iter()
            .filter(|(_, volume)| volume.wanted.values().any(of_driver))
            .map(|(name, _)| name.clone())
            .collect();
        for name in &volumes {
            let wanted = &self.volumes[name].wanted;
            let nodes: Vec<Istr> = wanted.keys().cloned().collect();
            let pods: Vec<ObjectKey> = wanted
                .values()
                .flat_map(|wanted| wanted.pods.iter().map(|pod| pod.key.clone()))
                .collect();
            for pod in pods {
                if let Some(pod) = self.pods.get_mut(&pod) {
                    pod.volumes.remove(name);
                }
            }
            for node in nodes {
                self.remove_pods(name, &node, |_| true);
            }
        }
        self.pods.retain(|_, pod| !pod.volumes.is_empty());
        volumes
    }

    /// Returns the pods that want `volume` on one of `nodes`.
    pub fn pods_on(&self, volume: &str, nodes: &[Istr]) -> Vec<PodRef> {
        let Some(volume) = self.volumes.get(volume) else { return Vec::new() };
        let wanted = nodes.iter().filter_map(|node| volume.wanted.get(node));
        wanted.flat_map(|wanted| wanted.pods.iter().cloned()).collect()
    }
}

/// What is attached.
impl StateOfWorld {
    /// Records a volume as attached to a node. If it is `confirmed`, the status of the node is to
    /// list it; if not, the attachment may have happened. Upstream: `AddVolumeNode`.
    pub fn add_attached(
        &mut self,
        name: &Istr,
        spec: Option<Arc<Spec>>,
        node_name: &Istr,
        device_path: Istr,
        confirmed: bool,
    ) {
        let was_confirmed = self.is_attached(name, node_name) == Some(true);
        let node = self.nodes.entry(node_name.clone()).or_default();
        node.attached.insert(name.clone());
        if confirmed && !was_confirmed {
            // It counts as mounted until the node's `volumesInUse` lacks it. Upstream assumes that
            // of unconfirmed ones too, but a kubelet mounts only what the node's status lists.
            node.in_use.insert(name.clone());
        }
        if let Some(attachment) = attachment_of(spec.as_deref(), name, node_name) {
            self.attachments.insert(attachment, name.clone());
        }
        let volume = self.volumes.entry(name.clone()).or_default();
        (volume.spec, volume.device_path) = (spec, device_path);
        let attached = volume.attached.entry(node_name.clone()).or_default();
        attached.confirmed = confirmed;
        attached.verify_at = None;
        if confirmed {
            self.report(name, node_name);
        }
    }

    /// Records that a volume is detached from a node.
    /// Upstream: `DeleteVolumeNode`.
    pub fn remove_attached(&mut self, name: &Istr, node_name: &Istr) {
        let Some(volume) = self.volumes.get_mut(name) else { return };
        volume.attached.remove(node_name);
        if let Some(attachment) = attachment_of(volume.spec.as_deref(), name, node_name) {
            self.attachments.remove(&attachment);
        }
        if let Some(node) = self.nodes.get_mut(node_name) {
            node.attached.remove(name);
        }
        self.unreport(name, node_name);
        self.remove_idle_volume(name);
        self.remove_idle_node(node_name);
    }

    /// Returns whether the volume's attachment to the node is confirmed; `None` if it is not
    /// attached.
    pub fn is_attached(&self, volume: &str, node: &str) -> Option<bool> {
        Some(self.volumes.get(volume)?.attached.get(node)?.confirmed)
    }

    /// Returns the volume of a VolumeAttachment that matters here.
    pub fn volume_of(&self, attachment: &str) -> Option<Istr> {
        self.attachments.get(attachment).cloned()
    }

    /// Records the volume of an attachment that is to appear, so that its events queue the volume.
    pub(super) fn expect_attachment(&mut self, attachment: &Istr, volume: &Istr) {
        self.attachments.insert(attachment.clone(), volume.clone());
    }

    /// Forgets a volume that no pod wants and no node has, unless an operation of it is under way.
    pub(super) fn remove_idle_volume(&mut self, name: &Istr) {
        let idle = |volume: &Volume| {
            volume.wanted.is_empty()
                && volume.attached.is_empty()
                && !volume.operations.any_pending()
        };
        if self.volumes.get(name).is_some_and(idle) {
            self.volumes.remove(name);
        }
    }

    pub fn volume_names(&self) -> Vec<Istr> {
        self.volumes.keys().cloned().collect()
    }

    /// Returns the plugins of the volumes that are wanted, and of those that are attached, one for
    /// each node.
    pub fn plugins(&self) -> (Vec<String>, Vec<String>) {
        let (mut wanted, mut attached) = (Vec::new(), Vec::new());
        for volume in self.volumes.values() {
            wanted.extend(volume.wanted.values().map(|wanted| wanted.spec.plugin_name()));
            if let Some(spec) = &volume.spec {
                attached.extend(volume.attached.values().map(|_| spec.plugin_name()));
            }
        }
        (wanted, attached)
    }
}

/// Returns the name of the VolumeAttachment of a volume on `node`; `None` if it is attached without
/// one. The name depends on the driver and its handle of the volume. Those are in the spec, or, of
/// a volume that only the node's status names, in the volume's unique name.
pub(super) fn attachment_of(spec: Option<&Spec>, volume: &str, node: &str) -> Option<Istr> {
    let (driver, handle) = match spec {
        Some(spec) => {
            let csi = spec.csi.as_ref().filter(|csi| csi.source != AttachmentSource::Never)?;
            (&*csi.driver, &*csi.handle)
        }
        None => match Plugin::from_unique_name(volume)? {
            (Plugin::Csi, of_plugin) => driver_and_handle(of_plugin)?,
            // Only CSI drivers are asked to attach by a VolumeAttachment.
            _ => return None,
        },
    };
    Some(attachment_name(handle, driver, node))
}

/// What the statuses of nodes list.
impl StateOfWorld {
    /// Adds a volume that is known to be attached to the report of its node.
    /// Upstream: `AddVolumeToReportAsAttached`.
    pub(super) fn report(&mut self, volume: &Istr, name: &Istr) {
        if self.is_attached(volume, name) != Some(true) {
            return;
        }
        let node = self.nodes.entry(name.clone()).or_default();
        if node.report.get_or_insert_default().insert(volume.clone()) {
            node.changes += 1;
            self.unwritten.insert(name.clone());
        }
    }

    /// Removes a volume from the report of a node. Returns the number of the report's last change:
    /// once the report with that number is written, the status does not list the volume. 0: the
    /// node is unknown.
    /// Upstream: `RemoveVolumeFromReportAsAttached`.
    pub(super) fn unreport(&mut self, volume: &Istr, name: &Istr) -> u64 {
        let Some(node) = self.nodes.get_mut(name) else { return 0 };
        if node.report.as_mut().is_some_and(|report| report.remove(volume)) {
            node.changes += 1;
            self.unwritten.insert(name.clone());
        }
        node.changes
    }

    /// Returns the nodes whose report has changed since the last call.
    pub fn take_unwritten(&mut self) -> BTreeSet<Istr> {
        std::mem::take(&mut self.unwritten)
    }

    /// Returns the report that is to be written into the status of the node; `None` if it is
    /// written.
    pub fn unwritten_report(&self, name: &str) -> Option<Report> {
        let node = self.nodes.get(name).filter(|node| node.changes != node.written)?;
        let device_path = |volume: &Istr| {
            self.volumes.get(volume).map(|volume| volume.device_path.clone()).unwrap_or_default()
        };
        let volumes = node.report.iter().flatten();
        let volumes = volumes
            .map(|volume| AttachedVolume { name: volume.clone(), device_path: device_path(volume) })
            .collect();
        let (change, incarnation) = (node.changes, node.incarnation);
        Some(Report { change, volumes, listed: node.listed.clone(), incarnation })
    }

    /// Records that the report may be in the status: the answer to the write is lost.
    pub fn mark_outcome_unknown(&mut self, name: &str, report: &Report) {
        if let Some(node) =
            self.nodes.get_mut(name).filter(|node| node.incarnation == report.incarnation)
        {
            node.listed = Listed::Unknown;
        }
    }

    /// Records that the report is in the status, or that there is no node to write it to
    /// (`is_there`). Returns the volumes whose detach waited for that.
    pub fn mark_written(&mut self, name: &Istr, report: Report, is_there: bool) -> Vec<Istr> {
        let Some(node) = self.nodes.get_mut(name) else { return Vec::new() };
        node.written = node.written.max(report.change);
        if node.incarnation == report.incarnation {
            node.listed = match is_there {
                true => Listed::Written(report.volumes),
                false => Listed::Cached,
            };
        }
        let waits = |volume: &&Istr| {
            let operations = self.volumes.get(*volume).map(|volume| &volume.operations);
            operations.is_some_and(|operations| {
                operations.iter().any(|op| {
                    op.node == *name
                        && matches!(op.stage, Stage::Reporting(change) if change <= node.written)
                })
            })
        };
        let waiting = node.attached.iter().filter(waits).cloned().collect();
        self.remove_idle_node(name);
        waiting
    }
}
