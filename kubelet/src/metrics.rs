//! The kubelet's metrics, under upstream's names. Upstream: `pkg/kubelet/metrics`.

use std::sync::LazyLock;

use kube_controller_manager::metrics::{
    Histogram, HistogramVec, IntGauge, Metric, Spec, declared, exponential,
};

fn metric<M: Metric>(name: &str, help: &str, labels: &[&str], buckets: Vec<f64>) -> M {
    declared(Spec { name, help, labels, buckets })
}

pub static RELIST: LazyLock<Histogram> = LazyLock::new(|| {
    let help = "[ALPHA] Duration in seconds for relisting pods in PLEG.";
    metric("kubelet_pleg_relist_duration_seconds", help, &[], exponential(0.001, 2.0, 14))
});

pub static RUNNING_PODS: LazyLock<IntGauge> = LazyLock::new(|| {
    let help = "[ALPHA] Number of pods that have a running pod sandbox";
    metric("kubelet_running_pods", help, &[], Vec::new())
});

pub static WORKER: LazyLock<HistogramVec> = LazyLock::new(|| {
    let help = "[ALPHA] Duration in seconds to sync a single pod. Broken down by operation type: \
                create, update, or sync";
    let labels = &["operation_type"];
    metric("kubelet_pod_worker_duration_seconds", help, labels, exponential(0.001, 2.0, 16))
});
