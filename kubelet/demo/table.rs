//! The pods as `kubectl get pods` shows them: on a terminal a table that is redrawn, elsewhere a line
//! for each change.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use kubelet::pod::{Pod, PodExt, is_restartable_init};

/// What a pod of the demo is there for: a status, `Ready`, `Restarted`, or several, separated by
/// commas.
const SHOWS: &str = "kubelet-demo/shows";
/// A line about the pod.
const ABOUT: &str = "kubelet-demo/about";

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub name: String,
    ready: String,
    status: String,
    restarts: i32,
    ip: String,
    is_ready: bool,
    shows: Vec<String>,
    about: String,
}

impl Row {
    pub fn of(pod: &Pod) -> Row {
        let none = core::PodStatus::default();
        let status = pod.status.as_ref().unwrap_or(&none);
        let containers = status.container_statuses.as_deref().unwrap_or_default();
        let init = status.init_container_statuses.as_deref().unwrap_or_default();
        let sidecars = pod.init_containers().iter().zip(init);
        let sidecars = sidecars.filter(|(container, _)| is_restartable_init(container));
        let shown: Vec<_> = containers.iter().chain(sidecars.map(|(_, status)| status)).collect();
        let ready = shown.iter().filter(|status| status.ready).count();
        let conditions = status.conditions.iter().flatten();
        let shows = pod.annotation(SHOWS).unwrap_or_default();
        Row {
            name: pod.name().to_owned(),
            ready: format!("{ready}/{}", shown.len()),
            status: status_of(pod, status),
            restarts: containers.iter().map(|status| status.restart_count).sum(),
            ip: status.pod_ip.clone().unwrap_or_default(),
            is_ready: conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True"),
            shows: shows.split(',').map(|word| word.trim().to_owned()).collect(),
            about: pod.annotation(ABOUT).unwrap_or_default().to_owned(),
        }
    }

    /// What the pod shows now.
    fn shown(&self) -> impl Iterator<Item = &str> {
        let ready = self.is_ready.then_some("Ready");
        let restarted = (self.restarts > 0).then_some("Restarted");
        [Some(self.status.as_str()), ready, restarted].into_iter().flatten()
    }

    fn line(&self) -> String {
        let Row { name, ready, status, restarts, ip, about, .. } = self;
        format!("{name:<20} {ready:<6} {status:<26} {restarts:<9} {ip:<12} {about}")
    }
}

/// Computes the column STATUS of a pod. Upstream: `printPod`.
fn status_of(pod: &Pod, status: &core::PodStatus) -> String {
    let phase = status.phase.clone().unwrap_or_default();
    let mut text = status.reason.clone().unwrap_or(phase);
    let init = status.init_container_statuses.as_deref().unwrap_or_default();
    let total = init.len();
    for (at, (container, status)) in pod.init_containers().iter().zip(init).enumerate() {
        let is_sidecar = is_restartable_init(container);
        let (waiting, terminated) = states(status);
        match (waiting, terminated) {
            (_, Some(ended)) if ended.exit_code == 0 => continue,
            _ if is_sidecar && status.started == Some(true) => continue,
            (_, Some(ended)) => return format!("Init:{}", reason_of(ended)),
            (Some(waiting), _) if waiting != "PodInitializing" => return format!("Init:{waiting}"),
            _ => return format!("Init:{at}/{total}"),
        }
    }
    let mut is_running = false;
    for status in status.container_statuses.iter().flatten().rev() {
        let (waiting, terminated) = states(status);
        match (waiting, terminated) {
            (Some(reason), _) => text = reason.to_owned(),
            (_, Some(ended)) => text = reason_of(ended),
            _ => is_running |= status.ready,
        }
    }
    if text == "Completed" && is_running {
        text = "Running".to_owned();
    }
    match pod.metadata.deletion_timestamp {
        Some(_) => "Terminating".to_owned(),
        None => text,
    }
}

fn states(
    status: &core::ContainerStatus,
) -> (Option<&str>, Option<&core::ContainerStateTerminated>) {
    let state = status.state.as_ref();
    let waiting = state.and_then(|state| state.waiting.as_ref()?.reason.as_deref());
    (waiting, state.and_then(|state| state.terminated.as_ref()))
}

fn reason_of(ended: &core::ContainerStateTerminated) -> String {
    match ended.reason.as_deref() {
        Some(reason) if !reason.is_empty() => reason.to_owned(),
        _ => format!("ExitCode:{}", ended.exit_code),
    }
}

/// Where the pods are shown.
pub struct Screen {
    is_terminal: bool,
    drawn: usize,
    last: BTreeMap<String, String>,
    /// What each pod has shown.
    seen: BTreeSet<(String, String)>,
}

impl Screen {
    pub fn new(is_terminal: bool) -> Screen {
        Screen { is_terminal, drawn: 0, last: BTreeMap::new(), seen: BTreeSet::new() }
    }

    /// Whether a pod has shown what it is there for. One without the annotation is there to be
    /// ready.
    pub fn has_shown(&self, row: &Row) -> bool {
        let is_seen = |what: &String| {
            let what = if what.is_empty() { "Ready" } else { what.as_str() };
            self.seen.contains(&(row.name.clone(), what.to_owned()))
        };
        row.shows.iter().all(is_seen)
    }

    pub fn show(&mut self, rows: &[Row], after: Duration) {
        for row in rows {
            self.seen.extend(row.shown().map(|what| (row.name.clone(), what.to_owned())));
        }
        let text =
            if self.is_terminal { self.redrawn(rows, after) } else { self.changes(rows, after) };
        // A reader that closes early (`| head`) is not an error.
        let _ = std::io::stdout().write_all(text.as_bytes());
        let _ = std::io::stdout().flush();
    }

    fn redrawn(&mut self, rows: &[Row], after: Duration) -> String {
        let mut lines = vec![format!("{} {:>5.1} s", HEAD, after.as_secs_f64())];
        lines.extend(rows.iter().map(|row| {
            let mark = if self.has_shown(row) { '\u{2713}' } else { ' ' };
            format!("{mark} {}", row.line())
        }));
        let up = match self.drawn {
            0 => String::new(),
            drawn => format!("\x1b[{drawn}A"),
        };
        self.drawn = lines.len();
        // Each line is erased to its end; so are lines below the table.
        format!(
            "{up}{}\x1b[J",
            lines.iter().map(|line| format!("{line}\x1b[K\n")).collect::<String>()
        )
    }

    fn changes(&mut self, rows: &[Row], after: Duration) -> String {
        let mut text = String::new();
        for row in rows {
            let line = row.line();
            if self.last.get(&row.name) != Some(&line) {
                text.push_str(&format!("{:>6.1} s  {}\n", after.as_secs_f64(), line.trim_end()));
                self.last.insert(row.name.clone(), line);
            }
        }
        text
    }
}

const HEAD: &str =
    "  NAME                 READY  STATUS                     RESTARTS  IP           ";

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn container(name: &str, state: &Value, is_ready: bool) -> Value {
        json!({"name": name, "image": "", "imageID": "", "ready": is_ready, "started": is_ready,
               "restartCount": 1, "state": state})
    }

    fn row(phase: &str, init: &[Value], containers: &[Value]) -> Row {
        let specs = |statuses: &[Value], policy: Value| -> Vec<Value> {
            let spec = |status: &Value| json!({"name": status["name"], "restartPolicy": policy});
            statuses.iter().map(spec).collect()
        };
        let policy = if phase == "sidecar" { json!("Always") } else { Value::Null };
        let pod = json!({
            "metadata": {"name": "p", "annotations": {SHOWS: "CrashLoopBackOff, Restarted"}},
            "spec": {"initContainers": specs(init, policy), "containers": specs(containers, Value::Null)},
            "status": {"phase": phase, "initContainerStatuses": init, "containerStatuses": containers},
        });
        Row::of(&serde_json::from_value(pod).expect("a pod"))
    }

    #[test]
    fn status_is_the_one_of_kubectl() {
        let (running, done) =
            (json!({"running": {}}), json!({"terminated": {"exitCode": 0, "reason": "Completed"}}));
        let failed = json!({"terminated": {"exitCode": 3, "reason": "Error"}});
        let killed = json!({"terminated": {"exitCode": 137}});
        let waits = |reason: &str| json!({"waiting": {"reason": reason}});
        let main = |state: &Value, is_ready| [container("main", state, is_ready)];
        let init = |state: &Value, is_ready| [container("init", state, is_ready)];
        for (phase, init, containers, expected) in [
            ("Running", vec![], main(&running, true), "1/1 Running"),
            ("Running", vec![], main(&running, false), "0/1 Running"),
            ("Pending", vec![], main(&waits("ContainerCreating"), false), "0/1 ContainerCreating"),
            ("Running", vec![], main(&waits("CrashLoopBackOff"), false), "0/1 CrashLoopBackOff"),
            ("Succeeded", vec![], main(&done, false), "0/1 Completed"),
            ("Failed", vec![], main(&failed, false), "0/1 Error"),
            ("Failed", vec![], main(&killed, false), "0/1 ExitCode:137"),
            (
                "Pending",
                init(&running, false).to_vec(),
                main(&waits("PodInitializing"), false),
                "0/1 Init:0/1",
            ),
            (
                "Pending",
                init(&failed, false).to_vec(),
                main(&waits("PodInitializing"), false),
                "0/1 Init:Error",
            ),
            (
                "Pending",
                init(&waits("CrashLoopBackOff"), false).to_vec(),
                main(&waits("PodInitializing"), false),
                "0/1 Init:CrashLoopBackOff",
            ),
            ("Running", init(&done, true).to_vec(), main(&running, true), "1/1 Running"),
            ("sidecar", init(&running, true).to_vec(), main(&done, false), "1/2 Completed"),
        ] {
            let row = row(phase, &init, &containers);
            assert_eq!(format!("{} {}", row.ready, row.status), expected, "{phase} {init:?}");
        }
    }

    #[test]
    fn pod_has_shown_what_it_has_been_once() {
        let mut screen = Screen::new(false);
        let running = json!({"running": {}});
        let mut first = row(
            "Running",
            &[],
            &[container("a", &json!({"waiting": {"reason": "CrashLoopBackOff"}}), false)],
        );
        first.restarts = 0;
        screen.show(&[first.clone()], Duration::ZERO);
        assert!(!screen.has_shown(&first), "it has not been restarted");
        let second = row("Running", &[], &[container("a", &running, false)]);
        screen.show(std::slice::from_ref(&second), Duration::ZERO);
        assert!(screen.has_shown(&second));
    }

    #[test]
    fn lines_are_written_for_changes_alone() {
        let mut screen = Screen::new(false);
        let row = row("Running", &[], &[container("a", &json!({"running": {}}), true)]);
        let first = screen.changes(std::slice::from_ref(&row), Duration::from_millis(1500));
        assert_eq!(first, "   1.5 s  p                    1/1    Running                    1\n");
        assert_eq!(screen.changes(&[row], Duration::from_secs(2)), "");
    }

    #[test]
    fn table_is_drawn_over_the_last_one() {
        let mut screen = Screen::new(true);
        let row = row("Running", &[], &[container("a", &json!({"running": {}}), true)]);
        let rows = [row];
        assert!(!screen.redrawn(&rows, Duration::ZERO).starts_with('\x1b'));
        let second = screen.redrawn(&rows, Duration::ZERO);
        assert!(second.starts_with("\x1b[2A") && second.ends_with("\x1b[J"), "{second:?}");
    }
}
