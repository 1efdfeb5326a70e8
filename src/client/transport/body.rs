//! An answer's body, read as it arrives.

use parking_lot::Mutex;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_lite::io::{AsyncBufRead, AsyncRead};
use pin_project::pin_project;

use super::connect::Connection;
use super::head::Framing;
use super::pool::{Permit, Pool};
use super::timed_out;
use crate::client::chunks::Piece;
use crate::clock::{SharedClock, Sleep};

/// Fails when the next piece takes longer than `limit`.
#[pin_project]
pub(super) struct IdleLimit<R> {
    #[pin]
    reader: R,
    limit: Duration,
    /// When the next piece must be there; set while one is awaited. The lock makes it `Sync`.
    deadline: Mutex<Option<Sleep>>,
    clock: SharedClock,
}

impl<R> IdleLimit<R> {
    pub fn new(reader: R, limit: Duration, clock: SharedClock) -> IdleLimit<R> {
        IdleLimit { reader, limit, deadline: Mutex::default(), clock }
    }
}

/// Returns `read` when it is ready, or an error when the next piece has taken longer than `limit`.
fn or_time_out<T>(
    read: Poll<io::Result<T>>,
    deadline: &mut Mutex<Option<Sleep>>,
    limit: Duration,
    clock: &SharedClock,
    context: &mut Context<'_>,
) -> Poll<io::Result<T>> {
    let deadline = deadline.get_mut();
    if read.is_ready() {
        *deadline = None;
        return read;
    }
    let sleep = deadline.get_or_insert_with(|| clock.sleep(limit));
    ready!(sleep.as_mut().poll(context));
    // It must not be polled again, should the reader try once more.
    *deadline = None;
    Poll::Ready(Err(timed_out("the answer's body")))
}

impl<R: AsyncRead> AsyncRead for IdleLimit<R> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        output: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.project();
        let read = this.reader.poll_read(context, output);
        or_time_out(read, this.deadline, *this.limit, this.clock, context)
    }
}

impl<R: AsyncBufRead> AsyncBufRead for IdleLimit<R> {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.project();
        let read = this.reader.poll_fill_buf(context);
        or_time_out(read, this.deadline, *this.limit, this.clock, context)
    }

    fn consume(self: Pin<&mut Self>, count: usize) {
        self.project().reader.consume(count);
    }
}

/// An answer's body. Read to its end, it gives the connection back to the pool; dropped before, it
/// closes the connection.
pub(super) struct BodyReader {
    pub connection: Option<Connection>,
    pub framing: Framing,
    /// Where the connection goes afterwards; `None`: it is closed.
    pub pool: Option<Arc<Pool>>,
    pub permit: Option<Permit>,
}

impl BodyReader {
    /// Ends the request if the body has no more bytes: gives back its permit, and the connection,
    /// which is closed if there is no pool. A body without a length is never done here: it ends
    /// with the connection.
    pub fn finish_if_done(&mut self) {
        let done = match &self.framing {
            Framing::Length(left) => *left == 0,
            Framing::Chunked(decoder) => decoder.is_done(),
            Framing::UntilClose => false,
        };
        if !done {
            return;
        }
        if let (Some(connection), Some(pool)) = (self.connection.take(), &self.pool) {
            pool.put(connection);
        }
        self.permit = None;
    }

    /// Returns how many bytes of the body are at the front of the connection's buffer; zero at the
    /// end.
    fn poll_data(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        loop {
            let Some(Connection { io, .. }) = self.connection.as_mut() else {
                return Poll::Ready(Ok(0));
            };
            let input = ready!(Pin::new(&mut *io).poll_fill_buf(context))?;
            if input.is_empty() {
                self.connection = None;
                return Poll::Ready(match self.framing {
                    Framing::UntilClose => Ok(0),
                    _ => Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "closed in the middle of the answer's body",
                    )),
                });
            }
            let Piece { coding, data } = match &mut self.framing {
                Framing::UntilClose => Piece { coding: 0, data: input.len() },
                Framing::Length(left) => Piece {
                    coding: 0,
                    data: input.len().min(usize::try_from(*left).unwrap_or(usize::MAX)),
                },
                Framing::Chunked(decoder) => decoder
                    .next(input)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?,
            };
            Pin::new(io).consume(coding);
            self.finish_if_done();
            if data > 0 {
                return Poll::Ready(Ok(data));
            }
        }
    }
}

impl AsyncBufRead for BodyReader {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.get_mut();
        let data = ready!(this.poll_data(context))?;
        let buffer = this.connection.as_ref().map_or(&[][..], |open| open.io.buffer());
        Poll::Ready(Ok(&buffer[..data]))
    }

    /// Passes over bytes of the body; after the last ones the connection goes back to the pool.
    fn consume(self: Pin<&mut Self>, count: usize) {
        let this = self.get_mut();
        if let Some(open) = this.connection.as_mut().filter(|_| count > 0) {
            Pin::new(&mut open.io).consume(count);
            match &mut this.framing {
                Framing::UntilClose => {}
                Framing::Length(left) => *left = left.saturating_sub(count as u64),
                Framing::Chunked(decoder) => decoder.consume(count),
            }
            this.finish_if_done();
        }
    }
}

impl AsyncRead for BodyReader {
    /// Copies bytes of the body out of the connection's buffer.
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        output: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let data = ready!(self.as_mut().poll_fill_buf(context))?;
        let count = data.len().min(output.len());
        output[..count].copy_from_slice(&data[..count]);
        self.consume(count);
        Poll::Ready(Ok(count))
    }
}

#[cfg(test)]
mod tests {
    use async_std::net::TcpStream;
    use futures_lite::AsyncWriteExt;

    use super::*;

    #[test]
    fn only_silence_counts_against_the_limit() {
        use crate::clock::FakeClock;
        use crate::objects::Timestamp;
        use futures_lite::AsyncReadExt;

        let clock = FakeClock::new(Timestamp::from_secs(0));
        let (mut server, body) = async_std::task::block_on(async {
            let listener = async_std::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let body = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            (listener.accept().await.unwrap().0, body)
        });
        let limit = Duration::from_secs(10);
        let mut limited = IdleLimit::new(body, limit, clock.clone());
        async_std::task::block_on(async {
            let mut piece = [0; 4];
            for _ in 0..3 {
                server.write_all(b"more").await.unwrap();
                limited.read_exact(&mut piece).await.unwrap();
                clock.advance(limit);
            }
            let mut read = Box::pin(limited.read(&mut piece));
            assert!(futures_lite::future::poll_once(&mut read).await.is_none());
            clock.advance(limit);
            let error = read.await.expect_err("no byte came in time");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        });
    }
}
