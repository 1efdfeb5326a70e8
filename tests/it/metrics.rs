//! The manager's metrics beside the Go manager's, and those that Kubernetes' dashboards and alerts
//! use.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use kube_controller_manager::client::{Client, Config};
use sandbox::cluster::{Manager, ManagerProgram, free_port};

use crate::env::*;
use crate::go_manager::handover::{CLAIMS, VOLUMES, claim, make, populate, volume};
use crate::real;

/// Metrics of the Go manager that this one lacks: those of Go's runtime, and of parts of its
/// libraries that a controller manager does not use or that do not exist here. See
/// `docs/differences.md`.
const NOT_HERE: &[&str] = &[
    "aggregator_",
    "apiextensions_",
    "apiserver_",
    "cardinality_enforcement_",
    "disabled_metrics_total",
    "go_",
    "hidden_metrics_total",
    "informer_processing_latency_seconds",
    "registered_metrics_total",
    "rest_client_exec_plugin_",
    "rest_client_transport_",
];

/// The suffixes of metrics that not every run has: of repeated requests, and of syncs that wait for
/// a cache.
const BY_CHANCE: &[&str] = &["_request_retries_total", "_stale_sync_skips_total"];

/// The prefixes of the names of queues that exist here in another form.
const QUEUES_NOT_HERE: &[&str] = &[
    "Dynamic",
    "disruption_recheck",
    "garbage_collector_graph_changes",
    "orphaned_pods_nodes",
    "resource_quota_controller_resource_changes",
];

/// The series of a controller manager that the dashboard, the rules and the alerts of
/// kubernetes-mixin read: the prefix of the name, with the labels by which they select or group.
const ON_DASHBOARDS: &[(&str, &[&str])] = &[
    ("workqueue_adds_total", &["name"]),
    ("workqueue_depth", &["name"]),
    ("workqueue_queue_duration_seconds_bucket", &["name", "le"]),
    ("rest_client_requests_total", &["code", "host", "method"]),
    ("rest_client_request_duration_seconds_bucket", &["verb", "le"]),
    ("process_resident_memory_bytes", &[]),
    ("process_cpu_seconds_total", &[]),
    ("go_goroutines", &[]),
    ("kubernetes_build_info", &["git_version"]),
];

/// One metric as it is served.
#[derive(Debug, Default)]
struct Family {
    help: String,
    kind: String,
    labels: BTreeSet<String>,
    buckets: BTreeSet<String>,
    /// The values of the label `name`: the names of queues, in most families.
    names: BTreeSet<String>,
}

fn families(text: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').unwrap_or((help, ""));
            families.entry(name.into()).or_default().help = help.into();
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect("a name and a type");
            families.entry(name.into()).or_default().kind = kind.into();
        } else if let Some((name, labels)) = series(line) {
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let base = base.filter(|base| families.contains_key(*base)).unwrap_or(name);
            let family = families.entry(base.into()).or_default();
            for (label, value) in labels {
                match label {
                    "le" => drop(family.buckets.insert(value.into())),
                    label => drop(family.labels.insert(label.into())),
                }
                if label == "name" {
                    family.names.insert(value.into());
                }
            }
        }
    }
    families
}

/// The name and the labels of a line as `name{a="b"} 1`.
fn series(line: &str) -> Option<(&str, Vec<(&str, &str)>)> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    rest = rest.strip_prefix('{').unwrap_or_default();
    while let Some((label, value)) = rest.split_once("=\"") {
        let mut escaped = false;
        let close = value.find(|c: char| {
            let closes = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            closes
        })?;
        labels.push((label.trim_start_matches(','), &value[..close]));
        rest = &value[close + 1..];
        if rest.starts_with('}') {
            break;
        }
    }
    Some((name, labels))
}

/// A manager that serves its metrics to everyone.
pub struct Serving {
    pub manager: Manager,
    pub client: Client,
}

impl Serving {
    pub fn start(
        site: &TestCluster,
        name: &str,
        program: &ManagerProgram,
        extra: &[&str],
    ) -> Serving {
        let port = free_port().expect("a port");
        let mut flags = quick_election();
        flags.push(format!("--secure-port={port}"));
        flags.push("--authorization-always-allow-paths=/healthz,/metrics".into());
        flags.extend(extra.iter().map(|flag| flag.to_string()));
        let manager = Manager::spawn(program, &site.kubeconfig, name, &flags).expect("it starts");
        let mut config = Config::new(format!("https://127.0.0.1:{port}"));
        config.tls.insecure = true;
        let client = Client::new(config, site.clock.clone()).expect("a client");
        Serving { manager, client }
    }

    /// The metrics, once `is` accepts their text.
    pub async fn metrics(
        &self,
        site: &TestCluster,
        what: &str,
        is: impl Fn(&str) -> bool,
    ) -> String {
        let is = &is;
        eventually(&site.clock, what, || async {
            let text = self.text().await?;
            if is(&text) { Ok(text) } else { Err("not yet".to_owned()) }
        })
        .await
    }

    async fn text(&self) -> Result<String, String> {
        let text = self.client.get_path("/metrics").await.map_err(|error| error.to_string())?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// Whether a queue has worked on a key.
fn worked(text: &str, queue: &str) -> bool {
    let line = format!("workqueue_work_duration_seconds_count{{name=\"{queue}\"}} ");
    text.lines().filter_map(|l| l.strip_prefix(&line)).any(|count| count != "0")
}

#[test]
fn dashboards_find_every_series_and_label() {
    Env::run("dashboards", async |site| {
        let serving = Serving::start(site, "manager", &manager_program(), &[]);
        create(&site.client, deployment("web", 1, "web:1")).await;
        rolled_out(&site.client, &site.clock, "web").await;
        let text = serving.metrics(site, "work is measured", |text| worked(text, "deployment"));
        let text = text.await;
        for (name, labels) in ON_DASHBOARDS {
            let found = text.lines().filter_map(series).any(|(found, with)| {
                let has = |label: &&str| with.iter().any(|(name, _)| name == label);
                found == *name && labels.iter().all(has)
            });
            assert!(found, "{name} {labels:?}");
        }
        assert!(text.contains("rest_client_request_duration_seconds_bucket{host="), "{text}");
        for verb in ["GET", "POST"] {
            assert!(text.contains(&format!("verb=\"{verb}\"")), "{verb}");
        }
    });
}

/// The metrics of a manager that starts on a populated API server of its own, once it has worked
/// and has the families `wanted`.
fn scrape(name: &str, program: &ManagerProgram, wanted: &[&str]) -> BTreeMap<String, Family> {
    let scraped = RefCell::default();
    on_real_server(name, &[], async |site: &TestCluster| {
        populate(site).await;
        // Unbound claims and volumes are counted while the manager runs.
        let (mut free, mut waits) = (volume("free"), claim("waits"));
        (free["spec"]["storageClassName"], waits["spec"]["storageClassName"]) =
            ("one".into(), "another".into());
        make(site, &VOLUMES, "", free).await;
        make(site, &CLAIMS, "default", waits).await;
        let serving = Serving::start(site, name, program, &[]);
        let queues = ["deployment", "statefulset", "daemonset", "job", "disruption", "volumes"];
        let found = eventually(&site.clock, "all have worked", || async {
            let text = serving.text().await?;
            let found = families(&text);
            let idle = queues.into_iter().filter(|queue| !worked(&text, queue));
            let missing = wanted.iter().copied().filter(|name| !found.contains_key(*name));
            let lacking: Vec<&str> = idle.chain(missing).collect();
            if lacking.is_empty() { Ok(found) } else { Err(lacking.join(", ")) }
        });
        scraped.replace(found.await);
        let ended = serving.manager.stop(&site.clock, PATIENCE).await;
        ended.expect("it ends");
    });
    scraped.into_inner()
}

#[test]
fn metrics_are_those_of_the_go_manager() {
    let go = real::assets().map(|assets| assets.join("kube-controller-manager"));
    let Some(go) = go.filter(|path| path.exists()) else { return };
    let mut go = scrape("metrics-go", &ManagerProgram::Path(go), &[]);
    go.retain(|name, _| {
        !NOT_HERE.iter().any(|start| name.starts_with(start))
            && !BY_CHANCE.iter().any(|end| name.ends_with(end))
    });
    let wanted: Vec<&str> = go.keys().map(String::as_str).collect();
    let ours = scrape("metrics-ours", &manager_program(), &wanted);
    let mut faults = Vec::new();
    for (name, go) in &go {
        let ours = &ours[name];
        if go.kind != ours.kind {
            faults.push(format!("{name}: type {} instead of {}", ours.kind, go.kind));
        }
        // One of both may have no series yet.
        if !go.labels.is_empty() && !ours.labels.is_empty() && go.labels != ours.labels {
            faults.push(format!("{name}: labels {:?} of {:?}", ours.labels, go.labels));
        }
        let some = !go.buckets.is_empty() && !ours.buckets.is_empty();
        if some && go.buckets != ours.buckets {
            faults.push(format!("{name}: buckets {:?} of {:?}", ours.buckets, go.buckets));
        }
        let stability = |help: &str| help.split_once(']').map(|(level, _)| level.to_owned());
        let (go_level, our_level) = (stability(&go.help), stability(&ours.help));
        if go_level != our_level && go.help.starts_with('[') {
            faults.push(format!("{name}: {} instead of {}", ours.help, go.help));
        }
    }
    // The dashboard has a line for each queue.
    let queues = &go["workqueue_depth"].names;
    for queue in queues.difference(&ours["workqueue_depth"].names) {
        if !QUEUES_NOT_HERE.iter().any(|start| queue.starts_with(start)) {
            faults.push(format!("workqueue_depth has no {queue:?}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
