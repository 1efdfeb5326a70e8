//! Objects by namespace and name: a table of the objects, which knows their type, and hash tables
//! over it, which do not.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use hashbrown::HashTable;

use super::any::AnyObject;
use crate::objects::{Istr, Object, ObjectKey};

/// The number of an entry of an [`ObjectTable`]. An object keeps its slot while it is cached.
pub type Slot = u32;

/// The objects of one kind, each in a numbered slot.
pub struct ObjectTable<T> {
    objects: Vec<Option<Arc<T>>>,
}

/// An [`ObjectTable`] of any kind, as the tables read them.
pub trait AnySlots {
    /// The object of a slot in use.
    fn object(&self, slot: Slot) -> &dyn AnyObject;
}

impl<T: Object> AnySlots for ObjectTable<T> {
    fn object(&self, slot: Slot) -> &dyn AnyObject {
        &**self.get(slot)
    }
}

impl<T> ObjectTable<T> {
    pub fn new() -> ObjectTable<T> {
        ObjectTable { objects: Vec::new() }
    }

    /// Returns the object in a slot.
    ///
    /// # Panics
    /// When the slot is free: the tables hold slots in use.
    pub fn get(&self, slot: Slot) -> &Arc<T> {
        self.objects[slot as usize].as_ref().expect("a slot of the tables is in use")
    }

    /// Fills a free slot, or the one after the last, or replaces an object by its successor.
    /// Returns the object that was in the slot.
    pub fn put(&mut self, slot: Slot, object: Arc<T>) -> Option<Arc<T>> {
        let at = slot as usize;
        if at == self.objects.len() {
            if at == self.objects.capacity() {
                // The table grows in small steps: slack costs as much as objects.
                self.objects.reserve_exact((at / 8).max(4));
            }
            self.objects.push(None);
        }
        self.objects[at].replace(object)
    }

    /// Empties a slot, and returns its object.
    pub fn take(&mut self, slot: Slot) -> Option<Arc<T>> {
        self.objects[slot as usize].take()
    }

    pub fn iter(&self) -> impl Iterator<Item = (Slot, &Arc<T>)> {
        let objects = self.objects.iter().enumerate();
        objects.filter_map(|(slot, object)| Some((slot as Slot, object.as_ref()?)))
    }

    pub fn capacity(&self) -> usize {
        self.objects.capacity()
    }

    /// Returns the objects in these slots.
    pub fn gather(&self, slots: &[Slot]) -> Vec<Arc<T>> {
        slots.iter().map(|slot| self.get(*slot).clone()).collect()
    }

    /// Renumbers the slots in use from 0. Returns the new slot of each old one.
    fn compact(&mut self) -> Vec<Slot> {
        let mut next = 0;
        let moved = self.objects.iter().map(|object| {
            let slot = next;
            next += Slot::from(object.is_some());
            slot
        });
        let moved = moved.collect();
        self.objects.retain(Option::is_some);
        self.objects.shrink_to_fit();
        moved
    }

    /// Frees memory when most slots are free; `used` is the number of the others. Returns the new
    /// slot of each old one, or `None` when nothing has moved.
    pub fn shrink(&mut self, used: usize) -> Option<Vec<Slot>> {
        (self.objects.len() > 64 && used < self.objects.len() / 4).then(|| self.compact())
    }
}

/// Finds slots by the name and namespace of their objects. An object costs four bytes and the
/// table's slack: names are read from the objects themselves. The table of a namespace is the
/// index by namespace. Upstream: `cache.NamespaceIndex`.
#[derive(Default)]
pub struct KeyTable {
    namespaces: HashMap<Istr, HashTable<Slot>>,
    free: Vec<Slot>,
    used: usize,
    hasher: RandomState,
}

impl KeyTable {
    /// Returns the slot of the object with this key.
    pub fn find(&self, slots: &dyn AnySlots, key: &ObjectKey) -> Option<Slot> {
        let has_name = |slot: &Slot| slots.object(*slot).meta().name == key.name;
        let hash = self.hasher.hash_one(&*key.name);
        self.namespaces.get(&key.namespace)?.find(hash, has_name).copied()
    }

    /// Returns a free slot for one more object, else the one after the last.
    pub fn allocate(&mut self) -> Slot {
        self.used += 1;
        // Without a free slot, all up to `used` are in use.
        self.free.pop().unwrap_or(self.used as Slot - 1)
    }

    /// Adds a slot to the table of its namespace. `slot`: allocated and filled; its key is not in
    /// the table yet.
    pub fn insert(&mut self, slots: &dyn AnySlots, slot: Slot) {
        let meta = slots.object(slot).meta();
        let hasher = &self.hasher;
        let hash = |slot: &Slot| hasher.hash_one(&*slots.object(*slot).meta().name);
        let table = self.namespaces.entry(meta.namespace.clone()).or_default();
        table.insert_unique(hash(&slot), slot, hash);
    }

    /// Removes a slot from the table. The slot is free from now on.
    pub fn remove(&mut self, slots: &dyn AnySlots, slot: Slot) {
        let meta = slots.object(slot).meta();
        let hasher = &self.hasher;
        let hash = |slot: &Slot| hasher.hash_one(&*slots.object(*slot).meta().name);
        let Some(table) = self.namespaces.get_mut(&meta.namespace) else { return };
        if let Ok(found) = table.find_entry(hash(&slot), |other| *other == slot) {
            found.remove();
            self.free.push(slot);
            self.used -= 1;
        }
        if table.is_empty() {
            self.namespaces.remove(&meta.namespace);
        } else if table.capacity() > 64 && table.len() < table.capacity() / 4 {
            // Memory is freed after a peak.
            table.shrink_to(table.len() * 2, hash);
        }
    }

    /// Replaces each slot by its new number. `moved`: from [`ObjectTable::shrink`], which leaves no
    /// slot free.
    pub fn renumber(&mut self, moved: &[Slot]) {
        self.free = Vec::new();
        for table in self.namespaces.values_mut() {
            for slot in table.iter_mut() {
                *slot = moved[*slot as usize];
            }
        }
    }

    pub fn len(&self) -> usize {
        self.used
    }

    pub fn capacity(&self) -> usize {
        self.namespaces.values().map(HashTable::capacity).sum()
    }

    pub fn count_in(&self, namespace: &str) -> usize {
        self.namespaces.get(namespace).map_or(0, HashTable::len)
    }

    /// Returns the slots of the objects in `namespace`, in no order.
    pub fn in_namespace(&self, namespace: &str) -> Vec<Slot> {
        let table = self.namespaces.get(namespace);
        table.map(|table| table.iter().copied().collect()).unwrap_or_default()
    }
}
