//! Label selectors as text, and as they stand in objects. A selector's text is parsed to a selector
//! that selects the same.

use kube_controller_manager::objects::{LabelSelector, Labels, Selector};

/// Checks that a selector's text is parsed to a selector that prints and matches the same.
fn check(selector: &Selector) {
    let text = selector.to_string();
    let again: Selector = text.parse().unwrap_or_else(|error| panic!("{text:?}: {error}"));
    assert_eq!(again.to_string(), text);
    for labels in [&[][..], &[("a", "b")], &[("app", "web"), ("n", "5")]] {
        let labels: Labels = labels.iter().copied().collect();
        assert_eq!(again.matches(&labels), selector.matches(&labels), "{text:?}");
    }
}

/// Parses any text as a selector in both forms, and checks what is found.
pub fn target(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    match text.parse::<Selector>() {
        Ok(selector) => check(&selector),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Ok(selector) = serde_json::from_str::<LabelSelector>(text)
        && let Ok(selector) = Selector::try_from(&selector)
        && selector != Selector::nothing()
    {
        check(&selector);
    }
}
