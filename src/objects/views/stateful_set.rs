//! The lean view of a StatefulSet.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::objects::{
    Istr, LabelSelector, Meta, RawObject, Template, WholeMeta, from_json, null_as_default, resource,
};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct StatefulSet {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub spec: StatefulSetSpec,
    #[serde(deserialize_with = "null_as_default")]
    pub status: StatefulSetStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatefulSetSpec {
    /// The API server defaults it to 1, so it is always there.
    pub replicas: Option<i32>,
    pub selector: Option<LabelSelector>,
    pub template: Template,
    #[serde(deserialize_with = "null_as_default")]
    pub volume_claim_templates: Box<[ClaimTemplate]>,
    pub service_name: Istr,
    /// `OrderedReady` or `Parallel`.
    pub pod_management_policy: Istr,
    #[serde(deserialize_with = "null_as_default")]
    pub update_strategy: StatefulSetUpdateStrategy,
    pub revision_history_limit: Option<i32>,
    #[serde(deserialize_with = "null_as_default")]
    pub min_ready_seconds: i32,
    pub persistent_volume_claim_retention_policy: Option<ClaimRetentionPolicy>,
    #[serde(deserialize_with = "null_as_default")]
    pub ordinals: StatefulSetOrdinals,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatefulSetUpdateStrategy {
    /// `RollingUpdate` or `OnDelete`.
    pub r#type: Istr,
    /// May be absent with `RollingUpdate`, too.
    pub rolling_update: Option<RollingUpdateStatefulSet>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RollingUpdateStatefulSet {
    #[serde(deserialize_with = "null_as_default")]
    pub partition: i32,
    pub max_unavailable: Option<IntOrString>,
}

/// `Retain` or `Delete`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimRetentionPolicy {
    pub when_deleted: Istr,
    pub when_scaled: Istr,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct StatefulSetOrdinals {
    #[serde(deserialize_with = "null_as_default")]
    pub start: i32,
}

/// A claim template, kept as its original JSON.
#[derive(Clone, Debug)]
pub struct ClaimTemplate {
    /// The name, which is also that of the pod's volume.
    pub name: Istr,
    json: Box<RawValue>,
}

/// Replaced whole, so without the conditions, as upstream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatefulSetStatus {
    #[serde(deserialize_with = "null_as_default")]
    pub observed_generation: i64,
    #[serde(deserialize_with = "null_as_default")]
    pub replicas: i32,
    #[serde(deserialize_with = "null_as_default")]
    pub ready_replicas: i32,
    #[serde(deserialize_with = "null_as_default")]
    pub current_replicas: i32,
    #[serde(deserialize_with = "null_as_default")]
    pub updated_replicas: i32,
    pub current_revision: Istr,
    pub update_revision: Istr,
    pub collision_count: Option<i32>,
    #[serde(deserialize_with = "null_as_default")]
    pub available_replicas: i32,
}

resource!(StatefulSet, "apps", "v1", "statefulsets", namespaced);
impl WholeMeta for StatefulSet {}

impl StatefulSet {
    /// `spec.replicas`, 1 when absent.
    pub fn replicas(&self) -> i32 {
        self.spec.replicas.unwrap_or(1)
    }
}

impl ClaimTemplate {
    /// The template as an object to edit.
    pub fn object(&self) -> Result<RawObject, serde_json::Error> {
        RawObject::parse(self.json.get())
    }
}

impl PartialEq for ClaimTemplate {
    fn eq(&self, other: &ClaimTemplate) -> bool {
        self.json.get() == other.json.get()
    }
}

impl<'de> Deserialize<'de> for ClaimTemplate {
    /// Keeps the JSON of a claim template, and reads its name.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<ClaimTemplate, D::Error> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Lens {
            #[serde(deserialize_with = "null_as_default")]
            metadata: LensMeta,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct LensMeta {
            name: Istr,
        }
        let json = Box::<RawValue>::deserialize(from)?;
        let lens: Option<Lens> = from_json(json.get()).map_err(serde::de::Error::custom)?;
        Ok(ClaimTemplate { name: lens.unwrap_or_default().metadata.name, json })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claim_templates_keep_every_byte() {
        let text =
            r#"{"spec":{"volumeClaimTemplates":[{"z":1.50,"metadata":{"name":"data"}},null]}}"#;
        let set: StatefulSet = serde_json::from_str(text).unwrap();
        let [data, null] = &*set.spec.volume_claim_templates else { panic!("two templates") };
        assert_eq!((&*data.name, &*null.name), ("data", ""));
        assert_eq!(data.object().unwrap().to_string(), r#"{"z":1.50,"metadata":{"name":"data"}}"#);
        assert_eq!(null.object().unwrap().to_string(), "{}");
        let absent: StatefulSet = serde_json::from_str("{}").unwrap();
        assert_eq!((absent.replicas(), absent.spec.ordinals.start), (1, 0));
    }
}
