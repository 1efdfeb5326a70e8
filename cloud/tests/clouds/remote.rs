//! The provider `grpc`, with the reference provider as a process of its own.

use std::sync::Arc;
use std::time::Duration;

use cloud::objects::{Node, Service};
use cloud::provider::{Cloud, Error, Route};
use futures_lite::FutureExt;
use futures_lite::future::block_on;
use kube_controller_manager::client::Delete;
use kube_controller_manager::clock::{Clock, SystemClock};
use kube_controller_manager::objects::ObjectKey;
use kube_controller_manager::task::{self, Latch};
use sandbox::certs::Authority;
use serde_json::json;

use crate::env::Env;
use crate::managers::Manager;
use crate::reference::Reference;

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

fn authority() -> Authority {
    Authority::new(SystemClock.now()).expect("an authority")
}

#[test]
fn both_sides_of_tls_are_checked() {
    let (authority, other) = (authority(), authority());
    let reference = Reference::start_tls(&authority);
    let ensure = |cloud: &dyn Cloud| block_on(call(cloud, "EnsureLoadBalancer"));
    let known = reference.tls_client("known", &authority, Some(&authority));
    let answer = ensure(&*known).expect("an answer");
    assert!(answer.contains("192.0.2.1"), "{answer}");
    for (name, trusted, identity) in [
        ("untrusting", &other, Some(&authority)),
        ("strange", &authority, Some(&other)),
        ("anonymous", &authority, None),
    ] {
        let cloud = reference.tls_client(name, trusted, identity);
        let error = ensure(&*cloud).expect_err(name);
        assert!(matches!(error, Error::Other(_)), "{name}: {error:?}");
    }
    assert_eq!(reference.calls("EnsureLoadBalancer"), 1);
    // Another certificate, for connections from now on.
    reference.set_certificate(&other);
    let new = reference.tls_client("new", &other, Some(&authority));
    assert_eq!(ensure(&*new).expect("an answer"), answer);
    assert_eq!(ensure(&*known).expect("its connection is an older one"), answer);
}

#[test]
fn services_nodes_and_routes_of_a_process() {
    Env::everywhere("remote", async |env| {
        let reference = Reference::start();
        whole_way(env, &reference, reference.client("120s")).await;
    });
}

#[test]
fn services_nodes_and_routes_of_a_process_behind_tls() {
    Env::run("remote-tls", async |env| {
        let authority = authority();
        let reference = Reference::start_tls(&authority);
        let cloud = reference.tls_client("manager", &authority, Some(&authority));
        whole_way(env, &reference, cloud).await;
    });
}

/// With the controllers.
async fn whole_way(env: &Env, reference: &Reference, cloud: Arc<dyn Cloud>) {
    reference.set_machines(json!({ "n1": {
            "state": "RUNNING", "zone": "a", "addresses": { "InternalIP": "10.0.0.1" },
        } }));
    let names = [
        "service-lb-controller",
        "cloud-node-controller",
        "cloud-node-lifecycle-controller",
        "node-route-controller",
    ];
    let manager = Manager::start(env, cloud, &names);
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
        // The kubelet's status may have come between: a conflict is retried after a delay.
        manager.clock.advance(Duration::from_secs(1));
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
    env.eventually("n1 has a route", || async {
        manager.clock.advance(Duration::from_secs(10));
        let found = reference.routes();
        let expected = ("n1".to_owned(), "10.244.1.0/24".to_owned());
        if found == [expected] { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
    env.set_ready(&n1, "Unknown").await;
    reference.set_machines(json!({ "n1": { "state": "GONE" } }));
    env.eventually("n1 is gone", || async {
        manager.clock.advance(Duration::from_secs(5));
        env.get::<Node>(&n1).await.map_or(Ok(()), |node| Err(node.to_string()))
    })
    .await;
    env.eventually("n1 has no route", || async {
        manager.clock.advance(Duration::from_secs(10));
        let found = reference.routes();
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
        manager.clock.advance(Duration::from_secs(300));
        env.get::<Service>(&web).await.map_or(Ok(()), |service| Err(service.to_string()))
    })
    .await;
    assert_eq!(reference.balancers(), 0);
    manager.stop().await;
}

/// Routes are made, kept and cleaned while calls fail, lose their answers and end the provider.
#[test]
fn routes_of_a_process_survive_its_faults() {
    Env::everywhere("remote-routes", async |env| {
        let mut reference = Reference::start();
        // One of another cluster, and one of a Node that is gone.
        reference.set_cloud(json!({ "loadBalancers": {}, "routes": {
            "other": { "cluster": "other", "node": "x", "destination": "10.244.9.0/24" },
            "stale": { "cluster": "test", "node": "gone", "destination": "10.244.8.0/24" },
        } }));
        let own = |node: &str, range: &str| (node.to_owned(), format!("10.244.{range}.0/24"));
        let (other, stale) = (own("x", "9"), own("gone", "8"));
        for (name, range) in [("n1", "1"), ("n2", "2")] {
            let range = format!("10.244.{range}.0/24");
            env.create_node(name, json!({ "podCIDR": range, "podCIDRs": [range] })).await;
        }
        reference.plan(json!({ "ListRoutes": { "fault": "garbage" } }));
        let manager = Manager::start(env, reference.client("120s"), &["node-route-controller"]);
        let period = Duration::from_secs(10);
        env.eventually("two lists that are malformed", || async {
            manager.clock.advance(period);
            let count = reference.calls("ListRoutes");
            if count >= 2 { Ok(()) } else { Err(count.to_string()) }
        })
        .await;
        assert_eq!(reference.routes(), [stale, other.clone()], "an unknown list changes nothing");

        // The deletion has its effect and its answer is lost; no route can be made.
        reference.plan(json!({
            "DeleteRoute": { "fault": "error", "code": 14, "when": "after" },
            "CreateRoute": { "fault": "error", "code": 8 },
        }));
        let is_routed = async |name: &str, expected: &str| {
            env.eventually(&format!("{name}: NetworkUnavailable is {expected}"), || async {
                manager.clock.advance(period);
                let node = env.get::<Node>(&ObjectKey::cluster(name)).await.expect("the Node");
                let conditions = node["status"]["conditions"].as_array().cloned();
                let mut conditions = conditions.unwrap_or_default().into_iter();
                let found = conditions.find(|found| found["type"] == "NetworkUnavailable");
                let status = found.map(|found| found["status"].clone());
                if status == Some(json!(expected)) { Ok(()) } else { Err(node.to_string()) }
            })
            .await;
        };
        for name in ["n1", "n2"] {
            is_routed(name, "True").await;
            env.eventually_recorded(name, &["FailedToCreateRoute"]).await;
        }
        assert_eq!(reference.routes(), std::slice::from_ref(&other));

        // The provider ends once it has made a route.
        reference.plan(json!({ "CreateRoute": { "fault": "die", "when": "after" } }));
        manager.clock.advance(period);
        reference.wait_for_end();
        reference.plan(json!({}));
        reference.restart();
        for name in ["n1", "n2"] {
            is_routed(name, "False").await;
        }
        assert_eq!(reference.routes(), [own("n1", "1"), own("n2", "2"), other.clone()]);

        let made = reference.calls("CreateRoute");
        let key = ObjectKey::cluster("n2");
        env.client.delete::<Node>(&key, Delete::new()).await.expect("deleted");
        env.eventually("the route of n2 is gone", || async {
            manager.clock.advance(period);
            let found = reference.routes();
            let expected = [own("n1", "1"), other.clone()];
            if found == expected { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
        assert_eq!(reference.calls("CreateRoute"), made, "routes that exist are kept");
        manager.stop().await;
    });
}
