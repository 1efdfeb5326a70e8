//! ResourceClaims, by the classes of the devices they ask for.
//! Upstream: `quota/v1/evaluator/core/resource_claims.go`.

use std::sync::Arc;

use super::evaluator::{Evaluator, Objects, in_no_scope};
use super::pods::{charge, is_extended_request};
use crate::cache::{Index, IndexValue, Lister};
use crate::clock::SharedClock;
use crate::controllers::runner::OptionalCache;
use crate::objects::{DeviceClass, Istr, ObjectKey, Pod, Quantity, ResourceClaim, ResourceList};

const COUNT: &str = "count/resourceclaims.resource.k8s.io";
const DEVICES_OF_CLASS: &str = ".deviceclass.resource.k8s.io/devices";
const REQUESTS: &str = "requests.";
const CLASS: &str = "deviceclass.resource.kubernetes.io/";
/// The annotation of claims that are made for the extended resources of a pod.
const EXTENDED: &str = "resource.kubernetes.io/extended-resource-claim";
/// Indexes such claims by the uid of their pod.
const BY_OWNER: Index<ResourceClaim> =
    Index::new("extendedResourceClaimPodUIDOwner", |claim, add| {
        if let Some(owner) = owner(claim) {
            add(IndexValue::Uid(owner.uid.clone()));
        }
    });

/// The caches for claims that stand for extended resources: gate `DRAExtendedResource`.
pub struct Extended {
    pub classes: OptionalCache<DeviceClass>,
    pub pods: Lister<Pod>,
    pub clock: SharedClock,
}

/// Makes the evaluator of ResourceClaims: their number, and the devices of each class.
/// Upstream: `NewResourceClaimEvaluator`.
pub fn resource_claims(
    claims: OptionalCache<ResourceClaim>,
    extended: Option<Extended>,
) -> Arc<dyn Evaluator> {
    claims.index(&BY_OWNER);
    let extended = extended.map(Arc::new);
    let (claims, classes) = (Arc::new(claims), extended.clone());
    let charged = claims.clone();
    Arc::new(Objects {
        lister: move || claims.lister(),
        measures: move |name: &str| {
            name == COUNT
                || name.ends_with(DEVICES_OF_CLASS)
                || classes.as_ref().is_some_and(|extended| extended.measures(name))
        },
        in_scope: in_no_scope::<ResourceClaim>,
        charge: move |claim: &ResourceClaim, usage: &mut ResourceList| {
            usage.add_to(&COUNT.into(), Quantity::ONE);
            for (class, count) in &claim.spec.devices {
                let name = format!("{class}{DEVICES_OF_CLASS}");
                usage.add_to(&name.into(), Quantity::new(*count));
            }
            if let (Some(extended), Some(claims)) = (&extended, charged.lister()) {
                usage.add(&extended.charge(claim, &claims));
            }
        },
    })
}

/// Returns the reference to the pod for whose extended resources the claim was made; `None` for
/// other claims.
fn owner(claim: &ResourceClaim) -> Option<&crate::objects::OwnerReference> {
    claim.meta.annotations.get(EXTENDED).filter(|value| *value == "true")?;
    claim.meta.controller().filter(|owner| owner.kind == "Pod" && owner.api_version == "v1")
}

impl Extended {
    /// Returns the extended resource that the class names, if any. Upstream: `GetExtendedResource`.
    fn resource_of(&self, class: &str) -> Option<Istr> {
        let class = self.classes.lister()?.get(&ObjectKey::cluster(class))?;
        class.spec.extended_resource_name.clone().filter(|name| !name.is_empty())
    }

    /// Returns whether `name` is a device class's resource, implicit or extended.
    fn measures(&self, name: &str) -> bool {
        let Some(resource) = name.strip_prefix(REQUESTS) else { return false };
        let Some(classes) = self.classes.lister() else { return false };
        if let Some(class) = resource.strip_prefix(CLASS)
            && classes.get(&ObjectKey::cluster(class)).is_some()
        {
            return true;
        }
        let is_resource_of = |class: &Arc<DeviceClass>| {
            class.spec.extended_resource_name.as_deref() == Some(resource)
        };
        is_extended_request(name) && classes.list().iter().any(is_resource_of)
    }

    /// Returns the amounts of extended resources that the claim's devices use, less what the
    /// claim's pod is charged already.
    /// Upstream: `addExtendedResourceQuota`.
    fn charge(&self, claim: &ResourceClaim, claims: &Lister<ResourceClaim>) -> ResourceList {
        let mut usage = ResourceList::default();
        let pod = self.verified_pod(claim, claims);
        for (class, count) in claim.spec.devices.iter().filter(|(class, _)| !class.is_empty()) {
            let explicit = self.resource_of(class);
            let names = explicit.map(|name| format!("{REQUESTS}{name}"));
            for name in names.into_iter().chain([format!("{REQUESTS}{CLASS}{class}")]) {
                let name = Istr::from(name);
                let charged = pod.as_ref().map(|pod| charge(pod, &name, self.clock.now()));
                let rest = Quantity::new(*count) - charged.unwrap_or_default();
                if rest.is_positive() {
                    usage.insert(name, rest);
                }
            }
        }
        usage
    }

    /// Returns the pod that is charged for the claim's devices; `None` if the claim is not the one
    /// that the pod uses, or the pod is not in the cache.
    /// Upstream: `getVerifiedPodUsage`.
    fn verified_pod(
        &self,
        claim: &ResourceClaim,
        claims: &Lister<ResourceClaim>,
    ) -> Option<Arc<Pod>> {
        let owner = owner(claim)?;
        let pod = self.pods.get(&ObjectKey::new(&claim.meta.namespace, &owner.name))?;
        if pod.meta.uid != owner.uid {
            return None;
        }
        let is_its_claim = match pod.extended_claim() {
            Some(name) => **name == *claim.meta.name,
            // Not named yet: the first claim that was made for the pod is used.
            None => {
                let age = |claim: &ResourceClaim| {
                    (claim.meta.creation_timestamp, claim.meta.name.clone())
                };
                let siblings = claims.by_index(&BY_OWNER, &IndexValue::Uid(owner.uid.clone()));
                siblings.iter().all(|sibling| age(sibling) >= age(claim))
            }
        };
        is_its_claim.then_some(pod)
    }
}
