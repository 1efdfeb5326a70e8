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
use super::{Error, Result};
use crate::objects::{Form, null_as_default};

/// Bytes in the configuration itself, or in a file that is read again when it changes.
#[derive(Clone, PartialEq, Eq)]
pub enum Pem {
    Inline(Vec<u8>),
    File(PathBuf),
}

impl Pem {
    pub fn read(&self) -> Result<Vec<u8>> {
        match self {
            Pem::Inline(bytes) => Ok(bytes.clone()),
            Pem::File(path) => read(path),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// The authorities that are trusted; `None`: the system's.
    pub ca: Option<Pem>,
    pub insecure: bool,
    pub server_name: Option<String>,
    pub certificate: Option<Pem>,
    pub key: Option<Pem>,
}

/// What shows who the user is, besides the client certificate.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum Credentials {
    #[default]
    None,
    Token(String),
    /// Read again after a minute; `fallback` is shown as long as the file was never readable.
    TokenFile {
        path: PathBuf,
        fallback: Option<String>,
    },
    Basic {
        user: String,
        password: String,
    },
    Exec(Box<Exec>),
}

/// The user to act as. Upstream: `rest.ImpersonationConfig`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Impersonation {
    pub user: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

/// A credential plugin. Upstream: `ExecConfig` of client.authentication.k8s.io.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Exec {
    #[serde(deserialize_with = "file::text")]
    pub api_version: String,
    #[serde(deserialize_with = "file::text")]
    pub command: String,
    #[serde(deserialize_with = "file::texts")]
    pub args: Vec<String>,
    #[serde(deserialize_with = "file::items")]
    pub env: Vec<ExecEnv>,
    #[serde(deserialize_with = "file::text")]
    pub install_hint: String,
    #[serde(deserialize_with = "null_as_default")]
    pub provide_cluster_info: bool,
    /// `Never`, `IfAvailable` or `Always`: whether the plugin may ask at a terminal.
    #[serde(deserialize_with = "file::text")]
    pub interactive_mode: String,
    /// The cluster's extension for plugins, passed on with the rest of the cluster.
    #[serde(skip)]
    pub cluster_config: serde_json::Value,
}

#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ExecEnv {
    #[serde(deserialize_with = "file::text")]
    pub name: String,
    #[serde(deserialize_with = "file::text")]
    pub value: String,
}

impl Exec {
    /// `Err`: what is wrong with it. Upstream: `clientcmd.validateAuthInfo`.
    fn check(&self) -> std::result::Result<(), String> {
        const PREFIX: &str = "client.authentication.k8s.io/";
        let known = |version: &str| matches!(version, "v1" | "v1beta1");
        if self.command.is_empty() {
            return Err("has no command".to_owned());
        }
        if !self.api_version.strip_prefix(PREFIX).is_some_and(known) {
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

#[derive(Clone)]
pub struct Config {
    /// `https://host:port/prefix`
    pub host: String,
    pub tls: Tls,
    pub credentials: Credentials,
    pub impersonation: Option<Impersonation>,
    /// Requests a second; zero or less: no limit.
    pub qps: f64,
    pub burst: u32,
    pub user_agent: String,
    /// The address of a proxy (`http`, `https` or `socks5`); `None`: what the environment says.
    pub proxy: Option<String>,
    /// The most compact form to ask for, where the reader understands it.
    pub form: Form,
    /// For an answer, and between two pieces of its body; not for a watch's body.
    pub timeout: Duration,
    /// The transport refuses every request that may change something.
    pub read_only: bool,
}

impl Config {
    /// The server at `host`, with client-go's defaults and no credentials.
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

    /// From the kubeconfig, the address, or the Pod's environment. Upstream:
    /// `clientcmd.BuildConfigFromFlags`.
    pub fn load(kubeconfig: Option<&Path>, master: Option<&str>) -> Result<Config> {
        match (kubeconfig, master) {
            (Some(path), master) => Config::from_kubeconfig(path, master, None),
            (None, Some(master)) => Ok(Config::new(address(master))),
            (None, None) => Config::in_cluster(),
        }
    }

    /// From the files and variables that a Pod has. Upstream: `rest.InClusterConfig`.
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
        read(&token)?;
        config.credentials = Credentials::TokenFile { path: token, fallback: None };
        let ca = Path::new(FOLDER).join("ca.crt");
        match read(&ca) {
            Ok(_) => config.tls.ca = Some(Pem::File(ca)),
            Err(error) => log::error!("no root certificate authority: {error}"),
        }
        Ok(config)
    }
}

/// Whether the environment is that of a Pod. Upstream: `rest.ErrNotInCluster` where it is not.
pub fn is_in_cluster() -> bool {
    address_in_pod().is_some()
}

/// Host and port of the API server as a Pod's environment has them.
fn address_in_pod() -> Option<(String, String)> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    Some((variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?))
}

fn address(host: &str) -> String {
    match host.trim_end_matches('/').split_once("://") {
        Some((scheme, host)) => format!("{}://{host}", scheme.to_ascii_lowercase()),
        None => format!("http://{}", host.trim_end_matches('/')),
    }
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| Error::Config(format!("{}: {error}", path.display())))
}
