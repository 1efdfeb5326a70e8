//! Questions that are asked by a create and never stored: who is this, may they.
//! Upstream: `pkg/registry/{authentication,authorization}`.

use serde_json::{Value, json};

use super::api::{Api, Payload, json_response};
use super::auth::{Access, ISSUER, User, is_for};
use super::call::ResourcePath;
use super::status::ApiResult;
use super::write::{list, text};
use crate::server::http::Response;

/// Makes a review's status, given who asks and the review.
type Answer = fn(&Api, &User, &Value) -> Value;

impl Api {
    /// The answer, when `at` is such a question.
    pub fn review(
        &self,
        verb: &str,
        at: &ResourcePath,
        user: &User,
        payload: &Payload,
    ) -> ApiResult<Option<Response>> {
        if verb != "create" || !at.name.is_empty() {
            return Ok(None);
        }
        let (kind, answer): (&str, Answer) = match (at.group.as_str(), at.resource.as_str()) {
            ("authentication.k8s.io", "tokenreviews") => ("TokenReview", Api::token_review),
            ("authentication.k8s.io", "selfsubjectreviews") => {
                ("SelfSubjectReview", |_, user, _| json!({ "userInfo": user.to_json() }))
            }
            ("authorization.k8s.io", "subjectaccessreviews") => {
                ("SubjectAccessReview", Api::subject_access_review)
            }
            ("authorization.k8s.io", "localsubjectaccessreviews") => {
                ("LocalSubjectAccessReview", Api::subject_access_review)
            }
            ("authorization.k8s.io", "selfsubjectaccessreviews") => {
                ("SelfSubjectAccessReview", |api, user, review| api.access(user, review))
            }
            ("authorization.k8s.io", "selfsubjectrulesreviews") => {
                ("SelfSubjectRulesReview", |_, _, _| {
                    json!({
                        "resourceRules": [{ "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"] }],
                        "nonResourceRules": [{ "verbs": ["*"], "nonResourceURLs": ["*"] }],
                        "incomplete": false,
                    })
                })
            }
            _ => return Ok(None),
        };
        let mut review = payload.object()?;
        review["status"] = answer(self, user, &review);
        review["kind"] = kind.into();
        review["apiVersion"] = format!("{}/{}", at.group, at.version).into();
        if !review["metadata"].is_object() {
            review["metadata"] = json!({});
        }
        if kind == "SelfSubjectReview" {
            review["metadata"]["creationTimestamp"] = self.clock.now().to_string().into();
        }
        Ok(Some(json_response(201, &review)))
    }

    fn token_review(&self, _: &User, review: &Value) -> Value {
        let token = text(review, "/spec/token");
        let known = self.auth.token(token, self.clock.now());
        let wanted: Vec<String> = list(review, "/spec/audiences")
            .iter()
            .filter_map(|audience| audience.as_str().map(str::to_owned))
            .collect();
        let known = known.or_else(|| Some((self.legacy_token(token)?, Vec::new())));
        match known.filter(|(_, audiences)| is_for(audiences, &wanted)) {
            Some((mut user, mut audiences)) => {
                user.groups.push("system:authenticated".to_owned());
                if !wanted.is_empty() && !audiences.is_empty() {
                    audiences.retain(|audience| wanted.contains(audience));
                }
                if audiences.is_empty() {
                    audiences.push(ISSUER.to_owned());
                }
                json!({ "authenticated": true, "user": user.to_json(), "audiences": audiences })
            }
            None => {
                json!({ "authenticated": false, "user": {}, "error": "[invalid bearer token]" })
            }
        }
    }

    fn subject_access_review(&self, _: &User, review: &Value) -> Value {
        let groups = list(review, "/spec/groups").iter().filter_map(Value::as_str);
        let subject = User {
            name: text(review, "/spec/user").to_owned(),
            uid: text(review, "/spec/uid").to_owned(),
            groups: groups.map(str::to_owned).collect(),
            credential: String::new(),
        };
        self.access(&subject, review)
    }

    fn access(&self, subject: &User, review: &Value) -> Value {
        let own = |key: &str| text(review, &format!("/spec/resourceAttributes/{key}")).to_owned();
        let mut access = Access {
            verb: own("verb"),
            group: own("group"),
            resource: own("resource"),
            namespace: own("namespace"),
            name: own("name"),
            path: String::new(),
        };
        let sub = own("subresource");
        if !sub.is_empty() {
            access.resource = format!("{}/{sub}", access.resource);
        }
        if review.pointer("/spec/nonResourceAttributes").is_some() {
            access.path = text(review, "/spec/nonResourceAttributes/path").to_owned();
            access.verb = text(review, "/spec/nonResourceAttributes/verb").to_owned();
        }
        match self.auth.denied(subject, &access) {
            None => json!({ "allowed": true }),
            Some(reason) => json!({ "allowed": false, "reason": reason }),
        }
    }
}
