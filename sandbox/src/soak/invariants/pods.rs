//! The numbers of pods that controllers create.
//!
//! Upstream's controllers remember in their process what they have created (expectations) until
//! the watch shows it. These invariants ask for more, and it can be given: a write that was refused
//! or lost leaves the number right, and a new leader lists all pods from the API server before its
//! first sync, after the former leader's last write.

use std::collections::HashMap;

use serde_json::Value;

use super::{Change, Check, Groups, Verdict, at_most_one, controller, has_ended, is_active};
use crate::object::text;

const INDEX: &str = "/metadata/annotations/batch.kubernetes.io~1job-completion-index";

/// No index of an Indexed Job has two live pods.
///
/// By default a pod that is being deleted is replaced at once, so it does not count. With the
/// replacement policy `Failed` it counts until it has ended.
#[derive(Default)]
pub struct OneForIndex {
    /// By the Job's uid: whether it replaces only pods that have ended.
    waits: HashMap<String, bool>,
    pods: Groups,
}

impl Check for OneForIndex {
    fn name(&self) -> &'static str {
        "one live pod for each index of a Job"
    }

    /// Judges each new pod of a Job: no other pod of its index may be live. With the policy
    /// `Failed`, a pod counts until it has ended.
    fn observe(&mut self, change: &Change<'_>) -> Verdict {
        match change.table {
            "jobs.batch" => {
                let waits = text(change.new, "/spec/podReplacementPolicy") == "Failed";
                self.waits.insert(change.uid().to_owned(), waits);
                Verdict::Unrelated
            }
            "pods" => {
                let group = change.live().and_then(|pod| {
                    let ("Job", job) = controller(pod)? else { return None };
                    let index = pod.pointer(INDEX)?.as_str()?;
                    let waits = self.waits.get(job).copied().unwrap_or_default();
                    let counts = if waits { !has_ended(pod) } else { is_active(pod) };
                    counts.then(|| format!("{job}/{index}"))
                });
                at_most_one(self.pods.put(change.uid(), group), "live pods of one index")
            }
            _ => Verdict::Unrelated,
        }
    }
}

/// No pod of a StatefulSet's ordinal exists twice, and none is created with a higher ordinal than the
/// StatefulSet ever asked for. One that it adopts may have any ordinal.
///
/// The name prevents two pods at a time, so this also checks that the stream has no gap: each pod
/// was seen to go before its successor came.
#[derive(Default)]
pub struct OneForOrdinal {
    /// The uids of all pods.
    pods: HashMap<String, String>,
    /// The most replicas by the StatefulSet's uid.
    highest: HashMap<String, i64>,
}

impl Check for OneForOrdinal {
    fn name(&self) -> &'static str {
        "one pod for each ordinal of a StatefulSet"
    }

    /// Judges each new pod of a StatefulSet: the pod of that name before it must be gone, and its
    /// ordinal must be within the replicas.
    fn observe(&mut self, change: &Change<'_>) -> Verdict {
        if change.table == "statefulsets.apps" {
            raise(&mut self.highest, change);
            return Verdict::Unrelated;
        }
        if change.table != "pods" {
            return Verdict::Unrelated;
        }
        if change.deleted {
            self.pods.remove(change.key);
            return Verdict::Unrelated;
        }
        let before = self.pods.insert(change.key.to_owned(), change.uid().to_owned());
        let set = controller(change.new).filter(|(kind, _)| *kind == "StatefulSet");
        let Some((_, set)) = set.filter(|_| before.as_deref() != Some(change.uid())) else {
            return Verdict::Unrelated;
        };
        let ordinal = change.key.rsplit('-').next().and_then(|text| text.parse::<i64>().ok());
        let most = self.highest.get(set).copied().unwrap_or(i64::MAX);
        match before {
            Some(before) => Verdict::Broken(format!("the pod {before} was not seen to go")),
            None if ordinal.is_some_and(|ordinal| ordinal >= most) => {
                Verdict::Broken(format!("the StatefulSet asked for at most {most} replicas"))
            }
            None => Verdict::Holds,
        }
    }
}

/// No node has two live pods of a DaemonSet without surge.
#[derive(Default)]
pub struct OneForDaemon(Groups);

impl Check for OneForDaemon {
    fn name(&self) -> &'static str {
        "one live pod of a DaemonSet on each node"
    }

    /// Judges each new pod of a DaemonSet: its node may have no other one.
    fn observe(&mut self, change: &Change<'_>) -> Verdict {
        if change.table != "pods" {
            return Verdict::Unrelated;
        }
        let group = change.live().filter(|pod| is_active(pod)).and_then(|pod| {
            let ("DaemonSet", set) = controller(pod)? else { return None };
            Some(format!("{set}/{}", node(pod)))
        });
        at_most_one(self.0.put(change.uid(), group), "live pods on one node")
    }
}

/// Returns the node that a DaemonSet's pod is for. Upstream: `daemon/util.GetTargetNodeName`.
fn node(pod: &Value) -> &str {
    const TERM: &str = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution\
                        /nodeSelectorTerms/0/matchFields/0/values/0";
    match text(pod, "/spec/nodeName") {
        "" => text(pod, TERM),
        node => node,
    }
}

/// No ReplicaSet has more active pods than the highest number that it ever asked for.
///
/// The number that it asks for now may be lower: a controller may act on the ReplicaSet as it was
/// before, and pods are deleted later. It can never act on a higher number than there was.
#[derive(Default)]
pub struct WithinReplicas {
    highest: HashMap<String, i64>,
    pods: Groups,
}

impl Check for WithinReplicas {
    fn name(&self) -> &'static str {
        "no ReplicaSet above its highest replicas"
    }

    /// Judges each new pod of a ReplicaSet: there may be no more active pods than the most replicas
    /// that it has asked for.
    fn observe(&mut self, change: &Change<'_>) -> Verdict {
        match change.table {
            "replicasets.apps" => {
                raise(&mut self.highest, change);
                Verdict::Unrelated
            }
            "pods" => {
                let group = change.live().filter(|pod| is_active(pod)).and_then(|pod| {
                    let ("ReplicaSet", set) = controller(pod)? else { return None };
                    Some(set.to_owned())
                });
                let most = group.as_ref().and_then(|set| self.highest.get(set)).copied();
                match (self.pods.put(change.uid(), group), most) {
                    (Some(size), Some(most)) if size as i64 > most => Verdict::Broken(format!(
                        "{size} active pods; the ReplicaSet asked for at most {most}"
                    )),
                    (Some(_), Some(_)) => Verdict::Holds,
                    _ => Verdict::Unrelated,
                }
            }
            _ => Verdict::Unrelated,
        }
    }
}

/// Notes the replicas that an object asks for.
fn raise(highest: &mut HashMap<String, i64>, change: &Change<'_>) {
    let replicas = change.new["spec"]["replicas"].as_i64().unwrap_or(1);
    let most = highest.entry(change.uid().to_owned()).or_default();
    *most = replicas.max(*most);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::broken;
    use super::*;

    /// A pod of a controller, with what else is to be set.
    fn pod(name: &str, kind: &str, owner: &str, more: Value) -> (&'static str, Value, bool) {
        let mut pod = json!({
            "metadata": {
                "namespace": "a", "name": name, "uid": name,
                "ownerReferences": [{ "kind": kind, "uid": owner, "controller": true }],
            },
        });
        json_patch::merge(&mut pod, &more);
        ("pods", pod, false)
    }

    fn gone(mut change: (&'static str, Value, bool)) -> (&'static str, Value, bool) {
        change.2 = true;
        change
    }

    fn object(table: &'static str, uid: &str, spec: Value) -> (&'static str, Value, bool) {
        (table, json!({ "metadata": { "name": uid, "uid": uid }, "spec": spec }), false)
    }

    #[test]
    fn an_index_with_two_live_pods_is_found() {
        let index = |name, job, index: &str, more: Value| {
            let mut all = json!({ "metadata": { "annotations": {
                "batch.kubernetes.io/job-completion-index": index,
            } } });
            json_patch::merge(&mut all, &more);
            pod(name, "Job", job, all)
        };
        let deleting = json!({ "metadata": { "deletionTimestamp": "now" } });
        let failed = json!({ "status": { "phase": "Failed" } });
        let none = json!({});
        let waits = object("jobs.batch", "w", json!({ "podReplacementPolicy": "Failed" }));
        for (changes, expected) in [
            (vec![index("x", "j", "0", none.clone()), index("y", "j", "0", none.clone())], vec![1]),
            (vec![index("x", "j", "0", none.clone()), index("y", "j", "1", none.clone())], vec![]),
            (vec![index("x", "j", "0", none.clone()), index("y", "k", "0", none.clone())], vec![]),
            (
                vec![
                    index("x", "j", "0", none.clone()),
                    index("x", "j", "0", deleting.clone()),
                    index("y", "j", "0", none.clone()),
                    index("z", "j", "0", none.clone()),
                ],
                vec![3],
            ),
            (
                vec![
                    waits,
                    index("x", "w", "0", deleting),
                    index("y", "w", "0", none.clone()),
                    gone(index("y", "w", "0", none.clone())),
                    index("x", "w", "0", failed),
                    index("z", "w", "0", none),
                ],
                vec![2],
            ),
        ] {
            assert_eq!(broken(&mut OneForIndex::default(), &changes), expected, "{changes:?}");
        }
    }

    #[test]
    fn a_second_pod_of_an_ordinal_and_one_too_high_are_found() {
        let set = |replicas| object("statefulsets.apps", "s", json!({ "replicas": replicas }));
        let of =
            |name, uid: &str| pod(name, "StatefulSet", "s", json!({ "metadata": { "uid": uid } }));
        let alone = json!({ "metadata": { "namespace": "a", "name": "db-3", "uid": "u" } });
        let orphan = ("pods", alone, false);
        let changes = [
            set(2),
            of("db-0", "x"),
            of("db-0", "x"),
            of("db-1", "y"),
            of("db-1", "z"),
            gone(of("db-0", "x")),
            of("db-0", "w"),
            of("db-2", "v"),
            set(3),
            of("db-2", "v"),
            set(1),
            of("db-2", "v"),
            orphan,
            of("db-3", "u"),
        ];
        assert_eq!(broken(&mut OneForOrdinal::default(), &changes), [4, 7]);
    }

    #[test]
    fn a_second_daemon_on_a_node_is_found() {
        let on =
            |name, node: &str| pod(name, "DaemonSet", "d", json!({ "spec": { "nodeName": node } }));
        let wanted = pod(
            "z",
            "DaemonSet",
            "d",
            json!({ "spec": { "affinity": { "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
                    { "matchFields": [{ "key": "metadata.name", "values": ["n"] }] },
                ] },
            } } } }),
        );
        let changes = [on("x", "n"), on("y", "m"), wanted.clone(), gone(on("x", "n")), wanted];
        assert_eq!(broken(&mut OneForDaemon::default(), &changes), [2]);
    }

    #[test]
    fn a_replica_set_with_more_pods_than_it_ever_asked_for_is_found() {
        let set = |replicas| object("replicasets.apps", "r", json!({ "replicas": replicas }));
        let of = |name| pod(name, "ReplicaSet", "r", json!({}));
        let failed = pod("x", "ReplicaSet", "r", json!({ "status": { "phase": "Failed" } }));
        let changes = [
            set(2),
            of("x"),
            of("y"),
            set(1),
            failed,
            of("z"),
            of("v"),
            set(3),
            gone(of("v")),
            of("w"),
        ];
        assert_eq!(broken(&mut WithinReplicas::default(), &changes), [6]);
    }
}
