//! Serves one connection, from its TLS handshake to its end.

use std::future::{Future, poll_fn};
use std::io;
use std::net::{Shutdown, TcpStream};
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_io::Async;
use async_lock::Semaphore;
use futures_lite::future::{poll_once, yield_now};
use futures_lite::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, FutureExt};
use futures_rustls::TlsAcceptor;
use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use smol_hyper::rt::FuturesIo;

use super::connections::{Connections, Phase, Progress, Slot};
use super::descriptors::Reserve;
use super::socket;
use super::upgrade::Upgrade;
use super::{Body, BodyStream, Chain, Handler, Request, RequestBody, Response, Socket};
use crate::clock::SharedClock;
use crate::server::tls::Tls;
use crate::task::StopToken;

/// The first byte of a TLS connection: its content type, a handshake.
const TLS_HANDSHAKE: u8 = 22;
/// How long running requests may take to end after a stop.
const DRAIN: Duration = Duration::from_secs(2);
/// Bytes of a request without TLS that are read after its answer.
const DISCARDED_BYTES: u64 = 256 << 10;
/// Bytes of an answer that hyper takes at a time. It copies them into a buffer that the connection
/// keeps, and that grows up to [`Serving::head_bytes`] and one part.
const PART_BYTES: usize = 16 << 10;

/// What all connections of a server share.
pub(super) struct Serving {
    pub connections: Arc<Connections>,
    pub reserve: Reserve,
    /// Permits one step of a TLS handshake at a time.
    pub handshakes: Semaphore,
    pub head_bytes: Option<usize>,
    pub tls: Option<Tls>,
    pub handler: Handler,
    pub clock: SharedClock,
    pub stop: StopToken,
}

/// An accepted connection, with its entry in the table.
pub(super) struct Connection {
    serving: Arc<Serving>,
    slot: Slot,
}

/// The reason why a connection ends before its work is done.
#[derive(Clone, Copy)]
enum Cut {
    /// A phase took too long.
    Late(Phase),
    /// The connection was closed in favour of another one.
    Evicted,
}

impl Connection {
    pub fn new(serving: &Arc<Serving>, slot: Slot) -> Connection {
        Connection { serving: serving.clone(), slot }
    }

    /// Performs the TLS handshake, if the server has TLS, and serves the connection to its end.
    pub async fn run(self, stream: Async<TcpStream>) {
        if let Err(error) = socket::set_options(stream.get_ref()) {
            log::debug!("options of a connection: {error}");
        }
        let Some(tls) = self.serving.tls.clone() else {
            return self.serve(Socket(stream), Chain::default()).await;
        };
        let handshake = alternately(&self.serving.handshakes, handshake(tls, stream));
        let handshake = self.serving.stop.unless_stopped(handshake);
        match self.in_time(handshake).await {
            Ok(Some(Ok(stream))) => {
                let chain = stream.get_ref().1.peer_certificates().unwrap_or_default().into();
                self.slot.progress.enter(Phase::Head);
                self.serve(stream, chain).await;
            }
            Ok(Some(Err(error))) => log::debug!("TLS handshake: {error}"),
            Ok(None) => (),
            Err(cut) => cut.log(),
        }
    }

    /// Answers requests until the connection ends, or [`DRAIN`] after the stop.
    pub async fn serve<IO>(&self, io: IO, peer: Chain)
    where
        IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let progress = &self.slot.progress;
        let io = ProgressIo { io, progress: progress.clone() };
        let (handler, answering) = (self.serving.handler.clone(), progress.clone());
        let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
            answering.enter(Phase::Response);
            answer(handler.clone(), request, peer.clone(), answering.clone())
        });
        let mut builder = hyper::server::conn::http1::Builder::new();
        // The deadline of the phase limits it.
        builder.header_read_timeout(None);
        if let Some(bytes) = self.serving.head_bytes {
            builder.max_buf_size(bytes);
        }
        let connection = builder.serve_connection(FuturesIo::new(io), service);
        let mut connection = pin!(connection.with_upgrades());
        let ended = self.serving.stop.unless_stopped(connection.as_mut());
        let ended = match self.in_time(ended).await {
            Ok(Some(ended)) => ended,
            Ok(None) => {
                connection.as_mut().graceful_shutdown();
                let late = async {
                    self.serving.clock.sleep(DRAIN).await;
                    Ok(())
                };
                connection.or(late).await
            }
            Err(cut) => return cut.log(),
        };
        if let Err(error) = ended {
            log::debug!("connection: {error}");
        }
    }

    /// Returns `work`'s output, unless a phase takes too long or the connection is evicted. Phases
    /// begin only while `work` is polled, so the deadline is checked afterwards.
    async fn in_time<T>(&self, work: impl Future<Output = T>) -> Result<T, Cut> {
        let (clock, progress) = (&self.serving.clock, &self.slot.progress);
        let mut work = pin!(work);
        let mut timer = None;
        let timed = poll_fn(|cx| {
            if let Poll::Ready(output) = work.as_mut().poll(cx) {
                return Poll::Ready(Ok(output));
            }
            let Some(deadline) = progress.deadline() else {
                timer = None;
                return Poll::Pending;
            };
            let (_, sleep) = match timer.take() {
                Some(armed @ (due, _)) if due == deadline => timer.insert(armed),
                _ => {
                    let wait = deadline.saturating_sub(clock.monotonic());
                    timer.insert((deadline, clock.sleep(wait)))
                }
            };
            ready!(sleep.as_mut().poll(cx));
            Poll::Ready(Err(Cut::Late(progress.phase())))
        });
        let evicted = async {
            progress.evicted.stopped().await;
            Err(Cut::Evicted)
        };
        timed.or(evicted).await
    }
}

impl Cut {
    /// Logs why the connection was closed.
    fn log(self) {
        match self {
            Cut::Late(phase) => log::debug!("connection closed: timeout in phase {phase:?}"),
            Cut::Evicted => log::debug!("connection closed: too many connections"),
        }
    }
}

/// Polls `future` to its end, one poll for each permit. Other tasks that are ready run between two
/// polls, so that long steps, such as those of TLS handshakes, never follow each other directly.
async fn alternately<F: Future>(permits: &Semaphore, future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        let permit = permits.acquire().await;
        yield_now().await;
        if let Some(output) = poll_once(future.as_mut()).await {
            return output;
        }
        drop(permit);
        // The poll has registered this task's waker, so the task waits for it without the permit.
        let mut woken = false;
        let wake = poll_fn(|_| match std::mem::replace(&mut woken, true) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        });
        wake.await;
    }
}

type TlsStream = futures_rustls::server::TlsStream<Socket>;

/// Accepts the TLS connection of a client; one that sends plain HTTP gets an answer in HTTP.
async fn handshake(tls: Tls, mut stream: Async<TcpStream>) -> io::Result<TlsStream> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 1 && first[0] != TLS_HANDSHAKE {
        refuse_plain_http(&mut stream).await?;
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not TLS"));
    }
    let local = stream.get_ref().local_addr().ok().map(|local| local.ip());
    TlsAcceptor::from(tls.config_at(local)).accept(Socket(stream)).await
}

/// Answers 400 to a client that does not use TLS, and reads its request: a socket that is closed
/// with unread bytes is reset, and the client may then lose the answer.
async fn refuse_plain_http(stream: &mut Async<TcpStream>) -> io::Result<()> {
    let answer =
        b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";
    stream.write_all(answer).await?;
    stream.get_ref().shutdown(Shutdown::Write)?;
    futures_lite::io::copy(stream.take(DISCARDED_BYTES), futures_lite::io::sink()).await?;
    Ok(())
}

/// A stream that records the progress of its connection.
struct ProgressIo<IO> {
    io: IO,
    progress: Arc<Progress>,
}

impl<IO: AsyncRead + Unpin> AsyncRead for ProgressIo<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let read = ready!(Pin::new(&mut self.io).poll_read(cx, buf));
        if matches!(read, Ok(1..)) {
            self.progress.record_received();
        }
        Poll::Ready(read)
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for ProgressIo<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write(cx, buf));
        self.progress.record_sent();
        Poll::Ready(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, bufs));
        self.progress.record_sent();
        Poll::Ready(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_close(cx)
    }
}

/// Calls the handler and converts its response for hyper. A panic of the handler is an answer of
/// 500; the error ends the connection without an answer.
async fn answer(
    handler: Handler,
    mut request: hyper::Request<Incoming>,
    peer: Chain,
    progress: Arc<Progress>,
) -> Result<hyper::Response<Outgoing>, Aborted> {
    let upgrade = Upgrade::of(&mut request);
    let (head, body) = request.into_parts();
    let request = Request {
        method: head.method,
        path: head.uri.path().to_owned(),
        query: head.uri.query().unwrap_or_default().to_owned(),
        headers: head.headers,
        body: RequestBody::Incoming(body),
        peer,
        upgrade,
    };
    let answered = AssertUnwindSafe(async move { handler(request).await }).catch_unwind().await;
    let response = answered.unwrap_or_else(|_| Response::text(500, "internal server error\n"));
    let content = match response.body {
        Body::Full(bytes) => Content::Full(bytes),
        Body::Stream(stream) => {
            progress.enter(Phase::Stream);
            Content::Stream(stream)
        }
        Body::Abort => return Err(Aborted),
    };
    let mut built = hyper::Response::new(Outgoing { content, progress });
    *built.status_mut() = hyper::StatusCode::from_u16(response.status)
        .unwrap_or(hyper::StatusCode::INTERNAL_SERVER_ERROR);
    built.headers_mut().extend(response.headers);
    Ok(built)
}

/// The error of a handler that aborts the connection.
#[derive(Debug)]
struct Aborted;

impl std::fmt::Display for Aborted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("connection aborted by the handler")
    }
}

impl std::error::Error for Aborted {}

/// The body of a response. Once it is dropped the connection waits for the next request.
struct Outgoing {
    content: Content,
    progress: Arc<Progress>,
}

enum Content {
    /// The bytes that hyper has not taken yet.
    Full(Bytes),
    Stream(BodyStream),
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.progress.enter(Phase::Idle);
    }
}

impl HttpBody for Outgoing {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match &mut self.content {
            Content::Full(rest) if rest.is_empty() => Poll::Ready(None),
            Content::Full(rest) => {
                let part = rest.split_to(rest.len().min(PART_BYTES));
                // From here on the connection waits for its client.
                self.progress.enter(Phase::Idle);
                Poll::Ready(Some(Ok(Frame::data(part))))
            }
            Content::Stream(stream) => {
                stream.as_mut().poll_next(cx).map(|next| next.map(|next| next.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.content, Content::Full(rest) if rest.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Full(rest) => SizeHint::with_exact(rest.len() as u64),
            Content::Stream(_) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures_lite::future::block_on;

    use super::*;

    #[test]
    fn an_answer_is_handed_over_in_parts() {
        let clock = crate::clock::FakeClock::new(crate::objects::Timestamp::from_secs(0));
        let slot = Connections::new(1, None, clock).admit([127, 0, 0, 1].into(), Phase::Response);
        for (length, parts) in
            [(0, vec![]), (1, vec![1]), (40 << 10, vec![16 << 10, 16 << 10, 8 << 10])]
        {
            let content = Content::Full(Bytes::from(vec![b'x'; length]));
            slot.progress.enter(Phase::Response);
            let mut body = pin!(Outgoing { content, progress: slot.progress.clone() });
            let mut left = length;
            for part in parts {
                assert_eq!(body.size_hint().exact(), Some(left as u64));
                assert!(!body.is_end_stream());
                let frame = block_on(poll_fn(|cx| body.as_mut().poll_frame(cx)));
                assert_eq!(frame.unwrap().unwrap().into_data().unwrap().len(), part);
                left -= part;
                assert_eq!(slot.progress.phase(), Phase::Idle, "the client's turn");
            }
            assert_eq!(body.size_hint().exact(), Some(0));
            assert!(body.is_end_stream());
            assert!(block_on(poll_fn(|cx| body.as_mut().poll_frame(cx))).is_none());
        }
    }

    #[test]
    fn handshakes_take_turns() {
        const STEPS: usize = 3;
        let (permits, polls) = (Semaphore::new(1), Cell::new(0));
        let polls = &polls;
        let step = || {
            let mut done = 0;
            poll_fn(move |cx| {
                polls.set(polls.get() + 1);
                done += 1;
                if done == STEPS {
                    return Poll::Ready(());
                }
                cx.waker().wake_by_ref();
                Poll::Pending
            })
        };
        let mut tasks: Vec<_> = (0..5).map(|_| Box::pin(alternately(&permits, step()))).collect();
        let mut rounds = 0;
        while !tasks.is_empty() {
            let before = polls.get();
            tasks.retain_mut(|task| block_on(poll_once(task)).is_none());
            assert!(polls.get() - before <= 1, "round {rounds}");
            rounds += 1;
            assert!(rounds < 100);
        }
        assert_eq!(polls.get(), 5 * STEPS);
    }
}
