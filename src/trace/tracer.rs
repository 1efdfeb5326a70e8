//! The state of the trace: the followed objects, their events and the keys that they queued. Every
//! table has a bound.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::objects::{Meta, ObjectKey, ResourceType, Uid};
use crate::options::TraceObject;

/// The limit of followed objects. Further objects are not followed, and the log says so.
const OBJECTS: usize = 4096;
/// The limit of deleted objects that are still known, while handlers and queues process their
/// deletion.
const GONE: usize = 256;
/// The limit of waiting keys with causes.
const KEYS: usize = 4096;
/// The limit of causes of one key.
const CAUSES: usize = 16;
/// The limit of writes that the watch has not delivered yet.
const WRITES: usize = 1024;
/// The limit of versions of one object whose spans are known.
const VERSIONS: usize = 8;

/// The state of the trace while objects are traced. `stations` fills and reads it, under
/// the lock of `TRACER`.
pub struct Tracer {
    objects: Vec<TraceObject>,
    followed: HashMap<Uid, Followed>,
    /// The deleted objects that are still followed, oldest first.
    gone: VecDeque<Uid>,
    /// The keys that followed objects have queued, by the queue and the key's text.
    waiting: HashMap<(usize, String), Waiting>,
    written: VecDeque<Written>,
    /// The number of the last span.
    spans: u64,
    /// Whether the log has said that no further objects are followed.
    is_full: bool,
}

/// A key that waits for a worker, or for its time.
#[derive(Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The spans that queued it.
    pub causes: Vec<u64>,
    /// When the first one did, on the monotonic clock.
    pub since: Duration,
}

/// An object whose events are traced.
struct Followed {
    /// `Pod default/web-1`
    name: String,
    /// Versions and the spans of their events, oldest first.
    events: VecDeque<(u64, u64)>,
}

/// An object as a request left it.
struct Written {
    uid: Uid,
    /// 0: it is deleted, at a version that the answer does not have.
    version: u64,
    span: u64,
    at: Duration,
}

/// Returns the name of an object in the trace, such as `Deployment default/web`.
pub fn name_of(kind: &str, key: &ObjectKey) -> String {
    format!("{kind} {key}")
}

const LEASES: ResourceType =
    ResourceType::fixed("coordination.k8s.io", "v1", "Lease", "leases", true);

/// Returns whether the object of the flag is of this resource: it may be written `Deployment`,
/// `deployments` or `deployments.apps`, in any case.
fn is_of_kind(object: &TraceObject, resource: &ResourceType) -> bool {
    let is = |name: &str| object.kind.eq_ignore_ascii_case(name);
    is(&resource.kind) || is(&resource.plural) || is(&resource.to_string())
}

/// Returns whether the object of the flag is the one with these metadata.
fn is_named(object: &TraceObject, resource: &ResourceType, meta: &Meta) -> bool {
    object.name == *meta.name && object.namespace == *meta.namespace && is_of_kind(object, resource)
}

impl Tracer {
    /// Makes a tracer of these objects, which follows none yet.
    pub fn new(objects: Vec<TraceObject>) -> Tracer {
        Tracer {
            objects,
            followed: HashMap::new(),
            gone: VecDeque::new(),
            waiting: HashMap::new(),
            written: VecDeque::new(),
            spans: 0,
            is_full: false,
        }
    }

    pub fn objects(&self) -> Vec<TraceObject> {
        self.objects.clone()
    }

    #[cfg(test)]
    pub fn sizes(&self) -> [usize; 3] {
        [self.followed.len(), self.waiting.len(), self.written.len()]
    }

    pub fn len(&self) -> usize {
        self.followed.len()
    }

    /// Follows an object that is traced or owned by a followed one. Returns whether it is new;
    /// `false` too when `OBJECTS` are followed already.
    pub fn learn(&mut self, resource: &ResourceType, meta: &Meta) -> bool {
        if meta.uid.is_empty() || self.followed.contains_key(&meta.uid) {
            return false;
        }
        let owned = || meta.owners().iter().any(|owner| self.followed.contains_key(&owner.uid));
        if !self.objects.iter().any(|object| is_named(object, resource, meta)) && !owned() {
            return false;
        }
        if self.followed.len() >= OBJECTS {
            if !self.is_full {
                self.is_full = true;
                log::warn!("trace: {OBJECTS} objects are followed, others are not");
            }
            return false;
        }
        let name = name_of(&resource.kind, &meta.key());
        self.followed.insert(meta.uid.clone(), Followed { name, events: VecDeque::new() });
        true
    }

    /// Follows an object if it has to be, and returns the span of its new event with its name;
    /// `None` if it is not followed.
    pub fn event(&mut self, resource: &ResourceType, meta: &Meta) -> Option<(u64, String)> {
        self.learn(resource, meta);
        let span = self.spans + 1;
        let followed = self.followed.get_mut(&meta.uid)?;
        if followed.events.len() == VERSIONS {
            followed.events.pop_front();
        }
        followed.events.push_back((meta.resource_version, span));
        self.spans = span;
        Some((span, followed.name.clone()))
    }

    /// Returns the number of a new span.
    fn next_span(&mut self) -> u64 {
        self.spans += 1;
        self.spans
    }

    /// Returns the span of something that happens to all objects of a kind; `None`: no object of
    /// this kind is traced or followed.
    pub fn kind_event(&mut self, resource: &ResourceType) -> Option<u64> {
        let is_followed = |followed: &Followed| {
            let name = followed.name.strip_prefix(&*resource.kind);
            name.is_some_and(|name| name.starts_with(' '))
        };
        let is_concerned = self.objects.iter().any(|object| is_of_kind(object, resource))
            || self.followed.values().any(is_followed);
        is_concerned.then(|| self.next_span())
    }

    /// Returns the span of an attempt on the Lease `key`; `None`: it is not traced.
    pub fn lease_event(&mut self, key: &str) -> Option<u64> {
        let (namespace, name) = key.split_once('/')?;
        let is_lease = |object: &TraceObject| {
            object.namespace == namespace && object.name == name && is_of_kind(object, &LEASES)
        };
        self.objects.iter().any(is_lease).then(|| self.next_span())
    }

    /// Returns the span of the event that delivered this version of an object, 0 if no event was
    /// traced yet, and the object's name. `None`: the object is not followed.
    pub fn span_of(&self, meta: &Meta) -> Option<(u64, &str)> {
        let followed = self.followed.get(&meta.uid)?;
        let mut newest_first = followed.events.iter().rev();
        let of_version =
            newest_first.clone().find(|(version, _)| *version == meta.resource_version);
        // The span of the newest event, if this version's is forgotten.
        let span = match of_version.or(newest_first.next()) {
            Some((_, span)) => *span,
            None => 0,
        };
        Some((span, &followed.name))
    }

    /// Records that an object is deleted. It is forgotten later.
    pub fn record_deletion(&mut self, uid: &Uid) {
        if !self.followed.contains_key(uid) {
            return;
        }
        self.gone.push_back(uid.clone());
        if self.gone.len() > GONE
            && let Some(oldest) = self.gone.pop_front()
        {
            self.followed.remove(&oldest);
        }
    }

    /// Records that `cause`, a span, queued `key`. Does nothing while `KEYS` keys wait, or beyond
    /// `CAUSES` of a key.
    pub fn record_cause(&mut self, queue: usize, key: String, cause: u64, now: Duration) {
        if self.waiting.len() >= KEYS {
            return;
        }
        let first_wait = || Waiting { causes: Vec::new(), since: now };
        let Waiting { causes, .. } = self.waiting.entry((queue, key)).or_insert_with(first_wait);
        if causes.len() < CAUSES && !causes.contains(&cause) {
            causes.push(cause);
        }
    }

    /// Begins a sync of `key`. Returns its span and its causes; `None` when no followed object
    /// caused it.
    pub fn begin_sync(&mut self, queue: usize, key: &str) -> Option<(u64, Waiting)> {
        let waiting = self.waiting.remove(&(queue, key.to_owned()))?;
        Some((self.next_span(), waiting))
    }

    /// Returns the span of the event of the watch that delivered this version, if it has arrived.
    pub fn brought(&self, uid: &Uid, version: u64) -> Option<u64> {
        let mut events = self.followed.get(uid)?.events.iter();
        events.find(|(seen, _)| *seen == version).map(|(_, span)| *span)
    }

    /// Records that `span` wrote an object; with `version` 0, that it deleted it.
    pub fn record_write(&mut self, uid: &Uid, version: u64, span: u64, at: Duration) {
        if self.written.len() == WRITES {
            self.written.pop_front();
        }
        self.written.push_back(Written { uid: uid.clone(), version, span, at });
    }

    /// Takes the write that led to an event of the watch: its span, and when it was answered.
    pub fn take_write(&mut self, meta: &Meta, is_deletion: bool) -> Option<(u64, Duration)> {
        // A deletion has a version of its own: any write of the object may have led to it.
        let version = if is_deletion { 0 } else { meta.resource_version };
        let at = self.written.iter().position(|written| {
            written.uid == meta.uid && (written.version == version || is_deletion)
        })?;
        let written = self.written.remove(at)?;
        Some((written.span, written.at))
    }
}
