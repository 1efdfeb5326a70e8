//! Jobs and CronJobs. Upstream: `pkg/apis/batch`, `pkg/registry/batch`.

use jiff::tz::TimeZone;
use serde_json::{Value, json};

use super::{selector_matches, template_of, update};
use crate::api::status::Cause;
use crate::kinds::fault::{immutable, invalid, non_negative, required, unsupported};
use crate::kinds::json::{drop_nulls, fill, int, members, object, remove, set, text, truth};
use crate::kinds::metadata::{self, NameRule};
use crate::kinds::pod::default_template;
use crate::kinds::pod_rules;

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

/// A new Job has no status; its selector is generated from its uid.
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
    // The scheduling directives of a suspended Job that has not started may change.
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
    // Indexed Jobs may scale when both numbers stay equal.
    let elastic = text(new, "/spec/completionMode") == "Indexed"
        && new.pointer("/spec/completions") == new.pointer("/spec/parallelism");
    let completions = "/spec/completions";
    if !elastic {
        let (new, old) = (new.pointer(completions), old.pointer(completions));
        faults.extend(immutable("spec.completions", new, old));
    }
    faults
}

pub fn check_new_cron_job(job: &Value) -> Vec<Cause> {
    let mut faults = check_cron_job(job);
    faults.extend(wrong_time_zone(job));
    faults
}

/// Upstream: `validateTimeZone`.
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

fn check_cron_job(job: &Value) -> Vec<Cause> {
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
