//! Reviews of tokens and access, which are answered and not stored.
//! Upstream: `pkg/registry/{authentication,authorization}`.

use serde_json::{Value, json};

use crate::access::{Access, User};
use crate::api::Api;
use crate::api::response::json_response;
use crate::auth::bootstrap_tokens::bootstrap_token;
use crate::auth::valid_audiences;
use crate::failures::{self, invalid_value};
use crate::object::{list, text};
use crate::request::call::ResourcePath;
use crate::request::payload::Payload;
use crate::status::{ApiResult, Cause};
use kube_controller_manager::server::http::Response;

const AUTHORIZATION: &str = "authorization.k8s.io";

/// Computes a review's status from the caller, the namespace and the review.
type Answer = fn(&Api, &User, &str, &Value) -> ApiResult<Value>;

impl Api {
    /// Answers a review, such as a TokenReview or SubjectAccessReview, which is never stored.
    /// Returns `None` if the request does not create a review, or names a namespace for a kind that
    /// has none or lacks the one that it needs.
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
            ("authentication.k8s.io", "tokenreviews") => {
                ("TokenReview", |api, _, _, review| Ok(api.token_review(review)))
            }
            ("authentication.k8s.io", "selfsubjectreviews") => {
                ("SelfSubjectReview", |_, user, _, _| Ok(json!({ "userInfo": user.to_json() })))
            }
            (AUTHORIZATION, "subjectaccessreviews") => ("SubjectAccessReview", Api::access_review),
            (AUTHORIZATION, "localsubjectaccessreviews") => {
                ("LocalSubjectAccessReview", Api::access_review)
            }
            (AUTHORIZATION, "selfsubjectaccessreviews") => {
                ("SelfSubjectAccessReview", Api::own_access_review)
            }
            (AUTHORIZATION, "selfsubjectrulesreviews") => {
                ("SelfSubjectRulesReview", |api, user, _, review| {
                    match text(review, "/spec/namespace") {
                        "" => Err(failures::bad_request("no namespace on request")),
                        namespace => Ok(api.authorizer().rules_review(user, namespace)),
                    }
                })
            }
            _ => return Ok(None),
        };
        // Only a LocalSubjectAccessReview is created in a namespace.
        if at.namespace.is_empty() == (kind == "LocalSubjectAccessReview") {
            return Ok(None);
        }
        let mut review = payload.object()?;
        if !at.namespace.is_empty() {
            set_namespace(&mut review, &at.namespace)?;
        }
        review["status"] = answer(self, user, &at.namespace, &review)?;
        review["kind"] = kind.into();
        review["apiVersion"] = format!("{}/{}", at.group, at.version).into();
        if !review["metadata"].is_object() {
            review["metadata"] = json!({});
        }
        if kind == "SelfSubjectReview" {
            review["metadata"]["creationTimestamp"] = self.clock.now().to_string().into();
        }
        if kind == "SelfSubjectRulesReview" {
            // The answer is a new object without the metadata and spec of the request.
            (review["metadata"], review["spec"]) = (json!({}), json!({}));
        }
        Ok(Some(json_response(201, &review)))
    }

    /// Returns the status of a TokenReview: the user of the token, if it is valid for one of the
    /// audiences.
    fn token_review(&self, review: &Value) -> Value {
        let token = text(review, "/spec/token");
        let known = self.auth.token(token, self.clock.now());
        let wanted: Vec<String> = list(review, "/spec/audiences")
            .iter()
            .filter_map(|audience| audience.as_str().map(str::to_owned))
            .collect();
        let other = || {
            let bootstrap = || bootstrap_token(&self.store, token, self.clock.now());
            Some((self.legacy_token(token).or_else(bootstrap)?, Vec::new()))
        };
        let known = known.or_else(other);
        let valid = known.map(|(user, audiences)| (user, valid_audiences(&audiences, &wanted)));
        match valid.filter(|(_, audiences)| !audiences.is_empty()) {
            Some((mut user, audiences)) => {
                user.groups.push("system:authenticated".to_owned());
                json!({ "authenticated": true, "user": user.to_json(), "audiences": audiences })
            }
            None => {
                json!({ "authenticated": false, "user": {}, "error": "[invalid bearer token]" })
            }
        }
    }

    /// Returns the status of a SubjectAccessReview: whether the user that it names has this access.
    fn access_review(&self, _: &User, namespace: &str, review: &Value) -> ApiResult<Value> {
        let words = |value: &Value| -> Vec<String> {
            let words = value.as_array().into_iter().flatten();
            words.filter_map(|word| word.as_str().map(str::to_owned)).collect()
        };
        let spec = &review["spec"];
        let extra = spec["extra"].as_object().into_iter().flatten();
        let subject = User {
            name: text(review, "/spec/user").to_owned(),
            uid: text(review, "/spec/uid").to_owned(),
            groups: words(&spec["groups"]),
            extra: extra.map(|(key, values)| (key.clone(), words(values))).collect(),
        };
        let mut faults = faults(review, !namespace.is_empty());
        if subject.name.is_empty() && subject.groups.is_empty() {
            let why = "at least one of user or group must be specified";
            // Upstream reports the subject right after the attributes.
            faults.insert(
                faults.iter().take_while(|fault| fault.field.ends_with("Attributes")).count(),
                invalid_value("spec.user", &"".into(), why),
            );
        }
        refuse(&faults)?;
        Ok(self.access(&subject, review))
    }

    /// Returns the status of a SelfSubjectAccessReview: whether the caller has this access.
    fn own_access_review(&self, user: &User, _: &str, review: &Value) -> ApiResult<Value> {
        refuse(&faults(review, false))?;
        Ok(self.access(user, review))
    }

    /// Asks the authorizer whether `subject` may do what the review describes, and returns the
    /// status.
    fn access(&self, subject: &User, review: &Value) -> Value {
        let attribute =
            |key: &str| text(review, &format!("/spec/resourceAttributes/{key}")).to_owned();
        let mut access = Access {
            verb: attribute("verb"),
            group: attribute("group"),
            resource: attribute("resource"),
            namespace: attribute("namespace"),
            name: attribute("name"),
            path: String::new(),
        };
        let sub = attribute("subresource");
        if !sub.is_empty() {
            access.resource = format!("{}/{sub}", access.resource);
        }
        if review["spec"]["nonResourceAttributes"].is_object() {
            access.path = text(review, "/spec/nonResourceAttributes/path").to_owned();
            access.verb = text(review, "/spec/nonResourceAttributes/verb").to_owned();
        }
        let allowed = self.authorizer().authorize(subject, &access);
        let mut status = json!({ "allowed": allowed.is_ok() });
        let (Ok(reason) | Err(reason)) = allowed;
        if !reason.is_empty() {
            status["reason"] = reason.into();
        }
        status
    }
}

/// Sets the namespace of a review to that of the request. Errors: 400 when it has another one.
/// Upstream: `rest.EnsureObjectNamespaceMatchesRequestNamespace`.
fn set_namespace(review: &mut Value, namespace: &str) -> ApiResult<()> {
    if !review["metadata"].is_object() {
        review["metadata"] = json!({});
    }
    let own = &mut review["metadata"]["namespace"];
    if own.as_str().is_some_and(|own| !own.is_empty() && own != namespace) {
        return Err(failures::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    *own = namespace.into();
    Ok(())
}

/// Validates an access review, except its subject. `local`: the review is in a namespace. Upstream:
/// `pkg/apis/authorization/validation`.
fn faults(review: &Value, local: bool) -> Vec<Cause> {
    let spec = &review["spec"];
    let (of_resource, of_path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    // Upstream prints its internal type, whose fields have other names.
    let path_value = json!({ "Path": text(of_path, "/path"), "Verb": text(of_path, "/verb") });
    let mut faults = Vec::new();
    match (of_resource.is_object(), of_path.is_object()) {
        (true, true) => faults.push(invalid_value(
            "spec.nonResourceAttributes",
            &path_value,
            "cannot be specified in combination with resourceAttributes",
        )),
        (false, false) => faults.push(invalid_value(
            "spec.resourceAttributes",
            &Value::Null,
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        )),
        _ => {}
    }
    let metadata = review["metadata"].as_object().into_iter().flatten();
    let mut metadata = metadata.filter(|(key, value)| {
        let nothing = value.is_null() || **value == "" || **value == json!({});
        !nothing && *key != "managedFields" && !(local && *key == "namespace")
    });
    if metadata.next().is_some() {
        let why = if local { "must be empty except for namespace" } else { "must be empty" };
        faults.push(invalid_value("metadata", &review["metadata"], why));
    }
    if local && of_path.is_object() {
        let why = "disallowed on this kind of request";
        faults.push(invalid_value("spec.nonResourceAttributes", &path_value, why));
    }
    let namespace = text(of_resource, "/namespace");
    if local && of_resource.is_object() && namespace != text(review, "/metadata/namespace") {
        faults.push(invalid_value(
            "spec.resourceAttributes.namespace",
            &namespace.into(),
            "must match metadata.namespace",
        ));
    }
    faults
}

fn refuse(faults: &[Cause]) -> ApiResult<()> {
    if faults.is_empty() {
        return Ok(());
    }
    Err(failures::invalid(AUTHORIZATION, "", "", faults))
}
