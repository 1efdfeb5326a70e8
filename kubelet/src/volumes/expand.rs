//! Makes the file systems of volumes as large as their volumes. Upstream: `NodeExpander`,
//! `resize_util.go`.

use std::collections::BTreeMap;
use std::path::Path;

use grpc::Code;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kube_controller_manager::client::Patch;
use kube_controller_manager::objects::{ObjectKey, Quantity};
use serde_json::{Value, json};

use super::Error;
use super::claim::{Bound, CLAIMS};
use super::csi::{CsiCall, CsiVolume};
use super::manager::Inner;
use crate::causes::chain;
use crate::csi::{self, Publish};
use crate::events;
use crate::pod::{Pod, PodExt};
use crate::whole_object::WholeObject;

const STORAGE: &str = "storage";
/// The conditions that are about sizes.
const CONDITIONS: [&str; 4] =
    ["Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"];

/// An expansion that is due.
#[derive(Clone, Debug, PartialEq)]
struct Plan {
    size: ApiQuantity,
    /// The claim says how far the expansion is.
    has_status: bool,
}

/// Returns whether a volume is larger than its claim says, and this node has to do the rest.
pub(super) fn is_due(bound: &Bound) -> bool {
    plan(bound).is_some()
}

/// Returns the amount of storage in a list of resources, parsed and as the list has it.
fn size(all: Option<&BTreeMap<String, ApiQuantity>>) -> Option<(Quantity, ApiQuantity)> {
    let quantity = all?.get(STORAGE)?;
    Some((quantity.0.parse().ok()?, quantity.clone()))
}

/// Decides whether the node has to expand a CSI volume for its claim, and to which size. `None`: it
/// need not, or the expansion is not at the node yet. Upstream: `expandVolumeDuringMount`,
/// `checkForRecoveryFromExpansion`, `runPreCheck`.
fn plan(bound: &Bound) -> Option<Plan> {
    if bound.read_only || bound.volume.spec.as_ref()?.csi.is_none() {
        return None;
    }
    let status = bound.claim.status.as_ref()?;
    let (of_volume, wanted) = size(bound.volume.spec.as_ref()?.capacity.as_ref())?;
    let of_claim = size(status.capacity.as_ref()).map(|(size, _)| size).unwrap_or_default();
    if of_claim.compare(of_volume).is_ge() {
        return None;
    }
    let progress = status.allocated_resource_statuses.as_ref().and_then(|all| all.get(STORAGE));
    if progress.is_none() && status.allocated_resources.is_none() {
        return Some(Plan { size: wanted, has_status: false });
    }
    let is_here =
        matches!(progress.map(String::as_str), Some("NodeResizePending" | "NodeResizeInProgress"));
    let (_, allocated) = size(status.allocated_resources.as_ref())?;
    is_here.then_some(Plan { size: allocated, has_status: true })
}

/// What the claim says of an expansion.
#[derive(Clone, Copy)]
enum Progress<'a> {
    Begun,
    Finished(&'a ApiQuantity),
    Failed { text: &'a str, is_infeasible: bool },
}

/// Builds the change of a claim's status that reports the progress of its expansion. `now`: the
/// time of a new condition.
fn change(claim: &core::PersistentVolumeClaim, progress: Progress<'_>, now: &str) -> Value {
    let status = claim.status.clone().unwrap_or_default();
    let conditions = status.conditions.unwrap_or_default();
    let as_json = |conditions: Vec<core::PersistentVolumeClaimCondition>| json!(conditions);
    match progress {
        Progress::Begun => {
            json!({"allocatedResourceStatuses": {STORAGE: "NodeResizeInProgress"}})
        }
        Progress::Finished(size) => {
            let rest = conditions.into_iter().filter(|c| !CONDITIONS.contains(&&*c.type_));
            json!({
                "capacity": {STORAGE: size.0},
                "allocatedResourceStatuses": {STORAGE: null},
                "conditions": as_json(rest.collect()),
            })
        }
        Progress::Failed { text, is_infeasible } => {
            let is_it = |c: &core::PersistentVolumeClaimCondition| {
                c.type_ == "NodeResizeError" && c.status == "True"
            };
            let mut all = as_json(conditions.clone());
            if !conditions.iter().any(is_it) {
                let rest = conditions.into_iter().filter(|c| c.type_ != "NodeResizeError");
                all = as_json(rest.collect());
                if let Some(list) = all.as_array_mut() {
                    list.push(json!({
                        "type": "NodeResizeError", "status": "True", "lastTransitionTime": now,
                        "message": format!("failed to expand pvc with {text}"),
                    }));
                }
            }
            let mut change = json!({"conditions": all});
            if is_infeasible {
                change["allocatedResourceStatuses"] = json!({STORAGE: "NodeResizeInfeasible"});
            }
            change
        }
    }
}

impl Inner {
    /// Expands a published volume if that is due, and writes the progress to its claim.
    pub(super) async fn expand(
        &self,
        call: &CsiCall<'_>,
        pod: &Pod,
        volume: &CsiVolume,
        bound: &Bound,
        path: &Path,
        staging: &str,
    ) -> Result<(), Error> {
        let Some(plan) = plan(bound).filter(|_| call.able.expands) else { return Ok(()) };
        if self.state.lock().not_expanded.contains(&volume.device()) {
            return Ok(());
        }
        let name = bound.name();
        let in_step = Error::in_step("NodeExpandVolume.NodeExpandVolume failed", name);
        let mut claim = bound.claim.clone();
        if plan.has_status {
            let begun = self.write_progress(call, &claim, Progress::Begun).await;
            claim = begun.map_err(&in_step)?.object().clone();
        }
        let bytes = plan.size.0.parse::<Quantity>().map(Quantity::value).unwrap_or_default();
        let mut stage = volume.call(path, None);
        stage.secrets = self.expand_secret(call, volume).await.map_err(&in_step)?;
        let request =
            Publish { stage, staging_path: staging.to_owned(), read_only: volume.read_only };
        let Err(error) = call.driver.expand(call.able, request, bytes).await else {
            let node = self.own.name();
            let message =
                format!("MountVolume.NodeExpandVolume succeeded for volume {name:?} {node}");
            events::normal(pod, None, "FileSystemResizeSuccessful", &message);
            events::claim_normal(&claim, "FileSystemResizeSuccessful", &message);
            let done = Progress::Finished(&plan.size);
            self.write_progress(call, &claim, done).await.map_err(in_step)?;
            return Ok(());
        };
        if plan.has_status && error.is_final() {
            let (text, is_infeasible) = (chain(&error), is_infeasible(&error));
            let failed = Progress::Failed { text: &text, is_infeasible };
            if let Err(error) = self.write_progress(call, &claim, failed).await {
                log::error!("{}", chain(&error));
            }
        }
        match error.code() {
            // Not while the volume is in use: the pod starts with the smaller one.
            Some(Code::FailedPrecondition) => {
                log::error!("pod {}: volume {name}: {}", pod.display_name(), chain(&error));
                self.state.lock().not_expanded.insert(volume.device());
                Ok(())
            }
            _ => Err(in_step(error.into())),
        }
    }

    /// Writes to the claim how far its expansion is.
    async fn write_progress(
        &self,
        call: &CsiCall<'_>,
        claim: &core::PersistentVolumeClaim,
        progress: Progress<'_>,
    ) -> Result<WholeObject<core::PersistentVolumeClaim>, Error> {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let metadata = &claim.metadata;
        let key = ObjectKey::new(&text(&metadata.namespace), &text(&metadata.name));
        let now = self.now();
        let change = json!({
            "metadata": {"resourceVersion": metadata.resource_version},
            "status": change(claim, progress, &now),
        });
        let claims = call.server.client.resource(&CLAIMS).subresource("status");
        claims
            .patch(&key, &Patch::Merge(change))
            .await
            .map_err(|source| Error::WriteClaim { name: text(&metadata.name), source })
    }
}

/// Returns whether a driver's error means that the expansion can never succeed. Upstream:
/// `isInfeasibleError`.
fn is_infeasible(error: &csi::Error) -> bool {
    matches!(error.code(), Some(Code::InvalidArgument | Code::OutOfRange | Code::NotFound))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn bound(of_volume: &str, status: Value, read_only: bool) -> Bound {
        let volume = json!({"metadata": {"name": "v"}, "spec": {
            "capacity": {"storage": of_volume}, "csi": {"driver": "d", "volumeHandle": "h"}}});
        Bound {
            claim: Arc::new(serde_json::from_value(json!({"status": status})).expect("a claim")),
            volume: Arc::new(serde_json::from_value(volume).expect("a volume")),
            read_only,
            migrated: false,
        }
    }

    #[test]
    fn volumes_are_expanded_that_are_larger_than_their_claims_say() {
        let with = |progress: &str| {
            json!({"capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"},
                   "allocatedResourceStatuses": {"storage": progress}})
        };
        let plan_of =
            |size: &str, has_status| Plan { size: ApiQuantity(size.to_owned()), has_status };
        for (volume, status, read_only, expected) in [
            ("1Gi", json!({"capacity": {"storage": "1Gi"}}), false, None),
            ("1024Mi", json!({"capacity": {"storage": "1Gi"}}), false, None),
            ("2Gi", json!({"capacity": {"storage": "1Gi"}}), false, Some(plan_of("2Gi", false))),
            ("2Gi", json!({"capacity": {"storage": "1Gi"}}), true, None),
            ("3Gi", with("NodeResizePending"), false, Some(plan_of("2Gi", true))),
            ("3Gi", with("NodeResizeInProgress"), false, Some(plan_of("2Gi", true))),
            ("3Gi", with("ControllerResizeInProgress"), false, None),
            ("3Gi", with("NodeResizeInfeasible"), false, None),
        ] {
            let bound = bound(volume, status.clone(), read_only);
            assert_eq!(plan(&bound), expected, "{volume} {status}");
        }
    }

    #[test]
    fn claims_say_how_far_the_expansion_is() {
        let other = json!({"type": "Unused", "status": "True"});
        let pending = json!({"type": "FileSystemResizePending", "status": "True"});
        let claim: core::PersistentVolumeClaim =
            serde_json::from_value(json!({"status": {"conditions": [other, pending]}}))
                .expect("a claim");
        let size = ApiQuantity("2Gi".to_owned());
        let finished = json!({
            "capacity": {"storage": "2Gi"}, "allocatedResourceStatuses": {"storage": null},
            "conditions": [other],
        });
        assert_eq!(change(&claim, Progress::Finished(&size), "t"), finished);
        let failed = |is_infeasible| Progress::Failed { text: "no", is_infeasible };
        let condition = json!({"type": "NodeResizeError", "status": "True",
            "lastTransitionTime": "t", "message": "failed to expand pvc with no"});
        let conditions = json!([other, pending, condition]);
        assert_eq!(change(&claim, failed(false), "t"), json!({"conditions": conditions}));
        let infeasible = change(&claim, failed(true), "t");
        let status = &infeasible["allocatedResourceStatuses"]["storage"];
        assert_eq!(status, "NodeResizeInfeasible");
    }
}
