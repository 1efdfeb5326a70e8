//! Finalizers that keep an object while it is in use. Upstream: `protectionutil`.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::client::Client;
use crate::controllers::Error;
use crate::objects::{Meta, Object, Resource};

/// A finalizer that every object of a kind has until nothing uses the object.
#[derive(Clone, Copy)]
pub struct Protection(pub &'static str);

impl Protection {
    /// Returns whether the object is being deleted and has this finalizer, so that it may have to
    /// be removed.
    pub fn is_deletion_candidate(self, meta: &Meta) -> bool {
        meta.is_being_deleted() && meta.has_finalizer(self.0)
    }

    /// Returns whether the finalizer has to be added: the admission plugin does so, but objects
    /// that are older than the plugin lack it.
    pub fn is_missing(self, meta: &Meta) -> bool {
        !meta.is_being_deleted() && !meta.has_finalizer(self.0)
    }

    /// Returns whether a sync may have to add or remove the finalizer.
    pub fn concerns(self, meta: &Meta) -> bool {
        self.is_deletion_candidate(meta) || self.is_missing(meta)
    }

    /// Adds the finalizer.
    pub async fn add<T>(self, client: &Client, object: &T) -> Result<(), Error>
    where
        T: Object + Resource + DeserializeOwned,
    {
        self.edit(client, object, |finalizers| finalizers.push(json!(self.0))).await
    }

    /// Removes the finalizer.
    pub async fn remove<T>(self, client: &Client, object: &T) -> Result<(), Error>
    where
        T: Object + Resource + DeserializeOwned,
    {
        self.edit(client, object, |finalizers| finalizers.retain(|name| name != self.0)).await
    }

    /// Edits the finalizers of the live object if it still has the version that the decision was
    /// made for: the cache may lack the binding of a volume, or this controller's own last write.
    /// Fails as stale if it has changed; succeeds if it is gone.
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
        let mut is_stale = false;
        let change = |live: &mut Value| {
            is_stale = !is_unchanged(live, meta);
            !is_stale && edit_finalizers(live, edit)
        };
        match client.modify::<T>(&meta.key(), change).await {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ if is_stale => Err(Error::Stale(format!("{} has changed", meta.key()))),
            _ => Ok(()),
        }
    }
}

/// Returns whether `live` is the object of `meta`, unchanged.
fn is_unchanged(live: &Value, meta: &Meta) -> bool {
    let metadata = &live["metadata"];
    let version = metadata["resourceVersion"].as_str().and_then(|version| version.parse().ok());
    metadata["uid"] == meta.uid.to_string() && version == Some(meta.resource_version)
}

/// Applies `edit` to the finalizers, and returns whether that changed them.
fn edit_finalizers(live: &mut Value, edit: impl FnOnce(&mut Vec<Value>)) -> bool {
    let metadata = &mut live["metadata"];
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
    fn only_the_version_of_the_decision_is_edited() {
        let keep = Protection("keep");
        let mut meta = Meta { uid: Uid::new("a"), resource_version: 7, ..Meta::default() };
        assert!(keep.is_missing(&meta) && !keep.is_deletion_candidate(&meta));
        meta.deletion_timestamp = Some(Timestamp::from_secs(1));
        assert!(!keep.concerns(&meta), "without the finalizer");

        let live = |uid: &str, version: &str, finalizers: &[&str]| {
            json!({ "metadata": {
                "uid": uid, "resourceVersion": version, "finalizers": finalizers,
            } })
        };
        assert!(is_unchanged(&live("a", "7", &[]), &meta));
        assert!(!is_unchanged(&live("a", "8", &["keep"]), &meta), "changed in the meantime");
        assert!(!is_unchanged(&live("b", "7", &[]), &meta), "another object of the name");

        let mut object = live("a", "7", &["other"]);
        assert!(edit_finalizers(&mut object, |finalizers| finalizers.push(json!("keep"))));
        assert_eq!(object, live("a", "7", &["other", "keep"]));
        let remove = |finalizers: &mut Vec<Value>| finalizers.retain(|name| name != "keep");
        assert!(edit_finalizers(&mut object, remove));
        assert_eq!(object, live("a", "7", &["other"]));
        assert!(!edit_finalizers(&mut object, remove), "nothing to write");
    }
}
