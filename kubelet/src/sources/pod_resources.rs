//! The resources of a whole pod: their defaults and rules.
//! Upstream: `defaultHugePagePodLimits`, `defaultPodRequests`, `validatePodResources`.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::pod::{Pod, PodExt, listed, of_containers, quantity};

/// Returns whether a whole pod may ask for a resource. Upstream: `IsSupportedPodLevelResource`.
fn is_supported(resource: &str) -> bool {
    ["cpu", "memory"].contains(&resource) || resource.starts_with("hugepages-")
}

/// Sets the defaults of a pod's own resources in its JSON, if the pod has any: its limits of huge
/// pages from those of its containers, its requests from the containers' or from its own limits.
pub fn complete(document: &mut Value) {
    let lists = &document["spec"]["resources"];
    let is_set = |list: &str| lists[list].as_object().is_some_and(|list| !list.is_empty());
    if !is_set("limits") && !is_set("requests") {
        return;
    }
    // A pod that is malformed is refused later.
    let Ok(pod) = serde_json::from_value::<Pod>(document.clone()) else { return };
    let own = pod.spec().resources.clone().unwrap_or_default();
    let (mut limits, mut requests) =
        (own.limits.unwrap_or_default(), own.requests.unwrap_or_default());
    let lists = || pod.all_containers().filter_map(|container| container.resources.as_ref());
    let names = lists().flat_map(|lists| lists.limits.iter().flat_map(|list| list.keys()));
    let pages: BTreeSet<&String> = names.filter(|name| name.starts_with("hugepages-")).collect();
    for name in pages {
        if !requests.contains_key(name) && !limits.contains_key(name) {
            let sum = of_containers(&pod, name, true).to_string();
            limits.insert(name.clone(), k8s_quantity(sum));
        }
    }
    // As upstream: without a limit of the pod, its requests stay as they are.
    if !limits.is_empty() {
        for name in ["cpu", "memory"] {
            if requests.contains_key(name) {
                continue;
            }
            let sum = of_containers(&pod, name, false);
            let of_each = || {
                let requests = lists().filter_map(|lists| lists.requests.as_ref());
                requests.filter_map(|list| Some((list.get(name)?, quantity(list, name)?)))
            };
            // An amount of one container keeps its form, which counts in the pod's uid.
            let same = of_each().find(|(_, amount)| amount.compare(sum) == Ordering::Equal);
            let request = match same {
                Some((text, _)) => text.clone(),
                None if of_each().next().is_some() => k8s_quantity(sum.to_string()),
                None => continue,
            };
            requests.insert(name.to_owned(), request);
        }
        for (name, limit) in limits.iter().filter(|(name, _)| is_supported(name)) {
            requests.entry(name.clone()).or_insert_with(|| limit.clone());
        }
    }
    for (list, amounts) in [("limits", limits), ("requests", requests)] {
        if !amounts.is_empty() {
            document["spec"]["resources"][list] = json!(amounts);
        }
    }
}

fn k8s_quantity(text: String) -> k8s_openapi::apimachinery::pkg::api::resource::Quantity {
    k8s_openapi::apimachinery::pkg::api::resource::Quantity(text)
}

/// Lists the faults of a pod's own resources, also in relation to its containers', each with its
/// field.
pub fn faults(pod: &Pod) -> Vec<String> {
    let Some(own) = &pod.spec().resources else { return Vec::new() };
    let mut faults = Vec::new();
    if own.claims.is_some() {
        let why = "claims may not be set for Resources at pod-level";
        faults.push(format!("spec.resources.claims: Forbidden: {why}"));
    }
    for (list, amounts) in [("limits", &own.limits), ("requests", &own.requests)] {
        for name in amounts.iter().flat_map(|amounts| amounts.keys()) {
            let field = format!("spec.resources.{list}[{name}]");
            if !is_supported(name) {
                let names = "\"cpu\", \"hugepages-\", \"memory\"";
                let fault = format!("Unsupported value: {name:?}: supported values: {names}");
                faults.push(format!("{field}: {fault}"));
            }
            let Some(amount) = listed(Some(own), name, list == "limits") else { continue };
            let mut add_fault = |of: &str, other| {
                let why = format!("{of} of {other}");
                faults.push(format!("{field}: Invalid value: \"{amount}\": {why}"));
            };
            if list == "requests" {
                let sum = of_containers(pod, name, false);
                if sum.compare(amount) == Ordering::Greater {
                    let of = "must be greater than or equal to aggregate container requests";
                    add_fault(of, sum);
                }
                let limit = listed(Some(own), name, true);
                if let Some(limit) = limit.filter(|l| amount.compare(*l) == Ordering::Greater) {
                    add_fault(&format!("must be less than or equal to {name} limit"), limit);
                }
            }
        }
    }
    for (at, container) in pod.spec().containers.iter().enumerate() {
        let limits = container.resources.as_ref().and_then(|lists| lists.limits.as_ref());
        for name in limits.into_iter().flat_map(|limits| limits.keys()) {
            let amounts =
                (listed(container.resources.as_ref(), name, true), listed(Some(own), name, true));
            if let (Some(limit), Some(of_pod)) = amounts
                && limit.compare(of_pod) == Ordering::Greater
            {
                faults.push(format!(
                    "spec.containers[{at}].resources.limits[{name}]: Invalid value: \"{limit}\": \
                     must be less than or equal to pod limits of {of_pod}"
                ));
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(own: Value, containers: &[Value]) -> Value {
        let containers: Vec<Value> = containers
            .iter()
            .enumerate()
            .map(|(at, lists)| json!({"name": at.to_string(), "resources": lists}))
            .collect();
        json!({"spec": {"resources": own, "containers": containers}})
    }

    #[test]
    fn requests_of_pods_come_from_containers_and_limits() {
        let cpu = |amount: &str| json!({"requests": {"cpu": amount}});
        let pages =
            json!({"limits": {"hugepages-2Mi": "4Mi"}, "requests": {"hugepages-2Mi": "4Mi"}});
        for (own, containers, expected) in [
            (json!({}), vec![cpu("1")], json!({})),
            (json!({"requests": {"cpu": "2"}}), vec![cpu("1")], json!({"requests": {"cpu": "2"}})),
            (
                json!({"limits": {"cpu": "4", "memory": "1Gi"}}),
                vec![cpu("0.5"), cpu("1")],
                json!({"limits": {"cpu": "4", "memory": "1Gi"},
                       "requests": {"cpu": "1500m", "memory": "1Gi"}}),
            ),
            (
                json!({"limits": {"cpu": "4"}}),
                vec![cpu("0.5"), json!({})],
                json!({"limits": {"cpu": "4"}, "requests": {"cpu": "0.5"}}),
            ),
            (
                json!({"limits": {"cpu": "4"}}),
                vec![pages],
                json!({"limits": {"cpu": "4", "hugepages-2Mi": "4Mi"},
                       "requests": {"cpu": "4", "hugepages-2Mi": "4Mi"}}),
            ),
        ] {
            let mut pod = pod(own.clone(), &containers);
            complete(&mut pod);
            assert_eq!(pod["spec"]["resources"], expected, "{own} {containers:?}");
        }
    }

    #[test]
    fn rules_of_pods_resources_are_checked() {
        for (own, container, fault) in [
            (json!({"limits": {"cpu": "1"}}), json!({"limits": {"cpu": "1"}}), None),
            (
                json!({"claims": [{"name": "a"}]}),
                json!({}),
                Some(
                    "spec.resources.claims: Forbidden: claims may not be set for Resources at \
                      pod-level",
                ),
            ),
            (
                json!({"limits": {"ephemeral-storage": "1"}}),
                json!({}),
                Some(
                    "spec.resources.limits[ephemeral-storage]: Unsupported value: \
                      \"ephemeral-storage\": supported values: \"cpu\", \"hugepages-\", \"memory\"",
                ),
            ),
            (
                json!({"requests": {"cpu": "1"}}),
                json!({"requests": {"cpu": "2"}}),
                Some(
                    "spec.resources.requests[cpu]: Invalid value: \"1\": must be greater than or \
                      equal to aggregate container requests of 2",
                ),
            ),
            (
                json!({"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}),
                json!({}),
                Some(
                    "spec.resources.requests[cpu]: Invalid value: \"2\": must be less than or \
                      equal to cpu limit of 1",
                ),
            ),
            (
                json!({"limits": {"memory": "1Mi"}}),
                json!({"limits": {"memory": "2Mi"}}),
                Some(
                    "spec.containers[0].resources.limits[memory]: Invalid value: \"2Mi\": must be \
                      less than or equal to pod limits of 1Mi",
                ),
            ),
        ] {
            let pod: Pod = serde_json::from_value(pod(own.clone(), &[container])).expect("a pod");
            assert_eq!(faults(&pod).first().map(String::as_str), fault, "{own}");
        }
    }
}
