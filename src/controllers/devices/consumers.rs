//! The claims that a pod uses, and the owner and the consumers of a claim.
//! Upstream: `k8s.io/dynamic-resource-allocation/resourceclaim`.

use crate::cache::{Index, IndexValue};
use crate::controllers::Error;
use crate::lookup::Lookup;
use crate::objects::{
    ClaimConsumer, Istr, Meta, ObjectKey, Pod, PodGroup, PodResourceClaim, Resource, ResourceClaim,
    ResourceClaimStatus,
};

/// The gate of claims that pods share with their PodGroup.
pub const GROUP_CLAIMS: &str = "DRAWorkloadResourceClaims";
const PODS: &str = "pods";
const POD_GROUPS: &str = "podgroups";
/// Upstream: `schedulingapi.GroupName`.
const SCHEDULING: &str = "scheduling.k8s.io";

/// The claim behind an entry of the `resourceClaims` of a pod or a PodGroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimName<'a> {
    /// The claim of this name, which the user creates.
    UserCreated(&'a Istr),
    /// The claim of this name, generated from a template. It counts only if its owner is the pod or
    /// PodGroup.
    Generated(&'a Istr),
    /// A claim is to be generated from a template.
    NotGenerated,
    /// No claim is needed.
    NotNeeded,
    /// The entry has a form that this build does not know.
    Unsupported,
}

/// The statuses of the entries of a pod or PodGroup, by the entries' names.
pub type ClaimStatuses<'a> = Lookup<'a, ResourceClaimStatus, str>;

/// Indexes the statuses by the names of their entries.
pub fn statuses_by_entry(statuses: &[ResourceClaimStatus]) -> ClaimStatuses<'_> {
    Lookup::new(statuses, |status| status.name.as_str())
}

impl<'a> ClaimName<'a> {
    /// Resolves the claim of `entry`: the name in the entry itself, or the one that its status has
    /// for a claim from a template.
    /// Upstream: `Name`, `NameFromPodGroup`.
    pub fn resolve(entry: &'a PodResourceClaim, statuses: &ClaimStatuses<'a>) -> ClaimName<'a> {
        if let Some(name) = &entry.resource_claim_name {
            return ClaimName::UserCreated(name);
        }
        if entry.resource_claim_template_name.is_none() {
            return ClaimName::Unsupported;
        }
        match statuses.get(&entry.name) {
            None => ClaimName::NotGenerated,
            Some(status) => match &status.resource_claim_name {
                None => ClaimName::NotNeeded,
                Some(name) if name.is_empty() => ClaimName::NotGenerated,
                Some(name) => ClaimName::Generated(name),
            },
        }
    }

    /// Returns whether the name of the claim is known and is `name`.
    pub fn is_named(self, name: &str) -> bool {
        self.name().is_some_and(|own| own == name)
    }

    /// Returns the name of the claim, if it is known.
    pub fn name(self) -> Option<&'a Istr> {
        match self {
            ClaimName::UserCreated(name) | ClaimName::Generated(name) => Some(name),
            ClaimName::NotGenerated | ClaimName::NotNeeded | ClaimName::Unsupported => None,
        }
    }
}

/// Returns a pod's claims: those of its spec, in its order, then the one that the scheduler made
/// for its extended resources.
pub fn claims_of(pod: &Pod) -> impl Iterator<Item = ClaimName<'_>> {
    let statuses = statuses_by_entry(pod.resource_claims());
    let entries = pod.spec.shape.resource_claims.iter();
    let named = entries.map(move |entry| ClaimName::resolve(entry, &statuses));
    named.chain(pod.extended_claim().map(ClaimName::Generated))
}

/// Returns whether the pod has any claim.
pub fn has_claims(pod: &Pod) -> bool {
    claims_of(pod).next().is_some()
}

/// Returns the key of the pod's PodGroup; `None` if it names none.
pub fn group_key(pod: &Pod) -> Option<ObjectKey> {
    let group = &pod.spec.shape.pod_group;
    if group.is_empty() { None } else { Some(ObjectKey::new(&pod.meta.namespace, group)) }
}

/// Indexes pods by their PodGroup.
pub const PODS_BY_GROUP: Index<Pod> = Index::new("podGroupMembers", |pod, add| {
    if let Some(group) = group_key(pod) {
        add(IndexValue::Key(group));
    }
});

/// Checks that the claim was generated for the pod or, with `group_claims`, for its PodGroup.
/// Upstream: `IsForPod`.
pub fn check_is_for_pod(pod: &Pod, claim: &ResourceClaim, group_claims: bool) -> Result<(), Error> {
    if claim.meta.is_controlled_by(&pod.meta.uid) {
        return Ok(());
    }
    let group = &pod.spec.shape.pod_group;
    let is_of_group = group_claims
        && !group.is_empty()
        && claim.meta.controller().is_some_and(|owner| {
            owner.name == *group && owner.kind == "PodGroup" && owner.group() == SCHEDULING
        });
    if is_of_group {
        return Ok(());
    }
    let why = match group_claims {
        true => format!("neither Pod nor PodGroup {group} is the owner"),
        false => "Pod is not owner".to_owned(),
    };
    Err(not_created_for(claim, "Pod", &pod.meta, &why))
}

/// Checks that the claim was generated for the PodGroup. Upstream: `IsForPodGroup`.
pub fn check_is_for_group(group: &PodGroup, claim: &ResourceClaim) -> Result<(), Error> {
    match claim.meta.is_controlled_by(&group.meta.uid) {
        true => Ok(()),
        false => Err(not_created_for(claim, "PodGroup", &group.meta, "PodGroup is not owner")),
    }
}

/// Makes the error that `claim` was generated for another object than `user`.
fn not_created_for(claim: &ResourceClaim, kind: &str, user: &Meta, why: &str) -> Error {
    let (claim, user) = (claim.meta.key(), user.key());
    Error::other(format!("ResourceClaim {claim} was not created for {kind} {user} ({why})"))
}

/// Returns whether a claim is reserved for the pod or, with `group_claims`, for its PodGroup, which
/// is compared by name: a pod does not know its uid. Upstream: `IsReservedForPod`.
pub fn is_reserved_for(pod: &Pod, claim: &ResourceClaim, group_claims: bool) -> bool {
    let group = &pod.spec.shape.pod_group;
    claim.status.reserved_for.iter().any(|consumer| {
        consumer.uid == pod.meta.uid
            || group_claims && !group.is_empty() && consumer.is_group() && *consumer.name == **group
    })
}

impl ClaimConsumer {
    pub fn is_pod(&self) -> bool {
        self.api_group.is_empty() && self.resource == PODS
    }

    pub fn is_group(&self) -> bool {
        self.api_group == SCHEDULING && self.resource == POD_GROUPS
    }
}

/// The consumer for which a claim of a pod is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consumer {
    Pod,
    PodGroup,
}

/// Returns for whom an entry's claim is reserved: for the PodGroup if it has the same entry, else
/// for the pod. `Err`: an entry has a form that this build does not know.
/// Upstream: `BindTo`.
pub fn consumer_of(
    pod: &Pod,
    group: Option<&PodGroup>,
    entry: &PodResourceClaim,
) -> Result<Consumer, Error> {
    if !is_supported(entry) {
        return Err(unsupported("Pod", &pod.meta, entry));
    }
    let Some(group) = group else { return Ok(Consumer::Pod) };
    for shared in &group.spec.resource_claims {
        if !is_supported(shared) {
            return Err(unsupported("PodGroup", &group.meta, shared));
        }
        if shared == entry {
            return Ok(Consumer::PodGroup);
        }
    }
    Ok(Consumer::Pod)
}

/// Returns whether the entry has a form that this build knows.
fn is_supported(entry: &PodResourceClaim) -> bool {
    entry.resource_claim_name.is_some() || entry.resource_claim_template_name.is_some()
}

/// Makes the error that an entry of the object with this metadata has an unknown form.
fn unsupported(kind: &str, meta: &Meta, entry: &PodResourceClaim) -> Error {
    let text = format!("{kind} {} claim {}: {UNSUPPORTED}", meta.key(), entry.name);
    Error::other(text)
}

/// Upstream: `ErrAPIUnsupported`.
pub const UNSUPPORTED: &str = "none of the supported fields are set";

/// Returns whether this is the type of a pod, or of a PodGroup in any version: the owners of
/// generated claims.
pub fn is_owner_of_claims(api_version: &str, kind: &str) -> bool {
    match kind {
        "Pod" => api_version == Pod::RESOURCE.api_version(),
        "PodGroup" => api_version.split_once('/').is_some_and(|(group, _)| group == SCHEDULING),
        _ => false,
    }
}

#[cfg(test)]
pub(super) mod testing {
    use serde_json::{Value, json};

    use crate::objects::{Pod, PodGroup, ResourceClaim};

    /// A pod "p" of uid "pod" with `spec` and `status`.
    pub fn pod(spec: Value, status: Value) -> Pod {
        let metadata = json!({ "namespace": "ns", "name": "p", "uid": "pod" });
        let pod = json!({ "metadata": metadata, "spec": spec, "status": status });
        serde_json::from_value(pod).unwrap()
    }

    /// A PodGroup "g" of uid "group".
    pub fn group(claims: Value) -> PodGroup {
        let metadata = json!({ "namespace": "ns", "name": "g", "uid": "group" });
        let spec = json!({ "resourceClaims": claims });
        serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
    }

    /// An owner reference to [`pod`] or [`group`].
    pub fn owner(kind: &str) -> Value {
        let (version, name, uid) = match kind {
            "Pod" => ("v1", "p", "pod"),
            _ => ("scheduling.k8s.io/v1alpha2", "g", "group"),
        };
        json!({
            "apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": true,
        })
    }

    /// A claim "c".
    pub fn claim(owners: Value, status: Value) -> ResourceClaim {
        let metadata = json!({
            "namespace": "ns", "name": "c", "uid": "claim", "resourceVersion": "7",
            "ownerReferences": owners,
        });
        serde_json::from_value(json!({ "metadata": metadata, "status": status })).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::testing::*;
    use super::*;

    fn entry(value: Value) -> PodResourceClaim {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn the_name_of_a_claim_is_given_made_or_missing() {
        let statuses: Vec<ResourceClaimStatus> = serde_json::from_value(json!([
            { "name": "made", "resourceClaimName": "p-made-x" },
            { "name": "skipped" },
            { "name": "odd", "resourceClaimName": "" },
        ]))
        .unwrap();
        let (mine, made) = (Istr::new("mine"), Istr::new("p-made-x"));
        for (value, name) in [
            (json!({ "name": "a", "resourceClaimName": "mine" }), ClaimName::UserCreated(&mine)),
            (
                json!({ "name": "made", "resourceClaimTemplateName": "t" }),
                ClaimName::Generated(&made),
            ),
            (json!({ "name": "skipped", "resourceClaimTemplateName": "t" }), ClaimName::NotNeeded),
            (json!({ "name": "odd", "resourceClaimTemplateName": "t" }), ClaimName::NotGenerated),
            (json!({ "name": "new", "resourceClaimTemplateName": "t" }), ClaimName::NotGenerated),
            (json!({ "name": "made" }), ClaimName::Unsupported),
        ] {
            assert_eq!(
                ClaimName::resolve(&entry(value.clone()), &statuses_by_entry(&statuses)),
                name,
                "{value}"
            );
        }
    }

    #[test]
    fn the_claims_of_a_pod_are_those_of_its_spec_and_that_for_its_extended_resources() {
        let spec = json!({ "resourceClaims": [
            { "name": "a", "resourceClaimTemplateName": "t" },
            { "name": "b", "resourceClaimName": "mine" },
        ] });
        let made = json!([{ "name": "a", "resourceClaimName": "p-a-x" }]);
        let extended = json!({ "resourceClaimName": "p-extended-x" });
        for (spec, status, names) in [
            (json!({}), json!({}), &[][..]),
            (spec.clone(), json!({}), &["mine"]),
            (spec.clone(), json!({ "resourceClaimStatuses": made }), &["p-a-x", "mine"]),
            (json!({}), json!({ "extendedResourceClaimStatus": extended }), &["p-extended-x"]),
            (
                spec,
                json!({ "resourceClaimStatuses": made, "extendedResourceClaimStatus": extended }),
                &["p-a-x", "mine", "p-extended-x"],
            ),
        ] {
            let pod = pod(spec, status.clone());
            let found: Vec<&str> =
                claims_of(&pod).filter_map(ClaimName::name).map(|name| &**name).collect();
            assert_eq!(found, names, "{status}");
        }
    }

    #[test]
    fn a_claim_is_for_its_owner() {
        let grouped = pod(json!({ "schedulingGroup": { "podGroupName": "g" } }), json!({}));
        let alone = pod(json!({}), json!({}));
        let mut of_another_api = owner("PodGroup");
        of_another_api["apiVersion"] = json!("example.com/v1");
        let mut not_controller = owner("Pod");
        not_controller["controller"] = json!(false);
        let text = |why: &str| format!("ResourceClaim ns/c was not created for Pod ns/p ({why})");
        let (pod_only, neither) =
            (text("Pod is not owner"), text("neither Pod nor PodGroup g is the owner"));
        for (owners, pod, groups, fault) in [
            (json!([owner("Pod")]), &alone, false, None),
            (json!([owner("Pod")]), &grouped, true, None),
            (json!([not_controller]), &alone, false, Some(&pod_only)),
            (json!([]), &alone, false, Some(&pod_only)),
            (json!([owner("PodGroup")]), &grouped, true, None),
            (json!([owner("PodGroup")]), &grouped, false, Some(&pod_only)),
            (json!([of_another_api]), &grouped, true, Some(&neither)),
        ] {
            let found = check_is_for_pod(pod, &claim(owners.clone(), json!({})), groups);
            let found = found.err().map(|error| error.to_string());
            assert_eq!(found.as_ref(), fault, "{owners} {groups}");
        }
        assert!(
            check_is_for_pod(&alone, &claim(json!([owner("PodGroup")]), json!({})), true).is_err()
        );
        let made = claim(json!([owner("PodGroup")]), json!({}));
        assert!(check_is_for_group(&group(json!([])), &made).is_ok());
        assert!(check_is_for_group(&group(json!([])), &claim(json!([]), json!({}))).is_err());
    }

    #[test]
    fn a_claim_is_reserved_for_a_pod_or_its_group() {
        let grouped = pod(json!({ "schedulingGroup": { "podGroupName": "g" } }), json!({}));
        let alone = pod(json!({}), json!({}));
        let reserved = |consumer: Value| claim(json!([]), json!({ "reservedFor": [consumer] }));
        let to_group = |name: &str, api_group: &str| json!({ "apiGroup": api_group, "resource": "podgroups", "name": name, "uid": "x" });
        let to_pod = json!({ "resource": "pods", "name": "p", "uid": "pod" });
        let old_pod = json!({ "resource": "pods", "name": "p", "uid": "old" });
        for (consumer, pod, groups, is_reserved) in [
            (to_pod, &alone, false, true),
            (old_pod, &alone, true, false),
            (to_group("g", SCHEDULING), &grouped, true, true),
            (to_group("g", SCHEDULING), &grouped, false, false),
            (to_group("h", SCHEDULING), &grouped, true, false),
            (to_group("g", "example.com"), &grouped, true, false),
            (to_group("g", SCHEDULING), &alone, true, false),
        ] {
            assert_eq!(
                is_reserved_for(pod, &reserved(consumer.clone()), groups),
                is_reserved,
                "{consumer}"
            );
        }
    }

    #[test]
    fn an_entry_that_pod_and_group_share_is_reserved_for_the_group() {
        let pod = pod(json!({ "schedulingGroup": { "podGroupName": "g" } }), json!({}));
        let template = |name: &str, template: &str| json!({ "name": name, "resourceClaimTemplateName": template });
        let given = json!({ "name": "a", "resourceClaimName": "t" });
        let unsupported = json!({ "name": "x" });
        let bind = |shared: &Value, own: &Value| {
            let group = group(json!([shared]));
            let bound = consumer_of(&pod, Some(&group), &entry(own.clone()));
            bound.map_err(|error| error.to_string())
        };
        let a = template("a", "t");
        assert_eq!(bind(&a, &a), Ok(Consumer::PodGroup));
        assert_eq!(bind(&given, &given), Ok(Consumer::PodGroup));
        for other in [template("b", "t"), template("a", "u"), given.clone()] {
            assert_eq!(bind(&a, &other), Ok(Consumer::Pod), "{other}");
        }
        assert_eq!(consumer_of(&pod, None, &entry(a.clone())).unwrap(), Consumer::Pod);
        let text = |what: &str| format!("{what} claim x: none of the supported fields are set");
        assert_eq!(bind(&a, &unsupported), Err(text("Pod ns/p")));
        assert_eq!(bind(&unsupported, &a), Err(text("PodGroup ns/g")));
    }
}
