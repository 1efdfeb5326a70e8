//! Defaults of devices. Upstream: `pkg/apis/resource/v1/defaults.go`.

use serde_json::Value;

use super::json::{drop_nulls, fill, list_mut};
use kube_controller_manager::clock::SystemClock;

/// A taint is dated when it is written, unless the writer has done so.
fn date(taint: &mut Value) {
    fill(taint, "timeAdded", SystemClock::shared().now().to_string());
}

pub fn default_slice(slice: &mut Value) {
    drop_nulls(slice);
    for device in list_mut(slice, "/spec/devices") {
        list_mut(device, "/taints").iter_mut().for_each(date);
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
