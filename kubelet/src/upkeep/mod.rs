//! The upkeep of the node: garbage collection, rotation of logs, cgroups of classes and evictions,
//! each by its own period.
//! Upstream: `Kubelet.StartGarbageCollection`, `initializeRuntimeDependentModules`.

mod error;

use std::sync::Arc;
use std::time::Duration;

use futures_lite::FutureExt;
use kube_controller_manager::objects::{Quantity, Timestamp};
use kube_controller_manager::task::{self, StopToken};

pub use self::error::Error;

use crate::causes::chain;
use crate::events;
use crate::eviction::{
    self, Candidate, Explanation, Observations, Signal, Statements, Threshold, Watch,
};
use crate::images;
use crate::images::gc::{self, ImageGc};
use crate::kubelet::{EvictionCause, Kubelet};
use crate::kuberuntime::garbage;
use crate::kuberuntime::logs::{self, Rotation};
use crate::metrics;
use crate::node::pressure::NodePressure;
use crate::options::configuration::{Configuration, default_eviction_hard};
use crate::pod::{Pod, PodExt};
use crate::stats::{PodStats, Summary};

/// How often the sources are asked whether they have been read.
const SOURCE_PERIOD: Duration = Duration::from_secs(1);
/// Upstream: `ContainerGCPeriod`.
const CONTAINER_PERIOD: Duration = Duration::from_secs(60);
/// Upstream: `periodicQOSCgroupUpdateInterval`.
const CGROUP_PERIOD: Duration = Duration::from_secs(60);
/// Upstream: `evictionMonitoringPeriod`.
const EVICTION_PERIOD: Duration = Duration::from_secs(10);
/// How long an evicted pod is waited for once its containers have ended. Upstream:
/// `podCleanupTimeout`.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(30);
/// In seconds. Upstream: `immediateEvictionGracePeriodSeconds`.
const IMMEDIATE_GRACE: i64 = 1;
/// Upstream: `ImageGCPeriod`.
const IMAGE_PERIOD: Duration = Duration::from_secs(300);

/// Reads from the configuration when unused images are removed.
///
/// # Errors
/// One that names the field and flag.
pub fn image_policy(configuration: &Configuration) -> Result<gc::Policy, Error> {
    let percent = |value: i32, field| {
        let valid = u64::try_from(value).ok().filter(|value| *value <= 100);
        valid.ok_or(Error::Percentage { field, value })
    };
    let high = configuration.image_gc_high_threshold_percent;
    let high = percent(high, "imageGCHighThresholdPercent (--image-gc-high-threshold)")?;
    let low = configuration.image_gc_low_threshold_percent;
    let low = percent(low, "imageGCLowThresholdPercent (--image-gc-low-threshold)")?;
    if low >= high {
        return Err(Error::ImageThresholds { low, high });
    }
    let min_age = configuration.image_minimum_gc_age.0;
    let max_age = configuration.image_maximum_gc_age.0;
    if !max_age.is_zero() && max_age <= min_age {
        return Err(Error::ImageAges { min: min_age, max: max_age });
    }
    Ok(gc::Policy { high_percent: high, low_percent: low, min_age, max_age })
}

/// Reads from the configuration when logs are rotated; `None`: never, as the size is negative.
///
/// # Errors
/// One that names the field.
pub fn log_policy(configuration: &Configuration) -> Result<Option<logs::Policy>, Error> {
    let size = &configuration.container_log_max_size;
    let bytes = size.parse::<Quantity>();
    let bytes = bytes.map_err(|source| Error::LogSize { text: size.clone(), source })?;
    let at_least = |value: i32, least: i32, field| {
        let valid = usize::try_from(value).ok().filter(|_| value >= least);
        valid.ok_or(Error::TooSmall { field, value, least })
    };
    let files = configuration.container_log_max_files;
    let max_files = at_least(files, 2, "containerLogMaxFiles (--container-log-max-files)")?;
    let workers = configuration.container_log_max_workers;
    let workers = at_least(workers, 1, "containerLogMaxWorkers")?;
    let period = configuration.container_log_monitor_interval.0;
    if period < Duration::from_secs(3) {
        return Err(Error::LogPeriod(period));
    }
    let max_bytes = u64::try_from(bytes.value()).ok();
    Ok(max_bytes.map(|max_bytes| logs::Policy { max_bytes, max_files, period, workers }))
}

/// All of the upkeep.
pub struct Upkeep {
    pub kubelet: Arc<Kubelet>,
    pub dead: garbage::Policy,
    pub images: Arc<ImageGc>,
    /// No image ever goes.
    pub keeps_images: bool,
    pub rotation: Option<Rotation>,
    pub evictions: Evictions,
}

/// When pods go for the node's sake.
pub struct Evictions {
    pub watch: parking_lot::Mutex<Watch>,
    /// What the watch shows, for others.
    pub pressure: NodePressure,
    /// `evictionMaxPodGracePeriod`, in seconds.
    pub max_grace: i64,
    /// `volumeStatsAggPeriod`: how often the usage of volumes is compared with their limits; zero:
    /// never.
    pub volume_period: Duration,
    /// A folder on the disk of images, once it is known.
    pub image_folder: parking_lot::Mutex<Option<String>>,
}

/// Reads from the configuration when pods are evicted. `limits_pods`: whether all pods together
/// have a limit of memory.
///
/// # Errors
/// One that names the field or the signal.
pub fn evictions(
    configuration: &Configuration,
    limits_pods: bool,
    pressure: NodePressure,
) -> Result<Evictions, Error> {
    let hard = configuration.eviction_hard.clone();
    let mut hard = hard.map_or_else(default_eviction_hard, |thresholds| thresholds.0);
    if configuration.merge_default_eviction_settings {
        for (signal, value) in default_eviction_hard() {
            hard.entry(signal).or_insert(value);
        }
    }
    let statements = Statements {
        hard: &hard,
        soft: &configuration.eviction_soft.0,
        soft_grace: &configuration.eviction_soft_grace_period.0,
        min_reclaim: &configuration.eviction_minimum_reclaim.0,
    };
    let thresholds = eviction::thresholds(statements, limits_pods).map_err(Error::Eviction)?;
    let max_grace = configuration.eviction_max_pod_grace_period;
    if max_grace < 0 {
        return Err(Error::MaxGrace(max_grace));
    }
    Ok(Evictions {
        watch: Watch::new(thresholds).into(),
        pressure,
        max_grace: max_grace.into(),
        volume_period: match configuration.local_storage_capacity_isolation {
            false => Duration::ZERO,
            true => configuration.volume_stats_agg_period.0,
        },
        image_folder: parking_lot::Mutex::default(),
    })
}

impl Upkeep {
    /// Runs all of the upkeep until stopped.
    pub async fn run(self, stop: StopToken) {
        let rotation = async {
            match &self.rotation {
                Some(rotation) => rotation.run().await,
                None => std::future::pending().await,
            }
        };
        let collection = self.containers().or(self.images()).or(self.evictions());
        stop.unless_stopped(collection.or(rotation).or(self.cgroups())).await;
    }

    /// Waits until all sources have been read: before, no pod is known to be gone.
    async fn wait_for_sources(&self) {
        let clock = &self.kubelet.manager().clock;
        while !self.kubelet.has_seen_all() {
            clock.sleep(SOURCE_PERIOD).await;
        }
    }

    /// Removes what no pod needs, periodically: containers that have ended, sandboxes and logs.
    async fn containers(&self) {
        let manager = self.kubelet.manager();
        let mut has_failed = false;
        self.wait_for_sources().await;
        loop {
            let is_gone = |uid: &str| self.kubelet.is_gone(uid);
            let now = nanos(manager.clock.now());
            let (runtime, folders) = (&manager.runtime, &manager.folders);
            match garbage::collect(runtime, folders, self.dead, now, &is_gone).await {
                Err(error) => {
                    let error = chain(&error);
                    log::error!("Container garbage collection failed: {error}");
                    events::node_warning(&manager.node.name, "ContainerGCFailed", error);
                    has_failed = true;
                }
                Ok(()) if has_failed => {
                    log::info!("Container garbage collection succeeded");
                    has_failed = false;
                }
                Ok(()) => log::debug!("Container garbage collection succeeded"),
            }
            manager.clock.sleep(CONTAINER_PERIOD).await;
        }
    }

    /// Keeps the shares of classes, and removes cgroups of pods that are gone.
    /// Upstream: `UpdateCgroups`, `cleanupOrphanedPodCgroups`.
    async fn cgroups(&self) {
        let manager = self.kubelet.manager();
        let Some(cgroups) = &manager.cgroups else { return std::future::pending().await };
        self.wait_for_sources().await;
        loop {
            let updated = manager.update_classes(&|| self.kubelet.active_pods()).await;
            let shared = cgroups.clone();
            let pods = task::blocking(move || shared.pods()).await;
            if let Err(error) = updated {
                log::error!("Failed to update QoS cgroup configuration: {error}");
            }
            for uid in pods.iter().filter(|uid| self.kubelet.is_gone(uid)) {
                match manager.remove_cgroup(uid).await {
                    Ok(()) => log::info!("removed the cgroup of the former pod {uid}"),
                    Err(error) => log::error!("{}", chain(&error)),
                }
            }
            manager.clock.sleep(CGROUP_PERIOD).await;
        }
    }

    /// Evicts pods periodically, and at once again when an evicted pod has gone. Upstream:
    /// `managerImpl.Start`.
    async fn evictions(&self) {
        let clock = &self.kubelet.manager().clock;
        let mut measured = None;
        loop {
            match self.evict(&mut measured).await {
                Ok(evicted) if !evicted.is_empty() => {
                    self.wait_for_cleanup(&evicted).await;
                    continue;
                }
                Ok(_) => {}
                Err(error) => {
                    let error = chain(&error);
                    log::error!("Eviction manager: failed to get summary stats: {error}");
                }
            }
            clock.sleep(EVICTION_PERIOD).await;
        }
    }

    /// Waits until evicted pods hold nothing any more, but not for long. Upstream:
    /// `waitForPodsCleanup`.
    async fn wait_for_cleanup(&self, evicted: &[Arc<Pod>]) {
        let names: Vec<String> = evicted.iter().map(|pod| pod.display_name()).collect();
        let names = names.join(", ");
        log::info!("Eviction manager: pods evicted, waiting for pod to be cleaned up: {names}");
        let finished = async {
            for pod in evicted {
                self.kubelet.finished(&pod.uid()).await;
            }
            log::info!("Eviction manager: pods successfully cleaned up: {names}");
        };
        let late = async {
            self.kubelet.manager().clock.sleep(CLEANUP_TIMEOUT).await;
            log::warn!("Eviction manager: timed out waiting for pods to be cleaned up: {names}");
        };
        finished.or(late).await;
    }

    /// Does one round of evictions: at most one pod goes for a resource of the node. Returns the
    /// pods for which the next round has to wait: what they hold counts as used until then.
    /// `measured`: when local limits were compared last. Upstream: `synchronize`.
    async fn evict(&self, measured: &mut Option<Duration>) -> Result<Vec<Arc<Pod>>, Error> {
        let now = self.kubelet.manager().clock.monotonic();
        let has_thresholds = !self.evictions.watch.lock().thresholds().is_empty();
        // First, so that the node's conditions do not depend on what happens to pods after it.
        let noted = match has_thresholds {
            false => Ok(None),
            true => self.note_pressure(now).await.map(Some),
        };
        let pods = self.kubelet.active_pods();
        let period = self.evictions.volume_period;
        let is_due = measured.is_none_or(|last| now.saturating_sub(last) >= period);
        let is_limited = |pod: &Arc<Pod>| eviction::has_local_limits(pod);
        if is_due && !period.is_zero() && pods.iter().any(is_limited) {
            *measured = Some(now);
            let evicted = self.evict_by_limits(&pods).await?;
            if !evicted.is_empty() {
                // A failed observation is an error of the next round, which follows at once.
                return Ok(evicted);
            }
        }
        match noted? {
            Some(noted) => self.relieve(noted, pods).await,
            None => Ok(Vec::new()),
        }
    }

    /// Frees the resource of the most urgent threshold that is met: removes what is not in use, or
    /// else evicts a pod. Returns the pod for which the next round has to wait.
    async fn relieve(&self, noted: Noted, pods: Vec<Arc<Pod>>) -> Result<Vec<Arc<Pod>>, Error> {
        let Some(&first) = noted.met.first() else { return Ok(Vec::new()) };
        let resource = first.signal.resource();
        let manager = self.kubelet.manager();
        log::warn!("Eviction manager: attempting to reclaim {resource}");
        let message = format!("Attempting to reclaim {resource}");
        events::node_warning(&manager.node.name, "EvictionThresholdMet", message);
        if first.signal.reclaims_images(noted.has_image_disk) && self.reclaim().await {
            log::info!(
                "Eviction manager: able to reduce resource pressure without evicting pods: \
                 {resource}"
            );
            return Ok(Vec::new());
        }
        log::warn!("Eviction manager: must evict pod(s) to reclaim {resource}");
        // To rank pods by memory, files need not be measured.
        let usage = self.kubelet.usage(resource == "memory").await.map_err(Error::Usage)?;
        let mut candidates: Vec<Candidate<'_>> =
            pods.into_iter().map(|pod| Candidate { stats: stats_of(&usage, &pod), pod }).collect();
        eviction::rank(&mut candidates, first.signal, noted.has_image_disk);
        let age = manager.clock.monotonic().saturating_sub(noted.at).as_secs_f64();
        for threshold in &noted.met {
            metrics::EVICTION_STATS_AGE.with_label_values(&[threshold.signal.name()]).observe(age);
        }
        for candidate in candidates {
            if self.evict_candidate(&candidate, first, &noted).await {
                return Ok(vec![candidate.pod]);
            }
        }
        log::warn!("Eviction manager: unable to evict any pods from the node");
        Ok(Vec::new())
    }

    /// Evicts a pod for a threshold that is met, and returns true. Of one that was evicted before,
    /// only the grace may become shorter: its event and status already say why it ends. See
    /// [`evict_pod`](Self::evict_pod) for the pods that stay.
    async fn evict_candidate(
        &self,
        candidate: &Candidate<'_>,
        threshold: Threshold,
        noted: &Noted,
    ) -> bool {
        let (pod, signal) = (&candidate.pod, threshold.signal);
        let own = pod.spec().termination_grace_period_seconds;
        let max = self.evictions.max_grace;
        let grace = match threshold.grace {
            None => IMMEDIATE_GRACE,
            Some(_) => own.map_or(max, |own| own.min(max)),
        };
        if self.kubelet.is_evicted(&pod.uid()) && !eviction::is_critical(pod) {
            self.kubelet.limit_grace(&pod.uid(), grace);
            return true;
        }
        let Noted { met, observations, .. } = noted;
        let why = eviction::explain(candidate, met, signal.resource(), observations);
        self.evict_pod(pod, grace, signal.name(), why, EvictionCause::NodePressure).await
    }

    /// Observes the signals, and notes in the node's conditions which thresholds are crossed.
    async fn note_pressure(&self, now: Duration) -> Result<Noted, Error> {
        let (observations, has_image_disk) = self.observe().await?;
        let mut watch = self.evictions.watch.lock();
        let met = watch.observe(&observations, now);
        self.evictions.pressure.observe(watch.crossed().map(Signal::pressure), now);
        Ok(Noted { at: now, observations, has_image_disk, met })
    }

    /// Evicts the pods that exceed their own limits, and returns those that have to end: critical
    /// ones stay.
    async fn evict_by_limits(&self, pods: &[Arc<Pod>]) -> Result<Vec<Arc<Pod>>, Error> {
        let usage = self.kubelet.usage(false).await.map_err(Error::Usage)?;
        let mut evicted = Vec::new();
        for pod in pods.iter().filter(|pod| !self.kubelet.is_evicted(&pod.uid())) {
            let exceeded =
                stats_of(&usage, pod).and_then(|stats| eviction::exceeded_limit(pod, stats));
            let Some((signal, message)) = exceeded else { continue };
            let why = Explanation { message, ..Default::default() };
            if self.evict_pod(pod, IMMEDIATE_GRACE, signal, why, EvictionCause::OwnLimit).await {
                evicted.push(pod.clone());
            }
        }
        Ok(evicted)
    }

    /// Evicts a pod with an event, and returns true once its containers have ended or are late. A
    /// pod that is critical or has not begun stays, and the result is false.
    async fn evict_pod(
        &self,
        pod: &Arc<Pod>,
        grace: i64,
        signal: &str,
        Explanation { message, annotations }: Explanation,
        cause: EvictionCause,
    ) -> bool {
        let name = pod.display_name();
        if eviction::is_critical(pod) {
            log::error!("Eviction manager: cannot evict a critical pod {name}: {message}");
            return false;
        }
        // Room is being made for it: it holds nothing yet.
        if !self.kubelet.has_worker(&pod.uid()) {
            return false;
        }
        events::annotated_warning(pod, eviction::REASON, &message, annotations);
        self.kubelet.evict(pod, grace, eviction::REASON, &message, cause);
        match self.kubelet.ended_in_time(pod, grace).await {
            true => log::info!("Eviction manager: pod is evicted successfully: {name}"),
            false => log::error!("Eviction manager: pod failed to evict: {name}"),
        }
        metrics::EVICTIONS.with_label_values(&[signal]).inc();
        true
    }

    /// Removes containers that have ended, and images that no container uses. Returns whether no
    /// threshold is crossed any more. Upstream: `reclaimNodeLevelResources`.
    async fn reclaim(&self) -> bool {
        let manager = self.kubelet.manager();
        // Also those of pods that a source still has, once they have ended.
        let is_ended = |uid: &str| self.kubelet.is_ended(uid);
        let now = nanos(manager.clock.now());
        let (runtime, folders) = (&manager.runtime, &manager.folders);
        if let Err(error) = garbage::collect(runtime, folders, self.dead, now, &is_ended).await {
            log::warn!("Eviction manager: unexpected error when removing containers: {error}");
        }
        if let Err(error) = self.images.remove_unused().await {
            log::warn!(
                "Eviction manager: unexpected error when removing images: {}",
                chain(&error)
            );
        }
        let observations = match self.observe().await {
            Ok((observations, _)) => observations,
            // As upstream: then a pod is evicted.
            Err(error) => {
                log::warn!("Eviction manager: unexpected error: {}", chain(&error));
                return false;
            }
        };
        let watch = self.evictions.watch.lock();
        !eviction::unresolved(watch.thresholds(), &observations)
    }

    /// Reads what the signals show, and whether images have a disk of their own. The runtime is
    /// asked for the folder of images once.
    async fn observe(&self) -> Result<(Observations, bool), Error> {
        let manager = self.kubelet.manager();
        let known = self.evictions.image_folder.lock().clone();
        let images = match known {
            Some(folder) => folder,
            None => manager.images.usage().await.map_err(Error::Images)?.mount_point,
        };
        *self.evictions.image_folder.lock() = Some(images.clone());
        let root = manager.folders.root.clone();
        let memory_bytes = manager.node.memory_bytes.unsigned_abs();
        let all_pods = manager.cgroups.as_ref().map(|cgroups| cgroups.all_pods());
        let observed = task::blocking(move || {
            eviction::observe(&root, &images, memory_bytes, all_pods.as_deref())
        });
        observed.await.map_err(Error::Eviction)
    }

    /// Removes images periodically, when the disk is full or they are old; never with
    /// `keeps_images`.
    async fn images(&self) {
        if self.keeps_images {
            log::info!(
                "ImageGCHighThresholdPercent is set 100 and ImageMaximumGCAge is 0, Disable image GC"
            );
            return std::future::pending().await;
        }
        let clock = &self.kubelet.manager().clock;
        let mut has_failed = false;
        loop {
            match self.images.collect().await {
                Err(error) => {
                    self.report_image_failure(&error, has_failed);
                    has_failed = true;
                }
                Ok(()) if has_failed => {
                    log::info!("Image garbage collection succeeded");
                    has_failed = false;
                }
                Ok(()) => log::debug!("Image garbage collection succeeded"),
            }
            clock.sleep(IMAGE_PERIOD).await;
        }
    }

    /// Logs that images could not be removed, and records it as events of the node.
    /// `is_repeated`: the attempt before has failed too.
    fn report_image_failure(&self, error: &images::Error, is_repeated: bool) {
        let text = chain(error);
        for reason in image_event_reasons(error, is_repeated) {
            events::node_warning(&self.kubelet.manager().node.name, reason, &text);
        }
        match is_repeated {
            true => log::error!("Image garbage collection failed multiple times in a row: {text}"),
            false => log::error!("Image garbage collection failed once: {text}"),
        }
    }
}

/// Lists the reasons of the node's events about a failure to remove images. The first failure has
/// none, unless it is about the disk itself.
fn image_event_reasons(
    error: &images::Error,
    is_repeated: bool,
) -> impl Iterator<Item = &'static str> {
    let of_disk = match error {
        images::Error::NoCapacity => Some("InvalidDiskCapacity"),
        images::Error::NotEnough { .. } => Some("FreeDiskSpaceFailed"),
        _ => None,
    };
    of_disk.into_iter().chain(is_repeated.then_some("ImageGCFailed"))
}

/// Returns what a pod uses, if that is known.
fn stats_of<'a>(usage: &'a Summary, pod: &Pod) -> Option<&'a PodStats> {
    usage.pods.iter().find(|stats| *stats.pod_ref.uid == *pod.uid())
}

/// What one round of evictions has observed.
struct Noted {
    /// When, by the monotonic clock.
    at: Duration,
    observations: Observations,
    /// Whether images have a disk of their own.
    has_image_disk: bool,
    /// The thresholds that count now, the most urgent first.
    met: Vec<Threshold>,
}

fn nanos(time: Timestamp) -> i64 {
    time.to_jiff().as_microsecond().saturating_mul(1000)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn configuration(fields: Value) -> Configuration {
        serde_json::from_value(fields).expect("a configuration")
    }

    #[test]
    fn default_thresholds_are_valid() {
        let pressure = NodePressure::new(Duration::ZERO);
        let evictions = evictions(&Configuration::default(), false, pressure);
        let count = evictions.map(|evictions| evictions.watch.lock().thresholds().len());
        assert_eq!(count.ok(), Some(5));
    }

    #[test]
    fn thresholds_of_images_are_checked() {
        for (fields, expected) in [
            (json!({}), Ok((85, 80, 120, 0))),
            (
                json!({"imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 0,
                       "imageMinimumGCAge": "0s", "imageMaximumGCAge": "1h"}),
                Ok((100, 0, 0, 3600)),
            ),
            (
                json!({"imageGCHighThresholdPercent": 101}),
                Err("imageGCHighThresholdPercent (--image-gc-high-threshold) 101 must be between \
                     0 and 100, inclusive"),
            ),
            (
                json!({"imageGCHighThresholdPercent": 80}),
                Err("imageGCLowThresholdPercent (--image-gc-low-threshold) 80 must be less than \
                     imageGCHighThresholdPercent (--image-gc-high-threshold) 80"),
            ),
            (
                json!({"imageMaximumGCAge": "2m"}),
                Err("imageMaximumGCAge 120s must be greater than imageMinimumGCAge 120s"),
            ),
        ] {
            let policy = image_policy(&configuration(fields.clone()));
            let policy = policy.map(|policy| {
                let (min, max) = (policy.min_age.as_secs(), policy.max_age.as_secs());
                (policy.high_percent, policy.low_percent, min, max)
            });
            let policy = policy.map_err(|error| chain(&error));
            assert_eq!(policy, expected.map_err(str::to_owned), "{fields}");
        }
    }

    #[test]
    fn failures_of_the_collection_of_images_are_events_from_the_second_on() {
        let disk = gc::Disk { capacity: 100, available: 5 };
        for (error, first, next) in [
            (images::Error::NoFilesystem, &[][..], &["ImageGCFailed"][..]),
            (
                images::Error::NoCapacity,
                &["InvalidDiskCapacity"],
                &["InvalidDiskCapacity", "ImageGCFailed"],
            ),
            (
                images::Error::NotEnough { disk, freed_bytes: 1 },
                &["FreeDiskSpaceFailed"],
                &["FreeDiskSpaceFailed", "ImageGCFailed"],
            ),
        ] {
            let reasons =
                |is_repeated| image_event_reasons(&error, is_repeated).collect::<Vec<_>>();
            assert_eq!(reasons(false), first, "{error}");
            assert_eq!(reasons(true), next, "{error}");
        }
    }

    #[test]
    fn limits_of_logs_are_checked() {
        for (fields, expected) in [
            (json!({}), Ok(Some(10 << 20))),
            (json!({"containerLogMaxSize": "1k"}), Ok(Some(1000))),
            (json!({"containerLogMaxSize": "-1"}), Ok(None)),
            (
                json!({"containerLogMaxFiles": 1}),
                Err("containerLogMaxFiles (--container-log-max-files) 1 must be at least 2"),
            ),
            (
                json!({"containerLogMaxWorkers": 0}),
                Err("containerLogMaxWorkers 0 must be at least 1"),
            ),
            (
                json!({"containerLogMonitorInterval": "2s"}),
                Err("containerLogMonitorInterval 2s must be at least 3s"),
            ),
        ] {
            let policy = log_policy(&configuration(fields.clone()));
            let bytes = policy.map(|policy| policy.map(|policy| policy.max_bytes));
            let bytes = bytes.map_err(|error| chain(&error));
            assert_eq!(bytes, expected.map_err(str::to_owned), "{fields}");
        }
        let fault = log_policy(&configuration(json!({"containerLogMaxSize": "x"}))).err();
        assert!(fault.is_some_and(|fault| fault.to_string().contains("containerLogMaxSize")));
    }
}
