//! Passes requests on to the servers behind the API server: logs, `exec`, `attach` and
//! `portforward` to the kubelet of a pod's node, `proxy` to nodes, pods and services, and the APIs
//! that APIServices register. Upstream: `pkg/registry/core/pod/rest`,
//! `apimachinery/pkg/util/proxy`, `kube-aggregator/pkg/apiserver`.
//!
//! A stream costs two buffers and nothing waits in memory: bytes are read from one side when the
//! other side has taken those before them.

mod aggregation;
mod backend;
mod location;
#[cfg(test)]
mod tests;
mod tunnel;

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;

use futures_lite::StreamExt;
use futures_rustls::rustls::crypto::{CryptoProvider, ring};
use futures_rustls::rustls::pki_types::PrivateKeyDer;
use futures_rustls::rustls::pki_types::pem::PemObject;
use futures_rustls::rustls::{self, ClientConfig};
use hyper::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderName, HeaderValue,
    LOCATION, PROXY_AUTHENTICATE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};

use self::backend::{Answer, Backend, Outgoing, Tls};
use self::location::Location;
use crate::auth::certs::Pair;
use crate::failures;
use crate::request::call::{Query, ResourcePath};
use crate::status::{ApiError, ApiResult};
use crate::storage::store::Store;
use kube_controller_manager::client::{Trust, pem};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::server::http::{
    Body, Bytes, HeaderMap, Method, Request, Response, Upgrade, remove_credentials,
};
use kube_controller_manager::task::{StopToken, TaskGroup};

/// Bytes of a kubelet's refusal that become part of a Status.
const REFUSAL_BYTES: usize = 50_000;

/// Why requests cannot be passed on.
#[derive(Debug)]
pub enum Error {
    /// A certificate or its key cannot be used.
    Certificate(rustls::Error),
    Key(rustls::pki_types::pem::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Certificate(_) => f.write_str("cannot use the client certificate"),
            Error::Key(_) => f.write_str("cannot read the client certificate's key"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Certificate(source) => Some(source),
            Error::Key(source) => Some(source),
        }
    }
}

/// The API server as a client of other servers, whose certificates it does not verify: upstream
/// does so only with `--kubelet-certificate-authority`.
pub struct Proxy {
    clock: SharedClock,
    /// The streams that are open.
    streams: TaskGroup,
    stop: StopToken,
    /// To kubelets, as the API server.
    kubelets: Arc<ClientConfig>,
    /// To pods and services, without a certificate.
    others: Arc<ClientConfig>,
    /// The certificate with which other API servers accept the names of users.
    front_proxy: Option<Pair>,
}

/// Returns a configuration that trusts every server.
fn trusting(identity: Option<&Pair>) -> Result<ClientConfig, Error> {
    let provider = Arc::new(ring::default_provider());
    let trust = Trust::every(&provider);
    configured(provider, trust, identity)
}

/// Builds the TLS configuration of a client with this trust, and this certificate if there is one.
fn configured(
    provider: Arc<CryptoProvider>,
    trust: Trust,
    identity: Option<&Pair>,
) -> Result<ClientConfig, Error> {
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(Error::Certificate)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(trust));
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let chain = pem::certificates(pair.certificate.as_bytes());
            let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).map_err(Error::Key)?;
            builder.with_client_auth_cert(chain, key).map_err(Error::Certificate)?
        }
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

impl Proxy {
    /// Creates a proxy without connections.
    ///
    /// `kubelet_client`: the certificate that kubelets see; `front_proxy`: the one that other API
    /// servers see. Streams end at `stop`.
    ///
    /// # Errors
    /// When the certificate for kubelets cannot be used.
    pub fn new(
        clock: SharedClock,
        stop: StopToken,
        kubelet_client: Option<&Pair>,
        front_proxy: Option<Pair>,
    ) -> Result<Proxy, Error> {
        let kubelets = Arc::new(trusting(kubelet_client)?);
        let (streams, others) = (TaskGroup::new(), Arc::new(trusting(None)?));
        Ok(Proxy { clock, streams, stop, kubelets, others, front_proxy })
    }

    /// Waits until all streams have ended.
    pub async fn join(&self) {
        self.streams.join().await;
    }

    /// Answers a request for `at`, one of the subresources `log`, `exec`, `attach`, `portforward`
    /// and `proxy`. `rest` is the path after the subresource, still encoded.
    pub async fn answer(
        &self,
        store: &Store,
        at: &ResourcePath,
        rest: Option<&str>,
        mut request: Request,
    ) -> ApiResult<Response> {
        let query = Query::parse(&request.query);
        match at.subresource.as_str() {
            "log" if request.method == Method::GET => match location::logs(store, at, &query)? {
                Some(location) => self.logs(&location, &at.name).await,
                None => Ok(Response { headers: Vec::new(), ..Response::text(204, "") }),
            },
            "exec" | "attach" | "portforward"
                if [Method::GET, Method::POST].contains(&request.method) =>
            {
                let location = location::streams(store, at, &query)?;
                if !is_upgrade(&request.headers) {
                    return Err(failures::bad_request("Upgrade request required"));
                }
                let headers = forwarded_headers(&request);
                let target = location.target.clone();
                let client = request.upgrade.take();
                let backend = self.backend(&location);
                self.upgrade(backend, target, request.method, headers, client).await
            }
            "proxy" => {
                let location = location::proxied(store, at, rest.unwrap_or_default())?;
                self.forward(location, rest, request).await
            }
            _ => Err(failures::method_not_allowed()),
        }
    }

    /// Returns how this location is reached: kubelets always over TLS, others only if they want it.
    fn backend<'a>(&'a self, location: &'a Location) -> Backend<'a> {
        let tls = match location.is_kubelet {
            true => Some(&self.kubelets),
            false => location.is_https.then_some(&self.others),
        };
        Backend {
            address: &location.address,
            tls: tls.map(|config| Tls { config, name: &location.address.host }),
            clock: &self.clock,
        }
    }

    /// Streams the logs of a container from its kubelet. Upstream: `generic/rest.LocationStreamer`.
    async fn logs(&self, location: &Location, pod: &str) -> ApiResult<Response> {
        let host = HeaderValue::from_str(&location.address.to_string());
        let headers = host.map(|host| HeaderMap::from_iter([(HOST, host)]));
        let headers = headers.map_err(|error| unknown(error.to_string()))?;
        let request = request(Method::GET, &location.target, headers, Outgoing::empty())?;
        let failed = |error: backend::Error| {
            let target = &location.target;
            unknown(format!("Get \"https://{}{target}\": {error}", location.address))
        };
        let answer = self.backend(location).send(request).await.map_err(failed)?;
        let status = answer.head.status.as_u16();
        if (300..400).contains(&status) {
            return Err(failed(backend::Error::Redirect));
        }
        if !(200..=206).contains(&status) {
            return Err(log_refusal(status, pod, &start_of(answer).await));
        }
        Ok(Response::stream(200, "text/plain", Box::pin(answer.body)))
    }

    /// Passes on a request that changes the protocol, and then the bytes of both sides.
    async fn upgrade(
        &self,
        backend: Backend<'_>,
        target: String,
        method: Method,
        headers: HeaderMap,
        client: Option<Upgrade>,
    ) -> ApiResult<Response> {
        let request = request(method, &target, headers, Outgoing::empty())?;
        let answer = backend.send(request).await;
        let answer = answer.map_err(|error| unknown(format!("error dialing backend: {error}")))?;
        let status = answer.head.status.as_u16();
        if status != 101 {
            if status < 400 {
                let why = format!("invalid upgrade response: status code {status}");
                return Err(unknown(why));
            }
            let response = relay(answer);
            return Ok(response.with_header(CONNECTION, "close"));
        }
        let headers = pairs(&answer.head.headers).collect();
        let client = client.ok_or_else(|| failures::bad_request("Upgrade request required"))?;
        let (clock, stop) = (self.clock.clone(), self.stop.clone());
        self.streams.spawn(async move {
            let copied = async {
                let client = client.connection().await?;
                let backend = answer.body.switched().await.map_err(io::Error::other)?;
                tunnel::tunnel(client, backend, &clock).await
            };
            if let Some(Err(error)) = stop.unless_stopped(copied).await {
                log::debug!("{target}: {error}");
            }
        });
        Ok(Response { status, headers, body: Body::Full(Bytes::new()) })
    }

    /// Passes a proxied request to its location, and the answer back with its redirects rewritten.
    /// Upstream: `proxy.UpgradeAwareHandler`.
    async fn forward(
        &self,
        mut location: Location,
        rest: Option<&str>,
        request: Request,
    ) -> ApiResult<Response> {
        let mut headers = forwarded_headers(&request);
        let upgrades = is_upgrade(&headers);
        let Request { method, path, query, body, upgrade, .. } = request;
        if !query.is_empty() {
            location.target = format!("{}?{query}", location.target);
        }
        if upgrades {
            let target = location.target.clone();
            let backend = self.backend(&location);
            return self.upgrade(backend, target, method, headers, upgrade).await;
        }
        // Upstream redirects a proxy path without a slash at its end, so that relative links work.
        if rest.is_none() && [Method::GET, Method::HEAD].contains(&method) {
            let query = if query.is_empty() { query } else { format!("?{query}") };
            let redirect = Response { headers: Vec::new(), ..Response::text(301, "") };
            return Ok(redirect.with_header(LOCATION, &format!("{path}/{query}")));
        }
        let prefix = path.strip_suffix(&*format!("/{}", rest.unwrap_or_default())).unwrap_or(&path);
        let host = headers.get(HOST).cloned();
        for (name, value) in [
            ("x-forwarded-uri", HeaderValue::from_str(&path).ok()),
            ("x-forwarded-host", host.clone()),
            ("x-forwarded-proto", Some(HeaderValue::from_static("https"))),
        ] {
            headers.extend(value.map(|value| (HeaderName::from_static(name), value)));
        }
        let request = self::request(method, &location.target, headers, Outgoing::new(body))?;
        let mut answer = self.backend(&location).send(request).await.map_err(|error| {
            let why = format!("error trying to reach service: {error}");
            ApiError::new(503, "ServiceUnavailable", why)
        })?;
        let headers = &mut answer.head.headers;
        for name in [
            ACCESS_CONTROL_ALLOW_CREDENTIALS,
            ACCESS_CONTROL_ALLOW_HEADERS,
            ACCESS_CONTROL_ALLOW_METHODS,
            ACCESS_CONTROL_ALLOW_ORIGIN,
        ] {
            headers.remove(name);
        }
        let redirect = headers.get(LOCATION).and_then(|to| to.to_str().ok()).map(|to| {
            let hosts = [location.address.to_string(), text(host.as_ref()).to_owned()];
            location::rewrite_redirect(to, prefix, &hosts)
        });
        if let Some(Ok(redirect)) = redirect.map(|redirect| HeaderValue::from_str(&redirect)) {
            headers.insert(LOCATION, redirect);
        }
        Ok(relay(answer))
    }
}

fn text(value: Option<&HeaderValue>) -> &str {
    value.and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// Builds a request to another server. Errors: 400 for a target that is not valid.
fn request(
    method: Method,
    target: &str,
    headers: HeaderMap,
    body: Outgoing,
) -> ApiResult<hyper::Request<Outgoing>> {
    let request = hyper::Request::builder().method(method).uri(target).body(body);
    let mut request = request.map_err(|error| failures::bad_request(error.to_string()))?;
    *request.headers_mut() = headers;
    Ok(request)
}

/// Returns whether a client asks for another protocol. Upstream: `httpstream.IsUpgradeRequest`.
fn is_upgrade(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(CONNECTION).iter().filter_map(|line| line.to_str().ok());
    let mut options = lines.flat_map(|line| line.split(',')).map(str::trim);
    options.any(|option| option.eq_ignore_ascii_case("upgrade")) && headers.contains_key(UPGRADE)
}

/// Copies the client's headers, without its credentials and those that belong to its connection; an
/// upgrade keeps the ones that ask for it.
fn forwarded_headers(request: &Request) -> HeaderMap {
    let mut headers = request.headers.clone();
    let upgrade = headers.get(UPGRADE).filter(|_| is_upgrade(&headers)).cloned();
    remove_connections(&mut headers);
    remove_credentials(&mut headers);
    for name in [CONTENT_LENGTH, EXPECT] {
        headers.remove(name);
    }
    let impersonated = headers.keys().filter(|name| name.as_str().starts_with("impersonate-"));
    for name in impersonated.cloned().collect::<Vec<HeaderName>>() {
        headers.remove(name);
    }
    if let Some(protocol) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, protocol);
    }
    headers
}

/// Removes the headers that belong to one connection. Upstream: `httputil.ReverseProxy`.
fn remove_connections(headers: &mut HeaderMap) {
    let lines = headers.get_all(CONNECTION).iter().filter_map(|line| line.to_str().ok());
    let named = lines.flat_map(|line| line.split(','));
    let named: Vec<HeaderName> = named.filter_map(|name| name.trim().parse().ok()).collect();
    let keep_alive = HeaderName::from_static("keep-alive");
    let fixed =
        [CONNECTION, PROXY_AUTHENTICATE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, keep_alive];
    for name in named.into_iter().chain(fixed) {
        headers.remove(name);
    }
}

/// Copies the headers as pairs of name and value.
fn pairs(headers: &HeaderMap) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
    headers.iter().map(|(name, value)| (name.clone(), value.clone()))
}

/// Turns the answer of another server into one of this server.
fn relay(mut answer: Answer) -> Response {
    remove_connections(&mut answer.head.headers);
    Response {
        status: answer.head.status.as_u16(),
        headers: pairs(&answer.head.headers).collect(),
        body: Body::Stream(Box::pin(answer.body)),
    }
}

/// Reads the first bytes of an answer that refuses, for the error's text.
async fn start_of(mut answer: Answer) -> String {
    let mut start = Vec::new();
    while let Some(Ok(bytes)) = answer.body.next().await {
        let free = REFUSAL_BYTES - start.len();
        let part: Bytes = bytes.slice(..bytes.len().min(free));
        start.extend_from_slice(&part);
        if start.len() == REFUSAL_BYTES {
            break;
        }
    }
    String::from_utf8_lossy(&start).into_owned()
}

/// Returns an error without a reason of its own. Upstream: `responsewriters.ErrorToAPIStatus`.
fn unknown(message: String) -> ApiError {
    ApiError::new(500, "", message)
}

/// Builds the error for logs that a kubelet refuses. Upstream:
/// `generic/rest.GenericHttpResponseChecker`.
fn log_refusal(status: u16, pod: &str, text: &str) -> ApiError {
    let (reason, message) = match status {
        400 => return failures::bad_request(text),
        500 => return failures::internal(text),
        401 => {
            ("Unauthorized", "the server has asked for the client to provide credentials".into())
        }
        403 => ("Forbidden", text.to_owned()),
        404 => ("NotFound", "the server could not find the requested resource".into()),
        405 => {
            let why = "the server does not allow this method on the requested resource";
            ("MethodNotAllowed", why.into())
        }
        429 => {
            let why =
                "the server has received too many requests and has asked us to try again later";
            ("TooManyRequests", why.into())
        }
        503 => {
            let why = "the server is currently unable to handle the request";
            ("ServiceUnavailable", why.into())
        }
        501.. => {
            let why = format!(
                "an error on the server ({text:?}) has prevented the request from succeeding"
            );
            ("InternalError", why)
        }
        _ => {
            let why = format!(
                "the server responded with the status code {status} but did not return more information"
            );
            ("", why)
        }
    };
    let mut error = ApiError::new(status, reason, format!("{message} ( pods/log {pod})"));
    error.details = serde_json::json!({ "name": pod, "kind": "pods/log" });
    error
}
