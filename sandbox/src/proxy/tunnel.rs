//! Copies bytes between two connections.

use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_lite::future::{or, yield_now};
use futures_lite::io::split;
use futures_lite::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::backend::ByteStream;
use kube_controller_manager::clock::SharedClock;

/// The buffer of each direction.
const BUFFER_BYTES: usize = 16 << 10;
/// After the end of one direction, the longest time without bytes in the other. A peer that has
/// gone without closing its half would hold the connection for ever.
const HALF_OPEN: Duration = Duration::from_secs(30);

/// Copies both ways until both sides have ended. The end of one direction ends that half of the
/// other connection, and the opposite direction continues. Upstream ends both with the first.
///
/// # Errors
/// The first error of either side, which ends both; `TimedOut` when one direction has ended and the
/// other has had no bytes for `HALF_OPEN`.
pub async fn tunnel(
    client: impl ByteStream,
    backend: impl ByteStream,
    clock: &SharedClock,
) -> io::Result<()> {
    let (from_client, to_client) = split(client);
    let (from_backend, to_backend) = split(backend);
    let copied = AtomicU64::new(0);
    let mut up = pin!(copy(from_client, to_backend, &copied));
    let mut down = pin!(copy(from_backend, to_client, &copied));
    let client_ended = or(async { up.as_mut().await.map(|()| true) }, async {
        down.as_mut().await.map(|()| false)
    })
    .await?;
    let idle = async {
        loop {
            let before = copied.load(Ordering::Relaxed);
            clock.sleep(HALF_OPEN).await;
            if copied.load(Ordering::Relaxed) == before {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    };
    match client_ended {
        true => or(down, idle).await,
        false => or(up, idle).await,
    }
}

/// Copies bytes until the source ends, then closes the target. `copied` counts the pieces.
async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    copied: &AtomicU64,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let count = match from.read(&mut buffer).await {
            Ok(count) => count,
            // A TLS connection that ends without a closing alert.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => 0,
            Err(error) => return Err(error),
        };
        if count == 0 {
            return to.close().await;
        }
        to.write_all(&buffer[..count]).await?;
        // TLS may keep the last record.
        to.flush().await?;
        copied.fetch_add(1, Ordering::Relaxed);
        // Sockets that are always ready would hold the thread.
        yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use async_io::Async;
    use futures_lite::future::{block_on, poll_once};

    use super::*;
    use kube_controller_manager::clock::FakeClock;
    use kube_controller_manager::objects::Timestamp;
    use kube_controller_manager::server::http::Socket;

    fn pair() -> (Async<TcpStream>, Socket) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        (Async::new(client).unwrap(), Socket(Async::new(server).unwrap()))
    }

    #[test]
    fn each_direction_ends_by_itself() {
        let (mut client, near) = pair();
        let (mut backend, far) = pair();
        let clock: SharedClock = FakeClock::new(Timestamp::from_secs(0));
        let work = async {
            client.write_all(b"question").await.unwrap();
            client.get_ref().shutdown(Shutdown::Write).unwrap();
            let mut text = String::new();
            backend.read_to_string(&mut text).await.unwrap();
            assert_eq!(text, "question");
            backend.write_all(b"answer").await.unwrap();
            drop(backend);
            client.read_to_string(&mut text).await.unwrap();
            assert_eq!(text, "answer");
        };
        let (ended, ()) = block_on(futures_lite::future::zip(tunnel(near, far, &clock), work));
        ended.unwrap();
    }

    #[test]
    fn a_half_open_tunnel_ends_when_nothing_moves() {
        let (client, near) = pair();
        let (mut backend, far) = pair();
        let fake = FakeClock::new(Timestamp::from_secs(0));
        let clock: SharedClock = fake.clone();
        block_on(async {
            let mut tunnel = Box::pin(tunnel(near, far, &clock));
            client.get_ref().shutdown(Shutdown::Write).unwrap();
            let mut byte = [0];
            let ended = async { backend.read(&mut byte).await.unwrap() };
            let ended = or(async { Some(ended.await) }, async {
                (&mut tunnel).await.unwrap();
                None
            });
            assert_eq!(ended.await, Some(0));
            // Bytes prolong it, and silence ends it.
            assert!(poll_once(&mut tunnel).await.is_none());
            backend.write_all(b"a").await.unwrap();
            let mut client = client;
            let moved = or(async { Some(client.read(&mut byte).await.unwrap()) }, async {
                (&mut tunnel).await.unwrap();
                None
            });
            assert_eq!(moved.await, Some(1));
            fake.advance(HALF_OPEN);
            assert!(poll_once(&mut tunnel).await.is_none());
            fake.advance(HALF_OPEN);
            let late = tunnel.await.unwrap_err();
            assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        });
    }

    #[test]
    fn a_side_that_does_not_read_stops_the_other() {
        let (mut client, near) = Async::<UnixStream>::pair().unwrap();
        let (far, backend) = Async::<UnixStream>::pair().unwrap();
        let clock: SharedClock = FakeClock::new(Timestamp::from_secs(0));
        block_on(async {
            let mut tunnel = Box::pin(tunnel(near, far, &clock));
            let chunk = [b'x'; 4096];
            let (mut sent, mut refused) = (0, 0);
            // The sockets have buffers too; a tunnel with an unbounded one would take all.
            while sent < 64 << 20 && refused < 3 {
                match poll_once(client.write(&chunk)).await {
                    Some(count) => (sent, refused) = (sent + count.unwrap(), 0),
                    None => refused += 1,
                }
                assert!(poll_once(&mut tunnel).await.is_none());
            }
            assert!(sent < 8 << 20, "{sent}");
            drop(backend);
            assert!(tunnel.await.is_err());
        });
    }
}
