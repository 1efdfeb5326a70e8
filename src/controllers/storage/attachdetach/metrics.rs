//! Upstream: `attachdetach/metrics`, and the metrics of operations in `pkg/volume/util/metrics.go`.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGaugeVec, Opts};

use super::{AttachDetach, has_volumes};
use crate::controllers::storage::operation_metrics;
use crate::controllers::storage::volume_specs::Spec;
use crate::metrics::metrics;

metrics! {
    static FORCED: IntCounterVec["reason"] =
        "attach_detach_controller_attachdetach_controller_forced_detaches",
        "[ALPHA] Number of times the A/D Controller performed a forced detach";
}

/// Counts a forced detach. `reason`: `timeout`, `out-of-service`.
pub fn forced_detach(reason: &str) {
    FORCED.with_label_values(&[reason]).inc();
}

/// Records the end of an attach or a detach. `name`: the operation's.
pub fn observe_operation(
    plugin: &str,
    name: &str,
    succeeded: bool,
    migrated: bool,
    took: Duration,
) {
    operation_metrics::operation_ended(plugin, name, succeeded, migrated, took);
}

/// The controller whose volumes are counted: the one created last.
static REPORTING: LazyLock<Mutex<Weak<AttachDetach>>> = LazyLock::new(|| {
    if let Err(error) = Volumes::register() {
        log::error!("attachdetach: no metrics of volumes: {error}");
    }
    Mutex::default()
});

/// Reports the volumes of `controller` while it lives.
pub(super) fn report(controller: &Arc<AttachDetach>) {
    *REPORTING.lock() = Arc::downgrade(controller);
}

/// Counts volumes when metrics are read.
struct Volumes {
    in_use: IntGaugeVec,
    total: IntGaugeVec,
}

impl Volumes {
    /// Registers the metrics of volumes, which are counted at each scrape.
    fn register() -> prometheus::Result<()> {
        let in_use = Opts::new(
            "storage_count_attachable_volumes_in_use",
            "[ALPHA] Measure number of volumes in use",
        );
        let total = Opts::new(
            "attachdetach_controller_total_volumes",
            "[ALPHA] Number of volumes in A/D Controller",
        );
        prometheus::register(Box::new(Volumes {
            in_use: IntGaugeVec::new(in_use, &["node", "volume_plugin"])?,
            total: IntGaugeVec::new(total, &["plugin_name", "state"])?,
        }))
    }
}

impl Collector for Volumes {
    fn desc(&self) -> Vec<&Desc> {
        [self.in_use.desc(), self.total.desc()].concat()
    }

    /// Counts the volumes of the running controller; none before its state of world is populated.
    fn collect(&self) -> Vec<MetricFamily> {
        self.in_use.reset();
        self.total.reset();
        let controller = REPORTING.lock().upgrade();
        if let Some(controller) = controller.filter(|controller| controller.populated.is_open()) {
            for ((node, plugin), count) in controller.volumes_in_use() {
                self.in_use.with_label_values(&[node.as_str(), plugin.as_str()]).set(count);
            }
            let (wanted, attached) = controller.world.lock().plugins();
            for (plugins, state) in
                [(wanted, "desired_state_of_world"), (attached, "actual_state_of_world")]
            {
                for plugin in plugins {
                    self.total.with_label_values(&[plugin.as_str(), state]).inc();
                }
            }
        }
        let mut families = self.in_use.collect();
        families.extend(self.total.collect());
        families
    }
}

impl AttachDetach {
    /// Counts the volumes of pods by node and plugin.
    fn volumes_in_use(&self) -> HashMap<(String, String), i64> {
        let mut counts = HashMap::new();
        for pod in self.pods.list() {
            if pod.spec.node_name.is_empty() || !has_volumes(&pod) {
                continue;
            }
            // A FlexVolume without its driver has no plugin.
            let known = |spec: &Spec| spec.flex.is_none() || self.resolver.is_attachable(spec);
            for spec in self.resolver.specs(&pod).into_iter().filter(known) {
                let key = (pod.spec.node_name.to_string(), spec.plugin_name());
                *counts.entry(key).or_default() += 1;
            }
        }
        counts
    }
}
