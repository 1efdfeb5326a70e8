//! Upstream: `pkg/controller/endpointslicemirroring/metrics`.

use std::time::Duration;

use super::mirror::Changes;
use crate::controllers::services::slice_counts::{Gauges, SliceCounts};
use crate::metrics::{exponential, metrics};

metrics! {
    fn register;
    static ADDED: Histogram(exponential(2.0, 2.0, 15)) =
        "endpoint_slice_mirroring_controller_endpoints_added_per_sync",
        "[ALPHA] Number of endpoints added on each Endpoints sync";
    static UPDATED: Histogram(exponential(2.0, 2.0, 15)) =
        "endpoint_slice_mirroring_controller_endpoints_updated_per_sync",
        "[ALPHA] Number of endpoints updated on each Endpoints sync";
    static REMOVED: Histogram(exponential(2.0, 2.0, 15)) =
        "endpoint_slice_mirroring_controller_endpoints_removed_per_sync",
        "[ALPHA] Number of endpoints removed on each Endpoints sync";
    static SKIPPED: Histogram(exponential(2.0, 2.0, 15)) =
        "endpoint_slice_mirroring_controller_addresses_skipped_per_sync",
        "[ALPHA] Number of addresses skipped on each Endpoints sync due to being invalid or \
         exceeding MaxEndpointsPerSubset";
    static DURATION: Histogram(exponential(0.001, 2.0, 15)) =
        "endpoint_slice_mirroring_controller_endpoints_sync_duration",
        "[ALPHA] Duration of syncEndpoints() in seconds";
    static ENDPOINTS: IntGauge = "endpoint_slice_mirroring_controller_endpoints_desired",
        "[ALPHA] Number of endpoints desired";
    static SLICES: IntGauge = "endpoint_slice_mirroring_controller_num_endpoint_slices",
        "[ALPHA] Number of EndpointSlices";
    static DESIRED_SLICES: IntGauge =
        "endpoint_slice_mirroring_controller_desired_endpoint_slices",
        "[ALPHA] Number of EndpointSlices that would exist with perfect endpoint allocation";
    static CHANGES: IntCounterVec["operation"] =
        "endpoint_slice_mirroring_controller_changes", "[ALPHA] Number of EndpointSlice changes";
}

/// Counts a change of a slice. `operation`: `create`, `update`, `delete`.
pub fn count_change(operation: &str) {
    CHANGES.with_label_values(&[operation]).inc();
}

pub fn observe_duration(time: Duration) {
    DURATION.observe(time.as_secs_f64());
}

/// Records the counts of one sync. `skipped`: addresses that are not mirrored.
pub fn observe(changes: Changes, skipped: usize) {
    ADDED.observe(changes.added as f64);
    UPDATED.observe(changes.updated as f64);
    REMOVED.observe(changes.removed as f64);
    SKIPPED.observe(skipped as f64);
}

/// Makes the counts behind the gauges of endpoints and slices.
pub fn new_counts(max_per_slice: usize) -> SliceCounts {
    let gauges = Gauges {
        endpoints: ENDPOINTS.clone(),
        slices: SLICES.clone(),
        desired_slices: DESIRED_SLICES.clone(),
    };
    SliceCounts::new(max_per_slice, 0, gauges)
}
