//! The kubelet's metrics, under upstream's names. Upstream: `pkg/kubelet/metrics`.

use std::sync::LazyLock;

use kube_controller_manager::metrics::{
    Histogram, HistogramVec, IntCounterVec, IntGauge, Metric, Spec, declared, exponential,
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

pub static IMAGES_COLLECTED: LazyLock<IntCounterVec> = LazyLock::new(|| {
    let help = "[ALPHA] Total number of images garbage collected by the kubelet, whether through \
                disk usage or image age.";
    metric("kubelet_image_garbage_collected_total", help, &["reason"], Vec::new())
});

pub static EVICTIONS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    let help = "[ALPHA] Cumulative number of pod evictions by eviction signal";
    metric("kubelet_evictions", help, &["eviction_signal"], Vec::new())
});
