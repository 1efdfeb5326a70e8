//! The view of a ControllerRevision.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::objects::{Meta, WholeMeta, from_json, null_as_default, resource};

/// A ControllerRevision with all its fields, so that it can be written back.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ControllerRevision {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    pub data: RevisionData,
    #[serde(deserialize_with = "null_as_default")]
    pub revision: i64,
}

/// JSON text, compared and written back byte for byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevisionData(Box<str>);

resource!(ControllerRevision, "apps", "v1", "controllerrevisions", namespaced);
impl WholeMeta for ControllerRevision {}

impl RevisionData {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Absent data is null.
impl Default for RevisionData {
    fn default() -> RevisionData {
        RevisionData("null".into())
    }
}

impl<'de> Deserialize<'de> for RevisionData {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<RevisionData, D::Error> {
        let raw = Box::<RawValue>::deserialize(from)?;
        Ok(RevisionData(raw.into()))
    }
}

impl Serialize for RevisionData {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = from_json(&self.0).map_err(serde::ser::Error::custom)?;
        raw.serialize(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_keeps_every_byte() {
        let text = r#"{"metadata":{"name":"r"},"data":{"b":"\u003c","a":1.50,"n":12345678901234567890123},"revision":3}"#;
        let revision: ControllerRevision = serde_json::from_str(text).unwrap();
        assert_eq!(
            revision.data.as_str(),
            r#"{"b":"\u003c","a":1.50,"n":12345678901234567890123}"#
        );
        assert_eq!(serde_json::to_string(&revision).unwrap(), text);
        let absent: ControllerRevision = serde_json::from_str("{}").unwrap();
        assert_eq!(absent.data, RevisionData::default());
    }
}
