//! Objects as the server-side Table that `kubectl get` prints. Upstream: `meta.k8s.io/v1 Table`.

use serde_json::{Value, json};

use crate::kinds::Kind;

/// The part of its object that a row contains, by the query parameter `includeObject`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IncludeObject {
    None,
    /// `PartialObjectMetadata`, the default.
    #[default]
    Metadata,
    Object,
}

impl IncludeObject {
    /// Parses the query parameter; `None` for an unknown value.
    pub fn parse(text: &str) -> Option<IncludeObject> {
        match text {
            "" | "Metadata" => Some(IncludeObject::Metadata),
            "None" => Some(IncludeObject::None),
            "Object" => Some(IncludeObject::Object),
            _ => None,
        }
    }
}

/// Builds a Table of `objects` at `now_secs` (seconds since 1970). `list_meta` becomes the table's
/// metadata (`resourceVersion`, `continue` ...); null for a single object, whose version is used.
pub fn render(
    kind: &Kind,
    objects: &[&Value],
    list_meta: &Value,
    now_secs: i64,
    include_object: IncludeObject,
) -> Value {
    let definitions: Vec<Value> = kind
        .columns
        .iter()
        .map(|column| {
            json!({
                "name": column.name, "type": column.r#type, "format": column.format,
                "description": column.description, "priority": column.priority,
            })
        })
        .collect();
    let rows: Vec<Value> =
        objects.iter().map(|object| row(kind, object, now_secs, include_object)).collect();
    let metadata = match (list_meta, objects) {
        (Value::Null, [only]) => match only.pointer("/metadata/resourceVersion") {
            Some(version) => json!({ "resourceVersion": version }),
            None => json!({}),
        },
        (Value::Null, _) => json!({}),
        (given, _) => given.clone(),
    };
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
        "columnDefinitions": definitions, "rows": rows,
    })
}

/// Builds the row of an object, with as much of the object as the request wants.
fn row(kind: &Kind, object: &Value, now_secs: i64, include_object: IncludeObject) -> Value {
    let cells: Vec<Value> =
        kind.columns.iter().map(|column| (column.cell)(object, now_secs)).collect();
    let mut row = json!({ "cells": cells });
    if let Some(conditions) = conditions(kind, object) {
        row["conditions"] = conditions;
    }
    match include_object {
        IncludeObject::None => {}
        IncludeObject::Metadata => {
            row["object"] = json!({
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                "metadata": object.get("metadata").cloned().unwrap_or_else(|| json!({})),
            });
        }
        IncludeObject::Object => row["object"] = object.clone(),
    }
    row
}

/// Builds the row conditions, which mark finished pods so that clients can hide them.
fn conditions(kind: &Kind, object: &Value) -> Option<Value> {
    if kind.resource.plural != "pods" || !kind.resource.group.is_empty() {
        return None;
    }
    let (reason, message) = match object.pointer("/status/phase")?.as_str()? {
        "Succeeded" => ("Succeeded", "The pod has completed successfully."),
        "Failed" => ("Failed", "The pod failed."),
        _ => return None,
    };
    Some(json!([{ "type": "Completed", "status": "True", "reason": reason, "message": message }]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::builtin;

    fn cells(plural: &str, group: &str, object: Value) -> Vec<Value> {
        let kinds = builtin();
        let of = |k: &&Kind| k.resource.plural == plural && k.resource.group == group;
        let kind = kinds.iter().find(of).unwrap();
        let now = 1_777_629_600; // 2026-05-01T10:00:00Z
        let table = render(kind, &[&object], &Value::Null, now, IncludeObject::None);
        assert_eq!(table["columnDefinitions"].as_array().unwrap().len(), kind.columns.len());
        table["rows"][0]["cells"].as_array().unwrap().clone()
    }

    #[test]
    fn rows_equal_those_of_a_real_server() {
        let meta = json!({"name": "x", "creationTimestamp": "2026-05-01T09:59:23Z"});
        let template = json!({"spec": {"containers": [
            {"name": "a", "image": "nginx"}, {"name": "b", "image": "redis"}]}});
        let selector = json!({"matchLabels": {"a": "b"}});
        for (plural, group, object, expected) in [
            (
                "deployments",
                "apps",
                json!({"metadata": meta, "spec": {"replicas": 3, "selector": selector, "template": template},
                    "status": {"readyReplicas": 1, "updatedReplicas": 2}}),
                json!(["x", "1/3", 2, 0, "37s", "a,b", "nginx,redis", "a=b"]),
            ),
            (
                "pods",
                "",
                json!({"metadata": meta, "spec": {"nodeName": "n", "containers": [{"name": "a"}]},
                    "status": {"phase": "Running", "podIPs": [{"ip": "1.2.3.4"}],
                        "containerStatuses": [{"name": "a", "ready": true, "restartCount": 2,
                            "state": {"running": {}}, "lastState": {"terminated":
                            {"finishedAt": "2026-05-01T09:50:00Z"}}}]}}),
                json!([
                    "x",
                    "1/1",
                    "Running",
                    "2 (10m ago)",
                    "37s",
                    "1.2.3.4",
                    "n",
                    "<none>",
                    "<none>"
                ]),
            ),
            (
                "pods",
                "",
                json!({"metadata": meta, "spec": {"containers": [{"name": "a"}], "initContainers": [{"name": "i"}]},
                    "status": {"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"running": {}}}]}}),
                json!(["x", "0/1", "Init:0/1", "0", "37s", "<none>", "<none>", "<none>", "<none>"]),
            ),
            (
                "services",
                "",
                json!({"metadata": meta, "spec": {"type": "LoadBalancer", "clusterIPs": ["10.96.10.123"],
                    "ports": [{"port": 80, "protocol": "TCP", "nodePort": 31189}]}}),
                json!([
                    "x",
                    "LoadBalancer",
                    "10.96.10.123",
                    "<pending>",
                    "80:31189/TCP",
                    "37s",
                    "<none>"
                ]),
            ),
            (
                "nodes",
                "",
                json!({"metadata": meta, "spec": {"unschedulable": true}, "status": {"conditions":
                    [{"type": "Ready", "status": "True"}], "nodeInfo": {"kubeletVersion": "v1.36.2"}}}),
                json!([
                    "x",
                    "Ready,SchedulingDisabled",
                    "<none>",
                    "37s",
                    "v1.36.2",
                    "<none>",
                    "<none>",
                    "<unknown>",
                    "<unknown>",
                    "<unknown>"
                ]),
            ),
            (
                "jobs",
                "batch",
                json!({"metadata": meta, "spec": {"completions": 1, "template": template, "selector": selector},
                    "status": {}}),
                json!(["x", "Running", "0/1", "", "37s", "a,b", "nginx,redis", "a=b"]),
            ),
        ] {
            assert_eq!(json!(cells(plural, group, object)), expected, "{plural}");
        }
    }
}
