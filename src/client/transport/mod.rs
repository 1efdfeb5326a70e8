//! surf's backend: HTTP/1.1 over TCP and TLS, with a bounded keep-alive pool.
//!
//! A watch has a connection of its own that never enters the pool. A pooled connection that the
//! server has closed is noticed before it is used, and a request is never sent twice. A peer that
//! vanishes is noticed by TCP's keep-alive: HTTP/1.1 has no ping, as client-go sends it on HTTP/2.

mod body;
mod connect;
mod dial;
mod head;
mod pool;
mod proxy;
mod reads;
mod rotation;
mod secured;
mod sending;
mod sockets;
mod tls;
mod trust;
mod tunnel;

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_lite::{AsyncBufReadExt, FutureExt};
use http_client::http_types::{self, Method, StatusCode, Url};
use http_client::{HttpClient, Request, Response};
use rustls::ClientConfig;

use self::body::{BodyReader, IdleLimit};
use self::connect::{Connection, Connector};
use self::head::write_head;
pub use self::head::{Framing, Head, read_head};
use self::pool::Pool;
pub(super) use self::proxy::Proxy;
pub(super) use self::reads::{WriteRefused, is_read};
use self::rotation::UntilRotated;
use self::sending::Sending;
pub(super) use self::sockets::Purpose;
use self::sockets::Sockets;
use self::tls::TlsSource;
pub use self::trust::Trust;
use super::config::{Config, Tls};
use super::credentials::Plugin;
use super::{Guard, Result};
use crate::clock::SharedClock;
use crate::objects::protobuf;
use crate::task::Task;
use crate::{buffer_pool, task};

/// The longest that connecting may take, with proxy and TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a request waits for a connection that another one gives back, while several are being
/// opened already. A handshake costs both sides more than several short requests.
const DIAL_ANYWAY: Duration = Duration::from_millis(5);
/// After this number of new connections that it could not use, a request takes the next one as it
/// is: if the server closes each at once, it learns why.
const DIALS_IN_VAIN: u32 = 2;
/// How often the client certificate is checked while no request does it.
const CHECK_PERIOD: Duration = Duration::from_secs(5 * 60);

/// The guard of a write, in the request's extensions. It is asked before the first byte is sent,
/// since the request may have waited for a permit and for a connection.
pub(super) struct WriteGuard(pub Guard);

/// Why a request was not sent: its guard refused it.
#[derive(Debug)]
pub(super) struct GuardRefused;

impl fmt::Display for GuardRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("held back by its guard")
    }
}

impl std::error::Error for GuardRefused {}

/// The connections to one server.
#[derive(Clone)]
pub(super) struct Transport {
    shared: Arc<Shared>,
    config: http_client::Config,
}

/// The part of a [`Transport`] that its clones share.
struct Shared {
    connector: Connector,
    pool: Arc<Pool>,
    /// The longest wait for the head of an answer, and between two pieces of a body, except a
    /// watch's.
    timeout: Duration,
    /// Whether a task checks for a new client certificate.
    has_checks: AtomicBool,
    /// `Some`: only reads pass, and this is the prefix of all paths.
    only_reads_below: Option<String>,
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Transport")
    }
}

impl Transport {
    /// Makes a transport, which keeps connections to `base`. `tls` replaces that of `config`;
    /// `plugin` may issue a client certificate.
    ///
    /// # Errors
    /// When a certificate, a key or the proxy's address cannot be used.
    pub fn new(
        base: &Url,
        tls: Tls,
        plugin: Option<Arc<Plugin>>,
        config: &Config,
        clock: &SharedClock,
    ) -> Result<Transport> {
        let environment = |name: &str| std::env::var(name).ok();
        let proxy = proxy::proxy_for(base, config.proxy.as_deref(), environment)?;
        let (tls, sockets) = (TlsSource::new(tls, plugin)?, Sockets::shared());
        let pool = Arc::new(Pool::new(clock.clone()));
        let connector = Connector { tls, proxy, sockets, clock: clock.clone() };
        let (timeout, has_checks) = (config.timeout, AtomicBool::new(false));
        let prefix = base.path().trim_end_matches('/');
        let only_reads_below = config.read_only.then(|| prefix.to_owned());
        let shared = Shared { connector, pool, timeout, has_checks, only_reads_below };
        Ok(Transport { shared: Arc::new(shared), config: http_client::Config::default() })
    }
}

impl HttpClient for Transport {
    /// Sends a request, and returns the answer once its head is read.
    fn send<'a, 'f>(
        &'a self,
        request: Request,
    ) -> Pin<Box<dyn Future<Output = std::result::Result<Response, http_types::Error>> + Send + 'f>>
    where
        'a: 'f,
        Self: 'f,
    {
        Box::pin(async move {
            let answer = self.shared.clone().exchange(request).await;
            answer.map_err(|error| http_types::Error::new(StatusCode::BadGateway, error))
        })
    }

    fn config(&self) -> &http_client::Config {
        &self.config
    }
}

/// Appends all of `body`, which is in memory, without another buffer.
async fn append(mut body: http_types::Body, to: &mut Vec<u8>) -> io::Result<()> {
    loop {
        let bytes = body.fill_buf().await?;
        let count = bytes.len();
        if count == 0 {
            return Ok(());
        }
        to.extend_from_slice(bytes);
        body.consume(count);
    }
}

/// Returns the error that `what` has taken too long.
fn timed_out(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("{what} timed out"))
}

impl Shared {
    /// Returns the result of `work`, or a time-out error that names `what`.
    async fn with_timeout<T>(
        &self,
        limit: Duration,
        what: &str,
        work: impl Future<Output = io::Result<T>>,
    ) -> io::Result<T> {
        let late = async {
            self.connector.clock.sleep(limit).await;
            Err(timed_out(what))
        };
        work.or(late).await
    }

    /// Opens a new connection, within [`CONNECT_TIMEOUT`].
    async fn connect(
        &self,
        url: &Url,
        config: Option<Arc<ClientConfig>>,
        purpose: Purpose,
    ) -> io::Result<Connection> {
        let connecting = self.connector.connect(url, config, purpose);
        self.with_timeout(CONNECT_TIMEOUT, "the connection", connecting).await
    }

    /// Returns a new connection, or one that another request gives back before the new one is
    /// there; the new one is then kept for the next request. So a burst opens connections while its
    /// requests are sent.
    /// Upstream: `http.Transport.getConn`.
    async fn first_free(
        self: &Arc<Self>,
        url: &Url,
        config: Option<Arc<ClientConfig>>,
    ) -> io::Result<Connection> {
        // Until then it prefers a connection that another request gives back; `None`: no longer.
        let mut patience = Some(self.connector.clock.sleep(DIAL_ANYWAY));
        let mut dialing: Option<Task<io::Result<()>>> = None;
        let mut dialed = 0;
        loop {
            let returned = self.pool.returned();
            if let Some(connection) = self.pool.take(config.as_ref()) {
                return Ok(connection);
            }
            if dialed == DIALS_IN_VAIN {
                return Box::pin(self.connect(url, config, Purpose::Request)).await;
            }
            if let Some(dial) = &mut dialing {
                let returned = async {
                    returned.await;
                    None
                };
                match async { Some(dial.await) }.or(returned).await {
                    Some(Err(error)) => return Err(error),
                    // Another request has taken the new one, or the server has closed it already.
                    Some(Ok(())) => (dialed, dialing) = (dialed + 1, None),
                    None => {}
                }
                continue;
            }
            let slot = self.pool.dial_slot();
            if let (None, Some(wait)) = (&slot, &mut patience) {
                let returned = async {
                    returned.await;
                    false
                };
                let is_late = async {
                    wait.await;
                    true
                };
                if is_late.or(returned).await {
                    patience = None;
                }
                continue;
            }
            let (shared, url, config) = (self.clone(), url.clone(), config.clone());
            dialing = Some(task::spawn(async move {
                let connection = shared.connect(&url, config, Purpose::Request).await?;
                shared.pool.put(connection);
                drop(slot);
                Ok(())
            }));
        }
    }

    /// Sends a request on a pooled or new connection, and reads the head of the answer; the body is
    /// read by the caller.
    async fn exchange(self: Arc<Self>, mut request: Request) -> io::Result<Response> {
        if let Some(prefix) = &self.only_reads_below {
            let path = request.url().path().strip_prefix(prefix.as_str());
            if !path.is_some_and(|path| is_read(request.method().as_ref(), path)) {
                return Err(io::Error::other(WriteRefused));
            }
        }
        let purpose = request.ext().get::<Purpose>().copied().unwrap_or(Purpose::Request);
        let (tls, proxy) = (&self.connector.tls, self.connector.proxy.as_ref());
        let forwarding = proxy.filter(|proxy| proxy.forwards_to(request.url()));
        let identity = match request.url().scheme() {
            "http" => None,
            _ => Some(tls.identity().await.map_err(io::Error::other)?),
        };
        let rotations = identity.as_ref().map(|identity| identity.rotations);
        let config = identity.map(|identity| identity.config);
        let permit = match purpose {
            Purpose::Request => {
                let permit = async { Ok(self.pool.permit().await) };
                Some(self.with_timeout(self.timeout, "the wait for other requests", permit).await?)
            }
            Purpose::Watch | Purpose::Lease => None,
        };
        let pooled = match purpose {
            Purpose::Watch => None,
            Purpose::Request | Purpose::Lease => self.pool.take(config.as_ref()),
        };
        let mut connection = match (pooled, purpose) {
            (Some(connection), _) => connection,
            // Boxed, so that these futures do not enlarge the tasks of all watches.
            (None, Purpose::Request) => Box::pin(self.first_free(request.url(), config)).await?,
            (None, Purpose::Watch | Purpose::Lease) => {
                Box::pin(self.connect(request.url(), config, purpose)).await?
            }
        };
        let guard = request.ext().get::<WriteGuard>().map(|WriteGuard(guard)| guard.clone());
        if guard.as_ref().is_some_and(|guard| !guard.begin()) {
            self.pool.put(connection);
            return Err(io::Error::other(GuardRefused));
        }
        let work = async {
            // Head and body in one piece: a TLS record and a system call more cost more than the
            // copy.
            let mut message = buffer_pool::take();
            let body = request.take_body();
            let length = body.len().ok_or(io::ErrorKind::InvalidInput)?;
            write_head(&request, length, forwarding, &mut message)?;
            append(body, &mut message).await?;
            let mut sending = Sending::new(&mut *connection.io, message);
            let head = read_head(&mut sending).await?;
            Ok((head, sending.is_sent()))
        };
        let head = self.with_timeout(self.timeout, "the answer", work).await;
        if let Some(guard) = guard {
            match &head {
                // The client's own limit is longer than the server's, which has ended the request.
                // A timeout with an OS error is the kernel's.
                Err(error)
                    if error.kind() == io::ErrorKind::TimedOut
                        && error.raw_os_error().is_none() =>
                {
                    guard.end();
                }
                // A proxy or the server gave up waiting: the request may still be carried out.
                Ok((head, _)) if !matches!(head.code, 502 | 504) => guard.end(),
                _ => guard.end_unsure(self.connector.clock.monotonic()),
            }
        }
        let (head, is_sent) = head?;
        let mut response = Response::new(head.status);
        if let Some(value) = &head.retry_after {
            response.insert_header("retry-after", value.as_str());
        }
        let is_head = request.method() == Method::Head;
        let framing = match head.framing {
            _ if is_head || matches!(head.code, 100..=199 | 204 | 304) => Framing::Length(0),
            framing => framing,
        };
        let keep = head.keep_alive && is_sent && purpose != Purpose::Watch;
        let pool = keep.then(|| self.pool.clone());
        let mut reader = BodyReader { connection: Some(connection), framing, pool, permit };
        reader.finish_if_done();
        // The answer to a watch that failed is not a stream: its body has an end.
        let is_stream = purpose == Purpose::Watch && head.status.is_success();
        let mut body = match (is_stream, rotations.filter(|_| tls.may_rotate())) {
            (true, None) => http_types::Body::from_reader(reader, None),
            (true, Some(count)) => {
                self.start_certificate_checks();
                let reader = UntilRotated::new(reader, tls.rotations().clone(), count);
                http_types::Body::from_reader(reader, None)
            }
            (false, _) => {
                let clock = self.connector.clock.clone();
                let limited = IdleLimit::new(reader, self.timeout, clock);
                http_types::Body::from_reader(limited, None)
            }
        };
        if head.is_protobuf {
            body.set_mime(protobuf::MEDIA_TYPE);
        } else if head.is_text {
            body.set_mime(http_types::mime::PLAIN);
        }
        response.set_body(body);
        Ok(response)
    }

    /// Starts the task by which watches notice a new client certificate when no request does.
    fn start_certificate_checks(self: &Arc<Self>) {
        if self.connector.tls.may_be_replaced() && !self.has_checks.swap(true, Ordering::Relaxed) {
            task::spawn(check_certificate(Arc::downgrade(self), self.connector.clock.clone()));
        }
    }
}

/// Checks the client certificate regularly, and when this process has renewed it. Ends with the
/// transport.
async fn check_certificate(shared: Weak<Shared>, clock: SharedClock) {
    loop {
        let Some(this) = shared.upgrade() else { return };
        let renewal = this.connector.tls.renewal();
        if let Err(error) = this.connector.tls.identity().await {
            log::error!("the client certificate: {error}");
        }
        drop(this);
        clock.sleep(CHECK_PERIOD).or(renewal).await;
    }
}
