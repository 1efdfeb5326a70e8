//! The owners and dependents of all objects of deletable resources. Upstream:
//! `garbagecollector.GraphBuilder`.
//!
//! The graph only decides: it hands the effects of a change to the caller, as [`Effect`]s. A node
//! is *virtual* while it is known from others' owner references alone, and may turn out not to
//! exist.

use std::collections::{HashMap, VecDeque};

use super::nodes::{Dependents, Nodes};
pub use super::nodes::{Identity, Node, Scope};
use crate::lookup::Lookup;
use crate::objects::{Istr, Meta, OwnerReference, Uid};

pub const ORPHAN: &str = "orphan";
pub const FOREGROUND: &str = "foregroundDeletion";

/// The number of absent owners that are remembered.
const MAX_ABSENT_OWNERS: usize = 500;

/// The number of deleted objects that are remembered.
const MAX_DELETED: usize = 1000;

/// An effect of a change of the graph: a key for a queue, or an event.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    AttemptToDelete(Uid),
    /// As `AttemptToDelete`, but the key is added with backoff.
    AttemptToDeleteLater(Uid),
    AttemptToOrphan(Uid),
    /// `dependent` names an owner of another namespace.
    InvalidNamespace {
        dependent: Identity,
        owner: OwnerReference,
    },
}

/// The nodes of known objects and their owners, and the identities of owners and objects that are
/// gone.
#[derive(Default)]
pub struct Graph {
    pub(super) nodes: Nodes,
    absent: AbsentOwners,
    deleted: RecentlyDeleted,
}

impl Graph {
    pub fn get(&self, uid: &Uid) -> Option<&Node> {
        self.nodes.get(uid)
    }

    /// Returns the nodes of the dependents of `uid`.
    pub fn dependents(&self, uid: &Uid) -> impl Iterator<Item = &Node> {
        let dependents = self.nodes.get(uid).map(|node| node.dependents.iter());
        dependents.into_iter().flatten().filter_map(|dependent| self.nodes.get(dependent))
    }

    /// Returns the dependents whose reference to `uid` blocks its deletion.
    pub fn blocking_dependents(&self, uid: &Uid) -> impl Iterator<Item = &Node> {
        let blocks =
            |owner: &OwnerReference| owner.uid == *uid && owner.block_owner_deletion == Some(true);
        self.dependents(uid).filter(move |node| node.owners().iter().any(blocks))
    }

    /// Returns the identity by which a watch has shown the owner, if `reference` names it by
    /// another group or version. `None` also if it cannot own objects of `namespace`, the
    /// reference's.
    pub fn observed_identity(
        &self,
        reference: &OwnerReference,
        namespace: &Istr,
    ) -> Option<&Identity> {
        let node = self.nodes.get(&reference.uid).filter(|node| !node.is_virtual)?;
        let identity = &node.identity;
        let owner_namespace = &identity.scope.namespace;
        let may_own = owner_namespace.is_empty() || owner_namespace == namespace;
        if may_own && identity.differs_in_version(reference) { Some(identity) } else { None }
    }

    /// Returns whether `owner` is remembered as absent, and counts that as a use of the memory.
    pub fn is_absent(&mut self, owner: &Identity) -> bool {
        self.absent.contains(owner)
    }

    /// Forgets the absent owners if the API server has lost versions since they were added: they
    /// may exist again. `losses` is the number of such losses until now.
    pub fn forget_absent_after_loss(&mut self, losses: u64) {
        if self.absent.losses != losses {
            self.absent = AbsentOwners { losses, ..AbsentOwners::default() };
        }
    }

    /// Remembers `owner` as absent: a read has not found it.
    pub fn remember_absent(&mut self, owner: Identity) {
        self.absent.insert(owner);
    }

    /// Returns whether `uid` has an owner that does not exist and that no watch has shown. `absent`
    /// are its owners that were looked up and not found.
    pub fn has_unseen_owner(&self, uid: &Uid, absent: &[Uid]) -> bool {
        self.nodes.get(uid).is_some_and(|node| node.has_unseen_owner)
            || absent.iter().any(|owner| self.is_unseen(owner))
    }

    /// Returns whether no watch has shown `owner`: its node is known from references alone, and
    /// none of the last deletions was its own.
    fn is_unseen(&self, owner: &Uid) -> bool {
        self.nodes.get(owner).is_some_and(|node| node.is_virtual) && !self.deleted.contains(owner)
    }

    /// Records an object that a watch has shown as added or changed, and emits the effects. `old`
    /// is its last state, `None` if it was added.
    pub fn observe(
        &mut self,
        identity: Identity,
        old: Option<&Meta>,
        new: &Meta,
        emit: &mut dyn FnMut(Effect),
    ) {
        let (uid, name) = (identity.uid.clone(), identity.name.clone());
        match self.nodes.get(&uid) {
            None => {
                self.absent.forget(&identity);
                let node = Node {
                    identity,
                    owners: new.owner_references.clone(),
                    dependents: Dependents::default(),
                    being_deleted: new.is_being_deleted(),
                    deleting_dependents: new.is_being_deleted() && new.has_finalizer(FOREGROUND),
                    is_virtual: false,
                    has_unseen_owner: false,
                };
                self.nodes.insert(node);
                self.add_to_owners(&uid, new.owners(), emit);
            }
            Some(known) => {
                if known.is_virtual {
                    self.confirm_virtual(identity, emit);
                }
                self.change_owners(&uid, new, emit);
                if let Some(node) = self.nodes.get_mut(&uid) {
                    // A deletion ends only where the API server has lost it, as by a restored
                    // backup.
                    node.being_deleted = new.is_being_deleted();
                    node.deleting_dependents &= new.is_being_deleted();
                    // The cache drops the old object: the name is to stand in memory once.
                    node.identity.name = name;
                }
            }
        }
        self.handle_deletion_start(&uid, old, new, emit);
    }

    /// Makes a virtual node real by the identity that a watch has shown. Queues the dependents
    /// whose references differ from it.
    fn confirm_virtual(&mut self, observed: Identity, emit: &mut dyn FnMut(Effect)) {
        let uid = observed.uid.clone();
        if self.nodes.get(&uid).is_some_and(|node| node.identity != observed) {
            let (_, others) = self.partition_dependents(&uid, &observed);
            for dependent in others {
                let in_other_namespace = !observed.scope.namespace.is_empty()
                    && dependent.identity.scope.namespace != observed.scope.namespace;
                if in_other_namespace {
                    emit_invalid_namespace(&dependent, &uid, emit);
                }
                emit(Effect::AttemptToDelete(dependent.identity.uid.clone()));
            }
        }
        if let Some(node) = self.nodes.get_mut(&uid) {
            node.identity = observed;
            node.is_virtual = false;
        }
    }

    /// Updates the edges of `uid` to its owners, and queues the owners that it no longer blocks.
    fn change_owners(&mut self, uid: &Uid, new: &Meta, emit: &mut dyn FnMut(Effect)) {
        let Some(node) = self.nodes.get_mut(uid) else { return };
        if node.owners() == new.owners() {
            return;
        }
        node.has_unseen_owner = false;
        let old_owners = std::mem::replace(&mut node.owners, new.owner_references.clone());
        let old_owners = old_owners.as_deref().unwrap_or_default();
        let (old_by_uid, new_by_uid) = (
            Lookup::new(old_owners, |owner: &OwnerReference| &owner.uid),
            Lookup::new(new.owners(), |owner: &OwnerReference| &owner.uid),
        );
        for owner in old_owners {
            let now = new_by_uid.get(&owner.uid);
            let blocked = owner.block_owner_deletion == Some(true);
            let blocks = now.is_some_and(|now| now.block_owner_deletion == Some(true));
            if blocked && !blocks && self.nodes.contains_key(&owner.uid) {
                emit(Effect::AttemptToDelete(owner.uid.clone()));
            }
            if now.is_none() {
                self.remove_from_owner(uid, &owner.uid);
            }
        }
        let added: Vec<OwnerReference> =
            new.owners().iter().filter(|owner| !old_by_uid.contains(&owner.uid)).cloned().collect();
        self.add_to_owners(uid, &added, emit);
    }

    /// Adds `uid` to the dependents of `owners`. An owner without a node gets a virtual one. Queues
    /// `uid` if one of its references may be wrong.
    fn add_to_owners(
        &mut self,
        uid: &Uid,
        owners: &[OwnerReference],
        emit: &mut dyn FnMut(Effect),
    ) {
        let Some(node) = self.nodes.get(uid) else { return };
        let (namespace, identity) = (node.identity.scope.namespace.clone(), node.identity.clone());
        // Whether a reference may be wrong, so that the owners of `uid` are to be read.
        let mut needs_check = false;
        for owner in owners {
            let Some(known) = self.nodes.get_mut(&owner.uid) else {
                let virtual_owner = Node {
                    identity: Identity::of_owner(owner, &namespace),
                    owners: None,
                    dependents: Dependents::from([uid.clone()]),
                    being_deleted: false,
                    deleting_dependents: false,
                    is_virtual: true,
                    has_unseen_owner: false,
                };
                self.nodes.insert(virtual_owner);
                // The attempt to delete it finds out whether it exists.
                emit(Effect::AttemptToDelete(owner.uid.clone()));
                continue;
            };
            known.dependents.insert(uid.clone());
            if needs_check {
                continue;
            }
            let in_other_namespace = known.identity.scope.namespace != namespace;
            if !known.identity.scope.namespace.is_empty() && in_other_namespace {
                if !known.is_virtual {
                    let (dependent, owner) = (identity.clone(), owner.clone());
                    emit(Effect::InvalidNamespace { dependent, owner });
                }
                needs_check = true;
            } else if !known.identity.is_named_by(owner) || (in_other_namespace && known.is_virtual)
            {
                needs_check = true;
            }
        }
        if needs_check {
            emit(Effect::AttemptToDelete(uid.clone()));
        }
    }

    /// Removes `uid` from the dependents of `owner`.
    fn remove_from_owner(&mut self, uid: &Uid, owner: &Uid) {
        if let Some(owner) = self.nodes.get_mut(owner) {
            owner.dependents.remove(uid);
        }
    }

    /// Starts the work for a deletion that has just begun to wait for the garbage collector, under
    /// the finalizer `orphan` or `foregroundDeletion`: queues the object, and in the foreground its
    /// dependents too.
    fn handle_deletion_start(
        &mut self,
        uid: &Uid,
        old: Option<&Meta>,
        new: &Meta,
        emit: &mut dyn FnMut(Effect),
    ) {
        let waits =
            |meta: &Meta, finalizer| meta.is_being_deleted() && meta.has_finalizer(finalizer);
        let starts =
            |finalizer| waits(new, finalizer) && !old.is_some_and(|old| waits(old, finalizer));
        if starts(ORPHAN) {
            emit(Effect::AttemptToOrphan(uid.clone()));
        } else if starts(FOREGROUND) {
            let Some(node) = self.nodes.get_mut(uid) else { return };
            node.deleting_dependents = true;
            for dependent in node.dependents.iter() {
                emit(Effect::AttemptToDelete(dependent.clone()));
            }
            emit(Effect::AttemptToDelete(uid.clone()));
        }
    }

    /// Removes an object whose deletion a watch has shown, and remembers that it is gone. A virtual
    /// node gets the shown identity before.
    pub fn handle_deletion(&mut self, identity: &Identity, emit: &mut dyn FnMut(Effect)) {
        self.deleted.insert(identity.uid.clone());
        let Some(node) = self.nodes.get(&identity.uid) else { return };
        if node.is_virtual {
            self.confirm_virtual(identity.clone(), emit);
        }
        self.remove(identity, emit);
    }

    /// Handles that a read has not found the object, though no watch has shown its deletion.
    /// Removes the node, or tries the next identity by which its dependents name it.
    /// Upstream: a "virtual delete event".
    pub fn handle_absence(&mut self, identity: &Identity, emit: &mut dyn FnMut(Effect)) {
        let Some(node) = self.nodes.get(&identity.uid) else { return };
        let (node_identity, is_virtual) = (node.identity.clone(), node.is_virtual);
        let (matching, others) = self.partition_dependents(&identity.uid, identity);
        if self.is_unseen(&identity.uid) {
            for dependent in &matching {
                if let Some(node) = self.nodes.get_mut(&dependent.identity.uid) {
                    node.has_unseen_owner = true;
                }
            }
        }
        // The object is gone: no dependent of the virtual node names it by another identity, or a
        // real node has the identity that was read.
        if is_virtual && others.is_empty() || !is_virtual && node_identity == *identity {
            return self.remove(identity, emit);
        }
        if !matching.is_empty() {
            self.absent.insert(identity.clone());
            for dependent in &matching {
                emit(Effect::AttemptToDelete(dependent.identity.uid.clone()));
            }
        }
        // Some dependents name this uid by another identity: that is read next.
        if is_virtual
            && node_identity == *identity
            && let Some(other) = alternate_identity(&others, identity)
            && let Some(node) = self.nodes.get_mut(&identity.uid)
        {
            node.identity = other;
            emit(Effect::AttemptToDeleteLater(identity.uid.clone()));
        }
    }

    /// Removes the node, and queues its dependents and the owners that wait for its deletion. Its
    /// dependents find it among the absent objects from now on.
    fn remove(&mut self, identity: &Identity, emit: &mut dyn FnMut(Effect)) {
        let Some(node) = self.nodes.remove(&identity.uid) else { return };
        for owner in node.owners() {
            self.remove_from_owner(&identity.uid, &owner.uid);
        }
        if !node.dependents.is_empty() {
            self.absent.insert(identity.clone());
        }
        // A dependent that names it by a version that is not served cannot look it up later.
        for dependent in node.dependents.iter().filter_map(|uid| self.nodes.get(uid)) {
            let owners = dependent.owners().iter();
            for owner in owners.filter(|owner| identity.differs_in_version(owner)) {
                self.absent.insert(identity.in_version(&owner.api_version));
            }
        }
        for dependent in node.dependents.iter() {
            emit(Effect::AttemptToDelete(dependent.clone()));
        }
        for owner in node.owners() {
            if self.nodes.get(&owner.uid).is_some_and(|owner| owner.deleting_dependents) {
                emit(Effect::AttemptToDelete(owner.uid.clone()));
            }
        }
    }

    /// Splits the dependents of `uid` into those whose references match `owner`, returned first,
    /// and those whose references do not. One with several references may be in both.
    fn partition_dependents(&self, uid: &Uid, owner: &Identity) -> (Vec<Node>, Vec<Node>) {
        let (mut matching, mut others) = (Vec::new(), Vec::new());
        for dependent in self.dependents(uid) {
            let namespace = &owner.scope.namespace;
            let in_other_namespace =
                !namespace.is_empty() && *namespace != dependent.identity.scope.namespace;
            let references = || dependent.owners().iter().filter(|reference| reference.uid == *uid);
            let matches =
                !in_other_namespace && references().any(|reference| owner.is_named_by(reference));
            let differs =
                in_other_namespace || references().any(|reference| !owner.is_named_by(reference));
            if matches {
                matching.push(dependent.clone());
            }
            if differs {
                others.push(dependent.clone());
            }
        }
        (matching, others)
    }
}

/// Emits that `dependent` names `owner`, which is in another namespace.
fn emit_invalid_namespace(dependent: &Node, owner: &Uid, emit: &mut dyn FnMut(Effect)) {
    if let Some(owner) = dependent.owners().iter().find(|reference| reference.uid == *owner) {
        let (dependent, owner) = (dependent.identity.clone(), owner.clone());
        emit(Effect::InvalidNamespace { dependent, owner });
    }
}

/// Returns the identity that follows `absent` among those by which `dependents` name its uid. The
/// order is fixed and circular, so that every identity is tried.
fn alternate_identity(dependents: &[Node], absent: &Identity) -> Option<Identity> {
    let cluster_scoped = absent.scope.namespace.is_empty();
    let mut others: Vec<Identity> = Vec::new();
    for dependent in dependents {
        let own_namespace = &dependent.identity.scope.namespace;
        for owner in dependent.owners().iter().filter(|owner| owner.uid == absent.uid) {
            let same_place = cluster_scoped || absent.scope.namespace == *own_namespace;
            if absent.is_named_by(owner) && same_place {
                continue;
            }
            let mut other = Identity::of_owner(owner, own_namespace);
            // The same kind and version is cluster-scoped too.
            if cluster_scoped {
                let cluster = other.in_namespace(&Istr::default());
                if cluster.scope == absent.scope {
                    other = cluster;
                }
            }
            if other != *absent {
                others.push(other);
            }
        }
    }
    others.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
    let following = others.iter().find(|other| absent.sort_key() < other.sort_key());
    following.or(others.first()).cloned()
}

/// The owners that were found not to exist: the most recently used ones, an LRU cache.
/// Upstream: `ReferenceCache`.
#[derive(Default)]
struct AbsentOwners {
    /// Each owner with the number of its last use.
    last_uses: HashMap<Identity, u64>,
    /// The number of uses until now: a clock for `last_uses`.
    uses: u64,
    /// The number of losses of versions when the first of them was added.
    losses: u64,
}

impl AbsentOwners {
    /// Forgets an owner that a watch has shown: it exists again, as after a restore of a backup.
    fn forget(&mut self, owner: &Identity) {
        if !self.last_uses.is_empty() {
            self.last_uses.remove(owner);
        }
    }

    /// Returns whether the owner is known to be absent, and counts that as a use.
    fn contains(&mut self, owner: &Identity) -> bool {
        self.uses += 1;
        match self.last_uses.get_mut(owner) {
            Some(last_use) => {
                *last_use = self.uses;
                true
            }
            None => false,
        }
    }

    /// Remembers an absent owner, and forgets the one that was not used for the longest time if
    /// there are too many.
    fn insert(&mut self, owner: Identity) {
        self.uses += 1;
        if self.last_uses.insert(owner, self.uses).is_none()
            && self.last_uses.len() > MAX_ABSENT_OWNERS
        {
            let oldest = self.last_uses.iter().min_by_key(|(_, used)| **used);
            if let Some(oldest) = oldest.map(|(owner, _)| owner.clone()) {
                self.last_uses.remove(&oldest);
            }
        }
    }
}

/// The objects whose deletions were last observed, the oldest first; at most [`MAX_DELETED`].
#[derive(Default)]
struct RecentlyDeleted(VecDeque<Uid>);

impl RecentlyDeleted {
    fn contains(&self, uid: &Uid) -> bool {
        self.0.contains(uid)
    }

    /// Adds a uid, in place of the oldest one if there are [`MAX_DELETED`].
    fn insert(&mut self, uid: Uid) {
        if self.0.len() == MAX_DELETED {
            self.0.pop_front();
        }
        self.0.push_back(uid);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::objects::ArcStr;

    fn meta(value: Value) -> Meta {
        serde_json::from_value(value).unwrap()
    }

    fn identity(kind: &str, namespace: &str, name: &str) -> Identity {
        let scope =
            Scope { kind: kind.into(), api_version: "v1".into(), namespace: namespace.into() };
        Identity { scope: scope.shared(), name: name.into(), uid: Uid::new(name) }
    }

    fn owned_by(owner: &str, block: bool) -> Value {
        json!({ "ownerReferences": [{
            "apiVersion": "v1", "kind": "Owner", "name": owner, "uid": owner,
            "blockOwnerDeletion": block,
        }]})
    }

    /// A graph with the effects of its last change.
    #[derive(Default)]
    struct TestGraph {
        graph: Graph,
        effects: Vec<Effect>,
    }

    impl TestGraph {
        fn observe(&mut self, id: &Identity, old: Option<Value>, new: Value) -> Vec<Effect> {
            let (old, effects) = (old.map(meta), &mut self.effects);
            self.graph
                .observe(id.clone(), old.as_ref(), &meta(new), &mut |emit| effects.push(emit));
            std::mem::take(effects)
        }
        fn deleted(&mut self, id: &Identity) -> Vec<Effect> {
            let effects = &mut self.effects;
            self.graph.handle_deletion(id, &mut |emit| effects.push(emit));
            std::mem::take(effects)
        }
        fn absent(&mut self, id: &Identity) -> Vec<Effect> {
            let effects = &mut self.effects;
            self.graph.handle_absence(id, &mut |emit| effects.push(emit));
            std::mem::take(effects)
        }
    }

    fn delete(uid: &str) -> Effect {
        Effect::AttemptToDelete(Uid::new(uid))
    }

    #[test]
    fn an_owner_that_goes_wakes_its_dependents() {
        let mut graph = TestGraph::default();
        let (owner, child) = (identity("Owner", "a", "owner"), identity("Pod", "a", "child"));
        // The dependent comes first: its owner is virtual, and is looked up.
        assert_eq!(graph.observe(&child, None, owned_by("owner", true)), [delete("owner")]);
        assert!(graph.graph.get(&owner.uid).unwrap().is_virtual);
        assert_eq!(graph.observe(&owner, None, json!({})), []);
        assert!(!graph.graph.get(&owner.uid).unwrap().is_virtual);
        assert_eq!(graph.deleted(&owner), [delete("child")]);
        assert!(graph.graph.is_absent(&owner));
        assert_eq!(graph.deleted(&child), []);
        assert!(graph.graph.nodes.is_empty());
    }

    #[test]
    fn an_owner_is_found_by_its_uid_under_another_version() {
        // The namespace of the owner, how its dependent in `a` names it, whether the graph has it
        // under another version, and whether the dependent knows that it went.
        for (namespace, api_version, kind, is_found, is_absent) in [
            ("a", "old/v1", "Owner", true, true),
            ("", "old/v1", "Owner", true, true),
            ("b", "old/v1", "Owner", false, false),
            ("a", "old/v1", "Other", false, false),
            ("a", "v1", "Owner", false, true),
        ] {
            let case = format!("{namespace} {api_version} {kind}");
            let mut graph = TestGraph::default();
            let owner = identity("Owner", namespace, "owner");
            let child = identity("Pod", "a", "child");
            let owned = json!({ "ownerReferences": [{
                "apiVersion": api_version, "kind": kind, "name": "owner", "uid": "owner",
            }]});
            let reference = meta(owned.clone()).owners()[0].clone();
            graph.observe(&child, None, owned);
            assert_eq!(
                graph.graph.observed_identity(&reference, &child.scope.namespace),
                None,
                "{case}"
            );
            graph.observe(&owner, None, json!({}));
            let found = graph.graph.observed_identity(&reference, &child.scope.namespace);
            assert_eq!(found, is_found.then_some(&owner), "{case}");
            graph.deleted(&owner);
            let named = Identity::of_owner(&reference, &child.scope.namespace);
            let cluster = named.in_namespace(&Istr::default());
            let absent = graph.graph.is_absent(&named) || graph.graph.is_absent(&cluster);
            assert_eq!(absent, is_absent, "{case}");
        }
    }

    #[test]
    fn a_node_has_its_name_from_the_newest_object() {
        let mut graph = TestGraph::default();
        graph.observe(&identity("Pod", "a", "x"), None, json!({}));
        let newer = identity("Pod", "a", "x");
        graph.observe(&newer, Some(json!({})), json!({}));
        assert!(ArcStr::ptr_eq(&graph.graph.get(&newer.uid).unwrap().identity.name, &newer.name));
    }

    #[test]
    fn a_deletion_that_the_server_has_lost_is_forgotten() {
        let mut graph = TestGraph::default();
        let (object, going) = (
            identity("Pod", "a", "x"),
            json!({ "deletionTimestamp": "2026-05-01T10:00:00Z", "finalizers": [FOREGROUND] }),
        );
        graph.observe(&object, None, json!({}));
        graph.observe(&object, Some(json!({})), going.clone());
        let flags = |graph: &TestGraph| {
            let node = graph.graph.get(&object.uid).unwrap();
            (node.being_deleted, node.deleting_dependents)
        };
        assert_eq!(flags(&graph), (true, true));
        graph.observe(&object, Some(going), json!({}));
        assert_eq!(flags(&graph), (false, false));
    }

    #[test]
    fn a_virtual_owner_that_is_absent_goes() {
        let mut graph = TestGraph::default();
        let child = identity("Pod", "a", "child");
        graph.observe(&child, None, owned_by("owner", false));
        assert_eq!(graph.absent(&identity("Owner", "a", "owner")), [delete("child")]);
        assert!(graph.graph.get(&Uid::new("owner")).is_none());
    }

    #[test]
    fn dependents_whose_absent_owner_no_watch_has_shown_are_marked() {
        let owner = identity("Owner", "a", "owner");
        let abroad = identity("Owner", "b", "owner");
        let (child, other) = (identity("Pod", "a", "child"), identity("Pod", "b", "other"));
        let sibling = identity("Pod", "a", "sibling");
        type Step<'a> = &'a dyn Fn(&mut TestGraph);
        let refers: Step = &|graph| drop(graph.observe(&child, None, owned_by("owner", false)));
        let other_refers: Step =
            &|graph| drop(graph.observe(&other, None, owned_by("owner", false)));
        let sibling_refers: Step =
            &|graph| drop(graph.observe(&sibling, None, owned_by("owner", false)));
        let appears: Step = &|graph| drop(graph.observe(&owner, None, json!({})));
        let goes: Step = &|graph| drop(graph.deleted(&owner));
        let is_absent: Step = &|graph| drop(graph.absent(&owner));
        let is_absent_abroad: Step = &|graph| drop(graph.absent(&abroad));
        let lets_go: Step = &|graph| {
            drop(graph.observe(&child, Some(owned_by("owner", false)), json!({})));
        };
        for (case, steps, expected) in [
            ("restored", &[refers, is_absent][..], true),
            ("restored later", &[sibling_refers, is_absent, refers, is_absent], true),
            ("deleted", &[appears, refers, goes], false),
            ("deleted before its dependent", &[appears, goes, refers, is_absent], false),
            ("deleted, shown after its dependent", &[refers, appears, goes], false),
            ("shown by its deletion alone", &[refers, goes], false),
            ("its deletion was missed", &[appears, refers, is_absent], false),
            ("absent from another namespace", &[refers, other_refers, is_absent_abroad], false),
            ("absent from both", &[other_refers, refers, is_absent_abroad, is_absent], true),
            ("of another owner since", &[refers, is_absent, lets_go], false),
        ] {
            let mut graph = TestGraph::default();
            steps.iter().for_each(|step| step(&mut graph));
            assert_eq!(graph.graph.has_unseen_owner(&child.uid, &[]), expected, "{case}");
        }
        // The same if the owner is looked up for the child before it is for itself.
        for (case, steps, expected) in [
            ("restored", &[refers][..], true),
            ("restored after one of another namespace", &[other_refers, refers], true),
            ("there", &[other_refers, refers, appears], false),
            ("deleted", &[appears, refers, goes], false),
            ("deleted before its dependent", &[appears, goes, refers], false),
        ] {
            let mut graph = TestGraph::default();
            steps.iter().for_each(|step| step(&mut graph));
            let found = graph.graph.has_unseen_owner(&child.uid, std::slice::from_ref(&owner.uid));
            assert_eq!(found, expected, "{case}");
        }
    }

    #[test]
    fn the_objects_that_went_last_are_remembered() {
        let mut deleted = RecentlyDeleted::default();
        let uid = |number: usize| Uid::new(&number.to_string());
        (0..=MAX_DELETED).for_each(|number| deleted.insert(uid(number)));
        assert!(!deleted.contains(&uid(0)) && deleted.contains(&uid(1)));
        assert!(deleted.contains(&uid(MAX_DELETED)));
    }

    #[test]
    fn dependents_of_another_namespace_are_told_apart() {
        let mut graph = TestGraph::default();
        let (good, bad) = (identity("Pod", "a", "good"), identity("Pod", "b", "bad"));
        let owner = identity("Owner", "a", "owner");
        graph.observe(&bad, None, owned_by("owner", false));
        // The second dependent disagrees with the first on where the owner is.
        assert_eq!(graph.observe(&good, None, owned_by("owner", false)), [delete("good")]);
        // Not found in namespace b: the dependents there are woken, and namespace a is tried next.
        let later = Effect::AttemptToDeleteLater(Uid::new("owner"));
        assert_eq!(graph.absent(&identity("Owner", "b", "owner")), [delete("bad"), later]);
        assert_eq!(graph.graph.get(&owner.uid).unwrap().identity, owner);
        assert_eq!(graph.observe(&owner, None, json!({})), []);
        // A reference made now, across namespaces, is reported.
        let late = identity("Pod", "c", "late");
        let effects = graph.observe(&late, None, owned_by("owner", false));
        assert!(matches!(
            &effects[..],
            [Effect::InvalidNamespace { .. }, Effect::AttemptToDelete(_)]
        ));
    }

    #[test]
    fn foreground_deletion_waits_for_blocking_dependents() {
        let mut graph = TestGraph::default();
        let (owner, child) = (identity("Owner", "a", "owner"), identity("Pod", "a", "child"));
        graph.observe(&owner, None, json!({}));
        graph.observe(&child, None, owned_by("owner", true));
        let dying = json!({
            "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["foregroundDeletion"],
        });
        let effects = graph.observe(&owner, Some(json!({})), dying.clone());
        assert_eq!(effects, [delete("child"), delete("owner")]);
        assert_eq!(graph.observe(&owner, Some(dying.clone()), dying), [], "queued once");
        assert_eq!(graph.graph.blocking_dependents(&owner.uid).count(), 1);
        // No longer blocking: the owner is processed again.
        let unblocked = owned_by("owner", false);
        assert_eq!(
            graph.observe(&child, Some(owned_by("owner", true)), unblocked),
            [delete("owner")]
        );
        assert!(graph.graph.blocking_dependents(&owner.uid).next().is_none());
        assert_eq!(graph.deleted(&child), [delete("owner")]);
    }

    #[test]
    fn an_orphaning_owner_is_told_once() {
        let mut graph = TestGraph::default();
        let owner = identity("Owner", "a", "owner");
        let dying =
            json!({ "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["orphan"] });
        let orphan = Effect::AttemptToOrphan(owner.uid.clone());
        assert_eq!(graph.observe(&owner, None, dying.clone()), [orphan]);
        assert_eq!(graph.observe(&owner, Some(dying.clone()), dying), []);
    }

    #[test]
    fn the_absent_owners_that_are_asked_for_are_remembered() {
        let mut graph = Graph::default();
        let owner = |number: usize| identity("Owner", "a", &number.to_string());
        for number in 0..MAX_ABSENT_OWNERS {
            graph.remember_absent(owner(number));
        }
        assert!(graph.is_absent(&owner(0)));
        graph.remember_absent(owner(MAX_ABSENT_OWNERS));
        graph.remember_absent(owner(MAX_ABSENT_OWNERS));
        assert!(graph.is_absent(&owner(0)) && !graph.is_absent(&owner(1)));
        assert!(graph.is_absent(&owner(2)) && graph.is_absent(&owner(MAX_ABSENT_OWNERS)));
    }

    #[test]
    fn one_wrong_reference_is_reported() {
        let mut graph = TestGraph::default();
        for owner in ["one", "two"] {
            graph.observe(&identity("Owner", "a", owner), None, json!({}));
        }
        let refer =
            |uid: &str| json!({ "apiVersion": "v1", "kind": "Owner", "name": uid, "uid": uid });
        let both = json!({ "ownerReferences": [refer("one"), refer("two")] });
        let effects = graph.observe(&identity("Pod", "b", "child"), None, both);
        let [Effect::InvalidNamespace { owner, .. }, woken] = &effects[..] else {
            panic!("{effects:?}");
        };
        assert_eq!((&*owner.name, woken), ("one", &delete("child")));
        assert_eq!(graph.graph.dependents(&Uid::new("two")).count(), 1);
    }
}
