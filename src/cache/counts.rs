//! Counters of an informer and its handlers, for metrics and debug pages.

use std::sync::atomic::{AtomicU64, Ordering};

/// The counters of an informer, since it was created.
#[derive(Default)]
pub struct Counts {
    /// Panics while objects were decoded or indexed.
    pub panics: Count,
    /// Objects that could not be decoded, counted each time that one is received.
    pub undecoded: Count,
    /// Lists begun as the initial events of a watch.
    pub streams: Count,
    /// Lists begun as lists.
    pub lists: Count,
    pub watches: Count,
    /// Watches that ended within a second without an event.
    pub short_watches: Count,
}

#[derive(Default)]
pub struct Count(AtomicU64);

impl Count {
    pub fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
