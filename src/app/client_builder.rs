//! Clients for controllers: all under our own credentials, or each under its service account.
//! Upstream: `controller-manager/pkg/clientbuilder`.

use std::sync::Arc;
use std::time::Duration;

use async_std::sync::Mutex;
use futures_lite::future::Boxed;
use serde_json::{Value, json};

use super::connect::{Connection, TokenSource, user_agent};
use super::service_accounts::{self, NAMESPACE};
use crate::client::Client;
use crate::clock::SharedClock;
use crate::controllers::ClientBuilder;
use crate::objects::{ObjectKey, Timestamp};

/// The requested lifetime of a token, and the shortest lifetime that is assumed for one.
const EXPIRATION_SECONDS: i64 = 3600;
const LEAST_LIFETIME: Duration = Duration::from_secs(600);
/// A token is replaced when only this share of its lifetime remains.
const LEEWAY: f64 = 0.2;
/// The attempts to request a token, and the wait after the first one, which grows.
const TRIES: u32 = 4;
const FIRST_WAIT: Duration = Duration::from_millis(500);

/// Makes clients that all use our own credentials. Upstream: `SimpleControllerClientBuilder`.
pub struct SimpleClients {
    pub program: &'static str,
    pub connection: Arc<dyn Connection>,
}

impl ClientBuilder for SimpleClients {
    fn client(&self, name: &str) -> Result<Client, String> {
        Ok(self.root_client(name))
    }

    fn root_client(&self, name: &str) -> Client {
        self.connection.client(&user_agent(self.program, name))
    }
}

/// Makes clients that each use the tokens of a service account. Upstream:
/// `DynamicControllerClientBuilder`.
pub struct ServiceAccountClients {
    pub program: &'static str,
    pub connection: Arc<dyn Connection>,
    /// Creates accounts and tokens.
    pub root: Client,
    pub clock: SharedClock,
}

impl ClientBuilder for ServiceAccountClients {
    /// Returns a client that authenticates with tokens of the service account `name`.
    fn client(&self, name: &str) -> Result<Client, String> {
        let requests = ApiTokens { client: self.root.clone(), name: name.into() };
        let tokens = CachedTokens::new(Arc::new(requests), self.clock.clone());
        let account = format!("system:serviceaccount:{NAMESPACE}:{name}");
        let agent = user_agent(self.program, &account);
        self.connection.client_with_tokens(&agent, tokens)
    }

    fn root_client(&self, name: &str) -> Client {
        self.connection.client(&user_agent(self.program, name))
    }
}

/// A token and its expiration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub text: String,
    pub expires: Timestamp,
}

/// Requests tokens. `request` is called again only after its answer. `Err`: for the log.
pub trait TokenRequests: Send + Sync + 'static {
    /// Requests a new token.
    fn request(&self) -> Boxed<Result<Token, String>>;
}

/// Requests tokens of the service account `name` from the API server.
struct ApiTokens {
    client: Client,
    name: String,
}

impl TokenRequests for ApiTokens {
    /// Creates a TokenRequest for the service account, and first the account where it is missing.
    fn request(&self) -> Boxed<Result<Token, String>> {
        let (client, key) = (self.client.clone(), ObjectKey::new(NAMESPACE, &self.name));
        Box::pin(async move {
            let ensured = service_accounts::ensure(&client, &key.name).await;
            ensured.map_err(|error| error.to_string())?;
            let body = json!({
                "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
                "spec": { "audiences": null, "expirationSeconds": EXPIRATION_SECONDS },
            });
            let tokens = client.resource(&service_accounts::RESOURCE).subresource("token");
            let answer: Value =
                tokens.create_for(&key, &body).await.map_err(|error| error.to_string())?;
            let status = &answer["status"];
            let text = status["token"].as_str().unwrap_or_default().to_string();
            let expires = status["expirationTimestamp"].as_str().and_then(|t| t.parse().ok());
            match expires {
                Some(expires) if !text.is_empty() => Ok(Token { text, expires }),
                _ => Err("no token in the TokenRequest's status".into()),
            }
        })
    }
}

/// Keeps a token until a fifth of its lifetime remains, then replaces it. If the request for a new
/// one fails, the old one stays in use. One request at a time. Upstream:
/// `transport.cachingTokenSource`.
pub struct CachedTokens {
    state: Arc<TokenState>,
}

struct TokenState {
    requests: Arc<dyn TokenRequests>,
    clock: SharedClock,
    /// The token, and the monotonic time at which it is replaced.
    current: Mutex<Option<(String, Duration)>>,
}

impl CachedTokens {
    pub fn new(requests: Arc<dyn TokenRequests>, clock: SharedClock) -> Arc<CachedTokens> {
        let state = TokenState { requests, clock, current: Mutex::new(None) };
        Arc::new(CachedTokens { state: Arc::new(state) })
    }
}

impl TokenSource for CachedTokens {
    /// Returns the kept token, or requests one when it is due for renewal or was refused. If that
    /// fails, returns the kept one nevertheless, unless it was refused.
    fn token(&self, refused: Option<String>) -> Boxed<Result<String, String>> {
        let state = self.state.clone();
        Box::pin(async move {
            let mut current = state.current.lock().await;
            // The account may have been deleted and created again.
            if refused.is_some() && refused.as_ref() == current.as_ref().map(|(text, _)| text) {
                *current = None;
            }
            if let Some((text, until)) = current.as_ref()
                && state.clock.monotonic() < *until
            {
                return Ok(text.clone());
            }
            match (state.request().await, current.as_ref()) {
                (Ok(token), _) => {
                    let life = token.expires.duration_since(state.clock.now()).max(LEAST_LIFETIME);
                    let until = state.clock.monotonic() + life.mul_f64(1.0 - LEEWAY);
                    *current = Some((token.text.clone(), until));
                    Ok(token.text)
                }
                (Err(error), Some((old, _))) => {
                    log::error!("unable to rotate token: {error}");
                    Ok(old.clone())
                }
                (Err(error), None) => Err(error),
            }
        })
    }
}

impl TokenState {
    /// Requests a token, up to [`TRIES`] times with growing waits.
    async fn request(&self) -> Result<Token, String> {
        let mut wait = FIRST_WAIT;
        let mut tries = 1;
        loop {
            match self.requests.request().await {
                Err(error) if tries < TRIES => log::warn!("get token failed: {error}"),
                other => return other,
            }
            self.clock.sleep(wait).await;
            wait *= 2;
            tries += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use futures_lite::future::{block_on, poll_once};

    use super::*;
    use crate::clock::{Clock, FakeClock};

    /// Gives token 1, 2 ... that last an hour; fails on request.
    struct Fake {
        clock: Arc<FakeClock>,
        given: AtomicI64,
        failing: AtomicI64,
    }

    impl TokenRequests for Fake {
        fn request(&self) -> Boxed<Result<Token, String>> {
            let answer = if self.failing.fetch_sub(1, Ordering::SeqCst) > 0 {
                Err("away".to_string())
            } else {
                let count = self.given.fetch_add(1, Ordering::SeqCst) + 1;
                let expires = self.clock.now() + Duration::from_secs(3600);
                Ok(Token { text: count.to_string(), expires })
            };
            Box::pin(async { answer })
        }
    }

    #[test]
    fn a_token_is_replaced_before_it_ends() {
        let clock = FakeClock::new(Timestamp::from_secs(1_000_000));
        let fake = Arc::new(Fake {
            clock: clock.clone(),
            given: AtomicI64::new(0),
            failing: AtomicI64::new(0),
        });
        let tokens = CachedTokens::new(fake.clone(), clock.clone());
        let ask = || block_on(tokens.token(None));
        assert_eq!((ask(), ask()), (Ok("1".into()), Ok("1".into())));
        clock.advance(Duration::from_secs(2879));
        assert_eq!(ask(), Ok("1".into()));
        clock.advance(Duration::from_secs(1));
        assert_eq!(ask(), Ok("2".into()));
        for (refused, next) in [("1", "2"), ("2", "3"), ("2", "3")] {
            let token = block_on(tokens.token(Some(refused.into())));
            assert_eq!(token, Ok(next.into()), "after {refused} was refused");
        }
    }

    #[test]
    fn failures_are_tried_again_and_an_old_token_goes_on() {
        let clock = FakeClock::new(Timestamp::from_secs(1_000_000));
        let fake = Arc::new(Fake {
            clock: clock.clone(),
            given: AtomicI64::new(0),
            failing: AtomicI64::new(2),
        });
        let tokens = CachedTokens::new(fake.clone(), clock.clone());
        let run = |waits: &[u64]| {
            let mut asked = tokens.token(None);
            for wait in waits {
                assert_eq!(block_on(poll_once(&mut asked)), None);
                clock.advance(Duration::from_millis(*wait));
            }
            block_on(poll_once(&mut asked))
        };
        assert_eq!(run(&[500, 1000]), Some(Ok("1".into())));
        clock.advance(Duration::from_secs(3600));
        fake.failing.store(4, Ordering::SeqCst);
        assert_eq!(run(&[500, 1000, 2000]), Some(Ok("1".into())), "the old one");
    }
}
