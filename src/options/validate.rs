//! Faults of flags that parse. Upstream: the `Validate` of each `options` struct.

use std::time::Duration;

use super::compatibility::version_problems;
use super::flags::{FLAGS, Options};
use super::release::Release;

/// The jitter of retries. Upstream: `leaderelection.JitterFactor`.
const JITTER: f64 = 1.2;

const CIPHER_SUITES: &[&str] = &[
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];

/// Collects faults, a line each.
struct Faults(Vec<String>);

impl Faults {
    /// Adds `fault` if `when` holds.
    fn refuse(&mut self, when: bool, fault: impl Into<String>) {
        if when {
            self.0.push(fault.into());
        }
    }
}

/// Returns all faults of the options, a line each. `known_controller` tests a name in
/// `--controllers`.
pub fn validate(options: &Options, known_controller: &dyn Fn(&str) -> bool) -> Vec<String> {
    let mut faults = Faults(options.feature_gates.problems(&options.possible_releases()));
    faults.0.extend(version_problems(options));
    elections(options, &mut faults);
    faults.refuse(
        options.kube_api_qps > 0.0 && options.kube_api_burst <= 0,
        "--kube-api-burst must be greater than 0 while --kube-api-qps is",
    );
    faults.refuse(!options.shadow && !options.shadow_for.is_zero(), "--shadow-for needs --shadow");
    faults.refuse(
        options.shadow && options.shadow_grace < Duration::from_secs(1),
        "--shadow-grace must be at least one second",
    );
    faults.0.extend(controller_faults(&options.controllers, known_controller));
    faults.refuse(
        options.attach_detach_reconcile_sync_period < Duration::from_secs(1),
        "--attach-detach-reconcile-sync-period must be at least one second",
    );
    for flag in FLAGS {
        let fault = (flag.fault)(options);
        faults.0.extend(fault.map(|fault| format!("--{} {fault}", flag.name())));
    }
    serving(options, &mut faults);
    authentication(options, &mut faults);
    network(options, &mut faults);
    signing(options, &mut faults);
    metrics(options, &mut faults);
    logging(options, &mut faults);
    faults.0
}

/// Checks the flags of leader election.
fn elections(o: &Options, faults: &mut Faults) {
    faults.refuse(
        o.leader_elect && o.leader_elect_resource_lock != "leases",
        "--leader-elect-resource-lock: resourceLock value must be \"leases\"",
    );
    if o.leader_elect {
        faults.0.extend(lease_problems(o));
    }
}

/// Returns the faults of the names in `list`, the value of `--controllers`, a line each. `is_known`
/// tests a name.
pub fn controller_faults(list: &[String], is_known: &dyn Fn(&str) -> bool) -> Vec<String> {
    let items = list.iter().filter(|item| *item != "*");
    let names = items.map(|item| item.strip_prefix('-').unwrap_or(item));
    names
        .filter(|name| !is_known(name))
        .map(|name| format!("--controllers: {name:?} is not in the list of known controllers"))
        .collect()
}

/// Checks the secure port and its certificates.
fn serving(o: &Options, faults: &mut Faults) {
    faults.refuse(
        !(0..=65535).contains(&o.secure_port),
        format!(
            "--secure-port {} must be between 0 and 65535, inclusive. 0 for turning off secure port",
            o.secure_port
        ),
    );
    faults.refuse(
        o.tls_cert_file.is_empty() != o.tls_private_key_file.is_empty(),
        "--tls-cert-file and --tls-private-key-file must be given together",
    );
    faults.0.extend(tls_faults(&o.tls_min_version, &o.tls_cipher_suites));
}

/// Returns the faults in the names of the oldest version and of the suites of TLS: a line each,
/// with the flag.
/// Upstream: `cliflag.TLSVersion`, `cliflag.TLSCipherSuites`.
pub fn tls_faults(min_version: &str, suites: &[String]) -> Vec<String> {
    let known = ["", "VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"];
    let version = (!known.contains(&min_version))
        .then(|| format!("--tls-min-version: unknown tls version {min_version:?}"));
    let unknown = suites.iter().filter(|suite| !CIPHER_SUITES.contains(&suite.as_str()));
    let suites = unknown.map(|suite| {
        format!("--tls-cipher-suites: cipher suite {suite} not supported or doesn't exist")
    });
    version.into_iter().chain(suites).collect()
}

/// Checks the flags about authentication and authorization of requests to the secure port.
fn authentication(o: &Options, faults: &mut Faults) {
    for path in &o.authorization_always_allow_paths {
        faults.refuse(
            path.trim_end_matches('*').contains('*') || path.ends_with("**"),
            format!("--authorization-always-allow-paths: only trailing * allowed in {path:?}"),
        );
    }
    for (flag, values) in [
        ("requestheader-username-headers", &o.requestheader_username_headers),
        ("requestheader-group-headers", &o.requestheader_group_headers),
        ("requestheader-uid-headers", &o.requestheader_uid_headers),
        ("requestheader-extra-headers-prefix", &o.requestheader_extra_headers_prefix),
        ("requestheader-allowed-names", &o.requestheader_allowed_names),
    ] {
        let empty = values.iter().any(|value| value.trim().is_empty());
        faults.refuse(empty, format!("--{flag}: empty value"));
    }
    let uid_headers = &o.requestheader_uid_headers;
    faults.refuse(
        !uid_headers.is_empty() && !o.feature_gates.enabled("RemoteRequestHeaderUID"),
        "--requestheader-uid-headers requires the \"RemoteRequestHeaderUID\" feature to be enabled",
    );
    faults.refuse(
        !uid_headers.is_empty()
            && !uid_headers.iter().any(|header| header.eq_ignore_ascii_case("X-Remote-Uid")),
        "--requestheader-uid-headers is set without specifying the standard X-Remote-Uid header - \
         API aggregation will not work",
    );
}

/// Checks the address ranges and the cloud provider.
fn network(o: &Options, faults: &mut Faults) {
    let service: Vec<&str> = o.service_cluster_ip_range.split(',').collect();
    faults.refuse(
        service.len() > 2,
        "--service-cluster-ip-range can not contain more than two entries",
    );
    faults.refuse(
        !matches!(o.cloud_provider.as_str(), "" | "external"),
        format!(
            "--cloud-provider: cloud provider {:?} was specified, but built-in cloud providers are \
             disabled. Please set --cloud-provider=external",
            o.cloud_provider
        ),
    );
    faults.refuse(
        !matches!(o.cidr_allocator_type.as_str(), "" | "RangeAllocator"),
        format!(
            "--cidr-allocator-type: built-in cloud providers are disabled. The ipam {} is not \
             available",
            o.cidr_allocator_type
        ),
    );
}

/// Checks the authorities of the certificate signers.
fn signing(o: &Options, faults: &mut Faults) {
    let signers = [
        (
            "kubelet-serving",
            &o.cluster_signing_kubelet_serving_cert_file,
            &o.cluster_signing_kubelet_serving_key_file,
        ),
        (
            "kubelet-client",
            &o.cluster_signing_kubelet_client_cert_file,
            &o.cluster_signing_kubelet_client_key_file,
        ),
        (
            "kube-apiserver-client",
            &o.cluster_signing_kube_apiserver_client_cert_file,
            &o.cluster_signing_kube_apiserver_client_key_file,
        ),
        (
            "legacy-unknown",
            &o.cluster_signing_legacy_unknown_cert_file,
            &o.cluster_signing_legacy_unknown_key_file,
        ),
    ];
    for (signer, cert, key) in signers {
        let flags = format!("--cluster-signing-{signer}-{{cert,key}}-file");
        faults.refuse(
            cert.is_empty() && !key.is_empty(),
            format!("{flags}: cannot specify key without cert"),
        );
        faults.refuse(
            !cert.is_empty() && key.is_empty(),
            format!("{flags}: cannot specify cert without key"),
        );
    }
    let has_common_files =
        !o.cluster_signing_cert_file.is_empty() || !o.cluster_signing_key_file.is_empty();
    let has_separate_files =
        signers.iter().any(|(_, cert, key)| !cert.is_empty() || !key.is_empty());
    faults.refuse(
        has_common_files && has_separate_files,
        "cannot specify --cluster-signing-{cert,key}-file and other --cluster-signing-*-file flags \
         at the same time",
    );
}

/// Checks the flags about hidden metrics, disabled metrics and the labels of metrics.
fn metrics(o: &Options, faults: &mut Faults) {
    let previous = |release: Release| format!("1.{}", release.minor() - 1);
    let hidden = &o.show_hidden_metrics_for_version;
    faults.refuse(
        !hidden.is_empty()
            && o.possible_releases().into_iter().all(|release| *hidden != previous(release)),
        format!(
            "--show-hidden-metrics-for-version: Invalid value: {hidden:?}: must be omitted or have \
             the value '{}'; only the previous minor version is allowed",
            previous(o.release())
        ),
    );
    for name in &o.disabled_metrics {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':');
        let is_valid = name.starts_with(|c| is_allowed(c) && !c.is_ascii_digit())
            && name.chars().all(is_allowed);
        faults.refuse(
            !is_valid,
            format!("--disabled-metrics: {name:?} is not a fully qualified metric name"),
        );
    }
    for key in o.allow_metric_labels.0.keys() {
        faults.refuse(
            !matches!(key.split_once(','), Some((metric, label)) if !metric.is_empty() && !label.is_empty()),
            format!(
                "--allow-metric-labels: {key:?}: must have keys with format `metricName,labelName`"
            ),
        );
    }
    faults.refuse(
        !o.allow_metric_labels.0.is_empty() && !o.allow_metric_labels_manifest.is_empty(),
        "--allow-metric-labels: cannot specify both it and --allow-metric-labels-manifest",
    );
}

/// Checks the flags about the log, some of which need a feature gate.
fn logging(o: &Options, faults: &mut Faults) {
    faults.refuse(
        !matches!(o.logging_format.as_str(), "text" | "json"),
        format!("--logging-format: Invalid value: {:?}: Unsupported log format", o.logging_format),
    );
    faults.refuse(
        o.logging_format == "json" && !o.feature_gates.enabled("LoggingBetaOptions"),
        "--logging-format: Forbidden: Log format json is disabled, see LoggingBetaOptions feature",
    );
    faults.refuse(
        o.log_flush_frequency.is_zero(),
        "--log-flush-frequency: Invalid value: 0s: Must be greater than zero",
    );
    for (format, split, buffer) in [
        ("text", o.log_text_split_stream, o.log_text_info_buffer_size),
        ("json", o.log_json_split_stream, o.log_json_info_buffer_size),
    ] {
        let off = !o.feature_gates.enabled("LoggingAlphaOptions");
        for (flag, given) in [("split-stream", split), ("info-buffer-size", buffer.0 > 0)] {
            faults.refuse(
                off && given,
                format!(
                    "--log-{format}-{flag}: Forbidden: Feature LoggingAlphaOptions is disabled"
                ),
            );
        }
    }
    faults.refuse(
        o.logging_format == "json" && !o.vmodule.0.is_empty(),
        "--vmodule: only supported for text log format",
    );
}

/// Returns the faults of the times and the names of the lease.
fn lease_problems(o: &Options) -> Vec<String> {
    let (lease, renew, retry) =
        (o.leader_elect_lease_duration, o.leader_elect_renew_deadline, o.leader_elect_retry_period);
    let rules = [
        (lease.is_zero(), "--leader-elect-lease-duration must be greater than zero"),
        (renew.is_zero(), "--leader-elect-renew-deadline must be greater than zero"),
        (retry.is_zero(), "--leader-elect-retry-period must be greater than zero"),
        (
            lease <= renew,
            "--leader-elect-lease-duration must be greater than --leader-elect-renew-deadline",
        ),
        (
            renew <= retry.mul_f64(JITTER),
            "--leader-elect-renew-deadline must be greater than --leader-elect-retry-period*1.2",
        ),
        (o.leader_elect_resource_name.is_empty(), "--leader-elect-resource-name is required"),
        (
            o.leader_elect_resource_namespace.is_empty(),
            "--leader-elect-resource-namespace is required",
        ),
    ];
    rules.iter().filter(|(broken, _)| *broken).map(|(_, problem)| problem.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::values::Given;
    use super::*;
    use crate::options::{Count, Value};

    fn count_of(given: &str) -> Count {
        Count::parse(given).expect("a number")
    }

    fn problems(change: fn(&mut Options)) -> Vec<String> {
        let mut options = Options::default();
        change(&mut options);
        validate(&options, &|name| name == "deployment")
    }

    #[test]
    fn defaults_are_valid() {
        assert_eq!(problems(|_| ()), Vec::<String>::new());
    }

    #[test]
    fn each_fault_names_its_flag() {
        type Change = fn(&mut Options);
        let table: &[(Change, &str)] = &[
            (
                |o| o.controllers = vec!["*".into(), "-nope".into(), "deployment".into()],
                "--controllers: \"nope\" is not in the list of known controllers",
            ),
            (
                |o| o.controllers = vec!["*".into(), "-*".into()],
                "--controllers: \"*\" is not in the list of known controllers",
            ),
            (
                |o| o.kube_api_burst = 0,
                "--kube-api-burst must be greater than 0 while --kube-api-qps is",
            ),
            (
                |o| o.concurrent_deployment_syncs = count_of("0"),
                "--concurrent-deployment-syncs must be greater than 0, but got 0",
            ),
            (
                |o| o.max_endpoints_per_slice.merge(vec![Given(count_of("1001"))]),
                "--max-endpoints-per-slice must not be more than 1000, but got 1001",
            ),
            (
                |o| o.secure_port = 65536,
                "--secure-port 65536 must be between 0 and 65535, inclusive. \
                 0 for turning off secure port",
            ),
            (
                |o| o.service_cluster_ip_range = "a,b,c".into(),
                "--service-cluster-ip-range can not contain more than two entries",
            ),
            (
                |o| o.leader_elect_renew_deadline = Duration::from_secs(15),
                "--leader-elect-lease-duration must be greater than --leader-elect-renew-deadline",
            ),
            (
                |o| o.leader_elect_retry_period = Duration::from_secs(9),
                "--leader-elect-renew-deadline must be greater than \
                 --leader-elect-retry-period*1.2",
            ),
            (
                |o| o.feature_gates.given.push(("Nope".into(), true)),
                "--feature-gates: unrecognized feature gate: Nope",
            ),
            (
                |o| o.cluster_signing_legacy_unknown_key_file = "k".into(),
                "--cluster-signing-legacy-unknown-{cert,key}-file: cannot specify key without cert",
            ),
            (
                |o| o.tls_cipher_suites.push("X".into()),
                "--tls-cipher-suites: cipher suite X not supported or doesn't exist",
            ),
            (
                |o| o.requestheader_uid_headers = vec!["X-Uid".into()],
                "--requestheader-uid-headers is set without specifying the standard X-Remote-Uid \
                 header - API aggregation will not work",
            ),
            (
                |o| o.authorization_always_allow_paths = vec!["/ok*".into(), "/a*b".into()],
                "--authorization-always-allow-paths: only trailing * allowed in \"/a*b\"",
            ),
            (
                |o| o.emulated_version = vec!["1.30".into()],
                "--emulated-version: emulation version 1.30 is not between [1.34, 1.37]",
            ),
            (
                |o| o.emulated_version = vec!["kube=x".into()],
                "--emulated-version: could not parse \"x\" as version",
            ),
            (
                |o| o.emulated_version = vec!["v1.36.2".into()],
                "--emulated-version: patch version not allowed, got: kube=1.36.2",
            ),
            (
                |o| o.emulated_version = vec!["kube=1.35".into(), "1.34".into()],
                "--emulated-version: duplicate version flag, kube=1.35 and kube=1.34",
            ),
            (
                |o| o.emulated_version = vec!["wardle=1.2".into()],
                "--emulated-version: component not registered: wardle",
            ),
            (
                |o| {
                    o.emulated_version = vec!["kube=1.34".into()];
                    o.min_compatibility_version = vec!["1.36".into()];
                },
                "--min-compatibility-version: minCompatibilityVersion version 1.36 is not between \
                 [1.34, 1.34]",
            ),
            (
                |o| o.show_hidden_metrics_for_version = "1.30".into(),
                "--show-hidden-metrics-for-version: Invalid value: \"1.30\": must be omitted or \
                 have the value '1.35'; only the previous minor version is allowed",
            ),
            (
                |o| o.disabled_metrics = vec!["a-b".into()],
                "--disabled-metrics: \"a-b\" is not a fully qualified metric name",
            ),
            (
                |o| o.log_text_split_stream = true,
                "--log-text-split-stream: Forbidden: Feature LoggingAlphaOptions is disabled",
            ),
            (
                |o| {
                    o.logging_format = "json".into();
                    o.feature_gates.given.push(("LoggingBetaOptions".into(), false));
                },
                "--logging-format: Forbidden: Log format json is disabled, see LoggingBetaOptions \
                 feature",
            ),
        ];
        for (change, expected) in table {
            assert_eq!(problems(*change), [*expected]);
        }
    }

    #[test]
    fn lease_flags_are_not_checked_without_an_election() {
        let none = problems(|o| {
            o.leader_elect = false;
            o.leader_elect_lease_duration = Duration::ZERO;
        });
        assert_eq!(none, Vec::<String>::new());
    }
}
