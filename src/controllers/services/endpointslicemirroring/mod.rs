//! Mirrors the Endpoints that somebody wrote for a Service without a selector to EndpointSlices.
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
use crate::controllers::services::service_endpoints::tracker::SliceTracker;
use crate::controllers::services::service_endpoints::{LEADER, MAX_RETRIES, slices, slow_retries};
use crate::controllers::{Controller, ControllerContext, Error, Next, Queue, SyncResult};
use crate::objects::{EndpointSlice, Endpoints, ObjectKey, Service};

const NAME: &str = "endpointslice-mirroring-controller";
/// Its service account.
const ACCOUNT: &str = "endpointslicemirroring-controller";
/// What it calls itself in events.
const COMPONENT: &str = "endpoint-slice-mirroring-controller";
/// What it calls itself in the label of its slices. Upstream: `ControllerName`.
const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";

/// Upstream: `discovery.LabelSkipMirror`.
const SKIP_MIRROR: &str = "endpointslice.kubernetes.io/skip-mirror";

const MAX_BACKOFF: Duration = Duration::from_secs(100);

struct Mirroring {
    endpoints: Lister<Endpoints>,
    services: Lister<Service>,
    slices: Lister<EndpointSlice>,
    tracker: Arc<SliceTracker>,
    reconciler: Reconciler,
    clock: SharedClock,
}

/// The controller `endpointslice-mirroring-controller`.
pub fn controller(cx: &ControllerContext) -> Controller {
    metrics::register();
    let (endpoints, services) = (cx.informer::<Endpoints>(), cx.informer::<Service>());
    let endpoint_slices = cx.informer::<EndpointSlice>();
    slices::index(&endpoint_slices);
    let tracker = Arc::<SliceTracker>::default();
    let max = usize::try_from(cx.options.mirroring_max_endpoints_per_subset).unwrap_or(1).max(1);
    let this = Arc::new(Mirroring {
        endpoints: endpoints.lister(),
        services: services.lister(),
        slices: endpoint_slices.lister(),
        tracker: tracker.clone(),
        reconciler: Reconciler {
            client: cx.client(ACCOUNT),
            recorder: cx.recorder_as(ACCOUNT, COMPONENT),
            max,
            counts: metrics::counts(max),
            tracker: tracker.clone(),
        },
        clock: cx.clock(),
    });

    let mut c = Controller::new(NAME);
    let workers = cx.options.mirroring_concurrent_service_endpoint_syncs;
    let queue = c
        .queue("endpoint_slice_mirroring", usize::try_from(workers).unwrap_or(0))
        .limiter(slow_retries(MAX_BACKOFF, cx.clock()))
        .max_retries(MAX_RETRIES)
        .log_retries(log::Level::Info);
    c.watch(&endpoints, &queue, |change: Change<'_, Endpoints>, wake: &Queue| {
        let was = match &change {
            Change::Updated { old, .. } => is_mirrored(old),
            _ => false,
        };
        let endpoints = change.object();
        if was || is_mirrored(endpoints) {
            wake.add(endpoints.meta.key());
        }
    });
    c.watch(&services, &queue, |change: Change<'_, Service>, wake: &Queue| {
        let concerned = match &change {
            Change::Updated { old, new } => has_selector(old) != has_selector(new),
            Change::Resync { .. } => false,
            Change::Added { new, .. } => !has_selector(new),
            Change::Deleted(deleted) => !has_selector(deleted.object()),
        };
        if concerned {
            wake.add(change.object().meta.key());
        }
    });
    let period: Duration = cx.options.mirroring_endpointslice_updates_batch_period;
    c.watch(&endpoint_slices, &queue, slices::wake_service(MANAGER, tracker, period));
    c.sync(queue, move |key| {
        let this = this.clone();
        async move {
            let start = this.clock.monotonic();
            let result = this.sync(key).await;
            metrics::took(this.clock.monotonic().saturating_sub(start));
            result
        }
    });
    c
}

fn has_selector(service: &Service) -> bool {
    !service.spec.selector.is_empty()
}

/// Neither marked as not to be mirrored nor a lock. Upstream: `shouldMirror`.
fn is_mirrored(endpoints: &Endpoints) -> bool {
    endpoints.meta.labels.get(SKIP_MIRROR) != Some("true")
        && !endpoints.meta.annotations.contains_key(LEADER)
}

impl Mirroring {
    async fn sync(&self, key: ObjectKey) -> SyncResult {
        let endpoints = self.endpoints.get(&key).filter(|endpoints| is_mirrored(endpoints));
        let service = self.services.get(&key).filter(|service| !has_selector(service));
        let slices = slices::of_service(&self.slices, &key, MANAGER);
        let (Some(endpoints), Some(_)) = (endpoints, service) else {
            self.tracker.forget(&key);
            self.reconciler.remove(&key, &slices).await?;
            return Ok(Next::Done);
        };
        if self.tracker.are_stale(&key, slices.iter().map(|slice| &**slice)) {
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
