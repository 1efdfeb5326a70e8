//! Heap bytes of one cached object, counted as in `tests/heap`. Not timed.

#[path = "../tests/heap/cost.rs"]
mod cost;
use cost::{cost, cost_in_graph};
use kube_controller_manager::objects::{PartialObjectMetadata, Pod, ReplicaSet};
use sandbox::load::objects;

/// Counts before and after a hash table doubles, and a large one.
const COUNTS: [usize; 4] = [100, 1_700, cost::MANY, 50_000];

fn main() {
    let whole = objects::pod(0).len();
    println!("{:<44} {:>10} {:>10} {:>10}", "bytes an object", "JSON", "cached", "in graph");
    for count in COUNTS {
        let (cached, graph) =
            (cost::<Pod>(count, objects::pod), cost_in_graph::<Pod>(count, objects::pod));
        println!("{:<44} {whole:>10} {cached:>10} {graph:>10}", format!("Pod, one of {count}"));
    }
    let (whole, count) = (objects::replica_set(0).len(), 1000);
    let cached = cost::<ReplicaSet>(count, objects::replica_set);
    println!("{:<44} {whole:>10} {cached:>10}", format!("ReplicaSet, one of {count}"));
    for size in [100, 10_000] {
        let map = |n| objects::config_map(n, size);
        let (whole, cached) = (map(0).len(), cost::<PartialObjectMetadata>(count, map));
        println!(
            "{:<44} {whole:>10} {cached:>10}",
            format!("ConfigMap by metadata, one of {count}")
        );
    }
}
