//! A load for a controller manager, and what it costs: seconds, CPU, memory, requests and bytes.
//!
//! The manager runs in a process of its own, whose figures are read from `/proc`. The phases are the
//! same for every program, so two managers can be compared.

mod cgroup;
mod claims;
mod cleanup;
mod density;
mod deployments;
mod latency;
mod manager_process;
mod measure;
pub mod objects;
mod outage;
pub mod process;
mod queues;
mod report;
mod server;
mod size;
mod smallest;
mod spread;
mod storm;
mod workloads;

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

pub use self::cgroup::Bytes;
use self::cgroup::MemoryGroup;
pub use self::density::{Density, DensityReport};
pub use self::latency::{Latency, LatencyReport};
use self::manager_process::{FLAGS, IdleCriteria, ManagerProcess, OutOfMemory};
use self::measure::{Mark, PROGRAM};
pub use self::outage::{Outage, OutageReport};
use self::queues::{Histograms, Metrics};
pub use self::report::{Limited, Report, Row};
use self::server::Server;
pub use self::size::{Nodes, Size};
pub use self::smallest::{SmallestLimit, SmallestReport};
use self::spread::Seen;
use crate::cluster::ManagerProgram;
use crate::debug_proxy::DebugProxy;
use crate::nodes::NodeOptions;
use crate::server::SandboxOptions;
use kube_controller_manager::client::Client;
use kube_controller_manager::clock::{SharedClock, SystemClock};
use kube_controller_manager::objects::{
    PartialObjectMetadata, Resource, ResourceType, ServiceAccount,
};
use kube_controller_manager::task::StopToken;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const NAMESPACE: &str = "load";
const NAMESPACES: ResourceType = ResourceType::fixed("", "v1", "Namespace", "namespaces", false);
const CONFIG_MAPS: ResourceType = ResourceType::fixed("", "v1", "ConfigMap", "configmaps", true);
const CONFIG_MAP_BYTES: usize = 10_000;
const POLL: Duration = Duration::from_millis(100);
/// The period in which a manager that should be idle is read.
const QUIET_POLL: Duration = Duration::from_millis(500);
/// How long an idle manager is quiet before its memory is read.
pub const QUIET: Duration = Duration::from_secs(12);

/// The objects and the cluster of a load.
#[derive(Clone)]
pub struct Load {
    pub sandbox: SandboxOptions,
    /// Another API server than the embedded one, with the rights of an administrator. Its namespace
    /// `load` is made and deleted.
    pub kubeconfig: Option<PathBuf>,
    pub nodes: NodeOptions,
    pub size: Size,
    pub config_maps: usize,
    /// How long the idle manager is measured.
    pub idle: Duration,
    pub manager: ManagerProgram,
    pub manager_flags: Vec<String>,
    /// Whether to show the manager's debug pages to a browser. Their cost is part of the figures.
    pub pages: bool,
    /// The limit of the manager's memory cgroup.
    pub limit: Option<Bytes>,
    /// How long a manager must be quiet to count as settled.
    pub quiet: Duration,
    /// How long a phase may take.
    pub patience: Duration,
}

/// Where the memory of a load's managers is counted.
#[derive(Clone, Copy, Debug)]
enum Memory {
    /// In the cgroup of this process.
    Here,
    /// In a cgroup for each manager, which may have a limit.
    Apart(Option<Bytes>),
}

impl Load {
    /// Runs every phase, with a line on stderr as each begins.
    ///
    /// # Errors
    /// What could not be started, or a phase that did not end in time. A manager that is killed at
    /// its memory limit is no error.
    pub async fn run(self, stop: StopToken) -> Result<Report> {
        // Without a cgroup the load is not run: the report says why.
        if let Some(limit) = self.limit
            && let Err(why) = MemoryGroup::new(Some(limit))
        {
            let limited = Some(Limited::new(limit, Some(why)));
            return Ok(Report { limit: limited, ..self.report() });
        }
        let (config_maps, idle) = (self.config_maps, self.idle);
        let mut run = Run::start(self, stop).await?;
        let ended = run.phases(config_maps, idle).await;
        run.stop(ended).await
    }

    /// Creates the report, with no rows yet.
    fn report(&self) -> Report {
        Report {
            manager: self.manager.to_string(),
            size: self.size,
            config_maps: self.config_maps,
            nodes: self.nodes.count,
            limit: self.limit.map(|limit| Limited::new(limit, None)),
            rows: Vec::new(),
        }
    }
}

struct Run {
    server: Server,
    client: Client,
    clock: SharedClock,
    size: Size,
    quiet: Duration,
    patience: Duration,
    program: ManagerProgram,
    flags: Vec<String>,
    memory: Memory,
    proxy: Option<DebugProxy>,
    /// The managers' metrics, and their histograms at the start of the phase.
    queues: Option<(Metrics, Histograms)>,
    /// The objects of a load that is spread over namespaces.
    seen: Option<Seen>,
    /// The number of managers started so far.
    started: usize,
    stop: StopToken,
    /// The phase that runs.
    now: String,
    report: Report,
}

impl Run {
    /// Starts the server, and the debug proxy or the metrics that the load needs; the manager
    /// starts later, with the flags collected here.
    async fn start(load: Load, stop: StopToken) -> Result<Run> {
        let (report, clock) = (load.report(), SystemClock::shared());
        let server = Server::start(load.sandbox, load.kubeconfig, load.nodes).await?;
        let mut flags = FLAGS.map(str::to_owned).to_vec();
        let proxy = match server.sandbox().filter(|_| load.pages) {
            Some(sandbox) => Some(DebugProxy::start(sandbox.client_config(), &clock).await?),
            None => None,
        };
        if let Some(proxy) = &proxy {
            flags.extend(proxy.manager_flags());
            eprintln!("pipeline   {}", proxy.page("pipeline"));
        }
        let mut queues = None;
        // The proxy has the manager's port.
        if load.size.is_spread() && proxy.is_none() {
            let metrics = Metrics::new(&clock)?;
            flags.extend(metrics.flags());
            queues = Some((metrics, Histograms::default()));
        }
        flags.extend(load.manager_flags);
        Ok(Run {
            client: server.client().clone(),
            clock,
            size: load.size,
            quiet: load.quiet,
            patience: load.patience,
            program: load.manager,
            flags,
            memory: load.limit.map_or(Memory::Here, |limit| Memory::Apart(Some(limit))),
            proxy,
            queues,
            seen: None,
            started: 0,
            stop,
            server,
            now: String::new(),
            report,
        })
    }

    /// Runs the phases of the load in order, with a row of the report for each.
    async fn phases(&mut self, config_maps: usize, idle: Duration) -> Result<()> {
        self.create_namespace(NAMESPACE).await?;
        let mut manager = self.start_manager()?;
        self.phase("empty cluster");
        let mark = self.start_mark(None)?;
        self.first_write(&mut manager).await?;
        self.wait_until_settled(&mut manager).await?;
        self.add_row("empty cluster", &manager, mark).await?;

        if self.size.claims > 0 {
            self.claims(&mut manager, self.size.claims).await?;
            return self.end(manager).await;
        }
        if config_maps > 0 {
            self.phase("ConfigMaps");
            let mark = self.start_mark(Some(&manager))?;
            for n in 0..config_maps {
                self.create(&CONFIG_MAPS, NAMESPACE, &config_map(n)).await?;
            }
            self.wait_until_settled(&mut manager).await?;
            self.add_row("ConfigMaps loaded", &manager, mark).await?;
        }
        if self.size.is_spread() {
            return self.spread(manager, idle).await;
        }

        if self.size.job > 0 {
            self.job(&mut manager, self.size.job).await?;
        }
        self.daemon_sets(&mut manager, self.size.daemon_sets).await?;
        if self.size.deployments > 0 {
            manager = self.deployments(manager, idle).await?;
        }
        if self.size.storm > 0 {
            self.storm(&mut manager).await?;
        }
        self.phase("deletion of the namespace");
        self.delete_namespace(&mut manager).await?;
        self.end(manager).await
    }

    /// Stops all but the managers, and returns the report. `ended`: how the phases ended; a manager
    /// that was killed at its memory limit is a row of the report, not an error.
    async fn stop(mut self, ended: Result<()>) -> Result<Report> {
        if let Some(seen) = self.seen.take() {
            seen.stop().await;
        }
        if let Some(proxy) = self.proxy.take() {
            proxy.stop().await;
        }
        self.server.stop().await;
        let Err(error) = ended else { return Ok(self.report) };
        match (error.downcast::<OutOfMemory>(), &mut self.report.limit) {
            (Ok(killed), Some(limited)) => {
                limited.add(killed.counts);
                self.report.rows.push(Row::skipped(&self.now, &killed.to_string()));
                Ok(self.report)
            }
            (Ok(killed), None) => Err(killed),
            (Err(error), _) => Err(error),
        }
    }

    fn phase(&mut self, name: &str) {
        self.now = name.to_owned();
        report::announce(&self.clock, &self.now);
    }

    /// Starts a new manager, in this process's memory cgroup or in one of its own.
    fn start_manager(&mut self) -> Result<ManagerProcess> {
        self.started += 1;
        let program = &self.program;
        let name = format!("manager-{}", self.started);
        let kubeconfig = self.server.kubeconfig();
        match self.memory {
            Memory::Here => ManagerProcess::start(program, &kubeconfig, &name, &self.flags),
            Memory::Apart(limit) => {
                let group = MemoryGroup::new(limit)?;
                ManagerProcess::start_in(group, program, &kubeconfig, &name, &self.flags)
            }
        }
    }

    fn check_alive(&self, manager: &mut ManagerProcess) -> Result<()> {
        manager.check_alive(&self.stop)
    }

    /// Waits until the manager is at rest, for a minute at most.
    async fn wait_until_settled(&self, manager: &mut ManagerProcess) -> Result<()> {
        let idle = IdleCriteria {
            poll: QUIET_POLL,
            quiet_polls: self.quiet.div_duration_f64(QUIET_POLL).ceil() as usize,
            at_most: Duration::from_secs(60),
            memory: 0.01,
            cpu: 0.1,
        };
        manager.wait_until_settled(&idle, &self.clock, &self.stop).await
    }

    /// Stops the manager, and adds the memory counts of its cgroup to the report. [`Run::stop`]
    /// adds those of a manager that was killed at its limit.
    async fn end(&mut self, manager: ManagerProcess) -> Result<()> {
        if let Some((limited, counts)) =
            self.report.limit.as_mut().zip(manager.process.group_counts())
            && counts.kills == 0
        {
            limited.add(counts);
        }
        manager.end(&self.clock).await
    }

    /// Reads the counters at the start of a phase. `manager`: `None` before it is started.
    fn start_mark(&self, manager: Option<&ManagerProcess>) -> Result<Mark> {
        let process = manager.map(|manager| &manager.process);
        Ok(Mark::new(self.clock.monotonic(), process, self.server.traffic())?)
    }

    /// Adds a row to the report: what the manager has used since the mark, and its queues' times.
    async fn add_row(&mut self, phase: &str, manager: &ManagerProcess, since: Mark) -> Result<()> {
        let mut row = self.figures(phase, manager, since)?;
        if let Some((metrics, before)) = &mut self.queues {
            let now = metrics.read().await?;
            row.queues = Some(now.since(before));
            *before = now;
        }
        self.report.rows.push(row);
        Ok(())
    }

    /// Computes the row of a phase, without the times of queues.
    fn figures(&self, phase: &str, manager: &ManagerProcess, since: Mark) -> Result<Row> {
        let (now, traffic) = (self.clock.monotonic(), self.server.traffic());
        Ok(since.row(phase, now, &manager.process, traffic)?)
    }

    /// Creates a namespace in which pods can be created at once.
    async fn create_namespace(&self, name: &str) -> Result<()> {
        self.create(&NAMESPACES, "", &namespace(name)).await?;
        // Pods need this account even if the manager does not run the controller that creates it.
        let account = json!({ "metadata": { "name": "default" } });
        self.create(&ServiceAccount::RESOURCE, name, &account).await
    }

    /// Creates an object; one that exists already is left as it is.
    async fn create(&self, resource: &ResourceType, namespace: &str, body: &Value) -> Result<()> {
        match self.client.resource(resource).create::<PartialObjectMetadata>(namespace, body).await
        {
            Err(error) if !error.is_already_exists() => Err(error.into()),
            _ => Ok(()),
        }
    }
}

fn namespace(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } })
}

fn config_map(n: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": format!("config-{n}") },
        "data": objects::data(CONFIG_MAP_BYTES),
    })
}
