//! DaemonSets: one pod on each eligible node, and rollouts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kube_controller_manager::client::{Delete, Patch};
use kube_controller_manager::objects::{
    ControllerRevision, DaemonSet, Node, ObjectKey, Pod, Resource,
};
use sandbox::faults::Fault;
use serde_json::{Value, json};

use crate::env::*;
use crate::kinds::wait_until_deleted;

const REVISION: &str = "controller-revision-hash";

/// The nodes have no lease that a node controller could watch.
const CONTROLLERS: &str = "--controllers=daemonset,garbagecollector";

pub fn daemon_set(strategy: Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": { "name": "agent", "namespace": "default" },
        "spec": {
            "selector": { "matchLabels": { "app": "agent" } },
            "updateStrategy": strategy,
            "template": {
                "metadata": { "labels": { "app": "agent" } },
                "spec": { "containers": [{ "name": "main", "image": "agent:1" }] },
            },
        },
    })
}

fn rolling(max_unavailable: i32, max_surge: i32) -> Value {
    json!({ "type": "RollingUpdate", "rollingUpdate": {
        "maxUnavailable": max_unavailable, "maxSurge": max_surge,
    } })
}

/// A new image, and whether its pods become ready.
fn image(image: &str, ready: bool) -> Value {
    let behavior = if ready { "ready" } else { "never-ready" };
    json!({ "spec": { "template": {
        "metadata": { "annotations": { "sandbox/behavior": behavior } },
        "spec": { "containers": [{ "name": "main", "image": image }] },
    } } })
}

async fn change(env: &TestCluster, patch: Value) {
    merge::<DaemonSet>(&env.client, "agent", patch).await;
}

/// Waits until the counts of the status are these: desired, current, misscheduled, updated,
/// available.
async fn counts(env: &TestCluster, what: &str, wanted: [i64; 5]) {
    let key = ObjectKey::new("default", "agent");
    eventually(&env.clock, &format!("{what}: {wanted:?}"), || async {
        let sets = env.client.resource(&DaemonSet::RESOURCE);
        let set: Value = sets.get(&key).await.map_err(|error| error.to_string())?;
        let number = |field: &str| set["status"][field].as_i64().unwrap_or(0);
        let found = [
            "desiredNumberScheduled",
            "currentNumberScheduled",
            "numberMisscheduled",
            "updatedNumberScheduled",
            "numberAvailable",
        ]
        .map(number);
        let observed = set["status"]["observedGeneration"] == set["metadata"]["generation"];
        if observed && found == wanted { Ok(()) } else { Err(set["status"].to_string()) }
    })
    .await;
}

/// The pods that are not being deleted, by the node that they run on or are created for.
async fn by_node(env: &TestCluster) -> BTreeMap<String, Vec<Pod>> {
    let mut nodes: BTreeMap<String, Vec<Pod>> = BTreeMap::new();
    for pod in env.pods().await.into_iter().filter(|pod| !pod.meta.is_being_deleted()) {
        let node = pod.target_node().map(|node| node.to_string()).unwrap_or_default();
        nodes.entry(node).or_default().push(pod);
    }
    nodes
}

/// Waits until each node has these numbers of pods.
async fn placed(env: &TestCluster, wanted: &[(&str, usize)]) -> BTreeMap<String, Vec<Pod>> {
    eventually(&env.clock, &format!("pods are on {wanted:?}"), || async {
        let nodes = by_node(env).await;
        let found: Vec<(&str, usize)> =
            nodes.iter().map(|(node, pods)| (&**node, pods.len())).collect();
        if found == wanted { Ok(nodes.clone()) } else { Err(format!("{found:?}")) }
    })
    .await
}

async fn patch_node(env: &TestCluster, name: &str, patch: Value) {
    let key = ObjectKey::cluster(name);
    env.client.patch::<Node>(&key, &Patch::Merge(patch)).await.expect("patch");
}

fn tainted(effect: Option<&str>) -> Value {
    let taints: Vec<Value> =
        effect.iter().map(|effect| json!({ "key": "k", "effect": effect })).collect();
    json!({ "spec": { "taints": taints } })
}

/// The revisions: number, hash and image.
async fn revisions(env: &TestCluster) -> Vec<(i64, String, String)> {
    let all: Vec<ControllerRevision> = list(&env.client).await;
    let mut found: Vec<_> = all
        .iter()
        .map(|revision| {
            let data: Value = serde_json::from_str(revision.data.as_str()).unwrap();
            let image = &data["spec"]["template"]["spec"]["containers"][0]["image"];
            let hash = revision.meta.labels.get(REVISION).unwrap().to_owned();
            (revision.revision, hash, image.as_str().unwrap().to_owned())
        })
        .collect();
    found.sort();
    found
}

#[test]
fn each_node_that_suits_has_one_pod() {
    everywhere("daemons", async |env| {
        let _manager = env.manager("manager", &[CONTROLLERS]);
        let client = &env.client;
        let mut agent = daemon_set(rolling(1, 0));
        agent["spec"]["template"]["spec"]["hostNetwork"] = json!(true);
        create(client, agent).await;
        counts(env, "all nodes have one", [3, 3, 0, 3, 3]).await;
        let found = placed(env, &[("node-0", 1), ("node-1", 1), ("node-2", 1)]).await;
        let name = found["node-1"][0].meta.name.to_string();
        has_event(env, "agent", "SuccessfulCreate", &format!("Created pod: {name}")).await;
        let key = ObjectKey::new("default", &name);
        let pod: Value = client.resource(&Pod::RESOURCE).get(&key).await.expect("it is there");
        assert_eq!(
            pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"],
            json!({ "nodeSelectorTerms": [{ "matchFields": [
                { "key": "metadata.name", "operator": "In", "values": ["node-1"] }] }] })
        );
        let tolerations = pod["spec"]["tolerations"].as_array().unwrap();
        let tolerates = |key: &str, effect: &str| {
            let wanted = json!({ "key": key, "operator": "Exists", "effect": effect });
            tolerations.contains(&wanted)
        };
        for (name, effect) in [
            ("not-ready", "NoExecute"),
            ("unreachable", "NoExecute"),
            ("disk-pressure", "NoSchedule"),
            ("memory-pressure", "NoSchedule"),
            ("pid-pressure", "NoSchedule"),
            ("unschedulable", "NoSchedule"),
            ("network-unavailable", "NoSchedule"),
        ] {
            assert!(tolerates(&format!("node.kubernetes.io/{name}"), effect), "{tolerations:?}");
        }
        assert_eq!(tolerations.len(), 7);
        assert_eq!(pod["metadata"]["labels"][REVISION], json!(revisions(env).await[0].1));
        assert_eq!(pod["metadata"]["labels"]["pod-template-generation"], "1");

        // A node is added.
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": "extra" },
            "status": { "allocatable": { "cpu": "4", "memory": "8Gi", "pods": "10" },
                "capacity": { "cpu": "4", "memory": "8Gi", "pods": "10" } },
        });
        client.create::<Node>("", &node).await.expect("create");
        patch_node(env, "extra", tainted(None)).await;
        counts(env, "a fourth node has one", [4, 4, 0, 4, 4]).await;

        // A NoExecute taint evicts the pod; a NoSchedule taint does not, and unrelated labels have
        // no effect.
        patch_node(env, "extra", tainted(Some("NoExecute"))).await;
        placed(env, &[("node-0", 1), ("node-1", 1), ("node-2", 1)]).await;
        counts(env, "the tainted node has none", [3, 3, 0, 3, 3]).await;
        patch_node(env, "extra", tainted(None)).await;
        counts(env, "it is back", [4, 4, 0, 4, 4]).await;
        patch_node(env, "extra", tainted(Some("NoSchedule"))).await;
        let suits = json!({ "spec": { "template": { "spec": { "tolerations": [
            { "key": "k", "operator": "Exists", "effect": "NoSchedule" }] } } } });
        change(env, suits).await;
        counts(env, "it is tolerated", [4, 4, 0, 4, 4]).await;

        // Labels choose nodes.
        let disk = |disk: &str| json!({ "metadata": { "labels": { "disk": disk } } });
        patch_node(env, "node-0", disk("ssd")).await;
        let select =
            json!({ "spec": { "template": { "spec": { "nodeSelector": { "disk": "ssd" } } } } });
        change(env, select).await;
        placed(env, &[("node-0", 1)]).await;
        counts(env, "one node is selected", [1, 1, 0, 1, 1]).await;
        patch_node(env, "extra", disk("ssd")).await;
        placed(env, &[("extra", 1), ("node-0", 1)]).await;
        patch_node(env, "node-0", disk("hdd")).await;
        let found = placed(env, &[("extra", 1)]).await;

        // The node is deleted, and its pod is deleted by another controller.
        client.delete::<Node>(&ObjectKey::cluster("extra"), Delete::new()).await.expect("delete");
        let last = found["extra"][0].meta.key();
        client.delete::<Pod>(&last, Delete::new().grace_period(0)).await.expect("delete");
        counts(env, "no node is left", [0, 0, 0, 0, 0]).await;
        placed(env, &[]).await;
    });
}

#[test]
fn a_duplicate_of_the_revision_goes_and_restarts_no_pod() {
    everywhere("daemon-duplicate", async |env| {
        let _manager = env.manager("manager", &[CONTROLLERS]);
        create(&env.client, daemon_set(rolling(1, 0))).await;
        counts(env, "all nodes have one", [3, 3, 0, 3, 3]).await;
        let uids = async || {
            let mut uids: Vec<_> = env.pods().await.into_iter().map(|pod| pod.meta.uid).collect();
            uids.sort();
            uids
        };
        let before = uids().await;
        let revisions = env.client.resource(&ControllerRevision::RESOURCE);
        let found: Vec<Value> = revisions
            .list::<Value>(Some("default"), &Default::default())
            .await
            .expect("list")
            .items;
        let mut twin = found[0].clone();
        let meta = twin["metadata"].as_object_mut().unwrap();
        for own in ["resourceVersion", "uid", "creationTimestamp", "managedFields"] {
            meta.remove(own);
        }
        twin["metadata"]["name"] = json!("agent-twin");
        twin["metadata"]["labels"][REVISION] = json!("twin");
        twin["revision"] = json!(7);
        revisions.create::<Value>("default", &twin).await.expect("create");
        // A new revision does not enqueue the set; a changed one does.
        let patch = Patch::Merge(json!({ "metadata": { "annotations": { "seen": "" } } }));
        let key = ObjectKey::new("default", "agent-twin");
        env.client.patch::<ControllerRevision>(&key, &patch).await.expect("patch");
        eventually(&env.clock, "the newest alone is kept, and the pods are its own", || async {
            let all = self::revisions(env).await;
            let hashes: Vec<String> = all.iter().map(|(_, hash, _)| hash.clone()).collect();
            let pods = env.pods().await;
            let is_twin = |pod: &Pod| pod.meta.labels.get(REVISION) == Some("twin");
            let done = hashes == ["twin"] && pods.len() == 3 && pods.iter().all(is_twin);
            if done { Ok(()) } else { Err(format!("{hashes:?}")) }
        })
        .await;
        counts(env, "all are up to date", [3, 3, 0, 3, 3]).await;
        assert_eq!(uids().await, before);
    });
}

#[test]
fn affinity_chooses_nodes_and_a_cordon_keeps_no_daemon_away() {
    everywhere("daemon-affinity", async |env| {
        let _manager = env.manager("manager", &[CONTROLLERS]);
        let disk = |disk: &str| json!({ "metadata": { "labels": { "disk": disk } } });
        let cordoned = |is: bool| json!({ "spec": { "unschedulable": is } });
        for node in ["node-0", "node-1"] {
            eventually(&env.clock, &format!("{node} is there"), || async {
                let found = env.client.get::<Node>(&ObjectKey::cluster(node)).await;
                found.map(drop).map_err(|error| error.to_string())
            })
            .await;
        }
        patch_node(env, "node-1", disk("ssd")).await;
        let mut agent = daemon_set(rolling(1, 0));
        let terms = json!([{ "matchExpressions": [
            { "key": "disk", "operator": "In", "values": ["ssd"] }] }]);
        agent["spec"]["template"]["spec"]["affinity"]["nodeAffinity"] = json!({
            "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms },
        });
        create(&env.client, agent).await;
        counts(env, "one node suits", [1, 1, 0, 1, 1]).await;
        let first = placed(env, &[("node-1", 1)]).await;
        for node in ["node-0", "node-1"] {
            patch_node(env, node, cordoned(true)).await;
        }
        patch_node(env, "node-0", disk("ssd")).await;
        counts(env, "the cordoned nodes suit as well", [2, 2, 0, 2, 2]).await;
        let both = placed(env, &[("node-0", 1), ("node-1", 1)]).await;
        assert_eq!(both["node-1"][0].meta.uid, first["node-1"][0].meta.uid);
        patch_node(env, "node-1", disk("hdd")).await;
        counts(env, "the other one suits no more", [1, 1, 0, 1, 1]).await;
        placed(env, &[("node-0", 1)]).await;
    });
}

#[test]
fn a_rollout_goes_on_within_max_unavailable_and_back_to_a_known_revision() {
    everywhere("daemon-rollout", async |env| {
        let _manager = env.manager("manager", &[CONTROLLERS]);
        create(&env.client, daemon_set(rolling(1, 0))).await;
        counts(env, "it runs", [3, 3, 0, 3, 3]).await;
        let first = revisions(env).await;
        assert_eq!((first.len(), first[0].0), (1, 1));

        // A version that never becomes ready stops the rollout at one node.
        change(env, image("agent:2", false)).await;
        counts(env, "one node has the broken version", [3, 3, 0, 1, 2]).await;
        let updated = by_node(env).await;
        let broken: Vec<&Pod> = updated.values().flatten().filter(|pod| !pod.is_ready()).collect();
        assert_eq!(broken.len(), 1);
        has_event(env, "agent", "SuccessfulDelete", "").await;

        change(env, image("agent:3", true)).await;
        counts(env, "the next version is everywhere", [3, 3, 0, 3, 3]).await;
        let kept = |wanted: &'static [(i64, &'static str)]| async move {
            eventually(&env.clock, &format!("revisions {wanted:?}"), || async {
                let all = revisions(env).await;
                let found: Vec<(i64, &str)> =
                    all.iter().map(|(number, _, image)| (*number, &**image)).collect();
                if found == wanted { Ok(all.clone()) } else { Err(format!("{all:?}")) }
            })
            .await
        };
        let before = kept(&[(1, "agent:1"), (2, "agent:2"), (3, "agent:3")]).await;

        // The template of a known revision makes it the newest.
        change(env, image("agent:2", false)).await;
        counts(env, "the rollback begins", [3, 3, 0, 1, 2]).await;
        let after = kept(&[(1, "agent:1"), (3, "agent:3"), (4, "agent:2")]).await;
        assert_eq!((&after[1].1, &after[2].1), (&before[2].1, &before[1].1));
        let nodes = by_node(env).await;
        let all: Vec<&Pod> = nodes.values().flatten().collect();
        let back = all.iter().filter(|pod| pod.meta.labels.get(REVISION) == Some(&*after[2].1));
        assert_eq!(back.count(), 1);

        // Old revisions without pods are deleted beyond the limit.
        change(env, json!({ "spec": { "revisionHistoryLimit": 0 } })).await;
        kept(&[(3, "agent:3"), (4, "agent:2")]).await;
        change(env, image("agent:3", true)).await;
        counts(env, "the rollout ends", [3, 3, 0, 3, 3]).await;
        kept(&[(5, "agent:3")]).await;
    });
}

#[test]
fn new_pods_come_beside_old_ones_with_a_surge() {
    everywhere("daemon-surge", async |env| {
        let _manager = env.manager("manager", &[CONTROLLERS]);
        create(&env.client, daemon_set(rolling(0, 1))).await;
        counts(env, "it runs", [3, 3, 0, 3, 3]).await;
        let old = by_node(env).await;

        change(env, image("agent:2", false)).await;
        let all = eventually(&env.clock, "one node has two pods", || async {
            let nodes = by_node(env).await;
            let pods: usize = nodes.values().map(Vec::len).sum();
            let running = nodes.values().flatten().filter(|pod| !pod.spec.node_name.is_empty());
            if pods == 4 && running.count() == 4 { Ok(nodes) } else { Err(format!("{pods}")) }
        })
        .await;
        for (node, pods) in &old {
            let stays = |pod: &Pod| pod.meta.uid == pods[0].meta.uid && pod.is_ready();
            assert!(all[node].iter().any(stays), "{node} keeps its old pod");
        }
        // The unready pod is replaced immediately, although no pod may become unavailable.
        change(env, image("agent:3", true)).await;
        counts(env, "the next version is everywhere", [3, 3, 0, 3, 3]).await;
        let new = placed(env, &[("node-0", 1), ("node-1", 1), ("node-2", 1)]).await;
        for (node, pods) in &new {
            assert_ne!(pods[0].meta.uid, old[node][0].meta.uid);
        }
    });
}

#[test]
fn pods_are_replaced_when_they_are_deleted_or_end() {
    everywhere("daemon-ends", async |env| {
        let _manager = env.manager("manager", &[CONTROLLERS]);
        let client = &env.client;
        create(client, daemon_set(json!({ "type": "OnDelete" }))).await;
        counts(env, "it runs", [3, 3, 0, 3, 3]).await;
        let old = by_node(env).await;

        // OnDelete: a pod gets the new version once its old pod is deleted.
        change(env, image("agent:2", true)).await;
        counts(env, "the new version is noticed", [3, 3, 0, 0, 3]).await;
        let key = old["node-0"][0].meta.key();
        client.delete::<Pod>(&key, Delete::new()).await.expect("delete");
        counts(env, "the deleted pod is replaced", [3, 3, 0, 1, 3]).await;
        let now = by_node(env).await;
        assert_eq!(now["node-1"][0].meta.uid, old["node-1"][0].meta.uid);

        // A pod that succeeded is replaced.
        let ends = async |node: &str, phase: &str| {
            let pod = by_node(env).await[node][0].meta.clone();
            let patch = Patch::Merge(json!({ "status": { "phase": phase } }));
            let status = client.resource(&Pod::RESOURCE).subresource("status");
            status.patch::<Value>(&pod.key(), &patch).await.expect("patch");
            pod
        };
        let replaced = async |node: &str, last: &kube_controller_manager::objects::Meta| {
            eventually(&env.clock, &format!("{node} has a new pod"), || async {
                let nodes = by_node(env).await;
                match nodes.get(node).map(Vec::as_slice) {
                    Some([pod]) if pod.meta.uid != last.uid && pod.is_ready() => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await;
        };
        let ended = ends("node-1", "Succeeded").await;
        replaced("node-1", &ended).await;
        let message = format!(
            "Found succeeded daemon pod default/{} on node node-1, will try to delete it",
            ended.name
        );
        has_event(env, "agent", "SucceededDaemonPod", &message).await;

        // A failed pod is replaced as well, the second time after a backoff.
        let begun = env.clock.monotonic();
        for _ in 0..3 {
            let failed = ends("node-2", "Failed").await;
            replaced("node-2", &failed).await;
            let message = format!(
                "Found failed daemon pod default/{} on node node-2, will try to kill it",
                failed.name
            );
            has_event(env, "agent", "FailedDaemonPod", &message).await;
        }
        let took = env.clock.monotonic() - begun;
        assert!(took >= Duration::from_secs(3), "one second, then two: {took:?}");
    });
}

#[test]
fn orphaned_pods_and_revisions_are_adopted() {
    everywhere("daemon-orphans", async |env| {
        let _manager = env.manager("manager", &[CONTROLLERS]);
        let client = &env.client;
        let agent = create(client, daemon_set(rolling(1, 0))).await;
        counts(env, "it runs", [3, 3, 0, 3, 3]).await;
        let before = (by_node(env).await, revisions(env).await);
        let key = ObjectKey::new("default", "agent");
        client.delete::<DaemonSet>(&key, Delete::orphan()).await.expect("delete");
        eventually(&env.clock, "the set goes and leaves its pods", || async {
            let owned = env.pods().await.iter().any(|pod| pod.meta.controller().is_some());
            let gone = client.get::<DaemonSet>(&key).await.is_err();
            if gone && !owned { Ok(()) } else { Err(format!("gone {gone}, owned {owned}")) }
        })
        .await;
        let again = create(client, daemon_set(rolling(1, 0))).await;
        assert_ne!(agent["metadata"]["uid"], again["metadata"]["uid"]);
        counts(env, "a new set adopts them", [3, 3, 0, 3, 3]).await;
        let after = (by_node(env).await, revisions(env).await);
        let uids = |nodes: &BTreeMap<String, Vec<Pod>>| -> Vec<String> {
            nodes.values().flatten().map(|pod| pod.meta.uid.to_string()).collect()
        };
        assert_eq!((uids(&after.0), after.1), (uids(&before.0), before.1));
        let uid = again["metadata"]["uid"].as_str().unwrap().into();
        assert!(after.0.values().flatten().all(|pod| pod.meta.is_controlled_by(&uid)));

        // A pod whose labels no longer match is released, and replaced.
        let pod = &after.0["node-0"][0].meta;
        merge::<Pod>(client, &pod.name, json!({ "metadata": { "labels": { "app": "other" } } }))
            .await;
        let nodes = placed(env, &[("node-0", 2), ("node-1", 1), ("node-2", 1)]).await;
        let released = nodes["node-0"].iter().find(|other| other.meta.uid == pod.uid).unwrap();
        assert!(released.meta.controller().is_none());
    });
}

/// Upstream's manager creates pods beside the orphans that its cache shows under the old DaemonSet.
#[test]
fn orphans_that_the_cache_has_not_seen_are_adopted_by_the_next_daemon_set() {
    Env::run("daemon-orphans", async |env| {
        let _manager = env.manager("manager", &[CONTROLLERS]);
        let (client, faults) = (&env.client, env.cluster.sandbox.faults());
        let set = daemon_set(rolling(1, 0));
        create(client, set.clone()).await;
        counts(env, "before", [3, 3, 0, 3, 3]).await;
        faults.next(usize::MAX, "watch", "pods", Fault::Hold);
        faults.cut_watches();
        let key = ObjectKey::new("default", "agent");
        client.delete::<DaemonSet>(&key, Delete::orphan()).await.expect("delete");
        wait_until_deleted(env, &DaemonSet::RESOURCE, &key).await;
        let pods = || {
            let changes = env.cluster.sandbox.api().store.changes("pods", 0, usize::MAX, true);
            let changes = changes.expect("the history is there").changes;
            changes.iter().map(|change| change.key.to_string()).collect::<BTreeSet<String>>()
        };
        let lists = faults.count("list", "pods");
        create(client, set).await;
        eventually(&env.clock, "it looks for its pods, or creates some", || async {
            let has_acted = faults.count("list", "pods") > lists || pods().len() > 3;
            if has_acted { Ok(()) } else { Err("nothing".to_owned()) }
        })
        .await;
        faults.clear();
        counts(env, "after", [3, 3, 0, 3, 3]).await;
        assert_eq!(pods().len(), 3, "{:?}", pods());
    });
}
