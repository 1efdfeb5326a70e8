//! How long the pods of an API server take to start: from their creation until the server shows
//! that all their containers run. Upstream: `basicPodStartupLatencyTracker`.

use std::collections::HashMap;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::objects::Timestamp;
use parking_lot::Mutex;

use super::Kubelet;
use crate::metrics;
use crate::pod::{Pod, PodExt, Uid};

/// The pods whose start is awaited.
#[derive(Debug, Default)]
pub(super) struct Startups(Mutex<HashMap<Uid, Startup>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Startup {
    Awaited,
    /// The pod has waited for a node, which is not the kubelet's time.
    Excluded,
}

impl Startups {
    /// Observes a pod as the API server has it. Returns true once: when all containers of a pod
    /// whose start is measured run. Not measured are pods that an earlier kubelet has started, for
    /// which the scheduler found no node at first, or that have ended.
    fn has_started(&self, pod: &Pod) -> bool {
        let (mut all, uid) = (self.0.lock(), pod.uid());
        if pod.has_ended() {
            all.remove(&uid);
            return false;
        }
        match all.get(&uid).copied() {
            Some(Startup::Excluded) => false,
            Some(Startup::Awaited) if is_unschedulable(pod) => {
                all.insert(uid, Startup::Excluded);
                false
            }
            Some(Startup::Awaited) => all_run(pod) && all.remove(&uid).is_some(),
            None => {
                // An earlier kubelet has started a pod that has a start time: it is not measured.
                if pod.status.as_ref().is_none_or(|status| status.start_time.is_none()) {
                    let is_excluded = is_unschedulable(pod);
                    let startup = if is_excluded { Startup::Excluded } else { Startup::Awaited };
                    all.insert(uid, startup);
                }
                false
            }
        }
    }

    /// Returns whether the start of a pod is still awaited.
    fn awaits(&self, uid: &Uid) -> bool {
        self.0.lock().get(uid) == Some(&Startup::Awaited)
    }

    /// Forgets pods that are not known.
    pub(super) fn retain(&self, is_known: impl Fn(&str) -> bool) {
        self.0.lock().retain(|uid, _| is_known(uid));
    }
}

impl Kubelet {
    /// Measures the start of a pod, once the pod as its source has it runs; not that of a static
    /// pod. Until then the pulls of its images are recorded.
    pub(super) fn observe_startup(&self, pod: &Pod) {
        if pod.is_static() {
            return;
        }
        let (uid, has_started) = (pod.uid(), self.startups.has_started(pod));
        if self.startups.awaits(&uid) {
            return self.manager.images.record_pulls(uid);
        }
        let pulls = self.manager.images.take_pulls(&uid);
        if !has_started {
            return;
        }
        let created = pod.metadata.creation_timestamp.as_ref();
        let created = created.map_or(0, |time| time.0.as_microsecond());
        let total = self.clock.now().duration_since(Timestamp::from_micros(created));
        let pulling = pulling_time(&pulls);
        let own = total.saturating_sub(pulling).saturating_sub(init_time(pod));
        let (name, is_stateful) = (pod.display_name(), is_stateful(pod));
        log::info!("pod {name} has started after {total:?}, {own:?} without images and init");
        metrics::observe_start(total, (!is_stateful).then_some(own));
        if !is_stateful && !pod.is_host_network() {
            metrics::set_first_network_start(own);
        }
    }
}

/// Returns whether the scheduler has found no node for the pod so far.
fn is_unschedulable(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| {
        condition.type_ == "PodScheduled"
            && condition.status == "False"
            && condition.reason.as_deref() == Some("Unschedulable")
    })
}

/// Returns whether a pod has containers and all of them run. Upstream: `hasPodStartedSLO`.
fn all_run(pod: &Pod) -> bool {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref());
    let runs = |status: &core::ContainerStatus| {
        let running = status.state.as_ref().and_then(|state| state.running.as_ref());
        running.is_some_and(|running| running.started_at.is_some())
    };
    statuses.is_some_and(|statuses| !statuses.is_empty() && statuses.iter().all(runs))
}

/// Adds up how long the init containers have run that have ended.
fn init_time(pod: &Pod) -> Duration {
    let statuses = pod.status.as_ref().and_then(|status| status.init_container_statuses.as_ref());
    let times = statuses.into_iter().flatten().filter_map(|status| {
        let terminated = status.state.as_ref()?.terminated.as_ref()?;
        let (begin, end) = (terminated.started_at.as_ref()?, terminated.finished_at.as_ref()?);
        let micros = end.0.as_microsecond() - begin.0.as_microsecond();
        Some(Duration::from_micros(u64::try_from(micros).unwrap_or_default()))
    });
    times.sum()
}

/// Returns how long images were pulled. Pulls at the same time count once. `pulls`: their begins
/// and ends, in any order. Upstream: `calculateImagePullingTime`.
fn pulling_time(pulls: &[(Duration, Duration)]) -> Duration {
    let mut pulls = pulls.to_vec();
    pulls.sort_unstable();
    let (mut total, mut until) = (Duration::ZERO, Duration::ZERO);
    for (begin, end) in pulls {
        total += end.saturating_sub(begin.max(until));
        until = until.max(end);
    }
    total
}

/// Returns whether the pod has volumes whose set-up may take any time. Upstream: `isStatefulPod`.
fn is_stateful(pod: &Pod) -> bool {
    pod.spec().volumes.iter().flatten().any(|volume| {
        volume.secret.is_none()
            && volume.config_map.is_none()
            && volume.downward_api.is_none()
            && volume.empty_dir.is_none()
            && volume.projected.is_none()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(status: Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"containers": []},
            "status": status,
        }))
        .expect("a pod")
    }

    fn running(count: usize) -> Value {
        let status = json!({
            "name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        });
        let statuses = vec![status; count];
        json!({"startTime": "2026-01-01T00:00:00Z", "containerStatuses": statuses})
    }

    #[test]
    fn starts_are_observed_once_and_only_from_their_begin() {
        let waiting = json!({"startTime": "2026-01-01T00:00:00Z"});
        let unschedulable = json!({"conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]});
        for (statuses, expected) in [
            (vec![json!({}), waiting.clone(), running(2), running(2)], vec![2]),
            // An earlier kubelet has begun.
            (vec![waiting, running(1)], vec![]),
            (vec![running(1)], vec![]),
            // It has waited for a node.
            (vec![unschedulable.clone(), json!({}), running(1)], vec![]),
            (vec![json!({}), unschedulable, running(1)], vec![]),
            (vec![json!({}), json!({"phase": "Failed"}), running(1)], vec![]),
        ] {
            let startups = Startups::default();
            let numbered = statuses.iter().enumerate();
            let started =
                numbered.filter(|(_, status)| startups.has_started(&pod((*status).clone())));
            let started: Vec<usize> = started.map(|(at, _)| at).collect();
            assert_eq!(started, expected, "{statuses:?}");
        }
    }

    #[test]
    fn pulls_at_the_same_time_count_once() {
        let seconds = Duration::from_secs;
        for (pulls, expected) in [
            (&[(1, 4)][..], 3),
            (&[], 0),
            (&[(1, 4), (6, 7)], 4),
            (&[(1, 4), (2, 6)], 5),
            (&[(3, 4), (1, 6)], 5),
        ] {
            let pulls: Vec<_> =
                pulls.iter().map(|(begin, end)| (seconds(*begin), seconds(*end))).collect();
            assert_eq!(pulling_time(&pulls), seconds(expected), "{pulls:?}");
        }
    }

    #[test]
    fn init_containers_that_have_ended_count() {
        let ended = |from: &str, to: &str| {
            json!({"name": "i", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
                   "state": {"terminated": {"exitCode": 0, "startedAt": from, "finishedAt": to}}})
        };
        let statuses = json!([
            ended("2026-01-01T00:00:00Z", "2026-01-01T00:00:05Z"),
            ended("2026-01-01T00:00:05Z", "2026-01-01T00:00:07Z"),
        ]);
        let pod = pod(json!({"initContainerStatuses": statuses}));
        assert_eq!(init_time(&pod), Duration::from_secs(7));
    }

    #[test]
    fn volumes_of_others_may_take_any_time() {
        let with = |volume: Value| -> Pod {
            serde_json::from_value(json!({"spec": {"containers": [], "volumes": [volume]}}))
                .expect("a pod")
        };
        assert!(is_stateful(&with(json!({"name": "v", "hostPath": {"path": "/x"}}))));
        assert!(!is_stateful(&with(json!({"name": "v", "emptyDir": {}}))));
    }
}
