//! Counts of a client's writes, for debug pages.

use std::sync::atomic::{AtomicU64, Ordering};

use super::call::Call;

/// The requests sent under one User-Agent so far, other than reads. Each attempt counts. Writes
/// that a guard refused or shadow mode answered do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writes {
    /// Requests with POST, except those for events.
    pub create: u64,
    /// Requests with PUT, except those for events.
    pub update: u64,
    /// Requests with PATCH, except those for events.
    pub patch: u64,
    /// Requests with DELETE, except those for events.
    pub delete: u64,
    /// Writes of events by any method.
    pub events: u64,
    /// The requests among all these that were answered with an error or not at all.
    pub failed: u64,
}

/// Counts of [`Writes`].
#[derive(Default)]
pub(super) struct WriteCounter {
    create: AtomicU64,
    update: AtomicU64,
    patch: AtomicU64,
    delete: AtomicU64,
    events: AtomicU64,
    failed: AtomicU64,
}

impl WriteCounter {
    /// Counts a write by its verb, or as an event; reads are not counted. `failed`: the answer has
    /// no 2xx status.
    pub fn count_write(&self, call: &Call, failed: bool) {
        let of_verb = match call.method {
            "POST" => &self.create,
            "PUT" => &self.update,
            "PATCH" => &self.patch,
            "DELETE" => &self.delete,
            _ => return,
        };
        let counter = if is_event(&call.path) { &self.events } else { of_verb };
        counter.fetch_add(1, Ordering::Relaxed);
        if failed {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the counts up to now.
    pub fn get(&self) -> Writes {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Writes {
            create: load(&self.create),
            update: load(&self.update),
            patch: load(&self.patch),
            delete: load(&self.delete),
            events: load(&self.events),
            failed: load(&self.failed),
        }
    }
}

/// Returns whether a path is `/api/v1/namespaces/NS/events`, or that of one event.
fn is_event(path: &str) -> bool {
    let mut segments = path.split('/').skip(1);
    segments.next() == Some("api")
        && segments.nth(1) == Some("namespaces")
        && segments.nth(1) == Some("events")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_counted_by_verb_and_events_apart() {
        let counter = WriteCounter::default();
        for (method, path, failed) in [
            ("GET", "/api/v1/pods", true),
            ("POST", "/api/v1/namespaces/a/pods", false),
            ("POST", "/api/v1/namespaces/events/pods", true),
            ("PUT", "/apis/apps/v1/namespaces/a/replicasets/b/status", false),
            ("POST", "/api/v1/namespaces/a/events", false),
            ("PATCH", "/api/v1/namespaces/a/events/b", false),
            ("DELETE", "/api/v1/nodes/events", false),
        ] {
            counter.count_write(&Call::new(method, path), failed);
        }
        let expected = Writes { create: 2, update: 1, patch: 0, delete: 1, events: 2, failed: 1 };
        assert_eq!(counter.get(), expected);
    }
}
