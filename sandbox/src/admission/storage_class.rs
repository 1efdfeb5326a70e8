//! Gives new claims the default class. Upstream: `plugin/pkg/admission/storage/storageclass`.

use serde_json::Value;

use super::is_core;
use crate::kinds::Kind;
use crate::object::text;
use crate::storage::store::{Store, Stored};

const STORAGE_CLASSES: &str = "storageclasses.storage.k8s.io";
const NAMES: [&str; 2] = [
    "/metadata/annotations/storageclass.kubernetes.io~1is-default-class",
    "/metadata/annotations/storageclass.beta.kubernetes.io~1is-default-class",
];
const OVERRIDE: &str = "/metadata/annotations/volume.beta.kubernetes.io~1storage-class";

/// Sets the default storage class in a new claim that names none, neither in its spec nor in the
/// older annotation: of several default classes the newest, then the first by name.
pub fn classify(store: &Store, kind: &Kind, claim: &mut Value) {
    let has_class = claim.pointer("/spec/storageClassName").is_some_and(|name| !name.is_null());
    if !is_core(kind, "persistentvolumeclaims") || has_class || claim.pointer(OVERRIDE).is_some() {
        return;
    }
    let keep = |class: &Stored| NAMES.iter().any(|name| text(&class.value, name) == "true");
    let page = store.list(STORAGE_CLASSES, "", None, usize::MAX, None, &keep);
    let classes = page.map(|page| page.items).unwrap_or_default();
    let order = |class: &&std::sync::Arc<Stored>| {
        let created = text(&class.value, "/metadata/creationTimestamp").to_owned();
        (std::cmp::Reverse(created), text(&class.value, "/metadata/name").to_owned())
    };
    if let Some(class) = classes.iter().min_by_key(order) {
        claim["spec"]["storageClassName"] = class.value["metadata"]["name"].clone();
    }
}
