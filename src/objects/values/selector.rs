//! Label selectors. Upstream: `metav1.LabelSelector`, `labels.Selector`.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::objects::{Istr, Labels, null_as_default};
use crate::sort::Order;

/// As written in an object's spec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub match_labels: Labels,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requirement {
    pub key: Istr,
    pub operator: Istr,
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<Istr>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectorError(String);

impl fmt::Display for SelectorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SelectorError {}

/// Ready to match. An absent LabelSelector selects nothing, an empty one everything.
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

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Test {
    In(Vec<Istr>),
    NotIn(Vec<Istr>),
    Exists,
    DoesNotExist,
}

impl Selector {
    pub fn everything() -> Selector {
        Selector::default()
    }

    pub fn nothing() -> Selector {
        Selector { nothing: true, terms: Vec::new() }
    }

    /// Every label with its value. Upstream: `labels.SelectorFromSet`.
    pub fn from_labels(labels: &Labels) -> Selector {
        let terms = labels
            .iter()
            .map(|(key, value)| Term { key: key.into(), test: Test::In(vec![value.into()]) })
            .collect();
        Selector { nothing: false, terms }
    }

    /// True of a selector that has no term and so matches everything.
    pub fn is_empty(&self) -> bool {
        !self.nothing && self.terms.is_empty()
    }

    /// It matches no labels.
    pub fn is_nothing(&self) -> bool {
        self.nothing
    }

    /// The key and the value of a label that everything it matches has, if there is one.
    pub fn required_label(&self) -> Option<(&Istr, &Istr)> {
        self.terms.iter().find_map(|Term { key, test }| match test {
            Test::In(values) => match values.as_slice() {
                [value] => Some((key, value)),
                _ => None,
            },
            _ => None,
        })
    }

    pub fn matches(&self, labels: &Labels) -> bool {
        !self.nothing
            && self.terms.iter().all(|term| match (&term.test, labels.get(&term.key)) {
                (Test::In(values), Some(value)) => values.iter().any(|v| v == value),
                (Test::In(_), None) | (Test::Exists, None) => false,
                (Test::NotIn(values), Some(value)) => values.iter().all(|v| v != value),
                (Test::NotIn(_), None) | (Test::DoesNotExist, None) | (Test::Exists, Some(_)) => {
                    true
                }
                (Test::DoesNotExist, Some(_)) => false,
            })
    }
}

impl TryFrom<&LabelSelector> for Selector {
    type Error = SelectorError;

    /// Upstream: `metav1.LabelSelectorAsSelector`.
    fn try_from(selector: &LabelSelector) -> Result<Selector, SelectorError> {
        let mut terms = Selector::from_labels(&selector.match_labels).terms;
        for Requirement { key, operator, values } in &selector.match_expressions {
            let fault = |what: &str| Err(SelectorError(format!("key {key:?}: {what}")));
            let test = match operator.as_str() {
                "In" | "NotIn" if values.is_empty() => {
                    return fault("for 'in', 'notin' operators, values set can't be empty");
                }
                "In" => Test::In(values.clone()),
                "NotIn" => Test::NotIn(values.clone()),
                "Exists" | "DoesNotExist" if !values.is_empty() => {
                    return fault("values set must be empty for exists and does not exist");
                }
                "Exists" => Test::Exists,
                "DoesNotExist" => Test::DoesNotExist,
                other => {
                    return fault(&format!("{other:?} is not a valid label selector operator"));
                }
            };
            terms.push(Term { key: key.clone(), test });
        }
        Ok(Selector { nothing: false, terms })
    }
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
        terms.order_by(|a, b| a.key.cmp(&b.key));
        for (at, Term { key, test }) in terms.into_iter().enumerate() {
            if at > 0 {
                f.write_str(",")?;
            }
            let set = |values: &[Istr]| {
                let mut values: Vec<&str> = values.iter().map(Istr::as_str).collect();
                values.order();
                values.join(",")
            };
            match test {
                Test::In(values) if values.len() == 1 => write!(f, "{key}={}", values[0])?,
                Test::In(values) => write!(f, "{key} in ({})", set(values))?,
                Test::NotIn(values) => write!(f, "{key} notin ({})", set(values))?,
                Test::Exists => write!(f, "{key}")?,
                Test::DoesNotExist => write!(f, "!{key}")?,
            }
        }
        Ok(())
    }
}

/// From the `labelSelector` query parameter. Upstream: `labels.Parse`.
impl std::str::FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Selector, SelectorError> {
        let terms = split_outside_parentheses(text)
            .into_iter()
            .map(str::trim)
            .filter(|term| !term.is_empty())
            .map(parse_term)
            .collect::<Result<Vec<Term>, SelectorError>>()?;
        Ok(Selector { nothing: false, terms })
    }
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut depth) = (0, 0usize);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn parse_term(text: &str) -> Result<Term, SelectorError> {
    let fault = || SelectorError(format!("unable to parse requirement: {text:?}"));
    let word = |text: &str| -> Result<Istr, SelectorError> {
        let text = text.trim();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        if text.chars().all(plain) { Ok(Istr::new(text)) } else { Err(fault()) }
    };
    let key = |text: &str| word(text).and_then(|k| if k.is_empty() { Err(fault()) } else { Ok(k) });
    if let Some(rest) = text.strip_suffix(')') {
        let (head, values) = rest.split_once('(').ok_or_else(fault)?;
        let values = values.split(',').map(word).collect::<Result<Vec<Istr>, _>>()?;
        let (name, operator) = head.trim().rsplit_once(char::is_whitespace).ok_or_else(fault)?;
        let test = match operator {
            "in" => Test::In(values),
            "notin" => Test::NotIn(values),
            _ => return Err(fault()),
        };
        return Ok(Term { key: key(name)?, test });
    }
    if let Some((name, value)) = text.split_once("!=") {
        return Ok(Term { key: key(name)?, test: Test::NotIn(vec![word(value)?]) });
    }
    if let Some((name, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return Ok(Term { key: key(name)?, test: Test::In(vec![word(value)?]) });
    }
    if let Some(name) = text.strip_prefix('!') {
        return Ok(Term { key: key(name)?, test: Test::DoesNotExist });
    }
    Ok(Term { key: key(text)?, test: Test::Exists })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_prints_and_matches() {
        let labels: Labels = [("app", "web"), ("tier", "front")].into_iter().collect();
        for (text, matches, printed) in [
            ("", true, ""),
            ("app=web", true, "app=web"),
            ("app == web,tier", true, "app=web,tier"),
            ("app!=web", false, "app notin (web)"),
            ("other!=web", true, "other notin (web)"),
            ("tier in (front, back)", true, "tier in (back,front)"),
            ("tier notin (back),!gone", true, "!gone,tier notin (back)"),
            ("!app", false, "!app"),
            ("app in (x)", false, "app=x"),
        ] {
            let selector: Selector = text.parse().unwrap();
            assert_eq!(selector.matches(&labels), matches, "{text}");
            assert_eq!(
                selector.to_string().split(',').count(),
                printed.split(',').count(),
                "{selector}"
            );
        }
        for text in ["=web", "app in web", "app near (x)", "a b", "app=(x"] {
            assert!(text.parse::<Selector>().is_err(), "{text}");
        }
    }

    #[test]
    fn absent_selects_nothing_and_empty_everything() {
        let labels = Labels::default();
        assert!(!Selector::try_from(None).unwrap().matches(&labels));
        assert!(Selector::try_from(&LabelSelector::default()).unwrap().matches(&labels));
    }
}
