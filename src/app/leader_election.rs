//! Runs the controllers while holding a lease.

use std::sync::Arc;

use crate::cache::VersionLosses;
use crate::client::{Client, Guard};
use crate::clock::SharedClock;
use crate::events::EventBroadcaster;
use crate::leaderelection::{
    Config, Ended, HealthzAdaptor, LeaderCallbacks, LeaderElector, LeaseLock, Work,
};
use crate::objects::ObjectKey;
use crate::options::Options;
use crate::task::StopToken;

/// Upstream releases no lease unless this gate is on. Here a lease is released unless the gate is
/// turned off: the next leader need not wait until it expires.
const RELEASE_GATE: &str = "ControllerManagerReleaseLeaderElectionLockOnExit";

/// The common parts of the elections of a process.
pub struct Contender<'a> {
    pub options: &'a Options,
    pub client: &'a Client,
    pub clock: &'a SharedClock,
    pub identity: &'a str,
    /// Records a Lease that is older than before.
    pub history: &'a VersionLosses,
    /// Ends all elections.
    pub stop: &'a StopToken,
}

impl Contender<'_> {
    /// Returns whether the API server picks the leader of the main lease among the candidates.
    pub fn is_coordinated(options: &Options) -> bool {
        options.feature_gates.enabled("CoordinatedLeaderElection")
    }

    /// Waits for the lease `name` and runs `work` under it. `work` has to end when its token stops,
    /// and to write only what its guard passes. The lease is released if all of the work has ended
    /// and all its writes have been answered, unless a flag sets its feature
    /// gate to false.
    ///
    /// # Errors
    /// When the flags describe an impossible election.
    pub async fn lead<W>(
        &self,
        name: &str,
        coordinated: bool,
        health: &HealthzAdaptor,
        work: impl FnOnce(StopToken, Guard) -> W + Send + 'static,
    ) -> Result<Ended, String>
    where
        W: Future<Output = Work> + Send + 'static,
    {
        let options = self.options;
        let key = ObjectKey::new(&options.leader_elect_resource_namespace, name);
        let events = EventBroadcaster::new(self.client.clone(), self.clock.clone());
        let recorder = events.recorder(options.program);
        let lock = LeaseLock::new(self.client, key, self.identity.into(), Some(recorder));
        let (history, clock) = (self.history.clone(), self.clock.clone());
        let lock =
            lock.on_lost_versions(move || history.record_loss(history.losses(), clock.monotonic()));
        let config = Config {
            lock: Arc::new(lock),
            lease_duration: options.leader_elect_lease_duration,
            renew_deadline: options.leader_elect_renew_deadline,
            retry_period: options.leader_elect_retry_period,
            release_on_cancel: options.feature_gates.value_given(RELEASE_GATE) != Some(false),
            coordinated,
            name: name.into(),
        };
        let elector =
            LeaderElector::new(config, self.clock.clone()).map_err(|error| error.to_string())?;
        health.set_leader_election(&elector);
        let guard = elector.guard();
        let clock = self.clock.clone();
        let work = |stop| {
            let work = work(stop, guard.clone());
            async move {
                let work = work.await;
                if guard.close(clock.monotonic()) { work } else { Work::Unfinished }
            }
        };
        let callbacks = LeaderCallbacks::new(work, || ()).on_new_leader(|leader| match leader {
            "" => log::info!("leaderelection: no leader"),
            leader => log::info!("leaderelection: new leader {leader:?}"),
        });
        let ended = elector.run(callbacks, self.stop).await;
        // After a lost lease the process ends without a delay.
        if ended != Ended::Lost {
            events.shutdown().await;
        }
        Ok(ended)
    }
}
