//! Which Services need a load balancer, which changes matter to one, and which nodes are behind it.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{LoadBalancerIngress, LoadBalancerStatus};
use kube_controller_manager::objects::ArcStr;

use crate::objects::{Node, Service};

/// Upstream: `servicehelper.LoadBalancerCleanupFinalizer`.
pub const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
/// Upstream: `v1.LabelNodeExcludeBalancers`.
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// The cluster autoscaler sets it on a node that it is about to delete.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// Returns whether this controller makes a load balancer for a Service. A Service with a class
/// leaves that to the controller of the class.
pub fn wants_load_balancer(service: &Service) -> bool {
    service.is_load_balancer() && service.spec.load_balancer_class.is_none()
}

/// Returns whether the load balancer of a Service is to be deleted, as its finalizer says.
pub fn needs_cleanup(service: &Service) -> bool {
    service.meta.has_finalizer(FINALIZER)
        && (service.meta.is_being_deleted() || !service.is_load_balancer())
}

/// Returns whether a change of a Service matters to its load balancer.
pub fn needs_update(old: &Service, new: &Service) -> bool {
    let wanted = (wants_load_balancer(old), wants_load_balancer(new));
    if wanted == (false, false) {
        return false;
    }
    let (before, after) = (&old.spec, &new.spec);
    wanted.0 != wanted.1
        || list(&before.load_balancer_source_ranges) != list(&after.load_balancer_source_ranges)
        // The API server has defaults for the fields of a port.
        || list(&before.ports) != list(&after.ports)
        || before.session_affinity != after.session_affinity
        || before.session_affinity_config != after.session_affinity_config
        || before.load_balancer_ip != after.load_balancer_ip
        || list(&before.external_ips) != list(&after.external_ips)
        || old.meta.annotations != new.meta.annotations
        || old.meta.uid != new.meta.uid
        || before.external_traffic_policy != after.external_traffic_policy
        || before.health_check_node_port != after.health_check_node_port
        // The API server lets a family be added or removed, never replaced.
        || list(&before.ip_families).len() != list(&after.ip_families).len()
}

fn list<T>(list: &Option<Vec<T>>) -> &[T] {
    list.as_deref().unwrap_or_default()
}

/// Returns whether a status is to be written. `written`: the version of the Service that the last
/// write made; a Service of the cache that is older does not show its present status.
pub fn needs_status(service: &Service, status: &LoadBalancerStatus, written: u64) -> bool {
    let is_older = service.meta.resource_version < written;
    is_older || !same_status(service.status.load_balancer.as_ref(), status)
}

/// Returns whether two statuses have the same addresses. Absent and empty lists are the same.
fn same_status(old: Option<&LoadBalancerStatus>, new: &LoadBalancerStatus) -> bool {
    let ingress = |status: &LoadBalancerStatus| -> Vec<LoadBalancerIngress> {
        status.ingress.clone().unwrap_or_default()
    };
    old.map(ingress).unwrap_or_default() == ingress(new)
}

/// Returns whether a node may be behind load balancers as its label says. A value that is no bool
/// excludes it.
fn is_included(node: &Node) -> bool {
    let excluded = node.meta.labels.get(EXCLUDED);
    matches!(excluded, None | Some("0" | "f" | "F" | "false" | "FALSE" | "False"))
}

/// Returns whether a node belongs behind load balancers. Its readiness does not count: load
/// balancers have health checks. Upstream: `stableNodeSetPredicates`.
fn is_target(node: &Node) -> bool {
    !node.meta.is_being_deleted() && is_included(node) && !node.has_taint(TO_BE_DELETED)
}

/// Returns whether a change of a node may change the targets of load balancers. The taint is no
/// reason: a node that is about to be deleted keeps its connections until then.
pub fn should_sync(old: &Node, new: &Node) -> bool {
    is_included(old) != is_included(new) || old.spec.provider_id != new.spec.provider_id
}

/// Returns the nodes behind load balancers, in the order of their names.
pub fn targets(nodes: Vec<Arc<Node>>) -> Vec<Arc<Node>> {
    let mut nodes: Vec<_> = nodes.into_iter().filter(|node| is_target(node)).collect();
    nodes.sort_by(|a, b| a.meta.name.cmp(&b.meta.name));
    nodes
}

/// What a load balancer knows of its targets: the provider ids by the names of the nodes. A change
/// of anything else causes no update. Upstream: `nodesSufficientlyEqual`.
#[derive(Debug, Default, PartialEq)]
pub struct TargetSet(BTreeMap<ArcStr, Box<str>>);

impl TargetSet {
    pub fn of(targets: &[Arc<Node>]) -> TargetSet {
        let entry = |node: &Arc<Node>| (node.meta.name.clone(), node.spec.provider_id.clone());
        TargetSet(targets.iter().map(entry).collect())
    }
}

/// Formats the names of up to 20 nodes, as Go prints a list. Upstream: `loggableNodeNames`.
pub fn shown_names(targets: &[Arc<Node>]) -> String {
    const MOST: usize = 20;
    let mut names: Vec<String> =
        targets.iter().take(MOST).map(|node| node.meta.name.to_string()).collect();
    names.sort();
    if targets.len() > MOST {
        names.push(format!("<{} more>", targets.len() - MOST));
    }
    format!("[{}]", names.join(" "))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(change: Value) -> Service {
        let mut service = json!({
            "metadata": { "name": "web", "namespace": "default", "uid": "u" },
            "spec": {
                "type": "LoadBalancer", "externalTrafficPolicy": "Cluster",
                "ports": [{ "name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080 }],
            },
        });
        merge(&mut service, change);
        serde_json::from_value(service).expect("a Service")
    }

    fn node(change: Value) -> Arc<Node> {
        let mut node = json!({
            "metadata": { "name": "n" }, "spec": { "providerID": "fake://n" },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
        });
        merge(&mut node, change);
        serde_json::from_value(node).map(Arc::new).expect("a Node")
    }

    /// RFC 7386.
    fn merge(into: &mut Value, change: Value) {
        match change {
            Value::Object(changes) => {
                for (key, change) in changes {
                    merge(&mut into[key], change);
                }
            }
            value => *into = value,
        }
    }

    #[test]
    fn class_and_type_decide_who_makes_the_load_balancer() {
        for (change, wanted) in [
            (json!({}), true),
            (json!({ "spec": { "type": "ClusterIP" } }), false),
            (json!({ "spec": { "type": "NodePort" } }), false),
            (json!({ "spec": { "type": null } }), false),
            (json!({ "spec": { "loadBalancerClass": "example.com/lb" } }), false),
        ] {
            assert_eq!(wants_load_balancer(&service(change.clone())), wanted, "{change}");
        }
    }

    #[test]
    fn finalizer_asks_for_the_cleanup_of_services_that_need_no_load_balancer() {
        let deleted = json!("2026-01-01T00:00:00Z");
        for (change, needed) in [
            (json!({}), false),
            (json!({ "metadata": { "deletionTimestamp": deleted } }), false),
            (json!({ "metadata": { "finalizers": [FINALIZER] } }), false),
            (
                json!({ "metadata": { "finalizers": ["other"], "deletionTimestamp": deleted } }),
                false,
            ),
            (
                json!({ "metadata": { "finalizers": [FINALIZER], "deletionTimestamp": deleted } }),
                true,
            ),
            (
                json!({ "metadata": { "finalizers": [FINALIZER] }, "spec": { "type": "ClusterIP" } }),
                true,
            ),
            // Upstream's: the class of a load balancer does not change while it is one.
            (
                json!({ "metadata": { "finalizers": [FINALIZER] }, "spec": { "loadBalancerClass": "a/b" } }),
                false,
            ),
        ] {
            assert_eq!(needs_cleanup(&service(change.clone())), needed, "{change}");
        }
    }

    #[test]
    fn changes_of_what_a_load_balancer_shows_need_an_update() {
        for (old, new, needed) in [
            (json!({}), json!({}), false),
            (
                json!({ "spec": { "type": "ClusterIP" } }),
                json!({ "spec": { "type": "NodePort" } }),
                false,
            ),
            (json!({ "spec": { "type": "ClusterIP" } }), json!({}), true),
            (json!({}), json!({ "spec": { "type": "ClusterIP" } }), true),
            (json!({}), json!({ "spec": { "loadBalancerClass": "a/b" } }), true),
            (json!({}), json!({ "spec": { "loadBalancerSourceRanges": ["10.0.0.0/8"] } }), true),
            (json!({ "spec": { "loadBalancerSourceRanges": [] } }), json!({}), false),
            (json!({}), json!({ "spec": { "loadBalancerIP": "192.0.2.1" } }), true),
            (json!({}), json!({ "spec": { "externalIPs": ["192.0.2.1"] } }), true),
            (
                json!({ "spec": { "externalIPs": ["192.0.2.2"] } }),
                json!({ "spec": { "externalIPs": ["192.0.2.1"] } }),
                true,
            ),
            (json!({}), json!({ "spec": { "sessionAffinity": "ClientIP" } }), true),
            (
                json!({}),
                json!({ "spec": { "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 9 } } } }),
                true,
            ),
            (json!({}), json!({ "spec": { "externalTrafficPolicy": "Local" } }), true),
            (json!({}), json!({ "spec": { "healthCheckNodePort": 30123 } }), true),
            (
                json!({ "spec": { "ipFamilies": ["IPv4"] } }),
                json!({ "spec": { "ipFamilies": ["IPv4", "IPv6"] } }),
                true,
            ),
            (
                json!({ "spec": { "ipFamilies": ["IPv4"] } }),
                json!({ "spec": { "ipFamilies": ["IPv6"] } }),
                false,
            ),
            (json!({}), json!({ "metadata": { "annotations": { "a": "b" } } }), true),
            (json!({}), json!({ "metadata": { "uid": "v" } }), true),
            (json!({}), json!({ "metadata": { "labels": { "a": "b" } } }), false),
            (json!({}), json!({ "spec": { "selector": { "a": "b" } } }), false),
            (json!({}), json!({ "spec": { "publishNotReadyAddresses": true } }), false),
            (
                json!({}),
                json!({ "status": { "loadBalancer": { "ingress": [{ "ip": "192.0.2.1" }] } } }),
                false,
            ),
        ] {
            let (before, after) = (service(old.clone()), service(new.clone()));
            assert_eq!(needs_update(&before, &after), needed, "{old} {new}");
        }
        let port = |change: Value| {
            let mut port =
                json!({ "name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080 });
            merge(&mut port, change);
            service(json!({ "spec": { "ports": [port] } }))
        };
        for change in [
            json!({ "name": "www" }),
            json!({ "protocol": "UDP" }),
            json!({ "port": 81 }),
            json!({ "nodePort": 30123 }),
            json!({ "targetPort": "web" }),
            json!({ "appProtocol": "http" }),
        ] {
            assert!(needs_update(&port(json!({})), &port(change.clone())), "{change}");
        }
        assert!(needs_update(&service(json!({})), &service(json!({ "spec": { "ports": [] } }))));
    }

    #[test]
    fn statuses_are_the_same_if_all_fields_and_their_order_are() {
        let vip = json!([{ "ip": "192.0.2.1", "ipMode": "VIP" }]);
        let (one, two) = (json!({ "ip": "192.0.2.1" }), json!({ "ip": "192.0.2.2" }));
        for (old, new, same) in [
            (Value::Null, Value::Null, true),
            (Value::Null, json!([]), true),
            (json!([one]), json!([one]), true),
            (json!([one]), json!([two]), false),
            (json!([one]), json!([]), false),
            (json!([one, two]), json!([two, one]), false),
            (vip.clone(), vip.clone(), true),
            (json!([one]), vip.clone(), false),
            (vip, json!([{ "ip": "192.0.2.1", "ipMode": "Proxy" }]), false),
            (json!([{ "hostname": "a" }]), json!([{ "hostname": "a" }]), true),
            (json!([{ "hostname": "a" }]), json!([{ "hostname": "b" }]), false),
            (
                json!([{ "ip": "192.0.2.1", "ports": [{ "port": 80, "protocol": "TCP" }] }]),
                json!([one]),
                false,
            ),
        ] {
            let status = |ingress: &Value| -> LoadBalancerStatus {
                serde_json::from_value(json!({ "ingress": ingress })).expect("a status")
            };
            assert_eq!(same_status(Some(&status(&old)), &status(&new)), same, "{old} {new}");
        }
        assert!(same_status(None, &LoadBalancerStatus::default()));
    }

    #[test]
    fn a_service_older_than_the_last_status_gets_another_one() {
        for (version, written, is_other, needed) in [
            (5, 0, false, false),
            (5, 0, true, true),
            (5, 6, false, true),
            (6, 6, false, false),
            (7, 6, true, true),
        ] {
            let ingress = json!([{ "ip": "192.0.2.1" }]);
            let cached = service(json!({
                "metadata": { "resourceVersion": version.to_string() },
                "status": { "loadBalancer": { "ingress": ingress } },
            }));
            let ingress = if is_other { json!([]) } else { ingress };
            let status = serde_json::from_value(json!({ "ingress": ingress })).expect("a status");
            let found = needs_status(&cached, &status, written);
            assert_eq!(found, needed, "{version} {written} {is_other}");
        }
    }

    #[test]
    fn local_traffic_has_a_health_check_port() {
        for (change, port) in [
            (json!({ "healthCheckNodePort": 30123 }), None),
            (
                json!({ "healthCheckNodePort": 30123, "externalTrafficPolicy": "Local" }),
                Some(30123),
            ),
            (json!({ "externalTrafficPolicy": "Local" }), None),
            (json!({ "healthCheckNodePort": 0, "externalTrafficPolicy": "Local" }), None),
            (
                json!({ "type": "NodePort", "healthCheckNodePort": 30123, "externalTrafficPolicy": "Local" }),
                None,
            ),
        ] {
            let service = service(json!({ "spec": change }));
            assert_eq!(service.health_check_port(), port, "{change}");
        }
    }

    #[test]
    fn targets_are_the_nodes_that_are_neither_excluded_nor_about_to_be_deleted() {
        let label = |value: &str| json!({ "metadata": { "labels": { EXCLUDED: value } } });
        let taint =
            |key: &str| json!({ "spec": { "taints": [{ "key": key, "effect": "NoSchedule" }] } });
        for (change, is_target) in [
            (json!({}), true),
            (json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }), true),
            (json!({ "spec": { "unschedulable": true } }), true),
            (json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }), false),
            (label(""), false),
            (label("true"), false),
            (label("yes"), false),
            (label("false"), true),
            (label("F"), true),
            (label("0"), true),
            (taint(TO_BE_DELETED), false),
            (taint("other"), true),
        ] {
            assert_eq!(targets(vec![node(change.clone())]).len() == 1, is_target, "{change}");
        }
    }

    #[test]
    fn nodes_are_synced_when_the_label_or_the_provider_id_changes() {
        let taints = json!([{ "key": TO_BE_DELETED, "effect": "NoSchedule" }]);
        for (change, synced) in [
            (json!({}), false),
            (json!({ "metadata": { "labels": { EXCLUDED: "" } } }), true),
            (json!({ "metadata": { "labels": { EXCLUDED: "false" } } }), false),
            (json!({ "spec": { "providerID": "fake://m" } }), true),
            (json!({ "spec": { "taints": taints } }), false),
            (
                json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }),
                false,
            ),
        ] {
            let (old, new) = (node(json!({})), node(change.clone()));
            assert_eq!(
                (should_sync(&old, &new), should_sync(&new, &old)),
                (synced, synced),
                "{change}"
            );
        }
    }

    #[test]
    fn a_target_is_its_name_and_its_provider_id() {
        let set = |names: &[(&str, &str)]| {
            let node = |(name, id): &(&str, &str)| {
                node(json!({ "metadata": { "name": name }, "spec": { "providerID": id } }))
            };
            TargetSet::of(&names.iter().map(node).collect::<Vec<_>>())
        };
        assert_eq!(set(&[("a", "1"), ("b", "2")]), set(&[("b", "2"), ("a", "1")]));
        assert_ne!(set(&[("a", "1")]), set(&[("a", "2")]));
        assert_ne!(set(&[("a", "1")]), set(&[]));
    }

    #[test]
    fn names_of_many_nodes_are_cut_off() {
        let named = |count: usize| -> Vec<Arc<Node>> {
            (0..count).map(|n| node(json!({ "metadata": { "name": format!("n{n}") } }))).collect()
        };
        assert_eq!(shown_names(&named(0)), "[]");
        assert_eq!(shown_names(&named(2)), "[n0 n1]");
        assert!(shown_names(&named(23)).ends_with(" <3 more>]"));
    }
}
