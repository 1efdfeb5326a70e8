//! The command line: upstream's flags. Each is honoured or refused. Upstream:
//! `cmd/kubelet/app/options`.

pub mod configuration;
mod configuration_files;
mod error;
mod values;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use kube_controller_manager::options::{Arguments, Level, Version, flag_table, program_usage};

use self::configuration::Configuration;
pub use self::error::Error;
pub use self::values::{FeatureGates, GoDuration, Headers, NodeLabels, Pairs, Taints};
use crate::node::address::NodeIps;
use crate::node::labels;

/// What a command line asks for.
#[derive(Debug)]
pub enum Command {
    Run(Box<Settings>),
    Help,
    /// Print the version: `true`, `raw`.
    Version(String),
}

/// All settings, of flags and configuration files. An empty text is one that is not set.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Empty: the machine's.
    pub hostname: String,
    /// Empty: that of the default route.
    pub node_ip: String,
    pub node_labels: NodeLabels,
    /// Empty or `external`.
    pub cloud_provider: String,
    /// The cgroup of the runtime; empty: it is not known.
    pub runtime_cgroups: String,
    /// Empty: there is no API server.
    pub kubeconfig: String,
    /// Empty: the kubeconfig has to be there.
    pub bootstrap_kubeconfig: String,
    /// The folder of the kubelet's certificates.
    pub cert_dir: String,
    pub root: String,
    /// The folder of ConfigMaps and Secrets; empty: there are none.
    pub objects: String,
    pub verbosity: Level,
    pub version: Version,
    /// The file, and the folder on top of it, that the configuration is read from.
    pub files: Files,
    pub credential_providers: CredentialProviders,
    pub dead_containers: DeadContainers,
    pub configuration: Configuration,
    /// The fields of the files that have no effect: they are named once there is a log.
    pub ignored_fields: BTreeSet<String>,
}

/// See [`Settings::files`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    pub config: String,
    pub config_dir: String,
}

/// The configuration of credential providers, and the folder of their programs: both or none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CredentialProviders {
    pub config: String,
    pub bin_dir: String,
}

impl CredentialProviders {
    /// Returns the file and the folder, if they are given.
    pub fn get(&self) -> Option<(&Path, &Path)> {
        let CredentialProviders { config, bin_dir } = self;
        (!config.is_empty()).then(|| (config.as_ref(), bin_dir.as_ref()))
    }
}

/// Which of the containers that have ended stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadContainers {
    pub min_age: Duration,
    /// Negative: all.
    pub max_per_container: i32,
    /// Negative: all.
    pub max: i32,
}

impl Settings {
    /// Returns whether a controller of the cloud sets the Node's addresses.
    pub fn is_cloud_external(&self) -> bool {
        self.cloud_provider == "external"
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            hostname: String::new(),
            node_ip: String::new(),
            node_labels: NodeLabels::default(),
            cloud_provider: String::new(),
            runtime_cgroups: String::new(),
            kubeconfig: String::new(),
            bootstrap_kubeconfig: String::new(),
            cert_dir: "/var/lib/kubelet/pki".into(),
            root: "/var/lib/kubelet".into(),
            objects: String::new(),
            verbosity: Level::default(),
            version: Version::default(),
            files: Files::default(),
            credential_providers: CredentialProviders::default(),
            dead_containers: DeadContainers {
                min_age: Duration::ZERO,
                max_per_container: 1,
                max: -1,
            },
            configuration: Configuration::default(),
            ignored_fields: BTreeSet::new(),
        }
    }
}

flag_table! {
    Settings;
    "Node" {
        /// Name of the node; empty: the machine's.
        hostname_override: String => hostname;
        /// Address of the node, or one of each family; empty: that of the default route.
        node_ip: String => node_ip;
        /// Labels that the node is registered with, as key=value,key=value.
        node_labels: NodeLabels => node_labels;
        /// Register the node with the API server.
        register_node: bool => configuration.register_node;
        /// Taints that the node is registered with, as key=value:effect.
        register_with_taints: Taints => configuration.register_with_taints;
        /// Range of addresses for pods that the runtime is given at the start.
        pod_cidr: String => configuration.pod_cidr;
        /// Id of the node in its cloud.
        provider_id: String => configuration.provider_id;
        /// external: a cloud's controller sets the addresses of the node.
        cloud_provider: String => cloud_provider;
        /// How often the node's status is computed.
        node_status_update_frequency: GoDuration => configuration.node_status_update_frequency;
        /// Images in the node's status, -1: all.
        node_status_max_images: i32 => configuration.node_status_max_images;
        /// Pods that may run on the node.
        max_pods: i32 => configuration.max_pods;
        /// Of these, pods for each CPU, 0: no limit.
        pods_per_core: i32 => configuration.pods_per_core;
        /// Say that a controller attaches the node's volumes.
        enable_controller_attach_detach: bool => configuration.enable_controller_attach_detach;
        /// Events a second that are sent to the API server, 0: no limit.
        event_qps: i32 => configuration.event_record_qps;
        /// Events that are sent at once.
        event_burst: i32 => configuration.event_burst;
        /// Kubeconfig of an API server whose pods for this node run here too.
        kubeconfig: String => kubeconfig;
        /// Folder of the kubelet's files.
        root_dir: String => root;
        /// The kubelet's own score for the kernel's OOM killer.
        oom_score_adj: i32 => configuration.oom_score_adj;
        /// The kubelet's own limit of open files, 0: the hard one.
        max_open_files: i64 => configuration.max_open_files;
        /// Do not start where swap is on.
        fail_swap_on: bool => configuration.fail_swap_on;
        /// Do not start with cgroup v1.
        fail_cgroupv1: bool => configuration.fail_cgroup_v1;
        /// Do not start if settings of the kernel are not those that upstream makes.
        protect_kernel_defaults: bool => configuration.protect_kernel_defaults;
        /// How often an unchanged pod is synced.
        sync_frequency: GoDuration => configuration.sync_frequency;
    }
    "Identity" {
        /// Kubeconfig by which a client certificate is requested, if that of --kubeconfig is absent,
        /// unreadable or expired.
        bootstrap_kubeconfig: String => bootstrap_kubeconfig;
        /// Folder of certificates.
        cert_dir: String => cert_dir;
        /// Renew the client certificate before it expires.
        rotate_certificates: bool => configuration.rotate_certificates;
        /// Request the serving certificate from the API server, and renew it.
        rotate_server_certificates: bool => configuration.server_tls_bootstrap;
        /// File with the serving certificate.
        tls_cert_file: String => configuration.tls_cert_file;
        /// File with its key.
        tls_private_key_file: String => configuration.tls_private_key_file;
    }
    "Configuration" {
        /// File with a KubeletConfiguration.
        config: String => files.config;
        /// Folder whose *.conf files override the configuration.
        config_dir: String => files.config_dir;
        /// Feature gates of upstream, as name=bool,name=bool.
        feature_gates: FeatureGates => configuration.feature_gates;
    }
    "Sources of pods" {
        /// Folder or file of static pods.
        pod_manifest_path: String => configuration.static_pod_path;
        /// How often the folder of static pods is read whole.
        file_check_frequency: GoDuration => configuration.file_check_frequency;
        /// URL of static pods.
        manifest_url: String => configuration.static_pod_url;
        /// Header of requests to the manifest URL, as name:value.
        manifest_url_header: Headers => configuration.static_pod_url_header;
        /// How often the manifest URL is read.
        http_check_frequency: GoDuration => configuration.http_check_frequency;
        /// Folder of ConfigMaps and Secrets that static pods may use.
        local_objects_path: String => objects;
    }
    "Container runtime" {
        /// Socket of the runtime.
        container_runtime_endpoint: String => configuration.container_runtime_endpoint;
        /// Socket of the image service; empty: the runtime's.
        image_service_endpoint: String => configuration.image_service_endpoint;
        /// Deadline of calls to the runtime.
        runtime_request_timeout: GoDuration => configuration.runtime_request_timeout;
    }
    "Images" {
        /// Pull images one after the other; by default unless maxParallelImagePulls is above 1.
        serialize_image_pulls: Option<bool> => configuration.serialize_image_pulls;
        /// File or folder with a CredentialProviderConfig.
        image_credential_provider_config: String => credential_providers.config;
        /// Folder of the programs of --image-credential-provider-config.
        image_credential_provider_bin_dir: String => credential_providers.bin_dir;
        /// Percent of the disk from which unused images are removed.
        image_gc_high_threshold: i32 => configuration.image_gc_high_threshold_percent;
        /// Percent of the disk down to which images are removed.
        image_gc_low_threshold: i32 => configuration.image_gc_low_threshold_percent;
        /// Age before an unused image is removed.
        minimum_image_ttl_duration: GoDuration => configuration.image_minimum_gc_age;
    }
    "Containers that have ended" {
        /// Containers that stay when they have ended, -1: all.
        maximum_dead_containers: i32 => dead_containers.max;
        /// Of each container of a pod.
        maximum_dead_containers_per_container: i32 => dead_containers.max_per_container;
        /// Age before a container that has ended is removed.
        minimum_container_ttl_duration: Duration => dead_containers.min_age;
        /// Files of a container's log, with the current one.
        container_log_max_files: i32 => configuration.container_log_max_files;
        /// Size from which a log is rotated, negative: never.
        container_log_max_size: String => configuration.container_log_max_size;
    }
    "Resolvers" {
        /// Servers of pods with the DNS policy ClusterFirst, separated by commas.
        cluster_dns: Vec<String> => configuration.cluster_dns;
        /// Domain below which services have their names.
        cluster_domain: String => configuration.cluster_domain;
        /// Resolver configuration of pods.
        resolv_conf: String => configuration.resolv_conf;
    }
    "Cgroups" {
        /// Driver of cgroups if the runtime names none.
        cgroup_driver: String => configuration.cgroup_driver;
        /// Cgroup below which those of pods are made.
        cgroup_root: String => configuration.cgroup_root;
        /// Make cgroups for the classes of pods.
        cgroups_per_qos: bool => configuration.cgroups_per_qos;
        /// Cgroup that the kubelet moves to.
        kubelet_cgroups: String => configuration.kubelet_cgroups;
        /// Cgroup of the runtime, whose usage is measured.
        runtime_cgroups: String => runtime_cgroups;
        /// pods: limit all pods together to what is not reserved; system-reserved and kube-reserved
        /// (with -compressible: only CPU): limit their cgroups to what is; none; by default pods, where
        /// there are cgroups for classes.
        enforce_node_allocatable: Option<Vec<String>> => configuration.enforce_node_allocatable;
        /// Processes of each pod, -1: no limit.
        pod_max_pids: i64 => configuration.pod_pids_limit;
        /// Sysctls that pods may set beside the safe ones; a name may end with *.
        allowed_unsafe_sysctls: Vec<String> => configuration.allowed_unsafe_sysctls;
        /// Give the runtime's seccomp profile to containers that name none.
        seccomp_default: bool => configuration.seccomp_default;
    }
    "Reservations" {
        /// What the kubelet and the runtime need, as cpu=200m,memory=500Mi.
        kube_reserved: Pairs<'='> => configuration.kube_reserved;
        /// Their cgroup.
        kube_reserved_cgroup: String => configuration.kube_reserved_cgroup;
        /// What the system needs, as cpu=200m,memory=500Mi.
        system_reserved: Pairs<'='> => configuration.system_reserved;
        /// Its cgroup.
        system_reserved_cgroup: String => configuration.system_reserved_cgroup;
        /// CPUs of both, as 0-1,4.
        reserved_cpus: String => configuration.reserved_system_cpus;
    }
    "Evictions" {
        /// Thresholds, as memory.available<100Mi,nodefs.available<10%.
        eviction_hard: Option<Pairs<'<'>> => configuration.eviction_hard;
        /// Thresholds that may be crossed for a time.
        eviction_soft: Pairs<'<'> => configuration.eviction_soft;
        /// That time, as memory.available=90s.
        eviction_soft_grace_period: Pairs<'='> => configuration.eviction_soft_grace_period;
        /// What is freed on top, as memory.available=1Gi.
        eviction_minimum_reclaim: Pairs<'='> => configuration.eviction_minimum_reclaim;
        /// Longest grace at a soft threshold, in seconds.
        eviction_max_pod_grace_period: i32 => configuration.eviction_max_pod_grace_period;
        /// How long a pressure stays in the node's status.
        eviction_pressure_transition_period: GoDuration
            => configuration.eviction_pressure_transition_period;
        /// Evict pods that exceed their own limits.
        local_storage_capacity_isolation: bool => configuration.local_storage_capacity_isolation;
        /// How often limits of volumes are checked, 0: never.
        volume_stats_agg_period: GoDuration => configuration.volume_stats_agg_period;
    }
    "Serving" {
        /// Address of the health check.
        healthz_bind_address: String => configuration.healthz_bind_address;
        /// Port of the health check, 0: none.
        healthz_port: u16 => configuration.healthz_port;
        /// Serve the port with authentication; by default with --kubeconfig.
        enable_server: Option<bool> => configuration.enable_server;
        /// Address of this port and of the read-only one.
        address: String => configuration.address;
        /// Port with authentication.
        port: u16 => configuration.port;
        /// Port without authentication, 0: none.
        read_only_port: u16 => configuration.read_only_port;
        /// Serve logs of containers, streams and debug pages.
        enable_debugging_handlers: bool => configuration.enable_debugging_handlers;
        /// How long streams to containers may be silent.
        streaming_connection_idle_timeout: GoDuration
            => configuration.streaming_connection_idle_timeout;
        /// Suites of TLS 1.2; empty: all.
        tls_cipher_suites: Vec<String> => configuration.tls_cipher_suites;
        /// Oldest version of TLS: VersionTLS12 or VersionTLS13.
        tls_min_version: String => configuration.tls_min_version;
    }
    "Access to the port" {
        /// Accept requests without credentials, as the user system:anonymous.
        anonymous_auth: bool => configuration.authentication.anonymous.enabled;
        /// File with authorities of client certificates.
        client_ca_file: String => configuration.authentication.x509.client_ca_file;
        /// Let the API server review bearer tokens.
        authentication_token_webhook: bool => configuration.authentication.webhook.enabled;
        /// How long such a review counts.
        authentication_token_webhook_cache_ttl: GoDuration
            => configuration.authentication.webhook.cache_ttl;
        /// AlwaysAllow, or Webhook: the API server reviews each access.
        authorization_mode: String => configuration.authorization.mode;
        /// How long a granted access counts.
        authorization_webhook_cache_authorized_ttl: GoDuration
            => configuration.authorization.webhook.cache_authorized_ttl;
        /// How long a denied access counts.
        authorization_webhook_cache_unauthorized_ttl: GoDuration
            => configuration.authorization.webhook.cache_unauthorized_ttl;
    }
    "Global" {
        /// Verbosity of the log: 0 to 10.
        v: Level => verbosity;
        /// Format of the log: text or json.
        logging_format: String => configuration.logging.format;
        /// Print the version and quit; "raw" prints all of it.
        version: Version => version;
    }
}

/// Upstream's other flags: they are refused, with the page that says why.
const REFUSED: &str = "contention-profiling cpu-cfs-quota cpu-cfs-quota-period cpu-manager-policy \
    cpu-manager-policy-options cpu-manager-reconcile-period exit-on-lock-contention \
    experimental-allocatable-ignore-eviction experimental-mounter-path hairpin-mode \
    kernel-memcg-notification kube-api-burst kube-api-content-type kube-api-qps lock-file \
    make-iptables-util-chains memory-manager-policy qos-reserved registry-burst \
    registry-qps reserved-memory runonce system-cgroups topology-manager-policy \
    topology-manager-policy-options topology-manager-scope volume-plugin-dir";

/// Returns the text of `--help`.
pub fn usage() -> String {
    let about = "Keeps the pods of a folder (--pod-manifest-path), a URL (--manifest-url) and an \
                 API server\n(--kubeconfig) on this machine.";
    program_usage("kubelet", about, FLAGS, &Settings::default(), |_| Vec::new())
}

/// Parses the arguments after the program's name, and reads the configuration files that they name.
/// A flag wins over a file.
///
/// # Errors
/// One that names the flag, or the file and field.
pub fn parse(args: &[String]) -> Result<Command, Error> {
    let arguments = Arguments::new(FLAGS, args, |name| {
        match REFUSED.split_whitespace().any(|refused| refused == name) {
            true => format!("--{name} is not supported yet: see docs/kubelet-flags.md"),
            false => format!("unknown flag: --{name}"),
        }
    });
    let arguments = arguments.map_err(Error::Flag)?;
    if let Some(word) = arguments.positional.first() {
        return Err(Error::UnknownCommand(word.clone()));
    }
    if arguments.help {
        return Ok(Command::Help);
    }
    let mut settings = Settings::default();
    set_flags(&mut settings, &arguments).map_err(Error::Flag)?;
    if let version @ ("true" | "raw") = settings.version.0.as_str() {
        return Ok(Command::Version(version.into()));
    }
    // The files come before the flags, which name them.
    let read = configuration_files::read(&settings.files)?;
    settings.configuration = read.configuration;
    settings.ignored_fields = read.ignored;
    let verbosity = settings.configuration.logging.verbosity;
    settings.verbosity = Level(i32::try_from(verbosity).unwrap_or(i32::MAX));
    set_flags(&mut settings, &arguments).map_err(Error::Flag)?;
    settings.configuration.replace_zero_periods();
    settings.configuration.set_defaults_of_gates();
    if settings.root.is_empty() {
        settings.root = Settings::default().root;
    }
    let CredentialProviders { config, bin_dir } = &settings.credential_providers;
    if config.is_empty() != bin_dir.is_empty() {
        return Err(Error::CredentialProviders);
    }
    settings.configuration.check_feature_gates()?;
    settings.configuration.max_parallel_pulls()?;
    settings.configuration.check_node()?;
    settings.configuration.check_server()?;
    labels::check(&settings.node_labels.0).map_err(Error::Node)?;
    NodeIps::parse(&settings.node_ip).map_err(Error::Node)?;
    match settings.cloud_provider.as_str() {
        "" | "external" => {}
        other => return Err(Error::CloudProvider(other.to_owned())),
    }
    Ok(Command::Run(Box::new(settings)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::causes::chain;

    fn run(args: &[&str]) -> Result<Settings, String> {
        let args: Vec<String> = args.iter().map(ToString::to_string).collect();
        match parse(&args).map_err(|error| chain(&error))? {
            Command::Run(settings) => Ok(*settings),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn faults_name_the_flag() {
        for (args, fault) in [
            (&["--x"][..], "unknown flag: --x"),
            (&["a"], "unknown command \"a\": the kubelet takes only flags"),
            (
                &["--qos-reserved=1"],
                "--qos-reserved is not supported yet: see docs/kubelet-flags.md",
            ),
            (&["--root-dir"], "flag needs an argument: --root-dir"),
            (
                &["--healthz-port=x"],
                "invalid argument \"x\" for \"--healthz-port\" flag: not a whole number of 16 bits",
            ),
            (
                &["--sync-frequency", "5"],
                "invalid argument \"5\" for \"--sync-frequency\" flag: time: missing unit in \
                 duration \"5\"",
            ),
            (
                &["--serialize-image-pulls=maybe"],
                "invalid argument \"maybe\" for \"--serialize-image-pulls\" flag: not a bool",
            ),
            (&["--config=/nonexistent"], "/nonexistent: No such file or directory (os error 2)"),
        ] {
            assert_eq!(run(args).err().as_deref(), Some(fault), "{args:?}");
        }
    }

    #[test]
    fn lists_add_up_and_an_empty_root_is_the_default() {
        use kube_controller_manager::options::Value;

        let settings = run(&[
            "--eviction-hard=memory.available<1Gi",
            "--eviction-hard=nodefs.available<10%",
            "--enforce-node-allocatable=pods",
            "--enforce-node-allocatable=none",
            "--root-dir=",
        ]);
        let settings = settings.expect("the flags are known");
        let hard = settings.configuration.eviction_hard.expect("thresholds");
        assert_eq!(hard.text(), "memory.available<1Gi,nodefs.available<10%");
        let enforced = settings.configuration.enforce_node_allocatable;
        assert_eq!(enforced, Some(vec!["pods".to_owned(), "none".to_owned()]));
        assert_eq!(settings.root, Settings::default().root);
    }

    #[test]
    fn flags_fill_settings() {
        let settings = run(&[
            "--pod-manifest-path=/pods",
            "--hostname_override",
            "n",
            "--manifest-url-header=A: b,C:d,",
            "--serialize-image-pulls",
            "-v=4",
        ])
        .expect("settings");
        assert_eq!(settings.configuration.static_pod_path, "/pods");
        assert_eq!(settings.hostname, "n");
        assert_eq!(settings.verbosity.0, 4);
        let headers = settings.configuration.static_pod_url_header.0;
        assert_eq!(headers["A"], ["b"]);
        assert_eq!(headers["C"], ["d"]);
        assert_eq!(settings.configuration.serialize_image_pulls, Some(true));
    }

    #[test]
    fn sources_are_read_with_a_pause() {
        for (period, expected) in [("0", 20), ("1s", 1), ("1m", 60)] {
            let file = format!("--file-check-frequency={period}");
            let url = format!("--http-check-frequency={period}");
            let configuration = run(&[&file, &url]).expect("settings").configuration;
            let expected = GoDuration::from_secs(expected);
            assert_eq!(configuration.file_check_frequency, expected, "{period}");
            assert_eq!(configuration.http_check_frequency, expected, "{period}");
        }
    }

    #[test]
    fn statuses_are_computed_with_a_pause() {
        for (period, expected) in [("0s", 10), ("0", 10), ("1m", 60)] {
            let flag = format!("--node-status-update-frequency={period}");
            let configuration = run(&[&flag]).expect("settings").configuration;
            let expected = GoDuration::from_secs(expected);
            assert_eq!(configuration.node_status_update_frequency, expected, "{period}");
        }
    }

    #[test]
    fn file_is_read_below_the_flags() {
        let file = std::env::temp_dir().join(format!("kubelet-pulls-{}.yaml", std::process::id()));
        let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
                    maxParallelImagePulls: 2\ncontentType: x\nauthorization: null\n\
                    featureGates: {NodeSwap: true, HPAScaleToZero: false}\n\
                    logging: {verbosity: 2}\n";
        std::fs::write(&file, text).expect("a file");
        let config = format!("--config={}", file.display());
        let settings = run(&[&config]).expect("settings");
        assert_eq!(settings.verbosity, Level(2));
        assert_eq!(run(&[&config, "-v=5"]).map(|settings| settings.verbosity), Ok(Level(5)));
        // There is no log yet.
        assert_eq!(settings.ignored_fields, BTreeSet::from(["contentType".to_owned()]));
        assert_eq!(settings.configuration.max_parallel_pulls().ok(), Some(Some(2)));
        assert!(settings.configuration.verifies_pulled_images());
        let gates = "--feature-gates=KubeletEnsureSecretPulledImages=false,NodeSwap=true";
        let configuration = run(&[&config, gates]).expect("settings").configuration;
        assert!(!configuration.verifies_pulled_images());
        assert_eq!(configuration.feature_gates.0.len(), 3);
        let fault = run(&[&config, "--serialize-image-pulls=true"]).expect_err("a conflict");
        assert!(fault.starts_with("maxParallelImagePulls cannot be larger than 1"), "{fault}");
        std::fs::remove_file(&file).expect("removed");
    }

    #[test]
    fn documentation_names_each_flag() {
        let docs = include_str!("../../../docs/kubelet-flags.md");
        for flag in FLAGS {
            let flag = format!("`--{}`", flag.name());
            assert!(docs.contains(&flag), "{flag}");
        }
        assert!(docs.contains("`--help`"));
    }
}
