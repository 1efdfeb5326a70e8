//! Durations in the syntax of Go.

use std::time::Duration;

/// Parses a duration as Go's `time.ParseDuration` does, if it is not negative: `1h30m`, `1.5s`,
/// `100ms`, `0`.
///
/// # Errors
/// When `text` is not such a duration.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let invalid = || format!("time: invalid duration {text:?}");
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest.starts_with('-') && rest != "-0" {
        return Err(format!("time: negative duration {text:?}"));
    }
    if matches!(rest, "0" | "-0") {
        return Ok(Duration::ZERO);
    }
    let mut nanos = 0u128;
    if rest.is_empty() {
        return Err(invalid());
    }
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or_else(|| format!("time: missing unit in duration {text:?}"))?;
        let (number, after) = rest.split_at(digits);
        let length = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(length);
        let unit: u64 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return Err(format!("time: unknown unit {unit:?} in duration {text:?}")),
        };
        let (before_point, fraction) = number.split_once('.').unwrap_or((number, ""));
        if before_point.is_empty() && fraction.is_empty() {
            return Err(invalid());
        }
        if !before_point.is_empty() {
            let count: u64 = before_point.parse().map_err(|_| invalid())?;
            nanos += u128::from(count) * u128::from(unit);
        }
        if !fraction.is_empty() {
            if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(invalid());
            }
            // Further digits are less than a nanosecond, and would be beyond the range of the type.
            let fraction = &fraction[..fraction.len().min(18)];
            let part: f64 = fraction.parse().map_err(|_| invalid())?;
            let scale = 10f64.powi(i32::try_from(fraction.len()).unwrap_or(i32::MAX));
            // Cut off, as in Go.
            nanos += (part * (unit as f64 / scale)) as u128;
        }
        rest = after;
    }
    // Go counts nanoseconds in a signed integer of 64 bits.
    u64::try_from(nanos)
        .ok()
        .filter(|&nanos| i64::try_from(nanos).is_ok())
        .map(Duration::from_nanos)
        .ok_or_else(invalid)
}

/// Formats a duration as Go's `Duration.String` does: `1h30m0s`, `1.5s`, `100ms`.
pub fn show_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let decimal = |unit: u128, suffix: &str| {
        let text = format!("{}.{:0width$}", nanos / unit, nanos % unit, width = decimals(unit));
        format!("{}{suffix}", text.trim_end_matches('0').trim_end_matches('.'))
    };
    match nanos {
        0 => "0s".into(),
        1..1_000 => format!("{nanos}ns"),
        1_000..1_000_000 => decimal(1_000, "µs"),
        1_000_000..1_000_000_000 => decimal(1_000_000, "ms"),
        _ => {
            let seconds = duration.as_secs();
            let rest = Duration::new(seconds % 60, duration.subsec_nanos());
            let tail = match rest.is_zero() {
                true => "0s".to_string(),
                false if rest.as_secs() == 0 => {
                    let text = format!("0.{:09}", rest.subsec_nanos());
                    format!("{}s", text.trim_end_matches('0'))
                }
                false if rest.subsec_nanos() == 0 => format!("{}s", rest.as_secs()),
                false => {
                    let text = format!("{}.{:09}", rest.as_secs(), rest.subsec_nanos());
                    format!("{}s", text.trim_end_matches('0'))
                }
            };
            match (seconds / 3600, seconds / 60 % 60) {
                (0, 0) => tail,
                (0, minutes) => format!("{minutes}m{tail}"),
                (hours, minutes) => format!("{hours}h{minutes}m{tail}"),
            }
        }
    }
}

/// Returns the number of decimals of a value in `unit` nanoseconds.
fn decimals(unit: u128) -> usize {
    unit.ilog10() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_the_syntax_of_go() {
        let table = [
            ("0", Some(0), "0s"),
            ("5s", Some(5_000_000_000), "5s"),
            ("1m30s", Some(90_000_000_000), "1m30s"),
            ("1.5h", Some(5_400_000_000_000), "1h30m0s"),
            ("100ms", Some(100_000_000), "100ms"),
            ("1500ms", Some(1_500_000_000), "1.5s"),
            (".5s", Some(500_000_000), "500ms"),
            ("1.29s", Some(1_290_000_000), "1.29s"),
            ("1.9999999999s", Some(1_999_999_999), "1.999999999s"),
            (&format!("1.5{}h", "0".repeat(400)), Some(5_400_000_000_000), "1h30m0s"),
            ("8760h", Some(31_536_000_000_000_000), "8760h0m0s"),
            ("2us", Some(2_000), "2µs"),
            ("5", None, ""),
            ("", None, ""),
            (".s", None, ""),
            ("5x", None, ""),
            ("1.5.s", None, ""),
            ("-1s", None, ""),
            ("9999999999h", None, ""),
        ];
        for (text, nanos, shown) in table {
            let parsed = parse_duration(text).ok();
            assert_eq!(parsed, nanos.map(Duration::from_nanos), "{text}");
            if let Some(duration) = parsed {
                assert_eq!(show_duration(duration), shown, "{text}");
            }
        }
    }
}
