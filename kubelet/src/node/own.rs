//! The kubelet's own Node, as one value that all parts read when they need it.
//! Upstream: `Kubelet.nodeLister`, `GetNode`, `getNodeAnyWay`, `getHostIPsAnyWay`.

use std::fmt;
use std::sync::Arc;

use event_listener::{Event, EventListener};
use futures_lite::FutureExt;
use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::cache::{self, Deleted, EventHandler, Scope, SharedIndexInformer};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::{Node, Quantity, Resource};
use kube_controller_manager::task::{Latch, StopToken, notify_all};
use parking_lot::RwLock;

use super::address::{self, NodeAddress};
use crate::whole_object::WholeObject;

/// The Node of this kubelet: what the API server has, and before that the Node that the kubelet would
/// register. Cheap to clone: clones show the same Node.
///
/// It changes at any time, so a decision that needs several of its fields reads it once.
#[derive(Clone)]
pub struct OwnNode {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    address: NodeAddress,
    /// As the API server has it; `None`: it has none, has not been asked yet, or there is no server.
    registered: RwLock<Option<Arc<core::Node>>>,
    /// What the kubelet would register.
    initial: RwLock<Arc<core::Node>>,
    synced: Latch,
    /// The API server has got the Node.
    appeared: Event,
    changed: Event,
}

impl fmt::Debug for OwnNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnNode").field(&self.name()).finish()
    }
}

impl OwnNode {
    /// Creates a Node that has nothing but its name yet.
    pub fn new(name: &str, address: NodeAddress) -> OwnNode {
        let mut initial = core::Node::default();
        initial.metadata.name = Some(name.to_owned());
        let inner = Inner {
            name: name.to_owned(),
            address,
            registered: RwLock::default(),
            initial: RwLock::new(Arc::new(initial)),
            synced: Latch::new(),
            appeared: Event::new(),
            changed: Event::new(),
        };
        OwnNode { inner: Arc::new(inner) }
    }

    /// A Node with these resources for pods, and these addresses (`--node-ip`).
    #[cfg(test)]
    pub fn for_tests(cpu: &str, memory: &str, ips: &str) -> OwnNode {
        let ips = super::address::NodeIps::parse(ips).expect("addresses");
        let own = OwnNode::new("n", NodeAddress::new("n".to_owned(), ips, true));
        let allocatable = serde_json::json!({"cpu": cpu, "memory": memory});
        let node = serde_json::json!({"status": {"allocatable": allocatable}});
        own.set_initial(serde_json::from_value(node).expect("a node"));
        own
    }

    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Returns the Node as the API server has it; `None`: it has none, as far as is known.
    /// Upstream: `nodeLister.Get`.
    pub fn registered(&self) -> Option<Arc<core::Node>> {
        self.inner.registered.read().clone()
    }

    /// Returns the Node as the API server has it, or else the one that the kubelet would register.
    /// Upstream: `getNodeAnyWay`.
    pub fn get(&self) -> Arc<core::Node> {
        self.registered().unwrap_or_else(|| self.inner.initial.read().clone())
    }

    /// Returns what pods may have of a resource; zero: nothing is known of it.
    pub fn allocatable(&self, resource: &str) -> Quantity {
        let node = self.get();
        let all = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        let found = all.and_then(|all| all.get(resource));
        found.and_then(|quantity| quantity.0.parse().ok()).unwrap_or_default()
    }

    /// Returns the node's addresses, the one of `status.hostIP` first; empty: they are not known.
    /// Those of a Node that is not registered are read from the machine. Upstream:
    /// `getHostIPsAnyWay`.
    pub fn host_ips(&self) -> Vec<String> {
        let ips = match self.registered() {
            Some(node) => address::host_ips(&node),
            None => self.inner.address.now(),
        };
        ips.into_iter().map(|ip| ip.to_string()).collect()
    }

    /// Returns the node's first address, at which pods with its network listen; the loopback's if
    /// no address is known.
    pub fn address_or_loopback(&self) -> String {
        self.host_ips().into_iter().next().unwrap_or_else(|| "127.0.0.1".to_owned())
    }

    /// Resolves once the API server has said whether it has the Node; without one at once.
    /// Upstream: `nodeHasSynced`.
    pub async fn synced(&self) {
        self.inner.synced.opened().await;
    }

    /// Records that there is no API server, so that none is waited for.
    pub fn set_standalone(&self) {
        self.inner.synced.open();
    }

    /// Replaces the Node that the kubelet would register.
    pub fn set_initial(&self, node: core::Node) {
        *self.inner.initial.write() = Arc::new(node);
    }

    /// Waits until the API server has got the Node. Listen before you ask [`registered`].
    ///
    /// [`registered`]: Self::registered
    pub fn registration(&self) -> EventListener {
        self.inner.appeared.listen()
    }

    /// Replaces the Node of the API server, and wakes those who wait for a change of it.
    fn set_registered(&self, node: Option<Arc<core::Node>>) {
        let appears = node.is_some();
        let before = std::mem::replace(&mut *self.inner.registered.write(), node);
        if appears && before.is_none() {
            notify_all(&self.inner.appeared);
        }
        notify_all(&self.inner.changed);
    }

    /// Waits for a change of the Node in the API server.
    pub fn changed(&self) -> EventListener {
        self.inner.changed.listen()
    }

    /// Keeps a Node that was read from the API server if it is newer than the last one that the
    /// watch has shown.
    pub fn keep_if_newer(&self, node: &Arc<core::Node>) {
        let mut registered = self.inner.registered.write();
        // One that is not watched may be gone already.
        let is_newer = registered.as_ref().is_some_and(|current| {
            current.metadata.uid == node.metadata.uid && version(current) < version(node)
        });
        if is_newer {
            // No waiter is woken: the watch shows the change soon.
            *registered = Some(node.clone());
        }
    }

    /// Follows the Node in the API server until stopped.
    pub async fn follow(
        &self,
        server: Arc<dyn cache::Source>,
        clock: SharedClock,
        stop: StopToken,
    ) {
        log::info!("Attempting to sync node with API server");
        let field_selector = Some(format!("metadata.name={}", self.name()));
        let scope = Scope { field_selector, ..Scope::all(Node::RESOURCE) };
        let informer = SharedIndexInformer::<WholeObject<core::Node>>::new(server, scope, clock);
        let registration = informer.add_handler("own-node", Follower(self.clone()), None);
        let synced = async {
            registration.synced().await;
            self.inner.synced.open();
            std::future::pending().await
        };
        synced.or(informer.run(stop)).await;
    }
}

/// Reads the Node's version. `None`: it is not a number.
fn version(node: &core::Node) -> Option<u64> {
    node.metadata.resource_version.as_deref()?.parse().ok()
}

/// Takes the changes of the watched Node.
struct Follower(OwnNode);

impl EventHandler<WholeObject<core::Node>> for Follower {
    fn on_add(&mut self, node: &Arc<WholeObject<core::Node>>, _: bool) {
        self.0.set_registered(Some(node.object().clone()));
    }

    fn on_update(&mut self, _: &Arc<WholeObject<core::Node>>, node: &Arc<WholeObject<core::Node>>) {
        self.0.set_registered(Some(node.object().clone()));
    }

    fn on_delete(&mut self, _: &Deleted<WholeObject<core::Node>>) {
        self.0.set_registered(None);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::node::address::NodeIps;

    fn node(value: Value) -> Arc<core::Node> {
        Arc::new(serde_json::from_value(value).expect("a node"))
    }

    #[test]
    fn node_that_was_read_is_kept_if_it_is_newer() {
        let own = OwnNode::new("n", NodeAddress::new("n".to_owned(), NodeIps::default(), true));
        let of = |uid: &str, version: &str| {
            node(json!({"metadata": {"name": "n", "uid": uid, "resourceVersion": version}}))
        };
        own.keep_if_newer(&of("u", "1"));
        assert!(own.registered().is_none(), "it may be gone");
        own.set_registered(Some(of("u", "9")));
        for (read, expected) in [
            (of("u", "8"), "9"),
            (of("other", "11"), "9"),
            (of("u", "x"), "9"),
            (of("u", "10"), "10"),
        ] {
            own.keep_if_newer(&read);
            let version = own.get().metadata.resource_version.clone();
            assert_eq!(version.as_deref(), Some(expected));
        }
    }

    #[test]
    fn registered_node_comes_before_the_initial_one() {
        let ips = NodeIps::parse("10.0.0.1").expect("an address");
        let own = OwnNode::new("n", NodeAddress::new("n".to_owned(), ips, false));
        assert_eq!(own.get().metadata.name.as_deref(), Some("n"));
        assert!(own.allocatable("cpu").is_zero());
        let with = |cpu: &str| {
            node(json!({
                "metadata": {"name": "n"},
                "status": {"allocatable": {"cpu": cpu},
                           "addresses": [{"type": "InternalIP", "address": "10.0.0.9"}]},
            }))
        };
        own.set_initial((*with("1")).clone());
        assert_eq!(own.allocatable("cpu").milli_value(), 1000);
        assert_eq!(own.host_ips(), ["10.0.0.1"], "the machine's");
        assert!(own.registered().is_none());
        let clone = own.clone();
        own.set_registered(Some(with("2")));
        assert_eq!(clone.allocatable("cpu").milli_value(), 2000);
        assert_eq!(clone.host_ips(), ["10.0.0.9"]);
        own.set_registered(Some(node(json!({"metadata": {"name": "n"}}))));
        assert!(clone.host_ips().is_empty());
        assert_eq!(clone.address_or_loopback(), "127.0.0.1");
        own.set_registered(None);
        assert_eq!(clone.allocatable("cpu").milli_value(), 1000);
    }
}
