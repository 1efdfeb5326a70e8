//! Deletes old PodCertificateRequests.
//! Upstream: `pkg/controller/certificates/cleaner` (`PCRCleanerController`).

use std::sync::Arc;
use std::time::Duration;

use crate::cache::Lister;
use crate::client::{Client, Delete};
use crate::clock::SharedClock;
use crate::controllers::{Controller, Error};
use crate::objects::{PodCertificateRequest, Timestamp};

const INTERVAL: Duration = Duration::from_secs(5 * 60);
/// After this time a kubelet has its certificate, or has given up.
const TTL: Duration = Duration::from_secs(15 * 60);

/// Sets up the controller `podcertificaterequest-cleaner-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let requests = c.lister::<PodCertificateRequest>();
    let this = Arc::new(Cleaner { client: c.client(), requests, clock: c.clock() });
    c.every(INTERVAL, move || this.clone().clean());
    Ok(())
}

struct Cleaner {
    client: Client,
    requests: Lister<PodCertificateRequest>,
    clock: SharedClock,
}

impl Cleaner {
    /// Deletes all requests that are too old. A failure is logged: the next pass deletes again.
    async fn clean(self: Arc<Self>) -> Result<(), Error> {
        for request in self.requests.list() {
            if !is_expired(&request, self.clock.now()) {
                continue;
            }
            let key = request.meta.key();
            let delete = Delete::new().uid(request.meta.uid.clone());
            match self.client.delete::<PodCertificateRequest>(&key, delete).await {
                Err(error) if !error.is_not_found() => log::error!(
                    "Error while attempting to clean PodCertificateRequest: \
                     unable to delete PodCertificateRequest \"{key}\": {error}"
                ),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns whether the request is older than [`TTL`]. Its status does not matter.
fn is_expired(request: &PodCertificateRequest, now: Timestamp) -> bool {
    now >= request.meta.creation_timestamp.unwrap_or_default() + TTL
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::Meta;

    #[test]
    fn a_request_is_over_after_a_quarter_of_an_hour() {
        let created = Timestamp::from_secs(1_000_000);
        let meta = Meta { creation_timestamp: Some(created), ..Meta::default() };
        let request = PodCertificateRequest { meta };
        assert!(!is_expired(&request, created + Duration::from_secs(899)));
        assert!(is_expired(&request, created + Duration::from_secs(900)));
    }
}
