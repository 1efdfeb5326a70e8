//! The state of one certificate of a pod, and how it changes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kube_controller_manager::client::pem;
use kube_controller_manager::objects::{Condition, Meta, Object, ObjectKey, Timestamp};
use serde::Deserialize;

use super::super::Unavailable;

/// A request that is missing for this time, and up to [`MAX_JITTER`] more, was deleted. Upstream:
/// `assumeDeletedThreshold`.
const ABANDON_AFTER: Duration = Duration::from_secs(10 * 60);
/// This time after its renewal was due a certificate is overdue. Upstream:
/// `refreshOverdueDuration`.
const OVERDUE_AFTER: Duration = Duration::from_secs(10 * 60);
/// Upstream: `jitterDuration`.
pub(super) const MAX_JITTER: Duration = Duration::from_secs(5 * 60);

/// A PodCertificateRequest, as far as the kubelet reads it.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Request {
    pub(super) metadata: Meta,
    pub(super) spec: Spec,
    pub(super) status: Status,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Spec {
    #[serde(rename = "podUID")]
    pub(super) pod_uid: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Status {
    conditions: Option<Vec<Condition>>,
    certificate_chain: String,
    begin_refresh_at: Option<Timestamp>,
    not_after: Option<Timestamp>,
}

impl Object for Request {
    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// A private key and its certificates, both in PEM.
#[derive(Clone)]
pub struct Credentials {
    pub key: Arc<str>,
    /// The pod's own certificate first.
    pub chain: Arc<str>,
}

impl fmt::Debug for Credentials {
    /// Leaves out the private key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("chain", &self.chain).finish_non_exhaustive()
    }
}

/// The certificate of one source of a pod's volumes. Upstream: `credState`.
#[derive(Default)]
pub(super) enum State {
    /// There is no request yet.
    #[default]
    Initial,
    Waiting(Pending),
    Issued(Issued),
    /// The certificate is in use, and another one is requested.
    Renewing(Issued, Pending),
    /// Denied or failed, for good.
    Refused(Refusal),
}

/// A request that has no answer yet.
pub(super) struct Pending {
    key: Arc<str>,
    request: ObjectKey,
    /// If it is missing then, it was deleted: before that the cache may be late.
    abandon_at: Timestamp,
}

impl Pending {
    /// Makes the state of the request that the API server has made for this key.
    pub(super) fn new(key: String, request: &Request, now: Timestamp, jitter: Duration) -> Pending {
        let created = request.metadata.creation_timestamp.unwrap_or(now);
        let abandon_at = created + ABANDON_AFTER + jitter;
        Pending { key: key.into(), request: request.metadata.key(), abandon_at }
    }

    /// Ends the wait for a request that is missing for too long.
    fn abandon(self) {
        log::warn!("PodCertificateRequest {} appears to have been deleted", self.request);
    }

    /// Returns the answer of the signer, if there is one.
    fn answer(&self, request: &Request, jitter: Duration) -> Option<Result<Issued, Refusal>> {
        let status = &request.status;
        status.conditions.iter().flatten().find_map(|condition| {
            let verdict = match &*condition.type_ {
                "Denied" => Verdict::Denied,
                "Failed" => Verdict::Failed,
                "Issued" => {
                    let chain = pem::certificates(status.certificate_chain.as_bytes());
                    let chain: String = chain
                        .iter()
                        .map(|certificate| pem::certificate_text(certificate))
                        .collect();
                    let credentials = Credentials { key: self.key.clone(), chain: chain.into() };
                    // The API server refuses a status that has one of them alone.
                    let (begin_refresh_at, not_after) =
                        (status.begin_refresh_at? + jitter, status.not_after?);
                    let reported = Reported::default();
                    return Some(Ok(Issued { credentials, begin_refresh_at, not_after, reported }));
                }
                _ => return None,
            };
            let reason = condition.reason.clone().unwrap_or_default();
            let message = condition.message.clone().unwrap_or_default();
            Some(Err(Refusal { verdict, reason, message }))
        })
    }
}

pub(super) struct Issued {
    credentials: Credentials,
    begin_refresh_at: Timestamp,
    not_after: Timestamp,
    reported: Reported,
}

/// The events of a certificate that were recorded.
#[derive(Default)]
struct Reported {
    overdue: bool,
    expired: bool,
}

impl Issued {
    fn is_overdue(&self, now: Timestamp) -> bool {
        now > self.begin_refresh_at + OVERDUE_AFTER
    }

    /// Returns what has to be recorded of it now, each once.
    fn reports(&mut self, now: Timestamp) -> Vec<Report> {
        let (overdue, expired) = (self.is_overdue(now), now > self.not_after);
        let mut reports = Vec::new();
        if overdue && !std::mem::replace(&mut self.reported.overdue, true) {
            let text = "PodCertificate refresh overdue".to_owned();
            reports.push(("CertificateOverdueForRefresh", text));
        }
        if expired && !std::mem::replace(&mut self.reported.expired, true) {
            reports.push(("CertificateExpired", "PodCertificate expired".to_owned()));
        }
        reports
    }
}

#[derive(Clone, Copy)]
enum Verdict {
    Denied,
    Failed,
}

pub(super) struct Refusal {
    verdict: Verdict,
    reason: String,
    message: String,
}

/// The reason and the message of an event.
pub(super) type Report = (&'static str, String);

/// What a look at a certificate has found.
#[derive(Default)]
pub(super) struct Findings {
    pub(super) reports: Vec<Report>,
    /// A request has to be created.
    pub(super) is_due: bool,
    /// The signer has answered.
    pub(super) is_answered: bool,
}

impl State {
    /// Returns the request whose answer is waited for.
    pub(super) fn pending(&self) -> Option<&ObjectKey> {
        match self {
            State::Waiting(pending) | State::Renewing(_, pending) => Some(&pending.request),
            State::Initial | State::Issued(_) | State::Refused(_) => None,
        }
    }

    /// Returns the credentials for the volume. An expired certificate stays in use.
    pub(super) fn credentials(&self) -> Result<Credentials, Unavailable> {
        match self {
            State::Issued(issued) | State::Renewing(issued, _) => Ok(issued.credentials.clone()),
            State::Initial | State::Waiting(_) => Err(Unavailable::CertificateNotYet),
            State::Refused(Refusal { verdict, reason, message }) => {
                let verdict = match verdict {
                    Verdict::Denied => "denied",
                    Verdict::Failed => "failed",
                };
                let (reason, message) = (reason.clone(), message.clone());
                Err(Unavailable::CertificateRefused { verdict, reason, message })
            }
        }
    }

    /// Returns its name in the metric. Upstream: `metricsState`.
    pub(super) fn label(&self, now: Timestamp) -> &'static str {
        match self {
            State::Initial | State::Waiting(_) => "not_yet_issued",
            State::Refused(Refusal { verdict: Verdict::Denied, .. }) => "denied",
            State::Refused(_) => "failed",
            State::Issued(issued) | State::Renewing(issued, _) if now > issued.not_after => {
                "expired"
            }
            State::Issued(issued) | State::Renewing(issued, _) if issued.is_overdue(now) => {
                "overdue_for_refresh"
            }
            State::Issued(_) | State::Renewing(..) => "fresh",
        }
    }

    /// Takes in the time, and `request`: what the cache has of the pending one. `jitter`: how much
    /// later a new certificate is renewed. Upstream: `handleProjection`.
    pub(super) fn observe(
        &mut self,
        request: Option<&Request>,
        now: Timestamp,
        jitter: Duration,
    ) -> Findings {
        let mut findings = Findings::default();
        let before = std::mem::take(self);
        *self = match (before, request) {
            (State::Waiting(pending), Some(request)) => match pending.answer(request, jitter) {
                Some(answer) => findings.answer(request, answer),
                None => State::Waiting(pending),
            },
            (State::Renewing(mut issued, pending), Some(request)) => {
                match pending.answer(request, jitter) {
                    Some(answer) => findings.answer(request, answer),
                    None => {
                        findings.reports = issued.reports(now);
                        State::Renewing(issued, pending)
                    }
                }
            }
            (State::Waiting(pending), None) if now > pending.abandon_at => {
                pending.abandon();
                State::Initial
            }
            (State::Renewing(issued, pending), None) if now > pending.abandon_at => {
                pending.abandon();
                State::Issued(issued)
            }
            (other, _) => other,
        };
        match self {
            State::Initial => findings.is_due = true,
            State::Issued(issued) if !findings.is_answered && now >= issued.begin_refresh_at => {
                findings.reports = issued.reports(now);
                findings.is_due = true;
            }
            _ => {}
        }
        findings
    }

    /// Takes the request that was created because it was due.
    pub(super) fn created(&mut self, pending: Pending) {
        *self = match std::mem::take(self) {
            State::Issued(issued) | State::Renewing(issued, _) => State::Renewing(issued, pending),
            State::Initial | State::Waiting(_) | State::Refused(_) => State::Waiting(pending),
        };
    }
}

impl Findings {
    /// Takes the answer of the signer, and returns the state after it.
    fn answer(&mut self, request: &Request, answer: Result<Issued, Refusal>) -> State {
        self.is_answered = true;
        match answer {
            Ok(issued) => State::Issued(issued),
            Err(refusal) => {
                let (kind, verdict) = match refusal.verdict {
                    Verdict::Denied => ("Denied", "was denied"),
                    Verdict::Failed => ("Failed", "failed"),
                };
                let (key, Refusal { reason, message, .. }) = (request.metadata.key(), &refusal);
                let text = format!(
                    "PodCertificateRequest {key} {verdict}, reason={reason:?}, message={message:?}"
                );
                self.reports.push((kind, text));
                State::Refused(refusal)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const BEGIN: Timestamp = Timestamp::from_secs(1_800_000_000);

    fn at(seconds: u64) -> Timestamp {
        BEGIN + Duration::from_secs(seconds)
    }

    fn request(status: &Value) -> Request {
        let metadata = json!({
            "name": "req-1", "namespace": "n", "resourceVersion": "1",
            "creationTimestamp": BEGIN,
        });
        let request = json!({"metadata": metadata, "spec": {"podUID": "u"}, "status": status});
        serde_json::from_value(request).expect("a request")
    }

    fn condition(kind: &str) -> Value {
        json!({"type": kind, "status": "True", "reason": "R", "message": "M"})
    }

    /// A status with a certificate that is renewed after six hours and ends after eight.
    fn issued() -> Value {
        let chain = "text\n-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n\
                     between\n-----BEGIN CERTIFICATE-----\nAAEC\n-----END CERTIFICATE-----\n";
        json!({
            "conditions": [condition("Issued")], "certificateChain": chain,
            "beginRefreshAt": at(6 * HOUR), "notAfter": at(8 * HOUR),
        })
    }

    fn pending(jitter: u64) -> Pending {
        let jitter = Duration::from_secs(jitter);
        Pending::new("KEY\n".to_owned(), &request(&json!({})), BEGIN, jitter)
    }

    fn shown(state: &State) -> String {
        state.credentials().map_or_else(
            |error| error.to_string(),
            |found| format!("{}{}", found.key, found.chain.replace('\n', "|")),
        )
    }

    #[test]
    fn answer_of_the_signer_decides() {
        let denied =
            "PodCertificateRequest was permanently denied: reason=\"R\" message=\"M\"".to_owned();
        let not_yet = "credential bundle is not issued yet".to_owned();
        let chain = "KEY\n-----BEGIN CERTIFICATE-----|AAAA|-----END CERTIFICATE-----|\
                     -----BEGIN CERTIFICATE-----|AAEC|-----END CERTIFICATE-----|";
        let mut without_times = issued();
        without_times["beginRefreshAt"] = Value::Null;
        for (status, expected, label, event) in [
            (json!({}), not_yet.clone(), "not_yet_issued", None),
            (json!({"conditions": null}), not_yet.clone(), "not_yet_issued", None),
            (json!({"conditions": [condition("Other")]}), not_yet.clone(), "not_yet_issued", None),
            (without_times, not_yet, "not_yet_issued", None),
            (issued(), chain.to_owned(), "fresh", None),
            (
                json!({"conditions": [condition("Denied")]}),
                denied.clone(),
                "denied",
                Some(("Denied", "was denied")),
            ),
            (
                json!({"conditions": [condition("Failed")]}),
                denied.replace("denied", "failed"),
                "failed",
                Some(("Failed", "failed")),
            ),
        ] {
            let event = event.map(|(kind, verdict)| {
                let text = "reason=\"R\", message=\"M\"";
                (kind, format!("PodCertificateRequest n/req-1 {verdict}, {text}"))
            });
            let renewing = || {
                let mut state = State::Waiting(pending(0));
                state.observe(Some(&request(&issued())), at(1), Duration::ZERO);
                state.created(pending(0));
                state
            };
            for mut state in [State::Waiting(pending(0)), renewing()] {
                let is_first = matches!(state, State::Waiting(_));
                let found = state.observe(Some(&request(&status)), at(1), Duration::ZERO);
                let is_answered = label != "not_yet_issued";
                assert_eq!(found.is_answered, is_answered, "{status}");
                assert!(!found.is_due, "{status}");
                assert_eq!(found.reports.into_iter().next(), event, "{status}");
                assert_eq!(state.pending().is_some(), !is_answered, "{status}");
                // Until the answer the certificate that is renewed stays in use.
                if is_first || is_answered {
                    assert_eq!((shown(&state), state.label(at(1))), (expected.clone(), label));
                } else {
                    assert_eq!((&*shown(&state), state.label(at(1))), (chain, "fresh"));
                }
            }
        }
    }

    #[test]
    fn renewal_is_due_at_its_time_and_jitter() {
        for (jitter, seconds, is_due, label, events) in [
            (0, 6 * HOUR - 1, false, "fresh", &[][..]),
            (0, 6 * HOUR, true, "fresh", &[]),
            (60, 6 * HOUR + 59, false, "fresh", &[]),
            (60, 6 * HOUR + 60, true, "fresh", &[]),
            (0, 6 * HOUR + 10 * MINUTE, true, "fresh", &[]),
            (
                0,
                6 * HOUR + 10 * MINUTE + 1,
                true,
                "overdue_for_refresh",
                &["CertificateOverdueForRefresh"],
            ),
            (0, 8 * HOUR, true, "overdue_for_refresh", &["CertificateOverdueForRefresh"]),
            (
                0,
                8 * HOUR + 1,
                true,
                "expired",
                &["CertificateOverdueForRefresh", "CertificateExpired"],
            ),
        ] {
            let mut state = State::Waiting(pending(0));
            let jitter = Duration::from_secs(jitter);
            state.observe(Some(&request(&issued())), at(1), jitter);
            // A signer may answer too late; the renewal follows by a later look.
            let mut late = State::Waiting(pending(0));
            assert!(!late.observe(Some(&request(&issued())), at(seconds), jitter).is_due);
            let found = state.observe(None, at(seconds), jitter);
            assert_eq!(found.is_due, is_due, "{seconds}");
            let reasons: Vec<_> = found.reports.iter().map(|(reason, _)| *reason).collect();
            assert_eq!((reasons, state.label(at(seconds))), (events.to_vec(), label), "{seconds}");
            // Each event is recorded once, also while the renewal has no answer.
            let again = state.observe(None, at(seconds), jitter);
            assert!(again.reports.is_empty() && again.is_due == is_due);
            state.created(pending(0));
            let again = state.observe(Some(&request(&json!({}))), at(seconds), jitter);
            assert!(again.reports.is_empty() && !again.is_due);
            let last = state.observe(Some(&request(&json!({}))), at(9 * HOUR), jitter);
            assert_eq!(events.len() + last.reports.len(), 2, "{seconds}");
        }
    }

    #[test]
    fn missing_request_is_created_again_after_ten_minutes() {
        for (jitter, seconds, is_due) in [
            (0, 0, false),
            (0, 10 * MINUTE, false),
            (0, 10 * MINUTE + 1, true),
            (299, 10 * MINUTE + 299, false),
            (299, 10 * MINUTE + 300, true),
        ] {
            let mut state = State::Waiting(pending(jitter));
            let found = state.observe(None, at(seconds), Duration::ZERO);
            assert_eq!(found.is_due, is_due, "{seconds}");
            assert_eq!(state.pending().is_none(), is_due);
            let mut state = State::Waiting(pending(0));
            state.observe(Some(&request(&issued())), at(0), Duration::ZERO);
            state.created(pending(jitter));
            // The renewal is not due yet by the time of the certificate.
            state.observe(None, at(seconds), Duration::ZERO);
            assert_eq!(state.pending().is_none(), is_due, "{seconds}");
            assert_eq!(state.label(at(seconds)), "fresh");
        }
    }

    #[test]
    fn refusal_is_final() {
        let mut state = State::Waiting(pending(0));
        let denied = request(&json!({"conditions": [condition("Denied")]}));
        state.observe(Some(&denied), at(1), Duration::ZERO);
        for seconds in [2, 100 * HOUR] {
            let found = state.observe(None, at(seconds), Duration::ZERO);
            assert!(!found.is_due && found.reports.is_empty());
            assert_eq!(state.label(at(seconds)), "denied");
        }
        assert!(State::Initial.observe(None, at(0), Duration::ZERO).is_due);
    }

    #[test]
    fn private_key_is_not_shown() {
        let mut state = State::Waiting(pending(0));
        state.observe(Some(&request(&issued())), at(1), Duration::ZERO);
        let text = format!("{:?}", state.credentials());
        assert!(text.contains("CERTIFICATE") && !text.contains("KEY"), "{text}");
    }
}
