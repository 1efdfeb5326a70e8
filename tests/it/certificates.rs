//! Certificate requests: approved, signed, refused and cleaned up; and how a kubelet gets its first
//! certificate.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube_controller_manager::client::{Client, Config, Credentials, Pem, pem};
use kube_controller_manager::clock::{Clock, FakeClock};
use kube_controller_manager::objects::{
    CertificateSigningRequest, ClusterRole, ObjectKey, Resource,
};
use kube_controller_manager::task::spawn;
use rcgen::{CertificateParams, DnType, KeyPair};
use serde_json::{Value, json};
use x509_cert::der::Decode;

use crate::bootstrap::create_token;
use crate::env::*;
use crate::kinds::*;

const KUBELET: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const SERVING: &str = "kubernetes.io/kubelet-serving";

/// A client under other credentials than the administrator's.
fn client_as(env: &TestCluster, change: impl FnOnce(&mut Config)) -> Client {
    let mut config = Config::from_kubeconfig(&env.kubeconfig, None, None).unwrap();
    (config.tls.certificate, config.tls.key) = (None, None);
    change(&mut config);
    Client::new(config, env.clock.clone()).unwrap()
}

/// A request for the certificate of a node, and its key in PEM.
pub fn request(
    name: &str,
    node: &str,
    names: &[&str],
    signer: &str,
    usage: &str,
) -> (Value, String) {
    let names: Vec<String> = names.iter().copied().map(str::to_owned).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CommonName, format!("system:node:{node}"));
    let key = KeyPair::generate().unwrap();
    let request = params.serialize_request(&key).unwrap().pem().unwrap();
    let object = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": { "name": name },
        "spec": {
            "request": STANDARD.encode(request), "signerName": signer,
            "usages": ["digital signature", usage], "expirationSeconds": 3600,
        },
    });
    (object, key.serialize_pem())
}

/// A server learns of a new binding by a watch of its own: until then it forbids the request.
pub async fn submit(env: &TestCluster, client: &Client, object: &Value) {
    let requests = client.resource(&CertificateSigningRequest::RESOURCE);
    eventually(&env.clock, "a request is accepted", async || {
        match requests.create::<Value>("", object).await {
            Err(error) if error.is_forbidden() => Err(error.to_string()),
            answer => Ok(answer.expect("create")),
        }
    })
    .await;
}

pub async fn decide(env: &TestCluster, name: &str, kind: &str) {
    let key = ObjectKey::cluster(name);
    let requests = env.client.resource(&CertificateSigningRequest::RESOURCE);
    let mut object: Value = requests.get(&key).await.expect("get");
    object["status"]["conditions"] = json!([{ "type": kind, "status": "True", "reason": "Test", "message": "as the test asks" }]);
    requests.subresource("approval").update::<Value>(&key, &object).await.expect("update");
}

fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    let conditions = object["status"]["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == kind)
}

pub fn certificate(object: &Value) -> Option<Vec<u8>> {
    STANDARD.decode(object["status"]["certificate"].as_str()?).ok()
}

/// A binding of one of the cluster's own roles to a group.
async fn bind(env: &TestCluster, role: &str, group: &str) {
    let binding = json!({
        "apiVersion": BINDINGS.api_version(), "kind": BINDINGS.kind,
        "metadata": { "name": format!("test:{role}") },
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": ClusterRole::RESOURCE.kind, "name": role,
        },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group }],
    });
    env.client.resource(&BINDINGS).create::<Value>("", &binding).await.expect("create");
}

async fn user_of(client: &Client) -> Value {
    let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
    let answer = client.resource(&SELF_REVIEWS).create::<Value>("", &review).await;
    answer.expect("create")["status"]["userInfo"].clone()
}

#[test]
fn a_kubelet_gets_its_certificate_by_a_bootstrap_token_and_renews_it_by_itself() {
    everywhere("csr", async |env| {
        let manager = env.manager("manager", &[]);
        const JOINING: &str = "system:bootstrappers:kubeadm:default-node-token";
        const APPROVED: &str = "system:certificates.k8s.io:certificatesigningrequests:nodeclient";
        const RENEWED: &str =
            "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient";
        bind(env, "system:node-bootstrapper", JOINING).await;
        create_token(env, "abcdef", json!({ "auth-extra-groups": JOINING })).await;
        let joining = client_as(env, |config| {
            config.credentials = Credentials::Token("abcdef.0123456789abcdef".to_owned());
        });
        let user = user_of(&joining).await;
        assert_eq!(user["username"], "system:bootstrap:abcdef");

        // Nothing is approved before the group has the right to it.
        let requests = &CertificateSigningRequest::RESOURCE;
        let (object, key) = request("first", "n1", &[], KUBELET, "client auth");
        submit(env, &joining, &object).await;
        let (strange, _) = request("strange", "n1", &["n1"], KUBELET, "client auth");
        submit(env, &joining, &strange).await;
        bind(env, APPROVED, JOINING).await;
        bind(env, RENEWED, "system:nodes").await;
        let first = ObjectKey::cluster("first");
        let issued =
            wait_until_exists(env, requests, &first, |object| certificate(object).is_some()).await;
        let approved = condition(&issued, "Approved").unwrap();
        assert_eq!(approved["reason"], "AutoApproved");
        assert_eq!(
            approved["message"],
            "Auto approving kubelet client certificate after SubjectAccessReview."
        );

        let node = client_as(env, |config| {
            config.tls.certificate = Some(Pem::Inline(certificate(&issued).unwrap()));
            config.tls.key = Some(Pem::Inline(key.into_bytes()));
        });
        let user = user_of(&node).await;
        assert_eq!(user["username"], "system:node:n1");
        assert_eq!(user["groups"][0], "system:nodes");

        // Neither server has the node authorizer, from which nodes have their rights otherwise.
        bind(env, "system:node", "system:nodes").await;
        let (object, _) = request("renewed", "n1", &[], KUBELET, "client auth");
        let renewed = ObjectKey::cluster("renewed");
        submit(env, &node, &object).await;
        let issued =
            wait_until_exists(env, requests, &renewed, |object| certificate(object).is_some())
                .await;
        assert_eq!(
            condition(&issued, "Approved").unwrap()["message"],
            "Auto approving self kubelet client certificate after SubjectAccessReview."
        );

        // Serving certificates are approved by a person; a request that the signer cannot sign
        // fails.
        let (object, _) = request("serving", "n1", &["n1", "10.0.0.7"], SERVING, "server auth");
        submit(env, &node, &object).await;
        let (object, _) = request("nameless", "n1", &[], SERVING, "server auth");
        submit(env, &node, &object).await;
        decide(env, "nameless", "Approved").await;
        let nameless = ObjectKey::cluster("nameless");
        let failed = wait_until_exists(env, requests, &nameless, |object| {
            condition(object, "Failed").is_some()
        })
        .await;
        let failure = condition(&failed, "Failed").unwrap();
        assert_eq!(failure["reason"], "SignerValidationFailure");
        assert_eq!(failure["message"], "DNS or IP subjectAltName is required");
        assert!(certificate(&failed).is_none());
        let serving = ObjectKey::cluster("serving");
        let waiting: Value = env.client.resource(requests).get(&serving).await.unwrap();
        assert!(condition(&waiting, "Approved").is_none(), "{waiting}");
        decide(env, "serving", "Approved").await;
        wait_until_exists(env, requests, &serving, |object| certificate(object).is_some()).await;
        let strange: Value =
            env.client.resource(requests).get(&ObjectKey::cluster("strange")).await.unwrap();
        assert!(condition(&strange, "Approved").is_none(), "{strange}");
        drop(manager);
    });
}

#[test]
fn an_authority_whose_files_change_signs_at_once() {
    everywhere("csr-files", async |env| {
        let folder = Folder::new("csr-files-ca");
        let file = |name: &str| folder.0.join(name);
        let authority = |name: &str| {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new([]).unwrap();
            params.distinguished_name = rcgen::DistinguishedName::new();
            params.distinguished_name.push(DnType::CommonName, name);
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            let certificate = params.self_signed(&key).unwrap();
            (certificate.pem(), key.serialize_pem())
        };
        let (certificate_one, key_one) = authority("one");
        std::fs::write(file("x.crt"), certificate_one).unwrap();
        std::fs::write(file("x.key"), key_one).unwrap();
        // These flags exclude those of the shared files that other tests set.
        let flags = [
            "--cluster-signing-cert-file=".to_owned(),
            "--cluster-signing-key-file=".to_owned(),
            format!("--cluster-signing-kubelet-serving-cert-file={}", file("x.crt").display()),
            format!("--cluster-signing-kubelet-serving-key-file={}", file("x.key").display()),
        ];
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let manager = env.manager("manager", &flags);
        let requests = &CertificateSigningRequest::RESOURCE;
        let issuer = async |name: &str| {
            let (object, _) = request(name, "n1", &["n1"], SERVING, "server auth");
            submit(env, &env.client, &object).await;
            decide(env, name, "Approved").await;
            let key = ObjectKey::cluster(name);
            let issued =
                wait_until_exists(env, requests, &key, |object| certificate(object).is_some())
                    .await;
            let pem = certificate(&issued).unwrap();
            let issued = x509_cert::Certificate::from_der(&pem::certificates(&pem)[0]).unwrap();
            issued.tbs_certificate.issuer.to_string()
        };
        // The other signers have no files.
        let (object, _) = request("other", "n1", &[], KUBELET, "client auth");
        submit(env, &env.client, &object).await;
        decide(env, "other", "Approved").await;
        assert_eq!(issuer("first").await, "CN=one");
        let (certificate_two, key_two) = authority("two");
        std::fs::write(file("x.crt"), certificate_two).unwrap();
        assert_eq!(issuer("between").await, "CN=one", "the key is not there yet");
        std::fs::write(file("x.key"), key_two).unwrap();
        assert_eq!(issuer("last").await, "CN=two");
        let other: Value =
            env.client.resource(requests).get(&ObjectKey::cluster("other")).await.unwrap();
        assert!(certificate(&other).is_none());
        drop(manager);
    });
}

#[test]
fn requests_are_deleted_when_they_are_over() {
    everywhere("csr-cleaner", async |env| {
        let requests = &CertificateSigningRequest::RESOURCE;
        for name in ["denied", "approved", "pending"] {
            let (object, _) = request(name, "n1", &[], KUBELET, "client auth");
            submit(env, &env.client, &object).await;
        }
        decide(env, "denied", "Denied").await;
        decide(env, "approved", "Approved").await;
        let clock = FakeClock::new(env.clock.now());
        let InProcess { cx, factory, stop } = InProcess::new(env, clock.clone(), env.options());
        let controller = controller_of("certificatesigningrequest-cleaner-controller", &cx);
        factory.start(&stop);
        let running = spawn(controller.run(stop.clone()));
        let start = clock.monotonic();
        let gone_after = async |name: &str| {
            eventually(&env.clock, &format!("{name} goes"), || async {
                let key = ObjectKey::cluster(name);
                match env.client.resource(requests).get::<Value>(&key).await {
                    Err(error) if error.is_not_found() => Ok(()),
                    _ => {
                        clock.advance(Duration::from_secs(300));
                        Err("it is there".to_owned())
                    }
                }
            })
            .await;
            clock.monotonic() - start
        };
        let hours = |hours: u64| Duration::from_secs(hours * 3600);
        assert!(gone_after("denied").await >= hours(1));
        let there = async |name: &str| {
            env.client.resource(requests).get::<Value>(&ObjectKey::cluster(name)).await.is_ok()
        };
        assert!(there("pending").await && there("approved").await);
        clock.advance(hours(21));
        for name in ["pending", "approved"] {
            assert!(gone_after(name).await >= hours(24), "{name}");
        }
        stop.stop();
        running.await;
        factory.shutdown().await;
    });
}
