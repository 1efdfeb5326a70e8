//! Carries out the work of a plan, as an administrator directly at the API server.

use std::time::Duration;

use serde_json::{Value, json};

use super::Result;
use super::plan::{Change, Work};
use super::workload::{self, CONFIG_MAPS, DEPENDENT, JOBS, NAMESPACE, NAMESPACES, PODS_KIND, Part};
use crate::object::{is_deleting, list, text};
use kube_controller_manager::client::{
    self, Client, Delete, Error, ListOptions, Patch, Propagation,
};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::{ObjectKey, Resource, ResourceType, StorageClass};

/// How often a request that meets a fault is made, and the pause before it is repeated.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(150);
/// The dependents of an owner.
const DEPENDENTS: u32 = 3;
/// Which of the owners of the same dependents is deleted.
const FIRST_OWNER: u32 = 0;

/// Changes the objects.
pub struct Administrator {
    pub client: Client,
    pub clock: SharedClock,
}

/// What happened to a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    Done,
    /// The object is missing, the namespace is being deleted, a quota or a budget is exhausted.
    Refused,
}

impl Administrator {
    /// Creates what a soak needs beside its namespaces.
    pub async fn prepare(&self) -> Result<()> {
        Ok(self.create(&StorageClass::RESOURCE, "", &workload::class()).await?)
    }

    /// Makes one change as an administrator does. A failure counts as a refusal, and is logged.
    pub async fn carry_out(&self, work: &Work) -> Outcome {
        let namespace = workload::namespace_name(work.namespace);
        match self.make_change(&namespace, &work.change).await {
            Ok(()) => Outcome::Done,
            Err(error) => {
                log::debug!("{namespace}: {:?}: {error}", work.change);
                Outcome::Refused
            }
        }
    }

    /// Sends the requests of one change in `namespace`; sends nothing where the pod to evict or
    /// delete does not exist.
    async fn make_change(&self, namespace: &str, change: &Change) -> client::Result<()> {
        let key = |name: &str| ObjectKey::new(namespace, name);
        match change {
            Change::Ensure(part) => self.ensure(namespace, *part).await,
            Change::Delete(part, propagation) => {
                self.delete(part.resource(), &key(part.name()), with(*propagation)).await
            }
            Change::Scale(part, replicas) => {
                let patch = json!({ "spec": { "replicas": replicas } });
                self.patch(part.resource(), &key(part.name()), patch).await
            }
            Change::Roll(part, version) => {
                let name = part.name();
                let image = workload::image(name, *version);
                let containers = json!([{ "name": name, "image": image }]);
                let spec = json!({ "containers": containers });
                let patch = json!({ "spec": { "template": { "spec": spec } } });
                self.patch(part.resource(), &key(name), patch).await
            }
            Change::StartJob(number, shape) => {
                self.create(&JOBS, namespace, &workload::job(*number, shape)).await
            }
            Change::DeleteJob(number) => {
                let key = key(&format!("job-{number}"));
                self.delete(&JOBS, &key, Delete::background()).await
            }
            Change::Evict(nth) => {
                let Some(pod) = self.nth_pod(namespace, *nth, "web").await? else { return Ok(()) };
                let eviction = json!({
                    "apiVersion": "policy/v1", "kind": "Eviction",
                    "metadata": { "namespace": namespace, "name": pod },
                });
                let pods = self.client.resource(&PODS_KIND).subresource("eviction");
                // Not repeated: 429 is the budget's answer.
                pods.create_for::<Value>(&key(&pod), &eviction).await.map(drop)
            }
            Change::DeletePod { nth, at_once } => {
                let Some(pod) = self.nth_pod(namespace, *nth, "").await? else { return Ok(()) };
                let delete = Delete::new();
                let delete = if *at_once { delete.grace_period(0) } else { delete };
                self.delete(&PODS_KIND, &key(&pod), delete).await
            }
            Change::Own { owner, owners } => self.create_owned(namespace, *owner, *owners).await,
            Change::DeleteOwner(owner, propagation) => {
                let key = key(&workload::owner_name(*owner, FIRST_OWNER));
                self.delete(&CONFIG_MAPS, &key, with(*propagation)).await
            }
            Change::DeleteNamespace => {
                self.delete(&NAMESPACE, &ObjectKey::cluster(namespace), Delete::new()).await
            }
            Change::EnsureNamespace => self.fill(namespace).await,
        }
    }

    /// Creates a namespace with all its parts, where they are missing.
    pub async fn fill(&self, namespace: &str) -> client::Result<()> {
        self.create(&NAMESPACE, "", &workload::namespace(namespace)).await?;
        for part in Part::ALL {
            self.ensure(namespace, part).await?;
        }
        Ok(())
    }

    /// Brings all namespaces to the state in which a soak begins and ends, apart from Jobs. Returns
    /// false if a part is still being deleted: the rest is not done, and the caller tries again.
    pub async fn restore(&self) -> client::Result<bool> {
        for namespace in (0..NAMESPACES).map(workload::namespace_name) {
            self.fill(&namespace).await?;
            for part in Part::ALL {
                let key = ObjectKey::new(&namespace, part.name());
                let object: Value = self.client.resource(part.resource()).get(&key).await?;
                if is_deleting(&object) {
                    return Ok(false);
                }
                let Some(replicas) = part.replicas() else { continue };
                self.make_change(&namespace, &Change::Scale(part, replicas)).await?;
            }
            let dependents = format!("{DEPENDENT}=true");
            let selected =
                ListOptions { label_selector: Some(dependents), ..ListOptions::default() };
            let maps = self.client.resource(&CONFIG_MAPS);
            maps.delete_collection(Some(&namespace), Delete::background(), &selected).await?;
        }
        Ok(true)
    }

    /// Deletes all Jobs that are not a CronJob's.
    pub async fn delete_jobs(&self) -> client::Result<()> {
        let (jobs, all) = (self.client.resource(&JOBS), ListOptions::default());
        for namespace in (0..NAMESPACES).map(workload::namespace_name) {
            for job in jobs.list::<Value>(Some(&namespace), &all).await?.items {
                if list(&job, "/metadata/ownerReferences").is_empty() {
                    let key = ObjectKey::new(&namespace, text(&job, "/metadata/name"));
                    self.delete(&JOBS, &key, Delete::background()).await?;
                }
            }
        }
        Ok(())
    }

    async fn ensure(&self, namespace: &str, part: Part) -> client::Result<()> {
        self.create(part.resource(), namespace, &part.object()).await
    }

    /// Creates owners, and dependents that all of them own.
    async fn create_owned(&self, namespace: &str, owner: u32, owners: u32) -> client::Result<()> {
        let maps = self.client.resource(&CONFIG_MAPS);
        let mut references = Vec::new();
        for nth in 0..owners {
            let name = workload::owner_name(owner, nth);
            self.create(&CONFIG_MAPS, namespace, &workload::config_map(&name, &[])).await?;
            let key = ObjectKey::new(namespace, &name);
            let created: Value = self.retry(|| maps.get(&key)).await?;
            references.push((name, text(&created, "/metadata/uid").to_owned()));
        }
        for nth in 0..DEPENDENTS {
            let name = format!("dependent-{owner}-{nth}");
            let object = workload::config_map(&name, &references);
            self.create(&CONFIG_MAPS, namespace, &object).await?;
        }
        Ok(())
    }

    /// Returns the name of the `nth` pod that is not being deleted; after the last pod the first
    /// follows. `None`: there is no such pod. `app`: the label of the pods; empty: all pods but
    /// those of Jobs.
    async fn nth_pod(
        &self,
        namespace: &str,
        nth: usize,
        app: &str,
    ) -> client::Result<Option<String>> {
        let (pods, all) = (self.client.resource(&PODS_KIND), ListOptions::default());
        let pods = self.retry(|| pods.list::<Value>(Some(namespace), &all)).await?;
        let label = |pod: &Value| text(pod, "/metadata/labels/app").to_owned();
        let is_job = |pod: &Value| {
            list(pod, "/metadata/ownerReferences").iter().any(|it| it["kind"] == "Job")
        };
        let chosen = pods.items.iter().filter(|pod| {
            let is_wanted = if app.is_empty() { !is_job(pod) } else { label(pod) == app };
            is_wanted && !is_deleting(pod)
        });
        let names: Vec<&str> = chosen.map(|pod| text(pod, "/metadata/name")).collect();
        Ok(names.get(nth % names.len().max(1)).map(|name| (*name).to_owned()))
    }

    /// Creates an object. An object that exists already is left as it is.
    async fn create(
        &self,
        resource: &ResourceType,
        namespace: &str,
        object: &Value,
    ) -> client::Result<()> {
        let verbs = self.client.resource(resource);
        match self.retry(|| verbs.create::<Value>(namespace, object)).await {
            Err(error) if !error.is_already_exists() => Err(error),
            _ => Ok(()),
        }
    }

    /// Merges a patch into an object.
    async fn patch(
        &self,
        resource: &ResourceType,
        key: &ObjectKey,
        patch: Value,
    ) -> client::Result<()> {
        let (verbs, patch) = (self.client.resource(resource), Patch::Merge(patch));
        self.retry(|| verbs.patch::<Value>(key, &patch)).await.map(drop)
    }

    /// Deletes an object.
    async fn delete(
        &self,
        resource: &ResourceType,
        key: &ObjectKey,
        delete: Delete,
    ) -> client::Result<()> {
        let verbs = self.client.resource(resource);
        self.retry(|| verbs.delete(key, delete.clone())).await
    }

    /// Sends a request, again and again while it meets faults, `TRIES` times at most.
    async fn retry<T, F>(&self, request: impl Fn() -> F) -> client::Result<T>
    where
        F: Future<Output = client::Result<T>>,
    {
        for _ in 1..TRIES {
            match request().await {
                Err(error) if is_passing(&error) => self.clock.sleep(PAUSE).await,
                ended => return ended,
            }
        }
        request().await
    }
}

fn with(propagation: Propagation) -> Delete {
    match propagation {
        Propagation::Background => Delete::background(),
        Propagation::Foreground => Delete::foreground(),
        Propagation::Orphan => Delete::orphan(),
    }
}

/// Returns whether a failure may be a fault of the plan.
fn is_passing(error: &Error) -> bool {
    error.is_transport()
        || error.code().is_some_and(|code| code >= 500 || code == 429 || code == 410)
        || error.is_conflict() && !error.is_already_exists()
}
