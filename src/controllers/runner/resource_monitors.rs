//! Watches the metadata of all resources that discovery names; the set of resources may change.
//! Upstream: `GarbageCollector.Sync`, `QuotaMonitor`.

use std::collections::HashSet;
use std::time::Duration;

use futures_lite::FutureExt;

use super::{Controller, MetadataCaches};
use crate::cache::{MetadataHandler, MetadataInformer, Registration};
use crate::client::{ApiResource, Client};
use crate::clock::SharedClock;
use crate::metrics::IntCounter;
use crate::objects::ResourceType;
use crate::task::{Latch, StopToken};

/// The time between two reads of discovery.
const PERIOD: Duration = Duration::from_secs(30);
/// How long workers wait for the first lists of new resources.
const PATIENCE: Duration = Duration::from_secs(30);

/// One watch for each resource that discovery names and a filter selects, shared with the other
/// watchers of that resource.
pub struct Monitors {
    name: &'static str,
    client: Client,
    clock: SharedClock,
    caches: MetadataCaches,
    wanted: fn(&ApiResource) -> bool,
    errors: Option<IntCounter>,
    running: Vec<Monitored>,
}

/// A resource that is watched.
struct Monitored {
    informer: MetadataInformer,
    registration: Registration,
}

impl Monitored {
    fn resource(&self) -> &ResourceType {
        &self.informer.scope().resource
    }
}

impl Monitors {
    /// Makes the monitors, of which none runs yet.
    pub fn new(c: &Controller, client: Client, wanted: fn(&ApiResource) -> bool) -> Monitors {
        Monitors {
            name: c.name(),
            client,
            clock: c.clock(),
            caches: c.metadata_caches(),
            wanted,
            errors: None,
            running: Vec::new(),
        }
    }

    /// Counts each failure that is logged in `counter` as well.
    pub fn counting_errors(self, counter: IntCounter) -> Monitors {
        Monitors { errors: Some(counter), ..self }
    }

    /// Starts and ends monitors as discovery changes, as long as the controller runs.
    /// `make_handler` makes the handler of a resource that appears. The workers start when the
    /// handlers have seen the first lists, or some lists take too long.
    pub fn follow<F>(mut self, c: &mut Controller, make_handler: F)
    where
        F: Fn(&ResourceType, &MetadataInformer) -> Box<dyn MetadataHandler> + Send + Sync + 'static,
    {
        let ready = Latch::new();
        c.ready_when(&ready);
        c.background(move |stop| async move {
            while !stop.is_stopped() {
                if self.update(&stop, &make_handler).await {
                    self.wait_for_sync(&stop).await;
                    ready.open();
                }
                stop.unless_stopped(self.clock.sleep(PERIOD)).await;
            }
        });
    }

    /// Logs a failure, and counts it with [`Monitors::counting_errors`].
    fn warn(&self, what: &str) {
        log::warn!("{}: {what}", self.name);
        self.errors.iter().for_each(IntCounter::inc);
    }

    /// Waits until all monitors have synced, no longer than [`PATIENCE`].
    async fn wait_for_sync(&self, stop: &StopToken) {
        let synced = async {
            for monitored in &self.running {
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

    /// Starts the monitors of resources that are new in discovery, and ends those of resources that
    /// are served no longer. Returns whether anything changed; nothing does if discovery fails or
    /// has no wanted resource. Upstream: `SyncMonitors`.
    async fn update<F>(&mut self, stop: &StopToken, make_handler: &F) -> bool
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
        let wanted = found.preferred().filter(|found| (self.wanted)(found));
        let mut added: Vec<&ResourceType> = wanted.map(|found| &found.resource).collect();
        let wanted: HashSet<&ResourceType> = added.iter().copied().collect();
        if wanted.is_empty() {
            self.warn("no resources reported by discovery");
            return false;
        }
        // A monitor is removed if its resource is not wanted any more. If discovery of its group
        // failed, this is not known, so it stays if it has synced.
        let is_removed = |monitored: &mut Monitored| {
            let known = monitored.resource();
            let failed = || found.failures.contains_key(&known.api_version());
            !(wanted.contains(known) || monitored.registration.has_synced() && failed())
        };
        let removed: Vec<Monitored> = self.running.extract_if(.., is_removed).collect();
        {
            let known: HashSet<_> = self.running.iter().map(Monitored::resource).collect();
            added.retain(|resource| !known.contains(*resource));
        }
        if removed.is_empty() && added.is_empty() {
            return false;
        }
        // The client's own copy of discovery lacks the change.
        self.client.reset_discovery();
        for monitored in removed {
            log::info!("{}: {} is served no longer", self.name, monitored.resource());
            monitored.informer.remove_metadata_handler(&monitored.registration);
            self.caches.release(&monitored.informer);
        }
        self.running.reserve_exact(added.len());
        for resource in added {
            let informer = self.caches.informer(resource);
            let handler = make_handler(resource, &informer);
            let registration = informer.add_metadata_handler(self.name, handler);
            self.running.push(Monitored { informer, registration });
        }
        self.caches.start(stop);
        true
    }
}
