//! Gives each node ranges of addresses for its pods. Upstream: `pkg/controller/nodeipam`.

mod cidr;
mod cidr_set;
mod config;
mod ranges;

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::json;

use self::cidr::Cidr;
use self::config::Config;
use self::ranges::Ranges;
use crate::cache::Lister;
use crate::client::{self, Client, Patch};
use crate::controllers::runner::Change;
use crate::controllers::{Controller, Error, Next, QueuePolicy, SyncResult};
use crate::events::{EventType, ObjectReference, Recorder};
use crate::objects::{Node, ObjectKey, PartialObjectMetadata, Resource, Uid};
use crate::task::Latch;

/// Upstream: `cidrUpdateRetries`.
const ATTEMPTS: usize = 3;

/// Sets up the controller `node-ipam-controller`; idle without `--allocate-node-cidrs`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    if !c.options().allocate_node_cidrs {
        return Ok(());
    }
    let config = Config::from_options(c.options())?;
    let nodes = c.lister::<Node>();
    let this = Arc::new(Ipam {
        client: c.client(),
        recorder: c.recorder(),
        nodes: nodes.clone(),
        ranges: Mutex::new(Ranges::new(&config)?),
        reported: Mutex::default(),
    });
    let queue = c.queue(QueuePolicy::default());
    let ranges = this.clone();
    c.watch(&nodes, &queue, move |change, queue| match change {
        Change::Deleted(deleted) => ranges.release(deleted.object()),
        _ => queue.add(change.object().meta.key()),
    });
    // No node gets a range before those of all nodes are known.
    let occupied = Latch::new();
    c.ready_when(&occupied);
    let known = this.clone();
    c.at_start(move || {
        known.occupy_all();
        occupied.open();
    });
    c.sync(queue, &this, Ipam::sync);
    Ok(())
}

struct Ipam {
    client: Client,
    recorder: Recorder,
    nodes: Lister<Node>,
    ranges: Mutex<Ranges>,
    /// The nodes whose ranges outside of the cluster's were reported by an event, so that each gets
    /// one.
    reported: Mutex<HashSet<Uid>>,
}

impl Ipam {
    /// Marks the ranges of all known nodes as taken. One outside of the cluster's is reported by
    /// the node's first sync.
    fn occupy_all(&self) {
        let mut ranges = self.ranges.lock();
        self.nodes.list().iter().for_each(|node| drop(ranges.occupy(node)));
    }

    /// Frees the ranges of a deleted node, unless a new node of the same name has them.
    fn release(&self, node: &Node) {
        let successor = self.nodes.get(&node.meta.key());
        let successor = successor.filter(|successor| successor.meta.uid != node.meta.uid);
        self.ranges.lock().release_node(node, successor.as_deref());
        self.reported.lock().remove(&node.meta.uid);
    }

    /// Assigns ranges to a node that has none, or marks the ranges that it has as taken.
    /// Upstream: `AllocateOrOccupyCIDR`, `updateCIDRsAllocation`.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(node) = self.nodes.get(&key) else { return Ok(Next::Done) };
        if node.meta.is_being_deleted() {
            return Ok(Next::Done);
        }
        if !node.spec.pod_cidrs.is_empty() {
            let foreign = self.ranges.lock().occupy(&node);
            if !foreign.is_empty() && self.reported.lock().insert(node.meta.uid.clone()) {
                self.report_foreign_ranges(&node, &foreign);
            }
            return Ok(Next::Done);
        }
        let allocated = self.ranges.lock().allocate(&node);
        let ranges = match allocated {
            Ok(Some(ranges)) => ranges,
            Ok(None) => return Ok(Next::Done),
            Err(error) => {
                self.record(&node, "CIDRNotAvailable");
                return Err(Error::other(error));
            }
        };
        let result = self.assign(&node, &ranges).await;
        match result {
            Ok(()) => {
                log::info!("Set the pod CIDRs of node {}: {:?}", key.name, range_texts(&ranges));
                self.ranges.lock().mark_written(&node);
                Ok(Next::Done)
            }
            Err((error, is_unsure)) => {
                self.record(&node, "CIDRAssignmentFailed");
                let mut ranges = self.ranges.lock();
                match is_unsure {
                    true => ranges.mark_outcome_unknown(&node),
                    false => ranges.mark_refused(&node),
                }
                Err(error.into())
            }
        }
    }

    /// Writes the ranges into a node's spec, with at most [`ATTEMPTS`] attempts.
    ///
    /// # Errors
    /// The last error, and whether the node may have the ranges in spite of it.
    async fn assign(&self, node: &Node, ranges: &[Cidr]) -> Result<(), (client::Error, bool)> {
        let cidrs = range_texts(ranges);
        let patch = Patch::StrategicMerge(json!({
            "metadata": { "uid": node.meta.uid },
            "spec": { "podCIDR": cidrs[0], "podCIDRs": cidrs },
        }));
        let nodes = self.client.resource(&Node::RESOURCE);
        let (mut attempt, mut is_unsure) = (1, false);
        loop {
            match nodes.patch::<PartialObjectMetadata>(&node.meta.key(), &patch).await {
                Ok(_) => return Ok(()),
                Err(error) => {
                    is_unsure |= error.is_unsure();
                    if attempt == ATTEMPTS || error.is_not_found() {
                        return Err((error, is_unsure));
                    }
                    attempt += 1;
                }
            }
        }
    }

    /// Records an event about a change of the node's status. Upstream: `RecordNodeStatusChange`.
    fn record(&self, node: &Node, status: &str) {
        let message = format!("Node {} status is now: {status}", node.meta.name);
        self.recorder.event(&event_reference(node), EventType::Normal, status, message);
    }

    /// Reports that a node has ranges outside of the cluster's: logs it and records an event.
    fn report_foreign_ranges(&self, node: &Node, foreign: &[String]) {
        let message = format!(
            "The pod CIDR {} is outside of --cluster-cidr, so it is ignored",
            foreign.join(", ")
        );
        log::warn!("Node {}: {message}", node.meta.name);
        self.recorder.event(&event_reference(node), EventType::Warning, "CIDROutOfRange", message);
    }
}

/// Returns a reference to the node for events, without its version.
fn event_reference(node: &Node) -> ObjectReference {
    ObjectReference { resource_version: 0, ..ObjectReference::to(node) }
}

/// Formats the ranges as the API has them.
fn range_texts(ranges: &[Cidr]) -> Vec<String> {
    ranges.iter().map(Cidr::to_string).collect()
}
