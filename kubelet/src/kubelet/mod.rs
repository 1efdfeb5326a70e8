//! The loop that keeps pods: takes changes of the sources, of the runtime and of probes, and gives
//! each pod's worker its work. Upstream: `pkg/kubelet.Kubelet.syncLoop`.
//!
//! `PodStore` has the pods of the sources and their statuses, `Dispatcher` the workers
//! ([`pod_workers`]), and `steps` what a worker does. `admit` decides about new pods. `relist`
//! finds changes of the runtime.

mod admit;
mod dispatcher;
mod error;
mod evict;
mod health;
mod measure;
mod mirror_pods;
pub mod pleg;
mod pod_status;
mod pod_store;
pub mod pod_workers;
mod relist;
mod resize;
mod startup;
mod steps;
mod usage;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_channel::Receiver;
use event_listener::Event;
use futures_lite::FutureExt;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::Timestamp;
use kube_controller_manager::task::{self, Latch, StopToken, notify_all};

pub use self::admit::{Admission, FetchNode};
pub use self::error::Error;
pub use self::evict::EvictionCause;

use self::dispatcher::Dispatcher;
use self::evict::ShutdownState;
use self::health::LoopHealth;
use self::pod_store::PodStore;
use self::pod_workers::Reason;
use self::resize::{Resizes, Trigger};
use self::startup::Startups;
use self::usage::SandboxImages;
use crate::allocation::Checkpoint;
use crate::kuberuntime::Manager;
use crate::objects;
use crate::pod::{Pod, PodExt, PodStatus, Uid};
use crate::sources::{Op, PodUpdate, Source};
use crate::stats::Stats;
use crate::status::{Change, Pods, Report, conditions, mirror};

/// The kubelet of a node.
pub struct Kubelet {
    manager: Manager,
    clock: SharedClock,
    sync_period: Duration,
    store: PodStore,
    dispatcher: Dispatcher,
    admission: Admission,
    resizes: Resizes,
    health: LoopHealth,
    stats: Stats,
    sandbox_images: SandboxImages,
    /// When this kubelet was created.
    started: Timestamp,
    startups: Startups,
    shutdown: ShutdownState,
    /// Opens once the pods of all sources and of the runtime are known.
    listed: Latch,
    /// Notified when pods that have ended are forgotten.
    forgotten: Event,
}

impl Kubelet {
    /// Creates a kubelet without pods. `expected`: the sources that must have been read before
    /// unknown pods are ended. `allocated`: what an earlier kubelet has allocated to pods.
    pub fn new(
        manager: Manager,
        admission: Admission,
        allocated: Checkpoint,
        expected: BTreeSet<Source>,
        sync_period: Duration,
    ) -> Arc<Kubelet> {
        let clock = manager.clock.clone();
        Arc::new(Kubelet {
            manager,
            sync_period,
            store: PodStore::new(expected),
            dispatcher: Dispatcher::default(),
            admission,
            resizes: Resizes::new(allocated),
            health: LoopHealth::new(clock.monotonic()),
            stats: Stats::default(),
            sandbox_images: SandboxImages::default(),
            started: clock.now(),
            startups: Startups::default(),
            shutdown: ShutdownState::default(),
            listed: Latch::new(),
            forgotten: Event::new(),
            clock,
        })
    }

    /// Creates a kubelet of the node that has no source of pods.
    #[cfg(test)]
    fn for_tests(node: &crate::kuberuntime::testing::TestNode) -> Arc<Kubelet> {
        use crate::admission::{Allowlist, KernelVersion, Rules};

        let sysctls = Allowlist::new(&[], KernelVersion::default()).expect("no names");
        let rules = Rules { sysctls, has_app_armor: false };
        let admission = Admission { rules, fetch_node: None };
        let allocated = node.checkpoint("allocated_pods_state");
        let period = Duration::from_secs(60);
        Kubelet::new(node.manager(None), admission, allocated, BTreeSet::new(), period)
    }

    /// Runs the kubelet's loops until stopped: takes changes of the sources (`updates`) and pods to
    /// sync again (`again`), starts the work that is due, and runs the timers. Containers continue
    /// to run after that.
    pub async fn run(
        self: Arc<Self>,
        updates: Receiver<PodUpdate>,
        again: Receiver<Uid>,
        stop: StopToken,
    ) {
        let sources = async {
            while let Ok(mut update) = updates.recv().await {
                self.take_mirrors(&mut update);
                self.handle(&update).await;
            }
        };
        let again = async {
            while let Ok(uid) = again.recv().await {
                self.dispatcher.requeue([&uid]);
            }
        };
        let dispatch = self.dispatcher.run(&self.clock, |uid, work, cancel| {
            drop(task::spawn(self.clone().work(uid, work, cancel)));
        });
        let timers = self.relist().or(self.keep_retrying_resizes()).or(self.end_old_volumes());
        stop.unless_stopped(sources.or(again).or(timers).or(dispatch)).await;
    }

    /// Handles a change of a source by its kind: admits new pods, notifies the workers of others,
    /// and records that the source was read. Upstream: `HandlePodAdditions` and those beside it.
    async fn handle(&self, update: &PodUpdate) {
        if update.op != Op::Reconcile {
            for pod in &update.pods {
                let (name, source) = (pod.display_name(), update.source.name());
                log::info!("SyncLoop {:?}: pod {name} of source {source}", update.op);
            }
        }
        if update.op != Op::Remove {
            update.pods.iter().for_each(|pod| self.observe_startup(pod));
        }
        match update.op {
            Op::Add => self.add(update).await,
            Op::Update | Op::Delete => self.change(update, Reason::Update),
            Op::Reconcile => self.reconcile(update),
            Op::Remove => self.change(update, Reason::Kill),
        }
        // After its pods: once all sources have been read, pods that no source has are ended.
        let had_seen_all = self.store.has_seen_all();
        self.store.set_seen(update.source);
        if !had_seen_all {
            self.notify_mirrors();
        }
        self.retry_resizes(Trigger::of(update)).await;
    }

    /// Stores pods of which only the status at the API server has changed. Most such changes are
    /// this kubelet's own writes, so a pod is synced only if another writer has changed a readiness
    /// gate or ended the pod. Upstream: `HandlePodReconcile`.
    fn reconcile(&self, update: &PodUpdate) {
        for pod in &update.pods {
            self.store.set_pod(pod);
            self.store.notify(pod);
            if conditions::has_stale_gates(pod) || self.is_ended_by_others(pod) {
                self.dispatcher.update(pod, Reason::Sync);
            }
        }
    }

    /// Returns whether another writer has set a terminal phase: the pod has to end.
    fn is_ended_by_others(&self, pod: &Pod) -> bool {
        pod.has_ended() && !self.dispatcher.is_terminating(&pod.uid())
    }

    /// Stores pods that a source has changed, or removes them with `Reason::Kill`, and notifies
    /// their workers.
    fn change(&self, update: &PodUpdate, reason: Reason) {
        for pod in &update.pods {
            match reason {
                Reason::Kill => self.store.remove_pod(&pod.uid()),
                _ => {
                    let before = self.store.pod(&pod.uid());
                    self.store.set_pod(pod);
                    self.request_resize(before.as_deref(), pod);
                }
            }
            self.store.notify(pod);
            self.dispatcher.update(pod, reason);
            if pod.is_static() {
                // A pod that has ended has no more work, whose end would notify its mirror pod.
                self.store.notify_mirror(pod.full_name());
            }
        }
    }

    /// Forgets pods that have ended, and creates those again that came back meanwhile. Does nothing
    /// until all sources have been read. Upstream: `HandlePodCleanups`.
    async fn forget_ended(&self) {
        if !self.store.has_seen_all() {
            return;
        }
        // All tasks share one thread, so no pod is added between both locks.
        let retained = self.dispatcher.retain(&self.store.uids());
        if retained.has_forgotten {
            notify_all(&self.forgotten);
        }
        let missing = retained.missing.iter();
        let returned: Vec<_> = missing.filter_map(|uid| self.store.decided_pod(uid)).collect();
        returned.iter().for_each(|pod| self.start_again(pod));
        self.store.retain(|uid| self.dispatcher.knows(uid));
        let is_known = |uid: &str| self.store.contains(uid) || self.dispatcher.knows(uid);
        self.resizes.retain(is_known);
        self.manager.actuated.retain(is_known);
        self.manager.images.retain_pulls(is_known);
        self.startups.retain(is_known);
        if !returned.is_empty() {
            self.store_allocations().await;
        }
    }

    /// Syncs the static pods that refer to any of these objects of the folder, which have changed.
    pub fn sync_users(&self, objects: &BTreeSet<objects::Key>) {
        self.dispatcher.requeue(&self.store.users_of(objects));
    }

    /// Returns whether all sources have been read.
    pub fn has_seen_all(&self) -> bool {
        self.store.has_seen_all()
    }

    /// Returns the calls to the runtime.
    pub fn manager(&self) -> &Manager {
        &self.manager
    }

    /// Returns whether the containers of a pod have ended for good, or no source has it. Upstream:
    /// `ShouldPodRuntimeBeRemoved`.
    pub fn is_ended(&self, uid: &str) -> bool {
        self.is_gone(uid) || self.dispatcher.is_terminated(uid)
    }

    /// Returns whether what remains of a pod may be removed: no source has it, and it has ended
    /// here. False until all sources have been read. Upstream: `ShouldPodContentBeRemoved`.
    pub fn is_gone(&self, uid: &str) -> bool {
        self.store.has_seen_all()
            && !self.store.contains(uid)
            && (!self.dispatcher.knows(uid) || self.dispatcher.is_terminated(uid))
    }

    /// Returns the pods that were admitted and have not ended, with the resources that are
    /// allocated to them. Upstream: `GetActivePods`.
    pub fn active_pods(&self) -> Vec<Arc<Pod>> {
        let pods = self.store.admitted_pods().into_iter();
        let active = pods.filter(|pod| !self.dispatcher.is_terminated(&pod.uid()));
        active.map(|pod| self.resizes.allocated(&pod)).collect()
    }

    /// Returns the pods of all sources with their statuses.
    pub fn pods(&self) -> Vec<Pod> {
        self.store.with_statuses()
    }

    /// Returns the pod of a name, if a source has it, and its status: the last one here, else that
    /// of its source. Upstream: `GetPodByName`.
    pub fn named(&self, namespace: &str, name: &str) -> Option<(Arc<Pod>, PodStatus)> {
        let (pod, status) = self.store.named(namespace, name)?;
        let status = status.map(Arc::unwrap_or_clone).or_else(|| pod.status.clone());
        Some((pod, status.unwrap_or_default()))
    }

    /// Returns whether a pod has the uid, itself or in its mirror pod. Upstream: `TranslatePodUID`.
    pub fn has_uid(&self, pod: &Pod, uid: &str) -> bool {
        let is_mirrors = |mirror: Arc<Pod>| *mirror.uid() == *uid;
        *pod.uid() == *uid || self.store.mirror(&pod.full_name()).is_some_and(is_mirrors)
    }

    /// Returns the receiver of what may have to be written to the API server, from now on. Call it
    /// once.
    pub fn changes(&self) -> Receiver<Change> {
        self.store.changes()
    }

    /// Returns why the runtime's pods are not known; `None`: they are. Upstream:
    /// `GenericPLEG.Healthy`.
    pub fn pleg_fault(&self) -> Option<String> {
        self.health.pleg_fault(self.clock.monotonic())
    }

    /// Checks that the loop turns and the runtime answers. Upstream: `SyncLoopHealthCheck`.
    ///
    /// # Errors
    /// Upstream's text, as checks of the server have it.
    pub fn health(&self) -> Result<(), String> {
        self.health.check(self.clock.monotonic(), self.sync_period)
    }
}

impl Pods for Kubelet {
    /// Returns what the API server has to know about a pod. `None`: no source has it, or it has no
    /// status.
    fn report(&self, uid: &Uid) -> Option<Report> {
        Some(Report {
            is_terminated: self.dispatcher.is_terminated(uid),
            is_finished: self.dispatcher.is_finished(uid),
            ..self.store.report(uid)?
        })
    }

    /// Returns what to do about the mirror pod of this full name; `None`: nothing, for now.
    fn mirror_step(&self, full_name: &str) -> Option<mirror::Step> {
        let (pod, mirror) = (self.store.static_pod(full_name), self.store.mirror(full_name));
        let names = mirror::Names {
            is_synced: pod.as_ref().is_some_and(|pod| self.dispatcher.is_syncing(&pod.uid())),
            pod: pod.as_ref(),
            mirror: mirror.as_ref(),
            may_delete: self.store.has_seen_all() && !self.dispatcher.is_name_ending(full_name),
        };
        names.step()
    }
}
