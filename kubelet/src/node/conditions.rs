//! The conditions of a Node that its kubelet keeps. Upstream: `nodestatus.ReadyCondition` and those
//! beside it.

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::pressure::Pressure;

/// The condition of a node that takes pods.
pub const READY: &str = "Ready";

/// The words of a pressure: its condition; and reason, message and event, in this order, while it
/// is there and while it is not.
struct Words {
    condition: &'static str,
    present: [&'static str; 3],
    absent: [&'static str; 3],
}

/// Returns upstream's words for a pressure.
fn words(pressure: Pressure) -> Words {
    match pressure {
        Pressure::Memory => Words {
            condition: "MemoryPressure",
            present: [
                "KubeletHasInsufficientMemory",
                "kubelet has insufficient memory available",
                "NodeHasInsufficientMemory",
            ],
            absent: [
                "KubeletHasSufficientMemory",
                "kubelet has sufficient memory available",
                "NodeHasSufficientMemory",
            ],
        },
        Pressure::Disk => Words {
            condition: "DiskPressure",
            present: ["KubeletHasDiskPressure", "kubelet has disk pressure", "NodeHasDiskPressure"],
            absent: [
                "KubeletHasNoDiskPressure",
                "kubelet has no disk pressure",
                "NodeHasNoDiskPressure",
            ],
        },
        Pressure::Pid => Words {
            condition: "PIDPressure",
            present: [
                "KubeletHasInsufficientPID",
                "kubelet has insufficient PID available",
                "NodeHasInsufficientPID",
            ],
            absent: [
                "KubeletHasSufficientPID",
                "kubelet has sufficient PID available",
                "NodeHasSufficientPID",
            ],
        },
    }
}

/// Sets the condition of a pressure. Returns the reason of an event if the condition has changed or
/// is new.
pub fn set_pressure(
    conditions: &mut Vec<core::NodeCondition>,
    pressure: Pressure,
    is_under: bool,
    now: &Time,
) -> Option<&'static str> {
    let words = words(pressure);
    let (status, [reason, message, event]) = match is_under {
        true => ("True", words.present),
        false => ("False", words.absent),
    };
    let condition = entry(conditions, words.condition);
    condition.last_heartbeat_time = Some(now.clone());
    if condition.status == status {
        return None;
    }
    condition.status = status.to_owned();
    condition.reason = Some(reason.to_owned());
    condition.message = Some(message.to_owned());
    condition.last_transition_time = Some(now.clone());
    Some(event)
}

/// Sets the condition Ready, which follows all others. `faults`: why the node takes no pods.
/// Returns the reason of an event if the condition has changed and was there before.
pub fn set_ready(
    conditions: &mut Vec<core::NodeCondition>,
    faults: &[String],
    now: &Time,
) -> Option<&'static str> {
    let (status, reason, message) = match faults {
        [] => ("True", "KubeletReady", "kubelet is posting ready status".to_owned()),
        [fault] => ("False", "KubeletNotReady", fault.clone()),
        // As upstream writes several errors.
        faults => ("False", "KubeletNotReady", format!("[{}]", faults.join(", "))),
    };
    let is_new = ready(conditions).is_none();
    let condition = entry(conditions, READY);
    let has_changed = condition.status != status;
    condition.status = status.to_owned();
    condition.reason = Some(reason.to_owned());
    condition.message = Some(message);
    condition.last_heartbeat_time = Some(now.clone());
    if has_changed || is_new {
        condition.last_transition_time = Some(now.clone());
    }
    match (has_changed && !is_new, status) {
        (false, _) => None,
        (true, "True") => Some("NodeReady"),
        (true, _) => Some("NodeNotReady"),
    }
}

/// Returns the condition Ready, if there is one.
pub fn ready(conditions: &[core::NodeCondition]) -> Option<&core::NodeCondition> {
    conditions.iter().find(|condition| condition.type_ == READY)
}

/// Returns the condition of a type; a new one follows the others.
fn entry<'a>(
    conditions: &'a mut Vec<core::NodeCondition>,
    type_: &str,
) -> &'a mut core::NodeCondition {
    let at = conditions.iter().position(|condition| condition.type_ == type_);
    let at = at.unwrap_or_else(|| {
        conditions.push(core::NodeCondition { type_: type_.to_owned(), ..Default::default() });
        conditions.len() - 1
    });
    &mut conditions[at]
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    fn time(seconds: i64) -> Time {
        Time(Timestamp::from_second(seconds).expect("a time"))
    }

    fn shown(condition: &core::NodeCondition) -> (&str, &str, i64, i64) {
        let seconds = |time: &Option<Time>| time.as_ref().map_or(0, |time| time.0.as_second());
        (
            &condition.status,
            condition.reason.as_deref().unwrap_or_default(),
            seconds(&condition.last_heartbeat_time),
            seconds(&condition.last_transition_time),
        )
    }

    #[test]
    fn pressure_changes_its_time_and_records_an_event() {
        let mut conditions = Vec::new();
        for (at, is_under, event, expected) in [
            (1, false, Some("NodeHasNoDiskPressure"), ("False", "KubeletHasNoDiskPressure", 1, 1)),
            (2, false, None, ("False", "KubeletHasNoDiskPressure", 2, 1)),
            (3, true, Some("NodeHasDiskPressure"), ("True", "KubeletHasDiskPressure", 3, 3)),
            (4, true, None, ("True", "KubeletHasDiskPressure", 4, 3)),
            (5, false, Some("NodeHasNoDiskPressure"), ("False", "KubeletHasNoDiskPressure", 5, 5)),
        ] {
            let outcome = set_pressure(&mut conditions, Pressure::Disk, is_under, &time(at));
            assert_eq!(outcome, event, "{at}");
            assert_eq!(shown(&conditions[0]), expected, "{at}");
        }
        // The node controller sets Unknown while nothing is heard of the node.
        conditions[0].status = "Unknown".to_owned();
        let outcome = set_pressure(&mut conditions, Pressure::Disk, false, &time(6));
        assert_eq!(outcome, Some("NodeHasNoDiskPressure"));
        assert_eq!(conditions.len(), 1);
    }

    #[test]
    fn readiness_changes_its_time_and_records_an_event() {
        let network = core::NodeCondition {
            type_: "NetworkUnavailable".to_owned(),
            status: "False".to_owned(),
            ..Default::default()
        };
        let mut conditions = vec![network.clone()];
        for (at, faults, event, expected, message) in [
            (1, &["a"][..], None, ("False", "KubeletNotReady", 1, 1), "a"),
            (2, &["a", "b"], None, ("False", "KubeletNotReady", 2, 1), "[a, b]"),
            (
                3,
                &[],
                Some("NodeReady"),
                ("True", "KubeletReady", 3, 3),
                "kubelet is posting ready status",
            ),
            (4, &[], None, ("True", "KubeletReady", 4, 3), "kubelet is posting ready status"),
            (5, &["c"], Some("NodeNotReady"), ("False", "KubeletNotReady", 5, 5), "c"),
        ] {
            let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
            assert_eq!(set_ready(&mut conditions, &faults, &time(at)), event, "{at}");
            let ready = ready(&conditions).expect("a condition");
            assert_eq!(shown(ready), expected, "{at}");
            assert_eq!(ready.message.as_deref(), Some(message), "{at}");
        }
        assert_eq!(conditions[0], network, "another's condition stays");
    }
}
