//! The durations of operations on volumes. Upstream: `pkg/volume/util/metrics.go`.

use std::time::Duration;

use crate::metrics::metrics;
use crate::options::{Release, followed};

/// The buckets of the durations, in seconds; upstream's.
const BUCKETS: [f64; 13] =
    [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

metrics! {
    static OPERATIONS: HistogramVec["volume_plugin", "operation_name", "status", "migrated"](BUCKETS) =
        "storage_operation_duration_seconds", by_release(
            "[ALPHA] Storage operation duration",
            "[BETA] Storage operation duration",
            followed(),
        );
    static TOTAL: HistogramVec["plugin_name", "operation_name"](BUCKETS) =
        "volume_operation_total_seconds", by_release(
            "[ALPHA] Storage operation end to end duration in seconds",
            "[BETA] Storage operation end to end duration in seconds",
            followed(),
        );
}

/// Returns the help text of a metric for a release of Kubernetes: its stability level changed in
/// 1.37 (pull request 136189).
fn by_release(before: &'static str, since: &'static str, release: Release) -> &'static str {
    if release >= Release::V1_37 { since } else { before }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_says_beta_since_1_37() {
        for (release, help) in [(Release::V1_36, "before"), (Release::V1_37, "since")] {
            assert_eq!(by_release("before", "since", release), help, "{release}");
        }
    }
}
