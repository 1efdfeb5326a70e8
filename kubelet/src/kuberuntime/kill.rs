//! Ends what runs of a pod: its containers with their hooks and grace periods, and its sandboxes.
//! Upstream: `killPodWithSyncResult`, `killContainer`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::FutureExt;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::task::Latch;

use super::Manager;
use super::hooks::HookFailure;
use crate::concurrent::join_all;
use crate::cri;
use crate::events;
use crate::metrics;
use crate::pod::{DEFAULT_GRACE_SECONDS, Pod, PodExt};
use crate::prober::Kind;
use crate::runtime::actions::{Kill, KillReason};
use crate::runtime::order;
use crate::runtime::status::{ContainerStatus, PodStatus, State};

/// The seconds that a stop always leaves the runtime. Upstream: `minimumGracePeriodInSeconds`.
const MIN_GRACE: i64 = 2;

/// A container of a pod in the runtime.
#[derive(Clone, Copy)]
pub(super) struct ContainerRef<'a> {
    pub(super) id: &'a str,
    pub(super) name: &'a str,
    /// Only then it has a hook.
    pub(super) is_running: bool,
}

impl ContainerRef<'_> {
    fn of(container: &ContainerStatus) -> ContainerRef<'_> {
        ContainerRef {
            id: &container.id,
            name: &container.name,
            is_running: container.state == State::Running,
        }
    }
}

/// A grace period that has begun.
struct GracePeriod<'a> {
    clock: &'a SharedClock,
    begin: Duration,
    seconds: i64,
}

impl GracePeriod<'_> {
    fn begin(clock: &SharedClock, seconds: i64) -> GracePeriod<'_> {
        GracePeriod { clock, begin: clock.monotonic(), seconds }
    }

    /// Returns the rest of the grace in whole seconds, as the runtime counts.
    fn remaining(&self) -> i64 {
        let spent = self.clock.monotonic().saturating_sub(self.begin).as_secs();
        self.seconds.saturating_sub(i64::try_from(spent).unwrap_or(i64::MAX)).max(0)
    }

    /// Waits for the end of the grace period.
    async fn wait_until_expired(&self) {
        self.clock.sleep(Duration::from_secs(self.remaining().unsigned_abs())).await;
    }
}

impl Manager {
    /// Ends the containers of a pod, sidecars last, and its sandboxes. `grace`: in seconds, in
    /// place of that of the pod's definition.
    ///
    /// # Errors
    /// When a call fails; what has ended stays so.
    pub async fn kill_pod(
        &self,
        pod: &Arc<Pod>,
        status: &PodStatus,
        grace: Option<i64>,
    ) -> Result<(), cri::Error> {
        for container in status.containers.iter().filter(|c| c.state == State::Running) {
            let message = format!("Stopping container {}", container.name);
            events::normal(pod, Some(&container.name), "Killing", message);
        }
        // One of an unknown state may run.
        let to_stop: Vec<_> =
            status.containers.iter().filter(|c| c.state != State::Exited).collect();
        // Opened when a container has ended.
        let ends: HashMap<&str, Latch> =
            to_stop.iter().map(|container| (container.name.as_str(), Latch::new())).collect();
        let kills = to_stop.iter().map(|container| {
            let container = ContainerRef::of(container);
            Box::pin(self.kill_container(pod, container, grace, status.ips(), Some(&ends)))
        });
        for outcome in join_all(kills.collect()).await {
            outcome?;
        }
        for sandbox in &status.sandboxes {
            self.stop_sandbox(&sandbox.id).await?;
        }
        Ok(())
    }

    /// Ends one container, as an action says; one that `status` does not have is gone. A failed
    /// probe may have a grace period of its own.
    pub(super) async fn kill(
        &self,
        pod: &Arc<Pod>,
        status: &PodStatus,
        kill: &Kill,
    ) -> Result<(), cri::Error> {
        events::normal(pod, Some(&kill.name), "Killing", &kill.message);
        let Some(container) = status.containers.iter().find(|c| c.id == kill.id) else {
            return Ok(());
        };
        let definition = pod.container(&kill.name);
        let probe = definition.and_then(|definition| match kill.reason {
            KillReason::StartupProbe => Kind::Startup.of(definition),
            KillReason::LivenessProbe => Kind::Liveness.of(definition),
            KillReason::Unknown | KillReason::Changed | KillReason::Resized => None,
        });
        let grace = probe.and_then(|probe| probe.termination_grace_period_seconds);
        self.kill_container(pod, ContainerRef::of(container), grace, status.ips(), None).await
    }

    /// Runs the `preStop` hook, waits for containers that have to end before, and stops a
    /// container, all of it within the grace period; `grace`: in place of the pod's own.
    /// `ends`: the ends of the pod's containers that run; `None`: the container is ended alone and
    /// waits for no other.
    pub(super) async fn kill_container(
        &self,
        pod: &Arc<Pod>,
        container: ContainerRef<'_>,
        grace: Option<i64>,
        ips: &[String],
        ends: Option<&HashMap<&str, Latch>>,
    ) -> Result<(), cri::Error> {
        let own = pod.spec().termination_grace_period_seconds;
        let grace = grace.or(own).unwrap_or(DEFAULT_GRACE_SECONDS);
        let grace = GracePeriod::begin(&self.clock, grace);
        self.pre_stop(pod, container, &grace, ips).await;
        if let Some(ends) = ends {
            let others = async {
                for name in order::end_before(pod, container.name) {
                    if let Some(end) = ends.get(name) {
                        end.opened().await;
                    }
                }
            };
            others.or(grace.wait_until_expired()).await;
        }
        self.stop_container(container.id, grace.remaining()).await?;
        if let Some(end) = ends.and_then(|ends| ends.get(container.name)) {
            end.open();
        }
        Ok(())
    }

    /// Runs the `preStop` hook of a running container that has one, within the grace period;
    /// without grace no hook runs. A hook that fails only gets an event.
    async fn pre_stop(
        &self,
        pod: &Arc<Pod>,
        container: ContainerRef<'_>,
        grace: &GracePeriod<'_>,
        ips: &[String],
    ) {
        let ContainerRef { id, name, is_running } = container;
        let Some(definition) = pod.container(name).filter(|_| is_running && grace.seconds > 0)
        else {
            return;
        };
        let lifecycle = definition.lifecycle.as_ref();
        let hook = lifecycle.and_then(|lifecycle| lifecycle.pre_stop.as_ref());
        let Some(hook) = hook else { return };
        let late = async {
            grace.wait_until_expired().await;
            if hook.sleep.is_some() {
                metrics::SLEEPS_ENDED_EARLY.inc();
            }
            Err(HookFailure::late(grace.seconds))
        };
        if let Err(fault) = self.run_hook(pod, definition, id, hook, ips).or(late).await {
            log::warn!("pod {}: PreStopHook of {name} failed: {fault}", pod.display_name());
            events::warning(pod, Some(name), "FailedPreStopHook", "PreStopHook failed");
        }
    }

    /// Stops a container, with this many seconds of grace but at least [`MIN_GRACE`], and waits for
    /// its end. One that is gone is no error.
    pub(super) async fn stop_container(&self, id: &str, grace: i64) -> Result<(), cri::Error> {
        let grace = Duration::from_secs(grace.max(MIN_GRACE).unsigned_abs());
        match self.runtime.stop_container(id, grace).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use kube_controller_manager::clock::FakeClock;
    use kube_controller_manager::objects::Timestamp;

    use super::*;

    #[test]
    fn grace_period_has_whole_seconds_and_ends() {
        let time = FakeClock::new(Timestamp::from_secs(0));
        let clock: SharedClock = time.clone();
        let grace = GracePeriod::begin(&clock, 5);
        for (passed_millis, expected) in [(0, 5), (999, 5), (1, 4), (3000, 1), (60_000, 0)] {
            time.advance(Duration::from_millis(passed_millis));
            assert_eq!(grace.remaining(), expected);
        }
        assert_eq!(GracePeriod::begin(&clock, -1).remaining(), 0);
    }
}
