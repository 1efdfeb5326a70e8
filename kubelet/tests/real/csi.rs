//! Volumes of claims and of CSI drivers: with a driver of the tests and the embedded API server.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use async_channel::Receiver;
use futures_lite::FutureExt;
use grpc::Code;
use kube_controller_manager::client::Patch;
use kube_controller_manager::objects::{ObjectKey, ResourceType};
use kube_controller_manager::source::ClientSource;
use kube_controller_manager::task::{self, StopToken};
use kubelet::csi::{
    Amounts, CsiDrivers, DriverRegistration, Drivers, NodeInfo, api, attachment_name,
};
use kubelet::node::address::NodeAddress;
use kubelet::node::own::OwnNode;
use kubelet::objects::Objects;
use kubelet::objects::folder::LocalObjects;
use kubelet::pod::{Pod, PodExt, Uid};
use kubelet::volumes::{self, Folders, Parts, VolumeManager};
use serde_json::{Value, json};

use super::api::{Agent, Server, key, running};
use super::csi_driver::{
    Abilities, DRIVER, Driver, Fault, GET_VOLUME_STATS, PROCESS, VOLUME_MOUNT_GROUP,
};
use super::machine::{Error, Machine};
use super::node::place;
use super::pods::is_ready;

/// How long a state is waited for.
const PATIENCE: Duration = Duration::from_secs(180);

const NODES: ResourceType = ResourceType::fixed("", "v1", "Node", "nodes", false);
const CLAIMS: ResourceType =
    ResourceType::fixed("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", true);
const VOLUMES: ResourceType =
    ResourceType::fixed("", "v1", "PersistentVolume", "persistentvolumes", false);
const CSI_DRIVERS: ResourceType =
    ResourceType::fixed("storage.k8s.io", "v1", "CSIDriver", "csidrivers", false);
const CSI_NODES: ResourceType =
    ResourceType::fixed("storage.k8s.io", "v1", "CSINode", "csinodes", false);
const ATTACHMENTS: ResourceType =
    ResourceType::fixed("storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments", false);

impl Server {
    async fn add(&self, resource: &ResourceType, object: Value) -> Value {
        let namespace = if resource.namespaced { "default" } else { "" };
        let made = self.client.resource(resource).create::<Value>(namespace, &object).await;
        made.expect("created")
    }

    async fn read(&self, resource: &ResourceType, name: &str) -> Value {
        let key = if resource.namespaced { key(name) } else { ObjectKey::cluster(name) };
        match self.client.resource(resource).get(&key).await {
            Ok(object) => object,
            Err(error) if error.is_not_found() => Value::Null,
            Err(error) => panic!("{error}"),
        }
    }

    async fn set_status(&self, resource: &ResourceType, name: &str, status: Value) {
        let key = if resource.namespaced { key(name) } else { ObjectKey::cluster(name) };
        let patch = Patch::Merge(json!({"status": status}));
        let status = self.client.resource(resource).subresource("status");
        status.patch::<Value>(&key, &patch).await.expect("a status");
    }

    /// A claim `name` that is bound to a volume `pv-NAME` with this source.
    async fn bind(&self, name: &str, mut volume: Value, claim: Value) {
        let mut object = json!({
            "metadata": {"name": name},
            "spec": {"accessModes": ["ReadWriteOnce"], "volumeName": format!("pv-{name}"),
                     "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": ""},
        });
        for (field, value) in claim.as_object().into_iter().flatten() {
            object["metadata"][field] = value.clone();
        }
        if let Some(mode) = volume.get("volumeMode") {
            object["spec"]["volumeMode"] = mode.clone();
        }
        let made = self.add(&CLAIMS, object).await;
        if volume.get("accessModes").is_none() {
            volume["accessModes"] = json!(["ReadWriteOnce"]);
        }
        volume["capacity"] = json!({"storage": "1Gi"});
        volume["claimRef"] =
            json!({"namespace": "default", "name": name, "uid": made["metadata"]["uid"]});
        let volume = json!({"metadata": {"name": format!("pv-{name}")}, "spec": volume});
        self.add(&VOLUMES, volume).await;
        let status = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}});
        self.set_status(&CLAIMS, name, status).await;
    }

    /// As a controller: attaches a volume of the driver to the node.
    async fn attach(&self, claim: &str, handle: &str) {
        let unique = format!("kubernetes.io/csi/{DRIVER}^{handle}");
        let attached = json!([{"name": unique, "devicePath": ""}]);
        self.set_status(&NODES, "n", json!({"volumesAttached": attached})).await;
        let name = attachment_name(handle, DRIVER, "n");
        let source = json!({"persistentVolumeName": format!("pv-{claim}")});
        let spec = json!({"attacher": DRIVER, "nodeName": "n", "source": source});
        self.add(&ATTACHMENTS, json!({"metadata": {"name": name}, "spec": spec})).await;
        let status = json!({"attached": true, "attachmentMetadata": {"device": "/dev/x"}});
        self.set_status(&ATTACHMENTS, &name, status).await;
    }

    async fn eventually_is<F>(&self, what: &str, is_so: impl Fn() -> F)
    where
        F: Future<Output = bool>,
    {
        let end = self.clock.monotonic() + PATIENCE;
        while !is_so().await {
            assert!(self.clock.monotonic() < end, "not {what}");
            self.clock.sleep(Duration::from_millis(50)).await;
        }
    }
}

fn csi_source(handle: &str) -> Value {
    json!({"csi": {"driver": DRIVER, "volumeHandle": handle, "fsType": "ext4",
                   "volumeAttributes": {"a": "b"}}})
}

fn claimed(name: &str) -> Value {
    json!({"name": "data", "persistentVolumeClaim": {"claimName": name}})
}

fn pod(name: &str, volume: &Value) -> Arc<Pod> {
    let mounts = json!([{"name": volume["name"], "mountPath": "/data"}]);
    let pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"),
                     "annotations": {"kubernetes.io/config.source": "api"}},
        "spec": {"containers": [{"name": "c", "volumeMounts": mounts}], "volumes": [volume]},
    });
    Arc::new(serde_json::from_value(pod).expect("a pod"))
}

/// The parts of a kubelet that keep volumes; what a killed one leaves is on the disk.
struct Keeper {
    volumes: VolumeManager,
    again: Receiver<Uid>,
    stop: StopToken,
    drivers: Drivers,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop.stop();
    }
}

/// An API server, a driver, and a folder for the kubelet.
struct Place {
    server: Server,
    folder: PathBuf,
    folders: Folders,
    driver: Driver,
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Place {
    async fn new(test: &str, abilities: Abilities) -> Place {
        let server = Server::start().await;
        // Short, since the path of a socket has at most 107 bytes.
        let folder = PathBuf::from(format!("/tmp/kcsi-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let root = folder.join("root");
        let folders = Folders { root: root.clone(), logs: folder.join("logs") };
        folders.make().expect("folders");
        let driver = Driver::new(&folder, &root, false, abilities);
        let node = json!({"metadata": {"name": "n", "labels": {"place": "here"}}});
        server.add(&NODES, node).await;
        Place { server, folder, folders, driver }
    }

    /// A driver object, whose volumes are not attached unless `more` says so.
    async fn describe(&self, more: Value) {
        let mut spec = json!({"attachRequired": false});
        for (field, value) in more.as_object().into_iter().flatten() {
            spec[field] = value.clone();
        }
        self.server.add(&CSI_DRIVERS, json!({"metadata": {"name": DRIVER}, "spec": spec})).await;
    }

    async fn keeper(&self) -> Keeper {
        let Server { client, clock, .. } = &self.server;
        let (stop, drivers) = (StopToken::new(), Drivers::default());
        let own = OwnNode::new("n", NodeAddress::default());
        let source = ClientSource::new(client.clone());
        let (follower, time, until) = (own.clone(), clock.clone(), stop.clone());
        let of_node = source.clone();
        drop(task::spawn(async move { follower.follow(of_node, time, until).await }));
        own.synced().await;
        let node = NodeInfo::new(client.clone(), own.clone(), clock.clone());
        let csi_drivers = CsiDrivers::start(source, clock.clone(), &stop);
        let registration = DriverRegistration {
            folder: self.folders.plugin_sockets(),
            drivers: drivers.clone(),
            server: Some((node.clone(), csi_drivers.clone())),
            clock: clock.clone(),
        };
        drop(task::spawn(registration.run(stop.clone())));
        assert_eq!(node.fault().as_deref(), Some("CSINode is not yet initialized"));
        node.initialize().await;
        assert_eq!(node.fault(), None);
        csi_drivers.synced().await;
        let (sender, again) = async_channel::unbounded();
        let volumes = VolumeManager::new(Parts {
            folders: self.folders.clone(),
            own,
            objects: Arc::new(Objects::new(LocalObjects::default(), clock.clone())),
            drivers: drivers.clone(),
            server: Some(volumes::Server { client: client.clone(), csi_drivers, csi_node: node }),
            controller_attaches: true,
            usage_period: Some(Duration::from_secs(60)),
            clock: clock.clone(),
            again: sender,
        });
        drop(task::spawn(volumes.clone().run(stop.clone())));
        Keeper { volumes, again, stop, drivers }
    }

    /// Syncs a pod as the kubelet does, until its volumes are there.
    async fn set_up(&self, keeper: &Keeper, pod: &Arc<Pod>) {
        let end = self.server.clock.monotonic() + PATIENCE;
        while let Some(retry) = keeper.volumes.set_up(pod).await.expect("folders") {
            assert!(self.server.clock.monotonic() < end, "no volumes: {:?}", self.driver.calls());
            let again = async { drop(keeper.again.recv().await) };
            self.server.clock.sleep(retry).or(again).await;
        }
    }

    /// Ends a pod's volumes as the kubelet does.
    async fn tear_down(&self, keeper: &Keeper, pod: &Pod) {
        let end = self.server.clock.monotonic() + PATIENCE;
        while let Err(error) = keeper.volumes.tear_down(&pod.uid()).await {
            assert!(self.server.clock.monotonic() < end, "{error}");
            let again = async { drop(keeper.again.recv().await) };
            self.server.clock.sleep(Duration::from_millis(100)).or(again).await;
        }
        assert!(!self.folders.pod(&pod.uid()).exists());
    }

    async fn registered(&self, keeper: &Keeper) {
        let is_it = || async { keeper.drivers.get(DRIVER).is_ok() };
        self.server.eventually_is("registered", is_it).await;
    }

    /// Waits until nothing of the driver's volumes is left on the node.
    async fn released(&self) {
        let left = || {
            let folder = self.folders.root.join("plugins/kubernetes.io/csi").join(DRIVER);
            fs::read_dir(folder).into_iter().flatten().count()
        };
        let is_it = || async { self.driver.paths().is_empty() && left() == 0 };
        self.server.eventually_is("released", is_it).await;
    }
}

#[test]
fn volume_is_attached_staged_published_and_undone() {
    task::run(1, async {
        let abilities = Abilities {
            max_volumes: 7,
            topology: [("zone.test".to_owned(), "a".to_owned())].into(),
            ..Abilities::default()
        };
        let place = Place::new("life", abilities).await;
        place.describe(json!({"attachRequired": true, "podInfoOnMount": true})).await;
        let _driver = place.driver.start();
        let keeper = place.keeper().await;
        place.registered(&keeper).await;
        let csi_node = place.server.read(&CSI_NODES, "n").await;
        let expected = json!([{"name": DRIVER, "nodeID": "node-of-fake",
                               "topologyKeys": ["zone.test"], "allocatable": {"count": 7}}]);
        assert_eq!(csi_node["spec"]["drivers"], expected);
        let node = place.server.read(&NODES, "n").await;
        assert_eq!(csi_node["metadata"]["ownerReferences"][0]["uid"], node["metadata"]["uid"]);
        assert_eq!(node["metadata"]["labels"]["zone.test"], "a");
        let ids = json!({DRIVER: "node-of-fake"}).to_string();
        assert_eq!(node["metadata"]["annotations"]["csi.volume.kubernetes.io/nodeid"], ids);
        place.server.bind("c", csi_source("vol-1"), json!({})).await;
        let pod = pod("p", &claimed("c"));
        // It is in use before it is attached, and attached before it is staged.
        assert!(keeper.volumes.set_up(&pod).await.expect("folders").is_some());
        let in_use =
            || async { keeper.volumes.in_use().names().is_some_and(|names| !names.is_empty()) };
        let set_up = || async {
            keeper.volumes.set_up(&pod).await.expect("folders");
            in_use().await
        };
        place.server.eventually_is("in use", set_up).await;
        let names = keeper.volumes.in_use().names().expect("names");
        assert_eq!(names, [format!("kubernetes.io/csi/{DRIVER}^vol-1")]);
        keeper.volumes.in_use().mark_reported(&names);
        assert!(keeper.volumes.set_up(&pod).await.expect("folders").is_some());
        assert_eq!(place.driver.calls(), [""; 0]);
        place.server.attach("c", "vol-1").await;
        place.set_up(&keeper, &pod).await;
        let calls = ["NodeStageVolume vol-1", "NodePublishVolume vol-1"];
        assert_eq!(place.driver.calls(), calls);
        let stage: api::NodeStageVolumeRequest = place.driver.request("NodeStageVolume");
        assert_eq!(stage.publish_context["device"], "/dev/x");
        let publish: api::NodePublishVolumeRequest = place.driver.request("NodePublishVolume");
        assert_eq!(publish.volume_context["a"], "b");
        assert_eq!(publish.volume_context["csi.storage.k8s.io/pod.name"], "p");
        assert_eq!(publish.staging_target_path, stage.staging_target_path);
        let path = place.folders.pod(&pod.uid()).join("volumes/kubernetes.io~csi/pv-c");
        assert_eq!(Path::new(&publish.target_path), path.join("mount"));
        let data: Value =
            serde_json::from_slice(&fs::read(path.join("vol_data.json")).expect("a file"))
                .expect("JSON");
        assert_eq!(data["volumeHandle"], "vol-1");
        // What is there stays as it is.
        assert_eq!(keeper.volumes.set_up(&pod).await.expect("folders"), None);
        assert_eq!(place.driver.calls().len(), 2);
        let mounted = keeper.volumes.mounted(&pod.uid());
        assert_eq!(mounted["data"].path, path.join("mount"));
        place.tear_down(&keeper, &pod).await;
        place.released().await;
        let calls = ["NodeUnpublishVolume vol-1", "NodeUnstageVolume vol-1"];
        assert_eq!(place.driver.calls()[2..], calls);
        let is_free =
            || async { keeper.volumes.in_use().names().is_some_and(|names| names.is_empty()) };
        place.server.eventually_is("free", is_free).await;
    });
}

#[test]
fn calls_that_fail_are_repeated_until_the_volume_is_there_and_gone() {
    task::run(1, async {
        for (number, fault) in [
            Fault::Before(Code::Unavailable),
            Fault::Before(Code::Internal),
            Fault::After(Code::Aborted),
            Fault::After(Code::Internal),
        ]
        .into_iter()
        .enumerate()
        {
            let place = Place::new(&format!("fail{number}"), Abilities::default()).await;
            place.describe(json!({})).await;
            for method in [
                "GetInfo",
                "NodeGetInfo",
                "NodeGetCapabilities",
                "NodeStageVolume",
                "NodePublishVolume",
                "NodeUnpublishVolume",
                "NodeUnstageVolume",
            ] {
                place.driver.plan(method, &[fault]);
            }
            let _driver = place.driver.start();
            let keeper = place.keeper().await;
            place.registered(&keeper).await;
            place.server.bind("c", csi_source("vol-1"), json!({})).await;
            let pod = pod("p", &claimed("c"));
            place.set_up(&keeper, &pod).await;
            assert_eq!(place.driver.paths().len(), 2, "{fault:?}");
            place.tear_down(&keeper, &pod).await;
            place.released().await;
            assert!(place.driver.is_done(), "{fault:?}");
        }
    });
}

#[test]
fn kubelet_that_dies_within_a_call_leaves_what_the_next_one_needs() {
    task::run(1, async {
        for method in
            ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"]
        {
            for continues in [true, false] {
                let place =
                    Place::new(&format!("{method}-{continues}"), Abilities::default()).await;
                place.describe(json!({})).await;
                place.driver.plan(method, &[Fault::Silent]);
                let driver = place.driver.start();
                let keeper = place.keeper().await;
                place.registered(&keeper).await;
                place.server.bind("c", csi_source("vol-1"), json!({})).await;
                let pod = pod("p", &claimed("c"));
                let (of, volumes) = (pod.clone(), keeper.volumes.clone());
                let clock = place.server.clock.clone();
                let life = task::spawn(async move {
                    while let Some(retry) = volumes.set_up(&of).await.expect("folders") {
                        clock.sleep(retry).await;
                    }
                    volumes.tear_down(&of.uid()).await.expect("torn down");
                });
                let begun = format!("{method} vol-1");
                let has_begun = || async { place.driver.calls().contains(&begun) };
                place.server.eventually_is("begun", has_begun).await;
                // The kubelet ends with its connections, and starts again.
                life.cancel().await;
                drop(keeper);
                drop(driver);
                let _driver = place.driver.start();
                let keeper = place.keeper().await;
                place.registered(&keeper).await;
                if continues {
                    place.set_up(&keeper, &pod).await;
                    assert_eq!(place.driver.paths().len(), 2, "{method}");
                }
                place.tear_down(&keeper, &pod).await;
                place.released().await;
            }
        }
    });
}

#[test]
fn volume_of_two_pods_is_staged_once() {
    task::run(1, async {
        let place = Place::new("two", Abilities::default()).await;
        place.describe(json!({})).await;
        let _driver = place.driver.start();
        let keeper = place.keeper().await;
        place.registered(&keeper).await;
        place.server.bind("c", csi_source("vol-1"), json!({})).await;
        let (one, two) = (pod("one", &claimed("c")), pod("two", &claimed("c")));
        place.set_up(&keeper, &one).await;
        place.set_up(&keeper, &two).await;
        let count = |method: &str| {
            place.driver.calls().iter().filter(|call| call.starts_with(method)).count()
        };
        assert_eq!((count("NodeStage"), count("NodePublish")), (1, 2));
        place.tear_down(&keeper, &one).await;
        // A volume of another pod shows that this one could have been unstaged.
        place.server.bind("d", csi_source("vol-2"), json!({})).await;
        let other = pod("other", &claimed("d"));
        place.set_up(&keeper, &other).await;
        place.tear_down(&keeper, &other).await;
        let is_it = || async { count("NodeUnstageVolume vol-2") == 1 };
        place.server.eventually_is("unstaged", is_it).await;
        assert_eq!(count("NodeUnstageVolume vol-1"), 0);
        place.tear_down(&keeper, &two).await;
        place.released().await;
    });
}

#[test]
fn driver_that_goes_is_waited_for() {
    task::run(1, async {
        let place = Place::new("goes", Abilities::default()).await;
        place.describe(json!({})).await;
        let driver = place.driver.start();
        let keeper = place.keeper().await;
        place.registered(&keeper).await;
        place.server.bind("c", csi_source("vol-1"), json!({})).await;
        let pod = pod("p", &claimed("c"));
        place.set_up(&keeper, &pod).await;
        drop(driver);
        let is_gone = || async {
            let node = place.server.read(&CSI_NODES, "n").await;
            node["spec"]["drivers"].as_array().is_none_or(Vec::is_empty)
        };
        place.server.eventually_is("deregistered", is_gone).await;
        let ids = place.server.read(&NODES, "n").await["metadata"]["annotations"].clone();
        assert!(ids.get("csi.volume.kubernetes.io/nodeid").is_none(), "{ids}");
        let fault = keeper.volumes.tear_down(&pod.uid()).await.expect_err("no driver");
        let text = kubelet::causes::chain(&fault);
        assert!(text.ends_with("not found in the list of registered CSI drivers"), "{text}");
        while keeper.again.try_recv().is_ok() {}
        let _driver = place.driver.start();
        // The end of the pod is attempted at once.
        assert_eq!(keeper.again.recv().await.expect("a pod"), pod.uid());
        place.tear_down(&keeper, &pod).await;
        place.released().await;
    });
}

#[test]
fn inline_volumes_need_a_driver_that_has_them() {
    task::run(1, async {
        let abilities = Abilities { rpcs: vec![1, VOLUME_MOUNT_GROUP], ..Abilities::default() };
        let place = Place::new("inline", abilities).await;
        let _driver = place.driver.start();
        let keeper = place.keeper().await;
        place.registered(&keeper).await;
        let source = json!({"driver": DRIVER, "fsType": "ext4", "volumeAttributes": {"x": "y"}});
        let mut pod = Arc::unwrap_or_clone(pod("p", &json!({"name": "data", "csi": source})));
        let security = json!({"fsGroup": 4242});
        let security = serde_json::from_value(security).expect("a context");
        pod.spec.get_or_insert_default().security_context = Some(security);
        let pod = Arc::new(pod);
        assert!(keeper.volumes.set_up(&pod).await.expect("folders").is_some());
        assert!(!place.driver.calls().iter().any(|call| call.starts_with("Node")));
        let modes = json!(["Ephemeral"]);
        place.describe(json!({"podInfoOnMount": true, "volumeLifecycleModes": modes})).await;
        place.set_up(&keeper, &pod).await;
        let publish: api::NodePublishVolumeRequest = place.driver.request("NodePublishVolume");
        assert_eq!(publish.volume_context["csi.storage.k8s.io/ephemeral"], "true");
        assert_eq!(publish.volume_context["x"], "y");
        assert!(publish.staging_target_path.is_empty());
        let capability = publish.volume_capability.and_then(|c| c.access_type);
        let Some(api::volume_capability::AccessType::Mount(mount)) = capability else {
            panic!("no mount");
        };
        assert_eq!(mount.volume_mount_group, "4242");
        place.tear_down(&keeper, &pod).await;
        place.released().await;
        assert!(!place.driver.calls().iter().any(|call| call.starts_with("NodeStage")));
    });
}

#[test]
fn block_volumes_are_devices_of_containers() {
    task::run(1, async {
        let place = Place::new("block", Abilities::default()).await;
        place.describe(json!({})).await;
        let _driver = place.driver.start();
        let keeper = place.keeper().await;
        place.registered(&keeper).await;
        let mut source = csi_source("vol-1");
        source["volumeMode"] = json!("Block");
        place.server.bind("c", source, json!({})).await;
        let mut pod = Arc::unwrap_or_clone(pod("p", &claimed("c")));
        let device =
            json!({"name": "c", "volumeDevices": [{"name": "data", "devicePath": "/dev/data"}]});
        let container: kubelet::pod::Container =
            serde_json::from_value(device).expect("a container");
        pod.spec.get_or_insert_default().containers = vec![container.clone()];
        let pod = Arc::new(pod);
        place.set_up(&keeper, &pod).await;
        let publish: api::NodePublishVolumeRequest = place.driver.request("NodePublishVolume");
        let devices = place.folders.root.join("plugins/kubernetes.io/csi/volumeDevices");
        assert_eq!(Path::new(&publish.target_path), devices.join("publish/pv-c/uid-p"));
        assert_eq!(Path::new(&publish.staging_target_path), devices.join("staging/pv-c"));
        let link = place.folders.pod(&pod.uid()).join("volumeDevices/kubernetes.io~csi/pv-c");
        assert_eq!(fs::read_link(&link).expect("a link"), Path::new(&publish.target_path));
        let mounted = keeper.volumes.mounted(&pod.uid());
        let devices = volumes::devices(&mounted, &container).expect("devices");
        assert_eq!((&*devices[0].container_path, &*devices[0].permissions), ("/dev/data", "mrw"));
        assert_eq!(Path::new(&devices[0].host_path), link);
        place.tear_down(&keeper, &pod).await;
        place.released().await;
        let devices = place.folders.root.join("plugins/kubernetes.io/csi/volumeDevices");
        let is_left = |path: &str| devices.join(path).exists();
        let is_gone = || async { !is_left("pv-c") && !is_left("publish/pv-c") };
        place.server.eventually_is("gone", is_gone).await;
    });
}

#[test]
fn volume_that_has_grown_is_expanded() {
    task::run(1, async {
        let place = Place::new("grows", Abilities::default()).await;
        place.describe(json!({})).await;
        let _driver = place.driver.start();
        let keeper = place.keeper().await;
        place.registered(&keeper).await;
        place.server.bind("c", csi_source("vol-1"), json!({})).await;
        let pod = pod("p", &claimed("c"));
        place.set_up(&keeper, &pod).await;
        let size = Patch::Merge(json!({"spec": {"capacity": {"storage": "3Gi"}}}));
        let volumes = place.server.client.resource(&VOLUMES);
        volumes.patch::<Value>(&ObjectKey::cluster("pv-c"), &size).await.expect("patched");
        let pending = json!({"allocatedResources": {"storage": "2Gi"},
                             "allocatedResourceStatuses": {"storage": "NodeResizePending"}});
        place.server.set_status(&CLAIMS, "c", pending).await;
        place.set_up(&keeper, &pod).await;
        let expand: api::NodeExpandVolumeRequest = place.driver.request("NodeExpandVolume");
        assert_eq!(expand.capacity_range.expect("a size").required_bytes, 2 << 30);
        let status = place.server.read(&CLAIMS, "c").await["status"].clone();
        assert_eq!(status["capacity"]["storage"], "2Gi");
        assert!(status["allocatedResourceStatuses"].get("storage").is_none(), "{status}");
        place.tear_down(&keeper, &pod).await;
        place.released().await;
    });
}

#[test]
fn claims_lead_to_folders_of_the_machine() {
    task::run(1, async {
        let place = Place::new("local", Abilities::default()).await;
        let keeper = place.keeper().await;
        let data = place.folder.join("data");
        fs::create_dir_all(&data).expect("a folder");
        fs::write(data.join("file"), "kept").expect("a file");
        let host = json!({"hostPath": {"path": data, "type": "Directory"}});
        place.server.bind("h", host, json!({})).await;
        let pod_of_host = pod("h", &claimed("h"));
        place.set_up(&keeper, &pod_of_host).await;
        assert_eq!(keeper.volumes.mounted(&pod_of_host.uid())["data"].path, data);
        place.tear_down(&keeper, &pod_of_host).await;
        // A claim that is not there, and one of another pod.
        let absent = pod("a", &claimed("none"));
        assert!(keeper.volumes.set_up(&absent).await.expect("folders").is_some());
        let owner = json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p",
            "uid": "uid-p", "controller": true}]});
        let host = json!({"hostPath": {"path": data}});
        place.server.bind("p-data", host.clone(), owner).await;
        place.server.bind("q-data", host, json!({})).await;
        let template = json!({"spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}});
        let ephemeral = json!({"name": "data", "ephemeral": {"volumeClaimTemplate": template}});
        place.set_up(&keeper, &pod("p", &ephemeral)).await;
        assert!(keeper.volumes.set_up(&pod("q", &ephemeral)).await.expect("folders").is_some());
        if !rustix::process::geteuid().is_root() {
            return eprintln!("local volumes: only root mounts");
        }
        let local = json!({"local": {"path": data}, "nodeAffinity": {"required": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "place", "operator": "Exists"}]}]}}});
        let mut elsewhere = local.clone();
        let terms = &mut elsewhere["nodeAffinity"]["required"]["nodeSelectorTerms"];
        terms[0]["matchExpressions"][0]["key"] = json!("elsewhere");
        place.server.bind("e", elsewhere, json!({})).await;
        let of_other = pod("e", &claimed("e"));
        assert!(keeper.volumes.set_up(&of_other).await.expect("folders").is_some());
        assert!(keeper.volumes.mounted(&of_other.uid()).is_empty());
        place.server.bind("l", local, json!({})).await;
        let of_local = pod("l", &claimed("l"));
        place.set_up(&keeper, &of_local).await;
        let path = keeper.volumes.mounted(&of_local.uid())["data"].path.clone();
        assert_eq!(fs::read_to_string(path.join("file")).expect("a file"), "kept");
        // A kubelet that starts again finds it mounted, and ends it.
        drop(keeper);
        let keeper = place.keeper().await;
        place.set_up(&keeper, &of_local).await;
        place.tear_down(&keeper, &of_local).await;
        assert_eq!(fs::read_to_string(data.join("file")).expect("a file"), "kept");
    });
}

/// The driver in the machine, until dropped.
pub struct Process(Child);

impl Process {
    pub fn start(machine: &Machine) -> Process {
        let path = |name: &str| machine.folder.join(name).display().to_string();
        let program = std::env::current_exe().expect("this program");
        let child = std::process::Command::new("nsenter")
            .arg(format!("--mount={}", path("ns/mount")))
            .arg("--wdns=/")
            .arg(program)
            .args(["--exact", "csi_driver::driver_process"])
            .env(PROCESS[0], path("driver"))
            .env(PROCESS[1], path("kubelet"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        Process(child.expect("the driver"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn containers_have_a_drivers_volume() {
    let Some(_place) = place("csi") else { return };
    let machine = match Machine::start(format!("/tmp/kcsi{}", std::process::id()).into()) {
        Ok(machine) => machine,
        Err(Error::Missing(line)) => return eprintln!("csi: {line}"),
        Err(Error::Failed(text)) => panic!("{text}"),
    };
    task::run(1, async move {
        let server = Server::start().await;
        let spec = json!({"attachRequired": true, "podInfoOnMount": false});
        server.add(&CSI_DRIVERS, json!({"metadata": {"name": DRIVER}, "spec": spec})).await;
        server.bind("c", csi_source("vol-1"), json!({})).await;
        let driver = Process::start(&machine);
        let agent = Agent::start(&machine, &server.sandbox.kubeconfig());
        let script = "echo hello > /data/file; trap 'exit 0' TERM; while :; do sleep 0.1; done";
        let spec = json!({
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"fsGroup": 4242},
            "volumes": [claimed("c")],
            "containers": [{
                "name": "main", "image": "node.test/busybox:1", "command": ["sh", "-c", script],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                "readinessProbe": {"exec": {"command": ["test", "-e", "/data/file"]},
                                   "periodSeconds": 1, "timeoutSeconds": 60},
            }],
        });
        server.create("web", "n", json!({}), spec).await;
        // As a controller: it attaches what the Node says is in use.
        let in_use = || async {
            let node = server.read(&NODES, "n").await;
            let listed = node["status"]["volumesInUse"].as_array().cloned().unwrap_or_default();
            !listed.is_empty()
        };
        server.eventually_is("in use", in_use).await;
        server.attach("c", "vol-1").await;
        server.eventually("web", "ready", is_ready).await;
        let file = machine.folder.join("driver/volumes/vol-1/file");
        assert_eq!(fs::read_to_string(&file).expect("a file"), "hello\n");
        let group = std::os::unix::fs::MetadataExt::gid(&fs::metadata(&file).expect("a file"));
        assert_eq!(group, 4242, "the folder gives its group to new files");
        // Neither a new kubelet nor a new driver restarts a container.
        let before = running(&machine, &server.clock).await;
        drop(agent);
        drop(driver);
        let driver = Process::start(&machine);
        let agent = Agent::start(&machine, &server.sandbox.kubeconfig());
        let calls = || fs::read_to_string(machine.folder.join("driver/calls")).unwrap_or_default();
        let published = || async { calls().matches("NodePublishVolume").count() == 2 };
        server.eventually_is("published again", published).await;
        assert_eq!(running(&machine, &server.clock).await, before);
        // A pod that is deleted while there is no kubelet ends with the next one.
        drop(agent);
        server.delete("web", 1).await;
        let agent = Agent::start(&machine, &server.sandbox.kubeconfig());
        server.eventually("web", "gone", Value::is_null).await;
        let undone = || async { calls().contains("NodeUnstageVolume vol-1") };
        server.eventually_is("unstaged", undone).await;
        assert!(calls().contains("NodeUnpublishVolume vol-1"), "{}", calls());
        let free = || async { !in_use().await };
        server.eventually_is("free", free).await;
        assert_eq!(fs::read_to_string(&file).expect("a file"), "hello\n");
        drop((agent, driver));
    });
}

#[test]
fn volumes_say_what_they_hold() {
    task::run(1, async {
        let rpcs = vec![1, GET_VOLUME_STATS, 3];
        let place = Place::new("stats", Abilities { rpcs, ..Abilities::default() }).await;
        place.describe(json!({})).await;
        let _driver = place.driver.start();
        let keeper = place.keeper().await;
        place.registered(&keeper).await;
        place.server.bind("c", csi_source("vol-1"), json!({})).await;
        let pod = pod("p", &claimed("c"));
        place.set_up(&keeper, &pod).await;
        let pods = [pod.clone()];
        let (volumes, uid) = (&keeper.volumes, pod.uid());
        let is_measured = || async { !volumes.usage(&pods).await[&uid].is_empty() };
        place.server.eventually_is("measured", is_measured).await;
        // What is measured stays for the period: the fault does not happen.
        place.driver.plan("NodeGetVolumeStats", &[Fault::Before(Code::Internal)]);
        let usage = volumes.usage(&pods).await;
        assert!(!place.driver.is_done());
        let [volume] = &usage[&uid][..] else { panic!("{usage:?}") };
        assert_eq!((&*volume.name, volume.claim.as_deref()), ("data", Some("c")));
        let amounts = Amounts {
            capacity_bytes: 100,
            available_bytes: 70,
            used_bytes: 30,
            inodes: 10,
            inodes_free: 7,
            inodes_used: 3,
        };
        assert_eq!(volume.amounts, amounts);
        let request: api::NodeGetVolumeStatsRequest = place.driver.request("NodeGetVolumeStats");
        let path = volumes.mounted(&uid)["data"].path.clone();
        assert_eq!((&*request.volume_id, Path::new(&request.volume_path)), ("vol-1", &*path));
        let plugin = || format!("kubernetes.io/csi:{DRIVER}");
        let expected =
            ["actual_state_of_world", "desired_state_of_world"].map(|state| ((plugin(), state), 1));
        assert_eq!(volumes.counts(&pods), BTreeMap::from(expected));
        place.tear_down(&keeper, &pod).await;
        assert!(volumes.usage(&pods).await[&uid].is_empty());
        assert!(volumes.counts(&pods).is_empty());
    });
}

#[test]
fn csi_node_follows_the_volumes_that_the_node_may_have() {
    task::run(1, async {
        let place = Place::new("limit", Abilities { max_volumes: 7, ..Abilities::default() }).await;
        // The shortest period that the API server accepts.
        place.describe(json!({"nodeAllocatableUpdatePeriodSeconds": 10})).await;
        let _driver = place.driver.start();
        let keeper = place.keeper().await;
        place.registered(&keeper).await;
        let count = || async {
            let csi_node = place.server.read(&CSI_NODES, "n").await;
            csi_node["spec"]["drivers"][0]["allocatable"]["count"].clone()
        };
        assert_eq!(count().await, 7);
        place.driver.set_max_volumes(3);
        place.server.eventually_is("followed", || async { count().await == 3 }).await;
    });
}
