//! Sends a request and reads its answer, which may come before the whole request is sent.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_lite::io::{AsyncBufRead, AsyncRead};

use super::connect::Stream;
use crate::buffer_pool;

/// Reads from a connection while it sends a request to it. A server may answer after it has read
/// only the head, to refuse a large body, and then read no further: so the answer has precedence
/// over the failure to send the rest. Such a connection cannot be used again.
pub(super) struct Sending<'a> {
    io: &'a mut dyn Stream,
    message: Vec<u8>,
    /// The number of bytes of the message that are sent.
    sent: usize,
    state: State,
}

/// How far the request is sent.
enum State {
    Writing,
    Flushing,
    Sent,
    /// The error is taken when there is no answer either.
    Failed(Option<io::Error>),
}

impl<'a> Sending<'a> {
    pub fn new(io: &'a mut dyn Stream, message: Vec<u8>) -> Sending<'a> {
        Sending { io, message, sent: 0, state: State::Writing }
    }

    /// Returns whether the whole request is sent.
    pub fn is_sent(&self) -> bool {
        matches!(self.state, State::Sent)
    }

    /// Sends as much as the connection takes now.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let State::Writing = self.state {
            match ready!(Pin::new(&mut *self.io).poll_write(context, &self.message[self.sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.sent += count,
            }
            if self.sent == self.message.len() {
                buffer_pool::give(&mut self.message);
                self.state = State::Flushing;
            }
        }
        if let State::Flushing = self.state {
            ready!(Pin::new(&mut *self.io).poll_flush(context))?;
            self.state = State::Sent;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncBufRead for Sending<'_> {
    /// Sends as much of the request as the connection takes, and reads bytes of the answer. A
    /// failure to send counts only when there is no answer.
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.get_mut();
        if let Poll::Ready(Err(error)) = this.poll_send(context) {
            buffer_pool::give(&mut this.message);
            this.state = State::Failed(Some(error));
        }
        let read = ready!(Pin::new(&mut *this.io).poll_fill_buf(context));
        let is_empty = read.as_ref().map_or(true, |bytes| bytes.is_empty());
        Poll::Ready(match &mut this.state {
            State::Failed(error) if is_empty => match error.take() {
                Some(error) => Err(error),
                None => read,
            },
            _ => read,
        })
    }

    fn consume(self: Pin<&mut Self>, count: usize) {
        Pin::new(&mut *self.get_mut().io).consume(count);
    }
}

impl AsyncRead for Sending<'_> {
    /// Copies bytes of the answer, and sends the request meanwhile.
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        output: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let bytes = ready!(self.as_mut().poll_fill_buf(context))?;
        let count = bytes.len().min(output.len());
        output[..count].copy_from_slice(&bytes[..count]);
        self.consume(count);
        Poll::Ready(Ok(count))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use async_std::net::{TcpListener, TcpStream};
    use futures_lite::future::{block_on, zip};
    use futures_lite::{AsyncReadExt, AsyncWriteExt};
    use futures_rustls::TlsAcceptor;
    use rustls::ServerConfig;
    use rustls::pki_types::PrivateKeyDer;

    use super::super::connect::ReadWrite;
    use crate::client::{Call, Client, Config, Error};
    use crate::clock::SystemClock;

    /// More than the buffers of two sockets hold.
    const LARGE: usize = 16 << 20;

    /// How requests reach the server.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Way {
        Plain,
        Tls,
        /// A proxy that is sent the request itself.
        Forwarded,
        /// A proxy that opens a tunnel.
        Tunnel,
    }

    /// What the server does after an early answer.
    #[derive(Clone, Copy, Debug)]
    enum End {
        Waits,
        HalfCloses,
        Resets,
    }

    struct Server {
        listener: TcpListener,
        acceptor: TlsAcceptor,
        way: Way,
    }

    type Connection = Box<dyn ReadWrite>;

    impl Server {
        async fn new(way: Way) -> (Server, Client) {
            let made = rcgen::generate_simple_self_signed(["server".to_owned()]).expect("a pair");
            let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let config = ServerConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .expect("versions")
                .with_no_client_auth()
                .with_single_cert(vec![made.cert.der().clone()], key)
                .expect("a pair");
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let address = listener.local_addr().expect("an address");
            let mut config_of_client = Config::new(match way {
                Way::Plain => format!("http://{address}"),
                Way::Tls => format!("https://{address}"),
                Way::Forwarded => "http://k.example:8080".to_owned(),
                Way::Tunnel => "https://k.example:6443".to_owned(),
            });
            config_of_client.tls.insecure = true;
            if matches!(way, Way::Forwarded | Way::Tunnel) {
                config_of_client.proxy = Some(format!("http://{address}"));
            }
            let client = Client::new(config_of_client, SystemClock::shared()).expect("a client");
            (Server { listener, acceptor: TlsAcceptor::from(Arc::new(config)), way }, client)
        }

        /// Takes a connection and reads the head of its request.
        async fn accept(&self) -> Connection {
            let mut tcp: TcpStream = self.listener.accept().await.expect("a connection").0;
            // A reset does not overtake the answer.
            tcp.set_nodelay(true).expect("a socket");
            if self.way == Way::Tunnel {
                read_head(&mut tcp).await;
                tcp.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.expect("open");
            }
            let mut connection: Connection = match self.way {
                Way::Plain | Way::Forwarded => Box::new(tcp),
                Way::Tls | Way::Tunnel => Box::new(self.acceptor.accept(tcp).await.expect("TLS")),
            };
            read_head(&mut connection).await;
            connection
        }
    }

    async fn read_head(connection: &mut (impl ReadWrite + ?Sized)) {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            connection.read_exact(&mut byte).await.expect("a head");
            head.push(byte[0]);
        }
    }

    /// Returns the connection if it stays open.
    async fn answer(mut connection: Connection, text: &str, end: End) -> Option<Connection> {
        connection.write_all(text.as_bytes()).await.expect("it takes the answer");
        connection.flush().await.expect("it takes the answer");
        match end {
            End::Waits => {}
            End::HalfCloses => connection.close().await.expect("open"),
            // Bytes that were not read make a reset of a close.
            End::Resets => return None,
        }
        Some(connection)
    }

    fn large() -> Call {
        let body = "x".repeat(LARGE);
        Call::new("POST", "/api/v1/namespaces/a/pods")
            .body("application/json", &body)
            .expect("text")
    }

    const TOO_LARGE: &str = "HTTP/1.1 413 Payload Too Large\r\nretry-after: 7\r\n\
                             content-type: text/plain\r\ncontent-length: 8\r\n\r\ntoo much";
    const BUSY: &str = "HTTP/1.1 429 Too Many Requests\r\nretry-after: 0\r\n\
                        content-length: 0\r\n\r\n";
    const DONE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";

    #[test]
    fn an_answer_that_comes_before_the_request_is_sent_counts() {
        block_on(async {
            for way in [Way::Plain, Way::Tls, Way::Forwarded, Way::Tunnel] {
                for end in [End::Waits, End::HalfCloses, End::Resets] {
                    let (server, client) = Server::new(way).await;
                    let call = large();
                    let serve = async { answer(server.accept().await, TOO_LARGE, end).await };
                    let (_open, sent) = zip(serve, client.send(&call)).await;
                    let error = sent.expect_err("it is refused");
                    assert_eq!(error.code(), Some(413), "{way:?} {end:?}: {error}");
                    assert_eq!(error.retry_after(), Some(Duration::from_secs(7)));
                    assert_eq!(error.message(), Some("too much"), "{way:?} {end:?}");
                }
            }
        });
    }

    #[test]
    fn a_request_that_was_refused_early_is_sent_again_as_a_whole() {
        block_on(async {
            for way in [Way::Plain, Way::Tls] {
                let (server, client) = Server::new(way).await;
                let call = large();
                let serve = async {
                    let first = answer(server.accept().await, BUSY, End::Waits).await;
                    // The first connection is not used again: it stands in the middle of a body.
                    let mut second = server.accept().await;
                    let mut body = vec![0; LARGE + 2];
                    second.read_exact(&mut body).await.expect("the whole body");
                    (first, answer(second, DONE, End::Waits).await)
                };
                let (_open, sent) = zip(serve, client.send(&call)).await;
                assert_eq!(sent.expect("it is taken"), b"{}", "{way:?}");
            }
        });
    }

    #[test]
    fn a_write_that_breaks_without_an_answer_is_not_repeated() {
        block_on(async {
            for way in [Way::Plain, Way::Tls] {
                let (server, client) = Server::new(way).await;
                let call = large();
                let serve = async { drop(server.accept().await) };
                let ((), sent) = zip(serve, client.send(&call)).await;
                let error = sent.expect_err("no answer came");
                assert!(matches!(error, Error::Transport { .. }) && error.is_unsure(), "{error}");
                let no_second = futures_lite::future::poll_once(server.listener.accept()).await;
                assert!(no_second.is_none(), "{way:?}");
            }
        });
    }
}
