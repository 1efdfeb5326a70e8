//! The one path of all requests: rate-limited, authorized, counted, retried where that is safe.

use parking_lot::Mutex;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::{AsyncBufReadExt, AsyncReadExt};
use http_client::http_types::headers::{HeaderName, HeaderValue};
use http_client::http_types::{self, Method, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::auth::{Auth, Shown, TokenProvider, header_value, impersonation};
use super::config::{Config, Credentials, Pem, Tls};
use super::discovery::Discovery;
use super::exec::Plugin;
use super::kept::Kept;
use super::rate::Bucket;
use super::stream::undecoded;
use super::transport::{AskBefore, HeldBack, Purpose, Transport};
use super::{Error, Result};
use crate::clock::SharedClock;
use crate::metrics::metrics;
use crate::objects::{Encoded, Form, Object, protobuf};

/// As client-go's `rest.Request`.
const TRIES: u32 = 10;
/// Before a watch that was reset is started again, on average.
const RESET_WAIT: Duration = Duration::from_secs(1);

metrics! {
    static REQUESTS: IntCounterVec["code", "method", "host"] = "rest_client_requests_total",
        "[ALPHA] Number of HTTP requests, partitioned by status code, method, and host.";
    static RETRIES: IntCounterVec["code", "verb", "host"] = "rest_client_request_retries_total",
        "[ALPHA] Number of request retries, partitioned by status code, verb, and host.";
    static DURATION: HistogramVec["verb", "host"](LATENCIES) =
        "rest_client_request_duration_seconds",
        "[ALPHA] Request latency in seconds. Broken down by verb, and host.";
    static LIMITED: HistogramVec["verb", "host"](LATENCIES) =
        "rest_client_rate_limiter_duration_seconds",
        "[ALPHA] Client side rate limiter latency in seconds. Broken down by verb, and host.";
}

const LATENCIES: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

/// Asked whether a write may still be made: when it begins, and again before its first byte is sent.
pub type Guard = Arc<dyn Fn() -> bool + Send + Sync>;

/// Speaks to one API server as one user, with one rate limiter. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    http: surf::Client,
    base: Url,
    host: String,
    auth: Arc<Auth>,
    /// Headers of every request.
    impersonation: Arc<[(HeaderName, HeaderValue)]>,
    limiter: Bucket,
    config: Config,
    clock: SharedClock,
    guard: Option<Guard>,
    /// Requests do not wait for the pool.
    is_urgent: bool,
    discovery: Arc<Kept<Arc<Discovery>>>,
    /// Connections without a client certificate, shared by all clients with tokens of their own.
    anonymous: Arc<Mutex<Option<surf::Client>>>,
}

/// One request, before it is sent.
#[derive(Clone, Debug)]
pub struct Call {
    pub method: &'static str,
    pub path: String,
    pub query: Vec<(&'static str, String)>,
    pub accept: &'static str,
    pub is_watch: bool,
    content: Option<(&'static str, Vec<u8>)>,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

/// Escapes a segment of a path.
pub(super) fn escape(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:@!$&'()*+,;=".contains(&byte);
    text.bytes().fold(String::new(), |mut escaped, byte| {
        match plain(byte) {
            true => escaped.push(byte as char),
            false => escaped.push_str(&format!("%{byte:02X}")),
        }
        escaped
    })
}

impl Call {
    pub fn new(method: &'static str, path: impl Into<String>) -> Call {
        let (path, accept) = (path.into(), "application/json");
        Call { method, path, query: Vec::new(), accept, is_watch: false, content: None }
    }

    pub fn query(&mut self, name: &'static str, value: &str) {
        self.query.push((name, value.to_owned()));
    }

    pub fn query_some(&mut self, name: &'static str, value: &Option<String>) {
        if let Some(value) = value.as_deref().filter(|value| !value.is_empty()) {
            self.query(name, value);
        }
    }

    /// The same, with a JSON body.
    pub fn body(mut self, content_type: &'static str, body: &impl Serialize) -> Result<Call> {
        let bytes = serde_json::to_vec(body).map_err(|source| Error::Request {
            request: self.to_string(),
            source: source.into(),
        })?;
        self.content = Some((content_type, bytes));
        Ok(self)
    }
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
            is_urgent: false,
            discovery: Arc::default(),
            anonymous: Arc::default(),
        };
        Ok(Client { inner: Arc::new(inner) })
    }

    /// The same server and credentials, under another name and with a limiter of its own.
    pub fn named(&self, user_agent: &str) -> Client {
        self.derive(|derived| derived.config.user_agent = user_agent.to_owned())
    }

    /// The same, with a limiter of its own: the rate and the burst are multiplied by these factors.
    pub fn hastened(&self, qps_times: f64, burst_times: u32) -> Client {
        self.derive(|derived| {
            derived.config.qps *= qps_times;
            derived.config.burst = derived.config.burst.saturating_mul(burst_times);
        })
    }

    /// The same, but no write passes once `guard` says no. This holds for clients derived from it.
    pub fn guarded(&self, guard: Guard) -> Client {
        self.derive(|derived| derived.guard = Some(guard))
    }

    /// The same, for the leader election: requests do not wait for others, and find a descriptor when
    /// few are free.
    pub fn urgent(&self) -> Client {
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
            http, base, host, auth, impersonation, config, clock, guard, is_urgent, ..
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
            is_urgent: *is_urgent,
            discovery: self.inner.discovery.clone(),
            anonymous: self.inner.anonymous.clone(),
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

    /// `GET` of any path: the body as it is.
    pub async fn get_path(&self, path: &str) -> Result<Vec<u8>> {
        self.send(&Call::new("GET", path)).await
    }

    /// Sends and decodes.
    pub async fn fetch<O: DeserializeOwned>(&self, call: &Call) -> Result<O> {
        let body = self.send(call).await?;
        serde_json::from_slice(&body).map_err(undecoded(&call.to_string()))
    }

    /// As [`Self::fetch`], for an object in JSON or protobuf.
    pub async fn fetch_object<T: Object>(&self, call: &Call) -> Result<T> {
        let body = self.send(call).await?;
        let object = match protobuf::is_enveloped(&body) {
            true => protobuf::open(&body).map(Encoded::protobuf).map_err(Into::into),
            false => Ok(Encoded::json(body)),
        };
        object
            .and_then(|object| object.decode())
            .map_err(|source| Error::Decode { request: call.to_string(), source: source.into() })
    }

    /// The whole body of an answer that is not a failure.
    pub async fn send(&self, call: &Call) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        let mut answer = self.open(call).await?;
        answer.read_to_end(&mut body).await.map_err(|error| broken(call, error))?;
        Ok(body)
    }

    /// As [`Self::send`], for answers that no one needs: the body is read, not kept.
    pub async fn send_and_drain(&self, call: &Call) -> Result<()> {
        let mut answer = self.open(call).await?;
        loop {
            let read = answer.fill_buf().await.map_err(|error| broken(call, error))?.len();
            if read == 0 {
                return Ok(());
            }
            answer.consume(read);
        }
    }

    /// The body of an answer that is not a failure, to be read as it arrives.
    pub async fn open(&self, call: &Call) -> Result<http_types::Body> {
        let mut tries = 0;
        let mut renewed = false;
        loop {
            tries += 1;
            let mut shown = Shown::default();
            let error = match self.attempt(call, &mut shown).await {
                Ok(body) => return Ok(body),
                Err(error) => error,
            };
            let wait = match &error {
                // The server asks for another try, and has done nothing.
                Error::Status(failure) if matches!(failure.code, 429 | 500..=599) => {
                    failure.retry_after
                }
                Error::Status(failure) if failure.code == 401 && !renewed => {
                    renewed = true;
                    self.inner.auth.refused(&shown);
                    Some(Duration::ZERO)
                }
                Error::Transport { .. } if call.method == "GET" && !call.is_watch && tries < 3 => {
                    Some(Duration::from_millis(50))
                }
                // A server that restarts is most often back after a second. All its watches end at
                // once, and must not return at once.
                Error::Transport { .. } if call.is_watch && error.is_reset() => {
                    Some(RESET_WAIT.mul_f64(0.5 + fastrand::f64()))
                }
                _ => None,
            };
            let Some(wait) = wait.filter(|_| tries < TRIES) else { return Err(error) };
            let code = error.code().map_or_else(|| "<error>".to_owned(), |code| code.to_string());
            let labels = [code.as_str(), call.method, self.inner.host.as_str()];
            RETRIES.with_label_values(&labels).inc();
            self.inner.clock.sleep(wait).await;
        }
    }

    async fn attempt(&self, call: &Call, shown: &mut Shown) -> Result<http_types::Body> {
        let inner = &self.inner;
        let labels = [call.method, inner.host.as_str()];
        let guard = inner.guard.as_ref().filter(|_| call.method != "GET");
        let held_back = || Error::HeldBack { request: call.to_string() };
        if guard.is_some_and(|guard| !guard()) {
            return Err(held_back());
        }
        let start = inner.clock.monotonic();
        inner.limiter.take().await;
        let sent = inner.clock.monotonic();
        LIMITED.with_label_values(&labels).observe((sent - start).as_secs_f64());
        *shown = inner.auth.show().await?;
        let mut request = self.request(call, shown)?;
        if let Some(guard) = guard {
            request.ext_mut().insert(AskBefore(guard.clone()));
        }
        let answer = inner.http.send(request).await;
        DURATION.with_label_values(&labels).observe((inner.clock.monotonic() - sent).as_secs_f64());
        let answer = answer.map_err(|error| match error.into_inner().downcast::<io::Error>() {
            Ok(error) if error.get_ref().is_some_and(|inner| inner.is::<HeldBack>()) => held_back(),
            // Kept as it is, so that callers can ask for its kind.
            Ok(error) => broken(call, error),
            Err(other) => Error::Transport { request: call.to_string(), source: other.into() },
        });
        let code = match &answer {
            Ok(answer) => u16::from(answer.status()).to_string(),
            Err(Error::HeldBack { .. }) => return Err(held_back()),
            Err(_) => "<error>".to_owned(),
        };
        REQUESTS.with_label_values(&[code.as_str(), call.method, inner.host.as_str()]).inc();
        let mut answer = answer?;
        let code = u16::from(answer.status());
        if (200..300).contains(&code) {
            return Ok(answer.take_body());
        }
        let retry_after =
            answer.header("retry-after").and_then(|value| value.as_str().parse().ok());
        let body = answer.body_bytes().await.unwrap_or_default();
        Err(Error::from_answer(call.to_string(), code, retry_after, &body))
    }

    fn request(&self, call: &Call, shown: &Shown) -> Result<http_types::Request> {
        let inner = &self.inner;
        let mut url = inner.base.clone();
        let path = format!("{}{}", inner.base.path().trim_end_matches('/'), call.path);
        url.set_path(&path);
        if !call.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&call.query);
        }
        let method: Method = call.method.parse().map_err(|_| Error::Request {
            request: call.to_string(),
            source: "no such method".into(),
        })?;
        let mut request = http_types::Request::new(method, url);
        if let Some((content_type, body)) = &call.content {
            request.set_body(http_types::Body::from_bytes(body.clone()));
            request.insert_header("content-type", *content_type);
        }
        request.insert_header("accept", call.accept);
        request.insert_header("user-agent", inner.config.user_agent.as_str());
        if let Some(value) = &shown.header {
            let value = header_value(value)
                .map_err(|_| Error::Credentials("the token does not fit in a header".into()))?;
            request.insert_header("authorization", value);
        }
        for (name, value) in inner.impersonation.iter() {
            request.append_header(name.clone(), value.clone());
        }
        request.ext_mut().insert(match (call.is_watch, inner.is_urgent) {
            (true, _) => Purpose::Watch,
            (false, true) => Purpose::Lease,
            (false, false) => Purpose::Request,
        });
        Ok(request)
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

pub(super) fn broken(call: &impl fmt::Display, error: std::io::Error) -> Error {
    Error::Transport { request: call.to_string(), source: error.into() }
}
