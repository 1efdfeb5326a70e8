//! The annotations and finalizers of volumes and claims.
//! Upstream: `component-helpers/storage/volume`.

use crate::objects::Labels;

/// On a claim: the binding was completed once. Only its presence counts.
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// On a volume or a claim: the controller made the binding, not the user. Only its presence counts.
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// On a claim: the node that the scheduler has chosen.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// On a volume: the plugin or driver that provisioned it.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// On a volume or a claim: the CSI driver that has taken the place of an in-tree plugin.
pub const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";
/// On a claim: the plugin or driver that is to provision its volume.
pub const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// The former name of [`STORAGE_PROVISIONER`]; both are set.
pub const BETA_STORAGE_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// On a claim: the driver that is to resize its volume.
pub const STORAGE_RESIZER: &str = "volume.kubernetes.io/storage-resizer";
/// On a claim: overrides `spec.storageClassName`.
pub const BETA_STORAGE_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
/// On a volume: the claim's capacity before an expansion whose end the node has not confirmed.
pub const PRE_RESIZE_CAPACITY: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";

/// Keeps a volume until the external provisioner has deleted the storage behind it.
pub const EXTERNAL_FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
/// Keeps a volume until the in-tree plugin has deleted the storage behind it.
pub const IN_TREE_FINALIZER: &str = "kubernetes.io/pv-controller";

/// The prefix of the names of in-tree plugins.
pub const IN_TREE_PREFIX: &str = "kubernetes.io/";

/// Returns `annotations` with `name` set to `value`.
pub fn with_annotation(annotations: &Labels, name: &str, value: &str) -> Labels {
    let others = annotations.iter().filter(|(known, _)| *known != name);
    others.chain([(name, value)]).collect()
}

/// Returns `annotations` without `name`.
pub fn without_annotation(annotations: &Labels, name: &str) -> Labels {
    annotations.iter().filter(|(known, _)| *known != name).collect()
}
