//! Kinds of CustomResourceDefinitions. Upstream: `apiextensions-apiserver`.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::{Value, json};

use super::fault::{invalid, required, unsupported};
use super::json::{list, restore, text, truth};
use super::metadata::{self, NameRule};
use super::{Column, Kind, Subresource, columns, schema, schema_expressions, schema_rules};
use crate::kinds::human_duration;
use crate::status::Cause;
use kube_controller_manager::objects::{ResourceType, Timestamp};

/// Returns the kinds that a CustomResourceDefinition defines, one for each served version; or why
/// it is not valid.
pub fn from_crd(crd: &Value) -> Result<Vec<Kind>, Vec<Cause>> {
    let faults = check(crd);
    if !faults.is_empty() {
        return Err(faults);
    }
    let served = list(crd, "/spec/versions").iter().filter(|version| truth(version, "/served"));
    Ok(served.map(|version| kind(crd, version)).collect())
}

/// Validates a CustomResourceDefinition: names, scope, versions and the structure of its schemas.
fn check(crd: &Value) -> Vec<Cause> {
    let mut faults = Vec::new();
    let group = text(crd, "/spec/group");
    let plural = text(crd, "/spec/names/plural");
    for (field, value) in [
        ("spec.group", group),
        ("spec.names.plural", plural),
        ("spec.names.kind", text(crd, "/spec/names/kind")),
    ] {
        if value.is_empty() {
            faults.push(required(field, ""));
        }
    }
    let name = text(crd, "/metadata/name");
    if name != format!("{plural}.{group}") {
        let detail = "must be spec.names.plural+\".\"+spec.group";
        faults.push(invalid("metadata.name", &name.into(), detail));
    }
    let scopes = ["Cluster", "Namespaced"];
    let scope = text(crd, "/spec/scope");
    if scope.is_empty() {
        faults.push(required("spec.scope", ""));
    } else if !scopes.contains(&scope) {
        faults.push(unsupported("spec.scope", &scope.into(), &scopes));
    }
    let versions = list(crd, "/spec/versions");
    if versions.is_empty() {
        let detail = "must have at least one version";
        faults.push(required("spec.versions", detail));
    } else if versions.iter().filter(|version| truth(version, "/storage")).count() != 1 {
        let detail = "must have exactly one version marked as storage version";
        let given = crd.pointer("/spec/versions").unwrap_or(&Value::Null);
        faults.push(invalid("spec.versions", given, detail));
    }
    for (n, version) in versions.iter().enumerate() {
        let at = format!("spec.versions[{n}]");
        if let Some(fault) = metadata::name_fault(NameRule::Dns1035, text(version, "/name")) {
            let name = version.get("name").unwrap_or(&Value::Null);
            faults.push(invalid(format!("{at}.name"), name, &fault));
        }
        let schema = version.pointer("/schema/openAPIV3Schema");
        match schema {
            None => faults
                .push(required(format!("{at}.schema.openAPIV3Schema"), "schemas are required")),
            Some(schema) if text(schema, "/type") != "object" => {
                let kind = schema.get("type").unwrap_or(&Value::Null);
                let field = format!("{at}.schema.openAPIV3Schema.type");
                faults.push(invalid(field, kind, "must be object at the root"));
            }
            Some(_) => {}
        }
        if let Some(schema) = schema {
            let at = match versions.len() {
                // Upstream reports the schema of an only version at the place that all versions
                // shared in v1beta1.
                1 => "spec.validation.openAPIV3Schema".to_owned(),
                _ => format!("{at}.schema.openAPIV3Schema"),
            };
            check_structure(schema, &at, &mut faults);
        }
    }
    faults
}

/// Checks a schema for unknown types, invalid patterns and rules with wrong syntax.
fn check_structure(schema: &Value, at: &str, faults: &mut Vec<Cause>) {
    const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
    let kind = text(schema, "/type");
    let untyped = ["x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"];
    if !kind.is_empty() && !TYPES.contains(&kind) {
        faults.push(unsupported(format!("{at}.type"), &kind.into(), &TYPES));
    } else if kind.is_empty() && !untyped.iter().any(|key| schema.get(key) == Some(&true.into())) {
        let place = match at.rsplit('.').next() {
            Some("items") => "must not be empty for specified array items",
            Some("openAPIV3Schema") => "must not be empty at the root",
            _ => "must not be empty for specified object fields",
        };
        faults.push(required(format!("{at}.type"), place));
    }
    let pattern = text(schema, "/pattern");
    // Unlike a real server, this one has no Unicode classes.
    let is_readable = !pattern.contains("\\p") && !pattern.contains("\\P");
    if let Err(error) = regex_lite::Regex::new(pattern)
        && is_readable
    {
        let detail =
            format!("must be a valid regular expression, but isn't: error parsing regexp: {error}");
        faults.push(invalid(format!("{at}.pattern"), &pattern.into(), &detail));
    }
    faults.extend(schema_expressions::syntax(schema, at));
    for (name, member) in super::json::members(schema, "/properties") {
        check_structure(member, &format!("{at}.properties[{name}]"), faults);
    }
    for below in ["items", "additionalProperties"] {
        if let Some(schema) = schema.get(below).filter(|schema| schema.is_object()) {
            check_structure(schema, &format!("{at}.{below}"), faults);
        }
    }
}

fn words(crd: &Value, pointer: &str) -> Vec<String> {
    list(crd, pointer).iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Builds the kind that one version of a CustomResourceDefinition defines. Its schema prunes,
/// defaults and validates the objects.
fn kind(crd: &Value, version: &Value) -> Kind {
    let owned = |pointer: &str| Cow::Owned(text(crd, pointer).to_owned());
    let resource = ResourceType {
        group: owned("/spec/group"),
        version: Cow::Owned(text(version, "/name").to_owned()),
        kind: owned("/spec/names/kind"),
        plural: owned("/spec/names/plural"),
        namespaced: text(crd, "/spec/scope") == "Namespaced",
    };
    let stored = list(crd, "/spec/versions").iter().find(|version| truth(version, "/storage"));
    let storage_version =
        stored.map(|version| format!("{}/{}", resource.group, text(version, "/name")));
    let singular = match text(crd, "/spec/names/singular") {
        "" => resource.kind.to_lowercase(),
        given => given.to_owned(),
    };
    let mut subresources = Vec::new();
    let has_status = version.pointer("/subresources/status").is_some();
    if has_status {
        subresources.push(Subresource::Status);
    }
    if let Some(scale) = version.pointer("/subresources/scale") {
        let path = |name: &str| text(scale, name).to_owned();
        subresources.push(Subresource::Scale {
            replicas: path("/specReplicasPath"),
            status_replicas: path("/statusReplicasPath"),
            selector: Some(path("/labelSelectorPath")).filter(|path| !path.is_empty()),
        });
    }
    let given = version.pointer("/schema/openAPIV3Schema").cloned().unwrap_or_else(|| json!({}));
    let shared = Arc::new(given.clone());
    let has_rules = schema_expressions::any(&given);
    let (of_default, of_create, of_update) = (shared.clone(), shared.clone(), shared);
    Kind {
        resource,
        singular,
        short_names: words(crd, "/spec/names/shortNames"),
        categories: words(crd, "/spec/names/categories"),
        subresources,
        has_generation: true,
        default_grace: |_| None,
        default: Box::new(move |object| {
            schema::prune(&of_default, object);
            schema::default(&of_default, object);
        }),
        prepare_create: Box::new(move |object| {
            if has_status {
                super::json::remove(object, "status");
            }
        }),
        prepare_update: Box::new(move |new, old| {
            if has_status {
                restore(new, old, "status");
            }
        }),
        checks_status: true,
        validate_create: Box::new(move |object| {
            let mut faults = metadata::check(object, NameRule::Subdomain);
            faults.extend(schema_rules::check(&of_create, object, None));
            if has_rules && faults.is_empty() {
                faults = schema_expressions::check(&of_create, object, None);
            }
            faults
        }),
        validate_update: Box::new(move |new, old| {
            let mut faults = metadata::check_update(new, old);
            faults.extend(metadata::check(new, NameRule::Subdomain));
            faults.extend(schema_rules::check(&of_update, new, Some(old)));
            if has_rules && faults.is_empty() {
                faults = schema_expressions::check(&of_update, new, Some(old));
            }
            faults
        }),
        field: |_, _| None,
        columns: printer_columns(version),
        schema: Some(given),
        storage_version,
        view: None,
    }
}

/// Builds the columns of a version, or name and age when it defines none.
fn printer_columns(version: &Value) -> Vec<Column> {
    let mut all = vec![columns::name()];
    let given = list(version, "/additionalPrinterColumns");
    if given.is_empty() {
        all.push(age());
        return all;
    }
    all.extend(given.iter().map(|column| {
        let r#type = match text(column, "/type") {
            "integer" => "integer",
            "number" => "number",
            "boolean" => "boolean",
            "date" => "date",
            _ => "string",
        };
        let path = JsonPath::parse(text(column, "/jsonPath"));
        let priority = column.get("priority").and_then(Value::as_i64).unwrap_or(0);
        Column {
            name: text(column, "/name").to_owned(),
            r#type,
            format: "",
            description: text(column, "/description").to_owned(),
            priority: i32::try_from(priority).unwrap_or(0),
            cell: Box::new(move |object, now| cell(r#type, &path.find(object), now)),
        }
    }));
    all
}

/// Builds the column of an object's age in the form that custom kinds show.
fn age() -> Column {
    Column { r#type: "date", ..columns::age_column() }
}

/// Renders a cell of a custom column from the values found at its path.
fn cell(r#type: &str, found: &[&Value], now: i64) -> Value {
    match (r#type, found) {
        (_, []) => Value::Null,
        ("date", [only, ..]) => match only.as_str().and_then(|t| t.parse::<Timestamp>().ok()) {
            Some(time) => human_duration(now - time.as_secs()).into(),
            None => "<invalid>".into(),
        },
        ("string", [Value::String(only)]) => only.as_str().into(),
        ("string", many) => {
            let shown = many.iter().map(|value| match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            });
            shown.collect::<Vec<_>>().join(",").into()
        }
        (_, [only, ..]) => (*only).clone(),
    }
}

/// A JSONPath of names, indices, `[*]`, `['name']` and `[?(@.a=="b")]`.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonPath(Vec<Step>);

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Name(String),
    At(i64),
    All,
    Where { path: Vec<Step>, value: String },
}

impl JsonPath {
    /// Parses a path such as `.status.conditions[?(@.type=="Ready")].status`. A part that cannot be
    /// parsed becomes a name that no object has.
    pub fn parse(text: &str) -> JsonPath {
        let mut steps = Vec::new();
        let mut rest = text.trim().trim_start_matches('{').trim_end_matches('}');
        while !rest.is_empty() {
            if let Some(inside) = rest.strip_prefix('[') {
                let end = closing_bracket(inside);
                steps.push(bracket(&inside[..end]));
                rest = inside.get(end + 1..).unwrap_or_default();
                continue;
            }
            rest = rest.trim_start_matches(['.', '$', '@']);
            let mut name = String::new();
            let mut chars = rest.char_indices().peekable();
            let mut end = rest.len();
            while let Some((at, c)) = chars.next() {
                match c {
                    '.' | '[' => {
                        end = at;
                        break;
                    }
                    '\\' => name.extend(chars.next().map(|(_, c)| c)),
                    c => name.push(c),
                }
            }
            if !name.is_empty() {
                steps.push(if name == "*" { Step::All } else { Step::Name(name) });
            }
            rest = &rest[end..];
        }
        JsonPath(steps)
    }

    /// Returns every value the path leads to.
    pub fn find<'a>(&self, root: &'a Value) -> Vec<&'a Value> {
        walk(&self.0, root)
    }
}

/// Follows the steps from `root`, and returns all values that they lead to.
fn walk<'a>(steps: &[Step], root: &'a Value) -> Vec<&'a Value> {
    let mut found = vec![root];
    for step in steps {
        found = found
            .into_iter()
            .flat_map(|value| -> Vec<&'a Value> {
                let items = value.as_array();
                match step {
                    Step::Name(name) => value.get(name).into_iter().collect(),
                    Step::At(at) => {
                        let len = items.map_or(0, Vec::len);
                        let index = if *at < 0 {
                            len.checked_add_signed(*at as isize)
                        } else {
                            usize::try_from(*at).ok()
                        };
                        index.and_then(|index| items?.get(index)).into_iter().collect()
                    }
                    Step::All => match value {
                        Value::Array(items) => items.iter().collect(),
                        Value::Object(members) => members.values().collect(),
                        _ => Vec::new(),
                    },
                    Step::Where { path, value } => {
                        let holds = |item: &&Value| {
                            walk(path, item).first().is_some_and(|found| match found {
                                Value::String(text) => text == value,
                                other => other.to_string() == *value,
                            })
                        };
                        items.into_iter().flatten().filter(holds).collect()
                    }
                }
            })
            .collect();
    }
    found
}

/// Returns the position of the bracket that closes the one before `text`, or the length of `text`
/// if no bracket does.
fn closing_bracket(text: &str) -> usize {
    let mut quote = None;
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return at,
            (None, ']') => depth -= 1,
            _ => {}
        }
    }
    text.len()
}

/// Parses what stands between brackets in a JSON path: all items, a filter, an index or a name.
fn bracket(text: &str) -> Step {
    let unquoted = |text: &str| text.trim().trim_matches(['\'', '"']).to_owned();
    if text == "*" {
        return Step::All;
    }
    if let Some(test) = text.strip_prefix("?(").and_then(|test| test.strip_suffix(')'))
        && let Some((path, value)) = test.split_once("==")
    {
        return Step::Where { path: JsonPath::parse(path.trim()).0, value: unquoted(value) };
    }
    text.parse().map_or_else(|_| Step::Name(unquoted(text)), Step::At)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crd() -> Value {
        json!({"metadata": {"name": "foos.x.io"}, "spec": {"group": "x.io", "scope": "Namespaced",
            "names": {"kind": "Foo", "plural": "foos", "shortNames": ["fo"]},
            "versions": [
                {"name": "v1", "served": true, "storage": true,
                 "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object",
                    "required": ["size"], "properties": {"size": {"type": "integer", "minimum": 1},
                    "color": {"type": "string", "default": "red", "enum": ["red", "blue"]}}}}}},
                 "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"}},
                 "additionalPrinterColumns": [
                    {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
                    {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"}]},
                {"name": "v1alpha1", "served": false, "storage": false,
                 "schema": {"openAPIV3Schema": {"type": "object"}}}]}})
    }

    #[test]
    fn stored_objects_are_shown_as_the_schema_is_today() {
        let [kind] = &from_crd(&crd()).unwrap()[..] else { panic!("one version is served") };
        let stored = json!({"metadata": {"name": "a"}, "spec": {"size": 1, "gone": 2}});
        let today = json!({"metadata": {"name": "a"}, "spec": {"size": 1, "color": "red"}});
        assert_eq!(kind.coerced(&stored).as_ref(), Some(&today));
        assert_eq!(kind.coerced(&today), None);
    }

    #[test]
    fn a_definition_becomes_a_kind_a_served_version() {
        let kinds = from_crd(&crd()).unwrap();
        let [kind] = &kinds[..] else { panic!("{} kinds", kinds.len()) };
        assert_eq!(kind.resource.to_string(), "foos.x.io");
        assert_eq!((kind.singular.as_str(), kind.subresources.len()), ("foo", 2));
        let mut foo = json!({"metadata": {"name": "a"}, "spec": {"size": 0, "other": 1}, "status": {"size": 3}});
        (kind.default)(&mut foo);
        (kind.prepare_create)(&mut foo);
        assert_eq!(foo, json!({"metadata": {"name": "a"}, "spec": {"size": 0, "color": "red"}}));
        let faults = (kind.validate_create)(&foo);
        assert_eq!(faults.len(), 1);
        assert_eq!(faults[0].field, "spec.size");
        let object = json!({"spec": {"size": 3}, "status": {"conditions": [
            {"type": "Old", "status": "x"}, {"type": "Ready", "status": "True"}]}});
        let cells: Vec<Value> = kind.columns[1..].iter().map(|c| (c.cell)(&object, 0)).collect();
        assert_eq!(cells, [json!(3), json!("True")]);
    }

    #[test]
    fn a_wrong_definition_is_refused() {
        let mut wrong = crd();
        wrong["metadata"]["name"] = json!("foo.x.io");
        wrong["spec"]["versions"][0]["storage"] = json!(false);
        let faults = from_crd(&wrong).err().unwrap();
        let fields: Vec<&str> = faults.iter().map(|fault| fault.field.as_str()).collect();
        assert_eq!(fields, ["metadata.name", "spec.versions"]);
    }

    #[test]
    fn unknown_types_and_invalid_patterns_in_a_schema_are_refused() {
        let mut wrong = crd();
        wrong["spec"]["versions"].as_array_mut().unwrap().pop();
        wrong["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"] = json!({
            "a": { "type": "nope" },
            "b": { "type": "array", "items": {} },
            "c": { "type": "string", "pattern": "(" },
            "d": { "x-kubernetes-int-or-string": true },
            "e": { "type": "string", "pattern": "^\\p{L}+$" },
        });
        let faults = from_crd(&wrong).err().unwrap();
        let messages: Vec<String> =
            faults.iter().map(|fault| format!("{}: {}", fault.field, fault.message)).collect();
        let at = "spec.validation.openAPIV3Schema.properties";
        assert_eq!(
            messages[..2],
            [
                format!(
                    "{at}[a].type: Unsupported value: \"nope\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\""
                ),
                format!(
                    "{at}[b].items.type: Required value: must not be empty for specified array items"
                ),
            ]
        );
        let pattern = format!("{at}[c].pattern: Invalid value: \"(\": must be a valid regular");
        assert!(messages.len() == 3 && messages[2].starts_with(&pattern), "{messages:?}");
    }

    #[test]
    fn a_json_path_finds_its_values() {
        let root = json!({"a": [{"b": 1}, {"b": 2}], "c.d": {"e": "f"}});
        for (path, found) in [
            (".a[0].b", vec![json!(1)]),
            (".a[-1].b", vec![json!(2)]),
            (".a[*].b", vec![json!(1), json!(2)]),
            (".a[?(@.b==2)].b", vec![json!(2)]),
            ("{.c\\.d.e}", vec![json!("f")]),
            ("$['c.d'].e", vec![json!("f")]),
            (".missing[", vec![]),
        ] {
            let all: Vec<Value> = JsonPath::parse(path).find(&root).into_iter().cloned().collect();
            assert_eq!(all, found, "{path}");
        }
    }
}
