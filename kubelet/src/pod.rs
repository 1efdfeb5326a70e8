//! What the kubelet asks a pod. Upstream: `pkg/kubelet/types`, `pkg/api/v1/pod`.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;

use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::objects::{ArcStr, Quantity};

pub use core::{Container, Pod, PodSpec, PodStatus};

/// The uid of a pod, shared by all that refers to it. Folders and cgroups have its name, so it is one
/// plain name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid(ArcStr);

/// The longest name of a file.
const MAX_UID: usize = 255;

impl Uid {
    /// Parses a uid; `None`: `text` is no name for a folder and a cgroup. Manifests and the labels
    /// of other programs' sandboxes may have such ones. The systemd driver writes each `-` as `_`.
    pub fn parse(text: &str) -> Option<Uid> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
        let is_name = (1..=MAX_UID).contains(&text.len())
            && text.bytes().all(is_plain)
            && !matches!(text, "." | "..");
        is_name.then(|| Uid(text.into()))
    }

    /// Returns the uid of a pod; `None`: it has none, or one that is no name for a folder.
    pub fn of(pod: &Pod) -> Option<Uid> {
        Uid::parse(pod.metadata.uid.as_deref()?)
    }
}

impl Deref for Uid {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Uid {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

/// Where a pod comes from: `file`, `http` or `api`.
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// The uid of a pod at its source, which changes with its content.
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";
/// On a mirror pod: the hash of the static pod.
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
/// When the kubelet saw the pod first.
pub const CONFIG_SEEN: &str = "kubernetes.io/config.seen";

/// The AppArmor profile of a container, whose name follows. Fields have replaced it.
pub const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

/// The grace period of a pod that names none.
pub const DEFAULT_GRACE_SECONDS: i64 = 30;

/// A pod's or container's restart policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

impl RestartPolicy {
    /// Parses the policy of a pod; an empty or unknown one is `Always`.
    fn parse(text: &str) -> RestartPolicy {
        match text {
            "OnFailure" => RestartPolicy::OnFailure,
            "Never" => RestartPolicy::Never,
            _ => RestartPolicy::Always,
        }
    }
}

/// Questions to a pod.
pub trait PodExt {
    fn uid(&self) -> Uid;
    fn name(&self) -> &str;
    fn namespace(&self) -> &str;
    fn spec(&self) -> &PodSpec;
    fn annotation(&self, key: &str) -> Option<&str>;

    /// Returns the name as `NAME_NAMESPACE`. Upstream: `kubecontainer.GetPodFullName`.
    fn full_name(&self) -> String {
        format!("{}_{}", self.name(), self.namespace())
    }

    /// Returns the pod's name in messages: `NAMESPACE/NAME`.
    fn display_name(&self) -> String {
        format!("{}/{}", self.namespace(), self.name())
    }

    /// Returns whether the pod comes from a file or a URL. Upstream: `kubetypes.IsStaticPod`.
    fn is_static(&self) -> bool {
        self.annotation(CONFIG_SOURCE).is_some_and(|source| source != "api")
    }

    /// Returns whether the pod only shows a static pod: it is not run. Upstream:
    /// `kubetypes.IsMirrorPod`.
    fn is_mirror(&self) -> bool {
        self.annotation(CONFIG_MIRROR).is_some()
    }

    /// Returns whether the pod's own status, as its source has it, says that it is over: its phase is
    /// `Succeeded` or `Failed`.
    fn has_ended(&self) -> bool;

    fn restart_policy(&self) -> RestartPolicy {
        RestartPolicy::parse(self.spec().restart_policy.as_deref().unwrap_or_default())
    }

    fn is_host_network(&self) -> bool {
        self.spec().host_network.unwrap_or_default()
    }

    fn init_containers(&self) -> &[Container] {
        self.spec().init_containers.as_deref().unwrap_or_default()
    }

    fn ephemeral_containers(&self) -> &[core::EphemeralContainer] {
        self.spec().ephemeral_containers.as_deref().unwrap_or_default()
    }

    /// Returns the init containers and the containers.
    fn all_containers(&self) -> impl Iterator<Item = &Container> {
        self.init_containers().iter().chain(&self.spec().containers)
    }

    fn container(&self, name: &str) -> Option<&Container> {
        self.all_containers().find(|container| container.name == name)
    }

    /// Returns whether a container mounts a volume, or has it as a device; other volumes are not
    /// set up. Upstream: `GetPodVolumeNames`.
    fn uses_volume(&self, volume: &str) -> bool {
        let names = |mounts: &Option<Vec<core::VolumeMount>>,
                     devices: &Option<Vec<core::VolumeDevice>>| {
            mounts.iter().flatten().any(|mount| mount.name == volume)
                || devices.iter().flatten().any(|device| device.name == volume)
        };
        let mut ephemeral = self.ephemeral_containers().iter();
        self.all_containers()
            .any(|container| names(&container.volume_mounts, &container.volume_devices))
            || ephemeral.any(|container| names(&container.volume_mounts, &container.volume_devices))
    }
}

impl PodExt for Pod {
    fn uid(&self) -> Uid {
        Uid::of(self).expect("sources give no pod without one")
    }

    fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    fn namespace(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or_default()
    }

    fn spec(&self) -> &PodSpec {
        static NONE: std::sync::LazyLock<PodSpec> = std::sync::LazyLock::new(PodSpec::default);
        self.spec.as_ref().unwrap_or(&NONE)
    }

    fn has_ended(&self) -> bool {
        let phase = self.status.as_ref().and_then(|status| status.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }
}

/// Returns the pod's annotations, for a change.
pub fn annotations_mut(pod: &mut Pod) -> &mut BTreeMap<String, String> {
    pod.metadata.annotations.get_or_insert_default()
}

/// Converts an ephemeral container to a plain one, without the fields that it cannot have: ports,
/// probes, hooks, resources and a restart policy. Upstream: `EphemeralContainerCommon`.
pub fn of_ephemeral(ephemeral: &core::EphemeralContainer) -> Container {
    let ephemeral = ephemeral.clone();
    Container {
        name: ephemeral.name,
        image: ephemeral.image,
        image_pull_policy: ephemeral.image_pull_policy,
        command: ephemeral.command,
        args: ephemeral.args,
        working_dir: ephemeral.working_dir,
        env: ephemeral.env,
        env_from: ephemeral.env_from,
        volume_mounts: ephemeral.volume_mounts,
        volume_devices: ephemeral.volume_devices,
        termination_message_path: ephemeral.termination_message_path,
        termination_message_policy: ephemeral.termination_message_policy,
        security_context: ephemeral.security_context,
        stdin: ephemeral.stdin,
        stdin_once: ephemeral.stdin_once,
        tty: ephemeral.tty,
        ..Container::default()
    }
}

/// Returns whether an init container runs beside the containers (a sidecar). Upstream:
/// `podutil.IsRestartableInitContainer`.
pub fn is_restartable_init(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// Returns the policy by which a container is restarted: its own, or the pod's.
pub fn restart_policy_of(container: &Container, pod: &Pod) -> RestartPolicy {
    match container.restart_policy.as_deref() {
        Some(own) => RestartPolicy::parse(own),
        None => pod.restart_policy(),
    }
}

/// What a rule asks for when a container ends. Upstream: `ContainerRestartRuleAction`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitAction {
    Restart,
    RestartAllContainers,
}

/// Returns the action of the first of a container's restart rules that matches this exit code;
/// `None`: no rule does, or its action is unknown. Upstream: `FindMatchingContainerRestartRule`.
pub fn exit_action(container: &Container, exit_code: i32) -> Option<ExitAction> {
    let rules = container.restart_policy_rules.iter().flatten();
    let matching = rules.into_iter().find(|rule| {
        rule.exit_codes.as_ref().is_some_and(|codes| {
            let is_listed = codes.values.iter().flatten().any(|value| *value == exit_code);
            match codes.operator.as_str() {
                "In" => is_listed,
                "NotIn" => !is_listed,
                _ => false,
            }
        })
    });
    match matching?.action.as_str() {
        "Restart" => Some(ExitAction::Restart),
        "RestartAllContainers" => Some(ExitAction::RestartAllContainers),
        _ => None,
    }
}

/// Returns whether a container that ended with this exit code has to run again: by its rules, its
/// own policy, or the pod's. As upstream, rules count only beside a policy of its own. Upstream:
/// `ContainerShouldRestart`.
pub fn restarts_after(container: &Container, pod: &Pod, exit_code: i32) -> bool {
    if container.restart_policy.is_some() && exit_action(container, exit_code).is_some() {
        return true;
    }
    match restart_policy_of(container, pod) {
        RestartPolicy::Always => true,
        RestartPolicy::OnFailure => exit_code != 0,
        RestartPolicy::Never => false,
    }
}

/// Returns whether the end of a container may restart all of them. Upstream:
/// `AllContainersCouldRestart`.
pub fn may_restart_all(pod: &Pod) -> bool {
    pod.all_containers().any(|container| {
        let rules = container.restart_policy_rules.iter().flatten();
        rules.into_iter().any(|rule| rule.action == "RestartAllContainers")
    })
}

/// The quality-of-service class. Upstream: `qos.ComputePodQOS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QosClass {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl QosClass {
    pub fn name(self) -> &'static str {
        match self {
            QosClass::Guaranteed => "Guaranteed",
            QosClass::Burstable => "Burstable",
            QosClass::BestEffort => "BestEffort",
        }
    }

    /// Computes the QoS class of a pod, by the CPU and memory that the whole pod asks for, else by
    /// those of its containers.
    pub fn of(pod: &Pod) -> QosClass {
        let mut requests: BTreeMap<&str, i64> = BTreeMap::new();
        let mut limits: BTreeMap<&str, i64> = BTreeMap::new();
        let mut is_guaranteed = true;
        // What the whole pod asks for counts alone.
        let lists: Vec<_> = match &pod.spec().resources {
            Some(own) => vec![Some(own)],
            None => pod.all_containers().map(|container| container.resources.as_ref()).collect(),
        };
        for resources in lists {
            for resource in ["cpu", "memory"] {
                let positive = |is_limit| {
                    listed(resources, resource, is_limit).filter(|amount| amount.is_positive())
                };
                is_guaranteed &= positive(true).is_some();
                for (sums, is_limit) in [(&mut requests, false), (&mut limits, true)] {
                    if let Some(amount) = positive(is_limit) {
                        *sums.entry(resource).or_default() += amount.milli_value();
                    }
                }
            }
        }
        if requests.is_empty() && limits.is_empty() {
            QosClass::BestEffort
        } else if is_guaranteed && requests == limits {
            QosClass::Guaranteed
        } else {
            QosClass::Burstable
        }
    }
}

/// Returns the request of a container or pod for a resource, or with `is_limit` its limit.
pub fn listed(
    resources: Option<&core::ResourceRequirements>,
    resource: &str,
    is_limit: bool,
) -> Option<Quantity> {
    let lists = resources?;
    quantity(if is_limit { &lists.limits } else { &lists.requests }.as_ref()?, resource)
}

/// Sums the requests or limits of all containers: init containers run one after the other, beside
/// the sidecars before them. Upstream: `AggregateContainerRequests`, `AggregateContainerLimits`.
pub fn of_containers(pod: &Pod, resource: &str, is_limit: bool) -> Quantity {
    let of = |container: &Container| {
        listed(container.resources.as_ref(), resource, is_limit).unwrap_or(Quantity::ZERO)
    };
    let larger = |a: Quantity, b: Quantity| if a.compare(b).is_lt() { b } else { a };
    let mut total = pod.spec().containers.iter().map(of).fold(Quantity::ZERO, |a, b| a + b);
    let (mut sidecars, mut peak) = (Quantity::ZERO, Quantity::ZERO);
    for container in pod.init_containers() {
        let own = of(container) + sidecars;
        if is_restartable_init(container) {
            total = total + of(container);
            sidecars = own;
        }
        peak = larger(peak, own);
    }
    larger(total, peak)
}

/// Returns the requests or limits of a pod without its overhead: its own, or those of its
/// containers. Upstream: `PodRequests`, `PodLimits`.
pub fn of_pod(pod: &Pod, resource: &str, is_limit: bool) -> Quantity {
    let own = listed(pod.spec().resources.as_ref(), resource, is_limit);
    own.unwrap_or_else(|| of_containers(pod, resource, is_limit))
}

/// Returns a quantity of a list of resources; `None` when it is absent or malformed.
pub fn quantity(
    of: &BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>,
    resource: &str,
) -> Option<Quantity> {
    of.get(resource)?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn uids_are_names_of_folders() {
        for (text, is_fine) in [
            ("6b1e0f8a-0c5f-4d0c-9d5e-2f3f1f0a9c11", true),
            ("0123456789abcdef0123456789abcdef", true),
            ("a-b.c", true),
            ("a_b", false),
            ("...", true),
            ("", false),
            (".", false),
            ("..", false),
            ("/", false),
            ("a/b", false),
            ("../pods", false),
            ("a\0b", false),
            ("a\nb", false),
            ("a b", false),
            ("\u{e9}", false),
            (&"x".repeat(255), true),
            (&"x".repeat(256), false),
        ] {
            assert_eq!(Uid::parse(text).is_some(), is_fine, "{text:?}");
        }
    }

    #[test]
    fn volumes_of_each_kind_of_container_are_used() {
        let mounted = |name: &str| serde_json::json!([{"name": name, "mountPath": "/v"}]);
        let pod: Pod = serde_json::from_value(serde_json::json!({"spec": {
            "initContainers": [{"name": "i", "volumeMounts": mounted("a")}],
            "containers": [{"name": "c", "volumeMounts": mounted("b"),
                            "volumeDevices": [{"name": "d", "devicePath": "/d"}]}],
            "ephemeralContainers": [{"name": "e", "volumeMounts": mounted("f")}],
        }}))
        .expect("a pod");
        for (volume, expected) in
            [("a", true), ("b", true), ("d", true), ("f", true), ("other", false)]
        {
            assert_eq!(pod.uses_volume(volume), expected, "{volume}");
        }
    }

    #[test]
    fn rules_win_over_policies() {
        let rules = json!([
            {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [7]}},
            {"action": "Restart", "exitCodes": {"operator": "In", "values": [0, 3]}},
            {"action": "Unknown", "exitCodes": {"operator": "In", "values": [9]}},
        ]);
        let not_in = json!([
            {"action": "Restart", "exitCodes": {"operator": "NotIn", "values": [1, 2]}},
        ]);
        let none = json!(null);
        for (of_pod, own, rules, code, expected) in [
            ("Never", json!("Never"), &rules, 3, true),
            ("Never", json!("Never"), &rules, 0, true),
            ("Never", json!("Never"), &rules, 7, true),
            ("Never", json!("Never"), &rules, 9, false),
            ("Always", json!("Never"), &rules, 4, false),
            ("Never", json!("OnFailure"), &rules, 4, true),
            ("Never", json!("Never"), &not_in, 1, false),
            ("Never", json!("Never"), &not_in, 3, true),
            // Rules count only beside a policy of the container.
            ("Never", json!(null), &rules, 3, false),
            ("Always", json!(null), &none, 0, true),
            ("OnFailure", json!(null), &none, 0, false),
            ("OnFailure", json!(null), &none, 1, true),
            ("Never", json!("Always"), &none, 1, true),
        ] {
            let container = json!({"name": "a", "restartPolicy": own, "restartPolicyRules": rules});
            let pod = json!({"spec": {"restartPolicy": of_pod, "containers": [container]}});
            let pod: Pod = serde_json::from_value(pod).expect("a pod");
            let restarts = restarts_after(&pod.spec().containers[0], &pod, code);
            assert_eq!(restarts, expected, "{of_pod} {own} {rules} {code}");
        }
    }

    #[test]
    fn class_depends_on_requests_and_limits() {
        let both = json!({"requests": {"cpu": "1", "memory": "1Gi"},
                          "limits": {"cpu": "1000m", "memory": "1024Mi"}});
        for (containers, class) in [
            (json!([{}]), QosClass::BestEffort),
            (json!([{"requests": {"cpu": "0"}}]), QosClass::BestEffort),
            (json!([{"requests": {"cpu": "1"}}]), QosClass::Burstable),
            (json!([{"requests": {"ephemeral-storage": "1"}}]), QosClass::BestEffort),
            (json!([both]), QosClass::Guaranteed),
            (json!([both, {}]), QosClass::Burstable),
            (json!([both, {"limits": {"cpu": "0", "memory": "0"}}]), QosClass::Burstable),
            (json!([both, both]), QosClass::Guaranteed),
            (
                json!([{"requests": {"cpu": "1", "memory": "1"},
                     "limits": {"cpu": "2", "memory": "1"}}]),
                QosClass::Burstable,
            ),
        ] {
            let containers: Vec<_> = containers
                .as_array()
                .expect("a list")
                .iter()
                .enumerate()
                .map(|(at, resources)| json!({"name": at.to_string(), "resources": resources}))
                .collect();
            let mut pod = json!({"metadata": {}, "spec": {"containers": containers}});
            let class_of = |pod: &serde_json::Value| {
                QosClass::of(&serde_json::from_value(pod.clone()).expect("a pod"))
            };
            assert_eq!(class_of(&pod), class, "{containers:?}");
            pod["spec"]["resources"] = both.clone();
            assert_eq!(class_of(&pod), QosClass::Guaranteed, "{containers:?}");
            pod["spec"]["resources"] = json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1"}});
            assert_eq!(class_of(&pod), QosClass::Burstable, "{containers:?}");
        }
    }
}
