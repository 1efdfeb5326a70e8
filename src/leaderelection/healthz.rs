//! The health check of leader election. Upstream: `tools/leaderelection/healthzadaptor.go`.

use parking_lot::Mutex;
use std::time::Duration;

use super::LeaderElector;

/// The health check of leader election. Fails when we led last, could not renew, and our lease
/// expired more than `timeout` ago: the process should have ended by then. Passes until an elector
/// is set. Upstream: `HealthzAdaptor`.
pub struct HealthzAdaptor {
    timeout: Duration,
    elector: Mutex<Option<LeaderElector>>,
}

impl HealthzAdaptor {
    /// The name of the check, as in `/healthz/leaderElection`.
    pub const NAME: &str = "leaderElection";

    /// Makes a check without an elector. `timeout`: how long after the end of the lease it fails;
    /// upstream's is 20 s.
    pub fn new(timeout: Duration) -> HealthzAdaptor {
        HealthzAdaptor { timeout, elector: Mutex::new(None) }
    }

    /// Checks this elector from now on, in place of one that was set before. Upstream:
    /// `SetLeaderElection`.
    pub fn set_leader_election(&self, elector: &LeaderElector) {
        *self.elector.lock() = Some(elector.clone());
    }

    /// Checks that the elector that was set renews its lease in time. Upstream: `Check`.
    ///
    /// # Errors
    /// Why the process is not healthy.
    pub fn check(&self) -> Result<(), String> {
        match &*self.elector.lock() {
            Some(elector) => elector.check(self.timeout),
            None => Ok(()),
        }
    }
}
