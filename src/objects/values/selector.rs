//! Label selectors. Upstream: `metav1.LabelSelector`, `labels.Selector`.

#![warn(missing_docs)]

mod parse;

use std::cmp::Ordering::{self, Greater, Less};
use std::fmt;
use std::slice;

use serde::{Deserialize, Serialize};

use super::label_syntax::{is_label_key, is_label_value, label_key_fault, label_value_fault};
use super::one_of::OneOf;
use crate::objects::{Istr, Labels, null_as_default};

/// A selector as in an object's spec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    /// Labels that an object must have.
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub match_labels: Labels,
    /// Further requirements, all of which must hold.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<Requirement>,
}

/// One requirement on a label. Upstream: `metav1.LabelSelectorRequirement`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Requirement {
    /// The label's key.
    pub key: Istr,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: Istr,
    /// The values of `In` and `NotIn`; empty for the others.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<Istr>,
}

/// The fault of a selector, in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectorError(String);

impl fmt::Display for SelectorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SelectorError {}

/// A selector that is ready to match. An absent LabelSelector selects nothing, an empty one
/// everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Selector {
    nothing: bool,
    terms: Vec<Term>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Term {
    key: Istr,
    test: Test,
}

/// The operator of a term, which is printed as in the original text. Upstream:
/// `selection.Operator`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Test {
    Equals(Istr),
    DoubleEquals(Istr),
    NotEquals(Istr),
    In(OneOf),
    NotIn(OneOf),
    Exists,
    DoesNotExist,
    /// The text of a number.
    GreaterThan(Istr),
    LessThan(Istr),
}

impl Test {
    /// Returns whether an object passes the test. `label`: its value of the label; `None` if it
    /// lacks the label.
    fn holds(&self, label: Option<&str>) -> bool {
        match (self, label) {
            (Test::Equals(value) | Test::DoubleEquals(value), Some(label)) => value == label,
            (Test::NotEquals(value), Some(label)) => value != label,
            (Test::In(values), Some(label)) => values.contains(label),
            (Test::NotIn(values), Some(label)) => !values.contains(label),
            (Test::GreaterThan(bound), Some(label)) => compared(label, bound) == Some(Greater),
            (Test::LessThan(bound), Some(label)) => compared(label, bound) == Some(Less),
            (Test::Exists, label) => label.is_some(),
            (Test::DoesNotExist, label) => label.is_none(),
            // As upstream: a missing label equals no value.
            (Test::NotEquals(_) | Test::NotIn(_), None) => true,
            (_, None) => false,
        }
    }
}

/// Compares both as numbers; `None` unless both are numbers.
fn compared(label: &str, bound: &str) -> Option<Ordering> {
    Some(number(label)?.cmp(&number(bound)?))
}

/// Parses a number as `strconv.ParseInt` does.
fn number(text: &str) -> Option<i64> {
    text.parse().ok()
}

impl Selector {
    /// Selects every object. Upstream: `labels.Everything`.
    pub fn everything() -> Selector {
        Selector::default()
    }

    /// Selects no object. Upstream: `labels.Nothing`.
    pub fn nothing() -> Selector {
        Selector { nothing: true, terms: Vec::new() }
    }

    /// Returns a selector of these labels with their values, which are not validated. Upstream:
    /// `labels.SelectorFromSet`.
    pub fn from_labels(labels: &Labels) -> Selector {
        let of_label = |(key, value): &(Istr, Istr)| Term {
            key: key.clone(),
            test: Test::Equals(value.clone()),
        };
        Selector { nothing: false, terms: labels.pairs().iter().map(of_label).collect() }
    }

    /// Returns what stays of the selector after a conversion to a `LabelSelector` and back, which
    /// upstream does with the selector of a Scale: it is sorted by key, and of several values that
    /// a label must have, the last one counts.
    /// Upstream: `ParseToLabelSelector`.
    ///
    /// # Errors
    /// In upstream's words: a `LabelSelector` has no such operator.
    pub fn for_label_selector(mut self) -> Result<Selector, String> {
        self.terms.sort_by(|a, b| a.key.cmp(&b.key));
        let mut terms: Vec<Term> = Vec::new();
        for Term { key, test } in self.terms {
            let test = match test {
                Test::Equals(value) | Test::DoubleEquals(value) => {
                    let is_same =
                        |term: &Term| term.key == key && matches!(term.test, Test::Equals(_));
                    terms.retain(|term| !is_same(term));
                    Test::Equals(value)
                }
                Test::NotEquals(_) => {
                    return Err("\"!=\" is not a valid label selector operator".to_owned());
                }
                Test::GreaterThan(_) => {
                    return Err("\"gt\" isn't supported in label selectors".to_owned());
                }
                Test::LessThan(_) => {
                    return Err("\"lt\" isn't supported in label selectors".to_owned());
                }
                other => other,
            };
            terms.push(Term { key, test });
        }
        Ok(Selector { nothing: self.nothing, terms })
    }

    /// Returns whether the selector has no terms, and so matches everything.
    pub fn is_empty(&self) -> bool {
        !self.nothing && self.terms.is_empty()
    }

    /// Whether the selector matches no labels.
    pub fn is_nothing(&self) -> bool {
        self.nothing
    }

    /// Returns the key and the value of a label that all matching objects have, if there is one.
    pub fn required_label(&self) -> Option<(&Istr, &Istr)> {
        self.terms.iter().find_map(|Term { key, test }| match test {
            Test::Equals(value) | Test::DoubleEquals(value) => Some((key, value)),
            Test::In(values) => match values.as_ref() {
                [value] => Some((key, value)),
                _ => None,
            },
            _ => None,
        })
    }

    /// Returns whether it selects an object with these labels.
    pub fn matches(&self, labels: &Labels) -> bool {
        !self.nothing && self.terms.iter().all(|Term { key, test }| test.holds(labels.get(key)))
    }

    /// Returns a function that does the same as [`Selector::matches`] for many objects, of which
    /// most have the labels of the one before: those of one template share them.
    pub fn matcher(&self) -> impl FnMut(&Labels) -> bool + '_ {
        let mut last: Option<(Labels, bool)> = None;
        move |labels| match &last {
            Some((seen, matched)) if seen == labels => *matched,
            _ => last.insert((labels.clone(), self.matches(labels))).1,
        }
    }
}

impl TryFrom<&LabelSelector> for Selector {
    type Error = SelectorError;

    /// Converts a selector, and checks its keys and values. Syncs and events of pods do it, so
    /// nothing but the terms is allocated for a valid one. Upstream:
    /// `metav1.LabelSelectorAsSelector`.
    fn try_from(selector: &LabelSelector) -> Result<Selector, SelectorError> {
        let LabelSelector { match_labels, match_expressions } = selector;
        for (key, value) in match_labels.pairs() {
            check(key, slice::from_ref(value), None)?;
        }
        let mut selector = Selector::from_labels(match_labels);
        selector.terms.reserve_exact(match_expressions.len());
        for expression in match_expressions {
            selector.terms.push(term_of(expression)?);
        }
        Ok(selector)
    }
}

/// Converts a requirement to a term, and checks its operator, key and values.
fn term_of(Requirement { key, operator, values }: &Requirement) -> Result<Term, SelectorError> {
    let (test, has_bad_values, rule) = match operator.as_str() {
        "In" => (Test::In(values.clone().into()), values.is_empty(), NOT_EMPTY),
        "NotIn" => (Test::NotIn(values.clone().into()), values.is_empty(), NOT_EMPTY),
        "Exists" => (Test::Exists, !values.is_empty(), EMPTY),
        "DoesNotExist" => (Test::DoesNotExist, !values.is_empty(), EMPTY),
        other => {
            let fault = format!("{other:?} is not a valid label selector operator");
            return Err(SelectorError(fault));
        }
    };
    let error = has_bad_values.then(|| values_error(values, rule));
    check(key, values, error)?;
    Ok(Term { key: key.clone(), test })
}

const NOT_EMPTY: &str = "for 'in', 'notin' operators, values set can't be empty";
const EMPTY: &str = "values set must be empty for exists and does not exist";

/// Returns the fault of an operator with too many or too few values.
#[cold]
fn values_error(values: &[Istr], rule: &str) -> String {
    // Go's empty list is nil.
    let values = Some(values).filter(|values| !values.is_empty());
    let values = serde_json::to_string(&values).unwrap_or_default();
    format!("values: Invalid value: {values}: {rule}")
}

/// Checks the key and the values of a term. `error`: a fault of the operator with these values.
/// Upstream: `labels.NewRequirement`.
fn check(key: &str, values: &[Istr], error: Option<String>) -> Result<(), SelectorError> {
    let are_valid = is_label_key(key) && values.iter().all(|value| is_label_value(value));
    match are_valid && error.is_none() {
        true => Ok(()),
        false => Err(faults(key, values, error)),
    }
}

/// Collects all faults of a term into one error. `error`: as for [`check`].
/// Upstream: `field.ErrorList`.
#[cold]
fn faults(key: &str, values: &[Istr], error: Option<String>) -> SelectorError {
    let of_key = invalid("key", key, &label_key_fault(key));
    let of_value = |(at, value): (usize, &Istr)| {
        invalid(&format!("values[{at}][{key}]"), value, &label_value_fault(value))
    };
    let of_values = values.iter().enumerate().filter_map(of_value);
    let faults: Vec<String> = of_key.into_iter().chain(error).chain(of_values).collect();
    SelectorError(match faults.as_slice() {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    })
}

/// Returns the error of a field; `None` if `fault` is empty. Upstream: `field.Invalid`.
fn invalid(field: &str, value: &str, fault: &str) -> Option<String> {
    (!fault.is_empty()).then(|| format!("{field}: Invalid value: {value:?}: {fault}"))
}

impl TryFrom<Option<&LabelSelector>> for Selector {
    type Error = SelectorError;
    fn try_from(selector: Option<&LabelSelector>) -> Result<Selector, SelectorError> {
        selector.map_or_else(|| Ok(Selector::nothing()), Selector::try_from)
    }
}

/// In the form of the `labelSelector` query parameter and of a Scale's `status.selector`.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut terms: Vec<&Term> = self.terms.iter().collect();
        terms.sort_by(|a, b| a.key.cmp(&b.key));
        for (at, term) in terms.into_iter().enumerate() {
            if at > 0 {
                f.write_str(",")?;
            }
            term.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = |values: &[Istr]| {
            let mut values: Vec<&str> = values.iter().map(Istr::as_str).collect();
            values.sort();
            values.join(",")
        };
        let Term { key, test } = self;
        match test {
            Test::Equals(value) => write!(f, "{key}={value}"),
            Test::DoubleEquals(value) => write!(f, "{key}=={value}"),
            Test::NotEquals(value) => write!(f, "{key}!={value}"),
            Test::In(values) => write!(f, "{key} in ({})", set(values.as_ref())),
            Test::NotIn(values) => write!(f, "{key} notin ({})", set(values.as_ref())),
            Test::Exists => write!(f, "{key}"),
            Test::DoesNotExist => write!(f, "!{key}"),
            Test::GreaterThan(bound) => write!(f, "{key}>{bound}"),
            Test::LessThan(bound) => write!(f, "{key}<{bound}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn selector(given: Value) -> Result<Selector, SelectorError> {
        let given: LabelSelector = serde_json::from_value(given).unwrap();
        Selector::try_from(&given)
    }

    #[test]
    fn absent_selects_nothing_and_empty_everything() {
        let labels = Labels::default();
        assert!(!Selector::try_from(None).unwrap().matches(&labels));
        assert!(Selector::try_from(&LabelSelector::default()).unwrap().matches(&labels));
    }

    #[test]
    fn a_label_selector_matches_and_is_printed() {
        let labels: Labels = [("app", "web"), ("tier", "front")].into_iter().collect();
        let expression = |key: &str, operator: &str, values: Value| json!({ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] });
        for (given, matches, printed) in [
            (
                json!({ "matchLabels": { "tier": "front", "app": "web" } }),
                true,
                "app=web,tier=front",
            ),
            (json!({ "matchLabels": { "app": "api" } }), false, "app=api"),
            (json!({ "matchLabels": { "none": "" } }), false, "none="),
            (expression("app", "In", json!(["web"])), true, "app in (web)"),
            (expression("app", "In", json!(["web", "api"])), true, "app in (api,web)"),
            (expression("none", "In", json!(["web"])), false, "none in (web)"),
            (expression("app", "NotIn", json!(["web"])), false, "app notin (web)"),
            (expression("app", "NotIn", json!(["api"])), true, "app notin (api)"),
            (expression("none", "NotIn", json!(["web"])), true, "none notin (web)"),
            (expression("app", "Exists", Value::Null), true, "app"),
            (expression("none", "Exists", json!([])), false, "none"),
            (expression("app", "DoesNotExist", Value::Null), false, "!app"),
            (expression("none", "DoesNotExist", Value::Null), true, "!none"),
        ] {
            let found = selector(given).unwrap();
            assert_eq!((found.matches(&labels), &*found.to_string()), (matches, printed));
            let (mut matcher, none) = (found.matcher(), Labels::default());
            for labels in [&labels, &labels.clone(), &none, &none, &labels] {
                assert_eq!(matcher(labels), found.matches(labels), "{printed} {labels:?}");
            }
        }
    }

    #[test]
    fn an_invalid_label_selector_is_refused_in_upstreams_words() {
        let (key, value) = (label_key_fault("-k"), label_value_fault("v!"));
        let expression = |key: &str, operator: &str, values: Value| json!({ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] });
        for (given, error) in [
            (json!({ "matchLabels": { "-k": "v" } }), format!("key: Invalid value: \"-k\": {key}")),
            (
                json!({ "matchLabels": { "k": "v!" } }),
                format!("values[0][k]: Invalid value: \"v!\": {value}"),
            ),
            (
                json!({ "matchLabels": { "-k": "v!" } }),
                format!(
                    "[key: Invalid value: \"-k\": {key}, \
                     values[0][-k]: Invalid value: \"v!\": {value}]"
                ),
            ),
            (
                expression("-k", "Gt", json!(["1"])),
                "\"Gt\" is not a valid label selector operator".to_owned(),
            ),
            (expression("-k", "Exists", Value::Null), format!("key: Invalid value: \"-k\": {key}")),
            (expression("k", "In", json!([])), format!("values: Invalid value: null: {NOT_EMPTY}")),
            (
                expression("-k", "NotIn", Value::Null),
                format!(
                    "[key: Invalid value: \"-k\": {key}, values: Invalid value: null: {NOT_EMPTY}]"
                ),
            ),
            (
                expression("k", "NotIn", json!(["v", "v!"])),
                format!("values[1][k]: Invalid value: \"v!\": {value}"),
            ),
            (
                expression("k", "Exists", json!(["v", "w"])),
                format!("values: Invalid value: [\"v\",\"w\"]: {EMPTY}"),
            ),
            (
                expression("k", "DoesNotExist", json!(["v!"])),
                format!(
                    "[values: Invalid value: [\"v!\"]: {EMPTY}, \
                     values[0][k]: Invalid value: \"v!\": {value}]"
                ),
            ),
        ] {
            let found = selector(given.clone()).map_err(|error| error.to_string());
            assert_eq!(found, Err(error), "{given}");
        }
        // Upstream does not validate a plain set of labels.
        let odd: Labels = [("-k", "v!")].into_iter().collect();
        assert!(Selector::from_labels(&odd).matches(&odd));
    }

    #[test]
    fn a_required_label_is_found() {
        for (text, required) in [
            ("", None),
            ("a,b!=1,c notin (1),!d,e>1,f in (1,2)", None),
            ("a,b=1", Some(("b", "1"))),
            ("a,b==1", Some(("b", "1"))),
            ("a,b in (1)", Some(("b", "1"))),
        ] {
            let selector: Selector = text.parse().unwrap();
            let found =
                selector.required_label().map(|(key, value)| (key.as_str(), value.as_str()));
            assert_eq!(found, required, "{text}");
        }
    }
}
