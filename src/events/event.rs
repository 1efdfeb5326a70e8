//! The written form of an event. Upstream: `v1.Event`.

use std::sync::Arc;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::objects::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum EventType {
    Normal,
    Warning,
}

/// The object of an event. Upstream: `v1.ObjectReference`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectReference {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field_path: String,
}

/// One event, or a series of them.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Event {
    #[serde(flatten)]
    type_meta: TypeMeta,
    pub metadata: EventMeta,
    pub involved_object: ObjectReference,
    pub reason: String,
    pub message: String,
    pub source: Source,
    pub first_timestamp: Timestamp,
    pub last_timestamp: Timestamp,
    pub count: u32,
    #[serde(rename = "type")]
    pub event_type: EventType,
    event_time: Null,
    /// Empty in combined events, as upstream.
    pub reporting_component: Arc<str>,
    reporting_instance: &'static str,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct TypeMeta {
    api_version: &'static str,
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct EventMeta {
    pub name: String,
    pub namespace: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Source {
    pub component: Arc<str>,
}

#[derive(Clone, Debug, PartialEq)]
struct Null;

impl Serialize for Null {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_none()
    }
}

impl Event {
    /// `nanos` makes the name unique among the events about one object.
    pub fn new(
        component: Arc<str>,
        about: &ObjectReference,
        event_type: EventType,
        reason: &str,
        message: String,
        now: Timestamp,
        nanos: i64,
    ) -> Event {
        let namespace = match about.namespace.as_str() {
            "" => "default",
            namespace => namespace,
        };
        Event {
            type_meta: TypeMeta { api_version: "v1", kind: "Event" },
            metadata: EventMeta {
                name: event_name(&about.name, nanos),
                namespace: namespace.to_owned(),
            },
            involved_object: about.clone(),
            reason: reason.to_owned(),
            message,
            source: Source { component: component.clone() },
            first_timestamp: now,
            last_timestamp: now,
            count: 1,
            event_type,
            event_time: Null,
            reporting_component: component,
            reporting_instance: "",
        }
    }

    /// The event that combines this one with similar ones from `now` on.
    pub fn combined(&self, now: Timestamp, nanos: i64) -> Event {
        Event {
            metadata: EventMeta {
                name: format!("{}.{nanos:x}", self.involved_object.name),
                namespace: self.metadata.namespace.clone(),
            },
            message: format!("(combined from similar events): {}", self.message),
            first_timestamp: now,
            last_timestamp: now,
            count: 1,
            reporting_component: "".into(),
            ..self.clone()
        }
    }

    /// The change of the series on the server, as a strategic merge patch.
    pub fn series_patch(&self) -> Value {
        let mut patch = Map::new();
        patch.insert("count".into(), self.count.into());
        patch.insert("lastTimestamp".into(), self.last_timestamp.to_string().into());
        if !self.message.is_empty() {
            patch.insert("message".into(), self.message.as_str().into());
        }
        patch.into()
    }
}

/// `<object>.<hex>`, or a random name where that would not be valid.
/// Upstream: `util.GenerateEventName`.
fn event_name(object: &str, nanos: i64) -> String {
    let name = format!("{object}.{nanos:x}");
    if is_dns_subdomain(&name) {
        return name;
    }
    random_uuid()
}

/// A version 4 UUID. Unique, not secret.
pub(crate) fn random_uuid() -> String {
    let bits = fastrand::u128(..) & !(0xf << 76 | 0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let hex = format!("{bits:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

fn is_dns_subdomain(name: &str) -> bool {
    let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= 253
        && name.split('.').all(|label| {
            let bytes = label.as_bytes();
            bytes.first().is_some_and(|first| alphanumeric(*first))
                && bytes.last().is_some_and(|last| alphanumeric(*last))
                && bytes.iter().all(|&byte| alphanumeric(byte) || byte == b'-')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_has_the_fields_of_upstream() {
        let about = ObjectReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            namespace: "".into(),
            name: "n1".into(),
            uid: "u".into(),
            resource_version: "7".into(),
            field_path: "".into(),
        };
        let now = Timestamp::from_secs(0);
        let event =
            Event::new("c".into(), &about, EventType::Warning, "Why", "what".into(), now, 255);
        assert_eq!(
            serde_json::to_value(&event).unwrap(),
            serde_json::json!({
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": { "name": "n1.ff", "namespace": "default" },
                "involvedObject": {
                    "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u",
                    "resourceVersion": "7",
                },
                "reason": "Why",
                "message": "what",
                "source": { "component": "c" },
                "firstTimestamp": "1970-01-01T00:00:00Z",
                "lastTimestamp": "1970-01-01T00:00:00Z",
                "count": 1,
                "type": "Warning",
                "eventTime": null,
                "reportingComponent": "c",
                "reportingInstance": "",
            })
        );
    }

    #[test]
    fn invalid_name_is_replaced() {
        for (object, kept) in [
            ("web-1", true),
            ("a.b", true),
            ("system:node", false),
            ("Upper", false),
            ("-x", false),
            ("x-", false),
            ("a..b", false),
            ("", false),
        ] {
            let name = event_name(object, 0x1f);
            assert_eq!(name == format!("{object}.1f"), kept, "{object}: {name}");
            assert!(is_dns_subdomain(&name), "{name}");
        }
        assert_eq!(event_name(&"x".repeat(251), 0xff).len(), 36);
    }
}
