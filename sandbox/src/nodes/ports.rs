//! The host ports of pods.

use kube_controller_manager::objects::Istr;
use serde::{Deserialize, Deserializer};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HostPort {
    host_port: i32,
    #[serde(rename = "hostIP")]
    host_ip: Istr,
    protocol: Istr,
}

/// The host ports of a container. Few containers have any.
#[derive(Clone, Debug, Default)]
pub struct HostPorts(pub Vec<HostPort>);

impl HostPort {
    /// Returns whether both need the same port of a host. Upstream:
    /// `framework.HostPortInfo.CheckConflict`.
    pub fn conflicts(&self, other: &HostPort) -> bool {
        let any = |ip: &str| matches!(ip, "" | "0.0.0.0");
        self.host_port == other.host_port
            && self.protocol == other.protocol
            && (any(&self.host_ip) || any(&other.host_ip) || self.host_ip == other.host_ip)
    }
}

impl<'de> Deserialize<'de> for HostPorts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<HostPorts, D::Error> {
        let mut ports = Vec::<HostPort>::deserialize(deserializer)?;
        ports.retain(|port| port.host_port != 0);
        ports.shrink_to_fit();
        Ok(HostPorts(ports))
    }
}
