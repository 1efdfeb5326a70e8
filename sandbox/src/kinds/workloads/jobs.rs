//! Jobs and CronJobs. Upstream: `pkg/apis/batch`, `pkg/registry/batch`.

use jiff::tz::TimeZone;
use serde_json::{Map, Value, json};

use super::{check_update_with, selector_matches, template_of};
use crate::kinds::fault::{immutable, invalid, non_negative, required, unsupported};
use crate::kinds::json::{
    drop_nulls, fill, int, list, list_mut, members, object, remove, set, text, truth,
};
use crate::kinds::metadata::{self, NameRule};
use crate::kinds::pod::default_template;
use crate::kinds::pod_rules;
use crate::status::Cause;

/// Fills in the defaults of a Job's specification.
fn default_job_spec(spec: &mut Value) {
    default_template(spec, "template");
    if spec.get("completions").is_none() && spec.get("parallelism").is_none() {
        fill(spec, "completions", 1);
        fill(spec, "parallelism", 1);
    }
    fill(spec, "parallelism", 1);
    // With a limit per index, the limit of the whole Job has no effect.
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

/// Removes the status of a new Job, and generates its labels and selector from its uid and name
/// unless it has `manualSelector`.
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
    // A Job without labels gets those of its template.
    if members(job, "/metadata/labels").next().is_none() {
        job["metadata"]["labels"] = job["spec"]["template"]["metadata"]["labels"].clone();
    }
    let selector = object(&mut job["spec"], "selector");
    fill(object(selector, "matchLabels"), "batch.kubernetes.io/controller-uid", uid);
}

/// Fills in the defaults of a CronJob and of its template.
pub fn default_cron_job(job: &mut Value) {
    drop_nulls(job);
    let spec = object(job, "spec");
    fill(spec, "concurrencyPolicy", "Allow");
    fill(spec, "suspend", false);
    fill(spec, "successfulJobsHistoryLimit", 3);
    fill(spec, "failedJobsHistoryLimit", 1);
    let template = object(spec, "jobTemplate");
    object(template, "metadata");
    // The Jobs get their own defaults when they are created.
    default_template(object(template, "spec"), "template");
}

/// Validates the spec of a Job at path `at`, also that in a CronJob's template.
fn check_job_spec(spec: &Value, at: &str) -> Vec<Cause> {
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

/// Checks a Job: it must have a selector, which its template matches.
pub fn check_job(job: &Value) -> Vec<Cause> {
    let mut faults = metadata::check(job, NameRule::Subdomain);
    if job.pointer("/spec/selector").is_none() {
        faults.push(required("spec.selector", ""));
    } else {
        faults.extend(selector_matches(job));
    }
    faults.extend(check_job_spec(job.get("spec").unwrap_or(&Value::Null), "spec"));
    faults
}

/// Checks an update of a Job. While the Job is at rest, the scheduling directives and the resources
/// in its template may change.
pub fn check_job_update(new: &Value, old: &Value) -> Vec<Cause> {
    let mut faults = check_update_with(new, old, check_job);
    let (new_template, old_template) = (template_of(new), template_of(old));
    if is_at_rest(old) {
        let (new, old) = (fixed_spec(new_template), fixed_spec(old_template));
        faults.extend(immutable("spec.template.spec", Some(&new), Some(&old)));
    } else {
        faults.extend(immutable("spec.template", Some(new_template), Some(old_template)));
    }
    for field in
        ["completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"]
    {
        let at = format!("/spec/{field}");
        faults.extend(immutable(&format!("spec.{field}"), new.pointer(&at), old.pointer(&at)));
    }
    // Indexed Jobs may scale when both numbers stay equal.
    let elastic = text(new, "/spec/completionMode") == "Indexed"
        && new.pointer("/spec/completions") == new.pointer("/spec/parallelism");
    let completions = "/spec/completions";
    if !elastic {
        let (new, old) = (new.pointer(completions), old.pointer(completions));
        faults.extend(immutable("spec.completions", new, old));
    }
    faults.extend(more_ready_than_active(new, old));
    faults
}

/// Returns the fault of a Job whose update claims more ready pods than active ones. Upstream:
/// `RejectMoreReadyThanActivePods`.
fn more_ready_than_active(new: &Value, old: &Value) -> Option<Cause> {
    let count = |job: &Value, at: &str| int(job, at).unwrap_or(0);
    let counts = |job: &Value| (count(job, "/status/ready"), count(job, "/status/active"));
    let (ready, active) = counts(new);
    let is_new = counts(old) != (ready, active);
    let detail = "cannot set more ready pods than active";
    (ready > active && is_new).then(|| invalid("status.ready", &ready.into(), detail))
}

/// Returns whether the Job is suspended and has no pods. Then the scheduling directives and the
/// resources of its template may change. Upstream: `shouldAllowMutablePodTemplate`.
fn is_at_rest(job: &Value) -> bool {
    let has_started = job.pointer("/status/startTime").is_some();
    let is_suspended = list(job, "/status/conditions").iter().any(|condition| {
        text(condition, "/type") == "Suspended" && text(condition, "/status") == "True"
    });
    truth(job, "/spec/suspend")
        && (!has_started || is_suspended)
        && job.pointer("/status/active").is_none_or(|active| active == 0)
}

/// Returns a template's spec without the fields that may change while the Job is suspended.
fn fixed_spec(template: &Value) -> Value {
    let mut spec = template.get("spec").cloned().unwrap_or_default();
    for free in ["nodeSelector", "tolerations", "schedulingGates"] {
        remove(&mut spec, free);
    }
    if let Some(affinity) = spec.get_mut("affinity") {
        remove(affinity, "nodeAffinity");
        if affinity.as_object().is_none_or(Map::is_empty) {
            remove(&mut spec, "affinity");
        }
    }
    for containers in ["/containers", "/initContainers"] {
        for container in list_mut(&mut spec, containers) {
            remove(container, "resources");
        }
    }
    spec
}

pub fn check_new_cron_job(job: &Value) -> Vec<Cause> {
    let mut faults = check_cron_job(job);
    faults.extend(wrong_time_zone(job));
    faults
}

/// Returns a fault if the time zone of a CronJob is not known. Upstream: `validateTimeZone`.
fn wrong_time_zone(job: &Value) -> Option<Cause> {
    let given = job.pointer("/spec/timeZone").filter(|given| !given.is_null())?;
    let name = given.as_str().unwrap_or_default();
    let detail = if name.is_empty() {
        "timeZone must be nil or non-empty string".to_owned()
    } else if name.eq_ignore_ascii_case("local") {
        "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"
            .to_owned()
    } else if TimeZone::get(name).is_err() {
        format!("unknown time zone {name}")
    } else {
        return None;
    };
    Some(invalid("spec.timeZone", given, &detail))
}

/// Validates a CronJob, except its time zone.
fn check_cron_job(job: &Value) -> Vec<Cause> {
    let mut faults = metadata::check(job, NameRule::Subdomain);
    let name = text(job, "/metadata/name");
    // The names of its Jobs are eleven characters longer, and may have 63.
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
    faults.extend(check_job_spec(template, "spec.jobTemplate.spec"));
    faults
}

/// Checks an update of a CronJob. A time zone that has not changed is accepted, even if it is
/// unknown.
pub fn check_cron_job_update(new: &Value, old: &Value) -> Vec<Cause> {
    let mut faults = metadata::check_update(new, old);
    faults.extend(check_cron_job(new));
    if new.pointer("/spec/timeZone") != old.pointer("/spec/timeZone") {
        faults.extend(wrong_time_zone(new));
    }
    faults
}

pub fn job_field(job: &Value, path: &str) -> Option<String> {
    match path {
        "status.successful" => Some(int(job, "/status/succeeded").unwrap_or(0).to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_has_no_more_ready_pods_than_active_ones() {
        let job = |status: Value| {
            json!({
                "metadata": { "name": "j", "namespace": "n" },
                "spec": {
                    "selector": { "matchLabels": { "a": "b" } },
                    "template": {
                        "metadata": { "labels": { "a": "b" } },
                        "spec": { "restartPolicy": "Never", "dnsPolicy": "Default", "containers": [
                            { "name": "c", "image": "i", "imagePullPolicy": "Always" },
                        ] },
                    },
                },
                "status": status,
            })
        };
        for (old, new, faults) in [
            (json!({}), json!({ "active": 2, "ready": 2 }), 0),
            (json!({ "active": 3, "ready": 2 }), json!({ "ready": 2 }), 1),
            (json!({}), json!({ "active": 1, "ready": 2 }), 1),
            (json!({ "ready": 2 }), json!({ "ready": 2, "failed": 1 }), 0),
        ] {
            assert_eq!(check_job_update(&job(new.clone()), &job(old)).len(), faults, "{new}");
        }
    }

    #[test]
    fn a_suspended_job_without_pods_may_change_scheduling_and_resources() {
        let job = |suspend: bool, status: Value| {
            json!({
                "metadata": { "name": "j", "namespace": "n" },
                "spec": {
                    "suspend": suspend, "selector": { "matchLabels": { "a": "b" } },
                    "template": {
                        "metadata": { "labels": { "a": "b" } },
                        "spec": { "restartPolicy": "Never", "dnsPolicy": "Default", "containers": [
                            { "name": "c", "image": "i", "imagePullPolicy": "Always" },
                        ] },
                    },
                },
                "status": status,
            })
        };
        let condition = |status: &str| json!([{ "type": "Suspended", "status": status }]);
        let started = "2026-01-01T00:00:00Z";
        let states = [
            (job(true, json!({})), true),
            (job(false, json!({})), false),
            (job(true, json!({ "startTime": started })), false),
            (job(true, json!({ "startTime": started, "conditions": condition("False") })), false),
            (job(true, json!({ "startTime": started, "conditions": condition("True") })), true),
            (job(true, json!({ "conditions": condition("True"), "active": 1 })), false),
        ];
        let resources = json!({ "requests": { "cpu": "1" } });
        let changes = [
            ("/spec/template/spec/containers/0/resources", resources, true),
            ("/spec/template/spec/nodeSelector", json!({ "a": "b" }), true),
            ("/spec/template/spec/affinity", json!({ "nodeAffinity": {} }), true),
            ("/spec/template/spec/affinity", json!({ "podAffinity": {} }), false),
            ("/spec/template/metadata/annotations", json!({ "a": "b" }), true),
            ("/spec/template/spec/containers/0/image", json!("other"), false),
        ];
        for (old, at_rest) in states {
            for (at, value, may_change) in &changes {
                let mut new = old.clone();
                let (parent, field) = at.rsplit_once('/').unwrap();
                new.pointer_mut(parent).unwrap()[field] = value.clone();
                let faults = check_job_update(&new, &old);
                let expected = if at_rest && *may_change { 0 } else { 1 };
                assert_eq!(faults.len(), expected, "{at} {value} of {old}: {faults:?}");
            }
        }
    }
}
