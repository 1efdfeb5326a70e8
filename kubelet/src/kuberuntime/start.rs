//! Starts a container: back-off, images, definition, start, hook. Upstream:
//! `kubeGenericRuntimeManager.startContainer`.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::objects::Timestamp;
use kube_controller_manager::task;

use super::hooks::HookFailure;
use super::kill::ContainerRef;
use super::sandbox::PodSandbox;
use super::{Manager, RETRY, garbage};
use crate::allocation;
use crate::causes::chain;
use crate::cri::api;
use crate::events;
use crate::images::{Present, Waiting, Wanted};
use crate::metrics;
use crate::pod::{Container, Pod, PodExt, listed};
use crate::runtime::order;
use crate::runtime::status::PodStatus;

const POST_START_HOOK_ERROR: &str = "PostStartHookError";

/// Why a container has not started, and when to try again.
pub(super) struct StartFailure {
    pub(super) waiting: Waiting,
    pub(super) retry: Duration,
}

impl From<Waiting> for StartFailure {
    fn from(waiting: Waiting) -> StartFailure {
        StartFailure { waiting, retry: RETRY }
    }
}

/// Returns a function for `map_err` that converts the failure of a step. `reason`: the one that the
/// container's status shows.
fn failed<E: Error + 'static>(reason: &'static str) -> impl Fn(E) -> Waiting {
    move |error| Waiting { reason, message: chain(&error) }
}

/// The images that a container starts with.
pub(super) struct ContainerImages {
    pub(super) own: Present,
    /// Those of its image volumes, by volume.
    pub(super) volumes: HashMap<String, api::ImageSpec>,
}

/// What the definition of a container needs of its start.
pub(super) struct Start {
    /// How often it has started before.
    pub(super) restart_count: u32,
    pub(super) images: ContainerImages,
    /// The id of the container whose processes it sees.
    pub(super) target: Option<String>,
}

/// In the message of a runtime that cannot mount an image. Upstream: `ErrImageVolumeMountFailed`.
const IMAGE_VOLUME_FAULT: &str = "ImageVolumeMountFailed";

/// A container that has to start.
#[derive(Clone, Copy)]
pub(super) struct ToStart<'a> {
    pub(super) container: &'a Container,
    /// `container`, `init_container` or `ephemeral_container`, for metrics.
    pub(super) kind: &'static str,
    /// The name of the container whose processes an ephemeral one sees.
    pub(super) target: Option<&'a str>,
}

impl Manager {
    /// Starts a container in the pod's sandbox, unless it is in back-off, and reports a failure.
    pub(super) async fn start(
        &self,
        pod: &Arc<Pod>,
        status: &PodStatus,
        sandbox: &PodSandbox,
        to_start: ToStart<'_>,
    ) -> Result<(), StartFailure> {
        let ToStart { container, kind, .. } = to_start;
        self.back_off(pod, status, container)?;
        metrics::STARTED_CONTAINERS.with_label_values(&[kind]).inc();
        let volumes = self.image_volumes(pod, container, &sandbox.config).await?;
        let mounts = container.volume_mounts.iter().flatten();
        let mounts = mounts.filter(|mount| volumes.contains_key(&mount.name)).count();
        let counts = (volumes.len() as u64, mounts as u64);
        let outcome = self.start_now(pod, status, sandbox, to_start, volumes).await;
        count_image_volumes(counts, outcome.as_ref().err());
        if let Err(failed) = &outcome {
            record_failure(pod, container, failed);
            metrics::STARTED_CONTAINERS_ERRORS.with_label_values(&[kind, failed.reason]).inc();
        }
        outcome.map_err(StartFailure::from)
    }

    /// Fails if a container that has ended has to wait before its next start, longer after each
    /// end, with an event. Else the start that follows makes the next one wait. Upstream:
    /// `doBackOff`.
    fn back_off(
        &self,
        pod: &Pod,
        status: &PodStatus,
        container: &Container,
    ) -> Result<(), StartFailure> {
        // One that this sync has killed still runs in `status`: then the one before it counts.
        let Some(ended) = status.last_ended(&container.name) else { return Ok(()) };
        let now = self.clock.monotonic();
        let key = backoff_key(pod, container);
        let seen = now.saturating_sub(self.since(ended.finished_at));
        let mut backoff = self.backoff.lock();
        let event = backoff.event(&key, ended.finished_at, seen);
        if let Some(until) = backoff.until(&key, event, now) {
            let delay = backoff.delay(&key).unwrap_or_default();
            let (name, pod_name, uid) = (&container.name, pod.full_name(), pod.uid());
            let message =
                format!("Back-off restarting failed container {name} in pod {pod_name}({uid})");
            events::warning(pod, Some(name), "BackOff", message);
            let message = format!(
                "back-off {delay:?} restarting failed container={name} pod={pod_name}({uid})"
            );
            let waiting = Waiting { reason: "CrashLoopBackOff", message };
            return Err(StartFailure { waiting, retry: until - now });
        }
        backoff.next(&key, event, now);
        backoff.remove_expired(now);
        Ok(())
    }

    /// Returns the time since a wall-clock time in nanoseconds.
    fn since(&self, nanos: i64) -> Duration {
        let then = Timestamp::from_micros(nanos / 1000);
        self.clock.now().duration_since(then)
    }

    /// Creates and starts a container: pulls its image, builds its definition, and runs its
    /// `postStart` hook.
    async fn start_now(
        &self,
        pod: &Arc<Pod>,
        status: &PodStatus,
        sandbox: &PodSandbox,
        ToStart { container, target, .. }: ToStart<'_>,
        volumes: HashMap<String, api::ImageSpec>,
    ) -> Result<(), Waiting> {
        let wanted = Wanted {
            name: container.image.as_deref().unwrap_or_default(),
            policy: container.image_pull_policy.as_deref(),
            container: Some(&container.name),
        };
        let own = self.images.ensure(pod, wanted, &sandbox.config).await?;
        let images = ContainerImages { own, volumes };
        let count = match status.container(&container.name) {
            Some(last) => last.restart_count + 1,
            None => self.starts_by_logs(pod, container).await.max(starts_by_status(pod, container)),
        };
        let target = target.map(|name| match status.container(name) {
            Some(target) => Ok(target.id.clone()),
            None => Err(super::Error::NoTarget(name.to_owned())),
        });
        let target = target.transpose().map_err(failed("CreateContainerConfigError"))?;
        let start = Start { restart_count: count, images, target };
        let config = self.container_config(pod, container, start, &sandbox.ips).await;
        let config = config.map_err(failed("CreateContainerConfigError"))?;
        self.record_actuated(pod, container).await.map_err(failed("CreateContainerConfigError"))?;
        let request = api::CreateContainerRequest {
            pod_sandbox_id: sandbox.id.clone(),
            config: Some(config),
            sandbox_config: Some(sandbox.config.clone()),
        };
        let created = self.runtime.create_container(request).await;
        let id = created.map_err(failed("CreateContainerError"))?.container_id;
        events::normal(pod, Some(&container.name), "Created", "Container created");
        let request = api::StartContainerRequest { container_id: id.clone() };
        let started = {
            let _whole = self.starts.lock(&pod.uid()).await;
            self.runtime.start_container(request).await
        };
        started.map_err(failed("RunContainerError"))?;
        events::normal(pod, Some(&container.name), "Started", "Container started");
        self.link_log(pod, container, &id, count).await;
        self.post_start(pod, container, &id, &sandbox.ips)
            .await
            .map_err(failed(POST_START_HOOK_ERROR))
    }

    /// Records the resources that a container is given: its own, and the pod's limits where it has
    /// none. Upstream: `setActuatedContainerResources`.
    async fn record_actuated(
        &self,
        pod: &Pod,
        container: &Container,
    ) -> Result<(), allocation::Error> {
        let own = container.resources.as_ref();
        let mut lists = own.cloned().unwrap_or_default();
        let of_pod = pod.spec().resources.as_ref();
        // Only these are inherited from the pod.
        for resource in ["cpu", "memory"] {
            let is_unlimited = listed(own, resource, true).is_none_or(|limit| limit.is_zero());
            let limit = of_pod.and_then(|lists| lists.limits.as_ref()?.get(resource));
            if let Some(limit) = limit.filter(|_| is_unlimited) {
                let limits = lists.limits.get_or_insert_default();
                limits.insert(resource.to_owned(), limit.clone());
            }
        }
        self.actuated.set_container(&pod.uid(), &container.name, lists).await
    }

    /// Pulls the images of a container's image volumes, which the runtime mounts, and returns them by
    /// volume. Upstream: `getImageVolumes`, `toKubeContainerImageVolumes`.
    ///
    /// # Errors
    /// Images could not be pulled: why that of the last mount could not. Each of their mounts has
    /// an event.
    async fn image_volumes(
        &self,
        pod: &Arc<Pod>,
        container: &Container,
        config: &api::PodSandboxConfig,
    ) -> Result<HashMap<String, api::ImageSpec>, Waiting> {
        let mut volumes = HashMap::new();
        let is_mounted = |volume: &&core::Volume| {
            container.volume_mounts.iter().flatten().any(|mount| mount.name == volume.name)
        };
        for volume in pod.spec().volumes.iter().flatten().filter(is_mounted) {
            if let Some(source) = &volume.image {
                let image = self.volume_image(pod, source, config).await;
                volumes.insert(volume.name.clone(), image);
            }
        }
        let mut last_failure = None;
        for mount in container.volume_mounts.iter().flatten() {
            if let Some(Err(failure)) = volumes.get(&mount.name) {
                record_failure(pod, container, failure);
                last_failure = Some(failure.clone());
            }
        }
        match last_failure {
            Some(failure) => Err(failure),
            None => {
                volumes.into_iter().map(|(name, image)| image.map(|image| (name, image))).collect()
            }
        }
    }

    /// Pulls the image of a volume, unless it is there.
    ///
    /// # Errors
    /// Why the container has to wait.
    async fn volume_image(
        &self,
        pod: &Arc<Pod>,
        source: &core::ImageVolumeSource,
        config: &api::PodSandboxConfig,
    ) -> Result<api::ImageSpec, Waiting> {
        let name = source.reference.as_deref().unwrap_or_default();
        let wanted = Wanted { name, policy: source.pull_policy.as_deref(), container: None };
        let image = self.images.ensure(pod, wanted, config).await?;
        let annotations = pod.metadata.annotations.clone().unwrap_or_default();
        Ok(api::ImageSpec {
            image: image.id,
            user_specified_image: name.to_owned(),
            annotations: annotations.into_iter().collect(),
            ..Default::default()
        })
    }

    /// Returns the number of a container's next start by its log files, as the runtime has no
    /// earlier container that would show it.
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

    /// Makes the legacy link to a container's log. A failure is only logged.
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

    /// Runs the `postStart` hook; the container ends if the hook fails.
    async fn post_start(
        &self,
        pod: &Arc<Pod>,
        container: &Container,
        id: &str,
        ips: &[String],
    ) -> Result<(), HookFailure> {
        let hook = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.post_start.as_ref());
        let Some(hook) = hook else { return Ok(()) };
        let Err(fault) = self.run_hook(pod, container, id, hook, ips).await else { return Ok(()) };
        let name = &container.name;
        log::warn!("pod {}: PostStartHook of {name} failed: {fault}", pod.display_name());
        let started = ContainerRef { id, name, is_running: true };
        if let Err(error) = self.kill_container(pod, started, None, ips, None).await {
            let error = chain(&error);
            log::error!("pod {}: {name} cannot be stopped: {error}", pod.display_name());
        }
        Err(fault)
    }
}

/// Returns the key of a container's back-off: with another image or other resources it has none
/// yet. Upstream: `GetBackoffKey`.
fn backoff_key(pod: &Pod, container: &Container) -> String {
    let image = container.image.as_deref().unwrap_or_default();
    let resources = serde_json::to_string(&container.resources).unwrap_or_default();
    format!("{}_{}_{image}_{resources}", pod.uid(), container.name)
}

/// Records an event that says why a container has not started.
fn record_failure(pod: &Pod, container: &Container, Waiting { reason, message }: &Waiting) {
    let name = Some(container.name.as_str());
    match *reason {
        POST_START_HOOK_ERROR => {
            events::warning(pod, name, "FailedPostStartHook", "PostStartHook failed");
        }
        "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => {
            events::warning(pod, name, "Failed", format!("Error: {message}"));
        }
        // The failed step of an image has recorded the message in an event of its own.
        reason => events::warning(pod, name, "Failed", format!("Error: {reason}")),
    }
}

/// Counts the image volumes of a container whose images were there, and whether the runtime could
/// mount them. As upstream, requests are counted by volume, outcomes by mount, and only what the
/// runtime says of volumes is a failed mount. Upstream: `incrementImageVolumeMetrics`.
fn count_image_volumes((volumes, mounts): (u64, u64), failed: Option<&Waiting>) {
    let is_refused = failed.is_some_and(|waiting| {
        waiting.reason == "CreateContainerError" && waiting.message.contains(IMAGE_VOLUME_FAULT)
    });
    metrics::IMAGE_VOLUMES.inc_by(volumes);
    match is_refused {
        true => metrics::IMAGE_VOLUME_ERRORS.inc_by(mounts),
        false => metrics::IMAGE_VOLUMES_MOUNTED.inc_by(mounts),
    }
}

/// Returns the number of a container's next start by the pod's status, which remembers a container
/// that was removed with its logs: that of an init container, when the sandbox is made again.
fn starts_by_status(pod: &Pod, container: &Container) -> u32 {
    let status = pod.status.iter();
    let all = status.flat_map(|status| {
        [&status.init_container_statuses, &status.container_statuses]
            .into_iter()
            .flatten()
            .flatten()
    });
    let has_started = |known: &&core::ContainerStatus| {
        let last = known.last_state.as_ref().and_then(|last| last.terminated.as_ref());
        known.container_id.is_some() || last.is_some() || known.restart_count > 0
    };
    let known = all.filter(|known| known.name == container.name).find(has_started);
    known.map_or(0, |known| known.restart_count.unsigned_abs() + 1)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use parking_lot::Mutex;
    use prost::Message;
    use serde_json::json;

    use super::*;
    use crate::kuberuntime::testing::TestNode;

    #[test]
    fn status_remembers_the_starts_of_a_container() {
        let container = |name: &str| Container { name: name.to_owned(), ..Container::default() };
        let ended = json!({"terminated": {"exitCode": 1}});
        for (status, next) in [
            (json!({"name": "c", "restartCount": 0}), 0),
            (json!({"name": "c", "restartCount": 0, "containerID": "x://1"}), 1),
            (json!({"name": "c", "restartCount": 0, "lastState": ended}), 1),
            (json!({"name": "c", "restartCount": 2}), 3),
            (json!({"name": "d", "restartCount": 2}), 0),
        ] {
            for list in ["initContainerStatuses", "containerStatuses"] {
                let pod = json!({"status": {list: [&status]}});
                let pod: Pod = serde_json::from_value(pod).expect("a pod");
                assert_eq!(starts_by_status(&pod, &container("c")), next, "{list} {status}");
            }
        }
        assert_eq!(starts_by_status(&Pod::default(), &container("c")), 0);
    }

    #[test]
    fn image_volumes_are_counted_once_their_images_are_there() {
        /// A label of this test alone.
        const KIND: &str = "of_a_test";
        task::run(1, async {
            let has_images = Arc::new(AtomicBool::new(false));
            let fault = Arc::new(Mutex::new(""));
            let (is_there, refusal) = (has_images.clone(), fault.clone());
            let node = TestNode::start("image-volumes", move |method| match method {
                "ImageStatus" if is_there.load(Ordering::SeqCst) => {
                    let image = Some(api::Image { id: "i".to_owned(), ..Default::default() });
                    Ok(api::ImageStatusResponse { image, ..Default::default() }.encode_to_vec())
                }
                "PullImage" => Err("no registry"),
                "CreateContainer" => Err(*refusal.lock()),
                _ => Ok(Vec::new()),
            });
            let manager = node.manager(None);
            let mounts = [("v", "/a"), ("v", "/b"), ("w", "/c")]
                .map(|(name, path)| json!({"name": name, "mountPath": path}));
            let volumes =
                ["v", "w"].map(|name| json!({"name": name, "image": {"reference": name}}));
            let pod = json!({
                "metadata": {"name": "image-volumes", "namespace": "n", "uid": "u"},
                "spec": {
                    "containers": [{"name": "c", "image": "i", "volumeMounts": mounts}],
                    "volumes": volumes,
                },
            });
            let pod: Arc<Pod> = Arc::new(serde_json::from_value(pod).expect("a pod"));
            manager.volumes.set_up(&pod).await.expect("folders");
            let sandbox =
                PodSandbox { id: "s".to_owned(), config: Default::default(), ips: Vec::new() };
            let volumes = || {
                let counters = [
                    &metrics::IMAGE_VOLUMES,
                    &metrics::IMAGE_VOLUMES_MOUNTED,
                    &metrics::IMAGE_VOLUME_ERRORS,
                ];
                counters.map(|counter| counter.get())
            };
            // Other tests may have counted before.
            let first = volumes();
            let counts = || {
                let errors = ["ErrImagePull", "CreateContainerError"].map(|reason| {
                    metrics::STARTED_CONTAINERS_ERRORS.with_label_values(&[KIND, reason]).get()
                });
                let now = volumes();
                ([0, 1, 2].map(|index| now[index] - first[index]), errors)
            };
            let start = async || {
                let container = &pod.spec().containers[0];
                let to_start = ToStart { container, kind: KIND, target: None };
                let started = manager.start(&pod, &PodStatus::default(), &sandbox, to_start).await;
                let failure = started.expect_err("a failure");
                (failure.waiting.reason, counts())
            };
            assert!(events::testing::about("image-volumes").is_empty());
            assert_eq!(start().await, ("ErrImagePull", ([0, 0, 0], [0, 0])));
            let events = events::testing::about("image-volumes");
            // Each volume is tried, and each of its mounts has an event.
            let pulls = events.iter().filter(|event| event.starts_with("Normal Pulling"));
            assert_eq!(pulls.count(), 2, "{events:?}");
            let failures = events.iter().filter(|event| event.ends_with(" Error: ErrImagePull"));
            assert_eq!(failures.count(), 3, "{events:?}");
            assert_eq!(events.last().expect("an event"), "Warning Failed Error: ErrImagePull");
            has_images.store(true, Ordering::SeqCst);
            *fault.lock() = "ImageVolumeMountFailed: no mount";
            assert_eq!(start().await, ("CreateContainerError", ([2, 0, 3], [0, 1])));
            *fault.lock() = "no space";
            assert_eq!(start().await, ("CreateContainerError", ([4, 3, 3], [0, 2])));
            assert_eq!(metrics::STARTED_CONTAINERS.with_label_values(&[KIND]).get(), 3);
        });
    }

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
}
