//! Holding the lease while the controllers run.

use std::sync::Arc;

use crate::client::{Client, Guard};
use crate::clock::SharedClock;
use crate::events::EventBroadcaster;
use crate::leaderelection::{
    Config, Ended, HealthzAdaptor, LeaderCallbacks, LeaderElector, LeaseLock, new_identity,
};
use crate::objects::ObjectKey;
use crate::options::{Options, PROGRAM};
use crate::task::StopToken;

/// Waits for the lease and runs `work` under it. `work` has to end when its token stops, and to
/// write nothing that its guard does not pass.
///
/// # Errors
/// When the flags make no election that can work.
pub async fn lead<W>(
    options: &Options,
    client: &Client,
    health: &HealthzAdaptor,
    clock: SharedClock,
    stop: &StopToken,
    work: impl FnOnce(StopToken, Guard) -> W + Send + 'static,
) -> Result<Ended, String>
where
    W: Future<Output = ()> + Send + 'static,
{
    let name = &options.leader_elect_resource_name;
    let key = ObjectKey::new(&options.leader_elect_resource_namespace, name);
    let events = EventBroadcaster::new(client.clone(), clock.clone());
    let recorder = events.recorder(PROGRAM);
    let lock = LeaseLock::new(client, key, new_identity(), Some(recorder));
    let config = Config {
        lock: Arc::new(lock),
        lease_duration: options.leader_elect_lease_duration,
        renew_deadline: options.leader_elect_renew_deadline,
        retry_period: options.leader_elect_retry_period,
        release_on_cancel: true,
        name: name.clone(),
    };
    let elector = LeaderElector::new(config, clock).map_err(|error| error.to_string())?;
    health.set_leader_election(&elector);
    let lease = elector.clone();
    let work = |stop| work(stop, Arc::new(move || lease.holds_lease()));
    let callbacks = LeaderCallbacks::new(work, || ())
        .on_new_leader(|leader| log::info!("leaderelection: new leader {leader:?}"));
    let ended = elector.run(callbacks, stop).await;
    if ended != Ended::Lost {
        events.shutdown().await;
    }
    Ok(ended)
}
