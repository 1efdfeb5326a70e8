//! A manager's debug pages: the pipeline page, and the trace of an object.

use kube_controller_manager::client::{Call, Client, Config, Credentials};
use kube_controller_manager::objects::{Deployment, ObjectKey};
use sandbox::cluster::free_port;
use sandbox::debug_proxy::DebugProxy;
use serde_json::{Value, json};

use crate::env::*;
use crate::serving::token;

/// The flags with which a manager serves on `port` and delegates authentication and authorization
/// to the API server.
fn serving(site: &TestCluster, port: u16) -> [String; 3] {
    let conf = site.kubeconfig.display();
    [
        format!("--secure-port={port}"),
        format!("--authentication-kubeconfig={conf}"),
        format!("--authorization-kubeconfig={conf}"),
    ]
}

fn caller(site: &TestCluster, port: u16, credentials: Credentials) -> Client {
    let mut config = Config::new(format!("https://127.0.0.1:{port}"));
    config.tls.insecure = true;
    config.credentials = credentials;
    Client::new(config, site.clock.clone()).expect("a client")
}

fn code(answer: kube_controller_manager::client::Result<Vec<u8>>) -> u16 {
    answer.map_or_else(|error| error.code().unwrap_or_default(), |_| 200)
}

#[test]
fn the_pipeline_is_shown_as_page_and_as_json() {
    everywhere("pipeline", async |site| {
        let port = free_port().expect("a port");
        let flags = serving(site, port);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let manager = site.manager("manager", &flags);
        create(&site.client, deployment("web", 3, "web:1")).await;
        rolled_out(&site.client, &site.clock, "web").await;

        let anonymous = caller(site, port, Credentials::None);
        assert_eq!(code(anonymous.get_path("/debug/pipeline").await), 403);
        assert_eq!(code(anonymous.get_path("/debug/trace").await), 403);
        let known = caller(site, port, Credentials::Token(token(&site.client).await));
        let mut page = Call::new("GET", "/debug/pipeline");
        page.accept = "text/html";
        let html = known.send(&page).await.expect("the page");
        assert!(html.starts_with(b"<!doctype html>"));

        eventually(&site.clock, "the rollout is shown", || async {
            let json =
                known.get_path("/debug/pipeline").await.map_err(|error| error.to_string())?;
            let status: Value = serde_json::from_slice(&json).expect("JSON");
            let by = |list: &str, field: &str, name: &str| {
                let all = status[list].as_array().expect("a list");
                all.iter().find(|one| one[field] == name).cloned().unwrap_or_default()
            };
            let pods = by("informers", "scope", "pods");
            let sets = by("controllers", "name", "replicaset-controller");
            let queue = &sets["queues"][0];
            let handlers = pods["handlers"].as_array().map(Vec::as_slice).unwrap_or_default();
            let is_shown = status["leading"] == true
                && status["residentBytes"].as_f64() > Some(1e6)
                && pods["kind"] == "Pod"
                && pods["objects"] == 3
                && pods["bytes"].as_u64() > Some(3 * 300)
                && pods["phase"] == "watching"
                && pods["lists"].as_u64() > Some(0)
                && pods["received"].as_u64() >= Some(3)
                && pods["queued"] == 0
                && pods["resourceVersion"].as_str().is_some_and(|version| version != "0")
                && handlers.iter().any(|handler| {
                    *handler
                        == json!({ "name": "replicaset-controller", "backlog": 0, "synced": true })
                })
                && sets["running"] == true
                && sets["writes"]["create"] == 3
                && sets["writes"]["events"].as_u64() > Some(0)
                && queue["name"] == "replicaset"
                && queue["depth"] == 0
                && queue["inProgress"] == 0
                && queue["syncs"].as_u64() > Some(0)
                && queue["seconds"].as_f64() > Some(0.0);
            if is_shown { Ok(()) } else { Err(format!("{pods}\n{sets}")) }
        })
        .await;
        drop(manager);
    });
}

#[test]
fn the_last_error_is_shown_with_its_object() {
    Env::run("last-error", async |site| {
        let port = free_port().expect("a port");
        let flags = serving(site, port);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let manager = site.manager("manager", &flags);
        let faults = site.faults.as_ref().expect("the sandbox has faults");
        faults.next(usize::MAX, "create", "pods", sandbox::faults::Fault::code(500, None));
        create(&site.client, deployment("web", 3, "web:1")).await;
        let known = caller(site, port, Credentials::Token(token(&site.client).await));
        eventually(&site.clock, "the error is shown", || async {
            let json =
                known.get_path("/debug/pipeline").await.map_err(|error| error.to_string())?;
            let status: Value = serde_json::from_slice(&json).expect("JSON");
            let controllers = status["controllers"].as_array().expect("a list");
            let sets = controllers.iter().find(|one| one["name"] == "replicaset-controller");
            let error = &sets.ok_or("no controller")?["queues"][0]["lastError"];
            let is_shown = error["key"].as_str().is_some_and(|key| key.starts_with("default/web-"))
                && error["error"].as_str().is_some_and(|error| error.contains("on purpose"));
            if is_shown { Ok(()) } else { Err(error.to_string()) }
        })
        .await;
        drop(manager);
    });
}

#[test]
fn a_browser_reaches_the_pages_of_the_sandbox_manager() {
    Env::run("debug-proxy", async |env| {
        let files = env.cluster.sandbox.client_config();
        let proxy = DebugProxy::start(files, &env.clock).await.expect("a port");
        let flags = proxy.manager_flags();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let manager = env.manager("manager", &flags);
        let link = proxy.page("pipeline");
        let at = "http://".len() + link["http://".len()..].find('/').expect("a path");
        let (address, path) = link.split_at(at);
        let config = Config::new(address.to_owned());
        let browser = Client::new(config, env.clock.clone()).expect("a client");
        eventually(&env.clock, "the manager leads", || async {
            let json = browser.get_path(path).await.map_err(|error| error.to_string())?;
            let status: Value = serde_json::from_slice(&json).expect("JSON");
            if status["leading"] == true { Ok(()) } else { Err(status["leading"].to_string()) }
        })
        .await;
        let mut page = Call::new("GET", path);
        page.accept = "text/html";
        assert!(browser.send(&page).await.expect("the page").starts_with(b"<!doctype html>"));
        let metrics = path.replace("/debug/pipeline", "/metrics");
        for other in ["/debug/pipeline", "/metrics", metrics.as_str()] {
            assert_eq!(code(browser.get_path(other).await), 404, "{other}");
        }
        let write = path.replace("pipeline", "trace/Pod/a/b");
        assert_eq!(code(browser.send(&Call::new("PUT", write)).await), 404, "reads alone pass");
        proxy.stop().await;
        drop(manager);
    });
}

/// The fields of a line: the span, the station, and the rest.
fn stations(log: &str) -> Vec<(u64, String, String)> {
    let lines = log.lines().filter_map(|line| line.split_once("] trace span=").map(|(_, it)| it));
    let parsed = lines.map(|line| {
        let (span, rest) = line.split_once(' ').expect("a station");
        let (station, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        (span.parse().expect("a span"), station.to_owned(), rest.to_owned())
    });
    parsed.collect()
}

#[test]
fn a_deployment_is_traced_through_every_station() {
    everywhere("trace", async |site| {
        let flags = ["--trace-object=Deployment/default/web"];
        let manager = site.manager("manager", &flags);
        create(&site.client, deployment("other", 1, "web:1")).await;
        rolled_out(&site.client, &site.clock, "other").await;
        create(&site.client, deployment("web", 2, "web:1")).await;
        let web: Deployment = rolled_out(&site.client, &site.clock, "web").await;
        let last = format!("Deployment default/web version={}", web.meta.resource_version);
        eventually(&site.clock, "the last status is seen again", || async {
            let log = std::fs::read_to_string(&manager.log).map_err(|error| error.to_string())?;
            let seen = stations(&log)
                .iter()
                .any(|(_, station, rest)| station == "seen-again" && rest.starts_with(&last));
            if seen { Ok(()) } else { Err(format!("no {last}")) }
        })
        .await;

        let log = std::fs::read_to_string(&manager.log).expect("a log");
        let all = stations(&log);
        assert!(!log.contains("trace span=0 "), "every station has a span");
        assert!(
            all.iter().all(|(_, _, rest)| !rest.contains("default/other")),
            "others are not traced"
        );
        // The creation of the Deployment, from the watch to the creation of its ReplicaSet.
        let of = |span: u64, station: &str| -> Vec<&str> {
            let found = all.iter().filter(|(s, name, _)| *s == span && name == station);
            found.map(|(.., rest)| rest.as_str()).collect()
        };
        let created = all
            .iter()
            .find(|(_, station, rest)| {
                station == "received" && rest.starts_with("Deployment default/web ")
            })
            .map(|(span, ..)| *span)
            .expect("the event");
        for (station, part) in [
            ("received", "event=added"),
            ("decoded", "took="),
            ("queued", "delta=Added"),
            ("cached", " added "),
            ("handler", "handler=deployment-controller event=add"),
            ("key-queued", "default/web queue=deployment"),
        ] {
            let lines = of(created, station);
            assert!(lines.iter().any(|line| line.contains(part)), "{station} {part}: {lines:?}");
        }
        let is_cause = |word: &str| {
            let spans = word.strip_prefix("by=").map(|spans| spans.split(','));
            spans.is_some_and(|mut spans| spans.any(|span| span == created.to_string()))
        };
        let sync = all
            .iter()
            .find(|(_, station, rest)| {
                station == "sync-began"
                    && rest.starts_with("default/web controller=deployment-controller ")
                    && rest.split(' ').any(is_cause)
            })
            .map(|(span, ..)| *span)
            .expect("the sync that the event caused");
        for (station, part) in [
            ("read", "Deployment default/web version="),
            ("request-sent", "POST /apis/apps/v1/namespaces/default/replicasets "),
            ("answered", "POST /apis/apps/v1/namespaces/default/replicasets code=201"),
            ("wrote", "ReplicaSet default/web-"),
            ("sync-ended", "result="),
        ] {
            let lines = of(sync, station);
            assert!(lines.iter().any(|line| line.contains(part)), "{station} {part}: {lines:?}");
        }
        // Its writes are seen on the watch, and so on down to the pods.
        let by = format!(" by={sync} ");
        for (station, parts) in [
            ("seen-again", ["ReplicaSet default/web-", by.as_str()]),
            ("decided", ["too few replicas", "default/web-"]),
            ("wrote", ["Pod default/web-", "version="]),
            ("seen-again", ["Pod default/web-", " by="]),
        ] {
            let found = all
                .iter()
                .any(|(_, s, rest)| s == station && parts.iter().all(|part| rest.contains(part)));
            assert!(found, "{station} {parts:?} in\n{log}");
        }
        drop(manager);
    });
}

#[test]
fn a_trace_is_switched_while_the_manager_runs() {
    Env::run("switched", async |site| {
        let port = free_port().expect("a port");
        let flags = serving(site, port);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let manager = site.manager("manager", &flags);
        create(&site.client, deployment("web", 2, "web:1")).await;
        rolled_out(&site.client, &site.clock, "web").await;
        let known = caller(site, port, Credentials::Token(token(&site.client).await));
        let switch = async |method, path: &str| {
            let answer = known.send(&Call::new(method, format!("/debug/trace{path}"))).await;
            answer.map(|text| String::from_utf8_lossy(&text).into_owned())
        };
        let log = || std::fs::read_to_string(&manager.log).expect("a log");
        assert_eq!(switch("GET", "").await.expect("an answer"), "nothing is traced\n");
        assert!(!log().contains("trace span="));
        let bad = switch("PUT", "/web").await.expect_err("no kind");
        assert_eq!(bad.code(), Some(400));
        // The Deployment, its ReplicaSet and two pods are cached.
        let on = switch("PUT", "/deployments/default/web").await.expect("an answer");
        let expected = "deployments/default/web\n4 objects are followed: these and what they own\n";
        assert_eq!(on, expected);
        merge::<Deployment>(&site.client, "web", json!({ "spec": { "replicas": 3 } })).await;
        rolled_out(&site.client, &site.clock, "web").await;
        eventually(&site.clock, "the new pod is traced", || async {
            let all = stations(&log());
            let wrote = |(_, station, rest): &(u64, String, String)| {
                station == "wrote" && rest.starts_with("Pod default/web-")
            };
            if all.iter().any(wrote) { Ok(()) } else { Err(format!("{} lines", all.len())) }
        })
        .await;
        assert_eq!(switch("DELETE", "").await.expect("an answer"), "nothing is traced\n");
        // A sync that began before still writes its end.
        let lines = eventually(&site.clock, "the traced syncs end", || async {
            let all = stations(&log());
            let count = |name| all.iter().filter(|(_, station, _)| station == name).count();
            let (began, ended) = (count("sync-began"), count("sync-ended"));
            if began == ended { Ok(all.len()) } else { Err(format!("{ended} of {began}")) }
        })
        .await;
        merge::<Deployment>(&site.client, "web", json!({ "spec": { "replicas": 1 } })).await;
        rolled_out(&site.client, &site.clock, "web").await;
        let web: Deployment =
            site.client.get(&ObjectKey::new("default", "web")).await.expect("the Deployment");
        assert_eq!(web.replicas(), 1);
        assert_eq!(stations(&log()).len(), lines, "the trace has ended");
        drop(manager);
    });
}
