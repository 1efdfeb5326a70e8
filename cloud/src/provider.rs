//! The interface to a cloud. Upstream: `cloudprovider.Interface` and its parts.
//!
//! # What holds for every call
//!
//! - It is repeated: after an error, after a restart, by the next leader while this process still
//!   waits for an answer. So each call states a goal, and one that is reached already is a success.
//! - Calls for the load balancer of one Service do not overlap within a process, all others do: three
//!   controllers ask about a Node, each at its own time.
//! - A provider bounds its own waits. The future may be dropped at any time, when the process ends;
//!   the cloud may carry out what it asked for.
//! - Objects are those of the cache: they may be some moments old, and are not changed.

use std::collections::BTreeMap;
use std::error;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{LoadBalancerStatus, NodeAddress};
use kube_controller_manager::cache::BoxFuture;
use kube_controller_manager::controllers::{Controller, ControllerContext};

use crate::objects::{Node, Service};

/// The answer to a call.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, Error>>;

/// What a provider is made of.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// `--cloud-config`.
    pub config: Option<PathBuf>,
    /// `--cluster-name`, the same for all calls. Upstream passes it with each.
    pub cluster_name: String,
}

/// A cloud. A part that it lacks turns off the controllers that need it. Upstream:
/// `cloudprovider.Interface`, without `Clusters`, which no controller calls, and without
/// `Instances` and `Zones`, which `InstancesV2` replaces: a zone is part of
/// [`InstanceMetadata`].
pub trait Cloud: Send + Sync + 'static {
    /// Returns the provider's name, with which its provider ids begin.
    fn provider_name(&self) -> &str;

    /// Returns whether the cloud needs no id of the cluster, or has one. Without one the manager
    /// starts only with `--allow-untagged-cloud`.
    fn has_cluster_id(&self) -> bool {
        true
    }

    /// Makes controllers of the provider's own, which run beside the others; most providers need
    /// none. Called once, before the controllers start. Upstream: `Initialize` and `InformerUser`.
    ///
    /// # Errors
    /// What ends the manager.
    fn initialize(&self, context: &Arc<ControllerContext>) -> Result<Vec<Controller>, String> {
        let _ = context;
        Ok(Vec::new())
    }

    fn load_balancer(&self) -> Option<&dyn LoadBalancer> {
        None
    }

    fn instances(&self) -> Option<&dyn Instances> {
        None
    }

    fn routes(&self) -> Option<&dyn Routes> {
        None
    }
}

/// The load balancers of Services. A provider that leaves a Service to another controller answers
/// [`Error::ImplementedElsewhere`] to `ensure` and `update`, but still deletes what it made.
/// Upstream: `cloudprovider.LoadBalancer`.
pub trait LoadBalancer: Send + Sync {
    /// Returns the name of the load balancer in the cloud. [`default_load_balancer_name`]
    /// serves where the cloud has no rule of its own.
    fn name(&self, service: &Service) -> String;

    /// Returns the status of the load balancer; `None`: it does not exist.
    fn get<'a>(&'a self, service: &'a Service) -> Answer<'a, Option<LoadBalancerStatus>>;

    /// Makes the load balancer what the Service asks for, with these nodes as its targets.
    /// [`Error::Retry`] asks for a call after a fixed time, in place of the back-off.
    fn ensure<'a>(
        &'a self,
        service: &'a Service,
        nodes: &'a [Arc<Node>],
    ) -> Answer<'a, LoadBalancerStatus>;

    /// Makes these nodes the targets of a load balancer that `ensure` has made.
    fn update<'a>(&'a self, service: &'a Service, nodes: &'a [Arc<Node>]) -> Answer<'a, ()>;

    /// Deletes all parts of the load balancer, also those of which `get` says nothing.
    fn ensure_deleted<'a>(&'a self, service: &'a Service) -> Answer<'a, ()>;
}

/// The machines of Nodes. A provider looks for a machine by the Node's provider id, and by other
/// properties while that is empty. Upstream: `cloudprovider.InstancesV2`.
pub trait Instances: Send + Sync {
    /// Returns whether the machine exists, running or not. After a no the Node is deleted.
    fn exists<'a>(&'a self, node: &'a Node) -> Answer<'a, bool>;

    /// Returns whether the machine exists and does not run.
    fn is_shut_down<'a>(&'a self, node: &'a Node) -> Answer<'a, bool>;

    /// Returns what becomes part of the Node. [`Error::InstanceNotFound`]: there is no such
    /// machine. While a Node is not initialized, [`Error::Retry`] asks for a call after a fixed
    /// time.
    fn metadata<'a>(&'a self, node: &'a Node) -> Answer<'a, InstanceMetadata>;
}

/// What a cloud knows of a machine. Empty texts are unknown. Upstream:
/// `cloudprovider.InstanceMetadata`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InstanceMetadata {
    /// `<provider name>://<id of the machine>`, for `spec.providerID`. It never changes.
    pub provider_id: String,
    /// For the labels `node.kubernetes.io/instance-type` and `beta.kubernetes.io/instance-type`.
    pub instance_type: String,
    /// For `status.addresses`, the preferred ones first.
    pub node_addresses: Vec<NodeAddress>,
    /// For the labels `topology.kubernetes.io/zone` and `failure-domain.beta.kubernetes.io/zone`.
    pub zone: String,
    /// For the labels `topology.kubernetes.io/region` and
    /// `failure-domain.beta.kubernetes.io/region`.
    pub region: String,
    /// More labels of the Node. They do not replace labels that it has, and those of Kubernetes are
    /// ignored: see [`is_kubernetes_label`].
    pub additional_labels: BTreeMap<String, String>,
}

/// Returns whether a label is of Kubernetes: its prefix is `kubernetes.io` or `k8s.io`, or ends
/// with one of them after a dot.
pub fn is_kubernetes_label(name: &str) -> bool {
    let Some((prefix, _)) = name.split_once('/') else { return false };
    ["kubernetes.io", "k8s.io"].iter().any(|domain| {
        prefix.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    })
}

/// The routes to the pods of Nodes. Upstream: `cloudprovider.Routes`.
pub trait Routes: Send + Sync {
    /// Returns all managed routes of this cluster.
    fn list(&self) -> Answer<'_, Vec<Route>>;

    /// Makes a route, with a name of the provider's choice. `name_hint`: a text that is unique to the
    /// route, the Node's uid.
    fn create<'a>(&'a self, name_hint: &'a str, route: &'a Route) -> Answer<'a, ()>;

    /// Deletes a route that [`Routes::list`] has returned.
    fn delete<'a>(&'a self, route: &'a Route) -> Answer<'a, ()>;
}

/// A route of pods to their machine. Upstream: `cloudprovider.Route`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Route {
    /// The name in the cloud; empty in a route that is to be made.
    pub name: String,
    /// The name of the Node to which it leads.
    pub target_node: String,
    /// The addresses of the Node. A provider that does not keep them returns `None`: otherwise a
    /// route whose addresses differ from the Node's is made again. Upstream: `EnableNodeAddresses`.
    pub target_addresses: Option<Vec<NodeAddress>>,
    /// The destination, as `10.244.3.0/24`.
    pub destination: String,
    /// Whether it leads nowhere. Such a route is deleted.
    pub blackhole: bool,
}

/// Why a call has failed.
#[derive(Debug)]
pub enum Error {
    /// Upstream: `cloudprovider.InstanceNotFound`.
    InstanceNotFound,
    /// Upstream: `cloudprovider.NotImplemented`.
    NotImplemented,
    /// Another controller does this for the Service. Upstream:
    /// `cloudprovider.ImplementedElsewhere`.
    ImplementedElsewhere,
    /// To be called again after this time. Upstream: `api.RetryError`.
    Retry { message: String, after: Duration },
    /// All else.
    Other(Box<dyn error::Error + Send + Sync>),
}

impl Error {
    /// Creates an error that is only a text.
    pub fn other(message: impl Into<String>) -> Error {
        Error::Other(message.into().into())
    }
}

/// The texts are upstream's: they are seen in events.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::InstanceNotFound => f.write_str("instance not found"),
            Error::NotImplemented => f.write_str("unimplemented"),
            Error::ImplementedElsewhere => {
                f.write_str("implemented by alternate to cloud provider")
            }
            Error::Retry { message, .. } => f.write_str(message),
            Error::Other(error) => write!(f, "{error}"),
        }
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Error::Other(error) => error.source(),
            _ => None,
        }
    }
}

/// Returns a name that is unique to the Service, begins with a letter and has at most 32 bytes.
/// Upstream: `DefaultLoadBalancerName`.
pub fn default_load_balancer_name(service: &Service) -> String {
    let uid = service.meta.uid.to_string();
    let name = uid.chars().filter(|&c| c != '-');
    std::iter::once('a').chain(name).take(32).collect()
}

/// A row of the table of providers.
#[derive(Clone, Copy)]
pub struct Provider {
    /// The value of `--cloud-provider`.
    pub name: &'static str,
    /// Makes the provider, without waiting: it connects with its first call.
    pub open: fn(&Settings) -> Result<Arc<dyn Cloud>, String>,
}
