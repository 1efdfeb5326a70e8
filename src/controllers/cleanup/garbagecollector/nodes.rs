//! The graph's nodes, stored in little memory: there is one for every object in the cluster.

use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock};

use hashbrown::HashTable;

use crate::objects::{ArcStr, Interned, Istr, OwnerReference, Pool, Uid};

/// The version and kind of an object, one copy for all objects of the kind.
/// Upstream: `metav1.TypeMeta`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TypeMeta {
    pub kind: Istr,
    pub api_version: Istr,
}

impl TypeMeta {
    /// The shared copy.
    pub fn shared(api_version: &Istr, kind: &Istr) -> Arc<TypeMeta> {
        static ALL: LazyLock<Pool<Arc<TypeMeta>>> = LazyLock::new(Pool::new);
        ALL.intern(TypeMeta { api_version: api_version.clone(), kind: kind.clone() })
    }
}

/// Where an object is to be found, and which one it is. Upstream: `objectReference`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    pub type_meta: Arc<TypeMeta>,
    /// Of a virtual node: its first dependent's namespace, though the owner may be cluster-scoped.
    pub namespace: Istr,
    pub name: ArcStr,
    pub uid: Uid,
}

impl Identity {
    /// The owner that `reference` in an object of `namespace` names.
    pub fn of_owner(reference: &OwnerReference, namespace: &Istr) -> Identity {
        Identity {
            type_meta: TypeMeta::shared(&reference.api_version, &reference.kind),
            namespace: namespace.clone(),
            name: ArcStr::from(&reference.name),
            uid: reference.uid.clone(),
        }
    }

    pub(super) fn is_named_by(&self, reference: &OwnerReference) -> bool {
        reference.uid == self.uid
            && reference.name == *self.name
            && reference.kind == self.type_meta.kind
            && reference.api_version == self.type_meta.api_version
    }

    /// The API's group and version may change while the object stays: its uid does not.
    pub(super) fn differs_in_version(&self, reference: &OwnerReference) -> bool {
        reference.uid == self.uid
            && reference.name == *self.name
            && reference.kind == self.type_meta.kind
            && reference.api_version != self.type_meta.api_version
    }

    pub(super) fn rank(&self) -> (&TypeMeta, &str, &str, &Uid) {
        (&self.type_meta, &self.namespace, &self.name, &self.uid)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Identity { type_meta, namespace, name, uid } = self;
        let TypeMeta { api_version, kind } = &**type_meta;
        write!(f, "[{api_version}/{kind}, namespace: {namespace}, name: {name}, uid: {uid}]")
    }
}

/// An object of the graph.
#[derive(Clone, Debug)]
pub struct Node {
    pub identity: Identity,
    pub owners: Option<Interned<[OwnerReference]>>,
    pub dependents: Dependents,
    pub being_deleted: bool,
    /// Waits, under the finalizer `foregroundDeletion`, until its dependents are gone.
    pub deleting_dependents: bool,
    pub is_virtual: bool,
}

impl Node {
    pub fn owners(&self) -> &[OwnerReference] {
        self.owners.as_deref().unwrap_or_default()
    }
}

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
