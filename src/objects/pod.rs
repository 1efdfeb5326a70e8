//! The lean view of a Pod.

use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use serde::Deserialize;

use super::intern::Pool;
use super::{Istr, Meta, Timestamp, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Pod {
    #[serde(rename = "metadata")]
    pub meta: Meta,
    pub spec: PodSpec,
    pub status: PodStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    pub node_name: Istr,
    pub hostname: Box<str>,
    pub subdomain: Istr,
    #[serde(rename = "containers")]
    pub ports: NamedPorts,
    /// The init containers that run as long as the pod does.
    #[serde(rename = "initContainers", deserialize_with = "sidecars")]
    pub sidecars: Box<[Sidecar]>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sidecar {
    pub name: Istr,
    pub ports: NamedPorts,
}

/// The ports with a name of a list of containers, in their order; one copy for all pods that are alike.
#[derive(Clone, Debug, Default)]
pub struct NamedPorts(Option<Arc<[NamedPort]>>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NamedPort {
    pub name: Istr,
    pub protocol: Istr,
    pub number: i32,
}

static PORTS: LazyLock<Pool<[NamedPort]>> = LazyLock::new(Pool::new);

impl NamedPorts {
    fn of(ports: impl Iterator<Item = ContainerPort>) -> NamedPorts {
        let named: Vec<NamedPort> = ports
            .filter(|port| !port.name.is_empty())
            .map(|ContainerPort { name, protocol, container_port: number }| {
                // The API server's default.
                let protocol = if protocol.is_empty() { "TCP".into() } else { protocol };
                NamedPort { name, protocol, number }
            })
            .collect();
        NamedPorts((!named.is_empty()).then(|| PORTS.intern(named)))
    }

    /// The number of the first port of this name and protocol.
    pub fn find(&self, name: &str, protocol: &str) -> Option<i32> {
        let mut ports = self.0.as_deref().unwrap_or_default().iter();
        Some(ports.find(|port| port.name == *name && port.protocol == *protocol)?.number)
    }
}

impl PartialEq for NamedPorts {
    fn eq(&self, other: &NamedPorts) -> bool {
        match (&self.0, &other.0) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a == b,
            (None, None) => true,
            _ => false,
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerPort {
    name: Istr,
    protocol: Istr,
    container_port: i32,
}

impl<'de> Deserialize<'de> for NamedPorts {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<NamedPorts, D::Error> {
        #[derive(Deserialize)]
        struct Container {
            ports: Option<Vec<ContainerPort>>,
        }
        let containers = Option::<Vec<Container>>::deserialize(from)?.unwrap_or_default();
        Ok(NamedPorts::of(containers.into_iter().filter_map(|c| c.ports).flatten()))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    pub phase: PodPhase,
    /// When the Ready condition last changed, and whether it is true now. `None`: no such condition.
    #[serde(rename = "conditions", deserialize_with = "ready_condition")]
    pub ready: Option<ReadyCondition>,
    /// In the order of the pod's families; what is not an address is left out.
    #[serde(rename = "podIPs", deserialize_with = "addresses")]
    pub ips: Box<[IpAddr]>,
    pub container_statuses: Vec<ContainerStatus>,
    pub init_container_statuses: Vec<InitContainerStatus>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum PodPhase {
    Pending,
    Running,
    Succeeded,
    Failed,
    /// Absent, or not known to this build.
    #[default]
    #[serde(other)]
    Unknown,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ReadyCondition {
    pub is_true: bool,
    pub last_transition_time: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    pub restart_count: i32,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InitContainerStatus {
    pub name: Istr,
    pub restart_count: i32,
}

resource!(Pod, "", "v1", "pods", namespaced);

impl Pod {
    /// Upstream: `podutil.IsPodReady`.
    pub fn is_ready(&self) -> bool {
        self.status.ready.as_ref().is_some_and(|ready| ready.is_true)
    }

    /// Ready for at least `min_ready_seconds` at `now`. Upstream: `podutil.IsPodAvailable`.
    pub fn is_available(&self, min_ready_seconds: i32, now: Timestamp) -> bool {
        let Some(ReadyCondition { is_true: true, last_transition_time }) = &self.status.ready
        else {
            return false;
        };
        let period = std::time::Duration::from_secs(u64::try_from(min_ready_seconds).unwrap_or(0));
        min_ready_seconds <= 0 || last_transition_time.is_some_and(|since| since + period <= now)
    }

    /// Upstream: `podutil.IsPodTerminal`.
    pub fn is_terminal(&self) -> bool {
        matches!(self.status.phase, PodPhase::Failed | PodPhase::Succeeded)
    }

    /// Neither finished nor being deleted. Upstream: `controller.IsPodActive`.
    pub fn is_active(&self) -> bool {
        !self.is_terminal() && !self.meta.is_being_deleted()
    }

    /// Being deleted and not finished yet. Upstream: `controller.IsPodTerminating`.
    pub fn is_terminating(&self) -> bool {
        !self.is_terminal() && self.meta.is_being_deleted()
    }

    /// The number of the port that containers, or else sidecars, call `name`.
    pub fn port(&self, name: &str, protocol: &str) -> Option<i32> {
        let ports = std::iter::once(&self.spec.ports)
            .chain(self.spec.sidecars.iter().map(|sidecar| &sidecar.ports));
        ports.into_iter().find_map(|ports| ports.find(name, protocol))
    }

    /// The most restarts of any container. Upstream: `maxContainerRestarts`.
    pub fn max_restarts(&self) -> i32 {
        self.status.container_statuses.iter().map(|c| c.restart_count).max().unwrap_or(0)
    }

    /// The most restarts of any sidecar. Upstream: `maxContainerRestarts`.
    pub fn max_sidecar_restarts(&self) -> i32 {
        let sidecars = &self.spec.sidecars;
        let statuses = self.status.init_container_statuses.iter();
        statuses
            .filter(|c| sidecars.iter().any(|sidecar| sidecar.name == c.name))
            .map(|c| c.restart_count)
            .max()
            .unwrap_or(0)
    }
}

fn sidecars<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Box<[Sidecar]>, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct InitContainer {
        name: Istr,
        restart_policy: Option<Istr>,
        ports: Option<Vec<ContainerPort>>,
    }
    let containers = Option::<Vec<InitContainer>>::deserialize(from)?.unwrap_or_default();
    let runs_on = |c: &InitContainer| c.restart_policy.as_ref().is_some_and(|p| *p == "Always");
    let sidecar = |InitContainer { name, ports, .. }: InitContainer| Sidecar {
        name,
        ports: NamedPorts::of(ports.unwrap_or_default().into_iter()),
    };
    Ok(containers.into_iter().filter(runs_on).map(sidecar).collect())
}

/// Upstream: `utilnet.ParseIPSloppy`.
fn addresses<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Box<[IpAddr]>, D::Error> {
    #[derive(Deserialize)]
    struct Address {
        #[serde(default)]
        ip: String,
    }
    let addresses = Option::<Vec<Address>>::deserialize(from)?.unwrap_or_default();
    Ok(addresses.iter().filter_map(|address| parse_ip(&address.ip)).collect())
}

/// Reads an address as the API does: an IPv4 address may have leading zeros, and one that is mapped
/// into IPv6 is one of IPv4. Upstream: `netutils.ParseIPSloppy`.
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address.to_canonical());
    }
    let mut octets = [0u8; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next().filter(|part| part.bytes().all(|byte| byte.is_ascii_digit()))?;
        *octet = part.parse().ok()?;
    }
    parts.next().is_none().then(|| octets.into())
}

fn ready_condition<'de, D: serde::Deserializer<'de>>(
    from: D,
) -> Result<Option<ReadyCondition>, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Condition {
        r#type: Istr,
        status: Istr,
        #[serde(default)]
        last_transition_time: Option<Timestamp>,
    }
    let conditions = Option::<Vec<Condition>>::deserialize(from)?.unwrap_or_default();
    Ok(conditions.into_iter().find(|condition| condition.r#type == "Ready").map(|condition| {
        ReadyCondition {
            is_true: condition.status == "True",
            last_transition_time: condition.last_transition_time,
        }
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn named_ports_are_found_in_containers_and_then_in_sidecars() {
        let pod = || -> Pod {
            let json = json!({"spec": {
                "initContainers": [
                    {"name": "once", "ports": [{"name": "late", "containerPort": 1}]},
                    {"name": "proxy", "restartPolicy": "Always", "ports": [
                        {"name": "web", "containerPort": 2, "protocol": "TCP"},
                        {"name": "mesh", "containerPort": 3, "protocol": "TCP"},
                    ]},
                ],
                "containers": [
                    {"name": "plain"},
                    {"name": "main", "ports": [
                        {"containerPort": 9},
                        {"name": "web", "containerPort": 53, "protocol": "UDP"},
                        {"name": "web", "containerPort": 80, "protocol": "TCP"},
                    ]},
                ],
            }});
            serde_json::from_value(json).unwrap()
        };
        for (name, protocol, found) in [
            ("web", "TCP", Some(80)),
            ("web", "UDP", Some(53)),
            ("mesh", "TCP", Some(3)),
            ("late", "TCP", None),
            ("", "TCP", None),
        ] {
            assert_eq!(pod().port(name, protocol), found, "{name}/{protocol}");
        }
        let (a, b) = (pod(), pod());
        let (a, b) = (a.spec.ports.0.unwrap(), b.spec.ports.0.unwrap());
        assert!(Arc::ptr_eq(&a, &b), "pods that are alike share them");
    }

    #[test]
    fn addresses_are_read_as_the_api_does() {
        for (text, read) in [
            ("10.0.0.1", Some("10.0.0.1")),
            ("010.000.00.01", Some("10.0.0.1")),
            ("::ffff:1.2.3.4", Some("1.2.3.4")),
            ("FD00:0::1", Some("fd00::1")),
            ("1.2.3", None),
            ("1.2.3.4.5", None),
            ("1.2.3.256", None),
            ("1.+2.3.4", None),
            ("", None),
            ("example.com", None),
        ] {
            assert_eq!(parse_ip(text).map(|ip| ip.to_string()).as_deref(), read, "{text}");
        }
    }
}
