//! ControllerRevisions: the versions of a template that a StatefulSet or a DaemonSet keeps.
//! Upstream: `pkg/controller/history`, and the parts of both controllers that make revisions.
//!
//! Data, name and labels are byte for byte those of the Go manager: a revision that is not
//! recognized as the current one starts a rollout.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::cache::Lister;
use crate::client::{Client, Delete};
use crate::clock::Clock;
use crate::controllers::Error;
use crate::controllers::workloads::changed_revisions::ChangedRevisions;
use crate::controllers::workloads::ref_manager::{ControllerRefManager, owned_or_orphaned};
use crate::objects::golang::{
    Numbers, complete_pod_template, pod_template_dump, pod_template_patch,
};
use crate::objects::{
    ControllerRevision, Istr, Labels, Meta, Object, ObjectKey, OwnerReference, Resource,
    RevisionData, Selector, Template, from_json,
};

/// The label that holds the hash of a StatefulSet's revision.
/// Upstream: `ControllerRevisionHashLabel`.
pub const REVISION_HASH_LABEL: &str = "controller.kubernetes.io/hash";
/// The label by which a DaemonSet's revisions, and the pods of both kinds, name their version.
/// Upstream: `DefaultDaemonSetUniqueLabelKey`, `ControllerRevisionHashLabelKey`.
pub const REVISION_LABEL: &str = "controller-revision-hash";

/// The longest prefix to which a hash can be appended in a name. Upstream:
/// `ControllerRevisionName`.
const LONGEST_PREFIX: usize = 223;
/// The delays between attempts to write a revision that others write as well. Upstream:
/// `retry.DefaultBackoff`.
const CONFLICT_PAUSES: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(50), Duration::from_millis(250)];

/// A revision to be created.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NewRevision {
    api_version: &'static str,
    kind: &'static str,
    metadata: NewRevisionMeta,
    data: Box<RawValue>,
    revision: i64,
    #[serde(skip)]
    numbers: Numbers,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NewRevisionMeta {
    name: String,
    namespace: Istr,
    labels: Labels,
    #[serde(skip_serializing_if = "Labels::is_empty")]
    annotations: Labels,
    owner_references: [OwnerReference; 1],
}

/// The result of creating a [`NewRevision`].
#[derive(Debug)]
pub enum Created {
    New(ControllerRevision),
    /// A revision of that name has the same data, or was sent with it.
    Same(ControllerRevision),
    /// A revision of that name has other data: the collision count has to grow.
    Collision,
}

impl NewRevision {
    /// Makes the revision of a StatefulSet with this template. `collision_count` is that of its
    /// status, 0 when absent.
    /// Upstream: `newRevision`, `NewControllerRevision`.
    pub fn of_stateful_set<O: Resource>(
        set: &Meta,
        template: &Template,
        revision: i64,
        collision_count: i32,
    ) -> Result<NewRevision, Error> {
        let numbers = Numbers::Floats;
        let data = pod_template_patch(&template.to_value(), numbers);
        let hash = data_hash(&data, Some(collision_count));
        let name = revision_name(&set.name, &hash);
        let labels = with_label(&template.labels, REVISION_HASH_LABEL, &hash);
        NewRevision::new::<O>(set, name, labels, data, numbers, revision)
    }

    /// Makes the revision of a DaemonSet with this template.
    /// Upstream: `snapshot`.
    pub fn of_daemon_set<O: Resource>(
        set: &Meta,
        template: &Template,
        revision: i64,
        collision_count: Option<i32>,
    ) -> Result<NewRevision, Error> {
        let (value, numbers) = (template.to_value(), Numbers::Integers);
        let data = pod_template_patch(&value, numbers);
        let hash = template_hash(&pod_template_dump(&value), collision_count);
        let name = format!("{}-{hash}", set.name);
        let labels = with_label(&template.labels, REVISION_LABEL, &hash);
        NewRevision::new::<O>(set, name, labels, data, numbers, revision)
    }

    /// Makes a revision with this name, data and number, which the set controls.
    fn new<O: Resource>(
        set: &Meta,
        name: String,
        labels: Labels,
        data: String,
        numbers: Numbers,
        revision: i64,
    ) -> Result<NewRevision, Error> {
        Ok(NewRevision {
            api_version: "apps/v1",
            kind: "ControllerRevision",
            metadata: NewRevisionMeta {
                name,
                namespace: set.namespace.clone(),
                labels,
                annotations: set.annotations.clone(),
                owner_references: [set.controller_ref::<O>()],
            },
            data: RawValue::from_string(data)?,
            revision,
            numbers,
        })
    }

    pub fn name(&self) -> &str {
        &self.metadata.name
    }

    /// The number that it gets.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Its data, as JSON.
    pub fn data(&self) -> &str {
        self.data.get()
    }

    /// Returns whether `known` holds the same version although its bytes may differ, because a
    /// manager of another version made it. For that it is encoded once more, from the fields that
    /// both know and with the defaults of today's API. Upstream:
    /// `setMatchesLatestExistingRevision`.
    pub fn is_equivalent(&self, known: &ControllerRevision) -> bool {
        let Ok(mut data) = from_json::<Value>(known.data.as_str()) else { return false };
        data.pointer_mut("/spec/template").is_some_and(|template| {
            complete_pod_template(template);
            pod_template_patch(template, self.numbers) == self.data.get()
        })
    }

    /// Changes its name for a greater collision count of a StatefulSet. The hash in its label
    /// stays, as upstream.
    fn rename_after_collision(&mut self, set: &Meta, collision_count: i32) {
        let hash = data_hash(self.data.get(), Some(collision_count));
        self.metadata.name = revision_name(&set.name, &hash);
    }

    /// Creates the revision once, for `owner`. A DaemonSet increments the collision count of its
    /// status after a [`Created::Collision`], and tries again in its next sync. `changed` gets a
    /// revision that comes back with other data.
    pub async fn create<O: Object + Resource>(
        &self,
        client: &Client,
        owner: &O,
        changed: &ChangedRevisions,
    ) -> Result<Created, Error> {
        let namespace = &self.metadata.namespace;
        match client.create::<ControllerRevision>(namespace, self).await {
            Ok(created) => {
                changed.record_created(owner, self.data(), &created);
                return Ok(Created::New(created));
            }
            Err(error) if !error.is_already_exists() => return Err(error.into()),
            Err(_) => {}
        }
        let existing: ControllerRevision =
            client.get(&ObjectKey::new(namespace, &self.metadata.name)).await?;
        let is_same = changed.is_equal(owner.meta(), self.data(), &existing);
        Ok(if is_same { Created::Same(existing) } else { Created::Collision })
    }

    /// Creates the revision under the first name that is free, for a StatefulSet. Returns the
    /// revision and the collision count that its status is to show.
    /// Upstream: `CreateControllerRevision`.
    pub async fn create_under_free_name<O: Object + Resource>(
        mut self,
        client: &Client,
        set: &O,
        changed: &ChangedRevisions,
        mut collision_count: i32,
    ) -> Result<(ControllerRevision, i32), Error> {
        loop {
            match self.create(client, set, changed).await? {
                Created::New(revision) | Created::Same(revision) => {
                    return Ok((revision, collision_count));
                }
                Created::Collision => {
                    collision_count = collision_count.wrapping_add(1);
                    self.rename_after_collision(set.meta(), collision_count);
                }
            }
        }
    }
}

fn with_label(labels: &Labels, key: &str, value: &str) -> Labels {
    labels.iter().chain([(key, value)]).collect()
}

/// Returns the revisions that `owner` controls, and the orphans that it may adopt, if its selector
/// matches them; oldest first. Needs [`controller_index`]. A StatefulSet adopts the orphans of
/// these; a DaemonSet hands all its revisions to `ControllerRefManager::claim`, which also
/// releases.
/// Upstream: `ListControllerRevisions`.
///
/// [`controller_index`]: crate::controllers::workloads::ref_manager::controller_index
pub fn revisions_of(
    revisions: &Lister<ControllerRevision>,
    owner: &Meta,
    selector: &Selector,
) -> Vec<Arc<ControllerRevision>> {
    let mut found = owned_or_orphaned(revisions, owner);
    found.retain(|revision| selector.matches(&revision.meta().labels));
    sort_oldest_first(&mut found);
    found
}

/// Claims the revisions `found`, and returns those that the owner controls, adopted ones included;
/// oldest first.
pub async fn claim_revisions<O: Object + Resource>(
    client: &Client,
    owner: &Meta,
    selector: &Selector,
    found: Vec<Arc<ControllerRevision>>,
) -> Result<Vec<Arc<ControllerRevision>>, Error> {
    let manager = ControllerRefManager::new::<O>(client, owner, selector);
    let mut claimed = manager.claim::<O, _>(found, |_| true).await?;
    sort_oldest_first(&mut claimed);
    Ok(claimed)
}

/// Sorts `revisions` by number, then age, then name. Upstream: `SortControllerRevisions`.
fn sort_oldest_first(revisions: &mut [Arc<ControllerRevision>]) {
    revisions.sort_by(|one, other| {
        let order = |revision: &ControllerRevision| {
            (revision.revision, revision.meta.creation_timestamp.map(|at| at.as_secs()))
        };
        order(one).cmp(&order(other)).then_with(|| one.meta.name.cmp(&other.meta.name))
    });
}

/// Returns the number after the highest. Upstream: `nextRevision`, `maxRevision`.
pub fn next_revision(revisions: &[Arc<ControllerRevision>]) -> i64 {
    revisions.iter().map(|known| known.revision).max().unwrap_or(0).saturating_add(1)
}

/// The revisions that a history limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Revisions that are not in use. Upstream: `truncateHistory` of StatefulSets.
    Unused,
    /// All revisions given, of which those in use are kept. Upstream: `cleanupHistory` of
    /// DaemonSets, given all but the current one.
    All,
}

/// Returns the revisions to delete, oldest first, so that no more than `limit` of those that count
/// remain. Those in use are never deleted; a negative limit deletes nothing.
pub fn beyond_limit(
    sorted: &[Arc<ControllerRevision>],
    is_used: impl Fn(&ControllerRevision) -> bool,
    counting: Limit,
    limit: i32,
) -> Vec<Arc<ControllerRevision>> {
    let Ok(limit) = usize::try_from(limit) else { return Vec::new() };
    let unused: Vec<_> = sorted.iter().filter(|revision| !is_used(revision)).cloned().collect();
    let counted = match counting {
        Limit::Unused => unused.len(),
        Limit::All => sorted.len(),
    };
    unused.into_iter().take(counted.saturating_sub(limit)).collect()
}

/// Deletes a revision; one that is gone is a success.
pub async fn delete(client: &Client, revision: &ControllerRevision) -> Result<(), Error> {
    match client.delete::<ControllerRevision>(&revision.meta.key(), Delete::new()).await {
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok(()),
    }
}

/// Sets the number of `revision` to `number`: a rollback makes an old version the newest. A
/// conflict is retried on the live revision. Upstream: `UpdateControllerRevision`.
pub async fn renumber(
    client: &Client,
    clock: &dyn Clock,
    revision: &ControllerRevision,
    number: i64,
) -> Result<ControllerRevision, Error> {
    let key = revision.meta.key();
    let mut current = revision.clone();
    let mut pauses = CONFLICT_PAUSES.iter();
    loop {
        if current.revision == number {
            return Ok(current);
        }
        current.revision = number;
        match client.update::<ControllerRevision>(&key, &Whole::new(&current)).await {
            Ok(updated) => return Ok(updated),
            Err(error) if error.is_conflict() => match pauses.next() {
                Some(pause) => clock.sleep(*pause).await,
                None => return Err(error.into()),
            },
            Err(error) => return Err(error.into()),
        }
        current = client.get(&key).await?;
        if current.meta.uid != revision.meta.uid {
            return Err(Error::other(format!("revision {key} is another one by now")));
        }
    }
}

/// The body of a PUT of a revision.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Whole<'a> {
    api_version: &'static str,
    kind: &'static str,
    metadata: &'a Meta,
    data: &'a RevisionData,
    revision: i64,
}

impl Whole<'_> {
    fn new(ControllerRevision { meta, data, revision }: &ControllerRevision) -> Whole<'_> {
        let (api_version, kind) = ("apps/v1", "ControllerRevision");
        Whole { api_version, kind, metadata: meta, data, revision: *revision }
    }
}

/// Returns `prefix-hash`, with the prefix cut to fit a name. Upstream: `ControllerRevisionName`.
fn revision_name(prefix: &str, hash: &str) -> String {
    format!("{}-{hash}", prefix.get(..LONGEST_PREFIX).unwrap_or(prefix))
}

/// Returns the FNV-1 hash of the data and the digits of the collision count, in letters. Upstream:
/// `HashControllerRevision`.
fn data_hash(data: &str, collision_count: Option<i32>) -> String {
    let count = collision_count.map(|count| count.to_string()).unwrap_or_default();
    let hash = data
        .bytes()
        .chain(count.bytes())
        .fold(FNV_OFFSET, |hash, byte| hash.wrapping_mul(FNV_PRIME) ^ u32::from(byte));
    safe_encode(hash)
}

/// Returns the FNV-1a hash of the dump of a template and the collision count in eight bytes, the
/// least first; in letters. Upstream: `controller.ComputeHash`.
pub fn template_hash(dump: &str, collision_count: Option<i32>) -> String {
    let count = collision_count.map(|count| u64::from(count.cast_unsigned()).to_le_bytes());
    let bytes = dump.bytes().chain(count.into_iter().flatten());
    safe_encode(
        bytes.fold(FNV_OFFSET, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(FNV_PRIME)),
    )
}

const FNV_OFFSET: u32 = 0x811c_9dc5;
const FNV_PRIME: u32 = 0x0100_0193;

/// Encodes the digits of a hash in letters that spell no words. Upstream: `rand.SafeEncodeString`.
fn safe_encode(hash: u32) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let digits = hash.to_string();
    digits.bytes().map(|byte| char::from(ALPHABET[usize::from(byte) % ALPHABET.len()])).collect()
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;
    use crate::objects::ResourceType;

    /// A stand-in for the owner's kind: only its name is used, in owner references.
    struct StatefulSet;
    struct DaemonSet;

    impl Resource for StatefulSet {
        const RESOURCE: ResourceType =
            ResourceType::fixed("apps", "v1", "StatefulSet", "statefulsets", true);
    }

    impl Resource for DaemonSet {
        const RESOURCE: ResourceType =
            ResourceType::fixed("apps", "v1", "DaemonSet", "daemonsets", true);
    }

    /// A set as the API server served it, and the revision that the Go manager 1.36.2 made of it.
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Golden {
        case: String,
        parent: String,
        /// The count that the set's status had afterwards.
        collision_count: Option<i32>,
        template: String,
        name: String,
        labels: Value,
        annotations: Value,
        data: String,
    }

    fn golden(text: &str) -> Vec<Golden> {
        serde_json::from_str(text).unwrap()
    }

    fn parent(golden: &Golden) -> Meta {
        Meta {
            name: golden.parent.as_str().into(),
            namespace: "default".into(),
            uid: "u".into(),
            annotations: serde_json::from_value(golden.annotations.clone()).unwrap(),
            ..Meta::default()
        }
    }

    fn assert_same(made: &NewRevision, golden: &Golden, name: bool) {
        let case = &golden.case;
        assert_eq!(made.data.get(), golden.data, "{case}");
        let json = serde_json::to_value(made).unwrap();
        assert_eq!(json["metadata"]["annotations"], golden.annotations, "{case}");
        if name {
            assert_eq!(made.name(), golden.name, "{case}");
            assert_eq!(json["metadata"]["labels"], golden.labels, "{case}");
        }
    }

    #[test]
    fn revisions_of_stateful_sets_are_those_of_the_go_manager() {
        let all = golden(include_str!("../../../fixtures/revisions/statefulsets.json"));
        assert!(all.len() > 15);
        for golden in &all {
            let template: Template = serde_json::from_str(&golden.template).unwrap();
            let count = golden.collision_count.unwrap_or(0);
            let set = parent(golden);
            let made = |count| {
                NewRevision::of_stateful_set::<StatefulSet>(&set, &template, 1, count).unwrap()
            };
            let first = made(0);
            assert_same(&first, golden, count == 0);
            // After a collision the name changes, and the label stays that of the first attempt.
            let mut renamed = first;
            (1..=count).for_each(|count| renamed.rename_after_collision(&set, count));
            assert_same(&renamed, golden, true);
        }
        assert!(all.iter().any(|golden| golden.collision_count == Some(1)));
    }

    #[test]
    fn revisions_of_daemon_sets_are_those_of_the_go_manager() {
        let all = golden(include_str!("../../../fixtures/revisions/daemonsets.json"));
        assert!(all.len() > 15);
        for golden in &all {
            let template: Template = serde_json::from_str(&golden.template).unwrap();
            let (set, count) = (parent(golden), golden.collision_count);
            let made = NewRevision::of_daemon_set::<DaemonSet>(&set, &template, 1, count).unwrap();
            // The dump of a template's own creation time shows the process's time zone.
            assert_same(&made, golden, !golden.template.contains("creationTimestamp"));
        }
        assert!(all.iter().any(|golden| golden.collision_count == Some(1)));
    }

    #[test]
    fn older_servers_and_newer_fields_make_no_difference() {
        let made = |template: Value| {
            let template: Template = serde_json::from_value(template).unwrap();
            let set = Meta { name: "s".into(), ..Meta::default() };
            let stateful = NewRevision::of_stateful_set::<StatefulSet>(&set, &template, 1, 0);
            let daemon = NewRevision::of_daemon_set::<DaemonSet>(&set, &template, 1, None);
            let (stateful, daemon) = (stateful.unwrap(), daemon.unwrap());
            let data = (stateful.data.get().to_owned(), daemon.data.get().to_owned());
            (data, stateful.name().to_owned(), daemon.name().to_owned())
        };
        let plain = json!({
            "metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": "i", "resources": {}}]},
        });
        let odd = json!({
            "metadata": {"labels": {"a": "b"}, "creationTimestamp": null, "brandNew": 1},
            "spec": {
                "volumes": [], "nodeSelector": {}, "affinity": null, "nodeName": "",
                "hostNetwork": false, "brandNew": {"x": []},
                "containers": [{"name": "c", "image": "i", "env": null, "brandNew": true}],
            },
        });
        assert_eq!(made(plain), made(odd));
    }

    fn revision(name: &str, number: i64, created: i64, data: &str) -> Arc<ControllerRevision> {
        let created = crate::objects::Timestamp::from_secs(created).to_string();
        let text = format!(
            r#"{{"metadata":{{"name":"{name}","creationTimestamp":"{created}"}},"revision":{number},"data":{data}}}"#
        );
        Arc::new(serde_json::from_str(&text).unwrap())
    }

    fn names(revisions: &[Arc<ControllerRevision>]) -> Vec<&str> {
        revisions.iter().map(|revision| &*revision.meta.name).collect()
    }

    #[test]
    fn revisions_are_ordered_by_number_then_age_then_name() {
        let mut all = [("d", 3, 9), ("c", 2, 5), ("b", 2, 5), ("a", 2, 7), ("e", 1, 9)]
            .map(|(name, number, created)| revision(name, number, created, "{}"));
        sort_oldest_first(&mut all);
        assert_eq!(names(&all), ["e", "b", "c", "a", "d"]);
        assert_eq!((next_revision(&all), next_revision(&[])), (4, 1));
    }

    #[test]
    fn the_oldest_unused_revisions_are_deleted_first() {
        let all: Vec<_> =
            (1..=5).map(|number| revision(&number.to_string(), number, 0, "{}")).collect();
        for (used, counting, limit, gone) in [
            ("", Limit::Unused, 10, vec![]),
            ("", Limit::Unused, 5, vec![]),
            ("", Limit::Unused, 2, vec!["1", "2", "3"]),
            ("15", Limit::Unused, 2, vec!["2"]),
            ("15", Limit::Unused, 0, vec!["2", "3", "4"]),
            ("15", Limit::All, 2, vec!["2", "3", "4"]),
            ("15", Limit::All, 4, vec!["2"]),
            ("12345", Limit::All, 0, vec![]),
            ("", Limit::All, -1, vec![]),
        ] {
            let is_used = |revision: &ControllerRevision| used.contains(&*revision.meta.name);
            let found = beyond_limit(&all, is_used, counting, limit);
            assert_eq!(names(&found), gone, "{used} {counting:?} {limit}");
        }
    }

    #[test]
    fn a_revision_that_another_version_wrote_is_equivalent() {
        let mut template = json!({"spec": {}});
        complete_pod_template(&mut template);
        let template = Template::from_value(&template).unwrap();
        let set = Meta { name: "s".into(), ..Meta::default() };
        let new = NewRevision::of_stateful_set::<StatefulSet>(&set, &template, 4, 0).unwrap();
        let data = new.data.get().to_owned();
        let unknown = data.replace(r#""spec":{"containers""#, r#""spec":{"x":1,"containers""#);
        let older = data.replace(r#""restartPolicy":"Always","#, "");
        assert!(unknown != data && older != data);
        let all = [&data, "{}", &data, &unknown, &older]
            .iter()
            .enumerate()
            .map(|(at, data)| revision(&at.to_string(), at as i64, 0, data))
            .collect::<Vec<_>>();
        let equal: Vec<bool> = all.iter().map(|known| new.data() == known.data.as_str()).collect();
        assert_eq!(equal, [true, false, true, false, false]);
        assert_eq!(
            all.iter().map(|r| new.is_equivalent(r)).collect::<Vec<_>>(),
            [true, false, true, true, true]
        );
        let long = revision_name(&"n".repeat(300), "h");
        assert_eq!((long.len(), long.ends_with("n-h")), (225, true));
        let whole = serde_json::to_string(&Whole::new(&all[1])).unwrap();
        assert!(whole.contains(r#""data":{},"revision":1"#), "{whole}");
    }
}
