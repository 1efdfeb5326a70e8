//! The ReplicaSets of a Deployment: which is the new one, which are old, in what order.

use std::cmp::Ordering;
use std::sync::Arc;

use super::annotations::{self, DESIRED_REPLICAS, MAX_REPLICAS};
use super::scaling::{PodCounts, Share};
use super::template::equal_ignoring_hash;
use crate::objects::{ReplicaSet, Template};

/// The ReplicaSets that a Deployment owns, with the writes of this sync.
pub(super) type Owned = Vec<Arc<ReplicaSet>>;

/// The ReplicaSets of a Deployment, by role.
#[derive(Clone, Default)]
pub(super) struct Sets {
    /// The oldest that has the Deployment's own template.
    pub new: Option<Arc<ReplicaSet>>,
    /// All others.
    pub old: Vec<Arc<ReplicaSet>>,
}

impl Sets {
    /// Sorts `owned`, oldest first. The first that has `template` is the new one. Upstream:
    /// `FindNewReplicaSet`, `FindOldReplicaSets`.
    pub fn new(template: &Template, owned: &mut [Arc<ReplicaSet>]) -> Sets {
        owned.sort_by(|a, b| by_creation(a, b));
        let mut sets = Sets::default();
        for set in owned.iter() {
            if sets.new.is_none() && equal_ignoring_hash(&set.spec.template, template) {
                sets.new = Some(set.clone());
            } else {
                sets.old.push(set.clone());
            }
        }
        sets
    }

    /// The old ones, then the new one.
    pub fn all(&self) -> impl Iterator<Item = &Arc<ReplicaSet>> {
        self.old.iter().chain(&self.new)
    }

    /// Those that should have pods.
    pub fn active(&self) -> impl Iterator<Item = &Arc<ReplicaSet>> {
        self.all().filter(|set| set.replicas() > 0)
    }

    pub fn active_old(&self) -> Vec<Arc<ReplicaSet>> {
        self.old.iter().filter(|set| set.replicas() > 0).cloned().collect()
    }

    /// The pods that all of them should have.
    pub fn replicas(&self) -> i32 {
        self.all().map(|set| set.replicas()).fold(0, i32::saturating_add)
    }

    /// Returns whether an active ReplicaSet was last scaled when the Deployment wanted another
    /// number of replicas than `desired`, so that the Deployment was scaled since. Upstream:
    /// `isScalingEvent`.
    pub fn lag_behind(&self, desired: i32) -> bool {
        let noted =
            |set: &ReplicaSet| annotations::replicas(&set.meta.annotations, DESIRED_REPLICAS);
        self.active().any(|set| noted(set).is_some_and(|noted| noted != desired))
    }

    /// Returns the one to scale when there is no rollout to share among several: the only active
    /// one, or with none active the newest.
    /// Upstream: `FindActiveOrLatest`.
    pub fn active_or_latest(&self) -> Option<&Arc<ReplicaSet>> {
        let mut active = self.active();
        match (active.next(), active.next()) {
            (Some(_), Some(_)) => None,
            (Some(only), None) => Some(only),
            (None, _) => {
                self.new.as_ref().or_else(|| self.old.iter().max_by(|a, b| by_creation(a, b)))
            }
        }
    }
}

/// Compares by age: oldest first. Upstream: `ReplicaSetsByCreationTimestamp`.
pub(super) fn by_creation(a: &ReplicaSet, b: &ReplicaSet) -> Ordering {
    let key = |set: &ReplicaSet| (set.meta.creation_timestamp, set.meta.name.clone());
    key(a).cmp(&key(b))
}

/// Compares by size: largest first, then newest. Upstream: `ReplicaSetsBySizeNewer`.
pub(super) fn by_size_newer(a: &ReplicaSet, b: &ReplicaSet) -> Ordering {
    b.replicas().cmp(&a.replicas()).then_with(|| by_creation(b, a))
}

/// Compares by size: largest first, then oldest. Upstream: `ReplicaSetsBySizeOlder`.
pub(super) fn by_size_older(a: &ReplicaSet, b: &ReplicaSet) -> Ordering {
    b.replicas().cmp(&a.replicas()).then_with(|| by_creation(a, b))
}

/// Compares by revision, lowest first; by age where one of the two cannot be read.
/// Upstream: `ReplicaSetsByRevision`.
fn by_revision(a: &ReplicaSet, b: &ReplicaSet) -> Ordering {
    let by_number = match (annotations::revision(&a.meta), annotations::revision(&b.meta)) {
        (Some(a), Some(b)) => a.cmp(&b),
        _ => Ordering::Equal,
    };
    by_number.then_with(|| by_creation(a, b))
}

/// Up to this many ReplicaSets are sorted by insertion, as upstream does: where a revision cannot
/// be read, [`by_revision`] is not transitive, and the result depends on the algorithm.
const MOST_SORTED_BY_INSERTION: usize = 12;

/// Sorts `sets` by revision, then oldest first. One whose revision cannot be read is sorted as if
/// it had the highest revision of the older ones.
fn sort_by_revision(mut sets: Vec<&Arc<ReplicaSet>>) -> Vec<&Arc<ReplicaSet>> {
    sets.sort_by(|a, b| by_creation(a, b));
    let mut highest = i64::MIN;
    let mut placed: Vec<(i64, &Arc<ReplicaSet>)> = Vec::with_capacity(sets.len());
    for set in sets {
        let revision = annotations::revision(&set.meta);
        highest = highest.max(revision.unwrap_or(i64::MIN));
        placed.push((revision.unwrap_or(highest), set));
    }
    // Stable: those of one revision stay oldest first.
    placed.sort_by_key(|(revision, _)| *revision);
    placed.into_iter().map(|(_, set)| set).collect()
}

/// Returns the old ReplicaSets to delete so that `limit` stay: lowest revision first. One that has
/// pods, may get some, or is being deleted already is not among them.
/// Upstream: `cleanupDeployment`.
pub(super) fn beyond_history(old: &[Arc<ReplicaSet>], limit: i32) -> Vec<Arc<ReplicaSet>> {
    let mut staying: Vec<_> = old.iter().filter(|set| !set.meta.is_being_deleted()).collect();
    let surplus = staying.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
    if surplus == 0 {
        return Vec::new();
    }
    if staying.len() > MOST_SORTED_BY_INSERTION {
        staying = sort_by_revision(staying);
    } else {
        for end in 1..staying.len() {
            let mut at = end;
            while at > 0 && by_revision(staying[at], staying[at - 1]).is_lt() {
                staying.swap(at, at - 1);
                at -= 1;
            }
        }
    }
    let idle = |set: &ReplicaSet| {
        set.status.replicas == 0
            && set.replicas() == 0
            && set.meta.generation <= set.status.observed_generation
    };
    staying.into_iter().take(surplus).filter(|set| idle(set)).cloned().collect()
}

impl From<&ReplicaSet> for Share {
    fn from(set: &ReplicaSet) -> Share {
        let max_before = annotations::replicas(&set.meta.annotations, MAX_REPLICAS);
        Share { replicas: set.replicas(), max_before }
    }
}

impl From<&ReplicaSet> for PodCounts {
    fn from(set: &ReplicaSet) -> PodCounts {
        PodCounts { replicas: set.replicas(), available: set.status.available_replicas }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::objects::Timestamp;
    use serde_json::{Value, json};

    /// A ReplicaSet created `created` seconds after 1970, its template that of `image`; `more`:
    /// values by JSON pointer.
    pub fn set(
        name: &str,
        created: u32,
        image: &str,
        replicas: i32,
        more: Value,
    ) -> Arc<ReplicaSet> {
        let mut json = json!({
            "metadata": {"namespace": "ns", "name": name, "uid": name, "annotations": {},
                "creationTimestamp": format!("1970-01-01T00:00:{created:02}Z")},
            "spec": {"replicas": replicas, "template": {"spec": {"image": image}}},
            "status": {}
        });
        for (pointer, value) in more.as_object().into_iter().flatten() {
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            json.pointer_mut(parent).unwrap()[key] = value.clone();
        }
        Arc::new(serde_json::from_value(json).unwrap())
    }

    fn names<'a>(sets: impl IntoIterator<Item = &'a Arc<ReplicaSet>>) -> Vec<&'a str> {
        sets.into_iter().map(|set| &*set.meta.name).collect()
    }

    #[test]
    fn the_oldest_with_the_template_is_the_new_one() {
        let template: Template = serde_json::from_value(json!({"spec": {"image": "b"}})).unwrap();
        let mut owned = [
            set("c", 3, "b", 0, json!({})),
            set("a", 1, "a", 2, json!({})),
            set("b", 2, "b", 0, json!({})),
        ];
        let sets = Sets::new(&template, &mut owned);
        assert_eq!((names(&sets.new), names(&sets.old)), (vec!["b"], vec!["a", "c"]));
        assert_eq!(names(sets.active_or_latest()), ["a"]);
        let none = Sets::new(&template, &mut owned[..1]);
        assert_eq!((names(&none.new), names(&none.old)), (vec![], vec!["a"]));
    }

    #[test]
    fn one_active_or_the_latest_is_scaled_alone() {
        let (a0, b0) = (set("a", 1, "a", 0, json!({})), set("b", 2, "b", 0, json!({})));
        let (a2, n0) = (set("a", 1, "a", 2, json!({})), set("n", 3, "n", 0, json!({})));
        let n1 = set("n", 3, "n", 1, json!({}));
        for (new, old, found) in [
            (None, vec![], None),
            (None, vec![&b0, &a0], Some("b")),
            (Some(&n0), vec![&a0, &b0], Some("n")),
            (Some(&n0), vec![&a2, &b0], Some("a")),
            (Some(&n1), vec![&a2], None),
        ] {
            let sets = Sets { new: new.cloned(), old: old.into_iter().cloned().collect() };
            assert_eq!(names(sets.active_or_latest()).first().copied(), found);
        }
    }

    #[test]
    fn a_deployment_was_scaled_if_an_active_set_notes_another_size() {
        // The new ReplicaSet and an old one have these pods, and note these sizes.
        for (new, old, scaled) in [
            ((3, "3"), (1, "3"), false),
            ((3, "2"), (0, "3"), true),
            ((3, "3"), (1, "2"), true),
            ((3, "3"), (0, "2"), false),
            ((0, "0"), (0, "0"), false),
            ((3, ""), (1, "x"), false),
        ] {
            let of = |name: &str, (replicas, noted): (i32, &str)| {
                let notes = json!({ DESIRED_REPLICAS: noted });
                set(name, 1, name, replicas, json!({ "/metadata/annotations": notes }))
            };
            let sets = Sets { new: Some(of("new", new)), old: vec![of("old", old)] };
            assert_eq!(sets.lag_behind(3), scaled, "{new:?} {old:?}");
        }
        assert!(!Sets::default().lag_behind(3));
    }

    #[test]
    fn history_beyond_its_limit_goes_lowest_revision_first() {
        let with = |name: &str, created: u32, revision: &str, replicas: i32, more: Value| {
            let base = set(name, created, "x", replicas, more);
            let mut copy = (*base).clone();
            copy.meta.annotations = [(annotations::REVISION, revision)].into_iter().collect();
            Arc::new(copy)
        };
        let old = [
            with("c", 3, "2", 0, json!({})),
            with("a", 1, "4", 0, json!({})),
            with("b", 2, "3", 0, json!({})),
            with(
                "going",
                1,
                "0",
                0,
                json!({"/metadata/deletionTimestamp": "2026-01-01T00:00:00Z"}),
            ),
            with("sized", 1, "1", 1, json!({})),
            with("busy", 1, "1", 0, json!({"/status/replicas": 1})),
            with(
                "unseen",
                1,
                "1",
                0,
                json!({"/metadata/generation": 2, "/status/observedGeneration": 1}),
            ),
        ];
        for (limit, gone) in [
            (0, vec!["c", "b", "a"]),
            (1, vec!["c", "b"]),
            // the three that may not go take their places in the count, as upstream has it
            (2, vec!["c"]),
            (3, vec![]),
            (10, vec![]),
        ] {
            assert_eq!(names(&beyond_history(&old, limit)), gone, "{limit}");
        }
    }

    #[test]
    fn a_long_history_has_an_order_also_with_revisions_that_cannot_be_read() {
        let of = |created: u32, revision: String| {
            let base = set(&format!("{created:04}"), 0, "x", 0, json!({}));
            let mut copy = (*base).clone();
            copy.meta.creation_timestamp = Some(Timestamp::from_secs(created.into()));
            copy.meta.annotations = [(annotations::REVISION, &*revision)].into_iter().collect();
            Arc::new(copy)
        };
        let count = 2_000;
        // Falling with age: the youngest has the lowest.
        let falling: Vec<_> = (0..count).map(|n| of(n, (count - n).to_string())).collect();
        let youngest: Vec<String> = (1..count).rev().map(|n| format!("{n:04}")).collect();
        assert_eq!(names(&beyond_history(&falling, 1)), youngest);
        assert!(beyond_history(&falling, count as i32).is_empty());
        // The one that cannot be read keeps its place by age.
        let odd = |n: u32| if n == 7 { "x".to_owned() } else { n.to_string() };
        let mixed: Vec<_> = (0..20).map(|n| of(n, odd(n))).collect();
        let oldest: Vec<String> = (0..10).map(|n| format!("{n:04}")).collect();
        assert_eq!(names(&beyond_history(&mixed, 10)), oldest);
    }

    #[test]
    fn a_revision_that_cannot_be_read_has_its_place_by_age() {
        let of = |(created, revision): (u32, &str)| {
            let base = set(&format!("{created}"), created, "x", 0, json!({}));
            let mut copy = (*base).clone();
            copy.meta.annotations = [(annotations::REVISION, revision)].into_iter().collect();
            Arc::new(copy)
        };
        // What is created when, with its revision, oldest first; what is deleted so that one stays.
        for (old, gone) in [
            (vec![(1, "1"), (2, "2"), (3, "abc")], vec!["1", "2"]),
            (vec![(1, "1"), (2, "abc"), (3, "3")], vec!["1", "2"]),
            (vec![(1, "abc"), (2, "2"), (3, "3")], vec!["1", "2"]),
            (vec![(1, ""), (2, "x"), (3, "9223372036854775808")], vec!["1", "2"]),
            // The order is not transitive: upstream's for so few.
            (vec![(1, "5"), (2, "abc"), (3, "2")], vec!["1", "2"]),
            (vec![(1, "5"), (2, "2"), (3, "abc"), (4, "1")], vec!["2", "1", "3"]),
        ] {
            let sets: Vec<_> = old.iter().copied().map(of).collect();
            assert_eq!(names(&beyond_history(&sets, 1)), gone, "{old:?}");
        }
    }
}
