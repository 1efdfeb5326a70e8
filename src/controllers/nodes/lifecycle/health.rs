//! The health of a node: its last sign of life, and the conditions of a silent node.

use std::time::Duration;

use crate::objects::{Istr, Lease, Node, NodeCondition, Timestamp};

/// The conditions that a silent node loses. NetworkUnavailable is not the kubelet's.
const KUBELET_CONDITIONS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// The status of the condition Ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    True,
    False,
    Unknown,
}

impl Ready {
    /// Returns the status of the condition Ready; `None` without the condition.
    pub fn of_node(node: &Node) -> Option<Ready> {
        node.status.ready().map(|condition| match condition.status.as_str() {
            "True" => Ready::True,
            "False" => Ready::False,
            _ => Ready::Unknown,
        })
    }
}

/// How long a node may be silent.
#[derive(Clone, Copy)]
pub struct GracePeriods {
    /// `--node-monitor-grace-period`
    pub monitor: Duration,
    /// `--node-startup-grace-period`: before the node has a condition Ready.
    pub startup: Duration,
}

/// The last sign of life of a node. Upstream: `nodeHealthData`.
#[derive(Clone, Debug, PartialEq)]
pub struct Health {
    /// When there was a sign of life, on the manager's own clock: clocks of nodes may differ.
    pub probe: Timestamp,
    /// The condition Ready then: its heartbeat and its status.
    pub ready: Option<(Option<Timestamp>, Ready)>,
    /// The lease's time of renewal that counted last; `None` if none did.
    renewed: Option<Option<Timestamp>>,
}

impl Health {
    /// Returns the health of a node after it and its lease were read from the caches. A node
    /// without the condition Ready counts as alive from its creation on. Each change of the lease's
    /// time counts, also to an earlier one: the node's clock may be set back.
    /// Upstream: the first half of `tryUpdateNodeHealth`, where only a later time counts.
    pub fn observe(
        before: Option<&Health>,
        node: &Node,
        lease: Option<&Lease>,
        now: Timestamp,
    ) -> Health {
        let heartbeat = node.status.ready().and_then(|condition| condition.last_heartbeat_time);
        let ready = Ready::of_node(node).map(|status| (heartbeat, status));
        let seen_at = |probe| Health { probe, ready, renewed: None };
        let mut health = match (before, ready) {
            (None, None) => seen_at(node.meta.creation_timestamp.unwrap_or_default().min(now)),
            (None, Some(_)) => seen_at(now),
            (Some(before), None) => Health { ready, ..before.clone() },
            (Some(before), Some(_)) => match before.ready {
                // Only a new heartbeat is a sign of life.
                Some((known, _)) if known == heartbeat => before.clone(),
                _ => seen_at(now),
            },
        };
        let renewed = before.and_then(|before| before.renewed);
        if let Some(lease) = lease
            && renewed != Some(lease.spec.renew_time)
        {
            health.renewed = Some(lease.spec.renew_time);
            health.probe = now;
        }
        health
    }

    /// Returns whether nothing was heard of the node for longer than its grace period: that
    /// for the startup before it has a condition Ready.
    pub fn is_silent(&self, grace: &GracePeriods, now: Timestamp) -> bool {
        let grace = if self.ready.is_some() { grace.monitor } else { grace.startup };
        now > self.probe + grace
    }
}

/// Returns the conditions to write for a silent node; `None` if Ready is Unknown already.
/// Upstream: the second half of `tryUpdateNodeHealth`.
pub fn unknown_conditions(node: &Node, now: Timestamp) -> Option<Vec<NodeCondition>> {
    if node.status.ready().is_some_and(|ready| ready.status == "Unknown") {
        return None;
    }
    let mut conditions = node.status.conditions.to_vec();
    for name in KUBELET_CONDITIONS {
        match conditions.iter_mut().find(|condition| condition.r#type == *name) {
            Some(condition) if condition.status == "Unknown" => {}
            Some(condition) => {
                condition.status = Istr::new("Unknown");
                condition.reason = Istr::new("NodeStatusUnknown");
                condition.message = Istr::new("Kubelet stopped posting node status.");
                condition.last_transition_time = Some(now);
            }
            None => conditions.push(NodeCondition {
                r#type: Istr::new(name),
                status: Istr::new("Unknown"),
                reason: Istr::new("NodeStatusNeverUpdated"),
                message: Istr::new("Kubelet never posted node status."),
                last_heartbeat_time: node.meta.creation_timestamp,
                last_transition_time: Some(now),
            }),
        }
    }
    Some(conditions)
}

/// The manager's own clock as the monitor reads it. It starts at the wall clock's time, is not set
/// with it, and stands still while the process is suspended: nodes cannot be heard then.
pub struct MonitorClock {
    origin: Timestamp,
    start: Duration,
    lost: Duration,
    /// When the next pass should start.
    expected: Option<Duration>,
}

impl MonitorClock {
    pub fn new(origin: Timestamp, monotonic: Duration) -> MonitorClock {
        MonitorClock { origin, start: monotonic, lost: Duration::ZERO, expected: None }
    }

    /// Returns the time of this clock: the wall clock's at the start, and what has passed since,
    /// less the time in which passes were late.
    pub fn now(&self, monotonic: Duration) -> Timestamp {
        self.origin + monotonic.saturating_sub(self.start + self.lost)
    }

    /// Records the start of a pass. If it is late by more than `period`, the rest counts as lost.
    pub fn start(&mut self, monotonic: Duration, period: Duration) {
        if let Some(expected) = self.expected.take() {
            self.lost += monotonic.saturating_sub(expected + period);
        }
    }

    /// Records that the next pass should start at `at`.
    pub fn expect_next_pass(&mut self, at: Duration) {
        self.expected = Some(at);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const GRACE: GracePeriods =
        GracePeriods { monitor: Duration::from_secs(40), startup: Duration::from_secs(60) };

    fn at(second: i64) -> Timestamp {
        Timestamp::from_secs(second)
    }

    fn ready(status: &str, heartbeat: i64) -> Value {
        json!({
            "type": "Ready", "status": status, "reason": "r", "message": "m",
            "lastHeartbeatTime": at(heartbeat), "lastTransitionTime": at(heartbeat),
        })
    }

    /// Created at second 10.
    fn node(conditions: Value) -> Node {
        let json = json!({
            "metadata": { "name": "n", "creationTimestamp": at(10) },
            "status": { "conditions": conditions },
        });
        serde_json::from_value(json).unwrap()
    }

    fn lease(second: i64) -> Lease {
        let json = json!({ "spec": { "renewTime": at(second).to_micro_string() } });
        serde_json::from_value(json).unwrap()
    }

    /// Observes a sequence of (conditions, renewal of the lease, own time), and says after each
    /// whether the node is silent.
    fn observe_each(looks: &[(Value, Option<i64>, i64)]) -> Vec<bool> {
        let mut health = None;
        let mut answers = Vec::new();
        for (conditions, renewed, now) in looks {
            let lease = renewed.map(lease);
            let next = Health::observe(
                health.as_ref(),
                &node(conditions.clone()),
                lease.as_ref(),
                at(*now),
            );
            answers.push(next.is_silent(&GRACE, at(*now)));
            health = Some(next);
        }
        answers
    }

    #[test]
    fn a_node_without_status_lives_for_the_startup_period() {
        let none = || json!([]);
        assert_eq!(
            observe_each(&[(none(), None, 12), (none(), None, 70), (none(), None, 71)]),
            [false, false, true]
        );
        // Upstream: TestMonitorNodeHealthUpdateNodeAndPodStatusWithLease, kubelet never posted
        // status.
        assert_eq!(observe_each(&[(none(), None, 4000)]), [true]);
        assert_eq!(observe_each(&[(none(), Some(3990), 4000)]), [false]);
        assert_eq!(
            observe_each(&[(none(), Some(20), 30), (none(), Some(20), 90), (none(), Some(20), 91)]),
            [false, false, true],
            "from the look at which the lease was new"
        );
    }

    #[test]
    fn heartbeats_and_renewals_are_signs_of_life() {
        let up = |heartbeat| json!([ready("True", heartbeat)]);
        // The first look of a manager counts, however old the heartbeat is.
        assert_eq!(
            observe_each(&[(up(10), None, 4000), (up(10), None, 4040), (up(10), None, 4041)]),
            [false, false, true]
        );
        assert_eq!(
            observe_each(&[(up(10), None, 100), (up(20), None, 140), (up(20), None, 180)]),
            [false; 3]
        );
        assert_eq!(
            observe_each(&[
                (up(10), Some(95), 100),
                (up(10), Some(135), 140),
                (up(10), Some(135), 180),
                (up(10), Some(135), 181),
            ]),
            [false, false, false, true]
        );
        // The node's clock is set back by an hour.
        assert_eq!(
            observe_each(&[
                (up(10), Some(4000), 100),
                (up(10), Some(410), 110),
                (up(10), Some(420), 141),
                (up(10), Some(430), 181),
                (up(10), Some(430), 221),
                (up(10), Some(430), 222),
            ]),
            [false, false, false, false, false, true]
        );
        // Upstream forgets the lease with a heartbeat, so the same renewal counts once more.
        assert_eq!(
            observe_each(&[
                (up(10), Some(95), 100),
                (up(20), Some(95), 120),
                (up(20), Some(95), 125),
                (up(20), Some(95), 165),
                (up(20), Some(95), 166),
            ]),
            [false, false, false, false, true]
        );
        // The first status of a node.
        assert_eq!(
            observe_each(&[(json!([]), None, 60), (up(65), None, 71), (up(65), None, 111)]),
            [false; 3]
        );
    }

    #[test]
    fn a_silent_node_has_unknown_conditions() {
        let unknown = |conditions| {
            let conditions = unknown_conditions(&node(conditions), at(100))?;
            Some(serde_json::to_value(conditions).unwrap())
        };
        let never = |name: &str| {
            json!({
                "type": name, "status": "Unknown", "reason": "NodeStatusNeverUpdated",
                "message": "Kubelet never posted node status.",
                "lastHeartbeatTime": at(10), "lastTransitionTime": at(100),
            })
        };
        assert_eq!(unknown(json!([])), Some(json!(KUBELET_CONDITIONS.map(never))), "in this order");
        let network = json!({
            "type": "NetworkUnavailable", "status": "False", "lastHeartbeatTime": at(11),
            "lastTransitionTime": at(12),
        });
        let mut stopped = ready("Unknown", 50);
        stopped["reason"] = "NodeStatusUnknown".into();
        stopped["message"] = "Kubelet stopped posting node status.".into();
        stopped["lastTransitionTime"] = json!(at(100));
        for status in ["True", "False"] {
            assert_eq!(
                unknown(json!([network, ready(status, 50)])),
                Some(json!([
                    network,
                    stopped,
                    never("MemoryPressure"),
                    never("DiskPressure"),
                    never("PIDPressure"),
                ]))
            );
        }
        assert_eq!(unknown(json!([ready("Unknown", 50)])), None);
    }

    #[test]
    fn a_suspension_of_the_manager_does_not_count() {
        let (secs, period) = (Duration::from_secs, Duration::from_secs(5));
        let mut clock = MonitorClock::new(at(1000), secs(50));
        clock.start(secs(50), period);
        assert_eq!(clock.now(secs(52)), at(1002));
        clock.expect_next_pass(secs(57));
        clock.start(secs(60), period);
        assert_eq!(clock.now(secs(60)), at(1010), "late, but within a period");
        clock.expect_next_pass(secs(65));
        clock.start(secs(3670), period);
        assert_eq!(clock.now(secs(3670)), at(1020));
        assert_eq!(clock.now(secs(3671)), at(1021));
    }
}
