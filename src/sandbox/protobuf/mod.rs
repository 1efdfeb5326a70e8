//! Request bodies in Kubernetes' protobuf form, as typed clients send them (kubectl's `create`,
//! `expose`, `auth` ...), turned into JSON by a table of the messages. Answers are always JSON.
//! Upstream: `apimachinery/pkg/runtime/serializer/protobuf`.

use std::collections::HashMap;
use std::sync::OnceLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::api::unsupported_media;
use super::failures;
use super::status::ApiResult;
use crate::objects::Timestamp;

pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";
const MAGIC: &[u8] = b"k8s\0";
/// Deeper than any message of the API nests.
const MAX_DEPTH: usize = 40;

/// A message a line: `group.Name number:field:type ...`. The field `-` is inlined in JSON. A type
/// is plain (left out: text), or a message's name; before it `*` (a pointer: a zero counts), `!`
/// (JSON shows a zero), `[]` (repeated) or `{}` (a map from text).
const MESSAGES: &str = include_str!("messages.txt");

#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    /// Left out of the JSON when it is zero.
    Value,
    /// Set when it is there.
    Present,
    List,
    Map,
}

#[derive(Debug)]
struct Field {
    name: &'static str,
    shape: Shape,
    of: &'static str,
}

type Message = HashMap<u64, Field>;

fn messages() -> &'static HashMap<&'static str, Message> {
    static TABLE: OnceLock<HashMap<&'static str, Message>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let message = |line: &'static str| {
            let (name, fields) = line.split_once(' ').unwrap_or((line, ""));
            (name, fields.split(' ').filter_map(field).collect())
        };
        MESSAGES.lines().map(message).collect()
    })
}

fn field(text: &'static str) -> Option<(u64, Field)> {
    let (number, rest) = text.split_once(':')?;
    let (name, of) = rest.split_once(':').unwrap_or((rest, "string"));
    let (shape, of) = [
        ("*", Shape::Present),
        ("!", Shape::Present),
        ("[]", Shape::List),
        ("{}", Shape::Map),
        ("", Shape::Value),
    ]
    .into_iter()
    .find_map(|(mark, shape)| Some((shape, of.strip_prefix(mark)?)))?;
    Some((number.parse().ok()?, Field { name, shape, of }))
}

/// The message of a kind; `None` when the table lacks it.
fn message_of(api_version: &str, kind: &str) -> Option<String> {
    let name = match (api_version, kind) {
        (_, "DeleteOptions") => "meta.DeleteOptions".to_owned(),
        ("autoscaling/v1", kind) => format!("autoscaling1.{kind}"),
        ("v1", kind) => format!("core.{kind}"),
        (version, kind) => {
            let group = version.split_once('/')?.0;
            format!("{}.{kind}", group.split('.').next().unwrap_or(group))
        }
    };
    messages().contains_key(name.as_str()).then_some(name)
}

/// The object that `body` holds. Errors: 400 for a body that cannot be read, 415 for a kind that is
/// taken as JSON only.
pub fn decode(body: &[u8]) -> ApiResult<Value> {
    let fault = || failures::bad_request("the body is not a protobuf object of this API");
    let envelope = body.strip_prefix(MAGIC).ok_or_else(fault)?;
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
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
    let Some(name) = message_of(&api_version, &kind) else {
        let mut error = unsupported_media(&["application/json", "application/yaml"]);
        error.message =
            format!("{kind} of {api_version:?} is not taken as {MEDIA_TYPE} - {}", error.message);
        return Err(error);
    };
    let mut object = Map::new();
    read(&name, raw, &mut object, 0).ok_or_else(fault)?;
    object.insert("apiVersion".to_owned(), api_version.into());
    object.insert("kind".to_owned(), kind.into());
    Ok(Value::Object(object))
}

enum Wire<'a> {
    Int(u64),
    Bytes(&'a [u8]),
}

impl Wire<'_> {
    fn int(&self) -> i64 {
        match self {
            // Negative numbers are ten bytes of their two's complement.
            Wire::Int(int) => int.cast_signed(),
            Wire::Bytes(_) => 0,
        }
    }
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn take<'a>(bytes: &mut &'a [u8], count: u64) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(usize::try_from(count).ok()?)?;
    *bytes = rest;
    Some(taken)
}

/// Field numbers and values; `None` once where the bytes make no sense.
fn parts(mut bytes: &[u8]) -> impl Iterator<Item = Option<(u64, Wire<'_>)>> {
    let mut part = move || {
        let tag = varint(&mut bytes)?;
        let value = match tag & 7 {
            0 => Wire::Int(varint(&mut bytes)?),
            1 => Wire::Bytes(take(&mut bytes, 8)?),
            2 => {
                let length = varint(&mut bytes)?;
                Wire::Bytes(take(&mut bytes, length)?)
            }
            5 => Wire::Bytes(take(&mut bytes, 4)?),
            _ => return None,
        };
        Some(((tag >> 3, value), bytes.is_empty()))
    };
    let mut done = false;
    let empty = bytes.is_empty();
    std::iter::from_fn(move || {
        if done || empty {
            return None;
        }
        let next = part();
        done = next.as_ref().is_none_or(|(_, last)| *last);
        Some(next.map(|(part, _)| part))
    })
}

/// Reads a message into `object`; fields that the table lacks are skipped.
fn read(name: &str, bytes: &[u8], object: &mut Map<String, Value>, depth: usize) -> Option<()> {
    let message = messages().get(name)?;
    if depth > MAX_DEPTH {
        return None;
    }
    for part in parts(bytes) {
        let (number, wire) = part?;
        let Some(field) = message.get(&number) else { continue };
        if field.name == "-" {
            let Wire::Bytes(inner) = wire else { return None };
            read(field.of, inner, object, depth + 1)?;
            continue;
        }
        match field.shape {
            Shape::Map => {
                let Wire::Bytes(entry) = wire else { return None };
                let (key, value) = entry_of(field.of, entry, depth)?;
                let map = object.entry(field.name).or_insert_with(|| Value::Object(Map::new()));
                map.as_object_mut()?.insert(key, value);
            }
            Shape::List => {
                let value = value_of(field.of, &wire, depth)?;
                let list = object.entry(field.name).or_insert_with(|| Value::Array(Vec::new()));
                list.as_array_mut()?.push(value);
            }
            Shape::Present | Shape::Value => {
                let value = value_of(field.of, &wire, depth)?;
                let zero = value.is_null() || value == "" || value == 0 || value == false;
                if !zero || field.shape == Shape::Present && !value.is_null() {
                    object.insert(field.name.to_owned(), value);
                }
            }
        }
    }
    Some(())
}

fn entry_of(of: &str, entry: &[u8], depth: usize) -> Option<(String, Value)> {
    let mut key = String::new();
    let mut value = None;
    for part in parts(entry) {
        match part? {
            (1, Wire::Bytes(text)) => key = String::from_utf8(text.to_vec()).ok()?,
            (2, wire) => {
                value = Some(match of.strip_prefix("[]") {
                    None => value_of(of, &wire, depth)?,
                    // A list as a map's value stands in a message of its own.
                    Some(of) => {
                        let Wire::Bytes(items) = wire else { return None };
                        let items = parts(items).map(|part| value_of(of, &part?.1, depth));
                        Value::Array(items.collect::<Option<_>>()?)
                    }
                });
            }
            _ => {}
        }
    }
    let value = match value {
        Some(value) => value,
        None => value_of(of, &Wire::Bytes(&[]), depth)?,
    };
    Some((key, value))
}

fn text(bytes: &[u8]) -> Option<Value> {
    Some(std::str::from_utf8(bytes).ok()?.into())
}

fn value_of(of: &str, wire: &Wire<'_>, depth: usize) -> Option<Value> {
    let bytes = match (of, wire) {
        ("int", Wire::Int(_)) => return Some(wire.int().into()),
        ("bool", Wire::Int(int)) => return Some((*int != 0).into()),
        (_, Wire::Int(_)) => return None,
        ("int" | "bool", Wire::Bytes(_)) => return None,
        (_, Wire::Bytes(bytes)) => *bytes,
    };
    // The members of the small messages that JSON shows as one value.
    let mut ints = [0i64; 3];
    let mut texts = [&[][..]; 4];
    if matches!(of, "Quantity" | "IntOrString" | "Time" | "MicroTime" | "Raw") {
        for part in parts(bytes) {
            let (number, wire) = part?;
            let number = usize::try_from(number).ok()?;
            match wire {
                Wire::Int(_) => *ints.get_mut(number)? = wire.int(),
                Wire::Bytes(bytes) => *texts.get_mut(number)? = bytes,
            }
        }
    }
    match of {
        "string" => text(bytes),
        "bytes" => Some(STANDARD.encode(bytes).into()),
        "Quantity" if texts[1].is_empty() => Some("0".into()),
        "Quantity" => text(texts[1]),
        "IntOrString" if ints[1] == 0 => Some(ints[2].into()),
        "IntOrString" => text(texts[3]),
        // The zero time is an empty message.
        "Time" | "MicroTime" if bytes.is_empty() => Some(Value::Null),
        "Time" => Some(Timestamp::from_secs(ints[1]).to_string().into()),
        "MicroTime" => {
            let micros = ints[1].checked_mul(1_000_000)?.checked_add(ints[2] / 1000)?;
            Some(Timestamp::from_micros(micros).to_micro_string().into())
        }
        "Raw" if texts[1].is_empty() => Some(Value::Null),
        "Raw" => serde_json::from_slice(texts[1]).ok(),
        message => {
            let mut object = Map::new();
            read(message, bytes, &mut object, depth + 1)?;
            Some(Value::Object(object))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_type_of_the_table_is_known() {
        let plain = ["string", "bytes", "int", "bool", "Quantity", "IntOrString"];
        for (name, message) in messages() {
            for (number, field) in message {
                let of = field.of.trim_start_matches("[]");
                let known = plain.contains(&of)
                    || matches!(of, "Time" | "MicroTime" | "Raw")
                    || messages().contains_key(of);
                assert!(known && *number > 0 && !field.name.is_empty(), "{name}: {field:?}");
            }
        }
    }

    fn bytes(number: u8, of: &[u8]) -> Vec<u8> {
        let mut field = vec![number << 3 | 2, u8::try_from(of.len()).unwrap()];
        field.extend_from_slice(of);
        field
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
    fn broken_bodies_are_refused_and_never_a_panic() {
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
