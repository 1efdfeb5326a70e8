//! The watched objects, and the pods that refer to them: a machine without I/O.
//! Upstream: `objectCache`, `cacheBasedManager`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kube_controller_manager::task::StopToken;

use super::{Contents, Key, Kind, Known};
use crate::pod::Uid;

/// The objects that registered pods refer to. Each has at most one watch, however many pods use it.
#[derive(Default)]
pub(super) struct Registry {
    pods: BTreeMap<Uid, BTreeSet<Key>>,
    items: BTreeMap<Key, Item>,
    /// The number of watches so far.
    watches: u64,
}

struct Item {
    known: Known,
    users: BTreeSet<Uid>,
    /// When it was read last, by the monotonic clock.
    read: Duration,
    watch: Watch,
}

/// Whether changes of an object are followed.
enum Watch {
    Open {
        id: u64,
        stop: StopToken,
    },
    /// It has not been read for some time: its next reader has it watched again.
    Idle,
    /// It is immutable: the known state stays.
    Closed,
}

/// A watch that has to be started.
pub(super) struct NewWatch {
    pub(super) key: Key,
    /// Changes that are reported under another id than the last one of a key are ignored.
    pub(super) id: u64,
    pub(super) stop: StopToken,
}

impl Registry {
    /// Records that the pod refers to these objects, and to no others any more. Returns the watches
    /// to start, which have to end with `stop`.
    pub(super) fn register(
        &mut self,
        uid: &Uid,
        keys: BTreeSet<Key>,
        now: Duration,
        stop: &StopToken,
    ) -> Vec<NewWatch> {
        let before = self.pods.insert(uid.clone(), keys.clone()).unwrap_or_default();
        for key in before.difference(&keys) {
            self.release(key, uid);
        }
        let mut new = Vec::new();
        for key in keys.difference(&before) {
            if let Some(item) = self.items.get_mut(key) {
                item.users.insert(uid.clone());
                continue;
            }
            // RuntimeClasses are watched together.
            if key.kind == Kind::RuntimeClass {
                continue;
            }
            let (watch, started) = self.open(key, stop);
            let users = BTreeSet::from([uid.clone()]);
            self.items.insert(key.clone(), Item { known: Known::NotYet, users, read: now, watch });
            new.push(started);
        }
        new
    }

    /// Records that the pod refers to nothing any more. Watches without another user end.
    pub(super) fn forget(&mut self, uid: &Uid) {
        for key in self.pods.remove(uid).unwrap_or_default() {
            self.release(&key, uid);
        }
    }

    /// Ends a pod's use of an object. Without another user the object is forgotten and its watch
    /// ends.
    fn release(&mut self, key: &Key, uid: &Uid) {
        let Some(item) = self.items.get_mut(key) else { return };
        item.users.remove(uid);
        if item.users.is_empty() {
            item.watch.end();
            self.items.remove(key);
        }
    }

    /// Makes a watch with a new id. Returns it for the object's entry, and for the caller, who
    /// starts it.
    fn open(&mut self, key: &Key, stop: &StopToken) -> (Watch, NewWatch) {
        self.watches += 1;
        let (id, stop) = (self.watches, stop.child());
        (Watch::Open { id, stop: stop.clone() }, NewWatch { key: key.clone(), id, stop })
    }

    /// Returns what is known of these objects, without those that no pod refers to. Returns the
    /// watches to start, too: those of objects that were not read for some time.
    pub(super) fn read(
        &mut self,
        keys: &BTreeSet<Key>,
        now: Duration,
        stop: &StopToken,
    ) -> (BTreeMap<Key, Known>, Vec<NewWatch>) {
        let (mut found, mut new) = (BTreeMap::new(), Vec::new());
        for key in keys {
            let Some(item) = self.items.get(key) else { continue };
            let opened = matches!(item.watch, Watch::Idle).then(|| self.open(key, stop));
            let Some(item) = self.items.get_mut(key) else { continue };
            item.read = now;
            if let Some((watch, started)) = opened {
                item.watch = watch;
                new.push(started);
            }
            found.insert(key.clone(), item.known.clone());
        }
        (found, new)
    }

    /// Records what the watch of this id reports. Returns the uids of the pods that refer to the
    /// object if what is known of it has changed; else no uids.
    pub(super) fn report(&mut self, key: &Key, id: u64, found: Found) -> Vec<Uid> {
        let Some(item) = self.items.get_mut(key) else { return Vec::new() };
        if !matches!(item.watch, Watch::Open { id: of, .. } if of == id) {
            return Vec::new();
        }
        let known = match found {
            Found::Object { contents, is_immutable } => {
                if is_immutable {
                    item.watch.end();
                    item.watch = Watch::Closed;
                    log::debug!(
                        "Stopped watching for changes - object is immutable: {}/{}",
                        key.namespace,
                        key.name
                    );
                }
                Known::Found(contents)
            }
            Found::Nothing => Known::Missing,
            // The list is complete, and had no object.
            Found::List if item.known == Known::NotYet => Known::Missing,
            Found::List => return Vec::new(),
        };
        if item.known == known {
            return Vec::new();
        }
        item.known = known;
        item.users.iter().cloned().collect()
    }

    /// Ends the watches of objects that were not read for the time `max_idle`. Those that have
    /// found nothing yet stay. Upstream: `startRecycleIdleWatch`.
    pub(super) fn end_idle(&mut self, now: Duration, max_idle: Duration) {
        for (key, item) in &mut self.items {
            let is_idle = now > item.read + max_idle && item.known != Known::NotYet;
            if is_idle && matches!(item.watch, Watch::Open { .. }) {
                item.watch.end();
                item.watch = Watch::Idle;
                // It may change unseen.
                item.known = Known::NotYet;
                log::debug!(
                    "Not acquired for long time, Stopped watching for changes: {}/{}",
                    key.namespace,
                    key.name
                );
            }
        }
    }

    /// Returns all registered pods.
    pub(super) fn pods(&self) -> Vec<Uid> {
        self.pods.keys().cloned().collect()
    }

    /// Returns the registered pods that refer to an object.
    pub(super) fn users(&self, key: &Key) -> Vec<Uid> {
        let users = self.pods.iter().filter(|(_, keys)| keys.contains(key));
        users.map(|(uid, _)| uid.clone()).collect()
    }
}

/// What a watch reports.
pub(super) enum Found {
    Object {
        contents: Arc<Contents>,
        is_immutable: bool,
    },
    /// The object is gone.
    Nothing,
    /// The end of the first list.
    List,
}

impl Watch {
    fn end(&self) {
        if let Watch::Open { stop, .. } = self {
            stop.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn key(kind: Kind, name: &str) -> Key {
        Key { kind, namespace: "n".to_owned(), name: name.to_owned() }
    }

    fn keys(names: &[&str]) -> BTreeSet<Key> {
        names.iter().map(|name| key(Kind::Secret, name)).collect()
    }

    fn uid(name: &str) -> Uid {
        Uid::parse(name).expect("a uid")
    }

    fn object(text: &str, is_immutable: bool) -> Found {
        let data = BTreeMap::from([("k".to_owned(), text.as_bytes().to_vec())]);
        let contents = Arc::new(Contents { data, ..Contents::default() });
        Found::Object { contents, is_immutable }
    }

    /// A registry, with the time and the token that its methods get.
    #[derive(Default)]
    struct TestRegistry {
        inner: Registry,
        now: Duration,
        stop: StopToken,
    }

    impl TestRegistry {
        fn register(&mut self, pod: &str, names: &[&str]) -> Vec<NewWatch> {
            self.inner.register(&uid(pod), keys(names), self.now, &self.stop)
        }

        fn read(&mut self, name: &str) -> (Option<Known>, Vec<NewWatch>) {
            let (mut found, new) = self.inner.read(&keys(&[name]), self.now, &self.stop);
            (found.remove(&key(Kind::Secret, name)), new)
        }

        fn text(&mut self, name: &str) -> String {
            match self.read(name).0 {
                None => "not registered".to_owned(),
                Some(Known::NotYet) => "not yet".to_owned(),
                Some(Known::Missing) => "missing".to_owned(),
                Some(Known::Found(contents)) => {
                    String::from_utf8(contents.data["k"].clone()).expect("text")
                }
            }
        }

        fn report(&mut self, watch: &NewWatch, found: Found) -> Vec<Uid> {
            self.inner.report(&watch.key, watch.id, found)
        }
    }

    #[test]
    fn pods_with_one_object_share_a_watch_that_ends_with_the_last_of_them() {
        let mut registry = TestRegistry::default();
        let mut watches = registry.register("pod-0", &["s", "own"]);
        assert_eq!(watches.len(), 2);
        let watch = watches.pop().expect("that of s");
        assert_eq!(watch.key.name, "s");
        for pod in 1..200 {
            assert!(registry.register(&format!("pod-{pod}"), &["s"]).is_empty());
        }
        assert_eq!(registry.text("s"), "not yet");
        assert_eq!(registry.report(&watch, object("1", false)).len(), 200);
        assert!(registry.report(&watch, object("1", false)).is_empty(), "nothing has changed");
        for pod in 0..199 {
            registry.inner.forget(&uid(&format!("pod-{pod}")));
        }
        assert!(watches[0].stop.is_stopped(), "that of the first pod's own Secret");
        assert!(!watch.stop.is_stopped());
        assert_eq!(registry.text("s"), "1");
        registry.inner.forget(&uid("pod-199"));
        assert!(watch.stop.is_stopped());
        assert_eq!(registry.text("s"), "not registered");
        assert!(registry.inner.items.is_empty() && registry.inner.pods.is_empty());
        assert!(registry.report(&watch, object("2", false)).is_empty());
    }

    #[test]
    fn changed_pod_refers_to_other_objects() {
        let mut registry = TestRegistry::default();
        let first = registry.register("p", &["a", "b"]);
        let second = registry.register("p", &["b", "c"]);
        assert_eq!((first.len(), second.len()), (2, 1));
        assert!(first[0].stop.is_stopped() && !first[1].stop.is_stopped());
        assert_eq!(registry.text("a"), "not registered");
        assert_eq!(registry.text("c"), "not yet");
        // Another registration of the same pod does not count twice.
        assert!(registry.register("p", &["b", "c"]).is_empty());
        registry.inner.forget(&uid("p"));
        assert!(first[1].stop.is_stopped() && second[0].stop.is_stopped());
    }

    #[test]
    fn objects_are_missing_only_after_a_whole_list() {
        let mut registry = TestRegistry::default();
        let watch = registry.register("p", &["s"]).remove(0);
        assert_eq!(registry.text("s"), "not yet");
        assert_eq!(registry.report(&watch, Found::List), [uid("p")]);
        assert_eq!(registry.text("s"), "missing");
        assert_eq!(registry.report(&watch, object("1", false)), [uid("p")]);
        assert_eq!(registry.text("s"), "1");
        assert!(registry.report(&watch, Found::List).is_empty());
        assert_eq!(registry.text("s"), "1");
        assert_eq!(registry.report(&watch, Found::Nothing), [uid("p")]);
        assert_eq!(registry.text("s"), "missing");
        assert!(!watch.stop.is_stopped());
    }

    #[test]
    fn immutable_object_is_watched_no_more_and_stays() {
        let mut registry = TestRegistry::default();
        let watch = registry.register("p", &["s"]).remove(0);
        assert_eq!(registry.report(&watch, object("1", true)), [uid("p")]);
        assert!(watch.stop.is_stopped());
        assert!(registry.report(&watch, Found::Nothing).is_empty());
        registry.now = 1_000 * SECOND;
        registry.inner.end_idle(registry.now, SECOND);
        let (known, new) = registry.read("s");
        assert!(matches!(known, Some(Known::Found(_))) && new.is_empty());
    }

    #[test]
    fn object_that_is_not_read_is_watched_again_by_its_next_reader() {
        let mut registry = TestRegistry::default();
        let watch = registry.register("p", &["s"]).remove(0);
        let max_idle = 300 * SECOND;
        // One that has found nothing is kept: its work would be lost.
        registry.inner.end_idle(301 * SECOND, max_idle);
        assert!(!watch.stop.is_stopped());
        registry.report(&watch, object("1", false));
        registry.now = 301 * SECOND;
        assert_eq!(registry.text("s"), "1");
        registry.inner.end_idle(601 * SECOND, max_idle);
        assert!(!watch.stop.is_stopped(), "it was read at 301");
        registry.inner.end_idle(602 * SECOND, max_idle);
        assert!(watch.stop.is_stopped());
        let (known, mut new) = registry.read("s");
        assert_eq!((known, new.len()), (Some(Known::NotYet), 1));
        let second = new.remove(0);
        assert!(registry.read("s").1.is_empty(), "one watch is enough");
        // What the first watch still reports is old.
        assert!(registry.report(&watch, object("1", false)).is_empty());
        assert_eq!(registry.report(&second, object("2", false)), [uid("p")]);
        assert_eq!(registry.text("s"), "2");
    }

    #[test]
    fn runtime_classes_have_users_but_no_watch_of_their_own() {
        let mut registry = TestRegistry::default();
        let class = Key { namespace: String::new(), ..key(Kind::RuntimeClass, "kata") };
        let of_class = BTreeSet::from([class.clone()]);
        let new = registry.inner.register(&uid("p"), of_class, registry.now, &registry.stop);
        assert!(new.is_empty());
        registry.register("q", &["s"]);
        assert_eq!(registry.inner.users(&class), [uid("p")]);
        assert_eq!(registry.inner.pods(), [uid("p"), uid("q")]);
        registry.inner.forget(&uid("p"));
        assert!(registry.inner.users(&class).is_empty());
    }
}
