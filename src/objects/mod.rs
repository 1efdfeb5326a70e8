//! What the cache holds: lean views of the kinds, and what is computed from objects.
//!
//! A view holds what some controller reads; everything else in the JSON is skipped without an
//! allocation. What a view left out is never written back: such kinds are created, patched and
//! deleted, and their status alone is replaced (see [`WholeMeta`]).

mod cluster_role;
mod deployment;
mod intern;
mod key;
mod meta;
mod namespace;
mod node;
mod owner;
mod pod;
mod policy;
mod replicaset;
mod resource;
mod selector;
mod service_account;
mod service_cidr;
mod template;
mod time;

pub use cluster_role::{AggregationRule, ClusterRole, PolicyRule};
pub use deployment::{Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdate};
pub use intern::{Istr, Labels};
pub use key::{ObjectKey, ObjectName, Uid};
pub use meta::{Meta, PartialObjectMetadata, WholeMeta};
pub use namespace::{Namespace, NamespaceSpec};
pub use node::Node;
pub use owner::OwnerReference;
pub use pod::{
    ContainerStatus, InitContainerStatus, Pod, PodPhase, PodSpec, PodStatus, ReadyCondition,
};
pub use policy::{
    ExpressionWarning, MatchConstraints, ParamKind, PolicyRule, TypeChecking,
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicySpec, ValidatingAdmissionPolicyStatus,
    Validation, Variable,
};
pub use replicaset::{ReplicaSet, ReplicaSetSpec, ReplicaSetStatus};
pub(crate) use resource::resource;
pub use resource::{Object, Resource, ResourceType};
pub use selector::{LabelSelector, Requirement, Selector, SelectorError};
pub use service_account::{ServiceAccount, TokenData, TokenSecret};
pub use service_cidr::{IPAddress, ServiceCIDR, ServiceCidrSpec};
pub use template::Template;
pub use time::{ParseTimestampError, Timestamp, micro_time};
