//! Decides which events are sent, and whether each is created or patched.
//! Upstream: `tools/record/events_cache.go`.

use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroUsize;
use std::time::Duration;

use lru::LruCache;

use super::event::Event;
use crate::objects::Timestamp;

/// Upstream: `maxLruCacheEntries`.
const CACHE_SIZE: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
/// From this number on, events that differ only in their message are combined.
const AGGREGATE_MAX_EVENTS: usize = 10;
/// A pause longer than this starts the count of similar events again.
const AGGREGATE_INTERVAL: Duration = Duration::from_secs(600);
/// The events of one source about one object that may be sent in a burst.
const SPAM_BURST: f64 = 25.0;
/// The time after which one more event may be sent.
const SPAM_REFILL: Duration = Duration::from_secs(300);

/// Combines, counts and drops events. The caches are keyed by hashes; the only strings in them are
/// the names of events.
pub(super) struct Correlator {
    hasher: RandomState,
    similar: LruCache<u64, Similar>,
    series: LruCache<u64, Series>,
    spam: LruCache<u64, Bucket>,
}

/// Makes an empty cache. `LruCache::new` would allocate the table for all entries at once.
fn cache<V>() -> LruCache<u64, V> {
    let mut cache = LruCache::unbounded();
    cache.resize(CACHE_SIZE);
    cache
}

/// Events that differ only in their message.
#[derive(Default)]
struct Similar {
    /// Hashes of the distinct messages, unordered.
    messages: Vec<u64>,
    /// When the last event came, on the monotonic clock.
    last: Duration,
}

/// Repetitions of one event.
#[derive(Default)]
struct Series {
    count: u32,
    name: String,
    first_timestamp: Timestamp,
}

/// A token bucket; counts the tokens taken.
#[derive(Default)]
struct Bucket {
    used: f64,
    /// When `used` was computed, on the monotonic clock.
    at: Duration,
}

/// What is written of an event.
#[derive(Debug, PartialEq)]
pub(super) struct Correlated {
    pub event: Event,
    /// The events with which it is counted.
    pub series: u64,
    /// It is a repetition: count and time of the event on the server are updated.
    pub is_repetition: bool,
}

/// The time of an event: wall clock, monotonic clock, and the nanoseconds used in new names.
#[derive(Clone, Copy)]
pub(super) struct Now {
    pub wall: Timestamp,
    pub monotonic: Duration,
    pub nanos: i64,
}

impl Correlator {
    pub fn new() -> Correlator {
        Correlator { hasher: RandomState::new(), similar: cache(), series: cache(), spam: cache() }
    }

    /// Combines and counts an event, and returns what is written of it. `None`: it is dropped,
    /// since the source exceeds its rate for this object.
    pub fn correlate(&mut self, event: Event, now: Now) -> Option<Correlated> {
        let spam_key = self.spam_key(&event);
        let (mut event, series) = self.aggregate(event, now);
        let is_repetition = self.count(&mut event, series);
        let fits = self.spam.get_or_insert_mut(spam_key, Bucket::default).take(now.monotonic);
        fits.then_some(Correlated { event, series, is_repetition })
    }

    /// Returns the event, or the combined event that replaces it, and the key of its series.
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
        let similar = self.similar.get_or_insert_mut(similar_key, Similar::default);
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
        // Evicts an arbitrary message, as upstream. Evicting the oldest would forget each of a set
        // of rotating messages just before it repeats.
        let any = self.hasher.hash_one((message, now.nanos)) % similar.messages.len() as u64;
        similar.messages.swap_remove(any as usize);
        (event.combined(now.wall, now.nanos), similar_key)
    }

    /// Counts `event` in its series and gives it the name, the first time and the count of that.
    /// Returns whether the series already had an event.
    fn count(&mut self, event: &mut Event, key: u64) -> bool {
        let series = self.series.get_or_insert_mut(key, Series::default);
        let is_repetition = series.count > 0;
        if is_repetition {
            event.metadata.name.clone_from(&series.name);
            event.first_timestamp = series.first_timestamp;
            event.count = series.count.saturating_add(1);
        } else {
            series.name.clone_from(&event.metadata.name);
            series.first_timestamp = event.first_timestamp;
        }
        series.count = event.count;
        is_repetition
    }

    /// Returns the key under which events of one source about one object are limited together.
    /// Upstream: `getSpamKey`.
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
    /// Takes a token; returns `false` when all are used.
    fn take(&mut self, now: Duration) -> bool {
        let refill = now.saturating_sub(self.at).as_secs_f64() / SPAM_REFILL.as_secs_f64();
        self.used = (self.used - refill).max(0.0);
        self.at = now;
        // Tolerates rounding in sums of fractional tokens.
        let fits = self.used + 1.0 <= SPAM_BURST + 1e-9;
        if fits {
            self.used += 1.0;
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
            resource_version: 1,
            field_path: "".into(),
        }
    }

    impl Fixture {
        fn new() -> Fixture {
            Fixture { correlator: Correlator::new(), secs: 1_000_000, nanos: 0 }
        }

        fn record(&mut self, object: &str, reason: &str, message: &str) -> Option<Correlated> {
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
    fn patch(correlated: Option<Correlated>) -> (String, u32, String) {
        let event = expect_patch(correlated);
        (event.metadata.name, event.count, event.message)
    }

    fn expect_patch(correlated: Option<Correlated>) -> Event {
        let Some(Correlated { event, is_repetition: true, .. }) = correlated else {
            panic!("{correlated:?}")
        };
        event
    }

    fn expect_creation(correlated: Option<Correlated>) -> Event {
        let Some(Correlated { event, is_repetition: false, .. }) = correlated else {
            panic!("{correlated:?}")
        };
        event
    }

    #[test]
    fn repeated_event_is_counted() {
        let mut f = Fixture::new();
        let first = expect_creation(f.record("a", "Started", "x"));
        f.secs += 5;
        assert_eq!(patch(f.record("a", "Started", "x")), ("a.1".into(), 2, "x".into()));
        let third = expect_patch(f.record("a", "Started", "x"));
        assert_eq!((third.count, third.first_timestamp), (3, first.first_timestamp));
        assert_eq!(
            third.series_patch(),
            serde_json::json!({ "count": 3, "lastTimestamp": "1970-01-12T13:46:45Z", "message": "x" })
        );
        // Another message, reason or object is another event.
        expect_creation(f.record("a", "Started", "y"));
        expect_creation(f.record("a", "Stopped", "x"));
        expect_creation(f.record("b", "Started", "x"));
    }

    #[test]
    fn similar_events_are_combined_from_the_tenth_on() {
        let mut f = Fixture::new();
        for i in 1..10 {
            assert_eq!(
                expect_creation(f.record("a", "Created", &format!("pod {i}"))).message,
                format!("pod {i}")
            );
        }
        let combined = expect_creation(f.record("a", "Created", "pod 10"));
        assert_eq!(combined.message, "(combined from similar events): pod 10");
        assert_eq!((combined.metadata.name.as_str(), combined.count), ("a.100a", 1));
        assert_eq!((&*combined.reporting_component, &*combined.source.component), ("", "test"));
        assert_eq!(
            patch(f.record("a", "Created", "pod 11")),
            ("a.100a".into(), 2, "(combined from similar events): pod 11".into())
        );
        // After ten minutes without events, messages are kept apart again.
        f.secs += 601;
        assert_eq!(expect_creation(f.record("a", "Created", "pod 12")).message, "pod 12");
    }

    #[test]
    fn rotating_messages_are_mostly_counted_separately() {
        let mut f = Fixture::new();
        let mut own = 0;
        for object in 0..100 {
            let object = format!("web-{object}");
            let mut round =
                || (0..12).map(|i| f.record(&object, "Scaled", &format!("to {i}"))).collect();
            let _: Vec<Option<Correlated>> = round();
            let again: Vec<Option<Correlated>> = round();
            let of_its_own = |what: &&Option<Correlated>| {
                what.as_ref()
                    .is_some_and(|what| what.is_repetition && what.event.message.starts_with("to "))
            };
            own += again.iter().filter(of_its_own).count();
        }
        assert!((400..1100).contains(&own), "{own} of 1200");
    }

    #[test]
    fn events_of_a_source_about_an_object_are_limited() {
        let mut f = Fixture::new();
        let sent = |f: &mut Fixture, object: &str, times: usize| {
            (0..times).filter(|_| f.record(object, "Failed", "x").is_some()).count()
        };
        assert_eq!(sent(&mut f, "a", 40), 25);
        assert_eq!(sent(&mut f, "b", 40), 25, "each object has its own");
        f.secs += 299;
        assert_eq!(sent(&mut f, "a", 3), 0);
        f.secs += 1;
        assert_eq!(sent(&mut f, "a", 3), 1);
        f.secs += 3600;
        // Events that were not sent were counted.
        assert_eq!(patch(f.record("a", "Failed", "x")).1, 47);
        assert_eq!(sent(&mut f, "a", 40), 11);
    }

    #[test]
    fn the_least_recently_used_entry_is_evicted() {
        let mut cache = cache::<u64>();
        for key in 0..CACHE_SIZE.get() as u64 {
            cache.put(key, key);
        }
        cache.get_or_insert_mut(0, u64::default);
        cache.get_or_insert_mut(u64::MAX, u64::default);
        assert_eq!(cache.len(), CACHE_SIZE.get());
        assert_eq!((cache.peek(&0), cache.peek(&1), cache.peek(&2)), (Some(&0), None, Some(&2)));
    }
}
