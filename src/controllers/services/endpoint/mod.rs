//! Writes the Endpoints of Services that select pods.
//! Upstream: `pkg/controller/endpoint`.

mod own_writes;
mod subsets;

use std::sync::Arc;

use self::own_writes::OwnWrites;
use crate::cache::Lister;
use crate::client::{Client, Delete};
use crate::controllers::services::endpoint_writes::{
    Body, HEADLESS, LAST_CHANGE, LEADER, MAX_RETRIES, MIN_EDIT_DELAY, relabelled,
};
use crate::controllers::services::repack_subsets::repack;
use crate::controllers::services::service_pods::{of_pods, pods_of};
use crate::controllers::services::trigger_times::TriggerTimes;
use crate::controllers::{Controller, Error, Next, Queue, QueuePolicy, SyncResult, keys};
use crate::events::Recorder;
use crate::objects::{EndpointSubset, Endpoints, Labels, Meta, ObjectKey, Pod, Service, Timestamp};

/// The controller's name in labels. Upstream: `ControllerName`.
const MANAGER: &str = "endpoint-controller";

/// Upstream: `LabelManagedBy`.
const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
/// Upstream: `v1.EndpointsOverCapacity`.
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";

struct EndpointsController {
    client: Client,
    recorder: Recorder,
    services: Lister<Service>,
    pods: Lister<Pod>,
    endpoints: Lister<Endpoints>,
    times: TriggerTimes,
    writes: Arc<OwnWrites>,
}

/// Sets up the controller `endpoints-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let services = c.lister::<Service>();
    let (pods, endpoints) = (c.lister::<Pod>(), c.lister::<Endpoints>());
    let writes = Arc::<OwnWrites>::default();
    let this = Arc::new(EndpointsController {
        client: c.client(),
        recorder: c.recorder(),
        services: services.clone(),
        pods: pods.clone(),
        endpoints: endpoints.clone(),
        times: TriggerTimes::default(),
        writes: writes.clone(),
    });
    let period = c.options().endpoint_updates_batch_period;
    let retries = QueuePolicy::at_most(MAX_RETRIES).logged_as(log::Level::Debug);
    let queue = c.queue(retries);
    c.watch(&services, &queue, keys::of_object());
    c.watch(&pods, &queue, of_pods(services.clone(), period));
    let delay = MIN_EDIT_DELAY.max(period);
    c.watch(&endpoints, &queue, own_writes::queue_service(services, writes, delay));
    let (leftovers, keys) = (this.clone(), queue.clone());
    c.at_start(move || leftovers.queue_leftovers(&keys));
    c.sync(queue, &this, EndpointsController::sync);
    Ok(())
}

impl EndpointsController {
    /// Queues all Endpoints at the start, except those that are a lock: their Service may have been
    /// deleted while no manager ran. Upstream: `checkLeftoverEndpoints`.
    fn queue_leftovers(&self, queue: &Queue) {
        for endpoints in self.endpoints.list() {
            if !endpoints.meta.annotations.contains_key(LEADER) {
                queue.add(endpoints.meta.key());
            }
        }
    }

    /// Records a write, so that the next sync waits until the cache has it.
    fn record_write(&self, written: &Endpoints) {
        let at = self.endpoints.written_at(written.meta.resource_version);
        self.writes.record(written.meta.key(), at);
    }

    /// Creates or updates the Endpoints of a Service with a selector; deletes those of a deleted
    /// Service. Fails as stale while the cache lacks the last write.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(service) = self.services.get(&key) else {
            match self.client.delete::<Endpoints>(&key, Delete::new()).await {
                Err(error) if !error.is_not_found() => return Err(error.into()),
                _ => {}
            }
            self.times.forget(&key);
            self.writes.forget(&key);
            return Ok(Next::Done);
        };
        if !service.selects_pods() {
            // The user writes them.
            return Ok(Next::Done);
        }
        if self.writes.lacks_last_write(&key, self.endpoints.seen()) {
            let text = format!("endpoints informer cache lacks the last write of endpoints {key}");
            return Err(Error::Stale(text));
        }
        let current = self.endpoints.get(&key);
        let pods = pods_of(&self.pods, &service);
        let changed_at = self.times.observe(&service, &pods);
        let subsets = subsets::of_service(&service, &pods);
        let Some(current) = current else {
            let new = desired(&service, None, subsets, changed_at);
            return self.create(&service, new).await;
        };
        let new = desired(&service, Some(&current), subsets, changed_at);
        if is_current(&current, &new, &service) {
            return Ok(Next::Done);
        }
        match self.client.update::<Endpoints>(&key, &Body::new(&new)).await {
            Ok(written) => {
                self.record_write(&written);
                Ok(Next::Done)
            }
            Err(error) => {
                let error = Error::from(error);
                let text = format!("Failed to update endpoint {key}: {}", error.message());
                self.recorder.warning(&new, "FailedToUpdateEndpoint", text);
                Err(error)
            }
        }
    }

    /// Creates the Endpoints of a Service that has none.
    async fn create(&self, service: &Service, new: Endpoints) -> SyncResult {
        let meta = &service.meta;
        match self.client.create::<Endpoints>(&meta.namespace, &Body::new(&new)).await {
            Ok(written) => {
                self.record_write(&written);
                Ok(Next::Done)
            }
            // It would fail until the Service is deleted as well.
            Err(error) if error.is_namespace_terminating() => Ok(Next::Done),
            Err(error) => {
                let error = Error::from(error);
                let key = meta.key();
                let text =
                    format!("Failed to create endpoint for service {key}: {}", error.message());
                self.recorder.warning(&new, "FailedToCreateEndpoint", text);
                Err(error)
            }
        }
    }
}

/// Returns whether `current` needs no update to `new`. Upstream writes truncated Endpoints in each
/// sync.
fn is_current(current: &Endpoints, new: &Endpoints, service: &Service) -> bool {
    let same_subsets = subsets::are_equal(&current.subsets, &new.subsets)
        // Subsets from another release may be in another order.
        || subsets::are_equal(&repack(&current.subsets), &new.subsets);
    let (has, wanted) = (&current.meta.annotations, &new.meta.annotations);
    same_subsets
        && has.get(OVER_CAPACITY) == wanted.get(OVER_CAPACITY)
        && labels_are_current(&current.meta.labels, &service.meta.labels)
}

/// Returns whether the Endpoints have exactly the labels of their Service and the one that names
/// this controller. As upstream, the label of headless Services does not count. Upstream:
/// `labelsCorrectForEndpoints`.
fn labels_are_current(labels: &Labels, service: &Labels) -> bool {
    let is_own = |key: &str| key == HEADLESS || key == MANAGED_BY;
    let mut copied = 0;
    for (key, value) in labels.iter().filter(|(key, _)| !is_own(key)) {
        if service.get(key) != Some(value) {
            return false;
        }
        copied += 1;
    }
    labels.get(MANAGED_BY) == Some(MANAGER) && copied == service.len()
}

/// Returns the Endpoints to write: the Service's labels, these subsets, and the other fields of
/// `current` if it exists.
fn desired(
    service: &Service,
    current: Option<&Endpoints>,
    mut subsets: Vec<EndpointSubset>,
    changed_at: Option<Timestamp>,
) -> Endpoints {
    let truncated = subsets::truncate(&mut subsets).then_some("truncated");
    let changed_at = changed_at.map(|at| at.to_string());
    let mut meta = match current {
        Some(current) => current.meta.clone(),
        None => Meta {
            name: service.meta.name.clone(),
            namespace: service.meta.namespace.clone(),
            ..Meta::default()
        },
    };
    meta.annotations = relabelled(
        &meta.annotations,
        &[(LAST_CHANGE, changed_at.as_deref()), (OVER_CAPACITY, truncated)],
    );
    let headless = (!service.has_cluster_ip()).then_some("");
    meta.labels =
        relabelled(&service.meta.labels, &[(HEADLESS, headless), (MANAGED_BY, Some(MANAGER))]);
    Endpoints { meta, subsets }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(labels: Value, cluster_ip: &str) -> Service {
        serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "s", "labels": labels},
            "spec": {"clusterIP": cluster_ip, "selector": {"a": "b"}},
        }))
        .unwrap()
    }

    #[test]
    fn written_endpoints_are_current_until_the_service_or_the_pods_change() {
        let plain = service(json!({"team": "x"}), "10.96.0.1");
        let subsets: Vec<EndpointSubset> =
            serde_json::from_value(json!([{"addresses": [{"ip": "10.0.0.1"}]}])).unwrap();
        let at = Some(Timestamp::from_secs(0));
        let written = desired(&plain, None, subsets.clone(), at);
        assert_eq!(
            serde_json::to_value(&written).unwrap(),
            json!({
                "metadata": {
                    "name": "s", "namespace": "ns",
                    "annotations": {LAST_CHANGE: "1970-01-01T00:00:00Z"},
                    "labels": {"team": "x", MANAGED_BY: "endpoint-controller"},
                },
                "subsets": [{"addresses": [{"ip": "10.0.0.1"}]}],
            })
        );
        let is_current = |current: &Endpoints, service: &Service, subsets: &[EndpointSubset]| {
            let new = desired(service, Some(current), subsets.to_vec(), None);
            is_current(current, &new, service)
        };
        assert!(is_current(&written, &plain, &subsets));
        assert!(!is_current(&written, &plain, &[]));
        assert!(!is_current(&written, &service(json!({}), "10.96.0.1"), &subsets));
        assert!(!is_current(&written, &service(json!({"team": "y"}), "10.96.0.1"), &subsets));

        let many: Vec<Value> =
            (0..1001).map(|n| json!({"ip": format!("10.0.{}.{}", n / 256, n % 256)})).collect();
        let many: Vec<EndpointSubset> =
            serde_json::from_value(json!([{"addresses": many}])).unwrap();
        let truncated = desired(&plain, None, many.clone(), at);
        assert_eq!(truncated.meta.annotations.get(OVER_CAPACITY), Some("truncated"));
        assert!(is_current(&truncated, &plain, &many));
        assert!(!is_current(&truncated, &plain, &truncated.subsets), "within capacity since");
        let mut unmarked = truncated.clone();
        unmarked.meta.annotations = written.meta.annotations.clone();
        assert!(!is_current(&unmarked, &plain, &many), "not marked as truncated");

        let mut foreign = written.clone();
        foreign.meta.labels = plain.meta.labels.clone();
        assert!(!is_current(&foreign, &plain, &subsets), "not marked as ours");
        foreign.meta.annotations =
            [("mine", "kept"), (OVER_CAPACITY, "truncated")].into_iter().collect();
        let again = desired(&service(json!({}), "None"), Some(&foreign), subsets, None);
        let annotations: Vec<_> = again.meta.annotations.iter().collect();
        assert_eq!(annotations, [("mine", "kept")]);
        assert_eq!(again.meta.labels.get(HEADLESS), Some(""));
    }
}
