//! Validates pods and pod templates. Upstream: `pkg/apis/core/validation`.

use serde_json::Value;

use super::fault::{duplicate, forbidden, invalid, non_negative, not_found, required, unsupported};
use super::json::{int, list, text};
use super::metadata::{self, dns1123_label_fault};
use super::quantity;
use crate::status::Cause;

/// Adds a fault for a port number out of range.
fn port(field: &str, value: Option<&Value>, faults: &mut Vec<Cause>) {
    if let Some(value) = value
        && !value.as_i64().is_some_and(|port| (1..=65_535).contains(&port))
    {
        faults.push(invalid(field, value, "must be between 1 and 65535, inclusive"));
    }
}

/// Adds a fault for a name that is absent or no DNS label.
fn dns_name(field: &str, name: &str, faults: &mut Vec<Cause>) {
    if name.is_empty() {
        faults.push(required(field, ""));
    } else if let Some(fault) = dns1123_label_fault(name) {
        faults.push(invalid(field, &name.into(), &fault));
    }
}

/// Validates a container at the path `at`. `volumes` are the names that its mounts may have.
pub(super) fn container(container: &Value, at: &str, volumes: &[&str], faults: &mut Vec<Cause>) {
    dns_name(&format!("{at}.name"), text(container, "/name"), faults);
    if text(container, "/image").is_empty() {
        faults.push(required(format!("{at}.image"), ""));
    }
    let policy = container.get("imagePullPolicy").unwrap_or(&Value::Null);
    let policies = ["Always", "IfNotPresent", "Never"];
    if !policies.iter().any(|known| policy == known) {
        faults.push(unsupported(format!("{at}.imagePullPolicy"), policy, &policies));
    }
    for (n, item) in list(container, "/ports").iter().enumerate() {
        let field = format!("{at}.ports[{n}].containerPort");
        match int(item, "/containerPort") {
            None | Some(0) => faults.push(required(field, "")),
            _ => port(&field, item.get("containerPort"), faults),
        }
        let protocols = ["SCTP", "TCP", "UDP"];
        let protocol = item.get("protocol").unwrap_or(&Value::Null);
        if !protocols.iter().any(|known| protocol == known) {
            faults.push(unsupported(format!("{at}.ports[{n}].protocol"), protocol, &protocols));
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let handlers = ["exec", "grpc", "httpGet", "tcpSocket"];
        if let Some(given) = container.get(probe)
            && !handlers.iter().any(|handler| given.get(*handler).is_some())
        {
            faults.push(required(format!("{at}.{probe}"), "must specify a handler type"));
        }
    }
    for (n, env) in list(container, "/env").iter().enumerate() {
        let (field, name) = (format!("{at}.env[{n}].name"), text(env, "/name"));
        if name.is_empty() {
            faults.push(required(field, ""));
        } else if !name.chars().all(|c| (' '..='~').contains(&c) && c != '=') {
            let detail = "a valid environment variable name must consist only of printable ASCII \
                characters other than '='";
            faults.push(invalid(field, &name.into(), detail));
        }
    }
    for (n, mount) in list(container, "/volumeMounts").iter().enumerate() {
        let field = format!("{at}.volumeMounts[{n}]");
        let name = text(mount, "/name");
        if name.is_empty() {
            faults.push(required(format!("{field}.name"), ""));
        } else if !volumes.contains(&name) {
            faults.push(not_found(format!("{field}.name"), &name.into()));
        }
        if text(mount, "/mountPath").is_empty() {
            faults.push(required(format!("{field}.mountPath"), ""));
        }
    }
    resources(container, at, faults);
}

/// Checks a container's resources: no amount is negative, and no request is above its limit.
fn resources(container: &Value, at: &str, faults: &mut Vec<Cause>) {
    for part in ["limits", "requests"] {
        for (name, value) in super::json::members(container, &format!("/resources/{part}")) {
            let field = format!("{at}.resources.{part}[{name}]");
            if quantity::canonical(value).is_some_and(|text| text.starts_with('-')) {
                faults.push(invalid(field, value, "must be greater than or equal to 0"));
                continue;
            }
            let limit =
                container.pointer(&format!("/resources/limits/{}", name.replace('/', "~1")));
            if part == "requests"
                && let Some(limit) = limit
                && quantity::compare(value, limit) == Some(std::cmp::Ordering::Greater)
            {
                let limit = limit.as_str().unwrap_or_default();
                let detail = format!("must be less than or equal to {name} limit of {limit}");
                faults.push(invalid(format!("{at}.resources.requests"), value, &detail));
            }
        }
    }
}

/// Checks a pod spec that stands at the path `at`.
pub fn spec(spec: &Value, at: &str) -> Vec<Cause> {
    let mut faults = Vec::new();
    let mut volumes: Vec<&str> = Vec::new();
    for (n, volume) in list(spec, "/volumes").iter().enumerate() {
        let (field, name) = (format!("{at}.volumes[{n}].name"), text(volume, "/name"));
        dns_name(&field, name, &mut faults);
        if volumes.contains(&name) {
            faults.push(duplicate(field, &name.into()));
        }
        volumes.push(name);
    }
    if list(spec, "/containers").is_empty() {
        faults.push(required(format!("{at}.containers"), ""));
    }
    let mut names: Vec<&str> = Vec::new();
    for part in ["containers", "initContainers"] {
        for (n, item) in list(spec, &format!("/{part}")).iter().enumerate() {
            let field = format!("{at}.{part}[{n}]");
            container(item, &field, &volumes, &mut faults);
            let name = text(item, "/name");
            if !name.is_empty() && names.contains(&name) {
                faults.push(duplicate(format!("{field}.name"), &name.into()));
            }
            names.push(name);
        }
    }
    let policies = ["Always", "OnFailure", "Never"];
    let policy = spec.get("restartPolicy").unwrap_or(&Value::Null);
    if !policies.iter().any(|known| policy == known) {
        faults.push(unsupported(format!("{at}.restartPolicy"), policy, &policies));
    }
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    let policy = spec.get("dnsPolicy").unwrap_or(&Value::Null);
    if !policies.iter().any(|known| policy == known) {
        faults.push(unsupported(format!("{at}.dnsPolicy"), policy, &policies));
    }
    let field = format!("{at}.terminationGracePeriodSeconds");
    faults.extend(non_negative(&field, spec.get("terminationGracePeriodSeconds")));
    if let Some(deadline) = spec.get("activeDeadlineSeconds")
        && !deadline.as_i64().is_some_and(|seconds| (1..=i64::from(i32::MAX)).contains(&seconds))
    {
        let detail = "must be between 1 and 2147483647, inclusive";
        faults.push(invalid(format!("{at}.activeDeadlineSeconds"), deadline, detail));
    }
    faults
}

/// Checks a template at the path `at`: its labels, annotations and spec.
pub fn template(template: &Value, at: &str) -> Vec<Cause> {
    let mut faults = Vec::new();
    let field = format!("{at}.metadata.labels");
    metadata::labels(template, "/metadata/labels", &field, &mut faults);
    let field = format!("{at}.metadata.annotations");
    metadata::annotations(template, "/metadata/annotations", &field, &mut faults);
    faults.extend(spec(template.get("spec").unwrap_or(&Value::Null), &format!("{at}.spec")));
    faults
}

/// Checks a pod: its metadata and spec.
pub fn check(pod: &Value) -> Vec<Cause> {
    let mut faults = metadata::check(pod, metadata::NameRule::Subdomain);
    faults.extend(spec(pod.get("spec").unwrap_or(&Value::Null), "spec"));
    faults
}

const FIXED: &str = "pod updates may not change fields other than \
    `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,\
    `spec.tolerations` (only additions to existing tolerations),\
    `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// Checks a change of a pod through its main endpoint. Upstream: `ValidatePodUpdate`.
pub fn check_update(new: &Value, old: &Value) -> Vec<Cause> {
    let mut faults = metadata::check_update(new, old);
    faults.extend(check(new));
    let containers = |pod: &Value, part: &str| list(pod, &format!("/spec/{part}")).len();
    for part in ["containers", "initContainers"] {
        if containers(new, part) != containers(old, part) {
            let detail = "pod updates may not add or remove containers";
            faults.push(forbidden(format!("spec.{part}"), detail));
            return faults;
        }
    }
    // Tolerations may be added; of those that exist, only `tolerationSeconds` may change.
    let added_only = list(old, "/spec/tolerations")
        .iter()
        .all(|toleration| list(new, "/spec/tolerations").contains(toleration));
    if !added_only {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        let had = list(old, "/spec/tolerations").iter().all(|had| {
            list(new, "/spec/tolerations").iter().any(|has| {
                ["key", "operator", "value", "effect"]
                    .iter()
                    .all(|part| had.get(part) == has.get(part))
            })
        });
        if !had {
            faults.push(forbidden("spec.tolerations", detail));
        }
    }
    if fixed_part(new) != fixed_part(old) {
        faults.push(forbidden("spec", FIXED));
    }
    faults
}

/// Returns a pod's spec without the fields that an update may change.
fn fixed_part(pod: &Value) -> Value {
    let mut spec = pod.get("spec").cloned().unwrap_or_default();
    for key in ["activeDeadlineSeconds", "terminationGracePeriodSeconds", "tolerations"] {
        super::json::remove(&mut spec, key);
    }
    // Gates open one by one; while gated, scheduling directives may narrow.
    if !list(pod, "/spec/schedulingGates").is_empty() {
        for key in ["nodeSelector", "affinity"] {
            super::json::remove(&mut spec, key);
        }
    }
    super::json::remove(&mut spec, "schedulingGates");
    for part in ["/containers", "/initContainers"] {
        for container in super::json::list_mut(&mut spec, part) {
            super::json::remove(container, "image");
        }
    }
    spec
}
