//! Reviews of tokens and of access by the API server.
//! Upstream: `apiserver/plugin/pkg/authenticator/token/webhook`,
//! `apiserver/plugin/pkg/authorizer/webhook`.

use std::collections::HashMap;
use std::time::Duration;

use futures_lite::FutureExt;
use futures_lite::future::Boxed;
use serde_json::{Value, json};

use super::{Access, User};
use crate::client::{self, Client};
use crate::clock::SharedClock;
use crate::objects::ResourceType;

/// The limit for one review with its retries: reviews for unauthenticated clients delay others.
/// Upstream: `TokenRequestTimeout`, and `ClientTimeout` for each request about access.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The pauses before each retry of a review. Upstream: `DefaultAuthWebhookRetryBackoff`.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(500),
    Duration::from_millis(750),
    Duration::from_millis(1_125),
    Duration::from_millis(1_687),
];
/// Each pause is prolonged by up to this share of it.
const JITTER: f64 = 0.2;

/// Reviews by the API server. Errors are for the log.
pub trait Reviewer: Send + Sync {
    /// Whether tokens can be reviewed.
    fn reviews_tokens(&self) -> bool;
    /// The owner of `token`; `None` when the token is not valid.
    fn token(&self, token: &str) -> Boxed<Result<Option<User>, String>>;
    /// Whether `user` has this access.
    fn access(&self, user: &User, access: &Access) -> Boxed<Result<bool, String>>;
}

const TOKEN_REVIEW: ResourceType =
    ResourceType::fixed("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", false);
const ACCESS_REVIEW: ResourceType = ResourceType::fixed(
    "authorization.k8s.io",
    "v1",
    "SubjectAccessReview",
    "subjectaccessreviews",
    false,
);

/// Reviews by a kube-apiserver. Without the first client no token is valid; without the second no
/// access is allowed.
pub struct ApiReviewer {
    pub authentication: Option<Client>,
    pub authorization: Option<Client>,
    pub clock: SharedClock,
}

impl Reviewer for ApiReviewer {
    fn reviews_tokens(&self) -> bool {
        self.authentication.is_some()
    }

    /// Asks for a TokenReview; without a client, no token is valid.
    fn token(&self, token: &str) -> Boxed<Result<Option<User>, String>> {
        let body = json!({
            "apiVersion": TOKEN_REVIEW.api_version(), "kind": "TokenReview",
            "spec": { "token": token },
        });
        let (client, clock) = (self.authentication.clone(), self.clock.clone());
        Box::pin(async move {
            let Some(client) = client else { return Ok(None) };
            Ok(reviewed_user(&review(&clock, &client, &TOKEN_REVIEW, &body).await?["status"]))
        })
    }

    /// Asks for a SubjectAccessReview; without a client, nothing is allowed.
    fn access(&self, user: &User, access: &Access) -> Boxed<Result<bool, String>> {
        let (kind, attributes) = match access {
            Access::Path { verb, path } => {
                ("nonResourceAttributes", json!({ "verb": verb, "path": path }))
            }
            Access::Resource { verb, resource, subresource, name } => {
                let attributes = json!({
                    "verb": verb, "version": "v1", "resource": resource,
                    "subresource": subresource, "name": name,
                });
                ("resourceAttributes", attributes)
            }
        };
        let extra: HashMap<_, _> = user.extra.iter().cloned().collect();
        let body = json!({
            "apiVersion": ACCESS_REVIEW.api_version(), "kind": "SubjectAccessReview",
            "spec": {
                "user": user.name, "uid": user.uid, "groups": user.groups, "extra": extra,
                kind: attributes,
            },
        });
        let (client, clock) = (self.authorization.clone(), self.clock.clone());
        Box::pin(async move {
            let Some(client) = client else { return Ok(false) };
            let answer = review(&clock, &client, &ACCESS_REVIEW, &body).await?;
            Ok(answer["status"]["allowed"] == true && answer["status"]["denied"] != true)
        })
    }
}

/// Creates a review, with retries, and returns it with its status.
async fn review(
    clock: &SharedClock,
    client: &Client,
    resource: &ResourceType,
    body: &Value,
) -> Result<Value, String> {
    let reviews = client.resource(resource);
    ask_with_retries(clock, || reviews.create("", body)).await
}

/// Calls `ask` until there is an answer, a permanent failure, or a timeout.
/// Upstream: `webhook.WithExponentialBackoff`.
async fn ask_with_retries<Fut>(clock: &SharedClock, ask: impl Fn() -> Fut) -> Result<Value, String>
where
    Fut: Future<Output = client::Result<Value>>,
{
    let asking = async {
        let mut pauses = PAUSES.iter();
        loop {
            let error = match ask().await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            match pauses.next().filter(|_| should_retry(&error)) {
                Some(pause) => clock.sleep(pause.mul_f64(1.0 + JITTER * fastrand::f64())).await,
                None => return Err(error.to_string()),
            }
        }
    };
    let late = async {
        clock.sleep(TIMEOUT).await;
        Err(format!("no answer to a review within {TIMEOUT:?}"))
    };
    asking.or(late).await
}

/// Returns whether a failed review may succeed soon. Upstream: `webhook.DefaultShouldRetry`, which
/// has more failures.
fn should_retry(error: &client::Error) -> bool {
    error.is_reset() || error.is_internal() || error.is_timeout() || error.is_too_many_requests()
}

/// Reads the user from the status of a TokenReview; `None` if the token is not valid.
fn reviewed_user(status: &Value) -> Option<User> {
    let strings = |value: &Value| -> Vec<String> {
        let items = value.as_array().into_iter().flatten();
        items.filter_map(|item| item.as_str().map(String::from)).collect()
    };
    let user = &status["user"];
    (status["authenticated"] == true).then(|| User {
        name: user["username"].as_str().unwrap_or_default().into(),
        uid: user["uid"].as_str().unwrap_or_default().into(),
        groups: strings(&user["groups"]),
        extra: user["extra"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, values)| (key.clone(), strings(values)))
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::{Error as IoError, ErrorKind};

    use futures_lite::future::{self, block_on};

    use super::*;
    use crate::clock::FakeClock;
    use crate::objects::Timestamp;

    #[test]
    fn a_review_is_asked_for_again_after_what_may_pass() {
        // failures, their kind, whether there is an answer in the end, and how often it was asked for
        for (failures, kind, answered, asked) in [
            (0, ErrorKind::ConnectionReset, true, 1),
            (4, ErrorKind::ConnectionReset, true, 5),
            (5, ErrorKind::ConnectionReset, false, 5),
            (1, ErrorKind::ConnectionRefused, false, 1),
        ] {
            let fake = FakeClock::new(Timestamp::from_secs(0));
            let clock: SharedClock = fake.clone();
            let count = Cell::new(0);
            let review = ask_with_retries(&clock, || {
                count.set(count.get() + 1);
                let source = IoError::from(kind).into();
                let error = client::Error::Transport { request: "POST /x".into(), source };
                future::ready(if count.get() > failures { Ok(Value::Null) } else { Err(error) })
            });
            let time = async {
                loop {
                    fake.advance(Duration::from_millis(10));
                    future::yield_now().await;
                }
            };
            assert_eq!(block_on(review.or(time)).is_ok(), answered, "{failures} {kind}");
            assert_eq!(count.get(), asked, "{failures} {kind}");
        }
    }

    #[test]
    fn a_silent_server_is_asked_once() {
        let fake = FakeClock::new(Timestamp::from_secs(0));
        let clock: SharedClock = fake.clone();
        let review = ask_with_retries(&clock, future::pending);
        let time = async {
            future::yield_now().await;
            fake.advance(TIMEOUT);
            future::pending().await
        };
        let error = block_on(review.or(time)).unwrap_err();
        assert_eq!(error, "no answer to a review within 10s");
    }
}
