//! The objects in the cache: lean views of the kinds, and values computed from objects.
//!
//! A view holds the fields that some controller reads; all others in the JSON are skipped without
//! an allocation. A view with skipped fields is never written back: such kinds are created, patched
//! and deleted, and only their status is replaced (see [`WholeMeta`]). Endpoints and EndpointSlices
//! are held whole, and replaced. Upstream: `k8s.io/api` and `k8s.io/apimachinery`, whose types hold
//! all fields.
//!
//! A type of your own is a view if it is a [`Resource`] and an [`Object`]:
//! [`writing_a_controller`](crate::guide::writing_a_controller) shows one.
//!
//! ```
//! use kube_controller_manager::objects::{Labels, ObjectKey, Pod, Selector, SelectorError};
//!
//! let json = r#"{ "metadata": { "name": "web-1", "namespace": "default",
//!     "labels": { "app": "web" } }, "spec": { "nodeName": "node-1" } }"#;
//! let pod: Pod = serde_json::from_str(json).expect("a pod");
//! assert_eq!(pod.meta.key(), ObjectKey::new("default", "web-1"));
//!
//! let selector: Selector = "app in (web, api), tier!=db".parse()?;
//! assert!(selector.matches(&pod.meta.labels));
//! assert!(!selector.matches(&Labels::default()));
//! # Ok::<(), SelectorError>(())
//! ```

pub mod golang;
mod values;
mod views;
mod wire;

pub use arcstr::ArcStr;
pub use values::address::{AddressList, AddressText, parse_ip, parse_ipv6};
pub use values::condition::{Condition, patch_conditions};
pub use values::intern::{Interned, Istr, Labels};
pub(crate) use values::intern::{Pool, shared};
pub use values::key::{ObjectKey, ObjectName, Uid};
pub use values::label_syntax::{
    is_dns1123_subdomain, is_label_key, is_label_value, label_key_fault, label_value_fault,
};
pub use values::meta::{Identity, Meta, PartialObjectMetadata, WholeMeta, Written};
pub use values::node_selector::{NodeAffinity, NodeSelector};
pub use values::owner::OwnerReference;
pub use values::quantity::{Format, Quantity, QuantityError, stored_quantity};
pub use values::raw::RawObject;
pub use values::resource_list::ResourceList;
pub use values::selector::{LabelSelector, Requirement, Selector, SelectorError};
pub use values::taint::{NO_EXECUTE, NO_SCHEDULE, Taint, Toleration, untolerated};
pub use values::template::Template;
pub use values::time::{ParseTimestampError, Seconds, Timestamp, micro_time};
pub use views::bootstrap_token::{BootstrapToken, BootstrapTokenData};
pub use views::certificate_signing_request::{
    CertificateSigningRequest, CertificateSigningRequestSpec, CertificateSigningRequestStatus,
    RequestCondition,
};
pub use views::cluster_role::{AggregationRule, ClusterRole, PolicyRule};
pub use views::config_map::ConfigMap;
pub use views::controller_revision::{ControllerRevision, RevisionData};
pub use views::cron_job::{CronJob, CronJobSpec, CronJobStatus, JobTemplate, JobTemplateMeta};
pub use views::csi_driver::CSIDriver;
pub use views::daemon_set::{
    DaemonSet, DaemonSetSpec, DaemonSetStatus, DaemonSetUpdateStrategy, Placement,
};
pub use views::deployment::{
    Deployment, DeploymentSpec, DeploymentStatus, DeploymentStrategy, RollingUpdate,
};
pub use views::device_class::{DeviceClass, DeviceClassSpec};
pub use views::device_taint_rule::{
    DeviceSelector, DeviceTaintRule, DeviceTaintRuleSpec, DeviceTaintRuleStatus, TaintRuleCondition,
};
pub use views::endpoints::{
    Endpoint, EndpointAddress, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice,
    EndpointSubset, Endpoints, Hint, SlicePort, TargetRef,
};
pub use views::horizontal_pod_autoscaler::{
    AutoscalerCondition, Behavior, CrossVersionObjectReference, HorizontalPodAutoscaler,
    HorizontalPodAutoscalerSpec, HorizontalPodAutoscalerStatus, MetricIdentifier, MetricSource,
    MetricSpec, MetricTarget, ScalingPolicy, ScalingRules,
};
pub use views::job::{
    Job, JobCondition, JobSpec, JobStatus, OnExitCodes, OnPodCondition, PodFailurePolicy,
    PodFailurePolicyRule, SuccessPolicy, SuccessPolicyRule, UncountedTerminatedPods,
};
pub use views::lease::{Lease, LeaseSpec};
pub use views::lease_candidate::{LeaseCandidate, LeaseCandidateSpec};
pub use views::namespace::{Namespace, NamespaceSpec, NamespaceStatus};
pub use views::node::{AttachedVolume, Node, NodeCondition, NodeSpec, NodeStatus};
pub use views::persistent_volume::{
    ClaimRef, LocalSource, PersistentVolume, PersistentVolumeSpec, PersistentVolumeStatus,
};
pub use views::persistent_volume_claim::{
    ClaimCondition, PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeClaimStatus,
};
pub use views::pod::{
    ClaimSource, ClaimVolume, ContainerRequests, InlineVolume, NamedPort, Pod, PodCondition,
    PodPhase, PodResourceClaim, PodShape, PodSpec, PodState, PodStatus, RareFields, RareStatus,
    ResourceClaimStatus, Sidecar, Terminated,
};
pub use views::pod_certificate_request::PodCertificateRequest;
pub use views::pod_disruption_budget::{
    BudgetCondition, PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus,
};
pub use views::pod_group::{PodGroup, PodGroupSpec, PodGroupStatus};
pub use views::pod_quota::PodQuota;
pub use views::policy::{
    ExpressionWarning, MatchConstraints, NamedRuleWithOperations, ParamKind, TypeChecking,
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicySpec, ValidatingAdmissionPolicyStatus,
    Validation, Variable,
};
pub use views::replicaset::{ReplicaSet, ReplicaSetSpec, ReplicaSetStatus};
pub use views::replication_controller::ReplicationController;
pub use views::resource_claim::{
    AllocatedDevice, Allocation, ClaimConsumer, DeviceToleration, ResourceClaim, ResourceClaimSpec,
    ResourceClaimUse,
};
pub use views::resource_claim_template::ResourceClaimTemplate;
pub use views::resource_pool_status_request::{
    RequestEnd, ResourcePoolStatusRequest, ResourcePoolStatusRequestSpec,
    ResourcePoolStatusRequestStatus,
};
pub use views::resource_quota::{
    Amounts, ResourceQuota, ResourceQuotaSpec, ResourceQuotaStatus, ScopeRequirement,
};
pub use views::resource_slice::{
    DeviceTaint, ResourcePool, ResourceSlice, ResourceSliceSpec, SliceDevice,
};
pub use views::scale::Scale;
pub use views::selinux_pod::{LabelledMount, SelinuxPod, SelinuxShape};
pub use views::service::{Service, ServicePort, ServiceSpec, TargetPort};
pub use views::service_account::{ServiceAccount, TokenData, TokenSecret};
pub use views::service_cidr::{IPAddress, ServiceCIDR, ServiceCidrSpec, ServiceCidrStatus};
pub use views::stateful_set::{
    ClaimRetentionPolicy, ClaimTemplate, RollingUpdateStatefulSet, StatefulSet,
    StatefulSetOrdinals, StatefulSetSpec, StatefulSetStatus, StatefulSetUpdateStrategy,
};
pub use views::storage_class::StorageClass;
pub use views::storage_version::{ServerStorageVersion, StorageVersion, StorageVersionStatus};
pub use views::storage_version_migration::{
    GroupResource, StorageVersionMigration, StorageVersionMigrationSpec,
    StorageVersionMigrationStatus,
};
pub use views::volume_attachment::{VolumeAttachment, VolumeAttachmentStatus};
pub use views::volume_attributes_class::VolumeAttributesClass;
pub use views::volume_source::{InTreeKind, VolumeSource};
pub use views::workload::{PodGroupTemplate, Workload};
pub(crate) use wire::messages;
pub use wire::parts::{Bookmark, ListPart, WatchEvent};
pub use wire::protobuf;
pub use wire::resource::{DecodeError, Encoded, Form, Object, Resource, ResourceType, decode};
pub(crate) use wire::resource::{from_json, null_as_default, resource};
