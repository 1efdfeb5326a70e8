//! Whether the runtime answers and the loop turns. Upstream: `GenericPLEG.Healthy`,
//! `Kubelet.LatestLoopEntryTime`.

use std::time::Duration;

use kube_controller_manager::options::show_duration;
use parking_lot::Mutex;

/// A runtime that has not been listed for this long does not answer. Upstream:
/// `genericPlegRelistThreshold`.
const RELIST_THRESHOLD: Duration = Duration::from_secs(180);
/// A loop that has not been entered for this long hangs. Upstream: `SyncLoopHealthCheck`.
const LOOP_THRESHOLD: Duration = Duration::from_secs(300);

/// What the last relists have shown. Times are those of the monotonic clock.
pub(super) struct LoopHealth {
    state: Mutex<State>,
}

struct State {
    /// When the runtime was last listed.
    relisted: Duration,
    /// When the loop was last entered while the runtime answered.
    entered: Duration,
    /// Why the runtime was not listed the last time.
    fault: Option<String>,
}

impl LoopHealth {
    pub(super) fn new(now: Duration) -> LoopHealth {
        LoopHealth { state: State { relisted: now, entered: now, fault: None }.into() }
    }

    /// Records that the loop is entered, unless the runtime has not answered for long: upstream
    /// does not enter its loop then.
    pub(super) fn enter(&self, now: Duration) {
        let mut state = self.state.lock();
        if now.saturating_sub(state.relisted) <= RELIST_THRESHOLD {
            state.entered = now;
        }
    }

    /// Records that the runtime has been listed, and drops its fault. Returns the time since it was
    /// listed before.
    pub(super) fn record_relist(&self, now: Duration) -> Duration {
        let mut state = self.state.lock();
        if state.fault.take().is_some() {
            log::info!("the runtime answers again");
        }
        now.saturating_sub(std::mem::replace(&mut state.relisted, now))
    }

    /// Records that the runtime could not be listed.
    pub(super) fn record_failure(&self, fault: String) {
        let mut state = self.state.lock();
        if state.fault.as_ref() != Some(&fault) {
            log::error!("the runtime's pods cannot be listed: {fault}");
        }
        state.fault = Some(fault);
    }

    /// Returns whether the runtime could be listed the last time.
    pub(super) fn answers(&self) -> bool {
        self.state.lock().fault.is_none()
    }

    /// Returns why the runtime's pods are not known; `None`: they were listed lately. Upstream:
    /// `GenericPLEG.Healthy`.
    pub(super) fn pleg_fault(&self, now: Duration) -> Option<String> {
        let elapsed = now.saturating_sub(self.state.lock().relisted);
        (elapsed > RELIST_THRESHOLD).then(|| {
            let [elapsed, threshold] = [elapsed, RELIST_THRESHOLD].map(show_duration);
            format!(
                "PLEG is not healthy: pleg was last seen active {elapsed} ago; threshold is \
                 {threshold}"
            )
        })
    }

    /// Checks whether the loop turns. Upstream: `SyncLoopHealthCheck`.
    ///
    /// # Errors
    /// Upstream's text.
    pub(super) fn check(&self, now: Duration, sync_period: Duration) -> Result<(), String> {
        let idle = now.saturating_sub(self.state.lock().entered);
        match idle > LOOP_THRESHOLD.max(sync_period * 2) {
            true => Err("sync Loop took longer than expected".to_owned()),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loop_is_unhealthy_when_it_hangs_or_the_runtime_does_not_answer() {
        let seconds = Duration::from_secs;
        let health = LoopHealth::new(seconds(1000));
        health.record_failure("gone".to_owned());
        assert!(!health.answers());
        health.enter(seconds(1180));
        // Too long after the last relist to count.
        health.enter(seconds(1181));
        assert_eq!(health.pleg_fault(seconds(1180)), None);
        let fault = "PLEG is not healthy: pleg was last seen active 3m1s ago; threshold is 3m0s";
        assert_eq!(health.pleg_fault(seconds(1181)).as_deref(), Some(fault));
        assert!(health.check(seconds(1480), seconds(60)).is_ok());
        assert!(health.check(seconds(1481), seconds(60)).is_err());
        assert!(health.check(seconds(1481), seconds(600)).is_ok(), "syncs are rarer");
        assert_eq!(health.record_relist(seconds(1481)), seconds(481));
        assert!(health.answers());
        health.enter(seconds(1481));
        assert!(health.check(seconds(1481), seconds(60)).is_ok());
    }
}
