//! Carries out the actions of a pod in the runtime. Upstream: `kubeGenericRuntimeManager`.
//!
//! [`Manager::sync`] does the steps of a sync one after the other: volumes, kills, the sandbox
//! (`sandbox`), the containers (`start`, with the definitions of `container_config`).
//! [`Manager::kill_pod`] ends all containers, and [`Manager::prune`] removes those that have ended.

mod container_config;
mod error;
pub mod garbage;
mod hooks;
mod kill;
pub mod logs;
mod messages;
mod pod_cgroup;
mod probes;
mod prune;
mod resize;
mod sandbox;
mod start;
mod sync;
#[cfg(test)]
pub(crate) mod testing;

use std::sync::Arc;
use std::time::Duration;

use async_lock::OnceCell;
use kube_controller_manager::clock::SharedClock;
use parking_lot::Mutex;

pub use self::error::Error;
pub use self::resize::ResizeError;
pub use self::sync::Synced;

use crate::allocation::Checkpoint;
use crate::cgroups::{self, Cgroups, SystemCgroups};
use crate::cri::RuntimeService;
use crate::images::Images;
use crate::locks::Locks;
use crate::node::huge_pages::PageSize;
use crate::node::network::NetworkState;
use crate::node::own::OwnNode;
use crate::node::pressure::NodePressure;
use crate::objects::Objects;
use crate::prober::Probes;
use crate::runtime::backoff::Backoff;
use crate::runtime::dns::Resolvers;
use crate::user_namespaces::UserNamespaces;
use crate::volumes::{Folders, VolumeManager};

/// After an error that a retry may mend. Upstream: `backOffPeriod`.
const RETRY: Duration = Duration::from_secs(10);

/// The machine, and its Node.
#[derive(Clone)]
pub struct Node {
    pub name: String,
    pub own: OwnNode,
    /// The resources of which it has too little.
    pub pressure: NodePressure,
    pub network: NetworkState,
    pub cpus: i64,
    pub memory_bytes: i64,
    pub page_sizes: Vec<PageSize>,
    pub resolvers: Resolvers,
    /// The parent of all pods' cgroups; empty: the runtime's.
    pub cgroup_root: String,
    pub system_cgroups: SystemCgroups,
    /// Containers that name no seccomp profile get the runtime's.
    pub seccomp_default: bool,
    /// In version 2 of cgroups, a container that exceeds its memory limit loses one process, as in
    /// version 1.
    pub single_process_oom_kill: bool,
}

/// The calls to the runtime that pods need.
pub struct Manager {
    pub runtime: RuntimeService,
    /// As the runtime names itself; ids of containers begin with it.
    pub runtime_name: String,
    pub images: Images,
    pub probes: Probes,
    pub folders: Folders,
    pub volumes: VolumeManager,
    /// The resources that containers were given.
    pub actuated: Checkpoint,
    /// The host ids of pods with user namespaces.
    pub user_namespaces: Arc<UserNamespaces>,
    /// What pods refer to.
    pub objects: Arc<Objects>,
    pub node: Node,
    pub clock: SharedClock,
    pub backoff: Mutex<Backoff>,
    /// By pod, held while a container is started: its sync is not cancelled meanwhile.
    pub starts: Locks,
    /// How many of the containers that have ended stay.
    pub dead: garbage::Policy,
    /// Cgroups by class; `None`: each pod has its own below `cgroup_root`.
    pub cgroups: Option<Arc<Cgroups>>,
    /// Held while the shares of classes are counted and written.
    pub classes: Arc<async_lock::Mutex<()>>,
    /// The features of the machine's cgroups. They are read before the first start of a container.
    pub cgroup_features: OnceCell<cgroups::Features>,
}
