//! A pod template as Go prints it for hashing. Upstream: `k8s.io/utils/dump.ForHash`, which is the
//! format `%#v` of go-spew, with sorted keys and without methods and addresses.

use std::fmt::Write;

use serde_json::{Value, json};

use super::quantity::GoQuantity;
use super::types::{Kind, POD, POD_TEMPLATE_SPEC, Type, fields, is_nil};

/// Returns the text that the Go manager hashes for the name of a template's ReplicaSet or
/// ControllerRevision.
/// Upstream: `hashutil.DeepHashObject`.
///
/// Not the same as upstream's for a template whose own metadata has a creationTimestamp, as the
/// dump of a time shows the internals of the process's time zone.
pub fn pod_template_dump(template: &Value) -> String {
    let mut dump = Dump { out: String::new(), keeps_empty: false };
    dump.value(Type::parse(POD_TEMPLATE_SPEC), Some(template), true);
    dump.out
}

/// Returns the text that the Go kubelet hashes for the uid of a static pod: of the pod with its
/// defaults, as its internal struct.
/// Upstream: `applyDefaults`.
///
/// Not the same as upstream's for a pod whose metadata has a creationTimestamp, or that has a
/// status: the former shows the process's time zone, the latter is left out.
pub fn static_pod_dump(pod: &Value) -> String {
    let mut pod = pod.clone();
    if let Some(pod) = pod.as_object_mut() {
        pod.remove("status");
    }
    if let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) {
        // Where the internal struct has them.
        for field in ["hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "hostUsers"] {
            if let Some(value) = spec.remove(field) {
                spec.entry("securityContext").or_insert_with(|| json!({}))[field] = value;
            }
        }
        let old_name = spec.get("serviceAccount").cloned();
        if let Some(name) = old_name.filter(|_| is_empty(spec.get("serviceAccountName"))) {
            spec.insert("serviceAccountName".to_owned(), name);
        }
    }
    let mut dump = Dump { out: String::new(), keeps_empty: true };
    // A pointer to the struct, as it is decoded.
    dump.out.push_str("(*core.Pod)");
    dump.value(Type::parse(POD), Some(&pod), false);
    dump.out
}

fn is_empty(text: Option<&Value>) -> bool {
    text.and_then(Value::as_str).is_none_or(str::is_empty)
}

/// Writes go-spew's dump of a Go value that was decoded from JSON.
struct Dump {
    out: String,
    /// Whether empty lists differ from absent ones, as they do after decoding JSON.
    keeps_empty: bool,
}

impl Dump {
    /// Appends a value as go-spew's `%#v` prints it, by its type. `typed`: whether the type stands
    /// before the value.
    fn value(&mut self, of: Type, value: Option<&Value>, typed: bool) {
        if typed {
            self.out.push('(');
            self.out.push_str(of.name);
            self.out.push(')');
        }
        match of.kind {
            Kind::String => self.out.push_str(value.and_then(Value::as_str).unwrap_or_default()),
            Kind::Bool => _ = write!(self.out, "{}", value.and_then(Value::as_bool) == Some(true)),
            Kind::Int => {
                _ = write!(self.out, "{}", value.and_then(Value::as_i64).unwrap_or_default())
            }
            Kind::Pointer(inner) => match value {
                Some(_) => self.value(Type::parse(inner), value, false),
                None => self.out.push_str("<nil>"),
            },
            Kind::Slice(_) | Kind::Map(_) if self.is_nil(value) => self.out.push_str("<nil>"),
            Kind::Slice(inner) => {
                let inner = Type::parse(inner);
                self.out.push('[');
                for (at, item) in value.and_then(Value::as_array).into_iter().flatten().enumerate()
                {
                    separate(&mut self.out, at);
                    self.value(inner, Some(item), false);
                }
                self.out.push(']');
            }
            Kind::Map(values) => {
                let values = Type::parse(values);
                let mut entries: Vec<_> =
                    value.and_then(Value::as_object).into_iter().flatten().collect();
                entries.sort_by_key(|(key, _)| *key);
                self.out.push_str("map[");
                for (at, (key, value)) in entries.into_iter().enumerate() {
                    separate(&mut self.out, at);
                    self.out.push_str(key);
                    self.out.push(':');
                    self.value(values, Some(value), false);
                }
                self.out.push(']');
            }
            Kind::Struct => {
                self.out.push('{');
                for (at, field) in fields(of.name).enumerate() {
                    separate(&mut self.out, at);
                    self.out.push_str(field.go_name);
                    self.out.push(':');
                    self.value(field.r#type, field.value_in(value), true);
                }
                self.out.push('}');
            }
            Kind::Quantity => {
                let text = match value {
                    Some(Value::Number(number)) => number.to_string(),
                    other => other.and_then(Value::as_str).unwrap_or_default().to_owned(),
                };
                _ = write!(self.out, "{}", GoQuantity::parse(&text));
            }
            Kind::IntOrString => {
                let (text, number) = match value {
                    Some(Value::String(text)) => (Some(text.as_str()), 0),
                    other => (None, other.and_then(Value::as_i64).unwrap_or_default()),
                };
                _ = write!(
                    self.out,
                    "{{Type:(intstr.Type){} IntVal:(int32){number} StrVal:(string){}}}",
                    u8::from(text.is_some()),
                    text.unwrap_or_default()
                );
            }
            Kind::Time => self.out.push_str(
                "{Time:(time.Time){wall:(uint64)0 ext:(int64)0 loc:(*time.Location)<nil>}}",
            ),
            Kind::Fields => {
                // The bytes of the text, as numbers.
                let text = value.map(Value::to_string).unwrap_or_default();
                self.out.push_str("{Raw:([]uint8)[");
                for (at, byte) in text.bytes().enumerate() {
                    separate(&mut self.out, at);
                    _ = write!(self.out, "{byte}");
                }
                self.out.push_str("]}");
            }
        }
    }

    /// Returns whether a list or a map is nil in Go.
    fn is_nil(&self, value: Option<&Value>) -> bool {
        match self.keeps_empty {
            true => value.is_none(),
            false => is_nil(value),
        }
    }
}

/// Writes a space before all items but the first.
fn separate(out: &mut String, at: usize) {
    if at > 0 {
        out.push(' ');
    }
}
