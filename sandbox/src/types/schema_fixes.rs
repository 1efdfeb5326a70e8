//! Corrections of the generated schemas: keywords of OpenAPI 3.0, and facts that the types lack.

use std::collections::HashMap;
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::types::merge_rules::merge_rule;

/// Converts a schema to OpenAPI 3.0: keywords beside a reference are ignored there, and
/// int-or-string fields are marked as such.
pub fn convert(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            // Both are also names of properties, in the schema of schemas.
            if members.len() > 1
                && members.get("$ref").is_some_and(Value::is_string)
                && let Some(reference) = members.remove("$ref")
            {
                members.insert("allOf".to_owned(), json!([{ "$ref": reference }]));
            }
            if members.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) {
                members.remove("x-kubernetes-int-or-string");
                members
                    .insert("oneOf".to_owned(), json!([{"type": "integer"}, {"type": "string"}]));
                members.insert("format".to_owned(), "int-or-string".into());
            }
            for (key, member) in members {
                match member {
                    // Names of members, which may look like keywords.
                    Value::Object(properties) if key == "properties" => {
                        properties.values_mut().for_each(convert);
                    }
                    member => convert(member),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(convert),
        _ => {}
    }
}

/// Facts that the types lack. One type per line: `field=keys` for lists whose items are
/// identified by keys, `field=set`, `field=atomic` for objects that have one owner as a whole (the
/// field `-` is the type itself), `field:value,...` for the values that a field may have.
pub const FIELDS: &str = include_str!("fields.txt");

/// Returns the entries of [`FIELDS`] for this type. The table names a type by the part after
/// `.apis.` or `io.k8s.api.`.
fn fields(type_name: &str) -> impl Iterator<Item = &'static str> {
    static TABLE: OnceLock<HashMap<&'static str, &'static str>> = OnceLock::new();
    let table =
        TABLE.get_or_init(|| FIELDS.lines().filter_map(|line| line.split_once(' ')).collect());
    let at = type_name.find(".apis.").map(|at| at + ".apis.".len());
    let short = match at {
        Some(at) => &type_name[at..],
        None => type_name.strip_prefix("io.k8s.api.").unwrap_or(type_name),
    };
    table.get(short).copied().unwrap_or_default().split(' ').filter(|field| !field.is_empty())
}

/// Adds to the fields of a type what [`FIELDS`] says about them: allowed values, and how
/// server-side apply merges lists and maps.
pub fn add_field_rules(type_name: &str, schema: &mut Value) {
    for field in fields(type_name) {
        if let Some((name, values)) = field.split_once(':') {
            let values: Vec<&str> =
                values.split(',').map(|value| value.trim_matches('"')).collect();
            let field_schema = &mut schema["properties"][name];
            let field_schema = if field_schema["type"] == "array" {
                &mut field_schema["items"]
            } else {
                field_schema
            };
            field_schema["enum"] = json!(values);
        } else if let Some((name, how)) = field.split_once('=') {
            let field_schema =
                if name == "-" { &mut *schema } else { &mut schema["properties"][name] };
            match how {
                "atomic" => field_schema["x-kubernetes-map-type"] = "atomic".into(),
                "set" => field_schema["x-kubernetes-list-type"] = "set".into(),
                keys => {
                    let keys: Vec<&str> = keys.split(',').collect();
                    field_schema["x-kubernetes-list-type"] = "map".into();
                    field_schema["x-kubernetes-list-map-keys"] = json!(keys);
                }
            }
        }
    }
}

/// Adds the fields that only 1.37 has. A real server of 1.36 drops them; a manager that follows 1.36
/// sends none.
pub fn extend(type_name: &str, schema: &mut Value) {
    // Pull request 138653.
    if type_name.ends_with("autoscaling.v2.HorizontalPodAutoscalerCondition") {
        schema["properties"]["observedGeneration"] = json!({
            "type": "integer", "format": "int64",
            "description": "The generation of the spec on which the condition was set.",
        });
    }
}

/// Makes members optional that the types require, though the API does not. The types in `ANY` stand
/// for values of several types: their schema then accepts any value.
pub fn relax(type_name: &str, schema: &mut Value) {
    const ANY: [&str; 4] =
        ["JSON", "JSONSchemaPropsOrArray", "JSONSchemaPropsOrBool", "JSONSchemaPropsOrStringArray"];
    const UNNAMED: [&str; 8] = [
        "ConfigMapEnvSource",
        "ConfigMapKeySelector",
        "ConfigMapProjection",
        "ConfigMapVolumeSource",
        "LocalObjectReference",
        "SecretEnvSource",
        "SecretKeySelector",
        "SecretProjection",
    ];
    let name = type_name.rsplit('.').next().unwrap_or_default();
    if ANY.contains(&name) {
        *schema = json!({ "description": schema["description"] });
    }
    let unnamed = UNNAMED.contains(&name);
    let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) else { return };
    required.retain(|field| field != "metadata" && !(unnamed && field == "name"));
    if required.is_empty()
        && let Some(schema) = schema.as_object_mut()
    {
        schema.remove("required");
    }
}

/// Adds the merge rules, by which kubectl computes strategic merge patches.
pub fn annotate(type_name: &str, schema: &mut Value) {
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else {
        return;
    };
    for (field, property) in properties {
        if let Some(rule) = merge_rule(type_name, field) {
            property["x-kubernetes-patch-strategy"] = rule.strategy.into();
            if !rule.key.is_empty() {
                property["x-kubernetes-patch-merge-key"] = rule.key.into();
            }
        }
    }
}
