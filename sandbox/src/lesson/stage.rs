//! The cluster of a lesson, its managers, and the person who changes things.

use std::time::Duration;

use serde_json::{Value, json};

use super::Result;
use super::screen::Screen;
use super::trace_log::{Find, Line, TraceLog};
use crate::api::faults::Fault;
use crate::cluster::{Cluster, Manager, ManagerProgram};
use crate::rollout::Rollout;
use kube_controller_manager::client::{Client, ListOptions, Patch};
use kube_controller_manager::objects::{
    Deployment, ObjectKey, Pod, ReplicaSet, Resource, ResourceType,
};
use kube_controller_manager::task::StopToken;

/// The traced Deployment.
pub const WEB: &str = "Deployment/default/web";
/// The managers' lease.
pub const LEASE: &str = "Lease/kube-system/kube-controller-manager";
const POLL: Duration = Duration::from_millis(50);

/// A manager and its trace.
pub struct Actor {
    manager: Manager,
    pub log: TraceLog,
}

pub struct Stage {
    pub cluster: Cluster,
    pub program: ManagerProgram,
    /// The user's flags for the managers.
    pub flags: Vec<String>,
    pub screen: Screen,
    pub stop: StopToken,
    pub patience: Duration,
}

impl Stage {
    /// Starts a manager that traces the Deployment and the lease. `name`: the name of its log.
    pub fn manager(&self, name: &str, flags: &[&str]) -> Result<Actor> {
        let mut all = vec![format!("--trace-object={WEB},{LEASE}")];
        all.extend(flags.iter().map(|flag| (*flag).to_owned()));
        all.extend(self.flags.iter().cloned());
        let kubeconfig = self.cluster.manager_kubeconfig();
        let manager = Manager::spawn(&self.program, &kubeconfig, name, &all)?;
        let log = TraceLog::new(&manager.log);
        Ok(Actor { manager, log })
    }

    pub async fn stop_manager(&self, actor: Actor) -> Result<()> {
        let status = actor.manager.stop(&self.cluster.clock(), self.patience).await?;
        match status.success() {
            true => Ok(()),
            false => Err(format!("the controller manager did not stop cleanly: {status}").into()),
        }
    }

    /// Waits until the manager has ended by itself, and returns its exit code; `None`: a signal has
    /// ended it.
    pub async fn wait_for_end(&self, actor: &mut Actor) -> Result<Option<i32>> {
        let give_up = self.cluster.clock().monotonic() + self.patience;
        loop {
            if let Some(status) = actor.manager.ended()? {
                return Ok(status.code());
            }
            self.wait(give_up, "the end of the manager").await?;
        }
    }

    /// Waits for a line of the trace that matches `find`, and returns it. Fails when the manager
    /// ends, or after the patience.
    pub async fn find(&self, actor: &mut Actor, find: Find) -> Result<Line> {
        let give_up = self.cluster.clock().monotonic() + self.patience;
        loop {
            let ended = actor.manager.ended()?;
            if let Some(line) = actor.log.find(&find)? {
                return Ok(line);
            }
            let log = actor.manager.log.display();
            if let Some(status) = ended {
                return Err(format!("the controller manager ended ({status}), see {log}").into());
            }
            let what = format!("the station `{}` in {log}", find.describe());
            self.wait(give_up, &what).await?;
        }
    }

    /// Waits for a line of the trace and shows it as the next step.
    pub async fn step(
        &mut self,
        actor: &mut Actor,
        title: &str,
        find: Find,
        says: &str,
    ) -> Result<Line> {
        let line = self.find(actor, find).await?;
        self.screen.step(title, &line, says)?;
        self.screen.pause(&self.stop).await?;
        Ok(line)
    }

    /// Pauses once in a wait that ends with an error at `give_up`, or when the lesson is stopped.
    async fn wait(&self, give_up: Duration, what: &str) -> Result<()> {
        let clock = self.cluster.clock();
        if clock.monotonic() > give_up {
            return Err(format!("not within {:?}: {what}", self.patience).into());
        }
        match self.stop.unless_stopped(clock.sleep(POLL)).await {
            Some(()) => Ok(()),
            None => Err("stopped".into()),
        }
    }

    fn client(&self) -> &Client {
        &self.cluster.client
    }

    /// Creates the Deployment `web` of one pod, and waits until it is rolled out.
    pub async fn create_web(&self, actor: &mut Actor) -> Result<()> {
        let web = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": "web", "namespace": "default" },
            "spec": {
                "replicas": 1,
                "selector": { "matchLabels": { "app": "web" } },
                "template": {
                    "metadata": { "labels": { "app": "web" } },
                    "spec": { "containers": [{ "name": "main", "image": "web:1" }] },
                },
            },
        });
        let deployments = self.client().resource(&Deployment::RESOURCE);
        deployments.create::<Value>("default", &web).await?;
        self.wait_until_rolled_out(actor).await
    }

    /// Waits until the pods of the Deployment are those of its ReplicaSet and available.
    pub async fn wait_until_rolled_out(&self, actor: &mut Actor) -> Result<()> {
        let give_up = self.cluster.clock().monotonic() + self.patience;
        loop {
            if let Some(status) = actor.manager.ended()? {
                let log = actor.manager.log.display();
                return Err(format!("the controller manager ended ({status}), see {log}").into());
            }
            let web = self.read(&Deployment::RESOURCE, "web").await?;
            let rollout = Rollout::of("Deployment", &web);
            let sets = self.list(&ReplicaSet::RESOURCE).await?;
            let pods = self.list(&Pod::RESOURCE).await?;
            let is_at_rest = |set: &Value| {
                let owner = |pod: &Value| pod["metadata"]["ownerReferences"][0]["uid"].clone();
                set["status"]["readyReplicas"] == web["spec"]["replicas"]
                    && pods.iter().all(|pod| owner(pod) == set["metadata"]["uid"])
                    && pods.len() as i64 == rollout.wanted
            };
            if rollout.is_complete() && sets.len() == 1 && is_at_rest(&sets[0]) {
                return Ok(());
            }
            self.wait(give_up, &rollout.line()).await?;
        }
    }

    async fn list(&self, resource: &ResourceType) -> Result<Vec<Value>> {
        let all = self.client().resource(resource);
        Ok(all.list::<Value>(Some("default"), &ListOptions::default()).await?.items)
    }

    pub async fn read(&self, resource: &ResourceType, name: &str) -> Result<Value> {
        Ok(self.client().resource(resource).get(&ObjectKey::new("default", name)).await?)
    }

    /// Changes an object as a user does; returns its new version.
    pub async fn merge(&self, resource: &ResourceType, name: &str, patch: Value) -> Result<String> {
        let (resource, key) = (self.client().resource(resource), ObjectKey::new("default", name));
        let changed: Value = resource.patch(&key, &Patch::Merge(patch)).await?;
        version(&changed)
    }

    /// Annotates an object, which changes nothing but its version. Two in one second differ too.
    pub async fn annotate(&self, resource: &ResourceType, name: &str) -> Result<String> {
        let now = self.cluster.clock().now().to_micro_string();
        let note = json!({ "metadata": { "annotations": { "lesson/at": now } } });
        self.merge(resource, name, note).await
    }

    /// Annotates an object until the manager's watch has delivered it as an event: a watch that has
    /// carried an event and breaks is resumed, where a new and idle one would count as failed.
    pub async fn warm_watch(
        &self,
        actor: &mut Actor,
        resource: &ResourceType,
        name: &str,
    ) -> Result<()> {
        loop {
            let version = self.annotate(resource, name).await?;
            let seen = format!("{} default/{name} version={version} ", resource.kind);
            let line = self.find(actor, Find::station("received").with(seen)).await?;
            // A list delivers objects as added.
            if line.field("event") == Some("modified") {
                return Ok(());
            }
        }
    }

    /// Cuts all watches and holds the next one of `plural` until the faults are cleared.
    pub async fn hold_watch(&self, plural: &str) -> Result<()> {
        let faults = self.cluster.sandbox.faults().clone();
        let before = faults.count("watch", plural);
        faults.next(usize::MAX, "watch", plural, Fault::Hold);
        faults.cut_watches();
        let give_up = self.cluster.clock().monotonic() + self.patience;
        while faults.count("watch", plural) == before {
            self.wait(give_up, &format!("a new watch of {plural}")).await?;
        }
        Ok(())
    }

    pub fn clear_faults(&self) {
        self.cluster.sandbox.faults().clear();
    }

    /// Returns the name of the Deployment's ReplicaSet, and of one of its pods.
    pub async fn replica_set_and_pod(&self) -> Result<(String, String)> {
        let first = async |resource: ResourceType| -> Result<String> {
            let all = self.list(&resource).await?;
            let name = all.first().and_then(|one| one["metadata"]["name"].as_str());
            Ok(name.ok_or_else(|| format!("web has no {}", resource.kind))?.to_owned())
        };
        Ok((first(ReplicaSet::RESOURCE).await?, first(Pod::RESOURCE).await?))
    }
}

fn version(object: &Value) -> Result<String> {
    let version = object["metadata"]["resourceVersion"].as_str();
    Ok(version.ok_or("an object without resourceVersion")?.to_owned())
}
