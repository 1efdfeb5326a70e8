//! What an object costs while it is held, by the bytes that malloc is asked for.

use std::sync::Arc;

use allocation_counter::{AllocationInfo, measure};
use kube_controller_manager::cache::Indexer;
use kube_controller_manager::controllers::cluster::garbagecollector::graph::{Graph, Identity};
use kube_controller_manager::controllers::workloads::ref_manager::{
    CONTROLLER_INDEX, by_controller,
};
use kube_controller_manager::objects::{Istr, Meta, Object, Resource};

/// What an allocation costs beside its bytes: the allocator's header and what it rounds up.
const OVERHEAD_BYTES: i64 = 16;

/// Just past where a hash table has doubled to 4,096 slots: the most slack that there can be.
pub const MANY: usize = 1_800;

fn bytes_held(info: &AllocationInfo) -> i64 {
    info.bytes_current + OVERHEAD_BYTES * info.count_current
}

pub fn decode<T: Object>(json: &[u8]) -> Arc<T> {
    Arc::new(serde_json::from_slice(json).expect("an object"))
}

/// The bytes that one of `count` objects costs in a cache with the index by controller.
pub fn cost<T: Object>(count: usize, json: impl Fn(usize) -> Vec<u8>) -> i64 {
    let indexer = Indexer::<T>::new();
    indexer.add_index(CONTROLLER_INDEX, by_controller::<T>);
    let texts: Vec<Vec<u8>> = (0..count).map(json).collect();
    let info = measure(|| {
        for text in &texts {
            indexer.insert(decode(text));
        }
    });
    assert_eq!(indexer.len(), count);
    bytes_held(&info) / count as i64
}

/// The same objects, as the garbage collector knows them.
pub fn cost_in_graph<T: Object + Resource>(count: usize, json: impl Fn(usize) -> Vec<u8>) -> i64 {
    let objects: Vec<Arc<T>> = (0..count).map(|n| decode(&json(n))).collect();
    let mut graph = Graph::default();
    let (api_version, kind) = (Istr::from(T::RESOURCE.api_version()), Istr::new(&T::RESOURCE.kind));
    let info = measure(|| {
        for object in &objects {
            let meta: &Meta = object.meta();
            let identity = Identity {
                api_version: api_version.clone(),
                kind: kind.clone(),
                namespace: meta.namespace.clone(),
                name: meta.name.clone(),
                uid: meta.uid.clone(),
            };
            graph.observe(identity, None, meta, &mut |_| {});
        }
    });
    bytes_held(&info) / count as i64
}
