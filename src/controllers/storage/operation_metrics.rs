//! The metrics of operations on volumes, which several controllers share.
//! Upstream: `pkg/volume/util/metrics.go`.

use std::time::Duration;

use crate::metrics::metrics;

const SECONDS: [f64; 13] =
    [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

metrics! {
    static DURATION: HistogramVec["volume_plugin", "operation_name", "status", "migrated"](SECONDS) =
        "storage_operation_duration_seconds", "[ALPHA] Storage operation duration";
}

/// Upstream: `OperationCompleteHook`.
pub fn observe(plugin: &str, operation: &str, succeeded: bool, migrated: bool, took: Duration) {
    let status = if succeeded { "success" } else { "fail-unknown" };
    let migrated = if migrated { "true" } else { "false" };
    DURATION.with_label_values(&[plugin, operation, status, migrated]).observe(took.as_secs_f64());
}
