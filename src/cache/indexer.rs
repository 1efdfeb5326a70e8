//! The cache: objects behind a lock, found by key and by indices.

use std::any::Any;
use std::collections::HashMap;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashSet;
use parking_lot::RwLock;
use smallvec::SmallVec;

use super::any::{AnyObject, typed};
use super::object_table::{KeyTable, ObjectTable, Slot};
use crate::lookup::Lookup;
use crate::objects::{Istr, Object, ObjectKey, Uid};

/// Passes each value under which an index finds the object to a closure. Upstream:
/// `cache.IndexFunc`.
pub type IndexFn<T> = fn(&T, &mut dyn FnMut(IndexValue));

/// An index over objects of type `T`, declared as a constant that is used both to add the index and
/// to read by it. Two declarations are two indices, even with one name.
/// Upstream: an entry of `cache.Indexers`.
pub struct Index<T> {
    name: &'static str,
    of: IndexFn<T>,
    /// Where the index is declared: its identity.
    declared: &'static Location<'static>,
}

impl<T> Index<T> {
    /// Declares an index. `name`: for messages. `of`: passes on the values of an object; it runs
    /// under the cache's lock and must not call the cache.
    #[track_caller]
    pub const fn new(name: &'static str, of: IndexFn<T>) -> Index<T> {
        Index { name, of, declared: Location::caller() }
    }

    /// Returns whether `table` holds the content of this index: both have the same declaration.
    fn is_in(&self, table: &Table) -> bool {
        let (own, other) = (self.declared, table.declared);
        // The line first: it nearly always decides.
        own.line() == other.line() && own.column() == other.column() && own.file() == other.file()
    }
}

/// A value under which an index finds objects.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IndexValue {
    /// Any text: a node's name, an IP address, a label's value.
    Text(Istr),
    /// A uid, usually the owner's.
    Uid(Uid),
    /// The namespace and name of another object.
    Key(ObjectKey),
}

/// The cached objects of one kind, with indices and the newest version seen. Objects are shared and
/// never change.
///
/// # What holds
///
/// - Each call is answered from one state of the cache, indices included: a list has no two objects
///   with one namespace and name, and an index has exactly the objects that are stored.
/// - A write is visible to every call that begins after it.
/// - The seen version never decreases. When it is read as `v`, each later call shows all changes up
///   to `v`.
///
/// # What is not promised
///
/// - That two calls see the same state.
/// - An order of the objects.
/// - That the seen version belongs to the newest object: objects may be newer.
///
/// An object costs one pointer here, and four bytes and slack in each table.
/// Upstream: `cache.Store`, `cache.Indexer`, `cache.ThreadSafeStore`.
pub struct Indexer<T> {
    state: RwLock<State<T>>,
    /// The newest version of which all changes are in `state`.
    version: AtomicU64,
    /// How often the server's versions have gone back.
    history: AtomicU64,
}

/// A version, and the history in which it counts: an API server that is restored from a backup
/// counts its versions again from there, so those of the lost history compare with no later ones.
/// The order is that in time: all versions of an earlier history are earlier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct HistoryVersion {
    /// How often the cache has seen the server's versions go back.
    pub history: u64,
    /// The version in that history.
    pub version: u64,
}

/// An [`Indexer`] of any kind, as the queue and the informer use it.
pub trait AnyIndexer: Any + Send + Sync {
    /// See [`Indexer::get`].
    fn get(&self, key: &ObjectKey) -> Option<Arc<dyn AnyObject>>;
    /// Adds or updates. An index function that panics leaves everything as it was.
    ///
    /// # Panics
    /// When the object is not of the indexer's type: a mistake in the program.
    fn insert(&self, object: Arc<dyn AnyObject>);
    /// Removes the object, if it is stored.
    fn remove(&self, key: &ObjectKey);
    /// Visits all objects, in no order, under the cache's lock: `visit` must not call the cache.
    fn for_each(&self, visit: &mut dyn FnMut(Arc<dyn AnyObject>));
    /// The number of objects.
    fn len(&self) -> usize;
    /// The number of objects in one namespace.
    fn count_in(&self, namespace: &str) -> usize;
    /// See [`Indexer::last_seen_version`].
    fn last_seen_version(&self) -> u64;
    /// An estimate of the cache's memory in bytes: each view with its name, the slots, and the
    /// tables by key and by index. Values that views hold behind pointers are not counted: strings,
    /// labels and templates, which many objects share, and lists.
    fn bytes_held(&self) -> usize;
    /// See [`Indexer::set_seen_version`].
    fn set_seen_version(&self, version: u64);
    /// The same after a list with which the server's versions have gone back.
    fn reset_seen_version(&self, version: u64);

    /// Returns whether there are no objects.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The state of an [`Indexer`], under its lock.
struct State<T> {
    slots: ObjectTable<T>,
    /// The function of each index, in the order of `tables.indices`.
    functions: Vec<IndexFn<T>>,
    tables: Tables,
}

/// The tables, which are compiled once for all kinds.
#[derive(Default)]
struct Tables {
    keys: KeyTable,
    /// One for each of the `functions`.
    indices: Vec<Table>,
}

/// The content of one [`Index`].
struct Table {
    /// Where the index is declared: its identity.
    declared: &'static Location<'static>,
    buckets: HashMap<IndexValue, Bucket>,
}

/// The slots of the objects under one value. Most values of most indices have one or a few.
enum Bucket {
    One(Slot),
    Few(Vec<Slot>),
    /// Behind a pointer, so that the others stay small.
    Many(Box<HashSet<Slot>>),
}

/// The bytes of an `Arc`'s allocation beside its content: two counts, and the allocator's header.
const ALLOCATED: usize = 16 + 8;

/// A bucket with more slots is a set, so that removing stays cheap.
const FEW: usize = 64;

impl Bucket {
    /// Adds a slot, if it is not there: an index function may repeat a value.
    fn insert(&mut self, slot: Slot) {
        match self {
            Bucket::One(known) if *known == slot => {}
            Bucket::Few(known) if known.contains(&slot) => {}
            Bucket::One(first) => *self = Bucket::Few(vec![*first, slot]),
            Bucket::Few(slots) if slots.len() < FEW => slots.push(slot),
            Bucket::Few(slots) => {
                let set = slots.iter().copied().chain([slot]).collect();
                *self = Bucket::Many(Box::new(set));
            }
            Bucket::Many(slots) => {
                slots.insert(slot);
            }
        }
    }

    /// Removes a slot, and returns whether the bucket is empty now and must be dropped.
    fn remove(&mut self, slot: Slot) -> bool {
        match self {
            Bucket::One(only) => *only == slot,
            Bucket::Few(slots) => {
                if let Some(at) = slots.iter().position(|other| *other == slot) {
                    slots.swap_remove(at);
                }
                slots.is_empty()
            }
            Bucket::Many(slots) => {
                slots.remove(&slot);
                // Half of the limit: a bucket near it does not change its form each time.
                if slots.len() <= FEW / 2 {
                    *self = Bucket::Few(slots.iter().copied().collect());
                }
                false
            }
        }
    }

    /// Returns the memory, in bytes, that the bucket has allocated.
    fn bytes_held(&self) -> usize {
        match self {
            Bucket::One(_) => 0,
            Bucket::Few(slots) => slots.capacity() * size_of::<Slot>(),
            Bucket::Many(slots) => slots.capacity() * (size_of::<Slot>() + 1),
        }
    }

    /// Replaces each slot by its new number. `moved`: the new slot of each old one.
    fn renumber(&mut self, moved: &[Slot]) {
        match self {
            Bucket::One(slot) => *slot = moved[*slot as usize],
            Bucket::Few(slots) => slots.iter_mut().for_each(|slot| *slot = moved[*slot as usize]),
            Bucket::Many(slots) => {
                **slots = slots.iter().map(|slot| moved[*slot as usize]).collect();
            }
        }
    }
}

/// The values of an object: the index's number, and a value under which it has the object.
type Values = SmallVec<[(usize, IndexValue); 4]>;

/// Returns the values under which the indices have `object`, in the order of the functions; a value
/// that a function repeats is repeated.
fn values<T>(functions: &[IndexFn<T>], object: &T) -> Values {
    let mut values = Values::new();
    for (number, function) in functions.iter().enumerate() {
        function(object, &mut |value| values.push((number, value)));
    }
    values
}

impl Tables {
    /// Moves a slot from the values of its old object to those of its new one. There may be many
    /// values, as users choose their number: they are compared by [`Lookup`]s.
    fn reindex(&mut self, slot: Slot, before: &Values, after: Values) {
        if *before == after {
            return;
        }
        let new_values = Lookup::new(&after, |value| value);
        for value in before.iter().filter(|value| !new_values.contains(value)) {
            self.indices[value.0].remove(slot, &value.1);
        }
        drop(new_values);
        let old_values = Lookup::new(before, |value| value);
        for value in after {
            if !old_values.contains(&value) {
                self.add(slot, value);
            }
        }
    }

    /// Puts a slot into the bucket of a value of the index `number`.
    fn add(&mut self, slot: Slot, (number, value): (usize, IndexValue)) {
        let buckets = &mut self.indices[number].buckets;
        match buckets.get_mut(&value) {
            Some(bucket) => bucket.insert(slot),
            None => {
                buckets.insert(value, Bucket::One(slot));
            }
        }
    }

    /// Returns the slots in the bucket of `value` of the index `number`.
    fn by_value(&self, number: usize, value: &IndexValue) -> Vec<Slot> {
        match self.indices[number].buckets.get(value) {
            None => Vec::new(),
            Some(Bucket::One(only)) => vec![*only],
            Some(Bucket::Few(slots)) => slots.clone(),
            Some(Bucket::Many(slots)) => slots.iter().copied().collect(),
        }
    }

    /// Estimates the tables' memory in bytes, from their capacities.
    fn bytes_held(&self) -> usize {
        let indices = self.indices.iter().map(|index| {
            let many = index.buckets.values().map(Bucket::bytes_held).sum::<usize>();
            many + index.buckets.capacity() * (size_of::<(IndexValue, Bucket)>() + 1)
        });
        // A slot, and its byte in the hash table.
        self.keys.capacity() * (size_of::<Slot>() + 1) + indices.sum::<usize>()
    }

    /// Replaces each slot in all tables by its new number. `moved`: the new slot of each old one.
    fn renumber(&mut self, moved: &[Slot]) {
        self.keys.renumber(moved);
        for bucket in self.indices.iter_mut().flat_map(|index| index.buckets.values_mut()) {
            bucket.renumber(moved);
        }
    }
}

impl Table {
    /// Removes a slot from the bucket of `value`, and frees memory: an empty bucket, and most of a
    /// table that has shrunk.
    fn remove(&mut self, slot: Slot, value: &IndexValue) {
        if self.buckets.get_mut(value).is_some_and(|bucket| bucket.remove(slot)) {
            self.buckets.remove(value);
            if self.buckets.capacity() > 64 && self.buckets.len() < self.buckets.capacity() / 4 {
                self.buckets.shrink_to(self.buckets.len() * 2);
            }
        }
    }
}

impl<T: Object> Default for Indexer<T> {
    fn default() -> Self {
        Indexer::new()
    }
}

impl<T: Object> Indexer<T> {
    /// Makes an empty cache without indices.
    pub fn new() -> Indexer<T> {
        let (functions, tables) = (Vec::new(), Tables::default());
        let state = State { slots: ObjectTable::new(), functions, tables };
        let (version, history) = (AtomicU64::new(0), AtomicU64::new(0));
        Indexer { state: RwLock::new(state), version, history }
    }

    /// Adds an index, with all objects that are already stored. Does nothing when the index was
    /// added before. Upstream: `AddIndexers`.
    ///
    /// # Panics
    /// When the index function panics.
    pub fn add_index(&self, index: &Index<T>) {
        let mut state = self.state.write();
        let State { slots, functions, tables } = &mut *state;
        if tables.indices.iter().any(|table| index.is_in(table)) {
            return;
        }
        let number = functions.len();
        functions.push(index.of);
        tables.indices.push(Table { declared: index.declared, buckets: HashMap::new() });
        for (slot, object) in slots.iter() {
            for (_, value) in values(&[index.of], object) {
                tables.add(slot, (number, value));
            }
        }
    }

    /// Stores an object. Returns the one that was stored under the same namespace and name.
    ///
    /// # Panics
    /// When an index function panics; nothing is changed then.
    pub fn insert(&self, object: Arc<T>) -> Option<Arc<T>> {
        let mut state = self.state.write();
        let State { slots, functions, tables } = &mut *state;
        // Before anything changes: an index function may panic.
        let after = values(functions, &object);
        match tables.keys.find(slots, &object.meta().key()) {
            Some(slot) => {
                let before = values(functions, slots.get(slot));
                let old = slots.put(slot, object);
                tables.reindex(slot, &before, after);
                old
            }
            None => {
                let slot = tables.keys.allocate();
                slots.put(slot, object);
                tables.keys.insert(slots, slot);
                tables.reindex(slot, &Values::new(), after);
                None
            }
        }
    }

    /// Removes the object and returns it; `None` when it is not stored.
    pub fn remove(&self, key: &ObjectKey) -> Option<Arc<T>> {
        let mut state = self.state.write();
        let State { slots, functions, tables } = &mut *state;
        let slot = tables.keys.find(slots, key)?;
        let before = values(functions, slots.get(slot));
        tables.reindex(slot, &before, Values::new());
        tables.keys.remove(slots, slot);
        let old = slots.take(slot);
        if let Some(moved) = slots.shrink(tables.keys.len()) {
            tables.renumber(&moved);
        }
        old
    }

    /// Returns the object with this namespace and name. Upstream: `GetByKey`.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<T>> {
        let state = self.state.read();
        let slot = state.tables.keys.find(&state.slots, key)?;
        Some(state.slots.get(slot).clone())
    }

    /// Returns all objects, in no order.
    pub fn list(&self) -> Vec<Arc<T>> {
        let state = self.state.read();
        let mut all = Vec::with_capacity(state.tables.keys.len());
        all.extend(state.slots.iter().map(|(_, object)| object.clone()));
        all
    }

    /// Returns the objects of one namespace, in no order. Upstream: the index
    /// `cache.NamespaceIndex`.
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<T>> {
        let state = self.state.read();
        state.slots.gather(&state.tables.keys.in_namespace(namespace))
    }

    /// Returns the number of objects in one namespace.
    pub fn count_in(&self, namespace: &str) -> usize {
        self.state.read().tables.keys.count_in(namespace)
    }

    /// Returns the objects that `index` has under `value`, in no order. Upstream: `ByIndex`.
    ///
    /// # Panics
    /// When the index was not added: a mistake in the program.
    pub fn by_index(&self, index: &Index<T>, value: &IndexValue) -> Vec<Arc<T>> {
        let state = self.state.read();
        let number = state.tables.indices.iter().position(|table| index.is_in(table));
        let number = number.unwrap_or_else(|| panic!("the index {:?} was not added", index.name));
        state.slots.gather(&state.tables.by_value(number, value))
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.state.read().tables.keys.len()
    }

    /// Returns whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the newest resource version up to which all changes can be read here; bookmarks
    /// raise it too. 0 before the first list is whole. Decreases only when the server's versions go
    /// back. Upstream: `LastStoreSyncResourceVersion`.
    pub fn last_seen_version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns [`last_seen_version`](Indexer::last_seen_version) with its history.
    pub fn seen(&self) -> HistoryVersion {
        // In this order a reader finds a version that is too low at worst, see `go_back`.
        let history = self.history.load(Ordering::Acquire);
        HistoryVersion { history, version: self.last_seen_version() }
    }

    /// Records that the server's versions have gone back, and that all changes up to `version` are
    /// stored.
    pub fn go_back(&self, version: u64) {
        self.version.store(version, Ordering::Release);
        self.history.fetch_add(1, Ordering::AcqRel);
    }

    /// Records that all changes up to `version` are stored. A lower version than before is ignored.
    pub fn set_seen_version(&self, version: u64) {
        self.version.fetch_max(version, Ordering::AcqRel);
    }
}

impl<T: Object> AnyIndexer for Indexer<T> {
    fn get(&self, key: &ObjectKey) -> Option<Arc<dyn AnyObject>> {
        Some(Indexer::get(self, key)?)
    }

    fn insert(&self, object: Arc<dyn AnyObject>) {
        Indexer::insert(self, typed(object));
    }

    fn remove(&self, key: &ObjectKey) {
        Indexer::remove(self, key);
    }

    fn for_each(&self, visit: &mut dyn FnMut(Arc<dyn AnyObject>)) {
        self.state.read().slots.iter().for_each(|(_, object)| visit(object.clone()));
    }

    fn len(&self) -> usize {
        Indexer::len(self)
    }

    fn count_in(&self, namespace: &str) -> usize {
        Indexer::count_in(self, namespace)
    }

    fn last_seen_version(&self) -> u64 {
        Indexer::last_seen_version(self)
    }

    fn bytes_held(&self) -> usize {
        let state = self.state.read();
        // Two allocations: the object and its name.
        let bytes_of = |object: &Arc<T>| 2 * ALLOCATED + size_of::<T>() + object.meta().name.len();
        let objects: usize = state.slots.iter().map(|(_, object)| bytes_of(object)).sum();
        objects + state.slots.capacity() * size_of::<Option<Arc<T>>>() + state.tables.bytes_held()
    }

    fn set_seen_version(&self, version: u64) {
        self.set_seen_version(version);
    }

    fn reset_seen_version(&self, version: u64) {
        self.go_back(version);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{labelled, object};
    use super::*;
    use crate::objects::PartialObjectMetadata;

    fn by_app(object: &PartialObjectMetadata, put: &mut dyn FnMut(IndexValue)) {
        if let Some(app) = object.meta.labels.get("app") {
            put(IndexValue::Text(app.into()));
            put(IndexValue::Text(app.into()));
        }
    }

    const BY_APP: Index<PartialObjectMetadata> = Index::new("app", by_app);

    fn under(indexer: &Indexer<PartialObjectMetadata>, app: &str) -> usize {
        indexer.by_index(&BY_APP, &IndexValue::Text(app.into())).len()
    }

    #[test]
    fn an_index_follows_its_objects() {
        let indexer = Indexer::new();
        indexer.insert(labelled("a", "x", 1, &[("app", "web")]));
        indexer.add_index(&BY_APP);
        indexer.insert(labelled("a", "y", 1, &[("app", "web")]));
        indexer.insert(object("a", "z", 1));
        assert_eq!(under(&indexer, "web"), 2, "also the object from before the index");
        indexer.insert(labelled("a", "y", 2, &[("app", "db")]));
        assert_eq!((under(&indexer, "web"), under(&indexer, "db")), (1, 1));
        indexer.insert(labelled("a", "y", 3, &[("app", "db")]));
        let found = indexer.by_index(&BY_APP, &IndexValue::Text("db".into()));
        assert_eq!(found[0].meta.resource_version, 3, "the index gives the new object");
        indexer.remove(&ObjectKey::new("a", "y"));
        indexer.insert(object("a", "x", 4));
        assert_eq!((under(&indexer, "web"), under(&indexer, "db")), (0, 0));
        assert!(indexer.state.read().tables.indices[0].buckets.is_empty(), "no empty bucket stays");
    }

    /// Thousands of values, each twice, of which some go, some stay and some come.
    #[test]
    fn an_object_may_have_many_values() {
        fn by_range(object: &PartialObjectMetadata, put: &mut dyn FnMut(IndexValue)) {
            let range = object.meta.labels.get("range").and_then(|range| range.split_once('-'));
            let (from, to) = range.expect("the test gives one");
            let range = from.parse::<usize>().unwrap()..to.parse().unwrap();
            for n in range.clone().chain(range) {
                put(IndexValue::Text(format!("v{n}").into()));
            }
        }
        const BY_RANGE: Index<PartialObjectMetadata> = Index::new("range", by_range);
        let indexer = Indexer::new();
        indexer.add_index(&BY_RANGE);
        indexer.insert(labelled("a", "other", 1, &[("range", "0-4000")]));
        for (from, to) in [(0, 2000), (0, 2000), (1000, 3000), (2990, 2995), (0, 5), (0, 4000)] {
            indexer.insert(labelled("a", "x", 1, &[("range", &format!("{from}-{to}"))]));
            for n in 0..4000 {
                let found = indexer.by_index(&BY_RANGE, &IndexValue::Text(format!("v{n}").into()));
                let has = (from..to).contains(&n);
                assert_eq!(found.len(), 1 + usize::from(has), "{n} of {from}-{to}");
            }
        }
        indexer.remove(&ObjectKey::new("a", "other"));
        indexer.remove(&ObjectKey::new("a", "x"));
        assert!(indexer.state.read().tables.indices[0].buckets.is_empty());
    }

    /// Every size of bucket, grown, replaced and emptied.
    #[test]
    fn buckets_of_every_size_agree_with_a_count() {
        let indexer = Indexer::new();
        indexer.add_index(&BY_APP);
        let name = |n: usize| format!("o{n}");
        for n in 0..200 {
            indexer.insert(labelled("a", &name(n), 1, &[("app", "web")]));
            assert_eq!(under(&indexer, "web"), n + 1);
            indexer.insert(labelled("a", &name(n / 2), 2, &[("app", "web")]));
            assert_eq!(under(&indexer, "web"), n + 1, "an update neither adds nor removes");
        }
        for n in 0..200 {
            indexer.remove(&ObjectKey::new("a", &name(n)));
            assert_eq!(under(&indexer, "web"), 199 - n);
        }
    }

    #[test]
    fn objects_are_found_by_key_and_by_namespace() {
        let indexer = Indexer::new();
        assert!(indexer.insert(object("a", "x", 1)).is_none());
        assert!(indexer.insert(object("a", "y", 1)).is_none());
        assert!(indexer.insert(object("", "x", 1)).is_none());
        let old = indexer.insert(object("a", "x", 2)).map(|old| old.meta.resource_version);
        assert_eq!(old, Some(1), "the new object replaces the old one");
        assert_eq!(indexer.len(), 3);
        let found = indexer.get(&ObjectKey::new("a", "x")).map(|found| found.meta.resource_version);
        assert_eq!(found, Some(2));
        assert_eq!((indexer.in_namespace("a").len(), indexer.count_in("a")), (2, 2));
        assert_eq!((indexer.in_namespace("b").len(), indexer.count_in("b")), (0, 0));
        assert!(indexer.remove(&ObjectKey::new("b", "x")).is_none());
        assert!(indexer.remove(&ObjectKey::cluster("x")).is_some());
        assert!(indexer.remove(&ObjectKey::cluster("x")).is_none());
        assert_eq!((indexer.len(), indexer.list().len()), (2, 2));
        indexer.insert(object("b", "z", 1));
        assert_eq!(indexer.state.read().slots.iter().map(|(slot, _)| slot).max(), Some(2));
    }

    /// Entries are renumbered when most are free; keys and indices must follow.
    #[test]
    fn memory_is_freed_after_a_peak() {
        let indexer = Indexer::new();
        indexer.add_index(&BY_APP);
        let name = |n: usize| format!("pod-{n}");
        let app = |n: usize| ["few", "one", "many", "many"][if n == 7 { 1 } else { n % 2 * 2 }];
        for n in 0..1000 {
            indexer.insert(labelled("a", &name(n), 1, &[("app", app(n))]));
        }
        for n in (0..1000).filter(|n| n % 11 != 7) {
            indexer.remove(&ObjectKey::new("a", &name(n)));
        }
        let kept: Vec<usize> = (0..1000).filter(|n| n % 11 == 7).collect();
        assert_eq!(indexer.len(), kept.len());
        for n in &kept {
            let found = indexer.get(&ObjectKey::new("a", &name(*n))).expect("it was kept");
            assert_eq!(*found.meta.name, name(*n));
        }
        for value in ["few", "one", "many"] {
            let found = indexer.by_index(&BY_APP, &IndexValue::Text(value.into()));
            assert!(found.iter().all(|object| object.meta.labels.get("app") == Some(value)));
            let expected = kept.iter().filter(|n| app(**n) == value).count();
            assert_eq!(found.len(), expected, "{value}");
        }
        let state = indexer.state.read();
        let (slots, keys) = (state.slots.capacity(), state.tables.keys.capacity());
        assert!(slots < 400 && keys < 400, "{slots} slots, {keys} keys for {} objects", kept.len());
        assert_eq!(size_of::<Bucket>(), 3 * size_of::<usize>());
    }

    /// The cache is consistent after the panic: the object is neither stored nor indexed.
    #[test]
    fn an_index_function_that_panics_changes_nothing() {
        fn fragile(object: &PartialObjectMetadata, put: &mut dyn FnMut(IndexValue)) {
            assert_ne!(object.meta.resource_version, 2, "as the test asks");
            put(IndexValue::Text("all".into()));
        }
        const ALL: Index<PartialObjectMetadata> = Index::new("all", fragile);
        let indexer = Indexer::new();
        indexer.add_index(&ALL);
        indexer.insert(object("a", "x", 1));
        for name in ["x", "y"] {
            let insert = || indexer.insert(object("a", name, 2));
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(insert)).is_err());
        }
        let found = indexer.by_index(&ALL, &IndexValue::Text("all".into()));
        assert_eq!((indexer.len(), found.len(), found[0].meta.resource_version), (1, 1, 1));
    }

    #[test]
    #[should_panic(expected = "the index \"app\" was not added")]
    fn an_index_that_was_not_added_is_a_mistake() {
        under(&Indexer::new(), "web");
    }

    /// Names do not matter: each declaration has its own values.
    #[test]
    fn two_declarations_are_two_indices() {
        const NONE: Index<PartialObjectMetadata> = Index::new("app", |_, _| {});
        let indexer = Indexer::new();
        for _ in 0..2 {
            indexer.add_index(&NONE);
            indexer.add_index(&BY_APP);
        }
        indexer.insert(labelled("a", "x", 1, &[("app", "web")]));
        assert_eq!(under(&indexer, "web"), 1);
        assert!(indexer.by_index(&NONE, &IndexValue::Text("web".into())).is_empty());
        assert_eq!(indexer.state.read().tables.indices.len(), 2);
    }
}
