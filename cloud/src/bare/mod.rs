//! The provider `bare`, for machines without a cloud: addresses for Services from pools or from
//! nodes, and Nodes that are what their kubelets report. It announces no address and forwards no
//! packet: kube-vip or a router announces, kube-proxy forwards. `docs/cloud-bare.md` is its page.

mod assignment;
mod checks;
mod claims;
mod config;
mod machines;
mod node_addresses;
mod plan;
mod pools;
mod ranges;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{LoadBalancerIngress, LoadBalancerStatus, PortStatus};
use kube_controller_manager::controllers::{Controller, ControllerContext, Profile};

use self::assignment::{Assignment, Failure};
use self::checks::{Checks, Verdict};
use self::config::{Config, Mode, StatusWriter};
use self::node_addresses::NodeAddresses;
use crate::objects::{Node, Service};
use crate::provider::{
    Answer, Cloud, Error, InstanceMetadata, Instances, LoadBalancer, Settings,
    default_load_balancer_name,
};

/// The value of `--cloud-provider`.
pub const NAME: &str = "bare";

/// The service account of the provider's controllers, with `--use-service-account-credentials`.
const ACCOUNT: &str = "bare-cloud-provider";

/// Returns the profile of a controller of the provider.
const fn profile(name: &'static str) -> Profile {
    Profile { account: ACCOUNT, ..Profile::new(name) }
}

/// When a Service that could not be written, or whose caches are not complete, is retried.
const SOON: Duration = Duration::from_secs(5);

struct Bare {
    config: Config,
    balancer: Option<Balancer>,
    checks: Option<Arc<Checks>>,
}

/// Makes the provider from its configuration.
///
/// # Errors
/// When the file cannot be read, or a field is wrong.
pub fn open(settings: &Settings) -> Result<Arc<dyn Cloud>, String> {
    let config = Config::load(settings.config.as_deref())?;
    let pools = &config.load_balancers;
    let balancer = match pools.mode {
        Mode::Pools => Some(Balancer::Pools {
            assignment: Assignment::new(pools.config_map.clone()),
            status: pools.status,
        }),
        Mode::Nodes => Some(Balancer::Nodes),
        Mode::Off => None,
    };
    let checks = config.nodes.check.clone().map(Checks::new);
    Ok(Arc::new(Bare { config, balancer, checks }))
}

impl Cloud for Bare {
    fn provider_name(&self) -> &str {
        NAME
    }

    /// Returns the controllers of the provider: the one that gives addresses, if any, and the one
    /// that checks machines, if it is configured.
    fn initialize(&self, context: &Arc<ControllerContext>) -> Result<Vec<Controller>, String> {
        let mut controllers = Vec::new();
        match &self.balancer {
            Some(Balancer::Pools { assignment, .. }) => {
                controllers.push(assignment.controller(context)?);
            }
            Some(Balancer::Nodes) => controllers.push(NodeAddresses::controller(context)?),
            None => {}
        }
        if let Some(checks) = &self.checks {
            controllers.push(checks.controller(context)?);
        }
        Ok(controllers)
    }

    fn load_balancer(&self) -> Option<&dyn LoadBalancer> {
        self.balancer.as_ref().map(|balancer| balancer as &dyn LoadBalancer)
    }

    fn instances(&self) -> Option<&dyn Instances> {
        Some(self)
    }
}

enum Balancer {
    /// Addresses from pools.
    Pools { assignment: Arc<Assignment>, status: StatusWriter },
    /// Those of nodes, which a controller of this provider writes: the addresses change with the
    /// nodes, and the service controller asks for them only when the Service changes.
    Nodes,
}

impl LoadBalancer for Balancer {
    fn name(&self, service: &Service) -> String {
        default_load_balancer_name(service)
    }

    /// Returns the Service's own status if it has addresses, or was given some: nothing else of a
    /// load balancer exists.
    fn get<'a>(&'a self, service: &'a Service) -> Answer<'a, Option<LoadBalancerStatus>> {
        let status = service.status.load_balancer.clone().unwrap_or_default();
        let has_addresses = status.ingress.as_ref().is_some_and(|ingress| !ingress.is_empty());
        let exists = match self {
            Balancer::Pools { assignment, .. } => assignment.has_given(service) || has_addresses,
            Balancer::Nodes => has_addresses,
        };
        Box::pin(async move { Ok(exists.then_some(status)) })
    }

    /// Assigns addresses and returns a status with them, or the present status where the announcer
    /// writes it. For `Nodes` returns [`Error::ImplementedElsewhere`]: their controller writes the
    /// status.
    fn ensure<'a>(
        &'a self,
        service: &'a Service,
        _: &'a [Arc<Node>],
    ) -> Answer<'a, LoadBalancerStatus> {
        Box::pin(async move {
            let Balancer::Pools { assignment, status } = self else {
                return Err(Error::ImplementedElsewhere);
            };
            let plan = assignment.assign(service).await.map_err(fault)?;
            // Its addresses come from the announcer: what it has written stays.
            let is_left = *status == StatusWriter::Announcer
                || plan.addresses.iter().any(IpAddr::is_unspecified);
            Ok(match is_left {
                true => service.status.load_balancer.clone().unwrap_or_default(),
                false => status_of(service, &plan.addresses),
            })
        })
    }

    fn update<'a>(&'a self, _: &'a Service, _: &'a [Arc<Node>]) -> Answer<'a, ()> {
        Box::pin(async move {
            match self {
                // Addresses from pools do not depend on nodes.
                Balancer::Pools { .. } => Ok(()),
                // Their controller follows the nodes itself.
                Balancer::Nodes => Err(Error::ImplementedElsewhere),
            }
        })
    }

    /// Takes the addresses of pools back from the Service.
    fn ensure_deleted<'a>(&'a self, service: &'a Service) -> Answer<'a, ()> {
        Box::pin(async move {
            match self {
                Balancer::Pools { assignment, .. } => {
                    assignment.release(service).await.map_err(fault)
                }
                // The service controller empties the status.
                Balancer::Nodes => Ok(()),
            }
        })
    }
}

/// Returns the failure of an assignment as an error of the provider.
fn fault(failure: Failure) -> Error {
    match failure {
        Failure::Api(error) => Error::Other(error.into()),
        Failure::Busy(why) => Error::Retry { message: why.to_owned(), after: SOON },
        refused @ (Failure::Refused(_) | Failure::Gone) => Error::other(refused.to_string()),
    }
}

/// Returns a status with these addresses; the Service's own one if it shows them. It has the ports
/// of the Service: kube-vip announces again when the status lacks them.
fn status_of(service: &Service, addresses: &[IpAddr]) -> LoadBalancerStatus {
    let ports = service.spec.ports.iter().flatten().map(|port| PortStatus {
        port: port.port,
        protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
        ..PortStatus::default()
    });
    let ports: Vec<PortStatus> = ports.collect();
    let ingress: Vec<LoadBalancerIngress> = addresses
        .iter()
        .map(|address| LoadBalancerIngress {
            ip: Some(address.to_string()),
            // The API server's default.
            ip_mode: Some("VIP".to_owned()),
            ports: Some(ports.clone()),
            ..LoadBalancerIngress::default()
        })
        .collect();
    let current = service.status.load_balancer.clone().unwrap_or_default();
    let shown = current.ingress.as_deref().unwrap_or_default();
    let same = |(one, other): (&LoadBalancerIngress, &LoadBalancerIngress)| {
        one.ip == other.ip && one.ports == other.ports
    };
    match shown.len() == ingress.len() && shown.iter().zip(&ingress).all(same) {
        true => current,
        false => LoadBalancerStatus { ingress: Some(ingress) },
    }
}

impl Bare {
    fn verdict(&self, node: &Node) -> Verdict {
        self.checks.as_ref().map_or(Verdict::Runs, |checks| checks.verdict(node))
    }
}

impl Instances for Bare {
    fn exists<'a>(&'a self, node: &'a Node) -> Answer<'a, bool> {
        let exists = self.verdict(node) != Verdict::Gone;
        Box::pin(async move { Ok(exists) })
    }

    fn is_shut_down<'a>(&'a self, node: &'a Node) -> Answer<'a, bool> {
        let is_shut_down = self.verdict(node) == Verdict::ShutDown;
        Box::pin(async move { Ok(is_shut_down) })
    }

    fn metadata<'a>(&'a self, node: &'a Node) -> Answer<'a, InstanceMetadata> {
        Box::pin(async move { machines::metadata(node, &self.config.nodes) })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_status_that_shows_the_addresses_stays() {
        let service = |ingress: Value| -> Service {
            serde_json::from_value(json!({
                "spec": { "ports": [{ "port": 80, "protocol": "TCP" }] },
                "status": { "loadBalancer": { "ingress": ingress } },
            }))
            .expect("a Service")
        };
        let address: IpAddr = "10.0.0.1".parse().expect("an address");
        let ports = json!([{ "port": 80, "protocol": "TCP" }]);
        let announced = json!([{ "ip": "10.0.0.1", "ports": ports }]);
        let written = json!([{ "ip": "10.0.0.1", "ipMode": "VIP", "ports": ports }]);
        for (ingress, expected) in [
            (json!(null), &written),
            (json!([{ "ip": "10.0.0.1" }]), &written),
            (json!([{ "ip": "10.0.0.2", "ports": ports }]), &written),
            (announced.clone(), &announced),
            (written.clone(), &written),
        ] {
            let status = status_of(&service(ingress), &[address]);
            assert_eq!(json!(status.ingress), *expected);
        }
    }
}
