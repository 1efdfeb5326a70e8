//! A Deployment that is rolled through on real containers: their environment has the Services, a
//! ConfigMap and a Secret, and they have files of these, a token, and a volume of a CSI driver.

use std::fs;
use std::path::Path;

use futures_lite::future::block_on;
use kube_controller_manager::client::{ListOptions, Patch};
use kube_controller_manager::objects::{ObjectKey, Pod, Resource, ResourceType};
use kube_controller_manager::options::Options;
use serde_json::{Value, json};

use super::api::{Agent, PATIENCE, key, running};
use super::cluster_server::ClusterServer;
use super::csi::Process;
use super::csi_driver::DRIVER;
use super::node::Node;
use super::pods::is_ready;

const DEPLOYMENTS: ResourceType =
    ResourceType::fixed("apps", "v1", "Deployment", "deployments", true);
const CLAIMS: ResourceType =
    ResourceType::fixed("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", true);
const ACCOUNTS: ResourceType =
    ResourceType::fixed("", "v1", "ServiceAccount", "serviceaccounts", true);
const SLICES: ResourceType =
    ResourceType::fixed("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", true);
const REVIEWS: ResourceType =
    ResourceType::fixed("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", false);

const CONTROLLERS: [&str; 7] = [
    "deployment-controller",
    "endpointslice-controller",
    "node-lifecycle-controller",
    "persistentvolume-binder-controller",
    "replicaset-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
];

const REPLICAS: usize = 2;

/// Writes what it sees into the volume, below its pod's name, and serves.
const SCRIPT: &str = "mkdir -p /data/$POD; cd /data/$POD; env | sort > env; \
    cat /config/color > color; cat /secret/password > password; \
    cat /var/run/secrets/kubernetes.io/serviceaccount/token > token; \
    cat /tokens/vault > vault; touch /tmp/ready; trap 'exit 0' TERM; sleep 1000000 & wait";

/// What the pods refer to.
fn objects() -> Vec<Value> {
    let labels = json!({"app": "web"});
    let map = |name: &str, color: &str| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
            "data": {"color": color},
        })
    };
    let source = json!({"driver": DRIVER, "volumeHandle": "vol-1", "fsType": "ext4"});
    vec![
        map("app-1", "red"),
        map("app-2", "blue"),
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "app"},
            "stringData": {"password": "s3cret"},
        }),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
            "spec": {"clusterIP": "10.96.7.7", "selector": labels,
                     "ports": [{"name": "http", "port": 80}]},
        }),
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER},
            "spec": {"attachRequired": false},
        }),
        json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv"},
            "spec": {"accessModes": ["ReadWriteMany"], "capacity": {"storage": "1Gi"},
                     "claimRef": {"namespace": "default", "name": "data"}, "csi": source},
        }),
        json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
            "spec": {"accessModes": ["ReadWriteMany"], "volumeName": "pv", "storageClassName": "",
                     "resources": {"requests": {"storage": "1Gi"}}},
        }),
    ]
}

/// The pods' template; `version` is in their environment, and chooses the ConfigMap.
fn template(version: &str) -> Value {
    let map = format!("app-{version}");
    let mounts = json!([
        {"name": "config", "mountPath": "/config"}, {"name": "secret", "mountPath": "/secret"},
        {"name": "tokens", "mountPath": "/tokens"}, {"name": "data", "mountPath": "/data"},
    ]);
    json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {
            "terminationGracePeriodSeconds": 5,
            "volumes": [
                {"name": "config", "configMap": {"name": map}},
                {"name": "secret", "secret": {"secretName": "app"}},
                {"name": "tokens", "projected": {"sources": [
                    {"serviceAccountToken": {"audience": "vault", "path": "vault"}}]}},
                {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
            ],
            "containers": [{
                "name": "web", "image": "node.test/busybox:1", "command": ["sh", "-c", SCRIPT],
                "env": [
                    {"name": "VERSION", "value": version},
                    {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    {"name": "COLOR", "valueFrom": {
                        "configMapKeyRef": {"name": map, "key": "color"}}},
                ],
                "envFrom": [{"prefix": "SECRET_", "secretRef": {"name": "app"}}],
                "volumeMounts": mounts,
                "readinessProbe": {
                    "exec": {"command": ["test", "-e", "/tmp/ready"]},
                    "periodSeconds": 1, "timeoutSeconds": 60,
                },
            }],
        },
    })
}

fn deployment() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {
            "replicas": REPLICAS, "selector": {"matchLabels": {"app": "web"}},
            "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": template("1"),
        },
    })
}

struct Rollout<'a> {
    server: &'a ClusterServer,
    node: &'a Node,
}

impl Rollout<'_> {
    async fn pods(&self) -> Vec<Value> {
        let pods = self.server.client.resource(&Pod::RESOURCE);
        pods.list(Some("default"), &ListOptions::default()).await.expect("a list").items
    }

    async fn change(&self, spec: Value) {
        let deployments = self.server.client.resource(&DEPLOYMENTS);
        let change = Patch::StrategicMerge(json!({"spec": spec}));
        deployments.patch::<Value>(&key("web"), &change).await.expect("changed");
    }

    /// Waits until all pods are of the last template and ready, and the others are gone. `least`:
    /// pods that are available meanwhile.
    async fn complete(&self, least: u64) -> Vec<Value> {
        let end = self.server.clock.monotonic() + PATIENCE;
        loop {
            let deployments = self.server.client.resource(&DEPLOYMENTS);
            let found: Value = deployments.get(&key("web")).await.expect("a Deployment");
            let (status, all) = (&found["status"], REPLICAS as u64);
            let count = |name: &str| status[name].as_u64().unwrap_or_default();
            assert!(count("availableReplicas") >= least, "{found:#}\n{}", self.node.log());
            let counts = ["replicas", "updatedReplicas", "availableReplicas"].map(count);
            let pods = self.pods().await;
            let is_observed = status["observedGeneration"] == found["metadata"]["generation"];
            if is_observed && counts == [all; 3] && pods.len() == REPLICAS {
                assert!(pods.iter().all(is_ready), "{pods:#?}");
                return pods;
            }
            assert!(self.server.clock.monotonic() < end, "{found:#}\n{}", self.node.log());
            self.server.clock.sleep(std::time::Duration::from_millis(200)).await;
        }
    }

    /// Checks what a pod of a version has written into its driver's volume.
    async fn check(&self, volume: &Path, pod: &Value, version: &str, color: &str) {
        let name = pod["metadata"]["name"].as_str().expect("a name");
        let read = |file: &str| {
            let path = volume.join(name).join(file);
            fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        let env = read("env");
        for line in [
            format!("VERSION={version}"),
            format!("COLOR={color}"),
            "SECRET_password=s3cret".to_owned(),
            "WEB_SERVICE_HOST=10.96.7.7".to_owned(),
            "WEB_SERVICE_PORT_HTTP=80".to_owned(),
            "KUBERNETES_SERVICE_PORT=443".to_owned(),
        ] {
            assert!(env.lines().any(|other| other == line), "{line}: {env}");
        }
        assert_eq!((read("color").as_str(), read("password").as_str()), (color, "s3cret"));
        // Both tokens are bound to the pod, each for its own audience.
        for (file, audiences) in [("token", json!([])), ("vault", json!(["vault"]))] {
            let review = json!({
                "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
                "spec": {"token": read(file), "audiences": audiences},
            });
            let reviews = self.server.client.resource(&REVIEWS);
            let answer: Value = reviews.create("", &review).await.expect("an answer");
            let status = &answer["status"];
            assert_eq!(status["authenticated"], true, "{file} of {name}: {answer:#}");
            assert_eq!(status["user"]["username"], "system:serviceaccount:default:default");
            let of_pod = &status["user"]["extra"]["authentication.kubernetes.io/pod-name"];
            assert_eq!(of_pod[0], name, "{answer:#}");
        }
    }

    /// Waits until the Service leads to these pods alone.
    async fn leads_to(&self, pods: &[Value]) {
        let mut wanted: Vec<&str> =
            pods.iter().filter_map(|pod| pod["status"]["podIP"].as_str()).collect();
        wanted.sort_unstable();
        let end = self.server.clock.monotonic() + PATIENCE;
        loop {
            let slices = self.server.client.resource(&SLICES);
            let listed = slices.list::<Value>(Some("default"), &ListOptions::default()).await;
            let slices = listed.expect("a list").items;
            let of_web = slices
                .iter()
                .filter(|slice| slice["metadata"]["labels"]["kubernetes.io/service-name"] == "web")
                .flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten());
            let ready = of_web.filter(|endpoint| endpoint["conditions"]["ready"] == true);
            let mut found: Vec<&str> =
                ready.filter_map(|endpoint| endpoint["addresses"][0].as_str()).collect();
            found.sort_unstable();
            if found == wanted {
                return;
            }
            assert!(self.server.clock.monotonic() < end, "{wanted:?}: {slices:#?}");
            self.server.clock.sleep(std::time::Duration::from_millis(200)).await;
        }
    }
}

#[test]
fn deployment_is_rolled_through() {
    let Some(node) = Node::start("rollout") else { return };
    block_on(async move {
        let (cluster, volumes) = (node.folder.join("cluster"), node.folder.join("volumes"));
        let options = Options::default();
        let server = ClusterServer::embedded(&cluster, &volumes, &CONTROLLERS, options).await;
        server.eventually((&ACCOUNTS, &key("default")), "there", Value::is_object).await;
        server.create(&objects(), "default").await;
        let is_bound = |claim: &Value| claim["status"]["phase"] == "Bound";
        server.eventually((&CLAIMS, &key("data")), "bound", is_bound).await;
        let driver = Process::start(&node);
        let agent = Agent::start(&node, &server.node_kubeconfig);
        let this = ObjectKey::cluster("n");
        let csi_nodes = ResourceType::fixed("storage.k8s.io", "v1", "CSINode", "csinodes", false);
        let has_driver = |node: &Value| node["spec"]["drivers"][0]["name"] == DRIVER;
        server.eventually((&csi_nodes, &this), "with its driver", has_driver).await;

        let rollout = Rollout { server: &server, node: &node };
        server.create(&[deployment()], "default").await;
        let volume = node.folder.join("driver/volumes/vol-1");
        let calls = |method: &str| {
            let text = fs::read_to_string(node.folder.join("driver/calls")).unwrap_or_default();
            text.lines().filter(|line| line.starts_with(method)).count()
        };
        let first = rollout.complete(0).await;
        for pod in &first {
            rollout.check(&volume, pod, "1", "red").await;
        }
        rollout.leads_to(&first).await;
        // Both pods have the volume of one stage.
        assert_eq!((calls("NodeStageVolume"), calls("NodeUnstageVolume")), (1, 0));

        rollout.change(json!({"template": template("2")})).await;
        let second = rollout.complete(REPLICAS as u64).await;
        let name = |pod: &Value| pod["metadata"]["name"].clone();
        assert!(second.iter().all(|pod| !first.iter().any(|old| name(old) == name(pod))));
        for pod in &second {
            rollout.check(&volume, pod, "2", "blue").await;
        }
        rollout.leads_to(&second).await;
        assert_eq!((calls("NodeStageVolume"), calls("NodeUnstageVolume")), (1, 0));
        assert_eq!(running(&node, &server.clock).await.len(), REPLICAS);
        for pod in &second {
            assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0, "{pod:#}");
        }

        // Nothing of them stays behind.
        rollout.change(json!({"replicas": 0})).await;
        let end = server.clock.monotonic() + PATIENCE;
        let pods = node.folder.join("kubelet/pods");
        let is_left = async || {
            !rollout.pods().await.is_empty()
                || fs::read_dir(&pods).is_ok_and(|pods| pods.count() > 0)
                || calls("NodeUnstageVolume") == 0
        };
        while is_left().await {
            assert!(server.clock.monotonic() < end, "{}", node.log());
            server.clock.sleep(std::time::Duration::from_millis(200)).await;
        }
        assert_eq!(calls("NodeUnpublishVolume"), 2 * REPLICAS);
        assert_eq!(running(&node, &server.clock).await, [""; 0]);
        rollout.leads_to(&[]).await;
        // The data outlives its pods.
        for pod in first.iter().chain(&second) {
            assert!(volume.join(name(pod).as_str().expect("a name")).join("env").exists());
        }
        drop((agent, driver));
        server.stop().await;
    });
}
