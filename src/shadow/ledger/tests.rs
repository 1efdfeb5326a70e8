use serde_json::json;

use super::*;
use crate::shadow::diff::Change;

const GRACE: Duration = Duration::from_secs(60);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn place(name: &str) -> Place {
    Place { resource: "deployments.apps".into(), namespace: "a".into(), name: name.into() }
}

fn request(method: &'static str, body: Value) -> Request {
    Request {
        method,
        content_type: "application/merge-patch+json",
        subresource: String::new(),
        body,
        is_of_secret: false,
        object_path: Some("/apis/apps/v1/namespaces/a/deployments/x".into()),
        collection: None,
    }
}

fn scaled(replicas: i64) -> Value {
    json!({ "spec": { "replicas": replicas } })
}

/// An intended write that scales from `old` to `new`.
fn scale(old: i64, new: i64) -> IntendedWrite {
    let request = request("PATCH", scaled(new));
    let Effect::Changes(changes) = request.effect(&scaled(old)) else { panic!("it changes") };
    IntendedWrite {
        controller: "c".into(),
        key: "a/x".into(),
        patience: Duration::ZERO,
        place: place("x"),
        request,
        changes,
    }
}

fn without_fields(method: &'static str, name: &str) -> IntendedWrite {
    let (place, request) = (place(name), request(method, Value::Null));
    IntendedWrite { place, request, changes: Vec::new(), ..scale(1, 2) }
}

fn write(name: &str, kind: Kind) -> Write {
    Write {
        place: place(name),
        generated: None,
        siblings: None,
        kind,
        version: "7".into(),
        fields: Vec::new(),
    }
}

fn ledger() -> Ledger {
    Ledger::new(GRACE, seconds(0))
}

/// The counts: met, dropped, pending, outstanding, contradicted.
fn counts(ledger: &Ledger, now: u64) -> [u64; 5] {
    let report = ledger.report(seconds(now));
    report.controllers.iter().fold([0; 5], |sum, row| {
        let row = [row.met, row.dropped, row.pending, row.outstanding, row.contradicted];
        std::array::from_fn(|i| sum[i] + row[i])
    })
}

/// Compares the live object for all late intentions.
fn check(ledger: &mut Ledger, now: u64, live: Option<&Value>) {
    let live = live.map_or(Live::Absent, Live::Object);
    for check in ledger.due(seconds(now)) {
        ledger.record_check(seconds(now), &check, live);
    }
}

#[test]
fn an_intention_is_met_by_a_state_that_it_would_not_change() {
    let mut ledger = ledger();
    ledger.record_intended(seconds(1), scale(1, 3));
    assert_eq!(counts(&ledger, 1), [0, 0, 1, 0, 0]);
    ledger.record_seen(seconds(2), &place("x"), None, Seen::Present, true, || Some(scaled(2)));
    assert_eq!(counts(&ledger, 2), [0, 0, 1, 0, 0]);
    ledger.record_seen(seconds(3), &place("x"), None, Seen::Present, true, || Some(scaled(3)));
    assert_eq!(counts(&ledger, 3), [1, 0, 0, 0, 0]);
}

#[test]
fn an_intention_is_met_by_a_sync_that_no_longer_wants_it() {
    for (touched, expected) in [(true, [1, 0, 0, 0, 0]), (false, [0, 1, 0, 0, 0])] {
        let mut ledger = ledger();
        ledger.record_intended(seconds(1), scale(1, 3));
        ledger
            .record_seen(seconds(2), &place("x"), None, Seen::Present, touched, || Some(scaled(2)));
        ledger.record_sync_end(seconds(3), "c", "a/y", seconds(3), true);
        ledger.record_sync_end(seconds(3), "c", "a/x", seconds(3), false);
        ledger.record_sync_end(seconds(3), "c", "a/x", seconds(0), true);
        assert_eq!(counts(&ledger, 3), [0, 0, 1, 0, 0], "none began later and reached its end");
        ledger.record_sync_end(seconds(4), "c", "a/x", seconds(3), true);
        assert_eq!(counts(&ledger, 4), expected);
    }
}

#[test]
fn what_stays_wanted_is_outstanding_after_the_grace_period() {
    let mut ledger = ledger();
    ledger.record_intended(seconds(1), scale(1, 3));
    ledger.record_intended(seconds(60), scale(1, 3));
    check(&mut ledger, 60, Some(&scaled(1)));
    assert_eq!(counts(&ledger, 60), [0, 0, 1, 0, 0]);
    check(&mut ledger, 61, Some(&scaled(1)));
    assert_eq!(counts(&ledger, 61), [0, 0, 0, 1, 0]);
    assert!(!ledger.report(seconds(61)).is_clean());
    ledger.record_intended(seconds(121), scale(1, 3));
    check(&mut ledger, 121, Some(&scaled(3)));
    assert_eq!(counts(&ledger, 121), [1, 0, 0, 0, 0], "met late");
    assert!(ledger.report(seconds(121)).is_clean());
}

#[test]
fn another_value_of_the_one_in_charge_contradicts() {
    let mut ledger = ledger();
    ledger.record_intended(seconds(1), scale(1, 3));
    ledger.record_seen(seconds(2), &place("x"), None, Seen::Present, true, || Some(scaled(2)));
    ledger.record_intended(seconds(3), scale(2, 3));
    check(&mut ledger, 61, Some(&scaled(2)));
    assert_eq!(counts(&ledger, 61), [0, 0, 0, 0, 1]);
    let report = ledger.report(seconds(61));
    assert_eq!(report.contradicted[0].changes[0].old, json!(1), "as it was at first");
}

#[test]
fn a_value_that_the_one_in_charge_restores_contradicts() {
    let mut ledger = ledger();
    ledger.record_intended(seconds(1), scale(1, 3));
    ledger.record_seen(seconds(2), &place("x"), None, Seen::Present, false, || Some(scaled(9)));
    check(&mut ledger, 61, Some(&scaled(9)));
    assert_eq!(counts(&ledger, 61), [0, 0, 0, 1, 0]);
    ledger.record_seen(seconds(62), &place("x"), None, Seen::Present, true, || Some(scaled(1)));
    ledger.record_intended(seconds(63), scale(1, 3));
    assert_eq!(counts(&ledger, 63), [0, 0, 0, 0, 1]);
}

#[test]
fn a_changed_content_begins_a_new_grace_period_a_few_times() {
    let mut ledger = ledger();
    for second in (0..240).step_by(30) {
        ledger.record_intended(seconds(second), scale(1, 2 + second as i64));
        check(&mut ledger, second, Some(&scaled(1)));
        assert_eq!(counts(&ledger, second), [0, 0, 1, 0, 0], "{second}");
    }
    ledger.record_intended(seconds(241), scale(1, 999));
    check(&mut ledger, 241, Some(&scaled(1)));
    assert_eq!(counts(&ledger, 241), [0, 0, 0, 1, 0]);
}

#[test]
fn what_is_not_repeated_is_dropped() {
    let mut ledger = ledger();
    ledger.record_intended(seconds(1), scale(1, 3));
    check(&mut ledger, 100, Some(&scaled(1)));
    assert_eq!(counts(&ledger, 100), [0, 0, 0, 1, 0]);
    ledger.tick(seconds(182));
    assert_eq!(counts(&ledger, 182), [0, 1, 0, 0, 0]);
}

#[test]
fn generated_names_are_met_by_any_object_of_the_prefix() {
    let mut ledger = ledger();
    ledger.record_intended(seconds(1), without_fields("POST", "web-*"));
    ledger.record_seen(
        seconds(2),
        &place("web-abc"),
        Some(&place("web-*")),
        Seen::Present,
        true,
        || None,
    );
    assert_eq!(counts(&ledger, 2), [1, 0, 0, 0, 0]);
    ledger.record_intended(seconds(3), without_fields("POST", "web-*"));
    check(&mut ledger, 63, None);
    assert_eq!(counts(&ledger, 63), [1, 0, 0, 1, 0]);
}

#[test]
fn deletions_are_met_by_an_object_that_goes() {
    let going = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
    for (seen, live) in [(Seen::Gone, None), (Seen::Present, Some(going))] {
        let mut ledger = ledger();
        ledger.record_intended(seconds(1), without_fields("DELETE", "x"));
        ledger.record_intended(seconds(1), scale(1, 3));
        ledger.record_seen(seconds(2), &place("x"), None, seen, false, || live);
        let open = if seen == Seen::Gone { [1, 1, 0, 0, 0] } else { [1, 0, 1, 0, 0] };
        assert_eq!(counts(&ledger, 2), open);
    }
}

#[test]
fn a_write_that_was_never_wanted_is_unexpected() {
    let change = || Kind::Change("status".to_owned());
    for (claim, claimed_at, expected) in [
        (Some(change()), 5, true),
        (Some(change()), 95, true),
        (Some(Kind::Read), 95, true),
        (Some(Kind::Create), 95, false),
        (Some(Kind::Change(String::new())), 95, false),
        (None, 0, false),
    ] {
        let mut ledger = ledger();
        if let Some(claim) = claim.clone().filter(|_| claimed_at < 50) {
            ledger.claim(seconds(claimed_at), &place("x"), claim, "c");
        }
        ledger.suspect(seconds(50), write("x", change()));
        if let Some(claim) = claim.clone().filter(|_| claimed_at > 50) {
            ledger.claim(seconds(claimed_at), &place("x"), claim, "c");
        }
        ledger.tick(seconds(109));
        ledger.tick(seconds(110));
        let report = ledger.report(seconds(110));
        assert_eq!(
            (report.is_clean(), report.expected_writes),
            (expected, expected.into()),
            "{claim:?}"
        );
    }
}

#[test]
fn unexpected_writes_of_one_place_are_one_line() {
    let mut ledger = ledger();
    // Two watches see the second one.
    for (name, version) in [("x", "7"), ("y", "8"), ("y", "8"), ("x", "9")] {
        ledger.suspect(seconds(1), Write { version: version.into(), ..write(name, Kind::Create) });
    }
    ledger.tick(seconds(61));
    let report = ledger.report(seconds(61));
    assert_eq!((report.unexpected_writes, report.unexpected.len()), (3, 2));
    let text = report.to_string();
    assert!(text.contains("\nunexpected:\n  create deployments.apps a/x (2 times)\n"), "{text}");
    assert!(text.ends_with("\nresult: not clean\n"));
}

#[test]
fn a_claim_counts_for_what_comes_soon_after() {
    let mut ledger = ledger();
    ledger.claim(seconds(1), &place("web-*"), Kind::Create, "c");
    let generated = Some(place("web-*"));
    let created = Write { generated, ..write("web-abc", Kind::Create) };
    assert!(ledger.expects(seconds(11), &created));
    ledger.claim(seconds(11), &place("web-1").of_owner("u"), Kind::Create, "c");
    let sibling =
        Write { siblings: Some(place("web-2").of_owner("u")), ..write("web-2", Kind::Create) };
    assert!(ledger.expects(seconds(12), &sibling));
    assert!(!ledger.expects(seconds(12), &write("web-2", Kind::Create)));
    assert!(!ledger.expects(seconds(12), &created));
    assert!(!ledger.expects(seconds(2), &write("web-abc", Kind::Create)));
    assert_eq!(ledger.report(seconds(12)).controllers[0].expected, 2);
    let change = || Kind::Change(String::new());
    ledger.claim(seconds(12), &place("volume-1").of_owner("claim"), change(), "c");
    let bound = |kind: Kind| Write {
        siblings: Some(place("volume-2").of_owner("claim")),
        ..write("volume-2", kind)
    };
    assert!(ledger.expects(seconds(12), &bound(change())));
    assert!(!ledger.expects(seconds(12), &bound(Kind::Change("status".to_owned()))));
}

#[test]
fn keys_are_tried_again_less_and_less_often() {
    let mut ledger = ledger();
    ledger.record_intended(seconds(0), scale(1, 3));
    for (now, millis) in [(0, 100), (2, 500), (20, 5_000), (600, 15_000)] {
        let wait = ledger.record_sync_end(seconds(now), "c", "a/x", seconds(0), false);
        assert_eq!(wait, Duration::from_millis(millis), "{now}");
    }
}

#[test]
fn what_is_written_once_is_compared_when_it_is_created() {
    let pods = |name: &str| Place { resource: "pods".into(), ..place(name) };
    let pod = |node: &str, hash: &str| {
        json!({
            "metadata": { "generateName": "agent-", "labels": { "hash": hash } },
            "spec": { "nodeName": node },
        })
    };
    let intended = |node: &str| IntendedWrite {
        place: pods("agent-*"),
        request: request("POST", pod(node, "1")),
        changes: Vec::new(),
        ..scale(1, 2)
    };
    let made = |ledger: &mut Ledger, now: u64, pod: Value| {
        let generated = Some(pods("agent-*"));
        let write = Write { place: pods("agent-x"), generated, ..write("x", Kind::Create) };
        ledger.record_created(seconds(now), &write, &pod);
    };

    // The other begins with another Pod of the batch.
    let mut ledger = ledger();
    ledger.record_intended(seconds(1), intended("a"));
    made(&mut ledger, 2, pod("b", "1"));
    assert_eq!(counts(&ledger, 2), [0, 0, 1, 0, 0]);
    made(&mut ledger, 3, pod("a", "1"));
    assert_eq!(counts(&ledger, 100), [0; 5]);
    assert!(ledger.was_created(seconds(4), &intended("b")), "it came before the intended one");
    assert_eq!(counts(&ledger, 100), [1, 0, 0, 0, 0]);
    assert!(!ledger.was_created(seconds(30), &intended("b")), "a later one is another Pod");

    // All that it creates has another label.
    for node in ["a", "b"] {
        made(&mut ledger, 40, pod(node, "2"));
    }
    assert!(ledger.was_created(seconds(41), &intended("a")));
    assert_eq!(counts(&ledger, 100), [1, 0, 1, 0, 0]);
    assert_eq!(counts(&ledger, 101), [1, 0, 0, 0, 1]);
    let report = ledger.report(seconds(101));
    assert_eq!(report.contradicted[0].changes[0].path, "metadata.labels.hash");
    assert!(!report.is_clean());
}

/// A webhook changes the Jobs of two CronJobs, without end; each has a controller of its own here.
#[test]
fn differing_creations_of_a_controller_have_a_bound_and_are_forgotten_with_their_owner() {
    let jobs = |name: &str| Place { resource: "jobs.batch".into(), ..place(name) };
    let job = |owner: &str, parallelism: i64| {
        let uid = format!("00000000-0000-0000-0000-00000000000{owner}");
        let text = "x".repeat(10_000);
        json!({
            "metadata": { "ownerReferences": [{ "uid": uid }] },
            "spec": { "parallelism": parallelism, "template": text },
        })
    };
    let differ = |ledger: &mut Ledger, owner: &str, number: usize| {
        let place = jobs(&format!("{owner}-{number}"));
        let write = Write { place: place.clone(), ..write("x", Kind::Create) };
        ledger.record_created(seconds(1), &write, &job(owner, 2));
        let request = request("POST", job(owner, 1));
        let controller = owner.to_owned();
        let intended = IntendedWrite { controller, place, request, ..scale(1, 2) };
        assert!(ledger.was_created(seconds(2), &intended));
    };
    let shown = |ledger: &Ledger| {
        let report = ledger.report(seconds(100));
        let all: u64 = report.controllers.iter().map(|row| row.contradicted).sum();
        let is_beyond = all > report.contradicted.len() as u64;
        assert_eq!(report.to_string().contains("more creations"), is_beyond);
        let rows = report.controllers.iter().map(|row| {
            let listed =
                report.contradicted.iter().filter(|item| item.controller == row.controller);
            (listed.count(), row.contradicted, row.dropped)
        });
        (rows.collect::<Vec<_>>(), report.is_clean())
    };
    let gone = |ledger: &mut Ledger, name: &str, owner: &str| {
        let uid = format!("00000000-0000-0000-0000-00000000000{owner}");
        ledger.record_gone(&jobs(name), &Uid::new(&uid));
    };

    let mut ledger = ledger();
    differ(&mut ledger, "1", 0);
    assert_eq!(shown(&ledger), (vec![(1, 1, 0)], false));
    assert!(ledger.creations.differing().all(|known| known.intended.request.body.is_null()));
    (0..130).for_each(|number| differ(&mut ledger, "1", number));
    (0..3).for_each(|number| differ(&mut ledger, "2", number));
    assert_eq!(shown(&ledger), (vec![(20, 130, 0), (3, 3, 0)], false));
    // A Job goes, and its CronJob stays.
    gone(&mut ledger, "1-0", "9");
    assert_eq!(shown(&ledger), (vec![(20, 130, 0), (3, 3, 0)], false));
    gone(&mut ledger, "cron", "2");
    assert_eq!(shown(&ledger), (vec![(20, 130, 0), (0, 0, 3)], false));
    gone(&mut ledger, "cron", "1");
    assert_eq!(shown(&ledger), (vec![(0, 110, 20), (0, 0, 3)], false), "the others were in vain");
}

#[test]
fn what_the_server_refuses_is_no_intention() {
    for (method, is_met, expected) in
        [("POST", false, [0, 1, 0, 0, 0]), ("DELETE", true, [1, 0, 0, 0, 0])]
    {
        let mut ledger = ledger();
        ledger.record_intended(seconds(1), without_fields(method, "x"));
        ledger.record_refusal(seconds(2), &scale(1, 2), false);
        assert_eq!(counts(&ledger, 2), [0, 0, 1, 0, 0], "another write");
        ledger.record_refusal(seconds(2), &without_fields(method, "x"), is_met);
        assert_eq!(counts(&ledger, 2), expected);
    }
}

#[test]
fn what_is_refused_to_both_is_not_outstanding() {
    let mut ledger = ledger();
    ledger.record_intended(seconds(1), without_fields("POST", "web-*"));
    let judge = |ledger: &mut Ledger, now: u64, live: Live<'_>| {
        for check in ledger.due(seconds(now)) {
            ledger.record_check(seconds(now), &check, live);
        }
        let report = ledger.report(seconds(now));
        (report.is_clean(), report.refused.len())
    };
    assert_eq!(judge(&mut ledger, 61, Live::Refused), (true, 1));
    assert_eq!(judge(&mut ledger, 121, Live::Absent), (false, 0), "the other tries no longer");
}

#[test]
fn no_value_of_a_secret_is_kept() {
    let known = |value: &str| json!({ "data": { "ca.crt": value }, "metadata": {} });
    let place = Place { resource: "secrets".into(), ..place("x") };
    let mut body = known("bmV3");
    super::super::secrets::conceal(&mut body);
    let request = Request { is_of_secret: true, ..request("PUT", body) };
    let live = known("aHVudGVyMg==");
    let Effect::Changes(changes) = request.effect(&live) else { panic!("it changes") };
    assert_eq!(request.effect(&known("bmV3")), Effect::Nothing);
    let intended = IntendedWrite { place: place.clone(), request, changes, ..scale(1, 2) };
    let mut ledger = ledger();
    ledger.record_intended(seconds(1), intended);
    // Another user changes it, and later the manager in charge.
    for (now, value, by_incumbent) in [(2, "aHVudGVyMw==", false), (3, "aHVudGVyNA==", true)] {
        let seen = || Some(known(value));
        ledger.record_seen(seconds(now), &place, None, Seen::Present, by_incumbent, seen);
    }
    for check in ledger.due(seconds(61)) {
        ledger.record_check(seconds(61), &check, Live::Object(&known("aHVudGVyNQ==")));
    }
    let report = ledger.report(seconds(100));
    let text = format!("{report} {}", serde_json::to_string(&report).expect("JSON"));
    assert!(text.contains("data.ca.crt") && text.contains("digest:"), "{text}");
    assert!(!text.contains("aHVudGVy") && !text.contains("bmV3"), "{text}");
    assert_eq!(report.contradicted.len(), 1, "{text}");
}

#[test]
fn a_name_makes_no_line_of_the_report() {
    let mut ledger = ledger();
    let path = "spec.labels.a\n  forged: update b".to_owned();
    let change = Change { path, old: Value::Null, new: json!("\u{85}x") };
    let place = place("x\n\nresult: clean");
    ledger.record_intended(
        seconds(1),
        IntendedWrite { place: place.clone(), changes: vec![change], ..scale(1, 2) },
    );
    let write =
        Write { place, fields: vec!["f\nresult: clean".into()], ..write("x", Kind::Create) };
    ledger.suspect(seconds(1), write);
    for check in ledger.due(seconds(100)) {
        ledger.record_check(seconds(100), &check, Live::Unknown);
    }
    ledger.tick(seconds(100));
    let text = ledger.report(seconds(100)).to_string();
    let lines = |what: &str| text.lines().filter(|line| line.starts_with(what)).count();
    assert_eq!((lines("result: "), lines("  forged")), (1, 0), "{text}");
    assert!(text.contains("outstanding:") && text.contains("unexpected:"), "{text}");
}
