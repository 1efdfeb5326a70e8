//! Creates and deletes pods of a controller, with the events about that.
//! Upstream: `controller.RealPodControl`.

use std::sync::Arc;
use std::time::Duration;

use crate::cache::Lister;
use crate::client::{self, Client, Delete, Dynamic};
use crate::clock::SharedClock;
use crate::controllers::Error;
use crate::controllers::workloads::consistency::Consistency;
use crate::controllers::workloads::creations::{Creations, PodOwner, ownership_changes};
use crate::controllers::workloads::new_pod::{EncodedPod, NewPodMeta};
use crate::events::Recorder;
use crate::objects::{Meta, Object, ObjectKey, Pod, Resource};

/// The delays before repeats of a delete whose outcome is unknown: a server that restarts may be
/// back by then.
const DELETE_PAUSES: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_millis(400), Duration::from_millis(1600)];

/// Creates and deletes pods on behalf of owners of any kind, and records events about the owner.
/// Cheap to clone.
#[derive(Clone)]
pub struct PodControl {
    client: Client,
    recorder: Recorder,
    clock: SharedClock,
    written: Option<Arc<Consistency>>,
    creations: Arc<Creations>,
}

impl PodControl {
    pub fn new(client: Client, recorder: Recorder, clock: SharedClock) -> PodControl {
        let creations = Arc::new(Creations::new(clock.clone()));
        PodControl { client, recorder, clock, written: None, creations }
    }

    /// Returns the record of owners that have to wait before their next creation.
    pub fn creations(&self) -> &Arc<Creations> {
        &self.creations
    }

    /// Records each write of a pod in `consistency`, under its owner. Upstream: `OnWrite`.
    pub fn recording(mut self, consistency: &Arc<Consistency>) -> PodControl {
        self.written = Some(consistency.clone());
        self
    }

    /// Creates a pod. Refuses one without labels, those of its controller included.
    /// Events: `SuccessfulCreate`, `FailedCreate`; no event for a refused pod, or when the
    /// namespace is terminating.
    ///
    /// # Errors
    /// Also when the pod was created and `owner` does not recognise it, with
    /// [`Error::Wait`]; the next creation then has to wait: see [`Creations`].
    pub async fn create<O: PodOwner>(&self, owner: &O, pod: &EncodedPod) -> Result<(), Error> {
        self.create_on(owner, pod, None).await
    }

    /// Creates a pod as [`Self::create`] does. `node`: the one that the pod names, without which
    /// `owner` does not recognise it.
    pub async fn create_on<O: PodOwner>(
        &self,
        owner: &O,
        pod: &EncodedPod,
        node: Option<&str>,
    ) -> Result<(), Error> {
        if pod.metadata.labels.is_empty() {
            return Err(Error::other("unable to create pods, no labels"));
        }
        let (meta, pods) = (owner.meta(), self.client.resource(&Pod::RESOURCE));
        let dry_run = || async {
            let sent = send(owner, pods.clone().dry_run(), pod, node).await;
            sent.map(|(_, changes)| changes)
        };
        let permit = self.creations.allow(meta, dry_run).await?;
        match send(owner, pods, pod, node).await {
            Ok((created, changes)) => {
                self.record_write(meta, created.resource_version);
                log::debug!("{}: created pod {}", meta.key(), created.name);
                let message = format!("Created pod: {}", created.name);
                self.recorder.normal(owner, "SuccessfulCreate", message);
                let named = ("Pod", &*created.name);
                self.creations.record_created(owner, permit, &self.recorder, named, &changes)
            }
            Err(error) => {
                self.record_unknown_outcome(meta, &error);
                let terminating = error.is_namespace_terminating();
                let error = Error::from(error);
                if !terminating {
                    let message = format!("Error creating: {}", error.message());
                    self.recorder.warning(owner, "FailedCreate", message);
                }
                Err(error)
            }
        }
    }

    /// Deletes this pod, but not another one that has its name by now. [`is_gone`] recognizes the
    /// error that means there is nothing to delete, which records no event. Events:
    /// `SuccessfulDelete`, `FailedDelete`.
    pub async fn delete<O: Object + Resource>(&self, owner: &O, pod: &Pod) -> Result<(), Error> {
        let (key, uid) = (pod.meta.key(), pod.meta.uid.clone());
        log::debug!("{}: deleting pod {}", owner.meta().key(), key.name);
        match self.surely_delete(&key, Delete::new().uid(uid)).await {
            Ok(()) => {
                let message = format!("Deleted pod: {}", key.name);
                self.recorder.normal(owner, "SuccessfulDelete", message);
                Ok(())
            }
            Err(error) if error.is_not_found() || error.is_of_another_uid() => Err(error.into()),
            Err(error) => {
                self.record_unknown_outcome(owner.meta(), &error);
                let error = Error::from(error);
                let message = format!("Error deleting: {}", error.message());
                self.recorder.warning(owner, "FailedDelete", message);
                Err(Error::during("unable to delete pods", error))
            }
        }
    }

    /// Deletes the pod `key`, and repeats the request while its answer is lost: an owner that does
    /// not know the result could delete another pod as well, and would have one too few.
    async fn surely_delete(&self, key: &ObjectKey, delete: Delete) -> client::Result<()> {
        let mut answer = self.client.delete::<Pod>(key, delete.clone()).await;
        for pause in DELETE_PAUSES {
            match answer {
                // An internal error is not repeated: a webhook that fails would fail again.
                Err(error) if error.is_unsure() && !error.is_internal() => {
                    self.clock.sleep(pause).await;
                }
                known => return known,
            }
            answer = match self.client.delete::<Pod>(key, delete.clone()).await {
                // The delete before it succeeded.
                Err(error) if error.is_not_found() || error.is_of_another_uid() => Ok(()),
                again => again,
            };
        }
        answer
    }

    /// Records a failed write of a pod of `owner`, if `error` leaves open whether it was carried
    /// out.
    fn record_unknown_outcome(&self, owner: &Meta, error: &client::Error) {
        if let Some(consistency) = self.written.as_ref().filter(|_| error.is_unsure()) {
            consistency.record_unknown_outcome(&owner.key(), &owner.uid, &Pod::RESOURCE);
        }
    }

    /// Records that a pod of `owner` was written by other code and has this version.
    pub fn record_write(&self, owner: &Meta, version: u64) {
        if let Some(consistency) = &self.written {
            consistency.record_write(&owner.key(), &owner.uid, &Pod::RESOURCE, version);
        }
    }
}

/// Creates `pod` through `pods`, which may make a dry run. Returns its metadata, and why `owner`
/// does not recognise it, also as one for `node`; nothing if it does.
async fn send<O: PodOwner>(
    owner: &O,
    pods: Dynamic,
    pod: &EncodedPod,
    node: Option<&str>,
) -> client::Result<(Meta, Vec<String>)> {
    // The metadata are enough: the pod itself arrives by the watch.
    let namespace = &owner.meta().namespace;
    let (created, of_node) = match node {
        None => (pods.create_for_whole_metadata(namespace, &pod.body).await?.meta, None),
        Some(node) => {
            let created: Pod = pods.create(namespace, &pod.body).await?;
            let change = node_change(&created, node);
            (created.meta, change)
        }
    };
    let mut changes = changes(owner, &pod.metadata, &created);
    changes.extend(of_node);
    Ok((created, changes))
}

/// Returns why `owner` does not recognise a pod that it sent with `sent`; nothing if it does.
pub fn changes<O: PodOwner>(owner: &O, sent: &NewPodMeta, created: &Meta) -> Vec<String> {
    let mut changes = ownership_changes(owner.meta(), owner.selector(), &sent.labels, created);
    if let Some(name) = O::FINALIZER
        && sent.finalizers.iter().any(|finalizer| finalizer == name)
        && !created.has_finalizer(name)
    {
        changes.push(format!("finalizer {name:?} is missing"));
    }
    if let Some(name) = O::ANNOTATION
        && let Some(value) = sent.annotations.get(name)
    {
        match created.annotations.get(name) {
            Some(now) if now == value => {}
            Some(now) => changes.push(format!("annotation {name:?} is {now:?}")),
            None => changes.push(format!("annotation {name:?} is missing")),
        }
    }
    changes
}

/// Returns why a pod that was sent for `node` does not count as one for it; `None` if it does.
fn node_change(created: &Pod, node: &str) -> Option<String> {
    match created.target_node() {
        Some(found) if *found == *node => None,
        Some(found) => Some(format!("it is for node {found:?}")),
        None => Some("its affinity to its node is missing".to_owned()),
    }
}

/// Returns whether a failed delete found no such pod: the name is free, or belongs to another uid.
pub fn is_gone(error: &Error) -> bool {
    error.api().is_some_and(|error| error.is_not_found() || error.is_of_another_uid())
}

/// Returns whether a request failed because there is no such object.
pub fn is_not_found(error: &Error) -> bool {
    error.api().is_some_and(|error| error.is_not_found())
}

/// Returns whether the cache shows that `pod` is being deleted, or does not have it any more.
pub fn is_being_deleted_in_cache(pod: &Pod, cached: &Lister<Pod>) -> bool {
    let now = cached.get(&pod.meta.key()).filter(|now| now.meta.uid == pod.meta.uid);
    now.is_none_or(|now| now.meta.is_being_deleted())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::{from_value, json};

    use super::*;
    use crate::client::testing::{answering, forgetful};
    use crate::clock::{Clock, FakeClock};
    use crate::controllers::workloads::new_pod::NewPod;
    use crate::events::testing::{Heard, NoSink};
    use crate::objects::{Job, ReplicaSet, Template, Timestamp};
    use futures_lite::FutureExt;
    use futures_lite::future::{block_on, pending, yield_now};

    /// Labels that the controller adds count, so it is the pod that is checked, not the template.
    #[test]
    fn a_pod_without_labels_is_refused_without_a_request_or_an_event() {
        let (client, requests) = block_on(forgetful(0));
        let heard = Arc::new(Heard::default());
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let control = PodControl::new(client, Recorder::to_sink(heard.clone()), clock);
        let meta = Meta { namespace: "ns".into(), ..Meta::default() };
        let set = ReplicaSet { meta, ..ReplicaSet::default() };
        let mut pod = NewPod::new::<ReplicaSet>(&set.meta, &Template::default()).unwrap();
        let refused = block_on(control.create(&set, &pod.clone().encode().unwrap())).unwrap_err();
        assert_eq!(refused.to_string(), "unable to create pods, no labels");
        assert_eq!((requests.load(Ordering::SeqCst), heard.take().len()), (0, 0));
        pod.metadata.set_label("a", "b");
        block_on(control.create(&set, &pod.encode().unwrap())).unwrap_err();
        assert_eq!((requests.load(Ordering::SeqCst), heard.take().len()), (1, 1));
    }

    #[test]
    fn a_pod_that_comes_back_changed_delays_the_next() {
        let requests = Arc::new(AtomicUsize::new(0));
        let count = requests.clone();
        let client = block_on(answering(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            let owner =
                json!({ "kind": "ReplicaSet", "name": "s", "uid": "u", "controller": true });
            let meta = json!({ "name": "s-1", "resourceVersion": "7", "ownerReferences": [owner] });
            (201, json!({ "metadata": meta }))
        }));
        let heard = Arc::new(Heard::default());
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let control = PodControl::new(client, Recorder::to_sink(heard.clone()), clock.clone());
        let set: ReplicaSet = from_value(json!({
            "metadata": { "namespace": "ns", "name": "s", "uid": "u" },
            "spec": {
                "selector": { "matchLabels": { "a": "b" } },
                "template": { "metadata": { "labels": { "a": "b" } } },
            },
        }))
        .unwrap();
        let pod =
            NewPod::new::<ReplicaSet>(&set.meta, &set.spec.template).unwrap().encode().unwrap();
        let create = || block_on(control.create(&set, &pod)).unwrap_err().wait();
        assert_eq!(create(), Some(Duration::from_secs(1)));
        let said = heard.take();
        assert_eq!((said.len(), &*said[0]), (2, "Normal SuccessfulCreate Created pod: s-1"));
        let what = "does not recognise it: label \"a\" is missing;";
        assert!(said[1].starts_with("Warning CreatedObjectChanged"), "{said:?}");
        assert!(said[1].contains(what), "{said:?}");
        assert_eq!(create(), Some(Duration::from_secs(1)));
        assert_eq!((requests.load(Ordering::SeqCst), heard.take().len()), (1, 0));
        clock.advance(Duration::from_secs(1));
        assert_eq!(create(), Some(Duration::from_secs(2)));
        assert_eq!(requests.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_pod_that_was_sent_for_a_node_names_it() {
        let pinned = |node: &str| {
            json!({ "affinity": { "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
                    { "matchFields": [
                        { "key": "metadata.name", "operator": "In", "values": [node] }] }] },
            } } })
        };
        for (spec, expected) in [
            (pinned("n"), None),
            (json!({ "nodeName": "n" }), None),
            (pinned("m"), Some("it is for node \"m\"")),
            (json!({ "nodeName": "m" }), Some("it is for node \"m\"")),
            (json!({}), Some("its affinity to its node is missing")),
        ] {
            let pod: Pod = from_value(json!({ "spec": spec })).unwrap();
            assert_eq!(node_change(&pod, "n").as_deref(), expected, "{spec}");
        }
    }

    #[test]
    fn a_job_does_not_recognise_a_pod_without_its_marks() {
        let job: Job = from_value(json!({ "metadata": { "uid": "u" } })).unwrap();
        let mut pod = NewPod::new::<Job>(&job.meta, &Template::default()).unwrap();
        let (finalizer, index) = (Job::FINALIZER.unwrap(), Job::ANNOTATION.unwrap());
        pod.metadata.add_finalizer(finalizer);
        pod.metadata.set_annotation(index, "3");
        let owners = json!([{ "kind": "Job", "name": "j", "uid": "u", "controller": true }]);
        for (finalizers, annotations, expected) in [
            (json!([finalizer, "x/y"]), json!({ index: "3", "more": "" }), vec![]),
            (json!([]), json!({ index: "3" }), vec![format!("finalizer {finalizer:?} is missing")]),
            (
                json!([finalizer]),
                json!({ index: "4" }),
                vec![format!("annotation {index:?} is \"4\"")],
            ),
            (json!([finalizer]), json!({}), vec![format!("annotation {index:?} is missing")]),
        ] {
            let created: Meta = from_value(json!({
                "ownerReferences": owners, "finalizers": finalizers, "annotations": annotations,
            }))
            .unwrap();
            assert_eq!(changes(&job, &pod.metadata, &created), expected);
        }
    }

    #[test]
    fn a_delete_without_an_answer_is_repeated_after_a_pause() {
        const TICK: Duration = Duration::from_millis(1);
        let set = ReplicaSet::default();
        let meta = Meta { name: "a".into(), namespace: "ns".into(), ..Meta::default() };
        let pod = Pod { meta, ..Pod::default() };
        for (unanswered, pauses, tries) in
            [(1, &[100][..], 2), (2, &[100, 400], 3), (9, &[100, 400, 1600], 4)]
        {
            let clock = FakeClock::new(Timestamp::from_secs(0));
            let (client, heard) = block_on(forgetful(unanswered));
            let recorder = Recorder::to_sink(Arc::new(NoSink));
            let control = PodControl::new(client, recorder, clock.clone());
            let passing = async {
                for (before, pause) in pauses.iter().enumerate() {
                    while heard.load(Ordering::SeqCst) != before + 1 || clock.sleepers() == 0 {
                        yield_now().await;
                    }
                    clock.advance(Duration::from_millis(*pause) - TICK);
                    yield_now().await;
                    assert_eq!(clock.sleepers(), 1, "not so soon as {pause} ms");
                    clock.advance(TICK);
                }
                pending().await
            };
            let done = block_on(control.delete(&set, &pod).or(passing));
            assert_eq!(done.is_ok(), unanswered < tries, "{done:?}");
            assert_eq!(heard.load(Ordering::SeqCst), tries);
            let all = pauses.iter().copied().sum();
            assert_eq!(clock.monotonic(), Duration::from_millis(all));
        }
    }
}
