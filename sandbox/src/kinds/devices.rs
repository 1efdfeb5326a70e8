//! Defaults of devices. Upstream: `pkg/apis/resource/v1/defaults.go`.

use serde_json::Value;

use super::json::{drop_nulls, fill, list_mut};
use kube_controller_manager::clock::SystemClock;

/// Sets the time of a taint, unless the writer has set it.
fn date(taint: &mut Value) {
    fill(taint, "timeAdded", SystemClock::shared().now().to_string());
}

pub fn default_slice(slice: &mut Value) {
    drop_nulls(slice);
    for device in list_mut(slice, "/spec/devices") {
        list_mut(device, "/taints").iter_mut().for_each(date);
    }
}

/// Sets the defaults of the requests: each is for one device.
fn default_requests(spec: &mut Value) {
    for request in list_mut(spec, "/devices/requests") {
        let alternatives = list_mut(request, "/firstAvailable").iter_mut();
        alternatives.for_each(default_request);
        if let Some(exactly) = request.get_mut("exactly") {
            default_request(exactly);
        }
    }
}

fn default_request(request: &mut Value) {
    fill(request, "allocationMode", "ExactCount");
    let count = request["count"].as_i64().unwrap_or_default();
    if request["allocationMode"] == "ExactCount" && count == 0 {
        request["count"] = 1.into();
    }
}

pub fn default_claim(claim: &mut Value) {
    drop_nulls(claim);
    if let Some(spec) = claim.get_mut("spec") {
        default_requests(spec);
    }
}

pub fn default_claim_template(template: &mut Value) {
    drop_nulls(template);
    if let Some(spec) = template.pointer_mut("/spec/spec") {
        default_requests(spec);
    }
}

pub fn default_taint_rule(rule: &mut Value) {
    drop_nulls(rule);
    if let Some(taint) = rule.pointer_mut("/spec/taint") {
        date(taint);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_request_is_for_one_device() {
        let spec = json!({ "devices": { "requests": [
            { "name": "a", "exactly": { "deviceClassName": "gold" } },
            { "name": "b", "firstAvailable":
                [{ "allocationMode": "All" }, { "count": 2 }, { "count": 0 }] },
        ] } });
        let expected = json!({ "devices": { "requests": [
            { "name": "a", "exactly":
                { "deviceClassName": "gold", "allocationMode": "ExactCount", "count": 1 } },
            { "name": "b", "firstAvailable": [
                { "allocationMode": "All" },
                { "count": 2, "allocationMode": "ExactCount" },
                { "count": 1, "allocationMode": "ExactCount" } ] },
        ] } });
        let mut claim = json!({ "spec": spec });
        default_claim(&mut claim);
        assert_eq!(claim["spec"], expected);
        let mut template = json!({ "spec": { "spec": spec } });
        default_claim_template(&mut template);
        assert_eq!(template["spec"]["spec"], expected);
    }

    #[test]
    fn taints_without_a_time_get_that_of_their_write() {
        let dated = "2026-01-01T00:00:00Z";
        let taints = json!([{ "key": "a" }, { "key": "b", "timeAdded": dated }]);
        let mut slice = json!({ "spec": { "devices": [{ "name": "d" }, { "taints": taints }] } });
        default_slice(&mut slice);
        let taints = &slice["spec"]["devices"][1]["taints"];
        assert!(taints[0]["timeAdded"].is_string(), "{slice}");
        assert_eq!(taints[1]["timeAdded"], dated);
        let mut rule = json!({ "spec": { "taint": { "key": "a" } } });
        default_taint_rule(&mut rule);
        assert!(rule["spec"]["taint"]["timeAdded"].is_string(), "{rule}");
    }
}
