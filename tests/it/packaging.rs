//! The manifests in `deploy/` run a working manager.

use std::path::Path;

use kube_controller_manager::client::{Client, Config};
use kube_controller_manager::objects::{Deployment, ObjectKey, Resource};
use sandbox::cluster::{Manager, free_port};
use sandbox::demo;
use serde_json::{Value, json};

use crate::env::*;
use crate::kinds::{ACCOUNTS, wait_until_exists};

/// The flags of a container, whose files are those of the test's cluster.
fn flags(container: &Value, kubeconfig: &Path) -> Vec<String> {
    let of = |field: &str| container[field].as_array().cloned().unwrap_or_default();
    let words = [of("command"), of("args")].concat();
    let words = words.iter().map(|word| word.as_str().expect("a text").to_owned());
    let here = |flag: String| {
        let Some((name, path)) = flag.split_once("=/") else { return flag };
        let file = match path.rsplit('/').next().unwrap_or(path) {
            "controller-manager.conf" => kubeconfig.to_owned(),
            "tls.crt" | "front-proxy-ca.crt" => kubeconfig.with_file_name("ca.crt"),
            "tls.key" => kubeconfig.with_file_name("ca.key"),
            name => kubeconfig.with_file_name(name),
        };
        assert!(file.exists(), "{flag}: {} is not there", file.display());
        format!("{name}={}", file.display())
    };
    words.filter(|word| word.starts_with("--")).map(here).collect()
}

/// Starts a manager with these flags, and waits until its probes are answered.
async fn started(env: &TestCluster, container: &Value, kubeconfig: &Path) -> Manager {
    let port = free_port().expect("a port");
    let mut flags = flags(container, kubeconfig);
    flags.extend(quick_election());
    flags.push(format!("--secure-port={port}"));
    let manager = Manager::spawn(&manager_program(), kubeconfig, "packaged", &flags);
    let manager = manager.expect("the manager starts");
    let mut config = Config::new(format!("https://127.0.0.1:{port}"));
    config.tls.insecure = true;
    let kubelet = Client::new(config, env.clock.clone()).expect("a client");
    let probes = ["startupProbe", "livenessProbe", "readinessProbe"];
    for probe in probes.map(|name| &container[name]["httpGet"]).into_iter().filter(|p| !p.is_null())
    {
        assert_eq!(probe["scheme"], "HTTPS");
        let path = probe["path"].as_str().expect("a path");
        eventually(&env.clock, &format!("{path} is answered"), || async {
            kubelet.get_path(path).await.map(drop).map_err(|error| error.to_string())
        })
        .await;
    }
    manager
}

/// Stops it as a kubelet does, and asserts that no request of it was refused.
async fn ended(env: &TestCluster, manager: Manager) {
    let log = manager.log.clone();
    let status = manager.stop(&env.clock, PATIENCE).await.expect("it ended");
    let log = std::fs::read_to_string(log).expect("a log");
    let refused: Vec<&str> = log.lines().filter(|line| line.contains("orbidden")).collect();
    assert!(status.success() && refused.is_empty(), "{status} {refused:#?}");
}

#[test]
fn the_static_pod_of_kubeadm_runs_a_manager() {
    let text = include_str!("../../deploy/kubeadm/kube-controller-manager.yaml");
    let pod = demo::parse("the static pod", text).expect("YAML").remove(0);
    let patch =
        include_str!("../../deploy/kubeadm/patches/kube-controller-manager0+strategic.yaml");
    let patch = demo::parse("the patch", patch).expect("YAML").remove(0);
    let container = &pod["spec"]["containers"][0];
    for field in ["name", "image"] {
        assert_eq!(container[field], patch["spec"]["containers"][0][field], "the patch's {field}");
    }
    everywhere("packaging-kubeadm", async |env| {
        let manager = started(env, container, &env.kubeconfig).await;
        create(&env.client, deployment("web", 2, "web:1")).await;
        let web = ObjectKey::new("default", "web");
        let is_available = |web: &Value| web["status"]["availableReplicas"] == 2;
        wait_until_exists(env, &Deployment::RESOURCE, &web, is_available).await;
        ended(env, manager).await;
    });
}

#[test]
fn the_deployment_has_the_rights_that_a_manager_needs() {
    let text = include_str!("../../deploy/deployment.yaml");
    let objects = demo::parse("the deployment", text).expect("YAML");
    let workload = objects.last().expect("a Deployment");
    let spec = &workload["spec"]["template"]["spec"];
    everywhere("packaging-deployment", async |env| {
        for object in &objects {
            demo::create(&env.client, object).await.unwrap_or_else(|error| panic!("{error}"));
        }
        let name = spec["serviceAccountName"].as_str().expect("an account");
        let account = ObjectKey::new("kube-system", name);
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {},
        });
        let tokens = env.client.resource(&ACCOUNTS).subresource("token");
        let token: Value = tokens.create_for(&account, &request).await.expect("a token");
        let known = Config::from_kubeconfig(&env.kubeconfig, None, None).expect("a kubeconfig");
        let kubeconfig = env.kubeconfig.with_file_name("packaged.conf");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": {
                "server": known.host,
                "certificate-authority": env.kubeconfig.with_file_name("ca.crt"),
            } }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
            "users": [{ "name": "u", "user": { "token": token["status"]["token"] } }],
        });
        std::fs::write(&kubeconfig, config.to_string()).expect("written");
        let manager = started(env, &spec["containers"][0], &kubeconfig).await;
        // The manager creates the Pods of its own workload.
        let key = ObjectKey::new("kube-system", workload["metadata"]["name"].as_str().unwrap());
        let is_available = |own: &Value| own["status"]["availableReplicas"] == 2;
        wait_until_exists(env, &Deployment::RESOURCE, &key, is_available).await;
        ended(env, manager).await;
    });
}
