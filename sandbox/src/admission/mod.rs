//! Admission plugins and allocators that check or change new objects: service accounts, pod
//! priorities, cluster IPs, classes of claims, the protection of PodGroups, quotas; and policies,
//! which check every write.

pub mod accounts;
pub mod cluster_ip;
pub mod pod_group;
pub mod policies;
pub mod priority;
pub mod quota;
pub mod storage_class;
mod usage;

use serde_json::Value;

use crate::failures;
use crate::kinds::Kind;
use crate::object::text;
use crate::status::ApiError;

pub fn is_pod(kind: &Kind) -> bool {
    is_core(kind, "pods")
}

fn is_core(kind: &Kind, plural: &str) -> bool {
    kind.resource.group.is_empty() && kind.resource.plural == plural
}

/// Returns the 403 of a plugin that refuses `object`.
pub fn forbidden(kind: &Kind, object: &Value, why: &str) -> ApiError {
    let named = ["/metadata/name", "/metadata/generateName"].map(|at| text(object, at));
    let name = named.into_iter().find(|name| !name.is_empty()).unwrap_or("Unknown");
    failures::forbidden(&kind.resource, name, why)
}
