//! Serves the API on a port and writes certificates and kubeconfig files.

use parking_lot::Mutex;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::access::User;
use crate::api::Api;
use crate::api::faults::Faults;
use crate::api::traffic::Traffic;
use crate::auth::Auth;
use crate::auth::certs::{Authority, service_account_key};
use crate::auth::rbac::Rbac;
use crate::bootstrap;
use crate::kinds;
use crate::proxy::{self, Proxy};
use crate::status::ApiError;
use crate::storage::registry::Registry;
use crate::storage::store::Store;
use kube_controller_manager::clock::{SharedClock, SystemClock};
use kube_controller_manager::jwt::Signer;
use kube_controller_manager::server::auth::Authorities;
use kube_controller_manager::server::http::{Handler, Server};
use kube_controller_manager::server::tls::Tls;
use kube_controller_manager::task::StopToken;

/// The user and the group as which the server reaches kubelets, as kubeadm names them.
const KUBELET_CLIENT: (&str, &str) = ("kube-apiserver-kubelet-client", "kubeadm:cluster-admins");

#[derive(Clone)]
pub struct SandboxOptions {
    /// The folder of certificates and kubeconfig files; created when missing.
    pub dir: PathBuf,
    pub address: SocketAddr,
    pub clock: SharedClock,
    /// The number of changes that each resource keeps; watches from older versions get 410.
    pub history: usize,
    /// The period of bookmarks on an idle watch.
    pub bookmark_every: Duration,
    /// Whether a pod needs its service account, as in a cluster with the controllers that create
    /// them.
    /// Upstream: the admission plugin ServiceAccount.
    pub service_accounts: bool,
    /// The minor version of Kubernetes 1 that it is: 36 or 37.
    pub minor: u32,
    /// Also serves the kinds behind feature gates and `--runtime-config`, and grants controllers
    /// their rights to them.
    pub all_versions: bool,
}

impl SandboxOptions {
    /// Returns the defaults: a free port of the loopback address, the system's clock.
    pub fn new(dir: impl Into<PathBuf>) -> SandboxOptions {
        SandboxOptions {
            dir: dir.into(),
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            clock: SystemClock::shared(),
            history: 50_000,
            bookmark_every: Duration::from_secs(60),
            service_accounts: true,
            minor: 36,
            all_versions: false,
        }
    }
}

#[derive(Debug)]
pub enum SandboxError {
    File(PathBuf, io::Error),
    Bind(SocketAddr, io::Error),
    Certificates(rcgen::Error),
    Key(String),
    Tls(String),
    Proxy(proxy::Error),
    Objects(ApiError),
}

impl fmt::Display for SandboxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SandboxError::File(path, _) => write!(f, "cannot write {}", path.display()),
            SandboxError::Bind(address, _) => write!(f, "cannot listen on {address}"),
            SandboxError::Certificates(_) => f.write_str("cannot make certificates"),
            SandboxError::Key(why) => write!(f, "cannot sign tokens: {why}"),
            SandboxError::Tls(why) => write!(f, "cannot serve TLS: {why}"),
            SandboxError::Proxy(_) => f.write_str("cannot reach kubelets"),
            SandboxError::Objects(error) => write!(f, "first objects: {}", error.message),
        }
    }
}

impl std::error::Error for SandboxError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SandboxError::File(_, source) | SandboxError::Bind(_, source) => Some(source),
            SandboxError::Certificates(source) => Some(source),
            SandboxError::Proxy(source) => Some(source),
            SandboxError::Objects(_) | SandboxError::Key(_) | SandboxError::Tls(_) => None,
        }
    }
}

/// The files with which an administrator connects.
#[derive(Clone, Debug)]
pub struct ClientFiles {
    /// `https://127.0.0.1:PORT`
    pub server: String,
    pub ca: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// The private key that signs service accounts' tokens, for a controller manager.
    pub service_account_key: PathBuf,
    /// Shared with the administrator.
    pub token: String,
}

/// A running API server. Dropping it does not stop it.
pub struct Sandbox {
    api: Arc<Api>,
    traffic: Arc<Traffic>,
    authority: Authority,
    dir: PathBuf,
    files: ClientFiles,
    address: SocketAddr,
    tls: Tls,
    handler: Handler,
    /// One for each port.
    servers: Mutex<Vec<Server>>,
}

impl Sandbox {
    /// Starts the API server: makes its certificates, creates the first objects and writes the
    /// files of its clients. `DIR/kubeconfig` is written when this returns.
    pub async fn start(options: SandboxOptions) -> Result<Sandbox, SandboxError> {
        let SandboxOptions {
            dir,
            address,
            clock,
            history,
            bookmark_every,
            service_accounts,
            minor,
            all_versions,
        } = options;
        std::fs::create_dir_all(&dir).map_err(|error| SandboxError::File(dir.clone(), error))?;
        let authority = Authority::new(clock.now()).map_err(SandboxError::Certificates)?;
        let serving = authority.serving(address.ip()).map_err(SandboxError::Certificates)?;
        let clients =
            Authorities::from_pem(authority.certificate.as_bytes()).map_err(SandboxError::Tls)?;
        let tls = Tls::from_pem(serving.certificate.as_bytes(), serving.key.as_bytes())
            .map_err(SandboxError::Tls)?;
        let service_account_key = service_account_key().map_err(SandboxError::Certificates)?;
        let signer = Signer::from_pem(service_account_key.as_bytes()).map_err(SandboxError::Key)?;
        let stop = StopToken::new();
        let kubelet_client = authority
            .client(KUBELET_CLIENT.0, &[KUBELET_CLIENT.1])
            .map_err(SandboxError::Certificates)?;
        let proxies = Authority::new(clock.now()).map_err(SandboxError::Certificates)?;
        let front_proxy =
            proxies.client("front-proxy-client", &[]).map_err(SandboxError::Certificates)?;
        let proxy =
            Proxy::new(clock.clone(), stop.clone(), Some(&kubelet_client), Some(front_proxy));
        let proxy = proxy.map_err(SandboxError::Proxy)?;
        let api = Arc::new(Api {
            store: Store::new(history),
            registry: Registry::new(kinds::served(minor, all_versions)),
            auth: Auth::new(signer, clients),
            rbac: Rbac::default(),
            faults: Arc::default(),
            proxy,
            clock: clock.clone(),
            service_accounts,
            minor,
            stop: stop.clone(),
            bookmark_every,
        });
        bootstrap::first_objects(&api).map_err(SandboxError::Objects)?;
        bootstrap::authentication_settings(&api, &authority.certificate, &proxies.certificate)
            .map_err(SandboxError::Objects)?;
        let traffic = Arc::new(Traffic::new(clock.clone()));
        let (serve, counted) = (api.clone(), traffic.clone());
        let handler: Handler = Arc::new(move |request| {
            let meter = counted.meter(&request);
            let answer = serve.clone().handle(request);
            Box::pin(async move { meter.count_response(answer.await) })
        });
        let server = Server::start(address, Some(tls.clone()), handler.clone(), clock, stop)
            .await
            .map_err(|error| SandboxError::Bind(address, error))?;
        let address = server.address();
        bootstrap::own_service(&api, address).map_err(SandboxError::Objects)?;
        let url = format!("https://{address}");
        bootstrap::cluster_info(&api, &url, &authority.certificate)
            .map_err(SandboxError::Objects)?;
        let files = ClientFiles {
            server: url,
            ca: dir.join("ca.crt"),
            certificate: dir.join("admin.crt"),
            key: dir.join("admin.key"),
            service_account_key: dir.join("sa.key"),
            token: api.auth.issue(User::new("admin", &["system:masters"]), Vec::new(), None),
        };
        let sandbox = Sandbox {
            api,
            traffic,
            authority,
            dir,
            files,
            address,
            tls,
            handler,
            servers: Mutex::new(vec![server]),
        };
        sandbox.write("ca.crt", &sandbox.authority.certificate)?;
        sandbox.write("ca.key", &sandbox.authority.key())?;
        sandbox.write("sa.key", &service_account_key)?;
        sandbox.write_user("admin", "kubeconfig", "kubernetes-admin", &["system:masters"])?;
        Ok(sandbox)
    }

    /// Returns the API, for use within the process.
    pub fn api(&self) -> &Arc<Api> {
        &self.api
    }

    /// Returns the requests of each program so far.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Steers the server and counts its requests.
    pub fn faults(&self) -> &Arc<Faults> {
        &self.api.faults
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves the API on one more port. `wrap` makes that port's handler from the server's.
    pub async fn listen(
        &self,
        wrap: impl FnOnce(Handler) -> Handler,
    ) -> Result<SocketAddr, SandboxError> {
        let (any, handler) = (SocketAddr::new(self.address.ip(), 0), wrap(self.handler.clone()));
        let (clock, stop) = (self.api.clock.clone(), self.api.stop.clone());
        let server = Server::start(any, Some(self.tls.clone()), handler, clock, stop)
            .await
            .map_err(|error| SandboxError::Bind(any, error))?;
        let address = server.address();
        self.servers.lock().push(server);
        Ok(address)
    }

    /// Returns the administrator's kubeconfig file.
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    pub fn client_config(&self) -> &ClientFiles {
        &self.files
    }

    /// Writes a kubeconfig file for a user with a certificate of its own.
    pub fn kubeconfig_for(&self, user: &str, groups: &[&str]) -> Result<PathBuf, SandboxError> {
        let plain: String =
            user.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        self.write_user(&plain, &format!("{plain}.kubeconfig"), user, groups)
    }

    /// Issues a client certificate to a user, and writes it, its key and a kubeconfig that refers
    /// to both. Returns the path of the kubeconfig.
    fn write_user(
        &self,
        files: &str,
        config: &str,
        user: &str,
        groups: &[&str],
    ) -> Result<PathBuf, SandboxError> {
        let pair = self.authority.client(user, groups).map_err(SandboxError::Certificates)?;
        let certificate = self.write(&format!("{files}.crt"), &pair.certificate)?;
        let key = self.write(&format!("{files}.key"), &pair.key)?;
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "sandbox",
            "clusters": [{ "name": "sandbox", "cluster": {
                "server": self.files.server, "certificate-authority": self.files.ca,
            } }],
            "users": [{ "name": user, "user": { "client-certificate": certificate, "client-key": key } }],
            "contexts": [{ "name": "sandbox", "context": { "cluster": "sandbox", "user": user } }],
        });
        let text = serde_yaml_ng::to_string(&kubeconfig).unwrap_or_default();
        self.write(config, &text)
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf, SandboxError> {
        let path = absolute(&self.dir).join(name);
        std::fs::write(&path, text).map_err(|error| SandboxError::File(path.clone(), error))?;
        Ok(path)
    }

    /// Ends watches and connections, and returns when the ports are free.
    pub async fn stop(&self) {
        self.api.stop.stop();
        let servers = std::mem::take(&mut *self.servers.lock());
        for server in servers {
            server.join().await;
        }
        self.api.proxy.join().await;
    }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
