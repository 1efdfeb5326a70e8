//! The health check of leader election. Upstream: `tools/leaderelection/healthzadaptor.go`.

use parking_lot::Mutex;
use std::time::Duration;

use super::LeaderElector;

/// Fails when a lease that we hold could not be renewed and expired more than `timeout` ago: the
/// process should have ended by then. Passes until an elector is set.
pub struct HealthzAdaptor {
    timeout: Duration,
    elector: Mutex<Option<LeaderElector>>,
}

impl HealthzAdaptor {
    /// The name of the check.
    pub const NAME: &str = "leaderElection";

    /// `timeout`: as upstream, 20 s.
    pub fn new(timeout: Duration) -> HealthzAdaptor {
        HealthzAdaptor { timeout, elector: Mutex::new(None) }
    }

    pub fn set_leader_election(&self, elector: &LeaderElector) {
        *self.elector.lock() = Some(elector.clone());
    }

    /// `Err`: why it is not healthy.
    pub fn check(&self) -> Result<(), String> {
        match &*self.elector.lock() {
            Some(elector) => elector.check(self.timeout),
            None => Ok(()),
        }
    }
}
