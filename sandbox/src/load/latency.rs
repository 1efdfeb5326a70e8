//! Measures how long one user's changes take: from the watch event of the change to the watch event
//! of its result. The same rounds run for every manager.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use async_channel::{Receiver, Sender};
use futures_lite::FutureExt;
use serde::Serialize;
use serde_json::{Value, json};

use super::manager_process::{ManagerProcess, NO_ELECTION};
use super::objects::template;
use super::server::Server;
use super::{NAMESPACES, POLL, Result, namespace};
use crate::cluster::ManagerProgram;
use crate::nodes::NodeOptions;
use crate::server::SandboxOptions;
use kube_controller_manager::client::{Client, Delete, ListOptions, Patch};
use kube_controller_manager::clock::{SharedClock, SystemClock};
use kube_controller_manager::objects::{
    Deployment, EndpointSlice, Job, ObjectKey, PartialObjectMetadata, Pod, Resource, ResourceType,
    Service, ServiceAccount, StatefulSet, WatchEvent,
};
use kube_controller_manager::task::{self, StopToken};

/// The pause between two changes: the next one begins on an idle cluster, and the rate limiters of
/// the manager's client have all their tokens again.
const PAUSE: Duration = Duration::from_secs(3);
/// The timeout of the watches: longer than any run.
const WATCH: Duration = Duration::from_secs(6 * 3600);

/// Rounds of single changes.
pub struct Latency {
    pub sandbox: SandboxOptions,
    /// As for a [`super::Load`].
    pub kubeconfig: Option<PathBuf>,
    pub nodes: NodeOptions,
    pub rounds: usize,
    /// The replicas of one more Deployment in each round; 0: none.
    pub large: usize,
    pub manager: ManagerProgram,
    pub manager_flags: Vec<String>,
    /// How long a change may take.
    pub patience: Duration,
}

/// The measured milliseconds of each kind of change.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LatencyReport {
    pub manager: String,
    pub rounds: usize,
    pub rows: Vec<LatencyRow>,
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LatencyRow {
    pub from: String,
    pub to: String,
    pub median_ms: f64,
    pub p99_ms: f64,
    /// In ascending order.
    pub all_ms: Vec<f64>,
}

impl LatencyRow {
    fn new(from: &str, to: &str, mut all: Vec<f64>) -> LatencyRow {
        all.sort_by(f64::total_cmp);
        let (median_ms, p99_ms) = (quantile(&all, 0.5), quantile(&all, 0.99));
        LatencyRow { from: from.into(), to: to.into(), median_ms, p99_ms, all_ms: all }
    }
}

/// Returns the smallest of the ascending values that is not below the share `of` of them; NaN
/// without values.
fn quantile(ascending: &[f64], of: f64) -> f64 {
    let rank = (ascending.len() as f64 * of).ceil() as usize;
    ascending.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

impl fmt::Display for LatencyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "manager {}, {} rounds, milliseconds\n", self.manager, self.rounds)?;
        writeln!(f, "{:<28} {:<34} {:>9} {:>9}", "FROM", "TO", "MEDIAN", "P99")?;
        for LatencyRow { from, to, median_ms, p99_ms, .. } in &self.rows {
            writeln!(f, "{from:<28} {to:<34} {median_ms:>9.0} {p99_ms:>9.0}")?;
        }
        Ok(())
    }
}

impl Latency {
    /// Runs all rounds, with a line on stderr for each.
    ///
    /// # Errors
    /// What could not be started, or a change that had no result in time.
    pub async fn run(self, stop: StopToken) -> Result<LatencyReport> {
        let manager = self.manager.to_string();
        // The delay counts from a whole second, so it would differ from pod to pod by chance.
        let nodes = NodeOptions { start_delay: Duration::ZERO, ..self.nodes };
        let server = Server::start(self.sandbox, self.kubeconfig, nodes).await?;
        let flags = [vec![NO_ELECTION.to_owned()], self.manager_flags].concat();
        let process =
            ManagerProcess::start(&self.manager, &server.kubeconfig(), "manager", &flags)?;
        let clock = SystemClock::shared();
        let mut user = User {
            client: server.client().clone(),
            seen: Seen::watch(server.client(), &clock).await?,
            clock: clock.clone(),
            process,
            stop,
            patience: self.patience,
            namespace: String::new(),
            measured: BTreeMap::new(),
            order: Vec::new(),
        };
        let ended = user.rounds(self.rounds, self.large).await;
        let User { process, measured, order, .. } = user;
        process.end(&clock).await?;
        server.stop().await;
        ended?;
        let row = |(from, to): &(String, String)| {
            let all = measured[&(from.clone(), to.clone())].clone();
            LatencyRow::new(from, to, all)
        };
        let rows = order.iter().map(row).collect();
        Ok(LatencyReport { manager, rounds: self.rounds, rows })
    }
}

/// An event of one of the watches.
struct Event {
    at: Duration,
    plural: &'static str,
    is_gone: bool,
    is_new: bool,
    object: Value,
}

impl Event {
    fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// Returns whether the event is about a resource `plural` that is named `app` or has it as its
    /// label.
    fn is_of(&self, plural: &str, app: &str) -> bool {
        self.plural == plural
            && (self.name() == app || self.object["metadata"]["labels"]["app"] == app)
    }

    fn status(&self, field: &str) -> i64 {
        self.object["status"][field].as_i64().unwrap_or(0)
    }
}

/// The events that the watches have delivered.
struct Seen {
    events: Vec<Event>,
    coming: Receiver<Event>,
}

impl Seen {
    /// Begins to watch all types whose events are measured.
    async fn watch(client: &Client, clock: &SharedClock) -> Result<Seen> {
        let (sender, coming) = async_channel::unbounded();
        for resource in [
            &Deployment::RESOURCE,
            &Pod::RESOURCE,
            &EndpointSlice::RESOURCE,
            &Service::RESOURCE,
            &Job::RESOURCE,
            &StatefulSet::RESOURCE,
            &NAMESPACES,
        ] {
            follow(client, clock, resource, sender.clone()).await?;
        }
        Ok(Seen { events: Vec::new(), coming })
    }
}

/// Watches a resource in a task, and sends its events to `to` until the reader is dropped.
async fn follow(
    client: &Client,
    clock: &SharedClock,
    resource: &ResourceType,
    to: Sender<Event>,
) -> Result<()> {
    let plural: &'static str = match &resource.plural {
        std::borrow::Cow::Borrowed(plural) => plural,
        // Only the constants of built-in types are watched.
        std::borrow::Cow::Owned(_) => return Err("a resource of the program's own".into()),
    };
    let watch = client.resource(resource).watch(None, &ListOptions::default(), false, WATCH).await;
    let (mut watch, clock) = (watch?, clock.clone());
    task::spawn(async move {
        while let Some(Ok(event)) = watch.next().await {
            let at = clock.monotonic();
            let (is_new, is_gone, encoded) = match event {
                WatchEvent::Added(encoded) => (true, false, encoded),
                WatchEvent::Modified(encoded) => (false, false, encoded),
                WatchEvent::Deleted(encoded) => (false, true, encoded),
                WatchEvent::Bookmark(_) => continue,
            };
            let Ok(object) = serde_json::from_slice(&encoded.bytes) else { continue };
            if to.send(Event { at, plural, is_gone, is_new, object }).await.is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// The user whose changes are measured.
struct User {
    client: Client,
    clock: SharedClock,
    seen: Seen,
    process: ManagerProcess,
    stop: StopToken,
    patience: Duration,
    /// The namespace of this round.
    namespace: String,
    measured: BTreeMap<(String, String), Vec<f64>>,
    /// The rows, in the order of their first measurement.
    order: Vec<(String, String)>,
}

impl User {
    /// Does all rounds, each in a namespace of its own.
    async fn rounds(&mut self, rounds: usize, large: usize) -> Result<()> {
        self.wait_for_manager().await?;
        for round in 1..=rounds {
            eprintln!("round {round} of {rounds} ...");
            self.namespace = format!("latency-{round}");
            self.create(&NAMESPACES, "", &namespace(&self.namespace.clone())).await?;
            let account = json!({ "metadata": { "name": "default" } });
            self.create(&ServiceAccount::RESOURCE, &self.namespace.clone(), &account).await?;
            self.pause().await?;
            for replicas in [1, 10, 50] {
                self.measure_deployment(replicas).await?;
            }
            if large > 0 {
                self.measure_deployment(large).await?;
            }
            self.measure_availability().await?;
            self.measure_job().await?;
            self.measure_stateful_set().await?;
            self.measure_namespace_end().await?;
        }
        Ok(())
    }

    /// Waits until the manager has started: the start does not count as part of a change.
    async fn wait_for_manager(&mut self) -> Result<()> {
        self.namespace = "latency-0".to_owned();
        self.create(&NAMESPACES, "", &namespace(&self.namespace.clone())).await?;
        let since = self.now();
        self.create_here(&Deployment::RESOURCE, &deployment("probe", 0)).await?;
        let is_seen = |e: &Event| {
            let observed = &e.object["status"]["observedGeneration"];
            e.is_of("deployments", "probe") && *observed == e.object["metadata"]["generation"]
        };
        self.wait_for_event(since, "the manager's first write", is_seen).await?;
        let key = ObjectKey::cluster(&self.namespace);
        self.client.resource(&NAMESPACES).delete(&key, Delete::new()).await?;
        self.wait_for_event(since, "the namespace's end", |e| {
            e.plural == "namespaces" && e.is_gone
        })
        .await?;
        self.pause().await
    }

    /// Creates an object; one that exists already stays as it is.
    async fn create(&self, resource: &ResourceType, namespace: &str, body: &Value) -> Result<()> {
        let verbs = self.client.resource(resource);
        match verbs.create::<PartialObjectMetadata>(namespace, body).await {
            Err(error) if !error.is_already_exists() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Creates an object in the namespace of this round.
    async fn create_here(&self, resource: &ResourceType, body: &Value) -> Result<()> {
        self.create(resource, &self.namespace, body).await
    }

    /// Checks that the manager still runs, then pauses so that its work for one change ends before
    /// the next change.
    async fn pause(&mut self) -> Result<()> {
        self.process.check_alive(&self.stop)?;
        self.clock.sleep(PAUSE).await;
        Ok(())
    }

    /// Returns the index of the next event: all that have arrived are before it.
    fn now(&mut self) -> usize {
        while let Ok(event) = self.seen.coming.try_recv() {
            self.seen.events.push(event);
        }
        self.seen.events.len()
    }

    /// Waits for the first event from `since` on at which `done` holds, and returns the event's
    /// time. `done` is called with each event of this round's namespace in turn.
    async fn wait_for_event(
        &mut self,
        since: usize,
        what: &str,
        mut done: impl FnMut(&Event) -> bool,
    ) -> Result<Duration> {
        let give_up = self.clock.monotonic() + self.patience;
        let mut next = since;
        loop {
            while let Some(event) = self.seen.events.get(next) {
                next += 1;
                let metadata = &event.object["metadata"];
                let is_here =
                    metadata["namespace"] == *self.namespace || metadata["name"] == *self.namespace;
                if is_here && done(event) {
                    return Ok(event.at);
                }
            }
            let late = async {
                self.clock.sleep(POLL).await;
                None
            };
            let coming = async { self.seen.coming.recv().await.ok() };
            if let Some(event) = coming.or(late).await {
                self.seen.events.push(event);
                continue;
            }
            self.process.check_alive(&self.stop)?;
            if self.clock.monotonic() > give_up {
                let namespace = &self.namespace;
                return Err(format!("{namespace}: {what}: not after {:?}", self.patience).into());
            }
        }
    }

    /// Records the time from `begin` to `end` under the row `from`, `to`. Rows are reported in the
    /// order of their first time.
    fn record_time(&mut self, from: &str, to: &str, begin: Duration, end: Duration) {
        let row = (from.to_owned(), to.to_owned());
        if !self.measured.contains_key(&row) {
            self.order.push(row.clone());
        }
        let millis = end.as_secs_f64() * 1e3 - begin.as_secs_f64() * 1e3;
        self.measured.entry(row).or_default().push(millis);
    }

    /// Measures a new Deployment: when its pods exist, and when its status counts them.
    async fn measure_deployment(&mut self, replicas: usize) -> Result<()> {
        let (name, since) = (format!("app-{replicas}"), self.now());
        self.create_here(&Deployment::RESOURCE, &deployment(&name, replicas)).await?;
        let from = format!("Deployment of {replicas} created");
        let created = self
            .wait_for_event(since, &from, |e| e.is_of("deployments", &name) && e.is_new)
            .await?;
        let mut pods = BTreeSet::new();
        let exist = |event: &Event| {
            if event.is_of("pods", &name) && event.is_new {
                pods.insert(event.name().to_owned());
            }
            pods.len() == replicas
        };
        let exist = self.wait_for_event(since, "its pods", exist).await?;
        self.record_time(&from, &format!("{replicas} pods exist"), created, exist);
        let counts =
            |e: &Event| e.is_of("deployments", &name) && e.status("replicas") == replicas as i64;
        let counted = self.wait_for_event(since, "its status", counts).await?;
        self.record_time(&from, &format!("status says {replicas}"), created, counted);
        let done = |e: &Event| {
            e.is_of("deployments", &name) && e.status("availableReplicas") == replicas as i64
        };
        self.wait_for_event(since, "its available pods", done).await?;
        self.remove(&Deployment::RESOURCE, &name).await
    }

    /// Deletes an object with its pods, and waits until these are gone.
    async fn remove(&mut self, resource: &ResourceType, name: &str) -> Result<()> {
        let key = ObjectKey::new(&self.namespace, name);
        self.client.resource(resource).delete(&key, Delete::background()).await?;
        let (verbs, begin) = (self.client.resource(&Pod::RESOURCE), self.clock.monotonic());
        let options =
            ListOptions { label_selector: Some(format!("app={name}")), ..ListOptions::default() };
        loop {
            let pods = verbs.list::<PartialObjectMetadata>(Some(&self.namespace), &options).await?;
            if pods.items.is_empty() {
                break;
            }
            if self.clock.monotonic() > begin + self.patience {
                return Err(format!("the pods of {name} are not deleted").into());
            }
            self.clock.sleep(POLL).await;
        }
        self.pause().await
    }

    /// Measures a Deployment of three replicas: until it is available, the loss of a pod, a
    /// Service, a rollout.
    async fn measure_availability(&mut self) -> Result<()> {
        let (name, since) = ("web", self.now());
        self.create_here(&Deployment::RESOURCE, &deployment(name, 3)).await?;
        let from = "Deployment of 3 created";
        let made =
            self.wait_for_event(since, from, |e| e.is_of("deployments", name) && e.is_new).await?;
        let available =
            |e: &Event| e.is_of("deployments", name) && e.status("availableReplicas") == 3;
        let end = self.wait_for_event(since, "its available pods", available).await?;
        self.record_time(from, "3 available", made, end);
        self.pause().await?;

        let since = self.now();
        let pod = self.seen.events.iter().rev().find(|e| e.is_of("pods", name) && !e.is_gone);
        let pod = pod.ok_or("no pod was seen")?.name().to_owned();
        let verbs = self.client.resource(&Pod::RESOURCE);
        verbs.delete(&ObjectKey::new(&self.namespace, &pod), Delete::new()).await?;
        let begin = self
            .wait_for_event(since, "the deleted pod", |e| e.plural == "pods" && e.name() == pod);
        let begin = begin.await?;
        let successor = |e: &Event| e.is_of("pods", name) && e.is_new;
        let end = self.wait_for_event(since, "its successor", successor).await?;
        self.record_time("a ready pod deleted", "its successor exists", begin, end);
        let ready = |e: &Event| available(e) && e.at > end;
        self.wait_for_event(since, "the successor's status", ready).await?;
        self.pause().await?;

        let since = self.now();
        self.create_here(&Service::RESOURCE, &service("svc", name)).await?;
        let from = "Service created";
        let begin =
            self.wait_for_event(since, from, |e| e.is_of("services", "svc") && e.is_new).await?;
        let has_three = |e: &Event| {
            e.plural == "endpointslices"
                && e.object["metadata"]["labels"]["kubernetes.io/service-name"] == "svc"
                && e.object["endpoints"].as_array().is_some_and(|endpoints| endpoints.len() == 3)
        };
        let end = self.wait_for_event(since, "its slice", has_three).await?;
        self.record_time(from, "its slice has the endpoints", begin, end);
        self.pause().await?;

        let since = self.now();
        let change =
            json!({ "spec": { "template": { "metadata": { "annotations": { "v": "2" } } } } });
        let key = ObjectKey::new(&self.namespace, name);
        self.client.patch::<Deployment>(&key, &Patch::Merge(change)).await?;
        let begin =
            self.wait_for_event(since, "the change", |e| e.is_of("deployments", name)).await?;
        let rolled = |e: &Event| {
            let is_new = ["replicas", "updatedReplicas", "availableReplicas"]
                .iter()
                .all(|field| e.status(field) == 3);
            let is_seen =
                e.object["status"]["observedGeneration"] == e.object["metadata"]["generation"];
            e.is_of("deployments", name) && is_new && is_seen
        };
        let end = self.wait_for_event(since, "the rollout", rolled).await?;
        self.record_time("template changed", "3 pods rolled", begin, end);
        self.remove(&Deployment::RESOURCE, name).await
    }

    /// Measures a new Job of five pods, until it is complete.
    async fn measure_job(&mut self) -> Result<()> {
        let since = self.now();
        let mut template = template("job", 0);
        template["metadata"]["annotations"] = json!({ "sandbox/run": "exit 0" });
        template["spec"]["restartPolicy"] = "Never".into();
        let job = json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "job" },
            "spec": { "parallelism": 5, "completions": 5, "template": template },
        });
        self.create_here(&Job::RESOURCE, &job).await?;
        let begin =
            self.wait_for_event(since, "the Job", |e| e.is_of("jobs", "job") && e.is_new).await?;
        let complete =
            |e: &Event| e.is_of("jobs", "job") && e.object["status"]["completionTime"].is_string();
        let end = self.wait_for_event(since, "its end", complete).await?;
        self.record_time("Job of 5 created", "complete", begin, end);
        self.remove(&Job::RESOURCE, "job").await
    }

    /// Measures a new StatefulSet of three pods, until all of them are ready.
    async fn measure_stateful_set(&mut self) -> Result<()> {
        let (name, since) = ("db", self.now());
        let mut set = deployment(name, 3);
        set["kind"] = "StatefulSet".into();
        set["spec"]["serviceName"] = "db".into();
        self.create_here(&StatefulSet::RESOURCE, &set).await?;
        let begin =
            self.wait_for_event(since, "the set", |e| e.is_of("statefulsets", name) && e.is_new);
        let begin = begin.await?;
        let ready = |e: &Event| e.is_of("statefulsets", name) && e.status("readyReplicas") == 3;
        let end = self.wait_for_event(since, "its ready pods", ready).await?;
        self.record_time("StatefulSet of 3 created", "3 ready", begin, end);
        self.remove(&StatefulSet::RESOURCE, name).await
    }

    /// Measures the deletion of a namespace with a Deployment of three replicas.
    async fn measure_namespace_end(&mut self) -> Result<()> {
        let since = self.now();
        self.create_here(&Deployment::RESOURCE, &deployment("last", 3)).await?;
        let available =
            |e: &Event| e.is_of("deployments", "last") && e.status("availableReplicas") == 3;
        self.wait_for_event(since, "its available pods", available).await?;
        self.pause().await?;
        let since = self.now();
        let key = ObjectKey::cluster(&self.namespace);
        self.client.resource(&NAMESPACES).delete(&key, Delete::new()).await?;
        let begin =
            self.wait_for_event(since, "the deletion", |e| e.plural == "namespaces").await?;
        let gone = |e: &Event| e.plural == "namespaces" && e.is_gone;
        let end = self.wait_for_event(since, "the end of the namespace", gone).await?;
        self.record_time("namespace deleted", "it is gone", begin, end);
        self.pause().await
    }
}

/// Builds a Deployment of this many replicas, labelled with its name.
fn deployment(name: &str, replicas: usize) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": name, "labels": { "app": name } },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": name } },
            "template": template(name, 0),
        },
    })
}

fn service(name: &str, app: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
        "spec": { "selector": { "app": app }, "ports": [{ "port": 80 }] },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let all: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!([quantile(&all, 0.5), quantile(&all, 0.99)], [50.0, 99.0]);
        assert_eq!([quantile(&[3.0], 0.5), quantile(&[3.0], 0.99)], [3.0, 3.0]);
        assert_eq!(quantile(&[1.0, 2.0, 9.0], 0.5), 2.0);
        let row = LatencyRow::new("a", "b", vec![3.0, 1.0, 2.0]);
        assert_eq!((row.median_ms, row.p99_ms), (2.0, 3.0));
    }
}
