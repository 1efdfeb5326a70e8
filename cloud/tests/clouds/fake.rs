//! A cloud in memory, whose calls a test steers. Upstream: `cloud-provider/fake`.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use cloud::objects::{Node, Service};
use cloud::provider::{
    Answer, Cloud, Error, InstanceMetadata, Instances, LoadBalancer, Route, Routes,
};
use event_listener::Event;
use k8s_openapi::api::core::v1::{LoadBalancerIngress, LoadBalancerStatus};
use parking_lot::Mutex;

/// What happens to a call.
#[derive(Clone, Debug)]
pub enum Plan {
    /// It has no effect.
    Fail,
    /// It has its effect, and its answer is lost: the controller calls again.
    Lose,
    /// It waits for [`Fake::release`], then it has its effect.
    Hold,
    /// It has no effect, and asks for the next call after this time.
    Retry(Duration),
    /// Another controller does it.
    Elsewhere,
}

#[derive(Clone, Debug, Default)]
pub struct Machine {
    pub metadata: InstanceMetadata,
    pub shut_down: bool,
}

#[derive(Debug, Default)]
pub struct State {
    /// All calls, such as `ensure default/web [a b]`.
    pub calls: Vec<String>,
    /// The nodes behind each load balancer, by the name of its Service.
    pub balancers: BTreeMap<String, Vec<String>>,
    /// By the name of the Node.
    pub machines: BTreeMap<String, Machine>,
    pub routes: Vec<Route>,
    /// How many calls that were held have had their effects.
    pub released_effects: usize,
    plans: HashMap<&'static str, VecDeque<Plan>>,
    releases: usize,
}

#[derive(Default)]
pub struct Fake {
    state: Mutex<State>,
    released: Event,
}

/// The address of each load balancer.
pub const ADDRESS: &str = "192.0.2.10";

impl Fake {
    pub fn new() -> Arc<Fake> {
        Arc::default()
    }

    pub fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
    }

    pub fn see<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        read(&self.state.lock())
    }

    /// The next calls of this name go as planned, in this order.
    pub fn plan(&self, call: &'static str, plans: impl IntoIterator<Item = Plan>) {
        self.state.lock().plans.entry(call).or_default().extend(plans);
    }

    /// Whether all that was planned has happened.
    pub fn is_through(&self) -> bool {
        self.see(|state| state.plans.values().all(VecDeque::is_empty))
    }

    /// Lets all held calls have their effects.
    pub fn release(&self) {
        self.state.lock().releases += 1;
        self.released.notify(usize::MAX);
    }

    /// The calls of this name, with their arguments.
    pub fn calls(&self, call: &str) -> Vec<String> {
        let is_it = |line: &&String| line.split(' ').next() == Some(call);
        self.see(|state| state.calls.iter().filter(is_it).cloned().collect())
    }

    pub fn machine(&self, name: &str, metadata: InstanceMetadata) {
        let machine = Machine { metadata, shut_down: false };
        self.change(|state| drop(state.machines.insert(name.to_owned(), machine)));
    }

    async fn call<T>(
        &self,
        call: &'static str,
        arguments: String,
        effect: impl FnOnce(&mut State) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let (plan, releases) = {
            let mut state = self.state.lock();
            state.calls.push(format!("{call} {arguments}"));
            (state.plans.get_mut(call).and_then(VecDeque::pop_front), state.releases)
        };
        match plan {
            Some(Plan::Fail) => return Err(Error::other(format!("{call} fails on purpose"))),
            Some(Plan::Retry(after)) => {
                return Err(Error::Retry { message: format!("{call} is not ready"), after });
            }
            Some(Plan::Elsewhere) => return Err(Error::ImplementedElsewhere),
            Some(Plan::Hold) => loop {
                let listener = self.released.listen();
                if self.see(|state| state.releases) > releases {
                    break;
                }
                listener.await;
            },
            Some(Plan::Lose) | None => {}
        }
        let answer = {
            let mut state = self.state.lock();
            let answer = effect(&mut state);
            state.released_effects += usize::from(matches!(plan, Some(Plan::Hold)));
            answer
        };
        match plan {
            Some(Plan::Lose) => Err(Error::other(format!("the answer to {call} is lost"))),
            _ => answer,
        }
    }
}

impl Cloud for Fake {
    fn provider_name(&self) -> &str {
        "fake"
    }

    fn load_balancer(&self) -> Option<&dyn LoadBalancer> {
        Some(self)
    }

    fn instances(&self) -> Option<&dyn Instances> {
        Some(self)
    }

    fn routes(&self) -> Option<&dyn Routes> {
        Some(self)
    }
}

fn key(service: &Service) -> String {
    service.meta.key().to_string()
}

fn names(nodes: &[Arc<Node>]) -> Vec<String> {
    nodes.iter().map(|node| node.meta.name.to_string()).collect()
}

fn status() -> LoadBalancerStatus {
    let ingress = LoadBalancerIngress { ip: Some(ADDRESS.into()), ..Default::default() };
    LoadBalancerStatus { ingress: Some(vec![ingress]) }
}

impl LoadBalancer for Fake {
    fn name(&self, service: &Service) -> String {
        key(service)
    }

    fn get<'a>(&'a self, service: &'a Service) -> Answer<'a, Option<LoadBalancerStatus>> {
        Box::pin(self.call("get", key(service), move |state| {
            Ok(state.balancers.contains_key(&key(service)).then(status))
        }))
    }

    fn ensure<'a>(
        &'a self,
        service: &'a Service,
        nodes: &'a [Arc<Node>],
    ) -> Answer<'a, LoadBalancerStatus> {
        let arguments = format!("{} [{}]", key(service), names(nodes).join(" "));
        Box::pin(self.call("ensure", arguments, move |state| {
            state.balancers.insert(key(service), names(nodes));
            Ok(status())
        }))
    }

    fn update<'a>(&'a self, service: &'a Service, nodes: &'a [Arc<Node>]) -> Answer<'a, ()> {
        let arguments = format!("{} [{}]", key(service), names(nodes).join(" "));
        Box::pin(self.call("update", arguments, move |state| {
            match state.balancers.get_mut(&key(service)) {
                Some(targets) => *targets = names(nodes),
                None => return Err(Error::other("there is no such load balancer")),
            }
            Ok(())
        }))
    }

    fn ensure_deleted<'a>(&'a self, service: &'a Service) -> Answer<'a, ()> {
        Box::pin(self.call("ensure_deleted", key(service), move |state| {
            state.balancers.remove(&key(service));
            Ok(())
        }))
    }
}

impl Instances for Fake {
    fn exists<'a>(&'a self, node: &'a Node) -> Answer<'a, bool> {
        let name = node.meta.name.to_string();
        Box::pin(
            self.call("exists", name.clone(), move |state| Ok(state.machines.contains_key(&name))),
        )
    }

    fn is_shut_down<'a>(&'a self, node: &'a Node) -> Answer<'a, bool> {
        let name = node.meta.name.to_string();
        Box::pin(self.call("is_shut_down", name.clone(), move |state| {
            Ok(state.machines.get(&name).is_some_and(|machine| machine.shut_down))
        }))
    }

    fn metadata<'a>(&'a self, node: &'a Node) -> Answer<'a, InstanceMetadata> {
        let name = node.meta.name.to_string();
        Box::pin(self.call("metadata", name.clone(), move |state| {
            let machine = state.machines.get(&name).ok_or(Error::InstanceNotFound)?;
            Ok(machine.metadata.clone())
        }))
    }
}

impl Routes for Fake {
    fn list(&self) -> Answer<'_, Vec<Route>> {
        Box::pin(self.call("list", String::new(), |state| Ok(state.routes.clone())))
    }

    fn create<'a>(&'a self, _: &'a str, route: &'a Route) -> Answer<'a, ()> {
        let arguments = format!("{} {}", route.target_node, route.destination);
        Box::pin(self.call("create", arguments, move |state| {
            let has = |known: &Route| known.destination == route.destination;
            if !state.routes.iter().any(has) {
                let (name, target_addresses) = (format!("to-{}", route.target_node), None);
                state.routes.push(Route { name, target_addresses, ..route.clone() });
            }
            Ok(())
        }))
    }

    fn delete<'a>(&'a self, route: &'a Route) -> Answer<'a, ()> {
        Box::pin(self.call("delete", route.name.clone(), move |state| {
            state.routes.retain(|known| known.name != route.name);
            Ok(())
        }))
    }
}
