//! A load for a controller manager, and what it costs: seconds, CPU, memory, requests and bytes.
//!
//! The manager runs in a process of its own, so its figures are its own; what they were is read from
//! `/proc`. The same phases run whatever the program is, so two managers can be set side by side.

mod claims;
mod measure;
pub mod objects;
mod outage;
mod process;
mod report;
mod workloads;

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde_json::{Value, json};

use self::measure::{Mark, PROGRAM, Requests};
use self::objects::template;
pub use self::outage::{Nodes, Outage, OutageReport};
use self::process::Process;
pub use self::report::{Report, Row};
use crate::cluster::{Cluster, Manager, ManagerProgram, administrator};
use crate::front::Front;
use crate::nodes::{NodeOptions, StandIns};
use crate::{Sandbox, SandboxOptions};
use kube_controller_manager::client::{Client, Delete, ListOptions, Patch};
use kube_controller_manager::clock::{SharedClock, SystemClock};
use kube_controller_manager::objects::{
    Deployment, ObjectKey, PartialObjectMetadata, Pod, Resource, ResourceType, ServiceAccount,
};
use kube_controller_manager::task::StopToken;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const NAMESPACE: &str = "load";
const NAMESPACES: ResourceType = ResourceType::fixed("", "v1", "Namespace", "namespaces", false);
const CONFIG_MAPS: ResourceType = ResourceType::fixed("", "v1", "ConfigMap", "configmaps", true);
const CONFIG_MAP_BYTES: usize = 10_000;
const POLL: Duration = Duration::from_millis(100);
/// Between the looks that end in "settled", and how many must agree.
const LOOK: Duration = Duration::from_millis(500);
const LOOKS: usize = 6;
const SETTLED_WITHIN: Duration = Duration::from_secs(60);
/// When nothing of a namespace is deleted within this time, no manager empties it.
const DELETION_STARTS_WITHIN: Duration = Duration::from_secs(20);

/// How many objects: `deployments=100,replicas=100`, `job=5000,daemonsets=1`, both, or `claims=5000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub deployments: usize,
    pub replicas: usize,
    /// The pods of a Job; 0: no Job.
    pub job: usize,
    /// Each has a pod on every node.
    pub daemon_sets: usize,
    /// Where there are any, there are no Deployments.
    pub claims: usize,
}

impl Size {
    fn pods(self) -> usize {
        self.deployments * self.replicas
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Size, String> {
        let mut size = Size { deployments: 100, replicas: 100, job: 0, daemon_sets: 0, claims: 0 };
        if !text.contains("deployments") && (text.contains("job") || text.contains("daemonsets")) {
            size.deployments = 0;
        }
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let fault = || {
                let sizes = "deployments=N, replicas=N, job=N, daemonsets=N or claims=N";
                format!("{part:?} is not {sizes}")
            };
            let (name, number) = part.split_once('=').ok_or_else(fault)?;
            let number = number.parse().map_err(|_| fault())?;
            match name {
                "deployments" => size.deployments = number,
                "replicas" => size.replicas = number,
                "job" => size.job = number,
                "daemonsets" => size.daemon_sets = number,
                "claims" => size.claims = number,
                _ => return Err(fault()),
            }
        }
        Ok(size)
    }
}

/// What is loaded, and on what.
pub struct Load {
    pub sandbox: SandboxOptions,
    /// Another API server than the embedded one, with the rights of an administrator. Its namespace
    /// `load` is made and deleted.
    pub kubeconfig: Option<PathBuf>,
    pub nodes: NodeOptions,
    pub size: Size,
    pub config_maps: usize,
    /// How long to look at the idle manager.
    pub idle: Duration,
    pub manager: ManagerProgram,
    pub manager_flags: Vec<String>,
    /// Serve the manager's debug pages to a browser. What that costs is part of the figures.
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
        // A second manager must not wait for the first one's lease.
        let mut flags = vec!["--leader-elect=false".to_owned()];
        // Not to measure the client's own limits.
        flags.extend(["--kube-api-qps=2000", "--kube-api-burst=4000"].map(str::to_owned));
        let front = match server.sandbox().filter(|_| self.pages) {
            Some(sandbox) => {
                Some(Front::start(sandbox.client_config(), &SystemClock::shared()).await?)
            }
            None => None,
        };
        if let Some(front) = &front {
            flags.extend(front.manager_flags());
            eprintln!("pipeline   {}", front.page("pipeline"));
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
        if let Some(front) = front {
            front.stop().await;
        }
        server.stop().await;
        ended.map(|()| report)
    }
}

/// The API server, embedded or elsewhere, with a scheduler and nodes.
enum Server {
    Embedded(Box<Cluster>),
    Elsewhere { client: Client, stand_ins: StandIns, kubeconfig: PathBuf },
}

impl Server {
    async fn start(
        options: SandboxOptions,
        kubeconfig: Option<PathBuf>,
        nodes: NodeOptions,
    ) -> Result<Server> {
        let Some(kubeconfig) = kubeconfig else {
            return Ok(Server::Embedded(Box::new(Cluster::start(options, nodes).await?)));
        };
        let client = administrator(&kubeconfig, "sandbox", &options.clock)?;
        let stand_ins = StandIns::start(&client, &options.clock, nodes);
        Ok(Server::Elsewhere { client, stand_ins, kubeconfig })
    }

    fn client(&self) -> &Client {
        match self {
            Server::Embedded(cluster) => &cluster.client,
            Server::Elsewhere { client, .. } => client,
        }
    }

    fn sandbox(&self) -> Option<&Sandbox> {
        match self {
            Server::Embedded(cluster) => Some(&cluster.sandbox),
            Server::Elsewhere { .. } => None,
        }
    }

    /// For a manager.
    fn kubeconfig(&self) -> PathBuf {
        match self {
            Server::Embedded(cluster) => cluster.manager_kubeconfig(),
            Server::Elsewhere { kubeconfig, .. } => kubeconfig.clone(),
        }
    }

    /// The requests of the managers so far.
    fn traffic(&self) -> Requests {
        Some(self.sandbox()?.traffic().of(PROGRAM))
    }

    async fn stop(self) {
        match self {
            Server::Embedded(cluster) => cluster.stop().await,
            Server::Elsewhere { stand_ins, .. } => stand_ins.stop().await,
        }
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
    /// Managers so far.
    started: usize,
    stop: StopToken,
    report: Report,
}

/// A manager at work.
struct Working {
    manager: Manager,
    process: Process,
}

impl Run {
    async fn phases(&mut self, config_maps: usize, idle: Duration) -> Result<()> {
        self.create(&NAMESPACES, "", &namespace(NAMESPACE)).await?;
        // Pods need it, whether or not the manager runs the controller that makes it.
        let account = json!({ "metadata": { "name": "default" } });
        self.create(&ServiceAccount::RESOURCE, NAMESPACE, &account).await?;
        let mut working = self.start_manager()?;
        self.phase("empty cluster");
        let mark = self.mark(None)?;
        self.first_write(&mut working).await?;
        self.settled(&mut working).await?;
        self.row("empty cluster", &working, mark)?;

        if self.size.claims > 0 {
            self.claims(&mut working, self.size.claims).await?;
            return self.end(working).await;
        }
        if config_maps > 0 {
            self.phase("ConfigMaps");
            let mark = self.mark(Some(&working))?;
            for n in 0..config_maps {
                self.create(&CONFIG_MAPS, NAMESPACE, &config_map(n)).await?;
            }
            self.settled(&mut working).await?;
            self.row("ConfigMaps loaded", &working, mark)?;
        }

        if self.size.job > 0 {
            self.job(&mut working, self.size.job).await?;
        }
        self.daemon_sets(&mut working, self.size.daemon_sets).await?;
        if self.size.deployments > 0 {
            working = self.deployments(working, idle).await?;
        }
        self.phase("deletion of the namespace");
        self.delete_namespace(&mut working).await?;
        self.end(working).await
    }

    /// Deployments, and a manager that starts when they are there.
    async fn deployments(&mut self, mut working: Working, idle: Duration) -> Result<Working> {
        self.phase("Deployments");
        let mark = self.mark(Some(&working))?;
        for n in 0..self.size.deployments {
            let body = deployment(&format!("app-{n}"), n, self.size.replicas);
            self.create(&Deployment::RESOURCE, NAMESPACE, &body).await?;
        }
        let pods = self.size.pods() as i64;
        self.until(&mut working, "all pods exist", |sum| sum.replicas >= pods).await?;
        let existing = self.mark(Some(&working))?;
        self.row("all pods exist", &working, mark)?;
        self.until(&mut working, "all pods are ready", |sum| sum.available >= pods).await?;
        self.row("all pods ready", &working, existing)?;
        let mark = self.mark(Some(&working))?;
        self.settled(&mut working).await?;
        self.row("settled, full", &working, mark)?;

        self.phase("idle");
        let mark = self.mark(Some(&working))?;
        self.clock.sleep(idle).await;
        self.row("idle", &working, mark)?;

        self.phase("restart on the full cluster");
        self.end(working).await?;
        let scale = Patch::Merge(json!({ "spec": { "replicas": self.size.replicas + 1 } }));
        let scaled = ObjectKey::new(NAMESPACE, "app-0");
        self.client.patch::<Deployment>(&scaled, &scale).await?;
        let mark = self.mark(None)?;
        let mut working = self.start_manager()?;
        self.acted_upon(&mut working, &scaled).await?;
        self.row("restarted: first write", &working, mark)?;
        let mark = self.mark(Some(&working))?;
        let wanted = pods + 1;
        self.until(&mut working, "the new pod", |sum| sum.available >= wanted).await?;
        self.settled(&mut working).await?;
        self.row("restarted: settled", &working, mark)?;
        Ok(working)
    }

    fn phase(&self, name: &str) {
        eprintln!("{:>7.1} s  {name} ...", self.clock.monotonic().as_secs_f64());
    }

    fn start_manager(&mut self) -> Result<Working> {
        self.started += 1;
        let name = format!("manager-{}", self.started);
        let kubeconfig = self.server.kubeconfig();
        let manager = Manager::spawn(&self.program, &kubeconfig, &name, &self.flags)?;
        let process = Process::new(manager.id());
        Ok(Working { manager, process })
    }

    async fn end(&self, working: Working) -> Result<()> {
        let log = working.manager.log.clone();
        let status = working.manager.stop(&self.clock, Duration::from_secs(30)).await?;
        // SIGTERM alone ends a manager without a lease, where that has no handler for it.
        let terminated = status.signal() == Some(15);
        if !status.success() && !terminated {
            eprintln!("the manager ended with {status}, see {}", log.display());
        }
        Ok(())
    }

    fn mark(&self, working: Option<&Working>) -> Result<Mark> {
        let process = working.map(|working| &working.process);
        Ok(Mark::new(self.clock.monotonic(), process, self.server.traffic())?)
    }

    fn row(&mut self, phase: &str, working: &Working, since: Mark) -> Result<()> {
        let (now, traffic) = (self.clock.monotonic(), self.server.traffic());
        self.report.rows.push(since.row(phase, now, &working.process, traffic)?);
        Ok(())
    }

    /// An error when the manager is gone or a signal came.
    fn alive(&self, working: &mut Working) -> Result<()> {
        if self.stop.is_stopped() {
            return Err("stopped".into());
        }
        match working.manager.ended()? {
            None => Ok(()),
            Some(status) => {
                let log = working.manager.log.display();
                Err(format!("the manager ended early ({status}), see {log}").into())
            }
        }
    }

    /// The manager has taken up its work: it answers a Deployment without pods.
    async fn first_write(&self, working: &mut Working) -> Result<()> {
        let body = deployment("probe", 0, 0);
        self.create(&Deployment::RESOURCE, NAMESPACE, &body).await?;
        self.until(working, "the first write", |sum| sum.unobserved == 0).await?;
        let key = ObjectKey::new(NAMESPACE, "probe");
        Ok(self.client.delete::<Deployment>(&key, Delete::background()).await?)
    }

    async fn until(
        &self,
        working: &mut Working,
        what: &str,
        done: impl Fn(&Sum) -> bool,
    ) -> Result<()> {
        let give_up = self.clock.monotonic() + self.patience;
        loop {
            self.alive(working)?;
            let sum = self.sum().await?;
            if done(&sum) {
                return Ok(());
            }
            if self.clock.monotonic() > give_up {
                return Err(format!("{what}: not after {:?}: {sum:?}", self.patience).into());
            }
            self.clock.sleep(POLL).await;
        }
    }

    /// Waits for the manager's status of the newest spec. Asks for one object at a time: the server
    /// is to be busy with the manager.
    async fn acted_upon(&self, working: &mut Working, key: &ObjectKey) -> Result<()> {
        let give_up = self.clock.monotonic() + self.patience;
        loop {
            self.alive(working)?;
            let deployment: Deployment = self.client.get(key).await?;
            if deployment.status.observed_generation == Some(deployment.meta.generation) {
                return Ok(());
            }
            if self.clock.monotonic() > give_up {
                return Err(format!("the first write: not after {:?}", self.patience).into());
            }
            self.clock.sleep(POLL / 10).await;
        }
    }

    async fn sum(&self) -> Result<Sum> {
        let all: Vec<Deployment> =
            self.client.list(Some(NAMESPACE), &ListOptions::default()).await?;
        let mut sum = Sum::default();
        for deployment in &all {
            sum.replicas += i64::from(deployment.status.replicas.unwrap_or(0));
            sum.available += i64::from(deployment.status.available_replicas.unwrap_or(0));
            let observed = deployment.status.observed_generation;
            sum.unobserved += usize::from(observed != Some(deployment.meta.generation));
        }
        Ok(sum)
    }

    /// Waits until neither memory nor CPU move, at most a minute: a runtime that collects garbage
    /// may take longer to give back what it has.
    async fn settled(&self, working: &mut Working) -> Result<()> {
        let give_up = self.clock.monotonic() + SETTLED_WITHIN;
        let mut quiet = 0;
        let mut before = working.process.read()?;
        while quiet < LOOKS && self.clock.monotonic() < give_up {
            self.clock.sleep(LOOK).await;
            self.alive(working)?;
            let now = working.process.read()?;
            let same =
                (now.resident_bytes - before.resident_bytes).abs() < before.resident_bytes / 100.0;
            let still = now.cpu_seconds - before.cpu_seconds < LOOK.as_secs_f64() / 10.0;
            quiet = if same && still { quiet + 1 } else { 0 };
            before = now;
        }
        Ok(())
    }

    async fn delete_namespace(&mut self, working: &mut Working) -> Result<()> {
        const PHASE: &str = "namespace deleted";
        let mark = self.mark(Some(working))?;
        let key = ObjectKey::cluster(NAMESPACE);
        let namespaces = self.client.resource(&NAMESPACES);
        namespaces.delete(&key, Delete::new()).await?;
        let begun = self.clock.monotonic();
        let mut touched = false;
        loop {
            self.alive(working)?;
            match namespaces.get::<PartialObjectMetadata>(&key).await {
                Err(error) if error.is_not_found() => break,
                Err(error) => return Err(error.into()),
                Ok(_) => {}
            }
            let waited = self.clock.monotonic() - begun;
            if !touched && waited > Duration::from_secs(1) {
                touched = self.is_being_emptied().await?;
            }
            if !touched && waited > DELETION_STARTS_WITHIN {
                let why = "the manager runs no namespace controller: nothing was deleted";
                self.report.rows.push(Row::skipped(PHASE, why));
                return Ok(());
            }
            if waited > self.patience {
                return Err(format!("{PHASE}: not after {:?}", self.patience).into());
            }
            self.clock.sleep(POLL * 2).await;
        }
        self.row(PHASE, working, mark)?;
        let mark = self.mark(Some(working))?;
        self.settled(working).await?;
        self.row("settled, empty again", working, mark)
    }

    /// Some Deployment or pod of the namespace has been deleted.
    async fn is_being_emptied(&self) -> Result<bool> {
        let options = ListOptions { limit: Some(1), ..ListOptions::default() };
        let pods = self.client.resource(&Pod::RESOURCE).metadata_only();
        let page = pods.list_page(Some(NAMESPACE), &options, None).await?;
        let first: Option<PartialObjectMetadata> = page.first().await?;
        let deployments: Vec<Deployment> =
            self.client.list(Some(NAMESPACE), &ListOptions::default()).await?;
        let fewer = deployments.len() < self.size.deployments;
        Ok(fewer || first.is_none_or(|pod| pod.meta.is_being_deleted()))
    }

    /// What is there already is as good.
    async fn create(&self, resource: &ResourceType, namespace: &str, body: &Value) -> Result<()> {
        match self.client.resource(resource).create::<PartialObjectMetadata>(namespace, body).await
        {
            Err(error) if !error.is_already_exists() => Err(error.into()),
            _ => Ok(()),
        }
    }
}

/// Over all Deployments of the load, as their statuses say.
#[derive(Debug, Default)]
struct Sum {
    replicas: i64,
    available: i64,
    /// Those whose newest spec no manager has acted on.
    unobserved: usize,
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

fn deployment(name: &str, n: usize, replicas: usize) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": name, "labels": { "app": name } },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": name } },
            "template": template(name, n),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, size) in [
            ("deployments=3,replicas=4", Some((3, 4, 0, 0, 0))),
            ("replicas=7", Some((100, 7, 0, 0, 0))),
            ("", Some((100, 100, 0, 0, 0))),
            ("job=5,daemonsets=2", Some((0, 100, 5, 2, 0))),
            ("deployments=1,job=5", Some((1, 100, 5, 0, 0))),
            ("claims=9", Some((100, 100, 0, 0, 9))),
            ("pods=3", None),
            ("deployments", None),
            ("replicas=-1", None),
        ] {
            let read: Option<Size> = text.parse().ok();
            let read =
                read.map(|it| (it.deployments, it.replicas, it.job, it.daemon_sets, it.claims));
            assert_eq!(read, size, "{text}");
        }
    }
}
