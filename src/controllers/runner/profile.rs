//! The names of a controller and its number of workers.

use crate::options::{Count, Options};

/// The names of a controller and its number of workers, from its row in the table of controllers.
#[derive(Clone, Copy)]
pub struct Profile {
    /// The name in `--controllers`, logs and metrics: `replicaset-controller`.
    pub name: &'static str,
    /// The name of its service account, which is also in its User-Agent.
    pub account: &'static str,
    /// The component that its events name as their source.
    pub event_source: &'static str,
    /// The name of its queue in metrics; empty: the queue has no metrics.
    pub queue: &'static str,
    /// The number of workers of each of its queues.
    pub workers: Workers,
}

/// The number of keys of a queue that are worked on at the same time.
#[derive(Clone, Copy)]
pub enum Workers {
    /// A fixed number, which is upstream's.
    Fixed(Count),
    /// The value of a flag, such as `--concurrent-deployment-syncs`.
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
    /// Returns the number of workers with these options; at least 1.
    pub fn resolve(self, options: &Options) -> usize {
        match self {
            Workers::Fixed(count) => count.get(),
            Workers::Flag(of) => of(options).get(),
        }
    }
}
