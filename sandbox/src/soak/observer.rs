//! Sees all changes of the API server's objects in their order, and the managers' writes, and checks
//! the invariants on them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::audit::{Audit, Record, Writer};
use super::etcd::{Etcd, NewChanges};
use super::invariants::{Breach, Change, Invariants};
use super::server::Server;
use super::workload::KINDS;
use crate::api::Api;
use crate::storage::store::Change as Stored;
use kube_controller_manager::clock::SharedClock;

/// Reads the history of objects. It must be called before a table has more changes than the
/// embedded server's store keeps.
pub struct Observer {
    history: History,
    audit: Arc<Audit>,
    clock: SharedClock,
    begun: Duration,
    state: Mutex<State>,
}

/// Where changes are read.
enum History {
    Store(Arc<Api>),
    Etcd(Arc<Etcd>),
}

struct State {
    invariants: Invariants,
    /// All changes of the store until this version have been seen.
    seen: u64,
    /// Those that were sent or answered later than the last change was seen.
    records: Vec<Record>,
    changes: u64,
    breaches: Vec<Breach>,
}

/// How much was checked.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    pub changes: u64,
    pub by_invariant: BTreeMap<&'static str, u64>,
    pub writes: BTreeMap<&'static str, u64>,
}

impl Observer {
    /// Creates the observer of a server's changes, from the first version on.
    pub fn new(server: &Server, audit: &Arc<Audit>, clock: &SharedClock) -> Observer {
        let history = match server {
            Server::Embedded(cluster) => History::Store(cluster.sandbox.api().clone()),
            Server::Real(real) => History::Etcd(real.etcd.clone()),
        };
        let state = State {
            invariants: Invariants::new(),
            seen: 0,
            records: Vec::new(),
            changes: 0,
            breaches: Vec::new(),
        };
        Observer {
            history,
            audit: audit.clone(),
            clock: clock.clone(),
            begun: clock.monotonic(),
            state: Mutex::new(state),
        }
    }

    /// Returns the seconds since the observer was created.
    pub fn second(&self) -> f64 {
        (self.clock.monotonic() - self.begun).as_secs_f64()
    }

    /// Checks what is new; returns the breaches.
    pub fn check_new_changes(&self) -> Vec<Breach> {
        self.check_changes(&mut self.state.lock())
    }

    /// Checks the invariants on all changes and writes since the last call, in their order, and
    /// returns those that were broken.
    fn check_changes(&self, state: &mut State) -> Vec<Breach> {
        let (second, now) = (self.second(), self.clock.now());
        // The records are taken first: the changes have the effects of all of them.
        state.records.extend(self.audit.take());
        let NewChanges { changes, complete, lost } = match &self.history {
            History::Store(api) => take_new_changes(api, &mut state.seen),
            History::Etcd(etcd) => etcd.take(),
        };
        let lost = lost.map(|seen| Breach {
            invariant: "the whole history is seen",
            second,
            object: String::new(),
            seen,
        });
        let mut breaches: Vec<Breach> = lost.into_iter().collect();
        state.changes += changes.len() as u64;
        for (table, change) in &changes {
            let Stored { key, new, deleted, .. } = change;
            let change = Change { table, key, new: &new.value, deleted: *deleted, second, now };
            breaches.extend(state.invariants.observe(&change));
        }
        let later = state.records.partition_point(|record| record.at <= complete);
        for record in state.records.drain(..later) {
            breaches.extend(state.invariants.observe_write(&record, second));
        }
        state.breaches.extend(breaches.iter().cloned());
        breaches
    }

    /// Forgets the history once all of it has been checked.
    pub async fn compact(&self) {
        match &self.history {
            History::Etcd(etcd) => etcd.compact().await,
            History::Store(api) => {
                let mut state = self.state.lock();
                loop {
                    self.check_changes(&mut state);
                    if api.store.compact_at(state.seen) {
                        return;
                    }
                }
            }
        }
    }

    /// Returns the manager that holds the lease.
    pub fn leader(&self) -> Option<Writer> {
        self.state.lock().invariants.leader()
    }

    /// Returns what has been checked so far: the numbers of changes, judgements and writes.
    pub fn checked(&self) -> Checked {
        let state = self.state.lock();
        Checked {
            changes: state.changes,
            by_invariant: state.invariants.counts.clone(),
            writes: state.invariants.writes.clone(),
        }
    }

    /// Returns all breaches so far.
    pub fn breaches(&self) -> Vec<Breach> {
        self.state.lock().breaches.clone()
    }
}

/// Returns the changes of the embedded server's store after the version `seen`, which becomes the
/// newest.
fn take_new_changes(api: &Api, seen: &mut u64) -> NewChanges {
    let (store, version) = (&api.store, api.store.version());
    let mut new_changes = NewChanges { changes: Vec::new(), complete: Duration::MAX, lost: None };
    for kind in KINDS {
        let table = kind.to_string();
        match store.changes(&table, *seen, usize::MAX, true) {
            Ok(found) => {
                // A later version may be missing in a table that was read before.
                let known = found.changes.into_iter().filter(|it| it.version <= version);
                new_changes.changes.extend(known.map(|change| (table.clone(), change)));
            }
            Err(error) => new_changes.lost = Some(format!("{table}: {error:?}")),
        }
    }
    *seen = version;
    new_changes.changes.sort_by_key(|(_, change)| change.version);
    new_changes
}
