//! A machine that becomes a node by a bootstrap token: the manager's approver and signers issue its
//! certificates, and the pod that the scheduler gives it runs.

use std::cell::Cell;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use futures_lite::future::block_on;
use kube_controller_manager::client::{Client, Config, ListOptions};
use kube_controller_manager::clock::SystemClock;
use kube_controller_manager::objects::{
    CertificateSigningRequest, Node as NodeKind, ObjectKey, Pod, Resource, ResourceType,
};
use kube_controller_manager::options::Options;
use kube_controller_manager::task;
use serde_json::{Value, json};

use super::api::{Agent, PATIENCE, key, sleeps};
use super::cluster_server::ClusterServer;
use super::node::Node;
use super::pods::{condition, container, is_ready};
use super::secure::{self, Identity};

const RBAC: &str = "rbac.authorization.k8s.io";
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const SERVING_SIGNER: &str = "kubernetes.io/kubelet-serving";
const ACCOUNTS: ResourceType =
    ResourceType::fixed("", "v1", "ServiceAccount", "serviceaccounts", true);
const SELF_REVIEWS: ResourceType = ResourceType::fixed(
    "authentication.k8s.io",
    "v1",
    "SelfSubjectReview",
    "selfsubjectreviews",
    false,
);

/// Those that a node needs which joins by a token, and a pod with a token.
const CONTROLLERS: [&str; 5] = [
    "certificatesigningrequest-approving-controller",
    "certificatesigningrequest-signing-controller",
    "node-lifecycle-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
];

/// A cluster, and the files of a node that joins it.
struct Join {
    server: ClusterServer,
    /// Of the cluster's authority and the administrator.
    files: PathBuf,
    bootstrap: PathBuf,
    kubeconfig: PathBuf,
    pki: PathBuf,
    /// The kubelet's.
    port: u16,
    /// Keeps the port until the first kubelet starts.
    reservation: Cell<Option<TcpListener>>,
}

impl Join {
    async fn start(folder: &Path) -> Join {
        let files = folder.join("cluster/server");
        let options = Options {
            cluster_signing_cert_file: files.join("ca.crt").display().to_string(),
            cluster_signing_key_file: files.join("ca.key").display().to_string(),
            ..Options::default()
        };
        let (cluster, volumes) = (folder.join("cluster"), folder.join("volumes"));
        let server = ClusterServer::embedded(&cluster, &volumes, &CONTROLLERS, options).await;
        let reservation = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let join = Join {
            server,
            files,
            bootstrap: folder.join("node/bootstrap-kubelet.conf"),
            kubeconfig: folder.join("node/kubelet.conf"),
            pki: folder.join("node/pki"),
            port: reservation.local_addr().expect("an address").port(),
            reservation: Cell::new(Some(reservation)),
        };
        join.grant().await;
        join
    }

    /// Makes what `kubeadm token create` makes, and the kubeconfig that `kubeadm join` writes.
    async fn grant(&self) {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"},
            "type": "bootstrap.kubernetes.io/token",
            "stringData": {
                "token-id": "abcdef", "token-secret": "0123456789abcdef",
                "usage-bootstrap-authentication": "true",
                "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
            },
        });
        // The embedded API server has no node authorizer, from which nodes have their rights.
        let rights = json!({
            "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRoleBinding",
            "metadata": {"name": "test:nodes"},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "system:node"},
            "subjects": [{"apiGroup": RBAC, "kind": "Group", "name": "system:nodes"}],
        });
        self.server.create(&[secret, rights], "default").await;
        let admin = fs::read_to_string(&self.server.kubeconfig).expect("a file");
        let mut bootstrap: Value = serde_yaml_ng::from_str(&admin).expect("a kubeconfig");
        bootstrap["users"][0]["user"] = json!({"token": "abcdef.0123456789abcdef"});
        fs::create_dir_all(&self.pki).expect("a folder");
        fs::write(&self.bootstrap, bootstrap.to_string()).expect("written");
    }

    /// Starts a kubelet with kubeadm's flags and fields.
    fn agent(&self, node: &Node) -> Agent {
        let path = |flag: &str, path: &Path| format!("--{flag}={}", path.display());
        let flags = [
            path("bootstrap-kubeconfig", &self.bootstrap),
            path("kubeconfig", &self.kubeconfig),
            path("cert-dir", &self.pki),
            "--enable-server=true".to_owned(),
            format!("--port={}", self.port),
        ];
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let authority = self.files.join("ca.crt").display().to_string();
        let lines = format!(
            "rotateCertificates: true\nserverTLSBootstrap: true\n\
             authentication: {{x509: {{clientCAFile: {authority}}}}}\n"
        );
        drop(self.reservation.take());
        Agent::start_by(node, &flags, &lines)
    }

    /// The requests for certificates of a signer.
    async fn requests(&self, signer: &str) -> Vec<Value> {
        let requests = self.server.client.resource(&CertificateSigningRequest::RESOURCE);
        let listed = requests.list::<Value>(None, &ListOptions::default()).await;
        let mut requests = listed.expect("a list").items;
        requests.retain(|request| request["spec"]["signerName"] == signer);
        requests
    }

    /// Waits until the one request of a signer is as it should be.
    async fn request(&self, signer: &str, what: &str, is_so: fn(&Value) -> bool) -> Value {
        let end = self.server.clock.monotonic() + PATIENCE;
        loop {
            let requests = self.requests(signer).await;
            match &requests[..] {
                [one] if is_so(one) => return one.clone(),
                _ => assert!(self.server.clock.monotonic() < end, "not {what}: {requests:#?}"),
            }
            self.server.clock.sleep(std::time::Duration::from_millis(200)).await;
        }
    }

    /// Approves a request as `kubectl certificate approve` does.
    async fn approve(&self, mut request: Value) {
        let name = request["metadata"]["name"].as_str().expect("a name");
        let key = ObjectKey::cluster(name);
        request["status"]["conditions"] = json!([{
            "type": "Approved", "status": "True",
            "reason": "KubectlApprove", "message": "approved by the test",
        }]);
        let requests = self.server.client.resource(&CertificateSigningRequest::RESOURCE);
        let approval = requests.subresource("approval");
        approval.update::<Value>(&key, &request).await.expect("approved");
    }

    /// Asks the kubelet as the administrator; the cluster's authority vouches for both.
    async fn ask(&self, address: &str, path: &'static str) -> io::Result<(u16, String)> {
        let (port, address) = (self.port, address.to_owned());
        let (authority, admin) = (self.files.join("ca.crt"), self.files.join("admin.crt"));
        // The API server that the kubelet asks meanwhile is in this process.
        let answer = task::blocking(move || {
            let stream = TcpStream::connect((address.as_str(), port))?;
            let identity = Some(Identity::beside(&admin));
            let connection = secure::connect(stream, &authority, &address, identity)?;
            secure::ask(connection, "GET", path, "")
        });
        answer.await
    }

    async fn pod(&self, name: &str) -> Value {
        self.server.eventually((&Pod::RESOURCE, &key(name)), "ready", is_ready).await
    }

    async fn create_pod(&self, name: &str) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": sleeps(),
        });
        self.server.create(&[pod], "default").await;
    }
}

fn has_certificate(request: &Value) -> bool {
    request["status"]["certificate"].is_string()
}

/// The user that the API server sees behind a kubeconfig.
async fn user_of(kubeconfig: &Path) -> Value {
    let config = Config::from_kubeconfig(kubeconfig, None, None).expect("a kubeconfig");
    let client = Client::new(config, SystemClock::shared()).expect("a client");
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let answer = client.resource(&SELF_REVIEWS).create::<Value>("", &review).await;
    answer.expect("an answer")["status"]["userInfo"]["username"].clone()
}

#[test]
fn token_leads_to_a_ready_node_with_a_pod() {
    let Some(node) = Node::start("bootstrap") else { return };
    block_on(async move {
        let join = Join::start(&node.folder).await;
        let server = &join.server;
        let account = key("default");
        server.eventually((&ACCOUNTS, &account), "there", Value::is_object).await;
        // It waits for its node.
        join.create_pod("first").await;
        let agent = join.agent(&node);

        // The approver and the signer answer the token's request without a person.
        let request = join.request(CLIENT_SIGNER, "signed", has_certificate).await;
        assert_eq!(request["spec"]["username"], "system:bootstrap:abcdef");
        let approval = &request["status"]["conditions"][0];
        assert_eq!(
            (&approval["type"], &approval["reason"]),
            (&json!("Approved"), &json!("AutoApproved"))
        );
        let this = ObjectKey::cluster("n");
        let is_up = |node: &Value| condition(node, "Ready")["status"] == "True";
        let registered = server.eventually((&NodeKind::RESOURCE, &this), "ready", is_up).await;
        let current = join.pki.join("kubelet-client-current.pem");
        let target = fs::read_link(&current).expect("a link");
        let target = target.file_name().and_then(|name| name.to_str()).expect("a name");
        assert!(target.starts_with("kubelet-client-20") && target.ends_with(".pem"), "{target}");
        let mode = fs::metadata(&current).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let text = fs::read_to_string(&join.kubeconfig).expect("a kubeconfig");
        assert!(
            text.contains(&current.display().to_string()) && !text.contains("abcdef"),
            "{text}"
        );
        assert_eq!(user_of(&join.kubeconfig).await, "system:node:n");

        // Its pod is scheduled and runs.
        let first = join.pod("first").await;
        assert_eq!(first["spec"]["nodeName"], "n");
        assert_eq!(first["status"]["phase"], "Running");

        // It serves once a person has approved what it serves with.
        let addresses = registered["status"]["addresses"].as_array().expect("addresses");
        let internal = addresses.iter().find(|one| one["type"] == "InternalIP");
        let address = internal.and_then(|one| one["address"].as_str()).expect("an address");
        let open = join.request(SERVING_SIGNER, "there", |_| true).await;
        assert_eq!(open["spec"]["username"], "system:node:n");
        assert!(open["status"]["conditions"].is_null(), "{open:#}");
        assert!(join.ask(address, "/healthz").await.is_err(), "before its certificate");
        join.approve(open).await;
        join.request(SERVING_SIGNER, "signed", has_certificate).await;
        let serving = join.pki.join("kubelet-server-current.pem");
        let end = server.clock.monotonic() + PATIENCE;
        while !serving.exists() {
            assert!(server.clock.monotonic() < end, "{}", node.log());
            server.clock.sleep(std::time::Duration::from_millis(100)).await;
        }
        let (status, body) = join.ask(address, "/healthz").await.expect("an answer");
        assert_eq!((status, body.as_str()), (200, "ok"), "{}", node.log());
        let (status, pods) = join.ask(address, "/pods").await.expect("an answer");
        assert!(status == 200 && pods.contains("\"first\""), "{status} {pods}");

        // The next start has what this one got: the token may be gone.
        drop(agent);
        fs::remove_file(&join.bootstrap).expect("a file");
        let agent = join.agent(&node);
        join.create_pod("second").await;
        join.pod("second").await;
        assert_eq!(container(&join.pod("first").await), container(&first));
        assert_eq!(join.ask(address, "/healthz").await.expect("an answer").0, 200);
        for signer in [CLIENT_SIGNER, SERVING_SIGNER] {
            assert_eq!(join.requests(signer).await.len(), 1, "{signer}");
        }
        drop(agent);
        join.server.stop().await;
    });
}
