//! The written form of an event. Upstream: `v1.Event`.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::objects::{ArcStr, Istr, Timestamp, Uid, is_dns1123_subdomain};

/// The type of an event. Upstream: `v1.EventTypeNormal`, `v1.EventTypeWarning`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum EventType {
    /// Information: nothing needs attention.
    Normal,
    /// Something may be wrong.
    Warning,
}

/// The object of an event. Empty fields are left out when it is written. Upstream:
/// `v1.ObjectReference`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectReference {
    /// Group and version, `apps/v1`; of the core group `v1`.
    #[serde(skip_serializing_if = "is_empty")]
    pub api_version: Istr,
    /// The kind, `Pod`.
    #[serde(skip_serializing_if = "is_empty")]
    pub kind: Istr,
    /// Empty for an object of the whole cluster.
    #[serde(skip_serializing_if = "is_empty")]
    pub namespace: Istr,
    /// The object's name.
    #[serde(skip_serializing_if = "is_empty")]
    pub name: ArcStr,
    /// Events about objects of one name and different uids are not combined.
    #[serde(skip_serializing_if = "Uid::is_empty")]
    pub uid: Uid,
    /// The version that the recording controller knew; 0 when unknown.
    #[serde(skip_serializing_if = "is_zero", serialize_with = "as_text")]
    pub resource_version: u64,
    /// The part of the object, such as `spec.containers{app}`; empty: the object itself.
    #[serde(skip_serializing_if = "is_empty")]
    pub field_path: Istr,
}

fn is_empty(text: &str) -> bool {
    text.is_empty()
}

fn is_zero(version: &u64) -> bool {
    *version == 0
}

fn as_text<S: Serializer>(version: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(version)
}

/// One event, or a series of them.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Event {
    #[serde(flatten)]
    type_meta: TypeMeta,
    pub metadata: EventMeta,
    pub involved_object: ObjectReference,
    pub reason: Istr,
    pub message: String,
    pub source: Source,
    pub first_timestamp: Timestamp,
    pub last_timestamp: Timestamp,
    pub count: u32,
    #[serde(rename = "type")]
    pub event_type: EventType,
    event_time: Null,
    /// Empty in combined events, as upstream.
    pub reporting_component: ArcStr,
    reporting_instance: ArcStr,
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
    pub namespace: Istr,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Source {
    pub component: ArcStr,
    /// The node of the component; empty: it has none.
    #[serde(skip_serializing_if = "is_empty")]
    pub host: ArcStr,
}

/// The field `eventTime`, which is null in events of this API.
#[derive(Clone, Debug, PartialEq)]
struct Null;

impl Serialize for Null {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_none()
    }
}

impl Event {
    /// Makes an event about an object, which counts as one occurrence.
    pub fn new(
        component: ArcStr,
        about: &ObjectReference,
        event_type: EventType,
        reason: &str,
        message: String,
        now: Timestamp,
        nanos: i64,
    ) -> Event {
        let namespace = match about.namespace.as_str() {
            // An event about an object of the whole cluster needs a namespace, too.
            "" => Istr::new("default"),
            _ => about.namespace.clone(),
        };
        Event {
            type_meta: TypeMeta { api_version: "v1", kind: "Event" },
            metadata: EventMeta {
                name: event_name(&about.name, nanos),
                namespace,
                annotations: BTreeMap::new(),
            },
            involved_object: about.clone(),
            reason: Istr::new(reason),
            message,
            source: Source { component: component.clone(), host: ArcStr::new() },
            first_timestamp: now,
            last_timestamp: now,
            count: 1,
            event_type,
            event_time: Null,
            reporting_component: component,
            reporting_instance: ArcStr::new(),
        }
    }

    /// Names the node on which the component runs. Upstream: `EventSource.Host`.
    pub fn on_host(mut self, host: ArcStr) -> Event {
        self.reporting_instance.clone_from(&host);
        self.source.host = host;
        self
    }

    /// Adds annotations for programs.
    pub fn annotated(mut self, annotations: BTreeMap<String, String>) -> Event {
        self.metadata.annotations = annotations;
        self
    }

    /// Returns the event that combines this one with similar ones from `now` on. It has no
    /// annotations, as upstream.
    pub fn combined(mut self, now: Timestamp, nanos: i64) -> Event {
        self.metadata.name = format!("{}.{nanos:x}", self.involved_object.name);
        self.metadata.annotations.clear();
        self.message.insert_str(0, "(combined from similar events): ");
        (self.first_timestamp, self.last_timestamp, self.count) = (now, now, 1);
        (self.reporting_component, self.reporting_instance) = (ArcStr::new(), ArcStr::new());
        self
    }

    /// Takes over the count, time and message of `later`, an event of the same series: what
    /// [`Self::series_patch`] writes.
    pub fn repeat(&mut self, later: Event) {
        (self.count, self.last_timestamp) = (later.count, later.last_timestamp);
        if !later.message.is_empty() {
            self.message = later.message;
        }
    }

    /// Returns the change of the series on the server, as a strategic merge patch.
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

/// Returns `<object>.<hex>`, or a random name where that would not be valid. Upstream:
/// `util.GenerateEventName`.
fn event_name(object: &str, nanos: i64) -> String {
    let name = format!("{object}.{nanos:x}");
    if is_dns1123_subdomain(&name) {
        return name;
    }
    random_uuid()
}

/// Returns a version 4 UUID, which is unique but not secret.
pub(crate) fn random_uuid() -> String {
    // Version 4 in bits 76 to 79, variant 2 in bits 62 and 63.
    let bits = fastrand::u128(..) & !(0xf << 76 | 0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let hex = format!("{bits:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
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
            resource_version: 7,
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
        let event = event.on_host("n2".into());
        let of_node = serde_json::to_value(&event).unwrap();
        assert_eq!(of_node["source"], serde_json::json!({ "component": "c", "host": "n2" }));
        assert_eq!(of_node["reportingInstance"], "n2");
        let annotated = event.annotated(BTreeMap::from([("a".to_owned(), "b".to_owned())]));
        let written = serde_json::to_value(&annotated).unwrap();
        assert_eq!(written["metadata"]["annotations"], serde_json::json!({ "a": "b" }));
        assert!(annotated.combined(now, 256).metadata.annotations.is_empty());
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
            assert!(is_dns1123_subdomain(&name), "{name}");
        }
        assert_eq!(event_name(&"x".repeat(251), 0xff).len(), 36);
    }
}
