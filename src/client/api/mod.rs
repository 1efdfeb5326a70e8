//! The API's verbs, over a type and over any resource, and discovery.

mod discovery;
mod dynamic;
mod options;
mod scale;

use std::borrow::Cow;

use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};

pub use self::discovery::{ApiResource, Discovery};
pub use self::dynamic::{Dynamic, List};
pub use self::options::{Delete, ListOptions, Patch, Preconditions, Propagation};
pub use self::scale::Scales;
use super::error::undecoded;
use super::{Client, Result};
use crate::objects::{
    Istr, Meta, Object, ObjectKey, Resource, ResourceType, WholeMeta, Written, from_json,
};

impl Client {
    /// Returns the verbs over any resource; [`Dynamic`] has their errors, and those of the typed
    /// verbs below. A resource that was given to [`Client::choose_versions`] is asked for in the
    /// version chosen there, not in that of `resource`.
    pub fn resource(&self, resource: &ResourceType) -> Dynamic {
        Dynamic::new(self.clone(), self.served(resource))
    }

    /// Reads an object. The answer is the newest version.
    pub async fn get<T: Resource + DeserializeOwned>(&self, key: &ObjectKey) -> Result<T> {
        self.resource(&T::RESOURCE).get(key).await
    }

    /// Creates an object in `namespace`, which is empty for a kind of the whole cluster, and
    /// returns it as the server stored it.
    pub async fn create<T: Resource + DeserializeOwned>(
        &self,
        namespace: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<T> {
        self.resource(&T::RESOURCE).create(namespace, body).await
    }

    /// Replaces the whole object: `body` must hold everything that the API server sent. A conflict
    /// (409) when its resourceVersion is not the newest.
    pub async fn update<T: Resource + DeserializeOwned>(
        &self,
        key: &ObjectKey,
        body: &(impl Serialize + Sync),
    ) -> Result<T> {
        self.resource(&T::RESOURCE).update(key, body).await
    }

    /// Replaces the status of an object: PUT on `/status` with the metadata of the view and
    /// `status`. A conflict (409) when its resourceVersion is not the newest. Upstream:
    /// `UpdateStatus`.
    pub async fn update_status<T: WholeMeta>(
        &self,
        object: &T,
        status: &(impl Serialize + Sync),
    ) -> Result<T> {
        self.update_part(object, "status", status).await
    }

    /// Replaces a status as [`Client::update_status`] does, but the answer holds only the name and
    /// version of the object. For built-in kinds whose status changes often.
    pub async fn update_status_for_metadata<T: WholeMeta>(
        &self,
        object: &T,
        status: &(impl Serialize + Sync),
    ) -> Result<Written> {
        let key = Object::meta(object).key();
        let body = WithStatus::new(object, self.served(&T::RESOURCE), status);
        self.resource(&T::RESOURCE).subresource("status").update_for_metadata(&key, &body).await
    }

    /// Replaces the status of an object in another subresource that takes one, such as `approval`,
    /// as [`Client::update_status`] does in `status`.
    pub async fn update_part<T: WholeMeta>(
        &self,
        object: &T,
        subresource: &'static str,
        status: &(impl Serialize + Sync),
    ) -> Result<T> {
        let key = Object::meta(object).key();
        let body = WithStatus::new(object, self.served(&T::RESOURCE), status);
        self.resource(&T::RESOURCE).subresource(subresource).update(&key, &body).await
    }

    /// Reads the live object as JSON, lets `change` edit it, and replaces it. `change` returns
    /// whether there is anything to write; if not, the live object is returned as it is. A conflict
    /// is returned, not retried. Dropped half-way, it has written the object or not.
    pub async fn modify<T: Resource + DeserializeOwned>(
        &self,
        key: &ObjectKey,
        change: impl FnOnce(&mut Value) -> bool + Send,
    ) -> Result<T> {
        let mut live: Value = self.resource(&T::RESOURCE).get(key).await?;
        if change(&mut live) {
            return self.resource(&T::RESOURCE).update(key, &live).await;
        }
        let request = format!("GET {} {key}", T::RESOURCE);
        from_json(&live.to_string()).map_err(undecoded(&request))
    }

    /// Changes an object and returns it as it is then. Unless the patch names a resourceVersion, it
    /// applies to any version.
    pub async fn patch<T: Resource + DeserializeOwned>(
        &self,
        key: &ObjectKey,
        patch: &Patch,
    ) -> Result<T> {
        self.resource(&T::RESOURCE).patch(key, patch).await
    }

    /// Adds a finalizer to an object that was read from a cache. A conflict (409) if the object has
    /// a newer version: the finalizers that others have set meanwhile stay. Upstream:
    /// controller-runtime's `controllerutil.AddFinalizer`.
    pub async fn add_finalizer<T: Object + Resource>(
        &self,
        object: &T,
        finalizer: &str,
    ) -> Result<()> {
        let finalizers = object.meta().finalizers().iter().map(Istr::as_str);
        let finalizers = finalizers.filter(|name| *name != finalizer).chain([finalizer]);
        self.set_finalizers(object, finalizers.collect()).await
    }

    /// Removes a finalizer from an object that was read from a cache; without its last one the
    /// server removes an object that is being deleted. An object that is gone is a success, a newer
    /// version a conflict (409). Upstream: controller-runtime's `controllerutil.RemoveFinalizer`.
    pub async fn remove_finalizer<T: Object + Resource>(
        &self,
        object: &T,
        finalizer: &str,
    ) -> Result<()> {
        let finalizers = object.meta().finalizers().iter().map(Istr::as_str);
        let finalizers = finalizers.filter(|name| *name != finalizer);
        match self.set_finalizers(object, finalizers.collect()).await {
            Err(error) if error.is_not_found() => Ok(()),
            removed => removed,
        }
    }

    /// Replaces the finalizers of an object, if it still has the version of `object`.
    async fn set_finalizers<T: Object + Resource>(
        &self,
        object: &T,
        finalizers: Vec<&str>,
    ) -> Result<()> {
        let meta = object.meta();
        let version = meta.resource_version.to_string();
        let metadata = json!({ "finalizers": finalizers, "resourceVersion": version });
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        let resource = self.resource(&T::RESOURCE);
        resource.patch::<IgnoredAny>(&meta.key(), &patch).await.map(drop)
    }

    /// Deletes an object: see [`Dynamic::delete`].
    pub async fn delete<T: Resource>(&self, key: &ObjectKey, delete: Delete) -> Result<()> {
        self.resource(&T::RESOURCE).delete(key, delete).await
    }

    /// Reads all objects of a namespace, or of the cluster with `None`, into memory. For small
    /// lists; the caches stream theirs.
    pub async fn list<T: Resource + DeserializeOwned>(
        &self,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<Vec<T>> {
        Ok(self.resource(&T::RESOURCE).list(namespace, options).await?.items)
    }
}

/// The body of a PUT on `/status`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WithStatus<'a, S> {
    api_version: String,
    kind: Cow<'static, str>,
    metadata: &'a Meta,
    status: &'a S,
}

impl<'a, S> WithStatus<'a, S> {
    /// Makes the body of a PUT: the metadata of `object` with `status`, under the version and kind
    /// of `resource`.
    fn new<T: WholeMeta>(
        object: &'a T,
        resource: ResourceType,
        status: &'a S,
    ) -> WithStatus<'a, S> {
        let (api_version, kind) = (resource.api_version(), resource.kind);
        WithStatus { api_version, kind, metadata: Object::meta(object), status }
    }
}
