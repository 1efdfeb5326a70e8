//! What the cache holds: lean views of the kinds, and what is computed from objects.
//!
//! A view holds what some controller reads; everything else in the JSON is skipped without an
//! allocation. What a view left out is never written back: such kinds are created, patched and
//! deleted, and their status alone is replaced (see [`WholeMeta`]).

mod deployment;
mod intern;
mod key;
mod meta;
mod node;
mod owner;
mod pod;
mod replicaset;
mod resource;
mod selector;
mod template;
mod time;

pub use deployment::{Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdate};
pub use intern::{Istr, Labels};
pub use key::{ObjectKey, ObjectName, Uid};
pub use meta::{Meta, PartialObjectMetadata, WholeMeta};
pub use node::{Node, NodeSpec, NodeStatus, Taint};
pub use owner::OwnerReference;
pub use pod::{
    ContainerStatus, InitContainerStatus, Pod, PodPhase, PodSpec, PodStatus, ReadyCondition,
};
pub use replicaset::{ReplicaSet, ReplicaSetSpec, ReplicaSetStatus};
pub(crate) use resource::resource;
pub use resource::{Object, Resource, ResourceType};
pub use selector::{LabelSelector, Requirement, Selector, SelectorError};
pub use template::Template;
pub use time::{ParseTimestampError, Timestamp, micro_time};
