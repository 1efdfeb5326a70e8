//! Computes a number of replicas from the metrics of pods.
//! Upstream: `podautoscaler.ReplicaCalculator`, `podautoscaler/metrics/utilization.go`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crate::objects::{Pod, PodPhase, ResourceList, Timestamp};

/// One metric of one pod.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PodMetric {
    /// In thousandths. Sums of all pods, and what is assumed of a pod, may need more than 64 bits.
    pub value: i128,
    pub timestamp: Timestamp,
    /// The time over which it was measured, up to `timestamp`.
    pub window: Duration,
}

/// The metrics of pods, by their names.
pub(super) type PodMetrics = HashMap<Box<str>, PodMetric>;

/// The range around 1 in which a ratio of usage to target has no effect.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tolerances {
    pub down: f64,
    pub up: f64,
}

impl Tolerances {
    /// Whether a `ratio` of usage to target is near enough to 1 to change nothing.
    fn covers(self, ratio: f64) -> bool {
        1.0 - self.down <= ratio && ratio <= 1.0 + self.up
    }
}

/// The times after its start in which the CPU of a pod does not count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Startup {
    /// `--horizontal-pod-autoscaler-cpu-initialization-period`
    pub cpu_initialization: Duration,
    /// `--horizontal-pod-autoscaler-initial-readiness-delay`
    pub readiness_delay: Duration,
}

/// The proposal of one metric, and its values for the status.
#[derive(Debug, PartialEq)]
pub(super) struct Proposal {
    pub replicas: i32,
    /// The average of the pods, or the value of the metric, in thousandths.
    pub usage: i64,
    /// In percent of the requests.
    pub utilization: Option<i32>,
}

/// The numbers of replicas of a target.
#[derive(Clone, Copy, Debug)]
pub(super) struct Replicas {
    /// `scale.spec.replicas`
    pub wanted: i32,
    /// `scale.status.replicas`, which has the pods of a surge as well.
    pub existing: i32,
}

/// The pods of a target, and the rules.
#[derive(Clone, Copy)]
pub(super) struct Calculator<'a> {
    pub pods: &'a [Arc<Pod>],
    pub tolerances: Tolerances,
    pub startup: Startup,
    pub now: Timestamp,
    /// The gate `PodLevelResources`.
    pub pod_level_resources: bool,
}

const NO_PODS: &str = "no pods returned by selector while calculating replica count";
const NO_METRICS: &str = "did not receive metrics for targeted pods (pods might be unready)";
const UNKNOWN_PODS: &str = "no metrics returned matched known pods";

/// Pods, grouped by whether their metrics count.
#[derive(Debug, Default, PartialEq)]
struct Groups<'a> {
    ready: usize,
    unready: HashSet<&'a str>,
    missing: HashSet<&'a str>,
    ignored: HashSet<&'a str>,
}

impl<'a> Calculator<'a> {
    /// Computes the replicas for a usage of `target` percent of the pods' requests.
    /// Upstream: `GetResourceReplicas`.
    pub fn by_utilization(
        &self,
        mut metrics: PodMetrics,
        resource: &str,
        container: &str,
        current: i32,
        target: i32,
    ) -> Result<Proposal, String> {
        let groups = self.prepare(&mut metrics, Some(resource))?;
        let requests = self.requests(container, resource)?;
        let measure = |metrics: &PodMetrics| utilization(metrics, &requests, target);
        // When scaling down, a pod without metrics counts with its request, or with the target if
        // that is higher.
        let assumed =
            |pod: &str| requests.get(pod).copied().unwrap_or(0) * i128::from(target.max(100)) / 100;
        let (ratio, percent, usage) = measure(&metrics)?;
        let ratio_of = |metrics: &PodMetrics| measure(metrics).map(|(ratio, ..)| ratio);
        let replicas = self.decide(metrics, &groups, current, ratio, assumed, ratio_of)?;
        Ok(Proposal { replicas, usage, utilization: Some(percent) })
    }

    /// Computes the replicas for an average of `target` thousandths for each pod. `resource`: the
    /// resource that was measured; `None` for a custom metric.
    /// Upstream: `calcPlainMetricReplicas`.
    pub fn by_average(
        &self,
        mut metrics: PodMetrics,
        resource: Option<&str>,
        current: i32,
        target: i64,
    ) -> Result<Proposal, String> {
        let groups = self.prepare(&mut metrics, resource)?;
        let measure = |metrics: &PodMetrics| {
            let sum: i128 = metrics.values().map(|metric| metric.value).sum();
            let average = sum / at_least_one(metrics.len());
            (average as f64 / target as f64, saturated(average))
        };
        let (ratio, usage) = measure(&metrics);
        let ratio_of = |metrics: &PodMetrics| Ok(measure(metrics).0);
        let replicas =
            self.decide(metrics, &groups, current, ratio, |_| target.into(), ratio_of)?;
        Ok(Proposal { replicas, usage, utilization: None })
    }

    /// Computes the replicas that bring one value, in thousandths, to `target`. `Err`: there are no
    /// pods, though `current` is not 0 and the value not within the tolerance.
    /// Upstream: `GetObjectMetricReplicas`, `GetExternalMetricReplicas`.
    pub fn by_value(&self, usage: i128, current: i32, target: i64) -> Result<Proposal, String> {
        let ratio = usage as f64 / target as f64;
        let replicas = match current {
            // Without tolerance and without pods, so that it can start from zero.
            0 => ceil(ratio),
            _ if self.tolerances.covers(ratio) => current,
            _ if self.pods.is_empty() => {
                return Err(format!("unable to calculate ready pods: {NO_PODS}"));
            }
            _ => {
                let ready = self.pods.iter().filter(|pod| runs_ready(pod)).count();
                ceil(ratio * ready as f64)
            }
        };
        Ok(Proposal { replicas, usage: saturated(usage), utilization: None })
    }

    /// Sorts the pods into [`Groups`], and drops the metrics of pods that do not count. `Err` has
    /// the reason if there are no pods or no metrics.
    fn prepare(
        &self,
        metrics: &mut PodMetrics,
        resource: Option<&str>,
    ) -> Result<Groups<'a>, String> {
        if self.pods.is_empty() {
            return Err(NO_PODS.to_owned());
        }
        let groups = self.group_pods(metrics, resource);
        metrics
            .retain(|pod, _| !groups.ignored.contains(&**pod) && !groups.unready.contains(&**pod));
        if metrics.is_empty() {
            return Err(NO_METRICS.to_owned());
        }
        Ok(groups)
    }

    /// Groups the pods by whether their metrics count. Upstream: `groupPods`.
    fn group_pods(&self, metrics: &PodMetrics, resource: Option<&str>) -> Groups<'a> {
        let mut groups = Groups::default();
        for pod in self.pods {
            let name = &*pod.meta.name;
            if pod.meta.is_being_deleted() || pod.status.phase == PodPhase::Failed {
                groups.ignored.insert(name);
            } else if pod.status.phase == PodPhase::Pending {
                groups.unready.insert(name);
            } else {
                match metrics.get(name) {
                    None => {
                        groups.missing.insert(name);
                    }
                    Some(metric) if resource == Some("cpu") && self.is_starting(pod, metric) => {
                        groups.unready.insert(name);
                    }
                    Some(_) => groups.ready += 1,
                }
            }
        }
        groups
    }

    /// Returns whether the CPU usage `metric` is from the pod's start and does not count.
    fn is_starting(&self, pod: &Pod, metric: &PodMetric) -> bool {
        // Without a Ready condition or a start time the pod has hardly begun.
        let (Some(_), Some(started)) = (pod.status.is_ready, pod.status.start_time) else {
            return true;
        };
        let is_false = pod.status.condition("Ready").is_some_and(|ready| ready.status == "False");
        let since = pod.status.ready_changed.unwrap_or(Timestamp::from_secs(0));
        if started + self.startup.cpu_initialization > self.now {
            // The whole window must be behind the last change.
            return is_false || metric.timestamp < since + metric.window;
        }
        // It has never been ready.
        is_false && started + self.startup.readiness_delay > since
    }

    /// Returns the request of each pod for `resource`, in thousandths, by the pod's name: of
    /// `container` or, if that is empty, of the whole pod. `Err` names the first pod without one.
    /// Upstream: `calculateRequests`.
    fn requests(&self, container: &str, resource: &str) -> Result<HashMap<&'a str, i128>, String> {
        let named_request = |pod: &'a Arc<Pod>| {
            let as_a_whole = self.pod_level_resources
                && !pod.spec.shape.requests.is_empty()
                && container.is_empty();
            let request = match as_a_whole {
                true => pod_level_request(pod, resource),
                false => container_requests(pod, container, resource),
            };
            Ok((&*pod.meta.name, request?))
        };
        self.pods.iter().map(named_request).collect()
    }

    /// Decides on the number of replicas for `ratio`, the usage divided by the target. If pods have
    /// no metrics, or are unready while the ratio is above 1, it calls `measure` for a new ratio
    /// with a usage assumed for them: 0 when scaling up, `assumed` when scaling down. If the new
    /// ratio is within the tolerance, or it or the new size reverses the direction, the size stays.
    fn decide(
        &self,
        mut metrics: PodMetrics,
        groups: &Groups<'_>,
        current: i32,
        ratio: f64,
        assumed: impl Fn(&str) -> i128,
        measure: impl Fn(&PodMetrics) -> Result<f64, String>,
    ) -> Result<i32, String> {
        let counts_unready = !groups.unready.is_empty() && ratio > 1.0;
        if !counts_unready && groups.missing.is_empty() {
            return Ok(match self.tolerances.covers(ratio) {
                true => current,
                false => ceil(ratio * groups.ready as f64),
            });
        }
        let mut assume = |pod: &str, value: i128| {
            let (timestamp, window) = (self.now, Duration::ZERO);
            metrics.insert(pod.into(), PodMetric { value, timestamp, window });
        };
        for pod in &groups.missing {
            if ratio < 1.0 {
                assume(pod, assumed(pod));
            } else if ratio > 1.0 {
                assume(pod, 0);
            }
        }
        if counts_unready {
            groups.unready.iter().for_each(|pod| assume(pod, 0));
        }
        let new_ratio = measure(&metrics)?;
        let reverses = ratio < 1.0 && new_ratio > 1.0 || ratio > 1.0 && new_ratio < 1.0;
        if self.tolerances.covers(new_ratio) || reverses {
            return Ok(current);
        }
        let replicas = ceil(new_ratio * metrics.len() as f64);
        let reverses =
            new_ratio < 1.0 && replicas > current || new_ratio > 1.0 && replicas < current;
        Ok(if reverses { current } else { replicas })
    }
}

/// Computes how many replicas share `usage`, the whole value of a metric, with `target` thousandths
/// each. The usage of the proposal is the average over the replicas that exist; without replicas it
/// is the whole `usage`.
/// Upstream: `GetObjectPerPodMetricReplicas`, `GetExternalPerPodMetricReplicas`.
pub(super) fn by_share(
    usage: i128,
    replicas: Replicas,
    target: i64,
    tolerances: Tolerances,
) -> Proposal {
    let Replicas { wanted, existing } = replicas;
    let (sum, target) = (usage as f64, target as f64);
    let replicas = match tolerances.covers(sum / (target * f64::from(existing))) {
        true => wanted,
        false => ceil(sum / target),
    };
    let average = (sum / f64::from(existing.max(1))).ceil() as i64;
    Proposal { replicas, usage: average, utilization: None }
}

/// Rounds `replicas` up; returns at most the largest `i32`.
fn ceil(replicas: f64) -> i32 {
    replicas.ceil() as i32
}

/// Returns a number of pods as a divisor, which is never 0.
fn at_least_one(len: usize) -> i128 {
    len.max(1) as i128
}

/// Returns the nearest number of 64 bits.
fn saturated(number: i128) -> i64 {
    number.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

fn runs_ready(pod: &Pod) -> bool {
    pod.status.phase == PodPhase::Running && pod.is_ready()
}

/// Computes the ratio to the target, the utilization in percent, and the average in thousandths.
/// Pods without a request do not count; `Err` if all requests are missing or 0.
/// Upstream: `GetResourceUtilizationRatio`.
fn utilization(
    metrics: &PodMetrics,
    requests: &HashMap<&str, i128>,
    target: i32,
) -> Result<(f64, i32, i64), String> {
    let (mut used, mut requested, mut pods) = (0, 0, 0);
    for (pod, metric) in metrics {
        if let Some(request) = requests.get(&**pod) {
            used += metric.value;
            requested += request;
            pods += 1;
        }
    }
    if requested == 0 {
        return Err(UNKNOWN_PODS.to_owned());
    }
    let percent = (used * 100 / requested).clamp(i32::MIN.into(), i32::MAX.into()) as i32;
    Ok((f64::from(percent) / f64::from(target), percent, saturated(used / at_least_one(pods))))
}

/// Returns the request of the whole pod, in thousandths. Upstream: `calculatePodLevelRequests`.
fn pod_level_request(pod: &Pod, resource: &str) -> Result<i128, String> {
    let request = pod.spec.shape.requests.get(resource);
    request
        .map(|request| request.milli_value().into())
        .ok_or_else(|| format!("missing pod-level request for {resource} in Pod {}", pod.meta.name))
}

/// Returns the request of one container or, if it is not named, of all that run as long as the pod.
/// In thousandths. `Err`: one of them has no request, or none has this name.
/// Upstream: `calculatePodRequestsFromContainers`.
fn container_requests(pod: &Pod, container: &str, resource: &str) -> Result<i128, String> {
    let shape = &pod.spec.shape;
    let containers = shape.containers.iter().map(|found| (&found.name, &found.requests));
    let sidecars = shape.sidecars.iter().map(|found| (&found.name, &found.requests));
    let request_of = |name: &str, requests: &ResourceList| {
        let request = requests.get(resource).map(|request| request.milli_value().into());
        request.ok_or_else(|| {
            format!("missing request for {resource} in container {name} of Pod {}", pod.meta.name)
        })
    };
    let mut all = containers.chain(sidecars);
    if container.is_empty() {
        return all.map(|(name, requests)| request_of(name, requests)).sum();
    }
    match all.find(|(name, _)| *name == container) {
        Some((name, requests)) => request_of(name, requests),
        None => Err(format!("container {container} not found in Pod {}", pod.meta.name)),
    }
}

#[cfg(test)]
mod tests;
