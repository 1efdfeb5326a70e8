//! TLS without buffers while no bytes are under way.
//!
//! rustls's own connection keeps a buffer of 4 KB while it is open, and most connections are
//! watches that are silent. Here rustls works on buffers of this stream, which exist only while
//! bytes are in them.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_lite::future::poll_fn;
use futures_lite::io::{AsyncBufRead, AsyncRead, AsyncWrite};
use rustls::ClientConfig;
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::pki_types::ServerName;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, UnbufferedStatus, WriteTraffic,
};

use crate::buffer_pool;

/// The most bytes that one record of TLS carries.
const RECORD_SIZE: usize = 16 << 10;

/// The client's end of a TLS connection over `io`.
pub(super) struct Secured<IO> {
    io: IO,
    tls: Box<UnbufferedClientConnection>,
    /// Encrypted, from the server: the beginning of a record, between two reads.
    incoming: Vec<u8>,
    /// Encrypted, for the server: the part that `io` has not taken.
    outgoing: Vec<u8>,
    /// Decrypted, for the reader.
    plain: Vec<u8>,
    /// The part of `plain` that has been read.
    read: usize,
    /// The server has announced that it sends no more.
    is_closed: bool,
}

/// The state of the connection after the bytes received so far.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// The handshake needs bytes from the server.
    Handshake,
    Open,
}

/// Returns an error of TLS as one of the connection.
fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Appends a record of the handshake, or an alert; nothing if it was encoded before.
fn encode(data: &mut EncodeTlsData<'_, ClientConnectionData>, to: &mut Vec<u8>) -> io::Result<()> {
    let start = to.len();
    // An empty buffer is too small: the error says what size the record has.
    let Err(EncodeError::InsufficientSize(size)) = data.encode(&mut []) else {
        return Ok(());
    };
    to.resize(start + size.required_size, 0);
    let written = data.encode(&mut to[start..]).map_err(io::Error::other)?;
    to.truncate(start + written);
    Ok(())
}

/// Appends a record with `plain`, which fits into one. `Err` also when the keys are used up.
fn encrypt(
    traffic: &mut WriteTraffic<'_, ClientConnectionData>,
    plain: &[u8],
    to: &mut Vec<u8>,
) -> io::Result<()> {
    buffer_pool::refill(to);
    let start = to.len();
    // An empty buffer is too small: the error says what size the record has.
    let Err(EncryptError::InsufficientSize(size)) = traffic.encrypt(plain, &mut []) else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    to.resize(start + size.required_size, 0);
    let written = traffic.encrypt(plain, &mut to[start..]).map_err(io::Error::other)?;
    to.truncate(start + written);
    Ok(())
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Secured<IO> {
    /// Shakes hands with the server of `name`. The caller limits the time.
    ///
    /// # Errors
    /// When the two do not agree, or the server's certificate is not valid.
    pub async fn connect(
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
        io: IO,
    ) -> io::Result<Secured<IO>> {
        let tls = UnbufferedClientConnection::new(config, name).map_err(invalid)?;
        let mut this = Secured {
            io,
            tls: Box::new(tls),
            incoming: Vec::new(),
            outgoing: Vec::new(),
            plain: Vec::new(),
            read: 0,
            is_closed: false,
        };
        poll_fn(|context| this.poll_handshake(context)).await?;
        Ok(this)
    }

    /// Drives the TLS handshake until data can be sent.
    fn poll_handshake(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let progress = self.process(context)?;
            ready!(self.poll_send(context))?;
            match progress {
                Progress::Open => return Poll::Ready(Ok(())),
                Progress::Handshake if self.is_closed => {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                Progress::Handshake => ready!(self.poll_receive(context))?,
            }
        }
    }

    /// Processes the records in `incoming`: their content goes to `plain`, answers to `outgoing`.
    /// Returns the state of the connection after them.
    fn process(&mut self, context: &mut Context<'_>) -> io::Result<Progress> {
        loop {
            let UnbufferedStatus { mut discard, state } =
                self.tls.process_tls_records(&mut self.incoming);
            // `None`: there may be more records to process.
            let progress = match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record.map_err(invalid)?;
                        discard += record.discard;
                        buffer_pool::refill(&mut self.plain);
                        self.plain.extend_from_slice(record.payload);
                    }
                    None
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    encode(&mut data, &mut self.outgoing)?;
                    None
                }
                // It stays in `outgoing`, which is sent before anything is read.
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    None
                }
                Ok(ConnectionState::PeerClosed) => {
                    self.is_closed = true;
                    None
                }
                Ok(ConnectionState::Closed) => Some(Progress::Open),
                Ok(ConnectionState::BlockedHandshake) => Some(Progress::Handshake),
                Ok(ConnectionState::WriteTraffic(_)) => Some(Progress::Open),
                Ok(_) => return Err(io::Error::other("TLS is in an unknown state")),
                Err(error) => {
                    self.incoming.drain(..discard);
                    self.try_send_alert(context);
                    return Err(invalid(error));
                }
            };
            self.incoming.drain(..discard);
            if self.incoming.is_empty() {
                buffer_pool::give(&mut self.incoming);
            }
            if let Some(progress) = progress {
                return Ok(progress);
            }
        }
    }

    /// Tries to send the alert that explains a failure to the server.
    fn try_send_alert(&mut self, context: &mut Context<'_>) {
        while let Ok(ConnectionState::EncodeTlsData(mut data)) =
            self.tls.process_tls_records(&mut self.incoming).state
        {
            if encode(&mut data, &mut self.outgoing).is_err() {
                return;
            }
        }
        let _ = self.poll_send(context);
    }

    /// Sends all of `outgoing`.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.outgoing.is_empty() {
            let sent = ready!(Pin::new(&mut self.io).poll_write(context, &self.outgoing))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.outgoing.drain(..sent);
        }
        buffer_pool::give(&mut self.outgoing);
        Poll::Ready(Ok(()))
    }

    /// Returns the bytes that are decrypted and not consumed.
    pub fn buffer(&self) -> &[u8] {
        &self.plain[self.read..]
    }

    /// Reads bytes from the server into `incoming`. The end of the socket is an error: after a
    /// `close_notify` nothing is read any more.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match ready!(buffer_pool::poll_read(&mut self.io, context, &mut self.incoming))? {
            0 => Poll::Ready(Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "peer closed connection without sending TLS close_notify",
            ))),
            _ => Poll::Ready(Ok(())),
        }
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncRead for Secured<IO> {
    /// Copies decrypted bytes, which are received first if there are none.
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        output: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let plain = ready!(self.as_mut().poll_fill_buf(context))?;
        let count = plain.len().min(output.len());
        output[..count].copy_from_slice(&plain[..count]);
        self.consume(count);
        Poll::Ready(Ok(count))
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncBufRead for Secured<IO> {
    /// Receives and decrypts records until there are bytes, or until the server sends no more.
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.get_mut();
        while this.plain.is_empty() && !this.is_closed {
            ready!(this.poll_receive(context))?;
            this.process(context)?;
            // An answer to the server, to a change of keys for example, is sent with the next
            // write if there is no room for it now. That write also fails if this one does: what
            // has been received is not lost.
            let _ = this.poll_send(context);
        }
        Poll::Ready(Ok(this.buffer()))
    }

    fn consume(mut self: Pin<&mut Self>, count: usize) {
        self.read = (self.read + count).min(self.plain.len());
        if self.read == self.plain.len() {
            buffer_pool::give(&mut self.plain);
            self.read = 0;
        }
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Secured<IO> {
    /// Encrypts the beginning of `input` as one record and sends it, as far as the socket takes it.
    /// Returns how many bytes of `input` are in the record.
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        input: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_send(context))?;
        this.process(context)?;
        let UnbufferedStatus { state, .. } = this.tls.process_tls_records(&mut this.incoming);
        let Ok(ConnectionState::WriteTraffic(mut traffic)) = state else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        let input = &input[..input.len().min(RECORD_SIZE)];
        if !input.is_empty() {
            encrypt(&mut traffic, input, &mut this.outgoing)?;
        }
        // What the socket does not take now is sent by the next write or flush.
        if let Poll::Ready(sent) = this.poll_send(context) {
            sent?;
        }
        Poll::Ready(Ok(input.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_send(context))?;
        Pin::new(&mut this.io).poll_flush(context)
    }

    /// Sends what is encrypted and closes the socket, without TLS's `close_notify`: the framing of
    /// HTTP says where a request ends.
    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_send(context))?;
        Pin::new(&mut this.io).poll_close(context)
    }
}

#[cfg(test)]
mod tests {
    use async_std::net::{TcpListener, TcpStream};
    use futures_lite::future::{block_on, poll_once, zip};
    use futures_lite::{AsyncReadExt, AsyncWriteExt};
    use futures_rustls::TlsAcceptor;
    use futures_rustls::server::TlsStream;
    use rustls::pki_types::PrivateKeyDer;
    use rustls::version::{TLS12, TLS13};
    use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};

    use super::*;

    /// A socket that takes and gives one byte at a time, with a pause before each.
    struct Trickle<IO> {
        io: IO,
        pauses: bool,
    }

    impl<IO: Unpin> Trickle<IO> {
        fn poll<T>(
            &mut self,
            context: &mut Context<'_>,
            one: impl FnOnce(Pin<&mut IO>, &mut Context<'_>) -> Poll<io::Result<T>>,
        ) -> Poll<io::Result<T>> {
            self.pauses = !self.pauses;
            if self.pauses {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            one(Pin::new(&mut self.io), context)
        }
    }

    impl<IO: AsyncRead + Unpin> AsyncRead for Trickle<IO> {
        fn poll_read(
            self: Pin<&mut Self>,
            context: &mut Context<'_>,
            output: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            self.get_mut().poll(context, |io, context| io.poll_read(context, &mut output[..1]))
        }
    }

    impl<IO: AsyncWrite + Unpin> AsyncWrite for Trickle<IO> {
        fn poll_write(
            self: Pin<&mut Self>,
            context: &mut Context<'_>,
            input: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.get_mut().poll(context, |io, context| io.poll_write(context, &input[..1]))
        }

        fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.get_mut().poll(context, AsyncWrite::poll_flush)
        }

        fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.get_mut().poll(context, AsyncWrite::poll_close)
        }
    }

    type Ends<IO> = (io::Result<Secured<IO>>, io::Result<TlsStream<TcpStream>>);

    /// Both ends of a connection. `trusted`: the client trusts the server.
    fn connected<IO: AsyncRead + AsyncWrite + Unpin>(
        version: &'static SupportedProtocolVersion,
        trusted: bool,
        wrap: impl FnOnce(TcpStream) -> IO,
    ) -> Ends<IO> {
        let made = rcgen::generate_simple_self_signed(["server".to_owned()]).expect("a pair");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        if trusted {
            roots.add(made.cert.der().clone()).expect("a certificate");
        }
        let client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[version])
            .expect("a version")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
        let server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .expect("a version")
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .expect("a pair");
        let name = ServerName::try_from("server").expect("a name");
        block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let address = listener.local_addr().expect("an address");
            let (accepted, io) = zip(listener.accept(), TcpStream::connect(address)).await;
            let io = wrap(io.expect("it listens"));
            let accepted = TlsAcceptor::from(Arc::new(server)).accept(accepted.expect("it is").0);
            zip(Secured::connect(Arc::new(client), name, io), accepted).await
        })
    }

    fn goes_both_ways<IO: AsyncRead + AsyncWrite + Unpin>(ends: Ends<IO>, sizes: &[usize]) {
        let (mut client, mut server) = (ends.0.expect("trusted"), ends.1.expect("trusted"));
        for size in sizes {
            let sent: Vec<u8> = (0..*size).map(|n| (n % 251) as u8).collect();
            let (mut there, mut back) = (vec![0; *size], vec![0; *size]);
            let echo = async {
                server.read_exact(&mut there).await.expect("open");
                server.write_all(&there).await.expect("open");
                server.flush().await.expect("open");
            };
            let ask = async {
                client.write_all(&sent).await.expect("open");
                client.flush().await.expect("open");
                client.read_exact(&mut back).await.expect("open");
            };
            block_on(zip(echo, ask));
            assert!(back == sent, "{size} bytes come back as they were sent");
            assert!(block_on(poll_once(client.read(&mut [0; 8]))).is_none(), "no more comes");
            let held = [&client.incoming, &client.outgoing, &client.plain].map(Vec::capacity);
            assert_eq!(held, [0; 3], "nothing is held after {size} bytes");
        }
    }

    #[test]
    fn bytes_go_both_ways_and_none_are_held_between() {
        for version in [&TLS13, &TLS12] {
            goes_both_ways(connected(version, true, |io| io), &[1, 4096, 16_384, 16_385, 100_000]);
            let trickle = |io| Trickle { io, pauses: false };
            goes_both_ways(connected(version, true, trickle), &[1, 5_000]);
        }
    }

    #[test]
    fn an_end_without_the_servers_notice_is_an_error() {
        for version in [&TLS13, &TLS12] {
            for says_so in [true, false] {
                let (client, server) = connected(version, true, |io| io);
                let (mut client, mut server) = (client.expect("trusted"), server.expect("trusted"));
                let read = block_on(async {
                    server.write_all(b"last").await.expect("open");
                    server.flush().await.expect("open");
                    if says_so {
                        server.close().await.expect("open");
                    }
                    drop(server);
                    client.read_exact(&mut [0; 4]).await.expect("it was sent");
                    client.read(&mut [0; 4]).await.map_err(|error| error.kind())
                });
                let expected = if says_so { Ok(0) } else { Err(io::ErrorKind::UnexpectedEof) };
                assert_eq!(read, expected);
            }
        }
    }

    #[test]
    fn a_server_that_is_not_trusted_learns_why() {
        for version in [&TLS13, &TLS12] {
            let (client, server) = connected(version, false, |io| io);
            let error = client.err().expect("it is not trusted");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            assert!(error.to_string().contains("invalid peer certificate"), "{error}");
            let error = server.expect_err("the client gave up").to_string();
            assert!(error.contains("received fatal alert: UnknownCA"), "{error}");
        }
    }
}
