//! Makes types from OpenAPI schemas. Only the schemas that a kind refers to are kept, and only the
//! parts of them that matter for a type. Types are made when an expression uses them.
//! Upstream: `apiserver/pkg/cel/openapi`, its `resolver`, `cel/common.SchemaDeclType`.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use cel_compiler::{Fields, LazyFields, RESERVED, Type};
use serde::de::value::MapAccessDeserializer;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::objects::from_json;

const PREFIX: &str = "#/components/schemas/";

/// A kind with group and version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct GroupVersionKind {
    pub group: String,
    pub version: String,
    pub kind: String,
}

/// `apps/v1, Kind=Deployment`
impl fmt::Display for GroupVersionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}, Kind={}", self.group, self.version, self.kind)
    }
}

impl GroupVersionKind {
    /// Returns the key of its document in the index of `/openapi/v3`, which is also its path below
    /// that.
    pub fn document_path(&self) -> String {
        match self.group.as_str() {
            "" => format!("api/{}", self.version),
            group => format!("apis/{group}/{}", self.version),
        }
    }
}

/// The parts of a schema that matter for a type.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Schema {
    #[serde(rename = "type")]
    kind: Kind,
    format: Format,
    properties: Option<HashMap<Box<str>, Arc<Schema>>>,
    #[serde(deserialize_with = "schema_only")]
    items: Option<Arc<Schema>>,
    #[serde(rename = "additionalProperties", deserialize_with = "schema_only")]
    values: Option<Arc<Schema>>,
    #[serde(rename = "$ref")]
    reference: Option<Box<str>>,
    #[serde(rename = "allOf")]
    all_of: Vec<Reference>,
    #[serde(rename = "x-kubernetes-int-or-string")]
    int_or_string: bool,
    #[serde(rename = "x-kubernetes-embedded-resource")]
    is_embedded_resource: bool,
}

/// References with other members beside them are wrapped in this.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Reference {
    #[serde(rename = "$ref")]
    to: Option<Box<str>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Array,
    Boolean,
    Integer,
    Number,
    Object,
    String,
    #[default]
    #[serde(other)]
    Other,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Format {
    Byte,
    Date,
    DateTime,
    Duration,
    IntOrString,
    #[default]
    #[serde(other)]
    Other,
}

/// Reads a schema; a boolean or a list of schemas in its place is ignored.
fn schema_only<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Arc<Schema>>, D::Error> {
    struct SchemaVisitor;
    impl<'de> Visitor<'de> for SchemaVisitor {
        type Value = Option<Arc<Schema>>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a schema")
        }
        fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
            Ok(None)
        }
        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
            while items.next_element::<IgnoredAny>()?.is_some() {}
            Ok(None)
        }
        fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Self::Value, A::Error> {
            Schema::deserialize(MapAccessDeserializer::new(members)).map(|s| Some(Arc::new(s)))
        }
    }
    input.deserialize_any(SchemaVisitor)
}

impl Schema {
    /// Returns the name of the schema that this one refers to, itself or in `allOf`, as documents
    /// write a reference that has a description.
    fn reference(&self) -> Option<&str> {
        let wrapped = self.all_of.iter().find_map(|reference| reference.to.as_deref());
        let path = self.reference.as_deref().or(wrapped)?;
        Some(path.strip_prefix(PREFIX).unwrap_or(path))
    }

    /// Returns the schemas directly inside this one.
    fn children(&self) -> impl Iterator<Item = &Arc<Schema>> {
        self.properties.iter().flat_map(HashMap::values).chain(&self.items).chain(&self.values)
    }
}

/// A kind's schema and all that it refers to.
#[derive(Debug)]
pub struct Definitions {
    root: String,
    schemas: HashMap<String, Arc<Schema>>,
}

#[derive(Deserialize)]
struct Document<'a> {
    #[serde(borrow)]
    components: Components<'a>,
}

#[derive(Deserialize)]
struct Components<'a> {
    #[serde(borrow)]
    schemas: HashMap<String, &'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SchemaKinds {
    #[serde(rename = "x-kubernetes-group-version-kind")]
    kinds: Vec<GroupVersionKind>,
}

impl Definitions {
    /// Reads the schema of `kind`, with those that it refers to, from the document of its group
    /// version; `None` if it is not in there.
    pub fn read(
        document: &[u8],
        kind: &GroupVersionKind,
    ) -> serde_json::Result<Option<Definitions>> {
        let Document { components: Components { schemas: all } } =
            serde_json::from_slice(document)?;
        let mut root = None;
        for (name, raw) in &all {
            let SchemaKinds { kinds } = from_json(raw.get())?;
            if kinds.contains(kind) {
                root = Some(name.clone());
                break;
            }
        }
        let Some(root) = root else { return Ok(None) };
        let mut schemas: HashMap<String, Arc<Schema>> = HashMap::new();
        let mut to_read = vec![root.clone()];
        while let Some(name) = to_read.pop() {
            if schemas.contains_key(&name) {
                continue;
            }
            let raw = all.get(&name).ok_or_else(|| {
                serde::de::Error::custom(format_args!("cannot resolve Ref {name:?}"))
            })?;
            let schema: Arc<Schema> = from_json(raw.get())?;
            let mut to_visit = vec![&schema];
            while let Some(schema) = to_visit.pop() {
                to_read.extend(schema.reference().map(str::to_owned));
                to_visit.extend(schema.children());
            }
            schemas.insert(name, schema);
        }
        Ok(Some(Definitions { root, schemas }))
    }

    /// Returns the type of the kind's objects, with the name `name`; `None` if the schema has no
    /// type, so that the value is dynamic.
    pub fn root_type(self: &Arc<Self>, name: &str) -> Option<Type> {
        let schema = self.schemas.get(&self.root)?.clone();
        let path = FollowedReferences::default().with(&self.root);
        SchemaNode { definitions: self.clone(), schema, path, is_resource: true }.into_type(name)
    }
}

/// The references on the path to a schema, as a linked list. A reference to one of them is
/// circular, and becomes an empty object.
#[derive(Clone, Default)]
struct FollowedReferences(Option<Arc<(String, FollowedReferences)>>);

impl FollowedReferences {
    /// Returns the path with `reference` appended.
    fn with(&self, reference: &str) -> FollowedReferences {
        FollowedReferences(Some(Arc::new((reference.to_owned(), self.clone()))))
    }

    fn contains(&self, reference: &str) -> bool {
        match self.0.as_deref() {
            Some((last, before)) => last == reference || before.contains(reference),
            None => false,
        }
    }
}

/// A schema, the definitions that its references name, and the references already followed.
struct SchemaNode {
    definitions: Arc<Definitions>,
    schema: Arc<Schema>,
    path: FollowedReferences,
    /// Whether it is an object with at least `apiVersion`, `kind` and a name.
    is_resource: bool,
}

impl SchemaNode {
    /// Returns the node of a schema inside this one, with its reference followed.
    fn resolve(&self, schema: &Arc<Schema>) -> SchemaNode {
        let definitions = self.definitions.clone();
        let Some(reference) = schema.reference() else {
            let (schema, path) = (schema.clone(), self.path.clone());
            return SchemaNode {
                definitions,
                is_resource: schema.is_embedded_resource,
                schema,
                path,
            };
        };
        let schema = match definitions.schemas.get(reference) {
            Some(target) if !self.path.contains(reference) => target.clone(),
            // The reference is circular.
            _ => Arc::new(Schema { kind: Kind::Object, ..Schema::default() }),
        };
        let path = self.path.with(reference);
        SchemaNode { definitions, is_resource: schema.is_embedded_resource, schema, path }
    }

    /// Returns the type of the values that the schema allows, with the name `name` for objects;
    /// `None` if the schema has no type.
    fn into_type(self, name: &str) -> Option<Type> {
        let schema = &self.schema;
        if schema.int_or_string || schema.format == Format::IntOrString {
            return Some(Type::Dyn);
        }
        match schema.kind {
            Kind::Array => {
                let items = self.resolve(schema.items.as_ref()?);
                Some(Type::list(items.into_type(&format!("{name}.@idx"))?))
            }
            Kind::Object => match &schema.values {
                Some(values) => {
                    let value = self.resolve(values).into_type(&format!("{name}.@elem"))?;
                    Some(Type::map(Type::String, value))
                }
                None => Some(Type::structure(name, Fields::Lazy(Box::new(self)))),
            },
            Kind::String => Some(match schema.format {
                Format::Byte => Type::Bytes,
                Format::Duration => Type::Duration,
                Format::Date | Format::DateTime => Type::Timestamp,
                Format::IntOrString | Format::Other => Type::String,
            }),
            Kind::Boolean => Some(Type::Bool),
            Kind::Number => Some(Type::Double),
            Kind::Integer => Some(Type::Int),
            Kind::Other => None,
        }
    }

    /// Returns the node of the property of this name.
    fn property(&self, name: &str) -> Option<SchemaNode> {
        self.schema.properties.as_ref()?.get(name).map(|schema| self.resolve(schema))
    }

    /// Returns whether the schema itself has the fields of every resource.
    fn has_metadata(&self) -> bool {
        let has_string = |node: &SchemaNode, name| {
            node.property(name).is_some_and(|property| property.schema.kind == Kind::String)
        };
        let Some(metadata) = self.property("metadata") else { return false };
        metadata.schema.kind == Kind::Object
            && has_string(self, "kind")
            && has_string(self, "apiVersion")
            && has_string(&metadata, "name")
            && has_string(&metadata, "generateName")
    }

    /// Returns the type of the field that expressions call `name`, in the object type `type_name`.
    /// A resource has `kind`, `apiVersion` and `metadata` even if its schema lacks them.
    fn field_type(&self, type_name: &str, name: &str) -> Option<Type> {
        if self.is_resource && !self.has_metadata() {
            match name {
                "kind" | "apiVersion" => return Some(Type::String),
                "metadata" => {
                    let fields = ["name", "generateName"];
                    let fields = fields.map(|field| (field.to_owned(), Type::String)).into();
                    let name = format!("{type_name}.{name}");
                    return Some(Type::structure(name, Fields::Known(fields)));
                }
                _ => {}
            }
        }
        let names = self.schema.properties.as_ref()?.keys();
        let property = names.into_iter().find(|known| escape(known).as_deref() == Some(name))?;
        self.property(property)?.into_type(&format!("{type_name}.{name}"))
    }
}

impl LazyFields for SchemaNode {
    /// Returns the type of a field. A reserved word is also a name of the field with its escaped
    /// name.
    fn field(&self, type_name: &str, name: &str) -> Option<Type> {
        match self.field_type(type_name, name) {
            None if RESERVED.contains(&name) => self.field_type(type_name, &format!("__{name}__")),
            found => found,
        }
    }
}

/// Escapes a property's name so that it is an identifier; `None` if that is impossible.
/// Upstream: `cel.Escape`.
fn escape(name: &str) -> Option<String> {
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if RESERVED.contains(&name) {
        return Some(format!("__{name}__"));
    }
    let mut escaped = String::new();
    let mut characters = name.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '_' if characters.next_if_eq(&'_').is_some() => escaped.push_str("__underscores__"),
            '.' => escaped.push_str("__dot__"),
            '-' => escaped.push_str("__dash__"),
            '/' => escaped.push_str("__slash__"),
            '_' => escaped.push('_'),
            c if c.is_ascii_alphanumeric() => escaped.push(c),
            _ => return None,
        }
    }
    Some(escaped)
}

#[cfg(test)]
mod tests {
    use cel_compiler::Environment;
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_escaped() {
        for (name, expected) in [
            ("replicas", Some("replicas")),
            ("foo-bar.x/y", Some("foo__dash__bar__dot__x__slash__y")),
            ("a__b_c", Some("a__underscores__b_c")),
            ("namespace", Some("__namespace__")),
            ("0a", None),
            ("$ref", None),
        ] {
            assert_eq!(escape(name).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn fields_have_the_types_of_their_schemas() {
        let reference = |name: &str| json!({ "allOf": [{ "$ref": format!("{PREFIX}{name}") }] });
        let document = json!({ "components": { "schemas": {
            "Unused": { "type": ["broken"] },
            "Node": { "type": "object", "properties": {
                "next": reference("Node"), "leaf": { "type": "integer", "format": "int64" } } },
            "Root": {
                "x-kubernetes-group-version-kind": [{ "group": "g", "version": "v1", "kind": "K" }],
                "type": "object",
                "properties": {
                    "tree": reference("Node"),
                    "many": { "type": "array", "items": reference("Node") },
                    "map": { "type": "object", "additionalProperties": reference("Node") },
                    "open": { "type": "object", "additionalProperties": true },
                    "either": { "x-kubernetes-int-or-string": true },
                    "port": { "oneOf": [], "format": "int-or-string" },
                    "nothing": { "oneOf": [{ "type": "string" }] },
                    "when": { "type": "string", "format": "date-time" },
                    "raw": { "type": "string", "format": "byte" },
                    "package": { "type": "boolean" },
                    "inner": { "type": "object", "x-kubernetes-embedded-resource": true },
                },
            },
        } } });
        let kind = GroupVersionKind { group: "g".into(), version: "v1".into(), kind: "K".into() };
        let document = document.to_string();
        let definitions = Arc::new(Definitions::read(document.as_bytes(), &kind).unwrap().unwrap());
        let mut environment = Environment::default();
        environment.variables.insert("object", definitions.root_type("K7").unwrap());
        for (expression, expected) in [
            ("object.tree", "K7.tree"),
            ("object.tree.leaf", "int"),
            // A reference to itself ends there.
            ("object.tree.next", "K7.tree.next"),
            ("object.many", "list(K7.many.@idx)"),
            ("object.map['x'].leaf", "int"),
            ("object.map", "map(string, K7.map.@elem)"),
            ("object.open", "K7.open"),
            ("object.either", "dyn"),
            ("object.port", "dyn"),
            ("object.when", "timestamp"),
            ("object.raw", "bytes"),
            ("object.package", "bool"),
            ("object.__package__", "bool"),
            ("object.kind", "string"),
            ("object.metadata.name", "string"),
            ("object.inner.metadata.generateName", "string"),
        ] {
            let found = environment.compile(expression).map(|result| result.to_string());
            assert_eq!(found.as_deref(), Ok(expected), "{expression}");
        }
        for expression in ["object.nothing", "object.tree.next.leaf", "object.metadata.labels"] {
            let found = environment.compile(expression).unwrap_err();
            assert!(found.contains("undefined field"), "{found}");
        }
        let other = GroupVersionKind { kind: "Other".into(), ..kind };
        assert!(Definitions::read(document.as_bytes(), &other).unwrap().is_none());
    }
}
