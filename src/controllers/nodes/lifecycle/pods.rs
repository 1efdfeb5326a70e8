//! Marks the pods of nodes that are not ready as not ready.

use std::sync::Arc;

use serde_json::{Value, json};

use super::NodeLifecycle;
use crate::client::Patch;
use crate::controllers::{Error, Next, SyncResult};
use crate::objects::{ObjectKey, PartialObjectMetadata, Pod, Resource, Timestamp};

impl NodeLifecycle {
    /// Marks a pod as not ready if its node is not ready. The node may have been so already when
    /// the pod was bound. Upstream: `processPod`.
    pub(super) async fn mark_pod_of_not_ready_node(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(pod) = self.pods.get(&key) else { return Ok(Next::Done) };
        let node = &pod.spec.node_name;
        if !self.is_not_ready(node) {
            return Ok(Next::Done);
        }
        if self.nodes.get(&ObjectKey::cluster(node)).is_none() {
            // The cache of nodes may be behind that of pods.
            return Ok(Next::Backoff);
        }
        self.mark_not_ready(&[pod]).await?;
        Ok(Next::Done)
    }

    /// Marks pods as not ready, with an event each; continues after a failure.
    /// Upstream: `MarkPodsNotReady`.
    pub(super) async fn mark_not_ready(&self, pods: &[Arc<Pod>]) -> Result<(), Error> {
        let statuses = self.client.resource(&Pod::RESOURCE).subresource("status");
        let mut errors = Vec::new();
        for pod in pods {
            let Some(patch) = not_ready_patch(pod, self.clock.now()) else { continue };
            let patch = Patch::StrategicMerge(patch);
            match statuses.patch::<PartialObjectMetadata>(&pod.meta.key(), &patch).await {
                Err(error) if error.is_not_found() => continue,
                Err(error) => errors.push(Error::Api(error)),
                Ok(_) => {}
            }
            // Also of one whose write failed, as upstream.
            self.recorder.warning(&**pod, "NodeNotReady", "Node is not ready");
        }
        Error::many(errors).map_or(Ok(()), Err)
    }
}

/// Returns the patch that sets the condition Ready to False; `None` if the pod has no such
/// condition or it is False already. The API server refuses it if the pod has changed: the kubelet
/// may be back.
fn not_ready_patch(pod: &Pod, now: Timestamp) -> Option<Value> {
    let ready = pod.status.condition("Ready")?;
    if ready.status == "False" {
        return None;
    }
    Some(json!({
        "metadata": {
            "uid": pod.meta.uid, "resourceVersion": pod.meta.resource_version.to_string(),
        },
        "status": {
            "conditions": [{ "type": "Ready", "status": "False", "lastTransitionTime": now }],
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_condition_that_is_not_false_is_changed() {
        for (conditions, changes) in [
            (json!([]), false),
            (json!([{ "type": "Initialized", "status": "True" }]), false),
            (json!([{ "type": "Ready", "status": "False" }]), false),
            (json!([{ "type": "Ready", "status": "True" }]), true),
            (json!([{ "type": "Ready", "status": "Unknown" }]), true),
        ] {
            let pod: Pod = serde_json::from_value(json!({
                "metadata": { "uid": "u", "resourceVersion": "7" },
                "status": { "conditions": conditions },
            }))
            .unwrap();
            let expected = changes.then(|| {
                json!({
                    "metadata": { "uid": "u", "resourceVersion": "7" },
                    "status": { "conditions": [{
                        "type": "Ready", "status": "False",
                        "lastTransitionTime": "1970-01-01T00:01:00Z",
                    }] },
                })
            });
            assert_eq!(not_ready_patch(&pod, Timestamp::from_secs(60)), expected, "{conditions}");
        }
    }
}
