//! Who manages which field: `managedFields` of every write, and server-side apply.
//! Upstream: `apimachinery/pkg/util/managedfields`, `structured-merge-diff/merge`.

mod fields;
mod walk;

use fields::Fields;
use serde_json::{Map, Value, json};

use super::kinds::{Kind, Subresource};
use super::shape::Schemas;
use super::status::{ApiError, ApiResult};
use super::write::{list, text};
use walk::Comparison;

/// Who writes.
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

    fn is(&self, writer: &Writer<'_>, operation: &str, api_version: &str) -> bool {
        self.manager == writer.manager
            && self.operation == operation
            && self.subresource == writer.subresource
            && (operation == "Apply" || self.api_version == api_version)
    }

    /// As conflicts name it.
    fn shown(&self) -> String {
        let mut shown = format!("{:?}", self.manager);
        if !self.subresource.is_empty() {
            shown.push_str(&format!(" with subresource {:?}", self.subresource));
        }
        if self.operation == "Update" {
            shown.push_str(&format!(" using {}", self.api_version));
        }
        shown
    }
}

fn parse(entries: &[Value]) -> Vec<Managed> {
    entries.iter().map(Managed::parse).collect()
}

fn store(object: &mut Value, mut entries: Vec<Managed>) {
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

/// Fields that nobody manages, and those that a write to this endpoint does not change.
fn ignored(kind: &Kind, subresource: &str) -> Vec<Vec<&'static str>> {
    const OF_SERVER: [&str; 9] = [
        "f:name",
        "f:namespace",
        "f:creationTimestamp",
        "f:selfLink",
        "f:uid",
        "f:generation",
        "f:generateName",
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

/// What an object that is not there yet has in its type's zero value, as far as `new` has it too:
/// such fields have no owner of their own.
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
    if writer.manager.is_empty() || found.is_empty() {
        match given {
            Value::Array(entries) if !entries.is_empty() => {
                new["metadata"]["managedFields"] = entries.into();
            }
            _ => store(new, Vec::new()),
        }
        return;
    }
    let api_version = kind.resource.api_version();
    let mut taken = found.modified;
    taken.union(&found.added);
    let at = entries.iter().position(|entry| entry.is(writer, "Update", &api_version));
    let mut own = match at {
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
    own.fields.difference(&found.removed);
    own.fields.union(&taken);
    own.time = writer.now.to_owned();
    entries.push(own);
    store(new, entries);
}

/// `live` (or, where there is none, an empty object) after `config` was applied to it.
/// Errors: 409 when others manage what would change, unless forced.
pub fn apply(
    kind: &Kind,
    live: &Value,
    config: &Value,
    writer: &Writer<'_>,
    force: bool,
) -> ApiResult<Value> {
    let schemas = Schemas::of(kind);
    let own = fields_of(kind, &schemas, writer, config);
    let mut entries = parse(list(live, "/metadata/managedFields"));
    let at = entries.iter().position(|entry| entry.is(writer, "Apply", ""));
    let last = at.map(|at| entries.remove(at));
    let mut kept = own.clone();
    entries.iter().for_each(|entry| kept.union(&entry.fields));
    let mut merged = walk::merge(schemas.root(), live, config);
    if let Some(last) = &last {
        walk::prune(schemas.root(), &mut merged, &last.fields, &kept);
    }
    let found = differences(kind, &schemas, writer.subresource, live, &merged);
    let mut taken = found.modified.clone();
    taken.union(&found.added);
    if !force {
        let conflicts: Vec<(String, Vec<String>)> = entries
            .iter()
            .map(|entry| (entry.shown(), entry.fields.intersection(&taken).paths()))
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
    let same = found.is_empty() && last.as_ref().is_some_and(|last| last.fields == own);
    let time = match &last {
        Some(last) if same => last.time.clone(),
        _ => writer.now.to_owned(),
    };
    entries.push(Managed {
        manager: writer.manager.to_owned(),
        operation: "Apply".to_owned(),
        subresource: writer.subresource.to_owned(),
        api_version: kind.resource.api_version(),
        time,
        fields: own,
    });
    store(&mut merged, entries);
    Ok(merged)
}

fn fields_of(kind: &Kind, schemas: &Schemas<'_>, writer: &Writer<'_>, config: &Value) -> Fields {
    let mut own = walk::fields_of(schemas.root(), config);
    for path in ignored(kind, writer.subresource) {
        own.remove(&path);
    }
    own
}

/// Upstream: `NewConflictError`.
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

/// The subject of errors about a patch: `default/web; apps/v1, Kind=Deployment`.
pub fn subject(kind: &Kind, object: &Value) -> String {
    let resource = &kind.resource;
    let metadata = |key: &str| text(object, &format!("/metadata/{key}"));
    format!(
        "{}/{}; {}, Kind={}",
        metadata("namespace"),
        metadata("name"),
        resource.api_version(),
        resource.kind
    )
}
