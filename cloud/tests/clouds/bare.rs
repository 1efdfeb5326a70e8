//! The provider `bare` under the controllers of clouds.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::time::Duration;

use cloud::objects::{Node, Service};
use kube_controller_manager::client::Delete;
use kube_controller_manager::clock::Clock;
use kube_controller_manager::objects::{ConfigMap, EndpointSlice, ObjectKey};
use sandbox::faults::Fault;
use serde_json::{Value, json};

use crate::env::Env;
use crate::managers::{Manager, provider};

const SERVICES: &str = "service-lb-controller";

async fn set_pools(env: &Env, data: Value) {
    let key = ObjectKey::new("kube-system", "kubevip");
    match env.get::<ConfigMap>(&key).await {
        Some(_) => env.patch::<ConfigMap>(&key, json!({ "data": data })).await,
        None => {
            let map = json!({ "metadata": { "name": "kubevip" }, "data": data });
            env.client.create::<ConfigMap>("kube-system", &map).await.expect("created");
        }
    }
}

/// The addresses in a Service's status.
fn shown(service: &Value) -> Vec<String> {
    let ingress = service["status"]["loadBalancer"]["ingress"].as_array();
    let ingress = ingress.into_iter().flatten();
    ingress.map(|ingress| ingress["ip"].as_str().unwrap_or_default().to_owned()).collect()
}

async fn service(env: &Env, key: &ObjectKey) -> Value {
    env.get::<Service>(key).await.expect("the Service")
}

/// Waits until the Service's status has some addresses.
async fn addresses(env: &Env, key: &ObjectKey) -> Vec<String> {
    env.eventually(&format!("{key} has an address"), || async {
        let service = service(env, key).await;
        let shown = shown(&service);
        if shown.is_empty() { Err(service.to_string()) } else { Ok(shown) }
    })
    .await
}

/// Waits until the Service's status has these addresses.
async fn eventually_shows(env: &Env, key: &ObjectKey, expected: &[&str]) {
    env.eventually(&format!("{key} shows {expected:?}"), || async {
        let service = service(env, key).await;
        if shown(&service) == expected { Ok(()) } else { Err(service.to_string()) }
    })
    .await;
}

async fn delete(env: &Env, key: &ObjectKey) {
    env.client.delete::<Service>(key, Delete::new()).await.expect("deleted");
    env.eventually(&format!("{key} is gone"), || async {
        env.get::<Service>(key).await.map_or(Ok(()), |service| Err(service.to_string()))
    })
    .await;
}

fn annotation<'a>(service: &'a Value, key: &str) -> Option<&'a str> {
    service["metadata"]["annotations"][key].as_str()
}

#[test]
fn a_service_has_an_address_from_the_pool_until_it_goes() {
    Env::everywhere("bare-life", async |env| {
        set_pools(env, json!({ "range-global": "10.0.0.8-10.0.0.9", "interface-global": "eth1" }))
            .await;
        let manager = Manager::start(env, provider(env, "bare", ""), &[SERVICES]);
        let web = env.create_service("web").await;
        assert_eq!(addresses(env, &web).await, ["10.0.0.8"]);
        let found = service(env, &web).await;
        assert_eq!(annotation(&found, "kube-vip.io/loadbalancerIPs"), Some("10.0.0.8"));
        assert_eq!(annotation(&found, "kube-vip.io/serviceInterface"), Some("eth1"));
        assert_eq!(found["metadata"]["labels"]["implementation"], "kube-vip");
        assert_eq!(found["status"]["loadBalancer"]["ingress"][0]["ports"][0]["port"], 80);
        // A person asks for another one.
        let request = json!({ "kube-vip.io/loadbalancerIPs": "192.0.2.7" });
        env.patch::<Service>(&web, json!({ "metadata": { "annotations": request } })).await;
        eventually_shows(env, &web, &["192.0.2.7"]).await;
        let other = env.create_service("other").await;
        assert_eq!(addresses(env, &other).await, ["10.0.0.8"]);
        // No load balancer any more: what was written is removed, the person's annotation stays.
        for key in [&web, &other] {
            env.patch::<Service>(key, json!({ "spec": { "type": "ClusterIP" } })).await;
            eventually_shows(env, key, &[]).await;
        }
        env.eventually("the annotations are removed", || async {
            let (web, other) = (service(env, &web).await, service(env, &other).await);
            let clean = annotation(&other, "kube-vip.io/loadbalancerIPs").is_none()
                && annotation(&other, "bare/given-addresses").is_none()
                && other["metadata"]["labels"]["implementation"].is_null();
            let kept = annotation(&web, "kube-vip.io/loadbalancerIPs") == Some("192.0.2.7");
            if clean && kept { Ok(()) } else { Err(format!("{web} {other}")) }
        })
        .await;
        let third = env.create_service("third").await;
        assert_eq!(addresses(env, &third).await, ["10.0.0.8"]);
        delete(env, &third).await;
        let fourth = env.create_service("fourth").await;
        assert_eq!(addresses(env, &fourth).await, ["10.0.0.8"]);
        manager.stop().await;
    });
}

/// The clock of the manager stands still: what heals does not wait for a retry.
#[test]
fn an_exhausted_pool_says_so_and_heals() {
    Env::everywhere("bare-exhausted", async |env| {
        set_pools(env, json!({ "range-global": "10.0.0.8-10.0.0.8" })).await;
        let manager = Manager::start(env, provider(env, "bare", ""), &[SERVICES]);
        let first = env.create_service("first").await;
        assert_eq!(addresses(env, &first).await, ["10.0.0.8"]);
        let second = env.create_service("second").await;
        env.eventually_recorded("second", &["SyncLoadBalancerFailed"]).await;
        assert_eq!(shown(&service(env, &second).await), [""; 0]);
        delete(env, &first).await;
        eventually_shows(env, &second, &["10.0.0.8"]).await;
        let third = env.create_service("third").await;
        env.eventually_recorded("third", &["SyncLoadBalancerFailed"]).await;
        set_pools(env, json!({ "range-global": "10.0.0.8-10.0.0.9" })).await;
        eventually_shows(env, &third, &["10.0.0.9"]).await;
        eventually_shows(env, &second, &["10.0.0.8"]).await;
        manager.stop().await;
    });
}

#[test]
fn services_that_arrive_at_once_get_different_addresses() {
    Env::everywhere("bare-crowd", async |env| {
        set_pools(env, json!({ "range-global": "10.0.0.1-10.0.0.24" })).await;
        let mut keys = Vec::new();
        for at in 0..12 {
            keys.push(env.create_service(&format!("early-{at}")).await);
        }
        let manager = Manager::start(env, provider(env, "bare", ""), &[SERVICES]);
        for at in 0..12 {
            keys.push(env.create_service(&format!("late-{at}")).await);
        }
        let mut all = BTreeSet::new();
        for key in &keys {
            all.extend(addresses(env, key).await);
        }
        assert_eq!(all.len(), 24, "{all:?}");
        manager.stop().await;
    });
}

/// As while a former leader does not know yet that it is one.
#[test]
fn services_of_two_managers_at_once_get_different_addresses() {
    Env::everywhere("bare-two", async |env| {
        set_pools(env, json!({ "range-global": "10.0.0.1-10.0.0.24" })).await;
        let managers = [
            Manager::start(env, provider(env, "bare", ""), &[SERVICES]),
            Manager::start(env, provider(env, "bare", ""), &[SERVICES]),
        ];
        let mut keys = Vec::new();
        for at in 0..12 {
            keys.push(env.create_service(&format!("web-{at}")).await);
        }
        env.eventually("different addresses", || async {
            managers.iter().for_each(|manager| manager.clock.advance(Duration::from_secs(1)));
            let mut all = BTreeSet::new();
            for key in &keys {
                let service = service(env, key).await;
                all.extend(annotation(&service, "bare/given-addresses").map(str::to_owned));
            }
            if all.len() == keys.len() { Ok(()) } else { Err(format!("{all:?}")) }
        })
        .await;
        for manager in managers {
            manager.stop().await;
        }
    });
}

/// A write whose answer is lost, and one that is lost itself, while another Service arrives.
#[test]
fn a_lost_write_gives_no_address_twice() {
    for (fault, name) in [(Fault::LoseAnswer, "answer"), (Fault::Cut, "request")] {
        Env::run(&format!("bare-lost-{name}"), async |env| {
            set_pools(env, json!({ "range-global": "10.0.0.1-10.0.0.9" })).await;
            let manager = Manager::start(env, provider(env, "bare", ""), &[SERVICES]);
            let before = env.create_service("before").await;
            assert_eq!(addresses(env, &before).await, ["10.0.0.1"]);
            env.faults().next(1, "patch", "services", fault.clone());
            let one = env.create_service("one").await;
            env.eventually("the fault has struck", || async {
                let pending = env.faults().pending();
                if pending.is_empty() { Ok(()) } else { Err(format!("{pending:?}")) }
            })
            .await;
            let two = env.create_service("two").await;
            let second = addresses(env, &two).await;
            env.eventually("the retry", || async {
                manager.clock.advance(Duration::from_secs(10));
                let service = service(env, &one).await;
                if shown(&service).is_empty() { Err(service.to_string()) } else { Ok(()) }
            })
            .await;
            let first = addresses(env, &one).await;
            assert_ne!(first, second);
            let found = service(env, &one).await;
            assert_eq!(annotation(&found, "kube-vip.io/loadbalancerIPs"), Some(&*first[0]));
            manager.stop().await;
        });
    }
}

/// The state is in the Services: a new process knows it, also when the former one died between the
/// two writes.
#[test]
fn a_restart_moves_no_address() {
    Env::run("bare-restart", async |env| {
        set_pools(env, json!({ "range-global": "10.0.0.1-10.0.0.9" })).await;
        let manager = Manager::start(env, provider(env, "bare", ""), &[SERVICES]);
        let mut keys = Vec::new();
        for name in ["a", "b", "c"] {
            let key = env.create_service(name).await;
            addresses(env, &key).await;
            keys.push(key);
        }
        delete(env, &keys[0]).await;
        // The status of the next one is not written. It has its finalizer already.
        env.faults().next(1000, "patch", "services/status", Fault::code(500, None));
        let finalizers = ["service.kubernetes.io/load-balancer-cleanup"];
        let service_of = json!({
            "metadata": { "name": "half", "finalizers": finalizers },
            "spec": { "type": "LoadBalancer", "ports": [{ "port": 80 }] },
        });
        env.client.create::<Service>("default", &service_of).await.expect("created");
        let half = ObjectKey::new("default", "half");
        env.eventually("the annotation is written", || async {
            let found = service(env, &half).await;
            let annotation = annotation(&found, "kube-vip.io/loadbalancerIPs");
            if annotation == Some("10.0.0.1") { Ok(()) } else { Err(found.to_string()) }
        })
        .await;
        manager.kill().await;
        env.faults().clear();
        // Meanwhile the pool has changed.
        set_pools(env, json!({ "range-global": "10.1.0.1-10.1.0.9" })).await;
        let manager = Manager::start(env, provider(env, "bare", ""), &[SERVICES]);
        let new = env.create_service("new").await;
        assert_eq!(addresses(env, &new).await, ["10.1.0.1"]);
        eventually_shows(env, &half, &["10.0.0.1"]).await;
        eventually_shows(env, &keys[1], &["10.0.0.2"]).await;
        eventually_shows(env, &keys[2], &["10.0.0.3"]).await;
        manager.stop().await;
    });
}

/// As after a write of a former leader that arrives late.
#[test]
fn one_of_two_services_with_the_same_address_gets_a_new_one() {
    Env::everywhere("bare-twice", async |env| {
        set_pools(env, json!({ "range-global": "10.0.0.1-10.0.0.9" })).await;
        let manager = Manager::start(env, provider(env, "bare", ""), &[SERVICES]);
        let first = env.create_service("first").await;
        assert_eq!(addresses(env, &first).await, ["10.0.0.1"]);
        let second = env.create_service("second").await;
        assert_eq!(addresses(env, &second).await, ["10.0.0.2"]);
        let same = json!({
            "kube-vip.io/loadbalancerIPs": "10.0.0.1", "bare/given-addresses": "10.0.0.1",
        });
        env.patch::<Service>(&second, json!({ "metadata": { "annotations": same } })).await;
        // Its status has the address that it had before: no other Service took that meanwhile.
        env.eventually("the second one moves", || async {
            let found = service(env, &second).await;
            let annotation = annotation(&found, "bare/given-addresses");
            if annotation == Some("10.0.0.2") { Ok(()) } else { Err(found.to_string()) }
        })
        .await;
        eventually_shows(env, &first, &["10.0.0.1"]).await;
        eventually_shows(env, &second, &["10.0.0.2"]).await;
        manager.stop().await;
    });
}

/// Each attempt to write an address finds that the Service has changed.
#[test]
fn a_service_that_changes_all_the_time_is_retried() {
    Env::run("bare-busy", async |env| {
        set_pools(env, json!({ "range-global": "10.0.0.1-10.0.0.9" })).await;
        let manager = Manager::start(env, provider(env, "bare", ""), &[SERVICES]);
        env.faults().next(1000, "patch", "services", Fault::code(409, None));
        let web = env.create_service("web").await;
        let text = "failed to ensure load balancer: the Service changes all the time";
        env.eventually("the event", || env.has_message("web", text)).await;
        assert!(env.faults().count("patch", "services") >= 5);
        assert_eq!(shown(&service(env, &web).await), [""; 0]);
        env.faults().clear();
        env.eventually("the retry", || async {
            manager.clock.advance(Duration::from_secs(1));
            let service = service(env, &web).await;
            if shown(&service) == ["10.0.0.1"] { Ok(()) } else { Err(service.to_string()) }
        })
        .await;
        manager.stop().await;
    });
}

/// As above, where only the provider's own controller tries: no other one knows of it.
#[test]
fn the_move_of_a_service_that_changes_all_the_time_is_retried() {
    Env::run("bare-busy-move", async |env| {
        set_pools(env, json!({ "range-global": "10.0.0.1-10.0.0.9" })).await;
        let same = json!({
            "kube-vip.io/loadbalancerIPs": "10.0.0.1", "bare/given-addresses": "10.0.0.1",
        });
        let mut keys = Vec::new();
        for name in ["a", "b"] {
            keys.push(env.create_service(name).await);
            let metadata = json!({ "metadata": { "annotations": same } });
            env.patch::<Service>(&keys[keys.len() - 1], metadata).await;
        }
        env.faults().next(1000, "patch", "services", Fault::code(409, None));
        let before = env.faults().count("patch", "services");
        let manager = Manager::start(env, provider(env, "bare", ""), &[]);
        env.eventually("all attempts at once", || async {
            let count = env.faults().count("patch", "services") - before;
            let waits = manager.clock.sleepers() > 0;
            if count >= 5 && waits { Ok(()) } else { Err(format!("{count} attempts")) }
        })
        .await;
        env.faults().clear();
        env.eventually("one of them moves", || async {
            manager.clock.advance(Duration::from_secs(1));
            let mut given = Vec::new();
            for key in &keys {
                let service = service(env, key).await;
                given.push(annotation(&service, "bare/given-addresses").map(str::to_owned));
            }
            given.sort();
            let expected = ["10.0.0.1", "10.0.0.2"].map(|address| Some(address.to_owned()));
            if given == expected { Ok(()) } else { Err(format!("{given:?}")) }
        })
        .await;
        manager.stop().await;
    });
}

#[test]
fn an_address_waits_for_the_caches_of_the_provider() {
    Env::run("bare-late", async |env| {
        set_pools(env, json!({ "range-global": "10.0.0.1-10.0.0.9" })).await;
        for verb in ["list", "watch"] {
            env.faults().next(100_000, verb, "configmaps", Fault::code(500, None));
        }
        let manager = Manager::start(env, provider(env, "bare", ""), &[SERVICES]);
        let web = env.create_service("web").await;
        let text = "the caches of Services and of the address pools are not complete";
        env.eventually("the event", || async {
            manager.clock.advance(Duration::from_secs(1));
            env.has_message("web", text).await
        })
        .await;
        // It has waited for them before.
        assert!(manager.clock.monotonic() >= Duration::from_secs(30));
        env.faults().clear();
        env.eventually("web has an address", || async {
            manager.clock.advance(Duration::from_secs(1));
            let service = service(env, &web).await;
            if shown(&service) == ["10.0.0.1"] { Ok(()) } else { Err(service.to_string()) }
        })
        .await;
        manager.stop().await;
    });
}

/// kube-vip's egress needs the address in the field too.
#[test]
fn the_field_follows_the_address_of_a_service_with_egress() {
    Env::everywhere("bare-egress", async |env| {
        set_pools(env, json!({ "range-global": "10.0.0.1-10.0.0.9" })).await;
        let manager = Manager::start(env, provider(env, "bare", ""), &[SERVICES]);
        let web = env.create_service("web").await;
        assert_eq!(addresses(env, &web).await, ["10.0.0.1"]);
        assert!(service(env, &web).await["spec"]["loadBalancerIP"].is_null());
        let has_field = async |expected: Value| {
            env.eventually(&format!("the field is {expected}"), || async {
                let service = service(env, &web).await;
                let found = &service["spec"]["loadBalancerIP"];
                if *found == expected { Ok(()) } else { Err(service.to_string()) }
            })
            .await;
        };
        let annotate = async |annotations: Value| {
            env.patch::<Service>(&web, json!({ "metadata": { "annotations": annotations } })).await;
        };
        annotate(json!({ "kube-vip.io/egress": "true" })).await;
        has_field(json!("10.0.0.1")).await;
        annotate(json!({ "kube-vip.io/loadbalancerIPs": "192.0.2.7" })).await;
        has_field(json!("192.0.2.7")).await;
        eventually_shows(env, &web, &["192.0.2.7"]).await;
        env.patch::<Service>(&web, json!({ "spec": { "type": "ClusterIP" } })).await;
        has_field(Value::Null).await;
        manager.stop().await;
    });
}

#[test]
fn labels_addresses_and_families_decide_what_a_service_has_of_its_nodes() {
    Env::everywhere("bare-nodes-labels", async |env| {
        let config = "loadBalancers: {mode: nodes}";
        let manager = Manager::start(env, provider(env, "bare", config), &[SERVICES]);
        for name in ["n1", "n2", "n3"] {
            let key = env.create_node(name, json!({})).await;
            let last = &name[1..];
            let mut addresses = vec![
                json!({ "type": "InternalIP", "address": format!("10.0.0.{last}") }),
                json!({ "type": "InternalIP", "address": format!("fd00::{last}") }),
            ];
            if name == "n3" {
                addresses.push(json!({ "type": "ExternalIP", "address": "192.0.2.3" }));
            }
            env.patch_status::<Node>(&key, json!({ "status": { "addresses": addresses } })).await;
        }
        let web = env.create_service("web").await;
        // The Service has one family; an external address goes before internal ones.
        eventually_shows(env, &web, &["192.0.2.3"]).await;
        let label = async |name: &str, label: &str, value: Value| {
            let labels = json!({ "metadata": { "labels": { label: value } } });
            env.patch::<Node>(&ObjectKey::cluster(name), labels).await;
        };
        label("n3", "node.kubernetes.io/exclude-from-external-load-balancers", "".into()).await;
        eventually_shows(env, &web, &["10.0.0.1", "10.0.0.2"]).await;
        label("n2", "svccontroller.k3s.cattle.io/enablelb", "true".into()).await;
        eventually_shows(env, &web, &["10.0.0.2"]).await;
        label("n2", "svccontroller.k3s.cattle.io/enablelb", Value::Null).await;
        eventually_shows(env, &web, &["10.0.0.1", "10.0.0.2"]).await;
        env.client.delete::<Node>(&ObjectKey::cluster("n1"), Delete::new()).await.expect("deleted");
        eventually_shows(env, &web, &["10.0.0.2"]).await;
        env.set_ready(&ObjectKey::cluster("n2"), "Unknown").await;
        eventually_shows(env, &web, &[]).await;
        env.eventually_recorded("web", &["UnAvailableLoadBalancer"]).await;
        manager.stop().await;
    });
}

#[test]
fn the_addresses_of_nodes_follow_the_nodes_and_endpoints() {
    Env::everywhere("bare-nodes", async |env| {
        let config = "loadBalancers: {mode: nodes}";
        let manager = Manager::start(env, provider(env, "bare", config), &[SERVICES]);
        for (name, address) in [("n1", "10.0.0.1"), ("n2", "10.0.0.2")] {
            let key = env.create_node(name, json!({})).await;
            let addresses = json!([{ "type": "InternalIP", "address": address }]);
            env.patch_status::<Node>(&key, json!({ "status": { "addresses": addresses } })).await;
        }
        let web = env.create_service("web").await;
        eventually_shows(env, &web, &["10.0.0.1", "10.0.0.2"]).await;
        env.eventually_recorded("web", &["UpdatedLoadBalancer"]).await;
        // One port of a node is that of one Service.
        let other = env.create_service("younger").await;
        env.eventually_recorded("younger", &["UnAvailableLoadBalancer"]).await;
        env.set_ready(&ObjectKey::cluster("n1"), "False").await;
        eventually_shows(env, &web, &["10.0.0.2"]).await;
        env.set_ready(&ObjectKey::cluster("n1"), "True").await;
        eventually_shows(env, &web, &["10.0.0.1", "10.0.0.2"]).await;
        let local = json!({ "spec": { "externalTrafficPolicy": "Local" } });
        env.patch::<Service>(&web, local).await;
        eventually_shows(env, &web, &[]).await;
        let slice = json!({
            "metadata": {
                "name": "web-1", "labels": { "kubernetes.io/service-name": "web" },
            },
            "addressType": "IPv4",
            "endpoints": [
                { "addresses": ["10.244.0.1"], "nodeName": "n1", "conditions": { "ready": false } },
                { "addresses": ["10.244.1.1"], "nodeName": "n2", "conditions": { "ready": true } },
            ],
        });
        env.client.create::<EndpointSlice>("default", &slice).await.expect("created");
        eventually_shows(env, &web, &["10.0.0.2"]).await;
        delete(env, &web).await;
        eventually_shows(env, &other, &["10.0.0.1", "10.0.0.2"]).await;
        manager.stop().await;
    });
}

#[test]
fn a_node_is_initialized_shut_down_and_gone() {
    Env::everywhere("bare-machine", async |env| {
        // The machine answers as long as this listens.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let config = format!(
            "nodes: {{zone: rack-1, labels: {{owner: us}}, check: {{tcp: {{port: {port}}}, period: \
             10s, failures: 2, unreachable: shutdown, goneAfter: 1h}}}}"
        );
        let names = ["cloud-node-controller", "cloud-node-lifecycle-controller"];
        // The only node of a cluster would never be gone.
        env.create_node("n2", json!({})).await;
        let manager = Manager::start(env, provider(env, "bare", &config), &names);
        let uninitialized = json!([{
            "key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true",
            "effect": "NoSchedule",
        }]);
        let node = json!({
            "metadata": {
                "name": "n1",
                "annotations": { "alpha.kubernetes.io/provided-node-ip": "127.0.0.1" },
            },
            "spec": { "taints": uninitialized },
        });
        env.client.create::<Node>("", &node).await.expect("created");
        let key = ObjectKey::cluster("n1");
        let taint = |node: &Value, name: &str| {
            let taints = node["spec"]["taints"].as_array().into_iter().flatten();
            let key = format!("node.cloudprovider.kubernetes.io/{name}");
            taints.into_iter().any(|taint| taint["key"] == *key)
        };
        env.eventually("n1 is initialized", || async {
            let node = env.get::<Node>(&key).await.expect("the Node");
            let is_done = node["spec"]["providerID"] == "bare://n1"
                && node["metadata"]["labels"]["topology.kubernetes.io/zone"] == "rack-1"
                && node["metadata"]["labels"]["owner"] == "us"
                && node["status"]["addresses"][0]["address"] == "127.0.0.1"
                && !taint(&node, "uninitialized");
            if is_done { Ok(()) } else { Err(node.to_string()) }
        })
        .await;
        env.set_ready(&key, "False").await;
        drop(listener);
        env.eventually("n1 is shut down", || async {
            manager.clock.advance(Duration::from_secs(10));
            let node = env.get::<Node>(&key).await.expect("the Node");
            if taint(&node, "shutdown") { Ok(()) } else { Err(node.to_string()) }
        })
        .await;
        env.eventually_recorded("n1", &["MachineUnreachable"]).await;
        manager.clock.advance(Duration::from_secs(3600));
        env.eventually("n1 is gone", || async {
            manager.clock.advance(Duration::from_secs(10));
            env.get::<Node>(&key).await.map_or(Ok(()), |node| Err(node.to_string()))
        })
        .await;
        manager.stop().await;
    });
}
