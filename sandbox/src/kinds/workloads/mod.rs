//! Defaults and validation of the groups apps and batch.

mod checks;
mod defaults;
mod jobs;

use serde_json::{Value, json};

pub use self::checks::{
    check_controller, check_controller_update, check_daemon_set, check_daemon_set_update,
    check_deployment, check_deployment_update, check_replica_set, check_replica_set_update,
    check_stateful_set, check_stateful_set_update,
};
pub use self::defaults::{
    default_daemon_set, default_deployment, default_replica_set, default_stateful_set,
    prepare_daemon_set, prepare_daemon_set_update, replicas_field, zero_replicas, zero_stateful,
};
pub use self::jobs::{
    check_cron_job_update, check_job, check_job_update, check_new_cron_job, default_cron_job,
    default_job, job_field, prepare_job,
};
use super::fault::{immutable, invalid, required, unsupported};
use super::json::{members, restore, set, text};
use super::metadata;
use crate::status::Cause;
use kube_controller_manager::objects::{LabelSelector, Labels, Selector};

/// Empties the status of a new object.
pub fn no_status(object: &mut Value) {
    set(object, "status", json!({}));
}

/// Restores the old status, which the main endpoint leaves as it is.
pub fn keep_status(new: &mut Value, old: &Value) {
    restore(new, old, "status");
}

fn labels_of(template: &Value) -> Labels {
    members(template, "/metadata/labels").filter_map(|(k, v)| Some((k, v.as_str()?))).collect()
}

/// Checks that a selector is present, is not empty, and matches the template's labels.
fn selector_matches(object: &Value) -> Vec<Cause> {
    let Some(given) = object.pointer("/spec/selector") else {
        let mut faults = vec![required("spec.selector", "")];
        faults.extend(selector_mismatch(object, &Selector::nothing()));
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
    faults.extend(selector_mismatch(object, &selector));
    faults
}

/// Returns a fault unless the selector matches the labels of the object's template.
fn selector_mismatch(object: &Value, selector: &Selector) -> Option<Cause> {
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

/// Returns the fault of a template whose restart policy is not `Always`.
fn check_restart_policy(template: &Value) -> Option<Cause> {
    let policy = template.pointer("/spec/restartPolicy").unwrap_or(&Value::Null);
    let field = "spec.template.spec.restartPolicy";
    (policy != "Always").then(|| unsupported(field, policy, &["Always"]))
}

/// Checks an update: its metadata, the rules of a new object, and that the selector is the same.
fn check_update_with(new: &Value, old: &Value, check: fn(&Value) -> Vec<Cause>) -> Vec<Cause> {
    let mut faults = metadata::check_update(new, old);
    faults.extend(check(new));
    faults.extend(immutable(
        "spec.selector",
        new.pointer("/spec/selector"),
        old.pointer("/spec/selector"),
    ));
    faults
}
