//! The graph's nodes in little room: there is one for every object in the cluster.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use super::graph::Node;
use crate::objects::Uid;

type Slot = Box<Node>;

/// Nodes by the uid that stands in each: a slot of the table is one pointer.
#[derive(Default)]
pub struct Nodes {
    table: HashTable<Slot>,
    hasher: RandomState,
}

impl Nodes {
    pub fn get(&self, uid: &Uid) -> Option<&Node> {
        let found = self.table.find(self.hasher.hash_one(uid), |node| node.identity.uid == *uid);
        found.map(|node| &**node)
    }

    pub fn get_mut(&mut self, uid: &Uid) -> Option<&mut Node> {
        let hash = self.hasher.hash_one(uid);
        self.table.find_mut(hash, |node| node.identity.uid == *uid).map(|node| &mut **node)
    }

    pub fn contains_key(&self, uid: &Uid) -> bool {
        self.get(uid).is_some()
    }

    /// In place of the one of the same uid.
    pub fn insert(&mut self, node: Node) {
        match self.get_mut(&node.identity.uid) {
            Some(there) => *there = node,
            None => {
                let hash = self.hasher.hash_one(&node.identity.uid);
                let rehash = |node: &Slot| self.hasher.hash_one(&node.identity.uid);
                self.table.insert_unique(hash, Box::new(node), rehash);
            }
        }
    }

    pub fn remove(&mut self, uid: &Uid) -> Option<Node> {
        let hash = self.hasher.hash_one(uid);
        let entry = self.table.find_entry(hash, |node| node.identity.uid == *uid).ok()?;
        let (node, _) = entry.remove();
        if self.table.capacity() > 64 && self.table.len() < self.table.capacity() / 4 {
            // Memory goes back after a storm.
            let rehash = |node: &Slot| self.hasher.hash_one(&node.identity.uid);
            self.table.shrink_to(self.table.len() * 2, rehash);
        }
        Some(*node)
    }

    pub fn values(&self) -> impl Iterator<Item = &Node> {
        self.table.iter().map(|node| &**node)
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}

/// The uids of a node's dependents. Most nodes have none, and no room for them.
#[derive(Clone, Debug, Default)]
#[expect(clippy::box_collection, reason = "a set takes six words, and most nodes have none")]
pub struct Dependents(Option<Box<HashSet<Uid>>>);

impl Dependents {
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Uid> {
        self.0.iter().flat_map(|uids| uids.iter())
    }

    pub fn insert(&mut self, uid: Uid) {
        self.0.get_or_insert_default().insert(uid);
    }

    pub fn remove(&mut self, uid: &Uid) {
        if let Some(uids) = &mut self.0 {
            uids.remove(uid);
            if uids.is_empty() {
                self.0 = None;
            } else if uids.capacity() > 64 && uids.len() < uids.capacity() / 4 {
                uids.shrink_to(uids.len() * 2);
            }
        }
    }
}

impl From<[Uid; 1]> for Dependents {
    fn from(uids: [Uid; 1]) -> Dependents {
        Dependents(Some(Box::new(HashSet::from(uids))))
    }
}
