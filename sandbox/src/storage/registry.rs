//! The served kinds: built-in ones, and those of CustomResourceDefinitions.

use parking_lot::RwLock;
use std::sync::Arc;

use crate::kinds::Kind;

/// Kinds by group, version and resource. Reading copies a list of pointers.
#[derive(Default)]
pub struct Registry {
    kinds: RwLock<Vec<Entry>>,
}

struct Entry {
    kind: Arc<Kind>,
    /// The CustomResourceDefinition of the kind; `None` for a built-in one.
    definition: Option<String>,
}

impl Registry {
    pub fn new(builtin: Vec<Kind>) -> Registry {
        let kinds = builtin
            .into_iter()
            .map(|kind| Entry { kind: Arc::new(kind), definition: None })
            .collect();
        Registry { kinds: RwLock::new(kinds) }
    }

    pub fn all(&self) -> Vec<Arc<Kind>> {
        let kinds = self.kinds.read();
        kinds.iter().map(|entry| entry.kind.clone()).collect()
    }

    /// Returns the kind that is served at this group, version and plural.
    pub fn find(&self, group: &str, version: &str, resource: &str) -> Option<Arc<Kind>> {
        let kinds = self.kinds.read();
        let found = kinds.iter().find(|entry| {
            let at = &entry.kind.resource;
            at.group == group && at.version == version && at.plural == resource
        });
        found.map(|entry| entry.kind.clone())
    }

    /// Serves these kinds of a CustomResourceDefinition, in place of those that it had before.
    pub fn define(&self, definition: &str, new: Vec<Kind>) {
        let mut kinds = self.kinds.write();
        kinds.retain(|entry| entry.definition.as_deref() != Some(definition));
        kinds.extend(
            new.into_iter().map(|kind| Entry {
                kind: Arc::new(kind),
                definition: Some(definition.to_owned()),
            }),
        );
    }

    /// Serves `new`, versions of a built-in kind, from now on, in place of those before. Empty: the
    /// kind is served no longer.
    pub fn replace(&self, kind: &str, new: Vec<Kind>) {
        let mut kinds = self.kinds.write();
        kinds.retain(|entry| entry.definition.is_some() || entry.kind.resource.kind != kind);
        kinds.extend(new.into_iter().map(|kind| Entry { kind: Arc::new(kind), definition: None }));
    }
}
