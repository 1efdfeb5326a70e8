//! Which events are sent, and as what. Upstream: tools/record/events_cache.go.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use super::event::Event;
use super::lru::Lru;
use crate::objects::Timestamp;

const CACHE_SIZE: usize = 4096;
/// So many events that differ only in their message, and they are combined.
const AGGREGATE_MAX_EVENTS: usize = 10;
/// ... unless none came for longer than this.
const AGGREGATE_INTERVAL: Duration = Duration::from_secs(600);
/// So many events of a source about an object are let through at once ...
const SPAM_BURST: f64 = 25.0;
/// ... and then one for each of these.
const SPAM_REFILL: Duration = Duration::from_secs(300);

/// Combines, counts and drops events. Keeps what it remembers under hashes: the caches hold no
/// strings but the names of events.
pub(super) struct Correlator {
    hasher: RandomState,
    similar: Lru<Similar>,
    series: Lru<Series>,
    spam: Lru<Bucket>,
}

/// Events that differ only in their message.
#[derive(Default)]
struct Similar {
    /// Different messages, in no order.
    messages: Vec<u64>,
    last: Duration,
}

/// The same event again and again.
#[derive(Default)]
struct Series {
    count: u32,
    name: String,
    first_timestamp: Timestamp,
}

/// A token bucket, by what was taken from it.
#[derive(Default)]
struct Bucket {
    taken: f64,
    at: Duration,
}

/// What is done with an event.
#[derive(Debug, PartialEq)]
pub(super) enum Correlated {
    /// The first of its kind.
    Create(Event),
    /// Again: the count and the time in the event on the server change.
    Patch(Event),
    /// Too many.
    Skip,
}

/// When an event is correlated: the object's time, the clock's, and what a new name is made of.
#[derive(Clone, Copy)]
pub(super) struct Now {
    pub wall: Timestamp,
    pub monotonic: Duration,
    pub nanos: i64,
}

impl Correlator {
    pub fn new() -> Correlator {
        Correlator {
            hasher: RandomState::new(),
            similar: Lru::new(CACHE_SIZE),
            series: Lru::new(CACHE_SIZE),
            spam: Lru::new(CACHE_SIZE),
        }
    }

    pub fn correlate(&mut self, event: Event, now: Now) -> Correlated {
        let spam_key = self.spam_key(&event);
        let (mut event, key) = self.aggregate(event, now);
        let again = self.observe(&mut event, key);
        if !self.spam.entry(spam_key).take(now.monotonic) {
            return Correlated::Skip;
        }
        if again { Correlated::Patch(event) } else { Correlated::Create(event) }
    }

    /// The event, or the one that stands for it and those like it, and the key of its series.
    fn aggregate(&mut self, event: Event, now: Now) -> (Event, u64) {
        let about = &event.involved_object;
        let similar_key = self.hasher.hash_one((
            &event.source.component,
            (&about.kind, &about.namespace, &about.name, &about.uid, &about.api_version),
            event.event_type,
            &event.reason,
            &event.reporting_component,
        ));
        let message = self.hasher.hash_one(&event.message);
        let similar = self.similar.entry(similar_key);
        if now.monotonic.saturating_sub(similar.last) > AGGREGATE_INTERVAL {
            similar.messages.clear();
        }
        similar.last = now.monotonic;
        if !similar.messages.contains(&message) {
            similar.messages.push(message);
        }
        if similar.messages.len() < AGGREGATE_MAX_EVENTS {
            let key = self.hasher.hash_one((
                &event.source.component,
                &event.involved_object.field_path,
                similar_key,
                message,
            ));
            return (event, key);
        }
        // Any one, as upstream: were it the oldest, messages that come round in turn would all be gone
        // by the time they come again.
        let any = self.hasher.hash_one((message, now.nanos)) % similar.messages.len() as u64;
        similar.messages.swap_remove(any as usize);
        (event.combined(now.wall, now.nanos), similar_key)
    }

    /// Makes `event` the next of its series; returns whether there was one before it.
    fn observe(&mut self, event: &mut Event, key: u64) -> bool {
        let series = self.series.entry(key);
        let again = series.count > 0;
        if again {
            event.metadata.name.clone_from(&series.name);
            event.first_timestamp = series.first_timestamp;
            event.count = series.count.saturating_add(1);
        } else {
            series.name.clone_from(&event.metadata.name);
            series.first_timestamp = event.first_timestamp;
        }
        series.count = event.count;
        again
    }

    fn spam_key(&self, event: &Event) -> u64 {
        let about = &event.involved_object;
        self.hasher.hash_one((
            &event.source.component,
            (&about.kind, &about.namespace, &about.name, &about.uid, &about.api_version),
            event.event_type,
        ))
    }
}

impl Bucket {
    fn take(&mut self, now: Duration) -> bool {
        let refill = now.saturating_sub(self.at).as_secs_f64() / SPAM_REFILL.as_secs_f64();
        self.taken = (self.taken - refill).max(0.0);
        self.at = now;
        // Sums of thirds of a token may miss a whole one by a hair.
        let fits = self.taken + 1.0 <= SPAM_BURST + 1e-9;
        if fits {
            self.taken += 1.0;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::{EventType, ObjectReference};
    use super::*;

    struct Fixture {
        correlator: Correlator,
        secs: u64,
        nanos: i64,
    }

    fn about(name: &str) -> ObjectReference {
        ObjectReference {
            api_version: "v1".into(),
            kind: "Pod".into(),
            namespace: "ns".into(),
            name: name.into(),
            uid: name.into(),
            resource_version: "1".into(),
            field_path: String::new(),
        }
    }

    impl Fixture {
        fn new() -> Fixture {
            Fixture { correlator: Correlator::new(), secs: 1_000_000, nanos: 0 }
        }

        fn record(&mut self, object: &str, reason: &str, message: &str) -> Correlated {
            self.nanos += 1;
            let wall = Timestamp::from_secs(self.secs as i64);
            let about = about(object);
            let event = Event::new(
                "test".into(),
                &about,
                EventType::Normal,
                reason,
                message.into(),
                wall,
                self.nanos,
            );
            let monotonic = Duration::from_secs(self.secs);
            self.correlator.correlate(event, Now { wall, monotonic, nanos: self.nanos + 0x1000 })
        }
    }

    /// Name, count and message.
    fn patch(correlated: Correlated) -> (String, u32, String) {
        match correlated {
            Correlated::Patch(event) => (event.metadata.name, event.count, event.message),
            other => panic!("{other:?}"),
        }
    }

    fn created(correlated: Correlated) -> Event {
        match correlated {
            Correlated::Create(event) => event,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_same_event_again_is_counted() {
        let mut f = Fixture::new();
        let first = created(f.record("a", "Started", "x"));
        f.secs += 5;
        assert_eq!(patch(f.record("a", "Started", "x")), ("a.1".into(), 2, "x".into()));
        let Correlated::Patch(third) = f.record("a", "Started", "x") else { panic!() };
        assert_eq!((third.count, third.first_timestamp), (3, first.first_timestamp));
        assert_eq!(
            third.series_patch(),
            serde_json::json!({ "count": 3, "lastTimestamp": "1970-01-12T13:46:45Z", "message": "x" })
        );
        // Another message, reason or object is another event.
        created(f.record("a", "Started", "y"));
        created(f.record("a", "Stopped", "x"));
        created(f.record("b", "Started", "x"));
    }

    #[test]
    fn similar_events_are_combined_from_the_tenth_on() {
        let mut f = Fixture::new();
        for i in 1..10 {
            assert_eq!(
                created(f.record("a", "Created", &format!("pod {i}"))).message,
                format!("pod {i}")
            );
        }
        let combined = created(f.record("a", "Created", "pod 10"));
        assert_eq!(combined.message, "(combined from similar events): pod 10");
        assert_eq!((combined.metadata.name.as_str(), combined.count), ("a.100a", 1));
        assert_eq!((&*combined.reporting_component, &*combined.source.component), ("", "test"));
        assert_eq!(
            patch(f.record("a", "Created", "pod 11")),
            ("a.100a".into(), 2, "(combined from similar events): pod 11".into())
        );
        // Ten minutes of quiet, and messages are told apart again.
        f.secs += 601;
        assert_eq!(created(f.record("a", "Created", "pod 12")).message, "pod 12");
    }

    #[test]
    fn what_comes_round_again_is_mostly_counted_for_itself() {
        let mut f = Fixture::new();
        let mut own = 0;
        for object in 0..100 {
            let object = format!("web-{object}");
            let mut round =
                || (0..12).map(|i| f.record(&object, "Scaled", &format!("to {i}"))).collect();
            let _: Vec<Correlated> = round();
            let again: Vec<Correlated> = round();
            let of_its_own = |what: &Correlated| match what {
                Correlated::Patch(event) => event.message.starts_with("to "),
                _ => false,
            };
            own += again.iter().filter(|what| of_its_own(what)).count();
        }
        assert!((400..1100).contains(&own), "{own} of 1200");
    }

    #[test]
    fn a_source_may_say_so_much_about_an_object() {
        let mut f = Fixture::new();
        let sent = |f: &mut Fixture, object: &str, times: usize| {
            (0..times).filter(|_| f.record(object, "Failed", "x") != Correlated::Skip).count()
        };
        assert_eq!(sent(&mut f, "a", 40), 25);
        assert_eq!(sent(&mut f, "b", 40), 25, "each object has its own");
        f.secs += 299;
        assert_eq!(sent(&mut f, "a", 3), 0);
        f.secs += 1;
        assert_eq!(sent(&mut f, "a", 3), 1);
        f.secs += 3600;
        // What was not sent was counted.
        assert_eq!(patch(f.record("a", "Failed", "x")).1, 47);
        assert_eq!(sent(&mut f, "a", 40), 11);
    }
}
