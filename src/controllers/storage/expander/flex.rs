//! The status of an expansion that the kubelet does: of FlexVolumes, the last in-tree volumes that
//! can be expanded. Upstream: `expandAndRecoverFunction` with the plugin that does nothing.

use serde_json::{Map, Value, json};

use super::super::annotations::{PRE_RESIZE_CAPACITY, STORAGE_RESIZER};
use super::super::operation_metrics::operation_ended;
use super::Expander;
use crate::client::Patch;
use crate::controllers::Error;
use crate::objects::{
    ObjectKey, PersistentVolume, PersistentVolumeClaim, Quantity, Resource, patch_conditions,
};

const CONTROLLER_IN_PROGRESS: &str = "ControllerResizeInProgress";
const CONTROLLER_INFEASIBLE: &str = "ControllerResizeInfeasible";
const NODE_PENDING: &str = "NodeResizePending";
const NODE_IN_PROGRESS: &str = "NodeResizeInProgress";
const NODE_INFEASIBLE: &str = "NodeResizeInfeasible";
/// The conditions that an expansion sets.
const CONDITIONS: [&str; 4] =
    ["FileSystemResizePending", "Resizing", "ControllerResizeError", "NodeResizeError"];

/// The sizes of an expansion and its progress.
#[derive(Clone, Debug, Default)]
struct State {
    wanted: Quantity,
    /// The capacity in the claim's status.
    has: Quantity,
    /// The capacity in the volume's spec.
    volume: Quantity,
    /// The size that an earlier step has set out to reach.
    allocated: Option<Quantity>,
    /// The progress: one of the constants above, or empty.
    status: String,
    /// Whether the volume has the annotation of an expansion that the node has not confirmed.
    is_marked: bool,
}

/// The control plane's next step of an expansion.
#[derive(Debug, PartialEq)]
enum Step {
    Nothing,
    /// The node is done: the annotation is removed.
    Unmark,
    AwaitNode,
    Expand(Quantity),
}

impl State {
    /// Reads the sizes and the progress of an expansion from the live claim and volume.
    fn read(claim: &Value, volume: &Value) -> State {
        let amount = |of: &Value, path: &str| {
            of.pointer(path).and_then(Value::as_str).and_then(|text| text.parse().ok())
        };
        let status = claim.pointer("/status/allocatedResourceStatuses/storage");
        State {
            wanted: amount(claim, "/spec/resources/requests/storage").unwrap_or_default(),
            has: amount(claim, "/status/capacity/storage").unwrap_or_default(),
            volume: amount(volume, "/spec/capacity/storage").unwrap_or_default(),
            allocated: amount(claim, "/status/allocatedResources/storage"),
            status: status.and_then(Value::as_str).unwrap_or_default().to_owned(),
            is_marked: !volume["metadata"]["annotations"][PRE_RESIZE_CAPACITY].is_null(),
        }
    }

    /// Decides the next step of the control plane, by the progress that the claim's status shows.
    fn next_step(&self) -> Step {
        let is_complete =
            self.has.compare(self.wanted).is_ge() && self.has.compare(self.volume).is_ge();
        if is_complete && self.is_marked {
            return Step::Unmark;
        }
        let status = &*self.status;
        // Whether the size of an earlier attempt is kept: it may have been reached in part.
        let keeps_size = match self.volume.compare(self.wanted).is_lt() {
            true => matches!(
                status,
                CONTROLLER_IN_PROGRESS | NODE_PENDING | NODE_IN_PROGRESS | NODE_INFEASIBLE
            ),
            false => match status {
                // The volume has the size already: the kubelet does the rest.
                NODE_IN_PROGRESS | NODE_PENDING => return Step::Nothing,
                NODE_INFEASIBLE => return Step::AwaitNode,
                status => matches!(status, CONTROLLER_IN_PROGRESS | CONTROLLER_INFEASIBLE | ""),
            },
        };
        Step::Expand(self.allocated.filter(|_| keeps_size).unwrap_or(self.wanted))
    }
}

/// Returns the patch of conditions: `new` is set if it is not true already, and the others about an
/// expansion are removed unless `keeps_others`.
/// Upstream: `MergeResizeConditionOnPVC`.
fn conditions_patch(claim: &Value, new: Option<Value>, keeps_others: bool) -> Vec<Value> {
    let known = claim.pointer("/status/conditions").and_then(Value::as_array);
    let known = known.map(Vec::as_slice).unwrap_or_default();
    let is_same_type = |condition: &Value, new: &Value| condition["type"] == new["type"];
    let is_obsolete = |condition: &&Value| {
        !keeps_others
            && CONDITIONS.iter().any(|name| condition["type"] == *name)
            && new.as_ref().is_none_or(|new| !is_same_type(condition, new))
    };
    let mut patch: Vec<Value> = known
        .iter()
        .filter(is_obsolete)
        .map(|condition| json!({ "type": condition["type"], "$patch": "delete" }))
        .collect();
    patch.extend(new.filter(|new| {
        !known.iter().any(|known| is_same_type(known, new) && known["status"] == new["status"])
    }));
    patch
}

/// Makes the error of a step: `what` failed.
fn step_error(what: &str, error: Error) -> Error {
    Error::other(format!("error {what}: {}", error.message()))
}

impl Expander {
    /// Takes the control plane's next step of the expansion of the volume of `claim`.
    pub(super) async fn expand(&self, claim: &PersistentVolumeClaim) -> Result<(), Error> {
        let start = self.clock.monotonic();
        let volumes = self.client.resource(&PersistentVolume::RESOURCE);
        let volume: Value = volumes.get(&ObjectKey::cluster(&claim.spec.volume_name)).await?;
        let claims = self.client.resource(&PersistentVolumeClaim::RESOURCE);
        let live: Value = claims.get(&claim.meta.key()).await?;
        let expanded = match State::read(&live, &volume).next_step() {
            Step::Nothing => return Ok(()),
            Step::Unmark => {
                let annotations = json!({ PRE_RESIZE_CAPACITY: null });
                return self
                    .patch_volume(
                        &volume,
                        json!({ "metadata": {
                    "annotations": annotations,
                } }),
                    )
                    .await;
            }
            Step::AwaitNode => self.await_node(live, &volume).await,
            Step::Expand(size) => self.expand_to(claim, live, &volume, size).await,
        };
        let driver = volume["spec"]["flexVolume"]["driver"].as_str().unwrap_or_default();
        let took = self.clock.monotonic() - start;
        operation_ended(driver, "expand_volume", expanded.is_ok(), false, took);
        expanded.inspect_err(|error| {
            self.recorder.warning(claim, "VolumeResizeFailed", error.message());
        })
    }

    /// Records the new size of a volume, and marks each stage in the claim's status. The kubelet
    /// does the work, unless it is a block volume.
    async fn expand_to(
        &self,
        claim: &PersistentVolumeClaim,
        live: Value,
        volume: &Value,
        size: Quantity,
    ) -> Result<(), Error> {
        let key = claim.meta.key();
        let driver = &volume["spec"]["flexVolume"]["driver"];
        let begun = self.condition("Resizing", None);
        let live = self.patch_claim(
            &live,
            Some(driver),
            conditions_patch(&live, Some(begun), false),
            json!({
                "allocatedResourceStatuses": { "storage": CONTROLLER_IN_PROGRESS },
                "allocatedResources": { "storage": size },
            }),
        );
        let live = live.await.map_err(|error| {
            step_error(&format!("updating pvc {key} with resize in progress"), error)
        })?;
        let capacity_patch = json!({ "spec": { "capacity": { "storage": size } } });
        let patched = self.patch_volume(volume, capacity_patch).await;
        patched.map_err(|error| step_error(&format!("updating pv for pvc {key}"), error))?;
        if volume["spec"]["volumeMode"] != "Block" {
            let awaited = self.await_node(live, volume).await;
            return awaited.map_err(|error| {
                step_error(&format!("marking pvc {key} for node expansion"), error)
            });
        }
        let finished = self.patch_claim(
            &live,
            None,
            conditions_patch(&live, None, false),
            json!({
                "allocatedResourceStatuses": { "storage": null },
                "capacity": { "storage": size },
            }),
        );
        let finished = finished.await;
        finished.map_err(|error| step_error(&format!("marking pvc {key} as resized"), error))?;
        let message = format!("ExpandVolume succeeded for volume {key}");
        self.recorder.normal(claim, "VolumeResizeSuccessful", message);
        Ok(())
    }

    /// Marks the claim, and its volume, so that the kubelet continues the expansion.
    /// Upstream: `markForPendingNodeExpansion`.
    async fn await_node(&self, live: Value, volume: &Value) -> Result<(), Error> {
        let message =
            "Waiting for user to (re-)start a pod to finish file system resize of volume on node.";
        let pending = self.condition("FileSystemResizePending", Some(message));
        let conditions = conditions_patch(&live, Some(pending), true);
        let status = json!({
            "allocatedResourceStatuses": { "storage": NODE_PENDING },
        });
        let text = |field: &str| live["metadata"][field].as_str().unwrap_or_default();
        let claim = ObjectKey::new(text("namespace"), text("name"));
        self.patch_claim(&live, None, conditions, status).await.map_err(|error| {
            step_error(&format!("marking pvc {claim} for node expansion"), error)
        })?;
        if !volume["metadata"]["annotations"][PRE_RESIZE_CAPACITY].is_null() {
            return Ok(());
        }
        let capacity = &live["status"]["capacity"]["storage"];
        let annotations = json!({ PRE_RESIZE_CAPACITY: capacity });
        let marked =
            self.patch_volume(volume, json!({ "metadata": { "annotations": annotations } }));
        marked.await.map_err(|error| {
            let name = volume["metadata"]["name"].as_str().unwrap_or_default();
            let capacity = capacity.as_str().unwrap_or_default();
            let what = format!(
                "updating pv {name} annotation ({PRE_RESIZE_CAPACITY}) with pre-resize capacity \
                 {capacity}"
            );
            step_error(&what, error)
        })
    }

    /// Builds a condition that is true from now on.
    fn condition(&self, name: &str, message: Option<&str>) -> Value {
        let mut condition = json!({
            "type": name, "status": "True", "lastTransitionTime": self.clock.now().to_string(),
        });
        if let Some(message) = message {
            condition["message"] = message.into();
        }
        condition
    }

    /// Patches a volume; an error has upstream's text.
    async fn patch_volume(&self, volume: &Value, patch: Value) -> Result<(), Error> {
        let name = volume["metadata"]["name"].as_str().unwrap_or_default();
        let volumes = self.client.resource(&PersistentVolume::RESOURCE);
        let patch = Patch::StrategicMerge(patch);
        let patched = volumes.patch::<Value>(&ObjectKey::cluster(name), &patch).await;
        patched.map(drop).map_err(|error| {
            let message = Error::from(error).message().to_owned();
            Error::other(format!("error Patching PV {name:?} with error : {message}"))
        })
    }

    /// Patches the claim's status at the version of `live`, and returns the claim. `driver` becomes
    /// the claim's resizer.
    async fn patch_claim(
        &self,
        live: &Value,
        driver: Option<&Value>,
        conditions: Vec<Value>,
        mut status: Value,
    ) -> Result<Value, Error> {
        let known = live.pointer("/status/conditions").and_then(Value::as_array);
        let names = known.into_iter().flatten().filter_map(|known| known["type"].as_str());
        patch_conditions(&mut status, names, conditions);
        let part = |name: &str| live["metadata"][name].as_str().unwrap_or_default();
        let key = ObjectKey::new(part("namespace"), part("name"));
        let mut metadata = Map::new();
        metadata.insert("resourceVersion".into(), part("resourceVersion").into());
        if let Some(driver) = driver {
            metadata.insert("annotations".into(), json!({ STORAGE_RESIZER: driver }));
        }
        self.patch_status(&key, json!({ "metadata": metadata, "status": status })).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_expansion_is_continued() {
        let gi = |count: u64| format!("{count}Gi").parse::<Quantity>().unwrap();
        // Wanted, had, of the volume, allocated; the status; the annotation.
        for (sizes, status, is_marked, expected) in [
            ((2, 1, 1, 0), "", false, Step::Expand(gi(2))),
            ((3, 1, 1, 2), CONTROLLER_IN_PROGRESS, false, Step::Expand(gi(2))),
            ((3, 1, 1, 2), CONTROLLER_INFEASIBLE, false, Step::Expand(gi(3))),
            ((3, 1, 2, 2), NODE_PENDING, false, Step::Expand(gi(2))),
            ((2, 1, 2, 2), NODE_PENDING, true, Step::Nothing),
            ((2, 1, 2, 2), NODE_IN_PROGRESS, true, Step::Nothing),
            ((2, 1, 2, 2), NODE_INFEASIBLE, true, Step::AwaitNode),
            ((2, 1, 3, 3), CONTROLLER_IN_PROGRESS, false, Step::Expand(gi(3))),
            ((2, 1, 3, 3), "", false, Step::Expand(gi(3))),
            ((2, 2, 2, 2), "", true, Step::Unmark),
        ] {
            let (wanted, has, volume, allocated) = sizes;
            let state = State {
                wanted: gi(wanted),
                has: gi(has),
                volume: gi(volume),
                allocated: (allocated > 0).then(|| gi(allocated)),
                status: status.to_owned(),
                is_marked,
            };
            assert_eq!(state.next_step(), expected, "{sizes:?} {status}");
        }
    }

    #[test]
    fn conditions_of_an_expansion_replace_each_other() {
        let claim = json!({ "status": { "conditions": [
            { "type": "Other", "status": "True" },
            { "type": "Resizing", "status": "True" },
            { "type": "NodeResizeError", "status": "True" },
        ] } });
        let resizing = json!({ "type": "Resizing", "status": "True" });
        let pending = json!({ "type": "FileSystemResizePending", "status": "True" });
        let gone = |name: &str| json!({ "type": name, "$patch": "delete" });
        assert_eq!(conditions_patch(&claim, Some(resizing), false), [gone("NodeResizeError")]);
        assert_eq!(conditions_patch(&claim, Some(pending.clone()), true), [pending]);
        assert_eq!(
            conditions_patch(&claim, None, false),
            [gone("Resizing"), gone("NodeResizeError")]
        );
    }
}
