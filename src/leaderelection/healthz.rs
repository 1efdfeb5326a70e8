//! Leader election as a health check. Upstream: tools/leaderelection/healthzadaptor.go.

use parking_lot::Mutex;
use std::time::Duration;

use super::LeaderElector;

/// Fails when we hold a lease that we could not renew and that ran out more than `timeout` ago:
/// the process should have ended by then. Passes until an elector is set.
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
