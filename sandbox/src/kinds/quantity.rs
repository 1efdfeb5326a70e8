//! Quantities in JSON, in the form the API server stores.

use std::cmp::Ordering;

use serde_json::Value;

use kube_controller_manager::objects::{Quantity, stored_quantity};

/// Returns the text of a quantity given as text or number; `None` when it is neither.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.trim().to_owned()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Returns a quantity as it is stored in a list of resources: in canonical form, rounded up to
/// thousandths. `None` when the value is no quantity. Upstream:
/// `Convert_v1_ResourceList_To_core_ResourceList`.
pub fn canonical(value: &Value) -> Option<String> {
    let text = text(value)?;
    let quantity: Quantity = text.parse().ok()?;
    match quantity.rounded_up_to_milli() {
        rounded if rounded != quantity => Some(rounded.to_string()),
        _ => stored_quantity(&text).ok(),
    }
}

/// Puts every quantity of a map (`{"cpu": 0.5}`) into the form in which it is stored.
pub fn canonicalize(map: Option<&mut Value>) {
    for value in map.and_then(Value::as_object_mut).into_iter().flat_map(|map| map.values_mut()) {
        if let Some(text) = canonical(value) {
            *value = Value::String(text);
        }
    }
}

/// Compares two quantities; `None` when one is malformed.
pub fn compare(a: &Value, b: &Value) -> Option<Ordering> {
    let of = |value: &Value| text(value)?.parse::<Quantity>().ok();
    Some(of(a)?.compare(of(b)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn text_and_numbers_are_quantities() {
        for (given, stored) in [
            (json!("0.5"), Some("500m")),
            (json!(0.5), Some("500m")),
            (json!(2), Some("2")),
            (json!(" 1024Mi "), Some("1Gi")),
            (json!("1e3"), Some("1e3")),
            (json!("0.0001Ki"), Some("103m")),
            (json!("1e-60"), Some("1e-3")),
            (json!("1.0000000001"), Some("1001m")),
            (json!("many"), None),
            (json!(""), None),
            (json!(true), None),
        ] {
            assert_eq!(canonical(&given).as_deref(), stored, "{given}");
        }
        assert_eq!(compare(&json!("1Gi"), &json!("1G")), Some(Ordering::Greater));
        assert_eq!(compare(&json!("1Gi"), &json!("much")), None);
    }
}
