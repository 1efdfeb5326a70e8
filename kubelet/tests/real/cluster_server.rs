//! The API server of a cluster, embedded or real, and what a cluster has beside it: a scheduler, a
//! driver of volumes, and controllers of the manager.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kube_controller_manager::app::controller_table;
use kube_controller_manager::cache::SharedInformerFactory;
use kube_controller_manager::client::Client;
use kube_controller_manager::clock::{SharedClock, SystemClock};
use kube_controller_manager::controllers::{ControllerContext, ControllerContextParts};
use kube_controller_manager::objects::{ObjectKey, ResourceType};
use kube_controller_manager::options::Options;
use kube_controller_manager::source::ClientSource;
use kube_controller_manager::task::{self, StopToken, Task};
use sandbox::SandboxOptions;
use sandbox::cluster::Cluster;
use sandbox::containers;
use sandbox::demo;
use sandbox::nodes::{DRIVER, NodeOptions, StandIns};
use sandbox::real_server::{RealOptions, RealServer};
use serde_json::{Value, json};

use super::api::PATIENCE;

pub struct ClusterServer {
    /// An administrator's.
    pub client: Client,
    /// The administrator's kubeconfig.
    pub kubeconfig: PathBuf,
    pub node_kubeconfig: PathBuf,
    pub clock: SharedClock,
    server: Server,
    controllers: Controllers,
}

enum Server {
    Embedded(Box<Cluster>),
    Real(Box<RealServer>, Box<StandIns>),
}

impl ClusterServer {
    /// The embedded one, with its files in `folder`. `volumes`: the folder of claims' volumes.
    pub async fn embedded(
        folder: &Path,
        volumes: &Path,
        controllers: &[&str],
        options: Options,
    ) -> ClusterServer {
        let files = SandboxOptions::new(folder.join("server"));
        let cluster = Cluster::start(files, nodes(volumes)).await.expect("a cluster");
        let authority = cluster.sandbox.client_config().ca.clone();
        let (client, clock) = (cluster.client.clone(), cluster.clock());
        let kubeconfig = cluster.kubeconfig();
        ClusterServer {
            controllers: Controllers::start(&client, &clock, &authority, controllers, options),
            client,
            node_kubeconfig: kubeconfig.clone(),
            kubeconfig,
            clock,
            server: Server::Embedded(Box::new(cluster)),
        }
    }

    /// A real one, whose programs are in the folder `assets`. Its node has the rights of a node.
    pub async fn real(
        assets: &Path,
        folder: &Path,
        volumes: &Path,
        controllers: &[&str],
        options: Options,
    ) -> ClusterServer {
        let clock = SystemClock::shared();
        let dir = folder.join("server");
        let api_flags = [
            // To kubelets it is the administrator.
            format!("--kubelet-client-certificate={}", dir.join("admin.crt").display()),
            format!("--kubelet-client-key={}", dir.join("admin.key").display()),
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            // Beside RBAC, which is on.
            "--authorization-mode=Node".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            // For the profile `sysadmin` of `kubectl debug`.
            "--allow-privileged=true".to_owned(),
        ];
        let api_flags: Vec<&str> = api_flags.iter().map(String::as_str).collect();
        let start = RealOptions {
            assets,
            dir: &dir,
            etcd_flags: &["--unsafe-no-fsync"],
            api_flags: &api_flags,
        };
        let server = RealServer::start(start, &clock).await;
        let server = server.unwrap_or_else(|error| panic!("{error}"));
        let client = server.client().clone();
        let node = format!("system:node:{}", containers::NODE);
        let node = server.kubeconfig_with_certificate(&node, &["system:nodes"]);
        demo::create(&client, &default_class()).await.expect("created");
        ClusterServer {
            controllers: Controllers::start(
                &client,
                &clock,
                &server.dir().join("ca.crt"),
                controllers,
                options,
            ),
            kubeconfig: server.admin.clone(),
            node_kubeconfig: node.expect("a kubeconfig"),
            server: Server::Real(
                Box::new(server),
                Box::new(StandIns::start(&client, &clock, nodes(volumes))),
            ),
            client,
            clock,
        }
    }

    /// Creates the objects of a fixture whose pods are in `namespace`.
    pub async fn create(&self, objects: &[Value], namespace: &str) {
        for object in objects {
            demo::create(&self.client, object).await.expect("created");
        }
        if let Server::Real(..) = self.server {
            // OpenShift's build mounts it beside each token, and has a controller that makes it.
            let map = json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": "openshift-service-ca.crt", "namespace": namespace},
                "data": {"service-ca.crt": ""},
            });
            demo::create(&self.client, &map).await.expect("created");
        }
    }

    /// Waits until an object is as it should be; null: it is not there.
    pub async fn eventually(
        &self,
        (resource, key): (&ResourceType, &ObjectKey),
        what: &str,
        is_so: impl Fn(&Value) -> bool,
    ) -> Value {
        let end = self.clock.monotonic() + PATIENCE;
        loop {
            let object = match self.client.resource(resource).get(key).await {
                Ok(object) => object,
                Err(error) if error.is_not_found() => Value::Null,
                Err(error) => panic!("{key}: {error}"),
            };
            if is_so(&object) {
                return object;
            }
            assert!(self.clock.monotonic() < end, "{key} is not {what}: {object:#}");
            self.clock.sleep(Duration::from_millis(200)).await;
        }
    }

    pub async fn stop(self) {
        self.controllers.stop().await;
        match self.server {
            Server::Embedded(cluster) => cluster.stop().await,
            Server::Real(server, stand_ins) => {
                stand_ins.stop().await;
                server.stop();
            }
        }
    }
}

fn nodes(volumes: &Path) -> NodeOptions {
    NodeOptions { real_volumes: Some(volumes.to_owned()), ..NodeOptions::default() }
}

/// The class of claims that name no other one, as the embedded API server has it.
fn default_class() -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {
            "name": "standard",
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": DRIVER,
    })
}

/// The controller manager, in this process.
struct Controllers {
    factory: SharedInformerFactory,
    stop: StopToken,
    running: Vec<Task<()>>,
}

impl Controllers {
    /// `authority`: the file of the API server's.
    fn start(
        client: &Client,
        clock: &SharedClock,
        authority: &Path,
        names: &[&str],
        options: Options,
    ) -> Controllers {
        let options = Options { root_ca_file: authority.display().to_string(), ..options };
        let source = ClientSource::new(client.clone());
        let factory = SharedInformerFactory::new(source, clock.clone());
        let context = ControllerContext::new(ControllerContextParts {
            options: Arc::new(options),
            factory: factory.clone(),
            clients: Arc::new(client.clone()),
            clock: clock.clone(),
            extension: None,
        });
        let stop = StopToken::new();
        let run = |name: &&str| {
            let row = controller_table::find(name).expect("a controller");
            let controller = row.construct(&context).expect("a controller");
            task::spawn(controller.run(stop.clone()))
        };
        let running = names.iter().map(run).collect();
        factory.start(&stop);
        Controllers { factory, stop, running }
    }

    async fn stop(self) {
        self.stop.stop();
        for controller in self.running {
            controller.await;
        }
        self.factory.shutdown().await;
    }
}
