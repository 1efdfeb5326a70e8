//! Checks of sets of pods. Upstream: `pkg/apis/apps/validation`.

use serde_json::Value;

use super::{
    check_restart_policy, check_update_with, selector_matches, selector_mismatch, template_of,
};
use crate::kinds::fault::{forbidden, invalid, non_negative, required, unsupported};
use crate::kinds::json::{int, members, remove, text};
use crate::kinds::metadata::{self, NameRule};
use crate::kinds::pod_rules;
use crate::status::Cause;
use kube_controller_manager::objects::{Labels, Selector};

/// Checks what all sets of pods share: metadata, counts, selector, template and restart policy.
fn check_set_of_pods(object: &Value, rule: NameRule) -> Vec<Cause> {
    let mut faults = metadata::check(object, rule);
    for field in ["replicas", "minReadySeconds", "revisionHistoryLimit"] {
        let value = object.pointer(&format!("/spec/{field}"));
        faults.extend(non_negative(&format!("spec.{field}"), value));
    }
    faults.extend(selector_matches(object));
    faults.extend(pod_rules::template(template_of(object), "spec.template"));
    faults.extend(check_restart_policy(template_of(object)));
    faults
}

/// Returns whether a number or percentage is zero or absent.
fn is_zero(value: Option<&Value>) -> bool {
    match value {
        None => true,
        Some(Value::String(text)) => text.trim_end_matches('%').parse() == Ok(0),
        Some(value) => value.as_i64() == Some(0),
    }
}

/// Returns a fault unless the value is absent, a percentage, or a number that is not negative.
fn int_or_percent_fault(value: Option<&Value>, field: &str) -> Option<Cause> {
    match value? {
        Value::String(text) => {
            let number = text.strip_suffix('%').unwrap_or_default();
            let valid = !number.is_empty() && number.chars().all(|c| c.is_ascii_digit());
            let detail = "a valid percent string must be a numeric string followed by an ending '%' \
                (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";
            (!valid).then(|| invalid(field, &text.as_str().into(), detail))
        }
        number => non_negative(field, Some(number)),
    }
}

/// Validates a Deployment: what all sets of pods share, its strategy and its progress deadline.
pub fn check_deployment(deployment: &Value) -> Vec<Cause> {
    let mut faults = check_set_of_pods(deployment, NameRule::Subdomain);
    let strategy = deployment.pointer("/spec/strategy").unwrap_or(&Value::Null);
    let at = "spec.strategy";
    match text(strategy, "/type") {
        "Recreate" if strategy.get("rollingUpdate").is_some() => faults.push(forbidden(
            format!("{at}.rollingUpdate"),
            "may not be specified when strategy `type` is 'Recreate'",
        )),
        "Recreate" => {}
        "RollingUpdate" => {
            let (surge, down) = (
                strategy.pointer("/rollingUpdate/maxSurge"),
                strategy.pointer("/rollingUpdate/maxUnavailable"),
            );
            let field = format!("{at}.rollingUpdate.maxUnavailable");
            faults.extend(int_or_percent_fault(down, &field));
            faults.extend(int_or_percent_fault(surge, &format!("{at}.rollingUpdate.maxSurge")));
            if is_zero(surge) && is_zero(down) {
                let value = down.unwrap_or(&Value::Null);
                faults.push(invalid(field, value, "may not be 0 when `maxSurge` is 0"));
            }
        }
        _ => {
            let given = strategy.get("type").unwrap_or(&Value::Null);
            faults.push(unsupported(at, given, &["Recreate", "RollingUpdate"]));
        }
    }
    if let (Some(deadline), Some(ready)) = (
        int(deployment, "/spec/progressDeadlineSeconds"),
        Some(int(deployment, "/spec/minReadySeconds").unwrap_or(0)),
    ) {
        let field = "spec.progressDeadlineSeconds";
        faults.extend(non_negative(field, Some(&deadline.into())));
        if deadline <= ready {
            faults.push(invalid(field, &deadline.into(), "must be greater than minReadySeconds"));
        }
    }
    faults
}

pub fn check_replica_set(set: &Value) -> Vec<Cause> {
    check_set_of_pods(set, NameRule::Subdomain)
}

/// Checks a StatefulSet: its template, and the names of its policies.
pub fn check_stateful_set(set: &Value) -> Vec<Cause> {
    let mut faults = check_set_of_pods(set, NameRule::Subdomain);
    // A mount may refer to a claim template.
    faults.retain(|fault| {
        fault.reason != "FieldValueNotFound" || !fault.field.contains(".volumeMounts[")
    });
    let policies = ["OrderedReady", "Parallel"];
    let policy = set.pointer("/spec/podManagementPolicy").unwrap_or(&Value::Null);
    if !policies.iter().any(|known| policy == known) {
        faults.push(unsupported("spec.podManagementPolicy", policy, &policies));
    }
    let kinds = ["OnDelete", "RollingUpdate"];
    let kind = set.pointer("/spec/updateStrategy/type").unwrap_or(&Value::Null);
    if !kinds.iter().any(|known| kind == known) {
        let detail = "must be 'RollingUpdate' or 'OnDelete'";
        faults.push(invalid("spec.updateStrategy", kind, detail));
    }
    faults
}

/// Checks a DaemonSet: its template, and that a rolling update either surges or makes pods
/// unavailable, not both or neither.
pub fn check_daemon_set(set: &Value) -> Vec<Cause> {
    let mut faults = check_set_of_pods(set, NameRule::Subdomain);
    let rolling = set.pointer("/spec/updateStrategy/rollingUpdate").unwrap_or(&Value::Null);
    if text(set, "/spec/updateStrategy/type") == "RollingUpdate" {
        let (has_no_surge, has_no_unavailable) =
            (is_zero(rolling.get("maxSurge")), is_zero(rolling.get("maxUnavailable")));
        let at = "spec.updateStrategy.rollingUpdate";
        let unavailable = rolling.get("maxUnavailable").unwrap_or(&Value::Null);
        let field = format!("{at}.maxUnavailable");
        if has_no_surge && has_no_unavailable {
            faults.push(invalid(field, unavailable, "cannot be 0 when maxSurge is 0"));
        } else if !has_no_surge && !has_no_unavailable {
            let detail = "may not be set when maxUnavailable is non-zero";
            let value = rolling.get("maxSurge").unwrap_or(&Value::Null);
            faults.push(invalid(format!("{at}.maxSurge"), value, detail));
        }
    }
    faults
}

/// Checks a ReplicationController: its selector must match the labels of its template.
pub fn check_controller(controller: &Value) -> Vec<Cause> {
    let mut faults = metadata::check(controller, NameRule::Subdomain);
    faults.extend(non_negative("spec.replicas", controller.pointer("/spec/replicas")));
    let selector: Labels = members(controller, "/spec/selector")
        .filter_map(|(key, value)| Some((key, value.as_str()?)))
        .collect();
    if selector.is_empty() {
        faults.push(required("spec.selector", ""));
    }
    faults.extend(selector_mismatch(controller, &Selector::from_labels(&selector)));
    faults.extend(pod_rules::template(template_of(controller), "spec.template"));
    faults.extend(check_restart_policy(template_of(controller)));
    faults
}

pub fn check_deployment_update(new: &Value, old: &Value) -> Vec<Cause> {
    check_update_with(new, old, check_deployment)
}

pub fn check_replica_set_update(new: &Value, old: &Value) -> Vec<Cause> {
    check_update_with(new, old, check_replica_set)
}

pub fn check_daemon_set_update(new: &Value, old: &Value) -> Vec<Cause> {
    check_update_with(new, old, check_daemon_set)
}

pub fn check_controller_update(new: &Value, old: &Value) -> Vec<Cause> {
    let mut faults = metadata::check_update(new, old);
    faults.extend(check_controller(new));
    faults
}

/// Checks an update of a StatefulSet: of its spec, only the fields that the fault names may change.
pub fn check_stateful_set_update(new: &Value, old: &Value) -> Vec<Cause> {
    let mut faults = metadata::check_update(new, old);
    faults.extend(check_stateful_set(new));
    let fixed = |set: &Value| {
        let mut spec = set.get("spec").cloned().unwrap_or_default();
        for free in [
            "replicas",
            "ordinals",
            "template",
            "updateStrategy",
            "revisionHistoryLimit",
            "persistentVolumeClaimRetentionPolicy",
            "minReadySeconds",
        ] {
            remove(&mut spec, free);
        }
        spec
    };
    if fixed(new) != fixed(old) {
        let detail = "updates to statefulset spec for fields other than 'replicas', 'ordinals', \
            'template', 'updateStrategy', 'revisionHistoryLimit', \
            'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
        faults.push(forbidden("spec", detail));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::workloads::default_deployment;
    use serde_json::json;

    fn deployment() -> Value {
        let mut deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {
                "metadata": {"creationTimestamp": null, "labels": {"a": "b"}},
                "spec": {"containers": [{"name": "a", "image": "nginx"}]}}}});
        default_deployment(&mut deployment);
        deployment
    }

    fn messages(faults: &[Cause]) -> Vec<String> {
        faults.iter().map(|fault| format!("{}: {}", fault.field, fault.message)).collect()
    }

    #[test]
    fn a_deployment_is_filled_as_by_a_real_server() {
        let expected = json!({"progressDeadlineSeconds": 600, "replicas": 1, "revisionHistoryLimit": 10,
            "selector": {"matchLabels": {"a": "b"}},
            "strategy": {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}, "type": "RollingUpdate"},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"image": "nginx",
                "imagePullPolicy": "Always", "name": "a", "resources": {},
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}],
                "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "schedulerName": "default-scheduler",
                "securityContext": {}, "terminationGracePeriodSeconds": 30}}});
        assert_eq!(deployment()["spec"], expected);
        assert_eq!(check_deployment(&deployment()), []);
    }

    #[test]
    fn faults_equal_those_of_a_real_server() {
        let mut bad = deployment();
        bad["spec"]["replicas"] = json!(-1);
        bad["spec"]["selector"]["matchLabels"]["a"] = json!("c");
        bad["spec"]["strategy"]["rollingUpdate"] = json!({"maxSurge": 0, "maxUnavailable": 0});
        bad["spec"]["template"]["spec"]["restartPolicy"] = json!("Never");
        bad["spec"]["template"]["spec"]["containers"] =
            json!([{"name": "a", "imagePullPolicy": "Always"}]);
        assert_eq!(
            messages(&check_deployment(&bad)),
            [
                "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
                "spec.template.metadata.labels: Invalid value: {\"a\":\"b\"}: `selector` does not match template `labels`",
                "spec.template.spec.containers[0].image: Required value",
                "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
                "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0",
            ]
        );
        let mut other = deployment();
        other["spec"]["selector"]["matchLabels"]["a"] = json!("c");
        other["spec"]["template"]["metadata"]["labels"]["a"] = json!("c");
        assert_eq!(
            messages(&check_deployment_update(&other, &deployment())),
            ["spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"c\"}}: field is immutable"]
        );
    }
}
