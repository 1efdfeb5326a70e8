//! Credential plugins: programs that print a token, a client certificate, or both.
//! Upstream: `plugin/pkg/client/auth/exec`.

use std::fmt;
use std::io::{IsTerminal, stdin};
use std::process::{Command, Stdio};
use std::sync::Arc;

use base64::Engine;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::client::config::{Config, Exec, without_value};
use crate::client::single_flight::SingleFlight;
use crate::client::{Error, Result};
use crate::clock::SharedClock;
use crate::objects::Timestamp;
use crate::task;

/// A client certificate with its chain, and its key, both in PEM.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::client) struct Pair {
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
}

/// The output of a plugin: a token, a certificate or both.
pub(in crate::client) struct Issued {
    pub token: Option<String>,
    pub pair: Option<Pair>,
    expires: Option<Timestamp>,
}

/// Without the token and the key.
impl fmt::Debug for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issued").field("expires", &self.expires).finish_non_exhaustive()
    }
}

/// A plugin and its last output. It runs again when that has expired or was refused.
///
/// There is one run at a time, in a task of its own: when the request that started it gives up, as
/// requests of the leader election do after their time, the run continues and the next request uses
/// its result.
pub(in crate::client) struct Plugin {
    exec: Exec,
    /// For `KUBERNETES_EXEC_INFO`.
    cluster: Option<Value>,
    clock: SharedClock,
    issued: SingleFlight<Arc<Issued>>,
}

impl Plugin {
    /// Prepares the plugin, which first runs for a request. `Err`: the certificate authority that
    /// it gets cannot be read.
    pub fn new(exec: &Exec, config: &Config, clock: &SharedClock) -> Result<Plugin> {
        let cluster = exec.provide_cluster_info.then(|| cluster_of(exec, config)).transpose()?;
        Ok(Plugin {
            exec: exec.clone(),
            cluster,
            clock: clock.clone(),
            issued: SingleFlight::default(),
        })
    }

    /// Returns the last output of the plugin, or runs it when that has expired.
    pub async fn credentials(&self) -> Result<Arc<Issued>> {
        let now = self.clock.now();
        let run = || {
            let (exec, cluster) = (self.exec.clone(), self.cluster.clone());
            async move { task::blocking(move || run(&exec, cluster)).await.map(Arc::new) }
        };
        self.issued.get(|issued| issued.is_current(now), run).await
    }

    /// Makes the plugin run again because the server has refused `shown`, unless that was replaced
    /// since.
    pub fn record_refusal(&self, shown: &Arc<Issued>) {
        self.issued.reset_if(|issued| Arc::ptr_eq(issued, shown));
    }
}

impl Issued {
    /// Returns whether the output has not expired.
    fn is_current(&self, now: Timestamp) -> bool {
        self.expires.is_none_or(|end| now <= end)
    }
}

/// Describes the cluster for a plugin that asks for it (`provideClusterInfo`).
/// Upstream: `rest.ConfigToExecCluster`.
fn cluster_of(exec: &Exec, config: &Config) -> Result<Value> {
    let mut cluster = json!({ "server": config.host, "config": exec.cluster_config });
    if let Some(name) = &config.tls.server_name {
        cluster["tls-server-name"] = name.as_str().into();
    }
    if config.tls.insecure {
        cluster["insecure-skip-tls-verify"] = true.into();
    }
    if let Some(ca) = &config.tls.ca {
        let encoded = base64::engine::general_purpose::STANDARD.encode(ca.read()?);
        cluster["certificate-authority-data"] = encoded.into();
    }
    if let Some(proxy) = &config.proxy {
        cluster["proxy-url"] = proxy.as_str().into();
    }
    Ok(cluster)
}

/// The answer that a plugin prints. Upstream: `clientauthentication.ExecCredential`.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ExecCredential {
    api_version: String,
    kind: String,
    status: Option<Status>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    token: String,
    client_certificate_data: String,
    client_key_data: String,
    expiration_timestamp: Option<Timestamp>,
}

/// Runs the plugin, and waits for its answer.
fn run(exec: &Exec, cluster: Option<Value>) -> Result<Issued> {
    let fault = |what: String| {
        let hint = match exec.install_hint.as_str() {
            "" => String::new(),
            hint => format!(" ({hint})"),
        };
        Error::Credentials(format!("exec plugin {}: {what}{hint}", exec.command).into())
    };
    let interactive = is_interactive(&exec.interactive_mode, stdin().is_terminal())
        .map_err(|w| fault(w.to_owned()))?;
    let mut spec = json!({ "interactive": interactive });
    if let Some(cluster) = cluster {
        spec["cluster"] = cluster;
    }
    let info = json!({ "apiVersion": exec.api_version, "kind": "ExecCredential", "spec": spec })
        .to_string();
    let output = Command::new(&exec.command)
        .args(&exec.args)
        .envs(exec.env.iter().map(|pair| (&pair.name, &pair.value)))
        .env("KUBERNETES_EXEC_INFO", info)
        .stdin(if interactive { Stdio::inherit() } else { Stdio::null() })
        // The plugin writes its questions there.
        .stderr(if interactive { Stdio::inherit() } else { Stdio::piped() })
        .output()
        .map_err(|error| fault(error.to_string()))?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(fault(format!("{}: {message}", output.status)));
    }
    parse_answer(&exec.api_version, &output.stdout).map_err(fault)
}

/// Returns whether a plugin may ask a person. `Err`: it has to, and there is no terminal. Upstream:
/// `isInteractive`.
fn is_interactive(mode: &str, is_terminal: bool) -> std::result::Result<bool, &'static str> {
    match mode {
        "Never" => Ok(false),
        "Always" if !is_terminal => {
            Err("exec plugin cannot support interactive mode: standard input is not a terminal")
        }
        _ => Ok(is_terminal),
    }
}

/// Parses what the plugin has printed: a token, a client certificate with its key, or both. `Err`:
/// the fault in the answer.
fn parse_answer(api_version: &str, answer: &[u8]) -> std::result::Result<Issued, String> {
    let answer: ExecCredential = serde_json::from_slice(answer)
        .map_err(|error| format!("its answer does not decode: {}", without_value(&error)))?;
    if answer.kind != "ExecCredential" {
        return Err(format!("its answer is of kind {:?}, not ExecCredential", answer.kind));
    }
    if answer.api_version != api_version {
        return Err(format!(
            "it is configured to use API version {api_version}, but returned version {}",
            answer.api_version
        ));
    }
    let Some(status) = answer.status else {
        return Err("its answer has no status".to_owned());
    };
    let Status { token, client_certificate_data, client_key_data, expiration_timestamp } = status;
    let (has_certificate, has_key) =
        (!client_certificate_data.is_empty(), !client_key_data.is_empty());
    if has_certificate != has_key {
        return Err("its answer holds only a certificate or a key, not both".to_owned());
    }
    if !has_certificate && token.is_empty() {
        return Err("its answer holds neither a token nor a certificate and key".to_owned());
    }
    let pair = has_certificate.then(|| Pair {
        certificate: client_certificate_data.into_bytes(),
        key: client_key_data.into_bytes(),
    });
    let token = Some(token).filter(|token| !token.is_empty());
    Ok(Issued { token, pair, expires: expiration_timestamp })
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;

    use super::*;
    use crate::clock::FakeClock;

    const V1: &str = "client.authentication.k8s.io/v1";

    fn shell(script: String) -> Exec {
        let args = vec!["-c".into(), script];
        Exec { api_version: V1.into(), command: "sh".into(), args, ..Exec::default() }
    }

    fn answer(status: &str) -> String {
        format!(r#"{{"apiVersion":"{V1}","kind":"ExecCredential","status":{status}}}"#)
    }

    #[test]
    fn a_plugin_may_ask_at_a_terminal() {
        for (mode, [with, without]) in [
            ("Never", [Ok(false), Ok(false)]),
            ("IfAvailable", [Ok(true), Ok(false)]),
            ("", [Ok(true), Ok(false)]),
            ("Always", [Ok(true), Err(())]),
        ] {
            assert_eq!(is_interactive(mode, true).map_err(drop), with, "{mode:?}");
            assert_eq!(is_interactive(mode, false).map_err(drop), without, "{mode:?}");
        }
    }

    #[test]
    fn an_answer_is_whole_or_refused() {
        let pair = r#"{"clientCertificateData":"C","clientKeyData":"K"}"#;
        let found = parse_answer(V1, answer(pair).as_bytes()).unwrap();
        assert!(found.pair == Some(Pair { certificate: b"C".to_vec(), key: b"K".to_vec() }));
        assert_eq!(found.token, None);
        let whole = r#"{"token":"t","expirationTimestamp":"1970-01-01T00:05:00Z"}"#;
        let found = parse_answer(V1, answer(whole).as_bytes()).unwrap();
        assert_eq!(found.token.as_deref(), Some("t"));
        assert!(found.is_current(Timestamp::from_secs(300)));
        assert!(!found.is_current(Timestamp::from_secs(301)));
        for (text, expected) in [
            (answer("{}"), "neither a token nor"),
            (answer("null"), "no status"),
            (answer(r#"{"token":"t","clientKeyData":"K"}"#), "not both"),
            (answer(r#"{"clientCertificateData":"C"}"#), "not both"),
            (answer(whole).replace("/v1\"", "/v1beta1\""), "returned version client."),
            (answer(whole).replace("ExecCredential", "Pod"), "of kind \"Pod\""),
            ("oops".to_owned(), "does not decode"),
            (answer("\"hunter2\""), "invalid type: string, expected struct Status at line 1"),
        ] {
            let error = parse_answer(V1, text.as_bytes()).expect_err(&text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_plugin_runs_again_when_its_answer_expired_or_was_refused() {
        let folder = std::env::temp_dir().join(format!("plugin-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let count = folder.join("count");
        // The token is the number of runs.
        let script = format!(
            "echo >> {0}; n=$(wc -l < {0} | tr -d ' '); echo '{1}' | sed s/N/$n/",
            count.display(),
            answer(r#"{"token":"N","expirationTimestamp":"1970-01-01T00:05:00Z"}"#)
        );
        let clock = FakeClock::new(Timestamp::from_secs(100));
        let shared: SharedClock = clock.clone();
        let plugin = Plugin::new(&shell(script), &Config::new("https://h"), &shared).unwrap();
        let ask = || block_on(plugin.credentials()).unwrap();
        let token = || ask().token.clone().unwrap();
        assert_eq!([token(), token()], ["1", "1"]);
        let first = ask();
        plugin.record_refusal(&first);
        assert_eq!(token(), "2");
        plugin.record_refusal(&first);
        assert_eq!(token(), "2", "it was replaced already");
        clock.advance(std::time::Duration::from_secs(201));
        assert_eq!(token(), "3", "expired");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_run_outlives_the_request_that_began_it() {
        let folder = std::env::temp_dir().join(format!("slow-plugin-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (count, gate) = (folder.join("count"), folder.join("gate"));
        let made = Command::new("mkfifo").arg(&gate).status().unwrap();
        assert!(made.success());
        // The plugin ends when the gate is written to.
        let script = format!(
            "echo >> {}; cat {} > /dev/null; echo '{}'",
            count.display(),
            gate.display(),
            answer(r#"{"token":"t"}"#)
        );
        let clock: SharedClock = FakeClock::new(Timestamp::from_secs(100));
        let plugin = Plugin::new(&shell(script), &Config::new("https://h"), &clock).unwrap();
        // The election gives each of its requests a limited time.
        for _ in 0..3 {
            let waited = block_on(futures_lite::future::poll_once(Box::pin(plugin.credentials())));
            assert!(waited.is_none(), "the plugin has not ended");
        }
        // Opening the gate waits for the plugin to do so, too.
        std::fs::write(&gate, "go").unwrap();
        let issued = block_on(plugin.credentials()).unwrap();
        assert_eq!(issued.token.as_deref(), Some("t"));
        assert_eq!(std::fs::read_to_string(&count).unwrap(), "\n", "it ran once");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_plugin_gets_the_cluster_and_its_failure_is_reported() {
        let clock: SharedClock = FakeClock::new(Timestamp::from_secs(0));
        let mut config = Config::new("https://h:1");
        config.tls.ca = Some(crate::client::config::Pem::Inline(b"CA".to_vec()));
        config.tls.server_name = Some("n".to_owned());
        let mut exec = shell("echo \"$KUBERNETES_EXEC_INFO\" >&2; exit 3".to_owned());
        exec.install_hint = "get it".to_owned();
        exec.provide_cluster_info = true;
        exec.cluster_config = json!({ "audience": "a" });
        let plugin = Plugin::new(&exec, &config, &clock).unwrap();
        let error = block_on(plugin.credentials()).unwrap_err().to_string();
        for expected in [
            "exit status: 3",
            "(get it)",
            r#""server":"https://h:1""#,
            r#""certificate-authority-data":"Q0E=""#,
            r#""tls-server-name":"n""#,
            r#""config":{"audience":"a"}"#,
        ] {
            assert!(error.contains(expected), "{expected} in {error}");
        }
        exec.command = "/no/such/plugin".to_owned();
        let plugin = Plugin::new(&exec, &config, &clock).unwrap();
        let error = block_on(plugin.credentials()).unwrap_err().to_string();
        assert!(error.contains("/no/such/plugin"), "{error}");
    }
}
