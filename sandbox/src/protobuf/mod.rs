//! Kubernetes' protobuf form of objects: request bodies, as typed clients send them (kubectl's
//! `create`, `expose`, `auth` ...), are turned into JSON, and answers are made from JSON, by one
//! table of the messages. Upstream: `apimachinery/pkg/runtime/serializer/protobuf`.

mod encode;
mod table;

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use crate::failures;
use crate::status::ApiResult;
use kube_controller_manager::objects::Timestamp;
pub use kube_controller_manager::objects::protobuf::MEDIA_TYPE;
use kube_controller_manager::objects::protobuf::{MAGIC, Wire, field};

pub use encode::{answer, encode, envelope, event, knows, list, message};
use table::{Shape, Type, table};

/// The limit of nesting: no message of the API nests as deeply.
const MAX_DEPTH: usize = 40;

/// Decodes the object that `body` holds. Errors: 400 for a body that cannot be read, 415 for a kind
/// that is taken as JSON only.
pub fn decode(body: &[u8]) -> ApiResult<Value> {
    let fault = || failures::bad_request("the body is not a protobuf object of this API");
    let envelope = body.strip_prefix(MAGIC).ok_or_else(fault)?;
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    // Fields of upstream's `runtime.Unknown`: `typeMeta` 1 (`apiVersion` 1, `kind` 2), `raw` 2.
    for part in parts(envelope) {
        match part.ok_or_else(fault)? {
            (1, Wire::Bytes(meta)) => {
                for part in parts(meta) {
                    match part.ok_or_else(fault)? {
                        (1, Wire::Bytes(text)) => {
                            api_version = String::from_utf8_lossy(text).into_owned();
                        }
                        (2, Wire::Bytes(text)) => kind = String::from_utf8_lossy(text).into_owned(),
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let Some(place) = table().find(&api_version, &kind) else {
        let mut error = failures::unsupported_media(&["application/json", "application/yaml"]);
        error.message =
            format!("{kind} of {api_version:?} is not taken as {MEDIA_TYPE} - {}", error.message);
        return Err(error);
    };
    let mut object = Map::new();
    read_message(place, raw, &mut object, 0).ok_or_else(fault)?;
    object.insert("apiVersion".to_owned(), api_version.into());
    object.insert("kind".to_owned(), kind.into());
    Ok(Value::Object(object))
}

/// Splits a message into field numbers and values; yields one `None` at bytes that cannot be
/// parsed.
fn parts(mut bytes: &[u8]) -> impl Iterator<Item = Option<(u64, Wire<'_>)>> {
    let mut sound = true;
    std::iter::from_fn(move || {
        let part = if sound { field(&mut bytes) } else { Ok(None) };
        sound = part.is_ok();
        // A malformed part yields `None` and then ends the iterator; `Ok(None)` is the end of the
        // bytes.
        part.map_or(Some(None), |part| part.map(Some))
    })
}

/// Decodes a message into `object`; fields that the table lacks are skipped. `place`: the index of
/// the message in the table. `None`: it is malformed, or nested deeper than `MAX_DEPTH`.
fn read_message(
    place: usize,
    bytes: &[u8],
    object: &mut Map<String, Value>,
    depth: usize,
) -> Option<()> {
    let message = table().message(place)?;
    if depth > MAX_DEPTH {
        return None;
    }
    for part in parts(bytes) {
        let (number, wire) = part?;
        let Some(field) = message.iter().find(|field| field.number == number) else { continue };
        if let (Type::Message(inner), "-") = (&field.of, field.name) {
            let Wire::Bytes(bytes) = wire else { return None };
            read_message(*inner, bytes, object, depth + 1)?;
            continue;
        }
        match field.shape {
            Shape::Map => {
                let Wire::Bytes(entry) = wire else { return None };
                let (key, value) = entry_of(&field.of, entry, depth)?;
                let map = object.entry(field.name).or_insert_with(|| Value::Object(Map::new()));
                map.as_object_mut()?.insert(key, value);
            }
            Shape::List => {
                let value = value_of(&field.of, &wire, depth)?;
                let list = object.entry(field.name).or_insert_with(|| Value::Array(Vec::new()));
                list.as_array_mut()?.push(value);
            }
            Shape::Pointer | Shape::Shown | Shape::Value => {
                let value = value_of(&field.of, &wire, depth)?;
                // An empty text is no zero where there could be a number.
                let is_empty = value == "" && !matches!(field.of, Type::IntOrString);
                let zero = value.is_null() || is_empty || value == 0 || value == false;
                if !zero || field.shape != Shape::Value && !value.is_null() {
                    object.insert(field.name.to_owned(), value);
                }
            }
        }
    }
    Some(())
}

/// Decodes an entry of a map with string keys. A value that is missing is its type's default.
fn entry_of(of: &Type, entry: &[u8], depth: usize) -> Option<(String, Value)> {
    let mut key = String::new();
    let mut value = None;
    for part in parts(entry) {
        match part? {
            (1, Wire::Bytes(bytes)) => key = text(bytes),
            (2, wire) => value = Some(value_of(of, &wire, depth)?),
            _ => {}
        }
    }
    let value = match value {
        Some(value) => value,
        None => value_of(of, &Wire::Bytes(&[]), depth)?,
    };
    Some((key, value))
}

/// Returns the JSON of a [`Type::Either`] message with no member set: `false`, or an empty list.
fn either_empty(place: usize) -> Value {
    let message = table().message(place).into_iter().flatten();
    match message.into_iter().any(|field| matches!(field.of, Type::Bool)) {
        true => false.into(),
        false => Value::Array(Vec::new()),
    }
}

/// Decodes a string.
///
/// A string may hold bytes that are not UTF-8. A real server stores them as they are, writes them
/// so in protobuf, and as U+FFFD in JSON. This server stores each such byte as a private-use
/// character, which its JSON answers contain.
fn text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            let chunks = bytes.utf8_chunks().flat_map(|chunk| {
                chunk.valid().chars().chain(chunk.invalid().iter().copied().map(raw_byte))
            });
            chunks.collect()
        }
    }
}

/// The base of the characters for bytes that are not UTF-8: U+10FF80 to U+10FFFF.
const RAW: u32 = 0x0010_FF00;

/// Returns the character that replaces a byte that is not UTF-8.
///
/// # Panics
/// When the byte is ASCII.
pub fn raw_byte(byte: u8) -> char {
    assert!(!byte.is_ascii(), "ASCII stands for itself");
    char::from_u32(RAW + u32::from(byte)).expect("a character of private use")
}

/// Encodes a string; the inverse of [`text`].
fn raw(text: &str) -> Cow<'_, [u8]> {
    let byte = |character: char| {
        u32::from(character).checked_sub(RAW).and_then(|byte| u8::try_from(byte).ok())
    };
    let is_raw = |character| byte(character).is_some_and(|byte| !byte.is_ascii());
    // The UTF-8 of these private-use characters begins with this byte; few others do.
    if !text.as_bytes().contains(&0xf4) || !text.contains(is_raw) {
        return Cow::Borrowed(text.as_bytes());
    }
    let mut bytes = Vec::with_capacity(text.len());
    for character in text.chars() {
        match byte(character) {
            Some(byte) if is_raw(character) => bytes.push(byte),
            _ => bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    Cow::Owned(bytes)
}

/// The members of the small messages that JSON shows as one value, by their numbers.
#[derive(Default)]
struct Small<'a> {
    ints: [i64; 3],
    texts: [&'a [u8]; 4],
}

impl<'a> Small<'a> {
    /// Reads a message of few fields; `None`: it is malformed, or has a field that does not fit.
    fn read(bytes: &'a [u8]) -> Option<Small<'a>> {
        let mut small = Small::default();
        for part in parts(bytes) {
            let (number, wire) = part?;
            let number = usize::try_from(number).ok()?;
            match wire {
                Wire::Varint(int) => *small.ints.get_mut(number)? = int.cast_signed(),
                Wire::Bytes(bytes) => *small.texts.get_mut(number)? = bytes,
                Wire::Fixed(_) => return None,
            }
        }
        Some(small)
    }

    fn time(&self) -> Option<Timestamp> {
        let micros = self.ints[1].checked_mul(1_000_000)?.checked_add(self.ints[2] / 1000)?;
        Some(Timestamp::from_micros(micros))
    }
}

/// Decodes one value of type `of`. `None`: the bytes do not fit the type.
fn value_of(of: &Type, wire: &Wire<'_>, depth: usize) -> Option<Value> {
    let bytes = match (of, wire) {
        (Type::Int, Wire::Varint(int)) => return Some(int.cast_signed().into()),
        (Type::Bool, Wire::Varint(int)) => return Some((*int != 0).into()),
        (Type::Double, Wire::Fixed(bytes)) => {
            let number = f64::from_le_bytes((*bytes).try_into().ok()?);
            // Whole numbers have no point in JSON.
            let whole = number.fract() == 0.0 && number.abs() < 1e15;
            return Some(if whole { (number as i64).into() } else { number.into() });
        }
        (_, Wire::Varint(_) | Wire::Fixed(_))
        | (Type::Int | Type::Bool | Type::Double, Wire::Bytes(_)) => return None,
        (_, Wire::Bytes(bytes)) => *bytes,
    };
    match of {
        Type::Text => Some(text(bytes).into()),
        Type::Bytes => Some(STANDARD.encode(bytes).into()),
        Type::Quantity => match Small::read(bytes)?.texts[1] {
            [] => Some("0".into()),
            digits => Some(text(digits).into()),
        },
        Type::IntOrString => match Small::read(bytes)? {
            small if small.ints[1] == 0 => Some(small.ints[2].into()),
            small => Some(text(small.texts[3]).into()),
        },
        // The zero time is an empty message.
        Type::Time | Type::MicroTime if bytes.is_empty() => Some(Value::Null),
        Type::Time => Some(Small::read(bytes)?.time()?.to_string().into()),
        Type::MicroTime => Some(Small::read(bytes)?.time()?.to_micro_string().into()),
        Type::Raw => match Small::read(bytes)?.texts[1] {
            [] => Some(Value::Null),
            json => serde_json::from_slice(json).ok(),
        },
        Type::Items(of) => {
            let items = parts(bytes).map(|part| value_of(of, &part?.1, depth));
            Some(Value::Array(items.collect::<Option<_>>()?))
        }
        Type::Message(place) => {
            let mut object = Map::new();
            read_message(*place, bytes, &mut object, depth + 1)?;
            Some(Value::Object(object))
        }
        Type::Either(place) => {
            let mut object = Map::new();
            read_message(*place, bytes, &mut object, depth + 1)?;
            let set = object.into_iter().map(|(_, value)| value);
            // The last member that is set; a schema takes precedence over a boolean.
            let set = set.reduce(|one, other| if other.is_boolean() { one } else { other });
            Some(set.unwrap_or_else(|| either_empty(*place)))
        }
        // These types are never encoded as bytes.
        Type::Int | Type::Bool | Type::Double => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn bytes(number: u8, of: &[u8]) -> Vec<u8> {
        [vec![number << 3 | 2], varint(of.len()), of.to_vec()].concat()
    }

    fn varint(mut number: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while number > 0x7f {
            bytes.push((number & 0x7f) as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
        bytes
    }

    fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let meta = [bytes(1, api_version.as_bytes()), bytes(2, kind.as_bytes())].concat();
        [MAGIC.to_vec(), bytes(1, &meta), bytes(2, raw), bytes(3, b""), bytes(4, b"")].concat()
    }

    /// A Deployment: zero replicas as a pointer, one container with ports, resources, a probe.
    fn deployment() -> Vec<u8> {
        let meta = [
            bytes(1, b"web"),
            bytes(2, b""),
            bytes(8, b""),
            bytes(11, &[bytes(1, b"app"), bytes(2, b"web")].concat()),
        ]
        .concat();
        let limit = [bytes(1, b"cpu"), bytes(2, &bytes(1, b"500m"))].concat();
        let handler = bytes(2, &[bytes(1, b"/"), bytes(2, &[8, 0, 16, 80, 26, 0])].concat());
        let container = [
            bytes(1, b"main"),
            bytes(6, &[bytes(1, b""), vec![16, 0, 24, 80]].concat()),
            bytes(8, &bytes(1, &limit)),
            bytes(10, &[bytes(1, &handler), vec![16, 5]].concat()),
        ]
        .concat();
        let pod = [bytes(2, &container), vec![32, 0, 88, 0]].concat();
        let spec = [vec![8, 0], bytes(3, &bytes(2, &pod))].concat();
        envelope("apps/v1", "Deployment", &[bytes(1, &meta), bytes(2, &spec)].concat())
    }

    #[test]
    fn a_deployment_reads_as_its_json() {
        let expected = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": "web", "labels": { "app": "web" } },
            "spec": { "replicas": 0, "template": { "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [{
                    "name": "main", "ports": [{ "containerPort": 80 }],
                    "resources": { "limits": { "cpu": "500m" } },
                    "livenessProbe": {
                        "httpGet": { "path": "/", "port": 80 }, "initialDelaySeconds": 5,
                    },
                }],
            } } },
        });
        assert_eq!(decode(&deployment()).unwrap(), expected);
    }

    #[test]
    fn a_port_without_a_name_is_no_number() {
        let service = |port: Value| {
            json!({ "apiVersion": "v1", "kind": "Service",
                "spec": { "ports": [{ "port": 80, "targetPort": port }] } })
        };
        let round = |object: &Value| decode(&encode(object).unwrap()).unwrap();
        for port in [json!(""), json!("http"), json!(81)] {
            let object = service(port);
            assert_eq!(round(&object)["spec"], object["spec"]);
        }
        let zero = round(&service(json!(0)));
        assert_eq!(zero["spec"]["ports"], json!([{ "port": 80 }]));
    }

    #[test]
    fn bytes_that_are_not_utf8_are_written_as_they_were_read() {
        let note = |key: &[u8], value: &[u8]| bytes(12, &[bytes(1, key), bytes(2, value)].concat());
        let meta = [bytes(1, b"n"), note(b"a", b"a\xff"), note(b"k\xe2\x82", b"\xf4\x8f\xbf\xbf")];
        let map = envelope("v1", "ConfigMap", &bytes(1, &meta.concat()));
        let read = decode(&map).unwrap();
        assert_eq!(read["metadata"]["annotations"]["a"], format!("a{}", raw_byte(0xff)));
        let written = encode(&read).unwrap();
        for piece in [&b"a\xff"[..], b"k\xe2\x82"] {
            assert!(written.windows(piece.len()).any(|found| found == piece), "{written:?}");
        }
    }

    #[test]
    fn a_definition_reads_as_its_json() {
        let number =
            |number: u8, value: f64| [vec![number << 3 | 1], value.to_le_bytes().to_vec()].concat();
        let count = [bytes(5, b"integer"), number(11, 1.0), number(9, 2.5)].concat();
        let property = [bytes(1, b"count"), bytes(2, &count)].concat();
        // A field number above 15 takes two bytes.
        let field = |number: usize, of: &[u8]| {
            [varint(number << 3 | 2), varint(of.len()), of.to_vec()].concat()
        };
        let any = [bytes(1, b"any"), bytes(2, &field(30, &[8, 1]))].concat();
        let items = field(24, &bytes(1, &bytes(5, b"string")));
        let list = [bytes(1, b"list"), bytes(2, &items)].concat();
        let schema = [
            bytes(5, b"object"),
            field(29, &property),
            field(29, &any),
            field(29, &list),
            field(41, b"key"),
        ]
        .concat();
        let version = [bytes(1, b"v1"), vec![16, 1, 24, 0], bytes(4, &bytes(1, &schema))].concat();
        let spec = [bytes(1, b"example.com"), bytes(4, b"Namespaced"), bytes(7, &version)].concat();
        let raw = [bytes(1, &bytes(1, b"foos.example.com")), bytes(2, &spec)].concat();
        let body = envelope("apiextensions.k8s.io/v1", "CustomResourceDefinition", &raw);
        let schema = json!({
            "type": "object", "x-kubernetes-list-map-keys": ["key"],
            "properties": {
                "count": { "type": "integer", "minimum": 1, "maximum": 2.5 },
                "any": { "additionalProperties": true },
                "list": { "items": { "type": "string" } },
            },
        });
        let expected = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": "foos.example.com" },
            "spec": {
                "group": "example.com", "scope": "Namespaced",
                "versions": [{
                    "name": "v1", "served": true, "storage": false,
                    "schema": { "openAPIV3Schema": schema },
                }],
            },
        });
        assert_eq!(decode(&body).unwrap(), expected);
    }

    #[test]
    fn broken_bodies_are_refused_without_a_panic() {
        let whole = deployment();
        for end in 0..whole.len() {
            if let Err(error) = decode(&whole[..end]) {
                assert!(matches!(error.code, 400 | 415), "{end}: {error:?}");
            }
        }
        assert_eq!(decode(b"{}").unwrap_err().code, 400);
        let unknown = decode(&envelope("x.io/v1", "Foo", b"")).unwrap_err();
        assert_eq!(unknown.code, 415);
        assert!(unknown.message.contains("Foo of \"x.io/v1\""), "{}", unknown.message);
    }
}
