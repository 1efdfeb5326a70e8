//! The demo: applies a fixture to a fresh cluster and shows the rollout.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use crate::SandboxOptions;
use crate::cluster::{Cluster, Manager, ManagerProgram};
use crate::front::Front;
use crate::nodes::NodeOptions;
use kube_controller_manager::client::{Client, ListOptions};
use kube_controller_manager::objects::{Deployment, ObjectKey, ResourceType};
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
    /// Whether to end when the fixture's Deployments have rolled out.
    pub once: bool,
    /// The time-out of the rollout.
    pub patience: Duration,
}

const BUILT_IN: &str = include_str!("../../fixtures/demo.yaml");
const POLL: Duration = Duration::from_millis(100);

impl Demo {
    /// Runs until done (`once`) or stopped. The error names what did not converge.
    pub async fn run(self, stop: StopToken) -> Result<()> {
        let objects = match &self.fixture {
            None => parse("the built-in fixture", BUILT_IN)?,
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| format!("--fixture {}: {error}", path.display()))?;
                parse(&path.display().to_string(), &text)?
            }
        };
        let cluster = Cluster::start(self.sandbox, self.nodes).await?;
        println!("API server   {}", cluster.sandbox.client_config().server);
        println!("kubeconfig   {}", cluster.kubeconfig().display());
        let front = Front::start(cluster.sandbox.client_config(), &cluster.clock()).await?;
        // Flags of the command line come last, so that they take precedence.
        let flags = [front.manager_flags(), self.manager_flags].concat();
        let kubeconfig = cluster.manager_kubeconfig();
        let mut manager =
            Manager::spawn(&self.manager, &kubeconfig, "kube-controller-manager", &flags)?;
        println!("manager log  {}", manager.log.display());
        println!("pipeline     {}", front.page("pipeline"));
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
            let rollouts = rollouts(&cluster.client, &objects).await?;
            screen.show(&rollouts)?;
            if rollouts.iter().all(Rollout::complete) {
                break Ok(());
            }
            if cluster.clock().monotonic() > give_up {
                let late: Vec<String> =
                    rollouts.iter().filter(|r| !r.complete()).map(Rollout::line).collect();
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
                println!(
                    "rolled out. Try: kubectl --kubeconfig {} get all -A   (Ctrl-C ends)",
                    cluster.kubeconfig().display()
                );
                watch_manager(&mut manager, &cluster, &stop).await
            }
            Ok(()) => {
                println!("rolled out.");
                Ok(())
            }
            Err(error) => Err(error),
        };
        let status = manager.stop(&cluster.clock(), Duration::from_secs(15)).await?;
        front.stop().await;
        cluster.stop().await;
        outcome?;
        if !status.success() {
            return Err(format!("the controller manager did not stop cleanly: {status}").into());
        }
        Ok(())
    }
}

async fn watch_manager(manager: &mut Manager, cluster: &Cluster, stop: &StopToken) -> Result<()> {
    while !stop.is_stopped() {
        if let Some(status) = manager.ended()? {
            return Err(format!("the controller manager ended: {status}").into());
        }
        stop.unless_stopped(cluster.clock().sleep(Duration::from_millis(500))).await;
    }
    Ok(())
}

fn parse(name: &str, text: &str) -> Result<Vec<Value>> {
    let documents = serde_yaml_ng::Deserializer::from_str(text);
    let objects = documents
        .map(Value::deserialize)
        .filter(|document| !matches!(document, Ok(Value::Null)))
        .collect::<std::result::Result<Vec<Value>, _>>()
        .map_err(|error| format!("{name}: {error}"))?;
    Ok(objects)
}

/// Creates one object of a fixture; returns the line to print.
async fn create(client: &Client, object: &Value) -> Result<String> {
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
    Ok(format!("{}/{name} created", resource.to_string().to_lowercase()))
}

/// The progress of a Deployment's rollout.
#[derive(Clone, PartialEq)]
struct Rollout {
    key: ObjectKey,
    wanted: i32,
    updated: i32,
    total: i32,
    ready: i32,
    available: i32,
    observed: bool,
}

impl Rollout {
    fn of(deployment: &Deployment) -> Rollout {
        let status = &deployment.status;
        Rollout {
            key: deployment.meta.key(),
            wanted: deployment.replicas(),
            updated: status.updated_replicas.unwrap_or(0),
            total: status.replicas.unwrap_or(0),
            ready: status.ready_replicas.unwrap_or(0),
            available: status.available_replicas.unwrap_or(0),
            observed: status.observed_generation == Some(deployment.meta.generation),
        }
    }

    fn complete(&self) -> bool {
        self.observed
            && [self.updated, self.total, self.available].iter().all(|count| *count == self.wanted)
    }

    fn line(&self) -> String {
        format!(
            "{}: {}/{} ready, {} up to date, {} available",
            self.key, self.ready, self.wanted, self.updated, self.available
        )
    }
}

async fn rollouts(client: &Client, objects: &[Value]) -> Result<Vec<Rollout>> {
    let named = |deployment: &Deployment| {
        objects.iter().any(|object| {
            object["kind"] == "Deployment"
                && object["metadata"]["name"] == *deployment.meta.name
                && object["metadata"]["namespace"].as_str().unwrap_or("default")
                    == deployment.meta.namespace.as_str()
        })
    };
    let all: Vec<Deployment> = client.list(None, &ListOptions::default()).await?;
    Ok(all.iter().filter(|deployment| named(deployment)).map(Rollout::of).collect())
}

/// What the rollouts wait for now; `None` when all are complete.
fn waits_for(rollouts: &[Rollout]) -> Option<String> {
    if let Some(unseen) = rollouts.iter().find(|rollout| !rollout.observed) {
        return Some(format!("the controller manager to observe {}", unseen.key));
    }
    type Count = fn(&Rollout) -> i32;
    let sum = |count: Count| rollouts.iter().map(count).sum::<i32>();
    let wanted = sum(|rollout| rollout.wanted);
    let stages: [(Count, &str); 3] = [
        (|rollout| rollout.updated, "created"),
        (|rollout| rollout.ready, "ready"),
        (|rollout| rollout.available, "available"),
    ];
    let late = stages.iter().find(|(count, _)| sum(*count) < wanted);
    late.map(|(count, stage)| format!("pods to be {stage} ({} of {wanted})", sum(*count))).or_else(
        || {
            let rest = rollouts.iter().find(|rollout| !rollout.complete())?;
            Some(format!("old pods of {} to go", rest.key))
        },
    )
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
                "DEPLOYMENT", "READY", "UP-TO-DATE", "AVAILABLE"
            );
            for r in rollouts {
                let ready = format!("{}/{}", r.ready, r.wanted);
                let name = r.key.to_string();
                let _ =
                    writeln!(text, "{name:<32} {ready:>8} {:>11} {:>10}", r.updated, r.available);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_names_its_cause() {
        let rollout = |observed, [updated, total, ready, available]: [i32; 4]| Rollout {
            key: ObjectKey::new("ns", "web"),
            wanted: 3,
            updated,
            total,
            ready,
            available,
            observed,
        };
        for (observed, counts, expected) in [
            (false, [0, 0, 0, 0], Some("the controller manager to observe ns/web")),
            (true, [1, 1, 0, 0], Some("pods to be created (1 of 3)")),
            (true, [3, 3, 2, 0], Some("pods to be ready (2 of 3)")),
            (true, [3, 3, 3, 0], Some("pods to be available (0 of 3)")),
            (true, [3, 4, 3, 3], Some("old pods of ns/web to go")),
            (true, [3, 3, 3, 3], None),
        ] {
            let waiting = waits_for(&[rollout(observed, counts)]);
            assert_eq!(waiting.as_deref(), expected, "{counts:?}");
        }
    }
}
