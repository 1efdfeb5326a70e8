//! The state of a pod in the runtime. Upstream: `kubecontainer.PodStatus`.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::labels;
use super::spec::milli_of_shares;
use crate::cri::{Error, RuntimeService, api};

/// The state of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    Created,
    Running,
    Exited,
    #[default]
    Unknown,
}

impl State {
    pub fn of(state: i32) -> State {
        match api::ContainerState::try_from(state) {
            Ok(api::ContainerState::ContainerCreated) => State::Created,
            Ok(api::ContainerState::ContainerRunning) => State::Running,
            Ok(api::ContainerState::ContainerExited) => State::Exited,
            _ => State::Unknown,
        }
    }
}

/// The resources that the runtime reports of a container: CPU in millis, memory in bytes; `None`: it
/// does not say, or there is no limit. Upstream: `kubecontainer.ContainerResources`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reported {
    pub cpu_request: Option<i64>,
    pub cpu_limit: Option<i64>,
    pub memory_limit: Option<i64>,
}

impl Reported {
    /// Converts the resources that the runtime reports to CPU millis and bytes. Upstream:
    /// `toKubeContainerResources`.
    fn of(linux: &api::LinuxContainerResources) -> Reported {
        let positive = |value: i64| Some(value).filter(|value| *value > 0);
        let quota = Some(linux.cpu_quota).filter(|quota| *quota > 0 && linux.cpu_period > 0);
        Reported {
            cpu_request: u64::try_from(linux.cpu_shares).ok().and_then(milli_of_shares),
            cpu_limit: quota
                .and_then(|quota| positive(quota.saturating_mul(1000) / linux.cpu_period)),
            memory_limit: positive(linux.memory_limit_in_bytes),
        }
    }
}

/// The user and the groups of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    pub uid: i64,
    pub gid: i64,
    pub groups: Vec<i64>,
}

/// A container of a pod. Times are nanoseconds since 1970; 0: not yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerStatus {
    pub id: String,
    pub name: String,
    /// The id of its sandbox.
    pub sandbox: String,
    pub state: State,
    pub created_at: i64,
    pub started_at: i64,
    pub finished_at: i64,
    pub exit_code: i32,
    pub image: String,
    pub image_id: String,
    pub image_ref: String,
    /// The hash of the definition that it was created from; `None` when another agent created it.
    pub hash: Option<u64>,
    pub restart_count: u32,
    pub reason: String,
    pub message: String,
    pub log_path: String,
    pub resources: Reported,
    /// The user of its first process; `None`: the runtime does not say.
    pub user: Option<User>,
    /// Where the container's last message is in the host's files.
    pub message_file: Option<String>,
    /// Whether the message is the end of the log when the file is empty and the container failed.
    pub falls_back_to_logs: bool,
}

/// A sandbox of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct SandboxStatus {
    pub id: String,
    pub is_ready: bool,
    pub attempt: u32,
    pub created_at: i64,
    pub is_host_network: bool,
    /// None with the host's network.
    pub ips: Vec<String>,
}

/// The sandboxes and containers of a pod, the newest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodStatus {
    pub sandboxes: Vec<SandboxStatus>,
    pub containers: Vec<ContainerStatus>,
}

impl PodStatus {
    /// Returns the newest container of a name.
    pub fn container(&self, name: &str) -> Option<&ContainerStatus> {
        self.containers.iter().find(|container| container.name == name)
    }

    /// Returns the newest container of a name that has ended, also if a newer one runs.
    pub fn last_ended(&self, name: &str) -> Option<&ContainerStatus> {
        let mut named = self.containers.iter().filter(|container| container.name == name);
        named.find(|container| container.state == State::Exited)
    }

    /// Returns the newest container of a name before the newest.
    pub fn previous(&self, name: &str) -> Option<&ContainerStatus> {
        self.containers.iter().filter(|container| container.name == name).nth(1)
    }

    pub fn is_in_newest_sandbox(&self, container: &ContainerStatus) -> bool {
        self.sandboxes.first().is_some_and(|sandbox| sandbox.id == container.sandbox)
    }

    /// Returns the pod's addresses, once it has a sandbox with a network.
    pub fn ips(&self) -> &[String] {
        self.sandboxes.first().filter(|sandbox| sandbox.is_ready).map_or(&[], |s| &s.ips)
    }

    /// Sorts the sandboxes and containers, the newest first. Attempts count before times: the
    /// machine's clock may step back, at a start without a battery for instance.
    fn sort(&mut self) {
        let newest = |attempt: u32, created_at: i64| Reverse((attempt, created_at));
        self.sandboxes.sort_by_key(|one| (newest(one.attempt, one.created_at), one.id.clone()));
        self.containers
            .sort_by_key(|one| (newest(one.restart_count, one.created_at), one.id.clone()));
    }

    /// Returns whether a container runs, or a sandbox is ready.
    pub fn has_running(&self) -> bool {
        let is_running = |container: &ContainerStatus| container.state == State::Running;
        self.containers.iter().any(is_running)
            || self.sandboxes.iter().any(|sandbox| sandbox.is_ready)
    }
}

/// Reads the state of the pod `uid` from the runtime.
///
/// # Errors
/// When a call fails. What disappears meanwhile is left out.
pub async fn read(runtime: &RuntimeService, uid: &str) -> Result<PodStatus, Error> {
    let selector = HashMap::from([(labels::POD_UID.to_owned(), uid.to_owned())]);
    let filter = api::PodSandboxFilter { label_selector: selector.clone(), ..Default::default() };
    let request = api::ListPodSandboxRequest { filter: Some(filter) };
    let listed = runtime.list_pod_sandbox(request).await?.items;
    let mut status = PodStatus::default();
    for sandbox in listed {
        let request = api::PodSandboxStatusRequest { pod_sandbox_id: sandbox.id, verbose: false };
        match runtime.pod_sandbox_status(request).await {
            Ok(answer) => status.sandboxes.extend(answer.status.map(sandbox_status)),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    let filter = api::ContainerFilter { label_selector: selector, ..Default::default() };
    let request = api::ListContainersRequest { filter: Some(filter) };
    for container in runtime.list_containers(request).await?.containers {
        let request = api::ContainerStatusRequest { container_id: container.id, verbose: false };
        let sandbox = container.pod_sandbox_id;
        let complete = |status| ContainerStatus { sandbox, ..container_status(status) };
        match runtime.container_status(request).await {
            Ok(answer) => status.containers.extend(answer.status.map(complete)),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    status.sort();
    Ok(status)
}

/// Converts the runtime's status of a sandbox. One on the host's network has no addresses of its
/// own.
fn sandbox_status(status: api::PodSandboxStatus) -> SandboxStatus {
    let options = status.linux.and_then(|linux| linux.namespaces).and_then(|all| all.options);
    let is_host_network =
        options.is_some_and(|options| options.network() == api::NamespaceMode::Node);
    let mut ips = Vec::new();
    if let Some(network) = status.network.filter(|_| !is_host_network) {
        ips.extend(Some(network.ip).filter(|ip| !ip.is_empty()));
        ips.extend(network.additional_ips.into_iter().map(|ip| ip.ip));
    }
    SandboxStatus {
        id: status.id,
        is_ready: status.state == api::PodSandboxState::SandboxReady as i32,
        attempt: status.metadata.map_or(0, |metadata| metadata.attempt),
        created_at: status.created_at,
        is_host_network,
        ips,
    }
}

/// Converts the runtime's status of a container, whose annotations hold what the kubelet has noted.
fn container_status(status: api::ContainerStatus) -> ContainerStatus {
    let annotation = |key: &str| status.annotations.get(key).map(String::as_str);
    let path = annotation(labels::MESSAGE_PATH).filter(|path| !path.is_empty());
    let message_file = path.and_then(|path| {
        let mount = status.mounts.iter().find(|mount| mount.container_path == path)?;
        Some(mount.host_path.clone())
    });
    let name = status.labels.get(labels::CONTAINER_NAME).cloned();
    let count = annotation(labels::RESTART_COUNT).and_then(|count| count.parse().ok());
    let hash = annotation(labels::CONTAINER_HASH);
    ContainerStatus {
        name: name.unwrap_or_default(),
        sandbox: String::new(),
        state: State::of(status.state),
        created_at: status.created_at,
        started_at: status.started_at,
        finished_at: status.finished_at,
        exit_code: status.exit_code,
        hash: hash.and_then(|hash| u64::from_str_radix(hash, 16).ok()),
        restart_count: count.unwrap_or_default(),
        falls_back_to_logs: annotation(labels::MESSAGE_POLICY) == Some("FallbackToLogsOnError"),
        message_file,
        image: status.image.map(|image| image.image).unwrap_or_default(),
        image_id: status.image_id,
        image_ref: status.image_ref,
        id: status.id,
        resources: status
            .resources
            .and_then(|resources| resources.linux)
            .map(|linux| Reported::of(&linux))
            .unwrap_or_default(),
        user: status.user.and_then(|user| user.linux).map(|user| User {
            uid: user.uid,
            gid: user.gid,
            groups: user.supplemental_groups,
        }),
        reason: status.reason,
        message: status.message,
        log_path: status.log_path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_comes_first_after_the_clock_has_stepped_back() {
        let sandbox = |attempt: u32, created_at: i64| {
            let metadata = api::PodSandboxMetadata { attempt, ..Default::default() };
            let metadata = Some(metadata);
            sandbox_status(api::PodSandboxStatus { metadata, created_at, ..Default::default() })
        };
        let container = |name: &str, count: u32, created_at: i64| {
            let pair = |key: &str, value: String| HashMap::from([(key.to_owned(), value)]);
            container_status(api::ContainerStatus {
                labels: pair(labels::CONTAINER_NAME, name.to_owned()),
                annotations: pair(labels::RESTART_COUNT, count.to_string()),
                created_at,
                ..Default::default()
            })
        };
        let mut status = PodStatus {
            sandboxes: vec![sandbox(1, 500), sandbox(2, 7)],
            containers: vec![container("a", 3, 500), container("a", 4, 7), container("b", 0, 600)],
        };
        status.sort();
        assert_eq!(status.sandboxes.first().map(|sandbox| sandbox.attempt), Some(2));
        assert_eq!(status.container("a").map(|container| container.restart_count), Some(4));
        assert_eq!(status.previous("a").map(|container| container.restart_count), Some(3));
    }
}
