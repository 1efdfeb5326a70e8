//! How the container runtime does, and what it has. Upstream: `Kubelet.updateRuntimeUp`,
//! `runtimeState`.

use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::clock::SharedClock;
use parking_lot::Mutex;

use crate::causes::chain;
use crate::cri::{ImageService, RuntimeService, api};
use crate::node::network::NetworkState;
use crate::node::status::{ImageNames, RuntimeFeatures, RuntimeInfo};

/// For so long a runtime that does not answer counts as up. Upstream: `maxWaitForContainerRuntime`.
const THRESHOLD: Duration = Duration::from_secs(30);

/// The runtime, as it was last asked.
pub struct RuntimeWatch {
    runtime: RuntimeService,
    images: ImageService,
    clock: SharedClock,
    state: Mutex<RuntimeState>,
}

#[derive(Debug, Default)]
struct RuntimeState {
    /// When it last said that it is ready, on the monotonic clock.
    last_ready: Option<Duration>,
    runtime_fault: Option<String>,
    network: NetworkState,
    info: RuntimeInfo,
    images: Option<Vec<ImageNames>>,
    /// The ranges of addresses for pods that the runtime was given; empty: none.
    pod_cidr: String,
}

impl RuntimeState {
    /// Lists why the node is not ready. `pleg`: the fault of the relist. Upstream: `runtimeErrors`,
    /// `networkErrors`.
    fn faults(&self, pleg: Option<String>, now: Duration) -> Vec<String> {
        let down = match self.last_ready {
            None => Some("container runtime status check may not have completed yet"),
            Some(last) if now.saturating_sub(last) >= THRESHOLD => {
                Some("container runtime is down")
            }
            Some(_) => None,
        };
        let down = down.map(str::to_owned);
        let own = [self.runtime_fault.clone(), self.network.fault()].into_iter().flatten();
        down.into_iter().chain(pleg).chain(own).collect()
    }

    /// Records the runtime's answer about its status. While the runtime is not ready, only its
    /// faults count. Upstream: `updateRuntimeUp`.
    fn set(&mut self, answer: api::StatusResponse, now: Duration) {
        let conditions = answer.status.unwrap_or_default().conditions;
        let network_fault =
            fault(&conditions, "NetworkReady", "container runtime network not ready");
        self.network.set(network_fault);
        self.runtime_fault = fault(&conditions, "RuntimeReady", "container runtime not ready");
        if self.runtime_fault.is_some() {
            return;
        }
        let mut handlers: Vec<_> = answer.runtime_handlers.into_iter().map(handler).collect();
        handlers.sort_by(|one, other| one.name.cmp(&other.name));
        self.info.handlers = handlers;
        self.info.features = answer.features.map(|features| RuntimeFeatures {
            supplemental_groups_policy: features.supplemental_groups_policy,
            user_namespaces_host_network: features.user_namespaces_host_network,
        });
        self.last_ready = Some(now);
    }
}

/// Returns the fault of a condition that is not true, or missing.
fn fault(conditions: &[api::RuntimeCondition], kind: &str, text: &str) -> Option<String> {
    let found = conditions.iter().find(|condition| condition.r#type == kind);
    let shown = found.map(|condition| {
        let api::RuntimeCondition { status, reason, message, .. } = condition;
        format!("{kind}={status} reason:{reason} message:{message}")
    });
    match found {
        Some(condition) if condition.status => None,
        _ => Some(format!("{text}: {}", shown.unwrap_or_else(|| "<nil>".to_owned()))),
    }
}

/// Converts what the runtime reports of a handler to its form in the Node's status.
fn handler(handler: api::RuntimeHandler) -> core::NodeRuntimeHandler {
    let features = handler.features.unwrap_or_default();
    core::NodeRuntimeHandler {
        name: Some(handler.name),
        features: Some(core::NodeRuntimeHandlerFeatures {
            recursive_read_only_mounts: Some(features.recursive_read_only_mounts),
            user_namespaces: Some(features.user_namespaces),
        }),
    }
}

impl RuntimeWatch {
    /// Creates the watch of a runtime that was not asked yet. `network`: follows its answers.
    pub fn new(
        runtime: RuntimeService,
        images: ImageService,
        network: NetworkState,
        clock: SharedClock,
    ) -> RuntimeWatch {
        let state = RuntimeState { network, ..RuntimeState::default() };
        RuntimeWatch { runtime, images, clock, state: state.into() }
    }

    /// Asks the runtime for its status and version. A runtime that does not answer keeps the caller
    /// for long.
    pub async fn refresh(&self) {
        match self.runtime.status(api::StatusRequest { verbose: false }).await {
            Ok(answer) => self.state.lock().set(answer, self.clock.monotonic()),
            Err(error) => log::error!("Container runtime sanity check failed: {}", chain(&error)),
        }
        let version = self.runtime.version(api::VersionRequest { version: "0.1.0".to_owned() });
        let version = version.await.ok().and_then(|answer| plain_version(&answer.runtime_version));
        self.state.lock().info.version = version;
    }

    /// Gives the runtime the ranges of addresses for pods, unless it has them: it may configure its
    /// network by them. Returns whether they have changed. A failure counts as a change, and the
    /// next call repeats it. Upstream: `updatePodCIDR`.
    pub async fn set_pod_cidr(&self, cidr: &str) -> bool {
        let before = self.state.lock().pod_cidr.clone();
        if before == cidr {
            return false;
        }
        let network_config = Some(api::NetworkConfig { pod_cidr: cidr.to_owned() });
        let runtime_config = Some(api::RuntimeConfig { network_config });
        let request = api::UpdateRuntimeConfigRequest { runtime_config };
        match self.runtime.update_runtime_config(request).await {
            Ok(_) => {
                log::info!("Updating Pod CIDR: {before:?} becomes {cidr:?}");
                self.state.lock().pod_cidr = cidr.to_owned();
            }
            Err(error) => log::error!("Error updating pod CIDR: {}", chain(&error)),
        }
        true
    }

    /// Lists the images, for long where the runtime's disk is slow.
    pub async fn list_images(&self) {
        let listed = self.images.list_images(api::ListImagesRequest::default()).await;
        let listed = listed.map(|answer| answer.images.into_iter().map(names).collect());
        match listed {
            Ok(images) => self.state.lock().images = Some(images),
            // The last list stays, as upstream's cache.
            Err(error) => log::warn!("Failed to update image list: {}", chain(&error)),
        }
    }

    /// Returns what is known of the runtime. `pleg`: the fault of the relist.
    pub fn info(&self, pleg: Option<String>) -> RuntimeInfo {
        let state = self.state.lock();
        let faults = state.faults(pleg, self.clock.monotonic());
        RuntimeInfo { faults, ..state.info.clone() }
    }

    /// Returns the images of the runtime; `None`: they were not listed yet.
    pub fn images(&self) -> Option<Vec<ImageNames>> {
        self.state.lock().images.clone()
    }
}

/// Converts an image of the runtime to its names and size.
fn names(image: api::Image) -> ImageNames {
    let size_bytes = i64::try_from(image.size).unwrap_or(i64::MAX);
    ImageNames { id: image.id, digests: image.repo_digests, tags: image.repo_tags, size_bytes }
}

/// Returns the version of a runtime as a Node shows it: without a leading `v`, and without what
/// follows its numbers unless that is of a semantic version. `None`: it does not begin with two
/// numbers. Upstream: `newRuntimeVersion`.
fn plain_version(text: &str) -> Option<String> {
    let text = text.trim();
    let text = text.strip_prefix('v').unwrap_or(text);
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (numbers, rest) = text.split_at(end);
    // A dot that no number follows belongs to the rest.
    let numbers = numbers.trim_end_matches('.');
    let parts: Vec<&str> = numbers.split('.').collect();
    if parts.len() < 2 || parts.iter().any(|part| part.is_empty()) {
        return None;
    }
    let is_word = |text: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c))
    };
    let (pre, build) = match rest.split_once('+') {
        Some((pre, build)) => (pre, Some(build)),
        None => (rest, None),
    };
    let is_semantic = parts.len() == 3
        && (pre.is_empty() || pre.strip_prefix('-').is_some_and(is_word))
        && build.is_none_or(is_word);
    Some(if is_semantic { text.to_owned() } else { numbers.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(conditions: &[(&str, bool)]) -> api::StatusResponse {
        let condition = |(kind, status): &(&str, bool)| api::RuntimeCondition {
            r#type: (*kind).to_owned(),
            status: *status,
            reason: "R".to_owned(),
            message: "m".to_owned(),
        };
        let conditions = conditions.iter().map(condition).collect();
        api::StatusResponse {
            status: Some(api::RuntimeStatus { conditions }),
            runtime_handlers: ["b", ""]
                .map(|name| api::RuntimeHandler { name: name.to_owned(), features: None })
                .into(),
            features: Some(api::RuntimeFeatures {
                supplemental_groups_policy: true,
                ..api::RuntimeFeatures::default()
            }),
            ..api::StatusResponse::default()
        }
    }

    #[test]
    fn faults_follow_the_runtimes_conditions_and_silence() {
        let seconds = Duration::from_secs;
        let mut state = RuntimeState::default();
        state.network.set(None);
        let none = "container runtime status check may not have completed yet";
        assert_eq!(state.faults(None, seconds(0)), [none]);
        let (network, runtime) = (("NetworkReady", true), ("RuntimeReady", true));
        state.set(answer(&[network, ("RuntimeReady", false)]), seconds(1));
        let not_ready = "container runtime not ready: RuntimeReady=false reason:R message:m";
        assert_eq!(state.faults(None, seconds(1)), [none, not_ready]);
        assert!(state.info.handlers.is_empty());
        state.set(answer(&[("NetworkReady", false), runtime]), seconds(2));
        let no_network =
            "container runtime network not ready: NetworkReady=false reason:R message:m";
        let pleg = || Some("PLEG is not healthy".to_owned());
        assert_eq!(state.faults(pleg(), seconds(2)), ["PLEG is not healthy", no_network]);
        let names: Vec<Option<&str>> =
            state.info.handlers.iter().map(|handler| handler.name.as_deref()).collect();
        assert_eq!(names, [Some(""), Some("b")]);
        assert!(state.info.features.is_some_and(|features| features.supplemental_groups_policy));
        state.set(answer(&[runtime]), seconds(3));
        let unknown = "container runtime network not ready: <nil>";
        assert_eq!(state.faults(None, seconds(3)), [unknown]);
        state.set(answer(&[network, runtime]), seconds(10));
        assert!(state.faults(None, seconds(39)).is_empty());
        assert_eq!(state.faults(None, seconds(40)), ["container runtime is down"]);
    }

    #[test]
    fn versions_of_runtimes_are_plain() {
        for (text, expected) in [
            ("v2.1.0", Some("2.1.0")),
            ("1.7.13-rc.1+x", Some("1.7.13-rc.1+x")),
            ("2.1.4~ds1", Some("2.1.4")),
            ("1.33", Some("1.33")),
            ("1.33.x", Some("1.33")),
            ("2", None),
            ("unknown", None),
            ("", None),
        ] {
            assert_eq!(plain_version(text).as_deref(), expected, "{text}");
        }
    }
}
