//! Who the client says it is, and the way it takes to the API server.

use std::path::Path;
use std::sync::{Arc, Mutex};

use async_std::io::{BufReader, ReadExt, WriteExt};
use async_std::net::{TcpListener, TcpStream};
use futures_lite::future::zip;
use futures_lite::{AsyncBufReadExt, io};
use kube_controller_manager::client::{Client, Config, Credentials, Error, Exec, Pem, Result};
use kube_controller_manager::objects::{ObjectKey, Resource, ResourceType, ServiceAccount};
use serde_json::{Value, json};

use crate::env::*;

const SELF_REVIEWS: ResourceType = ResourceType::fixed(
    "authentication.k8s.io",
    "v1",
    "SelfSubjectReview",
    "selfsubjectreviews",
    false,
);

async fn who(client: &Client) -> Result<String> {
    let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
    let answer: Value = client.resource(&SELF_REVIEWS).create("", &review).await?;
    Ok(answer["status"]["userInfo"]["username"].as_str().unwrap_or_default().to_owned())
}

/// The connection of a user of the sandbox, and the files of the certificate and key.
fn user(env: &Env, name: &str) -> Config {
    let kubeconfig = env.cluster.sandbox.kubeconfig_for(name, &[]).unwrap();
    Config::from_kubeconfig(kubeconfig, None, None).unwrap()
}

fn file(pem: &Option<Pem>) -> &Path {
    let Some(Pem::File(path)) = pem else { panic!("{pem:?} is no file") };
    path
}

#[test]
fn a_new_certificate_is_shown_at_once_and_half_of_one_never() {
    block_on(async {
        let env = Env::new("rotation").await;
        let (config, next) = (user(&env, "first"), user(&env, "second"));
        let client = Client::new(config.clone(), env.clock.clone()).unwrap();
        assert_eq!(who(&client).await.unwrap(), "first");
        std::fs::copy(file(&next.tls.certificate), file(&config.tls.certificate)).unwrap();
        assert_eq!(who(&client).await.unwrap(), "first", "its key has not come");
        std::fs::copy(file(&next.tls.key), file(&config.tls.key)).unwrap();
        assert_eq!(who(&client).await.unwrap(), "second", "not on the connection of the first");
        env.stop().await;
    });
}

#[test]
fn a_plugin_may_give_a_certificate() {
    block_on(async {
        let env = Env::new("plugin").await;
        let folder = Folder::new("plugin");
        let answer = folder.0.join("answer.json");
        let version = "client.authentication.k8s.io/v1";
        // Always expired: the plugin runs for each request.
        let issue = |name: &str| {
            let tls = user(&env, name).tls;
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
        let mut config = user(&env, "nobody");
        (config.tls.certificate, config.tls.key) = (None, None);
        config.credentials = Credentials::Exec(Box::new(Exec {
            api_version: version.to_owned(),
            command: "cat".to_owned(),
            args: vec![answer.to_string_lossy().into_owned()],
            ..Exec::default()
        }));
        let client = Client::new(config, env.clock.clone()).unwrap();
        let error = who(&client).await.unwrap_err();
        assert!(matches!(error, Error::Credentials(_)), "{error}");
        for name in ["first", "first", "second"] {
            issue(name);
            assert_eq!(who(&client.named("other name")).await.unwrap(), name);
        }
        env.stop().await;
    });
}

#[test]
fn a_refused_token_is_replaced_and_the_request_made_again() {
    block_on(async {
        let env = Env::new("refused").await;
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
        assert_eq!(who(&client).await.unwrap(), "system:serviceaccount:default:robot");
        assert_eq!(*asked.lock().unwrap(), [None, Some("bad".to_owned())]);
        env.stop().await;
    });
}

/// Takes one connection, and the head of what is asked. `answer`: its status line.
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
        // To its end, so that the answer is not lost with a reset.
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.unwrap();
    }
    head
}

#[test]
fn a_proxy_is_asked_for_a_tunnel() {
    block_on(async {
        let env = Env::new("proxy").await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut config = user(&env, "first");
        let target = config.host.strip_prefix("https://").unwrap().to_owned();
        config.proxy = Some(format!("http://u:p@{}", listener.local_addr().unwrap()));
        let client = Client::new(config, env.clock.clone()).unwrap();
        let (head, error) = zip(proxy(&listener, "403 Forbidden"), who(&client)).await;
        assert!(head.contains("\r\nproxy-authorization: Basic dTpw\r\n"), "{head}");
        let error = error.unwrap_err();
        assert!(error.is_transport() && error.to_string().contains("403"), "{error}");
        let (head, found) = zip(proxy(&listener, "200 OK"), who(&client)).await;
        assert!(head.starts_with(&format!("CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n")));
        assert_eq!(found.unwrap(), "first");
        env.stop().await;
    });
}
