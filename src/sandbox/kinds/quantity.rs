//! Quantities in the form the API server stores. Upstream: `resource.Quantity`.

use serde_json::Value;

const DECIMAL: [(&str, i32); 10] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// A quantity in units of 10^-9; `None`: not a quantity, or larger than there is room for.
fn nanos(text: &str) -> Option<(i128, bool)> {
    let end = text.find(|c: char| !(c.is_ascii_digit() || "+-.".contains(c))).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.trim_start_matches(['+', '-']).is_empty() && fraction.is_empty() {
        return None;
    }
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let mut power = 9 - i32::try_from(fraction.len()).ok()?;
    let mut factor: i128 = 1;
    let mut binary = false;
    if let Some(at) = BINARY.iter().skip(1).position(|unit| *unit == suffix) {
        binary = true;
        factor = 1024i128.checked_pow(u32::try_from(at + 1).ok()?)?;
    } else if let Some((_, exponent)) = DECIMAL.iter().find(|(unit, _)| *unit == suffix) {
        power += exponent;
    } else {
        power += suffix.strip_prefix(['e', 'E'])?.parse::<i32>().ok().filter(|e| e.abs() < 30)?;
    }
    let ten = 10i128.checked_pow(power.unsigned_abs())?;
    let scaled = digits.checked_mul(factor)?;
    // Below a nano rounds away from zero, as upstream does.
    let value = if power >= 0 {
        scaled.checked_mul(ten)?
    } else {
        let rest = scaled % ten;
        scaled / ten + rest.signum()
    };
    Some((value, binary))
}

/// The canonical text of a quantity given as text or number; `None` when it is none.
pub fn canonical(value: &Value) -> Option<String> {
    let text = match value {
        Value::String(text) => text.trim().to_owned(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    let (nanos, binary) = nanos(&text)?;
    if nanos == 0 {
        return Some("0".to_owned());
    }
    const UNIT: i128 = 1_000_000_000;
    if binary && nanos % UNIT == 0 && (nanos / UNIT).abs() >= 1024 {
        let (mut count, mut unit) = (nanos / UNIT, 0);
        while count % 1024 == 0 && unit + 1 < BINARY.len() {
            count /= 1024;
            unit += 1;
        }
        return Some(format!("{count}{}", BINARY[unit]));
    }
    let (mut count, mut unit) = (nanos, 0);
    while count % 1000 == 0 && unit + 1 < DECIMAL.len() {
        count /= 1000;
        unit += 1;
    }
    Some(format!("{count}{}", DECIMAL[unit].0))
}

/// Puts every quantity of a map (`{"cpu": 0.5}`) into its canonical form.
pub fn canonicalize(map: Option<&mut Value>) {
    for value in map.and_then(Value::as_object_mut).into_iter().flat_map(|map| map.values_mut()) {
        if let Some(text) = canonical(value) {
            *value = Value::String(text);
        }
    }
}

/// Compares two quantities; `None` when one is none.
pub fn compare(a: &Value, b: &Value) -> Option<std::cmp::Ordering> {
    let of = |value: &Value| canonical(value).and_then(|text| nanos(&text)).map(|(n, _)| n);
    Some(of(a)?.cmp(&of(b)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn canonical_form_is_upstreams() {
        for (given, stored) in [
            (json!("0.5"), Some("500m")),
            (json!(0.5), Some("500m")),
            (json!(2), Some("2")),
            (json!("1000m"), Some("1")),
            (json!("1024Mi"), Some("1Gi")),
            (json!("1.5Gi"), Some("1536Mi")),
            (json!("1000Ki"), Some("1000Ki")),
            (json!("1e3"), Some("1k")),
            (json!("-3"), Some("-3")),
            (json!("0Gi"), Some("0")),
            (json!("0.5Ki"), Some("512")),
            (json!("many"), None),
            (json!("1Zi"), None),
            (json!(""), None),
        ] {
            assert_eq!(canonical(&given).as_deref(), stored, "{given}");
        }
        assert_eq!(compare(&json!("1Gi"), &json!("1G")), Some(std::cmp::Ordering::Greater));
    }
}
