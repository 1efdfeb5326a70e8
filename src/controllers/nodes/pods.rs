//! The pods of a node.

use crate::cache::{Index, IndexValue, Lister};
use crate::objects::{Istr, Pod};
use std::sync::Arc;

/// Pods by the node that they are bound to.
pub const BY_NODE: Index<Pod> = Index::new("spec.nodeName", |pod, put| {
    if !pod.spec.node_name.is_empty() {
        put(IndexValue::Text(pod.spec.node_name.clone()));
    }
});

/// Returns the pods that are bound to `node`, in no order. Needs [`BY_NODE`].
pub fn on_node(pods: &Lister<Pod>, node: &str) -> Vec<Arc<Pod>> {
    pods.by_index(&BY_NODE, &IndexValue::Text(Istr::new(node)))
}
