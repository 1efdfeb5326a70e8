//! OpenAPI documents for kubectl's `apply` and `explain`.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::kinds::Kind;
use crate::types::schemas::{Definitions, SCHEMAS, builtin_group, gvk, types_of};

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// Returns the key of a document in the index, which is also its path: `api/v1`, `apis/apps/v1`.
fn document_path(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

/// Builds the answer to `/openapi/v3`: where each group version's document is. The hash changes
/// with the kinds, so that clients may keep what they have.
pub fn v3_index(kinds: &[Arc<Kind>]) -> Value {
    use sha2::{Digest as _, Sha256};
    let mut hashes: HashMap<String, Sha256> = HashMap::new();
    for kind in kinds {
        let resource = &kind.resource;
        let hash = hashes.entry(document_path(&resource.group, &resource.version)).or_default();
        hash.update(resource.plural.as_bytes());
        if let Some(schema) = &kind.schema {
            hash.update(schema.to_string().as_bytes());
        }
    }
    let paths: Map<String, Value> = hashes
        .into_iter()
        .map(|(path, hash)| {
            let hash: String = hash.finalize().iter().map(|byte| format!("{byte:02X}")).collect();
            let url = format!("/openapi/v3/{path}?hash={hash}");
            (path, json!({ "serverRelativeURL": url }))
        })
        .collect();
    json!({ "paths": paths })
}

/// Builds the answer to `/openapi/v3/apis/GROUP/VERSION` of a server of this version; null when the
/// group's version is not served.
pub fn v3_document(kinds: &[Arc<Kind>], server: &str, group: &str, version: &str) -> Value {
    let mut paths = Map::new();
    let mut schemas = Definitions::new();
    for kind in kinds {
        if kind.resource.group != group || kind.resource.version != version {
            continue;
        }
        let name = match &kind.schema {
            Some(schema) => {
                let name = custom_name(kind);
                schemas.insert(name.clone(), custom_schema(kind, schema));
                // Any built-in group has the types of metadata; this one is small.
                let meta = builtin_group("coordination.k8s.io");
                schemas.extend(
                    meta.definitions
                        .iter()
                        .filter(|(name, _)| name.starts_with("io.k8s.apimachinery."))
                        .map(|(name, schema)| (name.clone(), schema.clone())),
                );
                name
            }
            None => {
                let types = types_of(kind);
                // All kinds of a group share its definitions.
                if schemas.is_empty() {
                    schemas.extend(types.definitions.iter().map(|(n, s)| (n.clone(), s.clone())));
                }
                types.root.clone()
            }
        };
        add_paths(kind, &name, &mut paths);
    }
    if paths.is_empty() {
        return Value::Null;
    }
    json!({
        "openapi": "3.0.0", "info": { "title": "Kubernetes", "version": server },
        "paths": paths, "components": { "schemas": schemas },
    })
}

/// Returns the name of a custom kind's schema: `io.x.v1.Foo` for the group `x.io`.
fn custom_name(kind: &Kind) -> String {
    let group: Vec<&str> = kind.resource.group.rsplit('.').collect();
    format!("{}.{}.{}", group.join("."), kind.resource.version, kind.resource.kind)
}

fn custom_schema(kind: &Kind, schema: &Value) -> Value {
    let mut schema = schema.clone();
    complete_embedded(&mut schema);
    complete_resource(&mut schema);
    schema["x-kubernetes-group-version-kind"] = json!([gvk(kind)]);
    schema
}

/// Adds the members that every resource has.
fn complete_resource(schema: &mut Value) {
    if !schema["properties"].is_object() {
        schema["properties"] = json!({});
    }
    const MORE: &str = "More info: \
        https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md";
    let text = |about: &str, at: &str| json!({ "type": "string", "description": format!("{about} {MORE}#{at}") });
    schema["properties"]["apiVersion"] = text(
        "APIVersion defines the versioned schema of this representation of an object. Servers \
            should convert recognized schemas to the latest internal value, and may reject \
            unrecognized values.",
        "resources",
    );
    schema["properties"]["kind"] = text(
        "Kind is a string value representing the REST resource this object represents. Servers \
            may infer this from the endpoint the client submits requests to. Cannot be updated. \
            In CamelCase.",
        "types-kinds",
    );
    schema["properties"]["metadata"] = json!({
        "description": format!("Standard object's metadata. {MORE}#metadata"),
        "allOf": [{ "$ref": format!("{SCHEMAS}{OBJECT_META}") }],
    });
}

/// Completes the embedded resources in a schema, at any depth: they get the members of every
/// resource, and need `kind` and `apiVersion`.
fn complete_embedded(schema: &mut Value) {
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.values_mut().for_each(complete_embedded);
    }
    for below in ["items", "additionalProperties"] {
        schema.get_mut(below).into_iter().for_each(complete_embedded);
    }
    if schema.get("x-kubernetes-embedded-resource") == Some(&Value::Bool(true)) {
        complete_resource(schema);
        let mut required: Vec<Value> = schema["required"].as_array().cloned().unwrap_or_default();
        for member in ["kind", "apiVersion"] {
            if !required.iter().any(|known| known == member) {
                required.push(member.into());
            }
        }
        schema["required"] = Value::Array(required);
    }
}

/// Adds the paths of a resource: kubectl reads from them the parameters of writes and the supported
/// patches.
fn add_paths(kind: &Kind, schema: &str, paths: &mut Map<String, Value>) {
    let resource = &kind.resource;
    let base = document_path(&resource.group, &resource.version);
    let scope = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
    let collection_path = format!("/{base}{scope}/{}", resource.plural);
    let object_path = format!("{collection_path}/{{name}}");
    let body = json!({ "$ref": format!("{SCHEMAS}{schema}") });
    let operation = |action: &str, write: bool| {
        let mut operation = json!({
            "responses": { "200": {
                "description": "OK", "content": { "application/json": { "schema": body } },
            }},
            "x-kubernetes-action": action, "x-kubernetes-group-version-kind": gvk(kind),
        });
        if write {
            let query =
                |name: &str| json!({ "name": name, "in": "query", "schema": { "type": "string" } });
            operation["parameters"] =
                json!([query("dryRun"), query("fieldManager"), query("fieldValidation")]);
            operation["requestBody"] = json!({ "content": { "*/*": { "schema": body } } });
        }
        operation
    };
    let mut patch = operation("patch", true);
    let mut types = vec!["application/json-patch+json", "application/merge-patch+json"];
    if !kind.is_custom() {
        types.push("application/strategic-merge-patch+json");
    }
    types.push("application/apply-patch+yaml");
    let content: Map<String, Value> = types
        .into_iter()
        .map(|media_type| (media_type.to_owned(), json!({ "schema": { "type": "object" } })))
        .collect();
    patch["requestBody"] = json!({ "content": content, "required": true });
    let of_path = |name: &str| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } });
    let mut parameters = Vec::new();
    if resource.namespaced {
        parameters.push(of_path("namespace"));
    }
    paths.insert(
        collection_path,
        json!({
            "get": operation("list", false), "post": operation("post", true),
            "parameters": parameters,
        }),
    );
    parameters.push(of_path("name"));
    paths.insert(
        object_path,
        json!({
            "get": operation("get", false), "put": operation("put", true), "patch": patch,
            "delete": operation("delete", false), "parameters": parameters,
        }),
    );
}

/// Answers `/openapi/v2` with a document without types: clients then use the types that they have
/// built in.
pub fn v2(server: &str) -> Value {
    json!({
        "swagger": "2.0", "info": { "title": "Kubernetes", "version": server }, "paths": {},
        "definitions": {},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::builtin;

    #[test]
    fn every_builtin_kind_has_a_schema_and_every_reference_its_target() {
        let kinds: Vec<Arc<Kind>> = builtin().into_iter().map(Arc::new).collect();
        for kind in &kinds {
            assert!(!types_of(kind).root.is_empty(), "{}", kind.resource.kind);
        }
        fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
            match value {
                Value::Object(members) => {
                    found.extend(members.get("$ref").and_then(Value::as_str));
                    members.values().for_each(|member| references(member, found));
                }
                Value::Array(items) => items.iter().for_each(|item| references(item, found)),
                _ => {}
            }
        }
        let document = v3_document(&kinds, "v1.36.2", "apps", "v1");
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(!found.is_empty());
        for reference in found {
            let target = document.pointer(reference.trim_start_matches('#'));
            assert!(target.is_some(), "{reference}");
        }
        let schemas = &document["components"]["schemas"];
        let deployment = &schemas["io.k8s.api.apps.v1.Deployment"];
        let expected = json!([{"group": "apps", "version": "v1", "kind": "Deployment"}]);
        assert_eq!(deployment["x-kubernetes-group-version-kind"], expected);
        let containers = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
        assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
        assert_eq!(containers["x-kubernetes-list-map-keys"], json!(["name"]));
        let policy = &schemas["io.k8s.api.core.v1.Container"]["properties"]["imagePullPolicy"];
        assert_eq!(policy["enum"], json!(["Always", "IfNotPresent", "Never"]));
        let selector = &schemas["io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector"];
        assert_eq!(selector["x-kubernetes-map-type"], "atomic");
    }
}
