//! Empties released volumes by a pod that deletes their content, and makes them available again.
//! Upstream: `recycleVolumeOperation` and `pkg/volume/util/recyclerclient`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_channel::Receiver;
use futures_lite::FutureExt;
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::claims::pods_of;
use super::Binder;
use super::plugins::Plugin;
use super::writes::PendingEvent;
use crate::client::{Client, Delete, ListOptions};
use crate::controllers::Error;
use crate::events::EventType;
use crate::objects::{
    ObjectKey, PersistentVolume, Pod, Quantity, Resource, ResourceType, WatchEvent, from_json,
};
use crate::options::Options;

const EVENTS: ResourceType = ResourceType::fixed("", "v1", "Event", "events", true);
/// A limit for the watch of a recycler, longer than any may run.
const WATCH_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);
/// Events that wait to be read.
const ROOM: usize = 30;

/// How volumes of each plugin are recycled.
pub struct Recyclers {
    host_path: Recycler,
    nfs: Recycler,
}

/// The pod that empties volumes of one plugin, and its time limits.
struct Recycler {
    template: Value,
    /// The least time of the pod, in seconds.
    minimum: i64,
    /// Its time for each Gi, in seconds.
    increment: i64,
}

impl Recyclers {
    /// Reads the recyclers of both plugins from the flags.
    ///
    /// # Errors
    /// When a template of the flags cannot be used.
    pub fn new(options: &Options) -> Result<Recyclers, String> {
        Ok(Recyclers {
            host_path: Recycler {
                template: template(&options.pv_recycler_pod_template_filepath_hostpath)?,
                minimum: options.pv_recycler_minimum_timeout_hostpath.into(),
                increment: options.pv_recycler_timeout_increment_hostpath.into(),
            },
            nfs: Recycler {
                template: template(&options.pv_recycler_pod_template_filepath_nfs)?,
                minimum: options.pv_recycler_minimum_timeout_nfs.into(),
                increment: options.pv_recycler_increment_timeout_nfs.into(),
            },
        })
    }

    fn for_plugin(&self, plugin: Plugin) -> &Recycler {
        match plugin {
            Plugin::HostPath => &self.host_path,
            Plugin::Nfs => &self.nfs,
        }
    }
}

/// Reads the template of the pod from the file; the built-in one without a file.
fn template(path: &str) -> Result<Value, String> {
    if path.is_empty() {
        return Ok(default_template());
    }
    let text =
        std::fs::read(path).map_err(|error| format!("failed to read file path {path}: {error}"))?;
    if text.is_empty() {
        return Err(format!("file was empty: {path}"));
    }
    parse_yaml(&text).map_err(|error| match error {
        Fault::Decoding(error) => format!("failed decoding file: {error}"),
        Fault::NoVolumes => {
            format!("pod specification ({path}): does not contain any volume(s)")
        }
    })
}

enum Fault {
    Decoding(String),
    NoVolumes,
}

/// Parses a Pod in YAML, of which JSON is a part. It must have a volume.
fn parse_yaml(text: &[u8]) -> Result<Value, Fault> {
    let pod: Value =
        serde_yaml_ng::from_slice(text).map_err(|error| Fault::Decoding(error.to_string()))?;
    if pod["apiVersion"] != "v1" || pod["kind"] != "Pod" {
        return Err(Fault::Decoding(format!(
            "{} {} is not a Pod of version v1",
            pod["apiVersion"], pod["kind"]
        )));
    }
    match pod.pointer("/spec/volumes/0").is_some_and(Value::is_object) {
        true => Ok(pod),
        false => Err(Fault::NoVolumes),
    }
}

/// Returns the built-in template: the pod removes all files of its volume.
/// Upstream: `NewPersistentVolumeRecyclerPodTemplate`.
fn default_template() -> Value {
    const SCRUB: &str = "test -e /scrub && find /scrub -mindepth 1 -delete && \
                         test -z \"$(ls -A /scrub)\" || exit 1";
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "namespace": "default" },
        "spec": {
            "activeDeadlineSeconds": 60, "restartPolicy": "Never",
            "volumes": [{ "name": "vol" }],
            "containers": [{
                "name": "pv-recycler",
                "image": "registry.k8s.io/build-image/debian-base:bookworm-v1.0.6",
                "command": ["/bin/sh"], "args": ["-c", SCRUB],
                "volumeMounts": [{ "name": "vol", "mountPath": "/scrub" }],
            }],
        },
    })
}

impl Recycler {
    /// Builds the pod that empties `volume`.
    /// Upstream: the plugins' `Recycle`.
    fn pod(&self, volume: &Value, plugin: Plugin) -> Value {
        let mut pod = self.template.clone();
        let spec = &volume["spec"];
        let capacity = spec["capacity"]["storage"].as_str().and_then(|text| text.parse().ok());
        pod["spec"]["activeDeadlineSeconds"] = self.seconds(capacity.unwrap_or_default()).into();
        let source = match plugin {
            Plugin::HostPath => json!({ "hostPath": { "path": spec["hostPath"]["path"] } }),
            Plugin::Nfs => {
                let nfs = &spec["nfs"];
                json!({ "nfs": { "server": nfs["server"], "path": nfs["path"] } })
            }
        };
        let first = &mut pod["spec"]["volumes"][0];
        let mut named = json!({ "name": first["name"] });
        if let (Some(named), Value::Object(source)) = (named.as_object_mut(), source) {
            named.extend(source);
        }
        *first = named;
        let name = volume["metadata"]["name"].as_str().unwrap_or_default();
        if let Some(metadata) = pod["metadata"].as_object_mut() {
            metadata.remove("generateName");
        }
        pod["metadata"]["name"] = format!("recycler-for-{name}").into();
        pod
    }

    /// Returns how long the pod may run for a volume of this capacity. Upstream:
    /// `CalculateTimeoutForVolume`.
    fn seconds(&self, capacity: Quantity) -> i64 {
        let gi = capacity.value() / (1 << 30);
        gi.saturating_mul(self.increment).max(self.minimum)
    }
}

/// An observation of a recycler's pod.
enum Observation {
    /// It has ended, with success or failure.
    Ended(Result<(), String>),
    /// An event about it.
    Event(EventType, String),
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodState {
    status: State,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct State {
    phase: Option<String>,
    message: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodEvent {
    r#type: Option<String>,
    message: Option<String>,
}

/// Returns how a pod ended, with the error if it failed; `None` if it still runs.
fn end_of(pod: PodState) -> Option<Result<(), String>> {
    match pod.status.phase.as_deref() {
        Some("Succeeded") => Some(Ok(())),
        Some("Failed") => {
            let message = pod.status.message.filter(|message| !message.is_empty());
            Some(Err(message.unwrap_or("pod failed, pod.Status.Message unknown".to_owned())))
        }
        _ => None,
    }
}

impl Binder {
    /// Starts to recycle a released volume, unless that runs.
    pub fn recycle(self: &Arc<Self>, volume: &Arc<PersistentVolume>) {
        let name = format!("recycle-{}[{}]", volume.meta.name, volume.meta.uid);
        let (this, volume) = (self.clone(), volume.clone());
        self.operations.start(name, async move {
            if let Err(error) = this.recycle_now(&volume).await {
                // The next sync retries.
                log::debug!("volume {}: {error}", volume.meta.name);
            }
            Ok(())
        });
    }

    /// Empties a released volume by a pod, and makes it available again; if that fails, its phase
    /// becomes Failed. Does nothing if the live volume is not to be recycled any more, or pods of a
    /// claim that is gone still use it.
    /// Upstream: `recycleVolumeOperation`.
    async fn recycle_now(&self, volume: &PersistentVolume) -> Result<(), Error> {
        // The cache may be behind.
        let verbs = self.client.resource(&PersistentVolume::RESOURCE);
        let json: Value = verbs.get(&volume.meta.key()).await?;
        let live: Arc<PersistentVolume> = Arc::new(from_json(&json.to_string())?);
        let Some(claim) = live.spec.claim_ref.as_ref().map(|claim| claim.key()) else {
            return Ok(());
        };
        let is_kept = live.spec.reclaim_policy != volume.spec.reclaim_policy;
        if live.meta.uid != volume.meta.uid || is_kept || !self.may_reclaim(&live) {
            return Ok(());
        }
        let users: BTreeSet<String> = pods_of(&self.pods, &claim)
            .iter()
            .filter(|pod| !pod.is_terminated())
            .map(|pod| pod.meta.key().to_string())
            .collect();
        // A claim with this name is another one, with another volume.
        if !users.is_empty() && self.claims.get(&claim).is_none() {
            let users: Vec<String> = users.into_iter().collect();
            let message = format!("Volume is used by pods: {}", users.join(","));
            self.record(&*live, PendingEvent::normal("VolumeFailedRecycle", message));
            return Ok(());
        }
        let Some(plugin) = Plugin::of_volume(&live) else {
            let message = "No recycler plugin found for the volume!";
            let notice = PendingEvent::warning("VolumeFailedRecycle", message);
            return self.set_phase_with(&live, "Failed", Some(notice)).await.map(drop);
        };
        if let Err(error) = self.scrub(&live, &json, plugin).await {
            let message = format!("Recycle failed: {error}");
            let notice = PendingEvent::warning("VolumeFailedRecycle", message);
            return self.set_phase_with(&live, "Failed", Some(notice)).await.map(drop);
        }
        self.record(&*live, PendingEvent::normal("VolumeRecycled", "Volume recycled"));
        self.unbind(&live).await
    }

    /// Empties a volume: runs its recycler's pod to the end, and deletes the pod. Fails if an old
    /// pod of the name exists, and deletes that one. Upstream:
    /// `RecycleVolumeByWatchingPodUntilCompletion`.
    async fn scrub(
        &self,
        volume: &PersistentVolume,
        json: &Value,
        plugin: Plugin,
    ) -> Result<(), String> {
        let text = |error: crate::client::Error| Error::from(error).message();
        let pod = self.recyclers.for_plugin(plugin).pod(json, plugin);
        let part = |name: &str| pod["metadata"][name].as_str().unwrap_or_default();
        let key = ObjectKey::new(part("namespace"), part("name"));
        let (seen, watches) = watch(&self.client, &key).await.map_err(text)?;
        let pods = self.client.resource(&Pod::RESOURCE);
        if let Err(error) = pods.create::<Value>(&key.namespace, &pod).await {
            if !error.is_already_exists() {
                return Err(format!("unexpected error creating recycler pod:  {}", text(error)));
            }
            return Err(match pods.delete(&key, Delete::new()).await {
                Ok(()) => "old recycler pod found, will retry later".to_owned(),
                Err(error) => {
                    format!("failed to delete old recycler pod {key}: {}", text(error))
                }
            });
        }
        let ended = self.follow(volume, &key, seen).or(async {
            watches.await;
            Err(format!("recycler pod {:?} watch channel had been closed", key.name))
        });
        let ended = ended.await;
        let deleted = pods.delete(&key, Delete::new()).await;
        ended.map_err(|error| format!("failed to recycle volume: {error}"))?;
        deleted.map_err(|error| format!("failed to delete recycler pod: {}", text(error)))
    }

    /// Records the pod's events as events of the volume until the pod ends, and returns how it
    /// ended.
    async fn follow(
        &self,
        volume: &PersistentVolume,
        key: &ObjectKey,
        seen: Receiver<Observation>,
    ) -> Result<(), String> {
        loop {
            match seen.recv().await {
                Ok(Observation::Ended(end)) => return end,
                Ok(Observation::Event(event_type, message)) => {
                    let message = format!("Recycler pod: {message}");
                    self.record(
                        volume,
                        PendingEvent { event_type, reason: "RecyclerPod", message },
                    );
                }
                Err(_) => {
                    return Err(format!(
                        "recycler pod {:?} watch channel had been closed",
                        key.name
                    ));
                }
            }
        }
    }
}

/// Watches the pod `key` and its events. Returns the observations, and a future that makes them,
/// which ends when both watches have ended.
async fn watch(
    client: &Client,
    key: &ObjectKey,
) -> crate::client::Result<(Receiver<Observation>, impl Future<Output = ()> + Send + use<>)> {
    let selecting = |field: &str| ListOptions {
        field_selector: Some(format!("{field}={}", key.name)),
        ..ListOptions::default()
    };
    let namespace = Some(&*key.namespace);
    let (pods, events) = (client.resource(&Pod::RESOURCE), client.resource(&EVENTS));
    let by_name = selecting("metadata.name");
    let mut pods = pods.watch(namespace, &by_name, false, WATCH_TIMEOUT).await?;
    let about = selecting("involvedObject.name");
    let mut events = events.watch(namespace, &about, false, WATCH_TIMEOUT).await?;
    let (send, seen) = async_channel::bounded(ROOM);
    let of_events = send.clone();
    let watch_pods = async move {
        while let Some(Ok(event)) = pods.next().await {
            let end = match event {
                WatchEvent::Added(pod) | WatchEvent::Modified(pod) => {
                    serde_json::from_slice(&pod.bytes).ok().and_then(end_of)
                }
                WatchEvent::Deleted(_) => Some(Err("recycler pod was deleted".to_owned())),
                WatchEvent::Bookmark(_) => None,
            };
            if let Some(end) = end
                && send.send(Observation::Ended(end)).await.is_err()
            {
                return;
            }
        }
    };
    let watch_events = async move {
        while let Some(Ok(event)) = events.next().await {
            let WatchEvent::Added(event) = event else { continue };
            let Ok(event) = serde_json::from_slice::<PodEvent>(&event.bytes) else { continue };
            let event_type = match event.r#type.as_deref() {
                Some("Warning") => EventType::Warning,
                _ => EventType::Normal,
            };
            let message = event.message.unwrap_or_default();
            if of_events.send(Observation::Event(event_type, message)).await.is_err() {
                return;
            }
        }
    };
    Ok((seen, async move {
        futures_lite::future::zip(watch_pods, watch_events).await;
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pod_gets_the_volume_and_time_by_its_size() {
        let recycler = Recycler { template: default_template(), minimum: 60, increment: 30 };
        for (size, seconds) in [("1Gi", 60), ("3Gi", 90), ("3583Mi", 90), ("1", 60), ("10Gi", 300)]
        {
            let volume = json!({
                "metadata": { "name": "v" },
                "spec": { "capacity": { "storage": size }, "hostPath": { "path": "/tmp/x", "type": "" } },
            });
            let pod = recycler.pod(&volume, Plugin::HostPath);
            assert_eq!(pod["spec"]["activeDeadlineSeconds"], seconds, "{size}");
            assert_eq!(
                pod["metadata"],
                json!({ "namespace": "default", "name": "recycler-for-v" })
            );
            assert_eq!(
                pod["spec"]["volumes"],
                json!([{ "name": "vol", "hostPath": { "path": "/tmp/x" } }])
            );
        }
        let nfs = json!({
            "metadata": { "name": "n" },
            "spec": { "nfs": { "server": "s", "path": "/p", "readOnly": true } },
        });
        let pod = recycler.pod(&nfs, Plugin::Nfs);
        let source = json!({ "name": "vol", "nfs": { "server": "s", "path": "/p" } });
        assert_eq!(pod["spec"]["volumes"][0], source);
    }

    #[test]
    fn templates_are_pods_with_a_volume() {
        let fault = |text: &str| match parse_yaml(text.as_bytes()) {
            Ok(_) => "",
            Err(Fault::NoVolumes) => "no volumes",
            Err(Fault::Decoding(_)) => "decoding",
        };
        for (text, expected) in [
            ("apiVersion: v1\nkind: Pod\nspec:\n  volumes:\n  - name: vol\n", ""),
            (r#"{"apiVersion": "v1", "kind": "Pod", "spec": {"volumes": [{"name": "x"}]}}"#, ""),
            ("apiVersion: v1\nkind: Pod\nspec: {}\n", "no volumes"),
            ("apiVersion: v1\nkind: ConfigMap\n", "decoding"),
            (": :", "decoding"),
        ] {
            assert_eq!(fault(text), expected, "{text}");
        }
        let missing = template("/no/such/file").unwrap_err();
        assert!(missing.starts_with("failed to read file path /no/such/file: "), "{missing}");
    }

    #[test]
    fn the_end_of_a_pod_is_its_phase() {
        let end =
            |status: Value| end_of(serde_json::from_value(json!({ "status": status })).unwrap());
        assert_eq!(end(json!({ "phase": "Running" })), None);
        assert_eq!(end(json!({ "phase": "Succeeded" })), Some(Ok(())));
        let failed = |message: &str| Some(Err(message.to_owned()));
        assert_eq!(end(json!({ "phase": "Failed", "message": "m" })), failed("m"));
        let unknown = "pod failed, pod.Status.Message unknown";
        assert_eq!(end(json!({ "phase": "Failed" })), failed(unknown));
    }
}
