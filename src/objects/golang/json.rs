//! A pod template as Go encodes it to JSON.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::types::{Kind, POD_TEMPLATE_SPEC, Type, fields, is_nil};

/// The treatment of integers that are decoded into a Go map with values of any type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// Decoded by apimachinery's JSON package, which keeps integers.
    Integers,
    /// Decoded by `encoding/json`: integers beyond 2^53 lose digits.
    Floats,
}

/// Returns the patch that replaces an object's template by this one, byte for byte as the Go
/// manager makes it: `{"spec":{"template":{"$patch":"replace",...}}}`. Upstream: `getPatch` of the
/// DaemonSet and StatefulSet controllers, which differ in their numbers.
pub fn pod_template_patch(template: &Value, numbers: Numbers) -> String {
    let mut writer = Writer { out: String::new(), numbers };
    writer.out.push_str(r#"{"spec":{"template":"#);
    let mut members = members_of(POD_TEMPLATE_SPEC, Some(template));
    let replace = Value::String("replace".into());
    members.push(("$patch".to_owned(), Type::parse("string"), Some(&replace)));
    writer.members(members);
    writer.out.push_str("}}");
    writer.out
}

/// The name, type and value of a member that a struct writes.
type Member<'v> = (String, Type, Option<&'v Value>);

/// Returns the members of a struct that are not omitted, including those of embedded structs.
fn members_of<'v>(name: &str, object: Option<&'v Value>) -> Vec<Member<'v>> {
    let mut members = Vec::new();
    for field in fields(name) {
        let value = field.value_in(object);
        if field.is_embedded() {
            members.extend(members_of(field.r#type.name, object));
        } else if !(field.omit_empty && is_empty(field.r#type.kind, value)
            || field.omit_zero && value.is_none())
        {
            members.push((field.json_name(), field.r#type, value));
        }
    }
    members
}

/// Returns whether `omitempty` omits the value; never true for a struct.
pub(super) fn is_empty(kind: Kind, value: Option<&Value>) -> bool {
    match kind {
        Kind::String => value.and_then(Value::as_str).unwrap_or_default().is_empty(),
        Kind::Bool => value.and_then(Value::as_bool) != Some(true),
        Kind::Int => value.is_none_or(|number| number.as_i64() == Some(0)),
        Kind::Pointer(_) => value.is_none(),
        Kind::Slice(_) | Kind::Map(_) => is_nil(value),
        Kind::Struct | Kind::Quantity | Kind::IntOrString | Kind::Time | Kind::Fields => false,
    }
}

/// Writes the JSON that Go encodes for a value of a Go type.
struct Writer {
    out: String,
    numbers: Numbers,
}

impl Writer {
    /// Writes the members of an object in the order of their names.
    fn members(&mut self, mut members: Vec<Member<'_>>) {
        members.sort_by(|one, other| one.0.cmp(&other.0));
        self.list('{', '}', members, |writer, (name, of, value)| {
            writer.string(&name);
            writer.out.push(':');
            writer.value(of, value);
        });
    }

    /// Writes a value as Go encodes its type; the zero value of the type if it is absent or of
    /// another type.
    fn value(&mut self, of: Type, value: Option<&Value>) {
        match of.kind {
            Kind::String => self.string(value.and_then(Value::as_str).unwrap_or_default()),
            Kind::Bool => {
                let is_true = value.and_then(Value::as_bool) == Some(true);
                self.out.push_str(if is_true { "true" } else { "false" });
            }
            Kind::Int => self.number(value.and_then(Value::as_i64).unwrap_or_default()),
            Kind::Pointer(inner) if value.is_some() => self.value(Type::parse(inner), value),
            Kind::Slice(inner) if !is_nil(value) => {
                let items = value.and_then(Value::as_array).into_iter().flatten();
                let inner = Type::parse(inner);
                self.list('[', ']', items, |writer, item| {
                    writer.value(inner, Some(item).filter(|item| !item.is_null()));
                });
            }
            Kind::Map(values) if !is_nil(value) => {
                let values = Type::parse(values);
                let entries = value.and_then(Value::as_object).into_iter().flatten();
                self.members(
                    entries.map(|(key, value)| (key.clone(), values, Some(value))).collect(),
                );
            }
            Kind::Pointer(_) | Kind::Slice(_) | Kind::Map(_) => self.out.push_str("null"),
            Kind::Struct => self.members(members_of(of.name, value)),
            // The API server serves quantities in their canonical form.
            Kind::Quantity => match value {
                Some(Value::Number(number)) => self.string(&number.to_string()),
                other => self.string(other.and_then(Value::as_str).unwrap_or("0")),
            },
            Kind::IntOrString => match value {
                Some(Value::String(text)) => self.string(text),
                other => self.number(other.and_then(Value::as_i64).unwrap_or_default()),
            },
            Kind::Time | Kind::Fields => self.any(value.unwrap_or(&Value::Null)),
        }
    }

    /// Writes a value without a type.
    fn any(&mut self, value: &Value) {
        match value {
            Value::Object(members) => self.any_members(members),
            Value::Array(items) => self.list('[', ']', items, Writer::any),
            Value::String(text) => self.string(text),
            Value::Number(number) => match number.as_i64() {
                Some(integer) => self.number(integer),
                None => _ = write!(self.out, "{number}"),
            },
            Value::Bool(_) | Value::Null => _ = write!(self.out, "{value}"),
        }
    }

    /// Writes the members of an object whose values have no type.
    fn any_members(&mut self, members: &Map<String, Value>) {
        let mut members: Vec<_> = members.iter().collect();
        members.sort_by_key(|(name, _)| *name);
        self.list('{', '}', members, |writer, (name, value)| {
            writer.string(name);
            writer.out.push(':');
            writer.any(value);
        });
    }

    /// Writes items between `open` and `close`, with commas between them.
    fn list<T>(
        &mut self,
        open: char,
        close: char,
        items: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut Writer, T),
    ) {
        self.out.push(open);
        for (at, item) in items.into_iter().enumerate() {
            if at > 0 {
                self.out.push(',');
            }
            write(self, item);
        }
        self.out.push(close);
    }

    /// Writes an integer; as a float if it was decoded into one.
    fn number(&mut self, number: i64) {
        // Both languages print the shortest digits that parse to the same float, without an
        // exponent.
        match self.numbers {
            Numbers::Integers => _ = write!(self.out, "{number}"),
            Numbers::Floats => _ = write!(self.out, "{}", number as f64),
        }
    }

    /// Writes a string with the escapes of Go, which also escape HTML.
    /// Upstream: `encoding/json` with its escaping of HTML.
    fn string(&mut self, text: &str) {
        self.out.push('"');
        for letter in text.chars() {
            match letter {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                '\0'..=' ' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' if letter != ' ' => {
                    _ = write!(self.out, "\\u{:04x}", u32::from(letter));
                }
                _ => self.out.push(letter),
            }
        }
        self.out.push('"');
    }
}
