//! Tests of whole requests, without a connection.

use super::*;
use crate::access::User;
use crate::api::faults::Fault;
use futures_lite::StreamExt;
use futures_lite::future::block_on;
use kube_controller_manager::server::http::{Body, Chain, HeaderMap, RequestBody};

fn api() -> Arc<Api> {
    api_with(false)
}

fn api_with(service_accounts: bool) -> Arc<Api> {
    let api = Arc::new(Api { service_accounts, ..for_tests() });
    let namespace =
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "ns" } });
    api.create_value("", "namespaces", namespace).unwrap();
    api
}

fn send(api: &Arc<Api>, method: Method, path: &str, kind: &'static str, body: Value) -> Response {
    let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    send_bytes(api, method, path, kind, bytes)
}

fn send_bytes(
    api: &Arc<Api>,
    method: Method,
    path: &str,
    kind: &'static str,
    bytes: Vec<u8>,
) -> Response {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let mut headers = HeaderMap::new();
    headers.insert("content-type", hyper::header::HeaderValue::from_static(kind));
    let bob = User::new("bob", &["system:masters"]);
    let bearer = format!("Bearer {}", api.auth.issue(bob, vec![], None));
    headers.insert("authorization", bearer.parse().unwrap());
    block_on(api.clone().handle(Request {
        method,
        path: path.to_owned(),
        query: query.to_owned(),
        headers,
        body: RequestBody::Full(bytes.into()),
        peer: Chain::default(),
        upgrade: None,
    }))
}

fn call(api: &Arc<Api>, method: Method, path: &str, body: Value) -> (u16, Value) {
    let kind =
        if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    answer(send(api, method, path, kind, body))
}

fn answer(response: Response) -> (u16, Value) {
    let Body::Full(bytes) = response.body else { panic!("no whole body") };
    (response.status, serde_json::from_slice(&bytes).unwrap())
}

#[test]
fn the_requested_access_follows_from_the_path() {
    for (method, path, wanted) in [
        ("GET", "/api/v1/pods", "list pods in  named "),
        ("GET", "/api/v1/namespaces/d/pods?watch=1", "watch pods in d named "),
        ("GET", "/api/v1/namespaces/d/pods/p?watch=1", "get pods in d named p"),
        ("GET", "/api/v1/pods?fieldSelector=a%3Db,metadata.name%3Dp", "list pods in  named p"),
        ("DELETE", "/api/v1/namespaces/d/pods", "deletecollection pods in d named "),
        (
            "PUT",
            "/apis/apps/v1/namespaces/d/deployments/p/scale",
            "update deployments/scale in d named p",
        ),
        ("GET", "/api/v1/namespaces/d/", "get namespaces in d named d"),
        ("POST", "/api/v1/namespaces", "create namespaces in  named "),
        ("POST", "/api/v1/namespaces/d/services/s/proxy/a/b", "create services/proxy in d named s"),
        ("POST", "/metrics%20x", "post /metrics x"),
        ("PUT", "/api/v1/namespaces/d/status/more", "update namespaces/status in d named d"),
    ] {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let found = access(&method.parse().unwrap(), path, &Query::parse(query));
        let Access { verb, resource, namespace, name, path, .. } = found;
        let answer = match path.as_str() {
            "" => format!("{verb} {resource} in {namespace} named {name}"),
            path => format!("{verb} {path}"),
        };
        assert_eq!(answer, wanted);
    }
}

const MAPS: &str = "/api/v1/namespaces/ns/configmaps";
const MAP: &str = "/api/v1/namespaces/ns/configmaps/a";

fn map(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": { "x": "1" } })
}

#[test]
fn writes_are_guarded_by_versions() {
    let api = api();
    let (code, first) = call(&api, Method::POST, MAPS, map("a"));
    assert_eq!((code, &first["metadata"]["namespace"]), (201, &json!("ns")));
    assert_eq!(call(&api, Method::POST, MAPS, map("a")).1["reason"], "AlreadyExists");
    let mut newer = first.clone();
    newer["data"]["x"] = "2".into();
    let (code, second) = call(&api, Method::PUT, MAP, newer.clone());
    assert_eq!(code, 200);
    let (code, refused) = call(&api, Method::PUT, MAP, newer);
    assert_eq!((code, &refused["reason"]), (409, &json!("Conflict")));
    let words = "the object has been modified; please apply your changes to the latest version";
    assert!(refused["message"].as_str().unwrap().contains(words));
    // The same again changes nothing, not even the version.
    assert_eq!(call(&api, Method::PUT, MAP, second.clone()).1, second);
    let stale = json!({ "metadata": { "resourceVersion": "1" }, "data": { "x": "3" } });
    assert_eq!(call(&api, Method::PATCH, MAP, stale).0, 409);
    let other = json!({ "metadata": { "uid": "other" }, "data": { "x": "3" } });
    assert_eq!(call(&api, Method::PATCH, MAP, other).0, 409);
    let (_, patched) = call(&api, Method::PATCH, MAP, json!({ "data": { "x": "3" } }));
    assert_eq!(patched["data"]["x"], "3");
    let wrong = json!({ "preconditions": { "uid": "other" } });
    assert_eq!(call(&api, Method::DELETE, MAP, wrong).0, 409);
    let (_, status) = call(&api, Method::DELETE, MAP, Value::Null);
    assert_eq!(status["details"]["uid"], first["metadata"]["uid"]);
    assert_eq!(call(&api, Method::GET, MAP, Value::Null).0, 404);
}

#[test]
fn a_body_that_is_no_object_is_refused() {
    let api = api();
    let authorization = "/apis/authorization.k8s.io/v1";
    let local = format!("{authorization}/namespaces/ns/localsubjectaccessreviews");
    for (method, path) in [
        (Method::POST, "/apis/authentication.k8s.io/v1/tokenreviews"),
        (Method::POST, "/apis/authentication.k8s.io/v1/selfsubjectreviews"),
        (Method::POST, &local),
        (Method::PUT, "/api/v1/namespaces/ns/finalize"),
        (Method::DELETE, MAPS),
    ] {
        for body in [json!([]), json!("text"), json!(7)] {
            assert_eq!(call(&api, method.clone(), path, body).0, 400, "{method} {path}");
        }
    }
}

#[test]
fn a_patch_of_null_changes_nothing_or_is_refused() {
    let api = api();
    let (_, stored) = call(&api, Method::POST, MAPS, map("a"));
    const APPLY: &str = "application/apply-patch+yaml";
    let untyped = Err("invalid object type: /, Kind=");
    for (kind, body, expected) in [
        ("application/merge-patch+json", "null", Err("Invalid JSON Patch")),
        ("application/strategic-merge-patch+json", "null", Ok(())),
        (APPLY, "null", untyped),
        (APPLY, "", untyped),
    ] {
        let path = format!("{MAP}?fieldManager=a");
        let (code, found) =
            answer(send_bytes(&api, Method::PATCH, &path, kind, body.as_bytes().to_vec()));
        match expected {
            Ok(()) => assert_eq!((code, &found), (200, &stored), "{kind}"),
            Err(why) => {
                assert_eq!((code, &found["message"]), (400, &json!(why)), "{kind} {body:?}");
            }
        }
    }
}

#[test]
fn the_openapi_documents_have_the_version_of_the_server() {
    for minor in [36, 37] {
        let api = Arc::new(Api { minor, ..for_tests() });
        let (_, version) = call(&api, Method::GET, "/version", Value::Null);
        let version = version["gitVersion"].as_str().unwrap();
        assert!(version.starts_with(&format!("v1.{minor}.")), "{version}");
        for path in ["/openapi/v2", "/openapi/v3/api/v1", "/openapi/v3/apis/apps/v1"] {
            let (_, document) = call(&api, Method::GET, path, Value::Null);
            assert_eq!(document["info"]["version"], version, "{path}");
        }
        let document = documents::openapi_v2_protobuf(minor);
        assert!(document.windows(version.len()).any(|part| part == version.as_bytes()));
    }
}

#[test]
fn token_lifetimes_have_bounds() {
    let api = api();
    let accounts = "/api/v1/namespaces/ns/serviceaccounts";
    let account = json!({ "metadata": { "name": "a" } });
    assert_eq!(call(&api, Method::POST, accounts, account).0, 201);
    for (seconds, wanted) in
        [(599, 422), (600, 201), (1 << 32, 201), ((1 << 32) + 1, 422), (i64::MAX, 422)]
    {
        let request = json!({ "spec": { "expirationSeconds": seconds } });
        let (code, _) = call(&api, Method::POST, &format!("{accounts}/a/token"), request);
        assert_eq!(code, wanted, "{seconds}");
    }
}

#[test]
fn a_kind_without_watches_refuses_a_watch() {
    let (code, _) = call(&api(), Method::GET, "/api/v1/componentstatuses?watch=1", Value::Null);
    assert_eq!(code, 405);
}

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn foos() -> Value {
    json!({
        "metadata": { "name": "foos.x.io" },
        "spec": { "group": "x.io", "scope": "Namespaced",
            "names": { "kind": "Foo", "plural": "foos" },
            "versions": [{ "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object" } } }] },
    })
}

/// Objects with wrong types on the path to the number of replicas.
#[test]
fn a_custom_object_without_room_for_its_scale_has_none_set() {
    let api = api();
    let mut definition = foos();
    definition["spec"]["versions"][0]["subresources"] = json!({
        "scale": { "specReplicasPath": ".spec.size.now", "statusReplicasPath": ".status.size" },
    });
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["x-kubernetes-preserve-unknown-fields"] =
        true.into();
    assert_eq!(call(&api, Method::POST, DEFINITIONS, definition).0, 201);
    let foos = "/apis/x.io/v1/namespaces/ns/foos";
    let scale = format!("{foos}/a/scale");
    let three = json!({ "spec": { "replicas": 3 } });
    let foo = json!({ "metadata": { "name": "a" }, "spec": { "size": "big" } });
    assert_eq!(call(&api, Method::POST, foos, foo).0, 201);
    assert_eq!(call(&api, Method::PATCH, &scale, three.clone()).0, 500);
    let free = json!({ "spec": { "size": null } });
    assert_eq!(call(&api, Method::PATCH, &format!("{foos}/a"), free).0, 200);
    let (code, scaled) = call(&api, Method::PATCH, &scale, three);
    assert_eq!((code, &scaled["spec"]["replicas"]), (200, &json!(3)));
}

#[test]
fn an_object_stays_until_its_last_finalizer_is_removed() {
    let api = api();
    let mut held = map("a");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    call(&api, Method::POST, MAPS, held);
    let (_, marked) = call(&api, Method::DELETE, MAP, Value::Null);
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    let more = json!({ "metadata": { "finalizers": ["example.com/hold", "example.com/more"] } });
    assert_eq!(call(&api, Method::PATCH, MAP, more).0, 422);
    let none = json!({ "metadata": { "finalizers": null } });
    assert_eq!(call(&api, Method::PATCH, MAP, none).0, 200);
    assert_eq!(call(&api, Method::GET, MAP, Value::Null).0, 404);
}

#[test]
fn a_definition_goes_after_its_objects() {
    let api = api();
    let definition = foos();
    let one = format!("{DEFINITIONS}/foos.x.io");
    let foos = "/apis/x.io/v1/namespaces/ns/foos";
    let foo = |name: &str| json!({ "metadata": { "name": name } });
    let terminating = |definition: &Value| {
        let all = definition["status"]["conditions"].as_array().unwrap();
        let found = all.iter().find(|condition| condition["type"] == "Terminating");
        found.map(|condition| condition["reason"].as_str().unwrap().to_owned())
    };
    assert_eq!(call(&api, Method::POST, DEFINITIONS, definition.clone()).0, 201);
    let mut held = foo("held");
    held["metadata"]["finalizers"] = json!(["x.io/hold"]);
    call(&api, Method::POST, foos, held);
    call(&api, Method::POST, foos, foo("free"));
    let (code, marked) = call(&api, Method::DELETE, &one, Value::Null);
    assert_eq!((code, terminating(&marked).as_deref()), (200, Some("InstanceDeletionPending")));
    let (_, waiting) = call(&api, Method::GET, &one, Value::Null);
    assert_eq!(terminating(&waiting).as_deref(), Some("InstanceDeletionInProgress"));
    let finalizers = json!(["customresourcecleanup.apiextensions.k8s.io"]);
    assert_eq!(waiting["metadata"]["finalizers"], finalizers);
    let (_, left) = call(&api, Method::GET, foos, Value::Null);
    assert_eq!(left["items"].as_array().map(Vec::len), Some(1));
    let (code, refused) = call(&api, Method::POST, foos, foo("late"));
    let words = "foos.x.io \"late\" is forbidden: create not allowed while custom resource definition is terminating";
    assert_eq!((code, &refused["message"]), (403, &words.into()));
    let released = json!({ "metadata": { "finalizers": null } });
    assert_eq!(call(&api, Method::PATCH, &format!("{foos}/held"), released).0, 200);
    assert_eq!(call(&api, Method::GET, &one, Value::Null).0, 404);
    // Without objects it goes at once.
    call(&api, Method::POST, DEFINITIONS, definition);
    assert_eq!(call(&api, Method::DELETE, &one, Value::Null).0, 200);
    assert_eq!(call(&api, Method::GET, &one, Value::Null).0, 404);
}

#[test]
fn a_pod_needs_its_account() {
    let api = api_with(true);
    let pods = "/api/v1/namespaces/ns/pods";
    let pod = json!({ "metadata": { "name": "p" }, "spec": {
        "containers": [{ "name": "c", "image": "i" }] } });
    let mut other = pod.clone();
    other["spec"]["serviceAccountName"] = "none".into();
    let (code, refused) = call(&api, Method::POST, pods, other);
    let words = "pods \"p\" is forbidden: error looking up service account ns/none: serviceaccount \"none\" not found";
    assert_eq!((code, &refused["message"]), (403, &words.into()));
    let account = json!({ "metadata": { "name": "default" } });
    call(&api, Method::POST, "/api/v1/namespaces/ns/serviceaccounts", account);
    let path = format!("{pods}?fieldManager=me");
    let (code, created) = call(&api, Method::POST, &path, pod);
    assert_eq!((code, &created["spec"]["serviceAccountName"]), (201, &json!("default")));
    assert!(created["spec"]["volumes"][0]["projected"].is_object(), "{created}");
    // Fields that admission added have no manager.
    let managed = &created["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"];
    assert!(managed["f:containers"].is_object(), "{managed}");
    for field in ["f:volumes", "f:serviceAccountName", "f:tolerations", "f:priority"] {
        assert!(managed[field].is_null(), "{field}: {managed}");
    }
}

#[test]
fn unknown_fields_are_refused_or_warned_of_or_dropped() {
    let api = api();
    let mut odd = map("a");
    odd["dat"] = json!({ "x": "1" });
    let path = |how: &str| format!("{MAPS}?fieldValidation={how}");
    let (code, status) = call(&api, Method::POST, &path("Strict"), odd.clone());
    let expected = "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: unknown field \"dat\"";
    assert_eq!((code, &status["message"]), (400, &json!(expected)));
    let response = send(&api, Method::POST, &path("Warn"), "application/json", odd.clone());
    let warnings: Vec<&str> = response
        .headers
        .iter()
        .filter(|(name, _)| name == WARNING)
        .filter_map(|(_, value)| value.to_str().ok())
        .collect();
    assert_eq!(warnings, [r#"299 - "unknown field \"dat\"""#]);
    let (_, stored) = call(&api, Method::GET, MAP, Value::Null);
    assert_eq!(stored.get("dat"), None);
    odd["metadata"]["name"] = "b".into();
    assert_eq!(call(&api, Method::POST, &path("Ignore"), odd.clone()).1.get("dat"), None);
    assert_eq!(call(&api, Method::POST, &path("Never"), odd.clone()).0, 422);
    let patch = format!("{MAP}?fieldValidation=Strict");
    let (code, status) = call(&api, Method::PATCH, &patch, json!({ "dat": {} }));
    let message = status["message"].as_str().unwrap();
    assert!(code == 422 && message.ends_with("unknown field \"dat\""), "{code} {message}");
}

#[test]
fn an_apply_creates_then_merges_and_names_its_manager() {
    let api = api();
    let apply = |query: &str, body: Value| {
        let path = format!("{MAP}?{query}");
        let response = send(&api, Method::PATCH, &path, "application/apply-patch+yaml", body);
        let Body::Full(bytes) = response.body else { panic!("no whole body") };
        (response.status, serde_json::from_slice::<Value>(&bytes).unwrap())
    };
    assert_eq!(apply("", map("a")).0, 422);
    let (code, made) = apply("fieldManager=bob", map("a"));
    assert_eq!((code, &made["metadata"]["managedFields"][0]["operation"]), (201, &json!("Apply")));
    let (code, same) = apply("fieldManager=bob", map("a"));
    assert_eq!((code, same), (200, made));
    let eves = json!({ "apiVersion": "v1", "kind": "ConfigMap", "data": { "x": "2", "y": "3" } });
    assert_eq!(apply("fieldManager=eve", eves.clone()).1["reason"], "Conflict");
    let (_, forced) = apply("fieldManager=eve&force=true", eves.clone());
    assert_eq!(forced["data"], eves["data"]);
    let (code, nothing) = apply("fieldManager=eve", json!({ "data": {} }));
    assert_eq!((code, &nothing["message"]), (400, &json!("invalid object type: /, Kind=")));
    let odd = json!({ "apiVersion": "v1", "kind": "ConfigMap", "dat": {} });
    let (code, odd) = apply("fieldManager=eve", odd);
    let message = odd["message"].as_str().unwrap();
    assert!(code == 500 && message.ends_with(".dat: field not declared in schema"), "{message}");
}

#[test]
fn an_event_is_one_object_in_two_groups() {
    let api = api();
    let path = "/apis/events.k8s.io/v1/namespaces/ns/events";
    let event = json!({ "metadata": { "name": "e" }, "note": "hello", "reason": "R",
        "regarding": { "kind": "Pod", "name": "p", "namespace": "ns" } });
    assert_eq!(call(&api, Method::POST, path, event).0, 201);
    let (_, core) = call(&api, Method::GET, "/api/v1/namespaces/ns/events/e", Value::Null);
    assert_eq!((&core["message"], &core["apiVersion"]), (&json!("hello"), &json!("v1")));
    let (_, patched) = call(&api, Method::PATCH, &format!("{path}/e"), json!({ "note": "bye" }));
    assert_eq!((&patched["note"], patched.get("message")), (&json!("bye"), None));
    let of_pods = format!("{path}?fieldSelector=regarding.kind%3DPod");
    let (_, found) = call(&api, Method::GET, &of_pods, Value::Null);
    assert_eq!(found["items"][0]["note"], "bye");
}

#[test]
fn a_dry_run_stores_nothing() {
    let api = api();
    let before = api.store.version();
    let dry = format!("{MAPS}?dryRun=All");
    let (code, shown) = call(&api, Method::POST, &dry, map("a"));
    assert_eq!((code, shown["metadata"]["uid"].is_string()), (201, true));
    assert_eq!((api.store.version(), call(&api, Method::GET, MAP, Value::Null).0), (before, 404));
}

#[test]
fn creation_fails_in_a_missing_or_terminating_namespace() {
    let api = api();
    let (code, status) = call(&api, Method::POST, "/api/v1/namespaces/x/configmaps", map("a"));
    assert_eq!((code, &status["message"]), (404, &json!("namespaces \"x\" not found")));
    let (_, namespace) = call(&api, Method::DELETE, "/api/v1/namespaces/ns", Value::Null);
    assert_eq!(namespace["status"]["phase"], "Terminating");
    let (code, status) = call(&api, Method::POST, MAPS, map("a"));
    assert_eq!(
        (code, &status["details"]["causes"][0]["reason"]),
        (403, &json!("NamespaceTerminating"))
    );
}

#[test]
fn a_namespace_goes_when_its_finalizer_does() {
    const NAMESPACE: &str = "/api/v1/namespaces/ns";
    let api = api();
    call(&api, Method::POST, MAPS, map("a"));
    for _ in 0..2 {
        let (code, namespace) = call(&api, Method::DELETE, NAMESPACE, Value::Null);
        assert_eq!((code, &namespace["spec"]["finalizers"]), (200, &json!(["kubernetes"])));
    }
    let (_, mut namespace) = call(&api, Method::GET, NAMESPACE, Value::Null);
    assert_eq!(call(&api, Method::GET, MAP, Value::Null).0, 200, "it has not been emptied");
    namespace["status"]["phase"] = "Active".into();
    let (code, _) = call(&api, Method::PUT, &format!("{NAMESPACE}/status"), namespace.clone());
    assert_eq!(code, 422);
    namespace["spec"]["finalizers"] = json!([]);
    let finalize = format!("{NAMESPACE}/finalize");
    let mut stale = namespace.clone();
    stale["metadata"]["resourceVersion"] = "1".into();
    assert_eq!(call(&api, Method::PUT, &finalize, stale).0, 409);
    let (code, gone) = call(&api, Method::PUT, &finalize, namespace);
    assert_eq!((code, &gone["status"]["phase"]), (200, &json!("Terminating")));
    assert_eq!(call(&api, Method::GET, NAMESPACE, Value::Null).0, 404);
}

#[test]
fn expired_pages_offer_a_token_to_go_on() {
    let api = api();
    for name in ["a", "b", "c"] {
        call(&api, Method::POST, MAPS, map(name));
    }
    let (_, page) = call(&api, Method::GET, &format!("{MAPS}?limit=1"), Value::Null);
    assert_eq!(page["metadata"]["remainingItemCount"], 2);
    let next = |token: &Value| format!("{MAPS}?limit=1&continue={}", token.as_str().unwrap());
    let token = &page["metadata"]["continue"];
    let (_, second) = call(&api, Method::GET, &next(token), Value::Null);
    assert_eq!(second["items"][0]["metadata"]["name"], "b");
    api.store.compact();
    let (code, status) = call(&api, Method::GET, &next(token), Value::Null);
    assert_eq!((code, &status["reason"]), (410, &json!("Expired")));
    let (_, rest) = call(&api, Method::GET, &next(&status["metadata"]["continue"]), Value::Null);
    assert_eq!(rest["items"][0]["metadata"]["name"], "b");
}

fn watch(api: &Arc<Api>, query: &str) -> kube_controller_manager::server::http::BodyStream {
    let response = send(api, Method::GET, &format!("{MAPS}?watch=1&{query}"), "", Value::Null);
    match response.body {
        Body::Stream(stream) => stream,
        _ => panic!("status {}", response.status),
    }
}

/// The types of the events in the next chunk; `None` when it is cut.
fn types(stream: &mut kube_controller_manager::server::http::BodyStream) -> Option<Vec<String>> {
    let chunk = block_on(stream.next())?.ok()?;
    let lines = chunk.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let event = |line: &[u8]| serde_json::from_slice::<Value>(line).unwrap()["type"].to_string();
    Some(lines.map(|line| event(line).trim_matches('"').to_owned()).collect())
}

#[test]
fn watches_start_with_existing_objects_and_end_on_request() {
    let api = api();
    call(&api, Method::POST, MAPS, map("a"));
    let from = api.store.version();
    let mut stream = watch(
        &api,
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
    );
    assert_eq!(types(&mut stream).unwrap(), ["ADDED", "BOOKMARK"]);
    call(&api, Method::PATCH, MAP, json!({ "data": { "x": "2" } }));
    call(&api, Method::DELETE, MAP, Value::Null);
    assert_eq!(types(&mut stream).unwrap(), ["MODIFIED", "DELETED"]);
    api.faults.bookmark();
    assert_eq!(types(&mut stream).unwrap(), ["BOOKMARK"]);
    // A compaction does not harm a watch that has seen everything, but one from before it.
    api.store.compact();
    call(&api, Method::POST, MAPS, map("b"));
    assert_eq!(types(&mut stream).unwrap(), ["ADDED"]);
    assert_eq!(types(&mut watch(&api, &format!("resourceVersion={from}"))).unwrap(), ["ERROR"]);
    api.faults.cut_watches();
    assert_eq!(types(&mut stream), None);
    assert_eq!(api.faults.count("watch", "configmaps"), 2);
}

#[test]
fn a_watch_is_cut_in_the_middle_of_an_object() {
    let api = api();
    call(&api, Method::POST, MAPS, map("a"));
    api.faults.next(1, "watch", "configmaps", Fault::CutAfter(20));
    let mut stream = watch(&api, "");
    assert_eq!(block_on(stream.next()).unwrap().unwrap().len(), 20);
    assert!(block_on(stream.next()).unwrap().is_err());
    api.faults.next(1, "create", "configmaps", Fault::code(429, Some(3)));
    let (code, status) = call(&api, Method::POST, MAPS, map("b"));
    assert_eq!((code, &status["details"]["retryAfterSeconds"]), (429, &json!(3)));
    api.faults.next(1, "create", "configmaps", Fault::LoseAnswer);
    let lost = send(&api, Method::POST, MAPS, "application/json", map("b"));
    assert!(matches!(lost.body, Body::Abort));
    assert_eq!(call(&api, Method::POST, MAPS, map("b")).0, 409);
}

#[test]
fn a_token_names_the_pod_that_it_is_bound_to() {
    let api = api();
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "a", "namespace": "ns" },
    });
    api.create_value("", "serviceaccounts", account).unwrap();
    for (name, account) in [("p", "a"), ("other", "b")] {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "ns" },
            "spec": {
                "serviceAccountName": account, "nodeName": "n",
                "containers": [{ "name": "a", "image": "a:1" }],
            },
        });
        api.create_value("", "pods", pod).unwrap();
    }
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n" } });
    api.create_value("", "nodes", node).unwrap();
    let ask = |reference: Value| {
        let request = json!({ "spec": { "audiences": ["x"], "boundObjectRef": reference } });
        call(&api, Method::POST, "/api/v1/namespaces/ns/serviceaccounts/a/token", request)
    };
    let reference =
        |kind: &str, name: &str| json!({ "apiVersion": "v1", "kind": kind, "name": name });
    let (code, token) = ask(reference("Pod", "p"));
    assert_eq!(code, 201, "{token}");
    let review = json!({ "spec": { "token": token["status"]["token"], "audiences": ["x"] } });
    let (_, review) =
        call(&api, Method::POST, "/apis/authentication.k8s.io/v1/tokenreviews", review);
    let extra = &review["status"]["user"]["extra"];
    assert_eq!(extra["authentication.kubernetes.io/pod-name"], json!(["p"]), "{review}");
    assert_eq!(extra["authentication.kubernetes.io/node-name"], json!(["n"]), "{review}");
    let mut stale = reference("Pod", "p");
    stale["uid"] = "old".into();
    for (reference, code, text) in [
        (reference("Pod", "other"), 400, "different serviceaccount name"),
        (reference("Pod", "none"), 404, "pods \"none\" not found"),
        (reference("Job", "p"), 400, "cannot bind token to object of type v1, Kind=Job"),
        (stale, 409, "does not match the UID in record"),
    ] {
        let (found, status) = ask(reference);
        assert_eq!(found, code, "{status}");
        assert!(status["message"].as_str().unwrap().contains(text), "{status}");
    }
}

#[test]
fn the_subresources_of_a_pod_change_their_parts_only() {
    let api = api();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p", "namespace": "ns" },
        "spec": { "containers": [
            { "name": "a", "image": "a:1", "resources": { "requests": { "cpu": "1" } } },
        ] },
    });
    api.create_value("", "pods", pod).unwrap();
    const POD: &str = "/api/v1/namespaces/ns/pods/p";
    let patch = |sub: &str, body: Value| call(&api, Method::PATCH, &format!("{POD}/{sub}"), body);
    let debugger = json!([{ "name": "d", "image": "d:1", "targetContainerName": "a" }]);
    let body = json!({
        "metadata": { "labels": { "x": "y" } },
        "spec": { "ephemeralContainers": debugger, "priority": 5 },
    });
    let (code, changed) = patch("ephemeralcontainers", body);
    assert_eq!(code, 200, "{changed}");
    assert_eq!(changed["spec"]["ephemeralContainers"][0]["name"], "d");
    assert_eq!(changed["metadata"]["labels"], Value::Null);
    assert_ne!(changed["spec"]["priority"], 5);
    let (code, refused) =
        patch("ephemeralcontainers", json!({ "spec": { "ephemeralContainers": [] } }));
    assert_eq!(code, 422, "{refused}");
    let resized = |cpu: &str| {
        json!({ "spec": { "containers": [
            { "name": "a", "image": "b:1", "resources": { "requests": { "cpu": cpu } } },
        ] } })
    };
    let (code, changed) = patch("resize", resized("2"));
    assert_eq!(code, 200, "{changed}");
    let container = &changed["spec"]["containers"][0];
    assert_eq!(
        (&container["image"], &container["resources"]["requests"]["cpu"]),
        (&json!("a:1"), &json!("2"))
    );
    assert_eq!(changed["metadata"]["generation"], 3);
    let removed = json!({ "spec": { "containers": [{ "name": "a", "image": "a:1" }] } });
    assert_eq!(patch("resize", removed).0, 422);
}

#[test]
fn a_get_that_opens_streams_needs_the_right_to_create() {
    let api = api();
    let role = |verbs: &[&str]| {
        let rule = json!({ "apiGroups": [""], "resources": ["pods/exec"], "verbs": verbs });
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": { "name": verbs.join("-") }, "rules": [rule],
        })
    };
    let group = "rbac.authorization.k8s.io";
    for verbs in [&["get"][..], &["get", "create"]] {
        api.create_value(group, "clusterroles", role(verbs)).unwrap();
        let name = verbs.join("-");
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": name },
            "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": name },
            "subjects": [{ "apiGroup": group, "kind": "User", "name": name }],
        });
        api.create_value(group, "clusterrolebindings", binding).unwrap();
        let mut request = Request::get("/api/v1/namespaces/ns/pods/none/exec");
        let bearer = format!("Bearer {}", api.auth.issue(User::new(&name, &[]), vec![], None));
        request.headers.insert("authorization", bearer.parse().unwrap());
        let response = block_on(api.clone().handle(request));
        let text = String::from_utf8_lossy(response.content()).into_owned();
        match verbs.len() {
            1 => assert!(text.contains("cannot create resource \\\"pods/exec\\\""), "{text}"),
            _ => assert!(text.contains("pods \\\"none\\\" not found"), "{text}"),
        }
    }
}

#[test]
fn an_api_of_another_server_is_shown_and_unavailable_without_it() {
    let api = api();
    let service = json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": { "name": "v1.away.test" },
        "spec": {
            "group": "away.test", "version": "v1", "insecureSkipTLSVerify": true,
            "service": { "namespace": "ns", "name": "away" },
            "groupPriorityMinimum": 100, "versionPriority": 100,
        },
    });
    api.create_value("apiregistration.k8s.io", "apiservices", service).unwrap();
    for path in ["/apis/away.test/v1", "/apis/away.test/v1/namespaces/ns/things/a"] {
        let response = send(&api, Method::GET, path, "application/json", Value::Null);
        assert_eq!((response.status, response.content()), (503, &b"service unavailable\n"[..]));
    }
    let (code, group) = call(&api, Method::GET, "/apis/away.test", Value::Null);
    assert_eq!((code, &group["preferredVersion"]["version"]), (200, &json!("v1")));
    let (_, groups) = call(&api, Method::GET, "/apis", Value::Null);
    let groups = groups["groups"].as_array().unwrap();
    assert!(groups.iter().any(|group| group["name"] == "away.test"));
}

#[test]
fn a_pod_is_bound_to_a_node_when_its_gates_are_open() {
    let api = api();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p", "namespace": "ns" },
        "spec": {
            "containers": [{ "name": "a", "image": "a:1" }], "schedulingGates": [{ "name": "g" }],
        },
    });
    api.create_value("", "pods", pod).unwrap();
    let pods = "/api/v1/namespaces/ns/pods/p";
    let bind = |kind: &str, name: &str| {
        let binding = json!({ "target": { "kind": kind, "name": name } });
        let (code, status) = call(&api, Method::POST, &format!("{pods}/binding"), binding);
        (code, status["message"].as_str().unwrap_or_default().to_owned())
    };
    let (code, why) = bind("Pod", "");
    assert_eq!(code, 422);
    assert!(why.contains("target.kind: Unsupported value: \"Pod\""), "{why}");
    assert!(why.contains("target.name: Required value"), "{why}");
    let (code, why) = bind("Node", "n");
    assert_eq!(code, 409);
    assert!(why.contains("pod p has non-empty .spec.schedulingGates"), "{why}");
    let open = json!({ "spec": { "schedulingGates": null } });
    assert_eq!(call(&api, Method::PATCH, pods, open).0, 200);
    assert_eq!(bind("Node", "n").0, 201);
}
