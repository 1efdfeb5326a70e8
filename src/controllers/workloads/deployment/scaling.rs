//! How many pods each ReplicaSet gets. Numbers in, numbers out.

/// A ReplicaSet in the sharing out of a scaled Deployment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    /// Never 0: what has no pods gets none.
    pub replicas: i32,
    /// The most the whole Deployment could have had when it last scaled this one.
    pub max_before: Option<i32>,
}

/// Returns by how many replicas the ReplicaSets may grow or, if negative, have to shrink, all
/// together. `most`: here and below, [`super::limits::Limits::max_replicas`].
pub(super) fn to_add(desired: i32, most: i32, total: i32) -> i32 {
    let allowed = if desired > 0 { most } else { 0 };
    allowed.saturating_sub(total)
}

/// Computes the new sizes of several ReplicaSets, in the order of `shares`: each in proportion to
/// its size, and the first also gets the remainder. `status_replicas`: the Deployment's, for shares
/// that never noted `max_before`.
/// Upstream: `scale`, `GetReplicaSetProportion`.
pub(super) fn proportional(
    shares: &[Share],
    to_add: i32,
    desired: i32,
    most: i32,
    status_replicas: i32,
) -> Vec<i32> {
    let mut added = 0;
    let mut sizes: Vec<i32> = Vec::with_capacity(shares.len());
    for share in shares {
        let allowed = to_add.saturating_sub(added);
        let change = match allowed {
            _ if to_add == 0 || share.replicas == 0 => 0,
            0 => 0,
            _ if to_add > 0 => fraction(*share, desired, most, status_replicas).min(allowed),
            _ => fraction(*share, desired, most, status_replicas).max(allowed),
        };
        sizes.push(share.replicas.saturating_add(change));
        added = added.saturating_add(change);
    }
    if let (Some(first), true) = (sizes.first_mut(), to_add != 0) {
        *first = first.saturating_add(to_add.saturating_sub(added)).max(0);
    }
    sizes
}

/// Returns by how many replicas one ReplicaSet changes, so that its part of the whole stays the
/// same.
fn fraction(share: Share, desired: i32, most: i32, status_replicas: i32) -> i32 {
    if desired == 0 {
        return -share.replicas;
    }
    let before = match share.max_before {
        Some(before) if before != 0 => before,
        // The annotation was tampered with: the size the Deployment has now must do.
        _ if status_replicas != 0 => status_replicas,
        _ => return 0,
    };
    let scaled = f64::from(share.replicas) * f64::from(most) / f64::from(before);
    // Halves go away from zero; the cast saturates.
    (scaled.round() as i32).saturating_sub(share.replicas)
}

/// Returns the size of the new ReplicaSet after the next step of a rolling update. `total`: the
/// replicas of all ReplicaSets; `current`: those of the new one.
/// Upstream: `NewRSNewReplicas`.
pub(super) fn new_size(desired: i32, most: i32, total: i32, current: i32) -> i32 {
    if total >= most {
        return current;
    }
    current + (most - total).min(desired - current)
}

/// The pods that a ReplicaSet should have, and those that are available.
#[derive(Clone, Copy, Debug)]
pub(super) struct PodCounts {
    pub replicas: i32,
    pub available: i32,
}

/// `index` gets `size` replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub index: usize,
    pub size: i32,
}

/// How the old ReplicaSets get smaller in the next step of a rolling update.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Shrink {
    /// In this order; one ReplicaSet may come twice.
    pub steps: Vec<Step>,
    /// Whether this is the step of the rollout in this sync, so that the cleanup of the history
    /// waits for a later one. Not set when `steps` is only a part of the plan.
    pub scaled: bool,
}

/// Plans how old ReplicaSets shrink. Old pods that are not available are deleted first: they only
/// hold up the rollout. Then others are, as long as at least `min_available` stay available. No old
/// pod is deleted for a new one that is not available yet. `old`: those that should have pods,
/// oldest first.
/// Upstream: `reconcileOldReplicaSets`.
pub(super) fn shrink(old: &[PodCounts], new: PodCounts, min_available: i32) -> Shrink {
    let sizes = old.iter().map(|set| set.replicas);
    let total = sizes.fold(new.replicas, i32::saturating_add);
    let unavailable = new.replicas.saturating_sub(new.available);
    // The most pods that may go, so that `min_available` are left without the new ones that are not
    // available yet.
    let limit = total.saturating_sub(min_available).saturating_sub(unavailable);
    if limit <= 0 {
        return Shrink::default();
    }
    let mut steps = match scale_down_unhealthy(old, limit) {
        Ok(steps) => steps,
        Err(steps) => return Shrink { steps, scaled: false },
    };
    let mut remaining = old.to_vec();
    for step in &steps {
        remaining[step.index].replicas = step.size;
    }
    let available = old.iter().map(|set| set.available).fold(new.available, i32::saturating_add);
    steps.extend(scale_down_old(&remaining, available.saturating_sub(min_available)));
    let scaled = !steps.is_empty();
    Shrink { steps, scaled }
}

/// Plans to take away at most `limit` pods that are not available, oldest ReplicaSet first. `Err`
/// has the steps before a ReplicaSet that reports more available pods than it should have: only
/// these are taken in this sync. Upstream: `cleanupUnhealthyReplicas`.
fn scale_down_unhealthy(old: &[PodCounts], limit: i32) -> Result<Vec<Step>, Vec<Step>> {
    let mut steps = Vec::new();
    let mut dropped = 0;
    for (index, PodCounts { replicas, available }) in old.iter().copied().enumerate() {
        if dropped >= limit {
            break;
        }
        if replicas == 0 || replicas == available {
            continue;
        }
        let count = (limit - dropped).min(replicas - available);
        if count < 0 {
            return Err(steps);
        }
        steps.push(Step { index, size: replicas - count });
        dropped += count;
    }
    Ok(steps)
}

/// Plans to take away `count` pods, oldest ReplicaSet first.
/// Upstream: `scaleDownOldReplicaSetsForRollingUpdate`.
fn scale_down_old(old: &[PodCounts], count: i32) -> Vec<Step> {
    let mut left = count;
    let mut steps = Vec::new();
    for (index, PodCounts { replicas, .. }) in old.iter().copied().enumerate() {
        if left <= 0 {
            break;
        }
        if replicas > 0 {
            let dropped = replicas.min(left);
            steps.push(Step { index, size: replicas - dropped });
            left -= dropped;
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scaling_is_shared_in_proportion() {
        // sizes, max before, desired, surge, the new sizes
        type Row = (&'static [i32], i32, i32, i32, &'static [i32]);
        let table: [Row; 12] = [
            (&[10], 10, 12, 0, &[12]),
            (&[10], 10, 5, 0, &[5]),
            (&[5, 5], 10, 20, 0, &[10, 10]),
            (&[8, 2], 10, 5, 0, &[4, 1]),
            (&[5, 3, 2], 10, 11, 0, &[6, 3, 2]),
            (&[5, 3, 2], 10, 9, 0, &[4, 3, 2]),
            (&[2, 2, 2], 6, 7, 0, &[3, 2, 2]),
            (&[5, 3, 2], 10, 0, 0, &[0, 0, 0]),
            (&[5, 3, 2], 10, 0, 3, &[0, 0, 0]),
            // five in, three surging, on the way from ten to twenty with three of surge
            (&[8, 5], 13, 20, 3, &[14, 9]),
            // nothing noted and nothing running: all to the first
            (&[5, 5], 0, 12, 0, &[7, 5]),
            (&[6, 4], 10, 10, 0, &[6, 4]),
        ];
        for (sizes, before, desired, surge, expected) in table {
            let shares: Vec<Share> = sizes
                .iter()
                .map(|replicas| Share { replicas: *replicas, max_before: Some(before) })
                .collect();
            let total = sizes.iter().sum();
            let add = to_add(desired, desired + surge, total);
            let got = proportional(&shares, add, desired, desired + surge, 0);
            assert_eq!(got, expected, "{sizes:?} {desired} {surge}");
            let sum: i32 = got.iter().sum();
            assert_eq!(sum, total + add, "{sizes:?} {desired} {surge}");
        }
    }

    #[test]
    fn the_status_stands_in_for_a_lost_annotation() {
        let share = |max_before| Share { replicas: 5, max_before };
        for lost in [None, Some(0)] {
            assert_eq!(proportional(&[share(lost); 2], 10, 20, 20, 10), [10, 10]);
        }
    }

    #[test]
    fn numbers_without_sense_do_no_harm() {
        let share = Share { replicas: 2, max_before: Some(1) };
        for most in [i32::MIN, i32::MIN + 2, i32::MAX] {
            for desired in [1, i32::MAX] {
                let add = to_add(desired, most, 4);
                assert_eq!(proportional(&[share; 2], add, desired, most, 0).len(), 2);
            }
            assert_eq!(new_size(3, most, 4, 2), if most > 4 { 3 } else { 2 });
        }
        let old = PodCounts { replicas: i32::MAX, available: 0 };
        assert!(shrink(&[old, old], old, i32::MAX).steps.is_empty());
    }

    #[test]
    fn no_numbers_are_too_large_to_share() {
        const SIZES: [i32; 4] = [1, 3, 2_000_000_000, i32::MAX];
        let pairs = || SIZES.iter().flat_map(|one| SIZES.iter().map(|other| (*one, *other)));
        for (one, other) in pairs() {
            for (before, (desired, surge)) in SIZES.iter().flat_map(|b| pairs().map(|p| (*b, p))) {
                let share = |replicas| Share { replicas, max_before: Some(before) };
                let most = desired.wrapping_add(surge);
                let add = to_add(desired, most, one.saturating_add(other));
                let sizes = proportional(&[share(one), share(other)], add, desired, most, 0);
                assert!(sizes[0] >= 0, "{one} {other} {before} {desired} {surge}");
                let newest = new_size(desired, most, one.saturating_add(other), one);
                assert!(newest <= desired.max(one), "{one} {other} {desired} {surge}");
                let old = |replicas| PodCounts { replicas, available: before };
                let steps = shrink(&[old(one), old(other)], old(desired), surge).steps;
                assert!(steps.iter().all(|step| step.size >= 0), "{one} {other} {desired}");
            }
        }
    }

    #[test]
    fn the_newest_grows_into_the_room_there_is() {
        // desired, surge, total, current, next; the most there may be is desired and surge
        for (desired, surge, total, current, next) in [
            (10, 0, 0, 0, 10),
            (10, 3, 10, 0, 3),
            (10, 3, 13, 3, 3),
            (10, 3, 11, 3, 5),
            (10, 3, 8, 8, 10),
            (10, 0, 12, 2, 2),
            (10, 5, 10, 9, 10),
        ] {
            assert_eq!(
                new_size(desired, desired + surge, total, current),
                next,
                "{desired} {surge} {total} {current}"
            );
        }
    }

    #[test]
    fn old_pods_go_unhealthy_first() {
        let old = |pairs: &[(i32, i32)]| -> Vec<PodCounts> {
            pairs
                .iter()
                .map(|(replicas, available)| PodCounts {
                    replicas: *replicas,
                    available: *available,
                })
                .collect()
        };
        let steps = |pairs: &[(usize, i32)]| -> Vec<Step> {
            pairs.iter().map(|(index, size)| Step { index: *index, size: *size }).collect()
        };
        let table: [(&[_], i32, &[_]); 5] = [
            (&[(10, 8)], 1, &[(0, 9)]),
            (&[(10, 8)], 3, &[(0, 8)]),
            (&[(10, 10)], 3, &[]),
            (&[(3, 0), (0, 0), (4, 1)], 5, &[(0, 0), (2, 2)]),
            (&[(3, 0)], 0, &[]),
        ];
        for (sets, limit, expected) in table {
            assert_eq!(
                scale_down_unhealthy(&old(sets), limit),
                Ok(steps(expected)),
                "{sets:?} {limit}"
            );
        }
        assert_eq!(scale_down_unhealthy(&old(&[(2, 1), (2, 5)]), 4), Err(steps(&[(0, 1)])));

        let table: [(&[_], i32, &[_]); 4] = [
            (&[(10, 10)], 2, &[(0, 8)]),
            (&[(1, 1), (0, 0), (5, 5)], 3, &[(0, 0), (2, 3)]),
            (&[(1, 1)], 5, &[(0, 0)]),
            (&[(1, 1)], 0, &[]),
        ];
        for (sets, count, expected) in table {
            assert_eq!(scale_down_old(&old(sets), count), steps(expected), "{sets:?} {count}");
        }
    }

    /// Walks a rolling update to its end, new pods becoming available one round after they are
    /// made. The limits hold after every step.
    #[test]
    fn a_rollout_keeps_its_limits_and_ends() {
        for (desired, surge, unavailable) in
            [(10, 3, 2), (10, 0, 1), (1, 1, 0), (3, 3, 3), (7, 2, 0), (5, 0, 5), (100, 25, 25)]
        {
            let mut old = vec![
                PodCounts { replicas: desired / 2, available: desired / 2 },
                PodCounts { replicas: desired - desired / 2, available: desired - desired / 2 },
            ];
            let mut new = PodCounts { replicas: 0, available: 0 };
            let mut rounds = 0;
            while new.available < desired || old.iter().any(|set| set.replicas > 0) {
                rounds += 1;
                assert!(rounds < 1000, "{desired} {surge} {unavailable}: stuck at {new:?} {old:?}");
                let total = |old: &[PodCounts]| old.iter().map(|set| set.replicas).sum::<i32>();
                let size =
                    new_size(desired, desired + surge, total(&old) + new.replicas, new.replicas);
                if size == new.replicas {
                    for step in shrink(&old, new, desired - unavailable).steps {
                        old[step.index].replicas = step.size;
                        old[step.index].available = old[step.index].available.min(step.size);
                    }
                    new.available = new.replicas;
                }
                new.replicas = size;
                let available = new.available + old.iter().map(|set| set.available).sum::<i32>();
                assert!(available >= desired - unavailable, "{new:?} {old:?}");
                assert!(new.replicas + total(&old) <= desired + surge, "{new:?} {old:?}");
            }
            assert_eq!((new.replicas, new.available), (desired, desired));
        }
    }

    #[test]
    fn a_crash_looping_new_replica_set_costs_no_old_pods() {
        let (old, new) =
            (PodCounts { replicas: 8, available: 8 }, PodCounts { replicas: 5, available: 0 });
        assert_eq!(shrink(&[old], new, 8), Shrink::default());
        // an old pod is lost with its node, still nothing may go
        let old = PodCounts { replicas: 8, available: 7 };
        assert_eq!(shrink(&[old], new, 8), Shrink::default());
        // rolled back: the crash-looping one is the old one now, and goes as far as it may
        let steps = vec![Step { index: 0, size: 1 }];
        assert_eq!(shrink(&[new], old, 8), Shrink { steps, scaled: true });
    }
}
