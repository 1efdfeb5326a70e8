//! The conditions of pods whose resources are to change. Upstream: `podResizeConditions` of the
//! status manager.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::{PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_controller_manager::objects::Timestamp;
use parking_lot::Mutex;

use crate::pod::Uid;

const PENDING: &str = "PodResizePending";
const IN_PROGRESS: &str = "PodResizeInProgress";
/// The reason of a resize that is retried when something is freed. Upstream's other one,
/// `Infeasible`, is for managers of CPUs and memory, and for swap: this kubelet has none of them.
const DEFERRED: &str = "Deferred";
/// The reason of a resize under way that has failed, and is retried.
const ERROR: &str = "Error";

/// A condition, without what its kind fixes.
#[derive(Clone, Debug, PartialEq)]
struct Condition {
    reason: Option<String>,
    message: Option<String>,
    generation: Option<i64>,
    /// When its reason changed last.
    since: Timestamp,
}

/// The conditions of one pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResizeState {
    pending: Option<Condition>,
    in_progress: Option<Condition>,
}

impl ResizeState {
    /// Returns the conditions as the pod's status shows them.
    pub fn conditions(&self) -> Vec<PodCondition> {
        let all = [(PENDING, &self.pending), (IN_PROGRESS, &self.in_progress)];
        let present = all.into_iter().filter_map(|(kind, one)| Some((kind, one.as_ref()?)));
        let shown = present.map(|(kind, condition)| PodCondition {
            type_: kind.to_owned(),
            status: "True".to_owned(),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
            observed_generation: condition.generation,
            last_transition_time: Some(Time(condition.since.to_jiff())),
            ..PodCondition::default()
        });
        shown.collect()
    }

    /// Returns whether the resize waits for room on the node.
    pub fn is_deferred(&self) -> bool {
        self.pending.as_ref().is_some_and(|one| one.reason.as_deref() == Some(DEFERRED))
    }

    /// Returns the time since which the resize waits.
    pub fn pending_since(&self) -> Option<Timestamp> {
        self.pending.as_ref().map(|pending| pending.since)
    }
}

/// The conditions of all pods.
#[derive(Default)]
pub struct ResizeConditions {
    pods: Mutex<HashMap<Uid, ResizeState>>,
}

impl ResizeConditions {
    /// Takes over what an earlier kubelet has reported of a pod, unless something is known of it
    /// already. A condition without a time is ignored. Upstream: `BackfillPodResizeConditions`.
    pub fn restore(&self, uid: &Uid, status: &PodStatus) {
        let condition = |kind: &str| {
            let mut conditions = status.conditions.iter().flatten();
            let found = conditions.find(|one| one.type_ == kind && one.status == "True")?;
            let since = found.last_transition_time.as_ref()?.0;
            Some(Condition {
                reason: found.reason.clone(),
                message: found.message.clone(),
                generation: found.observed_generation,
                since: Timestamp::from_micros(since.as_microsecond()),
            })
        };
        let state =
            ResizeState { pending: condition(PENDING), in_progress: condition(IN_PROGRESS) };
        if state != ResizeState::default() {
            self.pods.lock().entry(uid.clone()).or_insert(state);
        }
    }

    pub fn get(&self, uid: &str) -> ResizeState {
        self.pods.lock().get(uid).cloned().unwrap_or_default()
    }

    /// Records that a resize is deferred. Returns whether its reason or its generation is new.
    pub fn set_pending(
        &self,
        uid: &Uid,
        message: &str,
        generation: Option<i64>,
        now: Timestamp,
    ) -> bool {
        let mut pods = self.pods.lock();
        let state = pods.entry(uid.clone()).or_default();
        let before = state.pending.take();
        let is_deferred = |before: &Condition| before.reason.as_deref() == Some(DEFERRED);
        let is_same = before.as_ref().is_some_and(is_deferred);
        let is_new =
            !is_same || before.as_ref().is_some_and(|before| before.generation != generation);
        state.pending = Some(Condition {
            reason: Some(DEFERRED.to_owned()),
            message: Some(message.to_owned()),
            generation,
            since: before.filter(|_| is_same).map_or(now, |before| before.since),
        });
        is_new
    }

    /// Records that no resize waits. Returns whether one has waited.
    pub fn clear_pending(&self, uid: &str) -> bool {
        self.take(uid, |state| state.pending.take()).is_some()
    }

    /// Records that a resize that was allocated begins, and drops what is known of an earlier one.
    pub fn begin(&self, uid: &Uid, generation: Option<i64>, now: Timestamp) {
        let mut pods = self.pods.lock();
        let state = pods.entry(uid.clone()).or_default();
        state.pending = None;
        state.in_progress = Some(Condition { reason: None, message: None, generation, since: now });
    }

    /// Records that a resize is under way; one that is recorded already keeps its generation, its
    /// failure and its time.
    pub fn keep_in_progress(&self, uid: &Uid, generation: Option<i64>, now: Timestamp) {
        let mut pods = self.pods.lock();
        let state = pods.entry(uid.clone()).or_default();
        let new = || Condition { reason: None, message: None, generation, since: now };
        state.in_progress.get_or_insert_with(new);
    }

    /// Records that a resize under way has failed. Returns the generation of its pod, which may be
    /// unknown; the outer `None`: the message is not new, so that no event is due.
    pub fn fail(
        &self,
        uid: &Uid,
        message: &str,
        generation: Option<i64>,
        now: Timestamp,
    ) -> Option<Option<i64>> {
        let mut pods = self.pods.lock();
        let state = pods.entry(uid.clone()).or_default();
        let before = state.in_progress.take();
        let generation = before.as_ref().map_or(generation, |before| before.generation);
        let is_failed =
            before.as_ref().is_some_and(|before| before.reason.as_deref() == Some(ERROR));
        let is_same = is_failed
            && before.as_ref().is_some_and(|before| before.message.as_deref() == Some(message));
        state.in_progress = Some(Condition {
            reason: Some(ERROR.to_owned()),
            message: Some(message.to_owned()),
            generation,
            since: before.filter(|_| is_failed).map_or(now, |before| before.since),
        });
        (!is_same).then_some(generation)
    }

    /// Records that no resize is under way. Returns the generation of the pod, which may be
    /// unknown; the outer `None`: none was under way.
    pub fn complete(&self, uid: &str) -> Option<Option<i64>> {
        let condition = self.take(uid, |state| state.in_progress.take())?;
        Some(condition.generation)
    }

    /// Forgets a pod that has ended.
    pub fn clear(&self, uid: &str) {
        self.pods.lock().remove(uid);
    }

    /// Returns how many resizes wait, and how many are under way.
    pub fn counts(&self) -> (usize, usize) {
        let pods = self.pods.lock();
        let pending = pods.values().filter(|state| state.pending.is_some()).count();
        let in_progress = pods.values().filter(|state| state.in_progress.is_some()).count();
        (pending, in_progress)
    }

    /// Forgets the pods that are not `known`.
    pub fn retain(&self, known: impl Fn(&str) -> bool) {
        self.pods.lock().retain(|uid, _| known(uid));
    }

    /// Takes a condition from a pod's state, and forgets the pod if nothing else is known of it.
    fn take(
        &self,
        uid: &str,
        take: impl FnOnce(&mut ResizeState) -> Option<Condition>,
    ) -> Option<Condition> {
        let mut pods = self.pods.lock();
        let state = pods.get_mut(uid)?;
        let taken = take(state);
        if *state == ResizeState::default() {
            pods.remove(uid);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_follow_a_resize_from_its_wait_to_its_end() {
        let conditions = ResizeConditions::default();
        let uid = Uid::parse("u").expect("a uid");
        let at = Timestamp::from_secs;
        let shown = || -> Vec<String> {
            let all = conditions.get("u").conditions();
            let show = |one: PodCondition| {
                let since = one.last_transition_time.map(|time| time.0.as_second());
                let text = |text: Option<String>| text.unwrap_or_default();
                format!(
                    "{} {} {} {:?} {:?}",
                    one.type_,
                    text(one.reason),
                    text(one.message),
                    one.observed_generation,
                    since
                )
            };
            all.into_iter().map(show).collect()
        };
        assert!(conditions.set_pending(&uid, "no cpu", Some(2), at(1)));
        assert!(!conditions.set_pending(&uid, "no memory", Some(2), at(2)));
        assert!(conditions.set_pending(&uid, "no memory", Some(3), at(3)));
        assert_eq!(shown(), ["PodResizePending Deferred no memory Some(3) Some(1)"]);
        assert!(conditions.get("u").is_deferred());
        let copy = ResizeConditions::default();
        let status = PodStatus {
            conditions: Some(conditions.get("u").conditions()),
            ..PodStatus::default()
        };
        copy.restore(&uid, &status);
        assert_eq!(copy.get("u"), conditions.get("u"));
        conditions.begin(&uid, Some(3), at(4));
        conditions.keep_in_progress(&uid, Some(4), at(5));
        assert_eq!(shown(), ["PodResizeInProgress   Some(3) Some(4)"]);
        assert!(!conditions.get("u").is_deferred());
        assert_eq!(conditions.fail(&uid, "x", Some(4), at(6)), Some(Some(3)));
        assert_eq!(conditions.fail(&uid, "x", Some(4), at(7)), None);
        // What is known of it stays.
        conditions.keep_in_progress(&uid, Some(4), at(8));
        assert_eq!(shown(), ["PodResizeInProgress Error x Some(3) Some(6)"]);
        assert_eq!(conditions.complete("u"), Some(Some(3)));
        assert_eq!(conditions.complete("u"), None);
        assert!(!conditions.clear_pending("u") && shown().is_empty());
        conditions.set_pending(&uid, "no cpu", Some(5), at(9));
        conditions.keep_in_progress(&uid, Some(5), at(9));
        conditions.clear("u");
        assert_eq!(conditions.counts(), (0, 0));
    }
}
