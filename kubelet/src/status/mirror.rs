//! Mirror pods: for each static pod one on the API server, which shows its status and lets the
//! scheduler count what it asks for. It is never run.
//! Upstream: `pkg/kubelet/pod/mirror_client.go`, `tryReconcileMirrorPods`.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube_controller_manager::client::{Client, Delete, Error};
use kube_controller_manager::objects::{self, ObjectKey, Resource};

use crate::pod::{CONFIG_HASH, CONFIG_MIRROR, Pod, PodExt, annotations_mut};

/// What has to be done about a mirror pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Of this static pod.
    Create(Arc<Pod>),
    /// The first is deleted, for that of the second.
    Replace(Arc<Pod>, Arc<Pod>),
    /// No source has its static pod.
    Delete(Arc<Pod>),
}

/// The pods of one full name.
#[derive(Clone, Copy, Debug, Default)]
pub struct Names<'a> {
    /// The static pod that a source has.
    pub pod: Option<&'a Arc<Pod>>,
    /// Whether the static pod runs: one that has ended, was rejected, or waits for another of its
    /// name, gets no mirror pod.
    pub is_synced: bool,
    pub mirror: Option<&'a Arc<Pod>>,
    /// Whether all sources were read, and no static pod of the name is ending.
    pub may_delete: bool,
}

/// Returns whether the mirror pod shows this state of the static pod. Upstream: `IsMirrorPodOf`.
pub fn is_mirror_of(mirror: &Pod, pod: &Pod) -> bool {
    let hash = mirror.annotation(CONFIG_MIRROR);
    mirror.full_name() == pod.full_name() && hash.is_some() && hash == pod.annotation(CONFIG_HASH)
}

impl Names<'_> {
    /// Decides what to do about a mirror pod. `None`: nothing, for now.
    pub fn step(&self) -> Option<Step> {
        match (self.pod, self.mirror) {
            (None, Some(mirror)) if self.may_delete => Some(Step::Delete(mirror.clone())),
            (Some(pod), None) if self.is_synced => Some(Step::Create(pod.clone())),
            (Some(pod), Some(mirror)) if self.is_synced => {
                let is_stale =
                    mirror.metadata.deletion_timestamp.is_some() || !is_mirror_of(mirror, pod);
                is_stale.then(|| Step::Replace(mirror.clone(), pod.clone()))
            }
            _ => None,
        }
    }
}

/// Builds the mirror pod of a static pod of this Node; `None`: the Node has no uid.
fn definition(pod: &Pod, node: &core::Node) -> Option<Pod> {
    let mut mirror = pod.clone();
    let hash = pod.annotation(CONFIG_HASH).unwrap_or_default().to_owned();
    annotations_mut(&mut mirror).insert(CONFIG_MIRROR.to_owned(), hash);
    mirror.metadata.uid = None;
    mirror.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.metadata.name.clone()?,
        uid: node.metadata.uid.clone()?,
        controller: Some(true),
        block_owner_deletion: None,
    }]);
    Some(mirror)
}

/// Creates the mirror pod of a static pod, unless its Node has no uid or is being deleted. If the
/// server has a pod of this name, that one stays: the watch shows it.
///
/// # Errors
/// The server refuses it, or does not answer.
pub async fn create(client: &Client, pod: &Pod, node: &core::Node) -> Result<(), Error> {
    if node.metadata.deletion_timestamp.is_some() {
        log::info!("pod {} gets no mirror pod: its Node is deleted", pod.display_name());
        return Ok(());
    }
    let Some(mirror) = definition(pod, node) else { return Ok(()) };
    let pods = client.resource(&objects::Pod::RESOURCE);
    match pods.create::<serde::de::IgnoredAny>(pod.namespace(), &mirror).await {
        Ok(_) => {
            log::info!("Created the mirror pod of {}", pod.display_name());
            Ok(())
        }
        Err(error) if error.is_already_exists() => {
            log::debug!("the mirror pod of {}: {error}", pod.display_name());
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Deletes a mirror pod at once. Returns whether it was deleted: it may be gone, or another one may
/// have its name.
///
/// # Errors
/// The server refuses it, or does not answer.
pub async fn delete(client: &Client, mirror: &Pod) -> Result<bool, Error> {
    let key = ObjectKey::new(mirror.namespace(), mirror.name());
    let delete = Delete::new().grace_period(0).uid((&*mirror.uid()).into());
    match client.resource(&objects::Pod::RESOURCE).delete(&key, delete).await {
        Ok(()) => {
            log::info!("Deleted the mirror pod {}", mirror.display_name());
            Ok(true)
        }
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(key: &str, hash: &str, more: Value) -> Arc<Pod> {
        let mut pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": hash,
                                          "annotations": {key: hash}}});
        for (field, value) in more.as_object().into_iter().flatten() {
            pod["metadata"][field] = value.clone();
        }
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    #[test]
    fn mirror_pods_follow_static_pods() {
        let of = pod(CONFIG_HASH, "1", json!({}));
        let same = pod(CONFIG_MIRROR, "1", json!({}));
        let stale = pod(CONFIG_MIRROR, "0", json!({}));
        let other = pod(CONFIG_MIRROR, "1", json!({"name": "q"}));
        let deleted = pod(CONFIG_MIRROR, "1", json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}));
        for (name, pod, is_synced, mirror, may_delete, expected) in [
            ("nothing", None, false, None, true, None),
            ("new", Some(&of), true, None, true, Some(Step::Create(of.clone()))),
            ("not run", Some(&of), false, None, true, None),
            ("same", Some(&of), true, Some(&same), true, None),
            (
                "changed",
                Some(&of),
                true,
                Some(&stale),
                true,
                Some(Step::Replace(stale.clone(), of.clone())),
            ),
            ("changed, before the old one has ended", Some(&of), false, Some(&stale), true, None),
            (
                "of another name",
                Some(&of),
                true,
                Some(&other),
                true,
                Some(Step::Replace(other.clone(), of.clone())),
            ),
            (
                "deleted by a person",
                Some(&of),
                true,
                Some(&deleted),
                true,
                Some(Step::Replace(deleted.clone(), of.clone())),
            ),
            ("gone", None, false, Some(&same), true, Some(Step::Delete(same.clone()))),
            ("ending", None, false, Some(&same), false, None),
        ] {
            let names = Names { pod, is_synced, mirror, may_delete };
            assert_eq!(names.step(), expected, "{name}");
        }
    }

    #[test]
    fn mirror_pod_has_the_hash_and_belongs_to_the_node() {
        let of = pod(CONFIG_HASH, "1", json!({}));
        let node = |uid: Value| -> core::Node {
            serde_json::from_value(json!({"metadata": {"name": "n", "uid": uid}})).expect("a node")
        };
        assert_eq!(definition(&of, &node(json!(null))), None);
        let mirror = definition(&of, &node(json!("u"))).expect("a pod");
        assert!(is_mirror_of(&mirror, &of));
        assert_eq!(mirror.metadata.uid, None);
        let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u",
                            "controller": true}]);
        let owners = serde_json::to_value(&mirror.metadata.owner_references).expect("owners");
        assert_eq!(owners, owner);
    }
}
