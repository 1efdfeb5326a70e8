//! The pods that a Job needs, and those that it has too many. Upstream: `manageJob`.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::backoff::{Failures, wait_for_index};
use super::indexes::{Indexes, index_of, valid_index_of};
use super::policies::judge;
use super::sync_state::{
    Indexed, SyncState, all_failures, as_i32, completions, failures_before, ignored_before,
    replaces_failed_only,
};
use crate::objects::{JobSpec, Pod, PodPhase, Timestamp};

/// The most pods that one sync creates or deletes; those of a suspended Job are deleted all at once.
/// Upstream: `MaxPodCreateDeletePerSync`.
const MOST: usize = 500;

/// What a sync does with the pods of a Job.
#[derive(Debug, PartialEq)]
pub enum Plan {
    Nothing,
    Delete(Vec<Arc<Pod>>),
    /// The pods that replace failed ones have to wait for this time.
    Wait(Duration),
    Create(Vec<Wanted>),
}

/// A pod to be created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub index: Option<i32>,
    /// The failures of the index so far, with a back-off limit per index.
    pub failures: Option<IndexFailures>,
}

/// The failures of an index that count towards its back-off limit, and those that do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexFailures {
    pub counted: i32,
    pub ignored: i32,
}

/// Plans what a sync does with pods: it creates, deletes or waits. `failures`: those of the Job's
/// pods since the last success.
pub fn plan(state: &SyncState, failures: Failures, now: Timestamp) -> Plan {
    let spec = state.spec();
    if spec.is_suspended() {
        return Plan::Delete(state.active.clone());
    }
    let active = as_i32(state.active.len());
    let wanted = wanted_active(spec, state.succeeded, active);
    let surplus = usize::try_from(active - wanted).unwrap_or(0);
    let mut surplus = choose_for_deletion(spec, &state.active, surplus);
    if !surplus.is_empty() {
        surplus.truncate(MOST);
        return Plan::Delete(surplus);
    }
    let terminating = if replaces_failed_only(spec) { state.terminating } else { 0 };
    let missing = i64::from(wanted) - i64::from(terminating) - i64::from(active);
    let Ok(missing @ 1..) = usize::try_from(missing) else { return Plan::Nothing };
    let missing = missing.min(MOST);
    if spec.backoff_limit_per_index.is_none() {
        let wait = failures.wait(now);
        if !wait.is_zero() {
            return Plan::Wait(wait);
        }
    }
    match &state.indexed {
        Some(indexed) => create_indexed(state, indexed, missing, now),
        None => Plan::Create(vec![Wanted::default(); missing]),
    }
}

/// Returns how many pods should be active, when `active` pods are.
fn wanted_active(spec: &JobSpec, succeeded: i32, active: i32) -> i32 {
    // The API server's default.
    let parallelism = spec.parallelism.unwrap_or(1);
    match spec.completions {
        // Once a pod has succeeded, running pods continue, and no others start.
        None if succeeded > 0 => active,
        None => parallelism,
        Some(completions) => completions.saturating_sub(succeeded).min(parallelism).max(0),
    }
}

/// Plans the creation of `missing` pods of an Indexed Job. With a back-off limit for each index, an
/// index whose pod has failed waits.
fn create_indexed(state: &SyncState, indexed: &Indexed, missing: usize, now: Timestamp) -> Plan {
    let spec = state.spec();
    let indexes = first_pending_indexes(state, indexed, missing);
    if spec.backoff_limit_per_index.is_none() {
        let pod_of = |index| Wanted { index: Some(index), failures: None };
        return Plan::Create(indexes.into_iter().map(pod_of).collect());
    }
    let (mut wanted, mut shortest) = (Vec::new(), None::<Duration>);
    for index in indexes {
        let before = indexed.awaiting.get(&index);
        let wait = match before {
            Some(failed) => {
                let failures = u32::try_from(all_failures(failed)).unwrap_or(0);
                wait_for_index(spec, failed, failures, now)
            }
            None => Duration::ZERO,
        };
        if wait.is_zero() {
            let failures = before.map(|pod| with_failure_of(spec, pod)).unwrap_or_default();
            wanted.push(Wanted { index: Some(index), failures: Some(failures) });
        } else if shortest.is_none_or(|shortest| wait < shortest) {
            shortest = Some(wait);
        }
    }
    match shortest {
        Some(wait) if wanted.is_empty() => Plan::Wait(wait),
        _ => Plan::Create(wanted),
    }
}

/// Returns the failures of the index of `pod`, its own included. Upstream:
/// `getNewIndexFailureCounts`.
fn with_failure_of(spec: &JobSpec, pod: &Pod) -> IndexFailures {
    let (counted, ignored) = (failures_before(pod), ignored_before(pod));
    match judge(spec.pod_failure_policy.as_deref(), pod).counts() {
        true => IndexFailures { counted: counted.saturating_add(1), ignored },
        false => IndexFailures { counted, ignored: ignored.saturating_add(1) },
    }
}

/// Returns the first indexes that nothing works on and that have not ended.
/// Upstream: `firstPendingIndexes`.
fn first_pending_indexes(state: &SyncState, indexed: &Indexed, most: usize) -> Vec<i32> {
    let spec = state.spec();
    let indexes = |pods: &mut dyn Iterator<Item = &Arc<Pod>>| -> Indexes {
        pods.filter_map(|pod| index_of(pod)).collect()
    };
    let mut taken = indexed.succeeded.union(&indexes(&mut state.active.iter()));
    if replaces_failed_only(spec) {
        let mut going = state.pods.iter().filter(|pod| pod.is_terminating());
        taken = taken.union(&indexes(&mut going));
    }
    if let Some(failed) = &indexed.failed {
        taken = taken.union(failed);
    }
    taken.gaps(most, completions(spec))
}

/// Chooses the pods to delete of `active`: at least `least`, and of an Indexed Job those whose
/// index is missing, too high, or another pod's.
/// Upstream: `activePodsForRemoval`.
fn choose_for_deletion(spec: &JobSpec, active: &[Arc<Pod>], least: usize) -> Vec<Arc<Pod>> {
    let (mut chosen, mut rest) = (Vec::new(), Vec::new());
    if spec.is_indexed() {
        let mut by_index: BTreeMap<i32, Vec<Arc<Pod>>> = BTreeMap::new();
        for pod in active {
            match valid_index_of(pod, completions(spec)) {
                Some(index) => by_index.entry(index).or_default().push(pod.clone()),
                None => chosen.push(pod.clone()),
            }
        }
        for mut pods in by_index.into_values() {
            if pods.len() > 1 {
                sort_by_deletion_order(&mut pods);
            }
            rest.extend(pods.pop());
            chosen.extend(pods);
        }
    } else {
        rest.extend_from_slice(active);
    }
    let more = least.saturating_sub(chosen.len()).min(rest.len());
    if more > 0 {
        sort_by_deletion_order(&mut rest);
        chosen.extend(rest.drain(..more));
    }
    chosen
}

/// Sorts pods by the order of deletion: the least advanced pods first, and those that are youngest,
/// or ready for the shortest time.
/// Upstream: `controller.ActivePods`.
fn sort_by_deletion_order(pods: &mut [Arc<Pod>]) {
    pods.sort_by_cached_key(|pod| {
        let phase = match pod.status.phase {
            PodPhase::Unknown => 1,
            PodPhase::Running => 2,
            PodPhase::Pending | PodPhase::Succeeded | PodPhase::Failed => 0,
        };
        let since = pod.status.ready_since();
        let created = pod.meta.creation_timestamp;
        (
            !pod.spec.node_name.is_empty(),
            phase,
            pod.is_ready(),
            (since.is_some(), Reverse(since)),
            Reverse(pod.max_restarts()),
            (created.is_some(), Reverse(created)),
        )
    });
}
