//! The rules of each kind for writes: whether an update may create an object or leave out the
//! resource version, and which metadata it may change. Upstream: the strategies of the registries.

use serde_json::{Value, json};

use crate::failures;
use crate::kinds::Kind;
use crate::object::{is_deleting, list, remove, text};
use crate::request::call::Call;
use crate::status::{ApiResult, Cause};

/// Checks that an object is of the request's version and kind, and fills in both and `metadata` if
/// they are absent.
pub fn check_type(kind: &Kind, object: &mut Value) -> ApiResult<()> {
    if !object.is_object() || !object.get("metadata").is_none_or(|m| m.is_object() || m.is_null()) {
        return Err(failures::bad_request("the object provided is unrecognized: it is no object"));
    }
    let (version, name) = (kind.resource.api_version(), &*kind.resource.kind);
    let (has_version, has_name) = (text(object, "/apiVersion"), text(object, "/kind"));
    if (!has_version.is_empty() && has_version != version)
        || (!has_name.is_empty() && has_name != name)
    {
        return Err(failures::bad_request(format!(
            "the API version in the data ({has_version}, Kind={has_name}) does not match the expected API version ({version}, Kind={name})"
        )));
    }
    object["apiVersion"] = version.into();
    object["kind"] = name.into();
    if !object["metadata"].is_object() {
        object["metadata"] = json!({});
    }
    Ok(())
}

/// Refuses an object for these causes. Errors: 422, if there are any.
pub fn refuse(kind: &Kind, name: &str, causes: &[Cause]) -> ApiResult<()> {
    if causes.is_empty() {
        return Ok(());
    }
    Err(failures::invalid(&kind.resource.group, &kind.resource.kind, name, causes))
}

/// Checks that the object has the name that the path has.
pub fn check_name(call: &Call, object: &Value) -> ApiResult<()> {
    let name = text(object, "/metadata/name");
    if name == call.name {
        return Ok(());
    }
    Err(failures::bad_request(format!(
        "the name of the object ({name}) does not match the name on the URL ({})",
        call.name
    )))
}

/// Returns whether an update creates an object that does not exist. Upstream:
/// `AllowCreateOnUpdate`.
pub fn allows_create_on_update(kind: &Kind) -> bool {
    match &*kind.resource.group {
        "" => matches!(&*kind.resource.plural, "endpoints" | "events" | "limitranges" | "services"),
        "coordination.k8s.io" | "rbac.authorization.k8s.io" => true,
        "node.k8s.io" => true,
        _ => false,
    }
}

/// Returns whether an update may leave out the resource version. Upstream:
/// `AllowUnconditionalUpdate`.
pub fn allows_unconditional_update(kind: &Kind) -> bool {
    let strict = matches!(
        (&*kind.resource.group, &*kind.resource.plural),
        ("admissionregistration.k8s.io" | "coordination.k8s.io" | "node.k8s.io" | "policy", _)
            | ("apiextensions.k8s.io" | "apiregistration.k8s.io", _)
            | ("certificates.k8s.io", "clustertrustbundles" | "podcertificaterequests")
            | (
                "storage.k8s.io",
                "csidrivers" | "csinodes" | "csistoragecapacities" | "volumeattachments"
            )
    );
    !strict && !kind.is_custom()
}

/// Returns the metadata fields that the status endpoint does not change. Upstream:
/// `ResetObjectMetaForStatus` and the strategies that have the same effect.
pub fn kept_by_status(kind: &Kind) -> &'static [&'static str] {
    const ALL: &[&str] = &["labels", "annotations", "finalizers", "ownerReferences"];
    match (&*kind.resource.group, &*kind.resource.plural) {
        ("apps", "deployments") => &["labels"],
        ("apiextensions.k8s.io" | "apiregistration.k8s.io", _) => ALL,
        // Here the status endpoint changes metadata too, as upstream's strategies let it.
        ("certificates.k8s.io", "certificatesigningrequests") => &[],
        ("certificates.k8s.io" | "flowcontrol.apiserver.k8s.io", _) => ALL,
        _ if kind.is_custom() => ALL,
        _ => &[],
    }
}

/// Checks that the object is in the request's namespace, and fills it in; an object of the cluster
/// gets none.
pub fn check_namespace(call: &Call, object: &mut Value) -> ApiResult<()> {
    let metadata = &mut object["metadata"];
    if !call.kind.resource.namespaced {
        remove(metadata, "namespace");
        return Ok(());
    }
    let own = metadata["namespace"].as_str().unwrap_or_default();
    if !own.is_empty() && own != call.namespace {
        return Err(failures::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    metadata["namespace"] = call.namespace.as_str().into();
    Ok(())
}

pub fn is_definition(kind: &Kind) -> bool {
    kind.resource.plural == "customresourcedefinitions"
        && kind.resource.group == "apiextensions.k8s.io"
}

pub fn is_namespace(kind: &Kind) -> bool {
    kind.resource.plural == "namespaces" && kind.resource.group.is_empty()
}

/// Returns a fault unless a namespace's phase says correctly whether it is being deleted. Upstream:
/// `ValidateNamespaceStatusUpdate`.
pub fn wrong_phase(namespace: &Value) -> Option<Cause> {
    let (right, detail) = match is_deleting(namespace) {
        true => ("Terminating", "may only be 'Terminating' if `deletionTimestamp` is not empty"),
        false => ("Active", "may only be 'Active' if `deletionTimestamp` is empty"),
    };
    let phase = text(namespace, "/status/phase");
    (phase != right).then(|| failures::invalid_value("status.Phase", &phase.into(), detail))
}

/// Prepares a new namespace: it gets the finalizer `kubernetes`, the phase `Active`, and a label
/// with its name.
pub fn initialize_namespace(namespace: &mut Value) {
    if !namespace["spec"].is_object() {
        namespace["spec"] = json!({});
    }
    let finalizers = &mut namespace["spec"]["finalizers"];
    match finalizers.as_array_mut() {
        Some(finalizers) if finalizers.iter().any(|f| f == "kubernetes") => {}
        Some(finalizers) => finalizers.push("kubernetes".into()),
        None => *finalizers = json!(["kubernetes"]),
    }
    namespace["status"] = json!({ "phase": "Active" });
    let name = text(namespace, "/metadata/name").to_owned();
    if !namespace["metadata"]["labels"].is_object() {
        namespace["metadata"]["labels"] = json!({});
    }
    namespace["metadata"]["labels"]["kubernetes.io/metadata.name"] = name.into();
}

/// Returns whether an update removes the object: it is being deleted, its grace period is 0, and it
/// has no finalizers left, also not those in the spec of a namespace. Upstream:
/// `ShouldDeleteDuringUpdate`.
pub fn is_removed_by_update(kind: &Kind, object: &Value) -> bool {
    let held_by_spec = is_namespace(kind) && !list(object, "/spec/finalizers").is_empty();
    is_deleting(object)
        && list(object, "/metadata/finalizers").is_empty()
        && object["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0
        && !held_by_spec
}
