//! The lean view of a StorageVersion: which version of a resource each API server stores.

use serde::Deserialize;

use crate::objects::{Istr, Meta, null_as_default, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct StorageVersion {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub status: StorageVersionStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageVersionStatus {
    /// One entry for each API server.
    #[serde(deserialize_with = "null_as_default")]
    pub storage_versions: Vec<ServerStorageVersion>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServerStorageVersion {
    /// The name of the server's identity lease.
    #[serde(rename = "apiServerID")]
    pub api_server_id: Istr,
}

resource!(StorageVersion, "internal.apiserver.k8s.io", "v1alpha1", "storageversions", cluster);
