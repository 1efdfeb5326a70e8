//! RollingUpdate: new pods replace old ones, within maxUnavailable or maxSurge. Upstream:
//! `rollingUpdate`.

use std::sync::Arc;

use super::sites::{Availability, NodePods, Version};
use crate::controllers::workloads::percent::resolve_rounding_up;
use crate::objects::{ArcStr, DaemonSetUpdateStrategy, Pod};

/// The limits of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub max_surge: i32,
    pub max_unavailable: i32,
}

impl Limits {
    /// Computes the limits of a set that wants `desired` pods. Both are rounded up; when both are
    /// zero, one pod may be unavailable. `Err`: a value is malformed, or maxUnavailable is missing.
    /// Upstream: `updatedDesiredNodeCounts`.
    pub fn new(strategy: &DaemonSetUpdateStrategy, desired: i32) -> Result<Limits, String> {
        let (mut max_surge, mut max_unavailable) = (0, 0);
        if is_rolling_update(strategy)
            && let Some(rolling) = &strategy.rolling_update
        {
            let resolved = match &rolling.max_unavailable {
                Some(value) => resolve_rounding_up(value, desired),
                // The API server sets a default; upstream's text for its absence.
                None => Err("nil value for IntOrString".to_owned()),
            };
            max_unavailable =
                resolved.map_err(|error| format!("invalid value for MaxUnavailable: {error}"))?;
            if let Some(value) = &rolling.max_surge {
                max_surge = resolve_rounding_up(value, desired)
                    .map_err(|error| format!("invalid value for MaxSurge: {error}"))?;
            }
        }
        if desired > 0 && max_surge == 0 && max_unavailable == 0 {
            max_unavailable = 1;
        }
        Ok(Limits { max_surge, max_unavailable })
    }
}

pub(super) fn is_rolling_update(strategy: &DaemonSetUpdateStrategy) -> bool {
    strategy.r#type == "RollingUpdate"
}

/// Returns whether a node may have a new pod beside its old one. Upstream: `AllowsSurge`.
pub(super) fn allows_surge(strategy: &DaemonSetUpdateStrategy) -> bool {
    let max_surge = strategy.rolling_update.as_ref().and_then(|rolling| rolling.max_surge.as_ref());
    let surge_of_one = max_surge.and_then(|value| resolve_rounding_up(value, 1).ok());
    is_rolling_update(strategy) && surge_of_one.is_some_and(|surge| surge > 0)
}

/// The planned writes.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub delete: Vec<Arc<Pod>>,
    /// The nodes that get a new pod.
    pub create: Vec<ArcStr>,
}

/// The pods of one node that are not being deleted: at most one of each version.
struct Pair<'a> {
    new: Option<&'a Arc<Pod>>,
    old: Option<&'a Arc<Pod>>,
}

impl Pair<'_> {
    /// Sorts the pods of one node by version; `None` with two of one version, which
    /// [`manage`](super::manage) deletes.
    /// Upstream: `findUpdatedPodsOnNode`.
    fn on_node<'a>(pods: &'a [Arc<Pod>], version: &Version<'_>) -> Option<Pair<'a>> {
        let mut pair = Pair { new: None, old: None };
        for pod in pods.iter().filter(|pod| !pod.meta.is_being_deleted()) {
            let known = if version.is_of(pod) { &mut pair.new } else { &mut pair.old };
            if known.replace(pod).is_some() {
                return None;
            }
        }
        Some(pair)
    }
}

/// Returns the nodes that a rollout considers: those that have a pod or should have one.
fn considered_sites(sites: &[NodePods]) -> impl Iterator<Item = &NodePods> {
    sites.iter().filter(|site| !site.pods.is_empty() || site.should_run())
}

/// Returns how many may be added to `count` up to `limit`.
fn available_room(limit: i32, count: usize) -> usize {
    usize::try_from(limit).unwrap_or(0).saturating_sub(count)
}

/// Plans the deletion of old pods, so that no more than `max_unavailable` are unavailable;
/// unavailable old pods are deleted at once. [`manage`](super::manage) creates the new pods when
/// the old ones are gone.
pub(super) fn plan_replacement(
    sites: &[NodePods],
    version: &Version<'_>,
    availability: Availability,
    max_unavailable: i32,
) -> Plan {
    let (mut unavailable, mut delete, mut candidates) = (0, Vec::new(), Vec::new());
    for site in considered_sites(sites) {
        match Pair::on_node(&site.pods, version) {
            Some(Pair { new: Some(new), old: None }) => {
                unavailable += usize::from(!availability.is_available(new));
            }
            Some(Pair { new: None, old: Some(old) }) if availability.is_available(old) => {
                candidates.push(old.clone());
            }
            Some(Pair { new: None, old: Some(old) }) => {
                delete.push(old.clone());
                unavailable += 1;
            }
            // The node has no pod, or too many.
            _ => unavailable += 1,
        }
    }
    candidates.truncate(available_room(max_unavailable, unavailable));
    delete.extend(candidates);
    Plan { delete, create: Vec::new() }
}

/// Plans a rollout that creates new pods beside the old ones, no more than `max_surge` beside
/// available ones, and deletes an old pod when the new one is available. On a node that is to have
/// no pod any more, the old pod is deleted when enough others are available.
///
/// # Errors
/// When an old pod is on a node that does not exist: the rollout waits until it is cleaned up.
pub(super) fn plan_surge(
    sites: &[NodePods],
    version: &Version<'_>,
    availability: Availability,
    max_surge: i32,
) -> Result<Plan, String> {
    let mut plan = Plan::default();
    let (mut surging, mut available) = (0, 0);
    let (mut unwanted, mut candidates) = (Vec::new(), Vec::new());
    for site in considered_sites(sites) {
        let Some(Pair { new, old }) = Pair::on_node(&site.pods, version) else {
            // Two pods of one version: `manage` deletes the surplus one first.
            surging += 1;
            continue;
        };
        // As upstream: a new pod beside an old one does not count yet.
        let counted = old.or(new);
        available += usize::from(counted.is_some_and(|pod| availability.is_available(pod)));
        match (old, new) {
            // The node is up to date, or `manage` makes the missing pod.
            (None, _) => {}
            (Some(old), Some(new)) => match availability.is_available(new) {
                true => plan.delete.push(old.clone()),
                false => surging += 1,
            },
            (Some(old), None) => {
                if site.fit.is_none() {
                    return Err(format!(
                        "couldn't get node for nodeName {:?}: node {:?} not found",
                        site.node, site.node
                    ));
                }
                // Beside an unavailable old pod a new one is created at once, or the old one is
                // deleted. An available old pod stays until the limits below allow either.
                match (availability.is_available(old), site.should_run()) {
                    (false, false) => plan.delete.push(old.clone()),
                    (false, true) => plan.create.push(site.node.clone()),
                    (true, false) => unwanted.push(old.clone()),
                    (true, true) => candidates.push(site.node.clone()),
                }
            }
        }
    }
    let desired = sites.iter().filter(|site| site.should_run()).count();
    unwanted.truncate(available.saturating_sub(desired));
    plan.delete.extend(unwanted);
    candidates.truncate(available_room(max_surge, surging));
    plan.create.extend(candidates);
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::fit::Fit;
    use super::super::sites::testing::{NOW, RUNS, STAYS, names, sites};
    use super::*;

    fn strategy(json: Value) -> DaemonSetUpdateStrategy {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn limits_are_rounded_up_and_allow_at_least_one_pod() {
        let rolling = |unavailable: Value, surge: Value| {
            strategy(json!({"type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": unavailable, "maxSurge": surge}}))
        };
        for (strategy, desired, expected, surging) in [
            (rolling(json!(1), json!(0)), 10, Some((0, 1)), false),
            (rolling(json!("25%"), json!(0)), 10, Some((0, 3)), false),
            (rolling(json!(0), json!("25%")), 10, Some((3, 0)), true),
            (rolling(json!(0), json!("1%")), 10, Some((1, 0)), true),
            (rolling(json!(0), json!(0)), 10, Some((0, 1)), false),
            (rolling(json!(0), json!(0)), 0, Some((0, 0)), false),
            (rolling(json!(2), Value::Null), 10, Some((0, 2)), false),
            (rolling(json!("x"), json!(1)), 10, None, true),
            (rolling(json!(1), json!("x")), 10, None, false),
            (rolling(Value::Null, json!(1)), 10, None, true),
            (strategy(json!({"type": "RollingUpdate"})), 10, Some((0, 1)), false),
            (
                strategy(json!({"type": "OnDelete", "rollingUpdate": {"maxSurge": 3}})),
                10,
                Some((0, 1)),
                false,
            ),
        ] {
            let limits = Limits::new(&strategy, desired);
            let limits = limits.ok().map(|limits| (limits.max_surge, limits.max_unavailable));
            assert_eq!((limits, allows_surge(&strategy)), (expected, surging), "{strategy:?}");
        }
    }

    fn availability() -> Availability {
        Availability { min_ready_seconds: 10, now: NOW }
    }

    const VERSION: Version<'_> = Version { hash: "h", generation: None };

    fn running(nodes: &[&'static str]) -> Vec<(&'static str, Fit)> {
        nodes.iter().map(|node| (*node, RUNS)).collect()
    }

    #[test]
    fn old_pods_are_deleted_within_max_unavailable() {
        type Case<'a> = (&'a [(&'a str, &'a str)], i32, &'a [&'a str], usize);
        // The pods on nodes a, b, c; maxUnavailable; those that go for certain, and how many do.
        let table: &[Case<'_>] = &[
            (&[("a-1", "old ready"), ("b-1", "old ready"), ("c-1", "old ready")], 1, &[], 1),
            (&[("a-1", "old ready"), ("b-1", "old ready"), ("c-1", "old ready")], 2, &[], 2),
            (&[("a-1", "old ready"), ("b-1", "old ready"), ("c-1", "old ready")], 9, &[], 3),
            (&[("a-1", "old ready"), ("b-1", "old ready"), ("c-1", "old")], 1, &["c-1"], 1),
            (&[("a-1", "old"), ("b-1", "old"), ("c-1", "old ready")], 1, &["a-1", "b-1"], 2),
            (&[("a-1", "old ready"), ("b-1", "new"), ("c-1", "new ready")], 1, &[], 0),
            (&[("a-1", "old ready"), ("b-1", "new"), ("c-1", "new ready")], 2, &["a-1"], 1),
            // A node without a pod, and one with a pod that is being deleted.
            (&[("a-1", "old ready"), ("b-1", "old going")], 2, &[], 0),
            (&[("a-1", "old ready"), ("b-1", "old going")], 3, &["a-1"], 1),
            // Two pods on a node are for `manage`.
            (
                &[("a-1", "old ready"), ("a-2", "old ready"), ("b-1", "new"), ("c-1", "new")],
                9,
                &[],
                0,
            ),
            (
                &[("a-1", "old ready"), ("a-2", "new ready"), ("b-1", "old"), ("c-1", "new")],
                1,
                &["b-1"],
                1,
            ),
            (&[("a-1", "new ready"), ("b-1", "new ready"), ("c-1", "new ready")], 1, &[], 0),
        ];
        for (pods, max_unavailable, certain, count) in table {
            let sites = sites(&running(&["a", "b", "c"]), pods);
            let plan = plan_replacement(&sites, &VERSION, availability(), *max_unavailable);
            let deleted = names(&plan.delete);
            assert_eq!(deleted.len(), *count, "{pods:?} {max_unavailable}: {deleted:?}");
            assert!(certain.iter().all(|name| deleted.iter().any(|other| other == name)));
        }
        // A node that is to have no pod counts only while it has one.
        let unwanted = [("a", RUNS), ("b", STAYS), ("c", STAYS)];
        let sites = sites(&unwanted, &[("a-1", "old ready"), ("b-1", "new")]);
        assert_eq!(names(&plan_replacement(&sites, &VERSION, availability(), 1).delete).len(), 0);
        assert_eq!(names(&plan_replacement(&sites, &VERSION, availability(), 2).delete), ["a-1"]);
    }

    #[test]
    fn new_pods_are_created_beside_old_ones_within_max_surge() {
        type Case<'a> = (&'a [(&'a str, &'a str)], i32, usize, &'a [&'a str], &'a [&'a str]);
        // The pods on nodes a, b, c; maxSurge; the number of pods created, the nodes where one is
        // created for certain, the pods deleted.
        let table: &[Case<'_>] = &[
            (&[("a-1", "old ready"), ("b-1", "old ready"), ("c-1", "old ready")], 1, 1, &[], &[]),
            (&[("a-1", "old ready"), ("b-1", "old ready"), ("c-1", "old ready")], 2, 2, &[], &[]),
            // An unavailable old pod is replaced at once.
            (&[("a-1", "old ready"), ("b-1", "old"), ("c-1", "old")], 1, 3, &["a", "b", "c"], &[]),
            // A new pod that is not available takes a place of the surge.
            (&[("a-1", "old ready"), ("a-2", "new"), ("b-1", "old ready")], 1, 0, &[], &[]),
            (&[("a-1", "old ready"), ("a-2", "new"), ("b-1", "old ready")], 2, 1, &["b"], &[]),
            // An available new pod ends the old one.
            (
                &[("a-1", "old ready"), ("a-2", "new ready"), ("b-1", "old ready")],
                1,
                1,
                &["b"],
                &["a-1"],
            ),
            // Two of one version are for `manage`, and take a place.
            (&[("a-1", "old"), ("a-2", "old"), ("b-1", "old ready")], 1, 0, &[], &[]),
            (&[("a-1", "new ready"), ("b-1", "new"), ("c-1", "new ready")], 3, 0, &[], &[]),
            (&[("a-1", "old going")], 3, 0, &[], &[]),
        ];
        for (pods, max_surge, count, certain, deleted) in table {
            let sites = sites(&running(&["a", "b", "c"]), pods);
            let plan = plan_surge(&sites, &VERSION, availability(), *max_surge).unwrap();
            assert_eq!(plan.create.len(), *count, "{pods:?} {max_surge}: {plan:?}");
            assert!(certain.iter().all(|node| plan.create.iter().any(|other| **other == **node)));
            assert_eq!(names(&plan.delete), *deleted, "{pods:?} {max_surge}");
        }
    }

    #[test]
    fn a_pod_on_an_unwanted_node_is_deleted_when_enough_others_are_available() {
        let unwanted = [("a", RUNS), ("b", STAYS)];
        for (pods, deleted) in [
            ([("a-1", "new"), ("b-1", "old ready")], vec![]),
            ([("a-1", "new ready"), ("b-1", "old ready")], vec!["b-1"]),
            ([("a-1", "new"), ("b-1", "old")], vec!["b-1"]),
        ] {
            let sites = sites(&unwanted, &pods);
            let plan = plan_surge(&sites, &VERSION, availability(), 1).unwrap();
            assert_eq!(
                (names(&plan.delete), plan.create.len()),
                (deleted.iter().map(ToString::to_string).collect(), 0),
                "{pods:?}"
            );
        }
        let stray = sites(&running(&["a"]), &[("gone-1", "old ready")]);
        let error = plan_surge(&stray, &VERSION, availability(), 1).unwrap_err();
        assert!(error.starts_with("couldn't get node for nodeName \"gone\""), "{error}");
    }
}
