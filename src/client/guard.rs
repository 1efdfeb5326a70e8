//! Passes or refuses the writes of a client, and counts those under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// How long the API server may work on a request. A write that was sent and got no answer may be
/// carried out until then. Upstream: `--request-timeout`.
const SERVER_LIMIT: Duration = Duration::from_secs(60);

/// Decides whether a write may still be made: when it begins, and again before its first byte is
/// sent. A refused write fails with [`Error::GuardRefused`](super::Error::GuardRefused). Clones
/// share one state. It cannot stop a write that has been sent. Upstream has no counterpart.
#[derive(Clone)]
pub struct Guard {
    state: Arc<State>,
    /// Whether its writes count as under way.
    counts: bool,
}

struct State {
    may_write: Box<dyn Fn() -> bool + Send + Sync>,
    /// Set by [`Guard::close`]: nothing passes any more.
    closed: AtomicBool,
    /// Writes that were sent and have neither been answered nor failed. One that got no answer in
    /// the client's time is over: the API server's own limit, a minute, is shorter.
    under_way: AtomicUsize,
    /// The time, in monotonic milliseconds, after which no write of unknown result can be under
    /// way.
    unsure_until: AtomicU64,
}

impl Guard {
    /// Makes a guard that passes writes while `may_write` returns true. It is called for each
    /// write, from any task, and must not wait.
    pub fn new(may_write: impl Fn() -> bool + Send + Sync + 'static) -> Guard {
        let state = State {
            may_write: Box::new(may_write),
            closed: AtomicBool::new(false),
            under_way: AtomicUsize::new(0),
            unsure_until: AtomicU64::new(0),
        };
        Guard { state: Arc::new(state), counts: true }
    }

    /// Returns the guard of writes that do no harm when they are late, such as events: they are
    /// refused as well, but do not count as under way.
    pub fn uncounted(&self) -> Guard {
        Guard { counts: false, ..self.clone() }
    }

    /// Refuses all further writes, for good. Returns whether none is under way, so that the
    /// server can carry out no counted write that passed before. It may be called again to ask. A
    /// write whose future was dropped after it was sent is under way for ever, since its answer is
    /// not read. One whose connection broke is under way for a minute, the server's limit. `now` is
    /// monotonic time.
    pub fn close(&self, now: Duration) -> bool {
        self.state.closed.store(true, Ordering::SeqCst);
        self.state.under_way.load(Ordering::SeqCst) == 0
            && self.state.unsure_until.load(Ordering::SeqCst) <= millis(now)
    }

    /// Returns whether a write may be made now.
    pub(super) fn passes(&self) -> bool {
        !self.state.closed.load(Ordering::SeqCst) && (self.state.may_write)()
    }

    /// Counts a write that is sent now; returns `false`, and does not count it, if it is refused.
    /// The caller calls [`Guard::end`] or [`Guard::end_unsure`] after the answer or the failure.
    pub(super) fn begin(&self) -> bool {
        // Counted first: a close at the same time either is seen here or sees this write.
        if self.counts {
            self.state.under_way.fetch_add(1, Ordering::SeqCst);
        }
        let passes = self.passes();
        if !passes {
            self.end();
        }
        passes
    }

    /// Ends the count of a write that was answered, or that the server can no longer carry out.
    pub(super) fn end(&self) {
        if self.counts {
            self.state.under_way.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Ends the count of a write as [`Guard::end`] does, if the server may still carry the write
    /// out: the connection broke before the answer. `now`: monotonic.
    pub(super) fn end_unsure(&self, now: Duration) {
        if self.counts {
            let until = millis(now + SERVER_LIMIT);
            self.state.unsure_until.fetch_max(until, Ordering::SeqCst);
        }
        self.end();
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use async_std::net::TcpListener;
    use futures_lite::future::{block_on, or, zip};
    use futures_lite::{AsyncReadExt, AsyncWriteExt};

    use super::super::call::Call;
    use super::super::{Client, Config, Error};
    use super::*;
    use crate::clock::{Clock, FakeClock, SystemClock};
    use crate::objects::Timestamp;

    #[test]
    fn a_closed_guard_knows_the_writes_without_an_answer() {
        block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = listener.local_addr().expect("its number");
            let config = Config::new(format!("http://{address}"));
            let client = Client::new(config, SystemClock::shared()).expect("a client");
            let write = async |client: &Client| client.send(&Call::new("POST", "/x")).await;
            let received = async || {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                assert!(stream.read(&mut [0; 4096]).await.expect("a request") > 0);
                stream
            };
            for dropped in [false, true] {
                let guard = Guard::new(|| true);
                let client = client.guarded(guard.clone());
                let mut writing = Box::pin(write(&client));
                let early = async {
                    (&mut writing).await.expect_err("no answer");
                    unreachable!("nothing was answered")
                };
                let mut stream = or(received(), early).await;
                assert!(!guard.close(Duration::ZERO), "a write is under way");
                match dropped {
                    true => drop(writing),
                    false => {
                        let answer =
                            b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
                        stream.write_all(answer).await.expect("sent");
                        assert!(writing.await.is_ok());
                    }
                }
                assert_eq!(guard.close(Duration::ZERO), !dropped);
                let refused = write(&client).await;
                assert!(matches!(refused, Err(Error::GuardRefused { .. })), "{refused:?}");
                assert_eq!(
                    guard.close(Duration::ZERO),
                    !dropped,
                    "what was held back is not under way"
                );
            }
        });
    }

    #[test]
    fn a_write_whose_connection_breaks_is_unsure_for_the_servers_time() {
        const GATEWAY_TIMEOUT: &str = "HTTP/1.1 504 Gateway Timeout\r\nconnection: close\r\n\r\n";
        block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = listener.local_addr().expect("its number");
            let config = Config::new(format!("http://{address}"));
            let clock = FakeClock::new(Timestamp::from_secs(0));
            let client = Client::new(config, clock.clone()).expect("a client");
            for (counts, answer) in [(true, None), (true, Some(GATEWAY_TIMEOUT)), (false, None)] {
                let guard = Guard::new(|| true);
                let used = if counts { guard.clone() } else { guard.uncounted() };
                let client = client.guarded(used);
                let answering = async {
                    let (mut stream, _) = listener.accept().await.expect("a connection");
                    assert!(stream.read(&mut [0; 4096]).await.expect("a request") > 0);
                    if let Some(answer) = answer {
                        stream.write_all(answer.as_bytes()).await.expect("sent");
                    }
                };
                let call = Call::new("POST", "/x");
                let (failed, ()) = zip(client.send(&call), answering).await;
                assert!(failed.is_err());
                let now = clock.monotonic();
                assert_eq!(guard.close(now), !counts, "{answer:?}");
                assert!(guard.close(now + SERVER_LIMIT), "{answer:?}");
            }
        });
    }

    #[test]
    fn a_write_that_fails_or_is_refused_is_not_under_way() {
        block_on(async {
            let config = Config::new("http://127.0.0.1:1".to_owned());
            let client = Client::new(config, SystemClock::shared()).expect("a client");
            for allowed in [true, false] {
                let guard = Guard::new(move || allowed);
                let failed = client.guarded(guard.clone()).send(&Call::new("POST", "/x")).await;
                let held_back = matches!(failed, Err(Error::GuardRefused { .. }));
                assert_eq!((failed.is_err(), held_back), (true, !allowed));
                assert!(guard.close(Duration::ZERO));
            }
        });
    }
}
