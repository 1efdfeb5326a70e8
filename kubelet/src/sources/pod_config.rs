//! Merges the pods of all sources into changes, on one channel.
//! Upstream: `pkg/kubelet/config.PodConfig`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use async_channel::{Receiver, Sender};
use async_lock::Mutex;
use kube_controller_manager::clock::SharedClock;

use crate::pod::{CONFIG_MIRROR, CONFIG_SEEN, CONFIG_SOURCE, Pod, PodExt, Uid, annotations_mut};

/// The changes that wait for the sync loop.
const QUEUED: usize = 50;

/// A source of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    File,
    Http,
    Api,
}

impl Source {
    /// Returns the name in the annotation `kubernetes.io/config.source`.
    pub fn name(self) -> &'static str {
        match self {
            Source::File => "file",
            Source::Http => "http",
            Source::Api => "api",
        }
    }
}

/// What has happened to pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Add,
    Update,
    /// The API server asks for a graceful deletion.
    Delete,
    Remove,
    /// Only the status at the source differs.
    Reconcile,
}

/// A change of some pods of one source. Upstream: `kubetypes.PodUpdate`.
#[derive(Clone, Debug, PartialEq)]
pub struct PodUpdate {
    pub op: Op,
    pub source: Source,
    pub pods: Vec<Arc<Pod>>,
}

/// The pods of all sources. Cheap to clone.
#[derive(Clone)]
pub struct PodConfig {
    shared: Arc<Shared>,
}

struct Shared {
    storage: Mutex<Storage>,
    clock: SharedClock,
    updates: Sender<PodUpdate>,
}

impl PodConfig {
    /// Creates the configuration of no sources yet. The receiver gets the changes of all sources in
    /// order.
    pub fn new(clock: SharedClock) -> (PodConfig, Receiver<PodUpdate>) {
        let (updates, receiver) = async_channel::bounded(QUEUED);
        let shared = Shared { storage: Mutex::default(), clock, updates };
        (PodConfig { shared: Arc::new(shared) }, receiver)
    }

    /// Sets the pods of a source. Waits while the sync loop has many changes to read.
    pub async fn set(&self, source: Source, pods: Vec<Arc<Pod>>) {
        let mut storage = self.shared.storage.lock().await;
        let now = self.shared.clock.now().to_string();
        for update in storage.merge(source, pods, &now) {
            // Closed only when the kubelet stops.
            if self.shared.updates.send(update).await.is_err() {
                return;
            }
        }
    }
}

/// The last pods of each source. Upstream: `podStorage`.
#[derive(Default)]
struct Storage {
    pods: BTreeMap<Source, HashMap<Uid, Arc<Pod>>>,
}

impl Storage {
    /// Replaces the pods of a source, and returns what has changed, a list for each kind of change.
    /// `now`: for the annotation of pods that are seen first.
    fn merge(&mut self, source: Source, pods: Vec<Arc<Pod>>, now: &str) -> Vec<PodUpdate> {
        let is_first = !self.pods.contains_key(&source);
        let mut old = self.pods.remove(&source).unwrap_or_default();
        let (mut new, mut names) = (HashMap::new(), BTreeSet::new());
        let mut changed: [(Op, Vec<Arc<Pod>>); 5] =
            [Op::Remove, Op::Add, Op::Update, Op::Delete, Op::Reconcile].map(|op| (op, Vec::new()));
        let mut add = |op: Op, pod: &Arc<Pod>| {
            let list = changed.iter_mut().find(|(listed, _)| *listed == op);
            list.expect("all are listed").1.push(pod.clone());
        };
        for mut pod in pods {
            if !names.insert(pod.full_name()) {
                let (name, source) = (pod.display_name(), source.name());
                log::warn!("pod {name} from {source} is ignored: its name is taken");
                continue;
            }
            let Some(uid) = Uid::of(&pod) else {
                let (name, uid, source) = (pod.display_name(), &pod.metadata.uid, source.name());
                log::warn!("pod {name} from {source} is ignored: its uid {uid:?} is no plain name");
                continue;
            };
            let existing = old.remove(&uid);
            let op = existing.as_deref().map(|existing| difference(existing, &pod));
            let seen =
                existing.as_deref().and_then(|pod| pod.annotation(CONFIG_SEEN)).unwrap_or(now);
            let annotations = annotations_mut(Arc::make_mut(&mut pod));
            annotations.insert(CONFIG_SOURCE.to_owned(), source.name().to_owned());
            annotations.insert(CONFIG_SEEN.to_owned(), seen.to_owned());
            // `Some(None)`: nothing has changed.
            match op {
                None => add(Op::Add, &pod),
                Some(Some(op)) => add(op, &pod),
                Some(None) => {}
            }
            new.insert(uid, pod);
        }
        for pod in old.values() {
            add(Op::Remove, pod);
        }
        self.pods.insert(source, new);
        let has_new = changed
            .iter()
            .any(|(op, pods)| *op != Op::Remove && *op != Op::Reconcile && !pods.is_empty());
        changed
            .into_iter()
            // The first read of a source is announced even when it has no pods.
            .filter(|(op, pods)| !pods.is_empty() || *op == Op::Add && is_first && !has_new)
            .map(|(op, pods)| PodUpdate { op, source, pods })
            .collect()
    }
}

/// Returns the kind of change that a known pod's new state is; `None`: nothing has changed.
/// Upstream: `checkAndUpdatePod`.
fn difference(existing: &Pod, new: &Pod) -> Option<Op> {
    let (old_meta, meta) = (&existing.metadata, &new.metadata);
    let is_same = existing.spec == new.spec
        && old_meta.labels == meta.labels
        && old_meta.deletion_timestamp == meta.deletion_timestamp
        && old_meta.deletion_grace_period_seconds == meta.deletion_grace_period_seconds
        && source_annotations(existing).eq(source_annotations(new));
    match is_same {
        true => (existing.status != new.status).then_some(Op::Reconcile),
        false if meta.deletion_timestamp.is_some() => Some(Op::Delete),
        false => Some(Op::Update),
    }
}

/// Returns the annotations without those that the kubelet adds. Upstream: `isLocalAnnotationKey`.
fn source_annotations(pod: &Pod) -> impl Iterator<Item = (&String, &String)> {
    pod.metadata
        .annotations
        .iter()
        .flatten()
        .filter(|(key, _)| ![CONFIG_SOURCE, CONFIG_MIRROR, CONFIG_SEEN].contains(&key.as_str()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, uid: &str, more: Value) -> Arc<Pod> {
        let mut pod = json!({"metadata": {"name": name, "namespace": "default", "uid": uid}});
        for (key, value) in more.as_object().into_iter().flatten() {
            pod[key] = value.clone();
        }
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    fn ops(updates: &[PodUpdate]) -> Vec<(Op, Vec<&str>)> {
        updates
            .iter()
            .map(|update| {
                let uids = update.pods.iter();
                (update.op, uids.filter_map(|pod| pod.metadata.uid.as_deref()).collect())
            })
            .collect()
    }

    #[test]
    fn states_become_changes() {
        let mut storage = Storage::default();
        let mut merge = |pods| storage.merge(Source::File, pods, "now");
        let a = pod("a", "1", json!({}));
        assert_eq!(ops(&merge(vec![a.clone()])), [(Op::Add, vec!["1"])]);
        assert_eq!(ops(&merge(vec![a.clone()])), []);
        let labelled = pod("a", "1", json!({"spec": {"hostname": "x", "containers": []}}));
        assert_eq!(ops(&merge(vec![labelled.clone()])), [(Op::Update, vec!["1"])]);
        let mut with_status = labelled.clone();
        Arc::make_mut(&mut with_status).status.get_or_insert_default().phase = Some("X".into());
        assert_eq!(ops(&merge(vec![with_status])), [(Op::Reconcile, vec!["1"])]);
        let mut deleted = labelled.clone();
        Arc::make_mut(&mut deleted).metadata.deletion_grace_period_seconds = Some(1);
        Arc::make_mut(&mut deleted).metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time");
        assert_eq!(ops(&merge(vec![deleted])), [(Op::Delete, vec!["1"])]);
        let b = pod("a", "2", json!({}));
        let changes = merge(vec![b]);
        assert_eq!(ops(&changes), [(Op::Remove, vec!["1"]), (Op::Add, vec!["2"])]);
        assert_eq!(ops(&merge(vec![])), [(Op::Remove, vec!["2"])]);
    }

    #[test]
    fn first_state_is_announced_when_it_is_empty() {
        let mut storage = Storage::default();
        assert_eq!(ops(&storage.merge(Source::File, vec![], "now")), [(Op::Add, vec![])]);
        assert_eq!(ops(&storage.merge(Source::File, vec![], "now")), []);
        assert_eq!(ops(&storage.merge(Source::Http, vec![], "now")), [(Op::Add, vec![])]);
    }

    #[test]
    fn source_and_first_sight_are_annotated() {
        let mut storage = Storage::default();
        let first = storage.merge(Source::Http, vec![pod("a", "1", json!({}))], "one");
        let seen = &first[0].pods[0];
        assert_eq!(seen.annotation(CONFIG_SOURCE), Some("http"));
        assert_eq!(seen.annotation(CONFIG_SEEN), Some("one"));
        let changed = pod("a", "1", json!({"spec": {"hostname": "x", "containers": []}}));
        let second = storage.merge(Source::Http, vec![changed], "two");
        assert_eq!(second[0].pods[0].annotation(CONFIG_SEEN), Some("one"));
    }

    #[test]
    fn pods_whose_uid_is_no_name_of_a_folder_are_ignored() {
        let mut storage = Storage::default();
        let uids = ["..", "a/b", ".", ""];
        let pods = uids.iter().map(|uid| pod(&format!("of-{uid}"), uid, json!({})));
        let pods = pods.chain([pod("valid", "1", json!({}))]).collect();
        assert_eq!(ops(&storage.merge(Source::Api, pods, "now")), [(Op::Add, vec!["1"])]);
    }

    #[test]
    fn sources_are_independent_and_names_unique_in_each() {
        let mut storage = Storage::default();
        let pods = vec![pod("a", "1", json!({})), pod("a", "2", json!({}))];
        assert_eq!(ops(&storage.merge(Source::File, pods, "now")), [(Op::Add, vec!["1"])]);
        let other = vec![pod("a", "3", json!({}))];
        assert_eq!(ops(&storage.merge(Source::Http, other, "now")), [(Op::Add, vec!["3"])]);
    }
}
