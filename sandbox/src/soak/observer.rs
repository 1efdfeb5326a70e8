//! Sees all changes of the API server's store in their order, and the managers' writes, and checks
//! the invariants on them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::audit::{Audit, Writer, holder};
use super::invariants::{Breach, Change, Invariants};
use super::workload::KINDS;
use crate::api::Api;
use crate::storage::store::Change as Stored;
use kube_controller_manager::clock::SharedClock;

/// Reads the store's history. It must be called before a table has more changes than the store
/// keeps.
pub struct Observer {
    api: Arc<Api>,
    audit: Arc<Audit>,
    clock: SharedClock,
    begun: Duration,
    state: Mutex<State>,
}

struct State {
    invariants: Invariants,
    /// All changes until this version have been seen.
    seen: u64,
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
    /// Begins with the first version of the store.
    pub fn new(api: &Arc<Api>, audit: &Arc<Audit>, clock: &SharedClock) -> Observer {
        let state =
            State { invariants: Invariants::new(), seen: 0, changes: 0, breaches: Vec::new() };
        Observer {
            api: api.clone(),
            audit: audit.clone(),
            clock: clock.clone(),
            begun: clock.monotonic(),
            state: Mutex::new(state),
        }
    }

    pub fn second(&self) -> f64 {
        (self.clock.monotonic() - self.begun).as_secs_f64()
    }

    /// Checks what is new; returns the breaches.
    pub fn look(&self) -> Vec<Breach> {
        self.look_into(&mut self.state.lock())
    }

    fn look_into(&self, state: &mut State) -> Vec<Breach> {
        let second = self.second();
        // The records are taken first: the store has the effects of all of them.
        let records = self.audit.take();
        let (store, version) = (&self.api.store, self.api.store.version());
        let mut changes: Vec<(String, Stored)> = Vec::new();
        let mut breaches = Vec::new();
        for kind in KINDS {
            let table = kind.to_string();
            match store.changes(&table, state.seen, usize::MAX, true) {
                Ok(found) => {
                    // A later version may be missing in a table that was read before.
                    let known = found.changes.into_iter().filter(|it| it.version <= version);
                    changes.extend(known.map(|change| (table.clone(), change)));
                }
                Err(error) => breaches.push(Breach {
                    invariant: "the whole history is seen",
                    second,
                    object: table,
                    seen: format!("{error:?}"),
                }),
            }
        }
        state.seen = version;
        changes.sort_by_key(|(_, change)| change.version);
        state.changes += changes.len() as u64;
        for (table, change) in &changes {
            let Stored { key, new, deleted, .. } = change;
            let change = Change { table, key, new: &new.value, deleted: *deleted, second };
            breaches.extend(state.invariants.see(&change));
        }
        for record in &records {
            breaches.extend(state.invariants.see_write(record, second));
        }
        state.breaches.extend(breaches.iter().cloned());
        breaches
    }

    /// Forgets the store's history once all of it has been checked.
    pub fn compact(&self) {
        let mut state = self.state.lock();
        loop {
            self.look_into(&mut state);
            if self.api.store.compact_at(state.seen) {
                return;
            }
        }
    }

    /// The manager that holds the lease.
    pub fn leader(&self) -> Option<Writer> {
        let holder = holder(&self.api.store);
        self.state.lock().invariants.writer_of(&holder)
    }

    pub fn checked(&self) -> Checked {
        let state = self.state.lock();
        Checked {
            changes: state.changes,
            by_invariant: state.invariants.counts.clone(),
            writes: state.invariants.writes.clone(),
        }
    }

    /// All breaches so far.
    pub fn breaches(&self) -> Vec<Breach> {
        self.state.lock().breaches.clone()
    }
}
