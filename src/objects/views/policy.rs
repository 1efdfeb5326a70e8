//! The lean view of a ValidatingAdmissionPolicy: the fields that type checking reads.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::objects::{Meta, WholeMeta, null_as_default, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ValidatingAdmissionPolicy {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub spec: ValidatingAdmissionPolicySpec,
    #[serde(deserialize_with = "null_as_default")]
    pub status: ValidatingAdmissionPolicyStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ValidatingAdmissionPolicySpec {
    pub param_kind: Option<ParamKind>,
    #[serde(deserialize_with = "null_as_default")]
    pub match_constraints: MatchConstraints,
    #[serde(deserialize_with = "null_as_default")]
    pub validations: Vec<Validation>,
    #[serde(deserialize_with = "null_as_default")]
    pub variables: Vec<Variable>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ParamKind {
    #[serde(deserialize_with = "null_as_default")]
    pub api_version: String,
    #[serde(deserialize_with = "null_as_default")]
    pub kind: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MatchConstraints {
    #[serde(deserialize_with = "null_as_default")]
    pub resource_rules: Vec<NamedRuleWithOperations>,
}

/// The resources that a policy matches: every combination of the given names, `*` for all.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NamedRuleWithOperations {
    #[serde(deserialize_with = "null_as_default")]
    pub api_groups: Vec<String>,
    #[serde(deserialize_with = "null_as_default")]
    pub api_versions: Vec<String>,
    #[serde(deserialize_with = "null_as_default")]
    pub resources: Vec<String>,
}

/// Two expressions; an absent one is empty.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Validation {
    #[serde(deserialize_with = "null_as_default")]
    pub expression: String,
    #[serde(deserialize_with = "null_as_default")]
    pub message_expression: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Variable {
    #[serde(deserialize_with = "null_as_default")]
    pub name: String,
    #[serde(deserialize_with = "null_as_default")]
    pub expression: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ValidatingAdmissionPolicyStatus {
    #[serde(deserialize_with = "null_as_default")]
    pub observed_generation: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub type_checking: Option<TypeChecking>,
    /// Conditions of other writers: kept unchanged.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TypeChecking {
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub expression_warnings: Vec<ExpressionWarning>,
}

/// The warning about one expression, in human-readable lines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExpressionWarning {
    /// `spec.validations[0].expression`
    #[serde(deserialize_with = "null_as_default")]
    pub field_ref: String,
    #[serde(deserialize_with = "null_as_default")]
    pub warning: String,
}

resource!(
    ValidatingAdmissionPolicy,
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicies",
    cluster
);
impl WholeMeta for ValidatingAdmissionPolicy {}
