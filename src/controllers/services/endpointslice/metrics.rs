//! Upstream: `k8s.io/endpointslice/metrics`.

use parking_lot::Mutex;
use std::collections::HashMap;

use crate::controllers::Error;
use crate::controllers::SyncResult;
use crate::controllers::services::slice_counts::{Gauges, SliceCounts};
use crate::metrics::{exponential, metrics};
use crate::objects::{Istr, ObjectKey};

metrics! {
    fn register;
    pub static ADDED: Histogram(exponential(2.0, 2.0, 15)) =
        "endpoint_slice_controller_endpoints_added_per_sync",
        "[BETA] Number of endpoints added on each Service sync";
    pub static REMOVED: Histogram(exponential(2.0, 2.0, 15)) =
        "endpoint_slice_controller_endpoints_removed_per_sync",
        "[BETA] Number of endpoints removed on each Service sync";
    static ENDPOINTS: IntGauge =
        "endpoint_slice_controller_endpoints_desired", "[BETA] Number of endpoints desired";
    static SLICES: IntGauge =
        "endpoint_slice_controller_num_endpoint_slices", "[BETA] Number of EndpointSlices";
    static DESIRED_SLICES: IntGauge = "endpoint_slice_controller_desired_endpoint_slices",
        "[BETA] Number of EndpointSlices that would exist with perfect endpoint allocation";
    static CHANGES: IntCounterVec["operation"] =
        "endpoint_slice_controller_changes", "[ALPHA] Number of EndpointSlice changes";
    pub static CHANGED_PER_SYNC: HistogramVec["topology", "traffic_distribution"] =
        "endpoint_slice_controller_endpointslices_changed_per_sync",
        "[ALPHA] Number of EndpointSlices changed on each Service sync";
    static SYNCS: IntCounterVec["result"] =
        "endpoint_slice_controller_syncs", "[ALPHA] Number of EndpointSlice syncs";
    static DISTRIBUTIONS: IntGaugeVec["traffic_distribution"] =
        "endpoint_slice_controller_services_count_by_traffic_distribution",
        "[BETA] Number of Services using some specific trafficDistribution";
}

/// Counts a change of a slice. `operation`: `create`, `update`, `delete`.
pub fn count_change(operation: &str) {
    CHANGES.with_label_values(&[operation]).inc();
}

/// Counts a sync by its result.
pub fn count_sync(result: &SyncResult) {
    let result = match result {
        Ok(_) => "success",
        Err(Error::Stale(_)) => "stale",
        Err(_) => "error",
    };
    SYNCS.with_label_values(&[result]).inc();
}

/// Makes the counts behind the gauges of endpoints and slices.
pub fn new_counts(max_per_slice: usize) -> SliceCounts {
    let gauges = Gauges {
        endpoints: ENDPOINTS.clone(),
        slices: SLICES.clone(),
        desired_slices: DESIRED_SLICES.clone(),
    };
    // There is always a placeholder.
    SliceCounts::new(max_per_slice, 1, gauges)
}

/// The Services that ask for a traffic distribution.
#[derive(Default)]
pub struct Distributions(Mutex<HashMap<ObjectKey, Istr>>);

impl Distributions {
    /// Records the traffic distribution of `service` in the gauge, in place of its last one;
    /// `None`: it has none.
    pub fn set(&self, service: &ObjectKey, distribution: Option<&Istr>) {
        let mut services = self.0.lock();
        let old = match distribution {
            Some(distribution) => services.insert(service.clone(), distribution.clone()),
            None => services.remove(service),
        };
        if let Some(old) = old {
            DISTRIBUTIONS.with_label_values(&[old.as_str()]).dec();
        }
        if let Some(new) = distribution {
            DISTRIBUTIONS.with_label_values(&[new.as_str()]).inc();
        }
    }
}
