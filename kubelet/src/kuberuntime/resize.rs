//! Gives running containers and the cgroup of their pod other resources. Upstream:
//! `doPodResizeAction`.

mod limits;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ListedQuantity;
use kube_controller_manager::objects::{Format, Quantity};
use kube_controller_manager::task;

use self::limits::PodCgroup;
use super::Manager;
use crate::allocation;
use crate::cri::{self, api};
use crate::metrics;
use crate::node::resources::bytes;
use crate::pod::{Container, Pod, PodExt};
use crate::runtime::resize::{Amounts, ContainerUpdate, ResizeActions, Resource};
use crate::runtime::spec;

/// Why resources do not change now. The texts are upstream's.
#[derive(Debug)]
pub enum ResizeError {
    /// What uses memory uses more than its new limit.
    BelowUsage(Vec<String>),
    /// The runtime refuses the new limits of the cgroup of the pod with this sandbox.
    Sandbox { resource: Resource, sandbox: String, source: cri::Error },
    /// The runtime does not update a container.
    Container(cri::Error),
    /// The limits of a resource of the cgroup of the pod with this name cannot be read.
    Limits { pod: String, resource: &'static str },
    /// The cgroup of the pod cannot be written.
    Cgroup(io::Error),
    /// What was done cannot be recorded.
    Record(allocation::Error),
}

impl fmt::Display for ResizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ResizeError::BelowUsage(faults) => match &faults[..] {
                [one] => write!(f, "cannot decrease memory limits: {one}"),
                all => write!(f, "cannot decrease memory limits: [{}]", all.join(", ")),
            },
            // As upstream has it.
            ResizeError::Sandbox { resource, sandbox, .. } => write!(
                f,
                "failed to notify runtime for UpdatePodSandboxResources (resource={}); resize \
                 rejected: updatePodSandboxResources failed for sanboxID {sandbox:?}",
                resource.name()
            ),
            ResizeError::Container(error) => error.fmt(f),
            ResizeError::Limits { pod, resource } => {
                write!(f, "unable to get pod cgroup {resource} config for pod {pod:?}")
            }
            ResizeError::Cgroup(_) => f.write_str("failed to set cgroup config"),
            ResizeError::Record(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ResizeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ResizeError::BelowUsage(_) | ResizeError::Limits { .. } => None,
            ResizeError::Sandbox { source, .. } => Some(source),
            ResizeError::Container(error) => error.source(),
            ResizeError::Cgroup(error) => Some(error),
            ResizeError::Record(error) => error.source(),
        }
    }
}

impl Manager {
    /// Gives the pod's cgroup and its running containers their new resources, memory before CPU.
    /// Stops at the first failure: the next sync does the rest.
    ///
    /// # Errors
    /// See [`ResizeError`].
    pub(super) async fn resize(
        &self,
        pod: &Arc<Pod>,
        sandbox: &str,
        actions: &ResizeActions,
    ) -> Result<(), ResizeError> {
        if actions.is_empty() {
            return Ok(());
        }
        let begin = self.clock.monotonic();
        let outcome = self.carry_out(pod, sandbox, actions).await;
        metrics::observe_resize(outcome.is_ok(), self.clock.monotonic().saturating_sub(begin));
        outcome
    }

    /// Carries out a resize that has something to do: see [`resize`](Self::resize).
    async fn carry_out(
        &self,
        pod: &Arc<Pod>,
        sandbox: &str,
        actions: &ResizeActions,
    ) -> Result<(), ResizeError> {
        let mut cgroup = self.pod_cgroup(pod, sandbox).await?;
        self.check_memory(pod, cgroup.as_ref(), actions).await?;
        // What each container has after the updates so far: an update sends both resources.
        let mut current: HashMap<&str, Amounts> = HashMap::new();
        for resource in Resource::ALL {
            let updates = actions.of(resource);
            if updates.is_empty() && !actions.has_pod {
                continue;
            }
            let steps = cgroup.as_ref().map(|cgroup| cgroup.steps(resource)).unwrap_or_default();
            self.limit_cgroup(pod, cgroup.as_mut(), resource, steps.before).await?;
            for update in updates {
                let amounts = current.entry(&update.id).or_insert(update.current);
                let next = amounts.with(resource, update.desired);
                self.update_container(pod, update, next).await?;
                *amounts = next;
            }
            self.limit_cgroup(pod, cgroup.as_mut(), resource, steps.after).await?;
        }
        if let Some(own) = pod.spec().resources.clone().filter(|_| actions.has_pod) {
            let set = self.actuated.set_pod_level(&pod.uid(), own).await;
            set.map_err(ResizeError::Record)?;
        }
        Ok(())
    }

    /// Checks that no memory limit is set below the present usage, which would end processes; if
    /// the usage is not known, that is an error too. Upstream: `validateMemoryResizeAction`.
    async fn check_memory(
        &self,
        pod: &Arc<Pod>,
        cgroup: Option<&PodCgroup>,
        actions: &ResizeActions,
    ) -> Result<(), ResizeError> {
        let Some(cgroups) = self.cgroups.clone() else { return Ok(()) };
        if actions.memory.is_empty() && !actions.has_pod {
            return Ok(());
        }
        let pod_limit = cgroup.and_then(|cgroup| {
            let desired = cgroup.desired.memory?;
            cgroup.current.memory.is_none_or(|current| desired < current).then_some(desired)
        });
        let of_container = |update: &ContainerUpdate| {
            let (current, desired) = (update.current.memory_limit, update.desired.memory_limit);
            let is_less = desired != 0 && (current == 0 || desired < current);
            is_less.then(|| (update.id.clone(), update.name.clone(), desired))
        };
        let containers: Vec<_> = actions.memory.iter().filter_map(of_container).collect();
        let pod = pod.clone();
        let faults = task::blocking(move || {
            let fault = |what: &str, usage: Option<u64>, limit: i64| match usage {
                None => Some(format!("missing {what} memory usage")),
                Some(usage) if usage >= limit.unsigned_abs() => Some(format!(
                    "attempting to set {what} memory limit ({limit}) below current usage ({usage})"
                )),
                Some(_) => None,
            };
            let of_pod =
                pod_limit.and_then(|limit| fault("pod", cgroups.memory_usage(&pod, None), limit));
            let of_containers = containers.iter().filter_map(|(id, name, limit)| {
                let usage = cgroups.memory_usage(&pod, Some(id));
                fault(&format!("container {name:?}"), usage, *limit)
            });
            of_pod.into_iter().chain(of_containers).collect::<Vec<_>>()
        });
        match faults.await {
            faults if faults.is_empty() => Ok(()),
            faults => Err(ResizeError::BelowUsage(faults)),
        }
    }

    /// Gives a container new resources by the runtime, and records them. One that the pod does not
    /// define keeps its own.
    async fn update_container(
        &self,
        pod: &Arc<Pod>,
        update: &ContainerUpdate,
        amounts: Amounts,
    ) -> Result<(), ResizeError> {
        let Some(definition) = pod.container(&update.name) else { return Ok(()) };
        let lists = lists_of(amounts);
        let resized = Container { resources: Some(lists.clone()), ..definition.clone() };
        let mut linux =
            spec::resources(pod, &resized, self.node.memory_bytes, &self.node.page_sizes);
        let features = self.cgroup_features().await;
        linux.unified = features.unified(self.node.single_process_oom_kill);
        if features.limits_memory_and_swap() {
            linux.memory_swap_limit_in_bytes = linux.memory_limit_in_bytes;
        }
        let request = api::UpdateContainerResourcesRequest {
            container_id: update.id.clone(),
            linux: Some(linux),
            ..Default::default()
        };
        let updated = self.runtime.update_container_resources(request).await;
        updated.map_err(ResizeError::Container)?;
        let recorded = self.actuated.set_container(&pod.uid(), &update.name, lists).await;
        recorded.map_err(ResizeError::Record)
    }
}

/// Converts amounts to lists of requests and limits. An amount of zero is left out.
pub(super) fn lists_of(amounts: Amounts) -> core::ResourceRequirements {
    let list = |milli_cpus: i64, memory: i64| {
        let cpu = (milli_cpus != 0).then(|| Quantity::from_milli(milli_cpus, Format::DecimalSi));
        let memory = (memory != 0).then(|| bytes(memory));
        let all = [("cpu", cpu), ("memory", memory)];
        let present = all.into_iter().filter_map(|(name, amount)| {
            Some((name.to_owned(), ListedQuantity(amount?.to_string())))
        });
        Some(present.collect::<BTreeMap<_, _>>()).filter(|list| !list.is_empty())
    };
    core::ResourceRequirements {
        limits: list(amounts.cpu_limit, amounts.memory_limit),
        requests: list(amounts.cpu_request, amounts.memory_request),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_listed_in_canonical_form() {
        let amounts = Amounts {
            cpu_request: 250,
            cpu_limit: 2000,
            memory_request: 0,
            memory_limit: 64 << 20,
        };
        let lists = serde_json::to_value(lists_of(amounts)).expect("lists");
        let expected = serde_json::json!({
            "requests": {"cpu": "250m"}, "limits": {"cpu": "2", "memory": "64Mi"},
        });
        assert_eq!(lists, expected);
    }
}
