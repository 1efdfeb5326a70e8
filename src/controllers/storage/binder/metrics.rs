//! Counts of volumes and claims, and the durations of provisioning and deletion.
//! Upstream: `persistentvolume/metrics`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Once;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGaugeVec, Opts};

use super::super::operation_metrics::whole_operation_ended;
use super::super::volume_specs;
use super::plugins::Plugin;
use crate::cache::Lister;
use crate::clock::SharedClock;
use crate::metrics::metrics;
use crate::objects::{InTreeKind, PersistentVolume, PersistentVolumeClaim, VolumeSource};

metrics! {
    fn register_counters;
    static ERRORS: IntCounterVec["plugin_name", "operation_name"] =
        "volume_operation_errors_total", "[ALPHA] Total volume operation errors";
    static RETROACTIVE: IntCounter = "retroactive_storageclass_total",
        "[ALPHA] Total number of retroactive StorageClass assignments to persistent volume claim";
    static RETROACTIVE_ERRORS: IntCounter = "retroactive_storageclass_errors_total",
        "[ALPHA] Total number of failed retroactive StorageClass assignments to persistent volume \
         claim";
}

/// Counts an attempt to write the default class into a claim.
pub fn retroactive_class(succeeded: bool) {
    RETROACTIVE.inc();
    if !succeeded {
        RETROACTIVE_ERRORS.inc();
    }
}

/// When operations on volumes began. Each ends with an event about the volume or its claim, and is
/// kept by the key of that object. Upstream: `OperationStartTimeCache`.
pub struct Timestamps {
    clock: SharedClock,
    begun: Mutex<HashMap<String, Start>>,
}

/// Which operation began, for which plugin, and when.
struct Start {
    plugin: String,
    operation: &'static str,
    at: Duration,
}

impl Timestamps {
    pub fn new(clock: SharedClock) -> Timestamps {
        Timestamps { clock, begun: Mutex::default() }
    }

    /// Records the beginning of an operation, unless one of this key is recorded already.
    pub fn begin(&self, key: &str, operation: &'static str, plugin: impl FnOnce() -> String) {
        let mut begun = self.begun.lock();
        if !begun.contains_key(key) {
            let begin = Start { plugin: plugin(), operation, at: self.clock.monotonic() };
            begun.insert(key.to_owned(), begin);
        }
    }

    /// Records the duration of an operation that succeeded, or counts a failure: then it is
    /// repeated, and its beginning stays. Upstream: `RecordMetric`.
    pub fn ended(&self, key: &str, succeeded: bool) {
        let mut begun = self.begun.lock();
        let Some(Start { plugin, operation, at }) = begun.get(key) else { return };
        if succeeded {
            whole_operation_ended(plugin, operation, self.clock.monotonic() - *at);
            begun.remove(key);
            return;
        }
        let plugin = if plugin.is_empty() { "N/A" } else { plugin };
        ERRORS.with_label_values(&[plugin, operation]).inc();
    }

    /// Forgets the operation for a deleted claim.
    pub fn forget(&self, key: &str) {
        self.begun.lock().remove(key);
    }
}

/// Serves the counts of these caches; a second call does nothing.
pub fn register(volumes: Lister<PersistentVolume>, claims: Lister<PersistentVolumeClaim>) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        register_counters();
        let registered =
            Counts::new(volumes, claims).and_then(|counts| prometheus::register(Box::new(counts)));
        if let Err(error) = registered {
            log::error!("metrics: {error}");
        }
    });
}

/// Counts the volumes and claims of the caches when metrics are read.
struct Counts {
    volumes: Lister<PersistentVolume>,
    claims: Lister<PersistentVolumeClaim>,
    gauges: [IntGaugeVec; 5],
}

const CLAIM_LABELS: &[&str] = &["namespace", "storage_class", "volume_attributes_class"];
const GAUGES: [(&str, &str, &[&str]); 5] = [
    (
        "pv_collector_total_pv_count",
        "[ALPHA] Gauge measuring total number of persistent volumes",
        &["plugin_name", "volume_mode"],
    ),
    (
        "pv_collector_bound_pv_count",
        "[ALPHA] Gauge measuring number of persistent volume currently bound",
        &["storage_class"],
    ),
    (
        "pv_collector_unbound_pv_count",
        "[ALPHA] Gauge measuring number of persistent volume currently unbound",
        &["storage_class"],
    ),
    (
        "pv_collector_bound_pvc_count",
        "[ALPHA] Gauge measuring number of persistent volume claim currently bound",
        CLAIM_LABELS,
    ),
    (
        "pv_collector_unbound_pvc_count",
        "[ALPHA] Gauge measuring number of persistent volume claim currently unbound",
        CLAIM_LABELS,
    ),
];

/// The number of objects for each combination of label values, a gauge each.
type Counted = [BTreeMap<Vec<String>, i64>; 5];

impl Counts {
    fn new(
        volumes: Lister<PersistentVolume>,
        claims: Lister<PersistentVolumeClaim>,
    ) -> prometheus::Result<Counts> {
        let [a, b, c, d, e] =
            GAUGES.map(|(name, help, labels)| IntGaugeVec::new(Opts::new(name, help), labels));
        Ok(Counts { volumes, claims, gauges: [a?, b?, c?, d?, e?] })
    }
}

/// Returns the name of the plugin of the volume's source, for metrics; `N/A` for other sources.
/// Also for CSI (with the driver), Fibre Channel and iSCSI, whose plugins this controller does not
/// use: upstream has `N/A` for them (139356 in docs/differences.md).
/// Upstream: `getPVPluginName`.
fn plugin_name(volume: &PersistentVolume) -> String {
    let attached = match volume.spec.source.as_deref() {
        Some(VolumeSource::Csi { driver, .. }) => {
            return format!("{}:{driver}", volume_specs::Plugin::Csi.name());
        }
        Some(VolumeSource::InTree { kind: InTreeKind::Fc, .. }) => Some(volume_specs::Plugin::Fc),
        Some(VolumeSource::InTree { kind: InTreeKind::Iscsi, .. }) => {
            Some(volume_specs::Plugin::Iscsi)
        }
        _ => None,
    };
    let known = Plugin::of_volume(volume).map(Plugin::name);
    known.or(attached.map(volume_specs::Plugin::name)).unwrap_or("N/A").to_owned()
}

/// Counts a volume in the first three of [`GAUGES`].
fn count_volume(counted: &mut Counted, volume: &PersistentVolume) {
    let mut count = |gauge: usize, labels: Vec<String>| {
        *counted[gauge].entry(labels).or_default() += 1;
    };
    let mode = if volume.spec.is_block { "Block" } else { "Filesystem" };
    count(0, vec![plugin_name(volume), mode.to_owned()]);
    let class = vec![volume.spec.storage_class_name.to_string()];
    count(if volume.is_bound() { 1 } else { 2 }, class);
}

/// Counts a claim in the last two of [`GAUGES`].
fn count_claim(counted: &mut Counted, claim: &PersistentVolumeClaim) {
    let attributes = claim.spec.volume_attributes_class_name.as_deref().unwrap_or_default();
    let namespace = claim.meta.namespace.to_string();
    let labels = vec![namespace, claim.storage_class().to_owned(), attributes.to_owned()];
    let gauge = if claim.status.phase == "Bound" { 3 } else { 4 };
    *counted[gauge].entry(labels).or_default() += 1;
}

impl Collector for Counts {
    fn desc(&self) -> Vec<&Desc> {
        self.gauges.iter().flat_map(Collector::desc).collect()
    }

    /// Counts the volumes and claims of the caches.
    fn collect(&self) -> Vec<MetricFamily> {
        let mut counted = Counted::default();
        self.volumes.list().iter().for_each(|volume| count_volume(&mut counted, volume));
        self.claims.list().iter().for_each(|claim| count_claim(&mut counted, claim));
        let gauges = self.gauges.iter().zip(counted);
        let families = gauges.flat_map(|(gauge, counts)| {
            gauge.reset();
            for (labels, count) in counts {
                gauge.with_label_values(&labels).set(count);
            }
            gauge.collect()
        });
        families.collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn volumes_and_claims_are_counted_by_their_classes() {
        let mut counted = Counted::default();
        for (source, mode, phase) in [
            ("hostPath", "Filesystem", "Bound"),
            ("csi", "Block", "Available"),
            ("nfs", "", "Bound"),
            ("iscsi", "", "Bound"),
            ("fc", "", "Bound"),
            ("local", "", "Bound"),
            ("flexVolume", "", "Bound"),
        ] {
            let fields = json!({ "driver": "example.com" });
            let volume = json!({
                "spec": { "storageClassName": "gold", "volumeMode": mode, source: fields },
                "status": { "phase": phase },
            });
            count_volume(&mut counted, &serde_json::from_value(volume).unwrap());
        }
        for phase in ["Bound", "Pending", "Lost"] {
            let claim = json!({
                "metadata": { "namespace": "ns" },
                "spec": { "storageClassName": "gold" }, "status": { "phase": phase },
            });
            count_claim(&mut counted, &serde_json::from_value(claim).unwrap());
        }
        let rows = |gauge: usize| -> Vec<(String, i64)> {
            counted[gauge].iter().map(|(labels, count)| (labels.join(" "), *count)).collect()
        };
        let row = |labels: &str, count| (labels.to_owned(), count);
        assert_eq!(
            rows(0),
            [
                row("N/A Filesystem", 2),
                row("kubernetes.io/csi:example.com Block", 1),
                row("kubernetes.io/fc Filesystem", 1),
                row("kubernetes.io/host-path Filesystem", 1),
                row("kubernetes.io/iscsi Filesystem", 1),
                row("kubernetes.io/nfs Filesystem", 1),
            ]
        );
        assert_eq!((rows(1), rows(2)), (vec![row("gold", 6)], vec![row("gold", 1)]));
        assert_eq!((rows(3), rows(4)), (vec![row("ns gold ", 1)], vec![row("ns gold ", 2)]));
    }
}
