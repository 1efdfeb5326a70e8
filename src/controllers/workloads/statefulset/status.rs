//! The status of a StatefulSet. Upstream: `updateStatus`, `stateful_set_status_updater.go`.

use std::sync::Arc;

use super::plan::{is_running_and_ready, revision};
use crate::objects::{Pod, StatefulSet, StatefulSetStatus, Timestamp};

/// The revisions of a set, by name.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    pub current: &'a str,
    pub update: &'a str,
}

/// Computes the status with these pods.
/// Upstream: `computeReplicaStatus`.
pub fn calculate<'a>(
    set: &StatefulSet,
    names: Names<'_>,
    collision_count: i32,
    pods: impl Iterator<Item = &'a Arc<Pod>>,
    now: Timestamp,
) -> StatefulSetStatus {
    let mut status = StatefulSetStatus {
        observed_generation: set.meta.generation,
        current_revision: names.current.into(),
        update_revision: names.update.into(),
        collision_count: Some(collision_count),
        ..StatefulSetStatus::default()
    };
    for pod in pods {
        status.replicas += 1;
        if is_running_and_ready(pod) {
            status.ready_replicas += 1;
            status.available_replicas +=
                i32::from(pod.is_available(set.spec.min_ready_seconds, now));
        }
        if !pod.meta.is_being_deleted() {
            status.current_replicas += i32::from(revision(pod) == names.current);
            status.updated_replicas += i32::from(revision(pod) == names.update);
        }
    }
    status
}

/// Makes the update revision the current one if all pods have it and are ready.
/// Upstream: `completeRollingUpdate`, which does so only with the strategy `RollingUpdate`.
pub fn complete_update(set: &StatefulSet, status: &mut StatefulSetStatus) {
    let counts = [status.updated_replicas, status.ready_replicas, status.replicas];
    if counts.iter().all(|count| *count == set.replicas()) {
        status.current_replicas = status.updated_replicas;
        status.current_revision = status.update_revision.clone();
    }
}

/// Returns whether `status` has to be written: it differs, except in the collision count, or is of
/// a newer generation. Upstream: `inconsistentStatus`.
pub fn needs_write(known: &StatefulSetStatus, status: &StatefulSetStatus) -> bool {
    let rest = StatefulSetStatus {
        observed_generation: known.observed_generation,
        collision_count: known.collision_count,
        ..status.clone()
    };
    status.observed_generation > known.observed_generation || rest != *known
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::controllers::workloads::history::REVISION_LABEL;

    const NOW: Timestamp = Timestamp::from_secs(1000);
    const NAMES: Names<'_> = Names { current: "old", update: "new" };

    fn pod(revision: &str, phase: &str, ready_since: Option<i64>, going: bool) -> Arc<Pod> {
        let conditions = ready_since.map(|at| {
            json!([{"type": "Ready", "status": "True",
                "lastTransitionTime": Timestamp::from_secs(at).to_string()}])
        });
        let deleted = going.then(|| NOW.to_string());
        Arc::new(
            serde_json::from_value(json!({
                "metadata": {"labels": {REVISION_LABEL: revision}, "deletionTimestamp": deleted},
                "status": {"phase": phase, "conditions": conditions},
            }))
            .unwrap(),
        )
    }

    fn set(kind: &str, replicas: i32) -> StatefulSet {
        serde_json::from_value(json!({
            "metadata": {"generation": 3},
            "spec": {"replicas": replicas, "minReadySeconds": 10, "updateStrategy": {"type": kind}},
        }))
        .unwrap()
    }

    #[test]
    fn pods_are_counted_by_state_and_revision() {
        let pods = [
            pod("old", "Running", Some(990), false),
            pod("old", "Running", Some(995), false),
            pod("new", "Pending", Some(1), false),
            pod("new", "Running", Some(1), true),
            pod("", "Failed", None, false),
        ];
        assert_eq!(
            calculate(&set("RollingUpdate", 5), NAMES, 2, pods.iter(), NOW),
            StatefulSetStatus {
                observed_generation: 3,
                replicas: 5,
                ready_replicas: 3,
                available_replicas: 2,
                current_replicas: 2,
                updated_replicas: 1,
                current_revision: "old".into(),
                update_revision: "new".into(),
                collision_count: Some(2),
            }
        );
    }

    #[test]
    fn an_update_is_complete_when_all_pods_are_ready_and_new() {
        let ready = || pod("new", "Running", Some(1), false);
        for (kind, replicas, pods, complete) in [
            ("RollingUpdate", 2, vec![ready(), ready()], true),
            ("RollingUpdate", 0, vec![], true),
            ("OnDelete", 2, vec![ready(), ready()], true),
            ("OnDelete", 2, vec![ready(), pod("old", "Running", Some(1), false)], false),
            ("RollingUpdate", 3, vec![ready(), ready()], false),
            ("RollingUpdate", 2, vec![ready(), pod("new", "Running", None, false)], false),
            ("RollingUpdate", 2, vec![ready(), pod("old", "Running", Some(1), false)], false),
            ("RollingUpdate", 1, vec![ready(), pod("old", "Running", None, true)], false),
        ] {
            let set = set(kind, replicas);
            let mut status = calculate(&set, NAMES, 0, pods.iter(), NOW);
            complete_update(&set, &mut status);
            let expected = if complete { "new" } else { "old" };
            assert_eq!(status.current_revision, *expected, "{kind} {replicas} {pods:?}");
        }
    }

    #[test]
    fn only_a_changed_status_is_written() {
        let known = calculate(&set("OnDelete", 0), NAMES, 1, [].iter(), NOW);
        type Change = fn(&mut StatefulSetStatus);
        let table: [(Change, bool); 8] = [
            (|_| {}, false),
            (|status| status.collision_count = Some(7), false),
            (|status| status.observed_generation -= 1, false),
            (|status| status.observed_generation += 1, true),
            (|status| status.replicas += 1, true),
            (|status| status.available_replicas += 1, true),
            (|status| status.current_revision = "x".into(), true),
            (|status| status.update_revision = "x".into(), true),
        ];
        for (at, (change, news)) in table.into_iter().enumerate() {
            let mut status = known.clone();
            change(&mut status);
            assert_eq!(needs_write(&known, &status), news, "{at}");
        }
    }
}
