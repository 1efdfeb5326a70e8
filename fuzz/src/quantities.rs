//! Quantities: a line, or two to compute with. The canonical form of an amount is parsed to the
//! same amount, and is its own canonical form.

use kube_controller_manager::objects::{Quantity, QuantityError, stored_quantity};

/// Checks that a quantity stays the same when it is shown and stored. `None`: the text is not a
/// quantity.
fn check(text: &str) -> Option<Quantity> {
    let quantity: Quantity = match text.parse() {
        Ok(quantity) => quantity,
        Err(error) => {
            assert_eq!(stored_quantity(text), Err(error), "{text:?}");
            return None;
        }
    };
    let shown = quantity.to_string();
    let again: Result<Quantity, QuantityError> = shown.parse();
    assert_eq!(again.map(|again| again.to_string()), Ok(shown.clone()), "{text:?}");
    assert!(again.is_ok_and(|again| again.compare(quantity).is_eq()), "{text:?} {shown:?}");
    let stored = stored_quantity(text).expect("it parses");
    let same = stored.parse::<Quantity>().is_ok_and(|same| same.compare(quantity).is_eq());
    assert!(same, "{text:?} {stored:?}");
    assert_eq!(stored_quantity(&stored), Ok(stored.clone()), "{text:?}");
    assert_eq!(quantity.rounded_up().value(), quantity.value(), "{text:?}");
    assert_eq!(quantity.rounded_up_to_milli().milli_value(), quantity.milli_value(), "{text:?}");
    assert!(!quantity.to_f64().is_nan());
    Some(quantity)
}

/// Checks the quantities of two lines, and their sum, difference and product.
pub fn target(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    let quantities: Vec<Quantity> = text.lines().take(2).filter_map(check).collect();
    if let [one, other] = quantities[..] {
        for result in [one + other, one - other, one.times(other.value().unsigned_abs())] {
            assert!(result.to_string().parse::<Quantity>().is_ok(), "{text:?} {result:?}");
        }
    }
    // In JSON they may be numbers too.
    let _: Result<Quantity, _> = serde_json::from_str(text);
}
