//! Conditions of statuses. The generated types read times with jiff, which lacks the last day of the
//! year 9999 and all that is later.

#![warn(missing_docs)]

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::objects::{Timestamp, null_as_default};

/// A condition with the fields of `metav1.Condition` and of the kinds' own types, as of
/// DeploymentCondition. Absent fields stay absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// The name of the condition, `Available`.
    #[serde(rename = "type", deserialize_with = "null_as_default")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    #[serde(deserialize_with = "null_as_default")]
    pub status: String,
    /// The generation that the condition is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When it was last written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Timestamp>,
    /// `None`: the zero time, which Go writes as null.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Timestamp>,
    /// A CamelCase word for programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// A sentence for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Puts changes of conditions into the `status` of a strategic merge patch: the `known` ones keep their
/// order, and a new one is the last. Upstream: `strategicpatch.CreateTwoWayMergePatch`.
pub fn patch_conditions<'a>(
    status: &mut Value,
    known: impl Iterator<Item = &'a str>,
    mut changes: Vec<Value>,
) {
    if changes.is_empty() {
        return;
    }
    let is_deleted = |change: &Value| change["$patch"] == "delete";
    let mut order: Vec<String> = known.map(str::to_owned).collect();
    for change in &changes {
        let Some(name) = change["type"].as_str() else { continue };
        if is_deleted(change) {
            order.retain(|known| known != name);
        } else if !order.iter().any(|known| known == name) {
            order.push(name.to_owned());
        }
    }
    // The API server refuses changes in another order.
    changes.sort_by_key(|change| order.iter().position(|name| change["type"] == *name));
    let order: Vec<Value> = order.into_iter().map(|name| json!({ "type": name })).collect();
    status["$setElementOrder/conditions"] = order.into();
    status["conditions"] = changes.into();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_condition_is_the_last() {
        let named = |name: &str| json!({ "type": name, "status": "True" });
        let gone = |name: &str| json!({ "type": name, "$patch": "delete" });
        for (changes, order) in [
            (vec![named("New")], "[A B New]"),
            (vec![named("A")], "[A B]"),
            (vec![gone("A"), named("New")], "[B New]"),
            (vec![], "[]"),
        ] {
            let mut status = json!({});
            patch_conditions(&mut status, ["A", "B"].into_iter(), changes.clone());
            let of = status["$setElementOrder/conditions"].as_array();
            let names = of.into_iter().flatten().map(|item| item["type"].as_str().unwrap());
            assert_eq!(format!("[{}]", names.collect::<Vec<_>>().join(" ")), order);
            let expected = if changes.is_empty() { Value::Null } else { changes.into() };
            assert_eq!(status["conditions"], expected);
        }
        let mut status = json!({});
        patch_conditions(&mut status, ["A", "B"].into_iter(), vec![named("New"), named("A")]);
        assert_eq!(status["conditions"], json!([named("A"), named("New")]));
    }

    #[test]
    fn a_condition_is_written_as_it_was_read() {
        for json in [
            r#"{"type":"a","status":"True"}"#,
            r#"{"type":"","status":"","observedGeneration":0,"lastTransitionTime":"9999-12-31T23:59:59Z","reason":"","message":""}"#,
            r#"{"type":"a","status":"True","lastUpdateTime":"0001-01-01T00:00:00Z","lastTransitionTime":"10000-01-01T00:00:00Z"}"#,
        ] {
            let condition: Condition = serde_json::from_str(json).unwrap();
            assert_eq!(serde_json::to_string(&condition).unwrap(), json);
        }
    }
}
