//! The graph's nodes, stored in little memory: there is one for every object in the cluster.

use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use hashbrown::HashTable;

use crate::objects::{ArcStr, Interned, Istr, OwnerReference, Uid, shared};

/// Kind, version and namespace of objects, which share one copy. The order of scopes is
/// that of the fields: kind, version, namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope {
    pub kind: Istr,
    pub api_version: Istr,
    /// For a virtual node: its first dependent's namespace, though the owner may be cluster-scoped.
    pub namespace: Istr,
}

shared!(Scope);

impl Scope {
    /// Returns the same kind and version in `namespace`.
    pub fn in_namespace(self: &Arc<Scope>, namespace: &Istr) -> Arc<Scope> {
        match self.namespace == *namespace {
            true => self.clone(),
            false => Scope { namespace: namespace.clone(), ..Scope::clone(self) }.shared(),
        }
    }
}

/// An object by its scope, name and uid. Upstream: `objectReference`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    pub scope: Arc<Scope>,
    pub name: ArcStr,
    pub uid: Uid,
}

impl Identity {
    /// Returns the identity of the owner that `reference` names, as seen from `namespace`, that of
    /// the object with the reference.
    pub fn of_owner(reference: &OwnerReference, namespace: &Istr) -> Identity {
        let OwnerReference { api_version, kind, name, uid, .. } = reference.clone();
        let scope = Scope { kind, api_version, namespace: namespace.clone() }.shared();
        Identity { scope, name: ArcStr::from(&name), uid }
    }

    /// Returns the same object in another namespace.
    pub fn in_namespace(&self, namespace: &Istr) -> Identity {
        Identity { scope: self.scope.in_namespace(namespace), ..self.clone() }
    }

    /// Returns the same object in another version of the API.
    pub fn in_version(&self, api_version: &Istr) -> Identity {
        let scope = Scope { api_version: api_version.clone(), ..Scope::clone(&self.scope) };
        Identity { scope: scope.shared(), ..self.clone() }
    }

    /// Returns whether `reference` names this object in all its fields.
    pub(super) fn is_named_by(&self, reference: &OwnerReference) -> bool {
        reference.uid == self.uid
            && reference.name == *self.name
            && reference.kind == self.scope.kind
            && reference.api_version == self.scope.api_version
    }

    /// Returns whether `reference` names this object, but in another group or version. These may
    /// change while the object, and its uid, stay.
    pub(super) fn differs_in_version(&self, reference: &OwnerReference) -> bool {
        reference.uid == self.uid
            && reference.name == *self.name
            && reference.kind == self.scope.kind
            && reference.api_version != self.scope.api_version
    }

    /// Returns the key by which identities are sorted.
    pub(super) fn sort_key(&self) -> (&Scope, &str, &Uid) {
        (&self.scope, &self.name, &self.uid)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Identity { scope, name, uid } = self;
        let Scope { api_version, kind, namespace } = &**scope;
        write!(f, "[{api_version}/{kind}, namespace: {namespace}, name: {name}, uid: {uid}]")
    }
}

/// An object of the graph.
#[derive(Clone, Debug)]
pub struct Node {
    pub identity: Identity,
    /// `None` if the object names no owner.
    pub owners: Option<Interned<[OwnerReference]>>,
    pub dependents: Dependents,
    pub being_deleted: bool,
    /// Whether it waits, under the finalizer `foregroundDeletion`, until its dependents are gone.
    pub deleting_dependents: bool,
    /// Whether it is known from others' references alone: no watch has shown it.
    pub is_virtual: bool,
    /// Whether an owner that no watch has shown was found not to exist, as after a restore of a
    /// backup.
    pub has_unseen_owner: bool,
}

impl Node {
    pub fn owners(&self) -> &[OwnerReference] {
        self.owners.as_deref().unwrap_or_default()
    }
}

/// An entry of the table. Boxed, so that a free slot of the table costs only a pointer.
type Slot = Box<Node>;

/// Nodes by uid. The table holds a pointer for each node, and reads the uid from the node.
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

    /// Inserts a node, or replaces the one with the same uid.
    pub fn insert(&mut self, node: Node) {
        match self.get_mut(&node.identity.uid) {
            Some(existing) => *existing = node,
            None => {
                let hash = self.hasher.hash_one(&node.identity.uid);
                let rehash = |node: &Slot| self.hasher.hash_one(&node.identity.uid);
                self.table.insert_unique(hash, Box::new(node), rehash);
            }
        }
    }

    /// Removes a node and returns it.
    pub fn remove(&mut self, uid: &Uid) -> Option<Node> {
        let hash = self.hasher.hash_one(uid);
        let entry = self.table.find_entry(hash, |node| node.identity.uid == *uid).ok()?;
        let (node, _) = entry.remove();
        if self.table.capacity() > 64 && self.table.len() < self.table.capacity() / 4 {
            // Returns memory after many deletions.
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

/// The uids of a node's dependents. Most nodes have none, and many of the others one, so only a
/// second dependent makes a set.
#[derive(Clone, Debug, Default)]
pub struct Dependents(Option<Box<Uids>>);

#[derive(Clone, Debug)]
#[expect(clippy::box_collection, reason = "a set takes six words, and one uid two")]
enum Uids {
    One(Uid),
    Many(Box<HashSet<Uid>>),
}

impl Dependents {
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the uids, in no fixed order.
    pub fn iter(&self) -> impl Iterator<Item = &Uid> {
        let (one, many) = match self.0.as_deref() {
            Some(Uids::One(uid)) => (Some(uid), None),
            Some(Uids::Many(uids)) => (None, Some(&**uids)),
            None => (None, None),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// Adds a dependent; the second one makes a set of the single uid.
    pub fn insert(&mut self, uid: Uid) {
        match self.0.as_deref_mut() {
            None => *self = Dependents::from([uid]),
            Some(Uids::Many(uids)) => {
                uids.insert(uid);
            }
            Some(Uids::One(one)) if *one == uid => {}
            Some(Uids::One(one)) => {
                let both = HashSet::from([one.clone(), uid]);
                self.0 = Some(Box::new(Uids::Many(Box::new(both))));
            }
        }
    }

    /// Removes a dependent.
    pub fn remove(&mut self, uid: &Uid) {
        match self.0.as_deref_mut() {
            Some(Uids::One(one)) if one == uid => self.0 = None,
            Some(Uids::Many(uids)) => {
                uids.remove(uid);
                if uids.is_empty() {
                    self.0 = None;
                } else if uids.capacity() > 64 && uids.len() < uids.capacity() / 4 {
                    uids.shrink_to(uids.len() * 2);
                }
            }
            _ => {}
        }
    }
}

impl From<[Uid; 1]> for Dependents {
    fn from([uid]: [Uid; 1]) -> Dependents {
        Dependents(Some(Box::new(Uids::One(uid))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependents_come_and_go() {
        let mut dependents = Dependents::default();
        let uid = |n: usize| Uid::new(&format!("u{n}"));
        let sorted_uids = |dependents: &Dependents| {
            let mut uids: Vec<String> = dependents.iter().map(|uid| uid.to_string()).collect();
            uids.sort();
            uids.join(" ")
        };
        for (is_added, n, expected) in [
            (true, 1, "u1"),
            (true, 1, "u1"),
            (false, 2, "u1"),
            (true, 2, "u1 u2"),
            (true, 2, "u1 u2"),
            (true, 3, "u1 u2 u3"),
            (false, 4, "u1 u2 u3"),
            (false, 1, "u2 u3"),
            (false, 3, "u2"),
            (false, 2, ""),
            (true, 5, "u5"),
            (false, 5, ""),
        ] {
            if is_added {
                dependents.insert(uid(n));
            } else {
                dependents.remove(&uid(n));
            }
            assert_eq!(sorted_uids(&dependents), expected, "{is_added} {n}");
            assert_eq!(dependents.is_empty(), expected.is_empty());
        }
        assert_eq!(sorted_uids(&Dependents::from([uid(7)])), "u7");
    }
}
