//! The bytes that a held object costs, as requested from malloc.

use std::sync::Arc;

use allocation_counter::{AllocationInfo, measure};
use kube_controller_manager::cache::Indexer;
use kube_controller_manager::controllers::cleanup::garbagecollector::graph::{
    Graph, Identity, Scope,
};
use kube_controller_manager::controllers::workloads::ref_manager::controller_index;
use kube_controller_manager::objects::{Istr, Object, Resource};

/// The cost of an allocation beside its bytes: the allocator's header and rounding.
const OVERHEAD_BYTES: i64 = 16;

/// A count just past the point where a hash table doubles to 4,096 slots: the most unused slots.
pub const MANY: usize = 1_800;

pub fn bytes_held(info: &AllocationInfo) -> i64 {
    info.bytes_current + OVERHEAD_BYTES * info.count_current
}

pub fn decode<T: Object>(json: &[u8]) -> Arc<T> {
    Arc::new(serde_json::from_slice(json).expect("an object"))
}

/// The bytes that one of `count` objects costs in a cache with the index by controller.
pub fn cost<T: Object>(count: usize, json: impl Fn(usize) -> Vec<u8>) -> i64 {
    let indexer = Indexer::<T>::new();
    indexer.add_index(&controller_index());
    let texts: Vec<Vec<u8>> = (0..count).map(json).collect();
    let info = measure(|| {
        for text in &texts {
            indexer.insert(decode(text));
        }
    });
    assert_eq!(indexer.len(), count);
    bytes_held(&info) / count as i64
}

/// The bytes that one of the same objects costs in the garbage collector's graph.
pub fn cost_in_graph<T: Object + Resource>(count: usize, json: impl Fn(usize) -> Vec<u8>) -> i64 {
    let objects: Vec<Arc<T>> = (0..count).map(|n| decode(&json(n))).collect();
    let mut graph = Graph::default();
    let scope = Scope {
        kind: Istr::new(&T::RESOURCE.kind),
        api_version: T::RESOURCE.api_version().into(),
        namespace: Istr::default(),
    }
    .shared();
    let info = measure(|| {
        for object in &objects {
            let meta = object.meta();
            let identity = Identity {
                scope: scope.in_namespace(&meta.namespace),
                name: meta.name.clone(),
                uid: meta.uid.clone(),
            };
            graph.observe(identity, None, meta, &mut |_| {});
        }
    });
    bytes_held(&info) / count as i64
}
