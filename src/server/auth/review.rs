//! Reviews of tokens and of access by the API server.
//! Upstream: `apiserver/plugin/pkg/authenticator/token/webhook`,
//! `apiserver/plugin/pkg/authorizer/webhook`.

use std::collections::HashMap;

use futures_lite::future::Boxed;
use serde_json::{Value, json};

use super::User;
use crate::client::Client;
use crate::objects::ResourceType;

/// Asks the API server. Errors are for the log.
pub trait Reviewer: Send + Sync {
    /// Whether tokens can be reviewed.
    fn reviews_tokens(&self) -> bool;
    /// The owner of `token`; `None` when the token is not valid.
    fn token(&self, token: &str) -> Boxed<Result<Option<User>, String>>;
    /// Whether `user` may apply `verb` to the non-resource `path`.
    fn access(&self, user: &User, verb: &str, path: &str) -> Boxed<Result<bool, String>>;
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
}

impl Reviewer for ApiReviewer {
    fn reviews_tokens(&self) -> bool {
        self.authentication.is_some()
    }

    fn token(&self, token: &str) -> Boxed<Result<Option<User>, String>> {
        let body = json!({
            "apiVersion": TOKEN_REVIEW.api_version(), "kind": "TokenReview",
            "spec": { "token": token },
        });
        let client = self.authentication.clone();
        Box::pin(async move {
            let Some(client) = client else { return Ok(None) };
            let answer = client.resource(&TOKEN_REVIEW).create::<Value>("", &body).await;
            Ok(reviewed_user(&answer.map_err(|error| error.to_string())?["status"]))
        })
    }

    fn access(&self, user: &User, verb: &str, path: &str) -> Boxed<Result<bool, String>> {
        let extra: HashMap<_, _> = user.extra.iter().cloned().collect();
        let body = json!({
            "apiVersion": ACCESS_REVIEW.api_version(), "kind": "SubjectAccessReview",
            "spec": {
                "user": user.name, "uid": user.uid, "groups": user.groups, "extra": extra,
                "nonResourceAttributes": { "verb": verb, "path": path },
            },
        });
        let client = self.authorization.clone();
        Box::pin(async move {
            let Some(client) = client else { return Ok(false) };
            let answer = client.resource(&ACCESS_REVIEW).create::<Value>("", &body).await;
            let answer = answer.map_err(|error| error.to_string())?;
            Ok(answer["status"]["allowed"] == true && answer["status"]["denied"] != true)
        })
    }
}

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
