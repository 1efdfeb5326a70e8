//! A controller for a kind of its own: each `Foo` has one Deployment, which the controller creates,
//! scales, reports in the Foo's status and deletes with it. Upstream: `k8s.io/sample-controller`.
//!
//! `crd.yaml` defines the kind, `rbac.yaml` has the namespace and the rights of this process,
//! `foo.yaml` is a Foo. With the kubeconfig that `cargo run --bin sandbox` prints:
//!
//! ```sh
//! export KUBECONFIG=…/admin.conf
//! kubectl apply -f examples/sample_controller/crd.yaml -f examples/sample_controller/rbac.yaml
//! cargo run --bin sample-controller -- --kubeconfig $KUBECONFIG
//! # In another terminal:
//! kubectl apply -f examples/sample_controller/foo.yaml
//! kubectl get foos,deployments,events
//! ```
//!
//! Read from the bottom: `decide` has the rules, `sync` carries out one step of them, `wire` says
//! what is watched, `run` is the process around it.

#![expect(clippy::disallowed_names, reason = "upstream's sample has the kind Foo")]

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use argh::FromArgs;
use kube_controller_manager::cache::Lister;
use kube_controller_manager::client::{self, Client, Delete, Patch};
use kube_controller_manager::clock::SystemClock;
use kube_controller_manager::controllers::{
    Controller, ControllerContext, Error as SyncError, Next, Profile, QueuePolicy, SyncResult, keys,
};
use kube_controller_manager::events::Recorder;
use kube_controller_manager::leaderelection::{
    Config, Ended, HealthzAdaptor, LeaderCallbacks, LeaderElector, LeaseLock, Work, new_identity,
};
use kube_controller_manager::metrics::metrics;
use kube_controller_manager::objects::{
    Deployment, Meta, Object, ObjectKey, Resource, ResourceType, WholeMeta,
};
use kube_controller_manager::server::{HealthChecks, Routes, Server};
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

metrics! {
    static STEPS: IntCounterVec["step"] = "sample_controller_steps_total", "Writes, by kind.";
}

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info")).init();
    task::main(run(argh::from_env()))
}

/// Serves health and metrics, waits for the lease, and runs the controller while it is held.
async fn run(args: Args) -> Result<(), Box<dyn Error + Send + Sync>> {
    let stop = task::stop_on_signal()?;
    let clock = SystemClock::shared();
    let config = client::Config::load(args.kubeconfig.as_deref(), None)?;
    let client = Client::new(config, clock.clone())?.named(NAME);

    let lease = ObjectKey::new(&args.namespace, NAME);
    let lock = LeaseLock::new(&client.for_lease(), lease, new_identity(), None);
    let elector = LeaderElector::new(Config::new(NAME, Arc::new(lock)), clock.clone())?;

    // The controller's writes are refused from the moment when another process may lead.
    let guard = elector.guard();
    let context = ControllerContext::for_client(client.guarded(guard.clone()), clock.clone());
    let mut controller = Controller::new(Profile::new(NAME), &context)?;
    wire(&mut controller);

    // A process that waits for the lease is healthy, so this is served from the start.
    let (routes, health, election) = (Routes::new(), HealthChecks::new(), elector.clone());
    let check = move || election.check(Duration::from_secs(20));
    health.add(HealthzAdaptor::NAME, Arc::new(check));
    routes.add_health(&health);
    routes.add_metrics();
    let (handler, stop_serving) = (routes.handler(), stop.clone());
    let server = Server::start(args.address, None, handler, clock.clone(), stop_serving).await;
    let server = server.map_err(|error| format!("--address {}: {error}", args.address))?;
    println!("Serving on {}", server.address());

    let lead = |stop: StopToken| async move {
        println!("Starting workers");
        if let Err(why) = context.run(vec![controller], &stop).await {
            eprintln!("{why}");
            std::process::exit(1);
        }
        println!("Stopped workers");
        // The lease is released, unless the server may still carry out a write.
        if guard.close(clock.monotonic()) { Work::Ended } else { Work::Unfinished }
    };
    match elector.run(LeaderCallbacks::new(lead, || ()), &stop).await {
        // Another process may lead by now: this one ends at once.
        Ended::Lost => return Err("the lease is lost".into()),
        Ended::NeverLed | Ended::Stopped => server.join().await,
    }
    Ok(())
}

/// Queues a Foo's key at each change of the Foo, or of a Deployment that it controls.
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

/// Carries out the steps for each Foo; `wire` makes it.
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
            // Both conflict if another client has changed the Foo meanwhile; the key is retried.
            Step::AddFinalizer => {
                self.client.add_finalizer(&*foo, FINALIZER).await?;
                "add finalizer"
            }
            Step::RemoveFinalizer => {
                self.client.remove_finalizer(&*foo, FINALIZER).await?;
                "remove finalizer"
            }
            Step::Create => {
                let body = deployment_of(&foo);
                match self.client.create::<Deployment>(&key.namespace, &body).await {
                    // The cache lags behind: retried soon, and not logged as an error.
                    Err(error) if error.is_already_exists() => {
                        return Err(SyncError::Stale(error.to_string()));
                    }
                    created => created?,
                };
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
            Step::Delete(controlled) => {
                let delete = Delete::background().uid(controlled.uid.clone());
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
    AddFinalizer,
    RemoveFinalizer,
    Create,
    Scale,
    Report(FooStatus),
    Delete(&'a Meta),
    /// The Deployment of that name belongs to another owner.
    Refuse,
}

/// Decides the next step for a Foo; all rules are here. It sends nothing and waits for nothing, so
/// a test is a table of its arguments.
fn decide<'a>(foo: &Foo, deployment: Option<&'a Deployment>) -> Step<'a> {
    let has_finalizer = foo.meta.has_finalizer(FINALIZER);
    let controlled = deployment.filter(|it| it.meta.is_controlled_by(&foo.meta.uid));
    if foo.meta.is_being_deleted() {
        // The Foo is gone only when its Deployment is.
        return match controlled {
            _ if !has_finalizer => Step::Nothing,
            Some(controlled) if controlled.meta.is_being_deleted() => Step::Nothing,
            Some(controlled) => Step::Delete(&controlled.meta),
            None => Step::RemoveFinalizer,
        };
    }
    if !has_finalizer {
        return Step::AddFinalizer;
    }
    let Some(controlled) = controlled else {
        return if deployment.is_some() { Step::Refuse } else { Step::Create };
    };
    let status =
        FooStatus { available_replicas: controlled.status.available_replicas.unwrap_or(0) };
    match controlled.replicas() == foo.spec.replicas {
        false => Step::Scale,
        true if status != foo.status => Step::Report(status),
        true => Step::Nothing,
    }
}

/// Builds the Deployment that a Foo wants. Its owner reference makes the garbage collector delete
/// it, and leads its events to the Foo.
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
