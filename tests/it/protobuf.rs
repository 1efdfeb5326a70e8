//! Objects in protobuf: equal to their JSON, and byte for byte as a real server writes them.

use futures_lite::AsyncReadExt;
use kube_controller_manager::client::Call;
use kube_controller_manager::objects::{Pod, Resource};
use kube_controller_manager::server::http::{Method, Request, Response};
use sandbox::protobuf;
use serde_json::{Value, json};

use crate::env::*;
use crate::kinds::*;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const METADATA: &str =
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const METADATA_AS_JSON: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const METADATA_LIST: &str =
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const METADATA_LIST_AS_JSON: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const PODS: &str = "/api/v1/namespaces/default/pods";

fn call(path: &str, query: &[(&'static str, &str)], accept: &'static str) -> Call {
    let mut call = Call::new("GET", path);
    query.iter().for_each(|(name, value)| call.query(name, value));
    call.accept = accept;
    call
}

async fn bytes(
    env: &TestCluster,
    path: &str,
    query: &[(&'static str, &str)],
    accept: &'static str,
) -> Vec<u8> {
    env.client.send(&call(path, query, accept)).await.expect(path)
}

/// The message of a JSON answer.
fn encoded(json: &[u8]) -> Vec<u8> {
    let object: Value = serde_json::from_slice(json).expect("JSON");
    protobuf::encode(&object).unwrap_or_else(|| panic!("no message for {object}"))
}

/// Reads a watch up to the end of its initial events.
async fn initial(env: &TestCluster, accept: &'static str) -> Vec<u8> {
    let query = [
        ("watch", "true"),
        ("sendInitialEvents", "true"),
        ("resourceVersionMatch", "NotOlderThan"),
        ("allowWatchBookmarks", "true"),
        ("labelSelector", "app=protobuf"),
    ];
    let mut watch = call(PODS, &query, accept);
    watch.is_watch = true;
    let mut body = env.client.open(&watch).await.expect("a watch");
    let (mut read, mut buffer) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&read).contains("k8s.io/initial-events-end") {
        let count = body.read(&mut buffer).await.expect("more");
        assert!(count > 0, "the watch ended early");
        read.extend_from_slice(&buffer[..count]);
    }
    read
}

#[test]
fn objects_lists_and_watches_are_equal_in_both_encodings() {
    everywhere("protobuf", async |env| {
        for name in ["a", "b"] {
            let pod = json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": { "name": name, "labels": { "app": "protobuf", "tier": "" } },
                "spec": {
                    "schedulerName": "none", "nodeSelector": { "b": "1", "a": "2" },
                    "volumes": [{ "name": "scratch", "emptyDir": {} }],
                    "containers": [{
                        "name": "main", "image": "x:1", "env": [{ "name": "EMPTY" }],
                        "ports": [{ "containerPort": 80 }],
                        "resources": { "limits": { "memory": "1Gi", "cpu": "1500m" } },
                        "livenessProbe": { "httpGet": { "port": "http" } },
                    }],
                },
            });
            env.client
                .resource(&Pod::RESOURCE)
                .create::<Value>("default", &pod)
                .await
                .expect("a pod");
        }
        let pod = format!("{PODS}/a");
        for (accept, json) in [(PROTOBUF, "application/json"), (METADATA, METADATA_AS_JSON)] {
            let whole = bytes(env, &pod, &[], accept).await;
            assert_eq!(whole, encoded(&bytes(env, &pod, &[], json).await), "{accept}");
        }
        let read = protobuf::decode(&bytes(env, &pod, &[], PROTOBUF).await).expect("a pod");
        assert_eq!(read["spec"]["containers"][0]["resources"]["limits"]["cpu"], "1500m");

        let newest = bytes(env, PODS, &[("labelSelector", "app=protobuf")], PROTOBUF).await;
        let newest = protobuf::decode(&newest).expect("a list");
        let version = newest["metadata"]["resourceVersion"].as_str().expect("a version");
        let same = [
            ("labelSelector", "app=protobuf"),
            ("resourceVersion", version),
            ("resourceVersionMatch", "Exact"),
        ];
        let first = [same[0], ("limit", "1")];
        for (accept, json) in
            [(PROTOBUF, "application/json"), (METADATA_LIST, METADATA_LIST_AS_JSON)]
        {
            let list = bytes(env, PODS, &same, accept).await;
            let expected = bytes(env, PODS, &same, json).await;
            assert_eq!(list, encoded(&expected), "{accept}");
            let page = protobuf::decode(&bytes(env, PODS, &first, accept).await).expect("a page");
            assert_eq!(page["items"][0]["metadata"]["name"], "a", "{accept}");
            assert!(page["metadata"]["continue"].is_string(), "{accept}: {page}");
        }

        for (accept, json) in [
            ("application/vnd.kubernetes.protobuf;stream=watch", "application/json"),
            (METADATA, METADATA_AS_JSON),
        ] {
            let read = initial(env, json).await;
            let mut expected = Vec::new();
            for line in read.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                let event: Value = serde_json::from_slice(line).expect("an event");
                if event["type"] == "ADDED" {
                    let object = protobuf::encode(&event["object"]).expect("a message");
                    protobuf::event(&mut expected, "ADDED", &object);
                }
            }
            let read = initial(env, accept).await;
            let (initial, bookmark) = read.split_at(expected.len());
            assert_eq!(initial, expected, "{accept}");
            let start = b"\x0a\x08BOOKMARK\x12";
            assert_eq!(&bookmark[4..4 + start.len()], start, "{accept}");
        }

        let mut delete = call(PODS, &same[..1], METADATA_LIST);
        delete.method = "DELETE";
        let deleted = env.client.send(&delete).await.expect("what was deleted");
        let deleted = protobuf::decode(&deleted).expect("a list");
        assert_eq!(deleted["kind"], "PartialObjectMetadataList");
        let items = deleted["items"].as_array().expect("items").iter();
        let names: Vec<&Value> = items.map(|item| &item["metadata"]["name"]).collect();
        assert_eq!(names, ["a", "b"], "{deleted}");
    });
}

fn media(response: &Response) -> &str {
    let header = response.headers.iter().find(|(name, _)| name == "content-type");
    header.and_then(|(_, value)| value.to_str().ok()).unwrap_or_default()
}

#[test]
fn kinds_without_protobuf_are_json_or_refused() {
    Env::run("protobuf-forms", async |env| {
        serve_widgets(env).await;
        let widget = json!({
            "apiVersion": WIDGETS.api_version(), "kind": WIDGETS.kind,
            "metadata": { "name": "w" },
        });
        let widgets = env.client.resource(&WIDGETS);
        widgets.create::<Value>("default", &widget).await.expect("a widget");
        let either = "application/vnd.kubernetes.protobuf, */*";
        let widget = "/apis/example.com/v1/namespaces/default/widgets/w";
        let token = format!("Bearer {}", env.cluster.sandbox.client_config().token);
        let ask = async |method: Method, path: &str, accept: &str| {
            let mut request = Request::get(path);
            request.method = method;
            request.headers.insert("authorization", token.parse().expect("a header"));
            request.headers.insert("accept", accept.parse().expect("a header"));
            env.cluster.sandbox.api().clone().handle(request).await
        };
        for (path, accept, status, form, kind) in [
            (widget, either, 200, "application/json", "Widget"),
            (widget, METADATA, 200, PROTOBUF, "PartialObjectMetadata"),
            (widget, PROTOBUF, 406, PROTOBUF, "Status"),
            ("/api/v1/namespaces/default/pods/none", either, 404, PROTOBUF, "Status"),
            ("/api/v1/pods", "application/foo", 406, "application/json", "Status"),
            ("/apis/apps/v1", either, 200, PROTOBUF, "APIResourceList"),
            ("/api/v1/namespaces", METADATA_LIST, 200, PROTOBUF, "PartialObjectMetadataList"),
            ("/version", either, 200, "application/json", ""),
        ] {
            let response = ask(Method::GET, path, accept).await;
            let shown = (response.status, media(&response));
            assert_eq!(shown, (status, form), "{path} {accept}");
            let object = match form {
                PROTOBUF => protobuf::decode(response.content()).expect("an object"),
                _ => serde_json::from_slice(response.content()).expect("JSON"),
            };
            assert_eq!(object["kind"].as_str().unwrap_or_default(), kind, "{path} {accept}");
        }
        let gone = ask(Method::DELETE, widget, METADATA).await;
        let gone = protobuf::decode(gone.content()).expect("an object");
        assert_eq!((&gone["kind"], &gone["status"]), (&json!("Status"), &json!("Success")));
    });
}
