//! The Go structs behind pods and their templates, as tables.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::Value;

/// The structs of `v1.PodTemplateSpec` in Kubernetes 1.36, with their fields in the order of
/// declaration. One struct a paragraph: its name, then a line a field.
///
/// ```text
///  Name[:jsonName][?[?]] type
/// ```
///
/// Without a `:jsonName` it is the name with a small first letter; `-` marks an embedded struct
/// whose fields stand among those of the outer one. `?` is `omitempty`, `??` also `omitzero`. Types
/// are written as Go's reflection prints them; `=` and the underlying type follow where it is not a
/// struct.
const TABLE: &str = include_str!("pod_template.types");

/// The structs of `core.Pod`, the form of pods that no client sees; written in the same way. Those
/// of its status are left out: it is empty where pods are dumped.
const POD_TABLE: &str = include_str!("pod.types");

/// The lines of each struct, by its name.
static STRUCTS: LazyLock<HashMap<&str, &str>> = LazyLock::new(|| {
    let mut structs = HashMap::new();
    for table in [TABLE, POD_TABLE] {
        let mut rest = table;
        while let Some((name, lines)) = rest.split_once('\n') {
            let next = ["\nv1.", "\ncore."].into_iter().filter_map(|start| lines.find(start));
            let end = next.min().map_or(lines.len(), |at| at + 1);
            structs.insert(name, &lines[..end]);
            rest = &lines[end..];
        }
    }
    structs
});

/// The struct that static pods decode into.
pub const POD: &str = "core.Pod";

/// The struct that templates decode into.
pub const POD_TEMPLATE_SPEC: &str = "v1.PodTemplateSpec";

/// A field of a Go struct, as a line of the table declares it.
pub struct Field {
    pub go_name: &'static str,
    json_name: &'static str,
    pub omit_empty: bool,
    pub omit_zero: bool,
    pub r#type: Type,
}

/// Returns the fields of a struct, in the order of declaration; none of an unknown one.
pub fn fields(name: &str) -> impl Iterator<Item = Field> {
    STRUCTS.get(name).copied().unwrap_or_default().lines().filter_map(Field::parse)
}

impl Field {
    /// Reads `GoName:jsonName?? type`: one `?` is `omitempty`, two are `omitzero`.
    fn parse(line: &'static str) -> Option<Field> {
        let (names, r#type) = line.trim_start().split_once(' ')?;
        let bare = names.trim_end_matches('?');
        let marks = names.len() - bare.len();
        let (go_name, json_name) = bare.split_once(':').unwrap_or((bare, ""));
        let (omit_empty, omit_zero) = (marks > 0, marks > 1);
        Some(Field { go_name, json_name, omit_empty, omit_zero, r#type: Type::parse(r#type) })
    }

    pub fn is_embedded(&self) -> bool {
        self.json_name == "-"
    }

    /// Returns the name in JSON: that of the table, or else the Go name with a small first letter.
    pub fn json_name(&self) -> String {
        if !self.json_name.is_empty() {
            return self.json_name.to_owned();
        }
        let mut letters = self.go_name.chars();
        letters.next().map(|first| first.to_ascii_lowercase()).into_iter().chain(letters).collect()
    }

    /// Returns the field's value in an object; null is absence.
    pub fn value_in<'v>(&self, object: Option<&'v Value>) -> Option<&'v Value> {
        if self.is_embedded() {
            return object;
        }
        object?.get(self.json_name()).filter(|value| !value.is_null())
    }
}

/// A Go type: its printed name and its kind.
#[derive(Clone, Copy)]
pub struct Type {
    pub name: &'static str,
    pub kind: Kind,
}

#[derive(Clone, Copy)]
pub enum Kind {
    String,
    Bool,
    Int,
    /// With the notation of the type that it points to.
    Pointer(&'static str),
    /// With the notation of the elements.
    Slice(&'static str),
    /// From strings; with the notation of the values.
    Map(&'static str),
    Struct,
    Quantity,
    IntOrString,
    Time,
    /// `metav1.FieldsV1`: any JSON.
    Fields,
}

impl Type {
    /// Reads `name`, or `name=underlying` for a named type.
    pub fn parse(notation: &'static str) -> Type {
        let (name, underlying) = notation.split_once('=').unwrap_or((notation, notation));
        // What follows `=` in `[]v1.Capability=string` belongs to the element.
        if let Some(element) = notation.strip_prefix('*') {
            return Type { name, kind: Kind::Pointer(element) };
        }
        if let Some(element) = notation.strip_prefix("[]") {
            return Type { name, kind: Kind::Slice(element) };
        }
        let kind = match underlying {
            "string" => Kind::String,
            "bool" => Kind::Bool,
            "int" | "int32" | "int64" | "uint8" => Kind::Int,
            "resource.Quantity" => Kind::Quantity,
            "intstr.IntOrString" => Kind::IntOrString,
            "v1.Time" => Kind::Time,
            "v1.FieldsV1" => Kind::Fields,
            map if map.starts_with("map[") => {
                Kind::Map(map.split_once(']').map_or("string", |(_, values)| values))
            }
            _ => Kind::Struct,
        };
        Type { name, kind }
    }
}

/// Returns whether a slice or a map is nil in Go: protobuf, from which the Go manager reads, has no
/// empty ones.
pub fn is_nil(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Array(items)) => items.is_empty(),
        Some(Value::Object(members)) => members.is_empty(),
        Some(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Map, json};

    use super::*;

    /// A value of `type` with every field set, recursion cut where a struct stands in itself.
    fn full(of: Type, above: &mut Vec<&'static str>) -> Option<Value> {
        Some(match of.kind {
            Kind::String => json!("text"),
            Kind::Bool => json!(true),
            Kind::Int => json!(7),
            Kind::Pointer(inner) => full(Type::parse(inner), above)?,
            Kind::Slice(inner) => json!([full(Type::parse(inner), above)?]),
            Kind::Map(values) => json!({"key": full(Type::parse(values), above)?}),
            Kind::Quantity => json!("1"),
            Kind::IntOrString => json!(80),
            Kind::Time => json!("2026-01-01T00:00:00Z"),
            Kind::Fields => json!({"f:a": {}}),
            Kind::Struct if above.contains(&of.name) => return None,
            Kind::Struct => {
                above.push(of.name);
                let mut members = Map::new();
                for field in fields(of.name) {
                    match full(field.r#type, above) {
                        Some(Value::Object(inner)) if field.is_embedded() => members.extend(inner),
                        Some(value) => _ = members.insert(field.json_name(), value),
                        None => {}
                    }
                }
                above.pop();
                Value::Object(members)
            }
        })
    }

    fn paths(value: &Value, at: &str, into: &mut BTreeSet<String>) {
        into.insert(at.to_owned());
        match value {
            Value::Object(members) => {
                members
                    .iter()
                    .for_each(|(name, value)| paths(value, &format!("{at}.{name}"), into));
            }
            Value::Array(items) => items.iter().for_each(|item| paths(item, at, into)),
            _ => {}
        }
    }

    /// The generated types come from the same version's OpenAPI document, so they check the table.
    #[test]
    fn every_field_is_known_to_the_published_api() {
        let template = full(Type::parse(POD_TEMPLATE_SPEC), &mut Vec::new()).unwrap();
        let published: k8s_openapi::api::core::v1::PodTemplateSpec =
            serde_json::from_value(template.clone()).unwrap();
        let published = serde_json::to_value(&published).unwrap();
        let (mut ours, mut theirs) = (BTreeSet::new(), BTreeSet::new());
        paths(&template, "", &mut ours);
        paths(&published, "", &mut theirs);
        let missing: Vec<_> = ours.difference(&theirs).collect();
        assert!(missing.is_empty(), "{missing:?}");
        assert!(ours.len() > 700, "{} fields", ours.len());
    }

    #[test]
    fn every_struct_is_there_and_every_line_is_read() {
        let lines = TABLE.lines().chain(POD_TABLE.lines());
        let lines = lines.filter(|line| line.starts_with(' ')).count();
        let mut read = 0;
        for name in STRUCTS.keys() {
            for field in fields(name) {
                read += 1;
                let mut of = field.r#type;
                while let Kind::Pointer(inner) | Kind::Slice(inner) | Kind::Map(inner) = of.kind {
                    of = Type::parse(inner);
                }
                let known = !matches!(of.kind, Kind::Struct) || STRUCTS.contains_key(of.name);
                let known = known || *name == "core.PodStatus";
                assert!(known, "{name}.{}: {}", field.go_name, of.name);
            }
        }
        assert_eq!((read, STRUCTS.len()), (lines, 113 + 110));
    }

    /// Internal structs have the fields of the published ones, but for those that moved.
    #[test]
    fn pods_have_the_fields_of_their_templates() {
        let moved = ["hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "hostUsers"];
        for name in STRUCTS.keys().filter_map(|name| name.strip_prefix("core.")) {
            let names = |prefix: &str| -> BTreeSet<String> {
                fields(&format!("{prefix}{name}")).map(|field| field.json_name()).collect()
            };
            let (published, internal) = (names("v1."), names("core."));
            let (missing, more): (Vec<_>, Vec<_>) = (
                published.difference(&internal).collect(),
                internal.difference(&published).collect(),
            );
            match name {
                "Pod" | "PodStatus" => {}
                "PodSpec" => assert!(more.is_empty() && missing.len() == 6, "{missing:?} {more:?}"),
                "PodSecurityContext" => assert_eq!(more.len(), moved.len(), "{more:?}"),
                _ => assert!(missing.is_empty() && more.is_empty(), "{name} {missing:?} {more:?}"),
            }
        }
    }
}
