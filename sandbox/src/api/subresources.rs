//! The subresources: status, scale, eviction, binding, token, finalize.
//! Upstream: `pkg/registry/core/pod/storage`, `pkg/registry/apps/deployment/storage`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::Api;
use crate::api::delete_options::DeleteOptions;
use crate::api::response::json_response;
use crate::api::write::{Part, has};
use crate::auth::{Bound, ISSUER};
use crate::failures;
use crate::kinds::Subresource;
use crate::object::{is_deleting, list, set_condition, text};
use crate::patch;
use crate::request::call::{Call, Warnings};
use crate::request::payload::Payload;
use crate::status::{ApiError, ApiResult, Cause};
use crate::storage::store::Stored;
use kube_controller_manager::objects::{LabelSelector, Labels, Selector};
use kube_controller_manager::server::http::Response;

impl Api {
    /// Answers a request to a subresource. Errors: 404 when the kind has no such subresource, 405
    /// when it does not serve the verb.
    pub fn subresource(
        &self,
        verb: &'static str,
        call: &Call,
        payload: &Payload,
    ) -> ApiResult<Response> {
        let Some(sub) = has(&call.kind, &call.subresource) else {
            return Err(failures::no_such_resource());
        };
        match (sub, verb) {
            (Subresource::Scale { replicas, status_replicas, selector }, _) => {
                self.scale(verb, call, payload, [&replicas, &status_replicas], selector.as_deref())
            }
            (Subresource::Eviction, "create") => self.evict(call, payload),
            (Subresource::Binding, "create") => self.bind(call, payload),
            (Subresource::Token, "create") => self.token(call, payload),
            (
                // Other servers answer the first two.
                Subresource::Log
                | Subresource::Connect(_)
                | Subresource::Eviction
                | Subresource::Binding
                | Subresource::Token,
                _,
            ) => Err(failures::method_not_allowed()),
            (sub, "get" | "update" | "patch") => {
                let part = match sub {
                    Subresource::Status | Subresource::Approval => Part::Status,
                    Subresource::Finalize => Part::Raw,
                    _ => Part::Spec,
                };
                let stored = match verb {
                    "get" => self.stored(call)?,
                    "patch" => self.patch_object(call, payload, part)?,
                    _ if sub == Subresource::Finalize => self.finalize(call, payload)?,
                    _ => self.update_object(call, call.object(payload)?, part)?,
                };
                Ok(self.one(200, call, &stored))
            }
            _ => Err(failures::method_not_allowed()),
        }
    }

    /// Returns the stored object that a call names. Errors: 404.
    fn stored(&self, call: &Call) -> ApiResult<Arc<Stored>> {
        self.store
            .get(&call.table(), &call.key(&call.name))
            .ok_or_else(|| failures::not_found(&call.kind.resource, &call.name))
    }

    /// Replaces a namespace's metadata and finalizers, but not its status.
    fn finalize(&self, call: &Call, payload: &Payload) -> ApiResult<Arc<Stored>> {
        let wanted = payload.object()?;
        self.modify(call, Part::Raw, &|old| {
            let mut new = wanted.clone();
            new["spec"] = json!({ "finalizers": list(&wanted, "/spec/finalizers") });
            new["status"] = old["status"].clone();
            Ok(new)
        })
    }

    /// Serves the subresource `scale`, which shows and changes the replicas of an object of any
    /// kind. `replicas`, `status_replicas` and `selector` are dotted paths in the object.
    fn scale(
        &self,
        verb: &str,
        call: &Call,
        payload: &Payload,
        [replicas, status_replicas]: [&str; 2],
        selector: Option<&str>,
    ) -> ApiResult<Response> {
        let pointer = |path: &str| path.replace('.', "/");
        let scale_of = |object: &Value| {
            let metadata = &object["metadata"];
            let mut status = json!({
                "replicas": object.pointer(&pointer(status_replicas)).and_then(Value::as_i64).unwrap_or(0),
            });
            if let Some(found) = selector.and_then(|path| object.pointer(&pointer(path))) {
                status["selector"] = selector_text(found).into();
            }
            json!({
                "kind": "Scale", "apiVersion": "autoscaling/v1",
                "metadata": {
                    "name": metadata["name"], "namespace": metadata["namespace"],
                    "uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"],
                    "creationTimestamp": metadata["creationTimestamp"],
                },
                "spec": { "replicas": object.pointer(&pointer(replicas)).and_then(Value::as_i64).unwrap_or(0) },
                "status": status,
            })
        };
        let with_scale = |old: &Value, scale: &Value| -> ApiResult<Value> {
            let name = text(scale, "/metadata/name");
            if !name.is_empty() && name != call.name {
                return Err(failures::bad_request(format!(
                    "the name of the object ({name}) does not match the name on the URL ({})",
                    call.name
                )));
            }
            let (version, kind) = (text(scale, "/apiVersion"), text(scale, "/kind"));
            if !kind.is_empty() && kind != "Scale" {
                return Err(failures::bad_request(format!(
                    "{kind} in version {version:?} cannot be handled as a Scale: no kind {kind:?} is registered for version {version:?}"
                )));
            }
            let wanted = scale["spec"]["replicas"].as_i64().unwrap_or(0);
            if wanted < 0 {
                let cause = failures::invalid_value(
                    "spec.replicas",
                    &wanted.into(),
                    "must be greater than or equal to 0",
                );
                return Err(failures::invalid("autoscaling", "Scale", &call.name, &[cause]));
            }
            let mut new = old.clone();
            for key in ["resourceVersion", "uid"] {
                if !scale["metadata"][key].is_null() {
                    new["metadata"][key] = scale["metadata"][key].clone();
                }
            }
            let mut at = &mut new;
            for part in replicas.split('.').filter(|part| !part.is_empty()) {
                if !(at.is_object() || at.is_null()) {
                    let why = format!("the spec replicas field {replicas:?} cannot be set");
                    return Err(failures::internal(why));
                }
                at = &mut at[part];
            }
            *at = wanted.into();
            Ok(new)
        };
        let stored = match verb {
            "get" => self.stored(call)?,
            "update" => {
                let scale = payload.object()?;
                self.modify(call, Part::Main, &|old| with_scale(old, &scale))?
            }
            "patch" => self.modify(call, Part::Main, &|old| {
                let scale = patch::apply(
                    &call.kind,
                    &payload.content_type,
                    &scale_of(old),
                    &payload.bytes,
                )?;
                with_scale(old, &scale)
            })?,
            _ => return Err(failures::method_not_allowed()),
        };
        Ok(json_response(200, &scale_of(&stored.value)))
    }

    /// Answers a POST to `bindings`, the older form of the subresource `binding`: the body names the
    /// pod.
    pub fn bind_named(&self, call: &Call, payload: &Payload) -> ApiResult<Response> {
        let name = text(&payload.object()?, "/metadata/name").to_owned();
        let pods = self.registry.find("", "v1", "pods").ok_or_else(failures::no_such_path)?;
        let pod = Call {
            kind: pods,
            namespace: call.namespace.clone(),
            name,
            subresource: "binding".to_owned(),
            query: call.query.clone(),
            form: call.form,
            encoding: call.encoding,
            warnings: Warnings::default(),
            user: call.user.clone(),
        };
        self.bind(&pod, payload)
    }

    /// Assigns a pod to the node that the Binding names. Errors: 409 for a pod that is bound, being
    /// deleted, gated, or has another UID; 422 for a target that is no node.
    fn bind(&self, call: &Call, payload: &Payload) -> ApiResult<Response> {
        let binding = payload.object()?;
        let node = text(&binding, "/target/name").to_owned();
        let mut causes = Vec::new();
        let kind = text(&binding, "/target/kind");
        if !matches!(kind, "" | "Node") {
            causes.push(Cause {
                reason: "FieldValueNotSupported",
                message: format!(
                    "Unsupported value: {kind:?}: supported values: \"<empty>\", \"Node\""
                ),
                field: "target.kind".to_owned(),
            });
        }
        if node.is_empty() {
            causes.push(failures::required("target.name", ""));
        }
        if !causes.is_empty() {
            return Err(failures::invalid("", "Binding", &call.name, &causes));
        }
        let now = self.clock.now().to_string();
        self.modify(call, Part::Raw, &|old| {
            let uid = text(&binding, "/metadata/uid");
            if !uid.is_empty() && uid != text(old, "/metadata/uid") {
                let why = format!(
                    "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                    text(old, "/metadata/uid")
                );
                return Err(failures::conflict(&call.kind.resource, &call.name, &why));
            }
            if is_deleting(old) {
                let why =
                    format!("pod {} is being deleted, cannot be assigned to a host", call.name);
                return Err(failures::conflict(&call.kind.resource, &call.name, &why));
            }
            let bound = text(old, "/spec/nodeName");
            if !bound.is_empty() {
                let why = format!("pod {} is already assigned to node {bound:?}", call.name);
                return Err(failures::conflict(&call.kind.resource, &call.name, &why));
            }
            if !list(old, "/spec/schedulingGates").is_empty() {
                let why = format!("pod {} has non-empty .spec.schedulingGates", call.name);
                return Err(failures::conflict(&call.kind.resource, &call.name, &why));
            }
            let mut new = old.clone();
            new["spec"]["nodeName"] = node.as_str().into();
            let condition =
                json!({ "type": "PodScheduled", "status": "True", "lastProbeTime": null });
            set_condition(&mut new, &now, condition);
            Ok(new)
        })?;
        Ok(json_response(201, &success_status()))
    }

    /// Deletes a pod for an Eviction. A running pod first takes one disruption from its budget and
    /// gets the condition DisruptionTarget.
    fn evict(&self, call: &Call, payload: &Payload) -> ApiResult<Response> {
        let eviction = payload.object()?;
        let named = text(&eviction, "/metadata/name");
        if !named.is_empty() && named != call.name {
            return Err(failures::bad_request(
                "name in URL does not match name in Eviction object",
            ));
        }
        let mut options = DeleteOptions::from_json(&eviction["deleteOptions"])?;
        options.dry_run |= call.query.dry_run()?;
        let pod = self.stored(call)?;
        let phase = text(&pod.value, "/status/phase");
        let is_disruption =
            !matches!(phase, "Succeeded" | "Failed" | "Pending") && !is_deleting(&pod.value);
        if is_disruption {
            self.disrupt(call, &pod, options.dry_run)?;
        }
        if !options.dry_run && is_disruption {
            let now = self.clock.now().to_string();
            self.modify(call, Part::Raw, &|old| {
                let mut new = old.clone();
                let condition = json!({
                    "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                    "message": "Eviction API: evicting", "lastProbeTime": null,
                });
                set_condition(&mut new, &now, condition);
                Ok(new)
            })?;
        }
        self.delete_object(call, &options)?;
        Ok(json_response(201, &success_status()))
    }

    /// Takes one allowed disruption from the budget that covers the pod. Takes nothing if no budget
    /// does, or if the pod is unready and its budget permits the eviction of such pods. Errors:
    /// 429; 500 if several budgets cover the pod.
    fn disrupt(&self, call: &Call, pod: &Stored, dry_run: bool) -> ApiResult<()> {
        let Some(kind) = self.registry.find("policy", "v1", "poddisruptionbudgets") else {
            return Ok(());
        };
        let covers = |budget: &Stored| {
            let selector: Option<LabelSelector> =
                serde_json::from_value(budget.value["spec"]["selector"].clone()).ok();
            Selector::try_from(selector.as_ref())
                .is_ok_and(|selector| selector.matches(&pod.labels))
        };
        let table = kind.resource.to_string();
        let page = self
            .store
            .list(&table, &call.prefix(), None, usize::MAX, None, &covers)
            .map_err(|_| failures::internal("the newest list is always there"))?;
        let budget = match page.items.as_slice() {
            [] => return Ok(()),
            [one] => one,
            _ => {
                return Err(failures::internal(
                    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
                ));
            }
        };
        if !is_ready(&pod.value) {
            let status = |field: &str| budget.value["status"][field].as_i64().unwrap_or(0);
            let (healthy, desired) = (status("currentHealthy"), status("desiredHealthy"));
            let always = text(&budget.value, "/spec/unhealthyPodEvictionPolicy") == "AlwaysAllow";
            // The pod does not count as healthy, so nothing is taken from the budget.
            if always || healthy >= desired && desired > 0 {
                return Ok(());
            }
        }
        let name = text(&budget.value, "/metadata/name").to_owned();
        let at = Call {
            subresource: "status".to_owned(),
            form: call.form,
            ..Call::of(kind, &call.namespace, &name)
        };
        let now = self.clock.now().to_string();
        let take = |old: &Value| -> ApiResult<Value> {
            let status = &old["status"];
            let number = |key: &str| status[key].as_i64().unwrap_or(0);
            if number("observedGeneration") < old["metadata"]["generation"].as_i64().unwrap_or(0) {
                let why =
                    format!("The disruption budget {name} is still being processed by the server.");
                return Err(too_many(&why, Some(10)));
            }
            let allowed = number("disruptionsAllowed");
            if allowed <= 0 {
                let why = format!(
                    "The disruption budget {name} needs {} healthy pods and has {} currently",
                    number("desiredHealthy"),
                    number("currentHealthy"),
                );
                return Err(too_many(&why, None));
            }
            let mut new = old.clone();
            new["status"]["disruptionsAllowed"] = (allowed - 1).into();
            new["status"]["disruptedPods"][&call.name] = now.as_str().into();
            Ok(new)
        };
        if dry_run {
            return take(&budget.value).map(drop);
        }
        self.modify(&at, Part::Raw, &take).map(drop)
    }

    /// Issues a token for the service account of `call`, as its TokenRequest asks.
    fn token(&self, call: &Call, payload: &Payload) -> ApiResult<Response> {
        let account = self.stored(call)?;
        let mut request = payload.object()?;
        if !request["spec"].is_object() {
            return Err(failures::bad_request("the body lacks a spec"));
        }
        let seconds = request["spec"]["expirationSeconds"].as_i64().unwrap_or(3600);
        let fault = match seconds {
            ..600 => Some("may not specify a duration less than 10 minutes"),
            0x1_0000_0001.. => Some("may not specify a duration larger than 2^32 seconds"),
            _ => None,
        };
        if let Some(why) = fault {
            let cause = failures::invalid_value("spec.expirationSeconds", &seconds.into(), why);
            return Err(failures::invalid("authentication.k8s.io", "TokenRequest", "", &[cause]));
        }
        let mut audiences: Vec<String> = list(&request, "/spec/audiences")
            .iter()
            .filter_map(|audience| audience.as_str().map(str::to_owned))
            .collect();
        if audiences.is_empty() {
            audiences.push(ISSUER.to_owned());
        }
        let now = self.clock.now();
        let expires = now + Duration::from_secs(seconds as u64);
        let bound = self.bound_to(call, &request["spec"]["boundObjectRef"])?;
        let holder = (call.namespace.as_str(), call.name.as_str(), account.uid());
        request["spec"]["audiences"] = json!(audiences);
        request["spec"]["expirationSeconds"] = seconds.into();
        request["kind"] = "TokenRequest".into();
        request["apiVersion"] = "authentication.k8s.io/v1".into();
        request["metadata"] = json!({
            "name": call.name, "namespace": call.namespace, "uid": account.uid(),
            "creationTimestamp": now.to_string(),
        });
        request["status"] = json!({
            "token": self.auth.issue_for_account(holder, &bound, audiences, now, expires),
            "expirationTimestamp": expires.to_string(),
        });
        Ok(json_response(201, &request))
    }
}

impl Api {
    /// Finds the objects that a token for the service account of `call` is bound to: the referenced
    /// one, and a pod's node. Upstream: `pkg/registry/core/serviceaccount/storage.TokenREST`.
    fn bound_to(&self, call: &Call, reference: &Value) -> ApiResult<Vec<Bound>> {
        if !reference.is_object() {
            return Ok(Vec::new());
        }
        let (kind, name) = (text(reference, "/kind"), text(reference, "/name"));
        let (kind, table, is_namespaced) = match (text(reference, "/apiVersion"), kind) {
            ("v1", "Pod") => ("pod", "pods", true),
            ("v1", "Secret") => ("secret", "secrets", true),
            ("v1", "Node") => ("node", "nodes", false),
            (version, kind) => {
                let why = format!("cannot bind token to object of type {version}, Kind={kind}");
                return Err(failures::bad_request(why));
            }
        };
        let key = if is_namespaced { call.key(name) } else { name.to_owned() };
        let known = self.registry.find("", "v1", table).ok_or_else(failures::no_such_path)?;
        let found = self.store.get(table, &key);
        let found = found.ok_or_else(|| failures::not_found(&known.resource, name))?;
        // A pod's token is one of the pod's own account.
        if kind == "pod" && text(&found.value, "/spec/serviceAccountName") != call.name {
            return Err(failures::bad_request(format!(
                "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount name.",
                call.name
            )));
        }
        let uid = text(reference, "/uid");
        if !uid.is_empty() && uid != found.uid() {
            let why = format!(
                "the UID in the bound object reference ({uid}) does not match the UID in record. \
                 The object might have been deleted and then recreated"
            );
            return Err(failures::conflict(&known.resource, name, &why));
        }
        let bound_object = |kind, object: &Stored| {
            let (name, uid) = (text(&object.value, "/metadata/name"), object.uid());
            Bound { kind, name: name.to_owned(), uid: uid.to_owned() }
        };
        let mut bound = vec![bound_object(kind, &found)];
        if kind == "pod"
            && let Some(node) = self.store.get("nodes", text(&found.value, "/spec/nodeName"))
        {
            bound.push(bound_object("node", &node));
        }
        Ok(bound)
    }
}

/// Builds the `Status` of an eviction or binding that has been carried out.
fn success_status() -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201 })
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|found| found["type"] == "Ready" && found["status"] == "True")
}

/// Builds the error 429 of an eviction that the pod's budget refuses for now.
fn too_many(why: &str, retry_after: Option<u64>) -> ApiError {
    let message = "Cannot evict pod as it would violate the pod's disruption budget.";
    let mut error = ApiError::new(429, "TooManyRequests", message);
    error.details = json!({ "causes": [{ "reason": "DisruptionBudget", "message": why }] });
    error.retry_after = retry_after;
    error
}

/// Formats a selector, which is a LabelSelector, a map of labels or text, as text.
fn selector_text(selector: &Value) -> String {
    if let Some(text) = selector.as_str() {
        return text.to_owned();
    }
    if selector.get("matchLabels").is_some() || selector.get("matchExpressions").is_some() {
        let parsed: Option<LabelSelector> = serde_json::from_value(selector.clone()).ok();
        return parsed
            .and_then(|selector| Selector::try_from(&selector).ok())
            .map(|selector| selector.to_string())
            .unwrap_or_default();
    }
    let labels: Labels = selector
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
        .collect();
    Selector::from_labels(&labels).to_string()
}
