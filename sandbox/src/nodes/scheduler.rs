//! A small scheduler: binds each pod to a node that has room for it, that its selector and required
//! affinity match and whose taints it tolerates. Of several such nodes it takes the one with the
//! fewest pods.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};

use kube_controller_manager::cache::{Lister, Scope};
use kube_controller_manager::client::{Client, Patch};
use kube_controller_manager::events::{EventType, ObjectReference, Recorder};
use kube_controller_manager::objects::{
    Istr, Labels, Meta, NO_EXECUTE, NO_SCHEDULE, NodeCondition, NodeSelector, Object, ObjectKey,
    PersistentVolume, PersistentVolumeClaim, Pod, Resource, ResourceList, ResourceType,
    StorageClass, Taint, Toleration, untolerated,
};

use super::StandIn;
use super::ports::{HostPort, HostPorts};
use super::volumes::{Claims, PodVolume, Volumes, has_node};
use super::worker::{Event, Keys, Next, SyncResult, Worker};

const NAME: &str = "sandbox-scheduler";
const WORKERS: usize = 4;
/// The backoff of a pod whose claim lost its selected node.
const BACKOFF: Duration = Duration::from_secs(1);

/// The fields of a pod that the scheduler reads.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Unscheduled {
    #[serde(rename = "metadata")]
    meta: Meta,
    spec: PodSpec,
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSpec {
    node_name: Istr,
    scheduler_name: Istr,
    node_selector: Labels,
    affinity: Affinity,
    tolerations: Vec<Toleration>,
    containers: Vec<Container>,
    volumes: Vec<PodVolume>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Affinity {
    node_affinity: NodeAffinity,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    required: Option<NodeSelector>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    phase: Istr,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Container {
    resources: Resources,
    ports: HostPorts,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Resources {
    requests: ResourceList,
}

/// The fields of a node that the stand-ins read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Node {
    #[serde(rename = "metadata")]
    meta: Meta,
    spec: NodeSpec,
    status: NodeStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NodeSpec {
    unschedulable: bool,
    taints: Vec<Taint>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NodeStatus {
    allocatable: ResourceList,
    conditions: Vec<NodeCondition>,
}

impl Node {
    /// Returns whether the node lifecycle controller has marked the node as unreachable.
    pub fn is_unreachable(&self) -> bool {
        let mut conditions = self.status.conditions.iter();
        conditions.any(|it| it.r#type == "Ready" && it.status == "Unknown")
    }
}

impl Object for Unscheduled {
    fn meta(&self) -> &Meta {
        &self.meta
    }
}
impl Object for Node {
    fn meta(&self) -> &Meta {
        &self.meta
    }
}
impl Resource for Node {
    const RESOURCE: ResourceType = ResourceType::fixed("", "v1", "Node", "nodes", false);
}

/// Millicores, bytes and pods.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Amounts {
    cpu: i64,
    memory: i64,
    pods: i64,
}

impl Amounts {
    /// Reads what the pods of a node may use in all: its allocatable amounts.
    fn of_node(node: &Node) -> Amounts {
        let read = |name| node.status.allocatable.get(name).unwrap_or_default();
        Amounts {
            cpu: read("cpu").milli_value(),
            memory: read("memory").value(),
            pods: read("pods").value(),
        }
    }

    fn of_pod(pod: &Unscheduled) -> Amounts {
        let mut requests = ResourceList::default();
        pod.spec.containers.iter().for_each(|c| requests.add(&c.resources.requests));
        let read = |name| requests.get(name).unwrap_or_default();
        Amounts { cpu: read("cpu").milli_value(), memory: read("memory").value(), pods: 1 }
    }

    fn fits(self, free: Amounts) -> bool {
        self.cpu <= free.cpu && self.memory <= free.memory && self.pods <= free.pods
    }

    /// Subtracts these amounts; with the sign -1 adds them.
    fn take(&mut self, used: Amounts, sign: i64) {
        self.cpu -= sign * used.cpu;
        self.memory -= sign * used.memory;
        self.pods -= sign * used.pods;
    }
}

/// Returns whether `pod` may run on `node`, free resources aside.
fn allows(node: &Node, pod: &Unscheduled) -> bool {
    let PodSpec { node_selector, affinity, tolerations, .. } = &pod.spec;
    let (name, labels) = (&*node.meta.name, &node.meta.labels);
    let required = &affinity.node_affinity.required;
    let kept_off = |taints: &[Taint]| {
        // `true`: the operators `Lt` and `Gt` of tolerations are known.
        untolerated(taints, &[NO_SCHEDULE, NO_EXECUTE], tolerations, true).is_some()
    };
    let cordon = || Taint {
        key: "node.kubernetes.io/unschedulable".into(),
        effect: NO_SCHEDULE.into(),
        ..Taint::default()
    };
    !node.meta.is_being_deleted()
        && labels.include(node_selector)
        && required.as_ref().is_none_or(|required| required.matches(name, labels))
        && !kept_off(&node.spec.taints)
        && !(node.spec.unschedulable && kept_off(&[cordon()]))
}

/// Returns the host ports that a pod requests.
fn host_ports(pod: &Unscheduled) -> impl Iterator<Item = &HostPort> {
    pod.spec.containers.iter().flat_map(|container| &container.ports.0)
}

/// Where pods are, including those that are bound but not yet seen in the cache. With thousands of
/// nodes and pods no event and no choice goes through all of them.
#[derive(Default)]
struct Ledger {
    nodes: HashSet<Istr>,
    /// The nodes by the number of their pods.
    by_pods: BTreeSet<(i64, Istr)>,
    /// The pods that were tried, or are just being tried, and have no node. New pods are in the queue.
    waiting: HashSet<ObjectKey>,
    placed: HashMap<ObjectKey, (Istr, Amounts)>,
    used: HashMap<Istr, Amounts>,
    /// The host ports of pods. Few pods have any.
    ports: HashMap<ObjectKey, Vec<HostPort>>,
    /// The pods whose claims were given a node. A pod whose claim loses it again is retried after a
    /// backoff.
    asked: HashSet<ObjectKey>,
}

impl Ledger {
    /// Records a pod as placed on a node: it takes resources and host ports there.
    fn place(&mut self, key: ObjectKey, node: &Istr, pod: &Unscheduled) {
        self.remove(&key);
        self.waiting.remove(&key);
        let amounts = Amounts::of_pod(pod);
        let ports: Vec<HostPort> = host_ports(pod).cloned().collect();
        if !ports.is_empty() {
            self.ports.insert(key.clone(), ports);
        }
        self.take(node, amounts, -1);
        self.placed.insert(key, (node.clone(), amounts));
    }

    /// Changes the amounts that are used on a node by those of a pod: the sign -1 adds them, 1
    /// takes them away.
    fn take(&mut self, node: &Istr, amounts: Amounts, sign: i64) {
        let used = self.used.entry(node.clone()).or_default();
        let before = used.pods;
        used.take(amounts, sign);
        let now = used.pods;
        if self.by_pods.remove(&(before, node.clone())) {
            self.by_pods.insert((now, node.clone()));
        }
    }

    fn add_node(&mut self, name: &Istr) {
        if self.nodes.insert(name.clone()) {
            let pods = self.used.get(name).map_or(0, |used| used.pods);
            self.by_pods.insert((pods, name.clone()));
        }
    }

    fn remove_node(&mut self, name: &Istr) {
        if self.nodes.remove(name) {
            let pods = self.used.get(name).map_or(0, |used| used.pods);
            self.by_pods.remove(&(pods, name.clone()));
        }
    }

    /// Forgets where a pod is placed, and frees its resources and host ports. It may still wait for
    /// a node.
    fn remove(&mut self, key: &ObjectKey) {
        self.ports.remove(key);
        self.asked.remove(key);
        if let Some((node, amounts)) = self.placed.remove(key) {
            self.take(&node, amounts, 1);
        }
    }

    /// Returns the amounts of a node that no pod takes.
    fn free(&self, node: &Node) -> Amounts {
        let mut free = Amounts::of_node(node);
        free.take(self.used.get(&*node.meta.name).copied().unwrap_or_default(), 1);
        free
    }

    /// Returns whether another pod on the node uses a host port that the pod requests.
    fn has_port_conflict(&self, node: &Node, pod: &Unscheduled) -> bool {
        host_ports(pod).any(|wanted| {
            self.ports.iter().any(|(key, taken)| {
                self.placed.get(key).is_some_and(|(at, _)| **at == *node.meta.name)
                    && taken.iter().any(|port| port.conflicts(wanted))
            })
        })
    }

    /// Returns the node with the fewest pods among those that can take the pod. `node`: the node of
    /// a name.
    fn choose(&self, pod: &Unscheduled, node: impl Fn(&Istr) -> Option<Arc<Node>>) -> Option<Istr> {
        let amounts = Amounts::of_pod(pod);
        let fits = |node: &Node| {
            allows(node, pod) && amounts.fits(self.free(node)) && !self.has_port_conflict(node, pod)
        };
        let mut names = self.by_pods.iter().map(|(_, name)| name);
        names.find(|name| node(name).is_some_and(|node| fits(&node))).cloned()
    }
}

struct Scheduler {
    /// `None` records no events.
    recorder: Option<Recorder>,
    client: Client,
    pods: Lister<Unscheduled>,
    nodes: Lister<Node>,
    ledger: Mutex<Ledger>,
    keys: Keys,
    volumes: Volumes,
}

/// Stands in for the scheduler: watches the pods and nodes of `stand_in`'s factory; the future
/// schedules until the stop.
pub fn scheduler(stand_in: StandIn<'_>) -> impl Future<Output = ()> + Send + use<> {
    let StandIn { factory, client, clock, recorder, stop } = stand_in;
    let pods = factory.informer_for::<Unscheduled>(Scope {
        resource: PODS,
        metadata_only: false,
        namespace: None,
        label_selector: None,
        field_selector: None,
    });
    let nodes = factory.informer::<Node>();
    let claims = factory.informer::<PersistentVolumeClaim>();
    let volumes = factory.informer::<PersistentVolume>();
    let classes = factory.informer::<StorageClass>();
    let mut worker = Worker::new(NAME, &clock);
    let this = Arc::new(Scheduler {
        client,
        recorder,
        pods: pods.lister(),
        nodes: nodes.lister(),
        ledger: Mutex::default(),
        keys: worker.keys(),
        volumes: Volumes {
            claims: claims.lister(),
            volumes: volumes.lister(),
            classes: classes.lister(),
        },
    });
    let ledger = this.clone();
    worker.watch(&pods, move |event: Event<'_, Unscheduled>| ledger.observe(&event));
    let waiting = this.clone();
    worker.watch(&nodes, move |event: Event<'_, Node>| match event {
        Event::Seen(node) => {
            waiting.ledger.lock().add_node(&Istr::new(&node.meta.name));
            waiting.wake_waiting();
        }
        Event::Gone(node) => waiting.ledger.lock().remove_node(&Istr::new(&node.meta.name)),
    });
    let waiting = this.clone();
    worker.watch(&claims, move |event: Event<'_, PersistentVolumeClaim>| {
        if let Event::Seen(claim) = event {
            waiting.wake_users(claim);
        }
    });
    worker.read(&volumes);
    worker.read(&classes);
    worker.run(WORKERS, stop, move |key| this.clone().sync(key))
}

const PODS: ResourceType = Pod::RESOURCE;

/// Returns whether a pod waits to be scheduled by this scheduler.
fn waits(pod: &Unscheduled) -> bool {
    pod.spec.node_name.is_empty()
        && !pod.meta.is_being_deleted()
        && (pod.spec.scheduler_name.is_empty() || pod.spec.scheduler_name == "default-scheduler")
}

fn claims_of(pod: &Unscheduled) -> impl Iterator<Item = String> {
    pod.spec.volumes.iter().filter_map(|volume| volume.claim(&pod.meta.name))
}

impl Scheduler {
    /// Follows a pod: one that ends frees room for those that wait, one on a node takes room, and
    /// one that waits is queued.
    fn observe(&self, event: &Event<'_, Unscheduled>) {
        let (Event::Seen(pod) | Event::Gone(pod)) = event;
        let key = pod.meta.key();
        let frees_room = matches!(event, Event::Gone(_))
            || matches!(pod.status.phase.as_str(), "Succeeded" | "Failed");
        let mut ledger = self.ledger.lock();
        if !waits(pod) || frees_room {
            ledger.waiting.remove(&key);
        }
        if frees_room {
            ledger.remove(&key);
            drop(ledger);
            self.wake_waiting();
        } else if !pod.spec.node_name.is_empty() {
            ledger.place(key, &pod.spec.node_name, pod);
        } else if waits(pod) {
            self.keys.add(key);
        }
    }

    /// Queues all pods that wait.
    fn wake_waiting(&self) {
        for key in &self.ledger.lock().waiting {
            self.keys.add(key.clone());
        }
    }

    /// Wakes the pods that wait for a claim. If the claim lost its selected node, they wake after a
    /// backoff, as with the real scheduler.
    fn wake_users(&self, claim: &PersistentVolumeClaim) {
        let uses = |pod: &Unscheduled| {
            pod.meta.namespace == claim.meta.namespace
                && claims_of(pod).any(|name| *name == *claim.meta.name)
        };
        let is_free = claim.spec.volume_name.is_empty() && !has_node(claim);
        let waiting: Vec<ObjectKey> = self.ledger.lock().waiting.iter().cloned().collect();
        for key in waiting {
            if !self.pods.get(&key).is_some_and(|pod| uses(&pod)) {
                continue;
            }
            match is_free && self.ledger.lock().asked.contains(&key) {
                true => self.keys.add_after(key, BACKOFF),
                false => self.keys.add(key),
            }
        }
    }

    /// Binds one waiting pod to a node, after its delayed claims have got that node. A pod without
    /// a node waits until something changes.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(pod) = self.pods.get(&key).filter(|pod| waits(pod)) else {
            self.ledger.lock().waiting.remove(&key);
            return Ok(Next::Done);
        };
        {
            let mut ledger = self.ledger.lock();
            if ledger.placed.contains_key(&key) {
                return Ok(Next::Done);
            }
            // Before anything is read: what changes from here on wakes the pod.
            ledger.waiting.insert(key.clone());
        }
        let node = |name: &Istr| self.nodes.get(&ObjectKey::cluster(name));
        let claims = self.volumes.check_claims(&key.namespace, claims_of(&pod));
        if let Claims::Missing(why) = &claims {
            let message = format!("0/{} nodes are available: {why}.", self.nodes.len());
            return self.report_unschedulable(&pod, &key, message).await;
        }
        if let Claims::Delayed(claims) = claims {
            let chosen = self.ledger.lock().choose(&pod, node);
            let Some(node) = chosen else {
                let message = format!("0/{} nodes are available.", self.nodes.len());
                return self.report_unschedulable(&pod, &key, message).await;
            };
            self.ledger.lock().asked.insert(key.clone());
            for claim in &claims {
                match self.volumes.reserve_or_request(&self.client, claim, &node).await {
                    Err(error) if error.is_not_found() || error.is_conflict() => {}
                    chosen => chosen?,
                }
            }
            return Ok(Next::Done);
        }
        let node = {
            let mut ledger = self.ledger.lock();
            let chosen = ledger.choose(&pod, node);
            if let Some(node) = &chosen {
                ledger.place(key.clone(), node, &pod);
            }
            chosen
        };
        let Some(node) = node else {
            let message = format!("0/{} nodes are available.", self.nodes.len());
            return self.report_unschedulable(&pod, &key, message).await;
        };
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": { "name": key.name, "namespace": key.namespace, "uid": pod.meta.uid },
            "target": { "apiVersion": "v1", "kind": "Node", "name": node },
        });
        let bindings = self.client.resource(&PODS).subresource("binding");
        let Err(error) = bindings.create_for::<Value>(&key, &binding).await else {
            let message = format!("Successfully assigned {}/{} to {node}", key.namespace, key.name);
            self.record(&pod, EventType::Normal, "Scheduled", message);
            return Ok(Next::Done);
        };
        self.ledger.lock().remove(&key);
        if error.is_not_found() || error.is_conflict() {
            // Another pod may have been tried while this one had the room.
            self.wake_waiting();
            return Ok(Next::Done);
        }
        Err(error)
    }

    fn record(&self, pod: &Unscheduled, event_type: EventType, reason: &str, message: String) {
        if let Some(recorder) = &self.recorder {
            recorder.event(&ObjectReference::of(&PODS, &pod.meta), event_type, reason, message);
        }
    }

    /// Records that a pod fits on no node, as an event and in its condition `PodScheduled`.
    async fn report_unschedulable(
        &self,
        pod: &Unscheduled,
        key: &ObjectKey,
        message: String,
    ) -> SyncResult {
        self.record(pod, EventType::Warning, "FailedScheduling", message.clone());
        let patch = Patch::StrategicMerge(json!({ "status": { "conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": message,
        }]}}));
        let status = self.client.resource(&PODS).subresource("status");
        match status.patch::<Value>(key, &patch).await {
            Ok(_) => Ok(Next::Done),
            Err(error) if error.is_not_found() => Ok(Next::Done),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, spec: Value, labels: Value) -> Arc<Node> {
        let node = json!({
            "metadata": { "name": name, "labels": labels }, "spec": spec,
            "status": { "allocatable": { "cpu": "2", "memory": "1Gi", "pods": "2" } },
        });
        Arc::new(serde_json::from_value(node).unwrap())
    }

    fn pod(spec: Value) -> Unscheduled {
        serde_json::from_value(json!({ "metadata": { "name": "p" }, "spec": spec })).unwrap()
    }

    #[test]
    fn places_by_room_labels_and_taints() {
        let nodes = [
            node("big", json!({}), json!({ "disk": "ssd" })),
            node(
                "kept",
                json!({ "taints": [{ "key": "a", "value": "b", "effect": "NoSchedule" }] }),
                json!({}),
            ),
            node("off", json!({ "unschedulable": true }), json!({})),
        ];
        let asks =
            |cpu: &str| json!({ "containers": [{ "resources": { "requests": { "cpu": cpu } } }] });
        let tolerating = json!({
            "nodeSelector": {},
            "tolerations": [{ "key": "a", "operator": "Equal", "value": "b", "effect": "NoSchedule" }],
        });
        let mut ledger = Ledger::default();
        nodes.iter().for_each(|node| ledger.add_node(&Istr::new(&node.meta.name)));
        let choose = |ledger: &Ledger, spec: Value| {
            let node = |name: &Istr| nodes.iter().find(|it| *it.meta.name == **name).cloned();
            ledger.choose(&pod(spec), node).map(|name| name.to_string())
        };
        assert_eq!(choose(&ledger, asks("2")).as_deref(), Some("big"));
        assert_eq!(choose(&ledger, asks("2001m")), None);
        assert_eq!(choose(&ledger, json!({ "nodeSelector": { "disk": "hdd" } })), None);
        ledger.place(ObjectKey::new("n", "a"), &Istr::new("big"), &pod(asks("500m")));
        assert_eq!(choose(&ledger, asks("1501m")), None);
        assert_eq!(choose(&ledger, asks("1500m")).as_deref(), Some("big"));
        assert_eq!(choose(&ledger, tolerating).as_deref(), Some("kept"));
        let pinned = json!({
            "tolerations": [{ "key": "node.kubernetes.io/unschedulable", "operator": "Exists" }],
            "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{ "matchFields": [
                    { "key": "metadata.name", "operator": "In", "values": ["off"] }] }],
            } } },
        });
        assert_eq!(choose(&ledger, pinned).as_deref(), Some("off"));
        ledger.remove(&ObjectKey::new("n", "a"));
        assert_eq!(choose(&ledger, asks("2")).as_deref(), Some("big"));
        let port = |host: i32, ip: &str, protocol: &str| {
            json!({ "containers": [{ "ports": [
                { "containerPort": 80, "hostPort": host, "hostIP": ip, "protocol": protocol } ] }] })
        };
        let key = ObjectKey::new("n", "b");
        ledger.place(key.clone(), &Istr::new("big"), &pod(port(80, "10.0.0.1", "TCP")));
        assert_eq!(choose(&ledger, port(80, "10.0.0.1", "TCP")), None);
        assert_eq!(choose(&ledger, port(80, "", "TCP")), None);
        for other in [port(80, "10.0.0.2", "TCP"), port(80, "", "UDP"), port(0, "", "TCP")] {
            assert_eq!(choose(&ledger, other.clone()).as_deref(), Some("big"), "{other}");
        }
        ledger.remove(&key);
        assert_eq!(choose(&ledger, port(80, "", "TCP")).as_deref(), Some("big"));
    }

    #[test]
    fn the_node_with_the_fewest_pods_is_chosen() {
        let nodes = ["a", "b"].map(|name| node(name, json!({}), json!({})));
        let mut ledger = Ledger::default();
        let choose = |ledger: &Ledger| {
            let node = |name: &Istr| nodes.iter().find(|it| *it.meta.name == **name).cloned();
            ledger.choose(&pod(json!({})), node).map(|name| name.to_string())
        };
        let place = |ledger: &mut Ledger, name: &str, node: &str| {
            ledger.place(ObjectKey::new("n", name), &Istr::new(node), &pod(json!({})));
        };
        place(&mut ledger, "one", "a");
        assert_eq!(choose(&ledger), None, "no node is known");
        nodes.iter().for_each(|node| ledger.add_node(&Istr::new(&node.meta.name)));
        assert_eq!(choose(&ledger).as_deref(), Some("b"));
        place(&mut ledger, "two", "b");
        place(&mut ledger, "three", "b");
        assert_eq!(choose(&ledger).as_deref(), Some("a"));
        ledger.remove(&ObjectKey::new("n", "one"));
        ledger.remove_node(&Istr::new("a"));
        assert_eq!(choose(&ledger), None, "b is full");
        ledger.remove(&ObjectKey::new("n", "two"));
        assert_eq!(choose(&ledger).as_deref(), Some("b"));
    }
}
