//! Watches, by metadata, the resources that discovery names, as they come and go.
//! Upstream: `GarbageCollector.Sync`, `QuotaMonitor`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::ControllerContext;
use crate::cache::{MetadataHandler, MetadataInformer, Registration, SharedInformerFactory};
use crate::client::{ApiResource, Client};
use crate::clock::SharedClock;
use crate::objects::ResourceType;
use crate::task::StopToken;

/// Between two looks at discovery.
const PERIOD: Duration = Duration::from_secs(30);
/// How long to wait for the first lists.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);

/// One watch for each resource that discovery names and a filter lets through, shared with whoever
/// else watches it.
pub struct Monitors {
    name: &'static str,
    client: Client,
    clock: SharedClock,
    factory: SharedInformerFactory,
    wanted: fn(&ApiResource) -> bool,
    running: HashMap<ResourceType, Registration>,
}

impl Monitors {
    /// `name`: the controller's. `wanted` is asked of each resource in its preferred version.
    pub fn new(
        name: &'static str,
        cx: &ControllerContext,
        client: Client,
        wanted: fn(&ApiResource) -> bool,
    ) -> Monitors {
        let (clock, factory) = (cx.clock(), cx.factory().clone());
        Monitors { name, client, clock, factory, wanted, running: HashMap::new() }
    }

    /// Runs until `stop`. `monitor` is asked for a handler when a resource appears. `ready` is
    /// stopped once the handlers have seen the first lists, or some take too long, or all is over.
    pub async fn follow<F>(mut self, stop: StopToken, ready: StopToken, monitor: F)
    where
        F: Fn(&ResourceType, &Arc<dyn MetadataInformer>) -> Box<dyn MetadataHandler> + Send,
    {
        while !stop.is_stopped() {
            self.look(&stop, &monitor).await;
            if !ready.is_stopped() && !self.running.is_empty() {
                self.wait(&stop).await;
                ready.stop();
            }
            stop.unless_stopped(self.clock.sleep(PERIOD)).await;
        }
        ready.stop();
    }

    async fn wait(&self, stop: &StopToken) {
        let give_up = self.clock.monotonic() + PATIENCE;
        while !self.running.values().all(Registration::has_synced) {
            if self.clock.monotonic() > give_up {
                return log::warn!("{}: not all resource monitors could be synced", self.name);
            }
            if stop.unless_stopped(self.clock.sleep(POLL)).await.is_none() {
                return;
            }
        }
    }

    async fn look<F>(&mut self, stop: &StopToken, monitor: &F)
    where
        F: Fn(&ResourceType, &Arc<dyn MetadataInformer>) -> Box<dyn MetadataHandler>,
    {
        let found = match self.client.discover().await {
            Ok(found) => found,
            Err(error) => return log::warn!("{}: discovery: {error}", self.name),
        };
        let wanted: Vec<ResourceType> = found
            .preferred()
            .filter(|found| (self.wanted)(found))
            .map(|found| found.resource.clone())
            .collect();
        if wanted.is_empty() {
            return;
        }
        // What a group that could not be asked serves is taken to be unchanged.
        let failed = |resource: &ResourceType| found.failures.contains_key(&resource.api_version());
        let gone: Vec<ResourceType> = self
            .running
            .keys()
            .filter(|known| !wanted.contains(known) && !failed(known))
            .cloned()
            .collect();
        let fresh: Vec<ResourceType> =
            wanted.into_iter().filter(|resource| !self.running.contains_key(resource)).collect();
        if gone.is_empty() && fresh.is_empty() {
            return;
        }
        self.client.reset_discovery();
        for resource in gone {
            log::info!("{}: {resource} is served no longer", self.name);
            self.factory.release(&resource);
            self.running.remove(&resource);
        }
        for resource in fresh {
            let informer = self.factory.metadata(&resource);
            let handler = monitor(&resource, &informer);
            let registration = informer.add_metadata_handler(self.name, handler);
            self.running.insert(resource, registration);
        }
        self.factory.start(stop);
    }
}
