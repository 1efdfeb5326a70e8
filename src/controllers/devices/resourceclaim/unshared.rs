//! Pods of PodGroups while claims are not shared with PodGroups: without the gate
//! `DRAWorkloadResourceClaims`.

use super::pods::find_group;
use crate::cache::Lister;
use crate::controllers::devices::consumers::{Consumer, GROUP_CLAIMS, consumer_of};
use crate::controllers::{Controller, Error};
use crate::objects::{Pod, PodGroup, PodResourceClaim};
use crate::options::Release;

/// The gate of PodGroups.
const POD_GROUPS_GATE: &str = "GenericWorkload";

/// Whether a pod may have a claim of its own for an entry that its PodGroup may have as well. Since
/// 1.37 it may not, so that one manager with the gate off among others does not make a claim for
/// each pod where the API server has accepted one for all (pull request 138363 and KEP 5729).
pub(super) enum UnsharedClaims {
    /// The release is older, or claims are shared.
    Allowed,
    /// Allowed unless the PodGroup has the same entry.
    ByGroup(Lister<PodGroup>),
    /// The gate of PodGroups is off, so they are not read.
    Refused,
}

impl UnsharedClaims {
    /// Chooses the rule for this release and these feature gates.
    pub fn new(c: &mut Controller) -> UnsharedClaims {
        if c.options().release() < Release::V1_37 || c.feature(GROUP_CLAIMS) {
            UnsharedClaims::Allowed
        } else if c.feature(POD_GROUPS_GATE) {
            UnsharedClaims::ByGroup(c.lister())
        } else {
            UnsharedClaims::Refused
        }
    }

    /// Returns the PodGroups that are read to decide, if any.
    pub fn groups(&self) -> Option<&Lister<PodGroup>> {
        match self {
            UnsharedClaims::ByGroup(groups) => Some(groups),
            UnsharedClaims::Allowed | UnsharedClaims::Refused => None,
        }
    }

    /// Checks that a claim may be made for this entry of the pod; always so without a PodGroup.
    ///
    /// # Errors
    /// The entry is that of the PodGroup, or the PodGroup is not known.
    pub fn check(&self, pod: &Pod, entry: &PodResourceClaim) -> Result<(), Error> {
        let name = &pod.spec.shape.pod_group;
        if name.is_empty() {
            return Ok(());
        }
        let (gate, why) = match self {
            UnsharedClaims::Allowed => return Ok(()),
            UnsharedClaims::ByGroup(groups) => {
                let group = find_group(groups, pod)?;
                if consumer_of(pod, group.as_deref(), entry)? == Consumer::Pod {
                    return Ok(());
                }
                (GROUP_CLAIMS, "the claim is that of PodGroup")
            }
            UnsharedClaims::Refused => (POD_GROUPS_GATE, "Pod is in PodGroup"),
        };
        Err(Error::other(format!("{gate} feature is disabled but {why} {name}")))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::cache::Indexer;
    use crate::controllers::devices::consumers::testing::{group, pod};

    /// Pull request 138363.
    #[test]
    fn claim_is_not_made_where_it_may_be_that_of_the_pod_group() {
        let entry = |name: &str| json!({ "name": name, "resourceClaimTemplateName": "t" });
        let grouped = pod(json!({ "schedulingGroup": { "podGroupName": "g" } }), json!({}));
        let alone = pod(json!({}), json!({}));
        let with = |groups: Vec<PodGroup>| {
            let known = Arc::new(Indexer::new());
            groups.into_iter().for_each(|group| drop(known.insert(Arc::new(group))));
            UnsharedClaims::ByGroup(Lister::new(known))
        };
        let known = || with(vec![group(json!([entry("shared")]))]);
        let of_group =
            "DRAWorkloadResourceClaims feature is disabled but the claim is that of PodGroup g";
        let in_group = "GenericWorkload feature is disabled but Pod is in PodGroup g";
        let missing = "get PodGroup for Pod ns/p: podgroup.scheduling.k8s.io \"g\" not found";
        for (unshared, pod, name, fault) in [
            (UnsharedClaims::Allowed, &grouped, "shared", None),
            (UnsharedClaims::Refused, &grouped, "own", Some(in_group)),
            (UnsharedClaims::Refused, &alone, "own", None),
            (known(), &grouped, "shared", Some(of_group)),
            (known(), &grouped, "own", None),
            (known(), &alone, "shared", None),
            (with(vec![]), &grouped, "own", Some(missing)),
        ] {
            let entry = serde_json::from_value(entry(name)).expect("an entry");
            let found = unshared.check(pod, &entry).err().map(|error| error.to_string());
            assert_eq!(found.as_deref(), fault, "{name}");
        }
    }
}
