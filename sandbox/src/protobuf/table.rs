//! The messages of the API: which number each field has on the wire, and its name in JSON.

use std::collections::HashMap;
use std::sync::OnceLock;

/// A message a line: `group.Name number:field:type ...`, in the order of the numbers. The field `-`
/// is inlined in JSON. A type is plain (left out: text), or a message's name; before it `*` (a
/// pointer: a zero counts), `|` (a message that JSON replaces with its one set member), `!` (JSON
/// shows a zero), `[]` (repeated) or `{}` (a map from text); `*[]` and `{}[]` are lists that stand
/// in a message of their own.
const MESSAGES: &str = include_str!("messages.txt");

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// Left out of the JSON when it is zero.
    Value,
    /// A zero is shown in the JSON too.
    Shown,
    /// Present whenever it is set, even to zero.
    Pointer,
    List,
    Map,
}

#[derive(Debug)]
pub enum Type {
    Text,
    Bytes,
    Int,
    Bool,
    Double,
    Quantity,
    IntOrString,
    Time,
    MicroTime,
    /// JSON, as it is.
    Raw,
    /// A list in a message of its own.
    Items(Box<Type>),
    /// The index of a message in the table.
    Message(usize),
    /// The index of a message whose JSON is the one member that is set, without its name.
    Either(usize),
}

#[derive(Debug)]
pub struct Field {
    pub number: u64,
    /// `-`: its members stand in the JSON object around it.
    pub name: &'static str,
    pub shape: Shape,
    pub of: Type,
}

/// Its fields, in the order of their numbers.
pub type Message = Vec<Field>;

pub struct Table {
    messages: Vec<Message>,
    places: HashMap<String, usize>,
}

/// Returns the table, parsed at its first use.
pub fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(Table::parse)
}

impl Table {
    /// Parses the table of messages, one a line with its fields, and adds a list for each kind.
    fn parse() -> Table {
        let lines = || MESSAGES.lines().map(|line| line.split_once(' ').unwrap_or((line, "")));
        let mut places: HashMap<String, usize> =
            lines().enumerate().map(|(place, (name, _))| (name.to_owned(), place)).collect();
        let mut messages: Vec<Message> = lines()
            .map(|(_, fields)| fields.split(' ').filter_map(|text| field(text, &places)).collect())
            .collect();
        // A list of each kind has no line of its own.
        let object_meta = places.get("meta.ObjectMeta").copied();
        let list_meta = places.get("meta.ListMeta").copied();
        for (place, (name, _)) in lines().enumerate() {
            let first = messages[place].first();
            let is_kind = first.is_some_and(|field| {
                matches!(field.of, Type::Message(at) if field.number == 1 && Some(at) == object_meta)
            });
            let list = format!("{name}List");
            if let (true, Some(meta), false) = (is_kind, list_meta, places.contains_key(&list)) {
                let field = |number, name, shape, of| Field { number, name, shape, of };
                places.insert(list, messages.len());
                messages.push(vec![
                    field(1, "metadata", Shape::Value, Type::Message(meta)),
                    field(2, "items", Shape::List, Type::Message(place)),
                ]);
            }
        }
        Table { messages, places }
    }

    pub fn message(&self, place: usize) -> Option<&Message> {
        self.messages.get(place)
    }

    /// Finds the message of a kind; `None` when the table lacks it.
    pub fn find(&self, api_version: &str, kind: &str) -> Option<usize> {
        let named = |prefix: &str| self.places.get(&format!("{prefix}.{kind}")).copied();
        match api_version {
            // Every group serves the same DeleteOptions.
            _ if kind == "DeleteOptions" => named("meta"),
            "" | "v1" => named("core").or_else(|| named("meta")),
            // Its messages differ from those of version 2.
            "autoscaling/v1" => named("autoscaling1"),
            version => match version.split_once('/')?.0 {
                "rbac.authorization.k8s.io" => named("rbac"),
                "flowcontrol.apiserver.k8s.io" => named("flowcontrol"),
                group => named(group.strip_suffix(".k8s.io").unwrap_or(group)),
            },
        }
    }

    #[cfg(test)]
    pub fn all(&self) -> impl Iterator<Item = (&str, usize)> {
        self.places.iter().map(|(name, place)| (name.as_str(), *place))
    }
}

/// Parses a field of the table: `number:name:type`, with a mark of its shape before the type.
fn field(text: &'static str, places: &HashMap<String, usize>) -> Option<Field> {
    let (number, rest) = text.split_once(':')?;
    let (name, of) = rest.split_once(':').unwrap_or((rest, "string"));
    let (shape, of) = [
        ("*", Shape::Pointer),
        ("!", Shape::Shown),
        ("[]", Shape::List),
        ("{}", Shape::Map),
        ("", Shape::Value),
    ]
    .into_iter()
    .find_map(|(mark, shape)| Some((shape, of.strip_prefix(mark)?)))?;
    Some(Field { number: number.parse().ok()?, name, shape, of: type_of(of, places)? })
}

/// Parses the name of a type; any name that is not built in refers to a message of the table.
fn type_of(text: &str, places: &HashMap<String, usize>) -> Option<Type> {
    Some(match text {
        "string" => Type::Text,
        "bytes" => Type::Bytes,
        "int" => Type::Int,
        "bool" => Type::Bool,
        "double" => Type::Double,
        "Quantity" => Type::Quantity,
        "IntOrString" => Type::IntOrString,
        "Time" => Type::Time,
        "MicroTime" => Type::MicroTime,
        "Raw" => Type::Raw,
        other => match (other.strip_prefix("[]"), other.strip_prefix('|')) {
            (Some(of), _) => Type::Items(Box::new(type_of(of, places)?)),
            (_, Some(either)) => Type::Either(*places.get(either)?),
            _ => Type::Message(*places.get(other)?),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_the_table_is_understood() {
        let table = table();
        for (line, message) in MESSAGES.lines().zip(&table.messages) {
            assert_eq!(line.split(' ').count() - 1, message.len(), "{line}");
            assert!(message.is_sorted_by(|a, b| 0 < a.number && a.number < b.number), "{line}");
        }
    }

    #[test]
    fn kinds_are_found_by_their_group() {
        let table = table();
        for (version, kind) in [
            ("v1", "Pod"),
            ("v1", "PodList"),
            ("v1", "Status"),
            ("", "APIVersions"),
            ("apps/v1", "DeploymentList"),
            ("autoscaling/v1", "Scale"),
            ("rbac.authorization.k8s.io/v1", "ClusterRole"),
            ("networking.k8s.io/v1", "Ingress"),
            ("meta.k8s.io/v1", "PartialObjectMetadataList"),
            ("meta.k8s.io/v1", "DeleteOptions"),
            ("apiextensions.k8s.io/v1", "CustomResourceDefinitionList"),
        ] {
            assert!(table.find(version, kind).is_some(), "{version} {kind}");
        }
        for (version, kind) in [("apps.example.com/v1", "Deployment"), ("v1", "Foo"), ("x", "Pod")]
        {
            assert_eq!(table.find(version, kind), None, "{version} {kind}");
        }
    }
}
