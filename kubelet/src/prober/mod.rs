//! Probes of running containers. Upstream: `pkg/kubelet/prober`.

mod grpc;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use async_channel::Sender;
use futures_lite::FutureExt;
use hyper::header::{ACCEPT, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::Timestamp;
use kube_controller_manager::task::{self, Latch, StopToken};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::cri::{RuntimeService, chain};
use crate::events;
use crate::http::{self, Target, TrustPolicy};
use crate::metrics;
use crate::node::address::NodeAddress;
use crate::pod::{Container, Pod, PodExt, Uid};
use crate::runtime::actions::ProbeResults;
use crate::runtime::environment::expand_word;
use crate::volumes::Folders;

/// The bytes of an HTTP probe's answer that are read. Upstream: `maxRespBodyLength`.
const MAX_BODY: usize = 10 << 10;

/// Upstream: `maxProbeRetries`.
const MAX_PROBE_RETRIES: u32 = 3;

/// The kinds of probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Startup,
    Liveness,
    Readiness,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Startup, Kind::Liveness, Kind::Readiness];

    fn name(self) -> &'static str {
        match self {
            Kind::Startup => "Startup",
            Kind::Liveness => "Liveness",
            Kind::Readiness => "Readiness",
        }
    }

    pub fn of(self, container: &Container) -> Option<&core::Probe> {
        match self {
            Kind::Startup => container.startup_probe.as_ref(),
            Kind::Liveness => container.liveness_probe.as_ref(),
            Kind::Readiness => container.readiness_probe.as_ref(),
        }
    }
}

/// Counts equal results until they reach their threshold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Streak {
    last: Option<bool>,
    count: i32,
}

impl Streak {
    /// The result that a probe's outcome establishes. Upstream: `worker.doProbe`.
    fn observe(&mut self, is_success: bool, probe: &core::Probe) -> Option<bool> {
        if self.last == Some(is_success) {
            self.count = self.count.saturating_add(1);
        } else {
            *self = Streak { last: Some(is_success), count: 1 };
        }
        let threshold = match is_success {
            true => probe.success_threshold.unwrap_or(1),
            false => probe.failure_threshold.unwrap_or(3),
        };
        (self.count >= threshold).then_some(is_success)
    }
}

#[derive(Default)]
struct Table {
    /// By container id and kind.
    results: BTreeMap<(String, Kind), bool>,
    /// Each with its pod.
    running: BTreeMap<(String, Kind), (Uid, Latch)>,
}

impl Table {
    fn result(&self, id: &str, kind: Kind) -> Option<bool> {
        self.results.get(&(id.to_owned(), kind)).copied()
    }

    /// What is kept of a pod's containers.
    fn kept(&self, pod: &str) -> BTreeMap<String, Kept> {
        let ids = self.running.iter().filter(|(_, (of, _))| **of == *pod).map(|((id, _), _)| id);
        let has = |id: &str, kind| self.result(id, kind) == Some(true);
        let kept =
            |id: &str| Kept { started: has(id, Kind::Startup), ready: has(id, Kind::Readiness) };
        ids.map(|id| (id.clone(), kept(id))).collect()
    }
}

/// What an agent that restarts has to know of a container's probes. It is in a file beside the pod,
/// by container id: neither the clock nor the time of a restart has a part in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    /// The startup probe has succeeded.
    started: bool,
    /// The result of the readiness probe.
    ready: bool,
}

/// Where a pod's containers are reached.
#[derive(Clone, Debug)]
pub enum Ip {
    OfPod(String),
    /// It may change while they run.
    OfNode(NodeAddress),
}

impl Ip {
    fn now(&self) -> String {
        match self {
            Ip::OfPod(ip) => ip.clone(),
            Ip::OfNode(address) => address.or_loopback(),
        }
    }
}

/// A running container.
#[derive(Clone, Copy)]
pub struct Running<'a> {
    pub definition: &'a Container,
    pub id: &'a str,
    /// By the clock of the machine.
    pub started_at: Timestamp,
}

/// The probes of all containers. Cheap to clone.
#[derive(Clone)]
pub struct Probes {
    table: Arc<Mutex<Table>>,
    /// Held while a file of results is written.
    writing: Arc<async_lock::Mutex<()>>,
    runtime: RuntimeService,
    folders: Folders,
    clock: SharedClock,
    /// When this agent started.
    since: Duration,
    changed: Sender<Uid>,
    stop: StopToken,
}

impl Probes {
    /// `changed` gets the pods whose results have changed.
    pub fn new(
        runtime: RuntimeService,
        folders: Folders,
        clock: SharedClock,
        changed: Sender<Uid>,
        stop: StopToken,
    ) -> Probes {
        let (table, writing, since) = (Arc::default(), Arc::default(), clock.monotonic());
        Probes { table, writing, runtime, folders, clock, since, changed, stop }
    }

    pub fn result(&self, id: &str, kind: Kind) -> Option<bool> {
        self.table.lock().result(id, kind)
    }

    /// The results that decide whether a container is restarted.
    pub fn results(&self, id: &str) -> ProbeResults {
        ProbeResults {
            startup: self.result(id, Kind::Startup),
            liveness: self.result(id, Kind::Liveness),
        }
    }

    /// Starts the probes of a pod's `running` containers that do not run yet, with the results of the
    /// agent before this one, and stops those of its other containers.
    pub async fn update(&self, pod: &Arc<Pod>, running: &[Running<'_>], ip: &Ip) {
        self.retain(&pod.uid(), &running.iter().map(|container| container.id.to_owned()).collect());
        let is_new =
            |id: &str, kind| !self.table.lock().running.contains_key(&(id.to_owned(), kind));
        let all = running.iter().flat_map(|one| Kind::ALL.map(|kind| (one, kind)));
        let new: Vec<_> = all
            .filter_map(|(one, kind)| Some((one, kind, kind.of(one.definition)?)))
            .filter(|(one, kind, _)| is_new(one.id, *kind))
            .collect();
        if new.is_empty() {
            return;
        }
        let kept = self.kept(pod).await;
        // All of the pod's results are known before the first probe: its end writes them.
        let mut table = self.table.lock();
        for (container, kind, probe) in new {
            let key = (container.id.to_owned(), kind);
            let kept = kept.get(container.id).copied().unwrap_or_default();
            let result = match kind {
                Kind::Startup => kept.started,
                Kind::Readiness => kept.ready,
                Kind::Liveness => false,
            };
            if result {
                table.results.insert(key.clone(), true);
            }
            let latch = Latch::default();
            table.running.insert(key, (pod.uid(), latch.clone()));
            // A container starts once.
            if kind == Kind::Startup && result {
                continue;
            }
            let worker = Worker {
                probes: self.clone(),
                pod: pod.clone(),
                container: container.definition.clone(),
                probe: probe.clone(),
                kind,
                id: container.id.to_owned(),
                started_at: container.started_at,
                ip: ip.clone(),
            };
            drop(task::spawn(async move {
                worker.run().or(latch.opened()).or(worker.probes.stop.stopped()).await;
            }));
        }
    }

    /// What an agent before this one has kept. Where it has kept nothing (as other agents do), it is
    /// what the API server has from it.
    async fn kept(&self, pod: &Pod) -> BTreeMap<String, Kept> {
        let mut kept = reported(pod);
        let file = self.folders.probes_file(&pod.uid());
        match task::blocking(move || read(&file)).await {
            Ok(of_file) => kept.extend(of_file),
            Err(error) => {
                log::warn!("pod {}: the results of its probes: {error}", pod.display_name());
            }
        }
        kept
    }

    async fn set(&self, pod: &Pod, id: &str, kind: Kind, result: bool) {
        let key = (id.to_owned(), kind);
        let before = {
            let mut table = self.table.lock();
            if !table.running.contains_key(&key) {
                return;
            }
            table.results.insert(key, result)
        };
        if before != Some(result) {
            // Closed only when the kubelet stops. It waits for no disk.
            let _ = self.changed.send(pod.uid()).await;
            if kind != Kind::Liveness {
                self.keep(pod).await;
            }
        }
    }

    /// Writes what is kept of a pod's containers.
    async fn keep(&self, pod: &Pod) {
        // The newest results are written last.
        let guard = self.writing.lock_arc().await;
        let (file, kept) =
            (self.folders.probes_file(&pod.uid()), self.table.lock().kept(&pod.uid()));
        // The work holds the guard: it continues when this future does not.
        let written = task::blocking(move || {
            let _guard = guard;
            write(&file, &kept)
        });
        if let Err(error) = written.await {
            log::warn!("pod {}: the results of its probes: {error}", pod.display_name());
        }
    }

    /// Stops the probes of a pod's containers that are not in `running`, and forgets their results.
    /// The runtime may have lost such a container.
    pub fn retain(&self, pod: &str, running: &BTreeSet<String>) {
        let mut table = self.table.lock();
        let Table { results, running: probes } = &mut *table;
        probes.retain(|key, (of, latch)| {
            let stays = **of != *pod || running.contains(&key.0);
            if !stays {
                latch.open();
                results.remove(key);
            }
            stays
        });
    }

    /// Stops all but the readiness probes of a pod that ends. Their results stay.
    /// Upstream: `StopLivenessAndStartup`.
    pub fn stop_liveness_and_startup(&self, pod: &str) {
        for ((_, kind), (of, latch)) in &self.table.lock().running {
            if **of == *pod && *kind != Kind::Readiness {
                latch.open();
            }
        }
    }
}

/// The states of containers that the API server has.
fn reported(pod: &Pod) -> BTreeMap<String, Kept> {
    let status = pod.status.iter();
    let lists = status.flat_map(|all| [&all.init_container_statuses, &all.container_statuses]);
    let kept = lists.flatten().flatten().filter_map(|status| {
        // `RUNTIME://ID`.
        let (_, id) = status.container_id.as_deref()?.split_once("://")?;
        Some((id.to_owned(), Kept { started: status.started == Some(true), ready: status.ready }))
    });
    kept.collect()
}

fn read(file: &Path) -> io::Result<BTreeMap<String, Kept>> {
    match fs::read(file) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(error) => Err(error),
    }
}

/// Readers see the old file or the new one. It need not survive a power cut: no container does.
fn write(file: &Path, kept: &BTreeMap<String, Kept>) -> io::Result<()> {
    let new = file.with_extension("new");
    fs::write(&new, serde_json::to_vec(kept)?)?;
    fs::rename(new, file)
}

/// The delay of a container's first probe: the rest of its initial delay, counted from the container's
/// start, and at the start of the agent a part of the period, so that not all containers are probed
/// at once. `running`, `since`: the ages of the container and of the agent. `part`: from 0 to 1.
fn first_delay(probe: &core::Probe, running: Duration, since: Duration, part: f64) -> Duration {
    let initial = seconds(probe.initial_delay_seconds).saturating_sub(running);
    initial.max(period(probe).mul_f64(part).saturating_sub(since))
}

fn period(probe: &core::Probe) -> Duration {
    seconds(probe.period_seconds).max(Duration::from_secs(1))
}

fn seconds(seconds: Option<i32>) -> Duration {
    Duration::from_secs(seconds.unwrap_or(0).max(0).unsigned_abs().into())
}

fn labels<'a>(pod: &'a Pod, container: &'a Container, kind: Kind) -> metrics::ProbeLabels<'a> {
    [kind.name(), &container.name, pod.name(), pod.namespace()]
}

/// Ends the metrics of a pod's probes.
pub fn forget(pod: &Pod) {
    for container in pod.all_containers() {
        for kind in Kind::ALL.into_iter().filter(|kind| kind.of(container).is_some()) {
            metrics::PROBES.remove(labels(pod, container, kind), &pod.uid());
        }
    }
}

struct Worker {
    probes: Probes,
    pod: Arc<Pod>,
    container: Container,
    probe: core::Probe,
    kind: Kind,
    id: String,
    started_at: Timestamp,
    ip: Ip,
}

impl Worker {
    async fn run(&self) {
        let clock = &self.probes.clock;
        let period = period(&self.probe);
        let running = clock.now().duration_since(self.started_at);
        let since = clock.monotonic().saturating_sub(self.probes.since);
        clock.sleep(first_delay(&self.probe, running, since, fastrand::f64())).await;
        let mut streak = Streak::default();
        loop {
            if self.is_held() {
                // The startup probe has not succeeded yet.
                clock.sleep(Duration::from_secs(1)).await;
                continue;
            }
            let begin = clock.monotonic();
            let (is_success, message) = match self.probe_once().await {
                Ok(()) => (true, String::new()),
                Err(Fault::Failed(message)) => (false, message),
                Err(Fault::NoResult(message)) => {
                    let (pod, name) = (self.pod.display_name(), &self.container.name);
                    let kind = self.kind.name();
                    log::debug!("pod {pod}, container {name}: {kind} probe: no result: {message}");
                    clock.sleep(period).await;
                    continue;
                }
            };
            let took = clock.monotonic().saturating_sub(begin);
            let labels = labels(&self.pod, &self.container, self.kind);
            metrics::PROBES.observe(labels, &self.pod.uid(), is_success, took);
            if !is_success {
                let message = format!("{} probe failed: {message}", self.kind.name());
                events::warning(&self.pod, Some(&self.container.name), "Unhealthy", message);
            }
            if let Some(result) = streak.observe(is_success, &self.probe) {
                self.probes.set(&self.pod, &self.id, self.kind, result).await;
                if self.kind == Kind::Startup || self.kind == Kind::Liveness && !result {
                    // The container has started, or is restarted.
                    return;
                }
            }
            clock.sleep(period).await;
        }
    }

    fn is_held(&self) -> bool {
        self.kind != Kind::Startup
            && self.container.startup_probe.is_some()
            && self.probes.result(&self.id, Kind::Startup) != Some(true)
    }

    /// A probe that has no result is repeated at once. Upstream: `runProbeWithRetries`.
    async fn probe_once(&self) -> Result<(), Fault> {
        let mut outcome = self.attempt().await;
        for _ in 1..MAX_PROBE_RETRIES {
            if !matches!(outcome, Err(Fault::NoResult(_))) {
                break;
            }
            outcome = self.attempt().await;
        }
        outcome
    }

    async fn attempt(&self) -> Result<(), Fault> {
        let timeout = self.probe.timeout_seconds.unwrap_or(1).max(1);
        let timeout = Duration::from_secs(timeout.unsigned_abs().into());
        let clock = &self.probes.clock;
        if let Some(service) = &self.probe.grpc {
            // It has messages of its own for each stage that takes too long.
            let port = u16::try_from(service.port)
                .map_err(|_| Fault::NoResult(format!("invalid port number: {}", service.port)))?;
            let name = service.service.as_deref().unwrap_or_default();
            let checked = grpc::check(clock, &self.ip.now(), port, name, timeout).await;
            return checked.map_err(Fault::from);
        }
        if let Some(exec) = &self.probe.exec {
            // The runtime counts its time.
            // Only variables with a value in the definition are known here, as upstream.
            let variables = self.container.env.iter().flatten();
            let values = variables
                .map(|env| (env.name.clone(), env.value.clone().unwrap_or_default().into_bytes()))
                .collect();
            let command = exec.command.iter().flatten();
            let command = command.map(|word| expand_word(word, &values));
            let command = command.collect::<Result<Vec<String>, _>>().map_err(Fault::NoResult)?;
            return run(&self.probes.runtime, &self.id, &command, timeout).await;
        }
        let late = async {
            clock.sleep(timeout).await;
            Err(Fault::Failed(format!("no answer within {timeout:?}")))
        };
        self.connect().or(late).await
    }

    async fn connect(&self) -> Result<(), Fault> {
        let probe = &self.probe;
        if let Some(get) = &probe.http_get {
            let target = target(&self.container, get, &self.ip.now()).map_err(Fault::NoResult)?;
            return get_ok(&target, get).await;
        }
        if let Some(tcp) = &probe.tcp_socket {
            let own = tcp.host.clone().filter(|host| !host.is_empty());
            let host = own.unwrap_or_else(|| self.ip.now());
            let port = port(&self.container, &tcp.port).map_err(Fault::NoResult)?;
            return http::connect(&host, port).await.map(drop).map_err(Fault::from);
        }
        Err(Fault::NoResult("missing probe handler".to_owned()))
    }
}

/// Why a probe has not succeeded.
#[derive(Debug, PartialEq, Eq)]
enum Fault {
    /// The container has answered, or has not in time.
    Failed(String),
    /// The container could not be asked: that says nothing about it. Upstream: `probe.Unknown`.
    NoResult(String),
}

impl From<http::Error> for Fault {
    fn from(error: http::Error) -> Fault {
        match error.is_own {
            true => Fault::NoResult(error.to_string()),
            false => Fault::Failed(error.to_string()),
        }
    }
}

/// Runs a command in a container; with a status other than 0 its output is the error.
async fn run(
    runtime: &RuntimeService,
    id: &str,
    command: &[String],
    timeout: Duration,
) -> Result<(), Fault> {
    let answer = match runtime.exec_sync(id, command, Some(timeout)).await {
        Ok(answer) => answer,
        Err(error) if error.is_deadline_exceeded() => {
            return Err(Fault::Failed(format!("command timed out: {}", chain(&error))));
        }
        Err(error) => return Err(Fault::NoResult(chain(&error))),
    };
    if answer.exit_code == 0 {
        return Ok(());
    }
    let output = [answer.stdout, answer.stderr].concat();
    let text = String::from_utf8_lossy(&output[..output.len().min(MAX_BODY)]);
    Err(Fault::Failed(text.trim_end().to_owned()))
}

/// Where an HTTP action of a container goes.
///
/// # Errors
/// When the container has no such port.
pub fn target(
    container: &Container,
    get: &core::HTTPGetAction,
    ip: &str,
) -> Result<Target, String> {
    let host = get.host.as_deref().filter(|host| !host.is_empty()).unwrap_or(ip);
    let path = get.path.clone().unwrap_or_default();
    Ok(Target {
        is_https: get.scheme.as_deref() == Some("HTTPS"),
        host: host.to_owned(),
        port: port(container, &get.port)?,
        path: if path.starts_with('/') { path } else { format!("/{path}") },
    })
}

/// Sends the GET of an action. `purpose`: `probe` or `lifecycle`, for the user agent.
///
/// # Errors
/// When there is no answer.
pub async fn send(
    target: &Target,
    get: &core::HTTPGetAction,
    purpose: &str,
) -> Result<http::Answer, http::Error> {
    let mut headers = HeaderMap::new();
    for header in get.http_headers.iter().flatten() {
        let name = HeaderName::try_from(&header.name).map_err(|error| error.to_string())?;
        let value = HeaderValue::try_from(&header.value).map_err(|error| error.to_string())?;
        headers.append(name, value);
    }
    if !headers.contains_key(USER_AGENT) {
        let agent = HeaderValue::try_from(format!("kube-{purpose}/1.36"));
        headers.insert(USER_AGENT, agent.map_err(|error| error.to_string())?);
    }
    match headers.get(ACCEPT) {
        None => _ = headers.insert(ACCEPT, HeaderValue::from_static("*/*")),
        Some(empty) if empty.is_empty() => _ = headers.remove(ACCEPT),
        Some(_) => {}
    }
    http::get(target, &headers, TrustPolicy::AnyCertificate, MAX_BODY).await
}

/// Sends the GET of a probe; a status from 200 to 399 is a success.
async fn get_ok(target: &Target, get: &core::HTTPGetAction) -> Result<(), Fault> {
    match send(target, get, "probe").await?.status.as_u16() {
        200..400 => Ok(()),
        code => Err(Fault::Failed(format!("HTTP probe failed with statuscode: {code}"))),
    }
}

/// A port by its number or name. Upstream: `probe.ResolveContainerPort`.
fn port(container: &Container, port: &IntOrString) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let ports = container.ports.iter().flatten();
            let named = ports.into_iter().find(|port| port.name.as_deref() == Some(name.as_str()));
            match named {
                Some(port) => port.container_port,
                None => name.parse().map_err(|_| format!("no port named {name:?}"))?,
            }
        }
    };
    u16::try_from(number).ok().filter(|port| *port > 0).ok_or(format!("invalid port: {number}"))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use futures_lite::future::{block_on, poll_once};
    use kube_controller_manager::clock::FakeClock;
    use serde_json::{Value, json};

    use super::*;
    use crate::cri::Channel;

    /// The agents of a machine, one after the other.
    struct Machine {
        root: PathBuf,
    }

    impl Machine {
        fn new(test: &str) -> Machine {
            let root = std::env::temp_dir().join(format!("kubelet-{test}-{}", std::process::id()));
            fs::create_dir_all(root.join("pods/u")).expect("a folder");
            Machine { root }
        }

        /// An agent that starts at this time, in seconds.
        fn agent(&self, time: i64) -> Probes {
            let clock = FakeClock::new(Timestamp::from_secs(time));
            let runtime = RuntimeService::new(
                Channel::new(Path::new("/nowhere"), clock.clone()),
                Duration::from_secs(1),
            );
            let folders = Folders { root: self.root.clone(), logs: self.root.clone() };
            let changed = async_channel::unbounded().0;
            Probes::new(runtime, folders, clock, changed, StopToken::new())
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.root);
        }
    }

    /// With probes that do nothing before the test has ended.
    fn container() -> Container {
        let probe = json!({ "exec": { "command": ["x"] }, "initialDelaySeconds": 9999 });
        let [startup, liveness, readiness] = [&probe; 3];
        serde_json::from_value(json!({ "name": "a",
            "startupProbe": startup, "livenessProbe": liveness, "readinessProbe": readiness }))
        .expect("a container")
    }

    fn pod(uid: &str, status: Value) -> Arc<Pod> {
        let metadata = json!({ "uid": uid, "name": uid, "namespace": "n" });
        let pod = json!({ "metadata": metadata, "status": status });
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    /// The probes of the containers with these ids, which have started at 1000 s.
    async fn update(probes: &Probes, pod: &Arc<Pod>, ids: &[&str]) {
        let (definition, started_at) = (&container(), Timestamp::from_secs(1000));
        let running: Vec<_> = ids.iter().map(|id| Running { definition, id, started_at }).collect();
        probes.update(pod, &running, &Ip::OfPod("127.0.0.1".to_owned())).await;
    }

    /// Also if the runtime does not have the container any more.
    #[test]
    fn probes_end_with_their_container() {
        let machine = Machine::new("ends");
        let probes = machine.agent(2000);
        block_on(async {
            let (u, v) = (pod("u", json!(null)), pod("v", json!(null)));
            update(&probes, &u, &["first", "second"]).await;
            update(&probes, &v, &["other"]).await;
            for (pod, id) in [(&u, "first"), (&u, "second"), (&v, "other")] {
                probes.set(pod, id, Kind::Readiness, true).await;
            }
            update(&probes, &u, &["second"]).await;
        });
        let result = |id| probes.result(id, Kind::Readiness);
        assert_eq!(["first", "second", "other"].map(result), [None, Some(true), Some(true)]);
        let running: BTreeSet<String> =
            probes.table.lock().running.keys().map(|(id, _)| id.clone()).collect();
        assert_eq!(running, ["other", "second"].map(str::to_owned).into());
    }

    /// Also when the clock has stepped back behind the start of the containers, or far ahead.
    #[test]
    fn next_agent_has_the_results_of_the_last_one() {
        for time in [0, 1001, 1 << 32] {
            let machine = Machine::new("next");
            let of_api = |ready| {
                json!({"containerStatuses": [{"name": "a", "image": "", "imageID": "",
                "restartCount": 0, "containerID": "x://unready", "started": true, "ready": ready}]})
            };
            block_on(async {
                let ids = ["up", "starting", "unready", "unknown"];
                let (last, u) = (machine.agent(1001), pod("u", json!(null)));
                update(&last, &u, &ids[..3]).await;
                for (id, kind, result) in [
                    ("up", Kind::Startup, true),
                    ("up", Kind::Readiness, true),
                    ("up", Kind::Liveness, true),
                    ("starting", Kind::Readiness, false),
                    ("unready", Kind::Startup, true),
                    ("unready", Kind::Readiness, true),
                    ("unready", Kind::Readiness, false),
                ] {
                    last.set(&u, id, kind, result).await;
                }
                let next = machine.agent(time);
                // The API server has an older state.
                update(&next, &pod("u", of_api(true)), &ids).await;
                let is = |id, kind| next.result(id, kind) == Some(true);
                let all = ids.map(|id| (is(id, Kind::Startup), is(id, Kind::Readiness)));
                assert_eq!(all, [(true, true), (false, false), (true, false), (false, false)]);
            });
        }
    }

    #[test]
    fn results_do_not_wait_for_the_disk() {
        let machine = Machine::new("slow");
        let (changed, results) = async_channel::unbounded();
        let probes = Probes { changed, ..machine.agent(2000) };
        let u = pod("u", json!(null));
        block_on(async {
            update(&probes, &u, &["a"]).await;
            let _slow = probes.writing.lock().await;
            let set = poll_once(probes.set(&u, "a", Kind::Readiness, true)).await;
            assert!(set.is_none(), "written in spite of the lock");
        });
        assert_eq!(results.try_recv().as_deref(), Ok("u"));
    }

    #[test]
    fn state_of_the_api_server_counts_where_nothing_is_kept() {
        let machine = Machine::new("reported");
        let probes = machine.agent(2000);
        let status = |id: &str, started, ready| {
            json!({"name": id, "image": "", "imageID": "",
            "restartCount": 0, "containerID": format!("x://{id}"), "started": started, "ready": ready})
        };
        let of_api = json!({
            "initContainerStatuses": [status("sidecar", true, true)],
            "containerStatuses": [status("main", true, false), status("other", false, false)],
        });
        let ids = ["sidecar", "main", "other"];
        let seen = || {
            let is = |id, kind| probes.result(id, kind) == Some(true);
            ids.map(|id| (is(id, Kind::Startup), is(id, Kind::Readiness)))
        };
        let reported = [(true, true), (true, false), (false, false)];
        block_on(update(&probes, &pod("u", of_api.clone()), &ids));
        assert_eq!(seen(), reported);
        // A file that was cut off says nothing.
        fs::write(machine.root.join("pods/u/probes"), "{\"main\": {").expect("a file");
        block_on(update(&probes, &pod("u", json!(null)), &[]));
        assert_eq!(seen(), [(false, false); 3]);
        block_on(update(&probes, &pod("u", of_api), &ids));
        assert_eq!(seen(), reported);
    }

    #[test]
    fn first_probes_are_spread_and_initial_delays_do_not_begin_again() {
        for (initial, period, running, since, part, expected) in [
            // A new container of an agent that runs for long.
            (None, 10, 0, 500, 0.9, 0),
            (Some(30), 10, 0, 500, 0.9, 30),
            (Some(30), 10, 4, 500, 0.9, 26),
            // An agent that has just started.
            (None, 10, 900, 0, 0.0, 0),
            (None, 10, 900, 0, 0.5, 5),
            (None, 10, 900, 2, 0.5, 3),
            (None, 10, 0, 7, 0.5, 0),
            (Some(300), 10, 100, 0, 0.5, 200),
            (Some(300), 10, 298, 0, 0.5, 5),
            (Some(300), 10, 900, 0, 0.5, 5),
            (Some(-1), 0, 0, 0, 0.5, 0),
        ] {
            let probe = core::Probe {
                initial_delay_seconds: initial,
                period_seconds: Some(period),
                ..Default::default()
            };
            let [running, since] = [running, since].map(Duration::from_secs);
            let delay = first_delay(&probe, running, since, part);
            assert_eq!(
                delay.as_secs(),
                expected,
                "{initial:?} {period} {running:?} {since:?} {part}"
            );
        }
    }

    #[test]
    fn results_change_at_their_thresholds() {
        let probe = core::Probe {
            success_threshold: Some(2),
            failure_threshold: Some(3),
            ..Default::default()
        };
        let mut streak = Streak::default();
        let outcomes = [true, true, true, false, false, true, false, false, false, false];
        let results = outcomes.map(|outcome| streak.observe(outcome, &probe));
        let (good, bad) = (Some(true), Some(false));
        assert_eq!(results, [None, good, good, None, None, None, None, None, bad, bad]);
    }

    #[test]
    fn ports_have_numbers_or_names() {
        let container = Container {
            ports: Some(vec![core::ContainerPort {
                name: Some("web".to_owned()),
                container_port: 80,
                ..Default::default()
            }]),
            ..Default::default()
        };
        for (given, expected) in [
            (IntOrString::Int(1), Some(1)),
            (IntOrString::Int(0), None),
            (IntOrString::Int(65536), None),
            (IntOrString::String("web".to_owned()), Some(80)),
            (IntOrString::String("81".to_owned()), Some(81)),
            (IntOrString::String("x".to_owned()), None),
        ] {
            assert_eq!(port(&container, &given).ok(), expected, "{given:?}");
        }
    }
}
