//! Finds the function for a name and its arguments.

use super::authorizer::{self, Authorize};
use super::value::Value;
use super::{Result, formats, kubernetes, lists, net, operators, strings, times};

/// Returns whether `name` is a prefix of function names, as `sets` in `sets.contains`.
pub fn is_namespace(name: &str) -> bool {
    matches!(name, "optional" | "sets" | "lists" | "strings" | "ip" | "format" | "cel")
}

/// Returns the type that a name stands for.
pub fn type_named(name: &str) -> Option<Value> {
    let known = matches!(
        name,
        "bool"
            | "bytes"
            | "double"
            | "google.protobuf.Duration"
            | "google.protobuf.Timestamp"
            | "int"
            | "list"
            | "map"
            | "net.CIDR"
            | "net.IP"
            | "null_type"
            | "optional_type"
            | "string"
            | "type"
            | "uint"
    );
    known.then(|| Value::Type(name.into()))
}

/// Returns the steps that a function is charged for the size of its arguments, with cel-go's factor
/// of a tenth for each byte of a text.
pub fn cost(name: &str, args: &[Value]) -> u64 {
    let size = |value: &Value| match value {
        Value::String(text) => text.len() / 10,
        Value::Bytes(bytes) => bytes.len() / 10,
        Value::List(items) => match name {
            // Both take as long for any length.
            "_[_]" | "size" => 0,
            "_+_" => items.len() / 16,
            _ => items.len(),
        },
        _ => 0,
    };
    args.iter().map(size).sum::<usize>() as u64
}

/// A family of functions. Returns `None` when it has no function of this name for these arguments.
type Family = fn(&str, &[Value]) -> Option<Result<Value>>;

/// Calls a function. The first argument of a member function is its receiver.
pub fn call(
    name: &str,
    is_member: bool,
    args: &[Value],
    authorize: Option<&dyn Authorize>,
) -> Result<Value> {
    let found = match args {
        [] if name == "optional.none" => Some(Ok(Value::Optional(None))),
        [of] => operators::unary(name, of),
        [a, b] if !is_member => operators::binary(name, a, b),
        _ => None,
    };
    let families: [Family; 6] =
        [lists::call, strings::call, times::call, kubernetes::call, net::call, formats::call];
    found
        .or_else(|| families.iter().find_map(|family| family(name, args)))
        .or_else(|| authorizer::call(name, args, authorize))
        .unwrap_or_else(|| Err("no such overload".to_owned()))
}
