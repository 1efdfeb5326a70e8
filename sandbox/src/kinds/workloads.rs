//! Rules of apps and batch. Upstream: `pkg/apis/{apps,batch}`, `pkg/registry/{apps,batch}`.

use serde_json::{Value, json};

use super::fault::{forbidden, immutable, invalid, non_negative, required, unsupported};
use super::json::{
    drop_nulls, fill, int, list_mut, members, object, remove, restore, set, text, truth,
};
use super::metadata::{self, NameRule};
use super::pod::default_template;
use super::pod_rules;
use crate::api::status::Cause;
use kube_controller_manager::objects::{LabelSelector, Labels, Selector};

pub fn default_deployment(deployment: &mut Value) {
    drop_nulls(deployment);
    let spec = object(deployment, "spec");
    default_template(spec, "template");
    fill(spec, "replicas", 1);
    fill(spec, "revisionHistoryLimit", 10);
    fill(spec, "progressDeadlineSeconds", 600);
    let strategy = object(spec, "strategy");
    fill(strategy, "type", "RollingUpdate");
    if text(strategy, "/type") == "RollingUpdate" {
        let rolling = object(strategy, "rollingUpdate");
        fill(rolling, "maxSurge", "25%");
        fill(rolling, "maxUnavailable", "25%");
    }
}

pub fn default_replica_set(set: &mut Value) {
    drop_nulls(set);
    let spec = object(set, "spec");
    default_template(spec, "template");
    fill(spec, "replicas", 1);
    if text(set, "/apiVersion") != "v1" {
        return;
    }
    // A ReplicationController takes labels and selector from its template.
    let labels = set.pointer("/spec/template/metadata/labels").cloned().unwrap_or_default();
    if members(&labels, "").next().is_some() {
        if members(set, "/spec/selector").next().is_none() {
            set["spec"]["selector"] = labels.clone();
        }
        if members(set, "/metadata/labels").next().is_none() {
            set["metadata"]["labels"] = labels;
        }
    }
}

pub fn default_stateful_set(set: &mut Value) {
    drop_nulls(set);
    let spec = object(set, "spec");
    default_template(spec, "template");
    fill(spec, "replicas", 1);
    fill(spec, "revisionHistoryLimit", 10);
    fill(spec, "podManagementPolicy", "OrderedReady");
    let retention = object(spec, "persistentVolumeClaimRetentionPolicy");
    fill(retention, "whenDeleted", "Retain");
    fill(retention, "whenScaled", "Retain");
    let strategy = object(spec, "updateStrategy");
    fill(strategy, "type", "RollingUpdate");
    if text(strategy, "/type") == "RollingUpdate" {
        fill(object(strategy, "rollingUpdate"), "partition", 0);
    }
    for claim in list_mut(spec, "/volumeClaimTemplates") {
        fill(claim, "apiVersion", "v1");
        fill(claim, "kind", "PersistentVolumeClaim");
        super::core::default_claim(claim);
        super::core::pending(claim);
    }
}

pub fn default_daemon_set(set: &mut Value) {
    drop_nulls(set);
    let spec = object(set, "spec");
    default_template(spec, "template");
    fill(spec, "revisionHistoryLimit", 10);
    let strategy = object(spec, "updateStrategy");
    fill(strategy, "type", "RollingUpdate");
    if text(strategy, "/type") == "RollingUpdate" {
        let rolling = object(strategy, "rollingUpdate");
        fill(rolling, "maxSurge", 0);
        fill(rolling, "maxUnavailable", 1);
    }
}

fn default_job_spec(spec: &mut Value) {
    default_template(spec, "template");
    if spec.get("completions").is_none() && spec.get("parallelism").is_none() {
        fill(spec, "completions", 1);
        fill(spec, "parallelism", 1);
    }
    fill(spec, "parallelism", 1);
    // With a limit per index, the limit of the whole is out of the way.
    let limit = if spec.get("backoffLimitPerIndex").is_some() { i64::from(i32::MAX) } else { 6 };
    fill(spec, "backoffLimit", limit);
    fill(spec, "completionMode", "NonIndexed");
    fill(spec, "suspend", false);
    fill(spec, "manualSelector", false);
    let replacement =
        if spec.get("podFailurePolicy").is_some() { "Failed" } else { "TerminatingOrFailed" };
    fill(spec, "podReplacementPolicy", replacement);
}

pub fn default_job(job: &mut Value) {
    drop_nulls(job);
    default_job_spec(object(job, "spec"));
}

/// A new job has no status; its selector is made of its uid.
pub fn prepare_job(job: &mut Value) {
    set(job, "status", json!({}));
    let (uid, name) =
        (text(job, "/metadata/uid").to_owned(), text(job, "/metadata/name").to_owned());
    if truth(job, "/spec/manualSelector") || uid.is_empty() {
        return;
    }
    let ours = [
        ("batch.kubernetes.io/controller-uid", &uid),
        ("batch.kubernetes.io/job-name", &name),
        ("controller-uid", &uid),
        ("job-name", &name),
    ];
    let template = object(object(&mut job["spec"], "template"), "metadata");
    let labels = object(template, "labels");
    for (key, value) in ours {
        fill(labels, key, value.as_str());
    }
    // Without labels of its own, a job shows those of its pods.
    if members(job, "/metadata/labels").next().is_none() {
        job["metadata"]["labels"] = job["spec"]["template"]["metadata"]["labels"].clone();
    }
    let selector = object(&mut job["spec"], "selector");
    fill(object(selector, "matchLabels"), "batch.kubernetes.io/controller-uid", uid);
}

pub fn default_cron_job(job: &mut Value) {
    drop_nulls(job);
    let spec = object(job, "spec");
    fill(spec, "concurrencyPolicy", "Allow");
    fill(spec, "suspend", false);
    fill(spec, "successfulJobsHistoryLimit", 3);
    fill(spec, "failedJobsHistoryLimit", 1);
    let template = object(spec, "jobTemplate");
    object(template, "metadata");
    // The jobs' own defaults come when they are made.
    default_template(object(template, "spec"), "template");
}

/// Empties the status of a new object.
pub fn no_status(object: &mut Value) {
    set(object, "status", json!({}));
}

/// A new set counts its replicas from zero.
pub fn zero_replicas(object: &mut Value) {
    set(object, "status", json!({ "replicas": 0 }));
}

pub fn zero_stateful(object: &mut Value) {
    set(object, "status", json!({ "replicas": 0, "availableReplicas": 0 }));
}

const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

pub fn prepare_daemon_set(set_of_pods: &mut Value) {
    let zero = json!({
        "currentNumberScheduled": 0, "desiredNumberScheduled": 0, "numberMisscheduled": 0,
        "numberReady": 0,
    });
    set(set_of_pods, "status", zero);
    set(object(object(set_of_pods, "metadata"), "annotations"), TEMPLATE_GENERATION, "1");
}

/// Each change of the template counts.
pub fn prepare_daemon_set_update(new: &mut Value, old: &Value) {
    keep_status(new, old);
    let counted = text(old, &format!("/metadata/annotations/{TEMPLATE_GENERATION}"));
    let count =
        counted.parse::<i64>().unwrap_or(1) + i64::from(template_of(new) != template_of(old));
    let annotations = object(object(new, "metadata"), "annotations");
    set(annotations, TEMPLATE_GENERATION, count.to_string());
}

/// The main endpoint leaves the status as it is.
pub fn keep_status(new: &mut Value, old: &Value) {
    restore(new, old, "status");
}

fn labels_of(template: &Value) -> Labels {
    members(template, "/metadata/labels").filter_map(|(k, v)| Some((k, v.as_str()?))).collect()
}

/// Selector given, not empty, and of the template's labels.
fn selector_matches(object: &Value) -> Vec<Cause> {
    let Some(given) = object.pointer("/spec/selector") else {
        let mut faults = vec![required("spec.selector", "")];
        faults.extend(mismatch(object, &Selector::nothing()));
        return faults;
    };
    let parsed: Option<LabelSelector> = serde_json::from_value(given.clone()).ok();
    let selector = match parsed.as_ref().map(Selector::try_from) {
        Some(Ok(selector)) => selector,
        Some(Err(error)) => return vec![invalid("spec.selector", given, &error.to_string())],
        None => return vec![invalid("spec.selector", given, "not a label selector")],
    };
    let mut faults = Vec::new();
    if selector.is_empty() {
        let detail =
            format!("empty selector is invalid for {}", text(object, "/kind").to_lowercase());
        faults.push(invalid("spec.selector", given, &detail));
    }
    faults.extend(mismatch(object, &selector));
    faults
}

fn mismatch(object: &Value, selector: &Selector) -> Option<Cause> {
    let template = object.pointer("/spec/template").unwrap_or(&Value::Null);
    if selector.matches(&labels_of(template)) {
        return None;
    }
    let labels = template.pointer("/metadata/labels").unwrap_or(&Value::Null);
    let detail = "`selector` does not match template `labels`";
    Some(invalid("spec.template.metadata.labels", labels, detail))
}

fn template_of(object: &Value) -> &Value {
    object.pointer("/spec/template").unwrap_or(&Value::Null)
}

/// The pods of such a template must be restarted always.
fn always(template: &Value) -> Option<Cause> {
    let policy = template.pointer("/spec/restartPolicy").unwrap_or(&Value::Null);
    let field = "spec.template.spec.restartPolicy";
    (policy != "Always").then(|| unsupported(field, policy, &["Always"]))
}

/// Rules that all sets of pods share.
fn set_of_pods(object: &Value, rule: NameRule) -> Vec<Cause> {
    let mut faults = metadata::check(object, rule);
    for field in ["replicas", "minReadySeconds", "revisionHistoryLimit"] {
        let value = object.pointer(&format!("/spec/{field}"));
        faults.extend(non_negative(&format!("spec.{field}"), value));
    }
    faults.extend(selector_matches(object));
    faults.extend(pod_rules::template(template_of(object), "spec.template"));
    faults.extend(always(template_of(object)));
    faults
}

fn is_zero(value: Option<&Value>) -> bool {
    match value {
        None => true,
        Some(Value::String(text)) => text.trim_end_matches('%').parse() == Ok(0),
        Some(value) => value.as_i64() == Some(0),
    }
}

/// Faults of a number that may also be a percentage.
fn int_or_percent(value: Option<&Value>, field: &str) -> Option<Cause> {
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

pub fn check_deployment(deployment: &Value) -> Vec<Cause> {
    let mut faults = set_of_pods(deployment, NameRule::Subdomain);
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
            faults.extend(int_or_percent(down, &field));
            faults.extend(int_or_percent(surge, &format!("{at}.rollingUpdate.maxSurge")));
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
    set_of_pods(set, NameRule::Subdomain)
}

pub fn check_stateful_set(set: &Value) -> Vec<Cause> {
    let mut faults = set_of_pods(set, NameRule::Subdomain);
    // A claim template may be what is mounted.
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

pub fn check_daemon_set(set: &Value) -> Vec<Cause> {
    let mut faults = set_of_pods(set, NameRule::Subdomain);
    let rolling = set.pointer("/spec/updateStrategy/rollingUpdate").unwrap_or(&Value::Null);
    if text(set, "/spec/updateStrategy/type") == "RollingUpdate" {
        let (surge, down) =
            (is_zero(rolling.get("maxSurge")), is_zero(rolling.get("maxUnavailable")));
        let at = "spec.updateStrategy.rollingUpdate";
        let unavailable = rolling.get("maxUnavailable").unwrap_or(&Value::Null);
        let field = format!("{at}.maxUnavailable");
        if surge && down {
            faults.push(invalid(field, unavailable, "cannot be 0 when maxSurge is 0"));
        } else if !surge && !down {
            let detail = "may not be set when maxUnavailable is non-zero";
            let value = rolling.get("maxSurge").unwrap_or(&Value::Null);
            faults.push(invalid(format!("{at}.maxSurge"), value, detail));
        }
    }
    faults
}

pub fn check_controller(controller: &Value) -> Vec<Cause> {
    let mut faults = metadata::check(controller, NameRule::Subdomain);
    faults.extend(non_negative("spec.replicas", controller.pointer("/spec/replicas")));
    let selector: Labels = members(controller, "/spec/selector")
        .filter_map(|(key, value)| Some((key, value.as_str()?)))
        .collect();
    if selector.is_empty() {
        faults.push(required("spec.selector", ""));
    }
    faults.extend(mismatch(controller, &Selector::from_labels(&selector)));
    faults.extend(pod_rules::template(template_of(controller), "spec.template"));
    faults.extend(always(template_of(controller)));
    faults
}

/// What both kinds of update share: metadata, the checks of a new object, a fixed selector.
fn update(new: &Value, old: &Value, check: fn(&Value) -> Vec<Cause>) -> Vec<Cause> {
    let mut faults = metadata::check_update(new, old);
    faults.extend(check(new));
    faults.extend(immutable(
        "spec.selector",
        new.pointer("/spec/selector"),
        old.pointer("/spec/selector"),
    ));
    faults
}

pub fn update_deployment(new: &Value, old: &Value) -> Vec<Cause> {
    update(new, old, check_deployment)
}

pub fn update_replica_set(new: &Value, old: &Value) -> Vec<Cause> {
    update(new, old, check_replica_set)
}

pub fn update_daemon_set(new: &Value, old: &Value) -> Vec<Cause> {
    update(new, old, check_daemon_set)
}

pub fn update_controller(new: &Value, old: &Value) -> Vec<Cause> {
    let mut faults = metadata::check_update(new, old);
    faults.extend(check_controller(new));
    faults
}

pub fn update_stateful_set(new: &Value, old: &Value) -> Vec<Cause> {
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

fn job_spec(spec: &Value, at: &str) -> Vec<Cause> {
    let mut faults = Vec::new();
    for field in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ] {
        faults.extend(non_negative(&format!("{at}.{field}"), spec.get(field)));
    }
    if text(spec, "/completionMode") == "Indexed" && spec.get("completions").is_none() {
        let detail = "when completion mode is Indexed";
        faults.push(required(format!("{at}.completions"), detail));
    }
    let template = spec.get("template").unwrap_or(&Value::Null);
    faults.extend(pod_rules::template(template, &format!("{at}.template")));
    let policy = template.pointer("/spec/restartPolicy").unwrap_or(&Value::Null);
    if policy == "Always" {
        let detail = "valid values: \"OnFailure\", \"Never\"";
        faults.push(required(format!("{at}.template.spec.restartPolicy"), detail));
    }
    faults
}

pub fn check_job(job: &Value) -> Vec<Cause> {
    let mut faults = metadata::check(job, NameRule::Subdomain);
    if job.pointer("/spec/selector").is_none() {
        faults.push(required("spec.selector", ""));
    } else {
        faults.extend(selector_matches(job));
    }
    faults.extend(job_spec(job.get("spec").unwrap_or(&Value::Null), "spec"));
    faults
}

pub fn update_job(new: &Value, old: &Value) -> Vec<Cause> {
    let mut faults = update(new, old, check_job);
    // A suspended job that has not started may have its pods' scheduling steered.
    let steerable = truth(old, "/spec/suspend") && old.pointer("/status/startTime").is_none();
    let template = |job: &Value| {
        let mut template = template_of(job).clone();
        if steerable && let Some(metadata) = template.get_mut("metadata") {
            remove(metadata, "labels");
            remove(metadata, "annotations");
        }
        if steerable && let Some(spec) = template.get_mut("spec") {
            for free in ["nodeSelector", "affinity", "tolerations", "schedulingGates"] {
                remove(spec, free);
            }
        }
        template
    };
    faults.extend(immutable("spec.template", Some(&template(new)), Some(&template(old))));
    for field in
        ["completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"]
    {
        let at = format!("/spec/{field}");
        faults.extend(immutable(&format!("spec.{field}"), new.pointer(&at), old.pointer(&at)));
    }
    // Indexed jobs may grow and shrink when both numbers move together.
    let elastic = text(new, "/spec/completionMode") == "Indexed"
        && new.pointer("/spec/completions") == new.pointer("/spec/parallelism");
    let completions = "/spec/completions";
    if !elastic {
        let (new, old) = (new.pointer(completions), old.pointer(completions));
        faults.extend(immutable("spec.completions", new, old));
    }
    faults
}

pub fn check_cron_job(job: &Value) -> Vec<Cause> {
    let mut faults = metadata::check(job, NameRule::Subdomain);
    let name = text(job, "/metadata/name");
    if name.len() > 52 {
        let detail = "must be no more than 52 characters";
        faults.push(invalid("metadata.name", &name.into(), detail));
    }
    let schedule = text(job, "/spec/schedule");
    let fields = schedule.split_whitespace().count();
    if schedule.is_empty() {
        faults.push(required("spec.schedule", ""));
    } else if schedule.contains("TZ") {
        let detail = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
        faults.push(invalid("spec.schedule", &schedule.into(), detail));
    } else if !schedule.starts_with('@') && fields != 5 {
        let detail = format!("expected exactly 5 fields, found {fields}: [{schedule}]");
        faults.push(invalid("spec.schedule", &schedule.into(), &detail));
    }
    let policies = ["Allow", "Forbid", "Replace"];
    let policy = job.pointer("/spec/concurrencyPolicy").unwrap_or(&Value::Null);
    if !policies.iter().any(|known| policy == known) {
        faults.push(unsupported("spec.concurrencyPolicy", policy, &policies));
    }
    for field in ["startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"]
    {
        let value = job.pointer(&format!("/spec/{field}"));
        faults.extend(non_negative(&format!("spec.{field}"), value));
    }
    let template = job.pointer("/spec/jobTemplate/spec").unwrap_or(&Value::Null);
    faults.extend(job_spec(template, "spec.jobTemplate.spec"));
    faults
}

pub fn update_cron_job(new: &Value, old: &Value) -> Vec<Cause> {
    let mut faults = metadata::check_update(new, old);
    faults.extend(check_cron_job(new));
    faults
}

pub fn job_field(job: &Value, path: &str) -> Option<String> {
    match path {
        "status.successful" => Some(int(job, "/status/succeeded").unwrap_or(0).to_string()),
        _ => None,
    }
}

pub fn replicas_field(set: &Value, path: &str) -> Option<String> {
    match path {
        "status.replicas" => Some(int(set, "/status/replicas").unwrap_or(0).to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn faults_read_as_a_real_servers() {
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
            messages(&update_deployment(&other, &deployment())),
            ["spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"c\"}}: field is immutable"]
        );
    }
}
