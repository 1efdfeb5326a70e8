//! The containers of a pod on a stand-in node: when each starts, ends and starts again.

use std::time::Duration;

use kube_controller_manager::objects::{Istr, Labels, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};

use super::ports::HostPorts;
use super::script::Script;

/// The annotation with the script of all containers of a pod. With the suffix `.NAME` it is for one
/// container, with `.index-N` for the pods of one completion index. `A | B`: `A` first, and `B`
/// after a restart in place.
const RUN: &str = "sandbox/run";
/// `false`: the readiness probe fails. With the suffix `.NAME` it is for one container.
const READY: &str = "sandbox/ready";
/// `false`: the startup probe fails; the container does not get ready.
const STARTED: &str = "sandbox/started";
/// `false`: the liveness probe fails; the container is killed.
const LIVE: &str = "sandbox/live";
/// Older and shorter: `never-ready`, `crash` and `exit`.
const BEHAVIOR: &str = "sandbox/behavior";
const INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// The delay before the second restart in a row; it doubles up to [`LONGEST_BACKOFF`].
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);
/// Why a container without an image waits.
const NOT_PULLED: &str = "ImagePullBackOff";
/// The exit code of a container that is killed.
pub const KILLED: i32 = 137;

/// A container of a pod's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    pub name: Istr,
    pub image: Istr,
    pub ports: HostPorts,
    command: Vec<String>,
    args: Vec<String>,
    restart_policy: Option<Istr>,
    readiness_probe: Option<Probe>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Probe {
    initial_delay_seconds: i64,
    exec: Option<Exec>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Exec {
    command: Vec<String>,
}

impl Container {
    /// Returns whether the image exists. There is no registry: an image is missing when its name
    /// says so.
    fn has_image(&self) -> bool {
        let missing = ["nonexistent", "non-existent", "invalid"];
        !self.image.ends_with(":404") && missing.iter().all(|word| !self.image.contains(word))
    }

    /// Returns whether the image's own command is a shell.
    fn is_shell(&self) -> bool {
        self.image.rsplit('/').next().is_some_and(|name| name.starts_with("busybox"))
    }

    /// Returns the time of the first readiness probe of a container that started at `since`, if the
    /// probe has a delay.
    fn first_probe(&self, since: Timestamp) -> Option<Timestamp> {
        let delay = self.readiness_probe.as_ref()?.initial_delay_seconds;
        Some(since + Duration::from_secs(u64::try_from(delay).ok()?))
    }

    /// Returns whether the readiness probe succeeds. Only a command that this kubelet understands
    /// can fail.
    fn passes_probe(&self) -> bool {
        let command = self.readiness_probe.as_ref().and_then(|probe| probe.exec.as_ref());
        let script = command.and_then(|exec| Script::of_command(&exec.command));
        !matches!(script, Some(Script::Ends { code, .. }) if code != 0)
    }

    fn is_sidecar(&self) -> bool {
        self.restart_policy.as_ref().is_some_and(|policy| *policy == "Always")
    }
}

/// A container's status as it was reported.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Reported {
    name: Istr,
    restart_count: u32,
    ready: bool,
    state: ReportedState,
    last_state: ReportedState,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct ReportedState {
    waiting: Option<Waiting>,
    running: Option<Running>,
    terminated: Option<Terminated>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Waiting {
    reason: Istr,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Running {
    started_at: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Terminated {
    exit_code: i32,
    started_at: Option<Timestamp>,
    finished_at: Option<Timestamp>,
}

/// A finished run of a container.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ended {
    code: i32,
    since: Timestamp,
    at: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// Not started, for the reason that the status names.
    Waiting(&'static str),
    Running(Timestamp),
    Ended(Ended),
}

#[derive(Clone, Debug, PartialEq)]
struct Run {
    state: State,
    last: Option<Ended>,
    restarts: u32,
    ready: bool,
}

/// The inputs beside the containers' own state.
pub struct Rules<'a> {
    pub containers: &'a [Container],
    pub init_containers: &'a [Container],
    pub restart_policy: &'a str,
    pub annotations: &'a Labels,
    pub now: Timestamp,
}

/// All containers of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Containers {
    init: Vec<Run>,
    main: Vec<Run>,
}

/// A pod's phase as its containers make it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

impl Phase {
    /// Returns the name of the phase in the API.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Pending => "Pending",
            Phase::Running => "Running",
            Phase::Succeeded => "Succeeded",
            Phase::Failed => "Failed",
        }
    }

    pub fn is_terminal(self) -> bool {
        matches!(self, Phase::Succeeded | Phase::Failed)
    }
}

impl Run {
    /// Reads the run of a container from what its pod's status reports. One without a report waits.
    fn read(name: &Istr, reported: &[Reported], now: Timestamp) -> Run {
        let none = Reported::default();
        let known = reported.iter().find(|known| known.name == *name).unwrap_or(&none);
        let ended = |end: &Terminated| Ended {
            code: end.exit_code,
            since: end.started_at.unwrap_or(now),
            at: end.finished_at.unwrap_or(now),
        };
        let state = match &known.state {
            ReportedState { terminated: Some(end), .. } => State::Ended(ended(end)),
            ReportedState { running: Some(running), .. } => {
                State::Running(running.started_at.unwrap_or(now))
            }
            ReportedState { waiting: Some(waiting), .. }
                if waiting.reason == "CrashLoopBackOff" =>
            {
                State::Waiting("CrashLoopBackOff")
            }
            _ => State::Waiting("PodInitializing"),
        };
        let last = known.last_state.terminated.as_ref().map(ended);
        Run { state, last, restarts: known.restart_count, ready: known.ready }
    }

    fn is_running(&self) -> bool {
        matches!(self.state, State::Running(_))
    }

    /// Advances the container by one step. Returns the time of its next step, if it has one without
    /// further events. `restarts`: whether the container starts again after this exit code.
    fn advance(
        &mut self,
        script: Script,
        restarts: impl Fn(i32) -> bool,
        now: Timestamp,
    ) -> Option<Timestamp> {
        match (self.state, script) {
            (State::Waiting("CrashLoopBackOff"), _) => {
                let due = self.last.map_or(now, |last| last.at + backoff(self.restarts));
                if now < due {
                    return Some(due);
                }
                self.restarts += 1;
                self.state = State::Running(now);
            }
            (State::Waiting(_), Script::NotPulled) => {
                self.state = State::Waiting(NOT_PULLED);
            }
            (State::Waiting(_), _) => self.state = State::Running(now),
            (State::Running(_), Script::Forever | Script::NotPulled) => return None,
            (State::Running(since), Script::Ends { after, code }) => {
                let due = since + after;
                if now < due {
                    return Some(due);
                }
                self.state = State::Ended(Ended { code, since, at: now });
            }
            (State::Ended(end), _) if restarts(end.code) => {
                self.last = Some(end);
                let wait = backoff(self.restarts);
                if wait.is_zero() {
                    self.restarts += 1;
                    self.state = State::Running(now);
                } else {
                    self.state = State::Waiting("CrashLoopBackOff");
                    return Some(end.at + wait);
                }
            }
            (State::Ended(_), _) => {}
        }
        None
    }

    /// Sets whether the container is ready. Returns the time of its first readiness probe, if that
    /// is in the future.
    fn probe(&mut self, of: &Container, rules: &Rules<'_>) -> Option<Timestamp> {
        let State::Running(since) = self.state else {
            self.ready = false;
            return None;
        };
        let ahead = of.first_probe(since).filter(|first| rules.now < *first);
        self.ready = ahead.is_none() && rules.is_ready(of);
        ahead
    }

    fn stop(&mut self, code: i32, now: Timestamp) {
        if let State::Running(since) = self.state {
            self.state = State::Ended(Ended { code, since, at: now });
            self.ready = false;
        }
    }

    /// Returns the status of a container, as a pod's status reports it.
    fn json(&self, of: &Container) -> Value {
        let ended = |end: Ended| {
            let reason = if end.code == 0 { "Completed" } else { "Error" };
            json!({ "terminated": {
                "exitCode": end.code, "reason": reason, "startedAt": end.since, "finishedAt": end.at,
            } })
        };
        let state = match self.state {
            State::Waiting(reason) => json!({ "waiting": { "reason": reason } }),
            State::Running(since) => json!({ "running": { "startedAt": since } }),
            State::Ended(end) => ended(end),
        };
        json!({
            "name": of.name, "image": of.image, "imageID": "", "ready": self.ready,
            "started": self.is_running(), "restartCount": self.restarts,
            "state": state, "lastState": self.last.map_or(json!({}), ended),
        })
    }
}

/// Returns the delay before the next start of a container that has restarted this often.
fn backoff(restarts: u32) -> Duration {
    match restarts {
        0 => Duration::ZERO,
        more => (FIRST_BACKOFF * 2_u32.saturating_pow(more - 1).min(1000)).min(LONGEST_BACKOFF),
    }
}

impl Rules<'_> {
    /// Returns the annotation for a container: its own, that of the pod's index, or that of all.
    fn annotation(&self, name: &str, container: &str) -> Option<&str> {
        let own = || self.annotations.get(&format!("{name}.{container}"));
        let of_index = || {
            let index = self.annotations.get(INDEX)?;
            self.annotations.get(&format!("{name}.index-{index}"))
        };
        own().or_else(of_index).or_else(|| self.annotations.get(name))
    }

    /// Returns whether a probe of a container passes: unless its annotation is `false`.
    fn holds(&self, probe: &str, container: &Container) -> bool {
        self.annotation(probe, &container.name) != Some("false")
    }

    /// Returns what `container` does after `restarts`. A container without a command that is
    /// understood runs on, except for an init container and a shell without input, which end at
    /// once.
    fn script(&self, container: &Container, restarts: u32, is_init: bool) -> Script {
        if !container.has_image() {
            return Script::NotPulled;
        }
        if !self.holds(LIVE, container) {
            return Script::Ends { after: Duration::ZERO, code: KILLED };
        }
        let words: Vec<String> = container.command.iter().chain(&container.args).cloned().collect();
        let named = self.annotation(RUN, &container.name).filter(|_| !container.is_sidecar());
        let script = match (named, self.annotations.get(BEHAVIOR)) {
            (Some(text), _) => {
                let runs: Vec<&str> = text.split('|').collect();
                let at = usize::try_from(restarts).unwrap_or(usize::MAX).min(runs.len() - 1);
                Script::parse(runs[at])
            }
            (None, Some("crash")) if !is_init => Script::parse("exit 1"),
            (None, Some("exit")) if !is_init => Script::parse("exit 0"),
            (None, _) => Script::of_command(&words),
        };
        let ends = is_init && !container.is_sidecar() || words.is_empty() && container.is_shell();
        let done = Script::Ends { after: Duration::ZERO, code: 0 };
        script.unwrap_or(if ends { done } else { Script::Forever })
    }

    fn is_ready(&self, container: &Container) -> bool {
        self.annotations.get(BEHAVIOR).is_none_or(|it| it != "never-ready" && it != "crash")
            && self.holds(READY, container)
            && container.passes_probe()
            && self.holds(STARTED, container)
    }
}

impl Containers {
    pub fn read(rules: &Rules<'_>, init: &[Reported], main: &[Reported]) -> Containers {
        let read = |specs: &[Container], reported: &[Reported]| -> Vec<Run> {
            specs.iter().map(|of| Run::read(&of.name, reported, rules.now)).collect()
        };
        Containers { init: read(rules.init_containers, init), main: read(rules.containers, main) }
    }

    /// Advances each container by one step. Returns the pod's phase, and the time of the next step,
    /// if there is one without further events.
    pub fn advance(&mut self, rules: &Rules<'_>) -> (Phase, Option<Timestamp>) {
        let now = rules.now;
        let mut wakes = Vec::new();
        let initialized = self.advance_init(rules, &mut wakes);
        if initialized == Some(true) {
            let restarts = |code| match rules.restart_policy {
                "Never" => false,
                "OnFailure" => code != 0,
                // `Always`.
                _ => true,
            };
            for (run, of) in self.main.iter_mut().zip(rules.containers) {
                let script = rules.script(of, run.restarts, false);
                wakes.extend(run.advance(script, restarts, now));
                wakes.extend(run.probe(of, rules));
            }
        }
        let is_over = |run: &Run| match run.state {
            State::Ended(end) => {
                let again = match rules.restart_policy {
                    "Never" => false,
                    "OnFailure" => end.code != 0,
                    _ => true,
                };
                !again
            }
            _ => false,
        };
        let phase = match initialized {
            None => Phase::Failed,
            Some(false) => Phase::Pending,
            Some(true) if self.main.iter().all(is_over) => {
                let clean = |run: &Run| matches!(run.state, State::Ended(Ended { code: 0, .. }));
                if self.main.iter().all(clean) { Phase::Succeeded } else { Phase::Failed }
            }
            Some(true) if self.main.iter().any(|run| run.state == State::Waiting(NOT_PULLED)) => {
                Phase::Pending
            }
            Some(true) => Phase::Running,
        };
        if phase.is_terminal() {
            // Sidecars end with the containers.
            self.init.iter_mut().for_each(|run| run.stop(0, now));
        }
        (phase, wakes.into_iter().min())
    }

    /// Advances the init containers by one step, in their order. Returns whether they are done;
    /// `None`: one has failed for good.
    fn advance_init(&mut self, rules: &Rules<'_>, wakes: &mut Vec<Timestamp>) -> Option<bool> {
        let mut done = true;
        for (run, of) in self.init.iter_mut().zip(rules.init_containers) {
            if !done {
                break;
            }
            let script = rules.script(of, run.restarts, true);
            let again = |code| of.is_sidecar() || code != 0 && rules.restart_policy != "Never";
            let wake = run.advance(script, again, rules.now);
            wakes.extend(wake);
            match run.state {
                State::Running(_) if of.is_sidecar() => wakes.extend(run.probe(of, rules)),
                State::Ended(end) => run.ready = end.code == 0,
                _ => run.ready = false,
            }
            done = match run.state {
                State::Running(_) => of.is_sidecar(),
                State::Ended(end) if end.code != 0 && !again(end.code) => return None,
                State::Ended(end) => end.code == 0,
                State::Waiting(_) => false,
            };
        }
        Some(done)
    }

    /// Ends the running containers. Returns the pod's phase afterwards.
    pub fn stop(&mut self, code: i32, now: Timestamp) -> Phase {
        self.init.iter_mut().chain(&mut self.main).for_each(|run| run.stop(code, now));
        let clean = |run: &Run| matches!(run.state, State::Ended(Ended { code: 0, .. }));
        if self.main.iter().all(clean) { Phase::Succeeded } else { Phase::Failed }
    }

    /// Returns whether every container, and every sidecar, is ready.
    pub fn are_ready(&self, rules: &Rules<'_>) -> bool {
        let sidecars =
            self.init.iter().zip(rules.init_containers).filter(|(_, of)| of.is_sidecar());
        self.main.iter().chain(sidecars.map(|(run, _)| run)).all(|run| run.ready)
    }

    /// Returns the containers that started since `before`.
    pub fn started_since<'a>(
        &self,
        before: &Containers,
        rules: &Rules<'a>,
    ) -> impl Iterator<Item = &'a Container> {
        let runs = self.init.iter().zip(&before.init).zip(rules.init_containers);
        let runs = runs.chain(self.main.iter().zip(&before.main).zip(rules.containers));
        let started = runs.filter(|((now, before), _)| now.is_running() && !before.is_running());
        started.map(|(_, of)| of).collect::<Vec<_>>().into_iter()
    }

    /// Returns `initContainerStatuses` and `containerStatuses` of a pod's status.
    pub fn statuses(&self, rules: &Rules<'_>) -> (Vec<Value>, Vec<Value>) {
        let json = |runs: &[Run], specs: &[Container]| -> Vec<Value> {
            runs.iter().zip(specs).map(|(run, of)| run.json(of)).collect()
        };
        (json(&self.init, rules.init_containers), json(&self.main, rules.containers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pod whose status is what was last reported.
    struct TestPod {
        spec: Value,
        annotations: Value,
        init: Vec<Reported>,
        main: Vec<Reported>,
        now: i64,
    }

    impl TestPod {
        fn new(spec: Value, annotations: Value) -> TestPod {
            TestPod { spec, annotations, init: Vec::new(), main: Vec::new(), now: 0 }
        }

        /// One step at `now`: the phase, the state of each container with its restarts, and the
        /// second of the next step.
        fn step(&mut self) -> (Phase, Vec<String>, Option<i64>) {
            let containers = |field: &str| -> Vec<Container> {
                serde_json::from_value(self.spec.get(field).cloned().unwrap_or(json!([]))).unwrap()
            };
            let (containers, init_containers) =
                (containers("containers"), containers("initContainers"));
            let annotations: Labels = serde_json::from_value(self.annotations.clone()).unwrap();
            let rules = Rules {
                containers: &containers,
                init_containers: &init_containers,
                restart_policy: self.spec["restartPolicy"].as_str().unwrap_or("Always"),
                annotations: &annotations,
                now: Timestamp::from_secs(self.now),
            };
            let mut runs = Containers::read(&rules, &self.init, &self.main);
            let (phase, wake) = runs.advance(&rules);
            let (init, main) = runs.statuses(&rules);
            let states = init.iter().chain(&main).map(|status| {
                let state = match &status["state"] {
                    state if !state["running"].is_null() => "runs".to_owned(),
                    state if !state["waiting"].is_null() => "waits".to_owned(),
                    state => format!("ended {}", state["terminated"]["exitCode"]),
                };
                let ready = if status["ready"] == true { " ready" } else { "" };
                format!("{state}{ready} {}", status["restartCount"])
            });
            let states = states.collect();
            self.init = serde_json::from_value(init.into()).unwrap();
            self.main = serde_json::from_value(main.into()).unwrap();
            (phase, states, wake.map(Timestamp::as_secs))
        }

        fn expect(&mut self, now: i64, phase: Phase, states: &[&str], wake: Option<i64>) {
            self.now = now;
            let states = states.iter().map(|state| (*state).to_owned()).collect();
            assert_eq!(self.step(), (phase, states, wake), "at {now}");
        }
    }

    #[test]
    fn containers_end_as_their_commands_say() {
        let command = |text: &str| json!({ "name": "c", "command": ["sh", "-c", text] });
        let spec = json!({ "restartPolicy": "Never", "containers": [
            command("sleep 5; exit 3"), { "name": "d", "command": ["true"] },
        ] });
        let mut pod = TestPod::new(spec, json!({}));
        pod.expect(0, Phase::Running, &["runs ready 0", "runs ready 0"], None);
        pod.expect(0, Phase::Running, &["runs ready 0", "ended 0 0"], Some(5));
        pod.expect(5, Phase::Failed, &["ended 3 0", "ended 0 0"], None);

        let spec = json!({ "containers": [{ "name": "web", "command": ["nginx"] }] });
        let mut pod = TestPod::new(spec, json!({}));
        pod.expect(0, Phase::Running, &["runs ready 0"], None);
        pod.expect(9, Phase::Running, &["runs ready 0"], None);
    }

    #[test]
    fn restarts_follow_the_policy_and_back_off() {
        let spec =
            |policy: &str| json!({ "restartPolicy": policy, "containers": [{ "name": "c" }] });
        let run = json!({ "sandbox/run": "exit 1 | exit 1 | exit 0" });
        let mut pod = TestPod::new(spec("OnFailure"), run);
        pod.expect(0, Phase::Running, &["runs ready 0"], None);
        pod.expect(0, Phase::Running, &["ended 1 0"], None);
        pod.expect(0, Phase::Running, &["runs ready 1"], None);
        pod.expect(0, Phase::Running, &["ended 1 1"], None);
        pod.expect(0, Phase::Running, &["waits 1"], Some(1));
        pod.expect(0, Phase::Running, &["waits 1"], Some(1));
        pod.expect(1, Phase::Running, &["runs ready 2"], None);
        pod.expect(1, Phase::Succeeded, &["ended 0 2"], None);

        let mut pod = TestPod::new(spec("Always"), json!({ "sandbox/behavior": "exit" }));
        pod.expect(0, Phase::Running, &["runs ready 0"], None);
        pod.expect(0, Phase::Running, &["ended 0 0"], None);
        pod.expect(0, Phase::Running, &["runs ready 1"], None);
    }

    #[test]
    fn init_containers_come_first_and_sidecars_last() {
        let spec = json!({
            "restartPolicy": "Never",
            "initContainers": [
                { "name": "proxy", "restartPolicy": "Always" }, { "name": "first" },
                { "name": "second", "command": ["sleep", "2"] },
            ],
            "containers": [{ "name": "c", "command": ["sleep", "1"] }],
        });
        let mut pod = TestPod::new(spec.clone(), json!({}));
        let waits = "waits 0";
        let proxy = "runs ready 0";
        pod.expect(0, Phase::Pending, &[proxy, "runs 0", waits, waits], None);
        pod.expect(0, Phase::Pending, &[proxy, "ended 0 ready 0", "runs 0", waits], None);
        pod.expect(1, Phase::Pending, &[proxy, "ended 0 ready 0", "runs 0", waits], Some(2));
        let done = "ended 0 ready 0";
        pod.expect(2, Phase::Running, &[proxy, done, done, "runs ready 0"], None);
        pod.expect(3, Phase::Succeeded, &["ended 0 0", done, done, "ended 0 0"], None);

        let mut pod = TestPod::new(spec, json!({ "sandbox/run.first": "exit 4" }));
        pod.expect(0, Phase::Pending, &[proxy, "runs 0", waits, waits], None);
        pod.expect(0, Phase::Failed, &["ended 0 0", "ended 4 0", waits, waits], None);
    }

    #[test]
    fn missing_images_and_failing_commands_hold_a_pod_up() {
        let spec = json!({ "containers": [
            { "name": "a", "image": "web:404" }, { "name": "b", "image": "web:1" },
        ] });
        let mut pod = TestPod::new(spec, json!({}));
        pod.expect(0, Phase::Pending, &["waits 0", "runs ready 0"], None);
        pod.expect(9, Phase::Pending, &["waits 0", "runs ready 0"], None);

        let probe = |command: &str| {
            json!({ "containers": [{ "name": "a", "readinessProbe": {
                "exec": { "command": [command] } } }] })
        };
        for (command, state) in
            [("/bin/false", "runs 0"), ("/bin/true", "runs ready 0"), ("ls", "runs ready 0")]
        {
            let mut pod = TestPod::new(probe(command), json!({}));
            pod.expect(0, Phase::Running, &[state], None);
        }
    }

    #[test]
    fn readiness_probes_wait_for_their_delay() {
        let probe = json!({ "initialDelaySeconds": 5, "httpGet": { "port": 80 } });
        let spec = json!({ "containers": [
            { "name": "a", "readinessProbe": probe }, { "name": "b", "command": ["sleep", "9"] },
        ] });
        let mut pod = TestPod::new(spec, json!({}));
        pod.expect(2, Phase::Running, &["runs 0", "runs ready 0"], Some(7));
        pod.expect(6, Phase::Running, &["runs 0", "runs ready 0"], Some(7));
        pod.expect(7, Phase::Running, &["runs ready 0", "runs ready 0"], Some(11));
        pod.expect(11, Phase::Running, &["runs ready 0", "ended 0 0"], None);
        pod.expect(12, Phase::Running, &["runs ready 0", "runs ready 1"], None);

        let spec = json!({ "containers": [{ "name": "c" }], "initContainers": [
            { "name": "proxy", "restartPolicy": "Always", "readinessProbe": probe },
        ] });
        let mut pod = TestPod::new(spec, json!({}));
        pod.expect(0, Phase::Running, &["runs 0", "runs ready 0"], Some(5));
        pod.expect(5, Phase::Running, &["runs ready 0", "runs ready 0"], None);
    }

    #[test]
    fn a_shell_without_a_command_ends() {
        for (container, state) in [
            (json!({ "image": "registry.example/e2e/busybox:1.37" }), "ended 0 0"),
            (json!({ "image": "busybox", "command": ["serve"] }), "runs ready 0"),
            (json!({ "image": "busybox/web" }), "runs ready 0"),
        ] {
            let spec = json!({ "restartPolicy": "Never", "containers": [container] });
            let mut pod = TestPod::new(spec, json!({}));
            pod.step();
            assert_eq!(pod.step().1, [state], "{container}");
        }
    }

    #[test]
    fn annotations_fail_probes_and_name_single_containers_and_indexes() {
        let spec =
            json!({ "restartPolicy": "Never", "containers": [{ "name": "a" }, { "name": "b" }] });
        for (annotations, states) in [
            (json!({ "sandbox/ready.b": "false" }), ["runs ready 0", "runs 0"]),
            (json!({ "sandbox/started": "false" }), ["runs 0", "runs 0"]),
            (json!({ "sandbox/live.a": "false" }), ["ended 137 0", "runs ready 0"]),
            (json!({ "sandbox/run.index-2": "exit 7", INDEX: "2" }), ["ended 7 0", "ended 7 0"]),
            (
                json!({ "sandbox/run.index-2": "exit 7", INDEX: "3" }),
                ["runs ready 0", "runs ready 0"],
            ),
            (
                json!({ "sandbox/run": "exit 7", "sandbox/run.a": "sleep inf" }),
                ["runs ready 0", "ended 7 0"],
            ),
        ] {
            let mut pod = TestPod::new(spec.clone(), annotations.clone());
            pod.step();
            assert_eq!(pod.step().1, states, "{annotations}");
        }
    }
}
