//! Deletes old certificate requests. Upstream: `pkg/controller/certificates/cleaner`.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::cache::Lister;
use crate::client::x509::Certificate;
use crate::client::{Client, Delete, pem};
use crate::clock::SharedClock;
use crate::controllers::{Controller, Error};
use crate::objects::{CertificateSigningRequest, CertificateSigningRequestStatus, Timestamp};

const INTERVAL: Duration = Duration::from_secs(60 * 60);
/// How long requests are kept: after they were issued, denied or failed; and without a decision.
const DECIDED_TTL: Duration = Duration::from_secs(60 * 60);
const PENDING_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// Sets up the controller `certificatesigningrequest-cleaner-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let requests = c.lister::<CertificateSigningRequest>();
    let this = Arc::new(Cleaner { client: c.client(), requests, clock: c.clock() });
    c.every(INTERVAL, move || this.clone().clean());
    Ok(())
}

struct Cleaner {
    client: Client,
    requests: Lister<CertificateSigningRequest>,
    clock: SharedClock,
}

impl Cleaner {
    /// Deletes all requests that are too old. A failure is logged: the next pass deletes again.
    async fn clean(self: Arc<Self>) -> Result<(), Error> {
        for request in self.requests.list() {
            let Some(why) = deletion_reason(&request, self.clock.now()) else { continue };
            let name = &request.meta.name;
            log::info!("Cleaning CSR as {why}. csr={name:?}");
            let key = request.meta.key();
            let deleted = self.client.delete::<CertificateSigningRequest>(&key, Delete::new());
            if let Err(error) = deleted.await {
                log::error!(
                    "Error while attempting to clean CSR: unable to delete CSR {name:?}: {error}"
                );
            }
        }
        Ok(())
    }
}

/// Returns why `request` is to be deleted, in words for the log; `None` if it stays.
fn deletion_reason(request: &CertificateSigningRequest, now: Timestamp) -> Option<&'static str> {
    let status = &request.status;
    let is_older = |time: Option<Timestamp>, ttl: Duration| {
        time.is_some_and(|time| now.duration_since(time) > ttl)
    };
    // Whether a condition of this kind was last updated longer than `ttl` ago.
    let has_old = |kind: &str, ttl: Duration| {
        let mut conditions = status.conditions.iter().filter(|condition| condition.kind == *kind);
        conditions.any(|condition| is_older(condition.last_update_time, ttl))
    };
    let approved = CertificateSigningRequestStatus::APPROVED;
    let issued = status.is_issued();
    if issued && has_old(approved, DECIDED_TTL) {
        return Some("it is more than approvedExpiration duration old and approved");
    }
    if has_old(CertificateSigningRequestStatus::DENIED, DECIDED_TTL) {
        return Some("it is more than deniedExpiration duration old and denied");
    }
    if has_old(CertificateSigningRequestStatus::FAILED, DECIDED_TTL) {
        return Some("it is more than deniedExpiration duration old and failed");
    }
    if status.conditions.is_empty() && is_older(request.meta.creation_timestamp, PENDING_TTL) {
        return Some("it is more than pendingExpiration duration old and unhandled");
    }
    if status.has(approved) && certificate_end(&status.certificate).is_some_and(|end| now > end) {
        return Some("the associated certificate is expired");
    }
    if !issued && has_old(approved, PENDING_TTL) {
        return Some("it is approved but unissued for more than pendingExpiration duration");
    }
    None
}

/// Returns when the first certificate of `certificate`, a PEM in base64, ends; `None` if it cannot
/// be parsed.
fn certificate_end(certificate: &str) -> Option<Timestamp> {
    let der = pem::certificates(&STANDARD.decode(certificate).ok()?).into_iter().next()?;
    Some(Certificate::from_der(&der).ok()?.not_after())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn requests_are_kept_for_their_time() {
        let certificate = include_bytes!("../../../fixtures/certificates/kubelet-serving.crt");
        let certificate = STANDARD.encode(certificate);
        let end = certificate_end(&certificate).unwrap();
        let ago = |now: Timestamp, hours: f64| {
            Timestamp::from_secs(now.as_secs() - (hours * 3600.0) as i64)
        };
        let condition = |kind: &str, updated: Option<Timestamp>| json!({ "type": kind, "status": "True", "lastUpdateTime": updated });
        let now = end - Duration::from_secs(60);
        let condition_of_age =
            |kind: &str, hours: f64| json!([condition(kind, Some(ago(now, hours)))]);
        let no_conditions = json!([]);
        // Created this number of hours ago; conditions; whether it is issued; why it is deleted.
        let cases: [(f64, Value, bool, &str); 16] = [
            (23.9, no_conditions.clone(), false, ""),
            (24.1, no_conditions.clone(), false, "unhandled"),
            (99.0, condition_of_age("Approved", 0.9), true, ""),
            (99.0, condition_of_age("Approved", 1.1), true, "approved"),
            (99.0, condition_of_age("Approved", 1.1), false, ""),
            (99.0, condition_of_age("Approved", 23.9), false, ""),
            (99.0, condition_of_age("Approved", 24.1), false, "unissued"),
            (99.0, condition_of_age("Denied", 0.9), false, ""),
            (99.0, condition_of_age("Denied", 1.1), false, "denied"),
            (99.0, condition_of_age("Failed", 0.9), false, ""),
            (99.0, condition_of_age("Failed", 1.1), false, "failed"),
            (99.0, condition_of_age("Other", 99.0), false, ""),
            (99.0, json!([condition("Denied", None)]), false, ""),
            (99.0, json!([condition("Approved", None)]), true, ""),
            (0.0, condition_of_age("Approved", -0.1), true, ""),
            (24.1, Value::Null, false, "unhandled"),
        ];
        let request = |created: Timestamp, conditions: &Value, issued: bool| {
            let certificate = if issued { &*certificate } else { "" };
            serde_json::from_value::<CertificateSigningRequest>(json!({
                "metadata": { "creationTimestamp": created },
                "status": { "conditions": conditions, "certificate": certificate },
            }))
            .unwrap()
        };
        for (index, (created, conditions, issued, why)) in cases.into_iter().enumerate() {
            let reason = deletion_reason(&request(ago(now, created), &conditions, issued), now);
            let found = reason.unwrap_or_default();
            assert!(found.contains(why) && found.is_empty() == why.is_empty(), "{index}: {found}");
        }
        let issued = request(end, &json!([condition("Approved", Some(end))]), true);
        assert_eq!(deletion_reason(&issued, end), None);
        let after = end + Duration::from_secs(1);
        assert_eq!(deletion_reason(&issued, after), Some("the associated certificate is expired"));
    }

    #[test]
    fn malformed_certificates_do_not_expire() {
        for text in ["", "!", "eA=="] {
            assert_eq!(certificate_end(text), None);
        }
    }
}
