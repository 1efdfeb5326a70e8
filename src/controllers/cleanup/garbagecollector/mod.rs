//! Deletes objects that lost their owners, of every deletable resource that discovery names.
//! Upstream: `pkg/controller/garbagecollector`.

mod attempt;
mod dot;
pub mod graph;
mod nodes;

use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;

use self::graph::{Effect, Graph, Identity, Scope};
use crate::cache::{MetadataHandler, VersionLosses};
use crate::client::{ApiResource, Client};
use crate::clock::SharedClock;
use crate::controllers::runner::resource_monitors::Monitors;
use crate::controllers::{Controller, DebugAnswer, Queue, QueuePolicy};
use crate::events::{EventType, ObjectReference, Recorder};
use crate::metrics::metrics;
use crate::objects::{Istr, Meta, ResourceType, Uid};

/// The factor for the rate of requests: a deletion takes two.
const RATE_FACTOR: f64 = 2.0;

metrics! {
    fn register_metrics;
    static SYNC_ERRORS: IntCounter = "garbagecollector_controller_resources_sync_error_total",
        "[ALPHA] Number of garbage collector resources sync errors";
}

/// Sets up the controller `garbage-collector-controller`; idle without
/// `--enable-garbage-collector`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    if !c.options().enable_garbage_collector {
        return Ok(());
    }
    register_metrics();
    let to_delete = c.queue_named("garbage_collector_attempt_to_delete", QueuePolicy::default());
    let to_orphan = c.queue_named("garbage_collector_attempt_to_orphan", QueuePolicy::default());
    let this = Arc::new(GarbageCollector {
        client: c.client().with_rate(RATE_FACTOR, 1),
        recorder: c.recorder(),
        clock: c.clock(),
        history: c.history(),
        graph: Mutex::default(),
        to_delete: to_delete.clone(),
        to_orphan: to_orphan.clone(),
    });
    c.sync(to_delete, &this, GarbageCollector::attempt_to_delete);
    c.sync(to_orphan, &this, GarbageCollector::attempt_to_orphan);
    let collector = this.clone();
    c.debug(move |request| {
        let uids = request.query.iter().filter(|(name, _)| *name == "uid");
        let uids: Vec<Uid> = uids.map(|(_, uid)| Uid::new(uid)).collect();
        if request.path != "/graph" {
            return None;
        }
        let body = collector.graph().to_dot(&uids);
        Some(DebugAnswer { content_type: "text/vnd.graphviz", body })
    });
    let monitors =
        Monitors::new(c, this.client.clone(), is_monitored).counting_errors(SYNC_ERRORS.clone());
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

/// Returns whether the objects of a resource can be collected. Events are not, as upstream.
fn is_monitored(found: &ApiResource) -> bool {
    let ResourceType { plural, group, .. } = &found.resource;
    let is_event = plural == "events" && matches!(group.as_ref(), "" | "events.k8s.io");
    found.supports(&["delete", "list", "watch"]) && !is_event
}

/// The controller: the graph, and the queues of its two syncs.
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

    /// Applies `change` to the graph, and carries out the effects that it emits, under the lock.
    fn change_graph(&self, change: impl FnOnce(&mut Graph, &mut dyn FnMut(Effect))) {
        change(&mut self.graph(), &mut |effect| match effect {
            Effect::AttemptToDelete(uid) => self.to_delete.add(uid),
            Effect::AttemptToDeleteLater(uid) => self.to_delete.add_rate_limited(uid),
            Effect::AttemptToOrphan(uid) => self.to_orphan.add(uid),
            Effect::InvalidNamespace { dependent, owner } => {
                let namespace = &dependent.scope.namespace;
                let owner = Identity::of_owner(&owner, namespace);
                let text = format!(
                    "ownerRef {owner} does not exist in namespace {:?}",
                    namespace.as_str()
                );
                self.record_warning(&dependent, "OwnerRefInvalidNamespace", text);
            }
        });
    }

    /// Records a warning event about an object, of which only the identity is known.
    fn record_warning(&self, about: &Identity, reason: &'static str, text: String) {
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

/// Passes the watch events of one resource to the graph.
struct Monitor {
    /// The scope of the last object: the next one is often of the same namespace, and shares it.
    scope: Arc<Scope>,
    collector: Arc<GarbageCollector>,
}

impl Monitor {
    /// Returns the identity of an object of this resource.
    fn identity(&mut self, meta: &Meta) -> Identity {
        self.scope = self.scope.in_namespace(&meta.namespace);
        Identity { scope: self.scope.clone(), name: meta.name.clone(), uid: meta.uid.clone() }
    }
}

impl MetadataHandler for Monitor {
    fn on_add(&mut self, meta: &Meta) {
        let identity = self.identity(meta);
        self.collector.change_graph(|graph, emit| graph.observe(identity, None, meta, emit));
    }

    fn on_update(&mut self, old: &Meta, new: &Meta) {
        if old.uid != new.uid {
            self.on_delete(old);
            return self.on_add(new);
        }
        let identity = self.identity(new);
        self.collector.change_graph(|graph, emit| graph.observe(identity, Some(old), new, emit));
    }

    fn on_delete(&mut self, meta: &Meta) {
        let identity = self.identity(meta);
        self.collector.change_graph(|graph, emit| graph.handle_deletion(&identity, emit));
    }
}
