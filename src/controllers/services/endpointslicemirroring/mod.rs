//! Mirrors the Endpoints that users write for Services without a selector to EndpointSlices.
//! Upstream: `pkg/controller/endpointslicemirroring`.

mod metrics;
mod mirror;
mod reconcile;

use std::sync::Arc;
use std::time::Duration;

use self::reconcile::Reconciler;
use crate::cache::Lister;
use crate::clock::SharedClock;
use crate::controllers::runner::Change;
use crate::controllers::services::endpoint_writes::{LEADER, MAX_RETRIES, slow_retries};
use crate::controllers::services::service_slices;
use crate::controllers::services::slice_tracker::{self, SliceTracker};
use crate::controllers::{Controller, Error, Next, QueuePolicy, SyncResult};
use crate::objects::{EndpointSlice, Endpoints, ObjectKey, Service};

/// The controller's name in the label of its slices. Upstream: `ControllerName`.
const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";

/// Upstream: `discovery.LabelSkipMirror`.
const SKIP_MIRROR: &str = "endpointslice.kubernetes.io/skip-mirror";

/// The longest delay of a retry. Upstream: `maxSyncBackOff`.
const MAX_BACKOFF: Duration = Duration::from_secs(100);

struct Mirroring {
    endpoints: Lister<Endpoints>,
    services: Lister<Service>,
    slices: Lister<EndpointSlice>,
    tracker: Arc<SliceTracker>,
    reconciler: Reconciler,
    clock: SharedClock,
}

/// Sets up the controller `endpointslice-mirroring-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    metrics::register();
    let (endpoints, services) = (c.lister::<Endpoints>(), c.lister::<Service>());
    let slices = service_slices::lister(c);
    let tracker = Arc::<SliceTracker>::default();
    let max = c.options().mirroring_max_endpoints_per_subset.get();
    let this = Arc::new(Mirroring {
        endpoints: endpoints.clone(),
        services: services.clone(),
        slices: slices.clone(),
        tracker: tracker.clone(),
        reconciler: Reconciler {
            client: c.client(),
            recorder: c.recorder(),
            max,
            counts: metrics::new_counts(max),
            tracker: tracker.clone(),
        },
        clock: c.clock(),
    });
    let retries = QueuePolicy::at_most(MAX_RETRIES)
        .limited_by(slow_retries(MAX_BACKOFF, c.clock()))
        .logged_as(log::Level::Info);
    let queue = c.queue(retries);
    c.watch(&endpoints, &queue, |change, queue| {
        let was = match &change {
            Change::Updated { old, .. } => is_mirrored(old),
            _ => false,
        };
        let endpoints = change.object();
        if was || is_mirrored(endpoints) {
            queue.add(endpoints.meta.key());
        }
    });
    c.watch(&services, &queue, |change, queue| {
        let needs_sync = match &change {
            Change::Updated { old, new } => has_selector(old) != has_selector(new),
            Change::Resync { .. } => false,
            Change::Added { new, .. } => !has_selector(new),
            Change::Deleted(deleted) => !has_selector(deleted.object()),
        };
        if needs_sync {
            queue.add(change.object().meta.key());
        }
    });
    let period = c.options().mirroring_endpointslice_updates_batch_period;
    c.watch(&slices, &queue, slice_tracker::queue_service(MANAGER, tracker, period));
    c.sync(queue, &this, async |this, key| {
        let start = this.clock.monotonic();
        let result = this.clone().sync(key).await;
        metrics::observe_duration(this.clock.monotonic().saturating_sub(start));
        result
    });
    Ok(())
}

fn has_selector(service: &Service) -> bool {
    !service.spec.selector.is_empty()
}

/// Returns whether Endpoints are mirrored: unless they are a lock or carry the label that forbids
/// it. Upstream: `shouldMirror`.
fn is_mirrored(endpoints: &Endpoints) -> bool {
    endpoints.meta.labels.get(SKIP_MIRROR) != Some("true")
        && !endpoints.meta.annotations.contains_key(LEADER)
}

impl Mirroring {
    /// Mirrors the Endpoints of a Service without a selector; in every other case deletes the
    /// slices that mirror them.
    async fn sync(&self, key: ObjectKey) -> SyncResult {
        let endpoints = self.endpoints.get(&key).filter(|endpoints| is_mirrored(endpoints));
        let service = self.services.get(&key).filter(|service| !has_selector(service));
        let seen = self.slices.seen();
        let slices = service_slices::of_service(&self.slices, &key, MANAGER);
        let (Some(endpoints), Some(_)) = (endpoints, service) else {
            self.tracker.forget(&key);
            self.reconciler.remove(&key, &slices).await?;
            return Ok(Next::Done);
        };
        if self.tracker.are_stale(&key, slices.iter().map(|slice| &**slice), seen) {
            return Err(Error::Stale("EndpointSlice informer cache is out of date".into()));
        }
        self.reconciler.reconcile(&endpoints, slices).await?;
        Ok(Next::Done)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn locks_and_marked_endpoints_are_not_mirrored() {
        for (metadata, mirrored) in [
            (json!({}), true),
            (json!({"labels": {SKIP_MIRROR: "true"}}), false),
            (json!({"labels": {SKIP_MIRROR: "false"}}), true),
            (json!({"annotations": {LEADER: ""}}), false),
        ] {
            let endpoints = serde_json::from_value(json!({"metadata": metadata})).unwrap();
            assert_eq!(is_mirrored(&endpoints), mirrored, "{endpoints:?}");
        }
    }
}
