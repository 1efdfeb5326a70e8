//! An API server with the controllers of certificate requests, and the files of a node.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube_controller_manager::app::controller_table;
use kube_controller_manager::cache::SharedInformerFactory;
use kube_controller_manager::client::x509::Certificate;
use kube_controller_manager::client::{Client, Config, Delete, ListOptions, pem};
use kube_controller_manager::clock::{FakeClock, SharedClock, SystemClock};
use kube_controller_manager::controllers::{ControllerContext, ControllerContextParts};
use kube_controller_manager::objects::{
    CertificateSigningRequest, ObjectKey, Resource, ResourceType,
};
use kube_controller_manager::options::Options;
use kube_controller_manager::source::ClientSource;
use kube_controller_manager::task::{self, StopToken, Task};
use kubelet::certificate::{ClientCertificate, Places};
use sandbox::cluster::administrator;
use sandbox::{Sandbox, SandboxOptions};
use serde_json::{Value, json};

/// How long a step may take: no limit on performance.
const PATIENCE: Duration = Duration::from_secs(120);

pub const NODE: &str = "n1";
pub const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
pub const SERVING_SIGNER: &str = "kubernetes.io/kubelet-serving";

const SECRETS: ResourceType = ResourceType::fixed("", "v1", "Secret", "secrets", true);
const BINDINGS: ResourceType = ResourceType::fixed(
    "rbac.authorization.k8s.io",
    "v1",
    "ClusterRoleBinding",
    "clusterrolebindings",
    false,
);
const SELF_REVIEWS: ResourceType = ResourceType::fixed(
    "authentication.k8s.io",
    "v1",
    "SelfSubjectReview",
    "selfsubjectreviews",
    false,
);

/// A cluster whose certificates live by a clock that the test moves. Requests have the system's
/// time.
pub struct Cluster {
    pub sandbox: Sandbox,
    /// An administrator's.
    pub client: Client,
    /// Of the API server, the signers and the kubelet.
    pub clock: Arc<FakeClock>,
    pub places: Places,
    pub folder: PathBuf,
}

impl Cluster {
    /// With a bootstrap token, the rights that kubeadm gives for it, and a bootstrap kubeconfig.
    pub async fn start() -> Cluster {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let unique = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::SeqCst));
        let folder = std::env::temp_dir().join(format!("kubelet-identity-{unique}"));
        let system = SystemClock::shared();
        let clock = FakeClock::new(system.now());
        let options =
            SandboxOptions { clock: clock.clone(), ..SandboxOptions::new(folder.join("server")) };
        let sandbox = Sandbox::start(options).await.expect("the sandbox starts");
        let client = administrator(&sandbox.kubeconfig(), "test", &system).expect("a client");
        let places = Places {
            kubeconfig: folder.join("node/kubelet.conf"),
            bootstrap: Some(folder.join("node/bootstrap-kubelet.conf")),
            folder: folder.join("node/pki"),
        };
        let cluster = Cluster { sandbox, client, clock, places, folder };
        cluster.create_token().await;
        // The server has no node authorizer, from which nodes have their rights otherwise.
        cluster.bind("system:node", "system:nodes").await;
        cluster
    }

    async fn create_token(&self) {
        let secret = json!({
            "metadata": { "name": "bootstrap-token-abcdef" },
            "type": "bootstrap.kubernetes.io/token",
            "stringData": {
                "token-id": "abcdef", "token-secret": "0123456789abcdef",
                "usage-bootstrap-authentication": "true",
                "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
            },
        });
        let secrets = self.client.resource(&SECRETS);
        secrets.create::<Value>("kube-system", &secret).await.expect("created");
        let files = self.sandbox.client_config();
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "k", "cluster": {
                "server": files.server, "certificate-authority": files.ca,
            } }],
            "users": [{ "name": "u", "user": { "token": "abcdef.0123456789abcdef" } }],
            "contexts": [{ "name": "c", "context": { "cluster": "k", "user": "u" } }],
        });
        let file = self.places.bootstrap.as_ref().expect("a path");
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        std::fs::write(file, kubeconfig.to_string()).expect("written");
    }

    async fn bind(&self, role: &str, group: &str) {
        let binding = json!({
            "metadata": { "name": format!("test:{role}") },
            "roleRef": {
                "apiGroup": BINDINGS.group, "kind": "ClusterRole", "name": role,
            },
            "subjects": [{ "apiGroup": BINDINGS.group, "kind": "Group", "name": group }],
        });
        self.client.resource(&BINDINGS).create::<Value>("", &binding).await.expect("created");
    }

    /// The manager's approver and signers, by the cluster's clock. Certificates live for `life`.
    pub fn sign(&self, life: Duration) -> Signers {
        let beside = |name: &str| {
            self.sandbox.kubeconfig().with_file_name(name).to_string_lossy().into_owned()
        };
        let options = Options {
            cluster_signing_cert_file: beside("ca.crt"),
            cluster_signing_key_file: beside("ca.key"),
            cluster_signing_duration: life,
            ..Options::default()
        };
        let source = ClientSource::new(self.client.clone());
        let factory = SharedInformerFactory::new(source, SystemClock::shared());
        let context = ControllerContext::new(ControllerContextParts {
            options: Arc::new(options),
            factory: factory.clone(),
            clients: Arc::new(self.client.clone()),
            clock: self.clock.clone(),
            extension: None,
        });
        let stop = StopToken::new();
        let names = [
            "certificatesigningrequest-approving-controller",
            "certificatesigningrequest-signing-controller",
        ];
        let running = names.map(|name| {
            let row = controller_table::find(name).expect("a controller");
            let controller = row.construct(&context).expect("a controller");
            task::spawn(controller.run(stop.clone()))
        });
        factory.start(&stop);
        Signers { factory, stop, running }
    }

    /// The kubelet's client certificate, which it renews, and a client that shows it.
    pub fn renew(&self) -> (Client, Task<&'static str>) {
        let clock: SharedClock = self.clock.clone();
        let certificate =
            ClientCertificate::new(&self.places, NODE, &clock).expect("configurations");
        let client = client_of(certificate.config.clone());
        (client.clone(), task::spawn(certificate.run(client)))
    }

    /// The requests for certificates.
    pub async fn requests(&self) -> Vec<Value> {
        let requests = self.client.resource(&CertificateSigningRequest::RESOURCE);
        requests.list(None, &ListOptions::default()).await.expect("listed").items
    }

    /// Waits for a request to this signer that has no certificate and is not in `known`.
    pub async fn open_request(&self, signer: &str, known: &[String]) -> Value {
        self.eventually("a request", async || {
            let requests = self.requests().await;
            let is_open = |request: &&Value| {
                request["spec"]["signerName"] == signer
                    && request["status"]["certificate"].is_null()
                    && !known.contains(&name_of(request))
            };
            requests.iter().find(is_open).cloned().ok_or_else(|| format!("{requests:?}"))
        })
        .await
    }

    /// Adds a condition to a request, as an administrator does.
    pub async fn decide(&self, name: &str, kind: &str) {
        let key = ObjectKey::cluster(name);
        let requests = self.client.resource(&CertificateSigningRequest::RESOURCE);
        let mut object: Value = requests.get(&key).await.expect("a request");
        object["status"]["conditions"] = json!([{
            "type": kind, "status": "True", "reason": "Test", "message": "as the test asks",
        }]);
        let approval = requests.subresource("approval");
        approval.update::<Value>(&key, &object).await.expect("updated");
    }

    /// Puts a certificate into a request, as a signer does.
    pub async fn issue(&self, name: &str, certificate: &[u8]) {
        let key = ObjectKey::cluster(name);
        let requests = self.client.resource(&CertificateSigningRequest::RESOURCE);
        let mut object: Value = requests.get(&key).await.expect("a request");
        object["status"]["certificate"] = STANDARD.encode(certificate).into();
        let status = requests.subresource("status");
        status.update::<Value>(&key, &object).await.expect("updated");
    }

    pub async fn delete_request(&self, name: &str) {
        let key = ObjectKey::cluster(name);
        self.client
            .delete::<CertificateSigningRequest>(&key, Delete::new())
            .await
            .expect("deleted");
    }

    /// Repeats `step` until it succeeds. The cluster's clock moves meanwhile, for pauses after
    /// failures.
    pub async fn eventually<T>(
        &self,
        what: &str,
        mut step: impl AsyncFnMut() -> Result<T, String>,
    ) -> T {
        let system = SystemClock::shared();
        let end = system.monotonic() + PATIENCE;
        loop {
            match step().await {
                Ok(found) => return found,
                Err(last) => assert!(system.monotonic() < end, "{what}: {last}"),
            }
            system.sleep(Duration::from_millis(20)).await;
            self.clock.advance(Duration::from_millis(200));
        }
    }

    /// The certificate to which the link of `prefix` leads.
    pub fn current(&self, prefix: &str) -> Option<Certificate> {
        let link = self.places.folder.join(format!("{prefix}-current.pem"));
        let file = std::fs::read_link(link).ok()?;
        let text = std::fs::read(file).expect("the link leads to a file");
        let der = pem::certificates(&text);
        Some(Certificate::from_der(der.first()?).expect("a certificate"))
    }

    /// The user of the newest request.
    pub async fn last_requester(&self) -> String {
        let requests = self.requests().await;
        let version = |request: &Value| {
            let version = request["metadata"]["resourceVersion"].as_str();
            version.and_then(|version| version.parse::<u64>().ok())
        };
        let last = requests.iter().max_by_key(|request| version(request)).expect("a request");
        last["spec"]["username"].as_str().expect("a user").to_owned()
    }

    /// Waits for a client certificate with another key than `former`.
    pub async fn renewed(&self, former: Option<&Certificate>) -> Certificate {
        let former = former.map(Certificate::public_key);
        self.eventually("another certificate", async || {
            let current = self.current("kubelet-client");
            let other = current.filter(|current| Some(current.public_key()) != former);
            other.ok_or_else(|| "it stays".to_owned())
        })
        .await
    }

    /// Waits until `client` is the node.
    pub async fn is_node(&self, client: &Client) {
        self.eventually("the client is the node", async || {
            let review =
                json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
            let reviews = client.resource(&SELF_REVIEWS);
            let answer: Value =
                reviews.create("", &review).await.map_err(|error| error.to_string())?;
            let user = &answer["status"]["userInfo"];
            match (user["username"].as_str(), user["groups"][0].as_str()) {
                (Some("system:node:n1"), Some("system:nodes")) => Ok(()),
                _ => Err(user.to_string()),
            }
        })
        .await;
    }

    pub async fn stop(self) {
        self.sandbox.stop().await;
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The controllers of certificate requests, which run.
pub struct Signers {
    factory: SharedInformerFactory,
    stop: StopToken,
    running: [Task<()>; 2],
}

impl Signers {
    pub async fn stop(self) {
        self.stop.stop();
        for controller in self.running {
            controller.await;
        }
        self.factory.shutdown().await;
    }
}

/// A client by the system's clock.
pub fn client_of(config: Config) -> Client {
    Client::new(Config { qps: -1.0, ..config }, SystemClock::shared()).expect("a client")
}

pub fn name_of(object: &Value) -> String {
    object["metadata"]["name"].as_str().expect("a name").to_owned()
}

/// A certificate with another key than any request's, in PEM.
pub fn foreign_certificate() -> String {
    let made = rcgen::generate_simple_self_signed([NODE.to_owned()]);
    made.expect("a certificate").cert.pem()
}
