//! What the sources say of each pod, and its status here. Upstream: `pod.Manager`, the cache of
//! `status.Manager`, `reasonCache`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_channel::{Receiver, Sender};
use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::objects::Timestamp;
use parking_lot::Mutex;

use crate::images::Waiting;
use crate::objects;
use crate::pod::{Pod, PodExt, Uid};
use crate::sources::Source;
use crate::status::settle::{is_same, settle};
use crate::status::{Change, Report, mirror};

/// Why containers wait, by name.
pub(super) type WaitingReasons = HashMap<String, Waiting>;

/// The pods by their uids. While its lock is held, the lock of the dispatcher may be taken, but not
/// the other way round.
pub(super) struct PodStore {
    /// The sources that must have been read before unknown pods are ended.
    expected: BTreeSet<Source>,
    state: Mutex<State>,
    /// Gets what may have to be written to the API server.
    changes: OnceLock<Sender<Change>>,
}

#[derive(Default)]
struct State {
    /// The sources that have been read.
    seen: BTreeSet<Source>,
    records: BTreeMap<Uid, Record>,
    /// The mirror pods by full name, as the API server has them.
    mirrors: BTreeMap<String, Arc<Pod>>,
}

/// What was decided about a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Admission {
    /// Nothing yet.
    #[default]
    Open,
    /// It may run once there is room for it: that room is its own.
    Reserved,
    Admitted,
    /// It had ended before this kubelet knew it.
    Ended,
    /// It has failed without a start: its status says why, and nothing else.
    Rejected,
}

#[derive(Default)]
struct Record {
    /// `None`: no source has it any more.
    pod: Option<Arc<Pod>>,
    admission: Admission,
    /// The last one that this kubelet has computed.
    status: Option<Arc<core::PodStatus>>,
    /// When its running containers started, in microseconds since 1970, by their ids.
    starts: Vec<(String, i64)>,
    /// Grows with each change of the status. Upstream: `versionedPodStatus`.
    version: u64,
    /// Of a static pod: its status continues that of its mirror pod.
    continues_mirror: bool,
    waiting: WaitingReasons,
    /// When a source had it first, by the monotonic clock, until it runs.
    first_seen: Option<Duration>,
}

/// A pod's status, and the one before.
pub(super) struct StatusChange {
    pub(super) before: Option<Arc<core::PodStatus>>,
    pub(super) after: Arc<core::PodStatus>,
    /// The mirror pod may show another status, though it has not changed here.
    pub(super) differs_from_mirror: bool,
}

impl StatusChange {
    /// Returns a change by which the status stays as it is.
    fn none(status: &Arc<core::PodStatus>) -> StatusChange {
        StatusChange {
            before: Some(status.clone()),
            after: status.clone(),
            differs_from_mirror: false,
        }
    }
}

impl State {
    /// Returns the mirror pod that shows this definition of a static pod.
    fn mirror_of(&self, pod: &Pod) -> Option<&Arc<Pod>> {
        let mirror = self.mirrors.get(&pod.full_name())?;
        mirror::is_mirror_of(mirror, pod).then_some(mirror)
    }

    /// Returns the status that a kubelet has written to a static pod's mirror pod. A status without
    /// conditions is that of a new mirror pod.
    fn written_mirror_status(&self, pod: &Pod) -> Option<&core::PodStatus> {
        let status = self.mirror_of(pod)?.status.as_ref();
        status.filter(|status| status.conditions.is_some())
    }
}

impl PodStore {
    pub(super) fn new(expected: BTreeSet<Source>) -> PodStore {
        PodStore { expected, state: Mutex::default(), changes: OnceLock::new() }
    }

    /// Records that the source has been read.
    pub(super) fn set_seen(&self, source: Source) {
        self.state.lock().seen.insert(source);
    }

    /// Returns whether the source has been read.
    pub(super) fn has_seen(&self, source: Source) -> bool {
        self.state.lock().seen.contains(&source)
    }

    /// Returns whether all sources have been read.
    pub(super) fn has_seen_all(&self) -> bool {
        self.expected.is_subset(&self.state.lock().seen)
    }

    /// Records that a source has the pod, with this definition.
    pub(super) fn set_pod(&self, pod: &Arc<Pod>) {
        self.state.lock().records.entry(pod.uid()).or_default().pod = Some(pod.clone());
    }

    /// Records that the pod may run once others have made room for it.
    pub(super) fn set_reserved(&self, pod: &Pod) {
        self.admit(pod, Admission::Reserved);
    }

    /// Records that the pod may run, unless it has ended.
    pub(super) fn set_admitted(&self, pod: &Pod) {
        self.admit(pod, Admission::Admitted);
    }

    /// Records what was decided about a pod. One that has ended by its status counts as ended.
    fn admit(&self, pod: &Pod, admission: Admission) {
        let mut state = self.state.lock();
        let record = state.records.entry(pod.uid()).or_default();
        if record.admission == Admission::Rejected {
            // A source has added it again, and it fits now: it needs no status of a rejected pod.
            record.status = None;
        }
        record.admission = match pod.has_ended() {
            true => Admission::Ended,
            false => admission,
        };
    }

    /// Records that the pod may not run.
    pub(super) fn set_rejected(&self, pod: &Pod, mut status: core::PodStatus, now: Timestamp) {
        let mut state = self.state.lock();
        let record = state.records.entry(pod.uid()).or_default();
        let old = record.status.as_deref().or(pod.status.as_ref());
        settle(pod, &mut status, old, now);
        (record.admission, record.status) = (Admission::Rejected, Some(Arc::new(status)));
        record.version += 1;
    }

    /// Records that no source has the pod any more.
    pub(super) fn remove_pod(&self, uid: &str) {
        if let Some(record) = self.state.lock().records.get_mut(uid) {
            record.pod = None;
            record.first_seen = None;
        }
    }

    /// Forgets pods that no source has, except those that are `known` elsewhere.
    pub(super) fn retain(&self, known: impl Fn(&str) -> bool) {
        self.state.lock().records.retain(|uid, record| record.pod.is_some() || known(uid));
    }

    /// Returns the pod, if a source has it.
    pub(super) fn pod(&self, uid: &str) -> Option<Arc<Pod>> {
        self.state.lock().records.get(uid)?.pod.clone()
    }

    /// Finds the pod of a name that a source has, with its last status here. Of several, one that
    /// is not being deleted is preferred.
    pub(super) fn named(
        &self,
        namespace: &str,
        name: &str,
    ) -> Option<(Arc<Pod>, Option<Arc<core::PodStatus>>)> {
        let state = self.state.lock();
        let records = state.records.values();
        let named = records.filter_map(|record| {
            let pod = record.pod.as_ref()?;
            let is_it = pod.name() == name && pod.namespace() == namespace;
            is_it.then(|| (pod.clone(), record.status.clone()))
        });
        named.min_by_key(|(pod, _)| pod.metadata.deletion_timestamp.is_some())
    }

    /// Returns whether a source has the pod.
    pub(super) fn contains(&self, uid: &str) -> bool {
        self.pod(uid).is_some()
    }

    /// Returns the pods of all sources.
    pub(super) fn pods(&self) -> Vec<Arc<Pod>> {
        self.state.lock().records.values().filter_map(|record| record.pod.clone()).collect()
    }

    /// Returns the pods of all sources that were admitted, and those for which room is being made.
    pub(super) fn admitted_pods(&self) -> Vec<Arc<Pod>> {
        let state = self.state.lock();
        let records = state.records.values();
        let holds = [Admission::Reserved, Admission::Admitted];
        let records = records.filter(|record| holds.contains(&record.admission));
        records.filter_map(|record| record.pod.clone()).collect()
    }

    /// Returns the pod, if a source has it and its admission was decided, whether it may run or
    /// not.
    pub(super) fn decided_pod(&self, uid: &str) -> Option<Arc<Pod>> {
        let state = self.state.lock();
        let record = state.records.get(uid);
        let is_open =
            |record: &&Record| [Admission::Open, Admission::Reserved].contains(&record.admission);
        record.filter(|record| !is_open(record))?.pod.clone()
    }

    /// Returns the uids of the pods of all sources.
    pub(super) fn uids(&self) -> BTreeSet<Uid> {
        let state = self.state.lock();
        let records = state.records.iter().filter(|(_, record)| record.pod.is_some());
        records.map(|(uid, _)| uid.clone()).collect()
    }

    /// Lists the static pods that refer to any of these objects.
    pub(super) fn users_of(&self, objects: &BTreeSet<objects::Key>) -> Vec<Uid> {
        let pods = self.pods();
        let uses = |pod: &&Arc<Pod>| !objects::references(pod).is_disjoint(objects);
        pods.iter().filter(|pod| pod.is_static()).filter(uses).map(|pod| pod.uid()).collect()
    }

    /// Lists the pods of all sources with their statuses.
    pub(super) fn with_statuses(&self) -> Vec<Pod> {
        let state = self.state.lock();
        let pods = state.records.values().filter_map(|record| {
            let mut pod = Pod::clone(record.pod.as_ref()?);
            if let Some(status) = &record.status {
                pod.status = Some(core::PodStatus::clone(status));
            }
            Some(pod)
        });
        pods.collect()
    }

    /// Returns when the running containers of all pods started, in microseconds since 1970, by
    /// their ids: finer than in statuses.
    pub(super) fn starts(&self) -> HashMap<String, i64> {
        let state = self.state.lock();
        state.records.values().flat_map(|record| record.starts.iter().cloned()).collect()
    }

    /// Returns the last status that this kubelet has computed.
    pub(super) fn status(&self, uid: &str) -> Option<Arc<core::PodStatus>> {
        self.state.lock().records.get(uid)?.status.clone()
    }

    /// Returns the status that the API server has; of a static pod, that of its mirror pod.
    pub(super) fn reported_status(&self, pod: &Pod) -> Option<core::PodStatus> {
        match pod.is_static() {
            true => self.state.lock().written_mirror_status(pod).cloned(),
            false => pod.status.clone(),
        }
    }

    /// Returns the status of a static pod's mirror pod, if the pod's own status does not continue
    /// it yet. The pod may have no status: the probes of its first sync start before there is one.
    pub(super) fn late_report(&self, pod: &Pod) -> Option<core::PodStatus> {
        let state = self.state.lock();
        let record = state.records.get(&pod.uid())?;
        if record.continues_mirror {
            return None;
        }
        state.written_mirror_status(pod).cloned()
    }

    /// Takes the start time and the times of conditions that still hold into the last status of a
    /// static pod from its mirror pod, which was seen after it. `None`: they were taken already, one
    /// of the two is missing, or the pod was rejected, whose status stays.
    pub(super) fn continue_mirror(&self, pod: &Pod, now: Timestamp) -> Option<StatusChange> {
        let mut state = self.state.lock();
        let mirrored = state.written_mirror_status(pod).cloned()?;
        let record = state.records.get_mut(&pod.uid())?;
        if record.continues_mirror || record.admission == Admission::Rejected {
            return None;
        }
        let before = record.status.clone()?;
        let mut after = core::PodStatus::clone(&before);
        settle(pod, &mut after, Some(&mirrored), now);
        let after = Arc::new(after);
        (record.status, record.continues_mirror) = (Some(after.clone()), true);
        record.version += 1;
        Some(StatusChange { before: Some(before), after, differs_from_mirror: true })
    }

    /// Computes a pod's status with `compute`, and stores it if it says something else than the
    /// last one. `compute` gets the last status (after a restart of the kubelet, the one that the
    /// API server has) and the reasons why containers wait. The status of a rejected pod stays.
    /// Upstream: `updateStatusInternal`.
    pub(super) fn update_status(
        &self,
        pod: &Pod,
        now: Timestamp,
        compute: impl FnOnce(Option<&core::PodStatus>, &WaitingReasons) -> core::PodStatus,
    ) -> StatusChange {
        let mut state = self.state.lock();
        let is_mirrored = state.written_mirror_status(pod).is_some();
        let mirrored = state.mirror_of(pod).and_then(|mirror| mirror.status.clone());
        let record = state.records.entry(pod.uid()).or_default();
        if let (Admission::Rejected, Some(status)) = (record.admission, &record.status) {
            return StatusChange::none(status);
        }
        let reported = || pod.status.clone().filter(|_| !pod.is_static()).map(Arc::new);
        let before = record.status.clone().or_else(reported);
        let mut after = compute(before.as_deref(), &record.waiting);
        record.starts = starts(&after);
        // The mirror pod may have been seen after the first status was computed.
        let is_late = is_mirrored && !record.continues_mirror;
        record.continues_mirror |= is_late;
        // The status that the new one continues.
        let (of_mirror, own) = (mirrored.as_ref(), before.as_deref());
        let old = if is_late { of_mirror.or(own) } else { own.or(of_mirror) };
        settle(pod, &mut after, old, now);
        let last = record.status.as_ref().filter(|_| !is_late);
        if let Some(last) = last.filter(|last| is_same(last, &after)) {
            return StatusChange::none(last);
        }
        let after = Arc::new(after);
        record.status = Some(after.clone());
        record.version += 1;
        StatusChange { before, after, differs_from_mirror: is_late }
    }

    /// Sets why the containers of a pod wait.
    pub(super) fn set_waiting(&self, uid: Uid, waiting: WaitingReasons) {
        self.state.lock().records.entry(uid).or_default().waiting = waiting;
    }

    /// Sets when a source had the pod first.
    pub(super) fn set_first_seen(&self, uid: Uid, now: Duration) {
        self.state.lock().records.entry(uid).or_default().first_seen = Some(now);
    }

    /// Returns when a source had the pod first; `None`: it has run since, or no source has it.
    pub(super) fn first_seen(&self, uid: &str) -> Option<Duration> {
        self.state.lock().records.get(uid)?.first_seen
    }

    /// Records that the pod runs. Returns when a source had it first, the first time.
    pub(super) fn take_first_seen(&self, uid: &str) -> Option<Duration> {
        self.state.lock().records.get_mut(uid)?.first_seen.take()
    }

    /// Records that the API server has this mirror pod, or does not have it any more.
    pub(super) fn set_mirror(&self, mirror: &Arc<Pod>, is_there: bool) {
        let mirrors = &mut self.state.lock().mirrors;
        let name = mirror.full_name();
        if is_there {
            mirrors.insert(name, mirror.clone());
        } else if mirrors.get(&name).is_some_and(|known| known.uid() == mirror.uid()) {
            mirrors.remove(&name);
        }
    }

    /// Returns the mirror pod of this full name.
    pub(super) fn mirror(&self, full_name: &str) -> Option<Arc<Pod>> {
        self.state.lock().mirrors.get(full_name).cloned()
    }

    /// Returns the full names of all mirror pods.
    pub(super) fn mirrors(&self) -> Vec<String> {
        self.state.lock().mirrors.keys().cloned().collect()
    }

    /// Returns the static pod of this full name that a source has.
    pub(super) fn static_pod(&self, full_name: &str) -> Option<Arc<Pod>> {
        let pods = self.pods().into_iter();
        pods.filter(|pod| pod.is_static()).find(|pod| pod.full_name() == full_name)
    }

    /// Returns what the API server is to know about a pod; `None`: no source has it, or nothing is
    /// known yet. The caller fills in whether the pod has ended.
    pub(super) fn report(&self, uid: &str) -> Option<Report> {
        let state = self.state.lock();
        let record = state.records.get(uid)?;
        let pod = record.pod.clone()?;
        let api = match pod.is_static() {
            true => state.mirror_of(&pod).cloned(),
            false => Some(pod.clone()),
        };
        Some(Report {
            api,
            status: record.status.clone()?,
            version: record.version,
            is_terminated: false,
            is_finished: false,
            pod,
        })
    }

    /// Returns the receiver of what may have to be written to the API server, from now on. Call it
    /// once.
    pub(super) fn changes(&self) -> Receiver<Change> {
        let (sender, receiver) = async_channel::unbounded();
        // A second receiver gets nothing.
        let _ = self.changes.set(sender);
        receiver
    }

    /// Announces that the pod's report may have changed.
    pub(super) fn notify(&self, pod: &Pod) {
        self.send(Change::Status(pod.uid()));
    }

    /// Announces that the mirror pod of this full name may have to change. Does nothing without an
    /// API server.
    pub(super) fn notify_mirror(&self, full_name: String) {
        self.send(Change::Mirror(full_name));
    }

    fn send(&self, change: Change) {
        if let Some(changes) = self.changes.get() {
            // Closed only when the kubelet stops.
            let _ = changes.try_send(change);
        }
    }
}

/// Returns when the running containers of a status started, in microseconds since 1970, by their
/// ids.
fn starts(status: &core::PodStatus) -> Vec<(String, i64)> {
    let lists = [
        &status.init_container_statuses,
        &status.container_statuses,
        &status.ephemeral_container_statuses,
    ];
    let all = lists.into_iter().flatten().flatten().filter_map(|status| {
        let running = status.state.as_ref()?.running.as_ref()?;
        let started = running.started_at.as_ref()?;
        Some((status.container_id.clone()?, started.0.as_microsecond()))
    });
    all.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pod::{CONFIG_HASH, CONFIG_MIRROR, CONFIG_SOURCE};

    fn pod(source: &str, phase: Value) -> Arc<Pod> {
        let pod = json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u",
                         "annotations": {CONFIG_SOURCE: source}},
            "status": {"phase": phase},
        });
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    fn status(phase: &str) -> core::PodStatus {
        core::PodStatus { phase: Some(phase.to_owned()), ..Default::default() }
    }

    fn phase(status: &core::PodStatus) -> Option<&str> {
        status.phase.as_deref()
    }

    /// The status in a static pod's manifest is ignored: no kubelet has observed it.
    #[test]
    fn status_continues_that_of_the_api_server() {
        let now = Timestamp::from_secs(0);
        for (source, expected) in [("api", Some("Running")), ("file", None)] {
            let store = PodStore::new(BTreeSet::new());
            let pod = pod(source, json!("Running"));
            store.set_pod(&pod);
            let change = store.update_status(&pod, now, |_, _| status("Succeeded"));
            assert_eq!(change.before.as_deref().and_then(phase), expected, "{source}");
            let change = store.update_status(&pod, now, |_, _| status("Failed"));
            assert_eq!(change.before.as_deref().and_then(phase), Some("Succeeded"));
            let shown = store.with_statuses()[0].status.clone().expect("a status");
            assert_eq!(phase(&shown), Some("Failed"));
        }
    }

    /// The API server may answer after a static pod's first sync.
    #[test]
    fn status_continues_that_of_a_mirror_pod_that_is_seen_late() {
        let pod = |mirror: &[(&str, &str)], status: Value| -> Arc<Pod> {
            let own = [(CONFIG_SOURCE, "file"), (CONFIG_HASH, "h")];
            let annotations: BTreeMap<_, _> = own.iter().chain(mirror).copied().collect();
            let metadata =
                json!({"name": "p", "namespace": "n", "uid": "u", "annotations": annotations});
            let pod = json!({"metadata": metadata, "status": status});
            Arc::new(serde_json::from_value(pod).expect("a pod"))
        };
        let ready = |status: &str| -> core::PodStatus {
            let condition = json!({"type": "Ready", "status": status});
            serde_json::from_value(json!({"conditions": [condition]})).expect("a status")
        };
        let store = PodStore::new(BTreeSet::new());
        let own = pod(&[], json!(null));
        store.set_pod(&own);
        let update = |seconds, status| {
            let now = Timestamp::from_secs(seconds);
            let change = store.update_status(&own, now, |_, _| ready(status));
            let times = change.after.conditions.iter().flatten();
            let time =
                times.filter_map(|one| Some(one.last_transition_time.as_ref()?.0.as_second()));
            (time.collect::<Vec<_>>(), change.differs_from_mirror)
        };
        assert_eq!(update(10, "False"), (vec![10], false));
        // It has been created, and shows nothing yet.
        let mirror = [(CONFIG_MIRROR, "h")];
        store.set_mirror(&pod(&mirror, json!({"phase": "Pending"})), true);
        assert!(store.late_report(&own).is_none());
        let at = "1970-01-01T00:00:01Z";
        let condition = json!({"type": "Ready", "status": "True", "lastTransitionTime": at});
        let reported = json!({"conditions": [condition], "startTime": "1970-01-01T00:00:00Z"});
        store.set_mirror(&pod(&[(CONFIG_MIRROR, "other")], reported.clone()), true);
        assert!(store.late_report(&own).is_none());
        let shown = pod(&mirror, reported);
        store.set_mirror(&shown, true);
        assert!(store.late_report(&own).is_some());
        assert_eq!(update(20, "True"), (vec![1], true));
        assert!(store.late_report(&own).is_none());
        assert_eq!(update(30, "True"), (vec![1], false));
        assert_eq!(update(40, "False"), (vec![40], false));
        // Its probes have started, but there is no status yet.
        let store = PodStore::new(BTreeSet::new());
        store.set_pod(&own);
        store.set_mirror(&shown, true);
        assert!(store.late_report(&own).is_some());
        let change = store.update_status(&own, Timestamp::from_secs(20), |_, _| ready("True"));
        assert!(change.differs_from_mirror);
        assert!(store.late_report(&own).is_none());
    }

    /// A sync may take long.
    #[test]
    fn last_status_continues_that_of_a_mirror_pod_without_another_sync() {
        let pod = |key: &str, status: Value| -> Arc<Pod> {
            let annotations = json!({CONFIG_SOURCE: "file", key: "h"});
            let metadata =
                json!({"name": "p", "namespace": "n", "uid": "u", "annotations": annotations});
            let pod = json!({"metadata": metadata, "status": status});
            Arc::new(serde_json::from_value(pod).expect("a pod"))
        };
        let conditions = |seconds: u8| {
            let time = format!("1970-01-01T00:00:0{seconds}Z");
            let condition = |kind: &str, status: &str| {
                let at = "lastTransitionTime";
                json!({"type": kind, "status": status, at: time})
            };
            json!({"conditions": [condition("Ready", "True"), condition("Initialized", "False")]})
        };
        let (store, own) = (PodStore::new(BTreeSet::new()), pod(CONFIG_HASH, json!(null)));
        store.set_pod(&own);
        let [first, second] = [5, 9].map(Timestamp::from_secs);
        let mut status: core::PodStatus = serde_json::from_value(conditions(0)).expect("a status");
        for condition in status.conditions.iter_mut().flatten() {
            condition.status = "True".to_owned();
        }
        store.set_mirror(&pod(CONFIG_MIRROR, conditions(1)), true);
        assert!(store.continue_mirror(&own, first).is_none(), "it has no status");
        store.set_mirror(&pod(CONFIG_MIRROR, json!({})), true);
        store.update_status(&own, first, |_, _| status);
        assert!(store.continue_mirror(&own, first).is_none(), "the mirror pod has no status");
        let version = store.report("u").expect("a report").version;
        store.set_mirror(&pod(CONFIG_MIRROR, conditions(1)), true);
        let change = store.continue_mirror(&own, second).expect("a change");
        assert!(change.differs_from_mirror);
        let time = |kind: &str| {
            let all = change.after.conditions.iter().flatten();
            let mut found = all.filter(|condition| condition.type_ == kind);
            found.next()?.last_transition_time.as_ref().map(|time| time.0.as_second())
        };
        assert_eq!(["Ready", "Initialized"].map(time), [Some(1), Some(9)]);
        assert!(store.report("u").expect("a report").version > version);
        assert!(store.late_report(&own).is_none() && store.continue_mirror(&own, second).is_none());
    }

    #[test]
    fn starts_of_containers_are_finer_than_in_statuses() {
        let store = PodStore::new(BTreeSet::new());
        let pod = pod("api", json!(null));
        store.set_pod(&pod);
        let container = |id: &str, state: Value| {
            json!({"name": id, "image": "", "imageID": "", "ready": true, "restartCount": 0,
                   "containerID": format!("x://{id}"), "state": state})
        };
        let running = json!({"running": {"startedAt": "2026-01-01T00:00:01.75Z"}});
        let all = [container("1", running), container("2", json!({"waiting": {}}))];
        let status: core::PodStatus =
            serde_json::from_value(json!({"containerStatuses": all})).expect("a status");
        store.update_status(&pod, Timestamp::from_secs(9), |_, _| status);
        let second: Timestamp = "2026-01-01T00:00:01Z".parse().expect("a time");
        let seconds = second.to_jiff().as_microsecond();
        assert_eq!(store.starts(), HashMap::from([("x://1".to_owned(), seconds + 750_000)]));
        let shown = store.with_statuses()[0].status.clone().expect("a status");
        let shown = shown.container_statuses.expect("containers");
        let state = shown[0].state.as_ref().and_then(|state| state.running.as_ref());
        let started = state.and_then(|running| running.started_at.as_ref());
        assert_eq!(started.map(|time| time.0.as_microsecond()), Some(seconds));
    }

    #[test]
    fn version_grows_with_each_change_and_the_start_stays() {
        let store = PodStore::new(BTreeSet::new());
        let pod = pod("api", json!(null));
        store.set_pod(&pod);
        assert!(store.report("u").is_none());
        let mut last = 0;
        for (seconds, phase, is_new) in
            [(1, "Pending", true), (2, "Pending", false), (3, "Running", true)]
        {
            store.update_status(&pod, Timestamp::from_secs(seconds), |_, _| status(phase));
            let report = store.report("u").expect("a report");
            assert_eq!(report.version > last, is_new, "{seconds}");
            last = report.version;
            let start = report.status.start_time.as_ref().map(|time| time.0.as_second());
            assert_eq!(start, Some(1));
        }
        store.set_rejected(&pod, status("Failed"), Timestamp::from_secs(4));
        assert!(store.report("u").expect("a report").version > last);
    }

    #[test]
    fn static_pod_is_reported_on_its_mirror_pod() {
        let store = PodStore::new(BTreeSet::new());
        let with = |key: &str, hash: &str| {
            let mut pod = Arc::unwrap_or_clone(pod("file", json!(null)));
            crate::pod::annotations_mut(&mut pod).insert(key.to_owned(), hash.to_owned());
            pod.metadata.uid = Some(format!("{hash}-{}", key.len()));
            pod
        };
        let own = Arc::new(with(CONFIG_HASH, "1"));
        let mut mirror = with(CONFIG_MIRROR, "1");
        mirror.status = serde_json::from_value(json!({"startTime": "2026-01-01T00:00:00Z"})).ok();
        let mirror = Arc::new(mirror);
        let stale = Arc::new(with(CONFIG_MIRROR, "0"));
        store.set_pod(&own);
        let api = || store.report(&own.uid()).expect("a report").api.map(|pod| pod.uid());
        store.set_mirror(&mirror, true);
        let change = store.update_status(&own, Timestamp::from_secs(0), |before, _| {
            assert_eq!(before, None, "a mirror pod's status starts nothing");
            status("Running")
        });
        let start = change.after.start_time.as_ref().map(|time| time.0.to_string());
        assert_eq!(start.as_deref(), Some("2026-01-01T00:00:00Z"));
        assert_eq!(api(), Some(mirror.uid()));
        store.set_mirror(&stale, true);
        assert_eq!(api(), None, "it shows another state of the pod");
        store.set_mirror(&mirror, false);
        assert_eq!(store.mirrors(), ["p_n"], "a later one of its name stays");
        store.set_mirror(&stale, false);
        assert!(store.mirrors().is_empty() && store.mirror("p_n").is_none());
        assert_eq!(store.static_pod("p_n"), Some(own));
    }

    #[test]
    fn pod_that_its_source_has_lost_stays_while_a_worker_knows_it() {
        let store = PodStore::new(BTreeSet::from([Source::File]));
        assert!(!store.has_seen_all());
        store.set_seen(Source::File);
        assert!(store.has_seen_all());
        let pod = pod("file", json!(null));
        store.set_pod(&pod);
        store.set_first_seen(pod.uid(), Duration::ZERO);
        store.update_status(&pod, Timestamp::from_secs(0), |_, _| status("Running"));
        store.retain(|_| false);
        assert!(store.contains("u"));
        store.remove_pod("u");
        assert!(
            !store.contains("u") && store.pods().is_empty() && store.with_statuses().is_empty()
        );
        assert_eq!(store.take_first_seen("u"), None);
        store.retain(|uid| uid == "u");
        assert!(store.status("u").is_some());
        store.retain(|_| false);
        assert!(store.status("u").is_none());
    }

    #[test]
    fn status_of_a_rejected_pod_stays_until_it_is_admitted() {
        let (store, now) = (PodStore::new(BTreeSet::new()), Timestamp::from_secs(0));
        let pod = pod("file", json!(null));
        store.set_pod(&pod);
        assert!(store.admitted_pods().is_empty() && store.decided_pod("u").is_none());
        store.set_rejected(&pod, status("Failed"), now);
        let change = store.update_status(&pod, now, |_, _| status("Pending"));
        assert_eq!(phase(&change.after), Some("Failed"));
        assert!(store.admitted_pods().is_empty() && store.decided_pod("u").is_some());
        store.set_reserved(&pod);
        // It has its room, but must not start before the others have left it.
        assert_eq!(store.admitted_pods(), std::slice::from_ref(&pod));
        assert!(store.decided_pod("u").is_none());
        store.set_admitted(&pod);
        assert!(store.decided_pod("u").is_some());
        let change = store.update_status(&pod, now, |before, _| {
            assert_eq!(before, None);
            status("Pending")
        });
        assert_eq!(phase(&change.after), Some("Pending"));
        assert_eq!(store.admitted_pods(), std::slice::from_ref(&pod));
        store.remove_pod("u");
        assert!(store.admitted_pods().is_empty());
        store.set_pod(&pod);
        let mut ended = Arc::unwrap_or_clone(pod);
        ended.status.get_or_insert_default().phase = Some("Succeeded".to_owned());
        store.set_admitted(&ended);
        assert!(store.admitted_pods().is_empty() && store.decided_pod("u").is_some());
    }

    #[test]
    fn changes_are_sent_once_somebody_listens() {
        let store = PodStore::new(BTreeSet::new());
        let of_api = pod("api", json!(null));
        store.notify(&of_api);
        let changes = store.changes();
        assert!(changes.try_recv().is_err());
        store.notify(&of_api);
        store.notify_mirror("p_n".to_owned());
        assert_eq!(changes.try_recv(), Ok(Change::Status(of_api.uid())));
        assert_eq!(changes.try_recv(), Ok(Change::Mirror("p_n".to_owned())));
    }
}
