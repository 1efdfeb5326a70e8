//! What decides about new pods, by the settings.

use std::sync::Arc;
use std::time::Duration;

use futures_lite::FutureExt;
use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::client::Client;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::{Node, ObjectKey, Resource};

use super::Error;
use crate::admission::{Allowlist, KernelVersion, Rules, kernel_version};
use crate::kubelet::{Admission, FetchNode};
use crate::node::app_armor;
use crate::options::configuration::Configuration;
use crate::whole_object::WholeObject;

/// A pod waits this long for a newer Node.
const FETCH_LIMIT: Duration = Duration::from_secs(10);

/// Builds the rules by which new pods are admitted. `client`: that of the API server; `node`: the
/// name of the Node.
///
/// # Errors
/// The setting that is refused.
pub(super) fn admission(
    configuration: &Configuration,
    client: Option<&Client>,
    node: &str,
    clock: &SharedClock,
) -> Result<Admission, Error> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let kernel = kernel_version(&release).unwrap_or_else(|| {
        log::warn!("failed to get kernel version, unable to determine which sysctls are available");
        KernelVersion::default()
    });
    let sysctls = Allowlist::new(&configuration.allowed_unsafe_sysctls, kernel)
        .map_err(Error::of("allowedUnsafeSysctls (--allowed-unsafe-sysctls)"))?;
    Ok(Admission {
        rules: Rules { sysctls, has_app_armor: app_armor::is_enabled() },
        fetch_node: client.map(|client| fetch_node(client, node, clock)),
    })
}

/// Returns a function that reads the Node from the API server; its result is `None` if that fails
/// or takes too long.
fn fetch_node(client: &Client, node: &str, clock: &SharedClock) -> FetchNode {
    let (client, key, clock) = (client.clone(), ObjectKey::cluster(node), clock.clone());
    Box::new(move || {
        let (client, key, clock) = (client.clone(), key.clone(), clock.clone());
        let late = async move {
            clock.sleep(FETCH_LIMIT).await;
            None
        };
        let request = async move {
            let read = client.resource(&Node::RESOURCE).get::<WholeObject<core::Node>>(&key).await;
            let read = read.inspect_err(|error| log::error!("the Node is not read: {error}"));
            read.ok().map(|node| Arc::clone(node.object()))
        };
        request.or(late).boxed()
    })
}
