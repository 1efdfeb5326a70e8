//! Faults while a client certificate is requested by a kubelet that renews it.

use std::time::Duration;

use futures_lite::future::block_on;
use kube_controller_manager::clock::Clock;

use crate::cluster::{CLIENT_SIGNER, Cluster, foreign_certificate, name_of};

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn request_without_a_certificate_is_followed_by_another() {
    block_on(async {
        let cluster = Cluster::start().await;
        let (client, running) = cluster.renew();
        let mut known = Vec::new();
        for fault in ["denied", "deleted", "of another key"] {
            let name = name_of(&cluster.open_request(CLIENT_SIGNER, &known).await);
            match fault {
                "denied" => cluster.decide(&name, "Denied").await,
                "deleted" => cluster.delete_request(&name).await,
                _ => {
                    cluster.decide(&name, "Approved").await;
                    cluster.issue(&name, foreign_certificate().as_bytes()).await;
                }
            }
            known.push(name);
        }
        cluster.open_request(CLIENT_SIGNER, &known).await;
        assert!(cluster.current("kubelet-client").is_none());
        let signers = cluster.sign(HOUR);
        cluster.renewed(None).await;
        cluster.is_node(&client).await;
        running.cancel().await;
        signers.stop().await;
        cluster.stop().await;
    });
}

#[test]
fn server_that_is_away_is_waited_for() {
    block_on(async {
        let cluster = Cluster::start().await;
        let signers = cluster.sign(HOUR);
        let faults = cluster.sandbox.faults().clone();
        faults.cut_all();
        let (client, running) = cluster.renew();
        let failures = || {
            let name = "kubelet_certificate_manager_client_expiration_renew_errors ";
            let page =
                String::from_utf8(kubelet::metrics::render(cluster.clock.now())).expect("text");
            let line = page.lines().find_map(|line| line.strip_prefix(name));
            line.expect("it is served").parse::<f64>().expect("a number")
        };
        let before = failures();
        cluster
            .eventually("it tries again", async || match failures() {
                now if now >= before + 2.0 => Ok(()),
                now => Err(now.to_string()),
            })
            .await;
        assert!(cluster.current("kubelet-client").is_none());
        faults.come_back();
        cluster.renewed(None).await;

        // It goes away while a certificate is waited for, and a watch is cut.
        let first = cluster.current("kubelet-client").expect("a certificate");
        signers.stop().await;
        cluster.clock.advance(Duration::from_secs(54 * 60));
        cluster.open_request(CLIENT_SIGNER, &[]).await;
        faults.cut_all();
        faults.come_back();
        let signers = cluster.sign(HOUR);
        cluster.renewed(Some(&first)).await;
        cluster.is_node(&client).await;
        running.cancel().await;
        signers.stop().await;
        cluster.stop().await;
    });
}
