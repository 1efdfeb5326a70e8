//! What the cache holds: lean views of the kinds, and what is computed from objects.
//!
//! A view holds what some controller reads; everything else in the JSON is skipped without an
//! allocation. What a view left out is never written back: such kinds are created, patched and
//! deleted, and their status alone is replaced (see [`WholeMeta`]). Endpoints and EndpointSlices are
//! held whole, and replaced.

mod cluster_role;
mod deployment;
mod device_class;
mod endpoints;
mod intern;
mod key;
pub(crate) mod messages;
mod meta;
mod namespace;
mod node;
mod owner;
mod persistent_volume_claim;
mod pod;
mod pod_quota;
mod policy;
pub mod protobuf;
mod quantity;
mod replicaset;
mod replication_controller;
mod resource;
mod resource_claim;
mod resource_list;
mod resource_quota;
mod selector;
mod service;
mod service_account;
mod service_cidr;
mod template;
mod time;

pub use cluster_role::{AggregationRule, ClusterRole, PolicyRule};
pub use deployment::{Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdate};
pub use device_class::{DeviceClass, DeviceClassSpec};
pub use endpoints::{
    Endpoint, EndpointAddress, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice,
    EndpointSubset, Endpoints, Hint, SlicePort, TargetRef,
};
pub use intern::{Interned, Istr, Labels};
pub use key::{ObjectKey, ObjectName, Uid};
pub use meta::{Meta, PartialObjectMetadata, WholeMeta};
pub use namespace::{Namespace, NamespaceSpec};
pub use node::{Node, NodeSpec, NodeStatus, Taint};
pub use owner::OwnerReference;
pub use persistent_volume_claim::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeClaimStatus,
};
pub use pod::{
    NamedPort, Pod, PodPhase, PodShape, PodSpec, PodStatus, ReadyCondition, Sidecar, parse_ip,
};
pub use pod_quota::PodQuota;
pub use policy::{
    ExpressionWarning, MatchConstraints, NamedRuleWithOperations, ParamKind, TypeChecking,
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicySpec, ValidatingAdmissionPolicyStatus,
    Validation, Variable,
};
pub use quantity::{Format, Quantity, QuantityError, stored_quantity};
pub use replicaset::{ReplicaSet, ReplicaSetSpec, ReplicaSetStatus};
pub use replication_controller::ReplicationController;
pub use resource::{Encoded, Form, Object, Resource, ResourceType};
pub(crate) use resource::{null_as_default, resource};
pub use resource_claim::ResourceClaim;
pub use resource_list::ResourceList;
pub use resource_quota::{
    Amounts, ResourceQuota, ResourceQuotaSpec, ResourceQuotaStatus, ScopeRequirement,
};
pub use selector::{LabelSelector, Requirement, Selector, SelectorError};
pub use service::{Service, ServicePort, ServiceSpec, TargetPort};
pub use service_account::{ServiceAccount, TokenData, TokenSecret};
pub use service_cidr::{IPAddress, ServiceCIDR, ServiceCidrSpec};
pub use template::Template;
pub use time::{ParseTimestampError, Timestamp, micro_time};
