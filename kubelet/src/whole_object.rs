//! Objects of the API server with all their fields, as caches hold them.

use std::sync::Arc;

use k8s_openapi::Metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube_controller_manager::objects::{Istr, Meta, Object, RawObject, Timestamp};
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// An object of a generated type, beside the metadata that caches need.
pub struct WholeObject<T> {
    meta: Meta,
    object: Arc<T>,
}

impl<T> WholeObject<T> {
    /// Returns the object. Its managed fields are left out.
    pub fn object(&self) -> &Arc<T> {
        &self.object
    }
}

impl<'de, T> Deserialize<'de> for WholeObject<T>
where
    T: DeserializeOwned + Metadata<Ty = ObjectMeta>,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WholeObject<T>, D::Error> {
        let json = readable(RawObject::deserialize(deserializer)?).map_err(D::Error::custom)?;
        let object: T = serde_json::from_value(json).map_err(D::Error::custom)?;
        let meta = meta(object.metadata()).map_err(D::Error::custom)?;
        Ok(WholeObject { meta, object: Arc::new(object) })
    }
}

impl<T> Object for WholeObject<T>
where
    T: DeserializeOwned + Metadata<Ty = ObjectMeta> + Send + Sync + 'static,
{
    fn meta(&self) -> &Meta {
        &self.meta
    }
}

/// Reads the metadata that caches need.
fn meta(of: &ObjectMeta) -> Result<Meta, String> {
    let version = of.resource_version.as_deref().unwrap_or_default();
    Ok(Meta {
        name: of.name.as_deref().unwrap_or_default().into(),
        namespace: Istr::new(of.namespace.as_deref().unwrap_or_default()),
        uid: of.uid.as_deref().unwrap_or_default().into(),
        resource_version: version
            .parse()
            .map_err(|_| format!("metadata.resourceVersion: {version:?}"))?,
        ..Meta::default()
    })
}

/// Returns an object of the API server that a generated type can hold: without its managed fields,
/// and with times of its range. Nothing here reads managed fields, they are the largest part of
/// many objects, and their writer may nest them deeper than can be decoded.
fn readable(mut json: RawObject) -> Result<Value, serde_json::Error> {
    json.edit("metadata", |metadata| {
        metadata.remove("managedFields");
        Ok(())
    })?;
    let mut value = serde_json::from_str(&json.to_string())?;
    limit_times(&mut value);
    Ok(value)
}

/// The fields of pods and nodes that are times.
const TIMES: [&str; 9] = [
    "creationTimestamp",
    "deletionTimestamp",
    "startTime",
    "lastProbeTime",
    "lastTransitionTime",
    "lastHeartbeatTime",
    "timeAdded",
    "startedAt",
    "finishedAt",
];

/// Replaces times that the generated types cannot hold by the closest that they can.
fn limit_times(value: &mut Value) {
    match value {
        Value::Object(members) => members.iter_mut().for_each(|(name, member)| {
            let time = TIMES.contains(&&**name).then(|| Timestamp::deserialize(&*member));
            match time {
                Some(Ok(time)) if Time::deserialize(&*member).is_err() => {
                    *member = time.to_jiff().to_string().into();
                }
                _ => limit_times(member),
            }
        }),
        Value::Array(items) => items.iter_mut().for_each(limit_times),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::*;

    #[test]
    fn objects_with_odd_times_and_deep_managed_fields_are_read() {
        let deep = format!("{}{}", r#"{"f:x":"#.repeat(200), "{}".to_owned() + &"}".repeat(200));
        let text = format!(
            r#"{{
                "metadata": {{ "name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "7",
                    "managedFields": [{{ "time": "9999-12-31T23:59:59Z", "fieldsV1": {deep} }}] }},
                "status": {{
                    "startTime": "2026-01-01T00:00:00Z",
                    "conditions": [
                        {{ "type": "a", "lastTransitionTime": "9999-12-31T23:59:59Z" }},
                        {{ "type": "b", "lastTransitionTime": "-10000-01-01T00:00:00Z" }},
                        {{ "type": "c", "lastTransitionTime": null }}
                    ]
                }}
            }}"#
        );
        let whole: WholeObject<Pod> = serde_json::from_str(&text).expect("a pod");
        assert_eq!((&*whole.meta.name, whole.meta.resource_version), ("p", 7));
        let status = whole.object().status.as_ref().expect("a status");
        let started = status.start_time.as_ref().map(|time| time.0.to_string());
        assert_eq!(started.as_deref(), Some("2026-01-01T00:00:00Z"));
        let conditions = status.conditions.as_ref().expect("conditions");
        let times = conditions.iter().map(|condition| &condition.last_transition_time);
        let years: Vec<Option<i16>> = times
            .map(|time| {
                let time = time.as_ref()?.0;
                Some(time.to_zoned(k8s_openapi::jiff::tz::TimeZone::UTC).year())
            })
            .collect();
        assert_eq!(years, [Some(9999), Some(-9999), None]);
    }
}
