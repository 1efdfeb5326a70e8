//! The `Authorization` header: tokens, token files, credential plugins.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use futures_lite::future::Boxed;

use super::config::{Credentials, read};
use super::exec::{Issued, Plugin};
use super::{Error, Result};
use crate::clock::SharedClock;

/// Gives a bearer token, fresh for each request. It is given the token that the server has refused
/// since it was asked last, if there is one: that must not be given again. `Err`: why there is none.
pub type TokenProvider =
    Arc<dyn Fn(Option<String>) -> Boxed<std::result::Result<String, String>> + Send + Sync>;

/// How long a token file's content is taken to be current.
const FILE_LIFETIME: Duration = Duration::from_secs(60);

pub(super) enum Auth {
    None,
    Fixed(String),
    File { path: PathBuf, clock: SharedClock, read: Mutex<Option<(String, Duration)>> },
    Exec(Arc<Plugin>),
    Provider { provider: TokenProvider, refused: Mutex<Option<String>> },
}

/// What a request shows of us.
#[derive(Default)]
pub(super) struct Shown {
    /// The header's value, where there is to be one.
    pub header: Option<String>,
    issued: Option<Arc<Issued>>,
}

fn bearer(token: &str) -> Option<String> {
    Some(format!("Bearer {token}"))
}

impl Auth {
    /// `plugin`: of [`Credentials::Exec`].
    pub fn new(
        credentials: &Credentials,
        plugin: Option<&Arc<Plugin>>,
        clock: &SharedClock,
    ) -> Auth {
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
            Credentials::Exec(_) => plugin.map_or(Auth::None, |plugin| Auth::Exec(plugin.clone())),
        }
    }

    pub fn provider(provider: TokenProvider) -> Auth {
        Auth::Provider { provider, refused: Mutex::default() }
    }

    pub async fn show(&self) -> Result<Shown> {
        let header = match self {
            Auth::None => None,
            Auth::Fixed(value) => Some(value.clone()),
            Auth::Provider { provider, refused } => {
                let refused = refused.lock().unwrap_or_else(PoisonError::into_inner).take();
                let token =
                    provider(refused).await.map_err(|error| Error::Credentials(error.into()))?;
                bearer(&token)
            }
            Auth::File { path, clock, read: known } => {
                let now = clock.monotonic();
                let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
                if known.as_ref().is_none_or(|(_, until)| now >= *until) {
                    match token_of(path) {
                        Ok(token) => *known = Some((token, now + FILE_LIFETIME)),
                        // The old token may still be good: the server decides.
                        Err(error) if known.is_some() => log::warn!("token file: {error}"),
                        Err(error) => return Err(error),
                    }
                }
                known.as_ref().and_then(|(token, _)| bearer(token))
            }
            Auth::Exec(plugin) => {
                let issued = plugin.credentials().await?;
                let header = issued.token.as_deref().and_then(bearer);
                return Ok(Shown { header, issued: Some(issued) });
            }
        };
        Ok(Shown { header, issued: None })
    }

    /// The server refused what was shown: the next is had anew.
    pub async fn refused(&self, shown: &Shown) {
        match self {
            Auth::File { read, .. } => {
                *read.lock().unwrap_or_else(PoisonError::into_inner) = None;
            }
            Auth::Exec(plugin) => {
                if let Some(issued) = &shown.issued {
                    plugin.refused(issued).await;
                }
            }
            Auth::Provider { refused, .. } => {
                let token = shown.header.as_deref().and_then(|h| h.strip_prefix("Bearer "));
                *refused.lock().unwrap_or_else(PoisonError::into_inner) =
                    token.map(ToOwned::to_owned);
            }
            Auth::None | Auth::Fixed(_) => {}
        }
    }
}

fn token_of(path: &std::path::Path) -> Result<String> {
    let bytes = read(path)?;
    match String::from_utf8_lossy(&bytes).trim() {
        "" => Err(Error::Config(format!("{}: read empty token", path.display()))),
        token => Ok(token.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;

    use super::*;
    use crate::clock::FakeClock;
    use crate::objects::Timestamp;

    #[test]
    fn a_token_file_is_read_again_after_a_minute() {
        let clock = FakeClock::new(Timestamp::default());
        let path = std::env::temp_dir().join(format!("token-{}", std::process::id()));
        std::fs::write(&path, "one\n").unwrap();
        let shared: SharedClock = clock.clone();
        let auth = Auth::new(&Credentials::TokenFile(path.clone()), None, &shared);
        let header = || block_on(auth.show()).unwrap().header.unwrap();
        assert_eq!(header(), "Bearer one");
        std::fs::write(&path, "two").unwrap();
        assert_eq!(header(), "Bearer one");
        clock.advance(FILE_LIFETIME);
        assert_eq!(header(), "Bearer two");
        std::fs::write(&path, "\n").unwrap();
        clock.advance(FILE_LIFETIME);
        assert_eq!(header(), "Bearer two", "what is there now is no token");
        block_on(auth.refused(&Shown::default()));
        assert!(block_on(auth.show()).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(block_on(auth.show()).is_err());
    }

    #[test]
    fn a_provider_hears_once_which_token_was_refused() {
        let heard: Arc<Mutex<Vec<Option<String>>>> = Arc::default();
        let auth = Auth::provider({
            let heard = heard.clone();
            Arc::new(move |refused| {
                heard.lock().unwrap().push(refused);
                Box::pin(async { Ok("t".to_owned()) })
            })
        });
        let shown = block_on(auth.show()).unwrap();
        assert_eq!(shown.header.as_deref(), Some("Bearer t"));
        block_on(auth.refused(&shown));
        for _ in 0..2 {
            block_on(auth.show()).unwrap();
        }
        assert_eq!(*heard.lock().unwrap(), [None, Some("t".to_owned()), None]);
    }
}
