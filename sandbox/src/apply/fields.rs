//! Sets of fields, as `managedFields` writes them. Upstream: `structured-merge-diff/fieldpath`.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// A set of paths as a tree. Names are those of FieldsV1: `f:name` for a member, `k:{...}` for an
/// item by its keys, `v:...` for an item by its value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    /// Whether the path that leads here is in the set.
    pub member: bool,
    pub below: BTreeMap<String, Fields>,
}

impl Fields {
    pub fn leaf() -> Fields {
        Fields { member: true, below: BTreeMap::new() }
    }

    pub fn is_empty(&self) -> bool {
        !self.member && self.below.is_empty()
    }

    /// Adds the fields below a name, if there are any.
    pub fn insert(&mut self, name: String, below: Fields) {
        if !below.is_empty() {
            self.below.insert(name, below);
        }
    }

    /// Removes a path and all below it.
    pub fn remove(&mut self, path: &[&str]) {
        let [name, rest @ ..] = path else { return };
        if rest.is_empty() {
            self.below.remove(*name);
        } else if let Some(inner) = self.below.get_mut(*name) {
            inner.remove(rest);
            if inner.is_empty() {
                self.below.remove(*name);
            }
        }
    }

    pub fn union(&mut self, other: &Fields) {
        self.member |= other.member;
        for (name, fields) in &other.below {
            self.below.entry(name.clone()).or_default().union(fields);
        }
    }

    /// Removes the fields that `other` has too.
    pub fn difference(&mut self, other: &Fields) {
        self.member &= !other.member;
        for (name, fields) in &other.below {
            if let Some(own) = self.below.get_mut(name) {
                own.difference(fields);
                if own.is_empty() {
                    self.below.remove(name);
                }
            }
        }
    }

    /// Returns the fields that both sets have.
    pub fn intersection(&self, other: &Fields) -> Fields {
        let mut shared = Fields { member: self.member && other.member, below: BTreeMap::new() };
        for (name, fields) in &self.below {
            if let Some(others) = other.below.get(name) {
                shared.insert(name.clone(), fields.intersection(others));
            }
        }
        shared
    }

    /// Reads FieldsV1.
    pub fn from_json(fields: &Value) -> Fields {
        let mut root = Fields::default();
        for (name, below) in fields.as_object().into_iter().flatten() {
            if name == "." {
                root.member = true;
            } else {
                let mut inner = Fields::from_json(below);
                // In FieldsV1, a name without names below it is a field of its own.
                inner.member |= inner.below.is_empty();
                root.below.insert(name.clone(), inner);
            }
        }
        root
    }

    /// Writes FieldsV1.
    pub fn to_json(&self) -> Value {
        let mut fields = Map::new();
        if self.member && !self.below.is_empty() {
            fields.insert(".".to_owned(), Value::Object(Map::new()));
        }
        fields.extend(self.below.iter().map(|(name, below)| (name.clone(), below.to_json())));
        Value::Object(fields)
    }

    /// Returns the paths as errors name them: `.spec.containers[name="a"].image`.
    pub fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect("", &mut paths);
        paths
    }

    /// Adds the paths of all fields here and below, as messages show them.
    fn collect(&self, at: &str, paths: &mut Vec<String>) {
        if self.member {
            paths.push(at.to_owned());
        }
        for (name, below) in &self.below {
            let step = match name.split_once(':') {
                Some(("f", field)) => format!(".{field}"),
                Some(("k", keys)) => {
                    let keys: Map<String, Value> = serde_json::from_str(keys).unwrap_or_default();
                    let keys: Vec<String> =
                        keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
                    format!("[{}]", keys.join(","))
                }
                Some((_, value)) => format!("[={value}]"),
                None => name.clone(),
            };
            below.collect(&format!("{at}{step}"), paths);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sets_survive_a_round_trip_through_json() {
        let json = json!({"f:metadata": {"f:labels": {".": {}, "f:app": {}}}, "f:spec": {
            "f:replicas": {}, "f:containers": {"k:{\"name\":\"a\"}": {".": {}, "f:image": {}}},
            "f:finalizers": {"v:\"x/y\"": {}}}});
        let fields = Fields::from_json(&json);
        assert_eq!(fields.to_json(), json);
        assert_eq!(
            fields.paths(),
            [
                ".metadata.labels",
                ".metadata.labels.app",
                ".spec.containers[name=\"a\"]",
                ".spec.containers[name=\"a\"].image",
                ".spec.finalizers[=\"x/y\"]",
                ".spec.replicas",
            ]
        );
    }

    #[test]
    fn sets_are_united_and_subtracted() {
        let of = |json: Value| Fields::from_json(&json);
        let both = of(json!({"f:a": {".": {}, "f:b": {}}, "f:c": {}}));
        let mut rest = both.clone();
        rest.difference(&of(json!({"f:a": {"f:b": {}}, "f:d": {}})));
        assert_eq!(rest, of(json!({"f:a": {}, "f:c": {}})));
        rest.union(&of(json!({"f:a": {"f:b": {}}})));
        assert_eq!(rest, both);
        let shared = both.intersection(&of(json!({"f:a": {"f:b": {}, "f:x": {}}})));
        assert_eq!(shared, of(json!({"f:a": {"f:b": {}}})));
        let mut none = both.clone();
        none.difference(&both);
        assert!(none.is_empty());
        rest.remove(&["f:a", "f:b"]);
        rest.remove(&["f:c"]);
        assert_eq!(rest, of(json!({"f:a": {}})));
    }
}
