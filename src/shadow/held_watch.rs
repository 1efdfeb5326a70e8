//! The watches of shadow mode. Writes of the manager in charge wait here until this one has wanted
//! them too, so that each manager decides on the same state: without the other's answer to it.

use std::cell::OnceCell;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_lite::future::FutureExt;
use futures_lite::stream::{self, Boxed as BoxStream, StreamExt};
use parking_lot::Mutex;
use serde_json::Value;

use super::Inner;
use super::author::{Head, Metadata, bound_to, owned_fields};
use super::event_order::{self, Origin};
use super::ledger::{Kind, Seen, Write};
use super::working_time::STEP;
use crate::cache::{Answer, BoxFuture, Error, ListRequest, Outages, Scope, Source, WatchRequest};
use crate::objects::{Encoded, Form, ListPart, ObjectKey, WatchEvent};

/// How long a write of the manager in charge waits until this manager wants it too.
const PATIENCE: Duration = Duration::from_secs(2);
/// A write also waits for this time after the last write that passed without being wanted, and
/// after the last write in its namespace that was wanted, because this manager is catching up. Up
/// to a limit.
const MORE_PATIENCE: Duration = Duration::from_secs(1);
const LONGEST_PATIENCE: Duration = Duration::from_secs(10);
/// The limit while a controller still works on earlier events, or has not seen the request that a
/// write answers; also the limit for events that wait for writes.
const LIMIT: Duration = Duration::from_secs(30);
/// Resources that controllers sync periodically: how long their writes wait.
const PERIODS: [(&str, Duration); 3] = [
    ("nodes", Duration::from_secs(7)),
    ("persistentvolumeclaims", Duration::from_secs(7)),
    ("persistentvolumes", Duration::from_secs(7)),
];

type Event = WatchEvent<Encoded>;
type Events = BoxStream<Result<Event, Error>>;

/// A source whose watches hold back the writes of the manager in charge until this manager has
/// wanted them too.
pub struct HeldStream {
    source: Arc<dyn Source>,
    shadow: Arc<Inner>,
    /// Events that were held by watches that have been dropped; the next watch continues after
    /// them.
    undelivered: Arc<Mutex<HashMap<Scope, VecDeque<Event>>>>,
}

impl HeldStream {
    #[expect(clippy::new_ret_no_self, reason = "callers want the trait object")]
    pub fn new(source: Arc<dyn Source>, shadow: Arc<Inner>) -> Arc<dyn Source> {
        Arc::new(HeldStream { source, shadow, undelivered: Arc::default() })
    }
}

impl Source for HeldStream {
    /// Lists from the source, and observes who wrote each object; a list replaces the events that
    /// were held.
    fn list<'a>(
        &'a self,
        scope: &'a Scope,
        preferred: Form,
        request: ListRequest,
    ) -> Answer<'a, ListPart<Encoded>> {
        self.undelivered.lock().remove(scope);
        self.shadow.authors.lock().remove(scope);
        Box::pin(async move {
            let parts = self.source.list(scope, preferred, request).await?;
            let (shadow, scope) = (self.shadow.clone(), scope.clone());
            let seen = parts.inspect(move |part| {
                if let Ok(ListPart::Item(object)) = part
                    && let Some(meta) = metadata(object)
                {
                    shadow.observe(&scope, &meta);
                }
            });
            Ok(seen.boxed() as BoxStream<_>)
        })
    }

    /// Watches the source, and holds events back until this manager has had the time to want them.
    fn watch<'a>(
        &'a self,
        scope: &'a Scope,
        preferred: Form,
        request: WatchRequest,
    ) -> Answer<'a, Event> {
        Box::pin(async move {
            let is_initial = request.send_initial_events;
            let events = self.source.watch(scope, preferred, request).await?;
            let undelivered = self.undelivered.lock().remove(scope).unwrap_or_default();
            let flow = Flow {
                events,
                end: None,
                ready: if is_initial { VecDeque::new() } else { undelivered },
                held: Vec::new(),
                is_initial,
                resource: scope.resource.to_string(),
                patience: patience(&scope.resource.to_string()),
                scope: scope.clone(),
                undelivered: self.undelivered.clone(),
                shadow: self.shadow.clone(),
            };
            let events = stream::unfold(flow, |mut flow| async move {
                let event = flow.next().await?;
                Some((event, flow))
            });
            Ok(events.boxed() as BoxStream<_>)
        })
    }

    fn is_ready(&self) -> BoxFuture<'_, bool> {
        self.source.is_ready()
    }

    fn outages(&self) -> Option<&Outages> {
        self.source.outages()
    }
}

/// An event that waits.
struct Held {
    event: Event,
    object: ObjectKey,
    waits: Waits,
    /// In working time, as all times of waits.
    since: Duration,
}

enum Waits {
    /// A write of the manager in charge: waits until this manager has wanted it.
    ToBeWanted(Box<Write>, Option<Turn>),
    /// A request of another user: waits until no earlier write in its namespace waits.
    ForWrites(Turn),
    /// An event that follows a waiting event of the same object.
    ForItsObject,
}

/// A position in the order of the waiting events of a namespace; the drop records that the event
/// has passed.
struct Turn {
    what: Origin,
    namespace: String,
    version: u64,
    shadow: Arc<Inner>,
}

impl Turn {
    /// Records a waiting event in the order of its namespace. Returns `None` for an event without a
    /// namespace or without a version that can be ordered.
    fn take(what: Origin, namespace: &str, version: &str, shadow: &Arc<Inner>) -> Option<Turn> {
        let version = event_order::version_number(version).filter(|_| !namespace.is_empty())?;
        shadow.order.lock().record_waiting(what, namespace, version, shadow.waiting.elapsed());
        Some(Turn { what, namespace: namespace.to_owned(), version, shadow: shadow.clone() })
    }

    /// Returns whether an earlier event of this origin still waits in the namespace.
    fn comes_after(&self, what: Origin) -> bool {
        self.shadow.order.lock().has_waiting_before(what, &self.namespace, self.version)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.shadow.order.lock().record_passed(self.what, &self.namespace, self.version);
        self.shadow.moved.notify(usize::MAX);
    }
}

/// The state of one watch: the source's events, those that are held, and those that may pass.
struct Flow {
    events: Events,
    /// Set when the source has ended: its error, if any, until `next` has returned it.
    end: Option<Option<Error>>,
    /// Events that may pass.
    ready: VecDeque<Event>,
    held: Vec<Held>,
    /// Whether the watch still delivers its initial events, which are not held.
    is_initial: bool,
    resource: String,
    patience: Duration,
    scope: Scope,
    undelivered: Arc<Mutex<HashMap<Scope, VecDeque<Event>>>>,
    shadow: Arc<Inner>,
}

impl Drop for Flow {
    /// Keeps the events that have not passed for the next watch of the scope.
    fn drop(&mut self) {
        // A watch that ends during its initial events is followed by one that delivers them again.
        let mut undelivered = std::mem::take(&mut self.ready);
        undelivered.extend(self.held.drain(..).map(|held| held.event));
        if !undelivered.is_empty() && !self.is_initial {
            self.undelivered.lock().entry(self.scope.clone()).or_default().extend(undelivered);
        }
    }
}

impl Flow {
    /// Returns the next event that may pass, or the end of the watch.
    async fn next(&mut self) -> Option<Result<Event, Error>> {
        loop {
            let listening = (!self.held.is_empty()).then(|| self.shadow.moved.listen());
            let due = self.release();
            if let Some(event) = self.ready.pop_front() {
                return Some(Ok(event));
            }
            if let Some(end) = &mut self.end {
                return end.take().map(Err);
            }
            let clock = self.shadow.clock.clone();
            let arrived = match due.zip(listening) {
                None => self.events.next().await,
                Some((wait, listening)) => {
                    let arrives = async { Some(self.events.next().await) };
                    let waited = async {
                        clock.sleep(wait).or(listening).await;
                        None
                    };
                    match arrives.or(waited).await {
                        Some(arrived) => arrived,
                        None => continue,
                    }
                }
            };
            match arrived {
                Some(Ok(event)) => self.receive(event),
                Some(Err(error)) => self.finish(Some(error)),
                None => self.finish(None),
            }
        }
    }

    /// Ends the watch and lets all events pass.
    fn finish(&mut self, error: Option<Error>) {
        self.end = Some(error);
        self.ready.extend(self.held.drain(..).map(|held| held.event));
    }

    /// Records an event in the ledger, then lets it pass or holds it: a write of the manager in
    /// charge until this manager wants it too, and events that must come after such a write.
    fn receive(&mut self, event: Event) {
        let (object, seen) = match &event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, Seen::Present),
            WatchEvent::Deleted(object) => (object, Seen::Gone),
            WatchEvent::Bookmark(bookmark) => {
                self.is_initial &= !bookmark.initial_events_end;
                self.ready.push_back(event);
                return;
            }
        };
        let Some(meta) = metadata(object) else {
            self.ready.push_back(event);
            return;
        };
        let shadow = &self.shadow;
        let now = shadow.clock.monotonic();
        let (write, is_user_request) = match seen {
            Seen::Present => shadow.observe(&self.scope, &meta),
            Seen::Gone => (None, shadow.forget(&self.scope, &meta.uid)),
        };
        let by_incumbent = write.is_some();
        let is_new = matches!(event, WatchEvent::Added(_)) && !self.is_initial;
        let generated = if is_new { meta.generated(&self.resource) } else { None };
        let is_judged = !self.is_initial && shadow.is_judging.load(Ordering::Relaxed);
        let mut write = write.filter(|_| is_judged);
        // A new object counts as a creation, even if this was not the first write.
        if let Some(write) = write.as_mut().filter(|_| !is_new)
            && write.kind == Kind::Create
        {
            write.kind = Kind::Change(String::new());
        }
        if let Some(write) = write.as_mut().filter(|_| self.resource == "persistentvolumes")
            && let Some(object) = decode_json(object)
            && let Some(claim) = bound_to(&self.resource, &object)
        {
            // The managers may bind the claim to different volumes that fit equally well.
            write.siblings = Some(write.place.of_owner(claim));
        }
        if let Some(write) = write.as_ref().filter(|write| write.kind == Kind::Create)
            && !self.scope.metadata_only
            && let Some(object) = decode_json(object)
        {
            shadow.ledger.lock().record_created(now, write, &object);
        }
        let place = meta.place(&self.resource);
        if seen == Seen::Gone {
            shadow.ledger.lock().record_gone(&place, &meta.uid);
        }
        shadow.ledger.lock().record_seen(
            now,
            &place,
            generated.as_ref(),
            seen,
            by_incumbent,
            || decode_json(object),
        );
        let object = ObjectKey::new(&meta.namespace, &meta.name);
        let turn = |what| Turn::take(what, &meta.namespace, &meta.resource_version, shadow);
        let waits = match write {
            Some(write) => Waits::ToBeWanted(Box::new(write), turn(Origin::Write)),
            None if self.held.iter().any(|held| held.object == object) => Waits::ForItsObject,
            None => {
                let turn =
                    (is_user_request && is_judged).then(|| turn(Origin::ForeignRequest)).flatten();
                match turn.filter(|turn| turn.comes_after(Origin::Write)) {
                    Some(turn) => Waits::ForWrites(turn),
                    None => {
                        self.ready.push_back(event);
                        return;
                    }
                }
            }
        };
        let since = shadow.waiting.elapsed();
        self.held.push(Held { event, object, waits, since });
    }

    /// Lets events pass that this manager has wanted or that have waited for too long. Returns the
    /// time until the next call, at most [`STEP`]; `None` if no event is held.
    fn release(&mut self) -> Option<Duration> {
        if self.held.is_empty() {
            return None;
        }
        let shadow = &self.shadow;
        let (clock_now, now) = (shadow.clock.monotonic(), shadow.waiting.elapsed());
        let mut ledger = shadow.ledger.lock();
        let mut last_suspect = shadow.last_suspect.lock();
        let mut next: Option<Duration> = None;
        let mut still_held: Vec<Held> = Vec::new();
        let backlog = OnceCell::new();
        let has_caught_up = |ago: Duration| *backlog.get_or_init(|| shadow.oldest_key_age()) < ago;
        for mut held in self.held.drain(..) {
            if still_held.iter().any(|before| before.object == held.object) {
                still_held.push(held);
                continue;
            }
            let (age, limit) = (now - held.since, held.since + LIMIT);
            let until = match &mut held.waits {
                Waits::ForItsObject => now,
                Waits::ForWrites(turn) if turn.comes_after(Origin::Write) => limit,
                Waits::ForWrites(_) => now,
                Waits::ToBeWanted(write, _) if ledger.expects(clock_now, write) => {
                    shadow.order.lock().record_wanted(&write.place.namespace, now);
                    now
                }
                Waits::ToBeWanted(write, turn) => {
                    let wanted = shadow.order.lock().last_wanted(&write.place.namespace);
                    let until = earliest_pass(held.since, self.patience, wanted.max(*last_suspect));
                    let is_answer = || {
                        turn.as_ref().is_some_and(|turn| turn.comes_after(Origin::ForeignRequest))
                    };
                    // It waits on, up to the limit, while this manager cannot want it yet: an
                    // earlier request of a user is held too, or a controller still has a key that
                    // is as old as the event.
                    if now < until || (now < limit && (is_answer() || !has_caught_up(age))) {
                        until.max(now + STEP)
                    } else {
                        write.fields = fields_of(&held.event, &write.kind);
                        *last_suspect = now;
                        ledger.suspect(clock_now, Write::clone(write));
                        now
                    }
                }
            };
            if until <= now {
                self.ready.push_back(held.event);
            } else {
                let step = STEP.min(until - now);
                next = Some(next.map_or(step, |next| next.min(step)));
                still_held.push(held);
            }
        }
        self.held = still_held;
        next
    }
}

/// Returns the earliest time at which a write that came at `since` may pass unwanted. `followed`:
/// when this manager last made progress.
fn earliest_pass(since: Duration, patience: Duration, followed: Duration) -> Duration {
    (since + patience).max((followed + MORE_PATIENCE).min(since + LONGEST_PATIENCE))
}

/// Returns how long a write of this resource waits for this manager to want it.
fn patience(resource: &str) -> Duration {
    let period = PERIODS.iter().find(|(of, _)| *of == resource);
    period.map_or(PATIENCE, |(_, period)| *period)
}

/// Returns the metadata of an object in JSON; `None` for Protobuf and for malformed JSON.
fn metadata(object: &Encoded) -> Option<Metadata> {
    match object.form {
        Form::Json => serde_json::from_slice(&object.bytes).ok().map(|head: Head| head.metadata),
        Form::Protobuf => None,
    }
}

/// Returns the object, if it is in JSON.
fn decode_json(object: &Encoded) -> Option<Value> {
    match object.form {
        Form::Json => serde_json::from_slice(&object.bytes).ok(),
        Form::Protobuf => None,
    }
}

/// Returns the fields that the manager in charge owns in the object of an event.
fn fields_of(event: &Event, kind: &Kind) -> Vec<String> {
    let (WatchEvent::Added(object) | WatchEvent::Modified(object)) = event else {
        return Vec::new();
    };
    let subresource = match kind {
        Kind::Change(subresource) => subresource.as_str(),
        Kind::Create | Kind::Read => "",
    };
    decode_json(object).map(|object| owned_fields(&object, subresource)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
