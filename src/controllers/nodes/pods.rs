//! The pods of a node.

use crate::cache::{IndexFn, IndexValue, Lister};
use crate::objects::{Istr, Pod};
use std::sync::Arc;

/// Finds pods by the node that they are bound to.
pub const NODE_INDEX: &str = "spec.nodeName";

pub const BY_NODE: IndexFn<Pod> = |pod, put| {
    if !pod.spec.node_name.is_empty() {
        put(IndexValue::Text(pod.spec.node_name.clone()));
    }
};

pub fn on_node(pods: &Lister<Pod>, node: &str) -> Vec<Arc<Pod>> {
    pods.by_index(NODE_INDEX, &IndexValue::Text(Istr::new(node)))
}
