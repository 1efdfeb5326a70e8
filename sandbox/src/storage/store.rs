//! Objects in memory with their history, in place of etcd and the watch cache.
//! Upstream: `apiserver/pkg/storage`.
//!
//! One number counts the writes of the whole store. Each table keeps a bounded number of its latest
//! changes; watches and lists at older versions are served from them.

use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, OnceLock};

use event_listener::{Event, EventListener};
use hyper::body::Bytes;
use serde_json::Value;

use crate::protobuf;
use kube_controller_manager::objects::Labels;

/// The first write gets the number after this one.
const FIRST_VERSION: u64 = 1000;

/// An object at one version: parsed, and as the bytes that lists and watches copy.
pub struct Stored {
    pub version: u64,
    pub value: Value,
    pub bytes: Bytes,
    pub labels: Labels,
    protobuf: OnceLock<Bytes>,
}

impl Stored {
    /// Builds the stored form of `value`, with its `metadata.resourceVersion` set to `version`.
    pub fn new(mut value: Value, version: u64) -> Stored {
        value["metadata"]["resourceVersion"] = version.to_string().into();
        let bytes = serde_json::to_vec(&value).unwrap_or_default().into();
        let labels = match value.pointer("/metadata/labels").and_then(Value::as_object) {
            None => Labels::default(),
            Some(labels) => labels
                .iter()
                .filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
                .collect(),
        };
        Stored { version, value, bytes, labels, protobuf: OnceLock::new() }
    }

    /// Returns the protobuf message, encoded on first use; empty for kinds without one.
    pub fn protobuf(&self) -> Bytes {
        let text = |key: &str| self.value[key].as_str().unwrap_or_default();
        let write = || protobuf::message(text("apiVersion"), text("kind"), &self.value);
        self.protobuf.get_or_init(|| write().unwrap_or_default()).clone()
    }

    pub fn uid(&self) -> &str {
        self.value.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default()
    }
}

/// One write. `old` is absent for a create. With `deleted`, `new` is the last state at the version
/// of the deletion.
#[derive(Clone)]
pub struct Change {
    pub version: u64,
    pub key: Arc<str>,
    pub old: Option<Arc<Stored>>,
    pub new: Arc<Stored>,
    pub deleted: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub enum StoreError {
    AlreadyExists,
    /// The object is gone, or at another version than expected.
    Changed,
    /// The history no longer reaches back to that version.
    Compacted {
        oldest: u64,
    },
    /// That version has not been written yet.
    TooLarge {
        current: u64,
    },
}

/// A page of a list.
pub struct Page {
    /// The version that the list shows.
    pub version: u64,
    pub items: Vec<Arc<Stored>>,
    /// The last key on this page and how many follow it, when some do.
    pub rest: Option<(Arc<str>, u64)>,
}

/// Changes for a watch.
pub struct Changes {
    pub changes: Vec<Change>,
    /// Every change up to this version has been returned.
    pub version: u64,
}

type Keyed = (Arc<str>, Arc<Stored>);

#[derive(Default)]
struct Table {
    objects: BTreeMap<Arc<str>, Arc<Stored>>,
    history: VecDeque<Change>,
    /// New watches cannot start before this version.
    compacted: u64,
    /// The latest change that has left the history; a running watch behind it has missed changes.
    lost: u64,
    /// The version of the last change.
    newest: u64,
    changed: Arc<Event>,
}

/// All objects at one version, as in a backup of etcd.
pub struct Backup {
    version: u64,
    objects: HashMap<String, BTreeMap<Arc<str>, Arc<Stored>>>,
}

struct State {
    version: u64,
    tables: HashMap<String, Table>,
}

/// Keys are `namespace/name`, or `name` where there is no namespace; tables are named like
/// `deployments.apps`.
pub struct Store {
    state: Mutex<State>,
    /// Changes that a table remembers.
    window: usize,
}

impl Store {
    pub fn new(window: usize) -> Store {
        let state = State { version: FIRST_VERSION, tables: HashMap::new() };
        Store { state: Mutex::new(state), window }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns the version of the last write.
    pub fn version(&self) -> u64 {
        self.lock().version
    }

    pub fn get(&self, table: &str, key: &str) -> Option<Arc<Stored>> {
        self.lock().tables.get(table)?.objects.get(key).cloned()
    }

    /// Returns the version of the last change to any of these tables; 0 when there was none.
    pub fn changed_at(&self, tables: &[&str]) -> u64 {
        let state = self.lock();
        let newest = tables.iter().filter_map(|table| Some(state.tables.get(*table)?.newest));
        newest.max().unwrap_or(0)
    }

    /// Returns how many objects a table holds.
    pub fn len(&self, table: &str) -> usize {
        self.lock().tables.get(table).map_or(0, |table| table.objects.len())
    }

    /// Stores a new object under the next version, and wakes the table's watches.
    pub fn create(&self, table: &str, key: &str, value: Value) -> Result<Arc<Stored>, StoreError> {
        let mut state = self.lock();
        let version = state.version + 1;
        let entry = state.tables.entry(table.to_owned()).or_default();
        if entry.objects.contains_key(key) {
            return Err(StoreError::AlreadyExists);
        }
        let new = Arc::new(Stored::new(value, version));
        let key: Arc<str> = key.into();
        entry.objects.insert(key.clone(), new.clone());
        entry.record(
            Change { version, key, old: None, new: new.clone(), deleted: false },
            self.window,
        );
        state.version = version;
        Ok(new)
    }

    /// Replaces the object, which must be at version `expected`, and wakes the watches of the
    /// table. Errors: [`StoreError::Changed`] at another version.
    pub fn replace(
        &self,
        table: &str,
        key: &str,
        expected: u64,
        value: Value,
    ) -> Result<Arc<Stored>, StoreError> {
        let mut state = self.lock();
        let version = state.version + 1;
        let entry = state.tables.get_mut(table).ok_or(StoreError::Changed)?;
        let (key, old) = entry.at(key, expected)?;
        let new = Arc::new(Stored::new(value, version));
        entry.objects.insert(key.clone(), new.clone());
        let change = Change { version, key, old: Some(old), new: new.clone(), deleted: false };
        entry.record(change, self.window);
        state.version = version;
        Ok(new)
    }

    /// Removes the object, which must be at version `expected`. Its last state, `value` or what was
    /// stored, gets the version of the deletion. Errors: [`StoreError::Changed`] at another
    /// version.
    pub fn delete(
        &self,
        table: &str,
        key: &str,
        expected: u64,
        value: Option<Value>,
    ) -> Result<Arc<Stored>, StoreError> {
        let last = match value {
            Some(value) => value,
            None => self.get(table, key).ok_or(StoreError::Changed)?.value.clone(),
        };
        let mut state = self.lock();
        let version = state.version + 1;
        let entry = state.tables.get_mut(table).ok_or(StoreError::Changed)?;
        let (key, old) = entry.at(key, expected)?;
        let new = Arc::new(Stored::new(last, version));
        entry.objects.remove(&key);
        let change = Change { version, key, old: Some(old), new: new.clone(), deleted: true };
        entry.record(change, self.window);
        state.version = version;
        Ok(new)
    }

    /// Removes every object of a table, one deletion each.
    pub fn clear(&self, table: &str) {
        let all: Vec<(Arc<str>, u64)> = {
            let state = self.lock();
            let objects = state.tables.get(table).map(|table| &table.objects);
            objects
                .into_iter()
                .flatten()
                .map(|(key, object)| (key.clone(), object.version))
                .collect()
        };
        for (key, version) in all {
            // Written concurrently; removed when the definition is next finalized.
            if self.delete(table, &key, version, None).is_err() {
                log::debug!("{table} {key} changed while it was removed");
            }
        }
    }

    /// Lists the objects whose key starts with `prefix` and follows `after`, in the order of their
    /// keys: those that `keep` accepts, at most `limit` of them. `at`: as they were at that
    /// version. Errors: [`StoreError::TooLarge`] for a version of the future,
    /// [`StoreError::Compacted`] for one that is too old.
    pub fn list(
        &self,
        table: &str,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
        at: Option<u64>,
        keep: &dyn Fn(&Stored) -> bool,
    ) -> Result<Page, StoreError> {
        let (version, candidates) = {
            let state = self.lock();
            let version = at.unwrap_or(state.version);
            if version > state.version {
                return Err(StoreError::TooLarge { current: state.version });
            }
            let candidates = match state.tables.get(table) {
                None => Vec::new(),
                Some(table) => table.range(prefix, after, version, state.version)?,
            };
            (version, candidates)
        };
        let mut items = Vec::new();
        let mut rest = None;
        let total = candidates.len();
        for (index, (key, stored)) in candidates.into_iter().enumerate() {
            if !keep(&stored) {
                continue;
            }
            items.push(stored);
            if items.len() == limit && index + 1 < total {
                rest = Some((key, (total - index - 1) as u64));
                break;
            }
        }
        Ok(Page { version, items, rest })
    }

    /// Returns at most `limit` changes of `table` after version `after`. A `running` watch is not
    /// affected by the compaction of changes that it has already seen.
    pub fn changes(
        &self,
        table: &str,
        after: u64,
        limit: usize,
        running: bool,
    ) -> Result<Changes, StoreError> {
        let state = self.lock();
        // After a restore `after` may be newer than the store.
        let none = Changes { changes: Vec::new(), version: state.version.max(after) };
        let Some(entry) = state.tables.get(table) else { return Ok(none) };
        let oldest = if running { entry.lost } else { entry.compacted };
        if after < oldest {
            return Err(StoreError::Compacted { oldest });
        }
        let start = entry.history.partition_point(|change| change.version <= after);
        let changes: Vec<Change> = entry.history.iter().skip(start).take(limit).cloned().collect();
        if changes.is_empty() {
            return Ok(none);
        }
        let all = start + changes.len() == entry.history.len();
        let last = changes.last().map_or(after, |change| change.version);
        Ok(Changes { changes, version: if all { state.version } else { last } })
    }

    /// Resolves when `table` changed after this call.
    pub fn listen(&self, table: &str) -> EventListener {
        self.lock().tables.entry(table.to_owned()).or_default().changed.listen()
    }

    pub fn backup(&self) -> Backup {
        let state = self.lock();
        let objects = |table: &Table| table.objects.clone();
        let objects = state.tables.iter().map(|(name, table)| (name.clone(), objects(table)));
        Backup { version: state.version, objects: objects.collect() }
    }

    /// Goes back to a backup: versions after it are counted again. As after a restart, watches and
    /// lists at older versions get 410; watches from later ones wait until these are reached.
    pub fn restore(&self, backup: &Backup) {
        let mut state = self.lock();
        state.version = backup.version;
        for (name, table) in &mut state.tables {
            table.objects = backup.objects.get(name).cloned().unwrap_or_default();
            table.history.clear();
            (table.compacted, table.lost) = (backup.version, backup.version);
            table.newest = backup.version;
            table.changed.notify(usize::MAX);
        }
    }

    /// Compacts the history of every table: watches and lists at older versions get 410.
    pub fn compact(&self) {
        self.lock().compact();
    }

    /// Compacts if no write followed `version`; returns whether it did.
    pub fn compact_at(&self, version: u64) -> bool {
        let mut state = self.lock();
        let unchanged = state.version == version;
        if unchanged {
            state.compact();
        }
        unchanged
    }
}

impl State {
    /// Drops the history of all tables, so that watches of older versions fail.
    fn compact(&mut self) {
        // Watches at the newest version lose nothing, so the version is advanced first.
        self.version += 1;
        let version = self.version;
        for table in self.tables.values_mut() {
            if let Some(last) = table.history.back() {
                table.lost = last.version;
            }
            table.history.clear();
            table.compacted = version;
        }
    }
}

impl Table {
    /// Returns the object of this key. Errors: it is not at version `expected`.
    fn at(&self, key: &str, expected: u64) -> Result<(Arc<str>, Arc<Stored>), StoreError> {
        match self.objects.get_key_value(key) {
            Some((key, old)) if old.version == expected => Ok((key.clone(), old.clone())),
            _ => Err(StoreError::Changed),
        }
    }

    /// Adds a change to the history, drops the oldest ones beyond `window`, and wakes the watches.
    fn record(&mut self, change: Change, window: usize) {
        self.newest = change.version;
        self.history.push_back(change);
        while self.history.len() > window {
            if let Some(oldest) = self.history.pop_front() {
                self.lost = oldest.version;
                self.compacted = self.compacted.max(oldest.version);
            }
        }
        self.changed.notify(usize::MAX);
    }

    /// Lists the objects below `prefix` after the key `after`, as they were at `version`. Errors:
    /// the changes since that version have been compacted.
    fn range(
        &self,
        prefix: &str,
        after: Option<&str>,
        version: u64,
        newest: u64,
    ) -> Result<Vec<Keyed>, StoreError> {
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let current = self
            .objects
            .range::<str, _>((start, Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, stored)| (key.clone(), stored.clone()));
        if version == newest {
            return Ok(current.collect());
        }
        if version < self.compacted {
            return Err(StoreError::Compacted { oldest: self.compacted });
        }
        // Changes are undone from the newest back to `version`.
        let mut at: BTreeMap<Arc<str>, Arc<Stored>> = current.collect();
        for change in self.history.iter().rev().take_while(|change| change.version > version) {
            let inside =
                change.key.starts_with(prefix) && after.is_none_or(|after| &*change.key > after);
            match &change.old {
                Some(old) if inside => at.insert(change.key.clone(), old.clone()),
                _ => at.remove(&change.key),
            };
        }
        Ok(at.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(name: &str) -> Value {
        json!({ "metadata": { "name": name, "labels": { "app": name } } })
    }

    fn keys(page: &Page) -> Vec<&str> {
        page.items.iter().filter_map(|s| s.value.pointer("/metadata/name")?.as_str()).collect()
    }

    fn list(
        store: &Store,
        after: Option<&str>,
        limit: usize,
        at: Option<u64>,
    ) -> Result<Page, StoreError> {
        store.list("pods", "ns/", after, limit, at, &|_| true)
    }

    #[test]
    fn versions_guard_writes() {
        let store = Store::new(10);
        let a = store.create("pods", "ns/a", object("a")).ok().unwrap();
        assert_eq!(a.version, FIRST_VERSION + 1);
        assert_eq!(a.value["metadata"]["resourceVersion"], "1001");
        assert_eq!(
            store.create("pods", "ns/a", object("a")).err(),
            Some(StoreError::AlreadyExists)
        );
        let b = store.replace("pods", "ns/a", a.version, object("a")).ok().unwrap();
        let stale = store.replace("pods", "ns/a", a.version, object("a"));
        assert_eq!(stale.err(), Some(StoreError::Changed));
        assert_eq!(store.delete("pods", "ns/a", a.version, None).err(), Some(StoreError::Changed));
        let gone = store.delete("pods", "ns/a", b.version, None).ok().unwrap();
        assert_eq!((gone.version, store.version()), (FIRST_VERSION + 3, FIRST_VERSION + 3));
        assert!(store.get("pods", "ns/a").is_none());
    }

    #[test]
    fn pages_show_one_version() {
        let store = Store::new(10);
        for name in ["a", "b", "c"] {
            store.create("pods", &format!("ns/{name}"), object(name)).ok().unwrap();
        }
        store.create("pods", "ns-2/z", object("z")).ok().unwrap();
        let first = list(&store, None, 1, None).ok().unwrap();
        assert_eq!((keys(&first), first.rest.as_ref().unwrap().1), (vec!["a"], 2));
        let (after, version) = (first.rest.unwrap().0, first.version);
        // Written after the first page, so absent from the later pages.
        let b = store.get("pods", "ns/b").unwrap().version;
        store.delete("pods", "ns/b", b, None).ok().unwrap();
        store.create("pods", "ns/bb", object("bb")).ok().unwrap();
        let second = list(&store, Some(&after), 9, Some(version)).ok().unwrap();
        assert_eq!((keys(&second), second.version), (vec!["b", "c"], version));
        assert_eq!(keys(&list(&store, None, 9, None).ok().unwrap()), ["a", "bb", "c"]);
        let ahead = list(&store, None, 9, Some(store.version() + 1)).err();
        assert_eq!(ahead, Some(StoreError::TooLarge { current: store.version() }));
        store.compact();
        assert!(matches!(list(&store, None, 9, Some(version)), Err(StoreError::Compacted { .. })));
    }

    #[test]
    fn versions_are_counted_again_after_a_restored_backup() {
        let store = Store::new(10);
        store.create("pods", "ns/a", object("a")).ok().unwrap();
        let (backup, version) = (store.backup(), store.version());
        store.create("pods", "ns/b", object("b")).ok().unwrap();
        store.create("pods", "ns/c", object("c")).ok().unwrap();
        let lost = store.version();
        store.restore(&backup);
        let page = list(&store, None, 9, None).ok().unwrap();
        assert_eq!((keys(&page), page.version), (vec!["a"], version));
        let d = store.create("pods", "ns/d", object("d")).ok().unwrap();
        assert_eq!(d.version, version + 1);
        // A watch from a lost version shows nothing before that is reached.
        assert!(store.changes("pods", lost, 9, false).ok().unwrap().changes.is_empty());
        assert!(store.changes("pods", version - 1, 9, false).is_err());
    }

    #[test]
    fn the_window_is_bounded() {
        let store = Store::new(2);
        for name in ["a", "b", "c"] {
            store.create("pods", &format!("ns/{name}"), object(name)).ok().unwrap();
        }
        let forgotten = FIRST_VERSION + 1;
        let late = store.changes("pods", forgotten - 1, 9, false).err();
        assert_eq!(late, Some(StoreError::Compacted { oldest: forgotten }));
        let kept = store.changes("pods", forgotten, 9, false).ok().unwrap();
        let names: Vec<&str> = kept.changes.iter().map(|change| &*change.key).collect();
        assert_eq!((names, kept.version), (vec!["ns/b", "ns/c"], store.version()));
        let part = store.changes("pods", forgotten, 1, false).ok().unwrap();
        assert_eq!(part.version, forgotten + 1);
        // Writes to other tables advance the version without an event.
        store.create("nodes", "n", object("n")).ok().unwrap();
        let idle = store.changes("pods", kept.version, 9, false).ok().unwrap();
        assert_eq!((idle.changes.len(), idle.version), (0, store.version()));
        // A compaction stops new watches, not a running watch that is up to date.
        store.compact();
        assert!(store.changes("pods", idle.version, 9, false).is_err());
        assert!(store.changes("pods", idle.version, 9, true).is_ok());
        assert!(store.changes("pods", forgotten, 9, true).is_err());
    }
}
