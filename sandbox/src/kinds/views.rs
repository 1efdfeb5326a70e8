//! Kinds whose objects are stored as another kind, and shown in their own form: events.k8s.io/v1
//! Events and autoscaling/v1 HorizontalPodAutoscalers.
//! Upstream: `pkg/apis/events/v1/conversion.go`, `pkg/apis/autoscaling/v1/conversion.go`.

use serde_json::{Value, json};

use super::json::{list, remove, set, text};

/// How a kind shows objects that are stored as another.
#[derive(Clone, Copy)]
pub struct View {
    /// Group, version and resource of the kind that stores them.
    pub of: (&'static str, &'static str, &'static str),
    /// A stored object in this kind's form.
    pub read: fn(&Value) -> Value,
    /// An object of this kind as it is stored.
    pub write: fn(Value) -> Value,
}

pub const EVENT: View = View { of: ("", "v1", "events"), read: read_event, write: write_event };
pub const AUTOSCALER: View = View {
    of: ("autoscaling", "v2", "horizontalpodautoscalers"),
    read: read_autoscaler,
    write: write_autoscaler,
};

/// The names of an Event's members in core/v1 and in events.k8s.io/v1.
const EVENT_NAMES: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

fn rename(object: &mut Value, from: &str, to: &str) {
    if let Some(members) = object.as_object_mut()
        && let Some(member) = members.remove(from)
    {
        members.insert(to.to_owned(), member);
    }
}

/// Converts a stored core Event to `events.k8s.io`, where some fields have other names.
fn read_event(stored: &Value) -> Value {
    let mut event = stored.clone();
    for (core, own) in EVENT_NAMES {
        rename(&mut event, core, own);
    }
    set(&mut event, "apiVersion", "events.k8s.io/v1");
    event
}

/// Converts an Event of `events.k8s.io` to the core Event that is stored.
fn write_event(mut event: Value) -> Value {
    for (core, own) in EVENT_NAMES {
        rename(&mut event, own, core);
    }
    set(&mut event, "apiVersion", "v1");
    event
}

/// Returns the value of a field that a field selector for `events.k8s.io` may name, read from the
/// stored core Event; `None` for any other field.
pub fn event_field(event: &Value, path: &str) -> Option<String> {
    let path = match path.split_once('.') {
        Some(("regarding", rest)) => format!("involvedObject.{rest}"),
        Some(_) => return None,
        None if path == "reportingController" => "reportingComponent".to_owned(),
        None => path.to_owned(),
    };
    super::core::event_field(event, &path)
}

fn is_cpu_utilization(metric: &Value) -> bool {
    text(metric, "/resource/name") == "cpu"
        && metric.pointer("/resource/target/averageUtilization").is_some()
}

/// Converts a stored autoscaler to version 1, which has a field for the CPU utilization only: other
/// metrics, the behavior and the conditions are left out.
fn read_autoscaler(stored: &Value) -> Value {
    let mut scaler = stored.clone();
    set(&mut scaler, "apiVersion", "autoscaling/v1");
    let utilization = |list: &[Value], pointer: &str| {
        list.iter()
            .find(|metric| text(metric, "/resource/name") == "cpu")
            .and_then(|metric| metric.pointer(pointer).cloned())
    };
    let wanted = utilization(list(stored, "/spec/metrics"), "/resource/target/averageUtilization");
    let current =
        utilization(list(stored, "/status/currentMetrics"), "/resource/current/averageUtilization");
    for (part, keys, name, value) in [
        ("spec", &["metrics", "behavior"][..], "targetCPUUtilizationPercentage", wanted),
        ("status", &["currentMetrics", "conditions"], "currentCPUUtilizationPercentage", current),
    ] {
        let Some(part) = scaler.get_mut(part) else { continue };
        keys.iter().for_each(|key| remove(part, key));
        if let Some(value) = value {
            set(part, name, value);
        }
    }
    scaler
}

/// Converts an autoscaler of version 1 to version 2, in which it is stored: its percentages of CPU
/// become metrics.
fn write_autoscaler(mut scaler: Value) -> Value {
    set(&mut scaler, "apiVersion", "autoscaling/v2");
    let Some(spec) = scaler.get_mut("spec") else { return scaler };
    let percent = spec["targetCPUUtilizationPercentage"].take();
    remove(spec, "targetCPUUtilizationPercentage");
    if percent.is_number() {
        let metric = json!({ "type": "Resource", "resource": {
            "name": "cpu", "target": { "type": "Utilization", "averageUtilization": percent },
        } });
        set(spec, "metrics", json!([metric]));
    }
    if let Some(status) = scaler.get_mut("status") {
        let percent = status["currentCPUUtilizationPercentage"].take();
        remove(status, "currentCPUUtilizationPercentage");
        if percent.is_number() {
            let metric = json!({ "type": "Resource", "resource": {
                "name": "cpu", "current": { "averageUtilization": percent },
            } });
            set(status, "currentMetrics", json!([metric]));
        }
    }
    scaler
}

/// Keeps the fields that v1 lacks when v1 writes an autoscaler: `behavior`, and all metrics but
/// that of CPU utilization.
pub fn keep_metrics(new: &mut Value, old: &Value) {
    let others: Vec<Value> = list(old, "/spec/metrics")
        .iter()
        .filter(|metric| !is_cpu_utilization(metric))
        .cloned()
        .collect();
    let Some(spec) = new.get_mut("spec") else { return };
    if let Some(behavior) = old.pointer("/spec/behavior") {
        set(spec, "behavior", behavior.clone());
    }
    if !others.is_empty() {
        let mut metrics = others;
        metrics.extend(list(spec, "/metrics").iter().cloned());
        set(spec, "metrics", metrics);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_the_same_in_both_forms() {
        let core = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"},
            "involvedObject": {"kind": "Pod"}, "message": "m", "count": 3, "reason": "R",
            "source": {"component": "c"}, "reportingComponent": "c"});
        let own = read_event(&core);
        assert_eq!(
            own,
            json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"},
                "regarding": {"kind": "Pod"}, "note": "m", "deprecatedCount": 3, "reason": "R",
                "deprecatedSource": {"component": "c"}, "reportingController": "c"})
        );
        assert_eq!(write_event(own), core);
        assert_eq!(event_field(&core, "regarding.kind").as_deref(), Some("Pod"));
        assert_eq!(event_field(&core, "involvedObject.kind"), None);
    }

    #[test]
    fn an_autoscaler_of_v1_has_one_metric() {
        let own = json!({"apiVersion": "autoscaling/v1", "spec":
            {"maxReplicas": 3, "targetCPUUtilizationPercentage": 80}});
        let stored = write_autoscaler(own.clone());
        assert_eq!(stored["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 80);
        assert_eq!(read_autoscaler(&stored), own);
        let memory = json!({"type": "Resource", "resource": {"name": "memory"}});
        let old = json!({"spec": {"metrics": [memory], "behavior": {}}});
        let mut new = stored.clone();
        keep_metrics(&mut new, &old);
        assert_eq!(new["spec"]["metrics"].as_array().map(Vec::len), Some(2));
        assert_eq!(new["spec"]["behavior"], json!({}));
    }
}
