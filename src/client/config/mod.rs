//! Where the API server is and how to connect to it: by hand, from a Pod, by kubeconfig.
//! Upstream: `rest.Config`.

mod debug;
mod file;
mod kubeconfig;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

pub(super) use self::file::without_value;
use super::credentials::RenewedCertificate;
use super::{Error, Result};
use crate::objects::{Form, null_as_default};

/// PEM in the configuration itself, or in a file that is read again when it changes.
#[derive(Clone, PartialEq, Eq)]
pub enum Pem {
    /// The text, with one or more blocks.
    Inline(Vec<u8>),
    /// The path of a file.
    File(PathBuf),
}

impl Pem {
    /// Returns the text as it is now. Blocks for the time of reading a file.
    ///
    /// # Errors
    /// [`Error::Config`] when the file cannot be read.
    pub fn read(&self) -> Result<Vec<u8>> {
        match self {
            Pem::Inline(bytes) => Ok(bytes.clone()),
            Pem::File(path) => read_file(path),
        }
    }
}

/// The identities of server and client in TLS. Upstream: `rest.TLSClientConfig`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// The authorities that are trusted; `None`: the system's.
    pub ca: Option<Pem>,
    /// Trust any server. The connection is encrypted, but not to a known server.
    pub insecure: bool,
    /// The name that the server's certificate must have; `None`: the host of the address.
    pub server_name: Option<String>,
    /// The client certificate with its chain; used only together with `key`.
    pub certificate: Option<Pem>,
    /// The key of the client certificate.
    pub key: Option<Pem>,
    /// A client certificate that this process renews; it replaces `certificate` and `key`.
    pub renewed: Option<RenewedCertificate>,
}

/// The credentials of requests, besides the client certificate.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum Credentials {
    /// Nothing: the user is anonymous, or that of the client certificate.
    #[default]
    None,
    /// A bearer token that does not change.
    Token(String),
    /// A file with a bearer token. It is read again after a minute and after a 401; when that
    /// fails, the old token is shown.
    TokenFile {
        /// The file.
        path: PathBuf,
        /// The token that is shown as long as the file was never readable.
        fallback: Option<String>,
    },
    /// User name and password, in the header `Authorization`.
    Basic {
        /// The name, without a colon.
        user: String,
        /// The password.
        password: String,
    },
    /// A program that prints a token, a client certificate, or both.
    Exec(Box<Exec>),
}

/// The user to act as, if the client's own user may impersonate it.
/// Upstream: `rest.ImpersonationConfig`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Impersonation {
    /// The user's name.
    pub user: String,
    /// Empty: none is shown.
    pub uid: String,
    /// The user's groups.
    pub groups: Vec<String>,
    /// More attributes, each with its values.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// A credential plugin, as a kubeconfig describes it. Upstream: `clientcmd/api.ExecConfig`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Exec {
    /// The version of the protocol: `client.authentication.k8s.io/v1` or `v1beta1`.
    #[serde(deserialize_with = "file::text")]
    pub api_version: String,
    /// The program: a path, or a name that is looked up in `PATH`.
    #[serde(deserialize_with = "file::text")]
    pub command: String,
    /// Its arguments.
    #[serde(deserialize_with = "file::texts")]
    pub args: Vec<String>,
    /// Variables that are added to the manager's environment.
    #[serde(deserialize_with = "file::items")]
    pub env: Vec<ExecEnv>,
    /// What to do when the program is missing; shown with the error.
    #[serde(deserialize_with = "file::text")]
    pub install_hint: String,
    /// Whether the plugin gets the address and the certificate authority of the cluster.
    #[serde(deserialize_with = "null_as_default")]
    pub provide_cluster_info: bool,
    /// `Never`, `IfAvailable` or `Always`: whether the plugin may ask at a terminal.
    #[serde(deserialize_with = "file::text")]
    pub interactive_mode: String,
    /// The cluster's extension for plugins, passed on with the rest of the cluster.
    #[serde(skip)]
    pub cluster_config: serde_json::Value,
}

/// A variable for a plugin. Upstream: `clientcmd/api.ExecEnvVar`.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ExecEnv {
    /// The variable's name, not empty.
    #[serde(deserialize_with = "file::text")]
    pub name: String,
    /// Its value, which is never logged.
    #[serde(deserialize_with = "file::text")]
    pub value: String,
}

impl Exec {
    /// Checks the fields of an exec plugin. `Err`: the fault in it.
    /// Upstream: `clientcmd.validateAuthInfo`.
    fn check(&self) -> std::result::Result<(), String> {
        const PREFIX: &str = "client.authentication.k8s.io/";
        let is_known = |version: &str| matches!(version, "v1" | "v1beta1");
        if self.command.is_empty() {
            return Err("has no command".to_owned());
        }
        if !self.api_version.strip_prefix(PREFIX).is_some_and(is_known) {
            return Err(format!(
                "has apiVersion {:?}, not {PREFIX}v1 or {PREFIX}v1beta1",
                self.api_version
            ));
        }
        if self.env.iter().any(|pair| pair.name.is_empty()) {
            return Err("has a variable without a name".to_owned());
        }
        match self.interactive_mode.as_str() {
            "Never" | "IfAvailable" | "Always" => Ok(()),
            // Before v1 it could be left out.
            "" if self.api_version.ends_with("/v1beta1") => Ok(()),
            other => Err(format!("has interactiveMode {other:?}")),
        }
    }
}

/// The API server's address, the user, and the rate of requests. Debug output has no secrets.
/// Upstream: `rest.Config`.
#[derive(Clone)]
pub struct Config {
    /// The server's address: `https://host:port/prefix`.
    pub host: String,
    /// Certificates of both sides.
    pub tls: Tls,
    /// The credentials of requests.
    pub credentials: Credentials,
    /// The user to act as; `None`: the client's own user.
    pub impersonation: Option<Impersonation>,
    /// Requests a second of each client; zero or less: no limit. Upstream: `QPS`.
    pub qps: f64,
    /// Requests of a client that may be sent at once after a pause; zero counts as one.
    pub burst: u32,
    /// The header `User-Agent`.
    pub user_agent: String,
    /// The address of a proxy (`http`, `https` or `socks5`); `None`: the one that the environment
    /// names, if any. Upstream: `Proxy`.
    pub proxy: Option<String>,
    /// The most compact form to ask for, where the reader understands it. Upstream: `ContentType`,
    /// `AcceptContentTypes`.
    pub form: Form,
    /// The longest wait for an answer, and between two pieces of its body; a watch's body may be
    /// silent for longer. Upstream has no counterpart: `Timeout` bounds the whole request.
    pub timeout: Duration,
    /// The transport refuses every request that may change something, with [`Error::Shadowed`].
    pub read_only: bool,
}

impl Config {
    /// Makes the configuration for the server at `host`, with client-go's rate (5 requests a
    /// second, 10 at once) and without credentials. Answers may take 75 seconds.
    pub fn new(host: impl Into<String>) -> Config {
        Config {
            host: host.into(),
            tls: Tls::default(),
            credentials: Credentials::None,
            impersonation: None,
            qps: 5.0,
            burst: 10,
            user_agent: "kube-controller-manager".to_owned(),
            proxy: None,
            form: Form::Json,
            timeout: Duration::from_secs(75),
            read_only: false,
        }
    }

    /// Reads the configuration: from `kubeconfig`, whose address `master` replaces; without it, for
    /// the address `master`; without both, from the Pod's environment. Reads files; blocks
    /// meanwhile. Upstream: `clientcmd.BuildConfigFromFlags`.
    ///
    /// # Errors
    /// [`Error::Config`] names the file and the fault.
    pub fn load(kubeconfig: Option<&Path>, master: Option<&str>) -> Result<Config> {
        match (kubeconfig, master) {
            (Some(path), master) => Config::from_kubeconfig(path, master, None),
            (None, Some(master)) => Ok(Config::new(address(master))),
            (None, None) => Config::in_cluster(),
        }
    }

    /// Makes the configuration of a Pod, from its service account's files and its variables.
    /// Without a readable certificate authority the system's are trusted, and the fault is logged.
    /// Upstream: `rest.InClusterConfig`.
    ///
    /// # Errors
    /// [`Error::Config`] outside of a Pod, or without a readable token.
    pub fn in_cluster() -> Result<Config> {
        const FOLDER: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
        let Some((host, port)) = address_in_pod() else {
            return Err(Error::Config(
                "unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and \
                 KUBERNETES_SERVICE_PORT must be defined"
                    .to_owned(),
            ));
        };
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let mut config = Config::new(format!("https://{host}:{port}"));
        let token = Path::new(FOLDER).join("token");
        // A token that cannot be read is a fault now, not at the first request.
        read_file(&token)?;
        config.credentials = Credentials::TokenFile { path: token, fallback: None };
        let ca = Path::new(FOLDER).join("ca.crt");
        match read_file(&ca) {
            Ok(_) => config.tls.ca = Some(Pem::File(ca)),
            Err(error) => log::error!("no root certificate authority: {error}"),
        }
        Ok(config)
    }
}

/// Returns whether the environment has the variables of a Pod. Upstream: `rest.ErrNotInCluster`
/// where it has not.
pub fn is_in_cluster() -> bool {
    address_in_pod().is_some()
}

/// Returns host and port of the API server as a Pod's environment has them.
fn address_in_pod() -> Option<(String, String)> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    Some((variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?))
}

/// Returns `host` with its scheme in lower case; without one, the scheme is http.
fn address(host: &str) -> String {
    match host.trim_end_matches('/').split_once("://") {
        Some((scheme, host)) => format!("{}://{host}", scheme.to_ascii_lowercase()),
        None => format!("http://{}", host.trim_end_matches('/')),
    }
}

/// Reads a file that the configuration names.
pub(super) fn read_file(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| Error::Config(format!("{}: {error}", path.display())))
}
