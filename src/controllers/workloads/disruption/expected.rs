//! How many pods the controllers of a budget's pods ask for, and how many of them must be healthy.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::Disruption;
use crate::cache::Lister;
use crate::client::Scales;
use crate::controllers::workloads::percent::resolve_rounding_up;
use crate::controllers::{Error, keys};
use crate::objects::{
    Object, ObjectKey, OwnerReference, Pod, PodDisruptionBudget, PodDisruptionBudgetSpec, Resource,
    Uid,
};

/// What the message about a controller without a Scale says in addition to the Go manager's.
pub(super) const SCALE_HINT: &str = "; a budget of its pods needs an integer minAvailable";

/// The pods that a budget expects.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Expected {
    pub count: i32,
    /// How many of them must be healthy.
    pub desired: i32,
    /// Some pods have no controller.
    pub has_unmanaged: bool,
}

/// The replicas of the controller that decides on the number of a pod's fellows.
#[derive(Debug, PartialEq)]
enum Scale {
    Found(Uid, i32),
    /// The controller does not exist.
    Gone,
    /// It has no scale, for this reason.
    Missing(String),
}

/// What a budget asks for.
#[derive(Debug, PartialEq)]
enum Demand<'a> {
    /// This number of the pods that exist.
    Count(i32),
    /// All but these of the pods that controllers ask for.
    AllBut(&'a IntOrString),
    /// This part of the pods that controllers ask for.
    Part(&'a IntOrString),
    Nothing,
}

impl Demand<'_> {
    /// Reads what the budget asks for. The API server allows only one of both fields.
    fn new(spec: &PodDisruptionBudgetSpec) -> Demand<'_> {
        match (&spec.max_unavailable, &spec.min_available) {
            (Some(value), _) => Demand::AllBut(value),
            (None, Some(IntOrString::Int(count))) => Demand::Count(*count),
            (None, Some(percent)) => Demand::Part(percent),
            (None, None) => Demand::Nothing,
        }
    }

    /// Returns how many of `expected` pods must be healthy.
    fn desired(&self, expected: i32) -> Result<i32, String> {
        match self {
            Demand::Count(count) => Ok(*count),
            Demand::Part(part) => resolve_rounding_up(part, expected),
            Demand::AllBut(value) => {
                Ok(expected.saturating_sub(resolve_rounding_up(value, expected)?).max(0))
            }
            Demand::Nothing => Ok(0),
        }
    }
}

impl Disruption {
    /// Computes how many pods a budget expects, and how many of them must be healthy.
    /// Upstream: `getExpectedPodCount`.
    pub(super) async fn expected(
        &self,
        budget: &PodDisruptionBudget,
        pods: &[Arc<Pod>],
    ) -> Result<Expected, Error> {
        let demand = Demand::new(&budget.spec);
        let (count, has_unmanaged) = match demand {
            Demand::Nothing => (0, false),
            Demand::Count(_) => (i32::try_from(pods.len()).unwrap_or(i32::MAX), false),
            Demand::AllBut(_) | Demand::Part(_) => self.expected_scale(pods).await?,
        };
        let desired = demand.desired(count).map_err(Error::other)?;
        Ok(Expected { count, desired, has_unmanaged })
    }

    /// Returns the sum of the replicas of all controllers of `pods`, and whether some pods have
    /// none. A controller without a scale is an error unless all its pods have finished, as those
    /// of a Job: no eviction can disrupt them.
    /// Upstream: `getExpectedScale`, where it is always an error.
    async fn expected_scale(&self, pods: &[Arc<Pod>]) -> Result<(i32, bool), Error> {
        let mut scales: HashMap<Uid, i32> = HashMap::new();
        let (mut seen_owners, mut has_unmanaged) = (HashSet::new(), false);
        let (finished, live): (Vec<_>, Vec<_>) = pods.iter().partition(|pod| pod.is_terminal());
        for pod in live.into_iter().chain(finished) {
            let Some(owner) = pod.meta.controller() else {
                has_unmanaged = true;
                continue;
            };
            if !seen_owners.insert(&owner.uid) {
                continue;
            }
            match self.scale_of(&pod.meta.namespace, owner).await? {
                Scale::Found(uid, replicas) => _ = scales.insert(uid, replicas),
                Scale::Gone | Scale::Missing(_) if pod.is_terminal() => {}
                Scale::Gone => {
                    let name = &pod.meta.name;
                    return Err(Error::other(format!("found no controllers for pod {name:?}")));
                }
                Scale::Missing(why) => return Err(Error::other(why)),
            }
        }
        let sum = scales.values().copied().fold(0, i32::saturating_add);
        Ok((sum, has_unmanaged))
    }

    /// Returns the scale of the controller that decides on the number of pods: `owner`, a
    /// controller of pods, or the controller of `owner`. The caches answer for the built-in kinds,
    /// Scales for the others. A DaemonSet has no Scale: it wants a pod for each of its nodes.
    /// Upstream: `finders`.
    async fn scale_of(&self, namespace: &str, owner: &OwnerReference) -> Result<Scale, Error> {
        let cached = match (owner.group(), owner.kind.as_str()) {
            ("", "ReplicationController") => {
                replicas(&self.controllers, namespace, owner, |found| found.spec.replicas)
            }
            ("apps", "StatefulSet") => {
                replicas(&self.stateful_sets, namespace, owner, |found| found.spec.replicas)
            }
            ("apps" | "extensions", "ReplicaSet") => self.of_replica_set(namespace, owner),
            ("apps", "DaemonSet") => {
                let found = replicas(&self.daemon_sets, namespace, owner, |found| {
                    Some(found.status.desired_number_scheduled)
                });
                return Ok(found.map_or(Scale::Gone, |(uid, replicas)| Scale::Found(uid, replicas)));
            }
            _ => None,
        };
        match cached {
            Some((uid, replicas)) => Ok(Scale::Found(uid, replicas)),
            None => by_scale(&self.scales, namespace, owner).await,
        }
    }

    /// Returns the scale of the Deployment that controls a ReplicaSet; without one, the
    /// ReplicaSet's own. `None`: one of both is not in the cache, or the Deployment is of another
    /// group.
    fn of_replica_set(&self, namespace: &str, owner: &OwnerReference) -> Option<(Uid, i32)> {
        let set = keys::resolve(&self.sets, namespace, owner)?;
        match set.meta.controller().filter(|controller| controller.kind == "Deployment") {
            None => Some((set.meta.uid.clone(), set.replicas())),
            Some(deployment) if matches!(deployment.group(), "apps" | "extensions") => {
                replicas(&self.deployments, namespace, deployment, |found| found.spec.replicas)
            }
            Some(_) => None,
        }
    }
}

/// Returns the uid and the number of replicas of `owner`; `None` if it is not in the cache. Without
/// a number in its spec the API's default, 1, counts.
fn replicas<O: Object + Resource>(
    lister: &Lister<O>,
    namespace: &str,
    owner: &OwnerReference,
    replicas: fn(&O) -> Option<i32>,
) -> Option<(Uid, i32)> {
    let found = keys::resolve(lister, namespace, owner)?;
    Some((found.meta().uid.clone(), replicas(&found).unwrap_or(1)))
}

/// Reads the Scale of a controller of any kind from the API server.
/// Upstream: `getScaleController`.
async fn by_scale(
    scales: &Scales,
    namespace: &str,
    owner: &OwnerReference,
) -> Result<Scale, Error> {
    let (group, api_version) = (owner.group(), owner.api_version.as_str());
    let version = api_version.rsplit('/').next().unwrap_or_default();
    let resources = scales.resources_of(group, &owner.kind, Some(version)).await?;
    let Some(resource) = resources.first() else {
        let kind = owner.kind.as_str();
        let why = format!("no matches for kind {kind:?} in version {api_version:?}");
        return Ok(Scale::Missing(why));
    };
    match scales.get(resource, &ObjectKey::new(namespace, &owner.name)).await {
        Ok(scale) if scale.meta.uid == owner.uid => {
            Ok(Scale::Found(scale.meta.uid, scale.replicas))
        }
        // Another object of this name.
        Ok(_) => Ok(Scale::Gone),
        Err(error) if error.is_not_found() => match scales.are_served(resource).await? {
            true => Ok(Scale::Gone),
            false => Ok(Scale::Missing(format!(
                "{resource} does not implement the scale subresource{SCALE_HINT}"
            ))),
        },
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_must_be_healthy() {
        let int = |number| Some(IntOrString::Int(number));
        let percent = |text: &str| Some(IntOrString::String(text.to_owned()));
        // minAvailable, maxUnavailable, the pods expected, and how many must be healthy.
        for (min, max, expected, desired) in [
            (int(3), None, 1, Ok(3)),
            (int(0), None, 10, Ok(0)),
            (percent("28%"), None, 10, Ok(3)),
            (percent("90%"), None, 8, Ok(8)),
            (percent("0%"), None, 8, Ok(0)),
            (percent("66%"), None, 1, Ok(1)),
            (None, int(2), 10, Ok(8)),
            (None, int(2), 1, Ok(0)),
            (None, percent("30%"), 10, Ok(7)),
            (None, percent("28%"), 10, Ok(7)),
            (None, percent("150%"), 10, Ok(0)),
            (percent("x"), None, 1, Err(())),
            (None, percent("x"), 1, Err(())),
            (None, None, 5, Ok(0)),
        ] {
            let spec = PodDisruptionBudgetSpec {
                min_available: min.clone(),
                max_unavailable: max.clone(),
                selector: None,
            };
            let got = Demand::new(&spec).desired(expected).map_err(drop);
            assert_eq!(got, desired, "{min:?} {max:?} of {expected}");
        }
    }
}
