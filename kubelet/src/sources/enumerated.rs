//! The fields of a pod that have a fixed set of values. A value that is not in its set, such as a typo,
//! would otherwise count as the default, or as no protection at all.
//! Upstream: `field.NotSupported` in `pkg/apis/core/validation`.

use serde_json::Value;

use crate::pod::{Pod, PodExt};

/// The path of a field, and its values; one that ends in `*` stands for all that begin so. In a path,
/// `[]` is each item of a list, and `**` any path or none.
type Row = (&'static str, &'static [&'static str]);

const RESTART_POLICIES: &[&str] = &["Always", "Never", "OnFailure"];
const PULL_POLICIES: &[&str] = &["Always", "IfNotPresent", "Never"];
const PROFILES: &[&str] = &["Localhost", "RuntimeDefault", "Unconfined"];
const SCHEMES: &[&str] = &["HTTP", "HTTPS"];
const INCLUSION: &[&str] = &["Honor", "Ignore"];
const LABEL_OPERATORS: &[&str] = &["DoesNotExist", "Exists", "In", "NotIn"];
const NODE_OPERATORS: &[&str] = &["DoesNotExist", "Exists", "Gt", "In", "Lt", "NotIn"];
const RESOURCES: &[&str] = &[
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.hugepages-*",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.hugepages-*",
    "requests.memory",
];

const OF_SPEC: &[Row] = &[
    ("affinity.nodeAffinity.**.matchExpressions[].operator", NODE_OPERATORS),
    ("affinity.nodeAffinity.**.matchFields[].operator", &["In", "NotIn"]),
    ("affinity.podAffinity.**.matchExpressions[].operator", LABEL_OPERATORS),
    ("affinity.podAntiAffinity.**.matchExpressions[].operator", LABEL_OPERATORS),
    ("dnsPolicy", &["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"]),
    ("os.name", &["linux", "windows"]),
    ("preemptionPolicy", &["Never", "PreemptLowerPriority"]),
    ("restartPolicy", RESTART_POLICIES),
    ("securityContext.appArmorProfile.type", PROFILES),
    ("securityContext.fsGroupChangePolicy", &["Always", "OnRootMismatch"]),
    ("securityContext.seLinuxChangePolicy", &["MountOption", "Recursive"]),
    ("securityContext.seccompProfile.type", PROFILES),
    ("securityContext.supplementalGroupsPolicy", &["Merge", "Strict"]),
    ("tolerations[].effect", &["", "NoExecute", "NoSchedule", "PreferNoSchedule"]),
    ("tolerations[].operator", &["", "Equal", "Exists"]),
    ("topologySpreadConstraints[].**.matchExpressions[].operator", LABEL_OPERATORS),
    ("topologySpreadConstraints[].nodeAffinityPolicy", INCLUSION),
    ("topologySpreadConstraints[].nodeTaintsPolicy", INCLUSION),
    ("topologySpreadConstraints[].whenUnsatisfiable", &["DoNotSchedule", "ScheduleAnyway"]),
    // An API server lets others pass, and the kubelet does not mount them.
    ("volumes[].emptyDir.medium", &["", "Memory"]),
    (
        "volumes[].hostPath.type",
        &[
            "",
            "BlockDevice",
            "CharDevice",
            "Directory",
            "DirectoryOrCreate",
            "File",
            "FileOrCreate",
            "Socket",
        ],
    ),
    ("volumes[].image.pullPolicy", PULL_POLICIES),
    // Those of downwardAPI and projected volumes.
    (
        "volumes[].**.fieldRef.fieldPath",
        &[
            "metadata.annotations",
            "metadata.annotations['*",
            "metadata.labels",
            "metadata.labels['*",
            "metadata.name",
            "metadata.namespace",
            "metadata.uid",
        ],
    ),
    ("volumes[].**.resourceFieldRef.resource", RESOURCES),
];

const OF_CONTAINER: &[Row] = &[
    (
        "env[].valueFrom.fieldRef.fieldPath",
        &[
            "metadata.annotations['*",
            "metadata.labels['*",
            "metadata.name",
            "metadata.namespace",
            "metadata.uid",
            "spec.nodeName",
            "spec.serviceAccountName",
            "status.hostIP",
            "status.hostIPs",
            "status.podIP",
            "status.podIPs",
        ],
    ),
    ("env[].valueFrom.resourceFieldRef.resource", RESOURCES),
    ("imagePullPolicy", PULL_POLICIES),
    ("lifecycle.postStart.httpGet.scheme", SCHEMES),
    ("lifecycle.preStop.httpGet.scheme", SCHEMES),
    ("livenessProbe.httpGet.scheme", SCHEMES),
    ("ports[].protocol", &["SCTP", "TCP", "UDP"]),
    ("readinessProbe.httpGet.scheme", SCHEMES),
    ("resizePolicy[].resourceName", &["cpu", "memory"]),
    ("resizePolicy[].restartPolicy", &["NotRequired", "RestartContainer"]),
    ("restartPolicy", RESTART_POLICIES),
    ("restartPolicyRules[].action", &["Restart", "RestartAllContainers"]),
    ("restartPolicyRules[].exitCodes.operator", &["In", "NotIn"]),
    ("securityContext.appArmorProfile.type", PROFILES),
    ("securityContext.procMount", &["Default", "Unmasked"]),
    ("securityContext.seccompProfile.type", PROFILES),
    ("startupProbe.httpGet.scheme", SCHEMES),
    ("terminationMessagePolicy", &["FallbackToLogsOnError", "File"]),
    ("volumeMounts[].mountPropagation", &["Bidirectional", "HostToContainer", "None"]),
    ("volumeMounts[].recursiveReadOnly", &["Disabled", "Enabled", "IfPossible"]),
];

/// The modes of the files of volumes.
const MODES: [&str; 2] = ["volumes[].**.defaultMode", "volumes[].**.mode"];

/// Lists the values of a pod that are not among those of their fields, each fault with its field.
pub fn faults(pod: &Pod) -> Vec<String> {
    let spec = match serde_json::to_value(pod.spec()) {
        Ok(spec) => spec,
        Err(error) => return vec![format!("spec: {error}")],
    };
    let mut faults = Vec::new();
    let of_spec = OF_SPEC.iter().map(|(path, values)| (String::from(*path), *values));
    let of_containers = ["initContainers", "containers"].into_iter().flat_map(|list| {
        OF_CONTAINER.iter().map(move |(path, values)| (format!("{list}[].{path}"), *values))
    });
    for (path, values) in of_spec.chain(of_containers) {
        visit(&spec, &split(&path), "spec", &mut |field, value| {
            if let Some(text) = value.as_str().filter(|text| !is_listed(text, values)) {
                let values: Vec<String> = values.iter().map(|value| format!("{value:?}")).collect();
                let values = values.join(", ");
                faults.push(format!(
                    "{field}: Unsupported value: {text:?}: supported values: {values}"
                ));
            }
        });
    }
    for path in MODES {
        visit(&spec, &split(path), "spec", &mut |field, value| {
            if let Some(mode) = value.as_i64().filter(|mode| !(0..=0o777).contains(mode)) {
                faults.push(format!(
                    "{field}: Invalid value: {mode}: must be a number between 0 and 0777 (octal), \
                     both inclusive"
                ));
            }
        });
    }
    faults
}

fn split(path: &str) -> Vec<&str> {
    path.split('.').collect()
}

/// Returns whether a text is one of the values, or begins with one that ends in `*`.
fn is_listed(text: &str, values: &[&str]) -> bool {
    values.iter().any(|value| match value.strip_suffix('*') {
        Some(start) => text.starts_with(start),
        None => text == *value,
    })
}

/// Calls `found` with the name and the value of each field below `value` that a path leads to.
/// `at`: the name of `value`. The parts of a path are those of [`Row`].
fn visit(value: &Value, path: &[&str], at: &str, found: &mut dyn FnMut(&str, &Value)) {
    let Some((first, rest)) = path.split_first() else { return found(at, value) };
    if *first == "**" {
        visit(value, rest, at, found);
        for (name, child) in value.as_object().into_iter().flatten() {
            visit(child, path, &format!("{at}.{name}"), found);
        }
        for (index, child) in value.as_array().into_iter().flatten().enumerate() {
            visit(child, path, &format!("{at}[{index}]"), found);
        }
        return;
    }
    let (name, is_list) = match first.strip_suffix("[]") {
        Some(name) => (name, true),
        None => (*first, false),
    };
    let (Some(child), at) = (value.get(name), format!("{at}.{name}")) else { return };
    if !is_list {
        return visit(child, rest, &at, found);
    }
    for (index, item) in child.as_array().into_iter().flatten().enumerate() {
        visit(item, rest, &format!("{at}[{index}]"), found);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// `value` where a path leads to; `[]`: one item, `**`: `between`.
    fn nested(path: &[&str], between: &[&str], value: Value) -> Value {
        match path.split_first() {
            None => value,
            Some((&"**", rest)) => nested(&[between, rest].concat(), &[], value),
            Some((first, rest)) => {
                let below = nested(rest, between, value);
                match first.strip_suffix("[]") {
                    Some(name) => json!({name: [below]}),
                    None => json!({*first: below}),
                }
            }
        }
    }

    /// The faults of the field that `path` leads to, where it has `value`.
    fn faults_of(path: &str, value: Value) -> Vec<String> {
        // A path for each `**` of the tables that these kinds have.
        let between: &[&str] = match path {
            path if path.contains("nodeAffinity.") => {
                &["requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms[]"]
            }
            path if path.contains("ffinity.") => {
                &["requiredDuringSchedulingIgnoredDuringExecution[]", "labelSelector"]
            }
            path if path.contains("topology") => &["labelSelector"],
            path if path.contains("defaultMode") => &["configMap"],
            _ => &["projected", "sources[]", "downwardAPI", "items[]"],
        };
        let spec = nested(&split(path), between, value);
        let pod = serde_json::from_value(json!({"spec": spec.clone()}));
        let mut faults = faults(&pod.unwrap_or_else(|error| panic!("{error}: {spec}")));
        // Beside it, required fields may be missing.
        let name = path.rsplit('.').next().unwrap_or_default();
        faults.retain(|fault| fault.contains(&format!(".{name}: ")));
        faults
    }

    #[test]
    fn each_field_takes_its_values_only() {
        let of_containers = OF_CONTAINER.iter().flat_map(|(path, values)| {
            ["initContainers", "containers"].map(|list| (format!("{list}[].{path}"), *values))
        });
        let all = OF_SPEC.iter().map(|(path, values)| (String::from(*path), *values));
        for (path, values) in all.chain(of_containers) {
            for value in values {
                let value = value.replace('*', "x']");
                assert_eq!(faults_of(&path, json!(value)), [""; 0], "{path}: {value:?}");
            }
            let first = values.iter().find(|value| !value.is_empty()).unwrap_or(&"");
            // Another value, another case, and a space.
            let (upper, lower) = (first.to_uppercase(), first.to_lowercase());
            let others = ["other", &upper, &lower, &format!(" {first}")];
            for value in others.into_iter().filter(|value| !is_listed(value, values)) {
                let faults = faults_of(&path, json!(value));
                assert_eq!(faults.len(), 1, "{path}: {value:?}: {faults:?}");
                let text = format!(": Unsupported value: {value:?}: supported values: ");
                assert!(faults[0].contains(&text), "{path}: {faults:?}");
            }
        }
    }

    #[test]
    fn typos_refuse_the_pod() {
        for (path, typo) in [
            ("dnsPolicy", "clusterFirst"),
            ("os.name", "Linux"),
            ("preemptionPolicy", "PreemptNever"),
            ("restartPolicy", "Allways"),
            ("securityContext.appArmorProfile.type", "Default"),
            ("securityContext.fsGroupChangePolicy", "OnMismatch"),
            ("securityContext.seLinuxChangePolicy", "Mount"),
            ("securityContext.seccompProfile.type", "runtimeDefault"),
            ("securityContext.supplementalGroupsPolicy", "strict"),
            ("tolerations[].effect", "NoExec"),
            ("tolerations[].operator", "Exist"),
            ("topologySpreadConstraints[].whenUnsatisfiable", "DoNotScheduleAnyway"),
            ("volumes[].emptyDir.medium", "memory"),
            ("volumes[].hostPath.type", "Dir"),
            ("volumes[].image.pullPolicy", "Once"),
            ("volumes[].downwardAPI.items[].fieldRef.fieldPath", "status.podIP"),
            ("containers[].env[].valueFrom.fieldRef.fieldPath", "metadata.labels"),
            ("containers[].env[].valueFrom.resourceFieldRef.resource", "limits.gpu"),
            ("containers[].imagePullPolicy", "IfNotpresent"),
            ("containers[].lifecycle.preStop.httpGet.scheme", "https"),
            ("containers[].livenessProbe.httpGet.scheme", "https"),
            ("containers[].ports[].protocol", "udp"),
            ("containers[].resizePolicy[].resourceName", "disk"),
            ("containers[].resizePolicy[].restartPolicy", "Restart"),
            ("containers[].restartPolicyRules[].action", "Stop"),
            ("containers[].restartPolicyRules[].exitCodes.operator", "Is"),
            ("containers[].securityContext.procMount", "unmasked"),
            ("containers[].securityContext.seccompProfile.type", "Runtime/Default"),
            ("containers[].terminationMessagePolicy", "FallbackToLogs"),
            ("containers[].volumeMounts[].mountPropagation", "BiDirectional"),
            ("containers[].volumeMounts[].recursiveReadOnly", "Maybe"),
            ("initContainers[].restartPolicy", "always"),
        ] {
            assert_eq!(faults_of(path, json!(typo)).len(), 1, "{path}");
        }
    }

    #[test]
    fn faults_name_their_field_and_its_values() {
        for (path, value, fault) in [
            (
                "containers[].securityContext.seccompProfile.type",
                json!("runtimeDefault"),
                "spec.containers[0].securityContext.seccompProfile.type: Unsupported value: \
                 \"runtimeDefault\": supported values: \"Localhost\", \"RuntimeDefault\", \
                 \"Unconfined\"",
            ),
            (
                "volumes[].**.mode",
                json!(0o4755),
                "spec.volumes[0].projected.sources[0].downwardAPI.items[0].mode: Invalid value: \
                 2541: must be a number between 0 and 0777 (octal), both inclusive",
            ),
            (
                "volumes[].**.defaultMode",
                json!(-1),
                "spec.volumes[0].configMap.defaultMode: Invalid value: -1: must be a number \
                 between 0 and 0777 (octal), both inclusive",
            ),
        ] {
            assert_eq!(faults_of(path, value), [fault], "{path}");
        }
        assert_eq!(faults_of("volumes[].**.mode", json!(0o777)), [""; 0]);
    }

    #[test]
    fn labels_have_any_name_and_value() {
        let selector = json!({"matchLabels": {"operator": "x", "type": "y", "mode": "z"}});
        let constraint = json!({"maxSkew": 1, "topologyKey": "k",
            "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector});
        let pod = json!({"spec": {"containers": [], "topologySpreadConstraints": [constraint]}});
        assert_eq!(faults(&serde_json::from_value(pod).expect("a pod")), [""; 0]);
    }
}
