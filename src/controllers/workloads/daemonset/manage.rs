//! One pod on each node that is to have one, of any version. Upstream: `manage`,
//! `podsShouldBeOnNode`.

use std::sync::Arc;
use std::time::Duration;

use super::sites::{Availability, NodePods, order};
use crate::controllers::workloads::history::REVISION_LABEL;
use crate::objects::{ArcStr, Pod, PodPhase};

/// The input of a plan, besides the sites.
pub(super) struct PlanInput<'a> {
    /// The hash of the current revision.
    pub hash: &'a str,
    /// Whether a node may have a new pod beside its old one. Upstream: `AllowsSurge`.
    pub surges: bool,
    pub availability: Availability,
}

/// The planned writes.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The nodes that get a pod.
    pub create: Vec<ArcStr>,
    pub delete: Vec<Arc<Pod>>,
    /// Those deleted because they ended, with their nodes, for the events.
    pub ended: Vec<(Arc<Pod>, ArcStr)>,
    /// The time until a failed pod may be replaced, if one has to wait.
    pub again: Option<Duration>,
}

/// Plans which pods of a set are created and deleted. `wait`: how long a failed pod on a node has
/// to wait for its replacement; a call that gives zero counts as the replacement.
pub(super) fn plan(
    sites: &[NodePods],
    input: &PlanInput<'_>,
    mut wait: impl FnMut(&ArcStr) -> Duration,
) -> Plan {
    let mut plan = Plan::default();
    for site in sites {
        let stays = |pod: &&Arc<Pod>| !pod.meta.is_being_deleted();
        match site.fit {
            Some(fit) if fit.should_run && site.pods.is_empty() => {
                plan.create.push(site.node.clone());
            }
            Some(fit) if fit.may_stay => plan_site(site, input, &mut wait, &mut plan),
            Some(_) => plan.delete.extend(site.pods.iter().filter(stays).cloned()),
            // No garbage collector deletes a pod that waits for a node that is gone.
            None => {
                let waiting = site.pods.iter().filter(|pod| pod.spec.node_name.is_empty());
                plan.delete.extend(waiting.filter(stays).cloned());
            }
        }
    }
    plan
}

/// Plans one node that has pods: deletes ended and surplus ones. With a surge also creates a pod
/// where none runs; without one the successor waits until the former pod is gone: see [`plan`].
/// `wait`: as for [`plan`]. Upstream: `podsShouldBeOnNode`.
fn plan_site(
    site: &NodePods,
    input: &PlanInput<'_>,
    wait: &mut impl FnMut(&ArcStr) -> Duration,
    plan: &mut Plan,
) {
    let mut running: Vec<&Arc<Pod>> = Vec::with_capacity(site.pods.len());
    for pod in site.pods.iter().filter(|pod| !pod.meta.is_being_deleted()) {
        if !pod.is_terminal() {
            running.push(pod);
            continue;
        }
        // The back-off keeps a kubelet that rejects its pods from getting new ones all the time.
        if pod.status.phase == PodPhase::Failed {
            let rest = wait(&site.node);
            if !rest.is_zero() {
                plan.again = Some(match plan.again {
                    Some(again) => again.min(rest),
                    None => rest,
                });
                continue;
            }
        }
        plan.ended.push((pod.clone(), site.node.clone()));
        plan.delete.push(pod.clone());
    }
    if running.is_empty() && input.surges && site.should_run() {
        plan.create.push(site.node.clone());
    }
    if running.len() < 2 {
        return;
    }
    running.sort_by(|one, other| order(one, other));
    if !input.surges {
        plan.delete.extend(running.into_iter().skip(1).cloned());
        return;
    }
    // With a surge the oldest pod of each version stays, the old one until the new one is available
    // or it is itself not ready.
    let (mut oldest_new, mut oldest_old) = (None, None);
    for pod in running {
        let is_new = pod.meta.labels.get(REVISION_LABEL) == Some(input.hash);
        let oldest = if is_new { &mut oldest_new } else { &mut oldest_old };
        if oldest.is_none() {
            *oldest = Some(pod);
        } else {
            plan.delete.push(pod.clone());
        }
    }
    if let (Some(new), Some(old)) = (oldest_new, oldest_old)
        && (!old.is_ready() || input.availability.is_available(new))
    {
        plan.delete.push(old.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::super::fit::Fit;
    use super::super::sites::testing::{GOES, NOW, RUNS, STAYS, names, sites};
    use super::*;

    fn plan_names(sites: &[NodePods], surges: bool) -> (Vec<String>, Vec<String>) {
        let availability = Availability { min_ready_seconds: 10, now: NOW };
        let input = PlanInput { hash: "h", surges, availability };
        let plan = plan(sites, &input, |_| Duration::ZERO);
        let mut create: Vec<String> = plan.create.iter().map(ToString::to_string).collect();
        create.sort();
        (create, names(&plan.delete))
    }

    #[test]
    fn each_node_has_the_pods_that_it_should() {
        type Case<'a> = (&'a str, Fit, &'a [(&'a str, &'a str)], [(&'a str, &'a str); 2]);
        // The node's fit and pods; what is created and deleted without a surge, and with one.
        let table: &[Case<'_>] = &[
            ("nothing there", RUNS, &[], [("n", ""), ("n", "")]),
            ("nothing there, nothing wanted", STAYS, &[], [("", ""), ("", "")]),
            ("nothing there, nothing allowed", GOES, &[], [("", ""), ("", "")]),
            ("as it should be", RUNS, &[("n-1", "new ready")], [("", ""), ("", "")]),
            ("another version", RUNS, &[("n-1", "old ready")], [("", ""), ("", "")]),
            ("not wanted, but there", STAYS, &[("n-1", "new ready")], [("", ""), ("", "")]),
            ("not allowed", GOES, &[("n-1", "new ready")], [("", "n-1"), ("", "n-1")]),
            ("not allowed, and going", GOES, &[("n-1", "new going")], [("", ""), ("", "")]),
            ("one going", RUNS, &[("n-1", "new going")], [("", ""), ("n", "")]),
            ("one going, not wanted", STAYS, &[("n-1", "new going")], [("", ""), ("", "")]),
            ("ended well", RUNS, &[("n-1", "new Succeeded")], [("", "n-1"), ("n", "n-1")]),
            ("failed", STAYS, &[("n-1", "new Failed")], [("", "n-1"), ("", "n-1")]),
            (
                "failed, another runs",
                RUNS,
                &[("n-1", "new Failed"), ("n-2", "new")],
                [("", "n-1"), ("", "n-1")],
            ),
            (
                "too many",
                RUNS,
                &[("n-1", "new ready"), ("n-2", "new ready"), ("n-3", "new waits")],
                [("", "n-2 n-3"), ("", "n-2 n-3")],
            ),
            (
                "old and new, the new one not ready",
                RUNS,
                &[("n-1", "old ready"), ("n-2", "new")],
                [("", "n-2"), ("", "")],
            ),
            (
                "old and new, both ready",
                RUNS,
                &[("n-1", "old ready"), ("n-2", "new ready")],
                [("", "n-2"), ("", "n-1")],
            ),
            (
                "old and new, none ready",
                RUNS,
                &[("n-1", "old"), ("n-2", "new")],
                [("", "n-2"), ("", "n-1")],
            ),
            (
                "two old ones and a new one",
                RUNS,
                &[("n-1", "old ready"), ("n-2", "old ready"), ("n-3", "new")],
                [("", "n-2 n-3"), ("", "n-2")],
            ),
        ];
        for (case, fit, pods, expected) in table {
            let sites = sites(&[("n", *fit)], pods);
            for (surges, (create, delete)) in [false, true].into_iter().zip(expected) {
                let (created, deleted) = plan_names(&sites, surges);
                assert_eq!(
                    (&*created.join(" "), &*deleted.join(" ")),
                    (*create, *delete),
                    "{case}, surge {surges}"
                );
            }
        }
    }

    #[test]
    fn pods_that_wait_for_a_deleted_node_are_deleted() {
        let sites = sites(
            &[("n", RUNS)],
            &[("n-1", "new"), ("m-1", "new waits"), ("m-2", "new"), ("m-3", "new waits going")],
        );
        assert_eq!(plan_names(&sites, false), (vec![], vec!["m-1".to_owned()]));
    }

    #[test]
    fn failed_pods_wait_and_the_shortest_wait_counts() {
        let pods = [
            ("a-1", "Failed"),
            ("b-1", "Failed"),
            ("c-1", "Failed"),
            ("d-1", "Succeeded"),
            ("e-1", "Failed going"),
        ];
        let sites = sites(&["a", "b", "c", "d", "e"].map(|node| (node, RUNS)), &pods);
        let availability = Availability { min_ready_seconds: 0, now: NOW };
        let input = PlanInput { hash: "h", surges: false, availability };
        let plan = plan(&sites, &input, |node| match &**node {
            "a" => Duration::from_secs(5),
            "b" => Duration::from_secs(3),
            "c" => Duration::ZERO,
            other => panic!("no failed pod on {other}"),
        });
        assert_eq!(names(&plan.delete), ["c-1", "d-1"]);
        assert_eq!(plan.ended.len(), 2);
        // A pod that is finished and being deleted does not count any more.
        assert_eq!((plan.again, plan.create.len()), (Some(Duration::from_secs(3)), 1));
    }
}
