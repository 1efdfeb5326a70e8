//! The shape of an object's parts, from the types of built-in kinds or the schema of a custom one.

use std::sync::Arc;

use serde_json::Value;

use crate::kinds::Kind;
use crate::types::schemas::{Types, meta_types, reference, types_of};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// The known type of a value.
#[derive(Clone, Copy)]
pub enum Shape<'a> {
    /// Unknown: any value is valid.
    Open,
    /// A type of the built-in kinds.
    Typed { types: &'a Types, schema: &'a Value },
    /// A part of a custom kind's schema; `resource`: with apiVersion, kind and metadata.
    Custom { meta: &'a Types, schema: &'a Value, resource: bool },
}

impl<'a> Shape<'a> {
    fn typed(types: &'a Types, name: &str) -> Shape<'a> {
        types.schema(name).map_or(Shape::Open, |schema| Shape::Typed { types, schema })
    }

    /// Returns the shape of a member; `None` when it does not exist.
    pub fn member(self, key: &str) -> Option<Shape<'a>> {
        match self {
            Shape::Open => Some(Shape::Open),
            Shape::Typed { types, schema } => {
                let properties = schema.get("properties");
                let values = schema
                    .get("additionalProperties")
                    .filter(|member_schema| member_schema.is_object());
                // Without either the type is open, as raw extensions are.
                if properties.is_none() && values.is_none() {
                    return Some(Shape::Open);
                }
                let member_schema =
                    properties.and_then(|properties| properties.get(key)).or(values)?;
                Some(Shape::Typed { types, schema: member_schema }.resolved())
            }
            Shape::Custom { meta, schema, resource } => {
                match key {
                    "apiVersion" | "kind" if resource => return Some(Shape::Open),
                    "metadata" if resource => return Some(Shape::typed(meta, META)),
                    _ => {}
                }
                let property = schema.get("properties").and_then(|properties| properties.get(key));
                let values = schema
                    .get("additionalProperties")
                    .filter(|member_schema| **member_schema != false);
                match property.or(values) {
                    Some(member_schema) => Some(Shape::Custom {
                        meta,
                        schema: member_schema,
                        resource: member_schema["x-kubernetes-embedded-resource"] == true,
                    }),
                    None if schema["x-kubernetes-preserve-unknown-fields"] == true => {
                        Some(Shape::Open)
                    }
                    None => None,
                }
            }
        }
    }

    /// Returns the shape of the items of a list of this shape.
    pub fn item(self) -> Shape<'a> {
        match self {
            Shape::Open => Shape::Open,
            Shape::Typed { types, schema } => schema
                .get("items")
                .map_or(Shape::Open, |schema| Shape::Typed { types, schema }.resolved()),
            Shape::Custom { meta, schema, .. } => match schema.get("items") {
                Some(of) => Shape::Custom {
                    meta,
                    schema: of,
                    resource: of["x-kubernetes-embedded-resource"] == true,
                },
                None => Shape::Open,
            },
        }
    }

    /// Returns the type itself, in place of a reference to it.
    fn resolved(self) -> Shape<'a> {
        match self {
            Shape::Typed { types, schema } => match reference(schema) {
                Some(name) => Shape::typed(types, name),
                None => self,
            },
            other => other,
        }
    }

    fn schema(self) -> Option<&'a Value> {
        match self {
            Shape::Open => None,
            Shape::Typed { schema, .. } | Shape::Custom { schema, .. } => Some(schema),
        }
    }

    /// Returns whether a member is one that the type names, not a key of a map.
    pub fn names(self, key: &str) -> bool {
        let of_resource = matches!(self, Shape::Custom { resource: true, .. })
            && matches!(key, "apiVersion" | "kind" | "metadata");
        let properties = self.schema().and_then(|schema| schema.get("properties"));
        of_resource || properties.is_some_and(|properties| properties.get(key).is_some())
    }

    /// Returns whether an object of this shape has one owner as a whole.
    pub fn is_atomic(self) -> bool {
        self.schema().is_some_and(|schema| schema["x-kubernetes-map-type"] == "atomic")
    }

    /// Returns how the items of a list of this shape are identified.
    pub fn items(self) -> Items<'a> {
        let Some(schema) = self.schema() else { return Items::Atomic };
        match schema["x-kubernetes-list-type"].as_str() {
            Some("set") => Items::Set,
            Some("map") => match schema["x-kubernetes-list-map-keys"].as_array() {
                Some(keys) => Items::Map(keys),
                None => Items::Atomic,
            },
            _ => Items::Atomic,
        }
    }

    /// Returns the default of a key of a list's item.
    pub fn key_default(self, key: &str) -> Value {
        let own = self.schema().and_then(|schema| schema["properties"][key].get("default"));
        match own {
            Some(default) => default.clone(),
            // The one such default of the built-in kinds.
            None if key == "protocol" => "TCP".into(),
            None => Value::Null,
        }
    }
}

/// How the items of a list are identified.
#[derive(Clone, Copy)]
pub enum Items<'a> {
    /// Not at all: the list is one value.
    Atomic,
    /// By their value.
    Set,
    /// By these members.
    Map(&'a [Value]),
}

/// The schemas that the objects of a kind follow.
pub struct Schemas<'a> {
    kind: &'a Kind,
    types: Arc<Types>,
}

impl<'a> Schemas<'a> {
    pub fn of(kind: &'a Kind) -> Schemas<'a> {
        let types = if kind.is_custom() { meta_types() } else { types_of(kind) };
        Schemas { kind, types }
    }

    /// Returns the shape of a whole object.
    pub fn root(&self) -> Shape<'_> {
        match &self.kind.schema {
            Some(schema) => Shape::Custom { meta: &self.types, schema, resource: true },
            None => Shape::typed(&self.types, &self.types.root),
        }
    }
}
