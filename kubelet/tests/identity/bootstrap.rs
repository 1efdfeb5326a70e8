//! A kubelet that does not renew its certificate: it waits for the first one at its start.

use std::time::Duration;

use futures_lite::future::block_on;
use kube_controller_manager::client::Config;
use kube_controller_manager::clock::SystemClock;
use kube_controller_manager::task::{self, Task};
use kubelet::certificate::Error;
use serde_json::{Value, json};

use crate::cluster::{CLIENT_SIGNER, Cluster, NODE, client_of, foreign_certificate, name_of};

const HOUR: Duration = Duration::from_secs(3600);

fn begin(cluster: &Cluster) -> Task<Result<(), Error>> {
    let (places, clock) = (cluster.places.clone(), SystemClock::shared());
    task::spawn(async move { places.bootstrap(NODE, &clock).await })
}

#[test]
fn node_gets_its_kubeconfig_by_a_token() {
    block_on(async {
        let cluster = Cluster::start().await;
        // It is killed while it waits.
        let first = begin(&cluster);
        let request = cluster.open_request(CLIENT_SIGNER, &[]).await;
        first.cancel().await;
        assert!(name_of(&request).starts_with("node-csr-"), "{request}");
        assert_eq!(request["spec"]["usages"], json!(["digital signature", "client auth"]));
        assert_eq!(request["spec"]["username"], "system:bootstrap:abcdef");
        assert_eq!(request["spec"]["expirationSeconds"], Value::Null);
        let key = cluster.places.folder.join("kubelet-client.key.tmp");
        assert!(key.exists() && !cluster.places.kubeconfig.exists());

        let second = begin(&cluster);
        let signers = cluster.sign(HOUR);
        second.await.expect("a certificate");
        let requests = cluster.requests().await;
        assert_eq!(requests.len(), 1, "the same request: {requests:?}");
        assert!(!key.exists());
        let config = Config::from_kubeconfig(&cluster.places.kubeconfig, None, None);
        cluster.is_node(&client_of(config.expect("a kubeconfig"))).await;

        begin(&cluster).await.expect("there is nothing to do");
        assert_eq!(cluster.requests().await.len(), 1);

        // The kubeconfig is lost: the key of the store is used again, and with it the request.
        std::fs::remove_file(&cluster.places.kubeconfig).expect("it was there");
        begin(&cluster).await.expect("the same certificate");
        assert_eq!(cluster.requests().await.len(), 1);
        assert!(cluster.places.kubeconfig.exists());
        signers.stop().await;
        cluster.stop().await;
    });
}

#[test]
fn refusal_is_an_error_that_leaves_nothing() {
    block_on(async {
        let cluster = Cluster::start().await;
        let failure = async |running: Task<Result<(), Error>>| {
            let error = running.await.expect_err("no certificate").to_string();
            assert!(!cluster.places.kubeconfig.exists());
            assert!(cluster.current("kubelet-client").is_none());
            error
        };
        let running = begin(&cluster);
        let name = name_of(&cluster.open_request(CLIENT_SIGNER, &[]).await);
        cluster.decide(&name, "Denied").await;
        let denied = "certificate signing request is denied, reason: Test, message: as the test \
                      asks";
        assert_eq!(failure(running).await, denied);
        assert_eq!(failure(begin(&cluster)).await, denied, "it is the same request");

        // The server's clean-up removes it in time: then it is created again.
        cluster.delete_request(&name).await;
        let running = begin(&cluster);
        assert_eq!(name_of(&cluster.open_request(CLIENT_SIGNER, &[]).await), name);
        cluster.delete_request(&name).await;
        assert_eq!(failure(running).await, format!("csr {name:?} was deleted"));

        let running = begin(&cluster);
        cluster.open_request(CLIENT_SIGNER, &[]).await;
        cluster.decide(&name, "Approved").await;
        cluster.issue(&name, foreign_certificate().as_bytes()).await;
        let error = failure(running).await;
        assert!(error.ends_with("private key does not match public key"), "{error}");
        cluster.stop().await;
    });
}
