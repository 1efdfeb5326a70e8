//! Paces the creations of an owner whose new objects come back from the API server so that their
//! controller does not recognise them, as under a mutating webhook: without a pause it would create
//! others until a quota is full. Upstream has no counterpart.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;

use crate::client;
use crate::clock::SharedClock;
use crate::controllers::Error;
use crate::controllers::workloads::owner_records::OwnerRecord;
use crate::events::Recorder;
use crate::objects::{LabelSelector, Labels, Meta, Object, ObjectKey, Resource, Selector, Uid};

/// The wait after the first object that was not recognised. It doubles with each further one.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_mins(15);

/// The shortest pause between two dry runs of one owner.
const DRY_RUN_PAUSE: Duration = Duration::from_secs(2);
/// All owners together make a dry run in this time, so that the other requests of their controller
/// are not delayed.
const DRY_RUN_INTERVAL: Duration = Duration::from_millis(500);

/// The reason of the event about an object that is not recognised.
pub const CHANGED: &str = "CreatedObjectChanged";

/// The most changes that an event lists.
const SHOWN_CHANGES: usize = 4;

/// An owner of pods, which it recognises by their controller, their labels, and sometimes more.
pub trait PodOwner: Object + Resource {
    /// A finalizer without which it does not count a pod.
    const FINALIZER: Option<&'static str> = None;
    /// An annotation without which it does not use a pod, if the pod was to have it.
    const ANNOTATION: Option<&'static str> = None;

    /// Selects its pods.
    fn selector(&self) -> Option<&LabelSelector>;
}

/// The owners whose last creation was not recognised, with the time of the next one. A webhook may
/// change a new object so that its controller does not take it for its own; without a pause the
/// controller would create another one in each sync. A record ends when an object comes back as it
/// was sent, and with a new generation of the owner.
///
/// An owner that waits creates its object in a dry run every few seconds. When that comes back
/// recognised, the webhook has gone, and the next creation does not wait.
pub struct Creations {
    clock: SharedClock,
    owners: Mutex<HashMap<ObjectKey, Record>>,
}

struct Record {
    uid: Uid,
    generation: i64,
    /// Counts the waits, from 1.
    step: u32,
    wait: Duration,
    /// On the monotonic clock.
    until: Duration,
    /// The time of the next dry run. `None`: an object was changed although its dry run was not, so
    /// dry runs show nothing.
    next_dry_run: Option<Duration>,
    why: String,
}

/// The permission to create an object now.
#[must_use]
pub struct Permit {
    step: u32,
    /// Whether the wait is not over: a dry run must come back recognised first.
    needs_dry_run: bool,
}

impl Record {
    /// Whether the record is about this version of `owner`, and not about an older one.
    fn is_of(&self, owner: &Meta) -> bool {
        self.uid == owner.uid && self.generation == owner.generation
    }

    /// Returns the [`Error::Wait`] until the next creation or dry run.
    fn as_error(&self, now: Duration) -> Error {
        let next = self.next_dry_run.map_or(self.until, |at| at.min(self.until));
        Error::Wait { after: next.saturating_sub(now), why: self.why.clone() }
    }
}

impl Creations {
    /// Makes an empty record: no owner waits.
    pub fn new(clock: SharedClock) -> Creations {
        Creations { clock, owners: Mutex::default() }
    }

    /// Returns a permit if `owner` may create an object now. `dry_run` creates it in a dry run, and
    /// returns why its controller would not recognise it; empty if it would. It is called only
    /// while `owner` waits, every few seconds.
    ///
    /// # Errors
    /// [`Error::Wait`] while it has to wait.
    pub async fn allow<F>(&self, owner: &Meta, dry_run: impl FnOnce() -> F) -> Result<Permit, Error>
    where
        F: Future<Output = client::Result<Vec<String>>>,
    {
        let permit = self.decide(owner)?;
        if permit.needs_dry_run {
            let key = owner.key();
            match dry_run().await {
                Ok(changes) if changes.is_empty() => {
                    log::debug!("{key}: an object would be recognised now");
                    return Ok(permit);
                }
                Ok(_) => {}
                Err(error) => log::debug!("{key}: {error}"),
            }
            // The dry run failed or came back changed, so the owner waits. Its record may have
            // ended meanwhile: then it need not.
            if let Some(record) = self.owners.lock().get(&key) {
                return Err(record.as_error(self.clock.monotonic()));
            }
        }
        Ok(permit)
    }

    /// Returns a permit if `owner` need not wait, or one that asks for a dry run if it waits and a
    /// dry run is due; otherwise [`Error::Wait`].
    fn decide(&self, owner: &Meta) -> Result<Permit, Error> {
        let mut owners = self.owners.lock();
        // Without such a webhook no owner waits, and no key is built.
        if owners.is_empty() {
            return Ok(Permit { step: 0, needs_dry_run: false });
        }
        let (key, now) = (owner.key(), self.clock.monotonic());
        let pause = dry_run_pause(owners.len());
        match owners.get_mut(&key) {
            None => Ok(Permit { step: 0, needs_dry_run: false }),
            Some(record) if !record.is_of(owner) => {
                owners.remove(&key);
                Ok(Permit { step: 0, needs_dry_run: false })
            }
            Some(record) if now >= record.until => {
                Ok(Permit { step: record.step, needs_dry_run: false })
            }
            Some(record) if record.next_dry_run.is_some_and(|at| now >= at) => {
                record.next_dry_run = Some(now + pause);
                Ok(Permit { step: record.step, needs_dry_run: true })
            }
            Some(record) => Err(record.as_error(now)),
        }
    }

    /// Records whether the new object `name`, whose creation `permit` allowed, is recognised. If it
    /// is, `changes` is empty, and the owner's record ends. If not, `changes` has the reasons: the
    /// wait of the owner doubles, and an event says so. The objects of one batch count once.
    ///
    /// # Errors
    /// [`Error::Wait`] when there are changes: the next creation has to wait.
    pub fn record_created<O: Object + Resource>(
        &self,
        owner: &O,
        permit: Permit,
        recorder: &Recorder,
        (kind, name): (&str, &str),
        changes: &[String],
    ) -> Result<(), Error> {
        let meta = owner.meta();
        let mut owners = self.owners.lock();
        if changes.is_empty() {
            if !owners.is_empty() {
                owners.remove(&meta.key());
            }
            return Ok(());
        }
        let (now, pause) = (self.clock.monotonic(), dry_run_pause(owners.len()));
        let record = owners.entry(meta.key()).or_insert_with(|| Record {
            uid: meta.uid.clone(),
            generation: meta.generation,
            // An object of the same batch may have ended the record.
            step: permit.step,
            wait: Duration::ZERO,
            until: now,
            next_dry_run: Some(now),
            why: String::new(),
        });
        if record.is_of(meta) && record.step == permit.step {
            record.step += 1;
            record.wait = (record.wait * 2).clamp(FIRST_WAIT, LONGEST_WAIT);
            record.until = now + record.wait;
            // An object was changed although its dry run was not: dry runs show nothing.
            record.next_dry_run = match permit.needs_dry_run {
                true => None,
                false => record.next_dry_run.map(|_| now + pause),
            };
            record.why = format!(
                "{kind} {name:?} came back changed from its creation, so this {} does not \
                 recognise it: {}",
                O::RESOURCE.kind,
                list_changes(changes)
            );
            let message = format!(
                "{}; it creates no other for {} s, or until a dry run comes back unchanged or its \
                 spec changes",
                record.why,
                record.wait.as_secs()
            );
            recorder.warning(owner, CHANGED, message);
        }
        Err(record.as_error(now))
    }
}

impl OwnerRecord for Creations {
    /// Drops the record of an owner, unless it is of another one with its name.
    fn forget(&self, owner: &ObjectKey, uid: Option<&Uid>) {
        let mut owners = self.owners.lock();
        // The record may be of another owner, which has this one's name.
        if let (Some(record), Some(uid)) = (owners.get(owner), uid)
            && record.uid != *uid
        {
            return;
        }
        owners.remove(owner);
    }
}

/// Returns the pause between two dry runs of one owner when this number of owners waits.
fn dry_run_pause(owners: usize) -> Duration {
    let owners = u32::try_from(owners).unwrap_or(u32::MAX);
    DRY_RUN_INTERVAL.saturating_mul(owners).max(DRY_RUN_PAUSE)
}

/// Returns a text with the first of `changes` and the number of the others.
pub fn list_changes(changes: &[String]) -> String {
    let shown = &changes[..changes.len().min(SHOWN_CHANGES)];
    match changes.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{}, and {more} more", shown.join(", ")),
    }
}

/// Adds to `places` those at and below `place` at which `other` differs from `one`, each with the
/// kind of difference.
pub fn compare(place: &str, one: &Value, other: &Value, places: &mut Vec<String>) {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            let added = other.keys().filter(|key| !one.contains_key(*key));
            for key in one.keys().chain(added) {
                let (here, there) = (one.get(key), other.get(key));
                let null = &Value::Null;
                let place = format!("{place}.{key}");
                compare(&place, here.unwrap_or(null), there.unwrap_or(null), places);
            }
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            for (index, (one, other)) in one.iter().zip(other).enumerate() {
                compare(&format!("{place}[{index}]"), one, other, places);
            }
        }
        (Value::Null, Value::Null) => {}
        (_, Value::Null) => places.push(format!("{place} is missing")),
        (Value::Null, _) => places.push(format!("{place} is new")),
        _ if one == other => {}
        _ => places.push(format!("{place} is changed")),
    }
}

/// Returns why `owner`, which selects its objects by `selector`, does not recognise an object that
/// was sent with `labels`. An orphan that it selects is not listed: it adopts it.
pub fn ownership_changes(
    owner: &Meta,
    selector: Option<&LabelSelector>,
    labels: &Labels,
    created: &Meta,
) -> Vec<String> {
    let mut changes = match selector {
        Some(selector) if *labels != created.labels => label_changes(selector, labels, created),
        _ => Vec::new(),
    };
    let is_adopted = changes.is_empty() && created.controller().is_none();
    changes.extend(controller_ref_change(owner, created).filter(|_| !is_adopted));
    changes
}

/// Returns how the controller reference of `created`, as the API server answered, differs from the
/// one to `owner` that was sent; `None` if it does not. A mutating webhook may change it, and then
/// the owner does not find its object again.
pub fn controller_ref_change(owner: &Meta, created: &Meta) -> Option<String> {
    match created.controller() {
        Some(controller) if controller.uid == owner.uid => None,
        Some(other) => Some(format!("its controller is {} {:?}", other.kind, other.name)),
        None => Some("its controller reference is missing".to_owned()),
    }
}

/// Returns the changed labels that `selector` reads; nothing if it still matches, or did not match
/// what was `sent` either.
fn label_changes(selector: &LabelSelector, sent: &Labels, created: &Meta) -> Vec<String> {
    let Ok(parsed) = Selector::try_from(Some(selector)) else { return Vec::new() };
    if !parsed.matches(sent) || parsed.matches(&created.labels) {
        return Vec::new();
    }
    let LabelSelector { match_labels, match_expressions } = selector;
    let mut keys: Vec<&str> = match_labels.iter().map(|(key, _)| key).collect();
    keys.extend(match_expressions.iter().map(|requirement| requirement.key.as_str()));
    keys.sort_unstable();
    keys.dedup();
    let change = |key: &str| match (sent.get(key), created.labels.get(key)) {
        (sent, now) if sent == now => None,
        (_, None) => Some(format!("label {key:?} is missing")),
        (_, Some(now)) => Some(format!("label {key:?} is {now:?}")),
    };
    keys.into_iter().filter_map(change).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_lite::future::block_on;
    use serde_json::json;

    use super::*;
    use crate::clock::FakeClock;
    use crate::events::testing::Heard;
    use crate::objects::{ReplicaSet, Timestamp};

    fn set(uid: &str, generation: i64) -> ReplicaSet {
        let meta =
            json!({ "namespace": "ns", "name": "web", "uid": uid, "generation": generation });
        serde_json::from_value(json!({ "metadata": meta })).unwrap()
    }

    /// The wait in seconds that an error asks for.
    fn waits(result: Result<(), Error>) -> Option<u64> {
        match result {
            Ok(()) => None,
            Err(Error::Wait { after, .. }) => Some(after.as_secs()),
            Err(error) => panic!("{error}"),
        }
    }

    /// The answer to a dry run.
    #[derive(Clone, Copy, Debug)]
    enum Answer {
        Recognised,
        Changed,
        Refused,
    }

    struct Bench {
        clock: Arc<FakeClock>,
        creations: Creations,
        recorder: Recorder,
        heard: Arc<Heard>,
    }

    fn bench() -> Bench {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let heard = Arc::new(Heard::default());
        let creations = Creations::new(clock.clone());
        Bench { clock, creations, recorder: Recorder::to_sink(heard.clone()), heard }
    }

    impl Bench {
        fn create(&self, set: &ReplicaSet, permit: Permit, changes: &[String]) -> Option<u64> {
            let named = ("Pod", "web-1");
            waits(self.creations.record_created(set, permit, &self.recorder, named, changes))
        }

        fn allowed(&self, set: &ReplicaSet) -> Permit {
            let permit = self.creations.decide(&set.meta);
            let permit = permit.unwrap_or_else(|error| panic!("{error}"));
            assert!(!permit.needs_dry_run);
            permit
        }

        fn denied(&self, set: &ReplicaSet) -> Option<u64> {
            waits(self.creations.decide(&set.meta).map(drop))
        }

        /// As `allow`, with this answer to a dry run. The second: whether there was one.
        fn tries(&self, set: &ReplicaSet, answer: Answer) -> (Result<Permit, Error>, bool) {
            let mut is_tried = false;
            let dry_run = || {
                is_tried = true;
                async {
                    match answer {
                        Answer::Recognised => Ok(Vec::new()),
                        Answer::Changed => Ok(vec!["x".to_owned()]),
                        Answer::Refused => Err(client::Error::Path("no dry run".to_owned())),
                    }
                }
            };
            let permit = block_on(self.creations.allow(&set.meta, dry_run));
            (permit, is_tried)
        }

        /// Creates this number of objects that are not recognised, with the waits between them, and
        /// ends a second after the last.
        fn waits_long(&self, set: &ReplicaSet, objects: u32) {
            for object in 0..objects {
                let permit = self.allowed(set);
                let wait = self.create(set, permit, &["x".to_owned()]).unwrap_or_default();
                assert!(wait > 0, "the first wait, or a dry run is due later");
                let wait = if object + 1 == objects { 1 } else { 1 << object };
                self.clock.advance(Duration::from_secs(wait));
            }
        }
    }

    #[test]
    fn each_unrecognised_object_doubles_the_wait_up_to_a_limit() {
        let (bench, set) = (bench(), set("1", 1));
        let changes = ["label \"app\" is missing".to_owned()];
        for wait in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900] {
            let permit = bench.allowed(&set);
            let step = wait.min(DRY_RUN_PAUSE.as_secs());
            assert_eq!(bench.create(&set, permit, &changes), Some(step), "until a dry run");
            assert_eq!(
                bench.heard.take(),
                [format!(
                    "Warning CreatedObjectChanged Pod \"web-1\" came back changed from its \
                     creation, so this ReplicaSet does not recognise it: label \"app\" is missing; \
                     it creates no other for {wait} s, or until a dry run comes back unchanged or its \
                     spec changes"
                )]
            );
            for second in 0..wait {
                let (permit, is_tried) = bench.tries(&set, Answer::Changed);
                assert_eq!(is_tried, second > 0 && second % 2 == 0, "{second} of {wait}");
                assert!(waits(permit.map(drop)).is_some(), "{second} of {wait}");
                bench.clock.advance(Duration::from_secs(1));
            }
        }
        assert_eq!(bench.heard.take().len(), 0, "waiting is no event");
    }

    #[test]
    fn a_dry_run_that_comes_back_recognised_ends_the_wait() {
        let (bench, set) = (bench(), set("1", 1));
        bench.waits_long(&set, 11);
        bench.clock.advance(Duration::from_secs(1));
        for (answer, passes) in
            [(Answer::Changed, false), (Answer::Refused, false), (Answer::Recognised, true)]
        {
            let (permit, is_tried) = bench.tries(&set, answer);
            assert!(is_tried, "{answer:?}");
            assert_eq!(permit.is_ok(), passes, "{answer:?}");
            let (other, is_tried) = bench.tries(&set, Answer::Recognised);
            assert!(other.is_err() && !is_tried, "one dry run at a time");
            if let Ok(permit) = permit {
                assert_eq!(bench.create(&set, permit, &[]), None);
            }
            bench.clock.advance(DRY_RUN_PAUSE);
        }
        let (permit, is_tried) = bench.tries(&set, Answer::Changed);
        assert!(permit.is_ok() && !is_tried, "it does not wait");
    }

    #[test]
    fn a_webhook_that_changes_nothing_in_a_dry_run_costs_one_object() {
        let (bench, set) = (bench(), set("1", 1));
        bench.waits_long(&set, 5);
        bench.clock.advance(Duration::from_secs(1));
        let (permit, _) = bench.tries(&set, Answer::Recognised);
        let wait = bench.create(&set, permit.expect("recognised"), &["x".to_owned()]);
        assert_eq!(wait, Some(32));
        for wait in [32, 64] {
            for _ in 0..wait {
                let (permit, is_tried) = bench.tries(&set, Answer::Recognised);
                assert!(permit.is_err() && !is_tried);
                bench.clock.advance(Duration::from_secs(1));
            }
            let permit = bench.allowed(&set);
            assert_eq!(bench.create(&set, permit, &["x".to_owned()]), Some(2 * wait));
        }
    }

    #[test]
    fn the_dry_runs_of_many_owners_share_a_rate() {
        let (bench, sets) = (bench(), (0..100).map(|uid| set(&uid.to_string(), 1)));
        let sets: Vec<ReplicaSet> = sets
            .enumerate()
            .map(|(number, mut set)| {
                set.meta.name = format!("web-{number}").into();
                set
            })
            .collect();
        for _ in 0..10 {
            for set in &sets {
                let permit = bench.allowed(set);
                assert!(bench.create(set, permit, &["x".to_owned()]).is_some());
            }
            bench.clock.advance(LONGEST_WAIT);
        }
        for set in &sets {
            let permit = bench.allowed(set);
            assert!(bench.create(set, permit, &["x".to_owned()]).is_some());
        }
        let mut dry_runs = 0;
        for _ in 0..=200 {
            for set in &sets {
                dry_runs += usize::from(bench.tries(set, Answer::Changed).1);
            }
            bench.clock.advance(Duration::from_secs(1));
        }
        assert_eq!(dry_runs, 400, "two a second");
    }

    #[test]
    fn the_objects_of_one_batch_count_once() {
        let (bench, set) = (bench(), set("1", 1));
        let changes = ["x".to_owned()];
        let permits: Vec<Permit> = (0..4).map(|_| bench.allowed(&set)).collect();
        for permit in permits {
            assert_eq!(bench.create(&set, permit, &changes), Some(1));
        }
        assert_eq!(bench.heard.take().len(), 1);
        bench.clock.advance(Duration::from_secs(1));
        let permit = bench.allowed(&set);
        assert_eq!(bench.create(&set, permit, &changes), Some(2));
    }

    #[test]
    fn the_first_change_after_a_recognised_object_of_the_same_batch_is_reported() {
        let (bench, set) = (bench(), set("1", 1));
        let changes = ["x".to_owned()];
        for wait in [1, 2] {
            let permit = bench.allowed(&set);
            assert_eq!(bench.create(&set, permit, &changes), Some(wait));
            bench.clock.advance(Duration::from_secs(wait));
        }
        bench.heard.take();
        let permits: Vec<Permit> = (0..3).map(|_| bench.allowed(&set)).collect();
        let answers = [&[][..], &changes, &changes];
        for ((permit, changes), wait) in
            permits.into_iter().zip(answers).zip([None, Some(1), Some(1)])
        {
            assert_eq!(bench.create(&set, permit, changes), wait);
        }
        let heard = bench.heard.take();
        assert!(heard.len() == 1 && heard[0].contains("recognise it: x; it"), "{heard:?}");
    }

    #[test]
    fn a_recognised_object_and_a_new_owner_or_spec_end_the_wait() {
        let changes = ["x".to_owned()];
        let waiting = |bench: &Bench| {
            let owner = set("1", 1);
            for wait in [1, 2] {
                let permit = bench.allowed(&owner);
                assert_eq!(bench.create(&owner, permit, &changes), Some(wait));
                bench.clock.advance(Duration::from_secs(wait));
            }
        };
        let bench = bench();
        waiting(&bench);
        let permit = bench.allowed(&set("1", 1));
        assert_eq!(bench.create(&set("1", 1), permit, &[]), None);
        for next in [set("1", 2), set("2", 1)] {
            waiting(&bench);
            let permit = bench.allowed(&next);
            assert_eq!(bench.create(&next, permit, &changes), Some(1), "from the beginning");
            bench.creations.forget(&next.meta.key(), Some(&Uid::new("another")));
            assert_eq!(bench.denied(&next), Some(1));
            bench.creations.forget(&next.meta.key(), Some(&next.meta.uid));
            assert_eq!(bench.denied(&next), None);
        }
    }

    #[test]
    fn only_changes_by_which_an_object_is_not_recognised_are_listed() {
        let selector: LabelSelector = serde_json::from_value(json!({
            "matchLabels": { "app": "a", "hash": "h" },
            "matchExpressions": [{ "key": "old", "operator": "DoesNotExist" }],
        }))
        .unwrap();
        let sent: Labels = [("app", "a"), ("hash", "h"), ("free", "x")].into_iter().collect();
        let all = json!({ "app": "a", "hash": "h", "free": "x" });
        let of = |uid: &str| json!([{ "kind": "ReplicaSet", "name": "o", "uid": uid, "controller": true }]);
        let owner: Meta = serde_json::from_value(json!({ "uid": "1" })).unwrap();
        let table: [(Value, Value, &[&str]); 9] = [
            (all.clone(), of("1"), &[]),
            // A sidecar injector, or a webhook that labels everything, may add labels.
            (json!({ "app": "a", "hash": "h", "injected": "yes" }), of("1"), &[]),
            (json!({ "app": "a", "free": "x" }), of("1"), &["label \"hash\" is missing"]),
            (json!({ "app": "b", "hash": "h" }), of("1"), &["label \"app\" is \"b\""]),
            (json!({ "app": "a", "hash": "h", "old": "" }), of("1"), &["label \"old\" is \"\""]),
            (json!({}), of("1"), &["label \"app\" is missing", "label \"hash\" is missing"]),
            (all.clone(), of("2"), &["its controller is ReplicaSet \"o\""]),
            // It is adopted.
            (all, json!([]), &[]),
            (
                json!({ "app": "a" }),
                json!([]),
                &["label \"hash\" is missing", "its controller reference is missing"],
            ),
        ];
        for (labels, owners, expected) in table {
            let created = json!({ "labels": labels, "ownerReferences": owners });
            let created: Meta = serde_json::from_value(created).unwrap();
            let found = ownership_changes(&owner, Some(&selector), &sent, &created);
            assert_eq!(found, expected, "{labels} {owners}");
        }
    }

    #[test]
    fn long_lists_of_changes_are_cut() {
        let changes: Vec<String> = (0..6).map(|number| number.to_string()).collect();
        assert_eq!(list_changes(&changes), "0, 1, 2, 3, and 2 more");
        assert_eq!(list_changes(&changes[..4]), "0, 1, 2, 3");
    }
}
