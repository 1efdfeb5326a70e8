//! The writes of Endpoints and EndpointSlices: labels and annotations, the body of a request, and
//! the delays of retries. Upstream: `k8s.io/endpointslice/util`.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::clock::SharedClock;
use crate::objects::{Labels, ObjectKey, Resource};
use crate::workqueue::{
    BucketRateLimiter, MaxOfRateLimiter, RateLimiter, exponential_failure_rate_limiter,
};

/// The label of EndpointSlices and Endpoints of headless Services. Upstream:
/// `v1.IsHeadlessService`.
pub const HEADLESS: &str = "service.kubernetes.io/headless";
/// The annotation with the time of the change that an object now shows.
/// Upstream: `v1.EndpointsLastChangeTriggerTime`.
pub const LAST_CHANGE: &str = "endpoints.kubernetes.io/last-change-trigger-time";
/// The annotation of Endpoints that are a lock.
/// Upstream: `resourcelock.LeaderElectionRecordAnnotationKey`.
pub const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";

/// The number of failures in a row after which a key is given up. Upstream: `maxRetries`.
pub const MAX_RETRIES: u32 = 15;
/// The least time after which slices or Endpoints that another client has changed queue their
/// Service: more changes may follow. Upstream: `endpointSliceChangeMinSyncDelay`.
pub const MIN_EDIT_DELAY: Duration = Duration::from_secs(1);

/// The body of a request: an object with its `apiVersion` and `kind`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Body<'a, T> {
    api_version: String,
    kind: &'static str,
    #[serde(flatten)]
    object: &'a T,
}

impl<'a, T: Resource> Body<'a, T> {
    /// Makes the body of a request that writes `object`.
    pub fn new(object: &'a T) -> Body<'a, T> {
        let kind = match T::RESOURCE.kind {
            std::borrow::Cow::Borrowed(kind) => kind,
            // Does not occur: the kinds of `Resource` are constants.
            std::borrow::Cow::Owned(_) => "",
        };
        Body { api_version: T::RESOURCE.api_version(), kind, object }
    }
}

/// Makes a limiter with delays of 1 s, doubling to `max`, for each key, and 10 retries a second
/// with a burst of 100 for all keys: the endpoints of a large Service are work for the API server.
pub fn slow_retries(max: Duration, clock: SharedClock) -> Arc<dyn RateLimiter<ObjectKey>> {
    Arc::new(MaxOfRateLimiter::new(vec![
        exponential_failure_rate_limiter(Duration::from_secs(1), max),
        Arc::new(BucketRateLimiter::new(10.0, 100, clock)),
    ]))
}

/// Returns `labels` with some of them set (`Some`) and some removed (`None`).
pub fn relabelled(labels: &Labels, changes: &[(&str, Option<&str>)]) -> Labels {
    let unchanged =
        labels.iter().filter(|(key, _)| changes.iter().all(|(changed, _)| changed != key));
    let set = changes.iter().filter_map(|(key, value)| Some((*key, (*value)?)));
    unchanged.chain(set).collect()
}
