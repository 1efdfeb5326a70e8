//! Credentials of registries, from the files that docker's client writes.
//! Upstream: `pkg/credentialprovider`.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use crate::cri::api;

/// The registry of images whose name has none. Upstream: `defaultRegistryHost`.
const DEFAULT_REGISTRY: &str = "index.docker.io";

/// A user of a registry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Entry")]
pub struct Credentials {
    pub username: String,
    pub password: String,
    /// No runtime needs it, but it is a part of the hash.
    pub email: String,
    /// `None`: all pods of the node may use them.
    pub source: Option<Arc<Source>>,
}

/// The object that credentials come from. Upstream: `CredentialSource`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Secret(Coordinates),
    /// One whose token a credential provider has got.
    ServiceAccount(Coordinates),
}

/// Which object that is. Upstream: `SecretCoordinates`, `ServiceAccountCoordinates`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Coordinates {
    pub uid: String,
    pub namespace: String,
    pub name: String,
}

impl Coordinates {
    /// Returns what lists are sorted by.
    pub fn key(&self) -> (&str, &str, &str) {
        (&self.namespace, &self.name, &self.uid)
    }
}

impl Credentials {
    /// Returns a hash by which credentials are known again. Upstream: `hashAuthConfig`.
    pub fn hash(&self) -> String {
        #[derive(Serialize)]
        struct AuthConfig<'a> {
            #[serde(skip_serializing_if = "str::is_empty")]
            username: &'a str,
            #[serde(skip_serializing_if = "str::is_empty")]
            password: &'a str,
            #[serde(skip_serializing_if = "str::is_empty")]
            email: &'a str,
        }
        let Credentials { username, password, email, .. } = self;
        let config = serde_json::to_string(&AuthConfig { username, password, email });
        let mut text = config.expect("texts are JSON");
        // Go escapes these in JSON.
        for (character, escaped) in [
            ('<', "\\u003c"),
            ('>', "\\u003e"),
            ('&', "\\u0026"),
            ('\u{2028}', "\\u2028"),
            ('\u{2029}', "\\u2029"),
        ] {
            text = text.replace(character, escaped);
        }
        sha256(&text)
    }

    /// Returns the credentials as the runtime takes them.
    pub fn config(&self) -> api::AuthConfig {
        api::AuthConfig {
            username: self.username.clone(),
            password: self.password.clone(),
            ..Default::default()
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    username: String,
    password: String,
    email: String,
    /// User and password in base64, with a colon between.
    auth: String,
}

/// The field `auth` is malformed. The cause would quote the secret.
struct InvalidAuth;

impl fmt::Display for InvalidAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unable to parse auth field, must be formatted as base64(username:password)")
    }
}

impl TryFrom<Entry> for Credentials {
    type Error = InvalidAuth;

    /// Takes the user and password from `auth`, if it is set, else from the other two fields.
    fn try_from(entry: Entry) -> Result<Credentials, InvalidAuth> {
        let credentials = |username: &str, password: &str| Credentials {
            username: username.to_owned(),
            password: password.to_owned(),
            email: entry.email.clone(),
            source: None,
        };
        if entry.auth.is_empty() {
            return Ok(credentials(&entry.username, &entry.password));
        }
        let auth = entry.auth.trim();
        let engine = if auth.ends_with('=') { STANDARD } else { STANDARD_NO_PAD };
        let decoded = engine.decode(auth).map_err(|_| InvalidAuth)?;
        let text = String::from_utf8(decoded).map_err(|_| InvalidAuth)?;
        let (username, password) = text.split_once(':').ok_or(InvalidAuth)?;
        Ok(credentials(username, password))
    }
}

/// The form of `config.json`.
#[derive(Deserialize)]
struct ConfigJson {
    #[serde(default)]
    auths: BTreeMap<String, Credentials>,
}

/// Credentials by the registry and path that they are for. Upstream: `BasicDockerKeyring`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keyring {
    /// By host and path, without a scheme.
    entries: BTreeMap<String, Vec<Credentials>>,
}

impl Keyring {
    /// Adds the content of a `config.json`, which is that of a Secret of the type
    /// `kubernetes.io/dockerconfigjson` too.
    ///
    /// # Errors
    /// The content is malformed.
    pub fn add_config_json(&mut self, content: &[u8]) -> Result<(), Malformed> {
        let config: ConfigJson = serde_json::from_slice(content).map_err(Malformed::of)?;
        self.add(config.auths);
        Ok(())
    }

    /// Adds the content of a `.dockercfg`, which is that of a Secret of the type
    /// `kubernetes.io/dockercfg` too.
    ///
    /// # Errors
    /// The content is malformed.
    pub fn add_dockercfg(&mut self, content: &[u8]) -> Result<(), Malformed> {
        let entries = serde_json::from_slice(content).map_err(Malformed::of)?;
        self.add(entries);
        Ok(())
    }

    /// Adds credentials by the registries and paths that they are for.
    pub fn add(&mut self, entries: BTreeMap<String, Credentials>) {
        for (location, credentials) in entries {
            self.entries.entry(key(&location)).or_default().push(credentials);
        }
    }

    /// Adds all credentials of another keyring. `source`: the object that they come from; `None`:
    /// they are the node's.
    pub fn add_all(&mut self, source: Option<Source>, other: Keyring) {
        let source = source.map(Arc::new);
        for (key, mut credentials) in other.entries {
            credentials.iter_mut().for_each(|one| one.source.clone_from(&source));
            self.entries.entry(key).or_default().append(&mut credentials);
        }
    }

    /// Returns the credentials for a repository, the most specific first; empty: there are none.
    pub fn lookup(&self, repository: &str) -> Vec<Credentials> {
        // The reverse order has longer paths first.
        let matching = self.entries.iter().rev().filter(|(key, _)| is_match(key, repository));
        let found: Vec<Credentials> =
            matching.flat_map(|(_, credentials)| credentials.clone()).collect();
        match self.entries.get(DEFAULT_REGISTRY) {
            Some(default) if found.is_empty() && is_default_registry(repository) => default.clone(),
            _ => found,
        }
    }
}

/// Where credentials are malformed. The cause would quote them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    line: usize,
    column: usize,
}

impl Malformed {
    fn of(error: serde_json::Error) -> Malformed {
        Malformed { line: error.line(), column: error.column() }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed at line {}, column {}", self.line, self.column)
    }
}

impl Error for Malformed {}

/// Returns the SHA-256 hash of a text, in hexadecimal.
pub(super) fn sha256(text: &str) -> String {
    let hash = digest(&SHA256, text.as_bytes());
    hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the host and path of a location; docker takes `/v1/` and `/v2/` for the host itself.
fn key(location: &str) -> String {
    let rest = location.strip_prefix("https://").or_else(|| location.strip_prefix("http://"));
    let rest = rest.unwrap_or(location).split(['?', '#']).next().unwrap_or_default();
    let (host, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let path = match path.get(..4) {
        Some("/v1/" | "/v2/") => &path[3..],
        _ => path,
    };
    if path == "/" { host.to_owned() } else { format!("{host}{path}") }
}

/// Returns whether a key, which may have wildcards in its host, is for a repository. Upstream:
/// `URLsMatch`.
pub fn is_match(key: &str, repository: &str) -> bool {
    /// Splits a repository, or a pattern for one, into the labels of its host, its port and its
    /// path.
    fn split(text: &str) -> (Vec<&str>, &str, &str) {
        let (authority, path) = match text.find('/') {
            Some(at) => text.split_at(at),
            None => (text, ""),
        };
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, port),
            _ => (authority, ""),
        };
        (host.split('.').collect(), port, path)
    }
    let ((parts, port, path), (host, its_port, its_path)) = (split(key), split(repository));
    port == its_port
        && parts.len() == host.len()
        && its_path.starts_with(path)
        && parts.iter().zip(&host).all(|(pattern, part)| is_glob_match(pattern, part))
}

/// Returns whether the text matches the pattern. `*`: any characters; `?`: one.
fn is_glob_match(pattern: &str, text: &str) -> bool {
    let mut rest = pattern.chars();
    match rest.next() {
        None => text.is_empty(),
        Some('*') => {
            let ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
            ends.into_iter().any(|at| is_glob_match(rest.as_str(), &text[at..]))
        }
        Some(wanted) => {
            let mut characters = text.chars();
            let first = characters.next();
            first.is_some_and(|first| wanted == '?' || wanted == first)
                && is_glob_match(rest.as_str(), characters.as_str())
        }
    }
}

/// Returns whether a repository is in docker's own registry. Upstream: `isDefaultRegistryMatch`.
fn is_default_registry(repository: &str) -> bool {
    match repository.split_once('/') {
        _ if repository.is_empty() => false,
        None => true,
        Some(("", _)) => false,
        Some(("docker.io" | "index.docker.io", _)) => true,
        Some((first, _)) => !first.contains(['.', ':']),
    }
}

/// Returns the repository of an image's name: with its registry, without tag and digest. Upstream:
/// `parsers.ParseImageName`.
pub fn repository(image: &str) -> String {
    let name = image.split('@').next().unwrap_or_default();
    let tag = name.rfind(':').filter(|at| !name[*at..].contains('/'));
    let name = tag.map_or(name, |at| &name[..at]);
    let (domain, rest) = match name.split_once('/') {
        Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => (first, rest),
        _ => ("docker.io", name),
    };
    match domain {
        "docker.io" | "index.docker.io" if !rest.contains('/') => {
            format!("docker.io/library/{rest}")
        }
        "index.docker.io" => format!("docker.io/{rest}"),
        domain => format!("{domain}/{rest}"),
    }
}

/// Where credentials are looked for: the first valid file counts.
/// Upstream: `DefaultDockerConfigJSONPaths`, `DefaultDockercfgPaths`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    config_json: Vec<PathBuf>,
    dockercfg: Vec<PathBuf>,
}

impl Files {
    /// Lists the places of the files of credentials. `root`: the kubelet's folder. `home`: of the
    /// user that runs it.
    pub fn new(root: &Path, home: Option<&Path>) -> Files {
        let here = Path::new("");
        let docker = home.map(|home| home.join(".docker"));
        let folders = [Some(root), Some(here), docker.as_deref(), Some(Path::new("/.docker"))];
        let config_json = folders.into_iter().flatten().map(|folder| folder.join("config.json"));
        let folders = [Some(root), Some(here), home, Some(Path::new("/"))];
        let dockercfg = folders.into_iter().flatten().map(|folder| folder.join(".dockercfg"));
        Files { config_json: config_json.collect(), dockercfg: dockercfg.collect() }
    }

    /// Reads the credentials of the first file that is valid. Blocks.
    pub fn read(&self) -> Keyring {
        let first = |files: &[PathBuf], add: fn(&mut Keyring, &[u8]) -> Result<(), Malformed>| {
            files.iter().find_map(|file| {
                let mut keyring = Keyring::default();
                let content = match fs::read(file) {
                    Ok(content) => content,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
                    Err(error) => {
                        log::warn!("{}: {error}", file.display());
                        return None;
                    }
                };
                match add(&mut keyring, &content) {
                    Ok(()) => Some(keyring),
                    Err(fault) => {
                        log::warn!("{}: {fault}", file.display());
                        None
                    }
                }
            })
        };
        first(&self.config_json, Keyring::add_config_json)
            .or_else(|| first(&self.dockercfg, Keyring::add_dockercfg))
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn entries_have_a_user_and_a_password_or_both_in_base64() {
        for (entry, expected) in [
            (json!({"username": "u", "password": "p", "email": "e"}), Some(("u", "p"))),
            (json!({"auth": "dTpw"}), Some(("u", "p"))),
            (json!({"auth": "dTpwOnE="}), Some(("u", "p:q"))),
            (json!({"auth": "dTpwOnE"}), Some(("u", "p:q"))),
            (json!({"username": "x", "auth": "dTpw"}), Some(("u", "p"))),
            (json!({"auth": "dQ=="}), None),
            (json!({"auth": "?"}), None),
            (json!({}), Some(("", ""))),
        ] {
            let parsed = serde_json::from_value::<Credentials>(entry.clone()).ok();
            let parsed = parsed.as_ref().map(|c| (&*c.username, &*c.password));
            assert_eq!(parsed, expected, "{entry}");
        }
    }

    #[test]
    fn hashes_are_those_of_the_go_kubelet() {
        for (entry, expected) in [
            (json!({}), r#"{}"#),
            (json!({"auth": "dTpw"}), r#"{"username":"u","password":"p"}"#),
            (
                json!({"username": "u", "password": "a<b>&\"\\\u{2028}\u{1}é", "email": "e@x"}),
                r#"{"username":"u","password":"a\u003cb\u003e\u0026\"\\\u2028\u0001é","email":"e@x"}"#,
            ),
        ] {
            let credentials: Credentials = serde_json::from_value(entry).expect("credentials");
            assert_eq!(credentials.hash(), sha256(expected), "{expected}");
        }
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(sha256(""), empty);
    }

    #[test]
    fn errors_do_not_quote_secrets() {
        let mut keyring = Keyring::default();
        for content in
            [r#"{"auths": {"a": {"auth": "c2VjcmV0"}}}"#, r#"{"auths": {"a": "secret"}}"#]
        {
            let fault = keyring.add_config_json(content.as_bytes()).expect_err("malformed");
            let fault = fault.to_string();
            assert!(!fault.contains("ecret") && !fault.contains("c2V"), "{fault}");
        }
        assert!(keyring.add_dockercfg(b"[").is_err());
        assert_eq!(keyring, Keyring::default());
    }

    #[test]
    fn most_specific_entries_come_first() {
        let mut keyring = Keyring::default();
        let entry = |user: &str| json!({"username": user, "password": "p"});
        let config = json!({"auths": {
            "https://index.docker.io/v1/": entry("hub"),
            "quay.io": entry("quay"),
            "quay.io/coreos": entry("coreos"),
            "*.gcr.io": entry("gcr"),
            "http://reg.test:5000/v2/": entry("port"),
            "reg.*.test/a": entry("glob"),
        }});
        keyring.add_config_json(config.to_string().as_bytes()).expect("a config");
        keyring
            .add_dockercfg(json!({"quay.io": entry("second")}).to_string().as_bytes())
            .expect("a config");
        for (image, users) in [
            ("busybox", "hub"),
            ("user/app:1", "hub"),
            ("docker.io/user/app", "hub"),
            ("quay.io/coreos/etcd:v3", "coreos quay second"),
            ("quay.io/other@sha256:0123", "quay second"),
            ("eu.gcr.io/x", "gcr"),
            ("gcr.io/x", ""),
            ("a.b.gcr.io/x", ""),
            ("reg.test:5000/x:1", "port"),
            ("reg.test/x", ""),
            ("reg.eu.test/a/b", "glob"),
            ("reg.eu.test/b", ""),
        ] {
            let found = keyring.lookup(&repository(image));
            let found: Vec<&str> = found.iter().map(|found| found.username.as_str()).collect();
            assert_eq!(found.join(" "), users, "{image}");
        }
    }

    #[test]
    fn repositories_have_a_registry_and_no_tag() {
        for (image, expected) in [
            ("busybox", "docker.io/library/busybox"),
            ("busybox:1", "docker.io/library/busybox"),
            ("a/b@sha256:00", "docker.io/a/b"),
            ("index.docker.io/a", "docker.io/library/a"),
            ("index.docker.io/a/b", "docker.io/a/b"),
            ("localhost/a:b", "localhost/a"),
            ("r.io:5000/a/b:c", "r.io:5000/a/b"),
            ("r.io:5000/a", "r.io:5000/a"),
        ] {
            assert_eq!(repository(image), expected, "{image}");
        }
    }

    #[test]
    fn first_valid_file_counts() {
        let folder = std::env::temp_dir().join(format!("kubelet-keys-{}", std::process::id()));
        let (root, home) = (folder.join("root"), folder.join("home"));
        fs::create_dir_all(&root).expect("a folder");
        fs::create_dir_all(home.join(".docker")).expect("a folder");
        let files = Files::new(&root, Some(&home));
        let user = || {
            let found = files.read().lookup("r.io/a");
            found.first().map(|found| found.username.clone()).unwrap_or_default()
        };
        let entry = |user: &str| json!({"r.io": {"username": user}});
        fs::write(home.join(".dockercfg"), entry("old").to_string()).expect("a file");
        assert_eq!(user(), "old");
        let config = json!({"auths": entry("home")}).to_string();
        fs::write(home.join(".docker/config.json"), config).expect("a file");
        assert_eq!(user(), "home");
        fs::write(root.join("config.json"), "{").expect("a file");
        assert_eq!(user(), "home");
        fs::write(root.join("config.json"), json!({"auths": entry("root")}).to_string())
            .expect("a file");
        assert_eq!(user(), "root");
        fs::remove_dir_all(&folder).expect("removed");
    }
}
