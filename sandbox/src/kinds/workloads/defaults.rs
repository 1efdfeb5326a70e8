//! Defaults and preparation of sets of pods. Upstream: `pkg/apis/apps/v1`, `pkg/registry/apps`.

use serde_json::{Value, json};

use super::{keep_status, template_of};
use crate::kinds::core;
use crate::kinds::json::{drop_nulls, fill, int, list_mut, members, object, set, text};
use crate::kinds::pod::default_template;

/// Fills in the defaults of a Deployment.
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

/// Fills in the defaults of a ReplicaSet or ReplicationController.
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

/// Fills in the defaults of a StatefulSet and of its claim templates.
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
        core::default_claim(claim);
        core::set_pending(claim);
    }
}

/// Fills in the defaults of a DaemonSet.
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

/// Sets the status of a new set: no replicas.
pub fn zero_replicas(object: &mut Value) {
    set(object, "status", json!({ "replicas": 0 }));
}

/// Sets the status of a new StatefulSet: no replicas.
pub fn zero_stateful(object: &mut Value) {
    set(object, "status", json!({ "replicas": 0, "availableReplicas": 0 }));
}

const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// Prepares a new DaemonSet: its status has zero counts, and its template is the first generation.
pub fn prepare_daemon_set(set_of_pods: &mut Value) {
    let zero = json!({
        "currentNumberScheduled": 0, "desiredNumberScheduled": 0, "numberMisscheduled": 0,
        "numberReady": 0,
    });
    set(set_of_pods, "status", zero);
    set(object(object(set_of_pods, "metadata"), "annotations"), TEMPLATE_GENERATION, "1");
}

/// Keeps the status of an updated DaemonSet, and raises the generation of its template, an
/// annotation, if the template has changed.
pub fn prepare_daemon_set_update(new: &mut Value, old: &Value) {
    keep_status(new, old);
    let counted = text(old, &format!("/metadata/annotations/{TEMPLATE_GENERATION}"));
    let count =
        counted.parse::<i64>().unwrap_or(1) + i64::from(template_of(new) != template_of(old));
    let annotations = object(object(new, "metadata"), "annotations");
    set(annotations, TEMPLATE_GENERATION, count.to_string());
}

pub fn replicas_field(set: &Value, path: &str) -> Option<String> {
    match path {
        "status.replicas" => Some(int(set, "/status/replicas").unwrap_or(0).to_string()),
        _ => None,
    }
}
