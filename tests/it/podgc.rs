//! The pod garbage collector.

use std::time::Duration;

use kube_controller_manager::client::{Delete, Patch};
use kube_controller_manager::clock::{Clock, FakeClock};
use kube_controller_manager::objects::{Node, ObjectKey, Pod, Resource};
use kube_controller_manager::options::Options;
use kube_controller_manager::task::spawn;
use serde_json::{Value, json};

use crate::env::*;
use crate::faults::cut_lists_and_watches;

/// A pod that scheduler and kubelet ignore, and that a finalizer keeps.
fn pod(name: &str, node: Option<&str>) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default", "finalizers": ["test/stay"] },
        "spec": {
            "schedulerName": "none", "nodeName": node,
            "containers": [{ "name": "main", "image": "x:1" }],
        },
    })
}

#[test]
fn excess_orphaned_and_unscheduled_pods_are_deleted() {
    everywhere("podgc", async |env| {
        let client = &env.client;
        for (name, phase) in [("a-old", "Failed"), ("b-new", "Succeeded")] {
            create(client, pod(name, None)).await;
            let status = client.resource(&Pod::RESOURCE).subresource("status");
            let patch = Patch::Merge(json!({ "status": { "phase": phase } }));
            status.patch::<Value>(&ObjectKey::new("default", name), &patch).await.expect("patch");
        }
        for (name, node) in [("unscheduled", None), ("orphan", Some("no-such-node"))] {
            create(client, pod(name, node)).await;
        }
        let to_go = ObjectKey::new("default", "unscheduled");
        client.delete::<Pod>(&to_go, Delete::new()).await.expect("delete");

        let clock = FakeClock::new(env.clock.now());
        // In the end all four are terminated: one more than the threshold.
        let options = Options { terminated_pod_gc_threshold: 3, ..env.options() };
        let InProcess { cx, factory, stop } = InProcess::new(env, clock.clone(), options);
        let controller = controller_of("pod-garbage-collector-controller", &cx);
        factory.start(&stop);
        let running = spawn(controller.run(stop.clone()));

        let pods = || async {
            let pods: Vec<Value> = client
                .resource(&Pod::RESOURCE)
                .list(Some("default"), &Default::default())
                .await
                .expect("list")
                .items;
            pods
        };
        let reached = eventually(&env.clock, "three of four pods go", || async {
            let pods = pods().await;
            let going = pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_string());
            let phase = |pod: &Value| pod["status"]["phase"].as_str().map(str::to_owned);
            let failed = going.filter(|pod| phase(pod).as_deref() != Some("Pending")).count();
            if failed == 3 {
                return Ok(pods);
            }
            clock.advance(Duration::from_secs(5));
            Err(format!("{pods:#?}"))
        })
        .await;
        let named = |name: &str| reached.iter().find(|pod| pod["metadata"]["name"] == name);
        assert!(named("a-old").is_some());
        let orphan = &named("orphan").unwrap()["status"];
        assert_eq!(orphan["phase"], "Failed");
        let conditions = orphan["conditions"].as_array().unwrap();
        let target = conditions.iter().find(|c| c["type"] == "DisruptionTarget").unwrap();
        assert_eq!(
            [&target["status"], &target["reason"], &target["message"]],
            ["True", "DeletionByPodGC", "PodGC: node no longer exists"]
        );
        assert_eq!(target["lastTransitionTime"], clock_text(&clock, &target["lastTransitionTime"]));
        assert_eq!(named("unscheduled").unwrap()["status"]["phase"], "Failed");
        // With these gone `b-new` is within the threshold. The pass that deletes the second orphan
        // follows a whole pass that saw that.
        for name in ["a-old", "orphan", "unscheduled"] {
            merge::<Pod>(client, name, json!({ "metadata": { "finalizers": null } })).await;
        }
        for name in ["first", "second"] {
            create(client, pod(name, Some("no-such-node"))).await;
            wait_until_terminating(env, &clock, name).await;
            merge::<Pod>(client, name, json!({ "metadata": { "finalizers": null } })).await;
        }
        let kept: Pod = client.get(&ObjectKey::new("default", "b-new")).await.expect("get");
        assert!(!kept.meta.is_being_deleted(), "within the threshold");
        stop.stop();
        running.await;
        factory.shutdown().await;
    });
}

/// Advances the clock until the pod is being deleted.
async fn wait_until_terminating(env: &TestCluster, clock: &FakeClock, name: &str) {
    eventually(&env.clock, &format!("{name} goes"), || async {
        clock.advance(Duration::from_secs(5));
        let pod: Pod = env.client.get(&ObjectKey::new("default", name)).await.expect("get");
        if pod.meta.is_being_deleted() { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await;
}

#[test]
fn pods_of_a_node_missing_from_the_cache_alone_are_kept() {
    Env::run("podgc-live", async |env| {
        let (client, clock) = (&env.client, FakeClock::new(env.clock.now()));
        let InProcess { cx, factory, stop } = InProcess::new(env, clock.clone(), env.options());
        let controller = controller_of("pod-garbage-collector-controller", &cx);
        let nodes = factory.informer::<Node>();
        factory.start(&stop);
        let running = spawn(controller.run(stop.clone()));
        nodes.synced().await;
        cut_lists_and_watches(env.cluster.sandbox.faults(), "nodes");
        let late = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "late" } });
        client.resource(&Node::RESOURCE).create::<Value>("", &late).await.expect("create");
        create(client, pod("kept", Some("late"))).await;
        // The pass that deletes the second orphan follows a whole pass that saw all the pods.
        for name in ["orphan", "second"] {
            create(client, pod(name, Some("no-such-node"))).await;
            wait_until_terminating(env, &clock, name).await;
        }
        stop.stop();
        running.await;
        let kept: Pod = client.get(&ObjectKey::new("default", "kept")).await.expect("get");
        assert!(!kept.meta.is_being_deleted());
        factory.shutdown().await;
    });
}

/// `text`, after asserting that it is a time of `clock`.
fn clock_text(clock: &FakeClock, text: &Value) -> String {
    let time: kube_controller_manager::objects::Timestamp =
        text.as_str().unwrap_or_default().parse().expect("a time");
    assert!(time <= clock.now());
    time.to_string()
}
