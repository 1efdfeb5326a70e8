//! The plan of a sync for the pods of a set, decided before anything is written.
//! Upstream: `updateStatefulSet`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::identity::{
    claim_name, identity_matches, is_wanted, ordinal, pod_name, storage_matches, wanted_ordinals,
};
use super::retention::{self, Owners};
use crate::controllers::workloads::history::REVISION_LABEL;
use crate::controllers::workloads::percent::resolve_rounding_down;
use crate::objects::{PersistentVolumeClaim, Pod, PodPhase, StatefulSet, Timestamp};

/// The most pods that one sync creates. Upstream: `MaxBatchSize`.
const MAX_BATCH_SIZE: usize = 500;

/// A step on one pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Creates the claims and the pod of this ordinal.
    Create(i32),
    Delete(Arc<Pod>),
    /// Creates missing claims, and sets their owners.
    Claims(Arc<Pod>),
    /// Sets the owners of the claims of a pod that is to be deleted.
    Owners(Arc<Pod>),
    /// Sets the labels and volumes of the pod, and the owners of its claims.
    Conform(Arc<Pod>),
}

/// The steps on one pod, in their order.
pub type PodSteps = Vec<Step>;

/// The steps of a sync, in phases. The pods of one phase are handled in their order with
/// `OrderedReady`, else in batches. A step that fails ends the sync. Each pod of a phase has an
/// entry, empty if there is nothing to do, because the pods in front decide which batch a pod is
/// in.
#[derive(Debug, Default, PartialEq)]
pub struct Plan {
    pub replicas: Vec<PodSteps>,
    pub condemned_claims: Vec<PodSteps>,
    pub scale_down: Vec<PodSteps>,
    /// Pods to be replaced by their new version.
    pub update: Vec<PodSteps>,
    /// The number of unavailable wanted pods; `None` if the update was not reached or the limit is
    /// not in use.
    pub unavailable: Option<usize>,
}

/// Returns the claim of this name in the set's namespace.
pub type ClaimOf<'a> = &'a dyn Fn(&str) -> Option<Arc<PersistentVolumeClaim>>;

/// The input of a plan.
pub struct PlanInput<'a> {
    pub set: &'a StatefulSet,
    pub members: &'a Members,
    /// The name of the update revision.
    pub update: &'a str,
    pub claim: ClaimOf<'a>,
    /// `None`: one pod at a time is updated, the highest first. Upstream: the feature gate
    /// `MaxUnavailableStatefulSet`.
    pub max_unavailable: Option<usize>,
    pub now: Timestamp,
}

/// The pods of a set.
#[derive(Debug, Default)]
pub struct Members {
    /// Those within the wanted ordinals.
    pub replicas: BTreeMap<i32, Arc<Pod>>,
    /// The others, the highest ordinal first.
    pub condemned: Vec<Arc<Pod>>,
}

impl Members {
    /// Splits the pods of a set into the wanted and the condemned ones; pods without an ordinal are
    /// ignored. If two pods have one wanted ordinal (`web-1` and `web-01`), the pod with the right
    /// name counts.
    pub fn new(set: &StatefulSet, pods: &[Arc<Pod>]) -> Members {
        let mut members = Members::default();
        for pod in pods {
            let Some(ordinal) = ordinal(pod) else { continue };
            if !is_wanted(set, ordinal) {
                members.condemned.push(pod.clone());
            } else if *pod.meta.name == *pod_name(set, ordinal) {
                members.replicas.insert(ordinal, pod.clone());
            } else {
                members.replicas.entry(ordinal).or_insert_with(|| pod.clone());
            }
        }
        members.condemned.sort_by_cached_key(|pod| std::cmp::Reverse(ordinal(pod)));
        members
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.replicas.values().chain(&self.condemned)
    }
}

/// Returns how many pods an update may make unavailable: at least 1, which is the default.
/// Upstream: `getStatefulSetMaxUnavailable`.
pub fn max_unavailable(set: &StatefulSet) -> Result<usize, String> {
    let rolling = set.spec.update_strategy.rolling_update.as_ref();
    let value = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
    let most = value.map_or(Ok(1), |value| resolve_rounding_down(value, set.replicas()))?;
    Ok(usize::try_from(most).unwrap_or(1).max(1))
}

/// Returns whether a pod of this ordinal that is created now is of the current revision, and not of
/// the update revision.
/// Upstream: `newVersionedStatefulSetPod`.
pub fn is_of_current(set: &StatefulSet, ordinal: i32) -> bool {
    let strategy = &set.spec.update_strategy;
    let count = match &strategy.rolling_update {
        Some(rolling) => rolling.partition,
        // As upstream: without a partition, as many as still have the current revision.
        None if strategy.r#type == "RollingUpdate" => set.status.current_replicas,
        // `OnDelete`: every new pod is of the update revision.
        None => return false,
    };
    i64::from(ordinal) < wanted_ordinals(set).start + i64::from(count)
}

/// Returns the name of the revision of `pod`; empty if it is not labelled. Upstream:
/// `getPodRevision`.
pub fn revision(pod: &Pod) -> &str {
    pod.meta.labels.get(REVISION_LABEL).unwrap_or_default()
}

/// Counts the pods of revision `current` that `pod_steps` deletes, to be subtracted from
/// `currentReplicas`. Upstream counts all pods, and the API server refuses a negative number.
pub fn count_replaced(pod_steps: &[PodSteps], current: &str) -> i32 {
    let is_of_current = |step: &&Step| match step {
        Step::Delete(pod) => revision(pod) == current,
        _ => false,
    };
    let count = pod_steps.iter().flatten().filter(is_of_current).count();
    i32::try_from(count).unwrap_or(i32::MAX)
}

pub fn is_parallel(set: &StatefulSet) -> bool {
    set.spec.pod_management_policy == "Parallel"
}

/// Returns whether the pod is running and ready. Upstream: `isRunningAndReady`.
pub fn is_running_and_ready(pod: &Pod) -> bool {
    pod.status.phase == PodPhase::Running && pod.is_ready()
}

impl PlanInput<'_> {
    /// Plans the steps of a sync: for the wanted pods, for the condemned ones, and of the update.
    /// Upstream: `updateStatefulSet`.
    pub fn plan(&self) -> Plan {
        let mut plan = Plan::default();
        let are_planned = self.plan_replicas(&mut plan.replicas);
        if self.is_ordered() && !are_planned {
            return plan;
        }
        let owners = |pod: &Arc<Pod>| match self.owners_match(pod) {
            true => PodSteps::new(),
            false => vec![Step::Owners(pod.clone())],
        };
        plan.condemned_claims = self.members.condemned.iter().map(owners).collect();
        let is_scaled = self.plan_scale_down(&mut plan.scale_down);
        if are_planned && is_scaled && self.set.spec.update_strategy.r#type != "OnDelete" {
            let pods = match self.max_unavailable {
                None => self.next_update().into_iter().collect(),
                Some(most) => {
                    let unavailable = self.unavailable_replicas();
                    plan.unavailable = Some(unavailable);
                    self.pods_to_update(most, unavailable)
                }
            };
            plan.update = pods.into_iter().map(|pod| vec![Step::Delete(pod)]).collect();
        }
        plan
    }

    fn is_ordered(&self) -> bool {
        !is_parallel(self.set)
    }

    fn is_available(&self, pod: &Pod) -> bool {
        pod.is_available(self.set.spec.min_ready_seconds, self.now)
    }

    /// Returns whether the pod is not available, or is being deleted. Upstream: `isUnavailable`.
    fn is_unavailable(&self, pod: &Pod) -> bool {
        !self.is_available(pod) || pod.meta.is_being_deleted()
    }

    /// Plans the steps for the wanted pods. Returns whether these are all: if not, the update has
    /// to wait and, with `OrderedReady`, the deletion of condemned pods too. Upstream:
    /// `processReplica`.
    fn plan_replicas(&self, pod_steps: &mut Vec<PodSteps>) -> bool {
        let mut creations = 0;
        for ordinal in wanted_ordinals(self.set) {
            // Names with higher ordinals would not be recognized.
            let Ok(ordinal) = i32::try_from(ordinal) else { break };
            let (steps, continues) = match self.members.replicas.get(&ordinal) {
                Some(pod) => self.replica_steps(pod),
                None => {
                    let steps = self.creation_steps(ordinal);
                    // A pod that waits for a claim does not count in the batch.
                    creations += usize::from(!steps.is_empty());
                    (steps, !self.is_ordered() && creations < MAX_BATCH_SIZE)
                }
            };
            pod_steps.push(steps);
            if !continues {
                return false;
            }
        }
        true
    }

    /// Returns the step that creates the pod of an ordinal; no step while one of its claims is
    /// deleted together with an older pod.
    fn creation_steps(&self, ordinal: i32) -> PodSteps {
        let pod = pod_name(self.set, ordinal);
        for template in &self.set.spec.volume_claim_templates {
            if let Some(claim) = (self.claim)(&claim_name(self.set, template, ordinal))
                && retention::is_stale(self.set, &pod, &claim.meta)
            {
                return PodSteps::new();
            }
        }
        vec![Step::Create(ordinal)]
    }

    /// Returns the steps for a pod that is wanted, and whether the plan continues after it, which
    /// only `OrderedReady` may prevent.
    fn replica_steps(&self, pod: &Arc<Pod>) -> (PodSteps, bool) {
        let is_going = pod.meta.is_being_deleted();
        if pod.is_terminal() {
            // It has ended, with success or failure, and is replaced.
            let steps = if is_going { PodSteps::new() } else { vec![Step::Delete(pod.clone())] };
            return (steps, !self.is_ordered());
        }
        let mut steps = PodSteps::new();
        if pod.status.phase == PodPhase::Pending && !self.set.spec.volume_claim_templates.is_empty()
        {
            steps.push(Step::Claims(pod.clone()));
        }
        let waits = is_going || !is_running_and_ready(pod) || !self.is_available(pod);
        if self.is_ordered() && waits {
            return (steps, false);
        }
        let conforms = identity_matches(self.set, pod)
            && storage_matches(self.set, pod)
            && self.owners_match(pod);
        if !conforms {
            steps.push(Step::Conform(pod.clone()));
        }
        (steps, true)
    }

    /// Returns whether the claims of a pod have the owners that the retention policy asks for.
    /// Upstream: `ClaimsMatchRetentionPolicy`.
    fn owners_match(&self, pod: &Pod) -> bool {
        let Some(ordinal) = ordinal(pod) else { return true };
        let owners = Owners::new(self.set, &pod.meta.name, &pod.meta.uid, ordinal);
        for template in &self.set.spec.volume_claim_templates {
            if let Some(claim) = (self.claim)(&claim_name(self.set, template, ordinal))
                && !owners.are_up_to_date(claim.meta.owners())
            {
                return false;
            }
        }
        true
    }

    /// Plans the deletion of the condemned pods: with `OrderedReady` of the first one, unless it
    /// has to wait, else of all. Returns whether the sync continues with the update: with
    /// `OrderedReady` only once no pod is condemned.
    /// Upstream: `processCondemned`.
    fn plan_scale_down(&self, pod_steps: &mut Vec<PodSteps>) -> bool {
        let condemned = &self.members.condemned;
        // Of all unavailable ones, the lowest: with OrderedReady an unavailable pod is deleted only
        // if it is this one. Wanted pods need not be searched: all of them are available by then.
        let first_unavailable = condemned.iter().rfind(|pod| self.is_unavailable(pod));
        for pod in condemned {
            let waits = pod.meta.is_being_deleted()
                || self.is_ordered()
                    && !(is_running_and_ready(pod) && self.is_available(pod))
                    && !first_unavailable.is_some_and(|first| Arc::ptr_eq(first, pod));
            pod_steps.push(if waits { PodSteps::new() } else { vec![Step::Delete(pod.clone())] });
            if self.is_ordered() {
                return false;
            }
        }
        true
    }

    /// Returns the wanted pods that an update may replace, the highest first; `None` for a missing
    /// one.
    fn targets(&self) -> impl Iterator<Item = Option<&Arc<Pod>>> {
        let rolling = self.set.spec.update_strategy.rolling_update.as_ref();
        let partition = rolling.map_or(0, |rolling| i64::from(rolling.partition).max(0));
        let mut ordinals = wanted_ordinals(self.set);
        ordinals.start = ordinals.start.saturating_add(partition);
        let ordinals = ordinals.rev().filter_map(|ordinal| i32::try_from(ordinal).ok());
        ordinals.map(|ordinal| self.members.replicas.get(&ordinal))
    }

    /// Returns whether `pod` has to be replaced by an update, and is not being deleted yet.
    fn is_outdated(&self, pod: &Pod) -> bool {
        revision(pod) != self.update && !pod.meta.is_being_deleted()
    }

    /// Returns the highest pod that is not up to date, unless a higher one is not available yet.
    fn next_update(&self) -> Option<Arc<Pod>> {
        for target in self.targets() {
            // Missing or finished: its replacement comes first.
            let pod = target.filter(|pod| !pod.is_terminal())?;
            if self.is_outdated(pod) {
                return Some(pod.clone());
            }
            if self.is_unavailable(pod) {
                return None;
            }
        }
        None
    }

    /// Counts the wanted pods that are missing or unavailable.
    fn unavailable_replicas(&self) -> usize {
        let available = self.members.replicas.values().filter(|pod| !self.is_unavailable(pod));
        usize::try_from(self.set.replicas()).unwrap_or(0).saturating_sub(available.count())
    }

    /// Returns the pods to be updated, so that at most `most` are unavailable, of which
    /// `unavailable` are now. Outdated pods that are not available come first, for no available pod
    /// is lost by that. Available ones follow while there are fewer unavailable pods than `most`.
    /// Both are sorted, the highest first.
    /// Upstream: `updateStatefulSetAfterInvariantEstablished`, where the unavailable ones stay.
    fn pods_to_update(&self, most: usize, unavailable: usize) -> Vec<Arc<Pod>> {
        // A finished pod is deleted by its own step.
        let is_due = |pod: &Pod| self.is_outdated(pod) && !pod.is_terminal();
        let replicas = self.members.replicas.values();
        let broken = replicas.filter(|pod| is_due(pod) && self.is_unavailable(pod)).count();
        // The others are missing, on their way out, or up to date and not available yet.
        let being_replaced = unavailable.saturating_sub(broken);
        let due = self.targets().flatten().filter(|pod| is_due(pod)).cloned();
        let (mut pods, available): (Vec<_>, Vec<_>) = due.partition(|pod| self.is_unavailable(pod));
        pods.truncate(most.saturating_sub(being_replaced));
        pods.extend(available.into_iter().take(most.saturating_sub(unavailable)));
        pods
    }
}

#[cfg(test)]
mod tests;
