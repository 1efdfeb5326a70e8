//! What admission plugins and allocators do with new objects: the priority of pods, the addresses
//! of services, and quotas.
//! Upstream: `plugin/pkg/admission/priority`, `apiserver/pkg/admission/plugin/resourcequota`.

use serde_json::Value;

use super::api::Api;
use super::call::Call;
use super::failures;
use super::kinds::Kind;
use super::status::{ApiError, ApiResult};
use super::store::Stored;
use super::write::{Part, text};
use kube_controller_manager::controllers::cluster::resourcequota::{kinds, pods};
use kube_controller_manager::objects::{Pod, Quantity, ResourceList, ResourceQuota};

const PRIORITY_CLASSES: &str = "priorityclasses.scheduling.k8s.io";
const QUOTAS: &str = "resourcequotas";
/// Counted under their bare names too, as the first quotas called them.
const COUNTED: [&str; 4] = ["configmaps", "resourcequotas", "replicationcontrollers", "secrets"];
/// What a pod under a quota of them must ask for itself.
const ASKED: [&str; 6] =
    ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];

pub fn is_pod(kind: &Kind) -> bool {
    kind.resource.group.is_empty() && kind.resource.plural == "pods"
}

impl Api {
    /// Gives a new pod the priority of its class. Errors: 403 when there is no such class.
    pub fn prioritize(&self, kind: &Kind, pod: &mut Value) -> ApiResult<()> {
        if !is_pod(kind) {
            return Ok(());
        }
        let name = text(pod, "/spec/priorityClassName").to_owned();
        let class = match name.as_str() {
            "system-node-critical" | "system-cluster-critical" => return Ok(()),
            "" => self.default_class(),
            name => match self.store.get(PRIORITY_CLASSES, name) {
                Some(class) => Some(class),
                None => {
                    let why = format!("no PriorityClass with name {name} was found");
                    return Err(forbidden(kind, pod, &why));
                }
            },
        };
        let Some(class) = class else { return Ok(()) };
        let computed = class.value["value"].as_i64().unwrap_or(0);
        if let Some(own) = pod["spec"]["priority"].as_i64().filter(|own| *own != computed) {
            let why = format!(
                "the integer value of priority ({own}) must not be provided in pod spec; priority admission controller computed {computed} from the given PriorityClass name"
            );
            return Err(forbidden(kind, pod, &why));
        }
        pod["spec"]["priorityClassName"] = class.value["metadata"]["name"].clone();
        pod["spec"]["priority"] = computed.into();
        if let Some(policy) = class.value.get("preemptionPolicy") {
            pod["spec"]["preemptionPolicy"] = policy.clone();
        }
        Ok(())
    }

    /// Whether the cluster IP that a new service asks for can be had. Errors: 422.
    /// Upstream: `core/service/ipallocator`.
    pub fn reserve(&self, kind: &Kind, service: &Value) -> ApiResult<()> {
        if !(kind.resource.group.is_empty() && kind.resource.plural == "services") {
            return Ok(());
        }
        let address = text(service, "/spec/clusterIP");
        let Ok(parsed) = address.parse::<std::net::Ipv4Addr>() else { return Ok(()) };
        let taken = |other: &Stored| text(&other.value, "/spec/clusterIP") == address;
        let why = if parsed.octets()[..2] != [10, 96] {
            "the provided network does not match the current range"
        } else if self
            .store
            .list("services", "", None, 1, None, &taken)
            .is_ok_and(|page| !page.items.is_empty())
        {
            "provided IP is already allocated"
        } else {
            return Ok(());
        };
        let why = format!("failed to allocate IP {address}: {why}");
        let cause = failures::invalid_value("spec.clusterIPs", &vec![address].into(), &why);
        Err(failures::invalid("", "Service", text(service, "/metadata/name"), &[cause]))
    }

    /// The class of pods that name none; of several, the lowest.
    fn default_class(&self) -> Option<std::sync::Arc<Stored>> {
        let keep = |class: &Stored| class.value["globalDefault"] == true;
        let page = self.store.list(PRIORITY_CLASSES, "", None, usize::MAX, None, &keep).ok()?;
        page.items.into_iter().min_by_key(|class| class.value["value"].as_i64())
    }

    /// Counts a new object against the quotas of its namespace, as their status knows them: a quota
    /// that no controller has looked at yet holds nobody back. Errors: 403.
    pub fn charge(&self, call: &Call, object: &Value, dry_run: bool) -> ApiResult<()> {
        if call.namespace.is_empty() {
            return Ok(());
        }
        let quotas = self.store.list(QUOTAS, &call.prefix(), None, usize::MAX, None, &|_| true);
        let Ok(quotas) = quotas else { return Ok(()) };
        if quotas.items.is_empty() {
            return Ok(());
        }
        let usage = usage(&call.kind, object);
        let quota_kind = self.registry.find("", "v1", QUOTAS).filter(|_| !dry_run);
        for stored in quotas.items {
            let charged = charge_one(&call.kind, object, &usage, &stored.value)?;
            let (Some(_), Some(kind)) = (charged, quota_kind.clone()) else { continue };
            let name = text(&stored.value, "/metadata/name");
            let at =
                Call { subresource: "status".to_owned(), ..Call::of(kind, &call.namespace, name) };
            // Others are counted at the same time: what is used is looked at again with the write.
            let changed = self.modify(&at, Part::Raw, &|old| {
                let mut new = old.clone();
                let used = charge_one(&call.kind, object, &usage, old)?.unwrap_or_default();
                for (name, amount) in used.iter() {
                    new["status"]["used"][name.as_str()] = amount.to_string().into();
                }
                Ok(new)
            });
            match changed {
                Err(error) if error.code != 404 => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

pub fn forbidden(kind: &Kind, object: &Value, why: &str) -> ApiError {
    let named = ["/metadata/name", "/metadata/generateName"].map(|at| text(object, at));
    let name = named.into_iter().find(|name| !name.is_empty()).unwrap_or("Unknown");
    failures::forbidden(&kind.resource, name, why)
}

/// What one object uses, under the names of quotas.
fn usage(kind: &Kind, object: &Value) -> ResourceList {
    let resource = &kind.resource;
    let mut usage = ResourceList::default();
    match (&*resource.group, &*resource.plural) {
        ("", "pods") => {
            if let Ok(pod) = serde_json::from_value::<Pod>(object.clone()) {
                usage = pod.quota.usage.clone();
            }
        }
        ("", "services") => {
            if let Ok(service) = serde_json::from_value(object.clone()) {
                kinds::charge_service(&service, &mut usage);
                return usage;
            }
        }
        ("", "persistentvolumeclaims") => {
            if let Ok(claim) = serde_json::from_value(object.clone()) {
                kinds::charge_claim(&claim, &mut usage);
                return usage;
            }
        }
        ("", plural) if COUNTED.contains(&plural) => usage.add_to(&plural.into(), Quantity::ONE),
        _ => {}
    }
    usage.add_to(&format!("count/{resource}").into(), Quantity::ONE);
    usage
}

/// What the quota says is used once the object is there. `None`: it does not count the object.
fn charge_one(
    kind: &Kind,
    object: &Value,
    usage: &ResourceList,
    quota: &Value,
) -> ApiResult<Option<ResourceList>> {
    let Ok(quota) = serde_json::from_value::<ResourceQuota>(quota.clone()) else {
        return Ok(None);
    };
    let scopes = quota.scopes();
    let pod = is_pod(kind).then(|| serde_json::from_value::<Pod>(object.clone()).ok()).flatten();
    let counts = scopes.iter().all(|scope| {
        pod.as_ref().is_some_and(|pod| pods::in_scope(&pod.quota, scope).unwrap_or(false))
    });
    if !counts {
        return Ok(None);
    }
    let (hard, used) = (quota.status.hard.quantities(), quota.status.used.quantities());
    let name = &*quota.meta.name;
    if is_pod(kind) {
        let missing = must_specify(object, &hard);
        if !missing.is_empty() {
            let why = format!("failed quota: {name}: must specify {missing}");
            return Err(forbidden(kind, object, &why));
        }
    }
    let concerned: Vec<_> = hard.iter().filter(|(name, _)| usage.get(name).is_some()).collect();
    let unknown: Vec<&str> = concerned
        .iter()
        .filter(|(name, _)| used.get(name).is_none())
        .map(|(name, _)| name.as_str())
        .collect();
    if !unknown.is_empty() {
        let unknown = unknown.join(",");
        let why = format!("status unknown for quota: {name}, resources: {unknown}");
        return Err(forbidden(kind, object, &why));
    }
    let amount = |list: &ResourceList, name| list.get(name).unwrap_or_default();
    let mut after = ResourceList::default();
    let (mut requested, mut before, mut limited) = (Vec::new(), Vec::new(), Vec::new());
    for (name, limit) in concerned {
        let mut sum = used.clone();
        sum.add_to(name, amount(usage, name));
        let sum = amount(&sum, name);
        if sum.compare(limit).is_gt() && !amount(usage, name).is_zero() {
            requested.push(format!("{name}={}", amount(usage, name)));
            before.push(format!("{name}={}", amount(&used, name)));
            limited.push(format!("{name}={limit}"));
        }
        after.add_to(name, sum);
    }
    if requested.is_empty() {
        return Ok((!after.is_empty()).then_some(after));
    }
    let why = format!(
        "exceeded quota: {name}, requested: {}, used: {}, limited: {}",
        requested.join(","),
        before.join(","),
        limited.join(","),
    );
    Err(forbidden(kind, object, &why))
}

/// The limited resources that a container asks for no amount of: `limits.cpu for: a,b; …`.
/// Upstream: `podEvaluator.Constraints`.
fn must_specify(pod: &Value, hard: &ResourceList) -> String {
    let lacking = |name: &str| -> Vec<&str> {
        let (list, resource) = match name.split_once('.') {
            Some((list, resource)) => (list, resource),
            None => ("requests", name),
        };
        let containers = ["/spec/containers", "/spec/initContainers"];
        let containers = containers.into_iter().flat_map(|at| super::write::list(pod, at));
        let lacks = |container: &&Value| container["resources"][list].get(resource).is_none();
        containers.filter(lacks).map(|container| text(container, "/name")).collect()
    };
    let asked = hard.iter().map(|(name, _)| name.as_str()).filter(|name| ASKED.contains(name));
    let missing = asked.map(|name| (name, lacking(name))).filter(|(_, by)| !by.is_empty());
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

    fn tried(plural: &str, object: &Value, quota: &Value) -> Result<Value, String> {
        let kind = kind(plural);
        let used = charge_one(&kind, object, &usage(&kind, object), quota);
        let used = used.map_err(|error| error.message)?;
        let used = used.iter().flat_map(ResourceList::iter);
        Ok(used.map(|(name, amount)| (name.to_string(), Value::from(amount.to_string()))).collect())
    }

    #[test]
    fn quotas_hold_back_what_exceeds_them() {
        let pod = json!({ "metadata": { "name": "p", "namespace": "ns" }, "spec": { "containers": [
            { "name": "c", "resources": { "requests": { "cpu": "500m" } } }] } });
        let map = json!({ "metadata": { "name": "m", "namespace": "ns" } });
        let room = quota(
            json!({ "pods": "2", "requests.cpu": "1", "services": "1" }),
            json!({ "pods": "1", "requests.cpu": "500m", "services": "1" }),
            json!({}),
        );
        assert_eq!(tried("pods", &pod, &room), Ok(json!({ "pods": "2", "requests.cpu": "1" })));
        assert_eq!(tried("configmaps", &map, &room), Ok(json!({})));
        let full = quota(
            json!({ "pods": "2", "requests.cpu": "1" }),
            json!({ "pods": "2", "requests.cpu": "750m" }),
            json!({}),
        );
        assert_eq!(
            tried("pods", &pod, &full).unwrap_err(),
            "pods \"p\" is forbidden: exceeded quota: q, requested: pods=1,requests.cpu=500m, used: pods=2,requests.cpu=750m, limited: pods=2,requests.cpu=1"
        );
        let limits = quota(json!({ "limits.cpu": "1" }), json!({ "limits.cpu": "0" }), json!({}));
        assert_eq!(
            tried("pods", &pod, &limits).unwrap_err(),
            "pods \"p\" is forbidden: failed quota: q: must specify limits.cpu for: c"
        );
        let counted = quota(
            json!({ "count/configmaps": "0" }),
            json!({ "count/configmaps": "0" }),
            json!({}),
        );
        assert!(tried("configmaps", &map, &counted).unwrap_err().contains("exceeded quota: q"));
        let new = quota(json!({}), json!({}), json!({ "hard": { "pods": "0" } }));
        assert_eq!(tried("pods", &pod, &new), Ok(json!({})));
        let others = quota(
            json!({ "pods": "0" }),
            json!({ "pods": "0" }),
            json!({ "scopes": ["Terminating"] }),
        );
        assert_eq!(tried("pods", &pod, &others), Ok(json!({})));
    }
}
