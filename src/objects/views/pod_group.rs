//! The lean view of a PodGroup.

use serde::Deserialize;

use crate::objects::{Meta, null_as_default, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PodGroup {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
}

resource!(PodGroup, "scheduling.k8s.io", "v1alpha2", "podgroups", namespaced);
