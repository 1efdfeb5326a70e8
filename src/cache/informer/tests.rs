//! The whole machine on a scripted source: what is asked, what handlers hear, what readers see.

use std::pin::pin;

use async_channel::Receiver;
use futures_lite::future::{block_on, poll_once, yield_now};

use super::super::testing::{Feed, Reply, Request, Script, bookmark, initial, json, object};
use super::super::{
    Deleted, Error, EventHandler, Index, IndexValue, SharedIndexInformer, SharedInformerFactory,
};
use super::*;
use crate::clock::{Clock, FakeClock};
use crate::objects::{
    Encoded, ListPart, Object, ObjectKey, PartialObjectMetadata, Pod, Resource, ResourceType,
    Timestamp,
};

type WatchEvent = crate::objects::WatchEvent<Encoded>;

type Pods = SharedIndexInformer<PartialObjectMetadata>;

struct Fixture {
    script: Arc<Script>,
    clock: Arc<FakeClock>,
    informer: Pods,
}

fn fixture() -> Fixture {
    fixture_with(VersionLosses::default())
}

fn fixture_with(history: VersionLosses) -> Fixture {
    fixture_of(Pod::RESOURCE, history)
}

fn fixture_of(resource: ResourceType, history: VersionLosses) -> Fixture {
    let script = Script::new();
    let clock = FakeClock::new(Timestamp::from_micros(0));
    let (source, scope) = (script.clone(), Scope::metadata(resource));
    let (time, failure) = (clock.clone(), Failure::new());
    let informer = SharedIndexInformer::reporting(source, scope, time, failure, history);
    Fixture { script, clock, informer }
}

/// Writes down what it hears: `+x@1!` (initial), `+x@1`, `~x@1>2`, `-x@2`, `?x@2`, `sx@1` (resync).
struct RecordingHandler(async_channel::Sender<String>);

impl<T: Object> EventHandler<T> for RecordingHandler {
    fn on_add(&mut self, object: &Arc<T>, initial: bool) {
        let mark = if initial { "!" } else { "" };
        self.report(format!("+{}@{}{mark}", object.meta().name, object.meta().resource_version));
    }
    fn on_update(&mut self, old: &Arc<T>, new: &Arc<T>) {
        let (name, version) = (&new.meta().name, new.meta().resource_version);
        self.report(match Arc::ptr_eq(old, new) {
            true => format!("s{name}@{version}"),
            false => format!("~{name}@{}>{version}", old.meta().resource_version),
        });
    }
    fn on_delete(&mut self, object: &Deleted<T>) {
        let sign = match object {
            Deleted::Known(_) => "-",
            Deleted::FinalStateUnknown(_) => "?",
        };
        let meta = object.object().meta();
        self.report(format!("{sign}{}@{}", meta.name, meta.resource_version));
    }
}

impl RecordingHandler {
    fn new() -> (RecordingHandler, Receiver<String>) {
        let (sender, heard) = async_channel::unbounded();
        (RecordingHandler(sender), heard)
    }

    fn report(&self, word: String) {
        self.0.try_send(word).expect("the test listens");
    }
}

async fn receive(heard: &Receiver<String>, count: usize) -> String {
    let mut words = Vec::new();
    for _ in 0..count {
        words.push(heard.recv().await.expect("the handler lives"));
    }
    words.join(" ")
}

/// Runs the informer while `test` runs, on one thread; then stops it and waits for its end.
fn run(fixture: &Fixture, test: impl Future<Output = ()>) {
    let stop = StopToken::new();
    block_on(zip(fixture.informer.run(stop.clone()), async {
        test.await;
        stop.stop();
    }));
}

fn send(feed: &Feed, event: WatchEvent) {
    feed.try_send(Ok(event)).expect("the watch is open");
}

fn added(name: &str, version: u64) -> WatchEvent {
    WatchEvent::Added(json("a", name, version))
}

fn modified(name: &str, version: u64) -> WatchEvent {
    WatchEvent::Modified(json("a", name, version))
}

fn deleted(name: &str, version: u64) -> WatchEvent {
    WatchEvent::Deleted(json("a", name, version))
}

fn watch_from(version: u64) -> Request {
    Request::Watch(Some(version.to_string()), false)
}

#[test]
fn a_dropped_watch_continues_where_it_ended() {
    let f = fixture();
    let (recording, heard) = RecordingHandler::new();
    f.informer.add_handler("recording", recording, None);
    let first = f.script.watch(initial(&[json("a", "x", 3)], 5));
    f.script.reply(Reply::list(&[json("a", "x", 3)], 7, None));
    let second = f.script.watch(vec![modified("x", 8)]);
    run(&f, async {
        assert_eq!(f.script.request(1, &f.clock).await, Request::Watch(None, true));
        send(&first, added("y", 6));
        send(&first, deleted("y", 7));
        assert_eq!(receive(&heard, 3).await, "+x@3! +y@6 -y@7");
        first.try_send(Err(Error::Failed("reset".into()))).expect("the watch is open");
        let newest =
            super::super::ListRequest { limit: Some(1), ..super::super::ListRequest::default() };
        assert_eq!(f.script.request(2, &f.clock).await, Request::List(newest));
        assert_eq!(f.script.request(3, &f.clock).await, watch_from(7));
        assert_eq!(receive(&heard, 1).await, "~x@3>8");
        assert_eq!(f.clock.monotonic(), Duration::ZERO, "at once");
        drop(second);
    });
}

#[test]
fn a_watch_that_the_server_breaks_off_with_an_error_lists_again() {
    let f = fixture();
    let first = f.script.watch(initial(&[json("a", "x", 3)], 5));
    f.script.reply(Reply::stream(&[json("a", "x", 3)], 9));
    run(&f, async {
        f.informer.synced().await;
        send(&first, added("y", 6));
        first
            .try_send(Err(Error::EndedByServer("cannot be encoded".into())))
            .expect("the watch is open");
        let again = f.script.request(2, &f.clock).await;
        assert_eq!(again, Request::Watch(Some("6".into()), true), "past what cannot be sent");
        assert!(f.clock.monotonic() >= Duration::from_millis(500), "after a pause");
    });
}

#[test]
fn an_expired_watch_lists_again_and_reports_missing_objects() {
    let f = fixture();
    let (recording, heard) = RecordingHandler::new();
    f.informer.add_handler("recording", recording, None);
    let items = [json("a", "x", 1), json("a", "y", 2), json("a", "z", 3)];
    let first = f.script.watch(initial(&items, 5));
    f.script.reply(Reply::Refused(Error::Expired));
    f.script.reply(Reply::stream(&[json("a", "y", 2), json("a", "z", 7), json("a", "n", 6)], 9));
    run(&f, async {
        f.informer.synced().await;
        receive(&heard, 3).await;
        first.try_send(Err(Error::Expired)).expect("the watch is open");
        let again = f.script.request(2, &f.clock).await;
        assert_eq!(again, Request::Watch(Some("5".into()), true), "not older than what was seen");
        assert_eq!(f.script.request(3, &f.clock).await, Request::Watch(None, true), "the newest");
        // y is unchanged: no handler is called.
        assert_eq!(receive(&heard, 3).await, "~z@3>7 +n@6 ?x@1");
        let lister = f.informer.lister();
        assert_eq!((lister.len(), lister.last_seen_version()), (3, 9));
        assert!(lister.get(&ObjectKey::new("a", "x")).is_none());
    });
}

#[test]
fn without_streamed_lists_pages_are_read() {
    let f = fixture();
    f.script.reply(Reply::Refused(Error::Unsupported));
    f.script.reply(Reply::list(&[json("a", "x", 1)], 5, Some("next")));
    f.script.reply(Reply::list(&[json("a", "y", 2)], 5, None));
    run(&f, async {
        f.informer.synced().await;
        assert_eq!(f.script.request(4, &f.clock).await, watch_from(5));
        assert_eq!(f.informer.lister().len(), 2);
    });
    let page = |version: Option<&str>, token: Option<&str>| {
        Request::List(super::super::ListRequest {
            resource_version: version.map(str::to_owned),
            limit: Some(500),
            continue_token: token.map(str::to_owned),
        })
    };
    let asked = f.script.requests();
    assert_eq!(asked[1..3], [page(Some("0"), None), page(None, Some("next"))]);
}

#[test]
fn pages_that_expire_are_followed_by_one_whole_list() {
    let f = fixture();
    f.script.reply(Reply::Refused(Error::Unsupported));
    f.script.reply(Reply::list(&[json("a", "x", 1), json("a", "y", 1)], 5, Some("next")));
    f.script.reply(Reply::Refused(Error::Expired));
    f.script.reply(Reply::list(&[json("a", "y", 1)], 8, None));
    run(&f, async {
        assert_eq!(f.script.request(5, &f.clock).await, watch_from(8));
        f.informer.synced().await;
        let lister = f.informer.lister();
        assert_eq!((lister.len(), lister.last_seen_version()), (1, 8), "x went meanwhile");
    });
    let whole = super::super::ListRequest {
        resource_version: Some("1".into()),
        ..super::super::ListRequest::default()
    };
    assert_eq!(f.script.requests()[3], Request::List(whole));
}

/// A list that breaks is no list; nothing is synced by it.
#[test]
fn a_list_is_whole_or_ignored() {
    let f = fixture();
    f.script.reply(Reply::Refused(Error::Unsupported));
    let reset = Err(Error::Failed("reset".into()));
    f.script.reply(Reply::List(vec![Ok(ListPart::Item(json("a", "x", 1))), reset]));
    f.script.reply(Reply::stream(&[json("a", "y", 2)], 5));
    run(&f, async {
        let again = Request::Watch(Some("1".into()), true);
        assert_eq!(f.script.request(3, &f.clock).await, again, "not older than x");
        assert!(f.clock.monotonic() >= Duration::from_millis(500), "after a pause");
        f.informer.synced().await;
        assert_eq!(f.informer.lister().len(), 1, "x was of the list that broke");
    });
}

/// Named `a/name`, with labels that are none.
fn undecodable(name: &str, uid: &str, version: u64) -> Encoded {
    Encoded::json(format!(
        r#"{{"metadata":{{"namespace":"a","name":"{name}","uid":"{uid}","labels":[],
            "resourceVersion":"{version}"}}}}"#
    ))
}

/// Without a name that can be read.
fn nameless() -> Encoded {
    Encoded::json(br#"{"metadata":{"name":1,"resourceVersion":"9"}}"#)
}

#[test]
fn an_event_that_cannot_be_decoded_leaves_the_last_known_state() {
    let f = fixture();
    let (recording, heard) = RecordingHandler::new();
    f.informer.add_handler("recording", recording, None);
    let first = f.script.watch(initial(&[json("a", "x", 3), json("a", "y", 3)], 5));
    f.script.reply(Reply::list(&[], 13, None));
    run(&f, async {
        assert_eq!(receive(&heard, 2).await, "+x@3! +y@3!");
        for event in [
            WatchEvent::Modified(undecodable("x", "", 6)),
            WatchEvent::Added(undecodable("z", "", 7)),
            WatchEvent::Modified(nameless()),
            // Older than the known state, of an unknown object, and of a known one.
            WatchEvent::Deleted(undecodable("y", "", 2)),
            WatchEvent::Deleted(undecodable("z", "", 8)),
            WatchEvent::Deleted(undecodable("y", "", 9)),
            added("w", 10),
            WatchEvent::Modified(undecodable("w", "", 11)),
        ] {
            send(&first, event);
        }
        assert_eq!(receive(&heard, 2).await, "?y@3 +w@10");
        let lister = f.informer.lister();
        while lister.last_seen_version() < 11 {
            yield_now().await;
        }
        let version =
            |name| lister.get(&ObjectKey::new("a", name)).map(|it| it.meta.resource_version);
        assert_eq!((version("x"), version("w"), lister.len()), (Some(3), Some(10), 2));
        send(&first, modified("x", 12));
        assert_eq!(receive(&heard, 1).await, "~x@3>12", "it can be decoded again");
        assert_eq!(f.informer.inner().counts().undecoded.get(), 7);
        send(&first, WatchEvent::Modified(undecodable("x", "", 13)));
        first.close();
        assert_eq!(f.script.request(3, &f.clock).await, watch_from(13));
        assert!(heard.is_empty());
    });
}

/// The server first sends a list, then the initial events of a watch, with the same content.
#[test]
fn an_object_of_a_list_that_cannot_be_decoded_leaves_the_last_known_state() {
    let known = |name: &str, uid: &str| {
        Encoded::json(format!(
            r#"{{"metadata":{{"namespace":"a","name":"{name}","uid":"{uid}","resourceVersion":"3"}}}}"#
        ))
    };
    let items = [known("x", "1"), known("y", "1"), known("z", "1")];
    // y was made again under its name, z is gone, w was never known.
    let next = [undecodable("x", "1", 6), undecodable("y", "2", 7), undecodable("w", "1", 8)];
    for lists in [false, true] {
        let f = fixture();
        let (recording, heard) = RecordingHandler::new();
        f.informer.add_handler("recording", recording, None);
        let first = f.script.watch(initial(&items, 5));
        if lists {
            f.script.reply(Reply::Refused(Error::Unsupported));
            f.script.reply(Reply::list(&next, 9, None));
        } else {
            f.script.reply(Reply::stream(&next, 9));
        }
        run(&f, async {
            assert_eq!(receive(&heard, 3).await, "+x@3! +y@3! +z@3!");
            first.try_send(Err(Error::Expired)).expect("the watch is open");
            f.script.request(2, &f.clock).await;
            let lister = f.informer.lister();
            while lister.last_seen_version() < 9 {
                yield_now().await;
            }
            let mut gone = [receive(&heard, 1).await, receive(&heard, 1).await];
            gone.sort();
            assert_eq!(gone, ["?y@3", "?z@3"]);
            assert_eq!(lister.len(), 1);
            assert!(lister.get(&ObjectKey::new("a", "x")).is_some());
        });
    }
}

#[test]
fn a_first_list_syncs_without_undecodable_objects() {
    let f = fixture();
    f.script.reply(Reply::stream(&[undecodable("x", "", 3), nameless(), json("a", "y", 4)], 5));
    run(&f, async {
        f.informer.synced().await;
        let lister = f.informer.lister();
        assert_eq!((lister.len(), lister.last_seen_version()), (1, 5));
    });
}

/// It may be any object that is known.
#[test]
fn a_list_with_a_nameless_object_deletes_nothing() {
    let f = fixture();
    let (recording, heard) = RecordingHandler::new();
    f.informer.add_handler("recording", recording, None);
    let first = f.script.watch(initial(&[json("a", "x", 3), json("a", "y", 3)], 5));
    let second = f.script.watch(initial(&[json("a", "x", 8), nameless()], 9));
    f.script.reply(Reply::stream(&[json("a", "x", 8)], 12));
    run(&f, async {
        assert_eq!(receive(&heard, 2).await, "+x@3! +y@3!");
        first.try_send(Err(Error::Expired)).expect("the watch is open");
        f.script.request(2, &f.clock).await;
        send(&second, modified("y", 10));
        assert_eq!(receive(&heard, 2).await, "~x@3>8 ~y@3>10");
        // The next list that has none shows what is gone, and is asked for when it is unknown what
        // was deleted.
        send(&second, WatchEvent::Deleted(nameless()));
        let again = f.script.request(3, &f.clock).await;
        assert_eq!(again, Request::Watch(Some("10".into()), true));
        assert_eq!(receive(&heard, 1).await, "?y@10");
    });
}

#[test]
fn a_watch_that_ends_at_once_is_followed_by_a_list() {
    let f = fixture();
    drop(f.script.watch(initial(&[], 5)));
    f.script.reply(Reply::stream(&[], 6));
    run(&f, async {
        let again = f.script.request(2, &f.clock).await;
        assert_eq!(again, Request::Watch(Some("5".into()), true));
        assert!(f.clock.monotonic() >= Duration::from_millis(500), "after a pause");
    });
}

#[test]
fn a_watch_that_the_server_forgets_to_end_is_ended() {
    let f = fixture();
    let silent = f.script.watch(initial(&[], 5));
    run(&f, async {
        assert_eq!(f.script.request(2, &f.clock).await, watch_from(5));
        let waited = f.clock.monotonic().as_secs();
        assert!((330..=631).contains(&waited), "after {waited} s");
        assert!(silent.is_closed());
    });
}

#[test]
fn a_streamed_list_may_catch_up_before_it_ends() {
    let f = fixture();
    let (recording, heard) = RecordingHandler::new();
    f.informer.add_handler("recording", recording, None);
    let feed = f.script.watch(vec![added("x", 3), added("y", 4)]);
    run(&f, async {
        assert_eq!(receive(&heard, 2).await, "+x@3! +y@4!");
        for event in [bookmark(4, false), deleted("x", 5), modified("y", 6)] {
            send(&feed, event);
        }
        assert_eq!(receive(&heard, 2).await, "-x@5 ~y@4>6");
        assert!(!f.informer.has_synced());
        assert_eq!(f.informer.lister().last_seen_version(), 0, "the list is not whole");
        send(&feed, bookmark(6, true));
        f.informer.synced().await;
        assert_eq!(f.informer.lister().last_seen_version(), 6);
    });
}

#[test]
fn a_bookmark_raises_the_seen_version_and_the_start_of_the_next_watch() {
    let f = fixture();
    let feed = f.script.watch(initial(&[json("a", "x", 3)], 5));
    // A watch that ends before its time may be that of another server.
    f.script.reply(Reply::list(&[], 41, None));
    run(&f, async {
        send(&feed, bookmark(40, false));
        send(&feed, bookmark(30, false));
        while f.informer.lister().last_seen_version() < 40 {
            yield_now().await;
        }
        feed.close();
        assert_eq!(f.script.request(3, &f.clock).await, watch_from(40));
    });
}

#[test]
fn duplicate_and_stale_events_change_nothing() {
    let f = fixture();
    let (recording, heard) = RecordingHandler::new();
    f.informer.add_handler("recording", recording, None);
    let feed = f.script.watch(initial(&[json("a", "x", 5)], 5));
    f.script.reply(Reply::list(&[], 9, None));
    run(&f, async {
        receive(&heard, 1).await;
        for event in [
            added("x", 5),
            modified("x", 4),
            deleted("x", 3),
            deleted("y", 6),
            modified("x", 7),
            modified("x", 7),
            modified("x", 6),
            deleted("x", 8),
            deleted("x", 8),
            added("z", 9),
        ] {
            send(&feed, event);
        }
        assert_eq!(receive(&heard, 3).await, "~x@5>7 -x@8 +z@9");
        let lister = f.informer.lister();
        assert_eq!((lister.len(), lister.last_seen_version()), (1, 9));
        feed.close();
        assert_eq!(f.script.request(3, &f.clock).await, watch_from(9), "never back");
    });
}

#[test]
fn a_late_handler_gets_the_objects_and_then_their_changes() {
    let f = fixture();
    let feed = f.script.watch(initial(&[json("a", "x", 3)], 5));
    run(&f, async {
        f.informer.synced().await;
        let (recording, heard) = RecordingHandler::new();
        let registration = f.informer.add_handler("late", recording, None);
        send(&feed, modified("x", 6));
        assert_eq!(receive(&heard, 2).await, "+x@3! ~x@3>6");
        registration.synced().await;
        f.informer.remove_handler(&registration);
        send(&feed, modified("x", 7));
        assert!(heard.recv().await.is_err(), "a removed handler is dropped unheard");
    });
}

/// Panics at objects named `bad`.
struct PanickingHandler(RecordingHandler);

impl EventHandler<PartialObjectMetadata> for PanickingHandler {
    fn on_add(&mut self, object: &Arc<PartialObjectMetadata>, initial: bool) {
        assert_ne!(&*object.meta.name, "bad", "as the test wants it");
        self.0.on_add(object, initial);
    }
    fn on_update(&mut self, old: &Arc<PartialObjectMetadata>, new: &Arc<PartialObjectMetadata>) {
        self.0.on_update(old, new);
    }
    fn on_delete(&mut self, object: &Deleted<PartialObjectMetadata>) {
        self.0.on_delete(object);
    }
}

/// A handler that panicked pauses, by a clock that stands: the slowest handler there can be.
#[test]
fn a_handler_that_panics_or_lags_harms_no_other_and_misses_nothing() {
    let f = fixture();
    let (recording, heard) = RecordingHandler::new();
    let (inner, heard_late) = RecordingHandler::new();
    let lagging = f.informer.add_handler("lagging", PanickingHandler(inner), None);
    let quick = f.informer.add_handler("quick", recording, None);
    let feed = f.script.watch(initial(&[json("a", "bad", 3), json("a", "good", 4)], 5));
    run(&f, async {
        for version in 6..106 {
            send(&feed, modified("good", version));
        }
        let all = receive(&heard, 102).await;
        quick.synced().await;
        assert!(f.informer.has_synced() && !lagging.has_synced());
        assert!(heard_late.is_empty());
        while heard_late.is_empty() {
            f.clock.advance(Duration::from_millis(1));
            yield_now().await;
        }
        assert_eq!(format!("+bad@3! {}", receive(&heard_late, 101).await), all);
        lagging.synced().await;
    });
}

/// Between the changes of one object other tasks run, and a handler may be added: it gets the
/// object as it is by then, and each later change once.
#[test]
fn the_changes_of_one_object_are_applied_in_slices() {
    const CHANGES: u64 = 150;
    let f = fixture();
    let fifo = &f.informer.inner().fifo;
    assert!(f.informer.inner().processor.start());
    for version in 1..=CHANGES {
        fifo.update(object("a", "x", version));
    }
    block_on(async {
        let mut process = pin!(f.informer.inner().process());
        let mut applied = Vec::new();
        let (recording, heard) = RecordingHandler::new();
        let mut recording = Some(recording);
        while !fifo.is_empty() {
            assert!(poll_once(&mut process).await.is_none());
            let cached = f.informer.lister().get(&ObjectKey::new("a", "x")).expect("it is cached");
            applied.push(cached.meta.resource_version);
            if let Some(recording) = recording.take() {
                f.informer.add_handler("late", recording, None);
            }
        }
        assert_eq!(applied, [64, 128, CHANGES]);
        let updates = (64..CHANGES).map(|version| format!("~x@{version}>{}", version + 1));
        let expected: Vec<String> = ["+x@64!".to_owned()].into_iter().chain(updates).collect();
        assert_eq!(receive(&heard, expected.len()).await, expected.join(" "));
    });
}

#[test]
fn each_handler_has_its_own_resync() {
    let f = fixture();
    let (often, heard_often) = RecordingHandler::new();
    let (seldom, heard_seldom) = RecordingHandler::new();
    let (never, heard_never) = RecordingHandler::new();
    f.informer.add_handler("often", often, Some(Duration::from_secs(10)));
    f.informer.add_handler("seldom", seldom, Some(Duration::from_secs(25)));
    f.informer.add_handler("never", never, None);
    let feed = f.script.watch(initial(&[json("a", "x", 3)], 5));
    run(&f, async {
        f.informer.synced().await;
        for heard in [&heard_often, &heard_seldom, &heard_never] {
            receive(heard, 1).await;
        }
        // Each step lets the informer do all it can before the next.
        for _ in 0..30 {
            f.clock.advance(Duration::from_secs(1));
            for _ in 0..16 {
                yield_now().await;
            }
        }
        send(&feed, modified("x", 6));
        assert_eq!(receive(&heard_often, 4).await, "sx@3 sx@3 sx@3 ~x@3>6");
        assert_eq!(receive(&heard_seldom, 2).await, "sx@3 ~x@3>6");
        assert_eq!(receive(&heard_never, 1).await, "~x@3>6");
    });
}

/// A server whose watch cache lags must not take back what a broken list has brought. When the
/// server has lost versions, its newest state is the truth, however old.
#[test]
fn a_list_after_a_broken_one_is_not_older() {
    let f = fixture();
    let (recording, heard) = RecordingHandler::new();
    f.informer.add_handler("recording", recording, None);
    let broken = f.script.watch(vec![added("x", 3), added("y", 4), deleted("y", 6)]);
    f.script.reply(Reply::Refused(Error::TooLarge));
    f.script.reply(Reply::list(&[json("a", "x", 2)], 2, None));
    let list = |version: Option<&str>, limit| {
        Request::List(super::super::ListRequest {
            resource_version: version.map(str::to_owned),
            limit,
            continue_token: None,
        })
    };
    run(&f, async {
        assert_eq!(receive(&heard, 3).await, "+x@3! +y@4! -y@6");
        broken.try_send(Err(Error::Failed("reset".into()))).expect("the watch is open");
        assert_eq!(f.script.request(2, &f.clock).await, list(Some("6"), None));
        assert_eq!(f.script.request(3, &f.clock).await, list(None, Some(500)));
        assert_eq!(f.script.request(4, &f.clock).await, watch_from(2));
        assert_eq!(receive(&heard, 1).await, "~x@3>2");
    });
}

fn fragile(object: &PartialObjectMetadata, put: &mut dyn FnMut(IndexValue)) {
    assert_ne!(&*object.meta.name, "bad", "as the test asks");
    put(IndexValue::Text("all".into()));
}

const FRAGILE: Index<PartialObjectMetadata> = Index::new("fragile", fragile);

#[test]
fn an_informer_that_panics_lists_again() {
    let f = fixture();
    let (recording, heard) = RecordingHandler::new();
    f.informer.add_handler("recording", recording, None);
    f.informer.add_index(&FRAGILE);
    let first = f.script.watch(initial(&[json("a", "x", 3), json("a", "y", 3)], 5));
    f.script.reply(Reply::stream(&[json("a", "x", 8), json("a", "z", 7)], 9));
    run(&f, async {
        assert_eq!(receive(&heard, 2).await, "+x@3! +y@3!");
        for event in [added("bad", 6), added("z", 7), modified("x", 8)] {
            send(&first, event);
        }
        let again = f.script.request(2, &f.clock).await;
        assert_eq!(again, Request::Watch(Some("8".into()), true), "not older than what came");
        assert!(f.clock.monotonic() >= Duration::from_millis(500), "after a pause");
        // What waited in the queue comes from the list.
        assert_eq!(receive(&heard, 3).await, "~x@3>8 +z@7 ?y@3");
        while f.informer.lister().last_seen_version() < 9 {
            yield_now().await;
        }
        assert_eq!(f.informer.lister().len(), 2);
    });
}

#[test]
fn an_informer_that_keeps_panicking_reports_a_failure() {
    let (script, clock) = (Script::new(), FakeClock::new(Timestamp::from_micros(0)));
    let factory = SharedInformerFactory::new(script.clone(), clock.clone());
    let informer: Pods = factory.informer_for(Scope::metadata(Pod::RESOURCE));
    informer.add_index(&FRAGILE);
    for _ in 0..PANICS {
        script.reply(Reply::stream(&[json("a", "bad", 3)], 5));
    }
    run(&Fixture { script: script.clone(), clock: clock.clone(), informer }, async {
        script.request(PANICS, &clock).await;
        let reason = factory.failed().await;
        assert!(reason.contains("pods (metadata) keeps panicking"), "{reason}");
        assert_eq!(script.requests().len(), PANICS);
    });
}

#[test]
fn the_series_of_an_informer_end_with_it() {
    let series = || {
        let text = String::from_utf8(crate::metrics::render()).expect("text");
        text.lines().filter(|line| line.contains("short-lived.example")).count()
    };
    let resource = ResourceType::fixed("short-lived.example", "v1", "Short", "shorts", true);
    let (script, clock) = (Script::new(), FakeClock::new(Timestamp::from_micros(0)));
    let factory = SharedInformerFactory::new(script.clone(), clock);
    script.reply(Reply::stream(&[], 4));
    let informer = factory.metadata_informer(&resource);
    let (recording, _heard) = RecordingHandler::new();
    let registration = informer.add_handler("recording", recording, None);
    factory.start(&StopToken::new());
    block_on(registration.synced());
    assert!(series() >= 4, "lists, watches, the queue, the handler");
    factory.release(&resource);
    block_on(factory.shutdown());
    assert_eq!(series(), 0);
}

#[test]
fn an_informer_runs_once_and_takes_no_handler_after_its_end() {
    let f = fixture();
    f.script.reply(Reply::stream(&[], 5));
    run(&f, f.informer.synced());
    block_on(f.informer.run(StopToken::new()));
    let (recording, heard) = RecordingHandler::new();
    let registration = f.informer.add_handler("late", recording, None);
    assert!(!registration.has_synced() && block_on(heard.recv()).is_err());
}

/// After a restored backup an equal version may be another state.
#[test]
fn versions_that_go_back_are_listed_and_nothing_known_counts() {
    let f = fixture();
    let (ear, heard) = RecordingHandler::new();
    f.informer.add_handler("ear", ear, None);
    let first = f.script.watch(initial(&[json("a", "x", 1100), json("a", "y", 1150)], 1200));
    f.script.reply(Reply::list(&[json("a", "x", 1100)], 1105, None));
    f.script.reply(Reply::stream(&[json("a", "x", 1100)], 1106));
    run(&f, async {
        assert_eq!(receive(&heard, 2).await, "+x@1100! +y@1150!");
        let lister = f.informer.lister();
        let lost = lister.written_at(1300);
        send(&first, added("z", 1160));
        assert_eq!(receive(&heard, 1).await, "+z@1160");
        first.try_send(Err(Error::Unreachable("reset".into()))).expect("the watch is open");
        f.script.request(3, &f.clock).await;
        while lister.seen().history == 0 {
            yield_now().await;
        }
        assert_eq!(lister.last_seen_version(), 1106);
        assert!(lost < lister.seen() && lister.seen() < lister.written_at(1107));
        let mut changes =
            [receive(&heard, 1).await, receive(&heard, 1).await, receive(&heard, 1).await];
        changes.sort();
        assert_eq!(changes, ["?y@1150", "?z@1160", "~x@1100>1100"]);
        assert_eq!(lister.len(), 1);
    });
}

/// An API server behind an aggregated group may count its versions as it likes.
#[test]
fn versions_of_a_foreign_group_that_go_back_say_nothing_about_other_caches() {
    for (group, losses) in
        [("", 1), ("apps", 1), ("storage.k8s.io", 1), ("example.com", 0), ("k8s.io.example.com", 0)]
    {
        let history = VersionLosses::default();
        let resource = ResourceType { group: group.into(), ..Pod::RESOURCE };
        let f = fixture_of(resource, history.clone());
        let first = f.script.watch(initial(&[json("a", "x", 1100)], 1200));
        f.script.reply(Reply::list(&[json("a", "x", 1100)], 1105, None));
        f.script.reply(Reply::stream(&[json("a", "x", 1100)], 1106));
        run(&f, async {
            f.informer.synced().await;
            first.try_send(Err(Error::Unreachable("reset".into()))).expect("the watch is open");
            let lister = f.informer.lister();
            while lister.seen().history == 0 {
                f.clock.advance(Duration::from_secs(1));
                yield_now().await;
            }
            assert_eq!(lister.last_seen_version(), 1106, "{group}");
            assert_eq!(history.losses(), losses, "{group}");
        });
    }
}

/// The server has passed the known versions, so this cache alone would not notice.
#[test]
fn a_loss_of_versions_that_another_part_notices_is_listed() {
    let history = VersionLosses::default();
    let f = fixture_with(history.clone());
    let _feed = f.script.watch(initial(&[json("a", "x", 7)], 9));
    f.script.reply(Reply::stream(&[json("a", "x", 7)], 20));
    run(&f, async {
        f.informer.synced().await;
        history.record_loss(history.losses(), f.clock.monotonic());
        assert!(!history.is_settled());
        assert_eq!(f.script.request(2, &f.clock).await, Request::Watch(None, true));
        let clock: SharedClock = f.clock.clone();
        history.settled(&clock).await;
        let seen = f.informer.lister().seen();
        assert_eq!((seen.history, seen.version), (1, 20), "the cache holds the list");
    });
}

/// A list shows an object older than it was known, at a version that hides the loss.
#[test]
fn an_object_that_is_older_than_known_shows_a_loss_of_versions() {
    let history = VersionLosses::default();
    let f = fixture_with(history.clone());
    let first = f.script.watch(initial(&[json("a", "x", 8)], 9));
    f.script.reply(Reply::stream(&[json("a", "x", 7)], 20));
    f.script.reply(Reply::stream(&[json("a", "x", 7)], 21));
    run(&f, async {
        f.informer.synced().await;
        first.try_send(Err(Error::Expired)).expect("the watch is open");
        assert_eq!(f.script.request(2, &f.clock).await, Request::Watch(Some("9".into()), true));
        // All is listed, of which nothing known counts.
        assert_eq!(f.script.request(3, &f.clock).await, Request::Watch(None, true));
        assert_eq!(history.losses(), 1);
    });
}
