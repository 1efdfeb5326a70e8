//! Computes what new objects add to the usage of the quotas of their namespace.
//! Upstream: `apiserver/pkg/admission/plugin/resourcequota`.

use std::sync::Arc;

use serde_json::Value;

use super::usage::{Evaluator, amounts, has_pod_resources};
use super::{forbidden, is_pod};
use crate::kinds::Kind;
use crate::object::{list, text};
use crate::request::call::Call;
use crate::status::ApiResult;
use crate::storage::store::{Store, Stored};
use kube_controller_manager::objects::{Istr, ResourceList, ResourceQuota};

pub const QUOTAS: &str = "resourcequotas";
/// The resources that every container of a pod must specify when a quota limits them.
const REQUIRED: [&str; 6] =
    ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];

/// Returns the quotas of the call's namespace that an object is charged to. `before`: the object
/// before an update; quotas that counted it then are left out.
pub fn quotas(store: &Store, call: &Call, before: Option<&Value>) -> Vec<Arc<Stored>> {
    if call.namespace.is_empty() {
        return Vec::new();
    }
    let is_new =
        |quota: &Stored| before.is_none_or(|before| !is_counted(&call.kind, before, &quota.value));
    let page = store.list(QUOTAS, &call.prefix(), None, usize::MAX, None, &is_new);
    page.map(|page| page.items).unwrap_or_default()
}

/// Returns whether an update brings a pod into the scope of other quotas. Upstream:
/// `podEvaluator.Handles`.
pub fn changes_scope(kind: &Kind, new: &Value, old: &Value) -> bool {
    // The scopes `Terminating` and `NotTerminating`; a pod stays in the others.
    let ends =
        |pod: &Value| pod["spec"]["activeDeadlineSeconds"].as_i64().is_some_and(|it| it >= 0);
    is_pod(kind) && ends(new) != ends(old)
}

/// Returns whether an object is in all scopes of a quota; false if the quota is malformed.
fn is_counted(kind: &Kind, object: &Value, quota: &Value) -> bool {
    let Ok(quota) = serde_json::from_value::<ResourceQuota>(quota.clone()) else { return false };
    let evaluator = Evaluator::new(kind, object);
    quota.scopes().iter().all(|scope| evaluator.is_in_scope(scope))
}

/// Adds what the object uses to the usage in the quota's status, and returns the sums of the
/// resources that change. Returns `None` when the quota does not count the object, or the object
/// uses nothing of it. A quota without a status limits nothing yet. Errors: 403. Upstream:
/// `CheckRequest`.
pub fn charge(kind: &Kind, object: &Value, quota: &Value) -> ApiResult<Option<ResourceList>> {
    let Ok(quota) = serde_json::from_value::<ResourceQuota>(quota.clone()) else {
        return Ok(None);
    };
    let evaluator = Evaluator::new(kind, object);
    let (hard, used) = (quota.status.hard.quantities(), quota.status.used.quantities());
    let limited: Vec<&Istr> =
        hard.iter().map(|(name, _)| name).filter(|name| evaluator.measures(name)).collect();
    if limited.is_empty() || !quota.scopes().iter().all(|scope| evaluator.is_in_scope(scope)) {
        return Ok(None);
    }
    let quota = &*quota.meta.name;
    let missing = if is_pod(kind) { unspecified(object, &limited) } else { String::new() };
    if !missing.is_empty() {
        let why = format!("failed quota: {quota}: must specify {missing}");
        return Err(forbidden(kind, object, &why));
    }
    if limited.iter().any(|name| used.get(name).is_none()) {
        let names: Vec<&str> = limited.iter().map(|name| name.as_str()).collect();
        let why = format!("status unknown for quota: {quota}, resources: {}", names.join(","));
        return Err(forbidden(kind, object, &why));
    }
    let amount = |list: &ResourceList, name: &Istr| list.get(name).unwrap_or_default();
    let mut after = ResourceList::default();
    let (mut requested, mut before, mut limits) = (Vec::new(), Vec::new(), Vec::new());
    let usage = evaluator.usage();
    for (name, delta) in usage.iter().filter(|(_, delta)| !delta.is_zero()) {
        let Some(limit) = hard.get(name) else { continue };
        let mut sum = used.clone();
        sum.add_to(name, delta);
        let sum = amount(&sum, name);
        if sum.compare(limit).is_gt() {
            requested.push(format!("{name}={delta}"));
            before.push(format!("{name}={}", amount(&used, name)));
            limits.push(format!("{name}={limit}"));
        }
        after.add_to(name, sum);
    }
    if requested.is_empty() {
        return Ok((!after.is_empty()).then_some(after));
    }
    let why = format!(
        "exceeded quota: {quota}, requested: {}, used: {}, limited: {}",
        requested.join(","),
        before.join(","),
        limits.join(","),
    );
    Err(forbidden(kind, object, &why))
}

/// Lists the limited resources that some container does not specify: `limits.cpu for: a,b; …`.
/// Empty when the pod sets resources for itself as a whole. Upstream: `podEvaluator.Constraints`.
fn unspecified(pod: &Value, limited: &[&Istr]) -> String {
    if has_pod_resources(pod) {
        return String::new();
    }
    let lacking = |name: &str| -> Vec<&str> {
        let (part, resource) = name.split_once('.').unwrap_or(("requests", name));
        let containers = ["/spec/containers", "/spec/initContainers"];
        let containers = containers.into_iter().flat_map(|at| list(pod, at));
        let lacks =
            |container: &&Value| amounts(&container["resources"][part]).get(resource).is_none();
        let mut names: Vec<&str> = containers.filter(lacks).map(|one| text(one, "/name")).collect();
        names.sort_unstable();
        names
    };
    let required = limited.iter().filter(|name| REQUIRED.contains(&name.as_str()));
    let missing = required.map(|name| (name, lacking(name))).filter(|(_, by)| !by.is_empty());
    let missing: Vec<String> =
        missing.map(|(name, by)| format!("{name} for: {}", by.join(","))).collect();
    missing.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::builtin;
    use serde_json::json;

    fn kind(plural: &str) -> Kind {
        builtin().into_iter().find(|kind| kind.resource.plural == plural).unwrap()
    }

    fn quota(hard: Value, used: Value, spec: Value) -> Value {
        json!({ "metadata": { "name": "q", "namespace": "ns" }, "spec": spec,
            "status": { "hard": hard, "used": used } })
    }

    fn charged(plural: &str, object: &Value, quota: &Value) -> Result<Value, String> {
        let kind = kind(plural);
        let used = charge(&kind, object, quota).map_err(|error| error.message)?;
        let used = used.iter().flat_map(ResourceList::iter);
        Ok(used.map(|(name, amount)| (name.to_string(), Value::from(amount.to_string()))).collect())
    }

    #[test]
    fn objects_that_exceed_a_quota_are_refused() {
        let pod = json!({ "metadata": { "name": "p", "namespace": "ns" }, "spec": { "containers": [
            { "name": "c", "resources": { "requests": { "cpu": "500m" } } }] } });
        let map = json!({ "metadata": { "name": "m", "namespace": "ns" } });
        let room = quota(
            json!({ "pods": "2", "requests.cpu": "1", "services": "1" }),
            json!({ "pods": "1", "requests.cpu": "500m", "services": "1" }),
            json!({}),
        );
        assert_eq!(charged("pods", &pod, &room), Ok(json!({ "pods": "2", "requests.cpu": "1" })));
        assert_eq!(charged("configmaps", &map, &room), Ok(json!({})));
        let full = quota(
            json!({ "pods": "2", "requests.cpu": "1" }),
            json!({ "pods": "2", "requests.cpu": "750m" }),
            json!({}),
        );
        assert_eq!(
            charged("pods", &pod, &full).unwrap_err(),
            "pods \"p\" is forbidden: exceeded quota: q, requested: pods=1,requests.cpu=500m, used: pods=2,requests.cpu=750m, limited: pods=2,requests.cpu=1"
        );
        let limits = quota(json!({ "limits.cpu": "1" }), json!({ "limits.cpu": "0" }), json!({}));
        assert_eq!(
            charged("pods", &pod, &limits).unwrap_err(),
            "pods \"p\" is forbidden: failed quota: q: must specify limits.cpu for: c"
        );
        let counted = quota(
            json!({ "count/configmaps": "0" }),
            json!({ "count/configmaps": "0" }),
            json!({}),
        );
        assert!(charged("configmaps", &map, &counted).unwrap_err().contains("exceeded quota: q"));
        let new = quota(json!({}), json!({}), json!({ "hard": { "pods": "0" } }));
        assert_eq!(charged("pods", &pod, &new), Ok(json!({})));
        let others = quota(
            json!({ "pods": "0" }),
            json!({ "pods": "0" }),
            json!({ "scopes": ["Terminating"] }),
        );
        assert_eq!(charged("pods", &pod, &others), Ok(json!({})));
    }

    #[test]
    fn quotas_with_scopes_count_only_matching_objects() {
        let claim = |class: &str| {
            json!({ "metadata": { "name": "c", "namespace": "ns" },
            "spec": { "volumeAttributesClassName": class } })
        };
        let fast = quota(
            json!({ "persistentvolumeclaims": "0" }),
            json!({ "persistentvolumeclaims": "0" }),
            json!({ "scopeSelector": { "matchExpressions": [{
                "scopeName": "VolumeAttributesClass", "operator": "In", "values": ["fast"],
            }] } }),
        );
        let refused = charged("persistentvolumeclaims", &claim("fast"), &fast).unwrap_err();
        assert!(refused.contains("exceeded quota: q"), "{refused}");
        assert_eq!(charged("persistentvolumeclaims", &claim("slow"), &fast), Ok(json!({})));
        let scoped = quota(
            json!({ "services": "0" }),
            json!({ "services": "0" }),
            json!({ "scopes": ["BestEffort"] }),
        );
        assert_eq!(
            charged("services", &json!({ "metadata": { "name": "s" } }), &scoped),
            Ok(json!({}))
        );
    }

    #[test]
    fn pod_level_resources_lift_the_constraint_on_containers() {
        let limits = quota(json!({ "limits.cpu": "3" }), json!({ "limits.cpu": "0" }), json!({}));
        let pod = |resources: Value| {
            json!({ "metadata": { "name": "p", "namespace": "ns" },
            "spec": { "containers": [{ "name": "c" }], "resources": resources } })
        };
        let whole = pod(json!({ "limits": { "cpu": "2" } }));
        assert_eq!(charged("pods", &whole, &limits), Ok(json!({ "limits.cpu": "2" })));
        let other = pod(json!({ "limits": { "example.com/x": "2" } }));
        assert!(charged("pods", &other, &limits).unwrap_err().contains("must specify limits.cpu"));
    }

    #[test]
    fn a_quota_whose_usage_is_not_yet_counted_refuses() {
        let uncounted = quota(json!({ "pods": "5", "services": "1" }), json!({}), json!({}));
        let pod = json!({ "metadata": { "name": "p", "namespace": "ns" }, "spec": {} });
        assert_eq!(
            charged("pods", &pod, &uncounted).unwrap_err(),
            "pods \"p\" is forbidden: status unknown for quota: q, resources: pods"
        );
    }
}
