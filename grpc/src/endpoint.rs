//! Where a channel leads, and how it is connected to.

use std::error::Error as StdError;
use std::fmt;
use std::fs;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_io::Async;
use futures_lite::io::{AsyncRead, AsyncWrite};
use futures_rustls::TlsConnector;
use kube_controller_manager::client::{Trust, pem};
use kube_controller_manager::task;
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, ServerName};

pub(crate) type Fault = Box<dyn StdError + Send + Sync>;

/// The place of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    Unix(PathBuf),
    Tls(Tls),
}

/// A server that is reached by TLS. The files are read at each connection, so that a replaced
/// certificate is used from the next one on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// A name, or an address without brackets.
    pub host: String,
    pub port: u16,
    /// The authorities that the server's certificate is checked against, in PEM.
    pub ca: PathBuf,
    /// The client's certificate and its key, in PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name in the server's certificate, if it is not `host`.
    pub server_name: Option<String>,
}

impl Tls {
    fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }

    /// Builds the TLS configuration of a client from the files of the CA and of its certificate.
    ///
    /// # Errors
    /// When a file cannot be read or used.
    fn config(&self) -> Result<ClientConfig, Fault> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let authorities = pem::certificates(&read(&self.ca)?);
        if authorities.is_empty() {
            return Err(format!("{} has no certificate", self.ca.display()).into());
        }
        let trust = Trust::of(authorities, &provider);
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(trust));
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = pem::certificates(&read(certificate)?);
                let key = PrivateKeyDer::from_pem_slice(&read(key)?)
                    .map_err(|error| format!("{}: {error}", key.display()))?;
                builder.with_client_auth_cert(chain, key)?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Fault> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()).into())
}

/// The path of the socket, or host and port.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Unix(path) => path.display().fmt(f),
            Endpoint::Tls(tls) => f.write_str(&tls.authority()),
        }
    }
}

/// The stream of a connection.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Endpoint {
    /// Returns the scheme and authority of requests.
    pub(crate) fn origin(&self) -> String {
        match self {
            Endpoint::Unix(_) => "http://localhost".to_owned(),
            Endpoint::Tls(tls) => format!("https://{}", tls.authority()),
        }
    }

    /// Connects to the server, with TLS where it is configured.
    ///
    /// # Errors
    /// When no connection can be made, or the server is not trusted.
    pub(crate) async fn connect(&self) -> Result<Box<dyn Stream>, Fault> {
        match self {
            Endpoint::Unix(path) => Ok(Box::new(Async::<UnixStream>::connect(path).await?)),
            Endpoint::Tls(tls) => Ok(Box::new(connect_tls(tls.clone()).await?)),
        }
    }
}

/// Opens a TLS connection to the first address of the host that accepts. Its name is looked up, and
/// its files are read, on a thread that may block.
async fn connect_tls(tls: Tls) -> Result<impl Stream, Fault> {
    let name = tls.server_name.as_ref().unwrap_or(&tls.host);
    let name = ServerName::try_from(name.clone())?;
    let prepare = move || -> Result<(ClientConfig, Vec<SocketAddr>), Fault> {
        let addresses = (tls.host.as_str(), tls.port).to_socket_addrs()?;
        Ok((tls.config()?, addresses.collect()))
    };
    let (config, addresses) = task::blocking(prepare).await?;
    let stream = connect_first(&addresses).await?;
    Ok(TlsConnector::from(Arc::new(config)).connect(name, stream).await?)
}

/// Connects to the first address that accepts.
async fn connect_first(addresses: &[SocketAddr]) -> Result<Async<TcpStream>, Fault> {
    let mut fault = Fault::from("the name has no address");
    for address in addresses {
        match Async::<TcpStream>::connect(*address).await {
            Ok(stream) => {
                stream.get_ref().set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => fault = format!("{address}: {error}").into(),
        }
    }
    Err(fault)
}
