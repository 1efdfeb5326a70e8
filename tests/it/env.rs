//! A cluster and a controller manager for one test.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kube_controller_manager::app::{SERVED_VERSIONS, controller_table};
use kube_controller_manager::cache::SharedInformerFactory;
use kube_controller_manager::client::{Client, Delete, ListOptions, Patch};
use kube_controller_manager::clock::{Clock, FakeClock, SharedClock, SystemClock};
use kube_controller_manager::controllers::{Controller, ControllerContext, ControllerContextParts};
use kube_controller_manager::objects::{
    Deployment, Namespace, Object, ObjectKey, Pod, ReplicaSet, Resource, ResourceType,
};
use kube_controller_manager::options::{Options, Release};
use kube_controller_manager::source::ClientSource;
use kube_controller_manager::task::StopToken;
use sandbox::cluster::{Cluster, Manager, ManagerProgram, administrator};
use sandbox::faults::{Fault, Faults};
use sandbox::nodes::{NodeOptions, StandIns, Steering};
use sandbox::store::Backup;
use sandbox::{Api, SandboxOptions};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{kinds, real};

/// Binds a manager to 1.36, on a server of any release: for gates that 1.37 locks.
pub const AS_1_36: &str = "--emulated-version=1.36";

/// How long a condition may take before the test fails. Not a limit on performance.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    async_std::task::block_on(future)
}

/// The last lines of a log that a failed test shows.
const SHOWN_LINES: usize = 60;

/// A folder that belongs to one test; removed on drop. A test that fails shows the logs in it.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::SeqCst);
        let path = std::env::temp_dir().join(format!("kcm-{name}-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Folder {
    fn show_logs(&self) {
        for entry in std::fs::read_dir(&self.0).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_none_or(|extension| extension != "log") {
                continue;
            }
            let log = std::fs::read(&path).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            let skipped = log.lines().count().saturating_sub(SHOWN_LINES);
            println!("{}, without its first {skipped} lines:", path.display());
            log.lines().skip(skipped).for_each(|line| println!("{line}"));
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.show_logs();
        }
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whether tests that are long by nature run in full.
pub fn long_tests() -> bool {
    std::env::var_os("LONG_TESTS").is_some_and(|value| !value.is_empty())
}

/// The manager under test: the one that `KUBE_CONTROLLER_MANAGER` names, else the one that cargo
/// built with the tests.
pub fn manager_program() -> ManagerProgram {
    let given = std::env::var_os("KUBE_CONTROLLER_MANAGER").filter(|path| !path.is_empty());
    let built = || env!("CARGO_BIN_EXE_kube-controller-manager").into();
    ManagerProgram::Path(PathBuf::from(given.unwrap_or_else(built)))
}

/// A script in `folder` that runs the manager under test after `setup`, a line of shell.
pub fn manager_after(folder: &Folder, setup: &str) -> ManagerProgram {
    let ManagerProgram::Path(program) = manager_program() else { panic!("a path") };
    let script = folder.0.join("manager.sh");
    let text = format!("#!/bin/sh\n{setup}\nexec {} \"$@\"\n", program.display());
    write_program(&script, &text);
    ManagerProgram::Path(script)
}

/// Writes a program, by another process: a descriptor of this one would also be in children that
/// other threads start at this moment, and a file that is open for writing cannot be run.
pub fn write_program(path: &Path, text: &str) {
    let write = "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\"";
    let written = Command::new("sh").args(["-c", write]).arg(path).arg(text).status();
    assert!(written.expect("sh").success());
}

/// The manager's flags for leader election: often renewed, and not lost on a slow machine.
pub fn quick_election() -> Vec<String> {
    [
        "--leader-elect-lease-duration=20s",
        "--leader-elect-renew-deadline=17s",
        "--leader-elect-retry-period=500ms",
    ]
    .map(str::to_owned)
    .to_vec()
}

/// A cluster: the sandbox, or a real API server with stand-ins for nodes and scheduler.
pub struct TestCluster {
    /// Asks for resources in the versions that the server serves, as a manager does.
    pub client: Client,
    /// The API server's release, which managers follow.
    pub release: Release,
    pub clock: SharedClock,
    pub steering: Steering,
    /// Carries the credentials of `system:kube-controller-manager`.
    pub kubeconfig: PathBuf,
    /// `None` on a real server, which has no faults on demand.
    pub faults: Option<Arc<Faults>>,
    server: Server,
    _folder: Folder,
}

/// The API server of a site.
enum Server {
    Sandbox(Arc<Api>),
    Real(Box<real::ApiServer>),
}

/// The objects of a site, and their version.
pub enum SiteBackup {
    Sandbox(Backup),
    /// The folder with the data of etcd.
    Real(PathBuf),
}

const WEBHOOKS: ResourceType = ResourceType::fixed(
    "admissionregistration.k8s.io",
    "v1",
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations",
    false,
);
/// A webhook that cannot be reached, and the API server's message about it.
const WEBHOOK: &str = "refuse.example.com";
const UNREACHABLE: &str = "Internal error occurred: failed calling webhook \"refuse.example.com\": \
    failed to call webhook: Post \"https://127.0.0.1:1/?timeout=5s\": \
    dial tcp 127.0.0.1:1: connect: connection refused";

impl TestCluster {
    /// Starts the built binary as a manager that logs to a file. It is killed on drop. It runs
    /// without leader election: on a slow machine it would lose its lease.
    pub fn manager(&self, name: &str, extra: &[&str]) -> Manager {
        self.spawn(name, vec!["--leader-elect=false".into()], extra)
    }

    /// As [`TestCluster::manager`], with a lease.
    pub fn candidate(&self, name: &str, extra: &[&str]) -> Manager {
        self.spawn(name, quick_election(), extra)
    }

    fn spawn(&self, name: &str, mut flags: Vec<String>, extra: &[&str]) -> Manager {
        // On a slow machine controllers need longer to end than by default.
        flags.push("--controller-shutdown-timeout=60s".to_owned());
        flags.extend(extra.iter().map(|flag| flag.to_string()));
        Manager::spawn(&manager_program(), &self.kubeconfig, name, &flags)
            .expect("the manager starts")
    }

    /// Options of controllers in the test's process, which follow the server's release.
    pub fn options(&self) -> Options {
        let mut options = Options::default();
        options.follow(self.release).expect("no gate is given");
        options
    }

    /// `flag`, which turns on a gate that is on by default since 1.37, where the server is older.
    pub fn before_1_37(&self, flag: &'static str) -> Vec<&'static str> {
        if self.release < Release::V1_37 { vec![flag] } else { Vec::new() }
    }

    pub async fn pods(&self) -> Vec<Pod> {
        list(&self.client).await
    }

    /// A backup of all objects; a real API server restarts.
    pub async fn backup(&self) -> SiteBackup {
        match &self.server {
            Server::Sandbox(api) => SiteBackup::Sandbox(api.store.backup()),
            Server::Real(server) => SiteBackup::Real(server.backup().await),
        }
    }

    /// Restarts the API server with a backup of this site.
    pub async fn restore(&self, backup: &SiteBackup) {
        match (&self.server, backup) {
            (Server::Sandbox(api), SiteBackup::Sandbox(backup)) => api.restore(backup),
            (Server::Real(server), SiteBackup::Real(data)) => server.restore(data).await,
            _ => panic!("a backup of another site"),
        }
    }

    /// Makes the API server refuse to delete objects of `resource`, by a fault or by a webhook that
    /// cannot be reached. Returns the text of its refusals. An object of this kind must need
    /// nothing but a name.
    pub async fn refuse_deletes(&self, resource: &ResourceType) -> &'static str {
        if let Some(faults) = &self.faults {
            for verb in ["delete", "deletecollection"] {
                faults.next(usize::MAX, verb, &resource.plural, Fault::code(500, None));
            }
            return "fault on purpose: InternalError";
        }
        let rule = json!({
            "apiGroups": [resource.group], "apiVersions": [resource.version],
            "resources": [resource.plural], "operations": ["DELETE"],
        });
        let body = json!({
            "apiVersion": WEBHOOKS.api_version(), "kind": WEBHOOKS.kind,
            "metadata": { "name": WEBHOOK },
            "webhooks": [{
                "name": WEBHOOK, "rules": [rule], "failurePolicy": "Fail", "timeoutSeconds": 5,
                "sideEffects": "None", "admissionReviewVersions": ["v1"],
                "clientConfig": { "url": "https://127.0.0.1:1/" },
            }],
        });
        self.client.resource(&WEBHOOKS).create::<Value>("", &body).await.expect("create");
        let (verbs, key) = (self.client.resource(resource), ObjectKey::new("default", "probe"));
        let probe = json!({
            "apiVersion": resource.api_version(), "kind": resource.kind,
            "metadata": { "name": "probe" },
        });
        eventually(&self.clock, "deletes are refused", || async {
            let _ = verbs.create::<Value>("default", &probe).await;
            match verbs.delete(&key, Delete::new()).await {
                Err(error) if error.message() == Some(UNREACHABLE) => Ok(UNREACHABLE),
                other => Err(format!("{other:?}")),
            }
        })
        .await
    }

    pub async fn allow_deletes(&self) {
        match &self.faults {
            Some(faults) => faults.clear(),
            None => {
                let key = ObjectKey::cluster(WEBHOOK);
                self.client.resource(&WEBHOOKS).delete(&key, Delete::new()).await.expect("delete");
            }
        }
    }
}

/// The parts that a controller needs to run in the test's process on the test's clock.
pub struct InProcess {
    pub cx: Arc<ControllerContext>,
    pub factory: SharedInformerFactory,
    pub stop: StopToken,
}

impl InProcess {
    pub fn new(site: &TestCluster, clock: SharedClock, options: Options) -> InProcess {
        InProcess::with_client(site, site.client.clone(), clock, options)
    }

    pub fn with_client(
        site: &TestCluster,
        client: Client,
        clock: SharedClock,
        options: Options,
    ) -> InProcess {
        let factory =
            SharedInformerFactory::new(ClientSource::new(client.clone()), site.clock.clone());
        let stop = StopToken::new();
        let cx = ControllerContext::new(ControllerContextParts {
            options: Arc::new(options),
            factory: factory.clone(),
            clients: Arc::new(client),
            clock,
            extension: None,
        });
        InProcess { cx, factory, stop }
    }
}

/// Advances the controllers' clock until they have read discovery `times` more times.
pub async fn discovery_is_read(env: &Env, clock: &FakeClock, times: u64) {
    let faults = env.cluster.sandbox.faults();
    let wanted = faults.count("get", "/apis") + times;
    eventually(&env.clock, "discovery is read", || async {
        clock.advance(Duration::from_secs(30));
        let count = faults.count("get", "/apis");
        if count >= wanted { Ok(()) } else { Err(count.to_string()) }
    })
    .await;
    env.client.reset_discovery();
}

/// The controller of a row of the table.
pub fn controller_of(name: &str, cx: &Arc<ControllerContext>) -> Controller {
    let row = controller_table::find(name).expect("a row of this name");
    row.construct(cx).expect("a controller")
}

/// Nodes that start and stop pods without delay.
pub fn quick_nodes() -> NodeOptions {
    NodeOptions {
        start_delay: Duration::ZERO,
        stop_delay: Duration::ZERO,
        ..NodeOptions::default()
    }
}

/// The properties of a test's cluster.
struct Setup {
    /// Whether a pod needs its service account.
    service_accounts: bool,
    /// Whether versions and kinds behind gates are served.
    all_versions: bool,
    /// The minor version of Kubernetes 1 that the sandbox is.
    minor: u32,
    nodes: NodeOptions,
}

impl Default for Setup {
    fn default() -> Setup {
        // The whole suite can run on the sandbox as another release: `SANDBOX_MINOR=37`.
        let minor = std::env::var("SANDBOX_MINOR");
        Setup {
            service_accounts: false,
            all_versions: false,
            minor: minor.map_or(36, |minor| minor.parse().expect("SANDBOX_MINOR is a number")),
            nodes: quick_nodes(),
        }
    }
}

/// A sandbox cluster.
pub struct Env {
    pub cluster: Cluster,
    site: TestCluster,
}

impl std::ops::Deref for Env {
    type Target = TestCluster;
    fn deref(&self) -> &TestCluster {
        &self.site
    }
}

impl Env {
    /// Runs `scenario` on a new sandbox cluster and stops the cluster. As on the real server of
    /// [`everywhere`], pods need no service account.
    pub fn run(name: &str, scenario: impl AsyncFn(&Env)) {
        block_on(async { Env::new(name).await.finish(scenario).await });
    }

    /// [`Env::run`] where pods need their service account, as on a cluster.
    pub fn run_with_service_accounts(name: &str, scenario: impl AsyncFn(&Env)) {
        let how = Setup { service_accounts: true, ..Setup::default() };
        block_on(async { Env::start(name, how).await.finish(scenario).await });
    }

    /// [`Env::run`], with nodes that behave as `nodes` says.
    pub fn run_with_nodes(name: &str, nodes: NodeOptions, scenario: impl AsyncFn(&Env)) {
        let how = Setup { nodes, ..Setup::default() };
        block_on(async { Env::start(name, how).await.finish(scenario).await });
    }

    /// [`Env::run`] on several clusters at once, one for each name.
    pub fn run_several(names: &[&str], scenario: impl AsyncFn(&[Env])) {
        block_on(async {
            let mut all = Vec::new();
            for name in names {
                all.push(Env::new(name).await);
            }
            scenario(&all).await;
            for env in all {
                env.stop().await;
            }
        });
    }

    /// [`Env::run`] with the kinds that are behind gates.
    pub fn run_with_gates(name: &str, scenario: impl AsyncFn(&Env)) {
        let how = Setup { all_versions: true, ..Setup::default() };
        block_on(async { Env::start(name, how).await.finish(scenario).await });
    }

    /// [`Env::run`] on a server of 1.37.
    pub fn run_as_1_37(name: &str, scenario: impl AsyncFn(&Env)) {
        Env::run_as(name, 37, scenario);
    }

    /// [`Env::run`] on a server that says to be of this minor version of Kubernetes 1.
    pub fn run_as(name: &str, minor: u32, scenario: impl AsyncFn(&Env)) {
        let how = Setup { minor, ..Setup::default() };
        block_on(async { Env::start(name, how).await.finish(scenario).await });
    }

    /// [`Env::run_as_1_37`], with nodes that behave as `nodes` says.
    pub fn run_as_1_37_with_nodes(name: &str, nodes: NodeOptions, scenario: impl AsyncFn(&Env)) {
        let how = Setup { minor: 37, nodes, ..Setup::default() };
        block_on(async { Env::start(name, how).await.finish(scenario).await });
    }

    /// [`Env::run_as_1_37`] with the kinds that are behind gates.
    pub fn run_as_1_37_with_gates(name: &str, scenario: impl AsyncFn(&Env)) {
        let how = Setup { minor: 37, all_versions: true, ..Setup::default() };
        block_on(async { Env::start(name, how).await.finish(scenario).await });
    }

    /// Serves these kinds in these versions alone from now on, and asks for them in the versions.
    pub async fn serve(&self, kinds: &[(&str, &str)]) {
        for (kind, version) in kinds {
            self.cluster.sandbox.api().serve_versions(kind, &[version]);
        }
        self.client.reset_discovery();
        self.client.discovery().await.expect("discovery");
        self.client.reset_discovery();
    }

    async fn finish(self, scenario: impl AsyncFn(&Env)) {
        scenario(&self).await;
        self.stop().await;
    }

    async fn new(name: &str) -> Env {
        Env::start(name, Setup::default()).await
    }

    async fn start(name: &str, how: Setup) -> Env {
        let folder = Folder::new(name);
        let Setup { service_accounts, all_versions, minor, nodes } = how;
        let options = SandboxOptions {
            service_accounts,
            all_versions,
            minor,
            ..SandboxOptions::new(folder.0.clone())
        };
        let cluster = Cluster::start(options, nodes).await.expect("the sandbox starts");
        let site = TestCluster {
            release: release_of(&cluster.client).await,
            client: cluster.client.clone(),
            clock: cluster.clock(),
            steering: cluster.steering.clone(),
            kubeconfig: cluster.manager_kubeconfig(),
            faults: Some(cluster.sandbox.faults().clone()),
            server: Server::Sandbox(cluster.sandbox.api().clone()),
            _folder: folder,
        };
        Env { cluster, site }
    }

    async fn stop(self) {
        self.cluster.stop().await;
        drop(self.site);
    }
}

/// Runs `scenario` on the sandbox, and then on a real API server if `KUBEBUILDER_ASSETS` names the
/// folder that holds `kube-apiserver` and `etcd`.
pub fn everywhere(name: &str, scenario: impl AsyncFn(&TestCluster)) {
    everywhere_like(name, Setup::default(), &[], scenario);
}

/// [`everywhere`], with nodes that behave as `nodes` says.
pub fn everywhere_with(name: &str, nodes: NodeOptions, scenario: impl AsyncFn(&TestCluster)) {
    everywhere_like(name, Setup { nodes, ..Setup::default() }, &[], scenario);
}

/// [`everywhere`] with the kinds that are behind gates: the sandbox serves them, and the real
/// server is started with `flags`.
pub fn everywhere_with_gates(name: &str, flags: &[&str], scenario: impl AsyncFn(&TestCluster)) {
    everywhere_like(name, Setup { all_versions: true, ..Setup::default() }, flags, scenario);
}

fn everywhere_like(name: &str, how: Setup, flags: &[&str], scenario: impl AsyncFn(&TestCluster)) {
    let nodes = how.nodes.clone();
    block_on(async {
        Env::start(name, how).await.finish(async |env: &Env| scenario(env).await).await;
    });
    on_server_with(name, nodes, flags, scenario);
}

/// Runs `scenario` on a real API server with further flags: for kinds that the sandbox does not
/// serve.
pub fn on_real_server(name: &str, flags: &[&str], scenario: impl AsyncFn(&TestCluster)) {
    on_server_with(name, quick_nodes(), flags, scenario);
}

fn on_server_with(
    name: &str,
    nodes: NodeOptions,
    flags: &[&str],
    scenario: impl AsyncFn(&TestCluster),
) {
    let Some(assets) = real::assets() else { return };
    block_on(async {
        let folder = Folder::new(name);
        let clock = SystemClock::shared();
        let server = real::ApiServer::start(&assets, &folder.0, flags, &clock).await;
        let client = administrator(&server.server.admin, "tests", &clock).expect("a client");
        let stand_ins = StandIns::start(&client, &clock, nodes);
        let steering = stand_ins.steering.clone();
        let kubeconfig = server.server.kubeconfig.clone();
        let server = Server::Real(Box::new(server));
        let site = TestCluster {
            release: release_of(&client).await,
            client,
            clock,
            steering,
            kubeconfig,
            faults: None,
            server,
            _folder: folder,
        };
        scenario(&site).await;
        stand_ins.stop().await;
        drop(site);
    });
}

/// The release of this client's API server, in whose versions the client then asks for resources.
async fn release_of(client: &Client) -> Release {
    client.choose_versions(SERVED_VERSIONS).await.expect("discovery");
    client.reset_discovery();
    let version = client.get_path("/version").await.expect("a version");
    let version: Value = serde_json::from_slice(&version).expect("JSON");
    let minor = version["minor"].as_str().expect("a minor version");
    Release::for_server(minor.trim_end_matches('+').parse().expect("a number"))
}

pub async fn list<T: Resource + DeserializeOwned>(client: &Client) -> Vec<T> {
    client.list(Some("default"), &ListOptions::default()).await.expect("list")
}

/// Waits for an event with this reason, about the object of this name, whose message ends with
/// `message`.
pub async fn has_event(env: &TestCluster, name: &str, reason: &str, message: &str) {
    let what = format!("{name} has the event {reason}: {message}");
    eventually(&env.clock, &what, || async {
        let events = env.client.resource(&kinds::EVENTS);
        let events = events.list::<Value>(None, &ListOptions::default()).await;
        let events = events.map_err(|error| error.to_string())?.items;
        let found = events.iter().any(|event| {
            event["involvedObject"]["name"] == name
                && event["reason"] == reason
                && event["message"].as_str().is_some_and(|text| text.ends_with(message))
        });
        if found { Ok(()) } else { Err(format!("{events:#?}")) }
    })
    .await;
}

/// Repeats `look` until it returns `Ok`. Panics with `what` and the last error after [`PATIENCE`].
pub async fn eventually<T, F, Fut>(clock: &Arc<dyn Clock>, what: &str, mut look: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, String>>,
{
    let give_up = clock.monotonic() + PATIENCE;
    loop {
        match look().await {
            Ok(found) => return found,
            Err(last) if clock.monotonic() > give_up => panic!("{what}: {last}"),
            Err(_) => clock.sleep(Duration::from_millis(50)).await,
        }
    }
}

/// A Deployment of one container, selected by `app: <name>`.
pub fn deployment(name: &str, replicas: i32, image: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "containers": [{ "name": "main", "image": image }] },
            },
        },
    })
}

/// Whether a kind that [`create`] creates is namespaced.
pub fn is_namespaced(kind: &str) -> bool {
    const OF_CLUSTER: [&str; 6] = [
        "DeviceTaintRule",
        "PersistentVolume",
        "ResourcePoolStatusRequest",
        "ResourceSlice",
        "StorageVersion",
        "StorageVersionMigration",
    ];
    !OF_CLUSTER.contains(&kind)
}

pub async fn create(client: &Client, object: Value) -> Value {
    let (group, version) =
        object["apiVersion"].as_str().unwrap().rsplit_once('/').unwrap_or(("", "v1"));
    let kind = object["kind"].as_str().unwrap();
    let resource = ResourceType {
        group: group.to_owned().into(),
        version: version.to_owned().into(),
        kind: kind.to_owned().into(),
        plural: format!("{}s", kind.to_lowercase()).into(),
        namespaced: is_namespaced(kind),
    };
    client.resource(&resource).create("default", &object).await.expect("create")
}

pub async fn make_namespace(client: &Client, name: &str) {
    let namespace =
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
    client.create::<Namespace>("", &namespace).await.expect("create");
}

pub async fn merge<T: Resource + DeserializeOwned>(client: &Client, name: &str, patch: Value) -> T {
    let key = ObjectKey::new("default", name);
    client.patch::<T>(&key, &Patch::Merge(patch)).await.expect("patch")
}

pub fn set_image(image: &str) -> Value {
    json!({ "spec": { "template": { "spec": { "containers": [{ "name": "main", "image": image }] } } } })
}

/// Waits until every pod of the Deployment is available and has the newest template.
pub async fn rolled_out(client: &Client, clock: &SharedClock, name: &str) -> Deployment {
    let key = ObjectKey::new("default", name);
    let deployment = eventually(clock, &format!("deployment {name} rolls out"), || async {
        let deployment: Deployment =
            client.get(&key).await.map_err(|error| format!("cannot be read: {error}"))?;
        let (status, wanted) = (&deployment.status, deployment.replicas());
        let counts = [
            status.replicas,
            status.updated_replicas,
            status.ready_replicas,
            status.available_replicas,
        ];
        let complete = status.observed_generation == Some(deployment.meta.generation)
            && counts.iter().all(|count| count.unwrap_or(0) == wanted)
            && status.unavailable_replicas.unwrap_or(0) == 0;
        if complete { Ok(deployment) } else { Err(format!("{counts:?} of {wanted}: {status:?}")) }
    })
    .await;
    check_owners(client, &deployment).await;
    deployment
}

/// Asserts what must hold when a rollout is over: the pods belong to one ReplicaSet, which belongs
/// to the Deployment, and their number is the number asked for.
pub async fn check_owners(client: &Client, deployment: &Deployment) {
    let sets: Vec<ReplicaSet> = list(client).await;
    let owned: Vec<&ReplicaSet> =
        sets.iter().filter(|set| set.meta().is_controlled_by(&deployment.meta.uid)).collect();
    let live: Vec<&&ReplicaSet> = owned.iter().filter(|set| set.replicas() > 0).collect();
    assert!(live.len() <= 1, "more than one live ReplicaSet: {live:#?}");
    let pods: Vec<Pod> = list(client).await;
    let active: Vec<&Pod> = pods
        .iter()
        .filter(|pod| pod.is_active())
        .filter(|pod| owned.iter().any(|set| pod.meta().is_controlled_by(&set.meta.uid)))
        .collect();
    assert_eq!(
        active.len() as i32,
        deployment.replicas(),
        "active pods of {}",
        deployment.meta.name
    );
    if let Some(set) = live.first() {
        assert!(active.iter().all(|pod| pod.meta().is_controlled_by(&set.meta.uid)));
    }
}
