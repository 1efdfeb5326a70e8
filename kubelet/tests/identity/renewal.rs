//! A kubelet that renews its client certificate.

use std::process::{Command, Stdio};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_lite::future::{block_on, poll_once};
use kube_controller_manager::client::{Config, ListOptions, WatchStream};
use kube_controller_manager::clock::{Clock, SystemClock};
use kube_controller_manager::objects::ResourceType;
use kube_controller_manager::task;
use kubelet::certificate::Places;
use serde_json::json;

use crate::cluster::{Cluster, NODE, SERVING_SIGNER, client_of};

const HOUR: Duration = Duration::from_secs(3600);
/// In a certificate's life of an hour, it is to be renewed by then.
const RENEWAL: Duration = Duration::from_secs(54 * 60);

/// The kubelet notices within this time that the clock was set.
const CLOCK_PERIOD: Duration = Duration::from_secs(600);

const SERVICES: ResourceType = ResourceType::fixed("", "v1", "Service", "services", true);

/// Waits for the end of a watch.
async fn ended(mut watch: WatchStream) {
    while let Some(event) = watch.next().await {
        event.expect("no error");
    }
}

#[test]
fn certificate_is_renewed_and_replaced_when_it_is_expired() {
    block_on(async {
        let cluster = Cluster::start().await;
        let (client, running) = cluster.renew();
        assert!(cluster.places.kubeconfig.exists(), "it is written for the certificate to come");
        let signers = cluster.sign(HOUR);
        let first = cluster.renewed(None).await;
        cluster.is_node(&client).await;
        let config = Config::from_kubeconfig(&cluster.places.kubeconfig, None, None);
        let by_file = client_of(config.expect("a kubeconfig"));
        cluster.is_node(&by_file).await;
        assert_eq!(cluster.last_requester().await, "system:bootstrap:abcdef");

        let services = client.resource(&SERVICES);
        let watch = services.watch(None, &ListOptions::default(), false, HOUR).await;
        let watch = task::spawn(ended(watch.expect("a watch")));
        cluster.clock.advance(RENEWAL);
        let second = cluster.renewed(Some(&first)).await;
        assert_ne!(first.public_key(), second.public_key());
        // Its connection was the former certificate's.
        watch.await;
        assert_eq!(cluster.last_requester().await, "system:node:n1");
        for client in [&client, &by_file] {
            cluster.is_node(client).await;
        }

        cluster.clock.advance(3 * HOUR);
        let third = cluster.renewed(Some(&second)).await;
        assert!(third.not_before() > second.not_after());
        assert_eq!(cluster.last_requester().await, "system:bootstrap:abcdef");
        cluster.is_node(&client).await;
        running.cancel().await;

        // The next run has the certificate of the former one.
        let (client, running) = cluster.renew();
        cluster.is_node(&client).await;
        assert_eq!(cluster.requests().await.len(), 3);
        running.cancel().await;
        signers.stop().await;
        cluster.stop().await;
    });
}

#[test]
fn renewal_comes_forward_with_a_clock_that_is_set() {
    block_on(async {
        let cluster = Cluster::start().await;
        let signers = cluster.sign(HOUR);
        let (client, running) = cluster.renew();
        let first = cluster.renewed(None).await;
        // Back, but to a time at which the certificate was valid already.
        cluster.clock.set(cluster.clock.now() - Duration::from_secs(60));
        cluster.clock.advance(CLOCK_PERIOD);
        cluster.is_node(&client).await;
        assert_eq!(cluster.requests().await.len(), 1);
        cluster.clock.set(cluster.clock.now() + RENEWAL);
        cluster.clock.advance(CLOCK_PERIOD);
        cluster.renewed(Some(&first)).await;
        cluster.is_node(&client).await;
        assert_eq!(cluster.requests().await.len(), 2);
        running.cancel().await;
        signers.stop().await;
        cluster.stop().await;
    });
}

#[test]
fn expired_certificate_ends_a_kubelet_without_bootstrap_credential() {
    block_on(async {
        let mut cluster = Cluster::start().await;
        let signers = cluster.sign(HOUR);
        let bootstrapped = cluster.places.bootstrap(NODE, &SystemClock::shared()).await;
        bootstrapped.expect("a certificate");
        cluster.places = Places { bootstrap: None, ..cluster.places };
        cluster.clock.advance(3 * HOUR);
        let (_, mut running) = cluster.renew();
        let begin = cluster.clock.monotonic();
        let reason = cluster
            .eventually("it ends", async || {
                cluster.clock.advance(Duration::from_secs(5));
                poll_once(&mut running).await.ok_or_else(|| "it runs".to_owned())
            })
            .await;
        assert!(reason.starts_with("No valid client certificate is found"), "{reason}");
        let now = cluster.clock.monotonic();
        assert!(now - begin > Duration::from_secs(300));
        assert_eq!(cluster.requests().await.len(), 1, "the server has refused the others");
        signers.stop().await;
        cluster.stop().await;
    });
}

#[test]
fn certificate_in_the_kubeconfig_itself_is_replaced_at_once() {
    block_on(async {
        let mut cluster = Cluster::start().await;
        let file = cluster.sandbox.kubeconfig_for("system:node:n1", &["system:nodes"]);
        let pair = file.expect("a kubeconfig");
        let data = |extension: &str| {
            let file = pair.with_file_name(format!("system-node-n1.{extension}"));
            STANDARD.encode(std::fs::read(file).expect("a file"))
        };
        let files = cluster.sandbox.client_config();
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "k", "cluster": {
                "server": files.server, "certificate-authority": files.ca,
            } }],
            "users": [{ "name": "u", "user": {
                "client-certificate-data": data("crt"), "client-key-data": data("key"),
            } }],
            "contexts": [{ "name": "c", "context": { "cluster": "k", "user": "u" } }],
        });
        std::fs::write(&cluster.places.kubeconfig, kubeconfig.to_string()).expect("written");
        cluster.places = Places { bootstrap: None, ..cluster.places };
        let (client, running) = cluster.renew();
        let first = cluster.current("kubelet-client").expect("it is written");
        cluster.is_node(&client).await;
        let signers = cluster.sign(HOUR);
        cluster.renewed(Some(&first)).await;
        assert_eq!(cluster.last_requester().await, "system:node:n1");
        cluster.is_node(&client).await;
        running.cancel().await;
        signers.stop().await;
        cluster.stop().await;
    });
}

/// kubeadm's flags and fields; there is no container runtime.
#[test]
fn program_gets_its_certificates_before_it_waits_for_the_runtime() {
    block_on(async {
        let cluster = Cluster::start().await;
        let signers = cluster.sign(HOUR);
        let config = cluster.folder.join("config.yaml");
        let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
                    rotateCertificates: true\nserverTLSBootstrap: true\n";
        std::fs::write(&config, text).expect("written");
        let bootstrap = cluster.places.bootstrap.clone().expect("a path");
        let flag = |name: &str, path: &std::path::Path| format!("--{name}={}", path.display());
        let mut child = Command::new(env!("CARGO_BIN_EXE_kubelet"))
            .arg(flag("config", &config))
            .arg(flag("bootstrap-kubeconfig", &bootstrap))
            .arg(flag("kubeconfig", &cluster.places.kubeconfig))
            .arg(flag("cert-dir", &cluster.places.folder))
            .arg(flag("root-dir", &cluster.folder.join("root")))
            // The node's name is its address too, on any machine.
            .arg("--hostname-override=10.0.0.7")
            .arg(format!("--container-runtime-endpoint=unix://{}/none", cluster.folder.display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the kubelet starts");
        cluster.renewed(None).await;
        let serving = cluster.open_request(SERVING_SIGNER, &[]).await;
        assert_eq!(serving["spec"]["username"], "system:node:10.0.0.7");
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        signers.stop().await;
        cluster.stop().await;
    });
}
