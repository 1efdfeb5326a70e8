//! Protects new PodGroups while pods belong to them.
//! Upstream: `plugin/pkg/admission/scheduling/podgroupprotection`.

use serde_json::{Value, json};

use crate::kinds::Kind;
use crate::object::list;

const FINALIZER: &str = "scheduling.k8s.io/podgroup-protection";

/// Adds the finalizer that its controller removes to `object`, if it is a new PodGroup.
pub fn protect(kind: &Kind, object: &mut Value) {
    let resource = &kind.resource;
    if resource.group != "scheduling.k8s.io" || resource.plural != "podgroups" {
        return;
    }
    let mut finalizers = list(object, "/metadata/finalizers").to_vec();
    if !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
        finalizers.push(FINALIZER.into());
        object["metadata"]["finalizers"] = json!(finalizers);
    }
}
