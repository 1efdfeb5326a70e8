//! Finds the changes that the manager in charge made, by `managedFields`.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

use super::intended::Place;
use super::ledger::{Kind, Write};
use crate::objects::{Timestamp, Uid, null_as_default};

/// The field managers of a kube-controller-manager: its User-Agent's, and those of its applies.
const MANAGERS: [&str; 6] = [
    "kube-controller-manager",
    "ResourceClaimController",
    "clusterrole-aggregation-controller",
    "migration-runner-controller",
    "service-cidr-controller",
    "validatingadmissionpolicy-status",
];

/// Resources that the manager writes outside of its controllers, or that are not compared.
const LEFT_OUT: [&str; 3] = ["events", "events.events.k8s.io", "leases.coordination.k8s.io"];

const REVISIONS: &str = "controllerrevisions.apps";

const SECOND_MICROS: i64 = 1_000_000;

/// The metadata that is read of an object.
#[derive(Deserialize, Default)]
pub struct Head {
    #[serde(default)]
    pub metadata: Metadata,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    pub name: String,
    pub generate_name: String,
    pub namespace: String,
    pub uid: Uid,
    pub resource_version: String,
    pub generation: i64,
    #[serde(deserialize_with = "null_as_default")]
    pub creation_timestamp: Option<Timestamp>,
    #[serde(deserialize_with = "null_as_default")]
    pub deletion_timestamp: Option<Timestamp>,
    #[serde(deserialize_with = "null_as_default")]
    pub managed_fields: Vec<Entry>,
    #[serde(deserialize_with = "null_as_default")]
    pub owner_references: Vec<Owner>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub struct Owner {
    uid: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub struct Entry {
    manager: String,
    subresource: String,
    time: Option<Timestamp>,
}

/// The last writes of the manager in charge to each object, by subresource, and the last request of
/// users.
#[derive(Default)]
pub struct Authors {
    objects: HashMap<Uid, Vec<(String, Timestamp)>>,
    last_requests: HashMap<Uid, UserRequest>,
}

/// The request of users for an object: the generation of its spec, and whether it is being deleted.
type UserRequest = (i64, bool);

impl Metadata {
    /// Returns the resource, namespace and name of the object.
    pub fn place(&self, resource: &str) -> Place {
        Place {
            resource: resource.to_owned(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }

    /// Returns the place of an object whose name the server generates: `PREFIX*`.
    pub fn generated(&self, resource: &str) -> Option<Place> {
        (!self.generate_name.is_empty()).then(|| Place {
            resource: resource.to_owned(),
            namespace: self.namespace.clone(),
            name: format!("{}*", self.generate_name),
        })
    }
}

impl Authors {
    /// Records the times of an object's managed fields. Returns the write that led to this state if
    /// it is of the manager in charge: then one of its entries has a new time. Removals of fields
    /// leave no trace. `None` also for objects that are not compared.
    pub fn observe(&mut self, resource: &str, meta: &Metadata) -> Option<Write> {
        // With --use-service-account-credentials the manager creates accounts for its controllers.
        let is_own_account = resource == "serviceaccounts"
            && meta.namespace == "kube-system"
            && meta.name != "default";
        if LEFT_OUT.contains(&resource) || is_own_account {
            return None;
        }
        let is_ours = |entry: &&Entry| MANAGERS.contains(&entry.manager.as_str());
        let mut entries = meta.managed_fields.iter().filter(is_ours).peekable();
        entries.peek()?;
        let known = self.objects.entry(meta.uid.clone()).or_default();
        let mut written: Option<(Timestamp, &str)> = None;
        for entry in entries {
            let Some(time) = entry.time else { continue };
            let subresource = entry.subresource.as_str();
            let is_newer = match known.iter_mut().find(|(of, _)| of == subresource) {
                Some((_, last)) if *last >= time => false,
                Some((_, last)) => {
                    *last = time;
                    true
                }
                None => {
                    known.push((subresource.to_owned(), time));
                    true
                }
            };
            if is_newer && written.is_none_or(|(last, _)| last <= time) {
                written = Some((time, subresource));
            }
        }
        let (time, subresource) = written?;
        // The API server takes both times from its clock, perhaps in different seconds.
        let at_creation = meta
            .creation_timestamp
            .is_some_and(|created| (time.as_micros() - created.as_micros()).abs() <= SECOND_MICROS);
        let is_new = at_creation && subresource.is_empty() && meta.managed_fields.len() == 1;
        // A sync creates at most one revision, with a name of its own.
        let owner = meta.owner_references.first().filter(|_| resource != REVISIONS);
        Some(Write {
            place: meta.place(resource),
            generated: meta.generated(resource),
            siblings: owner.map(|o| meta.place(resource).of_owner(&o.uid)),
            kind: if is_new { Kind::Create } else { Kind::Change(subresource.to_owned()) },
            version: meta.resource_version.clone(),
            fields: Vec::new(),
        })
    }

    /// Records the request of users in this state of an object, and returns whether it differs from
    /// that in the last state.
    pub fn request_changed(&mut self, meta: &Metadata) -> bool {
        let request = (meta.generation, meta.deletion_timestamp.is_some());
        let former = self.last_requests.insert(meta.uid.clone(), request);
        former.is_some_and(|former| former != request)
    }

    /// Forgets a deleted object. Returns whether its last state was not yet marked for deletion:
    /// then the deletion is a request that was not seen before.
    pub fn forget(&mut self, uid: &Uid) -> bool {
        self.objects.remove(uid);
        self.last_requests.remove(uid).is_some_and(|(_, is_deleted)| !is_deleted)
    }
}

/// Returns the uid of the claim that a volume is bound to, used as the volume's owner: of several
/// volumes that fit equally well, the managers may choose different ones.
pub fn bound_to<'a>(resource: &str, object: &'a Value) -> Option<&'a str> {
    object["spec"]["claimRef"]["uid"].as_str().filter(|_| resource == "persistentvolumes")
}

/// Returns the fields that the manager in charge owns in `object` by a subresource: paths to the
/// leaves.
pub fn owned_fields(object: &Value, of: &str) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array();
    let mut fields = Vec::new();
    for entry in entries.into_iter().flatten() {
        let is_ours = entry["manager"].as_str().is_some_and(|name| MANAGERS.contains(&name));
        if is_ours && entry["subresource"].as_str().unwrap_or_default() == of {
            append_leaves("", &entry["fieldsV1"], &mut fields);
        }
    }
    fields
}

/// Appends the paths of the leaves of a `fieldsV1`.
fn append_leaves(path: &str, fields: &Value, into: &mut Vec<String>) {
    let members = fields.as_object().into_iter().flatten().filter(|(key, _)| *key != ".");
    let mut is_leaf = true;
    for (key, below) in members {
        is_leaf = false;
        // A key is `f:FIELD`; `k:KEYS` and `v:VALUE` name an item of a list.
        let path = match key.split_once(':') {
            Some(("f", name)) if path.is_empty() => name.to_owned(),
            Some(("f", name)) => format!("{path}.{name}"),
            Some((_, item)) => format!("{path}[{item}]"),
            None => path.to_owned(),
        };
        append_leaves(&path, below, into);
    }
    if is_leaf && !path.is_empty() {
        into.push(path.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn meta(entries: &[(&str, &str, u32)]) -> Metadata {
        let at = |second: u32| format!("2026-01-01T00:00:{second:02}Z");
        let entries: Vec<Value> = entries
            .iter()
            .map(|(manager, subresource, second)| {
                json!({ "manager": manager, "subresource": subresource, "time": at(*second) })
            })
            .collect();
        let metadata = json!({
            "name": "web-x", "generateName": "web-", "namespace": "a",
            "uid": "00000000-0000-0000-0000-000000000001", "creationTimestamp": at(1),
            "managedFields": entries,
        });
        serde_json::from_value::<Head>(json!({ "metadata": metadata })).unwrap().metadata
    }

    #[test]
    fn a_new_time_of_the_managers_entry_is_a_write() {
        const INCUMBENT: &str = "kube-controller-manager";
        let mut authors = Authors::default();
        let change = |subresource: &str| Some(Kind::Change(subresource.to_owned()));
        for (entries, expected) in [
            (vec![(INCUMBENT, "", 1)], Some(Kind::Create)),
            (vec![(INCUMBENT, "", 1)], None),
            (vec![(INCUMBENT, "", 1), ("kubelet", "status", 2)], None),
            (
                vec![(INCUMBENT, "", 1), ("kubelet", "status", 2), (INCUMBENT, "status", 3)],
                change("status"),
            ),
            (
                vec![(INCUMBENT, "", 4), ("kubelet", "status", 5), (INCUMBENT, "status", 3)],
                change(""),
            ),
            (vec![(INCUMBENT, "", 4), ("kubelet", "status", 6), (INCUMBENT, "status", 3)], None),
        ] {
            let found = authors.observe("pods", &meta(&entries)).map(|write| write.kind);
            assert_eq!(found, expected, "{entries:?}");
        }
        let write = meta(&[(INCUMBENT, "", 9)]);
        assert!(authors.observe("leases.coordination.k8s.io", &write).is_none());
        let write = authors.observe("pods", &write).expect("a later write");
        assert_eq!(write.generated.expect("it has one").name, "web-*");
    }

    #[test]
    fn what_a_sync_makes_several_of_stands_for_its_owner() {
        for (resource, expected) in [("pods", true), (REVISIONS, false)] {
            let mut meta = meta(&[("kube-controller-manager", "", 1)]);
            meta.owner_references = vec![Owner { uid: "u".into() }];
            let write = Authors::default().observe(resource, &meta).expect("a write");
            assert_eq!(write.siblings.is_some(), expected, "{resource}");
        }
    }

    #[test]
    fn users_ask_by_generation_and_deletion() {
        let mut authors = Authors::default();
        let mut meta = meta(&[]);
        for (generation, is_deleted, expected) in [
            (1, false, false),
            (1, false, false),
            (2, false, true),
            (2, true, true),
            (2, true, false),
        ] {
            meta.generation = generation;
            meta.deletion_timestamp = meta.creation_timestamp.filter(|_| is_deleted);
            assert_eq!(authors.request_changed(&meta), expected, "{generation} {is_deleted}");
        }
        assert!(!authors.forget(&meta.uid), "it was to be deleted");
        meta.deletion_timestamp = None;
        authors.request_changed(&meta);
        assert!(authors.forget(&meta.uid));
    }

    #[test]
    fn a_volume_belongs_to_its_claim() {
        let object = json!({ "spec": { "claimRef": { "uid": "u" } } });
        assert_eq!(bound_to("persistentvolumes", &object), Some("u"));
        assert_eq!(bound_to("pods", &object), None);
        assert_eq!(bound_to("persistentvolumes", &json!({ "spec": {} })), None);
    }

    #[test]
    fn owned_fields_are_paths() {
        let object = json!({ "metadata": { "managedFields": [
            { "manager": "kubelet", "subresource": "status", "fieldsV1": { "f:status": { "f:phase": {} } } },
            { "manager": "kube-controller-manager", "subresource": "status", "fieldsV1": { "f:status": {
                "f:replicas": {},
                "f:conditions": { ".": {}, "k:{\"type\":\"Ready\"}": { ".": {}, "f:status": {} } },
            } } },
        ] } });
        let mut found = owned_fields(&object, "status");
        found.sort();
        assert_eq!(found, ["status.conditions[{\"type\":\"Ready\"}].status", "status.replicas"]);
        assert_eq!(owned_fields(&object, ""), Vec::<String>::new());
    }
}
