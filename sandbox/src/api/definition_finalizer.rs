//! Finalizes deleted CustomResourceDefinitions: deletes their objects, then the definition.
//! Upstream: `apiextensions-apiserver/pkg/controller/finalizer`.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::Api;
use crate::api::delete_options::DeleteOptions;
use crate::api::write::Part;
use crate::failures;
use crate::kinds::Kind;
use crate::object::{is_deleting, list, set_condition, text};
use crate::request::call::Call;
use crate::status::ApiResult;
use crate::storage::store::Stored;

const DEFINITIONS: &str = "customresourcedefinitions";
const GROUP: &str = "apiextensions.k8s.io";
const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Sets the condition `Terminating` of a definition.
fn set_terminating(definition: &mut Value, now: &str, status: &str, reason: &str, message: &str) {
    let condition = json!({
        "type": "Terminating", "status": status, "reason": reason, "message": message,
    });
    set_condition(definition, now, condition);
}

/// Returns the definition as its first delete leaves it: with a deletion timestamp and a finalizer.
pub fn marked_for_deletion(definition: &Value, now: &str) -> Value {
    let mut marked = definition.clone();
    marked["metadata"]["deletionTimestamp"] = now.into();
    let mut finalizers = list(definition, "/metadata/finalizers").to_vec();
    if !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
        finalizers.push(FINALIZER.into());
    }
    marked["metadata"]["finalizers"] = finalizers.into();
    let message =
        "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
    set_terminating(&mut marked, now, "True", "InstanceDeletionPending", message);
    marked
}

impl Api {
    /// Returns the definition of that name, if it is being deleted and still has its finalizer.
    fn terminating_definition(&self, name: &str) -> Option<Arc<Stored>> {
        let found = self.store.get(&format!("{DEFINITIONS}.{GROUP}"), name)?;
        let waits = list(&found.value, "/metadata/finalizers").iter().any(|f| f == FINALIZER);
        (waits && is_deleting(&found.value)).then_some(found)
    }

    /// Changes a definition by `change`, which gets the time too, without the checks of an update.
    fn change_definition(&self, name: &str, change: &dyn Fn(&mut Value, &str)) -> ApiResult<()> {
        let Some(kind) = self.registry.find(GROUP, "v1", DEFINITIONS) else { return Ok(()) };
        let now = self.clock.now().to_string();
        let changed = self.modify(&Call::of(kind, "", name), Part::Raw, &|old| {
            let mut new = old.clone();
            change(&mut new, &now);
            Ok(new)
        });
        changed.map(drop)
    }

    /// Deletes all objects of a CustomResourceDefinition that is being deleted, and releases the
    /// definition if none remains.
    pub fn empty_definition(&self, definition: &Value) -> ApiResult<()> {
        let name = text(definition, "/metadata/name");
        if self.terminating_definition(name).is_none() {
            return Ok(());
        }
        self.change_definition(name, &|definition, now| {
            let message = "CustomResource deletion is in progress";
            set_terminating(definition, now, "True", "InstanceDeletionInProgress", message);
        })?;
        let kinds = self.registry.all();
        let kind = kinds.iter().find(|kind| kind.resource.to_string() == name);
        let objects = self.store.list(name, "", None, usize::MAX, None, &|_| true);
        for object in objects.map(|page| page.items).unwrap_or_default() {
            let Some(kind) = kind else { break };
            let at = |pointer| text(&object.value, pointer);
            let one = Call::of(kind.clone(), at("/metadata/namespace"), at("/metadata/name"));
            match self.delete_object(&one, &DeleteOptions::default()) {
                Err(error) if error.code != 404 => return Err(error),
                _ => {}
            }
        }
        self.release_definition(name)
    }

    /// Removes this server's finalizer from a definition that is being deleted, if it has no
    /// objects left. A definition whose kinds are not served is released too.
    pub fn release_definition(&self, name: &str) -> ApiResult<()> {
        let served = self.registry.all().iter().any(|kind| kind.resource.to_string() == name);
        let objects = self.store.list(name, "", None, 1, None, &|_| true);
        let empty = objects.is_ok_and(|page| page.items.is_empty());
        if self.terminating_definition(name).is_none() || served && !empty {
            return Ok(());
        }
        let released = self.change_definition(name, &|definition, now| {
            set_terminating(
                definition,
                now,
                "False",
                "InstanceDeletionCompleted",
                "removed all instances",
            );
            if let Some(finalizers) = definition["metadata"]["finalizers"].as_array_mut() {
                finalizers.retain(|finalizer| finalizer != FINALIZER);
            }
        });
        match released {
            Err(error) if error.code != 404 => Err(error),
            _ => Ok(()),
        }
    }

    /// Refuses a new object of a definition that is being deleted. Errors: 403.
    pub fn check_defined(&self, kind: &Kind, name: &str) -> ApiResult<()> {
        if !kind.is_custom() || self.terminating_definition(&kind.resource.to_string()).is_none() {
            return Ok(());
        }
        let why = "create not allowed while custom resource definition is terminating";
        Err(failures::forbidden(&kind.resource, name, why))
    }
}
