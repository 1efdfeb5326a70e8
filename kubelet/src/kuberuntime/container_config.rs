//! The definition of a container: its environment, its mounts, and what the node adds. Upstream:
//! `generateContainerConfig`, `Kubelet.GenerateRunContainerOptions`.

use std::collections::HashMap;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::task;

use super::start::{ContainerImages, Start};
use super::{Error, Manager};
use crate::cgroups;
use crate::cri::api;
use crate::node::app_armor;
use crate::objects::Use;
use crate::pod::{Container, Pod, PodExt};
use crate::runtime::dns;
use crate::runtime::environment::{self, DownwardInputs};
use crate::runtime::spec::{self, ContainerSettings, Seccomp};
use crate::volumes;

/// The path of the file with the pod's host names.
const HOSTS: &str = "/etc/hosts";

/// The variables of a container, and its mounts.
type VariablesAndMounts = (Vec<(String, Vec<u8>)>, Vec<api::Mount>);

impl Manager {
    /// Builds the definition of a container for the runtime: computes its variables, writes the
    /// files that it mounts, and adds what the node and the volumes contribute.
    pub(super) async fn container_config(
        &self,
        pod: &Arc<Pod>,
        container: &Container,
        Start { restart_count, images, target }: Start,
        ips: &[String],
    ) -> Result<api::ContainerConfig, Error> {
        let ContainerImages { own: image, volumes } = images;
        let (environment, mut mounts) =
            self.variables_and_mounts(pod, container, volumes, ips).await?;
        if !mounts.iter().any(|mount| mount.container_path == HOSTS) {
            mounts.push(self.hosts_mount(pod, ips).await?);
        }
        mounts.extend(self.message_mount(pod, container, restart_count).await?);
        let features = self.cgroup_features().await;
        let users = self.users(pod).await?;
        let settings = ContainerSettings {
            restart_count,
            image_ref: &image.id,
            users: users.as_ref(),
            target,
            image_uid: image.uid,
            environment,
            mounts,
            memory_bytes: self.node.memory_bytes,
            page_sizes: &self.node.page_sizes,
            seccomp: Seccomp {
                folder: &self.folders.root.join("seccomp"),
                runtime_by_default: self.node.seccomp_default,
            },
            has_app_armor: app_armor::is_enabled(),
            unified: features.unified(self.node.single_process_oom_kill),
            limits_memory_and_swap: features.limits_memory_and_swap(),
        };
        self.check_features(pod, container).await?;
        let mut config = spec::container(pod, container, settings)?;
        config.devices = volumes::devices(&self.volumes.mounted(&pod.uid()), container)?;
        let security = config.linux.as_mut().and_then(|linux| linux.security_context.as_mut());
        if let Some(security) = security {
            security.supplemental_groups.extend(self.volumes.groups(pod));
        }
        Ok(config)
    }

    /// Returns the features of the machine's cgroups, which the first call detects.
    pub(super) async fn cgroup_features(&self) -> cgroups::Features {
        let detect = || task::blocking(cgroups::Features::detect);
        *self.cgroup_features.get_or_init(detect).await
    }

    /// Computes the variables of a container, mounts its subpaths and returns its mounts. The
    /// blocking part holds the lock of the pod's volumes: it may go on after this future is dropped,
    /// and the end of the pod has to come after it.
    async fn variables_and_mounts(
        &self,
        pod: &Arc<Pod>,
        container: &Container,
        images: HashMap<String, api::ImageSpec>,
        ips: &[String],
    ) -> Result<VariablesAndMounts, Error> {
        let services = self.objects.service_variables(pod).await.map_err(Error::NoObject)?;
        let objects = self.objects.read(pod, Use::Variables(container)).await;
        let (folders, pod, container) = (self.folders.clone(), pod.clone(), container.clone());
        let node = self.node.own.clone();
        // The runtime reports no addresses of a pod with the node's network.
        let pod_ips = match pod.is_host_network() {
            true => node.host_ips(),
            false => ips.to_vec(),
        };
        let mounted = self.volumes.mounted(&pod.uid());
        let recursive = self.supports_recursive(&pod).await;
        let held = self.volumes.lock(&pod.uid()).await;
        task::blocking(move || {
            let _held = held;
            let inputs = DownwardInputs { node: &node, pod_ips: &pod_ips };
            let file = |key: &_| -> environment::FileContent {
                Ok(volumes::variable_file(&mounted, &pod, key)?)
            };
            let (objects, services) = (&objects, &services);
            let sources = environment::Sources { inputs, objects, services, file: &file };
            let variables = environment::variables(&pod, &container, sources)?;
            let values: environment::Values = variables.iter().cloned().collect();
            let mounts =
                volumes::mounts(&folders, &pod, &mounted, &container, &values, &images, recursive)?;
            Ok((variables, mounts))
        })
        .await
    }

    /// Writes the pod's `/etc/hosts`, and returns its mount. Containers that run may have changed
    /// the file: it is never read. Upstream: `makeHostsMount`.
    async fn hosts_mount(&self, pod: &Arc<Pod>, ips: &[String]) -> Result<api::Mount, Error> {
        let file = self.folders.hosts_file(&pod.uid());
        let name = dns::name(pod, &self.node.resolvers.cluster_domain);
        let (of, ips) = (pod.clone(), ips.to_vec());
        task::blocking(move || {
            let text = match of.is_host_network() {
                true => volumes::host_hosts(&of)?,
                false => volumes::hosts(&of, &ips, &name),
            };
            volumes::write_hosts(&file, &text).map_err(Error::at(&file))?;
            Ok(mount(HOSTS, &file))
        })
        .await
    }

    /// Makes the file for the container's last message, and returns its mount, if it has one.
    async fn message_mount(
        &self,
        pod: &Pod,
        container: &Container,
        restart_count: u32,
    ) -> Result<Option<api::Mount>, Error> {
        let path = container.termination_message_path.as_deref().filter(|path| !path.is_empty());
        let Some(path) = path else { return Ok(None) };
        let file = self.folders.message_file(&pod.uid(), &container.name, restart_count);
        let mount = mount(path, &file);
        task::blocking(move || make_message_file(&file)).await?;
        Ok(Some(mount))
    }

    /// Returns whether a container of the pod has a mount with `recursiveReadOnly: IfPossible`, and
    /// the Node says that the runtime supports it: then what is mounted in the mount is read-only
    /// too. Upstream: `runtimeClassSupportsRecursiveReadOnlyMounts`.
    pub async fn supports_recursive(&self, pod: &Pod) -> bool {
        let asks = |mounts: &Option<Vec<core::VolumeMount>>| {
            let mut modes = mounts.iter().flatten().map(|mount| &mount.recursive_read_only);
            modes.any(|mode| mode.as_deref() == Some("IfPossible"))
        };
        let mut ephemeral = pod.ephemeral_containers().iter();
        let is_asked = pod.all_containers().any(|container| asks(&container.volume_mounts))
            || ephemeral.any(|container| asks(&container.volume_mounts));
        if !is_asked {
            return false;
        }
        // A class that is not known keeps the container from its start.
        let Ok(own) = self.objects.handler(pod).await else { return false };
        let node = self.node.own.get();
        let handlers = node.status.as_ref().and_then(|status| status.runtime_handlers.as_ref());
        let mut handlers = handlers.into_iter().flatten();
        let handler = handlers.find(|handler| handler.name.as_deref().unwrap_or_default() == own);
        let features = handler.and_then(|handler| handler.features.as_ref());
        features.and_then(|features| features.recursive_read_only_mounts) == Some(true)
    }

    /// Checks that the runtime has what a container asks for and older runtimes would ignore.
    async fn check_features(&self, pod: &Pod, container: &Container) -> Result<(), Error> {
        let is_strict = spec::has_strict_groups(pod);
        let is_recursive = container
            .volume_mounts
            .iter()
            .flatten()
            .any(|mount| mount.recursive_read_only.as_deref() == Some("Enabled"));
        if !is_strict && !is_recursive {
            return Ok(());
        }
        let request = api::StatusRequest { verbose: false };
        let status = self.runtime.status(request).await?;
        let has_groups = status.features.is_some_and(|f| f.supplemental_groups_policy);
        if is_strict && !has_groups {
            return Err(Error::NoStrictGroups);
        }
        // The handler without a name is the default one.
        let own = self.handler(pod).await?;
        let handler = status.runtime_handlers.iter().find(|handler| handler.name == own);
        let features = handler.and_then(|handler| handler.features.as_ref());
        if is_recursive && !features.is_some_and(|f| f.recursive_read_only_mounts) {
            return Err(Error::NoRecursiveReadOnly);
        }
        Ok(())
    }
}

/// Builds the mount of a file of the kubelet. Blocks at the first call.
fn mount(container_path: &str, host_path: &Path) -> api::Mount {
    api::Mount {
        container_path: container_path.to_owned(),
        host_path: host_path.display().to_string(),
        selinux_relabel: volumes::has_selinux(),
        ..Default::default()
    }
}

/// Makes the file for a container's last message, to which each user may write.
fn make_message_file(file: &Path) -> Result<(), Error> {
    let make = || {
        File::create(file)?;
        fs::set_permissions(file, Permissions::from_mode(0o666))
    };
    make().map_err(Error::at(file))
}
