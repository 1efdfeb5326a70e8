//! One attempt to set up a volume, by its kind.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::task;

use super::claim::{self, Bound};
use super::csi::{self, CsiVolume};
use super::manager::{Inner, Mounted};
use super::nfs::Export;
use super::ownership::Progress;
use super::{Error, Folders, expand, fs_group, local, nfs, plain};
use crate::causes::chain;
use crate::events;
use crate::metrics;
use crate::objects::Use;
use crate::pod::{Pod, PodExt, Uid};
use crate::runtime::environment::DownwardInputs;

/// The outcome of a volume at a sync.
pub(super) enum Attempt {
    Done(Mounted),
    Failed(Error),
    /// What the volume stands for is not known.
    Unprocessed(Error),
    /// It has failed before, and is not due.
    NotDue(Duration),
    /// It is as it was set up before, and no change of it is attempted.
    Kept,
}

impl Attempt {
    /// Whether the volume is there.
    pub(super) fn is_mounted(&self) -> bool {
        matches!(self, Attempt::Done(_) | Attempt::Kept)
    }

    /// Returns whether the volume waits for others, such as its attachment.
    pub(super) fn is_wait(&self) -> bool {
        matches!(self, Attempt::Failed(error) if error.is_wait())
    }
}

/// What a volume of a claim, a driver or a server stands for, with its claim if it has one.
enum Source {
    Csi(Box<CsiVolume>, Option<Bound>),
    Nfs(Export, Option<Bound>),
    Local(Bound),
}

/// Names the lock of one volume of a pod.
pub(super) fn lock_name(uid: &Uid, volume: &str) -> String {
    format!("{uid}/{volume}")
}

impl Inner {
    /// Sets up the volumes that need nothing but this machine and objects.
    pub(super) async fn set_up_plain(
        &self,
        pod: &Arc<Pod>,
    ) -> Result<Vec<(String, Attempt)>, Error> {
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

    /// Sets up a volume of a claim, a driver or a server, or changes it, if its attempt is due.
    pub(super) async fn set_up_other(
        self: &Arc<Self>,
        pod: &Arc<Pod>,
        volume: &core::Volume,
    ) -> Attempt {
        let name = &volume.name;
        let before = match self.begin_attempt(&pod.uid(), name) {
            Ok(before) => before,
            Err(not_due) => return not_due,
        };
        match (self.find_source(pod, volume, before.as_ref()).await, before) {
            (Err(failed), _) => failed,
            (Ok(Source::Nfs(..)), Some(mounted)) => Attempt::Done(mounted),
            (Ok(Source::Nfs(export, bound)), None) => {
                self.set_up_nfs(pod, name, export, bound).await
            }
            (Ok(Source::Local(bound)), before) => {
                self.set_up_local(pod, name, bound, before.is_none()).await
            }
            (Ok(Source::Csi(csi, bound)), before) => {
                self.set_up_csi(pod, name, *csi, bound, before).await
            }
        }
    }

    /// Begins an attempt at a volume. If it is not set up yet, what changes from now on lets the
    /// pod be synced again. Returns what is set up already.
    ///
    /// # Errors
    /// The outcome of an attempt that is not due yet after a failure.
    fn begin_attempt(&self, uid: &Uid, name: &str) -> Result<Option<Mounted>, Attempt> {
        let mut state = self.state.lock();
        let volume = state.volume(uid, name);
        let remaining = volume.backoff.remaining(self.clock.monotonic());
        if !remaining.is_zero() {
            return Err(match volume.mounted {
                None => Attempt::NotDue(remaining),
                Some(_) => Attempt::Kept,
            });
        }
        let mounted = volume.mounted.clone();
        state.pods.entry(uid.clone()).or_default().waits |= mounted.is_none();
        Ok(mounted)
    }

    /// Finds out what a volume of a claim, a driver or a server stands for: reads its claim and
    /// PersistentVolume, and checks that this node may have it.
    ///
    /// # Errors
    /// How the attempt ends: a pod keeps what is set up already while its claim cannot be read.
    async fn find_source(
        &self,
        pod: &Arc<Pod>,
        volume: &core::Volume,
        before: Option<&Mounted>,
    ) -> Result<Source, Attempt> {
        let name = &volume.name;
        let failed =
            |error| Attempt::Failed(Error::in_step("MountVolume.SetUp failed", name)(error));
        if let Some(source) = &volume.nfs {
            return Ok(Source::Nfs(Export::of_pod(source), None));
        }
        let Some(server) = &self.server else { return Err(failed(Error::NoServer)) };
        if let Some(source) = &volume.csi {
            return Ok(Source::Csi(Box::new(CsiVolume::inline(pod, name, source)), None));
        }
        let Some((claim, read_only)) = claim::claim_of(pod, volume) else {
            return Err(failed(Error::UnsupportedKind));
        };
        let bound = claim::bound(&server.client, pod, volume, &claim, read_only).await;
        let bound = bound.map_err(|error| match before {
            Some(_) => {
                log::warn!("pod {}: volume {name}: {}", pod.display_name(), chain(&error));
                Attempt::Kept
            }
            None => Attempt::Unprocessed(error),
        })?;
        if before.is_none() && !bound.is_for(&self.own.get()) {
            let step = match bound.is_block() {
                true => "MapVolume.NodeAffinity check failed",
                false => "MountVolume.NodeAffinity check failed",
            };
            let in_step = Error::in_step(step, bound.name());
            return Err(Attempt::Failed(in_step(Error::NodeAffinity)));
        }
        Ok(match (bound.spec().csi, Export::of_claim(&bound)) {
            (Some(source), _) => {
                Source::Csi(Box::new(CsiVolume::persistent(&bound, &source)), Some(bound))
            }
            (None, Some(export)) => Source::Nfs(export, Some(bound)),
            (None, None) => Source::Local(bound),
        })
    }

    /// Mounts a driver's volume. One that is mounted is published again if its driver asks for it, and
    /// expanded if its claim has grown.
    async fn set_up_csi(
        self: &Arc<Self>,
        pod: &Arc<Pod>,
        name: &str,
        csi: CsiVolume,
        bound: Option<Bound>,
        before: Option<Mounted>,
    ) -> Attempt {
        let is_published = before.is_some();
        if let Some(mounted) = before {
            let object = self.server.as_ref().map(|server| server.csi_drivers.get(&csi.driver));
            let republishes = matches!(object, Some(Ok(driver)) if driver.republishes());
            let is_refused = self.state.lock().not_expanded.contains(&csi.device());
            let is_due = !is_refused && bound.as_ref().is_some_and(expand::is_due);
            if !republishes && !is_due {
                return Attempt::Done(mounted);
            }
        }
        let held = self.locks.lock(&lock_name(&pod.uid(), name)).await;
        let device = csi.device();
        self.state.lock().volume(&pod.uid(), name).driven = Some(csi.of());
        let (inner, pod) = (self.clone(), pod.clone());
        let attempt = task::spawn(async move {
            let _held = held;
            let _device = inner.locks.lock(&device).await;
            inner.mount_csi(&pod, &csi, bound.as_ref(), is_published).await
        });
        match attempt.await {
            Ok(mounted) => Attempt::Done(mounted),
            Err(error) => Attempt::Failed(error),
        }
    }

    /// Sets up a folder or a device of this machine that a PersistentVolume names. `is_first`: it
    /// was not set up before, and is counted.
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
        let (folders, of) = (self.folders.clone(), pod.clone());
        let target = folders.volume(&pod.uid(), "local-volume", bound.name());
        let progress = Progress::default();
        let counted = progress.clone();
        let spec = bound.spec();
        let plugin = match (&spec.local, &spec.host_path) {
            (Some(_), _) => plain::LOCAL_PLUGIN,
            (None, Some(_)) => plain::HOST_PATH_PLUGIN,
            (None, None) => plain::NO_PLUGIN,
        };
        let operation = if bound.is_block() { "map_volume" } else { "volume_mount" };
        let set_up = task::blocking(move || {
            let _held = (held, of_all);
            set_up_local(&folders, &of, &bound, &counted)
        });
        let set_up = self.with_progress(pod, &target, &progress, set_up);
        let set_up = match is_first {
            true => self.counted(plugin, operation, false, set_up).await,
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
        bound: Option<Bound>,
    ) -> Attempt {
        let held = self.locks.lock(&lock_name(&pod.uid(), name)).await;
        let persistent = bound.as_ref().map(|bound| bound.name().to_owned());
        let folder = persistent.as_deref().unwrap_or(name);
        let in_step = Error::in_step("MountVolume.SetUp failed", folder);
        let path = self.folders.volume(&pod.uid(), "nfs", folder);
        let (read_only, target) = (export.read_only, path.clone());
        let mounted = task::blocking(move || {
            let _held = held;
            export.mount(&target)
        });
        match self.counted(nfs::PLUGIN, "volume_mount", false, mounted).await {
            Ok(()) => {
                let group = bound.as_ref().and_then(Bound::group);
                Attempt::Done(Mounted { path, read_only, is_device: false, group, persistent })
            }
            Err(error) => Attempt::Failed(in_step(error)),
        }
    }

    /// Runs an operation on a volume of a plugin to its end, and counts it. `migrated`: the volume
    /// is one of an in-tree plugin.
    pub(super) async fn counted<T>(
        &self,
        plugin: &str,
        operation: &'static str,
        migrated: bool,
        run: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let begin = self.clock.monotonic();
        let outcome = run.await;
        let took = self.clock.monotonic().saturating_sub(begin);
        metrics::observe_storage(plugin, operation, outcome.is_ok(), migrated, took);
        outcome
    }

    /// The time, as objects have it.
    pub(super) fn now(&self) -> String {
        self.clock.now().to_jiff().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }
}

/// Makes a folder or a device of this machine usable for a pod. Blocks.
fn set_up_local(
    folders: &Folders,
    pod: &Pod,
    bound: &Bound,
    progress: &Progress,
) -> Result<Mounted, Error> {
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
            let own = fs_group(pod);
            let group = own.map(|group| (group, policy == Some("OnRootMismatch")));
            let pods = folders.pods();
            let kept =
                local::mount(&spec, &source.path, &target, bound.read_only, group, &pods, progress);
            if let (Some(owner), Some(own)) = (kept.map_err(in_step)?, own) {
                let message = format!(
                    "The requested fsGroup is {own}, but the volume {name} has GID {owner}. The \
                     volume may not be shareable."
                );
                events::warning(pod, None, "AlreadyMountedVolume", message);
            }
            Ok(mounted(target))
        }
        (None, Some(source)) if !bound.is_block() => {
            plain::check_host_path(source).map_err(in_step)?;
            Ok(mounted(PathBuf::from(&source.path)))
        }
        _ => Err(in_step(Error::UnsupportedKind)),
    }
}
