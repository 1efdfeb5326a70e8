//! Numbers of pods that may be percentages.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Returns `value` itself or, if it is a percentage, that part of `total`, rounded up. `Err`: a
/// text that is no percentage, or a part that is too large.
/// Upstream: `intstr.GetScaledValueFromIntOrPercent`.
pub fn resolve_rounding_up(value: &IntOrString, total: i32) -> Result<i32, String> {
    resolve(value, total, true)
}

/// Returns `value` as [`resolve_rounding_up`] does, rounded down.
pub fn resolve_rounding_down(value: &IntOrString, total: i32) -> Result<i32, String> {
    resolve(value, total, false)
}

/// Returns `value` itself or, if it is a percentage, that part of `total`.
fn resolve(value: &IntOrString, total: i32, round_up: bool) -> Result<i32, String> {
    let percent = match value {
        IntOrString::Int(number) => return Ok(*number),
        IntOrString::String(text) => match text.strip_suffix('%').map(str::parse::<i64>) {
            Some(Ok(percent)) => percent,
            _ => return Err(format!("invalid value for IntOrString: {text:?}")),
        },
    };
    let hundredths = percent.saturating_mul(i64::from(total));
    let has_fraction = hundredths.rem_euclid(100) != 0;
    let whole = hundredths.div_euclid(100) + i64::from(round_up && has_fraction);
    i32::try_from(whole).map_err(|_| format!("invalid value for IntOrString: \"{percent}%\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_rounded_as_asked() {
        let text = |text: &str| IntOrString::String(text.into());
        for (value, total, up, down) in [
            (IntOrString::Int(7), 3, Some(7), Some(7)),
            (text("25%"), 10, Some(3), Some(2)),
            (text("100%"), 7, Some(7), Some(7)),
            (text("0%"), 7, Some(0), Some(0)),
            (text("5"), 7, None, None),
            (text("x%"), 7, None, None),
            (text("9999999999%"), 100, None, None),
        ] {
            assert_eq!(resolve_rounding_up(&value, total).ok(), up, "{value:?}");
            assert_eq!(resolve_rounding_down(&value, total).ok(), down, "{value:?}");
        }
    }
}
