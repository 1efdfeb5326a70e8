//! Whether the node is one that the pod may run on. Upstream: `lifecycle/predicate.go`,
//! `scheduler.AdmissionCheck`.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::objects::{
    Labels, NO_EXECUTE, NodeAffinity, NodeSelector, Taint, Toleration,
};
use serde::Deserialize;
use serde_json::json;

use super::Rejection;
use super::resources::shortages;
use crate::pod::{Pod, PodExt, is_restartable_init};

/// The label with the operating system, and the one of this kubelet.
const OS: (&str, &str) = ("kubernetes.io/os", "linux");
/// A host port of all of the machine's addresses.
const ANY_ADDRESS: &str = "0.0.0.0";

/// Checks that the node's operating system and runtime suit a pod, which no preemption could mend.
///
/// # Errors
/// The pod is of another operating system, or has `supplementalGroupsPolicy: Strict`, which the
/// runtime does not support. While the Node does not say whether its runtime does, the pod is not
/// refused (upstream refuses it): the runtime may not have answered yet, and it is asked again
/// before a container is made.
pub fn check_system(pod: &Pod, node: &core::Node) -> Result<(), Rejection> {
    let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get(OS.0));
    if label.is_some_and(|system| system != OS.1) {
        return Err(Rejection::OsLabel);
    }
    if pod.spec().os.as_ref().is_some_and(|os| os.name != OS.1) {
        return Err(Rejection::Os);
    }
    let security = pod.spec().security_context.as_ref();
    let policy = security.and_then(|context| context.supplemental_groups_policy.as_deref());
    let features = node.status.as_ref().and_then(|status| status.features.as_ref());
    let has_groups = features.and_then(|features| features.supplemental_groups_policy);
    match policy == Some("Strict") && has_groups == Some(false) {
        true => Err(Rejection::SupplementalGroups),
        false => Ok(()),
    }
}

/// Lists why the pod does not fit the node beside the `others`, in upstream's order; empty: it
/// fits.
pub fn misfits(pod: &Pod, node: &core::Node, others: &[Arc<Pod>]) -> Vec<Rejection> {
    let mut misfits: Vec<Rejection> =
        shortages(pod, node, others).into_iter().map(Rejection::Insufficient).collect();
    let node_name = node.metadata.name.as_deref().unwrap_or_default();
    let own_name = pod.spec().node_name.as_deref().unwrap_or_default();
    for (has_failed, predicate, why) in [
        (
            !affinity(pod).matches(node_name, &labels(node)),
            "NodeAffinity",
            "node(s) didn't match Pod's node affinity/selector",
        ),
        (
            !own_name.is_empty() && own_name != node_name,
            "NodeName",
            "node(s) didn't match the requested node name",
        ),
        (
            has_port_conflict(pod, others),
            "NodePorts",
            "node(s) didn't have free ports for the requested pod ports",
        ),
        (
            // A static pod is for its node, in any state of it.
            !pod.is_static() && has_untolerated_taint(pod, node),
            "TaintToleration",
            "node(s) had taints that the pod didn't tolerate",
        ),
    ] {
        if has_failed {
            misfits.push(Rejection::Misfit { predicate, why });
        }
    }
    misfits
}

/// Returns the node's labels, with this kubelet's operating system in place of the one that the
/// Node names. Upstream: `rejectPodAdmissionBasedOnOSSelector`.
fn labels(node: &core::Node) -> Labels {
    let own = node.metadata.labels.iter().flatten();
    own.map(|(key, value)| (key.as_str(), value.as_str())).chain([OS]).collect()
}

/// Reads the node selector and the required node affinity of a pod. Upstream:
/// `nodeaffinity.GetRequiredNodeAffinity`.
fn affinity(pod: &Pod) -> NodeAffinity {
    let spec = pod.spec();
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required =
        affinity.and_then(|one| one.required_during_scheduling_ignored_during_execution.as_ref());
    NodeAffinity {
        node_selector: spec.node_selector.iter().flatten().collect(),
        // What cannot be read selects no node.
        required: required
            .map(|selector| NodeSelector::deserialize(json!(selector)).unwrap_or_default()),
    }
}

/// Returns whether another pod uses a host port that this one needs. Upstream: `nodeports.Fits`.
fn has_port_conflict(pod: &Pod, others: &[Arc<Pod>]) -> bool {
    let own: Vec<HostPort<'_>> = host_ports(pod).collect();
    let is_own = |used: HostPort<'_>| own.iter().any(|port| port.conflicts(&used));
    !own.is_empty() && others.iter().any(|other| host_ports(other).any(is_own))
}

/// A port of the machine.
struct HostPort<'a> {
    ip: &'a str,
    protocol: &'a str,
    port: i32,
}

impl HostPort<'_> {
    /// Returns whether both are one port of one address, or of one that stands for all addresses.
    fn conflicts(&self, other: &HostPort<'_>) -> bool {
        let is_any = self.ip == ANY_ADDRESS || other.ip == ANY_ADDRESS;
        (self.protocol, self.port) == (other.protocol, other.port)
            && (is_any || self.ip == other.ip)
    }
}

/// Lists the host ports of the containers that run as long as the pod does. Upstream:
/// `schedutil.GetHostPorts`.
fn host_ports(pod: &Pod) -> impl Iterator<Item = HostPort<'_>> {
    let sidecars = pod.init_containers().iter().filter(|init| is_restartable_init(init));
    let containers = sidecars.chain(&pod.spec().containers);
    let ports = containers.flat_map(|container| container.ports.iter().flatten());
    ports.filter_map(|port| {
        Some(HostPort {
            ip: or_default(port.host_ip.as_deref(), ANY_ADDRESS),
            protocol: or_default(port.protocol.as_deref(), "TCP"),
            port: port.host_port.filter(|port| *port > 0)?,
        })
    })
}

fn or_default<'a>(text: Option<&'a str>, default: &'a str) -> &'a str {
    text.filter(|text| !text.is_empty()).unwrap_or(default)
}

/// Returns whether the node has a taint `NoExecute` that the pod does not tolerate. Taints of other
/// effects concern the scheduler only.
fn has_untolerated_taint(pod: &Pod, node: &core::Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let mut taints = taints.into_iter().flatten().filter(|taint| taint.effect == NO_EXECUTE);
    taints.any(|taint| {
        !tolerates(pod, &taint.key, taint.value.as_deref().unwrap_or_default(), &taint.effect)
    })
}

/// Returns whether the pod tolerates a taint. Comparisons tolerate nothing: upstream's feature gate
/// `TaintTolerationComparisonOperators` is off.
pub(super) fn tolerates(pod: &Pod, key: &str, value: &str, effect: &str) -> bool {
    let taint =
        Taint { key: key.into(), value: value.into(), effect: effect.into(), time_added: None };
    let text = |text: &Option<String>| text.as_deref().unwrap_or_default().into();
    pod.spec().tolerations.iter().flatten().any(|own| {
        let toleration = Toleration {
            key: text(&own.key),
            operator: text(&own.operator),
            value: text(&own.value),
            effect: text(&own.effect),
            toleration_seconds: None,
        };
        toleration.tolerates(&taint, false)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::pod::CONFIG_SOURCE;

    fn pod(source: &str, spec: Value) -> Arc<Pod> {
        let mut spec = spec;
        if spec.get("containers").is_none() {
            spec["containers"] = json!([]);
        }
        let metadata = json!({"annotations": {CONFIG_SOURCE: source}});
        let pod = json!({"metadata": metadata, "spec": spec});
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    fn node(more: Value) -> core::Node {
        let mut node = json!({
            "metadata": {"name": "machine1", "labels": {"disk": "ssd", "kubernetes.io/os": "plan9"}},
            "status": {"allocatable": {"cpu": "10m", "memory": "20", "pods": "32"}},
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            node[key] = value.clone();
        }
        serde_json::from_value(node).expect("a node")
    }

    fn reasons(pod: &Pod, node: &core::Node, others: &[Arc<Pod>]) -> Vec<String> {
        let reasons = misfits(pod, node, others);
        reasons.into_iter().map(|rejection| rejection.reason().into_owned()).collect()
    }

    #[test]
    fn nodes_are_chosen_by_name_and_labels() {
        let term = |key: &str, operator: &str| {
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": operator}]}]}}}})
        };
        let preferred = json!({"affinity": {"nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference":
                {"matchExpressions": [{"key": "none", "operator": "Exists"}]}}]}}});
        let mut elsewhere = term("none", "Exists");
        elsewhere["nodeName"] = json!("machine2");
        for (spec, expected) in [
            (json!({}), &[][..]),
            (json!({"nodeName": "machine1"}), &[]),
            (json!({"nodeName": "machine2"}), &["NodeName"]),
            (json!({"nodeSelector": {"disk": "ssd"}}), &[]),
            (json!({"nodeSelector": {"disk": "hdd"}}), &["NodeAffinity"]),
            (json!({"nodeSelector": {"kubernetes.io/os": "linux"}}), &[]),
            (term("disk", "Exists"), &[]),
            (term("none", "Exists"), &["NodeAffinity"]),
            (term("disk", "Near"), &["NodeAffinity"]),
            (preferred, &[]),
            (elsewhere, &["NodeAffinity", "NodeName"]),
        ] {
            for source in ["file", "api"] {
                let found = reasons(&pod(source, spec.clone()), &node(json!({})), &[]);
                assert_eq!(found, expected, "{spec}");
            }
        }
    }

    #[test]
    fn resources_come_first() {
        let container = json!({"name": "c", "resources": {"requests": {"cpu": "1"}}});
        let spec = json!({"nodeName": "machine2", "containers": [container]});
        assert_eq!(reasons(&pod("api", spec), &node(json!({})), &[]), ["OutOfcpu", "NodeName"]);
    }

    #[test]
    fn host_ports_are_used_once() {
        let ports = |ports: Value| json!({"containers": [{"name": "c", "ports": ports}]});
        let port = |ip: &str, protocol: &str, port: i32| {
            ports(json!([{"hostIP": ip, "protocol": protocol, "hostPort": port,
                          "containerPort": 1}]))
        };
        let of_init = |policy: Value| {
            json!({"initContainers": [{"name": "i", "restartPolicy": policy,
                "ports": [{"hostPort": 80, "containerPort": 1}]}]})
        };
        let plain = || ports(json!([{"hostPort": 80, "containerPort": 1}]));
        for (own, used, conflicts) in [
            (plain(), plain(), true),
            (plain(), port("", "UDP", 80), false),
            (plain(), port("", "TCP", 81), false),
            (plain(), port("10.0.0.1", "TCP", 80), true),
            (port("10.0.0.1", "TCP", 80), plain(), true),
            (port("10.0.0.1", "TCP", 80), port("10.0.0.2", "TCP", 80), false),
            (port("10.0.0.1", "TCP", 80), port("10.0.0.1", "TCP", 80), true),
            (port("0.0.0.0", "TCP", 80), port("10.0.0.1", "TCP", 80), true),
            (ports(json!([{"containerPort": 80}])), plain(), false),
            (plain(), of_init(json!("Always")), true),
            (plain(), of_init(Value::Null), false),
        ] {
            let expected: &[&str] = if conflicts { &["NodePorts"] } else { &[] };
            let others = [pod("api", used.clone())];
            let found = reasons(&pod("api", own.clone()), &node(json!({})), &others);
            assert_eq!(found, expected, "{own} {used}");
        }
    }

    #[test]
    fn only_taints_that_end_pods_count_and_not_for_static_pods() {
        let tainted = |effect: &str| {
            node(json!({"spec": {"taints": [{"key": "foo", "effect": "NoSchedule"},
                                            {"key": "bar", "effect": effect}]}}))
        };
        let tolerating = json!({"tolerations": [{"key": "foo"}, {"key": "bar"}]});
        let comparing = json!({"tolerations": [{"key": "bar", "operator": "Gt", "value": "1"}]});
        for (source, spec, effect, expected) in [
            ("api", json!({}), "NoExecute", &["TaintToleration"][..]),
            ("api", json!({}), "NoSchedule", &[]),
            ("api", json!({}), "PreferNoSchedule", &[]),
            ("api", tolerating, "NoExecute", &[]),
            ("api", comparing, "NoExecute", &["TaintToleration"]),
            ("file", json!({}), "NoExecute", &[]),
        ] {
            let found = reasons(&pod(source, spec.clone()), &tainted(effect), &[]);
            assert_eq!(found, expected, "{source} {spec} {effect}");
        }
    }

    #[test]
    fn pods_are_of_the_nodes_system() {
        let check = |labels: Value, spec: Value, node: &core::Node| {
            let mut pod = Arc::unwrap_or_clone(pod("api", spec));
            pod.metadata.labels = serde_json::from_value(labels).expect("labels");
            check_system(&pod, node).err()
        };
        let node = |features: Value| node(json!({"status": {"features": features}}));
        let without = node(Value::Null);
        let strict = json!({"securityContext": {"supplementalGroupsPolicy": "Strict"}});
        let merge = json!({"securityContext": {"supplementalGroupsPolicy": "Merge"}});
        for (labels, spec, expected) in [
            (json!({}), json!({}), None),
            (json!({"kubernetes.io/os": "linux"}), json!({"os": {"name": "linux"}}), None),
            (json!({"kubernetes.io/os": "windows"}), json!({}), Some(Rejection::OsLabel)),
            (json!({}), json!({"os": {"name": "windows"}}), Some(Rejection::Os)),
            (json!({}), merge, None),
            // The runtime has not answered yet.
            (json!({}), strict.clone(), None),
        ] {
            assert_eq!(check(labels.clone(), spec.clone(), &without), expected, "{labels} {spec}");
        }
        let off = node(json!({"supplementalGroupsPolicy": false}));
        assert_eq!(check(json!({}), strict.clone(), &off), Some(Rejection::SupplementalGroups));
        let on = node(json!({"supplementalGroupsPolicy": true}));
        assert_eq!(check(json!({}), strict, &on), None);
    }
}
