//! Functions of strings. Upstream: cel-go's `ext.Strings`, Kubernetes' `library.Regex`.

use regex_lite::Regex;

use super::formatting::format;
use super::value::Value;
use super::{COST_LIMIT, Result};

/// The longest text that a function makes out of copies, in bytes.
const LONGEST_TEXT: usize = 10_000_000;

/// Evaluates the functions of strings. `None`: not one of them.
pub fn call(name: &str, args: &[Value]) -> Option<Result<Value>> {
    if let ("join", [Value::List(items), separator @ ..]) = (name, args) {
        return Some(join(items, separator.first().and_then(Value::as_str).unwrap_or_default()));
    }
    let (text, rest) = match args {
        [Value::String(text), rest @ ..] => (&**text, rest),
        _ => return None,
    };
    Some(match (name, rest) {
        ("contains", [Value::String(other)]) => Ok(text.contains(&**other).into()),
        ("startsWith", [Value::String(other)]) => Ok(text.starts_with(&**other).into()),
        ("endsWith", [Value::String(other)]) => Ok(text.ends_with(&**other).into()),
        ("matches", [Value::String(pattern)]) => {
            regex(pattern).map(|regex| regex.is_match(text).into())
        }
        ("find", [Value::String(pattern)]) => {
            regex(pattern).map(|regex| regex.find(text).map_or("", |found| found.as_str()).into())
        }
        ("findAll", [Value::String(pattern)]) => find_all(text, pattern, -1),
        ("findAll", [Value::String(pattern), Value::Int(limit)]) => find_all(text, pattern, *limit),
        ("charAt", [Value::Int(at)]) => match char_range(text, *at, *at) {
            Some((start, _)) => {
                Ok(text[start..].chars().next().map_or(String::new(), String::from).into())
            }
            None => Err(format!("index out of range: {at}")),
        },
        ("indexOf", [Value::String(part)]) => Ok(index_of(text, part, 0)),
        ("indexOf", [Value::String(part), Value::Int(from)]) => {
            match char_range(text, *from, *from) {
                Some((start, _)) => Ok(index_of(text, part, start)),
                None => Err(format!("index out of range: {from}")),
            }
        }
        ("lastIndexOf", [Value::String(part)]) => Ok(last_index_of(text, part, text.len())),
        ("lastIndexOf", [Value::String(part), Value::Int(from)]) => {
            match char_range(text, *from, *from) {
                Some((start, _)) => {
                    // A match may begin at `from`: it ends a length of `part` later.
                    let end = (start + part.len()).min(text.len());
                    Ok(last_index_of(text, part, text.ceil_char_boundary(end)))
                }
                None => Err(format!("index out of range: {from}")),
            }
        }
        ("lowerAscii", []) => Ok(text.to_ascii_lowercase().into()),
        ("upperAscii", []) => Ok(text.to_ascii_uppercase().into()),
        // An empty `from` is replaced before each character and at the end: at most this often.
        ("replace", [_, Value::String(to), ..]) if is_long(text.len() + 1, to.len()) => {
            Err(COST_LIMIT.to_owned())
        }
        ("replace", [Value::String(from), Value::String(to)]) => {
            Ok(text.replace(&**from, to).into())
        }
        ("replace", [Value::String(from), Value::String(to), Value::Int(count)]) => {
            Ok(match usize::try_from(*count) {
                Ok(count) => text.replacen(&**from, to, count),
                Err(_) => text.replace(&**from, to),
            }
            .into())
        }
        ("split", [Value::String(separator)]) => Ok(split(text, separator, -1)),
        ("split", [Value::String(separator), Value::Int(limit)]) => {
            Ok(split(text, separator, *limit))
        }
        ("substring", [Value::Int(from)]) => {
            let end = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
            substring(text, *from, end)
        }
        ("substring", [Value::Int(from), Value::Int(to)]) => substring(text, *from, *to),
        ("trim", []) => Ok(text.trim().into()),
        ("format", [Value::List(values)]) => format(text, values),
        ("strings.quote", []) => Ok(quote(text).into()),
        _ => return None,
    })
}

pub fn regex(pattern: &str) -> Result<Regex> {
    Regex::new(pattern).map_err(|error| format!("error parsing regexp: {error}"))
}

/// Returns the parts of a text that match a pattern, at most `limit`; a negative limit means all.
fn find_all(text: &str, pattern: &str, limit: i64) -> Result<Value> {
    let regex = regex(pattern)?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let found = regex.find_iter(text).take(limit).map(|found| found.as_str().into());
    Ok(Value::list(found.collect()))
}

/// Converts two indexes of characters to byte offsets; `None` for a negative one, or if the text
/// has fewer characters.
fn char_range(text: &str, from: i64, to: i64) -> Option<(usize, usize)> {
    let at = |index: i64| {
        let index = usize::try_from(index).ok()?;
        let mut starts = text.char_indices().map(|(at, _)| at).chain([text.len()]);
        starts.nth(index)
    };
    Some((at(from)?, at(to)?))
}

fn characters(text: &str) -> Value {
    Value::int(text.chars().count())
}

/// Returns the index in characters of the first `part` from the byte `start` on; -1: there is no
/// such part.
fn index_of(text: &str, part: &str, start: usize) -> Value {
    let found = text[start..].find(part).map(|at| characters(&text[..start + at]));
    found.unwrap_or(Value::Int(-1))
}

/// Returns the index in characters of the last `part` that ends before the byte `end`; -1: there is
/// no such part.
fn last_index_of(text: &str, part: &str, end: usize) -> Value {
    text[..end].rfind(part).map_or(Value::Int(-1), |at| characters(&text[..at]))
}

/// Returns the characters with indexes from `from` to before `to`. Errors: a range outside the
/// text.
fn substring(text: &str, from: i64, to: i64) -> Result<Value> {
    if from > to {
        return Err(format!("invalid substring range. start: {from}, end: {to}"));
    }
    match char_range(text, from, to) {
        Some((start, end)) => Ok(text[start..end].into()),
        None => Err(format!("index out of range: {from}")),
    }
}

/// Splits a text into at most `limit` parts; a negative limit means all. Upstream: Go's
/// `strings.SplitN`.
fn split(text: &str, separator: &str, limit: i64) -> Value {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let parts: Vec<Value> = match limit {
        0 => Vec::new(),
        _ if separator.is_empty() => {
            let mut parts: Vec<String> = text.chars().map(String::from).collect();
            if parts.len() > limit {
                let rest: String = parts.drain(limit - 1..).collect();
                parts.push(rest);
            }
            parts.into_iter().map(Value::from).collect()
        }
        _ => text.splitn(limit, separator).map(Value::from).collect(),
    };
    Value::list(parts)
}

/// Joins texts. Errors: an item that is not a string, or a result that is too long.
fn join(items: &[Value], separator: &str) -> Result<Value> {
    let texts: Option<Vec<&str>> = items.iter().map(Value::as_str).collect();
    let texts = texts.ok_or_else(|| "no such overload".to_owned())?;
    match is_long(texts.len(), separator.len()) {
        true => Err(COST_LIMIT.to_owned()),
        false => Ok(texts.join(separator).into()),
    }
}

/// Returns whether `count` copies of a text of this length are too long.
fn is_long(copies: usize, length: usize) -> bool {
    copies.saturating_mul(length) > LONGEST_TEXT
}

/// Quotes a text, with escapes for control characters, quotes and backslashes.
pub fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            '\\' => quoted.push_str("\\\\"),
            '"' => quoted.push_str("\\\""),
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}
