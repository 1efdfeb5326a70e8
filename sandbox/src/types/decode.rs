//! Reads bodies by the types of their kind; finds unknown and duplicate members and wrong types.
//! Upstream: `apimachinery/pkg/runtime/serializer/json`, `sigs.k8s.io/json`.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::kinds::Kind;
use crate::types::schemas::reference;
use crate::types::shape::{Schemas, Shape};
use kube_controller_manager::objects::Quantity;

/// Returns the last part of a type's name, when `schema` refers to one.
fn type_name(schema: &Value) -> Option<&str> {
    reference(schema)?.rsplit('.').next()
}

/// Formats a schema's type as Go would print it.
fn go_type(schema: &Value) -> String {
    if let Some(name) = reference(schema) {
        let mut parts = name.rsplit('.');
        let (kind, version) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        return format!("{version}.{kind}");
    }
    match (schema["type"].as_str().unwrap_or_default(), schema["format"].as_str()) {
        ("integer", Some(format)) => format.to_owned(),
        ("integer", None) => "int".to_owned(),
        ("number", _) => "float64".to_owned(),
        ("boolean", _) => "bool".to_owned(),
        ("array", _) => format!("[]{}", go_type(&schema["items"])),
        ("object", _) => format!("map[string]{}", go_type(&schema["additionalProperties"])),
        (other, _) => other.to_owned(),
    }
}

/// The faults found in a body.
#[derive(Debug, Default)]
pub struct Found {
    duplicate: Vec<(usize, String)>,
    unknown: Vec<(usize, String)>,
    /// The first value of a wrong type.
    pub mismatch: Option<String>,
}

impl Found {
    /// Returns the number of faults so far, which orders the next one.
    fn next(&self) -> usize {
        self.duplicate.len() + self.unknown.len()
    }

    /// Returns the paths of the members that the types don't know.
    pub fn unknown(&self) -> impl Iterator<Item = &str> {
        self.unknown.iter().map(|(_, fault)| {
            fault.strip_prefix("unknown field ").unwrap_or(fault).trim_matches('"')
        })
    }

    /// Lists the faults in the order of the body; for custom kinds duplicates come first.
    pub fn faults(mut self, custom: bool) -> Vec<String> {
        let from = self.duplicate.len();
        self.duplicate.append(&mut self.unknown);
        if !custom {
            self.duplicate.sort_by_key(|(at, _)| *at);
        } else {
            self.duplicate[from..].sort_by(|(_, a), (_, b)| a.cmp(b));
        }
        self.duplicate.into_iter().map(|(_, fault)| fault).collect()
    }
}

/// The position of the reader.
#[derive(Clone, Copy)]
struct Place<'p> {
    before: Option<&'p Place<'p>>,
    step: Step<'p>,
    /// The innermost type with members: errors name it.
    owner: &'p str,
    /// The type that the value must have.
    schema: Option<&'p Value>,
}

#[derive(Clone, Copy)]
enum Step<'p> {
    Root,
    Member(&'p str),
    Item(usize),
}

impl Place<'_> {
    /// Formats the path of a place, such as `spec.containers[0].image`, or without the numbers.
    fn path(&self, numbers: bool) -> String {
        let mut path = self.before.map(|before| before.path(numbers)).unwrap_or_default();
        match self.step {
            Step::Root => {}
            Step::Member(name) => {
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(name);
            }
            Step::Item(n) if numbers => path.push_str(&format!("[{n}]")),
            Step::Item(_) => {}
        }
        path
    }
}

struct Reader<'a, 'f, 'p> {
    shape: Shape<'a>,
    place: Place<'p>,
    found: &'f mut Found,
}

impl Reader<'_, '_, '_> {
    /// Records a value that does not fit the type. `json`: the value's JSON type; `shown`: a number
    /// that the type cannot hold.
    fn expect(&mut self, json: &str, shown: Option<String>) {
        let Some(schema) = self.place.schema.filter(|_| self.found.mismatch.is_none()) else {
            return;
        };
        let own_schema = if let Shape::Typed { schema, .. } = self.shape { schema } else { schema };
        let takes = match type_name(schema) {
            Some("Quantity" | "IntOrString") => matches!(json, "string" | "number"),
            Some("Time" | "MicroTime") => json == "string",
            _ => match own_schema["type"].as_str() {
                Some("integer") => json == "number" && shown.is_none(),
                Some("number") => json == "number",
                Some("boolean") => json == "bool",
                Some(wanted) => wanted == json,
                None => true,
            },
        };
        if takes {
            return;
        }
        // A map's values are named by the map's own place.
        let path = match (self.place.before, self.place.step) {
            (Some(map), Step::Member(_))
                if map.schema.is_some_and(|of| of["additionalProperties"].is_object()) =>
            {
                map.path(false)
            }
            _ => self.place.path(false),
        };
        let owner = self.place.owner;
        let value = shown.map_or_else(|| json.to_owned(), |number| format!("number {number}"));
        self.found.mismatch = Some(format!(
            "json: cannot unmarshal {value} into Go struct field {owner}.{path} of type {}",
            go_type(schema)
        ));
    }

    /// Accepts a number; records it as unexpected where the schema wants another type, an integer,
    /// or one of 32 bits.
    fn number(mut self, number: Value) -> Value {
        let own = match self.shape {
            Shape::Typed { schema, .. } => Some(schema),
            _ => None,
        };
        let format = own.and_then(|schema| schema["format"].as_str());
        let fits = match (number.as_i64(), format) {
            (Some(int), Some("int32")) => i32::try_from(int).is_ok(),
            (Some(_), _) => true,
            (None, _) => own.is_none_or(|schema| schema["type"] != "integer"),
        };
        self.expect("number", (!fits).then(|| number.to_string()));
        number
    }

    /// Records a mismatch if a string does not fit its schema: a quantity, base64 or a time.
    fn check_text(&mut self, text: &str) {
        if self.place.schema.and_then(type_name) == Some("Quantity")
            && let Err(error) = text.parse::<Quantity>()
        {
            self.found.mismatch.get_or_insert(error.to_string());
        }
        let own = match self.shape {
            Shape::Typed { schema, .. } => schema,
            _ => return,
        };
        let fault = match own["format"].as_str() {
            Some("byte") => match STANDARD.decode(text.replace(['\n', '\r'], "")) {
                Err(
                    base64::DecodeError::InvalidByte(at, _)
                    | base64::DecodeError::InvalidLastSymbol(at, _),
                ) => format!("illegal base64 data at input byte {at}"),
                Err(_) => format!("illegal base64 data at input byte {}", text.len()),
                Ok(_) => return,
            },
            Some("date-time")
                if text.parse::<kube_controller_manager::objects::Timestamp>().is_err() =>
            {
                format!(
                    "parsing time {text:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse {text:?} as \"2006\""
                )
            }
            _ => return,
        };
        self.found.mismatch.get_or_insert(fault);
    }
}

impl<'de> DeserializeSeed<'de> for Reader<'_, '_, '_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, body: D) -> Result<Value, D::Error> {
        body.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_, '_, '_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    /// An empty YAML document, which is null as in Go.
    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(mut self, value: bool) -> Result<Value, E> {
        self.expect("bool", None);
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(self.number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(self.number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(self.number(value.into()))
    }

    fn visit_str<E>(mut self, value: &str) -> Result<Value, E> {
        self.expect("string", None);
        self.check_text(value);
        Ok(value.into())
    }

    fn visit_string<E>(mut self, value: String) -> Result<Value, E> {
        self.expect("string", None);
        self.check_text(&value);
        Ok(value.into())
    }

    /// Reads a list, each item by the type of the items.
    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<Value, A::Error> {
        self.expect("array", None);
        let schema = match self.shape {
            Shape::Typed { schema, .. } => schema.get("items"),
            _ => None,
        };
        let mut list = Vec::new();
        loop {
            let place = Place {
                before: Some(&self.place),
                step: Step::Item(list.len()),
                owner: self.place.owner,
                schema,
            };
            let item = Reader { shape: self.shape.item(), place, found: self.found };
            match items.next_element_seed(item)? {
                Some(item) => list.push(item),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    /// Reads an object, and records fields that are unknown or duplicate.
    fn visit_map<A: MapAccess<'de>>(mut self, mut members: A) -> Result<Value, A::Error> {
        self.expect("object", None);
        let schema_of = |key: &str| match self.shape {
            Shape::Typed { schema, .. } => schema
                .get("properties")
                .and_then(|properties| properties.get(key))
                .or(schema.get("additionalProperties").filter(|of| of.is_object())),
            _ => None,
        };
        let owner = match self.shape {
            Shape::Typed { schema, .. } if schema.get("properties").is_some() => {
                self.place.schema.and_then(type_name).unwrap_or(self.place.owner)
            }
            _ => self.place.owner,
        };
        let mut map = Map::new();
        while let Some(key) = members.next_key::<String>()? {
            let place = Place {
                before: Some(&self.place),
                step: Step::Member(&key),
                owner,
                schema: schema_of(&key),
            };
            let at = self.found.next();
            let Some(shape) = self.shape.member(&key) else {
                let fault = format!("unknown field {:?}", place.path(true));
                if !self.found.unknown.iter().any(|(_, known)| *known == fault) {
                    self.found.unknown.push((at, fault));
                }
                members.next_value::<serde::de::IgnoredAny>()?;
                continue;
            };
            if map.contains_key(&key) {
                let fault = format!("duplicate field {:?}", place.path(true));
                self.found.duplicate.push((at, fault));
            }
            let value = members.next_value_seed(Reader { shape, place, found: self.found })?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

/// Reads `body` by the types of `kind`, or by none. Drops what the types don't know.
pub fn read<'de, D: Deserializer<'de>>(
    kind: Option<&Kind>,
    body: D,
) -> Result<(Value, Found), D::Error> {
    let mut found = Found::default();
    let schemas = kind.map(Schemas::of);
    let shape = schemas.as_ref().map_or(Shape::Open, Schemas::root);
    let owner = kind.map_or("", |kind| &kind.resource.kind);
    let place = Place { before: None, step: Step::Root, owner, schema: None };
    let value = Reader { shape, place, found: &mut found }.deserialize(body)?;
    Ok((value, found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::{builtin, from_crd};
    use serde_json::json;

    fn kind(plural: &str) -> Kind {
        builtin().into_iter().find(|kind| kind.resource.plural == plural).unwrap()
    }

    fn found(kind: &Kind, body: &str) -> (Value, Found) {
        read(Some(kind), &mut serde_json::Deserializer::from_str(body)).unwrap()
    }

    #[test]
    fn unknown_and_duplicate_fields_are_named_in_their_order() {
        let body = r#"{"metadata":{"name":"bad","name":"worse","foo":1},"dat":{"a":"b"},
            "data":{"x":"1","x":"2"},"binaryData":null}"#;
        let (map, faults) = found(&kind("configmaps"), body);
        assert_eq!(
            map,
            json!({"metadata": {"name": "worse"}, "data": {"x": "2"}, "binaryData": null})
        );
        let expected = [
            "duplicate field \"metadata.name\"",
            "unknown field \"metadata.foo\"",
            "unknown field \"dat\"",
            "duplicate field \"data.x\"",
        ];
        assert_eq!(faults.faults(false), expected);
        let body = r#"{"spec":{"foo":1,"containers":[{"name":"a","imag":"x"}]}}"#;
        let (_, faults) = found(&kind("pods"), body);
        let expected = ["unknown field \"spec.foo\"", "unknown field \"spec.containers[0].imag\""];
        assert_eq!(faults.faults(false), expected);
    }

    #[test]
    fn custom_kinds_are_decoded_by_their_schema() {
        let crd = json!({"metadata": {"name": "foos.x.io"}, "spec": {"group": "x.io", "scope": "Cluster",
            "names": {"kind": "Foo", "plural": "foos"}, "versions": [{"name": "v1", "served": true,
            "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec":
            {"type": "object", "properties": {"a": {"type": "integer"}, "any": {"type": "object",
            "x-kubernetes-preserve-unknown-fields": true}, "l": {"type": "array", "items": {"type":
            "object", "properties": {"n": {"type": "string"}}}}}}}}}}]}});
        let foo = from_crd(&crd).unwrap().remove(0);
        let body = r#"{"apiVersion":"x.io/v1","kind":"Foo","metadata":{"name":"x","foo":1},"zz":1,
            "spec":{"b":1,"a":2,"a":3,"l":[{"n":"x","m":1}],"any":{"x":1}}}"#;
        let (object, faults) = found(&foo, body);
        assert_eq!(object["spec"], json!({"a": 3, "l": [{"n": "x"}], "any": {"x": 1}}));
        let expected = [
            "duplicate field \"spec.a\"",
            "unknown field \"metadata.foo\"",
            "unknown field \"spec.b\"",
            "unknown field \"spec.l[0].m\"",
            "unknown field \"zz\"",
        ];
        assert_eq!(faults.faults(true), expected);
    }

    /// The messages are a real 1.36 server's.
    #[test]
    fn values_of_a_wrong_type_are_named_as_go_names_them() {
        let deployment = kind("deployments");
        for (body, message) in [
            (
                r#"{"spec":{"replicas":"3"}}"#,
                "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32",
            ),
            (
                r#"{"spec":{"replicas":3.5}}"#,
                "json: cannot unmarshal number 3.5 into Go struct field DeploymentSpec.spec.replicas of type int32",
            ),
            (
                r#"{"spec":{"replicas":9999999999999}}"#,
                "json: cannot unmarshal number 9999999999999 into Go struct field DeploymentSpec.spec.replicas of type int32",
            ),
            (
                r#"{"spec":{"template":{"spec":{"containers":[{"image":5}]}}}}"#,
                "json: cannot unmarshal number into Go struct field Container.spec.template.spec.containers.image of type string",
            ),
            (
                r#"{"spec":{"template":{"spec":{"containers":{}}}}}"#,
                "json: cannot unmarshal object into Go struct field PodSpec.spec.template.spec.containers of type []v1.Container",
            ),
            (
                r#"{"spec":{"template":{"spec":{"containers":["x"]}}}}"#,
                "json: cannot unmarshal string into Go struct field PodSpec.spec.template.spec.containers of type v1.Container",
            ),
            (
                r#"{"metadata":{"labels":{"a":1}}}"#,
                "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
            ),
            (
                r#"{"metadata":{"labels":"x"}}"#,
                "json: cannot unmarshal string into Go struct field ObjectMeta.metadata.labels of type map[string]string",
            ),
            (
                r#"{"spec":[]}"#,
                "json: cannot unmarshal array into Go struct field Deployment.spec of type v1.DeploymentSpec",
            ),
            (
                r#"{"spec":{"template":{"spec":{"hostNetwork":"true"}}}}"#,
                "json: cannot unmarshal string into Go struct field PodSpec.spec.template.spec.hostNetwork of type bool",
            ),
            (
                r#"{"metadata":{"creationTimestamp":"x"}}"#,
                "parsing time \"x\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"x\" as \"2006\"",
            ),
        ] {
            assert_eq!(found(&deployment, body).1.mismatch.as_deref(), Some(message), "{body}");
        }
        let fine = r#"{"metadata":{"creationTimestamp":null,"labels":null},"spec":{"replicas":3,
            "strategy":{"rollingUpdate":{"maxSurge":1,"maxUnavailable":"1"}},"template":{"spec":
            {"containers":[{"resources":{"limits":{"cpu":1,"memory":"1Gi"}}}]}}}}"#;
        assert_eq!(found(&deployment, fine).1.mismatch, None);
        let secret = found(&kind("secrets"), r#"{"data":{"a":"!"}}"#).1.mismatch;
        assert_eq!(secret.as_deref(), Some("illegal base64 data at input byte 0"));
    }
}
