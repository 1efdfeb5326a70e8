//! Probes of running containers. Upstream: `pkg/kubelet/prober`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_channel::Sender;
use futures_lite::FutureExt;
use hyper::header::{ACCEPT, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::task::{self, Latch, StopToken};
use parking_lot::Mutex;

use crate::cri::{RuntimeService, chain};
use crate::events;
use crate::grpc;
use crate::http::{self, Rules, Target};
use crate::metrics;
use crate::pod::{Container, Pod, PodExt, Uid};
use crate::runtime::actions::ProbeResults;
use crate::runtime::environment::expand;

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

/// The probes of all containers. Cheap to clone.
#[derive(Clone)]
pub struct Probes {
    table: Arc<Mutex<Table>>,
    runtime: RuntimeService,
    clock: SharedClock,
    changed: Sender<Uid>,
    stop: StopToken,
}

impl Probes {
    /// `changed` gets the pods whose results have changed.
    pub fn new(
        runtime: RuntimeService,
        clock: SharedClock,
        changed: Sender<Uid>,
        stop: StopToken,
    ) -> Probes {
        Probes { table: Arc::default(), runtime, clock, changed, stop }
    }

    pub fn result(&self, id: &str, kind: Kind) -> Option<bool> {
        self.table.lock().results.get(&(id.to_owned(), kind)).copied()
    }

    /// The results that decide whether a container is restarted.
    pub fn results(&self, id: &str) -> ProbeResults {
        ProbeResults {
            startup: self.result(id, Kind::Startup),
            liveness: self.result(id, Kind::Liveness),
        }
    }

    /// Starts the probes of a running container that are not running yet. With `is_adopted`, the
    /// container ran before this agent: it counts as started and ready until a probe fails, so that
    /// its readiness does not flip.
    pub fn start(
        &self,
        pod: &Arc<Pod>,
        container: &Container,
        id: &str,
        ip: &str,
        is_adopted: bool,
    ) {
        for kind in Kind::ALL {
            let Some(probe) = kind.of(container) else { continue };
            let key = (id.to_owned(), kind);
            let latch = {
                let mut table = self.table.lock();
                if table.running.contains_key(&key) {
                    continue;
                }
                if is_adopted {
                    table.results.insert(key.clone(), true);
                }
                let latch = Latch::default();
                table.running.insert(key, (pod.uid(), latch.clone()));
                latch
            };
            let worker = Worker {
                probes: self.clone(),
                pod: pod.clone(),
                container: container.clone(),
                probe: probe.clone(),
                kind,
                id: id.to_owned(),
                ip: ip.to_owned(),
            };
            drop(task::spawn(async move {
                worker.run().or(latch.opened()).or(worker.probes.stop.stopped()).await;
            }));
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
    ip: String,
}

impl Worker {
    async fn run(&self) {
        let seconds =
            |seconds: Option<i32>| Duration::from_secs(seconds.unwrap_or(0).max(0) as u64);
        let clock = &self.probes.clock;
        let period = seconds(self.probe.period_seconds).max(Duration::from_secs(1));
        clock.sleep(seconds(self.probe.initial_delay_seconds)).await;
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
                self.set(result).await;
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

    async fn set(&self, result: bool) {
        let key = (self.id.clone(), self.kind);
        let before = {
            let mut table = self.probes.table.lock();
            if !table.running.contains_key(&key) {
                return;
            }
            table.results.insert(key, result)
        };
        if before != Some(result) {
            // Closed only when the kubelet stops.
            let _ = self.probes.changed.send(self.pod.uid()).await;
        }
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
            let checked = grpc::check(clock, &self.ip, port, name, timeout).await;
            return checked.map_err(Fault::from);
        }
        if let Some(exec) = &self.probe.exec {
            // The runtime counts its time.
            // Only variables with a value in the definition are known here, as upstream.
            let variables = self.container.env.iter().flatten();
            let values = variables
                .map(|env| (env.name.clone(), env.value.clone().unwrap_or_default()))
                .collect();
            let command = exec.command.iter().flatten();
            let command: Vec<String> = command.map(|word| expand(word, &values)).collect();
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
            let target = target(&self.container, get, &self.ip).map_err(Fault::NoResult)?;
            return get_ok(&target, get).await;
        }
        if let Some(tcp) = &probe.tcp_socket {
            let host = tcp.host.as_deref().filter(|host| !host.is_empty()).unwrap_or(&self.ip);
            let port = port(&self.container, &tcp.port).map_err(Fault::NoResult)?;
            return http::connect(host, port).await.map(drop).map_err(Fault::from);
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
    http::get(target, &headers, Rules::Probe, MAX_BODY).await
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
    use std::path::Path;

    use kube_controller_manager::clock::FakeClock;
    use kube_controller_manager::objects::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::cri::Channel;

    /// Also if the runtime does not have the container any more.
    #[test]
    fn probes_end_with_their_container() {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let runtime = RuntimeService::new(
            Channel::new(Path::new("/nowhere"), clock.clone()),
            Duration::from_secs(1),
        );
        let probes = Probes::new(runtime, clock, async_channel::unbounded().0, StopToken::new());
        let container: Container = serde_json::from_value(json!({
            "name": "a", "readinessProbe": { "tcpSocket": { "port": 1 }, "initialDelaySeconds": 9 },
        }))
        .expect("a container");
        let pod = |uid: &str| {
            let pod = json!({ "metadata": { "uid": uid, "name": uid, "namespace": "n" } });
            Arc::new(serde_json::from_value::<Pod>(pod).expect("a pod"))
        };
        for (uid, id) in [("u", "first"), ("u", "second"), ("v", "other")] {
            probes.start(&pod(uid), &container, id, "127.0.0.1", true);
        }
        probes.retain("u", &BTreeSet::from(["second".to_owned()]));
        let result = |id| probes.result(id, Kind::Readiness);
        assert_eq!(["first", "second", "other"].map(result), [None, Some(true), Some(true)]);
        let running: Vec<String> =
            probes.table.lock().running.keys().map(|(id, _)| id.clone()).collect();
        assert_eq!(running, ["other", "second"]);
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
