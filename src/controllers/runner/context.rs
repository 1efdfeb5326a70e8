//! What constructors of controllers are given.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

use crate::cache::{SharedIndexInformer, SharedInformerFactory};
use crate::client::Client;
use crate::clock::SharedClock;
use crate::events::{EventBroadcaster, Recorder};
use crate::objects::{Object, Resource};
use crate::options::Options;
use crate::task::{StopToken, TaskGroup};

/// Makes the clients of controllers. Upstream: `ControllerClientBuilder`.
pub trait ClientBuilder: Send + Sync {
    /// A client under the name of a controller. Asked at most once for a name.
    fn client(&self, name: &str) -> Client;
    /// A client under the manager's own credentials, whatever the others have, and under this name.
    fn root_client(&self, name: &str) -> Client;
}

/// What a context is made of.
pub struct ControllerContextParts {
    pub options: Arc<Options>,
    pub factory: SharedInformerFactory,
    pub clients: Arc<dyn ClientBuilder>,
    pub clock: SharedClock,
    /// Stops when the controllers are to stop.
    pub stop: StopToken,
}

/// What a constructor of a controller is given. Upstream: `ControllerContext`.
pub struct ControllerContext {
    /// The flags, by their names in snake case.
    pub options: Arc<Options>,
    factory: SharedInformerFactory,
    builder: Arc<dyn ClientBuilder>,
    clock: SharedClock,
    stop: StopToken,
    clients: Mutex<HashMap<String, Client>>,
    broadcasters: Mutex<HashMap<String, EventBroadcaster>>,
}

impl ControllerContext {
    pub fn new(parts: ControllerContextParts) -> ControllerContext {
        let ControllerContextParts { options, factory, clients: builder, clock, stop } = parts;
        ControllerContext {
            options,
            factory,
            builder,
            clock,
            stop,
            clients: Mutex::default(),
            broadcasters: Mutex::default(),
        }
    }

    pub fn informer<T: Object + Resource>(&self) -> SharedIndexInformer<T> {
        self.factory.informer()
    }

    pub fn factory(&self) -> &SharedInformerFactory {
        &self.factory
    }

    /// A client under the controller's own name: User-Agent and, with
    /// `--use-service-account-credentials`, its service account. `name`: the account's, as upstream
    /// spells it (`deployment-controller`). The same for the same name, rate limit included.
    pub fn client(&self, name: &str) -> Client {
        let mut clients = self.clients.lock();
        if let Some(client) = clients.get(name) {
            return client.clone();
        }
        let client = self.builder.client(name);
        clients.insert(name.to_owned(), client.clone());
        client
    }

    /// A new client under the manager's own credentials: for what makes other controllers'.
    /// Upstream: `rootClientBuilder`.
    pub fn root_client(&self, name: &str) -> Client {
        self.builder.root_client(name)
    }

    /// Events of `component`, sent with the client of the same name.
    pub fn recorder(&self, component: &str) -> Recorder {
        self.recorder_as(component, component)
    }

    /// Events of `component`, sent with the client `name`: where upstream gives the two different
    /// names, only the account of that name may write events.
    pub fn recorder_as(&self, name: &str, component: &str) -> Recorder {
        let client = self.client(name);
        self.broadcasters
            .lock()
            .entry(name.to_owned())
            .or_insert_with(|| EventBroadcaster::new(client, self.clock.clone()))
            .recorder(component)
    }

    pub fn clock(&self) -> SharedClock {
        self.clock.clone()
    }

    /// Stops when the controllers are to stop.
    pub fn stop(&self) -> &StopToken {
        &self.stop
    }

    /// Sends the events that wait, within the broadcasters' bound, and ends them. For when the
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
