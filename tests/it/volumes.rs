//! Claims and volumes: bound, provisioned, released, reclaimed, expanded.

use kube_controller_manager::client::{Client, Delete, Patch};
use kube_controller_manager::objects::{
    ObjectKey, PersistentVolume, PersistentVolumeClaim, Pod, Resource, StorageClass,
};
use sandbox::cluster::Manager;
use sandbox::nodes::DRIVER;
use serde_json::{Value, json};

use crate::env::*;

/// A manager that syncs claims and volumes every second instead of every fifteen.
pub fn manager(env: &TestCluster, extra: &[&str]) -> Manager {
    let mut flags = vec!["--pvclaimbinder-sync-period=1s"];
    flags.extend(extra);
    env.manager("manager", &flags)
}

pub fn claim(name: &str, size: &str, class: Option<&str>) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "resources": { "requests": { "storage": size } },
        },
    })
}

pub fn volume(name: &str, size: &str, policy: &str, path: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": { "storage": size },
            "persistentVolumeReclaimPolicy": policy, "hostPath": { "path": path },
        },
    })
}

pub async fn make(client: &Client, volume: &Value) -> Value {
    client.resource(&PersistentVolume::RESOURCE).create("", volume).await.expect("create")
}

pub async fn make_class(client: &Client, name: &str, provisioner: &str, mode: &str) {
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": name },
        "provisioner": provisioner, "volumeBindingMode": mode, "allowVolumeExpansion": true,
    });
    client.create::<StorageClass>("", &class).await.expect("create");
}

pub fn claim_key(name: &str) -> ObjectKey {
    ObjectKey::new("default", name)
}

pub async fn read<T: Resource>(client: &Client, key: &ObjectKey) -> Option<Value> {
    match client.resource(&T::RESOURCE).get(key).await {
        Err(error) if error.is_not_found() => None,
        found => Some(found.expect("get")),
    }
}

/// Waits until the object is in `phase`.
async fn in_phase<T: Resource>(env: &TestCluster, key: &ObjectKey, phase: &str) -> Value {
    eventually(&env.clock, &format!("{key} is {phase}"), || async {
        let object = read::<T>(&env.client, key).await.ok_or("it is gone")?;
        if object["status"]["phase"] == phase { Ok(object) } else { Err(object.to_string()) }
    })
    .await
}

pub async fn bound(env: &TestCluster, name: &str) -> Value {
    in_phase::<PersistentVolumeClaim>(env, &claim_key(name), "Bound").await
}

pub async fn volume_in(env: &TestCluster, name: &str, phase: &str) -> Value {
    in_phase::<PersistentVolume>(env, &ObjectKey::cluster(name), phase).await
}

async fn gone<T: Resource>(env: &TestCluster, key: &ObjectKey) {
    eventually(&env.clock, &format!("{key} goes"), || async {
        read::<T>(&env.client, key).await.map_or(Ok(()), |object| Err(object.to_string()))
    })
    .await;
}

pub async fn delete_claim(env: &TestCluster, name: &str) {
    let key = claim_key(name);
    env.client.delete::<PersistentVolumeClaim>(&key, Delete::new()).await.expect("delete");
    gone::<PersistentVolumeClaim>(env, &key).await;
}

/// Removes all finalizers of a volume and the volume.
async fn remove_volume(env: &TestCluster, name: &str) {
    let key = ObjectKey::cluster(name);
    env.client.delete::<PersistentVolume>(&key, Delete::new()).await.expect("delete");
    let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    let verbs = env.client.resource(&PersistentVolume::RESOURCE);
    let _ = verbs.patch::<Value>(&key, &free).await;
    gone::<PersistentVolume>(env, &key).await;
}

pub fn annotation<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object["metadata"]["annotations"][name].as_str()
}

const BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
const COMPLETED: &str = "pv.kubernetes.io/bind-completed";

#[test]
fn a_claim_gets_the_smallest_volume_and_a_retained_one_is_kept() {
    everywhere("static", async |env| {
        let manager = manager(env, &[]);
        let client = &env.client;
        for (name, size) in [("large", "5Gi"), ("small", "1Gi"), ("middle", "2Gi")] {
            let made = make(client, &volume(name, size, "Retain", "/tmp/none")).await;
            assert_eq!(made["status"]["phase"], "Pending");
            volume_in(env, name, "Available").await;
        }
        create(client, claim("data", "1500Mi", Some(""))).await;
        let data = bound(env, "data").await;
        assert_eq!(data["spec"]["volumeName"], "middle");
        assert_eq!(data["status"]["accessModes"], json!(["ReadWriteOnce"]));
        assert_eq!(data["status"]["capacity"], json!({ "storage": "2Gi" }));
        let marks = [BY_CONTROLLER, COMPLETED].map(|name| annotation(&data, name));
        assert_eq!(marks, [Some("yes"), Some("yes")]);
        let middle = volume_in(env, "middle", "Bound").await;
        let reference = &middle["spec"]["claimRef"];
        assert_eq!(reference["uid"], data["metadata"]["uid"]);
        assert_eq!(
            (&reference["kind"], &reference["apiVersion"]),
            (&json!("PersistentVolumeClaim"), &json!("v1"))
        );
        assert_eq!(annotation(&middle, BY_CONTROLLER), Some("yes"));

        delete_claim(env, "data").await;
        let kept = volume_in(env, "middle", "Released").await;
        assert_eq!(kept["spec"]["claimRef"]["uid"], data["metadata"]["uid"]);
        assert!(kept["status"]["lastPhaseTransitionTime"].is_string());
        // Another claim of the name gets another volume.
        create(client, claim("data", "1500Mi", Some(""))).await;
        assert_eq!(bound(env, "data").await["spec"]["volumeName"], "large");
        create(client, claim("huge", "1Ti", Some(""))).await;
        let why = "no persistent volumes available for this claim and no storage class is set";
        has_event(env, "huge", "FailedBinding", why).await;
        drop(manager);
    });
}

#[test]
fn bindings_that_were_prepared_or_cut_off_are_completed() {
    everywhere("prebound", async |env| {
        let (client, named) =
            (&env.client, |name: &str| json!({ "namespace": "default", "name": name }));
        // The claim names the volume.
        make(client, &volume("wanted", "1Gi", "Retain", "/tmp/none")).await;
        let mut asks = claim("asks", "1Gi", Some(""));
        asks["spec"]["volumeName"] = json!("wanted");
        create(client, asks).await;
        // The volume names the claim.
        let mut reserved = volume("reserved", "9Gi", "Retain", "/tmp/none");
        reserved["spec"]["claimRef"] = named("waits");
        make(client, &reserved).await;
        create(client, claim("waits", "1Gi", Some(""))).await;
        // A binding with only the first of its two references.
        let half = create(client, claim("half", "1Gi", Some(""))).await;
        let mut first = volume("first", "1Gi", "Retain", "/tmp/none");
        first["metadata"]["annotations"] = json!({ BY_CONTROLLER: "yes" });
        first["spec"]["claimRef"] = named("half");
        first["spec"]["claimRef"]["uid"] = half["metadata"]["uid"].clone();
        make(client, &first).await;
        // The volume is too small, of another claim, or not there.
        make(client, &volume("tiny", "1Mi", "Retain", "/tmp/none")).await;
        for (name, volume) in [("greedy", "tiny"), ("late", "reserved"), ("lonely", "missing")] {
            let mut asks = claim(name, "1Gi", Some(""));
            asks["spec"]["volumeName"] = json!(volume);
            create(client, asks).await;
        }

        let manager = manager(env, &[]);
        for (claim, volume, by_controller) in [
            ("asks", "wanted", None),
            ("waits", "reserved", Some("yes")),
            ("half", "first", Some("yes")),
        ] {
            let claim = bound(env, claim).await;
            assert_eq!(claim["spec"]["volumeName"], volume);
            assert_eq!(annotation(&claim, BY_CONTROLLER), by_controller, "{claim}");
            let volume = volume_in(env, volume, "Bound").await;
            assert_eq!(volume["spec"]["claimRef"]["uid"], claim["metadata"]["uid"]);
        }
        let small = "Cannot bind to requested volume \"tiny\": requested PV is too small";
        has_event(env, "greedy", "VolumeMismatch", small).await;
        let taken = "volume \"reserved\" already bound to a different claim.";
        has_event(env, "late", "FailedBinding", taken).await;
        in_phase::<PersistentVolumeClaim>(env, &claim_key("lonely"), "Pending").await;

        // A volume that a user has reserved stays reserved when its claim is bound elsewhere.
        let reserved = read::<PersistentVolume>(client, &ObjectKey::cluster("reserved")).await;
        assert_eq!(annotation(&reserved.unwrap(), BY_CONTROLLER), None);
        drop(manager);
    });
}

#[test]
fn a_claim_that_loses_its_volume_is_bound_again_when_it_is_back() {
    everywhere("lost", async |env| {
        let manager = manager(env, &[]);
        let client = &env.client;
        let mut body = volume("v", "1Gi", "Retain", "/tmp/none");
        make(client, &body).await;
        create(client, claim("data", "1Gi", Some(""))).await;
        let data = bound(env, "data").await;
        remove_volume(env, "v").await;
        let key = claim_key("data");
        let lost = in_phase::<PersistentVolumeClaim>(env, &key, "Lost").await;
        assert!(lost["status"]["capacity"].is_null(), "{lost}");
        assert_eq!(lost["spec"]["volumeName"], "v");
        let message = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
        has_event(env, "data", "ClaimLost", message).await;
        body["spec"]["claimRef"] =
            json!({ "namespace": "default", "name": "data", "uid": data["metadata"]["uid"] });
        make(client, &body).await;
        let found = bound(env, "data").await;
        assert_eq!(found["status"]["capacity"], json!({ "storage": "1Gi" }));
        volume_in(env, "v", "Bound").await;

        // A second volume that was bound to the claim by hand is released.
        body["metadata"]["name"] = json!("second");
        make(client, &body).await;
        let second = volume_in(env, "second", "Available").await;
        assert!(second["spec"]["claimRef"]["uid"].is_null(), "{second}");
        drop(manager);
    });
}

#[test]
fn a_restored_claim_is_bound_to_the_volume_that_names_it_without_a_uid() {
    everywhere("restored-claims", async |env| {
        // No claim is bound by a periodic sync.
        let manager = env.manager("manager", &["--pvclaimbinder-sync-period=1h"]);
        let client = &env.client;
        let restored_claim = |name: &str| {
            let mut claim = claim(name, "1Gi", Some(""));
            claim["metadata"]["annotations"] = json!({ BY_CONTROLLER: "yes", COMPLETED: "yes" });
            claim["spec"]["volumeName"] = format!("of-{name}").into();
            claim
        };
        let restored_volume = |name: &str, uid: Option<&str>| {
            let mut volume = volume(&format!("of-{name}"), "1Gi", "Retain", "/tmp/none");
            volume["spec"]["claimRef"] =
                json!({ "namespace": "default", "name": name, "uid": uid });
            volume
        };
        let are_bound = async |name: &str| {
            eventually(&env.clock, &format!("{name} is bound to its volume"), || async {
                let claim = bound(env, name).await;
                let volume = volume_in(env, &format!("of-{name}"), "Bound").await;
                let is_named = volume["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"];
                if is_named { Ok(()) } else { Err(volume.to_string()) }
            })
            .await;
        };
        let forget_uid = async |name: &str| {
            let key = ObjectKey::cluster(&format!("of-{name}"));
            let patch = Patch::Merge(json!({ "spec": { "claimRef": { "uid": null } } }));
            client.patch::<PersistentVolume>(&key, &patch).await.expect("patch");
        };
        // The volume is restored first, or the claim.
        make(client, &restored_volume("early", None)).await;
        create(client, restored_claim("early")).await;
        are_bound("early").await;
        create(client, restored_claim("late")).await;
        in_phase::<PersistentVolumeClaim>(env, &claim_key("late"), "Lost").await;
        make(client, &restored_volume("late", None)).await;
        are_bound("late").await;

        // The uid is removed from a volume in use.
        forget_uid("early").await;
        are_bound("early").await;

        // Another claim had the volume, until its uid is removed.
        make(client, &restored_volume("other", Some("old"))).await;
        create(client, restored_claim("other")).await;
        let message = "Two claims are bound to the same volume, this one is bound incorrectly";
        has_event(env, "other", "ClaimMisbound", message).await;
        let released = volume_in(env, "of-other", "Released").await;
        assert_eq!(released["spec"]["claimRef"]["uid"], "old");
        forget_uid("other").await;
        are_bound("other").await;
        drop(manager);
    });
}

#[test]
fn volumes_are_made_and_deleted_by_an_external_provisioner() {
    everywhere("external", async |env| {
        let manager = manager(env, &[]);
        let client = &env.client;
        make_class(client, "csi", DRIVER, "Immediate").await;
        let mut fails = claim("fails", "1Gi", Some("csi"));
        fails["metadata"]["annotations"] = json!({ "sandbox/provisioning": "fail" });
        create(client, fails).await;
        create(client, claim("data", "1Gi", Some("csi"))).await;
        let data = bound(env, "data").await;
        for name in ["volume.kubernetes.io", "volume.beta.kubernetes.io"] {
            let provisioner = annotation(&data, &format!("{name}/storage-provisioner"));
            assert_eq!(provisioner, Some(DRIVER));
        }
        let waiting = format!(
            "Waiting for a volume to be created either by the external provisioner '{DRIVER}' or \
             manually by the system administrator. If volume creation is delayed, please verify \
             that the provisioner is running and correctly registered."
        );
        has_event(env, "data", "ExternalProvisioning", &waiting).await;
        has_event(env, "fails", "ProvisioningFailed", "the annotation asks for it").await;
        let name = data["spec"]["volumeName"].as_str().unwrap().to_owned();
        let made = volume_in(env, &name, "Bound").await;
        assert_eq!(annotation(&made, BY_CONTROLLER), None, "the provisioner bound it");

        // The external resizer expands the volume.
        let more = json!({ "spec": { "resources": { "requests": { "storage": "2Gi" } } } });
        merge::<PersistentVolumeClaim>(client, "data", more).await;
        let message = "waiting for an external controller to expand this PVC";
        has_event(env, "data", "ExternalExpanding", message).await;
        eventually(&env.clock, "the claim has grown", || async {
            let data = read::<PersistentVolumeClaim>(client, &claim_key("data")).await;
            let has = data.ok_or("it is gone")?["status"]["capacity"]["storage"].clone();
            if has == "2Gi" { Ok(()) } else { Err(has.to_string()) }
        })
        .await;

        delete_claim(env, "data").await;
        gone::<PersistentVolume>(env, &ObjectKey::cluster(&name)).await;
        create(client, claim("none", "1Gi", Some("missing"))).await;
        let missing = "storageclass.storage.k8s.io \"missing\" not found";
        has_event(env, "none", "ProvisioningFailed", missing).await;
        drop(manager);
    });
}

#[test]
fn a_delayed_claim_is_bound_with_its_first_pod() {
    everywhere("delayed", async |env| {
        let manager = manager(env, &[]);
        let client = &env.client;
        make_class(client, "delayed", DRIVER, "WaitForFirstConsumer").await;
        let mut data = claim("data", "1Gi", Some("delayed"));
        data["metadata"]["annotations"] = json!({ "sandbox/provisioning": "reschedule" });
        create(client, data).await;
        let message = "waiting for first consumer to be created before binding";
        has_event(env, "data", "WaitForFirstConsumer", message).await;
        create(client, json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "user", "namespace": "default" },
            "spec": {
                "containers": [{ "name": "main", "image": "x:1" }],
                "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }],
            },
        }))
        .await;
        has_event(env, "data", "WaitForPodScheduled", "waiting for pod user to be scheduled").await;
        // The provisioner removes the selected node until provisioning succeeds.
        has_event(env, "data", "ProvisioningFailed", "the annotation asks for it").await;
        let allow = json!({ "metadata": { "annotations": { "sandbox/provisioning": null } } });
        merge::<PersistentVolumeClaim>(client, "data", allow).await;
        let data = bound(env, "data").await;
        assert!(annotation(&data, "volume.kubernetes.io/selected-node").is_some());
        in_phase::<Pod>(env, &claim_key("user"), "Running").await;
        drop(manager);
    });
}

#[test]
fn a_claim_without_a_class_gets_the_default_one_later() {
    everywhere("retroactive", async |env| {
        let client = &env.client;
        for class in client.list::<StorageClass>(None, &Default::default()).await.expect("list") {
            client.delete::<StorageClass>(&class.meta.key(), Delete::new()).await.expect("delete");
        }
        let manager = manager(env, &[]);
        create(client, claim("data", "1Gi", None)).await;
        create(client, claim("none", "1Gi", Some(""))).await;
        has_event(env, "data", "FailedBinding", "no storage class is set").await;
        make_class(client, "csi", DRIVER, "Immediate").await;
        let annotations = json!({ "storageclass.kubernetes.io/is-default-class": "true" });
        let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
        let csi = ObjectKey::cluster("csi");
        client.patch::<StorageClass>(&csi, &patch).await.expect("patch");
        assert_eq!(bound(env, "data").await["spec"]["storageClassName"], "csi");
        let none = read::<PersistentVolumeClaim>(client, &claim_key("none")).await.unwrap();
        assert_eq!(none["spec"]["storageClassName"], "");
        drop(manager);
    });
}

#[test]
fn host_path_volumes_are_made_deleted_and_recycled() {
    everywhere("hostpath", async |env| {
        let folder = Folder::new("hostpath");
        let template = folder.0.join("recycler.yaml");
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "namespace": "default", "annotations": { "sandbox/behavior": "exit" } },
            "spec": {
                "restartPolicy": "Never", "volumes": [{ "name": "vol" }],
                "containers": [{ "name": "main", "image": "x:1" }],
            },
        });
        std::fs::write(&template, pod.to_string()).unwrap();
        let template =
            format!("--pv-recycler-pod-template-filepath-hostpath={}", template.display());
        let manager = manager(env, &["--enable-hostpath-provisioner=true", &template]);
        let client = &env.client;

        // Provisioned and deleted by the plugin.
        make_class(client, "host", "kubernetes.io/host-path", "Immediate").await;
        create(client, claim("data", "1Gi", Some("host"))).await;
        let data = bound(env, "data").await;
        let name = data["spec"]["volumeName"].as_str().unwrap().to_owned();
        let made = volume_in(env, &name, "Bound").await;
        let path = made["spec"]["hostPath"]["path"].as_str().unwrap().to_owned();
        assert!(std::path::Path::new(&path).is_dir());
        let finalizers = made["metadata"]["finalizers"].as_array().unwrap();
        assert!(finalizers.contains(&json!("kubernetes.io/pv-controller")), "{made}");
        let message =
            format!("Successfully provisioned volume {name} using kubernetes.io/host-path");
        has_event(env, "data", "ProvisioningSucceeded", &message).await;
        delete_claim(env, "data").await;
        gone::<PersistentVolume>(env, &ObjectKey::cluster(&name)).await;
        assert!(!std::path::Path::new(&path).exists());

        // A path that the plugin must not delete.
        make(client, &volume("root", "1Gi", "Delete", "/no/such/path")).await;
        create(client, claim("root", "1Gi", Some(""))).await;
        bound(env, "root").await;
        delete_claim(env, "root").await;
        volume_in(env, "root", "Failed").await;
        let refused = "host_path deleter only supports /tmp/.+ but received provided /no/such/path";
        has_event(env, "root", "VolumeFailedDelete", refused).await;

        // Recycled by a pod, and available again.
        make(client, &volume("again", "1Gi", "Recycle", "/tmp/none")).await;
        create(client, claim("used", "1Gi", Some(""))).await;
        assert_eq!(bound(env, "used").await["spec"]["volumeName"], "again");
        delete_claim(env, "used").await;
        let again = volume_in(env, "again", "Available").await;
        assert!(again["spec"]["claimRef"].is_null(), "{again}");
        has_event(env, "again", "VolumeRecycled", "Volume recycled").await;
        drop(manager);
    });
}
