//! One notice, for all caches of an API server, that it answers again after an outage. Upstream has
//! no counterpart: each reflector waits for the end of its own delay.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use event_listener::Event;
use futures_lite::FutureExt;

use super::source::Source;
use crate::clock::SharedClock;

/// The time between two questions whether the server is ready.
pub(super) const PERIOD: Duration = Duration::from_millis(500);
/// The least time between the ends of two outages: a server that is ready now and then does not end
/// all delays each time.
const STEADY: Duration = Duration::from_secs(5);
/// How long one answer may take. Where packets are dropped, a later question is answered sooner.
const PATIENCE: Duration = Duration::from_secs(1);

/// The outages of an API server that its clients have noticed. While a cache waits after a failed
/// request, one of those that wait asks twice a second whether the server is ready. A no and a later
/// yes are an outage that has ended. Cheap to clone: clones are one.
#[derive(Clone, Default)]
pub struct Outages {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    /// The number of outages that have ended.
    ended: AtomicU64,
    /// Notified when an outage has ended.
    changed: Event,
    /// Locked by the task that asks.
    asked: async_lock::Mutex<Asked>,
}

/// What the task that asks knows; a later one continues with it.
#[derive(Default)]
struct Asked {
    /// Whether the last answer was no.
    is_down: bool,
    /// When the last outage ended.
    ended_at: Option<Duration>,
}

impl Outages {
    /// Returns the number of outages that have ended so far.
    pub fn ended(&self) -> u64 {
        self.inner.ended.load(Ordering::Acquire)
    }

    /// Resolves when more than `known` outages have ended. Asks nothing. May be dropped at any time.
    pub async fn more_than(&self, known: u64) {
        self.wait(known, std::future::pending).await;
    }

    /// Waits as [`more_than`](Self::more_than) does, and asks `source` meanwhile whether it is
    /// ready, unless another task does. A server that is ready at the first question has no outage,
    /// and is not asked again.
    pub async fn over(&self, known: u64, source: &dyn Source, clock: &SharedClock) {
        self.wait(known, || self.ask(source, clock)).await;
    }

    /// Waits until more than `known` outages have ended, and polls `meanwhile` until then.
    async fn wait<F: Future<Output = ()>>(&self, known: u64, meanwhile: impl Fn() -> F) {
        loop {
            let changed = self.inner.changed.listen();
            if self.ended() > known {
                return;
            }
            changed.or(meanwhile()).await;
        }
    }

    /// Asks the server until it is ready, and then ends the outage if it was not ready before.
    /// Never resolves. While one task asks, others wait for the lock.
    async fn ask(&self, source: &dyn Source, clock: &SharedClock) {
        let mut asked = self.inner.asked.lock().await;
        loop {
            let began = clock.monotonic();
            let no_answer = async {
                clock.sleep(PATIENCE).await;
                false
            };
            if source.is_ready().or(no_answer).await {
                break;
            }
            asked.is_down = true;
            clock.sleep((began + PERIOD).saturating_sub(clock.monotonic())).await;
        }
        // Two outages end at least `STEADY` apart.
        if let Some(ended_at) = asked.ended_at.filter(|_| asked.is_down) {
            clock.sleep((ended_at + STEADY).saturating_sub(clock.monotonic())).await;
        }
        if std::mem::take(&mut asked.is_down) {
            asked.ended_at = Some(clock.monotonic());
            log::debug!("the API server is ready again");
            self.inner.ended.fetch_add(1, Ordering::AcqRel);
            self.inner.changed.notify(usize::MAX);
        }
        drop(asked);
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::pin::Pin;

    use async_channel::Sender;
    use futures_lite::future::{block_on, poll_fn, poll_once};
    use futures_lite::stream::{self, StreamExt};
    use parking_lot::Mutex;

    use super::super::testing::initial;
    use super::super::{
        Answer, BoxFuture, Error, ListRequest, Scope, SharedIndexInformer, WatchRequest,
    };
    use super::*;
    use crate::clock::{Clock, FakeClock};
    use crate::objects::{
        Encoded, Form, ListPart, PartialObjectMetadata, Pod, Resource, Timestamp, WatchEvent,
    };
    use crate::task::StopToken;

    type Event = WatchEvent<Encoded>;

    const CACHES: usize = 40;
    const STEP: Duration = Duration::from_millis(100);
    /// A server that has started refuses all for this time: its authorization is not ready.
    const STARTING: Duration = Duration::from_secs(3);

    /// How the server fails while it is away.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Away {
        /// It refuses connections, later all requests, and has lost its watch cache when it is back.
        Stopped,
        /// Requests have no answer, not even after it is back, and it has kept its watch cache.
        Unreachable,
    }

    /// An API server with one watch cache for all scopes.
    struct Server {
        clock: Arc<FakeClock>,
        outages: Outages,
        state: Mutex<State>,
    }

    #[derive(Default)]
    struct State {
        /// How it is away, and since when.
        away: Option<(Away, Duration)>,
        /// When it has started again.
        started: Option<Duration>,
        version: u64,
        /// Watches from before are too old.
        oldest: u64,
        watches: Vec<Sender<Result<Event, Error>>>,
        /// When the cache of each scope was last brought up to date: by a list, or a watch that was
        /// opened again.
        current: HashMap<String, Duration>,
        lists: Vec<Duration>,
        probes: usize,
        requests: usize,
    }

    impl Server {
        fn is_starting(&self, state: &State) -> bool {
            state.started.is_some_and(|at| self.clock.monotonic() < at + STARTING)
        }

        /// The failure of a request, if it fails now; `pending`: it has no answer.
        async fn admit(&self) -> Result<(), Error> {
            let away = {
                let mut state = self.state.lock();
                state.requests += 1;
                match state.away {
                    None if self.is_starting(&state) => {
                        return Err(Error::Failed("forbidden".into()));
                    }
                    None => return Ok(()),
                    Some((away, _)) => away,
                }
            };
            match away {
                Away::Stopped => Err(Error::Unreachable("refused".into())),
                Away::Unreachable => std::future::pending().await,
            }
        }

        fn go(&self, away: Away) {
            let mut state = self.state.lock();
            state.away = Some((away, self.clock.monotonic()));
            state.current.clear();
            for watch in state.watches.drain(..) {
                let _ = watch.try_send(Err(Error::Failed("reset".into())));
            }
        }

        fn come_back(&self) {
            let mut state = self.state.lock();
            let away = state.away.take().expect("it was away").0;
            state.version += 1;
            if away == Away::Stopped {
                state.started = Some(self.clock.monotonic());
                state.oldest = state.version;
            }
            state.lists.clear();
        }
    }

    impl Source for Server {
        fn list<'a>(
            &'a self,
            _: &'a Scope,
            _: Form,
            _: ListRequest,
        ) -> Answer<'a, ListPart<Encoded>> {
            Box::pin(async move {
                self.admit().await?;
                let resource_version = self.state.lock().version.to_string();
                let end = ListPart::End { resource_version, continue_token: None };
                Ok(stream::once(Ok(end)).boxed())
            })
        }

        fn watch<'a>(
            &'a self,
            scope: &'a Scope,
            _: Form,
            request: WatchRequest,
        ) -> Answer<'a, Event> {
            Box::pin(async move {
                self.admit().await?;
                let mut state = self.state.lock();
                let from = request.resource_version.and_then(|version| version.parse().ok());
                if !request.send_initial_events && from.is_some_and(|from: u64| from < state.oldest)
                {
                    return Err(Error::Expired);
                }
                let now = self.clock.monotonic();
                state.current.insert(scope.to_string(), now);
                let events = match request.send_initial_events {
                    true => initial(&[], state.version),
                    false => Vec::new(),
                };
                state.lists.push(now);
                let (feed, fed) = async_channel::unbounded();
                state.watches.push(feed);
                Ok(stream::iter(events).map(Ok).chain(fed).boxed())
            })
        }

        fn is_ready(&self) -> BoxFuture<'_, bool> {
            self.state.lock().probes += 1;
            Box::pin(async { self.admit().await.is_ok() })
        }

        fn outages(&self) -> Option<&Outages> {
            Some(&self.outages)
        }
    }

    /// Forty caches of one server, in one thread.
    struct Bench {
        clock: Arc<FakeClock>,
        server: Arc<Server>,
        running: Pin<Box<dyn Future<Output = ()>>>,
    }

    fn bench() -> Bench {
        fastrand::seed(7);
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let state = State { version: 1, ..State::default() };
        let (outages, state) = (Outages::default(), Mutex::new(state));
        let server = Arc::new(Server { clock: clock.clone(), outages, state });
        let mut informers: Vec<_> = (0..CACHES)
            .map(|number| {
                let label_selector = Some(format!("number={number}"));
                let scope = Scope { label_selector, ..Scope::metadata(Pod::RESOURCE) };
                let (server, clock) = (server.clone(), clock.clone());
                let informer =
                    SharedIndexInformer::<PartialObjectMetadata>::new(server, scope, clock);
                Box::pin(informer.run(StopToken::new()))
            })
            .collect();
        let running = poll_fn(move |context| {
            informers.iter_mut().for_each(|informer| _ = informer.as_mut().poll(context));
            std::task::Poll::Pending
        });
        Bench { clock, server, running: Box::pin(running) }
    }

    impl Bench {
        /// Lets all caches do what they can, and then time pass.
        fn pass(&mut self, time: Duration) {
            let end = self.clock.monotonic() + time;
            loop {
                (0..5).for_each(|_| _ = block_on(poll_once(&mut self.running)));
                if self.clock.monotonic() >= end {
                    return;
                }
                self.clock.advance(STEP);
            }
        }

        fn current(&self) -> usize {
            self.server.state.lock().current.len()
        }
    }

    #[test]
    fn every_cache_is_current_two_seconds_after_the_end_of_any_outage() {
        for (away, outages) in [
            (Away::Stopped, &[(1, 4), (8, 4), (30, 4), (300, 1)][..]),
            (Away::Unreachable, &[(1, 2), (30, 2)]),
        ] {
            for &(seconds, repetitions) in outages {
                let mut bench = bench();
                bench.pass(Duration::from_secs(1));
                assert_eq!(bench.current(), CACHES);
                for repetition in 0..repetitions {
                    let name = format!("{away:?} for {seconds} s, repetition {repetition}");
                    bench.server.go(away);
                    {
                        let mut state = bench.server.state.lock();
                        (state.requests, state.probes) = (0, 0);
                    }
                    bench.pass(Duration::from_secs(seconds));
                    assert_eq!(bench.current(), 0, "{name}");
                    bench.server.come_back();
                    if away == Away::Stopped {
                        bench.pass(STARTING - STEP);
                        assert_eq!(bench.current(), 0, "{name}");
                        bench.clock.advance(STEP);
                    }
                    let (requests, probes) = {
                        let state = bench.server.state.lock();
                        (state.requests - state.probes, state.probes)
                    };
                    bench.pass(Duration::from_secs(2));
                    assert_eq!(bench.current(), CACHES, "{name}: are current");
                    // Two questions a second, and one for each wait that begins.
                    let most = 2 * (seconds as usize + 3) + requests + 1;
                    assert!(probes <= most, "{name}: {probes} questions, {requests} requests");
                    // 0.8 s doubles to 30 s.
                    assert!(requests <= CACHES * 25, "{name}: {requests} requests");
                    let lists = std::mem::take(&mut bench.server.state.lock().lists);
                    let at_once = lists.chunk_by(|one, next| one == next).map(<[_]>::len).max();
                    assert!(at_once <= Some(CACHES / 2), "{name}: lists at {lists:?}");
                    bench.pass(Duration::from_secs(6));
                }
            }
        }
    }

    #[test]
    fn a_fault_of_one_kind_is_no_outage() {
        let mut bench = bench();
        bench.pass(Duration::from_secs(1));
        let source = bench.server.clone();
        let clock: SharedClock = bench.clock.clone();
        let mut over = Box::pin(source.outages.over(0, &*source, &clock));
        for _ in 0..100 {
            assert!(block_on(poll_once(&mut over)).is_none());
            bench.clock.advance(STEP);
        }
        assert_eq!(source.state.lock().probes, 1);
        // Another cache notices an outage.
        source.go(Away::Stopped);
        bench.pass(Duration::from_secs(1));
        source.come_back();
        bench.pass(STARTING + Duration::from_secs(1));
        assert!(block_on(poll_once(&mut over)).is_some());
    }
}
