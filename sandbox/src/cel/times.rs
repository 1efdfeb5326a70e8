//! Timestamps and durations. Upstream: cel-go's `types.Timestamp`, `types.Duration`.

use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};

use super::Result;
use super::value::Value;

/// The units of Go's durations, in nanoseconds; longer names first.
const UNITS: [(&str, i128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Converts a value to a duration; an integer counts nanoseconds.
pub fn duration(of: &Value) -> Result<Value> {
    match of {
        Value::Duration(_) => Ok(of.clone()),
        Value::Int(nanos) => Ok(Value::Duration(SignedDuration::from_nanos(*nanos))),
        Value::String(text) => parse_duration(text)
            .map(Value::Duration)
            .ok_or_else(|| format!("time: invalid duration {text:?}")),
        _ => Err("no such overload".to_owned()),
    }
}

/// Converts a value to a timestamp; an integer counts seconds.
pub fn timestamp(of: &Value) -> Result<Value> {
    match of {
        Value::Timestamp(_) => Ok(of.clone()),
        Value::Int(seconds) => Timestamp::from_second(*seconds)
            .map(Value::Timestamp)
            .map_err(|_| "timestamp overflow".to_owned()),
        Value::String(text) => text.parse().map(Value::Timestamp).map_err(|_| {
            format!("type conversion error from {text:?} to 'google.protobuf.Timestamp'")
        }),
        _ => Err("no such overload".to_owned()),
    }
}

/// Parses a duration such as `1h30m` or `-1.5s`. Upstream: Go's `time.ParseDuration`.
pub fn parse_duration(text: &str) -> Option<SignedDuration> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(SignedDuration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    let mut nanos: i128 = 0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(end);
        let end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let (_, size) = UNITS.iter().find(|(name, _)| *name == unit)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        nanos = nanos.checked_add(whole.checked_mul(*size)?)?;
        let mut digit = *size;
        for c in fraction.chars() {
            let value = i128::from(c.to_digit(10)?);
            // A fraction's digit is worth a tenth of the one before it.
            nanos = nanos.checked_add(value * digit / 10)?;
            digit /= 10;
        }
        rest = after;
    }
    i64::try_from(sign * nanos).ok().map(SignedDuration::from_nanos)
}

/// Parses a time zone: a name, or an offset of hours and minutes.
fn zone(name: &str) -> Result<TimeZone> {
    let unknown = || format!("unknown time zone {name}");
    let (sign, rest) = match name.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, name.strip_prefix('+').unwrap_or(name)),
    };
    if name == "UTC" || name == "Z" {
        return Ok(TimeZone::UTC);
    }
    match rest.split_once(':') {
        Some((hours, minutes)) => {
            let hours: i32 = hours.parse().map_err(|_| unknown())?;
            let minutes: i32 = minutes.parse().map_err(|_| unknown())?;
            let seconds = hours.checked_mul(3600).zip(minutes.checked_mul(60));
            let seconds = seconds.and_then(|(hours, minutes)| hours.checked_add(minutes));
            let offset = Offset::from_seconds(sign * seconds.ok_or_else(unknown)?);
            Ok(offset.map_err(|_| unknown())?.to_time_zone())
        }
        None => TimeZone::get(name).map_err(|_| unknown()),
    }
}

/// Evaluates the functions of durations and timestamps. `None`: not one of them.
pub fn call(name: &str, args: &[Value]) -> Option<Result<Value>> {
    let (time, zone_name) = match args {
        [Value::Duration(duration)] => {
            return of_duration(name, *duration).map(|n| Ok(Value::Int(n)));
        }
        [Value::Timestamp(time)] => (*time, "UTC"),
        [Value::Timestamp(time), Value::String(zone)] => (*time, &**zone),
        _ => return None,
    };
    if !name.starts_with("get") {
        return None;
    }
    let time = match zone(zone_name) {
        Ok(zone) => time.to_zoned(zone),
        Err(error) => return Some(Err(error)),
    };
    let number = match name {
        "getFullYear" => i64::from(time.year()),
        "getMonth" => i64::from(time.month()) - 1,
        "getDayOfYear" => i64::from(time.day_of_year()) - 1,
        "getDayOfMonth" => i64::from(time.day()) - 1,
        "getDate" => i64::from(time.day()),
        "getDayOfWeek" => i64::from(time.weekday().to_sunday_zero_offset()),
        "getHours" => i64::from(time.hour()),
        "getMinutes" => i64::from(time.minute()),
        "getSeconds" => i64::from(time.second()),
        "getMilliseconds" => i64::from(time.millisecond()),
        _ => return None,
    };
    Some(Ok(Value::Int(number)))
}

/// Returns the whole duration in the unit that a function names; `None`: there is no such function.
fn of_duration(name: &str, duration: SignedDuration) -> Option<i64> {
    let seconds = duration.as_secs();
    Some(match name {
        "getHours" => seconds / 3600,
        "getMinutes" => seconds / 60,
        "getSeconds" => seconds,
        "getMilliseconds" => i64::try_from(duration.as_millis()).unwrap_or(i64::MAX),
        _ => return None,
    })
}
