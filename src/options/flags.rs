//! The flags: one row each, with its help and its default. The rows make the struct, its defaults,
//! the parser's table and `--help`.
//! Upstream: `cmd/kube-controller-manager/app/options`.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use super::values::{CertKeys, Count, Gates, Level, Map, Quantity, TraceObjects, Version, Vmodule};

/// A flag of the settings `T`, for the parser and `--help`.
pub struct FlagInfo<T = Options> {
    pub group: &'static str,
    /// The name in snake case; see [`FlagInfo::name`].
    pub field: &'static str,
    pub help: &'static [&'static str],
    /// As pflag names it: `int32`, `strings`; empty for a bool.
    pub kind: &'static str,
    /// The value of the flag when it is given without one. `None`: a value is required.
    pub alone: Option<&'static str>,
    /// The default in `--help`; empty: not shown.
    pub default: fn(&T) -> String,
    /// The value as pflag shows it.
    pub text: fn(&T) -> String,
    /// `Err`: the fault of a value.
    pub check: fn(&str) -> Result<(), String>,
    /// Why a value that parses is refused.
    pub fault: fn(&T) -> Option<String>,
}

/// Flags that are accepted, not shown, and without effect; with the warning for their use.
/// Upstream: pflag's `MarkDeprecated`.
pub(super) const DEPRECATED: &[(&str, &str)] = &[
    (
        "allow_untagged_cloud",
        "This flag is deprecated and will be removed in a future release. A cluster-id will be \
         required on cloud instances.",
    ),
    ("node_sync_period", "This flag is currently no-op and will be deleted."),
];

impl<T> FlagInfo<T> {
    /// The name without its dashes: `concurrent-deployment-syncs`.
    pub fn name(&self) -> String {
        self.field.replace('_', "-")
    }

    /// Returns the warning for its use; `None` if it is not deprecated.
    pub fn deprecated(&self) -> Option<&'static str> {
        DEPRECATED.iter().find(|(field, _)| *field == self.field).map(|(_, warning)| *warning)
    }
}

/// Returns each flag's name and its value as pflag shows it, sorted by name. Upstream:
/// `cliflag.PrintFlags`.
pub fn flag_values<T>(flags: &[FlagInfo<T>], settings: &T) -> Vec<(String, String)> {
    let mut pairs: Vec<(String, String)> =
        flags.iter().map(|flag| (flag.name(), (flag.text)(settings))).collect();
    pairs.sort();
    pairs
}

/// Makes `FLAGS`, the flags of some settings, and `set_flags`, which sets those of a command line.
/// A row has the help, the name, the type and the field that the flag sets:
///
/// ```
/// use kube_controller_manager::options::{Arguments, flag_table};
///
/// #[derive(Default)]
/// struct Settings {
///     serving: Serving,
/// }
///
/// #[derive(Default)]
/// struct Serving {
///     port: i32,
/// }
///
/// flag_table! {
///     Settings;
///     "Serving" {
///         /// Port of the server; 0: none.
///         secure_port: i32 => serving.port;
///     }
/// }
///
/// let args = ["--secure-port=10257".to_owned()];
/// let arguments = Arguments::new(FLAGS, &args, |name| format!("unknown flag: --{name}"))?;
/// let mut settings = Settings::default();
/// set_flags(&mut settings, &arguments)?;
/// assert_eq!(settings.serving.port, 10257);
/// # Ok::<(), String>(())
/// ```
///
/// The caller's crate needs `argh`.
#[macro_export]
macro_rules! flag_table {
    ($settings:ty; $($group:literal {
        $( $(#[doc = $help:tt])+ $flag:ident: $type:ty => $($field:ident).+; )*
    })*) => {
        /// All flags, in the order of `--help`.
        pub const FLAGS: &[$crate::options::FlagInfo<$settings>] = &[
            $($( $crate::options::FlagInfo {
                group: $group,
                field: stringify!($flag),
                help: &[$($help),+],
                kind: <$type as $crate::options::Value>::KIND,
                alone: <$type as $crate::options::Value>::ALONE,
                default: |settings| $crate::options::Value::shown(&settings.$($field).+),
                text: |settings| $crate::options::Value::text(&settings.$($field).+),
                check: |text| <$type as $crate::options::Value>::parse(text).map(drop),
                fault: |settings| $crate::options::Value::fault(&settings.$($field).+),
            }, )*)*
        ];

        /// Sets the given flags; each may be given more than once.
        ///
        /// # Errors
        /// One line. `Arguments::new` finds the faults before, with pflag's texts.
        pub(crate) fn set_flags(
            settings: &mut $settings,
            arguments: &$crate::options::Arguments,
        ) -> Result<(), String> {
            #[derive(argh::FromArgs)]
            #[argh(description = "see --help", help_triggers("--help", "-h"))]
            struct GivenFlags {
                $($( #[argh(option, description = "see --help")]
                $flag: Vec<$crate::options::Given<$type>>, )*)*
            }
            let given = <GivenFlags as argh::FromArgs>::from_args(&[""], &arguments.flags())
                .map_err(|exit| exit.output.lines().next().unwrap_or_default().to_owned())?;
            $($( $crate::options::Value::merge(&mut settings.$($field).+, given.$flag); )*)*
            Ok(())
        }
    };
}
pub use flag_table;

/// The manager's flags: the type [`Options`] with its defaults, and the table of flags.
macro_rules! flags {
    ($($group:literal { $( $(#[doc = $help:tt])+ $field:ident: $type:ty = $default:expr; )* })*) => {
        /// Every flag of the manager, by its name in snake case.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Options {
            /// The manager's name in messages, User-Agents and certificates. Not a flag: another
            /// manager that has some of these flags sets it.
            pub program: &'static str,
            $($( $(#[doc = $help])+ pub $field: $type, )*)*
        }

        impl Default for Options {
            fn default() -> Options {
                Options { program: super::parse::PROGRAM, $($( $field: $default, )*)* }
            }
        }

        impl Options {
            /// Each flag's name and its value: see [`flag_values`].
            pub fn pairs(&self) -> Vec<(String, String)> {
                flag_values(FLAGS, self)
            }
        }

        flag_table! {
            Options; $($group { $( $(#[doc = $help])+ $field: $type => $field; )* })*
        }
    };
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const fn minutes(minutes: u64) -> Duration {
    secs(60 * minutes)
}

const fn hours(hours: u64) -> Duration {
    secs(3600 * hours)
}

fn list(items: &[&str]) -> Vec<String> {
    items.iter().map(ToString::to_string).collect()
}

/// The group of the flags that the Go manager does not know.
#[cfg(test)]
pub const OWN: &str = "Additional";

flags! {
    "Additional" {
        /// Log each station of these objects and of what they own.
        trace_object: TraceObjects = TraceObjects::default();
    }
    "Debugging" {
        /// Accepted; no effect here.
        contention_profiling: bool = false;
        /// Serve profiles under /debug/pprof/.
        profiling: bool = true;
    }
    "Leader-migration" {
        /// Take a second lease for the controllers that migrate to another manager.
        enable_leader_migration: bool = false;
        /// File with the LeaderMigrationConfiguration; empty: the default one.
        leader_migration_config: String = String::new();
    }
    "Shadow" {
        /// Only read: work beside the manager in charge and compare what it writes with what this
        /// one would write.
        shadow: bool = false;
        /// Print a report and end after this long with --shadow; 0: run until stopped.
        shadow_for: Duration = Duration::ZERO;
        /// How long the manager in charge may take for a write before --shadow reports it.
        shadow_grace: Duration = minutes(1);
    }
    "Generic" {
        /// Give each Node a range of Pod addresses. Needs --cluster-cidr.
        allocate_node_cidrs: bool = false;
        /// Use cloud instances without a cluster-id.
        allow_untagged_cloud: bool = false;
        /// How Pod ranges are chosen.
        cidr_allocator_type: String = "RangeAllocator".into();
        /// File with the cloud provider's settings.
        cloud_config: String = String::new();
        /// The cloud provider: empty or "external".
        cloud_provider: String = String::new();
        /// Ranges of Pod addresses, at most one a family. Used with --allocate-node-cidrs.
        cluster_cidr: String = String::new();
        /// The cluster's name, as cloud resources carry it.
        cluster_name: String = "kubernetes".into();
        /// Have the cloud route the ranges given by --allocate-node-cidrs.
        configure_cloud_routes: bool = true;
        /// How long controllers may take to stop before the process ends without them.
        controller_shutdown_timeout: Duration = secs(10);
        /// Time between the starts of two controllers.
        controller_start_interval: Duration = Duration::ZERO;
        /// Controllers to run: '*' those on by default, 'foo' also foo, '-foo' all but foo.
        controllers: Vec<String> = list(&["*"]);
        /// Version whose behaviour is emulated, such as kube=1.35.
        emulated_version: Vec<String> = Vec::new();
        /// Volume plugin to use with --cloud-provider=external.
        external_cloud_volume_plugin: String = String::new();
        /// Feature gates: key=value pairs such as GateA=true,kube:GateB=false.
        feature_gates: Gates = Gates::default();
        /// Requests that may go to the API server at once, above --kube-api-qps.
        kube_api_burst: i32 = 30;
        /// What pods and objects' metadata are asked for in; all else is JSON.
        kube_api_content_type: String = "application/vnd.kubernetes.protobuf".into();
        /// Requests a second to the API server; below 0: no limit.
        kube_api_qps: f32 = 20.0;
        /// Work only while holding the lease, so that several replicas can run.
        leader_elect: bool = true;
        /// How long a lease that is not renewed is left to its holder.
        leader_elect_lease_duration: Duration = secs(15);
        /// How long the leader tries to renew before it gives up.
        leader_elect_renew_deadline: Duration = secs(10);
        /// Kind of the lock: 'leases'.
        leader_elect_resource_lock: String = "leases".into();
        /// Name of the lease.
        leader_elect_resource_name: String = "kube-controller-manager".into();
        /// Namespace of the lease.
        leader_elect_resource_namespace: String = "kube-system".into();
        /// Time between two tries to take or to renew the lease.
        leader_elect_retry_period: Duration = secs(2);
        /// Oldest version that other components of the control plane may have.
        min_compatibility_version: Vec<String> = Vec::new();
        /// Informers resync after a random time between this and twice this.
        min_resync_period: Duration = hours(12);
        /// How often the cloud node lifecycle controller looks at Nodes.
        node_monitor_period: Duration = secs(5);
        /// How often Nodes are synced.
        node_sync_period: Duration = Duration::ZERO;
        /// How often routes to Nodes are reconciled.
        route_reconciliation_period: Duration = secs(10);
        /// Run each controller under a service account of its own.
        use_service_account_credentials: bool = false;
    }
    "Service-lb-controller" {
        /// Services that are worked on at once.
        concurrent_service_syncs: Count = Count::new(1);
    }
    "Secure serving" {
        /// Address of the secure port; unspecified (0.0.0.0 or ::): all interfaces.
        bind_address: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        /// Directory for a self-signed certificate; empty: it is kept in memory.
        cert_dir: String = String::new();
        /// Never serve HTTP/2. This build serves HTTP/1.1 alone.
        disable_http2_serving: bool = false;
        /// Limit of streams in a HTTP/2 connection; 0: the default.
        http2_max_streams_per_connection: i32 = 0;
        /// Bind with SO_REUSEADDR.
        permit_address_sharing: bool = false;
        /// Bind with SO_REUSEPORT.
        permit_port_sharing: bool = false;
        /// Port of the HTTPS server; 0: none.
        secure_port: i32 = 10257;
        /// Serving certificate, with its chain, in PEM.
        tls_cert_file: String = String::new();
        /// Cipher suites to serve with, by their Go names; empty: the default ones.
        tls_cipher_suites: Vec<String> = Vec::new();
        /// Key exchanges to serve with, by their Go CurveID; empty: the default ones.
        tls_curve_preferences: Vec<i32> = Vec::new();
        /// Oldest version of TLS to serve: VersionTLS10 to VersionTLS13.
        tls_min_version: String = String::new();
        /// Key of --tls-cert-file, in PEM.
        tls_private_key_file: String = String::new();
        /// Certificate and key for some names: cert,key or cert,key:name1,name2.
        tls_sni_cert_key: CertKeys = CertKeys::default();
    }
    "Authentication" {
        /// Kubeconfig with which tokens are reviewed; empty: the Pod's own, else tokens count as
        /// anonymous.
        authentication_kubeconfig: String = String::new();
        /// Don't read missing authentication settings from the cluster.
        authentication_skip_lookup: bool = false;
        /// How long an answer about a token is kept.
        authentication_token_webhook_cache_ttl: Duration = secs(10);
        /// Continue when authentication settings cannot be read from the cluster.
        authentication_tolerate_lookup_failure: bool = false;
        /// Authorities whose client certificates authenticate by their common name.
        client_ca_file: String = String::new();
        /// Common names of proxies that may name users in headers; empty: any.
        requestheader_allowed_names: Vec<String> = Vec::new();
        /// Authorities of the proxies that may name users in headers.
        requestheader_client_ca_file: String = String::new();
        /// Prefixes of headers with extra data of a user.
        requestheader_extra_headers_prefix: Vec<String> = list(&["x-remote-extra-"]);
        /// Headers with a user's groups.
        requestheader_group_headers: Vec<String> = list(&["x-remote-group"]);
        /// Headers with a user's uid.
        requestheader_uid_headers: Vec<String> = Vec::new();
        /// Headers with a user's name.
        requestheader_username_headers: Vec<String> = list(&["x-remote-user"]);
    }
    "Authorization" {
        /// Paths that need no authorization.
        authorization_always_allow_paths: Vec<String> = list(&["/healthz", "/readyz", "/livez"]);
        /// Kubeconfig with which access is reviewed; empty: the Pod's own, else it is refused.
        authorization_kubeconfig: String = String::new();
        /// How long a yes is kept.
        authorization_webhook_cache_authorized_ttl: Duration = secs(10);
        /// How long a no is kept.
        authorization_webhook_cache_unauthorized_ttl: Duration = secs(10);
    }
    "Persistentvolume-attach-detach-controller" {
        /// How often attached volumes are compared with the API. More than a second.
        attach_detach_reconcile_sync_period: Duration = minutes(1);
        /// Don't compare attached volumes with the API.
        disable_attach_detach_reconcile_sync: bool = false;
        /// Never detach by force a volume whose unmount takes too long.
        disable_force_detach_on_timeout: bool = false;
    }
    "Certificatesigningrequest-signing-controller" {
        /// Authority that signs certificates of every signer.
        cluster_signing_cert_file: String = String::new();
        /// Longest validity of a signed certificate.
        cluster_signing_duration: Duration = hours(8760);
        /// Key of --cluster-signing-cert-file.
        cluster_signing_key_file: String = String::new();
        /// Authority of signer kubernetes.io/kube-apiserver-client.
        cluster_signing_kube_apiserver_client_cert_file: String = String::new();
        /// Its key.
        cluster_signing_kube_apiserver_client_key_file: String = String::new();
        /// Authority of signer kubernetes.io/kube-apiserver-client-kubelet.
        cluster_signing_kubelet_client_cert_file: String = String::new();
        /// Its key.
        cluster_signing_kubelet_client_key_file: String = String::new();
        /// Authority of signer kubernetes.io/kubelet-serving.
        cluster_signing_kubelet_serving_cert_file: String = String::new();
        /// Its key.
        cluster_signing_kubelet_serving_key_file: String = String::new();
        /// Authority of signer kubernetes.io/legacy-unknown.
        cluster_signing_legacy_unknown_cert_file: String = String::new();
        /// Its key.
        cluster_signing_legacy_unknown_key_file: String = String::new();
    }
    "Deployment-controller" {
        /// Deployments that are worked on at once.
        concurrent_deployment_syncs: Count = Count::new(5);
    }
    "Disruption-controller" {
        /// PodDisruptionBudgets that are worked on at once.
        concurrent_disruption_syncs: Count = Count::new(1);
    }
    "Device-taint-eviction-controller" {
        /// Evictions and rule updates at once.
        concurrent_device_taint_eviction_syncs: Count = Count::new(8);
    }
    "Resourceclaim-controller" {
        /// ResourceClaims that are created or deleted at once.
        concurrent_resourceclaim_syncs: Count = Count::new(50);
    }
    "Statefulset-controller" {
        /// StatefulSets that are worked on at once.
        concurrent_statefulset_syncs: Count = Count::new(5);
    }
    "Daemonset-controller" {
        /// DaemonSets that are worked on at once.
        concurrent_daemonset_syncs: Count = Count::new(2);
    }
    "Endpoints-controller" {
        /// Services whose Endpoints are worked on at once.
        concurrent_endpoint_syncs: Count = Count::new(5);
        /// How long changes of Pods are gathered before Endpoints are written.
        endpoint_updates_batch_period: Duration = Duration::ZERO;
    }
    "Endpointslice-controller" {
        /// Services whose EndpointSlices are worked on at once (1 to 50).
        concurrent_service_endpoint_syncs: Count = Count::up_to(50, 5);
        /// How long changes of Pods are gathered before slices are written.
        endpointslice_updates_batch_period: Duration = Duration::ZERO;
        /// Endpoints in one EndpointSlice (1 to 1000).
        max_endpoints_per_slice: Count = Count::up_to(1000, 100);
    }
    "Endpointslice-mirroring-controller" {
        /// Endpoints that are mirrored at once (1 to 50).
        mirroring_concurrent_service_endpoint_syncs: Count = Count::up_to(50, 5);
        /// How long changes are gathered before mirrored slices are written.
        mirroring_endpointslice_updates_batch_period: Duration = Duration::ZERO;
        /// Endpoints of a subset that are mirrored (1 to 1000).
        mirroring_max_endpoints_per_subset: Count = Count::up_to(1000, 1000);
    }
    "Ephemeral-volume-controller" {
        /// Ephemeral volumes that are worked on at once.
        concurrent_ephemeralvolume_syncs: Count = Count::new(5);
    }
    "Garbage-collector-controller" {
        /// Workers of the garbage collector.
        concurrent_gc_syncs: Count = Count::new(20);
        /// Collect garbage; as the flag of kube-apiserver says.
        enable_garbage_collector: bool = true;
    }
    "Horizontal-pod-autoscaler-controller" {
        /// Autoscalers that are worked on at once.
        concurrent_horizontal_pod_autoscaler_syncs: Count = Count::new(5);
        /// How long after a Pod's start its CPU samples may be skipped.
        horizontal_pod_autoscaler_cpu_initialization_period: Duration = minutes(5);
        /// Scale down no further than any recommendation of this long.
        horizontal_pod_autoscaler_downscale_stabilization: Duration = minutes(5);
        /// How long after a Pod's start changes of readiness count as its first.
        horizontal_pod_autoscaler_initial_readiness_delay: Duration = secs(30);
        /// How often each autoscaler is synced.
        horizontal_pod_autoscaler_sync_period: Duration = secs(15);
        /// Least distance from 1.0 of usage to target for which to scale.
        horizontal_pod_autoscaler_tolerance: f64 = 0.1;
    }
    "Job-controller" {
        /// Jobs that are worked on at once.
        concurrent_job_syncs: Count = Count::new(5);
    }
    "Cronjob-controller" {
        /// CronJobs that are worked on at once.
        concurrent_cron_job_syncs: Count = Count::new(5);
    }
    "Legacy-serviceaccount-token-cleaner-controller" {
        /// How long a secret-based token is kept after its last use.
        legacy_service_account_token_clean_up_period: Duration = hours(8760);
    }
    "Namespace-controller" {
        /// Namespaces that are worked on at once.
        concurrent_namespace_syncs: Count = Count::new(10);
        /// How often each Namespace is synced.
        namespace_sync_period: Duration = minutes(5);
    }
    "Node-ipam-controller" {
        /// Mask size of a Node's range; 0: 24 for IPv4, 64 for IPv6.
        node_cidr_mask_size: i32 = 0;
        /// Mask size of a Node's IPv4 range in a dual-stack cluster; 0: 24.
        node_cidr_mask_size_ipv4: i32 = 0;
        /// Mask size of a Node's IPv6 range in a dual-stack cluster; 0: 64.
        node_cidr_mask_size_ipv6: i32 = 0;
        /// Ranges of Service addresses, at most two. Used with --allocate-node-cidrs.
        service_cluster_ip_range: String = String::new();
    }
    "Node-lifecycle-controller" {
        /// Nodes from which a zone counts as large when evictions are paced.
        large_cluster_size_threshold: i32 = 50;
        /// Nodes a second that are emptied in a healthy zone.
        node_eviction_rate: f32 = 0.1;
        /// How long a Node may be silent before it counts as unhealthy.
        node_monitor_grace_period: Duration = secs(50);
        /// The same, for a Node that starts.
        node_startup_grace_period: Duration = minutes(1);
        /// Nodes a second that are emptied in an unhealthy large zone.
        secondary_node_eviction_rate: f32 = 0.01;
        /// Share of Nodes that are not ready (at least 3) that makes a zone unhealthy.
        unhealthy_zone_threshold: f32 = 0.55;
    }
    "Persistentvolume-binder-controller" {
        /// Provision volumes for claims.
        enable_dynamic_provisioning: bool = true;
        /// Provision HostPath volumes without a cloud provider. For tests alone.
        enable_hostpath_provisioner: bool = false;
        /// Directory of flex volume plugins.
        flex_volume_plugin_dir: String = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/".into();
        /// Seconds more for each Gi that an NFS scrubber has.
        pv_recycler_increment_timeout_nfs: i32 = 30;
        /// Least seconds that a HostPath scrubber has. For tests alone.
        pv_recycler_minimum_timeout_hostpath: i32 = 60;
        /// Least seconds that an NFS scrubber has.
        pv_recycler_minimum_timeout_nfs: i32 = 300;
        /// Pod template of the HostPath scrubber. For tests alone.
        pv_recycler_pod_template_filepath_hostpath: String = String::new();
        /// Pod template of the NFS scrubber.
        pv_recycler_pod_template_filepath_nfs: String = String::new();
        /// Seconds more for each Gi that a HostPath scrubber has. For tests alone.
        pv_recycler_timeout_increment_hostpath: i32 = 30;
        /// How often volumes and claims are synced.
        pvclaimbinder_sync_period: Duration = secs(15);
    }
    "Pod-garbage-collector-controller" {
        /// Ended Pods that are kept before the oldest are deleted; 0 or less: all.
        terminated_pod_gc_threshold: i32 = 12500;
    }
    "Replicaset-controller" {
        /// ReplicaSets that are worked on at once.
        concurrent_replicaset_syncs: Count = Count::new(5);
    }
    "Replicationcontroller-controller" {
        /// ReplicationControllers that are worked on at once.
        concurrent_rc_syncs: Count = Count::new(5);
    }
    "Resourcequota-controller" {
        /// ResourceQuotas that are worked on at once.
        concurrent_resource_quota_syncs: Count = Count::new(5);
        /// How often usage is counted again.
        resource_quota_sync_period: Duration = minutes(5);
    }
    "Serviceaccount-controller" {
        /// Tokens of service accounts that are worked on at once.
        concurrent_serviceaccount_token_syncs: Count = Count::new(5);
        /// Authority that is put into service accounts' token secrets, in PEM.
        root_ca_file: String = String::new();
        /// RSA or ECDSA key that signs secret-based tokens, in PEM.
        service_account_private_key_file: String = String::new();
    }
    "Ttl-after-finished-controller" {
        /// Workers of the ttl-after-finished-controller.
        concurrent_ttl_after_finished_syncs: Count = Count::new(5);
    }
    "Validatingadmissionpolicy-status-controller" {
        /// Workers of the validatingadmissionpolicy-status-controller.
        concurrent_validating_admission_policy_status_syncs: Count = Count::new(5);
    }
    "Metrics" {
        /// Values that a metric's label may have: 'metric,label=value1,value2'.
        allow_metric_labels: Map = Map::default();
        /// File in place of --allow-metric-labels.
        allow_metric_labels_manifest: String = String::new();
        /// Metrics that are not served.
        disabled_metrics: Vec<String> = Vec::new();
        /// Show metrics hidden since this version, such as 1.35.
        show_hidden_metrics_for_version: String = String::new();
    }
    "Logs" {
        /// Longest time between two flushes of the log.
        log_flush_frequency: Duration = secs(5);
        /// Bytes of info messages that are buffered in JSON format with split streams.
        log_json_info_buffer_size: Quantity = Quantity(0);
        /// In JSON format, write errors to stderr and the rest to stdout.
        log_json_split_stream: bool = false;
        /// Bytes of info messages that are buffered in text format with split streams.
        log_text_info_buffer_size: Quantity = Quantity(0);
        /// In text format, write errors to stderr and the rest to stdout.
        log_text_split_stream: bool = false;
        /// Format of the log: "text" or "json".
        logging_format: String = "text".into();
        /// Verbosity of the log: 0 to 10.
        v: Level = Level(0);
        /// Verbosity by file: pattern=N,...
        vmodule: Vmodule = Vmodule::default();
    }
    "Misc" {
        /// Kubeconfig of the API server. Without it and --master: the Pod's own service account.
        kubeconfig: String = String::new();
        /// Address of the API server, before what the kubeconfig says.
        master: String = String::new();
    }
    "Global" {
        /// Print the version and quit; "raw" prints all of it.
        version: Version = Version::default();
    }
}
