//! Budgets of heap bytes: counts every byte requested from malloc, and its overhead.

mod cost;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use allocation_counter::measure;
use futures_lite::future::{block_on, poll_once};
use futures_lite::{FutureExt, StreamExt};
use kube_controller_manager::cache::{
    Answer, Deleted, EventHandler, ListRequest, Scope, SharedIndexInformer, Source, WatchRequest,
};
use kube_controller_manager::client::{Client, Config};
use kube_controller_manager::clock::SystemClock;
use kube_controller_manager::controllers::workloads::ref_manager::controller_index;
use kube_controller_manager::objects::{
    Bookmark, Encoded, EndpointSlice, Endpoints, Form, ListPart, Object, PartialObjectMetadata,
    Pod, ReplicaSet, Resource, WatchEvent,
};
use kube_controller_manager::server::http::{Body, Bytes, Handler, Response, Server};
use kube_controller_manager::server::tls::{Tls, TlsOptions};
use kube_controller_manager::source::ClientSource;
use kube_controller_manager::task::StopToken;
use sandbox::load::objects;
use serde_json::{Value, json};

use cost::{MANY, bytes_held, cost, cost_in_graph, decode};

#[test]
fn a_cached_pod_costs_less_than_half_a_kilobyte() {
    let size = objects::pod(0).len();
    assert!((4_300..5_300).contains(&size), "the usual shape is of 4.8 KB, not {size} bytes");
    let cached = cost::<Pod>(MANY, objects::pod);
    let graph = cost_in_graph::<Pod>(MANY, objects::pod);
    println!("a pod: {cached} bytes in the cache, {graph} in the garbage collector's graph");
    assert!(cached + graph < 410, "{cached} bytes in the cache, {graph} in the graph");
}

/// A template is kept byte for byte, once for all replicas.
#[test]
fn a_cached_replica_set_costs_its_template_and_little_more() {
    let whole = objects::replica_set(0).len() as i64;
    let cached = cost::<ReplicaSet>(MANY / 4, objects::replica_set);
    println!("a ReplicaSet of {whole} bytes: {cached} bytes in the cache");
    assert!(cached < whole + 1200, "{cached} bytes");
}

#[test]
fn an_object_cached_by_metadata_costs_its_metadata() {
    let cached = cost::<PartialObjectMetadata>(MANY, |n| objects::config_map(n, 10_000));
    println!("a ConfigMap of 10 KB: {cached} bytes in the cache");
    assert!(cached < 480, "{cached} bytes");
}

/// A pod of two Services is in two Endpoints and in two slices.
#[test]
fn a_pod_in_the_endpoints_of_two_services_costs_three_quarters_of_a_kilobyte() {
    fn decoded<T: Object>(objects: &[Value]) -> Vec<Arc<T>> {
        objects.iter().map(|object| decode(object.to_string().as_bytes())).collect()
    }
    let pods = |service: usize, entry: &dyn Fn(Value, usize) -> Value| -> Vec<Value> {
        let first = service / 2 * 100;
        let of_pod = |n: usize| {
            let uid = format!("00000000-0000-4000-8000-{n:012}");
            let target = json!({
                "kind": "Pod", "namespace": "shop", "name": objects::pod_name(n), "uid": uid,
            });
            entry(target, n)
        };
        (first..first + 100).map(of_pod).collect()
    };
    let ip = |n: usize| format!("10.{}.{}.{}", n / 65536, n / 256 % 256, n % 256);
    let all = 0..2 * MANY / 100;
    let endpoints: Vec<Value> = all
        .clone()
        .map(|service| {
            let address = |target: Value, n: usize| {
                json!({"ip": ip(n), "nodeName": objects::node_name(n % 30), "targetRef": target})
            };
            let ports = json!([{"name": "http", "port": 80, "protocol": "TCP"}]);
            json!({"subsets": [{"addresses": pods(service, &address), "ports": ports}]})
        })
        .collect();
    let slices: Vec<Value> = all
        .map(|service| {
            let endpoint = |target: Value, n: usize| {
                json!({
                    "addresses": [ip(n)], "targetRef": target, "zone": "a",
                    "nodeName": objects::node_name(n % 30),
                    "conditions": {"ready": true, "serving": true, "terminating": false},
                })
            };
            json!({"addressType": "IPv4", "endpoints": pods(service, &endpoint)})
        })
        .collect();
    let mut held = (Vec::new(), Vec::new());
    let info = measure(|| {
        held = (decoded::<Endpoints>(&endpoints), decoded::<EndpointSlice>(&slices));
    });
    let cost = bytes_held(&info) / MANY as i64;
    println!("a pod in the endpoints of two Services: {cost} bytes");
    assert!(cost < 760, "{cost} bytes");
}

/// Decoding makes the same number of allocations, of the same size, independent of the content of a
/// skipped field.
#[test]
fn a_skipped_field_is_not_allocated() {
    fn allocated<T: Object>(json: &[u8]) -> (u64, u64) {
        // It is kept, so that what it shares with the next one stays.
        let _first = decode::<T>(json);
        let info = measure(|| drop(decode::<T>(json)));
        (info.count_total, info.bytes_total)
    }
    let small = objects::config_map(1, 1);
    let large = objects::config_map(1, 1_000_000);
    let metadata = allocated::<PartialObjectMetadata>;
    assert_eq!(metadata(&small), metadata(&large));

    let pod = objects::pod(1);
    let text = String::from_utf8(pod.clone()).expect("JSON");
    let long = "\\\"ü".repeat(10_000);
    for (there, more) in [
        (r#""value":"value-of-setting-3""#, format!(r#""value":"{long}""#)),
        (r#""fieldsType":"FieldsV1""#, format!(r#""fieldsType":"{long}""#)),
        (
            r#""schedulerName":"default-scheduler""#,
            format!(r#""schedulerName":{{"{long}":["{long}",1.5e300,null]}}"#),
        ),
        (r#""lastState":{}"#, format!(r#""lastState":{{"terminated":{{"message":"{long}"}}}}"#)),
    ] {
        let larger = text.replacen(there, &more, 1);
        assert!(larger.len() > text.len(), "{there} is not in a pod");
        let (counts, bytes) = allocated::<Pod>(&pod);
        let (more_counts, more_bytes) = allocated::<Pod>(larger.as_bytes());
        // The decoder's stack of open braces may grow by a step; the content of a field costs
        // nothing.
        assert!(
            more_counts <= counts + 2 && more_bytes <= bytes + 64,
            "{there}: {more_bytes} for {bytes} bytes"
        );
    }
}

/// A source without objects: an empty list, and a watch without events.
struct Silent;

impl Source for Silent {
    fn list<'a>(&'a self, _: &'a Scope, _: Form, _: ListRequest) -> Answer<'a, ListPart<Encoded>> {
        Box::pin(std::future::pending())
    }

    fn watch<'a>(
        &'a self,
        _: &'a Scope,
        _: Form,
        _: WatchRequest,
    ) -> Answer<'a, WatchEvent<Encoded>> {
        let end = WatchEvent::Bookmark(Bookmark { version: 1, initial_events_end: true });
        let events = futures_lite::stream::once(Ok(end)).chain(futures_lite::stream::pending());
        Box::pin(async { Ok(events.boxed()) })
    }
}

/// The bytes and blocks of an informer of a kind that has no objects, with two handlers as a CRD's:
/// queue, tables, reflector, tasks, and the connection of `source` if it has one.
fn idle_informer(source: Arc<dyn Source>) -> (i64, i64) {
    struct Ignore;
    impl<T> EventHandler<T> for Ignore {
        fn on_add(&mut self, _: &Arc<T>, _: bool) {}
        fn on_update(&mut self, _: &Arc<T>, _: &Arc<T>) {}
        fn on_delete(&mut self, _: &Deleted<T>) {}
    }
    let (clock, stop) = (SystemClock::shared(), StopToken::new());
    let start = |resource| {
        let (source, clock) = (source.clone(), clock.clone());
        let informer = SharedIndexInformer::<PartialObjectMetadata>::new(
            source,
            Scope::metadata(resource),
            clock,
        );
        informer.add_index(&controller_index());
        let handlers = ["one", "other"].map(|name| informer.add_handler(name, Ignore, None));
        let mut running = Box::pin(informer.run(stop.clone()));
        block_on(async {
            (&mut running).or(informer.synced()).await;
            for handler in &handlers {
                (&mut running).or(handler.synced()).await;
            }
            // The reflector waits for the next event.
            assert!(poll_once(&mut running).await.is_none());
        });
        (informer, handlers, running)
    };
    // The first informer allocates what all informers share.
    let mut all = vec![start(Pod::RESOURCE)];
    // The least of several costs, because a buffer that connections share may grow with any of
    // them.
    let costs = (0..12).map(|_| {
        let info = measure(|| all.push(start(ReplicaSet::RESOURCE)));
        (info.bytes_current, info.count_current)
    });
    costs.min().expect("twelve")
}

#[test]
fn an_idle_informer_costs_a_few_kilobytes() {
    let (bytes, blocks) = idle_informer(Arc::new(Silent));
    println!("an idle informer: {bytes} bytes in {blocks} blocks");
    // With the tasks of both handlers, which end on another thread, and the part that follows the
    // server's history. Unoptimized futures are larger than those of a release.
    assert!(bytes < 5_300, "{bytes} bytes");
}

/// The watch of a CRD without objects: an informer, and a connection with TLS of its own.
#[test]
fn an_idle_watch_costs_ten_kilobytes() {
    let stop = StopToken::new();
    let tls = Tls::new(TlsOptions::default()).expect("a certificate of its own");
    let address = block_on(serve(0, Lists::ByWatch, Some(tls), stop.clone()));
    let mut config = Config::new(format!("https://{address}"));
    config.tls.insecure = true;
    let client = Client::new(config, SystemClock::shared()).expect("a client");
    let (bytes, blocks) = idle_informer(ClientSource::new(client));
    println!("an idle watch: {bytes} bytes in {blocks} blocks");
    stop.stop();
    assert!(bytes < 9_900, "{bytes} bytes");
}

/// Which way of listing a server supports.
#[derive(Clone, Copy)]
enum Lists {
    ByWatch,
    AtOnce,
}

/// Serves `count` pods, each generated as it is sent.
async fn serve(count: usize, lists: Lists, tls: Option<Tls>, stop: StopToken) -> SocketAddr {
    let handler: Handler = Arc::new(move |request| {
        let streamed = request.query.contains("sendInitialEvents=true");
        Box::pin(async move {
            match (streamed, lists) {
                (true, Lists::AtOnce) => Response::new(400, "application/json", "{}"),
                (true, Lists::ByWatch) => {
                    let end = br#"{"metadata":{"resourceVersion":"9000000","annotations":{"k8s.io/initial-events-end":"true"}}}"#;
                    let pods = (0..count).map(|n| objects::event("ADDED", &objects::pod(n)));
                    chunked(pods.chain([objects::event("BOOKMARK", end)]), true)
                }
                (false, _) if request.query.contains("watch=true") => chunked([].into_iter(), true),
                (false, _) => {
                    let parts = objects::list("PodList", []);
                    let (head, tail) = parts.split_at(parts.len() - 3);
                    let (head, tail) = (head.to_vec(), tail.to_vec());
                    let pods = (0..count).map(|n| {
                        let mut pod = objects::pod(n);
                        if n > 0 {
                            pod.insert(0, b',');
                        }
                        pod
                    });
                    chunked([head].into_iter().chain(pods).chain([tail]), false)
                }
            }
        })
    });
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = Server::start(address, tls, handler, SystemClock::shared(), stop).await;
    server.expect("a free port").address()
}

fn chunked(parts: impl Iterator<Item = Vec<u8>> + Send + 'static, goes_on: bool) -> Response {
    let parts = futures_lite::stream::iter(parts.map(|part| io::Result::Ok(Bytes::from(part))));
    let stream = match goes_on {
        true => parts.chain(futures_lite::stream::pending()).boxed(),
        false => parts.boxed(),
    };
    Response { body: Body::Stream(stream), ..Response::new(200, "application/json", Bytes::new()) }
}

/// The bytes that an informer's cache holds once synced, and the peak until then.
fn settled_and_peak(count: usize, lists: Lists) -> (i64, i64) {
    let stop = StopToken::new();
    let address = block_on(serve(count, lists, None, stop.clone()));
    let clock = SystemClock::shared();
    let client = Client::new(Config::new(format!("http://{address}")), clock.clone());
    let source = ClientSource::new(client.expect("a client"));
    let informer = SharedIndexInformer::<Pod>::new(source, Scope::all(Pod::RESOURCE), clock);
    informer.add_index(&controller_index());
    // The counter counts this thread only, so the client's work is done on it.
    let info = measure(|| block_on(informer.run(stop.clone()).or(informer.synced())));
    assert_eq!(informer.lister().len(), count);
    stop.stop();
    (info.bytes_current, info.bytes_max as i64)
}

#[test]
fn a_list_is_never_held_whole() {
    for lists in [Lists::ByWatch, Lists::AtOnce] {
        let (settled, peak) = settled_and_peak(MANY, lists);
        println!("{MANY} pods listed: {settled} bytes settled, {peak} at the most");
        assert!(peak * 10 <= settled * 13, "{peak} bytes at the most, {settled} settled");
    }
}
