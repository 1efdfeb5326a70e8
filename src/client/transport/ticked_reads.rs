//! Reads answers at ticks during a storm of requests, so that the thread wakes once for all answers
//! that have arrived since the last tick.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_std::net::TcpStream;
use futures_lite::io::{AsyncRead, AsyncWrite};
use parking_lot::Mutex;
use rustix::net::RecvFlags;

use crate::client::rate::until_tick;
use crate::clock::{SharedClock, Sleep};
use crate::storm::Storm;

/// The number of requests under way from which answers in a storm are read at ticks.
const MANY: usize = 8;
/// After this many ticks without an answer, the reader waits for the socket.
const TICKS: u32 = 8;

/// How many requests are under way, and whether there is a storm of them.
#[derive(Default)]
pub(super) struct Traffic {
    under_way: AtomicUsize,
    storm: Storm,
}

/// Counts a request as under way while this exists.
pub(super) struct UnderWay(Arc<Traffic>);

impl Traffic {
    /// `now`: monotonic.
    pub fn begin(self: &Arc<Self>, now: Duration) -> UnderWay {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        self.storm.count(now, 1);
        UnderWay(self.clone())
    }

    fn is_heavy(&self, now: Duration) -> bool {
        self.under_way.load(Ordering::Relaxed) >= MANY && self.storm.is_on(now)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) struct TickedReads {
    tcp: TcpStream,
    traffic: Arc<Traffic>,
    clock: SharedClock,
    /// The wait for the next tick. The lock makes it `Sync`.
    tick: Mutex<Option<Sleep>>,
    /// The number of ticks waited for since the last write; [`TICKS`] once the answer has begun,
    /// which ends the waiting.
    ticks: u32,
}

impl TickedReads {
    pub fn new(tcp: TcpStream, traffic: Arc<Traffic>, clock: SharedClock) -> TickedReads {
        TickedReads { tcp, traffic, clock, tick: Mutex::default(), ticks: 0 }
    }
}

impl AsyncRead for TickedReads {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        output: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            if let Some(tick) = self.tick.get_mut() {
                ready!(tick.as_mut().poll(context));
                *self.tick.get_mut() = None;
            }
            if !self.traffic.is_heavy(self.clock.monotonic()) || self.ticks >= TICKS {
                let read = ready!(Pin::new(&mut self.tcp).poll_read(context, output));
                // The answer has begun. Without ticks from here on, the pool sees at once whether
                // the server has closed the connection.
                self.ticks = TICKS;
                return Poll::Ready(read);
            }
            // Right after its request is written there is no answer yet.
            if self.ticks > 0 {
                match rustix::net::recv(&self.tcp, &mut *output, RecvFlags::DONTWAIT) {
                    Err(rustix::io::Errno::AGAIN) => {}
                    Err(rustix::io::Errno::INTR) => continue,
                    read => {
                        self.ticks = TICKS;
                        return Poll::Ready(read.map(|(count, _)| count).map_err(io::Error::from));
                    }
                }
            }
            self.ticks += 1;
            let wait = until_tick(self.clock.monotonic());
            *self.tick.get_mut() = Some(self.clock.sleep(wait));
        }
    }
}

impl AsyncWrite for TickedReads {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.ticks = 0;
        Pin::new(&mut self.tcp).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.ticks = 0;
        Pin::new(&mut self.tcp).poll_write_vectored(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(context)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_close(context)
    }
}

#[cfg(test)]
mod tests {
    use async_std::net::TcpListener;
    use futures_lite::future::{block_on, poll_once};
    use futures_lite::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::client::rate::GRID;
    use crate::clock::{Clock, FakeClock};
    use crate::objects::Timestamp;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (ours, listener.accept().await.unwrap().0)
    }

    fn storm() -> (Arc<FakeClock>, Arc<Traffic>) {
        let (clock, traffic) = (FakeClock::new(Timestamp::default()), Arc::<Traffic>::default());
        traffic.storm.count(clock.monotonic(), 1_000_000);
        (clock, traffic)
    }

    fn under_way(traffic: &Arc<Traffic>, requests: usize) -> Vec<UnderWay> {
        (0..requests).map(|_| traffic.begin(Duration::ZERO)).collect()
    }

    #[test]
    fn a_burst_of_requests_is_no_storm() {
        let traffic = Arc::<Traffic>::default();
        let requests = under_way(&traffic, 500);
        assert!(!traffic.is_heavy(Duration::ZERO));
        drop(requests);
        let _many = under_way(&traffic, 600);
        assert!(traffic.is_heavy(Duration::ZERO));
    }

    #[test]
    fn answers_among_many_are_read_at_ticks_and_others_at_once() {
        block_on(async {
            for (requests, waits) in [(MANY - 1, false), (MANY, true)] {
                let (tcp, mut peer) = pair().await;
                let (clock, traffic) = storm();
                let under_way = under_way(&traffic, requests);
                let mut patient = TickedReads::new(tcp.clone(), traffic, clock.clone());
                let mut byte = [0];
                let mut read = patient.read(&mut byte);
                assert!(poll_once(&mut read).await.is_none(), "nothing has come");
                peer.write_all(b"a").await.unwrap();
                tcp.peek(&mut [0]).await.unwrap();
                assert_eq!(poll_once(&mut read).await.is_none(), waits);
                if waits {
                    clock.advance(GRID);
                    assert_eq!(poll_once(&mut read).await.expect("a tick").unwrap(), 1);
                }
                drop(under_way);
            }
        });
    }

    #[test]
    fn a_silent_connection_is_read_at_once_and_one_with_a_request_at_ticks() {
        block_on(async {
            let (tcp, mut peer) = pair().await;
            let (clock, traffic) = storm();
            let mut patient = TickedReads::new(tcp.clone(), Arc::clone(&traffic), clock.clone());
            let mut byte = [0];
            patient.write_all(b"ask").await.unwrap();
            peer.write_all(b"a").await.unwrap();
            assert_eq!(patient.read(&mut byte).await.unwrap(), 1);

            let _under_way = under_way(&traffic, MANY);
            patient.write_all(b"ask").await.unwrap();
            peer.write_all(b"b").await.unwrap();
            tcp.peek(&mut [0]).await.unwrap();
            let mut read = patient.read(&mut byte);
            assert!(poll_once(&mut read).await.is_none(), "the answer waits for the first tick");
            clock.advance(GRID);
            assert_eq!(poll_once(&mut read).await.expect("a tick").unwrap(), 1);

            // As the pool finds out whether the server has closed it.
            peer.shutdown(std::net::Shutdown::Write).unwrap();
            tcp.peek(&mut [0]).await.unwrap();
            let mut read = patient.read(&mut byte);
            assert_eq!(poll_once(&mut read).await.expect("at once").unwrap(), 0);
        });
    }

    #[test]
    fn a_connection_that_was_quick_is_read_at_once_in_a_burst() {
        block_on(async {
            let (tcp, mut peer) = pair().await;
            let (clock, traffic) = storm();
            let mut patient = TickedReads::new(tcp.clone(), Arc::clone(&traffic), clock.clone());
            let mut byte = [0];
            patient.write_all(b"ask").await.unwrap();
            peer.write_all(b"a").await.unwrap();
            assert_eq!(patient.read(&mut byte).await.unwrap(), 1);
            let _under_way = under_way(&traffic, MANY);
            peer.shutdown(std::net::Shutdown::Write).unwrap();
            tcp.peek(&mut [0]).await.unwrap();
            let mut read = patient.read(&mut byte);
            assert_eq!(poll_once(&mut read).await.expect("at once").unwrap(), 0, "closed");
        });
    }

    #[test]
    fn an_answer_that_takes_long_wakes_its_reader() {
        block_on(async {
            let (tcp, mut peer) = pair().await;
            let (clock, traffic) = storm();
            let _under_way = under_way(&traffic, MANY);
            let mut patient = TickedReads::new(tcp, traffic, clock.clone());
            let mut bytes = [0; 2];
            for text in [b"a", b"b"] {
                patient.write_all(b"ask").await.unwrap();
                let mut read = patient.read(&mut bytes);
                for _ in 0..TICKS {
                    assert!(poll_once(&mut read).await.is_none());
                    clock.advance(GRID);
                }
                assert!(poll_once(&mut read).await.is_none());
                peer.write_all(text).await.unwrap();
                assert_eq!(read.await.unwrap(), 1, "no tick comes any more");
            }
            peer.write_all(b"c").await.unwrap();
            assert_eq!(patient.read(&mut bytes).await.unwrap(), 1, "more of the answer");
            peer.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(patient.read(&mut bytes).await.unwrap(), 0);
        });
    }
}
