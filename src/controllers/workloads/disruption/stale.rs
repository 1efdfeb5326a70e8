//! Resets the condition DisruptionTarget of pods that were to be disrupted but stay.
//! Upstream: `syncStalePodDisruption`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cache::Lister;
use crate::client::{Client, Patch};
use crate::clock::SharedClock;
use crate::controllers::{Next, SyncResult};
use crate::objects::{ObjectKey, PartialObjectMetadata, Pod, Resource, Timestamp};

/// Upstream: `stalePodDisruptionTimeout`.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Upstream: `v1.PodReasonTerminationByKubelet`.
const BY_KUBELET: &str = "TerminationByKubelet";

pub(super) struct Stale {
    pub client: Client,
    pub clock: SharedClock,
    pub pods: Lister<Pod>,
}

impl Stale {
    /// Returns the time until the condition of `pod` is stale: see the function [`stale_after`].
    pub fn stale_after(&self, pod: &Pod) -> Option<Duration> {
        stale_after(pod, self.clock.now())
    }

    /// Clears the condition DisruptionTarget of a pod once the condition is stale, since the pod
    /// was not deleted; waits until then.
    pub async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(pod) = self.pods.get(&key) else { return Ok(Next::Done) };
        let now = self.clock.now();
        match stale_after(&pod, now) {
            None => Ok(Next::Done),
            Some(after) if !after.is_zero() => Ok(Next::After(after)),
            Some(_) => {
                let status = self.client.resource(&Pod::RESOURCE).subresource("status");
                let patch = Patch::StrategicMerge(clear_patch(&pod, now));
                status.patch::<PartialObjectMetadata>(&key, &patch).await?;
                Ok(Next::Done)
            }
        }
    }
}

/// Returns the time until the condition DisruptionTarget of a pod is stale, zero if it has no time;
/// `None` if it is not set, the pod has ended or is being deleted, or it is never stale: the
/// kubelet may set it a long time before the pod is deleted.
/// Upstream: `nonTerminatingPodHasStaleDisruptionCondition`.
fn stale_after(pod: &Pod, now: Timestamp) -> Option<Duration> {
    let condition = pod.status.condition("DisruptionTarget")?;
    let may_be_stale = condition.is_true()
        && condition.reason != BY_KUBELET
        && !pod.meta.is_being_deleted()
        && !pod.is_terminal();
    let since = pod.rare_status().and_then(|rare| rare.disruption_target_since);
    let deadline = since.unwrap_or(Timestamp::from_secs(0)) + TIMEOUT;
    may_be_stale.then(|| deadline.duration_since(now))
}

/// Returns the patch that sets the condition to False, if the pod is still at this version.
fn clear_patch(pod: &Pod, now: Timestamp) -> Value {
    let mut condition = json!({
        "type": "DisruptionTarget", "status": "False", "reason": null, "message": null,
        "lastProbeTime": null, "lastTransitionTime": now,
    });
    if pod.meta.generation != 0 {
        condition["observedGeneration"] = pod.meta.generation.into();
    }
    json!({
        "metadata": {
            "uid": pod.meta.uid, "resourceVersion": pod.meta.resource_version.to_string(),
        },
        "status": { "conditions": [condition] },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_conditions_become_stale_and_when() {
        let now = Timestamp::from_secs(1000);
        let pod = |status: &str, reason: &str, since: i64, phase: &str, deleted: bool| -> Pod {
            let pod = json!({
                "metadata": {
                    "name": "p", "uid": "u", "generation": 4, "resourceVersion": "7",
                    "deletionTimestamp": deleted.then_some("2026-01-01T00:00:00Z"),
                },
                "status": { "phase": phase, "conditions": [{
                    "type": "DisruptionTarget", "status": status, "reason": reason,
                    "lastTransitionTime": Timestamp::from_secs(since),
                }] },
            });
            serde_json::from_value(pod).unwrap()
        };
        const EVICTED: &str = "EvictionByEvictionAPI";
        for (status, reason, since, phase, deleted, after) in [
            ("True", EVICTED, 1000, "Running", false, Some(120)),
            ("True", EVICTED, 881, "Pending", false, Some(1)),
            ("True", EVICTED, 880, "Running", false, Some(0)),
            ("True", EVICTED, 5, "Running", false, Some(0)),
            ("True", EVICTED, 5, "Running", true, None),
            ("True", EVICTED, 5, "Failed", false, None),
            ("True", EVICTED, 5, "Succeeded", false, None),
            ("True", BY_KUBELET, 5, "Running", false, None),
            ("False", EVICTED, 5, "Running", false, None),
        ] {
            let pod = pod(status, reason, since, phase, deleted);
            let found = stale_after(&pod, now).map(|after| after.as_secs());
            assert_eq!(found, after, "{status} {reason} {since} {phase} {deleted}");
        }
        assert_eq!(stale_after(&Pod::default(), now), None);

        let patch = clear_patch(&pod("True", EVICTED, 5, "Running", false), now);
        assert_eq!(patch["metadata"], json!({ "uid": "u", "resourceVersion": "7" }));
        let condition = &patch["status"]["conditions"][0];
        assert_eq!(
            (&condition["status"], &condition["observedGeneration"]),
            (&json!("False"), &json!(4))
        );
        assert_eq!(condition["lastTransitionTime"], json!(now));
    }
}
