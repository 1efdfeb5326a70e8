//! Upstream: `k8s.io/endpointslice/metrics`.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::LazyLock;

use prometheus::{
    Histogram, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, exponential_buckets,
    histogram_opts, register_histogram, register_histogram_vec, register_int_counter_vec,
    register_int_gauge, register_int_gauge_vec,
};

use crate::controllers::Error;
use crate::controllers::SyncResult;
use crate::controllers::services::service_endpoints::counts::{Gauges, SliceCounts};
use crate::objects::{Istr, ObjectKey};

pub struct Metrics {
    pub added: Histogram,
    pub removed: Histogram,
    endpoints: IntGauge,
    slices: IntGauge,
    desired_slices: IntGauge,
    changes: IntCounterVec,
    pub changed_per_sync: HistogramVec,
    syncs: IntCounterVec,
    distributions: IntGaugeVec,
}

pub static METRICS: LazyLock<Metrics> =
    LazyLock::new(|| Metrics::new().expect("registered once, with valid names"));

impl Metrics {
    fn new() -> prometheus::Result<Metrics> {
        let per_sync = |name: &str, help: &str| {
            let name = format!("endpoint_slice_controller_{name}");
            register_histogram!(histogram_opts!(name, help, exponential_buckets(2.0, 2.0, 15)?))
        };
        Ok(Metrics {
            added: per_sync(
                "endpoints_added_per_sync",
                "[BETA] Number of endpoints added on each Service sync",
            )?,
            removed: per_sync(
                "endpoints_removed_per_sync",
                "[BETA] Number of endpoints removed on each Service sync",
            )?,
            endpoints: register_int_gauge!(
                "endpoint_slice_controller_endpoints_desired",
                "[BETA] Number of endpoints desired"
            )?,
            slices: register_int_gauge!(
                "endpoint_slice_controller_num_endpoint_slices",
                "[BETA] Number of EndpointSlices"
            )?,
            desired_slices: register_int_gauge!(
                "endpoint_slice_controller_desired_endpoint_slices",
                "[BETA] Number of EndpointSlices that would exist with perfect endpoint allocation"
            )?,
            changes: register_int_counter_vec!(
                "endpoint_slice_controller_changes",
                "[ALPHA] Number of EndpointSlice changes",
                &["operation"]
            )?,
            changed_per_sync: register_histogram_vec!(
                "endpoint_slice_controller_endpointslices_changed_per_sync",
                "[ALPHA] Number of EndpointSlices changed on each Service sync",
                &["topology", "traffic_distribution"]
            )?,
            syncs: register_int_counter_vec!(
                "endpoint_slice_controller_syncs",
                "[ALPHA] Number of EndpointSlice syncs",
                &["result"]
            )?,
            distributions: register_int_gauge_vec!(
                "endpoint_slice_controller_services_count_by_traffic_distribution",
                "[BETA] Number of Services using some specific trafficDistribution",
                &["traffic_distribution"]
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

pub fn synced(result: &SyncResult) {
    let result = match result {
        Ok(_) => "success",
        Err(Error::Stale(_)) => "stale",
        Err(_) => "error",
    };
    METRICS.syncs.with_label_values(&[result]).inc();
}

pub fn counts(max_per_slice: usize) -> SliceCounts {
    let Metrics { endpoints, slices, desired_slices, .. } = &*METRICS;
    let gauges = Gauges {
        endpoints: endpoints.clone(),
        slices: slices.clone(),
        desired_slices: desired_slices.clone(),
    };
    // There is always a placeholder.
    SliceCounts::new(max_per_slice, 1, gauges)
}

/// The Services that ask for a traffic distribution.
#[derive(Default)]
pub struct Distributions(Mutex<HashMap<ObjectKey, Istr>>);

impl Distributions {
    pub fn set(&self, service: &ObjectKey, distribution: Option<&Istr>) {
        let mut services = self.0.lock();
        let before = match distribution {
            Some(distribution) => services.insert(service.clone(), distribution.clone()),
            None => services.remove(service),
        };
        let gauge = |of: &Istr| METRICS.distributions.with_label_values(&[of.as_str()]);
        if let Some(before) = before {
            gauge(&before).dec();
        }
        if let Some(now) = distribution {
            gauge(now).inc();
        }
    }
}
