//! Carries out the actions of a pod in the runtime: sandboxes and containers start here, and end in
//! `ending`. Upstream: `kubeGenericRuntimeManager`.

mod ending;
pub mod garbage;
mod hooks;
pub mod logs;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_lock::OnceCell;
use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::Timestamp;
use kube_controller_manager::task;
use parking_lot::Mutex;

use self::ending::Stopped;
use crate::cgroups::{self, Cgroups};
use crate::cri::{Error, RuntimeService, api, chain};
use crate::events;
use crate::images::{Images, Present, Waiting, Wanted};
use crate::local_objects::LocalObjects;
use crate::metrics;
use crate::node::address::NodeAddress;
use crate::node::huge_pages::PageSize;
use crate::pod::{Container, Pod, PodExt, Uid};
use crate::prober::{Ip, Probes, Running};
use crate::runtime::actions;
use crate::runtime::backoff::Backoff;
use crate::runtime::dns::{self, Resolvers};
use crate::runtime::environment::{self, NodeFacts};
use crate::runtime::order;
use crate::runtime::spec::{self, ContainerSite, SandboxSite};
use crate::runtime::status::{PodStatus, State};
use crate::volumes::{self, Folders};

/// The bytes of a container's last message. Upstream: `MaxContainerTerminationMessageLength`.
const MAX_MESSAGE: u64 = 4096;
/// The lines and bytes of a last message that is taken from the log. Upstream:
/// `MaxContainerTerminationMessageLogLines`, `MaxContainerTerminationMessageLogLength`.
const MAX_LOG_MESSAGE: (usize, usize) = (80, 2048);
/// The bytes of the log's end in which they are looked for.
const MAX_LOG: u64 = 64 << 10;

/// What the node is.
#[derive(Clone, Debug)]
pub struct Node {
    pub name: String,
    pub address: NodeAddress,
    pub cpus: i64,
    pub memory_bytes: i64,
    /// What all pods may have of them.
    pub allocatable_bytes: i64,
    pub page_sizes: Vec<PageSize>,
    pub resolvers: Resolvers,
    /// The parent of all pods' cgroups; empty: the runtime's.
    pub cgroup_root: String,
}

/// The calls to the runtime that pods need.
pub struct Manager {
    pub runtime: RuntimeService,
    /// As the runtime names itself; ids of containers begin with it.
    pub runtime_name: String,
    pub images: Images,
    pub probes: Probes,
    pub folders: Folders,
    /// The volumes of each pod that this process has set up, by name.
    pub mounted: Mutex<HashMap<Uid, BTreeSet<String>>>,
    /// The ConfigMaps and Secrets that pods may use.
    pub objects: LocalObjects,
    pub node: Node,
    pub clock: SharedClock,
    pub backoff: Mutex<Backoff>,
    /// How many containers stay that have ended.
    pub dead: garbage::Policy,
    /// Cgroups by class; `None`: each pod has its own below `cgroup_root`.
    pub cgroups: Option<Arc<Cgroups>>,
    /// Held while the shares of classes are counted and written.
    pub classes: Arc<async_lock::Mutex<()>>,
    /// Of the machine's cgroups; read before the first start of a container.
    pub cgroup_features: OnceCell<cgroups::Features>,
}

/// The outcome of a sync.
#[derive(Debug, Default)]
pub struct Synced {
    /// Why containers wait, by name.
    pub waiting: HashMap<String, Waiting>,
    /// When to sync again at the latest.
    pub retry: Option<Duration>,
    /// All containers were removed, to start again.
    pub is_reset: bool,
}

impl Synced {
    fn wait(&mut self, container: &str, waiting: Waiting, retry: Duration) {
        self.waiting.insert(container.to_owned(), waiting);
        self.retry = Some(self.retry.map_or(retry, |other| other.min(retry)));
    }
}

/// After an error that a retry may mend. Upstream: `backOffPeriod`.
const RETRY: Duration = Duration::from_secs(10);

fn text(error: Error) -> String {
    chain(&error)
}

impl Manager {
    /// Does what `actions::compute` says for the pod's state.
    ///
    /// `restarts_all`: the restart of all its containers is under way.
    ///
    /// # Errors
    /// When a step failed on which the others depend.
    pub async fn sync(
        &self,
        pod: &Arc<Pod>,
        status: &PodStatus,
        restarts_all: bool,
    ) -> Result<Synced, String> {
        let (folders, of) = (self.folders.clone(), pod.clone());
        let Node { cpus, allocatable_bytes: memory_bytes, address, .. } = self.node.clone();
        let objects = self.objects.now();
        let time = self.clock.now().to_jiff().strftime("%Y_%m_%d_%H_%M_%S").to_string();
        let mounted = self.mounted.lock().get(&pod.uid()).cloned().unwrap_or_default();
        let before = mounted.clone();
        let set_up = task::blocking(move || {
            let host = address.now();
            let facts = NodeFacts { host_ip: host.as_deref(), pod_ips: &[], cpus, memory_bytes };
            volumes::set_up(&folders, &of, &before, facts, &objects, &time)
        });
        let fail = |fault: &String| events::warning(pod, None, "FailedMount", fault);
        let mut missing = Ok(());
        for (name, outcome) in set_up.await.inspect_err(fail)? {
            match outcome.inspect_err(fail) {
                Ok(()) => drop(self.mounted.lock().entry(pod.uid()).or_default().insert(name)),
                // Containers go on with what was set up before.
                Err(_) if mounted.contains(&name) => {}
                Err(fault) => missing = missing.and(Err(fault)),
            }
        }
        missing?;
        let actions = actions::compute(pod, status, &|id| self.probes.results(id), restarts_all);
        if actions.kill_pod {
            self.kill_pod(pod, status, None).await?;
        } else {
            for kill in &actions.to_kill {
                self.kill(pod, status, kill).await?;
            }
            self.reset(pod, &actions.to_reset, status.ips()).await?;
        }
        if actions.create_sandbox {
            self.remove_init_containers(pod, status).await?;
        }
        if actions.create_sandbox && actions.sandbox.is_some() {
            let message = "Pod sandbox changed, it will be killed and re-created.";
            events::normal(pod, None, "SandboxChanged", message);
        }
        let mut synced = Synced { is_reset: !actions.to_reset.is_empty(), ..Synced::default() };
        let config = self.sandbox_config(pod, actions.attempt).await?;
        let sandbox = match (actions.create_sandbox, &actions.sandbox) {
            (true, _) => self.run_sandbox(pod, &config).await?,
            (false, Some(sandbox)) if !actions.kill_pod => sandbox.clone(),
            (false, _) => return Ok(synced),
        };
        let ips = match actions.create_sandbox {
            true => self.sandbox_ips(&sandbox).await?,
            false => status.ips().to_vec(),
        };
        let init = actions.init_to_start.iter().map(|at| &pod.init_containers()[*at]);
        let main = actions.to_start.iter().map(|at| &pod.spec().containers[*at]);
        let init_count = actions.init_to_start.len();
        for (at, container) in init.chain(main).enumerate() {
            let site = StartSite { pod, status, sandbox: &sandbox, config: &config, ips: &ips };
            let outcome = self.start(&site, container).await;
            let waiting = outcome.as_ref().err().map(|(waiting, _)| waiting);
            observe_start(pod, container, at < init_count, waiting);
            if let Err((waiting, retry)) = outcome {
                synced.wait(&container.name, waiting, retry);
            }
        }
        Ok(synced)
    }

    /// Removes containers before all start again, those that run without grace.
    async fn reset(
        &self,
        pod: &Arc<Pod>,
        resets: &[actions::Reset],
        ips: &[String],
    ) -> Result<(), String> {
        for reset in resets {
            if reset.is_running {
                let stopped = Stopped { id: &reset.id, name: &reset.name, is_running: true };
                self.kill_container(pod, stopped, Some(0), ips, None).await?;
            }
            self.remove_container(&reset.id).await?;
            log::info!("pod {}: {} is removed, as all restart", pod.display_name(), reset.name);
        }
        Ok(())
    }

    /// Removes the init containers of a former sandbox: they run again in the new one, each after the
    /// one before it has ended there. Upstream: `purgeInitContainers`.
    async fn remove_init_containers(&self, pod: &Pod, status: &PodStatus) -> Result<(), String> {
        let is_init = |name: &str| pod.init_containers().iter().any(|init| init.name == name);
        for container in status.containers.iter().filter(|container| is_init(&container.name)) {
            let removed = garbage::remove_container(&self.runtime, &self.folders, &container.id);
            removed.await.map_err(text)?;
        }
        Ok(())
    }

    async fn remove_container(&self, id: &str) -> Result<(), String> {
        let request = api::RemoveContainerRequest { container_id: id.to_owned() };
        match self.runtime.remove_container(request).await {
            Err(error) if !error.is_not_found() => Err(text(error)),
            _ => Ok(()),
        }
    }

    /// Makes the pod's cgroup, after it has given the classes the shares of the `active` pods.
    /// Containers that run in another cgroup are ended: then false. Upstream: `Kubelet.SyncPod`.
    ///
    /// # Errors
    /// One line: it cannot be made, or the containers cannot be ended.
    pub async fn ensure_cgroup(
        &self,
        pod: &Arc<Pod>,
        status: &PodStatus,
        active: &(dyn Fn() -> Vec<Arc<Pod>> + Sync),
    ) -> Result<bool, String> {
        let Some(cgroups) = self.cgroups.clone() else { return Ok(true) };
        let (of, all) = (pod.clone(), cgroups.clone());
        if task::blocking(move || all.has_pod(&of)).await {
            return Ok(true);
        }
        if status.containers.iter().any(|one| one.state == State::Running) {
            log::warn!("pod {}: its containers run outside of its cgroup", pod.display_name());
            self.kill_pod(pod, status, None).await?;
            return Ok(false);
        }
        if let Err(error) = self.update_classes(active).await {
            let pod = pod.display_name();
            log::warn!("Failed to update QoS cgroups while syncing pod {pod}: {error}");
        }
        let of = pod.clone();
        let made = task::blocking(move || cgroups.ensure_pod(&of)).await;
        made.map_err(|error| {
            let message = format!("unable to ensure pod container exists: {error}");
            events::warning(pod, None, "FailedCreatePodContainer", message);
            format!("failed to ensure that the pod: {} cgroups exist and are correctly applied: {error}", pod.uid())
        })?;
        Ok(true)
    }

    /// Gives the classes the shares of the `active` pods.
    ///
    /// # Errors
    /// With the path that cannot be written.
    pub async fn update_classes(
        &self,
        active: &(dyn Fn() -> Vec<Arc<Pod>> + Sync),
    ) -> io::Result<()> {
        let Some(cgroups) = self.cgroups.clone() else { return Ok(()) };
        let guard = self.classes.lock_arc().await;
        let active = active();
        // The work holds the guard: it continues when this future does not.
        let update = move || {
            let _guard = guard;
            cgroups.update_classes(active.iter().map(|pod| &**pod))
        };
        task::blocking(update).await
    }

    /// Removes the cgroup of a pod whose containers have ended.
    ///
    /// # Errors
    /// One line: it cannot be removed.
    pub async fn remove_cgroup(&self, uid: &str) -> Result<(), String> {
        let Some(cgroups) = self.cgroups.clone() else { return Ok(()) };
        let of = uid.to_owned();
        let removed = task::blocking(move || cgroups.remove_pod(&of));
        removed.await.map_err(|error| format!("the cgroup of pod {uid}: {error}"))
    }

    async fn sandbox_config(
        &self,
        pod: &Arc<Pod>,
        attempt: u32,
    ) -> Result<api::PodSandboxConfig, String> {
        let hostname = match pod.is_host_network() {
            true => String::new(),
            false => dns::name(pod, &self.node.resolvers.cluster_domain).for_kernel(pod)?,
        };
        let (of, resolvers) = (pod.clone(), self.node.resolvers.clone());
        let dns = task::blocking(move || dns::resolver(&of, &resolvers)).await?;
        let logs = self.folders.pod_logs(pod);
        let parent = match (&self.cgroups, self.node.cgroup_root.trim_end_matches('/')) {
            (Some(cgroups), _) => cgroups.parent(pod),
            (None, "") => String::new(),
            (None, root) => format!("{root}/pod{}", pod.uid()),
        };
        Ok(spec::sandbox(
            pod,
            SandboxSite { attempt, log_directory: &logs, cgroup_parent: &parent, dns, hostname },
        ))
    }

    /// The runtime's handler that a pod's class names; empty: the default one.
    /// Upstream: `LookupRuntimeHandler`.
    fn handler(&self, pod: &Pod) -> Result<String, String> {
        self.objects.now().handler(pod.spec().runtime_class_name.as_deref())
    }

    async fn run_sandbox(
        &self,
        pod: &Pod,
        config: &api::PodSandboxConfig,
    ) -> Result<String, String> {
        metrics::STARTED_PODS.inc();
        let answer = async {
            let request = api::RunPodSandboxRequest {
                config: Some(config.clone()),
                runtime_handler: self.handler(pod)?,
            };
            self.runtime.run_pod_sandbox(request).await.map_err(text)
        };
        let answer = answer.await.inspect_err(|fault| {
            metrics::STARTED_PODS_ERRORS.inc();
            let message = format!("Failed to create pod sandbox: {fault}");
            events::warning(pod, None, "FailedCreatePodSandBox", message);
        })?;
        log::info!("pod {}: sandbox {} is ready", pod.display_name(), answer.pod_sandbox_id);
        Ok(answer.pod_sandbox_id)
    }

    async fn sandbox_ips(&self, sandbox: &str) -> Result<Vec<String>, String> {
        let request =
            api::PodSandboxStatusRequest { pod_sandbox_id: sandbox.to_owned(), verbose: false };
        let answer = self.runtime.pod_sandbox_status(request).await.map_err(text)?;
        let network = answer.status.and_then(|status| status.network).unwrap_or_default();
        let first = Some(network.ip).filter(|ip| !ip.is_empty());
        Ok(first.into_iter().chain(network.additional_ips.into_iter().map(|ip| ip.ip)).collect())
    }

    /// Writes the pod's `/etc/hosts`, and returns its mount. Containers that run may have changed the
    /// file: it is never read. Upstream: `makeHostsMount`.
    async fn hosts_mount(&self, pod: &Arc<Pod>, ips: &[String]) -> Result<api::Mount, String> {
        let file = self.folders.hosts_file(&pod.uid());
        let name = dns::name(pod, &self.node.resolvers.cluster_domain);
        let (of, ips) = (pod.clone(), ips.to_vec());
        task::blocking(move || {
            let text = match of.is_host_network() {
                true => volumes::host_hosts(&of)?,
                false => volumes::hosts(&of, &ips, &name),
            };
            volumes::write_hosts(&file, &text)
                .map_err(|error| format!("{}: {error}", file.display()))?;
            Ok(mount("/etc/hosts", &file))
        })
        .await
    }

    async fn start(
        &self,
        site: &StartSite<'_>,
        container: &Container,
    ) -> Result<(), (Waiting, Duration)> {
        let StartSite { pod, status, sandbox, config, ips } = *site;
        let now = self.clock.monotonic();
        let last = status.container(&container.name);
        let key = backoff_key(pod, container);
        // One that this sync has killed still runs in `status`: then the one before it counts.
        if let Some(ended) = status.last_ended(&container.name) {
            let event = now.saturating_sub(self.since(ended.finished_at));
            let mut backoff = self.backoff.lock();
            if let Some(until) = backoff.until(&key, event, now) {
                let delay = backoff.delay(&key).unwrap_or_default();
                let message = format!(
                    "back-off {delay:?} restarting failed container={} pod={}({})",
                    container.name,
                    pod.full_name(),
                    pod.uid(),
                );
                return Err((Waiting { reason: "CrashLoopBackOff", message }, until - now));
            }
            backoff.next(&key, event, now);
            backoff.remove_expired(now);
        }
        let volumes = self.image_volumes(pod, container, config).await.map_err(|w| (w, RETRY))?;
        let wanted = Wanted {
            name: container.image.as_deref().unwrap_or_default(),
            policy: container.image_pull_policy.as_deref(),
            container: Some(&container.name),
        };
        let image = self.images.ensure(pod, wanted, config).await.map_err(|w| (w, RETRY))?;
        let count = match last {
            Some(last) => last.restart_count + 1,
            None => self.starts_by_logs(pod, container).await,
        };
        let failed = |reason| move |message| (Waiting { reason, message }, RETRY);
        let images = StartImages { own: image, volumes };
        let definition = self.definition(pod, container, count, images, ips).await;
        let definition = definition.map_err(failed("CreateContainerConfigError"))?;
        let request = api::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(definition),
            sandbox_config: Some(config.clone()),
        };
        let created = self.runtime.create_container(request).await;
        let id = created.map_err(text).map_err(failed("CreateContainerError"))?.container_id;
        events::normal(pod, Some(&container.name), "Created", "Container created");
        let request = api::StartContainerRequest { container_id: id.clone() };
        let started = self.runtime.start_container(request).await;
        started.map_err(text).map_err(failed("RunContainerError"))?;
        events::normal(pod, Some(&container.name), "Started", "Container started");
        self.link_log(pod, container, &id, count).await;
        self.post_start(pod, container, &id, ips).await.map_err(failed("PostStartHookError"))
    }

    /// Pulls the images of a container's image volumes; they are mounted by the runtime.
    /// Upstream: `getImageVolumes`, `toKubeContainerImageVolumes`.
    async fn image_volumes(
        &self,
        pod: &Arc<Pod>,
        container: &Container,
        config: &api::PodSandboxConfig,
    ) -> Result<HashMap<String, api::ImageSpec>, Waiting> {
        let mut images = HashMap::new();
        let is_mounted = |volume: &&core::Volume| {
            container.volume_mounts.iter().flatten().any(|mount| mount.name == volume.name)
        };
        for volume in pod.spec().volumes.iter().flatten().filter(is_mounted) {
            let Some(source) = &volume.image else { continue };
            let name = source.reference.as_deref().unwrap_or_default();
            let wanted = Wanted { name, policy: source.pull_policy.as_deref(), container: None };
            let image = self.images.ensure(pod, wanted, config).await?;
            let annotations = pod.metadata.annotations.clone().unwrap_or_default();
            let spec = api::ImageSpec {
                image: image.id,
                user_specified_image: name.to_owned(),
                annotations: annotations.into_iter().collect(),
                ..Default::default()
            };
            images.insert(volume.name.clone(), spec);
        }
        Ok(images)
    }

    /// The number of a container's start when the runtime has no earlier one.
    async fn starts_by_logs(&self, pod: &Pod, container: &Container) -> u32 {
        let folder = self.folders.pod_logs(pod).join(&container.name);
        task::blocking(move || {
            let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
            let names: Vec<String> =
                files.map(|file| file.file_name().to_string_lossy().into_owned()).collect();
            order::next_start(names.iter().map(String::as_str))
        })
        .await
    }

    async fn link_log(&self, pod: &Arc<Pod>, container: &Container, id: &str, count: u32) {
        let (folders, pod, id) = (self.folders.clone(), pod.clone(), id.to_owned());
        let name = container.name.clone();
        let linked = task::blocking(move || {
            let log = folders.pod_logs(&pod).join(&name).join(format!("{count}.log"));
            garbage::link_log(&folders, &pod, &name, &id, &log)
        });
        if let Err(error) = linked.await {
            log::error!("Failed to create legacy symbolic link to a log: {error}");
        }
    }

    /// The time since a wall-clock time in nanoseconds.
    fn since(&self, nanos: i64) -> Duration {
        let then = Timestamp::from_micros(nanos / 1000);
        self.clock.now().duration_since(then)
    }

    async fn definition(
        &self,
        pod: &Arc<Pod>,
        container: &Container,
        restart_count: u32,
        images: StartImages,
        ips: &[String],
    ) -> Result<api::ContainerConfig, String> {
        let (folders, of, named) = (self.folders.clone(), pod.clone(), container.clone());
        let (objects, pod_ips) = (self.objects.now(), ips.to_vec());
        let Node { cpus, allocatable_bytes: memory_bytes, address, .. } = self.node.clone();
        let image = images.own;
        let (variables, mut mounts) = task::blocking(move || {
            let host = address.now();
            let host_ip = host.as_deref();
            let facts = NodeFacts { host_ip, pod_ips: &pod_ips, cpus, memory_bytes };
            let file = |key: &_| volumes::variable_file(&folders, &of, key);
            let sources = environment::Sources { facts, objects: &objects, file: &file };
            let variables = environment::variables(&of, &named, sources)?;
            let values: environment::Values = variables.iter().cloned().collect();
            let mounts = volumes::mounts(&folders, &of, &named, &values, &images.volumes)?;
            Ok::<_, String>((variables, mounts))
        })
        .await?;
        let has =
            |path: &str, mounts: &[api::Mount]| mounts.iter().any(|m| m.container_path == path);
        if !has("/etc/hosts", &mounts) {
            mounts.push(self.hosts_mount(pod, ips).await?);
        }
        if let Some(path) = container.termination_message_path.as_deref().filter(|p| !p.is_empty())
        {
            let file = self.folders.message_file(&pod.uid(), &container.name, restart_count);
            mounts.push(mount(path, &file));
            task::blocking(move || make_message_file(&file)).await?;
        }
        let detect = || task::blocking(cgroups::Features::detect);
        let features = self.cgroup_features.get_or_init(detect).await;
        let site = ContainerSite {
            restart_count,
            image_ref: &image.id,
            image_uid: image.uid,
            environment: variables,
            mounts,
            memory_bytes: self.node.memory_bytes,
            page_sizes: &self.node.page_sizes,
            seccomp: &self.folders.root.join("seccomp"),
            has_app_armor: has_app_armor(),
            unified: features.unified(),
            limits_memory_and_swap: features.limits_memory_and_swap(),
        };
        self.check_features(pod, container).await?;
        spec::container(pod, container, site)
    }

    /// Checks that the runtime has what a container asks for and older runtimes would ignore.
    async fn check_features(&self, pod: &Pod, container: &Container) -> Result<(), String> {
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
        let status = self.runtime.status(request).await.map_err(text)?;
        let has_groups = status.features.is_some_and(|f| f.supplemental_groups_policy);
        if is_strict && !has_groups {
            return Err("the runtime does not support supplementalGroupsPolicy Strict".to_owned());
        }
        // The handler without a name is the default one.
        let own = self.handler(pod)?;
        let handler = status.runtime_handlers.iter().find(|handler| handler.name == own);
        let features = handler.and_then(|handler| handler.features.as_ref());
        if is_recursive && !features.is_some_and(|f| f.recursive_read_only_mounts) {
            return Err(
                "failed to resolve recursive read-only mode: the runtime does not support \
                        recursive read-only mounts"
                    .to_owned(),
            );
        }
        Ok(())
    }

    async fn post_start(
        &self,
        pod: &Arc<Pod>,
        container: &Container,
        id: &str,
        ips: &[String],
    ) -> Result<(), String> {
        let hook = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.post_start.as_ref());
        let Some(hook) = hook else { return Ok(()) };
        let Err(fault) = self.hook(pod, container, id, hook, ips).await else { return Ok(()) };
        let name = &container.name;
        log::warn!("pod {}: PostStartHook of {name} failed: {fault}", pod.display_name());
        let started = Stopped { id, name, is_running: true };
        if let Err(error) = self.kill_container(pod, started, None, ips, None).await {
            log::error!("pod {}: {name} cannot be stopped: {error}", pod.display_name());
        }
        Err(fault)
    }

    async fn hook(
        &self,
        pod: &Pod,
        container: &Container,
        id: &str,
        hook: &core::LifecycleHandler,
        ips: &[String],
    ) -> Result<(), String> {
        let ip = match pod.is_host_network() {
            true => Some(self.node.address.or_loopback()),
            false => ips.first().cloned(),
        };
        let ip = ip.as_deref();
        let (runtime, clock) = (&self.runtime, &self.clock);
        hooks::run(&hooks::HookTarget { runtime, clock, pod, container, id, ip }, hook).await
    }

    /// Starts probes of what runs in a pod, and ends those of what does not.
    pub async fn update_probes(&self, pod: &Arc<Pod>, status: &PodStatus) {
        let ip = match pod.is_host_network() {
            true => Some(Ip::OfNode(self.node.address.clone())),
            false => status.ips().first().cloned().map(Ip::OfPod),
        };
        let running = status.containers.iter().filter(|c| c.state == State::Running);
        let running = running.filter_map(|status| {
            let started_at = Timestamp::from_micros(status.started_at / 1000);
            Some(Running { definition: pod.container(&status.name)?, id: &status.id, started_at })
        });
        let running: Vec<_> = running.collect();
        match ip {
            Some(ip) => self.probes.update(pod, &running, &ip).await,
            None => self.probes.retain(&pod.uid(), &BTreeSet::new()),
        }
    }

    /// The last messages of a pod's containers that have ended.
    pub async fn messages(&self, status: &PodStatus) -> HashMap<String, String> {
        let ended = status.containers.iter().filter(|container| container.state == State::Exited);
        let files: Vec<_> = ended
            .map(|container| {
                let log = (container.falls_back_to_logs && container.exit_code != 0)
                    .then(|| container.log_path.clone());
                (container.id.clone(), container.message_file.clone(), log)
            })
            .collect();
        task::blocking(move || {
            let messages = files.into_iter().filter_map(|(id, file, log)| {
                let message = file.and_then(|file| tail(&file, MAX_MESSAGE));
                let message = message.filter(|text| !text.is_empty());
                Some((id, message.or_else(|| log_text(&tail(&log?, MAX_LOG)?))?))
            });
            messages.collect()
        })
        .await
    }
}

/// With another image or other resources a container has no back-off yet. Upstream: `GetBackoffKey`.
fn backoff_key(pod: &Pod, container: &Container) -> String {
    let image = container.image.as_deref().unwrap_or_default();
    let resources = serde_json::to_string(&container.resources).unwrap_or_default();
    format!("{}_{}_{image}_{resources}", pod.uid(), container.name)
}

/// Counts a start of a container, and records why it has failed. Upstream: `SyncPod`'s `start`.
fn observe_start(pod: &Pod, container: &Container, is_init: bool, failed: Option<&Waiting>) {
    let kind = if is_init { "init_container" } else { "container" };
    let name = Some(container.name.as_str());
    if failed.is_none_or(|waiting| waiting.reason != "CrashLoopBackOff") {
        metrics::STARTED_CONTAINERS.with_label_values(&[kind]).inc();
    }
    let Some(Waiting { reason, message }) = failed else { return };
    match *reason {
        "CrashLoopBackOff" => {
            let (pod_name, uid) = (pod.full_name(), pod.uid());
            let of = &container.name;
            let message =
                format!("Back-off restarting failed container {of} in pod {pod_name}({uid})");
            return events::warning(pod, name, "BackOff", message);
        }
        "PostStartHookError" => {
            events::warning(pod, name, "FailedPostStartHook", "PostStartHook failed");
        }
        "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => {
            events::warning(pod, name, "Failed", format!("Error: {message}"));
        }
        // Images have said more.
        reason => events::warning(pod, name, "Failed", format!("Error: {reason}")),
    }
    metrics::STARTED_CONTAINERS_ERRORS.with_label_values(&[kind, *reason]).inc();
}

/// The images that a container starts with.
struct StartImages {
    own: Present,
    /// Those of its image volumes, by volume.
    volumes: HashMap<String, api::ImageSpec>,
}

/// Where containers start.
struct StartSite<'a> {
    pod: &'a Arc<Pod>,
    status: &'a PodStatus,
    sandbox: &'a str,
    config: &'a api::PodSandboxConfig,
    ips: &'a [String],
}

fn mount(container_path: &str, host_path: &std::path::Path) -> api::Mount {
    api::Mount {
        container_path: container_path.to_owned(),
        host_path: host_path.display().to_string(),
        ..Default::default()
    }
}

/// Containers of each user write to it.
fn make_message_file(file: &std::path::Path) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt;
    let make = || {
        std::fs::File::create(file)?;
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o666))
    };
    make().map_err(|error| format!("{}: {error}", file.display()))
}

/// The last bytes of a file.
fn tail(file: &str, bytes: u64) -> Option<String> {
    use std::io::{Read, Seek, SeekFrom};
    let mut file = std::fs::File::open(file).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(bytes))).ok()?;
    let mut content = Vec::new();
    file.take(bytes).read_to_end(&mut content).ok()?;
    Some(String::from_utf8_lossy(&content).into_owned())
}

/// The end of the text of lines of CRI's log format: time, stream, tag, text.
fn log_text(lines: &str) -> Option<String> {
    let count = lines.lines().count();
    let mut text = String::new();
    for line in lines.lines().skip(count.saturating_sub(MAX_LOG_MESSAGE.0)) {
        let mut parts = line.splitn(4, ' ').skip(2);
        if let (Some(tag), Some(part)) = (parts.next(), parts.next()) {
            text.push_str(part);
            // A partial line is followed by its rest.
            if tag != "P" {
                text.push('\n');
            }
        }
    }
    let start = text.len().saturating_sub(MAX_LOG_MESSAGE.1);
    let start = (start..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(start);
    Some(text.split_off(start)).filter(|text| !text.is_empty())
}

/// Upstream: `apparmor.isEnabled`.
fn has_app_armor() -> bool {
    std::fs::read_to_string("/sys/module/apparmor/parameters/enabled")
        .is_ok_and(|text| text.starts_with('Y'))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn another_image_or_other_resources_have_another_back_off() {
        let pod: Pod =
            serde_json::from_value(json!({ "metadata": { "uid": "u" } })).expect("a pod");
        let key = |image: &str, cpu: &str| {
            let container = json!({
                "name": "a", "image": image, "resources": { "limits": { "cpu": cpu } },
            });
            backoff_key(&pod, &serde_json::from_value(container).expect("a container"))
        };
        assert_eq!(key("x", "1"), key("x", "1"));
        assert!(key("x", "1") != key("y", "1") && key("x", "1") != key("x", "2"));
    }

    #[test]
    fn text_is_taken_out_of_log_lines() {
        let lines =
            "2026-01-01T00:00:00Z stdout F first\n2026-01-01T00:00:00Z stderr F second line\n";
        assert_eq!(log_text(lines).as_deref(), Some("first\nsecond line\n"));
        assert_eq!(log_text("t stdout P a\nt stdout F b\n").as_deref(), Some("ab\n"));
        assert_eq!(log_text(""), None);
        let many: String = (0..100).map(|at| format!("t stdout F {at}\n")).collect();
        assert!(log_text(&many).is_some_and(|text| text.starts_with("20\n")));
        let long = format!("t stdout F {}\n", "é".repeat(2000));
        assert_eq!(log_text(&long).map(|text| text.len()), Some(2047));
    }
}
