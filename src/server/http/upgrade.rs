//! Connections that leave HTTP. Upstream: `http.Hijacker`.

use std::any::Any;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_lite::{AsyncRead, AsyncWrite};
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HeaderValue, PROXY_AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use hyper::rt::{Read, ReadBuf, Write};
use hyper::upgrade::OnUpgrade;

/// The beginning of the WebSocket protocol that is a bearer token. Upstream:
/// `websocket.bearerProtocolPrefix`.
const BEARER_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// Removes the credentials of a client, before its request is passed on to another server.
pub fn remove_credentials(headers: &mut HeaderMap) {
    for name in [AUTHORIZATION, PROXY_AUTHORIZATION] {
        headers.remove(name);
    }
    let lines = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
    let lines: Vec<&str> = lines.filter_map(|line| line.to_str().ok()).collect();
    let protocols = lines.iter().flat_map(|line| line.split(',')).map(str::trim);
    let (tokens, kept): (Vec<&str>, Vec<&str>) =
        protocols.partition(|protocol| protocol.starts_with(BEARER_PROTOCOL));
    if tokens.is_empty() {
        return;
    }
    let kept = HeaderValue::from_str(&kept.join(", ")).ok().filter(|kept| !kept.is_empty());
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    headers.extend(kept.map(|kept| (SEC_WEBSOCKET_PROTOCOL, kept)));
}

/// Lives as long as a connection.
type Guard = Arc<dyn Any + Send + Sync>;

/// A client's request to leave HTTP. A response with status 101 grants it.
pub struct Upgrade(OnUpgrade, Option<Guard>);

impl Upgrade {
    /// Returns the upgrade that a request of hyper's asks for, if it asks for one.
    pub(super) fn of<B>(request: &mut hyper::Request<B>) -> Option<Upgrade> {
        let is_asked = request.headers().contains_key(hyper::header::UPGRADE);
        is_asked.then(|| Upgrade(hyper::upgrade::on(request), None))
    }

    /// Returns the same request, whose connection holds `guard` until the connection is dropped.
    pub fn with_guard(self, guard: Guard) -> Upgrade {
        Upgrade(self.0, Some(guard))
    }

    /// Returns the connection once the response has been sent. It belongs to the caller alone: the
    /// server neither counts it nor closes it when it stops.
    ///
    /// # Errors
    /// When the client has gone, or the response had another status.
    pub async fn connection(self) -> io::Result<Upgraded> {
        let connection = self.0.await.map_err(io::Error::other)?;
        Ok(Upgraded { connection, _guard: self.1 })
    }
}

/// A connection that has left HTTP, of a server or of a client.
pub struct Upgraded {
    connection: hyper::upgrade::Upgraded,
    _guard: Option<Guard>,
}

impl From<hyper::upgrade::Upgraded> for Upgraded {
    fn from(connection: hyper::upgrade::Upgraded) -> Upgraded {
        Upgraded { connection, _guard: None }
    }
}

impl AsyncRead for Upgraded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut read = ReadBuf::new(buf);
        ready!(Pin::new(&mut self.connection).poll_read(cx, read.unfilled()))?;
        Poll::Ready(Ok(read.filled().len()))
    }
}

impl AsyncWrite for Upgraded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_removed_from_headers() {
        let token = format!("{BEARER_PROTOCOL}dA");
        for (lines, expected) in [
            (
                vec!["v5.channel.k8s.io, v4.channel.k8s.io"],
                Some("v5.channel.k8s.io, v4.channel.k8s.io"),
            ),
            (vec![&*format!("{token}, v4"), "v3"], Some("v4, v3")),
            (vec!["v4", &*token], Some("v4")),
            (vec![&*token], None),
            (vec![], None),
        ] {
            let mut headers = HeaderMap::new();
            for name in [AUTHORIZATION, PROXY_AUTHORIZATION] {
                headers.insert(name, HeaderValue::from_static("Bearer t"));
            }
            for line in &lines {
                headers.append(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_str(line).unwrap());
            }
            remove_credentials(&mut headers);
            let protocols = headers.remove(SEC_WEBSOCKET_PROTOCOL);
            let protocols = protocols.as_ref().map(|value| value.to_str().unwrap());
            assert_eq!((protocols, headers.len()), (expected, 0), "{lines:?}");
        }
    }
}
