//! Who depends on whom, over every deletable resource. Upstream: `garbagecollector.GraphBuilder`.
//!
//! The graph only decides: what its changes wake is handed to the caller as [`Wake`]s. A node is
//! *virtual* while it is known from others' owner references alone, and may turn out not to exist.

use std::collections::{HashMap, VecDeque};

use super::nodes::{Dependents, Nodes};
pub use super::nodes::{Identity, Node, Scope};
use crate::lookup::Lookup;
use crate::objects::{Istr, Meta, OwnerReference, Uid};

pub const ORPHAN: &str = "orphan";
pub const FOREGROUND: &str = "foregroundDeletion";

/// How many owners known to be absent are remembered.
const ABSENT_OWNERS: usize = 500;

/// How many objects that were seen to go are remembered.
const DELETED: usize = 1000;

/// What a change of the graph asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Wake {
    AttemptToDelete(Uid),
    /// The same, with backoff.
    AttemptToDeleteLater(Uid),
    AttemptToOrphan(Uid),
    /// `dependent` names an owner of another namespace.
    InvalidNamespace {
        dependent: Identity,
        owner: OwnerReference,
    },
}

#[derive(Default)]
pub struct Graph {
    pub(super) nodes: Nodes,
    absent: AbsentOwners,
    deleted: Deleted,
}

impl Graph {
    pub fn get(&self, uid: &Uid) -> Option<&Node> {
        self.nodes.get(uid)
    }

    pub fn dependents(&self, uid: &Uid) -> impl Iterator<Item = &Node> {
        let dependents = self.nodes.get(uid).map(|node| node.dependents.iter());
        dependents.into_iter().flatten().filter_map(|dependent| self.nodes.get(dependent))
    }

    /// Dependents whose reference to `uid` blocks its deletion.
    pub fn blocking_dependents(&self, uid: &Uid) -> impl Iterator<Item = &Node> {
        let blocks =
            |owner: &OwnerReference| owner.uid == *uid && owner.block_owner_deletion == Some(true);
        self.dependents(uid).filter(move |node| node.owners().iter().any(blocks))
    }

    /// The owner that `reference` in an object of `namespace` names by another group or version than
    /// the one that a watch shows it with.
    pub fn present_identity(
        &self,
        reference: &OwnerReference,
        namespace: &Istr,
    ) -> Option<&Identity> {
        let known = self.nodes.get(&reference.uid).filter(|node| !node.is_virtual)?;
        let known = &known.identity;
        let is_here = known.scope.namespace.is_empty() || known.scope.namespace == *namespace;
        (is_here && known.differs_in_version(reference)).then_some(known)
    }

    /// Counts as a use of what is remembered.
    pub fn is_absent(&mut self, owner: &Identity) -> bool {
        self.absent.contains(owner)
    }

    /// Forgets absent owners if the API server has lost versions since: they may be there again.
    /// `losses`: their number.
    pub fn forget_absent_before(&mut self, losses: u64) {
        if self.absent.losses != losses {
            self.absent = AbsentOwners { losses, ..AbsentOwners::default() };
        }
    }

    pub fn remember_absent(&mut self, owner: Identity) {
        self.absent.insert(owner);
    }

    /// Whether `uid` has an owner that does not exist, and that no watch has shown. `absent`: its
    /// owners that were looked up and not found.
    pub fn has_unseen_owner(&self, uid: &Uid, absent: &[Uid]) -> bool {
        self.nodes.get(uid).is_some_and(|node| node.has_unseen_owner)
            || absent.iter().any(|owner| self.is_unseen(owner))
    }

    /// Whether `owner` is known from references alone, and was not seen to go before they came.
    fn is_unseen(&self, owner: &Uid) -> bool {
        self.nodes.get(owner).is_some_and(|node| node.is_virtual) && !self.deleted.contains(owner)
    }

    /// An object was added or changed.
    pub fn observe(
        &mut self,
        identity: Identity,
        old: Option<&Meta>,
        new: &Meta,
        wake: &mut dyn FnMut(Wake),
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
                self.add_to_owners(&uid, new.owners(), wake);
            }
            Some(known) => {
                if known.is_virtual {
                    self.confirm(identity, wake);
                }
                self.change_owners(&uid, new, wake);
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
        self.start_deletion(&uid, old, new, wake);
    }

    /// A virtual node was seen: dependents that named it otherwise are processed again.
    fn confirm(&mut self, observed: Identity, wake: &mut dyn FnMut(Wake)) {
        let uid = observed.uid.clone();
        if self.nodes.get(&uid).is_some_and(|node| node.identity != observed) {
            let (_, strangers) = self.partition_dependents(&uid, &observed);
            for dependent in strangers {
                let elsewhere = !observed.scope.namespace.is_empty()
                    && dependent.identity.scope.namespace != observed.scope.namespace;
                if elsewhere {
                    report_namespace(&dependent, &uid, wake);
                }
                wake(Wake::AttemptToDelete(dependent.identity.uid.clone()));
            }
        }
        if let Some(node) = self.nodes.get_mut(&uid) {
            node.identity = observed;
            node.is_virtual = false;
        }
    }

    fn change_owners(&mut self, uid: &Uid, new: &Meta, wake: &mut dyn FnMut(Wake)) {
        let Some(node) = self.nodes.get_mut(uid) else { return };
        if node.owners() == new.owners() {
            return;
        }
        node.has_unseen_owner = false;
        let before = std::mem::replace(&mut node.owners, new.owner_references.clone());
        let before = before.as_deref().unwrap_or_default();
        let (then, current) = (
            Lookup::new(before, |owner: &OwnerReference| &owner.uid),
            Lookup::new(new.owners(), |owner: &OwnerReference| &owner.uid),
        );
        for owner in before {
            let now = current.get(&owner.uid);
            let blocked = owner.block_owner_deletion == Some(true);
            let blocks = now.is_some_and(|now| now.block_owner_deletion == Some(true));
            if blocked && !blocks && self.nodes.contains_key(&owner.uid) {
                wake(Wake::AttemptToDelete(owner.uid.clone()));
            }
            if now.is_none() {
                self.remove_from_owner(uid, &owner.uid);
            }
        }
        let added: Vec<OwnerReference> =
            new.owners().iter().filter(|owner| !then.has(&owner.uid)).cloned().collect();
        self.add_to_owners(uid, &added, wake);
    }

    fn add_to_owners(&mut self, uid: &Uid, owners: &[OwnerReference], wake: &mut dyn FnMut(Wake)) {
        let Some(node) = self.nodes.get(uid) else { return };
        let (namespace, identity) = (node.identity.scope.namespace.clone(), node.identity.clone());
        let mut doubtful = false;
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
                // Whether it exists at all is found out by trying to delete it.
                wake(Wake::AttemptToDelete(owner.uid.clone()));
                continue;
            };
            known.dependents.insert(uid.clone());
            if doubtful {
                continue;
            }
            let elsewhere = known.identity.scope.namespace != namespace;
            if !known.identity.scope.namespace.is_empty() && elsewhere {
                if !known.is_virtual {
                    let (dependent, owner) = (identity.clone(), owner.clone());
                    wake(Wake::InvalidNamespace { dependent, owner });
                }
                doubtful = true;
            } else if !known.identity.is_named_by(owner) || (elsewhere && known.is_virtual) {
                doubtful = true;
            }
        }
        if doubtful {
            wake(Wake::AttemptToDelete(uid.clone()));
        }
    }

    fn remove_from_owner(&mut self, uid: &Uid, owner: &Uid) {
        if let Some(owner) = self.nodes.get_mut(owner) {
            owner.dependents.remove(uid);
        }
    }

    fn start_deletion(
        &mut self,
        uid: &Uid,
        old: Option<&Meta>,
        new: &Meta,
        wake: &mut dyn FnMut(Wake),
    ) {
        let waits =
            |meta: &Meta, finalizer| meta.is_being_deleted() && meta.has_finalizer(finalizer);
        let starts =
            |finalizer| waits(new, finalizer) && !old.is_some_and(|old| waits(old, finalizer));
        if starts(ORPHAN) {
            wake(Wake::AttemptToOrphan(uid.clone()));
        } else if starts(FOREGROUND) {
            let Some(node) = self.nodes.get_mut(uid) else { return };
            node.deleting_dependents = true;
            for dependent in node.dependents.iter() {
                wake(Wake::AttemptToDelete(dependent.clone()));
            }
            wake(Wake::AttemptToDelete(uid.clone()));
        }
    }

    /// An object was seen to go.
    pub fn deleted(&mut self, identity: &Identity, wake: &mut dyn FnMut(Wake)) {
        self.deleted.insert(identity.uid.clone());
        let Some(node) = self.nodes.get(&identity.uid) else { return };
        if node.is_virtual {
            self.confirm(identity.clone(), wake);
        }
        self.remove(identity, wake);
    }

    /// The API has no such object, though no watch has said that it went.
    /// Upstream: a "virtual delete event".
    pub fn verified_absent(&mut self, identity: &Identity, wake: &mut dyn FnMut(Wake)) {
        let Some(node) = self.nodes.get(&identity.uid) else { return };
        let (known, is_virtual) = (node.identity.clone(), node.is_virtual);
        let (matching, others) = self.partition_dependents(&identity.uid, identity);
        if self.is_unseen(&identity.uid) {
            for dependent in &matching {
                if let Some(node) = self.nodes.get_mut(&dependent.identity.uid) {
                    node.has_unseen_owner = true;
                }
            }
        }
        if is_virtual && others.is_empty() || !is_virtual && known == *identity {
            return self.remove(identity, wake);
        }
        if !matching.is_empty() {
            self.absent.insert(identity.clone());
            for dependent in &matching {
                wake(Wake::AttemptToDelete(dependent.identity.uid.clone()));
            }
        }
        // Some dependents name this uid by other coordinates: those are looked up next.
        if is_virtual
            && known == *identity
            && let Some(other) = alternate_identity(&others, identity)
            && let Some(node) = self.nodes.get_mut(&identity.uid)
        {
            node.identity = other;
            wake(Wake::AttemptToDeleteLater(identity.uid.clone()));
        }
    }

    fn remove(&mut self, identity: &Identity, wake: &mut dyn FnMut(Wake)) {
        let Some(node) = self.nodes.remove(&identity.uid) else { return };
        for owner in node.owners() {
            self.remove_from_owner(&identity.uid, &owner.uid);
        }
        if !node.dependents.is_empty() {
            self.absent.insert(identity.clone());
        }
        // Those that name it by a version that is not served cannot look it up.
        for dependent in node.dependents.iter().filter_map(|uid| self.nodes.get(uid)) {
            let owners = dependent.owners().iter();
            for owner in owners.filter(|owner| identity.differs_in_version(owner)) {
                self.absent.insert(identity.in_version(&owner.api_version));
            }
        }
        for dependent in node.dependents.iter() {
            wake(Wake::AttemptToDelete(dependent.clone()));
        }
        for owner in node.owners() {
            if self.nodes.get(&owner.uid).is_some_and(|owner| owner.deleting_dependents) {
                wake(Wake::AttemptToDelete(owner.uid.clone()));
            }
        }
    }

    /// The dependents of `uid` that mean `owner`, and those that name `uid` some other way. One
    /// with several references may be both.
    fn partition_dependents(&self, uid: &Uid, owner: &Identity) -> (Vec<Node>, Vec<Node>) {
        let (mut matching, mut others) = (Vec::new(), Vec::new());
        for dependent in self.dependents(uid) {
            let namespace = &owner.scope.namespace;
            let elsewhere =
                !namespace.is_empty() && *namespace != dependent.identity.scope.namespace;
            let naming = || dependent.owners().iter().filter(|reference| reference.uid == *uid);
            let matches = !elsewhere && naming().any(|reference| owner.is_named_by(reference));
            let differs = elsewhere || naming().any(|reference| !owner.is_named_by(reference));
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

fn report_namespace(dependent: &Node, owner: &Uid, wake: &mut dyn FnMut(Wake)) {
    if let Some(owner) = dependent.owners().iter().find(|reference| reference.uid == *owner) {
        let (dependent, owner) = (dependent.identity.clone(), owner.clone());
        wake(Wake::InvalidNamespace { dependent, owner });
    }
}

/// The next way in which `dependents` name the uid of `absent`, in a fixed order, so that each way
/// is used.
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
            if cluster_scoped {
                let cluster = other.in_namespace(&Istr::default());
                other = if cluster.scope == absent.scope { cluster } else { other };
            }
            if other != *absent {
                others.push(other);
            }
        }
    }
    others.sort_by(|a, b| a.rank().cmp(&b.rank()));
    let following = others.iter().find(|other| absent.rank() < other.rank());
    following.or(others.first()).cloned()
}

/// The owners that were found not to exist: of many, those that were last asked for.
/// Upstream: `ReferenceCache`.
#[derive(Default)]
struct AbsentOwners {
    /// Each with the number of its last use.
    known: HashMap<Identity, u64>,
    uses: u64,
    /// The losses of versions before the first of them.
    losses: u64,
}

impl AbsentOwners {
    /// An owner that is there again: the API server was restored from a backup.
    fn forget(&mut self, owner: &Identity) {
        if !self.known.is_empty() {
            self.known.remove(owner);
        }
    }

    fn contains(&mut self, owner: &Identity) -> bool {
        self.uses += 1;
        self.known.get_mut(owner).map(|used| *used = self.uses).is_some()
    }

    fn insert(&mut self, owner: Identity) {
        self.uses += 1;
        if self.known.insert(owner, self.uses).is_none() && self.known.len() > ABSENT_OWNERS {
            let oldest = self.known.iter().min_by_key(|(_, used)| **used);
            if let Some(oldest) = oldest.map(|(owner, _)| owner.clone()) {
                self.known.remove(&oldest);
            }
        }
    }
}

/// The objects that were last seen to go.
#[derive(Default)]
struct Deleted(VecDeque<Uid>);

impl Deleted {
    fn contains(&self, uid: &Uid) -> bool {
        self.0.contains(uid)
    }

    fn insert(&mut self, uid: Uid) {
        if self.0.len() == DELETED {
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

    struct World(Graph, Vec<Wake>);

    impl World {
        fn observe(&mut self, id: &Identity, old: Option<Value>, new: Value) -> Vec<Wake> {
            let (old, wakes) = (old.map(meta), &mut self.1);
            self.0.observe(id.clone(), old.as_ref(), &meta(new), &mut |wake| wakes.push(wake));
            std::mem::take(wakes)
        }
        fn deleted(&mut self, id: &Identity) -> Vec<Wake> {
            let wakes = &mut self.1;
            self.0.deleted(id, &mut |wake| wakes.push(wake));
            std::mem::take(wakes)
        }
        fn absent(&mut self, id: &Identity) -> Vec<Wake> {
            let wakes = &mut self.1;
            self.0.verified_absent(id, &mut |wake| wakes.push(wake));
            std::mem::take(wakes)
        }
    }

    fn delete(uid: &str) -> Wake {
        Wake::AttemptToDelete(Uid::new(uid))
    }

    #[test]
    fn an_owner_that_goes_wakes_its_dependents() {
        let mut world = World(Graph::default(), Vec::new());
        let (owner, child) = (identity("Owner", "a", "owner"), identity("Pod", "a", "child"));
        // The dependent comes first: its owner is virtual, and is looked up.
        assert_eq!(world.observe(&child, None, owned_by("owner", true)), [delete("owner")]);
        assert!(world.0.get(&owner.uid).unwrap().is_virtual);
        assert_eq!(world.observe(&owner, None, json!({})), []);
        assert!(!world.0.get(&owner.uid).unwrap().is_virtual);
        assert_eq!(world.deleted(&owner), [delete("child")]);
        assert!(world.0.is_absent(&owner));
        assert_eq!(world.deleted(&child), []);
        assert!(world.0.nodes.is_empty());
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
            let mut world = World(Graph::default(), Vec::new());
            let owner = identity("Owner", namespace, "owner");
            let child = identity("Pod", "a", "child");
            let owned = json!({ "ownerReferences": [{
                "apiVersion": api_version, "kind": kind, "name": "owner", "uid": "owner",
            }]});
            let reference = meta(owned.clone()).owners()[0].clone();
            world.observe(&child, None, owned);
            assert_eq!(
                world.0.present_identity(&reference, &child.scope.namespace),
                None,
                "{case}"
            );
            world.observe(&owner, None, json!({}));
            let found = world.0.present_identity(&reference, &child.scope.namespace);
            assert_eq!(found, is_found.then_some(&owner), "{case}");
            world.deleted(&owner);
            let named = Identity::of_owner(&reference, &child.scope.namespace);
            let cluster = named.in_namespace(&Istr::default());
            let absent = world.0.is_absent(&named) || world.0.is_absent(&cluster);
            assert_eq!(absent, is_absent, "{case}");
        }
    }

    #[test]
    fn a_node_has_its_name_from_the_newest_object() {
        let mut world = World(Graph::default(), Vec::new());
        world.observe(&identity("Pod", "a", "x"), None, json!({}));
        let again = identity("Pod", "a", "x");
        world.observe(&again, Some(json!({})), json!({}));
        assert!(ArcStr::ptr_eq(&world.0.get(&again.uid).unwrap().identity.name, &again.name));
    }

    #[test]
    fn a_deletion_that_the_server_has_lost_is_forgotten() {
        let mut world = World(Graph::default(), Vec::new());
        let (object, going) = (
            identity("Pod", "a", "x"),
            json!({ "deletionTimestamp": "2026-05-01T10:00:00Z", "finalizers": [FOREGROUND] }),
        );
        world.observe(&object, None, json!({}));
        world.observe(&object, Some(json!({})), going.clone());
        let flags = |world: &World| {
            let node = world.0.get(&object.uid).unwrap();
            (node.being_deleted, node.deleting_dependents)
        };
        assert_eq!(flags(&world), (true, true));
        world.observe(&object, Some(going), json!({}));
        assert_eq!(flags(&world), (false, false));
    }

    #[test]
    fn a_virtual_owner_that_is_absent_goes() {
        let mut world = World(Graph::default(), Vec::new());
        let child = identity("Pod", "a", "child");
        world.observe(&child, None, owned_by("owner", false));
        assert_eq!(world.absent(&identity("Owner", "a", "owner")), [delete("child")]);
        assert!(world.0.get(&Uid::new("owner")).is_none());
    }

    #[test]
    fn dependents_whose_absent_owner_no_watch_has_shown_are_marked() {
        let owner = identity("Owner", "a", "owner");
        let abroad = identity("Owner", "b", "owner");
        let (child, other) = (identity("Pod", "a", "child"), identity("Pod", "b", "other"));
        let sibling = identity("Pod", "a", "sibling");
        type Step<'a> = &'a dyn Fn(&mut World);
        let refers: Step = &|world| drop(world.observe(&child, None, owned_by("owner", false)));
        let other_refers: Step =
            &|world| drop(world.observe(&other, None, owned_by("owner", false)));
        let sibling_refers: Step =
            &|world| drop(world.observe(&sibling, None, owned_by("owner", false)));
        let appears: Step = &|world| drop(world.observe(&owner, None, json!({})));
        let goes: Step = &|world| drop(world.deleted(&owner));
        let is_absent: Step = &|world| drop(world.absent(&owner));
        let is_absent_abroad: Step = &|world| drop(world.absent(&abroad));
        let lets_go: Step = &|world| {
            drop(world.observe(&child, Some(owned_by("owner", false)), json!({})));
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
            let mut world = World(Graph::default(), Vec::new());
            steps.iter().for_each(|step| step(&mut world));
            assert_eq!(world.0.has_unseen_owner(&child.uid, &[]), expected, "{case}");
        }
        // The same if the owner is looked up for the child before it is for itself.
        for (case, steps, expected) in [
            ("restored", &[refers][..], true),
            ("restored after one of another namespace", &[other_refers, refers], true),
            ("there", &[other_refers, refers, appears], false),
            ("deleted", &[appears, refers, goes], false),
            ("deleted before its dependent", &[appears, goes, refers], false),
        ] {
            let mut world = World(Graph::default(), Vec::new());
            steps.iter().for_each(|step| step(&mut world));
            let found = world.0.has_unseen_owner(&child.uid, std::slice::from_ref(&owner.uid));
            assert_eq!(found, expected, "{case}");
        }
    }

    #[test]
    fn the_objects_that_went_last_are_remembered() {
        let mut deleted = Deleted::default();
        let uid = |number: usize| Uid::new(&number.to_string());
        (0..=DELETED).for_each(|number| deleted.insert(uid(number)));
        assert!(!deleted.contains(&uid(0)) && deleted.contains(&uid(1)));
        assert!(deleted.contains(&uid(DELETED)));
    }

    #[test]
    fn dependents_of_another_namespace_are_told_apart() {
        let mut world = World(Graph::default(), Vec::new());
        let (good, bad) = (identity("Pod", "a", "good"), identity("Pod", "b", "bad"));
        let owner = identity("Owner", "a", "owner");
        world.observe(&bad, None, owned_by("owner", false));
        // The second dependent disagrees with the first on where the owner is.
        assert_eq!(world.observe(&good, None, owned_by("owner", false)), [delete("good")]);
        // Not found in namespace b: the dependents there are woken, and namespace a is tried next.
        let later = Wake::AttemptToDeleteLater(Uid::new("owner"));
        assert_eq!(world.absent(&identity("Owner", "b", "owner")), [delete("bad"), later]);
        assert_eq!(world.0.get(&owner.uid).unwrap().identity, owner);
        assert_eq!(world.observe(&owner, None, json!({})), []);
        // A reference made now, across namespaces, is reported.
        let late = identity("Pod", "c", "late");
        let wakes = world.observe(&late, None, owned_by("owner", false));
        assert!(matches!(&wakes[..], [Wake::InvalidNamespace { .. }, Wake::AttemptToDelete(_)]));
    }

    #[test]
    fn foreground_deletion_waits_for_blocking_dependents() {
        let mut world = World(Graph::default(), Vec::new());
        let (owner, child) = (identity("Owner", "a", "owner"), identity("Pod", "a", "child"));
        world.observe(&owner, None, json!({}));
        world.observe(&child, None, owned_by("owner", true));
        let dying = json!({
            "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["foregroundDeletion"],
        });
        let wakes = world.observe(&owner, Some(json!({})), dying.clone());
        assert_eq!(wakes, [delete("child"), delete("owner")]);
        assert_eq!(world.observe(&owner, Some(dying.clone()), dying), [], "queued once");
        assert_eq!(world.0.blocking_dependents(&owner.uid).count(), 1);
        // No longer blocking: the owner is processed again.
        let unblocked = owned_by("owner", false);
        assert_eq!(
            world.observe(&child, Some(owned_by("owner", true)), unblocked),
            [delete("owner")]
        );
        assert!(world.0.blocking_dependents(&owner.uid).next().is_none());
        assert_eq!(world.deleted(&child), [delete("owner")]);
    }

    #[test]
    fn an_orphaning_owner_is_told_once() {
        let mut world = World(Graph::default(), Vec::new());
        let owner = identity("Owner", "a", "owner");
        let dying =
            json!({ "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["orphan"] });
        let orphan = Wake::AttemptToOrphan(owner.uid.clone());
        assert_eq!(world.observe(&owner, None, dying.clone()), [orphan]);
        assert_eq!(world.observe(&owner, Some(dying.clone()), dying), []);
    }

    #[test]
    fn the_absent_owners_that_are_asked_for_are_remembered() {
        let mut graph = Graph::default();
        let owner = |number: usize| identity("Owner", "a", &number.to_string());
        for number in 0..ABSENT_OWNERS {
            graph.remember_absent(owner(number));
        }
        assert!(graph.is_absent(&owner(0)));
        graph.remember_absent(owner(ABSENT_OWNERS));
        graph.remember_absent(owner(ABSENT_OWNERS));
        assert!(graph.is_absent(&owner(0)) && !graph.is_absent(&owner(1)));
        assert!(graph.is_absent(&owner(2)) && graph.is_absent(&owner(ABSENT_OWNERS)));
    }

    #[test]
    fn one_wrong_reference_is_reported() {
        let mut world = World(Graph::default(), Vec::new());
        for owner in ["one", "two"] {
            world.observe(&identity("Owner", "a", owner), None, json!({}));
        }
        let refer =
            |uid: &str| json!({ "apiVersion": "v1", "kind": "Owner", "name": uid, "uid": uid });
        let both = json!({ "ownerReferences": [refer("one"), refer("two")] });
        let wakes = world.observe(&identity("Pod", "b", "child"), None, both);
        let [Wake::InvalidNamespace { owner, .. }, woken] = &wakes[..] else {
            panic!("{wakes:?}");
        };
        assert_eq!((&*owner.name, woken), ("one", &delete("child")));
        assert_eq!(world.0.dependents(&Uid::new("two")).count(), 1);
    }
}
