//! Pods that an API server has bound to this node: an informer fills an `UndeltaStore`, whose whole
//! contents are the source's state. Upstream: `pkg/kubelet/config/apiserver.go`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_channel::{Receiver, Sender};
use futures_lite::FutureExt;
use futures_lite::future::zip;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_controller_manager::cache::{
    self, Deleted, EventHandler, Scope, SharedIndexInformer, UndeltaStore,
};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::{Istr, Meta, Object, RawObject, Resource, Timestamp};
use kube_controller_manager::task::StopToken;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::pod_config::{PodConfig, Source};
use crate::pod::{CONFIG_MIRROR, Pod, PodExt};

/// A pod with all its fields, as the cache holds it.
pub struct BoundPod {
    meta: Meta,
    pod: Arc<Pod>,
}

impl<'de> Deserialize<'de> for BoundPod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<BoundPod, D::Error> {
        let pod = pod_of(RawObject::deserialize(deserializer)?);
        let pod = pod.map_err(<D::Error as serde::de::Error>::custom)?;
        let version = pod.metadata.resource_version.as_deref().unwrap_or_default();
        let meta = Meta {
            name: pod.name().into(),
            namespace: Istr::new(pod.namespace()),
            uid: pod.metadata.uid.as_deref().unwrap_or_default().into(),
            resource_version: version.parse().map_err(|_| {
                <D::Error as serde::de::Error>::custom(format!(
                    "metadata.resourceVersion: {version:?}"
                ))
            })?,
            ..Meta::default()
        };
        Ok(BoundPod { meta, pod: Arc::new(pod) })
    }
}

/// The pod that the API server stores. It is without its managed fields: nothing here reads them,
/// they are the largest part of many pods, and their writer may nest them deeper than can be decoded.
fn pod_of(mut json: RawObject) -> Result<Pod, serde_json::Error> {
    json.edit("metadata", |metadata| {
        metadata.remove("managedFields");
        Ok(())
    })?;
    let mut pod = serde_json::from_str(&json.to_string())?;
    limit_times(&mut pod);
    serde_json::from_value(pod)
}

/// The fields of a pod that are times.
const TIMES: [&str; 7] = [
    "creationTimestamp",
    "deletionTimestamp",
    "startTime",
    "lastProbeTime",
    "lastTransitionTime",
    "startedAt",
    "finishedAt",
];

/// Replaces times that the generated type cannot hold by the closest that it can.
fn limit_times(value: &mut Value) {
    match value {
        Value::Object(members) => members.iter_mut().for_each(|(name, member)| {
            let time = TIMES.contains(&&**name).then(|| Timestamp::deserialize(&*member));
            match time {
                Some(Ok(time)) if Time::deserialize(&*member).is_err() => {
                    *member = time.to_jiff().to_string().into();
                }
                _ => limit_times(member),
            }
        }),
        Value::Array(items) => items.iter_mut().for_each(limit_times),
        _ => {}
    }
}

impl Object for BoundPod {
    fn meta(&self) -> &Meta {
        &self.meta
    }
}

/// Whether the kubelet has made the pod itself, to show a static pod: it is not run a second time.
fn is_mirror(pod: &Pod) -> bool {
    pod.annotation(CONFIG_MIRROR).is_some()
}

/// Fills the store.
struct Filler(Arc<UndeltaStore<Pod>>);

impl Filler {
    fn set(&self, bound: &BoundPod) {
        if !is_mirror(&bound.pod) {
            self.0.add(bound.pod.display_name(), bound.pod.clone());
        }
    }
}

impl EventHandler<BoundPod> for Filler {
    fn on_add(&mut self, bound: &Arc<BoundPod>, _: bool) {
        self.set(bound);
    }

    fn on_update(&mut self, _: &Arc<BoundPod>, bound: &Arc<BoundPod>) {
        self.set(bound);
    }

    fn on_delete(&mut self, deleted: &Deleted<BoundPod>) {
        self.0.delete(&deleted.object().pod.display_name());
    }
}

/// The pods of `node`, until stopped. Nothing is set before the first list is complete: what runs
/// is not ended while the API server cannot be reached.
pub async fn run(
    server: Arc<dyn cache::Source>,
    node: String,
    config: PodConfig,
    clock: SharedClock,
    stop: StopToken,
) {
    log::info!("Watching apiserver");
    let field_selector = Some(format!("spec.nodeName={node}"));
    let scope =
        Scope { field_selector, ..Scope::all(kube_controller_manager::objects::Pod::RESOURCE) };
    let informer = SharedIndexInformer::<BoundPod>::new(server, scope, clock);
    let is_complete = Arc::new(AtomicBool::new(false));
    // Only the newest state matters.
    let (states, pushed) = async_channel::bounded(1);
    let store = Arc::new(UndeltaStore::new(push(states, is_complete.clone())));
    let registration = informer.add_handler("pod-config", Filler(store.clone()), None);
    let begin = async {
        registration.synced().await;
        is_complete.store(true, Ordering::Release);
        store.resync();
        std::future::pending().await
    };
    let running = zip(informer.run(stop.clone()), forward(pushed, &config).or(stop.stopped()));
    let running = async {
        running.await;
    };
    begin.or(running).await;
}

/// Passes on what the store holds once it is complete.
fn push(states: Sender<Vec<Arc<Pod>>>, is_complete: Arc<AtomicBool>) -> cache::PushFn<Pod> {
    Box::new(move |pods| {
        if is_complete.load(Ordering::Acquire) {
            // Closed only when the kubelet stops.
            let _ = states.force_send(pods);
        }
    })
}

async fn forward(pushed: Receiver<Vec<Arc<Pod>>>, config: &PodConfig) {
    while let Ok(pods) = pushed.recv().await {
        config.set(Source::Api, pods).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_with_odd_times_and_deep_managed_fields_are_read() {
        let deep = format!("{}{}", r#"{"f:x":"#.repeat(200), "{}".to_owned() + &"}".repeat(200));
        let text = format!(
            r#"{{
                "metadata": {{ "name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "7",
                    "managedFields": [{{ "time": "9999-12-31T23:59:59Z", "fieldsV1": {deep} }}] }},
                "status": {{
                    "startTime": "2026-01-01T00:00:00Z",
                    "conditions": [
                        {{ "type": "a", "lastTransitionTime": "9999-12-31T23:59:59Z" }},
                        {{ "type": "b", "lastTransitionTime": "-10000-01-01T00:00:00Z" }},
                        {{ "type": "c", "lastTransitionTime": null }}
                    ]
                }}
            }}"#
        );
        let bound: BoundPod = serde_json::from_str(&text).expect("a pod");
        assert_eq!((&*bound.meta.name, bound.meta.resource_version), ("p", 7));
        let status = bound.pod.status.as_ref().expect("a status");
        let started = status.start_time.as_ref().map(|time| time.0.to_string());
        assert_eq!(started.as_deref(), Some("2026-01-01T00:00:00Z"));
        let conditions = status.conditions.as_ref().expect("conditions");
        let times = conditions.iter().map(|condition| &condition.last_transition_time);
        let years: Vec<Option<i16>> = times
            .map(|time| {
                let time = time.as_ref()?.0;
                Some(time.to_zoned(k8s_openapi::jiff::tz::TimeZone::UTC).year())
            })
            .collect();
        assert_eq!(years, [Some(9999), Some(-9999), None]);
    }
}
