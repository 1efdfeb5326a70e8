//! The port with authentication, under attack: beside the embedded API server, and a runtime without
//! containers.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use kube_controller_manager::objects::{ObjectKey, ResourceType};
use kube_controller_manager::task;
use serde_json::{Value, json};

use super::api::Server;
use super::fake_runtime::{Answers, FakeRuntime};
use super::registration::{Agent, Folder, NAME, is_possible, status};
use super::secure::{self, Connection, Identity};

const PATIENCE: Duration = Duration::from_secs(120);
const RBAC: &str = "rbac.authorization.k8s.io";
const ROLES: ResourceType = ResourceType::fixed(RBAC, "v1", "ClusterRole", "clusterroles", false);
const BINDINGS: ResourceType =
    ResourceType::fixed(RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings", false);
const ACCOUNTS: ResourceType =
    ResourceType::fixed("", "v1", "ServiceAccount", "serviceaccounts", true);

/// A kubelet with its port.
struct Port {
    server: Server,
    agent: Agent,
    folder: Folder,
    port: u16,
}

impl Port {
    async fn start(flags: &[&str]) -> Port {
        let server = Server::start_with(|options| options).await;
        let folder = Folder::make();
        let answers = Answers { status: status(true), ..Answers::default() };
        let runtime = FakeRuntime::start(&folder.0, answers);
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let trusted = folder.0.join("clients.crt");
        std::fs::copy(&server.sandbox.client_config().ca, &trusted).expect("a file");
        let own = [
            "--enable-server=true".to_owned(),
            "--address=127.0.0.1".to_owned(),
            format!("--port={port}"),
            format!("--client-ca-file={}", trusted.display()),
            format!("--cert-dir={}", folder.0.join("pki").display()),
        ];
        let flags: Vec<&str> =
            own.iter().map(String::as_str).chain(flags.iter().copied()).collect();
        let agent = Agent::start(&folder.0, &server, &runtime, &flags);
        let port = Port { server, agent, folder, port };
        let end = port.server.clock.monotonic() + PATIENCE;
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port.port)).is_err() {
            assert!(port.server.clock.monotonic() < end, "no port: {}", port.agent.log());
            port.server.clock.sleep(Duration::from_millis(100)).await;
        }
        port
    }

    fn connect(&self, identity: Option<Identity>) -> std::io::Result<Connection> {
        connect(self.port, &self.folder.0, identity)
    }

    /// Asks the kubelet in another thread: the API server that it asks meanwhile is in this one.
    async fn ask(&self, identity: Option<&Identity>, path: &str, headers: &str) -> (u16, String) {
        let (method, path) = path.split_once(' ').unwrap_or(("GET", path));
        let [method, path, headers] = [method, path, headers].map(str::to_owned);
        let (port, folder, identity) = (self.port, self.folder.0.clone(), identity.cloned());
        let of = path.clone();
        let answer = task::blocking(move || {
            let connection = connect(port, &folder, identity).expect("a connection");
            secure::ask(connection, &method, &path, &headers)
        });
        answer.await.unwrap_or_else(|error| panic!("{of}: {error}\n{}", self.agent.log()))
    }

    /// A user with a certificate of the cluster's authority.
    fn user(&self, name: &str, groups: &[&str]) -> Identity {
        let kubeconfig = self.server.sandbox.kubeconfig_for(name, groups).expect("a kubeconfig");
        Identity::beside(&kubeconfig)
    }

    async fn create(&self, resource: &ResourceType, namespace: &str, object: Value) {
        let created = self.server.client.resource(resource).create(namespace, &object).await;
        let _: Value = created.expect("created");
    }

    /// Grants these parts of nodes to a subject.
    async fn grant(&self, name: &str, subject: Value, parts: &[&str]) {
        let rule = json!({"apiGroups": [""], "verbs": ["get"], "resources": parts});
        let role = json!({"metadata": {"name": name}, "rules": [rule]});
        self.create(&ROLES, "", role).await;
        let binding = json!({
            "metadata": {"name": name}, "subjects": [subject],
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
        });
        self.create(&BINDINGS, "", binding).await;
    }
}

fn connect(port: u16, folder: &Path, identity: Option<Identity>) -> std::io::Result<Connection> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    secure::connect(stream, &folder.join("pki/kubelet.crt"), NAME, identity)
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

#[test]
fn users_get_what_the_api_server_grants() {
    if !is_possible() {
        return;
    }
    task::run(1, async {
        let port = Port::start(&["--manifest-url-header=Authorization:secret"]).await;
        let user = json!({"kind": "User", "apiGroup": RBAC, "name": "ada"});
        port.grant("pods", user, &["nodes/pods", "nodes/healthz"]).await;
        port.create(&ACCOUNTS, "default", json!({"metadata": {"name": "sa"}})).await;
        let account = json!({"kind": "ServiceAccount", "name": "sa", "namespace": "default"});
        port.grant("metrics", account, &["nodes/metrics"]).await;
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "metadata": {"name": "sa"}, "spec": {"expirationSeconds": 3600},
        });
        let tokens = port.server.client.resource(&ACCOUNTS).subresource("token");
        let token: Value =
            tokens.create_for(&ObjectKey::new("default", "sa"), &request).await.expect("a token");
        let token = bearer(token["status"]["token"].as_str().expect("a token"));
        let admin = port.user("admin", &["system:masters"]);
        let (ada, bob) = (port.user("ada", &[]), port.user("bob", &[]));
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, "admin");
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:masters");
        let own = params.self_signed(&key).expect("a certificate");
        let stranger = Identity {
            chain: vec![own.der().clone()],
            key: key.serialize_der().try_into().expect("a key"),
        };
        let (bad, forbidden) = (bearer("x.y.z"), "Forbidden (user=bob, verb=get, resource=nodes, ");
        for (identity, headers, path, status, text) in [
            (None, "", "/pods", 401, "Unauthorized"),
            (None, "", "/healthz", 401, "Unauthorized"),
            (None, &*bad, "/pods", 401, "Unauthorized"),
            (Some(&stranger), "", "/pods", 401, "Unauthorized"),
            (Some(&stranger), &bad, "/pods", 401, "Unauthorized"),
            (Some(&bob), "", "/pods", 403, &format!("{forbidden}subresource(s)=[pods proxy])\n")),
            (Some(&bob), "", "/metrics", 403, &format!("{forbidden}subresource(s)=[metrics])\n")),
            (Some(&bob), "", "/exec/a/b/c", 403, &format!("{forbidden}subresource(s)=[proxy])\n")),
            (Some(&bob), "", "/absent", 403, &format!("{forbidden}subresource(s)=[proxy])\n")),
            (Some(&ada), "", "/pods", 200, "\"kind\":\"PodList\""),
            (Some(&ada), "", "/healthz", 200, "ok"),
            (Some(&ada), "", "/configz", 403, "subresource(s)=[configz proxy])"),
            (Some(&ada), "", "/%70ods", 403, "subresource(s)=[proxy])"),
            (Some(&ada), "", "/pods/../configz", 404, "404 page not found"),
            (None, &token, "/metrics", 200, "kubelet_node_name"),
            (None, &token, "/metrics/probes", 200, ""),
            (None, &token, "/pods", 403, "Forbidden (user=system:serviceaccount:default:sa, "),
            (Some(&admin), "", "/pods", 200, "\"kind\":\"PodList\""),
            (Some(&admin), "", "/runningpods/", 200, "\"kind\":\"PodList\""),
            (Some(&admin), "", "/healthz/syncloop", 200, "ok"),
            (Some(&admin), "", "/configz", 200, "\"authorization\":{\"mode\":\"Webhook\""),
            (
                Some(&admin),
                "",
                "/configz",
                200,
                "\"staticPodURLHeader\":{\"Authorization\":[\"<masked>\"]}",
            ),
            (Some(&admin), "", "/flagz", 200, "\nmanifest-url-header=<masked>\n"),
            (Some(&admin), "", "/statusz", 200, "kubelet statusz"),
            (Some(&admin), "", "/debug/pprof/cmdline", 200, "--enable-server=true"),
            (Some(&admin), "", "/debug/flags/v", 406, "unsupported http method"),
            (Some(&admin), "", "/logs/absent", 404, "404 page not found"),
            (
                Some(&admin),
                "",
                "/exec/a/b/c",
                400,
                "you must specify at least 1 of stdin, stdout, stderr",
            ),
            (Some(&admin), "", "/exec/a/b/c?output=1", 404, "pod does not exist"),
            (Some(&admin), "", "/attach/a/b/c?output=1", 404, "pod does not exist"),
            (Some(&admin), "", "/portForward/a/b", 404, "pod does not exist"),
            (Some(&admin), "", "/containerLogs/a/b/c", 404, "pod \"b\" does not exist"),
            (Some(&admin), "", "/containerLogs/a/b/c?tailLines=x", 400, "Unable to decode query."),
            (Some(&admin), "", "/containerLogs/a/b/c?limitBytes=0", 422, "Invalid request."),
            (Some(&admin), "", "POST /run/a/b/c?cmd=ls", 404, "pod does not exist"),
            (Some(&admin), "", "/run/a/b/c?cmd=ls", 405, "405: Method Not Allowed"),
            (Some(&admin), "", "POST /checkpoint/a/b/c", 404, "pod does not exist"),
            (Some(&admin), "", "/exec/a", 404, "404: Page Not Found"),
            (Some(&admin), "", "/absent", 404, "404 page not found"),
        ] {
            let (found, body) = port.ask(identity, path, headers).await;
            assert_eq!(found, status, "{path}: {body}\n{}", port.agent.log());
            assert!(body.contains(text), "{path}: {body}");
        }
        assert!(!port.ask(Some(&admin), "/configz", "").await.1.contains("secret"));
        let metrics = port.ask(Some(&admin), "/metrics", "").await.1;
        let counted = "kubelet_http_requests_total{long_running=\"false\",method=\"GET\",\
                       path=\"configz\",server_type=\"readwrite\"}";
        assert!(metrics.contains(counted), "{metrics}");
        // Authorities are read again: the stranger's becomes one.
        std::fs::write(port.folder.0.join("clients.crt"), own.pem()).expect("a file");
        let end = port.server.clock.monotonic() + PATIENCE;
        while port.ask(Some(&admin), "/healthz", "").await.0 != 401 {
            assert!(port.server.clock.monotonic() < end, "{}", port.agent.log());
            port.server.clock.sleep(Duration::from_millis(500)).await;
        }
    });
}

#[test]
fn strangers_do_not_keep_others_out() {
    if !is_possible() {
        return;
    }
    task::run(1, async {
        let port = Port::start(&["--anonymous-auth=true"]).await;
        let admin = port.user("admin", &["system:masters"]);
        // More connections than there is room for: some are silent, some send half a head.
        let mut strangers = Vec::new();
        for _ in 0..400 {
            strangers.push(TcpStream::connect((Ipv4Addr::LOCALHOST, port.port)).expect("a stream"));
        }
        let mut slow = Vec::new();
        for _ in 0..20 {
            let mut connection = port.connect(None).expect("a connection");
            if connection.write_all(b"GET /pods HTTP/1.1\r\nHost: ").is_ok() {
                slow.push(connection);
            }
            assert_eq!(port.ask(Some(&admin), "/healthz", "").await.0, 200);
        }
        // A head without an end.
        let mut long = port.connect(None).expect("a connection");
        let _ = long.write_all(b"GET /pods HTTP/1.1\r\nHost: x\r\nX-A: ");
        for _ in 0..64 {
            if long.write_all(&[b'x'; 16 << 10]).is_err() {
                break;
            }
        }
        let mut answer = Vec::new();
        let _ = long.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
        // Without TLS.
        let mut plain = TcpStream::connect((Ipv4Addr::LOCALHOST, port.port)).expect("a stream");
        plain.write_all(b"GET /pods HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
        let mut answer = String::new();
        plain.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.0 400 "), "{answer}");
        let anonymous = "Forbidden (user=system:anonymous, verb=get, resource=nodes, ";
        let (status, body) = port.ask(None, "/pods", "").await;
        assert_eq!((status, body.starts_with(anonymous)), (403, true), "{body}");
        assert_eq!(port.ask(Some(&admin), "/pods", "").await.0, 200);
        drop((strangers, slow));
    });
}

#[test]
fn settings_that_do_not_fit_end_the_kubelet() {
    let run = |flags: &[&str]| {
        let output = std::process::Command::new(super::node::kubelet()).args(flags).output();
        let output = output.expect("the kubelet");
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for (flags, text) in [
        (&["--port=0"][..], "port (--port) 0 must be between 1 and 65535, inclusive"),
        (&["--authorization-mode=x"], "unknown authorization mode x"),
        (&["--tls-min-version=x"], "--tls-min-version: unknown tls version \"x\""),
    ] {
        let log = run(flags);
        assert!(log.contains(text), "{flags:?}: {log}");
    }
}
