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
use super::served_versions::{ServedVersions, Versions};
use super::single_flight::SingleFlight;
use super::transport::Transport;
use super::writes::{WriteCounter, Writes};
use super::{Error, Result};
use crate::clock::SharedClock;
use crate::objects::{Form, ResourceType};
use crate::task::StopToken;

/// Sends requests to one API server as one user, with one rate limiter. Cheap to clone: clones
/// share the limiter. Upstream: `rest.RESTClient`.
///
/// # What holds
///
/// - Each attempt of a request waits for the limiter, in the order of the calls, and then shows the
///   credentials that are current.
/// - After 401 a request is sent once more with fresh credentials. It is sent again, up to ten
///   times in all, where the server asks for that: 429 or 5xx with `Retry-After` or
///   `retryAfterSeconds`. A GET whose connection was reset before the answer has three attempts, a
///   watch up to ten.
/// - A write whose connection breaks is not sent again: it may have been carried out
///   ([`Error::is_unsure`]). Callers retry by their next sync.
/// - A request fails when no answer begins, or no further byte of a body comes, within
///   [`Config::timeout`]. The body of a watch may be silent for any time. The waits for the limiter
///   and before a further attempt have no limit, but end at a stop ([`Client::stopped_by`]).
/// - Any future of the client may be dropped at any time. A request that was not sent then is not
///   sent; one that was sent may be carried out, and its connection is closed. The token of the
///   limiter is spent.
///
/// # What is not promised
///
/// - The order of requests that run at the same time, in which the server sees them.
/// - That a read sees an earlier write of the same client, unless it asks for the newest version
///   ([`ListOptions::resource_version`](super::ListOptions)).
///
/// # Derived clients
///
/// A client that is made from another one (`named`, `with_rate`, `guarded`…) shares its
/// connections, credentials and discovery, and has a limiter of its own, full at first.
#[derive(Clone)]
pub struct Client {
    pub(super) inner: Arc<Inner>,
}

/// The parts of a [`Client`]. A derived client shares the connections and the parts behind an
/// `Arc`.
pub(super) struct Inner {
    /// The connections.
    pub http: surf::Client,
    pub base: Url,
    /// Host and port of `base`, as the label of metrics.
    pub host: String,
    pub auth: Arc<Auth>,
    /// Headers of every request.
    pub impersonation: Arc<[(HeaderName, HeaderValue)]>,
    pub limiter: Bucket,
    pub config: Config,
    pub clock: SharedClock,
    pub guard: Option<Guard>,
    /// Ends the waits of requests.
    pub stop: Option<StopToken>,
    pub interceptor: Option<Arc<dyn Interceptor>>,
    /// Requests do not wait for the pool.
    pub is_urgent: bool,
    pub discovery: Arc<SingleFlight<Arc<Discovery>>>,
    pub served: Arc<ServedVersions>,
    /// Connections without a client certificate, shared by all clients with tokens of their own.
    pub anonymous: Arc<Mutex<Option<surf::Client>>>,
    /// The writes sent under this user agent.
    pub writes: Arc<WriteCounter>,
}

impl Client {
    /// Makes a client for the server that `config` names. Sends nothing.
    ///
    /// # Errors
    /// [`Error::Config`] when the address is malformed, or a certificate, key or proxy cannot be
    /// used.
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
            stop: None,
            interceptor: None,
            is_urgent: false,
            discovery: Arc::default(),
            served: Arc::default(),
            anonymous: Arc::default(),
            writes: Arc::default(),
        };
        Ok(Client { inner: Arc::new(inner) })
    }

    /// Makes a client for the same server with the same credentials, under another User-Agent and
    /// with counts of its own. Upstream: `rest.AddUserAgent`.
    pub fn named(&self, user_agent: &str) -> Client {
        self.derive(|derived| {
            derived.config.user_agent = user_agent.to_owned();
            derived.writes = Arc::default();
        })
    }

    /// Makes a client like this one for another controller of the same name: with a limiter and
    /// with counts of its own.
    pub fn with_own_limiter(&self) -> Client {
        self.derive(|derived| derived.writes = Arc::default())
    }

    /// Makes a client like this one, whose rate and burst are multiplied by these factors.
    pub fn with_rate(&self, qps_times: f64, burst_times: u32) -> Client {
        self.derive(|derived| {
            derived.config.qps *= qps_times;
            derived.config.burst = derived.config.burst.saturating_mul(burst_times);
        })
    }

    /// Makes a client like this one with these limits: requests a second, of which zero means no
    /// limit, and requests at once.
    pub fn with_limits(&self, qps: f64, burst: u32) -> Client {
        self.derive(|derived| (derived.config.qps, derived.config.burst) = (qps, burst))
    }

    /// Makes a client like this one for writes that do no harm when they are late, such as events:
    /// see [`Guard::uncounted`]. They are sent after a stop too; their sender has to limit the
    /// time.
    pub fn with_uncounted_writes(&self) -> Client {
        self.derive(|derived| {
            derived.guard = derived.guard.as_ref().map(Guard::uncounted);
            derived.stop = None;
        })
    }

    /// Makes a client like this one whose requests fail after the stop if they have to wait, for
    /// the limiter or before a further attempt: with [`Error::Stopped`], or as the attempt before.
    /// So a sync with many requests left ends soon. A request that need not wait is sent. This
    /// holds for clients derived from it, too. Upstream: a `context.Context` that is cancelled.
    pub fn stopped_by(&self, stop: StopToken) -> Client {
        self.derive(|derived| derived.stop = Some(stop))
    }

    /// Makes a client like this one, for which `guard` decides about each write: a refused one
    /// fails with [`Error::GuardRefused`]. This holds for clients derived from it, too.
    pub fn guarded(&self, guard: Guard) -> Client {
        self.derive(|derived| derived.guard = Some(guard))
    }

    /// Makes a client like this one, whose reads `interceptor` sees and whose writes it answers.
    /// This holds for clients derived from it, too.
    pub fn intercepted(&self, interceptor: Arc<dyn Interceptor>) -> Client {
        self.derive(|derived| derived.interceptor = Some(interceptor))
    }

    /// Makes a client like this one for the leader election: requests do not wait for a place among
    /// the requests under way, and find a descriptor when few are free. They wait for the limiter
    /// as others do.
    pub fn for_lease(&self) -> Client {
        self.derive(|derived| derived.is_urgent = true)
    }

    /// Makes a client for the same server, under another User-Agent and with `tokens` as the only
    /// credentials: without the client certificate, the token and the impersonation of this client.
    /// Its connections are shared with other clients of this kind only.
    ///
    /// # Errors
    /// [`Error::Config`] when the certificate authority cannot be used.
    pub fn with_tokens(&self, user_agent: &str, tokens: TokenProvider) -> Result<Client> {
        let Inner { base, config, clock, .. } = &*self.inner;
        let http = {
            let mut shared = self.inner.anonymous.lock();
            match &*shared {
                Some(http) => http.clone(),
                None => {
                    let (certificate, key, renewed) = (None, None, None);
                    let tls = Tls { certificate, key, renewed, ..config.tls.clone() };
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

    /// Makes a client that differs by `change` and has a limiter of its own.
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
            stop,
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
            stop: stop.clone(),
            interceptor: interceptor.clone(),
            is_urgent: *is_urgent,
            discovery: self.inner.discovery.clone(),
            served: self.inner.served.clone(),
            anonymous: self.inner.anonymous.clone(),
            writes: self.inner.writes.clone(),
        };
        change(&mut derived);
        // The change may set another rate.
        derived.limiter = limiter(&derived.config);
        Client { inner: Arc::new(derived) }
    }

    /// Returns the server's certificate authority in PEM, if the configuration holds it and does
    /// not name a file. Upstream: `rest.Config.CAData`.
    pub fn ca_data(&self) -> Option<&[u8]> {
        match &self.inner.config.tls.ca {
            Some(Pem::Inline(pem)) => Some(pem),
            _ => None,
        }
    }

    /// Returns the writes sent under this User-Agent so far, by this client and those derived from
    /// it that have no counts of their own.
    pub fn writes(&self) -> Writes {
        self.inner.writes.get()
    }

    /// Returns whether the configuration allows objects in protobuf.
    pub(super) fn speaks_protobuf(&self) -> bool {
        self.inner.config.form == Form::Protobuf
    }

    /// Returns the resources that the server serves: fetched once, then kept until
    /// [`Client::reset_discovery`]. Clients derived from one another share it, and share a fetch
    /// under way, which continues when this future is dropped. A failure is returned to all who
    /// wait for it and is not kept.
    ///
    /// # Errors
    /// Those of [`Client::discover`].
    pub async fn discovery(&self) -> Result<Arc<Discovery>> {
        let fetch = || {
            let client = self.clone();
            async move { client.discover().await.map(Arc::new) }
        };
        self.inner.discovery.get(|_| true, fetch).await
    }

    /// Chooses for each of these resources the first of its versions that the server serves by
    /// discovery: requests ask for it from now on, in place of the version that the caller names.
    /// Each later [`Client::discover`] chooses again, and so does
    /// [`Client::choose_version_again`]. For the clients that are derived from one another.
    ///
    /// Returns whether all groups of these resources could be read; until then the versions stay
    /// that the caller names.
    ///
    /// # Errors
    /// Those of [`Client::discover`].
    pub async fn choose_versions(&self, resources: &'static [Versions]) -> Result<bool> {
        self.inner.served.set_known(resources);
        self.reset_discovery();
        let found = self.discovery().await?;
        let is_unread = |(resource, _): &Versions| found.has_failure_in(&resource.group);
        Ok(!resources.iter().any(is_unread))
    }

    /// Chooses the versions of all resources of [`Client::choose_versions`] again, after an answer
    /// that the server does not serve `resource`, as after its upgrade. Sends nothing if `resource`
    /// is another one, or was not served when they were chosen last, or if this answer is not the
    /// first since.
    ///
    /// # Errors
    /// Those of [`Client::discover`].
    pub async fn choose_version_again(&self, resource: &ResourceType) -> Result<()> {
        let served = &self.inner.served;
        if served.begin_again(resource) {
            self.reset_discovery();
            self.discovery().await.inspect_err(|_| served.failed())?;
        }
        Ok(())
    }

    /// Returns a resource in the version in which this client asks for it.
    pub fn served(&self, resource: &ResourceType) -> ResourceType {
        self.inner.served.resolve(resource)
    }

    /// Makes the next [`Client::discovery`] fetch again, also while an earlier fetch is under way.
    pub fn reset_discovery(&self) {
        self.inner.discovery.reset();
    }
}

/// Makes a pool of connections to `base`.
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
