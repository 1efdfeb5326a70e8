//! The volumes of all pods: what is set up, what waits and for what, and what has to be undone.
//!
//! [`VolumeManager::set_up`] attempts each volume that is due, beside the others, and returns when to
//! try again; nothing polls. What may come from elsewhere (an attachment, a driver) lets the pod be
//! synced again. [`VolumeManager::tear_down`] undoes what the disk shows, so it does not matter which
//! process has set it up. An attempt runs to its end, also when its sync is cancelled: the end of a pod
//! waits for it. Upstream: `pkg/kubelet/volumemanager`, `nestedpendingoperations`.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_channel::Sender;
use event_listener::Event;
use futures_lite::FutureExt;
use futures_lite::future::zip;
use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::client::Client;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::task::{self, StopToken, notify_all};
use parking_lot::Mutex;

use super::backoff::{Backoff, LONGEST};
use super::claim::{self, Bound};
use super::csi::{self, CsiVolume, Handle, Staged};
use super::in_use::VolumesInUse;
use super::locks::{Held, Locks};
use super::nfs::Export;
use super::tear_down::Rest;
use super::usage::Usages;
use super::{Error, Folders, expand, fs_group, local, nfs, plain};
use crate::causes::chain;
use crate::concurrent::join_all;
use crate::csi::{CsiDrivers, Drivers, NodeInfo, unique_name};
use crate::events;
use crate::metrics;
use crate::node::own::OwnNode;
use crate::objects::{Objects, Use};
use crate::pod::{Pod, PodExt, Uid};
use crate::runtime::environment::DownwardInputs;

/// After this time a pod has an event that names the volumes for which it waits.
/// Upstream: `podAttachAndMountTimeout`.
const PATIENCE: Duration = Duration::from_secs(123);

/// A volume as containers have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// On this machine.
    pub path: PathBuf,
    pub read_only: bool,
    /// It is no folder, but a device.
    pub is_device: bool,
    /// A group that containers need for it.
    pub group: Option<i64>,
    /// The name of its PersistentVolume, which the folders of its parts have. Upstream:
    /// `InnerVolumeSpecName`.
    pub persistent: Option<String>,
}

/// The volumes of a pod that are set up, by name. Upstream: `VolumeMap`.
pub type VolumeMap = BTreeMap<String, Mounted>;

/// What needs an API server.
pub struct Server {
    pub client: Client,
    pub csi_drivers: CsiDrivers,
    pub csi_node: NodeInfo,
}

/// The parts of the kubelet that volumes need.
pub struct Parts {
    pub folders: Folders,
    pub own: OwnNode,
    pub objects: Arc<Objects>,
    pub drivers: Drivers,
    /// `None`: volumes of claims and drivers are refused.
    pub server: Option<Server>,
    /// `enableControllerAttachDetach`
    pub controller_attaches: bool,
    /// `volumeStatsAggPeriod`: how often volumes are measured at most; `None`: never.
    pub usage_period: Option<Duration>,
    pub clock: SharedClock,
    /// Gets the pods that have to be synced again.
    pub again: Sender<Uid>,
}

/// Cheap to clone: clones are the same.
#[derive(Clone)]
pub struct VolumeManager(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) folders: Folders,
    pub(super) own: OwnNode,
    pub(super) objects: Arc<Objects>,
    pub(super) drivers: Drivers,
    pub(super) server: Option<Server>,
    pub(super) controller_attaches: bool,
    pub(super) usage_period: Option<Duration>,
    pub(super) clock: SharedClock,
    again: Sender<Uid>,
    pub(super) in_use: VolumesInUse,
    /// By pod, by pod and volume, and inside of these by device.
    pub(super) locks: Locks,
    pub(super) state: Mutex<State>,
    pub(super) usages: Usages,
    has_unused: AtomicBool,
    unused: Event,
}

#[derive(Default)]
pub(super) struct State {
    pods: HashMap<Uid, PodVolumes>,
    /// The paths at which this process has staged volumes.
    pub(super) staged: HashSet<PathBuf>,
    /// Volumes that their drivers do not expand while they are in use, by device: not before the
    /// next pod. Upstream: `volumeInUseErrorForExpansion`.
    pub(super) not_expanded: HashSet<String>,
    /// Pods whose end failed.
    stuck: BTreeSet<Uid>,
}

#[derive(Default)]
struct PodVolumes {
    volumes: BTreeMap<String, VolumeState>,
    /// Since when volumes are missing, by the monotonic clock.
    since: Option<Duration>,
    /// Whether it waits for an attachment, or may do so at the end of an attempt that runs.
    waits: bool,
}

#[derive(Default)]
struct VolumeState {
    mounted: Option<Mounted>,
    backoff: Backoff,
    /// A driver's volume, once it is known which one it is.
    driven: Option<Handle>,
}

impl State {
    /// Whether a pod that has not ended needs a driver's volume.
    pub(super) fn is_wanted(&self, device: &str) -> bool {
        let mut volumes = self.pods.values().flat_map(|pod| pod.volumes.values());
        volumes.any(|volume| volume.driven.as_ref().is_some_and(|of| of.device() == device))
    }

    /// The volumes of pods that have not ended, by pod and name: as containers have them, and as
    /// their drivers name them.
    pub(super) fn known(&self) -> HashMap<(Uid, String), (Option<Mounted>, Option<Handle>)> {
        let of_pods = self.pods.iter().flat_map(|(uid, pod)| {
            pod.volumes.iter().map(move |(name, volume)| {
                let known = (volume.mounted.clone(), volume.driven.clone());
                ((uid.clone(), name.clone()), known)
            })
        });
        of_pods.collect()
    }

    fn volume(&mut self, uid: &Uid, name: &str) -> &mut VolumeState {
        let pod = self.pods.entry(uid.clone()).or_default();
        pod.volumes.entry(name.to_owned()).or_default()
    }
}

/// The outcome of a volume at a sync.
enum Attempt {
    Done(Mounted),
    Failed(Error),
    /// What the volume stands for is not known.
    Unprocessed(Error),
    /// It has failed before, and is not due.
    NotDue(Duration),
    /// It is as it was set up before, and no change of it is attempted.
    Kept,
}

impl PodVolumes {
    fn is_late(&self, now: Duration) -> bool {
        self.since.is_some_and(|since| now.saturating_sub(since) >= PATIENCE)
    }
}

impl Attempt {
    /// Whether the volume is there.
    fn is_mounted(&self) -> bool {
        matches!(self, Attempt::Done(_) | Attempt::Kept)
    }

    /// Whether the volume waits for others, such as its attachment.
    fn is_wait(&self) -> bool {
        matches!(self, Attempt::Failed(error) if error.is_wait())
    }
}

impl VolumeManager {
    pub fn new(parts: Parts) -> VolumeManager {
        VolumeManager(Arc::new(Inner {
            folders: parts.folders,
            own: parts.own,
            objects: parts.objects,
            drivers: parts.drivers,
            server: parts.server,
            controller_attaches: parts.controller_attaches,
            usage_period: parts.usage_period,
            clock: parts.clock,
            again: parts.again,
            usages: Usages::default(),
            in_use: VolumesInUse::default(),
            locks: Locks::default(),
            state: Mutex::default(),
            has_unused: AtomicBool::new(false),
            unused: Event::new(),
        }))
    }

    /// One without an API server.
    #[cfg(test)]
    pub(super) fn for_tests(folders: Folders) -> VolumeManager {
        let clock = kube_controller_manager::clock::SystemClock::shared();
        let objects = Objects::new(crate::objects::folder::LocalObjects::default(), clock.clone());
        VolumeManager::new(Parts {
            folders,
            own: OwnNode::for_tests("1", "1", ""),
            objects: Arc::new(objects),
            drivers: Drivers::default(),
            server: None,
            controller_attaches: true,
            usage_period: None,
            clock,
            again: async_channel::unbounded().0,
        })
    }

    /// The volumes of a pod that are set up.
    pub fn mounted(&self, uid: &Uid) -> VolumeMap {
        let state = self.0.state.lock();
        let volumes = state.pods.get(uid).map(|pod| &pod.volumes).into_iter().flatten();
        let mounted =
            volumes.filter_map(|(name, volume)| Some((name.clone(), volume.mounted.clone()?)));
        mounted.collect()
    }

    /// The groups that a pod's containers need for its volumes, beside those of the pod.
    /// Upstream: `GetExtraSupplementalGroupsForPod`.
    pub fn groups(&self, pod: &Pod) -> BTreeSet<i64> {
        let security = pod.spec().security_context.as_ref();
        let own = security.and_then(|security| security.supplemental_groups.clone());
        let own = own.unwrap_or_default();
        let mounted = self.mounted(&pod.uid());
        let groups = mounted.values().filter_map(|volume| volume.group);
        groups.filter(|group| !own.contains(group)).collect()
    }

    /// The volumes that the Node says are in use.
    pub fn in_use(&self) -> &VolumesInUse {
        &self.0.in_use
    }

    /// Makes the folders of a pod, and sets up its volumes; those that the kubelet writes follow their
    /// sources. Returns when to try again at the latest if some are missing; `None`: all are there.
    /// The future may be dropped at any time.
    ///
    /// # Errors
    /// A folder of the pod itself cannot be made; or [`Error::AttachLimit`].
    pub async fn set_up(&self, pod: &Arc<Pod>) -> Result<Option<Duration>, Error> {
        let inner = &self.0;
        let mut attempts = inner.set_up_plain(pod).await?;
        let volumes = pod.spec().volumes.iter().flatten();
        let is_other =
            |volume: &&core::Volume| !plain::is_plain(volume) && pod.uses_volume(&volume.name);
        let others = volumes.filter(is_other).cloned();
        let others = others.map(|volume| {
            let (inner, pod) = (inner.clone(), pod.clone());
            Box::pin(async move {
                let attempt = inner.set_up_other(&pod, &volume).await;
                (volume.name, attempt)
            })
        });
        attempts.extend(join_all(others.collect()).await);
        if let Some((waiting, error)) = inner.late(&pod.uid(), &attempts) {
            for of in waiting {
                if inner.exceeds_limit(&of).await {
                    return Err(error);
                }
            }
        }
        Ok(inner.conclude(pod, attempts))
    }

    /// Ends what the pod has of volumes, and removes its folder. Mounts that belong to no known
    /// volume stay.
    ///
    /// # Errors
    /// The first failure; what could be undone is undone.
    pub async fn tear_down(&self, uid: &Uid) -> Result<(), Error> {
        self.end(uid, Rest::Nothing).await
    }

    /// As [`tear_down`](Self::tear_down), but the last messages of its containers stay: a kubelet that
    /// starts later reads them again, as long as the pod's source has the pod.
    ///
    /// # Errors
    /// The first failure; what could be undone is undone.
    pub async fn tear_down_ended(&self, uid: &Uid) -> Result<(), Error> {
        self.end(uid, Rest::Messages).await
    }

    async fn end(&self, uid: &Uid, rest: Rest) -> Result<(), Error> {
        let names: Vec<String> = {
            let state = self.0.state.lock();
            state.pods.get(uid).into_iter().flat_map(|pod| pod.volumes.keys().cloned()).collect()
        };
        // Attempts that have begun run to their ends first.
        let mut held = vec![self.lock(uid).await];
        for name in names {
            held.push(self.0.locks.lock(&lock_name(uid, &name)).await);
        }
        let done = self.0.undo(uid, rest).await;
        let mut state = self.0.state.lock();
        match done {
            Ok(()) => {
                state.stuck.remove(uid);
                state.pods.remove(uid);
                drop(state);
                self.0.usages.forget(uid);
                self.release_unused();
                Ok(())
            }
            Err(error) => {
                state.stuck.insert(uid.clone());
                Err(error)
            }
        }
    }

    /// Waits until nothing else changes a pod's folder. Work that may go on after its future is dropped
    /// holds it, so that the end of the pod comes after that work.
    pub async fn lock(&self, uid: &Uid) -> Held {
        self.0.locks.lock(uid).await
    }

    /// Unstages volumes that no pod uses, soon.
    pub fn release_unused(&self) {
        self.0.has_unused.store(true, Ordering::SeqCst);
        notify_all(&self.0.unused);
    }

    /// Waits for a driver that comes or goes.
    pub fn driver_changed(&self) -> event_listener::EventListener {
        self.0.drivers.changed()
    }

    /// Does what is due without a pod's sync, until stopped.
    pub async fn run(self, stop: StopToken) {
        if self.0.server.is_none() {
            return;
        }
        let work = zip(self.0.find_in_use(), self.0.wake().or(self.0.release()));
        stop.unless_stopped(work).await;
    }
}

fn lock_name(uid: &Uid, volume: &str) -> String {
    format!("{uid}/{volume}")
}

impl Inner {
    /// Sets up the volumes that need nothing but this machine and objects.
    async fn set_up_plain(&self, pod: &Arc<Pod>) -> Result<Vec<(String, Attempt)>, Error> {
        let (folders, of, own) = (self.folders.clone(), pod.clone(), self.own.clone());
        let clock = self.clock.clone();
        let objects = self.objects.read(pod, Use::Volumes).await;
        let time = self.clock.now().to_jiff().strftime("%Y_%m_%d_%H_%M_%S").to_string();
        let mounted: BTreeSet<String> = {
            let state = self.state.lock();
            let volumes = state.pods.get(&pod.uid()).map(|pod| &pod.volumes).into_iter().flatten();
            let mounted = volumes.filter(|(_, volume)| volume.mounted.is_some());
            mounted.map(|(name, _)| name.clone()).collect()
        };
        let held = self.locks.lock(&pod.uid()).await;
        let set_up = task::blocking(move || {
            let _held = held;
            let inputs = DownwardInputs { node: &own, pod_ips: &[] };
            plain::set_up(&folders, &of, &mounted, inputs, &objects, &time, &clock)
        });
        let outcomes = set_up.await.inspect_err(|error| {
            events::warning(pod, None, "FailedMount", chain(error));
        })?;
        let attempt = |(name, outcome): plain::Outcome| match outcome {
            Ok(mounted) => (name, Attempt::Done(mounted)),
            Err(error) => (name, Attempt::Failed(error)),
        };
        Ok(outcomes.into_iter().map(attempt).collect())
    }

    /// Runs an operation on a volume of a plugin to its end, and counts it.
    pub(super) async fn counted<T>(
        &self,
        plugin: &str,
        operation: &'static str,
        run: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let begin = self.clock.monotonic();
        let outcome = run.await;
        let took = self.clock.monotonic().saturating_sub(begin);
        metrics::observe_storage(plugin, operation, outcome.is_ok(), took);
        outcome
    }

    /// The time, as objects have it.
    pub(super) fn now(&self) -> String {
        self.clock.now().to_jiff().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }

    /// Sets up a volume of a claim or a driver.
    async fn set_up_other(self: &Arc<Self>, pod: &Arc<Pod>, volume: &core::Volume) -> Attempt {
        let (uid, name) = (pod.uid(), &volume.name);
        let in_step = Error::in_step("MountVolume.SetUp failed", name);
        let before = {
            let mut state = self.state.lock();
            let volume = state.volume(&uid, name);
            let remaining = volume.backoff.remaining(self.clock.monotonic());
            if !remaining.is_zero() {
                return match volume.mounted {
                    None => Attempt::NotDue(remaining),
                    Some(_) => Attempt::Kept,
                };
            }
            let mounted = volume.mounted.clone();
            // What changes from now on is not missed.
            state.pods.entry(uid.clone()).or_default().waits |= mounted.is_none();
            mounted
        };
        if let Some(source) = &volume.nfs {
            return match before {
                Some(mounted) => Attempt::Done(mounted),
                None => self.set_up_nfs(pod, name, Export::of_pod(source), None).await,
            };
        }
        let Some(server) = &self.server else { return Attempt::Failed(in_step(Error::NoServer)) };
        let (csi, bound) = match (&volume.csi, claim::claim_of(pod, volume)) {
            (Some(source), _) => (CsiVolume::inline(pod, name, source), None),
            (None, Some((claim, read_only))) => {
                let bound = claim::bound(&server.client, pod, volume, &claim, read_only).await;
                let bound = match (bound, &before) {
                    (Ok(bound), _) => bound,
                    // The pod keeps what it has.
                    (Err(error), Some(_)) => {
                        log::warn!("pod {}: volume {name}: {}", pod.display_name(), chain(&error));
                        return Attempt::Kept;
                    }
                    (Err(error), None) => return Attempt::Unprocessed(error),
                };
                if before.is_none() && !bound.is_for(&self.own.get()) {
                    let step = match bound.is_block() {
                        true => "MapVolume.NodeAffinity check failed",
                        false => "MountVolume.NodeAffinity check failed",
                    };
                    let in_step = Error::in_step(step, bound.name());
                    return Attempt::Failed(in_step(Error::NodeAffinity));
                }
                match (bound.spec().csi, Export::of_claim(&bound)) {
                    (Some(source), _) => (CsiVolume::persistent(&bound, &source), Some(bound)),
                    (None, Some(export)) => {
                        return match before {
                            Some(mounted) => Attempt::Done(mounted),
                            None => self.set_up_nfs(pod, name, export, Some(&bound)).await,
                        };
                    }
                    (None, None) => {
                        return self.set_up_local(pod, name, bound, before.is_none()).await;
                    }
                }
            }
            (None, None) => return Attempt::Failed(in_step(Error::UnsupportedKind)),
        };
        if let Some(mounted) = &before {
            let republishes = server.csi_drivers.get(&csi.driver).is_ok_and(|d| d.republishes());
            let is_refused = self.state.lock().not_expanded.contains(&csi.device());
            let is_due = !is_refused && bound.as_ref().is_some_and(expand::is_due);
            if !republishes && !is_due {
                return Attempt::Done(mounted.clone());
            }
        }
        let held = self.locks.lock(&lock_name(&uid, name)).await;
        let device = csi.device();
        self.state.lock().volume(&uid, name).driven = Some(csi.of());
        let (inner, of, is_published) = (self.clone(), pod.clone(), before.is_some());
        let attempt = task::spawn(async move {
            let _held = held;
            let _device = inner.locks.lock(&device).await;
            inner.mount_csi(&of, &csi, bound.as_ref(), is_published).await
        });
        match attempt.await {
            Ok(mounted) => Attempt::Done(mounted),
            Err(error) => Attempt::Failed(error),
        }
    }

    /// Sets up a folder or a device of this machine that a PersistentVolume names. `is_first`: it
    /// was not set up before.
    async fn set_up_local(
        &self,
        pod: &Arc<Pod>,
        name: &str,
        bound: Bound,
        is_first: bool,
    ) -> Attempt {
        let held = self.locks.lock(&lock_name(&pod.uid(), name)).await;
        // One pod at a time: the first one sets the owner.
        let of_all = self.locks.lock(&format!("local/{}", bound.name())).await;
        let (folders, pod) = (self.folders.clone(), pod.clone());
        let spec = bound.spec();
        let plugin = match (&spec.local, &spec.host_path) {
            (Some(_), _) => plain::LOCAL_PLUGIN,
            (None, Some(_)) => plain::HOST_PATH_PLUGIN,
            (None, None) => plain::NO_PLUGIN,
        };
        let operation = if bound.is_block() { "map_volume" } else { "volume_mount" };
        let set_up = task::blocking(move || {
            let _held = (held, of_all);
            set_up_local(&folders, &pod, &bound)
        });
        let set_up = match is_first {
            true => self.counted(plugin, operation, set_up).await,
            false => set_up.await,
        };
        match set_up {
            Ok(mounted) => Attempt::Done(mounted),
            Err(error) => Attempt::Failed(error),
        }
    }

    /// Mounts the folder of a server.
    async fn set_up_nfs(
        &self,
        pod: &Pod,
        name: &str,
        export: Export,
        bound: Option<&Bound>,
    ) -> Attempt {
        let held = self.locks.lock(&lock_name(&pod.uid(), name)).await;
        let persistent = bound.map(|bound| bound.name().to_owned());
        let folder = persistent.as_deref().unwrap_or(name);
        let in_step = Error::in_step("MountVolume.SetUp failed", folder);
        let path = self.folders.volume(&pod.uid(), "nfs", folder);
        let (read_only, target) = (export.read_only, path.clone());
        let mounted = task::blocking(move || {
            let _held = held;
            export.mount(&target)
        });
        match self.counted(nfs::PLUGIN, "volume_mount", mounted).await {
            Ok(()) => {
                let group = bound.and_then(Bound::group);
                Attempt::Done(Mounted { path, read_only, is_device: false, group, persistent })
            }
            Err(error) => Attempt::Failed(in_step(error)),
        }
    }

    /// The volumes for whose attachment a pod has waited for long, and the error if one of them is
    /// beyond what the node may have: the pod can run elsewhere. Upstream: `WaitForAttachAndMount`.
    fn late(&self, uid: &Uid, attempts: &[(String, Attempt)]) -> Option<(Vec<Handle>, Error)> {
        let (state, now) = (self.state.lock(), self.clock.monotonic());
        let pod = state.pods.get(uid).filter(|pod| pod.is_late(now))?;
        let waiting = attempts.iter().filter(|(_, attempt)| attempt.is_wait());
        let waiting: Vec<Handle> =
            waiting.filter_map(|(name, _)| pod.volumes.get(name)?.driven.clone()).collect();
        let names = |is_it: fn(&Attempt) -> bool| -> Vec<String> {
            let found = attempts.iter().filter(|(_, attempt)| is_it(attempt));
            found.map(|(name, _)| name.clone()).collect()
        };
        let error = Error::AttachLimit {
            unmounted: names(|attempt| !attempt.is_mounted()),
            unattached: names(Attempt::is_wait),
            unprocessed: names(|attempt| matches!(attempt, Attempt::Unprocessed(_))),
        };
        Some((waiting, error))
    }

    /// Keeps the outcomes of a pod's volumes. Returns when to try again; `None`: all are there.
    fn conclude(&self, pod: &Arc<Pod>, attempts: Vec<(String, Attempt)>) -> Option<Duration> {
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        let of_pod = state.pods.entry(pod.uid()).or_default();
        let (mut unmounted, mut unattached, mut unprocessed) = (vec![], vec![], vec![]);
        let (mut retry, mut faults) = (LONGEST, vec![]);
        of_pod.waits = false;
        for (name, attempt) in attempts {
            let volume = of_pod.volumes.entry(name.clone()).or_default();
            let failure = match attempt {
                Attempt::Done(mounted) => {
                    volume.mounted = Some(mounted);
                    volume.backoff = Backoff::default();
                    continue;
                }
                Attempt::Kept => continue,
                Attempt::NotDue(remaining) => {
                    retry = retry.min(remaining);
                    None
                }
                Attempt::Unprocessed(error) => {
                    faults.push(chain(&error));
                    unprocessed.push(name.clone());
                    retry = retry.min(volume.backoff.fail(now));
                    None
                }
                Attempt::Failed(error) if error.is_wait() && volume.mounted.is_none() => {
                    log::debug!("pod {}: {}", pod.display_name(), chain(&error));
                    of_pod.waits = true;
                    unattached.push(name.clone());
                    None
                }
                Attempt::Failed(error) => {
                    let delay = volume.backoff.fail(now);
                    let (name, fault) = (pod.display_name(), chain(&error));
                    log::error!("pod {name}: {fault}; no retries permitted for {delay:?}");
                    retry = retry.min(delay);
                    Some(error)
                }
            };
            if let Some(error) = failure {
                events::warning(pod, None, error.reason(), chain(&error));
                // Containers go on with what was set up before.
                if volume.mounted.is_some() {
                    continue;
                }
            }
            unmounted.push(name);
        }
        if unmounted.is_empty() {
            of_pod.since = None;
            return None;
        }
        of_pod.since = of_pod.since.or(Some(now));
        if of_pod.is_late(now) || !unprocessed.is_empty() {
            let cause = match faults.is_empty() {
                true => "context deadline exceeded".to_owned(),
                false => faults.join("; "),
            };
            let message = format!(
                "Unable to attach or mount volumes: unmounted volumes=[{}], unattached \
                 volumes=[{}], failed to process volumes=[{}]: {cause}",
                unmounted.join(" "),
                unattached.join(" "),
                unprocessed.join(" "),
            );
            events::warning(pod, None, "FailedMount", message);
            of_pod.since = Some(now);
        }
        let since = of_pod.since.unwrap_or(now);
        Some(retry.min((since + PATIENCE).saturating_sub(now)))
    }

    /// Reads from the disk which attachable volumes are in use. Upstream: `reconstructVolumes`.
    async fn find_in_use(&self) {
        let Some(server) = &self.server else { return };
        server.csi_drivers.synced().await;
        let mut backoff = Backoff::default();
        let names = loop {
            match self.names_on_disk().await {
                Ok(names) => break names,
                Err(error) => log::error!("volumes in use: {}", chain(&error)),
            }
            self.clock.sleep(backoff.fail(self.clock.monotonic())).await;
        };
        let attaches =
            |driver: &str| server.csi_drivers.get(driver).is_ok_and(|object| object.attaches());
        let names = names.into_iter().filter(|(driver, _)| attaches(driver));
        self.in_use.begin(names.map(|(driver, handle)| unique_name(&driver, &handle)));
        // Pods may have asked before.
        self.sync_again(|pod| pod.waits);
    }

    /// The drivers and handles of volumes that are staged or published.
    async fn names_on_disk(&self) -> Result<BTreeSet<(String, String)>, Error> {
        let folders = self.folders.clone();
        let names = task::blocking(move || -> io::Result<_> {
            let staged = csi::staged(&folders)?.into_iter();
            let staged = staged.map(|volume| (volume.driver, volume.handle));
            Ok(staged.chain(csi::published(&folders)?).collect())
        });
        names.await.map_err(Error::at(&self.folders.root))
    }

    /// Lets pods be synced again whose volumes wait for what has changed, for ever.
    async fn wake(&self) {
        let mut changes = self.drivers.changes();
        loop {
            let (node, drivers) = (self.own.changed(), self.drivers.changed());
            let reported = self.in_use.reported();
            // Several may have changed: which of them has ended the wait does not matter.
            self.sync_again(|pod| pod.waits);
            let now = self.drivers.changes();
            if now != changes {
                changes = now;
                let stuck = {
                    let mut state = self.state.lock();
                    let volumes = state.pods.values_mut().flat_map(|pod| pod.volumes.values_mut());
                    volumes.for_each(|volume| volume.backoff = Backoff::default());
                    state.stuck.clone()
                };
                self.sync_again(|pod| pod.since.is_some());
                stuck.into_iter().for_each(|uid| drop(self.again.try_send(uid)));
            }
            node.or(reported).or(drivers).await;
        }
    }

    fn sync_again(&self, is_due: impl Fn(&PodVolumes) -> bool) {
        let state = self.state.lock();
        for (uid, _) in state.pods.iter().filter(|(_, pod)| is_due(pod)) {
            // Closed only when the kubelet stops.
            let _ = self.again.try_send(uid.clone());
        }
    }

    /// Unstages volumes that no pod uses, for ever: when pods have ended, and again while it fails.
    async fn release(&self) {
        let mut backoff = Backoff::default();
        loop {
            let (asked, drivers) = (self.unused.listen(), self.drivers.changed());
            if !self.has_unused.swap(false, Ordering::SeqCst) {
                asked.await;
                continue;
            }
            if self.release_once().await {
                backoff = Backoff::default();
                continue;
            }
            let delay = backoff.fail(self.clock.monotonic());
            self.has_unused.store(true, Ordering::SeqCst);
            asked.or(drivers).or(self.clock.sleep(delay)).await;
        }
    }

    /// Returns whether all is unstaged that no pod uses.
    async fn release_once(&self) -> bool {
        let folders = self.folders.clone();
        let staged = task::blocking(move || -> io::Result<Vec<Staged>> {
            let mut unused = csi::staged(&folders)?;
            let mut outcome = Ok(());
            unused.retain(|of| match csi::users(&folders, of) {
                Ok(users) => users.is_empty(),
                Err(error) => {
                    outcome = Err(error);
                    false
                }
            });
            outcome.map(|()| unused)
        });
        let staged = match staged.await.map_err(Error::at(&self.folders.root)) {
            Ok(staged) => staged,
            Err(error) => {
                log::error!("unused volumes: {}", chain(&error));
                return false;
            }
        };
        let mut is_done = true;
        for of in staged {
            if let Err(error) = self.unstage(&of).await {
                log::error!("{}", chain(&error));
                is_done = false;
            }
        }
        // Those of drivers that stage nothing.
        let on_disk: BTreeSet<String> = match self.names_on_disk().await {
            Ok(names) => names.iter().map(|(driver, handle)| unique_name(driver, handle)).collect(),
            Err(error) => {
                log::error!("volumes in use: {}", chain(&error));
                return false;
            }
        };
        for name in self.in_use.names().into_iter().flatten() {
            if !on_disk.contains(&name) && !self.state.lock().is_wanted(&name) {
                self.in_use.remove(&name);
            }
        }
        is_done
    }
}

/// Makes a folder or a device of this machine usable for a pod. Blocks.
fn set_up_local(folders: &Folders, pod: &Pod, bound: &Bound) -> Result<Mounted, Error> {
    let (spec, name, uid) = (bound.spec(), bound.name(), pod.uid());
    let set_up =
        if bound.is_block() { "MapVolume.SetUpDevice failed" } else { "MountVolume.SetUp failed" };
    let in_step = Error::in_step(set_up, name);
    let mounted = |path| {
        let (read_only, group) = (bound.read_only, bound.group());
        let persistent = Some(name.to_owned());
        Mounted { path, read_only, is_device: bound.is_block(), group, persistent }
    };
    match (&spec.local, &spec.host_path) {
        (Some(source), _) if bound.is_block() => {
            let device = local::device(&source.path).map_err(&in_step)?;
            let link = folders.device_link(&uid, plain::LOCAL, name);
            csi::make_link(&device, &link).map_err(|error| in_step(Error::at(&link)(error)))?;
            Ok(mounted(link))
        }
        (Some(source), _) => {
            let target = folders.volume(&uid, "local-volume", name);
            let security = pod.spec().security_context.as_ref();
            let policy = security.and_then(|s| s.fs_group_change_policy.as_deref());
            let group = fs_group(pod).map(|group| (group, policy == Some("OnRootMismatch")));
            let pods = folders.pods();
            local::mount(&spec, &source.path, &target, bound.read_only, group, &pods)
                .map_err(in_step)?;
            Ok(mounted(target))
        }
        (None, Some(source)) if !bound.is_block() => {
            plain::check_host_path(source).map_err(in_step)?;
            Ok(mounted(PathBuf::from(&source.path)))
        }
        _ => Err(in_step(Error::UnsupportedKind)),
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_lite::future::{block_on, poll_once};
    use kube_controller_manager::clock::FakeClock;
    use kube_controller_manager::objects::Timestamp;

    use super::*;

    fn manager() -> VolumeManager {
        let root = std::env::temp_dir().join(format!("kubelet-manager-{}", std::process::id()));
        VolumeManager::for_tests(Folders { logs: root.join("logs"), root })
    }

    fn pod() -> Arc<Pod> {
        let pod = serde_json::json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"containers": [], "volumes": [
                {"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
        });
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    fn mounted() -> Mounted {
        Mounted {
            path: PathBuf::from("/v"),
            read_only: false,
            is_device: false,
            group: None,
            persistent: None,
        }
    }

    #[test]
    fn a_change_of_a_mounted_volume_that_fails_is_attempted_less_and_less() {
        let (manager, pod) = (manager(), pod());
        let volume = pod.spec().volumes.iter().flatten().next().expect("a volume").clone();
        let conclude = |attempt| manager.0.conclude(&pod, vec![("v".to_owned(), attempt)]);
        let attempt = || block_on(manager.0.set_up_other(&pod, &volume));
        assert_eq!(conclude(Attempt::Done(mounted())), None);
        assert!(matches!(attempt(), Attempt::Failed(_)), "it is due");
        for _ in 0..10 {
            assert_eq!(conclude(Attempt::Failed(Error::NoServer)), None, "the pod keeps it");
        }
        assert!(matches!(attempt(), Attempt::Kept));
        assert_eq!(conclude(Attempt::Kept), None);
        assert!(matches!(attempt(), Attempt::Kept), "the delay stays");
        // Also what would be waited for before the volume is mounted.
        assert_eq!(conclude(Attempt::Failed(Error::NotInUse)), None);
        assert_eq!(manager.mounted(&pod.uid())["v"], mounted());
        assert_eq!(conclude(Attempt::Done(mounted())), None);
        assert!(matches!(attempt(), Attempt::Failed(_)), "a success ends the delay");
    }

    #[test]
    fn what_changes_during_an_attempt_is_not_missed() {
        let pod = pod();
        let (again, due) = async_channel::unbounded();
        let mut manager = manager();
        Arc::get_mut(&mut manager.0).expect("the only one").again = again;
        let inner = &manager.0;
        let volume = pod.spec().volumes.iter().flatten().next().expect("a volume");
        block_on(async {
            let mut wake = pin!(inner.wake());
            assert!(poll_once(&mut wake).await.is_none());
            assert!(due.try_recv().is_err(), "no pod waits");
            let _attempt = inner.set_up_other(&pod, volume).await;
            inner.in_use.begin(["a".to_owned()]);
            inner.in_use.mark_reported(&["a".to_owned()]);
            assert!(poll_once(&mut wake).await.is_none());
            assert_eq!(due.try_recv(), Ok(pod.uid()));
            inner.conclude(&pod, vec![("v".to_owned(), Attempt::Done(mounted()))]);
            inner.in_use.mark_reported(&[]);
            assert!(poll_once(&mut wake).await.is_none());
            assert!(due.try_recv().is_err(), "it does not wait any more");
        });
    }

    #[test]
    fn a_limit_counts_once_a_pod_has_waited_for_long() {
        let (clock, pod) = (FakeClock::new(Timestamp::from_secs(0)), pod());
        let mut manager = manager();
        Arc::get_mut(&mut manager.0).expect("the only one").clock = clock.clone();
        let inner = &manager.0;
        let attempts = || {
            let not_attached = Error::NotAttached("u".to_owned());
            vec![("v".to_owned(), Attempt::Failed(not_attached))]
        };
        let of = Handle { driver: "d".to_owned(), handle: "h".to_owned() };
        inner.state.lock().volume(&pod.uid(), "v").driven = Some(of.clone());
        assert!(inner.late(&pod.uid(), &attempts()).is_none(), "it has just begun");
        assert!(inner.conclude(&pod, attempts()).is_some());
        clock.advance(PATIENCE - Duration::from_secs(1));
        assert!(inner.late(&pod.uid(), &attempts()).is_none());
        clock.advance(Duration::from_secs(1));
        let (waiting, error) = inner.late(&pod.uid(), &attempts()).expect("it is late");
        assert_eq!(waiting, [of]);
        let expected = "Node has reached its volume attachment limit, rejecting pod. unmounted \
                        volumes=[v], unattached volumes=[v], failed to process volumes=[]: context \
                        deadline exceeded";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn the_end_of_a_pod_waits_for_work_on_its_folder() {
        let manager = manager();
        let uid = pod().uid();
        block_on(async {
            let held = manager.lock(&uid).await;
            let mut end = pin!(manager.tear_down(&uid));
            assert!(poll_once(&mut end).await.is_none());
            drop(held);
            end.await.expect("nothing to undo");
        });
    }
}
