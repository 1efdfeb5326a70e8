//! Selectors of nodes: a pod's node selector and required node affinity, and the node affinity of a
//! volume. Upstream: `component-helpers/scheduling/corev1/nodeaffinity`.

use serde::Deserialize;

use super::label_syntax::{is_label_key, is_label_value};
use super::one_of::OneOf;
use crate::objects::{Istr, Labels, null_as_default};

/// A node selector that is ready to match: one of its terms has to hold. Terms that are empty or
/// malformed match no node and are left out. Upstream: `v1.NodeSelector`,
/// `nodeaffinity.LazyErrorNodeSelector`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(from = "WireSelector")]
pub struct NodeSelector {
    terms: Box<[Term]>,
}

/// A term: all of its requirements have to hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Term {
    labels: Box<[(Istr, Test)]>,
    fields: Box<[FieldTest]>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Test {
    In(OneOf),
    NotIn(OneOf),
    Exists,
    DoesNotExist,
    GreaterThan(i64),
    LessThan(i64),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct FieldTest {
    field: Istr,
    value: Istr,
    is_equal: bool,
}

/// The only field of a node that terms can name.
const NAME: &str = "metadata.name";

impl NodeSelector {
    /// Returns whether a node of this name and with these labels is selected. Without a name only
    /// the labels are tested.
    pub fn matches(&self, name: &str, labels: &Labels) -> bool {
        self.terms.iter().any(|term| {
            term.labels.iter().all(|(key, test)| test.holds(labels.get(key)))
                && (name.is_empty() || term.fields.iter().all(|test| test.holds(name)))
        })
    }
}

impl Test {
    /// Returns whether a node passes the test. `label`: its value of the label; `None` if it lacks
    /// the label.
    fn holds(&self, label: Option<&str>) -> bool {
        match (self, label) {
            (Test::In(values), Some(label)) => values.contains(label),
            (Test::NotIn(values), Some(label)) => !values.contains(label),
            (Test::GreaterThan(bound), Some(label)) => number(label).is_some_and(|n| n > *bound),
            (Test::LessThan(bound), Some(label)) => number(label).is_some_and(|n| n < *bound),
            (Test::Exists, label) => label.is_some(),
            (Test::DoesNotExist, label) => label.is_none(),
            // As upstream: a missing label is in no list.
            (Test::NotIn(_), None) => true,
            (Test::In(_) | Test::GreaterThan(_) | Test::LessThan(_), None) => false,
        }
    }
}

impl FieldTest {
    /// Returns whether a node of this name passes the test.
    fn holds(&self, name: &str) -> bool {
        // A field that nodes lack counts as empty.
        let actual = if self.field == NAME { name } else { "" };
        (self.value == *actual) == self.is_equal
    }
}

/// Parses a number as `strconv.ParseInt` does: with a sign, and with leading zeros.
fn number(text: &str) -> Option<i64> {
    text.parse().ok()
}

/// The requirements of a pod for its node, from `spec.nodeSelector` and `spec.affinity`. Upstream:
/// `nodeaffinity.RequiredNodeAffinity`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAffinity {
    pub node_selector: Labels,
    /// `nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution`.
    pub required: Option<NodeSelector>,
}

impl NodeAffinity {
    pub fn matches(&self, name: &str, labels: &Labels) -> bool {
        labels.include(&self.node_selector)
            && self.required.as_ref().is_none_or(|required| required.matches(name, labels))
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireSelector {
    #[serde(deserialize_with = "null_as_default")]
    node_selector_terms: Vec<WireTerm>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireTerm {
    #[serde(deserialize_with = "null_as_default")]
    match_expressions: Vec<WireRequirement>,
    #[serde(deserialize_with = "null_as_default")]
    match_fields: Vec<WireRequirement>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireRequirement {
    key: Istr,
    operator: Istr,
    #[serde(deserialize_with = "null_as_default")]
    values: Box<[Istr]>,
}

impl From<WireSelector> for NodeSelector {
    fn from(wire: WireSelector) -> NodeSelector {
        NodeSelector { terms: wire.node_selector_terms.into_iter().filter_map(term).collect() }
    }
}

/// Converts a term of the API; `None` if it is empty or malformed.
fn term(WireTerm { match_expressions, match_fields }: WireTerm) -> Option<Term> {
    if match_expressions.is_empty() && match_fields.is_empty() {
        return None;
    }
    let labels = match_expressions.into_iter().map(label_test).collect::<Option<_>>()?;
    let fields = match_fields.into_iter().map(field_test).collect::<Option<_>>()?;
    Some(Term { labels, fields })
}

/// Converts a requirement to a test of a label; `None` if it is not valid, as the term then selects
/// no node.
fn label_test(WireRequirement { key, operator, values }: WireRequirement) -> Option<(Istr, Test)> {
    if !is_label_key(&key) || !values.iter().all(|value| is_label_value(value)) {
        return None;
    }
    let test = match (operator.as_str(), &*values) {
        ("In", [_, ..]) => Test::In(values.into()),
        ("NotIn", [_, ..]) => Test::NotIn(values.into()),
        ("Exists", []) => Test::Exists,
        ("DoesNotExist", []) => Test::DoesNotExist,
        ("Gt", [bound]) => Test::GreaterThan(number(bound)?),
        ("Lt", [bound]) => Test::LessThan(number(bound)?),
        _ => return None,
    };
    Some((key, test))
}

/// Converts a requirement to a test of a field; `None` if it is not valid.
fn field_test(requirement: WireRequirement) -> Option<FieldTest> {
    let is_equal = match requirement.operator.as_str() {
        "In" => true,
        "NotIn" => false,
        _ => return None,
    };
    let [value] = &*requirement.values else { return None };
    Some(FieldTest { value: value.clone(), field: requirement.key, is_equal })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(terms: &str) -> NodeSelector {
        serde_json::from_str(&format!(r#"{{"nodeSelectorTerms": {terms}}}"#)).unwrap()
    }

    fn expression(key: &str, operator: &str, values: &str) -> String {
        format!(r#"{{"key": {key:?}, "operator": {operator:?}, "values": {values}}}"#)
    }

    #[test]
    fn a_term_is_a_conjunction_and_terms_are_alternatives() {
        let labels: Labels = [("zone", "a"), ("cpus", "8")].into_iter().collect();
        let zone = |zone: &str| expression("zone", "In", &format!("[{zone:?}]"));
        let name = |operator, name: &str| expression(NAME, operator, &format!("[{name:?}]"));
        let labelled = |of: &[String]| format!(r#"{{"matchExpressions": [{}]}}"#, of.join(","));
        let fields = |of: &[String]| format!(r#"{{"matchFields": [{}]}}"#, of.join(","));
        let both = |label: &str, field: &str| {
            format!(r#"{{"matchExpressions": [{label}], "matchFields": [{field}]}}"#)
        };
        let exists = expression("cpus", "Exists", "null");
        for (terms, selected) in [
            (vec![], false),
            (vec!["{}".to_owned()], false),
            (vec![labelled(&[zone("a")])], true),
            (vec![labelled(&[zone("b")])], false),
            (vec![labelled(&[zone("a"), exists.clone()])], true),
            (vec![labelled(&[zone("b"), exists.clone()])], false),
            (vec![labelled(&[zone("b")]), labelled(&[zone("a")])], true),
            (vec![fields(&[name("In", "n1")])], true),
            (vec![fields(&[name("In", "n2")])], false),
            (vec![fields(&[name("NotIn", "n2")])], true),
            (vec![fields(&[name("NotIn", "n1")])], false),
            (vec![both(&zone("a"), &name("In", "n1"))], true),
            (vec![both(&zone("b"), &name("In", "n1"))], false),
            (vec![both(&zone("a"), &name("In", "n2"))], false),
            (vec![fields(&[expression("metadata.other", "In", r#"["x"]"#)])], false),
            (vec![fields(&[expression("metadata.other", "NotIn", r#"["x"]"#)])], true),
            // A malformed part makes its term match nothing; the other terms still match.
            (vec![fields(&[expression(NAME, "In", r#"["n1", "n2"]"#)])], false),
            (vec![fields(&[expression(NAME, "Exists", "[]")])], false),
            (vec![labelled(&[zone("a"), expression("x", "Near", "[]")])], false),
            (vec![labelled(&[expression("x", "Near", "[]")]), labelled(&[zone("a")])], true),
        ] {
            let terms = format!("[{}]", terms.join(","));
            assert_eq!(selector(&terms).matches("n1", &labels), selected, "{terms}");
        }
        // A volume's affinity is matched without a node's name.
        assert!(selector(&format!("[{}]", fields(&[name("In", "n2")]))).matches("", &labels));
    }

    #[test]
    fn each_operator_tests_a_label() {
        let labels: Labels = [("zone", "a"), ("cpus", "8"), ("odd", "-007")].into_iter().collect();
        for (key, operator, values, selected) in [
            ("zone", "In", r#"["a", "b"]"#, true),
            ("none", "In", r#"["a"]"#, false),
            ("zone", "In", "[]", false),
            ("zone", "NotIn", r#"["a"]"#, false),
            ("zone", "NotIn", r#"["b"]"#, true),
            ("none", "NotIn", r#"["b"]"#, true),
            ("none", "NotIn", "[]", false),
            ("zone", "Exists", "[]", true),
            ("none", "Exists", "[]", false),
            ("zone", "Exists", r#"["a"]"#, false),
            ("none", "DoesNotExist", "[]", true),
            ("zone", "DoesNotExist", "[]", false),
            ("cpus", "Gt", r#"["7"]"#, true),
            ("cpus", "Gt", r#"["8"]"#, false),
            ("cpus", "Lt", r#"["9"]"#, true),
            ("cpus", "Lt", r#"["7", "9"]"#, false),
            ("cpus", "Lt", r#"["many"]"#, false),
            ("zone", "Lt", r#"["9"]"#, false),
            ("none", "Lt", r#"["9"]"#, false),
            ("odd", "Lt", r#"["0"]"#, true),
            ("zone", "NotIn", r#"["-b"]"#, false),
            ("zone", "NotIn", r#"["b c"]"#, false),
            ("not a key", "DoesNotExist", "[]", false),
            ("a/b/c", "DoesNotExist", "[]", false),
            ("Upper.com/x", "DoesNotExist", "[]", false),
            ("lower.com/X_y", "DoesNotExist", "[]", true),
        ] {
            let expression = expression(key, operator, values);
            let selector = selector(&format!(r#"[{{"matchExpressions": [{expression}]}}]"#));
            assert_eq!(selector.matches("n1", &labels), selected, "{expression}");
        }
    }

    #[test]
    fn node_selector_and_affinity_have_to_hold_both() {
        let labels: Labels = [("zone", "a"), ("disk", "ssd")].into_iter().collect();
        let term = |zone: &str| {
            let expression = expression("zone", "In", &format!("[{zone:?}]"));
            selector(&format!(r#"[{{"matchExpressions": [{expression}]}}]"#))
        };
        for (disk, zone, selected) in [
            (None, None, true),
            (Some("ssd"), None, true),
            (Some("hdd"), None, false),
            (Some("ssd"), Some("a"), true),
            (Some("ssd"), Some("b"), false),
            (Some("hdd"), Some("a"), false),
        ] {
            let affinity = NodeAffinity {
                node_selector: disk.map(|disk| ("disk", disk)).into_iter().collect(),
                required: zone.map(term),
            };
            assert_eq!(affinity.matches("n1", &labels), selected, "{disk:?} {zone:?}");
        }
    }
}
