//! The annotations of a Deployment's ReplicaSets: revisions, the wanted size, and copies of its
//! own.

use std::collections::BTreeMap;

use crate::objects::{Labels, Meta};

/// The place of a ReplicaSet in the rollouts of its Deployment, counted from 1.
pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
/// The revisions that a ReplicaSet had before it was rolled back to, separated by commas.
pub(super) const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
/// `spec.replicas` of the Deployment when it last scaled the ReplicaSet: distinguishes
/// scaling from a rollout.
pub(super) const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";
/// The same with the surge: the base of proportional scaling.
pub(super) const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";
/// The revision to roll back to, of the removed API versions that had `spec.rollbackTo`.
pub(super) const ROLLBACK_TO: &str = "deprecated.deployment.rollback.to";

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Upstream: `maxRevHistoryLengthInChars`.
const LONGEST_HISTORY: usize = 2000;

pub(super) type Annotations = BTreeMap<String, String>;

pub(super) fn to_map(labels: &Labels) -> Annotations {
    labels.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Returns `labels` with `key` set to `value`.
pub(super) fn with_label(labels: &Labels, key: &str, value: &str) -> Labels {
    labels.iter().filter(|(k, _)| *k != key).chain([(key, value)]).collect()
}

/// Returns whether an annotation is never copied: it belongs to the Deployment or the ReplicaSet.
/// Upstream: `annotationsToSkip`.
pub(super) fn is_not_copied(key: &str) -> bool {
    [LAST_APPLIED, REVISION, REVISION_HISTORY, DESIRED_REPLICAS, MAX_REPLICAS, ROLLBACK_TO]
        .contains(&key)
}

/// Returns the revision of an object; 0 without the annotation, `None` when it is no number.
pub(super) fn revision(meta: &Meta) -> Option<i64> {
    meta.annotations.get(REVISION).map_or(Some(0), |text| text.parse().ok())
}

/// Returns the highest of `revisions`; 0 without any. Upstream: `MaxRevision`.
pub(super) fn max_revision(revisions: impl IntoIterator<Item = i64>) -> i64 {
    revisions.into_iter().fold(0, i64::max)
}

/// Returns the second highest revision; 0 of fewer than two.
/// Upstream: `LastRevision`.
pub(super) fn last_revision(revisions: impl IntoIterator<Item = i64>) -> i64 {
    let (mut highest, mut second) = (0, 0);
    for revision in revisions {
        if revision >= highest {
            (highest, second) = (revision, highest);
        } else {
            second = second.max(revision);
        }
    }
    second
}

/// Returns the number of replicas in the annotation `key`; `None` if it is missing or no number.
pub(super) fn replicas(labels: &Labels, key: &str) -> Option<i32> {
    let text = labels.get(key)?;
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// Returns the annotations with which a ReplicaSet records the `desired` replicas of its
/// Deployment, and the most that it may have with the surge.
pub(super) fn sizes(desired: i32, max: i32) -> [(&'static str, String); 2] {
    [(DESIRED_REPLICAS, desired.to_string()), (MAX_REPLICAS, max.to_string())]
}

/// Returns the annotations of the newest ReplicaSet, which now are `current`: those of its
/// Deployment copied, the revision raised to `new_revision`, the one it had kept in the history.
/// `None`: nothing to write, or the revision it has is no number.
/// Upstream: `SetNewReplicaSetAnnotations`.
pub(super) fn of_newest(
    deployment: &Labels,
    current: &Annotations,
    new_revision: i64,
) -> Option<Annotations> {
    let mut next = with_copied(deployment, current);
    let old = current.get(REVISION);
    let old_revision = match old.map(String::as_str) {
        None | Some("") => 0,
        // Another writer's text: then the history is unknown too.
        Some(text) => text.parse().ok()?,
    };
    if old_revision < new_revision {
        next.insert(REVISION.to_owned(), new_revision.to_string());
        if let Some(history) =
            old.and_then(|old| append_revision(current.get(REVISION_HISTORY), old))
        {
            next.insert(REVISION_HISTORY.to_owned(), history);
        }
    }
    if next == *current {
        return None;
    }
    Some(next)
}

/// Returns `current`, overridden by the annotations that are copied from the Deployment.
pub(super) fn with_copied(deployment: &Labels, current: &Annotations) -> Annotations {
    let mut next = current.clone();
    let copied = deployment.iter().filter(|(key, _)| !is_not_copied(key));
    next.extend(copied.map(|(key, value)| (key.to_owned(), value.to_owned())));
    next
}

/// Returns `history` with `revision` at its end; the oldest revisions are dropped if it gets too
/// long. `None`: there is no room even so.
fn append_revision(history: Option<&String>, revision: &str) -> Option<String> {
    let history = history.map_or("", String::as_str);
    let mut kept: Vec<&str> = history.split(',').collect();
    if kept[0].is_empty() {
        return Some(revision.to_owned());
    }
    let mut length = history.len() + revision.len() + 1;
    while length > LONGEST_HISTORY && !kept.is_empty() {
        length -= kept.remove(0).len() + 1;
    }
    kept.push(revision);
    (length <= LONGEST_HISTORY).then(|| kept.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> Annotations {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn revisions_are_counted() {
        for (revisions, max, last) in [
            (&[][..], 0, 0),
            (&[3], 3, 0),
            (&[1, 2, 3], 3, 2),
            (&[3, 1, 2], 3, 2),
            (&[2, 2], 2, 2),
            (&[0, 5, 0], 5, 0),
        ] {
            assert_eq!(max_revision(revisions.iter().copied()), max, "{revisions:?}");
            assert_eq!(last_revision(revisions.iter().copied()), last, "{revisions:?}");
        }
        for (text, number) in [("7", Some(7)), ("x", None), ("", None)] {
            let meta =
                Meta { annotations: [(REVISION, text)].into_iter().collect(), ..Meta::default() };
            assert_eq!(revision(&meta), number);
        }
        assert_eq!(revision(&Meta::default()), Some(0));
    }

    #[test]
    fn sizes_are_read_only_when_whole() {
        for (text, size) in [
            ("3", Some(3)),
            ("0", Some(0)),
            ("-1", None),
            ("+1", None),
            ("2147483648", None),
            ("", None),
        ] {
            let labels = [(MAX_REPLICAS, text)].into_iter().collect();
            assert_eq!(replicas(&labels, MAX_REPLICAS), size, "{text:?}");
        }
    }

    #[test]
    fn the_newest_replica_set_is_annotated() {
        let deployment: Labels =
            [("cause", "edit"), (REVISION, "9"), (LAST_APPLIED, "{}"), (ROLLBACK_TO, "1")]
                .into_iter()
                .collect();
        let table: [(&[_], i64, Option<&[_]>); 6] = [
            (&[], 1, Some(&[("cause", "edit"), (REVISION, "1")])),
            (&[("cause", "edit"), (REVISION, "2")], 2, None),
            // its revision is already higher: older ReplicaSets have gone since
            (&[("cause", "edit"), (REVISION, "5")], 2, None),
            (
                &[("cause", "x"), ("own", "y"), (REVISION, "1")],
                3,
                Some(&[("cause", "edit"), ("own", "y"), (REVISION, "3"), (REVISION_HISTORY, "1")]),
            ),
            (
                &[("cause", "edit"), (REVISION, "3"), (REVISION_HISTORY, "1")],
                4,
                Some(&[("cause", "edit"), (REVISION, "4"), (REVISION_HISTORY, "1,3")]),
            ),
            (&[("cause", "x"), (REVISION, "mine")], 4, None),
        ];
        for (current, new_revision, next) in table {
            let got = of_newest(&deployment, &map(current), new_revision);
            assert_eq!(got, next.map(map), "{current:?}");
        }
    }

    #[test]
    fn the_history_stays_short() {
        let full = vec!["1000"; 400].join(",");
        assert_eq!(full.len(), 1999);
        let history = append_revision(Some(&full), "1001").unwrap();
        assert_eq!((history.len(), history.ends_with("1000,1001")), (1999, true));
        assert_eq!(append_revision(None, "1").as_deref(), Some("1"));
        assert_eq!(append_revision(Some(&"1".to_owned()), &"2".repeat(2001)), None);
    }
}
