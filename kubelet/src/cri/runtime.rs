//! Sandboxes and containers. Upstream: `cri-client/pkg/remote_runtime.go`.

use std::time::Duration;

use grpc::{Channel, Error};
use prost::Message;

use super::api;
use super::calls;
use crate::metrics;

/// The calls to the runtime's `RuntimeService`. Cheap to clone.
#[derive(Clone)]
pub struct RuntimeService {
    channel: Channel,
    deadline: Duration,
}

impl RuntimeService {
    /// Creates a client of the runtime service. `deadline`: of each call, but for those that say
    /// otherwise.
    pub fn new(channel: Channel, deadline: Duration) -> RuntimeService {
        RuntimeService { channel, deadline }
    }

    /// Calls a method, for the macro `calls` and the methods below. `deadline`: `None` for none.
    async fn call<A: Message + Default>(
        &self,
        method: &'static str,
        request: &impl Message,
        deadline: Option<Duration>,
    ) -> Result<A, Error> {
        self.channel.call(method, request, deadline).await
    }

    calls! { "RuntimeService":
        /// The runtime's name and versions.
        version "Version" (api::VersionRequest) -> api::VersionResponse;
        /// The runtime's conditions, handlers and features.
        status "Status" (api::StatusRequest) -> api::StatusResponse;
        /// The runtime's cgroup driver. Runtimes before CRI 1.28 do not have it.
        runtime_config "RuntimeConfig" (api::RuntimeConfigRequest) -> api::RuntimeConfigResponse;
        update_runtime_config "UpdateRuntimeConfig"
            (api::UpdateRuntimeConfigRequest) -> api::UpdateRuntimeConfigResponse;
        stop_pod_sandbox "StopPodSandbox"
            (api::StopPodSandboxRequest) -> api::StopPodSandboxResponse;
        remove_pod_sandbox "RemovePodSandbox"
            (api::RemovePodSandboxRequest) -> api::RemovePodSandboxResponse;
        pod_sandbox_status "PodSandboxStatus"
            (api::PodSandboxStatusRequest) -> api::PodSandboxStatusResponse;
        list_pod_sandbox "ListPodSandbox"
            (api::ListPodSandboxRequest) -> api::ListPodSandboxResponse;
        create_container "CreateContainer"
            (api::CreateContainerRequest) -> api::CreateContainerResponse;
        start_container "StartContainer"
            (api::StartContainerRequest) -> api::StartContainerResponse;
        remove_container "RemoveContainer"
            (api::RemoveContainerRequest) -> api::RemoveContainerResponse;
        list_containers "ListContainers"
            (api::ListContainersRequest) -> api::ListContainersResponse;
        /// Runtimes before CRI 1.32 do not have it.
        update_pod_sandbox_resources "UpdatePodSandboxResources"
            (api::UpdatePodSandboxResourcesRequest) -> api::UpdatePodSandboxResourcesResponse;
        update_container_resources "UpdateContainerResources"
            (api::UpdateContainerResourcesRequest) -> api::UpdateContainerResourcesResponse;
        container_status "ContainerStatus"
            (api::ContainerStatusRequest) -> api::ContainerStatusResponse;
        /// The address of a command's streams.
        exec "Exec" (api::ExecRequest) -> api::ExecResponse;
        /// The address of a container's streams.
        attach "Attach" (api::AttachRequest) -> api::AttachResponse;
        /// The address of a sandbox's ports.
        port_forward "PortForward" (api::PortForwardRequest) -> api::PortForwardResponse;
        reopen_container_log "ReopenContainerLog"
            (api::ReopenContainerLogRequest) -> api::ReopenContainerLogResponse;
    }

    /// Creates a sandbox and waits until it is ready. The deadline is twice that of other calls,
    /// as the runtime may have to pull the sandbox's image.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn run_pod_sandbox(
        &self,
        request: api::RunPodSandboxRequest,
    ) -> Result<api::RunPodSandboxResponse, Error> {
        let deadline = self.deadline.saturating_mul(2);
        let method = "runtime.v1.RuntimeService/RunPodSandbox";
        let begin = self.channel.clock().monotonic();
        let answer = self.call(method, &request, Some(deadline)).await;
        let handler = &[request.runtime_handler.as_str()];
        let took = self.channel.clock().monotonic().saturating_sub(begin);
        metrics::RUN_SANDBOX.with_label_values(handler).observe(took.as_secs_f64());
        if answer.is_err() {
            metrics::RUN_SANDBOX_ERRORS.with_label_values(handler).inc();
        }
        answer
    }

    /// Stops a container: the stop signal, and SIGKILL after `grace`, which is added to the
    /// deadline.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn stop_container(&self, id: &str, grace: Duration) -> Result<(), Error> {
        let timeout = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX);
        let request = api::StopContainerRequest { container_id: id.to_owned(), timeout };
        let deadline = Some(self.deadline.saturating_add(grace));
        let method = "runtime.v1.RuntimeService/StopContainer";
        self.call::<api::StopContainerResponse>(method, &request, deadline).await.map(drop)
    }

    /// Runs a command in a container to its end. Without a `timeout` there is no deadline.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn exec_sync(
        &self,
        id: &str,
        command: &[String],
        timeout: Option<Duration>,
    ) -> Result<api::ExecSyncResponse, Error> {
        let seconds = timeout.map_or(0, |timeout| timeout.as_secs());
        let request = api::ExecSyncRequest {
            container_id: id.to_owned(),
            cmd: command.to_vec(),
            timeout: i64::try_from(seconds).unwrap_or(i64::MAX),
        };
        let deadline = timeout.map(|timeout| self.deadline.saturating_add(timeout));
        self.call("runtime.v1.RuntimeService/ExecSync", &request, deadline).await
    }
}
