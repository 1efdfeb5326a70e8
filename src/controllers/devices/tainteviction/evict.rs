//! The eviction of a pod: an event, a condition and a deletion.

use serde_json::{Value, json};

use super::eviction::{Eviction, Reason};
use super::{Named, TaintEviction, metrics};
use crate::client::{Delete, Patch};
use crate::controllers::Error;
use crate::events::{EventType, ObjectReference};
use crate::objects::{
    Istr, PartialObjectMetadata, Pod, Resource, Timestamp, Uid, patch_conditions,
};

const DISRUPTION: &str = "DisruptionTarget";
const REASON: &str = "DeletionByDeviceTaintManager";
const MESSAGE: &str = "Device Taint manager: deleting due to NoExecute taint";

/// The patch that announces the deletion of `pod`; `None` when it is announced.
fn announcement(pod: &Value, now: Timestamp) -> Option<Value> {
    let conditions = pod["status"]["conditions"].as_array();
    let old = conditions.into_iter().flatten().find(|old| old["type"] == DISRUPTION);
    let is_true = old.is_some_and(|old| old["status"] == "True");
    if is_true && old.is_some_and(|old| old["reason"] == REASON && old["message"] == MESSAGE) {
        return None;
    }
    let mut condition = json!({
        "type": DISRUPTION, "status": "True", "reason": REASON, "message": MESSAGE,
    });
    if !is_true {
        condition["lastTransitionTime"] = json!(now);
    }
    let mut status = json!({});
    let names = conditions.into_iter().flatten().filter_map(|known| known["type"].as_str());
    patch_conditions(&mut status, names, vec![condition]);
    Some(json!({ "metadata": { "uid": pod["metadata"]["uid"] }, "status": status }))
}

impl TaintEviction {
    /// Deletes the pod, unless it is gone or being deleted already.
    pub(super) async fn evict(&self, named: &Named, eviction: &Eviction) -> Result<(), Error> {
        let is_done = match self.announce_and_delete(named).await {
            Err(Error::Api(error)) if error.is_not_found() => false,
            Err(error) => return Err(error),
            Ok(is_there) => is_there,
        };
        self.evicted.add(&named.uid);
        self.state.lock().due.remove(named);
        if !is_done {
            return Ok(());
        }
        let latency = self.clock.now().duration_since(eviction.when);
        log::info!("{}: evicted pod {} by deleting it: {}", self.name, named.key, eviction.why());
        metrics::DELETIONS.inc();
        metrics::LATENCY.observe(latency.as_secs_f64());
        for reason in &eviction.reasons {
            if let Reason::Rule { uid, .. } = reason {
                *self.state.lock().evicted_by.entry(uid.clone()).or_default() += 1;
            }
        }
        // Only after the caches have seen the deletion.
        self.update_rules_later(eviction);
        Ok(())
    }

    /// Whether the pod existed. A pod that is being deleted counts as evicted, as upstream.
    async fn announce_and_delete(&self, named: &Named) -> Result<bool, Error> {
        let pods = self.client.resource(&Pod::RESOURCE);
        let pod: Value = pods.get(&named.key).await?;
        if pod["metadata"]["uid"] != named.uid.to_string() {
            return Ok(false);
        }
        if !pod["metadata"]["deletionTimestamp"].is_null() {
            return Ok(true);
        }
        self.record(named, "Marking for deletion");
        if let Some(patch) = announcement(&pod, self.clock.now()) {
            let status = pods.clone().metadata_only().subresource("status");
            let patch = Patch::StrategicMerge(patch);
            status.patch::<PartialObjectMetadata>(&named.key, &patch).await?;
        }
        // Another pod may have the name by now.
        self.client.delete::<Pod>(&named.key, Delete::new().uid(named.uid.clone())).await?;
        Ok(true)
    }

    pub(super) fn record(&self, named: &Named, message: &str) {
        let about = ObjectReference {
            api_version: Pod::RESOURCE.api_version().into(),
            kind: Istr::new(&Pod::RESOURCE.kind),
            namespace: named.key.namespace.clone(),
            name: named.key.name.clone(),
            uid: named.uid.clone(),
            resource_version: 0,
            field_path: Istr::default(),
        };
        self.recorder.event(&about, EventType::Normal, "DeviceTaintManagerEviction", message);
    }

    /// How many pods were evicted because of the rule.
    pub(super) fn evicted_by(&self, rule: &Uid) -> u64 {
        self.state.lock().evicted_by.get(rule).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_condition_is_written_once() {
        let pod = |conditions: Value| json!({ "metadata": { "uid": "u" }, "status": { "conditions": conditions } });
        let now = Timestamp::from_secs(60);
        let written = |conditions: Value| {
            announcement(&pod(conditions), now).map(|mut patch| patch["status"].take())
        };
        let mut condition = json!({
            "type": DISRUPTION, "status": "True", "reason": REASON, "message": MESSAGE,
            "lastTransitionTime": "1970-01-01T00:01:00Z",
        });
        let after = |before: &[&str], condition: &Value| {
            let names = before.iter().copied().chain([DISRUPTION]);
            let order: Vec<Value> = names.map(|name| json!({ "type": name })).collect();
            Some(json!({ "$setElementOrder/conditions": order, "conditions": [condition] }))
        };
        let status = |condition: &Value| after(&[], condition);
        assert_eq!(written(Value::Null), status(&condition));
        let ready = json!([{ "type": "Ready", "status": "True" }]);
        assert_eq!(written(ready), after(&["Ready"], &condition));
        let off = json!({ "type": DISRUPTION, "status": "False", "reason": REASON });
        assert_eq!(written(json!([off])), status(&condition));
        assert_eq!(written(json!([condition.clone()])), None);
        let by_another = json!({ "type": DISRUPTION, "status": "True", "reason": "PreemptionBy" });
        condition.as_object_mut().unwrap().remove("lastTransitionTime");
        assert_eq!(written(json!([by_another])), status(&condition), "true since then");
        assert_eq!(announcement(&pod(Value::Null), now).unwrap()["metadata"]["uid"], "u");
    }
}
