//! Whether a node has what a pod requests. Upstream: `noderesources.Fits`.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ListedQuantity;
use kube_controller_manager::objects::Quantity;

use crate::cgroups::pod_amount;
use crate::pod::{Pod, PodExt, is_restartable_init, listed, of_pod, quantity};

/// The number of pods, as a resource.
const PODS: &str = "pods";
/// The resources that each node has, in the order in which they are compared.
const OF_EVERY_NODE: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// A resource of which the node has too little: `cpu` in millis, all else in units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    pub resource: String,
    pub requested: i64,
    /// By the other pods.
    pub used: i64,
    pub capacity: i64,
}

impl Shortage {
    /// Returns what other pods would have to free.
    pub fn missing(&self) -> i64 {
        self.requested.saturating_sub(self.capacity.saturating_sub(self.used))
    }

    /// Returns whether it is a resource that each node has.
    pub fn is_of_node(&self) -> bool {
        self.resource == PODS || OF_EVERY_NODE.contains(&&*self.resource)
    }
}

/// Lists the resources of which the node has too little for the pod beside the `others`. Extended
/// resources that the node does not have are ignored: other components of the cluster count them.
/// Upstream: `removeMissingExtendedResources`.
pub fn shortages(pod: &Pod, node: &core::Node, others: &[Arc<Pod>]) -> Vec<Shortage> {
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    let capacity = |resource: &str| {
        let amount = quantity(allocatable?, resource)?;
        Some(if resource == "cpu" { amount.milli_value() } else { amount.value() })
    };
    let others: Vec<Cow<'_, Pod>> = others.iter().map(|other| with_actuated(other)).collect();
    let mut shortages = Vec::new();
    let mut compare = |resource: &str, requested: i64, used: i64| {
        let capacity = capacity(resource).unwrap_or(0);
        if requested > capacity.saturating_sub(used) {
            let resource = resource.to_owned();
            shortages.push(Shortage { resource, requested, used, capacity });
        }
    };
    compare(PODS, 1, i64::try_from(others.len()).unwrap_or(i64::MAX));
    let requests = requests(pod);
    let scalars = requests.keys().map(String::as_str);
    let scalars = scalars.filter(|resource| !OF_EVERY_NODE.contains(resource));
    for resource in OF_EVERY_NODE.into_iter().chain(scalars) {
        let is_counted = !is_extended(resource) || capacity(resource).is_some();
        let requested = requests.get(resource).copied().unwrap_or(0);
        if requested > 0 && is_counted {
            let used = others.iter().map(|other| pod_amount(other, resource, false));
            compare(resource, requested, used.fold(0, i64::saturating_add));
        }
    }
    shortages
}

/// Returns the pod with the requests that it and its containers still have by its status, where those
/// are larger: what a resize gives back is free once the runtime has taken it. Upstream:
/// `UseStatusResources`.
fn with_actuated(pod: &Pod) -> Cow<'_, Pod> {
    let Some(status) = &pod.status else { return Cow::Borrowed(pod) };
    let statuses: Vec<&core::ContainerStatus> =
        status.container_statuses.iter().chain(&status.init_container_statuses).flatten().collect();
    let mut pod = Cow::Borrowed(pod);
    for container in statuses {
        let own = container.resources.as_ref().and_then(|lists| lists.requests.as_ref());
        for (resource, amount) in own.into_iter().chain(&container.allocated_resources).flatten() {
            raise(&mut pod, &container.name, resource, amount);
        }
    }
    let own = status.resources.as_ref();
    let actuated = own.and_then(|lists| lists.requests.as_ref()).into_iter().flatten();
    let allocated = status.allocated_resources.iter().filter(|_| own.is_some()).flatten();
    for (resource, amount) in actuated.chain(allocated) {
        raise_own(&mut pod, resource, amount);
    }
    pod
}

/// Raises what the pod itself requests of a resource to this amount, if it is less. A resource that
/// it does not name stays the sum of its containers.
fn raise_own(pod: &mut Cow<'_, Pod>, resource: &str, amount: &ListedQuantity) {
    let Some(old) = listed(pod.spec().resources.as_ref(), resource, false) else { return };
    if !is_more(amount, old) {
        return;
    }
    let own = pod.to_mut().spec.as_mut().and_then(|spec| spec.resources.as_mut());
    if let Some(requests) = own.and_then(|lists| lists.requests.as_mut()) {
        requests.insert(resource.to_owned(), amount.clone());
    }
}

/// Returns whether a listed amount is larger than `old`; a malformed one is not.
fn is_more(amount: &ListedQuantity, old: Quantity) -> bool {
    amount.0.parse().is_ok_and(|new: Quantity| new.compare(old).is_gt())
}

/// Raises a container's request to this amount, if it is less. That of an init container that ends
/// stays.
fn raise(pod: &mut Cow<'_, Pod>, name: &str, resource: &str, amount: &ListedQuantity) {
    let Some(container) = pod.container(name) else { return };
    let old = listed(container.resources.as_ref(), resource, false).unwrap_or(Quantity::ZERO);
    let is_init = pod.init_containers().iter().any(|init| init.name == name);
    if !is_more(amount, old) || is_init && !is_restartable_init(container) {
        return;
    }
    let Some(spec) = &mut pod.to_mut().spec else { return };
    let mut all = spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten());
    if let Some(container) = all.find(|container| container.name == name) {
        let lists = container.resources.get_or_insert_default();
        let requests = lists.requests.get_or_insert_default();
        requests.insert(resource.to_owned(), amount.clone());
    }
}

/// Returns what a pod requests of the resources that a node limits, with its overhead.
fn requests(pod: &Pod) -> BTreeMap<String, i64> {
    let spec = pod.spec();
    let of_containers = pod.all_containers().map(|container| container.resources.as_ref());
    let lists = of_containers.chain([spec.resources.as_ref()]).flatten();
    let lists = lists.filter_map(|lists| lists.requests.as_ref()).chain(&spec.overhead);
    let names: BTreeSet<&String> = lists.flat_map(|list| list.keys()).collect();
    let names = names.into_iter().filter(|name| is_counted(name));
    names.map(|name| (name.clone(), pod_amount(pod, name, false))).collect()
}

/// Returns what the end of a pod frees: one pod, or what it requests. The overhead counts beside
/// requests only. Upstream: `resource.GetResourceRequest`.
pub fn freed_by(pod: &Pod, resource: &str) -> i64 {
    match resource {
        PODS => 1,
        resource if of_pod(pod, resource, false).is_zero() => 0,
        resource => pod_amount(pod, resource, false),
    }
}

/// Returns whether a node's amount of a resource limits its pods. Upstream:
/// `schedutil.IsScalarResourceName`.
fn is_counted(resource: &str) -> bool {
    OF_EVERY_NODE.contains(&resource)
        || is_extended(resource)
        || resource.contains("kubernetes.io/")
        || ["hugepages-", "attachable-volumes-"].iter().any(|prefix| resource.starts_with(prefix))
}

/// Returns whether a resource is outside Kubernetes' own. Upstream: `IsExtendedResourceName`.
fn is_extended(resource: &str) -> bool {
    resource.contains('/')
        && !resource.contains("kubernetes.io/")
        && !resource.starts_with("requests.")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: Value) -> Arc<Pod> {
        let mut spec = spec;
        if spec.get("containers").is_none() {
            spec["containers"] = json!([]);
        }
        Arc::new(serde_json::from_value(json!({"spec": spec})).expect("a pod"))
    }

    fn requesting(requests: &Value) -> Arc<Pod> {
        pod(json!({"containers": [{"name": "c", "resources": {"requests": requests}}]}))
    }

    fn found(pod: &Pod, allocatable: &Value, others: &[Arc<Pod>]) -> String {
        let node = json!({"metadata": {}, "status": {"allocatable": allocatable}});
        let node: core::Node = serde_json::from_value(node).expect("a node");
        let shown = |Shortage { resource, requested, used, capacity }| {
            format!("{resource} {requested} {used} {capacity}")
        };
        shortages(pod, &node, others).into_iter().map(shown).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn requests_are_compared_with_what_other_pods_leave() {
        let node = json!({"cpu": "10m", "memory": "20", "pods": "32", "example.com/a": "4",
                          "ephemeral-storage": "0", "hugepages-2Mi": "4Mi"});
        let used = |requests: Value| vec![requesting(&requests)];
        for (requests, others, expected) in [
            // What asks for nothing fits wherever there is a place.
            (json!({}), used(json!({"cpu": "9m", "memory": "19"})), ""),
            (json!({}), used(json!({"cpu": "90m", "memory": "190"})), ""),
            (json!({"cpu": "1m", "memory": "1"}), used(json!({"cpu": "9m", "memory": "19"})), ""),
            (
                json!({"cpu": "8m", "memory": "10"}),
                used(json!({"cpu": "5m", "memory": "19"})),
                "cpu 8 5 10, memory 10 19 20",
            ),
            (json!({"ephemeral-storage": "1"}), vec![], "ephemeral-storage 1 0 0"),
            (json!({"example.com/a": "4"}), vec![], ""),
            (
                json!({"example.com/a": "2"}),
                used(json!({"example.com/a": "3"})),
                "example.com/a 2 3 4",
            ),
            // A node without it ignores it, but not one with none.
            (json!({"example.com/b": "1"}), vec![], ""),
            (json!({"hugepages-2Mi": "6Mi"}), vec![], "hugepages-2Mi 6291456 0 4194304"),
            (json!({"hugepages-1Gi": "1Gi"}), vec![], "hugepages-1Gi 1073741824 0 0"),
            (json!({"example.kubernetes.io/x": "1"}), vec![], "example.kubernetes.io/x 1 0 0"),
            // This is not a resource of a node.
            (json!({"unknown": "1"}), vec![], ""),
            (json!({"cpu": "0"}), used(json!({"cpu": "1"})), ""),
        ] {
            assert_eq!(found(&requesting(&requests), &node, &others), expected, "{requests}");
        }
        let none = json!({"cpu": "1", "memory": "1", "pods": "1", "example.com/a": "0"});
        let of_a = requesting(&json!({"example.com/a": "1"}));
        assert_eq!(found(&of_a, &none, &[]), "example.com/a 1 0 0");
    }

    #[test]
    fn requests_count_until_the_runtime_has_taken_them_back() {
        let node = json!({"pods": "9", "cpu": "10"});
        let one = requesting(&json!({"cpu": "1"}));
        for (allocated, shown, expected) in [
            ("4", json!({"resources": {"requests": {"cpu": "9500m"}}}), "cpu 1000 9500 10000"),
            ("4", json!({"allocatedResources": {"cpu": "9500m"}}), "cpu 1000 9500 10000"),
            ("4", json!({"resources": {"requests": {"cpu": "4"}}}), ""),
            ("9500m", json!({"resources": {"requests": {"cpu": "4"}}}), "cpu 1000 9500 10000"),
        ] {
            let mut status = json!({"name": "c", "image": "", "imageID": "", "ready": true,
                                    "restartCount": 0});
            status
                .as_object_mut()
                .expect("an object")
                .extend(shown.as_object().cloned().expect("an object"));
            let mut other = Arc::unwrap_or_clone(requesting(&json!({"cpu": allocated})));
            let status = json!({"containerStatuses": [status]});
            other.status = serde_json::from_value(status.clone()).expect("a status");
            assert_eq!(found(&one, &node, &[Arc::new(other)]), expected, "{allocated} {status}");
        }
    }

    #[test]
    fn requests_of_the_pod_itself_count_until_they_are_taken_back() {
        let (one, node) = (requesting(&json!({"cpu": "1"})), json!({"pods": "9", "cpu": "10"}));
        for (status, expected) in [
            (json!({}), ""),
            (json!({"resources": {"requests": {"cpu": "9500m"}}}), "cpu 1000 9500 10000"),
            (
                json!({"resources": {}, "allocatedResources": {"cpu": "9500m"}}),
                "cpu 1000 9500 10000",
            ),
            (json!({"allocatedResources": {"cpu": "9500m"}}), ""),
            (json!({"resources": {"requests": {"memory": "1Gi"}}}), ""),
            (json!({"resources": {"requests": {"cpu": "1"}}}), ""),
        ] {
            let spec = json!({"resources": {"requests": {"cpu": "4"}}, "containers": []});
            let mut other = Arc::unwrap_or_clone(pod(spec));
            other.status = serde_json::from_value(status.clone()).expect("a status");
            assert_eq!(found(&one, &node, &[Arc::new(other)]), expected, "{status}");
        }
    }

    #[test]
    fn pods_are_counted() {
        let node = json!({"pods": "2"});
        let other = || pod(json!({}));
        assert_eq!(found(&pod(json!({})), &node, &[other()]), "");
        assert_eq!(found(&pod(json!({})), &node, &[other(), other()]), "pods 1 2 2");
        assert_eq!(found(&pod(json!({})), &json!({}), &[]), "pods 1 0 0");
    }

    #[test]
    fn requests_are_those_of_the_pod_with_overhead() {
        let node = json!({"pods": "9", "cpu": "5m"});
        let container =
            |name: &str, cpu: &str| json!({"name": name, "resources": {"requests": {"cpu": cpu}}});
        let mut sidecar = container("s", "2m");
        sidecar["restartPolicy"] = json!("Always");
        for (spec, expected) in [
            (json!({"initContainers": [container("i", "6m")]}), "cpu 6 0 5"),
            (
                json!({"initContainers": [container("i", "5m")], "containers": [container("c", "5m")]}),
                "",
            ),
            (
                json!({"initContainers": [sidecar], "containers": [container("c", "4m")]}),
                "cpu 6 0 5",
            ),
            (json!({"overhead": {"cpu": "3m"}, "containers": [container("c", "3m")]}), "cpu 6 0 5"),
            (json!({"overhead": {"cpu": "6m"}}), "cpu 6 0 5"),
            (
                json!({"resources": {"requests": {"cpu": "7m"}}, "containers": [container("c", "1m")]}),
                "cpu 7 0 5",
            ),
        ] {
            assert_eq!(found(&pod(spec.clone()), &node, &[]), expected, "{spec}");
        }
    }

    #[test]
    fn amounts_without_bound_do_not_wrap() {
        let node = json!({"pods": "9", "memory": "1Gi"});
        let huge = requesting(&json!({"memory": "9E"}));
        let expected = "memory 9000000000000000000 9223372036854775807 1073741824";
        assert_eq!(found(&huge, &node, &[huge.clone(), huge.clone()]), expected);
        let shortage = Shortage {
            resource: "memory".to_owned(),
            requested: i64::MAX,
            used: i64::MAX,
            capacity: 0,
        };
        assert_eq!(shortage.missing(), i64::MAX);
    }
}
