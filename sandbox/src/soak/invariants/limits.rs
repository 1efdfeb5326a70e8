//! Limits of namespaces, volumes and CronJobs.

use std::collections::HashMap;

use serde_json::Value;

use super::{Change, Check, Groups, Verdict, at_most_one, controller, has_condition, has_ended};
use crate::object::text;
use kube_controller_manager::objects::Timestamp;

/// No volume is attached to two nodes at a time. This holds for all volumes, since those of the
/// soak are `ReadWriteOnce`.
#[derive(Default)]
pub struct Attached(Groups);

impl Check for Attached {
    fn name(&self) -> &'static str {
        "no volume attached twice"
    }

    /// Judges each attachment that becomes attached: its volume may have no other one.
    fn observe(&mut self, change: &Change<'_>) -> Verdict {
        if change.table != "volumeattachments.storage.k8s.io" {
            return Verdict::Unrelated;
        }
        let attached = change.live().filter(|it| it["status"]["attached"] == true);
        let group = attached.map(|it| text(it, "/spec/source/persistentVolumeName").to_owned());
        at_most_one(self.0.put(change.uid(), group), "attachments of one volume")
    }
}

/// A CronJob that forbids it never has two Jobs that have not finished.
#[derive(Default)]
pub struct NoOverlap(Groups);

impl Check for NoOverlap {
    fn name(&self) -> &'static str {
        "no two unfinished Jobs of a CronJob"
    }

    /// Judges each new Job of a CronJob: none of its other Jobs may be unfinished.
    fn observe(&mut self, change: &Change<'_>) -> Verdict {
        if change.table != "jobs.batch" {
            return Verdict::Unrelated;
        }
        let group = change.live().and_then(|job| {
            let ("CronJob", cron) = controller(job)? else { return None };
            let finished = ["Complete", "Failed"].iter().any(|name| has_condition(job, name));
            (!finished).then(|| cron.to_owned())
        });
        at_most_one(self.0.put(change.uid(), group), "unfinished Jobs")
    }
}

/// The pods of a namespace never exceed its quota, and the quota's usage never its limit.
///
/// A new quota limits nothing until the controller has counted, and what is created while it counts
/// may be missing in the count. So a quota is held from the first moment on at which its usage is
/// right. A pod that still exists after its grace period does not count. Upstream: `QuotaV1Pod`.
#[derive(Default)]
pub struct Quotas {
    quotas: HashMap<String, Quota>,
    pods: Groups,
    /// The pods in deletion, by uid: their namespace, and the second until which they count.
    leaving: HashMap<String, (String, i64)>,
}

impl Quotas {
    /// Returns how many pods of a namespace count against its quota.
    fn count(&self, namespace: &str, now: Timestamp) -> u64 {
        let is_stuck = |(of, until): &&(String, i64)| of == namespace && *until <= now.as_secs();
        (self.pods.size(namespace) - self.leaving.values().filter(is_stuck).count()) as u64
    }
}

struct Quota {
    uid: String,
    pods: u64,
    is_right: bool,
}

impl Check for Quotas {
    fn name(&self) -> &'static str {
        "no quota passed"
    }

    /// Follows quotas and the pods that count. Once a quota's status has shown the right count,
    /// judges each new pod, and each status of the quota, by its limit.
    fn observe(&mut self, change: &Change<'_>) -> Verdict {
        let namespace = change.key.split_once('/').map_or("", |(namespace, _)| namespace);
        match change.table {
            "resourcequotas" if change.deleted => {
                self.quotas.remove(namespace);
                Verdict::Unrelated
            }
            "resourcequotas" => {
                let count = self.count(namespace, change.now);
                let Some(pods) = number(&change.new["status"]["hard"]["pods"]) else {
                    return Verdict::Unrelated;
                };
                let uid = change.uid().to_owned();
                let is_new = self.quotas.get(namespace).is_none_or(|quota| quota.uid != uid);
                if is_new {
                    self.quotas.insert(namespace.to_owned(), Quota { uid, pods, is_right: false });
                }
                let Some(quota) = self.quotas.get_mut(namespace) else { return Verdict::Unrelated };
                let used = number(&change.new["status"]["used"]["pods"]);
                quota.is_right |= used == Some(count);
                match over(change.new) {
                    Some(over) if quota.is_right => Verdict::Broken(over),
                    _ => Verdict::Holds,
                }
            }
            "pods" => {
                let live = change.live().filter(|pod| !has_ended(pod));
                match live.and_then(counts_until) {
                    Some(until) => {
                        let leaving = (namespace.to_owned(), until);
                        self.leaving.insert(change.uid().to_owned(), leaving);
                    }
                    None => drop(self.leaving.remove(change.uid())),
                }
                let grown = self.pods.put(change.uid(), live.map(|_| namespace.to_owned()));
                let quota = self.quotas.get(namespace).filter(|quota| quota.is_right);
                let Some((_, quota)) = grown.zip(quota) else { return Verdict::Unrelated };
                match self.count(namespace, change.now) {
                    count if count > quota.pods => {
                        Verdict::Broken(format!("{count} pods under a quota of {}", quota.pods))
                    }
                    _ => Verdict::Holds,
                }
            }
            _ => Verdict::Unrelated,
        }
    }
}

/// Returns the second until which a pod in deletion counts. As upstream, the grace period is added
/// to the time of the deletion, which has it already.
fn counts_until(pod: &Value) -> Option<i64> {
    let deletion: Timestamp = text(pod, "/metadata/deletionTimestamp").parse().ok()?;
    Some(deletion.as_secs() + pod["metadata"]["deletionGracePeriodSeconds"].as_i64()?)
}

fn number(quantity: &Value) -> Option<u64> {
    quantity.as_str()?.parse().ok()
}

/// Returns a usage that is above its limit.
fn over(quota: &Value) -> Option<String> {
    let hard = quota["status"]["hard"].as_object()?;
    hard.iter().find_map(|(name, hard)| {
        let used = number(&quota["status"]["used"][name])?;
        let hard = number(hard)?;
        (used > hard).then(|| format!("used {used} of {hard} {name}"))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::broken;
    use super::*;

    #[test]
    fn a_volume_on_two_nodes_is_found() {
        let on = |name: &str, volume: &str, attached: bool, deleted| {
            let attachment = json!({
                "metadata": { "name": name, "uid": name },
                "spec": { "source": { "persistentVolumeName": volume } },
                "status": { "attached": attached },
            });
            ("volumeattachments.storage.k8s.io", attachment, deleted)
        };
        let changes = [
            on("a", "v", true, false),
            on("b", "v", false, false),
            on("c", "w", true, false),
            on("b", "v", true, false),
            on("a", "v", true, true),
            on("d", "v", true, false),
            on("b", "v", false, false),
            on("b", "v", false, true),
        ];
        assert_eq!(broken(&mut Attached::default(), &changes), [3, 5]);
    }

    #[test]
    fn overlapping_jobs_are_found() {
        let job = |name: &str, finished: &str| {
            let job = json!({
                "metadata": {
                    "name": name, "uid": name,
                    "ownerReferences": [{ "kind": "CronJob", "uid": "c", "controller": true }],
                },
                "status": { "conditions": [{ "type": finished, "status": "True" }] },
            });
            ("jobs.batch", job, false)
        };
        let changes = [job("a", ""), job("a", "Complete"), job("b", "Suspended"), job("c", "")];
        assert_eq!(broken(&mut NoOverlap::default(), &changes), [3]);
    }

    #[test]
    fn a_quota_that_is_passed_is_found_once_it_has_been_right() {
        let quota = |used: &str| {
            let quota = json!({
                "metadata": { "namespace": "a", "name": "q", "uid": "q" },
                "status": { "hard": { "pods": "2" }, "used": { "pods": used } },
            });
            ("resourcequotas", quota, false)
        };
        let pod = |name: &str, phase: &str| {
            let pod = json!({
                "metadata": { "namespace": "a", "name": name, "uid": name },
                "status": { "phase": phase },
            });
            ("pods", pod, false)
        };
        let changes = [
            pod("x", "Running"),
            quota("0"),
            pod("y", "Running"),
            pod("z", "Running"),
            pod("z", "Failed"),
            quota("2"),
            pod("w", "Pending"),
            quota("3"),
            pod("x", "Succeeded"),
            pod("w", "Running"),
        ];
        assert_eq!(broken(&mut Quotas::default(), &changes), [6, 7]);
    }

    #[test]
    fn a_pod_that_outlives_its_grace_period_leaves_room() {
        let quota = json!({
            "metadata": { "name": "q", "namespace": "a", "uid": "q" },
            "status": { "hard": { "pods": "1" }, "used": { "pods": "1" } },
        });
        let pod = |name: &str, deletion: Option<&str>| {
            json!({ "metadata": { "name": name, "namespace": "a", "uid": name,
                "deletionTimestamp": deletion, "deletionGracePeriodSeconds": deletion.map(|_| 2) } })
        };
        // Change n comes at second n.
        for (second, expected) in
            [("1970-01-01T00:00:03Z", vec![3]), ("1970-01-01T00:00:01Z", vec![])]
        {
            let changes = [
                ("pods", pod("x", None), false),
                ("resourcequotas", quota.clone(), false),
                ("pods", pod("x", Some(second)), false),
                ("pods", pod("y", None), false),
            ];
            assert_eq!(broken(&mut Quotas::default(), &changes), expected, "{second}");
        }
    }
}
