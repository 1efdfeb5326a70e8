//! What all controllers are made of: flags, caches, clients, events, time.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use super::Supervisor;
use crate::cache::{MetadataInformer, SharedInformerFactory};
use crate::client::Client;
use crate::clock::SharedClock;
use crate::events::{EventBroadcaster, Recorder};
use crate::objects::ResourceType;
use crate::options::Options;
use crate::task::{StopToken, TaskGroup};

/// Makes the clients of controllers. Upstream: `ControllerClientBuilder`.
pub trait ClientBuilder: Send + Sync {
    /// A client under the name of a controller. Called at most once for a name.
    ///
    /// # Errors
    /// When the client cannot have the controller's own credentials.
    fn client(&self, name: &str) -> Result<Client, String>;
    /// A client under the manager's own credentials, and under this name.
    fn root_client(&self, name: &str) -> Client;
}

/// The same client for every controller.
impl ClientBuilder for Client {
    fn client(&self, _: &str) -> Result<Client, String> {
        Ok(self.clone())
    }

    fn root_client(&self, _: &str) -> Client {
        self.clone()
    }
}

/// What a context is made of.
pub struct ControllerContextParts {
    pub options: Arc<Options>,
    pub factory: SharedInformerFactory,
    pub clients: Arc<dyn ClientBuilder>,
    pub clock: SharedClock,
}

/// What controllers share. A controller reaches it only through its
/// [`Controller`](super::Controller), which so knows what the controller reads.
/// Upstream: `ControllerContext`.
pub struct ControllerContext {
    pub(super) options: Arc<Options>,
    pub(super) factory: SharedInformerFactory,
    pub(super) clock: SharedClock,
    builder: Arc<dyn ClientBuilder>,
    clients: Mutex<HashMap<String, Client>>,
    broadcasters: Mutex<HashMap<String, EventBroadcaster>>,
    supervisor: OnceLock<Arc<dyn Supervisor>>,
}

impl ControllerContext {
    pub fn new(parts: ControllerContextParts) -> Arc<ControllerContext> {
        let ControllerContextParts { options, factory, clients: builder, clock } = parts;
        Arc::new(ControllerContext {
            options,
            factory,
            builder,
            clock,
            clients: Mutex::default(),
            broadcasters: Mutex::default(),
            supervisor: OnceLock::new(),
        })
    }

    /// Lets `supervisor` stand around the work of controllers that are made from now on.
    pub fn supervise(&self, supervisor: Arc<dyn Supervisor>) {
        // A second one is a mistake of the program; the first stays.
        let _ = self.supervisor.set(supervisor);
    }

    pub(super) fn supervisor(&self) -> Option<Arc<dyn Supervisor>> {
        self.supervisor.get().cloned()
    }

    /// A client with a rate limit of its own. Those of one account share their credentials.
    pub(super) fn client(&self, account: &str) -> Result<Client, String> {
        let mut clients = self.clients.lock();
        if let Some(client) = clients.get(account) {
            return Ok(client.with_own_limiter());
        }
        let client = self.builder.client(account)?;
        clients.insert(account.to_owned(), client.clone());
        Ok(client)
    }

    pub(super) fn root_client(&self, name: &str) -> Client {
        self.builder.root_client(name)
    }

    /// Events of `component`, which the controller of this name sends with `client`.
    pub(super) fn recorder(&self, name: &str, client: Client, component: &str) -> Recorder {
        self.broadcasters
            .lock()
            .entry(name.to_owned())
            .or_insert_with(|| {
                EventBroadcaster::new(client.with_uncounted_writes(), self.clock.clone())
            })
            .recorder(component)
    }

    /// Sends the events that wait, within the broadcasters' bound, and ends them. Call it when the
    /// controllers have ended.
    pub async fn shutdown_events(&self) {
        let broadcasters = std::mem::take(&mut *self.broadcasters.lock());
        let ending = TaskGroup::new();
        for broadcaster in broadcasters.into_values() {
            ending.spawn(async move { broadcaster.shutdown().await });
        }
        ending.join().await;
    }
}

/// The caches of resources that become known while the controller runs, by the metadata of their
/// objects. No worker waits for them: their reader has to look whether each has synced.
pub struct MetadataCaches {
    pub(super) factory: SharedInformerFactory,
}

impl MetadataCaches {
    /// The informer of a resource. Its user gives it back with [`MetadataCaches::release`].
    pub fn informer(&self, resource: &ResourceType) -> MetadataInformer {
        self.factory.metadata(resource)
    }

    /// The informer ends with its last user, unless it is a full one.
    pub fn release(&self, informer: &MetadataInformer) {
        let scope = informer.scope();
        if scope.metadata_only {
            self.factory.release(&scope.resource);
        }
    }

    /// Starts the informers that do not run yet.
    pub fn start(&self, stop: &StopToken) {
        self.factory.start(stop);
    }
}
