//! Ends what runs of a pod: its containers with their hooks and grace periods, its sandboxes, and what
//! is left of them in the runtime. Upstream: `killPodWithSyncResult`, `killContainer`.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_lite::FutureExt;
use kube_controller_manager::task::Latch;

use super::{Manager, garbage, text};
use crate::concurrent::join_all;
use crate::cri::api;
use crate::events;
use crate::pod::{DEFAULT_GRACE_SECONDS, Pod, PodExt};
use crate::prober::Kind;
use crate::runtime::actions::{Kill, KillReason};
use crate::runtime::order;
use crate::runtime::status::{self, ContainerStatus, PodStatus, State};

/// A stop always leaves the runtime this long. Upstream: `minimumGracePeriodInSeconds`.
const MIN_GRACE: i64 = 2;

impl Manager {
    /// Ends the containers of a pod, sidecars last, and its sandboxes.
    ///
    /// # Errors
    /// When a call fails; what has ended stays so.
    pub async fn kill_pod(
        &self,
        pod: &Arc<Pod>,
        status: &PodStatus,
        grace: Option<i64>,
    ) -> Result<(), String> {
        for container in status.containers.iter().filter(|c| c.state == State::Running) {
            let message = format!("Stopping container {}", container.name);
            events::normal(pod, Some(&container.name), "Killing", message);
        }
        let running: Vec<_> =
            status.containers.iter().filter(|c| c.state != State::Exited).collect();
        // Opened when a container has ended.
        let ends: HashMap<&str, Latch> =
            running.iter().map(|container| (container.name.as_str(), Latch::new())).collect();
        let kills = running.iter().map(|container| {
            let stopped = Stopped::of(container);
            Box::pin(self.kill_container(pod, stopped, grace, status.ips(), Some(&ends)))
        });
        for outcome in join_all(kills.collect()).await {
            outcome?;
        }
        for sandbox in &status.sandboxes {
            self.stop_sandbox(&sandbox.id).await?;
        }
        Ok(())
    }

    pub(super) async fn stop_sandbox(&self, id: &str) -> Result<(), String> {
        let request = api::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        match self.runtime.stop_pod_sandbox(request).await {
            Err(error) if !error.is_not_found() => Err(text(error)),
            _ => Ok(()),
        }
    }

    pub(super) async fn kill(
        &self,
        pod: &Arc<Pod>,
        status: &PodStatus,
        kill: &Kill,
    ) -> Result<(), String> {
        events::normal(pod, Some(&kill.name), "Killing", &kill.message);
        let Some(container) = status.containers.iter().find(|c| c.id == kill.id) else {
            return Ok(());
        };
        let definition = pod.container(&kill.name);
        let probe = definition.and_then(|definition| match kill.reason {
            KillReason::StartupProbe => Kind::Startup.of(definition),
            KillReason::LivenessProbe => Kind::Liveness.of(definition),
            _ => None,
        });
        let grace = probe.and_then(|probe| probe.termination_grace_period_seconds);
        self.kill_container(pod, Stopped::of(container), grace, status.ips(), None).await
    }

    /// Runs the `preStop` hook, waits for its turn, and stops a container, all of it within the
    /// grace period. `ends`: the ends of the pod's containers that run.
    pub(super) async fn kill_container(
        &self,
        pod: &Arc<Pod>,
        container: Stopped<'_>,
        grace: Option<i64>,
        ips: &[String],
        ends: Option<&HashMap<&str, Latch>>,
    ) -> Result<(), String> {
        let own = pod.spec().termination_grace_period_seconds;
        let grace = grace.or(own).unwrap_or(DEFAULT_GRACE_SECONDS);
        let begin = self.clock.monotonic();
        // Whole seconds, as the runtime counts.
        let left = || {
            let spent = self.clock.monotonic().saturating_sub(begin).as_secs();
            (grace - i64::try_from(spent).unwrap_or(i64::MAX)).max(0)
        };
        let definition = pod.container(container.name);
        let lifecycle = definition.and_then(|definition| definition.lifecycle.as_ref());
        let hook = lifecycle.and_then(|lifecycle| lifecycle.pre_stop.as_ref());
        if let (Some(definition), Some(hook), true, 1..) =
            (definition, hook, container.is_running, grace)
        {
            let late = async {
                self.clock.sleep(Duration::from_secs(grace.unsigned_abs())).await;
                Err(format!("no end within {grace} s"))
            };
            let outcome = self.hook(pod, definition, container.id, hook, ips).or(late).await;
            if let Err(fault) = outcome {
                let name = container.name;
                log::warn!("pod {}: PreStopHook of {name} failed: {fault}", pod.display_name());
                events::warning(pod, Some(name), "FailedPreStopHook", "PreStopHook failed");
            }
        }
        if let Some(ends) = ends {
            let turn = async {
                for name in order::end_before(pod, container.name) {
                    if let Some(end) = ends.get(name) {
                        end.opened().await;
                    }
                }
            };
            let late = self.clock.sleep(Duration::from_secs(left().unsigned_abs()));
            turn.or(late).await;
        }
        let left = Duration::from_secs(left().max(MIN_GRACE).unsigned_abs());
        match self.runtime.stop_container(container.id, left).await {
            Err(error) if !error.is_not_found() => return Err(text(error)),
            _ => {}
        }
        if let Some(end) = ends.and_then(|ends| ends.get(container.name)) {
            end.open();
        }
        Ok(())
    }

    /// Removes containers that ended long ago, and sandboxes without containers. Of each name, the
    /// last containers that ended stay, unless `everything` goes.
    ///
    /// # Errors
    /// When a call fails; the next sync tries the rest.
    pub async fn prune(&self, status: &PodStatus, everything: bool) -> Result<(), String> {
        let max = self.dead.max_per_container.unwrap_or(usize::MAX).max(1);
        let superseded = superseded(status, if everything { None } else { Some(max) });
        for id in &superseded {
            let removed = garbage::remove_container(&self.runtime, &self.folders, id).await;
            removed.map_err(text)?;
        }
        let left = status.containers.iter().filter(|one| !superseded.contains(&one.id.as_str()));
        let used: BTreeSet<&str> = left.map(|container| container.sandbox.as_str()).collect();
        let keep = usize::from(!everything);
        let old = status.sandboxes.iter().skip(keep);
        // Its containers would be removed with it.
        for sandbox in old.filter(|sandbox| everything || !used.contains(sandbox.id.as_str())) {
            garbage::remove_sandbox(&self.runtime, &sandbox.id).await.map_err(text)?;
        }
        Ok(())
    }

    /// Ends and removes all that the runtime has of a pod without a definition.
    ///
    /// # Errors
    /// When a call fails.
    pub async fn end_orphan(&self, uid: &str) -> Result<(), String> {
        let status = status::read(&self.runtime, uid).await.map_err(text)?;
        for container in status.containers.iter().filter(|c| c.state != State::Exited) {
            let grace = Duration::from_secs(MIN_GRACE.unsigned_abs());
            match self.runtime.stop_container(&container.id, grace).await {
                Err(error) if !error.is_not_found() => return Err(text(error)),
                _ => {}
            }
        }
        let mut ended = status;
        ended.containers.iter_mut().for_each(|container| container.state = State::Exited);
        self.prune(&ended, true).await
    }
}

/// A container that is stopped.
#[derive(Clone, Copy)]
pub(super) struct Stopped<'a> {
    pub(super) id: &'a str,
    pub(super) name: &'a str,
    /// Only then it has a hook.
    pub(super) is_running: bool,
}

impl Stopped<'_> {
    fn of(container: &ContainerStatus) -> Stopped<'_> {
        Stopped {
            id: &container.id,
            name: &container.name,
            is_running: container.state == State::Running,
        }
    }
}

/// The ids of containers that another one has replaced: of each name, at most `keep` stay that have
/// ended. `None`: all go that do not run.
fn superseded(status: &PodStatus, keep: Option<usize>) -> Vec<&str> {
    let mut ended: HashMap<&str, usize> = HashMap::new();
    let mut newer = BTreeSet::new();
    let mut ids = Vec::new();
    for container in &status.containers {
        let name = container.name.as_str();
        let is_newest = newer.insert(name);
        let goes = match (container.state, keep) {
            (State::Running, _) => false,
            (_, None) => true,
            (State::Exited, Some(keep)) => {
                let count = ended.entry(name).or_default();
                *count += 1;
                *count > keep
            }
            // It was created by an agent that did not start it.
            (State::Created, Some(_)) => !is_newest,
            (State::Unknown, Some(_)) => false,
        };
        if goes {
            ids.push(container.id.as_str());
        }
    }
    ids
}
