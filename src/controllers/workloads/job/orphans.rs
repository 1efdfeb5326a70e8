//! Removes the finalizer from pods whose Job does not count them: it is gone, or has finished.
//! Upstream: `syncOrphanPod`.

use std::fmt;
use std::sync::Arc;

use super::round::TRACKING;
use super::{Jobs, managed_by_another};
use crate::controllers::runner::batch::together;
use crate::controllers::runner::keys::resolve;
use crate::controllers::{Error, Next, SyncResult};
use crate::objects::{Istr, Job, ObjectKey, Pod, Resource, Selector};

/// The pods to be looked at.
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
    /// The pods that `job` selects; `None` when its selector is broken.
    pub fn of(job: &Job) -> Option<Orphans> {
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
    pub(super) async fn sync_orphans(self: Arc<Self>, key: Orphans) -> SyncResult {
        let pods = match &key {
            Orphans::Named(pod) => self.pods.get(pod).into_iter().collect(),
            Orphans::Selected { namespace, selector } => {
                let mut pods = self.pods.in_namespace(namespace);
                pods.retain(|pod| selector.matches(&pod.meta.labels));
                pods
            }
        };
        let orphans = pods.into_iter().filter(|pod| self.is_orphan(pod));
        let releases = orphans.map(|pod| {
            let this = self.clone();
            async move { this.release(&pod).await }
        });
        let errors = together(releases).await.into_iter().filter_map(Result::err).collect();
        Error::many(errors).map_or(Ok(Next::Done), Err)
    }

    /// Whether `pod` has the finalizer, and no Job removes it.
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
    use super::*;

    #[test]
    fn a_broken_selector_selects_no_pods() {
        let job = |operator: &str| -> Job {
            let expression = serde_json::json!({ "key": "a", "operator": operator });
            let spec = serde_json::json!({ "selector": { "matchExpressions": [expression] } });
            let meta = serde_json::json!({ "namespace": "ns", "name": "j" });
            serde_json::from_value(serde_json::json!({ "metadata": meta, "spec": spec })).unwrap()
        };
        let orphans = Orphans::of(&job("Exists")).unwrap();
        assert_eq!(orphans.to_string(), "ns/a");
        assert_eq!(Orphans::of(&job("Near")), None);
    }
}
