//! The demo: applies a fixture to a fresh cluster and shows the rollout.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Manager, ManagerProgram};
use crate::containers::{self, ContainerNode};
use crate::debug_proxy::DebugProxy;
use crate::nodes::NodeOptions;
pub use crate::rollout::Rollout;
use crate::rollout::{WORKLOADS, waits_for};
use crate::server::SandboxOptions;
use kube_controller_manager::client::{Client, ListOptions, Patch};
use kube_controller_manager::objects::{ObjectKey, ResourceType};
use kube_controller_manager::task::StopToken;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Settings of the demo.
pub struct Demo {
    pub sandbox: SandboxOptions,
    pub nodes: NodeOptions,
    /// YAML documents to apply; `None` applies the built-in ones.
    pub fixture: Option<PathBuf>,
    pub manager: ManagerProgram,
    pub manager_flags: Vec<String>,
    /// The program of [`containers::program`], which makes a node that runs containers; `None`: the
    /// nodes are stand-ins.
    pub containers: Option<PathBuf>,
    /// Whether to end when the fixture's workloads have rolled out.
    pub once: bool,
    /// The time-out of the rollout.
    pub patience: Duration,
}

const BUILT_IN: &str = include_str!("../../fixtures/demo.yaml");
const POLL: Duration = Duration::from_millis(100);

impl Demo {
    /// Runs the demo: starts a cluster and a manager, creates the objects of the fixture, and shows
    /// their progress. Returns after the rollout (`once`) or at the stop. Errors: what did not
    /// converge or ended early.
    pub async fn run(self, stop: StopToken) -> Result<()> {
        let objects = match &self.fixture {
            None => parse("the built-in fixture", BUILT_IN)?,
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| format!("--fixture {}: {error}", path.display()))?;
                parse(&path.display().to_string(), &text)?
            }
        };
        let mut nodes = self.nodes;
        if self.containers.is_some() {
            let folder = std::path::absolute(&self.sandbox.dir)?;
            nodes.real_volumes = Some(folder.join("volumes"));
        }
        let cluster = Cluster::start(self.sandbox, nodes).await?;
        println!("API server   {}", cluster.sandbox.client_config().server);
        println!("kubeconfig   {}", cluster.kubeconfig().display());
        let mut node = match &self.containers {
            None => None,
            Some(program) => {
                let mut node = ContainerNode::start(program, &cluster.kubeconfig())?;
                let clock = cluster.clock();
                let ready = node.ready(&cluster.client, &clock, self.patience);
                match stop.unless_stopped(ready).await {
                    Some(ready) => ready?,
                    None => return Ok(()),
                }
                println!("node         {}", containers::NODE);
                Some(node)
            }
        };
        let proxy = DebugProxy::start(cluster.sandbox.client_config(), &cluster.clock()).await?;
        // Flags of the command line come last, so that they take precedence.
        let flags = [proxy.manager_flags(), self.manager_flags].concat();
        let kubeconfig = cluster.manager_kubeconfig();
        let mut manager =
            Manager::spawn(&self.manager, &kubeconfig, "kube-controller-manager", &flags)?;
        println!("manager log  {}", manager.log.display());
        println!("pipeline     {}", proxy.page("pipeline"));
        for object in &objects {
            println!("{}", create(&cluster.client, object).await?);
        }
        let mut screen = Screen::new();
        let give_up = cluster.clock().monotonic() + self.patience;
        let outcome = loop {
            if stop.is_stopped() {
                break Ok(());
            }
            if let Some(status) = manager.ended()? {
                break Err(format!(
                    "the controller manager ended early ({status}), see {}",
                    manager.log.display()
                )
                .into());
            }
            if let Some(node) = &mut node
                && let Err(error) = node.check()
            {
                break Err(error.into());
            }
            let rollouts = rollouts(&cluster.client, &objects).await?;
            screen.show(&rollouts)?;
            if rollouts.iter().all(Rollout::is_complete) {
                break Ok(());
            }
            if cluster.clock().monotonic() > give_up {
                let late: Vec<String> =
                    rollouts.iter().filter(|r| !r.is_complete()).map(Rollout::line).collect();
                break Err(format!(
                    "not rolled out within {:?}: {}",
                    self.patience,
                    late.join("; ")
                )
                .into());
            }
            cluster.clock().sleep(POLL).await;
        };
        let outcome = match outcome {
            Ok(()) if !self.once && !stop.is_stopped() => {
                let kubeconfig = cluster.kubeconfig();
                print!("{}", hint(&kubeconfig, node.is_some()));
                watch_processes(&mut manager, node.as_mut(), &cluster, &stop).await
            }
            Ok(()) => {
                println!("rolled out.");
                Ok(())
            }
            Err(error) => Err(error),
        };
        if let Some(node) = node {
            node.stop(&cluster.clock()).await?;
        }
        let status = manager.stop(&cluster.clock(), self.patience).await?;
        proxy.stop().await;
        cluster.stop().await;
        outcome?;
        if !status.success() {
            return Err(format!("the controller manager did not stop cleanly: {status}").into());
        }
        Ok(())
    }
}

/// Returns the text that says what a person can do next.
fn hint(kubeconfig: &Path, has_containers: bool) -> String {
    let kubeconfig = kubeconfig.display();
    if !has_containers {
        return format!(
            "rolled out. Try: kubectl --kubeconfig {kubeconfig} get all -A   (Ctrl-C ends)\n"
        );
    }
    format!(
        "rolled out. Try, in another terminal (Ctrl-C ends here):\n    export KUBECONFIG={kubeconfig}\n    \
         kubectl -n shop logs -f deployment/web\n    kubectl -n shop exec -it deployment/web -- sh\n    \
         kubectl -n shop port-forward service/web 8080:80\n"
    )
}

/// Waits until the stop. Fails when the manager or the node ends before it.
async fn watch_processes(
    manager: &mut Manager,
    mut node: Option<&mut ContainerNode>,
    cluster: &Cluster,
    stop: &StopToken,
) -> Result<()> {
    while !stop.is_stopped() {
        if let Some(status) = manager.ended()? {
            return Err(format!("the controller manager ended: {status}").into());
        }
        if let Some(node) = &mut node {
            node.check()?;
        }
        stop.unless_stopped(cluster.clock().sleep(Duration::from_millis(500))).await;
    }
    Ok(())
}

/// Parses the YAML documents in `text`, and returns their objects. `name`: how errors call the
/// text.
pub fn parse(name: &str, text: &str) -> Result<Vec<Value>> {
    let documents = serde_yaml_ng::Deserializer::from_str(text);
    let objects = documents
        .map(Value::deserialize)
        .filter(|document| !matches!(document, Ok(Value::Null)))
        .collect::<std::result::Result<Vec<Value>, _>>()
        .map_err(|error| format!("{name}: {error}"))?;
    Ok(objects)
}

/// Creates one object of a fixture, with its status if it has one; returns the line to print.
pub async fn create(client: &Client, object: &Value) -> Result<String> {
    let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let (kind, api_version) = (text("/kind"), text("/apiVersion"));
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    let mapper = client.discovery().await?;
    let resource: ResourceType = mapper
        .resource_for(group, version, kind)
        .ok_or_else(|| format!("{api_version} {kind}: not served"))?;
    let namespace = match text("/metadata/namespace") {
        "" if resource.namespaced => "default",
        namespace => namespace,
    };
    let name = text("/metadata/name");
    client
        .resource(&resource)
        .create::<Value>(namespace, object)
        .await
        .map_err(|error| format!("{kind} {name}: {error}"))?;
    if let Some(status) = object.get("status") {
        let status = Patch::Merge(json!({ "status": status }));
        let key = ObjectKey::new(if resource.namespaced { namespace } else { "" }, name);
        let written = client.resource(&resource).subresource("status");
        let written = written.patch::<Value>(&key, &status).await;
        written.map_err(|error| format!("the status of {kind} {name}: {error}"))?;
    }
    Ok(format!("{}/{name} created", resource.to_string().to_lowercase()))
}

/// Reads the progress of the workloads among `objects` from the API server.
pub async fn rollouts(client: &Client, objects: &[Value]) -> Result<Vec<Rollout>> {
    let mut rollouts = Vec::new();
    for resource in &WORKLOADS {
        let of_kind = |object: &&Value| {
            object["kind"] == *resource.kind && object["apiVersion"] == resource.api_version()
        };
        let wanted: Vec<(&str, &Value)> = objects
            .iter()
            .filter(of_kind)
            .map(|object| {
                let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
                (namespace, &object["metadata"]["name"])
            })
            .collect();
        if wanted.is_empty() {
            continue;
        }
        let found = client.resource(resource).list(None, &ListOptions::default()).await?;
        let found: Vec<Value> = found.items;
        for object in found {
            let metadata = &object["metadata"];
            let is_wanted = wanted.iter().any(|(namespace, name)| {
                metadata["namespace"] == **namespace && metadata["name"] == **name
            });
            if is_wanted {
                rollouts.push(Rollout::of(&resource.kind, &object));
            }
        }
    }
    Ok(rollouts)
}

/// Prints each change: on a terminal as a table that is redrawn, elsewhere as lines.
struct Screen {
    live: bool,
    shown: Vec<Rollout>,
    waiting: Option<String>,
}

impl Screen {
    fn new() -> Screen {
        Screen { live: std::io::stdout().is_terminal(), shown: Vec::new(), waiting: None }
    }

    /// Prints the progress if it has changed: on a terminal over the old table, else the lines that
    /// differ.
    fn show(&mut self, rollouts: &[Rollout]) -> std::io::Result<()> {
        if self.shown == rollouts {
            return Ok(());
        }
        let mut text = String::new();
        if self.live {
            if !self.shown.is_empty() {
                let lines = self.shown.len() + 1 + usize::from(self.waiting.is_some());
                let _ = write!(text, "\x1b[{lines}A\x1b[J");
            }
            let _ = writeln!(
                text,
                "{:<32} {:>8} {:>11} {:>10}",
                "WORKLOAD", "READY", "UP-TO-DATE", "DONE"
            );
            for r in rollouts {
                let ready = format!("{}/{}", r.ready, r.wanted);
                let _ =
                    writeln!(text, "{:<32} {ready:>8} {:>11} {:>10}", r.name, r.created, r.done);
            }
        } else {
            for rollout in rollouts.iter().filter(|rollout| !self.shown.contains(rollout)) {
                let _ = writeln!(text, "{}", rollout.line());
            }
        }
        let waiting = waits_for(rollouts);
        if let Some(what) =
            waiting.as_ref().filter(|what| self.live || self.waiting.as_ref() != Some(*what))
        {
            let _ = writeln!(text, "waiting for {what}");
        }
        self.waiting = waiting;
        self.shown = rollouts.to_vec();
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}
