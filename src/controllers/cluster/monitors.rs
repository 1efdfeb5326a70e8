//! Watches, by metadata, the resources that discovery names, as they come and go.
//! Upstream: `GarbageCollector.Sync`, `QuotaMonitor`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::FutureExt;
use prometheus::IntCounter;

use crate::cache::{MetadataHandler, MetadataInformer, Registration, SharedInformerFactory};
use crate::client::{ApiResource, Client};
use crate::clock::SharedClock;
use crate::controllers::ControllerContext;
use crate::objects::ResourceType;
use crate::task::StopToken;

/// Between two looks at discovery.
const PERIOD: Duration = Duration::from_secs(30);
/// How long new resources have for their first lists.
const PATIENCE: Duration = Duration::from_secs(30);

/// One watch for each resource that discovery names and a filter lets through, shared with whoever
/// else watches it.
pub struct Monitors {
    name: &'static str,
    client: Client,
    clock: SharedClock,
    factory: SharedInformerFactory,
    wanted: fn(&ApiResource) -> bool,
    errors: Option<IntCounter>,
    running: HashMap<ResourceType, Monitored>,
}

/// A resource that is watched.
struct Monitored {
    informer: Arc<dyn MetadataInformer>,
    registration: Registration,
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
        Monitors { name, client, clock, factory, wanted, errors: None, running: HashMap::new() }
    }

    /// Counts what goes wrong, too.
    pub fn counting_errors(self, counter: IntCounter) -> Monitors {
        Monitors { errors: Some(counter), ..self }
    }

    /// Runs until `stop`. `monitor` is asked for a handler when a resource appears. `ready` is
    /// stopped once the handlers have seen the first lists, or some take too long, or all is over.
    pub async fn follow<F>(mut self, stop: StopToken, ready: StopToken, monitor: F)
    where
        F: Fn(&ResourceType, &Arc<dyn MetadataInformer>) -> Box<dyn MetadataHandler> + Send,
    {
        while !stop.is_stopped() {
            if self.look(&stop, &monitor).await {
                self.wait(&stop).await;
                ready.stop();
            }
            stop.unless_stopped(self.clock.sleep(PERIOD)).await;
        }
        ready.stop();
    }

    fn warn(&self, what: &str) {
        log::warn!("{}: {what}", self.name);
        self.errors.iter().for_each(IntCounter::inc);
    }

    async fn wait(&self, stop: &StopToken) {
        let synced = async {
            for monitored in self.running.values() {
                monitored.registration.synced().await;
            }
            true
        };
        let late = async {
            self.clock.sleep(PATIENCE).await;
            false
        };
        if stop.unless_stopped(synced.or(late)).await == Some(false) {
            self.warn("not all resource monitors could be synced");
        }
    }

    /// Whether anything changed.
    async fn look<F>(&mut self, stop: &StopToken, monitor: &F) -> bool
    where
        F: Fn(&ResourceType, &Arc<dyn MetadataInformer>) -> Box<dyn MetadataHandler>,
    {
        let found = match self.client.discover().await {
            Ok(found) => found,
            Err(error) => {
                self.warn(&format!("discovery: {error}"));
                return false;
            }
        };
        let wanted: Vec<ResourceType> = found
            .preferred()
            .filter(|found| (self.wanted)(found))
            .map(|found| found.resource.clone())
            .collect();
        if wanted.is_empty() {
            self.warn("no resources reported by discovery");
            return false;
        }
        // Of a group that could not be asked, what works goes on.
        let kept = |known: &ResourceType, monitored: &Monitored| {
            wanted.contains(known)
                || (found.failures.contains_key(&known.api_version())
                    && monitored.registration.has_synced())
        };
        let gone: Vec<(ResourceType, Monitored)> =
            self.running.extract_if(|known, monitored| !kept(known, monitored)).collect();
        let fresh: Vec<ResourceType> =
            wanted.into_iter().filter(|resource| !self.running.contains_key(resource)).collect();
        if gone.is_empty() && fresh.is_empty() {
            return false;
        }
        self.client.reset_discovery();
        for (resource, Monitored { informer, registration }) in gone {
            log::info!("{}: {resource} is served no longer", self.name);
            informer.remove_metadata_handler(&registration);
            if informer.scope().metadata_only {
                self.factory.release(&resource);
            }
        }
        for resource in fresh {
            let informer = self.factory.metadata(&resource);
            let handler = monitor(&resource, &informer);
            let registration = informer.add_metadata_handler(self.name, handler);
            self.running.insert(resource, Monitored { informer, registration });
        }
        self.factory.start(stop);
        true
    }
}
