//! The status of a Node, from what its kubelet knows. Upstream: `pkg/kubelet/nodestatus`,
//! `Kubelet.setNodeStatus`, `nodeStatusHasChanged`.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::address::NodeAddress;
use super::conditions;
use super::machine_info::MachineInfo;
use super::pressure::{NodePressure, Pressure};
use super::resources::NodeResources;

/// Upstream: `MaxNamesPerImageInNodeStatus`.
const MAX_NAMES_PER_IMAGE: usize = 5;

/// What does not change while the kubelet runs.
#[derive(Clone, Debug)]
pub struct Constants {
    pub machine: MachineInfo,
    pub resources: NodeResources,
    /// `v1.36.2`.
    pub kubelet_version: String,
    /// As the runtime names itself: `containerd`.
    pub runtime_name: String,
    /// 0: none.
    pub kubelet_port: i32,
    /// `nodeStatusMaxImages`; `None`: all are listed.
    pub max_images: Option<usize>,
    /// Whether a node without a size of its disk is not ready.
    pub counts_storage: bool,
    /// The features of the kubelet itself, by the names of their gates.
    /// Upstream: `nodedeclaredfeatures`.
    pub declared_features: Vec<String>,
}

/// What the runtime says of itself, and how it does.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuntimeInfo {
    /// `v2.1.0`; `None`: it does not answer.
    pub version: Option<String>,
    /// Why the node is not ready, by the runtime.
    pub faults: Vec<String>,
    /// By name.
    pub handlers: Vec<core::NodeRuntimeHandler>,
    pub features: Option<RuntimeFeatures>,
}

/// Features of the runtime, whichever its handlers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuntimeFeatures {
    pub supplemental_groups_policy: bool,
    pub user_namespaces_host_network: bool,
}

/// An image of the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageNames {
    pub id: String,
    pub digests: Vec<String>,
    pub tags: Vec<String>,
    pub size_bytes: i64,
}

/// What a status is computed from.
pub struct Inputs {
    pub constants: Arc<Constants>,
    pub address: NodeAddress,
    pub pressure: NodePressure,
    pub runtime: RuntimeInfo,
    /// `None`: they cannot be listed.
    pub images: Option<Vec<ImageNames>>,
    /// Volumes that are mounted and were attached; `None`: not known yet.
    pub volumes_in_use: Option<Vec<String>>,
    /// Why the node is not ready, beside the runtime's reasons.
    pub faults: Vec<String>,
    /// In whole seconds.
    pub now: Time,
}

/// An event of the node: the reason and the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEvent {
    pub is_warning: bool,
    pub reason: &'static str,
    pub message: String,
}

impl NodeEvent {
    /// Builds the event of a change of the node's status. Upstream: `recordNodeStatusEvent`.
    pub fn of_status(name: &str, reason: &'static str) -> NodeEvent {
        let message = format!("Node {name} status is now: {reason}");
        NodeEvent { is_warning: false, reason, message }
    }
}

/// Fills in the status of a Node, and returns the events of what has changed. Reads addresses: blocks.
pub fn set(node: &mut core::Node, inputs: &Inputs) -> Vec<NodeEvent> {
    let name = node.metadata.name.clone().unwrap_or_default();
    if let Err(fault) = inputs.address.set(node) {
        log::error!("Failed to set some node status fields of node {name}: {fault}");
    }
    let mut events = Vec::new();
    let status = node.status.get_or_insert_default();
    inputs.constants.resources.set(status);
    events.extend(set_info(status, inputs, &name));
    set_runtime(status, inputs);
    set_images(status, inputs);
    if let Some(volumes) = &inputs.volumes_in_use {
        status.volumes_in_use = Some(volumes.clone());
    }
    let faults: Vec<String> = inputs
        .runtime
        .faults
        .iter()
        .chain(&inputs.faults)
        .cloned()
        .chain(capacity_fault(status, inputs))
        .collect();
    let all = status.conditions.get_or_insert_default();
    for pressure in [Pressure::Memory, Pressure::Disk, Pressure::Pid] {
        let is_under = inputs.pressure.is_under(pressure);
        let event = conditions::set_pressure(all, pressure, is_under, &inputs.now);
        events.extend(event.map(|reason| NodeEvent::of_status(&name, reason)));
    }
    let event = conditions::set_ready(all, &faults, &inputs.now);
    if event == Some("NodeNotReady") {
        log::info!("Node became not ready: {}", faults.join(", "));
    }
    events.extend(event.map(|reason| NodeEvent::of_status(&name, reason)));
    events
}

/// Sets the facts about the machine and its programs, and the kubelet's port. Returns an event when
/// the machine has been restarted. Upstream: `nodestatus.MachineInfo`, `VersionInfo`, `GoRuntime`.
fn set_info(status: &mut core::NodeStatus, inputs: &Inputs, name: &str) -> Option<NodeEvent> {
    let Constants { machine, kubelet_version, runtime_name, kubelet_port, .. } = &*inputs.constants;
    let info = status.node_info.get_or_insert_default();
    let was_rebooted = !info.boot_id.is_empty() && info.boot_id != machine.boot_id;
    info.machine_id.clone_from(&machine.machine_id);
    info.system_uuid.clone_from(&machine.system_uuid);
    info.boot_id.clone_from(&machine.boot_id);
    info.kernel_version.clone_from(&machine.kernel_version);
    info.os_image.clone_from(&machine.os_image);
    let version = inputs.runtime.version.as_deref().unwrap_or("Unknown");
    info.container_runtime_version = format!("{runtime_name}://{version}");
    info.kubelet_version.clone_from(kubelet_version);
    // As upstream: the kubelet does not know it.
    info.kube_proxy_version.clear();
    info.operating_system = OS.to_owned();
    info.architecture = architecture().to_owned();
    if machine.swap_bytes > 0 {
        info.swap = Some(core::NodeSwapStatus { capacity: Some(machine.swap_bytes) });
    }
    let endpoint = core::DaemonEndpoint { port: *kubelet_port };
    status.daemon_endpoints = Some(core::NodeDaemonEndpoints { kubelet_endpoint: Some(endpoint) });
    was_rebooted.then(|| NodeEvent {
        is_warning: true,
        reason: "Rebooted",
        message: format!("Node {name} has been rebooted, boot id: {}", machine.boot_id),
    })
}

/// Go's name of the system.
pub const OS: &str = "linux";

/// Returns Go's name of the processor.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        // Rust's name is that of both orders of bytes; Linux distributions have this one.
        "powerpc64" => "ppc64le",
        other => other,
    }
}

/// Sets the features of the runtime and of this kubelet.
fn set_runtime(status: &mut core::NodeStatus, inputs: &Inputs) {
    let RuntimeInfo { handlers, features, .. } = &inputs.runtime;
    status.runtime_handlers = Some(handlers.clone());
    if let Some(features) = features {
        let supplemental_groups_policy = Some(features.supplemental_groups_policy);
        status.features = Some(core::NodeFeatures { supplemental_groups_policy });
    }
    status.declared_features = Some(inputs.constants.declared_features.clone());
}

/// Sets the list of the largest images. Those of the same size have an order too, else the status
/// changes with that of the runtime's list. Upstream: `nodestatus.Images`, `GetImageList`,
/// `ByImageSize`.
fn set_images(status: &mut core::NodeStatus, inputs: &Inputs) {
    let mut images = inputs.images.clone().unwrap_or_default();
    images.sort_by(|one, other| (other.size_bytes, &other.id).cmp(&(one.size_bytes, &one.id)));
    images.truncate(inputs.constants.max_images.unwrap_or(usize::MAX));
    let listed = images.into_iter().map(|image| {
        let mut names = image.digests;
        names.extend(image.tags);
        names.truncate(MAX_NAMES_PER_IMAGE);
        core::ContainerImage { names: Some(names), size_bytes: Some(image.size_bytes) }
    });
    status.images = Some(listed.collect());
}

/// Returns the fault of a node whose capacity is not known.
fn capacity_fault(status: &core::NodeStatus, inputs: &Inputs) -> Option<String> {
    let storage = inputs.constants.counts_storage.then_some("ephemeral-storage");
    let wanted = ["cpu", "memory", "pods"].into_iter().chain(storage);
    let has = |resource: &str| {
        status.capacity.as_ref().is_some_and(|capacity| capacity.contains_key(resource))
    };
    let missing: Vec<&str> = wanted.filter(|resource| !has(resource)).collect();
    let is_fault = !missing.is_empty();
    is_fault.then(|| format!("missing node capacity for resources: {}", missing.join(", ")))
}

/// Returns whether two statuses differ in more than the time at which the kubelet was heard of.
/// Upstream: `nodeStatusHasChanged`.
pub fn has_changed(before: &core::NodeStatus, after: &core::NodeStatus) -> bool {
    comparable_form(before) != comparable_form(after)
}

/// Returns the status in a form in which it can be compared: without times of heartbeats and empty
/// lists, and with conditions sorted by type.
fn comparable_form(status: &core::NodeStatus) -> core::NodeStatus {
    let mut status = status.clone();
    for condition in status.conditions.iter_mut().flatten() {
        condition.last_heartbeat_time = None;
    }
    if let Some(conditions) = &mut status.conditions {
        conditions.sort_by(|one, other| one.type_.cmp(&other.type_));
    }
    fn drop_empty<T>(list: &mut Option<Vec<T>>) {
        if list.as_ref().is_some_and(Vec::is_empty) {
            *list = None;
        }
    }
    drop_empty(&mut status.conditions);
    drop_empty(&mut status.addresses);
    drop_empty(&mut status.images);
    drop_empty(&mut status.volumes_in_use);
    drop_empty(&mut status.volumes_attached);
    drop_empty(&mut status.runtime_handlers);
    drop_empty(&mut status.declared_features);
    status
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use crate::node::address::NodeIps;
    use crate::node::resources::{self, PodLimit};

    fn constants() -> Constants {
        let machine = MachineInfo {
            cpus: 2,
            memory_bytes: 1 << 30,
            swap_bytes: 1 << 20,
            machine_id: "m".to_owned(),
            system_uuid: "u".to_owned(),
            boot_id: "b".to_owned(),
            kernel_version: "6.1".to_owned(),
            os_image: "Debian".to_owned(),
            ..MachineInfo::default()
        };
        let pods = PodLimit { max: 110, per_core: 0 };
        let capacity = resources::capacity(&machine, pods, Some(1 << 40));
        Constants {
            machine,
            resources: NodeResources { capacity, ..NodeResources::default() },
            kubelet_version: "v1.36.2".to_owned(),
            runtime_name: "containerd".to_owned(),
            kubelet_port: 10250,
            max_images: Some(2),
            counts_storage: true,
            declared_features: vec!["A".to_owned()],
        }
    }

    /// The inputs of an external cloud's node without addresses: nothing of this machine is read.
    fn inputs(constants: &Constants, runtime: &RuntimeInfo, seconds: i64) -> Inputs {
        let image = |digest: &str, tags: &[&str], size_bytes| ImageNames {
            id: digest.to_owned(),
            digests: vec![digest.to_owned()],
            tags: tags.iter().map(ToString::to_string).collect(),
            size_bytes,
        };
        Inputs {
            constants: Arc::new(constants.clone()),
            address: NodeAddress::new("n".to_owned(), NodeIps::default(), true),
            pressure: NodePressure::new(Duration::from_secs(30)),
            runtime: runtime.clone(),
            images: Some(vec![
                image("small", &[], 1),
                image("large", &["1", "2", "3", "4", "5"], 3),
                image("middle", &["m"], 2),
            ]),
            volumes_in_use: Some(Vec::new()),
            faults: Vec::new(),
            now: Time(Timestamp::from_second(seconds).expect("a time")),
        }
    }

    #[test]
    fn status_has_all_fields_and_changes_only_with_them() {
        let constants = constants();
        let runtime = RuntimeInfo {
            version: Some("v2".to_owned()),
            features: Some(RuntimeFeatures {
                supplemental_groups_policy: true,
                ..RuntimeFeatures::default()
            }),
            ..RuntimeInfo::default()
        };
        let mut node = core::Node::default();
        node.metadata.name = Some("n".to_owned());
        let events = set(&mut node, &inputs(&constants, &runtime, 1));
        let reasons: Vec<&str> = events.iter().map(|event| event.reason).collect();
        assert_eq!(
            reasons,
            ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"]
        );
        assert_eq!(events[0].message, "Node n status is now: NodeHasSufficientMemory");
        let status = serde_json::to_value(node.status.as_ref().expect("a status")).expect("JSON");
        assert_eq!(
            status["images"],
            json!([{"names": ["large", "1", "2", "3", "4"], "sizeBytes": 3},
                   {"names": ["middle", "m"], "sizeBytes": 2}])
        );
        assert_eq!(
            status["nodeInfo"],
            json!({
                "machineID": "m", "systemUUID": "u", "bootID": "b", "kernelVersion": "6.1",
                "osImage": "Debian", "containerRuntimeVersion": "containerd://v2",
                "kubeletVersion": "v1.36.2", "kubeProxyVersion": "", "operatingSystem": "linux",
                "architecture": architecture(), "swap": {"capacity": 1 << 20},
            })
        );
        assert_eq!(status["daemonEndpoints"], json!({"kubeletEndpoint": {"Port": 10250}}));
        assert_eq!(status["features"], json!({"supplementalGroupsPolicy": true}));
        assert_eq!(status["declaredFeatures"], json!(["A"]));
        let types = status["conditions"].as_array().expect("a list").iter();
        let types: Vec<&Value> = types.map(|condition| &condition["type"]).collect();
        assert_eq!(types, ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]);
        assert_eq!(status["conditions"][3]["status"], "True");

        // A heartbeat alone is no change.
        let before = node.clone();
        let events = set(&mut node, &inputs(&constants, &runtime, 2));
        assert!(events.is_empty(), "{events:?}");
        let [old, new] = [&before, &node].map(|node| node.status.as_ref().expect("a status"));
        assert_ne!(old, new);
        assert!(!has_changed(old, new));

        // Another machine, or this one after a restart, and a runtime that is away.
        let other = Constants {
            machine: MachineInfo { boot_id: "c".to_owned(), ..constants.machine.clone() },
            ..constants.clone()
        };
        let away = RuntimeInfo {
            faults: vec!["container runtime is down".to_owned()],
            ..RuntimeInfo::default()
        };
        let events = set(&mut node, &inputs(&other, &away, 3));
        let shown: Vec<(bool, &str, &str)> =
            events.iter().map(|one| (one.is_warning, one.reason, &*one.message)).collect();
        assert_eq!(
            shown,
            [
                (true, "Rebooted", "Node n has been rebooted, boot id: c"),
                (false, "NodeNotReady", "Node n status is now: NodeNotReady"),
            ]
        );
        let status = node.status.as_ref().expect("a status");
        assert!(has_changed(before.status.as_ref().expect("a status"), status));
        let info = status.node_info.as_ref().expect("its information");
        assert_eq!(info.container_runtime_version, "containerd://Unknown");
    }

    #[test]
    fn images_have_the_same_order_in_each_status() {
        let (mut constants, runtime) = (constants(), RuntimeInfo::default());
        constants.max_images = None;
        let image = |id: &str, size_bytes| ImageNames {
            id: id.to_owned(),
            tags: vec![id.to_owned()],
            size_bytes,
            ..ImageNames::default()
        };
        let listed = |images: [ImageNames; 3]| {
            let inputs = Inputs { images: Some(images.into()), ..inputs(&constants, &runtime, 1) };
            let mut node = core::Node::default();
            set(&mut node, &inputs);
            let images = node.status.unwrap_or_default().images.unwrap_or_default();
            let names = images.into_iter().flat_map(|image| image.names.unwrap_or_default());
            names.collect::<Vec<String>>()
        };
        for images in [
            [image("a", 1), image("b", 1), image("0", 2)],
            [image("b", 1), image("0", 2), image("a", 1)],
        ] {
            assert_eq!(listed(images), ["0", "b", "a"]);
        }
    }

    #[test]
    fn node_without_capacity_is_not_ready() {
        let mut constants = constants();
        constants.resources.capacity.remove("ephemeral-storage");
        let runtime = RuntimeInfo::default();
        for (counts_storage, expected) in [
            (true, Some("missing node capacity for resources: ephemeral-storage")),
            (false, Some("kubelet is posting ready status")),
        ] {
            constants.counts_storage = counts_storage;
            let mut node = core::Node::default();
            set(&mut node, &inputs(&constants, &runtime, 1));
            let conditions = node.status.unwrap_or_default().conditions.unwrap_or_default();
            let ready = conditions::ready(&conditions).expect("a condition");
            assert_eq!(ready.message.as_deref(), expected);
        }
    }

    #[test]
    fn order_of_conditions_and_empty_lists_are_no_changes() {
        let status =
            |value: Value| -> core::NodeStatus { serde_json::from_value(value).expect("a status") };
        let one = status(json!({"conditions": [{"type": "a", "status": "True"},
                                               {"type": "b", "status": "True"}]}));
        let two = status(json!({"conditions": [{"type": "b", "status": "True"},
                                               {"type": "a", "status": "True"}], "images": []}));
        assert!(!has_changed(&one, &two));
        for other in [
            json!({"conditions": [{"type": "a", "status": "True"}]}),
            json!({"conditions": [{"type": "a", "status": "True"}, {"type": "b", "status": "True"}],
                   "volumesInUse": ["v"]}),
        ] {
            assert!(has_changed(&one, &status(other.clone())), "{other}");
        }
    }
}
