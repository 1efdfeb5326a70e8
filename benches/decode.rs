//! Decoding of lists and watches, from arriving bytes to objects.

use std::sync::Arc;

use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use futures_lite::future::block_on;
use http_client::http_types::Body;
use kube_controller_manager::client::{ListSplitter, ListStream, WatchStream};
use kube_controller_manager::objects::protobuf::MEDIA_TYPE;
use kube_controller_manager::objects::{
    Encoded, ListPart, Object, PartialObjectMetadata, Pod, WatchEvent,
};
use sandbox::load::objects;
use sandbox::protobuf;
use serde_json::json;

const COUNTS: [usize; 3] = [100, 1_000, 10_000];
/// The size of the transport's reads.
const PIECE_BYTES: usize = 16 << 10;

fn main() {
    divan::main();
}

fn decode<T: Object>(object: &Encoded) -> Arc<T> {
    Arc::new(object.decode().expect("an object"))
}

/// A pod in the protobuf form of lists and events.
fn message(n: usize) -> Vec<u8> {
    let object = serde_json::from_slice(&objects::pod(n)).expect("JSON");
    protobuf::message("v1", "Pod", &object).expect("a kind that has messages").to_vec()
}

/// As [`body`], in protobuf.
fn binary_body(bytes: &[u8]) -> Body {
    let mut body = body(bytes);
    body.set_mime(MEDIA_TYPE);
    body
}

/// A body that arrives in pieces.
fn body(bytes: &[u8]) -> Body {
    let reader = futures_lite::io::BufReader::with_capacity(
        PIECE_BYTES,
        futures_lite::io::Cursor::new(bytes.to_vec()),
    );
    Body::from_reader(reader, None)
}

fn read_list<T: Object>(body: Body) -> Vec<Arc<T>> {
    let mut list = ListStream::new("GET".to_owned(), body);
    let mut all = Vec::new();
    while let ListPart::Item(item) = block_on(list.next()).expect("a whole list") {
        all.push(decode(&item));
    }
    all
}

#[divan::bench(args = COUNTS)]
fn pod_list(bencher: Bencher, count: usize) {
    let list = objects::list("PodList", (0..count).map(objects::pod));
    bencher
        .counter(BytesCount::new(list.len()))
        .counter(ItemsCount::new(count))
        .with_inputs(|| body(&list))
        .bench_values(read_list::<Pod>);
}

#[divan::bench(args = COUNTS)]
fn pod_list_in_protobuf(bencher: Bencher, count: usize) {
    let items: Vec<_> = (0..count).map(|n| message(n).into()).collect();
    let meta = json!({"resourceVersion": "9000000"});
    let list = protobuf::list(("v1", "PodList"), &meta, &items, count).concat();
    bencher
        .counter(BytesCount::new(list.len()))
        .counter(ItemsCount::new(count))
        .with_inputs(|| binary_body(&list))
        .bench_values(read_list::<Pod>);
}

/// Only splits the list into items.
#[divan::bench(args = COUNTS)]
fn pod_list_cut_only(bencher: Bencher, count: usize) {
    let list = objects::list("PodList", (0..count).map(objects::pod));
    bencher.counter(BytesCount::new(list.len())).counter(ItemsCount::new(count)).bench(|| {
        let mut splitter = ListSplitter::default();
        for piece in list.chunks(PIECE_BYTES) {
            splitter.feed(piece, &mut |piece| drop(black_box(piece)));
        }
        assert!(splitter.is_done());
    });
}

/// Only decodes the items.
#[divan::bench(args = COUNTS)]
fn pod_list_decode_only(bencher: Bencher, count: usize) {
    let pods: Vec<_> = (0..count).map(objects::pod).map(Encoded::json).collect();
    let bytes: usize = pods.iter().map(|pod| pod.bytes.len()).sum();
    bencher
        .counter(BytesCount::new(bytes))
        .counter(ItemsCount::new(count))
        .bench(|| pods.iter().map(decode::<Pod>).collect::<Vec<_>>());
}

/// Decodes the metadata of ConfigMaps of 10 KB.
#[divan::bench(args = [100, 1_000])]
fn config_map_list_by_metadata(bencher: Bencher, count: usize) {
    let list = objects::list("ConfigMapList", (0..count).map(|n| objects::config_map(n, 10_000)));
    bencher
        .counter(BytesCount::new(list.len()))
        .counter(ItemsCount::new(count))
        .with_inputs(|| body(&list))
        .bench_values(read_list::<PartialObjectMetadata>);
}

/// Decodes the events of a watch.
#[divan::bench(args = COUNTS)]
fn pod_watch(bencher: Bencher, count: usize) {
    let events: Vec<u8> =
        (0..count).flat_map(|n| objects::event("MODIFIED", &objects::pod(n))).collect();
    bencher
        .counter(BytesCount::new(events.len()))
        .counter(ItemsCount::new(count))
        .with_inputs(|| WatchStream::new("GET".to_owned(), body(&events)))
        .bench_values(read_watch);
}

#[divan::bench(args = COUNTS)]
fn pod_watch_in_protobuf(bencher: Bencher, count: usize) {
    let mut events = Vec::new();
    for n in 0..count {
        protobuf::event(&mut events, "MODIFIED", &protobuf::envelope("v1", "Pod", &message(n)));
    }
    bencher
        .counter(BytesCount::new(events.len()))
        .counter(ItemsCount::new(count))
        .with_inputs(|| WatchStream::new("GET".to_owned(), binary_body(&events)))
        .bench_values(read_watch);
}

fn read_watch(mut watch: WatchStream) -> Vec<Arc<Pod>> {
    let mut all = Vec::new();
    while let Some(event) = block_on(watch.next()) {
        let Ok(WatchEvent::Modified(pod)) = event else { panic!("no such event") };
        all.push(decode(&pod));
    }
    all
}
