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
use crate::controllers::{Controller, Next, QueuePolicy, SyncResult};
use crate::events::Recorder;
use crate::objects::{HorizontalPodAutoscaler, ObjectKey, Pod};

/// Sets up the controller `horizontal-pod-autoscaler-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    monitor::register();
    let (autoscalers, pods) = (c.lister::<HorizontalPodAutoscaler>(), c.lister::<Pod>());
    let settings = Settings::new(c);
    let consistency = match c.feature("StaleControllerConsistencyHPA") {
        true => Consistency::default().tracking(&autoscalers),
        false => Consistency::default(),
    };
    let period = settings.period;
    let scales = Scales::new(c.client());
    let this = Arc::new(Autoscaling {
        api: MetricsApi {
            client: c.client(),
            scales: scales.clone(),
            clock: c.clock(),
            period,
            custom_version: Mutex::default(),
        },
        client: c.client(),
        recorder: c.recorder(),
        clock: c.clock(),
        autoscalers: autoscalers.clone(),
        pods,
        scales,
        selectors: Selectors::default(),
        histories: Mutex::default(),
        consistency,
        settings,
    });
    let queue = c.queue(QueuePolicy::default());
    let known = this.clone();
    c.watch(&autoscalers, &queue, move |change, queue| {
        let key = change.object().meta.key();
        if let Change::Deleted(_) = change {
            known.selectors.forget(&key);
            AUTOSCALERS.dec();
            // Each key is queued for its next period; that sync removes the records.
            return;
        }
        let is_new = known.selectors.register(&key);
        if is_new {
            AUTOSCALERS.inc();
        }
        // Updates of the status alone queue nothing: most are our own writes.
        if is_new || matches!(change, Change::Updated { old, new } if old.spec != new.spec) {
            queue.add(key);
        }
    });
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
