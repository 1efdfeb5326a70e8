//! Computes the object that an update or a patch stores. Upstream: `rest.BeforeUpdate`.

use serde_json::Value;

use crate::api::Api;
use crate::api::rules::{
    allows_unconditional_update, check_name, check_namespace, check_type, is_definition,
    is_namespace, kept_by_status, refuse, wrong_phase,
};
use crate::api::write::Part;
use crate::auth::rbac::is_certificate_request;
use crate::failures;
use crate::kinds::pod_subresources;
use crate::object::{carry, drop_empty, is_deleting, list, remove, same_content, text};
use crate::request::call::Call;
use crate::status::ApiResult;

/// Sets the missing times in the conditions of a certificate request.
/// Upstream: `populateConditionTimestamps`.
fn date_conditions(call: &Call, new: &mut Value, now: &str) {
    let conditions = new.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
    let conditions = conditions.filter(|_| is_certificate_request(call)).into_iter().flatten();
    for condition in conditions.filter_map(Value::as_object_mut) {
        for key in ["lastUpdateTime", "lastTransitionTime"] {
            let time = condition.entry(key).or_insert(Value::Null);
            if time.is_null() {
                *time = now.into();
            }
        }
    }
}

impl Api {
    /// Records when a volume's phase changed, unless the writer has done so. Upstream:
    /// `persistentvolume.statusStrategy`.
    fn date_phase(&self, call: &Call, old: &Value, new: &mut Value) {
        const TIME: &str = "lastPhaseTransitionTime";
        let resource = &call.kind.resource;
        if !resource.group.is_empty() || resource.plural != "persistentvolumes" {
            return;
        }
        let (was, is) = (&old["status"], &new["status"]);
        let time = match was["phase"] == is["phase"] {
            // The phase is the same: a writer that leaves out the time does not remove it.
            true if is[TIME].is_null() => was[TIME].clone(),
            // The phase has changed, and the writer has not set a new time.
            false if is[TIME].is_null() || is[TIME] == was[TIME] => {
                self.clock.now().to_string().into()
            }
            _ => return,
        };
        if !time.is_null() {
            new["status"][TIME] = time;
        }
    }

    /// Completes and checks an update: returns `new` with the members that this write may not
    /// change restored from `old`, and with the kind's defaults. Errors: from validation and
    /// preconditions.
    pub fn complete_update(
        &self,
        call: &Call,
        part: Part,
        old: &Value,
        mut new: Value,
    ) -> ApiResult<Value> {
        let kind = &call.kind;
        let resource = &kind.resource;
        check_type(kind, &mut new)?;
        check_namespace(call, &mut new)?;
        check_name(call, &new)?;
        let uid = text(&new, "/metadata/uid");
        let stored_uid = text(old, "/metadata/uid");
        if !uid.is_empty() && uid != stored_uid {
            let why = format!(
                "Precondition failed: UID in precondition: {uid}, UID in object meta: {stored_uid}"
            );
            return Err(failures::conflict(resource, &call.name, &why));
        }
        let due = text(&new, "/metadata/deletionTimestamp");
        if !due.is_empty() && !is_deleting(old) {
            let cause = failures::invalid_value(
                "metadata.deletionTimestamp",
                &due.into(),
                "field is immutable",
            );
            return Err(failures::invalid(&resource.group, &resource.kind, &call.name, &[cause]));
        }
        let version = text(&new, "/metadata/resourceVersion");
        if version.is_empty() && part != Part::Raw && !allows_unconditional_update(kind) {
            let cause = failures::invalid_value(
                "metadata.resourceVersion",
                &0.into(),
                "must be specified for an update",
            );
            // Upstream names the resource here, not the kind.
            return Err(failures::invalid(&resource.group, &resource.plural, &call.name, &[cause]));
        }
        if !version.is_empty() && version != text(old, "/metadata/resourceVersion") {
            return Err(failures::modified(resource, &call.name));
        }
        for key in [
            "uid",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "generation",
            "resourceVersion",
            "generateName",
        ] {
            carry(&mut new["metadata"], &old["metadata"], key);
        }
        remove(&mut new["metadata"], "selfLink");
        drop_empty(&mut new["metadata"]);
        match part {
            Part::Main => {
                (kind.default)(&mut new);
                self.authorizer().check_escalation(call, Some(old), &new)?;
                self.authorizer().check_attester(call, Some(old), &new)?;
                (kind.prepare_update)(&mut new, old);
            }
            Part::Status => {
                let mut whole = old.clone();
                whole["metadata"] = new["metadata"].take();
                for key in kept_by_status(kind) {
                    carry(&mut whole["metadata"], &old["metadata"], key);
                }
                carry(&mut whole, &new, "status");
                new = whole;
                (kind.default)(&mut new);
                date_conditions(call, &mut new, &self.clock.now().to_string());
                self.date_phase(call, old, &mut new);
            }
            Part::Spec => {
                new = pod_subresources::with_change(&call.subresource, &new, old);
                (kind.default)(&mut new);
            }
            Part::Raw => {}
        }
        let raises_generation = matches!(part, Part::Main | Part::Spec);
        if raises_generation && kind.has_generation && !same_content(&new, old) {
            let generation = old["metadata"]["generation"].as_i64().unwrap_or(0);
            new["metadata"]["generation"] = (generation + 1).into();
        }
        let mut causes = Vec::new();
        if is_deleting(old) {
            let before = list(old, "/metadata/finalizers");
            let added: Vec<&Value> =
                list(&new, "/metadata/finalizers").iter().filter(|f| !before.contains(f)).collect();
            if !added.is_empty() {
                let added: Vec<String> = added.iter().map(|f| f.to_string()).collect();
                let why = format!(
                    "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                    added.join(", ")
                );
                causes.push(failures::forbidden_field("metadata.finalizers", &why));
            }
        }
        if part == Part::Main || part == Part::Status && kind.checks_status {
            for cause in (kind.validate_update)(&new, old) {
                if !causes.iter().any(|known| known.field == cause.field) {
                    causes.push(cause);
                }
            }
        }
        if part == Part::Spec {
            causes.extend(pod_subresources::check(&call.subresource, &new, old));
        }
        if part == Part::Status && is_namespace(kind) {
            causes.extend(wrong_phase(&new));
        }
        refuse(kind, &call.name, &causes)?;
        if part == Part::Status {
            self.authorizer().check_signer(call, old, &new)?;
        }
        if is_definition(kind) && part == Part::Main {
            self.establish(&mut new)?;
        }
        Ok(new)
    }
}
