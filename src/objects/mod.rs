//! What the cache holds: lean views of the kinds, and what is computed from objects.
//!
//! A view holds what some controller reads; everything else in the JSON is skipped without an
//! allocation. What a view left out is never written back: such kinds are created, patched and
//! deleted, and their status alone is replaced (see [`WholeMeta`]). Endpoints and EndpointSlices are
//! held whole, and replaced.

mod deployment;
mod endpoints;
mod intern;
mod key;
mod meta;
mod node;
mod owner;
mod pod;
mod replicaset;
mod resource;
mod selector;
mod service;
mod template;
mod time;

pub use deployment::{Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdate};
pub use endpoints::{
    Endpoint, EndpointAddress, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice,
    EndpointSubset, Endpoints, Hint, SlicePort, TargetRef,
};
pub use intern::{Istr, Labels};
pub use key::{ObjectKey, ObjectName, Uid};
pub use meta::{Meta, PartialObjectMetadata, WholeMeta};
pub use node::{Node, NodeStatus};
pub use owner::OwnerReference;
pub use pod::{
    ContainerStatus, InitContainerStatus, NamedPort, NamedPorts, Pod, PodPhase, PodSpec, PodStatus,
    ReadyCondition, Sidecar, parse_ip,
};
pub use replicaset::{ReplicaSet, ReplicaSetSpec, ReplicaSetStatus};
pub use resource::{Object, Resource, ResourceType};
pub(crate) use resource::{null_as_default, resource};
pub use selector::{LabelSelector, Requirement, Selector, SelectorError};
pub use service::{Service, ServicePort, ServiceSpec, TargetPort};
pub use template::Template;
pub use time::{ParseTimestampError, Timestamp, micro_time};
