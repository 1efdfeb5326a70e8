//! Carries out the actions of a pod in the runtime: sandboxes and containers start, stop and are
//! removed. Upstream: `kubeGenericRuntimeManager`.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_lite::FutureExt;
use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::task;
use parking_lot::Mutex;

use crate::cgroups::Cgroups;
use crate::concurrent::join_all;
use crate::cri::{Error, RuntimeService, api, chain};
use crate::garbage;
use crate::images::{Images, Waiting};
use crate::pod::{Container, DEFAULT_GRACE_SECONDS, Pod, PodExt};
use crate::probes::{self, Kind, Probes};
use crate::runtime::actions::{self, Kill, KillReason};
use crate::runtime::backoff::Backoff;
use crate::runtime::environment::{self, NodeFacts};
use crate::runtime::spec::{self, ContainerSite, SandboxSite};
use crate::runtime::status::{self, ContainerStatus, PodStatus, State};
use crate::volumes::{self, Folders};

/// A stop always leaves the runtime this long. Upstream: `minimumGracePeriodInSeconds`.
const MIN_GRACE: i64 = 2;

/// The bytes of a container's last message. Upstream: `MaxContainerTerminationMessageLength`.
const MAX_MESSAGE: usize = 4096;

/// What the node is.
#[derive(Clone, Debug)]
pub struct Node {
    pub name: String,
    pub ip: String,
    pub cpus: i64,
    pub memory_bytes: i64,
    /// The resolver of pods that have no own.
    pub dns: api::DnsConfig,
    /// The parent of all pods' cgroups; empty: the runtime's.
    pub cgroup_root: String,
}

/// The calls to the runtime that pods need.
pub struct Manager {
    pub runtime: RuntimeService,
    pub images: Images,
    pub probes: Probes,
    pub folders: Folders,
    pub node: Node,
    pub clock: SharedClock,
    pub backoff: Mutex<Backoff>,
    /// How many containers stay that have ended.
    pub dead: garbage::Policy,
    /// Cgroups by class; `None`: each pod has its own below `cgroup_root`.
    pub cgroups: Option<Arc<Cgroups>>,
}

/// The outcome of a sync.
#[derive(Debug, Default)]
pub struct Synced {
    /// Why containers wait, by name.
    pub waiting: HashMap<String, Waiting>,
    /// When to sync again at the latest.
    pub retry: Option<Duration>,
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
    /// # Errors
    /// When a step failed on which the others depend.
    pub async fn sync(&self, pod: &Arc<Pod>, status: &PodStatus) -> Result<Synced, String> {
        let facts = self.facts(status.ips());
        let (folders, of) = (self.folders.clone(), pod.clone());
        let (cpus, memory_bytes, host) = (facts.cpus, facts.memory_bytes, self.node.ip.clone());
        task::blocking(move || {
            let facts = NodeFacts { host_ip: &host, pod_ips: &[], cpus, memory_bytes };
            volumes::set_up(&folders, &of, facts)
        })
        .await?;
        if !self.ensure_cgroup(pod, status).await? {
            return Ok(Synced { retry: Some(Duration::ZERO), ..Synced::default() });
        }
        let actions = actions::compute(pod, status, &|id| self.probes.results(id));
        if actions.kill_pod {
            self.kill_pod(pod, status, None).await?;
        } else {
            for kill in &actions.to_kill {
                self.kill(pod, status, kill).await?;
            }
        }
        let mut synced = Synced::default();
        let config = self.sandbox_config(pod, actions.attempt);
        let sandbox = match (actions.create_sandbox, &actions.sandbox) {
            (true, _) => self.run_sandbox(pod, &config).await?,
            (false, Some(sandbox)) if !actions.kill_pod => sandbox.clone(),
            (false, _) => return Ok(synced),
        };
        let ips = match actions.create_sandbox {
            true => self.sandbox_ips(&sandbox).await?,
            false => status.ips().to_vec(),
        };
        self.write_hosts(pod, &ips).await?;
        let init = actions.init_to_start.iter().map(|at| &pod.init_containers()[*at]);
        let main = actions.to_start.iter().map(|at| &pod.spec().containers[*at]);
        for container in init.chain(main) {
            let site = StartSite { pod, status, sandbox: &sandbox, config: &config, ips: &ips };
            if let Err((waiting, retry)) = self.start(&site, container).await {
                let (name, reason) = (&container.name, waiting.reason);
                log::debug!("pod {}, container {name}: {reason}", pod.display_name());
                synced.wait(name, waiting, retry);
            }
        }
        Ok(synced)
    }

    /// Makes the pod's cgroup. Containers that run in another one are ended: then false.
    /// Upstream: `Kubelet.SyncPod`.
    async fn ensure_cgroup(&self, pod: &Arc<Pod>, status: &PodStatus) -> Result<bool, String> {
        let Some(cgroups) = self.cgroups.clone() else { return Ok(true) };
        let is_running = status.containers.iter().any(|one| one.state == State::Running);
        let of = pod.clone();
        let made = task::blocking(move || match is_running && !cgroups.has_pod(&of) {
            true => Ok(false),
            false => cgroups.ensure_pod(&of).map(|()| true),
        });
        let is_made = made.await.map_err(|error| {
            format!("failed to ensure that the pod: {} cgroups exist and are correctly applied: {error}", pod.uid())
        })?;
        if !is_made {
            log::warn!("pod {}: its containers run outside of its cgroup", pod.display_name());
            self.kill_pod(pod, status, None).await?;
        }
        Ok(is_made)
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

    fn facts<'a>(&'a self, pod_ips: &'a [String]) -> NodeFacts<'a> {
        NodeFacts {
            host_ip: &self.node.ip,
            pod_ips,
            cpus: self.node.cpus,
            memory_bytes: self.node.memory_bytes,
        }
    }

    fn sandbox_config(&self, pod: &Pod, attempt: u32) -> api::PodSandboxConfig {
        let logs = self.folders.pod_logs(pod);
        let parent = match (&self.cgroups, self.node.cgroup_root.trim_end_matches('/')) {
            (Some(cgroups), _) => cgroups.parent(pod),
            (None, "") => String::new(),
            (None, root) => format!("{root}/pod{}", pod.uid()),
        };
        spec::sandbox(
            pod,
            SandboxSite {
                attempt,
                log_directory: &logs,
                cgroup_parent: &parent,
                dns: dns(pod, &self.node.dns),
                node: &self.node.name,
            },
        )
    }

    async fn run_sandbox(
        &self,
        pod: &Pod,
        config: &api::PodSandboxConfig,
    ) -> Result<String, String> {
        let request = api::RunPodSandboxRequest {
            config: Some(config.clone()),
            runtime_handler: String::new(),
        };
        let answer = self.runtime.run_pod_sandbox(request).await.map_err(text)?;
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

    async fn write_hosts(&self, pod: &Pod, ips: &[String]) -> Result<(), String> {
        if pod.is_host_network() {
            return Ok(());
        }
        let file = self.folders.hosts_file(&pod.uid());
        let name = pod.spec().hostname.clone().filter(|name| !name.is_empty());
        let text = volumes::hosts(pod, ips, name.as_deref().unwrap_or(pod.name()));
        task::blocking(move || {
            // It is mounted: the file stays the same.
            if std::fs::read_to_string(&file).is_ok_and(|old| old == text) {
                return Ok(());
            }
            std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))
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
        let key = format!("{}_{}", pod.uid(), container.name);
        if let Some(ended) = last.filter(|last| last.state == State::Exited) {
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
        let image = self.images.ensure(pod, container, config).await.map_err(|w| (w, RETRY))?;
        let count = last.map_or(0, |last| last.restart_count + 1);
        let failed = |reason| move |message| (Waiting { reason, message }, RETRY);
        let definition = self.definition(pod, container, count, &image, ips).await;
        let definition = definition.map_err(failed("CreateContainerConfigError"))?;
        let request = api::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(definition),
            sandbox_config: Some(config.clone()),
        };
        let created = self.runtime.create_container(request).await;
        let id = created.map_err(text).map_err(failed("CreateContainerError"))?.container_id;
        let request = api::StartContainerRequest { container_id: id.clone() };
        let started = self.runtime.start_container(request).await;
        started.map_err(text).map_err(failed("RunContainerError"))?;
        log::info!("pod {}: Started container {}", pod.display_name(), container.name);
        self.link_log(pod, container, &id, count).await;
        self.post_start(pod, container, &id, ips).await.map_err(failed("PostStartHookError"))
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
        let then = kube_controller_manager::objects::Timestamp::from_micros(nanos / 1000);
        self.clock.now().duration_since(then)
    }

    async fn definition(
        &self,
        pod: &Arc<Pod>,
        container: &Container,
        restart_count: u32,
        image: &crate::images::Present,
        ips: &[String],
    ) -> Result<api::ContainerConfig, String> {
        let variables = environment::variables(pod, container, self.facts(ips))?;
        let values: HashMap<String, String> = variables.iter().cloned().collect();
        let mut mounts = volumes::mounts(&self.folders, pod, container, &values)?;
        let has =
            |path: &str, mounts: &[api::Mount]| mounts.iter().any(|m| m.container_path == path);
        if !pod.is_host_network() && !has("/etc/hosts", &mounts) {
            mounts.push(mount("/etc/hosts", &self.folders.hosts_file(&pod.uid())));
        }
        if let Some(path) = container.termination_message_path.as_deref().filter(|p| !p.is_empty())
        {
            let file = self.folders.message_file(&pod.uid(), &container.name, restart_count);
            mounts.push(mount(path, &file));
            task::blocking(move || make_message_file(&file)).await?;
        }
        let site = ContainerSite {
            restart_count,
            image_ref: &image.id,
            image_uid: image.uid,
            environment: variables,
            mounts,
            memory_bytes: self.node.memory_bytes,
        };
        spec::container(pod, container, site)
    }

    async fn post_start(
        &self,
        pod: &Pod,
        container: &Container,
        id: &str,
        ips: &[String],
    ) -> Result<(), String> {
        let hook = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.post_start.as_ref());
        let Some(hook) = hook else { return Ok(()) };
        let Err(fault) = self.hook(pod, container, id, hook, ips).await else { return Ok(()) };
        log::warn!(
            "pod {}: PostStartHook of {} failed: {fault}",
            pod.display_name(),
            container.name
        );
        let grace = pod.spec().termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE_SECONDS);
        let grace = Duration::from_secs(grace.max(MIN_GRACE).unsigned_abs());
        self.runtime.stop_container(id, grace).await.map_err(text)?;
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
        if let Some(exec) = &hook.exec {
            let command = exec.command.clone().unwrap_or_default();
            return probes::run(&self.runtime, id, &command, None).await;
        }
        if let Some(get) = &hook.http_get {
            let ip = match pod.is_host_network() {
                true => &self.node.ip,
                false => ips.first().ok_or("the pod has no address")?,
            };
            return probes::get_ok(container, get, ip, "kube-lifecycle/1.36").await;
        }
        if let Some(sleep) = &hook.sleep {
            self.clock.sleep(Duration::from_secs(sleep.seconds.unsigned_abs())).await;
        }
        Ok(())
    }

    /// Ends the containers of a pod, sidecars last, and its sandboxes.
    ///
    /// # Errors
    /// When a call fails; what has ended stays so.
    pub async fn kill_pod(
        &self,
        pod: &Arc<Pod>,
        status: &PodStatus,
        grace: Option<i64>,
    ) -> Result<(), String> {
        let is_init = |name: &str| pod.init_containers().iter().any(|init| init.name == name);
        let running = status.containers.iter().filter(|c| c.state != State::Exited);
        let (init, main): (Vec<_>, Vec<_>) = running.partition(|c| is_init(&c.name));
        let kills = main
            .into_iter()
            .map(|container| Box::pin(self.kill_container(pod, container, grace, status.ips())));
        for outcome in join_all(kills.collect()).await {
            outcome?;
        }
        // In the reverse order of their start.
        let mut init = init;
        init.sort_by_key(|container| {
            let mut all = pod.init_containers().iter();
            std::cmp::Reverse(all.position(|init| init.name == container.name))
        });
        for container in init {
            self.kill_container(pod, container, grace, status.ips()).await?;
        }
        for sandbox in &status.sandboxes {
            self.stop_sandbox(&sandbox.id).await?;
        }
        Ok(())
    }

    async fn stop_sandbox(&self, id: &str) -> Result<(), String> {
        let request = api::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        match self.runtime.stop_pod_sandbox(request).await {
            Err(error) if !error.is_not_found() => Err(text(error)),
            _ => Ok(()),
        }
    }

    async fn kill(&self, pod: &Arc<Pod>, status: &PodStatus, kill: &Kill) -> Result<(), String> {
        log::info!("pod {}: {}", pod.display_name(), kill.message);
        let Some(container) = status.containers.iter().find(|c| c.id == kill.id) else {
            return Ok(());
        };
        let definition = pod.container(&kill.name);
        let probe = definition.and_then(|definition| match kill.reason {
            KillReason::StartupProbe => Kind::Startup.of(definition),
            KillReason::LivenessProbe => Kind::Liveness.of(definition),
            _ => None,
        });
        let grace = probe.and_then(|probe| probe.termination_grace_period_seconds);
        self.kill_container(pod, container, grace, status.ips()).await
    }

    /// Runs the `preStop` hook and stops a container, both within the grace period.
    async fn kill_container(
        &self,
        pod: &Arc<Pod>,
        container: &ContainerStatus,
        grace: Option<i64>,
        ips: &[String],
    ) -> Result<(), String> {
        let own = pod.spec().termination_grace_period_seconds;
        let grace = grace.or(own).unwrap_or(DEFAULT_GRACE_SECONDS);
        let mut left = grace;
        let definition = pod.container(&container.name);
        let lifecycle = definition.and_then(|definition| definition.lifecycle.as_ref());
        let hook = lifecycle.and_then(|lifecycle| lifecycle.pre_stop.as_ref());
        if let (Some(definition), Some(hook), State::Running, 1..) =
            (definition, hook, container.state, grace)
        {
            let begin = self.clock.monotonic();
            let late = async {
                self.clock.sleep(Duration::from_secs(grace.unsigned_abs())).await;
                Err(format!("no end within {grace} s"))
            };
            let outcome = self.hook(pod, definition, &container.id, hook, ips).or(late).await;
            if let Err(fault) = outcome {
                let (pod, name) = (pod.display_name(), &container.name);
                log::warn!("pod {pod}: PreStopHook of {name} failed: {fault}");
            }
            let spent = self.clock.monotonic().saturating_sub(begin).as_secs();
            left -= i64::try_from(spent).unwrap_or(i64::MAX).min(left);
        }
        let left = Duration::from_secs(left.max(MIN_GRACE).unsigned_abs());
        match self.runtime.stop_container(&container.id, left).await {
            Err(error) if !error.is_not_found() => Err(text(error)),
            _ => Ok(()),
        }
    }

    /// Starts probes of what runs in a pod, and ends those of what does not.
    pub fn update_probes(&self, pod: &Arc<Pod>, status: &PodStatus, is_ended: bool, since: i64) {
        let known: BTreeSet<String> = status.containers.iter().map(|c| c.id.clone()).collect();
        let mut running = BTreeSet::new();
        let ip = match pod.is_host_network() {
            true => Some(&self.node.ip),
            false => status.ips().first(),
        };
        for container in status.containers.iter().filter(|c| c.state == State::Running && !is_ended)
        {
            if let (Some(definition), Some(ip)) = (pod.container(&container.name), ip) {
                running.insert(container.id.clone());
                let is_adopted = container.started_at < since;
                self.probes.start(pod, definition, &container.id, ip, is_adopted);
            }
        }
        self.probes.retain(&known, &running);
    }

    /// Removes containers that ended long ago, and sandboxes that are not in use. Of each name, the
    /// last containers that ended stay, unless `everything` goes.
    ///
    /// # Errors
    /// When a call fails; the next sync tries the rest.
    pub async fn prune(&self, status: &PodStatus, everything: bool) -> Result<(), String> {
        let max = self.dead.max_per_container.unwrap_or(usize::MAX).max(1);
        for id in superseded(status, if everything { None } else { Some(max) }) {
            let removed = garbage::remove_container(&self.runtime, &self.folders, id).await;
            removed.map_err(text)?;
        }
        let keep = usize::from(!everything);
        for sandbox in status.sandboxes.iter().skip(keep) {
            garbage::remove_sandbox(&self.runtime, &sandbox.id).await.map_err(text)?;
        }
        Ok(())
    }

    /// Ends and removes all that the runtime has of a pod without a definition.
    ///
    /// # Errors
    /// When a call fails.
    pub async fn end_orphan(&self, uid: &str) -> Result<(), String> {
        let status = status::read(&self.runtime, uid).await.map_err(text)?;
        for container in status.containers.iter().filter(|c| c.state != State::Exited) {
            let grace = Duration::from_secs(MIN_GRACE.unsigned_abs());
            match self.runtime.stop_container(&container.id, grace).await {
                Err(error) if !error.is_not_found() => return Err(text(error)),
                _ => {}
            }
        }
        let mut ended = status;
        ended.containers.iter_mut().for_each(|container| container.state = State::Exited);
        self.prune(&ended, true).await
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
                let message = file.and_then(|file| tail(&file)).filter(|text| !text.is_empty());
                Some((id, message.or_else(|| log_text(&tail(&log?)?))?))
            });
            messages.collect()
        })
        .await
    }
}

/// The ids of containers that another one has replaced: of each name, at most `keep` stay that have
/// ended. `None`: all go that do not run.
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
            // It was created by an agent that did not start it.
            (State::Created, Some(_)) => !is_newest,
            (State::Unknown, Some(_)) => false,
        };
        if goes {
            ids.push(container.id.as_str());
        }
    }
    ids
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
fn tail(file: &str) -> Option<String> {
    use std::io::{Read, Seek, SeekFrom};
    let mut file = std::fs::File::open(file).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MAX_MESSAGE as u64))).ok()?;
    let mut bytes = Vec::new();
    file.take(MAX_MESSAGE as u64).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The text of lines of CRI's log format: time, stream, tag, text.
fn log_text(lines: &str) -> Option<String> {
    let texts = lines.lines().filter_map(|line| line.splitn(4, ' ').nth(3));
    Some(texts.collect::<Vec<_>>().join("\n")).filter(|text| !text.is_empty())
}

/// The resolver of a pod. Upstream: `dns.Configurer.GetPodDNS`.
fn dns(pod: &Pod, node: &api::DnsConfig) -> api::DnsConfig {
    let mut dns = match pod.spec().dns_policy.as_deref() {
        Some("None") => api::DnsConfig::default(),
        // Without an API server there is no cluster's resolver: the host's.
        _ => node.clone(),
    };
    if let Some(own) = &pod.spec().dns_config {
        dns.servers.extend(own.nameservers.iter().flatten().cloned());
        dns.searches.extend(own.searches.iter().flatten().cloned());
        dns.options.extend(own.options.iter().flatten().filter_map(|option| {
            let name = option.name.clone()?;
            Some(match &option.value {
                Some(value) => format!("{name}:{value}"),
                None => name,
            })
        }));
    }
    dns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_taken_out_of_log_lines() {
        let lines =
            "2026-01-01T00:00:00Z stdout F first\n2026-01-01T00:00:00Z stderr F second line\n";
        assert_eq!(log_text(lines).as_deref(), Some("first\nsecond line"));
        assert_eq!(log_text(""), None);
    }
}
