use async_channel::{Receiver, Sender};
use futures_lite::future::{block_on, poll_once};
use serde_json::json;

use super::*;
use crate::client::{Client, Config};
use crate::clock::{Clock, FakeClock};
use crate::objects::{ResourceType, Timestamp};
use crate::shadow::Shadow;
use crate::shadow::intended::Place;

const SETS: ResourceType = ResourceType::fixed("apps", "v1", "StatefulSet", "statefulsets", true);
const PODS: ResourceType = ResourceType::fixed("", "v1", "Pod", "pods", true);
const CLAIMS: ResourceType =
    ResourceType::fixed("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", true);

/// A source with one watch, which yields the sent events.
struct Sent(Receiver<Event>);

impl Source for Sent {
    fn list<'a>(&'a self, _: &'a Scope, _: Form, _: ListRequest) -> Answer<'a, ListPart<Encoded>> {
        unreachable!("only watches are tapped here")
    }

    fn watch<'a>(&'a self, _: &'a Scope, _: Form, _: WatchRequest) -> Answer<'a, Event> {
        let events = self.0.clone().map(Ok).boxed();
        Box::pin(async { Ok(events as Events) })
    }
}

struct Watch {
    send: Sender<Event>,
    events: Events,
    passed: Vec<u64>,
}

impl Watch {
    fn open(resource: ResourceType, shadow: &Shadow) -> Watch {
        let (send, sent) = async_channel::unbounded();
        let tap = shadow.tap(Arc::new(Sent(sent)));
        let request = WatchRequest {
            resource_version: None,
            send_initial_events: false,
            timeout: Duration::from_secs(300),
        };
        let events = block_on(tap.watch(&Scope::all(resource), Form::Json, request));
        Watch { send, events: events.expect("a stream"), passed: Vec::new() }
    }

    /// The versions of the events that pass now, and those that have passed since the last call.
    fn passes(&mut self) -> Vec<u64> {
        self.poll();
        std::mem::take(&mut self.passed)
    }

    fn poll(&mut self) {
        while let Some(Some(Ok(event))) = block_on(poll_once(self.events.next())) {
            let (WatchEvent::Added(object)
            | WatchEvent::Modified(object)
            | WatchEvent::Deleted(object)) = event
            else {
                continue;
            };
            let version = metadata(&object).expect("metadata").resource_version;
            self.passed.push(version.parse().expect("a number"));
        }
    }

    fn send(&self, event: impl Fn(Encoded) -> Event, object: Value) {
        self.send.try_send(event(Encoded::json(object.to_string()))).expect("it is watched");
    }
}

/// A state of an object in the namespace `a`.
fn object(name: &str, uid: u8, version: u64, by: &str) -> Value {
    let time = format!("2026-01-01T00:00:{version:02}Z");
    json!({ "metadata": {
        "namespace": "a", "name": name, "uid": format!("00000000-0000-0000-0000-{uid:012}"),
        "resourceVersion": version.to_string(), "creationTimestamp": time,
        "managedFields": [{ "manager": by, "time": time }],
    } })
}

const NONE: [u64; 0] = [];
const USER: &str = "kubectl";
const INCUMBENT: &str = "kube-controller-manager";

struct Case {
    shadow: Shadow,
    clock: Arc<FakeClock>,
    sets: Watch,
    pods: Watch,
    claims: Watch,
}

impl Case {
    fn new() -> Case {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let client = Client::new(Config::new("http://127.0.0.1:1"), clock.clone()).expect("one");
        let shadow = Shadow::new(&client, clock.clone(), Duration::from_secs(60));
        shadow.begin(Vec::new());
        let [sets, pods, claims] = [SETS, PODS, CLAIMS].map(|of| Watch::open(of, &shadow));
        Case { shadow, clock, sets, pods, claims }
    }

    /// Lets `time`, a multiple of [`STEP`], pass in which this process works.
    fn works(&mut self, time: Duration) {
        let end = self.clock.monotonic() + time;
        while self.clock.monotonic() < end {
            self.clock.advance(STEP);
            [&mut self.sets, &mut self.pods, &mut self.claims].into_iter().for_each(Watch::poll);
        }
    }

    fn wants(&self, resource: &str, name: &str) {
        let (resource, name) = (resource.to_owned(), name.to_owned());
        let place = Place { resource, namespace: "a".into(), name };
        self.shadow.inner.claim(&place, Kind::Create, "c");
    }
}

#[test]
fn what_users_ask_passes_after_the_writes_before_it() {
    let mut case = Case::new();
    case.sets.send(WatchEvent::Added, object("db", 1, 3, USER));
    assert_eq!(case.sets.passes(), [3]);
    case.pods.send(WatchEvent::Added, object("db-0", 2, 5, INCUMBENT));
    assert_eq!(case.pods.passes(), NONE, "it is not wanted yet");
    case.sets.send(WatchEvent::Deleted, object("db", 1, 8, USER));
    // A new object with this name passes after it.
    case.sets.send(WatchEvent::Added, object("db", 3, 9, USER));
    assert_eq!(case.sets.passes(), NONE);
    case.sets.send(WatchEvent::Added, object("other", 4, 10, USER));
    assert_eq!(case.sets.passes(), [10], "a creation does not depend on earlier objects");
    case.wants("pods", "db-0");
    assert_eq!(case.pods.passes(), [5]);
    assert_eq!(case.sets.passes(), [8, 9]);
}

#[test]
fn an_answer_to_what_waits_is_judged_after_it() {
    let mut case = Case::new();
    case.sets.send(WatchEvent::Added, object("db", 1, 3, USER));
    assert_eq!(case.sets.passes(), [3]);
    case.claims.send(WatchEvent::Added, object("data", 2, 5, INCUMBENT));
    assert_eq!(case.claims.passes(), NONE);
    case.sets.send(WatchEvent::Deleted, object("db", 1, 6, USER));
    assert_eq!(case.sets.passes(), NONE);
    case.pods.send(WatchEvent::Added, object("db-0", 3, 7, INCUMBENT));
    case.works(Duration::from_secs(6));
    let passed = [case.claims.passes(), case.sets.passes(), case.pods.passes()];
    assert_eq!(passed, [NONE; 3], "claims have seven seconds");
    case.works(Duration::from_millis(1_500));
    assert_eq!(case.claims.passes(), [5], "this manager did not want it");
    assert_eq!(case.sets.passes(), [6]);
    assert_eq!(case.pods.passes(), NONE, "now this manager can want it");
    case.wants("pods", "db-0");
    assert_eq!(case.pods.passes(), [7]);
    let report = case.shadow.report();
    assert!(report.to_string().contains("1 expected"), "{report}");
}

#[test]
fn a_freeze_does_not_count_as_waiting() {
    let mut case = Case::new();
    case.pods.send(WatchEvent::Added, object("db-0", 1, 3, INCUMBENT));
    assert_eq!(case.pods.passes(), NONE);
    case.works(PATIENCE / 2);
    case.clock.advance(LIMIT * 2);
    assert_eq!(case.pods.passes(), NONE, "this manager had no time to want it");
    case.works(PATIENCE / 4 - STEP);
    assert_eq!(case.pods.passes(), NONE);
    case.works(STEP);
    assert_eq!(case.pods.passes(), [3]);
}

#[test]
fn a_write_waits_for_longer_where_this_manager_follows() {
    let second = Duration::from_secs;
    for (since, patience, followed, expected) in
        [(10, 2, 0, 12), (10, 2, 9, 12), (10, 2, 13, 14), (10, 2, 30, 20), (10, 7, 14, 17)]
    {
        let until = earliest_pass(second(since), second(patience), second(followed));
        assert_eq!(until, second(expected), "{since} {patience} {followed}");
    }
}
