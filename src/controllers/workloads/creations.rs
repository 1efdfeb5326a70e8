//! Paces the creations of an owner whose new objects come back from the API server so that their
//! controller does not recognise them, as under a mutating webhook: without a pause it would create
//! others until a quota is full. Upstream has no counterpart.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;

use crate::clock::SharedClock;
use crate::controllers::Error;
use crate::controllers::workloads::owner_records::OwnerRecord;
use crate::events::Recorder;
use crate::objects::{LabelSelector, Labels, Meta, Object, ObjectKey, Resource, Selector, Uid};

/// The wait after the first object that was not recognised. It doubles with each further one.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_mins(15);

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

/// The owners whose last creation was not recognised, with the time of the next one. A record ends
/// when an object comes back as it was sent, and with a new generation of the owner.
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
    why: String,
}

/// The permission to create an object now.
#[must_use]
pub struct Permit {
    step: u32,
}

impl Record {
    fn is_of(&self, owner: &Meta) -> bool {
        self.uid == owner.uid && self.generation == owner.generation
    }

    fn as_error(&self, now: Duration) -> Error {
        Error::Wait { after: self.until.saturating_sub(now), why: self.why.clone() }
    }
}

impl Creations {
    /// No owner waits.
    pub fn new(clock: SharedClock) -> Creations {
        Creations { clock, owners: Mutex::default() }
    }

    /// Whether `owner` may create an object now.
    ///
    /// # Errors
    /// [`Error::Wait`] while it has to wait.
    pub fn allow(&self, owner: &Meta) -> Result<Permit, Error> {
        let mut owners = self.owners.lock();
        // Without such a webhook no owner waits, and no creation pays for a key.
        if owners.is_empty() {
            return Ok(Permit { step: 0 });
        }
        let (key, now) = (owner.key(), self.clock.monotonic());
        match owners.get(&key) {
            None => Ok(Permit { step: 0 }),
            Some(record) if !record.is_of(owner) => {
                owners.remove(&key);
                Ok(Permit { step: 0 })
            }
            Some(record) if now < record.until => Err(record.as_error(now)),
            Some(record) => Ok(Permit { step: record.step }),
        }
    }

    /// Takes the answer to a creation that `permit` allowed. `name`: of the new object, of the kind
    /// `kind`. `changes`: why its controller does not recognise it; none if it does. The objects of
    /// one batch count once.
    ///
    /// # Errors
    /// [`Error::Wait`] when there are changes: the next creation has to wait.
    pub fn created<O: Object + Resource>(
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
        let now = self.clock.monotonic();
        let record = owners.entry(meta.key()).or_insert_with(|| Record {
            uid: meta.uid.clone(),
            generation: meta.generation,
            // An object of the same batch may have ended the record.
            step: permit.step,
            wait: Duration::ZERO,
            until: now,
            why: String::new(),
        });
        if record.is_of(meta) && record.step == permit.step {
            record.step += 1;
            record.wait = (record.wait * 2).clamp(FIRST_WAIT, LONGEST_WAIT);
            record.until = now + record.wait;
            record.why = format!(
                "{kind} {name:?} came back changed from its creation, so this {} does not \
                 recognise it: {}",
                O::RESOURCE.kind,
                listed(changes)
            );
            let message = format!(
                "{}; it creates no other for {} s, or until its spec changes",
                record.why,
                record.wait.as_secs()
            );
            recorder.warning(owner, CHANGED, message);
        }
        Err(record.as_error(now))
    }
}

impl OwnerRecord for Creations {
    fn forget(&self, owner: &ObjectKey, uid: Option<&Uid>) {
        let mut owners = self.owners.lock();
        if owners.get(owner).is_some_and(|record| uid.is_none_or(|uid| *uid == record.uid)) {
            owners.remove(owner);
        }
    }
}

/// The first of `changes`, and the number of the others.
pub fn listed(changes: &[String]) -> String {
    let shown = &changes[..changes.len().min(SHOWN_CHANGES)];
    match changes.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{}, and {more} more", shown.join(", ")),
    }
}

/// Adds the places at and below `place` at which `other` differs from `one`.
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

/// Why `owner`, which selects its objects by `selector`, does not recognise an object that was sent
/// with `labels`. An orphan that it selects is not listed: it adopts it.
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
    changes.extend(controller_change(owner, created).filter(|_| !is_adopted));
    changes
}

/// Why `created` does not name `owner`, which has sent it, as its controller.
pub fn controller_change(owner: &Meta, created: &Meta) -> Option<String> {
    match created.controller() {
        Some(controller) if controller.uid == owner.uid => None,
        Some(other) => Some(format!("its controller is {} {:?}", other.kind, other.name)),
        None => Some("its controller reference is missing".to_owned()),
    }
}

/// The changed labels that `selector` reads; none if it still matches.
fn label_changes(selector: &LabelSelector, sent: &Labels, created: &Meta) -> Vec<String> {
    let Ok(ready) = Selector::try_from(Some(selector)) else { return Vec::new() };
    if !ready.matches(sent) || ready.matches(&created.labels) {
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
            waits(self.creations.created(set, permit, &self.recorder, named, changes))
        }

        fn allowed(&self, set: &ReplicaSet) -> Permit {
            self.creations.allow(&set.meta).unwrap_or_else(|error| panic!("{error}"))
        }

        fn denied(&self, set: &ReplicaSet) -> Option<u64> {
            waits(self.creations.allow(&set.meta).map(drop))
        }
    }

    #[test]
    fn each_unrecognised_object_doubles_the_wait_up_to_a_limit() {
        let (bench, set) = (bench(), set("1", 1));
        let changes = ["label \"app\" is missing".to_owned()];
        for wait in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900] {
            let permit = bench.allowed(&set);
            assert_eq!(bench.create(&set, permit, &changes), Some(wait));
            assert_eq!(
                bench.heard.take(),
                [format!(
                    "Warning CreatedObjectChanged Pod \"web-1\" came back changed from its \
                     creation, so this ReplicaSet does not recognise it: label \"app\" is missing; \
                     it creates no other for {wait} s, or until its spec changes"
                )]
            );
            assert_eq!(bench.denied(&set), Some(wait));
            bench.clock.advance(Duration::from_secs(wait) - Duration::from_millis(1));
            assert_eq!(bench.denied(&set), Some(0));
            bench.clock.advance(Duration::from_millis(1));
        }
        assert_eq!(bench.heard.take().len(), 0, "waiting is no event");
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
            // As by a sidecar injector, and by a webhook that labels everything.
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
        assert_eq!(listed(&changes), "0, 1, 2, 3, and 2 more");
        assert_eq!(listed(&changes[..4]), "0, 1, 2, 3");
    }
}
