//! The taints that show a node's condition, and the write that sets and removes taints.

use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{Client, Patch};
use crate::clock::SharedClock;
use crate::controllers::Error;
use crate::objects::{Node, PartialObjectMetadata, Resource, Taint, Timestamp};

pub const NOT_READY: &str = "node.kubernetes.io/not-ready";
pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
pub const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
pub const MEMORY_PRESSURE: &str = "node.kubernetes.io/memory-pressure";
pub const DISK_PRESSURE: &str = "node.kubernetes.io/disk-pressure";
pub const PID_PRESSURE: &str = "node.kubernetes.io/pid-pressure";
pub const NETWORK_UNAVAILABLE: &str = "node.kubernetes.io/network-unavailable";

/// Attempts at a write that conflicts, and the least delay between them.
/// Upstream: `UpdateTaintBackoff`.
const ATTEMPTS: usize = 5;
const BACKOFF_MILLIS: u64 = 100;

pub fn has_taint(node: &Node, key: &str, effect: &str) -> bool {
    node.spec.taints.iter().any(|taint| taint.key == *key && taint.effect == *effect)
}

/// A change of a node's taints of one effect, by their keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swap<'a> {
    pub effect: &'static str,
    pub add: Vec<&'a str>,
    pub remove: Vec<&'a str>,
}

impl Swap<'_> {
    /// Returns the taints after the change; `None` if nothing changes. A taint that is to be added
    /// and exists becomes the new one.
    /// Upstream: `AddOrUpdateTaint`, `RemoveTaint`.
    fn apply(&self, taints: &[Taint], now: Timestamp) -> Option<Vec<Taint>> {
        let is_one_of = |taint: &Taint, keys: &[&str]| {
            taint.effect == *self.effect && keys.contains(&taint.key.as_str())
        };
        let new = |key: &str| Taint {
            key: key.into(),
            effect: self.effect.into(),
            time_added: Some(now.truncate_to_secs()),
            ..Taint::default()
        };
        let mut after: Vec<Taint> =
            taints.iter().filter(|taint| !is_one_of(taint, &self.remove)).cloned().collect();
        for taint in &mut after {
            if is_one_of(taint, &self.add) {
                *taint = new(&taint.key.clone());
            }
        }
        for key in &self.add {
            if !after.iter().any(|taint| is_one_of(taint, &[key])) {
                after.push(new(key));
            }
        }
        if after == taints {
            return None;
        }
        Some(after)
    }

    /// Writes the change, first on the node as it is cached. One request, conditional on the
    /// version of the node: taints are one field to the API. A conflict is retried on the live
    /// node, unless that is another one of this name. Upstream: `SwapNodeControllerTaint`.
    pub async fn write(
        &self,
        client: &Client,
        clock: &SharedClock,
        cached: &Node,
    ) -> Result<(), Error> {
        let (key, nodes) = (cached.meta.key(), client.resource(&Node::RESOURCE));
        let mut live: Option<Node> = None;
        for attempt in 1.. {
            let node = live.as_ref().unwrap_or(cached);
            let Some(taints) = self.apply(&node.spec.taints, clock.now()) else { break };
            let patch = Patch::Merge(patch(node, &taints));
            match nodes.patch::<PartialObjectMetadata>(&key, &patch).await {
                Ok(_) => break,
                Err(error) if error.is_conflict() && attempt < ATTEMPTS => {}
                Err(error) => return Err(error.into()),
            }
            let wait = BACKOFF_MILLIS + fastrand::u64(..BACKOFF_MILLIS);
            clock.sleep(Duration::from_millis(wait)).await;
            let found: Node = client.get(&key).await?;
            if found.meta.uid != cached.meta.uid {
                break;
            }
            live = Some(found);
        }
        Ok(())
    }
}

/// Builds the patch that replaces all taints. The API server refuses it if the node has changed.
fn patch(node: &Node, taints: &[Taint]) -> Value {
    let taints: Vec<Value> = taints.iter().map(taint_json).collect();
    let taints = if taints.is_empty() { Value::Null } else { taints.into() };
    json!({
        "metadata": {
            "uid": node.meta.uid, "resourceVersion": node.meta.resource_version.to_string(),
        },
        "spec": { "taints": taints },
    })
}

/// Encodes a taint as the API has it, without empty fields.
fn taint_json(taint: &Taint) -> Value {
    let mut written = json!({ "key": taint.key, "effect": taint.effect });
    if !taint.value.is_empty() {
        written["value"] = taint.value.as_str().into();
    }
    if let Some(since) = taint.time_added {
        written["timeAdded"] = since.to_string().into();
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{NO_EXECUTE, NO_SCHEDULE};

    fn taint(text: &str) -> Taint {
        let parts: Vec<&str> = text.split(' ').collect();
        let [key, effect, second] = parts[..] else { panic!("{text}") };
        Taint {
            key: key.into(),
            effect: effect.into(),
            time_added: second.parse().ok().map(Timestamp::from_secs),
            ..Taint::default()
        }
    }

    #[test]
    fn a_swap_changes_its_taints_and_no_others() {
        let swap = |add: &[&'static str], remove: &[&'static str]| Swap {
            effect: NO_EXECUTE,
            add: add.to_vec(),
            remove: remove.to_vec(),
        };
        let now = Timestamp::from_micros(60_900_000);
        // Taints before, the change, and the taints after; none: no write.
        for (before, change, after) in [
            (&[][..], swap(&["a"], &[]), Some(&["a NoExecute 60"][..])),
            (&["a NoSchedule -"], swap(&["a"], &[]), Some(&["a NoSchedule -", "a NoExecute 60"])),
            (&["a NoExecute 5", "b NoExecute 6"], swap(&["a"], &["b"]), Some(&["a NoExecute 60"])),
            (&["a NoExecute 60"], swap(&["a"], &["b"]), None),
            (&["a NoExecute 5"], swap(&[], &["a"]), Some(&[])),
            (&["a NoSchedule 5"], swap(&[], &["a"]), None),
            (&["b NoExecute 5"], swap(&["a"], &["b"]), Some(&["a NoExecute 60"])),
        ] {
            let taints = |list: &[&str]| -> Vec<Taint> { list.iter().map(|t| taint(t)).collect() };
            assert_eq!(
                change.apply(&taints(before), now),
                after.map(taints),
                "{before:?} {change:?}"
            );
        }
    }

    #[test]
    fn a_patch_replaces_the_taints_of_the_version_that_was_read() {
        let mut node = Node::default();
        (node.meta.uid, node.meta.resource_version) = ("u".into(), 7);
        let body = |taints: &[Taint]| patch(&node, taints);
        let metadata = json!({ "uid": "u", "resourceVersion": "7" });
        assert_eq!(body(&[]), json!({ "metadata": metadata, "spec": { "taints": null } }));
        let valued = Taint { value: "v".into(), ..taint("a NoSchedule -") };
        assert_eq!(
            body(&[valued, taint("b NoExecute 60")])["spec"]["taints"],
            json!([
                { "key": "a", "value": "v", "effect": NO_SCHEDULE },
                { "key": "b", "effect": NO_EXECUTE, "timeAdded": "1970-01-01T00:01:00Z" },
            ])
        );
    }
}
