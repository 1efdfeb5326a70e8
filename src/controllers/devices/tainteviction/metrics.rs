//! Upstream: `pkg/controller/devicetainteviction/metrics`.

use crate::metrics::metrics;

metrics! {
    fn register;
    pub static DELETIONS: IntCounter = "device_taint_eviction_controller_pod_deletions_total",
        "[ALPHA] Total number of Pods deleted by DeviceTaintEvictionController since its start.";
    pub static LATENCY: Histogram(
        [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 120.0, 180.0, 240.0]
    ) = "device_taint_eviction_controller_pod_deletion_duration_seconds",
        "[ALPHA] Latency, in seconds, between the time when a device taint effect has been \
         activated and a Pod's deletion via DeviceTaintEvictionController.";
}
