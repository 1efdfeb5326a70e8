//! Programs that answer with the credentials of a registry.
//! Upstream: `pkg/credentialprovider/plugin`.

mod accounts;
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
use serde_json::json;

use self::accounts::{AccountKey, Caller, TokenAttributes};
pub use self::error::Error;

use super::credentials::{Credentials, Keyring, Source, is_match};
use crate::causes::chain;
use crate::metrics;
use crate::objects::Objects;
use crate::options::GoDuration;
use crate::pod::Pod;

/// A program that takes longer is killed.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The version of requests that have tokens.
const TOKEN_VERSION: &str = "credentialprovider.kubelet.k8s.io/v1";

/// The versions of requests and answers.
const VERSIONS: [&str; 3] = [
    TOKEN_VERSION,
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
    token_attributes: Option<TokenAttributes>,
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

/// The key of an answer, and that of the account that it is for.
type AnswerKey = (String, Option<AccountKey>);

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
    /// Answers with the time until which they hold.
    cache: Mutex<BTreeMap<AnswerKey, (Duration, ByPattern)>>,
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

    /// Adds the credentials of all programs that are for a repository, and for the account of a pod
    /// where they want one.
    pub async fn add_to(
        &self,
        keyring: &mut Keyring,
        repository: &str,
        pod: &Pod,
        objects: &Objects,
    ) {
        for plugin in &self.plugins {
            let mut patterns = plugin.provider.match_images.iter();
            if !patterns.any(|pattern| is_match(pattern, repository)) {
                continue;
            }
            match plugin.provide_to(pod, objects, repository, &self.clock).await {
                Ok((found, source)) => {
                    let mut own = Keyring::default();
                    own.add(found);
                    keyring.add_all(source, own);
                }
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

/// Checks one plugin's configuration.
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
    match &provider.token_attributes {
        Some(attributes) => attributes.check(&provider.api_version),
        None => Ok(()),
    }
}

fn is_executable(program: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(program).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

impl Plugin {
    /// Returns the credentials that the plugin has for an image of a pod, and the pod's account if
    /// it has got them for that; empty: it is not run for this pod.
    async fn provide_to(
        &self,
        pod: &Pod,
        objects: &Objects,
        image: &str,
        clock: &SharedClock,
    ) -> Result<(ByPattern, Option<Source>), Error> {
        let caller = match &self.provider.token_attributes {
            Some(attributes) => attributes.caller(pod, objects).await?,
            None => Some(Caller::Node),
        };
        match caller {
            Some(caller) => {
                let found = self.provide(image, &caller, clock).await?;
                Ok((found, caller.source()))
            }
            None => Ok((ByPattern::new(), None)),
        }
    }

    /// Returns the credentials that the plugin has for an image: cached ones, or those of a new
    /// run.
    async fn provide(
        &self,
        image: &str,
        caller: &Caller,
        clock: &SharedClock,
    ) -> Result<ByPattern, Error> {
        let (now, account) = (clock.monotonic(), caller.key());
        if let Some(found) = self.cached(image, &account, now) {
            return Ok(found);
        }
        let output = self.run(image, caller, clock).await;
        let has_failed = !output.as_ref().is_ok_and(|output| output.status.success());
        let took = clock.monotonic().saturating_sub(now);
        metrics::observe_credential_provider(&self.provider.name, has_failed, took);
        let output = output?;
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
        if answer.auth.values().any(|found| caller.is_lasting_token(&found.password)) {
            return Err(Error::ReturnedToken);
        }
        let holds = answer.cache_duration.or(self.provider.default_cache_duration);
        if let Some(holds) = holds.map(|holds| holds.0).filter(|holds| !holds.is_zero()) {
            let entry = (now.saturating_add(holds), answer.auth.clone());
            self.cache.lock().insert((answer.cache_key_type.of(image), account), entry);
        }
        Ok(answer.auth)
    }

    /// Returns a cached answer for an image and an account that still holds. Forgets all answers
    /// that do not.
    fn cached(
        &self,
        image: &str,
        account: &Option<AccountKey>,
        now: Duration,
    ) -> Option<ByPattern> {
        let mut cache = self.cache.lock();
        cache.retain(|_, (until, _)| *until >= now);
        let kinds = [CacheKey::Image, CacheKey::Registry, CacheKey::Global];
        let answer = |kind: CacheKey| cache.get(&(kind.of(image), account.clone()));
        kinds.into_iter().find_map(|kind| Some(answer(kind)?.1.clone()))
    }

    /// Runs the plugin for an image, and returns its output. Errors: it cannot be started, or is
    /// too slow and is killed.
    async fn run(
        &self,
        image: &str,
        caller: &Caller,
        clock: &SharedClock,
    ) -> Result<Output, Error> {
        let mut request = json!({
            "kind": "CredentialProviderRequest",
            "apiVersion": self.provider.api_version,
            "image": image,
        });
        if let Some(account) = caller.account() {
            request["serviceAccountToken"] = json!(&*account.token);
            if !account.key.annotations.is_empty() {
                request["serviceAccountAnnotations"] = json!(account.key.annotations);
            }
        }
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
    use serde_json::Value;

    use super::super::credentials::Coordinates;
    use super::accounts::Account;
    use super::*;
    use crate::objects::folder::LocalObjects;

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
            ("args: [get]", "tokenAttributes: {}", Some("serviceAccountTokenAudience is required")),
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

    /// Installs a program by this script, and reads the configuration that names it.
    fn installed(folder: &Path, config: &str, script: &str, clock: SharedClock) -> Plugins {
        let programs = folder.join("bin");
        fs::create_dir_all(&programs).expect("a folder");
        fs::write(folder.join("config.yaml"), config).expect("a file");
        // Written by another process: one that this one forks meanwhile would keep it open for
        // writing, and then it cannot be executed.
        fs::write(folder.join("script"), script).expect("a file");
        let (from, to) = (folder.join("script"), programs.join("helper"));
        let installed = Command::new("install").args(["-m", "755"]).args([from, to]).status();
        assert!(installed.is_ok_and(|status| status.success()));
        Plugins::read(&folder.join("config.yaml"), &programs, clock).expect("plugins")
    }

    fn last_request(folder: &Path) -> Value {
        let request = fs::read_to_string(folder.join("bin/request")).expect("a request");
        serde_json::from_str(&request).expect("JSON")
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
        let plugins = installed(&folder, CONFIG, script, clock.clone());
        let clock: Arc<FakeClock> = clock;
        let objects = Objects::new(LocalObjects::default(), clock.clone());
        let ask = |image: &str| {
            let mut keyring = Keyring::default();
            block_on(plugins.add_to(&mut keyring, image, &Pod::default(), &objects));
            let found = keyring.lookup(image);
            let found = found.first().map(|found| format!("{} {}", found.username, found.password));
            found.unwrap_or_default()
        };
        assert_eq!(ask("other.test/a"), "");
        assert!(!programs.join("calls").exists(), "it is asked for other images");
        assert_eq!(ask("eu.example.com/a"), "me 1");
        let expected = json!({
            "kind": "CredentialProviderRequest", "image": "eu.example.com/a",
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        });
        assert_eq!(last_request(&folder), expected);
        // The same registry, and another one.
        assert_eq!(ask("eu.example.com/b"), "me 1");
        assert_eq!(ask("us.example.com/b"), "me 2");
        clock.advance(Duration::from_secs(61));
        assert_eq!(ask("eu.example.com/a"), "me 3");
        fs::write(programs.join("broken"), "").expect("a file");
        assert_eq!(ask("eu.example.com/a"), "me 3");
        let errors = metrics::CREDENTIAL_PROVIDER_ERRORS.with_label_values(&["helper"]);
        let before = errors.get();
        assert_eq!(ask("as.example.com/a"), "");
        assert_eq!(errors.get(), before + 1);
        fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn answers_for_accounts_are_kept_apart() {
        let folder = std::env::temp_dir().join(format!("kubelet-accounts-{}", std::process::id()));
        let attributes = "tokenAttributes: {serviceAccountTokenAudience: r, cacheType: Token, \
                          requireServiceAccount: true}\n  args:";
        let config = CONFIG.replacen("args:", attributes, 1);
        // It counts its calls in its passwords, or returns the token.
        let script = "#!/bin/sh\ncd \"$(dirname \"$0\")\"; cat > request; echo x >> calls\n\
            password=$(wc -l < calls | tr -d ' ')\n[ ! -e returns ] || password=\
            $(sed 's/.*\"serviceAccountToken\":\"\\([^\"]*\\)\".*/\\1/' request)\n\
            echo '{\"apiVersion\":\"credentialprovider.kubelet.k8s.io/v1\",\
            \"kind\":\"CredentialProviderResponse\",\"cacheKeyType\":\"Global\",\
            \"auth\":{\"*.example.com\":{\"username\":\"u\",\"password\":\"'$password'\"}}}'\n";
        let clock: SharedClock = FakeClock::new(Timestamp::from_micros(0));
        let plugins = installed(&folder, &config, script, clock.clone());
        let plugin = plugins.plugins.first().expect("a plugin");
        let caller = |name: &str, token: &str, is_kept_by_token: bool| {
            let token: Arc<str> = token.into();
            let key = AccountKey {
                namespace: "n".to_owned(),
                name: name.to_owned(),
                uid: "u".to_owned(),
                annotations: BTreeMap::from([("role".to_owned(), "r".to_owned())]),
                token: is_kept_by_token.then(|| token.clone()),
            };
            Caller::Account(Account { key, token })
        };
        let source = caller("a", "t", true).source();
        let expected = Coordinates { uid: "u".into(), namespace: "n".into(), name: "a".into() };
        assert_eq!(source, Some(Source::ServiceAccount(expected)));
        assert_eq!(Caller::Node.source(), None);
        let ask = |caller: &Caller| {
            let found = block_on(plugin.provide("eu.example.com/a", caller, &clock));
            found.map(|found| found["*.example.com"].password.clone()).map_err(|e| e.to_string())
        };
        let ok = |password: &str| Ok(password.to_owned());
        assert_eq!(ask(&caller("a", "t1", false)), ok("1"));
        let request = last_request(&folder);
        assert_eq!(request["serviceAccountToken"], "t1");
        assert_eq!(request["serviceAccountAnnotations"], json!({"role": "r"}));
        assert_eq!(ask(&caller("a", "t2", false)), ok("1"));
        assert_eq!(ask(&caller("b", "t3", false)), ok("2"));
        assert_eq!(ask(&caller("a", "t1", true)), ok("3"));
        assert_eq!(ask(&caller("a", "t1", true)), ok("3"));
        assert_eq!(ask(&caller("a", "t2", true)), ok("4"));
        assert_eq!(ask(&Caller::Node), ok("5"));
        fs::write(folder.join("bin/returns"), "").expect("a file");
        assert_eq!(ask(&caller("a", "t4", true)), ok("t4"));
        let fault = ask(&caller("c", "t5", false)).expect_err("the token");
        assert!(fault.contains("returned the service account token as the password"), "{fault}");
        fs::remove_dir_all(&folder).expect("removed");
    }
}
