//! The schemas of the built-in kinds, generated group by group when first asked for.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::kinds::Kind;
use crate::types::roots::add;
use crate::types::schema_fixes::{add_field_rules, annotate, convert, extend, relax};

pub type Definitions = Map<String, Value>;
pub const SCHEMAS: &str = "#/components/schemas/";
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";

/// The schemas of a built-in kind: the root type and all it refers to.
pub struct Types {
    /// `io.k8s.api.apps.v1.Deployment`
    pub root: String,
    pub definitions: Arc<Definitions>,
}

impl Types {
    pub fn schema(&self, type_name: &str) -> Option<&Value> {
        self.definitions.get(type_name)
    }

    /// Returns the type of a field, or of the items or values of one; `None` for plain values.
    pub fn field(&self, type_name: &str, field: &str) -> Option<&str> {
        let schema = self.definitions.get(type_name)?.get("properties")?.get(field)?;
        [Some(schema), schema.get("items"), schema.get("additionalProperties")]
            .into_iter()
            .flatten()
            .find_map(reference)
    }
}

/// Returns the name to which a schema refers, directly or in its `allOf`.
pub fn reference(schema: &Value) -> Option<&str> {
    let direct = schema.get("$ref").or_else(|| schema.get("allOf")?.get(0)?.get("$ref"));
    direct?.as_str()?.strip_prefix(SCHEMAS)
}

/// The schemas of all built-in kinds of a group, and the type of each kind.
pub struct Group {
    pub definitions: Arc<Definitions>,
    roots: HashMap<(String, String), String>,
}

/// Returns how a kind's type is found: by its group, with the version where there are two, and its
/// kind.
fn root_key(kind: &Kind) -> (String, String) {
    let resource = &kind.resource;
    let group = match (&*resource.group, &*resource.version) {
        ("autoscaling", "v1") => "autoscaling/v1",
        (group, _) => group,
    };
    (group.to_owned(), resource.kind.to_string())
}

/// Returns the schemas of all built-in kinds of a group. They are generated at the first call, and
/// kept.
pub fn builtin_group(name: &str) -> Arc<Group> {
    static GROUPS: OnceLock<Mutex<HashMap<String, Arc<Group>>>> = OnceLock::new();
    let groups = GROUPS.get_or_init(Mutex::default);
    let mut groups = groups.lock();
    if let Some(group) = groups.get(name) {
        return group.clone();
    }
    let mut settings = SchemaSettings::openapi3();
    settings.definitions_path = "/components/schemas".into();
    let mut generator = settings.into_generator();
    let mut roots = HashMap::new();
    let mut kinds = crate::kinds::builtin();
    kinds.extend(crate::kinds::behind_gates());
    for kind in kinds.iter().filter(|kind| kind.resource.group == name) {
        let key = root_key(kind);
        if let Some(root) = add(&mut generator, &key.0, &key.1) {
            roots.insert(key, root);
        }
    }
    let mut definitions: Definitions = generator.take_definitions(true);
    // The API accepts numbers as quantities too.
    if let Some(quantity) = definitions.get_mut(QUANTITY) {
        *quantity = json!({ "oneOf": [{ "type": "string" }, { "type": "number" }] });
    }
    for (type_name, schema) in &mut definitions {
        convert(schema);
        extend(type_name, schema);
        relax(type_name, schema);
        add_field_rules(type_name, schema);
        annotate(type_name, schema);
    }
    for kind in kinds.iter().filter(|kind| kind.resource.group == name) {
        if let Some(root) = roots.get(&root_key(kind)) {
            definitions[root]["x-kubernetes-group-version-kind"] = json!([gvk(kind)]);
        }
    }
    let group = Arc::new(Group { definitions: Arc::new(definitions), roots });
    groups.insert(name.to_owned(), group.clone());
    group
}

/// Returns the types that a strategic merge patch of a built-in kind walks.
pub fn types_of(kind: &Kind) -> Arc<Types> {
    let group = builtin_group(&kind.resource.group);
    let root = group.roots.get(&root_key(kind)).cloned().unwrap_or_default();
    Arc::new(Types { root, definitions: group.definitions.clone() })
}

/// Returns the types of the metadata that every kind has; no root.
pub fn meta_types() -> Arc<Types> {
    // Any built-in group has them; this one is small.
    let group = builtin_group("coordination.k8s.io");
    Arc::new(Types { root: String::new(), definitions: group.definitions.clone() })
}

pub fn gvk(kind: &Kind) -> Value {
    let resource = &kind.resource;
    json!({ "group": resource.group, "version": resource.version, "kind": resource.kind })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::{behind_gates, builtin};
    use crate::types::schema_fixes::FIELDS;

    #[test]
    fn every_field_of_the_table_exists() {
        let mut kinds = builtin();
        kinds.extend(behind_gates());
        let mut known: HashMap<&str, Arc<Types>> = HashMap::new();
        for kind in &kinds {
            known.entry(&kind.resource.group).or_insert_with(|| types_of(kind));
        }
        for line in FIELDS.lines() {
            let (type_name, fields) = line.split_once(' ').unwrap();
            let suffix = format!(".{type_name}");
            let schema = known.values().find_map(|types| {
                types.definitions.iter().find(|(name, _)| name.ends_with(&suffix))
            });
            let (_, schema) = schema.unwrap_or_else(|| panic!("no type {type_name}"));
            for field in fields.split(' ') {
                let field = field.split(['=', ':']).next().unwrap();
                let of = &schema["properties"][field];
                let known = field == "-" || of.get("description").is_some();
                assert!(known, "{type_name} has no field {field}");
            }
        }
    }
}
