//! The lean view of a Service.

use serde::Deserialize;

use super::{Istr, Meta, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Service {
    #[serde(rename = "metadata")]
    pub meta: Meta,
    pub spec: ServiceSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    pub r#type: Istr,
    pub ports: Vec<ServicePort>,
    pub allocate_load_balancer_node_ports: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    /// 0: none.
    pub node_port: i32,
}

resource!(Service, "", "v1", "services", namespaced);
