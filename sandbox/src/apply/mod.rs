//! Field management: the `managedFields` of every write, and server-side apply.
//! Upstream: `apimachinery/pkg/util/managedfields`, `structured-merge-diff/merge`.

mod fields;
mod walk;

use fields::Fields;
use serde_json::{Map, Value, json};

use crate::kinds::{Kind, Subresource};
use crate::object::{list, text};
use crate::status::{ApiError, ApiResult};
use crate::types::shape::Schemas;
use walk::Comparison;

/// The writer.
#[derive(Clone, Debug)]
pub struct Writer<'a> {
    /// The field manager; without a name nothing is recorded.
    pub manager: &'a str,
    pub subresource: &'a str,
    /// The time now, as the API writes it.
    pub now: &'a str,
}

/// One entry of `managedFields`.
#[derive(Clone, Debug, PartialEq)]
struct Managed {
    manager: String,
    operation: String,
    subresource: String,
    api_version: String,
    time: String,
    fields: Fields,
}

impl Managed {
    /// Parses an entry of `managedFields`.
    fn parse(entry: &Value) -> Managed {
        let own = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
        Managed {
            manager: own("manager"),
            operation: own("operation"),
            subresource: own("subresource"),
            api_version: own("apiVersion"),
            time: own("time"),
            fields: Fields::from_json(&entry["fieldsV1"]),
        }
    }

    /// Returns the entry as it stands in `managedFields`.
    fn to_json(&self) -> Value {
        let mut entry = json!({
            "manager": self.manager, "operation": self.operation, "apiVersion": self.api_version,
            "fieldsType": "FieldsV1", "fieldsV1": self.fields.to_json(),
        });
        for (key, value) in [("subresource", &self.subresource), ("time", &self.time)] {
            if !value.is_empty() {
                entry[key] = value.as_str().into();
            }
        }
        entry
    }

    /// Returns whether this is the entry of a writer and operation. An update has an entry for each
    /// API version.
    fn is(&self, writer: &Writer<'_>, operation: &str, api_version: &str) -> bool {
        self.manager == writer.manager
            && self.operation == operation
            && self.subresource == writer.subresource
            && (operation == "Apply" || self.api_version == api_version)
    }

    /// Formats the manager as conflict errors show it.
    fn description(&self) -> String {
        let mut description = format!("{:?}", self.manager);
        if !self.subresource.is_empty() {
            description.push_str(&format!(" with subresource {:?}", self.subresource));
        }
        if self.operation == "Update" {
            description.push_str(&format!(" using {}", self.api_version));
        }
        description
    }
}

fn parse(entries: &[Value]) -> Vec<Managed> {
    entries.iter().map(Managed::parse).collect()
}

/// Writes the entries into `managedFields` of the object, sorted; those without fields are left
/// out.
fn set_entries(object: &mut Value, mut entries: Vec<Managed>) {
    entries.retain(|entry| !entry.fields.is_empty());
    entries.sort_by(|a, b| {
        let key =
            |entry: &Managed| (entry.operation.clone(), entry.time.clone(), entry.manager.clone());
        key(a).cmp(&key(b))
    });
    let entries: Vec<Value> = entries.iter().map(Managed::to_json).collect();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        match entries.is_empty() {
            true => metadata.remove("managedFields"),
            false => metadata.insert("managedFields".to_owned(), entries.into()),
        };
    }
}

/// Returns the paths of the fields that have no manager, and of those that a write to this endpoint
/// cannot change.
fn ignored(kind: &Kind, subresource: &str) -> Vec<Vec<&'static str>> {
    const OF_SERVER: [&str; 8] = [
        "f:name",
        "f:namespace",
        "f:creationTimestamp",
        "f:selfLink",
        "f:uid",
        "f:generation",
        "f:managedFields",
        "f:resourceVersion",
    ];
    let mut paths: Vec<Vec<&str>> =
        OF_SERVER.iter().map(|field| vec!["f:metadata", field]).collect();
    paths.extend([vec!["f:apiVersion"], vec!["f:kind"]]);
    if subresource == "status" {
        paths.push(vec!["f:spec"]);
    } else if kind.subresources.contains(&Subresource::Status) {
        paths.push(vec!["f:status"]);
    }
    paths
}

/// Returns the fields of a new object that its type's zero value has as well: such fields have no
/// owner of their own.
fn skeleton(new: &Value) -> Value {
    const ZERO: [&str; 9] = [
        "metadata",
        "spec",
        "status",
        "template",
        "jobTemplate",
        "strategy",
        "updateStrategy",
        "containers",
        "source",
    ];
    match new {
        Value::Object(members) => {
            let zero = members.iter().filter(|(key, _)| ZERO.contains(&key.as_str()));
            Value::Object(zero.map(|(key, value)| (key.clone(), skeleton(value))).collect())
        }
        Value::Array(_) => json!([]),
        _ => Value::Object(Map::new()),
    }
}

/// Compares two states of an object, without the fields that this subresource ignores.
fn differences(
    kind: &Kind,
    schemas: &Schemas<'_>,
    subresource: &str,
    old: &Value,
    new: &Value,
) -> Comparison {
    let mut found = walk::compare(schemas.root(), Some(old), Some(new));
    for path in ignored(kind, subresource) {
        found.ignore(&path);
    }
    found
}

/// Records an update (or a create, where there is no `old`) in `new`'s `managedFields`.
pub fn update(kind: &Kind, old: Option<&Value>, new: &mut Value, writer: &Writer<'_>) {
    let known = old.map_or(&Value::Null, |old| &old["metadata"]["managedFields"]);
    // A writer may hand in its own list, to give fields up.
    let given = match new["metadata"].get("managedFields") {
        Some(given @ Value::Array(_)) if old.is_some() => given.clone(),
        _ => known.clone(),
    };
    let mut entries = parse(list(&given, ""));
    let empty;
    let before = match old {
        Some(old) => old,
        None => {
            empty = skeleton(new);
            &empty
        }
    };
    let found = differences(kind, &Schemas::of(kind), writer.subresource, before, new);
    // Without a manager or a change, the entries stay as they are.
    if writer.manager.is_empty() || found.is_empty() {
        match given {
            Value::Array(entries) if !entries.is_empty() => {
                new["metadata"]["managedFields"] = entries.into();
            }
            _ => set_entries(new, Vec::new()),
        }
        return;
    }
    let api_version = kind.resource.api_version();
    let mut taken = found.modified;
    taken.union(&found.added);
    let at = entries.iter().position(|entry| entry.is(writer, "Update", &api_version));
    let mut own_entry = match at {
        Some(at) => entries.remove(at),
        None => Managed {
            manager: writer.manager.to_owned(),
            operation: "Update".to_owned(),
            subresource: writer.subresource.to_owned(),
            api_version,
            time: String::new(),
            fields: Fields::default(),
        },
    };
    for other in &mut entries {
        other.fields.difference(&taken);
        other.fields.difference(&found.removed);
    }
    own_entry.fields.difference(&found.removed);
    own_entry.fields.union(&taken);
    own_entry.time = writer.now.to_owned();
    entries.push(own_entry);
    set_entries(new, entries);
}

/// Merges `config` into `live`, drops what this manager applied last and neither `config` nor another
/// manager has, and moves the ownership of what changed: server-side apply. `live`: an object with
/// nothing in it for a new one. Errors: 409 when others manage what would change, unless forced.
pub fn apply(
    kind: &Kind,
    live: &Value,
    config: &Value,
    writer: &Writer<'_>,
    force: bool,
) -> ApiResult<Value> {
    let schemas = Schemas::of(kind);
    // With the server's own fields: `prune` would take all of the metadata away if nothing below it
    // were kept.
    let mut kept = walk::fields_of(schemas.root(), config);
    let mut applied = kept.clone();
    ignored(kind, writer.subresource).iter().for_each(|path| applied.remove(path));
    let mut entries = parse(list(live, "/metadata/managedFields"));
    let at = entries.iter().position(|entry| entry.is(writer, "Apply", ""));
    let last = at.map(|at| entries.remove(at));
    entries.iter().for_each(|entry| kept.union(&entry.fields));
    let mut merged = walk::merge(schemas.root(), live, config);
    if let Some(last) = &last {
        walk::prune(schemas.root(), &mut merged, &last.fields, &kept);
    }
    let found = differences(kind, &schemas, writer.subresource, live, &merged);
    let mut taken = found.modified.clone();
    taken.union(&found.added);
    if !force {
        let excused = match writer.manager {
            "kubectl" => last_applied(&schemas, live),
            _ => Fields::default(),
        };
        let shared = |entry: &Managed| {
            let mut fields = entry.fields.intersection(&taken);
            fields.difference(&excused);
            fields.paths()
        };
        let conflicts: Vec<(String, Vec<String>)> = entries
            .iter()
            .map(|entry| (entry.description(), shared(entry)))
            .filter(|(_, paths)| !paths.is_empty())
            .collect();
        if !conflicts.is_empty() {
            return Err(conflict(&conflicts));
        }
    }
    for other in &mut entries {
        other.fields.difference(&taken);
        other.fields.difference(&found.removed);
    }
    let is_unchanged = found.is_empty() && last.as_ref().is_some_and(|last| last.fields == applied);
    let time = match &last {
        Some(last) if is_unchanged => last.time.clone(),
        _ => writer.now.to_owned(),
    };
    entries.push(Managed {
        manager: writer.manager.to_owned(),
        operation: "Apply".to_owned(),
        subresource: writer.subresource.to_owned(),
        api_version: kind.resource.api_version(),
        time,
        fields: applied,
    });
    set_entries(&mut merged, entries);
    Ok(merged)
}

/// Returns the fields of `kubectl`'s last client-side apply that have not changed since:
/// server-side apply may take them over. Upstream: `lastAppliedManager`.
fn last_applied(schemas: &Schemas<'_>, live: &Value) -> Fields {
    let annotation =
        &live["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"];
    let config = annotation.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
    let Some(config) = config else { return Fields::default() };
    let mut fields = walk::fields_of(schemas.root(), &config);
    let found = walk::compare(schemas.root(), Some(&config), Some(live));
    fields.difference(&found.modified);
    fields.difference(&found.removed);
    fields
}

/// Builds the error 409 that lists the fields which other managers own. Upstream:
/// `NewConflictError`.
fn conflict(conflicts: &[(String, Vec<String>)]) -> ApiError {
    let mut causes = Vec::new();
    for (manager, paths) in conflicts {
        causes.extend(paths.iter().map(|path| {
            json!({
                "reason": "FieldManagerConflict",
                "message": format!("conflict with {manager}"), "field": path,
            })
        }));
    }
    let message = match conflicts {
        [(manager, paths)] if paths.len() == 1 => {
            format!("Apply failed with 1 conflict: conflict with {manager}: {}", paths[0])
        }
        _ => {
            let parts = conflicts.iter().map(|(manager, paths)| {
                format!("conflicts with {manager}:\n- {}", paths.join("\n- "))
            });
            let parts: Vec<String> = parts.collect();
            format!("Apply failed with {} conflicts: {}", causes.len(), parts.join("\n"))
        }
    };
    let mut error = ApiError::new(409, "Conflict", message);
    error.details = json!({ "causes": causes });
    error
}

/// Formats the subject of errors about a patch: `default/web; apps/v1, Kind=Deployment`.
pub fn subject(kind: &Kind, object: &Value) -> String {
    let resource = &kind.resource;
    let metadata = |key: &str| text(object, &format!("/metadata/{key}"));
    format!(
        "{}/{}; {}, Kind={}",
        metadata("namespace"),
        metadata("name"),
        format_args!("{}/{}", resource.group, resource.version),
        resource.kind
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::builtin;

    fn deployments() -> Kind {
        builtin().into_iter().find(|kind| kind.resource.plural == "deployments").unwrap()
    }

    fn writer(manager: &str) -> Writer<'_> {
        Writer { manager, subresource: "", now: "2026-05-01T10:00:00Z" }
    }

    fn config(replicas: Option<i32>, containers: Value) -> Value {
        let mut config = json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "labels": {"app": "web"}},
            "spec": {"template": {"spec": {"containers": containers}}}});
        if let Some(replicas) = replicas {
            config["spec"]["replicas"] = replicas.into();
        }
        config
    }

    /// `manager`'s fields, as FieldsV1.
    fn managed(object: &Value, manager: &str) -> Value {
        let entries = list(object, "/metadata/managedFields");
        let entry = entries.iter().find(|entry| entry["manager"] == manager);
        entry.map_or(Value::Null, |entry| entry["fieldsV1"].clone())
    }

    fn one(image: &str) -> Value {
        json!([{"name": "a", "image": image, "ports": [{"containerPort": 80}]}])
    }

    /// The object as it stands after `bob` applied it, with a default filled in.
    fn applied(kind: &Kind) -> Value {
        let empty = json!({"metadata": {}});
        let config = config(Some(2), one("x:1"));
        let mut live = apply(kind, &empty, &config, &writer("bob"), false).unwrap();
        live["spec"]["paused"] = false.into();
        live["spec"]["template"]["spec"]["containers"][0]["ports"][0]["protocol"] = "TCP".into();
        live
    }

    #[test]
    fn the_applier_owns_the_applied_fields() {
        let live = applied(&deployments());
        let expected = json!({"f:metadata": {"f:labels": {"f:app": {}}}, "f:spec": {
            "f:replicas": {}, "f:template": {"f:spec": {"f:containers": {"k:{\"name\":\"a\"}": {
                ".": {}, "f:name": {}, "f:image": {}, "f:ports": {
                    "k:{\"containerPort\":80,\"protocol\":\"TCP\"}":
                        {".": {}, "f:containerPort": {}}}}}}}}});
        assert_eq!(managed(&live, "bob"), expected);
        // A repeated apply changes nothing, also at a later time.
        let later = Writer { now: "2026-05-01T11:00:00Z", ..writer("bob") };
        let again = config(Some(2), one("x:1"));
        assert_eq!(apply(&deployments(), &live, &again, &later, false).unwrap(), live);
    }

    #[test]
    fn a_field_of_another_manager_is_a_conflict_unless_forced_or_equal() {
        let kind = deployments();
        let live = applied(&kind);
        let mut scaled = live.clone();
        scaled["spec"]["replicas"] = 5.into();
        update(&kind, Some(&live), &mut scaled, &writer("scaler"));
        assert_eq!(managed(&scaled, "scaler"), json!({"f:spec": {"f:replicas": {}}}));
        assert_eq!(managed(&scaled, "bob").pointer("/f:spec/f:replicas"), None);

        let mine = config(Some(2), one("x:1"));
        let refused = apply(&kind, &scaled, &mine, &writer("bob"), false).unwrap_err();
        assert_eq!(refused.code, 409);
        assert_eq!(
            refused.message,
            "Apply failed with 1 conflict: conflict with \"scaler\" using apps/v1: .spec.replicas"
        );
        assert_eq!(refused.details["causes"][0]["field"], ".spec.replicas");
        let forced = apply(&kind, &scaled, &mine, &writer("bob"), true).unwrap();
        assert_eq!(
            (&forced["spec"]["replicas"], managed(&forced, "scaler")),
            (&json!(2), Value::Null)
        );
        // Applying the current value adds an owner.
        let shared = apply(&kind, &scaled, &config(Some(5), one("x:1")), &writer("bob"), false);
        let shared = shared.unwrap();
        assert_eq!(managed(&shared, "scaler"), json!({"f:spec": {"f:replicas": {}}}));
        assert!(managed(&shared, "bob").pointer("/f:spec/f:replicas").is_some());

        let two = apply(&kind, &live, &config(Some(9), one("y:1")), &writer("eve"), false);
        assert_eq!(
            two.unwrap_err().message,
            "Apply failed with 2 conflicts: conflicts with \"bob\":\n- .spec.replicas\n\
             - .spec.template.spec.containers[name=\"a\"].image"
        );
    }

    #[test]
    fn fields_that_are_no_longer_applied_are_removed_unless_owned_by_others() {
        let kind = deployments();
        let live = applied(&kind);
        let both = json!([{"name": "a", "image": "x:1"}, {"name": "b", "image": "y:1"}]);
        let mut live =
            apply(&kind, &live, &config(None, both.clone()), &writer("bob"), false).unwrap();
        assert_eq!(live["spec"].get("replicas"), None);
        // The ports were removed with their key; unowned fields stay.
        assert_eq!(live["spec"]["template"]["spec"]["containers"], both);
        assert_eq!(live["spec"]["paused"], false);

        let before = live.clone();
        live["spec"]["template"]["spec"]["containers"][0]["tty"] = true.into();
        live["metadata"]["labels"]["by"] = "eve".into();
        update(&kind, Some(&before), &mut live, &writer("eve"));
        let mut less = config(None, json!([{"name": "b", "image": "y:1"}]));
        less["metadata"]["labels"] = json!({});
        let live = apply(&kind, &live, &less, &writer("bob"), false).unwrap();
        // Eve's fields keep the objects around them; the other fields are gone.
        assert_eq!(live["spec"]["template"]["spec"]["containers"][0], json!({"tty": true}));
        assert_eq!(live["metadata"]["labels"], json!({"by": "eve"}));
        less["metadata"].as_object_mut().unwrap().remove("labels");
        let mut alone = live.clone();
        alone["metadata"]["managedFields"] = json!([]);
        let alone = apply(&kind, &alone, &config(None, one("x:1")), &writer("bob"), false).unwrap();
        let alone = apply(&kind, &alone, &less, &writer("bob"), false).unwrap();
        assert_eq!(alone["metadata"]["name"], "web", "what bob never owned stays");
    }

    #[test]
    fn a_create_is_an_update_of_nothing() {
        let kind = deployments();
        let mut new = config(Some(2), one("x:1"));
        new["status"] = json!({"replicas": 0});
        update(&kind, None, &mut new, &writer("eve"));
        let expected = json!({"f:metadata": {"f:labels": {".": {}, "f:app": {}}}, "f:spec": {
            "f:replicas": {}, "f:template": {"f:spec": {"f:containers": {"k:{\"name\":\"a\"}": {
                ".": {}, "f:name": {}, "f:image": {}, "f:ports": {".": {},
                    "k:{\"containerPort\":80,\"protocol\":\"TCP\"}":
                        {".": {}, "f:containerPort": {}}}}}}}}});
        assert_eq!(managed(&new, "eve"), expected);
        let mut same = new.clone();
        same["metadata"].as_object_mut().unwrap().remove("managedFields");
        update(&kind, Some(&new), &mut same, &writer("bob"));
        assert_eq!(same, new);
    }
}
