//! The `Authorization` header: tokens, token files, credential plugins.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use futures_lite::future::Boxed;
use serde::Deserialize;
use serde_json::json;

use super::config::{Credentials, Exec, read};
use super::{Error, Result};
use crate::clock::SharedClock;
use crate::objects::Timestamp;
use crate::task;

/// Gives a bearer token, fresh for each request. `Err`: why there is none.
pub type TokenProvider = Arc<dyn Fn() -> Boxed<std::result::Result<String, String>> + Send + Sync>;

/// How long a token file's content is taken to be current.
const FILE_LIFETIME: Duration = Duration::from_secs(60);

pub(super) enum Auth {
    None,
    Fixed(String),
    File { path: PathBuf, clock: SharedClock, read: Mutex<Option<(String, Duration)>> },
    Exec { exec: Box<Exec>, host: String, clock: SharedClock, had: Mutex<Option<Had>> },
    Provider(TokenProvider),
}

/// A plugin's answer.
#[derive(Clone)]
pub(super) struct Had {
    token: String,
    expires: Option<Timestamp>,
}

impl Auth {
    pub fn new(credentials: &Credentials, host: &str, clock: &SharedClock) -> Auth {
        match credentials {
            Credentials::None => Auth::None,
            Credentials::Token(token) => Auth::Fixed(format!("Bearer {}", token.trim())),
            Credentials::Basic { user, password } => {
                let pair = format!("{user}:{password}");
                let encoded = base64::engine::general_purpose::STANDARD.encode(pair);
                Auth::Fixed(format!("Basic {encoded}"))
            }
            Credentials::TokenFile(path) => {
                Auth::File { path: path.clone(), clock: clock.clone(), read: Mutex::default() }
            }
            Credentials::Exec(exec) => Auth::Exec {
                exec: exec.clone(),
                host: host.to_owned(),
                clock: clock.clone(),
                had: Mutex::default(),
            },
        }
    }

    /// The header's value, where there is to be one.
    pub async fn header(&self) -> Result<Option<String>> {
        match self {
            Auth::None => Ok(None),
            Auth::Fixed(value) => Ok(Some(value.clone())),
            Auth::Provider(provider) => {
                let token = provider().await.map_err(|error| Error::Credentials(error.into()))?;
                Ok(Some(format!("Bearer {token}")))
            }
            Auth::File { path, clock, read: known } => {
                let now = clock.monotonic();
                let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some((token, until)) = known.as_ref()
                    && now < *until
                {
                    return Ok(Some(format!("Bearer {token}")));
                }
                match read(path) {
                    Ok(bytes) => {
                        let token = String::from_utf8_lossy(&bytes).trim().to_owned();
                        *known = Some((token, now + FILE_LIFETIME));
                    }
                    // The old token may still be good: the server decides.
                    Err(error) if known.is_some() => log::warn!("token file: {error}"),
                    Err(error) => return Err(error),
                }
                Ok(known.as_ref().map(|(token, _)| format!("Bearer {token}")))
            }
            Auth::Exec { exec, host, clock, had } => {
                let known = had.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let now = clock.now();
                let current = known.filter(|had| {
                    had.expires.is_none_or(|end| now + Duration::from_secs(10) < end)
                });
                let had_now = match current {
                    Some(current) => current,
                    None => {
                        let (exec, host) = (exec.clone(), host.clone());
                        let fresh = task::blocking(move || run(&exec, &host)).await?;
                        *had.lock().unwrap_or_else(PoisonError::into_inner) = Some(fresh.clone());
                        fresh
                    }
                };
                Ok((!had_now.token.is_empty()).then(|| format!("Bearer {}", had_now.token)))
            }
        }
    }

    /// The server refused what `header` gave: the next one is had anew.
    pub fn refused(&self) {
        match self {
            Auth::File { read, .. } => {
                *read.lock().unwrap_or_else(PoisonError::into_inner) = None;
            }
            Auth::Exec { had, .. } => *had.lock().unwrap_or_else(PoisonError::into_inner) = None,
            Auth::None | Auth::Fixed(_) | Auth::Provider(_) => {}
        }
    }
}

#[derive(Deserialize)]
struct ExecCredential {
    #[serde(default)]
    status: ExecStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ExecStatus {
    token: String,
    expiration_timestamp: Option<Timestamp>,
}

fn run(exec: &Exec, host: &str) -> Result<Had> {
    let fault = |what: String| {
        let hint = match exec.install_hint.as_str() {
            "" => String::new(),
            hint => format!(" ({hint})"),
        };
        Error::Credentials(format!("exec plugin {}: {what}{hint}", exec.command).into())
    };
    let mut spec = json!({ "interactive": false });
    if exec.provide_cluster_info {
        spec["cluster"] = json!({ "server": host });
    }
    let info = json!({ "apiVersion": exec.api_version, "kind": "ExecCredential", "spec": spec })
        .to_string();
    let output = Command::new(&exec.command)
        .args(&exec.args)
        .envs(exec.env.iter().map(|pair| (&pair.name, &pair.value)))
        .env("KUBERNETES_EXEC_INFO", info)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| fault(error.to_string()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(fault(format!("{}: {said}", output.status)));
    }
    let answer: ExecCredential = serde_json::from_slice(&output.stdout)
        .map_err(|error| fault(format!("its answer does not decode: {error}")))?;
    let ExecStatus { token, expiration_timestamp } = answer.status;
    if token.is_empty() {
        return Err(fault("its answer holds no token".to_owned()));
    }
    Ok(Had { token, expires: expiration_timestamp })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::FakeClock;

    #[test]
    fn a_token_file_is_read_again_after_a_minute() {
        let clock = FakeClock::new(Timestamp::default());
        let path = std::env::temp_dir().join(format!("token-{}", std::process::id()));
        std::fs::write(&path, "one\n").unwrap();
        let shared: SharedClock = clock.clone();
        let auth = Auth::new(&Credentials::TokenFile(path.clone()), "", &shared);
        let header = || futures_lite::future::block_on(auth.header()).unwrap().unwrap();
        assert_eq!(header(), "Bearer one");
        std::fs::write(&path, "two").unwrap();
        assert_eq!(header(), "Bearer one");
        clock.advance(FILE_LIFETIME);
        assert_eq!(header(), "Bearer two");
        std::fs::remove_file(&path).unwrap();
        auth.refused();
        assert!(futures_lite::future::block_on(auth.header()).is_err());
    }

    #[test]
    fn a_plugin_gives_a_token_until_it_expires() {
        let clock = FakeClock::new(Timestamp::from_secs(100));
        let answer = r#"{"kind":"ExecCredential","status":{"token":"t","expirationTimestamp":"1970-01-01T00:05:00Z"}}"#;
        let exec = Exec {
            command: "sh".into(),
            args: vec![
                "-c".into(),
                format!("test -n \"$KUBERNETES_EXEC_INFO\" && echo '{answer}'"),
            ],
            ..Exec::default()
        };
        let had = run(&exec, "https://h").unwrap();
        assert_eq!((had.token.as_str(), had.expires), ("t", Some(Timestamp::from_secs(300))));
        let broken =
            Exec { command: "sh".into(), args: vec!["-c".into(), "exit 3".into()], ..exec };
        assert!(run(&broken, "").is_err());
        let shared: SharedClock = clock;
        let auth = Auth::new(&Credentials::Exec(Box::new(broken)), "", &shared);
        assert!(futures_lite::future::block_on(auth.header()).is_err());
    }
}
