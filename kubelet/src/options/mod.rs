//! The command line: upstream's flags. Each is honoured or refused. Upstream:
//! `cmd/kubelet/app/options`.

pub mod configuration;

use std::path::PathBuf;
use std::time::Duration;

use kube_controller_manager::options::parse_duration;

use self::configuration::{Configuration, GoDuration};

/// What a command line asks for.
#[derive(Debug)]
pub enum Command {
    Run(Box<Settings>),
    Help,
    Version,
}

/// All settings, of flags and configuration files.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Of `--hostname-override`; `None`: the machine's.
    pub hostname: Option<String>,
    /// Of `--node-ip`; `None`: that of the default route.
    pub node_ip: Option<String>,
    /// Of `--kubeconfig`; `None`: there is no API server.
    pub kubeconfig: Option<PathBuf>,
    pub root: PathBuf,
    /// Of `--local-objects-path`: the folder of ConfigMaps and Secrets.
    pub objects: Option<PathBuf>,
    pub verbosity: i32,
    /// The configuration of credential providers, and the folder of their programs.
    pub credential_providers: Option<(PathBuf, PathBuf)>,
    pub dead_containers: DeadContainers,
    /// `None`: no limit.
    pub max_parallel_pulls: Option<usize>,
    pub configuration: Configuration,
}

/// Which containers stay that have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadContainers {
    pub min_age: Duration,
    /// Negative: all.
    pub max_per_container: i32,
    /// Negative: all.
    pub max: i32,
}

/// The honoured flags; `*`: may stand without a value.
const HONOURED: [(&str, &str); 50] = [
    ("address", "address of the read-only port (0.0.0.0)"),
    ("cgroup-driver", "driver of cgroups if the runtime names none (cgroupfs)"),
    ("cgroup-root", "cgroup below which those of pods are made"),
    ("cgroups-per-qos*", "make cgroups for the classes of pods (true)"),
    ("cluster-dns", "servers of pods with the DNS policy ClusterFirst, separated by commas"),
    ("cluster-domain", "domain below which services have their names"),
    ("config", "file with a KubeletConfiguration"),
    ("config-dir", "folder whose *.conf files override the configuration"),
    (
        "container-runtime-endpoint",
        "socket of the runtime (unix:///run/containerd/containerd.sock)",
    ),
    ("container-log-max-files", "files of a container's log, with the current one (5)"),
    ("container-log-max-size", "size from which a log is rotated, negative: never (10Mi)"),
    ("enforce-node-allocatable", "pods: limit all pods together to the machine; none (pods)"),
    ("eviction-hard", "thresholds, as memory.available<100Mi,nodefs.available<10%"),
    ("eviction-max-pod-grace-period", "longest grace at a soft threshold, in seconds (0)"),
    ("eviction-minimum-reclaim", "what is freed on top, as memory.available=1Gi"),
    ("eviction-soft", "thresholds that may be crossed for a time"),
    ("eviction-soft-grace-period", "that time, as memory.available=90s"),
    ("file-check-frequency", "how often the folder of static pods is read whole (20s)"),
    ("healthz-bind-address", "address of the health check (127.0.0.1)"),
    ("healthz-port", "port of the health check, 0: none (10248)"),
    ("help*", "this text"),
    ("hostname-override", "name of the node"),
    ("http-check-frequency", "how often the manifest URL is read (20s)"),
    ("image-credential-provider-bin-dir", "folder of the programs of the next flag"),
    ("image-credential-provider-config", "file or folder with a CredentialProviderConfig"),
    ("image-gc-high-threshold", "percent of the disk from which unused images are removed (85)"),
    ("image-gc-low-threshold", "percent of the disk down to which images are removed (80)"),
    ("image-service-endpoint", "socket of the image service (the runtime's)"),
    ("kubeconfig", "kubeconfig of an API server whose pods for this node run here too"),
    ("local-objects-path", "folder of ConfigMaps and Secrets that static pods may use"),
    ("local-storage-capacity-isolation*", "evict pods that exceed their own limits (true)"),
    ("manifest-url", "URL of static pods"),
    ("manifest-url-header", "header of requests to the manifest URL, as name:value"),
    ("maximum-dead-containers", "containers that stay when they have ended, -1: all (-1)"),
    ("maximum-dead-containers-per-container", "of each container of a pod (1)"),
    ("minimum-container-ttl-duration", "age before a container that has ended is removed (0s)"),
    ("minimum-image-ttl-duration", "age before an unused image is removed (2m)"),
    ("node-ip", "address of the node"),
    ("oom-score-adj", "the kubelet's own (-999)"),
    ("pod-manifest-path", "folder or file of static pods"),
    ("pod-max-pids", "processes of each pod, -1: no limit (-1)"),
    ("read-only-port", "port without authentication, 0: none (0)"),
    ("resolv-conf", "resolver configuration of pods (/etc/resolv.conf)"),
    ("root-dir", "folder of the kubelet's files (/var/lib/kubelet)"),
    ("runtime-request-timeout", "deadline of calls to the runtime (2m)"),
    ("serialize-image-pulls*", "pull images one after the other (true)"),
    ("sync-frequency", "how often an unchanged pod is synced (1m)"),
    ("v", "verbosity of the log (0)"),
    ("version*", "print the version"),
    ("volume-stats-agg-period", "how often limits of volumes are checked, 0: never (1m)"),
];

/// Upstream's other flags.
const REFUSED: &str = "allowed-unsafe-sysctls anonymous-auth authentication-token-webhook \
    authentication-token-webhook-cache-ttl authorization-mode \
    authorization-webhook-cache-authorized-ttl authorization-webhook-cache-unauthorized-ttl \
    bootstrap-kubeconfig cert-dir client-ca-file cloud-provider contention-profiling cpu-cfs-quota \
    cpu-cfs-quota-period cpu-manager-policy cpu-manager-policy-options \
    cpu-manager-reconcile-period enable-controller-attach-detach \
    enable-debugging-handlers enable-server event-burst event-qps \
    eviction-pressure-transition-period exit-on-lock-contention \
    experimental-allocatable-ignore-eviction experimental-mounter-path fail-cgroupv1 fail-swap-on \
    feature-gates hairpin-mode kernel-memcg-notification kube-api-burst kube-api-content-type \
    kube-api-qps kube-reserved kube-reserved-cgroup kubelet-cgroups lock-file \
    make-iptables-util-chains max-open-files max-pods memory-manager-policy node-labels \
    node-status-max-images node-status-update-frequency pod-cidr pods-per-core port \
    protect-kernel-defaults provider-id qos-reserved register-node register-with-taints \
    registry-burst registry-qps reserved-cpus reserved-memory rotate-certificates \
    rotate-server-certificates runonce runtime-cgroups seccomp-default \
    streaming-connection-idle-timeout system-cgroups system-reserved system-reserved-cgroup \
    tls-cert-file tls-cipher-suites tls-min-version tls-private-key-file topology-manager-policy \
    topology-manager-policy-options topology-manager-scope volume-plugin-dir";

/// The text of `--help`.
pub fn usage() -> String {
    let mut text =
        "Keeps the pods of a folder or a URL on this machine.\n\nUsage:\n  kubelet [flags]\n\n\
                    Flags:\n"
            .to_owned();
    for (flag, help) in HONOURED {
        text.push_str(&format!("      --{:<28} {help}\n", flag.trim_end_matches('*')));
    }
    text
}

/// Parses the arguments after the program's name, and reads the configuration files that they name.
/// A flag wins over a file.
///
/// # Errors
/// One line that names the flag, or the file and field.
pub fn parse(args: &[String]) -> Result<Command, String> {
    let flags = flags(args)?;
    let last = |name: &str| {
        flags.iter().rev().find(|(flag, _)| flag == name).map(|(_, value)| value.as_str())
    };
    if is_on(last("help"), "help")?.unwrap_or(false) {
        return Ok(Command::Help);
    }
    if is_on(last("version"), "version")?.unwrap_or(false) {
        return Ok(Command::Version);
    }
    let mut configuration = configuration::read(last("config"), last("config-dir"))?;
    override_by(&mut configuration, &flags)?;
    let text = |name: &str| last(name).filter(|value| !value.is_empty()).map(str::to_owned);
    let of = |name: &str, default| last(name).map_or(Ok(default), |value| number(value, name));
    let ttl = "minimum-container-ttl-duration";
    let dead_containers = DeadContainers {
        min_age: last(ttl).map_or(Ok(Duration::ZERO), |value| duration(value, ttl))?,
        max_per_container: of("maximum-dead-containers-per-container", 1)?,
        max: of("maximum-dead-containers", -1)?,
    };
    let config = "image-credential-provider-config";
    let programs = "image-credential-provider-bin-dir";
    let credential_providers = match (text(config), text(programs)) {
        (Some(config), Some(programs)) => Some((config.into(), programs.into())),
        (None, None) => None,
        _ => return Err(format!("--{config} and --{programs} are needed both")),
    };
    Ok(Command::Run(Box::new(Settings {
        credential_providers,
        dead_containers,
        max_parallel_pulls: configuration.max_parallel_pulls()?,
        hostname: text("hostname-override"),
        node_ip: text("node-ip"),
        kubeconfig: text("kubeconfig").map(PathBuf::from),
        root: text("root-dir").unwrap_or_else(|| "/var/lib/kubelet".to_owned()).into(),
        objects: text("local-objects-path").map(PathBuf::from),
        verbosity: last("v").map_or(Ok(0), |value| number(value, "v"))?,
        configuration,
    })))
}

fn flags(args: &[String]) -> Result<Vec<(String, String)>, String> {
    let mut flags = Vec::new();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let Some(flag) = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')) else {
            return Err(format!("unknown command {arg:?}: the kubelet takes only flags"));
        };
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (flag, None),
        };
        let name = match name {
            "h" => "help".to_owned(),
            name => name.replace('_', "-"),
        };
        let known = HONOURED.iter().find(|(known, _)| known.trim_end_matches('*') == name);
        let Some((known, _)) = known else {
            return Err(match REFUSED.split_whitespace().any(|refused| refused == name) {
                true => format!("--{name} is not supported yet: see docs/kubelet-flags.md"),
                false => format!("unknown flag: --{name}"),
            });
        };
        let alone = known.ends_with('*').then(|| "true".to_owned());
        let value = value.or(alone).or_else(|| args.next().cloned());
        let value = value.ok_or_else(|| format!("flag needs an argument: --{name}"))?;
        flags.push((name, value));
    }
    Ok(flags)
}

fn override_by(
    configuration: &mut Configuration,
    flags: &[(String, String)],
) -> Result<(), String> {
    let mut headers: std::collections::BTreeMap<String, Vec<String>> = Default::default();
    for (name, value) in flags {
        let text = || Some(value.clone());
        let duration = || duration(value, name).map(|duration| Some(GoDuration(duration)));
        match name.as_str() {
            "address" => configuration.address = text(),
            "cgroup-root" => configuration.cgroup_root = text(),
            "cluster-dns" => {
                configuration.cluster_dns = value.split(',').map(str::to_owned).collect();
            }
            "cluster-domain" => configuration.cluster_domain = text(),
            "cgroup-driver" => configuration.cgroup_driver = text(),
            "cgroups-per-qos" => configuration.cgroups_per_qos = is_on(Some(value), name)?,
            "enforce-node-allocatable" => {
                let keys = value.split(',').filter(|key| !key.is_empty());
                configuration.enforce_node_allocatable = Some(keys.map(str::to_owned).collect());
            }
            "eviction-hard" => configuration.eviction_hard = Some(pairs(value, '<', name)?),
            "eviction-max-pod-grace-period" => {
                configuration.eviction_max_pod_grace_period = Some(number(value, name)?);
            }
            "eviction-minimum-reclaim" => {
                configuration.eviction_minimum_reclaim = pairs(value, '=', name)?;
            }
            "eviction-soft" => configuration.eviction_soft = pairs(value, '<', name)?,
            "eviction-soft-grace-period" => {
                configuration.eviction_soft_grace_period = pairs(value, '=', name)?;
            }
            "local-storage-capacity-isolation" => {
                configuration.local_storage_capacity_isolation = is_on(Some(value), name)?;
            }
            "volume-stats-agg-period" => configuration.volume_stats_agg_period = duration()?,
            "oom-score-adj" => configuration.oom_score_adj = Some(number(value, name)?),
            "pod-max-pids" => configuration.pod_pids_limit = Some(number(value, name)?),
            "container-log-max-files" => {
                configuration.container_log_max_files = Some(number(value, name)?);
            }
            "container-log-max-size" => configuration.container_log_max_size = text(),
            "image-gc-high-threshold" => {
                configuration.image_gc_high_threshold_percent = Some(number(value, name)?);
            }
            "image-gc-low-threshold" => {
                configuration.image_gc_low_threshold_percent = Some(number(value, name)?);
            }
            "minimum-image-ttl-duration" => configuration.image_minimum_gc_age = duration()?,
            "container-runtime-endpoint" => configuration.container_runtime_endpoint = text(),
            "file-check-frequency" => configuration.file_check_frequency = duration()?,
            "healthz-bind-address" => configuration.healthz_bind_address = text(),
            "healthz-port" => configuration.healthz_port = Some(number(value, name)?),
            "http-check-frequency" => configuration.http_check_frequency = duration()?,
            "image-service-endpoint" => configuration.image_service_endpoint = text(),
            "manifest-url" => configuration.static_pod_url = text(),
            "manifest-url-header" => {
                for header in value.split(',').filter(|header| !header.is_empty()) {
                    let (key, value) = header.split_once(':').ok_or_else(|| {
                        format!("--manifest-url-header: {header:?} is not name:value")
                    })?;
                    headers.entry(key.trim().to_owned()).or_default().push(value.trim().to_owned());
                }
            }
            "pod-manifest-path" => configuration.static_pod_path = text(),
            "read-only-port" => configuration.read_only_port = Some(number(value, name)?),
            "resolv-conf" => configuration.resolv_conf = text(),
            "runtime-request-timeout" => configuration.runtime_request_timeout = duration()?,
            "serialize-image-pulls" => {
                configuration.serialize_image_pulls = is_on(Some(value), name)?;
            }
            "sync-frequency" => configuration.sync_frequency = duration()?,
            _ => {}
        }
    }
    if !headers.is_empty() {
        configuration.static_pod_url_header = headers;
    }
    Ok(())
}

/// Pairs such as `a<1,b<2`.
fn pairs(
    value: &str,
    separator: char,
    name: &str,
) -> Result<std::collections::BTreeMap<String, String>, String> {
    let items = value.split(',').map(str::trim).filter(|item| !item.is_empty());
    let split = items.map(|item| {
        let pair = item.split_once(separator).filter(|(_, value)| !value.contains(separator));
        let (key, value) = pair.ok_or_else(|| {
            format!(
                "invalid argument {value:?} for \"--{name}\" flag: {item:?} has no {separator:?}"
            )
        })?;
        Ok((key.trim().to_owned(), value.trim().to_owned()))
    });
    split.collect()
}

fn duration(value: &str, name: &str) -> Result<Duration, String> {
    parse_duration(value)
        .map_err(|error| format!("invalid argument {value:?} for \"--{name}\" flag: {error}"))
}

fn number<T: std::str::FromStr>(value: &str, name: &str) -> Result<T, String> {
    value
        .parse()
        .map_err(|_| format!("invalid argument {value:?} for \"--{name}\" flag: not such a number"))
}

fn is_on(value: Option<&str>, name: &str) -> Result<Option<bool>, String> {
    match value {
        None => Ok(None),
        Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(Some(true)),
        Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(Some(false)),
        Some(other) => {
            Err(format!("invalid argument {other:?} for \"--{name}\" flag: not a boolean"))
        }
    }
}

/// How often an unchanged pod is synced.
pub fn sync_period(configuration: &Configuration) -> Duration {
    configuration.sync_frequency.map_or(Duration::from_secs(60), |duration| duration.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(args: &[&str]) -> Result<Settings, String> {
        let args: Vec<String> = args.iter().map(ToString::to_string).collect();
        match parse(&args)? {
            Command::Run(settings) => Ok(*settings),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn faults_name_the_flag() {
        for (args, fault) in [
            (&["--x"][..], "unknown flag: --x"),
            (&["a"], "unknown command \"a\": the kubelet takes only flags"),
            (&["--pod-cidr=1"], "--pod-cidr is not supported yet: see docs/kubelet-flags.md"),
            (&["--root-dir"], "flag needs an argument: --root-dir"),
            (
                &["--healthz-port=x"],
                "invalid argument \"x\" for \"--healthz-port\" flag: not such a number",
            ),
            (
                &["--sync-frequency", "5"],
                "invalid argument \"5\" for \"--sync-frequency\" flag: time: missing unit in \
                 duration \"5\"",
            ),
            (
                &["--serialize-image-pulls=maybe"],
                "invalid argument \"maybe\" for \"--serialize-image-pulls\" flag: not a boolean",
            ),
            (&["--config=/nonexistent"], "/nonexistent: No such file or directory (os error 2)"),
        ] {
            assert_eq!(run(args).err().as_deref(), Some(fault), "{args:?}");
        }
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
        assert_eq!(settings.configuration.static_pod_path.as_deref(), Some("/pods"));
        assert_eq!(settings.hostname.as_deref(), Some("n"));
        assert_eq!(settings.verbosity, 4);
        let headers = settings.configuration.static_pod_url_header;
        assert_eq!(headers["A"], ["b"]);
        assert_eq!(headers["C"], ["d"]);
        assert_eq!(settings.configuration.serialize_image_pulls, Some(true));
    }

    #[test]
    fn pulls_are_validated_with_flags_over_the_file() {
        let file = std::env::temp_dir().join(format!("kubelet-pulls-{}.yaml", std::process::id()));
        let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
                    maxParallelImagePulls: 2\n";
        std::fs::write(&file, text).expect("a file");
        let config = format!("--config={}", file.display());
        let settings = run(&[&config]).expect("settings");
        assert_eq!(settings.max_parallel_pulls, Some(2));
        let fault = run(&[&config, "--serialize-image-pulls=true"]).expect_err("a conflict");
        assert!(fault.starts_with("maxParallelImagePulls cannot be larger than 1"), "{fault}");
        std::fs::remove_file(&file).expect("removed");
    }

    #[test]
    fn documentation_names_each_flag_and_field() {
        let docs = include_str!("../../../docs/kubelet-flags.md");
        for (flag, _) in HONOURED {
            let flag = format!("`--{}`", flag.trim_end_matches('*'));
            assert!(docs.contains(&flag), "{flag}");
        }
        for field in configuration::accepted_fields() {
            assert!(docs.contains(&format!("`{field}")), "{field}");
        }
    }
}
