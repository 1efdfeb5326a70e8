//! What an informer and its handlers count, for metrics and debug pages.

use std::sync::atomic::{AtomicU64, Ordering};

/// What an informer counts.
#[derive(Default)]
pub struct Counts {
    /// Panics while objects were decoded or indexed.
    pub panics: Count,
    /// Objects that could not be decoded, each time that they came.
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
