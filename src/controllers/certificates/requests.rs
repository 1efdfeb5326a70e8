//! The parts that the controllers of certificate requests share.
//! Upstream: `pkg/controller/certificates` (`CertificateController`).

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::x509::CertificateRequest;
use crate::clock::SharedClock;
use crate::controllers::QueuePolicy;
use crate::objects::{CertificateSigningRequest, ObjectKey};
use crate::workqueue::{BucketRateLimiter, MaxOfRateLimiter, exponential_failure_rate_limiter};

/// Returns the pace of retries: a key that failed waits from 200 ms to 1000 s; at most 10 keys a
/// second are retried, with a burst of 100.
pub fn queue_policy(clock: SharedClock) -> QueuePolicy<ObjectKey> {
    QueuePolicy::default().limited_by(Arc::new(MaxOfRateLimiter::new(vec![
        exponential_failure_rate_limiter(Duration::from_millis(200), Duration::from_secs(1000)),
        Arc::new(BucketRateLimiter::new(10.0, 100, clock)),
    ])))
}

/// Parses the PKCS #10 request in `spec.request`, a PEM in base64.
///
/// # Errors
/// One line that describes the fault.
pub fn parse_request(object: &CertificateSigningRequest) -> Result<CertificateRequest, String> {
    let parsed = match STANDARD.decode(&*object.spec.request) {
        Ok(pem) => CertificateRequest::from_pem(&pem),
        Err(error) => Err(error.to_string()),
    };
    parsed.map_err(|error| format!("unable to parse csr {:?}: {error}", object.meta.name))
}
