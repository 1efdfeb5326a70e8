//! The load of a large cluster: Deployments and Services in many namespaces, Jobs that come and go,
//! and namespaces of which one in ten is deleted at once.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::manager_process::ManagerProcess;
use super::objects::template;
use super::{NAMESPACE, POLL, Result, Run};
use kube_controller_manager::cache::{Lister, SharedInformerFactory};
use kube_controller_manager::client::Delete;
use kube_controller_manager::objects::{Deployment, Job, Namespace, ObjectKey, Resource, Service};
use kube_controller_manager::source::ClientSource;
use kube_controller_manager::task::StopToken;

/// One in this number of namespaces is deleted.
const DELETED: usize = 10;
/// What the pods of the Jobs do.
const SCRIPT: &str = "sleep 5; exit 0";
/// How long a finished Job stays.
const TTL_SECONDS: u32 = 60;

/// The load's objects on the API server, kept up to date by watches: to list thousands of them at
/// each poll would cost the server more than the manager does.
pub(super) struct Seen {
    factory: SharedInformerFactory,
    stop: StopToken,
    deployments: Lister<Deployment>,
    jobs: Lister<Job>,
    namespaces: Lister<Namespace>,
}

impl Seen {
    /// Begins to watch Deployments, Jobs and namespaces.
    fn watch(run: &Run) -> Seen {
        let source = ClientSource::new(run.client.clone());
        let factory = SharedInformerFactory::new(source, run.clock.clone());
        let stop = StopToken::new();
        let deployments = factory.informer::<Deployment>().lister();
        let jobs = factory.informer::<Job>().lister();
        let namespaces = factory.informer::<Namespace>().lister();
        factory.start(&stop);
        Seen { factory, stop, deployments, jobs, namespaces }
    }

    pub fn deployments(&self) -> Vec<Arc<Deployment>> {
        self.deployments.list()
    }

    /// Returns the Jobs that have not finished.
    fn running_jobs(&self) -> usize {
        self.jobs.list().iter().filter(|job| job.status.completion_time.is_none()).count()
    }

    pub async fn stop(self) {
        self.stop.stop();
        self.factory.shutdown().await;
    }
}

/// Returns the name of the `n`th namespace over which a load is spread.
pub(super) fn namespace_name(n: usize) -> String {
    format!("{NAMESPACE}-{n}")
}

impl Run {
    /// Runs the phases of a load over many namespaces, after the empty cluster.
    pub(super) async fn spread(
        &mut self,
        mut manager: ManagerProcess,
        idle: Duration,
    ) -> Result<()> {
        self.seen = Some(Seen::watch(self));
        self.phase("namespaces and Services");
        let mark = self.start_mark(Some(&manager))?;
        for n in 0..self.size.namespaces {
            self.create_namespace(&namespace_name(n)).await?;
        }
        for n in 0..self.size.services {
            let key = self.deployment_key(n % self.size.deployments.max(1));
            let body = service(&format!("service-{n}"), &key.name);
            self.create(&Service::RESOURCE, &key.namespace, &body).await?;
        }
        self.wait_until_settled(&mut manager).await?;
        self.add_row("namespaces, Services", &manager, mark).await?;

        if self.size.deployments > 0 {
            manager = self.deployments(manager, idle).await?;
        }
        if self.size.jobs > 0 {
            self.jobs(&mut manager).await?;
        }
        if self.size.storm > 0 {
            self.storm(&mut manager).await?;
        }
        self.phase("deletion of one namespace in ten");
        let some = (0..self.size.namespaces).step_by(DELETED).collect();
        self.delete_spread(&mut manager, some, "a tenth deleted").await?;
        if self.server.sandbox().is_none() {
            // Another server is left as it was found.
            self.phase("deletion of the other namespaces");
            let all = (0..self.size.namespaces).filter(|n| !n.is_multiple_of(DELETED)).collect();
            self.delete_spread(&mut manager, all, "all deleted").await?;
            self.delete_namespace(&mut manager).await?;
        }
        self.end(manager).await
    }

    /// Creates Jobs at a steady pace, and waits until the last has finished.
    async fn jobs(&mut self, manager: &mut ManagerProcess) -> Result<()> {
        self.phase("Jobs");
        let mark = self.start_mark(Some(manager))?;
        let begun = self.clock.monotonic();
        let whole = Duration::from_secs(60 * self.size.minutes as u64);
        let step = whole.div_f64(self.size.jobs as f64);
        for n in 0..self.size.jobs {
            let due = begun + step.mul_f64(n as f64);
            let now = self.clock.monotonic();
            if due > now {
                self.clock.sleep(due - now).await;
                self.check_alive(manager)?;
            }
            let namespace = namespace_name(n % self.size.namespaces);
            self.create(&Job::RESOURCE, &namespace, &job(n)).await?;
        }
        // The watch shows the last Job before the wait begins.
        let last = ObjectKey::new(
            &namespace_name((self.size.jobs - 1) % self.size.namespaces),
            &job_name(self.size.jobs - 1),
        );
        self.wait_until_seen(manager, "the last Job", |seen| seen.jobs.get(&last).is_some())
            .await?;
        self.wait_until_seen(manager, "all Jobs have finished", |seen| seen.running_jobs() == 0)
            .await?;
        self.add_row("Jobs finished", manager, mark).await
    }

    /// Deletes these namespaces, and measures until they are gone and then until the manager is at
    /// rest.
    async fn delete_spread(
        &mut self,
        manager: &mut ManagerProcess,
        which: Vec<usize>,
        row: &str,
    ) -> Result<()> {
        let mark = self.start_mark(Some(manager))?;
        let keys: Vec<ObjectKey> =
            which.into_iter().map(|n| ObjectKey::cluster(&namespace_name(n))).collect();
        for key in &keys {
            self.client.delete::<Namespace>(key, Delete::new()).await?;
        }
        let are_gone = |seen: &Seen| keys.iter().all(|key| seen.namespaces.get(key).is_none());
        self.wait_until_seen(manager, "the namespaces are gone", are_gone).await?;
        self.add_row(row, manager, mark).await?;
        let mark = self.start_mark(Some(manager))?;
        self.wait_until_settled(manager).await?;
        self.add_row(&format!("settled, {row}"), manager, mark).await
    }

    /// Waits until `done` returns true for what the informers have seen. Fails when the manager
    /// ends, or after the patience. Without informers it does not wait.
    async fn wait_until_seen(
        &self,
        manager: &mut ManagerProcess,
        what: &str,
        done: impl Fn(&Seen) -> bool,
    ) -> Result<()> {
        let give_up = self.clock.monotonic() + self.patience;
        loop {
            self.check_alive(manager)?;
            if self.seen.as_ref().is_none_or(&done) {
                return Ok(());
            }
            if self.clock.monotonic() > give_up {
                return Err(format!("{what}: not after {:?}", self.patience).into());
            }
            self.clock.sleep(POLL).await;
        }
    }
}

/// Builds a Service that selects the pods of `app`.
fn service(name: &str, app: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
        "spec": {
            "selector": { "app": app },
            "ports": [{ "name": "http", "port": 80, "targetPort": "http", "protocol": "TCP" }],
        },
    })
}

fn job_name(n: usize) -> String {
    format!("job-{n}")
}

/// Builds the Job with this number: one pod that ends by itself, and a time to live.
fn job(n: usize) -> Value {
    let mut template = template(&job_name(n), n);
    template["metadata"]["annotations"] = json!({ "sandbox/run": SCRIPT });
    template["spec"]["restartPolicy"] = "Never".into();
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": job_name(n) },
        "spec": { "ttlSecondsAfterFinished": TTL_SECONDS, "template": template },
    })
}
