//! Upstream: `selinuxwarning/metrics.go`.

use std::sync::{Arc, LazyLock, Weak};

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGaugeVec, Opts};

use super::SelinuxWarning;

const LABELS: [&str; 7] = [
    "property",
    "pod1_namespace",
    "pod1_name",
    "pod1_value",
    "pod2_namespace",
    "pod2_name",
    "pod2_value",
];

/// The controller whose conflicts are listed: the one created last.
static REPORTING: LazyLock<Mutex<Weak<SelinuxWarning>>> = LazyLock::new(|| {
    if let Err(error) = Conflicts::register() {
        log::error!("selinux_warning: no metrics of conflicts: {error}");
    }
    Mutex::default()
});

/// Reports the conflicts of `controller` while it lives.
pub(super) fn report(controller: &Arc<SelinuxWarning>) {
    *REPORTING.lock() = Arc::downgrade(controller);
}

/// Lists the conflicts when metrics are read.
struct Conflicts(IntGaugeVec);

impl Conflicts {
    fn register() -> prometheus::Result<()> {
        let opts = Opts::new(
            "selinux_warning_controller_selinux_volume_conflict",
            "[ALPHA] Conflict between two Pods using the same volume",
        );
        prometheus::register(Box::new(Conflicts(IntGaugeVec::new(opts, &LABELS)?)))
    }
}

impl Collector for Conflicts {
    fn desc(&self) -> Vec<&Desc> {
        self.0.desc()
    }

    /// Lists the conflicts of the running controller.
    fn collect(&self) -> Vec<MetricFamily> {
        self.0.reset();
        let controller = REPORTING.lock().upgrade();
        for conflict in controller.iter().flat_map(|controller| controller.uses.lock().conflicts())
        {
            let (pod, other) = (&conflict.pod, &conflict.other);
            let labels = [
                conflict.property,
                &pod.namespace,
                &pod.name,
                &conflict.value,
                &other.namespace,
                &other.name,
                &conflict.other_value,
            ];
            self.0.with_label_values(&labels).set(1);
        }
        self.0.collect()
    }
}
