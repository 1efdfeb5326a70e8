//! Deletes objects that lost their owners, of every deletable resource that discovery names.
//! Upstream: `pkg/controller/garbagecollector`.

mod attempt;
mod dot;
pub mod graph;
mod nodes;

use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;

use self::graph::{Graph, Identity, Scope, Wake};
use crate::cache::{MetadataHandler, VersionLosses};
use crate::client::{ApiResource, Client};
use crate::clock::SharedClock;
use crate::controllers::runner::resource_monitors::Monitors;
use crate::controllers::{Controller, DebugAnswer, Queue, QueuePolicy};
use crate::events::{EventType, ObjectReference, Recorder};
use crate::metrics::metrics;
use crate::objects::{Istr, Meta, ResourceType, Uid};

/// To delete an object takes two requests, so the client's rate is twice that of deletions.
const RATE: f64 = 2.0;

metrics! {
    fn register_metrics;
    static SYNC_ERRORS: IntCounter = "garbagecollector_controller_resources_sync_error_total",
        "[ALPHA] Number of garbage collector resources sync errors";
}

/// The controller `garbage-collector-controller`; idle without `--enable-garbage-collector`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    if !c.options().enable_garbage_collector {
        return Ok(());
    }
    register_metrics();
    let to_delete = c.queue_named("garbage_collector_attempt_to_delete", QueuePolicy::default());
    let to_orphan = c.queue_named("garbage_collector_attempt_to_orphan", QueuePolicy::default());
    let this = Arc::new(GarbageCollector {
        client: c.client().with_rate(RATE, 1),
        recorder: c.recorder(),
        clock: c.clock(),
        history: c.history(),
        graph: Mutex::default(),
        to_delete: to_delete.clone(),
        to_orphan: to_orphan.clone(),
    });
    c.sync(to_delete, &this, GarbageCollector::attempt_to_delete);
    c.sync(to_orphan, &this, GarbageCollector::attempt_to_orphan);
    let shown = this.clone();
    c.debug(move |request| {
        let uids = request.query.iter().filter(|(name, _)| *name == "uid");
        let uids: Vec<Uid> = uids.map(|(_, uid)| Uid::new(uid)).collect();
        let answer =
            || DebugAnswer { content_type: "text/vnd.graphviz", body: shown.graph().to_dot(&uids) };
        (request.path == "/graph").then(answer)
    });
    let monitors =
        Monitors::new(c, this.client.clone(), wanted).counting_errors(SYNC_ERRORS.clone());
    monitors.follow(c, move |resource, _| {
        Box::new(Monitor {
            scope: Scope {
                kind: Istr::new(&resource.kind),
                api_version: resource.api_version().into(),
                namespace: Istr::default(),
            }
            .shared(),
            collector: this.clone(),
        })
    });
    Ok(())
}

fn wanted(found: &ApiResource) -> bool {
    let ResourceType { plural, group, .. } = &found.resource;
    let is_event = plural == "events" && matches!(group.as_ref(), "" | "events.k8s.io");
    found.supports(&["delete", "list", "watch"]) && !is_event
}

struct GarbageCollector {
    client: Client,
    recorder: Recorder,
    clock: SharedClock,
    history: VersionLosses,
    graph: Mutex<Graph>,
    to_delete: Queue<Uid>,
    to_orphan: Queue<Uid>,
}

impl GarbageCollector {
    fn graph(&self) -> MutexGuard<'_, Graph> {
        self.graph.lock()
    }

    /// Changes the graph, and adds the keys that the change wakes to the queues.
    fn change(&self, change: impl FnOnce(&mut Graph, &mut dyn FnMut(Wake))) {
        change(&mut self.graph(), &mut |wake| match wake {
            Wake::AttemptToDelete(uid) => self.to_delete.add(uid),
            Wake::AttemptToDeleteLater(uid) => self.to_delete.add_rate_limited(uid),
            Wake::AttemptToOrphan(uid) => self.to_orphan.add(uid),
            Wake::InvalidNamespace { dependent, owner } => {
                let namespace = &dependent.scope.namespace;
                let owner = Identity::of_owner(&owner, namespace);
                let text = format!(
                    "ownerRef {owner} does not exist in namespace {:?}",
                    namespace.as_str()
                );
                self.warn(&dependent, "OwnerRefInvalidNamespace", text);
            }
        });
    }

    /// Records an event about an object.
    fn warn(&self, about: &Identity, reason: &'static str, text: String) {
        let Scope { kind, api_version, namespace } = Scope::clone(&about.scope);
        let about = ObjectReference {
            api_version,
            kind,
            namespace,
            name: about.name.clone(),
            uid: about.uid.clone(),
            resource_version: 0,
            field_path: Istr::default(),
        };
        self.recorder.event(&about, EventType::Warning, reason, text);
    }
}

/// One resource's events, on their way into the graph.
struct Monitor {
    /// Of the last object: the next one is often of the same namespace.
    scope: Arc<Scope>,
    collector: Arc<GarbageCollector>,
}

impl Monitor {
    fn identity(&mut self, meta: &Meta) -> Identity {
        self.scope = self.scope.in_namespace(&meta.namespace);
        Identity { scope: self.scope.clone(), name: meta.name.clone(), uid: meta.uid.clone() }
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
