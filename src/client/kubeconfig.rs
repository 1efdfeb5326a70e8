//! Kubeconfig files. Upstream: `clientcmd`.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine;
use serde::Deserialize;
use serde_yaml_ng::Value;

use super::auth::token_of;
use super::config::{Config, Credentials, Exec, Impersonation, Pem, Tls, address, read};
use super::transport::Proxy;
use super::{Error, Result};
use crate::objects::null_as_default;

impl Config {
    /// From a kubeconfig. `master` stands before the file's address, `context` before its context.
    ///
    /// Who we are counts only for a server that is spoken to by `https`.
    pub fn from_kubeconfig(
        path: impl AsRef<Path>,
        master: Option<&str>,
        context: Option<&str>,
    ) -> Result<Config> {
        let path = path.as_ref();
        let fault = |what: String| Error::Config(format!("kubeconfig {}: {what}", path.display()));
        let file = File::parse(&read(path)?).map_err(fault)?;
        let name = context.unwrap_or(&file.current_context);
        let chosen = file.contexts.iter().find(|entry| entry.name == name);
        let context = match chosen {
            Some(entry) => entry.context.clone(),
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
                    log::warn!("{}: going on as nobody", fault(what));
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
            _ => return Err(fault(format!("[{}]", faults.join(", ")))),
        }
        let mut config = Config::new(address(host));
        config.proxy = Some(cluster.proxy_url.clone()).filter(|url| !url.is_empty());
        config.impersonation = user.impersonation();
        if config.host.starts_with("https://") {
            let folder = path.parent().unwrap_or(Path::new(""));
            config.tls = tls(&cluster, &user, folder).map_err(fault)?;
            if master.is_some() {
                config.tls.server_name = None;
            }
            let has_certificate = config.tls.certificate.is_some();
            config.credentials = user.credentials(cluster, has_certificate, folder, fault)?;
        }
        Ok(config)
    }
}

/// `Err`: what is wrong with it.
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
    // A key alone is nobody's.
    let key = match &certificate {
        Some(_) => pem("client-key", &user.client_key_data, &user.client_key)?,
        None => None,
    };
    let server_name = Some(cluster.tls_server_name.clone()).filter(|name| !name.is_empty());
    Ok(Tls { ca, insecure: cluster.insecure_skip_tls_verify, server_name, certificate, key })
}

/// What is wrong with a file, without the value that is wrong: it may be a token or a key.
fn without_value(error: &serde_yaml_ng::Error) -> String {
    const START: &str = "invalid type: ";
    let text = error.to_string();
    match (text.find(START), text.rfind(", expected")) {
        (Some(start), Some(end)) if start < end => {
            let (before, found) = text[..end].split_at(start + START.len());
            let kind = found.split(' ').next().unwrap_or_default();
            format!("{before}{kind}{}", &text[end..])
        }
        _ => text,
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct File {
    #[serde(rename = "current-context")]
    current_context: String,
    #[serde(deserialize_with = "null_as_default")]
    clusters: Vec<NamedCluster>,
    #[serde(deserialize_with = "null_as_default")]
    users: Vec<NamedUser>,
    #[serde(deserialize_with = "null_as_default")]
    contexts: Vec<NamedContext>,
}

impl File {
    /// `Err`: what is wrong with it.
    fn parse(text: &[u8]) -> std::result::Result<File, String> {
        let mut value: Value = serde_yaml_ng::from_slice(text).map_err(|e| without_value(&e))?;
        // As in Go, what is null might as well not be there.
        drop_nulls(&mut value);
        serde_yaml_ng::from_value(value).map_err(|error| {
            // The text itself knows where.
            let placed = serde_yaml_ng::from_slice::<File>(text).err();
            without_value(&placed.unwrap_or(error))
        })
    }
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Mapping(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.iter_mut().for_each(|(_, field)| drop_nulls(field));
        }
        Value::Sequence(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
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
    #[serde(deserialize_with = "null_as_default")]
    extensions: Vec<Extension>,
}

impl Cluster {
    /// Upstream: `clientcmd.validateClusterInfo`.
    fn faults(&self, name: &str) -> Vec<String> {
        let mut faults = Vec::new();
        if !self.proxy_url.is_empty()
            && let Err(why) = Proxy::parse(&self.proxy_url)
        {
            faults.push(format!("invalid 'proxy-url' for cluster {name:?}: {why}"));
        }
        if !self.certificate_authority.is_empty() && !self.certificate_authority_data.is_empty() {
            faults.push(both("certificate-authority", name));
        }
        faults
    }

    /// What the cluster tells credential plugins.
    fn into_exec_config(self) -> serde_json::Value {
        let name = "client.authentication.k8s.io/exec";
        let mut extensions = self.extensions.into_iter();
        let found = extensions.find(|extension| extension.name == name);
        found.map(|found| found.extension).unwrap_or_default()
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Extension {
    name: String,
    extension: serde_json::Value,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NamedUser {
    name: String,
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
    r#as: String,
    as_uid: String,
    #[serde(deserialize_with = "null_as_default")]
    as_groups: Vec<String>,
    as_user_extra: BTreeMap<String, Vec<String>>,
    username: String,
    password: String,
    auth_provider: Option<AuthProvider>,
    exec: Option<Box<Exec>>,
}

/// What its name and its settings once stood for, plugins do now.
#[derive(Default, Deserialize)]
#[serde(default)]
struct AuthProvider {
    name: String,
}

impl AuthProvider {
    /// Why it is none. Upstream: `rest.GetAuthProvider`.
    fn fault(&self) -> String {
        match self.name.as_str() {
            name @ ("azure" | "gcp") => format!("The {name} auth plugin has been removed."),
            "oidc" => "auth-provider \"oidc\" is not supported: use an exec plugin".to_owned(),
            name => format!("no Auth Provider found for name {name:?}"),
        }
    }
}

fn both(field: &str, name: &str) -> String {
    format!("{field}-data and {field} are both specified for {name}")
}

impl User {
    /// Upstream: `clientcmd.validateAuthInfo`.
    fn faults(&self, name: &str) -> Vec<String> {
        let mut faults = Vec::new();
        let given = |field: &String| !field.is_empty();
        let certificate = (&self.client_certificate_data, &self.client_certificate);
        let key = (&self.client_key_data, &self.client_key);
        if given(certificate.0) || given(certificate.1) {
            if given(certificate.0) && given(certificate.1) {
                faults.push(both("client-certificate", name));
            }
            if given(key.0) && given(key.1) {
                faults.push(both("client-key", name));
            }
            if !given(key.0) && !given(key.1) {
                faults.push(format!(
                    "client-key-data or client-key must be specified for {name} to use the \
                     clientCert authentication method"
                ));
            }
        }
        if let Some(exec) = &self.exec {
            if self.auth_provider.is_some() {
                faults.push(format!(
                    "authProvider cannot be provided in combination with an exec plugin for {name}"
                ));
            }
            faults.extend(exec.check().err().map(|what| format!("user {name:?}: exec {what}")));
        }
        if given(&self.token) && (given(&self.username) || given(&self.password)) {
            faults.push(format!(
                "more than one authentication method found for {name}; found [token basicAuth], \
                 only one is allowed"
            ));
        }
        let more =
            given(&self.as_uid) || !self.as_groups.is_empty() || !self.as_user_extra.is_empty();
        if more && self.r#as.is_empty() {
            faults.push(format!(
                "requesting uid, groups or user-extra for {name} without impersonating a user"
            ));
        }
        faults
    }

    fn impersonation(&self) -> Option<Impersonation> {
        (!self.r#as.is_empty()).then(|| Impersonation {
            user: self.r#as.clone(),
            uid: self.as_uid.clone(),
            groups: self.as_groups.clone(),
            extra: self.as_user_extra.clone(),
        })
    }

    /// A plugin is the last to be asked: only of a user who has nothing else to show.
    /// Upstream: `exec.Authenticator.UpdateTransportConfig`.
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

#[derive(Default, Deserialize)]
#[serde(default)]
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
users: [{name: u, user: {client-certificate: pki/c.crt, client-key: /abs/c.key, token: t}}]
"#;

    #[test]
    fn a_file_that_is_no_kubeconfig_is_not_told_in_full() {
        for (text, told) in [
            ("--- |\n  a \"secret\" key\n", "invalid type: string, expected struct File"),
            ("users: \"secret, expected\"\n", "users: invalid type: string, expected a sequence"),
            ("users: [{user: {token: 4711}}]\n", "invalid type: integer, expected a string"),
            ("users: [", "did not find expected"),
        ] {
            let without = File::parse(text.as_bytes()).err().expect("no kubeconfig");
            let leaks = ["secret", "4711"].iter().any(|value| without.contains(value));
            assert!(without.contains(told) && !leaks, "{without}");
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
        assert_eq!(config.credentials, Credentials::Token("t".to_owned()));
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
    fn a_user_that_is_not_there_is_nobody() {
        for text in [WHOLE.replace("user: u,", "user: w,"), WHOLE.replace("user: u,", "")] {
            let config = load(&text, None).unwrap();
            assert_eq!(config.credentials, Credentials::None);
            assert_eq!(config.tls.certificate, None);
        }
    }

    #[test]
    fn what_is_broken_is_named() {
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
    fn of_several_credentials_the_first_counts_or_none() {
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
    fn what_goes_not_together_is_told_as_clientcmd_does() {
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
    fn a_user_may_act_as_another() {
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
