//! The order in which pods end when the node shuts down. Upstream: `migrateConfig`,
//! `groupByPriority`.

use std::sync::Arc;
use std::time::Duration;

use super::Error;
use crate::eviction::CRITICAL_PRIORITY;
use crate::options::configuration::{Configuration, PriorityGrace};
use crate::pod::{Pod, PodExt};

const SECOND: Duration = Duration::from_secs(1);

/// Pods from this priority on, up to that of the next group, and how long they have to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    pub priority: i32,
    /// In seconds.
    pub grace: i64,
}

/// Reads the groups of pods from the configuration, by rising priority; empty: pods are not ended
/// when the node shuts down.
///
/// # Errors
/// One that names the fields.
pub fn of(configuration: &Configuration) -> Result<Vec<Group>, Error> {
    let all = configuration.shutdown_grace_period.0;
    let critical = configuration.shutdown_grace_period_critical_pods.0;
    let by_priority = &configuration.shutdown_grace_period_by_pod_priority;
    if critical > all {
        return Err(Error::CriticalIsLonger { critical, all });
    }
    for (field, period) in
        [("shutdownGracePeriod", all), ("shutdownGracePeriodCriticalPods", critical)]
    {
        if !period.is_zero() && period < SECOND {
            return Err(Error::TooShort { field, period });
        }
    }
    if !by_priority.is_empty() && !all.is_zero() {
        return Err(Error::Both);
    }
    let grace = |period: Duration| i64::try_from(period.as_secs()).unwrap_or(i64::MAX);
    let mut groups: Vec<Group> = match all.is_zero() {
        true => {
            let group = |one: &PriorityGrace| Group {
                priority: one.priority,
                grace: one.shutdown_grace_period_seconds,
            };
            by_priority.iter().map(group).collect()
        }
        false => vec![
            Group { priority: 0, grace: grace(all - critical) },
            Group { priority: CRITICAL_PRIORITY, grace: grace(critical) },
        ],
    };
    groups.sort_by_key(|group| group.priority);
    Ok(groups)
}

/// Returns the time that all groups have together.
pub fn total(groups: &[Group]) -> Duration {
    let seconds = groups.iter().map(|group| group.grace.unsigned_abs());
    Duration::from_secs(seconds.fold(0, u64::saturating_add))
}

/// Splits pods into the groups by their priority. Those below the first are in the first.
pub fn split(groups: &[Group], pods: Vec<Arc<Pod>>) -> Vec<(Group, Vec<Arc<Pod>>)> {
    let mut split: Vec<(Group, Vec<Arc<Pod>>)> =
        groups.iter().map(|group| (*group, Vec::new())).collect();
    for pod in pods {
        let priority = pod.spec().priority.unwrap_or(0);
        let at = groups.partition_point(|group| group.priority <= priority).saturating_sub(1);
        if let Some((_, pods)) = split.get_mut(at) {
            pods.push(pod);
        }
    }
    split
}

/// Returns how long a pod of a group may take, in seconds.
pub fn grace_of(pod: &Pod, group: Group) -> i64 {
    let own = pod.spec().termination_grace_period_seconds;
    own.map_or(group.grace, |own| own.min(group.grace))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn groups(fields: Value) -> Result<Vec<(i32, i64)>, String> {
        let configuration = serde_json::from_value(fields).expect("a configuration");
        let found = of(&configuration).map_err(|error| error.to_string())?;
        Ok(found.into_iter().map(|group| (group.priority, group.grace)).collect())
    }

    #[test]
    fn groups_are_those_of_the_configuration() {
        let by_priority = json!([{"priority": 100, "shutdownGracePeriodSeconds": 20},
                                 {"priority": 0, "shutdownGracePeriodSeconds": 60}]);
        for (fields, expected) in [
            (json!({}), Ok(vec![])),
            (
                json!({"shutdownGracePeriod": "30s", "shutdownGracePeriodCriticalPods": "10s"}),
                Ok(vec![(0, 20), (CRITICAL_PRIORITY, 10)]),
            ),
            (json!({"shutdownGracePeriod": "30s"}), Ok(vec![(0, 30), (CRITICAL_PRIORITY, 0)])),
            (
                json!({"shutdownGracePeriodByPodPriority": by_priority}),
                Ok(vec![(0, 60), (100, 20)]),
            ),
            (
                json!({"shutdownGracePeriod": "1s", "shutdownGracePeriodCriticalPods": "2s"}),
                Err("must be <= shutdownGracePeriod"),
            ),
            (
                json!({"shutdownGracePeriod": "500ms"}),
                Err("must be either zero or otherwise >= 1 sec"),
            ),
            (
                json!({"shutdownGracePeriod": "30s",
                    "shutdownGracePeriodByPodPriority": by_priority}),
                Err("Cannot specify both"),
            ),
        ] {
            match (groups(fields.clone()), expected) {
                (Err(text), Err(part)) => assert!(text.contains(part), "{fields}: {text}"),
                (found, expected) => assert_eq!(found.ok(), expected.ok(), "{fields}"),
            }
        }
    }

    #[test]
    fn pods_are_in_the_group_of_their_priority() {
        let groups =
            [(0, 60), (100, 20), (200, 5)].map(|(priority, grace)| Group { priority, grace });
        assert_eq!(total(&groups), Duration::from_secs(85));
        for (priority, own, at, grace) in [
            (json!(null), json!(null), 0, 60),
            (json!(-5), json!(10), 0, 10),
            (json!(99), json!(90), 0, 60),
            (json!(100), json!(null), 1, 20),
            (json!(150), json!(null), 1, 20),
            (json!(2_000_001_000), json!(3), 2, 3),
        ] {
            let spec = json!({"priority": priority, "terminationGracePeriodSeconds": own,
                              "containers": []});
            let pod: Arc<Pod> =
                Arc::new(serde_json::from_value(json!({"spec": spec})).expect("a pod"));
            let split = split(&groups, vec![pod.clone()]);
            let counts: Vec<usize> = split.iter().map(|(_, pods)| pods.len()).collect();
            assert_eq!(counts.iter().position(|count| *count == 1), Some(at), "{priority}");
            assert_eq!(grace_of(&pod, groups[at]), grace, "{priority} {own}");
        }
        let pod = Arc::new(Pod::default());
        assert!(split(&[], vec![pod]).is_empty());
    }
}
