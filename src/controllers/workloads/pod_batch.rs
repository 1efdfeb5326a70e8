//! Creates or deletes many pods of one owner, and lowers its expectations after failures.

use std::sync::Arc;

use crate::cache::Lister;
use crate::controllers::Error;
use crate::controllers::runner::batch::{slow_start, together};
use crate::controllers::workloads::expectations::Expectations;
use crate::controllers::workloads::pod_control::{PodControl, is_being_deleted_in_cache, is_gone};
use crate::objects::{Object, ObjectKey, Pod, Resource};

/// Creates the `count` pods that `owner` expects, in growing batches; `create` gets the number of
/// the pod. Returns the number of created pods, and the first failure. In a terminating namespace
/// there is no failure: the owner terminates as well, so its expectations may stay unmet.
pub async fn create_expected<Fut>(
    expectations: &Expectations,
    owner: &ObjectKey,
    count: usize,
    create: impl Fn(usize) -> Fut,
) -> (usize, Option<Error>)
where
    Fut: Future<Output = Result<(), Error>> + Send + 'static,
{
    let (created, failure) = slow_start(count, |at| Some(create(at))).await;
    if let Some(error) = failure.as_ref().and_then(Error::api)
        && error.is_namespace_terminating()
    {
        return (created, None);
    }
    // No event comes for pods that were not created.
    for _ in created..count {
        expectations.creation_observed(owner);
    }
    (created, failure)
}

/// Deletes `pods`, whose deletion `owner` expects, all at once. Returns the failures; a pod that is
/// gone already is not one. `cached`: the pods that the owner's syncs read.
pub async fn delete_expected<O: Object + Resource>(
    control: &PodControl,
    owner: &Arc<O>,
    expectations: &Arc<Expectations>,
    cached: &Lister<Pod>,
    pods: Vec<Arc<Pod>>,
) -> Vec<Error> {
    let deletions = pods.into_iter().map(|pod| {
        let (control, owner) = (control.clone(), owner.clone());
        let (expectations, cached) = (expectations.clone(), cached.clone());
        async move {
            let result = control.delete(&*owner, &pod).await;
            // No event comes for this deletion, or it came before the expectation.
            if result.is_err() || is_being_deleted_in_cache(&pod, &cached) {
                expectations.deletion_observed(&owner.meta().key(), &pod.meta.uid);
            }
            result
        }
    });
    let failed = together(deletions).await.into_iter().filter_map(Result::err);
    failed.filter(|error| !is_gone(error)).collect()
}
