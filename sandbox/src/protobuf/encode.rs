//! Encodes objects as a real server does: fields in the order of their numbers, non-pointer fields
//! even when they are zero, and maps with sorted keys.

use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde_json::Value;

use super::table::{Field, Shape, Type, table};
use super::{MAGIC, MEDIA_TYPE, raw};
use kube_controller_manager::objects::Timestamp;
use kube_controller_manager::server::http::{Body, Bytes, Response};

/// Returns whether objects of this kind have a protobuf form.
pub fn knows(api_version: &str, kind: &str) -> bool {
    table().find(api_version, kind).is_some()
}

/// Returns the message of an object of this kind, without an envelope; `None` when the table lacks
/// the kind.
pub fn message(api_version: &str, kind: &str, object: &Value) -> Option<Bytes> {
    let place = table().find(api_version, kind)?;
    let mut writer = Backwards::default();
    writer.message(place, object);
    Some(writer.finish().into())
}

/// Returns an object in its envelope, by the kind that it names; `None` when the table lacks it.
pub fn encode(object: &Value) -> Option<Vec<u8>> {
    let text = |key| object.get(key).and_then(Value::as_str).unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    Some(envelope(api_version, kind, &message(api_version, kind, object)?))
}

/// The end of every envelope: empty encoding and content type.
const END: &[u8] = &[3 << 3 | 2, 0, 4 << 3 | 2, 0];

/// Encodes an envelope up to the message that it holds, which has `length` bytes.
fn opening(api_version: &str, kind: &str, length: usize) -> Vec<u8> {
    let mut writer = Backwards::default();
    // Fields of upstream's `runtime.Unknown`: `typeMeta` 1, `raw` 2. The buffer grows from its end.
    writer.head(2, length);
    writer.within(1, |meta| {
        meta.bytes(2, kind.as_bytes());
        meta.bytes(1, api_version.as_bytes());
    });
    writer.raw(MAGIC);
    writer.finish()
}

/// Returns a message in its envelope. Upstream: `runtime.Unknown`.
pub fn envelope(api_version: &str, kind: &str, message: &[u8]) -> Vec<u8> {
    let mut bytes = opening(api_version, kind, message.len());
    bytes.extend_from_slice(message);
    bytes.extend_from_slice(END);
    bytes
}

/// Returns the head of a field of `length` bytes.
fn head(number: u64, length: usize) -> Vec<u8> {
    let mut writer = Backwards::default();
    writer.head(number, length);
    writer.finish()
}

/// Encodes a list in its envelope, in parts with a bounded number of items: first the part before
/// the items, last the end.
pub fn list(
    (api_version, kind): (&str, &str),
    meta: &Value,
    items: &[Bytes],
    part: usize,
) -> Vec<Bytes> {
    // Fields of every list: metadata 1, items 2.
    let meta = message("v1", "ListMeta", meta).unwrap_or_default();
    let size = |item: &Bytes| head(2, item.len()).len() + item.len();
    let meta_head = head(1, meta.len());
    let total = meta_head.len() + meta.len() + items.iter().map(size).sum::<usize>();
    let mut first = opening(api_version, kind, total);
    first.extend_from_slice(&meta_head);
    first.extend_from_slice(&meta);
    let mut parts = vec![Bytes::from(first)];
    for items in items.chunks(part) {
        let mut bytes = Vec::with_capacity(items.iter().map(size).sum());
        for item in items {
            bytes.extend_from_slice(&head(2, item.len()));
            bytes.extend_from_slice(item);
        }
        parts.push(bytes.into());
    }
    parts.push(Bytes::from_static(END));
    parts
}

/// Appends one event of a watch, after its length in four bytes. Upstream: `meta/v1.WatchEvent`,
/// `apimachinery/pkg/util/framer`.
pub fn event(chunk: &mut Vec<u8>, r#type: &str, object: &[u8]) {
    // Fields of a WatchEvent: type 1, object 2, which is a RawExtension with its bytes in 1.
    let inner = head(1, object.len());
    let outer = head(2, inner.len() + object.len());
    let start = [&head(1, r#type.len()), r#type.as_bytes(), &outer, &inner].concat();
    let length = u32::try_from(start.len() + object.len()).unwrap_or(u32::MAX);
    chunk.extend_from_slice(&length.to_be_bytes());
    chunk.extend_from_slice(&start);
    chunk.extend_from_slice(object);
}

/// Converts a JSON answer to protobuf. Returns it unchanged if it is not JSON, or is of a kind that
/// the table lacks.
pub fn answer(mut response: Response) -> Response {
    let json = |value: &HeaderValue| value.as_bytes().starts_with(b"application/json");
    let header = response.headers.iter_mut().find(|(name, _)| name == CONTENT_TYPE);
    let (Some((_, media)), Body::Full(bytes)) = (header, &response.body) else { return response };
    if !json(media) {
        return response;
    }
    if let Some(bytes) = serde_json::from_slice(bytes).ok().and_then(|value| encode(&value)) {
        *media = HeaderValue::from_static(MEDIA_TYPE);
        response.body = Body::Full(bytes.into());
    }
    response
}

static NULL: Value = Value::Null;
static ALLOWED: Value = Value::Bool(true);

/// Writes from the end to the start, so that the length of a message's content is known when its
/// head is written.
#[derive(Default)]
struct Backwards(Vec<u8>);

impl Backwards {
    fn finish(mut self) -> Vec<u8> {
        self.0.reverse();
        self.0
    }

    fn raw(&mut self, bytes: &[u8]) {
        self.0.extend(bytes.iter().rev());
    }

    /// Writes a number in as few bytes as it needs.
    fn varint(&mut self, mut value: u64) {
        let mut bytes = [0; 10];
        let mut count = 0;
        loop {
            let more = value > 0x7f;
            bytes[count] = (value & 0x7f) as u8 | u8::from(more) << 7;
            count += 1;
            if !more {
                break;
            }
            value >>= 7;
        }
        self.raw(&bytes[..count]);
    }

    /// Writes the head of a field of `length` bytes.
    fn head(&mut self, number: u64, length: usize) {
        self.varint(length as u64);
        self.varint(number << 3 | 2);
    }

    fn bytes(&mut self, number: u64, bytes: &[u8]) {
        self.raw(bytes);
        self.head(number, bytes.len());
    }

    fn int(&mut self, number: u64, value: i64) {
        self.varint(value.cast_unsigned());
        self.varint(number << 3);
    }

    /// Writes a field with a message, whose content `write` writes.
    fn within(&mut self, number: u64, write: impl FnOnce(&mut Backwards)) {
        let before = self.0.len();
        write(self);
        self.head(number, self.0.len() - before);
    }

    fn message(&mut self, place: usize, object: &Value) {
        for field in table().message(place).into_iter().flatten().rev() {
            self.field(field, object);
        }
    }

    /// Writes a field of `object`, last element first: the buffer grows from its end.
    fn field(&mut self, field: &Field, object: &Value) {
        let number = field.number;
        if field.name == "-" {
            return self.value(number, &field.of, object);
        }
        let value = object.get(field.name).unwrap_or(&NULL);
        match field.shape {
            Shape::List => {
                for item in value.as_array().into_iter().flatten().rev() {
                    self.value(number, &field.of, item);
                }
            }
            Shape::Map => {
                for (key, value) in value.as_object().into_iter().flatten().rev() {
                    self.within(number, |entry| {
                        entry.value(2, &field.of, value);
                        entry.bytes(1, &raw(key));
                    });
                }
            }
            Shape::Pointer if value.is_null() => {}
            // Empty bytes differ from absent ones.
            Shape::Value if value.is_null() && matches!(field.of, Type::Bytes) => {}
            Shape::Pointer | Shape::Value | Shape::Shown => self.value(number, &field.of, value),
        }
    }

    /// Writes a value of type `of` as field `number`. A value that is absent is written as the
    /// type's zero.
    fn value(&mut self, number: u64, of: &Type, value: &Value) {
        let text = value.as_str().unwrap_or_default();
        match of {
            Type::Text => self.bytes(number, &raw(text)),
            Type::Bytes => self.bytes(number, &STANDARD.decode(text).unwrap_or_default()),
            Type::Int => self.int(number, value.as_i64().unwrap_or_default()),
            Type::Bool => self.int(number, i64::from(value.as_bool().unwrap_or_default())),
            Type::Quantity => self.within(number, |quantity| match value {
                Value::String(text) => quantity.bytes(1, text.as_bytes()),
                Value::Number(plain) => quantity.bytes(1, plain.to_string().as_bytes()),
                _ => quantity.bytes(1, b"0"),
            }),
            Type::IntOrString => self.within(number, |either| {
                either.bytes(3, text.as_bytes());
                either.int(2, value.as_i64().unwrap_or_default());
                either.int(1, i64::from(value.is_string()));
            }),
            Type::Time | Type::MicroTime => self.within(number, |time| {
                // The zero time is an empty message.
                let Ok(at) = Timestamp::from_str(text) else { return };
                let below = at.as_micros().rem_euclid(1_000_000) * 1000;
                time.int(2, if matches!(of, Type::MicroTime) { below } else { 0 });
                time.int(1, at.as_secs());
            }),
            Type::Raw => self.within(number, |raw| {
                if !value.is_null() {
                    raw.bytes(1, &serde_json::to_vec(value).unwrap_or_default());
                }
            }),
            Type::Items(of) => self.within(number, |list| {
                for item in value.as_array().into_iter().flatten().rev() {
                    list.value(1, of, item);
                }
            }),
            Type::Message(place) => self.within(number, |inner| inner.message(*place, value)),
            Type::Double => {
                self.raw(&value.as_f64().unwrap_or_default().to_le_bytes());
                self.varint(number << 3 | 1);
            }
            Type::Either(place) => self.within(number, |inner| {
                for field in table().message(*place).into_iter().flatten().rev() {
                    let (is_set, shown) = match (&field.of, field.shape) {
                        (_, Shape::List) => (value.is_array(), value),
                        // A schema implies that values are allowed.
                        (Type::Bool, _) if value.is_object() => (true, &ALLOWED),
                        (Type::Bool, _) => (value.is_boolean(), value),
                        _ => (value.is_object(), value),
                    };
                    if is_set {
                        inner.field(field, &serde_json::json!({ (field.name): shown }));
                    }
                }
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{decode, read_message};
    use super::*;
    use serde_json::{Map, json};

    /// A value of each field, none of them zero. A schema within a schema is left out.
    fn full(place: usize, around: &[usize]) -> Map<String, Value> {
        let mut object = Map::new();
        let path = [around, &[place]].concat();
        for field in table().message(place).unwrap() {
            if matches!(field.of, Type::Message(inner) if path.contains(&inner)) {
                continue;
            }
            let one = |of: &Type| sample(of, field.number, &path);
            match field.shape {
                _ if field.name == "-" => {
                    object.extend(one(&field.of).as_object().unwrap().clone())
                }
                Shape::List => {
                    object.insert(field.name.to_owned(), json!([one(&field.of), one(&field.of)]));
                }
                Shape::Map => {
                    object.insert(
                        field.name.to_owned(),
                        json!({ "b": one(&field.of), "a": one(&field.of) }),
                    );
                }
                _ => {
                    object.insert(field.name.to_owned(), one(&field.of));
                }
            }
        }
        object
    }

    fn sample(of: &Type, number: u64, path: &[usize]) -> Value {
        match of {
            Type::Text => format!("text {number}").into(),
            Type::Bytes => STANDARD.encode([0, 0xff, 7]).into(),
            Type::Int => (-1 - number.cast_signed()).into(),
            Type::Bool => true.into(),
            Type::Quantity => "500m".into(),
            Type::IntOrString if number.is_multiple_of(2) => 80.into(),
            Type::IntOrString => "http".into(),
            Type::Time => "2026-05-01T10:00:00Z".into(),
            Type::MicroTime => "2026-05-01T10:00:00.123456Z".into(),
            Type::Raw => json!({ "f:spec": { "k:{\"a\":1}": {} } }),
            Type::Items(of) => json!([sample(of, number, path)]),
            Type::Double => 2.5.into(),
            Type::Message(place) => full(*place, path).into(),
            Type::Either(place) => {
                let mut values = full(*place, path).into_iter().map(|(_, value)| value);
                values.next().unwrap_or_else(|| json!([]))
            }
        }
    }

    #[test]
    fn every_message_survives_a_round_trip() {
        for (name, place) in table().all() {
            let object = Value::Object(full(place, &[]));
            let mut writer = Backwards::default();
            writer.message(place, &object);
            let mut read_back = Map::new();
            read_message(place, &writer.finish(), &mut read_back, 0).unwrap();
            assert_eq!(Value::Object(read_back), object, "{name}");
        }
    }

    /// The bytes are a real 1.36 server's.
    #[test]
    fn a_failure_is_encoded_as_by_a_real_server() {
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "pods \"none\" not found", "reason": "NotFound",
            "details": { "name": "none", "kind": "pods" }, "code": 404,
        });
        let expected =
            b"k8s\0\x0a\x0c\x0a\x02v1\x12\x06Status\x12\x49\x0a\x06\x0a\x00\x12\x00\x1a\x00\
            \x12\x07Failure\x1a\x15pods \"none\" not found\x22\x08NotFound\
            \x2a\x12\x0a\x04none\x12\x00\x1a\x04pods\x28\x00\x32\x00\x30\x94\x03\x1a\x00\x22\x00";
        assert_eq!(encode(&status).unwrap(), expected);
    }

    /// Both forms were read from a real 1.36 server: every kind of field of a pod, and its managed
    /// fields.
    #[test]
    fn a_pod_is_written_as_a_real_server_writes_it() {
        let pod: Value = serde_json::from_str(include_str!("pod.json")).unwrap();
        let expected = include_bytes!("pod.pb");
        assert_eq!(encode(&pod).unwrap(), expected);
        let zeroes = decode(expected).unwrap();
        assert_eq!(encode(&zeroes).unwrap(), expected, "what JSON leaves out is zero");
    }

    #[test]
    fn a_bookmark_is_an_object_of_zeroes_in_a_frame() {
        let pod = json!({ "kind": "Pod", "apiVersion": "v1", "metadata": {
            "resourceVersion": "660", "annotations": { "k8s.io/initial-events-end": "true" } } });
        let mut chunk = Vec::new();
        event(&mut chunk, "BOOKMARK", &encode(&pod).unwrap());
        assert_eq!(chunk, include_bytes!("bookmark.pb"), "as a real server sent it");
    }

    #[test]
    fn a_list_in_parts_reads_as_its_items() {
        let pod = |name: &str| json!({ "metadata": { "name": name } });
        let items = ["a", "b", "c"].map(|name| message("v1", "Pod", &pod(name)).unwrap());
        let meta = json!({ "resourceVersion": "7", "remainingItemCount": 0 });
        let whole = list(("v1", "PodList"), &meta, &items, 2).concat();
        let read = decode(&whole).unwrap();
        assert_eq!((&read["kind"], &read["metadata"]), (&json!("PodList"), &meta));
        let names: Vec<&Value> = read["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| &item["metadata"]["name"])
            .collect();
        assert_eq!(names, ["a", "b", "c"]);
        let empty = list(("v1", "PodList"), &meta, &[], 2).concat();
        assert_eq!(decode(&empty).unwrap()["metadata"], meta);
    }
}
