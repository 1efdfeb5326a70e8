//! One informer per scope, shared by all its users. Upstream: `informers.SharedInformerFactory`.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::any::AnyObject;
use super::history::VersionLosses;
use super::informer::{Informer, InformerStatus};
use super::metadata::MetadataInformer;
use super::outages::Outages;
use super::shared_informer::SharedIndexInformer;
use super::source::{Scope, Source};
use crate::clock::SharedClock;
use crate::objects::{Object, PartialObjectMetadata, Resource, ResourceType};
use crate::task::{Failure, StopToken, TaskGroup};

/// One informer per scope and type, shared by all its users. Cheap to clone: clones are one
/// factory. Upstream: `informers.SharedInformerFactory`.
///
/// Informers are created when they are first asked for and run after the next
/// [`start`](Self::start); until then their caches are empty. Two users of one scope and type get
/// the same informer, so its indices and handlers are shared too. Dropping the factory stops
/// nothing: informers end with the token given to `start`.
#[derive(Clone)]
pub struct SharedInformerFactory {
    inner: Arc<Inner>,
}

struct Inner {
    source: Arc<dyn Source>,
    clock: SharedClock,
    /// The resync period of handlers without one of their own; zero: none.
    default_resync: Duration,
    entries: Mutex<Vec<Entry>>,
    tasks: TaskGroup,
    failure: Failure,
    history: VersionLosses,
}

/// One informer of the factory.
struct Entry {
    informer: Arc<Informer>,
    /// Set once the informer runs; stops only this informer.
    running: Option<StopToken>,
    /// How many users got it by metadata and have not released it.
    users: usize,
}

impl SharedInformerFactory {
    /// Makes a factory of informers without a default resync period, which list and watch by
    /// `source`.
    pub fn new(source: Arc<dyn Source>, clock: SharedClock) -> SharedInformerFactory {
        SharedInformerFactory::with_resync(source, clock, Duration::ZERO)
    }

    /// Makes a factory whose informers have this [`SharedIndexInformer::default_resync`]; zero:
    /// none.
    pub fn with_resync(
        source: Arc<dyn Source>,
        clock: SharedClock,
        default_resync: Duration,
    ) -> SharedInformerFactory {
        SharedInformerFactory::with_history(source, clock, default_resync, VersionLosses::default())
    }

    /// Makes a factory as [`with_resync`](Self::with_resync) does, whose informers list again after
    /// each loss that `history` records, and record what they notice there.
    pub fn with_history(
        source: Arc<dyn Source>,
        clock: SharedClock,
        default_resync: Duration,
        history: VersionLosses,
    ) -> SharedInformerFactory {
        let (entries, tasks, failure) = (Mutex::default(), TaskGroup::new(), Failure::new());
        let inner = Inner { source, clock, default_resync, entries, tasks, failure, history };
        SharedInformerFactory { inner: Arc::new(inner) }
    }

    /// Returns the losses of versions that the informers, and others, have noticed.
    pub fn history(&self) -> &VersionLosses {
        &self.inner.history
    }

    /// Returns the outages of the API server that the informers have noticed.
    pub fn outages(&self) -> Option<&Outages> {
        self.inner.source.outages()
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.inner.entries.lock()
    }

    /// Returns the informer of every `T` in the cluster.
    pub fn informer<T: Object + Resource>(&self) -> SharedIndexInformer<T> {
        self.informer_for(Scope::all(T::RESOURCE))
    }

    /// Returns the informer of a narrower scope of `T`.
    pub fn informer_for<T: Object>(&self, scope: Scope) -> SharedIndexInformer<T> {
        self.entry(scope, 0)
    }

    /// Returns the informer of `scope`, and makes it for the first user. `users`: how many more use
    /// it.
    fn entry<T: Object>(&self, scope: Scope, users: usize) -> SharedIndexInformer<T> {
        let mut entries = self.entries();
        for entry in entries.iter_mut().filter(|entry| *entry.informer.scope() == scope) {
            // There may be one of the whole objects, and one of their metadata.
            if let Some(informer) = SharedIndexInformer::downcast(&entry.informer) {
                entry.users += users;
                return informer;
            }
        }
        let Inner { source, clock, default_resync, failure, history, .. } = &*self.inner;
        let informer = SharedIndexInformer::reporting(
            source.clone(),
            scope,
            clock.clone(),
            failure.clone(),
            history.clone(),
        );
        if !default_resync.is_zero() {
            informer.inner().set_default_resync(*default_resync);
        }
        entries.push(Entry { informer: informer.inner().clone(), running: None, users });
        informer
    }

    /// Returns an informer of the metadata of all objects of `resource`: its full informer when
    /// there is one, so that one watch serves both kinds of readers; else one of
    /// `PartialObjectMetadata`.
    pub fn metadata(&self, resource: &ResourceType) -> MetadataInformer {
        let full = self.entries().iter().find_map(|entry| {
            let scope = entry.informer.scope();
            (scope.resource == *resource && !scope.metadata_only && scope.is_all())
                .then(|| MetadataInformer::new(entry.informer.clone()))
        });
        full.unwrap_or_else(|| self.metadata_informer(resource).by_metadata())
    }

    /// Returns an informer of `PartialObjectMetadata` with its lister, also where
    /// [`Self::metadata`] would return the full informer.
    pub fn metadata_informer(
        &self,
        resource: &ResourceType,
    ) -> SharedIndexInformer<PartialObjectMetadata> {
        self.entry(Scope::metadata(resource.clone()), 1)
    }

    /// Gives back an informer that [`Self::metadata`] or [`Self::metadata_informer`] returned, as
    /// when the resource is no longer served. The last release stops and drops the informer. Full
    /// informers stay.
    pub fn release(&self, resource: &ResourceType) {
        let mut entries = self.entries();
        let at = entries
            .iter()
            .position(|entry| entry.users > 0 && entry.informer.scope().resource == *resource);
        let Some(at) = at else { return };
        entries[at].users -= 1;
        if entries[at].users == 0 {
            let entry = entries.swap_remove(at);
            if let Some(stop) = entry.running {
                stop.stop();
            }
        }
    }

    /// Runs every informer that does not run yet, until `stop`. Does not wait. May be called again
    /// after more were added.
    pub fn start(&self, stop: &StopToken) {
        for entry in self.entries().iter_mut().filter(|entry| entry.running.is_none()) {
            let informer_stop = stop.child();
            self.inner.tasks.spawn(entry.informer.clone().run(informer_stop.clone()));
            entry.running = Some(informer_stop);
        }
    }

    /// Resolves when all informers that run now have synced or were stopped. May be dropped at any
    /// time. Upstream: `WaitForCacheSync`.
    pub async fn wait_for_cache_sync(&self) {
        let running: Vec<_> = self
            .entries()
            .iter()
            .filter_map(|entry| Some((entry.informer.clone(), entry.running.clone()?)))
            .collect();
        for (informer, stop) in running {
            stop.unless_stopped(informer.synced()).await;
        }
    }

    fn informers(&self) -> Vec<Arc<Informer>> {
        self.entries().iter().map(|entry| entry.informer.clone()).collect()
    }

    /// Returns the state of every informer for debug pages. Walks all caches: the cost grows with
    /// the objects.
    pub fn status(&self) -> Vec<InformerStatus> {
        self.informers().iter().map(|informer| informer.status()).collect()
    }

    /// Visits every cached object, with its resource, in no order. Each cache is locked while its
    /// objects are visited: `visit` must be short and must not call an informer or a Lister.
    pub fn for_each(&self, visit: &mut dyn FnMut(&ResourceType, &dyn AnyObject)) {
        for informer in self.informers() {
            let resource = &informer.scope().resource;
            informer.indexer().for_each(&mut |object| visit(resource, &*object));
        }
    }

    /// Resolves with a reason when an informer cannot keep its cache up to date because it keeps
    /// panicking (five times in ten minutes). The process must end then, as the Go manager's does
    /// with the first panic. May be dropped at any time.
    pub async fn failed(&self) -> String {
        self.inner.failure.reported().await;
        self.inner.failure.get().unwrap_or_default().to_owned()
    }

    /// Resolves when all informers that were started have ended, which they do after the stop. May
    /// be dropped at any time and called again. Upstream: `Shutdown`.
    pub async fn shutdown(&self) {
        self.inner.tasks.join().await;
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;

    use super::super::testing::{Reply, Script, json};
    use super::*;
    use crate::clock::FakeClock;
    use crate::objects::{ObjectKey, Pod, Timestamp};

    fn factory() -> (Arc<Script>, SharedInformerFactory) {
        let script = Script::new();
        let clock = FakeClock::new(Timestamp::from_micros(0));
        (script.clone(), SharedInformerFactory::new(script, clock))
    }

    #[test]
    fn one_informer_serves_all_readers_of_a_resource() {
        let (script, factory) = factory();
        let early = factory.metadata(&Pod::RESOURCE);
        assert!(early.scope().metadata_only, "there is no full one yet");
        let pods = factory.informer::<Pod>();
        let shared = factory.metadata(&Pod::RESOURCE);
        assert!(!shared.scope().metadata_only);
        factory.release(&Pod::RESOURCE);
        assert_eq!(factory.entries().len(), 1, "the full one stays");
        factory.release(&Pod::RESOURCE);
        assert_eq!(factory.entries().len(), 1);

        script.reply(Reply::stream(&[json("a", "x", 3)], 4));
        let stop = StopToken::new();
        factory.start(&stop);
        factory.start(&stop);
        block_on(async {
            factory.wait_for_cache_sync().await;
            assert_eq!(pods.lister().len(), 1);
            let meta = shared.get(&ObjectKey::new("a", "x")).expect("it is in the shared cache");
            assert_eq!(meta.meta().resource_version, 3);
            stop.stop();
            factory.shutdown().await;
        });
        assert_eq!(script.requests().len(), 1, "started twice, run once");
    }

    #[test]
    fn a_metadata_informer_is_dropped_by_its_last_release() {
        let (script, factory) = factory();
        script.reply(Reply::stream(&[], 4));
        let first = factory.metadata_informer(&Pod::RESOURCE);
        factory.metadata_informer(&Pod::RESOURCE);
        factory.start(&StopToken::new());
        block_on(first.synced());
        factory.release(&Pod::RESOURCE);
        assert_eq!(factory.entries().len(), 1);
        factory.release(&Pod::RESOURCE);
        assert!(factory.entries().is_empty());
        // Ends without the parent's stop: the informer was stopped alone.
        block_on(factory.shutdown());
    }
}
