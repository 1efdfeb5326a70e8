//! Removes containers and sandboxes that a pod does not need any more. Upstream:
//! `purgeInitContainers`, `pruneInitContainersBeforeStart`, `removeContainer`.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::kill::ContainerRef;
use super::{Manager, garbage};
use crate::cri::{self, api};
use crate::pod::{Pod, PodExt};
use crate::runtime::actions::Reset;
use crate::runtime::status::{self, PodStatus, State};

impl Manager {
    /// Removes the containers of a pod before all start again. Those that run are first killed
    /// without grace.
    pub(super) async fn reset(
        &self,
        pod: &Arc<Pod>,
        resets: &[Reset],
        ips: &[String],
    ) -> Result<(), cri::Error> {
        for Reset { id, name, is_running } in resets {
            if *is_running {
                let container = ContainerRef { id, name, is_running: true };
                self.kill_container(pod, container, Some(0), ips, None).await?;
            }
            let request = api::RemoveContainerRequest { container_id: id.clone() };
            match self.runtime.remove_container(request).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
            log::info!("pod {}: {name} is removed, as all restart", pod.display_name());
        }
        Ok(())
    }

    /// Removes the init containers of a former sandbox: they run again in the new one, each after
    /// the one before it has ended there. Upstream: `purgeInitContainers`.
    pub(super) async fn remove_init_containers(
        &self,
        pod: &Pod,
        status: &PodStatus,
    ) -> Result<(), cri::Error> {
        let is_init = |name: &str| pod.init_containers().iter().any(|init| init.name == name);
        for container in status.containers.iter().filter(|container| is_init(&container.name)) {
            self.remove_container(&container.id).await?;
        }
        Ok(())
    }

    /// Removes a container and its log.
    async fn remove_container(&self, id: &str) -> Result<(), cri::Error> {
        garbage::remove_container(&self.runtime, &self.folders, id).await
    }

    /// Removes containers that ended long ago, and sandboxes without containers. Of each name, the
    /// last containers that ended stay, unless `everything` goes.
    ///
    /// # Errors
    /// When a call fails; the next sync tries the rest.
    pub async fn prune(&self, status: &PodStatus, everything: bool) -> Result<(), cri::Error> {
        // The last one stays in any case: its restart count and its end are in the pod's status.
        let max = self.dead.max_per_container.unwrap_or(usize::MAX).max(1);
        let superseded = superseded(status, if everything { None } else { Some(max) });
        for id in &superseded {
            self.remove_container(id).await?;
        }
        let left = status.containers.iter().filter(|one| !superseded.contains(&one.id.as_str()));
        let used: BTreeSet<&str> = left.map(|container| container.sandbox.as_str()).collect();
        let keep = usize::from(!everything);
        let old = status.sandboxes.iter().skip(keep);
        // A sandbox in use stays: the runtime would remove its containers with it.
        for sandbox in old.filter(|sandbox| everything || !used.contains(sandbox.id.as_str())) {
            garbage::remove_sandbox(&self.runtime, &sandbox.id).await?;
        }
        Ok(())
    }

    /// Ends and removes all that the runtime has of a pod without a definition.
    ///
    /// # Errors
    /// When a call fails.
    pub async fn end_orphan(&self, uid: &str) -> Result<(), cri::Error> {
        let mut status = status::read(&self.runtime, uid).await?;
        for container in status.containers.iter_mut().filter(|c| c.state != State::Exited) {
            self.stop_container(&container.id, 0).await?;
            container.state = State::Exited;
        }
        self.prune(&status, true).await
    }
}

/// Lists the ids of containers that a newer one has replaced: all but the last `keep` ended
/// containers of each name. `None`: all that do not run.
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
            // The kubelet that created it has not started it.
            (State::Created, Some(_)) => !is_newest,
            // It may run.
            (State::Unknown, Some(_)) => false,
        };
        if goes {
            ids.push(container.id.as_str());
        }
    }
    ids
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::status::ContainerStatus;

    fn container(id: &str, name: &str, state: State) -> ContainerStatus {
        ContainerStatus {
            id: id.to_owned(),
            name: name.to_owned(),
            sandbox: "s".to_owned(),
            state,
            ..ContainerStatus::default()
        }
    }

    #[test]
    fn containers_go_that_newer_ones_have_replaced() {
        use State::{Created, Exited, Running, Unknown};
        // The newest come first.
        let all = [
            ("a5", "a", Running),
            ("a4", "a", Exited),
            ("b2", "b", Created),
            ("a3", "a", Created),
            ("a2", "a", Exited),
            ("a1", "a", Unknown),
            ("b1", "b", Exited),
        ];
        let containers = all.map(|(id, name, state)| container(id, name, state)).into();
        let status = PodStatus { containers, ..PodStatus::default() };
        for (keep, expected) in [
            (Some(1), &["a3", "a2"][..]),
            (Some(2), &["a3"]),
            (None, &["a4", "b2", "a3", "a2", "a1", "b1"]),
        ] {
            assert_eq!(superseded(&status, keep), expected, "{keep:?}");
        }
    }
}
