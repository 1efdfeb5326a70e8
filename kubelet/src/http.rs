//! GET requests to addresses and URLs that users name: probes, hooks and manifests.

use std::fmt;
use std::net::TcpStream;
use std::sync::{Arc, LazyLock};

use async_io::Async;
use futures_lite::io::{AsyncRead, AsyncWrite};
use futures_rustls::TlsConnector;
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{
    AUTHORIZATION, COOKIE, HOST, HeaderMap, HeaderValue, LOCATION, WWW_AUTHENTICATE,
};
use hyper::{Request, StatusCode, Uri};
use kube_controller_manager::client::Trust as Verifier;
use kube_controller_manager::task;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use smol_hyper::rt::FuturesIo;
use url::Url;

/// Where Linux distributions keep the authorities that they trust.
const AUTHORITIES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Which certificates and redirects are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rules {
    /// One of the system's authorities must have signed the certificate. Redirects may lead to any
    /// host, which does not get the secrets of another one, as with Go's client.
    Source,
    /// Any certificate; redirects that stay on the host.
    Probe,
}

/// A scheme, host, port and path with its query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub is_https: bool,
    pub host: String,
    pub port: u16,
    pub path: String,
}

impl Target {
    /// # Errors
    /// When `url` is not an absolute URL of HTTP or HTTPS.
    pub fn parse(url: &str) -> Result<Target, String> {
        let uri: Uri = url.parse().map_err(|error| format!("{url:?} is not a URL: {error}"))?;
        let is_https = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(format!("{url:?} is not a URL of http or https")),
        };
        let host = uri.host().filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| format!("{url:?} has no host"))?;
        Ok(Target {
            is_https,
            host: host.trim_matches(['[', ']']).to_owned(),
            port: uri.port_u16().unwrap_or(if is_https { 443 } else { 80 }),
            path: uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
        })
    }

    /// The target of a redirect from here.
    fn redirected(&self, location: &str) -> Result<Target, String> {
        let resolved = Url::parse(&self.to_string()).and_then(|from| from.join(location));
        let resolved = resolved
            .map_err(|error| format!("failed to parse Location header {location:?}: {error}"))?;
        Target::parse(resolved.as_str())
    }

    /// Whether this host is another one or below it.
    fn is_within(&self, other: &Target) -> bool {
        let rest = self.host.strip_suffix(&other.host);
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    }

    fn authority(&self) -> String {
        let host = &self.host;
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        match self.port {
            443 if self.is_https => host,
            80 if !self.is_https => host,
            port => format!("{host}:{port}"),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_https { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.path)
    }
}

/// An answer with the first bytes of its body.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub body: Vec<u8>,
    /// Whether the body had more bytes.
    pub is_cut: bool,
    /// The answer redirects to another host, which has not been asked.
    pub leaves_host: bool,
}

/// Sends a GET and follows redirects. At most `max_bytes` of the body are read.
///
/// # Errors
/// One line with the cause.
pub async fn get(
    first: &Target,
    headers: &HeaderMap,
    rules: Rules,
    max_bytes: usize,
) -> Result<Answer, String> {
    let (mut target, mut headers) = (first.clone(), headers.clone());
    for _ in 0..10 {
        let (answer, location) = get_once(&target, &headers, rules, max_bytes).await?;
        let is_redirect = matches!(answer.status.as_u16(), 301 | 302 | 303 | 307 | 308);
        let Some(location) = location.filter(|_| is_redirect) else { return Ok(answer) };
        let next = target.redirected(&location)?;
        if rules == Rules::Probe && next.host != target.host {
            return Ok(Answer { leaves_host: true, ..answer });
        }
        if !next.is_within(first) {
            for secret in [AUTHORIZATION, COOKIE, WWW_AUTHENTICATE] {
                headers.remove(secret);
            }
        }
        target = next;
    }
    Err(format!("{target}: stopped after 10 redirects"))
}

async fn get_once(
    target: &Target,
    headers: &HeaderMap,
    rules: Rules,
    max_bytes: usize,
) -> Result<(Answer, Option<String>), String> {
    let stream = connect(&target.host, target.port).await?;
    if !target.is_https {
        return exchange(stream, target, headers, max_bytes).await;
    }
    let name = ServerName::try_from(target.host.clone())
        .map_err(|error| format!("{}: {error}", target.host))?;
    let config = match rules {
        Rules::Probe => ANY.clone(),
        Rules::Source => system_trust()?,
    };
    let stream = TlsConnector::from(config).connect(name, stream).await;
    exchange(stream.map_err(|error| error.to_string())?, target, headers, max_bytes).await
}

/// Connects to the first address of a name that answers.
///
/// # Errors
/// One line with the last cause.
pub async fn connect(host: &str, port: u16) -> Result<Async<TcpStream>, String> {
    let name = host.to_owned();
    let addresses = task::blocking(move || {
        std::net::ToSocketAddrs::to_socket_addrs(&(name.as_str(), port))
            .map(|addresses| addresses.collect::<Vec<_>>())
    });
    let addresses = addresses.await.map_err(|error| format!("lookup {host}: {error}"))?;
    let mut fault = format!("lookup {host}: no address");
    for address in addresses {
        match Async::<TcpStream>::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => fault = format!("dial tcp {address}: {error}"),
        }
    }
    Err(fault)
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    target: &Target,
    headers: &HeaderMap,
    max_bytes: usize,
) -> Result<(Answer, Option<String>), String> {
    let text = |error: hyper::Error| error.to_string();
    let (mut sender, connection) =
        http1::handshake::<_, Empty<Bytes>>(FuturesIo::new(stream)).await.map_err(text)?;
    let mut request = Request::get(&target.path);
    if let Some(all) = request.headers_mut() {
        *all = headers.clone();
        if !all.contains_key(HOST) {
            let host = HeaderValue::try_from(target.authority());
            all.insert(HOST, host.map_err(|error| error.to_string())?);
        }
    }
    let request = request.body(Empty::new()).map_err(|error| error.to_string())?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(text)?;
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let location = location.map(str::to_owned);
        let (status, mut stream) = (response.status(), response.into_body());
        let (mut body, mut is_cut) = (Vec::new(), false);
        while let Some(frame) = stream.frame().await {
            if let Ok(data) = frame.map_err(text)?.into_data() {
                let room = max_bytes - body.len();
                body.extend_from_slice(&data[..data.len().min(room)]);
                if data.len() > room {
                    is_cut = true;
                    break;
                }
            }
        }
        Ok((Answer { status, body, is_cut, leaves_host: false }, location))
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

fn system_trust() -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    let files = AUTHORITIES.iter().filter_map(|file| CertificateDer::pem_file_iter(file).ok());
    for certificate in files.flatten().flatten() {
        // Some lists have certificates that no longer parse.
        let _ = roots.add(certificate);
    }
    if roots.is_empty() {
        return Err(format!("no certificate authorities in any of {}", AUTHORITIES.join(", ")));
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
        let from = Target::parse("http://a:1/b").expect("a URL");
        for (location, shown) in [
            ("/c?d", Some("http://a:1/c?d")),
            ("https://e/f", Some("https://e/f")),
            ("//e/f", Some("http://e/f")),
            ("c", Some("http://a:1/c")),
            ("http://[::1]:2", Some("http://[::1]:2/")),
            ("ftp://a/", None),
            ("http://", None),
        ] {
            let to = from.redirected(location).map(|target| target.to_string());
            assert_eq!(to.ok().as_deref(), shown, "{location}");
        }
    }

    /// A server that answers once with `answer`, and its port; what it was asked is sent.
    fn serve(address: &str, answer: String) -> (u16, mpsc::Receiver<String>) {
        let listener = TcpListener::bind((address, 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (asked, requests) = mpsc::channel();
        std::thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a connection");
            let mut lines = BufReader::new(&stream).lines().map(|line| line.expect("a line"));
            let head: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
            (&stream).write_all(answer.as_bytes()).expect("an answer");
            let _ = asked.send(head.join("\n"));
        });
        (port, requests)
    }

    #[test]
    fn redirects_to_other_hosts_are_for_sources_and_without_secrets() {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer t"));
        headers.insert("x-role", HeaderValue::from_static("node"));
        for rules in [Rules::Source, Rules::Probe] {
            let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_owned();
            let (port, at_the_other) = serve("127.0.0.2", ok);
            let moved = format!(
                "HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.2:{port}/b\r\n\
                 Content-Length: 0\r\n\r\n"
            );
            let (port, at_the_first) = serve("127.0.0.1", moved);
            let target = Target::parse(&format!("http://127.0.0.1:{port}/a")).expect("a URL");
            let answer = block_on(get(&target, &headers, rules, 100)).expect("an answer");
            let first = at_the_first.recv().expect("a request");
            assert!(first.starts_with("GET /a ") && first.contains("Bearer t"), "{first}");
            match rules {
                Rules::Source => {
                    assert_eq!((answer.status.as_u16(), &*answer.body), (200, &b"ok"[..]));
                    let other = at_the_other.recv().expect("a request");
                    assert!(other.starts_with("GET /b "), "{other}");
                    assert!(other.contains("x-role: node") && !other.contains("Bearer"), "{other}");
                }
                Rules::Probe => {
                    assert!(answer.leaves_host && answer.status == 307, "{answer:?}");
                    at_the_other.try_recv().expect_err("no request");
                }
            }
        }
        let at = |host: &str| Target::parse(&format!("http://{host}")).expect("a URL");
        for (host, is_within) in [("a.b", true), ("c.a.b", true), ("ca.b", false), ("b", false)] {
            assert_eq!(at(host).is_within(&at("a.b")), is_within, "{host}");
        }
    }
}
