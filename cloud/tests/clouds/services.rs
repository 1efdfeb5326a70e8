//! A Service from pending to its address to gone.

use std::time::Duration;

use cloud::objects::{Node, Service};
use kube_controller_manager::client::Delete;
use kube_controller_manager::clock::Clock;
use kube_controller_manager::objects::ObjectKey;
use kube_controller_manager::options::Options;
use serde_json::{Value, json};

use crate::env::{Env, Running};
use crate::fake::{ADDRESS, Fake, Plan};

const SERVICES: &str = "service-lb-controller";
const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

fn address(service: &Value) -> Option<&str> {
    service["status"]["loadBalancer"]["ingress"][0]["ip"].as_str()
}

/// Waits for the address of a Service; meanwhile the controller's time passes.
async fn has_address(env: &Env, running: &Running, key: &ObjectKey) {
    env.eventually("the Service has an address", || async {
        running.clock.advance(Duration::from_secs(1));
        let service = env.get::<Service>(key).await.expect("it is there");
        match address(&service) {
            Some(ADDRESS) => Ok(()),
            _ => Err(service.to_string()),
        }
    })
    .await;
}

/// Waits until a load balancer has these targets; `None`: until it is gone.
async fn has_targets(
    env: &Env,
    running: &Running,
    fake: &Fake,
    key: &ObjectKey,
    expected: Option<&[&str]>,
) {
    env.eventually(&format!("targets {expected:?}"), || async {
        running.clock.advance(Duration::from_secs(1));
        let targets = fake.see(|state| state.balancers.get(&key.to_string()).cloned());
        let shown: Option<Vec<&str>> =
            targets.as_ref().map(|names| names.iter().map(String::as_str).collect());
        if shown.as_deref() == expected { Ok(()) } else { Err(format!("{shown:?}")) }
    })
    .await;
}

/// Waits until the Service has neither finalizer nor address, or is gone.
async fn is_cleaned_up(env: &Env, running: &Running, key: &ObjectKey) {
    env.eventually("the Service is cleaned up", || async {
        running.clock.advance(Duration::from_secs(1));
        let Some(service) = env.get::<Service>(key).await else { return Ok(()) };
        let is_clean = service["metadata"]["finalizers"].is_null() && address(&service).is_none();
        if is_clean { Ok(()) } else { Err(service.to_string()) }
    })
    .await;
}

async fn delete(env: &Env, key: &ObjectKey) {
    env.client.delete::<Service>(key, Delete::new()).await.expect("deleted");
}

#[test]
fn a_service_goes_from_pending_to_its_address_to_gone() {
    Env::everywhere("service", async |env| {
        let fake = Fake::new();
        let a = env.create_node("a", json!({ "providerID": "fake://a" })).await;
        let running = env.start(&fake, Options::default(), &[SERVICES]);
        let key = env.create_service("web").await;
        has_address(env, &running, &key).await;
        has_targets(env, &running, &fake, &key, Some(&["a"])).await;
        let service = env.get::<Service>(&key).await.expect("it is there");
        assert_eq!(service["metadata"]["finalizers"], json!([FINALIZER]));
        env.eventually_recorded("web", &["EnsuringLoadBalancer", "EnsuredLoadBalancer"]).await;

        // Nodes come, are excluded, get a provider id, and go.
        let b = env.create_node("b", json!({ "providerID": "fake://b" })).await;
        has_targets(env, &running, &fake, &key, Some(&["a", "b"])).await;
        env.eventually_recorded("web", &["UpdatedLoadBalancer"]).await;
        let label = "node.kubernetes.io/exclude-from-external-load-balancers";
        let excluded = |value: Value| json!({ "metadata": { "labels": { label: value } } });
        env.patch::<Node>(&a, excluded("".into())).await;
        has_targets(env, &running, &fake, &key, Some(&["b"])).await;
        env.patch::<Node>(&a, excluded(Value::Null)).await;
        has_targets(env, &running, &fake, &key, Some(&["a", "b"])).await;
        let ensured = fake.calls("ensure").len();
        env.client.delete::<Node>(&b, Delete::new()).await.expect("deleted");
        has_targets(env, &running, &fake, &key, Some(&["a"])).await;
        assert_eq!(fake.calls("ensure").len(), ensured, "node syncs only update");

        // A change of its spec.
        env.patch::<Service>(&key, json!({ "spec": { "externalTrafficPolicy": "Local" } })).await;
        env.eventually("it is ensured again", || async {
            let count = fake.calls("ensure").len();
            if count > ensured { Ok(()) } else { Err(count.to_string()) }
        })
        .await;

        // Another type, and back.
        let typed = |name: &str| json!({ "spec": { "type": name, "externalTrafficPolicy": null } });
        env.patch::<Service>(&key, typed("ClusterIP")).await;
        is_cleaned_up(env, &running, &key).await;
        has_targets(env, &running, &fake, &key, None).await;
        env.eventually_recorded("web", &["DeletingLoadBalancer", "DeletedLoadBalancer"]).await;
        env.patch::<Service>(&key, typed("LoadBalancer")).await;
        has_address(env, &running, &key).await;

        delete(env, &key).await;
        env.eventually("the Service is gone", || async {
            env.get::<Service>(&key).await.map_or(Ok(()), |service| Err(service.to_string()))
        })
        .await;
        has_targets(env, &running, &fake, &key, None).await;
        running.stop().await;
    });
}

#[test]
fn services_of_a_class_and_those_implemented_elsewhere_get_no_status() {
    Env::everywhere("elsewhere", async |env| {
        let fake = Fake::new();
        let running = env.start(&fake, Options::default(), &[SERVICES]);
        let classed = json!({
            "metadata": { "name": "classed" },
            "spec": {
                "type": "LoadBalancer", "loadBalancerClass": "example.com/lb",
                "ports": [{ "port": 80 }],
            },
        });
        env.client.create::<Service>("default", &classed).await.expect("created");
        fake.plan("ensure", [Plan::Elsewhere]);
        let other = env.create_service("other").await;
        env.eventually("it is asked for", || async {
            if fake.is_through() { Ok(()) } else { Err("not yet".to_owned()) }
        })
        .await;
        // After them: its address shows that both had their time.
        let last = env.create_service("last").await;
        has_address(env, &running, &last).await;
        assert_eq!(fake.calls("ensure").len(), 2, "{:?}", fake.calls("ensure"));
        let other = env.get::<Service>(&other).await.expect("it is there");
        assert_eq!(
            (address(&other), &other["metadata"]["finalizers"]),
            (None, &json!([FINALIZER]))
        );
        env.eventually_recorded("other", &["UnAvailableLoadBalancer"]).await;
        running.stop().await;
    });
}

#[test]
fn calls_that_fail_or_whose_answers_are_lost_are_repeated() {
    Env::everywhere("service-faults", async |env| {
        for plan in [Plan::Fail, Plan::Lose] {
            let fake = Fake::new();
            env.create_node("a", json!({})).await;
            fake.plan("ensure", [plan.clone(), plan.clone()]);
            let running = env.start(&fake, Options::default(), &[SERVICES]);
            let key = env.create_service("web").await;
            has_address(env, &running, &key).await;
            env.eventually_recorded("web", &["SyncLoadBalancerFailed"]).await;

            // A node sync that fails is made good by a sync of the Service.
            fake.plan("update", [plan.clone()]);
            let ensured = fake.calls("ensure").len();
            let b = env.create_node("b", json!({})).await;
            env.eventually_recorded("web", &["UpdateLoadBalancerFailed"]).await;
            has_targets(env, &running, &fake, &key, Some(&["a", "b"])).await;
            env.eventually("the Service is synced", || async {
                let count = fake.calls("ensure").len();
                if count > ensured { Ok(()) } else { Err(count.to_string()) }
            })
            .await;

            fake.plan("get", [plan.clone()]);
            fake.plan("ensure_deleted", [plan.clone()]);
            delete(env, &key).await;
            is_cleaned_up(env, &running, &key).await;
            has_targets(env, &running, &fake, &key, None).await;
            assert!(fake.is_through(), "{plan:?}");
            running.stop().await;
            for name in [&ObjectKey::cluster("a"), &b] {
                env.client.delete::<Node>(name, Delete::new()).await.expect("deleted");
            }
        }
    });
}

#[test]
fn a_provider_chooses_the_time_of_the_next_call() {
    Env::everywhere("service-retry", async |env| {
        let fake = Fake::new();
        let hour = Duration::from_secs(3600);
        fake.plan("ensure", [Plan::Retry(hour)]);
        let running = env.start(&fake, Options::default(), &[SERVICES]);
        let key = env.create_service("web").await;
        env.eventually("it is asked for again", || async {
            running.clock.advance(Duration::from_secs(60));
            let count = fake.calls("ensure").len();
            if count == 2 { Ok(()) } else { Err(count.to_string()) }
        })
        .await;
        // The longest back-off is far shorter.
        assert!(running.clock.monotonic() >= hour);
        env.eventually_recorded("web", &["SyncLoadBalancerFailed"]).await;
        has_address(env, &running, &key).await;
        running.stop().await;
    });
}

/// A slow answer that comes after the process was killed has its effect on the cloud alone.
#[test]
fn an_answer_to_a_manager_that_died_harms_nothing() {
    Env::everywhere("service-dead", async |env| {
        let fake = Fake::new();
        env.create_node("a", json!({})).await;
        fake.plan("ensure", [Plan::Hold]);
        let first = env.start(&fake, Options::default(), &[SERVICES]);
        let key = env.create_service("web").await;
        env.eventually("the first manager waits", || async {
            if fake.calls("ensure").len() == 1 { Ok(()) } else { Err("no call".to_owned()) }
        })
        .await;
        first.kill();
        // The finalizer of the first manager is all that the second one knows of it.
        delete(env, &key).await;
        let second = env.start(&fake, Options::default(), &[SERVICES]);
        env.eventually("the Service is gone", || async {
            second.clock.advance(Duration::from_secs(1));
            env.get::<Service>(&key).await.map_or(Ok(()), |service| Err(service.to_string()))
        })
        .await;
        // The same name again, while the first call still has no answer.
        let key = env.create_service("web").await;
        has_address(env, &second, &key).await;
        let before = env.get::<Service>(&key).await.expect("it is there");
        assert_eq!(fake.see(|state| state.released_effects), 0);
        fake.release();
        env.eventually("the held call has its effect", || async {
            let count = fake.see(|state| state.released_effects);
            if count == 1 { Ok(()) } else { Err(count.to_string()) }
        })
        .await;
        has_targets(env, &second, &fake, &key, Some(&["a"])).await;
        first.stop().await;
        let after = env.get::<Service>(&key).await.expect("it is there");
        assert_eq!(after["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"]);
        second.stop().await;
    });
}

/// While a slow update of one load balancer lasts, another Service is synced with a newer node: the
/// rest of the slow pass does not take that away. Upstream: `TestSlowNodeSync`.
#[test]
fn a_slow_node_sync_takes_no_node_from_a_service_that_was_synced_meanwhile() {
    Env::run("service-slow", async |env| {
        let fake = Fake::new();
        env.create_node("a", json!({})).await;
        let running = env.start(&fake, Options::default(), &[SERVICES]);
        let keys = [env.create_service("one").await, env.create_service("two").await];
        for key in &keys {
            has_address(env, &running, key).await;
        }
        fake.plan("update", [Plan::Hold]);
        env.create_node("b", json!({})).await;
        let held = env
            .eventually("an update is held", || async {
                fake.calls("update").first().cloned().ok_or("no call".to_owned())
            })
            .await;
        let is_held = |key: &&ObjectKey| held.starts_with(&format!("update {key} "));
        let slow = keys.iter().find(is_held).expect("one of them");
        let other = keys.iter().find(|key| !is_held(key)).expect("the other one");
        env.create_node("c", json!({})).await;
        let all = format!("ensure {other} [a b c]");
        let ensured = fake.calls("ensure").len();
        env.eventually("the other one has all nodes", || async {
            let calls = fake.calls("ensure");
            // The controller may see the change before the node.
            let change = json!({ "metadata": { "annotations": { "a": calls.len().to_string() } } });
            env.patch::<Service>(other, change).await;
            if calls[ensured..].contains(&all) { Ok(()) } else { Err(format!("{calls:?}")) }
        })
        .await;
        fake.release();
        has_targets(env, &running, &fake, slow, Some(&["a", "b", "c"])).await;
        let later = fake.see(|state| {
            let since = state.calls.iter().position(|call| *call == all);
            state.calls[since.expect("the call")..].to_vec()
        });
        let of_other = |call: &&String| call.starts_with(&format!("update {other} "));
        let fewer = later.iter().filter(of_other).find(|call| !call.ends_with("[a b c]"));
        assert_eq!(fewer, None, "{later:?}");
        running.stop().await;
    });
}
