//! Writes to a Node. Each is conditional on the version that was read, or replaces the controller's
//! own field.

use std::time::Duration;

use kube_controller_manager::client::{self, Client, Patch};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::{PartialObjectMetadata, Resource, Taint};
use serde_json::{Value, json};

use crate::objects::Node;

/// Attempts at a write that conflicts, and the least delay between them.
#[derive(Clone, Copy)]
pub struct Backoff {
    pub attempts: u32,
    pub delay: Duration,
}

/// Upstream: `updateTaintBackoff`, `updateLabelBackoff`, `updateNetworkConditionBackoff`.
pub const BACKOFF: Backoff = Backoff { attempts: 5, delay: Duration::from_millis(100) };
/// Upstream: `UpdateNodeSpecBackoff`.
pub const INITIAL_BACKOFF: Backoff = Backoff { attempts: 20, delay: Duration::from_millis(50) };

/// Patches a Node with the body that `change` makes of it: first of the cached one, after a
/// conflict of the live one. Returns the Node of which the body was made; `None`: nothing was
/// written, as `change` returned no body, or another Node has the name by now.
pub async fn patch(
    client: &Client,
    clock: &SharedClock,
    cached: &Node,
    backoff: Backoff,
    change: impl Fn(&Node) -> Option<Value>,
) -> client::Result<Option<Node>> {
    let (key, nodes) = (cached.meta.key(), client.resource(&Node::RESOURCE));
    let mut node = cached.clone();
    for attempt in 1.. {
        let Some(mut body) = change(&node) else { return Ok(None) };
        body["metadata"]["uid"] = json!(node.meta.uid);
        body["metadata"]["resourceVersion"] = node.meta.resource_version.to_string().into();
        match nodes.patch::<PartialObjectMetadata>(&key, &Patch::Merge(body)).await {
            Ok(_) => break,
            Err(error) if error.is_conflict() && attempt < backoff.attempts => {}
            Err(error) => return Err(error),
        }
        clock.sleep(backoff.delay.mul_f64(1.0 + fastrand::f64())).await;
        node = client.get(&key).await?;
        if node.meta.uid != cached.meta.uid {
            return Ok(None);
        }
    }
    Ok(Some(node))
}

/// Returns the body that sets the taints of a Node: they are one field to the API. Without taints
/// it is null, which removes the field.
pub fn with_taints(taints: &[Taint]) -> Value {
    let taints: Vec<Value> = taints.iter().map(taint_json).collect();
    json!({ "spec": { "taints": Some(taints).filter(|taints| !taints.is_empty()) } })
}

/// Returns a taint as JSON, without its empty fields.
fn taint_json(taint: &Taint) -> Value {
    let mut written = json!({ "key": taint.key, "effect": taint.effect });
    if !taint.value.is_empty() {
        written["value"] = json!(taint.value);
    }
    if let Some(since) = taint.time_added {
        written["timeAdded"] = since.to_string().into();
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taints_are_written_whole() {
        let taints: Vec<Taint> = serde_json::from_value(json!([
            { "key": "a", "effect": "NoSchedule" },
            { "key": "b", "value": "v", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z" },
        ]))
        .expect("taints");
        assert_eq!(
            with_taints(&taints)["spec"]["taints"],
            json!([
                { "key": "a", "effect": "NoSchedule" },
                { "key": "b", "value": "v", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z" },
            ])
        );
        assert_eq!(with_taints(&[]), json!({ "spec": { "taints": null } }));
    }
}
