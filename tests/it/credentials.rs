//! The client's credentials and its connections to the API server.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_std::io::{BufReader, ReadExt, WriteExt};
use async_std::net::{TcpListener, TcpStream};
use futures_lite::future::zip;
use futures_lite::{AsyncBufReadExt, FutureExt, StreamExt, io};
use futures_rustls::TlsAcceptor;
use kube_controller_manager::client::{
    Client, Config, Credentials, Delete, Error, Exec, Guard, Impersonation, ListOptions, Pem,
    Result, WatchStream,
};
use kube_controller_manager::clock::{FakeClock, SharedClock, SystemClock};
use kube_controller_manager::objects::{ObjectKey, Resource, ServiceAccount};
use kube_controller_manager::task::spawn;
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};

use crate::env::*;
use crate::kinds::{BINDINGS, CONFIG_MAPS, SELF_REVIEWS};

async fn user_of(client: &Client) -> Result<String> {
    let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
    let answer: Value = client.resource(&SELF_REVIEWS).create("", &review).await?;
    Ok(answer["status"]["userInfo"]["username"].as_str().unwrap_or_default().to_owned())
}

/// The configuration of a new user of the sandbox who may do everything. Certificate and key are in
/// files.
fn user(env: &Env, name: &str) -> Config {
    let kubeconfig = env.cluster.sandbox.kubeconfig_for(name, &["system:masters"]).unwrap();
    Config::from_kubeconfig(kubeconfig, None, None).unwrap()
}

fn file(pem: &Option<Pem>) -> &Path {
    let Some(Pem::File(path)) = pem else { panic!("{pem:?} is not a file") };
    path
}

#[test]
fn a_new_certificate_is_used_at_once_when_it_is_complete() {
    Env::run("rotation", async |env| {
        let (config, next) = (user(env, "first"), user(env, "second"));
        let client = Client::new(config.clone(), env.clock.clone()).unwrap();
        assert_eq!(user_of(&client).await.unwrap(), "first");
        std::fs::copy(file(&next.tls.certificate), file(&config.tls.certificate)).unwrap();
        assert_eq!(user_of(&client).await.unwrap(), "first", "the new key is missing");
        std::fs::copy(file(&next.tls.key), file(&config.tls.key)).unwrap();
        assert_eq!(
            user_of(&client).await.unwrap(),
            "second",
            "the first user's connection is not used"
        );
    });
}

#[test]
fn a_plugin_may_issue_a_certificate() {
    Env::run("plugin", async |env| {
        let folder = Folder::new("plugin");
        let answer = folder.0.join("answer.json");
        let version = "client.authentication.k8s.io/v1";
        // Always expired: the plugin runs for each request.
        let issue = |name: &str| {
            let tls = user(env, name).tls;
            let text = |pem: &Option<Pem>| std::fs::read_to_string(file(pem)).unwrap();
            let credential = json!({
                "apiVersion": version, "kind": "ExecCredential", "status": {
                    "clientCertificateData": text(&tls.certificate),
                    "clientKeyData": text(&tls.key),
                    "expirationTimestamp": "2000-01-01T00:00:00Z",
                },
            });
            std::fs::write(&answer, credential.to_string()).unwrap();
        };
        let mut config = user(env, "unused");
        (config.tls.certificate, config.tls.key) = (None, None);
        config.credentials = Credentials::Exec(Box::new(Exec {
            api_version: version.to_owned(),
            command: "cat".to_owned(),
            args: vec![answer.to_string_lossy().into_owned()],
            ..Exec::default()
        }));
        let client = Client::new(config, env.clock.clone()).unwrap();
        let error = user_of(&client).await.unwrap_err();
        assert!(matches!(error, Error::Credentials(_)), "{error}");
        for name in ["first", "first", "second"] {
            issue(name);
            assert_eq!(user_of(&client.named("other name")).await.unwrap(), name);
        }
    });
}

#[test]
fn a_refused_token_is_replaced_and_the_request_repeated() {
    Env::run("refused", async |env| {
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "robot" },
        });
        create(&env.client, account).await;
        let request =
            json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
        let key = ObjectKey::new("default", "robot");
        let tokens = env.client.resource(&ServiceAccount::RESOURCE).subresource("token");
        let answer: Value = tokens.create_for(&key, &request).await.unwrap();
        let good = answer["status"]["token"].as_str().unwrap().to_owned();
        let asked: Arc<Mutex<Vec<Option<String>>>> = Arc::default();
        let provider = {
            let asked = asked.clone();
            Arc::new(move |refused: Option<String>| {
                let token = if refused.is_none() { "bad".to_owned() } else { good.clone() };
                asked.lock().unwrap().push(refused);
                Box::pin(async { Ok(token) }) as futures_lite::future::Boxed<_>
            })
        };
        let client = env.client.with_tokens("robot", provider).unwrap();
        assert_eq!(user_of(&client).await.unwrap(), "system:serviceaccount:default:robot");
        assert_eq!(*asked.lock().unwrap(), [None, Some("bad".to_owned())]);
    });
}

/// Accepts one connection and reads the head of its request. `answer`: the status line to send.
async fn proxy(listener: &TcpListener, answer: &str) -> String {
    let (stream, _) = listener.accept().await.unwrap();
    let mut client = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        let mut line = String::new();
        assert_ne!(client.read_line(&mut line).await.unwrap(), 0, "{head}");
        head.push_str(&line);
    }
    let mut client = client.into_inner();
    client.write_all(format!("HTTP/1.1 {answer}\r\nx: y\r\n\r\n").as_bytes()).await.unwrap();
    if answer.starts_with("200") {
        let target = head.split(' ').nth(1).unwrap();
        let server = TcpStream::connect(target).await.unwrap();
        let there = io::copy(client.clone(), server.clone());
        let back = io::copy(server.clone(), client.clone());
        async_std::task::spawn(zip(there, back));
    } else {
        // Read to the end, so that a reset does not discard the answer.
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.unwrap();
    }
    head
}

#[test]
fn a_proxy_is_asked_for_a_tunnel() {
    Env::run("proxy", async |env| {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut config = user(env, "first");
        let target = config.host.strip_prefix("https://").unwrap().to_owned();
        config.proxy = Some(format!("http://u:p@{}", listener.local_addr().unwrap()));
        let client = Client::new(config, env.clock.clone()).unwrap();
        let (head, error) = zip(proxy(&listener, "403 Forbidden"), user_of(&client)).await;
        assert!(head.contains("\r\nproxy-authorization: Basic dTpw\r\n"), "{head}");
        let error = error.unwrap_err();
        assert!(error.is_transport() && error.to_string().contains("403"), "{error}");
        let (head, found) = zip(proxy(&listener, "200 OK"), user_of(&client)).await;
        assert!(head.starts_with(&format!("CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n")));
        assert_eq!(found.unwrap(), "first");
    });
}

#[test]
fn a_proxy_forwards_requests_without_tls() {
    block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let folder = Folder::new("plain-proxy");
        let kubeconfig = folder.0.join("kubeconfig");
        let text = json!({
            "current-context": "c",
            "contexts": [{ "name": "c", "context": { "cluster": "c" } }],
            "clusters": [{ "name": "c", "cluster": {
                "server": "http://k.example:8080",
                "proxy-url": format!("http://u:p@{}", listener.local_addr().unwrap()),
            } }],
        });
        std::fs::write(&kubeconfig, text.to_string()).unwrap();
        let config = Config::from_kubeconfig(&kubeconfig, None, None).unwrap();
        let client = Client::new(config, SystemClock::shared()).unwrap();
        let serve = async {
            let (stream, _) = listener.accept().await.unwrap();
            let mut lines = BufReader::new(stream.clone()).lines();
            let mut heads = [const { Vec::new() }; 2];
            for head in &mut heads {
                while let Some(line) = lines.try_next().await.unwrap().filter(|l| !l.is_empty()) {
                    head.push(line);
                }
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
                (&stream).write_all(answer).await.unwrap();
            }
            heads
        };
        let ask = async {
            client.get_path("/api").await.unwrap();
            client.get_path("/version").await.unwrap();
        };
        // Both requests use one connection.
        let (heads, ()) = zip(serve, ask).await;
        for (head, path) in heads.iter().zip(["/api", "/version"]) {
            assert_eq!(head[0], format!("GET http://k.example:8080{path} HTTP/1.1"));
            for line in ["host: k.example:8080", "proxy-authorization: Basic dTpw"] {
                assert!(head.iter().any(|found| found == line), "{head:?}");
            }
        }
    });
}

/// The user that the API server sees.
async fn whole_user(client: &Client) -> Result<Value> {
    let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
    let answer: Value = client.resource(&SELF_REVIEWS).create("", &review).await?;
    Ok(answer["status"]["userInfo"].clone())
}

/// Gives the manager all rights, impersonation included.
async fn grant_manager_all_rights(env: &TestCluster) {
    let group = "rbac.authorization.k8s.io";
    let binding = json!({
        "apiVersion": BINDINGS.api_version(), "kind": BINDINGS.kind,
        "metadata": { "name": "test-manager" },
        "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin" },
        "subjects": [
            { "apiGroup": group, "kind": "User", "name": "system:kube-controller-manager" },
        ],
    });
    env.client.resource(&BINDINGS).create::<Value>("", &binding).await.expect("create");
}

#[test]
fn a_user_impersonates_and_its_controllers_do_not() {
    everywhere("impersonation", async |env| {
        grant_manager_all_rights(env).await;
        let mut config = Config::from_kubeconfig(&env.kubeconfig, None, None).unwrap();
        config.impersonation = Some(Impersonation {
            user: "deputy".to_owned(),
            uid: "7".to_owned(),
            groups: vec!["one".to_owned(), "two words".to_owned()],
            extra: [("a/b%".to_owned(), vec!["x".to_owned(), "y".to_owned()])].into(),
        });
        let client = Client::new(config.clone(), env.clock.clone()).unwrap();
        for client in [client.clone(), client.named("other")] {
            let user = eventually(&env.clock, "it may act as another", || async {
                whole_user(&client).await.map_err(|error| error.to_string())
            })
            .await;
            assert_eq!((&user["username"], &user["uid"]), (&json!("deputy"), &json!("7")));
            assert_eq!(user["groups"], json!(["one", "two words", "system:authenticated"]));
            assert_eq!(user["extra"], json!({ "a/b%": ["x", "y"] }));
        }
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "robot" },
        });
        create(&env.client, account).await;
        let request =
            json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
        let tokens = env.client.resource(&ServiceAccount::RESOURCE).subresource("token");
        let key = ObjectKey::new("default", "robot");
        let answer: Value = tokens.create_for(&key, &request).await.unwrap();
        let token = answer["status"]["token"].as_str().unwrap().to_owned();
        let provider = Arc::new(move |_| {
            let token = token.clone();
            Box::pin(async { Ok(token) }) as futures_lite::future::Boxed<_>
        });
        let robot = client.with_tokens("robot", provider).unwrap();
        assert_eq!(user_of(&robot).await.unwrap(), "system:serviceaccount:default:robot");
    });
}

/// TLS with a server's certificate that no authority has signed.
fn untrusted_tls() -> TlsAcceptor {
    let pair = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(pair.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![pair.cert.der().clone()], key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

#[test]
fn a_proxy_with_tls_is_trusted_as_the_server_is() {
    Env::run("tls-proxy", async |env| {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut config = user(env, "first");
        let target = config.host.strip_prefix("https://").unwrap().to_owned();
        config.proxy = Some(format!("https://{}", listener.local_addr().unwrap()));
        let acceptor = untrusted_tls();
        let client = Client::new(config.clone(), env.clock.clone()).unwrap();
        let serve = async {
            let (stream, _) = listener.accept().await.unwrap();
            acceptor.accept(stream).await.map(drop)
        };
        let (accepted, error) = zip(serve, user_of(&client)).await;
        assert!(accepted.is_err(), "it is not trusted");
        let error = error.unwrap_err();
        assert!(
            error.is_transport() && error.to_string().contains("TLS with 127.0.0.1"),
            "{error}"
        );

        (config.tls.ca, config.tls.insecure) = (None, true);
        let client = Client::new(config, env.clock.clone()).unwrap();
        let serve = async {
            let (stream, _) = listener.accept().await.unwrap();
            let mut client = acceptor.accept(stream).await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                client.read_exact(&mut byte).await.unwrap();
                head.push(byte[0]);
            }
            client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            client.flush().await.unwrap();
            let server = TcpStream::connect(&target).await.unwrap();
            let (from, to) = io::split(client);
            async_std::task::spawn(zip(io::copy(from, server.clone()), io::copy(server, to)));
            String::from_utf8(head).unwrap()
        };
        let (head, found) = zip(serve, user_of(&client)).await;
        assert!(head.starts_with(&format!("CONNECT {target} HTTP/1.1\r\n")), "{head}");
        assert_eq!(found.unwrap(), "first");
    });
}

#[test]
fn a_socks_proxy_is_asked_for_a_connection() {
    Env::run("socks-proxy", async |env| {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut config = user(env, "first");
        let target = config.host.strip_prefix("https://").unwrap().to_owned();
        config.proxy = Some(format!("socks5://{}", listener.local_addr().unwrap()));
        let client = Client::new(config, env.clock.clone()).unwrap();
        let serve = async {
            let (mut client, _) = listener.accept().await.unwrap();
            let (mut greeting, mut request) = ([0; 3], [0; 10]);
            client.read_exact(&mut greeting).await.unwrap();
            client.write_all(&[5, 0]).await.unwrap();
            client.read_exact(&mut request).await.unwrap();
            client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.unwrap();
            let server = TcpStream::connect(&target).await.unwrap();
            let there = io::copy(client.clone(), server.clone());
            async_std::task::spawn(zip(there, io::copy(server, client)));
            request
        };
        let (request, found) = zip(serve, user_of(&client)).await;
        assert_eq!(request[..8], [5, 1, 0, 1, 127, 0, 0, 1]);
        assert_eq!(found.unwrap(), "first");
    });
}

/// As a server does that refuses the client's certificate after the handshake.
#[test]
fn a_connection_that_is_of_no_use_fails_its_request() {
    block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut config = Config::new("http://k.example:8080");
        config.proxy = Some(format!("socks5://{}", listener.local_addr().unwrap()));
        let client = Client::new(config, SystemClock::shared()).unwrap();
        let serve = async {
            for _ in 0..20 {
                let (mut stream, _) = listener.accept().await.unwrap();
                let (mut greeting, mut request) = ([0; 3], [0; 16]);
                stream.read_exact(&mut greeting).await.unwrap();
                stream.write_all(&[5, 0]).await.unwrap();
                stream.read_exact(&mut request).await.unwrap();
                // The connection is there, and before any request it says something, and closes.
                stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0, b'?']).await.unwrap();
            }
            None
        };
        let ask = async { Some(client.get::<ServiceAccount>(&ObjectKey::new("a", "b")).await) };
        let answer = ask.or(serve).await.expect("an answer before 20 connections");
        assert!(answer.is_err_and(|error| error.is_transport()));
    });
}

#[test]
fn a_write_is_held_back_when_the_lease_is_lost_while_it_connects() {
    block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut config = Config::new("http://k.example:8080");
        config.proxy = Some(format!("socks5://{}", listener.local_addr().unwrap()));
        let lease = Arc::new(AtomicBool::new(true));
        let guard = lease.clone();
        let client = Client::new(config, SystemClock::shared())
            .unwrap()
            .guarded(Guard::new(move || guard.load(Ordering::SeqCst)));
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (mut greeting, mut request) = ([0; 3], [0; 16]);
            stream.read_exact(&mut greeting).await.unwrap();
            stream.write_all(&[5, 0]).await.unwrap();
            stream.read_exact(&mut request).await.unwrap();
            lease.store(false, Ordering::SeqCst);
            stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.unwrap();
            stream
        };
        let ask = async move {
            let key = ObjectKey::new("a", "b");
            // Moved into this block, so that its connections close when it is dropped.
            let client = client;
            let sent = client.delete::<ServiceAccount>(&key, Delete::new());
            let clock = SystemClock::shared();
            let unanswered = async {
                clock.sleep(PATIENCE).await;
                None
            };
            async { Some(sent.await) }.or(unanswered).await
        };
        let (mut stream, answer) = zip(serve, ask).await;
        assert!(matches!(answer, Some(Err(Error::GuardRefused { .. }))), "{answer:?}");
        let mut sent = Vec::new();
        stream.read_to_end(&mut sent).await.unwrap();
        assert!(sent.is_empty(), "{}", String::from_utf8_lossy(&sent));
    });
}

/// A watch that is answered and gets no events.
async fn quiet_watch(client: &Client) -> WatchStream {
    let (maps, options) = (client.resource(&CONFIG_MAPS), ListOptions::default());
    let namespace = Some("empty");
    maps.watch(namespace, &options, false, Duration::from_secs(3600)).await.expect("watch")
}

/// Whether the watch ends within 30 s of `clock`.
async fn ends(mut watch: WatchStream, clock: &SharedClock) -> bool {
    let late = async {
        clock.sleep(Duration::from_secs(30)).await;
        false
    };
    async { watch.next().await.is_none() }.or(late).await
}

#[test]
fn a_watch_ends_with_the_certificate_that_it_was_started_with() {
    Env::run("watch-rotation", async |env| {
        let clock = FakeClock::new(env.clock.now());
        let (config, next) = (user(env, "first"), user(env, "second"));
        let client = Client::new(config.clone(), clock.clone()).unwrap();
        let rotate = |to: &Config| {
            for (from, to) in
                [(&to.tls.certificate, &config.tls.certificate), (&to.tls.key, &config.tls.key)]
            {
                std::fs::copy(file(from), file(to)).unwrap();
            }
        };
        // The next request sees the new files.
        let watch = quiet_watch(&client).await;
        rotate(&next);
        assert_eq!(user_of(&client).await.unwrap(), "second");
        assert!(ends(watch, &env.clock).await, "its certificate is out of date");

        // Without requests, a task looks at the files every few minutes. Files with a new date and
        // the same content change nothing.
        let mut watch = quiet_watch(&client).await;
        rotate(&next);
        assert_eq!(user_of(&client).await.unwrap(), "second");
        let more = futures_lite::future::poll_once(watch.next()).await;
        assert!(more.is_none(), "the certificate is the same");
        rotate(&user(env, "third"));
        let time_passes = async {
            loop {
                clock.advance(Duration::from_secs(5 * 60));
                env.clock.sleep(Duration::from_millis(50)).await;
            }
        };
        assert!(ends(watch, &env.clock).or(time_passes).await, "the files have changed");
        assert_eq!(user_of(&client).await.unwrap(), "third");
    });
}

/// Connections are opened by a proxy that the test plays: the second one is not opened before a
/// request has got the first one back.
#[test]
fn a_request_uses_the_connection_that_is_free_first() {
    async fn open(listener: &TcpListener) -> TcpStream {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (mut greeting, mut request) = ([0; 3], [0; 16]);
        stream.read_exact(&mut greeting).await.unwrap();
        stream.write_all(&[5, 0]).await.unwrap();
        stream.read_exact(&mut request).await.unwrap();
        stream
    }
    const OPENED: [u8; 10] = [5, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    /// The path of the next request on `stream`.
    async fn path(stream: &TcpStream) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            (&*stream).read_exact(&mut byte).await.unwrap();
            head.push(byte[0]);
        }
        String::from_utf8(head).unwrap().split(' ').nth(1).unwrap().to_owned()
    }
    async fn answer(stream: &TcpStream) {
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
        (&*stream).write_all(answer).await.unwrap();
    }
    block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut config = Config::new("http://k.example:8080");
        config.proxy = Some(format!("socks5://{}", listener.local_addr().unwrap()));
        let client = Client::new(config, SystemClock::shared()).unwrap();
        let get = |name: &'static str| {
            let client = client.clone();
            spawn(async move { client.get::<ServiceAccount>(&ObjectKey::new("a", name)).await })
        };
        let first = get("first");
        let mut one = open(&listener).await;
        one.write_all(&OPENED).await.unwrap();
        assert!(path(&one).await.ends_with("/first"));
        let second = get("second");
        let mut two = open(&listener).await;
        answer(&one).await;
        first.await.unwrap();
        assert!(path(&one).await.ends_with("/second"));
        // The second connection, which no request waits for now, serves the next request.
        two.write_all(&OPENED).await.unwrap();
        let third = get("third");
        assert!(path(&two).await.ends_with("/third"));
        answer(&two).await;
        answer(&one).await;
        second.await.unwrap();
        third.await.unwrap();
    });
}
