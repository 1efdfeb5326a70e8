//! The parts that all controllers share: flags, caches, clients, events, time.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use futures_lite::FutureExt;
use parking_lot::Mutex;

use super::{Controller, Supervisor};
use crate::cache::{MetadataInformer, SharedInformerFactory};
use crate::client::Client;
use crate::clock::SharedClock;
use crate::events::{EventBroadcaster, Recorder};
use crate::objects::ResourceType;
use crate::options::Options;
use crate::source::ClientSource;
use crate::task::{Failure, StopToken, TaskGroup, caught};

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
    /// What the program's own controllers share: see
    /// [`Controller::extension`](super::Controller::extension).
    pub extension: Option<Arc<dyn Any + Send + Sync>>,
}

/// What controllers share. A controller reaches it only through its
/// [`Controller`](super::Controller), which so knows what the controller reads.
/// Upstream: `ControllerContext`.
pub struct ControllerContext {
    pub(super) options: Arc<Options>,
    pub(super) factory: SharedInformerFactory,
    pub(super) clock: SharedClock,
    pub(super) extension: Option<Arc<dyn Any + Send + Sync>>,
    builder: Arc<dyn ClientBuilder>,
    clients: Mutex<HashMap<String, Client>>,
    broadcasters: Mutex<HashMap<String, EventBroadcaster>>,
    supervisor: OnceLock<Arc<dyn Supervisor>>,
}

impl ControllerContext {
    /// Makes a context without controllers and without a supervisor.
    pub fn new(parts: ControllerContextParts) -> Arc<ControllerContext> {
        let ControllerContextParts { options, factory, clients: builder, clock, extension } = parts;
        Arc::new(ControllerContext {
            options,
            factory,
            builder,
            clock,
            extension,
            clients: Mutex::default(),
            broadcasters: Mutex::default(),
            supervisor: OnceLock::new(),
        })
    }

    /// Makes a context in which all controllers use this client, for their requests and for caches
    /// of their own, without flags.
    pub fn for_client(client: Client, clock: SharedClock) -> Arc<ControllerContext> {
        let source = ClientSource::new(client.clone());
        ControllerContext::new(ControllerContextParts {
            options: Arc::default(),
            factory: SharedInformerFactory::new(source, clock.clone()),
            clients: Arc::new(client),
            clock,
            extension: None,
        })
    }

    /// Starts the caches and runs `controllers`, which were made of this context, until `stop` or
    /// until one of them fails. Resolves when their syncs have ended and the events that wait were
    /// sent. Drop it only when the process ends: its tasks would go on.
    ///
    /// # Errors
    /// Why a controller or a cache has failed. The process has to decide what follows: the context
    /// cannot run again.
    pub async fn run(&self, controllers: Vec<Controller>, stop: &StopToken) -> Result<(), String> {
        let (stop, tasks, failure) = (stop.child(), TaskGroup::new(), Failure::new());
        self.factory.start(&stop);
        for controller in controllers {
            let (own_failure, failure, stop) =
                (controller.failure(), failure.clone(), stop.clone());
            tasks.spawn(async move {
                let name = controller.name();
                match caught(controller.run(stop.clone())).await {
                    Err(panic) => failure.report(format!("{name} panicked: {panic}")),
                    // A controller that ends before the stop has failed.
                    Ok(()) if !stop.is_stopped() => {
                        let why = own_failure
                            .get()
                            .map_or_else(|| format!("{name} has ended"), str::to_owned);
                        failure.report(why);
                    }
                    Ok(()) => (),
                }
            });
        }
        let caches = async { failure.report(self.factory.failed().await) };
        stop.unless_stopped(failure.reported().or(caches)).await;
        stop.stop();
        tasks.join().await;
        self.shutdown_events().await;
        self.factory.shutdown().await;
        failure.get().map_or(Ok(()), |why| Err(why.to_owned()))
    }

    /// Puts `supervisor` around the work of controllers that are made from now on. Only the first
    /// call has an effect.
    pub(crate) fn supervise(&self, supervisor: Arc<dyn Supervisor>) {
        // A second call is a mistake of the program; the first supervisor stays.
        let _ = self.supervisor.set(supervisor);
    }

    pub(super) fn supervisor(&self) -> Option<Arc<dyn Supervisor>> {
        self.supervisor.get().cloned()
    }

    /// Returns a client of `account` with a rate limit of its own. The clients of one account share
    /// its credentials.
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

    /// Returns a recorder of events whose source is `component`. All recorders of the controller
    /// `name` share one broadcaster, which sends with the `client` of the first call.
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
    /// Returns the informer of a resource, shared with other users. It runs after
    /// [`MetadataCaches::start`]; each call is paired with one of [`MetadataCaches::release`].
    pub fn informer(&self, resource: &ResourceType) -> MetadataInformer {
        self.factory.metadata(resource)
    }

    /// Gives back an informer of [`MetadataCaches::informer`], which ends with its last user. One
    /// of whole objects is a controller's cache and keeps running.
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

#[cfg(test)]
impl ControllerContext {
    /// Makes a context with these flags whose client has no server, and whose caches never sync.
    pub(crate) fn for_test(options: Options, clock: SharedClock) -> Arc<ControllerContext> {
        let source = crate::cache::testing::Script::new();
        ControllerContext::new(ControllerContextParts {
            options: Arc::new(options),
            factory: SharedInformerFactory::new(source, clock.clone()),
            clients: Arc::new(crate::client::testing::without_server(clock.clone())),
            clock,
            extension: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;

    use super::*;
    use crate::client::testing::without_server;
    use crate::clock::FakeClock;
    use crate::controllers::Profile;
    use crate::objects::Timestamp;
    use crate::task::spawn;

    /// A context that makes no requests: its controllers have no caches.
    fn context() -> Arc<ControllerContext> {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        ControllerContext::for_client(without_server(clock.clone()), clock)
    }

    #[test]
    fn controllers_run_until_the_stop() {
        let context = context();
        let (sent, ended) = async_channel::unbounded();
        let controllers = ["a", "b"].map(|name| {
            let mut controller = Controller::new(Profile::new(name), &context).unwrap();
            let sent = sent.clone();
            controller.background(move |stop| async move {
                sent.try_send("begins").unwrap();
                stop.stopped().await;
                sent.try_send("ends").unwrap();
            });
            controller
        });
        let stop = StopToken::new();
        let running = {
            let (context, stop) = (context.clone(), stop.clone());
            spawn(async move { context.run(controllers.into(), &stop).await })
        };
        block_on(async {
            assert_eq!(ended.recv().await, Ok("begins"));
            assert_eq!(ended.recv().await, Ok("begins"));
            stop.stop();
            assert_eq!(running.await, Ok(()));
        });
        assert_eq!((ended.try_recv(), ended.try_recv()), (Ok("ends"), Ok("ends")));
    }

    #[test]
    fn a_controller_that_fails_stops_the_others() {
        type Add = fn(&mut Controller);
        let cases: [(Add, &str); 3] = [
            (
                |c| c.background(|_| async { panic!("as the test asks") }),
                "fails: a task of the controller panicked",
            ),
            (|c| c.background(|_| async {}), "fails: a task of the controller ended"),
            (
                |c| c.background(|_| -> std::future::Ready<()> { panic!("as the test asks") }),
                "fails panicked: as the test asks",
            ),
        ];
        for (add, why) in cases {
            let context = context();
            let mut other = Controller::new(Profile::new("works"), &context).unwrap();
            other.background(|stop| async move { stop.stopped().await });
            let mut fails = Controller::new(Profile::new("fails"), &context).unwrap();
            add(&mut fails);
            let stop = StopToken::new();
            let ended = block_on(context.run(vec![other, fails], &stop));
            assert_eq!(ended, Err(why.to_owned()));
            assert!(!stop.is_stopped(), "the caller's token is not stopped");
        }
    }
}
