//! The validation rules of a kind.

use serde_json::Value;

use super::fault::immutable;
use super::metadata::{self, NameRule};
use crate::status::Cause;

/// The rules of a kind, in addition to those for all metadata.
#[derive(Clone, Copy)]
pub struct Rules {
    pub name: NameRule,
    /// Faults of an object, new or changed.
    pub check: fn(&Value) -> Vec<Cause>,
    /// Pointers to members that no update changes.
    pub fixed: &'static [&'static str],
}

impl Rules {
    /// Builds rules that check only names.
    pub const fn named(name: NameRule) -> Rules {
        Rules { name, check: |_| Vec::new(), fixed: &[] }
    }

    /// Builds rules with this check, whose names are subdomains.
    pub const fn of(check: fn(&Value) -> Vec<Cause>) -> Rules {
        Rules { check, ..Rules::named(NameRule::Subdomain) }
    }

    pub const fn fixed(self, fixed: &'static [&'static str]) -> Rules {
        Rules { fixed, ..self }
    }

    pub fn check_new(&self, object: &Value) -> Vec<Cause> {
        let mut faults = metadata::check(object, self.name);
        faults.extend((self.check)(object));
        faults
    }

    /// Checks an update: its metadata, the rules of a new object, and the fields that may not
    /// change.
    pub fn check_change(&self, new: &Value, old: &Value) -> Vec<Cause> {
        let mut faults = metadata::check_update(new, old);
        faults.extend(self.check_new(new));
        faults.extend(self.fixed.iter().filter_map(|pointer| {
            let field = pointer.trim_start_matches('/').replace('/', ".");
            immutable(&field, new.pointer(pointer), old.pointer(pointer))
        }));
        faults
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_update_is_checked_as_a_new_object_and_keeps_fixed_fields() {
        let kind_is_missing = |object: &Value| {
            let is_missing = object.pointer("/spec/kind").is_none();
            Vec::from_iter(is_missing.then(|| super::super::fault::required("spec.kind", "")))
        };
        let rules = Rules::of(kind_is_missing).fixed(&["/spec/kind", "/data"]);
        let object = |name: &str, spec: Value, data: i32| json!({ "metadata": { "name": name }, "spec": spec, "data": data });
        let kind = |kind: &str| json!({ "kind": kind });
        let old = object("a", kind("A"), 1);
        for (new, in_new, in_change) in [
            (object("a", kind("A"), 1), vec![], vec![]),
            (object("a", kind("B"), 2), vec![], vec!["spec.kind", "data"]),
            (object("a", json!({}), 1), vec!["spec.kind"], vec!["spec.kind", "spec.kind"]),
            (object("A", kind("A"), 1), vec!["metadata.name"], vec!["metadata.name"; 2]),
        ] {
            let fields = |faults: Vec<Cause>| Vec::from_iter(faults.into_iter().map(|f| f.field));
            assert_eq!(fields(rules.check_new(&new)), in_new, "{new}");
            assert_eq!(fields(rules.check_change(&new, &old)), in_change, "{new}");
        }
    }
}
