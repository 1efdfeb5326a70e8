//! Upstream: `pkg/controller/endpointslicemirroring/metrics`.

use std::sync::LazyLock;
use std::time::Duration;

use prometheus::{
    Histogram, IntCounterVec, IntGauge, exponential_buckets, histogram_opts, register_histogram,
    register_int_counter_vec, register_int_gauge,
};

use super::mirror::Changes;
use crate::controllers::services::service_endpoints::counts::{Gauges, SliceCounts};

struct Metrics {
    added: Histogram,
    updated: Histogram,
    removed: Histogram,
    skipped: Histogram,
    duration: Histogram,
    endpoints: IntGauge,
    slices: IntGauge,
    desired_slices: IntGauge,
    changes: IntCounterVec,
}

static METRICS: LazyLock<Metrics> =
    LazyLock::new(|| Metrics::new().expect("registered once, with valid names"));

impl Metrics {
    fn new() -> prometheus::Result<Metrics> {
        let histogram = |name: &str, help: &str, first: f64| {
            let name = format!("endpoint_slice_mirroring_controller_{name}");
            register_histogram!(histogram_opts!(name, help, exponential_buckets(first, 2.0, 15)?))
        };
        Ok(Metrics {
            added: histogram(
                "endpoints_added_per_sync",
                "[ALPHA] Number of endpoints added on each Endpoints sync",
                2.0,
            )?,
            updated: histogram(
                "endpoints_updated_per_sync",
                "[ALPHA] Number of endpoints updated on each Endpoints sync",
                2.0,
            )?,
            removed: histogram(
                "endpoints_removed_per_sync",
                "[ALPHA] Number of endpoints removed on each Endpoints sync",
                2.0,
            )?,
            skipped: histogram(
                "addresses_skipped_per_sync",
                "[ALPHA] Number of addresses skipped on each Endpoints sync due to being invalid or \
                 exceeding MaxEndpointsPerSubset",
                2.0,
            )?,
            duration: histogram(
                "endpoints_sync_duration",
                "[ALPHA] Duration of syncEndpoints() in seconds",
                0.001,
            )?,
            endpoints: register_int_gauge!(
                "endpoint_slice_mirroring_controller_endpoints_desired",
                "[ALPHA] Number of endpoints desired"
            )?,
            slices: register_int_gauge!(
                "endpoint_slice_mirroring_controller_num_endpoint_slices",
                "[ALPHA] Number of EndpointSlices"
            )?,
            desired_slices: register_int_gauge!(
                "endpoint_slice_mirroring_controller_desired_endpoint_slices",
                "[ALPHA] Number of EndpointSlices that would exist with perfect endpoint allocation"
            )?,
            changes: register_int_counter_vec!(
                "endpoint_slice_mirroring_controller_changes",
                "[ALPHA] Number of EndpointSlice changes",
                &["operation"]
            )?,
        })
    }
}

pub fn register() {
    LazyLock::force(&METRICS);
}

/// `operation`: `create`, `update`, `delete`.
pub fn changed(operation: &str) {
    METRICS.changes.with_label_values(&[operation]).inc();
}

pub fn took(time: Duration) {
    METRICS.duration.observe(time.as_secs_f64());
}

/// What one sync found. `skipped`: addresses that are not mirrored.
pub fn observe(changes: Changes, skipped: usize) {
    METRICS.added.observe(changes.added as f64);
    METRICS.updated.observe(changes.updated as f64);
    METRICS.removed.observe(changes.removed as f64);
    METRICS.skipped.observe(skipped as f64);
}

pub fn counts(max_per_slice: usize) -> SliceCounts {
    let Metrics { endpoints, slices, desired_slices, .. } = &*METRICS;
    let gauges = Gauges {
        endpoints: endpoints.clone(),
        slices: slices.clone(),
        desired_slices: desired_slices.clone(),
    };
    SliceCounts::new(max_per_slice, 0, gauges)
}
