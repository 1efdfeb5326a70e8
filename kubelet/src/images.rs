//! Images are there before a container starts. Upstream: `pkg/kubelet/images`.

use std::collections::HashMap;
use std::time::Duration;

use async_lock::Mutex;
use kube_controller_manager::clock::SharedClock;

use crate::cri::{ImageService, api, chain};
use crate::pod::{Container, Pod, PodExt};
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
}

/// The images of the runtime, and the back-off of pulls.
pub struct Images {
    service: ImageService,
    clock: SharedClock,
    backoff: parking_lot::Mutex<Backoff>,
    /// Pulls one after the other, when they are serial.
    serial: Option<Mutex<()>>,
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
    pub fn new(service: ImageService, clock: SharedClock, is_serial: bool) -> Images {
        let backoff = parking_lot::Mutex::new(Backoff::new(BACKOFF.0, BACKOFF.1));
        Images { service, clock, backoff, serial: is_serial.then(|| Mutex::new(())) }
    }

    /// Makes sure that the image of a container is there, by its pull policy.
    ///
    /// # Errors
    /// Why the container has to wait.
    pub async fn ensure(
        &self,
        pod: &Pod,
        container: &Container,
        sandbox: &api::PodSandboxConfig,
    ) -> Result<Present, Waiting> {
        let name = container.image.clone().unwrap_or_default();
        let spec = api::ImageSpec {
            image: name.clone(),
            annotations: HashMap::new(),
            ..Default::default()
        };
        let inspect = |message| Waiting { reason: "ImageInspectError", message };
        let present = self
            .present(&spec)
            .await
            .map_err(|error| inspect(format!("Failed to inspect image {name:?}: {error}")))?;
        match (plan(container.image_pull_policy.as_deref(), present.is_some()), present) {
            (Plan::Use, Some(present)) => return Ok(present),
            (Plan::Refuse, _) => {
                let message =
                    format!("Container image {name:?} is not present with pull policy of Never");
                return Err(Waiting { reason: "ErrImageNeverPull", message });
            }
            _ => {}
        }
        let key = format!("{}_{name}", pod.uid());
        let now = self.clock.monotonic();
        if self.backoff.lock().is_waiting(&key, now) {
            let message = format!("Back-off pulling image {name:?}");
            return Err(Waiting { reason: "ImagePullBackOff", message });
        }
        self.pull(pod, &name, &spec, sandbox, &key).await
    }

    async fn pull(
        &self,
        pod: &Pod,
        name: &str,
        spec: &api::ImageSpec,
        sandbox: &api::PodSandboxConfig,
        key: &str,
    ) -> Result<Present, Waiting> {
        let _turn = match &self.serial {
            Some(serial) => Some(serial.lock().await),
            None => None,
        };
        log::info!("pod {}: Pulling image {name:?}", pod.display_name());
        let request = api::PullImageRequest {
            image: Some(spec.clone()),
            auth: None,
            sandbox_config: Some(sandbox.clone()),
        };
        let failed = |message: String| {
            let now = self.clock.monotonic();
            self.backoff.lock().next(key, now, now);
            log::warn!("pod {}: Failed to pull image {name:?}: {message}", pod.display_name());
            Waiting { reason: "ErrImagePull", message }
        };
        let pulled = self.service.pull_image(request).await.map_err(|e| failed(chain(&e)))?;
        self.backoff.lock().reset(key);
        self.backoff.lock().remove_expired(self.clock.monotonic());
        log::info!("pod {}: Successfully pulled image {name:?}", pod.display_name());
        let uid = self.present(spec).await.ok().flatten().and_then(|present| present.uid);
        Ok(Present { id: pulled.image_ref, uid })
    }

    async fn present(&self, spec: &api::ImageSpec) -> Result<Option<Present>, String> {
        let request = api::ImageStatusRequest { image: Some(spec.clone()), verbose: false };
        let answer = self.service.image_status(request).await.map_err(|error| chain(&error))?;
        Ok(answer.image.map(|image| Present {
            id: image.id,
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
