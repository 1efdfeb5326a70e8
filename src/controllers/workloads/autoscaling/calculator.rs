//! Computes a number of replicas from the metrics of pods.
//! Upstream: `podautoscaler.ReplicaCalculator`, `podautoscaler/metrics/utilization.go`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crate::objects::{Pod, PodPhase, ResourceList, Timestamp};

/// One metric of one pod.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PodMetric {
    /// In thousandths.
    pub value: i64,
    pub timestamp: Timestamp,
    /// The time over which it was measured, up to `timestamp`.
    pub window: Duration,
}

/// By the names of pods.
pub(super) type PodMetrics = HashMap<Box<str>, PodMetric>;

/// The range around 1 in which a ratio of usage to target has no effect.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tolerances {
    pub down: f64,
    pub up: f64,
}

impl Tolerances {
    fn cover(self, ratio: f64) -> bool {
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
    /// The replicas for a usage of `target` percent of the pods' requests.
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
        // A pod without metrics counts with its request, or with the target if that is higher.
        let full = |pod: &str| {
            let request = requests.get(pod).copied().unwrap_or(0);
            request.wrapping_mul(target.max(100).into()) / 100
        };
        let (ratio, percent, usage) = measure(&metrics)?;
        let measure = |metrics: &PodMetrics| measure(metrics).map(|(ratio, ..)| ratio);
        let replicas = self.decide(metrics, &groups, current, ratio, full, measure)?;
        Ok(Proposal { replicas, usage, utilization: Some(percent) })
    }

    /// The replicas for an average of `target` thousandths. `resource`: the resource, for metrics
    /// of resources. Upstream: `calcPlainMetricReplicas`.
    pub fn by_average(
        &self,
        mut metrics: PodMetrics,
        resource: Option<&str>,
        current: i32,
        target: i64,
    ) -> Result<Proposal, String> {
        let groups = self.prepare(&mut metrics, resource)?;
        let measure = |metrics: &PodMetrics| {
            let sum = metrics.values().fold(0i64, |sum, metric| sum.wrapping_add(metric.value));
            let average = sum / count(metrics.len());
            (average as f64 / target as f64, average)
        };
        let (ratio, usage) = measure(&metrics);
        let measure = |metrics: &PodMetrics| Ok(measure(metrics).0);
        let replicas = self.decide(metrics, &groups, current, ratio, |_| target, measure)?;
        Ok(Proposal { replicas, usage, utilization: None })
    }

    /// The replicas that bring one value, in thousandths, to `target`. Upstream:
    /// `GetObjectMetricReplicas`, `GetExternalMetricReplicas`.
    pub fn by_value(&self, usage: i64, current: i32, target: i64) -> Result<Proposal, String> {
        let ratio = usage as f64 / target as f64;
        let replicas = match current {
            // Without tolerance and without pods, so that it can start from zero.
            0 => ceil(ratio),
            _ if self.tolerances.cover(ratio) => current,
            _ if self.pods.is_empty() => {
                return Err(format!("unable to calculate ready pods: {NO_PODS}"));
            }
            _ => {
                let ready = self.pods.iter().filter(|pod| runs_ready(pod)).count();
                ceil(ratio * ready as f64)
            }
        };
        Ok(Proposal { replicas, usage, utilization: None })
    }

    /// Groups the pods and drops the metrics of those that do not count.
    fn prepare(
        &self,
        metrics: &mut PodMetrics,
        resource: Option<&str>,
    ) -> Result<Groups<'a>, String> {
        if self.pods.is_empty() {
            return Err(NO_PODS.to_owned());
        }
        let groups = self.groups(metrics, resource);
        metrics
            .retain(|pod, _| !groups.ignored.contains(&**pod) && !groups.unready.contains(&**pod));
        if metrics.is_empty() {
            return Err(NO_METRICS.to_owned());
        }
        Ok(groups)
    }

    /// Upstream: `groupPods`.
    fn groups(&self, metrics: &PodMetrics, resource: Option<&str>) -> Groups<'a> {
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

    /// Whether the CPU usage is from the pod's start and does not count.
    fn is_starting(&self, pod: &Pod, metric: &PodMetric) -> bool {
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

    /// The request of each pod. Upstream: `calculateRequests`.
    fn requests(&self, container: &str, resource: &str) -> Result<HashMap<&'a str, i64>, String> {
        let of = |pod: &'a Arc<Pod>| {
            let as_a_whole = self.pod_level_resources
                && !pod.spec.shape.requests.is_empty()
                && container.is_empty();
            let request = match as_a_whole {
                true => pod_level_request(pod, resource),
                false => container_requests(pod, container, resource),
            };
            Ok((&*pod.meta.name, request?))
        };
        self.pods.iter().map(of).collect()
    }

    /// The number of replicas for `ratio`. Where pods have no metrics, or are unready while there
    /// are too few, the ratio is `measure`d again with what they use at least or at most.
    fn decide(
        &self,
        mut metrics: PodMetrics,
        groups: &Groups<'_>,
        current: i32,
        ratio: f64,
        full: impl Fn(&str) -> i64,
        measure: impl Fn(&PodMetrics) -> Result<f64, String>,
    ) -> Result<i32, String> {
        let counts_unready = !groups.unready.is_empty() && ratio > 1.0;
        if !counts_unready && groups.missing.is_empty() {
            return Ok(match self.tolerances.cover(ratio) {
                true => current,
                false => ceil(ratio * groups.ready as f64),
            });
        }
        let mut assume = |pod: &str, value: i64| {
            let (timestamp, window) = (self.now, Duration::ZERO);
            metrics.insert(pod.into(), PodMetric { value, timestamp, window });
        };
        for pod in &groups.missing {
            if ratio < 1.0 {
                assume(pod, full(pod));
            } else if ratio > 1.0 {
                assume(pod, 0);
            }
        }
        if counts_unready {
            groups.unready.iter().for_each(|pod| assume(pod, 0));
        }
        let new_ratio = measure(&metrics)?;
        let reverses = ratio < 1.0 && new_ratio > 1.0 || ratio > 1.0 && new_ratio < 1.0;
        if self.tolerances.cover(new_ratio) || reverses {
            return Ok(current);
        }
        let replicas = ceil(new_ratio * metrics.len() as f64);
        let reverses =
            new_ratio < 1.0 && replicas > current || new_ratio > 1.0 && replicas < current;
        Ok(if reverses { current } else { replicas })
    }
}

/// The sum of a metric's values; the largest or the least number where it is out of range.
pub(super) fn sum(values: &[i64]) -> i64 {
    let mut sum = 0i64;
    for value in values {
        let Some(more) = sum.checked_add(*value) else {
            return if *value > 0 { i64::MAX } else { i64::MIN };
        };
        sum = more;
    }
    sum
}

/// The replicas for `target` thousandths each. `usage`: the sum over `current` replicas; the result
/// has the average. Upstream: `GetObjectPerPodMetricReplicas`.
pub(super) fn by_share(usage: i64, current: i32, target: i64, tolerances: Tolerances) -> Proposal {
    let (sum, count, target) = (usage as f64, f64::from(current), target as f64);
    let replicas = match tolerances.cover(sum / (target * count)) {
        true => current,
        false => ceil(sum / target),
    };
    Proposal { replicas, usage: (sum / count).ceil() as i64, utilization: None }
}

/// As [`by_share`], for the sum of `values`. A sum that falls below zero counts as too large:
/// upstream treats it as an overflow. Upstream: `GetExternalPerPodMetricReplicas`.
pub(super) fn by_shares(
    values: &[i64],
    current: i32,
    target: i64,
    tolerances: Tolerances,
) -> Proposal {
    let add = |sum: i64, value: &i64| sum.checked_add(*value).filter(|sum| *sum >= 0);
    let sum = values.iter().try_fold(0, add).unwrap_or(i64::MAX);
    let proposal = by_share(sum, current, target, tolerances);
    // Such a sum is shown as it is.
    let is_too_large = sum as f64 >= i64::MAX as f64;
    Proposal { usage: if is_too_large { i64::MAX } else { proposal.usage }, ..proposal }
}

/// Rounded up; at most the largest `i32`.
fn ceil(replicas: f64) -> i32 {
    replicas.ceil() as i32
}

fn count(len: usize) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX).max(1)
}

fn runs_ready(pod: &Pod) -> bool {
    pod.status.phase == PodPhase::Running && pod.is_ready()
}

/// The ratio to the target, the utilization in percent, and the average in thousandths. Pods
/// without a request do not count. Upstream: `GetResourceUtilizationRatio`.
fn utilization(
    metrics: &PodMetrics,
    requests: &HashMap<&str, i64>,
    target: i32,
) -> Result<(f64, i32, i64), String> {
    let (mut used, mut requested, mut pods) = (0i64, 0i64, 0);
    for (pod, metric) in metrics {
        if let Some(request) = requests.get(&**pod) {
            used = used.wrapping_add(metric.value);
            requested = requested.wrapping_add(*request);
            pods += 1;
        }
    }
    if requested == 0 {
        return Err(UNKNOWN_PODS.to_owned());
    }
    let percent = used.wrapping_mul(100).wrapping_div(requested) as i32;
    Ok((f64::from(percent) / f64::from(target), percent, used / count(pods)))
}

/// In thousandths. Upstream: `calculatePodLevelRequests`.
fn pod_level_request(pod: &Pod, resource: &str) -> Result<i64, String> {
    let request = pod.spec.shape.requests.get(resource);
    request
        .map(|request| request.milli_value())
        .ok_or_else(|| format!("missing pod-level request for {resource} in Pod {}", pod.meta.name))
}

/// In thousandths, of one container or, if it is not named, of all that run as long as the pod.
/// Upstream: `calculatePodRequestsFromContainers`.
fn container_requests(pod: &Pod, container: &str, resource: &str) -> Result<i64, String> {
    let shape = &pod.spec.shape;
    let containers = shape.containers.iter().map(|found| (&found.name, &found.requests));
    let sidecars = shape.sidecars.iter().map(|found| (&found.name, &found.requests));
    let of = |name: &str, requests: &ResourceList| {
        let request = requests.get(resource).map(|request| request.milli_value());
        request.ok_or_else(|| {
            format!("missing request for {resource} in container {name} of Pod {}", pod.meta.name)
        })
    };
    let mut all = containers.chain(sidecars);
    if container.is_empty() {
        return all
            .try_fold(0i64, |sum, (name, requests)| Ok(sum.wrapping_add(of(name, requests)?)));
    }
    match all.find(|(name, _)| *name == container) {
        Some((name, requests)) => of(name, requests),
        None => Err(format!("container {container} not found in Pod {}", pod.meta.name)),
    }
}

#[cfg(test)]
mod tests;
