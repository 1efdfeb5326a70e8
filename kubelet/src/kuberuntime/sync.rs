//! Makes a pod's sandbox and containers as its definition says. Upstream:
//! `kubeGenericRuntimeManager.SyncPod`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::sandbox::PodSandbox;
use super::start::{StartFailure, ToStart};
use super::{Error, Manager, RETRY, ResizeError};
use crate::causes::chain;
use crate::cri;
use crate::events;
use crate::images::Waiting;
use crate::metrics;
use crate::pod::{Container, Pod, PodExt, of_ephemeral};
use crate::runtime::actions::{self, PodActions};
use crate::runtime::status::PodStatus;

/// The outcome of a sync.
#[derive(Debug, Default)]
pub struct Synced {
    /// Why containers wait, by name.
    pub waiting: HashMap<String, Waiting>,
    /// When to sync again at the latest.
    pub retry: Option<Duration>,
    /// All containers were removed, to start again.
    pub is_reset: bool,
    /// Why resources that have to change have not.
    pub resize_error: Option<ResizeError>,
}

impl Synced {
    /// Records why a container has not started, and when to retry.
    fn add_failure(&mut self, container: &str, failure: StartFailure) {
        let StartFailure { waiting, retry } = failure;
        self.waiting.insert(container.to_owned(), waiting);
        self.add_retry(retry);
    }

    fn has_failures(&self) -> bool {
        !self.waiting.is_empty() || self.resize_error.is_some()
    }

    /// Has the pod synced again after this delay, or earlier if that is wanted already.
    fn add_retry(&mut self, retry: Duration) {
        self.retry = Some(self.retry.map_or(retry, |other| other.min(retry)));
    }
}

/// Returns whether a pod asks for a user namespace of its own.
fn has_own_users(pod: &Pod) -> bool {
    pod.spec().host_users == Some(false)
}

impl Manager {
    /// Brings a pod's sandbox and containers to what its definition says, by the actions that
    /// `actions::compute` decides. Sets up the volumes first; while some are missing, only returns
    /// when to retry.
    ///
    /// `restarts_all`: the restart of all its containers is under way.
    ///
    /// # Errors
    /// When a step failed on which the others depend.
    pub async fn sync(
        &self,
        pod: &Arc<Pod>,
        status: &PodStatus,
        restarts_all: bool,
    ) -> Result<Synced, Error> {
        self.objects.follow(pod);
        let retry = self.volumes.set_up(pod).await?;
        if retry.is_some() {
            return Ok(Synced { retry, ..Synced::default() });
        }
        let actuated = self.actuated.get(&pod.uid());
        let probes = |id: &str| self.probes.results(id);
        let actions = actions::compute(pod, status, &probes, restarts_all, actuated.as_ref());
        self.end_containers(pod, status, &actions).await?;
        let sandbox = self.ensure_sandbox(pod, status, &actions).await;
        let mut synced = Synced { is_reset: !actions.to_reset.is_empty(), ..Synced::default() };
        if let Ok(Some(sandbox)) = &sandbox {
            self.start_containers(pod, status, sandbox, &actions, &mut synced).await;
        }
        let has_failed = sandbox.is_err() || synced.has_failures();
        if actions.create_sandbox && has_own_users(pod) && has_failed {
            metrics::STARTED_USER_PODS_ERRORS.inc();
        }
        sandbox.map(|_| synced)
    }

    /// Ends the containers that have to end before others start.
    async fn end_containers(
        &self,
        pod: &Arc<Pod>,
        status: &PodStatus,
        actions: &PodActions,
    ) -> Result<(), cri::Error> {
        if actions.kill_pod {
            return self.kill_pod(pod, status, None).await;
        }
        for kill in &actions.to_kill {
            self.kill(pod, status, kill).await?;
        }
        self.reset(pod, &actions.to_reset, status.ips()).await
    }

    /// Makes the sandbox in which containers start, if need be, after it has removed the init
    /// containers of the former one, and returns it; `None`: the whole pod was ended and has none.
    async fn ensure_sandbox(
        &self,
        pod: &Arc<Pod>,
        status: &PodStatus,
        actions: &PodActions,
    ) -> Result<Option<PodSandbox>, Error> {
        if actions.create_sandbox {
            self.remove_init_containers(pod, status).await?;
            if actions.sandbox.is_some() {
                let message = "Pod sandbox changed, it will be killed and re-created.";
                events::normal(pod, None, "SandboxChanged", message);
            }
            metrics::STARTED_PODS.inc();
            if has_own_users(pod) {
                metrics::STARTED_USER_PODS.inc();
            }
        }
        let report = |error: &Error| {
            metrics::STARTED_PODS_ERRORS.inc();
            let message = format!("Failed to create pod sandbox: {}", chain(error));
            events::warning(pod, None, "FailedCreatePodSandBox", message);
        };
        let config = self.sandbox_config(pod, actions.attempt).await.inspect_err(|error| {
            if actions.create_sandbox {
                report(error);
            }
        })?;
        if actions.create_sandbox {
            let id = self.run_sandbox(pod, &config).await.inspect_err(report)?;
            let ips = self.sandbox_ips(&id).await.inspect_err(|error| {
                let message = format!("Unable to get pod sandbox status: {}", chain(error));
                events::warning(pod, None, "FailedPodSandBoxStatus", message);
            })?;
            return Ok(Some(PodSandbox { id, config, ips }));
        }
        let id = actions.sandbox.clone().filter(|_| !actions.kill_pod);
        Ok(id.map(|id| PodSandbox { id, config, ips: status.ips().to_vec() }))
    }

    /// Starts ephemeral containers and init containers, gives those that run their new resources, then
    /// starts containers. One that cannot start keeps no other one waiting.
    async fn start_containers(
        &self,
        pod: &Arc<Pod>,
        status: &PodStatus,
        sandbox: &PodSandbox,
        actions: &PodActions,
        synced: &mut Synced,
    ) {
        let start = async |container: &Container, kind, target, synced: &mut Synced| {
            let to_start = ToStart { container, kind, target };
            if let Err(failure) = self.start(pod, status, sandbox, to_start).await {
                synced.add_failure(&container.name, failure);
            }
        };
        for at in &actions.ephemeral_to_start {
            let ephemeral = &pod.ephemeral_containers()[*at];
            let target = ephemeral.target_container_name.as_deref().filter(|name| !name.is_empty());
            start(&of_ephemeral(ephemeral), "ephemeral_container", target, synced).await;
        }
        for at in &actions.init_to_start {
            start(&pod.init_containers()[*at], "init_container", None, synced).await;
        }
        if let Err(error) = self.resize(pod, &sandbox.id, &actions.resize).await {
            synced.add_retry(RETRY);
            synced.resize_error = Some(error);
        }
        for at in &actions.to_start {
            start(&pod.spec().containers[*at], "container", None, synced).await;
        }
    }
}
