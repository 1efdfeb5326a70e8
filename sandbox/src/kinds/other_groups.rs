//! Defaults and validation of the groups without a file of their own.

use cel_compiler::{on_deep_stack, parse};
use serde_json::{Value, json};

use super::fault::{forbidden, invalid, required, unsupported};
use super::json::{drop_nulls, fill, list, list_mut, object, set, text};
use super::rules::Rules;
use crate::status::Cause;

/// Fills in the defaults of an EndpointSlice.
pub fn default_slice(slice: &mut Value) {
    drop_nulls(slice);
    for port in list_mut(slice, "/ports") {
        fill(port, "name", "");
        fill(port, "protocol", "TCP");
    }
    for endpoint in list_mut(slice, "/endpoints") {
        object(endpoint, "conditions");
    }
    // An empty list is stored, and served, as null.
    for key in ["endpoints", "ports"] {
        if list(slice, &format!("/{key}")).is_empty() {
            set(slice, key, Value::Null);
        }
    }
}

/// Checks an EndpointSlice: its type of address must be known, and each endpoint needs an address.
pub fn slice_faults(slice: &Value) -> Vec<Cause> {
    let mut faults = Vec::new();
    let kinds = ["FQDN", "IPv4", "IPv6"];
    let kind = slice.get("addressType").unwrap_or(&Value::Null);
    if kind.is_null() {
        faults.push(required("addressType", ""));
    } else if !kinds.iter().any(|known| kind == known) {
        faults.push(unsupported("addressType", kind, &kinds));
    }
    for (n, endpoint) in list(slice, "/endpoints").iter().enumerate() {
        if list(endpoint, "/addresses").is_empty() {
            let detail = "must contain at least 1 address";
            faults.push(required(format!("endpoints[{n}].addresses"), detail));
        }
    }
    faults
}

/// Fills in the defaults of an autoscaler. Without metrics, it aims at 80 % of the requested CPU.
pub fn default_hpa(hpa: &mut Value) {
    drop_nulls(hpa);
    let spec = object(hpa, "spec");
    fill(spec, "minReplicas", 1);
    if list(spec, "/metrics").is_empty() {
        let cpu = json!([{ "type": "Resource", "resource": {
            "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 80 },
        }}]);
        set(spec, "metrics", cpu);
    }
    // The only list that the API shows as null when empty.
    if let Some(status) = hpa.get_mut("status") {
        fill(status, "currentMetrics", Value::Null);
    }
}

pub fn check_new_hpa(hpa: &Value) -> Vec<Cause> {
    let mut faults = HPA.check_new(hpa);
    faults.extend(wrong_target(hpa));
    faults
}

/// Checks the target of an autoscaler: of the core group, only ReplicationControllers can be
/// scaled.
fn wrong_target(hpa: &Value) -> Option<Cause> {
    let of = |part: &str| text(hpa, &format!("/spec/scaleTargetRef/{part}"));
    let version = of("apiVersion");
    let wrong = !version.contains('/') && of("kind") != "ReplicationController";
    let detail = "apiVersion must specify API group";
    wrong.then(|| invalid("spec.scaleTargetRef.apiVersion", &version.into(), detail))
}

const HPA: Rules = Rules::of(hpa_faults);

/// Validates the spec of an autoscaler: its range, and the target of the scaling.
fn hpa_faults(hpa: &Value) -> Vec<Cause> {
    let mut faults = Vec::new();
    let of =
        |part: &str| hpa.pointer(&format!("/spec/{part}")).and_then(Value::as_i64).unwrap_or(0);
    let (least, most) = (of("minReplicas"), of("maxReplicas"));
    // Zero as on servers of 1.37, and on those of 1.36 with the gate HPAScaleToZero.
    let metrics = list(hpa, "/spec/metrics");
    let has_other =
        || metrics.iter().any(|metric| matches!(text(metric, "/type"), "Object" | "External"));
    if least < 0 {
        let detail = "must be greater than or equal to 0";
        faults.push(invalid("spec.minReplicas", &least.into(), detail));
    } else if least == 0 && !has_other() {
        let detail = "must specify at least one Object or External metric to support scaling to zero replicas";
        faults.push(forbidden("spec.metrics", detail));
    }
    match most {
        0 => faults.push(required("spec.maxReplicas", "must be set and greater than 0")),
        most if most < 0 => {
            let detail = "must be greater than or equal to 1";
            faults.push(invalid("spec.maxReplicas", &most.into(), detail));
        }
        _ => {}
    }
    if most < least {
        let detail = "must be greater than or equal to `minReplicas`";
        faults.push(invalid("spec.maxReplicas", &most.into(), detail));
    }
    for part in ["kind", "name"] {
        if text(hpa, &format!("/spec/scaleTargetRef/{part}")).is_empty() {
            faults.push(required(format!("spec.scaleTargetRef.{part}"), ""));
        }
    }
    faults
}

/// Checks an update of an autoscaler: its spec, and the kind of its target if that changes.
pub fn update_hpa(new: &Value, old: &Value) -> Vec<Cause> {
    let mut faults = HPA.check_change(new, old);
    let target =
        |hpa: &Value, part: &str| hpa.pointer(&format!("/spec/scaleTargetRef/{part}")).cloned();
    if ["apiVersion", "kind"].into_iter().any(|part| target(new, part) != target(old, part)) {
        faults.extend(wrong_target(new));
    }
    faults
}

pub fn hpa_status(hpa: &mut Value) {
    set(hpa, "status", json!({ "currentMetrics": null, "desiredReplicas": 0 }));
}

/// Removes the status of a new request: a status marks it as answered.
pub fn without_status(object: &mut Value) {
    if let Some(members) = object.as_object_mut() {
        members.remove("status");
    }
}

pub fn budget_status(budget: &mut Value) {
    let zero = json!({
        "currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0,
    });
    set(budget, "status", zero);
}

/// Checks a PodDisruptionBudget: it may set one of `minAvailable` and `maxUnavailable` only.
pub fn budget_faults(budget: &Value) -> Vec<Cause> {
    let of = |part: &str| budget.pointer(&format!("/spec/{part}"));
    if of("minAvailable").is_none() || of("maxUnavailable").is_none() {
        return Vec::new();
    }
    let spec = budget.get("spec").unwrap_or(&Value::Null);
    vec![invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set")]
}

pub fn ingress_status(ingress: &mut Value) {
    set(ingress, "status", json!({ "loadBalancer": {} }));
}

/// Checks an Ingress: it needs a default backend or rules.
pub fn ingress_faults(ingress: &Value) -> Vec<Cause> {
    let spec = |part: &str| ingress.pointer(&format!("/spec/{part}"));
    if spec("defaultBackend").is_some() || !list(ingress, "/spec/rules").is_empty() {
        return Vec::new();
    }
    let detail = "either `defaultBackend` or `rules` must be specified";
    vec![invalid("spec", &Value::Null, detail)]
}

/// Fills in the defaults of a NetworkPolicy. One without types gets `Egress` only if it has a field
/// `egress`.
pub fn default_policy(policy: &mut Value) {
    drop_nulls(policy);
    for rules in ["/spec/ingress", "/spec/egress"] {
        for rule in list_mut(policy, rules) {
            for port in list_mut(rule, "/ports") {
                fill(port, "protocol", "TCP");
            }
        }
    }
    let egress = policy.pointer("/spec/egress").is_some();
    let types = if egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
    fill(object(policy, "spec"), "policyTypes", types);
}

pub fn default_storage_class(class: &mut Value) {
    drop_nulls(class);
    fill(class, "reclaimPolicy", "Delete");
    fill(class, "volumeBindingMode", "Immediate");
}

pub fn class_faults(class: &Value) -> Vec<Cause> {
    let is_missing = text(class, "/provisioner").is_empty();
    is_missing.then(|| required("provisioner", "")).into_iter().collect()
}

/// Fills in the defaults of a CSIDriver.
pub fn default_csi_driver(driver: &mut Value) {
    drop_nulls(driver);
    let spec = object(driver, "spec");
    fill(spec, "attachRequired", true);
    fill(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
    for off in ["podInfoOnMount", "requiresRepublish", "seLinuxMount", "storageCapacity"] {
        fill(spec, off, false);
    }
    fill(spec, "volumeLifecycleModes", json!(["Persistent"]));
}

pub fn attachment_status(attachment: &mut Value) {
    set(attachment, "status", json!({ "attached": false }));
}

pub fn default_priority_class(class: &mut Value) {
    drop_nulls(class);
    fill(class, "preemptionPolicy", "PreemptLowerPriority");
    fill(class, "value", 0);
}

/// Fills in the defaults of a webhook configuration, mutating or validating.
pub fn default_webhooks(config: &mut Value) {
    drop_nulls(config);
    let mutating = text(config, "/kind").starts_with("Mutating");
    for hook in list_mut(config, "/webhooks") {
        fill(hook, "failurePolicy", "Fail");
        fill(hook, "matchPolicy", "Equivalent");
        fill(hook, "namespaceSelector", json!({}));
        fill(hook, "objectSelector", json!({}));
        fill(hook, "timeoutSeconds", 10);
        if mutating {
            fill(hook, "reinvocationPolicy", "Never");
        }
        if let Some(service) = hook.pointer_mut("/clientConfig/service") {
            fill(service, "port", 443);
        }
        for rule in list_mut(hook, "/rules") {
            fill(rule, "scope", "*");
        }
    }
}

/// Fills the defaults of a ValidatingAdmissionPolicy. Upstream:
/// `pkg/apis/admissionregistration/v1/defaults.go`.
pub fn default_admission_policy(policy: &mut Value) {
    fill(&mut policy["spec"], "failurePolicy", "Fail");
    if policy["spec"]["matchConstraints"].is_object() {
        default_match(&mut policy["spec"]["matchConstraints"]);
    }
}

pub fn default_admission_policy_binding(binding: &mut Value) {
    if binding["spec"]["matchResources"].is_object() {
        default_match(&mut binding["spec"]["matchResources"]);
    }
}

/// Fills in the defaults of the constraints by which a policy or a binding selects requests.
fn default_match(matched: &mut Value) {
    fill(matched, "matchPolicy", "Equivalent");
    fill(matched, "namespaceSelector", json!({}));
    fill(matched, "objectSelector", json!({}));
    for rules in ["/resourceRules", "/excludeResourceRules"] {
        for rule in list_mut(matched, rules) {
            fill(rule, "scope", "*");
        }
    }
}

/// Checks the syntax of a policy's expressions. Their types are not checked.
pub fn policy_faults(policy: &Value) -> Vec<Cause> {
    let parts = [
        ("validations", "expression"),
        ("validations", "messageExpression"),
        ("variables", "expression"),
        ("matchConditions", "expression"),
        ("auditAnnotations", "valueExpression"),
    ];
    let mut faults = Vec::new();
    for (list_of, key) in parts {
        for (n, item) in list(policy, &format!("/spec/{list_of}")).iter().enumerate() {
            let source = text(item, &format!("/{key}"));
            if source.is_empty() {
                continue;
            }
            let parsed = on_deep_stack(|| parse(source).map(drop));
            if let Ok(Err(issue)) = parsed {
                let field = format!("spec.{list_of}[{n}].{key}");
                faults.push(invalid(
                    field,
                    &source.into(),
                    &format!("compilation failed: {issue}"),
                ));
            }
        }
    }
    faults
}

/// Checks the numbers of a Lease.
pub fn lease_faults(lease: &Value) -> Vec<Cause> {
    let below = |part: &str, least: i64, detail: &str| {
        let value = lease.pointer(&format!("/spec/{part}"))?;
        let is_below = value.as_i64().is_some_and(|n| n < least);
        is_below.then(|| invalid(format!("spec.{part}"), value, detail))
    };
    let faults = [
        below("leaseDurationSeconds", 1, "must be greater than 0"),
        below("leaseTransitions", 0, "must be greater than or equal to 0"),
    ];
    faults.into_iter().flatten().collect()
}

pub fn default_csr(csr: &mut Value) {
    drop_nulls(csr);
    fill(object(csr, "spec"), "usages", json!(["digital signature", "key encipherment"]));
}

/// Returns the value of a field that a field selector for CertificateSigningRequests may name;
/// `None` for any other field.
pub fn csr_field(csr: &Value, path: &str) -> Option<String> {
    (path == "spec.signerName").then(|| text(csr, "/spec/signerName").to_owned())
}

/// Keeps the spec and status of a request: its main endpoint changes neither.
pub fn keep_spec_and_status(new: &mut Value, old: &Value) {
    super::json::restore(new, old, "spec");
    super::json::restore(new, old, "status");
}

/// Fills in the defaults of a CustomResourceDefinition: the names that follow from its kind, and no
/// conversion.
pub fn default_crd(crd: &mut Value) {
    drop_nulls(crd);
    let spec = object(crd, "spec");
    let names = object(spec, "names");
    let kind = text(names, "/kind").to_owned();
    fill(names, "singular", kind.to_lowercase());
    fill(names, "listKind", format!("{kind}List"));
    fill(object(spec, "conversion"), "strategy", "None");
}

/// Sets the status of a new definition: its names are accepted and it is established at once.
pub fn accept_crd(crd: &mut Value) {
    let time = text(crd, "/metadata/creationTimestamp").to_owned();
    let condition = |kind: &str, reason: &str, message: &str| {
        json!({
            "type": kind, "status": "True", "lastTransitionTime": time, "reason": reason,
            "message": message,
        })
    };
    let stored: Vec<Value> = list(crd, "/spec/versions")
        .iter()
        .filter(|version| super::json::truth(version, "/storage"))
        .map(|version| text(version, "/name").into())
        .collect();
    let names = crd.pointer("/spec/names").cloned().unwrap_or_default();
    let status = json!({
        "acceptedNames": names,
        "conditions": [
            condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        ],
        "storedVersions": stored,
    });
    set(crd, "status", status);
}

/// Checks a definition: its kinds must be valid, and it must keep the versions in which objects may
/// be stored.
pub fn crd_faults(crd: &Value) -> Vec<Cause> {
    let mut faults = super::custom::from_crd(crd).err().unwrap_or_default();
    let versions = list(crd, "/spec/versions");
    for (n, stored) in list(crd, "/status/storedVersions").iter().enumerate() {
        if versions.iter().any(|version| version.get("name") == Some(stored)) {
            continue;
        }
        let name = stored.as_str().unwrap_or_default();
        let detail = format!(
            "missing from spec.versions; {name} was previously a storage version, and must remain \
             in spec.versions until a storage migration ensures no data remains persisted in \
             {name} and removes {name} from status.storedVersions"
        );
        faults.push(invalid(format!("status.storedVersions[{n}]"), stored, &detail));
    }
    faults
}
