//! GET requests to addresses and URLs that users name: probes, hooks and manifests.

use std::error::Error as StdError;
use std::fmt;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::{Arc, LazyLock};

use async_io::Async;
use futures_lite::io::{AsyncRead, AsyncWrite};
use futures_rustls::TlsConnector;
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderMap, HeaderValue, LOCATION};
use hyper::{Request, StatusCode};
use kube_controller_manager::client::Trust as Verifier;
use kube_controller_manager::task;
use rustix::io::Errno;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, ServerName};
use rustls::{ClientConfig, RootCertStore};
use smol_hyper::rt::FuturesIo;
use url::{ParseError, Url};

/// Where Linux distributions keep the authorities that they trust.
const AUTHORITIES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Which certificates and redirects are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrustPolicy {
    /// One of the system's authorities must have signed the certificate. Redirects may lead to any
    /// host; one outside of the first one's domain gets no headers with secrets, as with Go's
    /// client.
    SystemAuthorities,
    /// Any certificate; redirects that stay on the host.
    AnyCertificate,
}

/// Headers with secrets. Upstream: `shouldCopyHeaderOnRedirect` of Go's `net/http`.
const SECRETS: [&str; 6] = [
    "authorization",
    "cookie",
    "cookie2",
    "proxy-authenticate",
    "proxy-authorization",
    "www-authenticate",
];

/// A scheme, host, port and path with its query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub is_https: bool,
    pub host: String,
    pub port: u16,
    pub path: String,
}

impl Target {
    /// Parses the URL of a target.
    ///
    /// # Errors
    /// When `url` is not an absolute URL of HTTP or HTTPS.
    pub fn parse(url: &str) -> Result<Target, Error> {
        Target::of(&parse_url(url)?)
    }

    /// Returns what a URL of http or https refers to.
    fn of(url: &Url) -> Result<Target, Error> {
        let is_https = match url.scheme() {
            "http" => false,
            "https" => true,
            _ => return Err(Error::Scheme { url: url.to_string() }),
        };
        let query = url.query().map(|query| format!("?{query}")).unwrap_or_default();
        Ok(Target {
            is_https,
            host: url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned(),
            port: url.port_or_known_default().unwrap_or_default(),
            path: url.path().to_owned() + &query,
        })
    }

    fn url(&self) -> Result<Url, Error> {
        parse_url(&self.to_string())
    }

    /// Returns the host as a URL has it.
    fn bracketed_host(&self) -> String {
        let host = &self.host;
        if host.contains(':') { format!("[{host}]") } else { host.clone() }
    }

    /// Returns the host and port as a URL has them: without the port if it is the scheme's.
    fn authority(&self) -> String {
        match self.port {
            443 if self.is_https => self.bracketed_host(),
            80 if !self.is_https => self.bracketed_host(),
            _ => self.host_and_port(),
        }
    }

    /// Returns the host and port, also if it is the scheme's.
    pub fn host_and_port(&self) -> String {
        format!("{}:{}", self.bracketed_host(), self.port)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_https { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.path)
    }
}

fn parse_url(url: &str) -> Result<Url, Error> {
    Url::parse(url).map_err(|source| Error::NotUrl { text: url.to_owned(), source })
}

/// An answer with the first bytes of its body.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub body: Vec<u8>,
    /// Whether the body had more bytes.
    pub is_cut: bool,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum Error {
    /// A text that is not an absolute URL.
    NotUrl { text: String, source: ParseError },
    /// A URL of another scheme than http and https.
    Scheme { url: String },
    /// An answer redirects to a text that is no URL.
    Location { location: String, source: ParseError },
    /// The last target of too many redirects.
    Redirects(Target),
    /// A name has no address.
    NoAddress { host: String },
    /// The look-up of a name, or a connection; the cause is the operating system's.
    Io { step: String, source: io::Error },
    /// A host that no certificate can be for.
    ServerName { host: String, source: InvalidDnsNameError },
    /// This machine has no certificate authorities.
    NoAuthorities,
    /// The handshake of TLS has failed.
    Tls(io::Error),
    /// A header or a path that requests cannot have.
    Request(hyper::http::Error),
    /// The other side does not speak HTTP, or the connection has ended.
    Http(hyper::Error),
}

impl Error {
    /// Returns an error of the operating system in a step such as `dial tcp 10.0.0.1:80`.
    pub fn of(step: impl Into<String>, source: io::Error) -> Error {
        Error::Io { step: step.into(), source }
    }

    /// Returns whether this machine lacks descriptors or memory: that says nothing about the other
    /// side.
    pub fn is_own(&self) -> bool {
        const OWN: [Errno; 4] = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
        let Error::Io { source, .. } = self else { return false };
        Errno::from_io_error(source).is_some_and(|errno| OWN.contains(&errno))
    }

    /// Returns whether the other side has answered a handshake of TLS in plain text.
    pub fn has_no_tls(&self) -> bool {
        let Error::Tls(error) = self else { return false };
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
        matches!(cause, Some(rustls::Error::InvalidMessage(_)))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotUrl { text, .. } => write!(f, "{text:?} is not a URL"),
            Error::Scheme { url } => write!(f, "{url:?} is not a URL of http or https"),
            Error::Location { location, .. } => {
                write!(f, "failed to parse Location header {location:?}")
            }
            Error::Redirects(target) => write!(f, "{target}: stopped after 10 redirects"),
            Error::NoAddress { host } => write!(f, "lookup {host}: no address"),
            Error::Io { step, .. } => f.write_str(step),
            Error::ServerName { host, .. } => f.write_str(host),
            Error::NoAuthorities => {
                write!(f, "no certificate authorities in any of {}", AUTHORITIES.join(", "))
            }
            Error::Tls(error) => error.fmt(f),
            Error::Request(error) => error.fmt(f),
            Error::Http(error) => error.fmt(f),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::NotUrl { source, .. } | Error::Location { source, .. } => Some(source),
            Error::Io { source, .. } => Some(source),
            Error::ServerName { source, .. } => Some(source),
            Error::Tls(error) => error.source(),
            Error::Request(error) => error.source(),
            Error::Http(error) => error.source(),
            Error::Scheme { .. }
            | Error::Redirects(_)
            | Error::NoAddress { .. }
            | Error::NoAuthorities => None,
        }
    }
}

impl From<hyper::Error> for Error {
    fn from(error: hyper::Error) -> Error {
        Error::Http(error)
    }
}

impl From<hyper::http::Error> for Error {
    fn from(error: hyper::http::Error) -> Error {
        Error::Request(error)
    }
}

/// Sends a GET and follows redirects. At most `max_bytes` of the body are read.
///
/// # Errors
/// With the cause.
pub async fn get(
    first: &Target,
    headers: &HeaderMap,
    policy: TrustPolicy,
    max_bytes: usize,
) -> Result<Answer, Error> {
    let (mut target, mut headers) = (first.clone(), headers.clone());
    // Go's client ignores this header; that of probes takes its host from it.
    if policy == TrustPolicy::SystemAuthorities {
        headers.remove(HOST);
    }
    for _ in 0..10 {
        let (answer, location) = get_once(&target, &headers, policy, max_bytes).await?;
        let is_redirect = matches!(answer.status.as_u16(), 301 | 302 | 303 | 307 | 308);
        let location = location.filter(|location| is_redirect && !location.is_empty());
        let Some(location) = location else { return Ok(answer) };
        // A `Url` has one spelling of each host, where a target may have another.
        let (origin, from) = (first.url()?, target.url()?);
        let next = resolve(&from, &location)?;
        if policy == TrustPolicy::AnyCertificate && next.host_str() != from.host_str() {
            return Ok(answer);
        }
        // As in Go's client, the header only stays after a redirect that names no host.
        if Url::parse(&location).is_ok() {
            headers.remove(HOST);
        }
        if !is_within(&next, &origin) {
            for secret in SECRETS {
                headers.remove(secret);
            }
        }
        target = Target::of(&next)?;
    }
    Err(Error::Redirects(target))
}

/// Returns where a redirect leads.
fn resolve(from: &Url, location: &str) -> Result<Url, Error> {
    let fault = |source| Error::Location { location: location.to_owned(), source };
    from.join(location).map_err(fault)
}

/// Returns whether a URL's host is that of another one or below it.
fn is_within(url: &Url, other: &Url) -> bool {
    let (host, parent) = (url.host_str().unwrap_or_default(), other.host_str().unwrap_or_default());
    let rest = host.strip_suffix(parent);
    rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Sends one request, without following a redirect. Returns the place of a redirect beside the
/// answer.
async fn get_once(
    target: &Target,
    headers: &HeaderMap,
    policy: TrustPolicy,
    max_bytes: usize,
) -> Result<(Answer, Option<String>), Error> {
    let stream = connect(&target.host, target.port).await?;
    if !target.is_https {
        return exchange(stream, target, headers, max_bytes).await;
    }
    let name = ServerName::try_from(target.host.clone())
        .map_err(|source| Error::ServerName { host: target.host.clone(), source })?;
    let config = match policy {
        TrustPolicy::AnyCertificate => ANY.clone(),
        TrustPolicy::SystemAuthorities => system_trust()?,
    };
    let stream = TlsConnector::from(config).connect(name, stream).await;
    exchange(stream.map_err(Error::Tls)?, target, headers, max_bytes).await
}

/// Connects to the first address of a name that answers.
///
/// # Errors
/// With the last cause.
pub async fn connect(host: &str, port: u16) -> Result<Async<TcpStream>, Error> {
    let name = host.to_owned();
    let addresses = task::blocking(move || look_up(&name, port));
    let addresses = addresses.await.map_err(|error| Error::of(format!("lookup {host}"), error))?;
    let mut fault = Error::NoAddress { host: host.to_owned() };
    for address in addresses {
        match Async::<TcpStream>::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => fault = Error::of(format!("dial tcp {address}"), error),
        }
    }
    Err(fault)
}

/// Returns the addresses of a name. Blocks.
fn look_up(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let found = (host, port).to_socket_addrs();
    found.map(Iterator::collect).map_err(|error| match error.raw_os_error() {
        Some(_) => error,
        // The resolver does not say that it had no descriptor: to open a file then fails too.
        None => File::open("/dev/null").err().unwrap_or(error),
    })
}

/// Sends one GET request over `stream`, and reads at most `max_bytes` of the answer. Also returns
/// the answer's `Location`.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    target: &Target,
    headers: &HeaderMap,
    max_bytes: usize,
) -> Result<(Answer, Option<String>), Error> {
    let (mut sender, connection) =
        http1::handshake::<_, Empty<Bytes>>(FuturesIo::new(stream)).await?;
    let mut request = Request::get(&target.path);
    if let Some(all) = request.headers_mut() {
        *all = headers.clone();
        if !all.contains_key(HOST) {
            let host = HeaderValue::try_from(target.authority());
            all.insert(HOST, host.map_err(hyper::http::Error::from)?);
        }
    }
    let request = request.body(Empty::new())?;
    let answer = async {
        let response = sender.send_request(request).await?;
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let location = location.map(str::to_owned);
        let (status, mut stream) = (response.status(), response.into_body());
        let (mut body, mut is_cut) = (Vec::new(), false);
        while let Some(frame) = stream.frame().await {
            if let Ok(data) = frame?.into_data() {
                let room = max_bytes - body.len();
                body.extend_from_slice(&data[..data.len().min(room)]);
                if data.len() > room {
                    is_cut = true;
                    break;
                }
            }
        }
        Ok((Answer { status, body, is_cut }, location))
    };
    // The connection is driven here, and closed with the answer.
    let drive = async {
        let _ = connection.await;
        std::future::pending().await
    };
    futures_lite::FutureExt::or(answer, drive).await
}

fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(rustls::crypto::ring::default_provider()));
    PROVIDER.clone()
}

fn builder() -> rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier> {
    ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("the provider has suites for both versions")
}

static ANY: LazyLock<Arc<ClientConfig>> = LazyLock::new(|| {
    let verifier = Arc::new(Verifier::every(&provider()));
    let config = builder().dangerous().with_custom_certificate_verifier(verifier);
    Arc::new(config.with_no_client_auth())
});

/// Builds the configuration that trusts the machine's certificate authorities.
fn system_trust() -> Result<Arc<ClientConfig>, Error> {
    let mut roots = RootCertStore::empty();
    let files = AUTHORITIES.iter().filter_map(|file| CertificateDer::pem_file_iter(file).ok());
    for certificate in files.flatten().flatten() {
        // Some lists have certificates that no longer parse.
        let _ = roots.add(certificate);
    }
    if roots.is_empty() {
        return Err(Error::NoAuthorities);
    }
    Ok(Arc::new(builder().with_root_certificates(roots).with_no_client_auth()))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::sync::mpsc;

    use futures_lite::future::block_on;

    use super::*;
    use crate::few_descriptors::has_few_descriptors;

    #[test]
    fn only_a_lack_of_this_machine_is_its_own_fault() {
        for (errno, is_own) in [
            (Errno::MFILE, true),
            (Errno::NFILE, true),
            (Errno::NOBUFS, true),
            (Errno::NOMEM, true),
            (Errno::CONNREFUSED, false),
            (Errno::TIMEDOUT, false),
            (Errno::HOSTUNREACH, false),
        ] {
            assert_eq!(Error::of("dial", errno.into()).is_own(), is_own, "{errno:?}");
        }
    }

    #[test]
    fn look_up_without_descriptors_is_its_own_fault() {
        let test = "http::tests::look_up_without_descriptors_is_its_own_fault";
        if !has_few_descriptors(test, 32) {
            return;
        }
        let files: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        let error = look_up("no.such.name.invalid", 1).expect_err("no address");
        // The next line may need one.
        drop(files);
        let error = Error::of("lookup", error);
        assert!(error.is_own(), "{error:?}");
    }

    #[test]
    fn urls_are_taken_apart() {
        for (url, shown) in [
            ("http://a", Some("http://a/")),
            ("https://a:443/b?c=d", Some("https://a/b?c=d")),
            ("http://[::1]:8080/x", Some("http://[::1]:8080/x")),
            ("ftp://a", None),
            ("/a", None),
            ("", None),
        ] {
            let parsed = Target::parse(url).map(|target| target.to_string());
            assert_eq!(parsed.ok().as_deref(), shown, "{url}");
        }
    }

    #[test]
    fn redirects_are_resolved() {
        let from = Target::parse("http://a:1/b").expect("a URL").url().expect("a URL");
        for (location, shown) in [
            ("/c?d", Some("http://a:1/c?d")),
            ("https://e/f", Some("https://e/f")),
            ("//e/f", Some("http://e/f")),
            ("c", Some("http://a:1/c")),
            ("ftp://a/", None),
            ("http://", None),
        ] {
            let to = resolve(&from, location).and_then(|url| Target::of(&url));
            assert_eq!(to.map(|to| to.to_string()).ok().as_deref(), shown, "{location}");
        }
    }

    /// A server that gives these answers, and its port; what it was asked is sent.
    fn serve(address: &str, answers: Vec<String>) -> (u16, mpsc::Receiver<String>) {
        let listener = TcpListener::bind((address, 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (asked, requests) = mpsc::channel();
        std::thread::spawn(move || {
            for answer in answers {
                let (stream, _) = listener.accept().expect("a connection");
                let lines = BufReader::new(&stream).lines().map(|line| line.expect("a line"));
                let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
                (&stream).write_all(answer.as_bytes()).expect("an answer");
                let _ = asked.send(head.join("\n") + "\n");
            }
        });
        (port, requests)
    }

    fn moved(to: &str) -> String {
        format!("HTTP/1.1 307 Temporary Redirect\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n")
    }

    fn ok() -> String {
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_owned()
    }

    #[test]
    fn sources_are_redirected_to_any_host_without_secrets() {
        let mut headers = HeaderMap::new();
        for (name, value) in [("host", "h"), ("cookie2", "c"), ("x-role", "node")] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        headers.insert("authorization", HeaderValue::from_static("Bearer t"));
        // The redirects lead to another host, and back.
        let (port, at_the_last) = serve("127.0.0.1", vec![ok()]);
        let (port, at_the_second) =
            serve("127.0.0.2", vec![moved(&format!("http://127.0.0.1:{port}/c"))]);
        let (port, at_the_first) =
            serve("127.0.0.1", vec![moved(&format!("//127.0.0.2:{port}/b?q"))]);
        let target = Target::parse(&format!("http://127.0.0.1:{port}/a")).expect("a URL");
        let answer = block_on(get(&target, &headers, TrustPolicy::SystemAuthorities, 100))
            .expect("an answer");
        assert_eq!((answer.status.as_u16(), &*answer.body), (200, &b"ok"[..]));
        for (requests, line, has_secrets) in [
            (at_the_first, "GET /a ", true),
            (at_the_second, "GET /b?q ", false),
            (at_the_last, "GET /c ", false),
        ] {
            let request = requests.recv().expect("a request");
            assert!(request.starts_with(line) && request.contains("x-role: node"), "{request}");
            assert_eq!(request.contains("Bearer t"), has_secrets, "{request}");
            assert_eq!(request.contains("cookie2: c"), has_secrets, "{request}");
            assert!(!request.contains("host: h\n"), "{request}");
        }
    }

    #[test]
    fn probes_are_redirected_on_their_host_only() {
        let of = |host: &str, port| Target {
            is_https: false,
            host: host.to_owned(),
            port,
            path: "/a".to_owned(),
        };
        let headers = HeaderMap::from_iter([(HOST, HeaderValue::from_static("h"))]);
        // The host is spelled in two ways; a relative location keeps the header.
        let (last, at_the_last) = serve("::1", vec![ok()]);
        let to_the_last = moved(&format!("http://[0:0::1]:{last}/c"));
        let (port, at_the_first) = serve("::1", vec![moved("/b"), to_the_last]);
        let answer = block_on(get(&of("0:0::1", port), &headers, TrustPolicy::AnyCertificate, 100));
        assert_eq!(answer.expect("an answer").status, 200);
        let host = format!("host: [::1]:{last}\n");
        for (requests, line, host) in [
            (&at_the_first, "GET /a ", "host: h\n"),
            (&at_the_first, "GET /b ", "host: h\n"),
            (&at_the_last, "GET /c ", &host),
        ] {
            let request = requests.recv().expect("a request");
            assert!(request.starts_with(line) && request.contains(host), "{request}");
        }
        for location in ["http://127.0.0.2:1/", "app://elsewhere", "//localhost/x"] {
            let (port, _) = serve("127.0.0.1", vec![moved(location)]);
            let answer =
                block_on(get(&of("127.0.0.1", port), &headers, TrustPolicy::AnyCertificate, 100));
            assert_eq!(answer.expect("an answer").status, 307, "{location}");
        }
        let (port, _) = serve("127.0.0.1", vec![moved("")]);
        let answer =
            block_on(get(&of("127.0.0.1", port), &headers, TrustPolicy::AnyCertificate, 100));
        assert_eq!(answer.expect("an answer").status, 307);
    }

    #[test]
    fn plain_text_is_no_tls() {
        for (answer, has_no_tls) in [(&b"HTTP/1.0 400 Bad Request\r\n\r\n"[..], true), (b"", false)]
        {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let port = listener.local_addr().expect("an address").port();
            let server = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().expect("a connection");
                stream.write_all(answer).expect("an answer");
                stream.shutdown(std::net::Shutdown::Write).expect("an end");
                // The whole hello: an unread one would reset the connection.
                let _ = std::io::copy(&mut stream, &mut std::io::sink());
            });
            let target = Target::parse(&format!("https://127.0.0.1:{port}/")).expect("a URL");
            let headers = HeaderMap::new();
            let asked = get(&target, &headers, TrustPolicy::AnyCertificate, 9);
            let error = block_on(asked).expect_err("no TLS");
            assert_eq!(error.has_no_tls(), has_no_tls, "{error:?}");
            server.join().expect("the server");
        }
    }

    #[test]
    fn secrets_stay_in_a_domain() {
        let at = |host: &str| Url::parse(&format!("http://{host}")).expect("a URL");
        for (host, is_inside) in [("a.b", true), ("c.A.b", true), ("ca.b", false), ("b", false)] {
            assert_eq!(is_within(&at(host), &at("a.b")), is_inside, "{host}");
        }
    }
}
