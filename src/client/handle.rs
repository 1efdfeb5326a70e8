//! The client: one API server, one user, one rate limiter; and clients derived from it.

use parking_lot::Mutex;
use std::sync::Arc;

use http_client::http_types::Url;
use http_client::http_types::headers::{HeaderName, HeaderValue};

use super::api::Discovery;
use super::config::{Config, Credentials, Pem, Tls};
use super::credentials::{Auth, Plugin, TokenProvider, impersonation};
use super::guard::Guard;
use super::interceptor::Interceptor;
use super::rate::Bucket;
use super::single_flight::SingleFlight;
use super::transport::Transport;
use super::writes::{WriteCounter, Writes};
use super::{Error, Result};
use crate::clock::SharedClock;
use crate::objects::Form;

/// Speaks to one API server as one user, with one rate limiter. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub http: surf::Client,
    pub base: Url,
    pub host: String,
    pub auth: Arc<Auth>,
    /// Headers of every request.
    pub impersonation: Arc<[(HeaderName, HeaderValue)]>,
    pub limiter: Bucket,
    pub config: Config,
    pub clock: SharedClock,
    pub guard: Option<Guard>,
    pub interceptor: Option<Arc<dyn Interceptor>>,
    /// Requests do not wait for the pool.
    pub is_urgent: bool,
    pub discovery: Arc<SingleFlight<Arc<Discovery>>>,
    /// Connections without a client certificate, shared by all clients with tokens of their own.
    pub anonymous: Arc<Mutex<Option<surf::Client>>>,
    /// Of this user agent.
    pub writes: Arc<WriteCounter>,
}

impl Client {
    /// # Errors
    /// When a certificate or key cannot be used, or the configuration is malformed.
    pub fn new(config: Config, clock: SharedClock) -> Result<Client> {
        let base = Url::parse(&config.host)
            .map_err(|error| Error::Config(format!("server {:?}: {error}", config.host)))?;
        let plugin = match &config.credentials {
            Credentials::Exec(exec) => Some(Arc::new(Plugin::new(exec, &config, &clock)?)),
            _ => None,
        };
        let auth = Auth::new(&config.credentials, plugin.as_ref(), &clock);
        let acting_as = config.impersonation.as_ref().map(impersonation).transpose()?;
        let acting_as = acting_as.unwrap_or_default();
        let http = connections(&base, config.tls.clone(), plugin, &config, &clock)?;
        let host = match (base.host_str(), base.port_or_known_default()) {
            (Some(host), Some(port)) => format!("{host}:{port}"),
            _ => return Err(Error::Config(format!("server {:?}: no host", config.host))),
        };
        let inner = Inner {
            http,
            base,
            host,
            auth: Arc::new(auth),
            impersonation: acting_as.into(),
            limiter: Bucket::new(config.qps, config.burst, clock.clone()),
            config,
            clock,
            guard: None,
            interceptor: None,
            is_urgent: false,
            discovery: Arc::default(),
            anonymous: Arc::default(),
            writes: Arc::default(),
        };
        Ok(Client { inner: Arc::new(inner) })
    }

    /// The same server and credentials, under another name and with a limiter of its own.
    pub fn named(&self, user_agent: &str) -> Client {
        self.derive(|derived| {
            derived.config.user_agent = user_agent.to_owned();
            derived.writes = Arc::default();
        })
    }

    /// The same, for another controller under this name: with a limiter and counts of its own.
    pub fn with_own_limiter(&self) -> Client {
        self.derive(|derived| derived.writes = Arc::default())
    }

    /// The same, with a limiter of its own: the rate and the burst are multiplied by these factors.
    pub fn with_rate(&self, qps_times: f64, burst_times: u32) -> Client {
        self.derive(|derived| {
            derived.config.qps *= qps_times;
            derived.config.burst = derived.config.burst.saturating_mul(burst_times);
        })
    }

    /// The same for writes that harm nobody when they come late: see [`Guard::uncounted`].
    pub fn with_uncounted_writes(&self) -> Client {
        self.derive(|derived| derived.guard = derived.guard.as_ref().map(Guard::uncounted))
    }

    /// The same, but no write passes that `guard` holds back. This holds for clients derived from it.
    pub fn guarded(&self, guard: Guard) -> Client {
        self.derive(|derived| derived.guard = Some(guard))
    }

    /// The same, but `interceptor` sees all reads and answers all writes. This holds for clients
    /// derived from it.
    pub fn intercepted(&self, interceptor: Arc<dyn Interceptor>) -> Client {
        self.derive(|derived| derived.interceptor = Some(interceptor))
    }

    /// The same, for the leader election: requests do not wait for others, and find a descriptor
    /// when few are free.
    pub fn for_lease(&self) -> Client {
        self.derive(|derived| derived.is_urgent = true)
    }

    /// The same server, with `tokens` as the only credentials.
    pub fn with_tokens(&self, user_agent: &str, tokens: TokenProvider) -> Result<Client> {
        let Inner { base, config, clock, .. } = &*self.inner;
        let http = {
            let mut shared = self.inner.anonymous.lock();
            match &*shared {
                Some(http) => http.clone(),
                None => {
                    let tls = Tls { certificate: None, key: None, ..config.tls.clone() };
                    shared.insert(connections(base, tls, None, config, clock)?).clone()
                }
            }
        };
        Ok(self.derive(|derived| {
            derived.config.user_agent = user_agent.to_owned();
            derived.writes = Arc::default();
            derived.http = http;
            derived.auth = Arc::new(Auth::provider(tokens));
            derived.impersonation = Arc::default();
        }))
    }

    /// A client that differs by `change` and has a limiter of its own.
    fn derive(&self, change: impl FnOnce(&mut Inner)) -> Client {
        let limiter =
            |config: &Config| Bucket::new(config.qps, config.burst, self.inner.clock.clone());
        let Inner {
            http,
            base,
            host,
            auth,
            impersonation,
            config,
            clock,
            guard,
            interceptor,
            is_urgent,
            ..
        } = &*self.inner;
        let mut derived = Inner {
            http: http.clone(),
            base: base.clone(),
            host: host.clone(),
            auth: auth.clone(),
            impersonation: impersonation.clone(),
            limiter: limiter(config),
            config: config.clone(),
            clock: clock.clone(),
            guard: guard.clone(),
            interceptor: interceptor.clone(),
            is_urgent: *is_urgent,
            discovery: self.inner.discovery.clone(),
            anonymous: self.inner.anonymous.clone(),
            writes: self.inner.writes.clone(),
        };
        change(&mut derived);
        derived.limiter = limiter(&derived.config);
        Client { inner: Arc::new(derived) }
    }

    /// The server's certificate authority in PEM, if the configuration holds it and does not name a
    /// file. Upstream: `rest.Config.CAData`.
    pub fn ca_data(&self) -> Option<&[u8]> {
        match &self.inner.config.tls.ca {
            Some(Pem::Inline(pem)) => Some(pem),
            _ => None,
        }
    }

    /// What was sent under this name so far, by this client and those derived from it.
    pub fn writes(&self) -> Writes {
        self.inner.writes.get()
    }

    /// Whether objects may come in protobuf.
    pub(super) fn speaks_protobuf(&self) -> bool {
        self.inner.config.form == Form::Protobuf
    }

    /// What the server serves: fetched once, then kept until [`Client::reset_discovery`]. Clients
    /// derived from one another share it, and share a fetch under way.
    pub async fn discovery(&self) -> Result<Arc<Discovery>> {
        let fetch = || {
            let client = self.clone();
            async move { client.discover().await.map(Arc::new) }
        };
        self.inner.discovery.get(|_| true, fetch).await
    }

    /// The next [`Client::discovery`] fetches again, also while an earlier fetch is under way.
    pub fn reset_discovery(&self) {
        self.inner.discovery.reset();
    }
}

/// A pool of connections to `base`.
fn connections(
    base: &Url,
    tls: Tls,
    plugin: Option<Arc<Plugin>>,
    config: &Config,
    clock: &SharedClock,
) -> Result<surf::Client> {
    let transport = Transport::new(base, tls, plugin, config, clock)?;
    let http = surf::Config::new().set_http_client(transport);
    http.try_into().map_err(|error| Error::Config(format!("HTTP client: {error}")))
}
