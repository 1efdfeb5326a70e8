//! Routes to the pods of Nodes, which the allocator of Pod ranges has given theirs.

use std::time::Duration;

use cloud::objects::Node;
use cloud::provider::Route;
use kube_controller_manager::client::Delete;
use kube_controller_manager::objects::ObjectKey;
use kube_controller_manager::options::Options;
use serde_json::{Value, json};

use crate::env::{Env, Running};
use crate::fake::{Fake, Plan};

const ROUTES: &str = "node-route-controller";
const IPAM: &str = "node-ipam-controller";

fn options(gates: &[(&str, bool)]) -> Options {
    let mut options = Options {
        allocate_node_cidrs: true,
        cluster_cidr: "10.120.0.0/16".into(),
        ..Options::default()
    };
    options.feature_gates.given =
        gates.iter().map(|(name, on)| ((*name).to_owned(), *on)).collect();
    options
}

/// Waits until the routes lead to these nodes, and the Nodes' conditions say so.
async fn lead_to(env: &Env, running: &Running, fake: &Fake, nodes: &[&str]) {
    env.eventually(&format!("routes to {nodes:?}"), || async {
        running.clock.advance(Duration::from_secs(1));
        let mut targets: Vec<String> =
            fake.see(|state| state.routes.iter().map(|route| route.target_node.clone()).collect());
        targets.sort();
        if targets != nodes {
            return Err(format!("{targets:?}"));
        }
        for name in nodes.iter().filter(|name| !name.is_empty()) {
            let node = env.get::<Node>(&ObjectKey::cluster(name)).await.expect("it is there");
            let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let shown = conditions.iter().find(|found| found["type"] == "NetworkUnavailable");
            let is_ours =
                |found: &Value| found["status"] == "False" && found["reason"] == "RouteCreated";
            if !shown.is_some_and(is_ours) {
                return Err(node.to_string());
            }
        }
        Ok(())
    })
    .await;
}

fn scenario(name: &str, gates: &[(&str, bool)]) {
    Env::everywhere(name, async |env| {
        let fake = Fake::new();
        let foreign = |name: &str, destination: &str| Route {
            name: name.into(),
            destination: destination.into(),
            ..Route::default()
        };
        fake.change(|state| {
            // Of another range, and of a node that is gone.
            let gone = Route { target_node: "gone".into(), ..foreign("stale", "10.120.9.0/24") };
            state.routes = vec![foreign("other", "10.1.0.0/16"), gone];
        });
        fake.plan("list", [Plan::Fail]);
        fake.plan("create", [Plan::Fail, Plan::Lose]);
        fake.plan("delete", [Plan::Lose]);
        let running = env.start(&fake, options(gates), &[ROUTES, IPAM]);
        let a = env.create_node("a", json!({})).await;
        // Calico's is replaced. Upstream: `TestUpdateNetworkingConditionWithCalicoScenario`.
        let calico = json!([
            { "type": "Ready", "status": "True" },
            { "type": "NetworkUnavailable", "status": "False", "reason": "CalicoIsUp" },
        ]);
        env.patch_status::<Node>(&a, json!({ "status": { "conditions": calico } })).await;
        let b = env.create_node("b", json!({})).await;
        lead_to(env, &running, &fake, &["", "a", "b"]).await;
        assert!(fake.is_through());
        let mut reasons = env.reasons("a").await;
        reasons.extend(env.reasons("b").await);
        assert!(reasons.iter().any(|reason| reason == "FailedToCreateRoute"), "{reasons:?}");
        env.client.delete::<Node>(&b, Delete::new()).await.expect("deleted");
        lead_to(env, &running, &fake, &["", "a"]).await;
        running.stop().await;
    });
}

#[test]
fn routes_are_made_kept_and_cleaned_in_periods() {
    scenario("routes", &[]);
}

#[test]
fn routes_are_made_kept_and_cleaned_on_changes_of_nodes() {
    scenario("routes-watch", &[("CloudControllerManagerWatchBasedRoutesReconciliation", true)]);
}
