//! The resources that a pod and its containers have, as their status shows them. Upstream:
//! `convertContainerStatusResources`, `convertToAPIPodLevelResourcesStatus`.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Listed;
use kube_controller_manager::objects::{Format, Quantity};

use crate::cgroups::PodLimits;
use crate::node::resources::bytes;
use crate::pod::{Pod, PodExt, listed, of_pod, quantity};
use crate::runtime::spec::milli_of_shares;
use crate::runtime::status::Reported;

/// Limits of CPU up to this, in millis, are one to the kernel. Upstream: `MinMilliCPULimit`.
const MIN_MILLI_LIMIT: i64 = 10;
/// Requests of CPU up to this, in millis, are one to the kernel. Upstream: `MinShares`.
const MIN_MILLI_REQUEST: i64 = 2;
/// The period of CPU quotas in microseconds.
const CPU_PERIOD: i64 = 100_000;

/// A list of requests or limits.
type List = BTreeMap<String, Listed>;

fn milli(count: i64) -> Quantity {
    Quantity::from_milli(count, Format::DecimalSi)
}

/// Sets what the kernel does in place of what was asked for, unless the difference is only that it
/// rounds amounts below `smallest` up.
fn set_cpu(list: &mut List, actual: i64, smallest: i64) {
    let asked = quantity(list, "cpu").map_or(0, |asked| asked.milli_value());
    if actual > smallest || asked > smallest {
        list.insert("cpu".to_owned(), Listed(milli(actual).to_string()));
    }
}

/// Computes the resources in the status of a running container. `allocated`: what it is to have;
/// `actuated`: what it was given; `before`: what its last status shows.
pub(super) fn of_container(
    allocated: &ResourceRequirements,
    reported: Reported,
    actuated: Option<&ResourceRequirements>,
    before: Option<&ResourceRequirements>,
) -> ResourceRequirements {
    let mut resources = allocated.clone();
    let given = |resource, is_limit| listed(actuated, resource, is_limit);
    let Reported { cpu_request, cpu_limit, memory_limit } = match reported == Reported::default() {
        false => reported,
        // The runtime reports nothing: what the container was given counts.
        true => Reported {
            cpu_request: given("cpu", false).map(|cpu| cpu.milli_value()),
            cpu_limit: given("cpu", true).map(|cpu| cpu.milli_value()),
            memory_limit: given("memory", true).map(|memory| memory.value()),
        },
    };
    let keep = |list: &mut List, resource: &str, before: Option<&List>| {
        if let Some(amount) = before.and_then(|before| before.get(resource)) {
            list.insert(resource.to_owned(), amount.clone());
        }
    };
    if let Some(limits) = &mut resources.limits {
        let before = before.and_then(|before| before.limits.as_ref());
        match cpu_limit {
            Some(actual) => set_cpu(limits, actual, MIN_MILLI_LIMIT),
            None => keep(limits, "cpu", before),
        }
        match memory_limit {
            Some(actual) => {
                drop(limits.insert("memory".to_owned(), Listed(bytes(actual).to_string())));
            }
            None => keep(limits, "memory", before),
        }
    }
    if let Some(requests) = &mut resources.requests {
        let before = before.and_then(|before| before.requests.as_ref());
        match cpu_request {
            Some(actual) => set_cpu(requests, actual, MIN_MILLI_REQUEST),
            None => keep(requests, "cpu", before),
        }
        // The kernel knows no request of memory.
        match given("memory", false).filter(|memory| !memory.is_zero()) {
            Some(actual) => {
                drop(requests.insert("memory".to_owned(), Listed(actual.to_string())));
            }
            None => keep(requests, "memory", before),
        }
    }
    resources
}

/// Sums the requests or limits of all resources of a pod, with its overhead. Upstream:
/// `PodRequests`, `PodLimits`.
pub(super) fn total(pod: &Pod, is_limit: bool) -> List {
    let overhead = pod.spec().overhead.as_ref();
    let containers = pod.all_containers().map(|container| container.resources.as_ref());
    let all = containers.chain([pod.spec().resources.as_ref()]).flatten();
    let lists = all.filter_map(|one| if is_limit { &one.limits } else { &one.requests }.as_ref());
    let names: BTreeSet<&String> = match is_limit {
        true => lists.flat_map(BTreeMap::keys).collect(),
        false => lists.chain(overhead).flat_map(BTreeMap::keys).collect(),
    };
    let amount = |name: &String| {
        let own = of_pod(pod, name, is_limit);
        // The overhead alone limits nothing.
        let overhead = overhead.and_then(|overhead| quantity(overhead, name));
        let overhead = overhead.filter(|_| !is_limit || own.is_positive());
        (name.clone(), Listed((own + overhead.unwrap_or(Quantity::ZERO)).to_string()))
    };
    names.into_iter().map(amount).collect()
}

/// Computes the resources in the status of a pod: the totals of its spec, or, once it runs, what
/// its cgroup has (`limits`). `None`: it does not run yet, or the cgroup cannot be read. A limit
/// that the cgroup does not have stays as in the last status (`before`), as upstream.
pub(super) fn of_pod_itself(
    pod: &Pod,
    limits: Option<&PodLimits>,
    before: Option<&ResourceRequirements>,
) -> ResourceRequirements {
    let present = |list: List| Some(list).filter(|list| !list.is_empty());
    let own = pod.spec().resources.clone().unwrap_or_default();
    let Some(actual) = limits else {
        let (requests, limits) = (present(total(pod, false)), present(total(pod, true)));
        return ResourceRequirements { requests, limits, ..own };
    };
    let mut requests = own.requests.clone().unwrap_or_default();
    if let Some(cpu) = milli_of_shares(actual.cpu_shares) {
        set_cpu(&mut requests, cpu, MIN_MILLI_REQUEST);
    }
    // The kernel knows no request of memory: what the spec asks for counts. Upstream keeps the one
    // in the last status, also after a resize.
    if !requests.contains_key("memory")
        && let Some(memory) = total(pod, false).remove("memory")
    {
        requests.insert("memory".to_owned(), memory);
    }
    let mut limits = own.limits.clone().unwrap_or_default();
    let before = before.and_then(|before| before.limits.as_ref());
    let kept = |resource: &str| before.and_then(|before| before.get(resource).cloned());
    match actual.cpu_quota {
        Some(quota) => {
            set_cpu(&mut limits, quota.saturating_mul(1000) / CPU_PERIOD, MIN_MILLI_LIMIT);
        }
        None => limits.extend(kept("cpu").map(|cpu| ("cpu".to_owned(), cpu))),
    }
    let memory = actual.memory.map(|memory| Listed(bytes(memory).to_string()));
    let memory = memory.or_else(|| kept("memory"));
    limits.extend(memory.map(|memory| ("memory".to_owned(), memory)));
    ResourceRequirements { requests: present(requests), limits: present(limits), ..own }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn lists(value: Value) -> ResourceRequirements {
        serde_json::from_value(value).expect("resources")
    }

    #[test]
    fn containers_show_what_the_runtime_has() {
        let asked = |cpu: &str, memory: &str| {
            let list = json!({"cpu": cpu, "memory": memory});
            json!({"requests": list, "limits": list})
        };
        let reported = |request, limit, memory| Reported {
            cpu_request: request,
            cpu_limit: limit,
            memory_limit: memory,
        };
        for (allocated, reported, actuated, before, expected) in [
            // A resize that is not actuated yet.
            (
                asked("2", "2Mi"),
                reported(Some(1000), Some(1000), Some(1 << 20)),
                asked("1", "1Mi"),
                json!({}),
                asked("1", "1Mi"),
            ),
            // The runtime says nothing: what it was given.
            (
                asked("2", "2Mi"),
                Reported::default(),
                asked("1", "1Mi"),
                json!({}),
                asked("1", "1Mi"),
            ),
            // Small amounts stay as they were asked for.
            (
                asked("1m", "1Mi"),
                reported(Some(2), Some(10), Some(1 << 20)),
                asked("1m", "1Mi"),
                json!({}),
                asked("1m", "1Mi"),
            ),
            // Neither is known.
            (
                asked("2", "2Mi"),
                Reported::default(),
                json!({}),
                asked("3", "3Mi"),
                asked("3", "3Mi"),
            ),
            (json!({}), reported(Some(2), None, None), json!({}), json!({}), json!({})),
        ] {
            let (allocated, before) = (lists(allocated), lists(before));
            let found = of_container(&allocated, reported, Some(&lists(actuated)), Some(&before));
            assert_eq!(found, lists(expected), "{allocated:?}");
        }
    }

    #[test]
    fn pods_show_what_their_cgroup_limits_once_they_run() {
        let container = json!({"name": "c", "resources": {
            "requests": {"cpu": "100m", "memory": "1Mi"}, "limits": {"cpu": "1", "memory": "2Mi"}}});
        let pod = json!({"spec": {"containers": [container], "overhead": {"cpu": "50m"}}});
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let expected = lists(json!({"requests": {"cpu": "150m", "memory": "1Mi"},
            "limits": {"cpu": "1050m", "memory": "2Mi"}}));
        assert_eq!(of_pod_itself(&pod, None, None), expected);
        let actual = PodLimits { cpu_shares: 102, cpu_quota: Some(50_000), memory: Some(3 << 20) };
        let expected = lists(json!({"requests": {"cpu": "100m", "memory": "1Mi"},
            "limits": {"cpu": "500m", "memory": "3Mi"}}));
        assert_eq!(of_pod_itself(&pod, Some(&actual), None), expected);
        let unlimited = PodLimits { cpu_quota: None, memory: None, ..actual };
        let before = lists(json!({"limits": {"cpu": "7"}}));
        let expected = lists(json!({"requests": {"cpu": "100m", "memory": "1Mi"},
            "limits": {"cpu": "7"}}));
        assert_eq!(of_pod_itself(&pod, Some(&unlimited), Some(&before)), expected);
    }
}
