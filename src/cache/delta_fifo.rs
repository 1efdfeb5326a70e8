//! The queue between the reflector and the cache. Upstream: `cache.DeltaFIFO`.

use parking_lot::{Mutex, MutexGuard};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use event_listener::{Event, EventListener};

use super::any::AnyObject;
use super::handler::Deleted;
use super::indexer::AnyIndexer;
use crate::objects::{Identity, ObjectKey};
use crate::trace;

/// What happened to an object. Upstream: `cache.Delta`, `cache.DeltaType`.
pub enum Delta {
    /// A watch has sent it as added.
    Added(Arc<dyn AnyObject>),
    /// A watch has sent it as modified.
    Updated(Arc<dyn AnyObject>),
    /// A list contains it: new, changed or unchanged.
    Replaced(Arc<dyn AnyObject>),
    /// A list contains it, and the server's versions may have gone back: it replaces the known
    /// state, even one with an equal version.
    Restored(Arc<dyn AnyObject>),
    /// A watch has sent its deletion, or a list does not contain it.
    Deleted(Deleted<dyn AnyObject>),
    /// A resync, not a change.
    Sync(Arc<dyn AnyObject>),
}

impl Delta {
    /// Returns upstream's name of the delta, for the trace.
    fn name(&self) -> &'static str {
        match self {
            Delta::Added(_) => "Added",
            Delta::Updated(_) => "Updated",
            Delta::Replaced(_) => "Replaced",
            Delta::Restored(_) => "Restored",
            Delta::Deleted(_) => "Deleted",
            Delta::Sync(_) => "Sync",
        }
    }

    /// Returns the object after the change; of a deletion, its last state known.
    pub fn object(&self) -> &Arc<dyn AnyObject> {
        match self {
            Delta::Added(object)
            | Delta::Updated(object)
            | Delta::Replaced(object)
            | Delta::Restored(object)
            | Delta::Sync(object) => object,
            Delta::Deleted(deleted) => deleted.object(),
        }
    }
}

/// All waiting changes of one object, oldest first; at least one delta. Upstream: `cache.Deltas`.
struct Deltas {
    first: Delta,
    // Most keys wait with one delta: an empty queue allocates nothing.
    rest: VecDeque<Delta>,
}

impl Deltas {
    /// Returns the delta that was appended last.
    fn newest(&self) -> &Delta {
        self.rest.back().unwrap_or(&self.first)
    }

    /// Appends a delta. Of two deletions in a row one stays: the one with the final state.
    fn push(&mut self, delta: Delta) {
        let newest = self.rest.back_mut().unwrap_or(&mut self.first);
        match (&*newest, &delta) {
            (Delta::Deleted(Deleted::FinalStateUnknown(_)), Delta::Deleted(_)) => *newest = delta,
            (Delta::Deleted(_), Delta::Deleted(_)) => {}
            _ => self.rest.push_back(delta),
        }
    }
}

/// What [`DeltaFifo::try_pop`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Popped {
    /// It passed one delta to `process`.
    Processed,
    /// Nothing waits.
    Empty,
    /// Closed and empty.
    Closed,
}

/// A queue of keys, in the order of their first change, with all changes of each. It has one
/// writer, a reflector; `try_pop` has one caller, the informer. No method waits.
///
/// # What holds
///
/// - A key waits once; further changes are appended to its deltas, in order. Two deletions in a row
///   become one; other changes are not merged.
/// - Deltas are popped one by one. A key stays the first until its last delta is popped.
/// - A list is written item by item, so that it is never in memory as a whole: `begin_replace`,
///   `replace_item` for each, `finish_replace`. A `delete` in between removes an item from the
///   list. A `begin_replace` before the `finish_replace` abandons the unfinished list.
/// - An object that cannot be decoded keeps its last known state: `keep_item` for one in a list,
///   `bookmark` for a change, `delete_known` for a deletion.
/// - `process` runs under the queue's lock: the indexer and the queue change as one. It must be
///   short and must not call the queue.
/// - A change older than the known state of its object is dropped, unless a list contains it.
/// - [`AnyIndexer::set_seen_version`] gets a version once everything up to it is processed. For a
///   change that is
///   processed before older changes of other objects, this is later than the change itself.
///
/// # What is not promised
///
/// - The order between different objects: a later change of a key that waits already is processed
///   before earlier changes of the keys behind it.
/// - A bound: the queue takes every change. The reflector waits between its time slices until the
///   queue is empty.
///
/// Upstream: `cache.DeltaFIFO` with `EmitDeltaTypeReplaced`.
pub struct DeltaFifo {
    state: Mutex<State>,
    indexer: Arc<dyn AnyIndexer>,
    synced: AtomicBool,
    /// Notified when there is something to pop, and when `synced` or `closed` changed.
    changed: Event,
}

/// The state of a [`DeltaFifo`], under its lock.
#[derive(Default)]
struct State {
    /// A key is in `queue`, once, if and only if it is in `items`.
    items: HashMap<ObjectKey, Deltas>,
    queue: VecDeque<ObjectKey>,
    /// How many keys were popped, including their last delta, since the start.
    popped: u64,
    /// Versions that are not seen yet, in the order of `at_popped`.
    pending_versions: VecDeque<PendingVersion>,
    /// A list is under way.
    replacing: Option<Replacing>,
    /// Whether the first list is written to its end, or a change came that belongs to no list.
    populated: bool,
    /// Keys of the first list that still wait.
    initial: usize,
    closed: bool,
}

/// A version that the cache has seen once `popped` reaches `at_popped`.
struct PendingVersion {
    at_popped: u64,
    version: u64,
    /// The server's versions have gone back with it.
    back: bool,
}

/// A list that the reflector writes, between `begin_replace` and `finish_replace`.
struct Replacing {
    /// The keys in the list; `None` when the list deletes nothing: no object was known before it,
    /// or it has an item without a readable name.
    seen: Option<HashSet<ObjectKey>>,
    known: KnownState,
}

/// Whether the known state of an object in a list counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownState {
    /// It stays if it is of the same version.
    Trusted,
    /// The server's versions may have gone back: an equal version may be another state.
    Doubtful,
}

impl DeltaFifo {
    /// Makes an empty queue. `indexer`: the cache that its deltas are applied to.
    pub fn new(indexer: Arc<dyn AnyIndexer>) -> DeltaFifo {
        let (state, synced) = (Mutex::default(), AtomicBool::new(false));
        DeltaFifo { state, indexer, synced, changed: Event::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns whether the first list is processed to its end. A change that does not belong to a
    /// list makes it true as well. Upstream: `HasSynced`.
    pub fn has_synced(&self) -> bool {
        self.synced.load(Ordering::Acquire)
    }

    /// Returns the number of keys that wait.
    pub fn len(&self) -> usize {
        self.lock().queue.len()
    }

    /// Returns whether no key waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Closes the queue. Waiting keys are still popped; then [`Popped::Closed`] follows.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify(usize::MAX);
    }

    /// Wakes the listeners of [`changed`](Self::changed), as when the time of a resync has changed.
    pub fn wake(&self) {
        self.changed.notify(usize::MAX);
    }

    /// Resolves at the next change: something to pop, synced, closed. Call it before the check, and
    /// await it after: a change in between is not missed. May be dropped at any time.
    pub fn changed(&self) -> EventListener {
        self.changed.listen()
    }

    /// Takes the oldest delta of the oldest key, if there is one, and passes it to `process`, with
    /// `true` while the first list is not yet processed to its end. When `process` panics, the
    /// delta is lost: call [`abandon`](Self::abandon). Upstream: `Pop`, which passes all deltas of
    /// the key.
    pub fn try_pop(&self, process: impl FnOnce(Delta, bool)) -> Popped {
        let mut guard = self.lock();
        let state = &mut *guard;
        let in_initial_list = !self.has_synced();
        let Some(key) = state.queue.pop_front() else {
            return if state.closed { Popped::Closed } else { Popped::Empty };
        };
        if let Entry::Occupied(mut waiting) = state.items.entry(key) {
            if let Some(next) = waiting.get_mut().rest.pop_front() {
                state.queue.push_front(waiting.key().clone());
                process(std::mem::replace(&mut waiting.get_mut().first, next), in_initial_list);
                return Popped::Processed;
            }
            process(waiting.remove().first, in_initial_list);
        }
        state.popped += 1;
        state.initial = state.initial.saturating_sub(1);
        self.check_synced(state);
        while state.pending_versions.front().is_some_and(|next| next.at_popped <= state.popped) {
            if let Some(PendingVersion { version, back, .. }) = state.pending_versions.pop_front() {
                match back {
                    true => self.indexer.reset_seen_version(version),
                    false => self.indexer.set_seen_version(version),
                }
            }
        }
        if state.queue.is_empty() && state.queue.capacity() > 1024 {
            // Memory is freed after a storm.
            state.queue = VecDeque::new();
            state.items = HashMap::new();
            state.pending_versions = VecDeque::new();
        }
        Popped::Processed
    }

    /// Drops all waiting deltas and an unfinished list. A whole list must follow: only after it
    /// does the queue sync, or the seen version rise.
    pub fn abandon(&self) {
        let mut state = self.lock();
        let empty = State { popped: state.popped, closed: state.closed, ..State::default() };
        // Before the queue has synced, the next list counts as the first.
        let populated = self.has_synced();
        *state = State { populated, ..empty };
    }

    /// Queues every known object that does not wait already. Upstream: `Resync`.
    pub fn resync(&self) {
        let mut state = self.lock();
        self.indexer.for_each(&mut |object| {
            let key = object.meta().key();
            if !state.items.contains_key(&key) {
                self.queue(&mut state, key, Delta::Sync(object));
            }
        });
    }

    /// Records that the queue has synced, if all deltas of the first list were taken.
    fn check_synced(&self, state: &State) {
        if state.populated && state.initial == 0 && !self.has_synced() {
            self.synced.store(true, Ordering::Release);
            self.changed.notify(usize::MAX);
        }
    }

    /// Appends a delta to those of `key`, which is queued if it does not wait yet.
    fn queue(&self, state: &mut State, key: ObjectKey, delta: Delta) {
        trace::queued(delta.object().meta(), delta.name(), || {
            state.queue.len() + usize::from(!state.items.contains_key(&key))
        });
        match state.items.get_mut(&key) {
            Some(deltas) => deltas.push(delta),
            None => {
                state.queue.push_back(key.clone());
                state.items.insert(key, Deltas { first: delta, rest: VecDeque::new() });
                self.changed.notify(usize::MAX);
            }
        }
    }

    /// Passes `version` to [`AnyIndexer::set_seen_version`] once all keys that wait now are
    /// processed.
    fn schedule_version(&self, state: &mut State, version: u64) {
        let at_popped = state.popped + state.queue.len() as u64;
        match state.pending_versions.back_mut() {
            Some(last) if last.at_popped == at_popped => {
                last.version = last.version.max(version);
            }
            _ if at_popped == state.popped => self.indexer.set_seen_version(version),
            _ => {
                let pending = PendingVersion { at_popped, version, back: false };
                state.pending_versions.push_back(pending);
            }
        }
    }

    /// Passes `version` to [`AnyIndexer::reset_seen_version`] once all keys that wait now are
    /// processed. Drops the versions that wait: they are from before the server's versions went
    /// back.
    fn schedule_reset(&self, state: &mut State, version: u64) {
        state.pending_versions.clear();
        match state.queue.is_empty() {
            true => self.indexer.reset_seen_version(version),
            false => {
                let at_popped = state.popped + state.queue.len() as u64;
                let pending = PendingVersion { at_popped, version, back: true };
                state.pending_versions.push_back(pending);
            }
        }
    }

    /// Returns the newest state of an object: from the queue, else from the cache. Of an object
    /// whose deletion is queued it is the last state.
    fn newest(&self, state: &State, key: &ObjectKey) -> Option<Arc<dyn AnyObject>> {
        match state.items.get(key) {
            Some(deltas) => Some(deltas.newest().object().clone()),
            None => self.indexer.get(key),
        }
    }

    /// Records a change from a watch with the whole object, as the variant `delta`.
    fn change(&self, object: Arc<dyn AnyObject>, delta: fn(Arc<dyn AnyObject>) -> Delta) {
        let (key, version) = (object.meta().key(), object.meta().resource_version);
        self.record(key, version, |_| Some(delta(object)));
    }

    /// Records a change from a watch, unless it is older than the known state or deletes an unknown
    /// object. While a list is under way the change can only be a deletion, and counts as part of
    /// the list. `delta` gets the newest known state; when it returns `None`, there is no change to
    /// queue.
    fn record(
        &self,
        key: ObjectKey,
        version: u64,
        delta: impl FnOnce(Option<&Arc<dyn AnyObject>>) -> Option<Delta>,
    ) {
        let mut state = self.lock();
        let in_list = match &mut state.replacing {
            None => false,
            Some(replacing) => {
                if let Some(seen) = &mut replacing.seen {
                    seen.remove(&key);
                }
                true
            }
        };
        if !in_list {
            state.populated = true;
            self.check_synced(&state);
        }
        let newest = self.newest(&state, &key);
        let latest = newest.as_ref().map(|object| object.meta().resource_version);
        if let Some(delta) = delta(newest.as_ref()) {
            let nothing_to_delete = matches!(delta, Delta::Deleted(_)) && latest.is_none();
            let stale = version != 0 && latest.is_some_and(|latest| latest > version);
            if !nothing_to_delete && !stale {
                self.queue(&mut state, key, delta);
            } else {
                let why = if stale { "older-than-known" } else { "not-known" };
                trace::dropped(delta.object().meta(), why);
            }
        }
        if !in_list {
            self.schedule_version(&mut state, version);
        }
    }

    /// Writes an object that a watch has sent as added.
    pub fn add(&self, object: Arc<dyn AnyObject>) {
        self.change(object, Delta::Added);
    }

    /// Writes an object that a watch has sent as modified.
    pub fn update(&self, object: Arc<dyn AnyObject>) {
        self.change(object, Delta::Updated);
    }

    /// Writes the deletion of an object with its final state. Ignored when neither the queue nor
    /// the cache has the object, or when the known state is newer.
    pub fn delete(&self, object: Arc<dyn AnyObject>) {
        self.change(object, |object| Delta::Deleted(Deleted::Known(object)));
    }

    /// Writes the deletion of an object whose final state cannot be decoded, with the last state
    /// known. Ignored when neither the queue nor the cache has the object, or when the known state
    /// is newer than the deletion.
    pub fn delete_known(&self, object: &Identity) {
        self.record(object.key(), object.resource_version, |newest| {
            Some(Delta::Deleted(Deleted::FinalStateUnknown(newest?.clone())))
        });
    }

    /// Begins a list, and abandons an unfinished one. `known`: whether the known states of objects
    /// count in it. Upstream: `Replace`, which gets all items.
    pub fn begin_replace(&self, known: KnownState) {
        let mut state = self.lock();
        // Without known objects the list deletes none, and its keys need not be collected.
        let nothing_known = state.items.is_empty() && self.indexer.is_empty();
        state.replacing = Some(Replacing { seen: (!nothing_known).then(HashSet::new), known });
    }

    /// Writes an item of the list; where known states do not count, as one that replaces even a
    /// state of the same version. Returns whether the item is older than the known state of the
    /// object, which proves that the server has lost versions.
    pub fn replace_item(&self, object: Arc<dyn AnyObject>) -> bool {
        let key = object.meta().key();
        let mut state = self.lock();
        let is_older = self.newest(&state, &key).is_some_and(|known| {
            let (known, listed) = (known.meta(), object.meta());
            known.uid == listed.uid && known.resource_version > listed.resource_version
        });
        let mut delta: fn(Arc<dyn AnyObject>) -> Delta = Delta::Replaced;
        if let Some(Replacing { seen, known }) = &mut state.replacing {
            if *known == KnownState::Doubtful {
                delta = Delta::Restored;
            }
            if let Some(seen) = seen {
                seen.insert(key.clone());
            }
        }
        self.queue(&mut state, key, delta(object));
        is_older
    }

    /// Records an item of the list that cannot be decoded. Its last known state stays, unless an
    /// earlier object had the same name. `None`: the item may be any object, so the list deletes
    /// nothing.
    pub fn keep_item(&self, item: Option<&Identity>) {
        let mut state = self.lock();
        let key = item.map(Identity::key);
        let newest = key.as_ref().and_then(|key| self.newest(&state, key));
        let Some(replacing) = &mut state.replacing else { return };
        match (item, key) {
            (Some(item), Some(key)) => {
                let is_same = match newest {
                    Some(known) => item.uid.is_empty() || known.meta().uid == item.uid,
                    None => false,
                };
                if is_same && let Some(seen) = &mut replacing.seen {
                    seen.insert(key);
                }
            }
            _ => replacing.seen = None,
        }
    }

    /// Ends the list: writes a deletion for each known object that it did not contain, with the
    /// last state known, unless the list deletes nothing: see `Replacing::seen`. `version`: the
    /// list's; `back`: the server's versions have gone back with it.
    pub fn finish_replace(&self, version: u64, back: bool) {
        let mut state = self.lock();
        if let Some(Replacing { seen: Some(seen), .. }) = state.replacing.take() {
            let deletion_of = |object| Delta::Deleted(Deleted::FinalStateUnknown(object));
            for (key, deltas) in &mut state.items {
                if !seen.contains(key) {
                    let delta = deletion_of(deltas.newest().object().clone());
                    deltas.push(delta);
                }
            }
            self.indexer.for_each(&mut |object| {
                let key = object.meta().key();
                if !seen.contains(&key) && !state.items.contains_key(&key) {
                    self.queue(&mut state, key, deletion_of(object));
                }
            });
        }
        if !state.populated {
            state.populated = true;
            state.initial = state.queue.len();
        }
        self.check_synced(&state);
        match back {
            true => self.schedule_reset(&mut state, version),
            false => self.schedule_version(&mut state, version),
        }
        self.changed.notify(usize::MAX);
    }

    /// Records that all changes up to `version` have been written.
    pub fn bookmark(&self, version: u64) {
        let mut state = self.lock();
        self.schedule_version(&mut state, version);
    }
}

#[cfg(test)]
mod tests {
    use super::super::indexer::Indexer;
    use super::super::testing::object;
    use super::*;
    use crate::objects::PartialObjectMetadata;

    type Cache = Indexer<PartialObjectMetadata>;

    fn empty_fifo() -> (Arc<Cache>, DeltaFifo) {
        let indexer = Arc::new(Indexer::new());
        (indexer.clone(), DeltaFifo::new(indexer))
    }

    fn delta_text(delta: &Delta) -> String {
        let meta = delta.object().meta();
        let sign = match delta {
            Delta::Added(_) => "+",
            Delta::Updated(_) => "~",
            Delta::Replaced(_) => "=",
            Delta::Restored(_) => "!",
            Delta::Deleted(Deleted::Known(_)) => "-",
            Delta::Deleted(Deleted::FinalStateUnknown(_)) => "?",
            Delta::Sync(_) => "s",
        };
        format!("{sign}{}@{}", meta.name, meta.resource_version)
    }

    /// Pops one key, `+a@1 -a@2`; as the informer does, the indexer then holds the outcome.
    fn pop(fifo: &DeltaFifo, indexer: &Cache) -> String {
        let (mut words, keys) = (Vec::new(), fifo.len());
        while fifo.len() == keys && pop_delta(fifo, indexer, &mut words) {}
        words.join(" ")
    }

    fn pop_delta(fifo: &DeltaFifo, indexer: &Cache, words: &mut Vec<String>) -> bool {
        let popped = fifo.try_pop(|delta, _| {
            words.push(delta_text(&delta));
            match &delta {
                Delta::Deleted(deleted) => {
                    AnyIndexer::remove(indexer, &deleted.object().meta().key());
                }
                other => AnyIndexer::insert(indexer, other.object().clone()),
            }
        });
        popped == Popped::Processed
    }

    fn drain(fifo: &DeltaFifo, indexer: &Cache) -> Vec<String> {
        let mut all = Vec::new();
        while !fifo.is_empty() {
            all.push(pop(fifo, indexer));
        }
        all
    }

    fn replace(fifo: &DeltaFifo, items: &[(&str, u64)], version: u64) {
        fifo.begin_replace(KnownState::Trusted);
        for (name, version) in items {
            fifo.replace_item(object("", name, *version));
        }
        fifo.finish_replace(version, false);
    }

    /// One letter a call: `+a1` add, `~a2` update, `-a3` delete; the keys as they are popped.
    /// A RealFIFO would give every call, in the order of the calls.
    #[test]
    fn changes_of_a_waiting_key_are_one_item() {
        for (calls, popped) in [
            ("+a1 ~a2 +b3 ~a4", &["+a@1 ~a@2 ~a@4", "+b@3"][..]),
            ("+a1 -a2", &["+a@1 -a@2"]),
            ("+a1 -a2 -a2 -a3", &["+a@1 -a@2"]),
            ("+a1 -a2 +a3", &["+a@1 -a@2 +a@3"]),
            ("-a1", &[]),
            ("+a1 +a1", &["+a@1 +a@1"]),
            ("+a5 ~a4 -a3 ~a6", &["+a@5 ~a@6"]),
            ("+a5 -a6 +a4", &["+a@5 -a@6"]),
        ] {
            let (indexer, fifo) = empty_fifo();
            for call in calls.split(' ') {
                let (name, version) = call[1..].split_at(1);
                let object = object("", name, version.parse().expect("a digit"));
                match &call[..1] {
                    "+" => fifo.add(object),
                    "~" => fifo.update(object),
                    _ => fifo.delete(object),
                }
            }
            assert_eq!(drain(&fifo, &indexer), popped, "{calls}");
        }
    }

    #[test]
    fn objects_missing_in_a_list_are_deleted_with_their_last_known_state() {
        let (indexer, fifo) = empty_fifo();
        replace(&fifo, &[("a", 1), ("b", 2), ("c", 3)], 3);
        assert_eq!(drain(&fifo, &indexer), ["=a@1", "=b@2", "=c@3"]);
        fifo.update(object("", "b", 4));
        fifo.delete(object("", "c", 5));
        fifo.add(object("", "d", 6));
        replace(&fifo, &[("d", 6)], 9);
        // a: known alone; b: the queued state is the newer; c: the deletion is known already.
        assert_eq!(drain(&fifo, &indexer), ["~b@4 ?b@4", "-c@5", "+d@6 =d@6", "?a@1"]);
        assert_eq!(indexer.len(), 1);
    }

    #[test]
    fn a_known_final_state_replaces_an_unknown_one() {
        let (indexer, fifo) = empty_fifo();
        indexer.insert(object("", "a", 1));
        replace(&fifo, &[], 5);
        fifo.delete(object("", "a", 7));
        assert_eq!(drain(&fifo, &indexer), ["-a@7"]);
    }

    #[test]
    fn an_abandoned_list_deletes_nothing() {
        let (indexer, fifo) = empty_fifo();
        replace(&fifo, &[("a", 1), ("b", 2)], 2);
        drain(&fifo, &indexer);
        fifo.begin_replace(KnownState::Trusted);
        fifo.replace_item(object("", "c", 3));
        assert_eq!(drain(&fifo, &indexer), ["=c@3"]);
        replace(&fifo, &[("a", 1), ("b", 2)], 4);
        assert_eq!(drain(&fifo, &indexer), ["=a@1", "=b@2", "?c@3"]);
    }

    /// A list by watch may lag behind the server when it begins, and catches up before it ends.
    #[test]
    fn a_deletion_during_a_list_removes_the_item_and_does_not_sync() {
        let (indexer, fifo) = empty_fifo();
        for (version, synced, seen) in [(10, false, 0), (20, true, 17)] {
            fifo.begin_replace(KnownState::Trusted);
            fifo.replace_item(object("", "a", 1));
            fifo.replace_item(object("", "b", 2));
            fifo.replace_item(object("", "c", 3));
            pop(&fifo, &indexer);
            fifo.delete(object("", "a", version + 4));
            fifo.delete(object("", "b", version + 5));
            fifo.delete(object("", "d", version + 6));
            assert_eq!((fifo.has_synced(), indexer.last_seen_version()), (synced, seen));
            assert_eq!(drain(&fifo, &indexer).len(), 3);
            fifo.finish_replace(version + 7, false);
            assert_eq!((indexer.len(), fifo.len()), (1, 0), "only c remains");
        }
    }

    #[test]
    fn synced_once_the_first_list_is_processed() {
        let (indexer, fifo) = empty_fifo();
        fifo.begin_replace(KnownState::Trusted);
        fifo.replace_item(object("", "a", 1));
        pop(&fifo, &indexer);
        fifo.replace_item(object("", "b", 2));
        assert!(!fifo.has_synced(), "the list is still under way");
        fifo.finish_replace(2, false);
        fifo.add(object("", "c", 3));
        assert!(!fifo.has_synced(), "b still waits");
        let mut initial = None;
        fifo.try_pop(|_, in_initial_list| initial = Some(in_initial_list));
        assert_eq!((initial, fifo.has_synced()), (Some(true), true), "c is not of the list");
        fifo.try_pop(|_, in_initial_list| initial = Some(in_initial_list));
        assert_eq!(initial, Some(false));

        let (_, empty) = empty_fifo();
        replace(&empty, &[], 1);
        assert!(empty.has_synced(), "an empty list has nothing to wait for");
        let (_, changed) = empty_fifo();
        changed.add(object("", "a", 1));
        assert!(changed.has_synced(), "no list at all");
    }

    #[test]
    fn a_resync_skips_keys_that_wait() {
        let (indexer, fifo) = empty_fifo();
        indexer.insert(object("", "a", 1));
        indexer.insert(object("", "b", 1));
        fifo.update(object("", "a", 2));
        fifo.resync();
        assert_eq!(drain(&fifo, &indexer), ["~a@2", "sb@1"]);
    }

    /// Where compression lets a newer change of one object overtake an older one of another, the
    /// version seen waits for both. A RealFIFO needs no such care.
    #[test]
    fn a_version_is_seen_when_all_before_it_is_processed() {
        let (indexer, fifo) = empty_fifo();
        replace(&fifo, &[], 1);
        assert_eq!(indexer.last_seen_version(), 1);
        fifo.add(object("", "a", 2));
        fifo.add(object("", "b", 3));
        fifo.update(object("", "a", 4));
        pop(&fifo, &indexer);
        assert_eq!(indexer.last_seen_version(), 2, "a is at 4, but b at 3 is not stored");
        fifo.bookmark(8);
        assert_eq!(indexer.last_seen_version(), 2);
        pop(&fifo, &indexer);
        assert_eq!(indexer.last_seen_version(), 8);
        fifo.bookmark(9);
        assert_eq!(indexer.last_seen_version(), 9, "nothing waits");
        fifo.bookmark(5);
        assert_eq!(indexer.last_seen_version(), 9, "never back");
    }

    /// What happens while a key is popped delta by delta comes behind the deltas that wait.
    #[test]
    fn a_key_with_more_deltas_stays_the_first() {
        let (indexer, fifo) = empty_fifo();
        replace(&fifo, &[], 1);
        let mut words = Vec::new();
        let mut pop_delta = || pop_delta(&fifo, &indexer, &mut words);
        fifo.add(object("", "a", 2));
        fifo.update(object("", "a", 3));
        fifo.update(object("", "a", 4));
        fifo.add(object("", "b", 5));
        pop_delta();
        fifo.resync();
        fifo.update(object("", "a", 3));
        fifo.update(object("", "a", 6));
        assert_eq!((fifo.len(), indexer.last_seen_version()), (2, 1), "a waits, once");
        pop_delta();
        replace(&fifo, &[("b", 5)], 7);
        for _ in 0..3 {
            pop_delta();
        }
        assert_eq!((fifo.len(), indexer.last_seen_version()), (1, 4), "b at 5 is not stored");
        while pop_delta() {}
        assert_eq!(words, ["+a@2", "~a@3", "~a@4", "~a@6", "?a@6", "+b@5", "=b@5"]);
        assert_eq!((indexer.len(), indexer.last_seen_version()), (1, 7));
    }

    #[test]
    fn a_closed_queue_is_emptied_first() {
        let (_, fifo) = empty_fifo();
        fifo.add(object("", "a", 1));
        let changed = fifo.changed();
        fifo.close();
        futures_lite::future::block_on(changed);
        assert_eq!(fifo.try_pop(|_, _| {}), Popped::Processed);
        assert_eq!(fifo.try_pop(|_, _| {}), Popped::Closed);
    }

    #[test]
    fn an_abandoned_queue_syncs_with_the_next_whole_list() {
        let (indexer, fifo) = empty_fifo();
        replace(&fifo, &[("a", 1), ("b", 2)], 5);
        pop(&fifo, &indexer);
        fifo.abandon();
        assert_eq!((fifo.len(), fifo.has_synced(), indexer.last_seen_version()), (0, false, 0));
        replace(&fifo, &[("b", 2)], 7);
        drain(&fifo, &indexer);
        assert_eq!((indexer.len(), indexer.last_seen_version()), (1, 7), "a was deleted meanwhile");
        assert!(fifo.has_synced());

        fifo.add(object("", "c", 8));
        fifo.abandon();
        assert!(fifo.has_synced());
        fifo.bookmark(7);
        assert_eq!(indexer.last_seen_version(), 7);
    }
}
