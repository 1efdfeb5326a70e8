//! Nodes that recover in an outage, taints that replace each other, and pods that are created late.

use std::time::Duration;

use kube_controller_manager::client::Patch;
use kube_controller_manager::clock::FakeClock;
use kube_controller_manager::controllers::{Controller, Profile};
use kube_controller_manager::objects::{Lease, Node, ObjectKey, Pod, Resource, Timestamp};
use kube_controller_manager::options::Options;
use kube_controller_manager::task::spawn;
use sandbox::faults::Fault;
use sandbox::nodes::NodeOptions;
use serde_json::{Value, json};

use crate::env::*;
use crate::kinds::wait_until_exists;
use crate::metrics::Serving;
use crate::nodes::{
    LEASES, QUICK, UNREACHABLE, condition, lively, node, pod, says, taints, tolerant,
};

const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// The number of nodes to which the controller writes concurrently.
const AT_ONCE: usize = 8;

async fn has_taints(env: &TestCluster, name: &str, expected: &[String]) {
    eventually(&env.clock, &format!("{name} has {expected:?}"), || async {
        let node = node(env, name).await;
        if taints(&node) == expected { Ok(()) } else { Err(format!("{node:#}")) }
    })
    .await;
}

fn both(key: &str) -> [String; 2] {
    [format!("{key}:NoExecute"), format!("{key}:NoSchedule")]
}

#[test]
fn a_node_that_gives_a_sign_of_life_before_its_turn_is_not_marked() {
    let none = NodeOptions { count: 0, ..lively() };
    everywhere_with("nodes-turns", none, async |env| {
        let Some(faults) = &env.faults else { return };
        let names: Vec<String> = (0..AT_ONCE + 4).map(|n| format!("silent-{n}")).collect();
        let leases = env.client.resource(&LEASES);
        for name in &names {
            // No kubelet runs on it.
            env.steering.kill(name);
            let body = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } });
            env.client.create::<Node>("", &body).await.expect("create");
            let lease = json!({
                "apiVersion": LEASES.api_version(), "kind": LEASES.kind,
                "metadata": { "name": name }, "spec": { "holderIdentity": name },
            });
            leases.create::<Value>("kube-node-lease", &lease).await.expect("create");
            says(env, name, "True").await;
        }
        let clock = FakeClock::new(env.clock.now());
        let InProcess { cx, factory, stop } = InProcess::new(env, clock.clone(), env.options());
        let controller = controller_of("node-lifecycle-controller", &cx);
        let mut observer = Controller::new(Profile::new("observer"), &cx).expect("a controller");
        let (seen, nodes) = (observer.lister::<Lease>(), observer.lister::<Node>());
        factory.start(&stop);
        let running = spawn(controller.run(stop.clone()));

        // The API server taints new nodes. The controller writes to a version that it has seen.
        eventually(&env.clock, "the nodes are known without taints", || async {
            clock.advance(Duration::from_millis(100));
            let known = nodes.list();
            let free = known.iter().filter(|node| node.spec.taints.is_empty()).count();
            if free == names.len() { Ok(()) } else { Err(format!("{free} of {}", known.len())) }
        })
        .await;
        let statuses = || faults.count("patch", "nodes/status");
        let before = statuses();
        faults.next(usize::MAX, "patch", "nodes/status", Fault::Hold);
        eventually(&env.clock, "the first nodes are written to", || async {
            clock.advance(Duration::from_secs(5));
            let written = statuses() - before;
            if written >= AT_ONCE as u64 { Ok(()) } else { Err(written.to_string()) }
        })
        .await;
        let renewed = env.clock.now() + Duration::from_secs(3600);
        for name in &names {
            let key = ObjectKey::new("kube-node-lease", name);
            let patch = Patch::Merge(json!({ "spec": { "renewTime": renewed.to_micro_string() } }));
            leases.patch::<Value>(&key, &patch).await.expect("patch");
            eventually(&env.clock, "the controller knows of it", || async {
                let lease = seen.get(&key);
                match lease.filter(|lease| lease.spec.renew_time == Some(renewed)) {
                    Some(_) => Ok(()),
                    None => Err(name.clone()),
                }
            })
            .await;
        }
        assert_eq!(statuses() - before, AT_ONCE as u64, "the others wait for their turn");
        faults.clear();

        // In the end no node reports any more.
        let mut marked = eventually(&env.clock, "all are marked", || async {
            clock.advance(Duration::from_secs(5));
            let mut times = Vec::new();
            for name in &names {
                let ready = condition(&node(env, name).await, "Ready");
                if ready["status"] != "Unknown" {
                    return Err(format!("{name}: {ready}"));
                }
                let time = ready["lastTransitionTime"].as_str().unwrap_or_default();
                times.push(time.parse::<Timestamp>().expect("a time"));
            }
            Ok(times)
        })
        .await;
        marked.sort_unstable();
        let grace = Options::default().node_monitor_grace_period;
        assert!(marked[AT_ONCE - 1] < marked[0] + grace, "{marked:?}");
        assert!(marked[AT_ONCE] >= marked[AT_ONCE - 1] + grace, "{marked:?}");
        stop.stop();
        running.await;
        factory.shutdown().await;
    });
}

/// Only the leases of both nodes are renewed, and one of them by a clock that is an hour slow.
#[test]
fn a_node_whose_clock_is_set_back_lives_while_it_renews_its_lease() {
    everywhere_with("nodes-set-back", lively(), async |env| {
        let _manager = env.manager("manager", &QUICK);
        for name in ["node-0", "node-1"] {
            let message = format!("Registered Node {name} in Controller");
            has_event(env, name, "RegisteredNode", &message).await;
        }
        let leases = env.client.resource(&LEASES);
        let renew = async || {
            let time = env.clock.now() - Duration::from_secs(3600);
            let lease = Patch::Merge(json!({ "spec": { "renewTime": time.to_micro_string() } }));
            let key = ObjectKey::new("kube-node-lease", "node-0");
            leases.patch::<Value>(&key, &lease).await.expect("patch");
        };
        env.steering.kill("node-0");
        renew().await;
        // A node that falls silent later is lost.
        env.steering.kill("node-1");
        eventually(&env.clock, "the other node is lost", || async {
            renew().await;
            let ready = condition(&node(env, "node-1").await, "Ready");
            if ready["status"] == "Unknown" { Ok(()) } else { Err(ready.to_string()) }
        })
        .await;
        let lives = node(env, "node-0").await;
        assert!(taints(&lives).is_empty(), "{lives:#}");
        assert_eq!(condition(&lives, "Ready")["status"], "True", "{lives:#}");
    });
}

/// Nodes with leases in a cache whose watch stalls from now on.
async fn stall_leases(env: &Env) {
    for name in ["node-0", "node-1"] {
        let message = format!("Registered Node {name} in Controller");
        has_event(env, name, "RegisteredNode", &message).await;
    }
    let faults = env.cluster.sandbox.faults();
    faults.next(usize::MAX, "watch", "leases", Fault::Hold);
    faults.cut_watches();
}

async fn is_lost(env: &TestCluster, name: &str) {
    eventually(&env.clock, &format!("{name} is lost"), || async {
        let ready = condition(&node(env, name).await, "Ready");
        if ready["status"] == "Unknown" { Ok(()) } else { Err(ready.to_string()) }
    })
    .await;
}

async fn are_ready(env: &TestCluster, names: &[&str]) {
    for name in names {
        let node = node(env, name).await;
        assert_eq!(condition(&node, "Ready")["status"], "True", "{node:#}");
        assert!(taints(&node).is_empty(), "{node:#}");
    }
}

/// Waits until a pass over the nodes has begun, and another one after it.
async fn passes(env: &TestCluster, name: &str) {
    for n in 0..2 {
        let name = format!("{name}-{n}");
        env.steering.kill(&name);
        let body = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } });
        env.client.create::<Node>("", &body).await.expect("create");
        let message = format!("Registered Node {name} in Controller");
        has_event(env, &name, "RegisteredNode", &message).await;
    }
}

/// Pull request 138698: a node counts as silent when its lease in the cache is old; the API server
/// then has the last word.
#[test]
fn nodes_stay_while_the_watch_of_their_leases_stalls() {
    let two = NodeOptions { count: 2, ..lively() };
    Env::run_as_1_37_with_nodes("nodes-stalled", two, async |env| {
        let faults = env.cluster.sandbox.faults();
        let reads = || faults.count("get", "leases");
        let _manager = env.manager("manager", &QUICK);
        stall_leases(env).await;
        eventually(&env.clock, "a lease is read", || async {
            if reads() > 0 { Ok(()) } else { Err("none yet".to_owned()) }
        })
        .await;
        // No node is given up before the cache has caught up, also none that is dead.
        env.steering.kill("node-1");
        passes(env, "stalled").await;
        are_ready(env, &["node-0", "node-1"]).await;
        assert!(reads() <= 2, "each lease is read once at most: {}", reads());
        faults.clear();
        for name in ["stalled-0", "stalled-1", "node-1"] {
            is_lost(env, name).await;
        }
        are_ready(env, &["node-0"]).await;

        // A node whose lease cannot be read now stays. Where that is forbidden the cache decides.
        let before = reads();
        faults.next(2, "get", "leases", Fault::code(500, None));
        faults.next(usize::MAX, "get", "leases", Fault::code(403, None));
        env.steering.kill("node-0");
        is_lost(env, "node-0").await;
        assert_eq!(reads() - before, 3);
    });
}

/// With 1.36 no lease is read.
#[test]
fn nodes_are_lost_while_the_watch_of_their_leases_stalls_with_1_36() {
    Env::run_as_1_37_with_nodes("nodes-stalled-1-36", lively(), async |env| {
        let _manager = env.manager("manager", &[&QUICK[..], &[AS_1_36]].concat());
        stall_leases(env).await;
        for name in ["node-0", "node-1"] {
            is_lost(env, name).await;
        }
        assert_eq!(env.cluster.sandbox.faults().count("get", "leases"), 0);
    });
}

#[test]
fn the_taints_of_a_node_follow_its_condition() {
    everywhere_with("nodes-swap", lively(), async |env| {
        let _manager = env.manager("manager", &QUICK);
        has_event(env, "node-0", "RegisteredNode", "Registered Node node-0 in Controller").await;
        env.steering.kill("node-0");
        let reports_not_ready = async || {
            eventually(&env.clock, "the node is not ready", || async {
                says(env, "node-0", "False").await;
                let node = node(env, "node-0").await;
                if taints(&node) == both(NOT_READY) { Ok(()) } else { Err(format!("{node:#}")) }
            })
            .await;
        };
        reports_not_ready().await;
        // It falls silent, reports again, and recovers.
        has_taints(env, "node-0", &both(UNREACHABLE)).await;
        reports_not_ready().await;
        eventually(&env.clock, "the node is ready", || async {
            says(env, "node-0", "True").await;
            let node = node(env, "node-0").await;
            if taints(&node).is_empty() { Ok(()) } else { Err(format!("{node:#}")) }
        })
        .await;
    });
}

#[test]
fn a_pod_that_comes_to_a_node_that_is_not_ready_is_not_ready() {
    everywhere_with("nodes-late-pod", lively(), async |env| {
        let _manager = env.manager("manager", &QUICK);
        has_event(env, "node-0", "RegisteredNode", "Registered Node node-0 in Controller").await;
        env.steering.kill("node-0");
        has_taints(env, "node-0", &both(UNREACHABLE)).await;

        // No scheduler finds a node for it.
        let mut late = tolerant("late", "node-0", None);
        late["spec"].as_object_mut().expect("a spec").remove("nodeName");
        late["spec"]["nodeSelector"] = json!({ "no": "node" });
        create(&env.client, late).await;
        let key = ObjectKey::new("default", "late");
        let pods = env.client.resource(&Pod::RESOURCE);
        let ready = json!({
            "type": "Ready", "status": "True", "lastTransitionTime": env.clock.now(),
        });
        let status = Patch::StrategicMerge(json!({ "status": { "conditions": [ready] } }));
        let statuses = pods.clone().subresource("status");
        statuses.patch::<Value>(&key, &status).await.expect("patch");
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": { "name": "late" },
            "target": { "apiVersion": "v1", "kind": "Node", "name": "node-0" },
        });
        pods.subresource("binding").create_for::<Value>(&key, &binding).await.expect("bound");
        wait_until_exists(env, &Pod::RESOURCE, &key, |pod| {
            condition(pod, "Ready")["status"] == "False"
        })
        .await;
        has_event(env, "late", "NodeNotReady", "Node is not ready").await;
        // A later pod that tolerates the taints for a second is evicted; this one is not.
        create(&env.client, tolerant("leaves", "node-0", Some(1))).await;
        let leaves = ObjectKey::new("default", "leaves");
        wait_until_exists(env, &Pod::RESOURCE, &leaves, |pod| {
            pod["metadata"]["deletionTimestamp"].is_string()
        })
        .await;
        assert!(pod(env, "late").await["metadata"]["deletionTimestamp"].is_null());
    });
}

#[test]
fn only_pods_that_do_not_tolerate_dead_nodes_are_evicted_once() {
    const NODES: usize = 9;
    let nine = NodeOptions { count: NODES, ..lively() };
    everywhere_with("nodes-third", nine, async |env| {
        let serving = Serving::start(env, "manager", &manager_program(), &QUICK);
        let names: Vec<String> = (0..NODES).map(|n| format!("node-{n}")).collect();
        let is_dead = |n: usize| n.is_multiple_of(3);
        let patience = [("leaves", Some(1)), ("waits", Some(3600)), ("stays", None)];
        for name in &names {
            let message = format!("Registered Node {name} in Controller");
            has_event(env, name, "RegisteredNode", &message).await;
            for (kind, seconds) in patience {
                create(&env.client, tolerant(&format!("{kind}-{name}"), name, seconds)).await;
            }
        }
        let pods_ready = async |expected: &dyn Fn(usize) -> &'static str| {
            eventually(&env.clock, "the conditions of the pods", || async {
                for (n, name) in names.iter().enumerate() {
                    for (kind, _) in patience {
                        let ready = condition(&pod(env, &format!("{kind}-{name}")).await, "Ready");
                        if ready["status"] != expected(n) {
                            return Err(format!("{kind}-{name}: {ready}"));
                        }
                    }
                }
                Ok(())
            })
            .await;
        };
        pods_ready(&|_| "True").await;
        let deletes = || env.faults.as_ref().map(|faults| faults.count("delete", "pods"));
        let before = deletes();
        for (n, name) in names.iter().enumerate() {
            if is_dead(n) {
                env.steering.kill(name);
            }
        }
        pods_ready(&|n| if is_dead(n) { "False" } else { "True" }).await;
        let leaving = async || {
            let mut leaving = Vec::new();
            for (kind, _) in patience {
                for name in &names {
                    let pod = pod(env, &format!("{kind}-{name}")).await;
                    if pod["metadata"]["deletionTimestamp"].is_string() {
                        leaving.push(format!("{kind}-{name}"));
                    }
                }
            }
            leaving
        };
        let expected = ["leaves-node-0", "leaves-node-3", "leaves-node-6"];
        eventually(&env.clock, "the pods leave", || async {
            let leaving = leaving().await;
            if leaving == expected { Ok(()) } else { Err(format!("{leaving:?}")) }
        })
        .await;
        for (n, name) in names.iter().enumerate() {
            match is_dead(n) {
                true => has_taints(env, name, &both(UNREACHABLE)).await,
                false => assert_eq!(taints(&node(env, name).await), [""; 0], "{name}"),
            }
        }
        let numbers = [
            "node_collector_zone_size{zone=\"\"} 9",
            "node_collector_unhealthy_nodes_in_zone{zone=\"\"} 3",
            "node_collector_evictions_total{zone=\"\"} 3",
            "taint_eviction_controller_pod_deletions_total 3",
        ];
        let has_all = |text: &str| numbers.iter().all(|line| text.lines().any(|l| l == *line));
        serving.metrics(env, "the metrics count them", has_all).await;
        assert_eq!(leaving().await, expected);
        let asked = deletes().zip(before).map(|(after, before)| after - before);
        assert!(asked.is_none_or(|asked| asked == 3), "{asked:?} requests");
    });
}

/// The write that makes the node Unknown succeeds, but its answer is lost. On the retry the node is
/// Unknown already, as if another manager had marked its pods. Its pods must still be marked not
/// ready.
#[test]
fn pods_are_marked_though_the_answer_to_the_node_write_is_lost() {
    everywhere_with("nodes-unanswered", lively(), async |env| {
        let Some(faults) = &env.faults else { return };
        let _manager = env.manager("manager", &QUICK);
        has_event(env, "node-0", "RegisteredNode", "Registered Node node-0 in Controller").await;
        create(&env.client, tolerant("stays", "node-0", None)).await;
        let key = ObjectKey::new("default", "stays");
        let is =
            |status: &'static str| move |pod: &Value| condition(pod, "Ready")["status"] == status;
        wait_until_exists(env, &Pod::RESOURCE, &key, is("True")).await;
        faults.next(1, "patch", "nodes/status", Fault::LoseAnswer);
        env.steering.kill("node-0");
        wait_until_exists(env, &Pod::RESOURCE, &key, is("False")).await;
        assert_eq!(faults.pending(), [], "the fault has hit");
    });
}
