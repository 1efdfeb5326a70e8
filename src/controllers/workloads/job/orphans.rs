//! Removes the finalizer from pods whose Job does not count them: it is gone, or has finished.
//! Upstream: `syncOrphanPod`.

use std::fmt;
use std::sync::Arc;

use super::sync_state::TRACKING;
use super::{Jobs, managed_by_another};
use crate::controllers::runner::keys::resolve;
use crate::controllers::workloads::pod_control::is_not_found;
use crate::controllers::{Next, SyncResult};
use crate::objects::{Istr, Job, ObjectKey, Pod, Resource, Selector};

/// A key: one pod, or all pods that a Job selects, each of which becomes a key of its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Orphans {
    Named(ObjectKey),
    Selected { namespace: Istr, selector: Selector },
}

impl fmt::Display for Orphans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Orphans::Named(pod) => pod.fmt(f),
            Orphans::Selected { namespace, selector } => write!(f, "{namespace}/{selector}"),
        }
    }
}

impl Orphans {
    /// Returns the key of all pods that `job` selects; `None` when its selector is malformed.
    pub fn selected_by(job: &Job) -> Option<Orphans> {
        match Selector::try_from(job.spec.selector.as_ref()) {
            Ok(selector) => {
                Some(Orphans::Selected { namespace: job.meta.namespace.clone(), selector })
            }
            Err(error) => {
                log::error!("job {} has invalid label selector: {error}", job.meta.key());
                None
            }
        }
    }
}

impl Jobs {
    /// Removes the finalizer from an orphan, or queues the orphans of a selector. Upstream:
    /// `syncOrphanPod`.
    pub(super) async fn sync_orphans(self: Arc<Self>, key: Orphans) -> SyncResult {
        match &key {
            Orphans::Named(pod) => {
                let Some(pod) = self.pods.get(pod).filter(|pod| self.is_orphan(pod)) else {
                    return Ok(Next::Done);
                };
                // It is not recorded as a write: no sync of a Job waits for it.
                match self.remove_finalizer(&pod).await {
                    Err(error) if !is_not_found(&error) => return Err(error),
                    _ => {}
                }
            }
            Orphans::Selected { namespace, selector } => {
                for pod in self.pods.in_namespace(namespace) {
                    if selector.matches(&pod.meta.labels) && self.is_orphan(&pod) {
                        self.orphans.add(Orphans::Named(pod.meta.key()));
                    }
                }
            }
        }
        Ok(Next::Done)
    }

    /// Returns whether `pod` has the finalizer, and no sync of a Job will remove it. Pods of an
    /// owner of another kind, or of a Job that another controller manages, are left to these.
    fn is_orphan(&self, pod: &Pod) -> bool {
        if !pod.meta.has_finalizer(TRACKING) {
            return false;
        }
        let Some(owner) = pod.meta.controller() else { return true };
        let is_job =
            owner.kind == *Job::RESOURCE.kind && owner.api_version == *Job::RESOURCE.api_version();
        let job = resolve(&self.jobs, &pod.meta.namespace, owner);
        is_job && job.is_none_or(|job| job.finished().is_some() && !managed_by_another(&job))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_lite::future::block_on;
    use serde_json::{Value, json};

    use super::super::testing::controller;
    use super::*;
    use crate::client::testing::answering;

    fn pod(name: &str, finalizers: &[&str], owner: Value) -> Arc<Pod> {
        let meta = json!({
            "namespace": "ns", "name": name, "uid": name, "labels": { "a": "b" },
            "finalizers": finalizers, "ownerReferences": [owner],
        });
        Arc::new(serde_json::from_value(json!({ "metadata": meta })).unwrap())
    }

    fn owned_by(uid: &str) -> Value {
        json!({
            "apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": uid, "controller": true,
        })
    }

    #[test]
    fn each_orphan_is_released_under_a_key_of_its_own() {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let client = block_on(answering(move |line| {
            assert!(line.starts_with("PATCH /api/v1/namespaces/ns/pods/lost"), "{line}");
            match count.fetch_add(1, Ordering::SeqCst) {
                0 => (200, json!({ "metadata": { "resourceVersion": "9" } })),
                1 => (404, json!({ "kind": "Status", "code": 404, "reason": "NotFound" })),
                _ => (500, json!({ "kind": "Status", "code": 500 })),
            }
        }));
        let (jobs, caches) = controller(client);
        let living = json!({ "metadata": { "namespace": "ns", "name": "j", "uid": "new" } });
        caches.jobs.insert(Arc::new(serde_json::from_value(living).unwrap()));
        let other = json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r",
            "uid": "r", "controller": true });
        for pod in [
            pod("lost-1", &[TRACKING], owned_by("old")),
            pod("lost-2", &[TRACKING], owned_by("old")),
            pod("released", &[], owned_by("old")),
            pod("counted", &[TRACKING], owned_by("new")),
            pod("foreign", &[TRACKING], other),
        ] {
            caches.pods.insert(pod);
        }
        let selected: Value = json!({
            "metadata": { "namespace": "ns", "name": "j" },
            "spec": { "selector": { "matchLabels": { "a": "b" } } },
        });
        let selected = Orphans::selected_by(&serde_json::from_value(selected).unwrap()).unwrap();
        block_on(jobs.clone().sync_orphans(selected)).unwrap();
        assert_eq!((jobs.orphans.len(), asked.load(Ordering::SeqCst)), (2, 0));

        let named = |name: &str| Orphans::Named(ObjectKey::new("ns", name));
        let sync = |name: &str| block_on(jobs.clone().sync_orphans(named(name)));
        assert!(sync("lost-1").is_ok(), "released");
        assert!(jobs.consistency.is_empty(), "no sync of the Job would clear the record");
        assert!(sync("lost-1").is_ok(), "gone");
        assert!(sync("counted").is_ok() && sync("gone").is_ok());
        assert!(sync("lost-2").is_err(), "retried by the queue");
    }

    #[test]
    fn a_broken_selector_selects_no_pods() {
        let job = |operator: &str| -> Job {
            let expression = serde_json::json!({ "key": "a", "operator": operator });
            let spec = serde_json::json!({ "selector": { "matchExpressions": [expression] } });
            let meta = serde_json::json!({ "namespace": "ns", "name": "j" });
            serde_json::from_value(serde_json::json!({ "metadata": meta, "spec": spec })).unwrap()
        };
        let orphans = Orphans::selected_by(&job("Exists")).unwrap();
        assert_eq!(orphans.to_string(), "ns/a");
        assert_eq!(Orphans::selected_by(&job("Near")), None);
    }
}
