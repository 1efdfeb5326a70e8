//! The controller's metrics. Upstream: `podautoscaler/monitor`.

use std::time::Duration;

use crate::metrics::{exponential, metrics};

metrics! {
    fn register;
    static RECONCILIATIONS: IntCounterVec["action", "error"] =
        "horizontal_pod_autoscaler_controller_reconciliations_total",
        "[BETA] Number of reconciliations of HPA controller. The label 'action' should be either \
         'scale_down', 'scale_up', or 'none'. Also, the label 'error' should be either 'spec', \
         'internal', or 'none'. Note that if both spec and internal errors happen during a \
         reconciliation, the first one to occur is reported in `error` label.";
    static RECONCILIATION_SECONDS: HistogramVec["action", "error"](exponential(0.001, 2.0, 15)) =
        "horizontal_pod_autoscaler_controller_reconciliation_duration_seconds",
        "[BETA] The time(seconds) that the HPA controller takes to reconcile once. The label 'action' \
         should be either 'scale_down', 'scale_up', or 'none'. Also, the label 'error' should be \
         either 'spec', 'internal', or 'none'. Note that if both spec and internal errors happen \
         during a reconciliation, the first one to occur is reported in `error` label.";
    static COMPUTATIONS: IntCounterVec["action", "error", "metric_type"] =
        "horizontal_pod_autoscaler_controller_metric_computation_total",
        "[BETA] Number of metric computations. The label 'action' should be either 'scale_down', \
         'scale_up', or 'none'. Also, the label 'error' should be either 'spec', 'internal', or \
         'none'. The label 'metric_type' corresponds to HPA.spec.metrics[*].type";
    static COMPUTATION_SECONDS:
        HistogramVec["action", "error", "metric_type"](exponential(0.001, 2.0, 15)) =
        "horizontal_pod_autoscaler_controller_metric_computation_duration_seconds",
        "[BETA] The time(seconds) that the HPA controller takes to calculate one metric. The label \
         'action' should be either 'scale_down', 'scale_up', or 'none'. The label 'error' should \
         be either 'spec', 'internal', or 'none'. The label 'metric_type' corresponds to \
         HPA.spec.metrics[*].type";
    pub(super) static AUTOSCALERS: IntGauge =
        "horizontal_pod_autoscaler_controller_num_horizontal_pod_autoscalers",
        "[ALPHA] Current number of controlled HPA objects.";
    static DESIRED_REPLICAS: IntGaugeVec["namespace", "hpa_name"] =
        "horizontal_pod_autoscaler_controller_desired_replicas",
        "[ALPHA] Current desired replica count for HPA objects.";
}

metrics! {
    /// Only from 1.37 on.
    pub(super) static STALE_SYNC_SKIPS: IntCounterVec["group", "resource"] =
        "horizontal_pod_autoscaler_controller_stale_sync_skips_total",
        "[ALPHA] Total number of HPA syncs skipped due to a stale watch cache.";
}

/// The action that was taken, or would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    None,
    ScaleUp,
    ScaleDown,
}

impl Action {
    fn label(self) -> &'static str {
        match self {
            Action::None => "none",
            Action::ScaleUp => "scale_up",
            Action::ScaleDown => "scale_down",
        }
    }
}

/// The kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// The object's spec.
    Spec,
    Internal,
}

impl Fault {
    fn label(self) -> &'static str {
        match self {
            Fault::None => "none",
            Fault::Spec => "spec",
            Fault::Internal => "internal",
        }
    }
}

/// Counts a reconciliation and its duration.
pub(super) fn observe_reconciliation(action: Action, fault: Fault, took: Duration) {
    let labels = [action.label(), fault.label()];
    RECONCILIATIONS.with_label_values(&labels).inc();
    RECONCILIATION_SECONDS.with_label_values(&labels).observe(took.as_secs_f64());
}

/// Counts the computation of one metric's proposal and its duration.
pub(super) fn observe_computation(action: Action, fault: Fault, metric_type: &str, took: Duration) {
    // A computation that failed proposes no action.
    let action = if fault == Fault::None { action } else { Action::None };
    let labels = [action.label(), fault.label(), metric_type];
    COMPUTATIONS.with_label_values(&labels).inc();
    COMPUTATION_SECONDS.with_label_values(&labels).observe(took.as_secs_f64());
}

/// Exports the number of replicas that an autoscaler wants.
pub(super) fn set_desired_replicas(namespace: &str, name: &str, replicas: i32) {
    DESIRED_REPLICAS.with_label_values(&[namespace, name]).set(replicas.into());
}
