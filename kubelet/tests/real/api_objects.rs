//! ConfigMaps, Secrets, Services and tokens of an API server, for pods that it binds to the node.

use std::fs;
use std::time::Duration;

use async_channel::Receiver;
use futures_lite::FutureExt;
use kube_controller_manager::client::{Delete, Patch, pem};
use kube_controller_manager::objects::{ObjectKey, ResourceType};
use kube_controller_manager::task::{self, StopToken};
use kubelet::objects::folder::LocalObjects;
use kubelet::objects::{Kind, Objects, Use};
use kubelet::pod::{Pod, PodExt, Uid};
use sandbox::SandboxOptions;
use serde_json::{Value, json};

use super::api::{Agent, PATIENCE, Server, key, sleeps};
use super::machine::{Error, Machine};
use super::node::{Node, place};
use super::pods::{container, is_ready};
use super::registry;

const CONFIG_MAPS: ResourceType = ResourceType::fixed("", "v1", "ConfigMap", "configmaps", true);
const SECRETS: ResourceType = ResourceType::fixed("", "v1", "Secret", "secrets", true);
const ACCOUNTS: ResourceType =
    ResourceType::fixed("", "v1", "ServiceAccount", "serviceaccounts", true);
const SERVICES: ResourceType = ResourceType::fixed("", "v1", "Service", "services", true);
const CLASSES: ResourceType =
    ResourceType::fixed("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", false);
const BUNDLES: ResourceType = ResourceType::fixed(
    "certificates.k8s.io",
    "v1beta1",
    "ClusterTrustBundle",
    "clustertrustbundles",
    false,
);

impl Server {
    async fn make(&self, resource: &ResourceType, object: Value) {
        let namespace = if resource.namespaced { "default" } else { "" };
        let made = self.client.resource(resource).create::<Value>(namespace, &object).await;
        made.expect("created");
    }

    async fn change(&self, resource: &ResourceType, name: &str, change: Value) {
        let patch = Patch::Merge(change);
        let key = if resource.namespaced { key(name) } else { ObjectKey::cluster(name) };
        let changed = self.client.resource(resource).patch::<Value>(&key, &patch).await;
        changed.expect("changed");
    }

    /// What pods with tokens need in a namespace.
    pub async fn make_account(&self) {
        self.make(&ACCOUNTS, json!({"metadata": {"name": "default"}})).await;
        let data = json!({"ca.crt": "a certificate"});
        self.make(&CONFIG_MAPS, json!({"metadata": {"name": "kube-root-ca.crt"}, "data": data}))
            .await;
    }
}

/// A pod that the server has under this name, with another definition there: tokens are bound to it.
pub async fn pod(server: &Server, name: &str, spec: Value) -> Pod {
    let own = json!({"containers": [{"name": "c", "image": "i"}]});
    server.create(name, "n", json!({}), own).await;
    let uid = server.pod(name).await["metadata"]["uid"].clone();
    let pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": uid,
                     "annotations": {"kubernetes.io/config.source": "api"}},
        "spec": spec,
    });
    serde_json::from_value(pod).expect("a pod")
}

/// Waits until a pod has to be synced again; there is one alone.
async fn again(pods: &Receiver<Uid>, server: &Server) {
    let late = async {
        server.clock.sleep(PATIENCE).await;
        panic!("the pod is not synced again");
    };
    let synced = async { drop(pods.recv().await.expect("a pod")) };
    synced.or(late).await;
}

#[test]
fn objects_are_followed_from_their_absence_to_their_removal() {
    task::run(1, async {
        let server = Server::start_with(|options| options).await;
        server.make_account().await;
        let (sender, pods) = async_channel::unbounded();
        let stop = StopToken::new();
        let objects = Objects::new(LocalObjects::default(), server.clock.clone());
        let minute = Duration::from_secs(60);
        let objects = objects.with_server(&server.client, sender, minute, &stop);
        let spec = json!({
            "serviceAccountName": "default",
            "containers": [{"name": "c", "envFrom": [{"secretRef": {"name": "s"}}]}],
            "volumes": [{"name": "v", "projected": {"sources": [
                {"secret": {"name": "s"}}, {"serviceAccountToken": {"path": "t"}}]}}],
        });
        let pod = pod(&server, "p", spec).await;
        let text = async || {
            let found = objects.read(&pod, Use::Volumes).await;
            match found.get(Kind::Secret, "default", "s") {
                Ok(secret) => String::from_utf8(secret.data["k"].clone()).expect("text"),
                Err(error) => error.to_string(),
            }
        };
        assert_eq!(text().await, "object \"default\"/\"s\" not registered");
        objects.follow(&pod);
        assert_eq!(text().await, "secret \"s\" not found");
        while pods.try_recv().is_ok() {}
        server.make(&SECRETS, json!({"metadata": {"name": "s"}, "stringData": {"k": "1"}})).await;
        again(&pods, &server).await;
        assert_eq!(text().await, "1");
        server.change(&SECRETS, "s", json!({"stringData": {"k": "2"}})).await;
        again(&pods, &server).await;
        assert_eq!(text().await, "2");
        let delete = server.client.resource(&SECRETS).delete(&key("s"), Delete::new()).await;
        delete.expect("deleted");
        again(&pods, &server).await;
        assert_eq!(text().await, "secret \"s\" not found");
        let immutable =
            json!({"metadata": {"name": "s"}, "immutable": true, "stringData": {"k": "3"}});
        server.make(&SECRETS, immutable).await;
        again(&pods, &server).await;
        assert_eq!(text().await, "3");
        // A token is bound to the pod, and kept.
        let source =
            pod.spec().volumes.iter().flatten().next().expect("a volume").projected.clone();
        let source = source.and_then(|volume| volume.sources).expect("sources").remove(1);
        let source = source.service_account_token.expect("a token");
        let token = async || {
            let found = objects.read(&pod, Use::Volumes).await;
            found.token(&source).expect("a token").to_owned()
        };
        let first = token().await;
        assert_eq!(first.split('.').count(), 3, "{first}");
        assert_eq!(token().await, first);
        // Services and classes.
        let services = objects.service_variables(&pod).await.expect("variables");
        assert!(services.iter().any(|(name, _)| name == "KUBERNETES_SERVICE_HOST"), "{services:?}");
        let mut classy = pod.clone();
        classy.spec.get_or_insert_default().runtime_class_name = Some("kata".to_owned());
        objects.follow(&classy);
        let handler = async || objects.handler(&classy).await.map_err(|error| error.to_string());
        let absent = "runtimeclass.node.k8s.io \"kata\" not found";
        assert_eq!(handler().await, Err(absent.to_owned()));
        server.make(&CLASSES, json!({"metadata": {"name": "kata"}, "handler": "k"})).await;
        again(&pods, &server).await;
        assert_eq!(handler().await, Ok("k".to_owned()));
        // With the server away, what is known stays.
        server.sandbox.stop().await;
        assert_eq!(text().await, "3");
        assert_eq!(token().await, first);
        objects.forget(&pod.uid());
        assert_eq!(text().await, "object \"default\"/\"s\" not registered");
        stop.stop();
    });
}

/// A server that also serves ClusterTrustBundles.
async fn server_with_bundles() -> Server {
    Server::start_with(|options| SandboxOptions { all_versions: true, ..options }).await
}

/// The spec of a bundle of these certificates, which need no content, and what a volume has of it.
fn anchors(certificates: &[&str]) -> (Value, String) {
    let text = certificates.iter().map(|text| pem::certificate_text(text.as_bytes()));
    let text: String = text.collect();
    (json!({"trustBundle": text}), text)
}

#[test]
fn bundles_are_watched_while_pods_need_them() {
    task::run(1, async {
        let server = server_with_bundles().await;
        server.make_account().await;
        let (sender, pods) = async_channel::unbounded();
        let (stop, minute) = (StopToken::new(), Duration::from_secs(60));
        let objects = Objects::new(LocalObjects::default(), server.clock.clone());
        let objects = objects.with_server(&server.client, sender, minute, &stop);
        let objects = objects.with_trust_bundles(&server.client.named("bundles"), &stop);
        let requests = || server.sandbox.traffic().of("bundles");
        let watches = || requests().get("watch").map_or(0, |count| count.requests);
        let with_source = |source: Value| {
            json!({
                "containers": [{"name": "c"}],
                "volumes": [{"name": "v", "projected": {"sources": [source]}}],
            })
        };
        let source = json!({"name": "ca", "path": "ca"});
        let own = pod(&server, "own", with_source(json!({"clusterTrustBundle": source}))).await;
        let other = pod(&server, "other", with_source(json!({"configMap": {"name": "m"}}))).await;
        let source = serde_json::from_value(source).expect("a source");
        let text = async || {
            let found = objects.read(&own, Use::Volumes).await.trust_anchors(&source);
            found.unwrap_or_else(|error| error.to_string())
        };
        // A node without such pods sends nothing.
        objects.follow(&other);
        let found = objects.read(&other, Use::Volumes).await;
        assert!(found.get(Kind::ConfigMap, "default", "m").is_err());
        assert!(requests().is_empty());
        objects.forget(&other.uid());
        while pods.try_recv().is_ok() {}
        objects.follow(&own);
        // The bundles are listed.
        again(&pods, &server).await;
        let absent = "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io \
                      \"ca\" not found";
        assert_eq!(text().await, absent);
        let (spec, expected) = anchors(&["1"]);
        server.make(&BUNDLES, json!({"metadata": {"name": "ca"}, "spec": spec})).await;
        again(&pods, &server).await;
        assert_eq!(text().await, expected);
        let (spec, expected) = anchors(&["2"]);
        server.change(&BUNDLES, "ca", json!({"spec": spec})).await;
        again(&pods, &server).await;
        assert_eq!(text().await, expected);
        let (verbs, ca) = (server.client.resource(&BUNDLES), ObjectKey::cluster("ca"));
        verbs.delete(&ca, Delete::new()).await.expect("deleted");
        again(&pods, &server).await;
        assert_eq!(text().await, absent);
        assert_eq!(watches(), 1);
        // The last pod ends, and another one needs the bundles later.
        objects.forget(&own.uid());
        assert_eq!(text().await, "ClusterTrustBundle informer has not yet synced");
        objects.follow(&own);
        again(&pods, &server).await;
        assert_eq!(text().await, absent);
        let (spec, expected) = anchors(&["3"]);
        server.make(&BUNDLES, json!({"metadata": {"name": "ca"}, "spec": spec})).await;
        again(&pods, &server).await;
        assert_eq!(text().await, expected);
        assert_eq!(watches(), 2);
        stop.stop();
    });
}

#[test]
fn bundles_of_a_server_without_them_are_not_supported() {
    task::run(1, async {
        let server = Server::start_with(|options| options).await;
        server.make_account().await;
        let (sender, _pods) = async_channel::unbounded();
        let (stop, minute) = (StopToken::new(), Duration::from_secs(60));
        let objects = Objects::new(LocalObjects::default(), server.clock.clone());
        let objects = objects.with_server(&server.client, sender, minute, &stop);
        let objects = objects.with_trust_bundles(&server.client, &stop);
        let source = json!({"name": "ca", "path": "ca", "optional": true});
        let spec = json!({
            "containers": [{"name": "c"}],
            "volumes": [{"name": "v", "projected": {"sources": [{"clusterTrustBundle": source}]}}],
        });
        let pod = pod(&server, "p", spec).await;
        objects.follow(&pod);
        let source = serde_json::from_value(source).expect("a source");
        let end = server.clock.monotonic() + PATIENCE;
        let fault = loop {
            let found = objects.read(&pod, Use::Volumes).await.trust_anchors(&source);
            let fault = found.expect_err("no bundles").to_string();
            // The server has not answered yet.
            let waits = fault == "ClusterTrustBundle informer has not yet synced";
            if !waits || server.clock.monotonic() >= end {
                break fault;
            }
        };
        assert_eq!(fault, "ClusterTrustBundle projection is not supported in static kubelet mode");
        stop.stop();
    });
}

#[test]
fn pods_get_bundles_and_their_changes() {
    let Some(node) = Node::start("bundles") else { return };
    task::run(1, async move {
        let server = server_with_bundles().await;
        server.make_account().await;
        let signed = |name: &str, certificate: &str| {
            let mut spec = anchors(&[certificate]).0;
            spec["signerName"] = json!("node.test/signer");
            let name = format!("node.test:signer:{name}");
            json!({"metadata": {"name": name, "labels": {"live": "yes"}}, "spec": spec})
        };
        server.make(&BUNDLES, signed("a", "a")).await;
        let out = node.folder.join("out");
        let sources = json!([
            {"clusterTrustBundle": {"name": "ca", "path": "named"}},
            {"clusterTrustBundle": {"name": "none", "path": "none", "optional": true}},
            {"clusterTrustBundle": {"signerName": "node.test/signer", "path": "signed",
                                    "labelSelector": {"matchLabels": {"live": "yes"}}}},
        ]);
        let mut spec = sleeps();
        spec["volumes"] = json!([
            {"name": "ca", "projected": {"sources": sources}},
            {"name": "out", "hostPath": {"path": out, "type": "DirectoryOrCreate"}},
        ]);
        let container = &mut spec["containers"][0];
        container["volumeMounts"] = json!([
            {"name": "ca", "mountPath": "/ca"}, {"name": "out", "mountPath": "/out"},
        ]);
        container["command"] = json!(["sh", "-c", "while sleep 1; do cp /ca/* /out; done"]);
        server.create("p", "n", json!({}), spec).await;
        let gates = "featureGates: {ClusterTrustBundle: true, ClusterTrustBundleProjection: true}";
        let agent = Agent::start_with(&node, &server.sandbox.kubeconfig(), gates);
        // One of the bundles comes later.
        let absent = "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io";
        eventually(&server, &node, || node.log().contains(absent)).await;
        let (spec, named) = anchors(&["1", "1"]);
        server.make(&BUNDLES, json!({"metadata": {"name": "ca"}, "spec": spec})).await;
        server.eventually("p", "ready", is_ready).await;
        let read = |name: &str| fs::read_to_string(out.join(name)).unwrap_or_default();
        let [one, a, b] = ["1", "a", "b"].map(|text| anchors(&[text]).1);
        assert_eq!(named, one.repeat(2));
        eventually(&server, &node, || read("named") == one && read("signed") == a).await;
        assert!(out.join("none").exists() && read("none").is_empty());
        // Changes arrive: a bundle that comes, and another one that goes.
        server.make(&BUNDLES, signed("b", "b")).await;
        let both = [format!("{a}{b}"), format!("{b}{a}")];
        eventually(&server, &node, || both.contains(&read("signed"))).await;
        server
            .change(&BUNDLES, "node.test:signer:a", json!({"metadata": {"labels": {"live": "no"}}}))
            .await;
        eventually(&server, &node, || read("signed") == b).await;
        drop(agent);
    });
}

/// Writes what it sees below `/out`, its files again each second, and ends when it is asked to.
const SCRIPT: &str = "rm -f /out/end; env | sort > /out/env; \
    for file in token ca.crt namespace; do \
    cat /var/run/secrets/kubernetes.io/serviceaccount/$file > /out/$file; done; \
    stat -L -c '%a %u %g' /config/color > /out/mode; touch /out/done; \
    trap 'exit 0' TERM; while ! test -e /out/end; do cat /config/color > /out/color; \
    cat /part > /out/part; sleep 1; done";

#[test]
fn pods_of_the_server_get_its_objects() {
    let Some(_place) = place("api_objects") else { return };
    let machine = match Machine::start(format!("/tmp/kobj{}", std::process::id()).into()) {
        Ok(machine) => machine,
        Err(Error::Missing(line)) => return eprintln!("api_objects: {line}"),
        Err(Error::Failed(text)) => panic!("{text}"),
    };
    task::run(1, async move {
        let server = Server::start_with(|options| options).await;
        server.make_account().await;
        let map = json!({"metadata": {"name": "app"}, "data": {"color": "red"}});
        server.make(&CONFIG_MAPS, map).await;
        let ports = json!([{"name": "http", "port": 80}]);
        let web = json!({"metadata": {"name": "my-web"},
                         "spec": {"clusterIP": "10.96.7.7", "ports": ports}});
        server.make(&SERVICES, web).await;
        let out = machine.folder.join("out");
        let spec = json!({
            "terminationGracePeriodSeconds": 1,
            "volumes": [
                {"name": "config", "configMap": {"name": "app"}},
                {"name": "out", "hostPath": {"path": out, "type": "DirectoryOrCreate"}},
            ],
            "containers": [{
                "name": "main", "image": "node.test/busybox:1", "command": ["sh", "-c", SCRIPT],
                "env": [
                    {"name": "COLOR", "valueFrom": {"configMapKeyRef": {"name": "app", "key": "color"}}},
                    {"name": "NONE", "valueFrom": {"configMapKeyRef":
                        {"name": "none", "key": "k", "optional": true}}},
                    {"name": "URL", "value": "http://$(MY_WEB_SERVICE_HOST)"},
                ],
                "envFrom": [{"secretRef": {"name": "late"}}],
                "volumeMounts": [
                    {"name": "config", "mountPath": "/config"},
                    {"name": "config", "mountPath": "/part", "subPath": "color"},
                    {"name": "out", "mountPath": "/out"},
                ],
                "readinessProbe": {
                    "exec": {"command": ["test", "-e", "/out/done"]},
                    "periodSeconds": 1, "timeoutSeconds": 60,
                },
            }],
        });
        server.create("p", "n", json!({}), spec).await;
        let agent = Agent::start(&machine, &server.sandbox.kubeconfig());
        // The Secret comes later.
        let waits = |pod: &Value| {
            let waiting = &container(pod)["state"]["waiting"];
            waiting["reason"] == "CreateContainerConfigError"
                && waiting["message"] == "secret \"late\" not found"
        };
        server.eventually("p", "waiting", waits).await;
        let secret = json!({"metadata": {"name": "late"}, "stringData": {"PASSWORD": "s3cret"}});
        server.make(&SECRETS, secret).await;
        server.eventually("p", "ready", is_ready).await;
        let read = |name: &str| fs::read_to_string(out.join(name)).unwrap_or_default();
        let env = read("env");
        for line in [
            "COLOR=red",
            "PASSWORD=s3cret",
            "URL=http://10.96.7.7",
            "MY_WEB_SERVICE_PORT_HTTP=80",
            "KUBERNETES_SERVICE_HOST=10.96.0.1",
        ] {
            assert!(env.lines().any(|other| other == line), "{line}: {env}");
        }
        assert!(!env.contains("NONE="), "{env}");
        assert_eq!(read("token").split('.').count(), 3, "{}", machine.log());
        assert_eq!((&*read("ca.crt"), &*read("namespace")), ("a certificate", "default"));
        assert_eq!(read("mode"), "644 0 0\n");
        // A change reaches the volume, but not what is mounted of a part of it.
        server.change(&CONFIG_MAPS, "app", json!({"data": {"color": "blue"}})).await;
        eventually(&server, &machine, || read("color") == "blue").await;
        assert_eq!(read("part"), "red");
        // With the server away, containers continue, and are started again with what is known.
        server.sandbox.stop().await;
        fs::remove_file(out.join("env")).expect("a file");
        fs::write(out.join("end"), "").expect("a file");
        eventually(&server, &machine, || read("env").contains("COLOR=blue")).await;
        assert!(read("env").contains("PASSWORD=s3cret"));
        drop(agent);
    });
}

#[test]
fn images_of_a_secret_are_there_for_pods_with_its_credentials() {
    let Some(node) = Node::start("pull-records") else { return };
    // user:secret
    registry::start(&node, &["app"], Some("dXNlcjpzZWNyZXQ="));
    task::run(1, async move {
        let server = Server::start().await;
        let auths = json!({"auths": {registry::ADDRESS: {"auth": "dXNlcjpzZWNyZXQ="}}});
        for name in ["first", "second"] {
            let secret = json!({
                "metadata": {"name": name}, "type": "kubernetes.io/dockerconfigjson",
                "stringData": {".dockerconfigjson": auths.to_string()},
            });
            server.make(&SECRETS, secret).await;
        }
        let create = async |name: &str, secret: &str, policy: &str| {
            let mut spec = sleeps();
            spec["imagePullSecrets"] = json!([{"name": secret}]);
            spec["containers"][0]["image"] = json!(format!("{}/app:1", registry::ADDRESS));
            spec["containers"][0]["imagePullPolicy"] = json!(policy);
            server.create(name, "n", json!({}), spec).await;
        };
        let kubeconfig = server.sandbox.kubeconfig();
        let agent = Agent::start(&node, &kubeconfig);
        create("a", "first", "IfNotPresent").await;
        server.eventually("a", "ready", is_ready).await;
        create("b", "none", "IfNotPresent").await;
        let waits = |pod: &Value, reasons: &[&str]| {
            let reason = container(pod)["state"]["waiting"]["reason"].as_str();
            reasons.contains(&reason.unwrap_or_default())
        };
        let refused = |pod: &Value| waits(pod, &["ErrImagePull", "ImagePullBackOff"]);
        server.eventually("b", "refused by the registry", refused).await;
        create("c", "none", "Never").await;
        server.eventually("c", "refused", |pod| waits(pod, &["ErrImageNeverPull"])).await;
        // The records of one process hold for the next one.
        drop(agent);
        let agent = Agent::start(&node, &kubeconfig);
        create("d", "second", "Never").await;
        server.eventually("d", "ready", is_ready).await;
        let records = node.folder.join("kubelet/image_manager/pulled");
        let records = fs::read_dir(records).expect("a folder").flatten();
        let records = records.map(|file| fs::read_to_string(file.path()).expect("a record"));
        let records: Vec<String> = records.collect();
        let names = ["\"name\":\"first\"", "\"name\":\"second\""];
        assert!(names.iter().all(|name| records.concat().contains(name)), "{records:?}");
        drop(agent);
    });
}

pub async fn eventually(server: &Server, machine: &Machine, is_so: impl Fn() -> bool) {
    let end = server.clock.monotonic() + PATIENCE;
    while !is_so() {
        assert!(server.clock.monotonic() < end, "{}", machine.log());
        server.clock.sleep(Duration::from_millis(200)).await;
    }
}
