//! Certificates of pods with the sandbox as their API server. The test is the signer.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_channel::Receiver;
use kube_controller_manager::client::Patch;
use kube_controller_manager::clock::{Clock, FakeClock, SystemClock};
use kube_controller_manager::objects::{Node, ObjectKey, Timestamp};
use sandbox::cluster::administrator;
use sandbox::faults::Fault as ServerFault;
use sandbox::{Sandbox, SandboxOptions};
use x509_cert::der::{Decode, Encode};
use x509_cert::request::CertReq;

use super::*;
use crate::certificate::PrivateKey;
use crate::node::address::NodeAddress;

const SIGNER: &str = "example.com/signer";
const HOUR: Duration = Duration::from_secs(3600);
/// The longest time from the renewal's time to its request: the jitter and a period.
const LATE: Duration = Duration::from_secs(5 * 60 + 120);
/// The longest wait, by the system's clock.
const PATIENCE: Duration = Duration::from_secs(120);

/// A server with a Node and an account, and the certificates of the Node's pods.
struct Cluster {
    sandbox: Sandbox,
    folder: PathBuf,
    client: Client,
    /// That of the certificates; the server has the system's.
    clock: Arc<FakeClock>,
    certificates: PodCertificates,
    again: Receiver<Uid>,
    stop: StopToken,
}

impl Cluster {
    async fn start(minor: u32) -> Cluster {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let unique = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::SeqCst));
        let name = format!("kubelet-pod-certificates-{unique}");
        let folder = std::env::temp_dir().join(name);
        let options = SandboxOptions::new(&folder);
        // 1.37 serves v1 in any case.
        let all_versions = minor < 37;
        let options = SandboxOptions { minor, all_versions, service_accounts: false, ..options };
        let sandbox = Sandbox::start(options).await.expect("the sandbox starts");
        let system = SystemClock::shared();
        let client = administrator(&sandbox.kubeconfig(), "test", &system).expect("a client");
        let node = json!({"metadata": {"name": "n"}});
        client.create::<Node>("", &node).await.expect("a Node");
        let account = json!({"metadata": {"name": "a"}});
        client.create::<ServiceAccount>("default", &account).await.expect("an account");
        let (own, stop) = (OwnNode::new("n", NodeAddress::default()), StopToken::new());
        let (followed, source) = (own.clone(), ClientSource::new(client.clone()));
        let (time, ended) = (system.clone(), stop.clone());
        drop(task::spawn(async move { followed.follow(source, time, ended).await }));
        let clock = FakeClock::new(system.now());
        let (sender, again) = async_channel::unbounded();
        let changes = Changes { changed: Arc::default(), again: sender };
        let certificates =
            PodCertificates::new(client.clone(), own, clock.clone(), changes, stop.clone());
        Cluster { sandbox, folder, client, clock, certificates, again, stop }
    }

    async fn end(self) {
        self.stop.stop();
        self.sandbox.stop().await;
        let _ = std::fs::remove_dir_all(&self.folder);
    }

    /// Returns the requests that the server has for a pod, when there are this many. The clock of
    /// the certificates moves, but never while the informer does not know a request: that one would
    /// be abandoned.
    async fn requests(&self, pod: &str, count: usize) -> Vec<Value> {
        // Before that the version that is served may be unknown.
        in_time("the informer syncs", self.certificates.0.requests.synced()).await;
        let end = SystemClock.monotonic() + PATIENCE;
        loop {
            let requests = self.client.resource(&PodCertificateRequest::RESOURCE);
            let listed = requests.list::<Value>(Some("default"), &Default::default()).await;
            let mut found = listed.expect("a list").items;
            let is_known = |request| self.certificates.0.lister.get(&key(request)).is_some();
            if found.iter().all(is_known) {
                found.retain(|request| request["spec"]["podName"] == pod);
                if found.len() == count {
                    return found;
                }
                assert!(found.len() < count, "{found:#?}");
                // A task may have begun to sleep after the last change.
                self.clock.advance(Duration::from_secs(1));
            }
            assert!(SystemClock.monotonic() < end, "{count} requests of {pod}: {found:#?}");
            SystemClock.sleep(Duration::from_millis(5)).await;
        }
    }

    /// Answers a request, and waits until its pod is synced again.
    async fn answer(&self, request: &Value, status: Value) {
        let requests = self.client.resource(&PodCertificateRequest::RESOURCE);
        let patch = Patch::Merge(json!({"status": status}));
        let answered = requests.subresource("status").patch::<Value>(&key(request), &patch).await;
        answered.expect("patched");
        let synced = in_time("the pod is synced again", self.again.recv()).await.expect("a pod");
        assert_eq!(request["spec"]["podUID"], json!(&*synced));
    }

    /// A status with a certificate that is renewed after six hours and ends after eight.
    fn issued(&self, content: &str) -> Value {
        let now: Timestamp = self.clock.now();
        let mut status = condition("Issued");
        status["certificateChain"] = json!(chain_of(content));
        status["notBefore"] = json!(now);
        status["beginRefreshAt"] = json!(now + 6 * HOUR);
        status["notAfter"] = json!(now + 8 * HOUR);
        status
    }

    /// What the pod has for its source.
    fn known(&self, pod: &Pod) -> Result<Credentials, String> {
        let mut known = self.certificates.known(&pod.uid());
        assert_eq!(known.len(), 1);
        let found = known.remove(&("v".to_owned(), 1)).expect("the second source of the volume");
        found.map_err(|error| error.to_string())
    }
}

/// Waits for what happens by itself.
async fn in_time<T>(what: &str, happens: impl Future<Output = T>) -> T {
    let late = async {
        SystemClock.sleep(PATIENCE).await;
        panic!("too late: {what}");
    };
    happens.or(late).await
}

/// The key of a request.
fn key(request: &Value) -> ObjectKey {
    ObjectKey::new("default", request["metadata"]["name"].as_str().expect("a name"))
}

fn chain_of(content: &str) -> String {
    format!("-----BEGIN CERTIFICATE-----\n{content}\n-----END CERTIFICATE-----\n")
}

fn condition(kind: &str) -> Value {
    let time = SystemClock.now();
    let condition = json!({"type": kind, "status": "True", "reason": "R", "message": "M",
                           "lastTransitionTime": time});
    json!({"conditions": [condition]})
}

fn pod(name: &str) -> Pod {
    let source = json!({
        "signerName": SIGNER, "keyType": "ECDSAP256", "credentialBundlePath": "bundle",
        "maxExpirationSeconds": 7200, "userAnnotations": {"example.com/a": "b"},
    });
    let sources = json!([{"configMap": {"name": "m"}}, {"podCertificate": source}]);
    let pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("u-{name}")},
        "spec": {"serviceAccountName": "a", "containers": [],
                 "volumes": [{"name": "e"}, {"name": "v", "projected": {"sources": sources}}]},
    });
    serde_json::from_value(pod).expect("a pod")
}

/// Whether a private key is that of a request.
fn is_key_of(key: &str, request: &Value) -> bool {
    let key = PrivateKey::from_pem(key.as_bytes(), "a test").expect("a key");
    public_key(request) == key.public_key
}

/// The public key of a request, in DER.
fn public_key(request: &Value) -> Vec<u8> {
    let text = request["spec"]["stubPKCS10Request"].as_str().expect("a request");
    let request = CertReq::from_der(&STANDARD.decode(text).expect("base64")).expect("a request");
    request.info.public_key.to_der().expect("DER")
}

#[test]
fn certificates_are_requested_renewed_and_forgotten() {
    for (minor, version) in [(36, "v1beta1"), (37, "v1")] {
        task::run(1, async move {
            let cluster = Cluster::start(minor).await;
            let (p, q) = (pod("p"), pod("q"));
            for pod in [&p, &q] {
                cluster.certificates.track(pod);
                cluster.certificates.track(pod);
                let not_yet = "credential bundle is not issued yet";
                assert_eq!(cluster.known(pod).err().as_deref(), Some(not_yet));
            }
            let label = |state| ((SIGNER.to_owned(), state), 2);
            assert_eq!(cluster.certificates.counts(), [label("not_yet_issued")].into());
            let first = cluster.requests("p", 1).await.remove(0);
            let served = cluster.client.served(&PodCertificateRequest::RESOURCE);
            assert_eq!(served.version, version);
            let name = first["metadata"]["name"].as_str().expect("a name");
            assert!(name.starts_with("req-"), "{name}");
            let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u-p"}]);
            assert_eq!(first["metadata"]["ownerReferences"], owner);
            let node = cluster.client.get::<Node>(&ObjectKey::cluster("n")).await.expect("a Node");
            let account = cluster.client.get::<ServiceAccount>(&tokens::account(&p)).await;
            let account = account.expect("an account");
            let mut spec = first["spec"].clone();
            spec["stubPKCS10Request"] = Value::Null;
            let expected = json!({
                "signerName": SIGNER, "podName": "p", "podUID": "u-p",
                "serviceAccountName": "a", "serviceAccountUID": account.meta.uid,
                "nodeName": "n", "nodeUID": node.meta.uid,
                "maxExpirationSeconds": 7200, "stubPKCS10Request": null,
                "unverifiedUserAnnotations": {"example.com/a": "b"},
            });
            assert_eq!(spec, expected);
            cluster.answer(&first, cluster.issued("AAAA")).await;
            let found = cluster.known(&p).expect("a certificate");
            assert_eq!(&*found.chain, chain_of("AAAA"));
            assert!(is_key_of(&found.key, &first));
            let other = cluster.requests("q", 1).await.remove(0);
            assert!(!is_key_of(&found.key, &other));
            cluster.answer(&other, cluster.issued("AAAA")).await;
            assert_eq!(cluster.certificates.counts(), [label("fresh")].into());
            // The renewal has a key of its own, and the old one stays in use until the answer.
            cluster.clock.advance(6 * HOUR + LATE);
            let renewal = cluster.requests("p", 2).await;
            let is_new = |request: &&Value| request["metadata"]["name"] != name;
            let renewal = renewal.iter().find(is_new).expect("a second request");
            assert_eq!(cluster.known(&p).expect("a certificate").key, found.key);
            cluster.answer(renewal, cluster.issued("AAEC")).await;
            let found = cluster.known(&p).expect("a certificate");
            assert_eq!(&*found.chain, chain_of("AAEC"));
            assert!(is_key_of(&found.key, renewal));
            let of_other = cluster.requests("q", 2).await;
            let is_new =
                |request: &&Value| request["metadata"]["name"] != other["metadata"]["name"];
            let of_other = of_other.iter().find(is_new).expect("a second request");
            cluster.answer(of_other, cluster.issued("AAEC")).await;
            // A pod that has ended needs no third one, when the other does.
            cluster.certificates.forget(&p.uid());
            assert!(cluster.certificates.known(&p.uid()).is_empty());
            assert_eq!(cluster.certificates.counts().into_values().sum::<i64>(), 1);
            cluster.clock.advance(6 * HOUR + LATE);
            cluster.requests("q", 3).await;
            cluster.requests("p", 2).await;
            cluster.end().await;
        });
    }
}

#[test]
fn refused_certificate_stays_refused() {
    task::run(1, async {
        let cluster = Cluster::start(36).await;
        let pods = [("p", "Denied", "denied"), ("q", "Failed", "failed")];
        for (name, kind, label) in pods {
            let pod = pod(name);
            cluster.certificates.track(&pod);
            let request = cluster.requests(name, 1).await.remove(0);
            cluster.answer(&request, condition(kind)).await;
            let fault = format!(
                "PodCertificateRequest was permanently {label}: reason=\"R\" message=\"M\""
            );
            assert_eq!(cluster.known(&pod).err(), Some(fault));
            let counts = cluster.certificates.counts();
            assert_eq!(counts[&(SIGNER.to_owned(), label)], 1);
        }
        cluster.end().await;
    });
}

#[test]
fn pods_without_such_a_source_are_not_tracked() {
    task::run(1, async {
        let cluster = Cluster::start(36).await;
        let mut plain = pod("p");
        plain.spec.get_or_insert_default().volumes = None;
        cluster.certificates.track(&plain);
        let inner = &cluster.certificates.0;
        assert!(inner.pods.lock().is_empty() && !inner.followed.is_completed());
        cluster.certificates.track(&pod("q"));
        assert!(inner.pods.lock().len() == 1 && inner.followed.is_completed());
        cluster.end().await;
    });
}

#[test]
fn key_is_used_again_after_a_failure() {
    task::run(1, async {
        let cluster = Cluster::start(36).await;
        let (verb, resource) = ("create", "podcertificaterequests");
        cluster.sandbox.faults().next(1, verb, resource, ServerFault::LoseAnswer);
        cluster.certificates.track(&pod("p"));
        let found = cluster.requests("p", 2).await;
        assert_eq!(public_key(&found[0]), public_key(&found[1]));
        cluster.end().await;
    });
}

#[test]
fn delays_double_from_five_milliseconds() {
    let millis = |failures| retry_delay(failures).map(|delay| delay.as_millis());
    for (failures, expected) in
        [(0, None), (1, Some(5)), (2, Some(10)), (3, Some(20)), (11, Some(5_120))]
    {
        assert_eq!(millis(failures), expected, "{failures}");
    }
    assert!(retry_delay(u32::MAX).is_some_and(|delay| delay > PERIOD));
}
