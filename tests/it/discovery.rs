//! The client's discovery of the resources that a server serves.

use std::sync::Arc;

use async_std::channel::unbounded;
use async_std::io::{BufReader, WriteExt};
use async_std::net::{TcpListener, TcpStream};
use futures_lite::future::{poll_once, zip};
use futures_lite::{AsyncBufReadExt, FutureExt};
use kube_controller_manager::client::{Client, Config, Discovery, Result};
use kube_controller_manager::clock::SystemClock;

use crate::env::*;

type Answers = &'static [(&'static str, u16, &'static str)];

/// Answers each path from `answers`, others with 404. Never ends.
async fn serve(listener: &TcpListener, answers: Answers) -> ! {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = BufReader::new(stream);
        let (mut first, mut line) = (String::new(), String::new());
        stream.read_line(&mut first).await.unwrap();
        while line != "\r\n" {
            line.clear();
            stream.read_line(&mut line).await.unwrap();
        }
        let path = first.split(' ').nth(1).unwrap_or_default();
        let found = answers.iter().find(|(known, ..)| *known == path);
        let (code, body) = found.map_or((404, ""), |(_, code, body)| (*code, *body));
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 {code} X\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.get_mut().write_all(answer.as_bytes()).await.unwrap();
    }
}

async fn discovered(answers: Answers) -> Result<Discovery> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = Config::new(format!("http://{}", listener.local_addr().unwrap()));
    let client = Client::new(config, SystemClock::shared()).unwrap();
    let serve = async { serve(&listener, answers).await };
    client.discover().or(serve).await
}

const AGGREGATED: &str = r#"{"kind":"APIGroupDiscoveryList","items":[
    {"metadata":{"name":"batch"},"versions":[{"version":"v1","freshness":"Current","resources":[
        {"resource":"jobs","responseKind":{"kind":"Job"},"scope":"Namespaced","verbs":["get"]}]}]},
    {"metadata":{"name":"empty"},"versions":[{"version":"v1","resources":null}]}]}"#;
const EMPTY: &str = r#"{"kind":"APIGroupDiscoveryList","items":null}"#;
const VERSIONS: &str = r#"{"kind":"APIVersions","versions":["v1"]}"#;
const GROUPS: &str = r#"{"kind":"APIGroupList","groups":[
    {"name":"batch","versions":[{"version":"v1"}],"preferredVersion":{"version":"v1"}},
    {"name":"empty","versions":[{"version":"v1"}],"preferredVersion":{"version":"v1"}}]}"#;
const NO_GROUPS: &str = r#"{"kind":"APIGroupList","groups":null}"#;
const JOBS: &str = r#"{"resources":[
    {"name":"jobs","kind":"Job","namespaced":true,"verbs":["get"]},
    {"name":"jobs/status","kind":"Job","namespaced":true,"verbs":["get"]}]}"#;
const PODS: &str = r#"{"resources":[{"name":"pods","kind":"Pod","namespaced":true,"verbs":null}]}"#;
const NOTHING: &str = r#"{"resources":null}"#;
const REFUSAL: &str = r#"{"kind":"Status","code":403,"reason":"Forbidden","message":"no"}"#;

#[test]
fn parts_of_discovery_may_be_missing() {
    block_on(async {
        let tables: [(Answers, &str, &[&str]); 5] = [
            (&[("/apis", 200, AGGREGATED)], "jobs", &[]),
            (&[("/api", 200, EMPTY), ("/apis", 200, EMPTY)], "", &[]),
            (
                &[
                    ("/apis", 200, GROUPS),
                    ("/apis/batch/v1", 200, JOBS),
                    ("/apis/empty/v1", 200, NOTHING),
                ],
                "jobs",
                &[],
            ),
            // Only the core group's resources may be missing.
            (&[("/api", 200, VERSIONS), ("/apis", 200, NO_GROUPS)], "", &[]),
            (
                &[
                    ("/api", 200, VERSIONS),
                    ("/api/v1", 200, PODS),
                    ("/apis", 200, GROUPS),
                    ("/apis/batch/v1", 503, ""),
                ],
                "pods",
                &["batch/v1", "empty/v1"],
            ),
        ];
        for (answers, resources, failures) in tables {
            let found = discovered(answers).await.unwrap();
            let plurals: Vec<&str> =
                found.resources.iter().map(|found| &*found.resource.plural).collect();
            assert_eq!(plurals.join(" "), resources, "{answers:?}");
            assert!(found.failures.keys().eq(failures), "{:?}", found.failures);
        }
    });
}

#[test]
fn a_refusal_does_not_count_as_missing() {
    block_on(async {
        let no_groups = discovered(&[("/api", 200, EMPTY)]).await.unwrap_err();
        assert!(no_groups.is_not_found(), "{no_groups}");
        let refused: [Answers; 2] = [
            &[("/api", 403, REFUSAL), ("/apis", 200, AGGREGATED)],
            &[("/api", 200, EMPTY), ("/apis", 403, REFUSAL)],
        ];
        for answers in refused {
            let error = discovered(answers).await.unwrap_err();
            assert!(error.is_forbidden(), "{error}");
        }
    });
}

/// A connection of the client, once it has asked for `/api`.
async fn asked(listener: &TcpListener) -> BufReader<TcpStream> {
    let mut stream = BufReader::new(listener.accept().await.unwrap().0);
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        assert_ne!(stream.read_line(&mut line).await.unwrap(), 0);
    }
    stream
}

async fn answer(stream: &mut BufReader<TcpStream>, body: &str) {
    let length = body.len();
    let answer =
        format!("HTTP/1.1 200 X\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.get_mut().write_all(answer.as_bytes()).await.unwrap();
}

/// A server that has received a request for discovery, and its client.
async fn watched() -> (TcpListener, Client) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = Config::new(format!("http://{}", listener.local_addr().unwrap()));
    (listener, Client::new(config, SystemClock::shared()).unwrap())
}

#[test]
fn discovery_is_fetched_once_for_all_who_wait() {
    block_on(async {
        let (listener, client) = watched().await;
        let serve = async {
            // The second request is the other half of the same fetch.
            for body in [EMPTY, AGGREGATED] {
                answer(&mut asked(&listener).await, body).await;
            }
        };
        let one = client.named("one");
        // A caller that gives up does not end the fetch.
        let mut impatient = Box::pin(one.discovery());
        assert!(poll_once(&mut impatient).await.is_none());
        drop(impatient);
        let both = zip(one.discovery(), client.discovery());
        let ((first, second), ()) = zip(both, serve).await;
        let (first, second) = (first.unwrap(), second.unwrap());
        assert!(Arc::ptr_eq(&first, &second));
        assert_eq!(first.resources.len(), 1);
        assert!(Arc::ptr_eq(&first, &client.discovery().await.unwrap()), "it is kept");
    });
}

#[test]
fn a_fetch_that_began_before_a_reset_is_not_kept() {
    block_on(async {
        let (listener, client) = watched().await;
        let (go, wait) = unbounded::<()>();
        let early = async {
            let early = client.discovery().await.unwrap();
            go.send(()).await.unwrap();
            early
        };
        let late = async {
            let mut first = asked(&listener).await;
            client.reset_discovery();
            let late = client.discovery();
            let serve = async {
                // The early fetch ends while the late one is running.
                let mut second = asked(&listener).await;
                answer(&mut first, EMPTY).await;
                answer(&mut asked(&listener).await, EMPTY).await;
                wait.recv().await.unwrap();
                answer(&mut second, EMPTY).await;
                answer(&mut asked(&listener).await, AGGREGATED).await;
            };
            zip(late, serve).await.0.unwrap()
        };
        let (early, late) = zip(early, late).await;
        assert_eq!((early.resources.len(), late.resources.len()), (0, 1));
        let known = client.discovery().await.unwrap();
        assert!(Arc::ptr_eq(&known, &late), "the newer result is kept");
    });
}
