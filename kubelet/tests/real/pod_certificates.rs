//! Certificates of pods, which a test as their signer issues.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube_controller_manager::client::{ListOptions, Patch};
use kube_controller_manager::objects::{PodCertificateRequest, Resource};
use kube_controller_manager::task;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, PKCS_ECDSA_P384_SHA384,
    PublicKeyData, SignatureAlgorithm,
};
use sandbox::SandboxOptions;
use serde_json::{Value, json};
use x509_cert::der::Decode;
use x509_cert::request::CertReq;

use super::api::{Agent, PATIENCE, Server, key};
use super::api_objects::eventually;
use super::machine::{Error, Machine};
use super::node::place;
use super::pods::is_ready;

const GATE: &str = "featureGates: {PodCertificateRequest: true}";

/// Copies what it has got, again and again.
const SCRIPT: &str = "touch /out/done; trap 'exit 0' TERM; while :; do \
    for file in bundle key chain; do cp /certificate/$file /out/.new && mv /out/.new /out/$file; \
    done; stat -L -c '%a %u' /certificate/key > /out/mode; sleep 1; done";

/// The public key of a request, over P-384.
struct PublicKey(Vec<u8>);

impl PublicKeyData for PublicKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P384_SHA384
    }
}

/// A certificate that the signer has issued.
struct Issued {
    public_key: Vec<u8>,
    /// With that of the authority.
    chain: String,
}

/// Waits for the request with this number, and issues its certificate.
async fn sign(server: &Server, machine: &Machine, number: usize, done: &mut Vec<String>) -> Issued {
    let requests = server.client.resource(&PodCertificateRequest::RESOURCE);
    let end = server.clock.monotonic() + PATIENCE;
    let request = loop {
        let listed = requests.list::<Value>(Some("default"), &ListOptions::default()).await;
        let name = |request: &Value| request["metadata"]["name"].as_str().map(str::to_owned);
        let mut found = listed.expect("a list").items;
        found.retain(|request| name(request).is_some_and(|name| !done.contains(&name)));
        if let Some(request) = found.pop() {
            assert!(found.is_empty(), "{number}: {found:#?}");
            done.extend(name(&request));
            break request;
        }
        assert!(server.clock.monotonic() < end, "no request {number}: {}", machine.log());
        server.clock.sleep(Duration::from_millis(200)).await;
    };
    let text = request["spec"]["stubPKCS10Request"].as_str().expect("a request");
    let text = STANDARD.decode(text).expect("base64");
    let public_key = CertReq::from_der(&text).expect("a request").info.public_key;
    let public_key = public_key.subject_public_key.raw_bytes().to_vec();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = KeyPair::generate().expect("a key");
    let authority = CertifiedIssuer::self_signed(params, authority).expect("an authority");
    let params = CertificateParams::new(vec!["p.example.com".to_owned()]).expect("parameters");
    let issued = params.signed_by(&PublicKey(public_key.clone()), &authority);
    let chain = format!("{}{}", issued.expect("a certificate").pem(), authority.pem());
    let now = server.clock.now();
    let hour = Duration::from_secs(3600);
    let condition = json!({"type": "Issued", "status": "True", "reason": "Test", "message": "",
                           "lastTransitionTime": now});
    let status = json!({
        "conditions": [condition], "certificateChain": chain, "notBefore": now,
        "beginRefreshAt": now + 6 * hour, "notAfter": now + 8 * hour,
    });
    let name = request["metadata"]["name"].as_str().expect("a name");
    let patch = Patch::Merge(json!({"status": status}));
    let patched = requests.subresource("status").patch::<Value>(&key(name), &patch).await;
    patched.expect("patched");
    Issued { public_key, chain: chain.replace("\r\n", "\n") }
}

/// Whether the files are those of a certificate.
fn has(out: &Path, issued: &Issued) -> bool {
    let read = |name: &str| fs::read_to_string(out.join(name)).unwrap_or_default();
    let (own, chain) = (read("key"), read("chain"));
    let is_own = |own: KeyPair| own.public_key_raw() == issued.public_key;
    chain == issued.chain
        && KeyPair::from_pem(&own).is_ok_and(is_own)
        && read("bundle") == format!("{own}{chain}")
}

#[test]
fn pod_gets_the_certificate_of_its_signer() {
    let Some(_place) = place("pod_certificates") else { return };
    let machine = match Machine::start(format!("/tmp/kcrt{}", std::process::id()).into()) {
        Ok(machine) => machine,
        Err(Error::Missing(line)) => return eprintln!("pod_certificates: {line}"),
        Err(Error::Failed(text)) => panic!("{text}"),
    };
    task::run(1, async move {
        let server =
            Server::start_with(|options| SandboxOptions { all_versions: true, ..options }).await;
        server.make_account().await;
        let out = machine.folder.join("out");
        fs::create_dir_all(&out).expect("a folder");
        fs::set_permissions(&out, fs::Permissions::from_mode(0o777)).expect("its mode");
        let source = json!({
            "signerName": "example.com/signer", "keyType": "ECDSAP384",
            "credentialBundlePath": "bundle", "keyPath": "key", "certificateChainPath": "chain",
        });
        let sources = json!([{"podCertificate": source}]);
        let spec = json!({
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsUser": 1234},
            "volumes": [
                {"name": "certificate", "projected": {"sources": sources}},
                {"name": "out", "hostPath": {"path": out}},
            ],
            "containers": [{
                "name": "main", "image": "node.test/busybox:1", "command": ["sh", "-c", SCRIPT],
                "volumeMounts": [
                    {"name": "certificate", "mountPath": "/certificate"},
                    {"name": "out", "mountPath": "/out"},
                ],
                "readinessProbe": {
                    "exec": {"command": ["test", "-e", "/out/done"]},
                    "periodSeconds": 1, "timeoutSeconds": 60,
                },
            }],
        });
        server.create("p", "n", json!({}), spec).await;
        let kubeconfig = server.sandbox.kubeconfig();
        let agent = Agent::start_with(&machine, &kubeconfig, GATE);
        let mut done = Vec::new();
        let first = sign(&server, &machine, 1, &mut done).await;
        server.eventually("p", "ready", is_ready).await;
        eventually(&server, &machine, || has(&out, &first)).await;
        let mode = || fs::read_to_string(out.join("mode")).unwrap_or_default();
        eventually(&server, &machine, || mode() == "600 1234\n").await;
        // A kubelet that has restarted has no key, and requests another certificate.
        drop(agent);
        let agent = Agent::start_with(&machine, &kubeconfig, GATE);
        let second = sign(&server, &machine, 2, &mut done).await;
        assert_ne!(second.public_key, first.public_key);
        eventually(&server, &machine, || has(&out, &second)).await;
        drop(agent);
    });
}
