//! The lean view of a Service.

use serde::Deserialize;

use crate::objects::{Istr, Labels, Meta, null_as_default, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Service {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub spec: ServiceSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    pub r#type: Istr,
    /// Empty: the endpoints controllers do not write its endpoints.
    pub selector: Labels,
    /// The text `None`: headless.
    #[serde(rename = "clusterIP", deserialize_with = "null_as_default")]
    pub cluster_ip: Box<str>,
    /// `IPv4`, `IPv6`, the first one first.
    #[serde(deserialize_with = "null_as_default")]
    pub ip_families: Vec<Istr>,
    #[serde(deserialize_with = "null_as_default")]
    pub ports: Vec<ServicePort>,
    #[serde(deserialize_with = "null_as_default")]
    pub publish_not_ready_addresses: bool,
    pub traffic_distribution: Option<Istr>,
    pub allocate_load_balancer_node_ports: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    pub name: Istr,
    pub protocol: Istr,
    pub app_protocol: Option<Istr>,
    #[serde(deserialize_with = "null_as_default")]
    pub target_port: TargetPort,
    /// 0: none.
    #[serde(deserialize_with = "null_as_default")]
    pub node_port: i32,
}

/// The target of a Service's port in a pod: a number, or the name of a container's port.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum TargetPort {
    Number(i32),
    Name(Istr),
}

impl Default for TargetPort {
    fn default() -> TargetPort {
        TargetPort::Number(0)
    }
}

resource!(Service, "", "v1", "services", namespaced);

impl Service {
    /// Whether the Service is headless: `clusterIP: None`.
    pub fn is_headless(&self) -> bool {
        &*self.spec.cluster_ip == "None"
    }

    /// Whether the Service has a cluster IP. Upstream: `helper.IsServiceIPSet`.
    pub fn has_cluster_ip(&self) -> bool {
        !self.spec.cluster_ip.is_empty() && !self.is_headless()
    }

    /// Whether the Service selects pods: it has a selector and is not an ExternalName.
    pub fn selects_pods(&self) -> bool {
        !self.spec.selector.is_empty() && self.spec.r#type != "ExternalName"
    }

    /// Whether the Service selects a pod with these labels. An empty selector selects nothing.
    pub fn selects(&self, labels: &Labels) -> bool {
        !self.spec.selector.is_empty() && labels.include(&self.spec.selector)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selects_by_every_label_and_never_without_a_selector() {
        let service = |selector: &str| -> Service {
            serde_json::from_str(&format!(r#"{{"spec": {{"selector": {selector}}}}}"#)).unwrap()
        };
        let labels: Labels = [("a", "1"), ("b", "2")].into_iter().collect();
        for (selector, selects) in [
            (r#"{"a": "1"}"#, true),
            (r#"{"a": "1", "b": "2"}"#, true),
            (r#"{"a": "2"}"#, false),
            (r#"{"a": "1", "c": ""}"#, false),
            ("{}", false),
            ("null", false),
        ] {
            assert_eq!(service(selector).selects(&labels), selects, "{selector}");
        }
    }
}
