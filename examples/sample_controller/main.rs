//! A controller for a kind of its own: each `Foo` has one Deployment, which the controller creates,
//! scales, reports in the Foo's status and deletes with it. Upstream: `k8s.io/sample-controller`.
//!
//! `crd.yaml` defines the kind, `rbac.yaml` has the rights of this process, `foo.yaml` is a Foo.
//! Read from the bottom: `decide` has the rules, `sync` carries out one step of them, `wire` says
//! what is watched, `run` is the process around it.

#![expect(clippy::disallowed_names, reason = "upstream's sample has the kind Foo")]

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use argh::FromArgs;
use kube_controller_manager::cache::{Lister, SharedInformerFactory};
use kube_controller_manager::client::{self, Client, Delete, Patch};
use kube_controller_manager::clock::{SharedClock, SystemClock};
use kube_controller_manager::controllers::{
    Controller, ControllerContext, ControllerContextParts, Error as SyncError, Next, Profile,
    QueuePolicy, SyncResult, keys,
};
use kube_controller_manager::events::Recorder;
use kube_controller_manager::leaderelection::{
    Config, Ended, HealthzAdaptor, LeaderCallbacks, LeaderElector, LeaseLock, Work, new_identity,
};
use kube_controller_manager::metrics::{self, IntCounterVec};
use kube_controller_manager::objects::{
    Deployment, Meta, Object, ObjectKey, Resource, ResourceType, WholeMeta,
};
use kube_controller_manager::server::health::HealthChecks;
use kube_controller_manager::server::http::Server;
use kube_controller_manager::server::routes::Routes;
use kube_controller_manager::server::{Request, Response, handler};
use kube_controller_manager::source::ClientSource;
use kube_controller_manager::task::{self, StopToken};
use serde::{Deserialize, Serialize};
use serde_json::json;

const NAME: &str = "sample-controller";
const FINALIZER: &str = "samplecontroller.k8s.io/deployment";

/// Keeps a Deployment for each Foo.
#[derive(FromArgs)]
struct Args {
    /// path of a kubeconfig; without it the configuration of the Pod
    #[argh(option)]
    kubeconfig: Option<PathBuf>,
    /// the namespace of the lease
    #[argh(option, default = "NAME.to_owned()")]
    namespace: String,
    /// where /healthz and /metrics are served
    #[argh(option, default = "SocketAddr::from(([127, 0, 0, 1], 8080))")]
    address: SocketAddr,
}

/// The kind, as `crd.yaml` defines it. Fields that are not read here need not be listed.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Foo {
    #[serde(rename = "metadata")]
    meta: Meta,
    spec: FooSpec,
    status: FooStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FooSpec {
    deployment_name: String,
    replicas: i32,
}

#[derive(Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct FooStatus {
    available_replicas: i32,
}

impl Resource for Foo {
    const RESOURCE: ResourceType =
        ResourceType::fixed("samplecontroller.k8s.io", "v1alpha1", "Foo", "foos", true);
}

impl Object for Foo {
    fn meta(&self) -> &Meta {
        &self.meta
    }
}

/// `meta` has all metadata, so `update_status` may send it.
impl WholeMeta for Foo {}

static STEPS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    metrics::declared(metrics::Spec {
        name: "sample_controller_steps_total",
        help: "Writes of the controller.",
        labels: &["step"],
        buckets: Vec::new(),
    })
});

fn main() -> ExitCode {
    let args: Args = argh::from_env();
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info")).init();
    match task::run(1, run(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Result<(), Box<dyn Error + Send + Sync>> {
    let stop = task::stop_on_signal()?;
    let clock = SystemClock::shared();
    let mut config = client::Config::load(args.kubeconfig.as_deref(), None)?;
    config.user_agent = NAME.to_owned();
    let client = Client::new(config, clock.clone())?;

    let lease = ObjectKey::new(&args.namespace, NAME);
    let lock = LeaseLock::new(&client.for_lease(), lease, new_identity(), None);
    let elector = LeaderElector::new(Config::new(NAME, Arc::new(lock)), clock.clone())?;

    // A process that waits for the lease is healthy, so this is served from the start.
    let (routes, health) = (Routes::new(), HealthChecks::new());
    let election = HealthzAdaptor::new(Duration::from_secs(20));
    election.set_leader_election(&elector);
    health.add(HealthzAdaptor::NAME, Arc::new(move || election.check()));
    let check = move |request: &Request| health.answer("healthz", request);
    routes.add_tree("/healthz", handler(check));
    let metrics = |_: &Request| Response::new(200, metrics::CONTENT_TYPE, metrics::render());
    routes.add("/metrics", handler(metrics));
    let handler = routes.handler();
    let server = Server::start(args.address, None, handler, clock.clone(), stop.clone()).await;
    let server = server.map_err(|error| format!("--address {}: {error}", args.address))?;
    println!("Serving on {}", server.address());

    let work = move |stop| lead(client, clock, stop);
    let ended = elector.run(LeaderCallbacks::new(work, || ()), &stop).await;
    server.join().await;
    match ended {
        Ended::NeverLed | Ended::Stopped => Ok(()),
        Ended::Lost => Err("the lease is lost".into()),
    }
}

/// Runs the controller until `stop`.
async fn lead(client: Client, clock: SharedClock, stop: StopToken) -> Work {
    let factory = SharedInformerFactory::new(ClientSource::new(client.clone()), clock.clone());
    let context = ControllerContext::new(ControllerContextParts {
        options: Arc::default(),
        factory: factory.clone(),
        clients: Arc::new(client),
        clock,
    });
    let controller = Controller::new(Profile::new(NAME), &context);
    let mut controller = controller.expect("all controllers have the client that is given");
    wire(&mut controller);
    println!("Starting workers");
    let failure = controller.failure();
    factory.start(&stop);
    controller.run(stop).await;
    if let Some(why) = failure.get() {
        eprintln!("{why}");
        std::process::exit(1);
    }
    println!("Stopped workers");
    factory.shutdown().await;
    context.shutdown_events().await;
    Work::Ended
}

/// A change of a Foo, or of a Deployment that a Foo controls, queues the Foo's key.
fn wire(c: &mut Controller) {
    let foos = c.lister::<Foo>();
    let deployments = c.lister::<Deployment>();
    let queue = c.queue(QueuePolicy::default());
    c.watch(&foos, &queue, keys::of_object());
    c.watch(&deployments, &queue, keys::of_controller(&foos).mapper());
    let (client, recorder) = (c.client(), c.recorder());
    let this = Arc::new(FooController { client, recorder, foos, deployments });
    c.sync(queue, &this, FooController::sync);
}

struct FooController {
    client: Client,
    recorder: Recorder,
    foos: Lister<Foo>,
    deployments: Lister<Deployment>,
}

impl FooController {
    /// Takes one step towards the wanted state. The write comes back by a watch, queues the key
    /// again, and the next sync takes the next step: a process may end between any two.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(foo) = self.foos.get(&key) else { return Ok(Next::Done) };
        let name = ObjectKey::new(&key.namespace, &foo.spec.deployment_name);
        let deployment = self.deployments.get(&name);
        let step = match decide(&foo, deployment.as_deref()) {
            Step::Nothing => return Ok(Next::Done),
            Step::SetFinalizers(finalizers) => {
                // With the version, so that a finalizer that came meanwhile is not lost.
                let version = foo.meta.resource_version.to_string();
                let metadata = json!({ "finalizers": finalizers, "resourceVersion": version });
                let patch = Patch::Merge(json!({ "metadata": metadata }));
                self.client.patch::<Foo>(&key, &patch).await?;
                "finalizers"
            }
            Step::Create => {
                let created = self.client.create(&key.namespace, &deployment_of(&foo)).await;
                let _: Deployment = created.map_err(|error| match error.is_already_exists() {
                    // The cache lags behind: retried soon, and not logged as an error.
                    true => SyncError::Stale(error.to_string()),
                    false => error.into(),
                })?;
                self.recorder.normal(&*foo, "Created", format!("Created Deployment {name}"));
                "create"
            }
            Step::Scale => {
                let replicas = foo.spec.replicas;
                let patch = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
                self.client.patch::<Deployment>(&name, &patch).await?;
                self.recorder.normal(&*foo, "Scaled", format!("Scaled {name} to {replicas}"));
                "scale"
            }
            Step::Report(status) => {
                self.client.update_status(&*foo, &status).await?;
                "status"
            }
            Step::Delete(own) => {
                let delete = Delete::background().uid(own.uid.clone());
                self.client.delete::<Deployment>(&name, delete).await?;
                "delete"
            }
            Step::Refuse => {
                let message = format!("Deployment {name} exists and is not managed by {key}");
                self.recorder.warning(&*foo, "ErrResourceExists", &*message);
                // Retried, at longer and longer intervals.
                return Err(SyncError::other(message));
            }
        };
        STEPS.with_label_values(&[step]).inc();
        Ok(Next::Done)
    }
}

/// The next write for a Foo.
enum Step<'a> {
    Nothing,
    SetFinalizers(Vec<&'a str>),
    Create,
    Scale,
    Report(FooStatus),
    Delete(&'a Meta),
    /// The Deployment of that name belongs to another owner.
    Refuse,
}

/// All rules. It sends nothing and waits for nothing, so a test is a table of its arguments.
fn decide<'a>(foo: &'a Foo, deployment: Option<&'a Deployment>) -> Step<'a> {
    let finalizers = foo.meta.finalizers().iter().map(|name| name.as_str());
    let others = finalizers.filter(|name| *name != FINALIZER);
    let has_finalizer = foo.meta.has_finalizer(FINALIZER);
    let own = deployment.filter(|it| it.meta.is_controlled_by(&foo.meta.uid));
    if foo.meta.is_being_deleted() {
        // The Foo is gone only when its Deployment is.
        return match own {
            _ if !has_finalizer => Step::Nothing,
            Some(own) if own.meta.is_being_deleted() => Step::Nothing,
            Some(own) => Step::Delete(&own.meta),
            None => Step::SetFinalizers(others.collect()),
        };
    }
    if !has_finalizer {
        return Step::SetFinalizers(others.chain([FINALIZER]).collect());
    }
    let Some(own) = own else {
        return if deployment.is_some() { Step::Refuse } else { Step::Create };
    };
    let status = FooStatus { available_replicas: own.status.available_replicas.unwrap_or(0) };
    match own.replicas() == foo.spec.replicas {
        false => Step::Scale,
        true if status != foo.status => Step::Report(status),
        true => Step::Nothing,
    }
}

/// The Deployment that a Foo wants. Its owner reference makes the garbage collector delete it, and
/// leads its events to the Foo.
fn deployment_of(foo: &Foo) -> serde_json::Value {
    let labels = json!({ "app": "nginx", "controller": foo.meta.name });
    json!({
        "metadata": {
            "name": foo.spec.deployment_name,
            "ownerReferences": [foo.meta.controller_ref::<Foo>()],
        },
        "spec": {
            "replicas": foo.spec.replicas,
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": { "containers": [{ "name": "nginx", "image": "nginx:latest" }] },
            },
        },
    })
}
