//! A sandbox for requests. Each input finds the same objects in it.

use std::pin::pin;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use futures_lite::future::{block_on, poll_once};
use kube_controller_manager::clock::FakeClock;
use kube_controller_manager::objects::Timestamp;
use kube_controller_manager::server::http::{
    Body, Chain, HeaderMap, Method, Request, RequestBody, Response,
};
use parking_lot::{Mutex, MutexGuard};
use sandbox::store::Backup;
use sandbox::{Sandbox, SandboxOptions};
use serde_json::{Value, json};

/// How often the time is advanced while a request waits, and by how much.
const STEPS: usize = 64;
const STEP: Duration = Duration::from_secs(300);

/// A sandbox, its clock and the state with which each input begins.
pub struct World {
    pub sandbox: Sandbox,
    pub clock: Arc<FakeClock>,
    first: Backup,
}

static WORLD: LazyLock<Mutex<World>> = LazyLock::new(|| Mutex::new(World::new()));

/// Returns the sandbox, with its first objects.
pub fn world() -> MutexGuard<'static, World> {
    let world = WORLD.lock();
    world.sandbox.api().restore(&world.first);
    world
}

fn metadata(name: &str) -> Value {
    json!({ "name": name, "labels": { "app": "web" }, "finalizers": ["example.com/a"] })
}

/// Builds the specification of a pod of two containers.
fn pod_spec() -> Value {
    json!({
        "containers": [
            { "name": "a", "image": "nginx:1", "env": [{ "name": "X", "value": "1" }],
                "ports": [{ "containerPort": 80 }] },
            { "name": "b", "image": "busybox" },
        ],
        "tolerations": [{ "key": "x", "operator": "Exists" }],
        "volumes": [{ "name": "v", "emptyDir": {} }],
    })
}

/// Lists the paths of the first objects, to which an object's name is added, with the objects.
pub fn first_objects() -> Vec<(&'static str, Value)> {
    let template = json!({ "metadata": { "labels": { "app": "web" } }, "spec": pod_spec() });
    vec![
        (
            "/api/v1/namespaces/default/pods",
            json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata("a"), "spec": pod_spec() }),
        ),
        (
            "/apis/apps/v1/namespaces/default/deployments",
            json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata("a"), "spec": {
                "replicas": 2, "selector": { "matchLabels": { "app": "web" } },
                "template": template } }),
        ),
        (
            "/api/v1/namespaces/default/configmaps",
            json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata("a"),
            "data": { "x": "1" } }),
        ),
        (
            "/api/v1/namespaces/default/services",
            json!({
            "apiVersion": "v1", "kind": "Service", "metadata": metadata("a"),
            "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80 }] } }),
        ),
        (
            "/api/v1/nodes",
            json!({
            "apiVersion": "v1", "kind": "Node", "metadata": metadata("a"),
            "spec": { "taints": [{ "key": "x", "effect": "NoSchedule" }] } }),
        ),
        (
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            definition(
                "widgets",
                &json!({
            "type": "object", "properties": { "spec": { "type": "object",
                "x-kubernetes-preserve-unknown-fields": true, "properties": {
                    "size": { "type": "integer", "minimum": 1, "default": 3 },
                    "parts": { "type": "array", "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["name"], "items": { "type": "object",
                            "required": ["name"], "properties": { "name": { "type": "string" } } } },
                },
                "x-kubernetes-validations": [{ "rule": "self.size < 100" }] } } }),
            ),
        ),
        (
            "/apis/fuzz.example.com/v1/namespaces/default/widgets",
            json!({
            "apiVersion": "fuzz.example.com/v1", "kind": "Widgets", "metadata": metadata("a"),
            "spec": { "size": 2, "parts": [{ "name": "x" }] } }),
        ),
    ]
}

/// Builds a CustomResourceDefinition with this schema. The kind has the plural's name.
pub fn definition(plural: &str, schema: &Value) -> Value {
    let kind = plural[..1].to_uppercase() + &plural[1..];
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.fuzz.example.com") },
        "spec": { "group": "fuzz.example.com", "scope": "Namespaced",
            "names": { "kind": kind, "plural": plural },
            "versions": [{ "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": schema } }] },
    })
}

impl World {
    /// Starts a sandbox with first objects, and saves its state for each run to begin with.
    fn new() -> World {
        let clock = FakeClock::new(Timestamp::from_secs(1_777_000_000));
        let folder = std::env::temp_dir().join(format!("fuzz-sandbox-{}", std::process::id()));
        let mut options = SandboxOptions::new(&folder);
        options.clock = clock.clone();
        options.service_accounts = false;
        let sandbox = block_on(Sandbox::start(options)).expect("a sandbox");
        // Its files are not used.
        std::fs::remove_dir_all(&folder).expect("its folder");
        // Replaced below, once the first objects exist.
        let first = sandbox.api().store.backup();
        let mut world = World { sandbox, clock, first };
        for (path, object) in first_objects() {
            let made = world.send(Method::POST, path, "application/json", object.to_string());
            let made = made.expect("an answer");
            let answer = String::from_utf8_lossy(made.content()).into_owned();
            assert_eq!(made.status, 201, "{path}: {answer}");
        }
        world.first = world.sandbox.api().store.backup();
        world
    }

    /// Adds the headers of the administrator.
    pub fn authorize(&self, headers: &mut HeaderMap) {
        let bearer = format!("Bearer {}", self.sandbox.client_config().token);
        headers.insert("authorization", bearer.parse().expect("a token"));
    }

    /// Runs to the end of `future`, with more time whenever it waits; `None` if it still waits
    /// after hours.
    pub fn finish<F: Future>(&self, future: F) -> Option<F::Output> {
        block_on(async {
            let mut future = pin!(future);
            for _ in 0..STEPS {
                if let Some(output) = poll_once(&mut future).await {
                    return Some(output);
                }
                self.clock.advance(STEP);
            }
            None
        })
    }

    /// Sends an administrator's request, and returns the answer; `None` as with [`World::finish`].
    /// `path`: with the query.
    pub fn send(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: impl Into<Vec<u8>>,
    ) -> Option<Response> {
        let mut request = Request::get(path);
        request.method = method;
        request.body = RequestBody::Full(body.into().into());
        request.peer = Chain::default();
        if let Ok(content_type) = content_type.parse() {
            request.headers.insert("content-type", content_type);
        }
        self.authorize(&mut request.headers);
        self.finish(self.sandbox.api().clone().handle(request))
    }

    /// Returns the JSON of an object; `None` if the answer is not 200, or is a stream.
    pub fn get(&self, path: &str) -> Option<Value> {
        let answer = self.send(Method::GET, path, "", "")?;
        let Body::Full(bytes) = &answer.body else { return None };
        let value = serde_json::from_slice(bytes).expect("JSON");
        (answer.status == 200).then_some(value)
    }
}
