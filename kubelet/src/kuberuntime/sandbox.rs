//! The sandbox of a pod: its definition, its start and its end. Upstream:
//! `kuberuntime_sandbox.go`.

use std::sync::Arc;

use kube_controller_manager::task;

use super::{Error, Manager};
use crate::cri::{self, api};
use crate::pod::{Pod, PodExt};
use crate::runtime::dns;
use crate::runtime::spec::{self, SandboxSettings};
use crate::user_namespaces::IdMapping;

/// A sandbox in which containers start.
pub(super) struct PodSandbox {
    pub(super) id: String,
    pub(super) config: api::PodSandboxConfig,
    /// None with the host's network.
    pub(super) ips: Vec<String>,
}

impl Manager {
    /// Builds the definition of the pod's sandbox.
    ///
    /// # Errors
    /// The pod's host name is too long, the node's resolver cannot be read, or the pod's user
    /// namespace cannot be determined.
    pub(super) async fn sandbox_config(
        &self,
        pod: &Arc<Pod>,
        attempt: u32,
    ) -> Result<api::PodSandboxConfig, Error> {
        let hostname = match pod.is_host_network() {
            true => String::new(),
            false => dns::name(pod, &self.node.resolvers.cluster_domain).for_kernel(pod)?,
        };
        let (of, resolvers) = (pod.clone(), self.node.resolvers.clone());
        let dns = task::blocking(move || dns::resolver(&of, &resolvers)).await?;
        let log_directory = &self.folders.pod_logs(pod);
        let cgroup_parent = &self.cgroup_parent(pod);
        let users = &self.users(pod).await?;
        let users = users.as_ref();
        let settings =
            SandboxSettings { attempt, log_directory, cgroup_parent, dns, hostname, users };
        let mut config = spec::sandbox(pod, settings);
        let security = config.linux.as_mut().and_then(|linux| linux.security_context.as_mut());
        if let Some(security) = security {
            security.supplemental_groups.extend(self.volumes.groups(pod));
        }
        Ok(config)
    }

    /// Determines the user namespace of a pod: the host's, or one with ids of its own; `None`: its
    /// definition does not say. Upstream: `GetOrCreateUserNamespaceMappings`.
    ///
    /// # Errors
    /// The runtime has no user namespaces, or no ids are free.
    pub(super) async fn users(&self, pod: &Pod) -> Result<Option<api::UserNamespace>, Error> {
        match pod.spec().host_users {
            None => return Ok(None),
            Some(true) => {
                let mode = api::NamespaceMode::Node as i32;
                return Ok(Some(api::UserNamespace { mode, ..Default::default() }));
            }
            Some(false) => {}
        }
        let own = self.handler(pod).await?;
        let request = api::StatusRequest { verbose: false };
        let handlers = self.runtime.status(request).await?.runtime_handlers;
        let handler = handlers.iter().find(|handler| handler.name == own);
        let features = handler.and_then(|handler| handler.features.as_ref());
        if !features.is_some_and(|features| features.user_namespaces) {
            return Err(Error::NoUserNamespaces { handler: own });
        }
        let (all, uid) = (self.user_namespaces.clone(), pod.uid());
        let ids = task::blocking(move || all.get_or_create(&uid)).await;
        let IdMapping { host_id, container_id, length } = ids.map_err(Error::UserNamespace)?;
        let ids = vec![api::IdMapping { host_id, container_id, length }];
        let mode = api::NamespaceMode::Pod as i32;
        Ok(Some(api::UserNamespace { mode, uids: ids.clone(), gids: ids }))
    }

    /// Returns the runtime's handler that a pod's class names; empty: the default one. Upstream:
    /// `LookupRuntimeHandler`.
    pub(super) async fn handler(&self, pod: &Pod) -> Result<String, Error> {
        self.objects.handler(pod).await.map_err(Error::NoObject)
    }

    /// Makes and starts a sandbox. Returns its id.
    pub(super) async fn run_sandbox(
        &self,
        pod: &Pod,
        config: &api::PodSandboxConfig,
    ) -> Result<String, Error> {
        let request = api::RunPodSandboxRequest {
            config: Some(config.clone()),
            runtime_handler: self.handler(pod).await?,
        };
        let answer = self.runtime.run_pod_sandbox(request).await?;
        log::info!("pod {}: sandbox {} is ready", pod.display_name(), answer.pod_sandbox_id);
        Ok(answer.pod_sandbox_id)
    }

    /// Returns the addresses of a sandbox.
    pub(super) async fn sandbox_ips(&self, id: &str) -> Result<Vec<String>, cri::Error> {
        let request =
            api::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: false };
        let status = self.runtime.pod_sandbox_status(request).await?.status;
        let network = status.and_then(|status| status.network).unwrap_or_default();
        let first = Some(network.ip).filter(|ip| !ip.is_empty());
        Ok(first.into_iter().chain(network.additional_ips.into_iter().map(|ip| ip.ip)).collect())
    }

    /// Ends a sandbox and what runs in it.
    pub(super) async fn stop_sandbox(&self, id: &str) -> Result<(), cri::Error> {
        let request = api::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        match self.runtime.stop_pod_sandbox(request).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }
}
