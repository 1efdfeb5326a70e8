//! The loop that keeps pods: takes changes of the sources, of the runtime and of probes, and gives
//! each pod's worker its work. Upstream: `pkg/kubelet.Kubelet.syncLoop`.

pub mod pleg;
pub mod pod_workers;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use async_channel::{Receiver, Sender};
use event_listener::Event;
use futures_lite::FutureExt;
use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::metrics::IntGauge;
use kube_controller_manager::objects::Timestamp;
use kube_controller_manager::task::{self, Latch, StopToken, notify_all};
use parking_lot::Mutex;

use self::pleg::Snapshot;
use self::pod_workers::{Outcome, Reason, Work, Workers};
use crate::cgroups::{Driver, Hierarchy};
use crate::cri::chain;
use crate::events;
use crate::files::tree;
use crate::images::Waiting;
use crate::kuberuntime::{Manager, Synced};
use crate::local_objects;
use crate::metrics;
use crate::pod::{Pod, PodExt, Uid};
use crate::prober::{self, Kind};
use crate::runtime::status::State::{Created, Exited, Running, Unknown};
use crate::runtime::status::{self, PodStatus};
use crate::sources::{Op, PodUpdate, Source};
use crate::stats::{Stats, StatsSource, Summary};
use crate::status::Report;
use crate::status::generate::{self, Facts};
use crate::volumes;

/// Upstream: `genericPlegRelistPeriod`.
const RELIST: Duration = Duration::from_secs(1);
/// The period while there is no pod; upstream always relists each second.
const IDLE_RELIST: Duration = Duration::from_secs(5);
/// A runtime that has not been listed for this long does not answer. Upstream:
/// `genericPlegRelistThreshold`.
const RELIST_THRESHOLD: Duration = Duration::from_secs(180);
/// A loop that has not been entered for this long hangs. Upstream: `SyncLoopHealthCheck`.
const LOOP_THRESHOLD: Duration = Duration::from_secs(300);
/// After an error of a pod. Upstream: `backOffPeriod`.
const RETRY: Duration = Duration::from_secs(10);

/// Upstream: `active_deadline.go`.
const DEADLINE_EXCEEDED: (&str, &str) =
    ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline");

/// The kubelet of a node.
pub struct Kubelet {
    manager: Manager,
    clock: SharedClock,
    /// The sources that must have been read before unknown pods are ended.
    expected: BTreeSet<Source>,
    sync_period: Duration,
    state: Mutex<State>,
    stats: Stats,
    wake: Event,
}

#[derive(Default)]
struct State {
    workers: Workers,
    pods: BTreeMap<Uid, Arc<Pod>>,
    statuses: HashMap<Uid, core::PodStatus>,
    waiting: HashMap<Uid, HashMap<String, Waiting>>,
    cancels: HashMap<Uid, Latch>,
    seen: BTreeSet<Source>,
    relisted: Duration,
    /// When the loop was last entered while the runtime answered.
    entered: Duration,
    /// When pods were seen first that do not run yet.
    first_seen: HashMap<Uid, Duration>,
    fault: Option<String>,
    /// Gets the pods of the API server whose reports may have changed.
    reported: Option<Sender<Uid>>,
}

/// Why the node ends a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionCause {
    /// The node needs what the pod uses: a Job may ignore such an end, which is a disruption.
    NodePressure,
    /// The pod uses more than its own limit.
    OwnLimit,
}

impl State {
    /// The last status of a pod. Of a kubelet before this one, the API server has it.
    fn last_status<'a>(&'a self, pod: &'a Pod) -> Option<&'a core::PodStatus> {
        let reported = pod.status.as_ref().filter(|_| !pod.is_static());
        self.statuses.get(&pod.uid()).or(reported)
    }

    fn notify(&self, pod: &Pod) {
        if let Some(reported) = self.reported.as_ref().filter(|_| !pod.is_static()) {
            // Closed only when the kubelet stops.
            let _ = reported.try_send(pod.uid());
        }
    }
}

impl Kubelet {
    pub fn new(
        manager: Manager,
        expected: BTreeSet<Source>,
        sync_period: Duration,
    ) -> Arc<Kubelet> {
        let clock = manager.clock.clone();
        let now = clock.monotonic();
        let state = State { relisted: now, entered: now, ..State::default() };
        Arc::new(Kubelet {
            manager,
            clock,
            expected,
            sync_period,
            state: Mutex::new(state),
            stats: Stats::default(),
            wake: Event::new(),
        })
    }

    /// Keeps pods until stopped. Containers continue to run after that.
    pub async fn run(
        self: Arc<Self>,
        updates: Receiver<PodUpdate>,
        probed: Receiver<Uid>,
        stop: StopToken,
    ) {
        let sources = async {
            while let Ok(update) = updates.recv().await {
                self.handle(update);
            }
        };
        let probes = async {
            while let Ok(uid) = probed.recv().await {
                self.state.lock().workers.requeue(&uid);
                notify_all(&self.wake);
            }
        };
        let relists = self.relist();
        let dispatch = self.dispatch();
        stop.unless_stopped(sources.or(probes).or(relists).or(dispatch)).await;
    }

    fn handle(&self, update: PodUpdate) {
        let mut state = self.state.lock();
        state.seen.insert(update.source);
        for pod in &update.pods {
            let uid = pod.uid();
            let (name, source) = (pod.display_name(), update.source.name());
            let reason = match update.op {
                Op::Add => Reason::Create,
                Op::Update | Op::Delete => Reason::Update,
                Op::Reconcile => Reason::Sync,
                Op::Remove => Reason::Kill,
            };
            if update.op == Op::Add {
                metrics::CONTAINERS_PER_POD.observe(pod.spec().containers.len() as f64);
                state.first_seen.insert(uid.clone(), self.clock.monotonic());
            }
            if update.op == Op::Remove {
                state.pods.remove(&uid);
                state.first_seen.remove(&uid);
            } else {
                state.pods.insert(uid.clone(), pod.clone());
            }
            if update.op != Op::Reconcile {
                log::info!("SyncLoop {:?}: pod {name} of source {source}", update.op);
            }
            state.notify(pod);
            if state.workers.update(pod, reason)
                && let Some(cancel) = state.cancels.get(&uid)
            {
                cancel.open();
            }
        }
        notify_all(&self.wake);
    }

    /// Syncs the pods that refer to any of these objects, which have changed.
    pub fn sync_users(&self, objects: &BTreeSet<local_objects::Key>) {
        let mut state = self.state.lock();
        let State { pods, workers, .. } = &mut *state;
        for (uid, pod) in pods {
            if !local_objects::references(pod).is_disjoint(objects) {
                workers.requeue(uid);
            }
        }
        notify_all(&self.wake);
    }

    /// Upstream's loop is not entered while the runtime does not answer.
    fn enter_loop(&self, now: Duration) {
        let mut state = self.state.lock();
        if now.saturating_sub(state.relisted) <= RELIST_THRESHOLD {
            state.entered = now;
        }
    }

    async fn relist(&self) {
        let mut last = Snapshot::default();
        let mut is_tidy = false;
        loop {
            let woken = self.wake.listen();
            let begin = self.clock.monotonic();
            self.enter_loop(begin);
            metrics::LAST_SEEN.set(self.clock.now().to_jiff().as_second());
            match Snapshot::read(&self.manager.runtime).await {
                Ok(snapshot) => {
                    let now = self.clock.monotonic();
                    metrics::RELIST.observe((now - begin).as_secs_f64());
                    self.observe(&snapshot, &last, now);
                    if !is_tidy && self.has_seen_all() {
                        is_tidy = true;
                        self.remove_old_folders(&snapshot).await;
                    }
                    last = snapshot;
                }
                Err(error) => {
                    let fault = chain(&error);
                    let mut state = self.state.lock();
                    if state.fault.as_ref() != Some(&fault) {
                        log::error!("the runtime's pods cannot be listed: {fault}");
                    }
                    state.fault = Some(fault);
                    self.measure(&state);
                }
            }
            self.clock.sleep(RELIST).await;
            if self.is_idle(&last) {
                self.clock.sleep(IDLE_RELIST.saturating_sub(RELIST)).or(woken).await;
            }
        }
    }

    /// Whether neither a source nor the runtime has a pod, and the runtime answers.
    fn is_idle(&self, snapshot: &Snapshot) -> bool {
        let state = self.state.lock();
        let is_known = self.expected.is_subset(&state.seen) && state.fault.is_none();
        let has_none = state.pods.is_empty() && state.workers.is_empty();
        is_known && has_none && snapshot.pods().next().is_none()
    }

    /// Whether all sources have been read.
    pub fn has_seen_all(&self) -> bool {
        self.expected.is_subset(&self.state.lock().seen)
    }

    fn observe(&self, snapshot: &Snapshot, last: &Snapshot, now: Duration) {
        let mut state = self.state.lock();
        metrics::RELIST_INTERVAL.observe(now.saturating_sub(state.relisted).as_secs_f64());
        state.relisted = now;
        if state.fault.take().is_some() {
            log::info!("the runtime answers again");
        }
        let changed = snapshot.changed_since(last);
        for uid in &changed {
            state.workers.requeue(uid);
        }
        let mut is_changed = !changed.is_empty();
        if self.expected.is_subset(&state.seen) {
            for uid in snapshot.pods() {
                if !state.workers.knows(uid) && !state.pods.contains_key(uid) {
                    log::info!("pod {uid} is not known: its containers are ended");
                    state.workers.end_orphan(uid.clone());
                    metrics::ORPHANED_PODS.inc();
                    is_changed = true;
                }
            }
            is_changed |= self.forget(&mut state);
        }
        self.measure(&state);
        measure_runtime(snapshot);
        if is_changed {
            notify_all(&self.wake);
        }
    }

    fn measure(&self, state: &State) {
        for is_static in [false, true] {
            let label = &[metrics::static_label(is_static)];
            let desired = state.pods.iter().filter(|(_, pod)| pod.is_static() == is_static);
            let active = desired.clone().filter(|(uid, _)| !state.workers.is_terminated(uid));
            set(&metrics::DESIRED_PODS.with_label_values(label), desired.count());
            set(&metrics::ACTIVE_PODS.with_label_values(label), active.count());
        }
        let desired = |uid: &str| state.pods.contains_key(uid);
        for (labels, count) in state.workers.counts(&desired) {
            set(&metrics::WORKING_PODS.with_label_values(&labels), count);
        }
    }

    /// Forgets pods that have ended, and creates those again that came back meanwhile.
    fn forget(&self, state: &mut State) -> bool {
        let desired: BTreeSet<Uid> = state.pods.keys().cloned().collect();
        let again = state.workers.retain(&desired);
        for uid in &again {
            if let Some(pod) = state.pods.get(uid) {
                let label = metrics::static_label(pod.is_static());
                metrics::RESTARTED_PODS.with_label_values(&[label]).inc();
                state.workers.update(pod, Reason::Create);
            }
        }
        let State { workers, statuses, waiting, first_seen, .. } = state;
        first_seen.retain(|uid, _| workers.knows(uid));
        statuses.retain(|uid, _| workers.knows(uid));
        waiting.retain(|uid, _| workers.knows(uid));
        !again.is_empty()
    }

    /// Removes folders of pods that ended while no agent ran.
    async fn remove_old_folders(&self, snapshot: &Snapshot) {
        let known: BTreeSet<Uid> = {
            let state = self.state.lock();
            snapshot.pods().chain(state.pods.keys()).cloned().collect()
        };
        let folders = self.manager.folders.clone();
        task::blocking(move || {
            for entry in std::fs::read_dir(folders.pods()).into_iter().flatten().flatten() {
                let uid = Uid::parse(&entry.file_name().to_string_lossy());
                let Some(uid) = uid.filter(|uid| !known.contains(uid)) else { continue };
                match volumes::tear_down(&folders, &uid) {
                    Ok(()) => log::info!("removed the folder of the former pod {uid}"),
                    Err(error) => log::error!("the folder of pod {uid}: {error}"),
                }
            }
        })
        .await;
    }

    async fn dispatch(self: &Arc<Self>) {
        loop {
            let woken = self.wake.listen();
            let due = {
                let now = self.clock.monotonic();
                let mut state = self.state.lock();
                while let Some((uid, work)) = state.workers.next(now) {
                    let cancel = Latch::new();
                    state.cancels.insert(uid.clone(), cancel.clone());
                    drop(task::spawn(self.clone().work(uid, work, cancel)));
                }
                state.workers.next_due().map(|due| due.saturating_sub(now))
            };
            let timer = self.clock.sleep(due.unwrap_or(Duration::MAX));
            woken.or(timer).await;
        }
    }

    async fn work(self: Arc<Self>, uid: Uid, work: Work, cancel: Latch) {
        let begin = self.clock.monotonic();
        let operation = {
            let state = self.state.lock();
            match &work {
                Work::Sync(_) if !state.statuses.contains_key(&uid) => {
                    if let Some(seen) = state.first_seen.get(&uid) {
                        metrics::WORKER_START.observe(begin.saturating_sub(*seen).as_secs_f64());
                    }
                    "create"
                }
                Work::Sync(_) => "sync",
                Work::Terminate(..) | Work::CleanUp(_) | Work::TerminateOrphan => "kill",
            }
        };
        let run = async {
            match &work {
                Work::Sync(pod) => self.sync(pod).await,
                Work::Terminate(pod, grace) => self.terminate(pod, *grace).await,
                Work::CleanUp(pod) => self.clean_up(pod).await,
                Work::TerminateOrphan => self.end_orphan(&uid).await,
            }
        };
        let cancelled = async {
            cancel.opened().await;
            Ok(Outcome::Cancelled)
        };
        let outcome = cancelled.or(run).await.unwrap_or_else(|error| {
            log::error!("Error syncing pod {uid}, skipping: {error}");
            Outcome::Failed(jittered(RETRY))
        });
        let now = self.clock.monotonic();
        metrics::WORKER.with_label_values(&[operation]).observe((now - begin).as_secs_f64());
        {
            let mut state = self.state.lock();
            state.cancels.remove(&uid);
            state.workers.done(&uid, outcome, now);
            if let Some(pod) = state.pods.get(&uid) {
                state.notify(pod);
            }
            if self.expected.is_subset(&state.seen) {
                self.forget(&mut state);
            }
        }
        notify_all(&self.wake);
    }

    async fn sync(&self, pod: &Arc<Pod>) -> Result<Outcome, String> {
        let runtime = self.read(pod).await?;
        self.manager.update_probes(pod, &runtime).await;
        let status = self.publish(pod, &runtime).await;
        if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
            return Ok(Outcome::Terminal);
        }
        let left = self.deadline(pod, &status);
        if left == Some(Duration::ZERO) {
            let (reason, message) = DEADLINE_EXCEEDED;
            events::normal(pod, None, reason, message);
            self.fail(pod, status, reason, message);
            return Ok(Outcome::Terminal);
        }
        let restarts_all = generate::is_restarting_all(&status);
        let active = || self.active_pods();
        let synced = match self.manager.ensure_cgroup(pod, &runtime, &active).await {
            Ok(true) => self.manager.sync(pod, &runtime, restarts_all).await,
            Ok(false) => Ok(Synced { retry: Some(Duration::ZERO), ..Synced::default() }),
            Err(fault) => Err(fault),
        };
        let (waiting, retry) = match &synced {
            Ok(synced) if synced.is_reset => (HashMap::new(), Some(Duration::ZERO)),
            Ok(synced) => (synced.waiting.clone(), synced.retry),
            Err(_) => (HashMap::new(), None),
        };
        self.state.lock().waiting.insert(pod.uid(), waiting);
        let runtime = self.read(pod).await?;
        self.manager.update_probes(pod, &runtime).await;
        self.publish(pod, &runtime).await;
        synced?;
        self.manager.prune(&runtime, false).await?;
        let again = left.unwrap_or(Duration::MAX).min(jittered(self.sync_period));
        Ok(match retry {
            Some(retry) => Outcome::Failed(retry.min(again)),
            None => Outcome::Done(again),
        })
    }

    async fn read(&self, pod: &Pod) -> Result<PodStatus, String> {
        let begin = self.clock.monotonic();
        let read = status::read(&self.manager.runtime, &pod.uid()).await;
        let took = self.clock.monotonic().saturating_sub(begin);
        metrics::POD_RELIST.observe(took.as_secs_f64());
        read.map_err(|error| chain(&error))
    }

    /// The time until a pod's deadline; zero: it has passed.
    fn deadline(&self, pod: &Pod, status: &core::PodStatus) -> Option<Duration> {
        let deadline = pod.spec().active_deadline_seconds?;
        let started = status.start_time.as_ref()?.0.as_microsecond();
        let active = self.clock.now().duration_since(Timestamp::from_micros(started));
        Some(Duration::from_secs(deadline.unsigned_abs()).saturating_sub(active))
    }

    fn fail(&self, pod: &Pod, mut status: core::PodStatus, reason: &str, message: &str) {
        status.phase = Some("Failed".to_owned());
        status.reason = Some(reason.to_owned());
        status.message = Some(message.to_owned());
        self.state.lock().statuses.insert(pod.uid(), status);
    }

    /// Ends the containers of a pod. Until they have ended, the pod's readiness is still published.
    /// Upstream: `SyncTerminatingPod`.
    async fn terminate(&self, pod: &Arc<Pod>, grace: i64) -> Result<Outcome, String> {
        let runtime = self.read(pod).await?;
        // After a restart none is probed yet: the results are those before it.
        self.manager.update_probes(pod, &runtime).await;
        let probes = &self.manager.probes;
        probes.stop_liveness_and_startup(&pod.uid());
        let readiness = || -> Vec<Option<bool>> {
            let containers = runtime.containers.iter();
            containers.map(|container| probes.result(&container.id, Kind::Readiness)).collect()
        };
        let publish = async {
            let mut published = None;
            loop {
                let woken = self.wake.listen();
                let now = Some(readiness());
                if now != published {
                    self.publish(pod, &runtime).await;
                    published = now;
                }
                woken.await;
            }
        };
        self.manager.kill_pod(pod, &runtime, Some(grace)).or(publish).await?;
        let runtime = self.read(pod).await?;
        if runtime.has_running() {
            return Err(format!("pod {}: containers still run", pod.display_name()));
        }
        probes.retain(&pod.uid(), &BTreeSet::new());
        self.publish(pod, &runtime).await;
        Ok(Outcome::Done(Duration::ZERO))
    }

    async fn clean_up(&self, pod: &Arc<Pod>) -> Result<Outcome, String> {
        let uid = pod.uid();
        let is_removed = !self.state.lock().pods.contains_key(&uid);
        if is_removed {
            let runtime = self.read(pod).await?;
            self.manager.prune(&runtime, true).await?;
        }
        let (folders, logs) = (self.manager.folders.clone(), self.manager.folders.pod_logs(pod));
        task::blocking(move || {
            volumes::tear_down(&folders, &uid)?;
            match is_removed {
                true => tree::remove(&logs),
                false => Ok(()),
            }
        })
        .await
        .map_err(|error| format!("pod {}: {error}", pod.display_name()))?;
        self.manager.mounted.lock().remove(&pod.uid());
        self.manager.remove_cgroup(&pod.uid()).await?;
        prober::forget(pod);
        log::info!("pod {} has ended", pod.display_name());
        Ok(Outcome::Done(Duration::ZERO))
    }

    /// Ends a pod that no source has, and removes its folders.
    async fn end_orphan(&self, uid: &Uid) -> Result<Outcome, String> {
        self.manager.end_orphan(uid).await?;
        let (folders, of) = (self.manager.folders.clone(), uid.clone());
        let removed = task::blocking(move || {
            volumes::tear_down(&folders, &of)?;
            volumes::remove_logs(&folders, &of)
        });
        removed.await.map_err(|error| format!("the folders of pod {uid}: {error}"))?;
        self.manager.remove_cgroup(uid).await?;
        Ok(Outcome::Done(Duration::ZERO))
    }

    /// The calls to the runtime.
    pub fn manager(&self) -> &Manager {
        &self.manager
    }

    /// Whether the containers of a pod have ended for good, or no source has it.
    /// Upstream: `ShouldPodRuntimeBeRemoved`.
    pub fn is_ended(&self, uid: &str) -> bool {
        self.is_gone(uid) || self.state.lock().workers.is_terminated(uid)
    }

    /// The pods that have not ended. Upstream: `GetActivePods`.
    pub fn active_pods(&self) -> Vec<Arc<Pod>> {
        let state = self.state.lock();
        let active = state.pods.iter().filter(|(uid, _)| !state.workers.is_terminated(uid));
        active.map(|(_, pod)| pod.clone()).collect()
    }

    /// Whether what remains of a pod may be removed: no source has it, and it has ended here.
    /// False until all sources have been read. Upstream: `ShouldPodContentBeRemoved`.
    pub fn is_gone(&self, uid: &str) -> bool {
        let state = self.state.lock();
        self.expected.is_subset(&state.seen)
            && !state.pods.contains_key(uid)
            && (!state.workers.knows(uid) || state.workers.is_terminated(uid))
    }

    /// Computes a pod's status and keeps it.
    async fn publish(&self, pod: &Arc<Pod>, runtime: &PodStatus) -> core::PodStatus {
        let uid = pod.uid();
        let messages = self.manager.messages(runtime).await;
        let address = self.manager.node.address.now();
        let probes = &self.manager.probes;
        let mut state = self.state.lock();
        let none = HashMap::new();
        let before = state.last_status(pod);
        let facts = Facts {
            runtime,
            runtime_name: &self.manager.runtime_name,
            waiting: state.waiting.get(&uid).unwrap_or(&none),
            readiness: &|id| probes.result(id, Kind::Readiness),
            startup: &|id| probes.result(id, Kind::Startup),
            messages: &messages,
            host_ip: address.as_deref(),
            now: self.clock.now(),
            before,
        };
        let mut status = generate::generate(pod, &facts);
        if let Some(before) = before.filter(|before| before.phase.as_deref() == Some("Failed")) {
            // A pod that has failed stays so.
            status.phase.clone_from(&before.phase);
            status.reason.clone_from(&before.reason);
            status.message.clone_from(&before.message);
            let disruption = generate::disruption(before).cloned();
            status.conditions.get_or_insert_default().extend(disruption);
        }
        if before.map(|before| &before.phase) != Some(&status.phase) {
            let phase = status.phase.as_deref().unwrap_or_default();
            log::info!("pod {} is {phase}", pod.display_name());
        }
        count_terminations(before, &status);
        if before != Some(&status) {
            state.notify(pod);
        }
        if status.phase.as_deref() == Some("Running")
            && let Some(seen) = state.first_seen.remove(&uid)
        {
            let took = self.clock.monotonic().saturating_sub(seen);
            metrics::POD_START.observe(took.as_secs_f64());
        }
        state.statuses.insert(uid, status.clone());
        status
    }

    /// The pods of the API server whose reports may have changed, from now on.
    pub fn reported(&self) -> Receiver<Uid> {
        let (sender, receiver) = async_channel::unbounded();
        self.state.lock().reported = Some(sender);
        receiver
    }

    /// What the API server is to know about a pod; `None`: nothing is known yet.
    pub fn report(&self, uid: &str) -> Option<Report> {
        let state = self.state.lock();
        let pod = state.pods.get(uid)?.clone();
        let is_terminated = state.workers.is_terminated(uid);
        let status = match state.statuses.get(uid) {
            Some(status) => status.clone(),
            // It has ended before it began.
            None if is_terminated => core::PodStatus::default(),
            None => return None,
        };
        Some(Report { pod, status, is_terminated, is_finished: state.workers.is_finished(uid) })
    }

    /// The pods of all sources with their statuses.
    pub fn pods(&self) -> Vec<Pod> {
        let state = self.state.lock();
        let pods = state.pods.iter().map(|(uid, pod)| {
            let mut pod = Pod::clone(pod);
            if let Some(status) = state.statuses.get(uid) {
                pod.status = Some(status.clone());
            }
            pod
        });
        pods.collect()
    }

    /// Ends a pod: it fails with `reason` and `message`.
    pub fn evict(
        &self,
        pod: &Arc<Pod>,
        grace: i64,
        reason: &str,
        message: &str,
        cause: EvictionCause,
    ) {
        let uid = pod.uid();
        let mut status = self.state.lock().last_status(pod).cloned().unwrap_or_default();
        if cause == EvictionCause::NodePressure {
            let conditions = status.conditions.get_or_insert_default();
            conditions.retain(|condition| condition.type_ != generate::DISRUPTION_TARGET);
            conditions.push(core::PodCondition {
                type_: generate::DISRUPTION_TARGET.to_owned(),
                status: "True".to_owned(),
                reason: Some("TerminationByKubelet".to_owned()),
                message: Some(message.to_owned()),
                last_transition_time: Some(generate::time(self.clock.now())),
                ..Default::default()
            });
        }
        self.fail(pod, status, reason, message);
        {
            let mut state = self.state.lock();
            if state.workers.evict(&uid, grace)
                && let Some(cancel) = state.cancels.get(&uid)
            {
                cancel.open();
            }
        }
        notify_all(&self.wake);
    }

    /// What the node and its pods use. With `only`: only CPU and memory.
    ///
    /// # Errors
    /// One line: cgroups cannot be read here, or the runtime does not answer.
    pub async fn usage(self: &Arc<Self>, only: bool) -> Result<Summary, String> {
        let images = if only { None } else { Some(self.manager.images.usage().await?) };
        let kubelet = self.clone();
        task::blocking(move || {
            let Manager { node, folders, cgroups, clock, .. } = &kubelet.manager;
            let hierarchy = Hierarchy::detect()?;
            let root = node.cgroup_root.trim_end_matches('/');
            let cgroup_of = |pod: &Pod| match cgroups {
                Some(cgroups) => Some(cgroups.pod(pod)),
                None => (!root.is_empty()).then(|| format!("{root}/pod{}", pod.uid())),
            };
            let site = StatsSource {
                node: &node.name,
                memory_bytes: node.memory_bytes.unsigned_abs(),
                folders,
                hierarchy: &hierarchy,
                driver: cgroups.as_ref().map_or(Driver::Cgroupfs, |cgroups| cgroups.driver()),
                all_pods: cgroups.as_ref().map(|cgroups| cgroups.all_pods()),
                cgroup_of: &cgroup_of,
                images,
                pods: &kubelet.pods(),
                now: clock.now(),
                monotonic: clock.monotonic(),
                only_cpu_and_memory: only,
            };
            Ok(kubelet.stats.summary(&site))
        })
        .await
    }

    /// Whether the loop turns and the runtime answers. Upstream: `SyncLoopHealthCheck`.
    ///
    /// # Errors
    /// A line for the health check's log.
    pub fn health(&self) -> Result<(), String> {
        let idle = self.clock.monotonic().saturating_sub(self.state.lock().entered);
        match idle > LOOP_THRESHOLD.max(self.sync_period * 2) {
            true => Err("sync Loop took longer than expected".to_owned()),
            false => Ok(()),
        }
    }
}

fn set(gauge: &IntGauge, count: usize) {
    gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
}

fn measure_runtime(snapshot: &Snapshot) {
    set(&metrics::RUNNING_PODS, snapshot.running_pods());
    for (name, container) in
        [("created", Created), ("running", Running), ("exited", Exited), ("unknown", Unknown)]
    {
        let gauge = metrics::RUNNING_CONTAINERS.with_label_values(&[name]);
        set(&gauge, snapshot.containers(container));
    }
}

/// Counts containers that have ended since the last status.
/// Upstream: `checkAndRecordTerminations`.
fn count_terminations(before: Option<&core::PodStatus>, status: &core::PodStatus) {
    let ended = |status: &core::ContainerStatus| {
        status.state.as_ref().and_then(|state| state.terminated.clone())
    };
    let list = |status: &core::PodStatus, is_init| match is_init {
        true => status.init_container_statuses.clone().unwrap_or_default(),
        false => status.container_statuses.clone().unwrap_or_default(),
    };
    for (kind, is_init) in [("init_container", true), ("container", false)] {
        let old = before.map(|before| list(before, is_init)).unwrap_or_default();
        for status in list(status, is_init) {
            let Some(terminated) = ended(&status) else { continue };
            if !old.iter().any(|old| old.name == status.name && ended(old).is_some()) {
                let code = terminated.exit_code.to_string();
                let reason = terminated.reason.unwrap_or_default();
                metrics::TERMINATED_CONTAINERS.with_label_values(&[kind, &code, &reason]).inc();
            }
        }
    }
}

/// Up to half as long again.
fn jittered(period: Duration) -> Duration {
    period.mul_f64(1.0 + 0.5 * fastrand::f64())
}
