//! The parts that all controllers share: flags, caches, clients, events, time.

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

/// Makes the clients of controllers. Methods do not wait: a client that needs a token fetches it
/// with its first request. Upstream: `ControllerClientBuilder`.
pub trait ClientBuilder: Send + Sync {
    /// A client with the credentials of the controller's service account. Called at most once for a
    /// name.
    ///
    /// # Errors
    /// When the client cannot have the controller's own credentials.
    fn client(&self, name: &str) -> Result<Client, String>;
    /// A client with the manager's own credentials, and with this name in its User-Agent.
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

/// The parts of a [`ControllerContext`].
pub struct ControllerContextParts {
    /// The flags, which do not change.
    pub options: Arc<Options>,
    /// The caches, one for each resource and scope. The caller starts them when the controllers are
    /// made.
    pub factory: SharedInformerFactory,
    /// Makes each controller's client.
    pub clients: Arc<dyn ClientBuilder>,
    /// The time of all controllers.
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
    /// A context without controllers and without a supervisor.
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

    /// Puts `supervisor` around the work of controllers that are made from now on. Only the first
    /// call has an effect.
    pub fn supervise(&self, supervisor: Arc<dyn Supervisor>) {
        // A second call is a mistake of the program; the first supervisor stays.
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

    /// Sends the events that wait, within two seconds, and ends the tasks that send them. Call it
    /// when the controllers have ended: later events are dropped.
    pub async fn shutdown_events(&self) {
        let broadcasters = std::mem::take(&mut *self.broadcasters.lock());
        let ending = TaskGroup::new();
        for broadcaster in broadcasters.into_values() {
            ending.spawn(async move { broadcaster.shutdown().await });
        }
        ending.join().await;
    }
}

/// The caches of resources that become known while the controller runs, with the metadata of their
/// objects. No worker waits for them: their reader has to check whether each has synced. Upstream:
/// `metadatainformer.SharedInformerFactory`.
pub struct MetadataCaches {
    pub(super) factory: SharedInformerFactory,
}

impl MetadataCaches {
    /// The informer of a resource, shared with other users. It runs after
    /// [`MetadataCaches::start`]; each call is paired with one of [`MetadataCaches::release`].
    pub fn informer(&self, resource: &ResourceType) -> MetadataInformer {
        self.factory.metadata(resource)
    }

    /// Gives an informer back. It ends with its last user, unless it is a controller's cache of
    /// whole objects.
    pub fn release(&self, informer: &MetadataInformer) {
        let scope = informer.scope();
        if scope.metadata_only {
            self.factory.release(&scope.resource);
        }
    }

    /// Starts the informers that do not run yet, until `stop`. Does not wait for them.
    pub fn start(&self, stop: &StopToken) {
        self.factory.start(stop);
    }
}
