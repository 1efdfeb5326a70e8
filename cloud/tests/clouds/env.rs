//! An API server, and the controllers of clouds beside it.

use std::collections::HashMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use cloud::app::controller_table::controllers;
use cloud::controllers::Parts;
use cloud::objects::{Node, Service};
use futures_lite::future::block_on;
use kube_controller_manager::cache::SharedInformerFactory;
use kube_controller_manager::client::{Client, Guard, ListOptions, Patch};
use kube_controller_manager::clock::{FakeClock, SharedClock, SystemClock};
use kube_controller_manager::controllers::{
    ClientBuilder, Controller, ControllerContext, ControllerContextParts,
};
use kube_controller_manager::objects::{ObjectKey, Resource, ResourceType};
use kube_controller_manager::options::Options;
use kube_controller_manager::source::ClientSource;
use kube_controller_manager::task::{self, StopToken};
use parking_lot::Mutex;
use sandbox::cluster::administrator;
use sandbox::faults::Faults;
use sandbox::real_server::{self, RealOptions, RealServer};
use sandbox::{Sandbox, SandboxOptions};
use serde_json::{Value, json};

use crate::fake::Fake;

/// How long a state may take before the test fails. Not a limit on performance.
const PATIENCE: Duration = Duration::from_secs(120);
const EVENTS: ResourceType = ResourceType::fixed("", "v1", "Event", "events", true);

/// An API server alone, without nodes.
pub struct Env {
    server: Server,
    pub client: Client,
    pub clock: SharedClock,
    folder: PathBuf,
}

enum Server {
    Sandbox(Box<Sandbox>),
    Real(Box<RealServer>),
}

impl Server {
    fn administrator(&self) -> PathBuf {
        match self {
            Server::Sandbox(sandbox) => sandbox.kubeconfig(),
            Server::Real(server) => server.admin.clone(),
        }
    }
}

impl Env {
    /// Runs `scenario` on a new sandbox.
    pub fn run(name: &str, scenario: impl AsyncFn(&Env)) {
        Env::run_with(name, |_| {}, scenario);
    }

    /// [`Env::run`] on a sandbox of this minor version.
    pub fn run_as_minor(name: &str, minor: u32, scenario: impl AsyncFn(&Env)) {
        Env::run_with(name, |options| options.minor = minor, scenario);
    }

    fn run_with(name: &str, change: impl Fn(&mut SandboxOptions), scenario: impl AsyncFn(&Env)) {
        let folder = folder(name);
        block_on(async {
            let mut options = SandboxOptions::new(&folder);
            options.service_accounts = false;
            change(&mut options);
            let sandbox = Sandbox::start(options).await.expect("the sandbox starts");
            let env = Env::new(Server::Sandbox(Box::new(sandbox)), folder);
            scenario(&env).await;
            if let Server::Sandbox(sandbox) = &env.server {
                sandbox.stop().await;
            }
        });
    }

    /// Runs `scenario` on a new sandbox, and then on a real API server if `KUBEBUILDER_ASSETS`
    /// names the folder that holds `kube-apiserver` and `etcd`. Real ones have no faults on demand.
    pub fn everywhere(name: &str, scenario: impl AsyncFn(&Env)) {
        /// Only one runs at a time: they are heavy.
        static TURN: Mutex<()> = Mutex::new(());
        Env::run(name, &scenario);
        let Some(assets) = real_server::assets() else { return };
        let _turn = TURN.lock();
        let folder = folder(name);
        block_on(async {
            let options = RealOptions {
                assets: &assets,
                dir: &folder,
                etcd_flags: &["--unsafe-no-fsync"],
                api_flags: &[],
            };
            let server = RealServer::start(options, &SystemClock::shared()).await;
            let server = server.unwrap_or_else(|error| panic!("{error}"));
            let env = Env::new(Server::Real(Box::new(server)), folder);
            scenario(&env).await;
        });
    }

    fn new(server: Server, folder: PathBuf) -> Env {
        let clock = SystemClock::shared();
        let file = server.administrator();
        let client = administrator(&file, "test", &clock).expect("a client");
        Env { server, client, clock, folder }
    }

    /// The kubeconfig of an administrator.
    pub fn administrator(&self) -> PathBuf {
        self.server.administrator()
    }

    /// The faults of the sandbox, on which the test runs.
    pub fn faults(&self) -> &Arc<Faults> {
        match &self.server {
            Server::Sandbox(sandbox) => sandbox.faults(),
            Server::Real(_) => panic!("a real API server has no faults on demand"),
        }
    }

    /// Writes a file into the folder of this test.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.join(name);
        std::fs::write(&path, text).expect("a file");
        path
    }

    /// Waits until `observe` returns `Ok`.
    pub async fn eventually<T, F: Future<Output = Result<T, String>>>(
        &self,
        what: &str,
        observe: impl Fn() -> F,
    ) -> T {
        let give_up = self.clock.monotonic() + PATIENCE;
        loop {
            match observe().await {
                Ok(found) => return found,
                Err(last) if self.clock.monotonic() > give_up => panic!("{what}: {last}"),
                Err(_) => self.clock.sleep(Duration::from_millis(10)).await,
            }
        }
    }

    pub async fn patch<T: Resource>(&self, key: &ObjectKey, patch: Value) {
        let patch = Patch::Merge(patch);
        self.client.resource(&T::RESOURCE).patch::<Value>(key, &patch).await.expect("patched");
    }

    pub async fn patch_status<T: Resource>(&self, key: &ObjectKey, patch: Value) {
        let status = self.client.resource(&T::RESOURCE).subresource("status");
        status.patch::<Value>(key, &Patch::Merge(patch)).await.expect("patched");
    }

    /// Creates a Service of this name that asks for a load balancer.
    pub async fn create_service(&self, name: &str) -> ObjectKey {
        let service = json!({
            "metadata": { "name": name },
            "spec": {
                "type": "LoadBalancer", "ports": [{ "port": 80 }], "selector": { "app": "web" },
            },
        });
        self.client.create::<Service>("default", &service).await.expect("created");
        ObjectKey::new("default", name)
    }

    /// Creates a Node, and makes it ready.
    pub async fn create_node(&self, name: &str, spec: Value) -> ObjectKey {
        let node = json!({ "metadata": { "name": name }, "spec": spec });
        self.client.create::<Node>("", &node).await.expect("created");
        let key = ObjectKey::cluster(name);
        self.set_ready(&key, "True").await;
        key
    }

    pub async fn set_ready(&self, key: &ObjectKey, status: &str) {
        let ready = json!([{ "type": "Ready", "status": status }]);
        self.patch_status::<Node>(key, json!({ "status": { "conditions": ready } })).await;
    }

    /// The object, or `None` when it is gone.
    pub async fn get<T: Resource>(&self, key: &ObjectKey) -> Option<Value> {
        match self.client.resource(&T::RESOURCE).get::<Value>(key).await {
            Err(error) if error.is_not_found() => None,
            found => Some(found.expect("an answer")),
        }
    }

    async fn events(&self, about: &str) -> Vec<Value> {
        let events = self.client.resource(&EVENTS);
        let events = events.list::<Value>(None, &ListOptions::default()).await.expect("events");
        let about =
            events.items.into_iter().filter(|event| event["involvedObject"]["name"] == about);
        about.collect()
    }

    /// The reasons of all events about objects of this name.
    pub async fn reasons(&self, about: &str) -> Vec<String> {
        let events = self.events(about).await;
        events.iter().filter_map(|event| event["reason"].as_str().map(str::to_owned)).collect()
    }

    /// Whether an event about an object of this name has this text in its message.
    pub async fn has_message(&self, about: &str, text: &str) -> Result<(), String> {
        let events = self.events(about).await;
        let has = |event: &Value| event["message"].as_str().is_some_and(|it| it.contains(text));
        if events.iter().any(has) { Ok(()) } else { Err(format!("{events:?}")) }
    }

    /// Waits for events with all of these reasons.
    pub async fn eventually_recorded(&self, about: &str, reasons: &[&str]) {
        self.eventually(&format!("events about {about}"), || async {
            let found = self.reasons(about).await;
            let has_all = reasons.iter().all(|reason| found.iter().any(|other| other == reason));
            if has_all { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
    }

    /// Starts controllers, each under its own service account, on a clock of their own.
    pub fn start(&self, fake: &Arc<Fake>, options: Options, names: &[&str]) -> Running {
        let clock = FakeClock::new(self.clock.now());
        let alive = Arc::new(AtomicBool::new(true));
        let source = ClientSource::new(self.client.clone());
        let accounts = Accounts {
            kubeconfigs: controllers()
                .iter()
                .map(|row| (row.profile.account, self.account(row.profile.account)))
                .collect(),
            clock: self.clock.clone(),
            alive: alive.clone(),
            clients: Mutex::default(),
        };
        let context = ControllerContext::new(ControllerContextParts {
            options: Arc::new(options),
            factory: SharedInformerFactory::new(source, self.clock.clone()),
            clients: Arc::new(accounts),
            clock: clock.clone(),
            extension: Some(Arc::new(Parts {
                cloud: fake.clone(),
                node_status_update_frequency: Duration::from_secs(300),
                concurrent_node_syncs: 2,
                concurrent_node_status_updates: 2,
                concurrent_node_lifecycle_syncs: 2,
            })),
        });
        let rows = controllers();
        let rows = rows.iter().filter(|row| names.contains(&row.name()));
        let made: Vec<Controller> =
            rows.map(|row| row.construct(&context).expect("a controller")).collect();
        assert_eq!(made.len(), names.len());
        assert!(made.iter().all(|controller| !controller.is_idle()));
        let stop = StopToken::new();
        let stopped = stop.clone();
        let ended = task::spawn(async move { context.run(made, &stopped).await });
        Running { clock, alive, stop, ended }
    }

    /// A kubeconfig for a service account.
    pub fn account(&self, name: &str) -> PathBuf {
        let user = format!("system:serviceaccount:kube-system:{name}");
        let groups = ["system:serviceaccounts", "system:authenticated"];
        match &self.server {
            Server::Sandbox(sandbox) => sandbox.kubeconfig_for(&user, &groups).expect("written"),
            Server::Real(server) => {
                server.kubeconfig_with_certificate(&user, &groups).expect("written")
            }
        }
    }
}

/// A folder for the files of one test.
fn folder(name: &str) -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let unique = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::SeqCst));
    std::env::temp_dir().join(format!("cloud-{name}-{unique}"))
}

impl Drop for Env {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Controllers that run.
pub struct Running {
    /// The time of their periods and retries.
    pub clock: Arc<FakeClock>,
    alive: Arc<AtomicBool>,
    stop: StopToken,
    ended: task::Task<Result<(), String>>,
}

impl Running {
    pub async fn stop(self) {
        self.stop.stop();
        assert_eq!(self.ended.await, Ok(()));
    }

    /// As a process that is killed: nothing that it does has an effect on the API server from now
    /// on.
    pub fn kill(&self) {
        self.alive.store(false, Ordering::SeqCst);
        self.stop.stop();
    }
}

/// A client for each service account, which writes while the process is alive.
struct Accounts {
    kubeconfigs: HashMap<&'static str, PathBuf>,
    clock: SharedClock,
    alive: Arc<AtomicBool>,
    clients: Mutex<HashMap<String, Client>>,
}

impl ClientBuilder for Accounts {
    fn client(&self, name: &str) -> Result<Client, String> {
        let known = self.clients.lock().get(name).cloned();
        if let Some(client) = known {
            return Ok(client);
        }
        let file = self.kubeconfigs.get(name).ok_or_else(|| format!("no account {name}"))?;
        let client = administrator(file, name, &self.clock).map_err(|error| error.to_string())?;
        let alive = self.alive.clone();
        let client = client.guarded(Guard::new(move || alive.load(Ordering::SeqCst)));
        self.clients.lock().insert(name.to_owned(), client.clone());
        Ok(client)
    }

    fn root_client(&self, name: &str) -> Client {
        self.client(name).expect("a client")
    }
}
