//! The status of a DaemonSet. Upstream: `updateDaemonSetStatus`, `storeDaemonSetStatus`.

use super::sites::{Availability, NodePods, Version, order};
use crate::objects::DaemonSetStatus;

/// The counts in the status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub desired: i32,
    pub current: i32,
    pub misscheduled: i32,
    pub ready: i32,
    pub updated: i32,
    pub available: i32,
}

impl Counts {
    /// Counts the pods for the status: on each node that exists, the first one in [`order`].
    pub fn new(sites: &[NodePods], version: &Version<'_>, availability: Availability) -> Counts {
        let mut counts = Counts::default();
        for site in sites {
            let Some(fit) = site.fit else { continue };
            let first = site.pods.iter().min_by(|one, other| order(one, other));
            if !fit.should_run {
                counts.misscheduled += i32::from(first.is_some());
                continue;
            }
            counts.desired += 1;
            let Some(pod) = first else { continue };
            counts.current += 1;
            counts.ready += i32::from(pod.is_ready());
            counts.available += i32::from(availability.is_available(pod));
            counts.updated += i32::from(version.is_of(pod));
        }
        counts
    }

    /// Returns `status` with these counts and the observed `generation`; with `None`, when it was
    /// not acted on, the former one stays.
    pub fn put_into(self, status: &DaemonSetStatus, generation: Option<i64>) -> DaemonSetStatus {
        let unless_zero = |count: i32| (count != 0).then_some(count);
        DaemonSetStatus {
            desired_number_scheduled: self.desired,
            current_number_scheduled: self.current,
            number_misscheduled: self.misscheduled,
            number_ready: self.ready,
            updated_number_scheduled: unless_zero(self.updated),
            number_available: unless_zero(self.available),
            number_unavailable: unless_zero(self.desired - self.available),
            observed_generation: generation.or(status.observed_generation),
            ..status.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sites::testing::{GOES, NOW, RUNS, STAYS, sites};
    use super::*;

    #[test]
    fn nodes_and_their_first_pods_are_counted() {
        let sites = sites(
            &[("a", RUNS), ("b", RUNS), ("c", RUNS), ("d", STAYS), ("e", GOES), ("f", RUNS)],
            &[
                ("a-1", "new ready"),
                // The second pod of a node does not count.
                ("b-1", "old ready"),
                ("b-2", "new ready"),
                ("c-1", "new waits"),
                ("d-1", "new ready"),
                ("gone-1", "new ready"),
            ],
        );
        let version = Version { hash: "h", generation: None };
        let counts = |min_ready_seconds| {
            Counts::new(&sites, &version, Availability { min_ready_seconds, now: NOW })
        };
        let expected =
            Counts { desired: 4, current: 3, misscheduled: 1, ready: 2, updated: 2, available: 2 };
        assert_eq!(counts(100), expected);
        assert_eq!(counts(101), Counts { available: 0, ..expected });

        let before = DaemonSetStatus {
            collision_count: Some(3),
            observed_generation: Some(1),
            ..DaemonSetStatus::default()
        };
        let after = expected.put_into(&before, Some(2));
        assert_eq!((after.collision_count, after.observed_generation), (Some(3), Some(2)));
        assert_eq!((after.number_available, after.number_unavailable), (Some(2), Some(2)));
        assert_eq!(expected.put_into(&before, None).observed_generation, Some(1));
        let none = Counts::default().put_into(&before, None);
        assert_eq!(none, before, "absent is zero");
    }
}
