//! How the resources of a running container change: what is updated in place, and what needs a
//! restart. Upstream: `computePodResizeAction`.

use k8s_openapi::api::core::v1::ResourceRequirements;
use kube_controller_manager::objects::Quantity;

use super::status::ContainerStatus;
use crate::allocation::PodResources;
use crate::pod::{Container, Pod, PodExt, listed};

/// CPU in millis and memory in bytes; 0: not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    pub cpu_request: i64,
    pub cpu_limit: i64,
    pub memory_request: i64,
    pub memory_limit: i64,
}

impl Amounts {
    /// Returns the amounts of a container, which has the limits of its pod where it has none.
    /// Upstream: `containerResourcesFromRequirements`.
    pub fn of_container(
        own: Option<&ResourceRequirements>,
        of_pod: Option<&ResourceRequirements>,
    ) -> Amounts {
        let own = Amounts::of(own);
        let of_pod = Amounts::of(of_pod);
        let or = |own: i64, of_pod: i64| if own == 0 { of_pod } else { own };
        Amounts {
            cpu_limit: or(own.cpu_limit, of_pod.cpu_limit),
            memory_limit: or(own.memory_limit, of_pod.memory_limit),
            ..own
        }
    }

    /// Reads the amounts of CPU and memory from the lists; an absent one is zero. Upstream:
    /// `podResourcesFromRequirements`.
    pub fn of(lists: Option<&ResourceRequirements>) -> Amounts {
        let amount = |resource, is_limit| listed(lists, resource, is_limit);
        let milli = |amount: Option<Quantity>| amount.map_or(0, |amount| amount.milli_value());
        let bytes = |amount: Option<Quantity>| amount.map_or(0, |amount| amount.value());
        Amounts {
            cpu_request: milli(amount("cpu", false)),
            cpu_limit: milli(amount("cpu", true)),
            memory_request: bytes(amount("memory", false)),
            memory_limit: bytes(amount("memory", true)),
        }
    }

    /// Returns the amounts of one resource: the limit, and the request.
    fn of_resource(self, resource: Resource) -> (i64, i64) {
        match resource {
            Resource::Memory => (self.memory_limit, self.memory_request),
            Resource::Cpu => (self.cpu_limit, self.cpu_request),
        }
    }

    /// Returns these amounts with those of one resource from others.
    pub fn with(self, resource: Resource, from: Amounts) -> Amounts {
        match resource {
            Resource::Memory => Amounts {
                memory_limit: from.memory_limit,
                memory_request: from.memory_request,
                ..self
            },
            Resource::Cpu => {
                Amounts { cpu_limit: from.cpu_limit, cpu_request: from.cpu_request, ..self }
            }
        }
    }
}

/// A resource that can be resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    Memory,
    Cpu,
}

impl Resource {
    /// In the order in which they are updated.
    pub const ALL: [Resource; 2] = [Resource::Memory, Resource::Cpu];

    pub fn name(self) -> &'static str {
        match self {
            Resource::Memory => "memory",
            Resource::Cpu => "cpu",
        }
    }
}

/// A container of which the runtime has to update the resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerUpdate {
    pub id: String,
    pub name: String,
    pub current: Amounts,
    pub desired: Amounts,
}

/// What has to be updated in place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResizeActions {
    /// Those that get less come first.
    pub memory: Vec<ContainerUpdate>,
    pub cpu: Vec<ContainerUpdate>,
    /// The pod's cgroup too: a container starts with other resources, or those of the pod itself have
    /// changed.
    pub has_pod: bool,
}

impl ResizeActions {
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty() && self.cpu.is_empty() && !self.has_pod
    }

    /// Returns the updates of one resource.
    pub fn of(&self, resource: Resource) -> &[ContainerUpdate] {
        match resource {
            Resource::Memory => &self.memory,
            Resource::Cpu => &self.cpu,
        }
    }

    /// Adds the update of a container. One that lowers the amounts (`is_less`) comes first.
    fn add(&mut self, resource: Resource, update: ContainerUpdate, is_less: bool) {
        let list = match resource {
            Resource::Memory => &mut self.memory,
            Resource::Cpu => &mut self.cpu,
        };
        if is_less { list.insert(0, update) } else { list.push(update) }
    }
}

/// Compares what is allocated to a pod with what was actuated; `actuated`: `None`, there is no record.
pub struct Resizing<'a> {
    pub pod: &'a Pod,
    pub actuated: Option<&'a PodResources>,
}

impl Resizing<'_> {
    /// Returns the amounts that a container should have.
    fn desired(&self, container: &Container) -> Amounts {
        Amounts::of_container(container.resources.as_ref(), self.pod.spec().resources.as_ref())
    }

    /// Returns the amounts that a container was given. `None`: there is no record.
    fn current(&self, name: &str) -> Option<Amounts> {
        let record = self.actuated?;
        let own = record.container_resources.get(name)?;
        Some(Amounts::of_container(Some(own), record.pod_level_resources.as_ref()))
    }

    /// Adds the updates to `actions` that give a running container its desired amounts. Returns
    /// true if it has to be restarted for that instead.
    pub fn add_container(
        &self,
        container: &Container,
        status: &ContainerStatus,
        actions: &mut ResizeActions,
    ) -> bool {
        let desired = self.desired(container);
        let recorded = self.current(&container.name);
        // Without a record the update is repeated, but the container is not restarted for that.
        let current = recorded.unwrap_or_default();
        if current == desired {
            return false;
        }
        let changes = |resource| current.of_resource(resource) != desired.of_resource(resource);
        let restarts = |resource: Resource| {
            let mut policies = container.resize_policy.iter().flatten();
            let policy = policies.find(|policy| policy.resource_name == resource.name());
            policy.is_some_and(|policy| policy.restart_policy == "RestartContainer")
        };
        let changed = || Resource::ALL.into_iter().filter(|resource| changes(*resource));
        if recorded.is_some() && changed().any(restarts) {
            actions.has_pod = true;
            return true;
        }
        for resource in changed() {
            let ((limit, request), (wanted_limit, wanted_request)) =
                (current.of_resource(resource), desired.of_resource(resource));
            let is_less = match limit == wanted_limit {
                true => wanted_request < request,
                false => wanted_limit < limit,
            };
            let (id, name) = (status.id.clone(), container.name.clone());
            actions.add(resource, ContainerUpdate { id, name, current, desired }, is_less);
        }
        false
    }

    /// Records in `actions` that the pod's cgroup has to change if a container starts with other
    /// amounts than it was given before. Upstream leaves it as it is unless the container was
    /// restarted for the resize.
    pub fn add_start(&self, container: &Container, actions: &mut ResizeActions) {
        let recorded = self.current(&container.name);
        actions.has_pod |= recorded.is_some_and(|current| current != self.desired(container));
    }

    /// Records in `actions` that the pod's cgroup has to change if the pod's own resources have
    /// changed, or there is no record of them. Upstream: `computePodLevelResourcesResizeAction`.
    pub fn add_pod(&self, actions: &mut ResizeActions) {
        let own = self.pod.spec().resources.as_ref();
        let recorded = self.actuated.and_then(|record| record.pod_level_resources.as_ref());
        actions.has_pod |= own.is_some() && Amounts::of(own) != Amounts::of(recorded);
    }

    /// Returns whether the pod as a whole, or a running container, was not yet given the amounts
    /// that are allocated to it. What has no record does not count. Upstream:
    /// `IsPodResizeInProgress`.
    pub fn is_in_progress(&self, is_running: impl Fn(&str) -> bool) -> bool {
        let own = self.pod.spec().resources.as_ref();
        let recorded = self.actuated.and_then(|record| record.pod_level_resources.as_ref());
        let of_pod =
            own.is_some() && recorded.is_some() && Amounts::of(own) != Amounts::of(recorded);
        let differs = |container: &Container| {
            is_running(&container.name)
                && self.current(&container.name).is_some_and(|one| one != self.desired(container))
        };
        of_pod || self.pod.all_containers().any(differs)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(resources: Value, policy: Value, own: Value) -> Pod {
        let containers = resources.as_array().expect("a list").iter().enumerate();
        let containers: Vec<Value> = containers
            .map(|(at, resources)| {
                json!({"name": format!("c{at}"), "resources": resources, "resizePolicy": policy})
            })
            .collect();
        serde_json::from_value(json!({"spec": {"containers": containers, "resources": own}}))
            .expect("a pod")
    }

    fn amounts(cpu: [&str; 2], memory: [&str; 2]) -> Value {
        json!({"requests": {"cpu": cpu[0], "memory": memory[0]},
               "limits": {"cpu": cpu[1], "memory": memory[1]}})
    }

    /// `memory`, `cpu`, `pod`, and the containers that restart.
    fn shown(wanted: &Pod, before: Option<&Pod>) -> String {
        let actuated = before.map(PodResources::of);
        let resizing = Resizing { pod: wanted, actuated: actuated.as_ref() };
        let mut actions = ResizeActions::default();
        let mut parts = Vec::new();
        for container in &wanted.spec().containers {
            let status =
                ContainerStatus { id: container.name.clone(), ..ContainerStatus::default() };
            if resizing.add_container(container, &status, &mut actions) {
                parts.push(format!("restart {}", container.name));
            }
        }
        resizing.add_pod(&mut actions);
        for resource in Resource::ALL {
            let names = actions.of(resource).iter().map(|update| update.name.as_str());
            let names: Vec<&str> = names.collect();
            if !names.is_empty() {
                parts.push(format!("{} {}", resource.name(), names.join(" ")));
            }
        }
        parts.extend(actions.has_pod.then(|| "pod".to_owned()));
        parts.join(", ")
    }

    #[test]
    fn resizes_are_in_place_unless_their_policy_restarts() {
        let none = || json!(null);
        let small = || amounts(["1", "1"], ["1Mi", "1Mi"]);
        let cpu = || amounts(["2", "2"], ["1Mi", "1Mi"]);
        let memory = || amounts(["1", "1"], ["2Mi", "2Mi"]);
        let request = || amounts(["500m", "1"], ["1Mi", "1Mi"]);
        let policy = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"},
                            {"resourceName": "cpu", "restartPolicy": "NotRequired"}]);
        for (before, wanted, policy, expected) in [
            (json!([small()]), json!([small()]), none(), ""),
            (json!([small()]), json!([cpu()]), none(), "cpu c0"),
            (json!([small()]), json!([request()]), none(), "cpu c0"),
            (json!([small()]), json!([memory()]), none(), "memory c0"),
            // The one that gets less comes first.
            (json!([small(), cpu()]), json!([cpu(), small()]), none(), "cpu c1 c0"),
            (json!([small()]), json!([cpu()]), policy.clone(), "cpu c0"),
            (json!([small()]), json!([memory()]), policy.clone(), "restart c0, pod"),
            // The containers have no limits.
            (json!([{}]), json!([{"requests": {"cpu": "1"}}]), none(), "cpu c0"),
            (json!([{}]), json!([{"requests": {"example.com/a": "1"}}]), none(), ""),
        ] {
            let before = pod(before, none(), none());
            let wanted = pod(wanted, policy, none());
            assert_eq!(shown(&wanted, Some(&before)), expected, "{wanted:?}");
        }
        let wanted = pod(json!([small()]), policy, none());
        assert_eq!(shown(&wanted, None), "memory c0, cpu c0");
    }

    #[test]
    fn limits_of_the_pod_are_those_of_containers_without_one() {
        let own = |cpu: &str| json!({"limits": {"cpu": cpu, "memory": "1Mi"}});
        let limited = amounts(["1", "1"], ["1Mi", "1Mi"]);
        let before = pod(json!([{}, limited]), json!(null), own("2"));
        let wanted = pod(json!([{}, limited]), json!(null), own("3"));
        assert_eq!(shown(&wanted, Some(&before)), "cpu c0, pod");
        assert_eq!(shown(&before, Some(&before)), "");
        let record = PodResources::of(&before);
        let resizing = Resizing { pod: &wanted, actuated: Some(&record) };
        assert!(resizing.is_in_progress(|_| false));
        let same = Resizing { pod: &before, actuated: Some(&record) };
        assert!(!same.is_in_progress(|_| true));
    }

    #[test]
    fn only_running_containers_are_under_way() {
        let before = pod(json!([amounts(["1", "1"], ["1Mi", "1Mi"])]), json!(null), json!(null));
        let wanted = pod(json!([amounts(["2", "2"], ["1Mi", "1Mi"])]), json!(null), json!(null));
        let record = PodResources::of(&before);
        let resizing = Resizing { pod: &wanted, actuated: Some(&record) };
        assert!(resizing.is_in_progress(|name| name == "c0"));
        assert!(!resizing.is_in_progress(|_| false));
        let mut actions = ResizeActions::default();
        resizing.add_start(&wanted.spec().containers[0], &mut actions);
        assert!(actions.has_pod);
    }
}
