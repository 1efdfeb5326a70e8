//! Serves the kinds of CustomResourceDefinitions, from their creation to their removal.

use serde_json::{Value, json};

use crate::api::Api;
use crate::api::rules::is_definition;
use crate::failures;
use crate::kinds::{self, Kind};
use crate::object::{list, text};
use crate::status::ApiResult;

/// Returns `status.storedVersions` of a definition, with its current storage versions added.
fn stored_versions(definition: &Value) -> Vec<Value> {
    let mut stored = list(definition, "/status/storedVersions").to_vec();
    let versions = list(definition, "/spec/versions").iter();
    for version in versions.filter(|version| version["storage"] == true) {
        if !stored.contains(&version["name"]) {
            stored.push(version["name"].clone());
        }
    }
    stored
}

impl Api {
    /// Serves the kinds of a CustomResourceDefinition from now on, and fills in its names,
    /// conditions and stored versions.
    pub fn establish(&self, definition: &mut Value) -> ApiResult<()> {
        let name = text(definition, "/metadata/name").to_owned();
        let kinds = kinds::from_crd(definition).map_err(|causes| {
            failures::invalid("apiextensions.k8s.io", "CustomResourceDefinition", &name, &causes)
        })?;
        let now = self.clock.now().to_string();
        let mut names = definition["spec"]["names"].clone();
        if names["listKind"].is_null() {
            names["listKind"] = format!("{}List", text(&names, "/kind")).into();
        }
        if names["singular"].is_null() {
            names["singular"] = text(&names, "/kind").to_lowercase().into();
        }
        let stored = stored_versions(definition);
        let condition = |r#type: &str, reason: &str, message: &str| json!({ "type": r#type, "status": "True", "lastTransitionTime": now, "reason": reason, "message": message });
        let known = definition.pointer("/status/conditions").cloned();
        let conditions = known.filter(|known| !list(known, "").is_empty()).unwrap_or_else(|| {
            json!([
                condition("NamesAccepted", "NoConflicts", "no conflicts found"),
                condition(
                    "Established",
                    "InitialNamesAccepted",
                    "the initial names have been accepted"
                ),
            ])
        });
        let status = json!({
            "conditions": conditions, "acceptedNames": names.clone(), "storedVersions": stored,
        });
        definition["status"] = status;
        definition["spec"]["names"] = names;
        self.registry.define(&name, kinds);
        Ok(())
    }

    /// Cleans up after the removal of an object: the kinds and objects of a definition, companions,
    /// and the tokens of an account.
    pub fn after_removal(&self, kind: &Kind, object: &Value) {
        if is_definition(kind) {
            self.registry.define(text(object, "/metadata/name"), Vec::new());
            let table =
                format!("{}.{}", text(object, "/spec/names/plural"), text(object, "/spec/group"));
            self.store.clear(&table);
        }
        self.sync_companions(kind, Some(object), None);
        if kind.is_custom()
            && let Err(error) = self.release_definition(&kind.resource.to_string())
        {
            log::error!("{} stays: {}", kind.resource, error.message);
        }
        if kind.resource.plural == "serviceaccounts" && kind.resource.group.is_empty() {
            let (namespace, name) =
                (text(object, "/metadata/namespace"), text(object, "/metadata/name"));
            self.auth.revoke(&format!("system:serviceaccount:{namespace}:{name}"));
        }
    }
}
