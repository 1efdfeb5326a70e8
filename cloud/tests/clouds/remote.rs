//! The provider `grpc`, with the reference provider as a process of its own.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cloud::grpc;
use cloud::objects::{Node, Service};
use cloud::provider::{Cloud, Error, Route, Settings};
use futures_lite::FutureExt;
use futures_lite::future::block_on;
use kube_controller_manager::client::Delete;
use kube_controller_manager::clock::{SharedClock, SystemClock};
use kube_controller_manager::objects::ObjectKey;
use kube_controller_manager::task::{self, Latch};
use serde_json::{Value, json};

use crate::env::Env;
use crate::managers::Manager;

/// How long the provider's process may take to do something before the test fails.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(120);

/// The reference provider in a folder of its own.
struct Reference {
    folder: PathBuf,
    child: Option<Child>,
    clock: SharedClock,
}

impl Reference {
    fn start() -> Reference {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let unique = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::SeqCst));
        let folder = std::env::temp_dir().join(format!("remote-{unique}"));
        fs::create_dir_all(&folder).expect("a folder");
        let mut this = Reference { folder, child: None, clock: SystemClock::shared() };
        this.restart();
        this
    }

    /// Starts the process, after its end.
    fn restart(&mut self) {
        let socket = self.folder.join("provider.sock");
        let _ = fs::remove_file(&socket);
        let mut command = Command::new(env!("CARGO_BIN_EXE_reference-cloud-provider"));
        self.child = Some(command.arg(&self.folder).spawn().expect("it starts"));
        self.wait("it listens", || socket.exists());
    }

    fn wait(&self, what: &str, is_done: impl Fn() -> bool) {
        let give_up = self.clock.monotonic() + PATIENCE;
        while !is_done() {
            assert!(self.clock.monotonic() < give_up, "{what}");
            block_on(self.clock.sleep(std::time::Duration::from_millis(5)));
        }
    }

    fn wait_for_end(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.wait().expect("its end");
    }

    fn plan(&self, plan: Value) {
        let new = self.folder.join("plan.new");
        fs::write(&new, plan.to_string()).expect("a file");
        fs::rename(new, self.folder.join("plan.json")).expect("a new name");
    }

    fn set_machines(&self, machines: Value) {
        fs::write(self.folder.join("machines.json"), machines.to_string()).expect("a file");
    }

    /// Its load balancers and routes.
    fn cloud(&self) -> Value {
        let text = fs::read_to_string(self.folder.join("cloud.json")).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    fn balancers(&self) -> usize {
        self.cloud()["loadBalancers"].as_object().map_or(0, serde_json::Map::len)
    }

    fn calls(&self, method: &str) -> usize {
        let calls = fs::read_to_string(self.folder.join("calls")).unwrap_or_default();
        calls.lines().filter(|line| line.split(' ').next() == Some(method)).count()
    }

    /// A client with this deadline.
    fn client(&self, timeout: &str) -> Arc<dyn Cloud> {
        let socket = self.folder.join("provider.sock").display().to_string();
        let text = format!("{{name: example, endpoint: \"unix://{socket}\", timeout: {timeout}}}");
        let file = self.folder.join(format!("config-{timeout}.yaml"));
        fs::write(&file, text).expect("a file");
        let settings = Settings { config: Some(file), cluster_name: "test".to_owned() };
        grpc::open(&settings).expect("a provider")
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn service() -> Service {
    serde_json::from_value(json!({
        "metadata": { "namespace": "default", "name": "web", "uid": "0-1" },
        "spec": { "type": "LoadBalancer", "ports": [{ "port": 80 }] },
    }))
    .expect("a Service")
}

fn node() -> Node {
    serde_json::from_value(json!({ "metadata": { "name": "n1" } })).expect("a Node")
}

fn route() -> Route {
    let (target_node, destination) = ("n1".to_owned(), "10.244.0.0/24".to_owned());
    Route { target_node, destination, ..Route::default() }
}

/// The calls that a manager makes, each with a text of what it returns.
const CALLS: [&str; 8] = [
    "CreateRoute",
    "ListRoutes",
    "DeleteRoute",
    "GetInstance",
    "GetLoadBalancer",
    "EnsureLoadBalancer",
    "UpdateLoadBalancer",
    "DeleteLoadBalancer",
];

async fn call(cloud: &dyn Cloud, method: &str) -> Result<String, Error> {
    let balancer = cloud.load_balancer().expect("load balancers");
    let (instances, routes) =
        (cloud.instances().expect("instances"), cloud.routes().expect("routes"));
    let (service, node, nodes) = (service(), node(), [Arc::new(node())]);
    let debug = |value: &dyn std::fmt::Debug| format!("{value:?}");
    Ok(match method {
        "GetLoadBalancer" => debug(&balancer.get(&service).await?),
        "EnsureLoadBalancer" => debug(&balancer.ensure(&service, &nodes).await?),
        "UpdateLoadBalancer" => debug(&balancer.update(&service, &nodes).await?),
        "DeleteLoadBalancer" => debug(&balancer.ensure_deleted(&service).await?),
        "GetInstance" => debug(&instances.metadata(&node).await?),
        "ListRoutes" => debug(&routes.list().await?),
        "CreateRoute" => debug(&routes.create("hint", &route()).await?),
        "DeleteRoute" => {
            let name = "hint-10.244.0.0-24".to_owned();
            debug(&routes.delete(&Route { name, ..route() }).await?)
        }
        other => panic!("no call {other}"),
    })
}

/// The state in which a call of this name has something to do.
async fn prepare(reference: &Reference, cloud: &dyn Cloud, method: &str) {
    reference.plan(json!({}));
    match method {
        "UpdateLoadBalancer" | "GetLoadBalancer" | "DeleteLoadBalancer" => {
            call(cloud, "EnsureLoadBalancer").await.expect("made");
        }
        "EnsureLoadBalancer" => {
            call(cloud, "DeleteLoadBalancer").await.expect("deleted");
        }
        "CreateRoute" => {
            call(cloud, "DeleteRoute").await.expect("deleted");
        }
        "DeleteRoute" | "ListRoutes" => {
            call(cloud, "CreateRoute").await.expect("made");
        }
        _ => {}
    }
}

/// Every call with every fault, once before and once after its effect: the call fails, and repeated
/// it has the effect and the answer of one that did not fail.
#[test]
fn a_repeated_call_has_the_effect_of_one() {
    let mut reference = Reference::start();
    reference.set_machines(json!({ "n1": {
        "state": "RUNNING", "addresses": { "InternalIP": "10.0.0.1" },
    } }));
    let (slow, quick) = (reference.client("120s"), reference.client("50ms"));
    let faults = [
        ("error", "before"),
        ("error", "after"),
        ("hold", "before"),
        ("hold", "after"),
        ("twice", "before"),
        ("garbage", "before"),
        ("die", "before"),
        ("die", "after"),
    ];
    for method in CALLS {
        for (fault, when) in faults {
            let text = format!("{method}: {fault} {when}");
            block_on(prepare(&reference, &*slow, method));
            let expected = block_on(call(&*slow, method)).expect(&text);
            let cloud = reference.cloud();
            block_on(prepare(&reference, &*slow, method));
            // A message without fields is read from any bytes that hold no field.
            reference.plan(json!({ method: { "fault": fault, "when": when, "code": 14 } }));
            let client = if fault == "hold" { &quick } else { &slow };
            let error = block_on(call(&**client, method)).expect_err(&text);
            assert!(error.to_string().starts_with(&format!("{method}: ")), "{text}: {error}");
            reference.plan(json!({}));
            if fault == "die" {
                reference.wait_for_end();
                reference.restart();
            }
            let again = block_on(call(&*slow, method)).expect(&text);
            assert_eq!(again, expected, "{text}");
            assert_eq!(reference.cloud(), cloud, "{text}");
        }
    }
}

/// A call that is answered only after its manager has died: the next manager makes it again while
/// the first one is still under way.
#[test]
fn the_next_manager_repeats_what_the_former_one_waits_for() {
    let reference = Reference::start();
    for when in ["before", "after"] {
        block_on(async {
            let former = reference.client("120s");
            reference.plan(json!({ "EnsureLoadBalancer": { "fault": "hold", "when": when } }));
            let calls = reference.calls("EnsureLoadBalancer");
            let death = Latch::new();
            let waiting = task::spawn({
                let death = death.clone();
                async move {
                    let answer = async { drop(call(&*former, "EnsureLoadBalancer").await) };
                    answer.or(death.opened()).await;
                }
            });
            reference.wait("the call", || reference.calls("EnsureLoadBalancer") > calls);
            let next = reference.client("120s");
            let both = task::spawn(async move { call(&*next, "EnsureLoadBalancer").await });
            reference.wait("both calls", || reference.calls("EnsureLoadBalancer") > calls + 1);
            // The process of the former one ends: its connection with it.
            death.open();
            waiting.await;
            reference.plan(json!({}));
            let answer = both.await.expect("an answer");
            assert!(answer.contains("192.0.2.1"), "{answer}");
            assert_eq!(reference.balancers(), 1);
        });
    }
}

#[test]
fn only_an_explicit_state_says_that_a_machine_is_gone() {
    let reference = Reference::start();
    let cloud = reference.client("120s");
    let instances = cloud.instances().expect("instances");
    let node = node();
    for (state, exists, is_shut_down) in [
        ("RUNNING", Some(true), Some(false)),
        ("SHUT_DOWN", Some(true), Some(true)),
        ("GONE", Some(false), Some(false)),
        ("UNKNOWN", None, None),
    ] {
        reference.set_machines(json!({ "n1": { "state": state } }));
        block_on(async {
            assert_eq!(instances.exists(&node).await.ok(), exists, "{state}");
            assert_eq!(instances.is_shut_down(&node).await.ok(), is_shut_down, "{state}");
            let metadata = instances.metadata(&node).await;
            let is_gone = matches!(metadata, Err(Error::InstanceNotFound));
            assert_eq!(is_gone, state == "GONE", "{state}");
        });
    }
    for code in [5, 12, 13, 14] {
        reference.plan(json!({ "GetInstance": { "fault": "error", "code": code } }));
        assert!(block_on(instances.exists(&node)).is_err(), "{code}");
    }
}

#[test]
fn a_provider_asks_for_its_time() {
    let reference = Reference::start();
    let cloud = reference.client("120s");
    for (plan, seconds) in [
        (json!({ "code": 14, "retrySeconds": 7 }), Some(7)),
        (json!({ "code": 10 }), Some(5)),
        (json!({ "code": 8 }), Some(30)),
        (json!({ "code": 14 }), None),
    ] {
        let mut fault = json!({ "fault": "error" });
        fault.as_object_mut().expect("fields").extend(plan.as_object().expect("fields").clone());
        reference.plan(json!({ "EnsureLoadBalancer": fault }));
        let error = block_on(call(&*cloud, "EnsureLoadBalancer")).expect_err("as planned");
        let after = match error {
            Error::Retry { after, .. } => Some(after.as_secs()),
            _ => None,
        };
        assert_eq!(after, seconds, "{plan}");
    }
}

/// The whole way, with the controllers.
#[test]
fn services_nodes_and_routes_of_a_process() {
    Env::run("remote", async |env| {
        let reference = Reference::start();
        reference.set_machines(json!({ "n1": {
            "state": "RUNNING", "zone": "a", "addresses": { "InternalIP": "10.0.0.1" },
        } }));
        let names = [
            "service-lb-controller",
            "cloud-node-controller",
            "cloud-node-lifecycle-controller",
            "node-route-controller",
        ];
        let manager = Manager::start(env, reference.client("120s"), &names);
        let web = env.create_service("web").await;
        env.eventually("web has an address", || async {
            let service = env.get::<Service>(&web).await.expect("the Service");
            let address = &service["status"]["loadBalancer"]["ingress"][0]["ip"];
            if address == "192.0.2.1" { Ok(()) } else { Err(service.to_string()) }
        })
        .await;
        let taints = json!([{
            "key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true",
            "effect": "NoSchedule",
        }]);
        let spec = json!({
            "taints": taints, "podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"],
        });
        let n1 = env.create_node("n1", spec).await;
        env.eventually("n1 is initialized", || async {
            let node = env.get::<Node>(&n1).await.expect("the Node");
            let is_done = node["spec"]["providerID"] == "example://n1"
                && node["metadata"]["labels"]["topology.kubernetes.io/zone"] == "a"
                && !node["spec"]["taints"].to_string().contains("uninitialized");
            if is_done { Ok(()) } else { Err(node.to_string()) }
        })
        .await;
        env.eventually("n1 is a target", || async {
            let cloud = reference.cloud();
            let balancers = cloud["loadBalancers"].as_object().cloned().unwrap_or_default();
            let is_target = balancers.values().any(|balancer| balancer["nodes"] == json!(["n1"]));
            if is_target { Ok(()) } else { Err(cloud.to_string()) }
        })
        .await;
        let routes = || {
            let cloud = reference.cloud();
            let routes = cloud["routes"].as_object().cloned().unwrap_or_default();
            let shown = routes.values().map(|route| {
                let text = |field: &str| route[field].as_str().unwrap_or_default().to_owned();
                (text("node"), text("destination"))
            });
            shown.collect::<Vec<_>>()
        };
        env.eventually("n1 has a route", || async {
            manager.clock.advance(std::time::Duration::from_secs(10));
            let found = routes();
            let expected = ("n1".to_owned(), "10.244.1.0/24".to_owned());
            if found == [expected] { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
        env.set_ready(&n1, "Unknown").await;
        reference.set_machines(json!({ "n1": { "state": "GONE" } }));
        env.eventually("n1 is gone", || async {
            manager.clock.advance(std::time::Duration::from_secs(5));
            env.get::<Node>(&n1).await.map_or(Ok(()), |node| Err(node.to_string()))
        })
        .await;
        env.eventually("n1 has no route", || async {
            manager.clock.advance(std::time::Duration::from_secs(10));
            let found = routes();
            if found.is_empty() { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
        // The provider does not answer: the Service stays until its load balancer is deleted.
        reference.plan(json!({ "DeleteLoadBalancer": { "fault": "error", "code": 14 } }));
        env.client.delete::<Service>(&web, Delete::new()).await.expect("deleted");
        env.eventually_recorded("web", &["SyncLoadBalancerFailed"]).await;
        assert!(env.get::<Service>(&ObjectKey::new("default", "web")).await.is_some());
        reference.plan(json!({}));
        env.eventually("web is gone", || async {
            manager.clock.advance(std::time::Duration::from_secs(300));
            env.get::<Service>(&web).await.map_or(Ok(()), |service| Err(service.to_string()))
        })
        .await;
        assert_eq!(reference.balancers(), 0);
        manager.stop().await;
    });
}
