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
use hyper::header::{HOST, HeaderMap, HeaderValue, LOCATION};
use hyper::{Request, StatusCode, Uri};
use kube_controller_manager::client::Trust as Verifier;
use kube_controller_manager::task;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use smol_hyper::rt::FuturesIo;

/// Where Linux distributions keep the authorities that they trust.
const AUTHORITIES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Whether the server's certificate matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// One of the system's authorities must have signed it.
    System,
    /// Any certificate is accepted, as probes do.
    Any,
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
        match location.strip_prefix('/') {
            Some(rest) if !rest.starts_with('/') => {
                Ok(Target { path: location.to_owned(), ..self.clone() })
            }
            _ => Target::parse(location),
        }
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

/// Sends a GET and follows redirects on the same host. At most `max_bytes` of the body are read.
///
/// # Errors
/// One line with the cause.
pub async fn get(
    target: &Target,
    headers: &HeaderMap,
    trust: Trust,
    max_bytes: usize,
) -> Result<Answer, String> {
    let mut target = target.clone();
    for _ in 0..10 {
        let (answer, location) = get_once(&target, headers, trust, max_bytes).await?;
        let Some(location) = location.filter(|_| answer.status.is_redirection()) else {
            return Ok(answer);
        };
        let next = target.redirected(&location)?;
        if next.host != target.host {
            return Ok(Answer { leaves_host: true, ..answer });
        }
        target = next;
    }
    Err(format!("{target}: stopped after 10 redirects"))
}

async fn get_once(
    target: &Target,
    headers: &HeaderMap,
    trust: Trust,
    max_bytes: usize,
) -> Result<(Answer, Option<String>), String> {
    let stream = connect(&target.host, target.port).await?;
    if !target.is_https {
        return exchange(stream, target, headers, max_bytes).await;
    }
    let name = ServerName::try_from(target.host.clone())
        .map_err(|error| format!("{}: {error}", target.host))?;
    let config = match trust {
        Trust::Any => ANY.clone(),
        Trust::System => system_trust()?,
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
            ("//e/f", None),
            ("c", None),
        ] {
            let to = from.redirected(location).map(|target| target.to_string());
            assert_eq!(to.ok().as_deref(), shown, "{location}");
        }
    }
}
