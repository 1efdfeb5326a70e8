//! The configuration that a kubeconfig describes. Upstream: `clientcmd`.

use std::path::Path;

use base64::Engine;

use super::file::{Cluster, Context, File, User};
use super::{Config, Credentials, Pem, Tls, address, read_file};
use crate::client::credentials::token_of;
use crate::client::{Error, Result};

impl Config {
    /// Reads the kubeconfig at `path`: see [`Config::parse`].
    ///
    /// # Errors
    /// [`Error::Config`] names the file and the fault in it.
    pub fn from_kubeconfig(
        path: impl AsRef<Path>,
        master: Option<&str>,
        context: Option<&str>,
    ) -> Result<Config> {
        let path = path.as_ref();
        Config::parse(&read_file(path)?, path, master, context)
    }

    /// Reads the configuration from a kubeconfig's `text`, which came from `path`. `master`
    /// replaces the file's address, `context` its current context. Relative paths in it start at
    /// its folder. Credentials are used only for a server with `https`; a context whose user does
    /// not exist has none, which is logged. Reads files; blocks meanwhile.
    /// Upstream: `clientcmd.ClientConfig`.
    ///
    /// # Errors
    /// [`Error::Config`] names the file and the fault in it.
    pub fn parse(
        text: &[u8],
        path: &Path,
        master: Option<&str>,
        context: Option<&str>,
    ) -> Result<Config> {
        let fault = |what: String| Error::Config(format!("kubeconfig {}: {what}", path.display()));
        let file = File::parse(text).map_err(fault)?;
        let name = context.unwrap_or(&file.current_context);
        let chosen = file.contexts.iter().find(|entry| entry.name == name);
        let context = match chosen {
            Some(entry) => entry.context.clone(),
            // The address `master` is enough.
            None if name.is_empty() && master.is_some() => Context::default(),
            None if name.is_empty() => return Err(fault("it has no current-context".to_owned())),
            None => return Err(fault(format!("context {name:?} does not exist"))),
        };
        let cluster = match file.clusters.into_iter().find(|entry| entry.name == context.cluster) {
            Some(entry) => entry.cluster,
            None if master.is_some() => Cluster::default(),
            None => return Err(fault(format!("cluster {:?} does not exist", context.cluster))),
        };
        let user = match file.users.into_iter().find(|entry| entry.name == context.user) {
            Some(entry) => entry.user,
            None => {
                if !context.user.is_empty() {
                    let what = format!("user {:?} does not exist", context.user);
                    log::warn!("{}: going on without credentials", fault(what));
                }
                User::default()
            }
        };
        let host = master.unwrap_or(&cluster.server);
        if host.is_empty() {
            return Err(fault(format!("cluster {:?} has no server", context.cluster)));
        }
        let mut faults = user.faults(&context.user);
        faults.extend(cluster.faults(&context.cluster));
        match faults.len() {
            0 => {}
            1 => return Err(fault(faults.remove(0))),
            // The form of an aggregate of errors upstream.
            _ => return Err(fault(format!("[{}]", faults.join(", ")))),
        }
        let mut config = Config::new(address(host));
        config.proxy = Some(cluster.proxy_url.clone()).filter(|url| !url.is_empty());
        config.impersonation = user.impersonation();
        if config.host.starts_with("https://") {
            let folder = path.parent().unwrap_or(Path::new(""));
            config.tls = tls(&cluster, &user, folder).map_err(fault)?;
            if master.is_some() {
                // The file's name is for the file's address, which `master` replaces.
                config.tls.server_name = None;
            }
            let has_certificate = config.tls.certificate.is_some();
            config.credentials = user.credentials(cluster, has_certificate, folder, fault)?;
        }
        Ok(config)
    }
}

/// Builds the TLS settings of a cluster and a user. Relative paths start at `folder`. `Err`: the
/// fault in the file.
fn tls(cluster: &Cluster, user: &User, folder: &Path) -> std::result::Result<Tls, String> {
    type Found = std::result::Result<Option<Pem>, String>;
    let pem = |field: &str, data: &str, file: &str| -> Found {
        if !data.is_empty() {
            let bytes = base64::engine::general_purpose::STANDARD
                .decode(data.trim())
                .map_err(|error| format!("{field}-data: {error}"))?;
            return Ok(Some(Pem::Inline(bytes)));
        }
        Ok((!file.is_empty()).then(|| Pem::File(folder.join(file))))
    };
    let (data, file) = (&cluster.certificate_authority_data, &cluster.certificate_authority);
    let ca = pem("certificate-authority", data, file)?;
    if ca.is_some() && cluster.insecure_skip_tls_verify {
        let what = "specifying a root certificates file with the insecure flag is not allowed";
        return Err(what.to_owned());
    }
    let certificate =
        pem("client-certificate", &user.client_certificate_data, &user.client_certificate)?;
    // A key without a certificate is ignored.
    let key = match &certificate {
        Some(_) => pem("client-key", &user.client_key_data, &user.client_key)?,
        None => None,
    };
    let server_name = Some(cluster.tls_server_name.clone()).filter(|name| !name.is_empty());
    let insecure = cluster.insecure_skip_tls_verify;
    Ok(Tls { ca, insecure, server_name, certificate, key, renewed: None })
}

impl User {
    /// Chooses the credentials of the user. A plugin comes last: it is used when the user has no
    /// others. `has_certificate`: the user has a client certificate. Upstream:
    /// `exec.Authenticator.UpdateTransportConfig`.
    fn credentials(
        self,
        cluster: Cluster,
        has_certificate: bool,
        folder: &Path,
        fault: impl Fn(String) -> Error,
    ) -> Result<Credentials> {
        if let Some(provider) = &self.auth_provider {
            return Err(fault(provider.fault()));
        }
        let has_token = !self.token.is_empty() || !self.token_file.is_empty();
        if has_token && !self.username.is_empty() {
            let what = "username/password or bearer token may be set, but not both";
            return Err(fault(what.to_owned()));
        }
        if !self.token_file.is_empty() {
            let path = folder.join(&self.token_file);
            let fallback = Some(self.token).filter(|token| !token.is_empty());
            if fallback.is_none() {
                // Without a fallback an unreadable file is a fault of the configuration.
                token_of(&path)?;
            }
            return Ok(Credentials::TokenFile { path, fallback });
        }
        if has_token {
            return Ok(Credentials::Token(self.token));
        }
        if !self.username.is_empty() {
            return Ok(Credentials::Basic { user: self.username, password: self.password });
        }
        Ok(match self.exec {
            Some(mut exec) if !has_certificate => {
                if exec.command.contains('/') {
                    exec.command = folder.join(&exec.command).to_string_lossy().into_owned();
                }
                exec.cluster_config = cluster.into_exec_config();
                Credentials::Exec(exec)
            }
            _ => Credentials::None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::config::Impersonation;

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
users: [{name: u, user: {client-certificate: pki/c.crt, client-key: /abs/c.key, token: t}}]
"#;

    #[test]
    fn a_kubeconfig_is_a_configuration() {
        let config = load(WHOLE, None).unwrap();
        assert_eq!(config.host, "https://h:1");
        assert_eq!(config.tls.ca, Some(Pem::Inline(b"CA".to_vec())));
        let folder = std::env::temp_dir();
        assert_eq!(config.tls.certificate, Some(Pem::File(folder.join("pki/c.crt"))));
        assert_eq!(config.tls.key, Some(Pem::File("/abs/c.key".into())));
        assert_eq!(config.credentials, Credentials::Token("t".to_owned()));
        let same = load(&format!("---{WHOLE}---\nkind: Pod\n").replace("https:", "HTTPS:"), None);
        assert_eq!(same.unwrap().host, "https://h:1", "the first document, any case");
        let elsewhere = load(WHOLE, Some("other:8080")).unwrap();
        assert_eq!(elsewhere.host, "http://other:8080");
        let open = (elsewhere.tls, elsewhere.credentials);
        assert_eq!(open, Default::default(), "nothing is shown without TLS");
    }

    #[test]
    fn an_exec_plugin_is_checked_and_found_beside_its_file() {
        let text = WHOLE
            .replace(
                "client-certificate: pki/c.crt, client-key: /abs/c.key, token: t",
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
            ("interactiveMode: IfAvailable,", "", "exec has interactiveMode \"\""),
        ] {
            let error = load(&text.replace(from, to), None).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_missing_user_has_no_credentials() {
        for text in [WHOLE.replace("user: u,", "user: w,"), WHOLE.replace("user: u,", "")] {
            let config = load(&text, None).unwrap();
            assert_eq!(config.credentials, Credentials::None);
            assert_eq!(config.tls.certificate, None);
        }
    }

    #[test]
    fn a_fault_is_named() {
        for (from, to, expected) in [
            ("current-context: c", "current-context: d", "context \"d\" does not exist"),
            ("current-context: c", "", "it has no current-context"),
            ("cluster: a,", "cluster: b,", "cluster \"b\" does not exist"),
            ("Q0E=", "Q0E$", "certificate-authority-data: "),
            (
                ", client-key: /abs/c.key",
                "",
                "client-key-data or client-key must be specified for u",
            ),
            ("contexts: [", "contexts: {[", "kubeconfig "),
        ] {
            let error = load(&WHOLE.replace(from, to), None).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    /// Loads [`WHOLE`] with another user and more of the cluster.
    fn load_user(user: &str, cluster: &str) -> std::result::Result<Config, String> {
        let old = "client-certificate: pki/c.crt, client-key: /abs/c.key, token: t";
        let text = WHOLE.replace(old, user).replace(", certificate-authority-data: Q0E=", cluster);
        load(&text, None)
    }

    const EXEC: &str = "exec: {apiVersion: client.authentication.k8s.io/v1, command: p, \
                        interactiveMode: Never}";

    #[test]
    fn credentials_have_an_order() {
        let basic = Credentials::Basic { user: "n".to_owned(), password: "p".to_owned() };
        let token = Credentials::Token("t".to_owned());
        let path = std::env::temp_dir().join(format!("kubeconfig-token-{}", std::process::id()));
        std::fs::write(&path, "f").unwrap();
        let file = format!("tokenFile: {}", path.display());
        let of_file = |fallback: Option<&str>| Credentials::TokenFile {
            path: path.clone(),
            fallback: fallback.map(str::to_owned),
        };
        for (user, expected) in [
            (String::new(), Credentials::None),
            ("username: n, password: p".to_owned(), basic.clone()),
            ("password: p".to_owned(), Credentials::None),
            (format!("token: t, {EXEC}"), token.clone()),
            (format!("username: n, password: p, {EXEC}"), basic),
            (format!("client-certificate: c, client-key: k, {EXEC}"), Credentials::None),
            ("client-key: k, token: t".to_owned(), token),
            (file.clone(), of_file(None)),
            (format!("{file}, token: t, {EXEC}"), of_file(Some("t"))),
            ("token: null, exec: null, as-groups: null".to_owned(), Credentials::None),
            ("username: 'null', password: 'null'".to_owned(), {
                Credentials::Basic { user: "null".to_owned(), password: "null".to_owned() }
            }),
        ] {
            assert_eq!(load_user(&user, "").unwrap().credentials, expected, "{user}");
        }
        std::fs::write(&path, " ").unwrap();
        assert!(load_user(&file, "").unwrap_err().contains("read empty token"));
        std::fs::remove_file(&path).unwrap();
        assert!(load_user(&file, "").unwrap_err().contains("No such file"));
    }

    #[test]
    fn contradictions_are_reported_as_by_clientcmd() {
        for (user, cluster, expected) in [
            (
                "token: t, password: p",
                "",
                "more than one authentication method found for u; found [token basicAuth], only \
                 one is allowed",
            ),
            ("tokenFile: t, username: n", "", "username/password or bearer token may be set"),
            ("auth-provider: {name: x}", "", "no Auth Provider found for name \"x\""),
            ("auth-provider: {name: gcp}", "", "The gcp auth plugin has been removed"),
            ("auth-provider: {name: oidc, config: {a: b}}", "", "use an exec plugin"),
            (
                &format!("auth-provider: {{name: x}}, {EXEC}"),
                "",
                "authProvider cannot be provided in combination with an exec plugin for u",
            ),
            (
                "client-certificate: c, client-certificate-data: YQ==, client-key-data: YQ==",
                "",
                "client-certificate-data and client-certificate are both specified for u",
            ),
            (
                "client-certificate: c, client-key: k, client-key-data: YQ==",
                "",
                "client-key-data and client-key are both specified for u",
            ),
            ("as-uid: u", "", "requesting uid, groups or user-extra for u without"),
            ("as-groups: [g]", "", "requesting uid, groups or user-extra for u without"),
            ("as-user-extra: {a: [b]}", "", "requesting uid, groups or user-extra for u without"),
            (
                "",
                ", certificate-authority: c, certificate-authority-data: YQ==",
                "certificate-authority-data and certificate-authority are both specified for a",
            ),
            (
                "",
                ", certificate-authority: c, insecure-skip-tls-verify: true",
                "specifying a root certificates file with the insecure flag is not allowed",
            ),
            (
                "",
                ", proxy-url: 'ftp://x'",
                "invalid 'proxy-url' for cluster \"a\": unsupported scheme \"ftp\", must be http, \
                 https, or socks5",
            ),
            ("", ", proxy-url: 'http://[x'", "invalid 'proxy-url' for cluster \"a\": "),
            ("as-uid: u", ", proxy-url: 'p'", "[requesting uid, groups or user-extra for u"),
        ] {
            let error = load_user(user, cluster).expect_err(user);
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_user_may_impersonate() {
        let user = "as: b, as-uid: '1', as-groups: [g, h], as-user-extra: {scopes: [x, y]}";
        let config = load_user(user, "").unwrap();
        let expected = Impersonation {
            user: "b".to_owned(),
            uid: "1".to_owned(),
            groups: vec!["g".to_owned(), "h".to_owned()],
            extra: [("scopes".to_owned(), vec!["x".to_owned(), "y".to_owned()])].into(),
        };
        assert_eq!(config.impersonation, Some(expected));
        assert_eq!(load_user("token: t", "").unwrap().impersonation, None);
    }
}
