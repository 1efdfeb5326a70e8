//! Takes the lock, keeps it, and releases it. Upstream: `leaderelection.LeaderElector`.

use parking_lot::{Mutex, MutexGuard};
use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::FutureExt;
use log::Level;

use super::callbacks::Leading;
use super::config::JITTER_FACTOR;
use super::election::{Attempt, Election, Outcome, Start};
use super::{Config, ConfigError, Ended, LeaderCallbacks, LockError, Work};
use crate::client::Guard;
use crate::clock::SharedClock;
use crate::metrics::metrics;
use crate::task::{self, StopToken};
use crate::trace::{self, Scope, Traced};

/// One contender for a [`Lock`](super::Lock). Cheap to clone: one clone runs, the others answer
/// questions.
///
/// # What holds
///
/// - A contender takes the lock only if it has seen the record unchanged for the lease duration
///   that the record names, by its own monotonic clock, or if the lock is released or does not
///   exist. Of several that try at once, the lock lets one succeed. The clocks of other machines,
///   and the times in the record, decide nothing.
/// - The leader stops at most renew deadline and retry period after its last renewal: the token of
///   its work stops, and [`run`](LeaderElector::run) returns [`Ended::Lost`]. By default that is
///   12 s of a lease of 15 s; the rest is for the end of the process.
/// - [`holds_lease`](LeaderElector::holds_lease) is stricter: while it returns true, no other
///   contender can have taken the lock.
///
/// # What is not promised
///
/// - That the old leader does nothing any more when a new one starts. Work that ignores its token,
///   and requests that were sent before the lease ran out, may still write. The process ends after
///   [`Ended::Lost`], and a [`Guard`](crate::client::Guard) that asks `holds_lease` refuses late
///   writes; a request that was sent already cannot be stopped.
/// - Anything on machines whose clocks run at rates further apart than lease duration and renew
///   deadline are (15 s to 10 s by default).
/// - That the leader stops in time on a machine that was suspended: its timers leave the suspension
///   out. `holds_lease` counts it.
/// - That a lost or released lock goes to a certain contender.
///
/// Upstream: `leaderelection.LeaderElector`.
#[derive(Clone)]
pub struct LeaderElector {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    clock: SharedClock,
    election: Mutex<Election>,
}

impl LeaderElector {
    /// Makes a contender that does not run yet. Its metric `leader_election_master_status` is 0
    /// from now on.
    ///
    /// # Errors
    /// The first fault of `config`. Upstream: `NewLeaderElector`.
    pub fn new(config: Config, clock: SharedClock) -> Result<LeaderElector, ConfigError> {
        config.check()?;
        set_master(&config.name, false);
        let (identity, duration) = (config.lock.identity(), config.lease_duration);
        let election = Mutex::new(Election::new(identity, duration, config.coordinated));
        Ok(LeaderElector { inner: Arc::new(Inner { config, clock, election }) })
    }

    /// Returns the identity of the leader last seen; empty when there was none. For logs and pages:
    /// another may lead by now. Upstream: `GetLeader`.
    pub fn leader(&self) -> String {
        self.inner.election().leader().to_owned()
    }

    /// Returns whether this contender was the leader last seen. It may have lost the lock since:
    /// ask [`holds_lease`](LeaderElector::holds_lease) before a write. Upstream: `IsLeader`.
    pub fn is_leader(&self) -> bool {
        self.inner.election().is_leader()
    }

    /// Returns whether the lock is ours for certain: less than the lease duration, in whole
    /// seconds, has passed since the start of our last successful write. It is so after a
    /// suspension of the process or of the machine too, and false from the decision to release the
    /// lock on. Upstream has no counterpart.
    pub fn holds_lease(&self) -> bool {
        self.inner.election().holds_lease(self.inner.clock.monotonic())
    }

    /// Makes a guard that passes writes while [`holds_lease`](LeaderElector::holds_lease), for the
    /// client of the leader's work ([`Client::guarded`](crate::client::Client::guarded)). The
    /// elector's own client must not have it. Each call makes another one: clones of one count
    /// writes together.
    pub fn guard(&self) -> Guard {
        let elector = self.clone();
        Guard::new(move || elector.holds_lease())
    }

    /// Checks whether this contender may go on, for a health check under [`HealthzAdaptor::NAME`].
    ///
    /// # Errors
    /// When we led last, could not renew, and our lease expired more than `tolerable` ago: the
    /// process should have ended by then.
    ///
    /// [`HealthzAdaptor::NAME`]: super::HealthzAdaptor::NAME
    pub fn check(&self, tolerable: Duration) -> Result<(), String> {
        let inner = &self.inner;
        let election = inner.election();
        let age = election.observed_for(inner.clock.monotonic());
        if election.is_leader() && age > inner.config.lease_duration + tolerable {
            let name = &inner.config.name;
            return Err(format!("failed election to renew leadership on lease {name}"));
        }
        Ok(())
    }

    /// Waits for the lock, leads, and keeps the lock until it is lost or `stop` stops. Call it
    /// once.
    ///
    /// After a stop, the lock is renewed until the leader's work resolves, and released only if
    /// that work left nothing behind ([`Work::Ended`]): no other leader works at the same time. If
    /// it is lost meanwhile, this returns [`Ended::Lost`]. A request takes at most half the renew
    /// deadline (or one second, if that is longer), a release the whole deadline.
    ///
    /// Dropped while it waits for the lock, this may leave the lock taken until it expires. Dropped
    /// while it leads, it leaves the work running, with a token that does not stop, and renews the
    /// lock no more: stop it by `stop` instead.
    ///
    /// Upstream: `Run`.
    pub async fn run(&self, callbacks: LeaderCallbacks, stop: &StopToken) -> Ended {
        let LeaderCallbacks { on_started_leading, on_stopped_leading, on_new_leader } = callbacks;
        let reported = String::new();
        let mut run = Run { inner: &self.inner, on_new_leader, reported, span: 0 };
        let ended = run.run(on_started_leading, stop).await;
        on_stopped_leading();
        ended
    }
}

/// A call of [`LeaderElector::run`].
struct Run<'a> {
    inner: &'a Inner,
    on_new_leader: Box<dyn Fn(&str) + Send + Sync>,
    /// The leader last reported to `on_new_leader`.
    reported: String,
    /// The trace's span of the last attempt; 0: the lock is not traced.
    span: u64,
}

impl Run<'_> {
    /// Waits for the lock, runs `lead` while it is held, and releases it after a stop if the work
    /// has ended.
    async fn run(
        &mut self,
        lead: Box<dyn FnOnce(StopToken) -> Leading + Send>,
        stop: &StopToken,
    ) -> Ended {
        let config = &self.inner.config;
        if stop.unless_stopped(self.acquire()).await.is_none() {
            return Ended::NeverLed;
        }
        config.lock.record_event("became leader");
        set_master(&config.name, true);
        log::info!("leaderelection: {}: successfully acquired lease", config.lock.describe());
        trace::lease_changed(self.span, &config.lock.describe(), true);

        // Not a child of `stop`: this function stops it at both ends of leading.
        let leading = StopToken::new();
        let work = task::spawn(lead(leading.clone()));
        let lost = async {
            self.renew().await;
            (Ended::Lost, Work::Unfinished)
        };
        let stopped = async {
            stop.stopped().await;
            leading.stop();
            (Ended::Stopped, work.await)
        };
        let (ended, work) = lost.or(stopped).await;
        leading.stop();
        set_master(&config.name, false);
        if ended == Ended::Lost {
            log::error!("leaderelection: {}: failed to renew lease", config.lock.describe());
            trace::lease_changed(self.span, &config.lock.describe(), false);
        }
        match (ended, work) {
            // After `Lost` there is no release: the API server is most likely unreachable.
            (Ended::Stopped, Work::Ended) if config.release_on_cancel => self.release().await,
            (Ended::Stopped, Work::Unfinished) => log::warn!(
                "leaderelection: {}: kept until it expires: writes may be under way",
                config.lock.describe()
            ),
            _ => (),
        }
        config.lock.record_event("stopped leading");
        ended
    }

    /// Tries to take the lock until it is ours.
    async fn acquire(&mut self) {
        let config = &self.inner.config;
        log::info!(
            "leaderelection: {}: attempting to acquire leader lease...",
            config.lock.describe()
        );
        while !self.attempt().await {
            let jitter = config.retry_period.mul_f64(fastrand::f64() * JITTER_FACTOR);
            self.inner.clock.sleep(config.retry_period + jitter).await;
        }
    }

    /// Renews the lock until that fails for the renew deadline, or another contender has led
    /// meanwhile: this process may have been frozen.
    async fn renew(&mut self) {
        let (config, clock) = (&self.inner.config, self.inner.clock.clone());
        loop {
            let deadline = clock.sleep(config.renew_deadline);
            let renewed = async {
                while !self.attempt().await {
                    if self.inner.election().is_lost() {
                        return false;
                    }
                    clock.sleep(config.retry_period).await;
                }
                true
            };
            let late = async {
                deadline.await;
                false
            };
            if !renewed.or(late).await {
                return;
            }
            clock.sleep(config.retry_period).await;
        }
    }

    /// Makes one attempt to take or renew the lock, in a span of the trace, and reports a new
    /// leader. Returns whether the lock is ours then.
    async fn attempt(&mut self) -> bool {
        let inner = self.inner;
        self.span = trace::lease_span(&inner.config.lock.describe());
        let held = Traced::new(Scope { span: self.span, sync: 0 }, inner.attempt()).await;
        self.report_transition();
        held
    }

    /// Calls `on_new_leader` if the leader is another one than at the last call.
    fn report_transition(&mut self) {
        let leader = self.inner.election().leader().to_owned();
        if leader != self.reported {
            (self.on_new_leader)(&leader);
            self.reported = leader;
        }
    }

    /// Releases the lock, so that another contender need not wait for its end.
    async fn release(&mut self) {
        let inner = self.inner;
        let lock = &inner.config.lock;
        let release = async {
            let Some(current) = lock.get().await? else { return Ok(()) };
            let now = inner.clock.now();
            let released = inner.election().release(&current, now);
            if let Some(record) = released {
                lock.update(&record).await?;
                inner.election().observe(record, inner.clock.monotonic());
            }
            Ok(())
        };
        if let Err(error) = inner.with_timeout(inner.config.renew_deadline, release).await {
            log::error!("leaderelection: {}: failed to release lease: {error}", lock.describe());
        }
        self.report_transition();
    }
}

impl Inner {
    fn election(&self) -> MutexGuard<'_, Election> {
        self.election.lock()
    }

    /// Takes or renews the lock by one or several requests, and returns whether it is ours then.
    async fn attempt(&self) -> bool {
        let start = Start { wall: self.clock.now(), monotonic: self.clock.monotonic() };
        let mut attempt = self.election().begin(start);
        let held = loop {
            let outcome = self.carry_out(&attempt).await;
            let at = self.clock.monotonic();
            let next = self.election().after(attempt, outcome, start, at);
            match next {
                ControlFlow::Continue(next) => attempt = next,
                ControlFlow::Break(held) => break held,
            }
        };
        trace::lease_tried(&self.config.lock.describe(), held, self.election().leader());
        held
    }

    /// Sends a request to the lock, and logs its failure.
    async fn carry_out(&self, attempt: &Attempt) -> Outcome {
        let (lock, name) = (&self.config.lock, &self.config.name);
        let (doing, result) = match attempt {
            Attempt::Read => match self.request(lock.get()).await {
                Ok(Some(record)) => return Outcome::Found(record),
                Ok(None) => return Outcome::Missing,
                Err(error) => ("error retrieving lease lock", Err(error)),
            },
            Attempt::Create(record) => {
                ("error initially creating lease lock", self.request(lock.create(record)).await)
            }
            Attempt::Renew(record) => (
                "failed to update lease optimistically, falling back to slow path",
                self.request(lock.update(record)).await,
            ),
            Attempt::Update(record) => {
                if self.election().is_leader() {
                    count_slow_path(name);
                }
                ("failed to update lease", self.request(lock.update(record)).await)
            }
        };
        match result {
            Ok(()) => Outcome::Written,
            Err(error) => {
                // The slow path follows at once, and logs if it fails too.
                let level = match attempt {
                    Attempt::Renew(_) => Level::Debug,
                    _ => Level::Error,
                };
                log::log!(level, "leaderelection: {}: {doing}: {error}", lock.describe());
                Outcome::Failed
            }
        }
    }

    /// Sends a request to the lock, which may take half the renew deadline, so that there is time
    /// for another.
    async fn request<T>(
        &self,
        request: impl Future<Output = Result<T, LockError>>,
    ) -> Result<T, LockError> {
        self.with_timeout((self.config.renew_deadline / 2).max(Duration::from_secs(1)), request)
            .await
    }

    /// Returns the result of `request`, or `LockError::TimedOut`.
    async fn with_timeout<T>(
        &self,
        time: Duration,
        request: impl Future<Output = Result<T, LockError>>,
    ) -> Result<T, LockError> {
        let late = async {
            self.clock.sleep(time).await;
            Err(LockError::TimedOut)
        };
        request.or(late).await
    }
}

metrics! {
    static MASTER: IntGaugeVec["name"] = "leader_election_master_status",
        "[ALPHA] Gauge of if the reporting system is master of the relevant lease, 0 \
         indicates backup, 1 indicates master. 'name' is the string used to identify the \
         lease. Please make sure to group by name.";
    static SLOW_PATH: IntCounterVec["name"] = "leader_election_slowpath_total",
        "[ALPHA] Total number of slow path exercised in renewing leader leases. 'name' is \
         the string used to identify the lease. Please make sure to group by name.";
}

/// Sets the metric that shows whether we lead.
fn set_master(name: &str, is_master: bool) {
    MASTER.with_label_values(&[name]).set(is_master.into());
}

fn count_slow_path(name: &str) {
    SLOW_PATH.with_label_values(&[name]).inc();
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::OnceLock;

    use futures_lite::future::{block_on, poll_once};

    use super::super::{HealthzAdaptor, LeaderElectionRecord, Lock, LockFuture};
    use super::*;
    use crate::clock::{Clock, FakeClock};
    use crate::objects::Timestamp;

    /// The record on the API server.
    #[derive(Default)]
    struct Server {
        record: Option<LeaderElectionRecord>,
        version: u64,
        state: ServerState,
    }

    #[derive(Clone, Copy, Default, PartialEq)]
    enum ServerState {
        #[default]
        Up,
        Refusing,
        Silent,
    }

    struct FakeLock {
        identity: &'static str,
        server: Arc<Mutex<Server>>,
        seen: Mutex<u64>,
        events: Mutex<Vec<String>>,
        elector: OnceLock<LeaderElector>,
    }

    impl FakeLock {
        fn ask<'a, T: Send + 'a>(
            &'a self,
            ask: impl FnOnce(&mut Server) -> Option<T> + Send + 'a,
        ) -> LockFuture<'a, T> {
            Box::pin(async move {
                if self.server.lock().state == ServerState::Silent {
                    std::future::pending::<()>().await;
                }
                let mut server = self.server.lock();
                let refused = server.state == ServerState::Refusing;
                let answer = (!refused).then(|| ask(&mut server)).flatten();
                *self.seen.lock() = if answer.is_some() { server.version } else { u64::MAX };
                answer.ok_or(LockError::NotRead)
            })
        }
    }

    impl Lock for FakeLock {
        fn identity(&self) -> &str {
            self.identity
        }
        fn describe(&self) -> String {
            "fake".into()
        }
        fn get(&self) -> LockFuture<'_, Option<LeaderElectionRecord>> {
            self.ask(|server| Some(server.record.clone()))
        }
        fn create<'a>(&'a self, record: &'a LeaderElectionRecord) -> LockFuture<'a, ()> {
            self.ask(|server| {
                server.record.is_none().then(|| {
                    server.record = Some(record.clone());
                    server.version += 1;
                })
            })
        }
        fn update<'a>(&'a self, record: &'a LeaderElectionRecord) -> LockFuture<'a, ()> {
            if let Some(elector) = self.elector.get().filter(|_| record.holder_identity.is_empty())
            {
                self.events.lock().push(format!("releases, holds it: {}", elector.holds_lease()));
            }
            let seen = *self.seen.lock();
            self.ask(move |server| {
                (server.version == seen).then(|| {
                    server.record = Some(record.clone());
                    server.version += 1;
                })
            })
        }
        fn record_event(&self, what: &str) {
            self.events.lock().push(format!("{} {what}", self.identity));
        }
    }

    struct Contender {
        lock: Arc<FakeLock>,
        clock: Arc<FakeClock>,
        elector: LeaderElector,
        stop: StopToken,
        /// Whether the leader's work has seen its token stop.
        work_ended: StopToken,
        leaders: Arc<Mutex<Vec<String>>>,
        run: Pin<Box<dyn Future<Output = Ended> + Send>>,
    }

    fn contender(server: &Arc<Mutex<Server>>, identity: &'static str, wall: i64) -> Contender {
        contender_with(server, identity, wall, false, Work::Ended)
    }

    /// A contender whose work leaves `left` behind.
    fn contender_with(
        server: &Arc<Mutex<Server>>,
        identity: &'static str,
        wall: i64,
        coordinated: bool,
        left: Work,
    ) -> Contender {
        let lock = Arc::new(FakeLock {
            identity,
            server: server.clone(),
            seen: Mutex::new(u64::MAX),
            events: Mutex::default(),
            elector: OnceLock::new(),
        });
        let clock = FakeClock::new(Timestamp::from_secs(wall));
        let config = Config {
            lock: lock.clone(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
            release_on_cancel: true,
            coordinated,
            name: format!("test-{identity}"),
        };
        let elector = LeaderElector::new(config, clock.clone()).unwrap();
        let _ = lock.elector.set(elector.clone());
        let (stop, work_ended) = (StopToken::new(), StopToken::new());
        let leaders = Arc::new(Mutex::new(Vec::new()));
        let run = {
            let (elector, stop, leaders) = (elector.clone(), stop.clone(), leaders.clone());
            let ended = work_ended.clone();
            let work = move |token: StopToken| async move {
                token.stopped().await;
                ended.stop();
                left
            };
            let callbacks = LeaderCallbacks::new(work, || ())
                .on_new_leader(move |leader| leaders.lock().push(leader.to_owned()));
            Box::pin(async move { elector.run(callbacks, &stop).await })
        };
        Contender { lock, clock, elector, stop, work_ended, leaders, run }
    }

    impl Contender {
        fn poll(&mut self) -> Option<Ended> {
            block_on(poll_once(&mut self.run))
        }

        /// Advances the clock by a second.
        fn tick(&mut self) -> Option<Ended> {
            self.clock.advance(Duration::from_secs(1));
            self.poll()
        }

        /// Advances the clock until `until` holds, and returns the seconds.
        fn ticks_until(&mut self, mut until: impl FnMut(&Contender, Option<Ended>) -> bool) -> u32 {
            for seconds in 1..200 {
                let ended = self.tick();
                if until(self, ended) {
                    return seconds;
                }
            }
            panic!("nothing happened in 200 s");
        }
    }

    fn holder(server: &Arc<Mutex<Server>>) -> String {
        server.lock().record.as_ref().map(|r| r.holder_identity.clone()).unwrap_or_default()
    }

    #[test]
    fn leader_renews_and_releases_after_its_work_has_ended() {
        let server = Arc::default();
        let mut a = contender(&server, "a", 1000);
        assert_eq!(a.poll(), None);
        assert!(a.elector.is_leader());
        let first = server.lock().record.clone().unwrap();
        assert_eq!((first.lease_duration_seconds, first.leader_transitions), (15, 0));
        for _ in 0..60 {
            assert_eq!(a.tick(), None);
        }
        let last = server.lock().record.clone().unwrap();
        assert_eq!(last.acquire_time, first.acquire_time);
        let age = a.clock.now().duration_since(last.renew_time.unwrap());
        assert!(age <= Duration::from_secs(2), "{age:?}");

        a.stop.stop();
        assert_eq!(block_on(&mut a.run), Ended::Stopped);
        assert!(a.work_ended.is_stopped());
        let released = server.lock().record.clone().unwrap();
        assert_eq!((released.holder_identity.as_str(), released.lease_duration_seconds), ("", 1));
        // Before the write is sent: another contender may lead before its answer is here.
        let expected = ["a became leader", "releases, holds it: false", "a stopped leading"];
        assert_eq!(*a.lock.events.lock(), expected);
        assert_eq!(*a.leaders.lock(), ["a", ""]);

        // Released: the next contender takes it at its first attempt.
        let mut b = contender(&server, "b", 1000);
        b.poll();
        assert_eq!(holder(&server), "b");
        assert_eq!(server.lock().record.as_ref().unwrap().leader_transitions, 1);
    }

    #[test]
    fn leader_whose_work_is_unfinished_keeps_the_lock_until_it_expires() {
        for coordinated in [false, true] {
            let given = LeaderElectionRecord {
                holder_identity: "a".into(),
                lease_duration_seconds: 15,
                ..LeaderElectionRecord::default()
            };
            let record = coordinated.then_some(given);
            let server = Arc::new(Mutex::new(Server { record, ..Server::default() }));
            let mut a = contender_with(&server, "a", 1000, coordinated, Work::Unfinished);
            assert_eq!(a.poll(), None);
            assert!(a.elector.is_leader());
            a.stop.stop();
            assert_eq!(block_on(&mut a.run), Ended::Stopped);
            assert!(a.work_ended.is_stopped());
            assert_eq!(*a.lock.events.lock(), ["a became leader", "a stopped leading"]);
            assert_eq!(holder(&server), "a");

            let mut b = contender(&server, "b", 1000);
            b.poll();
            let took = b.ticks_until(|b, _| b.elector.is_leader());
            assert!(took >= 15, "{took}");
        }
    }

    #[test]
    fn leader_that_cannot_renew_stops_before_another_may_start() {
        for state in [ServerState::Refusing, ServerState::Silent] {
            let server = Arc::default();
            let mut a = contender(&server, "a", 1000);
            a.poll();
            for _ in 0..20 {
                a.tick();
            }
            let renewed = server.lock().record.as_ref().unwrap().renew_time.unwrap();
            server.lock().state = state;
            a.ticks_until(|_, ended| ended == Some(Ended::Lost));
            let age = a.clock.now().duration_since(renewed).as_secs();
            assert!((10..15).contains(&age), "{age}");
            block_on(a.work_ended.stopped());
            assert_eq!(holder(&server), "a", "not released: another contender may hold it by now");
        }
    }

    #[test]
    fn leader_survives_an_outage_shorter_than_the_renew_deadline() {
        let server = Arc::default();
        let mut a = contender(&server, "a", 1000);
        a.poll();
        // A request without an answer takes half of the deadline.
        for (state, outage) in [(ServerState::Refusing, 8), (ServerState::Silent, 4)] {
            server.lock().state = state;
            for _ in 0..outage {
                assert_eq!(a.tick(), None);
            }
            server.lock().state = ServerState::Up;
            for _ in 0..8 {
                assert_eq!(a.tick(), None);
            }
            let renewed = server.lock().record.as_ref().unwrap().renew_time.unwrap();
            assert!(a.clock.now().duration_since(renewed) <= Duration::from_secs(2));
        }
    }

    #[test]
    fn contender_takes_over_after_a_lease_without_change_by_its_own_clock() {
        for skew in [-7200, 0, 7200] {
            let server = Arc::default();
            let mut a = contender(&server, "a", 100_000);
            let mut b = contender(&server, "b", 100_000 + skew);
            a.poll();
            for _ in 0..60 {
                a.tick();
                b.tick();
                assert_eq!(holder(&server), "a", "skew {skew}");
            }
            let took = b.ticks_until(|b, _| b.elector.is_leader());
            // A renewed just now. B looks again within 5 s (4.4, in whole ticks), waits for a lease
            // from there, and sees within 5 s that it has expired.
            assert!((15..=5 + 15 + 5).contains(&took), "skew {skew}: {took} s");
            assert_eq!(*b.leaders.lock(), ["a", "b"]);
            // The old leader comes back: its write conflicts, and it ends.
            let after = a.ticks_until(|_, ended| ended == Some(Ended::Lost));
            assert!(after <= 13, "{after}");
            assert_eq!(holder(&server), "b");
            assert!(!a.elector.is_leader());
        }
    }

    #[test]
    fn health_fails_for_a_leader_stuck_past_its_lease() {
        let server = Arc::default();
        let mut a = contender(&server, "a", 1000);
        let health = HealthzAdaptor::new(Duration::from_secs(20));
        assert_eq!(health.check(), Ok(()));
        health.set_leader_election(&a.elector);
        a.clock.advance(Duration::from_secs(100));
        assert_eq!(health.check(), Ok(()), "not a leader");
        a.poll();
        a.clock.advance(Duration::from_secs(35));
        assert_eq!(health.check(), Ok(()));
        a.clock.advance(Duration::from_secs(1));
        let error = health.check().unwrap_err();
        assert_eq!(error, "failed election to renew leadership on lease test-a");
    }

    #[test]
    fn contender_stops_before_leading() {
        let server = Arc::default();
        let (mut a, mut b) = (contender(&server, "a", 0), contender(&server, "b", 0));
        a.poll();
        b.poll();
        b.stop.stop();
        assert_eq!(b.poll(), Some(Ended::NeverLed));
        assert_eq!(holder(&server), "a");
    }

    #[test]
    fn impossible_timings_are_refused() {
        let server: Arc<Mutex<Server>> = Arc::default();
        let with = |lease, renew, retry| {
            let lock = contender(&server, "a", 0).lock;
            let seconds = Duration::from_secs;
            let (lease_duration, renew_deadline) = (seconds(lease), seconds(renew));
            let config = Config {
                lock,
                lease_duration,
                renew_deadline,
                retry_period: seconds(retry),
                release_on_cancel: false,
                coordinated: false,
                name: "test".into(),
            };
            LeaderElector::new(config, FakeClock::new(Default::default())).err()
        };
        assert_eq!(with(15, 10, 2), None);
        assert_eq!(with(10, 10, 2), Some(ConfigError::LeaseNotLongerThanRenewDeadline));
        assert_eq!(with(15, 10, 9), Some(ConfigError::RenewDeadlineTooShortForRetryPeriod));
        assert_eq!(with(15, 10, 0), Some(ConfigError::RetryPeriodIsZero));
    }
}
