//! The lean view of a ValidatingAdmissionPolicy: what type checking reads.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::objects::{Meta, WholeMeta, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ValidatingAdmissionPolicy {
    #[serde(rename = "metadata")]
    pub meta: Meta,
    pub spec: ValidatingAdmissionPolicySpec,
    pub status: ValidatingAdmissionPolicyStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ValidatingAdmissionPolicySpec {
    pub param_kind: Option<ParamKind>,
    pub match_constraints: MatchConstraints,
    pub validations: Vec<Validation>,
    pub variables: Vec<Variable>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ParamKind {
    pub api_version: String,
    pub kind: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MatchConstraints {
    pub resource_rules: Vec<NamedRuleWithOperations>,
}

/// Which resources a policy is about: every combination of what it names, `*` for all.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NamedRuleWithOperations {
    pub api_groups: Vec<String>,
    pub api_versions: Vec<String>,
    pub resources: Vec<String>,
}

/// Two expressions; an absent one is empty.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Validation {
    pub expression: String,
    pub message_expression: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Variable {
    pub name: String,
    pub expression: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ValidatingAdmissionPolicyStatus {
    pub observed_generation: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub type_checking: Option<TypeChecking>,
    /// Others': kept as they are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TypeChecking {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub expression_warnings: Vec<ExpressionWarning>,
}

/// What is wrong with one expression, in lines for people.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExpressionWarning {
    /// `spec.validations[0].expression`
    pub field_ref: String,
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
