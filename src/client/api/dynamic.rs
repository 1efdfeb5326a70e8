//! The verbs over any resource.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Delete, ListOptions, Patch};
use crate::client::call::Call;
use crate::client::stream::{ListStream, WatchStream};
use crate::client::{ApiPath, Client, Error, Result};
use crate::objects::{Form, ListPart, ObjectKey, PartialObjectMetadata, ResourceType, Written};

/// The verbs over one resource, for any type that decodes from its JSON. Cheap to clone, and sends
/// nothing by itself. Upstream: `dynamic.ResourceInterface`.
///
/// Verbs share these errors: [`Error::Path`] for a name that is empty or would address another
/// path, or a missing namespace; [`Error::Request`] for a body that does not serialize; those of
/// [`Client::open`]; and [`Error::Decode`] for an answer of another type. No verb retries a
/// conflict. Futures may be dropped at any time; a write may then have been carried out.
#[derive(Clone)]
pub struct Dynamic {
    client: Client,
    resource: ResourceType,
    subresource: Option<&'static str>,
    metadata_only: bool,
    dry_run: bool,
    form: Form,
}

/// The objects of a list, in the server's order.
pub struct List<T> {
    /// The objects of all pages.
    pub items: Vec<T>,
    /// The version at which the list was read: a watch continues from it.
    pub resource_version: String,
}

const JSON: &str = "application/json";
/// Media types of requests for metadata only. A server that does not know them sends whole objects,
/// which decode as well.
const ONE_METADATA: &str =
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
const ALL_METADATA: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf,application/json";
const ONE_METADATA_PROTOBUF: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,\
     application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
const ALL_METADATA_PROTOBUF: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,\
     application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
/// Items a page, as upstream's pager.
const PAGE: u32 = 500;

impl Dynamic {
    /// Makes the verbs of a resource, in JSON and with whole objects.
    pub(super) fn new(client: Client, resource: ResourceType) -> Dynamic {
        Dynamic {
            client,
            resource,
            subresource: None,
            metadata_only: false,
            dry_run: false,
            form: Form::Json,
        }
    }

    /// Returns the same verbs for a subresource, such as `status`, `scale`, `eviction`, `token` or
    /// `finalize`. Lists and creations still address the resource itself.
    pub fn subresource(mut self, name: &'static str) -> Dynamic {
        self.subresource = Some(name);
        self
    }

    /// Returns the same verbs for metadata only: answers are `PartialObjectMetadata`. A server that
    /// does not know that form answers with whole objects. Upstream: `metadata.Interface`.
    pub fn metadata_only(mut self) -> Dynamic {
        self.metadata_only = true;
        self
    }

    /// Returns the same verbs, with which the server stores no object that is created: the answer
    /// shows how it would be stored, with the changes of admission. Upstream: `metav1.DryRunAll`.
    pub fn dry_run(mut self) -> Dynamic {
        self.dry_run = true;
        self
    }

    /// Returns the same verbs for a reader that understands `form` besides JSON. It concerns lists
    /// page by page, watches and the deletion of collections;
    /// [`Config::form`](crate::client::Config::form) may restrict it to JSON.
    pub fn accepting(mut self, form: Form) -> Dynamic {
        self.form = if self.client.speaks_protobuf() { form } else { Form::Json };
        self
    }

    /// Returns the path of the collection, in a namespace unless that is empty.
    fn collection(&self, namespace: &str) -> Result<ApiPath> {
        let ResourceType { group, version, plural, namespaced, .. } = &self.resource;
        let mut path = ApiPath::new(group, version);
        if *namespaced && !namespace.is_empty() {
            path = path.namespace(namespace)?;
        }
        path.resource(plural)
    }

    /// Builds the request that creates an object. `Err`: the resource is namespaced and `namespace`
    /// is empty, or the path or the body is malformed.
    fn create_call(&self, namespace: &str, body: &impl Serialize) -> Result<Call> {
        if self.resource.namespaced && namespace.is_empty() {
            return Err(Error::Path("an empty namespace may not be set during creation".into()));
        }
        let mut call = self.collection(namespace)?.call("POST").body(JSON, body)?;
        if self.dry_run {
            call.query("dryRun", "All");
        }
        Ok(call)
    }

    /// Builds a request for one object, or for its subresource. Upstream: `requestPreflightCheck`.
    fn call(&self, method: &'static str, key: &ObjectKey) -> Result<Call> {
        let mut path = self.collection(&key.namespace)?.name(&key.name)?;
        if let Some(subresource) = self.subresource {
            path = path.subresource(subresource)?;
        }
        // The path without the namespace would be that of no object.
        if self.resource.namespaced && key.namespace.is_empty() {
            let what = "an empty namespace may not be set when a resource name is provided";
            return Err(Error::Path(what.to_owned()));
        }
        let mut call = path.call(method);
        if self.metadata_only {
            call.accept = ONE_METADATA;
        }
        Ok(call)
    }

    /// Reads an object. The answer is the newest version.
    pub async fn get<O: DeserializeOwned>(&self, key: &ObjectKey) -> Result<O> {
        self.client.fetch(&self.call("GET", key)?).await
    }

    /// Returns the media types of an answer with many objects, for readers of JSON alone.
    fn accept_many_in_json(&self) -> &'static str {
        if self.metadata_only { ALL_METADATA } else { JSON }
    }

    /// Returns the media types of an answer with many objects, for readers of `self.form` as well.
    fn accept_many(&self) -> &'static str {
        match (self.form, self.metadata_only) {
            (Form::Json, _) => self.accept_many_in_json(),
            (Form::Protobuf, false) => PROTOBUF,
            (Form::Protobuf, true) => ALL_METADATA_PROTOBUF,
        }
    }

    /// Builds the request of a list, or of the deletion of a collection.
    fn list_call(
        &self,
        method: &'static str,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<Call> {
        let mut call = self.collection(namespace.unwrap_or_default())?.call(method);
        call.accept = self.accept_many_in_json();
        call.query_some("labelSelector", &options.label_selector);
        call.query_some("fieldSelector", &options.field_selector);
        call.query_some("resourceVersion", &options.resource_version);
        Ok(call)
    }

    /// Reads all objects of a namespace, or of the cluster with `None`, page by page, and keeps
    /// them in memory. When the version of the pages expires meanwhile (410), it reads the list
    /// again as a whole, so that all items are of one version. Upstream: `pager.List`.
    pub async fn list<O: DeserializeOwned>(
        &self,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<List<O>> {
        let mut list = List { items: Vec::new(), resource_version: String::new() };
        let mut token: Option<String> = None;
        loop {
            let mut call = self.list_call("GET", namespace, options)?;
            call.query("limit", &options.limit.unwrap_or(PAGE).to_string());
            call.query_some("continue", &token);
            let page = match self.list_stream(&call).await {
                // The version of the pages has expired: ask for all items at once.
                Err(error) if error.is_expired() && token.is_some() => {
                    list.items.clear();
                    self.list_stream(&self.list_call("GET", namespace, options)?).await
                }
                page => page,
            };
            let mut page = page?;
            loop {
                match page.next().await? {
                    ListPart::Item(item) => list.items.push(page.decode(&item.bytes)?),
                    ListPart::End { resource_version, continue_token } => {
                        list.resource_version = resource_version;
                        token = continue_token;
                        break;
                    }
                }
            }
            if token.is_none() {
                return Ok(list);
            }
        }
    }

    /// Reads one page, as it arrives. `limit` of the options and `continue_token` are those of
    /// `metav1.ListOptions`; without a limit the page is the whole list.
    pub async fn list_page(
        &self,
        namespace: Option<&str>,
        options: &ListOptions,
        continue_token: Option<String>,
    ) -> Result<ListStream> {
        let mut call = self.list_call("GET", namespace, options)?;
        call.accept = self.accept_many();
        call.query_some("limit", &options.limit.map(|limit| limit.to_string()));
        call.query_some("continue", &continue_token);
        self.list_stream(&call).await
    }

    /// Sends the request of a list, and returns its items as they arrive.
    async fn list_stream(&self, call: &Call) -> Result<ListStream> {
        Ok(ListStream::new(call.to_string(), self.client.open(call).await?))
    }

    /// Opens a watch: events as they arrive, bookmarks included, until the server ends it after
    /// `timeout`, in whole seconds and at least one. With `send_initial_events` it begins with an
    /// event for each object; a server that does not know that answers with 400 or 422.
    pub async fn watch(
        &self,
        namespace: Option<&str>,
        options: &ListOptions,
        send_initial_events: bool,
        timeout: std::time::Duration,
    ) -> Result<WatchStream> {
        let mut call = self.list_call("GET", namespace, options)?;
        call.is_watch = true;
        call.accept = match (self.form, self.metadata_only) {
            (Form::Json, false) => JSON,
            (Form::Json, true) => ONE_METADATA,
            (Form::Protobuf, false) => PROTOBUF,
            (Form::Protobuf, true) => ONE_METADATA_PROTOBUF,
        };
        call.query("watch", "true");
        call.query("allowWatchBookmarks", "true");
        call.query("timeoutSeconds", &timeout.as_secs().max(1).to_string());
        if send_initial_events {
            call.query("sendInitialEvents", "true");
            call.query("resourceVersionMatch", "NotOlderThan");
        }
        Ok(WatchStream::new(call.to_string(), self.client.open(&call).await?))
    }

    /// Creates an object in `namespace`, which is empty for a resource of the whole cluster, and
    /// returns it as the server stored it.
    pub async fn create<O: DeserializeOwned>(
        &self,
        namespace: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<O> {
        self.client.fetch(&self.create_call(namespace, body)?).await
    }

    /// Creates an object as [`Self::create`] does, but the answer holds only its name and version.
    pub async fn create_for_metadata(
        &self,
        namespace: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<Written> {
        self.fetch_metadata(self.create_call(namespace, body)?).await
    }

    /// Creates an object as [`Self::create`] does, but the answer holds only its metadata.
    pub async fn create_for_whole_metadata(
        &self,
        namespace: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<PartialObjectMetadata> {
        self.fetch_metadata(self.create_call(namespace, body)?).await
    }

    /// Fetches an object of which the server sends only the metadata.
    async fn fetch_metadata<O: DeserializeOwned>(&self, mut call: Call) -> Result<O> {
        call.accept = match self.client.speaks_protobuf() {
            true => ONE_METADATA_PROTOBUF,
            false => ONE_METADATA,
        };
        self.client.fetch_message(&call, Written::MESSAGE).await
    }

    /// Creates a subresource of a named object (`eviction`, `token`, `binding`): a POST.
    pub async fn create_for<O: DeserializeOwned>(
        &self,
        key: &ObjectKey,
        body: &(impl Serialize + Sync),
    ) -> Result<O> {
        self.client.fetch(&self.call("POST", key)?.body(JSON, body)?).await
    }

    /// Replaces an object, or the [subresource](Self::subresource) of it: a PUT. A conflict (409)
    /// when `body` has a resourceVersion that is not the newest.
    pub async fn update<O: DeserializeOwned>(
        &self,
        key: &ObjectKey,
        body: &(impl Serialize + Sync),
    ) -> Result<O> {
        self.client.fetch(&self.call("PUT", key)?.body(JSON, body)?).await
    }

    /// Replaces an object as [`Self::update`] does, but the answer holds only its name and version,
    /// in protobuf where the configuration allows it. For built-in kinds.
    pub async fn update_for_metadata(
        &self,
        key: &ObjectKey,
        body: &(impl Serialize + Sync),
    ) -> Result<Written> {
        self.fetch_metadata(self.call("PUT", key)?.body(JSON, body)?).await
    }

    /// Changes an object and returns it as it is then. Unless the patch names a resourceVersion, it
    /// applies to any version.
    pub async fn patch<O: DeserializeOwned>(&self, key: &ObjectKey, patch: &Patch) -> Result<O> {
        self.client.fetch(&self.patch_call(key, patch)?).await
    }

    /// Changes an object as [`Self::patch`] does, but the answer holds only its name and version,
    /// in protobuf where the configuration allows it. For built-in kinds with many patches.
    pub async fn patch_for_metadata(&self, key: &ObjectKey, patch: &Patch) -> Result<Written> {
        self.fetch_metadata(self.patch_call(key, patch)?).await
    }

    /// Builds the request of a patch, whose content type depends on its form.
    fn patch_call(&self, key: &ObjectKey, patch: &Patch) -> Result<Call> {
        let call = self.call("PATCH", key)?;
        match patch {
            Patch::Json(body) => call.body("application/json-patch+json", body),
            Patch::Merge(body) => call.body("application/merge-patch+json", body),
            Patch::StrategicMerge(body) => {
                call.body("application/strategic-merge-patch+json", body)
            }
            Patch::Apply { manager, force, body } => {
                let mut call = call.body("application/apply-patch+yaml", body)?;
                call.query("fieldManager", manager);
                call.query("force", &force.to_string());
                Ok(call)
            }
        }
    }

    /// Deletes an object. Success means that the server accepts the deletion: with finalizers or a
    /// grace period the object stays for a while. Not found (404) is an error.
    pub async fn delete(&self, key: &ObjectKey, delete: Delete) -> Result<()> {
        let mut call = self.call("DELETE", key)?.body(JSON, &Options::new(&delete))?;
        // Also with `metadata_only`: the answer may be a Status, and is dropped.
        call.accept = JSON;
        self.client.send(&call).await.map(drop)
    }

    /// Deletes all objects of a namespace that `options` select, or of the cluster with `None`. A
    /// deletion that fails half-way has deleted some of them.
    pub async fn delete_collection(
        &self,
        namespace: Option<&str>,
        delete: Delete,
        options: &ListOptions,
    ) -> Result<()> {
        let mut call = self.list_call("DELETE", namespace, options)?;
        call.accept = self.accept_many();
        self.client.send_and_drain(&call.body(JSON, &Options::new(&delete))?).await
    }
}

/// `metav1.DeleteOptions` with its kind.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Options<'a> {
    api_version: &'static str,
    kind: &'static str,
    #[serde(flatten)]
    delete: &'a Delete,
}

impl Options<'_> {
    fn new(delete: &Delete) -> Options<'_> {
        Options { api_version: "v1", kind: "DeleteOptions", delete }
    }
}
