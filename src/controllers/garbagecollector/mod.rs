//! Deletes what lost its owners, over every deletable resource that discovery names.
//! Upstream: `pkg/controller/garbagecollector`.

mod attempt;
pub mod graph;
mod nodes;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use self::graph::{Graph, Identity, Wake};
use super::{Controller, ControllerContext, Queue};
use crate::cache::{MetadataHandler, Registration, SharedInformerFactory};
use crate::client::Client;
use crate::clock::SharedClock;
use crate::events::{EventType, ObjectReference, Recorder};
use crate::objects::{Istr, Meta, ResourceType, Uid};
use crate::task::StopToken;

const NAME: &str = "garbage-collector-controller";
/// Between two looks at discovery.
const PERIOD: Duration = Duration::from_secs(30);
/// How long the workers wait for the first lists.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);

pub fn controller(cx: &ControllerContext) -> Controller {
    let workers = usize::try_from(cx.options.concurrent_gc_syncs).unwrap_or(1);
    let mut c = Controller::new(NAME);
    if !cx.options.enable_garbage_collector {
        return c;
    }
    let to_delete = c.queue("garbage_collector_attempt_to_delete", workers);
    let to_orphan = c.queue("garbage_collector_attempt_to_orphan", workers);
    let this = Arc::new(GarbageCollector {
        client: cx.client("generic-garbage-collector"),
        recorder: cx.recorder(NAME),
        clock: cx.clock(),
        factory: cx.factory().clone(),
        graph: Mutex::default(),
        ready: StopToken::new(),
        to_delete: to_delete.clone(),
        to_orphan: to_orphan.clone(),
    });
    let deleting = this.clone();
    c.sync(to_delete, move |uid| deleting.clone().attempt_to_delete(uid));
    let orphaning = this.clone();
    c.sync(to_orphan, move |uid| orphaning.clone().attempt_to_orphan(uid));
    c.background(move |stop| this.follow_discovery(stop));
    c
}

struct GarbageCollector {
    client: Client,
    recorder: Recorder,
    clock: SharedClock,
    factory: SharedInformerFactory,
    graph: Mutex<Graph>,
    /// Set once the first lists are in the graph, or took too long, or all is over.
    ready: StopToken,
    to_delete: Queue<Uid>,
    to_orphan: Queue<Uid>,
}

impl GarbageCollector {
    fn graph(&self) -> MutexGuard<'_, Graph> {
        self.graph.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the graph, and does what the change asks for.
    fn change(&self, change: impl FnOnce(&mut Graph, &mut dyn FnMut(Wake))) {
        change(&mut self.graph(), &mut |wake| match wake {
            Wake::AttemptToDelete(uid) => self.to_delete.add(uid),
            Wake::AttemptToDeleteLater(uid) => self.to_delete.add_rate_limited(uid),
            Wake::AttemptToOrphan(uid) => self.to_orphan.add(uid),
            Wake::InvalidNamespace { dependent, owner } => {
                let about = ObjectReference {
                    api_version: dependent.api_version.to_string(),
                    kind: dependent.kind.to_string(),
                    namespace: dependent.namespace.to_string(),
                    name: dependent.name.to_string(),
                    uid: dependent.uid.to_string(),
                    resource_version: String::new(),
                    field_path: String::new(),
                };
                let owner = Identity::of_owner(&owner, &dependent.namespace);
                let text = format!(
                    "ownerRef {owner} does not exist in namespace {:?}",
                    dependent.namespace.as_str()
                );
                self.recorder.event(&about, EventType::Warning, "OwnerRefInvalidNamespace", text);
            }
        });
    }

    /// Watches what discovery names, and stops watching what it names no longer.
    async fn follow_discovery(self: Arc<Self>, stop: StopToken) {
        let mut monitors: HashMap<ResourceType, Registration> = HashMap::new();
        while !stop.is_stopped() {
            self.resync_monitors(&mut monitors, &stop).await;
            let give_up = self.clock.monotonic() + PATIENCE;
            while !self.ready.is_stopped() && !monitors.values().all(Registration::has_synced) {
                if self.clock.monotonic() > give_up {
                    log::warn!("garbage collector: not all resource monitors could be synced");
                    break;
                }
                if stop.unless_stopped(self.clock.sleep(POLL)).await.is_none() {
                    break;
                }
            }
            self.ready.stop();
            stop.unless_stopped(self.clock.sleep(PERIOD)).await;
        }
        self.ready.stop();
    }

    async fn resync_monitors(
        self: &Arc<Self>,
        monitors: &mut HashMap<ResourceType, Registration>,
        stop: &StopToken,
    ) {
        let found = match self.client.discover().await {
            Ok(found) => found,
            Err(error) => return log::warn!("garbage collector: discovery: {error}"),
        };
        let ignored = |resource: &ResourceType| {
            resource.plural == "events" && matches!(&*resource.group, "" | "events.k8s.io")
        };
        let wanted: Vec<ResourceType> = found
            .preferred()
            .filter(|found| found.supports(&["delete", "list", "watch"]))
            .map(|found| found.resource.clone())
            .filter(|resource| !ignored(resource))
            .collect();
        if wanted.is_empty() {
            return;
        }
        let failed = |resource: &ResourceType| found.failures.contains_key(&resource.api_version());
        let gone: Vec<ResourceType> = monitors
            .keys()
            .filter(|known| !wanted.contains(known) && !failed(known))
            .cloned()
            .collect();
        let fresh: Vec<ResourceType> =
            wanted.into_iter().filter(|resource| !monitors.contains_key(resource)).collect();
        if gone.is_empty() && fresh.is_empty() {
            return;
        }
        self.client.reset_discovery();
        for resource in gone {
            log::info!("garbage collector: {resource} is served no longer");
            self.factory.release(&resource);
            monitors.remove(&resource);
        }
        for resource in fresh {
            let monitor = Monitor {
                api_version: resource.api_version().into(),
                kind: Istr::new(&resource.kind),
                collector: self.clone(),
            };
            let informer = self.factory.metadata(&resource);
            let registration = informer.add_metadata_handler(NAME, Box::new(monitor));
            monitors.insert(resource, registration);
        }
        self.factory.start(stop);
    }
}

/// One resource's events, on their way into the graph.
struct Monitor {
    api_version: Istr,
    kind: Istr,
    collector: Arc<GarbageCollector>,
}

impl Monitor {
    fn identity(&self, meta: &Meta) -> Identity {
        Identity {
            api_version: self.api_version.clone(),
            kind: self.kind.clone(),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
        }
    }
}

impl MetadataHandler for Monitor {
    fn on_add(&mut self, meta: &Meta) {
        let identity = self.identity(meta);
        self.collector.change(|graph, wake| graph.observe(identity, None, meta, wake));
    }

    fn on_update(&mut self, old: &Meta, new: &Meta) {
        if old.uid != new.uid {
            self.on_delete(old);
            return self.on_add(new);
        }
        let identity = self.identity(new);
        self.collector.change(|graph, wake| graph.observe(identity, Some(old), new, wake));
    }

    fn on_delete(&mut self, meta: &Meta) {
        let identity = self.identity(meta);
        self.collector.change(|graph, wake| graph.deleted(&identity, wake));
    }
}
