//! Keeps the Node in the API server: registers it, and writes its status by upstream's periods and
//! when it has changed. Upstream: `Kubelet.syncNodeStatus`, `fastStatusUpdateOnce`.

mod runtime;
mod startup;

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::FutureExt;
use futures_lite::future::zip;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_controller_manager::client::Patch;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::{Node, ObjectKey, Resource, Timestamp};
use kube_controller_manager::task::{self, StopToken};
use parking_lot::Mutex;

pub use self::runtime::RuntimeWatch;
pub use self::startup::NodeStartup;
use crate::causes::chain;
use crate::csi::NodeInfo;
use crate::events;
use crate::kubelet::Kubelet;
use crate::node::address::NodeAddress;
use crate::node::conditions;
use crate::node::heartbeat::{self, Heartbeats};
use crate::node::labels;
use crate::node::own::OwnNode;
use crate::node::patch;
use crate::node::pressure::NodePressure;
use crate::node::register::{self, Registration};
use crate::node::status::{self, Constants, Inputs, NodeEvent, RuntimeInfo};
use crate::whole_object::WholeObject;

/// Upstream: `nodeStatusUpdateRetry`.
const MAX_TRIES: usize = 5;
/// Requests of many nodes spread by this part of their period.
const JITTER: f64 = 0.04;
/// How often the runtime is asked. It does not follow the period of statuses: a runtime counts as
/// down after 30 seconds without an answer. Upstream: `Kubelet.Run`, `updateRuntimeUp`.
const RUNTIME_PERIOD: Duration = Duration::from_secs(5);
/// How often images are listed. Upstream: `realImageGCManager.Start`.
const IMAGE_PERIOD: Duration = Duration::from_secs(30);
/// How often it is tried to be ready, at the start, and for how long. Upstream:
/// `fastStatusUpdateOnce`, `nodeReadyGracePeriod`.
const FAST_PERIOD: Duration = Duration::from_millis(100);
const FAST_GRACE: Duration = Duration::from_secs(120);
/// For so long a status waits for the first attempt at the CSINode: a kubelet that starts again
/// does not make a ready node unready for the moment that it takes.
const CSI_NODE_PATIENCE: Duration = Duration::from_secs(2);

/// Why a status is not written.
#[derive(Debug)]
enum Error {
    /// The watch shows no Node of this name.
    NotFound(String),
    Read(heartbeat::Error),
    Write(heartbeat::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotFound(name) => write!(f, "error getting node: node {name:?} not found"),
            Error::Read(_) => f.write_str("error getting node"),
            Error::Write(_) => f.write_str("failed to patch status for node"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::NotFound(_) => None,
            Error::Read(error) | Error::Write(error) => Some(error),
        }
    }
}

/// When statuses are written.
#[derive(Clone, Copy, Debug)]
pub struct Periods {
    /// `nodeStatusUpdateFrequency`: how often it is computed, and written if it has changed.
    pub update: Duration,
    /// `nodeStatusReportFrequency`: how often it is written unchanged.
    pub report: Duration,
}

/// What keeps the Node.
pub struct NodeSync {
    pub own: OwnNode,
    pub registration: Registration,
    /// `registerNode`.
    pub registers: bool,
    pub constants: Arc<Constants>,
    pub address: NodeAddress,
    pub pressure: NodePressure,
    pub runtime: RuntimeWatch,
    /// `None`: there is no API server.
    pub csi_node: Option<NodeInfo>,
    pub clock: SharedClock,
    pub periods: Periods,
    pub startup: Mutex<NodeStartup>,
    pub state: State,
}

/// What has been written.
#[derive(Default)]
pub struct State {
    /// Held while a status is computed and written. Upstream: `syncNodeStatusMux`.
    syncing: async_lock::Mutex<()>,
    written: Mutex<Written>,
}

#[derive(Debug, Default)]
struct Written {
    is_registered: bool,
    reports: Reports,
    has_seen_reboot: bool,
    /// What the last event said of `spec.unschedulable`.
    is_unschedulable: bool,
    /// The volumes in use; `None`: they were not known.
    volumes: Option<Vec<String>>,
    /// Whether the CSINode was waited for.
    has_waited: bool,
}

/// When statuses were written. Times are those of the monotonic clock.
#[derive(Debug, Default)]
struct Reports {
    /// When one was accepted last.
    last: Option<Duration>,
    /// When the next one is due at the latest, from then.
    period: Duration,
}

impl Reports {
    fn is_due(&self, now: Duration) -> bool {
        self.last.is_none_or(|last| now.saturating_sub(last) >= self.period)
    }

    /// Records that a status has been accepted. After the first one and after a change, the next
    /// report comes at a time by chance, `part` between 0 and 1, so that nodes that changed
    /// together do not report together; the others follow by the period. Upstream:
    /// `delayAfterNodeStatusChange`.
    fn add(&mut self, now: Duration, has_changed: bool, period: Duration, part: f64) {
        let is_random = has_changed || self.last.is_none();
        self.period = if is_random { period.mul_f64(0.5 + part) } else { period };
        self.last = Some(now);
    }
}

impl NodeSync {
    /// Asks the runtime, and computes the Node that would be registered, for those who need a Node
    /// before the server has one.
    pub async fn prepare(&self) {
        self.runtime.refresh().await;
        let (node, _) = self.initial(None).await;
        self.own.set_initial(node);
    }

    /// Registers the Node, and keeps its status in the API server up to date until stopped.
    pub async fn run(&self, heartbeats: &Heartbeats, kubelet: &Kubelet, stop: StopToken) {
        let regular = self.sync_regularly(heartbeats, kubelet);
        let fast = self.sync_when_ready(heartbeats, kubelet);
        let all = async {
            zip(regular, fast).await;
        };
        let watch = async {
            zip(self.ask_runtime(), self.list_images()).await;
        };
        stop.unless_stopped(all.or(watch)).await;
    }

    /// Keeps the Node that would be registered as the runtime is, where there is no server, until
    /// stopped: the runtime may not have been ready at the start.
    pub async fn run_standalone(&self, stop: StopToken) {
        stop.unless_stopped(self.keep_initial()).await;
    }

    /// Computes the Node that would be registered again and again.
    async fn keep_initial(&self) {
        loop {
            self.clock.sleep(RUNTIME_PERIOD).await;
            self.prepare().await;
        }
    }

    /// Asks the runtime for its state again and again.
    async fn ask_runtime(&self) {
        loop {
            self.clock.sleep(RUNTIME_PERIOD).await;
            self.runtime.refresh().await;
        }
    }

    /// Lists the runtime's images in a loop of its own: a runtime that lists them slowly is not
    /// down.
    async fn list_images(&self) {
        loop {
            self.runtime.list_images().await;
            self.clock.sleep(IMAGE_PERIOD).await;
        }
    }

    /// Returns the period of updates with a random part added. Upstream: `JitterUntil`.
    fn jittered(&self) -> Duration {
        self.periods.update.mul_f64(1.0 + JITTER * fastrand::f64())
    }

    /// Syncs the Node by the period of updates, and at once after a change: of the machine's
    /// shutdown, of the volumes in use, or of the first attempt at the CSINode.
    async fn sync_regularly(&self, heartbeats: &Heartbeats, kubelet: &Kubelet) {
        loop {
            // Listened to before the sync, so that no change during it is missed.
            let changed =
                kubelet.shutdown_changed().or(kubelet.manager().volumes.in_use().changed());
            let csi_node = self.csi_node.as_ref().map(NodeInfo::attempted);
            self.sync(heartbeats, kubelet).await;
            let attempted = async {
                match csi_node {
                    Some(attempted) => attempted.await,
                    None => std::future::pending().await,
                }
            };
            // Pods wait until the server knows which volumes are in use.
            self.clock.sleep(self.jittered()).or(changed).or(attempted).await;
        }
    }

    /// Waits after the start until the node has no faults, and writes its status at once then.
    /// Writes nothing if the Node is ready already, or after `FAST_GRACE`.
    async fn sync_when_ready(&self, heartbeats: &Heartbeats, kubelet: &Kubelet) {
        let begin = self.clock.monotonic();
        loop {
            self.clock.sleep(FAST_PERIOD).await;
            if self.clock.monotonic().saturating_sub(begin) >= FAST_GRACE {
                log::error!("Node not becoming ready in time after startup");
                return;
            }
            let Some(node) = self.own.registered() else { continue };
            let status = node.status.clone().unwrap_or_default();
            let all = status.conditions.unwrap_or_default();
            match conditions::ready(&all) {
                None => continue,
                Some(ready) if ready.status == "True" => return,
                Some(_) => {}
            }
            self.runtime.refresh().await;
            if self.runtime_info(kubelet.pleg_fault()).faults.is_empty() {
                log::info!("Fast updating node status as it just became ready");
                return self.sync(heartbeats, kubelet).await;
            }
        }
    }

    /// Registers the Node unless it is, and writes its status if that is due.
    /// Upstream: `syncNodeStatus`, `updateNodeStatus`.
    async fn sync(&self, heartbeats: &Heartbeats, kubelet: &Kubelet) {
        let _syncing = self.state.syncing.lock().await;
        if self.registers {
            self.register(heartbeats, kubelet).await;
        }
        self.wait_for_csi_node().await;
        for attempt in 0..MAX_TRIES {
            match self.try_update(heartbeats, kubelet, attempt).await {
                Ok(()) => return,
                Err(error) => {
                    log::error!("Error updating node status, will retry: {}", chain(&error));
                }
            }
        }
        log::error!("Unable to update node status: update node status exceeds retry count");
    }

    /// Tries to register the Node until the server has it.
    async fn register(&self, heartbeats: &Heartbeats, kubelet: &Kubelet) {
        let mut delay = None;
        while !self.state.written.lock().is_registered {
            self.startup.lock().registers(self.clock.now());
            delay = Some(register::next_delay(delay));
            self.clock.sleep(delay.unwrap_or_default()).await;
            let (node, events) = self.initial(kubelet.pleg_fault()).await;
            self.own.set_initial(node.clone());
            let name = self.own.name();
            log::info!("Attempting to register node {name}");
            let former = &self.registration.former_devices;
            match register::try_register(heartbeats, &node, former).await {
                Ok(is_new) => {
                    if is_new {
                        self.startup.lock().is_registered(self.clock.now());
                    }
                    log::info!("Successfully registered node {name}");
                    self.state.written.lock().is_registered = true;
                    self.record(&events);
                }
                Err(error) => {
                    log::error!(
                        "Unable to register node {name} with API server: {}",
                        chain(&error)
                    );
                }
            }
        }
    }

    /// Returns what is known of the runtime, with the faults of what the node has for volumes.
    fn runtime_info(&self, pleg: Option<String>) -> RuntimeInfo {
        let mut info = self.runtime.info(pleg);
        info.faults.extend(self.csi_node.as_ref().and_then(NodeInfo::fault));
        info
    }

    /// Waits, once and not for long, for the first attempt at the CSINode if it is still to come.
    async fn wait_for_csi_node(&self) {
        let Some(csi_node) = &self.csi_node else { return };
        let attempted = csi_node.attempted();
        if csi_node.fault().is_some() && !self.state.written.lock().has_waited {
            attempted.or(self.clock.sleep(CSI_NODE_PATIENCE)).await;
        }
        self.state.written.lock().has_waited = true;
    }

    /// Returns the Node that the kubelet would register, with the events of its status. Upstream:
    /// `initialNode`.
    async fn initial(&self, pleg: Option<String>) -> (core::Node, Vec<NodeEvent>) {
        self.with_status(self.registration.node(), self.runtime_info(pleg), None).await
    }

    /// Returns a Node with the status of now, and the events of what has changed.
    async fn with_status(
        &self,
        mut node: core::Node,
        runtime: RuntimeInfo,
        volumes_in_use: Option<Vec<String>>,
    ) -> (core::Node, Vec<NodeEvent>) {
        let inputs = Inputs {
            constants: self.constants.clone(),
            address: self.address.clone(),
            pressure: self.pressure.clone(),
            runtime,
            images: self.runtime.images(),
            volumes_in_use,
            faults: Vec::new(),
            now: whole_seconds(self.clock.now()),
        };
        task::blocking(move || {
            let events = status::set(&mut node, &inputs);
            (node, events)
        })
        .await
    }

    /// Records events of the node.
    fn record(&self, events: &[NodeEvent]) {
        for NodeEvent { is_warning, reason, message } in events {
            match is_warning {
                true => events::node_warning(self.own.name(), reason, message),
                false => events::node_normal(self.own.name(), reason, message),
            }
        }
    }

    /// Computes the Node's status of now, and writes it if it has changed or a report is due.
    /// Upstream: `tryUpdateNodeStatus`.
    async fn try_update(
        &self,
        heartbeats: &Heartbeats,
        kubelet: &Kubelet,
        attempt: usize,
    ) -> Result<(), Error> {
        let name = self.own.name();
        let key = ObjectKey::cluster(name);
        let nodes = heartbeats.client().resource(&Node::RESOURCE);
        // The watched Node costs no request. After a failure it may be too old.
        let before = match self.own.registered() {
            Some(node) if attempt == 0 && self.shows_volumes(&node) => node,
            None if attempt == 0 => return Err(Error::NotFound(name.to_owned())),
            _ => {
                let read = heartbeats.within(nodes.get::<WholeObject<core::Node>>(&key)).await;
                read.map_err(Error::Read)?.object().clone()
            }
        };
        let mut runtime = self.runtime_info(kubelet.pleg_fault());
        runtime.faults.extend(kubelet.shutdown_fault());
        let volumes = kubelet.manager().volumes.in_use();
        let in_use = volumes.names();
        let (mut after, events) =
            self.with_status((*before).clone(), runtime, in_use.clone()).await;
        let cidrs = after.spec.as_ref().and_then(|spec| spec.pod_cidrs.clone()).unwrap_or_default();
        let has_other_cidrs =
            !cidrs.is_empty() && self.runtime.set_pod_cidr(&cidrs.join(",")).await;
        set_machine_labels(&mut after);
        self.record_scheduling(&after);
        let has_changed = status::has_changed(status_of(&before), status_of(&after))
            || before.metadata.labels != after.metadata.labels
            || has_other_cidrs;
        if !has_changed && !self.state.written.lock().reports.is_due(self.clock.monotonic()) {
            // An unchanged status names the same volumes.
            volumes.mark_reported(&in_use.unwrap_or_default());
            return Ok(());
        }
        let change = Patch::StrategicMerge(patch::between(&before, &after));
        let status = nodes.subresource("status");
        let answer = heartbeats.within(status.patch_for_metadata(&key, &change)).await;
        answer.map_err(Error::Write)?;
        let conditions = status_of(&after).conditions.as_deref().unwrap_or_default();
        if conditions::ready(conditions).is_some_and(|ready| ready.status == "True") {
            self.startup.lock().is_ready(self.clock.now());
        }
        volumes.mark_reported(in_use.as_deref().unwrap_or_default());
        let now = self.clock.monotonic();
        let mut written = self.state.written.lock();
        written.volumes = in_use;
        written.reports.add(now, has_changed, self.periods.report, fastrand::f64());
        drop(written);
        self.record_changes(events);
        Ok(())
    }

    /// Returns whether a Node that was watched has the volumes that were written last: an older one
    /// would show a volume as reported that the API server does not know any more.
    fn shows_volumes(&self, node: &core::Node) -> bool {
        let written = self.state.written.lock();
        let shown = status_of(node).volumes_in_use.as_deref().unwrap_or_default();
        written.volumes.as_ref().is_none_or(|names| names == shown)
    }

    /// Records the events of what has changed. A restart of the machine is an event once: another
    /// machine with this name would make it one again and again.
    fn record_changes(&self, mut events: Vec<NodeEvent>) {
        let is_reboot = |event: &NodeEvent| event.reason == "Rebooted";
        {
            let mut state = self.state.written.lock();
            if state.has_seen_reboot {
                events.retain(|event| !is_reboot(event));
            }
            state.has_seen_reboot |= events.iter().any(is_reboot);
        }
        self.record(&events);
    }

    /// Records an event when the Node becomes schedulable or unschedulable. Upstream:
    /// `recordNodeSchedulableEvent`.
    fn record_scheduling(&self, node: &core::Node) {
        let spec = node.spec.as_ref();
        let is_unschedulable = spec.and_then(|spec| spec.unschedulable).unwrap_or_default();
        let before = {
            let mut state = self.state.written.lock();
            std::mem::replace(&mut state.is_unschedulable, is_unschedulable)
        };
        if before != is_unschedulable {
            let reason = if is_unschedulable { "NodeNotSchedulable" } else { "NodeSchedulable" };
            self.record(&[NodeEvent::of_status(self.own.name(), reason)]);
        }
    }
}

fn status_of(node: &core::Node) -> &core::NodeStatus {
    static NONE: std::sync::LazyLock<core::NodeStatus> = std::sync::LazyLock::new(Default::default);
    node.status.as_ref().unwrap_or(&NONE)
}

/// Sets the labels that the scheduler needs, also when others have changed them. Upstream:
/// `updateNode`.
fn set_machine_labels(node: &mut core::Node) {
    let all = node.metadata.labels.get_or_insert_default();
    all.insert(labels::OS.to_owned(), status::OS.to_owned());
    all.insert(labels::ARCHITECTURE.to_owned(), status::architecture().to_owned());
}

fn whole_seconds(time: Timestamp) -> Time {
    let seconds = time.to_jiff().as_second();
    Time(k8s_openapi::jiff::Timestamp::from_second(seconds).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unchanged_statuses_are_reported_by_the_period() {
        let (seconds, period) = (Duration::from_secs, Duration::from_secs(300));
        let mut reports = Reports::default();
        assert!(reports.is_due(seconds(0)), "nothing is known after a start");
        // The first one, and those after a change, are followed by one at a time by chance.
        reports.add(seconds(0), false, period, 0.1);
        assert!(!reports.is_due(seconds(179)));
        assert!(reports.is_due(seconds(180)));
        reports.add(seconds(180), false, period, 0.1);
        assert!(!reports.is_due(seconds(479)));
        assert!(reports.is_due(seconds(480)));
        reports.add(seconds(200), true, period, 1.0);
        assert!(!reports.is_due(seconds(649)));
        assert!(reports.is_due(seconds(650)));
    }
}
