//! Watches, by metadata, the resources that discovery names, as they come and go.
//! Upstream: `GarbageCollector.Sync`, `QuotaMonitor`.

use std::collections::HashMap;
use std::time::Duration;

use futures_lite::FutureExt;

use crate::cache::{MetadataHandler, MetadataInformer, Registration};
use crate::client::{ApiResource, Client};
use crate::clock::SharedClock;
use crate::controllers::Controller;
use crate::controllers::runner::MetadataCaches;
use crate::metrics::IntCounter;
use crate::objects::ResourceType;
use crate::task::{Latch, StopToken};

/// The time between two reads of discovery.
const PERIOD: Duration = Duration::from_secs(30);
/// The time that new resources have for their first lists.
const PATIENCE: Duration = Duration::from_secs(30);

/// One watch for each resource that discovery names and a filter lets through, shared with the other
/// watchers of that resource.
pub struct Monitors {
    name: &'static str,
    client: Client,
    clock: SharedClock,
    caches: MetadataCaches,
    wanted: fn(&ApiResource) -> bool,
    errors: Option<IntCounter>,
    running: HashMap<ResourceType, Monitored>,
}

/// A resource that is watched.
struct Monitored {
    informer: MetadataInformer,
    registration: Registration,
}

impl Monitors {
    /// `wanted` is asked for each resource in its preferred version.
    pub fn new(c: &Controller, client: Client, wanted: fn(&ApiResource) -> bool) -> Monitors {
        Monitors {
            name: c.name(),
            client,
            clock: c.clock(),
            caches: c.metadata_caches(),
            wanted,
            errors: None,
            running: HashMap::new(),
        }
    }

    /// Counts failures as well.
    pub fn counting_errors(self, counter: IntCounter) -> Monitors {
        Monitors { errors: Some(counter), ..self }
    }

    /// Runs as long as the controller. `monitor` makes the handler of a resource that appears. The
    /// workers start when the handlers have seen the first lists, or some lists take too long.
    pub fn follow<F>(mut self, c: &mut Controller, monitor: F)
    where
        F: Fn(&ResourceType, &MetadataInformer) -> Box<dyn MetadataHandler> + Send + Sync + 'static,
    {
        let ready = Latch::new();
        c.ready_when(&ready);
        c.background(move |stop| async move {
            while !stop.is_stopped() {
                if self.look(&stop, &monitor).await {
                    self.wait(&stop).await;
                    ready.open();
                }
                stop.unless_stopped(self.clock.sleep(PERIOD)).await;
            }
        });
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
        F: Fn(&ResourceType, &MetadataInformer) -> Box<dyn MetadataHandler>,
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
        // Discovery of the group failed: its resources that have synced stay.
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
            self.caches.release(&informer);
        }
        for resource in fresh {
            let informer = self.caches.informer(&resource);
            let handler = monitor(&resource, &informer);
            let registration = informer.add_metadata_handler(self.name, handler);
            self.running.insert(resource, Monitored { informer, registration });
        }
        self.caches.start(stop);
        true
    }
}
