//! The kinds of certificates.k8s.io that are behind gates: PodCertificateRequests and
//! ClusterTrustBundles.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube_controller_manager::client::{Delete, Patch};
use kube_controller_manager::clock::{Clock, FakeClock};
use kube_controller_manager::controllers::certificates::trustbundle::BUNDLES;
use kube_controller_manager::objects::{ObjectKey, PodCertificateRequest, Resource, ResourceType};
use kube_controller_manager::options::Options;
use kube_controller_manager::task::spawn;
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

use crate::env::*;
use crate::kinds::*;

const SERVED: &str = "--runtime-config=certificates.k8s.io/v1beta1=true";
const BUNDLE_GATE: &str = "--feature-gates=ClusterTrustBundle=true";

#[test]
fn the_api_servers_authority_is_published_and_kept_as_it_is() {
    everywhere_with_gates("trust-bundle", &[BUNDLE_GATE, SERVED], authority_is_published);
}

/// On a server of 1.37 without any gate.
pub async fn authority_is_published(env: &TestCluster) {
    const SIGNER: &str = "kubernetes.io/kube-apiserver-serving";
    const PREFIX: &str = "kubernetes.io:kube-apiserver-serving:";
    let resource = &env.client.served(&BUNDLES);
    let ca = std::fs::read_to_string(env.kubeconfig.with_file_name("ca.crt")).expect("the CA");
    let bundle = |name: &str, signer: Option<&str>| {
        let mut spec = json!({ "trustBundle": ca });
        if let Some(signer) = signer {
            spec["signerName"] = signer.into();
        }
        json!({
            "apiVersion": resource.api_version(), "kind": resource.kind,
            "metadata": { "name": name }, "spec": spec,
        })
    };
    let bundles = env.client.resource(resource);
    let old = ObjectKey::cluster(&format!("{PREFIX}old"));
    for made in [bundle(&old.name, Some(SIGNER)), bundle("foreign", None)] {
        bundles.create::<Value>("", &made).await.expect("create");
    }
    let _manager = env.manager("manager", &env.before_1_37(BUNDLE_GATE));
    wait_until_deleted(env, resource, &old).await;
    let all = bundles.list::<Value>(None, &Default::default()).await.expect("list").items;
    let ours = all.iter().filter(|bundle| bundle["spec"]["signerName"] == SIGNER);
    let ours: Vec<&Value> = ours.collect();
    assert_eq!(ours.len(), 1, "{ours:#?}");
    let first = ours[0];
    assert_eq!(first["spec"]["trustBundle"], *ca);
    let name = first["metadata"]["name"].as_str().unwrap().to_owned();
    assert!(name.starts_with(PREFIX), "{name}");

    // Changed and deleted bundles are restored.
    let key = ObjectKey::cluster(name.as_str());
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let other = params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem();
    let edit = Patch::Merge(json!({ "spec": { "trustBundle": format!("{ca}{other}") } }));
    bundles.patch::<Value>(&key, &edit).await.expect("patch");
    wait_until_exists(env, resource, &key, |bundle| bundle["spec"]["trustBundle"] == *ca).await;
    bundles.delete(&key, Delete::new()).await.expect("delete");
    wait_until_exists(env, resource, &key, |bundle| bundle["spec"]["trustBundle"] == *ca).await;
    let foreign = ObjectKey::cluster("foreign");
    assert!(bundles.get::<Value>(&foreign).await.is_ok());
}

/// The bundle of the API server is published in the version that is served now, and again after it
/// was deleted.
pub async fn bundle_is_restored(env: &TestCluster) {
    let bundles = env.client.resource(&BUNDLES);
    let published = async || {
        eventually(&env.clock, "the bundle is published", || async {
            let all = bundles.list::<Value>(None, &Default::default()).await;
            let mut all = all.map_err(|error| error.to_string())?.items;
            all.pop().ok_or_else(|| "no bundle yet".to_owned())
        })
        .await
    };
    let first = published().await;
    let key = ObjectKey::cluster(first["metadata"]["name"].as_str().expect("a name"));
    bundles.delete(&key, Delete::new()).await.expect("delete");
    let next = published().await;
    assert_ne!(next["metadata"]["uid"], first["metadata"]["uid"]);
}

#[test]
fn the_older_version_is_used_where_it_alone_is_served() {
    const OLDER: &str = "--runtime-config=certificates.k8s.io/v1alpha1=true";
    on_real_server("trust-bundle-alpha", &[BUNDLE_GATE, OLDER], async |env| {
        let resource = ResourceType { version: "v1alpha1".into(), ..BUNDLES };
        let bundles = env.client.resource(&resource);
        let ca = std::fs::read_to_string(env.kubeconfig.with_file_name("ca.crt")).expect("the CA");
        let _manager = env.manager("manager", &[BUNDLE_GATE]);
        eventually(&env.clock, "the bundle is published", || async {
            let all = bundles.list::<Value>(None, &Default::default()).await;
            let all = all.map_err(|error| error.to_string())?.items;
            match &all[..] {
                [bundle] if bundle["spec"]["trustBundle"] == *ca => Ok(()),
                _ => Err(format!("{all:#?}")),
            }
        })
        .await;
        let found = env.client.discovery().await.expect("discovery");
        assert_eq!(found.resource_for(&BUNDLES.group, "v1beta1", &BUNDLES.kind), None);
    });
}

#[test]
fn nothing_is_published_without_an_authority() {
    const NAME: &str = "kube-apiserver-serving-clustertrustbundle-publisher-controller";
    Env::run("trust-bundle-none", async |env| {
        let folder = Folder::new("authority");
        let file = folder.0.join("ca.crt");
        let authority = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap().cert.pem();
        std::fs::write(&file, authority).unwrap();
        for (root_ca_file, is_idle) in [(String::new(), true), (file.display().to_string(), false)]
        {
            let options = Options { root_ca_file, ..env.options() };
            let InProcess { cx, .. } = InProcess::new(env, env.clock.clone(), options);
            assert_eq!(controller_of(NAME, &cx).is_idle(), is_idle);
        }
    });
}

#[test]
fn requests_of_pods_are_deleted_after_a_quarter_of_an_hour() {
    const GATE: &str = "--feature-gates=PodCertificateRequest=true";
    everywhere_with_gates("pod-certificates", &[GATE, SERVED], pod_requests_are_deleted);
}

pub async fn pod_requests_are_deleted(env: &TestCluster) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    let stub = params.serialize_request(&KeyPair::generate().unwrap()).unwrap();
    let request = json!({
        "metadata": { "name": "r", "namespace": "default" },
        "spec": {
            "signerName": "example.com/signer", "podName": "p", "podUID": "u1",
            "serviceAccountName": "default", "serviceAccountUID": "u2", "nodeName": "n",
            "nodeUID": "u3", "maxExpirationSeconds": 86400,
            "stubPKCS10Request": STANDARD.encode(stub.der()),
        },
    });
    let requests = env.client.resource(&PodCertificateRequest::RESOURCE);
    requests.create::<Value>("default", &request).await.expect("create");
    let clock = FakeClock::new(env.clock.now());
    let InProcess { cx, factory, stop } = InProcess::new(env, clock.clone(), env.options());
    let controller = controller_of("podcertificaterequest-cleaner-controller", &cx);
    factory.start(&stop);
    let running = spawn(controller.run(stop.clone()));
    let start = clock.monotonic();
    let key = ObjectKey::new("default", "r");
    eventually(&env.clock, "the request goes", || async {
        match requests.get::<Value>(&key).await {
            Err(error) if error.is_not_found() => Ok(()),
            _ => {
                clock.advance(Duration::from_secs(100));
                Err("it is there".to_owned())
            }
        }
    })
    .await;
    assert!(clock.monotonic() - start >= Duration::from_secs(15 * 60));
    stop.stop();
    running.await;
    factory.shutdown().await;
}
