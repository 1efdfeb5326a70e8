//! The load of a large idle cluster, of which a part of the nodes then dies at once.
//!
//! No kubelet runs: the nodes' leases and statuses are replaced in the store at a kubelet's
//! periods, and pods are stored as bound and running. So the server has time for the manager, and
//! the manager's figures are those of a cluster on which no pod starts.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::manager_process::{FLAGS, IdleCriteria, ManagerProcess};
use super::measure::{Mark, PROGRAM, Requests};
use super::report::{announce, write_rows};
use super::size::Nodes;
use super::{NAMESPACE, Result, Row, namespace, objects};
use crate::api::Api;
use crate::cluster::ManagerProgram;
use crate::object::{is_deleting, list, text};
use crate::server::{Sandbox, SandboxOptions};
use kube_controller_manager::clock::{SharedClock, SystemClock};
use kube_controller_manager::task::{self, StopToken};

const NODES: &str = "nodes";
const PODS: &str = "pods";
const LEASES: &str = "leases.coordination.k8s.io";
const LEASE_NAMESPACE: &str = "kube-node-lease";
/// The periods of a kubelet: `nodeLeaseDurationSeconds / 4`, `nodeStatusReportFrequency`.
const RENEWAL: Duration = Duration::from_secs(10);
const STATUS: Duration = Duration::from_secs(300);
/// One in this number of nodes dies.
const DYING: usize = 3;
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// At the default rate the last of 1,667 nodes would be tainted after an hour and a half.
const RATE: &str = "--node-eviction-rate=100";
/// How many seconds a pod tolerates the loss of its node; pods get these values in turn. Only the
/// first value makes a pod leave within the time of the load.
const TOLERATED: [Option<i64>; 3] = [Some(10), None, Some(3600)];
const POLL_PERIOD: Duration = Duration::from_secs(1);
/// The state in which the manager has listed everything.
const STARTED: IdleCriteria = IdleCriteria {
    poll: POLL_PERIOD,
    quiet_polls: 8,
    at_most: Duration::from_secs(180),
    memory: 0.02,
    cpu: 0.5,
};

/// The load.
pub struct Outage {
    pub sandbox: SandboxOptions,
    pub size: Nodes,
    /// How long the manager is measured at rest: at the start, and after the evictions.
    pub idle: Duration,
    pub manager: ManagerProgram,
    pub manager_flags: Vec<String>,
    /// How long a phase may take.
    pub patience: Duration,
}

/// What it costs, and what the manager did.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OutageReport {
    pub manager: String,
    pub nodes: usize,
    pub pods_per_node: usize,
    pub rows: Vec<Row>,
    pub found: Found,
}

/// The state of the nodes and pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Found {
    pub dead: usize,
    /// Dead nodes with the taint that evicts, and living nodes with it.
    pub tainted: usize,
    pub tainted_wrongly: usize,
    /// Pods that have to leave dead nodes.
    pub leaving: usize,
    /// Leaving pods that are being deleted, and other pods that are being deleted.
    pub evicted: usize,
    pub evicted_wrongly: usize,
    /// Requests that delete a pod.
    pub deletions: u64,
    /// Pods of dead nodes that are marked as not ready, and other pods that are.
    pub not_ready: usize,
    pub not_ready_wrongly: usize,
}

impl Found {
    fn is_tainted(&self) -> bool {
        self.tainted >= self.dead
    }

    fn is_evicted(&self) -> bool {
        self.evicted >= self.leaving
    }
}

impl fmt::Display for OutageReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OutageReport { manager, nodes, pods_per_node, rows, found } = self;
        writeln!(f, "manager {manager}\n{nodes} nodes with {pods_per_node} pods each\n")?;
        write_rows(f, rows)?;
        for row in rows {
            let per_minute = row.cpu_seconds / row.seconds * 60.0;
            writeln!(f, "{}: {per_minute:.2} s of CPU a minute", row.phase)?;
        }
        writeln!(
            f,
            "\nnodes: {} dead, {} of them tainted, {} others",
            found.dead, found.tainted, found.tainted_wrongly
        )?;
        writeln!(
            f,
            "pods: {} have to leave, {} of them deleted, {} others, by {} requests",
            found.leaving, found.evicted, found.evicted_wrongly, found.deletions
        )?;
        let all = found.dead * pods_per_node;
        writeln!(
            f,
            "pods of dead nodes: {all}, {} not ready, {} others",
            found.not_ready, found.not_ready_wrongly
        )
    }
}

impl Outage {
    /// Runs every phase, with a line on stderr as each begins.
    ///
    /// # Errors
    /// What could not be started, or a phase that did not end in time.
    pub async fn run(self, stop: StopToken) -> Result<OutageReport> {
        let sandbox = Sandbox::start(self.sandbox).await?;
        let manager = self.manager.to_string();
        let Nodes { nodes, pods_per_node } = self.size;
        let report = OutageReport { manager, nodes, pods_per_node, ..OutageReport::default() };
        let mut flags = FLAGS.map(str::to_owned).to_vec();
        flags.push(RATE.to_owned());
        flags.extend(self.manager_flags);
        let kubeconfig = sandbox.kubeconfig_for("system:kube-controller-manager", &[])?;
        let mut run = Run {
            sandbox: &sandbox,
            api: sandbox.api().clone(),
            clock: SystemClock::shared(),
            size: self.size,
            patience: self.patience,
            stop: stop.clone(),
            report,
        };
        run.phase("nodes and pods");
        run.fill()?;
        let beats = Arc::new(Heartbeats {
            api: run.api.clone(),
            clock: run.clock.clone(),
            nodes,
            has_died: AtomicBool::new(false),
        });
        let (beating, until) = (beats.clone(), stop.child());
        let ends = until.clone();
        let heartbeats =
            task::spawn(async move { ends.unless_stopped(beating.send_heartbeats()).await });
        let mut manager = ManagerProcess::start(&self.manager, &kubeconfig, "manager", &flags)?;
        let ended = run.phases(&mut manager, &beats, self.idle).await;
        let report = run.report;
        let stopped = manager.end(&run.clock).await;
        until.stop();
        heartbeats.await;
        sandbox.stop().await;
        ended?;
        stopped?;
        Ok(report)
    }
}

struct Run<'a> {
    sandbox: &'a Sandbox,
    api: Arc<Api>,
    clock: SharedClock,
    size: Nodes,
    patience: Duration,
    stop: StopToken,
    report: OutageReport,
}

impl Run<'_> {
    fn requests(&self) -> Requests {
        Some(self.sandbox.traffic().of(PROGRAM))
    }

    fn phase(&self, name: &str) {
        announce(&self.clock, name);
    }

    /// Puts nodes, their leases and pods on them into the store, past the API.
    fn fill(&self) -> Result<()> {
        let made = self.api.create_value("", "namespaces", namespace(NAMESPACE));
        made.map_err(|error| error.message)?;
        let now = self.clock.now();
        let failed = |what: &str, name: &str| format!("{what} {name} is there already");
        for n in 0..self.size.nodes {
            let name = objects::node_name(n);
            let node = objects::node(n, &now.to_string());
            let create = |table: &str, key: &str, value| {
                let made = self.api.store.create(table, key, value);
                made.map(drop).map_err(|_| failed(table, key))
            };
            create(NODES, &name, node)?;
            let key = format!("{LEASE_NAMESPACE}/{name}");
            create(LEASES, &key, objects::lease(n, &now.to_micro_string()))?;
            for p in 0..self.size.pods_per_node {
                let at = n * self.size.pods_per_node + p;
                let pod = objects::bound_pod(at, n, NAMESPACE, TOLERATED[p % TOLERATED.len()]);
                let key = format!("{NAMESPACE}/{}", text(&pod, "/metadata/name"));
                create(PODS, &key, pod)?;
            }
        }
        Ok(())
    }

    /// Measures the manager at its start, at rest, while a third of the nodes dies, and at rest
    /// again.
    async fn phases(
        &mut self,
        manager: &mut ManagerProcess,
        beats: &Heartbeats,
        idle: Duration,
    ) -> Result<()> {
        self.phase("start");
        // The first mark is the process's start.
        let mark = Mark::new(self.clock.monotonic(), None, None)?;
        manager.wait_until_settled(&STARTED, &self.clock, &self.stop).await?;
        self.add_row("started", manager, mark)?;

        self.phase("rest");
        let mark = self.start_mark(manager)?;
        self.rest(idle).await?;
        self.add_row("at rest", manager, mark)?;

        self.phase("a third of the nodes dies");
        let mark = self.start_mark(manager)?;
        beats.has_died.store(true, Ordering::SeqCst);
        self.wait_until(manager, "dead nodes are tainted", Found::is_tainted).await?;
        self.add_row("dead nodes tainted", manager, mark)?;
        let mark = self.start_mark(manager)?;
        self.wait_until(manager, "pods are evicted", Found::is_evicted).await?;
        self.add_row("pods evicted", manager, mark)?;

        self.phase("rest");
        let mark = self.start_mark(manager)?;
        self.rest(idle).await?;
        self.add_row("at rest again", manager, mark)?;
        self.report.found = self.observe();
        Ok(())
    }

    async fn rest(&self, idle: Duration) -> Result<()> {
        let rested = self.stop.unless_stopped(self.clock.sleep(idle)).await;
        rested.ok_or_else(|| "stopped".into())
    }

    /// Reads the counters at the start of a phase.
    fn start_mark(&self, manager: &ManagerProcess) -> Result<Mark> {
        let (at, process) = (self.clock.monotonic(), &manager.process);
        Ok(Mark::new(at, Some(process), self.requests())?)
    }

    /// Adds the row of a phase that began at `mark` to the report.
    fn add_row(&mut self, phase: &str, manager: &ManagerProcess, mark: Mark) -> Result<()> {
        let now = self.clock.monotonic();
        self.report.rows.push(mark.row(phase, now, &manager.process, self.requests())?);
        Ok(())
    }

    /// Waits until `done` returns true for what is observed. Fails when the manager ends, or after
    /// the patience.
    async fn wait_until(
        &self,
        manager: &mut ManagerProcess,
        what: &str,
        done: impl Fn(&Found) -> bool,
    ) -> Result<()> {
        let give_up = self.clock.monotonic() + self.patience;
        loop {
            manager.check_alive(&self.stop)?;
            let found = self.observe();
            if done(&found) {
                return Ok(());
            }
            if self.clock.monotonic() > give_up {
                return Err(format!("{what}: not after {:?}: {found:?}", self.patience).into());
            }
            self.clock.sleep(POLL_PERIOD).await;
        }
    }

    /// Counts the nodes that are tainted, and the pods that are evicted or not ready: those that
    /// should be, and wrongly the others.
    fn observe(&self) -> Found {
        let mut found =
            Found { deletions: self.sandbox.faults().count("delete", PODS), ..Found::default() };
        let store = &self.api.store;
        for n in 0..self.size.nodes {
            let node = store.get(NODES, &objects::node_name(n));
            let is_tainted = node.is_some_and(|node| evicts(&node.value));
            found.dead += usize::from(dies(n));
            match dies(n) {
                true => found.tainted += usize::from(is_tainted),
                false => found.tainted_wrongly += usize::from(is_tainted),
            }
            for p in 0..self.size.pods_per_node {
                let at = n * self.size.pods_per_node + p;
                let pod = store.get(PODS, &format!("{NAMESPACE}/{}", objects::pod_name(at)));
                let leaves = dies(n) && TOLERATED[p % TOLERATED.len()] == TOLERATED[0];
                found.leaving += usize::from(leaves);
                let is_gone = pod.as_ref().is_none_or(|pod| is_deleting(&pod.value));
                match leaves {
                    true => found.evicted += usize::from(is_gone),
                    false => found.evicted_wrongly += usize::from(is_gone),
                }
                let is_unready = pod.is_some_and(|pod| !is_ready(&pod.value));
                match dies(n) {
                    true => found.not_ready += usize::from(is_unready),
                    false => found.not_ready_wrongly += usize::from(is_unready),
                }
            }
        }
        found
    }
}

/// Returns whether the `n`th node dies: the first of each run of three nodes in a zone
/// (`NODES_A_ZONE`), and so a third of each zone.
fn dies(n: usize) -> bool {
    n.is_multiple_of(DYING)
}

/// Returns whether a node has the taint that evicts its pods.
fn evicts(node: &Value) -> bool {
    list(node, "/spec/taints")
        .iter()
        .any(|taint| taint["key"] == UNREACHABLE && taint["effect"] == "NoExecute")
}

fn is_ready(pod: &Value) -> bool {
    list(pod, "/status/conditions")
        .iter()
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// Renews the leases and writes the statuses of all nodes, evenly spread over their periods.
struct Heartbeats {
    api: Arc<Api>,
    clock: SharedClock,
    nodes: usize,
    has_died: AtomicBool,
}

impl Heartbeats {
    /// Renews the leases of all nodes in turn, evenly spread over [`RENEWAL`], and writes the
    /// status of each one once in [`STATUS`]. Nodes that have died are left out.
    async fn send_heartbeats(self: Arc<Self>) {
        let start = self.clock.monotonic();
        let nodes = self.nodes.max(1) as u64;
        let rounds = STATUS.as_secs() / RENEWAL.as_secs();
        for turn in 0_u64.. {
            let due = start + Duration::from_nanos(RENEWAL.as_nanos() as u64 / nodes * turn);
            let now = self.clock.monotonic();
            if due > now {
                self.clock.sleep(due - now).await;
            }
            let (round, node) = (turn / nodes, turn % nodes);
            if self.has_died.load(Ordering::SeqCst) && dies(node as usize) {
                continue;
            }
            let name = objects::node_name(node as usize);
            self.renew(&name);
            // The status writes of the nodes are spread over the rounds.
            if (round + node).is_multiple_of(rounds) {
                self.report_status(&name);
            }
        }
    }

    fn renew(&self, node: &str) {
        let now = self.clock.now().to_micro_string();
        self.update_stored(LEASES, &format!("{LEASE_NAMESPACE}/{node}"), |lease| {
            lease["spec"]["renewTime"] = now.into();
        });
    }

    /// Writes the time of a new heartbeat into the conditions of a node.
    fn report_status(&self, node: &str) {
        let now = self.clock.now().to_string();
        self.update_stored(NODES, node, |node| {
            let conditions = node["status"]["conditions"].as_array_mut();
            for condition in conditions.into_iter().flatten() {
                condition["lastHeartbeatTime"] = now.as_str().into();
            }
        });
    }

    /// Edits a stored object. A write that conflicts with one of the manager's is repeated in the
    /// next period.
    fn update_stored(&self, table: &str, key: &str, edit: impl FnOnce(&mut Value)) {
        let Some(stored) = self.api.store.get(table, key) else { return };
        let mut value = stored.value.clone();
        edit(&mut value);
        let _ = self.api.store.replace(table, key, stored.version, value);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_dead_third_is_found() {
        let sound = json!({ "spec": {} });
        let other =
            json!({ "spec": { "taints": [{ "key": UNREACHABLE, "effect": "NoSchedule" }] } });
        let dead = json!({ "spec": { "taints": [
            { "key": UNREACHABLE, "effect": "NoSchedule" },
            { "key": UNREACHABLE, "effect": "NoExecute" },
        ] } });
        assert_eq!([sound, other, dead].map(|node| evicts(&node)), [false, false, true]);
        assert_eq!((0..9).filter(|n| dies(*n)).count(), 3);
    }
}
