//! The kubelet's ports. Upstream: `pkg/kubelet/server`.
//!
//! 10250 is for API servers, monitoring and people: over TLS, with `access` in front of its routes
//! (`pages`, `containers`, `stats`, `node_logs`). Streams to containers are `stream` and `copy`. Two
//! more ports have neither TLS nor users: that of the health check, and the read-only one.

mod access;
mod containers;
mod copy;
mod error;
mod node_logs;
mod pages;
mod stats;
mod stream;

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use futures_lite::StreamExt;
use kube_controller_manager::client::Client;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::server::http::{Body, Guard, Server};
use kube_controller_manager::server::routes::Routes;
use kube_controller_manager::server::tls::{Tls, TlsOptions};
use kube_controller_manager::server::{Handler, Request, Response};
use kube_controller_manager::task::{self, StopToken};

use crate::certificate::ServingCertificate;
use crate::metrics::{HTTP_INFLIGHT, HTTP_REQUESTS, HTTP_SECONDS};
use crate::options::configuration::Configuration;

pub use error::Error;
pub use pages::{SecurePages, SetVerbosity, checks, health_routes, read_only_routes};
pub use stream::StreamLimits;

/// The flags of the ports without users.
pub const HEALTHZ: &str = "healthz-port";
pub const READ_ONLY: &str = "read-only-port";

/// An API server has a connection for each log that is followed and for each stream, but few others.
/// The URL of `exec` has the command: hyper takes one of 64 KiB.
const GUARD: Guard = Guard {
    connections: 256,
    head_bytes: Some(128 << 10),
    // Upstream: `WriteTimeout`.
    stream_limit: Some(Duration::from_secs(4 * 3600)),
    ..Guard::UNTRUSTED
};

/// Serves a port without TLS and users until stopped; port 0: not at all. Upstream counts the requests
/// of the read-only port, but not those of the health check's.
///
/// # Errors
/// The address is malformed, or in use.
pub fn serve(
    flag: &'static str,
    address: &str,
    port: u16,
    routes: Routes,
    clock: &SharedClock,
    stop: &StopToken,
) -> Result<Option<Server>, Error> {
    if port == 0 {
        return Ok(None);
    }
    let (listener, address) = listen(flag, address, port)?;
    let handler = match flag {
        READ_ONLY => count_requests(routes.handler(), "readonly", clock),
        _ => routes.handler(),
    };
    let server = Server::on(listener, None, handler, Guard::UNTRUSTED, clock.clone(), stop.clone());
    server.map(Some).map_err(|source| Error::Listen { flag, address, source })
}

/// Listens on an address and port; an error names the flag.
fn listen(
    flag: &'static str,
    address: &str,
    port: u16,
) -> Result<(TcpListener, SocketAddr), Error> {
    let ip: IpAddr =
        address.parse().map_err(|_| Error::NotAddress { flag, text: address.to_owned() })?;
    let address = SocketAddr::new(ip, port);
    let listener = TcpListener::bind(address);
    listener.map(|listener| (listener, address)).map_err(|source| Error::Listen {
        flag,
        address,
        source,
    })
}

/// The port with authentication.
pub struct SecurePort<'a> {
    pub configuration: &'a Configuration,
    /// `None`: there is no API server that reviews tokens and accesses.
    pub client: Option<&'a Client>,
    pub certificate: ServingCertificate,
    pub node: &'a str,
    pub clock: &'a SharedClock,
    pub stop: &'a StopToken,
}

impl SecurePort<'_> {
    /// Serves the port with authentication until stopped. The file with authorities of clients is
    /// read again when it changes, the certificate with each handshake.
    ///
    /// # Errors
    /// A setting does not fit, a file cannot be used, or the address is in use.
    pub async fn serve(self, routes: &Routes) -> Result<Server, Error> {
        let SecurePort { configuration, client, certificate, node, clock, stop } = self;
        let options = TlsOptions {
            cipher_suites: configuration.tls_cipher_suites.clone(),
            min_version: configuration.tls_min_version.clone(),
            // Its key is of ECDSA, where upstream's is of RSA.
            is_self_signed: configuration.tls_cert_file.is_empty(),
            ..TlsOptions::default()
        };
        let tls = Tls::with_resolver(&options, Arc::new(certificate)).map_err(Error::Tls)?;
        let auth = access::build(configuration, client, node, clock).await?;
        let flag = "port";
        let (listener, address) = listen(flag, &configuration.address, configuration.port)?;
        let handler = count_requests(auth.clone().wrap(routes.handler()), "readwrite", clock);
        let server = Server::on(listener, Some(tls), handler, GUARD, clock.clone(), stop.clone());
        let server = server.map_err(|source| Error::Listen { flag, address, source })?;
        let file = configuration.authentication.x509.client_ca_file.clone();
        drop(task::spawn(access::reload(auth, file, clock.clone(), stop.clone())));
        log::info!("Starting to listen address={} port={}", address.ip(), address.port());
        Ok(server)
    }
}

/// Wraps a port's handler so that its requests are counted, and their times measured. Upstream:
/// `Server.ServeHTTP`.
fn count_requests(inner: Handler, server: &'static str, clock: &SharedClock) -> Handler {
    let clock = clock.clone();
    Arc::new(move |mut request: Request| {
        let (inner, clock) = (inner.clone(), clock.clone());
        Box::pin(async move {
            let path = bucket(&request.path);
            // As upstream, without `portForward`.
            let is_long = ["exec", "attach", "debug"].contains(&path);
            let method = match request.method.as_str() {
                known @ ("OPTIONS" | "GET" | "HEAD" | "POST" | "PUT" | "DELETE" | "TRACE"
                | "CONNECT") => known,
                _ => "other",
            };
            let is_long = if is_long { "true" } else { "false" };
            let labels = [method, path, server, is_long];
            HTTP_REQUESTS.with_label_values(&labels).inc();
            HTTP_INFLIGHT.with_label_values(&labels).inc();
            let labels = labels.map(str::to_owned);
            let counted = Arc::new(Inflight { labels, since: clock.monotonic(), clock });
            // Streams last longer than their answers.
            request.upgrade = request.upgrade.map(|upgrade| upgrade.with_guard(counted.clone()));
            let mut response = inner(request).await;
            if let Body::Stream(parts) = response.body {
                let parts = parts.map(move |part| {
                    let _counted = &counted;
                    part
                });
                response.body = Body::Stream(Box::pin(parts));
            }
            response
        })
    })
}

/// Returns the answer of upstream's router to a request with another method.
fn method_not_allowed() -> Response {
    Response::text(405, "405: Method Not Allowed")
}

/// Wraps a handler so that requests with other methods are refused.
fn only(methods: &'static [&'static str], inner: Handler) -> Handler {
    Arc::new(move |request: Request| match methods.contains(&request.method.as_str()) {
        true => inner(request),
        false => Box::pin(async { method_not_allowed() }),
    })
}

/// A request that is answered, until dropped.
struct Inflight {
    labels: [String; 4],
    since: Duration,
    clock: SharedClock,
}

impl Drop for Inflight {
    fn drop(&mut self) {
        let labels = self.labels.each_ref().map(String::as_str);
        HTTP_INFLIGHT.with_label_values(&labels).dec();
        let took = self.clock.monotonic().saturating_sub(self.since);
        HTTP_SECONDS.with_label_values(&labels).observe(took.as_secs_f64());
    }
}

/// Returns a label with few values for a path. Upstream: `getMetricBucket`.
fn bucket(path: &str) -> &'static str {
    const BUCKETS: [&str; 19] = [
        "attach",
        "checkpoint",
        "configz",
        "containerLogs",
        "debug",
        "exec",
        "flagz",
        "healthz",
        "logs",
        "metrics",
        "metrics/cadvisor",
        "metrics/probes",
        "metrics/resource",
        "pods",
        "portForward",
        "run",
        "runningpods",
        "stats",
        "statusz",
    ];
    let mut parts = path.trim_start_matches('/').splitn(3, '/');
    let root = match (parts.next().unwrap_or_default(), parts.next()) {
        ("metrics", Some(below)) => format!("metrics/{below}"),
        (root, _) => root.to_owned(),
    };
    BUCKETS.into_iter().find(|bucket| *bucket == root).unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;
    use futures_lite::stream;
    use kube_controller_manager::clock::SystemClock;
    use kube_controller_manager::server::handler;
    use kube_controller_manager::server::http::Method;

    use super::*;

    #[test]
    fn a_log_is_in_flight_until_it_ends() {
        let inner: Handler = Arc::new(|_| {
            Box::pin(async { Response::stream(200, "text/plain", Box::pin(stream::empty())) })
        });
        let counted = count_requests(inner, "test", &SystemClock::shared());
        let in_flight = HTTP_INFLIGHT.with_label_values(&["GET", "containerLogs", "test", "false"]);
        let response = block_on(counted(Request::get("/containerLogs/ns/p/c")));
        assert_eq!(in_flight.get(), 1);
        drop(response);
        assert_eq!(in_flight.get(), 0);
    }

    #[test]
    fn other_methods_are_refused() {
        let answer = only(&["GET"], handler(|_: &Request| Response::text(200, "")));
        for (method, expected) in
            [(Method::GET, 200), (Method::POST, 405), (Method::HEAD, 405), (Method::DELETE, 405)]
        {
            let request = Request { method, ..Request::get("/pods") };
            assert_eq!(block_on(answer(request)).status, expected);
        }
    }

    #[test]
    fn paths_are_counted_in_groups() {
        for (path, expected) in [
            ("/pods", "pods"),
            ("/exec/ns/p/c", "exec"),
            ("/metrics", "metrics"),
            ("/metrics/probes", "metrics/probes"),
            ("/metrics/x", "other"),
            ("/debug/pprof/profile", "debug"),
            ("/", "other"),
            ("", "other"),
            ("/x", "other"),
        ] {
            assert_eq!(bucket(path), expected, "{path}");
        }
    }
}
