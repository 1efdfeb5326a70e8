//! Keeps a store equal to the API server's objects: lists, then watches, without end.
//! Upstream: `cache.Reflector`.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::future::yield_now;
use futures_lite::stream::Boxed as BoxStream;
use futures_lite::{FutureExt, StreamExt};
use log::Level;

use super::counts::Counts;
use super::decoder::{Decoder, Received, Undecoded};
use super::delta_fifo::{DeltaFifo, KnownState};
use super::history::{LossObserver, VersionLosses};
use super::outages::{self, Outages};
use super::phase::{Backoff, Outcome, Phase, Start};
use super::progress::Progress;
use super::source::{BoxFuture, ListRequest, Scope, Source, WatchRequest};
use super::time_slice::TimeSlice;
use super::{DecodeError, Error};
use crate::clock::{SharedClock, Sleep};
use crate::objects::{Bookmark, Encoded, ListPart, WatchEvent};
use crate::task::panics;
use crate::trace;

/// Returns the log level of a failed list or watch: debug for errors that are routine while an API
/// server restarts. A list that breaks off is not routine. Upstream: `isWatchErrorRetriable`,
/// `DefaultWatchErrorHandler`.
fn level_of(error: &Error) -> Level {
    match error {
        Error::Expired | Error::Busy { .. } | Error::Unreachable(_) => Level::Debug,
        _ => Level::Error,
    }
}

/// Items a page. Upstream: `pager.defaultPageSize`.
const PAGE_SIZE: u32 = 500;

/// A watch that ends sooner without an event counts as a failure.
const SHORT_WATCH: Duration = Duration::from_secs(1);

/// The server ends a watch after one to two times this period, chosen at random, unless the informer
/// has another one.
const MIN_WATCH_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// A watch may end this much earlier than its timeout: its server measures the time too.
const CLOCK_SLACK: Duration = Duration::from_secs(2);

/// After an outage of the API server its caches continue at random times within this period.
const SPREAD: Duration = Duration::from_millis(400);

/// When a watch is still open this long after its timeout, the connection counts as dead.
const WATCH_GRACE: Duration = Duration::from_secs(30);

/// Fills a [`DeltaFifo`] from a [`Source`] and keeps it up to date. Each object is decoded once,
/// into the `Arc` that every reader shares.
///
/// # What holds
///
/// - The states of one object are written in the server's order, and a list is never older than
///   what was written before. The exception is a server that has lost versions, as after a restored
///   backup: then the newest list is written, which may be older.
/// - After an outage the watch continues where it ended when the server still has its events; else
///   a list follows, with a deletion for each object that is gone.
/// - An object that cannot be decoded keeps its last known state in the store until it is known to
///   be deleted. One that never could be decoded is absent from the store.
/// - Failures are retried for ever. [`Phase::after`] decides which of them after a delay. The end
///   of an outage of the API server ends the delay.
///
/// # What is not promised
///
/// - Every state: a list skips those between the last event and the list.
///
/// Upstream: `cache.Reflector`.
pub struct Reflector {
    /// The scope, as logs and metrics name it.
    name: Arc<str>,
    scope: Arc<Scope>,
    source: Arc<dyn Source>,
    decoder: Decoder,
    store: Arc<DeltaFifo>,
    counts: Arc<Counts>,
    clock: SharedClock,
    progress: Arc<Progress>,
    random: fastrand::Rng,
    /// The newest version written to the store, also by a list that broke half-way: a later list
    /// must not be older.
    written: u64,
    /// The value of `written` before a list from [`Start::Newest`] began; 0 again once a list is
    /// whole.
    written_before_relist: u64,
    /// Whether the server's newest version is older than what was written, or seems to be: no known
    /// state counts in the next list.
    versions_doubtful: bool,
    /// Whether an item of the list under way is older than the known state of its object.
    list_went_back: bool,
    /// The losses of versions that other caches notice.
    follower: LossObserver,
    /// The number of outages that had ended when the last request began.
    outages: u64,
    /// Whether a list from [`Start::Any`] came in pages: the server has no watch cache that could
    /// send all objects at once.
    paginated: bool,
    slice: TimeSlice,
    min_watch_timeout: Duration,
}

/// An open watch, and the time at which its connection counts as dead.
struct Open {
    events: BoxStream<Result<WatchEvent<Encoded>, Error>>,
    deadline: Sleep,
    /// When the server ends it, on the monotonic clock.
    end: Duration,
}

impl Reflector {
    /// Makes a reflector that sends nothing before [`run`](Self::run). `name`: the scope in logs
    /// and metrics. `store`: the queue that it alone writes.
    pub fn new(
        name: Arc<str>,
        scope: Arc<Scope>,
        source: Arc<dyn Source>,
        decoder: Decoder,
        store: Arc<DeltaFifo>,
        counts: Arc<Counts>,
        clock: SharedClock,
    ) -> Reflector {
        let (slice, outages) = (TimeSlice::new(clock.clone()), ended_outages(&*source));
        Reflector {
            name,
            scope,
            source,
            decoder,
            store,
            counts,
            clock,
            progress: Arc::default(),
            random: fastrand::Rng::new(),
            written: 0,
            written_before_relist: 0,
            versions_doubtful: false,
            list_went_back: false,
            follower: VersionLosses::default().follow(),
            outages,
            paginated: false,
            slice,
            min_watch_timeout: MIN_WATCH_TIMEOUT,
        }
    }

    /// Sets the period of watches: each lasts one to two times as long; `None`: five minutes.
    pub(super) fn watching_for(mut self, min_watch_timeout: Option<Duration>) -> Reflector {
        self.min_watch_timeout = min_watch_timeout.unwrap_or(MIN_WATCH_TIMEOUT);
        self
    }

    /// Records the phases in `progress`, for debug pages.
    pub(super) fn reporting(mut self, progress: Arc<Progress>) -> Reflector {
        self.progress = progress;
        self
    }

    /// Makes it list again when a cache of the same `history` notices a loss of versions.
    pub(super) fn following(mut self, history: &VersionLosses) -> Reflector {
        self.follower = history.follow();
        self
    }

    /// Lists and watches, phase by phase; never ends. May be dropped at any time, which ends its
    /// requests. After a drop or a panic it may be called again, with [`DeltaFifo::abandon`]
    /// before: it begins with a whole list, not older than what was written.
    pub async fn run(&mut self) {
        let mut backoff = Backoff::new(self.clock.monotonic(), self.random.fork());
        let mut phase = Phase::Stream { start: Start::Any };
        let mut open = None;
        loop {
            self.progress.enter(&phase, self.clock.monotonic());
            let outages = ended_outages(&*self.source);
            // A request begins after an outage: its failure is a first one. A wait sends nothing,
            // and itself ends with an outage.
            if outages > self.outages && !matches!(phase, Phase::Wait { .. }) {
                self.outages = outages;
                backoff.reset(self.clock.monotonic());
            }
            // A loss of versions ends the phase, unless it lists the newest version already.
            let loss = match phase.lists_the_newest() {
                true => None,
                false => Some(self.follower.loss()),
            };
            let work = self.run_phase(&mut phase, &mut open);
            let outcome = match loss {
                None => work.await,
                Some(loss) => {
                    let lost = async {
                        loss.await;
                        Outcome::WentBack
                    };
                    work.or(lost).await
                }
            };
            self.versions_doubtful |= matches!(outcome, Outcome::TooLarge | Outcome::WentBack);
            log::debug!("{}: {phase:?} ended: {outcome:?}", self.name);
            trace::phase_ended(&self.scope.resource, &self.name, &phase, &outcome);
            phase = phase.after(outcome, || backoff.next(outcome, self.clock.monotonic()));
            if self.follower.is_behind() {
                self.doubt_versions();
                if !phase.lists_the_newest() {
                    phase = Phase::Stream { start: Start::Newest };
                }
            }
        }
    }

    /// Carries out a phase, and returns how it ended. `open`: the watch that a stream has left
    /// open.
    async fn run_phase(&mut self, phase: &mut Phase, open: &mut Option<Open>) -> Outcome {
        match phase {
            // Boxed, so that the task has no room for them while it watches.
            Phase::Stream { start } => match Box::pin(self.stream(*start)).await {
                Ok((version, events)) => {
                    *open = Some(events);
                    Outcome::Listed(version)
                }
                Err(outcome) => outcome,
            },
            Phase::List { start } => match Box::pin(self.list(*start)).await {
                Ok(version) => Outcome::Listed(version),
                Err(error) => {
                    self.log("cannot be listed", &error);
                    Outcome::from(&error)
                }
            },
            Phase::Watch { from } => self.watch(from, open.take()).await,
            // Where packets are dropped, it may take long until the request fails.
            Phase::Verify { from } => {
                let recovered = self.recovered(outages::PERIOD);
                Box::pin(self.verify(*from)).or(recovered).await
            }
            Phase::Wait { delay, least, .. } => {
                let recovered = self.recovered(*least);
                let waited = async {
                    self.clock.sleep(*delay).await;
                    Outcome::Waited
                };
                waited.or(recovered).await
            }
        }
    }

    /// Waits until an outage has ended since the last request began, and a random time more, so
    /// that not all caches continue at once. Asks the server nothing before `pause`. Never resolves
    /// if the source does not count outages.
    fn recovered(&mut self, pause: Duration) -> BoxFuture<'static, Outcome> {
        let (source, clock, known) = (self.source.clone(), self.clock.clone(), self.outages);
        let spread = SPREAD.mul_f64(self.random.f64());
        Box::pin(async move {
            clock.sleep(pause).await;
            match source.outages() {
                Some(outages) => outages.over(known, &*source, &clock).await,
                None => std::future::pending().await,
            }
            clock.sleep(spread).await;
            Outcome::Recovered
        })
    }

    /// Makes the next list count as one that goes back: no known state counts in it. Its version
    /// alone does not show that, as the server's versions may have passed the known ones again by
    /// then.
    fn doubt_versions(&mut self) {
        self.versions_doubtful = true;
        self.written_before_relist = u64::MAX;
    }

    /// Records for all caches that the server has lost versions, if the resource is built in. An
    /// aggregated API server counts versions of its own, which say nothing about the others; custom
    /// resources are lost together with built-in ones, whose caches notice it.
    fn record_loss(&self) {
        if self.scope.resource.is_built_in() {
            self.follower.record_loss(self.clock.monotonic());
        }
    }

    /// Logs a failed request at the level that its error deserves.
    fn log(&self, what: &str, error: &Error) {
        log::log!(level_of(error), "{}: {what}: {error}", self.name);
    }

    /// Ends the work on an item. When the slice is used up, yields, and waits until the queue is
    /// empty: a stream that is always ready then delays no other task, and the queue holds no more
    /// than one slice of items.
    async fn end_item(&mut self, began: Duration) {
        if self.slice.end_item(began) {
            yield_now().await;
            self.wait_until_drained().await;
        }
    }

    /// Yields until the queue is empty. The informer empties it in this task: each yield lets it
    /// work for one slice.
    async fn wait_until_drained(&self) {
        while !self.store.is_empty() {
            yield_now().await;
        }
    }

    /// Decodes an object, and logs one that cannot be decoded. `event`: the server's name for it,
    /// for the trace.
    fn decode(&self, object: &Encoded, event: &str) -> Received {
        self.progress.received();
        panics::at(|| format!("reflector of {}", self.name));
        let began = self.clock.monotonic();
        let decoded = self.decoder.decode(&self.name, object);
        match &decoded {
            Ok(decoded) => {
                let (now, size) = (self.clock.monotonic(), (object.bytes.len(), object.form));
                let (resource, took) = (&self.scope.resource, now.saturating_sub(began));
                trace::decoded(resource, decoded.meta(), event, size, took, now);
            }
            Err(undecoded) => {
                self.counts.undecoded.add_one();
                log::error!("{} (the {event} object is skipped)", undecoded.error);
            }
        }
        decoded
    }

    /// Decodes the object of an event.
    fn decode_event(&self, event: WatchEvent<Encoded>) -> WatchEvent<Received> {
        let name = match &event {
            WatchEvent::Added(_) => "added",
            WatchEvent::Modified(_) => "modified",
            WatchEvent::Deleted(_) => "deleted",
            WatchEvent::Bookmark(_) => "bookmark",
        };
        event.map(|object| self.decode(&object, name))
    }

    /// Writes an object of a list to the store; one that was not decoded keeps its state there.
    fn replace_item(&mut self, object: Received) {
        match object {
            Ok(object) => {
                self.written = self.written.max(object.meta().resource_version);
                self.list_went_back |= self.store.replace_item(object);
            }
            Err(undecoded) => {
                self.written = self.written.max(undecoded.version());
                self.store.keep_item(undecoded.identity.as_ref());
            }
        }
    }

    /// Writes a deletion to the store, and returns its version.
    ///
    /// # Errors
    /// When it is unknown which object was deleted: only a list shows that.
    fn delete(&mut self, object: Received) -> Result<u64, Error> {
        let version = match object {
            Ok(object) => {
                let version = object.meta().resource_version;
                self.store.delete(object);
                version
            }
            Err(Undecoded { identity: Some(known), .. }) => {
                self.store.delete_known(&known);
                known.resource_version
            }
            Err(undecoded) => return Err(undecoded.error.into()),
        };
        self.written = self.written.max(version);
        Ok(version)
    }

    /// Returns how old the next list may be: not older than what was written. Only a list of the
    /// newest version may be older: it follows when the server has lost versions, after a restored
    /// backup for example. `written` then moves to `written_before_relist`.
    fn start_of_list(&mut self, start: Start) -> Start {
        match start {
            Start::Any if self.written == 0 => Start::Any,
            Start::Any => Start::AtLeast(self.written),
            Start::AtLeast(version) => Start::AtLeast(version.max(self.written)),
            Start::Newest => {
                self.written_before_relist =
                    self.written_before_relist.max(std::mem::take(&mut self.written));
                Start::Newest
            }
        }
    }

    /// Begins a list, whose objects replace those of the store.
    fn begin_replace(&mut self) {
        self.list_went_back = false;
        self.store.begin_replace(match self.versions_doubtful {
            true => KnownState::Doubtful,
            false => KnownState::Trusted,
        });
    }

    /// Ends a list, and records a loss if the server's versions have gone back with it. `losses`:
    /// the number of losses of versions when the list was requested.
    async fn finish_replace(&mut self, version: u64, losses: u64) {
        self.written = version;
        self.versions_doubtful = false;
        let before = std::mem::take(&mut self.written_before_relist);
        let is_back = version < before || self.list_went_back;
        if is_back {
            log::warn!(
                "{}: the API server's versions went back to {version}, as after a restored backup: \
                 nothing known counts",
                self.name
            );
            self.record_loss();
        }
        self.store.finish_replace(version, is_back);
        if losses > 0 {
            // The list is recorded once the cache holds it: syncs wait for that after a loss.
            self.wait_until_drained().await;
        }
        self.follower.record_list(losses);
    }

    /// Asks for the server's newest version, with one object at most. Returns [`Outcome::WentBack`]
    /// if it is older than `from`, the version of the last event: the server has lost versions.
    async fn verify(&mut self, from: u64) -> Outcome {
        let request = ListRequest { limit: Some(1), ..ListRequest::default() };
        let newest = async {
            let mut parts = self.source.list(&self.scope, self.decoder.preferred, request).await?;
            while let Some(part) = parts.next().await {
                if let ListPart::End { resource_version, .. } = part? {
                    return Ok(self.version_of_list(&resource_version)?);
                }
            }
            Err(Error::Failed("the list ended before its end".into()))
        };
        match newest.await {
            Ok(newest) if newest < from => {
                self.doubt_versions();
                self.record_loss();
                Outcome::WentBack
            }
            Ok(_) => Outcome::Verified,
            Err(error) => {
                self.log("its newest version cannot be read", &error);
                Outcome::from(&error)
            }
        }
    }

    /// Opens a watch, and sets the times at which it should and must have ended. `initial`: whether
    /// it begins with all objects.
    async fn open_watch(&mut self, version: Option<u64>, initial: bool) -> Result<Open, Error> {
        self.counts.watches.add_one();
        let least = self.min_watch_timeout;
        let timeout = least + least.mul_f64(self.random.f64());
        // The request has whole seconds.
        let timeout = Duration::from_secs(timeout.as_secs());
        let end = self.clock.monotonic() + timeout;
        let deadline = self.clock.sleep(timeout + WATCH_GRACE);
        let request = WatchRequest {
            resource_version: version.map(|version| version.to_string()),
            send_initial_events: initial,
            timeout,
        };
        let events = self.source.watch(&self.scope, self.decoder.preferred, request).await?;
        Ok(Open { events, deadline, end })
    }

    /// Reads the list as the initial events of a watch, and returns its version with the watch;
    /// `Err`: how the phase ended instead. Upstream: `watchList`.
    async fn stream(&mut self, start: Start) -> Result<(u64, Open), Outcome> {
        self.counts.streams.add_one();
        let losses = self.follower.losses();
        let version = match self.start_of_list(start) {
            Start::AtLeast(version) => Some(version),
            Start::Any | Start::Newest => None,
        };
        let opened_at = self.clock.monotonic();
        let log_failure = |name: &str, error: Error| {
            log::debug!("{name}: cannot be listed by a watch: {error}");
            Outcome::from(&error)
        };
        let mut open =
            self.open_watch(version, true).await.map_err(|error| log_failure(&self.name, error))?;
        self.begin_replace();
        let mut silent = true;
        while let Some(event) = open.next().await {
            let began = self.slice.begin_item();
            silent = false;
            let event = event.map_err(|error| log_failure(&self.name, error))?;
            match self.decode_event(event) {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    self.replace_item(object);
                }
                WatchEvent::Bookmark(Bookmark { version, initial_events_end: true }) => {
                    self.finish_replace(version, losses).await;
                    return Ok((version, open));
                }
                WatchEvent::Bookmark(_) => {}
                // The server's own cache may lag at first; it catches up before the end.
                WatchEvent::Deleted(object) => {
                    self.delete(object).map_err(|error| log_failure(&self.name, error))?;
                }
            }
            self.end_item(began).await;
        }
        Err(self.end_of_watch(opened_at, silent))
    }

    /// Reads the whole list, in pages unless the server's watch cache sends it at once.
    /// Upstream: `Reflector.list`, `pager`.
    async fn list(&mut self, start: Start) -> Result<u64, Error> {
        self.counts.lists.add_one();
        let losses = self.follower.losses();
        let start = self.start_of_list(start);
        // A page of "at least" comes from etcd, the whole from the server's own cache.
        let whole = matches!(start, Start::AtLeast(_)) && !self.paginated;
        let mut request = ListRequest {
            resource_version: start.list_version(),
            limit: (!whole).then_some(PAGE_SIZE),
            continue_token: None,
        };
        self.begin_replace();
        loop {
            match self.list_page(request.clone()).await {
                Ok((version, None)) => {
                    self.finish_replace(version, losses).await;
                    return Ok(version);
                }
                Ok((_, Some(token))) => {
                    // A watch cache answers this request with all objects at once.
                    self.paginated |= start == Start::Any;
                    request.continue_token = Some(token);
                    request.resource_version = None;
                }
                Err(Error::Expired) if request.continue_token.is_some() => {
                    // The version of the pages is compacted: list again, all at once.
                    let resource_version = self.start_of_list(start).list_version();
                    request = ListRequest { resource_version, ..ListRequest::default() };
                    self.begin_replace();
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads one page, and returns the version of the list with the token of the next page.
    async fn list_page(&mut self, request: ListRequest) -> Result<(u64, Option<String>), Error> {
        let (source, scope) = (self.source.clone(), self.scope.clone());
        let mut parts = source.list(&scope, self.decoder.preferred, request).await?;
        while let Some(part) = parts.next().await {
            let began = self.slice.begin_item();
            match part? {
                ListPart::Item(object) => {
                    let object = self.decode(&object, "listed");
                    self.replace_item(object);
                }
                ListPart::End { resource_version, continue_token } => {
                    return Ok((self.version_of_list(&resource_version)?, continue_token));
                }
            }
            self.end_item(began).await;
        }
        Err(Error::Failed("the list ended before its end".into()))
    }

    /// Parses the `resourceVersion` of a list.
    fn version_of_list(&self, text: &str) -> Result<u64, DecodeError> {
        text.parse().map_err(|cause| {
            let what = format!("list of {} at resourceVersion {text:?}", self.name);
            DecodeError { what, cause: Box::new(cause) }
        })
    }

    /// Applies the events of a watch until it ends, and returns how it ended. `from`: the version
    /// of the last event, kept up to date.
    async fn watch(&mut self, from: &mut u64, open: Option<Open>) -> Outcome {
        let opened_at = self.clock.monotonic();
        let mut open = match open {
            Some(open) => open,
            None => match self.open_watch(Some(*from), false).await {
                Ok(open) => open,
                Err(error) => {
                    self.log("cannot be watched", &error);
                    return Outcome::from(&error);
                }
            },
        };
        let (mut silent, mut broke) = (true, false);
        while let Some(event) = open.next().await {
            let began = self.slice.begin_item();
            let version = match event.and_then(|event| self.apply(self.decode_event(event))) {
                Ok(version) => version,
                Err(error) => match Outcome::from(&error) {
                    Outcome::Failed => {
                        log::debug!("{}: the watch broke: {error}", self.name);
                        broke = true;
                        break;
                    }
                    outcome => {
                        self.log("the watch ended", &error);
                        return outcome;
                    }
                },
            };
            silent = false;
            *from = version.max(*from);
            self.end_item(began).await;
        }
        match self.end_of_watch(opened_at, silent) {
            Outcome::Closed if broke || open.is_early(self.clock.monotonic()) => Outcome::Broke,
            outcome => outcome,
        }
    }

    /// Writes an event of a watch to the store. Returns its version; 0 when it is unknown.
    fn apply(&mut self, event: WatchEvent<Received>) -> Result<u64, Error> {
        let version = match event {
            WatchEvent::Added(Ok(object)) => {
                let version = object.meta().resource_version;
                self.store.add(object);
                version
            }
            WatchEvent::Modified(Ok(object)) => {
                let version = object.meta().resource_version;
                self.store.update(object);
                version
            }
            WatchEvent::Deleted(object) => return self.delete(object),
            // The last known state stays.
            WatchEvent::Added(Err(undecoded)) | WatchEvent::Modified(Err(undecoded)) => {
                self.store.bookmark(undecoded.version());
                undecoded.version()
            }
            WatchEvent::Bookmark(Bookmark { version, .. }) => {
                self.store.bookmark(version);
                version
            }
        };
        self.written = self.written.max(version);
        Ok(version)
    }

    /// Returns the outcome of a watch that the server has ended; logs one that was too short.
    /// `silent`: whether it was without an event.
    fn end_of_watch(&self, opened_at: Duration, silent: bool) -> Outcome {
        let lasted = self.clock.monotonic().saturating_sub(opened_at);
        if !silent || lasted >= SHORT_WATCH {
            return Outcome::Closed;
        }
        self.counts.short_watches.add_one();
        log::warn!("{}: the watch ended after {lasted:?} without an event", self.name);
        Outcome::Short
    }
}

/// Returns how many outages of the server have ended; 0 for a source that does not count them.
fn ended_outages(source: &dyn Source) -> u64 {
    source.outages().map_or(0, Outages::ended)
}

impl Open {
    /// Returns whether the server has ended the watch before its time, as it does when it stops.
    fn is_early(&self, now: Duration) -> bool {
        now + CLOCK_SLACK < self.end
    }

    /// Returns the next event; `None` at the end, or when the connection counts as dead.
    fn next(&mut self) -> impl Future<Output = Option<Result<WatchEvent<Encoded>, Error>>> {
        let deadline = &mut self.deadline;
        self.events.next().or(async {
            deadline.await;
            None
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_of_the_server_is_no_error() {
        let busy = Error::Busy { after: Duration::from_secs(3) };
        for quiet in [Error::Expired, busy, Error::Unreachable("refused".into())] {
            assert_eq!(level_of(&quiet), Level::Debug, "{quiet}");
        }
        for loud in [Error::TooLarge, Error::EndedByServer("no".into()), Error::Failed("no".into())]
        {
            assert_eq!(level_of(&loud), Level::Error, "{loud}");
        }
    }
}
