//! ConfigMaps and Secrets of the API server: a watch for each that pods refer to.
//! Upstream: `NewWatchBasedManager`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_lite::FutureExt;
use kube_controller_manager::cache::{Deleted, EventHandler, Scope, SharedIndexInformer, Source};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::{Meta, Object, ResourceType};
use kube_controller_manager::task::{self, StopToken};
use parking_lot::Mutex;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::registry::{Found, NewWatch, Registry};
use super::{Changes, Contents, Key, Kind, Known, spawn};
use crate::pod::Uid;

const CONFIG_MAPS: ResourceType = ResourceType::fixed("", "v1", "ConfigMap", "configmaps", true);
const SECRETS: ResourceType = ResourceType::fixed("", "v1", "Secret", "secrets", true);

/// A watch lasts one to two times this period: there are many. Upstream: `newReflectorLocked`.
const MIN_WATCH_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// The period in which idle watches are looked for, and the shortest time after which one is idle.
const MINUTE: Duration = Duration::from_secs(60);

/// The watched objects. Cheap to clone: clones are the same.
#[derive(Clone)]
pub(super) struct Watches(Arc<Inner>);

struct Inner {
    server: Arc<dyn Source>,
    clock: SharedClock,
    registry: Mutex<Registry>,
    changes: Changes,
    stop: StopToken,
}

impl Watches {
    /// Creates an empty set of watches. `max_idle`: the time after which an object that is not read
    /// is watched no more. Everything ends with `stop`.
    pub(super) fn new(
        server: Arc<dyn Source>,
        clock: SharedClock,
        max_idle: Duration,
        changes: Changes,
        stop: StopToken,
    ) -> Watches {
        let (registry, max_idle) = (Mutex::default(), max_idle.max(MINUTE));
        let watches = Watches(Arc::new(Inner { server, clock, registry, changes, stop }));
        let inner = watches.0.clone();
        spawn(&watches.0.stop, async move { inner.end_idle(max_idle).await });
        watches
    }

    /// Watches these objects for the pod, and no others any more.
    pub(super) fn register(&self, uid: &Uid, keys: BTreeSet<Key>) {
        let Inner { registry, clock, stop, .. } = &*self.0;
        let new = registry.lock().register(uid, keys, clock.monotonic(), stop);
        self.start(new);
    }

    /// Ends the watches that only this pod needed.
    pub(super) fn forget(&self, uid: &Uid) {
        self.0.registry.lock().forget(uid);
    }

    /// Returns what is known of these objects, without those that no pod refers to.
    pub(super) fn known(&self, keys: &BTreeSet<Key>) -> BTreeMap<Key, Known> {
        let Inner { registry, clock, stop, .. } = &*self.0;
        let (known, new) = registry.lock().read(keys, clock.monotonic(), stop);
        self.start(new);
        known
    }

    /// Has all pods synced again.
    pub(super) fn notify_all(&self) {
        let pods = self.0.registry.lock().pods();
        self.0.changes.notify(pods);
    }

    /// Has the pods that refer to an object synced again.
    pub(super) fn notify_users(&self, key: &Key) {
        let users = self.0.registry.lock().users(key);
        self.0.changes.notify(users);
    }

    /// Starts the watch of each object in a task of its own; RuntimeClasses have none.
    fn start(&self, new: Vec<NewWatch>) {
        for watch in new {
            let inner = self.0.clone();
            drop(match watch.key.kind {
                Kind::ConfigMap => task::spawn(inner.watch::<Fetched<false>>(watch, CONFIG_MAPS)),
                Kind::Secret => task::spawn(inner.watch::<Fetched<true>>(watch, SECRETS)),
                Kind::RuntimeClass => continue,
            });
        }
    }
}

impl Inner {
    /// Ends the watches of objects that are not read any more, from time to time, for ever.
    async fn end_idle(&self, max_idle: Duration) {
        loop {
            self.clock.sleep(MINUTE).await;
            self.registry.lock().end_idle(self.clock.monotonic(), max_idle);
        }
    }

    /// Watches one object, and reports what is found, until stopped.
    async fn watch<T: HasContents>(self: Arc<Self>, watch: NewWatch, resource: ResourceType) {
        let NewWatch { key, id, stop } = watch;
        let scope = Scope {
            namespace: Some(key.namespace.clone()),
            field_selector: Some(format!("metadata.name={}", key.name)),
            ..Scope::all(resource)
        };
        let informer =
            SharedIndexInformer::<T>::new(self.server.clone(), scope, self.clock.clone());
        informer.set_min_watch_timeout(MIN_WATCH_TIMEOUT);
        let follower = Follower { inner: self, key, id };
        let listed = follower.clone();
        let registration = informer.add_handler("pod-objects", follower, None);
        let listed = async {
            registration.synced().await;
            listed.report(Found::List);
            std::future::pending().await
        };
        listed.or(informer.run(stop)).await;
    }
}

/// Reports the changes of one object.
#[derive(Clone)]
struct Follower {
    inner: Arc<Inner>,
    key: Key,
    id: u64,
}

impl Follower {
    /// Records what the watch has found, and has the pods that refer to the object synced again if
    /// that is new.
    fn report(&self, found: Found) {
        let users = self.inner.registry.lock().report(&self.key, self.id, found);
        if !users.is_empty() {
            self.inner.changes.notify(users);
        }
    }
}

impl<T: HasContents> EventHandler<T> for Follower {
    fn on_add(&mut self, object: &Arc<T>, _: bool) {
        self.report(object.found());
    }

    fn on_update(&mut self, _: &Arc<T>, object: &Arc<T>) {
        self.report(object.found());
    }

    fn on_delete(&mut self, _: &Deleted<T>) {
        self.report(Found::Nothing);
    }
}

/// An object that a watch reports to the registry.
trait HasContents: Object {
    /// Returns the object's contents as a report.
    fn found(&self) -> Found;
}

/// A ConfigMap or a Secret, as far as pods read it.
struct Fetched<const IS_SECRET: bool> {
    meta: Meta,
    contents: Arc<Contents>,
    is_immutable: bool,
}

/// Both kinds in JSON.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire {
    #[serde(default)]
    metadata: Meta,
    immutable: Option<bool>,
    data: Option<BTreeMap<String, String>>,
    binary_data: Option<BTreeMap<String, String>>,
    r#type: Option<String>,
}

impl<'de, const IS_SECRET: bool> Deserialize<'de> for Fetched<IS_SECRET> {
    /// Decodes a ConfigMap or Secret. `binaryData`, and the `data` of a Secret, are in base64.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wire = Wire::deserialize(deserializer)?;
        // The cause would quote the value.
        let bytes = |(key, text): (String, String)| match STANDARD.decode(text) {
            Ok(bytes) => Ok((key, bytes)),
            Err(_) => Err(D::Error::custom(format!("data[{key}]: not base64"))),
        };
        let data = wire.data.unwrap_or_default().into_iter();
        let data = match IS_SECRET {
            true => data.map(bytes).collect::<Result<_, _>>()?,
            false => data.map(|(key, text)| (key, text.into_bytes())).collect(),
        };
        let binary = wire.binary_data.unwrap_or_default().into_iter();
        let contents = Contents {
            data,
            binary_data: binary.map(bytes).collect::<Result<_, _>>()?,
            secret_type: wire.r#type.unwrap_or_default(),
            uid: if IS_SECRET { wire.metadata.uid.to_string() } else { String::new() },
        };
        Ok(Fetched {
            meta: wire.metadata,
            contents: Arc::new(contents),
            is_immutable: wire.immutable == Some(true),
        })
    }
}

impl<const IS_SECRET: bool> Object for Fetched<IS_SECRET> {
    fn meta(&self) -> &Meta {
        &self.meta
    }
}

impl<const IS_SECRET: bool> HasContents for Fetched<IS_SECRET> {
    fn found(&self) -> Found {
        Found::Object { contents: self.contents.clone(), is_immutable: self.is_immutable }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_lite::future::block_on;
    use futures_lite::stream::{self, StreamExt};
    use kube_controller_manager::cache::{Answer, Error, ListRequest, WatchRequest};
    use kube_controller_manager::clock::SystemClock;
    use kube_controller_manager::objects::{Bookmark, Encoded, Form, ListPart, WatchEvent};

    use super::*;

    /// An API server that has one Secret of each name, and counts its watches.
    #[derive(Default)]
    struct FakeServer {
        scopes: Mutex<Vec<String>>,
        open: Arc<AtomicUsize>,
        is_away: bool,
    }

    /// An open watch.
    struct Open(Arc<AtomicUsize>);

    impl Open {
        fn new(count: &Arc<AtomicUsize>) -> Open {
            count.fetch_add(1, Ordering::SeqCst);
            Open(count.clone())
        }
    }

    impl Drop for Open {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    impl Source for FakeServer {
        fn list<'a>(
            &'a self,
            _: &'a Scope,
            _: Form,
            _: ListRequest,
        ) -> Answer<'a, ListPart<Encoded>> {
            Box::pin(async { Err(Error::Unreachable("away".into())) })
        }

        fn watch<'a>(
            &'a self,
            scope: &'a Scope,
            _: Form,
            request: WatchRequest,
        ) -> Answer<'a, WatchEvent<Encoded>> {
            Box::pin(async move {
                self.scopes.lock().push(scope.to_string());
                if self.is_away {
                    return Err(Error::Unreachable("away".into()));
                }
                assert!(request.timeout >= MIN_WATCH_TIMEOUT);
                let name = scope.field_selector.as_deref().unwrap_or_default();
                let name = name.trim_start_matches("metadata.name=");
                let secret = format!(
                    r#"{{ "metadata": {{ "name": "{name}", "namespace": "n", "uid": "u",
                        "resourceVersion": "1" }}, "data": {{ "k": "dg==" }} }}"#
                );
                let end = Bookmark { version: 2, initial_events_end: true };
                let events =
                    [Ok(WatchEvent::Added(Encoded::json(secret))), Ok(WatchEvent::Bookmark(end))];
                let open = Open::new(&self.open);
                let events = stream::iter(events).chain(stream::pending());
                let events = events.map(move |event| {
                    let _ = &open;
                    event
                });
                Ok(events.boxed())
            })
        }
    }

    fn watches(server: &Arc<FakeServer>) -> (Watches, async_channel::Receiver<Uid>) {
        let (again, synced_again) = async_channel::unbounded();
        let changes = Changes { changed: Arc::default(), again };
        let clock = SystemClock::shared();
        let stop = StopToken::new();
        (Watches::new(server.clone(), clock, MINUTE, changes, stop), synced_again)
    }

    fn secret(name: &str) -> BTreeSet<Key> {
        let (namespace, name) = ("n".to_owned(), name.to_owned());
        BTreeSet::from([Key { kind: Kind::Secret, namespace, name }])
    }

    fn uid(number: usize) -> Uid {
        Uid::parse(&format!("pod-{number}")).expect("a uid")
    }

    #[test]
    fn two_hundred_pods_with_one_secret_make_one_watch_that_ends_with_them() {
        let server = Arc::new(FakeServer::default());
        let (watches, _again) = watches(&server);
        for number in 0..200 {
            watches.register(&uid(number), secret("s"));
        }
        let until = async |is_so: &dyn Fn() -> bool| {
            while !is_so() {
                watches.0.clock.sleep(Duration::from_millis(1)).await;
            }
        };
        let is_found = |name: &str| {
            let known = watches.known(&secret(name)).into_values().next();
            matches!(known, Some(Known::Found(_)))
        };
        block_on(async {
            until(&|| is_found("s")).await;
            assert_eq!(*server.scopes.lock(), ["secrets namespace=n fields=metadata.name=s"]);
            for number in 0..199 {
                watches.forget(&uid(number));
            }
            // Another watch shows that the first one could have ended.
            watches.register(&uid(0), secret("t"));
            until(&|| is_found("t")).await;
            assert_eq!(server.open.load(Ordering::SeqCst), 2);
            watches.forget(&uid(0));
            watches.forget(&uid(199));
            assert!(watches.known(&secret("s")).is_empty());
            until(&|| server.open.load(Ordering::SeqCst) == 0).await;
        });
    }

    #[test]
    fn nothing_is_known_while_the_server_is_away() {
        let server = Arc::new(FakeServer { is_away: true, ..FakeServer::default() });
        let (watches, again) = watches(&server);
        watches.register(&uid(0), secret("s"));
        block_on(async {
            // It lists, and watches again.
            while server.scopes.lock().len() < 2 {
                watches.0.clock.sleep(Duration::from_millis(1)).await;
            }
        });
        assert_eq!(watches.known(&secret("s")).into_values().next(), Some(Known::NotYet));
        assert!(again.try_recv().is_err());
        watches.forget(&uid(0));
    }

    #[test]
    fn contents_are_text_or_base64_by_kind() {
        let map = r#"{ "metadata": { "name": "m", "resourceVersion": "7" }, "immutable": true,
            "data": { "a": "Yg==" }, "binaryData": { "b": "AAE=" } }"#;
        let map: Fetched<false> = serde_json::from_str(map).expect("a ConfigMap");
        assert_eq!(map.contents.bytes("a"), Some(&b"Yg=="[..]));
        assert_eq!(map.contents.bytes("b"), Some(&[0, 1][..]));
        assert!(map.is_immutable && map.meta.resource_version == 7);
        let secret = r#"{ "metadata": { "name": "s", "uid": "u", "resourceVersion": "8" },
            "type": "Opaque", "data": { "a": "Yg==" } }"#;
        let secret: Fetched<true> = serde_json::from_str(secret).expect("a Secret");
        assert_eq!(secret.contents.bytes("a"), Some(&b"b"[..]));
        assert_eq!((secret.is_immutable, &*secret.contents.secret_type), (false, "Opaque"));
        assert_eq!((&*map.contents.uid, &*secret.contents.uid), ("", "u"));
        let empty: Fetched<true> =
            serde_json::from_str(r#"{ "metadata": {}, "data": null }"#).expect("a Secret");
        assert_eq!(*empty.contents, Contents::default());
        let fault = serde_json::from_str::<Fetched<true>>(r#"{ "data": { "a": "s3cret" } }"#);
        let fault = fault.err().expect("not base64").to_string();
        assert!(fault.contains("data[a]: not base64") && !fault.contains("s3cret"), "{fault}");
    }
}
