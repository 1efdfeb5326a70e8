use serde_json::json;

use super::*;
use crate::pod::CONFIG_SOURCE;

const NOW: Duration = Duration::ZERO;
const LATER: Duration = Duration::from_secs(60);

fn uid(text: &str) -> Uid {
    Uid::parse(text).expect("a uid")
}

fn pod(uid: &str) -> Arc<Pod> {
    let pod = json!({
        "metadata": {"name": "p", "namespace": "n", "uid": uid,
                     "annotations": {CONFIG_SOURCE: "file"}},
        "spec": {"containers": [], "terminationGracePeriodSeconds": 7},
    });
    Arc::new(serde_json::from_value(pod).expect("a pod"))
}

fn retain(workers: &mut Workers, desired: &BTreeSet<Uid>) -> Vec<Uid> {
    workers.retain(desired, |_| {}).missing
}

fn begin(workers: &mut Workers, expected: &str) {
    let next = workers.next(NOW).map(|(uid, work)| {
        let work = match work {
            Work::Sync(_) => "sync".to_owned(),
            Work::Terminate(_, grace) => format!("terminate {grace}"),
            Work::CleanUp(_) => "clean up".to_owned(),
            Work::TerminateOrphan => "end".to_owned(),
        };
        format!("{work} {uid}")
    });
    assert_eq!(next.unwrap_or_default(), expected);
}

#[test]
fn pod_is_synced_terminated_and_cleaned_up() {
    let mut workers = Workers::default();
    let a = pod("a");
    assert!(!workers.update(&a, Reason::Create));
    begin(&mut workers, "sync a");
    begin(&mut workers, "");
    // An update during the work is not lost.
    assert!(!workers.update(&a, Reason::Sync));
    begin(&mut workers, "");
    workers.done("a", Outcome::Done(LATER), NOW);
    begin(&mut workers, "sync a");
    workers.done("a", Outcome::Done(LATER), NOW);
    begin(&mut workers, "");
    assert_eq!(workers.next_due(), Some(LATER));
    assert!(!workers.update(&a, Reason::Kill), "no work to cancel");
    begin(&mut workers, "terminate 7 a");
    workers.done("a", Outcome::Failed(NOW), NOW);
    begin(&mut workers, "terminate 7 a");
    workers.done("a", Outcome::Done(LATER), NOW);
    assert!(workers.is_terminated("a"));
    begin(&mut workers, "clean up a");
    workers.done("a", Outcome::Done(LATER), NOW);
    begin(&mut workers, "");
    assert!(workers.knows("a"));
    assert!(!workers.retain(&BTreeSet::from([uid("a")]), |_| {}).has_forgotten);
    let retained = workers.retain(&BTreeSet::new(), |_| {});
    assert_eq!(retained, Retained { missing: Vec::new(), has_forgotten: true });
    assert!(!workers.knows("a"));
}

#[test]
fn pod_that_is_rejected_ends_without_a_sync_and_holds_no_name() {
    let mut workers = Workers::default();
    let a = pod("a");
    workers.reject(&a);
    assert!(workers.is_terminating("a"));
    workers.update(&pod("b"), Reason::Create);
    // An earlier kubelet may have started it.
    begin(&mut workers, "terminate 7 a");
    begin(&mut workers, "sync b");
    workers.done("a", Outcome::Done(LATER), NOW);
    begin(&mut workers, "clean up a");
    workers.done("a", Outcome::Done(LATER), NOW);
    begin(&mut workers, "");
    let desired = BTreeSet::from([uid("a"), uid("b")]);
    assert!(retain(&mut workers, &desired).is_empty(), "its source has not added it again");
    workers.update(&a, Reason::Create);
    assert_eq!(retain(&mut workers, &desired), [uid("a")]);
}

#[test]
fn pods_are_counted_by_phase_and_source() {
    let mut workers = Workers::default();
    workers.update(&pod("a"), Reason::Create);
    begin(&mut workers, "sync a");
    workers.end_orphan(uid("x"));
    let counted = |workers: &Workers, is_desired| {
        let counts = workers.counts(&|_| is_desired);
        assert_eq!(counts.len(), 15);
        let some = counts.into_iter().filter(|(_, count)| *count > 0);
        some.map(|(labels, count)| format!("{} {count}", labels.join(" "))).collect::<Vec<_>>()
    };
    let runtime_only = "terminating runtime_only unknown 1";
    assert_eq!(counted(&workers, true), ["sync desired true 1", runtime_only]);
    workers.update(&pod("a"), Reason::Kill);
    let terminating = "terminating orphan true 1";
    assert_eq!(counted(&workers, false), [terminating, runtime_only]);
    workers.done("a", Outcome::Cancelled, NOW);
    begin(&mut workers, "terminate 7 a");
    workers.done("a", Outcome::Done(LATER), NOW);
    assert_eq!(counted(&workers, false), ["terminated orphan true 1", runtime_only]);
}

#[test]
fn pod_that_ends_by_itself_stays_finished() {
    let mut workers = Workers::default();
    let a = pod("a");
    workers.update(&a, Reason::Create);
    begin(&mut workers, "sync a");
    workers.done("a", Outcome::Terminal, NOW);
    begin(&mut workers, "terminate 7 a");
    workers.done("a", Outcome::Done(LATER), NOW);
    begin(&mut workers, "clean up a");
    workers.done("a", Outcome::Done(LATER), NOW);
    assert!(retain(&mut workers, &BTreeSet::from([uid("a")])).is_empty());
    workers.update(&a, Reason::Sync);
    workers.update(&a, Reason::Update);
    begin(&mut workers, "");
}

#[test]
fn pod_that_has_ended_at_its_source_does_not_run_again() {
    let mut workers = Workers::default();
    let mut a = pod("a");
    Arc::make_mut(&mut a).status.get_or_insert_default().phase = Some("Succeeded".to_owned());
    workers.update(&a, Reason::Create);
    begin(&mut workers, "terminate 7 a");
    workers.done("a", Outcome::Done(LATER), NOW);
    begin(&mut workers, "clean up a");
    workers.done("a", Outcome::Done(LATER), NOW);
    assert!(workers.is_finished("a"));
}

/// Its containers may run since before this kubelet.
#[test]
fn pod_of_the_api_server_that_is_deleted_before_it_begins_is_terminated() {
    let mut a = pod("a");
    let metadata = &mut Arc::make_mut(&mut a).metadata;
    metadata.annotations.get_or_insert_default().insert(CONFIG_SOURCE.into(), "api".into());
    let mut deleted = a.clone();
    let now = Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time"));
    Arc::make_mut(&mut deleted).metadata.deletion_timestamp = now;
    for before in [None, Some(&a)] {
        let mut workers = Workers::default();
        if let Some(before) = before {
            workers.update(before, Reason::Create);
        }
        workers.update(&deleted, Reason::Create);
        begin(&mut workers, "terminate 7 a");
        workers.done("a", Outcome::Done(LATER), NOW);
        begin(&mut workers, "clean up a");
    }
}

#[test]
fn kill_cancels_a_running_sync_once() {
    let mut workers = Workers::default();
    let a = pod("a");
    workers.update(&a, Reason::Create);
    begin(&mut workers, "sync a");
    assert!(workers.update(&a, Reason::Kill));
    assert!(!workers.is_evicted("a"), "its source ends it");
    workers.done("a", Outcome::Cancelled, NOW);
    begin(&mut workers, "terminate 7 a");
    assert!(!workers.update(&a, Reason::Kill));
    let mut shorter = pod("a");
    Arc::make_mut(&mut shorter).metadata.deletion_grace_period_seconds = Some(0);
    assert!(workers.update(&shorter, Reason::Kill));
    workers.done("a", Outcome::Cancelled, NOW);
    begin(&mut workers, "terminate 1 a");
}

#[test]
fn evicted_pod_ends_at_once_and_stays_finished() {
    let mut workers = Workers::default();
    let a = pod("a");
    assert!(!workers.evict("a", 1), "not known");
    workers.update(&a, Reason::Create);
    begin(&mut workers, "sync a");
    assert!(!workers.is_evicted("a"));
    assert!(workers.evict("a", 1));
    assert!(workers.is_evicted("a"));
    workers.done("a", Outcome::Cancelled, NOW);
    begin(&mut workers, "terminate 1 a");
    assert!(!workers.evict("a", 5), "the grace only decreases");
    workers.done("a", Outcome::Done(LATER), NOW);
    begin(&mut workers, "clean up a");
    workers.done("a", Outcome::Done(LATER), NOW);
    assert!(!workers.evict("a", 1));
    assert!(retain(&mut workers, &BTreeSet::from([uid("a")])).is_empty());
    begin(&mut workers, "");
}

#[test]
fn static_pods_with_one_name_wait_for_each_other() {
    let mut workers = Workers::default();
    let (a, b, c) = (pod("a"), pod("b"), pod("c"));
    workers.update(&a, Reason::Create);
    begin(&mut workers, "sync a");
    workers.done("a", Outcome::Done(LATER), NOW);
    // `c` is created after `b`, though its uid would come later in any case.
    workers.update(&c, Reason::Create);
    workers.update(&b, Reason::Create);
    begin(&mut workers, "");
    workers.update(&a, Reason::Kill);
    begin(&mut workers, "terminate 7 a");
    begin(&mut workers, "");
    workers.done("a", Outcome::Done(LATER), NOW);
    begin(&mut workers, "clean up a");
    workers.done("a", Outcome::Done(LATER), NOW);
    begin(&mut workers, "sync c");
    begin(&mut workers, "");
    // One that ends before it could start needs no work.
    workers.update(&b, Reason::Kill);
    begin(&mut workers, "");
    assert!(workers.is_terminated("b"));
}

#[test]
fn pod_that_is_created_again_while_it_ends_is_restarted() {
    let mut workers = Workers::default();
    let a = pod("a");
    let desired = BTreeSet::from([uid("a")]);
    workers.update(&a, Reason::Create);
    begin(&mut workers, "sync a");
    workers.update(&a, Reason::Kill);
    workers.done("a", Outcome::Cancelled, NOW);
    begin(&mut workers, "terminate 7 a");
    workers.update(&a, Reason::Create);
    workers.done("a", Outcome::Done(LATER), NOW);
    begin(&mut workers, "clean up a");
    assert!(retain(&mut workers, &desired).is_empty());
    workers.done("a", Outcome::Done(LATER), NOW);
    assert_eq!(retain(&mut workers, &desired), [uid("a")]);
    workers.update(&a, Reason::Create);
    begin(&mut workers, "sync a");
}

#[test]
fn orphans_of_the_runtime_are_ended_and_forgotten() {
    let mut workers = Workers::default();
    workers.end_orphan(uid("x"));
    begin(&mut workers, "end x");
    workers.end_orphan(uid("x"));
    begin(&mut workers, "");
    workers.done("x", Outcome::Failed(NOW), NOW);
    begin(&mut workers, "end x");
    workers.done("x", Outcome::Done(LATER), NOW);
    assert!(!workers.knows("x"));
}

#[test]
fn pods_without_a_source_are_ended() {
    let mut workers = Workers::default();
    workers.update(&pod("a"), Reason::Create);
    begin(&mut workers, "sync a");
    workers.done("a", Outcome::Done(LATER), NOW);
    retain(&mut workers, &BTreeSet::new());
    begin(&mut workers, "terminate 7 a");
}

#[test]
fn change_gives_a_pod_work_before_its_time() {
    let mut workers = Workers::default();
    workers.requeue("a");
    begin(&mut workers, "");
    let a = pod("a");
    workers.update(&a, Reason::Create);
    begin(&mut workers, "sync a");
    workers.done("a", Outcome::Done(LATER), NOW);
    workers.requeue("a");
    assert_eq!(workers.next_due(), None);
    begin(&mut workers, "sync a");
    // During the work too.
    workers.requeue("a");
    workers.done("a", Outcome::Failed(LATER), NOW);
    begin(&mut workers, "sync a");
    workers.done("a", Outcome::Failed(LATER), NOW);
    begin(&mut workers, "");
    assert_eq!(workers.next_due(), Some(LATER));
    workers.update(&a, Reason::Kill);
    for expected in ["terminate 7 a", "clean up a"] {
        begin(&mut workers, expected);
        workers.done("a", Outcome::Done(LATER), NOW);
    }
    workers.requeue("a");
    begin(&mut workers, "");
}

/// Its containers still run.
#[test]
fn end_of_a_sync_is_not_the_end_of_its_pod() {
    for outcome in [Outcome::Done(LATER), Outcome::Failed(LATER), Outcome::Terminal] {
        let mut workers = Workers::default();
        workers.update(&pod("a"), Reason::Create);
        begin(&mut workers, "sync a");
        retain(&mut workers, &BTreeSet::new());
        begin(&mut workers, "");
        workers.done("a", outcome, NOW);
        assert!(!workers.is_terminated("a"), "{outcome:?}");
        begin(&mut workers, "terminate 7 a");
    }
}

#[test]
fn pod_whose_containers_end_as_an_orphans_is_created_afterwards() {
    let mut workers = Workers::default();
    let (x, desired) = (pod("x"), BTreeSet::from([uid("x")]));
    workers.end_orphan(uid("x"));
    begin(&mut workers, "end x");
    assert!(!workers.update(&x, Reason::Create));
    workers.update(&x, Reason::Update);
    assert!(retain(&mut workers, &desired).is_empty());
    begin(&mut workers, "");
    workers.done("x", Outcome::Done(LATER), NOW);
    assert_eq!(retain(&mut workers, &desired), [uid("x")]);
    workers.update(&x, Reason::Create);
    begin(&mut workers, "sync x");
}

#[test]
fn static_pod_that_waits_for_its_name_keeps_no_other_one_waiting_when_it_ends() {
    let mut workers = Workers::default();
    let (a, b, c) = (pod("a"), pod("b"), pod("c"));
    for pod in [&a, &b, &c] {
        workers.update(pod, Reason::Create);
    }
    begin(&mut workers, "sync a");
    assert_eq!(workers.next_due(), None, "they wait for no time");
    workers.update(&b, Reason::Kill);
    assert!(workers.is_finished("b"), "nothing of it was there");
    workers.done("a", Outcome::Terminal, NOW);
    for expected in ["terminate 7 a", "clean up a"] {
        begin(&mut workers, expected);
        workers.done("a", Outcome::Done(LATER), NOW);
    }
    begin(&mut workers, "sync c");
}
