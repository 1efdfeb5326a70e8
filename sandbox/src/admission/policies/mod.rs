//! ValidatingAdmissionPolicies: evaluated for each request that their bindings match.
//! Upstream: `admission/plugin/policy/validating`.

mod decision;
mod matching;
mod params;

use cel_compiler::on_deep_stack;
use serde_json::{Value, json};

use self::decision::{Refusal, decide};
use super::forbidden;
use crate::access::{Access, User};
use crate::auth::rbac::Authorizer;
use crate::cel::{self, Authorize, Question};
use crate::failures;
use crate::object::{list, text};
use crate::request::call::Call;
use crate::status::ApiResult;
use crate::storage::registry::Registry;
use crate::storage::store::Store;

const GROUP: &str = "admissionregistration.k8s.io";
const POLICIES: &str = "validatingadmissionpolicies";
const BINDINGS: &str = "validatingadmissionpolicybindings";

/// A write that policies admit or refuse.
pub struct Request<'a> {
    pub call: &'a Call,
    /// `CREATE`, `UPDATE` or `DELETE`.
    pub operation: &'static str,
    /// `None` for a deletion.
    pub object: Option<&'a Value>,
    /// `None` for a creation.
    pub old: Option<&'a Value>,
    pub dry_run: bool,
}

impl Request<'_> {
    /// Returns the name in the request's path; a create has it only in the object.
    fn name(&self) -> &str {
        let object = self.object.or(self.old);
        match self.call.name.as_str() {
            "" => object.map_or("", |object| text(object, "/metadata/name")),
            name => name,
        }
    }
}

/// The policies in a store, with the parts of the server that they read.
pub struct Policies<'a> {
    pub store: &'a Store,
    pub registry: &'a Registry,
    pub authorizer: Authorizer<'a>,
}

/// A policy's refusal, and the binding that led to it.
struct Denied {
    policy: String,
    binding: Option<String>,
    refusal: Refusal,
}

impl Denied {
    fn message(&self) -> String {
        let binding = self.binding.iter().map(|name| format!(" with binding '{name}'"));
        let binding: String = binding.collect();
        let Denied { policy, refusal, .. } = self;
        format!("ValidatingAdmissionPolicy '{policy}'{binding} denied request: {}", refusal.message)
    }
}

impl Policies<'_> {
    /// Evaluates all policies for a request; the server's own writes are exempt. Errors: the first
    /// denial, with the reason of its validation.
    pub fn admit(&self, request: &Request<'_>) -> ApiResult<()> {
        let call = request.call;
        if *call.user == User::server() || matching::is_exempt(request) {
            return Ok(());
        }
        let bindings = self.all_of(BINDINGS);
        if bindings.is_empty() {
            return Ok(());
        }
        let policies = self.all_of(POLICIES);
        let denied = on_deep_stack(|| {
            let bindings = bindings.as_slice();
            policies.iter().flat_map(|policy| self.denials(request, policy, bindings)).collect()
        });
        let denied: Vec<Denied> = denied.map_err(|error| failures::internal(error.to_string()))?;
        let Some(first) = denied.first() else { return Ok(()) };
        let nothing = Value::Null;
        let object = request.object.or(request.old).unwrap_or(&nothing);
        let message = first.message();
        let mut error = forbidden(&call.kind, object, &message);
        error.reason = first.refusal.reason;
        error.code = match error.reason {
            "Forbidden" => 403,
            "Unauthorized" => 401,
            "RequestEntityTooLarge" => 413,
            _ => 422,
        };
        error.details["causes"] = json!([{ "message": message }]);
        Err(error)
    }

    fn all_of(&self, plural: &str) -> Vec<Value> {
        let table = format!("{plural}.{GROUP}");
        let page = self.store.list(&table, "", None, usize::MAX, None, &|_| true);
        let items = page.map(|page| page.items).unwrap_or_default();
        items.into_iter().map(|stored| stored.value.clone()).collect()
    }

    /// Evaluates one policy for the request under each of its bindings, and returns the denials. A
    /// binding with the action `Warn` adds a warning to the response. A policy or binding that
    /// cannot be evaluated denies, unless its failure policy is `Ignore`.
    fn denials(&self, request: &Request<'_>, policy: &Value, bindings: &[Value]) -> Vec<Denied> {
        let name = text(policy, "/metadata/name");
        let mut bound =
            bindings.iter().filter(|binding| text(binding, "/spec/policyName") == name).peekable();
        if bound.peek().is_none() {
            return Vec::new();
        }
        let error_denies = text(policy, "/spec/failurePolicy") != "Ignore";
        let denied = |binding: Option<&Value>, refusal: Refusal| Denied {
            policy: name.to_owned(),
            binding: binding.map(|binding| text(binding, "/metadata/name").to_owned()),
            refusal,
        };
        let configuration_denial = |binding: Option<&Value>, error: String| -> Vec<Denied> {
            let what = if binding.is_some() { "binding" } else { "policy" };
            let refusal = Refusal::invalid(format!("failed to configure {what}: {error}"));
            if error_denies { vec![denied(binding, refusal)] } else { Vec::new() }
        };
        match matching::matches(self.store, request, &policy["spec"]["matchConstraints"]) {
            Ok(true) => {}
            Ok(false) => return Vec::new(),
            Err(error) => return configuration_denial(None, error),
        }
        let mut found = Vec::new();
        for binding in bound {
            match matching::matches(self.store, request, &binding["spec"]["matchResources"]) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(error) => {
                    found.extend(configuration_denial(Some(binding), error));
                    continue;
                }
            }
            let params = match params::collect(
                self.store,
                self.registry,
                policy,
                binding,
                &request.call.namespace,
            ) {
                Ok(params) => params,
                Err(error) => {
                    found.extend(configuration_denial(Some(binding), error));
                    continue;
                }
            };
            let actions = list(binding, "/spec/validationActions");
            let has_action = |wanted: &str| actions.iter().any(|action| action == wanted);
            for params in params {
                let authorize = Caller { authorizer: self.authorizer, user: &request.call.user };
                for refusal in decide(policy, &self.values(request, &params), &authorize) {
                    if has_action("Warn") {
                        request.call.warn(format!(
                            "Validation failed for ValidatingAdmissionPolicy '{name}' with binding \
                             '{}': {}",
                            text(binding, "/metadata/name"),
                            refusal.message
                        ));
                    }
                    if has_action("Deny") {
                        found.push(denied(Some(binding), refusal));
                    }
                }
            }
        }
        found
    }

    /// Returns the CEL variables of a request, with `params` as the policy's parameters. Upstream:
    /// `cel.newActivation`.
    fn values(&self, request: &Request<'_>, params: &Value) -> Vec<(&'static str, cel::Value)> {
        let call = request.call;
        let resource_type = &call.kind.resource;
        let (group, version) = (&*resource_type.group, &*resource_type.version);
        let kind = json!({ "group": group, "version": version, "kind": &*resource_type.kind });
        let resource =
            json!({ "group": group, "version": version, "resource": &*resource_type.plural });
        let options = match request.operation {
            "CREATE" => "CreateOptions",
            "UPDATE" => "UpdateOptions",
            _ => "DeleteOptions",
        };
        let mut request_value = json!({
            "kind": kind, "resource": resource, "requestKind": kind, "requestResource": resource,
            "operation": request.operation, "userInfo": call.user.to_json(),
            "dryRun": request.dry_run,
            "options": { "kind": options, "apiVersion": "meta.k8s.io/v1" },
        });
        for (key, value) in [
            ("name", request.name()),
            ("namespace", &call.namespace),
            ("subResource", &call.subresource),
            ("requestSubResource", &call.subresource),
        ] {
            if !value.is_empty() {
                request_value[key] = value.into();
            }
        }
        let is_namespace = resource_type.group.is_empty() && &*resource_type.plural == "namespaces";
        let namespace = Some(&call.namespace).filter(|name| !is_namespace && !name.is_empty());
        let namespace = namespace.and_then(|name| self.store.get("namespaces", name));
        let value = |object: Option<&Value>| cel::Value::from(object.unwrap_or(&Value::Null));
        // `check` sets the verb.
        let own_resource = Access {
            verb: String::new(),
            group: (*resource_type.group).to_owned(),
            resource: match call.subresource.as_str() {
                "" => (*resource_type.plural).to_owned(),
                sub => format!("{}/{sub}", resource_type.plural),
            },
            namespace: call.namespace.clone(),
            name: request.name().to_owned(),
            path: String::new(),
        };
        vec![
            ("object", value(request.object)),
            ("oldObject", value(request.old)),
            ("params", value(Some(params))),
            ("request", value(Some(&request_value))),
            ("namespaceObject", value(namespace.as_ref().map(|stored| &stored.value))),
            ("authorizer", cel::Value::Question(std::sync::Arc::default())),
            ("authorizer.requestResource", Question::of_resource(own_resource)),
        ]
    }
}

/// The authorizer's answers for the user of a request, or for a service account that a policy
/// names (`authorizer.serviceAccount`).
struct Caller<'a> {
    authorizer: Authorizer<'a>,
    user: &'a User,
}

impl Authorize for Caller<'_> {
    /// Decides whether the caller, or `account` in the caller's place, has this access. Both
    /// results carry the reason.
    fn authorize(
        &self,
        account: Option<&(String, String)>,
        access: &Access,
    ) -> Result<String, String> {
        let Some((namespace, name)) = account else {
            return self.authorizer.authorize(self.user, access);
        };
        let of_namespace = format!("system:serviceaccounts:{namespace}");
        let groups = ["system:serviceaccounts", &of_namespace, "system:authenticated"];
        let user = User::new(&format!("system:serviceaccount:{namespace}:{name}"), &groups);
        self.authorizer.authorize(&user, access)
    }
}
