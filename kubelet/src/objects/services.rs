//! The Services of the cluster, as variables of containers.
//! Upstream: `pkg/kubelet/envvars`, `getServiceEnvVarMap`.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_lite::FutureExt;
use kube_controller_manager::cache::{Lister, Scope, SharedIndexInformer, Source};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::{Istr, Meta, Object, ObjectKey, ResourceType};
use kube_controller_manager::task::{self, StopToken};
use serde::Deserialize;

use super::Unavailable;
use super::watches::Watches;
use crate::pod::{Pod, PodExt};

const SERVICES: ResourceType = ResourceType::fixed("", "v1", "Service", "services", true);

/// The Service of the API server, which all containers get. Upstream: `masterServices`.
const MASTER: (&str, &str) = ("default", "kubernetes");

/// The Services of all namespaces.
pub(super) struct Services {
    informer: SharedIndexInformer<Service>,
    lister: Lister<Service>,
}

impl Services {
    /// Starts an informer of the Services, which runs until stopped. All pods are synced again
    /// after the first list.
    pub(super) fn start(
        server: Arc<dyn Source>,
        clock: SharedClock,
        waiting: Watches,
        stop: &StopToken,
    ) -> Services {
        let informer = SharedIndexInformer::new(server, Scope::all(SERVICES), clock);
        let (running, stop) = (informer.clone(), stop.clone());
        drop(task::spawn(async move {
            let synced = async {
                running.synced().await;
                waiting.notify_all();
                std::future::pending().await
            };
            synced.or(running.run(stop)).await;
        }));
        Services { lister: informer.lister(), informer }
    }

    /// Builds the variables for a pod's containers.
    ///
    /// # Errors
    /// The pod is of the API server, and no list of Services is complete yet.
    pub(super) fn variables(&self, pod: &Pod) -> Result<Vec<(String, String)>, Unavailable> {
        if !pod.is_static() && !self.informer.has_synced() {
            return Err(Unavailable::ServicesNotYet);
        }
        let (namespace, name) = MASTER;
        let master = self.lister.get(&ObjectKey::new(namespace, name));
        let own = match pod.spec().enable_service_links {
            Some(false) => Vec::new(),
            None | Some(true) => self.lister.in_namespace(pod.namespace()),
        };
        Ok(variables(master.as_deref(), own.iter().map(Arc::as_ref)))
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Service {
    metadata: Meta,
    spec: Option<Spec>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    #[serde(rename = "clusterIP")]
    cluster_ip: Option<Box<str>>,
    ports: Option<Box<[Port]>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Port {
    name: Option<Istr>,
    protocol: Option<Istr>,
    port: u16,
}

impl Object for Service {
    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// Builds the variables of Services in the order of their names. A Service of the pod's namespace
/// (`own`) replaces the API server's (`master`) of the same name.
fn variables<'a>(
    master: Option<&'a Service>,
    own: impl Iterator<Item = &'a Service>,
) -> Vec<(String, String)> {
    let all = master.into_iter().chain(own).filter_map(|service| Some((service, service.ip()?)));
    let by_name: BTreeMap<&str, _> =
        all.map(|(service, ip)| (&*service.metadata.name, (service, ip))).collect();
    by_name.into_values().flat_map(|(service, ip)| service.variables(ip)).collect()
}

impl Service {
    /// Returns the cluster IP of the Service. `None`: it has none. Upstream: `IsServiceIPSet`.
    fn ip(&self) -> Option<&str> {
        let ip = self.spec.as_ref()?.cluster_ip.as_deref()?;
        (!ip.is_empty() && ip != "None").then_some(ip)
    }

    fn ports(&self) -> &[Port] {
        self.spec.as_ref().and_then(|spec| spec.ports.as_deref()).unwrap_or_default()
    }

    /// Builds the variables of one Service: its host and ports, and those of docker's links. A
    /// Service without ports has none.
    /// Upstream: `FromServices`, `makeLinkVariables`.
    fn variables(&self, ip: &str) -> Vec<(String, String)> {
        let Some(first) = self.ports().first() else { return Vec::new() };
        let prefix = variable(&self.metadata.name);
        let port_name = format!("{prefix}_SERVICE_PORT");
        let mut variables = vec![
            (format!("{prefix}_SERVICE_HOST"), ip.to_owned()),
            (port_name.clone(), first.port.to_string()),
        ];
        for port in self.ports() {
            if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
                variables.push((format!("{port_name}_{}", variable(name)), port.port.to_string()));
            }
        }
        // The names of docker's links.
        variables.push((format!("{prefix}_PORT"), first.address(ip)));
        for port in self.ports() {
            let number = port.port;
            let link = format!("{prefix}_PORT_{number}_{}", port.protocol().to_uppercase());
            variables.extend([
                (link.clone(), port.address(ip)),
                (format!("{link}_PROTO"), port.protocol().to_lowercase()),
                (format!("{link}_PORT"), number.to_string()),
                (format!("{link}_ADDR"), ip.to_owned()),
            ]);
        }
        variables
    }
}

impl Port {
    fn protocol(&self) -> &str {
        self.protocol.as_deref().filter(|protocol| !protocol.is_empty()).unwrap_or("TCP")
    }

    /// Formats the address of a port: `tcp://10.0.0.1:80`.
    fn address(&self, ip: &str) -> String {
        let (protocol, port) = (self.protocol().to_lowercase(), self.port);
        match ip.contains(':') {
            true => format!("{protocol}://[{ip}]:{port}"),
            false => format!("{protocol}://{ip}:{port}"),
        }
    }
}

/// Returns the part of a variable's name that stands for a Service or port. Upstream:
/// `makeEnvVariableName`.
fn variable(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(name: &str, ip: Value, ports: Value) -> Service {
        let spec = json!({"clusterIP": ip, "ports": ports});
        let service = json!({"metadata": {"name": name}, "spec": spec});
        serde_json::from_value(service).expect("a Service")
    }

    fn shown(variables: Vec<(String, String)>) -> Vec<String> {
        variables.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
    }

    #[test]
    fn service_has_upstreams_variables() {
        let ports = json!([
            {"name": "http-main", "port": 80, "protocol": "TCP"},
            {"name": "dns", "port": 53, "protocol": "UDP"},
        ]);
        let web = service("my-web", json!("10.0.0.1"), ports);
        assert_eq!(
            shown(variables(None, [&web].into_iter())),
            [
                "MY_WEB_SERVICE_HOST=10.0.0.1",
                "MY_WEB_SERVICE_PORT=80",
                "MY_WEB_SERVICE_PORT_HTTP_MAIN=80",
                "MY_WEB_SERVICE_PORT_DNS=53",
                "MY_WEB_PORT=tcp://10.0.0.1:80",
                "MY_WEB_PORT_80_TCP=tcp://10.0.0.1:80",
                "MY_WEB_PORT_80_TCP_PROTO=tcp",
                "MY_WEB_PORT_80_TCP_PORT=80",
                "MY_WEB_PORT_80_TCP_ADDR=10.0.0.1",
                "MY_WEB_PORT_53_UDP=udp://10.0.0.1:53",
                "MY_WEB_PORT_53_UDP_PROTO=udp",
                "MY_WEB_PORT_53_UDP_PORT=53",
                "MY_WEB_PORT_53_UDP_ADDR=10.0.0.1",
            ]
        );
        let six = service("six", json!("2001:db8::1"), json!([{"port": 443}]));
        let six = shown(variables(None, [&six].into_iter()));
        assert!(six.contains(&"SIX_PORT=tcp://[2001:db8::1]:443".to_owned()), "{six:?}");
        assert!(six.contains(&"SIX_PORT_443_TCP_ADDR=2001:db8::1".to_owned()), "{six:?}");
    }

    #[test]
    fn services_of_the_namespace_come_before_that_of_the_api_server() {
        let ports = || json!([{"port": 1}]);
        let master = service("kubernetes", json!("10.0.0.1"), ports());
        let own = service("kubernetes", json!("10.0.0.2"), ports());
        let other = service("a", json!("10.0.0.3"), ports());
        let headless = service("b", json!("None"), ports());
        let external = service("c", json!(null), json!(null));
        let hosts = |master: Option<&Service>, own: &[&Service]| -> Vec<String> {
            let all = shown(variables(master, own.iter().copied()));
            all.into_iter().filter(|line| line.contains("_SERVICE_HOST=")).collect()
        };
        assert_eq!(hosts(Some(&master), &[]), ["KUBERNETES_SERVICE_HOST=10.0.0.1"]);
        assert_eq!(
            hosts(Some(&master), &[&headless, &own, &external, &other]),
            ["A_SERVICE_HOST=10.0.0.3", "KUBERNETES_SERVICE_HOST=10.0.0.2"]
        );
        assert_eq!(hosts(None, &[]), [""; 0]);
    }
}
