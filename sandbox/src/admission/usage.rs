//! Measures what a new object adds to the usage of quotas: which resources, how much of each, and
//! in which scopes. Upstream: `pkg/quota/v1/evaluator/core`. Independent of the quota controller's
//! own count, so that a fault in one shows as a difference to the other.

use serde_json::Value;

use super::is_core;
use crate::kinds::Kind;
use crate::object::{list, text};
use kube_controller_manager::objects::{Labels, Quantity, ResourceList, ScopeRequirement};

/// Kinds with a quota resource under their bare name. Upstream: `legacyObjectCountAliases`.
const ALIASES: [&str; 4] = ["configmaps", "resourcequotas", "replicationcontrollers", "secrets"];
const STORAGE_CLASS: &str = ".storageclass.storage.k8s.io/";
const DEVICES_OF_CLASS: &str = ".deviceclass.resource.k8s.io/devices";
/// How many devices a request for all counts for. Upstream: `AllocationResultsMaxSize`.
const ALL_DEVICES: i64 = 32;
const COMPUTE: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// Measures one new object. Upstream: `quota.Evaluator`.
pub struct Evaluator<'a> {
    kind: &'a Kind,
    object: &'a Value,
    measured: Measured,
}

enum Measured {
    Pod,
    Service,
    Claim,
    Devices,
    /// Objects that are only counted.
    Count,
}

impl<'a> Evaluator<'a> {
    /// Creates the evaluator of an object; how it is measured depends on its kind.
    pub fn new(kind: &'a Kind, object: &'a Value) -> Evaluator<'a> {
        let measured = match &*kind.resource.plural {
            "pods" if is_core(kind, "pods") => Measured::Pod,
            "services" if is_core(kind, "services") => Measured::Service,
            "persistentvolumeclaims" if is_core(kind, "persistentvolumeclaims") => Measured::Claim,
            "resourceclaims" if kind.resource.group == "resource.k8s.io" => Measured::Devices,
            _ => Measured::Count,
        };
        Evaluator { kind, object, measured }
    }

    /// Returns the name by which quotas limit the number of objects, such as `count/pods`.
    fn count_name(&self) -> String {
        format!("count/{}", self.kind.resource)
    }

    /// Returns whether quotas may limit `name` for this kind. Upstream: `MatchingResources`.
    pub fn measures(&self, name: &str) -> bool {
        if name == self.count_name() {
            return true;
        }
        match self.measured {
            Measured::Pod => {
                let bare = name.strip_prefix("requests.").unwrap_or(name);
                name == "pods"
                    || COMPUTE.contains(&bare)
                    || bare.starts_with("hugepages-")
                    || name.strip_prefix("limits.").is_some_and(|name| COMPUTE.contains(&name))
                    || name.strip_prefix("requests.").is_some_and(is_extended)
            }
            Measured::Service => {
                matches!(name, "services" | "services.nodeports" | "services.loadbalancers")
            }
            Measured::Claim => {
                let name = name.rsplit_once(STORAGE_CLASS).map_or(name, |(_, name)| name);
                matches!(name, "persistentvolumeclaims" | "requests.storage")
            }
            Measured::Devices => name.ends_with(DEVICES_OF_CLASS),
            Measured::Count => ALIASES.contains(&name) && is_core(self.kind, name),
        }
    }

    /// Returns what one object of the kind uses, by resource; it always includes the object count.
    /// Upstream: `Usage`.
    pub fn usage(&self) -> ResourceList {
        let mut usage = match self.measured {
            Measured::Pod => pod_usage(self.object),
            Measured::Service => service_usage(self.object),
            Measured::Claim => claim_usage(self.object),
            Measured::Devices => device_usage(self.object),
            Measured::Count => {
                let alias = ALIASES.into_iter().find(|alias| is_core(self.kind, alias));
                alias.into_iter().map(|alias| (alias.to_owned(), Quantity::ONE)).collect()
            }
        };
        usage.insert(self.count_name(), Quantity::ONE);
        usage
    }

    /// Returns whether the object is in the quota's `scope`. Scopes that do not apply to the kind,
    /// and malformed ones, contain nothing. Upstream: `podMatchesScopeFunc`, `pvcMatchesScopeFunc`.
    pub fn is_in_scope(&self, scope: &ScopeRequirement) -> bool {
        let spec = &self.object["spec"];
        let has_deadline = || spec["activeDeadlineSeconds"].as_i64().is_some_and(|it| it >= 0);
        match (&self.measured, scope.scope_name.as_str()) {
            (Measured::Pod, "Terminating") => has_deadline(),
            (Measured::Pod, "NotTerminating") => !has_deadline(),
            (Measured::Pod, "BestEffort") => is_best_effort(self.object),
            (Measured::Pod, "NotBestEffort") => !is_best_effort(self.object),
            (Measured::Pod, "CrossNamespacePodAffinity") => crosses_namespaces(self.object),
            (Measured::Pod, "PriorityClass") => {
                selects(scope, &[text(self.object, "/spec/priorityClassName")])
            }
            (Measured::Claim, "VolumeAttributesClass") => {
                let at =
                    ["/spec/volumeAttributesClassName", "/status/currentVolumeAttributesClassName"];
                selects(scope, &at.map(|at| text(self.object, at)))
            }
            _ => false,
        }
    }
}

/// Returns whether the scope's requirement selects one of the classes; an empty name means no
/// class.
fn selects(scope: &ScopeRequirement, classes: &[&str]) -> bool {
    let Ok(selector) = scope.selector() else { return false };
    let mut named = classes.iter().filter(|class| !class.is_empty()).peekable();
    if named.peek().is_none() {
        // No class: only `DoesNotExist` and `NotIn` select it.
        return selector.matches(&Labels::default());
    }
    named.any(|class| {
        selector.matches(&[(scope.scope_name.as_str(), *class)].into_iter().collect::<Labels>())
    })
}

/// Returns the quantities of a map by resource name; other values are left out.
pub fn amounts(map: &Value) -> ResourceList {
    let entries = map.as_object().into_iter().flatten();
    let amount = |value: &Value| value.as_str().and_then(|text| text.parse::<Quantity>().ok());
    entries.filter_map(|(name, value)| Some((name.clone(), amount(value)?))).collect()
}

/// Returns whether a pod as a whole can request this resource.
fn is_pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}

/// Returns whether the pod sets resources for itself as a whole. Upstream:
/// `IsPodLevelResourcesSet`.
pub fn has_pod_resources(pod: &Value) -> bool {
    ["requests", "limits"].into_iter().any(|part| {
        amounts(&pod["spec"]["resources"][part]).iter().any(|(name, _)| is_pod_level(name))
    })
}

/// Returns whether a resource is outside Kubernetes' own, or a device class. Upstream:
/// `IsDRAExtendedResourceName`.
fn is_extended(name: &str) -> bool {
    let is_native = !name.contains('/') || name.contains("kubernetes.io/");
    name.starts_with("deviceclass.resource.kubernetes.io/")
        || (!is_native && !name.starts_with("requests."))
}

/// Returns what a pod uses: its requests, with and without the prefix `requests.`, and its limits.
/// Upstream: `podComputeUsageHelper`.
fn pod_usage(pod: &Value) -> ResourceList {
    let mut usage = ResourceList::default();
    usage.insert("pods", Quantity::ONE);
    for (name, amount) in pod_total(pod, "requests").iter() {
        let is_compute = COMPUTE.contains(&name.as_str()) || name.starts_with("hugepages-");
        if is_compute {
            usage.insert(name.clone(), amount);
        }
        if is_compute || is_extended(name) {
            usage.insert(format!("requests.{name}"), amount);
        }
    }
    let limits = pod_total(pod, "limits");
    for (name, amount) in limits.iter().filter(|(name, _)| COMPUTE.contains(&name.as_str())) {
        usage.insert(format!("limits.{name}"), amount);
    }
    usage
}

/// Returns the total requests or limits of a new pod: the larger of the sum of the containers that
/// run together and the need of the init containers; pod-level values replace that, and the
/// overhead is added. Upstream: `PodRequests`, `PodLimits`.
fn pod_total(pod: &Value, part: &str) -> ResourceList {
    let amounts_of = |container: &Value| amounts(&container["resources"][part]);
    let mut running = ResourceList::default();
    for container in list(pod, "/spec/containers") {
        running.add(&amounts_of(container));
    }
    let (mut sidecars, mut starting) = (ResourceList::default(), ResourceList::default());
    for container in list(pod, "/spec/initContainers") {
        let mut needs = amounts_of(container);
        if text(container, "/restartPolicy") == "Always" {
            running.add(&needs);
            sidecars.add(&needs);
            needs = sidecars.clone();
        } else {
            needs.add(&sidecars);
        }
        starting.raise(&needs);
    }
    let mut total = running;
    total.raise(&starting);
    let whole = amounts(&pod["spec"]["resources"][part]);
    for (name, amount) in whole.iter().filter(|(name, _)| is_pod_level(name)) {
        total.insert(name.clone(), amount);
    }
    for (name, overhead) in amounts(&pod["spec"]["overhead"]).iter() {
        // A resource without a limit stays without one.
        if part == "requests" || total.get(name).is_some_and(|limit| !limit.is_zero()) {
            total.add_to(name, overhead);
        }
    }
    total
}

/// Returns whether no container, nor the pod as a whole, asks for CPU or memory. Upstream:
/// `qos.ComputePodQOS`.
fn is_best_effort(pod: &Value) -> bool {
    let asks = |resources: &Value| {
        ["requests", "limits"].into_iter().any(|part| {
            let amounts = amounts(&resources[part]);
            ["cpu", "memory"]
                .into_iter()
                .any(|it| amounts.get(it).is_some_and(Quantity::is_positive))
        })
    };
    if pod["spec"]["resources"].is_object() {
        return !asks(&pod["spec"]["resources"]);
    }
    let containers = ["/spec/containers", "/spec/initContainers"].into_iter();
    !containers.flat_map(|at| list(pod, at)).any(|container| asks(&container["resources"]))
}

/// Returns whether a pod (anti-)affinity term names namespaces or selects them by label. Upstream:
/// `usesCrossNamespacePodAffinity`.
fn crosses_namespaces(pod: &Value) -> bool {
    let crosses = |term: &Value| {
        !list(term, "/namespaces").is_empty() || term["namespaceSelector"].is_object()
    };
    ["podAffinity", "podAntiAffinity"].into_iter().any(|field| {
        let affinity = &pod["spec"]["affinity"][field];
        let required = list(affinity, "/requiredDuringSchedulingIgnoredDuringExecution");
        let preferred = list(affinity, "/preferredDuringSchedulingIgnoredDuringExecution");
        required.iter().any(crosses)
            || preferred.iter().any(|term| crosses(&term["podAffinityTerm"]))
    })
}

/// Returns what a service uses: one service, its node ports and its load balancer. Upstream:
/// `serviceEvaluator.Usage`.
fn service_usage(service: &Value) -> ResourceList {
    let ports = list(service, "/spec/ports");
    let explicit =
        || ports.iter().filter(|port| port["nodePort"].as_i64().unwrap_or(0) != 0).count();
    let (node_ports, balancers) = match text(service, "/spec/type") {
        "NodePort" => (ports.len(), 0),
        "LoadBalancer" if service["spec"]["allocateLoadBalancerNodePorts"] == false => {
            (explicit(), 1)
        }
        "LoadBalancer" => (ports.len(), 1),
        _ => (0, 0),
    };
    let mut usage = ResourceList::default();
    usage.insert("services", Quantity::ONE);
    usage.insert("services.nodeports", Quantity::new(node_ports as i64));
    usage.insert("services.loadbalancers", Quantity::new(balancers));
    usage
}

/// Returns what a claim uses: one claim and its storage, both also under its storage class.
/// Upstream: `pvcEvaluator.Usage`.
fn claim_usage(claim: &Value) -> ResourceList {
    let mut usage = ResourceList::default();
    usage.insert("persistentvolumeclaims", Quantity::ONE);
    if let Some(storage) = amounts(&claim["spec"]["resources"]["requests"]).get("storage") {
        usage.insert("requests.storage", storage.rounded_up());
    }
    let beta = "/metadata/annotations/volume.beta.kubernetes.io~1storage-class";
    let named = claim.pointer(beta).and_then(Value::as_str);
    let class = named.unwrap_or_else(|| text(claim, "/spec/storageClassName"));
    if !class.is_empty() {
        for (name, amount) in usage.clone().iter() {
            usage.insert(format!("{class}{STORAGE_CLASS}{name}"), amount);
        }
    }
    usage
}

/// Returns how many devices a claim uses, by device class; of the alternatives of a request, the
/// largest counts for each class. Upstream: `claimEvaluator.Usage`, without extended resources.
fn device_usage(claim: &Value) -> ResourceList {
    let mut usage = ResourceList::default();
    for request in list(claim, "/spec/devices/requests") {
        let mut most = ResourceList::default();
        for wanted in list(request, "/firstAvailable").iter().chain(request.get("exactly")) {
            let count = match text(wanted, "/allocationMode") {
                "ExactCount" => wanted["count"].as_i64().unwrap_or_default(),
                "All" => ALL_DEVICES,
                _ => 0,
            };
            let mut one = ResourceList::default();
            let class = text(wanted, "/deviceClassName");
            one.insert(format!("{class}{DEVICES_OF_CLASS}"), Quantity::new(count));
            most.raise(&one);
        }
        usage.add(&most);
    }
    usage
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::builtin;

    fn kind(plural: &str) -> Kind {
        builtin().into_iter().find(|kind| kind.resource.plural == plural).unwrap()
    }

    fn usage(plural: &str, object: Value) -> String {
        let kind = kind(plural);
        let usage = Evaluator::new(&kind, &object).usage();
        let evaluator = Evaluator::new(&kind, &object);
        assert!(usage.iter().all(|(name, _)| evaluator.measures(name)), "{usage:?}");
        usage.iter().map(|(name, amount)| format!("{name}={amount}")).collect::<Vec<_>>().join(" ")
    }

    fn pod(spec: Value) -> String {
        usage("pods", json!({ "spec": spec }))
    }

    fn c(name: &str, cpu: &str) -> Value {
        json!({ "name": name, "resources": { "requests": { "cpu": cpu } } })
    }

    #[test]
    fn pods_are_charged_for_their_peak() {
        let mut sidecar = c("s", "1");
        sidecar["restartPolicy"] = "Always".into();
        for (case, spec, expected) in [
            ("no requests", json!({ "containers": [{ "name": "a" }] }), "count/pods=1 pods=1"),
            (
                "containers run together",
                json!({ "containers": [c("a", "100m"), c("b", "900m")] }),
                "count/pods=1 cpu=1 pods=1 requests.cpu=1",
            ),
            (
                "init containers run one after another",
                json!({ "containers": [c("a", "1")], "initContainers": [c("i", "3"), c("j", "2")] }),
                "count/pods=1 cpu=3 pods=1 requests.cpu=3",
            ),
            (
                "a sidecar runs beside the init containers after it",
                json!({
                    "containers": [c("a", "1")],
                    "initContainers": [c("i", "2500m"), sidecar, c("j", "2")],
                }),
                "count/pods=1 cpu=3 pods=1 requests.cpu=3",
            ),
            (
                "overhead adds to requests and to existing limits",
                json!({
                    "containers": [{ "name": "a", "resources": {
                        "requests": { "cpu": "1", "memory": "1Gi" }, "limits": { "cpu": "2" },
                    } }],
                    "overhead": { "cpu": "100m", "memory": "1Mi" },
                }),
                "count/pods=1 cpu=1100m limits.cpu=2100m memory=1025Mi pods=1 requests.cpu=1100m \
                 requests.memory=1025Mi",
            ),
            (
                "pod-level resources replace the containers' sum",
                json!({
                    "containers": [c("a", "1"), c("b", "1")],
                    "resources": { "requests": { "cpu": "5", "x.io/y": "1" }, "limits": { "memory": "1Gi" } },
                }),
                "count/pods=1 cpu=5 limits.memory=1Gi pods=1 requests.cpu=5",
            ),
            (
                "extended resources and huge pages",
                json!({ "containers": [{ "name": "a", "resources": { "requests": {
                    "example.com/gpu": "2", "hugepages-2Mi": "4Mi", "kubernetes.io/batch": "1",
                    "deviceclass.resource.kubernetes.io/x": "1",
                } } }] }),
                "count/pods=1 hugepages-2Mi=4Mi pods=1 requests.deviceclass.resource.kubernetes.io/x=1 \
                 requests.example.com/gpu=2 requests.hugepages-2Mi=4Mi",
            ),
        ] {
            assert_eq!(pod(spec), expected, "{case}");
        }
    }

    #[test]
    fn services_and_claims_are_charged() {
        let service = |spec: Value| usage("services", json!({ "spec": spec }));
        for (spec, [node_ports, balancers]) in [
            (json!({ "type": "ClusterIP", "ports": [{}, {}] }), [0, 0]),
            (json!({ "type": "NodePort", "ports": [{}, {}] }), [2, 0]),
            (json!({ "type": "LoadBalancer", "ports": [{}] }), [1, 1]),
            (
                json!({ "type": "LoadBalancer", "allocateLoadBalancerNodePorts": false,
                    "ports": [{ "nodePort": 30000 }, {}] }),
                [1, 1],
            ),
        ] {
            assert_eq!(
                service(spec),
                format!(
                    "count/services=1 services=1 services.loadbalancers={balancers} services.nodeports={node_ports}"
                )
            );
        }
        let claim = json!({ "spec": {
            "storageClassName": "gold", "resources": { "requests": { "storage": "1500m" } } } });
        assert_eq!(
            usage("persistentvolumeclaims", claim),
            "count/persistentvolumeclaims=1 gold.storageclass.storage.k8s.io/persistentvolumeclaims=1 \
             gold.storageclass.storage.k8s.io/requests.storage=2 persistentvolumeclaims=1 requests.storage=2"
        );
        let wants = |mode: &str, count: i64| json!({ "deviceClassName": "gold", "allocationMode": mode, "count": count });
        let requests = json!([
            { "exactly": wants("ExactCount", 2) },
            { "firstAvailable": [wants("ExactCount", 3), wants("ExactCount", 1)] },
            { "exactly": { "deviceClassName": "tin", "allocationMode": "All" } },
        ]);
        assert_eq!(
            usage("resourceclaims", json!({ "spec": { "devices": { "requests": requests } } })),
            "count/resourceclaims.resource.k8s.io=1 gold.deviceclass.resource.k8s.io/devices=5 \
             tin.deviceclass.resource.k8s.io/devices=32"
        );
        assert_eq!(usage("secrets", json!({})), "count/secrets=1 secrets=1");
        assert_eq!(usage("deployments", json!({})), "count/deployments.apps=1");
    }

    #[test]
    fn scopes_match_pods() {
        let scope = |name: &str, operator: &str, values: &[&str]| ScopeRequirement {
            scope_name: name.into(),
            operator: operator.into(),
            values: values.iter().map(|value| (*value).into()).collect(),
        };
        let matches = |spec: Value, scope: &ScopeRequirement| {
            Evaluator::new(&kind("pods"), &json!({ "spec": spec })).is_in_scope(scope)
        };
        let exists = |name: &str| scope(name, "Exists", &[]);
        let asking = || json!({ "containers": [c("a", "1m")] });
        for (spec, name, expected) in [
            (json!({ "activeDeadlineSeconds": 0 }), "Terminating", true),
            (json!({}), "Terminating", false),
            (json!({}), "NotTerminating", true),
            (json!({ "containers": [c("a", "0")] }), "BestEffort", true),
            (asking(), "BestEffort", false),
            (asking(), "NotBestEffort", true),
            (json!({ "containers": [c("a", "1m")], "resources": {} }), "BestEffort", true),
            (json!({}), "CrossNamespacePodAffinity", false),
            (
                json!({ "affinity": { "podAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution":
                        [{ "podAffinityTerm": { "namespaceSelector": {} } }] } } }),
                "CrossNamespacePodAffinity",
                true,
            ),
            (json!({ "priorityClassName": "high" }), "PriorityClass", true),
            (json!({}), "PriorityClass", false),
            (json!({}), "VolumeAttributesClass", false),
        ] {
            assert_eq!(matches(spec.clone(), &exists(name)), expected, "{name} {spec}");
        }
        let high = || json!({ "priorityClassName": "high" });
        for (operator, values, with, without) in [
            ("In", &["high"][..], true, false),
            ("In", &["low"], false, false),
            ("NotIn", &["high"], false, true),
            ("DoesNotExist", &[], false, true),
            ("Near", &[], false, false),
        ] {
            let scope = scope("PriorityClass", operator, values);
            assert_eq!(matches(high(), &scope), with, "{scope:?}");
            assert_eq!(matches(json!({}), &scope), without, "{scope:?}");
        }
    }
}
