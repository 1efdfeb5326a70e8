//! A validating webhook of a real API server: it admits pods at once, late, or not at all.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::Result;
use super::workload::{NAMESPACES, namespace_name};
use kube_controller_manager::client::Client;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::ResourceType;
use kube_controller_manager::server::http::{Handler, Response, Server as HttpServer};
use kube_controller_manager::server::tls::Tls;
use kube_controller_manager::task::StopToken;

const WEBHOOKS: ResourceType = ResourceType::fixed(
    "admissionregistration.k8s.io",
    "v1",
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations",
    false,
);
/// How long the API server waits for an answer. The shortest that it allows.
const TIMEOUT_SECONDS: u32 = 1;
const BODY_LIMIT_BYTES: usize = 4 << 20;

/// How the webhook answers.
#[derive(Default)]
struct Behavior {
    /// A reference to each denial that has not ended.
    denials: Arc<()>,
    /// The number of answers that are still to be delayed, and the delay.
    delayed_answers: Mutex<(usize, Duration)>,
}

/// While it exists, the webhook denies all pods.
#[expect(dead_code, reason = "held for its count")]
pub struct Denial(Arc<()>);

/// The webhook's port.
pub struct Webhook {
    behavior: Arc<Behavior>,
    port: HttpServer,
}

impl Webhook {
    /// Opens the port, and makes the API server ask there about each new pod of the soak.
    ///
    /// # Errors
    /// A port that cannot be opened, or a configuration that the API server refuses.
    pub async fn start(
        client: &Client,
        tls: Tls,
        authority: &Path,
        clock: &SharedClock,
        stop: &StopToken,
    ) -> Result<Webhook> {
        let behavior = Arc::<Behavior>::default();
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let handler = handler(&behavior, clock);
        let port = HttpServer::start(any, Some(tls), handler, clock.clone(), stop.clone()).await?;
        let url = format!("https://{}/admit", port.address());
        let authority = BASE64_STANDARD.encode(fs::read(authority)?);
        client.resource(&WEBHOOKS).create::<Value>("", &configuration(&url, &authority)).await?;
        Ok(Webhook { behavior, port })
    }

    /// Denies all pods until all denials are dropped.
    #[must_use]
    pub fn deny(&self) -> Denial {
        Denial(self.behavior.denials.clone())
    }

    /// Delays the next `times` answers by `delay`.
    pub fn delay(&self, times: usize, delay: Duration) {
        *self.behavior.delayed_answers.lock() = (times, delay);
    }

    /// Waits for the port to close, after the stop.
    pub async fn join(self) {
        self.port.join().await;
    }
}

/// Returns a handler that answers each review as the behavior says, after its delay.
fn handler(behavior: &Arc<Behavior>, clock: &SharedClock) -> Handler {
    let (behavior, clock) = (behavior.clone(), clock.clone());
    Arc::new(move |request| {
        let (behavior, clock) = (behavior.clone(), clock.clone());
        Box::pin(async move {
            let Ok(body) = request.body.read(BODY_LIMIT_BYTES).await else {
                return Response::text(400, "unreadable");
            };
            let review: Value = serde_json::from_slice(&body).unwrap_or_default();
            let delay = behavior.take_delay();
            clock.sleep(delay).await;
            Response::json(200, &answer(&review, behavior.denies()))
        })
    })
}

impl Behavior {
    /// Returns whether a denial is held: the webhook holds one reference itself.
    fn denies(&self) -> bool {
        Arc::strong_count(&self.denials) > 1
    }

    /// Returns the delay of the next answer, and counts that answer if it is one of those to delay.
    fn take_delay(&self) -> Duration {
        let (left, delay) = &mut *self.delayed_answers.lock();
        if *left == 0 {
            return Duration::ZERO;
        }
        *left -= 1;
        *delay
    }
}

/// Builds the answer to a review: the pod is allowed or denied.
fn answer(review: &Value, denies: bool) -> Value {
    let mut response = json!({ "uid": review["request"]["uid"], "allowed": !denies });
    if denies {
        response["status"] =
            json!({ "code": 403, "reason": "Forbidden", "message": "no pod for now" });
    }
    json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response })
}

/// Builds the configuration by which the API server calls this webhook for new pods of the soak's
/// namespaces.
fn configuration(url: &str, authority: &str) -> Value {
    let namespaces: Vec<String> = (0..NAMESPACES).map(namespace_name).collect();
    json!({
        "apiVersion": WEBHOOKS.api_version(), "kind": WEBHOOKS.kind,
        "metadata": { "name": "soak" },
        "webhooks": [{
            "name": "pods.soak.example.com",
            "admissionReviewVersions": ["v1"],
            "clientConfig": { "url": url, "caBundle": authority },
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "timeoutSeconds": TIMEOUT_SECONDS,
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"],
                "operations": ["CREATE"],
            }],
            "namespaceSelector": { "matchExpressions": [{
                "key": "kubernetes.io/metadata.name", "operator": "In", "values": namespaces,
            }] },
        }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_admitted_unless_the_webhook_denies() {
        let review = json!({ "request": { "uid": "u" } });
        for denies in [false, true] {
            let answer = answer(&review, denies);
            assert_eq!(answer["response"]["uid"], "u");
            assert_eq!(answer["response"]["allowed"], !denies);
        }
    }

    #[test]
    fn as_many_answers_are_late_as_were_asked_for() {
        let (behavior, late) = (Behavior::default(), Duration::from_millis(5));
        *behavior.delayed_answers.lock() = (2, late);
        assert_eq!([(); 3].map(|()| behavior.take_delay()), [late, late, Duration::ZERO]);
    }

    #[test]
    fn pods_are_denied_until_the_last_denial_ends() {
        let behavior = Behavior::default();
        let denials = [(); 2].map(|()| Denial(behavior.denials.clone()));
        for denial in denials {
            assert!(behavior.denies());
            drop(denial);
        }
        assert!(!behavior.denies());
    }
}
