//! Gives running containers and the cgroup of their pod other resources. Upstream:
//! `doPodResizeAction`.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ListedQuantity;
use kube_controller_manager::objects::{Format, Quantity};
use kube_controller_manager::task;

use super::Manager;
use crate::allocation;
use crate::cgroups::{Cgroups, PodLimits, Resources};
use crate::cri::{self, Code, api};
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
    /// The runtime refuses the pod's new resources.
    Sandbox(cri::Error),
    /// The runtime does not update a container.
    Container(cri::Error),
    /// The limits of the cgroup of the pod with this name cannot be read.
    Limits(String),
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
            ResizeError::Sandbox(_) => f.write_str(
                "failed to notify runtime for UpdatePodSandboxResources; resize rejected",
            ),
            ResizeError::Container(error) => error.fmt(f),
            ResizeError::Limits(pod) => {
                write!(f, "unable to get pod cgroup memory config for pod {pod:?}")
            }
            ResizeError::Cgroup(_) => f.write_str("failed to set cgroup config"),
            ResizeError::Record(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ResizeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ResizeError::BelowUsage(_) | ResizeError::Limits(_) => None,
            ResizeError::Sandbox(error) => Some(error),
            ResizeError::Container(error) => error.source(),
            ResizeError::Cgroup(error) => Some(error),
            ResizeError::Record(error) => error.source(),
        }
    }
}

/// The cgroup of a pod, with its present limits and those that it gets.
struct PodCgroup {
    cgroups: Arc<Cgroups>,
    current: PodLimits,
    desired: Resources,
}

/// The steps of one resource for the pod's cgroup: before its containers, and after them. What grows
/// comes before, limits first; what shrinks comes after, requests first.
#[derive(Debug, Default, PartialEq, Eq)]
struct Steps {
    before: Vec<Resources>,
    after: Vec<Resources>,
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
        let cgroup = self.pod_cgroup(pod).await?;
        self.check_memory(pod, cgroup.as_ref(), actions).await?;
        if cgroup.is_some() {
            self.update_sandbox(pod, sandbox).await?;
        }
        // What each container has after the updates so far: an update sends both resources.
        let mut current: HashMap<&str, Amounts> = HashMap::new();
        for resource in Resource::ALL {
            let updates = actions.of(resource);
            if updates.is_empty() && !actions.has_pod {
                continue;
            }
            let steps = cgroup.as_ref().map(|cgroup| steps(cgroup, resource)).unwrap_or_default();
            limit_cgroup(pod, cgroup.as_ref(), steps.before).await?;
            for update in updates {
                let amounts = current.entry(&update.id).or_insert(update.current);
                let next = amounts.with(resource, update.desired);
                self.update_container(pod, update, next).await?;
                *amounts = next;
            }
            limit_cgroup(pod, cgroup.as_ref(), steps.after).await?;
        }
        if let Some(own) = pod.spec().resources.clone().filter(|_| actions.has_pod) {
            let set = self.actuated.set_pod_level(&pod.uid(), own).await;
            set.map_err(ResizeError::Record)?;
        }
        Ok(())
    }

    /// Reads the limits of a pod's cgroup, and computes those that it should have. `None`: the
    /// kubelet limits no cgroups.
    async fn pod_cgroup(&self, pod: &Arc<Pod>) -> Result<Option<PodCgroup>, ResizeError> {
        let Some(cgroups) = self.cgroups.clone() else { return Ok(None) };
        let pod = pod.clone();
        let read = move || {
            let current = cgroups.pod_limits(&pod);
            let current = current.ok_or_else(|| ResizeError::Limits(pod.display_name()))?;
            let desired = cgroups.rounded(Resources::of_pod(&pod));
            Ok(Some(PodCgroup { current, desired, cgroups }))
        };
        task::blocking(read).await
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

    /// Announces the pod's new resources to the runtime first: it may refuse them. Runtimes that do
    /// not know the call need not know the resources.
    async fn update_sandbox(&self, pod: &Pod, sandbox: &str) -> Result<(), ResizeError> {
        let request = api::UpdatePodSandboxResourcesRequest {
            pod_sandbox_id: sandbox.to_owned(),
            overhead: Some(spec::overhead(pod)),
            resources: Some(spec::sandbox_resources(pod)),
        };
        match self.runtime.update_pod_sandbox_resources(request).await {
            Err(error) if !lacks_call(&error) => Err(ResizeError::Sandbox(error)),
            _ => Ok(()),
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

/// Returns whether the error says that the runtime does not have a call. Containerd 2.2 says so by
/// the code of unknown errors.
fn lacks_call(error: &cri::Error) -> bool {
    match error {
        cri::Error::Status { code: Code::Unknown, message, .. } => {
            message.contains("not implemented")
        }
        other => other.is_unimplemented(),
    }
}

/// Sets these limits on the pod's cgroup, one after the other.
async fn limit_cgroup(
    pod: &Arc<Pod>,
    cgroup: Option<&PodCgroup>,
    limits: Vec<Resources>,
) -> Result<(), ResizeError> {
    let Some(cgroup) = cgroup else { return Ok(()) };
    for resources in limits {
        let (cgroups, pod) = (cgroup.cgroups.clone(), pod.clone());
        let limited = task::blocking(move || cgroups.limit_pod(&pod, &resources));
        limited.await.map_err(ResizeError::Cgroup)?;
    }
    Ok(())
}

/// Decides which limits of a resource a pod's cgroup gets before its containers, and which after
/// them: it grows before them, and shrinks after them.
fn steps(cgroup: &PodCgroup, resource: Resource) -> Steps {
    let PodCgroup { current, desired, .. } = cgroup;
    let mut steps = Steps::default();
    // A limit that is not asked for any more stays, as upstream.
    let (now, wanted, limit) = match resource {
        Resource::Memory => (
            current.memory,
            desired.memory,
            Resources { memory: desired.memory, ..Resources::default() },
        ),
        Resource::Cpu => (
            current.cpu_quota,
            desired.cpu_quota,
            Resources { cpu_quota: desired.cpu_quota, ..Resources::default() },
        ),
    };
    // How the new limit compares with the present one; no limit counts as the highest.
    let limit_change = wanted.map(|wanted| wanted.cmp(&now.unwrap_or(i64::MAX)));
    let shares = desired.cpu_shares.filter(|_| resource == Resource::Cpu);
    let shares_change = shares.map(|shares| shares.cmp(&current.cpu_shares));
    let request = Resources { cpu_shares: shares, ..Resources::default() };
    if limit_change.is_some_and(|order| order.is_gt()) {
        steps.before.push(limit.clone());
    }
    if shares_change.is_some_and(|order| order.is_gt()) {
        steps.before.push(request.clone());
    }
    if shares_change.is_some_and(|order| order.is_lt()) {
        steps.after.push(request);
    }
    if limit_change.is_some_and(|order| order.is_lt()) {
        steps.after.push(limit);
    }
    steps
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
    use crate::cgroups::{Driver, Hierarchy, Settings};

    #[test]
    fn limits_grow_before_containers_and_shrink_after_them() {
        let settings = Settings {
            root: "/".to_owned(),
            driver: Driver::Cgroupfs,
            pids_limit: None,
            page_sizes: Vec::new(),
        };
        let hierarchy = Hierarchy::V2 { root: "/none".into() };
        let cgroups = Arc::new(Cgroups::new(&settings, hierarchy));
        let current = PodLimits { cpu_shares: 100, cpu_quota: Some(1000), memory: None };
        let shown = |desired: Resources, resource| {
            let cgroup = PodCgroup { cgroups: cgroups.clone(), current, desired };
            let Steps { before, after } = steps(&cgroup, resource);
            let text = |all: Vec<Resources>| -> Vec<String> {
                let files = all.iter().flat_map(Resources::v2);
                files.map(|(file, _)| file.into_owned()).collect()
            };
            format!("{} / {}", text(before).join(" "), text(after).join(" "))
        };
        let cpu = |cpu_shares, cpu_quota| Resources {
            cpu_shares: Some(cpu_shares),
            cpu_quota,
            ..Resources::default()
        };
        for (desired, resource, expected) in [
            (cpu(200, Some(2000)), Resource::Cpu, "cpu.max cpu.weight / "),
            (cpu(50, Some(500)), Resource::Cpu, " / cpu.weight cpu.max"),
            (cpu(200, Some(500)), Resource::Cpu, "cpu.weight / cpu.max"),
            (cpu(100, Some(1000)), Resource::Cpu, " / "),
            // A limit stays, even if the pod no longer asks for it.
            (cpu(100, None), Resource::Cpu, " / "),
            (cpu(1, None), Resource::Memory, " / "),
            (Resources { memory: Some(1), ..cpu(1, None) }, Resource::Memory, " / memory.max"),
        ] {
            assert_eq!(shown(desired.clone(), resource), expected, "{desired:?}");
        }
    }

    #[test]
    fn runtimes_without_the_call_do_not_refuse() {
        for (code, message, expected) in [
            (Code::Unimplemented, "unknown method", true),
            (Code::Unknown, "not implemented yet", true),
            (Code::Unknown, "a plugin refuses", false),
            (Code::Internal, "not implemented yet", false),
        ] {
            let message = message.to_owned();
            let error = cri::Error::Status { method: "m", code, message, retry_after: None };
            assert_eq!(lacks_call(&error), expected, "{error}");
        }
    }

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
