//! The condition of a DeviceTaintRule that shows the progress of the eviction.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::eviction::{NO_EXECUTE, Reason, newest_slices, selector_matches};
use super::{ConditionWrite, ObjectId, TaintEviction};
use crate::client::Patch;
use crate::controllers::{Error, Next, SyncResult};
use crate::objects::{Allocation, DeviceTaintRule, Istr, PartialObjectMetadata, Resource};

/// The shortest time between two updates while pods are evicted. Upstream: `ruleStatusPeriod`.
pub const PERIOD: Duration = Duration::from_secs(10);
/// Upstream: `DeviceTaintConditionEvictionInProgress`.
const IN_PROGRESS: &str = "EvictionInProgress";
/// The effect of a rule that only reports its consequences.
const NONE: &str = "None";

/// The consequences of a rule: evicted pods, and pods to be evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    pods: usize,
    namespaces: usize,
    published_devices: usize,
    allocated_devices: usize,
}

/// Returns a rule's condition: whether it is true, its reason and its message.
/// Upstream: `maybeUpdateRuleStatus`.
fn rule_condition(effect: &str, counts: Counts, evicted: u64) -> (bool, &'static str, String) {
    let count_of = |n: usize, singular: &str, plural: &str| match n {
        1 => format!("1 {singular}"),
        n => format!("{n} {plural}"),
    };
    let namespaces = count_of(counts.namespaces, "namespace", "different namespaces");
    let (in_progress, reason, mut message) = match effect {
        NO_EXECUTE if counts.pods > 0 => {
            let pods = count_of(counts.pods, "pod needs", "pods need");
            let message = format!("{pods} to be evicted in {namespaces}.");
            (true, "PodsPendingEviction", message)
        }
        NO_EXECUTE if evicted > 0 => (false, "Completed", String::new()),
        NO_EXECUTE => (false, "NotStarted", String::new()),
        NONE => {
            let devices = |n: usize, which: &str| {
                count_of(n, &format!("{which} device"), &format!("{which} devices"))
            };
            let message = format!(
                "{} selected. {} selected. {} would be evicted in {namespaces} if the effect was \
                 NoExecute. This information will not be updated again. Recreate the \
                 DeviceTaintRule to trigger an update.",
                devices(counts.published_devices, "published"),
                devices(counts.allocated_devices, "allocated"),
                count_of(counts.pods, "pod", "pods"),
            );
            (false, "NoEffect", message)
        }
        _ => {
            let message = "Eviction only happens for the NoExecute effect.";
            (false, "OtherEffect", message.to_owned())
        }
    };
    if evicted > 0 {
        if !message.is_empty() {
            message.push(' ');
        }
        let pods = count_of(usize::try_from(evicted).unwrap_or(usize::MAX), "pod", "pods");
        message.push_str(&format!("{pods} evicted since starting the controller."));
    }
    (in_progress, reason, message)
}

impl TaintEviction {
    /// Writes the condition of a rule if it changes, at most once in [`PERIOD`].
    pub(super) async fn sync_rule(&self, id: &ObjectId) -> SyncResult {
        let rule = self.rules.as_ref().and_then(|rules| rules.get(&id.key));
        let Some(rule) = rule.filter(|rule| rule.meta.uid == id.uid) else {
            return Ok(Next::Done);
        };
        let now = self.clock.now();
        let mut conditions = rule.status.conditions.iter();
        let old = conditions.find(|condition| condition.r#type == IN_PROGRESS);
        // The period is checked first: counting may take a long time. So "in progress" ends late.
        let generation = rule.meta.generation;
        // A change of the rule's spec, a new generation, is not delayed.
        let cached_time = match old {
            Some(old) if old.observed_generation == generation => old.last_transition_time,
            _ => None,
        };
        // The cache may lag behind the last write.
        let write = self.state.lock().condition_writes.get(&rule.meta.uid).copied();
        let written_time = match write {
            Some(write) if write.generation == generation => Some(write.time),
            _ => None,
        };
        if let Some(time) = cached_time.max(written_time) {
            let since = now.duration_since(time);
            if since < PERIOD {
                return Ok(Next::After(PERIOD - since));
            }
        }
        let evicted = self.evicted_by(&rule.meta.uid);
        let counts = self.count_consequences(&rule);
        let (in_progress, reason, message) =
            rule_condition(&rule.spec.taint.effect, counts, evicted);
        let status = if in_progress { "True" } else { "False" };
        let is_known = old.is_some_and(|old| {
            old.status == status
                && old.reason == reason
                && old.message == message
                && old.observed_generation == generation
        });
        if is_known {
            return Ok(Next::Done);
        }
        let condition = json!({
            "type": IN_PROGRESS, "status": status, "reason": reason, "message": message,
            "observedGeneration": generation, "lastTransitionTime": now,
        });
        let resource = self.client.served(&DeviceTaintRule::RESOURCE);
        let body = json!({
            "apiVersion": resource.api_version(), "kind": resource.kind,
            "metadata": { "name": &*rule.meta.name, "uid": rule.meta.uid },
            "status": { "conditions": [condition] },
        });
        let patch = Patch::Apply { manager: self.name.to_owned(), force: true, body };
        let rules = self.client.resource(&resource).metadata_only();
        let applied = rules.subresource("status").patch(&id.key, &patch).await;
        match applied.map(|_: PartialObjectMetadata| ()) {
            Err(error) if error.is_not_found() => Ok(Next::Done),
            Err(error) => Err(Error::during("add condition to DeviceTaintRule status", error)),
            Ok(()) => {
                let write = ConditionWrite { generation, time: now };
                self.state.lock().condition_writes.insert(rule.meta.uid.clone(), write);
                Ok(Next::Done)
            }
        }
    }

    /// Counts the pods that the rule evicts. With the effect None counts those that it would evict,
    /// and the devices that it selects.
    fn count_consequences(&self, rule: &DeviceTaintRule) -> Counts {
        match rule.spec.taint.effect.as_str() {
            NO_EXECUTE => self.count_affected(rule, &self.evicting_rules()),
            NONE => {
                let mut evicting = rule.clone();
                evicting.spec.taint.effect = NO_EXECUTE.into();
                let (published_devices, allocated_devices) = self.count_selected(rule);
                let counts = self.count_affected(rule, &[evicting.into()]);
                Counts { published_devices, allocated_devices, ..counts }
            }
            _ => Counts::default(),
        }
    }

    /// Counts the pods that `rule`, one of `rules`, evicts, and their namespaces.
    fn count_affected(&self, rule: &DeviceTaintRule, rules: &[Arc<DeviceTaintRule>]) -> Counts {
        let reason = Reason::of_rule(rule);
        let (mut pods, mut namespaces) = (0, BTreeSet::<Istr>::new());
        for pod in self.pods.list() {
            let is_affected = !pod.meta.is_being_deleted()
                && self
                    .pod_eviction(&pod, rules)
                    .is_some_and(|eviction| eviction.reasons.contains(&reason));
            if is_affected {
                pods += 1;
                namespaces.insert(pod.meta.namespace.clone());
            }
        }
        Counts { pods, namespaces: namespaces.len(), ..Counts::default() }
    }

    /// Counts the devices that the rule selects. Returns the number of published ones, and that of
    /// allocated ones.
    fn count_selected(&self, rule: &DeviceTaintRule) -> (usize, usize) {
        let selector = rule.spec.device_selector.as_ref();
        let mut pools: BTreeSet<(Istr, Istr)> = BTreeSet::new();
        for slice in self.slices.list() {
            pools.insert((slice.spec.driver.clone(), slice.spec.pool.name.clone()));
        }
        let mut published = 0;
        for (driver, pool) in &pools {
            let slices = self.slices_of(driver, pool);
            let devices = newest_slices(&slices).flat_map(|slice| &slice.spec.devices);
            published += devices
                .filter(|device| selector_matches(selector, driver, pool, &device.name))
                .count();
        }
        let mut allocated = 0;
        for claim in self.claims.list() {
            let Some(Allocation(devices)) = &claim.status.allocation else { continue };
            let selected = devices.iter().filter(|device| {
                selector_matches(selector, &device.driver, &device.pool, &device.device)
            });
            allocated += selected.count();
        }
        (published, allocated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_condition_shows_the_progress_of_the_eviction() {
        let counts = |pods, namespaces| Counts { pods, namespaces, ..Counts::default() };
        let none = "if the effect was NoExecute. This information will not be updated again. \
                    Recreate the DeviceTaintRule to trigger an update.";
        let devices = |counts: Counts, published_devices, allocated_devices| Counts {
            published_devices,
            allocated_devices,
            ..counts
        };
        for (effect, counts, evicted, expected) in [
            (NO_EXECUTE, counts(0, 0), 0, (false, "NotStarted", String::new())),
            (
                NO_EXECUTE,
                counts(1, 1),
                0,
                (true, "PodsPendingEviction", "1 pod needs to be evicted in 1 namespace.".into()),
            ),
            (
                NO_EXECUTE,
                counts(3, 2),
                1,
                (
                    true,
                    "PodsPendingEviction",
                    "3 pods need to be evicted in 2 different namespaces. 1 pod evicted since \
                     starting the controller."
                        .into(),
                ),
            ),
            (
                NO_EXECUTE,
                counts(0, 0),
                2,
                (false, "Completed", "2 pods evicted since starting the controller.".into()),
            ),
            (
                NONE,
                devices(counts(0, 0), 0, 1),
                0,
                (
                    false,
                    "NoEffect",
                    format!(
                        "0 published devices selected. 1 allocated device selected. 0 pods would \
                         be evicted in 0 different namespaces {none}"
                    ),
                ),
            ),
            (
                NONE,
                devices(counts(1, 1), 1, 2),
                0,
                (
                    false,
                    "NoEffect",
                    format!(
                        "1 published device selected. 2 allocated devices selected. 1 pod would \
                         be evicted in 1 namespace {none}"
                    ),
                ),
            ),
            (
                "NoSchedule",
                counts(0, 0),
                0,
                (false, "OtherEffect", "Eviction only happens for the NoExecute effect.".into()),
            ),
        ] {
            assert_eq!(rule_condition(effect, counts, evicted), expected, "{effect} {counts:?}");
        }
    }
}
