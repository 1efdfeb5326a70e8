//! The durations of operations on volumes. Upstream: `pkg/volume/util/metrics.go`.

use std::time::Duration;

use crate::metrics::metrics;

const BUCKETS: [f64; 13] =
    [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

metrics! {
    static OPERATIONS: HistogramVec["volume_plugin", "operation_name", "status", "migrated"](BUCKETS) =
        "storage_operation_duration_seconds", "[ALPHA] Storage operation duration";
    static TOTAL: HistogramVec["plugin_name", "operation_name"](BUCKETS) =
        "volume_operation_total_seconds",
        "[ALPHA] Storage operation end to end duration in seconds";
}

/// Records the end of one call of a plugin. Upstream: `OperationCompleteHook`.
pub fn operation_ended(
    plugin: &str,
    operation: &str,
    succeeded: bool,
    migrated: bool,
    took: Duration,
) {
    let status = if succeeded { "success" } else { "fail-unknown" };
    let migrated = if migrated { "true" } else { "false" };
    OPERATIONS
        .with_label_values(&[plugin, operation, status, migrated])
        .observe(took.as_secs_f64());
}

/// Records the end of a whole operation. Upstream: `RecordOperationLatencyMetric`.
pub fn whole_operation_ended(plugin: &str, operation: &str, took: Duration) {
    TOTAL.with_label_values(&[plugin, operation]).observe(took.as_secs_f64());
}
