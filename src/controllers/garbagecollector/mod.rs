//! Deletes what lost its owners, over every deletable resource that discovery names.
//! Upstream: `pkg/controller/garbagecollector`.

mod attempt;
mod dot;
pub mod graph;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_lite::FutureExt;
use prometheus::{IntCounter, register_int_counter};

use self::graph::{Graph, Identity, Wake};
use super::{Controller, ControllerContext, DebugAnswer, DebugRequest, Queue};
use crate::cache::{MetadataHandler, MetadataInformer, Registration, SharedInformerFactory};
use crate::client::Client;
use crate::clock::SharedClock;
use crate::events::{EventType, ObjectReference, Recorder};
use crate::objects::{Istr, Meta, ResourceType, Uid};
use crate::task::StopToken;

const NAME: &str = "garbage-collector-controller";
const ACCOUNT: &str = "generic-garbage-collector";
/// Between two looks at discovery.
const PERIOD: Duration = Duration::from_secs(30);
/// How long new resources have for their first lists, and the workers for all of them.
const PATIENCE: Duration = Duration::from_secs(30);
/// To delete an object takes two requests: to have the given rate of deletions takes twice it.
const RATE: f64 = 2.0;

static SYNC_ERRORS: LazyLock<IntCounter> = LazyLock::new(|| {
    register_int_counter!(
        "garbagecollector_controller_resources_sync_error_total",
        "Number of garbage collector resources sync errors"
    )
    .expect("registered once, with a valid name")
});

pub fn controller(cx: &ControllerContext) -> Controller {
    let workers = usize::try_from(cx.options.concurrent_gc_syncs).unwrap_or(1);
    let mut c = Controller::new(NAME);
    if !cx.options.enable_garbage_collector {
        return c;
    }
    LazyLock::force(&SYNC_ERRORS);
    let to_delete = c.queue("garbage_collector_attempt_to_delete", workers);
    let to_orphan = c.queue("garbage_collector_attempt_to_orphan", workers);
    let this = Arc::new(GarbageCollector {
        client: cx.client(ACCOUNT).hastened(RATE, 1),
        recorder: cx.recorder_as(ACCOUNT, NAME),
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
    let shown = this.clone();
    c.debug(move |request: &DebugRequest<'_>| {
        let uids = request.query.iter().filter(|(name, _)| *name == "uid");
        let uids: Vec<Uid> = uids.map(|(_, uid)| Uid::new(uid)).collect();
        let answer =
            || DebugAnswer { content_type: "text/vnd.graphviz", body: shown.graph().to_dot(&uids) };
        (request.path == "/graph").then(answer)
    });
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
        let mut monitors = HashMap::new();
        let begun = self.clock.monotonic();
        while !stop.is_stopped() {
            if self.resync_monitors(&mut monitors, &stop).await {
                let synced = async {
                    for monitor in monitors.values() {
                        monitor.registration.synced().await;
                    }
                    true
                };
                let late = async {
                    self.clock.sleep(PATIENCE).await;
                    false
                };
                if stop.unless_stopped(synced.or(late)).await == Some(false) {
                    log::warn!("garbage collector: not all resource monitors could be synced");
                    SYNC_ERRORS.inc();
                }
                self.ready.stop();
            } else if self.clock.monotonic() - begun >= PATIENCE {
                self.ready.stop();
            }
            stop.unless_stopped(self.clock.sleep(PERIOD)).await;
        }
        self.ready.stop();
    }

    /// Whether anything changed.
    async fn resync_monitors(
        self: &Arc<Self>,
        monitors: &mut HashMap<ResourceType, Monitored>,
        stop: &StopToken,
    ) -> bool {
        let found = self.client.discover().await;
        let ignored = |resource: &ResourceType| {
            resource.plural == "events" && matches!(&*resource.group, "" | "events.k8s.io")
        };
        let wanted: Vec<ResourceType> = found
            .iter()
            .flat_map(|found| found.preferred())
            .filter(|found| found.supports(&["delete", "list", "watch"]))
            .map(|found| found.resource.clone())
            .filter(|resource| !ignored(resource))
            .collect();
        let failures = match found {
            Ok(found) if !wanted.is_empty() => found.failures,
            Ok(_) => {
                log::warn!("garbage collector: no resources reported by discovery");
                SYNC_ERRORS.inc();
                return false;
            }
            Err(error) => {
                log::warn!("garbage collector: discovery: {error}");
                SYNC_ERRORS.inc();
                return false;
            }
        };
        // Of a group that could not be asked, what works goes on.
        let kept = |known: &ResourceType, monitored: &Monitored| {
            wanted.contains(known)
                || (failures.contains_key(&known.api_version())
                    && monitored.registration.has_synced())
        };
        let gone: Vec<(ResourceType, Monitored)> =
            monitors.extract_if(|known, monitored| !kept(known, monitored)).collect();
        let fresh: Vec<ResourceType> =
            wanted.into_iter().filter(|resource| !monitors.contains_key(resource)).collect();
        if gone.is_empty() && fresh.is_empty() {
            return false;
        }
        self.client.reset_discovery();
        for (resource, Monitored { informer, registration }) in gone {
            log::info!("garbage collector: {resource} is served no longer");
            informer.remove_metadata_handler(&registration);
            if informer.scope().metadata_only {
                self.factory.release(&resource);
            }
        }
        for resource in fresh {
            let monitor = Monitor {
                api_version: resource.api_version().into(),
                kind: Istr::new(&resource.kind),
                collector: self.clone(),
            };
            let informer = self.factory.metadata(&resource);
            let registration = informer.add_metadata_handler(NAME, Box::new(monitor));
            monitors.insert(resource, Monitored { informer, registration });
        }
        self.factory.start(stop);
        true
    }
}

/// A resource that is watched.
struct Monitored {
    informer: Arc<dyn MetadataInformer>,
    registration: Registration,
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
