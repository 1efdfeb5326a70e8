//! Reads configuration files. Each field is honoured, refused, or named in the log as without effect; a
//! field that is null is not set. Files of the drop-in folder change what the first file says.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde_json::{Map, Value, json};

use super::configuration::{Configuration, default_eviction_hard};
use super::{Error, Files};

/// Returns the names of the fields that are honoured: those of [`Configuration`].
fn honoured() -> Vec<String> {
    match serde_json::to_value(Configuration::default()) {
        Ok(Value::Object(fields)) => fields.into_iter().map(|(field, _)| field).collect(),
        _ => Vec::new(),
    }
}

/// Fields that are accepted with one value, or with that of each row: this is how the kubelet works.
const FIXED: [(&str, &str); 16] = [
    ("cpuManagerPolicy", "\"none\""),
    ("memoryManagerPolicy", "\"None\""),
    ("topologyManagerPolicy", "\"none\""),
    ("topologyManagerScope", "\"container\""),
    ("cpuCFSQuota", "true"),
    ("cpuCFSQuotaPeriod", "\"100ms\""),
    ("memoryReservationPolicy", "\"None\""),
    ("memorySwap", r#"{"swapBehavior":"NoSwap"}"#),
    // Without a limit of pulls, also upstream's default is kept.
    ("registryPullQPS", "5"),
    ("registryPullQPS", "0"),
    ("registryBurst", "10"),
    ("runOnce", "false"),
    ("kernelMemcgNotification", "false"),
    ("enableContentionProfiling", "false"),
    ("enableSystemLogQuery", "false"),
    ("configMapAndSecretChangeDetectionStrategy", "\"Watch\""),
];

/// Fields that matter only to parts that have nothing to do.
const WITHOUT_EFFECT: [&str; 8] = [
    "contentType",
    "cpuManagerReconcilePeriod",
    "hairpinMode",
    "iptablesDropBit",
    "iptablesMasqueradeBit",
    "makeIPTablesUtilChains",
    "memoryThrottlingFactor",
    "volumePluginDir",
];

/// Upstream's other fields: they would change what this kubelet does, and it does not do it.
const REFUSED: &str = "cpuManagerPolicyOptions qosReserved reservedMemory \
    showHiddenMetricsForVersion systemCgroups tlsCurvePreferences topologyManagerPolicyOptions \
    tracing";

const EVICTION_HARD: &str = "evictionHard";

/// What all files say together.
pub struct Loaded {
    pub configuration: Configuration,
    /// The fields that have no effect.
    pub ignored: BTreeSet<String>,
}

/// Reads a configuration file, and the files `*.conf` of the drop-in folder on top of it, in the
/// order of their names.
///
/// # Errors
/// One that names the file, and the field where there is one.
pub fn read(files: &Files) -> Result<Loaded, Error> {
    let mut ignored = BTreeSet::new();
    let mut load = |file: &str| load(file, &mut ignored).map_err(in_file(file));
    let mut merged = json!({});
    if !files.config.is_empty() {
        let mut document = load(&files.config)?;
        // Drop-ins change what the file says with its defaults; of objects, only this one has any.
        // Without the file there are none. Upstream: `loadConfigFile`.
        if document.get(EVICTION_HARD).is_none_or(Value::is_null) {
            document.insert(EVICTION_HARD.to_owned(), json!(default_eviction_hard()));
        }
        merge(&mut merged, Value::Object(document));
    }
    for file in list_drop_ins(&files.config_dir)? {
        merge(&mut merged, Value::Object(load(&file)?));
    }
    let configuration = build(merged).map_err(Error::Field)?;
    Ok(Loaded { configuration, ignored })
}

/// Builds the configuration of these fields, with upstream's defaults.
fn build(fields: Value) -> Result<Configuration, serde_json::Error> {
    let is_set = |field: &str| fields.get(field).is_some_and(|value| !is_unset(value));
    let [sets_update, sets_report] =
        ["nodeStatusUpdateFrequency", "nodeStatusReportFrequency"].map(is_set);
    let mut configuration: Configuration = serde_json::from_value(fields)?;
    configuration.replace_zeros_of_files();
    // As upstream: an unchanged status is written as often as it is computed, if only that is set.
    if !sets_report {
        configuration.node_status_report_frequency = match sets_update {
            true => configuration.node_status_update_frequency,
            false => Configuration::default().node_status_report_frequency,
        };
    }
    Ok(configuration)
}

/// Adds the file's path to an error.
fn in_file(path: &str) -> impl FnOnce(Error) -> Error {
    move |cause| Error::File { path: path.to_owned(), cause: Box::new(cause) }
}

/// Lists the files of the drop-in folder in the order in which they are merged.
fn list_drop_ins(folder: &str) -> Result<Vec<String>, Error> {
    let mut files = Vec::new();
    if !folder.is_empty() {
        add_drop_ins(folder.as_ref(), &mut files)?;
    }
    Ok(files)
}

/// Adds the files `*.conf` of a folder, in the order of their names; those of a folder inside of it come
/// where its own name comes. Upstream: `filepath.WalkDir`.
fn add_drop_ins(folder: &Path, files: &mut Vec<String>) -> Result<(), Error> {
    let list = || -> io::Result<Vec<(PathBuf, bool)>> {
        let entries = fs::read_dir(folder)?;
        entries
            .map(|entry| entry.and_then(|one| Ok((one.path(), one.file_type()?.is_dir()))))
            .collect()
    };
    let name = folder.display().to_string();
    let mut entries = list().map_err(Error::Unreadable).map_err(in_file(&name))?;
    entries.sort();
    for (path, is_folder) in entries {
        if is_folder {
            add_drop_ins(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "conf") {
            files.push(path.display().to_string());
        }
    }
    Ok(())
}

/// Reads the honoured fields of a file. Those without effect are added to `ignored`.
fn load(file: &str, ignored: &mut BTreeSet<String>) -> Result<Map<String, Value>, Error> {
    let text = fs::read_to_string(file).map_err(Error::Unreadable)?;
    check_fields(serde_yaml_ng::from_str(&text).map_err(Error::Syntax)?, ignored)
}

/// Checks the fields of a document, and returns those that are honoured. Those without effect are
/// added to `ignored`. Errors: a field or value that is unknown or not supported.
fn check_fields(
    document: Value,
    ignored: &mut BTreeSet<String>,
) -> Result<Map<String, Value>, Error> {
    let Value::Object(mut fields) = document else { return Err(Error::NotAnObject) };
    let mut text = |field: &str| match fields.remove(field) {
        Some(Value::String(text)) => text,
        _ => String::new(),
    };
    let (version, kind) = (text("apiVersion"), text("kind"));
    if (version.as_str(), kind.as_str())
        != ("kubelet.config.k8s.io/v1beta1", "KubeletConfiguration")
    {
        return Err(Error::UnknownKind { kind, version });
    }
    let known = honoured();
    let mut accepted = Map::new();
    for (field, value) in fields {
        let name = field.as_str();
        // A file that a program has written has all fields, also those that are not set.
        let is_set = !value.is_null() && !is_unset(&value);
        let fixed = || FIXED.iter().filter(|(fixed, _)| *fixed == name).map(|(_, only)| *only);
        if known.contains(&field) {
            accepted.insert(field, value);
        } else if fixed().next().is_some() {
            let given = value.to_string();
            if is_set && !fixed().any(|only| only == given) {
                let only = fixed().collect::<Vec<_>>().join(" or ");
                return Err(Error::UnsupportedValue { field, given, only });
            }
        } else if WITHOUT_EFFECT.contains(&name) {
            ignored.extend(is_set.then_some(field));
        } else if REFUSED.split_whitespace().any(|refused| refused == name) {
            if is_set {
                return Err(Error::UnsupportedField(field));
            }
        } else {
            return Err(Error::UnknownField(field));
        }
    }
    Ok(accepted)
}

/// Returns whether Go would write this value for a field that is not set: an empty text, no time,
/// or an object whose members are all unset. In an object 0 counts too, as in `logging`
/// (`verbosity`, `infoBufferSize`); elsewhere numbers, booleans and lists are always set.
fn is_unset(value: &Value) -> bool {
    match value {
        Value::String(text) => matches!(text.as_str(), "" | "0s"),
        Value::Object(members) => members.values().all(|member| match member {
            Value::Number(number) => number.as_f64() == Some(0.0),
            Value::String(text) if text == "0" => true,
            other => is_unset(other),
        }),
        _ => false,
    }
}

/// Merges a document into those before it: objects are merged, null removes a field, and all else
/// is replaced. Upstream: `jsonpatch.MergePatch`.
fn merge(base: &mut Value, other: Value) {
    let Value::Object(fields) = other else {
        *base = other;
        return;
    };
    let mut merged = match base.take() {
        Value::Object(before) => before,
        _ => Map::new(),
    };
    for (field, value) in fields {
        match value {
            Value::Null => _ = merged.remove(&field),
            value => merge(merged.entry(field).or_insert(Value::Null), value),
        }
    }
    *base = Value::Object(merged);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::causes::chain;
    use crate::options::configuration::{Authentication, X509Authentication};
    use crate::options::values::{GoDuration, Pairs};

    fn document(more: Value) -> Value {
        let mut document = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        });
        for (field, value) in more.as_object().into_iter().flatten() {
            document[field] = value.clone();
        }
        document
    }

    #[test]
    fn each_field_is_honoured_refused_or_unknown() {
        for (more, fault) in [
            (json!({}), None),
            (json!({"staticPodPath": "/a", "registerNode": true}), None),
            (json!({"memorySwap": {}, "shutdownGracePeriod": "0s"}), None),
            (
                json!({"logging": {"flushFrequency": 0, "options": {"json": {"infoBufferSize": "0"}},
                                   "verbosity": 0}}),
                None,
            ),
            (json!({"logging": {"verbosity": 2, "format": "json"}}), None),
            (json!({"cpuCFSQuota": false}), Some("cpuCFSQuota: false is not supported, only true")),
            (json!({"cpuCFSQuota": true, "memoryManagerPolicy": "None"}), None),
            (json!({"cpuCFSQuotaPeriod": "0s", "memoryManagerPolicy": ""}), None),
            (
                json!({"memoryManagerPolicy": "Static"}),
                Some("memoryManagerPolicy: \"Static\" is not supported, only \"None\""),
            ),
            (
                json!({"cpuManagerPolicyOptions": {"full-pcpus-only": "true"}}),
                Some("cpuManagerPolicyOptions is not supported yet: see docs/kubelet-flags.md"),
            ),
            (json!({"registryPullQPS": 5, "registryBurst": 10}), None),
            (json!({"registryPullQPS": 0}), None),
            (
                json!({"registryPullQPS": 7}),
                Some("registryPullQPS: 7 is not supported, only 5 or 0"),
            ),
            (json!({"memorySwap": {"swapBehavior": "NoSwap"}}), None),
            (
                json!({"memorySwap": {"swapBehavior": "LimitedSwap"}}),
                Some(
                    "memorySwap: {\"swapBehavior\":\"LimitedSwap\"} is not supported, only \
                     {\"swapBehavior\":\"NoSwap\"}",
                ),
            ),
            (json!({"x": 1}), Some("strict decoding error: unknown field \"x\"")),
            (json!({"x": null}), Some("strict decoding error: unknown field \"x\"")),
            (json!({"memorySwap": null, "failSwapOn": null, "registerNode": null}), None),
            (
                json!({"kind": "Pod"}),
                Some("no kind \"Pod\" is registered for version \"kubelet.config.k8s.io/v1beta1\""),
            ),
        ] {
            let outcome = check_fields(document(more.clone()), &mut BTreeSet::new());
            let found = outcome.err().map(|error| error.to_string());
            assert_eq!(found.as_deref(), fault, "{more}");
        }
    }

    #[test]
    fn zero_durations_of_files_are_the_defaults() {
        let fields = json!({
            "syncFrequency": "0s", "runtimeRequestTimeout": "0s", "volumeStatsAggPeriod": "0s",
            "imageMinimumGCAge": "0s", "nodeStatusUpdateFrequency": "0s",
            "nodeStatusReportFrequency": "0s", "nodeLeaseDurationSeconds": 0, "maxPods": 0,
            "eventBurst": 0, "evictionPressureTransitionPeriod": "0s", "port": 0, "address": "",
            "streamingConnectionIdleTimeout": "0s",
            "authentication": {"webhook": {"cacheTTL": "0s"}},
            "authorization": {"mode": "", "webhook": {"cacheAuthorizedTTL": "0s"}},
        });
        assert_eq!(build(fields).expect("a configuration"), Configuration::default());
    }

    #[test]
    fn statuses_are_reported_as_often_as_they_are_computed_where_only_that_is_set() {
        for (fields, expected) in [
            (json!({}), 300),
            (json!({"nodeStatusUpdateFrequency": "0s", "nodeStatusReportFrequency": "0s"}), 300),
            (json!({"nodeStatusUpdateFrequency": "10s"}), 10),
            (json!({"nodeStatusUpdateFrequency": "20s", "nodeStatusReportFrequency": "0s"}), 20),
            (json!({"nodeStatusUpdateFrequency": "20s", "nodeStatusReportFrequency": "1m"}), 60),
        ] {
            let configuration = build(fields.clone()).expect("a configuration");
            let expected = GoDuration::from_secs(expected);
            assert_eq!(configuration.node_status_report_frequency, expected, "{fields}");
        }
    }

    #[test]
    fn kubeadms_file_is_read() {
        let text = "
            apiVersion: kubelet.config.k8s.io/v1beta1
            authentication:
              anonymous: {enabled: false}
              webhook: {cacheTTL: 0s, enabled: true}
              x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}
            authorization:
              mode: Webhook
              webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}
            cgroupDriver: systemd
            clusterDNS: [10.96.0.10]
            clusterDomain: cluster.local
            containerRuntimeEndpoint: \"\"
            cpuManagerReconcilePeriod: 0s
            crashLoopBackOff: {}
            evictionPressureTransitionPeriod: 0s
            fileCheckFrequency: 0s
            healthzBindAddress: 127.0.0.1
            healthzPort: 10248
            httpCheckFrequency: 0s
            imageMaximumGCAge: 0s
            imageMinimumGCAge: 0s
            kind: KubeletConfiguration
            logging:
              flushFrequency: 0
              options:
                json: {infoBufferSize: \"0\"}
                text: {infoBufferSize: \"0\"}
              verbosity: 0
            memorySwap: {}
            nodeStatusReportFrequency: 0s
            nodeStatusUpdateFrequency: 0s
            resolvConf: /run/systemd/resolve/resolv.conf
            rotateCertificates: true
            runtimeRequestTimeout: 0s
            shutdownGracePeriod: 0s
            shutdownGracePeriodCriticalPods: 0s
            staticPodPath: /etc/kubernetes/manifests
            streamingConnectionIdleTimeout: 0s
            syncFrequency: 0s
            volumeStatsAggPeriod: 0s";
        let document: Value = serde_yaml_ng::from_str(text).expect("YAML");
        let fields = check_fields(document, &mut BTreeSet::new()).expect("known fields");
        let read = build(Value::Object(fields)).expect("a configuration");
        let expected = Configuration {
            authentication: Authentication {
                x509: X509Authentication {
                    client_ca_file: "/etc/kubernetes/pki/ca.crt".to_owned(),
                },
                ..Authentication::default()
            },
            cgroup_driver: "systemd".to_owned(),
            cluster_dns: vec!["10.96.0.10".to_owned()],
            cluster_domain: "cluster.local".to_owned(),
            file_check_frequency: GoDuration::default(),
            http_check_frequency: GoDuration::default(),
            resolv_conf: "/run/systemd/resolve/resolv.conf".to_owned(),
            rotate_certificates: true,
            static_pod_path: "/etc/kubernetes/manifests".to_owned(),
            ..Configuration::default()
        };
        assert_eq!(read, expected);
    }

    /// Such a file is what `/configz` of the Go kubelet shows.
    #[test]
    fn file_of_upstreams_defaults_is_read() {
        let text = "
            address: 0.0.0.0
            apiVersion: kubelet.config.k8s.io/v1beta1
            authentication:
              anonymous: {enabled: false}
              webhook: {cacheTTL: 2m0s, enabled: true}
              x509: {}
            authorization:
              mode: Webhook
              webhook: {cacheAuthorizedTTL: 5m0s, cacheUnauthorizedTTL: 30s}
            cgroupDriver: cgroupfs
            cgroupsPerQOS: true
            configMapAndSecretChangeDetectionStrategy: Watch
            containerLogMaxFiles: 5
            containerLogMaxSize: 10Mi
            containerLogMaxWorkers: 1
            containerLogMonitorInterval: 10s
            containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
            contentType: application/vnd.kubernetes.protobuf
            cpuCFSQuota: true
            cpuCFSQuotaPeriod: 100ms
            cpuManagerPolicy: none
            cpuManagerReconcilePeriod: 10s
            crashLoopBackOff: {maxContainerRestartPeriod: 5m0s}
            enableControllerAttachDetach: true
            enableDebugFlagsHandler: true
            enableDebuggingHandlers: true
            enableProfilingHandler: true
            enableServer: true
            enableSystemLogHandler: true
            enableSystemLogQuery: false
            enforceNodeAllocatable: [pods]
            eventBurst: 100
            eventRecordQPS: 50
            evictionPressureTransitionPeriod: 5m0s
            failCgroupV1: true
            failSwapOn: true
            fileCheckFrequency: 20s
            hairpinMode: promiscuous-bridge
            healthzBindAddress: 127.0.0.1
            healthzPort: 10248
            httpCheckFrequency: 20s
            imageGCHighThresholdPercent: 85
            imageGCLowThresholdPercent: 80
            imageMaximumGCAge: 0s
            imageMinimumGCAge: 2m0s
            iptablesDropBit: 15
            iptablesMasqueradeBit: 14
            kind: KubeletConfiguration
            kubeAPIBurst: 100
            kubeAPIQPS: 50
            localStorageCapacityIsolation: true
            logging:
              flushFrequency: 5s
              format: text
              options:
                json: {infoBufferSize: \"0\"}
                text: {infoBufferSize: \"0\"}
              verbosity: 0
            makeIPTablesUtilChains: true
            maxOpenFiles: 1000000
            maxPods: 110
            memoryManagerPolicy: None
            memoryReservationPolicy: None
            memorySwap: {}
            memoryThrottlingFactor: 0.9
            mergeDefaultEvictionSettings: false
            nodeLeaseDurationSeconds: 40
            nodeStatusMaxImages: 50
            nodeStatusReportFrequency: 5m0s
            nodeStatusUpdateFrequency: 10s
            oomScoreAdj: -999
            podLogsDir: /var/log/pods
            podPidsLimit: -1
            port: 10250
            registerNode: true
            registryBurst: 10
            registryPullQPS: 5
            resolvConf: /etc/resolv.conf
            runtimeRequestTimeout: 2m0s
            seccompDefault: false
            serializeImagePulls: true
            shutdownGracePeriod: 0s
            shutdownGracePeriodCriticalPods: 0s
            streamingConnectionIdleTimeout: 4h0m0s
            syncFrequency: 1m0s
            topologyManagerPolicy: none
            topologyManagerScope: container
            volumePluginDir: /usr/libexec/kubernetes/kubelet-plugins/volume/exec/
            volumeStatsAggPeriod: 1m0s";
        let document: Value = serde_yaml_ng::from_str(text).expect("YAML");
        let mut ignored = BTreeSet::new();
        let fields = check_fields(document, &mut ignored).expect("known fields");
        assert_eq!(ignored.iter().map(String::as_str).collect::<Vec<_>>(), WITHOUT_EFFECT);
        let read = build(Value::Object(fields)).expect("a configuration");
        let expected = Configuration {
            enable_server: Some(true),
            enforce_node_allocatable: Some(vec!["pods".to_owned()]),
            fail_cgroup_v1: true,
            fail_swap_on: true,
            serialize_image_pulls: Some(true),
            ..Configuration::default()
        };
        assert_eq!(read, expected);
    }

    #[test]
    fn documentation_names_each_accepted_field() {
        let docs = include_str!("../../../docs/kubelet-flags.md");
        let others = FIXED.iter().map(|(field, _)| *field).chain(WITHOUT_EFFECT);
        for field in honoured().into_iter().chain(others.map(str::to_owned)) {
            assert!(docs.contains(&format!("`{field}")), "{field}");
        }
    }

    #[test]
    fn later_files_win() {
        let mut merged = json!({"a": 1, "b": {"c": 2}, "d": [1]});
        merge(&mut merged, json!({"a": 3, "b": {"e": 4}, "d": [2]}));
        assert_eq!(merged, json!({"a": 3, "b": {"c": 2, "e": 4}, "d": [2]}));
        // A field that the first file sets, an unknown one, and one of a new object.
        merge(&mut merged, json!({"a": null, "x": null, "b": {"c": null}, "y": {"z": null}}));
        assert_eq!(merged, json!({"b": {"e": 4}, "d": [2], "y": {}}));
    }

    /// As upstream, where the file has its defaults before drop-ins are merged.
    #[test]
    fn drop_ins_change_single_thresholds_and_are_found_at_any_depth() {
        let folder = std::env::temp_dir().join(format!("kubelet-drop-ins-{}", std::process::id()));
        fs::create_dir_all(folder.join("d/20-a.conf")).expect("a folder");
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        let file = |name: &str, text: &str| {
            fs::write(folder.join(name), format!("{head}{text}")).expect("a file");
        };
        file("d/10.conf", "maxPods: 1\nevictionHard: {memory.available: 1Gi}\n");
        file("d/20-a.conf/1.conf", "maxPods: 2\nevictionHard: {pid.available: 1%}\n");
        file("d/20-b.txt", "maxPods: 3\n");
        file("d/19.conf", "maxPods: 4\n");
        let of_drop_ins = [("memory.available", "1Gi"), ("pid.available", "1%")];
        for (text, others) in [
            (None, BTreeMap::new()),
            (Some(""), default_eviction_hard()),
            (Some("evictionHard: null\n"), default_eviction_hard()),
            (Some("evictionHard: {}\n"), BTreeMap::new()),
            (
                Some("evictionHard: {memory.available: 1Mi, nodefs.available: 1%}\n"),
                BTreeMap::from([("nodefs.available".to_owned(), "1%".to_owned())]),
            ),
        ] {
            let config = text.map(|text| {
                file("config.yaml", text);
                folder.join("config.yaml").display().to_string()
            });
            let files = Files {
                config: config.unwrap_or_default(),
                config_dir: folder.join("d").display().to_string(),
            };
            let found = read(&files).map(|read| read.configuration);
            let found = found.map_err(|error| chain(&error)).expect("a configuration");
            assert_eq!(found.max_pods, 2, "{text:?}");
            let mut expected = others;
            let of_drop_ins = of_drop_ins.map(|(key, value)| (key.to_owned(), value.to_owned()));
            expected.extend(of_drop_ins);
            assert_eq!(found.eviction_hard.map(|hard| hard.0), Some(expected), "{text:?}");
        }
        fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn null_is_not_set_at_any_depth() {
        let folder = std::env::temp_dir().join(format!("kubelet-null-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        let first = "crashLoopBackOff: {maxContainerRestartPeriod: null}\nstaticPodPath: null\n\
                     clusterDomain: a\nsyncFrequency: null\n";
        let last = "clusterDomain: null\n";
        for (name, text) in [("config.yaml", first), ("1.conf", last)] {
            fs::write(folder.join(name), format!("{head}{text}")).expect("a file");
        }
        let files = Files {
            config: folder.join("config.yaml").display().to_string(),
            config_dir: folder.display().to_string(),
        };
        let configuration = read(&files).map(|read| read.configuration);
        let expected = Configuration {
            eviction_hard: Some(Pairs(default_eviction_hard())),
            ..Configuration::default()
        };
        assert_eq!(configuration.ok(), Some(expected));
        fs::remove_dir_all(&folder).expect("removed");
    }
}
