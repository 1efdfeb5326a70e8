//! DeltaFifo, Indexer and workqueue, at sizes that show how the cost of one item grows.

use std::sync::Arc;
use std::time::Duration;

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use futures_lite::future::block_on;
use kube_controller_manager::cache::{AnyIndexer, DeltaFifo, IndexValue, Indexer, KnownState};
use kube_controller_manager::clock::SystemClock;
use kube_controller_manager::controllers::cleanup::garbagecollector::graph::{
    Graph, Identity, Scope,
};
use kube_controller_manager::controllers::storage::claims::BY_CLAIM;
use kube_controller_manager::controllers::workloads::ref_manager::controller_index;
use kube_controller_manager::objects::{Object, ObjectKey, Pod, Uid};
use kube_controller_manager::workqueue::{RateLimitingQueue, default_controller_rate_limiter};
use sandbox::load::objects;

const COUNTS: [usize; 4] = [100, 1_000, 10_000, 100_000];

fn main() {
    divan::main();
}

fn pods(count: usize) -> Vec<Arc<Pod>> {
    let pod = |n| Arc::new(serde_json::from_slice(&objects::pod(n)).expect("a pod"));
    (0..count).map(pod).collect()
}

fn indexer() -> Indexer<Pod> {
    let indexer = Indexer::new();
    indexer.add_index(&controller_index());
    indexer
}

fn full(pods: &[Arc<Pod>]) -> Indexer<Pod> {
    let indexer = indexer();
    for pod in pods {
        indexer.insert(pod.clone());
    }
    indexer
}

#[divan::bench(args = COUNTS)]
fn indexer_fill(bencher: Bencher, count: usize) {
    let pods = pods(count);
    bencher.counter(ItemsCount::new(count)).bench(|| full(&pods));
}

#[divan::bench(args = COUNTS)]
fn indexer_update(bencher: Bencher, count: usize) {
    let (before, after) = (pods(count), pods(count));
    bencher.counter(ItemsCount::new(count)).with_inputs(|| full(&before)).bench_refs(|indexer| {
        for pod in &after {
            indexer.insert(pod.clone());
        }
    });
}

#[divan::bench(args = COUNTS)]
fn indexer_empty(bencher: Bencher, count: usize) {
    let pods = pods(count);
    let keys: Vec<ObjectKey> = pods.iter().map(|pod| pod.meta.key()).collect();
    bencher.counter(ItemsCount::new(count)).with_inputs(|| full(&pods)).bench_refs(|indexer| {
        for key in &keys {
            indexer.remove(key);
        }
    });
}

/// Updates of one object with this many index values, of which the last tenth changes.
#[divan::bench(args = [1, 3, 10, 100, 1_000, 10_000])]
fn indexer_update_of_many_values(bencher: Bencher, count: usize) {
    let pod = |version: usize| -> Arc<Pod> {
        let name = |n: usize| match n * 10 < count * 9 {
            true => format!("claim-{n}"),
            false => format!("claim-{n}-{version}"),
        };
        let volume = |n: usize| {
            serde_json::json!({
                "name": format!("v{n}"), "persistentVolumeClaim": { "claimName": name(n) },
            })
        };
        let volumes: Vec<_> = (0..count).map(volume).collect();
        let pod = serde_json::json!({
            "metadata": { "namespace": "team-1", "name": "p" }, "spec": { "volumes": volumes },
        });
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    };
    let indexer = Indexer::new();
    indexer.add_index(&BY_CLAIM);
    let pods = [pod(0), pod(1)];
    bencher.counter(ItemsCount::new(2 * count)).bench(|| {
        for pod in &pods {
            indexer.insert(pod.clone());
        }
    });
}

/// Gets every object by its key.
#[divan::bench(args = COUNTS)]
fn indexer_get(bencher: Bencher, count: usize) {
    let pods = pods(count);
    let indexer = full(&pods);
    let keys: Vec<ObjectKey> = pods.iter().map(|pod| pod.meta.key()).collect();
    bencher.counter(ItemsCount::new(count)).bench(|| {
        for key in &keys {
            black_box(indexer.get(key));
        }
    });
}

/// A lookup that returns a hundred pods, in ever larger caches.
#[divan::bench(args = COUNTS)]
fn indexer_pods_of_one_owner(bencher: Bencher, count: usize) {
    let pods = pods(count);
    let indexer = full(&pods);
    let owner: Uid = pods[0].meta().owners()[0].uid.clone();
    bencher.bench(|| indexer.by_index(&controller_index(), &IndexValue::Uid(owner.clone())));
}

/// A first list, from the queue into the cache.
#[divan::bench(args = COUNTS)]
fn delta_fifo_list(bencher: Bencher, count: usize) {
    let pods = pods(count);
    let make = || {
        let indexer = Arc::new(indexer());
        (DeltaFifo::new(indexer.clone()), indexer)
    };
    bencher.counter(ItemsCount::new(count)).with_inputs(make).bench_refs(|(fifo, indexer)| {
        fifo.begin_replace(KnownState::Trusted);
        for pod in &pods {
            fifo.replace_item(pod.clone());
        }
        fifo.finish_replace(1, false);
        drain(fifo, indexer);
    });
}

/// Adds three changes of each object that waits in the queue.
#[divan::bench(args = COUNTS)]
fn delta_fifo_changes(bencher: Bencher, count: usize) {
    let pods = pods(count);
    let make = || {
        let indexer = Arc::new(full(&pods));
        (DeltaFifo::new(indexer.clone()), indexer)
    };
    bencher.counter(ItemsCount::new(3 * count)).with_inputs(make).bench_refs(|(fifo, indexer)| {
        for _ in 0..3 {
            for pod in &pods {
                fifo.update(pod.clone());
            }
        }
        drain(fifo, indexer);
    });
}

fn drain(fifo: &DeltaFifo, indexer: &Indexer<Pod>) {
    while !fifo.is_empty() {
        fifo.try_pop(|delta, _| AnyIndexer::insert(indexer, delta.object().clone()));
    }
}

fn keys(count: usize) -> Vec<ObjectKey> {
    (0..count).map(|n| ObjectKey::new("team-1", &format!("app-{n}"))).collect()
}

fn queue() -> RateLimitingQueue<ObjectKey> {
    let clock = SystemClock::shared();
    RateLimitingQueue::new("", clock.clone(), default_controller_rate_limiter(clock))
}

/// Adds each key twice and takes it once.
#[divan::bench(args = COUNTS)]
fn workqueue_add_get_done(bencher: Bencher, count: usize) {
    let keys = keys(count);
    bencher.counter(ItemsCount::new(count)).with_inputs(queue).bench_refs(|queue| {
        for key in keys.iter().chain(&keys) {
            queue.add(key.clone());
        }
        for _ in 0..count {
            if let Some(key) = block_on(queue.get()) {
                queue.forget(&key);
                queue.done(&key);
            }
        }
        assert!(queue.is_empty());
    });
}

#[divan::bench(args = COUNTS)]
fn workqueue_add_after(bencher: Bencher, count: usize) {
    let keys = keys(count);
    bencher.counter(ItemsCount::new(count)).with_inputs(queue).bench_refs(|queue| {
        for (n, key) in keys.iter().enumerate() {
            queue.add_after(key.clone(), Duration::from_secs(60 + n as u64 * 7919 % 60));
        }
    });
}

/// The garbage collector's graph, filled and emptied.
#[divan::bench(args = COUNTS)]
fn graph_grow_and_shrink(bencher: Bencher, count: usize) {
    let pods = pods(count);
    let scope =
        Scope { kind: "Pod".into(), api_version: "v1".into(), namespace: "".into() }.shared();
    let identity = |pod: &Pod| Identity {
        scope: scope.in_namespace(&pod.meta.namespace),
        name: pod.meta.name.clone(),
        uid: pod.meta.uid.clone(),
    };
    let identities: Vec<Identity> = pods.iter().map(|pod| identity(pod)).collect();
    bencher.counter(ItemsCount::new(count)).with_inputs(Graph::default).bench_refs(|graph| {
        for (pod, identity) in pods.iter().zip(&identities) {
            graph.observe(identity.clone(), None, &pod.meta, &mut |effect| drop(black_box(effect)));
        }
        for identity in &identities {
            graph.handle_deletion(identity, &mut |effect| drop(black_box(effect)));
        }
    });
}
