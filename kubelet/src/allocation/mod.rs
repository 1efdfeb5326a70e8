//! Resources of pods that change while they run: what the kubelet has allocated to them, what it has
//! actuated in the runtime, and which resizes wait. Upstream: `pkg/kubelet/allocation`.

mod checkpoint;
mod conditions;
mod error;
mod pending;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ResourceRequirements;
use serde::{Deserialize, Serialize};

pub use self::checkpoint::Checkpoint;
pub use self::conditions::{ResizeConditions, ResizeState};
pub use self::error::Error;
pub use self::pending::{order, requests_grow};

use crate::pod::{Pod, listed};

/// The resources of a pod: its own, and those of its containers by name.
/// Upstream: `PodResourceInfo`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PodResources {
    #[serde(deserialize_with = "null_is_empty")]
    pub container_resources: BTreeMap<String, ResourceRequirements>,
    pub pod_level_resources: Option<ResourceRequirements>,
}

/// Decodes a map, which Go writes as null when it is not set.
fn null_is_empty<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, ResourceRequirements>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl PodResources {
    /// Returns the resources that a pod's definition asks for. Upstream: `allocationFromPod`.
    pub fn of(pod: &Pod) -> PodResources {
        let spec = pod.spec.as_ref();
        let containers = spec
            .into_iter()
            .flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
        PodResources {
            container_resources: containers
                .map(|one| (one.name.clone(), one.resources.clone().unwrap_or_default()))
                .collect(),
            pod_level_resources: spec.and_then(|spec| spec.resources.clone()),
        }
    }

    /// Returns the pod with these resources in place of those of its definition; `None`: they are
    /// the same. Containers without a record keep their own. Upstream: `updatePodFromAllocation`.
    pub fn apply(&self, pod: &Pod) -> Option<Pod> {
        let wanted = PodResources::of(pod);
        let none = ResourceRequirements::default();
        let of_pod = [&wanted, self].map(|one| one.pod_level_resources.as_ref().unwrap_or(&none));
        let is_same = |(name, resources): (&String, &ResourceRequirements)| {
            let recorded = self.container_resources.get(name);
            recorded.is_none_or(|recorded| is_equal(recorded, resources))
        };
        if is_equal(of_pod[0], of_pod[1]) && wanted.container_resources.iter().all(is_same) {
            return None;
        }
        let mut pod = pod.clone();
        let spec = pod.spec.as_mut()?;
        spec.resources.clone_from(&self.pod_level_resources);
        for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
            if let Some(recorded) = self.container_resources.get(&container.name) {
                container.resources = Some(recorded.clone());
            }
        }
        Some(pod)
    }
}

/// Returns whether both have the same amounts, in any notation. Upstream: `Semantic.DeepEqual`.
fn is_equal(a: &ResourceRequirements, b: &ResourceRequirements) -> bool {
    let names = [&a.requests, &b.requests, &a.limits, &b.limits].into_iter().flatten();
    let mut names = names.flat_map(BTreeMap::keys);
    let is_same = |name: &String| {
        let of = |lists, is_limit| listed(Some(lists), name, is_limit);
        [false, true].into_iter().all(|is_limit| match (of(a, is_limit), of(b, is_limit)) {
            (Some(a), Some(b)) => a.compare(b).is_eq(),
            (a, b) => a.is_none() && b.is_none(),
        })
    };
    a.claims == b.claims && names.all(is_same)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(cpu: &str, own: Value) -> Pod {
        let container =
            |name: &str, cpu: &str| json!({"name": name, "resources": {"requests": {"cpu": cpu}}});
        let spec = json!({
            "initContainers": [container("i", "1")],
            "containers": [container("c", cpu), {"name": "d"}],
            "resources": own,
        });
        serde_json::from_value(json!({"metadata": {"uid": "u"}, "spec": spec})).expect("a pod")
    }

    #[test]
    fn allocation_replaces_the_resources_of_a_definition() {
        let before = pod("1", json!(null));
        let allocated = PodResources::of(&before);
        assert_eq!(allocated.apply(&before), None);
        assert_eq!(
            allocated.apply(&pod("2", json!(null))),
            Some(before.clone()).map(|mut pod| {
                // An absent list is an empty one.
                pod.spec.as_mut().expect("a spec").containers[1].resources =
                    Some(Default::default());
                pod
            })
        );
        let own = json!({"limits": {"cpu": "3"}});
        let with_own = PodResources::of(&pod("1", own.clone()));
        assert_eq!(
            with_own.apply(&before).and_then(|pod| pod.spec?.resources),
            serde_json::from_value(own).expect("resources")
        );
        // Another notation is no other amount.
        assert_eq!(allocated.apply(&pod("1000m", json!(null))), None);
        // A container without a record keeps its own.
        let empty = PodResources::default();
        assert_eq!(empty.apply(&before), None);
    }
}
