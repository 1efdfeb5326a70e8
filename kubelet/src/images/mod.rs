//! Images are there before a container starts. Upstream: `pkg/kubelet/images`.

pub mod credential_plugins;
pub mod credentials;
mod error;
pub mod gc;
pub mod pull_records;
mod pull_secrets;
pub mod verification_policy;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use async_lock::Semaphore;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::options::show_duration;
use kube_controller_manager::task;

use self::credential_plugins::Plugins;
use self::credentials::{Credentials, Files};
pub use self::error::Error;
use self::pull_records::{Access, PullRecords};
use crate::causes::chain;
use crate::cri::{self, Code, ImageService, api};
use crate::events;
use crate::metrics;
use crate::objects::{Objects, Use};
use crate::pod::{Pod, PodExt, Uid};
use crate::runtime::backoff::Backoff;

/// Upstream: `MaxContainerBackOff`, `backOffPeriod`.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));

/// The most pulls that are recorded for a pod.
const MAX_PULLS: usize = 256;

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
    failures: parking_lot::Mutex<Failures>,
    /// Of the pods for which they are recorded.
    pulls: parking_lot::Mutex<HashMap<Uid, Pulls>>,
    /// A permit for each of the parallel pulls; without it their number has no limit.
    permits: Option<Semaphore>,
    /// Credentials of the node, from files and from programs.
    files: Files,
    plugins: Option<Plugins>,
    /// They have the credentials of a pod's own `imagePullSecrets`, which come first.
    objects: Arc<Objects>,
    /// `None`: an image that is there may be used by all pods.
    records: Option<Arc<PullRecords>>,
}

/// The pulls for a pod, by the monotonic clock: the first [`MAX_PULLS`].
#[derive(Default)]
struct Pulls {
    /// When those began that have not succeeded yet.
    begun: VecDeque<Duration>,
    /// When the others began and ended.
    done: Vec<(Duration, Duration)>,
}

impl Pulls {
    /// Records that a pull begins, unless [`MAX_PULLS`] are recorded already.
    fn begin(&mut self, now: Duration) {
        if self.begun.len() + self.done.len() < MAX_PULLS {
            self.begun.push_back(now);
        }
    }

    /// Records that a pull has succeeded. It began with the oldest attempt that is open: failed
    /// attempts before a success count too. Upstream: `RecordImageFinishedPulling`.
    fn succeed(&mut self, now: Duration) {
        if let Some(begin) = self.begun.pop_front() {
            self.done.push((begin, now));
        }
    }
}

/// Failed pulls by a pod's uid and an image. Both maps have the same keys.
struct Failures {
    backoff: Backoff,
    /// Upstream: `prevPullErrMsg`.
    last_pull_errors: HashMap<String, String>,
}

impl Failures {
    fn new() -> Failures {
        let backoff = Backoff::new(BACKOFF.0, BACKOFF.1);
        Failures { backoff, last_pull_errors: HashMap::new() }
    }

    /// Returns the last error of a pull that has to wait; `None`: it need not wait.
    fn last_error(&self, key: &str, now: Duration) -> Option<&str> {
        let error = self.last_pull_errors.get(key).map(String::as_str);
        error.filter(|_| self.backoff.is_waiting(key, now))
    }

    /// Records a failed pull, which makes the next one wait longer, and its error.
    fn add(&mut self, key: &str, error: String, now: Duration) {
        self.backoff.next(key, now, now);
        self.last_pull_errors.insert(key.to_owned(), error);
        self.remove_expired(now);
    }

    /// Forgets the failures of a pull that has succeeded, and those of others that have expired.
    fn reset(&mut self, key: &str, now: Duration) {
        self.backoff.reset(key);
        self.remove_expired(now);
    }

    /// Forgets failures that are long ago.
    fn remove_expired(&mut self, now: Duration) {
        self.backoff.remove_expired(now);
        self.last_pull_errors.retain(|key, _| self.backoff.delay(key).is_some());
    }
}

/// Returns the reason for which a container waits after a failed pull, from the runtime's error.
/// Upstream: `evalCRIPullErr`.
fn failed_pull(image: &str, error: &str) -> Waiting {
    for (reason, cause) in [
        ("RegistryUnavailable", "the registry is unavailable"),
        ("SignatureValidationFailed", "the signature validation failed"),
    ] {
        if let Some(details) = error.strip_prefix(reason) {
            let message = format!("image pull failed for {image} because {cause}{details}");
            return Waiting { reason, message };
        }
    }
    Waiting { reason: "ErrImagePull", message: error.to_owned() }
}

/// Formats an error of a pull; one of the code Unknown is its message, which may start with the
/// reason of [`failed_pull`]. Upstream: `remoteImageService.PullImage`.
fn pull_error(error: &cri::Error) -> String {
    match error {
        cri::Error::Status { code: Code::Unknown, message, .. } => message.clone(),
        _ => chain(error),
    }
}

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

/// A pull that is due.
struct Pull<'a> {
    container: Option<&'a str>,
    spec: &'a api::ImageSpec,
    sandbox: &'a api::PodSandboxConfig,
    /// The key of its back-off.
    key: &'a str,
    /// `None`: they are not read yet.
    credentials: Option<Vec<Credentials>>,
}

/// What a pull policy asks for, by whether the image is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    Use,
    Pull,
    Refuse,
}

/// Decides what a pull policy asks for. A missing one counts as `IfNotPresent`.
fn plan(policy: Option<&str>, is_present: bool) -> Plan {
    match (policy, is_present) {
        (Some("Never"), false) => Plan::Refuse,
        (Some("Always"), _) | (_, false) => Plan::Pull,
        (_, true) => Plan::Use,
    }
}

impl Images {
    /// Creates the manager of images. `max_parallel_pulls`: `None`: no limit.
    pub fn new(
        service: ImageService,
        clock: SharedClock,
        max_parallel_pulls: Option<usize>,
        files: Files,
        plugins: Option<Plugins>,
        objects: Arc<Objects>,
        records: Option<Arc<PullRecords>>,
    ) -> Images {
        Images {
            service,
            clock,
            failures: Failures::new().into(),
            pulls: parking_lot::Mutex::default(),
            permits: max_parallel_pulls.map(Semaphore::new),
            files,
            plugins,
            objects,
            records,
        }
    }

    /// Returns the disk usage of images.
    ///
    /// # Errors
    /// The runtime does not answer, or does not know.
    pub async fn usage(&self) -> Result<ImageUse, Error> {
        let info = self.service.image_fs_info(api::ImageFsInfoRequest {}).await?;
        let usage = info.image_filesystems.into_iter().next().ok_or(Error::NoFilesystem)?;
        let value = |value: Option<api::UInt64Value>| value.map_or(0, |value| value.value);
        Ok(ImageUse {
            mount_point: usage.fs_id.unwrap_or_default().mountpoint,
            bytes: value(usage.used_bytes),
            inodes: value(usage.inodes_used),
        })
    }

    /// Returns an image in the runtime, and pulls it first if its pull policy asks for that, or if
    /// the pod has no credentials that are known to have pulled it, and no back-off forbids it.
    /// Upstream: `EnsureImageExists`.
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
        let inspect = |error: cri::Error| {
            let message = format!("Failed to inspect image {name:?}: {}", chain(&error));
            events::warning(pod, container_name, "InspectFailed", &message);
            metrics::count_ensured_image(policy, None, None);
            Waiting { reason: "ImageInspectError", message }
        };
        let present = self.present(&spec).await.map_err(inspect)?;
        let plan = plan(policy, present.is_some());
        // As upstream, which does not ask the runtime then.
        let is_present = (policy != Some("Always")).then_some(present.is_some());
        let mut credentials = None;
        if let (Plan::Use, Some(present)) = (plan, present) {
            match self.access(pod, name, &present).await {
                Ok(Access::Granted) => {
                    let end = match &self.records {
                        Some(_) => " and can be accessed by the pod",
                        None => "",
                    };
                    let message =
                        format!("Container image {name:?} already present on machine{end}");
                    events::normal(pod, container_name, "Pulled", message);
                    metrics::count_ensured_image(policy, is_present, Some(false));
                    return Ok(present);
                }
                Ok(Access::NeedsPull(found)) => credentials = found,
                Err(error) => {
                    metrics::count_ensured_image(policy, is_present, None);
                    return Err(Waiting { reason: "ErrImagePull", message: chain(&error) });
                }
            }
        }
        let needs_pull = (plan != Plan::Refuse).then_some(true);
        metrics::count_ensured_image(policy, is_present, needs_pull);
        // The message is the same for an image that is there: others have no right to know.
        if policy == Some("Never") {
            let message =
                format!("Container image {name:?} is not present with pull policy of Never");
            events::warning(pod, container_name, "ErrImageNeverPull", &message);
            return Err(Waiting { reason: "ErrImageNeverPull", message });
        }
        let key = format!("{}_{name}", pod.uid());
        let now = self.clock.monotonic();
        let last_error = self.failures.lock().last_error(&key, now).map(str::to_owned);
        if let Some(last_error) = last_error {
            let message = format!("Back-off pulling image {name:?}");
            events::normal(pod, container_name, "BackOff", &message);
            let message = format!("{message}: {last_error}");
            return Err(Waiting { reason: "ImagePullBackOff", message });
        }
        let pull = Pull { container: container_name, spec: &spec, sandbox, key: &key, credentials };
        self.pull(pod, pull).await
    }

    /// Returns whether a pod may use an image that is there.
    async fn access(&self, pod: &Arc<Pod>, name: &str, present: &Present) -> Result<Access, Error> {
        let Some(records) = &self.records else { return Ok(Access::Granted) };
        records.check(name, &present.id, self.credentials(pod, name)).await
    }

    /// Pulls an image, after a wait for a permit where the number of pulls has a limit. Records an
    /// event for each step, and a failure for the back-off.
    async fn pull(&self, pod: &Arc<Pod>, pull: Pull<'_>) -> Result<Present, Waiting> {
        let Pull { container, spec, sandbox, key, credentials } = pull;
        let name = &spec.image;
        let under_way = match &self.records {
            Some(records) => Some(records.begin(name).await.map_err(|error| {
                let message = format!(
                    "Failed to record image pull intent for container image {name:?}: failed to \
                     record image pull intent: {}",
                    chain(&error)
                );
                Waiting { reason: "ErrImagePull", message }
            })?),
            None => None,
        };
        events::normal(pod, container, "Pulling", format!("Pulling image {name:?}"));
        let begin = self.clock.monotonic();
        if let Some(pulls) = self.pulls.lock().get_mut(&pod.uid()) {
            pulls.begin(begin);
        }
        let _permit = match &self.permits {
            Some(permits) => Some(permits.acquire().await),
            None => None,
        };
        let permitted_at = self.clock.monotonic();
        let failed = |error: Error| {
            let error = chain(&error);
            let waiting = failed_pull(name, &error);
            let last_error = format!("{}: {}", waiting.reason, waiting.message);
            self.failures.lock().add(key, last_error, self.clock.monotonic());
            let text = format!("Failed to pull image {name:?}: {error}");
            events::warning(pod, container, "Failed", text);
            waiting
        };
        let pulled = async {
            let credentials = match credentials {
                Some(credentials) => credentials,
                None => self.credentials(pod, name).await?,
            };
            self.pull_with_any(spec, sandbox, credentials).await
        };
        let (pulled, used) = pulled.await.map_err(failed)?;
        if let Some(under_way) = under_way {
            under_way.succeed(pulled.image_ref.clone(), used.as_ref()).await;
        }
        let now = self.clock.monotonic();
        self.failures.lock().reset(key, now);
        if let Some(pulls) = self.pulls.lock().get_mut(&pod.uid()) {
            pulls.succeed(now);
        }
        let millis = |since: Duration| Duration::from_millis((now - since).as_millis() as u64);
        let all = millis(begin);
        let (own_text, all_text) = (show_duration(millis(permitted_at)), show_duration(all));
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

    /// Records the pulls for a pod from now on, until they are taken.
    pub fn record_pulls(&self, uid: Uid) {
        self.pulls.lock().entry(uid).or_default();
    }

    /// Ends the record of the pulls for a pod. Returns when those began and ended that have
    /// succeeded, by the monotonic clock.
    pub fn take_pulls(&self, uid: &Uid) -> Vec<(Duration, Duration)> {
        self.pulls.lock().remove(uid).unwrap_or_default().done
    }

    /// Forgets the pulls for pods that are not known.
    pub fn retain_pulls(&self, is_known: impl Fn(&str) -> bool) {
        self.pulls.lock().retain(|uid, _| is_known(uid));
    }

    /// Returns the credentials for an image: those of the pod, then those of the node.
    async fn credentials(&self, pod: &Arc<Pod>, name: &str) -> Result<Vec<Credentials>, Error> {
        let repository = credentials::repository(name);
        let of_pod = pull_secrets::keyring(pod, &self.objects.read(pod, Use::Pulls).await)?;
        let files = self.files.clone();
        let mut of_node = task::blocking(move || files.read()).await;
        if let Some(plugins) = &self.plugins {
            plugins.add_to(&mut of_node, &repository, pod, &self.objects).await;
        }
        let mut found = of_pod.lookup(&repository);
        found.append(&mut of_node.lookup(&repository));
        Ok(found)
    }

    /// Pulls an image with each of the credentials until one succeeds, and returns it. Without any
    /// credentials pulls it once without. Upstream: `kubeGenericRuntimeManager.PullImage`.
    async fn pull_with_any(
        &self,
        spec: &api::ImageSpec,
        sandbox: &api::PodSandboxConfig,
        credentials: Vec<Credentials>,
    ) -> Result<(api::PullImageResponse, Option<Credentials>), Error> {
        let mut causes = Vec::new();
        // One request without credentials, if there are none.
        let without = credentials.is_empty();
        for used in credentials.into_iter().map(Some).chain(without.then_some(None)) {
            let request = api::PullImageRequest {
                image: Some(spec.clone()),
                auth: used.as_ref().map(Credentials::config),
                sandbox_config: Some(sandbox.clone()),
            };
            match self.service.pull_image(request).await {
                Ok(pulled) => return Ok((pulled, used)),
                Err(error) => causes.push(error),
            }
        }
        Err(Error::NotPulled(causes))
    }

    /// Asks the runtime for an image; `None`: it is absent.
    async fn present(&self, spec: &api::ImageSpec) -> Result<Option<Present>, cri::Error> {
        let request = api::ImageStatusRequest { image: Some(spec.clone()), verbose: false };
        let answer = self.service.image_status(request).await?;
        Ok(answer.image.map(|image| Present {
            id: image.id,
            size_bytes: image.size,
            uid: match (image.uid, image.username.is_empty()) {
                (Some(uid), _) => Some(uid.value),
                // An image that names no user runs as root.
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
    fn failed_pulls_wait_with_their_last_error_until_they_expire() {
        let seconds = Duration::from_secs;
        let mut failures = Failures::new();
        let count = |failures: &Failures| failures.last_pull_errors.len();
        assert_eq!(failures.last_error("a", seconds(0)), None);
        failures.add("a", "one".to_owned(), seconds(0));
        failures.add("b", "two".to_owned(), seconds(1));
        assert_eq!(failures.last_error("a", seconds(9)), Some("one"));
        assert_eq!(failures.last_error("a", seconds(10)), None);
        failures.add("a", "three".to_owned(), seconds(10));
        assert_eq!(failures.last_error("a", seconds(29)), Some("three"));
        assert_eq!(count(&failures), 2);
        // The end of another pull removes what has expired: after a failure, and after a success.
        failures.add("c", "four".to_owned(), seconds(605));
        assert_eq!((count(&failures), failures.backoff.delay("b")), (2, None));
        failures.reset("d", seconds(612));
        assert_eq!((count(&failures), failures.backoff.delay("a")), (1, None));
        failures.reset("c", seconds(612));
        assert_eq!((count(&failures), failures.backoff.delay("c")), (0, None));
    }

    #[test]
    fn recorded_pulls_begin_with_their_first_attempt_and_are_bounded() {
        let seconds = Duration::from_secs;
        let mut pulls = Pulls::default();
        pulls.succeed(seconds(1));
        for begin in [2, 3] {
            pulls.begin(seconds(begin));
        }
        pulls.succeed(seconds(4));
        assert_eq!(pulls.done, [(seconds(2), seconds(4))]);
        for begin in 0..1000 {
            pulls.begin(seconds(begin));
            pulls.succeed(seconds(begin));
        }
        assert_eq!(pulls.done.len() + pulls.begun.len(), MAX_PULLS);
    }

    fn unknown(message: &str) -> cri::Error {
        let message = message.to_owned();
        cri::Error::Status { method: "PullImage", code: Code::Unknown, message, retry_after: None }
    }

    #[test]
    fn reason_of_a_failed_pull_is_that_of_the_runtime() {
        let not_found = cri::Error::Status {
            method: "PullImage",
            code: Code::NotFound,
            message: "RegistryUnavailable".to_owned(),
            retry_after: None,
        };
        for (error, reason, message) in [
            (
                unknown("RegistryUnavailable: dial"),
                "RegistryUnavailable",
                "image pull failed for i:1 because the registry is unavailable: dial",
            ),
            (
                unknown("SignatureValidationFailed"),
                "SignatureValidationFailed",
                "image pull failed for i:1 because the signature validation failed",
            ),
            (unknown("no space"), "ErrImagePull", "no space"),
            (not_found, "ErrImagePull", "PullImage: RegistryUnavailable"),
        ] {
            let expected = Waiting { reason, message: message.to_owned() };
            let error = Error::NotPulled(vec![error]).to_string();
            assert_eq!(failed_pull("i:1", &error), expected);
        }
    }

    #[test]
    fn pulls_with_several_credentials_show_each_fault_once() {
        for (messages, expected) in
            [(&["a"][..], "a"), (&["a", "a"], "a"), (&["a", "a", "b"], "[a, b]")]
        {
            let causes = messages.iter().map(|message| unknown(message)).collect();
            assert_eq!(Error::NotPulled(causes).to_string(), expected);
        }
    }

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
