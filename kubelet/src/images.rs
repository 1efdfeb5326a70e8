//! Images are there before a container starts. Upstream: `pkg/kubelet/images`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_lock::Semaphore;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::options::show_duration;
use kube_controller_manager::task;

use crate::credential_plugins::Plugins;
use crate::credentials::{self, Files, Keyring};
use crate::cri::{ImageService, api, chain};
use crate::events;
use crate::metrics;
use crate::pod::{Pod, PodExt};
use crate::runtime::backoff::Backoff;

/// Upstream: `MaxContainerBackOff`, `backOffPeriod`.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));

/// Why a container waits: the reason and the message of its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub reason: &'static str,
    pub message: String,
}

/// An image in the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Present {
    pub id: String,
    /// The user that the image names by a number.
    pub uid: Option<i64>,
    pub size_bytes: u64,
}

/// The images of the runtime, and the back-off of pulls.
pub struct Images {
    service: ImageService,
    clock: SharedClock,
    backoff: parking_lot::Mutex<Backoff>,
    /// Why the last pull failed, by the key of its back-off. Upstream: `prevPullErrMsg`.
    faults: parking_lot::Mutex<HashMap<String, String>>,
    /// A permit for each pull at a time; without it their number has no limit.
    permits: Option<Semaphore>,
    /// Credentials of the node, from files and from programs.
    files: Files,
    plugins: Option<Plugins>,
    /// The credentials of a pod's own `imagePullSecrets`, which come first.
    pull_secrets: Option<PullSecrets>,
}

/// Answers with the credentials of a pod's `imagePullSecrets`. Blocks.
pub type PullSecrets = Arc<dyn Fn(&Pod) -> Keyring + Send + Sync>;

/// What the images of the runtime use of their disk.
#[derive(Clone, Debug, Default)]
pub struct ImageUse {
    /// A folder on the disk.
    pub mount_point: String,
    pub bytes: u64,
    pub inodes: u64,
}

/// An image that a container, or a volume of a pod, needs.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    pub name: &'a str,
    pub policy: Option<&'a str>,
    /// For events.
    pub container: Option<&'a str>,
}

/// What a pull policy asks for, by whether the image is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    Use,
    Pull,
    Refuse,
}

fn plan(policy: Option<&str>, is_present: bool) -> Plan {
    match (policy, is_present) {
        (Some("Never"), false) => Plan::Refuse,
        (Some("Always"), _) | (_, false) => Plan::Pull,
        (_, true) => Plan::Use,
    }
}

impl Images {
    /// `at_a_time`: the number of pulls, `None`: no limit.
    pub fn new(
        service: ImageService,
        clock: SharedClock,
        at_a_time: Option<usize>,
        files: Files,
        plugins: Option<Plugins>,
    ) -> Images {
        let backoff = parking_lot::Mutex::new(Backoff::new(BACKOFF.0, BACKOFF.1));
        Images {
            service,
            clock,
            backoff,
            faults: parking_lot::Mutex::default(),
            permits: at_a_time.map(Semaphore::new),
            files,
            plugins,
            pull_secrets: None,
        }
    }

    /// The same, with the credentials of pods' own secrets.
    pub fn with_pull_secrets(self, pull_secrets: PullSecrets) -> Images {
        Images { pull_secrets: Some(pull_secrets), ..self }
    }

    /// The disk usage of images.
    ///
    /// # Errors
    /// One line: the runtime does not answer, or does not know.
    pub async fn usage(&self) -> Result<ImageUse, String> {
        let answer = self.service.image_fs_info(api::ImageFsInfoRequest {}).await;
        let info = answer.map_err(|error| chain(&error))?;
        let first = info.image_filesystems.into_iter().next();
        let usage = first.ok_or("the runtime names no filesystem of images")?;
        let value = |value: Option<api::UInt64Value>| value.map_or(0, |value| value.value);
        Ok(ImageUse {
            mount_point: usage.fs_id.unwrap_or_default().mountpoint,
            bytes: value(usage.used_bytes),
            inodes: value(usage.inodes_used),
        })
    }

    /// Makes sure that an image is there, by its pull policy.
    ///
    /// # Errors
    /// Why the container has to wait.
    pub async fn ensure(
        &self,
        pod: &Arc<Pod>,
        wanted: Wanted<'_>,
        sandbox: &api::PodSandboxConfig,
    ) -> Result<Present, Waiting> {
        let Wanted { name, policy, container: container_name } = wanted;
        let spec = api::ImageSpec { image: name.to_owned(), ..Default::default() };
        let inspect = |message: String| {
            events::warning(pod, container_name, "InspectFailed", &message);
            Waiting { reason: "ImageInspectError", message }
        };
        let present = self
            .present(&spec)
            .await
            .map_err(|error| inspect(format!("Failed to inspect image {name:?}: {error}")))?;
        match (plan(policy, present.is_some()), present) {
            (Plan::Use, Some(present)) => {
                let message = format!("Container image {name:?} already present on machine");
                events::normal(pod, container_name, "Pulled", message);
                return Ok(present);
            }
            (Plan::Refuse, _) => {
                let message =
                    format!("Container image {name:?} is not present with pull policy of Never");
                events::warning(pod, container_name, "ErrImageNeverPull", &message);
                return Err(Waiting { reason: "ErrImageNeverPull", message });
            }
            _ => {}
        }
        let key = format!("{}_{name}", pod.uid());
        let now = self.clock.monotonic();
        if self.backoff.lock().is_waiting(&key, now) {
            let mut message = format!("Back-off pulling image {name:?}");
            events::normal(pod, container_name, "BackOff", &message);
            if let Some(fault) = self.faults.lock().get(&key) {
                message.push_str(&format!(": {fault}"));
            }
            return Err(Waiting { reason: "ImagePullBackOff", message });
        }
        self.pull(pod, container_name, &spec, sandbox, &key).await
    }

    async fn pull(
        &self,
        pod: &Arc<Pod>,
        container: Option<&str>,
        spec: &api::ImageSpec,
        sandbox: &api::PodSandboxConfig,
        key: &str,
    ) -> Result<Present, Waiting> {
        let name = &spec.image;
        events::normal(pod, container, "Pulling", format!("Pulling image {name:?}"));
        let begin = self.clock.monotonic();
        let _permit = match &self.permits {
            Some(permits) => Some(permits.acquire().await),
            None => None,
        };
        let begin_own = self.clock.monotonic();
        let failed = |message: String| {
            let now = self.clock.monotonic();
            self.backoff.lock().next(key, now, now);
            self.faults.lock().insert(key.to_owned(), format!("ErrImagePull: {message}"));
            let text = format!("Failed to pull image {name:?}: {message}");
            events::warning(pod, container, "Failed", text);
            Waiting { reason: "ErrImagePull", message }
        };
        let pulled = self.pull_with_any(pod, spec, sandbox).await.map_err(failed)?;
        {
            let mut backoff = self.backoff.lock();
            backoff.reset(key);
            backoff.remove_expired(self.clock.monotonic());
            self.faults.lock().retain(|key, _| backoff.delay(key).is_some());
        }
        let now = self.clock.monotonic();
        let millis = |since: Duration| Duration::from_millis((now - since).as_millis() as u64);
        let all = millis(begin);
        let (own_text, all_text) = (show_duration(millis(begin_own)), show_duration(all));
        let present = self.present(spec).await.ok().flatten().unwrap_or_default();
        let size = present.size_bytes;
        metrics::IMAGE_PULL
            .with_label_values(&[metrics::image_size(size)])
            .observe(all.as_secs_f64());
        let message = format!(
            "Successfully pulled image {name:?} in {own_text} ({all_text} including waiting). Image \
             size: {size} bytes."
        );
        events::normal(pod, container, "Pulled", message);
        Ok(Present { id: pulled.image_ref, ..present })
    }

    /// Tries all credentials for the image; the first with which it can be pulled counts.
    /// Upstream: `kubeGenericRuntimeManager.PullImage`.
    async fn pull_with_any(
        &self,
        pod: &Arc<Pod>,
        spec: &api::ImageSpec,
        sandbox: &api::PodSandboxConfig,
    ) -> Result<api::PullImageResponse, String> {
        let repository = credentials::repository(&spec.image);
        let (files, secrets, of) = (self.files.clone(), self.pull_secrets.clone(), pod.clone());
        let read = move || (secrets.map(|of_pod| of_pod(&of)).unwrap_or_default(), files.read());
        let (of_pod, mut of_node) = task::blocking(read).await;
        if let Some(plugins) = &self.plugins {
            plugins.add_to(&mut of_node, &repository).await;
        }
        let mut found = of_pod.lookup(&repository);
        found.append(&mut of_node.lookup(&repository));
        let request = |auth: Option<api::AuthConfig>| api::PullImageRequest {
            image: Some(spec.clone()),
            auth,
            sandbox_config: Some(sandbox.clone()),
        };
        let mut faults: Vec<String> = Vec::new();
        let found = found.iter().map(|found| Some(found.config()));
        let without = found.len() == 0;
        for auth in found.chain(without.then_some(None)) {
            match self.service.pull_image(request(auth)).await {
                Ok(pulled) => return Ok(pulled),
                Err(error) => faults.push(chain(&error)),
            }
        }
        faults.dedup();
        Err(match faults.len() {
            1 => faults.concat(),
            _ => format!("[{}]", faults.join(", ")),
        })
    }

    async fn present(&self, spec: &api::ImageSpec) -> Result<Option<Present>, String> {
        let request = api::ImageStatusRequest { image: Some(spec.clone()), verbose: false };
        let answer = self.service.image_status(request).await.map_err(|error| chain(&error))?;
        Ok(answer.image.map(|image| Present {
            id: image.id,
            size_bytes: image.size,
            uid: match (image.uid, image.username.is_empty()) {
                (Some(uid), _) => Some(uid.value),
                (None, true) => Some(0),
                (None, false) => None,
            },
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_decides_by_presence() {
        for (policy, is_present, expected) in [
            (Some("Always"), true, Plan::Pull),
            (Some("Always"), false, Plan::Pull),
            (Some("IfNotPresent"), true, Plan::Use),
            (Some("IfNotPresent"), false, Plan::Pull),
            (None, true, Plan::Use),
            (Some("Never"), true, Plan::Use),
            (Some("Never"), false, Plan::Refuse),
        ] {
            assert_eq!(plan(policy, is_present), expected, "{policy:?} {is_present}");
        }
    }
}
