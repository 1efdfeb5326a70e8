//! The eviction of a pod: an event, a condition and a deletion.

use serde_json::{Value, json};

use super::eviction::{Eviction, Reason};
use super::{ObjectId, TaintEviction, metrics};
use crate::client::{Delete, Patch};
use crate::controllers::Error;
use crate::events::{EventType, ObjectReference};
use crate::objects::{
    Istr, PartialObjectMetadata, Pod, Resource, Timestamp, Uid, patch_conditions,
};

const DISRUPTION: &str = "DisruptionTarget";
const REASON: &str = "DeletionByDeviceTaintManager";
const MESSAGE: &str = "Device Taint manager: deleting due to NoExecute taint";

/// Returns the patch that sets the pod's condition DisruptionTarget; `None` if it is set for this
/// reason already.
fn disruption_patch(pod: &Value, now: Timestamp) -> Option<Value> {
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
    /// Evicts a pod that is due: deletes it, and records that in metrics and for the statuses of
    /// the rules. A pod that is gone is only removed from the due ones.
    pub(super) async fn evict(&self, id: &ObjectId, eviction: &Eviction) -> Result<(), Error> {
        let has_evicted = match self.announce_and_delete(id).await {
            Err(Error::Api(error)) if error.is_not_found() => false,
            Err(error) => return Err(error),
            Ok(has_evicted) => has_evicted,
        };
        self.evicted.add(&id.uid);
        self.state.lock().due.remove(id);
        if !has_evicted {
            return Ok(());
        }
        let latency = self.clock.now().duration_since(eviction.when);
        log::info!(
            "{}: evicted pod {} by deleting it: {}",
            self.name,
            id.key,
            eviction.reasons_text()
        );
        metrics::DELETIONS.inc();
        metrics::LATENCY.observe(latency.as_secs_f64());
        for reason in &eviction.reasons {
            if let Reason::Rule { uid, .. } = reason {
                *self.state.lock().evicted_by.entry(uid.clone()).or_default() += 1;
            }
        }
        // The delay gives the caches time to see the deletion.
        self.queue_rule_statuses(eviction);
        Ok(())
    }

    /// Sets the condition of the live pod, and deletes it. Returns `false` if another pod has the
    /// name now. A pod that is being deleted already counts as evicted, as upstream.
    async fn announce_and_delete(&self, id: &ObjectId) -> Result<bool, Error> {
        let pods = self.client.resource(&Pod::RESOURCE);
        let pod: Value = pods.get(&id.key).await?;
        if pod["metadata"]["uid"] != id.uid.to_string() {
            return Ok(false);
        }
        if !pod["metadata"]["deletionTimestamp"].is_null() {
            return Ok(true);
        }
        self.record(id, "Marking for deletion");
        if let Some(patch) = disruption_patch(&pod, self.clock.now()) {
            let status = pods.clone().metadata_only().subresource("status");
            let patch = Patch::StrategicMerge(patch);
            status.patch::<PartialObjectMetadata>(&id.key, &patch).await?;
        }
        // Another pod may have the name by now.
        self.client.delete::<Pod>(&id.key, Delete::new().uid(id.uid.clone())).await?;
        Ok(true)
    }

    /// Records an event about the pod.
    pub(super) fn record(&self, id: &ObjectId, message: &str) {
        let about = ObjectReference {
            api_version: Pod::RESOURCE.api_version().into(),
            kind: Istr::new(&Pod::RESOURCE.kind),
            namespace: id.key.namespace.clone(),
            name: id.key.name.clone(),
            uid: id.uid.clone(),
            resource_version: 0,
            field_path: Istr::default(),
        };
        self.recorder.event(&about, EventType::Normal, "DeviceTaintManagerEviction", message);
    }

    /// Returns the number of pods that were evicted because of the rule.
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
            disruption_patch(&pod(conditions), now).map(|mut patch| patch["status"].take())
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
        assert_eq!(disruption_patch(&pod(Value::Null), now).unwrap()["metadata"]["uid"], "u");
    }
}
