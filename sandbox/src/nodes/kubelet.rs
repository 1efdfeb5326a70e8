//! The kubelet of all nodes: registers Node objects, renews their leases and walks bound pods through
//! their phases. It runs no containers.
//!
//! A pod's annotation `sandbox/behavior` steers it: `ready` (the default), `never-ready`, `crash`
//! (starts, then fails), `exit` (starts, then succeeds).

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use kube_controller_manager::cache::{Lister, Scope};
use kube_controller_manager::client::{self, Client, Delete, Patch};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::events::{EventType, ObjectReference, Recorder};
use kube_controller_manager::objects::{
    Istr, Meta, Object, ObjectKey, Pod, Resource, ResourceType, Timestamp,
};
use kube_controller_manager::task::{StopToken, TaskGroup};

use super::worker::{Event, Next, SyncResult, Worker};
use super::{NodeOptions, StandIn, Steering};

const NAME: &str = "sandbox-kubelet";
const WORKERS: usize = 8;
const LEASES: ResourceType =
    ResourceType::fixed("coordination.k8s.io", "v1", "Lease", "leases", true);
const NODES: ResourceType = ResourceType::fixed("", "v1", "Node", "nodes", false);

/// What the kubelet reads of a pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct BoundPod {
    #[serde(rename = "metadata")]
    meta: Meta,
    spec: Spec,
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    node_name: Istr,
    restart_policy: Istr,
    containers: Vec<Container>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Container {
    name: Istr,
    image: Istr,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    phase: Istr,
    start_time: Option<Timestamp>,
}

impl Object for BoundPod {
    fn meta(&self) -> &Meta {
        &self.meta
    }
}

struct Kubelet {
    client: Client,
    clock: SharedClock,
    pods: Lister<BoundPod>,
    options: NodeOptions,
    steering: Steering,
    /// `None` records no events.
    recorder: Option<Recorder>,
}

/// Watches the pods of `stand_in`'s factory; the future runs until the stop.
pub fn kubelet(
    stand_in: StandIn<'_>,
    options: NodeOptions,
    steering: Steering,
) -> impl Future<Output = ()> + Send + use<> {
    let StandIn { factory, client, clock, recorder, stop } = stand_in;
    let pods = factory.informer_for::<BoundPod>(Scope {
        resource: Pod::RESOURCE,
        metadata_only: false,
        namespace: None,
        label_selector: None,
        field_selector: None,
    });
    let mut worker = Worker::new(NAME, &clock);
    let keys = worker.keys();
    worker.watch(&pods, move |event: Event<'_, BoundPod>| {
        if let Event::Seen(pod) = event
            && !pod.spec.node_name.is_empty()
        {
            keys.add(pod.meta.key());
        }
    });
    let this =
        Arc::new(Kubelet { client, clock, pods: pods.lister(), options, steering, recorder });
    async move {
        let tasks = TaskGroup::new();
        tasks.spawn(this.clone().keep_alive(stop.clone()));
        worker.run(WORKERS, stop, move |key| this.clone().sync(key)).await;
        tasks.join().await;
    }
}

/// The next action on a pod.
#[derive(Debug, PartialEq)]
enum Step {
    Nothing,
    Wait(Duration),
    Start,
    Run { ready: bool },
    Finish { phase: &'static str },
    Remove,
}

fn step(pod: &BoundPod, now: Timestamp, options: &NodeOptions, held: bool) -> Step {
    if let Some(deadline) = pod.meta.deletion_timestamp {
        let grace = pod.meta.deletion_grace_period_seconds.unwrap_or(0).max(0) as u64;
        let since = deadline - Duration::from_secs(grace);
        let due = (since + options.stop_delay).min(deadline);
        return if now >= due { Step::Remove } else { Step::Wait(due.duration_since(now)) };
    }
    let behavior = pod.meta.annotations.get("sandbox/behavior").unwrap_or("ready");
    match (pod.status.phase.as_str(), pod.status.start_time) {
        ("Succeeded" | "Failed", _) => Step::Nothing,
        ("Running", _) => match behavior {
            "exit" => Step::Finish { phase: "Succeeded" },
            "crash" if pod.spec.restart_policy == "Never" => Step::Finish { phase: "Failed" },
            _ => Step::Nothing,
        },
        (_, None) if !options.start_delay.is_zero() => Step::Start,
        (_, since) => {
            let since = since.unwrap_or(now);
            // startTime has whole seconds, so the start may be up to a second late.
            let due = since + options.start_delay;
            if now < due {
                return Step::Wait(due.duration_since(now));
            }
            if held {
                return Step::Wait(Duration::from_millis(500));
            }
            Step::Run { ready: matches!(behavior, "ready" | "exit") }
        }
    }
}

impl Kubelet {
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(pod) = self.pods.get(&key) else { return Ok(Next::Done) };
        if pod.spec.node_name.is_empty() || self.steering.is_dead(&pod.spec.node_name) {
            return Ok(Next::After(Duration::from_secs(1)));
        }
        let now = self.clock.now();
        match step(&pod, now, &self.options, self.steering.is_held()) {
            Step::Nothing => Ok(Next::Done),
            Step::Wait(after) => Ok(Next::After(after)),
            Step::Start => self.start(&pod, &key, now).await,
            Step::Run { ready } => self.report(&pod, &key, "Running", ready, now).await,
            Step::Finish { phase } => self.report(&pod, &key, phase, false, now).await,
            Step::Remove => {
                self.record(&pod, "Killing", |container| {
                    format!("Stopping container {}", container.name)
                });
                let delete = Delete::new().grace_period(0).uid(pod.meta.uid.clone());
                match self.client.delete::<Pod>(&key, delete).await {
                    Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
                    _ => Ok(Next::Done),
                }
            }
        }
    }

    async fn start(&self, pod: &BoundPod, key: &ObjectKey, now: Timestamp) -> SyncResult {
        let status = json!({ "startTime": now, "phase": "Pending", "hostIP": "192.0.2.1" });
        self.patch_status(pod, key, status).await?;
        Ok(Next::After(self.options.start_delay))
    }

    async fn report(
        &self,
        pod: &BoundPod,
        key: &ObjectKey,
        phase: &str,
        ready: bool,
        now: Timestamp,
    ) -> SyncResult {
        let condition = |name: &str, holds: bool, reason: &str| {
            let mut condition = json!({
                "type": name, "status": if holds { "True" } else { "False" },
                "lastTransitionTime": now, "lastProbeTime": null,
            });
            if !reason.is_empty() {
                condition["reason"] = reason.into();
            }
            condition
        };
        let why = match (ready, phase) {
            (true, _) => "",
            (_, "Succeeded") => "PodCompleted",
            (_, "Failed") => "PodFailed",
            _ => "ContainersNotReady",
        };
        let state = match phase {
            "Running" => json!({ "running": { "startedAt": now } }),
            _ => json!({ "terminated": {
                "exitCode": i32::from(phase == "Failed"), "startedAt": now, "finishedAt": now,
                "reason": if phase == "Failed" { "Error" } else { "Completed" },
            }}),
        };
        let containers: Vec<Value> = pod
            .spec
            .containers
            .iter()
            .map(|container| {
                json!({
                    "name": container.name, "image": container.image, "imageID": "",
                    "ready": ready, "started": phase == "Running", "restartCount": 0,
                    "state": state, "lastState": {},
                })
            })
            .collect();
        let ip = address(&pod.meta);
        let status = json!({
            "phase": phase,
            "startTime": pod.status.start_time.unwrap_or(now),
            "hostIP": "192.0.2.1", "podIP": ip, "podIPs": [{ "ip": ip }],
            "conditions": [
                condition("PodReadyToStartContainers", true, ""),
                condition("Initialized", true, ""),
                condition("Ready", ready, why),
                condition("ContainersReady", ready, why),
                condition("PodScheduled", true, ""),
            ],
            "containerStatuses": containers,
        });
        self.patch_status(pod, key, status).await?;
        if phase == "Running" {
            self.record(pod, "Pulled", |container| {
                format!("Container image {:?} already present on machine", container.image)
            });
            self.record(pod, "Created", |_| "Container created".to_owned());
            self.record(pod, "Started", |_| "Container started".to_owned());
        }
        Ok(Next::Done)
    }

    /// Records an event for each container.
    fn record(&self, pod: &BoundPod, reason: &str, message: impl Fn(&Container) -> String) {
        let Some(recorder) = &self.recorder else { return };
        for container in &pod.spec.containers {
            let mut about = ObjectReference::of(&Pod::RESOURCE, &pod.meta);
            about.field_path = format!("spec.containers{{{}}}", container.name);
            recorder.event(&about, EventType::Normal, reason, message(container));
        }
    }

    async fn patch_status(
        &self,
        pod: &BoundPod,
        key: &ObjectKey,
        status: Value,
    ) -> client::Result<()> {
        let patch =
            Patch::StrategicMerge(json!({ "metadata": { "uid": pod.meta.uid }, "status": status }));
        let pods = self.client.resource(&Pod::RESOURCE).subresource("status");
        match pods.patch::<Value>(key, &patch).await {
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
            _ => Ok(()),
        }
    }

    async fn keep_alive(self: Arc<Self>, stop: StopToken) {
        loop {
            if let Err(error) = self.beat().await {
                log::error!("{NAME}: {error}");
            }
            let next = self.clock.sleep(self.options.heartbeat);
            if stop.unless_stopped(next).await.is_none() {
                return;
            }
        }
    }

    /// Registers missing nodes and renews the lease of every living node.
    async fn beat(&self) -> client::Result<()> {
        for index in 0..self.options.count {
            let name = format!("node-{index}");
            if self.steering.is_dead(&name) {
                continue;
            }
            let now = self.clock.now();
            let key = ObjectKey::cluster(&name);
            let nodes = self.client.resource(&NODES);
            match nodes.get::<Value>(&key).await {
                Ok(_) => {}
                Err(error) if error.is_not_found() => {
                    nodes.create::<Value>("", &node(&name, now)).await?;
                    // Admission taints every new node as not ready. The node lifecycle controller would
                    // remove the taint, but it does not run here.
                    let untaint = Patch::Merge(json!({ "spec": { "taints": null } }));
                    nodes.patch::<Value>(&key, &untaint).await?;
                }
                Err(error) => return Err(error),
            }
            let leases = self.client.resource(&LEASES);
            let lease = ObjectKey::new("kube-node-lease", &name);
            let renew = json!({ "spec": { "renewTime": now.to_micro_string() } });
            match leases.patch::<Value>(&lease, &Patch::Merge(renew)).await {
                Ok(_) => {}
                Err(error) if error.is_not_found() => {
                    let body = json!({
                        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                        "metadata": { "name": name, "namespace": "kube-node-lease" },
                        "spec": {
                            "holderIdentity": name, "leaseDurationSeconds": 40,
                            "renewTime": now.to_micro_string(),
                        },
                    });
                    leases.create::<Value>("kube-node-lease", &body).await?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// An address in 10.244.0.0/16 that depends only on the pod's uid.
fn address(meta: &Meta) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    meta.uid.hash(&mut hasher);
    let hash = hasher.finish();
    format!("10.244.{}.{}", (hash >> 8) & 0xff, 1 + (hash & 0xff) % 254)
}

fn node(name: &str, now: Timestamp) -> Value {
    let room =
        json!({ "cpu": "64", "memory": "256Gi", "pods": "10000", "ephemeral-storage": "100Gi" });
    let condition = |name: &str, status: &str, reason: &str, message: &str| {
        json!({
            "type": name, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        })
    };
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": name, "labels": {
            "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
        }},
        "spec": {},
        "status": {
            "capacity": room, "allocatable": room,
            "conditions": [
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
                condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
                condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
            ],
            "addresses": [{ "type": "InternalIP", "address": "192.0.2.1" },
                          { "type": "Hostname", "address": name }],
            "nodeInfo": {
                "architecture": "amd64", "bootID": "", "containerRuntimeVersion": "none://0",
                "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "v1.36.2",
                "machineID": "", "operatingSystem": "linux", "osImage": "sandbox", "systemUUID": "",
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(value: Value) -> BoundPod {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn pods_walk_through_their_phases() {
        let options = NodeOptions {
            start_delay: Duration::from_secs(2),
            stop_delay: Duration::from_secs(5),
            ..NodeOptions::default()
        };
        let now = Timestamp::from_secs(100);
        let at = |secs| Timestamp::from_secs(secs).to_string();
        let table = [
            (json!({}), false, Step::Start),
            (
                json!({ "status": { "startTime": at(99) } }),
                false,
                Step::Wait(Duration::from_secs(1)),
            ),
            (json!({ "status": { "startTime": at(98) } }), false, Step::Run { ready: true }),
            (
                json!({ "status": { "startTime": at(98) } }),
                true,
                Step::Wait(Duration::from_millis(500)),
            ),
            (
                json!({ "metadata": { "annotations": { "sandbox/behavior": "never-ready" } },
                        "status": { "startTime": at(98) } }),
                false,
                Step::Run { ready: false },
            ),
            (json!({ "status": { "phase": "Running" } }), false, Step::Nothing),
            (
                json!({ "metadata": { "annotations": { "sandbox/behavior": "exit" } },
                        "status": { "phase": "Running" } }),
                false,
                Step::Finish { phase: "Succeeded" },
            ),
            (
                json!({ "metadata": { "deletionTimestamp": at(130), "deletionGracePeriodSeconds": 30 } }),
                false,
                Step::Wait(Duration::from_secs(5)),
            ),
            (
                json!({ "metadata": { "deletionTimestamp": at(101), "deletionGracePeriodSeconds": 1 } }),
                false,
                Step::Wait(Duration::from_secs(1)),
            ),
            (
                json!({ "metadata": { "deletionTimestamp": at(100), "deletionGracePeriodSeconds": 0 } }),
                false,
                Step::Remove,
            ),
        ];
        for (value, held, expected) in table {
            assert_eq!(step(&pod(value.clone()), now, &options, held), expected, "{value}");
        }
    }
}
