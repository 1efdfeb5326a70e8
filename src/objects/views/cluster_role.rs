//! The lean view of a ClusterRole.

use serde::{Deserialize, Deserializer, Serialize};

use crate::objects::{Istr, LabelSelector, Meta, null_as_default, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterRole {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "nullable")]
    pub rules: Box<[PolicyRule]>,
    /// The selectors of other roles, whose rules this role aggregates.
    pub aggregation_rule: Option<AggregationRule>,
}

/// Absent and empty lists are the same, as in `equality.Semantic`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyRule {
    #[serde(deserialize_with = "nullable")]
    pub verbs: Box<[Istr]>,
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_empty")]
    pub api_groups: Box<[Istr]>,
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_empty")]
    pub resources: Box<[Istr]>,
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_empty")]
    pub resource_names: Box<[Istr]>,
    #[serde(rename = "nonResourceURLs")]
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_empty")]
    pub non_resource_urls: Box<[Istr]>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AggregationRule {
    #[serde(deserialize_with = "nullable")]
    pub cluster_role_selectors: Box<[LabelSelector]>,
}

resource!(ClusterRole, "rbac.authorization.k8s.io", "v1", "clusterroles", cluster);

fn is_empty(list: &[Istr]) -> bool {
    list.is_empty()
}

/// Reads a list; null is an empty one.
fn nullable<'de, D, T>(from: D) -> Result<Box<[T]>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::<Box<[T]>>::deserialize(from)?.unwrap_or_default())
}
