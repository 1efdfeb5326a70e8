//! The table of providers.

use std::sync::Arc;

use crate::provider::{Cloud, Provider, Settings};
use crate::{bare, grpc};

/// The values of `--cloud-provider`.
const PROVIDERS: &[Provider] = &[
    Provider { name: bare::NAME, open: bare::open },
    Provider { name: grpc::NAME, open: grpc::open },
];

/// Makes the provider that `--cloud-provider` names. Upstream: `InitCloudProvider`.
///
/// # Errors
/// The name is unknown, or the provider refuses its settings.
pub fn open(name: &str, settings: &Settings) -> Result<Arc<dyn Cloud>, String> {
    let Some(provider) = PROVIDERS.iter().find(|provider| provider.name == name) else {
        let known: Vec<&str> = PROVIDERS.iter().map(|provider| provider.name).collect();
        return Err(format!(
            "unknown cloud provider {name:?}: --cloud-provider is one of {}",
            known.join(", ")
        ));
    };
    (provider.open)(settings)
        .map_err(|error| format!("could not init cloud provider {name:?}: {error}"))
}
