//! Connections that are reused, and the number of requests under way at once.

use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Waker};
use std::time::Duration;

use async_lock::{Semaphore, SemaphoreGuardArc};
use event_listener::{Event, EventListener, IntoNotification};
use futures_lite::FutureExt;
use futures_lite::io::AsyncBufRead;
use rustls::ClientConfig;

use super::connect::Connection;
use crate::clock::SharedClock;
use crate::task;

/// Requests under way before a further one prefers to wait: a TLS handshake costs both sides more
/// than many requests. At a busy API server a client with fewer gets less of it than others.
const POOL_SIZE: usize = 96;
/// How long a request waits for one of the first [`POOL_SIZE`] to end. The wait has a limit so that
/// slow answers do not block other requests.
const WAIT_FOR_CONNECTION: Duration = Duration::from_millis(500);
/// Requests that may be under way beyond [`POOL_SIZE`], once they have waited.
const OVERFLOW: usize = 32;
/// Connections that are opened at once. More are opened when no request ends soon.
const DIALS: usize = 4;
/// Shorter than the 90 s after which the API server closes an idle connection.
const IDLE_LIFETIME: Duration = Duration::from_secs(75);

/// The idle connections to one server, and the permits of requests.
pub(super) struct Pool {
    idle: Mutex<Idle>,
    /// The permits of the first [`POOL_SIZE`] requests.
    in_use: Arc<Semaphore>,
    /// For requests that have waited for `in_use`.
    overflow: Arc<Semaphore>,
    clock: SharedClock,
    /// A connection has become idle.
    returned: Event,
    /// The permits to open a connection: [`DIALS`] at once.
    dial_slots: Arc<Semaphore>,
}

/// The idle connections, under the lock of the pool.
#[derive(Default)]
struct Idle {
    /// Each with the time at which it became idle, the oldest first.
    connections: Vec<(Connection, Duration)>,
    /// Whether a task closes idle connections.
    is_reaped: bool,
}

/// A permit: a request may be under way while this exists.
#[expect(dead_code, reason = "held for its drop")]
pub(super) struct Permit(SemaphoreGuardArc);

impl Pool {
    pub fn new(clock: SharedClock) -> Pool {
        let (in_use, overflow) = (Semaphore::new(POOL_SIZE), Semaphore::new(OVERFLOW));
        let (in_use, overflow) = (Arc::new(in_use), Arc::new(overflow));
        let (returned, dial_slots) = (Event::new(), Arc::new(Semaphore::new(DIALS)));
        Pool { idle: Mutex::default(), in_use, overflow, clock, returned, dial_slots }
    }

    /// Waits until one more request may be under way; after [`WAIT_FOR_CONNECTION`] also by the
    /// [`OVERFLOW`], so that slow answers do not block others. May be dropped at any time.
    pub async fn permit(&self) -> Permit {
        let late = async {
            self.clock.sleep(WAIT_FOR_CONNECTION).await;
            self.overflow.acquire_arc().await
        };
        Permit(self.in_use.acquire_arc().or(late).await)
    }

    /// Takes an idle connection that was made with `tls`. Those made with another configuration are
    /// closed: the client certificate or the trusted authorities have changed since. `None`: no
    /// idle connection is still open.
    pub fn take(&self, tls: Option<&Arc<ClientConfig>>) -> Option<Connection> {
        let now = self.clock.monotonic();
        let mut idle = self.idle.lock();
        idle.connections.retain(|(connection, since)| {
            let same = match (&connection.tls, tls) {
                (Some(one), Some(other)) => Arc::ptr_eq(one, other),
                (one, other) => one.is_none() && other.is_none(),
            };
            same && now < *since + IDLE_LIFETIME
        });
        while let Some((mut connection, _)) = idle.connections.pop() {
            // Readable before a request was sent: the server has closed it.
            let mut context = Context::from_waker(Waker::noop());
            if Pin::new(&mut connection.io).poll_fill_buf(&mut context).is_pending() {
                return Some(connection);
            }
        }
        None
    }

    /// Returns a future that resolves when a connection has become idle since this call. Of those
    /// who wait, each connection wakes one; one who is dropped passes the notification on.
    pub fn returned(&self) -> EventListener {
        self.returned.listen()
    }

    /// Takes a permit to open one more connection; `None` while several are being opened.
    pub fn dial_slot(&self) -> Option<SemaphoreGuardArc> {
        self.dial_slots.try_acquire_arc()
    }

    /// Keeps a connection for another request, if there is room. One with unread bytes is closed.
    pub fn put(self: &Arc<Self>, connection: Connection) {
        let mut idle = self.idle.lock();
        if connection.io.buffer().is_empty() && idle.connections.len() < POOL_SIZE + OVERFLOW {
            idle.connections.push((connection, self.clock.monotonic()));
            self.returned.notify(1.additional());
            if !idle.is_reaped {
                idle.is_reaped = true;
                task::spawn(reap(Arc::downgrade(self), self.clock.clone()));
            }
        }
    }
}

/// Closes connections that are idle for too long, also while there are no requests. Ends with the
/// last of them.
async fn reap(pool: Weak<Pool>, clock: SharedClock) {
    loop {
        clock.sleep(IDLE_LIFETIME).await;
        let Some(pool) = pool.upgrade() else { return };
        let now = clock.monotonic();
        let mut idle = pool.idle.lock();
        idle.connections.retain(|(_, since)| now < *since + IDLE_LIFETIME);
        if idle.connections.is_empty() {
            idle.connections = Vec::new();
            idle.is_reaped = false;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use async_std::net::{TcpListener, TcpStream};
    use futures_lite::AsyncReadExt;
    use futures_lite::future::{block_on, poll_once, yield_now};

    use super::super::connect::testing::plain;
    use super::*;
    use crate::clock::{FakeClock, SystemClock};
    use crate::objects::Timestamp;

    #[test]
    fn an_idle_connection_is_closed_without_a_request() {
        async_std::task::block_on(async {
            let clock = FakeClock::new(Timestamp::from_secs(0));
            let pool = Arc::new(Pool::new(clock.clone()));
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let mut server = listener.accept().await.unwrap().0;
            pool.put(plain(stream));
            let found = pool.take(None).expect("it was put there");
            pool.put(found);
            // The task that closes it waits.
            sleepers(&clock, 1).await;
            clock.advance(IDLE_LIFETIME);
            assert_eq!(server.read(&mut [0; 8]).await.unwrap(), 0, "it is closed");
            assert!(pool.take(None).is_none());
        });
    }

    /// Waits until `count` tasks sleep.
    async fn sleepers(clock: &FakeClock, count: usize) {
        let time = SystemClock::shared();
        let began = time.monotonic();
        while clock.sleepers() != count {
            let waited = time.monotonic() - began;
            let sleepers = clock.sleepers();
            assert!(waited < Duration::from_secs(60), "{sleepers} tasks sleep, not {count}");
            yield_now().await;
        }
    }

    #[test]
    fn requests_under_way_are_bounded() {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let pool = Pool::new(clock.clone());
        let mut under_way: Vec<Permit> = (0..POOL_SIZE).map(|_| block_on(pool.permit())).collect();
        // The next one waits, and takes the place of the first to end.
        let mut next = Box::pin(pool.permit());
        assert!(block_on(poll_once(&mut next)).is_none());
        under_way.pop();
        under_way.push(block_on(poll_once(&mut next)).expect("a permit is free"));
        // When no request ends, it is sent after a while.
        for _ in 0..OVERFLOW {
            let mut next = Box::pin(pool.permit());
            assert!(block_on(poll_once(&mut next)).is_none());
            clock.advance(WAIT_FOR_CONNECTION);
            under_way.push(block_on(poll_once(&mut next)).expect("it has waited"));
        }
        for freed in [0, POOL_SIZE] {
            let mut next = Box::pin(pool.permit());
            for _ in 0..100 {
                assert!(block_on(poll_once(&mut next)).is_none());
                clock.advance(WAIT_FOR_CONNECTION);
            }
            drop(under_way.remove(freed));
            let permit = block_on(poll_once(&mut next)).expect("a permit is free");
            under_way.insert(freed, permit);
        }
    }
}
