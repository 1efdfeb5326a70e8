//! The credentials of requests: tokens, token files, credential plugins, impersonation.

mod exec;
mod impersonation;
mod renewed;

use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use futures_lite::future::Boxed;

use self::exec::Issued;
pub(super) use self::exec::{Pair, Plugin};
pub(super) use self::impersonation::{header_value, impersonation};
pub use self::renewed::RenewedCertificate;
use super::config::{Credentials, read_file};
use super::{Error, Result};
use crate::clock::SharedClock;

/// Returns the bearer token for a request; called before each one, so it caches. Its argument is
/// the token that the server has refused since the last call, if any, which must not be returned
/// again. `Err`: why there is no token. The future may be dropped at any time.
pub type TokenProvider =
    Arc<dyn Fn(Option<String>) -> Boxed<std::result::Result<String, String>> + Send + Sync>;

/// How long the content of a token file is used before the file is read again.
const FILE_LIFETIME: Duration = Duration::from_secs(60);

/// Where the credentials of a client's requests come from.
pub(super) enum Auth {
    None,
    Fixed(String),
    File {
        path: PathBuf,
        fallback: Option<String>,
        clock: SharedClock,
        /// The token that was read last, and until when it is used.
        read: Mutex<Option<(String, Duration)>>,
    },
    Exec(Arc<Plugin>),
    Provider {
        provider: TokenProvider,
        /// The token that the server has refused since the provider was called last.
        refused: Mutex<Option<String>>,
    },
}

/// The credentials that a request shows.
#[derive(Default)]
pub(super) struct Shown {
    /// The value of the header `Authorization`.
    pub header: Option<String>,
    issued: Option<Arc<Issued>>,
}

/// Returns the value of the header `Authorization` with a token.
fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

impl Auth {
    /// Makes the source of the credentials of requests. `plugin`: the exec plugin of
    /// [`Credentials::Exec`], and always there for it. The caller makes it, as the TLS
    /// configuration uses the same one.
    pub fn new(
        credentials: &Credentials,
        plugin: Option<&Arc<Plugin>>,
        clock: &SharedClock,
    ) -> Auth {
        match credentials {
            Credentials::None => Auth::None,
            Credentials::Token(token) => Auth::Fixed(bearer(token.trim())),
            Credentials::Basic { user, password } => {
                let pair = format!("{user}:{password}");
                let encoded = base64::engine::general_purpose::STANDARD.encode(pair);
                Auth::Fixed(format!("Basic {encoded}"))
            }
            Credentials::TokenFile { path, fallback } => Auth::File {
                path: path.clone(),
                fallback: fallback.clone(),
                clock: clock.clone(),
                read: Mutex::default(),
            },
            Credentials::Exec(_) => plugin.map_or(Auth::None, |plugin| Auth::Exec(plugin.clone())),
        }
    }

    /// Makes a source that asks `provider` for the token of each request.
    pub fn provider(provider: TokenProvider) -> Auth {
        Auth::Provider { provider, refused: Mutex::default() }
    }

    /// Returns the credentials for one request. A provider gets the token that was refused last. A
    /// token file is read again after its lifetime; if it cannot be, the last token or the fallback
    /// is shown. An exec plugin runs when its last output has expired.
    pub async fn show(&self) -> Result<Shown> {
        let header = match self {
            Auth::None => None,
            Auth::Fixed(value) => Some(value.clone()),
            Auth::Provider { provider, refused } => {
                let refused = refused.lock().take();
                let token =
                    provider(refused).await.map_err(|error| Error::Credentials(error.into()))?;
                Some(bearer(&token))
            }
            Auth::File { path, fallback, clock, read: known } => {
                let now = clock.monotonic();
                let mut known = known.lock();
                if known.as_ref().is_none_or(|(_, until)| now >= *until) {
                    match token_of(path) {
                        Ok(token) => *known = Some((token, now + FILE_LIFETIME)),
                        // The old token may still be good: the server decides.
                        Err(error) if known.is_some() || fallback.is_some() => {
                            log::warn!("token file: {error}");
                        }
                        Err(error) => return Err(error),
                    }
                }
                let token = known.as_ref().map(|(token, _)| token).or(fallback.as_ref());
                token.map(|token| bearer(token))
            }
            Auth::Exec(plugin) => {
                let issued = plugin.credentials().await?;
                let header = issued.token.as_deref().map(bearer);
                return Ok(Shown { header, issued: Some(issued) });
            }
        };
        Ok(Shown { header, issued: None })
    }

    /// Records that the server refused the credentials `shown`: the next request shows fresh ones,
    /// unless they are fixed.
    pub fn record_refusal(&self, shown: &Shown) {
        match self {
            Auth::File { read, .. } => {
                *read.lock() = None;
            }
            Auth::Exec(plugin) => {
                if let Some(issued) = &shown.issued {
                    plugin.record_refusal(issued);
                }
            }
            Auth::Provider { refused, .. } => {
                let token = shown.header.as_deref().and_then(|h| h.strip_prefix("Bearer "));
                *refused.lock() = token.map(ToOwned::to_owned);
            }
            Auth::None | Auth::Fixed(_) => {}
        }
    }
}

/// Reads the token in a file, without blanks around it. `Err`: it cannot be read, or is empty.
pub(super) fn token_of(path: &std::path::Path) -> Result<String> {
    let bytes = read_file(path)?;
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
        let file = |fallback: Option<&str>| Credentials::TokenFile {
            path: path.clone(),
            fallback: fallback.map(str::to_owned),
        };
        let auth = Auth::new(&file(None), None, &shared);
        let header = || block_on(auth.show()).unwrap().header.unwrap();
        assert_eq!(header(), "Bearer one");
        std::fs::write(&path, "two").unwrap();
        assert_eq!(header(), "Bearer one");
        clock.advance(FILE_LIFETIME);
        assert_eq!(header(), "Bearer two");
        std::fs::write(&path, "\n").unwrap();
        clock.advance(FILE_LIFETIME);
        assert_eq!(header(), "Bearer two", "an empty file has no token");
        auth.record_refusal(&Shown::default());
        assert!(block_on(auth.show()).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(block_on(auth.show()).is_err());
        let auth = Auth::new(&file(Some("other")), None, &shared);
        let header = || block_on(auth.show()).unwrap().header.unwrap();
        assert_eq!(header(), "Bearer other");
        std::fs::write(&path, "three").unwrap();
        assert_eq!(header(), "Bearer three", "the file has precedence over the token");
        std::fs::remove_file(&path).unwrap();
        clock.advance(FILE_LIFETIME);
        assert_eq!(header(), "Bearer three");
    }

    #[test]
    fn a_provider_gets_a_refused_token_once() {
        let refusals: Arc<Mutex<Vec<Option<String>>>> = Arc::default();
        let auth = Auth::provider({
            let refusals = refusals.clone();
            Arc::new(move |refused| {
                refusals.lock().push(refused);
                Box::pin(async { Ok("t".to_owned()) })
            })
        });
        let shown = block_on(auth.show()).unwrap();
        assert_eq!(shown.header.as_deref(), Some("Bearer t"));
        auth.record_refusal(&shown);
        for _ in 0..2 {
            block_on(auth.show()).unwrap();
        }
        assert_eq!(*refusals.lock(), [None, Some("t".to_owned()), None]);
    }
}
