//! `KubeletConfiguration` v1beta1. Each field is honoured, refused, or named in the log as without
//! effect. Upstream: `staging/src/k8s.io/kubelet/config/v1beta1`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use kube_controller_manager::options::parse_duration;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The fields that are honoured; durations in Go's form.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct Configuration {
    #[serde(rename = "staticPodPath")]
    pub static_pod_path: Option<String>,
    #[serde(rename = "staticPodURL")]
    pub static_pod_url: Option<String>,
    #[serde(rename = "staticPodURLHeader")]
    pub static_pod_url_header: BTreeMap<String, Vec<String>>,
    pub sync_frequency: Option<GoDuration>,
    pub file_check_frequency: Option<GoDuration>,
    #[serde(rename = "httpCheckFrequency")]
    pub http_check_frequency: Option<GoDuration>,
    pub address: Option<String>,
    pub read_only_port: Option<u16>,
    pub healthz_port: Option<u16>,
    pub healthz_bind_address: Option<String>,
    pub container_runtime_endpoint: Option<String>,
    pub image_service_endpoint: Option<String>,
    pub runtime_request_timeout: Option<GoDuration>,
    pub resolv_conf: Option<String>,
    pub serialize_image_pulls: Option<bool>,
    pub max_parallel_image_pulls: Option<i32>,
    pub cgroup_root: Option<String>,
    pub pod_logs_dir: Option<String>,
    pub crash_loop_back_off: CrashLoopBackOff,
    #[serde(rename = "clusterDNS")]
    pub cluster_dns: Vec<String>,
    pub cluster_domain: Option<String>,
    #[serde(rename = "kubeAPIQPS")]
    pub kube_api_qps: Option<i32>,
    #[serde(rename = "kubeAPIBurst")]
    pub kube_api_burst: Option<u32>,
    #[serde(rename = "imageGCHighThresholdPercent")]
    pub image_gc_high_threshold_percent: Option<i32>,
    #[serde(rename = "imageGCLowThresholdPercent")]
    pub image_gc_low_threshold_percent: Option<i32>,
    #[serde(rename = "imageMinimumGCAge")]
    pub image_minimum_gc_age: Option<GoDuration>,
    #[serde(rename = "imageMaximumGCAge")]
    pub image_maximum_gc_age: Option<GoDuration>,
    pub container_log_max_size: Option<String>,
    pub container_log_max_files: Option<i32>,
    pub container_log_max_workers: Option<i32>,
    pub container_log_monitor_interval: Option<GoDuration>,
    #[serde(rename = "cgroupsPerQOS")]
    pub cgroups_per_qos: Option<bool>,
    pub cgroup_driver: Option<String>,
    pub enforce_node_allocatable: Option<Vec<String>>,
    pub pod_pids_limit: Option<i64>,
    pub oom_score_adj: Option<i32>,
    pub eviction_hard: Option<BTreeMap<String, String>>,
    pub eviction_soft: BTreeMap<String, String>,
    pub eviction_soft_grace_period: BTreeMap<String, String>,
    pub eviction_minimum_reclaim: BTreeMap<String, String>,
    pub eviction_max_pod_grace_period: Option<i32>,
    pub merge_default_eviction_settings: Option<bool>,
    pub volume_stats_agg_period: Option<GoDuration>,
    pub local_storage_capacity_isolation: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct CrashLoopBackOff {
    pub max_container_restart_period: Option<GoDuration>,
}

/// A duration such as `1m30s`.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub struct GoDuration(pub Duration);

impl TryFrom<String> for GoDuration {
    type Error = String;

    fn try_from(text: String) -> Result<GoDuration, String> {
        parse_duration(&text).map(GoDuration)
    }
}

impl Configuration {
    /// The most parallel pulls; `None`: no limit.
    /// Upstream: `SetDefaults_KubeletConfiguration`, `ValidateKubeletConfiguration`.
    ///
    /// # Errors
    /// One line that names the field.
    pub fn max_parallel_pulls(&self) -> Result<Option<usize>, String> {
        let max = self.max_parallel_image_pulls;
        if let Some(max) = max.filter(|max| *max < 1) {
            return Err(format!("maxParallelImagePulls {max} must be a positive number"));
        }
        let is_serial = self.serialize_image_pulls.unwrap_or(max.is_none_or(|max| max < 2));
        if is_serial && max > Some(1) {
            return Err(
                "maxParallelImagePulls cannot be larger than 1 unless serializeImagePulls \
                        (--serialize-image-pulls) is set to false"
                    .to_owned(),
            );
        }
        let limit = if is_serial { Some(1) } else { max };
        Ok(limit.and_then(|limit| usize::try_from(limit).ok()))
    }
}

const HONOURED: [&str; 44] = [
    "staticPodPath",
    "staticPodURL",
    "staticPodURLHeader",
    "syncFrequency",
    "fileCheckFrequency",
    "httpCheckFrequency",
    "address",
    "readOnlyPort",
    "healthzPort",
    "healthzBindAddress",
    "containerRuntimeEndpoint",
    "imageServiceEndpoint",
    "runtimeRequestTimeout",
    "resolvConf",
    "serializeImagePulls",
    "maxParallelImagePulls",
    "cgroupRoot",
    "podLogsDir",
    "crashLoopBackOff",
    "clusterDNS",
    "clusterDomain",
    "kubeAPIQPS",
    "kubeAPIBurst",
    "imageGCHighThresholdPercent",
    "imageGCLowThresholdPercent",
    "imageMinimumGCAge",
    "imageMaximumGCAge",
    "containerLogMaxSize",
    "containerLogMaxFiles",
    "containerLogMaxWorkers",
    "containerLogMonitorInterval",
    "cgroupsPerQOS",
    "cgroupDriver",
    "enforceNodeAllocatable",
    "podPidsLimit",
    "oomScoreAdj",
    "evictionHard",
    "evictionSoft",
    "evictionSoftGracePeriod",
    "evictionMinimumReclaim",
    "evictionMaxPodGracePeriod",
    "mergeDefaultEvictionSettings",
    "volumeStatsAggPeriod",
    "localStorageCapacityIsolation",
];

/// Fields that are accepted with one value, which is how this kubelet works.
const FIXED: [(&str, &str); 5] = [
    ("enableServer", "false"),
    ("failSwapOn", "false"),
    ("failCgroupV1", "false"),
    ("makeIPTablesUtilChains", "false"),
    ("cpuManagerPolicy", "\"none\""),
];

/// Fields that matter only with an API server, or to parts that have nothing to do.
const WITHOUT_EFFECT: [&str; 16] = [
    "authentication",
    "authorization",
    "configMapAndSecretChangeDetectionStrategy",
    "contentType",
    "eventBurst",
    "eventRecordQPS",
    "evictionPressureTransitionPeriod",
    "nodeLeaseDurationSeconds",
    "nodeStatusMaxImages",
    "nodeStatusReportFrequency",
    "nodeStatusUpdateFrequency",
    "providerID",
    "registerNode",
    "registerWithTaints",
    "rotateCertificates",
    "serverTLSBootstrap",
];

/// Upstream's other fields: they would change what this kubelet does, and it does not do it.
const REFUSED: &str = "allowedUnsafeSysctls cpuCFSQuota cpuCFSQuotaPeriod cpuManagerPolicyOptions \
    cpuManagerReconcilePeriod enableContentionProfiling enableControllerAttachDetach \
    enableDebugFlagsHandler enableDebuggingHandlers enableProfilingHandler enableSystemLogHandler \
    enableSystemLogQuery featureGates hairpinMode imagePullCredentialsVerificationPolicy \
    iptablesDropBit iptablesMasqueradeBit kernelMemcgNotification kubeReserved kubeReservedCgroup \
    kubeletCgroups logging maxOpenFiles maxPods memoryManagerPolicy \
    memoryReservationPolicy memorySwap memoryThrottlingFactor podCIDR podsPerCore port \
    preloadedImagesVerificationAllowlist protectKernelDefaults qosReserved registryBurst \
    registryPullQPS reservedMemory reservedSystemCPUs runOnce seccompDefault \
    showHiddenMetricsForVersion shutdownGracePeriod shutdownGracePeriodByPodPriority \
    shutdownGracePeriodCriticalPods singleProcessOOMKill streamingConnectionIdleTimeout \
    systemCgroups systemReserved systemReservedCgroup tlsCertFile tlsCipherSuites \
    tlsCurvePreferences tlsMinVersion tlsPrivateKeyFile topologyManagerPolicy \
    topologyManagerPolicyOptions topologyManagerScope tracing userNamespaces volumePluginDir";

/// The fields that are not refused.
pub fn accepted_fields() -> impl Iterator<Item = &'static str> {
    let fixed = FIXED.iter().map(|(field, _)| *field);
    HONOURED.into_iter().chain(fixed).chain(WITHOUT_EFFECT)
}

/// Reads a configuration file, and the files `*.conf` of the drop-in folder on top of it, in the
/// order of their names.
///
/// # Errors
/// One line that names the file, and the field where there is one.
pub fn read(file: Option<&str>, folder: Option<&str>) -> Result<Configuration, String> {
    let mut merged = json!({});
    for file in file.map(str::to_owned).into_iter().chain(drop_ins(folder)?) {
        let document = load(&file).map_err(|fault| format!("{file}: {fault}"))?;
        merge(&mut merged, Value::Object(document));
    }
    let configuration: Configuration = serde_json::from_value(merged)
        .map_err(|error| format!("the kubelet's configuration: {error}"))?;
    Ok(configuration)
}

fn drop_ins(folder: Option<&str>) -> Result<Vec<String>, String> {
    let Some(folder) = folder else { return Ok(Vec::new()) };
    let entries = fs::read_dir(folder).map_err(|error| format!("{folder}: {error}"))?;
    let mut files: Vec<String> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| Path::extension(path).is_some_and(|extension| extension == "conf"))
        .map(|path| path.display().to_string())
        .collect();
    files.sort();
    Ok(files)
}

fn load(file: &str) -> Result<Map<String, Value>, String> {
    let text = fs::read_to_string(file).map_err(|error| error.to_string())?;
    let document: Value = serde_yaml_ng::from_str(&text).map_err(|error| error.to_string())?;
    checked(document)
}

/// The honoured fields of a document.
fn checked(document: Value) -> Result<Map<String, Value>, String> {
    let Value::Object(mut fields) = document else {
        return Err("the document is not an object".to_owned());
    };
    let mut text = |field: &str| match fields.remove(field) {
        Some(Value::String(text)) => text,
        _ => String::new(),
    };
    let (version, kind) = (text("apiVersion"), text("kind"));
    if (version.as_str(), kind.as_str())
        != ("kubelet.config.k8s.io/v1beta1", "KubeletConfiguration")
    {
        return Err(format!("no kind {kind:?} is registered for version {version:?}"));
    }
    let mut honoured = Map::new();
    for (field, value) in fields {
        let field_name = field.as_str();
        if value.is_null() {
            continue;
        } else if HONOURED.contains(&field_name) {
            honoured.insert(field, value);
        } else if let Some((_, only)) = FIXED.iter().find(|(fixed, _)| *fixed == field_name) {
            let given = value.to_string();
            if given != *only {
                return Err(format!("{field}: {given} is not supported, only {only}"));
            }
        } else if WITHOUT_EFFECT.contains(&field_name) {
            log::warn!("{field} has no effect without an API server");
        } else if REFUSED.split_whitespace().any(|refused| refused == field_name) {
            return Err(format!("{field} is not supported yet: see docs/kubelet-flags.md"));
        } else {
            return Err(format!("strict decoding error: unknown field {field:?}"));
        }
    }
    Ok(honoured)
}

/// Objects are merged, all else is replaced.
fn merge(base: &mut Value, other: Value) {
    match (base, other) {
        (Value::Object(base), Value::Object(other)) => {
            for (field, value) in other {
                merge(base.entry(field).or_insert(Value::Null), value);
            }
        }
        (base, other) => *base = other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(more: Value) -> Value {
        let mut document = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        });
        merge(&mut document, more);
        document
    }

    #[test]
    fn max_parallel_pulls_follow_both_fields() {
        let positive = "maxParallelImagePulls 0 must be a positive number";
        let conflict = "maxParallelImagePulls cannot be larger than 1 unless serializeImagePulls \
                        (--serialize-image-pulls) is set to false";
        for (is_serial, max, expected) in [
            (None, None, Ok(Some(1))),
            (Some(true), None, Ok(Some(1))),
            (Some(true), Some(1), Ok(Some(1))),
            (Some(true), Some(2), Err(conflict)),
            (Some(false), None, Ok(None)),
            (Some(false), Some(1), Ok(Some(1))),
            (Some(false), Some(3), Ok(Some(3))),
            (None, Some(1), Ok(Some(1))),
            (None, Some(2), Ok(Some(2))),
            (Some(false), Some(0), Err(positive)),
        ] {
            let configuration = Configuration {
                serialize_image_pulls: is_serial,
                max_parallel_image_pulls: max,
                ..Configuration::default()
            };
            let expected = expected.map_err(str::to_owned);
            assert_eq!(configuration.max_parallel_pulls(), expected, "{is_serial:?} {max:?}");
        }
    }

    #[test]
    fn each_field_is_honoured_refused_or_unknown() {
        for (more, fault) in [
            (json!({}), None),
            (json!({"staticPodPath": "/a", "registerNode": true}), None),
            (json!({"failSwapOn": false}), None),
            (json!({"failSwapOn": true}), Some("failSwapOn: true is not supported, only false")),
            (
                json!({"memorySwap": {}}),
                Some("memorySwap is not supported yet: see docs/kubelet-flags.md"),
            ),
            (json!({"x": 1}), Some("strict decoding error: unknown field \"x\"")),
            (
                json!({"kind": "Pod"}),
                Some("no kind \"Pod\" is registered for version \"kubelet.config.k8s.io/v1beta1\""),
            ),
        ] {
            let outcome = checked(document(more.clone()));
            assert_eq!(outcome.err().as_deref(), fault, "{more}");
        }
    }

    #[test]
    fn durations_have_gos_form() {
        let read = |text: &str| {
            let fields = json!({"syncFrequency": text});
            serde_json::from_value::<Configuration>(fields)
        };
        let configuration = read("1m30s").expect("a configuration");
        assert_eq!(configuration.sync_frequency, Some(GoDuration(Duration::from_secs(90))));
        let fault = read("90").expect_err("no unit").to_string();
        assert!(fault.contains("90"), "{fault}");
    }

    #[test]
    fn later_files_win() {
        let mut merged = json!({"a": 1, "b": {"c": 2}, "d": [1]});
        merge(&mut merged, json!({"a": 3, "b": {"e": 4}, "d": [2]}));
        assert_eq!(merged, json!({"a": 3, "b": {"c": 2, "e": 4}, "d": [2]}));
    }
}
