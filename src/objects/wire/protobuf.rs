//! Objects in the API's binary form, decoded into the same views as JSON: a table of messages has
//! the number of each field, and fields that are not in the table are skipped.
//! Upstream: `generated.proto` of each group, `apimachinery/pkg/runtime/serializer/protobuf`.

use std::borrow::Cow;
use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// The fields that views read of a message.
#[derive(Debug)]
pub struct Message(pub &'static [Field]);

#[derive(Debug)]
pub struct Field {
    number: u64,
    /// The name in JSON.
    name: &'static str,
    kind: Kind,
    shape: Shape,
}

#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Text,
    Int,
    Bool,
    /// `metav1.Time`; empty: null.
    Time,
    /// `metav1.MicroTime`; empty: null.
    MicroTime,
    /// A message whose first field is its text, as `resource.Quantity`.
    Wrapped,
    Message(&'static Message),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    One,
    List,
    /// A map with text keys.
    Map,
    /// A message whose fields JSON writes among those of the outer one.
    Inline,
}

impl Field {
    pub const fn single(number: u64, name: &'static str, kind: Kind) -> Field {
        Field { number, name, kind, shape: Shape::One }
    }

    pub const fn list(number: u64, name: &'static str, kind: Kind) -> Field {
        Field { number, name, kind, shape: Shape::List }
    }

    /// A message without a name in JSON, such as a Volume's source.
    pub const fn inline(number: u64, message: &'static Message) -> Field {
        Field { number, name: "", kind: Kind::Message(message), shape: Shape::Inline }
    }

    pub const fn map(number: u64, name: &'static str, kind: Kind) -> Field {
        Field { number, name, kind, shape: Shape::Map }
    }
}

#[derive(Debug)]
pub struct Error(String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "protobuf: {}", self.0)
    }
}

impl std::error::Error for Error {}

impl Error {
    /// Adds the field `name` to the error's path; empty if the path is already known.
    pub fn in_field(self, name: &str) -> Error {
        if name.is_empty() { self } else { Error(format!("{name}: {}", self.0)) }
    }
}

impl de::Error for Error {
    fn custom<T: fmt::Display>(what: T) -> Error {
        Error(what.to_string())
    }
}

/// Decodes one `message`. A field that is repeated must come in one piece, as API servers write it.
pub fn from_slice<'de, T: Deserialize<'de>>(
    message: &'static Message,
    bytes: &'de [u8],
) -> Result<T, Error> {
    let (kind, shape) = (Kind::Message(message), Shape::One);
    T::deserialize(Value { kind, shape, number: 0, wire: Wire::Bytes(bytes), rest: &mut &[][..] })
}

/// The value after a field's number.
#[derive(Clone, Copy, Debug)]
pub enum Wire<'de> {
    Varint(u64),
    Bytes(&'de [u8]),
    /// 4 or 8 bytes: views read no such field.
    Fixed(&'de [u8]),
}

/// Why the rest of a message cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub enum Short {
    /// The message ends early; its bytes so far may be valid.
    CutOff,
    Malformed,
}

impl From<Short> for Error {
    fn from(short: Short) -> Error {
        Error(match short {
            Short::CutOff => "cut off".to_owned(),
            Short::Malformed => "malformed".to_owned(),
        })
    }
}

/// Reads an integer of seven bits a byte, the lowest first.
pub fn varint(from: &mut &[u8]) -> Result<u64, Short> {
    let mut value = 0;
    for (at, byte) in from.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            *from = &from[at + 1..];
            return Ok(value);
        }
    }
    Err(if from.len() < 10 { Short::CutOff } else { Short::Malformed })
}

/// Reads the number of the next field and its wire type.
pub fn tag(from: &mut &[u8]) -> Result<(u64, u64), Short> {
    let tag = varint(from)?;
    Ok((tag >> 3, tag & 7))
}

/// Takes the first `count` bytes.
fn bytes<'de>(from: &mut &'de [u8], count: u64) -> Result<&'de [u8], Short> {
    let count = usize::try_from(count).map_err(|_| Short::Malformed)?;
    let (taken, rest) = from.split_at_checked(count).ok_or(Short::CutOff)?;
    *from = rest;
    Ok(taken)
}

/// Reads the next field, whole. `from` is at its end on `None`, and anywhere after an error.
pub fn field<'de>(from: &mut &'de [u8]) -> Result<Option<(u64, Wire<'de>)>, Short> {
    if from.is_empty() {
        return Ok(None);
    }
    let (number, wire) = tag(from)?;
    let wire = match wire {
        0 => Wire::Varint(varint(from)?),
        1 => Wire::Fixed(bytes(from, 8)?),
        2 => {
            let length = varint(from)?;
            Wire::Bytes(bytes(from, length)?)
        }
        5 => Wire::Fixed(bytes(from, 4)?),
        _ => return Err(Short::Malformed),
    };
    Ok(Some((number, wire)))
}

/// Returns the bytes of the first field `number`; empty without one.
pub fn find(message: &[u8], number: u64) -> Result<&[u8], Error> {
    let mut rest = message;
    while let Some((found, wire)) = field(&mut rest)? {
        if let (true, Wire::Bytes(bytes)) = (found == number, wire) {
            return Ok(bytes);
        }
    }
    Ok(&[])
}

/// Returns the bytes of the fields 1 to `N`, which are messages; empty where one is missing.
pub fn parts<const N: usize>(message: &[u8]) -> Result<[&[u8]; N], Error> {
    let (mut found, mut rest) = ([None; N], message);
    while let Some((number, wire)) = field(&mut rest)? {
        let at = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
        let Some(part) = at.and_then(|at| found.get_mut(at)) else { continue };
        match wire {
            Wire::Bytes(bytes) if part.is_none() => *part = Some(bytes),
            _ => return Err(Error(format!("field {number}: no message, or in two pieces"))),
        }
    }
    Ok(found.map(Option::unwrap_or_default))
}

/// Returns a string as JSON shows it: API servers store strings that are not UTF-8. Each byte that
/// is no part of a character is one U+FFFD; `from_utf8_lossy` writes one for several.
/// Upstream: `encoding/json`.
pub fn lossy(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = str::from_utf8(bytes) {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(bytes.len() + 2);
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    Cow::Owned(text)
}

/// Reads a time, in microseconds. Nanoseconds count only in a `MicroTime`, for the JSON of the
/// other has none.
/// Upstream: `Time.Unmarshal`, `MicroTime.Unmarshal`.
fn micros(kind: Kind, mut message: &[u8]) -> Result<i64, Error> {
    let (mut seconds, mut nanos) = (0_i64, 0_i64);
    while let Some((number, wire)) = field(&mut message)? {
        match (number, wire) {
            (1, Wire::Varint(value)) => seconds = value.cast_signed(),
            (2, Wire::Varint(value)) if matches!(kind, Kind::MicroTime) => {
                nanos = value.cast_signed();
            }
            _ => {}
        }
    }
    Ok(seconds.saturating_mul(1_000_000).saturating_add(nanos / 1000))
}

/// One field's value; for a list or a map the first one, the others are taken from `rest`.
struct Value<'de, 'r> {
    kind: Kind,
    shape: Shape,
    number: u64,
    wire: Wire<'de>,
    rest: &'r mut &'de [u8],
}

impl<'de, 'r> Value<'de, 'r> {
    fn single(kind: Kind, number: u64, wire: Wire<'de>, rest: &'r mut &'de [u8]) -> Value<'de, 'r> {
        Value { kind, shape: Shape::One, number, wire, rest }
    }

    /// Returns the text of a string or of a quantity.
    fn text(&self) -> Result<Cow<'de, str>, Error> {
        let bytes = match (self.shape, self.kind, self.wire) {
            (Shape::One, Kind::Text, Wire::Bytes(bytes)) => bytes,
            (Shape::One, Kind::Wrapped, Wire::Bytes(bytes)) => find(bytes, 1)?,
            _ => return Err(self.type_error()),
        };
        Ok(lossy(bytes))
    }

    /// Returns an integer, or a time in microseconds.
    fn int(&self) -> Result<i64, Error> {
        match (self.shape, self.kind, self.wire) {
            (Shape::One, Kind::Int, Wire::Varint(value)) => Ok(value.cast_signed()),
            (Shape::One, kind @ (Kind::Time | Kind::MicroTime), Wire::Bytes(bytes)) => {
                micros(kind, bytes)
            }
            _ => Err(self.type_error()),
        }
    }

    fn bool(&self) -> Result<bool, Error> {
        match (self.shape, self.kind, self.wire) {
            (Shape::One, Kind::Bool, Wire::Varint(value)) => Ok(value != 0),
            _ => Err(self.type_error()),
        }
    }

    /// Returns the entries of a map, or the fields of a message.
    fn pairs(self) -> Result<Pairs<'de, 'r>, Error> {
        match (self.shape, self.kind, self.wire) {
            (Shape::Map, ..) => Ok(Pairs::Entries(Repeated::new(self))),
            (Shape::One, Kind::Message(message), Wire::Bytes(bytes)) => {
                Ok(Pairs::Fields(Fields { message, rest: bytes, outer: None, next: None }))
            }
            _ => Err(self.type_error()),
        }
    }

    /// Returns the error of a field whose type is not the one that the view reads.
    fn type_error(&self) -> Error {
        Error(format!("field {}: another type", self.number))
    }

    /// Returns the message of a Time or MicroTime; `None` for another field.
    fn time(&self) -> Option<&'de [u8]> {
        match (self.kind, self.shape, self.wire) {
            (Kind::Time | Kind::MicroTime, Shape::One, Wire::Bytes(bytes)) => Some(bytes),
            _ => None,
        }
    }
}

impl<'de> Deserializer<'de> for Value<'de, '_> {
    type Error = Error;

    /// Reads a field in the form that its type has, for views that accept a field of any type. The
    /// methods written out below do not call this one: a type that asks for one form gets no code
    /// for the others.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match (self.shape, self.kind) {
            (Shape::List, _) => self.deserialize_seq(visitor),
            (Shape::Map, _) | (_, Kind::Message(_)) => self.deserialize_map(visitor),
            (_, Kind::Text | Kind::Wrapped) => self.deserialize_str(visitor),
            (_, Kind::Int) => self.deserialize_i64(visitor),
            (_, Kind::Bool) => self.deserialize_bool(visitor),
            (_, Kind::Time | Kind::MicroTime) => match self.wire {
                Wire::Bytes([]) => visitor.visit_unit(),
                _ => self.deserialize_i64(visitor),
            },
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_map(self.pairs()?)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_map(self.pairs()?)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.shape {
            Shape::List => visitor.visit_seq(Repeated::new(self)),
            _ => Err(self.type_error()),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str(&self.text()?)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_i64(self.int()?)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_bool(self.bool()?)
    }

    /// Reads an option: an empty time is absent.
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.time() {
            Some([]) => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    /// Converts microseconds to a time; leaves anything else as it is.
    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.time() {
            Some(bytes) => visitor.visit_i64(micros(self.kind, bytes)?),
            None => visitor.visit_newtype_struct(self),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_enum(StrDeserializer::new(&self.text()?))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        i8 i16 i32 u8 u16 u32 u64 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct
        identifier
    }
}

/// The source of a struct or a map: one enum, so that a type is compiled only once for both.
enum Pairs<'de, 'r> {
    Fields(Fields<'de>),
    Entries(Repeated<'de, 'r>),
}

impl<'de> MapAccess<'de> for Pairs<'de, '_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let key = match self {
            Pairs::Fields(fields) => fields.next_name()?.map(Cow::Borrowed),
            Pairs::Entries(entries) => entries.next_key()?,
        };
        key.map(|key| seed.deserialize(StrDeserializer::new(&key))).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let (name, value) = match self {
            Pairs::Fields(fields) => fields.value()?,
            Pairs::Entries(entries) => ("", entries.entry()),
        };
        seed.deserialize(value).map_err(|error| error.in_field(name))
    }
}

/// Reads a message as a map of its known fields.
struct Fields<'de> {
    message: &'static Message,
    rest: &'de [u8],
    /// While the fields of an inline message are read: the outer message.
    outer: Option<(&'static Message, &'de [u8])>,
    next: Option<(&'static Field, Wire<'de>)>,
}

impl<'de> Fields<'de> {
    /// Returns the next field that the view has; an inlined message is read as fields of this one.
    fn next_name(&mut self) -> Result<Option<&'static str>, Error> {
        loop {
            let Some((number, wire)) = field(&mut self.rest)? else {
                let Some((message, rest)) = self.outer.take() else { return Ok(None) };
                (self.message, self.rest) = (message, rest);
                continue;
            };
            let Some(known) = self.message.0.iter().find(|known| known.number == number) else {
                continue;
            };
            match (known.shape, known.kind, wire) {
                (Shape::Inline, Kind::Message(inner), Wire::Bytes(bytes)) => {
                    self.outer = Some((self.message, self.rest));
                    (self.message, self.rest) = (inner, bytes);
                }
                _ => {
                    self.next = Some((known, wire));
                    return Ok(Some(known.name));
                }
            }
        }
    }

    /// Returns the value of the field that was named last, with its name.
    fn value(&mut self) -> Result<(&'static str, Value<'de, '_>), Error> {
        let (field, wire) = self.next.take().ok_or_else(|| Error("a value without key".into()))?;
        let Field { number, name, kind, shape } = *field;
        Ok((name, Value { kind, shape, number, wire, rest: &mut self.rest }))
    }
}

/// Reads the consecutive values of one number: a list, or the entries of a map.
struct Repeated<'de, 'r> {
    kind: Kind,
    number: u64,
    next: Option<Wire<'de>>,
    rest: &'r mut &'de [u8],
    /// The entry whose key was read.
    entry: Option<Wire<'de>>,
}

/// The value of a part that a map's entry lacks.
const EMPTY: Wire<'static> = Wire::Bytes(&[]);

impl<'de, 'r> Repeated<'de, 'r> {
    fn new(Value { kind, number, wire, rest, .. }: Value<'de, 'r>) -> Repeated<'de, 'r> {
        Repeated { kind, number, next: Some(wire), rest, entry: None }
    }

    /// Takes the next value of the same field number, if the next field has it.
    fn take(&mut self) -> Result<Option<Wire<'de>>, Error> {
        if let Some(first) = self.next.take() {
            return Ok(Some(first));
        }
        let mut ahead = *self.rest;
        Ok(match field(&mut ahead)? {
            Some((number, wire)) if number == self.number => {
                *self.rest = ahead;
                Some(wire)
            }
            _ => None,
        })
    }

    /// Reads the key of the next entry, whose value is kept for `entry`.
    fn next_key(&mut self) -> Result<Option<Cow<'de, str>>, Error> {
        let Some(wire) = self.take()? else { return Ok(None) };
        let Wire::Bytes(mut entry) = wire else { return Err(Short::Malformed.into()) };
        let (mut key, mut value) = (EMPTY, EMPTY);
        while let Some((number, wire)) = field(&mut entry)? {
            match number {
                1 => key = wire,
                2 => value = wire,
                _ => {}
            }
        }
        self.entry = Some(value);
        Value::single(Kind::Text, 1, key, &mut &[][..]).text().map(Some)
    }

    /// Returns the value of the entry whose key was read last. A map's entry has no repeated
    /// fields, so its value takes nothing from `rest`.
    fn entry(&mut self) -> Value<'de, '_> {
        Value::single(self.kind, 2, self.entry.take().unwrap_or(EMPTY), self.rest)
    }
}

impl<'de> SeqAccess<'de> for Repeated<'de, '_> {
    type Error = Error;

    fn next_element_seed<E: DeserializeSeed<'de>>(
        &mut self,
        seed: E,
    ) -> Result<Option<E::Value>, Error> {
        let Some(wire) = self.take()? else { return Ok(None) };
        seed.deserialize(Value::single(self.kind, self.number, wire, &mut &[][..])).map(Some)
    }
}

/// The first bytes of every envelope.
pub const MAGIC: &[u8] = b"k8s\0";

/// Returns whether the bytes begin with the envelope's magic; others are JSON or text.
pub fn is_enveloped(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// Returns the message in an envelope. Upstream: `runtime.Unknown`.
pub fn open(envelope: &[u8]) -> Result<&[u8], Error> {
    let unknown = envelope.strip_prefix(MAGIC);
    find(unknown.ok_or_else(|| Error("no envelope".to_owned()))?, 2)
}

/// Returns the kind that an envelope names; empty where it names none.
pub fn kind(envelope: &[u8]) -> &str {
    let unknown = envelope.strip_prefix(MAGIC).unwrap_or_default();
    let kind = find(unknown, 1).and_then(|types| find(types, 2));
    kind.ok().and_then(|kind| std::str::from_utf8(kind).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{
        Lease, Meta, Node, Object, PartialObjectMetadata, Pod, Timestamp, messages,
    };

    /// One pod, as kube-apiserver writes it.
    const JSON: &[u8] = include_bytes!("../../../fixtures/pod.json");
    const PROTOBUF: &[u8] = include_bytes!("../../../fixtures/pod.protobuf");

    fn decode<T: Object>(bytes: &[u8]) -> Result<T, Error> {
        from_slice(T::MESSAGE.unwrap(), bytes)
    }

    #[test]
    fn a_pod_is_the_same_in_both_forms() {
        assert_eq!((kind(PROTOBUF), kind(JSON)), ("Pod", ""));
        let message = open(PROTOBUF).unwrap();
        let pod: Pod = decode(message).unwrap();
        assert_eq!(pod, serde_json::from_slice(JSON).unwrap());
        let metadata: PartialObjectMetadata = decode(message).unwrap();
        assert_eq!(metadata, serde_json::from_slice(JSON).unwrap());

        assert!(pod.is_ready() && pod.meta.is_being_deleted() && pod.status.is_disruption_target());
        let mesh = pod.named_ports().find(|port| port.key == ("mesh".into(), "UDP".into()));
        assert_eq!(mesh.map(|port| port.number), Some(15001));
        assert_eq!(pod.max_restarts(), (3, 2));
        assert!(pod.quota().has_cross_namespace_affinity && pod.quota().has_deadline);
        assert_eq!(pod.meta.owners().len(), 2);
    }

    /// The view of a node's resources is a struct with one of the map's keys.
    #[test]
    fn a_struct_is_read_from_a_map() {
        let nested = |number: u8, inner: &[u8]| {
            let length = u8::try_from(inner.len()).unwrap();
            [&[number << 3 | 2, length], inner].concat()
        };
        let entry = |name: &str, amount: &str| {
            let amount = nested(2, &nested(1, amount.as_bytes()));
            nested(2, &[nested(1, name.as_bytes()), amount].concat())
        };
        let status = [entry("memory", "1Ki"), entry("cpu", "1500m"), entry("pods", "9")].concat();
        let node: Node = decode(&nested(3, &status)).unwrap();
        assert_eq!(node.status.allocatable_cpu.milli_value(), 1500);
    }

    #[test]
    fn a_pod_that_is_cut_off_is_refused() {
        let message = open(PROTOBUF).unwrap();
        // A message that is cut at the end of one of its three fields is a valid pod with fewer
        // fields.
        let (mut rest, mut ends) = (message, vec![0]);
        while field(&mut rest).unwrap().is_some() {
            ends.push(message.len() - rest.len());
        }
        for cut in 0..message.len() {
            assert_eq!(decode::<Pod>(&message[..cut]).is_ok(), ends.contains(&cut), "cut at {cut}");
        }
        assert!(open(&PROTOBUF[..40]).is_err() && open(JSON).is_err());
    }

    #[test]
    fn odd_messages() {
        let decode = decode::<PartialObjectMetadata>;
        let metadata = |bytes: &[u8]| {
            let length = u8::try_from(bytes.len()).unwrap();
            [&[0x0a, length], bytes].concat()
        };
        for (bytes, why) in [
            (&b"\x08\x01"[..], "a number for a text"),
            (b"\x3a\x01a", "a text for a number"),
            (b"\x0f", "an unknown wire type"),
            (b"\x5a\x05\x0a\x01a\x12\x02", "an entry of a map that is cut off"),
            (b"\x38\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "a number of too many bytes"),
            (b"\x72\x01a\x0a\x01b\x72\x01c", "a list in two pieces"),
        ] {
            assert!(decode(&metadata(bytes)).is_err(), "{why}");
        }
        let found = decode(&metadata(
            // Text; a negative number; a time; a null time; an entry without a value; one unknown
            // number of each wire type.
            b"\x0a\x01n\x38\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x42\x05\x08\x02\x10\x80\x64\x4a\x00\
              \x5a\x03\x0a\x01k\xf8\x01\x01\xfa\x01\x01?\xf9\x01........\xfd\x01....",
        ));
        let meta = found.unwrap().meta;
        assert_eq!((&*meta.name, meta.generation), ("n", -1));
        assert_eq!(meta.creation_timestamp, Some(Timestamp::from_secs(2)));
        assert_eq!((meta.deletion_timestamp, meta.labels.get("k")), (None, Some("")));
    }

    #[test]
    fn only_a_micro_time_has_fractions_of_a_second() {
        // 2 seconds and 3,000,999 nanoseconds.
        let time = b"\x08\x02\x10\xa7\x95\xb7\x01";
        let field = |number: u8, inner: &[u8]| {
            [&[number << 3 | 2, u8::try_from(inner.len()).unwrap()], inner].concat()
        };
        let lease = [field(1, &field(8, time)), field(2, &field(4, time))].concat();
        let Lease { meta, spec } = decode(&lease).unwrap();
        assert_eq!(meta.creation_timestamp, Some(Timestamp::from_secs(2)));
        assert_eq!(spec.renew_time, Some(Timestamp::from_micros(2_003_000)));
    }

    /// As Go 1.26's `encoding/json` writes these bytes.
    #[test]
    fn each_byte_that_is_not_utf8_is_one_replacement_character() {
        for (bytes, shown) in [
            (&b"plain \xc3\xbc"[..], "plain \u{fc}"),
            (b"a\xff", "a\u{fffd}"),
            (b"\xff\xfea", "\u{fffd}\u{fffd}a"),
            // Cut off in a character of three bytes, and of four.
            (b"\xe2\x82", "\u{fffd}\u{fffd}"),
            (b"\xf0\x9f\x98-", "\u{fffd}\u{fffd}\u{fffd}-"),
            (b"\xe2\x82\xe2\x82\xac", "\u{fffd}\u{fffd}\u{20ac}"),
            // A surrogate, an overlong form, beyond the last character.
            (b"\xed\xa0\x80", "\u{fffd}\u{fffd}\u{fffd}"),
            (b"\xc0\x80", "\u{fffd}\u{fffd}"),
            (b"\xf4\x90\x80\x80", "\u{fffd}\u{fffd}\u{fffd}\u{fffd}"),
            (b"\x80a\xc3", "\u{fffd}a\u{fffd}"),
        ] {
            assert_eq!(lossy(bytes), shown, "{bytes:?}");
        }
    }

    #[test]
    fn any_string_may_hold_bytes_that_are_not_utf8() {
        let field = |number: u8, bytes: &[u8]| {
            [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
        };
        let entry = [field(1, b"k\xff"), field(2, b"v\xe2\x82")].concat();
        let owner = [field(1, b"K"), field(3, b"o\xff"), field(4, b"u\xff")].concat();
        let metadata = [
            field(1, b"n\xff"),
            field(11, &entry),
            field(12, &entry),
            field(13, &owner),
            field(14, b"f\xff"),
        ];
        let status = field(3, &field(1, b"\xff"));
        let pod: Pod = decode(&[field(1, &metadata.concat()), status].concat()).unwrap();
        let Meta { name, labels, annotations, .. } = &pod.meta;
        assert_eq!(&**name, "n\u{fffd}");
        assert_eq!(labels.get("k\u{fffd}"), Some("v\u{fffd}\u{fffd}"));
        assert_eq!(annotations, labels);
        assert_eq!(pod.meta.owners()[0].name, "o\u{fffd}");
        assert_eq!(pod.meta.owners()[0].uid, "u\u{fffd}".into());
        assert!(pod.meta.has_finalizer("f\u{fffd}"));
        assert_eq!(pod.status.phase, crate::objects::PodPhase::Unknown);
    }

    #[test]
    fn tables_name_each_field_once() {
        let mut left = vec![
            &messages::POD,
            &messages::NODE,
            &messages::LEASE,
            &messages::POD_DELETION,
            &messages::STATUS,
            &messages::LIST_META,
        ];
        while let Some(Message(fields)) = left.pop() {
            assert!(fields.is_sorted_by(|a, b| a.number < b.number), "{fields:?}");
            left.extend(fields.iter().filter_map(|field| match field.kind {
                Kind::Message(message) => Some(message),
                _ => None,
            }));
        }
    }
}
