//! The serving certificate that is requested from the API server.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::future::block_on;
use k8s_openapi::api::core::v1::NodeAddress;
use kube_controller_manager::client::pem;
use kube_controller_manager::client::x509::Certificate;
use kube_controller_manager::clock::{Clock, SharedClock};
use kube_controller_manager::objects::Timestamp;
use kube_controller_manager::task;
use kubelet::certificate::{ServingCertificate, ServingOptions};
use kubelet::metrics;
use rustls::crypto::ring;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use serde_json::json;

use crate::cluster::{Cluster, NODE, SERVING_SIGNER, name_of};

const HOUR: Duration = Duration::from_secs(3600);

fn addresses(all: &[(&str, &str)]) -> Vec<NodeAddress> {
    let address = |(kind, address): &(&str, &str)| NodeAddress {
        type_: kind.to_string(),
        address: address.to_string(),
    };
    all.iter().map(address).collect()
}

/// The time at which a client checks certificates: the cluster's.
#[derive(Debug)]
struct ClusterTime(Timestamp);

impl TimeProvider for ClusterTime {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from(self.0.as_secs()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}

/// The outcome of a handshake with a client that trusts the cluster's authority.
fn shake_hands(cluster: &Cluster, serving: &ServingCertificate, name: &str) -> Result<(), String> {
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    let ca = std::fs::read(&cluster.sandbox.client_config().ca).expect("the authority");
    roots.add(pem::certificates(&ca).remove(0)).expect("an authority");
    let time = Arc::new(ClusterTime(cluster.clock.now()));
    let client = ClientConfig::builder_with_details(provider.clone(), time)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(serving.clone()));
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let mut client = ClientConnection::new(client.into(), name).expect("a client");
    let mut server = ServerConnection::new(server.into()).expect("a server");
    while client.is_handshaking() || server.is_handshaking() {
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).expect("written");
        server.read_tls(&mut bytes.as_slice()).expect("read");
        server.process_new_packets().map_err(|error| error.to_string())?;
        let mut bytes = Vec::new();
        server.write_tls(&mut bytes).expect("written");
        client.read_tls(&mut bytes.as_slice()).expect("read");
        client.process_new_packets().map_err(|error| error.to_string())?;
    }
    Ok(())
}

#[test]
fn certificate_follows_the_addresses_and_is_renewed() {
    block_on(async {
        let cluster = Cluster::start().await;
        let signers = cluster.sign(HOUR);
        let (client, renewing) = cluster.renew();
        cluster.is_node(&client).await;
        let options = ServingOptions {
            is_requested: true,
            folder: cluster.places.folder.clone(),
            ..ServingOptions::default()
        };
        let clock: SharedClock = cluster.clock.clone();
        let serving = ServingCertificate::new(&options, NODE, &clock).expect("a certificate");
        let running = task::spawn({
            let (serving, client) = (serving.clone(), client.clone());
            async move { serving.run(client).await }
        });
        assert!(shake_hands(&cluster, &serving, NODE).is_err(), "before the first one");

        let mut known = Vec::new();
        let mut former = Vec::new();
        let steps: [(&[(&str, &str)], Duration); 3] = [
            (&[("InternalIP", "127.0.0.1"), ("Hostname", NODE)], Duration::ZERO),
            (
                &[("InternalIP", "127.0.0.1"), ("InternalIP", "fd00::7"), ("Hostname", NODE)],
                Duration::ZERO,
            ),
            // The same addresses, but the certificate is old.
            (
                &[("InternalIP", "127.0.0.1"), ("InternalIP", "fd00::7"), ("Hostname", NODE)],
                Duration::from_secs(54 * 60),
            ),
        ];
        for (all, later) in steps {
            serving.set_addresses(&addresses(all));
            cluster.clock.advance(later);
            let request = cluster.open_request(SERVING_SIGNER, &known).await;
            assert_eq!(request["spec"]["usages"], json!(["digital signature", "server auth"]));
            assert_eq!(request["spec"]["username"], "system:node:n1");
            let name = name_of(&request);
            cluster.decide(&name, "Approved").await;
            known.push(name);
            let served = cluster
                .eventually("another certificate", async || {
                    let served = serving.current().map(|current| current.cert[0].to_vec());
                    served.filter(|served| *served != former).ok_or("it stays".to_owned())
                })
                .await;
            let read = Certificate::from_der(&served).expect("a certificate");
            let ips: Vec<IpAddr> =
                all.iter().filter_map(|(_, address)| address.parse().ok()).collect();
            assert_eq!(read.ip_addresses(), ips);
            assert_eq!(read.dns_names(), [NODE]);
            former = served;
        }
        for name in [NODE, "127.0.0.1", "fd00::7"] {
            shake_hands(&cluster, &serving, name).expect(name);
        }
        let page = String::from_utf8(metrics::render(cluster.clock.now())).expect("text");
        let value = |name: &str| -> f64 {
            let line = page.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
            line.expect(name).parse().expect("a number")
        };
        let ttl = value("kubelet_certificate_manager_server_ttl_seconds");
        assert!((0.0..=3600.0).contains(&ttl), "{ttl}");
        assert_eq!(value("kubelet_certificate_manager_server_rotation_seconds_count"), 2.0);
        running.cancel().await;

        let again = ServingCertificate::new(&options, NODE, &clock).expect("a certificate");
        let served = again.current().expect("that of the former run");
        assert_eq!(served.cert[0].to_vec(), former);
        renewing.cancel().await;
        signers.stop().await;
        cluster.stop().await;
    });
}
