//! Finalizers that keep an object for as long as it is in use. Upstream: `protectionutil`.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::client::Client;
use crate::controllers::Error;
use crate::objects::{Meta, Object, Resource};

/// A finalizer that every object of a kind carries until nothing uses it.
#[derive(Clone, Copy)]
pub struct Protection(pub &'static str);

impl Protection {
    /// Being deleted, and only kept by this and other finalizers.
    pub fn is_deletion_candidate(self, meta: &Meta) -> bool {
        meta.is_being_deleted() && meta.has_finalizer(self.0)
    }

    /// The admission plugin adds the finalizer; objects that are older than the plugin lack it.
    pub fn is_missing(self, meta: &Meta) -> bool {
        !meta.is_being_deleted() && !meta.has_finalizer(self.0)
    }

    /// Whether a sync has anything to do.
    pub fn concerns(self, meta: &Meta) -> bool {
        self.is_deletion_candidate(meta) || self.is_missing(meta)
    }

    pub async fn add<T>(self, client: &Client, object: &T) -> Result<(), Error>
    where
        T: Object + Resource + DeserializeOwned,
    {
        self.edit(client, object, |finalizers| finalizers.push(json!(self.0))).await
    }

    pub async fn remove<T>(self, client: &Client, object: &T) -> Result<(), Error>
    where
        T: Object + Resource + DeserializeOwned,
    {
        self.edit(client, object, |finalizers| finalizers.retain(|name| name != self.0)).await
    }

    /// Replaces the live object, if it still is the cached one and in the state that was decided on.
    async fn edit<T>(
        self,
        client: &Client,
        object: &T,
        edit: impl FnOnce(&mut Vec<Value>) + Send,
    ) -> Result<(), Error>
    where
        T: Object + Resource + DeserializeOwned,
    {
        let meta = object.meta();
        match client.modify::<T>(&meta.key(), |live| edited(live, meta, edit)).await {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        }
    }
}

/// Whether `live` is the object of `meta`, deleted or not as there, and `edit` changed its finalizers.
fn edited(live: &mut Value, meta: &Meta, edit: impl FnOnce(&mut Vec<Value>)) -> bool {
    let metadata = &mut live["metadata"];
    let deleted = !metadata["deletionTimestamp"].is_null();
    if metadata["uid"] != meta.uid.to_string() || deleted != meta.is_being_deleted() {
        return false;
    }
    let mut finalizers = metadata["finalizers"].as_array().cloned().unwrap_or_default();
    let before = finalizers.clone();
    edit(&mut finalizers);
    let changed = finalizers != before;
    metadata["finalizers"] = Value::Array(finalizers);
    changed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{Timestamp, Uid};

    #[test]
    fn only_the_object_that_was_decided_on_is_edited() {
        let keep = Protection("keep");
        let mut meta = Meta { uid: Uid::new("a"), ..Meta::default() };
        let live = |uid: &str, deleted: bool, finalizers: &[&str]| {
            let mut live = json!({ "metadata": { "uid": uid, "finalizers": finalizers } });
            if deleted {
                live["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            live
        };
        let add = |finalizers: &mut Vec<Value>| finalizers.push(json!("keep"));
        let remove = |finalizers: &mut Vec<Value>| finalizers.retain(|name| name != "keep");
        assert!(keep.is_missing(&meta) && !keep.is_deletion_candidate(&meta));

        let mut added = live("a", false, &["other"]);
        assert!(edited(&mut added, &meta, add));
        assert_eq!(added, live("a", false, &["other", "keep"]));
        assert!(!edited(&mut live("b", false, &[]), &meta, add), "another object of the name");
        assert!(!edited(&mut live("a", true, &[]), &meta, add), "deleted in the meantime");

        meta.deletion_timestamp = Some(Timestamp::from_secs(1));
        let mut removed = live("a", true, &["keep", "other"]);
        assert!(edited(&mut removed, &meta, remove));
        assert_eq!(removed, live("a", true, &["other"]));
        assert!(!edited(&mut live("a", true, &["other"]), &meta, remove), "gone already");
    }
}
