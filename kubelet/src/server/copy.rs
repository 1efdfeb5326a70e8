//! Copies bytes between two connections, both ways at once, in bounded memory.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use event_listener::Event;
use futures_lite::future::{try_zip, yield_now};
use futures_lite::io::split;
use futures_lite::{AsyncRead, AsyncWrite, AsyncWriteExt, FutureExt};
use kube_controller_manager::clock::SharedClock;
use parking_lot::Mutex;

/// Bytes of each direction that are held.
const BUFFER: usize = 64 << 10;
/// Reads that are sent on together: TLS gives a record at a time, of 16 KiB at most.
const READS: usize = 8;
/// How long the second direction may be silent once the first one has ended.
const LINGER: Duration = Duration::from_secs(10);

/// How a copy ended.
#[derive(Debug)]
pub enum End {
    /// Both sides have ended what they send.
    Closed,
    /// One side has gone.
    Broken(io::Error),
    /// No byte came through for this time.
    Idle(Duration),
}

/// Copies bytes between two connections until both have sent their ends, one of them breaks, or no
/// byte comes through for `idle`. An end is passed on. Both connections are closed when it returns
/// or is dropped.
pub async fn copy<A, B>(one: A, other: B, idle: Duration, clock: &SharedClock) -> End
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let activity =
        Activity { clock, state: Mutex::new((clock.monotonic(), idle)), changed: Event::new() };
    let (one_read, one_write) = split(one);
    let (other_read, other_write) = split(other);
    let both = async {
        let there = one_way(one_read, other_write, &activity);
        let back = one_way(other_read, one_write, &activity);
        match try_zip(there, back).await {
            Ok(_) => End::Closed,
            Err(error) => End::Broken(error),
        }
    };
    both.or(activity.watch()).await
}

/// Copies bytes from one side to the other until the first one ends, then closes the other; notes
/// each part as activity.
async fn one_way<R, W>(mut from: R, mut to: W, activity: &Activity<'_>) -> io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut buffer = vec![0; BUFFER];
    loop {
        let (length, end) = read_part(&mut from, &mut buffer).await;
        activity.note_byte();
        let mut rest = &buffer[..length];
        while !rest.is_empty() {
            let written = to.write(rest).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            activity.note_byte();
            rest = &rest[written..];
        }
        // TLS may hold the end of it.
        to.flush().await?;
        if let Some(end) = end {
            end?;
            activity.end_direction();
            return to.close().await;
        }
        // Sockets that are always ready would hold the thread.
        yield_now().await;
    }
}

/// Reads what has come, by `READS` reads at most, as long as `buffer` has room; waits for the first
/// byte. Returns the number of bytes, and the end of the side or its error, if that follows them;
/// else `None`.
async fn read_part<R: AsyncRead + Unpin>(
    from: &mut R,
    buffer: &mut [u8],
) -> (usize, Option<io::Result<()>>) {
    let mut length = 0;
    poll_fn(|cx| {
        for _ in 0..READS {
            if length == buffer.len() {
                break;
            }
            match Pin::new(&mut *from).poll_read(cx, &mut buffer[length..]) {
                Poll::Ready(Ok(0)) => return Poll::Ready((length, Some(Ok(())))),
                Poll::Ready(Ok(read)) => length += read,
                Poll::Ready(Err(error)) => return Poll::Ready((length, Some(Err(error)))),
                Poll::Pending if length == 0 => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        Poll::Ready((length, None))
    })
    .await
}

/// How long ago a byte came through, for the limit of silence.
struct Activity<'a> {
    clock: &'a SharedClock,
    /// When a byte came through last, and how long none may.
    state: Mutex<(Duration, Duration)>,
    changed: Event,
}

impl Activity<'_> {
    fn note_byte(&self) {
        self.state.lock().0 = self.clock.monotonic();
    }

    /// Records that one direction has ended: the other one may be silent for `LINGER` only.
    fn end_direction(&self) {
        let mut state = self.state.lock();
        state.1 = state.1.min(LINGER);
        drop(state);
        self.changed.notify(usize::MAX);
    }

    /// Resolves when no byte came through for too long.
    async fn watch(&self) -> End {
        loop {
            let changed = self.changed.listen();
            let (last, limit) = *self.state.lock();
            let left = (last + limit).saturating_sub(self.clock.monotonic());
            if left.is_zero() {
                return End::Idle(limit);
            }
            changed.or(self.clock.sleep(left)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::sync::Arc;
    use std::task::Context;

    use async_io::Async;
    use futures_lite::AsyncReadExt;
    use futures_lite::future::{block_on, poll_once, zip};
    use kube_controller_manager::clock::{FakeClock, SystemClock};
    use kube_controller_manager::objects::Timestamp;
    use kube_controller_manager::server::http::Socket;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    /// Two ends of a connection.
    fn pair() -> (Socket, Socket) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let one = TcpStream::connect(address).expect("a connection");
        let (other, _) = listener.accept().expect("a connection");
        let [one, other] = [one, other].map(|end| Socket(Async::new(end).expect("a socket")));
        (one, other)
    }

    fn fake() -> (Arc<FakeClock>, SharedClock) {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        (clock.clone(), clock)
    }

    /// Always ready: a number of reads, then its end.
    struct Ready(usize);

    impl AsyncRead for Ready {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            let length = if self.0 == 0 { 0 } else { buffer.len() };
            self.0 = self.0.saturating_sub(1);
            Poll::Ready(Ok(length))
        }
    }

    impl AsyncWrite for Ready {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(buffer.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// Gives parts of these lengths, from the last to the first. `None`: a pause.
    struct Parts(Vec<Option<io::Result<usize>>>);

    impl AsyncRead for Parts {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            self.0.pop().flatten().map_or(Poll::Pending, Poll::Ready)
        }
    }

    #[test]
    fn what_has_come_is_read_together() {
        let reset = || Some(Err(io::ErrorKind::ConnectionReset.into()));
        for (parts, length, end) in [
            (vec![None, Some(Ok(4)), Some(Ok(3))], 7, "None"),
            (vec![Some(Ok(1)), Some(Ok(50)), Some(Ok(50))], 100, "None"),
            (vec![Some(Ok(0)), Some(Ok(3))], 3, "Some(Ok(()))"),
            (vec![reset(), Some(Ok(3))], 3, "Some(Err(Kind(ConnectionReset)))"),
            (vec![Some(Ok(0))], 0, "Some(Ok(()))"),
            ((0..50).map(|_| Some(Ok(1))).collect(), READS, "None"),
        ] {
            let mut parts = Parts(parts);
            let read = block_on(read_part(&mut parts, &mut [0; 100]));
            assert_eq!((read.0, format!("{:?}", read.1)), (length, end.to_owned()));
        }
        assert!(block_on(poll_once(read_part(&mut Parts(vec![None]), &mut [0]))).is_none());
    }

    #[test]
    fn fast_sides_leave_the_thread_to_others() {
        let (_, clock) = fake();
        block_on(async {
            let mut copied = Box::pin(copy(Ready(100), Ready(0), HOUR, &clock));
            assert!(poll_once(&mut copied).await.is_none());
            assert!(matches!(copied.await, End::Closed));
        });
    }

    #[test]
    fn bytes_and_ends_pass_both_ways() {
        let (_, clock) = fake();
        let ((client, near), (far, runtime)) = (pair(), pair());
        block_on(async {
            let copied = copy(near, far, HOUR, &clock);
            let talk = async {
                let (mut client, mut runtime) = (client, runtime);
                client.write_all(b"question").await.expect("sent");
                client.0.get_ref().shutdown(Shutdown::Write).expect("an end");
                let mut text = String::new();
                runtime.read_to_string(&mut text).await.expect("read to its end");
                assert_eq!(text, "question");
                // The other direction is still open.
                runtime.write_all(b"answer").await.expect("sent");
                drop(runtime);
                let mut text = String::new();
                client.read_to_string(&mut text).await.expect("read to its end");
                assert_eq!(text, "answer");
            };
            let (end, ()) = zip(copied, talk).await;
            assert!(matches!(end, End::Closed), "{end:?}");
        });
    }

    #[test]
    fn side_that_goes_away_ends_the_other_one() {
        for client_goes in [true, false] {
            let clock = SystemClock::shared();
            let ((client, near), (far, runtime)) = (pair(), pair());
            let (gone, mut stays) = if client_goes { (client, runtime) } else { (runtime, client) };
            block_on(async {
                let copied = copy(near, far, HOUR, &clock);
                let talk = async {
                    drop(gone);
                    let mut block = vec![0; 1024];
                    // What it still sends has nowhere to go.
                    while stays.write_all(&block).await.is_ok() {}
                    while stays.read(&mut block).await.is_ok_and(|length| length > 0) {}
                };
                let (end, ()) = zip(copied, talk).await;
                assert!(matches!(end, End::Broken(_)), "{end:?}");
            });
        }
    }

    #[test]
    fn silent_streams_end() {
        let (fake, clock) = fake();
        let ((mut client, near), (far, mut runtime)) = (pair(), pair());
        block_on(async {
            let mut copied = Box::pin(copy(near, far, HOUR, &clock));
            assert!(poll_once(&mut copied).await.is_none());
            fake.advance(HOUR - Duration::from_secs(1));
            client.write_all(b"x").await.expect("sent");
            let passed = async {
                let mut byte = [0];
                runtime.read_exact(&mut byte).await.expect("passed on");
                None
            };
            assert!(passed.or(async { Some((&mut copied).await) }).await.is_none());
            fake.advance(HOUR - Duration::from_secs(1));
            assert!(poll_once(&mut copied).await.is_none(), "a byte came through");
            fake.advance(Duration::from_secs(1));
            let end = copied.await;
            assert!(matches!(end, End::Idle(HOUR)), "{end:?}");
            assert_eq!(client.read(&mut [0]).await.expect("an end"), 0);
            assert_eq!(runtime.read(&mut [0]).await.expect("an end"), 0);
        });
    }

    #[test]
    fn half_of_a_stream_does_not_stay() {
        let (fake, clock) = fake();
        let ((client, near), (far, mut runtime)) = (pair(), pair());
        block_on(async {
            let mut copied = Box::pin(copy(near, far, HOUR, &clock));
            client.0.get_ref().shutdown(Shutdown::Write).expect("an end");
            let passed = async {
                assert_eq!(runtime.read(&mut [0]).await.expect("an end"), 0);
                None
            };
            assert!(passed.or(async { Some((&mut copied).await) }).await.is_none());
            let end = advance_to_end(&mut copied, &fake, Duration::from_secs(1)).await;
            assert!(matches!(end, End::Idle(LINGER)), "{end:?}");
        });
    }

    async fn advance_to_end(
        copied: &mut (impl Future<Output = End> + Unpin),
        clock: &FakeClock,
        step: Duration,
    ) -> End {
        loop {
            if let Some(end) = poll_once(&mut *copied).await {
                return end;
            }
            clock.advance(step);
            yield_now().await;
        }
    }

    #[test]
    fn side_that_does_not_read_stops_the_other_one() {
        let (fake, clock) = fake();
        let ((mut client, near), (far, _runtime)) = (pair(), pair());
        block_on(async {
            let mut copied = Box::pin(copy(near, far, HOUR, &clock));
            let block = vec![0; 64 << 10];
            let mut sent = 0;
            // Until all buffers are full: those of both sockets, and one here.
            loop {
                assert!(poll_once(&mut copied).await.is_none());
                let Some(length) = poll_once(client.write(&block)).await else {
                    yield_now().await;
                    assert!(poll_once(&mut copied).await.is_none());
                    match poll_once(client.write(&block)).await {
                        Some(length) => sent += length.expect("sent"),
                        None => break,
                    }
                    continue;
                };
                sent += length.expect("sent");
            }
            assert!(sent < 64 << 20, "{sent}");
            // What is under way in the kernel may still come through.
            let end = advance_to_end(&mut copied, &fake, HOUR / 4).await;
            assert!(matches!(end, End::Idle(HOUR)), "{end:?}");
        });
    }
}
