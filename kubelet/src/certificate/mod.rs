//! The kubelet's identity: the client certificate with which it is `system:node:NAME` at the API
//! server, and the certificate with which it serves. Upstream: `pkg/kubelet/certificate`,
//! `client-go/util/certificate`.

mod bootstrap;
mod client;
mod csr;
mod error;
mod key;
mod manager;
mod serving;
mod store;
#[cfg(test)]
mod testing;

pub use bootstrap::Places;
pub use client::ClientCertificate;
pub use error::Error;
pub use key::PrivateKey;
pub use serving::{Options as ServingOptions, ServingCertificate};

/// The prefixes of files. Upstream: `NewFileStore`.
const CLIENT_STORE: &str = "kubelet-client";
const SERVING_STORE: &str = "kubelet-server";

/// The usages of certificates that make their purpose.
const CLIENT_AUTH: &str = "client auth";
const SERVER_AUTH: &str = "server auth";
