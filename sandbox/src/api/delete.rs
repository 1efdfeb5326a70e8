//! Deletes objects: grace, finalizers, propagation. Upstream: `registry/rest.BeforeDelete`,
//! `registry/generic/registry.Store.Delete`.

use std::time::Duration;

use serde_json::Value;

use crate::admission::policies::Request;
use crate::api::Api;
use crate::api::definition_finalizer::marked_for_deletion;
use crate::api::delete_options::DeleteOptions;
use crate::api::response::{json_response, success};
use crate::api::rules::is_definition;
use crate::failures;
use crate::kinds::Kind;
use crate::object::{is_deleting, list, text};
use crate::request::call::Call;
use crate::request::payload::Payload;
use crate::status::ApiResult;
use crate::storage::store::{StoreError, Stored};
use kube_controller_manager::objects::Timestamp;
use kube_controller_manager::server::http::Response;

const JOB_LEAVES_PODS: &str = "child pods are preserved by default when jobs are deleted; set \
    propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this \
    warning";
/// Kinds whose delete answers with the object. Upstream: `ReturnDeletedObject`.
const RETURNED: [&str; 7] = [
    "pods",
    "services",
    "serviceaccounts",
    "persistentvolumes",
    "persistentvolumeclaims",
    "podtemplates",
    "resourcequotas",
];

/// What a delete does to an object.
#[derive(Debug, PartialEq)]
pub enum Step {
    /// It is removed now.
    Remove,
    /// It does not change: its deletion has begun.
    Pending,
    /// It is stored like this; a later write removes it.
    Mark(Value),
}

/// Decides how a delete changes an object: it is removed, is marked for deletion with its grace
/// period and finalizers, or stays as it is.
pub fn step(kind: &Kind, object: &Value, options: &DeleteOptions, now: Timestamp) -> Step {
    if kind.resource.plural == "namespaces" && kind.resource.group.is_empty() {
        return namespace_step(kind, object, options, now);
    }
    let mut marked = object.clone();
    let metadata = &object["metadata"];
    let graceful = graceful_period(kind, object, options);
    // The period that this delete sets.
    let mut grace = None;
    if is_deleting(object) {
        let left = metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
        if graceful.is_some() && left != 0 {
            // A grace period can only be made shorter.
            match options.grace.map(|seconds| if seconds < 0 { 1 } else { seconds }) {
                Some(seconds) if seconds < left => {
                    let due: Timestamp =
                        text(object, "/metadata/deletionTimestamp").parse().unwrap_or(now);
                    let mut due = due - Duration::from_secs(left as u64)
                        + Duration::from_secs(seconds as u64);
                    let mut period = seconds;
                    if due < now {
                        due = now;
                        period = period.min(1);
                    }
                    marked["metadata"]["deletionTimestamp"] = due.to_string().into();
                    marked["metadata"]["deletionGracePeriodSeconds"] = period.into();
                    grace = Some(seconds);
                }
                _ => return Step::Pending,
            }
        }
    } else if let Some(seconds) = graceful {
        let due = now + Duration::from_secs(seconds.max(0) as u64);
        set_deletion(&mut marked, due, seconds);
        grace = Some(seconds);
    }
    let finalizers = options.finalizers(kind, object);
    let pending = !finalizers.is_empty();
    if finalizers != list(object, "/metadata/finalizers") {
        marked["metadata"]["finalizers"] = finalizers.into();
    }
    match grace {
        None if !pending => Step::Remove,
        Some(0) if !pending => Step::Remove,
        Some(_) => Step::Mark(marked),
        None => {
            // Without a grace period, only finalizers keep the object.
            if !is_deleting(&marked) {
                set_deletion(&mut marked, now, 0);
            }
            marked["metadata"]["deletionGracePeriodSeconds"] = 0.into();
            Step::Mark(marked)
        }
    }
}

/// Marks an object as being deleted: sets its deletion timestamp and grace period, and raises the
/// generation of a kind that has one.
fn set_deletion(object: &mut Value, due: Timestamp, grace: i64) {
    let metadata = &mut object["metadata"];
    metadata["deletionTimestamp"] = due.to_string().into();
    metadata["deletionGracePeriodSeconds"] = grace.into();
    if let Some(generation) = metadata["generation"].as_i64().filter(|generation| *generation > 0) {
        metadata["generation"] = (generation + 1).into();
    }
}

/// Returns the grace period in seconds of a delete, or `None` for a kind that is deleted at once. A
/// pod's negative period counts as 1. Upstream: `podStrategy.CheckGracefulDelete`.
fn graceful_period(kind: &Kind, object: &Value, options: &DeleteOptions) -> Option<i64> {
    let own = (kind.default_grace)(object);
    if !(kind.resource.plural == "pods" && kind.resource.group.is_empty()) {
        return own.map(|own| options.grace.unwrap_or(own));
    }
    let period = options.grace.or(own).or(object["spec"]["terminationGracePeriodSeconds"].as_i64());
    let ended = matches!(text(object, "/status/phase"), "Failed" | "Succeeded");
    // No kubelet runs the pod, so its deletion need not wait.
    if text(object, "/spec/nodeName").is_empty() || ended {
        return Some(0);
    }
    Some(match period.unwrap_or(0) {
        negative if negative < 0 => 1,
        period => period,
    })
}

/// Decides how a namespace is deleted: it is marked first, and removed once it has no finalizers.
fn namespace_step(kind: &Kind, object: &Value, options: &DeleteOptions, now: Timestamp) -> Step {
    if is_deleting(object) {
        let held = !list(object, "/spec/finalizers").is_empty()
            || !list(object, "/metadata/finalizers").is_empty();
        return if held { Step::Pending } else { Step::Remove };
    }
    let mut marked = object.clone();
    marked["metadata"]["deletionTimestamp"] = now.to_string().into();
    marked["status"]["phase"] = "Terminating".into();
    let finalizers = options.finalizers(kind, object);
    if finalizers != list(object, "/metadata/finalizers") {
        marked["metadata"]["finalizers"] = finalizers.into();
    }
    Step::Mark(marked)
}

impl Api {
    /// Deletes an object, and answers with it or with a `Status`, as upstream does for its kind.
    pub fn delete(&self, call: &Call, payload: &Payload) -> ApiResult<Response> {
        let options = DeleteOptions::of(call, payload)?;
        let (mut object, removed) = self.delete_object(call, &options)?;
        let resource = &call.kind.resource;
        if options.propagation.is_none()
            && &*resource.group == "batch"
            && &*resource.plural == "jobs"
        {
            call.warn(JOB_LEAVES_PODS.to_owned());
        }
        // Of a kind with a grace period, upstream answers with the object marked as deleted.
        if removed && graceful_period(&call.kind, &object, &options).is_some() {
            if !is_deleting(&object) {
                set_deletion(&mut object, self.clock.now(), 0);
            }
            object["metadata"]["deletionGracePeriodSeconds"] = 0.into();
        }
        let returned = resource.group.is_empty() && RETURNED.contains(&&*resource.plural);
        if removed && !returned {
            let uid = text(&object, "/metadata/uid");
            return Ok(json_response(200, &success(&call.kind, &call.name, uid)));
        }
        let version = text(&object, "/metadata/resourceVersion").parse().unwrap_or_default();
        Ok(self.one(200, call, &Stored::new(object, version)))
    }

    /// Deletes an object, as a delete request does. Returns its last state and whether it is gone.
    /// Errors: 404; 409 for a precondition; 403 for a namespace that stays, or by a policy.
    pub fn delete_object(&self, call: &Call, options: &DeleteOptions) -> ApiResult<(Value, bool)> {
        let kind = &call.kind;
        let (table, key) = (call.table(), call.key(&call.name));
        loop {
            let old = self
                .store
                .get(&table, &key)
                .ok_or_else(|| failures::not_found(&kind.resource, &call.name))?;
            options.check(kind, &old.value)?;
            if table == "namespaces"
                && matches!(&*call.name, "default" | "kube-system" | "kube-public")
            {
                let why = "this namespace may not be deleted";
                return Err(failures::forbidden(&kind.resource, &call.name, why));
            }
            self.policies().admit(&Request {
                call,
                operation: "DELETE",
                object: None,
                old: Some(&old.value),
                dry_run: options.dry_run,
            })?;
            let marks_definition = is_definition(kind) && !is_deleting(&old.value);
            let step = match marks_definition {
                true => Step::Mark(marked_for_deletion(&old.value, &self.clock.now().to_string())),
                false => step(kind, &old.value, options, self.clock.now()),
            };
            if options.dry_run {
                return Ok(match step {
                    Step::Remove => (old.value.clone(), true),
                    Step::Pending => (old.value.clone(), false),
                    Step::Mark(marked) => (marked, false),
                });
            }
            let written = match step {
                Step::Pending => return Ok((old.value.clone(), false)),
                Step::Remove => self.store.delete(&table, &key, old.version, None),
                Step::Mark(marked) if marked == old.value => return Ok((marked, false)),
                Step::Mark(marked) => match self.store.replace(&table, &key, old.version, marked) {
                    Ok(stored) => {
                        if marks_definition {
                            self.empty_definition(&stored.value)?;
                        }
                        return Ok((stored.value.clone(), false));
                    }
                    Err(error) => Err(error),
                },
            };
            match written {
                Ok(gone) => {
                    self.after_removal(kind, &gone.value);
                    return Ok((gone.value.clone(), true));
                }
                Err(StoreError::Changed) => {}
                Err(error) => return Err(failures::internal(format!("{error:?}"))),
            }
        }
    }

    /// Deletes the selected objects of a collection, and answers with them as they were listed. One
    /// that is gone meanwhile is no error.
    /// Upstream: `Store.DeleteCollection`.
    pub fn delete_collection(&self, call: &Call, payload: &Payload) -> ApiResult<Response> {
        let options = DeleteOptions::of(call, payload)?;
        let selection = self.selection(call)?;
        let keep = |stored: &Stored| selection.matches(stored);
        let page = self
            .store
            .list(&call.table(), &call.prefix(), None, usize::MAX, None, &keep)
            .map_err(|_| failures::internal("the newest list is always there"))?;
        for stored in &page.items {
            let at = |path| text(&stored.value, path);
            let one = Call {
                query: call.query.clone(),
                form: call.form,
                user: call.user.clone(),
                ..Call::of(call.kind.clone(), at("/metadata/namespace"), at("/metadata/name"))
            };
            match self.delete_object(&one, &options) {
                Ok(_) => {}
                Err(error) if error.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.list_response(call, page, true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn kind(plural: &str) -> Kind {
        let mut kinds = crate::kinds::builtin().into_iter();
        kinds.find(|kind| kind.resource.plural == plural && kind.resource.group.is_empty()).unwrap()
    }

    fn options(body: Value) -> DeleteOptions {
        DeleteOptions::from_json(&body).unwrap()
    }

    #[test]
    fn finalizers_delay_the_deletion() {
        let kind = kind("configmaps");
        let now = Timestamp::from_secs(1000);
        let plain = json!({ "metadata": { "name": "a" } });
        assert_eq!(step(&kind, &plain, &options(json!({})), now), Step::Remove);
        for (body, wanted) in [
            (json!({ "propagationPolicy": "Foreground" }), "foregroundDeletion"),
            (json!({ "propagationPolicy": "Orphan" }), "orphan"),
            (json!({ "orphanDependents": true }), "orphan"),
        ] {
            let Step::Mark(marked) = step(&kind, &plain, &options(body), now) else { panic!() };
            assert_eq!(marked["metadata"]["finalizers"], json!([wanted]));
            assert_eq!(marked["metadata"]["deletionTimestamp"], "1970-01-01T00:16:40Z");
            // A second delete in the background removes the collector's finalizer.
            let background = options(json!({ "propagationPolicy": "Background" }));
            assert_eq!(step(&kind, &marked, &background, now), Step::Remove);
        }
        let held = json!({ "metadata": { "name": "a", "finalizers": ["x/y"] } });
        assert!(matches!(step(&kind, &held, &options(json!({})), now), Step::Mark(_)));
    }

    #[test]
    fn a_pod_on_a_node_gets_its_grace() {
        let kind = kind("pods");
        let now = Timestamp::from_secs(1000);
        let pod = json!({
            "metadata": { "name": "a" }, "status": { "phase": "Running" },
            "spec": { "nodeName": "n", "terminationGracePeriodSeconds": 30 },
        });
        let Step::Mark(marked) = step(&kind, &pod, &options(json!({})), now) else { panic!() };
        assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
        assert_eq!(marked["metadata"]["deletionTimestamp"], "1970-01-01T00:17:10Z");
        let longer = options(json!({ "gracePeriodSeconds": 60 }));
        assert_eq!(step(&kind, &marked, &longer, now), Step::Pending);
        assert_eq!(step(&kind, &marked, &options(json!({})), now), Step::Pending);
        let shorter = options(json!({ "gracePeriodSeconds": 5 }));
        let Step::Mark(sooner) = step(&kind, &marked, &shorter, now) else { panic!() };
        assert_eq!(sooner["metadata"]["deletionTimestamp"], "1970-01-01T00:16:45Z");
        let kill = options(json!({ "gracePeriodSeconds": 0 }));
        assert_eq!(step(&kind, &marked, &kill, now), Step::Remove);
        let mut pending = pod.clone();
        pending["spec"]["nodeName"] = Value::Null;
        assert_eq!(step(&kind, &pending, &options(json!({})), now), Step::Remove);
    }
}
