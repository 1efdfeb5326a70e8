//! The kubelet of all nodes: registers Node objects, renews their leases and walks bound pods
//! through their phases. It runs no containers: what they would do is in their commands and in
//! annotations (see `containers`).

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use kube_controller_manager::cache::{Lister, Scope, SharedIndexInformer, SharedInformerFactory};
use kube_controller_manager::client::{self, Client, Delete, Patch};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::events::{EventType, ObjectReference, Recorder};
use kube_controller_manager::objects::{
    Istr, Meta, Object, ObjectKey, Pod, Resource, ResourceType, Timestamp,
};
use kube_controller_manager::task::{StopToken, TaskGroup};

use super::containers::{Container, Containers, KILLED, Phase, Reported, Rules};
use super::ports::HostPort;
use super::scheduler::Node;
use super::worker::{Event, Next, SyncResult, Worker};
use super::{NodeOptions, StandIn, Steering};

const NAME: &str = "sandbox-kubelet";
const WORKERS: usize = 8;
/// How many nodes' leases are renewed at the same time. One after the other, the leases of
/// thousands of nodes would expire on a busy server before their turn.
const LANES: usize = 16;
/// The pause after a conflict. A conflict that a planned fault caused is not followed by an event, so
/// the pod is synced again.
const CONFLICT_DELAY: Duration = Duration::from_millis(200);
const LEASES: ResourceType =
    ResourceType::fixed("coordination.k8s.io", "v1", "Lease", "leases", true);
const NODES: ResourceType = ResourceType::fixed("", "v1", "Node", "nodes", false);

/// The fields of a pod that the kubelet reads.
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
    active_deadline_seconds: Option<u64>,
    containers: Vec<Container>,
    init_containers: Vec<Container>,
    readiness_gates: Vec<ReadinessGate>,
    volumes: Vec<Volume>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Volume {
    name: Istr,
    persistent_volume_claim: Option<ClaimSource>,
    ephemeral: Option<IgnoredAny>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClaimSource {
    claim_name: Istr,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ReadinessGate {
    condition_type: Istr,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    phase: Istr,
    start_time: Option<Timestamp>,
    conditions: Vec<Condition>,
    container_statuses: Vec<Reported>,
    init_container_statuses: Vec<Reported>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Condition {
    r#type: Istr,
    status: Istr,
    last_transition_time: Option<Timestamp>,
}

impl Status {
    fn condition(&self, name: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.r#type == *name)
    }

    fn has(&self, name: &str) -> bool {
        self.condition(name).is_some_and(|condition| condition.status == "True")
    }

    fn is_terminal(&self) -> bool {
        self.phase == "Succeeded" || self.phase == "Failed"
    }
}

impl Object for BoundPod {
    fn meta(&self) -> &Meta {
        &self.meta
    }
}

impl BoundPod {
    pub fn namespace(&self) -> &str {
        &self.meta.namespace
    }

    pub fn node(&self) -> &Istr {
        &self.spec.node_name
    }

    pub fn has_ended(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Returns the host ports that the pod uses.
    fn host_ports(&self) -> impl Iterator<Item = &HostPort> {
        self.spec.containers.iter().flat_map(|container| &container.ports.0)
    }

    /// Returns whether its containers were started, and have not ended.
    fn is_under_way(&self) -> bool {
        !self.has_ended() && !self.status.container_statuses.is_empty()
    }

    /// Returns whether `other` uses a host port that this pod requests.
    fn conflicts_on_port_with(&self, other: &BoundPod) -> bool {
        self.spec.node_name == other.spec.node_name
            && other.is_under_way()
            && other.host_ports().any(|taken| self.host_ports().any(|port| port.conflicts(taken)))
    }

    /// Returns the names of the claims of its volumes.
    pub fn claims(&self) -> impl Iterator<Item = Istr> + '_ {
        self.spec.volumes.iter().filter_map(|volume| {
            match (&volume.persistent_volume_claim, &volume.ephemeral) {
                (Some(claim), _) => Some(claim.claim_name.clone()),
                // The claim of an ephemeral volume is named after the pod and the volume.
                (None, Some(_)) => Some(format!("{}-{}", self.meta.name, volume.name).into()),
                (None, None) => None,
            }
        })
    }
}

/// Returns the pods of all nodes.
pub fn pods_of(factory: &SharedInformerFactory) -> SharedIndexInformer<BoundPod> {
    factory.informer_for::<BoundPod>(Scope::all(Pod::RESOURCE))
}

struct Kubelet {
    client: Client,
    clock: SharedClock,
    pods: Lister<BoundPod>,
    nodes: Lister<Node>,
    options: NodeOptions,
    steering: Steering,
    /// `None` records no events.
    recorder: Option<Recorder>,
}

/// Stands in for the kubelets of all nodes: watches the pods of `stand_in`'s factory; the future
/// runs until the stop.
pub fn kubelet(
    stand_in: StandIn<'_>,
    options: NodeOptions,
    steering: Steering,
) -> impl Future<Output = ()> + Send + use<> {
    let StandIn { factory, client, clock, recorder, stop } = stand_in;
    let pods = pods_of(factory);
    let mut worker = Worker::new(NAME, &clock);
    let keys = worker.keys();
    worker.watch(&pods, move |event: Event<'_, BoundPod>| {
        if let Event::Seen(pod) = event
            && !pod.spec.node_name.is_empty()
        {
            keys.add(pod.meta.key());
        }
    });
    let nodes = factory.informer::<Node>();
    worker.read(&nodes);
    let (pods, nodes) = (pods.lister(), nodes.lister());
    let this = Arc::new(Kubelet { client, clock, pods, nodes, options, steering, recorder });
    async move {
        let tasks = TaskGroup::new();
        for lane in 0..LANES.min(this.options.count) {
            tasks.spawn(this.clone().keep_alive(lane, stop.clone()));
        }
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
    /// Advance the containers.
    Run,
    /// Kill the containers, and report their end.
    Kill,
    Remove,
}

/// Decides the next step of a pod at `now`. `held`: its containers must not start yet.
fn step(pod: &BoundPod, now: Timestamp, options: &NodeOptions, held: bool) -> Step {
    if let Some(deadline) = pod.meta.deletion_timestamp {
        let grace = pod.meta.deletion_grace_period_seconds.map_or(Duration::ZERO, Duration::from);
        let since = deadline - grace;
        let due = (since + options.stop_delay).min(deadline);
        let stays = !pod.meta.finalizers().is_empty();
        return match () {
            () if now < due => Step::Wait(due.duration_since(now)),
            // The object outlives its containers, so their end is reported.
            () if stays && !pod.status.is_terminal() => Step::Kill,
            // It was removed with the grace period 0, and now only finalizers keep it.
            () if stays && grace.is_zero() => Step::Nothing,
            () => Step::Remove,
        };
    }
    if pod.status.is_terminal() {
        return Step::Nothing;
    }
    if pod.status.phase == "Running" || !pod.status.container_statuses.is_empty() {
        return Step::Run;
    }
    // Without a delay the pod runs at once, and its acceptance is not reported first.
    let Some(since) = pod.status.start_time.or(options.start_delay.is_zero().then_some(now)) else {
        return Step::Start;
    };
    // startTime has whole seconds, so the start may be up to a second late.
    let due = since + options.start_delay;
    match () {
        () if now < due => Step::Wait(due.duration_since(now)),
        () if held => Step::Wait(Duration::from_millis(500)),
        () => Step::Run,
    }
}

impl Kubelet {
    /// Advances a pod that is bound to a node. Pods on dead nodes, and those that are kept, wait.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(pod) = self.pods.get(&key) else { return Ok(Next::Done) };
        if pod.spec.node_name.is_empty() || self.steering.is_dead(&pod.spec.node_name) {
            return Ok(Next::After(Duration::from_secs(1)));
        }
        if pod.meta.is_being_deleted() && self.steering.is_kept(&pod.meta.name) {
            return Ok(Next::After(Duration::from_millis(500)));
        }
        match self.advance(&pod, &key).await {
            Err(error) if error.is_conflict() => Ok(Next::After(CONFLICT_DELAY)),
            Err(error) if error.is_not_found() => Ok(Next::Done),
            result => result,
        }
    }

    /// Takes the step that is due for a pod.
    async fn advance(&self, pod: &BoundPod, key: &ObjectKey) -> SyncResult {
        let now = self.clock.now();
        match step(pod, now, &self.options, self.steering.is_held()) {
            Step::Nothing => Ok(Next::Done),
            Step::Wait(after) => Ok(Next::After(after)),
            Step::Start => self.start(pod, key, now).await,
            Step::Run if self.has_port_conflict(pod) => self.reject(pod, key, now).await,
            Step::Run => self.run(pod, key, now).await,
            Step::Kill => {
                let (rules, mut containers) = containers(pod, now);
                let phase = containers.stop(KILLED, now);
                let status = report(pod, &rules, &containers, phase, now);
                self.patch_status(pod, key, status).await?;
                self.remove(pod, key).await
            }
            Step::Remove => self.remove(pod, key).await,
        }
    }

    /// Deletes a pod whose containers have ended.
    async fn remove(&self, pod: &BoundPod, key: &ObjectKey) -> SyncResult {
        let delete = Delete::new().grace_period(0).uid(pod.meta.uid.clone());
        self.client.delete::<Pod>(key, delete).await?;
        self.record(pod, "Killing", |container| format!("Stopping container {}", container.name));
        Ok(Next::Done)
    }

    /// Reports that a pod has been accepted; its containers start after a delay.
    async fn start(&self, pod: &BoundPod, key: &ObjectKey, now: Timestamp) -> SyncResult {
        let status = json!({ "startTime": now, "phase": "Pending", "hostIP": "192.0.2.1" });
        self.patch_status(pod, key, status).await?;
        Ok(Next::After(self.options.start_delay))
    }

    /// Returns whether another pod uses a host port that this one requests. The scheduler prevents
    /// this, but it does not bind every pod.
    fn has_port_conflict(&self, pod: &BoundPod) -> bool {
        !pod.is_under_way()
            && pod.host_ports().next().is_some()
            && self.pods.list().iter().any(|other| pod.conflicts_on_port_with(other))
    }

    /// Fails a pod whose host port is taken on its node.
    async fn reject(&self, pod: &BoundPod, key: &ObjectKey, now: Timestamp) -> SyncResult {
        let message = "Pod was rejected: Predicate NodePorts failed: \
                       node(s) didn't have free ports for the requested pod ports";
        let status = json!({
            "phase": "Failed", "reason": "NodePorts", "message": message,
            "startTime": pod.status.start_time.unwrap_or(now),
        });
        self.patch_status(pod, key, status).await?;
        Ok(Next::Done)
    }

    /// Advances the containers of a pod to `now`, and reports its status and events if something
    /// changed.
    async fn run(&self, pod: &BoundPod, key: &ObjectKey, now: Timestamp) -> SyncResult {
        let (rules, before) = containers(pod, now);
        let mut containers = before.clone();
        let (mut phase, mut wake) = containers.advance(&rules);
        let deadline = pod.spec.active_deadline_seconds.zip(pod.status.start_time);
        let deadline = deadline.map(|(seconds, since)| since + Duration::from_secs(seconds));
        let is_late = deadline.is_some_and(|due| due <= now);
        if is_late && !phase.is_terminal() {
            containers.stop(KILLED, now);
            phase = Phase::Failed;
        }
        wake = wake.into_iter().chain(deadline).min();
        let (_, ready) = readiness(pod, &rules, &containers, phase);
        let changed = containers != before
            || pod.status.phase != *phase.name()
            || pod.status.has("Ready") != ready;
        if changed {
            let mut status = report(pod, &rules, &containers, phase, now);
            if is_late {
                status["reason"] = "DeadlineExceeded".into();
                status["message"] =
                    "Pod was active on the node longer than the specified deadline".into();
            }
            self.patch_status(pod, key, status).await?;
            for container in containers.started_since(&before, &rules) {
                let pulled =
                    format!("Container image {:?} already present on machine", container.image);
                self.record_one(pod, container, "Pulled", pulled);
                self.record_one(pod, container, "Created", "Container created".to_owned());
                self.record_one(pod, container, "Started", "Container started".to_owned());
            }
        }
        Ok(match wake.filter(|_| !phase.is_terminal()) {
            Some(wake) => Next::After(wake.duration_since(now)),
            None => Next::Done,
        })
    }

    /// Records an event for each container.
    fn record(&self, pod: &BoundPod, reason: &str, message: impl Fn(&Container) -> String) {
        for container in &pod.spec.containers {
            self.record_one(pod, container, reason, message(container));
        }
    }

    fn record_one(&self, pod: &BoundPod, container: &Container, reason: &str, message: String) {
        let Some(recorder) = &self.recorder else { return };
        let mut about = ObjectReference::of(&Pod::RESOURCE, &pod.meta);
        about.field_path = format!("spec.containers{{{}}}", container.name).into();
        recorder.event(&about, EventType::Normal, reason, message);
    }

    /// Writes the status of a pod.
    ///
    /// # Errors
    /// A conflict, when the live pod is newer than the one from which the status was computed.
    async fn patch_status(
        &self,
        pod: &BoundPod,
        key: &ObjectKey,
        status: Value,
    ) -> client::Result<()> {
        let version = pod.meta.resource_version.to_string();
        let meta = json!({ "uid": pod.meta.uid, "resourceVersion": version });
        let patch = Patch::StrategicMerge(json!({ "metadata": meta, "status": status }));
        let pods = self.client.resource(&Pod::RESOURCE).subresource("status");
        pods.patch::<Value>(key, &patch).await.map(drop)
    }

    /// Sends heartbeats, until the stop, for the nodes of one lane: those whose number modulo
    /// `LANES` is `lane`. Dead nodes are left out.
    async fn keep_alive(self: Arc<Self>, lane: usize, stop: StopToken) {
        loop {
            for index in (lane..self.options.count).step_by(LANES) {
                let name = format!("node-{index}");
                if self.steering.is_dead(&name) {
                    continue;
                }
                match stop.unless_stopped(self.send_heartbeat(&name)).await {
                    Some(Ok(())) => {}
                    Some(Err(error)) => log::error!("{NAME}: {name}: {error}"),
                    None => return,
                }
            }
            let next = self.clock.sleep(self.options.heartbeat);
            if stop.unless_stopped(next).await.is_none() {
                return;
            }
        }
    }

    /// Registers a node that is missing, renews its lease, and reports a node that was lost as ready.
    async fn send_heartbeat(&self, name: &str) -> client::Result<()> {
        let now = self.clock.now();
        let key = ObjectKey::cluster(name);
        let nodes = self.client.resource(&NODES);
        // Thousands of nodes are not read in each period.
        let cached = self.nodes.get(&key);
        let known = match &cached {
            Some(_) => Ok(()),
            None => nodes.get::<Value>(&key).await.map(drop),
        };
        match known {
            Ok(()) => {}
            Err(error) if error.is_not_found() => {
                let created: Value = nodes.create("", &node(name, now)).await?;
                self.remove_not_ready(created, &key).await?;
            }
            Err(error) => return Err(error),
        }
        self.renew_lease(name, now).await?;
        // The cache may be older than the mark that a node got while it was dead.
        let has_returned = self.steering.has_returned(name);
        if has_returned || cached.is_some_and(|node| node.is_unreachable()) {
            self.report_ready(&key, now).await?;
            self.steering.clear_returned(name);
        }
        Ok(())
    }

    /// Removes the taint `not-ready` from a new node. Admission taints every new node as not ready.
    /// The node lifecycle controller would remove the taint, but it may not run. Taints that others
    /// set meanwhile stay.
    async fn remove_not_ready(&self, mut node: Value, key: &ObjectKey) -> client::Result<()> {
        let nodes = self.client.resource(&NODES);
        loop {
            if let Some(taints) = node["spec"]["taints"].as_array_mut() {
                taints.retain(|taint| taint["key"] != "node.kubernetes.io/not-ready");
            }
            match nodes.update::<Value>(key, &node).await {
                Err(error) if error.is_conflict() => node = nodes.get(key).await?,
                written => return written.map(drop),
            }
        }
    }

    /// Renews a node's lease, or creates it.
    async fn renew_lease(&self, name: &str, now: Timestamp) -> client::Result<()> {
        let leases = self.client.resource(&LEASES);
        let lease = ObjectKey::new("kube-node-lease", name);
        let renew = json!({ "spec": { "renewTime": now.to_micro_string() } });
        match leases.patch::<Value>(&lease, &Patch::Merge(renew)).await {
            Err(error) if error.is_not_found() => {
                let body = json!({
                    "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                    "metadata": { "name": name, "namespace": "kube-node-lease" },
                    "spec": {
                        "holderIdentity": name, "leaseDurationSeconds": 40,
                        "renewTime": now.to_micro_string(),
                    },
                });
                leases.create::<Value>("kube-node-lease", &body).await.map(drop)
            }
            renewed => renewed.map(drop),
        }
    }

    /// Reports a node as ready, with all conditions, unless its live object says so already.
    async fn report_ready(&self, key: &ObjectKey, now: Timestamp) -> client::Result<()> {
        let nodes = self.client.resource(&NODES);
        let live: Value = nodes.get(key).await?;
        let mut reported = live["status"]["conditions"].as_array().into_iter().flatten();
        if reported.any(|it| it["type"] == "Ready" && it["status"] == "True") {
            return Ok(());
        }
        let conditions = &node(&key.name, now)["status"]["conditions"];
        let status = Patch::StrategicMerge(json!({ "status": { "conditions": conditions } }));
        nodes.subresource("status").patch::<Value>(key, &status).await.map(drop)
    }
}

/// Reads the containers of `pod`, as they were last reported.
fn containers(pod: &BoundPod, now: Timestamp) -> (Rules<'_>, Containers) {
    let rules = Rules {
        containers: &pod.spec.containers,
        init_containers: &pod.spec.init_containers,
        restart_policy: &pod.spec.restart_policy,
        annotations: &pod.meta.annotations,
        now,
    };
    let Status { init_container_statuses, container_statuses, .. } = &pod.status;
    let containers = Containers::read(&rules, init_container_statuses, container_statuses);
    (rules, containers)
}

/// Returns whether all containers are ready, and whether the pod is.
fn readiness(
    pod: &BoundPod,
    rules: &Rules<'_>,
    containers: &Containers,
    phase: Phase,
) -> (bool, bool) {
    let all = phase == Phase::Running && containers.are_ready(rules);
    let mut gates = pod.spec.readiness_gates.iter().map(|gate| &gate.condition_type);
    (all, all && gates.all(|name| pod.status.has(name)))
}

/// Builds the whole status of `pod`, as its kubelet reports it.
fn report(
    pod: &BoundPod,
    rules: &Rules<'_>,
    containers: &Containers,
    phase: Phase,
    now: Timestamp,
) -> Value {
    let condition = |name: &str, holds: bool, reason: &str| {
        let status = if holds { "True" } else { "False" };
        let before = pod.status.condition(name).filter(|before| before.status == *status);
        let since = before.and_then(|before| before.last_transition_time).unwrap_or(now);
        let mut condition = json!({
            "type": name, "status": status, "lastTransitionTime": since, "lastProbeTime": null,
        });
        if !reason.is_empty() {
            condition["reason"] = reason.into();
        }
        condition
    };
    let (all_ready, ready) = readiness(pod, rules, containers, phase);
    let why = |holds: bool, otherwise: &'static str| match phase {
        _ if holds => "",
        Phase::Succeeded => "PodCompleted",
        Phase::Failed => "PodFailed",
        _ => otherwise,
    };
    let not_ready = if all_ready { "ReadinessGatesNotReady" } else { "ContainersNotReady" };
    let initialized = phase != Phase::Pending;
    let (init, main) = containers.statuses(rules);
    let ip = address(&pod.meta);
    let mut status = json!({
        "phase": phase.name(),
        "startTime": pod.status.start_time.unwrap_or(now),
        "hostIP": "192.0.2.1", "podIP": ip, "podIPs": [{ "ip": ip }],
        "conditions": [
            condition("PodReadyToStartContainers", true, ""),
            condition("Initialized", initialized, why(initialized, "ContainersNotInitialized")),
            condition("Ready", ready, why(ready, not_ready)),
            condition("ContainersReady", all_ready, why(all_ready, "ContainersNotReady")),
            condition("PodScheduled", true, ""),
        ],
        "containerStatuses": main,
    });
    if !init.is_empty() {
        status["initContainerStatuses"] = init.into();
    }
    status
}

/// Returns an address in 10.244.0.0/16 that depends only on the pod's uid.
fn address(meta: &Meta) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    meta.uid.hash(&mut hasher);
    let hash = hasher.finish();
    format!("10.244.{}.{}", (hash >> 8) & 0xff, 1 + (hash & 0xff) % 254)
}

/// Builds the node that a stand-in kubelet registers.
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
        }, "annotations": {
            "volumes.kubernetes.io/controller-managed-attach-detach": "true",
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
            (json!({ "status": { "startTime": at(98) } }), false, Step::Run),
            (
                json!({ "status": { "startTime": at(98) } }),
                true,
                Step::Wait(Duration::from_millis(500)),
            ),
            (json!({ "status": { "phase": "Running" } }), false, Step::Run),
            (json!({ "status": { "phase": "Failed" } }), false, Step::Nothing),
            (
                json!({ "metadata": { "deletionTimestamp": at(100), "deletionGracePeriodSeconds": 0,
                                      "finalizers": ["f"] },
                        "status": { "phase": "Running" } }),
                false,
                Step::Kill,
            ),
            (
                json!({ "metadata": { "deletionTimestamp": at(100), "deletionGracePeriodSeconds": 0,
                                      "finalizers": ["f"] },
                        "status": { "phase": "Failed" } }),
                false,
                Step::Nothing,
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

    #[test]
    fn a_port_of_a_node_has_one_pod() {
        let of = |node: &str, port: i32, ip: &str, phase: &str| {
            let statuses = if phase.is_empty() { json!([]) } else { json!([{}]) };
            pod(json!({
                "spec": { "nodeName": node, "containers": [{ "ports": [
                    { "containerPort": 80, "hostPort": port, "hostIP": ip },
                ] }] },
                "status": { "phase": phase, "containerStatuses": statuses },
            }))
        };
        let taken = of("a", 80, "", "Running");
        for (new, other, lacks) in [
            (of("a", 80, "", ""), &taken, true),
            (of("a", 80, "10.0.0.1", ""), &taken, true),
            (of("a", 81, "", ""), &taken, false),
            (of("a", 0, "", ""), &of("a", 0, "", "Running"), false),
            (of("b", 80, "", ""), &taken, false),
            (of("a", 80, "", ""), &of("a", 80, "", "Failed"), false),
            (of("a", 80, "", ""), &of("a", 80, "", ""), false),
            (of("a", 80, "10.0.0.1", ""), &of("a", 80, "10.0.0.2", "Running"), false),
        ] {
            assert_eq!(new.conflicts_on_port_with(other), lacks, "{new:?} beside {other:?}");
        }
    }
}
