//! Services and PersistentVolumeClaims. Upstream: `quota/v1/evaluator/core`.

use std::sync::Arc;

use super::evaluator::{Evaluator, Objects, in_no_scope};
use crate::cache::Lister;
use crate::objects::{
    Istr, Labels, PersistentVolumeClaim, Quantity, ResourceList, ScopeRequirement, SelectorError,
    Service,
};

const SERVICES: [&str; 4] =
    ["count/services", "services", "services.nodeports", "services.loadbalancers"];
const CLAIMS: [&str; 3] =
    ["count/persistentvolumeclaims", "persistentvolumeclaims", "requests.storage"];
const STORAGE_CLASS: &str = ".storageclass.storage.k8s.io/";

/// Makes the evaluator of Services. Upstream: `NewServiceEvaluator`.
pub fn services(services: Lister<Service>) -> Arc<dyn Evaluator> {
    Arc::new(Objects {
        lister: move || Some(services.clone()),
        measures: |name: &str| SERVICES.contains(&name),
        in_scope: in_no_scope::<Service>,
        charge: charge_service,
    })
}

/// Adds what a Service uses to `usage`: itself, its node ports and its load balancer.
pub fn charge_service(service: &Service, usage: &mut ResourceList) {
    let ports = &service.spec.ports;
    // Numbers of node ports and of load balancers.
    let (node_ports, balancers) = match service.spec.r#type.as_str() {
        "NodePort" => (ports.len(), 0),
        "LoadBalancer" if service.spec.allocate_load_balancer_node_ports == Some(false) => {
            (ports.iter().filter(|port| port.node_port != 0).count(), 1)
        }
        "LoadBalancer" => (ports.len(), 1),
        _ => (0, 0),
    };
    for (name, count) in SERVICES.iter().zip([1, 1, node_ports as i64, balancers]) {
        usage.add_to(&Istr::new(name), Quantity::new(count));
    }
}

/// Returns whether an update changes the Service's type as quotas see it: NodePort, LoadBalancer,
/// or another one. Upstream: `GetQuotaServiceType`.
pub fn service_changes_usage(old: &Service, new: &Service) -> bool {
    let charged = |service: &Service| {
        let r#type = &service.spec.r#type;
        matches!(r#type.as_str(), "NodePort" | "LoadBalancer").then(|| r#type.clone())
    };
    charged(old) != charged(new)
}

/// Makes the evaluator of PersistentVolumeClaims. Upstream: `NewPersistentVolumeClaimEvaluator`.
pub fn volume_claims(claims: Lister<PersistentVolumeClaim>) -> Arc<dyn Evaluator> {
    Arc::new(Objects {
        lister: move || Some(claims.clone()),
        measures: measures_claims,
        in_scope: claim_in_scope,
        charge: charge_claim,
    })
}

/// Returns whether `name` is a resource of claims, perhaps with the prefix of a storage class.
fn measures_claims(name: &str) -> bool {
    let by_class =
        |resource| name.strip_suffix(resource).is_some_and(|class| class.ends_with(STORAGE_CLASS));
    CLAIMS.contains(&name) || CLAIMS[1..].iter().copied().any(by_class)
}

/// Adds what a claim uses to `usage`, in total and of its storage class.
pub fn charge_claim(claim: &PersistentVolumeClaim, usage: &mut ResourceList) {
    let class = claim.storage_class();
    let mut charge = |name: &str, amount: Quantity| {
        usage.add_to(&name.into(), amount);
        if !class.is_empty() {
            usage.add_to(&format!("{class}{STORAGE_CLASS}{name}").into(), amount);
        }
    };
    charge("persistentvolumeclaims", Quantity::ONE);
    if let Some(storage) = storage_of(claim) {
        charge("requests.storage", storage);
    }
    usage.add_to(&CLAIMS[0].into(), Quantity::ONE);
}

/// Returns the storage that a claim is charged, in whole bytes: what it requests, or what an
/// expansion has allocated if that is more. `None` if it requests no storage.
fn storage_of(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    let requested = claim.spec.storage?.rounded_up();
    let allocated =
        claim.status.allocated_storage.filter(|amount| amount.compare(requested).is_gt());
    Some(allocated.map_or(requested, Quantity::rounded_up))
}

/// Returns whether a claim is in a scope. Of the scopes only `VolumeAttributesClass` applies to
/// claims.
/// Upstream: `pvcMatchesScopeFunc`.
fn claim_in_scope(
    claim: &PersistentVolumeClaim,
    scope: &ScopeRequirement,
) -> Result<bool, SelectorError> {
    if scope.scope_name != "VolumeAttributesClass" {
        return Ok(false);
    }
    let classes = claim.volume_attributes_classes();
    if scope.only_asks_for_existence() {
        return Ok(!classes.is_empty());
    }
    let selector = scope.selector()?;
    if classes.is_empty() {
        return Ok(selector.matches(&Labels::default()));
    }
    let label = |class: &Istr| [(scope.scope_name.as_str(), class.as_str())].into_iter().collect();
    Ok(classes.into_iter().any(|class| selector.matches(&label(class))))
}

/// Returns whether an update changes what the claim is charged. Upstream: `RequiresQuotaReplenish`,
/// which compares two pointers and so is true of every update.
pub fn claim_changes_usage(old: &PersistentVolumeClaim, new: &PersistentVolumeClaim) -> bool {
    storage_of(old) != storage_of(new)
        || old.storage_class() != new.storage_class()
        || old.volume_attributes_classes() != new.volume_attributes_classes()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn text(usage: &ResourceList) -> String {
        usage.iter().map(|(name, amount)| format!("{name}={amount}")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn services_are_charged_by_their_type() {
        for (spec, expected) in [
            (json!({ "type": "ClusterIP", "ports": [{}, {}] }), [1, 0, 0]),
            (json!({ "type": "NodePort", "ports": [{}, {}] }), [1, 2, 0]),
            (json!({ "type": "LoadBalancer", "ports": [{}] }), [1, 1, 1]),
            (
                json!({
                    "type": "LoadBalancer", "allocateLoadBalancerNodePorts": false,
                    "ports": [{ "nodePort": 30000 }, {}, {}],
                }),
                [1, 1, 1],
            ),
        ] {
            let service: Service = serde_json::from_value(json!({ "spec": spec })).unwrap();
            let mut usage = ResourceList::default();
            charge_service(&service, &mut usage);
            let [services, node_ports, balancers] = expected;
            assert_eq!(
                text(&usage),
                format!(
                    "count/services={services} services={services} \
                     services.loadbalancers={balancers} services.nodeports={node_ports}"
                )
            );
        }
    }

    fn claim(spec: Value, status: Value) -> PersistentVolumeClaim {
        serde_json::from_value(json!({ "spec": spec, "status": status })).unwrap()
    }

    #[test]
    fn volume_claims_are_charged_by_class() {
        let asks = |storage: &str| json!({ "resources": { "requests": { "storage": storage } } });
        let mut gold = asks("1Gi");
        gold["storageClassName"] = "gold".into();
        for (claim, expected) in [
            (
                claim(asks("1500m"), json!({})),
                "count/persistentvolumeclaims=1 persistentvolumeclaims=1 requests.storage=2",
            ),
            (
                claim(gold, json!({ "allocatedResources": { "storage": "2Gi" } })),
                "count/persistentvolumeclaims=1 \
                 gold.storageclass.storage.k8s.io/persistentvolumeclaims=1 \
                 gold.storageclass.storage.k8s.io/requests.storage=2Gi \
                 persistentvolumeclaims=1 requests.storage=2Gi",
            ),
            (
                claim(json!({}), json!({ "allocatedResources": { "storage": "2Gi" } })),
                "count/persistentvolumeclaims=1 persistentvolumeclaims=1",
            ),
        ] {
            let mut usage = ResourceList::default();
            charge_claim(&claim, &mut usage);
            assert_eq!(text(&usage), expected);
            assert!(usage.iter().all(|(name, _)| measures_claims(name)));
        }
        assert!(!measures_claims("gold.storageclass.storage.k8s.io/pods"));
    }

    #[test]
    fn a_claim_is_counted_again_when_its_charge_changes() {
        let with = |spec: Value, status: Value| claim(spec, status);
        let plain = with(json!({}), json!({}));
        let storage = json!({ "resources": { "requests": { "storage": "1Gi" } } });
        for (changed, expected) in [
            (plain.clone(), false),
            (with(storage, json!({})), true),
            (with(json!({ "storageClassName": "gold" }), json!({})), true),
            (with(json!({ "volumeAttributesClassName": "fast" }), json!({})), true),
            (with(json!({}), json!({ "currentVolumeAttributesClassName": "fast" })), true),
        ] {
            assert_eq!(claim_changes_usage(&plain, &changed), expected, "{changed:?}");
        }
    }

    #[test]
    fn volume_claims_are_scoped_by_attributes_class() {
        let scope = |operator: &str, values: &[&str]| ScopeRequirement {
            scope_name: "VolumeAttributesClass".into(),
            operator: operator.into(),
            values: values.iter().map(|value| Istr::new(value)).collect(),
        };
        let moving = claim(
            json!({ "volumeAttributesClassName": "fast" }),
            json!({ "currentVolumeAttributesClassName": "slow" }),
        );
        let plain = claim(json!({}), json!({ "currentVolumeAttributesClassName": "" }));
        for (scope, expected) in [
            (scope("Exists", &[]), (true, false)),
            (scope("In", &["slow"]), (true, false)),
            (scope("In", &["other"]), (false, false)),
            (scope("NotIn", &["slow"]), (true, true)),
            (scope("DoesNotExist", &[]), (false, true)),
        ] {
            let matches = [&moving, &plain].map(|claim| claim_in_scope(claim, &scope).unwrap());
            assert_eq!((matches[0], matches[1]), expected, "{scope:?}");
        }
        assert!(claim_in_scope(&moving, &scope("Near", &[])).is_err());
    }
}
