//! What tasks wait for outside the process, sockets and time: one epoll, on which the executor's
//! thread sleeps.
//!
//! A socket is registered once, edge-triggered, and remembers whether it was ready. So a sleep costs
//! one system call, and a read that cannot succeed costs none. What arrives while no task waits for
//! it ends a sleep once, not each time.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::time::{ClockId, clock_gettime};

use super::executor::runtime;

/// The most events that are taken at once.
const EVENTS: usize = 256;
/// The bell's key; sockets have higher ones.
const BELL: u64 = 0;
const ALL: EventFlags =
    EventFlags::IN.union(EventFlags::OUT).union(EventFlags::RDHUP).union(EventFlags::ET);

/// Time since an arbitrary start, as epoll measures it.
fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or_default(),
        u32::try_from(now.tv_nsec).unwrap_or_default(),
    )
}

pub(super) struct Reactor {
    epoll: OwnedFd,
    /// Written to, it ends a sleep. It is edge-triggered, so nobody reads it.
    bell: OwnedFd,
    /// A thread sleeps, or is about to, and no other has rung for it.
    asleep: AtomicBool,
    sources: Mutex<Sources>,
    timers: Mutex<Timers>,
}

#[derive(Default)]
struct Sources {
    last: u64,
    by_key: HashMap<u64, Arc<Source>>,
}

/// Those who wait for a time, the next first.
#[derive(Default)]
struct Timers {
    last: u64,
    waiting: BTreeMap<(Duration, u64), Waker>,
}

/// Wakes the thread that polls with it and sleeps in [`Reactor::turn`].
pub(super) struct Bell {
    pub reactor: &'static Reactor,
    /// There is something to poll.
    pub rung: AtomicBool,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.rung.store(true, Ordering::SeqCst);
        self.reactor.ring();
    }
}

impl Reactor {
    pub fn new() -> rustix::io::Result<Reactor> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &bell, EventData::new_u64(BELL), EventFlags::IN | EventFlags::ET)?;
        Ok(Reactor {
            epoll,
            bell,
            asleep: AtomicBool::new(false),
            sources: Mutex::default(),
            timers: Mutex::default(),
        })
    }

    /// Ends the sleep of the thread in [`Self::turn`].
    fn ring(&self) {
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            // It fails only when the bell has been rung 2^64 times.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }

    /// Wakes the tasks whose sockets are ready and whose time has come. Sleeps until there are some
    /// or the bell rings, unless it has rung already. For one thread.
    pub fn turn(&self, rung: &AtomicBool, events: &mut Vec<epoll::Event>) {
        events.reserve(EVENTS);
        let mut timeout = Some(Duration::ZERO);
        if !rung.load(Ordering::SeqCst) {
            self.asleep.store(true, Ordering::SeqCst);
            // Who rings or sets a timer from here on sees that this thread is asleep.
            if !rung.load(Ordering::SeqCst) {
                let next = self.timers.lock().waiting.first_key_value().map(|((due, _), _)| *due);
                timeout = next.map(|due| due.saturating_sub(now()));
            }
        }
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        // An interrupted sleep is a short one.
        let _ = epoll::wait(&self.epoll, spare_capacity(events), timeout.as_ref());
        self.asleep.store(false, Ordering::SeqCst);
        for event in events.drain(..) {
            let (key, flags) = (event.data.u64(), event.flags);
            let source = self.sources.lock().by_key.get(&key).cloned();
            if let Some(source) = source {
                source.happened(flags, || self.listen(&source, false));
            }
        }
        self.wake_sleepers();
    }

    fn wake_sleepers(&self) {
        let due = {
            let mut timers = self.timers.lock();
            let Some(first) = timers.waiting.first_key_value() else { return };
            let now = now();
            if first.0.0 > now {
                return;
            }
            let later = timers.waiting.split_off(&(now, u64::MAX));
            std::mem::replace(&mut timers.waiting, later)
        };
        due.into_values().for_each(Waker::wake);
    }

    /// Registers a socket until [`Self::remove`]. It counts as ready for what `ready` says.
    pub fn add(&self, io: TcpStream, ready: [bool; 2]) -> io::Result<Arc<Source>> {
        let source = {
            let mut sources = self.sources.lock();
            sources.last += 1;
            let key = sources.last;
            let sides = ready.map(|is_ready| Side { is_ready, ..Side::default() });
            let state = Mutex::new(State { sides, is_deaf: false });
            let source = Arc::new(Source { key, io, state });
            sources.by_key.insert(key, source.clone());
            source
        };
        let added = epoll::add(&self.epoll, &source.io, EventData::new_u64(source.key), ALL);
        added.inspect_err(|_| drop(self.sources.lock().by_key.remove(&source.key)))?;
        Ok(source)
    }

    pub fn remove(&self, source: &Source) {
        self.sources.lock().by_key.remove(&source.key);
        let _ = epoll::delete(&self.epoll, &source.io);
    }

    /// Hears what arrives, or not. What is there already is heard when this begins.
    fn listen(&self, source: &Source, hears: bool) {
        let flags = if hears { ALL } else { EventFlags::OUT | EventFlags::ET };
        let data = EventData::new_u64(source.key);
        // It is registered as long as it exists, and nothing else makes this fail.
        let _ = epoll::modify(&self.epoll, &source.io, data, flags);
    }
}

/// What of a socket is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    Write,
}

/// A registered socket.
pub(super) struct Source {
    key: u64,
    pub io: TcpStream,
    state: Mutex<State>,
}

struct State {
    /// By [`Direction`].
    sides: [Side; 2],
    /// More has arrived than was waited for: what arrives further is no event until a task waits.
    is_deaf: bool,
}

#[derive(Default)]
struct Side {
    /// False: an attempt would block.
    is_ready: bool,
    /// The peer sends no more, or the socket has failed: no further event will say so.
    is_final: bool,
    /// The number of events so far.
    events: u32,
    waiter: Option<Waker>,
}

impl Source {
    /// `be_deaf` is called when it should stop listening.
    fn happened(&self, flags: EventFlags, be_deaf: impl FnOnce()) {
        let failed = flags.intersects(EventFlags::ERR | EventFlags::HUP);
        let ended = failed || flags.contains(EventFlags::RDHUP);
        let arrived = flags.contains(EventFlags::IN) || ended;
        let ready = [arrived, flags.contains(EventFlags::OUT) || failed];
        let wakers = {
            let State { sides, is_deaf } = &mut *self.state.lock();
            let [read, _] = &*sides;
            if arrived && read.is_ready && read.waiter.is_none() && !*is_deaf {
                *is_deaf = true;
                be_deaf();
            }
            let mut wakers = [None, None];
            for (at, side) in sides.iter_mut().enumerate().filter(|(at, _)| ready[*at]) {
                side.is_ready = true;
                side.is_final |= if at == Direction::Read as usize { ended } else { failed };
                side.events = side.events.wrapping_add(1);
                wakers[at] = side.waiter.take();
            }
            wakers
        };
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    /// The number of events so far if an attempt may succeed; otherwise the task waits.
    fn poll_ready(&self, direction: Direction, context: &Context<'_>) -> Poll<u32> {
        let State { sides, is_deaf } = &mut *self.state.lock();
        let side = &mut sides[direction as usize];
        if side.is_ready {
            return Poll::Ready(side.events);
        }
        if !side.waiter.as_ref().is_some_and(|waiter| waiter.will_wake(context.waker())) {
            side.waiter = Some(context.waker().clone());
        }
        if direction == Direction::Read && std::mem::take(is_deaf) {
            runtime().reactor.listen(self, true);
        }
        Poll::Pending
    }

    /// An attempt that was made after `events` events found that the next would block.
    fn exhausted(&self, direction: Direction, events: u32) {
        let side = &mut self.state.lock().sides[direction as usize];
        if side.events == events && !side.is_final {
            side.is_ready = false;
        }
    }

    /// Waits until the socket is ready.
    pub fn poll(&self, direction: Direction, context: &Context<'_>) -> Poll<()> {
        self.poll_ready(direction, context).map(drop)
    }

    /// The number of bytes that `attempt` has moved, of the `wanted`.
    pub fn poll_io(
        &self,
        direction: Direction,
        wanted: usize,
        context: &Context<'_>,
        mut attempt: impl FnMut() -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            let events = std::task::ready!(self.poll_ready(direction, context));
            match attempt() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.exhausted(direction, events);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                // The kernel's buffer is empty now, or full: the next change is an event.
                Ok(count) if 0 < count && count < wanted => {
                    self.exhausted(direction, events);
                    return Poll::Ready(Ok(count));
                }
                result => return Poll::Ready(result),
            }
        }
    }
}

/// Resolves when a time has passed. May be dropped at any time.
pub(crate) struct Timer {
    /// `None`: never.
    due: Option<Duration>,
    key: Option<(Duration, u64)>,
}

impl Timer {
    pub fn after(duration: Duration) -> Timer {
        Timer { due: now().checked_add(duration), key: None }
    }
}

impl Future for Timer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(due) = self.due else { return Poll::Pending };
        let reactor = &runtime().reactor;
        if let Some(key) = self.key {
            match reactor.timers.lock().waiting.get_mut(&key) {
                Some(waker) if waker.will_wake(context.waker()) => return Poll::Pending,
                Some(waker) => {
                    *waker = context.waker().clone();
                    return Poll::Pending;
                }
                // Who was woken is not in the list.
                None => {
                    self.key = None;
                    self.due = Some(Duration::ZERO);
                    return Poll::Ready(());
                }
            }
        }
        if due <= now() {
            return Poll::Ready(());
        }
        let is_next = {
            let mut timers = reactor.timers.lock();
            timers.last += 1;
            let key = (due, timers.last);
            timers.waiting.insert(key, context.waker().clone());
            self.key = Some(key);
            timers.waiting.first_key_value().is_some_and(|(first, _)| *first == key)
        };
        if is_next {
            reactor.ring();
        }
        Poll::Pending
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            runtime().reactor.timers.lock().waiting.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use futures_lite::future::{block_on, poll_once, zip};

    use super::*;

    #[test]
    fn timers_end_in_their_order_and_not_early() {
        let begun = now();
        let ended = Mutex::new(Vec::new());
        let wait = async |millis: u64| {
            Timer::after(Duration::from_millis(millis)).await;
            ended.lock().push((millis, now() - begun >= Duration::from_millis(millis)));
        };
        block_on(zip(zip(wait(30), wait(1)), zip(wait(0), wait(10))));
        assert_eq!(*ended.lock(), [(0, true), (1, true), (10, true), (30, true)]);
    }

    #[test]
    fn a_dropped_timer_leaves_nothing() {
        let reactor = &runtime().reactor;
        let mut long = Timer::after(Duration::from_secs(10_000));
        let mut never = Timer::after(Duration::MAX);
        assert!(block_on(poll_once(&mut long)).is_none());
        assert!(block_on(poll_once(&mut never)).is_none());
        let key = long.key.expect("it waits");
        assert!(reactor.timers.lock().waiting.contains_key(&key) && never.key.is_none());
        drop(long);
        assert!(!reactor.timers.lock().waiting.contains_key(&key));
    }

    /// A socket that the reactor does not know.
    fn source() -> Source {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let io = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let state = State { sides: Default::default(), is_deaf: false };
        Source { key: u64::MAX, io, state: Mutex::new(state) }
    }

    #[test]
    fn what_nobody_waits_for_is_heard_twice_at_most() {
        let (source, deaf) = (source(), AtomicUsize::new(0));
        let happens = || {
            source.happened(EventFlags::IN, || {
                deaf.fetch_add(1, Ordering::SeqCst);
            });
            deaf.load(Ordering::SeqCst)
        };
        let context = Context::from_waker(Waker::noop());
        assert!(source.poll(Direction::Read, &context).is_pending());
        assert_eq!([happens(), happens(), happens()], [0, 1, 1]);
        assert!(source.poll(Direction::Read, &context).is_ready() && source.state.lock().is_deaf);
        source.exhausted(Direction::Read, 3);
        assert!(source.poll(Direction::Read, &context).is_pending());
        assert!(!source.state.lock().is_deaf, "it listens while a task waits");
        assert_eq!([happens(), happens()], [1, 2]);
    }

    #[test]
    fn an_event_between_an_attempt_and_its_end_is_not_lost() {
        let source = source();
        let happens = |flags| source.happened(flags, || ());
        let context = Context::from_waker(Waker::noop());
        let tries = AtomicUsize::new(0);
        let read = |found: &dyn Fn(usize) -> io::Result<usize>| {
            source.poll_io(Direction::Read, 8, &context, || {
                found(tries.fetch_add(1, Ordering::SeqCst))
            })
        };
        let blocked = || Err(io::ErrorKind::WouldBlock.into());
        assert!(read(&|_| unreachable!("nothing happened yet")).is_pending());
        happens(EventFlags::IN);
        // The event comes while the attempt fails: it is made again.
        let found = read(&|tries| match tries {
            0 => {
                happens(EventFlags::IN);
                blocked()
            }
            _ => Ok(8),
        });
        assert!(matches!(found, Poll::Ready(Ok(8))));
        // All that was wanted came, so there may be more.
        assert!(read(&|_| blocked()).is_pending());
        happens(EventFlags::IN);
        assert!(matches!(read(&|_| Ok(3)), Poll::Ready(Ok(3))));
        assert!(read(&|_| unreachable!("less came than was wanted")).is_pending());
        // After the peer's end every attempt is made.
        happens(EventFlags::IN | EventFlags::RDHUP);
        assert!(matches!(read(&|_| Ok(3)), Poll::Ready(Ok(3))));
        assert!(matches!(read(&|_| Ok(0)), Poll::Ready(Ok(0))));
        assert!(source.poll(Direction::Write, &context).is_pending());
        happens(EventFlags::HUP);
        assert!(source.poll(Direction::Write, &context).is_ready());
    }
}
