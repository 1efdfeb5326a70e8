//! Programs that answer with the credentials of a registry.
//! Upstream: `pkg/credentialprovider/plugin`.

mod error;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use futures_lite::FutureExt;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::task;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal};
use serde::Deserialize;
use serde_json::{Value, json};

pub use self::error::Error;

use super::credentials::{Credentials, Keyring, is_match};
use crate::causes::chain;
use crate::options::GoDuration;

/// A program that takes longer is killed.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The versions of requests and answers.
const VERSIONS: [&str; 3] = [
    "credentialprovider.kubelet.k8s.io/v1",
    "credentialprovider.kubelet.k8s.io/v1alpha1",
    "credentialprovider.kubelet.k8s.io/v1beta1",
];

/// The form of the configuration.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Config {
    api_version: String,
    kind: String,
    #[serde(default)]
    providers: Vec<Provider>,
}

/// One program.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Provider {
    name: String,
    /// Patterns of the images that it is asked for.
    #[serde(default)]
    match_images: Vec<String>,
    /// How long an answer holds that does not say.
    default_cache_duration: Option<GoDuration>,
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: Vec<Variable>,
    token_attributes: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Variable {
    name: String,
    value: String,
}

/// The form of an answer.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    api_version: String,
    /// For which images the answer holds.
    cache_key_type: CacheKey,
    cache_duration: Option<GoDuration>,
    #[serde(default)]
    auth: ByPattern,
}

/// Credentials by the patterns of the images that they are for.
type ByPattern = BTreeMap<String, Credentials>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
enum CacheKey {
    Image,
    Registry,
    Global,
}

impl CacheKey {
    /// Returns the key in the cache of an answer for this image.
    fn of(self, image: &str) -> String {
        match self {
            CacheKey::Image => image.to_owned(),
            CacheKey::Registry => image.split('/').next().unwrap_or_default().to_owned(),
            // No image has this name.
            CacheKey::Global => "<global>".to_owned(),
        }
    }
}

#[derive(Debug)]
struct Plugin {
    provider: Provider,
    program: PathBuf,
    /// Answers by their keys, with the time until which they hold.
    cache: Mutex<BTreeMap<String, (Duration, ByPattern)>>,
}

/// All programs of a configuration.
pub struct Plugins {
    plugins: Vec<Plugin>,
    clock: SharedClock,
}

impl Plugins {
    /// Reads a configuration, or all files `*.json`, `*.yaml` and `*.yml` of a folder. Blocks.
    ///
    /// # Errors
    /// One that names the file or program.
    pub fn read(config: &Path, programs: &Path, clock: SharedClock) -> Result<Plugins, Error> {
        let mut plugins: Vec<Plugin> = Vec::new();
        for file in files(config)? {
            let of_file = |cause| Error::File { path: file.clone(), cause: Box::new(cause) };
            let text = fs::read_to_string(&file).map_err(Error::at(&file))?;
            for provider in parse(&text).map_err(of_file)? {
                if plugins.iter().any(|plugin| plugin.provider.name == provider.name) {
                    return Err(of_file(Error::Duplicate(provider.name)));
                }
                let program = programs.join(&provider.name);
                if !is_executable(&program) {
                    return Err(Error::NoProgram(program));
                }
                plugins.push(Plugin { provider, program, cache: Mutex::default() });
            }
        }
        Ok(Plugins { plugins, clock })
    }

    /// Adds the credentials of all programs that are for a repository.
    pub async fn add_to(&self, keyring: &mut Keyring, repository: &str) {
        for plugin in &self.plugins {
            let mut patterns = plugin.provider.match_images.iter();
            if !patterns.any(|pattern| is_match(pattern, repository)) {
                continue;
            }
            match plugin.provide(repository, &self.clock).await {
                Ok(found) => keyring.add(found),
                Err(error) => {
                    let (name, error) = (&plugin.provider.name, chain(&error));
                    log::error!("credential provider {name}, image {repository}: {error}");
                }
            }
        }
    }
}

/// Lists the files of a configuration in the order of their names.
fn files(config: &Path) -> Result<Vec<PathBuf>, Error> {
    if !fs::metadata(config).map_err(Error::at(config))?.is_dir() {
        return Ok(vec![config.to_owned()]);
    }
    let entries = fs::read_dir(config).map_err(Error::at(config))?;
    let entries = entries.flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> = entries
        .filter(|path| {
            let extension = path.extension().and_then(|extension| extension.to_str());
            matches!(extension, Some("json" | "yaml" | "yml")) && path.is_file()
        })
        .collect();
    files.sort();
    match files.is_empty() {
        true => Err(Error::NoFiles(config.to_owned())),
        false => Ok(files),
    }
}

/// Parses the configuration of the plugins, and checks each of them.
fn parse(text: &str) -> Result<Vec<Provider>, Error> {
    let config: Config = serde_yaml_ng::from_str(text).map_err(Error::Syntax)?;
    let version = config.api_version.strip_prefix("kubelet.config.k8s.io/").unwrap_or_default();
    if config.kind != "CredentialProviderConfig"
        || !["v1", "v1beta1", "v1alpha1"].contains(&version)
    {
        return Err(Error::UnknownKind { kind: config.kind, version: config.api_version });
    }
    if config.providers.is_empty() {
        return Err(Error::NoProviders);
    }
    for provider in &config.providers {
        check(provider).map_err(|cause| Error::Provider {
            name: provider.name.clone(),
            cause: Box::new(cause),
        })?;
    }
    Ok(config.providers)
}

/// Checks one plugin's configuration. Plugins that want tokens of service accounts are refused.
fn check(provider: &Provider) -> Result<(), Error> {
    let name = &provider.name;
    if name.contains(['/', ' ']) || matches!(name.as_str(), "" | "." | "..") {
        return Err(Error::NotFileName);
    }
    if !VERSIONS.contains(&provider.api_version.as_str()) {
        return Err(Error::UnknownVersion);
    }
    if provider.match_images.is_empty() {
        return Err(Error::NoImages);
    }
    if provider.default_cache_duration.is_none() {
        return Err(Error::NoDuration);
    }
    match provider.token_attributes {
        Some(_) => Err(Error::Tokens),
        None => Ok(()),
    }
}

fn is_executable(program: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(program).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

impl Plugin {
    /// Returns the credentials that the plugin has for an image: cached ones, or those of a new
    /// run.
    async fn provide(&self, image: &str, clock: &SharedClock) -> Result<ByPattern, Error> {
        let now = clock.monotonic();
        if let Some(found) = self.cached(image, now) {
            return Ok(found);
        }
        let output = self.run(image, clock).await?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::Failed { status: output.status, text });
        }
        let answer: Answer =
            serde_json::from_slice(&output.stdout).map_err(|_| Error::Malformed)?;
        let (expected, actual) = (&self.provider.api_version, answer.api_version);
        if *expected != actual {
            return Err(Error::OtherVersion { expected: expected.clone(), actual });
        }
        let holds = answer.cache_duration.or(self.provider.default_cache_duration);
        if let Some(holds) = holds.map(|holds| holds.0).filter(|holds| !holds.is_zero()) {
            let entry = (now.saturating_add(holds), answer.auth.clone());
            self.cache.lock().insert(answer.cache_key_type.of(image), entry);
        }
        Ok(answer.auth)
    }

    /// Returns a cached answer for an image that still holds. Forgets all answers that do not.
    fn cached(&self, image: &str, now: Duration) -> Option<ByPattern> {
        let mut cache = self.cache.lock();
        cache.retain(|_, (until, _)| *until >= now);
        let kinds = [CacheKey::Image, CacheKey::Registry, CacheKey::Global];
        kinds.into_iter().find_map(|kind| Some(cache.get(&kind.of(image))?.1.clone()))
    }

    /// Runs the plugin for an image, and returns its output. Errors: it cannot be started, or is
    /// too slow and is killed.
    async fn run(&self, image: &str, clock: &SharedClock) -> Result<Output, Error> {
        let request = json!({
            "kind": "CredentialProviderRequest",
            "apiVersion": self.provider.api_version,
            "image": image,
        });
        let mut command = Command::new(&self.program);
        command
            .args(&self.provider.args)
            .envs(self.provider.env.iter().map(|variable| (&variable.name, &variable.value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().map_err(Error::Run)?;
        let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let output = task::blocking(move || {
            // A program that does not read its input has other reasons to fail.
            let _ =
                child.stdin.take().map(|mut input| input.write_all(request.to_string().as_bytes()));
            child.wait_with_output()
        });
        let output = async { output.await.map_err(Error::Run) };
        let late = async {
            clock.sleep(TIMEOUT).await;
            if let Some(id) = id {
                // It may have ended meanwhile.
                let _ = rustix::process::kill_process(id, Signal::KILL);
            }
            Err(Error::Late)
        };
        output.or(late).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_lite::future::block_on;
    use kube_controller_manager::clock::FakeClock;
    use kube_controller_manager::objects::Timestamp;

    use super::*;

    const CONFIG: &str = "
apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: helper
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: ['*.example.com', 'r.io:5000/a']
  defaultCacheDuration: 10m
  args: [get]
  env: [{name: WHO, value: me}]
";

    #[test]
    fn configurations_are_checked() {
        for (from, to, fault) in [
            ("", "", None),
            ("kind: Cred", "kind: Dred", Some("no kind \"DredentialProviderConfig\"")),
            ("name: helper", "name: a/b", Some("it is not the name of a file")),
            ("k8s.io/v1\n  match", "k8s.io/v2\n  match", Some("apiVersion is not one of")),
            ("['*.example.com', 'r.io:5000/a']", "[]", Some("matchImages is required")),
            ("defaultCacheDuration: 10m", "", Some("defaultCacheDuration is required")),
            ("args: [get]", "tokenAttributes: {}", Some("tokenAttributes are not supported")),
            ("args:", "arguments:", Some("unknown field `arguments`")),
        ] {
            let text = CONFIG.replacen(from, to, usize::from(!from.is_empty()));
            match (parse(&text), fault) {
                (Ok(providers), None) => assert_eq!(providers.len(), 1),
                (Err(found), Some(fault)) => {
                    let found = chain(&found);
                    assert!(found.contains(fault), "{found}");
                }
                (outcome, fault) => panic!("{fault:?} {:?}", outcome.err()),
            }
        }
    }

    #[test]
    fn answers_are_used_and_hold_as_long_as_they_say() {
        let folder = std::env::temp_dir().join(format!("kubelet-plugins-{}", std::process::id()));
        fs::create_dir_all(folder.join("bin")).expect("a folder");
        fs::write(folder.join("config.yaml"), CONFIG).expect("a file");
        let (config, programs) = (folder.join("config.yaml"), folder.join("bin"));
        let clock = FakeClock::new(Timestamp::from_micros(0));
        let fault = Plugins::read(&config, &programs, clock.clone()).err();
        assert!(fault.is_some_and(|fault| fault.to_string().contains("bin/helper did not exist")));
        // It counts its calls in its passwords, and takes its user from the environment.
        let script = "#!/bin/sh\ncd \"$(dirname \"$0\")\"; cat > request; echo x >> calls\n\
            [ \"$1\" = get ] || exit 1\n[ ! -e broken ] || { echo down >&2; exit 3; }\n\
            echo '{\"apiVersion\":\"credentialprovider.kubelet.k8s.io/v1\",\
            \"kind\":\"CredentialProviderResponse\",\"cacheKeyType\":\"Registry\",\
            \"cacheDuration\":\"1m\",\"auth\":{\"*.example.com\":{\"username\":\"'$WHO'\",\
            \"password\":\"'$(wc -l < calls | tr -d ' ')'\"}}}'\n";
        // Written by another process: one that this one forks meanwhile would keep it open for
        // writing, and then it cannot be executed.
        fs::write(folder.join("script"), script).expect("a file");
        let (from, to) = (folder.join("script"), programs.join("helper"));
        let installed = Command::new("install").args(["-m", "755"]).args([from, to]).status();
        assert!(installed.is_ok_and(|status| status.success()));
        let plugins = Plugins::read(&folder.join("config.yaml"), &programs, clock.clone());
        let plugins = plugins.expect("plugins");
        let clock: Arc<FakeClock> = clock;
        let ask = |image: &str| {
            let mut keyring = Keyring::default();
            block_on(plugins.add_to(&mut keyring, image));
            let found = keyring.lookup(image);
            let found = found.first().map(|found| format!("{} {}", found.username, found.password));
            found.unwrap_or_default()
        };
        assert_eq!(ask("other.test/a"), "");
        assert!(!programs.join("calls").exists(), "it is asked for other images");
        assert_eq!(ask("eu.example.com/a"), "me 1");
        let request = fs::read_to_string(programs.join("request")).expect("a request");
        let request: Value = serde_json::from_str(&request).expect("JSON");
        assert_eq!(request["image"], "eu.example.com/a");
        assert_eq!(request["kind"], "CredentialProviderRequest");
        // The same registry, and another one.
        assert_eq!(ask("eu.example.com/b"), "me 1");
        assert_eq!(ask("us.example.com/b"), "me 2");
        clock.advance(Duration::from_secs(61));
        assert_eq!(ask("eu.example.com/a"), "me 3");
        fs::write(programs.join("broken"), "").expect("a file");
        assert_eq!(ask("eu.example.com/a"), "me 3");
        assert_eq!(ask("as.example.com/a"), "");
        fs::remove_dir_all(&folder).expect("removed");
    }
}
