//! Finds whether the manager in charge attempts a creation that the API server refuses, for a quota
//! or another admission plugin: its controllers report this in events.

use std::time::Duration;

use serde_json::Value;

use super::Inner;
use super::ledger::Check;
use crate::client::Call;
use crate::objects::Timestamp;

/// The longest time between two attempts of a controller.
const LONGEST_BACKOFF: Duration = Duration::from_secs(1000);

impl Inner {
    /// Returns whether an event about the object that the controller syncs reports that a creation
    /// failed. `false` for other writes than creations, and if the events cannot be read.
    pub async fn has_failure_event(&self, check: &Check) -> bool {
        let owner = check.key.rsplit('/').next().unwrap_or_default();
        let namespace = &check.place.namespace;
        if !check.request.is_create() || owner.is_empty() || namespace.is_empty() {
            return false;
        }
        let mut call = Call::new("GET", format!("/api/v1/namespaces/{namespace}/events"));
        call.query("fieldSelector", &format!("involvedObject.name={owner}"));
        let Ok(events) = self.reader.fetch::<Value>(&call).await else { return false };
        let events = events["items"].as_array().into_iter().flatten();
        let since = self.clock.now() - (check.age + LONGEST_BACKOFF);
        events.filter(|event| is_failure(event)).any(|event| is_after(event, since))
    }
}

/// Returns whether the event reports that a controller could not create an object.
fn is_failure(event: &Value) -> bool {
    let by = [&event["source"]["component"], &event["reportingComponent"]];
    event["reason"].as_str().is_some_and(|reason| reason.starts_with("FailedCreate"))
        && by.iter().any(|by| by.as_str().is_some_and(|by| by.ends_with("controller")))
}

/// Returns whether the event, or the last of its series, is of `since` or later.
fn is_after(event: &Value, since: Timestamp) -> bool {
    let times = [
        &event["lastTimestamp"],
        &event["eventTime"],
        &event["series"]["lastObservedTime"],
        &event["firstTimestamp"],
    ];
    let times = times.iter().filter_map(|time| time.as_str()?.parse::<Timestamp>().ok());
    times.max().is_some_and(|last| last >= since)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_late_failure_of_a_controller_counts() {
        let since: Timestamp = "2026-01-01T00:10:00Z".parse().expect("a time");
        let event = |reason: &str, by: &str, last: Value| {
            json!({
                "reason": reason, "source": { "component": by },
                "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": last,
            })
        };
        let late = || json!("2026-01-01T00:11:00Z");
        for (event, expected) in [
            (event("FailedCreate", "replicaset-controller", late()), true),
            (event("FailedCreate", "kubelet", late()), false),
            (event("SuccessfulCreate", "replicaset-controller", late()), false),
            (event("FailedCreate", "replicaset-controller", Value::Null), false),
        ] {
            assert_eq!(is_failure(&event) && is_after(&event, since), expected, "{event}");
        }
    }
}
