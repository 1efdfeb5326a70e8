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
use super::csi::{self, Handle, Published, Staged};
use super::in_use::VolumesInUse;
use super::set_up::{Attempt, lock_name};
use super::tear_down::Rest;
use super::usage::Usages;
use super::{Error, Folders, plain};
use crate::causes::chain;
use crate::concurrent::join_all;
use crate::csi::{CsiDrivers, Drivers, NodeInfo, unique_name};
use crate::events;
use crate::locks::{Held, Locks};
use crate::metrics;
use crate::node::own::OwnNode;
use crate::objects::Objects;
use crate::pod::{Pod, PodExt, Uid};

/// After this time without its volumes the log names them, and a limit of its node rejects a pod.
/// Upstream: `podAttachAndMountTimeout`.
const PATIENCE: Duration = Duration::from_secs(123);
/// When a claim that is not bound, or cannot be read, is read again. Upstream: `backOffPeriod`, that
/// of a pod whose sync has failed.
const UNPROCESSED_RETRY: Duration = Duration::from_secs(10);

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
    pub(super) pods: HashMap<Uid, PodVolumes>,
    /// The paths at which this process has staged volumes.
    pub(super) staged: HashSet<PathBuf>,
    /// Volumes that their drivers do not expand while they are in use, by device: not before the
    /// next pod. Upstream: `volumeInUseErrorForExpansion`.
    pub(super) not_expanded: HashSet<String>,
    /// The unique names of volumes of in-tree plugins that this process has set up, for metrics.
    /// That a volume is one is not on the disk, upstream's neither.
    pub(super) migrated: HashSet<String>,
    /// Pods whose end failed.
    stuck: BTreeSet<Uid>,
}

#[derive(Default)]
pub(super) struct PodVolumes {
    pub(super) volumes: BTreeMap<String, VolumeState>,
    /// Since when volumes are missing, by the monotonic clock.
    since: Option<Duration>,
    /// Whether it waits for an attachment, or may do so at the end of an attempt that runs.
    pub(super) waits: bool,
}

#[derive(Default)]
pub(super) struct VolumeState {
    pub(super) mounted: Option<Mounted>,
    pub(super) backoff: Backoff,
    /// A driver's volume, once it is known which one it is.
    pub(super) driven: Option<Handle>,
}

impl State {
    /// Returns whether a pod that has not ended needs a driver's volume.
    pub(super) fn is_wanted(&self, device: &str) -> bool {
        let mut volumes = self.pods.values().flat_map(|pod| pod.volumes.values());
        volumes.any(|volume| volume.driven.as_ref().is_some_and(|of| of.device() == device))
    }

    /// Returns the volumes of pods that have not ended, by pod and name: as containers have them if
    /// they are set up, and as their drivers name them if they have one.
    pub(super) fn known(&self) -> HashMap<(Uid, String), (Option<Mounted>, Option<Handle>)> {
        let of_pods = self.pods.iter().flat_map(|(uid, pod)| {
            pod.volumes.iter().map(move |(name, volume)| {
                let known = (volume.mounted.clone(), volume.driven.clone());
                ((uid.clone(), name.clone()), known)
            })
        });
        of_pods.collect()
    }

    /// Returns the state of a pod's volume; a new one if it is not known.
    pub(super) fn volume(&mut self, uid: &Uid, name: &str) -> &mut VolumeState {
        let pod = self.pods.entry(uid.clone()).or_default();
        pod.volumes.entry(name.to_owned()).or_default()
    }
}

impl PodVolumes {
    fn is_late(&self, now: Duration) -> bool {
        self.since.is_some_and(|since| now.saturating_sub(since) >= PATIENCE)
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
    pub(crate) fn for_tests(folders: Folders) -> VolumeManager {
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

    /// Returns the volumes of a pod that are set up.
    pub fn mounted(&self, uid: &Uid) -> VolumeMap {
        let state = self.0.state.lock();
        let volumes = state.pods.get(uid).map(|pod| &pod.volumes).into_iter().flatten();
        let mounted =
            volumes.filter_map(|(name, volume)| Some((name.clone(), volume.mounted.clone()?)));
        mounted.collect()
    }

    /// Returns the groups that a pod's containers need for its volumes, beside those of the pod.
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

    /// Makes the folders of a pod, and sets up its volumes. Those that the kubelet writes itself
    /// (`configMap`, `secret`, `projected`, `downwardAPI`) are brought up to date at each call.
    /// Returns when to try again at the latest if some are missing; `None`: all are there. The
    /// future may be dropped at any time.
    ///
    /// # Errors
    /// A folder of the pod itself cannot be made. Or [`Error::AttachLimit`]: the pod has waited for
    /// long for a volume that is not attached because the node has as many as it may have. The pod
    /// fails then, so the attempts are not recorded.
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
        // The pod can run on another node, where there is room for the volume.
        if let Some((waiting, error)) = inner.find_late(&pod.uid(), &attempts) {
            for handle in waiting {
                if inner.exceeds_limit(&handle).await {
                    return Err(error);
                }
            }
        }
        Ok(inner.record_attempts(pod, attempts))
    }

    /// Ends what the pod has of volumes, and removes its folder. Mounts that belong to no known
    /// volume stay.
    ///
    /// # Errors
    /// The first failure; what could be undone is undone.
    pub async fn tear_down(&self, uid: &Uid) -> Result<(), Error> {
        self.end(uid, Rest::Nothing).await
    }

    /// As [`tear_down`](Self::tear_down), but the last messages (`terminationMessagePath`) of its
    /// containers stay: a kubelet that starts later reads them again, as long as the pod's source
    /// has the pod.
    ///
    /// # Errors
    /// The first failure; what could be undone is undone.
    pub async fn tear_down_ended(&self, uid: &Uid) -> Result<(), Error> {
        self.end(uid, Rest::Messages).await
    }

    /// Undoes what a pod has of volumes and forgets it, once its attempts have ended. A pod whose
    /// end fails is `stuck`: a driver that comes or goes lets it be synced again.
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

    /// Finds the volumes in use, wakes the pods that wait, and unstages unused volumes, until
    /// stopped. Without an API server it returns at once: no volume is attached or staged.
    pub async fn run(self, stop: StopToken) {
        if self.0.server.is_none() {
            return;
        }
        let work = zip(self.0.find_in_use(), self.0.wake().or(self.0.release()));
        stop.unless_stopped(work).await;
    }
}

impl Inner {
    /// Finds the volumes for whose attachment a pod has waited for long, with the error if one of them
    /// is beyond what the node may have: the pod can run elsewhere. `None`: the pod has not waited
    /// for long. Upstream: `WaitForAttachAndMount`.
    fn find_late(&self, uid: &Uid, attempts: &[(String, Attempt)]) -> Option<(Vec<Handle>, Error)> {
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

    /// Records the outcomes of attempts at a pod's volumes, with events for failures and for a wait that
    /// is too long. Returns when to try again; `None`: all are there.
    fn record_attempts(
        &self,
        pod: &Arc<Pod>,
        attempts: Vec<(String, Attempt)>,
    ) -> Option<Duration> {
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
                    if volume.mounted.is_none()
                        && let Some(message) = mapped(&mounted)
                    {
                        events::normal(pod, None, "SuccessfulMountVolume", message);
                    }
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
                    retry = retry.min(UNPROCESSED_RETRY.mul_f64(1.0 + 0.5 * fastrand::f64()));
                    None
                }
                Attempt::Failed(error) if error.is_wait() && volume.mounted.is_none() => {
                    log::debug!("pod {}: {}", pod.display_name(), chain(&error));
                    of_pod.waits = true;
                    unattached.push(name.clone());
                    None
                }
                // Volumes of objects are attempted at each sync; upstream holds them back, too.
                Attempt::Failed(error) if !volume.backoff.remaining(now).is_zero() => {
                    log::debug!("pod {}: {}", pod.display_name(), chain(&error));
                    retry = retry.min(volume.backoff.remaining(now));
                    if volume.mounted.is_some() {
                        continue;
                    }
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
            // Of a wait alone upstream records no event.
            match unprocessed.is_empty() {
                true => log::error!("pod {}: {message}", pod.display_name()),
                false => events::warning(pod, None, "FailedMount", message),
            }
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
        let found = loop {
            match self.names_on_disk().await {
                Ok(found) => break found,
                Err(error) => log::error!("volumes in use: {}", chain(&error)),
            }
            self.clock.sleep(backoff.fail(self.clock.monotonic())).await;
        };
        let attaches =
            |driver: &str| server.csi_drivers.get(driver).is_ok_and(|object| object.attaches());
        metrics::count_reconstructed(found.all, found.unreadable);
        let names = found.names.into_iter().filter(|(driver, _)| attaches(driver));
        self.in_use.begin(names.map(|(driver, handle)| unique_name(&driver, &handle)));
        // Pods may have asked before.
        self.sync_again(|pod| pod.waits);
    }

    /// Reads which volumes are published; their names are with those of the staged ones.
    async fn names_on_disk(&self) -> Result<Published, Error> {
        let folders = self.folders.clone();
        let found = task::blocking(move || -> io::Result<_> {
            let staged = csi::staged(&folders)?.into_iter();
            let mut found = csi::published(&folders)?;
            found.names.extend(staged.map(|volume| (volume.driver, volume.handle)));
            Ok(found)
        });
        found.await.map_err(Error::at(&self.folders.root))
    }

    /// Waits for changes of the Node, of the drivers and of the reported volumes, for ever, and
    /// lets the pods whose volumes wait for such a change be synced again. A driver that comes or
    /// goes also ends all back-offs: then every pod with missing volumes, and every one whose end
    /// failed, is synced again.
    async fn wake(&self) {
        let mut seen_changes = self.drivers.changes();
        loop {
            let (node, drivers) = (self.own.changed(), self.drivers.changed());
            let reported = self.in_use.reported();
            // Several may have changed, so all pods that wait are woken. Changes of drivers have a
            // number by which they are recognized.
            self.sync_again(|pod| pod.waits);
            let changes = self.drivers.changes();
            if changes != seen_changes {
                seen_changes = changes;
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

    /// Has the pods synced again whose volumes are in a state for which `is_due` is true.
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

    /// Unstages all volumes that no pod uses, and takes those that are no longer on the disk from
    /// the ones in use. Returns whether all of that succeeded.
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
            Ok(found) => {
                found.names.iter().map(|(driver, handle)| unique_name(driver, handle)).collect()
            }
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
        let mut state = self.state.lock();
        let mut migrated = std::mem::take(&mut state.migrated);
        migrated.retain(|name| on_disk.contains(name) || state.is_wanted(name));
        state.migrated = migrated;
        is_done
    }
}

/// Returns the message of the event that a volume of blocks is there. `None`: it is one of files.
/// Upstream has an event of its global folder too, which the volume does not have here.
fn mapped(mounted: &Mounted) -> Option<String> {
    let folder = mounted.path.parent().filter(|_| mounted.is_device)?;
    let name = mounted.persistent.as_deref().unwrap_or_default();
    Some(format!(
        "MapVolume.MapPodDevice succeeded for volume {name:?} volumeMapPath {:?}",
        folder.display().to_string()
    ))
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
    fn volumes_of_blocks_have_an_event_once() {
        let manager = manager();
        let mut pod = Arc::unwrap_or_clone(pod());
        pod.metadata.name = Some("mapped".to_owned());
        let pod = Arc::new(pod);
        let record = |name: &str, mounted| {
            let attempts = vec![(name.to_owned(), Attempt::Done(mounted))];
            assert_eq!(manager.0.record_attempts(&pod, attempts), None);
        };
        assert!(events::testing::about("mapped").is_empty());
        let device = Mounted {
            path: PathBuf::from("/pods/u/volumeDevices/kubernetes.io~csi/pv"),
            is_device: true,
            persistent: Some("pv".to_owned()),
            ..mounted()
        };
        record("files", mounted());
        record("blocks", device.clone());
        record("blocks", device);
        let expected = "Normal SuccessfulMountVolume MapVolume.MapPodDevice succeeded for volume \
                        \"pv\" volumeMapPath \"/pods/u/volumeDevices/kubernetes.io~csi\"";
        assert_eq!(events::testing::about("mapped"), [expected]);
    }

    #[test]
    fn a_change_of_a_mounted_volume_that_fails_is_attempted_less_and_less() {
        let (manager, pod) = (manager(), pod());
        let volume = pod.spec().volumes.iter().flatten().next().expect("a volume").clone();
        let record = |attempt| manager.0.record_attempts(&pod, vec![("v".to_owned(), attempt)]);
        let attempt = || block_on(manager.0.set_up_other(&pod, &volume));
        assert_eq!(record(Attempt::Done(mounted())), None);
        assert!(matches!(attempt(), Attempt::Failed(_)), "it is due");
        for _ in 0..10 {
            assert_eq!(record(Attempt::Failed(Error::NoServer)), None, "the pod keeps it");
        }
        assert!(matches!(attempt(), Attempt::Kept));
        assert_eq!(record(Attempt::Kept), None);
        assert!(matches!(attempt(), Attempt::Kept), "the delay stays");
        // Also what would be waited for before the volume is mounted.
        assert_eq!(record(Attempt::Failed(Error::NotInUse)), None);
        assert_eq!(manager.mounted(&pod.uid())["v"], mounted());
        assert_eq!(record(Attempt::Done(mounted())), None);
        assert!(matches!(attempt(), Attempt::Failed(_)), "a success ends the delay");
    }

    #[test]
    fn claims_are_read_again_at_one_pace_and_objects_held_back() {
        let (clock, pod) = (FakeClock::new(Timestamp::from_secs(0)), pod());
        let mut manager = manager();
        Arc::get_mut(&mut manager.0).expect("the only one").clock = clock.clone();
        let record = |attempt| manager.0.record_attempts(&pod, vec![("v".to_owned(), attempt)]);
        for _ in 0..9 {
            let retry = record(Attempt::Unprocessed(Error::ClaimNotBound)).expect("a retry");
            assert!((10..=15).contains(&retry.as_secs()), "{retry:?}");
        }
        for (passed, delay) in [(0, 500), (100, 400), (400, 1000)] {
            clock.advance(Duration::from_millis(passed));
            let retry = record(Attempt::Failed(Error::NoServer)).expect("a retry");
            assert_eq!(retry.as_millis(), delay);
        }
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
            inner.record_attempts(&pod, vec![("v".to_owned(), Attempt::Done(mounted()))]);
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
        assert!(inner.find_late(&pod.uid(), &attempts()).is_none(), "it has just begun");
        assert!(inner.record_attempts(&pod, attempts()).is_some());
        clock.advance(PATIENCE - Duration::from_secs(1));
        assert!(inner.find_late(&pod.uid(), &attempts()).is_none());
        clock.advance(Duration::from_secs(1));
        let (waiting, error) = inner.find_late(&pod.uid(), &attempts()).expect("it is late");
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
