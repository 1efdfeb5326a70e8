//! The limits of a pod's cgroup while its resources change. Upstream: `setPodCgroupConfig`.

use std::sync::Arc;

use kube_controller_manager::task;

use super::ResizeError;
use crate::causes::chain;
use crate::cgroups::{Cgroups, PERIOD, PodLimits, Resources, quota, shares};
use crate::cri::{self, Code, api};
use crate::kuberuntime::Manager;
use crate::pod::{Pod, PodExt, quantity};
use crate::runtime::resize::Resource;
use crate::runtime::spec;

/// The cgroup of a pod, with its present limits and those that it gets.
pub(super) struct PodCgroup {
    cgroups: Arc<Cgroups>,
    /// The id of the pod's sandbox: the runtime is asked before each change.
    sandbox: String,
    pub(super) current: PodLimits,
    pub(super) desired: Resources,
}

/// The steps of one resource for the pod's cgroup: before its containers, and after them. What grows
/// comes before, limits first; what shrinks comes after, requests first.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Steps {
    pub(super) before: Vec<Resources>,
    pub(super) after: Vec<Resources>,
}

impl PodCgroup {
    /// Decides which limits of a resource a pod's cgroup gets before its containers, and which after
    /// them: it grows before them, and shrinks after them.
    pub(super) fn steps(&self, resource: Resource) -> Steps {
        let PodCgroup { current, desired, .. } = self;
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
}

impl Manager {
    /// Reads the limits of a pod's cgroup, and computes those that it should have. `None`: the
    /// kubelet limits no cgroups.
    pub(super) async fn pod_cgroup(
        &self,
        pod: &Arc<Pod>,
        sandbox: &str,
    ) -> Result<Option<PodCgroup>, ResizeError> {
        let Some(cgroups) = self.cgroups.clone() else { return Ok(None) };
        let (pod, sandbox) = (pod.clone(), sandbox.to_owned());
        let read = move || {
            let current = cgroups.pod_limits(&pod);
            let current = current
                .map_err(|resource| ResizeError::Limits { pod: pod.display_name(), resource })?;
            let desired = cgroups.rounded(Resources::of_pod(&pod));
            Ok(Some(PodCgroup { current, desired, cgroups, sandbox }))
        };
        task::blocking(read).await
    }

    /// Sets these limits on the pod's cgroup, one after the other. The runtime is asked before each
    /// of them, and is asked to go back if the cgroup cannot be written. Upstream:
    /// `setPodCgroupConfig`.
    pub(super) async fn limit_cgroup(
        &self,
        pod: &Arc<Pod>,
        cgroup: Option<&mut PodCgroup>,
        resource: Resource,
        limits: Vec<Resources>,
    ) -> Result<(), ResizeError> {
        let Some(cgroup) = cgroup else { return Ok(()) };
        for resources in limits {
            let next = cgroup.current.with(&resources);
            self.update_sandbox(pod, &cgroup.sandbox, next).await.map_err(|source| {
                ResizeError::Sandbox { resource, sandbox: cgroup.sandbox.clone(), source }
            })?;
            let (cgroups, of) = (cgroup.cgroups.clone(), pod.clone());
            let limited = task::blocking(move || cgroups.limit_pod(&of, &resources)).await;
            if let Err(error) = limited {
                let undone = self.update_sandbox(pod, &cgroup.sandbox, cgroup.current).await;
                if let Err(error) = undone {
                    let (name, error) = (pod.display_name(), chain(&error));
                    log::error!("pod {name}: the runtime keeps limits that were not set: {error}");
                }
                return Err(ResizeError::Cgroup(error));
            }
            cgroup.current = next;
        }
        Ok(())
    }

    /// Announces the limits of the pod's cgroup to the runtime, which may refuse them. Runtimes that
    /// do not know the call need not know the limits. Upstream: `updatePodSandboxResources`.
    async fn update_sandbox(
        &self,
        pod: &Pod,
        sandbox: &str,
        limits: PodLimits,
    ) -> Result<(), cri::Error> {
        let request = api::UpdatePodSandboxResourcesRequest {
            pod_sandbox_id: sandbox.to_owned(),
            overhead: Some(spec::overhead(pod)),
            resources: Some(sandbox_resources(pod, limits)),
        };
        match self.runtime.update_pod_sandbox_resources(request).await {
            Err(error) if !lacks_call(&error) => Err(error),
            _ => Ok(()),
        }
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

/// Converts the limits of a pod's cgroup to those of its sandbox: without the pod's overhead, which
/// the runtime gets beside them. Upstream: `subtractOverheadFromResourceConfig`.
fn sandbox_resources(pod: &Pod, limits: PodLimits) -> api::LinuxContainerResources {
    /// The kernel's and the runtime's number for no limit.
    const UNLIMITED: i64 = -1;
    let overhead = |resource| quantity(pod.spec().overhead.as_ref()?, resource);
    let cpu = overhead("cpu").map(|cpu| cpu.milli_value()).filter(|milli| *milli != 0);
    let memory = overhead("memory").map_or(0, |memory| memory.value());
    let cpu_shares = match cpu {
        None => limits.cpu_shares,
        Some(milli) => {
            shares(spec::milli_of_shares(limits.cpu_shares).unwrap_or(0).saturating_sub(milli))
        }
    };
    let without = |limit: Option<i64>, overhead: i64| {
        limit.map_or(UNLIMITED, |limit| limit.saturating_sub(overhead))
    };
    api::LinuxContainerResources {
        cpu_period: PERIOD,
        cpu_quota: without(limits.cpu_quota, cpu.map_or(0, quota)),
        cpu_shares: i64::try_from(cpu_shares).unwrap_or(i64::MAX),
        memory_limit_in_bytes: without(limits.memory, memory),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::atomic::{AtomicBool, Ordering};

    use serde_json::json;

    use super::*;
    use crate::cgroups::{Driver, Hierarchy, Settings};
    use crate::kuberuntime::testing::TestNode;
    use crate::runtime::resize::ResizeActions;

    fn cgroups(hierarchy: Hierarchy) -> Arc<Cgroups> {
        let settings = Settings {
            root: "/".to_owned(),
            driver: Driver::Cgroupfs,
            pids_limit: None,
            page_sizes: Vec::new(),
        };
        Arc::new(Cgroups::new(&settings, hierarchy))
    }

    /// A pod with these limits, and a request of CPU.
    fn pod(cpu_request: &str, cpu: &str, memory: &str) -> Arc<Pod> {
        let resources =
            json!({"requests": {"cpu": cpu_request}, "limits": {"cpu": cpu, "memory": memory}});
        let pod = json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "0-1"},
            "spec": {"containers": [{"name": "c", "resources": resources}]},
        });
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    /// Also where the runtime refuses, or the cgroup cannot be written.
    #[test]
    fn runtime_is_asked_before_each_change_of_the_cgroup() {
        task::run(1, async {
            let refuses = Arc::new(AtomicBool::new(false));
            let asked = refuses.clone();
            let node = TestNode::start("resize-limits", move |method| {
                match method == "UpdatePodSandboxResources" && asked.load(Ordering::SeqCst) {
                    true => Err("a plugin refuses"),
                    false => Ok(Vec::new()),
                }
            });
            let cgroups = cgroups(Hierarchy::v1_for_tests(&node.root, &["cpu", "memory"]));
            cgroups.ensure_pod(&pod("100m", "200m", "2Mi")).expect("a cgroup");
            let manager = node.manager(Some(cgroups));
            let actions = ResizeActions { has_pod: true, ..ResizeActions::default() };
            let resize = async |pod: Arc<Pod>| {
                let resized = manager.resize(&pod, "s", &actions).await;
                let requests: Vec<api::UpdatePodSandboxResourcesRequest> =
                    node.runtime.take("UpdatePodSandboxResources");
                let shown = requests.into_iter().map(|request| {
                    assert_eq!(request.pod_sandbox_id, "s");
                    let of = request.resources.expect("resources");
                    (of.memory_limit_in_bytes >> 20, of.cpu_quota, of.cpu_shares)
                });
                (shown.collect::<Vec<_>>(), resized.map_err(|error| chain(&error)))
            };
            let read = |controller: &str, file: &str| {
                let folder = node.root.join(controller).join("kubepods/burstable/pod0-1");
                fs::read_to_string(folder.join(file)).expect("a file")
            };
            let (asked, resized) = resize(pod("50m", "400m", "4Mi")).await;
            assert_eq!(asked, [(4, 20_000, 102), (4, 40_000, 102), (4, 40_000, 51)]);
            assert_eq!(resized, Ok(()));
            assert_eq!(read("memory", "memory.limit_in_bytes"), (4 << 20).to_string());
            assert_eq!(read("cpu", "cpu.shares"), "51");
            assert_eq!(resize(pod("50m", "400m", "4Mi")).await, (vec![], Ok(())));

            refuses.store(true, Ordering::SeqCst);
            let (asked, resized) = resize(pod("50m", "500m", "5Mi")).await;
            assert_eq!(asked, [(5, 40_000, 51)]);
            let error = resized.expect_err("refused");
            let expected = "failed to notify runtime for UpdatePodSandboxResources \
                            (resource=memory); resize rejected: updatePodSandboxResources failed \
                            for sanboxID \"s\": ";
            assert!(error.starts_with(expected) && error.ends_with("a plugin refuses"), "{error}");
            assert_eq!(read("memory", "memory.limit_in_bytes"), (4 << 20).to_string());

            refuses.store(false, Ordering::SeqCst);
            let period = node.root.join("cpu/kubepods/burstable/pod0-1/cpu.cfs_period_us");
            fs::remove_file(&period).expect("removed");
            fs::create_dir(&period).expect("no file");
            let (asked, resized) = resize(pod("50m", "500m", "5Mi")).await;
            // The last one asks the runtime to go back.
            assert_eq!(asked, [(5, 40_000, 51), (5, 50_000, 51), (5, 40_000, 51)]);
            let error = resized.expect_err("not written");
            assert!(error.starts_with("failed to set cgroup config: "), "{error}");
        });
    }

    #[test]
    fn sandboxes_have_the_limits_of_their_pod_without_its_overhead() {
        let limits = |cpu_quota, memory| PodLimits { cpu_shares: 1024, cpu_quota, memory };
        let (all, none) = (limits(Some(50_000), Some(4 << 20)), limits(None, None));
        let whole = json!({"cpu": "100m", "memory": "1Mi"});
        for (overhead, limits, expected) in [
            (json!(null), all, (50_000, 1024, 4 << 20)),
            (json!(null), none, (-1, 1024, -1)),
            (whole.clone(), all, (40_000, 921, 3 << 20)),
            (whole, none, (-1, 921, -1)),
            (json!({"memory": "1Mi"}), all, (50_000, 1024, 3 << 20)),
            // More than the pod has.
            (json!({"cpu": "2"}), limits(None, Some(1)), (-1, 2, 1)),
        ] {
            let spec = json!({"containers": [], "overhead": overhead});
            let pod = serde_json::from_value(json!({"spec": spec})).expect("a pod");
            let of = sandbox_resources(&pod, limits);
            let found = (of.cpu_quota, of.cpu_shares, of.memory_limit_in_bytes);
            assert_eq!(found, expected, "{spec} {limits:?}");
            assert_eq!(of.cpu_period, 100_000);
        }
    }

    #[test]
    fn limits_grow_before_containers_and_shrink_after_them() {
        let cgroups = cgroups(Hierarchy::V2 { root: "/none".into() });
        let current = PodLimits { cpu_shares: 100, cpu_quota: Some(1000), memory: None };
        let shown = |desired: Resources, resource| {
            let (cgroups, sandbox) = (cgroups.clone(), String::new());
            let cgroup = PodCgroup { cgroups, sandbox, current, desired };
            let Steps { before, after } = cgroup.steps(resource);
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
}
