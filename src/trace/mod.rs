//! The trace of chosen objects and their dependents: one line in the log for each station on their
//! way from the watch through the cache and the queues to the requests that follow.
//! [`guide`](crate::guide#trace-an-object) shows one. Upstream has no counterpart.
//!
//! Everything here costs one relaxed load of [`is_on`] while nothing is traced, and holds no
//! memory then. A line reads `trace span=N STATION …`: a span is one event of one object, one sync
//! of one key, one phase of a reflector or one attempt on a lease, and `by=N` names the span that
//! caused it. Its place in the source is that of the station.

mod span;
mod stations;
mod tracer;

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

pub use span::{Scope, Traced, carried, current, enter, scope};
pub use stations::{
    How, SyncSpan, answered, cached, decoded, dropped, handled, key_queued, lease_changed,
    lease_span, lease_tried, phase_ended, queued, read, sent, sync_begins, sync_ends, wrote,
};
use tracer::Tracer;

use crate::objects::{Meta, ResourceType};
use crate::options::TraceObject;

/// The target of the trace's lines in the log.
pub const TARGET: &str = module_path!();

/// Whether `TRACER` holds a tracer: read without the lock.
static ON: AtomicBool = AtomicBool::new(false);
/// The objects that are traced, and what is known of them; `None` while nothing is traced.
static TRACER: Mutex<Option<Box<Tracer>>> = Mutex::new(None);

/// Returns whether anything is traced. Stations that follow objects ask this first; the current
/// span of the others is 0 when nothing is.
#[inline]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Traces these objects from now on, in place of those before; none: the trace ends.
///
/// Cached objects must be passed to [`learn`]; otherwise they are followed from their next event.
pub fn set(objects: Vec<TraceObject>) {
    let mut tracer = TRACER.lock();
    ON.store(!objects.is_empty(), Ordering::Relaxed);
    *tracer = (!objects.is_empty()).then(|| Box::new(Tracer::new(objects)));
}

/// Returns the traced objects, and the number of objects that are followed because of them.
pub fn followed() -> (Vec<TraceObject>, usize) {
    let tracer = TRACER.lock();
    tracer.as_ref().map_or_else(Default::default, |tracer| (tracer.objects(), tracer.len()))
}

/// Follows a cached object that is traced, or that a followed one owns. Returns whether it is new.
pub fn learn(resource: &ResourceType, meta: &Meta) -> bool {
    with_tracer(|tracer| tracer.learn(resource, meta)).unwrap_or(false)
}

/// Calls `ask` with the tracer and returns its result; `None` while nothing is traced.
fn with_tracer<T>(ask: impl FnOnce(&mut Tracer) -> T) -> Option<T> {
    if !is_on() {
        return None;
    }
    TRACER.lock().as_mut().map(|tracer| ask(tracer))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::tracer::{Tracer, Waiting};
    use super::{Scope, Traced, current, enter};
    use crate::objects::Interned;
    use crate::objects::{Meta, OwnerReference, Pod, ReplicaSet, Resource, Uid};

    fn meta(name: &str, version: u64, owner: &str) -> Meta {
        let owner = OwnerReference { uid: Uid::new(owner), ..OwnerReference::default() };
        Meta {
            name: name.into(),
            namespace: "ns".into(),
            uid: Uid::new(name),
            resource_version: version,
            owner_references: Some(Interned::alone([owner])),
            ..Meta::default()
        }
    }

    fn tracer(object: &str) -> Tracer {
        Tracer::new(vec![object.parse().expect("an object")])
    }

    #[test]
    fn named_objects_and_what_they_own_are_followed() {
        for (object, followed) in [
            ("ReplicaSet/ns/a", true),
            ("replicasets/ns/a", true),
            ("replicasets.apps/ns/a", true),
            ("replicasets.extensions/ns/a", false),
            ("ReplicaSet/other/a", false),
            ("ReplicaSet/a", false),
            ("Pod/ns/a", false),
        ] {
            let mut tracer = tracer(object);
            assert_eq!(
                tracer.learn(&ReplicaSet::RESOURCE, &meta("a", 1, "x")),
                followed,
                "{object}"
            );
            assert!(
                !tracer.learn(&ReplicaSet::RESOURCE, &meta("a", 2, "x")),
                "known or not followed"
            );
            assert_eq!(tracer.learn(&Pod::RESOURCE, &meta("b", 1, "a")), followed, "{object}");
            assert_eq!(tracer.learn(&Pod::RESOURCE, &meta("c", 1, "b")), followed, "{object}");
        }
    }

    #[test]
    fn events_have_spans_and_keys_have_causes() {
        let mut tracer = tracer("Pod/ns/a");
        let second = Duration::from_secs(1);
        assert!(tracer.event(&Pod::RESOURCE, &meta("b", 1, "x")).is_none());
        let span = |tracer: &mut Tracer, version| {
            tracer.event(&Pod::RESOURCE, &meta("a", version, "x")).map(|(span, _)| span)
        };
        assert_eq!((span(&mut tracer, 1), span(&mut tracer, 2)), (Some(1), Some(2)));
        let of = |tracer: &Tracer, version| {
            tracer.span_of(&meta("a", version, "x")).map(|(span, _)| span)
        };
        assert_eq!((of(&tracer, 1), of(&tracer, 2), of(&tracer, 9)), (Some(1), Some(2), Some(2)));
        for cause in [1, 2, 2] {
            tracer.record_cause(7, "ns/a".into(), cause, second);
        }
        assert_eq!(tracer.begin_sync(8, "ns/a"), None, "the queue is another");
        let waiting = Waiting { causes: vec![1, 2], since: second };
        assert_eq!(tracer.begin_sync(7, "ns/a"), Some((3, waiting)));
        assert_eq!(tracer.begin_sync(7, "ns/a"), None, "taken");
    }

    #[test]
    fn a_write_is_recognized_in_the_watch_once() {
        let mut tracer = tracer("Pod/ns/a");
        let (at, uid) = (Duration::from_secs(1), Uid::new("a"));
        tracer.record_write(&uid, 5, 3, at);
        assert_eq!(tracer.take_write(&meta("a", 4, "x"), false), None);
        assert_eq!(tracer.take_write(&meta("a", 5, "x"), false), Some((3, at)));
        assert_eq!(tracer.take_write(&meta("a", 5, "x"), false), None);
        tracer.record_write(&uid, 0, 4, at);
        assert_eq!(
            tracer.take_write(&meta("a", 9, "x"), true),
            Some((4, at)),
            "deletions have no version"
        );
    }

    #[test]
    fn phases_of_kinds_with_a_followed_object_have_spans() {
        let mut tracer = tracer("replicasets/ns/a");
        assert_eq!(tracer.kind_event(&Pod::RESOURCE), None);
        assert_eq!(tracer.kind_event(&ReplicaSet::RESOURCE), Some(1), "it may exist later");
        tracer.learn(&ReplicaSet::RESOURCE, &meta("a", 1, "x"));
        assert_eq!(tracer.kind_event(&Pod::RESOURCE), None);
        tracer.learn(&Pod::RESOURCE, &meta("b", 1, "a"));
        assert_eq!(tracer.kind_event(&Pod::RESOURCE), Some(2), "owned");
    }

    #[test]
    fn attempts_on_a_traced_lease_have_spans() {
        for (object, key, span) in [
            ("Lease/ns/a", "ns/a", Some(1)),
            ("leases.coordination.k8s.io/ns/a", "ns/a", Some(1)),
            ("leases/ns/a", "ns/b", None),
            ("leases/other/a", "ns/a", None),
            ("Pod/ns/a", "ns/a", None),
        ] {
            assert_eq!(tracer(object).lease_event(key), span, "{object} {key}");
        }
    }

    #[test]
    fn tables_are_bounded() {
        let mut tracer = tracer("ReplicaSet/ns/a");
        tracer.learn(&ReplicaSet::RESOURCE, &meta("a", 1, "x"));
        for n in 0..10_000_u64 {
            let pod = meta(&format!("p{n}"), n, "a");
            tracer.event(&Pod::RESOURCE, &pod);
            tracer.record_cause(1, pod.key().to_string(), n, Duration::ZERO);
            tracer.record_write(&pod.uid, n, n, Duration::ZERO);
        }
        assert_eq!(tracer.sizes(), [4096, 4096, 1024]);
        let mut tracer = Tracer::new(tracer.objects());
        tracer.learn(&ReplicaSet::RESOURCE, &meta("a", 1, "x"));
        for n in 0..10_000_u64 {
            let pod = meta(&format!("p{n}"), n, "a");
            tracer.event(&Pod::RESOURCE, &pod);
            tracer.record_deletion(&pod.uid);
        }
        assert_eq!(tracer.len(), 257, "deleted objects make room");
    }

    #[test]
    fn a_future_runs_under_its_span_and_the_thread_does_not() {
        use futures_lite::future::{block_on, yield_now};
        let traced = Traced::new(Scope { span: 7, sync: 0 }, async {
            let before = current();
            yield_now().await;
            (before, current())
        });
        let other = async {
            yield_now().await;
            current()
        };
        let (traced, other) = block_on(futures_lite::future::zip(traced, other));
        assert_eq!((traced, other, current()), ((7, 7), 0, 0));
        let entered = enter(Scope { span: 3, sync: 0 });
        assert_eq!(
            block_on(Traced::new(Scope::default(), async { current() })),
            3,
            "no span of its own"
        );
        drop(entered);
        assert_eq!(current(), 0);
    }
}
