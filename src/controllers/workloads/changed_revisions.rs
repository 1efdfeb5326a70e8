//! ControllerRevisions that come back from their creation with other data, as under a mutating
//! webhook. Each counts as what was sent: otherwise every sync would create another one and roll it
//! out. Upstream has no counterpart.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::controllers::workloads::creations::{CHANGED, compare, list_changes};
use crate::controllers::workloads::owner_records::OwnerRecord;
use crate::events::Recorder;
use crate::objects::{ControllerRevision, Meta, Object, ObjectKey, Resource, Uid, from_json};

/// The last revision of each owner that came back with other data. With this record a sync finds
/// the revision again and does not create another one. A new manager has no record: it creates one
/// more.
pub struct ChangedRevisions {
    recorder: Recorder,
    owners: Mutex<HashMap<ObjectKey, Record>>,
}

/// A revision that came back with other data than those that were sent.
struct Record {
    owner: Uid,
    revision: Uid,
    /// The data that was sent.
    sent: Box<str>,
}

impl ChangedRevisions {
    /// Makes an empty record. `recorder` gets the events about changed revisions.
    pub fn new(recorder: Recorder) -> ChangedRevisions {
        ChangedRevisions { recorder, owners: Mutex::default() }
    }

    /// Returns whether `known`, a revision of `owner`, has the data `sent`, or was sent with it.
    /// Upstream: `EqualRevision`, `Match`, for the data alone.
    pub fn is_equal(&self, owner: &Meta, sent: &str, known: &ControllerRevision) -> bool {
        if sent == known.data.as_str() {
            return true;
        }
        let owners = self.owners.lock();
        // Without such a webhook the record is empty, and no key is built.
        !owners.is_empty()
            && owners.get(&owner.key()).is_some_and(|record| {
                record.owner == owner.uid
                    && record.revision == known.meta.uid
                    && *record.sent == *sent
            })
    }

    /// Records the revision `created` if its data differ from those that were `sent`. An event
    /// about `owner` says what was changed.
    pub fn record_created<O: Object + Resource>(
        &self,
        owner: &O,
        sent: &str,
        created: &ControllerRevision,
    ) {
        if sent == created.data.as_str() {
            return;
        }
        let meta = owner.meta();
        let record = Record {
            owner: meta.uid.clone(),
            revision: created.meta.uid.clone(),
            sent: sent.into(),
        };
        self.owners.lock().insert(meta.key(), record);
        let message = format!(
            "ControllerRevision {:?} came back changed from its creation: {}; this {} uses it \
             nevertheless",
            created.meta.name,
            list_changes(&differences(sent, created.data.as_str())),
            O::RESOURCE.kind,
        );
        self.recorder.warning(owner, CHANGED, message);
    }
}

impl OwnerRecord for ChangedRevisions {
    /// Drops the record of an owner, unless it is of another one with its name.
    fn forget(&self, owner: &ObjectKey, uid: Option<&Uid>) {
        let mut owners = self.owners.lock();
        // The record may be of another owner, which has this one's name.
        if let (Some(record), Some(uid)) = (owners.get(owner), uid)
            && record.owner != *uid
        {
            return;
        }
        owners.remove(owner);
    }
}

/// Returns the places at which the data that was sent and the data that came back differ.
fn differences(sent: &str, created: &str) -> Vec<String> {
    let mut places = Vec::new();
    if let (Ok(sent), Ok(created)) = (from_json(sent), from_json(created)) {
        compare("data", &sent, &created, &mut places);
    }
    if places.is_empty() {
        places.push("data is written in another way".to_owned());
    }
    places
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::events::testing::Heard;
    use crate::objects::StatefulSet;

    fn set(uid: &str) -> StatefulSet {
        let meta = json!({ "namespace": "ns", "name": "web", "uid": uid });
        serde_json::from_value(json!({ "metadata": meta })).unwrap()
    }

    fn data(image: &str) -> String {
        json!({ "spec": { "template": { "spec": { "containers": [{ "image": image }] } } } })
            .to_string()
    }

    fn stored(uid: &str, data: &str) -> ControllerRevision {
        let meta = json!({ "namespace": "ns", "name": format!("web-{uid}"), "uid": uid });
        let text = format!(r#"{{"metadata":{meta},"revision":1,"data":{data}}}"#);
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_changed_revision_counts_as_what_was_sent() {
        let heard = Arc::new(Heard::default());
        let changed = ChangedRevisions::new(Recorder::to_sink(heard.clone()));
        let owner = set("1");
        let (one, other) = (data("x:1"), data("x:2"));
        let is_equal = |owner: &StatefulSet, sent: &str, known: &ControllerRevision| {
            changed.is_equal(&owner.meta, sent, known)
        };

        let same = stored("same", &one);
        changed.record_created(&owner, &one, &same);
        assert!(is_equal(&owner, &one, &same) && heard.take().is_empty());

        let rewritten = one.replace("x:1", "mirror/x:1");
        let (first, second) = (stored("first", &rewritten), stored("second", &rewritten));
        assert!(!is_equal(&owner, &one, &first));
        changed.record_created(&owner, &one, &first);
        assert_eq!(
            heard.take(),
            [
                "Warning CreatedObjectChanged ControllerRevision \"web-first\" came back changed from \
              its creation: data.spec.template.spec.containers[0].image is changed; this \
              StatefulSet uses it nevertheless"
            ]
        );
        for (owner, sent, known, expected) in [
            (&owner, &one, &first, true),
            (&owner, &one, &same, true),
            // Another template, another revision, another owner of that name.
            (&owner, &other, &first, false),
            (&owner, &one, &second, false),
            (&set("2"), &one, &first, false),
        ] {
            assert_eq!(is_equal(owner, sent, known), expected, "{}", known.meta.name);
        }

        changed.forget(&owner.meta.key(), Some(&Uid::new("2")));
        assert!(is_equal(&owner, &one, &first));
        changed.forget(&owner.meta.key(), Some(&owner.meta.uid));
        assert!(!is_equal(&owner, &one, &first));
    }

    #[test]
    fn data_in_another_order_is_a_change_too() {
        let one = r#"{"a":1,"b":[1,2]}"#;
        for (other, expected) in [
            (r#"{"b":[1,2],"a":1}"#, &["data is written in another way"][..]),
            (r#"{"a":1,"b":[1,3]}"#, &["data.b[1] is changed"]),
            (r#"{"b":[1,2],"c":0}"#, &["data.a is missing", "data.c is new"]),
            (r#"null"#, &["data is missing"]),
        ] {
            assert_eq!(differences(one, other), expected, "{other}");
        }
        let null: Value = Value::Null;
        assert!(differences("null", &null.to_string())[0].contains("another way"));
    }
}
