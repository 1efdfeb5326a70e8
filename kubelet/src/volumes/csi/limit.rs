//! The volumes that a node may have, when an attachment fails for want of room.

use k8s_openapi::api::storage::v1 as storage;
use kube_controller_manager::objects::ObjectKey;

use super::{ATTACHMENTS, Handle};
use crate::causes::chain;
use crate::csi::attachment_name;
use crate::volumes::manager::Inner;

/// gRPC's code, as an attachment has it.
const RESOURCE_EXHAUSTED: i32 = 8;

impl Inner {
    /// Returns whether the attachment of a volume has failed because the node has as many volumes
    /// as it may have. If so, writes the driver's present limit to the CSINode. False also for
    /// drivers whose CSIDriver has no `nodeAllocatableUpdatePeriodSeconds`, and if the attachment
    /// cannot be read. Upstream: `VerifyExhaustedResource`.
    pub(in crate::volumes) async fn exceeds_limit(&self, of: &Handle) -> bool {
        let Some(server) = &self.server else { return false };
        let object = server.csi_drivers.get(&of.driver).ok();
        if object.and_then(|object| object.allocatable_period()).is_none() {
            return false;
        }
        let name = attachment_name(&of.handle, &of.driver, self.own.name());
        let found = server.client.resource(&ATTACHMENTS).get(&ObjectKey::cluster(&name)).await;
        let attachment: storage::VolumeAttachment = match found {
            Ok(attachment) => attachment,
            Err(error) => {
                log::error!("Failed to get volume attachment {name}: {}", chain(&error));
                return false;
            }
        };
        if !is_exhausted(&attachment) {
            return false;
        }
        if let Err(error) = server.csi_node.refresh(&of.driver, &self.drivers).await {
            log::error!("Failed to update CSIDriver {}: {}", of.driver, chain(&error));
        }
        true
    }
}

/// Returns whether an attachment has failed with RESOURCE_EXHAUSTED. Upstream:
/// `isResourceExhaustError`.
fn is_exhausted(attachment: &storage::VolumeAttachment) -> bool {
    let status = attachment.status.as_ref();
    let error = status.and_then(|status| status.attach_error.as_ref());
    error.and_then(|error| error.error_code) == Some(RESOURCE_EXHAUSTED)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn only_an_exhausted_node_exceeds_its_limit() {
        for (status, expected) in [
            (json!({"attached": false, "attachError": {"errorCode": 8}}), true),
            (json!({"attached": false, "attachError": {"errorCode": 13}}), false),
            (json!({"attached": false, "attachError": {"message": "m"}}), false),
            (json!({"attached": true}), false),
            (Value::Null, false),
        ] {
            let attachment = serde_json::from_value(json!({
                "metadata": {"name": "a"},
                "spec": {"attacher": "d", "nodeName": "n", "source": {}},
                "status": status,
            }));
            let attachment = attachment.expect("an attachment");
            assert_eq!(is_exhausted(&attachment), expected, "{attachment:?}");
        }
    }
}
