//! The Deployments that an event queues.

use std::sync::Arc;

use crate::cache::{Deleted, Lister};
use crate::controllers::Queue;
use crate::controllers::runner::{Change, Mapper};
use crate::controllers::workloads::ref_manager::{owned, owned_pods};
use crate::objects::{Deployment, ObjectKey, OwnerReference, Pod, ReplicaSet, Resource, Selector};

/// The Deployment that `owner`, a reference of an object in `namespace`, names; its uid agrees.
/// Upstream: `resolveControllerRef`.
fn resolve(
    deployments: &Lister<Deployment>,
    namespace: &str,
    owner: &OwnerReference,
) -> Option<Arc<Deployment>> {
    if owner.kind != *Deployment::RESOURCE.kind {
        return None;
    }
    let found = deployments.get(&ObjectKey::new(namespace, &owner.name))?;
    (found.meta.uid == owner.uid).then_some(found)
}

/// A ReplicaSet wakes its Deployment, and its previous one. An orphan wakes the Deployments that
/// select it, when it appears and when its labels or its owner change.
pub(super) fn by_replica_set(
    deployments: Lister<Deployment>,
) -> impl Mapper<ReplicaSet, ObjectKey> {
    move |change, queue| match change {
        Change::Added { new, .. } if !new.meta.is_being_deleted() => {
            if !wake_owner(&deployments, new, queue) {
                wake_selecting(&deployments, new, queue);
            }
        }
        // A manager that starts late sees a set that is being deleted as an addition.
        Change::Added { new, .. } => {
            wake_owner(&deployments, new, queue);
        }
        Change::Updated { old, new } => {
            if old.meta.resource_version == new.meta.resource_version {
                return;
            }
            let owner_changed = old.meta.controller() != new.meta.controller();
            if owner_changed {
                wake_owner(&deployments, old, queue);
            }
            let changed = owner_changed || old.meta.labels != new.meta.labels;
            if !wake_owner(&deployments, new, queue) && changed {
                wake_selecting(&deployments, new, queue);
            }
        }
        Change::Deleted(Deleted::Known(gone) | Deleted::FinalStateUnknown(gone)) => {
            wake_owner(&deployments, gone, queue);
        }
        Change::Resync { .. } => {}
    }
}

/// Wakes the controller of `set` if it is a Deployment. Returns whether `set` has a controller.
fn wake_owner(deployments: &Lister<Deployment>, set: &ReplicaSet, queue: &Queue) -> bool {
    let Some(owner) = set.meta.controller() else { return false };
    if let Some(found) = resolve(deployments, &set.meta.namespace, owner) {
        queue.add(found.meta.key());
    }
    true
}

fn wake_selecting(deployments: &Lister<Deployment>, orphan: &ReplicaSet, queue: &Queue) {
    if orphan.meta.labels.is_empty() {
        return;
    }
    for candidate in deployments.in_namespace(&orphan.meta.namespace) {
        if selects(&candidate, orphan) {
            queue.add(candidate.meta.key());
        }
    }
}

/// An empty selector, which validation refuses, selects nothing here.
/// Upstream: `GetDeploymentsForReplicaSet`.
fn selects(deployment: &Deployment, set: &ReplicaSet) -> bool {
    let selector = Selector::try_from(deployment.spec.selector.as_ref());
    selector.is_ok_and(|selector| !selector.is_empty() && selector.matches(&set.meta.labels))
}

/// The last pod to go wakes a Deployment that recreates: it waits for that. Upstream: `deletePod`.
pub(super) fn by_pod(
    deployments: Lister<Deployment>,
    replica_sets: Lister<ReplicaSet>,
    pods: Lister<Pod>,
) -> impl Mapper<Pod, ObjectKey> {
    move |change, queue| {
        let Change::Deleted(gone) = change else { return };
        let pod = gone.object();
        let Some(owner) = pod.meta.controller() else { return };
        if owner.kind != *ReplicaSet::RESOURCE.kind {
            return;
        }
        let key = ObjectKey::new(&pod.meta.namespace, &owner.name);
        let set = replica_sets.get(&key).filter(|set| set.meta.uid == owner.uid);
        let Some(deployment) = set
            .as_ref()
            .and_then(|set| resolve(&deployments, &set.meta.namespace, set.meta.controller()?))
        else {
            return;
        };
        if deployment.spec.strategy.r#type != "Recreate" {
            return;
        }
        let sets = owned(&replica_sets, &deployment.meta);
        if sets.iter().all(|set| owned_pods::<ReplicaSet>(&pods, &set.meta).is_empty()) {
            queue.add(deployment.meta.key());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn an_orphan_is_selected_by_its_labels_and_never_by_an_empty_selector() {
        let set: ReplicaSet =
            serde_json::from_value(json!({"metadata": {"labels": {"app": "a"}}})).unwrap();
        for (selector, selected) in [
            (json!({"matchLabels": {"app": "a"}}), true),
            (json!({"matchLabels": {"app": "b"}}), false),
            (json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]}), true),
            (json!({"matchExpressions": [{"key": "app", "operator": "Is"}]}), false),
            (json!({}), false),
            (Value::Null, false),
        ] {
            let deployment: Deployment =
                serde_json::from_value(json!({"spec": {"selector": selector}})).unwrap();
            assert_eq!(selects(&deployment, &set), selected, "{selector}");
        }
    }
}
