//! Deletes the objects of one resource in a namespace.
//! Upstream: `deleteAllContentForGroupVersionResource`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use crate::client::{self, ApiResource, Client, Delete, Dynamic, ListOptions};
use crate::controllers::Error;
use crate::objects::{
    Encoded, Form, Identity, Istr, ListPart, ObjectKey, PodPhase, ResourceType, Timestamp, decode,
    messages, null_as_default,
};

/// The estimated time for the finalizers of objects that are being deleted.
const FINALIZER_ESTIMATE: Duration = Duration::from_secs(15);
/// How many pods are listed to learn whether to wait.
const FIRST_PAGE: u32 = 500;
/// The garbage collector's finalizers, which a background deletion removes.
const GC_FINALIZERS: [&str; 2] = ["orphan", "foregroundDeletion"];

/// The fields of an object that matter for its deletion.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Item {
    #[serde(deserialize_with = "null_as_default")]
    metadata: ItemMeta,
    #[serde(deserialize_with = "null_as_default")]
    spec: PodSpec,
    #[serde(deserialize_with = "null_as_default")]
    status: PodStatus,
}

/// An object of any kind. Spec and status of a custom resource may have any form.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AnyItem {
    #[serde(deserialize_with = "null_as_default")]
    metadata: ItemMeta,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ItemMeta {
    #[serde(deserialize_with = "null_as_default")]
    name: String,
    deletion_timestamp: Option<Timestamp>,
    deletion_grace_period_seconds: Option<i64>,
    #[serde(deserialize_with = "null_as_default")]
    finalizers: Vec<Istr>,
}

/// The fields of a Pod's spec; empty for other kinds.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSpec {
    #[serde(deserialize_with = "null_as_default")]
    node_name: Istr,
    termination_grace_period_seconds: Option<i64>,
}

/// The fields of a Pod's status; empty for other kinds.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct PodStatus {
    #[serde(deserialize_with = "null_as_default")]
    phase: PodPhase,
}

/// The form in which the objects of a list are requested.
#[derive(Clone, Copy)]
enum ReadAs {
    /// Whole Pods: the grace period is not in the metadata.
    Pods,
    Metadata,
}

impl From<AnyItem> for Item {
    fn from(AnyItem { metadata }: AnyItem) -> Item {
        Item { metadata, ..Item::default() }
    }
}

impl Item {
    /// Decodes an object of a namespace. An object that cannot be decoded still counts as one that
    /// needs a delete; its name is empty if even that cannot be read.
    fn decode(item: &Encoded, read_as: ReadAs) -> Item {
        let Encoded { form, bytes } = item;
        let read = match read_as {
            ReadAs::Pods => decode(*form, Some(&messages::POD_DELETION), bytes),
            ReadAs::Metadata => {
                decode::<AnyItem>(*form, Some(&messages::DELETION), bytes).map(Item::from)
            }
        };
        read.unwrap_or_else(|error| {
            let name =
                Identity::decode(item).map_or_else(String::new, |known| known.name.to_string());
            log::warn!("the object {name:?} of a namespace cannot be decoded: {error}");
            Item { metadata: ItemMeta { name, ..ItemMeta::default() }, ..Item::default() }
        })
    }

    /// Returns whether it is a Pod that has ended.
    fn has_ended(&self) -> bool {
        matches!(self.status.phase, PodPhase::Succeeded | PodPhase::Failed)
    }

    /// Returns whether the object is being deleted and a further delete would change nothing.
    fn needs_no_delete(&self) -> bool {
        let ItemMeta { deletion_timestamp, deletion_grace_period_seconds, finalizers, .. } =
            &self.metadata;
        if deletion_timestamp.is_none()
            || finalizers.iter().any(|finalizer| GC_FINALIZERS.contains(&finalizer.as_str()))
        {
            return false;
        }
        match deletion_grace_period_seconds.unwrap_or(0) {
            // Its grace period is over: only finalizers keep it.
            0 => !finalizers.is_empty(),
            // A delete would end the grace period of a Pod without a node, and of one that has
            // ended, and shorten a period that is longer than the Pod's own.
            seconds => {
                let own_seconds = self.spec.termination_grace_period_seconds.unwrap_or(0);
                !self.spec.node_name.is_empty() && !self.has_ended() && seconds <= own_seconds
            }
        }
    }
}

/// The objects of a resource in a namespace.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Content {
    pub count: usize,
    /// The number of objects with each finalizer.
    pub finalizers: BTreeMap<Istr, usize>,
    /// The number of objects that a delete would change.
    pub(super) needing_delete: usize,
    /// The longest grace period of a Pod that has not ended.
    pub(super) grace: Duration,
    /// Whether the list has another page, so that these are not all objects.
    pub(super) has_more: bool,
}

impl Content {
    /// Adds an object to the counts.
    fn add(&mut self, item: Item) {
        self.count += 1;
        self.needing_delete += usize::from(!item.needs_no_delete());
        if !item.has_ended()
            && let Some(grace) = item.spec.termination_grace_period_seconds
        {
            let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
            self.grace = self.grace.max(grace);
        }
        for finalizer in item.metadata.finalizers {
            *self.finalizers.entry(finalizer).or_default() += 1;
        }
    }

    /// Returns the estimated time until the Pods have ended: their longest grace period if the
    /// namespace has been terminating for less than that, else zero, which means unknown.
    fn pod_estimate(&self, age: Duration) -> Duration {
        if age < self.grace { self.grace } else { Duration::ZERO }
    }
}

/// The result of an attempt to delete the objects of a resource.
#[derive(Debug, Default)]
pub struct DeletionResult {
    /// The estimated time until the remaining objects are gone. Zero: unknown.
    pub estimate: Duration,
    pub remaining: Content,
    pub error: Option<Error>,
}

impl DeletionResult {
    /// Makes the result of a failed attempt, whose remaining objects are unknown.
    fn failed(estimate: Duration, error: client::Error) -> DeletionResult {
        DeletionResult { estimate, remaining: Content::default(), error: Some(error.into()) }
    }

    /// Makes the result of a successful request to delete all objects. Remaining objects are an
    /// error if neither a grace period nor a finalizer explains them.
    fn after_deletion(
        remaining: Content,
        estimate: Duration,
        namespace: &str,
        resource: &ResourceType,
    ) -> DeletionResult {
        if remaining.count == 0 {
            return DeletionResult::default();
        }
        if !estimate.is_zero() {
            return DeletionResult { estimate, remaining, error: None };
        }
        if !remaining.finalizers.is_empty() {
            return DeletionResult { estimate: FINALIZER_ESTIMATE, remaining, error: None };
        }
        let ResourceType { group, version, plural, .. } = resource;
        let error = format!(
            "unexpected items still remain in namespace: {namespace} for gvr: {group}/{version}, Resource={plural}"
        );
        DeletionResult { estimate, remaining, error: Some(Error::other(error)) }
    }
}

/// Returns whether the resource is that of Pods.
pub fn is_pods(resource: &ResourceType) -> bool {
    resource.group.is_empty() && resource.version == "v1" && resource.plural == "pods"
}

/// The pods of a namespace in the cache, which may lag behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachedPods {
    /// The cache has no pods, or it is not known whether they need a delete.
    Unknown,
    /// Some pods are not being deleted.
    Alive,
    /// There are pods, and the last pass has deleted all of them.
    Deleted,
}

/// Deletes the objects of a resource in `namespace`, which has been terminating for `age`, and
/// returns what remains and for how long.
///
/// Lists before it deletes, unlike upstream: most resources have no objects in a namespace, and
/// objects that only wait for their grace period or finalizers need no second delete. In either
/// case a list shows that they are gone. Where that list fails, as that of a million events may,
/// the objects are deleted without it. Pods are not: upstream lists them first as well, and waits
/// no longer than their grace periods. Pods that are alive in the cache are listed only afterwards.
/// If the cache has pods, the first page is enough to know how long to wait.
pub async fn delete_all(
    client: &Client,
    found: &ApiResource,
    namespace: &str,
    age: Duration,
    cached: CachedPods,
) -> DeletionResult {
    let resource = &found.resource;
    let whole_objects = client.resource(resource).accepting(Form::Protobuf);
    let metadata = whole_objects.clone().metadata_only();
    let can_list = found.supports(&["list"]);
    // The cache shows that a delete is needed.
    let deletes_first = cached == CachedPods::Alive;
    let listed = if !can_list || deletes_first {
        Ok(None)
    } else if cached == CachedPods::Deleted {
        list_remaining_pods(&whole_objects, namespace, age).await
    } else if is_pods(resource) {
        list_content(&whole_objects, ReadAs::Pods, namespace, None).await
    } else {
        list_content(&metadata, ReadAs::Metadata, namespace, None).await
    };
    // `None`: unknown.
    let mut remaining = match listed {
        Ok(content) => content,
        Err(error) if is_pods(resource) => return DeletionResult::failed(Duration::ZERO, error),
        Err(error) => {
            log::debug!("deleting {resource} of namespace {namespace} without a list: {error}");
            None
        }
    };
    let estimate_of = |content: &Option<Content>| match content {
        Some(content) => content.pod_estimate(age),
        None => Duration::ZERO,
    };
    let mut estimate = estimate_of(&remaining);
    let needs_delete = match &remaining {
        Some(content) => content.needing_delete > 0,
        None => true,
    };
    if needs_delete {
        if let Err(error) = delete_objects(&metadata, found, namespace).await {
            return DeletionResult::failed(estimate, error);
        }
        if can_list {
            let listed = match deletes_first {
                true => list_remaining_pods(&whole_objects, namespace, age).await,
                false => list_content(&metadata, ReadAs::Metadata, namespace, None).await,
            };
            remaining = match listed {
                Ok(content) => content,
                Err(error) => return DeletionResult::failed(estimate, error),
            };
            if deletes_first {
                estimate = estimate_of(&remaining);
            }
        }
    }
    match remaining {
        Some(content) => DeletionResult::after_deletion(content, estimate, namespace, resource),
        None => DeletionResult { estimate, ..DeletionResult::default() },
    }
}

/// Lists the remaining pods: only the first page if it shows how long to wait, else all pages.
async fn list_remaining_pods(
    pods: &Dynamic,
    namespace: &str,
    age: Duration,
) -> client::Result<Option<Content>> {
    match list_content(pods, ReadAs::Pods, namespace, Some(FIRST_PAGE)).await {
        Ok(Some(page))
            if !page.has_more || page.needing_delete == 0 && !page.pod_estimate(age).is_zero() =>
        {
            Ok(Some(page))
        }
        // Also after an error or for a resource that cannot be listed: this list returns it.
        _ => list_content(pods, ReadAs::Pods, namespace, None).await,
    }
}

/// Deletes all objects with one request where the server allows it, else one by one. Does nothing
/// if the resource cannot be listed for that either.
async fn delete_objects(
    verbs: &Dynamic,
    found: &ApiResource,
    namespace: &str,
) -> client::Result<()> {
    if found.supports(&["deletecollection"]) {
        // The namespace is deleted only when all objects are gone: none needs to be orphaned or
        // waited for.
        let all = ListOptions::default();
        match verbs.delete_collection(Some(namespace), Delete::background(), &all).await {
            Err(error) if is_unsupported(&error) => {}
            done => return done,
        }
    }
    if !found.supports(&["list"]) {
        return Ok(());
    }
    let mut names = Vec::new();
    visit_objects(verbs, ReadAs::Metadata, namespace, None, &mut |item| {
        names.push(item.metadata.name)
    })
    .await?;
    for name in names.into_iter().filter(|name| !name.is_empty()) {
        let key = ObjectKey::new(namespace, &name);
        match verbs.delete(&key, Delete::background()).await {
            Err(error) if !is_unsupported(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Returns whether the resource does not support the verb, or is not served any more.
fn is_unsupported(error: &client::Error) -> bool {
    error.is_method_not_supported() || error.is_not_found()
}

/// Counts the objects of a resource: the first `limit`, or all. `None` if it cannot be listed.
async fn list_content(
    verbs: &Dynamic,
    read_as: ReadAs,
    namespace: &str,
    limit: Option<u32>,
) -> client::Result<Option<Content>> {
    let mut content = Content::default();
    let has_more =
        visit_objects(verbs, read_as, namespace, limit, &mut |item| content.add(item)).await?;
    Ok(has_more.map(|has_more| Content { has_more, ..content }))
}

/// Calls `visit` with each object as it arrives, for the first `limit` or all. Returns whether
/// there are more; `None` if the resource cannot be listed.
async fn visit_objects(
    verbs: &Dynamic,
    read_as: ReadAs,
    namespace: &str,
    limit: Option<u32>,
    visit: &mut (dyn FnMut(Item) + Send),
) -> client::Result<Option<bool>> {
    let options = ListOptions { limit, ..ListOptions::default() };
    let mut list = match verbs.list_page(Some(namespace), &options, None).await {
        Err(error) if is_unsupported(&error) => return Ok(None),
        list => list?,
    };
    loop {
        match list.next().await? {
            ListPart::Item(item) => visit(Item::decode(&item, read_as)),
            ListPart::End { continue_token, .. } => return Ok(Some(continue_token.is_some())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use async_std::task::block_on;
    use parking_lot::Mutex;
    use serde_json::{Value, json};

    use super::*;
    use crate::client::testing::answering;

    /// What [`delete_all`] asks of a server that answers with these lists of pods, one after the
    /// other, and how it ends. `many`: a first page is not all.
    fn pods_deleted(
        (cached, many): (CachedPods, bool),
        lists: Vec<Value>,
        age: u64,
    ) -> (Vec<&'static str>, DeletionResult) {
        let (asked, mut lists) = (Arc::<Mutex<Vec<_>>>::default(), lists.into_iter());
        let requests = asked.clone();
        block_on(async move {
            let client = answering(move |request| {
                let is_first = request.contains("limit=500");
                requests.lock().push(match is_first {
                    _ if request.starts_with("DELETE") => "delete",
                    true => "first",
                    false => "all",
                });
                if request.starts_with("DELETE") {
                    return (200, json!({ "kind": "Status" }));
                }
                let meta = json!({ "continue": if is_first && many { "more" } else { "" } });
                let items = lists.next().unwrap();
                let kind = "PodList";
                (200, json!({ "kind": kind, "apiVersion": "v1", "metadata": meta, "items": items }))
            })
            .await;
            let found = ApiResource {
                resource: ResourceType::fixed("", "v1", "Pod", "pods", true),
                verbs: ["delete", "deletecollection", "list"].map(Istr::new).into(),
                preferred: true,
            };
            let outcome = delete_all(&client, &found, "ns", Duration::from_secs(age), cached).await;
            (std::mem::take(&mut *asked.lock()), outcome)
        })
    }

    #[test]
    fn pods_that_the_cache_has_are_waited_for_by_the_first_of_them() {
        use CachedPods::{Alive, Deleted, Unknown};
        let pod = |deleted: bool| {
            let time = deleted.then_some("2026-01-01T00:00:00Z");
            json!({
                "metadata": {
                    "name": "a", "deletionTimestamp": time, "deletionGracePeriodSeconds": 30,
                },
                "spec": { "nodeName": "n", "terminationGracePeriodSeconds": 30 },
                "status": { "phase": "Running" },
            })
        };
        let [none, alive, going] = [json!([]), json!([pod(false)]), json!([pod(true)])];
        let is_left = "unexpected items still remain";
        let (few, many) = (false, true);
        for (cached, many, lists, age, asked, estimate, error) in [
            (Unknown, many, vec![&none], 5, &["all"][..], 0, None),
            (Unknown, many, vec![&going], 5, &["all"], 30, None),
            (Unknown, many, vec![&alive, &going], 5, &["all", "delete", "all"], 30, None),
            (Alive, many, vec![&going], 5, &["delete", "first"], 30, None),
            // They were gone at once.
            (Alive, few, vec![&none], 5, &["delete", "first"], 0, None),
            // Only the whole list shows that it takes too long.
            (Alive, many, vec![&going; 2], 30, &["delete", "first", "all"], 0, Some(is_left)),
            (Alive, few, vec![&going], 30, &["delete", "first"], 0, Some(is_left)),
            (Deleted, many, vec![&going], 29, &["first"], 30, None),
            (Deleted, many, vec![&going; 2], 30, &["first", "all"], 0, Some(is_left)),
            (Deleted, few, vec![&none], 5, &["first"], 0, None),
            // A new pod, of which the cache does not know.
            (
                Deleted,
                many,
                vec![&alive, &alive, &going],
                5,
                &["first", "all", "delete", "all"],
                30,
                None,
            ),
            (Deleted, few, vec![&alive, &going], 5, &["first", "delete", "all"], 30, None),
        ] {
            let name = format!("{cached:?}, many: {many}, {lists:?}, {age}");
            let lists: Vec<Value> = lists.into_iter().cloned().collect();
            let (requests, outcome) = pods_deleted((cached, many), lists, age);
            assert_eq!(requests, asked, "{name}");
            assert_eq!(outcome.estimate, Duration::from_secs(estimate), "{name}");
            let why = outcome.error.map(|error| error.to_string());
            assert_eq!(why.is_some(), error.is_some(), "{name}: {why:?}");
            assert!(why.is_none_or(|why| why.contains(error.unwrap())), "{name}");
        }
    }

    fn content_of(items: &[Value]) -> Content {
        let mut content = Content::default();
        for item in items {
            content.add(Item::deserialize(item).unwrap());
        }
        content
    }

    #[test]
    fn a_pod_in_protobuf_is_read_as_in_json() {
        let meta = b"\x0a\x01a\x4a\x06\x08\x80\xf2\xd6\xca\x06\x50\x1e\x72\x03x/y";
        let pod = [
            b"\x0a\x12".as_slice(),
            meta,
            b"\x12\x05\x20\x1e\x52\x01n",
            b"\x1a\x09\x0a\x07Running",
        ];
        let read: Item =
            decode(Form::Protobuf, Some(&messages::POD_DELETION), &pod.concat()).unwrap();
        let json = json!({
            "metadata": {
                "name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z",
                "deletionGracePeriodSeconds": 30, "finalizers": ["x/y"],
            },
            "spec": { "nodeName": "n", "terminationGracePeriodSeconds": 30 },
            "status": { "phase": "Running" },
        });
        assert_eq!(read, Item::deserialize(json).unwrap());
    }

    #[test]
    fn objects_of_other_kinds_are_read_by_their_metadata_alone() {
        let read = |object: &Value| AnyItem::deserialize(object).map(Item::from);
        let named = |name: &str| ItemMeta { name: name.into(), ..ItemMeta::default() };
        for (object, metadata) in [
            (json!({ "metadata": { "name": "a", "finalizers": null } }), named("a")),
            (
                json!({ "metadata": {
                    "name": "a", "deletionTimestamp": null, "deletionGracePeriodSeconds": null,
                } }),
                named("a"),
            ),
            (json!({ "metadata": { "name": null } }), named("")),
            (json!({ "metadata": null }), named("")),
            // A member that looks like a pod's spec, or unknown content.
            (
                json!({
                    "metadata": { "name": "a" },
                    "spec": { "terminationGracePeriodSeconds": 3600, "nodeName": "n" },
                    "status": { "phase": "Running" },
                }),
                named("a"),
            ),
            (json!({ "metadata": { "name": "a" }, "spec": "text", "status": [1] }), named("a")),
            (
                json!({ "metadata": { "name": "a" }, "spec": { "terminationGracePeriodSeconds": "x" } }),
                named("a"),
            ),
        ] {
            let expected = Item { metadata, ..Item::default() };
            assert_eq!(read(&object).expect("it is read"), expected, "{object}");
        }
        let odd = json!({ "metadata": null, "spec": null, "status": null });
        assert_eq!(Item::deserialize(odd).expect("it is read"), Item::default());
        let odd = json!({ "spec": { "nodeName": null }, "status": { "phase": null } });
        assert_eq!(Item::deserialize(odd).expect("it is read"), Item::default());
    }

    #[test]
    fn an_object_that_cannot_be_decoded_counts() {
        for (json, name) in [
            (r#"{"metadata":{"name":"a","finalizers":1}}"#, "a"),
            (r#"{"metadata":{"name":"a","deletionTimestamp":"then"}}"#, "a"),
            (r#"{"metadata":1}"#, ""),
            (r#"{"metadata":{"name":null,"finalizers":null},"spec":null,"status":null}"#, ""),
        ] {
            let item = Item::decode(&Encoded::json(json), ReadAs::Metadata);
            assert_eq!(item.metadata.name, name, "{json}");
            let mut content = Content::default();
            content.add(item);
            assert_eq!((content.count, content.needing_delete), (1, 1), "{json}");
        }
    }

    #[test]
    fn only_objects_that_a_delete_would_change_are_deleted_again() {
        let deleting = |grace: i64, finalizers: &[&str]| {
            json!({ "metadata": {
                "name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z",
                "deletionGracePeriodSeconds": grace, "finalizers": finalizers,
            }})
        };
        let pod = |node: &str, phase: &str, own: i64, left: i64| {
            let mut pod = deleting(left, &[]);
            pod["spec"] = json!({ "nodeName": node, "terminationGracePeriodSeconds": own });
            pod["status"] = json!({ "phase": phase });
            pod
        };
        for (item, needing_delete) in [
            (json!({ "metadata": { "name": "a" } }), 1),
            (json!({ "metadata": { "name": "a", "finalizers": ["x/y"] } }), 1),
            (deleting(0, &["x/y"]), 0),
            (deleting(0, &[]), 1),
            (deleting(0, &["x/y", "orphan"]), 1),
            (deleting(0, &["foregroundDeletion"]), 1),
            (deleting(30, &["x/y"]), 1),
            (pod("n", "Running", 30, 30), 0),
            (pod("n", "Running", 30, 5), 0),
            (pod("n", "Running", 30, 60), 1),
            (pod("", "Pending", 30, 30), 1),
            (pod("n", "Failed", 30, 30), 1),
        ] {
            assert_eq!(
                content_of(std::slice::from_ref(&item)).needing_delete,
                needing_delete,
                "{item}"
            );
        }
    }

    #[test]
    fn the_longest_grace_period_of_running_pods_counts() {
        let pod = |phase: &str, grace: Option<i64>| {
            json!({
                "metadata": { "name": "a", "finalizers": ["x/y"] },
                "spec": { "nodeName": "n", "terminationGracePeriodSeconds": grace },
                "status": { "phase": phase },
            })
        };
        let pods = content_of(&[
            pod("Running", Some(20)),
            pod("Pending", Some(30)),
            pod("Succeeded", Some(600)),
            pod("Running", Some(-1)),
            pod("Running", None),
        ]);
        assert_eq!((pods.count, pods.grace), (5, Duration::from_secs(30)));
        assert_eq!(pods.finalizers, BTreeMap::from([(Istr::new("x/y"), 5)]));
    }

    #[test]
    fn remaining_objects_are_waited_for_or_an_error() {
        let jobs = ResourceType::fixed("batch", "v1", "Job", "jobs", true);
        let pods = ResourceType::fixed("", "v1", "Pod", "pods", true);
        let plain = || content_of(&[json!({ "metadata": { "name": "a" } })]);
        let with_finalizer =
            || content_of(&[json!({ "metadata": { "name": "a", "finalizers": ["x/y"] } })]);
        let seconds = Duration::from_secs;
        for (remaining, estimate, resource, expected, error) in [
            (Content::default(), seconds(30), &pods, seconds(0), None),
            (plain(), seconds(30), &pods, seconds(30), None),
            (with_finalizer(), seconds(30), &pods, seconds(30), None),
            (with_finalizer(), seconds(0), &pods, seconds(15), None),
            (
                plain(),
                seconds(0),
                &pods,
                seconds(0),
                Some("unexpected items still remain in namespace: ns for gvr: /v1, Resource=pods"),
            ),
            (
                plain(),
                seconds(0),
                &jobs,
                seconds(0),
                Some(
                    "unexpected items still remain in namespace: ns for gvr: batch/v1, Resource=jobs",
                ),
            ),
        ] {
            let outcome = DeletionResult::after_deletion(remaining, estimate, "ns", resource);
            assert_eq!(outcome.estimate, expected);
            assert_eq!(outcome.error.map(|error| error.to_string()).as_deref(), error);
        }
    }
}
