use serde_json::{Value, json};

use super::super::identity::POD_NAME_LABEL;
use super::*;

const NOW: Timestamp = Timestamp::from_secs(1000);

/// A set of three pods, `OrderedReady`, with a claim for each.
fn set(change: Value) -> StatefulSet {
    let mut set = json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "set"},
        "spec": {
            "replicas": 3, "podManagementPolicy": "OrderedReady",
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
        },
        "status": {"currentReplicas": 2},
    });
    for (name, value) in change.as_object().into_iter().flatten() {
        set["spec"][name] = value.clone();
    }
    serde_json::from_value(set).unwrap()
}

/// `name state revision`: the states are `ok`, `unready`, `new` (ready, not available with
/// minReadySeconds), `pending`, `failed`, `done`, and `going` or `gone` (being deleted, ready or
/// not). Without a revision the pod is up to date.
fn pod(text: &str) -> Arc<Pod> {
    let mut words = text.split(' ');
    let (name, state) = (words.next().unwrap(), words.next().unwrap());
    let phase = match state {
        "pending" => "Pending",
        "failed" => "Failed",
        "done" => "Succeeded",
        _ => "Running",
    };
    let ready_since = match state {
        "ok" | "going" => Some(900),
        "new" => Some(999),
        _ => None,
    };
    let conditions = ready_since.map(|at| {
        json!([{"type": "Ready", "status": "True",
            "lastTransitionTime": Timestamp::from_secs(at).to_string()}])
    });
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {
                "name": name, "uid": format!("uid of {name}"),
                "labels": {
                    POD_NAME_LABEL: name, REVISION_LABEL: words.next().unwrap_or("update"),
                },
                "deletionTimestamp": state.starts_with('g').then(|| NOW.to_string()),
            },
            "spec": {"volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": format!("data-{name}")}},
            ]},
            "status": {"phase": phase, "conditions": conditions},
        }))
        .unwrap(),
    )
}

fn plan(
    set: &StatefulSet,
    pods: &[&str],
    claims: &[(&str, Value)],
    max_unavailable: Option<usize>,
) -> Plan {
    let pods: Vec<_> = pods.iter().map(|text| pod(text)).collect();
    let members = Members::new(set, &pods);
    let claim = |name: &str| {
        let found = claims.iter().find(|(known, _)| *known == name)?;
        let json = json!({"metadata": {"name": name, "ownerReferences": found.1}});
        Some(Arc::new(serde_json::from_value(json).unwrap()))
    };
    PlanInput { set, members: &members, update: "update", claim: &claim, max_unavailable, now: NOW }
        .plan()
}

/// The steps of a phase, such as `create 1` and `delete web-2`; those on one pod with a `+`.
fn steps(jobs: &[PodSteps]) -> Vec<String> {
    let step = |work: &Step| match work {
        Step::Create(ordinal) => format!("create {ordinal}"),
        Step::Delete(pod) => format!("delete {}", pod.meta.name),
        Step::Claims(pod) => format!("claims {}", pod.meta.name),
        Step::Owners(pod) => format!("owners {}", pod.meta.name),
        Step::Conform(pod) => format!("conform {}", pod.meta.name),
    };
    let jobs = jobs.iter().filter(|job| !job.is_empty());
    jobs.map(|job| job.iter().map(step).collect::<Vec<_>>().join(" + ")).collect()
}

#[test]
fn ordered_sets_take_one_step_at_a_time() {
    let set = set(json!({"minReadySeconds": 10}));
    // pods, and the steps on wanted pods, of scaling down, of the update
    for (pods, replicas, down, update) in [
        (vec![], vec!["create 0"], vec![], vec![]),
        (vec!["web-0 ok"], vec!["create 1"], vec![], vec![]),
        (vec!["web-0 pending"], vec![], vec![], vec![]),
        (vec!["web-0 unready"], vec![], vec![], vec![]),
        (vec!["web-0 new"], vec![], vec![], vec![]),
        (vec!["web-0 going"], vec![], vec![], vec![]),
        (vec!["web-0 failed", "web-1 ok"], vec!["delete web-0"], vec![], vec![]),
        (vec!["web-0 ok", "web-1 done"], vec!["delete web-1"], vec![], vec![]),
        (vec!["web-0 ok", "web-2 ok"], vec!["create 1"], vec![], vec![]),
        (vec!["web-0 ok", "web-1 unready", "web-5 ok"], vec![], vec![], vec![]),
        (
            vec!["web-0 ok", "web-1 ok", "web-2 ok", "web-3 ok", "web-4 ok"],
            vec![],
            vec!["delete web-4"],
            vec![],
        ),
        (
            vec!["web-0 ok", "web-1 ok", "web-2 ok", "web-3 ok", "web-4 going"],
            vec![],
            vec![],
            vec![],
        ),
        // The lowest pod that is not available may go, a higher one waits for it.
        (
            vec!["web-0 ok", "web-1 ok", "web-2 ok", "web-3 ok", "web-4 unready"],
            vec![],
            vec!["delete web-4"],
            vec![],
        ),
        (
            vec!["web-0 ok", "web-1 ok", "web-2 ok", "web-3 unready", "web-4 new"],
            vec![],
            vec![],
            vec![],
        ),
        (
            vec!["web-0 ok", "web-1 ok", "web-2 ok", "web-3 unready", "web-4 ok"],
            vec![],
            vec!["delete web-4"],
            vec![],
        ),
        (
            vec!["web-0 ok old", "web-1 ok old", "web-2 ok old"],
            vec![],
            vec![],
            vec!["delete web-2"],
        ),
        (vec!["web-0 ok old", "web-1 ok old", "web-2 ok"], vec![], vec![], vec!["delete web-1"]),
        // Scaling comes before the update.
        (
            vec!["web-0 ok old", "web-1 ok old", "web-2 ok old", "web-3 ok old"],
            vec![],
            vec!["delete web-3"],
            vec![],
        ),
    ] {
        let plan = plan(&set, &pods, &[], None);
        assert_eq!(steps(&plan.replicas), replicas, "{pods:?}");
        assert_eq!(steps(&plan.scale_down), down, "{pods:?}");
        assert_eq!(steps(&plan.update), update, "{pods:?}");
    }
}

#[test]
fn parallel_sets_take_all_steps_at_once() {
    let set = set(json!({"podManagementPolicy": "Parallel", "minReadySeconds": 10}));
    for (pods, replicas, down, update) in [
        (vec![], vec!["create 0", "create 1", "create 2"], vec![], vec![]),
        (
            vec!["web-0 failed", "web-2 pending", "web-7 unready", "web-9 ok", "web-8 going"],
            vec!["delete web-0", "create 1"],
            vec!["delete web-9", "delete web-7"],
            vec![],
        ),
        // The update replaces one pod after the other.
        (
            vec!["web-0 ok old", "web-1 ok old", "web-2 ok old"],
            vec![],
            vec![],
            vec!["delete web-2"],
        ),
        (vec!["web-0 ok old", "web-1 ok old", "web-2 new"], vec![], vec![], vec![]),
        (vec!["web-0 ok old", "web-1 ok old", "web-2 going old"], vec![], vec![], vec![]),
        (vec!["web-0 ok old", "web-1 ok old"], vec!["create 2"], vec![], vec![]),
        // A pod that is neither ready nor up to date is replaced.
        (vec!["web-0 unready old", "web-1 ok", "web-2 ok"], vec![], vec![], vec!["delete web-0"]),
    ] {
        let plan = plan(&set, &pods, &[], None);
        assert_eq!(steps(&plan.replicas), replicas, "{pods:?}");
        assert_eq!(steps(&plan.scale_down), down, "{pods:?}");
        assert_eq!(steps(&plan.update), update, "{pods:?}");
    }
}

/// Healthy pods in front count, so a pod behind them is in a larger batch.
#[test]
fn pods_without_work_count_in_the_batches_of_a_phase() {
    let set = set(json!({"podManagementPolicy": "Parallel"}));
    let plan = plan(&set, &["web-0 ok", "web-1 ok", "web-5 ok", "web-4 going"], &[], None);
    let places = |jobs: &[PodSteps]| jobs.iter().map(|job| !job.is_empty()).collect::<Vec<_>>();
    assert_eq!(places(&plan.replicas), [false, false, true]);
    assert_eq!(places(&plan.condemned_claims), [false, false]);
    assert_eq!(places(&plan.scale_down), [true, false]);
}

#[test]
fn an_update_honours_strategy_and_partition() {
    let old = ["web-0 ok old", "web-1 ok old", "web-2 ok old"];
    let rolling = |partition: i32| json!({"type": "RollingUpdate", "rollingUpdate": {"partition": partition}});
    for (strategy, start, update) in [
        (rolling(0), 0, vec!["delete web-2"]),
        (rolling(2), 0, vec!["delete web-2"]),
        (rolling(3), 0, vec![]),
        (rolling(i32::MAX), 0, vec![]),
        (json!({"type": "RollingUpdate"}), 0, vec!["delete web-2"]),
        (json!({"type": "OnDelete"}), 0, vec![]),
    ] {
        let set = set(json!({"updateStrategy": strategy, "ordinals": {"start": start}}));
        assert_eq!(steps(&plan(&set, &old, &[], None).update), update, "{strategy}");
    }
    // The partition counts from the first ordinal.
    let from_five = ["web-5 ok old", "web-6 ok old", "web-7 ok old"];
    for (partition, update) in [(2, vec!["delete web-7"]), (3, vec![])] {
        let set = set(json!({"updateStrategy": rolling(partition), "ordinals": {"start": 5}}));
        assert_eq!(steps(&plan(&set, &from_five, &[], None).update), update);
    }
}

#[test]
fn as_many_pods_as_may_be_unavailable_are_updated() {
    let parallel = |partition: i32| {
        set(json!({
            "podManagementPolicy": "Parallel", "replicas": 4,
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}},
        }))
    };
    let old = vec!["web-0 ok old", "web-1 ok old", "web-2 ok old", "web-3 ok old"];
    for (pods, most, partition, unavailable, update) in [
        (old.clone(), 2, 0, 0, vec!["delete web-3", "delete web-2"]),
        (old.clone(), 9, 1, 0, vec!["delete web-3", "delete web-2", "delete web-1"]),
        (
            vec!["web-0 ok old", "web-1 ok old", "web-2 ok old", "web-3 unready"],
            2,
            0,
            1,
            vec!["delete web-2"],
        ),
        (vec!["web-0 ok old", "web-1 ok old", "web-2 ok old", "web-3 unready"], 1, 0, 1, vec![]),
        (vec!["web-0 ok old", "web-1 ok old", "web-2 going old"], 3, 0, 2, vec!["delete web-1"]),
        // Outdated pods that are not available go first, as many at a time as may be unavailable.
        (
            vec![
                "web-0 unready old",
                "web-1 unready old",
                "web-2 pending old",
                "web-3 unready old",
            ],
            1,
            0,
            4,
            vec!["delete web-3"],
        ),
        (
            vec!["web-0 unready old", "web-1 unready old", "web-2 pending old", "web-3 unready"],
            1,
            0,
            4,
            vec![],
        ),
        (
            vec!["web-0 unready old", "web-1 unready old", "web-2 pending old", "web-3 ok"],
            2,
            0,
            3,
            vec!["delete web-2", "delete web-1"],
        ),
        (
            vec!["web-0 unready old", "web-1 ok old", "web-2 ok old", "web-3 ok old"],
            1,
            0,
            1,
            vec!["delete web-0"],
        ),
        (
            vec!["web-0 unready old", "web-1 ok old", "web-2 ok old", "web-3 ok old"],
            2,
            0,
            1,
            vec!["delete web-0", "delete web-3"],
        ),
        // Those below the partition stay, and still leave the others less room.
        (
            vec!["web-0 unready old", "web-1 ok old", "web-2 ok old", "web-3 unready old"],
            1,
            2,
            2,
            vec!["delete web-3"],
        ),
        (
            vec!["web-0 unready old", "web-1 ok old", "web-2 ok old", "web-3 ok old"],
            1,
            2,
            1,
            vec![],
        ),
        // A pod that has failed is being replaced already.
        (
            vec!["web-0 ok old", "web-1 ok old", "web-2 ok old", "web-3 failed old"],
            3,
            0,
            1,
            vec!["delete web-2", "delete web-1"],
        ),
        (
            vec!["web-0 ok old", "web-1 ok old", "web-2 ok old", "web-3 failed old"],
            2,
            0,
            1,
            vec!["delete web-2"],
        ),
        (
            vec!["web-0 failed old", "web-1 ok old", "web-2 ok old", "web-3 ok old"],
            2,
            0,
            1,
            vec!["delete web-3"],
        ),
        (
            vec!["web-0 ok old", "web-1 ok old", "web-2 ok old", "web-3 failed"],
            2,
            0,
            1,
            vec!["delete web-2"],
        ),
    ] {
        let plan = plan(&parallel(partition), &pods, &[], Some(most));
        assert_eq!(steps(&plan.update), update, "{pods:?} {most} {partition}");
        assert_eq!(plan.unavailable, Some(unavailable), "{pods:?}");
    }
    let most = |value: Value| {
        let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": value}});
        max_unavailable(&set(json!({"replicas": 10, "updateStrategy": rolling})))
    };
    for (value, expected) in
        [(Value::Null, 1), (json!(3), 3), (json!("35%"), 3), (json!("5%"), 1), (json!(-4), 1)]
    {
        assert_eq!(most(value.clone()), Ok(expected), "{value}");
    }
    assert!(most(json!("x")).is_err());
    assert_eq!(max_unavailable(&StatefulSet::default()), Ok(1));
}

/// A third template came before the second one was on all pods.
#[test]
fn pods_of_other_revisions_do_not_count_as_current_ones() {
    let set = set(json!({"podManagementPolicy": "Parallel"}));
    let plan = plan(&set, &["web-0 ok old", "web-1 ok other", "web-2 ok other"], &[], Some(3));
    assert_eq!(steps(&plan.update), ["delete web-2", "delete web-1", "delete web-0"]);
    for (current, count) in [("old", 1), ("other", 2), ("update", 0)] {
        assert_eq!(count_replaced(&plan.update, current), count, "{current}");
    }
}

#[test]
fn a_new_pod_is_of_the_current_revision_below_the_partition() {
    let rolling = |partition: i32| json!({"type": "RollingUpdate", "rollingUpdate": {"partition": partition}});
    for (strategy, start, ordinal, current) in [
        (rolling(0), 0, 0, false),
        (rolling(2), 0, 1, true),
        (rolling(2), 0, 2, false),
        (rolling(2), 5, 6, true),
        (rolling(2), 5, 7, false),
        (rolling(i32::MAX), 5, i32::MAX, true),
        // Without a partition, as many as are of the current revision: 2.
        (json!({"type": "RollingUpdate"}), 0, 1, true),
        (json!({"type": "RollingUpdate"}), 0, 2, false),
        (json!({"type": "OnDelete"}), 0, 0, false),
    ] {
        let set = set(json!({"updateStrategy": strategy, "ordinals": {"start": start}}));
        assert_eq!(is_of_current(&set, ordinal), current, "{strategy} {start} {ordinal}");
    }
}

#[test]
fn claims_are_created_and_get_the_owners_of_the_policy() {
    let with = |policy: &str, scaled: &str| {
        set(json!({
            "podManagementPolicy": policy,
            "volumeClaimTemplates": [{"metadata": {"name": "data"}}],
            "persistentVolumeClaimRetentionPolicy": {
                "whenDeleted": "Retain", "whenScaled": scaled,
            },
        }))
    };
    let owner = |pod: &str, uid: &str| json!([{"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid, "controller": true}]);
    let ready = ["web-0 ok", "web-1 ok", "web-2 ok"];
    let (ordered, parallel) = (with("OrderedReady", "Delete"), with("Parallel", "Delete"));

    // A claim that is deleted together with an older pod keeps the new one waiting.
    let stale = [("data-web-1", owner("web-1", "old"))];
    assert_eq!(steps(&plan(&ordered, &["web-0 ok"], &stale, None).replicas), [""; 0]);
    assert_eq!(steps(&plan(&parallel, &["web-0 ok"], &stale, None).replicas), ["create 2"]);
    let retain = with("OrderedReady", "Retain");
    assert_eq!(steps(&plan(&retain, &["web-0 ok"], &stale, None).replicas), ["create 1"]);

    // Pending pods get the claims that they lack.
    let pods = ["web-0 pending", "web-1 ok", "web-2 ok"];
    assert_eq!(steps(&plan(&ordered, &pods, &[], None).replicas), ["claims web-0"]);
    let scaled_up = [("data-web-0", owner("web-0", "uid of web-0"))];
    assert_eq!(
        steps(&plan(&parallel, &pods, &scaled_up, None).replicas),
        ["claims web-0 + conform web-0"]
    );
    assert_eq!(steps(&plan(&ordered, &ready, &scaled_up, None).replicas), ["conform web-0"]);

    // Claims of pods beyond the wanted ordinals are deleted with them.
    let pods = ["web-0 ok", "web-1 ok", "web-2 ok", "web-3 ok"];
    for (claims, owners) in [
        (vec![], vec![]),
        (vec![("data-web-3", json!([]))], vec!["owners web-3"]),
        (vec![("data-web-3", owner("web-3", "uid of web-3"))], vec![]),
        (vec![("data-web-3", owner("web-3", "old"))], vec![]),
    ] {
        let plan = plan(&ordered, &pods, &claims, None);
        assert_eq!(steps(&plan.condemned_claims), owners, "{claims:?}");
        assert_eq!(steps(&plan.scale_down), ["delete web-3"]);
    }
}

#[test]
fn pods_that_are_no_members_are_ignored() {
    let set = set(json!({"podManagementPolicy": "Parallel", "replicas": 2}));
    let names =
        ["web-01 ok", "web-1 ok", "web-01 ok", "web-00 ok", "web-9999999999 ok", "web-5 ok"];
    let pods: Vec<_> = names.iter().map(|text| pod(text)).collect();
    let members = Members::new(&set, &pods);
    let names: Vec<&str> = members.iter().map(|pod| &*pod.meta.name).collect();
    assert_eq!(names, ["web-00", "web-1", "web-5"]);
    // A pod with another form of its name is changed, which the API server refuses.
    let plan = plan(&set, &["web-00 ok", "web-1 ok"], &[], None);
    assert_eq!(steps(&plan.replicas), ["conform web-00"]);
}

#[test]
fn a_parallel_set_is_scaled_down_beside_the_parts_of_its_scale_up() {
    let pods = ["web-0 ok old", "web-700 ok"];
    for (policy, replicas, down) in
        [("Parallel", MAX_BATCH_SIZE, vec!["delete web-700"]), ("OrderedReady", 1, vec![])]
    {
        let set = set(json!({"podManagementPolicy": policy, "replicas": 600}));
        let plan = plan(&set, &pods, &[], None);
        assert_eq!(steps(&plan.replicas).len(), replicas, "{policy}");
        assert_eq!(steps(&plan.scale_down), down, "{policy}");
        assert!(plan.update.is_empty(), "{policy}");
    }
}

#[test]
fn a_set_of_any_size_is_planned_in_parts() {
    let huge = json!({"podManagementPolicy": "Parallel", "replicas": i32::MAX});
    let plan = plan(&set(huge), &["web-5 ok old"], &[], None);
    assert_eq!(steps(&plan.replicas).len(), MAX_BATCH_SIZE);
    assert!(plan.update.is_empty());
    let beyond = json!({"podManagementPolicy": "Parallel", "ordinals": {"start": i32::MAX}});
    assert_eq!(steps(&super::tests::plan(&set(beyond), &[], &[], None).replicas).len(), 1);
}
