//! The quota usage of a Pod. Upstream: `component-helpers/resource`, `quota/v1/evaluator/core`.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::LazyLock;

use crate::objects::values::intern::{Interned, Pool};
use crate::objects::views::pod::{WireAffinity, WireResources, WireSpec, WireStatus, WireTerm};
use crate::objects::{Istr, Quantity, ResourceList};

static SPECS: LazyLock<Pool<Interned<QuotaSpec>>> = LazyLock::new(Pool::new);

/// The part of a spec that the quota usage depends on. Pods with equal parts share one copy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct QuotaSpec {
    /// The containers, then the init containers, each in their order.
    containers: Box<[Container]>,
    overhead: ResourceList,
    /// The pod-level resources.
    whole: Option<WireResources>,
    has_deadline: bool,
    priority_class: Istr,
    has_cross_namespace_affinity: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Container {
    name: Istr,
    role: Role,
    resources: WireResources,
}

impl QuotaSpec {
    /// Returns the part of a pod's spec that its quota usage depends on, shared with equal ones.
    pub(super) fn from_wire(spec: &WireSpec) -> Interned<QuotaSpec> {
        let main = spec.containers.iter().flatten().map(|container| (Role::Main, container));
        let init = spec.init_containers.iter().flatten().map(|container| {
            (if container.is_sidecar() { Role::Sidecar } else { Role::Init }, container)
        });
        let containers = main.chain(init).map(|(role, container)| Container {
            name: container.name.clone(),
            role,
            resources: container.resources.clone().unwrap_or_default(),
        });
        SPECS.intern(QuotaSpec {
            containers: containers.collect(),
            overhead: spec.overhead.clone(),
            whole: spec.resources.clone(),
            has_deadline: spec.active_deadline_seconds.is_some_and(|seconds| seconds >= 0),
            priority_class: spec.priority_class_name.clone(),
            has_cross_namespace_affinity: spec.affinity.as_ref().is_some_and(crosses_namespaces),
        })
    }

    /// Returns the requests of a pod with pod-level requests, without its overhead; empty for
    /// others. The resources of a resize in progress do not count.
    pub(super) fn requests_as_a_whole(&self) -> ResourceList {
        let mut named = self.whole.iter().flat_map(|resources| resources.requests.iter());
        match named.any(|(name, _)| counts_as_a_whole(name)) {
            true => Resources::new(self, &WireStatus::default()).requests_without_overhead(),
            false => ResourceList::default(),
        }
    }

    /// Returns whether nothing asks for CPU or memory: the pod as a whole, or its containers if it
    /// has no resources of its own.
    /// Upstream: `qos.ComputePodQOS`.
    fn is_best_effort(&self) -> bool {
        let asks = |resources: &WireResources| {
            [&resources.requests, &resources.limits].into_iter().any(|list| {
                ["cpu", "memory"]
                    .iter()
                    .any(|name| list.get(name).is_some_and(Quantity::is_positive))
            })
        };
        match &self.whole {
            Some(resources) => !asks(resources),
            None => !self.containers.iter().map(|container| &container.resources).any(asks),
        }
    }
}

/// The quota usage of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodQuota {
    /// The usage of the pod while it has not ended, under the names that quotas use (`pods`,
    /// `requests.cpu` …). Upstream: `podComputeUsageHelper`.
    pub usage: ResourceList,
    /// The usage without pod-level resources; `None` when the pod has none.
    usage_of_containers: Option<Box<ResourceList>>,
    pub is_best_effort: bool,
    /// Whether the pod has an active deadline. Upstream: `IsTerminating`.
    pub has_deadline: bool,
    pub priority_class: Istr,
    /// Upstream: `usesCrossNamespacePodAffinity`.
    pub has_cross_namespace_affinity: bool,
}

impl PodQuota {
    /// Computes what quotas charge for a pod.
    pub(super) fn from_wire(spec: &QuotaSpec, status: &WireStatus) -> PodQuota {
        let resources = Resources::new(spec, status);
        let of_containers = spec.whole.as_ref().map(|_| Resources::new(spec, status));
        let of_containers = of_containers.map(|all| Resources { is_whole: false, ..all });
        PodQuota {
            usage: resources.charged(),
            usage_of_containers: of_containers.map(|resources| Box::new(resources.charged())),
            is_best_effort: match status.qos_class.as_str() {
                "" => spec.is_best_effort(),
                class => class == "BestEffort",
            },
            has_deadline: spec.has_deadline,
            priority_class: spec.priority_class.clone(),
            has_cross_namespace_affinity: spec.has_cross_namespace_affinity,
        }
    }

    /// Returns the usage of the pod, with or without its pod-level resources, by the gate
    /// `PodLevelResources`.
    pub fn usage_by(&self, pod_level_resources: bool) -> &ResourceList {
        match &self.usage_of_containers {
            Some(usage) if !pod_level_resources => usage,
            _ => &self.usage,
        }
    }
}

/// Returns whether the pod level may request this resource. Upstream:
/// `IsSupportedPodLevelResource`.
fn counts_as_a_whole(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}

/// Requests or limits of a [`WireResources`].
type Part = fn(&WireResources) -> &ResourceList;

/// The resources of a pod, including a resize in progress.
struct Resources<'a> {
    spec: &'a QuotaSpec,
    /// The actual resources of each container, from its status, and its allocated requests.
    actual: HashMap<&'a str, (&'a WireResources, &'a ResourceList)>,
    is_infeasible: bool,
    /// Whether pod-level resources count.
    is_whole: bool,
}

impl<'a> Resources<'a> {
    /// Makes the resources of a pod from its spec and from those that its status reports for the
    /// containers.
    fn new(spec: &'a QuotaSpec, status: &'a WireStatus) -> Resources<'a> {
        let statuses = [&status.container_statuses, &status.init_container_statuses];
        let actual = statuses.into_iter().flatten().flatten().filter_map(|status| {
            let actual = status.resources.as_ref()?;
            Some((status.name.as_str(), (actual, &status.allocated_resources)))
        });
        let pending = status.condition("PodResizePending");
        Resources {
            spec,
            actual: actual.collect(),
            is_infeasible: pending.is_some_and(|pending| pending.reason == "Infeasible"),
            is_whole: true,
        }
    }

    /// Returns the usage under the names of quotas.
    fn charged(&self) -> ResourceList {
        charged(&self.requests(), &self.limits())
    }

    /// Returns the requests with the overhead. Upstream: `PodRequests`.
    fn requests(&self) -> ResourceList {
        let mut requests = self.requests_without_overhead();
        requests.add(&self.spec.overhead);
        requests
    }

    /// Sums the requests; a container counts with the largest of what it asks for, has and is
    /// promised.
    fn requests_without_overhead(&self) -> ResourceList {
        self.sum(
            |resources| &resources.requests,
            |asked, actual, promised| {
                let mut requests = actual.clone();
                requests.raise(promised);
                if !self.is_infeasible {
                    requests.raise(asked);
                }
                requests
            },
        )
    }

    /// Sums the limits, with the overhead for those that are set.
    /// Upstream: `PodLimits`.
    fn limits(&self) -> ResourceList {
        let mut limits = self.sum(
            |resources| &resources.limits,
            |asked, actual, _| {
                let mut limits = actual.clone();
                if !self.is_infeasible {
                    limits.raise(asked);
                }
                limits
            },
        );
        for (name, overhead) in self.spec.overhead.iter() {
            if limits.get(name).is_some_and(|limit| !limit.is_zero()) {
                limits.add_to(name, overhead);
            }
        }
        limits
    }

    /// Returns the largest need of the pod at one time: its containers and sidecars together, or an
    /// init container and the sidecars before it. Pod-level resources replace both. `effective`:
    /// computes what a container counts with from what it asks for, has and is promised.
    fn sum(
        &self,
        part: Part,
        effective: impl Fn(&ResourceList, &ResourceList, &ResourceList) -> ResourceList,
    ) -> ResourceList {
        let mut needs: Vec<(Istr, Role, Quantity)> = Vec::new();
        for Container { name, role, resources } in &self.spec.containers {
            let asked = part(resources);
            // An init container that ends is not resized.
            let actual = self.actual.get(name.as_str()).filter(|_| *role != Role::Init);
            let needed = match actual {
                Some((actual, promised)) => Cow::Owned(effective(asked, part(actual), promised)),
                None => Cow::Borrowed(asked),
            };
            needs.extend(needed.iter().map(|(name, amount)| (name.clone(), *role, amount)));
        }
        // Each resource is computed separately, so that the number of different names does not
        // matter.
        needs.sort_by(|(a, ..), (b, ..)| a.cmp(b));
        let by_name = needs.chunk_by(|(a, ..), (b, ..)| a == b);
        let mut sum: ResourceList =
            by_name.map(|needs| (needs[0].0.clone(), largest_need(needs))).collect();
        let pod_level = self.spec.whole.iter().filter(|_| self.is_whole);
        let pod_level = pod_level.flat_map(|resources| part(resources).iter());
        for (name, amount) in pod_level {
            if counts_as_a_whole(name) {
                sum.insert(name.clone(), amount);
            }
        }
        sum
    }
}

/// The role of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Role {
    Main,
    Sidecar,
    /// Runs to its end before the next one begins.
    Init,
}

/// Returns the largest need of one resource at one time, from the needs of the containers in their
/// order (at least one).
fn largest_need(needs: &[(Istr, Role, Quantity)]) -> Quantity {
    let sum = |one: Option<Quantity>, other| one.map_or(other, |one| one + other);
    let (mut together, mut sidecars, mut at_start) = (None, None, None);
    let mut raise_start = |amount: Quantity| match at_start {
        Some(known) if amount.compare(known) != Ordering::Greater => {}
        _ => at_start = Some(amount),
    };
    for (_, role, amount) in needs {
        match role {
            Role::Main => together = Some(sum(together, *amount)),
            Role::Sidecar => {
                together = Some(sum(together, *amount));
                let before = sum(sidecars, *amount);
                sidecars = Some(before);
                raise_start(before);
            }
            Role::Init => raise_start(sidecars.map_or(*amount, |sidecars| *amount + sidecars)),
        }
    }
    match (together, at_start) {
        (Some(together), Some(start)) if start.compare(together) == Ordering::Greater => start,
        (together, start) => together.or(start).unwrap_or_default(),
    }
}

static PODS: LazyLock<Istr> = LazyLock::new(|| Istr::new("pods"));

/// The names `requests.cpu`, `limits.cpu` and so on of the most common resources.
static PREFIXED: LazyLock<[[Istr; 3]; 3]> = LazyLock::new(|| {
    ["cpu", "memory", "ephemeral-storage"].map(|name| {
        [name.to_owned(), format!("requests.{name}"), format!("limits.{name}")].map(Istr::from)
    })
});

/// Returns `requests.cpu` for `cpu`, for example; common names are interned.
fn with_prefix(prefix: &str, name: &Istr) -> Istr {
    if let Some([_, requests, limits]) = PREFIXED.iter().find(|[plain, ..]| plain == name) {
        for known in [requests, limits] {
            if known.starts_with(prefix) {
                return known.clone();
            }
        }
    }
    format!("{prefix}{name}").into()
}

/// Returns the usage under the names of quotas.
/// Upstream: `podComputeUsageHelper`.
fn charged(requests: &ResourceList, limits: &ResourceList) -> ResourceList {
    let mut charged = vec![(PODS.clone(), Quantity::ONE)];
    for (name, amount) in requests.iter() {
        let is_compute = matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage")
            || name.starts_with("hugepages-");
        if is_compute {
            charged.push((name.clone(), amount));
        }
        if is_compute || is_extended(name) {
            charged.push((with_prefix("requests.", name), amount));
        }
    }
    for (name, amount) in limits.iter() {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
            charged.push((with_prefix("limits.", name), amount));
        }
    }
    charged.into_iter().collect()
}

/// Returns whether a resource is an extended one. Upstream: `IsDRAExtendedResourceName`.
fn is_extended(name: &str) -> bool {
    let is_native = !name.contains('/') || name.contains("kubernetes.io/");
    name.starts_with("deviceclass.resource.kubernetes.io/")
        || !is_native && !name.starts_with("requests.")
}

/// Returns whether an affinity term selects pods of other namespaces.
fn crosses_namespaces(affinity: &WireAffinity) -> bool {
    let crosses = |term: &WireTerm| {
        term.namespaces.iter().flatten().next().is_some() || term.namespace_selector.is_some()
    };
    [&affinity.pod_affinity, &affinity.pod_anti_affinity].into_iter().flatten().any(|terms| {
        terms.required.iter().flatten().any(crosses)
            || terms.preferred.iter().flatten().any(|term| crosses(&term.pod_affinity_term))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::objects::Pod;

    fn pod(spec: Value, status: Value) -> Pod {
        serde_json::from_value(json!({ "spec": spec, "status": status })).unwrap()
    }

    fn usage(spec: Value, status: Value) -> String {
        let pod = pod(spec, status);
        let usage = &pod.quota().usage;
        usage.iter().map(|(name, amount)| format!("{name}={amount}")).collect::<Vec<_>>().join(" ")
    }

    fn c(name: &str, cpu: &str) -> Value {
        json!({ "name": name, "resources": { "requests": { "cpu": cpu } } })
    }

    fn sidecar(name: &str, cpu: &str) -> Value {
        let mut container = c(name, cpu);
        container["restartPolicy"] = "Always".into();
        container
    }

    /// Each resource is computed separately: the resources of preceding sidecars do not matter.
    #[test]
    fn resources_that_few_containers_name_are_charged_too() {
        let names = |name: &str, requests: Value| json!({ "name": name, "resources": { "requests": requests } });
        let mut side = names("s", json!({ "b/x": "2" }));
        side["restartPolicy"] = "Always".into();
        let spec = json!({
            "initContainers": [
                names("before", json!({ "b/x": "4", "c/x": "1" })),
                side,
                names("behind", json!({ "b/x": "3", "d/x": "7" })),
            ],
            "containers": [names("z", json!({ "e/x": "1" })), names("y", json!({ "a/x": "1", "b/x": "1" }))],
        });
        let expected =
            "pods=1 requests.a/x=1 requests.b/x=5 requests.c/x=1 requests.d/x=7 requests.e/x=1";
        assert_eq!(usage(spec, json!({})), expected);
    }

    #[test]
    fn a_pod_is_charged_what_it_may_need_at_once() {
        for (what, spec, expected) in [
            ("nothing asked", json!({ "containers": [{ "name": "a" }] }), "pods=1"),
            (
                "containers together",
                json!({ "containers": [c("a", "100m"), c("b", "900m")] }),
                "cpu=1 pods=1 requests.cpu=1",
            ),
            (
                "an init container alone is more",
                json!({ "containers": [c("a", "1")], "initContainers": [c("i", "3"), c("j", "2")] }),
                "cpu=3 pods=1 requests.cpu=3",
            ),
            (
                "a sidecar runs beside what comes after it",
                json!({
                    "containers": [c("a", "1")],
                    "initContainers": [c("i", "2500m"), sidecar("s", "1"), c("j", "2")],
                }),
                "cpu=3 pods=1 requests.cpu=3",
            ),
            (
                "overhead, on limits only where there are some",
                json!({
                    "containers": [{ "name": "a", "resources": {
                        "requests": { "cpu": "1", "memory": "1Gi" }, "limits": { "cpu": "2" },
                    } }],
                    "overhead": { "cpu": "100m", "memory": "1Mi" },
                }),
                "cpu=1100m limits.cpu=2100m memory=1025Mi pods=1 requests.cpu=1100m \
                 requests.memory=1025Mi",
            ),
            (
                "the pod's own resources replace those of its containers",
                json!({
                    "containers": [c("a", "1"), c("b", "1")],
                    "resources": { "requests": { "cpu": "5", "x.io/y": "1" }, "limits": { "memory": "1Gi" } },
                }),
                "cpu=5 limits.memory=1Gi pods=1 requests.cpu=5",
            ),
            (
                "extended resources and huge pages",
                json!({ "containers": [{ "name": "a", "resources": { "requests": {
                    "example.com/gpu": "2", "hugepages-2Mi": "4Mi", "ephemeral-storage": "1Gi",
                    "kubernetes.io/batch": "1", "deviceclass.resource.kubernetes.io/x": "1",
                } } }] }),
                "ephemeral-storage=1Gi hugepages-2Mi=4Mi pods=1 \
                 requests.deviceclass.resource.kubernetes.io/x=1 requests.ephemeral-storage=1Gi \
                 requests.example.com/gpu=2 requests.hugepages-2Mi=4Mi",
            ),
        ] {
            assert_eq!(usage(spec, json!({})), expected, "{what}");
        }
    }

    #[test]
    fn a_resize_counts_with_the_larger_of_what_is_and_what_is_asked() {
        let status = |actual: &str, promised: &str| {
            json!({ "containerStatuses": [{
                "name": "a", "allocatedResources": { "cpu": promised },
                "resources": { "requests": { "cpu": actual }, "limits": { "cpu": actual } },
            }] })
        };
        let spec = || json!({ "containers": [c("a", "2")] });
        assert_eq!(usage(spec(), status("1", "1")), "cpu=2 limits.cpu=1 pods=1 requests.cpu=2");
        assert_eq!(usage(spec(), status("3", "1")), "cpu=3 limits.cpu=3 pods=1 requests.cpu=3");
        assert_eq!(usage(spec(), status("1", "4")), "cpu=4 limits.cpu=1 pods=1 requests.cpu=4");
        let mut infeasible = status("1", "1");
        infeasible["conditions"] = json!([{
            "type": "PodResizePending", "status": "True", "reason": "Infeasible",
        }]);
        assert_eq!(usage(spec(), infeasible), "cpu=1 limits.cpu=1 pods=1 requests.cpu=1");
        // Among init containers, only the status of sidecars counts.
        let init = |container: Value| json!({ "initContainers": [container] });
        let mut actual = status("3", "3");
        actual["initContainerStatuses"] = actual["containerStatuses"].take();
        assert_eq!(usage(init(c("a", "1")), actual.clone()), "cpu=1 pods=1 requests.cpu=1");
        let sidecar = usage(init(sidecar("a", "1")), actual);
        assert_eq!(sidecar, "cpu=3 limits.cpu=3 pods=1 requests.cpu=3");
    }

    #[test]
    fn what_scopes_ask_for() {
        let best_effort = |spec: Value, class: &str| {
            pod(spec, json!({ "qosClass": class })).quota().is_best_effort
        };
        assert!(best_effort(json!({ "containers": [c("a", "0")] }), ""));
        assert!(!best_effort(json!({ "containers": [c("a", "1m")] }), ""));
        assert!(!best_effort(json!({ "initContainers": [c("a", "1m")] }), ""));
        assert!(best_effort(json!({ "containers": [c("a", "1m")], "resources": {} }), ""));
        assert!(best_effort(json!({ "containers": [c("a", "1m")] }), "BestEffort"));
        assert!(!best_effort(json!({}), "Burstable"));

        let deadline = |seconds: Value| {
            pod(json!({ "activeDeadlineSeconds": seconds }), json!({})).quota().has_deadline
        };
        assert_eq!([json!(0), json!(5), Value::Null].map(deadline), [true, true, false]);

        let crosses = |kind: &str, term: Value| {
            let list = match kind {
                "required" => json!([term]),
                _ => json!([{ "weight": 1, "podAffinityTerm": term }]),
            };
            let field = format!("{kind}DuringSchedulingIgnoredDuringExecution");
            let spec = json!({ "affinity": { "podAntiAffinity": { field: list } } });
            pod(spec, json!({})).quota().has_cross_namespace_affinity
        };
        assert!(!crosses("required", json!({ "topologyKey": "x", "namespaces": [] })));
        assert!(crosses("required", json!({ "namespaces": ["a"] })));
        assert!(crosses("preferred", json!({ "namespaceSelector": {} })));
        assert!(!crosses("preferred", json!({ "namespaceSelector": null })));
    }

    #[test]
    fn pods_of_one_template_and_state_share_their_usage() {
        let spec = || json!({ "containers": [c("shared", "123m")], "priorityClassName": "high" });
        let status = |second| json!({ "startTime": format!("2026-01-01T00:00:0{second}Z") });
        let (one, two) = (pod(spec(), status(1)), pod(spec(), status(2)));
        assert!(std::ptr::eq(one.quota(), two.quota()));
        assert_eq!(one.quota().priority_class, "high");
    }
}
