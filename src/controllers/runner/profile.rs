//! What a controller is called, and how wide it works.

use crate::options::{Count, Options};

/// The names of a controller and its number of workers, from its row in the table of controllers.
#[derive(Clone, Copy)]
pub struct Profile {
    /// As in `--controllers`: `replicaset-controller`.
    pub name: &'static str,
    /// Its service account, which is also in its User-Agent.
    pub account: &'static str,
    /// The source of its events.
    pub event_source: &'static str,
    /// The name of its queue in metrics; empty: the queue has no metrics.
    pub queue: &'static str,
    pub workers: Workers,
}

/// How many keys of a queue are worked on at once.
#[derive(Clone, Copy)]
pub enum Workers {
    Fixed(Count),
    /// As a flag says.
    Flag(fn(&Options) -> Count),
}

impl Profile {
    /// A controller with one worker and one name for everything.
    pub const fn new(name: &'static str) -> Profile {
        let workers = Workers::Fixed(Count::new(1));
        Profile { name, account: name, event_source: name, queue: name, workers }
    }
}

impl Workers {
    pub(super) fn count(self, options: &Options) -> usize {
        match self {
            Workers::Fixed(count) => count.get(),
            Workers::Flag(of) => of(options).get(),
        }
    }
}
