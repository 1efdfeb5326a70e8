//! `format()` of texts, as its first versions write numbers: for the locale `en_US`. Upstream:
//! cel-go's `ext/formatting.go`, with `golang.org/x/text/message`.

use std::iter::Peekable;
use std::str::Chars;

use super::Result;
use super::strings::quote;
use super::value::{Key, Value, double, duration_text};

/// The digits after the point where a clause does not say how many.
const DIGITS: usize = 6;
/// The highest number in a clause that counts.
const MOST: usize = 255;
/// The digits of exponents.
const RAISED: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];

/// Evaluates `'%s: %.2f'.format([…])`. Upstream: `parseFormatString`.
pub fn format(pattern: &str, values: &[Value]) -> Result<Value> {
    let mut text = String::new();
    let mut used = 0;
    let mut rest = pattern.chars().peekable();
    while let Some(character) = rest.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        if rest.next_if_eq(&'%').is_some() {
            text.push('%');
            continue;
        }
        let value = values.get(used).ok_or_else(|| format!("index {used} out of range"))?;
        used += 1;
        rest.peek().ok_or("unexpected end of string")?;
        let (letter, precision) = clause(&mut rest)
            .map_err(|fault| format!("could not parse formatting clause: {fault}"))?;
        text.push_str(&clause_text(letter, precision, value)?);
    }
    Ok(text.into())
}

/// Parses what is after `%`, as `.2f`: returns the letter and the number. Upstream:
/// `parsePrecision`.
fn clause(rest: &mut Peekable<Chars<'_>>) -> Result<(char, usize)> {
    const PRECISION: &str = "error while parsing precision";
    let mut precision = DIGITS;
    if rest.next_if_eq(&'.').is_some() {
        let mut digits = String::new();
        while let Some(digit) = rest.next_if(char::is_ascii_digit) {
            digits.push(digit);
        }
        rest.peek()
            .ok_or_else(|| format!("{PRECISION}: could not find end of precision specifier"))?;
        let number = digits.parse::<i64>().map_err(|_| {
            let fault = if digits.is_empty() { "invalid syntax" } else { "value out of range" };
            format!(
                "{PRECISION}: error while converting precision to integer: strconv.Atoi: parsing \
                 \"{digits}\": {fault}"
            )
        })?;
        precision = usize::try_from(number).map_or(MOST, |number| number.min(MOST));
    }
    let letter = rest.next().ok_or("unexpected end of string")?;
    Ok((letter, precision))
}

/// Formats one value as the letter after `%` asks: `s` text, `d` decimal, `f` fixed-point, `e`
/// scientific, `b`, `o`, `x` and `X` other bases. Errors: the letter is unknown, or the value's type
/// does not fit it.
fn clause_text(letter: char, precision: usize, value: &Value) -> Result<String> {
    let misfit = |wanted: &str| Err(misfit(wanted, value));
    Ok(match (letter, value) {
        ('s', _) => return text_of(value),
        ('d', Value::Int(_) | Value::Uint(_)) => value.text().unwrap_or_default(),
        ('f' | 'e', _) => match (letter, number(value)) {
            ('f', Some(number)) => fixed(number, precision),
            ('e', Some(number)) => scientific(number, precision),
            ('f', None) => return misfit("fixed-point clause can only be used on doubles"),
            _ => return misfit("scientific clause can only be used on doubles"),
        },
        ('b', Value::Int(number)) => signed(*number, &format!("{:b}", number.unsigned_abs())),
        ('b', Value::Uint(number)) => format!("{number:b}"),
        ('b', Value::Bool(value)) => u8::from(*value).to_string(),
        ('o', Value::Int(number)) => signed(*number, &format!("{:o}", number.unsigned_abs())),
        ('o', Value::Uint(number)) => format!("{number:o}"),
        ('x', Value::Int(number)) => signed(*number, &format!("{:x}", number.unsigned_abs())),
        ('X', Value::Int(number)) => signed(*number, &format!("{:X}", number.unsigned_abs())),
        ('x', Value::Uint(number)) => format!("{number:x}"),
        ('X', Value::Uint(number)) => format!("{number:X}"),
        ('x', Value::String(text)) => hexadecimal(text.as_bytes()),
        ('x', Value::Bytes(bytes)) => hexadecimal(bytes),
        ('X', Value::String(text)) => hexadecimal(text.as_bytes()).to_uppercase(),
        ('X', Value::Bytes(bytes)) => hexadecimal(bytes).to_uppercase(),
        ('d', _) => return misfit("decimal clause can only be used on integers"),
        ('b', _) => return misfit("only integers and bools can be formatted as binary"),
        ('o', _) => return misfit("octal clause can only be used on integers"),
        ('x' | 'X', _) => {
            return misfit("only integers, byte buffers, and strings can be formatted as hex");
        }
        _ => {
            return Err(format!(
                "could not parse formatting clause: unrecognized formatting clause \"{letter}\""
            ));
        }
    })
}

/// Builds the error of a value whose type does not fit its clause.
fn misfit(wanted: &str, value: &Value) -> String {
    format!("error during formatting: {wanted}, was given {}", value.type_name())
}

/// Returns the number that `%f` and `%e` format: a double, or a text that stands for none.
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Double(number) => Some(*number),
        Value::String(text) => match &**text {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    }
}

/// Formats a number with this many digits after the point, and commas between groups of three
/// before it.
fn fixed(number: f64, digits: usize) -> String {
    if !number.is_finite() {
        return not_finite(number).to_owned();
    }
    let text = format!("{:.digits$}", number.abs());
    let (whole, fraction) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = String::from(sign(number));
    for (at, digit) in whole.char_indices() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + fraction
}

/// Formats a number as a power of ten, `1.500000×10⁰³`: always with six digits after the point, as
/// upstream takes the clause's number for the width.
fn scientific(number: f64, width: usize) -> String {
    if !number.is_finite() {
        return format!("{:>width$}", not_finite(number));
    }
    let text = format!("{:.DIGITS$e}", number.abs());
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (exponent_sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ("⁻", exponent),
        None => ("", exponent),
    };
    let raised = |digit: char| RAISED.get(digit.to_digit(10)? as usize);
    let exponent: String = format!("{exponent:0>2}").chars().filter_map(raised).collect();
    let text = format!("{}{digits}×10{exponent_sign}{exponent}", sign(number));
    format!("{text:>width$}")
}

/// Returns the sign of a number; none for a negative zero.
fn sign(number: f64) -> &'static str {
    if number < 0.0 { "-" } else { "" }
}

fn not_finite(number: f64) -> &'static str {
    match number {
        _ if number.is_nan() => "NaN",
        _ if number < 0.0 => "-∞",
        _ => "∞",
    }
}

fn signed(number: i64, digits: &str) -> String {
    if number < 0 { format!("-{digits}") } else { digits.to_owned() }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Formats a value as `%s` shows it. Upstream: `FormatString`.
fn text_of(value: &Value) -> Result<String> {
    Ok(match value {
        Value::Null => "null".to_owned(),
        Value::Double(number) => double(*number),
        Value::Duration(duration) => duration_text(*duration),
        Value::Type(name) => name.to_string(),
        Value::List(items) => {
            let items: Vec<String> = items.iter().map(literal).collect::<Result<_>>()?;
            format!("[{}]", items.join(", "))
        }
        Value::Map(members) => {
            let one = |(key, value): (&Key, &Value)| Ok((literal(&key.value())?, literal(value)?));
            let mut members: Vec<(String, String)> =
                members.iter().map(one).collect::<Result<_>>()?;
            members.sort_unstable();
            let members: Vec<String> =
                members.into_iter().map(|(key, value)| format!("{key}:{value}")).collect();
            format!("{{{}}}", members.join(", "))
        }
        Value::Bool(_)
        | Value::Int(_)
        | Value::Uint(_)
        | Value::String(_)
        | Value::Timestamp(_) => value.text().unwrap_or_default(),
        Value::Bytes(_) => {
            value.text().ok_or("invalid UTF-8 in bytes, cannot convert to string")?
        }
        _ => {
            const WANTED: &str = "string clause can only be used on strings, bools, bytes, ints, \
                                  doubles, maps, lists, types, durations, and timestamps";
            return Err(misfit(WANTED, value));
        }
    })
}

/// Formats a value inside a list or a map, as a literal of the language. Upstream:
/// `clauseForType`, `quoteForCEL`.
fn literal(value: &Value) -> Result<String> {
    Ok(match value {
        Value::String(text) => quote(text),
        Value::Bytes(_) => format!("b{}", quote(&text_of(value)?)),
        Value::Double(number) if number.is_finite() => format!("{number:.DIGITS$}"),
        Value::Double(number) => quote(&double(*number)),
        Value::Timestamp(_) => format!("timestamp({})", quote(&text_of(value)?)),
        Value::Duration(_) => format!("duration({})", quote(&text_of(value)?)),
        _ => text_of(value)?,
    })
}

#[cfg(test)]
mod tests {
    use crate::cel::{Program, Variables};

    struct Never;

    impl crate::cel::Authorize for Never {
        fn authorize(
            &self,
            _: Option<&(String, String)>,
            _: &crate::access::Access,
        ) -> std::result::Result<String, String> {
            Err("no".to_owned())
        }
    }

    /// The answers of a real API server.
    #[test]
    fn texts_are_those_of_cel_go() {
        let evaluate = |source: &str| {
            let found = Program::parse(source).unwrap().evaluate(&Variables::new(&Never))?;
            Ok(found.as_str().unwrap().to_owned())
        };
        for (source, expected) in [
            ("'%e|%.2e'.format([1052.032911275, 0.00012345])", Ok("1.052033×10⁰³|1.234500×10⁻⁰⁴")),
            (
                "'%e|%e|%.3e'.format([0.0, -1.5e200, -0.0])",
                Ok("0.000000×10⁰⁰|-1.500000×10²⁰⁰|0.000000×10⁰⁰"),
            ),
            ("'%e|%f|%e'.format(['NaN', 'Infinity', '-Infinity'])", Ok("   NaN|∞|    -∞")),
            ("'%f|%.2f'.format([1234567.891, -1234.5])", Ok("1,234,567.891000|-1,234.50")),
            ("'%f|%.0f|%.0f'.format([0.0, 2.5, 123.0])", Ok("0.000000|2|123")),
            (
                "'%s'.format([[1, 'b', 1.5, true, null, b'x', 2u, 1000000.0, double('Infinity')]])",
                Ok(r#"[1, "b", 1.500000, true, null, b"x", 2, 1000000.000000, "+Inf"]"#),
            ),
            (r#"'%s'.format([[1, ['a"\n']]])"#, Ok(r#"[1, ["a\"\n"]]"#)),
            (
                "'%s'.format([[timestamp('2024-05-01T10:00:00Z'), duration('1h'), int, type('a')]])",
                Ok(r#"[timestamp("2024-05-01T10:00:00Z"), duration("3600s"), int, string]"#),
            ),
            (
                "'%s'.format([{'k': 'v', 'a': 1, 'b': duration('90s')}])",
                Ok(r#"{"a":1, "b":duration("90s"), "k":"v"}"#),
            ),
            ("'%s'.format([{1: 'x', 2: 2, 10: 3}])", Ok(r#"{1:"x", 10:3, 2:2}"#)),
            ("'%s|%s|%s'.format([1.5, 1000000.0, 1e-7])", Ok("1.5|1e+06|1e-07")),
            (
                "'%e'.format([1])",
                Err("scientific clause can only be used on doubles, was given int"),
            ),
            (
                "'%o'.format(['a'])",
                Err("octal clause can only be used on integers, was given string"),
            ),
            (
                "'%s'.format([[quantity('1k')]])",
                Err(
                    "string clause can only be used on strings, bools, bytes, ints, doubles, maps, \
                     lists, types, durations, and timestamps, was given kubernetes.Quantity",
                ),
            ),
        ] {
            let expected = expected
                .map(str::to_owned)
                .map_err(|error| format!("error during formatting: {error}"));
            assert_eq!(evaluate(source), expected, "{source}");
        }
    }

    #[test]
    fn clauses_that_cannot_be_parsed_have_the_errors_of_cel_go() {
        const CONVERSION: &str = "error while parsing precision: error while converting precision \
                                  to integer: strconv.Atoi: parsing";
        let unended = "error while parsing precision: could not find end of precision specifier";
        let out_of_range = format!("{CONVERSION} \"9223372036854775808\": value out of range");
        for (pattern, fault) in [
            ("%.f", format!("{CONVERSION} \"\": invalid syntax")),
            ("%.9223372036854775808f", out_of_range),
            ("%.", unended.to_owned()),
            ("%.2", unended.to_owned()),
            ("%q", "unrecognized formatting clause \"q\"".to_owned()),
        ] {
            let found = super::format(pattern, &[crate::cel::value::Value::Double(1.5)]);
            let expected = format!("could not parse formatting clause: {fault}");
            assert_eq!(found.err(), Some(expected), "{pattern}");
        }
        let ended = super::format("%", &[crate::cel::value::Value::Double(1.5)]);
        assert_eq!(ended.err().as_deref(), Some("unexpected end of string"));
        let missing = super::format("%.", &[]);
        assert_eq!(missing.err().as_deref(), Some("index 0 out of range"));
    }
}
