//! Repeats one probe of a container by its period. Upstream: `prober.worker`.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::objects::Timestamp;

use super::attempt::Fault;
use super::{Ip, Kind, Probes};
use crate::events;
use crate::metrics;
use crate::pod::{Container, Pod, PodExt};

/// Upstream: `maxProbeRetries`.
const MAX_PROBE_RETRIES: u32 = 3;

/// Counts equal results until they reach their threshold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Streak {
    last: Option<bool>,
    count: i32,
}

impl Streak {
    /// Counts a probe's outcome, and returns the result that it establishes; `None`: there were
    /// fewer equal outcomes in a row than the threshold. Upstream: `worker.doProbe`.
    fn observe(&mut self, is_success: bool, probe: &core::Probe) -> Option<bool> {
        if self.last == Some(is_success) {
            self.count = self.count.saturating_add(1);
        } else {
            *self = Streak { last: Some(is_success), count: 1 };
        }
        let threshold = match is_success {
            true => probe.success_threshold.unwrap_or(1),
            false => probe.failure_threshold.unwrap_or(3),
        };
        (self.count >= threshold).then_some(is_success)
    }
}

/// Returns the delay of a container's first probe: the rest of its initial delay, counted from the
/// container's start, and at the start of the agent a part of the period, so that not all
/// containers are probed at once. `running`, `since`: the ages of the container and of the agent.
/// `part`: from 0 to 1.
fn first_delay(probe: &core::Probe, running: Duration, since: Duration, part: f64) -> Duration {
    let initial = seconds(probe.initial_delay_seconds).saturating_sub(running);
    initial.max(period(probe).mul_f64(part).saturating_sub(since))
}

fn period(probe: &core::Probe) -> Duration {
    seconds(probe.period_seconds).max(Duration::from_secs(1))
}

fn seconds(seconds: Option<i32>) -> Duration {
    Duration::from_secs(seconds.unwrap_or(0).max(0).unsigned_abs().into())
}

fn labels<'a>(pod: &'a Pod, container: &'a Container, kind: Kind) -> metrics::ProbeLabels<'a> {
    [kind.name(), &container.name, pod.name(), pod.namespace()]
}

/// Removes the metrics of a pod's probes.
pub fn remove_metrics(pod: &Pod) {
    for container in pod.all_containers() {
        for kind in Kind::ALL.into_iter().filter(|kind| kind.of(container).is_some()) {
            metrics::PROBES.remove(labels(pod, container, kind), &pod.uid());
        }
    }
}

/// A probe of a container, until it is dropped.
pub(super) struct Worker {
    pub(super) probes: Probes,
    pub(super) pod: Arc<Pod>,
    pub(super) container: Container,
    pub(super) probe: core::Probe,
    pub(super) kind: Kind,
    pub(super) id: String,
    pub(super) started_at: Timestamp,
    pub(super) ip: Ip,
}

impl Worker {
    /// Probes for ever, or until the result cannot change.
    pub(super) async fn run(&self) {
        let clock = &self.probes.clock;
        let period = period(&self.probe);
        let running = clock.now().duration_since(self.started_at);
        let since = clock.monotonic().saturating_sub(self.probes.since);
        clock.sleep(first_delay(&self.probe, running, since, fastrand::f64())).await;
        let mut streak = Streak::default();
        loop {
            if self.is_held() {
                // The startup probe has not succeeded yet.
                clock.sleep(Duration::from_secs(1)).await;
                continue;
            }
            let begin = clock.monotonic();
            let outcome = self.probe_once().await;
            let took = clock.monotonic().saturating_sub(begin);
            self.warn(&outcome);
            if matches!(outcome, Err(Fault::NoResult(_))) {
                clock.sleep(period).await;
                continue;
            }
            let is_success = outcome.is_ok();
            let labels = labels(&self.pod, &self.container, self.kind);
            metrics::PROBES.observe(labels, &self.pod.uid(), is_success, took);
            if let Some(result) = streak.observe(is_success, &self.probe) {
                self.probes.set(&self.pod, &self.id, self.kind, result).await;
                if self.kind == Kind::Startup || self.kind == Kind::Liveness && !result {
                    // The container has started, or is restarted.
                    return;
                }
            }
            clock.sleep(period).await;
        }
    }

    /// Returns whether the probe waits until the startup probe has succeeded.
    fn is_held(&self) -> bool {
        self.kind != Kind::Startup
            && self.container.startup_probe.is_some()
            && self.probes.result(&self.id, Kind::Startup) != Some(true)
    }

    /// Records an event, unless the probe has succeeded without a warning. Upstream:
    /// `prober.probe`.
    fn warn(&self, outcome: &Result<Option<String>, Fault>) {
        let kind = self.kind.name();
        let (reason, message) = match outcome {
            Ok(None) => return,
            Ok(Some(warning)) => ("ProbeWarning", format!("{kind} probe warning: {warning}")),
            Err(Fault::Failed(fault)) => ("Unhealthy", format!("{kind} probe failed: {fault}")),
            Err(Fault::NoResult(fault)) => {
                let what = "probe errored and resulted in unknown state";
                ("Unhealthy", format!("{kind} {what}: {fault}"))
            }
        };
        events::warning(&self.pod, Some(&self.container.name), reason, message);
    }

    /// Probes, and repeats at once an attempt without a result. Upstream: `runProbeWithRetries`.
    async fn probe_once(&self) -> Result<Option<String>, Fault> {
        let mut outcome = self.attempt().await;
        for _ in 1..MAX_PROBE_RETRIES {
            if !matches!(outcome, Err(Fault::NoResult(_))) {
                break;
            }
            outcome = self.attempt().await;
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_probes_are_spread_and_initial_delays_do_not_begin_again() {
        for (initial, period, running, since, part, expected) in [
            // A new container of an agent that runs for long.
            (None, 10, 0, 500, 0.9, 0),
            (Some(30), 10, 0, 500, 0.9, 30),
            (Some(30), 10, 4, 500, 0.9, 26),
            // An agent that has just started.
            (None, 10, 900, 0, 0.0, 0),
            (None, 10, 900, 0, 0.5, 5),
            (None, 10, 900, 2, 0.5, 3),
            (None, 10, 0, 7, 0.5, 0),
            (Some(300), 10, 100, 0, 0.5, 200),
            (Some(300), 10, 298, 0, 0.5, 5),
            (Some(300), 10, 900, 0, 0.5, 5),
            (Some(-1), 0, 0, 0, 0.5, 0),
        ] {
            let probe = core::Probe {
                initial_delay_seconds: initial,
                period_seconds: Some(period),
                ..Default::default()
            };
            let [running, since] = [running, since].map(Duration::from_secs);
            let delay = first_delay(&probe, running, since, part);
            assert_eq!(
                delay.as_secs(),
                expected,
                "{initial:?} {period} {running:?} {since:?} {part}"
            );
        }
    }

    #[test]
    fn results_change_at_their_thresholds() {
        let probe = core::Probe {
            success_threshold: Some(2),
            failure_threshold: Some(3),
            ..Default::default()
        };
        let mut streak = Streak::default();
        let outcomes = [true, true, true, false, false, true, false, false, false, false];
        let results = outcomes.map(|outcome| streak.observe(outcome, &probe));
        let (good, bad) = (Some(true), Some(false));
        assert_eq!(results, [None, good, good, None, None, None, None, None, bad, bad]);
    }
}
