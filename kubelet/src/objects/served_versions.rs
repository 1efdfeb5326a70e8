//! The resources of pods' volumes that API servers of different releases serve in different versions.

use std::time::Duration;

use kube_controller_manager::client::{Client, Versions};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::{PodCertificateRequest, Resource};

/// Each with the versions that the kubelet can use, the best one first.
const SERVED_VERSIONS: &[Versions] = &[(PodCertificateRequest::RESOURCE, &["v1", "v1beta1"])];

/// The pause before the served versions are read again.
const RETRY_PERIOD: Duration = Duration::from_secs(10);

/// Asks the API server in which of their versions it serves these resources, until it answers. May
/// be dropped at any time.
pub(super) async fn choose(client: &Client, clock: &SharedClock) {
    loop {
        match client.choose_versions(SERVED_VERSIONS).await {
            Ok(true) => return,
            Ok(false) => log::warn!("the served versions cannot be read"),
            Err(error) => log::warn!("the served versions cannot be read: {error}"),
        }
        clock.sleep(RETRY_PERIOD).await;
    }
}
