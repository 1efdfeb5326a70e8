//! A load for a controller manager, and what it costs: seconds, CPU, memory, requests and bytes.
//!
//! The manager runs in a process of its own, whose figures are read from `/proc`. The phases are the
//! same for every program, so two managers can be compared.

mod claims;
mod cleanup;
mod deployments;
mod latency;
mod manager_process;
mod measure;
pub mod objects;
mod outage;
mod process;
mod report;
mod server;
mod size;
mod workloads;

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

pub use self::latency::{Latency, LatencyReport};
use self::manager_process::{FLAGS, ManagerProcess, Rest};
use self::measure::Mark;
pub use self::outage::{Outage, OutageReport};
pub use self::report::{Report, Row};
use self::server::Server;
pub use self::size::{Nodes, Size};
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
const SETTLED: Rest = Rest {
    poll: Duration::from_millis(500),
    quiet_polls: 24,
    at_most: Duration::from_secs(60),
    memory: 0.01,
    cpu: 0.1,
};

/// The objects and the cluster of a load.
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
    /// How long a phase may take.
    pub patience: Duration,
}

impl Load {
    /// Runs every phase, with a line on stderr as each begins.
    ///
    /// # Errors
    /// What could not be started, or a phase that did not end in time.
    pub async fn run(mut self, stop: StopToken) -> Result<Report> {
        let manager = match &self.manager {
            ManagerProgram::Embedded => "embedded".to_owned(),
            ManagerProgram::Path(path) => path.display().to_string(),
        };
        let server = Server::start(self.sandbox, self.kubeconfig, self.nodes.clone()).await?;
        let mut flags = FLAGS.map(str::to_owned).to_vec();
        let proxy = match server.sandbox().filter(|_| self.pages) {
            Some(sandbox) => {
                Some(DebugProxy::start(sandbox.client_config(), &SystemClock::shared()).await?)
            }
            None => None,
        };
        if let Some(proxy) = &proxy {
            flags.extend(proxy.manager_flags());
            eprintln!("pipeline   {}", proxy.page("pipeline"));
        }
        flags.append(&mut self.manager_flags);
        let mut run = Run {
            clock: SystemClock::shared(),
            client: server.client().clone(),
            size: self.size,
            patience: self.patience,
            program: self.manager,
            flags,
            started: 0,
            stop,
            server,
            report: Report {
                manager,
                deployments: self.size.deployments,
                replicas: self.size.replicas,
                job: self.size.job,
                daemon_sets: self.size.daemon_sets,
                claims: self.size.claims,
                config_maps: self.config_maps,
                nodes: self.nodes.count,
                rows: Vec::new(),
            },
        };
        let ended = run.phases(self.config_maps, self.idle).await;
        let Run { server, report, .. } = run;
        if let Some(proxy) = proxy {
            proxy.stop().await;
        }
        server.stop().await;
        ended.map(|()| report)
    }
}

struct Run {
    server: Server,
    client: Client,
    clock: SharedClock,
    size: Size,
    patience: Duration,
    program: ManagerProgram,
    flags: Vec<String>,
    /// The number of managers started so far.
    started: usize,
    stop: StopToken,
    report: Report,
}

impl Run {
    async fn phases(&mut self, config_maps: usize, idle: Duration) -> Result<()> {
        self.create(&NAMESPACES, "", &namespace(NAMESPACE)).await?;
        // Pods need this account even if the manager does not run the controller that creates it.
        let account = json!({ "metadata": { "name": "default" } });
        self.create(&ServiceAccount::RESOURCE, NAMESPACE, &account).await?;
        let mut manager = self.start_manager()?;
        self.phase("empty cluster");
        let mark = self.mark(None)?;
        self.first_write(&mut manager).await?;
        self.settled(&mut manager).await?;
        self.row("empty cluster", &manager, mark)?;

        if self.size.claims > 0 {
            self.claims(&mut manager, self.size.claims).await?;
            return self.end(manager).await;
        }
        if config_maps > 0 {
            self.phase("ConfigMaps");
            let mark = self.mark(Some(&manager))?;
            for n in 0..config_maps {
                self.create(&CONFIG_MAPS, NAMESPACE, &config_map(n)).await?;
            }
            self.settled(&mut manager).await?;
            self.row("ConfigMaps loaded", &manager, mark)?;
        }

        if self.size.job > 0 {
            self.job(&mut manager, self.size.job).await?;
        }
        self.daemon_sets(&mut manager, self.size.daemon_sets).await?;
        if self.size.deployments > 0 {
            manager = self.deployments(manager, idle).await?;
        }
        self.phase("deletion of the namespace");
        self.delete_namespace(&mut manager).await?;
        self.end(manager).await
    }

    fn phase(&self, name: &str) {
        eprintln!("{:>7.1} s  {name} ...", self.clock.monotonic().as_secs_f64());
    }

    fn start_manager(&mut self) -> Result<ManagerProcess> {
        self.started += 1;
        let name = format!("manager-{}", self.started);
        ManagerProcess::start(&self.program, &self.server.kubeconfig(), &name, &self.flags)
    }

    fn alive(&self, manager: &mut ManagerProcess) -> Result<()> {
        manager.alive(&self.stop)
    }

    async fn settled(&self, manager: &mut ManagerProcess) -> Result<()> {
        manager.settled(&SETTLED, &self.clock, &self.stop).await
    }

    async fn end(&self, manager: ManagerProcess) -> Result<()> {
        manager.end(&self.clock).await
    }

    fn mark(&self, manager: Option<&ManagerProcess>) -> Result<Mark> {
        let process = manager.map(|manager| &manager.process);
        Ok(Mark::new(self.clock.monotonic(), process, self.server.traffic())?)
    }

    fn row(&mut self, phase: &str, manager: &ManagerProcess, since: Mark) -> Result<()> {
        let row = self.figures(phase, manager, since)?;
        self.report.rows.push(row);
        Ok(())
    }

    fn figures(&self, phase: &str, manager: &ManagerProcess, since: Mark) -> Result<Row> {
        let (now, traffic) = (self.clock.monotonic(), self.server.traffic());
        Ok(since.row(phase, now, &manager.process, traffic)?)
    }

    /// An object that exists already is left as it is.
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
