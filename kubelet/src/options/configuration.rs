//! The fields of `KubeletConfiguration` v1beta1 that are honoured, with their defaults and checks.
//! Upstream: `staging/src/k8s.io/kubelet/config/v1beta1`.

use std::collections::BTreeMap;

use kube_controller_manager::options::{Release, feature_gates, tls_faults};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::Error;
use super::values::{FeatureGates, GoDuration, Headers, Pairs, Taints};
use crate::node::machine_info::count_cpus;

/// The fields that are honoured; durations in Go's form.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Configuration {
    /// Empty: there is no folder.
    pub static_pod_path: String,
    /// Empty: there is no URL.
    #[serde(rename = "staticPodURL")]
    pub static_pod_url: String,
    #[serde(rename = "staticPodURLHeader")]
    pub static_pod_url_header: Headers,
    pub sync_frequency: GoDuration,
    pub file_check_frequency: GoDuration,
    #[serde(rename = "httpCheckFrequency")]
    pub http_check_frequency: GoDuration,
    /// `None`: with an API server.
    pub enable_server: Option<bool>,
    pub address: String,
    pub port: u16,
    /// 0: none.
    pub read_only_port: u16,
    pub authentication: Authentication,
    pub authorization: Authorization,
    pub enable_debugging_handlers: bool,
    pub enable_profiling_handler: bool,
    pub enable_debug_flags_handler: bool,
    pub enable_system_log_handler: bool,
    /// Streams without a byte in this time are closed.
    pub streaming_connection_idle_timeout: GoDuration,
    /// 0: none.
    pub healthz_port: u16,
    pub healthz_bind_address: String,
    pub container_runtime_endpoint: String,
    /// Empty: the runtime's.
    pub image_service_endpoint: String,
    pub runtime_request_timeout: GoDuration,
    /// Empty: none.
    pub resolv_conf: String,
    /// `None`: unless several pulls are allowed.
    pub serialize_image_pulls: Option<bool>,
    pub max_parallel_image_pulls: Option<i32>,
    /// Empty: the feature gate is off.
    pub image_pull_credentials_verification_policy: String,
    /// Images that one of the policies exempts.
    pub preloaded_images_verification_allowlist: Vec<String>,
    pub feature_gates: FeatureGates,
    pub cgroup_root: String,
    pub pod_logs_dir: String,
    pub crash_loop_back_off: CrashLoopBackOff,
    #[serde(rename = "clusterDNS")]
    pub cluster_dns: Vec<String>,
    pub cluster_domain: String,
    #[serde(rename = "kubeAPIQPS")]
    pub kube_api_qps: i32,
    #[serde(rename = "kubeAPIBurst")]
    pub kube_api_burst: u32,
    #[serde(rename = "imageGCHighThresholdPercent")]
    pub image_gc_high_threshold_percent: i32,
    #[serde(rename = "imageGCLowThresholdPercent")]
    pub image_gc_low_threshold_percent: i32,
    #[serde(rename = "imageMinimumGCAge")]
    pub image_minimum_gc_age: GoDuration,
    /// Zero: images may be of any age.
    #[serde(rename = "imageMaximumGCAge")]
    pub image_maximum_gc_age: GoDuration,
    pub container_log_max_size: String,
    pub container_log_max_files: i32,
    pub container_log_max_workers: i32,
    pub container_log_monitor_interval: GoDuration,
    #[serde(rename = "cgroupsPerQOS")]
    pub cgroups_per_qos: bool,
    pub cgroup_driver: String,
    /// `None`: the pods, where there are cgroups for classes.
    pub enforce_node_allocatable: Option<Vec<String>>,
    /// Not positive: no limit.
    pub pod_pids_limit: i64,
    /// Sysctls that pods may set beside the safe ones; a name may end with `*`.
    pub allowed_unsafe_sysctls: Vec<String>,
    pub oom_score_adj: i32,
    /// The limit of open files of this process; 0: the soft limit is raised to the hard one.
    pub max_open_files: i64,
    /// The cgroup that this process moves to; empty: it stays where it is.
    pub kubelet_cgroups: String,
    /// The kubelet does not start where swap is on.
    pub fail_swap_on: bool,
    /// The kubelet does not start with cgroup v1.
    pub fail_cgroup_v1: bool,
    /// The kubelet does not start if settings of the kernel differ from upstream's.
    pub protect_kernel_defaults: bool,
    /// Containers that name no seccomp profile get the runtime's.
    pub seccomp_default: bool,
    /// `None`: in version 2 of cgroups, all processes of a container are killed.
    #[serde(rename = "singleProcessOOMKill")]
    pub single_process_oom_kill: Option<bool>,
    pub logging: Logging,
    /// `None`: upstream's thresholds.
    pub eviction_hard: Option<Pairs<'<'>>,
    pub eviction_soft: Pairs<'<'>,
    pub eviction_soft_grace_period: Pairs<'='>,
    pub eviction_minimum_reclaim: Pairs<'='>,
    pub eviction_max_pod_grace_period: i32,
    pub merge_default_eviction_settings: bool,
    /// How long a pressure stays in the Node's status.
    pub eviction_pressure_transition_period: GoDuration,
    /// Zero: pods are not ended when the machine shuts down.
    pub shutdown_grace_period: GoDuration,
    /// The last part of it.
    pub shutdown_grace_period_critical_pods: GoDuration,
    pub shutdown_grace_period_by_pod_priority: Vec<PriorityGrace>,
    pub volume_stats_agg_period: GoDuration,
    pub local_storage_capacity_isolation: bool,
    pub register_node: bool,
    pub register_with_taints: Taints,
    /// Empty: the runtime is given the Node's alone.
    #[serde(rename = "podCIDR")]
    pub pod_cidr: String,
    /// Empty: a cloud's controller sets it.
    #[serde(rename = "providerID")]
    pub provider_id: String,
    pub node_status_update_frequency: GoDuration,
    pub node_status_report_frequency: GoDuration,
    pub node_lease_duration_seconds: i32,
    /// -1: all.
    pub node_status_max_images: i32,
    pub max_pods: i32,
    pub user_namespaces: UserNamespaces,
    /// 0: no limit.
    pub pods_per_core: i32,
    pub kube_reserved: Pairs<'='>,
    pub kube_reserved_cgroup: String,
    pub system_reserved: Pairs<'='>,
    pub system_reserved_cgroup: String,
    /// Empty: none.
    #[serde(rename = "reservedSystemCPUs")]
    pub reserved_system_cpus: String,
    pub enable_controller_attach_detach: bool,
    #[serde(rename = "eventRecordQPS")]
    pub event_record_qps: i32,
    pub event_burst: i32,
    pub rotate_certificates: bool,
    #[serde(rename = "serverTLSBootstrap")]
    pub server_tls_bootstrap: bool,
    /// Empty: none, as the key.
    pub tls_cert_file: String,
    pub tls_private_key_file: String,
    /// Go's names; empty: all.
    pub tls_cipher_suites: Vec<String>,
    /// Go's name of the oldest version; empty: 1.2.
    pub tls_min_version: String,
}

/// Who may ask the kubelet's port.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Authentication {
    pub x509: X509Authentication,
    pub webhook: WebhookAuthentication,
    pub anonymous: AnonymousAuthentication,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct X509Authentication {
    /// Empty: none.
    #[serde(rename = "clientCAFile")]
    pub client_ca_file: String,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct WebhookAuthentication {
    pub enabled: bool,
    #[serde(rename = "cacheTTL")]
    pub cache_ttl: GoDuration,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct AnonymousAuthentication {
    pub enabled: bool,
}

/// What they may ask.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Authorization {
    /// `AlwaysAllow` or `Webhook`.
    pub mode: String,
    pub webhook: WebhookAuthorization,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct WebhookAuthorization {
    #[serde(rename = "cacheAuthorizedTTL")]
    pub cache_authorized_ttl: GoDuration,
    #[serde(rename = "cacheUnauthorizedTTL")]
    pub cache_unauthorized_ttl: GoDuration,
}

impl Default for WebhookAuthentication {
    fn default() -> WebhookAuthentication {
        WebhookAuthentication { enabled: true, cache_ttl: GoDuration::from_secs(120) }
    }
}

impl Default for Authorization {
    fn default() -> Authorization {
        Authorization { mode: WEBHOOK.into(), webhook: WebhookAuthorization::default() }
    }
}

impl Default for WebhookAuthorization {
    fn default() -> WebhookAuthorization {
        WebhookAuthorization {
            cache_authorized_ttl: GoDuration::from_secs(300),
            cache_unauthorized_ttl: GoDuration::from_secs(30),
        }
    }
}

/// The modes of authorization.
pub const WEBHOOK: &str = "Webhook";
pub const ALWAYS_ALLOW: &str = "AlwaysAllow";

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CrashLoopBackOff {
    pub max_container_restart_period: GoDuration,
}

/// How the log is written. Upstream: `LoggingConfiguration`.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Logging {
    /// `text` or `json`.
    pub format: String,
    /// As `--v`.
    pub verbosity: u32,
    /// Has no effect, as the options: lines are written at once.
    #[serde(skip_serializing)]
    pub flush_frequency: IgnoredAny,
    #[serde(skip_serializing)]
    pub options: IgnoredAny,
}

/// The formats of the log.
pub const TEXT: &str = "text";
pub const JSON: &str = "json";

impl Default for Logging {
    fn default() -> Logging {
        Logging {
            format: TEXT.into(),
            verbosity: 0,
            flush_frequency: IgnoredAny,
            options: IgnoredAny,
        }
    }
}

/// How long pods from a priority on may take to end. Upstream: `ShutdownGracePeriodByPodPriority`.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PriorityGrace {
    pub priority: i32,
    pub shutdown_grace_period_seconds: i64,
}

/// Upstream: `MaxContainerBackOff`.
impl Default for CrashLoopBackOff {
    fn default() -> CrashLoopBackOff {
        CrashLoopBackOff { max_container_restart_period: GoDuration::from_secs(300) }
    }
}

/// The ids of pods with user namespaces of their own.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UserNamespaces {
    #[serde(rename = "idsPerPod")]
    pub ids_per_pod: i64,
}

/// Upstream: `DefaultKubeletUserNamespacesIDsPerPod`.
impl Default for UserNamespaces {
    fn default() -> UserNamespaces {
        UserNamespaces { ids_per_pod: 65_536 }
    }
}

/// Upstream: `SetDefaults_KubeletConfiguration`.
impl Default for Configuration {
    fn default() -> Configuration {
        Configuration {
            static_pod_path: String::new(),
            static_pod_url: String::new(),
            static_pod_url_header: Headers::default(),
            sync_frequency: GoDuration::from_secs(60),
            file_check_frequency: CHECK_PERIOD,
            http_check_frequency: CHECK_PERIOD,
            enable_server: None,
            address: "0.0.0.0".into(),
            port: 10250,
            read_only_port: 0,
            authentication: Authentication::default(),
            authorization: Authorization::default(),
            enable_debugging_handlers: true,
            enable_profiling_handler: true,
            enable_debug_flags_handler: true,
            enable_system_log_handler: true,
            streaming_connection_idle_timeout: GoDuration::from_secs(4 * 3600),
            healthz_port: 10248,
            healthz_bind_address: "127.0.0.1".into(),
            container_runtime_endpoint: "unix:///run/containerd/containerd.sock".into(),
            image_service_endpoint: String::new(),
            runtime_request_timeout: GoDuration::from_secs(120),
            resolv_conf: "/etc/resolv.conf".into(),
            serialize_image_pulls: None,
            max_parallel_image_pulls: None,
            image_pull_credentials_verification_policy: String::new(),
            preloaded_images_verification_allowlist: Vec::new(),
            feature_gates: FeatureGates::default(),
            cgroup_root: String::new(),
            pod_logs_dir: "/var/log/pods".into(),
            crash_loop_back_off: CrashLoopBackOff::default(),
            cluster_dns: Vec::new(),
            cluster_domain: String::new(),
            kube_api_qps: 50,
            kube_api_burst: 100,
            image_gc_high_threshold_percent: 85,
            image_gc_low_threshold_percent: 80,
            image_minimum_gc_age: GoDuration::from_secs(120),
            image_maximum_gc_age: GoDuration::default(),
            container_log_max_size: "10Mi".into(),
            container_log_max_files: 5,
            container_log_max_workers: 1,
            container_log_monitor_interval: GoDuration::from_secs(10),
            cgroups_per_qos: true,
            cgroup_driver: "cgroupfs".into(),
            enforce_node_allocatable: None,
            pod_pids_limit: -1,
            allowed_unsafe_sysctls: Vec::new(),
            oom_score_adj: -999,
            max_open_files: MAX_OPEN_FILES,
            kubelet_cgroups: String::new(),
            // Of these two, upstream's default is true.
            fail_swap_on: false,
            fail_cgroup_v1: false,
            protect_kernel_defaults: false,
            seccomp_default: false,
            single_process_oom_kill: None,
            logging: Logging::default(),
            eviction_hard: None,
            eviction_soft: Pairs::default(),
            eviction_soft_grace_period: Pairs::default(),
            eviction_minimum_reclaim: Pairs::default(),
            eviction_max_pod_grace_period: 0,
            merge_default_eviction_settings: false,
            eviction_pressure_transition_period: GoDuration::from_secs(300),
            shutdown_grace_period: GoDuration::default(),
            shutdown_grace_period_critical_pods: GoDuration::default(),
            shutdown_grace_period_by_pod_priority: Vec::new(),
            volume_stats_agg_period: GoDuration::from_secs(60),
            local_storage_capacity_isolation: true,
            register_node: true,
            register_with_taints: Taints::default(),
            pod_cidr: String::new(),
            provider_id: String::new(),
            node_status_update_frequency: GoDuration::from_secs(10),
            node_status_report_frequency: GoDuration::from_secs(300),
            node_lease_duration_seconds: 40,
            node_status_max_images: 50,
            max_pods: 110,
            user_namespaces: UserNamespaces::default(),
            pods_per_core: 0,
            kube_reserved: Pairs::default(),
            kube_reserved_cgroup: String::new(),
            system_reserved: Pairs::default(),
            system_reserved_cgroup: String::new(),
            reserved_system_cpus: String::new(),
            enable_controller_attach_detach: true,
            event_record_qps: 50,
            event_burst: 100,
            rotate_certificates: false,
            server_tls_bootstrap: false,
            tls_cert_file: String::new(),
            tls_private_key_file: String::new(),
            tls_cipher_suites: Vec::new(),
            tls_min_version: String::new(),
        }
    }
}

const ENSURE_SECRET_PULLED_IMAGES: &str = "KubeletEnsureSecretPulledImages";
const POD_CERTIFICATE_REQUEST: &str = "PodCertificateRequest";
const TRUST_BUNDLE: &str = "ClusterTrustBundle";
const TRUST_BUNDLE_PROJECTION: &str = "ClusterTrustBundleProjection";
/// The feature gates that may differ from their defaults in 1.36.
const CHANGEABLE_GATES: [&str; 4] =
    [ENSURE_SECRET_PULLED_IMAGES, POD_CERTIFICATE_REQUEST, TRUST_BUNDLE, TRUST_BUNDLE_PROJECTION];
const MAX_OPEN_FILES: i64 = 1_000_000;

/// How often a source of pods is read whole.
const CHECK_PERIOD: GoDuration = GoDuration::from_secs(20);

impl Configuration {
    /// Returns the most parallel pulls; `None`: no limit. Upstream:
    /// `SetDefaults_KubeletConfiguration`, `ValidateKubeletConfiguration`.
    ///
    /// # Errors
    /// One that names the field.
    pub fn max_parallel_pulls(&self) -> Result<Option<usize>, Error> {
        let max = self.max_parallel_image_pulls;
        if let Some(max) = max.filter(|max| *max < 1) {
            return Err(Error::MaxPulls(max));
        }
        let is_serial = self.serialize_image_pulls.unwrap_or(max.is_none_or(|max| max < 2));
        if is_serial && max > Some(1) {
            return Err(Error::SerialPulls);
        }
        let limit = if is_serial { Some(1) } else { max };
        Ok(limit.and_then(|limit| usize::try_from(limit).ok()))
    }

    /// Checks the fields of the Node and of its process. Upstream: `ValidateKubeletConfiguration`.
    ///
    /// # Errors
    /// One that names the field and flag.
    pub fn check_node(&self) -> Result<(), Error> {
        if self.node_lease_duration_seconds <= 0 {
            return Err(Error::LeaseDuration);
        }
        if ![TEXT, JSON].contains(&self.logging.format.as_str()) {
            return Err(Error::LogFormat(self.logging.format.clone()));
        }
        const NOT_NEGATIVE: &str = "not be a negative number";
        for (field, value, least, range) in [
            ("maxOpenFiles (--max-open-files)", self.max_open_files, 0, NOT_NEGATIVE),
            ("maxPods (--max-pods)", self.max_pods.into(), 0, NOT_NEGATIVE),
            ("podsPerCore (--pods-per-core)", self.pods_per_core.into(), 0, NOT_NEGATIVE),
            ("eventRecordQPS (--event-qps)", self.event_record_qps.into(), 0, NOT_NEGATIVE),
            ("eventBurst (--event-burst)", self.event_burst.into(), 0, NOT_NEGATIVE),
            (
                "nodeStatusMaxImages (--node-status-max-images)",
                self.node_status_max_images.into(),
                -1,
                "be -1 or greater",
            ),
        ] {
            if value < least {
                return Err(Error::OutOfRange { field, value, range });
            }
        }
        for taint in &self.register_with_taints.0 {
            taint.check().map_err(Error::RegisterWithTaints)?;
        }
        let has_cgroups =
            !self.kube_reserved_cgroup.is_empty() || !self.system_reserved_cgroup.is_empty();
        match self.reserved_cpus()? {
            Some(_) if has_cgroups => Err(Error::ReservedCpusAndCgroups),
            _ => Ok(()),
        }
    }

    /// Returns whether pods need credentials for images that the kubelet has pulled.
    pub fn verifies_pulled_images(&self) -> bool {
        self.feature_gates.0.get(ENSURE_SECRET_PULLED_IMAGES) != Some(&false)
    }

    /// Returns whether certificates are requested for pods.
    pub fn requests_pod_certificates(&self) -> bool {
        self.feature_gates.0.get(POD_CERTIFICATE_REQUEST) == Some(&true)
    }

    /// Returns whether volumes may have ClusterTrustBundles.
    pub fn projects_trust_bundles(&self) -> bool {
        self.feature_gates.0.get(TRUST_BUNDLE_PROJECTION) == Some(&true)
    }

    /// Sets what depends on feature gates. Upstream: `SetDefaults_KubeletConfiguration`.
    pub(super) fn set_defaults_of_gates(&mut self) {
        if self.verifies_pulled_images() {
            let policy = &mut self.image_pull_credentials_verification_policy;
            replace_zero(policy, "NeverVerifyPreloadedImages".to_owned());
        }
    }

    /// Checks the feature gates: few may differ from their defaults in 1.36.
    ///
    /// # Errors
    /// One that names the gate.
    pub fn check_feature_gates(&self) -> Result<(), Error> {
        for (gate, on) in &self.feature_gates.0 {
            let (gate, on) = (gate.clone(), *on);
            let mut specs = feature_gates(Release::V1_36);
            match specs.find(|(name, _)| *name == gate) {
                Some((name, _)) if CHANGEABLE_GATES.contains(&name) => {}
                Some((_, spec)) if spec.default == on => {}
                Some((_, spec)) if spec.locked => return Err(Error::LockedGate { gate, on }),
                None if gate == "AllAlpha" && !on => {}
                None if gate != "AllAlpha" && gate != "AllBeta" => {
                    return Err(Error::UnknownGate(gate));
                }
                _ => return Err(Error::UnsupportedGate { gate, on }),
            }
        }
        let has_bundles = self.feature_gates.0.get(TRUST_BUNDLE) == Some(&true);
        match self.projects_trust_bundles() && !has_bundles {
            true => {
                let (gate, needed) = (TRUST_BUNDLE_PROJECTION, TRUST_BUNDLE);
                Err(Error::GateDependency { gate, needed })
            }
            false => Ok(()),
        }
    }

    /// Returns whether the port with authentication is served. Upstream's default is true also
    /// without an API server, where it then does not start.
    pub fn serves(&self, has_api_server: bool) -> bool {
        self.enable_server.unwrap_or(has_api_server)
    }

    /// Checks the fields of the kubelet's port. Upstream: `ValidateKubeletConfiguration`, `BuildAuthz`.
    ///
    /// # Errors
    /// One that names the field and flag.
    pub fn check_server(&self) -> Result<(), Error> {
        if self.port == 0 {
            return Err(Error::Port);
        }
        if self.port == self.read_only_port {
            return Err(Error::SamePorts(self.port));
        }
        let mode = self.authorization.mode.as_str();
        if ![WEBHOOK, ALWAYS_ALLOW].contains(&mode) {
            return Err(Error::AuthorizationMode(mode.to_owned()));
        }
        match tls_faults(&self.tls_min_version, &self.tls_cipher_suites).into_iter().next() {
            Some(fault) => Err(Error::Flag(fault)),
            None => Ok(()),
        }
    }

    /// Returns how many CPUs `reservedSystemCPUs` names; `None`: it is not set.
    ///
    /// # Errors
    /// One that names the field and flag.
    pub fn reserved_cpus(&self) -> Result<Option<i64>, Error> {
        let list = &self.reserved_system_cpus;
        if list.is_empty() {
            return Ok(None);
        }
        let count = count_cpus(list);
        count.map(Some).ok_or_else(|| Error::ReservedCpus(list.clone()))
    }
}

/// Zero stands for the default, where it does. Upstream: `SetDefaults_KubeletConfiguration`.
impl Configuration {
    /// Replaces zeros by the defaults: a zero stands for them in a file, but not as a flag.
    pub(super) fn replace_zeros_of_files(&mut self) {
        let defaults = Configuration::default();
        replace_zero(&mut self.sync_frequency, defaults.sync_frequency);
        replace_zero(&mut self.runtime_request_timeout, defaults.runtime_request_timeout);
        replace_zero(&mut self.volume_stats_agg_period, defaults.volume_stats_agg_period);
        replace_zero(&mut self.image_minimum_gc_age, defaults.image_minimum_gc_age);
        let update = defaults.node_status_update_frequency;
        replace_zero(&mut self.node_status_update_frequency, update);
        let transition = defaults.eviction_pressure_transition_period;
        replace_zero(&mut self.eviction_pressure_transition_period, transition);
        let lease = defaults.node_lease_duration_seconds;
        replace_zero(&mut self.node_lease_duration_seconds, lease);
        replace_zero(&mut self.max_pods, defaults.max_pods);
        replace_zero(&mut self.max_open_files, MAX_OPEN_FILES);
        replace_zero(&mut self.logging.format, defaults.logging.format);
        let ids = defaults.user_namespaces.ids_per_pod;
        replace_zero(&mut self.user_namespaces.ids_per_pod, ids);
        replace_zero(&mut self.event_burst, defaults.event_burst);
        let endpoint = defaults.container_runtime_endpoint;
        replace_zero(&mut self.container_runtime_endpoint, endpoint);
        replace_zero(&mut self.address, defaults.address);
        replace_zero(&mut self.port, defaults.port);
        let idle = defaults.streaming_connection_idle_timeout;
        replace_zero(&mut self.streaming_connection_idle_timeout, idle);
        let tokens = &mut self.authentication.webhook.cache_ttl;
        replace_zero(tokens, defaults.authentication.webhook.cache_ttl);
        let (own, default) = (&mut self.authorization, defaults.authorization);
        replace_zero(&mut own.mode, default.mode);
        let (own, default) = (&mut own.webhook, default.webhook);
        replace_zero(&mut own.cache_authorized_ttl, default.cache_authorized_ttl);
        replace_zero(&mut own.cache_unauthorized_ttl, default.cache_unauthorized_ttl);
    }

    /// Replaces zero periods by the defaults, for flags too (upstream: in files only): no loop is
    /// without a pause.
    pub(super) fn replace_zero_periods(&mut self) {
        let update = Configuration::default().node_status_update_frequency;
        replace_zero(&mut self.node_status_update_frequency, update);
        replace_zero(&mut self.file_check_frequency, CHECK_PERIOD);
        replace_zero(&mut self.http_check_frequency, CHECK_PERIOD);
    }
}

fn replace_zero<T: Default + PartialEq>(value: &mut T, default: T) {
    if *value == T::default() {
        *value = default;
    }
}

/// The hard thresholds of a configuration that names none. Upstream: `DefaultEvictionHard`.
pub fn default_eviction_hard() -> BTreeMap<String, String> {
    let default = [
        ("memory.available", "100Mi"),
        ("nodefs.available", "10%"),
        ("nodefs.inodesFree", "5%"),
        ("imagefs.available", "15%"),
        ("imagefs.inodesFree", "5%"),
    ];
    default.into_iter().map(|(signal, value)| (signal.to_owned(), value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::causes::chain;

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
            let found = configuration.max_parallel_pulls().map_err(|error| error.to_string());
            let expected = expected.map_err(str::to_owned);
            assert_eq!(found, expected, "{is_serial:?} {max:?}");
        }
    }

    #[test]
    fn feature_gates_have_their_defaults_but_for_few() {
        for (gates, fault) in [
            (json!({}), None),
            (json!({"KubeletEnsureSecretPulledImages": false}), None),
            (json!({"PodCertificateRequest": true}), None),
            (json!({"PodCertificateRequest": false}), None),
            (json!({"NodeSwap": true, "HPAScaleToZero": false, "AllAlpha": false}), None),
            (json!({"ClusterTrustBundle": true}), None),
            (json!({"ClusterTrustBundle": true, "ClusterTrustBundleProjection": true}), None),
            (json!({"ClusterTrustBundleProjection": false}), None),
            (
                json!({"ClusterTrustBundle": false, "ClusterTrustBundleProjection": true}),
                Some(
                    "ClusterTrustBundleProjection is enabled, but depends on features that are \
                     disabled: [ClusterTrustBundle]",
                ),
            ),
            (
                json!({"NodeSwap": false}),
                Some("cannot set feature gate NodeSwap to false, feature is locked to true"),
            ),
            (
                json!({"HPAScaleToZero": true}),
                Some(
                    "feature gate HPAScaleToZero=true is not supported yet: see \
                     docs/kubelet-flags.md",
                ),
            ),
            (
                json!({"AllBeta": false}),
                Some("feature gate AllBeta=false is not supported yet: see docs/kubelet-flags.md"),
            ),
            (json!({"Nope": true}), Some("unrecognized feature gate: Nope")),
        ] {
            let fields = json!({"featureGates": gates});
            let configuration: Configuration =
                serde_json::from_value(fields).expect("a configuration");
            let error = configuration.check_feature_gates().err().map(|error| chain(&error));
            assert_eq!(error.as_deref(), fault, "{gates}");
        }
    }

    #[test]
    fn pod_certificates_are_requested_if_their_gate_is_on() {
        for (gates, expected) in [
            (json!({}), false),
            (json!({"PodCertificateRequest": false}), false),
            (json!({"PodCertificateRequest": true}), true),
        ] {
            let fields = json!({"featureGates": gates});
            let configuration: Configuration =
                serde_json::from_value(fields).expect("a configuration");
            assert_eq!(configuration.requests_pod_certificates(), expected, "{gates}");
        }
    }

    #[test]
    fn policy_of_image_pulls_has_a_default_while_its_gate_is_on() {
        for (fields, expected) in [
            (json!({}), "NeverVerifyPreloadedImages"),
            (json!({"featureGates": {"KubeletEnsureSecretPulledImages": false}}), ""),
            (json!({"imagePullCredentialsVerificationPolicy": "AlwaysVerify"}), "AlwaysVerify"),
        ] {
            let mut configuration: Configuration =
                serde_json::from_value(fields.clone()).expect("a configuration");
            configuration.set_defaults_of_gates();
            let policy = configuration.image_pull_credentials_verification_policy;
            assert_eq!(policy, expected, "{fields}");
        }
    }

    #[test]
    fn fields_of_the_node_are_checked() {
        for (fields, fault) in [
            (json!({}), None),
            (json!({"reservedSystemCPUs": "0-1,3"}), None),
            (
                json!({"reservedSystemCPUs": "x"}),
                Some("unable to parse reservedSystemCPUs (--reserved-cpus) \"x\""),
            ),
            (
                json!({"reservedSystemCPUs": "0", "systemReservedCgroup": "/a"}),
                Some(
                    "can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup \
                      (--system-reserved-cgroup) or kubeReservedCgroup (--kube-reserved-cgroup)",
                ),
            ),
            (
                json!({"nodeLeaseDurationSeconds": -1}),
                Some("nodeLeaseDurationSeconds must be greater than 0"),
            ),
            (json!({"maxPods": -1}), Some("maxPods (--max-pods) -1 must not be a negative number")),
            (
                json!({"maxOpenFiles": -1}),
                Some("maxOpenFiles (--max-open-files) -1 must not be a negative number"),
            ),
            (json!({"logging": {"format": "json"}}), None),
            (
                json!({"logging": {"format": "xml"}}),
                Some("logging.format (--logging-format) \"xml\": not text or json"),
            ),
            (
                json!({"nodeStatusMaxImages": -2}),
                Some("nodeStatusMaxImages (--node-status-max-images) -2 must be -1 or greater"),
            ),
            (
                json!({"registerWithTaints": [{"key": "a", "effect": "x"}]}),
                Some(
                    "registerWithTaints (--register-with-taints): invalid taint effect: x, \
                      unsupported taint effect",
                ),
            ),
        ] {
            let configuration: Configuration =
                serde_json::from_value(fields.clone()).expect("a configuration");
            let error = configuration.check_node().err().map(|error| chain(&error));
            assert_eq!(error.as_deref(), fault, "{fields}");
        }
    }

    #[test]
    fn fields_of_the_port_are_checked() {
        for (fields, fault) in [
            (json!({}), None),
            (json!({"port": 0}), Some("port (--port) 0 must be between 1 and 65535, inclusive")),
            (
                json!({"port": 7, "readOnlyPort": 7}),
                Some("port (--port) and readOnlyPort (--read-only-port) are both 7"),
            ),
            (json!({"authorization": {"mode": "AlwaysAllow"}}), None),
            (
                json!({"authorization": {"mode": "RBAC"}}),
                Some("authorization.mode (--authorization-mode): unknown authorization mode RBAC"),
            ),
            (json!({"tlsMinVersion": "VersionTLS13"}), None),
            (
                json!({"tlsMinVersion": "1.3"}),
                Some("--tls-min-version: unknown tls version \"1.3\""),
            ),
            (
                json!({"tlsCipherSuites": ["X"]}),
                Some("--tls-cipher-suites: cipher suite X not supported or doesn't exist"),
            ),
        ] {
            let configuration: Configuration =
                serde_json::from_value(fields.clone()).expect("a configuration");
            let error = configuration.check_server().err().map(|error| chain(&error));
            assert_eq!(error.as_deref(), fault, "{fields}");
        }
    }

    #[test]
    fn durations_have_gos_form() {
        let read = |text: &str| {
            let fields = json!({"syncFrequency": text});
            serde_json::from_value::<Configuration>(fields)
        };
        let configuration = read("1m30s").expect("a configuration");
        assert_eq!(configuration.sync_frequency, GoDuration::from_secs(90));
        let fault = read("90").expect_err("no unit").to_string();
        assert!(fault.contains("90"), "{fault}");
    }
}
