//! The values of expressions.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value as Json;

use crate::access::Access;
use kube_controller_manager::objects::Quantity;

#[derive(Clone, Debug)]
pub enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Arc<str>),
    Bytes(Arc<[u8]>),
    List(Arc<Vec<Value>>),
    Map(Arc<BTreeMap<Key, Value>>),
    Duration(SignedDuration),
    Timestamp(Timestamp),
    Optional(Option<Arc<Value>>),
    /// A type, by its name.
    Type(Arc<str>),
    Quantity(Quantity),
    Ip(IpAddr),
    Cidr(IpAddr, u8),
    Url(Arc<Url>),
    Semver(Arc<Semver>),
    /// A named format of strings.
    Format(&'static str),
    Question(Arc<Question>),
    Answer(Arc<Answer>),
}

/// The key of a map. Numbers of both signs that are equal are the same key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    Bool(bool),
    Int(i64),
    /// A number above `i64::MAX`.
    Uint(u64),
    String(Arc<str>),
}

/// A parsed URL.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Url {
    pub(super) scheme: String,
    /// With its port.
    pub(super) host: String,
    pub(super) path: String,
    pub(super) query: String,
}

/// A semantic version. Build metadata is dropped: it does not affect the order.
#[derive(Clone, Debug, PartialEq)]
pub struct Semver {
    pub(super) numbers: [u64; 3],
    pub(super) pre_release: Vec<String>,
}

/// An access that an expression describes step by step.
#[derive(Clone, Debug, Default)]
pub struct Question {
    pub(super) account: Option<(String, String)>,
    pub(super) access: Access,
    pub(super) subresource: String,
    pub(super) stage: Stage,
}

/// How far a [`Question`] is described.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Stage {
    #[default]
    User,
    Path,
    Group,
    Resource,
}

/// The answer to a [`Question`].
#[derive(Clone, Debug)]
pub struct Answer {
    pub(super) allowed: bool,
    pub(super) reason: String,
}

impl Key {
    /// Converts a value to the key of a map; whole numbers of all types are the same key. `None`
    /// when a value of this type cannot be a key.
    pub fn of(value: &Value) -> Option<Key> {
        Some(match value {
            Value::Bool(value) => Key::Bool(*value),
            Value::Int(value) => Key::Int(*value),
            Value::Uint(value) => i64::try_from(*value).map_or(Key::Uint(*value), Key::Int),
            Value::Double(value) if value.fract() == 0.0 && value.abs() < 9.0e15 => {
                Key::Int(*value as i64)
            }
            Value::String(value) => Key::String(value.clone()),
            _ => return None,
        })
    }

    /// Returns the key as a value.
    pub fn value(&self) -> Value {
        match self {
            Key::Bool(value) => Value::Bool(*value),
            Key::Int(value) => Value::Int(*value),
            Key::Uint(value) => Value::Uint(*value),
            Key::String(value) => Value::String(value.clone()),
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::String(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::String(text.into())
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Value {
        Value::Bool(value)
    }
}

impl From<Option<Value>> for Value {
    fn from(value: Option<Value>) -> Value {
        Value::Optional(value.map(Arc::new))
    }
}

/// Untyped JSON: numbers without a fraction are integers, texts stay texts.
impl From<&Json> for Value {
    fn from(json: &Json) -> Value {
        match json {
            Json::Null => Value::Null,
            Json::Bool(value) => Value::Bool(*value),
            Json::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(number), _) => Value::Int(number),
                (None, number) => Value::Double(number.unwrap_or(f64::NAN)),
            },
            Json::String(text) => text.as_str().into(),
            Json::Array(items) => Value::list(items.iter().map(Value::from).collect()),
            Json::Object(members) => {
                let members = members
                    .iter()
                    .map(|(key, value)| (Key::String(key.as_str().into()), Value::from(value)));
                Value::Map(Arc::new(members.collect()))
            }
        }
    }
}

impl Value {
    pub fn list(items: Vec<Value>) -> Value {
        Value::List(Arc::new(items))
    }

    pub fn int(count: usize) -> Value {
        Value::Int(i64::try_from(count).unwrap_or(i64::MAX))
    }

    /// Returns the name of the value's type, as `type()` and errors show it.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Null => "null_type",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Uint(_) => "uint",
            Value::Double(_) => "double",
            Value::String(_) => "string",
            Value::Bytes(_) => "bytes",
            Value::List(_) => "list",
            Value::Map(_) => "map",
            Value::Duration(_) => "google.protobuf.Duration",
            Value::Timestamp(_) => "google.protobuf.Timestamp",
            Value::Optional(_) => "optional_type",
            Value::Type(_) => "type",
            Value::Quantity(_) => "kubernetes.Quantity",
            Value::Ip(_) => "net.IP",
            Value::Cidr(..) => "net.CIDR",
            Value::Url(_) => "kubernetes.URL",
            Value::Semver(_) => "kubernetes.Semver",
            Value::Format(_) => "kubernetes.NamedFormat",
            Value::Question(_) => "kubernetes.authorization.Authorizer",
            Value::Answer(_) => "kubernetes.authorization.Decision",
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// Returns whether the value is the zero value of its type. Upstream: `traits.Zeroer`.
    pub fn is_zero(&self) -> bool {
        match self {
            Value::Null => true,
            Value::Bool(value) => !value,
            Value::Int(value) => *value == 0,
            Value::Uint(value) => *value == 0,
            Value::Double(value) => *value == 0.0,
            Value::String(text) => text.is_empty(),
            Value::Bytes(bytes) => bytes.is_empty(),
            Value::List(items) => items.is_empty(),
            Value::Map(members) => members.is_empty(),
            Value::Duration(duration) => duration.is_zero(),
            Value::Optional(value) => value.is_none(),
            _ => false,
        }
    }

    /// Compares two values; `None` when they have no order.
    pub fn compare(&self, other: &Value) -> Option<Ordering> {
        Some(match (self, other) {
            (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
            (Value::Int(a), Value::Int(b)) => a.cmp(b),
            (Value::Uint(a), Value::Uint(b)) => a.cmp(b),
            (Value::Int(a), Value::Uint(b)) => i128::from(*a).cmp(&i128::from(*b)),
            (Value::Uint(a), Value::Int(b)) => i128::from(*a).cmp(&i128::from(*b)),
            (Value::Double(a), Value::Double(b)) => return a.partial_cmp(b),
            (Value::Double(a), Value::Int(b)) => return a.partial_cmp(&(*b as f64)),
            (Value::Int(a), Value::Double(b)) => return (*a as f64).partial_cmp(b),
            (Value::Double(a), Value::Uint(b)) => return a.partial_cmp(&(*b as f64)),
            (Value::Uint(a), Value::Double(b)) => return (*a as f64).partial_cmp(b),
            (Value::String(a), Value::String(b)) => a.cmp(b),
            (Value::Bytes(a), Value::Bytes(b)) => a.cmp(b),
            (Value::Duration(a), Value::Duration(b)) => a.cmp(b),
            (Value::Timestamp(a), Value::Timestamp(b)) => a.cmp(b),
            _ => return None,
        })
    }

    /// Converts a value to the text of `string()`; `None` when values of this type cannot be
    /// converted.
    pub fn text(&self) -> Option<String> {
        Some(match self {
            Value::String(text) => text.to_string(),
            Value::Bool(value) => value.to_string(),
            Value::Int(value) => value.to_string(),
            Value::Uint(value) => value.to_string(),
            Value::Double(value) => double(*value),
            Value::Bytes(bytes) => std::str::from_utf8(bytes).ok()?.to_owned(),
            Value::Duration(duration) => duration_text(*duration),
            Value::Timestamp(time) => time.to_string(),
            Value::Ip(ip) => ip.to_string(),
            Value::Cidr(ip, bits) => format!("{ip}/{bits}"),
            _ => return None,
        })
    }
}

/// Formats a duration as `string()` does: seconds with their fraction.
pub fn duration_text(duration: SignedDuration) -> String {
    let nanos = duration.as_nanos();
    let mut text = String::new();
    let sign = if nanos < 0 { "-" } else { "" };
    let (whole, fraction) = (nanos.abs() / 1_000_000_000, nanos.abs() % 1_000_000_000);
    let _ = write!(text, "{sign}{whole}");
    if fraction > 0 {
        let digits = format!("{fraction:09}");
        let _ = write!(text, ".{}", digits.trim_end_matches('0'));
    }
    text + "s"
}

/// Formats a number in the shortest form in which Go prints it.
pub fn double(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        (if value > 0.0 { "+Inf" } else { "-Inf" }).to_owned()
    } else if value != 0.0 && !(1e-4..1e6).contains(&value.abs()) {
        let text = format!("{value:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(exponent) => ('-', exponent),
            None => ('+', exponent),
        };
        format!("{digits}e{sign}{exponent:0>2}")
    } else {
        value.to_string()
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::Null, Value::Null) => true,
            (Value::List(a), Value::List(b)) => a == b,
            (Value::Map(a), Value::Map(b)) => a == b,
            (Value::Optional(a), Value::Optional(b)) => a == b,
            (Value::Type(a), Value::Type(b)) => a == b,
            (Value::Quantity(a), Value::Quantity(b)) => a.compare(*b).is_eq(),
            (Value::Ip(a), Value::Ip(b)) => a == b,
            (Value::Cidr(a, n), Value::Cidr(b, m)) => (a, n) == (b, m),
            (Value::Url(a), Value::Url(b)) => a == b,
            (Value::Semver(a), Value::Semver(b)) => a == b,
            (Value::Format(a), Value::Format(b)) => a == b,
            _ => self.compare(other) == Some(Ordering::Equal),
        }
    }
}
