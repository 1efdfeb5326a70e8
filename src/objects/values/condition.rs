//! Conditions of statuses. The generated types read times with jiff, which lacks the last day of the
//! year 9999 and all that is later.

#![warn(missing_docs)]

use serde::{Deserialize, Serialize};

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

#[cfg(test)]
mod tests {
    use super::*;

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
