//! The kubelet's metrics, under upstream's names. Upstream: `pkg/kubelet/metrics`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kube_controller_manager::metrics::{
    self, Collector, GaugeVec, HistogramVec, IntCounterVec, IntGaugeVec, Metric, Spec, exponential,
    metrics, process_stats, text,
};
use kube_controller_manager::objects::Timestamp;
use parking_lot::Mutex;

/// Upstream: `podStartupDurationBuckets`.
const START_BUCKETS: [f64; 25] = [
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0,
    300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];
/// Upstream: `imagePullDurationBuckets`.
const PULL_BUCKETS: [f64; 18] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0,
    1200.0, 1800.0, 2700.0, 3600.0,
];
/// Upstream: those of `StorageOperationMetric`.
const STORAGE_BUCKETS: [f64; 13] =
    [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];
/// Milliseconds. Upstream: `podResizeDurationBuckets`.
const RESIZE_BUCKETS: [f64; 14] = [
    10.0, 50.0, 100.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0, 30_000.0, 60_000.0,
    120_000.0, 300_000.0, 600_000.0,
];
const STATUS_BUCKETS: [f64; 11] = [0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];

/// The results of probes, which have a page of their own. Upstream: `prober.ProberResults`,
/// `ProberDuration`.
pub static PROBES: LazyLock<ProbeMetrics> = LazyLock::new(ProbeMetrics::new);

/// Creates a metric that is not registered: the caller renders it.
fn unregistered<M: Metric>(name: &str, help: &str, labels: &[&str]) -> M {
    let spec = Spec { name, help, labels, buckets: Vec::new() };
    M::new(spec).expect("the names are valid")
}

/// See [`PROBES`].
pub struct ProbeMetrics {
    results: IntCounterVec,
    duration: HistogramVec,
}

/// A probe of a container: the kind, the container, the pod and its namespace.
pub type ProbeLabels<'a> = [&'a str; 4];

impl ProbeMetrics {
    const RESULTS: [&'static str; 2] = ["successful", "failed"];

    /// Creates the metrics of probes, which are on a page of their own.
    fn new() -> ProbeMetrics {
        ProbeMetrics {
            results: unregistered(
                "prober_probe_total",
                "[BETA] Cumulative number of a liveness, readiness or startup probe for a container by result.",
                &["probe_type", "container", "pod", "namespace", "result", "pod_uid"],
            ),
            duration: unregistered(
                "prober_probe_duration_seconds",
                "[ALPHA] Duration in seconds for a probe response.",
                &["probe_type", "container", "pod", "namespace"],
            ),
        }
    }

    /// Counts the outcome of a probe.
    pub fn observe(&self, probe: ProbeLabels<'_>, uid: &str, is_success: bool, took: Duration) {
        let [kind, container, pod, namespace] = probe;
        let result = Self::RESULTS[usize::from(!is_success)];
        self.results.with_label_values(&[kind, container, pod, namespace, result, uid]).inc();
        // As upstream: the times of failures are not measured.
        if is_success {
            self.duration.with_label_values(&probe).observe(took.as_secs_f64());
        }
    }

    /// Ends the series of a probe.
    pub fn remove(&self, probe: ProbeLabels<'_>, uid: &str) {
        let [kind, container, pod, namespace] = probe;
        for result in Self::RESULTS {
            // It may not have had this result.
            let labels = [kind, container, pod, namespace, result, uid];
            let _ = self.results.remove_label_values(&labels);
        }
        let _ = self.duration.remove_label_values(&probe);
    }

    /// Renders the page as text.
    pub fn render(&self) -> Vec<u8> {
        text(&[self.results.collect(), self.duration.collect()].concat())
    }
}

/// The ages at which serving certificates are renewed, in seconds.
const AGE_BUCKETS: [f64; 10] = [
    60.0,
    3600.0,
    14_400.0,
    86_400.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
    124_416_000.0,
];

/// The metrics of one of the kubelet's certificates, which are served once it is renewed at all.
#[derive(Clone, Copy, Debug)]
pub enum CertificateMetrics {
    Client,
    Serving,
}

/// The ends of the certificates' lives. The outer `None`: the metrics are not served; the inner
/// one: there is no certificate yet.
static EXPIRATIONS: Mutex<[Option<Option<Timestamp>>; 2]> = Mutex::new([None; 2]);

const NO_LABELS: [&str; 0] = [];

impl CertificateMetrics {
    fn time_to_live(self) -> &'static GaugeVec {
        match self {
            CertificateMetrics::Client => &CLIENT_TTL,
            CertificateMetrics::Serving => &SERVING_TTL,
        }
    }

    fn failures(self) -> &'static IntCounterVec {
        match self {
            CertificateMetrics::Client => &CLIENT_FAILURES,
            CertificateMetrics::Serving => &SERVING_FAILURES,
        }
    }

    /// Serves the metrics from now on.
    pub fn begin(self) {
        EXPIRATIONS.lock()[self as usize].get_or_insert(None);
        self.failures().with_label_values(&NO_LABELS);
        if let CertificateMetrics::Serving = self {
            SERVING_AGE.with_label_values(&NO_LABELS);
        }
    }

    /// Sets the end of the current certificate's life.
    pub fn set_expiration(self, end: Timestamp) {
        EXPIRATIONS.lock()[self as usize] = Some(Some(end));
    }

    /// Counts a renewal that has failed.
    pub fn count_failure(self) {
        self.failures().with_label_values(&NO_LABELS).inc();
    }

    /// Observes the age of a certificate that was replaced. As upstream, only serving certificates
    /// have this metric.
    pub fn observe_age(self, age: Duration) {
        if let CertificateMetrics::Serving = self {
            SERVING_AGE.with_label_values(&NO_LABELS).observe(age.as_secs_f64());
        }
    }
}

/// Renders all metrics but those of probes as text.
pub fn render(now: Timestamp) -> Vec<u8> {
    let expirations = *EXPIRATIONS.lock();
    for certificate in [CertificateMetrics::Client, CertificateMetrics::Serving] {
        if let Some(end) = expirations[certificate as usize] {
            // Whole seconds, rounded towards zero.
            let rest = |end: Timestamp| ((end.as_micros() - now.as_micros()) / 1_000_000) as f64;
            let rest = end.map_or(f64::INFINITY, rest);
            certificate.time_to_live().with_label_values(&NO_LABELS).set(rest);
        }
    }
    metrics::render()
}

/// What a volume of a claim holds, in the order of `VOLUME_STATS`.
pub type ClaimAmounts = [u64; 6];

const VOLUME_STATS: [(&str, &str); 6] = [
    ("kubelet_volume_stats_capacity_bytes", "[ALPHA] Capacity in bytes of the volume"),
    ("kubelet_volume_stats_available_bytes", "[ALPHA] Number of available bytes in the volume"),
    ("kubelet_volume_stats_used_bytes", "[ALPHA] Number of used bytes in the volume"),
    ("kubelet_volume_stats_inodes", "[ALPHA] Maximum number of inodes in the volume"),
    ("kubelet_volume_stats_inodes_free", "[ALPHA] Number of free inodes in the volume"),
    ("kubelet_volume_stats_inodes_used", "[ALPHA] Number of used inodes in the volume"),
];

/// Renders as text what volumes hold, by namespace and claim, and how many there are, by plugin and
/// state. Upstream: `volumeStatsCollector`, `totalVolumesCollector`.
pub fn volumes(
    claims: &BTreeMap<(String, String), ClaimAmounts>,
    counts: &BTreeMap<(String, &'static str), i64>,
) -> Vec<u8> {
    // A metric without series has no text.
    let mut families = Vec::new();
    for (at, (name, help)) in VOLUME_STATS.iter().enumerate().filter(|_| !claims.is_empty()) {
        let gauge: GaugeVec = unregistered(name, help, &["namespace", "persistentvolumeclaim"]);
        for ((namespace, claim), amounts) in claims {
            gauge.with_label_values(&[namespace, claim]).set(amounts[at] as f64);
        }
        families.extend(gauge.collect());
    }
    if !counts.is_empty() {
        let help = "[ALPHA] Number of volumes in Volume Manager";
        let gauge: IntGaugeVec =
            unregistered("volume_manager_total_volumes", help, &["plugin_name", "state"]);
        for ((plugin, state), count) in counts {
            gauge.with_label_values(&[plugin.as_str(), *state]).set(*count);
        }
        families.extend(gauge.collect());
    }
    text(&families)
}

/// Renders as text what the logs of containers use, by the uid, namespace and name of the pod, and
/// the name of the container. Upstream: `LogMetricsCollector`.
pub fn container_logs(used: &[([String; 4], u64)]) -> Vec<u8> {
    // A metric without series has no text.
    if used.is_empty() {
        return Vec::new();
    }
    let gauge: IntGaugeVec = unregistered(
        "kubelet_container_log_filesystem_used_bytes",
        "[ALPHA] Bytes used by the container's logs on the filesystem.",
        &["uid", "namespace", "pod", "container"],
    );
    for (labels, bytes) in used {
        gauge.with_label_values(labels).set(i64::try_from(*bytes).unwrap_or(i64::MAX));
    }
    text(&gauge.collect())
}

/// Renders as text how many certificates of pods there are, by signer and state. Upstream:
/// `PodCertificateCollectorFor`.
pub fn pod_certificates(counts: &BTreeMap<(String, &'static str), i64>) -> Vec<u8> {
    // A metric without series has no text.
    if counts.is_empty() {
        return Vec::new();
    }
    let gauge: IntGaugeVec = unregistered(
        "kubelet_podcertificate_states",
        "[ALPHA] Gauge vector reporting the number of pod certificate projected volume sources, \
         faceted by signer_name and state.",
        &["signer_name", "state"],
    );
    for ((signer, state), count) in counts {
        gauge.with_label_values(&[signer.as_str(), *state]).set(*count);
    }
    text(&gauge.collect())
}

/// Observes how long the start of a pod took since its creation. `own`: without images and init
/// containers; `None`: its volumes may take any time.
pub fn observe_start(total: Duration, own: Option<Duration>) {
    POD_START_TOTAL.with_label_values(&NO_LABELS).observe(total.as_secs_f64());
    if let Some(own) = own {
        POD_START_SLI.with_label_values(&NO_LABELS).observe(own.as_secs_f64());
    }
}

/// Sets how long the first pod with a network of its own took to start; later calls are ignored.
pub fn set_first_network_start(own: Duration) {
    static IS_SET: AtomicBool = AtomicBool::new(false);
    if !IS_SET.swap(true, Ordering::Relaxed) {
        set_seconds(&FIRST_NETWORK_START, own);
    }
}

/// Sets a gauge that has no labels to a duration.
pub fn set_seconds(gauge: &GaugeVec, duration: Duration) {
    gauge.with_label_values(&NO_LABELS).set(duration.as_secs_f64());
}

/// Where a plugin is known: its socket is there, or it is registered. Upstream: the names of the
/// plugin manager's caches.
#[derive(Clone, Copy, Debug)]
pub enum PluginState {
    Desired,
    Actual,
}

/// Shows that the plugin of a socket is in a state, or not any more.
pub fn set_plugin(socket: &Path, state: PluginState, is_there: bool) {
    let socket = socket.display().to_string();
    let state = match state {
        PluginState::Desired => "desired_state_of_world",
        PluginState::Actual => "actual_state_of_world",
    };
    let labels = [&*socket, state];
    match is_there {
        true => PLUGINS.with_label_values(&labels).set(1),
        // It may not have been there.
        false => _ = PLUGINS.remove_label_values(&labels),
    }
}

/// Counts volumes that were read from the disk at the start, `failed` of them in vain: those of CSI
/// drivers with files. Upstream counts volumes of all kinds.
pub fn count_reconstructed(all: u64, failed: u64) {
    RECONSTRUCTED.inc_by(all);
    RECONSTRUCTED_ERRORS.inc_by(failed);
}

/// Counts a request for an image, with its pull policy, whether the image is there, and whether it
/// has to be pulled; `None`: that is not known. Upstream: `recordEnsureImageRequest`.
pub fn count_ensured_image(
    policy: Option<&str>,
    is_present: Option<bool>,
    needs_pull: Option<bool>,
) {
    let label = |known: Option<bool>| match known {
        Some(true) => "true",
        Some(false) => "false",
        None => "unknown",
    };
    let policy = policy.unwrap_or("IfNotPresent").to_lowercase();
    ENSURE_IMAGE.with_label_values(&[&*policy, label(is_present), label(needs_pull)]).inc();
}

/// Observes a resize of a pod's containers and cgroup. Upstream: `doPodResizeAction`.
pub fn observe_resize(is_done: bool, took: Duration) {
    let success = if is_done { "true" } else { "false" };
    RESIZE_DURATION.with_label_values(&[success]).observe(took.as_secs_f64() * 1e3);
}

/// Observes a run of a credential provider.
pub fn observe_credential_provider(name: &str, has_failed: bool, took: Duration) {
    CREDENTIAL_PROVIDER.with_label_values(&[name]).observe(took.as_secs_f64());
    if has_failed {
        CREDENTIAL_PROVIDER_ERRORS.with_label_values(&[name]).inc();
    }
}

/// Returns the label of a volume by whether it is one of an in-tree plugin, which a CSI driver has
/// taken over.
fn migrated_label(migrated: bool) -> &'static str {
    if migrated { "true" } else { "false" }
}

/// Counts an operation on a volume. `migrated`: it is one of an in-tree plugin.
pub fn observe_storage(
    plugin: &str,
    operation: &str,
    is_done: bool,
    migrated: bool,
    took: Duration,
) {
    let status = if is_done { "success" } else { "fail-unknown" };
    let labels = [plugin, operation, status, migrated_label(migrated)];
    STORAGE_OPERATION.with_label_values(&labels).observe(took.as_secs_f64());
}

/// Counts a call to a driver of volumes. `code`: by its name in Go; `migrated`: for a volume of an
/// in-tree plugin.
pub fn observe_csi(driver: &str, method: &str, code: &str, migrated: bool, took: Duration) {
    let method = format!("/{method}");
    let labels = [driver, &method, code, migrated_label(migrated)];
    CSI_OPERATION.with_label_values(&labels).observe(took.as_secs_f64());
}

metrics! {
    fn register_all;
    // Upstream: `pkg/volume/util/metrics.go`.
    static STORAGE_OPERATION:
        HistogramVec["volume_plugin", "operation_name", "status", "migrated"](STORAGE_BUCKETS) =
        "storage_operation_duration_seconds", "[ALPHA] Storage operation duration";
    static CSI_OPERATION: HistogramVec[
        "driver_name", "method_name", "grpc_status_code", "migrated"
    ](STORAGE_BUCKETS) = "csi_operations_seconds",
        "[ALPHA] Container Storage Interface operation duration with gRPC error code status total";
    // Upstream: `pkg/kubelet/volumemanager/metrics`.
    static RECONSTRUCTED: IntCounter = "reconstruct_volume_operations_total",
        "[ALPHA] The number of volumes that were attempted to be reconstructed from the operating system during kubelet startup. This includes both successful and failed reconstruction.";
    static RECONSTRUCTED_ERRORS: IntCounter = "reconstruct_volume_operations_errors_total",
        "[ALPHA] The number of volumes that failed reconstruction from the operating system during kubelet startup.";
    // Upstream: `pkg/kubelet/pluginmanager/metrics`.
    static PLUGINS: IntGaugeVec["socket_path", "state"] = "plugin_manager_total_plugins",
        "[ALPHA] Number of plugins in Plugin Manager";
    // Upstream: `pkg/kubelet/server/metrics`.
    pub static VOLUME_MEASUREMENT: HistogramVec["metric_source"] =
        "kubelet_volume_metric_collection_duration_seconds",
        "[ALPHA] Duration in seconds to calculate volume stats";
    static CLIENT_TTL: GaugeVec = "kubelet_certificate_manager_client_ttl_seconds",
        "[ALPHA] Gauge of the TTL (time-to-live) of the Kubelet's client certificate. The value is in seconds until certificate expiry (negative if already expired). If client certificate is invalid or unused, the value will be +INF.";
    static SERVING_TTL: GaugeVec = "kubelet_certificate_manager_server_ttl_seconds",
        "[ALPHA] Gauge of the shortest TTL (time-to-live) of the Kubelet's serving certificate. The value is in seconds until certificate expiry (negative if already expired). If serving certificate is invalid or unused, the value will be +INF.";
    static CLIENT_FAILURES: IntCounterVec =
        "kubelet_certificate_manager_client_expiration_renew_errors",
        "[ALPHA] Counter of certificate renewal errors.";
    static SERVING_FAILURES: IntCounterVec = "kubelet_server_expiration_renew_errors",
        "[ALPHA] Counter of certificate renewal errors.";
    static SERVING_AGE: HistogramVec(AGE_BUCKETS) =
        "kubelet_certificate_manager_server_rotation_seconds",
        "[ALPHA] Histogram of the number of seconds the previous certificate lived before being rotated.";
    pub static NODE_NAME: IntGaugeVec["node"] = "kubelet_node_name",
        "[ALPHA] The node's name. The count is always 1.";
    pub static CONTAINERS_PER_POD: Histogram(exponential(1.0, 2.0, 5)) =
        "kubelet_containers_per_pod_count",
        "[ALPHA] The number of containers per pod.";
    pub static WORKER: HistogramVec["operation_type"] = "kubelet_pod_worker_duration_seconds",
        "[ALPHA] Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync";
    pub static WORKER_START: Histogram = "kubelet_pod_worker_start_duration_seconds",
        "[ALPHA] Duration in seconds from kubelet seeing a pod to starting a worker.";
    pub static POD_START: Histogram(START_BUCKETS) = "kubelet_pod_start_duration_seconds",
        "[ALPHA] Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run";
    static POD_START_SLI: HistogramVec(START_BUCKETS) = "kubelet_pod_start_sli_duration_seconds",
        "[ALPHA] Duration in seconds to start a pod, excluding time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch";
    static POD_START_TOTAL: HistogramVec(START_BUCKETS) =
        "kubelet_pod_start_total_duration_seconds",
        "[ALPHA] Duration in seconds to start a pod since creation, including time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch";
    static FIRST_NETWORK_START: GaugeVec = "kubelet_first_network_pod_start_sli_duration_seconds",
        "[INTERNAL] Duration in seconds to start the first network pod, excluding time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch";
    pub static STARTUP_PRE_KUBELET: GaugeVec = "kubelet_node_startup_pre_kubelet_duration_seconds",
        "[ALPHA] Duration in seconds of node startup before kubelet starts.";
    pub static STARTUP_PRE_REGISTRATION: GaugeVec =
        "kubelet_node_startup_pre_registration_duration_seconds",
        "[ALPHA] Duration in seconds of node startup before registration.";
    pub static STARTUP_REGISTRATION: GaugeVec = "kubelet_node_startup_registration_duration_seconds",
        "[ALPHA] Duration in seconds of node startup during registration.";
    pub static STARTUP_POST_REGISTRATION: GaugeVec =
        "kubelet_node_startup_post_registration_duration_seconds",
        "[ALPHA] Duration in seconds of node startup after registration.";
    pub static STARTUP: GaugeVec = "kubelet_node_startup_duration_seconds",
        "[ALPHA] Duration in seconds of node startup in total.";
    pub static STATUS_SYNC: Histogram(STATUS_BUCKETS) = "kubelet_pod_status_sync_duration_seconds",
        "[ALPHA] Duration in seconds to sync a pod status update. Measures time from detection of a change to pod status until the API is successfully updated for that pod, even if multiple intevening changes to pod status occur.";
    pub static RELIST: Histogram = "kubelet_pleg_relist_duration_seconds",
        "[ALPHA] Duration in seconds for relisting pods in PLEG.";
    pub static RELIST_INTERVAL: Histogram = "kubelet_pleg_relist_interval_seconds",
        "[ALPHA] Interval in seconds between relisting in PLEG.";
    pub static POD_RELIST: Histogram = "kubelet_pleg_pod_relist_duration_seconds",
        "[ALPHA] Duration in seconds for relisting a single pod in PLEG.";
    pub static LAST_SEEN: IntGauge = "kubelet_pleg_last_seen_seconds",
        "[ALPHA] Timestamp in seconds when PLEG was last seen active.";
    pub static OPERATIONS: IntCounterVec["operation_type"] = "kubelet_runtime_operations_total",
        "[ALPHA] Cumulative number of runtime operations by operation type.";
    pub static OPERATION: HistogramVec["operation_type"](exponential(0.005, 2.5, 14)) =
        "kubelet_runtime_operations_duration_seconds",
        "[ALPHA] Duration in seconds of runtime operations. Broken down by operation type.";
    pub static OPERATION_ERRORS: IntCounterVec["operation_type"] =
        "kubelet_runtime_operations_errors_total",
        "[ALPHA] Cumulative number of runtime operation errors by operation type.";
    pub static RUN_SANDBOX: HistogramVec["runtime_handler"] =
        "kubelet_run_podsandbox_duration_seconds",
        "[ALPHA] Duration in seconds of the run_podsandbox operations. Broken down by RuntimeClass.Handler.";
    pub static RUN_SANDBOX_ERRORS: IntCounterVec["runtime_handler"] =
        "kubelet_run_podsandbox_errors_total",
        "[ALPHA] Cumulative number of the run_podsandbox operation errors by RuntimeClass.Handler.";
    pub static RUNNING_PODS: IntGauge = "kubelet_running_pods",
        "[ALPHA] Number of pods that have a running pod sandbox";
    pub static RUNNING_CONTAINERS: IntGaugeVec["container_state"] = "kubelet_running_containers",
        "[ALPHA] Number of containers currently running";
    pub static DESIRED_PODS: IntGaugeVec["static"] = "kubelet_desired_pods",
        "[ALPHA] The number of pods the kubelet is being instructed to run. static is true if the pod is not from the apiserver.";
    pub static ACTIVE_PODS: IntGaugeVec["static"] = "kubelet_active_pods",
        "[ALPHA] The number of pods the kubelet considers active and which are being considered when admitting new pods. static is true if the pod is not from the apiserver.";
    pub static MIRROR_PODS: IntGauge = "kubelet_mirror_pods",
        "[ALPHA] The number of mirror pods the kubelet will try to create (one per admitted static pod)";
    pub static ORPHANED_PODS: IntCounter = "kubelet_orphaned_runtime_pods_total",
        "[ALPHA] Number of pods that have been detected in the container runtime without being already known to the pod worker. This typically indicates the kubelet was restarted while a pod was force deleted in the API or in the local configuration, which is unusual.";
    pub static WORKING_PODS: IntGaugeVec["lifecycle", "config", "static"] = "kubelet_working_pods",
        "[ALPHA] Number of pods the kubelet is actually running, broken down by lifecycle phase, whether the pod is desired, orphaned, or runtime only (also orphaned), and whether the pod is static. An orphaned pod has been removed from local configuration or force deleted in the API and consumes resources that are not otherwise visible.";
    pub static RESTARTED_PODS: IntCounterVec["static"] = "kubelet_restarted_pods_total",
        "[ALPHA] Number of pods that have been restarted because they were deleted and recreated with the same UID while the kubelet was watching them (common for static pods, extremely uncommon for API pods)";
    pub static STARTED_PODS: IntCounter = "kubelet_started_pods_total",
        "[ALPHA] Cumulative number of pods started";
    pub static STARTED_PODS_ERRORS: IntCounter = "kubelet_started_pods_errors_total",
        "[ALPHA] Cumulative number of errors when starting pods";
    pub static STARTED_CONTAINERS: IntCounterVec["container_type"] =
        "kubelet_started_containers_total",
        "[ALPHA] Cumulative number of containers started";
    pub static STARTED_CONTAINERS_ERRORS: IntCounterVec["container_type", "code"] =
        "kubelet_started_containers_errors_total",
        "[ALPHA] Cumulative number of errors when starting containers";
    pub static TERMINATED_CONTAINERS: IntCounterVec["container_type", "exit_code", "reason"] =
        "kubelet_terminated_containers_total",
        "[ALPHA] Cumulative number of container terminations.";
    pub static IMAGE_PULL: HistogramVec["image_size_in_bytes"](PULL_BUCKETS) =
        "kubelet_image_pull_duration_seconds",
        "[ALPHA] Duration in seconds to pull an image.";
    // Upstream: `pkg/kubelet/images`, and `pullmanager` in it.
    pub static ENSURE_IMAGE: IntCounterVec["pull_policy", "present_locally", "pull_required"] =
        "kubelet_image_manager_ensure_image_requests_total",
        "[ALPHA] Number of ensure-image requests processed by the kubelet.";
    pub static IMAGE_PULL_CHECKS: IntCounterVec["result"] =
        "kubelet_imagemanager_image_mustpull_checks_total",
        "[ALPHA] Counter for how many times kubelet checked whether credentials need to be re-verified to access an image";
    pub static PULL_INTENTS: IntGauge = "kubelet_imagemanager_ondisk_pullintents",
        "[ALPHA] Number of ImagePullIntents stored on disk.";
    pub static PULLED_RECORDS: IntGauge = "kubelet_imagemanager_ondisk_pulledrecords",
        "[ALPHA] Number of ImagePulledRecords stored on disk.";
    pub static IMAGES_COLLECTED: IntCounterVec["reason"] = "kubelet_image_garbage_collected_total",
        "[ALPHA] Total number of images garbage collected by the kubelet, whether through disk usage or image age.";
    pub static EVICTIONS: IntCounterVec["eviction_signal"] = "kubelet_evictions",
        "[ALPHA] Cumulative number of pod evictions by eviction signal";
    pub static EVICTION_STATS_AGE: HistogramVec["eviction_signal"] =
        "kubelet_eviction_stats_age_seconds",
        "[ALPHA] Time between when stats are collected, and when pod is evicted based on those stats by eviction signal";
    pub static PREEMPTIONS: IntCounterVec["preemption_signal"] = "kubelet_preemptions",
        "[ALPHA] Cumulative number of pod preemptions by preemption resource";
    pub static ADMISSION_REJECTIONS: IntCounterVec["reason"] = "kubelet_admission_rejections_total",
        "[ALPHA] Cumulative number pod admission rejections by the Kubelet.";
    // Upstream: `pkg/kubelet/server/metrics`.
    pub static HTTP_REQUESTS: IntCounterVec["method", "path", "server_type", "long_running"] =
        "kubelet_http_requests_total", "[ALPHA] Number of the http requests received since the server started";
    pub static HTTP_SECONDS: HistogramVec["method", "path", "server_type", "long_running"] =
        "kubelet_http_requests_duration_seconds", "[ALPHA] Duration in seconds to serve http requests";
    pub static HTTP_INFLIGHT: IntGaugeVec["method", "path", "server_type", "long_running"] =
        "kubelet_http_inflight_requests", "[ALPHA] Number of the inflight http requests";
    static SHUTDOWN_START: GaugeVec = "kubelet_graceful_shutdown_start_time_seconds",
        "[ALPHA] Last graceful shutdown start time since unix epoch in seconds";
    static SHUTDOWN_END: GaugeVec = "kubelet_graceful_shutdown_end_time_seconds",
        "[ALPHA] Last graceful shutdown end time since unix epoch in seconds";
    pub static REQUESTED_RESIZES: IntCounterVec["resource", "requirement", "operation"] =
        "kubelet_container_requested_resizes_total",
        "[ALPHA] Number of requested resizes, counted at the container level. Different resources on the same container are counted separately. The 'requirement' label refers to 'memory' or 'limits'; the 'operation' label can be one of 'add', 'remove', 'increase' or 'decrease'.";
    pub static PENDING_RESIZES: IntGaugeVec["reason"] = "kubelet_pod_pending_resizes",
        "[ALPHA] Number of pending resizes for pods.";
    pub static RESIZES_IN_PROGRESS: IntGauge = "kubelet_pod_in_progress_resizes",
        "[ALPHA] Number of in-progress resizes for pods.";
    static RESIZE_DURATION: HistogramVec["success"](RESIZE_BUCKETS) =
        "kubelet_pod_resize_duration_milliseconds",
        "[ALPHA] Duration in milliseconds to actuate a pod resize";
    pub static DEFERRED_ACCEPTED_RESIZES: IntCounterVec["retry_trigger"] =
        "kubelet_pod_deferred_accepted_resizes_total",
        "[ALPHA] Cumulative number of resizes that were accepted after being deferred.";
    // Upstream: `pkg/credentialprovider/plugin`.
    pub static CREDENTIAL_PROVIDER_ERRORS: IntCounterVec["plugin_name"] =
        "kubelet_credential_provider_plugin_errors_total",
        "[ALPHA] Number of errors from credential provider plugin";
    static CREDENTIAL_PROVIDER: HistogramVec["plugin_name"] =
        "kubelet_credential_provider_plugin_duration",
        "[ALPHA] Duration of execution in seconds for credential provider plugin";
    pub static HOOK_FALLBACKS: IntCounter = "kubelet_lifecycle_handler_http_fallbacks_total",
        "[ALPHA] The number of times lifecycle handlers successfully fell back to http from https.";
    pub static SLEEPS_ENDED_EARLY: IntCounter = "kubelet_sleep_action_terminated_early_total",
        "[ALPHA] The number of times lifecycle sleep handler got terminated before it finishes";
    pub static ORPHANS_CLEANED: IntGauge = "kubelet_orphan_pod_cleaned_volumes",
        "[ALPHA] The total number of orphaned Pods whose volumes were cleaned in the last periodic sweep.";
    pub static ORPHANS_NOT_CLEANED: IntGauge = "kubelet_orphan_pod_cleaned_volumes_errors",
        "[ALPHA] The number of orphaned Pods whose volumes failed to be cleaned in the last periodic sweep.";
    pub static CGROUP_VERSION: IntGauge = "kubelet_cgroup_version",
        "[ALPHA] cgroup version on the hosts.";
    pub static CGROUP_OPERATION: HistogramVec["operation_type"] =
        "kubelet_cgroup_manager_duration_seconds",
        "[ALPHA] Duration in seconds for cgroup manager operations. Broken down by method.";
    pub static IMAGE_VOLUMES: IntCounter = "kubelet_image_volume_requested_total",
        "[BETA] Number of requested image volumes.";
    pub static IMAGE_VOLUMES_MOUNTED: IntCounter = "kubelet_image_volume_mounted_succeed_total",
        "[BETA] Number of successful image volume mounts.";
    pub static IMAGE_VOLUME_ERRORS: IntCounter = "kubelet_image_volume_mounted_errors_total",
        "[BETA] Number of failed image volume mounts.";
    pub static EPHEMERAL_CONTAINERS: IntGauge = "kubelet_managed_ephemeral_containers",
        "[ALPHA] Current number of ephemeral containers in pods managed by this kubelet.";
    pub static STARTED_USER_PODS: IntCounter = "kubelet_started_user_namespaced_pods_total",
        "[ALPHA] Cumulative number of pods with user namespaces started. This metric will only be collected on Linux.";
    pub static STARTED_USER_PODS_ERRORS: IntCounter =
        "kubelet_started_user_namespaced_pods_errors_total",
        "[ALPHA] Cumulative number of errors when starting pods with user namespaces. This metric will only be collected on Linux.";
    static PROVIDER: IntGaugeVec["provider"] = "kubelet_metrics_provider",
        "[ALPHA] Metrics provider used by kubelet to collect container stats. Values can be 'cadvisor' and 'cri'";
}

/// Registers all metrics, so that those without labels are served at zero too.
pub fn register() {
    register_all();
    process_stats::register();
    // What cAdvisor counts is read from the same files.
    PROVIDER.with_label_values(&["cadvisor"]).set(1);
    set_shutdown(0.0, 0.0);
    for gauge in [
        &FIRST_NETWORK_START,
        &STARTUP_PRE_KUBELET,
        &STARTUP_PRE_REGISTRATION,
        &STARTUP_REGISTRATION,
        &STARTUP_POST_REGISTRATION,
        &STARTUP,
    ] {
        set_seconds(gauge, Duration::ZERO);
    }
}

/// Sets when the last shutdown of the machine began and ended, in seconds since 1970; 0: not yet.
pub fn set_shutdown(start: f64, end: f64) {
    SHUTDOWN_START.with_label_values(&NO_LABELS).set(start);
    SHUTDOWN_END.with_label_values(&NO_LABELS).set(end);
}

/// Returns the label `static` of a pod: `true` or empty.
pub fn static_label(is_static: bool) -> &'static str {
    if is_static { "true" } else { "" }
}

/// Counts a call to the runtime, by upstream's name of its method.
pub fn observe_operation(method: &str, took: Duration, is_error: bool) {
    let operation = operation(method);
    OPERATIONS.with_label_values(&[operation]).inc();
    OPERATION.with_label_values(&[operation]).observe(took.as_secs_f64());
    if is_error {
        OPERATION_ERRORS.with_label_values(&[operation]).inc();
    }
}

/// Returns the metric's label of a CRI method. Upstream: `instrumented_services.go`.
fn operation(method: &str) -> &'static str {
    match method.rsplit('/').next().unwrap_or_default() {
        "Version" => "version",
        "Status" => "status",
        "RuntimeConfig" => "runtime_config",
        "UpdateRuntimeConfig" => "update_runtime_config",
        "RunPodSandbox" => "run_podsandbox",
        "StopPodSandbox" => "stop_podsandbox",
        "RemovePodSandbox" => "remove_podsandbox",
        "PodSandboxStatus" => "podsandbox_status",
        "ListPodSandbox" => "list_podsandbox",
        "CreateContainer" => "create_container",
        "StartContainer" => "start_container",
        "StopContainer" => "stop_container",
        "RemoveContainer" => "remove_container",
        "ListContainers" => "list_containers",
        "ContainerStatus" => "container_status",
        "ContainerStats" => "container_stats",
        "ListContainerStats" => "list_container_stats",
        "UpdateContainerResources" => "update_container",
        "UpdatePodSandboxResources" => "update_podsandbox_resources",
        "ReopenContainerLog" => "reopen_container_log",
        "ExecSync" => "exec_sync",
        "Exec" => "exec",
        "Attach" => "attach",
        "PortForward" => "port_forward",
        "GetContainerEvents" => "get_container_events",
        "ListImages" => "list_images",
        "ImageStatus" => "image_status",
        "PullImage" => "pull_image",
        "RemoveImage" => "remove_image",
        "ImageFsInfo" => "image_fs_info",
        _ => "other",
    }
}

/// Returns the label of an image's size. Upstream: `GetImageSizeBucket`.
pub fn image_size(bytes: u64) -> &'static str {
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    let sizes = [
        (100 * GIB, "GT100GB"),
        (60 * GIB, "60GB-100GB"),
        (40 * GIB, "40GB-60GB"),
        (30 * GIB, "30GB-40GB"),
        (20 * GIB, "20GB-30GB"),
        (10 * GIB, "10GB-20GB"),
        (5 * GIB, "5GB-10GB"),
        (GIB, "1GB-5GB"),
        (500 * MIB, "500MB-1GB"),
        (100 * MIB, "100MB-500MB"),
        (10 * MIB, "10MB-100MB"),
        (0, "0-10MB"),
    ];
    // An image without a size has no label, as upstream.
    sizes.into_iter().find(|(above, _)| bytes > *above).map_or("", |(_, label)| label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_counted_until_their_pod_ends() {
        let metrics = ProbeMetrics::new();
        let probe = ["Readiness", "c", "p", "n"];
        metrics.observe(probe, "u", true, Duration::from_millis(20));
        metrics.observe(probe, "u", false, Duration::ZERO);
        let page = || String::from_utf8(metrics.render()).expect("text");
        let labels = "container=\"c\",namespace=\"n\",pod=\"p\"";
        for line in [
            format!("total{{{labels},pod_uid=\"u\",probe_type=\"Readiness\",result=\"failed\"}} 1"),
            format!("seconds_count{{{labels},probe_type=\"Readiness\"}} 1"),
        ] {
            assert!(page().contains(&line), "{line}: {}", page());
        }
        metrics.remove(probe, "u");
        assert_eq!(page(), "");
    }

    #[test]
    fn certificates_of_pods_are_counted_by_signer_and_state() {
        assert!(pod_certificates(&BTreeMap::new()).is_empty());
        let counts = [(("example.com/s".to_owned(), "fresh"), 2)].into();
        let page = String::from_utf8(pod_certificates(&counts)).expect("text");
        let expected =
            "kubelet_podcertificate_states{signer_name=\"example.com/s\",state=\"fresh\"} 2";
        assert_eq!(page.lines().last(), Some(expected));
    }

    #[test]
    fn volumes_are_shown_by_their_claims_and_plugins() {
        let none = volumes(&BTreeMap::new(), &BTreeMap::new());
        assert!(none.is_empty());
        let claims = [(("n".to_owned(), "c".to_owned()), [6, 5, 4, 3, 2, 1])].into();
        let counts = [(("kubernetes.io/csi:d".to_owned(), "actual_state_of_world"), 7)].into();
        let page = String::from_utf8(volumes(&claims, &counts)).expect("text");
        let lines: Vec<&str> = page.lines().filter(|line| !line.starts_with('#')).collect();
        let labels = "{namespace=\"n\",persistentvolumeclaim=\"c\"}";
        let expected = [
            format!("kubelet_volume_stats_capacity_bytes{labels} 6"),
            format!("kubelet_volume_stats_available_bytes{labels} 5"),
            format!("kubelet_volume_stats_used_bytes{labels} 4"),
            format!("kubelet_volume_stats_inodes{labels} 3"),
            format!("kubelet_volume_stats_inodes_free{labels} 2"),
            format!("kubelet_volume_stats_inodes_used{labels} 1"),
            "volume_manager_total_volumes{plugin_name=\"kubernetes.io/csi:d\",\
             state=\"actual_state_of_world\"} 7"
                .to_owned(),
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn operations_say_whether_their_volume_is_of_an_in_tree_plugin() {
        for (migrated, label) in [(false, "false"), (true, "true")] {
            observe_storage("p", "volume_mount", true, migrated, Duration::ZERO);
            observe_csi("d", "m", "OK", migrated, Duration::ZERO);
            let page = String::from_utf8(metrics::render()).expect("text");
            for line in [
                format!(
                    "storage_operation_duration_seconds_count{{migrated=\"{label}\",\
                     operation_name=\"volume_mount\",status=\"success\",volume_plugin=\"p\"}} 1\n"
                ),
                format!(
                    "csi_operations_seconds_count{{driver_name=\"d\",grpc_status_code=\"OK\",\
                     method_name=\"/m\",migrated=\"{label}\"}} 1\n"
                ),
            ] {
                assert!(page.contains(&line), "{line}: {page}");
            }
        }
    }

    #[test]
    fn life_of_a_certificate_is_served_in_seconds() {
        let now = Timestamp::from_secs(1000);
        let line = |now: Timestamp| {
            let page = String::from_utf8(render(now)).expect("text");
            let name = "kubelet_certificate_manager_server_ttl_seconds ";
            page.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned)
        };
        assert_eq!(line(now), None, "it is not renewed");
        let serving = CertificateMetrics::Serving;
        serving.begin();
        assert_eq!(line(now).map(|value| value.to_lowercase()).as_deref(), Some("inf"));
        serving.set_expiration(Timestamp::from_secs(1060));
        assert_eq!(line(now).as_deref(), Some("60"));
        assert_eq!(line(Timestamp::from_micros(1_061_500_000)).as_deref(), Some("-1"));
        let page = String::from_utf8(render(now)).expect("text");
        for zero in [
            "kubelet_server_expiration_renew_errors 0",
            "kubelet_certificate_manager_server_rotation_seconds_count 0",
        ] {
            assert!(page.contains(zero), "{zero}");
        }
    }

    #[test]
    fn sizes_of_images_are_grouped() {
        for (bytes, label) in [
            (0, ""),
            (1, "0-10MB"),
            (10 << 20, "0-10MB"),
            ((10 << 20) + 1, "10MB-100MB"),
            (2 << 30, "1GB-5GB"),
            (200 << 30, "GT100GB"),
        ] {
            assert_eq!(image_size(bytes), label, "{bytes}");
        }
    }

    #[test]
    fn each_method_of_the_client_has_upstreams_name() {
        let sources = [include_str!("cri/runtime.rs"), include_str!("cri/images.rs")].concat();
        let mut methods = 0;
        for quoted in sources.split('"').skip(1).step_by(2) {
            let name = quoted.rsplit('/').next().unwrap_or_default();
            let is_method =
                name.starts_with(|c: char| c.is_ascii_uppercase()) && !name.ends_with("Service");
            if is_method {
                methods += 1;
                assert_ne!(operation(name), "other", "{name}");
            }
        }
        assert!(methods > 15, "{methods}");
    }
}
