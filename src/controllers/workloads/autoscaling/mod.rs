//! Scales objects with the subresource `scale` by the metrics of their pods and by other metrics.
//! Upstream: `pkg/controller/podautoscaler`.

mod calculator;
mod decision;
mod metrics_api;
mod monitor;
mod normalize;
mod reconcile;
mod scaling_mode;
mod selectors;
mod sources;
mod status;

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use self::calculator::{Startup, Tolerances};
use self::metrics_api::MetricsApi;
use self::monitor::{AUTOSCALERS, STALE_SYNC_SKIPS};
use self::normalize::History;
use self::selectors::Selectors;
use crate::cache::Lister;
use crate::client::{Client, Scales};
use crate::clock::SharedClock;
use crate::controllers::runner::Change;
use crate::controllers::workloads::consistency::Consistency;
use crate::controllers::workloads::owner_records::OwnerRecord;
use crate::controllers::{Controller, Next, Queue, QueuePolicy, SyncResult};
use crate::events::Recorder;
use crate::objects::{HorizontalPodAutoscaler, ObjectKey, Pod};

/// Sets up the controller `horizontal-pod-autoscaler-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    monitor::register();
    let (autoscalers, pods) = (c.lister::<HorizontalPodAutoscaler>(), c.lister::<Pod>());
    let this = Arc::new(Autoscaling::new(c, autoscalers.clone(), pods));
    let queue = c.queue(QueuePolicy::default());
    let known = this.clone();
    c.watch(&autoscalers, &queue, move |change, queue| known.handle_change(&change, queue));
    c.sync(queue, &this, Autoscaling::sync);
    Ok(())
}

/// The flags and the gates.
struct Settings {
    period: Duration,
    downscale_stabilization: Duration,
    tolerance: f64,
    startup: Startup,
    configurable_tolerance: bool,
    scale_to_zero: bool,
    /// Whether statuses name the generation of the spec.
    observes_generation: bool,
    pod_level_resources: bool,
}

impl Settings {
    /// Reads the settings from the flags and the feature gates.
    fn new(c: &Controller) -> Settings {
        let o = c.options();
        Settings {
            period: o.horizontal_pod_autoscaler_sync_period,
            downscale_stabilization: o.horizontal_pod_autoscaler_downscale_stabilization,
            tolerance: o.horizontal_pod_autoscaler_tolerance,
            startup: Startup {
                cpu_initialization: o.horizontal_pod_autoscaler_cpu_initialization_period,
                readiness_delay: o.horizontal_pod_autoscaler_initial_readiness_delay,
            },
            configurable_tolerance: c.feature("HPAConfigurableTolerance"),
            scale_to_zero: c.feature("HPAScaleToZero"),
            observes_generation: c.feature("HPAGeneration"),
            pod_level_resources: c.feature("PodLevelResources"),
        }
    }

    /// Returns the tolerances of `autoscaler`, where it has none the flag's.
    /// Upstream: `tolerancesForHpa`.
    fn tolerances(&self, autoscaler: &HorizontalPodAutoscaler) -> Tolerances {
        let mut tolerances = Tolerances { up: self.tolerance, down: self.tolerance };
        if self.configurable_tolerance
            && let Some(behavior) = &autoscaler.spec.behavior
        {
            if let Some(tolerance) = behavior.scale_up.tolerance {
                tolerances.up = tolerance.to_f64();
            }
            if let Some(tolerance) = behavior.scale_down.tolerance {
                tolerances.down = tolerance.to_f64();
            }
        }
        tolerances
    }
}

struct Autoscaling {
    client: Client,
    recorder: Recorder,
    clock: SharedClock,
    autoscalers: Lister<HorizontalPodAutoscaler>,
    pods: Lister<Pod>,
    scales: Scales,
    api: MetricsApi,
    selectors: Selectors,
    histories: Mutex<HashMap<ObjectKey, History>>,
    /// The statuses that were written and that the cache may not have yet.
    consistency: Consistency,
    settings: Settings,
}

impl Autoscaling {
    /// Makes the controller's state from the flags and the feature gates.
    fn new(
        c: &Controller,
        autoscalers: Lister<HorizontalPodAutoscaler>,
        pods: Lister<Pod>,
    ) -> Autoscaling {
        let consistency = match c.feature("StaleControllerConsistencyHPA") {
            true => Consistency::default().tracking(&autoscalers),
            false => Consistency::default(),
        };
        let (settings, scales) = (Settings::new(c), Scales::new(c.client()));
        Autoscaling {
            api: MetricsApi {
                client: c.client(),
                scales: scales.clone(),
                clock: c.clock(),
                period: settings.period,
                custom_version: Mutex::default(),
            },
            client: c.client(),
            recorder: c.recorder(),
            clock: c.clock(),
            autoscalers,
            pods,
            scales,
            selectors: Selectors::default(),
            histories: Mutex::default(),
            consistency,
            settings,
        }
    }

    /// Queues an autoscaler that is new or whose spec has changed, and counts those that exist.
    fn handle_change(&self, change: &Change<'_, HorizontalPodAutoscaler>, queue: &Queue) {
        let key = change.object().meta.key();
        if let Change::Deleted(_) = change {
            self.selectors.forget(&key);
            AUTOSCALERS.dec();
            // Each key is queued for its next period; that sync removes the records.
            return;
        }
        let is_new = self.selectors.register(&key);
        if is_new {
            AUTOSCALERS.inc();
        }
        // Updates of the status alone queue nothing: most are our own writes.
        if is_new || matches!(change, Change::Updated { old, new } if old.spec != new.spec) {
            queue.add(key);
        }
    }

    /// Reconciles an autoscaler, and comes back after the period in any case while it exists.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        self.consistency.start_sync(&key, &STALE_SYNC_SKIPS)?;
        let Some(autoscaler) = self.autoscalers.get(&key) else {
            self.consistency.forget(&key, None);
            self.histories.lock().remove(&key);
            return Ok(Next::Done);
        };
        if let Err(error) = self.reconcile(&autoscaler, &key).await {
            log::error!("horizontal-pod-autoscaler-controller: {key}: {error}");
        }
        // A failure waits for the next period too.
        Ok(Next::After(self.settings.period))
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;
    use serde_json::json;

    use super::*;
    use crate::cache::{Deleted, Indexer};
    use crate::clock::FakeClock;
    use crate::controllers::{ControllerContext, Error, Profile};
    use crate::metrics;
    use crate::objects::{Resource, Timestamp, Uid};
    use crate::options::{Options, Release};

    pub(super) const BOTH: [Release; 2] = [Release::V1_36, Release::V1_37];

    /// The controller with the default gates of a release.
    pub(super) struct Fixture {
        pub this: Arc<Autoscaling>,
        pub autoscalers: Arc<Indexer<HorizontalPodAutoscaler>>,
        pub pods: Arc<Indexer<Pod>>,
        queue: Queue,
    }

    impl Fixture {
        pub fn new(release: Release) -> Fixture {
            let clock = FakeClock::new(Timestamp::from_secs(0));
            let mut options = Options::default();
            options.follow(release).expect("no gate is given");
            let context = ControllerContext::for_test(options, clock.clone());
            let c = Controller::new(Profile::new("test-autoscaling"), &context).unwrap();
            let (autoscalers, pods) = (Arc::new(Indexer::new()), Arc::new(Indexer::new()));
            let (known, selected) = (Lister::new(autoscalers.clone()), Lister::new(pods.clone()));
            let this = Arc::new(Autoscaling::new(&c, known, selected));
            Fixture { this, autoscalers, pods, queue: Queue::for_test(clock) }
        }

        /// Whether this change queues the autoscaler, so that it does not wait for the period.
        fn queues(&self, change: Change<'_, HorizontalPodAutoscaler>) -> bool {
            self.this.handle_change(&change, &self.queue);
            !self.queue.drain().is_empty()
        }
    }

    /// Pull requests 139648 and 138228.
    #[test]
    fn zero_replicas_and_generations_are_for_1_37_by_default() {
        for (release, is_newer) in [(Release::V1_36, false), (Release::V1_37, true)] {
            let fixture = Fixture::new(release);
            let Settings { scale_to_zero, observes_generation, .. } = fixture.this.settings;
            assert_eq!([scale_to_zero, observes_generation], [is_newer; 2], "{release}");
        }
    }

    /// Pull request 138294. Here 1.36 has it too: docs/differences.md.
    #[test]
    fn new_and_changed_autoscalers_do_not_wait_in_either_release() {
        let autoscaler = |generation: i64, max: i32, replicas: i32| {
            let metadata = json!({ "namespace": "ns", "name": "web", "generation": generation });
            let autoscaler = json!({
                "metadata": metadata, "spec": { "maxReplicas": max },
                "status": { "currentReplicas": replicas },
            });
            let autoscaler: HorizontalPodAutoscaler = serde_json::from_value(autoscaler).unwrap();
            Arc::new(autoscaler)
        };
        let (first, scaled, changed) =
            (autoscaler(1, 5, 0), autoscaler(1, 5, 3), autoscaler(2, 6, 3));
        for release in BOTH {
            let fixture = Fixture::new(release);
            for (change, is_queued) in [
                (Change::Added { new: &first, initial: true }, true),
                (Change::Updated { old: &first, new: &scaled }, false),
                (Change::Resync { object: &scaled }, false),
                (Change::Updated { old: &scaled, new: &changed }, true),
                (Change::Deleted(&Deleted::Known(changed.clone())), false),
                (Change::Added { new: &first, initial: false }, true),
            ] {
                let generation = change.object().meta.generation;
                assert_eq!(fixture.queues(change), is_queued, "{release} {generation}");
            }
        }
    }

    /// Pull request 139025: since 1.37 a sync waits until the cache has the last status.
    #[test]
    fn skipped_syncs_are_counted_since_1_37() {
        const NAME: &str = "horizontal_pod_autoscaler_controller_stale_sync_skips_total";
        let counted =
            format!("{NAME}{{group=\"autoscaling\",resource=\"horizontalpodautoscalers\"}} 1\n");
        for (release, waits) in [(Release::V1_36, false), (Release::V1_37, true)] {
            let Fixture { this, autoscalers, .. } = Fixture::new(release);
            let (key, uid) = (ObjectKey::new("ns", "web"), Uid::new("u"));
            autoscalers.set_seen_version(5);
            this.consistency.record_write(&key, &uid, &HorizontalPodAutoscaler::RESOURCE, 9);
            // The cache does not have it, so there is nothing to do but to wait.
            let synced = block_on(this.clone().sync(key.clone()));
            assert_eq!(matches!(synced, Err(Error::Stale(_))), waits, "{release}");
            let text = String::from_utf8(metrics::render()).unwrap();
            assert_eq!(text.contains(&counted), waits, "{release}");
            assert_eq!(text.contains(NAME), waits, "{release}");
            autoscalers.set_seen_version(9);
            assert_eq!(block_on(this.sync(key)).unwrap(), Next::Done, "{release}");
        }
    }
}
