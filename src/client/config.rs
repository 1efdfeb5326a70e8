//! Where the API server is and how to speak to it: kubeconfig files and the Pod's own environment.
//! Upstream: `rest.Config`, `clientcmd`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine;
use serde::Deserialize;

use super::{Error, Result};

/// Bytes that stand in the config itself, or in a file that is read again when it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// What vouches for the server; `None`: the system's roots.
    pub ca: Option<Pem>,
    pub insecure: bool,
    pub server_name: Option<String>,
    pub certificate: Option<Pem>,
    pub key: Option<Pem>,
}

/// Who we say we are, beside the client certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Credentials {
    #[default]
    None,
    Token(String),
    /// Read again when it is a minute old.
    TokenFile(PathBuf),
    Basic {
        user: String,
        password: String,
    },
    Exec(Box<Exec>),
}

/// A credential plugin. Upstream: `ExecConfig` of client.authentication.k8s.io.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Exec {
    pub api_version: String,
    pub command: String,
    #[serde(deserialize_with = "null_is_empty")]
    pub args: Vec<String>,
    #[serde(deserialize_with = "null_is_empty")]
    pub env: Vec<ExecEnv>,
    pub install_hint: String,
    pub provide_cluster_info: bool,
    /// `Never`, `IfAvailable` or `Always`: there is nobody here to ask, so a plugin never does.
    pub interactive_mode: String,
    /// The cluster's extension for plugins, told with the rest of the cluster.
    #[serde(skip)]
    pub cluster_config: serde_json::Value,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ExecEnv {
    pub name: String,
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
            "Never" | "IfAvailable" => Ok(()),
            // Before v1 it could be left out.
            "" if self.api_version.ends_with("/v1beta1") => Ok(()),
            "Always" => Err("wants to be interactive, and nobody is here to answer".to_owned()),
            other => Err(format!("has interactiveMode {other:?}")),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Config {
    /// `https://host:port/prefix`
    pub host: String,
    pub tls: Tls,
    pub credentials: Credentials,
    /// Requests a second; none or less: no limit.
    pub qps: f64,
    pub burst: u32,
    pub user_agent: String,
    /// An HTTP proxy's address; `None`: what the environment says.
    pub proxy: Option<String>,
    /// For an answer that is not a watch's.
    pub timeout: Duration,
}

/// What is wrong with a file, without the value that is wrong: it may be a token or a key.
fn without_value(error: &serde_yaml_ng::Error) -> String {
    let text = error.to_string();
    match (text.find("string \""), text.rfind("\", expected")) {
        (Some(start), Some(end)) if start < end => {
            format!("{}string{}", &text[..start], &text[end + 1..])
        }
        _ => text,
    }
}

impl Config {
    /// Speaks to `host` with client-go's defaults and no credentials.
    pub fn new(host: impl Into<String>) -> Config {
        Config {
            host: host.into(),
            tls: Tls::default(),
            credentials: Credentials::None,
            qps: 5.0,
            burst: 10,
            user_agent: "kube-controller-manager".to_owned(),
            proxy: None,
            timeout: Duration::from_secs(75),
        }
    }

    /// Upstream: `clientcmd.BuildConfigFromFlags`: the file, the address, or the Pod's environment.
    pub fn load(kubeconfig: Option<&Path>, master: Option<&str>) -> Result<Config> {
        match (kubeconfig, master) {
            (Some(path), master) => Config::from_kubeconfig(path, master, None),
            (None, Some(master)) => Ok(Config::new(address(master))),
            (None, None) => Config::in_cluster(),
        }
    }

    /// From a kubeconfig. `master` stands before the file's address, `context` before its context.
    pub fn from_kubeconfig(
        path: impl AsRef<Path>,
        master: Option<&str>,
        context: Option<&str>,
    ) -> Result<Config> {
        let path = path.as_ref();
        let fault = |what: String| Error::Config(format!("kubeconfig {}: {what}", path.display()));
        let text = read(path)?;
        let file: File =
            serde_yaml_ng::from_slice(&text).map_err(|error| fault(without_value(&error)))?;
        let name = context.unwrap_or(&file.current_context);
        let chosen = file.contexts.iter().find(|entry| entry.name == name);
        let context = match chosen {
            Some(entry) => entry.context.clone(),
            None if name.is_empty() && master.is_some() => Context::default(),
            None => return Err(fault(format!("context {name:?} does not exist"))),
        };
        let mut cluster =
            match file.clusters.into_iter().find(|entry| entry.name == context.cluster) {
                Some(entry) => entry.cluster,
                None if master.is_some() => Cluster::default(),
                None => return Err(fault(format!("cluster {:?} does not exist", context.cluster))),
            };
        let user = match file.users.into_iter().find(|entry| entry.name == context.user) {
            Some(entry) => entry.user,
            None if context.user.is_empty() => User::default(),
            None => return Err(fault(format!("user {:?} does not exist", context.user))),
        };
        let host = master.unwrap_or(&cluster.server);
        if host.is_empty() {
            return Err(fault(format!("cluster {:?} has no server", context.cluster)));
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        let pem = |field: &str, data: &str, file: &str| -> Result<Option<Pem>> {
            if !data.is_empty() {
                let bytes = base64::engine::general_purpose::STANDARD
                    .decode(data.trim())
                    .map_err(|error| fault(format!("{field}-data: {error}")))?;
                return Ok(Some(Pem::Inline(bytes)));
            }
            Ok((!file.is_empty()).then(|| Pem::File(folder.join(file))))
        };
        let mut config = Config::new(address(host));
        config.proxy = Some(cluster.proxy_url.clone()).filter(|url| !url.is_empty());
        config.tls = Tls {
            ca: pem(
                "certificate-authority",
                &cluster.certificate_authority_data,
                &cluster.certificate_authority,
            )?,
            insecure: cluster.insecure_skip_tls_verify,
            server_name: Some(cluster.tls_server_name.clone()).filter(|name| !name.is_empty()),
            certificate: pem(
                "client-certificate",
                &user.client_certificate_data,
                &user.client_certificate,
            )?,
            key: pem("client-key", &user.client_key_data, &user.client_key)?,
        };
        if config.tls.certificate.is_some() != config.tls.key.is_some() {
            return Err(fault(format!(
                "user {:?}: client-certificate and client-key go together",
                context.user
            )));
        }
        config.credentials = match user {
            User { exec: Some(mut exec), .. } => {
                exec.check()
                    .map_err(|what| fault(format!("user {:?}: exec {what}", context.user)))?;
                if exec.command.contains('/') {
                    exec.command = folder.join(&exec.command).to_string_lossy().into_owned();
                }
                exec.cluster_config = cluster.take_exec_config();
                Credentials::Exec(exec)
            }
            User { token_file, .. } if !token_file.is_empty() => {
                Credentials::TokenFile(folder.join(token_file))
            }
            User { token, .. } if !token.is_empty() => Credentials::Token(token),
            User { username, password, .. } if !username.is_empty() => {
                Credentials::Basic { user: username, password }
            }
            _ => Credentials::None,
        };
        Ok(config)
    }

    /// From the files and variables that a Pod has. Upstream: `rest.InClusterConfig`.
    pub fn in_cluster() -> Result<Config> {
        const FOLDER: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let place = (variable("KUBERNETES_SERVICE_HOST"), variable("KUBERNETES_SERVICE_PORT"));
        let (Some(host), Some(port)) = place else {
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
        config.credentials = Credentials::TokenFile(token);
        config.tls.ca = Some(Pem::File(Path::new(FOLDER).join("ca.crt")));
        Ok(config)
    }
}

fn address(host: &str) -> String {
    let host = host.trim_end_matches('/');
    if host.contains("://") { host.to_owned() } else { format!("http://{host}") }
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| Error::Config(format!("{}: {error}", path.display())))
}

fn null_is_empty<'de, D, T>(from: D) -> std::result::Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct File {
    #[serde(rename = "current-context")]
    current_context: String,
    #[serde(deserialize_with = "null_is_empty")]
    clusters: Vec<NamedCluster>,
    #[serde(deserialize_with = "null_is_empty")]
    users: Vec<NamedUser>,
    #[serde(deserialize_with = "null_is_empty")]
    contexts: Vec<NamedContext>,
    #[serde(flatten)]
    _rest: BTreeMap<String, serde_yaml_ng::Value>,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Cluster {
    server: String,
    certificate_authority: String,
    certificate_authority_data: String,
    insecure_skip_tls_verify: bool,
    tls_server_name: String,
    proxy_url: String,
    #[serde(deserialize_with = "null_is_empty")]
    extensions: Vec<Extension>,
}

impl Cluster {
    fn take_exec_config(&mut self) -> serde_json::Value {
        let name = "client.authentication.k8s.io/exec";
        let found = self.extensions.iter_mut().find(|extension| extension.name == name);
        found.map(|found| std::mem::take(&mut found.extension)).unwrap_or_default()
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Extension {
    name: String,
    extension: serde_json::Value,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    #[serde(default)]
    user: User,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct User {
    client_certificate: String,
    client_certificate_data: String,
    client_key: String,
    client_key_data: String,
    token: String,
    #[serde(rename = "tokenFile")]
    token_file: String,
    username: String,
    password: String,
    exec: Option<Box<Exec>>,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Context {
    cluster: String,
    user: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str, master: Option<&str>) -> std::result::Result<Config, String> {
        let count = {
            static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
            COUNT.fetch_add(1, std::sync::atomic::Ordering::SeqCst)
        };
        let folder = std::env::temp_dir();
        let path = folder.join(format!("kubeconfig-{}-{count}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let loaded = Config::from_kubeconfig(&path, master, None);
        std::fs::remove_file(&path).unwrap();
        loaded.map_err(|error| error.to_string())
    }

    const WHOLE: &str = r#"
apiVersion: v1
kind: Config
current-context: c
preferences: {}
contexts: [{name: c, context: {cluster: a, user: u, namespace: n}}]
clusters: [{name: a, cluster: {server: "https://h:1/", certificate-authority-data: Q0E=}}]
users: [{name: u, user: {client-certificate: pki/c.crt, client-key: /abs/c.key, tokenFile: t}}]
"#;

    #[test]
    fn a_file_that_is_no_kubeconfig_is_not_told_in_full() {
        for (text, told) in [
            ("--- |\n  a \"secret\" key\n", "invalid type: string, expected struct File"),
            ("users: \"secret\"\n", "users: invalid type: string, expected a sequence"),
        ] {
            let error = serde_yaml_ng::from_str::<File>(text).err().expect("no kubeconfig");
            let without = without_value(&error);
            assert!(without.starts_with(told) && !without.contains("secret"), "{without}");
        }
    }

    #[test]
    fn a_kubeconfig_is_read_whole() {
        let config = load(WHOLE, None).unwrap();
        assert_eq!(config.host, "https://h:1");
        assert_eq!(config.tls.ca, Some(Pem::Inline(b"CA".to_vec())));
        let folder = std::env::temp_dir();
        assert_eq!(config.tls.certificate, Some(Pem::File(folder.join("pki/c.crt"))));
        assert_eq!(config.tls.key, Some(Pem::File("/abs/c.key".into())));
        assert_eq!(config.credentials, Credentials::TokenFile(folder.join("t")));
        assert_eq!(load(WHOLE, Some("other:8080")).unwrap().host, "http://other:8080");
    }

    #[test]
    fn an_exec_plugin_is_checked_and_found_beside_its_file() {
        let text = WHOLE
            .replace(
                "client-certificate: pki/c.crt, client-key: /abs/c.key, tokenFile: t",
                "exec: {apiVersion: client.authentication.k8s.io/v1, command: bin/p, args: null, \
                 env: [{name: A, value: b}], interactiveMode: IfAvailable, provideClusterInfo: true}",
            )
            .replace(
                "Q0E=",
                "Q0E=, proxy-url: 'http://p:1', extensions: [{name: client.authentication.k8s.io/exec, \
                 extension: {a: b}}]",
            );
        let config = load(&text, None).unwrap();
        assert_eq!(config.proxy.as_deref(), Some("http://p:1"));
        let Credentials::Exec(exec) = config.credentials else { panic!("no plugin") };
        assert_eq!(std::path::PathBuf::from(&exec.command), std::env::temp_dir().join("bin/p"));
        assert_eq!(exec.cluster_config, serde_json::json!({ "a": "b" }));
        assert!(exec.provide_cluster_info);
        for (from, to, expected) in [
            ("command: bin/p", "command: ''", "exec has no command"),
            ("k8s.io/v1,", "k8s.io/v1alpha1,", "exec has apiVersion"),
            ("name: A", "name: ''", "a variable without a name"),
            ("IfAvailable", "Sometimes", "exec has interactiveMode \"Sometimes\""),
            ("IfAvailable", "Always", "exec wants to be interactive"),
            ("interactiveMode: IfAvailable,", "", "exec has interactiveMode \"\""),
        ] {
            let error = load(&text.replace(from, to), None).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn what_is_broken_is_named() {
        for (from, to, expected) in [
            ("current-context: c", "current-context: d", "context \"d\" does not exist"),
            ("cluster: a,", "cluster: b,", "cluster \"b\" does not exist"),
            ("user: u,", "user: w,", "user \"w\" does not exist"),
            ("Q0E=", "Q0E$", "certificate-authority-data: "),
            (", client-key: /abs/c.key", "", "client-certificate and client-key go together"),
            ("contexts: [", "contexts: {[", "kubeconfig "),
        ] {
            let error = load(&WHOLE.replace(from, to), None).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
