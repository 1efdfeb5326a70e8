//! A pod template as Go prints it for hashing. Upstream: `k8s.io/utils/dump.ForHash`, which is the
//! format `%#v` of go-spew, with sorted keys and without methods and addresses.

use std::fmt::Write;

use serde_json::Value;

use super::quantity::GoQuantity;
use super::types::{Kind, POD_TEMPLATE_SPEC, Type, fields, is_nil};

/// The text that the Go manager hashes for the name of a template's ReplicaSet or
/// ControllerRevision.
/// Upstream: `hashutil.DeepHashObject`.
///
/// Not the same as upstream's for a template whose own metadata has a creationTimestamp, as the
/// dump of a time shows the internals of the process's time zone.
pub fn pod_template_dump(template: &Value) -> String {
    let mut out = String::new();
    dump(&mut out, Type::parse(POD_TEMPLATE_SPEC), Some(template), true);
    out
}

/// `typed`: whether the type stands before the value.
fn dump(out: &mut String, of: Type, value: Option<&Value>, typed: bool) {
    if typed {
        out.push('(');
        out.push_str(of.name);
        out.push(')');
    }
    match of.kind {
        Kind::String => out.push_str(value.and_then(Value::as_str).unwrap_or_default()),
        Kind::Bool => _ = write!(out, "{}", value.and_then(Value::as_bool) == Some(true)),
        Kind::Int => _ = write!(out, "{}", value.and_then(Value::as_i64).unwrap_or_default()),
        Kind::Pointer(inner) => match value {
            Some(_) => dump(out, Type::parse(inner), value, false),
            None => out.push_str("<nil>"),
        },
        Kind::Slice(_) | Kind::Map(_) if is_nil(value) => out.push_str("<nil>"),
        Kind::Slice(inner) => {
            let inner = Type::parse(inner);
            out.push('[');
            for (at, item) in value.and_then(Value::as_array).into_iter().flatten().enumerate() {
                separate(out, at);
                dump(out, inner, Some(item), false);
            }
            out.push(']');
        }
        Kind::Map(values) => {
            let values = Type::parse(values);
            let mut entries: Vec<_> =
                value.and_then(Value::as_object).into_iter().flatten().collect();
            entries.sort_by_key(|(key, _)| *key);
            out.push_str("map[");
            for (at, (key, value)) in entries.into_iter().enumerate() {
                separate(out, at);
                out.push_str(key);
                out.push(':');
                dump(out, values, Some(value), false);
            }
            out.push(']');
        }
        Kind::Struct => {
            out.push('{');
            for (at, field) in fields(of.name).enumerate() {
                separate(out, at);
                out.push_str(field.go_name);
                out.push(':');
                dump(out, field.r#type, field.of(value), true);
            }
            out.push('}');
        }
        Kind::Quantity => {
            let text = match value {
                Some(Value::Number(number)) => number.to_string(),
                other => other.and_then(Value::as_str).unwrap_or_default().to_owned(),
            };
            _ = write!(out, "{}", GoQuantity::parse(&text));
        }
        Kind::IntOrString => {
            let (text, number) = match value {
                Some(Value::String(text)) => (Some(text.as_str()), 0),
                other => (None, other.and_then(Value::as_i64).unwrap_or_default()),
            };
            _ = write!(
                out,
                "{{Type:(intstr.Type){} IntVal:(int32){number} StrVal:(string){}}}",
                u8::from(text.is_some()),
                text.unwrap_or_default()
            );
        }
        Kind::Time => out
            .push_str("{Time:(time.Time){wall:(uint64)0 ext:(int64)0 loc:(*time.Location)<nil>}}"),
        Kind::Fields => {
            // The bytes of the text, as numbers.
            let text = value.map(Value::to_string).unwrap_or_default();
            out.push_str("{Raw:([]uint8)[");
            for (at, byte) in text.bytes().enumerate() {
                separate(out, at);
                _ = write!(out, "{byte}");
            }
            out.push_str("]}");
        }
    }
}

fn separate(out: &mut String, at: usize) {
    if at > 0 {
        out.push(' ');
    }
}
