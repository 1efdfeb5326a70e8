//! Volumes of pods are attached to nodes and detached. The stand-in for a CSI driver's attacher
//! answers the VolumeAttachments, on the sandbox and on a real API server alike.

use std::time::Duration;

use kube_controller_manager::client::{Delete, ListOptions, Patch};
use kube_controller_manager::objects::{
    CSIDriver, Node, ObjectKey, PersistentVolume, PersistentVolumeClaim, Pod, Resource,
    VolumeAttachment,
};
use sandbox::cluster::Manager;
use sandbox::faults::Fault;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::env::*;
use crate::kinds::*;

/// The driver whose attachments are answered.
const DRIVER: &str = "csi.sandbox.local";
/// The flag that runs only the controller under test.
pub const ONLY: &str = "--controllers=persistentvolume-attach-detach-controller";

fn manager(env: &TestCluster, name: &str) -> Manager {
    env.manager(name, &[ONLY])
}

pub fn csi(handle: &str) -> Value {
    json!({ "csi": { "driver": DRIVER, "volumeHandle": handle } })
}

/// A volume and a claim of this name that are bound to each other.
pub async fn bound(env: &TestCluster, name: &str, source: Value) {
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": name,
            "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    let claim = create(&env.client, claim).await;
    let mut volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "namespace": "default", "name": name, "uid": claim["metadata"]["uid"],
            },
        },
    });
    for (field, value) in source.as_object().unwrap() {
        volume["spec"][field] = value.clone();
    }
    env.client.create::<PersistentVolume>("", &volume).await.expect("create");
    let claims = env.client.resource(&PersistentVolumeClaim::RESOURCE).subresource("status");
    let phase = Patch::Merge(json!({ "status": { "phase": "Bound" } }));
    claims.patch::<Value>(&ObjectKey::new("default", name), &phase).await.expect("patch");
}

/// A pod on `node` with the claims of these names.
pub async fn pod(env: &TestCluster, name: &str, node: &str, claims: &[&str]) -> ObjectKey {
    let volumes: Vec<Value> = claims
        .iter()
        .map(|claim| json!({ "name": claim, "persistentVolumeClaim": { "claimName": claim } }))
        .collect();
    pod_with(env, name, node, json!(volumes)).await
}

async fn pod_with(env: &TestCluster, name: &str, node: &str, volumes: Value) -> ObjectKey {
    create(
        &env.client,
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": {
                "nodeName": node, "containers": [{ "name": "main", "image": "x:1" }],
                "volumes": volumes,
            },
        }),
    )
    .await;
    ObjectKey::new("default", name)
}

fn attachment(handle: &str, driver: &str, node: &str) -> ObjectKey {
    let hash = Sha256::digest(format!("{handle}{driver}{node}"));
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    ObjectKey::cluster(&format!("csi-{hex}"))
}

/// Waits until the driver has answered the attachment.
pub async fn attached(env: &TestCluster, handle: &str, node: &str) -> Value {
    let key = attachment(handle, DRIVER, node);
    let done = |object: &Value| object["status"]["attached"] == true;
    wait_until_exists(env, &VolumeAttachment::RESOURCE, &key, done).await
}

async fn detached(env: &TestCluster, handle: &str, node: &str) {
    wait_until_deleted(env, &VolumeAttachment::RESOURCE, &attachment(handle, DRIVER, node)).await;
}

/// Waits until the status of the node lists exactly these volumes.
pub async fn lists(env: &TestCluster, node: &str, volumes: &[&str]) {
    eventually(&env.clock, &format!("{node} lists {volumes:?}"), || async {
        let node: Value = env
            .client
            .resource(&Node::RESOURCE)
            .get(&ObjectKey::cluster(node))
            .await
            .map_err(|error| error.to_string())?;
        let listed = node["status"]["volumesAttached"].as_array().cloned().unwrap_or_default();
        let mut names: Vec<&str> =
            listed.iter().filter_map(|volume| volume["name"].as_str()).collect();
        names.sort_unstable();
        if names == volumes { Ok(()) } else { Err(node["status"].to_string()) }
    })
    .await;
}

pub fn unique(handle: &str) -> String {
    format!("kubernetes.io/csi/{DRIVER}^{handle}")
}

pub async fn delete_pod(env: &TestCluster, key: &ObjectKey) {
    let at_once = Delete::new().grace_period(0);
    env.client.delete::<Pod>(key, at_once).await.expect("delete");
}

async fn annotate_volume(env: &TestCluster, name: &str, annotation: &str, value: Value) {
    let patch = Patch::Merge(json!({ "metadata": { "annotations": { annotation: value } } }));
    let key = ObjectKey::cluster(name);
    env.client.patch::<PersistentVolume>(&key, &patch).await.expect("patch");
}

/// Waits until the stand-in kubelet has registered its nodes.
pub async fn nodes_are_there(env: &TestCluster) {
    for node in ["node-0", "node-1"] {
        wait_until_exists(env, &Node::RESOURCE, &ObjectKey::cluster(node), |_| true).await;
    }
}

#[test]
fn the_volume_of_a_pod_is_attached_and_detached_with_it() {
    everywhere("attach", async |env| {
        nodes_are_there(env).await;
        let _manager = manager(env, "manager");
        bound(env, "data", csi("h1")).await;
        let user = pod(env, "user", "node-0", &["data"]).await;
        let made = attached(env, "h1", "node-0").await;
        assert_eq!(
            made["spec"],
            json!({
                "attacher": DRIVER, "nodeName": "node-0",
                "source": { "persistentVolumeName": "data" },
            })
        );
        lists(env, "node-0", &[&unique("h1")]).await;
        let text = "AttachVolume.Attach succeeded for volume \"data\" ";
        has_event(env, "user", "SuccessfulAttachVolume", text).await;

        // A second pod of the node shares the attachment, which stays as long as there is one.
        let second = pod(env, "second", "node-0", &["data"]).await;
        delete_pod(env, &user).await;
        bound(env, "other", csi("h2")).await;
        let third = pod(env, "third", "node-0", &["other"]).await;
        attached(env, "h2", "node-0").await;
        attached(env, "h1", "node-0").await;
        for key in [&second, &third] {
            delete_pod(env, key).await;
        }
        detached(env, "h1", "node-0").await;
        detached(env, "h2", "node-0").await;
        lists(env, "node-0", &[]).await;
    });
}

#[test]
fn a_volume_of_one_writer_is_not_attached_to_two_nodes() {
    everywhere("multi-attach", async |env| {
        nodes_are_there(env).await;
        let _manager = manager(env, "manager");
        bound(env, "data", csi("h")).await;
        let first = pod(env, "first", "node-0", &["data"]).await;
        attached(env, "h", "node-0").await;
        lists(env, "node-0", &[&unique("h")]).await;
        pod(env, "second", "node-1", &["data"]).await;
        let text = "Multi-Attach error for volume \"data\" Volume is already used by pod(s) first";
        has_event(env, "second", "FailedAttachVolume", text).await;
        delete_pod(env, &first).await;
        attached(env, "h", "node-1").await;
        detached(env, "h", "node-0").await;
        lists(env, "node-0", &[]).await;
        lists(env, "node-1", &[&unique("h")]).await;
    });
}

#[test]
fn errors_of_the_driver_are_events_and_are_tried_again() {
    everywhere("attach-errors", async |env| {
        nodes_are_there(env).await;
        let _manager = manager(env, "manager");
        bound(env, "data", csi("h")).await;
        annotate_volume(env, "data", "sandbox/attaching", json!("fail")).await;
        let user = pod(env, "user", "node-0", &["data"]).await;
        let text = "AttachVolume.Attach failed for volume \"data\" : rpc error: code = Internal \
                    desc = attaching fails on purpose";
        has_event(env, "user", "FailedAttachVolume", text).await;
        annotate_volume(env, "data", "sandbox/attaching", Value::Null).await;
        lists(env, "node-0", &[&unique("h")]).await;
        has_event(env, "user", "SuccessfulAttachVolume", "succeeded for volume \"data\" ").await;

        annotate_volume(env, "data", "sandbox/detaching", json!("fail")).await;
        delete_pod(env, &user).await;
        let key = attachment("h", DRIVER, "node-0");
        let failed = |object: &Value| object["status"]["detachError"]["message"].is_string();
        wait_until_exists(env, &VolumeAttachment::RESOURCE, &key, failed).await;
        lists(env, "node-0", &[]).await;
        annotate_volume(env, "data", "sandbox/detaching", Value::Null).await;
        detached(env, "h", "node-0").await;
    });
}

/// Upstream waits for the next report of the kubelet.
#[test]
fn a_volume_that_was_never_attached_is_released_with_its_pod() {
    everywhere("attach-half", async |env| {
        nodes_are_there(env).await;
        // Its kubelet reports nothing.
        env.steering.kill("node-0");
        let _manager = manager(env, "manager");
        bound(env, "data", csi("h")).await;
        annotate_volume(env, "data", "sandbox/attaching", json!("fail")).await;
        let user = pod(env, "user", "node-0", &["data"]).await;
        has_event(env, "user", "FailedAttachVolume", "attaching fails on purpose").await;
        delete_pod(env, &user).await;
        detached(env, "h", "node-0").await;
        annotate_volume(env, "data", "sandbox/attaching", Value::Null).await;
        pod(env, "next", "node-1", &["data"]).await;
        attached(env, "h", "node-1").await;
    });
}

#[test]
fn a_manager_that_comes_back_finishes_what_another_began() {
    everywhere("attach-restart", async |env| {
        nodes_are_there(env).await;
        let first = manager(env, "first");
        bound(env, "goes", csi("g")).await;
        bound(env, "stays", csi("s")).await;
        bound(env, "hangs", csi("n")).await;
        annotate_volume(env, "hangs", "sandbox/attaching", json!("hang")).await;
        let leaving = pod(env, "leaving", "node-0", &["goes"]).await;
        pod(env, "staying", "node-0", &["stays"]).await;
        pod(env, "waiting", "node-0", &["hangs"]).await;
        attached(env, "g", "node-0").await;
        let stays = attached(env, "s", "node-0").await;
        lists(env, "node-0", &[&unique("g"), &unique("s")]).await;
        let hangs = attachment("n", DRIVER, "node-0");
        wait_until_exists(env, &VolumeAttachment::RESOURCE, &hangs, |_| true).await;
        first.stop(&env.clock, Duration::from_secs(20)).await.expect("it stops");
        delete_pod(env, &leaving).await;
        annotate_volume(env, "hangs", "sandbox/attaching", Value::Null).await;

        let _second = manager(env, "second");
        detached(env, "g", "node-0").await;
        attached(env, "n", "node-0").await;
        lists(env, "node-0", &[&unique("n"), &unique("s")]).await;
        let still = attached(env, "s", "node-0").await;
        assert_eq!(still["metadata"]["uid"], stays["metadata"]["uid"]);
    });
}

#[test]
fn a_node_that_is_out_of_service_loses_the_volumes_that_it_still_uses() {
    everywhere("out-of-service", async |env| {
        nodes_are_there(env).await;
        let _manager = manager(env, "manager");
        bound(env, "data", csi("h")).await;
        let user = pod(env, "user", "node-0", &["data"]).await;
        attached(env, "h", "node-0").await;
        let key = ObjectKey::cluster("node-0");
        let in_use = |node: &Value| node["status"]["volumesInUse"] == json!([unique("h")]);
        wait_until_exists(env, &Node::RESOURCE, &key, in_use).await;
        lists(env, "node-0", &[&unique("h")]).await;
        // The kubelet does not answer any more: nothing is unmounted.
        env.steering.kill("node-0");
        delete_pod(env, &user).await;
        // A later pod elsewhere is served, while the volume in use stays.
        bound(env, "other", csi("o")).await;
        pod(env, "other", "node-1", &["other"]).await;
        attached(env, "o", "node-1").await;
        attached(env, "h", "node-0").await;
        let taint = json!({
            "key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown",
            "effect": "NoExecute",
        });
        let patch = Patch::Merge(json!({ "spec": { "taints": [taint] } }));
        env.client.patch::<Node>(&key, &patch).await.expect("patch");
        detached(env, "h", "node-0").await;
        lists(env, "node-0", &[]).await;
    });
}

#[test]
fn the_volumes_of_a_node_that_goes_are_detached() {
    everywhere("attach-node", async |env| {
        let _manager = manager(env, "manager");
        // A node without a kubelet: the volumes in use are detached six minutes after the node is
        // deleted.
        env.steering.kill("short-lived");
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": "short-lived", "annotations": {
                "volumes.kubernetes.io/controller-managed-attach-detach": "true",
            } },
        });
        env.client.create::<Node>("", &node).await.expect("create");
        bound(env, "data", csi("h")).await;
        let user = pod(env, "user", "short-lived", &["data"]).await;
        attached(env, "h", "short-lived").await;
        lists(env, "short-lived", &[&unique("h")]).await;
        let key = ObjectKey::cluster("short-lived");
        env.client.delete::<Node>(&key, Delete::new()).await.expect("delete");
        // Pods outlive their node until the garbage collector of pods deletes them.
        attached(env, "h", "short-lived").await;
        delete_pod(env, &user).await;
        detached(env, "h", "short-lived").await;
    });
}

/// It may still be mounted there, and no kubelet is left to report that.
#[test]
fn a_volume_that_is_found_on_a_node_that_is_gone_stays_if_it_was_attached() {
    everywhere("attach-gone", async |env| {
        bound(env, "mounted", csi("m")).await;
        bound(env, "hangs", csi("n")).await;
        annotate_volume(env, "hangs", "sandbox/attaching", json!("hang")).await;
        for (name, handle) in [("mounted", "m"), ("hangs", "n")] {
            let made = json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
                "metadata": { "name": attachment(handle, DRIVER, "gone").name },
                "spec": {
                    "attacher": DRIVER, "nodeName": "gone",
                    "source": { "persistentVolumeName": name },
                },
            });
            env.client.create::<VolumeAttachment>("", &made).await.expect("create");
        }
        attached(env, "m", "gone").await;
        let _manager = manager(env, "manager");
        detached(env, "n", "gone").await;
        attached(env, "m", "gone").await;
    });
}

#[test]
fn some_volumes_need_no_driver() {
    everywhere("no-attacher", async |env| {
        nodes_are_there(env).await;
        let _manager = manager(env, "manager");
        let driver = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
            "metadata": { "name": "unattached.example.com" }, "spec": { "attachRequired": false },
        });
        env.client.create::<CSIDriver>("", &driver).await.expect("create");
        let unattached =
            json!({ "csi": { "driver": "unattached.example.com", "volumeHandle": "h" } });
        bound(env, "unattached", unattached).await;
        bound(env, "data", csi("h")).await;
        let iscsi = json!({ "iscsi": {
            "targetPortal": "192.0.2.1:3260", "iqn": "iqn.2001-04.com.example:x", "lun": 1,
        } });
        bound(env, "iscsi", iscsi).await;
        let inline =
            json!({ "name": "inline", "fc": { "targetWWNs": ["500a", "500b"], "lun": 2 } });
        let mut volumes = vec![inline];
        for claim in ["unattached", "data", "iscsi"] {
            volumes.push(json!({ "name": claim, "persistentVolumeClaim": { "claimName": claim } }));
        }
        let user = pod_with(env, "user", "node-0", json!(volumes)).await;
        let listed = [
            unique("h"),
            "kubernetes.io/fc/[500a 500b]:2".to_owned(),
            "kubernetes.io/iscsi/192.0.2.1:3260:iqn.2001-04.com.example:x:1".to_owned(),
        ];
        lists(env, "node-0", &listed.each_ref().map(String::as_str)).await;
        let all = ListOptions::default();
        let made = env.client.list::<VolumeAttachment>(None, &all).await.expect("list");
        assert_eq!(made.len(), 1, "{made:?}");
        for name in ["inline", "iscsi"] {
            let text = format!("succeeded for volume \"{name}\" ");
            has_event(env, "user", "SuccessfulAttachVolume", &text).await;
        }
        delete_pod(env, &user).await;
        lists(env, "node-0", &[]).await;
    });
}

#[test]
fn in_tree_volumes_are_attached_by_the_drivers_that_replace_them() {
    everywhere("migration", async |env| {
        nodes_are_there(env).await;
        let _manager = manager(env, "manager");
        bound(env, "disk", json!({ "awsElasticBlockStore": { "volumeID": "aws://z/vol-1" } }))
            .await;
        let volumes = json!([
            { "name": "disk", "persistentVolumeClaim": { "claimName": "disk" } },
            { "name": "pd", "gcePersistentDisk": { "pdName": "d", "fsType": "ext4" } },
        ]);
        pod_with(env, "user", "node-0", volumes).await;
        let key = attachment("vol-1", "ebs.csi.aws.com", "node-0");
        let made = wait_until_exists(env, &VolumeAttachment::RESOURCE, &key, |_| true).await;
        assert_eq!(made["spec"]["attacher"], "ebs.csi.aws.com");
        assert_eq!(made["spec"]["source"], json!({ "persistentVolumeName": "disk" }));
        let handle = "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d";
        let key = attachment(handle, "pd.csi.storage.gke.io", "node-0");
        let made = wait_until_exists(env, &VolumeAttachment::RESOURCE, &key, |_| true).await;
        assert_eq!(
            made["spec"]["source"]["inlineVolumeSpec"],
            json!({
                "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
                "csi": {
                    "driver": "pd.csi.storage.gke.io", "volumeHandle": handle, "fsType": "ext4",
                    "volumeAttributes": { "partition": "" },
                },
            })
        );
    });
}

#[test]
fn refused_writes_are_tried_again() {
    Env::run("attach-faults", async |env| {
        nodes_are_there(env).await;
        let faults = env.cluster.sandbox.faults();
        let _manager = manager(env, "manager");
        bound(env, "data", csi("h")).await;
        // After a write whose answer is lost, nothing more has to be written.
        let kinds = || [Fault::code(500, None), Fault::code(503, None), Fault::LoseAnswer];
        for fault in kinds() {
            faults.next(1, "create", "volumeattachments", fault.clone());
            faults.next(1, "delete", "volumeattachments", fault);
        }
        let user = pod(env, "user", "node-0", &["data"]).await;
        attached(env, "h", "node-0").await;
        lists(env, "node-0", &[&unique("h")]).await;
        delete_pod(env, &user).await;
        detached(env, "h", "node-0").await;
        lists(env, "node-0", &[]).await;
        assert_eq!(faults.pending(), [], "every fault has hit");
    });
}

/// The write is executed, its answer is lost, and the volume is used again before the next write.
#[test]
fn a_volume_that_comes_back_after_a_lost_answer_is_listed() {
    Env::run("attach-unanswered", async |env| {
        let faults = env.cluster.sandbox.faults();
        let _manager = manager(env, "manager");
        // No kubelet runs on it, whose writes would meet the faults.
        env.steering.kill("bare");
        let annotations =
            json!({ "volumes.kubernetes.io/controller-managed-attach-detach": "true" });
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": "bare", "annotations": annotations },
        });
        env.client.create::<Node>("", &node).await.expect("create");
        bound(env, "data", csi("h")).await;
        let away = json!({ "csi": { "driver": "away.example.com", "volumeHandle": "h" } });
        bound(env, "never", away).await;
        let first = pod(env, "first", "bare", &["data"]).await;
        attached(env, "h", "bare").await;
        lists(env, "bare", &[&unique("h")]).await;
        // Without a kubelet it is deleted immediately.
        env.client.delete::<Pod>(&first, Delete::new().grace_period(0)).await.expect("delete");
        wait_until_deleted(env, &Pod::RESOURCE, &first).await;

        faults.next(1, "patch", "nodes/status", Fault::LoseAnswer);
        faults.next(usize::MAX, "patch", "nodes/status", Fault::code(429, None));
        // A change of the node shows that its kubelet does not use the volume.
        let labels = Patch::Merge(json!({ "metadata": { "labels": { "seen": "true" } } }));
        env.client.patch::<Node>(&ObjectKey::cluster("bare"), &labels).await.expect("patch");
        lists(env, "bare", &[]).await;
        pod(env, "second", "bare", &["data", "never"]).await;
        // The attachment of the other volume, which no driver answers, shows that the pod is known.
        let never = attachment("h", "away.example.com", "bare");
        wait_until_exists(env, &VolumeAttachment::RESOURCE, &never, |_| true).await;
        faults.clear();
        lists(env, "bare", &[&unique("h")]).await;
    });
}
