//! The API server of a soak: embedded, or a real kube-apiserver and its etcd behind a forwarder.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::Result;
use super::etcd::Etcd;
use super::webhook::Webhook;
use crate::api::faults::Faults;
use crate::cluster::Cluster;
use crate::forwarder::Forwarder;
use crate::nodes::{NodeOptions, StandIns, Steering};
use crate::real_server::{RealOptions, RealServer};
use crate::server::SandboxOptions;
use kube_controller_manager::client::Client;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::server::http::{Handler, Server as HttpServer};
use kube_controller_manager::server::tls::Tls;
use kube_controller_manager::task::StopToken;

/// Its user, whom a token identifies: a certificate would not pass the forwarder.
const MANAGER: &str = "system:kube-controller-manager";
/// Longer than a real API server is gone with its start.
const REAL_FLAGS: [&str; 1] = ["--node-monitor-grace-period=40s"];

/// An API server with its nodes.
pub enum Server {
    Embedded(Box<Cluster>),
    Real(Box<Real>),
}

/// A real API server.
pub struct Real {
    pub server: RealServer,
    pub etcd: Arc<Etcd>,
    faults: Arc<Faults>,
    webhook: Webhook,
    stand_ins: StandIns,
    handler: Handler,
    tls: Tls,
    token: String,
    clock: SharedClock,
    /// The ports of managers.
    ports: Mutex<Vec<HttpServer>>,
    stop: StopToken,
}

impl Server {
    /// Starts the embedded server, or a real API server with etcd, its webhook and the stand-ins.
    ///
    /// `assets`: the folder with the programs of a real API server.
    pub async fn start(
        options: SandboxOptions,
        assets: Option<&Path>,
        nodes: NodeOptions,
    ) -> Result<Server> {
        let Some(assets) = assets else {
            return Ok(Server::Embedded(Box::new(Cluster::start(options, nodes).await?)));
        };
        let SandboxOptions { dir, clock, .. } = options;
        fs::create_dir_all(&dir)?;
        let token = format!("{:032x}", fastrand::u128(..));
        let tokens = dir.join("tokens.csv");
        fs::write(&tokens, format!("{token},{MANAGER},{MANAGER}\n"))?;
        let tokens = format!("--token-auth-file={}", std::path::absolute(tokens)?.display());
        let api_flags = &["--storage-media-type=application/json", &tokens];
        let options = RealOptions { assets, dir: &dir, etcd_flags: &[], api_flags };
        let server = RealServer::start(options, &clock).await?;
        let file = |name: &str| fs::read(server.dir().join(name));
        let tls = Tls::from_pem(&file("apiserver.crt")?, &file("apiserver.key")?)?;
        let faults = Arc::<Faults>::default();
        let authority = server.dir().join("ca.crt");
        let forwarder = Forwarder::new(server.address, &authority)?;
        let stop = StopToken::new();
        let webhook =
            Webhook::start(server.client(), tls.clone(), &authority, &clock, &stop).await?;
        Ok(Server::Real(Box::new(Real {
            etcd: Etcd::start(&server.etcd, &clock)?,
            handler: Arc::new(forwarder).handler(&faults, &clock),
            webhook,
            stand_ins: StandIns::start(server.client(), &clock, nodes),
            server,
            faults,
            tls,
            token,
            clock,
            ports: Mutex::default(),
            stop,
        })))
    }

    pub fn client(&self) -> &Client {
        match self {
            Server::Embedded(cluster) => &cluster.client,
            Server::Real(real) => real.server.client(),
        }
    }

    pub fn steering(&self) -> &Steering {
        match self {
            Server::Embedded(cluster) => &cluster.steering,
            Server::Real(real) => &real.stand_ins.steering,
        }
    }

    pub fn faults(&self) -> &Faults {
        match self {
            Server::Embedded(cluster) => cluster.sandbox.faults(),
            Server::Real(real) => &real.faults,
        }
    }

    /// Returns the webhook of a real API server. The embedded one asks none.
    pub fn webhook(&self) -> Option<&Webhook> {
        match self {
            Server::Embedded(_) => None,
            Server::Real(real) => Some(&real.webhook),
        }
    }

    /// Returns the flags for managers beside this server.
    pub fn manager_flags(&self) -> &'static [&'static str] {
        match self {
            Server::Embedded(_) => &[],
            Server::Real(_) => &REAL_FLAGS,
        }
    }

    /// Opens a port for a manager, whose requests pass through what `wrap` makes of the handler.
    pub async fn listen(&self, wrap: impl FnOnce(Handler) -> Handler) -> Result<SocketAddr> {
        let real = match self {
            Server::Embedded(cluster) => return Ok(cluster.sandbox.listen(wrap).await?),
            Server::Real(real) => real,
        };
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (handler, tls) = (wrap(real.handler.clone()), Some(real.tls.clone()));
        let port =
            HttpServer::start(any, tls, handler, real.clock.clone(), real.stop.clone()).await?;
        let address = port.address();
        real.ports.lock().push(port);
        Ok(address)
    }

    /// Writes the kubeconfig of a manager that connects to `address`.
    pub fn kubeconfig(&self, name: &str, address: SocketAddr) -> Result<PathBuf> {
        let sandbox = match self {
            Server::Embedded(cluster) => &cluster.sandbox,
            Server::Real(real) => return real.server.kubeconfig_for(name, address, &real.token),
        };
        let direct = sandbox.kubeconfig_for(MANAGER, &[])?;
        let text = fs::read_to_string(&direct)?;
        let server = &sandbox.client_config().server;
        let path = direct.with_file_name(format!("{name}.kubeconfig"));
        fs::write(&path, text.replace(server, &format!("https://{address}")))?;
        Ok(path)
    }

    /// Stops the API server and all that runs beside it, and waits for their ends.
    pub async fn stop(self) {
        let real = match self {
            Server::Embedded(cluster) => return cluster.stop().await,
            Server::Real(real) => *real,
        };
        real.stop.stop();
        real.etcd.stop().await;
        real.stand_ins.stop().await;
        real.webhook.join().await;
        for port in real.ports.into_inner() {
            port.join().await;
        }
    }
}
