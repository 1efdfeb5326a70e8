//! A TCP proxy before the API server, whose connections are disturbed on purpose. It sees encrypted
//! bytes, so a cut may come at any byte of a head, a body or a handshake.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_io::Async;
use event_listener::Event;
use futures_lite::future::or;
use futures_lite::{AsyncReadExt, AsyncWriteExt};
use parking_lot::Mutex;
use rustix::net::sockopt::set_socket_linger;

use super::plan::Impairment;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::task::{self, StopToken, TaskGroup};

const BUFFER_BYTES: usize = 16 << 10;

/// A running proxy.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: StopToken,
    tasks: TaskGroup,
}

struct Shared {
    target: SocketAddr,
    clock: SharedClock,
    state: Mutex<State>,
    changed: Event,
}

#[derive(Clone, Copy, Default)]
struct State {
    impairment: Option<Impairment>,
    /// How often impairments have begun; the bytes before a cut are counted from the last one.
    begun: u64,
    /// How often all connections were reset.
    cuts: u64,
}

/// The direction of bytes.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    ToServer,
    ToManager,
}

impl State {
    fn stalls(&self, way: Way) -> bool {
        match self.impairment {
            Some(Impairment::Stall) => true,
            Some(Impairment::StallAnswers) => way == Way::ToManager,
            _ => false,
        }
    }

    fn refuses(&self) -> bool {
        self.impairment == Some(Impairment::Refuse)
    }

    /// Returns the most bytes to pass at once, and the milliseconds to wait after them.
    fn pace(&self, way: Way) -> (usize, u64) {
        match self.impairment {
            Some(Impairment::Slow { bytes, pause }) if way == Way::ToManager => {
                (bytes.clamp(1, BUFFER_BYTES), pause)
            }
            _ => (BUFFER_BYTES, 0),
        }
    }
}

impl Proxy {
    /// Listens on a free port of the loopback address, and passes its connections on to `target`.
    pub fn start(target: SocketAddr, clock: &SharedClock) -> io::Result<Proxy> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let (clock, stop, tasks) = (clock.clone(), StopToken::new(), TaskGroup::new());
        let (state, changed) = (Mutex::default(), Event::new());
        let shared = Arc::new(Shared { target, clock, state, changed });
        let (serving, until) = (shared.clone(), stop.clone());
        tasks.spawn(async move {
            until.unless_stopped(serving.serve(listener, address, until.clone())).await;
        });
        Ok(Proxy { address, shared, stop, tasks })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Begins an impairment, which replaces the former one. To refuse connections also resets those
    /// that exist.
    pub fn impair(&self, impairment: Impairment) {
        self.shared.change(|state| {
            state.impairment = Some(impairment);
            state.begun += 1;
            state.cuts += u64::from(impairment == Impairment::Refuse);
        });
    }

    /// Ends the impairment. `cut`: the connections are reset.
    pub fn clear(&self, cut: bool) {
        self.shared.change(|state| {
            state.impairment = None;
            state.cuts += u64::from(cut);
        });
    }

    /// Stops listening, and ends all connections; does not wait for the latter.
    pub async fn stop(self) {
        self.stop.stop();
        self.tasks.join().await;
    }
}

impl Shared {
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        task::notify_all(&self.changed);
    }

    /// Waits until `met` returns true for the state.
    async fn wait_until(&self, met: impl Fn(&State) -> bool) {
        loop {
            let changed = self.changed.listen();
            if met(&self.state.lock()) {
                return;
            }
            changed.await;
        }
    }

    /// Accepts connections. While they are refused there is no listener.
    async fn serve(self: Arc<Self>, first: TcpListener, address: SocketAddr, stop: StopToken) {
        let mut listener = Some(first);
        loop {
            self.wait_until(|state| !state.refuses()).await;
            let bound = listener.take().map_or_else(|| TcpListener::bind(address), Ok);
            let Ok(open) = bound.and_then(Async::new) else {
                self.clock.sleep(Duration::from_millis(20)).await;
                continue;
            };
            let refused = async {
                self.wait_until(State::refuses).await;
            };
            or(self.accept(open, &stop), refused).await;
        }
    }

    /// Accepts the connections of managers, and passes each one on in a task of its own.
    async fn accept(self: &Arc<Self>, listener: Async<TcpListener>, stop: &StopToken) {
        loop {
            let Ok((manager, _)) = listener.accept().await else {
                self.clock.sleep(Duration::from_millis(20)).await;
                continue;
            };
            let (this, until) = (self.clone(), stop.clone());
            drop(task::spawn(async move { until.unless_stopped(this.carry(manager)).await }));
        }
    }

    /// Connects a manager to the server, and passes their bytes until one side ends the connection
    /// or it is cut.
    async fn carry(self: Arc<Self>, manager: Async<TcpStream>) {
        let cuts = self.state.lock().cuts;
        self.wait_until(|state| !state.stalls(Way::ToServer) || state.cuts != cuts).await;
        let Ok(server) = Async::<TcpStream>::connect(self.target).await else { return };
        let _ = (manager.get_ref().set_nodelay(true), server.get_ref().set_nodelay(true));
        let passed = AtomicUsize::new(0);
        let up = self.pump(&manager, &server, Way::ToServer, &passed);
        let down = self.pump(&server, &manager, Way::ToManager, &passed);
        let cut = async {
            self.wait_until(|state| state.cuts != cuts).await;
            true
        };
        if or(or(up, down), cut).await {
            // With this option a close is a reset.
            for socket in [&manager, &server] {
                let _ = set_socket_linger(socket.get_ref(), Some(Duration::ZERO));
            }
        }
    }

    /// Passes bytes from one socket to the other until an end closes; returns whether the
    /// connection must be reset. The state's impairment slows, stalls or cuts it meanwhile.
    /// `passed`: the bytes of both ways.
    async fn pump(
        &self,
        mut from: &Async<TcpStream>,
        mut to: &Async<TcpStream>,
        way: Way,
        passed: &AtomicUsize,
    ) -> bool {
        let mut buffer = vec![0; BUFFER_BYTES];
        // The number of the impairment, and the bytes that had passed when it was noticed.
        let (mut number, mut bytes_before) = (0, 0);
        loop {
            let most = self.state.lock().pace(way).0;
            let read = match from.read(&mut buffer[..most]).await {
                Ok(0) => return false,
                Ok(read) => read,
                Err(_) => return true,
            };
            self.wait_until(|state| !state.stalls(way)).await;
            let state = *self.state.lock();
            if state.begun != number {
                (number, bytes_before) = (state.begun, passed.load(Ordering::Relaxed));
            }
            let before = passed.fetch_add(read, Ordering::Relaxed);
            let allowed = match state.impairment {
                Some(Impairment::CutAfter(bytes)) => (bytes_before + bytes).saturating_sub(before),
                _ => usize::MAX,
            };
            if to.write_all(&buffer[..read.min(allowed)]).await.is_err() || allowed < read {
                return true;
            }
            let pause = state.pace(way).1;
            if pause > 0 {
                self.clock.sleep(Duration::from_millis(pause)).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;
    use kube_controller_manager::clock::SystemClock;

    use super::*;

    /// A connection through a proxy: the manager's end, and the server's.
    async fn connected(
        proxy: &Proxy,
        server: &Async<TcpListener>,
    ) -> (Async<TcpStream>, Async<TcpStream>) {
        let manager = Async::<TcpStream>::connect(proxy.address()).await.expect("connected");
        let (served, _) = server.accept().await.expect("accepted");
        (manager, served)
    }

    fn started() -> (Async<TcpListener>, Proxy) {
        let server = Async::<TcpListener>::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let target = server.get_ref().local_addr().expect("its address");
        let proxy = Proxy::start(target, &SystemClock::shared()).expect("a proxy");
        (server, proxy)
    }

    async fn read(stream: &mut Async<TcpStream>, bytes: usize) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; bytes];
        stream.read_exact(&mut buffer).await.map(|()| buffer)
    }

    #[test]
    fn a_connection_is_cut_at_the_byte_that_is_asked_for() {
        block_on(async {
            let (server, proxy) = started();
            for bytes in [0, 1, 7, 20] {
                let (mut manager, mut served) = connected(&proxy, &server).await;
                manager.write_all(b"hello").await.unwrap();
                assert_eq!(read(&mut served, 5).await.unwrap(), b"hello");
                proxy.impair(Impairment::CutAfter(bytes));
                served.write_all(&[1; 21]).await.unwrap();
                let mut all = Vec::new();
                let ended = manager.read_to_end(&mut all).await;
                // A reset may discard what has arrived.
                assert!(all.len() <= bytes && ended.is_err(), "{bytes}: {} {ended:?}", all.len());
                proxy.clear(false);
            }
            proxy.stop().await;
        });
    }

    #[test]
    fn a_stop_ends_all_connections_without_a_reset() {
        block_on(async {
            let (server, proxy) = started();
            let (mut manager, mut served) = connected(&proxy, &server).await;
            manager.write_all(b"ask").await.unwrap();
            assert_eq!(read(&mut served, 3).await.unwrap(), b"ask");
            proxy.stop().await;
            for end in [&mut manager, &mut served] {
                assert_eq!(end.read(&mut [0]).await.unwrap(), 0);
            }
        });
    }

    #[test]
    fn stalled_bytes_pass_when_the_stall_ends() {
        block_on(async {
            let (server, proxy) = started();
            let (mut manager, mut served) = connected(&proxy, &server).await;
            proxy.impair(Impairment::StallAnswers);
            served.write_all(b"answer").await.unwrap();
            manager.write_all(b"ask").await.unwrap();
            assert_eq!(read(&mut served, 3).await.unwrap(), b"ask");
            proxy.impair(Impairment::Slow { bytes: 1, pause: 1 });
            assert_eq!(read(&mut manager, 6).await.unwrap(), b"answer");
            proxy.stop().await;
        });
    }

    #[test]
    fn a_refused_connection_is_accepted_later() {
        block_on(async {
            let (server, proxy) = started();
            let (mut manager, _served) = connected(&proxy, &server).await;
            proxy.impair(Impairment::Refuse);
            assert!(read(&mut manager, 1).await.is_err(), "the open connection is reset");
            proxy.clear(false);
            // The listener may not be back yet.
            let mut again = Async::<TcpStream>::connect(proxy.address()).await;
            while again.is_err() {
                again = Async::<TcpStream>::connect(proxy.address()).await;
            }
            let (mut served, _) = server.accept().await.unwrap();
            again.unwrap().write_all(b"x").await.unwrap();
            assert_eq!(read(&mut served, 1).await.unwrap(), b"x");
            proxy.stop().await;
        });
    }
}
