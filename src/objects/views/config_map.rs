//! A ConfigMap, whole.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::objects::{Labels, Meta, null_as_default, resource};

/// A ConfigMap with all its fields, so that it can be written back.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigMap {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub immutable: Option<bool>,
    /// ConfigMaps with equal contents share one copy.
    #[serde(deserialize_with = "null_as_default")]
    pub data: Labels,
    #[serde(skip_serializing_if = "Labels::is_empty", deserialize_with = "null_as_default")]
    pub binary_data: Labels,
}

resource!(ConfigMap, "", "v1", "configmaps", namespaced);

impl ConfigMap {
    /// Returns the object for the API server.
    ///
    /// # Errors
    /// None of these types fail.
    pub fn to_json(&self) -> Result<Value, serde_json::Error> {
        let mut json = serde_json::to_value(self)?;
        json["apiVersion"] = "v1".into();
        json["kind"] = "ConfigMap".into();
        Ok(json)
    }
}
