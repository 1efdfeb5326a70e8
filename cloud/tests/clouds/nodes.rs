//! A Node from uninitialized to ready to gone.

use std::time::Duration;

use cloud::objects::Node;
use cloud::provider::InstanceMetadata;
use k8s_openapi::api::core::v1::NodeAddress;
use kube_controller_manager::clock::Clock;
use kube_controller_manager::objects::ObjectKey;
use kube_controller_manager::options::Options;
use serde_json::{Value, json};

use crate::env::{Env, Running};
use crate::fake::{Fake, Plan};

const NODES: &str = "cloud-node-controller";
const LIFECYCLE: &str = "cloud-node-lifecycle-controller";
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";

fn taints(node: &Value) -> Vec<&str> {
    let taints = node["spec"]["taints"].as_array().map(Vec::as_slice).unwrap_or_default();
    taints.iter().filter_map(|taint| taint["key"].as_str()).collect()
}

fn address(type_: &str, address: &str) -> NodeAddress {
    NodeAddress { address: address.into(), type_: type_.into() }
}

fn metadata() -> InstanceMetadata {
    InstanceMetadata {
        provider_id: "fake://1".into(),
        instance_type: "large".into(),
        node_addresses: vec![
            address("InternalIP", "10.0.0.1"),
            address("InternalIP", "10.0.0.2"),
            address("ExternalIP", "192.0.2.1"),
        ],
        zone: "z".into(),
        region: "r".into(),
        additional_labels: [("example.com/rack".into(), "7".into())].into(),
    }
}

/// Creates a Node as a kubelet with an external cloud does.
async fn join(env: &Env, name: &str) -> ObjectKey {
    let node = json!({
        "metadata": {
            "name": name, "annotations": { "alpha.kubernetes.io/provided-node-ip": "10.0.0.2" },
        },
        "spec": { "taints": [
            { "key": UNINITIALIZED, "value": "true", "effect": "NoSchedule" },
            { "key": "example.com/own", "effect": "NoSchedule" },
        ] },
        "status": {
            "addresses": [{ "type": "Hostname", "address": name }],
            "conditions": [{ "type": "Ready", "status": "True" }],
        },
    });
    env.client.create::<Node>("", &node).await.expect("created");
    ObjectKey::cluster(name)
}

/// Waits until the Node is as `fits` says; meanwhile the controllers' time passes.
async fn becomes(
    env: &Env,
    running: &Running,
    key: &ObjectKey,
    what: &str,
    fits: impl Fn(&Value) -> bool,
) -> Value {
    env.eventually(what, || async {
        running.clock.advance(Duration::from_secs(1));
        let node = env.get::<Node>(key).await.expect("it is there");
        if fits(&node) { Ok(node) } else { Err(node.to_string()) }
    })
    .await
}

#[test]
fn a_node_goes_from_uninitialized_to_ready_to_gone() {
    Env::everywhere("node", async |env| {
        let fake = Fake::new();
        let running = env.start(&fake, Options::default(), &[NODES, LIFECYCLE]);
        // A Node that is not ready yet is deleted if its machine does not exist.
        fake.machine("n", metadata());
        let key = join(env, "n").await;
        let has_addresses =
            |node: &Value| node["status"]["addresses"].as_array().map(Vec::len) == Some(3);
        let node = becomes(env, &running, &key, "initialized", has_addresses).await;
        // The API server has added the last one.
        assert_eq!(taints(&node), ["example.com/own", "node.kubernetes.io/not-ready"]);
        assert_eq!(node["spec"]["providerID"], "fake://1");
        assert_eq!(
            node["status"]["addresses"],
            json!([
                { "type": "InternalIP", "address": "10.0.0.2" },
                { "type": "ExternalIP", "address": "192.0.2.1" },
                { "type": "Hostname", "address": "n" },
            ])
        );
        for (label, value) in [
            ("node.kubernetes.io/instance-type", "large"),
            ("beta.kubernetes.io/instance-type", "large"),
            ("topology.kubernetes.io/zone", "z"),
            ("failure-domain.beta.kubernetes.io/zone", "z"),
            ("topology.kubernetes.io/region", "r"),
            ("failure-domain.beta.kubernetes.io/region", "r"),
            ("example.com/rack", "7"),
        ] {
            assert_eq!(node["metadata"]["labels"][label], value, "{label}");
        }
        env.eventually_recorded("n", &["Synced"]).await;

        // A label of today follows the older one; addresses follow the cloud.
        let zone = json!({ "metadata": { "labels": { "topology.kubernetes.io/zone": "other" } } });
        env.patch::<Node>(&key, zone).await;
        becomes(env, &running, &key, "the zone is the cloud's", |node| {
            node["metadata"]["labels"]["topology.kubernetes.io/zone"] == "z"
        })
        .await;
        fake.change(|state| {
            let machine = state.machines.get_mut("n").expect("the machine");
            machine.metadata.node_addresses.pop();
        });
        running.clock.advance(Duration::from_secs(300));
        becomes(env, &running, &key, "the address is gone", |node| {
            node["status"]["addresses"].as_array().map(Vec::len) == Some(2)
        })
        .await;

        // Its machine is shut down, starts again, and is deleted.
        let shut_down = |on: bool| {
            fake.change(|state| {
                state.machines.get_mut("n").expect("the machine").shut_down = on;
            });
        };
        shut_down(true);
        env.set_ready(&key, "Unknown").await;
        becomes(env, &running, &key, "tainted", |node| taints(node).contains(&SHUTDOWN)).await;
        shut_down(false);
        env.set_ready(&key, "True").await;
        becomes(env, &running, &key, "not tainted", |node| !taints(node).contains(&SHUTDOWN)).await;
        fake.change(|state| state.machines.clear());
        env.set_ready(&key, "False").await;
        env.eventually("the Node is gone", || async {
            running.clock.advance(Duration::from_secs(1));
            env.get::<Node>(&key).await.map_or(Ok(()), |node| Err(node.to_string()))
        })
        .await;
        env.eventually_recorded("n", &["DeletingNode"]).await;
        running.stop().await;
    });
}

#[test]
fn no_failed_call_deletes_or_initializes_a_node() {
    Env::everywhere("node-faults", async |env| {
        let fake = Fake::new();
        fake.machine("n", metadata());
        fake.plan("metadata", [Plan::Fail, Plan::Lose]);
        let running = env.start(&fake, Options::default(), &[NODES, LIFECYCLE]);
        let key = join(env, "n").await;
        let is_initialized = |node: &Value| !taints(node).contains(&UNINITIALIZED);
        becomes(env, &running, &key, "initialized", is_initialized).await;
        assert!(fake.is_through() && fake.calls("metadata").len() >= 3);

        fake.change(|state| state.machines.get_mut("n").expect("it").shut_down = true);
        fake.plan("exists", [Plan::Fail, Plan::Lose]);
        fake.plan("is_shut_down", [Plan::Fail, Plan::Lose]);
        env.set_ready(&key, "False").await;
        becomes(env, &running, &key, "tainted", |node| taints(node).contains(&SHUTDOWN)).await;
        assert!(fake.is_through());
        running.stop().await;
    });
}

#[test]
fn a_provider_chooses_when_a_node_is_asked_for_again() {
    Env::run("node-retry", async |env| {
        let fake = Fake::new();
        fake.machine("n", metadata());
        let hour = Duration::from_secs(3600);
        fake.plan("metadata", [Plan::Retry(hour)]);
        // First: each change of the Node is a reason to ask at once.
        let key = join(env, "n").await;
        let running = env.start(&fake, Options::default(), &[NODES]);
        env.eventually("it is initialized", || async {
            running.clock.advance(Duration::from_secs(60));
            let node = env.get::<Node>(&key).await.expect("it is there");
            if taints(&node).contains(&UNINITIALIZED) { Err(node.to_string()) } else { Ok(()) }
        })
        .await;
        // The longest back-off is far shorter.
        assert!(running.clock.monotonic() >= hour);
        running.stop().await;
    });
}
