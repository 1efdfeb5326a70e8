//! Annotates each Node with the time for which its kubelet may keep a Secret or a ConfigMap: the
//! more nodes, the longer. Upstream: `pkg/controller/ttl`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::json;

use crate::cache::Lister;
use crate::client::{Client, Patch};
use crate::controllers::runner::Change;
use crate::controllers::{Controller, Next, QueuePolicy, SyncResult};
use crate::objects::{Node, ObjectKey};

/// Upstream: `v1.ObjectTTLAnnotationKey`.
const ANNOTATION: &str = "node.alpha.kubernetes.io/ttl";

/// Sizes of clusters: the fewest and the most nodes, and the TTL in seconds. The ranges overlap, so
/// that a cluster at a boundary does not change its step all the time.
const STEPS: &[(u32, u32, u32)] = &[
    (0, 100, 0),
    (90, 500, 15),
    (450, 1000, 30),
    (900, 2000, 60),
    (1800, i32::MAX.unsigned_abs(), 300),
];

/// Sets up the controller `ttl-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let nodes = c.lister::<Node>();
    let seconds = Arc::new(AtomicU32::new(STEPS[0].2));
    let ttl = Ttl { client: c.client(), nodes: nodes.clone(), seconds: seconds.clone() };
    let ttl = Arc::new(ttl);
    let queue = c.queue(QueuePolicy::default());
    let mut size = Size::default();
    // The other nodes follow with their next change: kubelets write their status all the time.
    c.watch(&nodes, &queue, move |change, queue| {
        match change {
            Change::Added { .. } => size.grow(),
            Change::Deleted(_) => size.shrink(),
            Change::Updated { .. } | Change::Resync { .. } => {}
        }
        seconds.store(size.seconds(), Ordering::Relaxed);
        if !matches!(change, Change::Deleted(_)) {
            queue.add(change.object().meta.key());
        }
    });
    c.sync(queue, &ttl, Ttl::sync);
    Ok(())
}

struct Ttl {
    client: Client,
    nodes: Lister<Node>,
    /// The annotation's value, which the watch of nodes updates.
    seconds: Arc<AtomicU32>,
}

impl Ttl {
    /// Writes the annotation of a node, if it does not show the present TTL.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(node) = self.nodes.get(&key) else { return Ok(Next::Done) };
        let wanted = self.seconds.load(Ordering::Relaxed);
        let current = node.meta.annotations.get(ANNOTATION).and_then(|text| text.parse().ok());
        if current != Some(i64::from(wanted)) {
            let annotations = json!({ ANNOTATION: wanted.to_string() });
            let body = json!({ "metadata": { "annotations": annotations } });
            self.client.patch::<Node>(&key, &Patch::StrategicMerge(body)).await?;
        }
        Ok(Next::Done)
    }
}

/// The number of nodes, and the step in [`STEPS`].
#[derive(Default)]
struct Size {
    nodes: u32,
    step: usize,
}

impl Size {
    /// Counts an added node, and takes the next step, with a longer TTL, if this one is full.
    fn grow(&mut self) {
        self.nodes += 1;
        if self.nodes > STEPS[self.step].1 {
            self.step += 1;
        }
    }

    /// Counts a deleted node, and takes the step before if too few nodes are left for this one.
    fn shrink(&mut self) {
        self.nodes = self.nodes.saturating_sub(1);
        if self.nodes < STEPS[self.step].0 {
            self.step -= 1;
        }
    }

    /// Returns the TTL of the present step.
    fn seconds(&self) -> u32 {
        STEPS[self.step].2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_step_changes_late_in_both_directions() {
        let mut size = Size::default();
        // The size to go to, and the seconds there.
        for (nodes, seconds) in [
            (0, 0),
            (100, 0),
            (101, 15),
            (90, 15),
            (89, 0),
            (100, 0),
            (500, 15),
            (501, 30),
            (450, 30),
            (449, 15),
            (1001, 60),
            (2001, 300),
            (1800, 300),
            (1799, 60),
            (899, 30),
            (0, 0),
        ] {
            while size.nodes < nodes {
                size.grow();
            }
            while size.nodes > nodes {
                size.shrink();
            }
            assert_eq!(size.seconds(), seconds, "{nodes} nodes");
        }
    }
}
