//! The lean view of a Lease: its last renewal.

use serde::Deserialize;

use crate::objects::{Meta, Timestamp, micro_time, null_as_default, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Lease {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub spec: LeaseSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaseSpec {
    #[serde(with = "micro_time")]
    pub renew_time: Option<Timestamp>,
}

resource!(Lease, "coordination.k8s.io", "v1", "leases", namespaced, LEASE);
