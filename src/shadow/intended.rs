//! A write that this manager would have made, and the place that it changes.

use std::fmt;
use std::time::Duration;

use super::diff::Change;
use super::request::Request;

/// An object, or all objects with a generated name: then the name ends with `*`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// `deployments.apps`
    pub resource: String,
    pub namespace: String,
    /// Empty: the collection.
    pub name: String,
}

impl Place {
    /// The place that represents all objects of this kind with the same first owner.
    pub fn of_owner(&self, uid: &str) -> Place {
        Place { name: format!("{uid}/*"), ..self.clone() }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { resource, namespace, name } = self;
        match (namespace.as_str(), name.as_str()) {
            ("", "") => f.write_str(resource),
            ("", name) => write!(f, "{resource} {name}"),
            (namespace, "") => write!(f, "{resource} in {namespace}"),
            (namespace, name) => write!(f, "{resource} {namespace}/{name}"),
        }
    }
}

/// A write that this manager would have made.
#[derive(Clone, Debug)]
pub struct IntendedWrite {
    pub controller: String,
    /// The key whose sync wanted the write; empty: none.
    pub key: String,
    /// Extra time beyond the grace period for the manager in charge, which may run the job at
    /// another time.
    pub patience: Duration,
    pub place: Place,
    pub request: Request,
    /// Empty for creations and deletions.
    pub changes: Vec<Change>,
}
