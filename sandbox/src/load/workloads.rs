//! A Job and DaemonSets: pods that their controllers make, without ReplicaSets in between.

use serde_json::{Value, json};

use super::manager_process::ManagerProcess;
use super::objects::template;
use super::{NAMESPACE, POLL, Result, Run};
use kube_controller_manager::client::Patch;
use kube_controller_manager::objects::{DaemonSet, Job, ObjectKey, Resource, ResourceType};

/// Long enough that most pods of the Job exist before the first ends.
const RUN: &str = "sleep 20; exit 0";

impl Run {
    /// Measures a Job whose pods all run at once, until it is complete.
    pub(super) async fn job(&mut self, manager: &mut ManagerProcess, pods: usize) -> Result<()> {
        self.phase("Job");
        let mark = self.start_mark(Some(manager))?;
        self.create(&Job::RESOURCE, NAMESPACE, &job(pods)).await?;
        let exist = |job: &Value| {
            let count = |field: &str| job["status"][field].as_u64().unwrap_or(0);
            (count("active") + count("succeeded")) as usize >= pods
        };
        self.wait_for_object(manager, &Job::RESOURCE, "job", exist).await?;
        let existing = self.start_mark(Some(manager))?;
        self.add_row("pods of the Job exist", manager, mark).await?;
        let complete = |job: &Value| job["status"]["completionTime"].is_string();
        self.wait_for_object(manager, &Job::RESOURCE, "job", complete).await?;
        self.add_row("Job complete", manager, existing).await?;
        let mark = self.start_mark(Some(manager))?;
        self.wait_until_settled(manager).await?;
        self.add_row("settled, Job complete", manager, mark).await
    }

    /// Measures DaemonSets on all nodes, one after the other, and a rollout of each.
    pub(super) async fn daemon_sets(
        &mut self,
        manager: &mut ManagerProcess,
        count: usize,
    ) -> Result<()> {
        let nodes = self.report.nodes as u64;
        let available = |set: &Value| {
            let status = &set["status"];
            status["observedGeneration"] == set["metadata"]["generation"]
                && ["desiredNumberScheduled", "updatedNumberScheduled", "numberAvailable"]
                    .iter()
                    .all(|field| status[field] == nodes)
        };
        for n in 0..count {
            let name = format!("daemon-{n}");
            self.phase("DaemonSet");
            let mark = self.start_mark(Some(manager))?;
            self.create(&DaemonSet::RESOURCE, NAMESPACE, &daemon_set(&name)).await?;
            self.wait_for_object(manager, &DaemonSet::RESOURCE, &name, available).await?;
            self.add_row("DaemonSet available", manager, mark).await?;
            let mark = self.start_mark(Some(manager))?;
            let annotations = json!({ "annotations": { "version": "2" } });
            let change = json!({ "spec": { "template": { "metadata": annotations } } });
            let key = ObjectKey::new(NAMESPACE, &name);
            self.client.patch::<DaemonSet>(&key, &Patch::Merge(change)).await?;
            self.wait_for_object(manager, &DaemonSet::RESOURCE, &name, available).await?;
            self.add_row("DaemonSet rolled out", manager, mark).await?;
        }
        Ok(())
    }

    /// Waits until `done` returns true for the object. Fails when the manager ends, or after the
    /// patience.
    async fn wait_for_object(
        &self,
        manager: &mut ManagerProcess,
        resource: &ResourceType,
        name: &str,
        done: impl Fn(&Value) -> bool,
    ) -> Result<()> {
        let (verbs, key) = (self.client.resource(resource), ObjectKey::new(NAMESPACE, name));
        let give_up = self.clock.monotonic() + self.patience;
        loop {
            self.check_alive(manager)?;
            let object: Value = verbs.get(&key).await?;
            if done(&object) {
                return Ok(());
            }
            if self.clock.monotonic() > give_up {
                let status = &object["status"];
                return Err(format!("{name}: not after {:?}: {status}", self.patience).into());
            }
            self.clock.sleep(POLL).await;
        }
    }
}

/// Builds a Job whose pods all run at the same time, each until it ends by itself.
fn job(pods: usize) -> Value {
    let mut template = template("job", 0);
    template["metadata"]["annotations"] = json!({ "sandbox/run": RUN });
    template["spec"]["restartPolicy"] = "Never".into();
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "job" },
        "spec": { "parallelism": pods, "completions": pods, "template": template },
    })
}

/// Builds a DaemonSet that updates a tenth of its pods at a time.
fn daemon_set(name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "name": name },
        "spec": {
            "selector": { "matchLabels": { "app": name } }, "template": template(name, 0),
            "updateStrategy": {
                "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": "10%" },
            },
        },
    })
}
