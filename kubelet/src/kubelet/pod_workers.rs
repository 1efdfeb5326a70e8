//! The life of each pod on this node: syncing, terminating, terminated, finished. Decides which
//! work is due; the caller does it and reports the outcome. Upstream:
//! `pkg/kubelet/pod_workers.go`.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::pod::{DEFAULT_GRACE_SECONDS, Pod, PodExt, Uid};

/// Why a worker is notified. Upstream: `SyncPodType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A source has added the pod.
    Create,
    Update,
    /// The runtime's state of the pod has changed, or a probe's result.
    Sync,
    /// The pod has to end: it was removed from its source.
    Kill,
}

/// What a worker has to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// Make the pod run as its definition says.
    Sync(Arc<Pod>),
    /// End all containers, with this many seconds of grace.
    Terminate(Arc<Pod>, i64),
    /// Release what the pod held.
    CleanUp(Arc<Pod>),
    /// End what runs of a pod that no source knows.
    TerminateOrphan,
}

/// The outcome of a work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done; a running pod is synced again after this time.
    Done(Duration),
    /// The pod has ended by itself: terminate it.
    Terminal,
    /// Retry after this time.
    Failed(Duration),
    /// Another work is due in its place.
    Cancelled,
}

#[derive(Debug, Default)]
struct Worker {
    /// `None`: only the runtime knows the pod.
    pod: Option<Arc<Pod>>,
    full_name: String,
    is_started: bool,
    /// The pod has to end, with this grace.
    grace: Option<i64>,
    is_terminated: bool,
    is_finished: bool,
    /// The pod was created again while it ended.
    is_restart_requested: bool,
    is_pending: bool,
    is_running: bool,
    due: Option<Duration>,
}

/// All workers, by the pods' uids.
#[derive(Debug, Default)]
pub struct Workers {
    workers: BTreeMap<Uid, Worker>,
    /// The static pod that owns each full name.
    started: HashMap<String, Uid>,
    /// Static pods in the order of their creation, by full name.
    waiting: HashMap<String, VecDeque<Uid>>,
}

impl Workers {
    /// Notifies the worker of a pod. Returns whether the work that it does now has to be cancelled.
    /// Upstream: `UpdatePod`.
    pub fn update(&mut self, pod: &Arc<Pod>, reason: Reason) -> bool {
        let uid = pod.uid();
        let is_new = !self.workers.contains_key(&uid);
        if is_new && matches!(reason, Reason::Kill | Reason::Sync) {
            // It never ran here.
            return false;
        }
        let worker = self.workers.entry(uid.clone()).or_default();
        if is_new {
            worker.full_name = pod.full_name();
            if pod.is_static() {
                self.waiting.entry(pod.full_name()).or_default().push_back(uid);
            }
        }
        if worker.grace.is_some() && reason == Reason::Create && !is_new {
            worker.is_restart_requested = true;
            return false;
        }
        if worker.is_finished {
            return false;
        }
        worker.pod = Some(pod.clone());
        worker.is_pending = true;
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let has_ended = matches!(phase, Some("Succeeded" | "Failed"));
        // What may still run of it is ended.
        worker.is_started |= is_new && has_ended;
        let ends = reason == Reason::Kill || has_ended || pod.metadata.deletion_timestamp.is_some();
        if !ends && worker.grace.is_none() {
            return false;
        }
        let before = worker.grace;
        let grace = effective_grace(before, pod);
        worker.grace = Some(grace);
        worker.is_running && !worker.is_terminated && before != Some(grace)
    }

    /// Ends a pod for the node's sake, with this grace at most; it stays finished while its source has
    /// it. Returns whether the work that it does now has to be cancelled. Upstream: `Evict`.
    pub fn evict(&mut self, uid: &str, grace: i64) -> bool {
        let Some(worker) = self.workers.get_mut(uid).filter(|worker| !worker.is_finished) else {
            return false;
        };
        let before = worker.grace;
        let grace = before.map_or(grace, |before| before.min(grace)).max(1);
        worker.grace = Some(grace);
        worker.is_pending = true;
        worker.is_running && !worker.is_terminated && before != Some(grace)
    }

    /// Notifies the worker of a pod that is known already: something about it has changed.
    pub fn poke(&mut self, uid: &str) {
        if let Some(worker) = self.workers.get_mut(uid).filter(|worker| !worker.is_finished) {
            worker.is_pending = true;
        }
    }

    /// Ends a pod that runs without a definition. Does nothing when the pod has a worker.
    pub fn end_orphan(&mut self, uid: Uid) {
        self.workers.entry(uid).or_insert_with(|| Worker {
            is_started: true,
            grace: Some(1),
            is_pending: true,
            ..Worker::default()
        });
    }

    /// The next work that is due. The worker gets no other work until [`done`](Self::done).
    pub fn next(&mut self, now: Duration) -> Option<(Uid, Work)> {
        let ready: Vec<Uid> = self
            .workers
            .iter()
            .filter(|(_, worker)| !worker.is_running && !worker.is_finished)
            .filter(|(_, worker)| worker.is_pending || worker.due.is_some_and(|due| due <= now))
            .map(|(uid, _)| uid.clone())
            .collect();
        ready.into_iter().find_map(|uid| Some((uid.clone(), self.begin(&uid)?)))
    }

    fn begin(&mut self, uid: &Uid) -> Option<Work> {
        let worker = self.workers.get(uid)?;
        let is_static = worker.pod.as_ref().is_some_and(|pod| pod.is_static());
        if !worker.is_started && worker.grace.is_some() && is_static {
            // It ends before it has begun. One of the API server may have containers of an earlier
            // kubelet.
            self.finish(uid);
            return None;
        }
        if !worker.is_started && !self.may_start(uid) {
            return None;
        }
        let worker = self.workers.get_mut(uid)?;
        worker.is_started = true;
        worker.is_running = true;
        worker.is_pending = false;
        worker.due = None;
        Some(match (&worker.pod, worker.grace, worker.is_terminated) {
            (None, ..) => Work::TerminateOrphan,
            (Some(pod), None, _) => Work::Sync(pod.clone()),
            (Some(pod), Some(grace), false) => Work::Terminate(pod.clone(), grace),
            (Some(pod), Some(_), true) => Work::CleanUp(pod.clone()),
        })
    }

    /// Whether a static pod may start: no other one with its full name runs, and it is the first
    /// that waits. Upstream: `allowStaticPodStart`.
    fn may_start(&mut self, uid: &Uid) -> bool {
        let Some(worker) = self.workers.get(uid) else { return false };
        if !worker.pod.as_ref().is_some_and(|pod| pod.is_static()) {
            return true;
        }
        let name = worker.full_name.clone();
        if let Some(started) = self.started.get(&name) {
            return started == uid;
        }
        let waiting = self.waiting.entry(name.clone()).or_default();
        let workers = &self.workers;
        waiting.retain(|waiting| {
            workers.get(waiting).is_some_and(|worker| worker.grace.is_none() && !worker.is_finished)
        });
        if waiting.front() != Some(uid) {
            return false;
        }
        waiting.pop_front();
        if waiting.is_empty() {
            self.waiting.remove(&name);
        }
        self.started.insert(name, uid.clone());
        true
    }

    /// Reports the outcome of a work at the time `now`.
    pub fn done(&mut self, uid: &str, outcome: Outcome, now: Duration) {
        let Some(worker) = self.workers.get_mut(uid) else { return };
        worker.is_running = false;
        match outcome {
            Outcome::Cancelled => worker.is_pending = true,
            Outcome::Failed(delay) => worker.due = Some(now.saturating_add(delay)),
            Outcome::Terminal => {
                let pod = worker.pod.clone();
                let grace = pod.map_or(1, |pod| effective_grace(worker.grace, &pod));
                worker.grace = Some(grace);
                worker.is_pending = true;
            }
            Outcome::Done(_) if worker.pod.is_none() => {
                self.workers.remove(uid);
            }
            Outcome::Done(again) => match (worker.grace, worker.is_terminated) {
                (None, _) => worker.due = Some(now.saturating_add(again)),
                (Some(_), false) => {
                    worker.is_terminated = true;
                    worker.is_pending = true;
                }
                (Some(_), true) => self.finish(uid),
            },
        }
    }

    fn finish(&mut self, uid: &str) {
        let Some(worker) = self.workers.get_mut(uid) else { return };
        worker.is_finished = true;
        worker.is_pending = false;
        worker.due = None;
        if self.started.get(&worker.full_name).is_some_and(|started| **started == *uid) {
            self.started.remove(&worker.full_name);
        }
    }

    /// When the next work is due that waits for a time.
    pub fn next_due(&self) -> Option<Duration> {
        let waiting =
            self.workers.values().filter(|worker| !worker.is_running && !worker.is_finished);
        waiting.filter_map(|worker| worker.due).min()
    }

    /// Forgets finished pods that no source has, and those that were created again. Returns the
    /// uids of the latter: the caller creates them. Pods that no source has any more are ended.
    /// Upstream: `SyncKnownPods`.
    pub fn retain(&mut self, desired: &BTreeSet<Uid>) -> Vec<Uid> {
        let mut again = Vec::new();
        for (uid, worker) in &mut self.workers {
            if worker.is_finished && worker.is_restart_requested && desired.contains(uid) {
                again.push(uid.clone());
            } else if !desired.contains(uid) && worker.grace.is_none() {
                let pod = worker.pod.as_deref();
                worker.grace = Some(pod.map_or(1, |pod| effective_grace(None, pod)));
                worker.is_pending = true;
            }
        }
        self.workers.retain(|uid, worker| {
            !(worker.is_finished && (worker.is_restart_requested || !desired.contains(uid)))
        });
        again
    }

    pub fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    /// Whether the pod has a worker, finished or not.
    pub fn knows(&self, uid: &str) -> bool {
        self.workers.contains_key(uid)
    }

    /// Whether the pod's containers have ended for good.
    pub fn is_terminated(&self, uid: &str) -> bool {
        self.workers.get(uid).is_some_and(|worker| worker.is_terminated || worker.is_finished)
    }

    /// Whether the pod holds nothing any more.
    pub fn is_finished(&self, uid: &str) -> bool {
        self.workers.get(uid).is_some_and(|worker| worker.is_finished)
    }

    /// The number of pods by phase, whether a source still has them, and whether they are static:
    /// the labels of upstream's metric. `is_desired`: whether a source has the pod of this uid.
    /// Upstream: the summary of `HandlePodCleanups`.
    pub fn counts(&self, is_desired: &dyn Fn(&str) -> bool) -> BTreeMap<[&'static str; 3], usize> {
        let configs = [("desired", ""), ("desired", "true"), ("orphan", ""), ("orphan", "true")];
        let all = configs.into_iter().chain([("runtime_only", "unknown")]);
        let phases = ["sync", "terminating", "terminated"];
        let mut counts: BTreeMap<[&'static str; 3], usize> =
            all.flat_map(|(config, kind)| phases.map(|phase| ([phase, config, kind], 0))).collect();
        for (uid, worker) in &self.workers {
            let phase = match (worker.grace, worker.is_terminated || worker.is_finished) {
                (_, true) => "terminated",
                (Some(_), false) => "terminating",
                (None, false) => "sync",
            };
            let (config, kind) = match &worker.pod {
                None => ("runtime_only", "unknown"),
                Some(pod) => (
                    if is_desired(uid) { "desired" } else { "orphan" },
                    if pod.is_static() { "true" } else { "" },
                ),
            };
            *counts.entry([phase, config, kind]).or_default() += 1;
        }
        counts
    }

    /// How many works run now.
    pub fn running(&self) -> usize {
        self.workers.values().filter(|worker| worker.is_running).count()
    }
}

/// The grace period can only decrease, and is at least a second.
/// Upstream: `calculateEffectiveGracePeriod`.
fn effective_grace(before: Option<i64>, pod: &Pod) -> i64 {
    let own = pod.metadata.deletion_grace_period_seconds;
    let grace = match (before, own) {
        (Some(before), Some(own)) => before.min(own),
        (Some(before), None) => before,
        (None, Some(own)) => own,
        (None, None) => {
            pod.spec().termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE_SECONDS)
        }
    };
    grace.max(1)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pod::CONFIG_SOURCE;

    const NOW: Duration = Duration::ZERO;
    const LATER: Duration = Duration::from_secs(60);

    fn uid(text: &str) -> Uid {
        Uid::parse(text).expect("a uid")
    }

    fn pod(uid: &str) -> Arc<Pod> {
        let pod = json!({
            "metadata": {"name": "p", "namespace": "n", "uid": uid,
                         "annotations": {CONFIG_SOURCE: "file"}},
            "spec": {"containers": [], "terminationGracePeriodSeconds": 7},
        });
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    fn begin(workers: &mut Workers, expected: &str) {
        let next = workers.next(NOW).map(|(uid, work)| {
            let work = match work {
                Work::Sync(_) => "sync".to_owned(),
                Work::Terminate(_, grace) => format!("terminate {grace}"),
                Work::CleanUp(_) => "clean up".to_owned(),
                Work::TerminateOrphan => "end".to_owned(),
            };
            format!("{work} {uid}")
        });
        assert_eq!(next.unwrap_or_default(), expected);
    }

    #[test]
    fn pod_is_synced_terminated_and_cleaned_up() {
        let mut workers = Workers::default();
        let a = pod("a");
        assert!(!workers.update(&a, Reason::Create));
        begin(&mut workers, "sync a");
        begin(&mut workers, "");
        // An update during the work is not lost.
        assert!(!workers.update(&a, Reason::Sync));
        begin(&mut workers, "");
        workers.done("a", Outcome::Done(LATER), NOW);
        begin(&mut workers, "sync a");
        workers.done("a", Outcome::Done(LATER), NOW);
        begin(&mut workers, "");
        assert_eq!(workers.next_due(), Some(LATER));
        assert!(!workers.update(&a, Reason::Kill), "no work to cancel");
        begin(&mut workers, "terminate 7 a");
        workers.done("a", Outcome::Failed(NOW), NOW);
        begin(&mut workers, "terminate 7 a");
        workers.done("a", Outcome::Done(LATER), NOW);
        assert!(workers.is_terminated("a"));
        begin(&mut workers, "clean up a");
        workers.done("a", Outcome::Done(LATER), NOW);
        begin(&mut workers, "");
        assert!(workers.knows("a"));
        assert!(workers.retain(&BTreeSet::new()).is_empty());
        assert!(!workers.knows("a"));
    }

    #[test]
    fn pods_are_counted_by_phase_and_source() {
        let mut workers = Workers::default();
        workers.update(&pod("a"), Reason::Create);
        begin(&mut workers, "sync a");
        workers.end_orphan(uid("x"));
        let counted = |workers: &Workers, is_desired| {
            let counts = workers.counts(&|_| is_desired);
            assert_eq!(counts.len(), 15);
            let some = counts.into_iter().filter(|(_, count)| *count > 0);
            some.map(|(labels, count)| format!("{} {count}", labels.join(" "))).collect::<Vec<_>>()
        };
        let runtime_only = "terminating runtime_only unknown 1";
        assert_eq!(counted(&workers, true), ["sync desired true 1", runtime_only]);
        workers.update(&pod("a"), Reason::Kill);
        let terminating = "terminating orphan true 1";
        assert_eq!(counted(&workers, false), [terminating, runtime_only]);
        workers.done("a", Outcome::Cancelled, NOW);
        begin(&mut workers, "terminate 7 a");
        workers.done("a", Outcome::Done(LATER), NOW);
        assert_eq!(counted(&workers, false), ["terminated orphan true 1", runtime_only]);
    }

    #[test]
    fn pod_that_ends_by_itself_stays_finished() {
        let mut workers = Workers::default();
        let a = pod("a");
        workers.update(&a, Reason::Create);
        begin(&mut workers, "sync a");
        workers.done("a", Outcome::Terminal, NOW);
        begin(&mut workers, "terminate 7 a");
        workers.done("a", Outcome::Done(LATER), NOW);
        begin(&mut workers, "clean up a");
        workers.done("a", Outcome::Done(LATER), NOW);
        assert!(workers.retain(&BTreeSet::from([uid("a")])).is_empty());
        workers.update(&a, Reason::Sync);
        workers.update(&a, Reason::Update);
        begin(&mut workers, "");
    }

    #[test]
    fn pod_that_has_ended_at_its_source_does_not_run_again() {
        let mut workers = Workers::default();
        let mut a = pod("a");
        Arc::make_mut(&mut a).status.get_or_insert_default().phase = Some("Succeeded".to_owned());
        workers.update(&a, Reason::Create);
        begin(&mut workers, "terminate 7 a");
        workers.done("a", Outcome::Done(LATER), NOW);
        begin(&mut workers, "clean up a");
        workers.done("a", Outcome::Done(LATER), NOW);
        assert!(workers.is_finished("a"));
    }

    /// Its containers may run since before this kubelet.
    #[test]
    fn pod_of_the_api_server_that_is_deleted_before_it_begins_is_terminated() {
        let mut a = pod("a");
        let metadata = &mut Arc::make_mut(&mut a).metadata;
        metadata.annotations.get_or_insert_default().insert(CONFIG_SOURCE.into(), "api".into());
        let mut deleted = a.clone();
        let now = Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time"));
        Arc::make_mut(&mut deleted).metadata.deletion_timestamp = now;
        for before in [None, Some(&a)] {
            let mut workers = Workers::default();
            if let Some(before) = before {
                workers.update(before, Reason::Create);
            }
            workers.update(&deleted, Reason::Create);
            begin(&mut workers, "terminate 7 a");
            workers.done("a", Outcome::Done(LATER), NOW);
            begin(&mut workers, "clean up a");
        }
    }

    #[test]
    fn kill_cancels_a_running_sync_once() {
        let mut workers = Workers::default();
        let a = pod("a");
        workers.update(&a, Reason::Create);
        begin(&mut workers, "sync a");
        assert!(workers.update(&a, Reason::Kill));
        workers.done("a", Outcome::Cancelled, NOW);
        begin(&mut workers, "terminate 7 a");
        assert!(!workers.update(&a, Reason::Kill));
        let mut shorter = pod("a");
        Arc::make_mut(&mut shorter).metadata.deletion_grace_period_seconds = Some(0);
        assert!(workers.update(&shorter, Reason::Kill));
        workers.done("a", Outcome::Cancelled, NOW);
        begin(&mut workers, "terminate 1 a");
    }

    #[test]
    fn evicted_pod_ends_at_once_and_stays_finished() {
        let mut workers = Workers::default();
        let a = pod("a");
        assert!(!workers.evict("a", 1), "not known");
        workers.update(&a, Reason::Create);
        begin(&mut workers, "sync a");
        assert!(workers.evict("a", 1));
        workers.done("a", Outcome::Cancelled, NOW);
        begin(&mut workers, "terminate 1 a");
        assert!(!workers.evict("a", 5), "the grace only decreases");
        workers.done("a", Outcome::Done(LATER), NOW);
        begin(&mut workers, "clean up a");
        workers.done("a", Outcome::Done(LATER), NOW);
        assert!(!workers.evict("a", 1));
        assert!(workers.retain(&BTreeSet::from([uid("a")])).is_empty());
        begin(&mut workers, "");
    }

    #[test]
    fn static_pods_with_one_name_wait_for_each_other() {
        let mut workers = Workers::default();
        let (a, b, c) = (pod("a"), pod("b"), pod("c"));
        workers.update(&a, Reason::Create);
        begin(&mut workers, "sync a");
        workers.done("a", Outcome::Done(LATER), NOW);
        // `c` is created after `b`, though its uid would come later in any case.
        workers.update(&c, Reason::Create);
        workers.update(&b, Reason::Create);
        begin(&mut workers, "");
        workers.update(&a, Reason::Kill);
        begin(&mut workers, "terminate 7 a");
        begin(&mut workers, "");
        workers.done("a", Outcome::Done(LATER), NOW);
        begin(&mut workers, "clean up a");
        workers.done("a", Outcome::Done(LATER), NOW);
        begin(&mut workers, "sync c");
        begin(&mut workers, "");
        // One that ends before it could start needs no work.
        workers.update(&b, Reason::Kill);
        begin(&mut workers, "");
        assert!(workers.is_terminated("b"));
    }

    #[test]
    fn pod_that_is_created_again_while_it_ends_is_restarted() {
        let mut workers = Workers::default();
        let a = pod("a");
        let desired = BTreeSet::from([uid("a")]);
        workers.update(&a, Reason::Create);
        begin(&mut workers, "sync a");
        workers.update(&a, Reason::Kill);
        workers.done("a", Outcome::Cancelled, NOW);
        begin(&mut workers, "terminate 7 a");
        workers.update(&a, Reason::Create);
        workers.done("a", Outcome::Done(LATER), NOW);
        begin(&mut workers, "clean up a");
        assert!(workers.retain(&desired).is_empty());
        workers.done("a", Outcome::Done(LATER), NOW);
        assert_eq!(workers.retain(&desired), [uid("a")]);
        workers.update(&a, Reason::Create);
        begin(&mut workers, "sync a");
    }

    #[test]
    fn orphans_of_the_runtime_are_ended_and_forgotten() {
        let mut workers = Workers::default();
        workers.end_orphan(uid("x"));
        begin(&mut workers, "end x");
        workers.end_orphan(uid("x"));
        begin(&mut workers, "");
        workers.done("x", Outcome::Failed(NOW), NOW);
        begin(&mut workers, "end x");
        workers.done("x", Outcome::Done(LATER), NOW);
        assert!(!workers.knows("x"));
    }

    #[test]
    fn pods_without_a_source_are_ended() {
        let mut workers = Workers::default();
        workers.update(&pod("a"), Reason::Create);
        begin(&mut workers, "sync a");
        workers.done("a", Outcome::Done(LATER), NOW);
        workers.retain(&BTreeSet::new());
        begin(&mut workers, "terminate 7 a");
    }
}
