//! A new connection to the server: by address or through a proxy, with TLS or without.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_std::net::TcpStream;
use futures_lite::io::{AsyncBufRead, AsyncRead, AsyncWrite};
use http_client::http_types::Url;
use rustix::net::sockopt;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use super::dial::dial;
use super::proxy::{Kind, Proxy};
use super::secured::Secured;
use super::sockets::{Purpose, SocketPermit, Sockets};
use super::tls::TlsSource;
use super::tunnel;
use crate::client::buffered::Buffered;
use crate::clock::SharedClock;

/// A connection that is silent for the first of these is probed, and is dead when a number of
/// probes has no answer: 45 s in all, as client-go's pings.
const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(30);
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(5);
const KEEP_ALIVE_PROBES: u32 = 3;

pub(super) trait ReadWrite: AsyncRead + AsyncWrite + Send + Sync + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> ReadWrite for T {}

/// A connection as answers are read from it: callers parse its buffer in place.
pub(super) trait Stream: AsyncBufRead + AsyncWrite + Send + Sync + Unpin {
    /// The bytes that are read and not consumed.
    fn buffer(&self) -> &[u8];
}

impl<R: ReadWrite> Stream for Buffered<R> {
    fn buffer(&self) -> &[u8] {
        Buffered::buffer(self)
    }
}

impl<IO: ReadWrite> Stream for Secured<IO> {
    fn buffer(&self) -> &[u8] {
        Secured::buffer(self)
    }
}

/// An open connection to the server.
pub(super) struct Connection {
    pub io: Box<dyn Stream>,
    /// The configuration that it was made with; `None`: without TLS. The current one may have
    /// another client certificate.
    pub tls: Option<Arc<ClientConfig>>,
    #[expect(dead_code, reason = "held for its drop")]
    pub place: SocketPermit,
}

/// Makes connections to one server.
pub(super) struct Connector {
    pub tls: TlsSource,
    pub proxy: Option<Proxy>,
    pub sockets: Arc<Sockets>,
    pub clock: SharedClock,
}

impl Connector {
    /// Connects to the server of `url`, through the proxy if there is one; `tls`: `None` without
    /// TLS. The caller limits the time. `Err` also when no socket is left for the `purpose`.
    pub async fn connect(
        &self,
        url: &Url,
        tls: Option<Arc<ClientConfig>>,
        purpose: Purpose,
    ) -> io::Result<Connection> {
        let bad =
            |what: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("{url}: {what}"));
        let host = url.host_str().ok_or_else(|| bad("no host"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = url.port_or_known_default().ok_or_else(|| bad("no port"))?;
        let (peer, peer_port) = match &self.proxy {
            Some(proxy) => (proxy.host.as_str(), proxy.port),
            None => (host, port),
        };
        let place = self.sockets.take(purpose)?;
        let tcp = dial(peer, peer_port, &self.clock).await?;
        tcp.set_nodelay(true)?;
        if let Err(error) = probe_when_silent(&tcp) {
            log::debug!("{peer}:{peer_port}: no keep-alive: {error}");
        }
        let mut stream: Box<dyn ReadWrite> = Box::new(tcp);
        if let Some(proxy) = &self.proxy {
            if proxy.kind == Kind::Https {
                // The proxy sees the client certificate and is trusted as the server is: client-go
                // has one configuration for both.
                let config = match &tls {
                    Some(config) => config.clone(),
                    None => self.tls.identity().await.map_err(io::Error::other)?.config,
                };
                stream = Box::new(self.secure(config, stream, peer, peer_port).await?);
            }
            if !proxy.forwards_to(url) {
                stream = tunnel::open(stream, proxy, host, port).await?;
            }
        }
        let io: Box<dyn Stream> = match tls.clone() {
            Some(config) => Box::new(self.secure(config, stream, host, port).await?),
            None => Box::new(Buffered::new(stream)),
        };
        Ok(Connection { io, tls, place })
    }

    /// Starts TLS with the peer at the other end of `stream`.
    async fn secure(
        &self,
        config: Arc<ClientConfig>,
        stream: Box<dyn ReadWrite>,
        host: &str,
        port: u16,
    ) -> io::Result<Secured<Box<dyn ReadWrite>>> {
        let name = self.tls.server_name().unwrap_or(host).to_owned();
        let name = ServerName::try_from(name).map_err(io::Error::other)?;
        let secured = Secured::connect(config, name, stream).await;
        secured.map_err(|error| {
            io::Error::new(error.kind(), format!("TLS with {host}:{port}: {error}"))
        })
    }
}

/// Turns on TCP's keep-alive, so that a peer that has vanished is noticed.
fn probe_when_silent(tcp: &TcpStream) -> rustix::io::Result<()> {
    sockopt::set_socket_keepalive(tcp, true)?;
    sockopt::set_tcp_keepidle(tcp, KEEP_ALIVE_AFTER)?;
    sockopt::set_tcp_keepintvl(tcp, KEEP_ALIVE_EVERY)?;
    sockopt::set_tcp_keepcnt(tcp, KEEP_ALIVE_PROBES)
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// Makes a connection without TLS.
    pub fn plain(stream: TcpStream) -> Connection {
        let place = Sockets::shared().take(Purpose::Request).unwrap();
        Connection { io: Box::new(Buffered::new(stream)), tls: None, place }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_peer_is_probed() {
        async_std::task::block_on(async {
            let listener = async_std::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            probe_when_silent(&tcp).unwrap();
            assert!(sockopt::socket_keepalive(&tcp).unwrap());
            let times = [sockopt::tcp_keepidle(&tcp), sockopt::tcp_keepintvl(&tcp)];
            assert_eq!(times.map(Result::unwrap), [KEEP_ALIVE_AFTER, KEEP_ALIVE_EVERY]);
            assert_eq!(sockopt::tcp_keepcnt(&tcp).unwrap(), KEEP_ALIVE_PROBES);
        });
    }
}
