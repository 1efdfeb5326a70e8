//! Arithmetic, comparison, selection and conversion. Upstream: cel-go's `common/types`.

use std::cmp::Ordering;
use std::sync::Arc;

use super::value::{Key, Value};
use super::{Result, net, times};

const NO_OVERLOAD: &str = "no such overload";
const OVERFLOW: &str = "integer overflow";
const UNSIGNED_OVERFLOW: &str = "unsigned integer overflow";

fn no_overload<T>() -> Result<T> {
    Err(NO_OVERLOAD.to_owned())
}

/// Returns the field of a value; `None` when it is absent. Errors: the value has no fields.
pub fn field(of: &Value, name: &str) -> Result<Option<Value>> {
    match of {
        Value::Map(members) => Ok(members.get(&Key::String(name.into())).cloned()),
        _ => no_overload(),
    }
}

/// Evaluates the binary operators that need both operands. `None`: not one of them.
pub fn binary(function: &str, a: &Value, b: &Value) -> Option<Result<Value>> {
    Some(match function {
        "_==_" => Ok((a == b).into()),
        "_!=_" => Ok((a != b).into()),
        "_<_" => ordered(a, b, Ordering::is_lt),
        "_<=_" => ordered(a, b, Ordering::is_le),
        "_>_" => ordered(a, b, Ordering::is_gt),
        "_>=_" => ordered(a, b, Ordering::is_ge),
        "_+_" => add(a, b),
        "_-_" => subtract(a, b),
        "_*_" | "_/_" | "_%_" => scale(function, a, b),
        "_[_]" => index(a, b).and_then(|found| match (found, a) {
            (found, Value::Optional(_)) => Ok(found.into()),
            (Some(found), _) => Ok(found),
            (None, Value::List(_)) => match b {
                Value::Int(at) => Err(format!("index out of bounds: {at}")),
                _ => no_overload(),
            },
            (None, _) => Err(format!("no such key: {}", b.text().unwrap_or_default())),
        }),
        "_[?_]" => index(a, b).map(Value::from),
        "_?._" => match (a, b.as_str()) {
            (Value::Optional(None), Some(_)) => Ok(a.clone()),
            (Value::Optional(Some(inner)), Some(name)) => field(inner, name).map(Value::from),
            (_, Some(name)) => field(a, name).map(Value::from),
            _ => no_overload(),
        },
        "@in" => contains(a, b),
        _ => return None,
    })
}

/// Evaluates an operator of order; comparisons with NaN are false.
fn ordered(a: &Value, b: &Value, holds: fn(Ordering) -> bool) -> Result<Value> {
    match (a, b) {
        (Value::Double(x), _) | (_, Value::Double(x)) if x.is_nan() => Ok(false.into()),
        _ => a.compare(b).map(|order| holds(order).into()).ok_or_else(|| NO_OVERLOAD.to_owned()),
    }
}

/// Evaluates `item in of`: whether a list has the item, or a map the key.
fn contains(item: &Value, of: &Value) -> Result<Value> {
    match of {
        Value::List(items) => Ok(items.contains(item).into()),
        Value::Map(members) => {
            Ok(Key::of(item).is_some_and(|key| members.contains_key(&key)).into())
        }
        _ => no_overload(),
    }
}

/// Returns an item of a list or map, or of one that is optional; `None`: it has no such item.
fn index(of: &Value, at: &Value) -> Result<Option<Value>> {
    match of {
        Value::List(items) => match Key::of(at) {
            Some(Key::Int(at)) => {
                Ok(usize::try_from(at).ok().and_then(|at| items.get(at)).cloned())
            }
            _ => no_overload(),
        },
        Value::Map(members) => match Key::of(at) {
            Some(key) => Ok(members.get(&key).cloned()),
            None => no_overload(),
        },
        Value::Optional(None) => Ok(None),
        Value::Optional(Some(inner)) => index(inner, at),
        _ => no_overload(),
    }
}

/// Adds or concatenates two values; integers and times that overflow are errors.
fn add(a: &Value, b: &Value) -> Result<Value> {
    let overflow = || "timestamp overflow".to_owned();
    Ok(match (a, b) {
        (Value::Int(a), Value::Int(b)) => Value::Int(a.checked_add(*b).ok_or(OVERFLOW)?),
        (Value::Uint(a), Value::Uint(b)) => {
            Value::Uint(a.checked_add(*b).ok_or(UNSIGNED_OVERFLOW)?)
        }
        (Value::Double(a), Value::Double(b)) => Value::Double(a + b),
        (Value::String(a), Value::String(b)) => format!("{a}{b}").into(),
        (Value::Bytes(a), Value::Bytes(b)) => Value::Bytes([&**a, &**b].concat().into()),
        (Value::List(a), Value::List(b)) => Value::list([a.as_slice(), b.as_slice()].concat()),
        (Value::Duration(a), Value::Duration(b)) => {
            Value::Duration(a.checked_add(*b).ok_or("duration overflow")?)
        }
        (Value::Timestamp(a), Value::Duration(b)) | (Value::Duration(b), Value::Timestamp(a)) => {
            Value::Timestamp(a.checked_add(*b).map_err(|_| overflow())?)
        }
        _ => return no_overload(),
    })
}

/// Subtracts two values; integers and times that overflow are errors.
fn subtract(a: &Value, b: &Value) -> Result<Value> {
    Ok(match (a, b) {
        (Value::Int(a), Value::Int(b)) => Value::Int(a.checked_sub(*b).ok_or(OVERFLOW)?),
        (Value::Uint(a), Value::Uint(b)) => {
            Value::Uint(a.checked_sub(*b).ok_or(UNSIGNED_OVERFLOW)?)
        }
        (Value::Double(a), Value::Double(b)) => Value::Double(a - b),
        (Value::Duration(a), Value::Duration(b)) => {
            Value::Duration(a.checked_sub(*b).ok_or("duration overflow")?)
        }
        (Value::Timestamp(a), Value::Duration(b)) => {
            Value::Timestamp(a.checked_sub(*b).map_err(|_| "timestamp overflow")?)
        }
        (Value::Timestamp(a), Value::Timestamp(b)) => Value::Duration(a.duration_since(*b)),
        _ => return no_overload(),
    })
}

/// Evaluates multiplication, division and remainder. Errors: integers that overflow, and division
/// of integers by zero.
fn scale(function: &str, a: &Value, b: &Value) -> Result<Value> {
    let zero =
        || (if function == "_/_" { "division by zero" } else { "modulus by zero" }).to_owned();
    Ok(match (function, a, b) {
        ("_*_", Value::Int(a), Value::Int(b)) => Value::Int(a.checked_mul(*b).ok_or(OVERFLOW)?),
        ("_*_", Value::Uint(a), Value::Uint(b)) => {
            Value::Uint(a.checked_mul(*b).ok_or(UNSIGNED_OVERFLOW)?)
        }
        ("_*_", Value::Double(a), Value::Double(b)) => Value::Double(a * b),
        ("_/_", Value::Double(a), Value::Double(b)) => Value::Double(a / b),
        (_, Value::Int(_), Value::Int(0)) | (_, Value::Uint(_), Value::Uint(0)) => {
            return Err(zero());
        }
        ("_/_", Value::Int(a), Value::Int(b)) => Value::Int(a.checked_div(*b).ok_or(OVERFLOW)?),
        ("_/_", Value::Uint(a), Value::Uint(b)) => Value::Uint(a / b),
        ("_%_", Value::Int(a), Value::Int(b)) => Value::Int(a.checked_rem(*b).ok_or(OVERFLOW)?),
        ("_%_", Value::Uint(a), Value::Uint(b)) => Value::Uint(a % b),
        _ => return no_overload(),
    })
}

/// Evaluates negation, size and conversions. `None`: not one of them.
pub fn unary(function: &str, of: &Value) -> Option<Result<Value>> {
    Some(match (function, of) {
        ("!_", Value::Bool(value)) => Ok((!value).into()),
        ("-_", Value::Int(value)) => {
            value.checked_neg().map(Value::Int).ok_or_else(|| OVERFLOW.to_owned())
        }
        ("-_", Value::Double(value)) => Ok(Value::Double(-value)),
        ("!_" | "-_", _) => no_overload(),
        ("size", _) => match of {
            Value::String(text) => Ok(Value::int(text.chars().count())),
            Value::Bytes(bytes) => Ok(Value::int(bytes.len())),
            Value::List(items) => Ok(Value::int(items.len())),
            Value::Map(members) => Ok(Value::int(members.len())),
            _ => no_overload(),
        },
        ("type", _) => Ok(Value::Type(of.type_name().into())),
        ("dyn", _) => Ok(of.clone()),
        ("bool", _) => match of {
            Value::Bool(_) => Ok(of.clone()),
            Value::String(text) => match &**text {
                "1" | "t" | "true" | "TRUE" | "True" => Ok(true.into()),
                "0" | "f" | "false" | "FALSE" | "False" => Ok(false.into()),
                _ => conversion_error(of, "bool"),
            },
            _ => no_overload(),
        },
        ("int", _) => to_int(of),
        ("uint", _) => to_uint(of),
        ("double", _) => match of {
            Value::Double(_) => Ok(of.clone()),
            Value::Int(value) => Ok(Value::Double(*value as f64)),
            Value::Uint(value) => Ok(Value::Double(*value as f64)),
            Value::String(text) => {
                text.parse().map(Value::Double).or_else(|_| conversion_error(of, "double"))
            }
            _ => no_overload(),
        },
        ("string", _) => of.text().map(Value::from).ok_or_else(|| NO_OVERLOAD.to_owned()),
        ("bytes", Value::Bytes(_)) => Ok(of.clone()),
        ("bytes", Value::String(text)) => Ok(Value::Bytes(text.as_bytes().into())),
        ("duration", _) => times::duration(of),
        ("timestamp", _) => times::timestamp(of),
        ("ip" | "cidr" | "isIP" | "isCIDR" | "ip.isCanonical", _) => net::make(function, of),
        ("optional.of", _) => Ok(Value::Optional(Some(Arc::new(of.clone())))),
        ("optional.ofNonZeroValue", _) => {
            Ok(Value::Optional((!of.is_zero()).then(|| Arc::new(of.clone()))))
        }
        _ => return None,
    })
}

/// Fails with the error for a value that cannot be converted to the type `to`.
fn conversion_error<T>(of: &Value, to: &str) -> Result<T> {
    let text = of.text().unwrap_or_default();
    Err(format!("type conversion error from {text:?} to '{to}'"))
}

/// Converts a value to an integer; a timestamp becomes seconds, a duration nanoseconds.
fn to_int(of: &Value) -> Result<Value> {
    match of {
        Value::Int(_) => Ok(of.clone()),
        Value::Uint(value) => {
            i64::try_from(*value).map(Value::Int).map_err(|_| OVERFLOW.to_owned())
        }
        Value::Double(value) if value.abs() < 9_223_372_036_854_775_807.0 => {
            Ok(Value::Int(*value as i64))
        }
        Value::Double(_) => Err(OVERFLOW.to_owned()),
        Value::String(text) => {
            text.parse().map(Value::Int).or_else(|_| conversion_error(of, "int"))
        }
        Value::Timestamp(time) => Ok(Value::Int(time.as_second())),
        Value::Duration(duration) => {
            i64::try_from(duration.as_nanos()).map(Value::Int).map_err(|_| OVERFLOW.to_owned())
        }
        _ => no_overload(),
    }
}

/// Converts a value to an unsigned integer; a value out of range is an error.
fn to_uint(of: &Value) -> Result<Value> {
    match of {
        Value::Uint(_) => Ok(of.clone()),
        Value::Int(value) => {
            u64::try_from(*value).map(Value::Uint).map_err(|_| UNSIGNED_OVERFLOW.to_owned())
        }
        Value::Double(value) if (0.0..18_446_744_073_709_551_615.0).contains(value) => {
            Ok(Value::Uint(*value as u64))
        }
        Value::Double(_) => Err(UNSIGNED_OVERFLOW.to_owned()),
        Value::String(text) => {
            text.parse().map(Value::Uint).or_else(|_| conversion_error(of, "uint"))
        }
        _ => no_overload(),
    }
}
