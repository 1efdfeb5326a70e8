//! Names, labels, annotations and owner references. Upstream: `apimachinery/pkg/api/validation`.

use std::net::IpAddr;

use serde_json::Value;

use super::fault::{forbidden, immutable, invalid, required, too_long};
use super::json::{list, members, text, truth};
use crate::status::Cause;

/// What a kind allows as a name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NameRule {
    Subdomain,
    Dns1123Label,
    /// Services: a label of DNS.
    Dns1035,
    /// RBAC, certificate requests: anything that can be one part of a path.
    PathSegment,
    /// LeaseCandidates: what may be a key of a ConfigMap.
    Key,
    /// StorageVersions: a resource and its group.
    GroupResource,
    /// IPAddresses: an address as it is usually written.
    Address,
}

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
    characters, '-' or '.', and must start and end with an alphanumeric character (e.g. \
    'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters \
    or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', \
    regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const DNS1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', \
    start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  \
    or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const NAME_PART: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and \
    must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or \
    '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric \
    characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. \
    'MyValue',  or 'my_value',  or '12345', regex used for validation is \
    '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const KEY: &str = "a valid config map key must consist of alphanumeric characters, '-', '_' or '.' \
    (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is \
    '[-._a-zA-Z0-9]+')";
const ANNOTATION_BYTES: usize = 256 * 1024;

fn is_dns1123_label(text: &str) -> bool {
    let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !text.is_empty() && text.chars().all(inside) && !text.starts_with('-') && !text.ends_with('-')
}

/// Returns whether a text has only letters, digits, `-`, `_` and `.`, and begins and ends with a
/// letter or digit: the form of a label's value, and of the name in its key.
fn is_word(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        && edge(text.chars().next())
        && edge(text.chars().next_back())
}

/// Returns the fault of `name` as a DNS-1123 label, if any. Upstream: `IsDNS1123Label`.
pub fn dns1123_label_fault(name: &str) -> Option<String> {
    if name.len() > 63 {
        return Some("must be no more than 63 characters".to_owned());
    }
    (!is_dns1123_label(name)).then(|| LABEL.to_owned())
}

pub fn subdomain_fault(name: &str) -> Option<String> {
    if name.len() > 253 {
        return Some("must be no more than 253 characters".to_owned());
    }
    (!name.split('.').all(is_dns1123_label)).then(|| SUBDOMAIN.to_owned())
}

/// Checks a name by the kind's rule; returns the message of its fault, or `None` if it is valid.
pub fn name_fault(rule: NameRule, name: &str) -> Option<String> {
    match rule {
        NameRule::Subdomain => subdomain_fault(name),
        NameRule::Dns1123Label if name.contains('.') => Some("must not contain dots".to_owned()),
        NameRule::Dns1123Label => dns1123_label_fault(name),
        NameRule::Dns1035 if name.contains('.') => Some("must not contain dots".to_owned()),
        NameRule::Dns1035 => {
            let letter = name.starts_with(|c: char| c.is_ascii_lowercase());
            (!letter || dns1123_label_fault(name).is_some()).then(|| DNS1035.to_owned())
        }
        NameRule::PathSegment if name == "." || name == ".." => {
            Some(format!("may not be '{name}'"))
        }
        NameRule::GroupResource => {
            let Some((group, resource)) = name.rsplit_once('.') else {
                return Some("name must be in the form of <group>.<resource>".to_owned());
            };
            let group = subdomain_fault(group).map(|fault| format!("the group segment {fault}"));
            let resource = || {
                let fault = name_fault(NameRule::Dns1035, resource)?;
                Some(format!("the resource segment {fault}"))
            };
            group.or_else(resource)
        }
        NameRule::Key => {
            let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            let sound = !name.is_empty() && name.len() <= 253 && name.chars().all(good);
            (!sound || name == "." || name.starts_with("..")).then(|| KEY.to_owned())
        }
        NameRule::Address => match name.parse::<IpAddr>() {
            Ok(address) if address.to_string() == name => None,
            Ok(address) => Some(format!("must be in canonical form (\"{address}\")")),
            Err(_) => {
                Some("must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned())
            }
        },
        NameRule::PathSegment => ["/", "%"]
            .into_iter()
            .find(|bad| name.contains(bad))
            .map(|bad| format!("may not contain '{bad}'")),
    }
}

/// Checks the key of a label or annotation; returns the message of its fault, or `None` if it is
/// valid. Upstream: `validation.IsQualifiedName`.
pub fn qualified_fault(key: &str) -> Option<String> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    if let Some(prefix) = prefix {
        if prefix.is_empty() {
            return Some("prefix part must be non-empty".to_owned());
        }
        if let Some(fault) = subdomain_fault(prefix) {
            return Some(format!("prefix part {fault}"));
        }
    }
    if name.is_empty() {
        return Some("name part must be non-empty".to_owned());
    }
    if name.len() > 63 {
        return Some("name part must be no more than 63 bytes".to_owned());
    }
    (!is_word(name)).then(|| NAME_PART.to_owned())
}

fn label_value_fault(value: &str) -> Option<String> {
    if value.len() > 63 {
        return Some("must be no more than 63 bytes".to_owned());
    }
    (!value.is_empty() && !is_word(value)).then(|| LABEL_VALUE.to_owned())
}

/// Checks the labels under `pointer` of `object`, and adds their faults, reported at `field`.
pub fn labels(object: &Value, pointer: &str, field: &str, faults: &mut Vec<Cause>) {
    for (key, value) in members(object, pointer) {
        if let Some(fault) = qualified_fault(key) {
            faults.push(invalid(field, &key.into(), &fault));
        }
        if let Some(fault) = value.as_str().and_then(label_value_fault) {
            faults.push(invalid(field, value, &fault));
        }
    }
}

/// Checks annotations: their keys, and the size of all together.
pub fn annotations(object: &Value, pointer: &str, field: &str, faults: &mut Vec<Cause>) {
    let mut bytes = 0;
    for (key, value) in members(object, pointer) {
        bytes += key.len() + value.as_str().map_or(0, str::len);
        // Upstream accepts capitals in the prefix of an annotation.
        if let Some(fault) = qualified_fault(&key.to_lowercase()) {
            faults.push(invalid(field, &key.into(), &fault));
        }
    }
    if bytes > ANNOTATION_BYTES {
        faults.push(too_long(field, ANNOTATION_BYTES));
    }
}

/// Validates the owner references of an object: no empty field, and at most one controller.
fn owner_references(object: &Value, faults: &mut Vec<Cause>) {
    let field = "metadata.ownerReferences";
    let mut controllers = Vec::new();
    for owner in list(object, "/metadata/ownerReferences") {
        for (part, what) in [
            ("apiVersion", "version must not be empty"),
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ] {
            if owner.get(part).and_then(Value::as_str).unwrap_or_default().is_empty() {
                faults.push(invalid(format!("{field}.{part}"), &"".into(), what));
            }
        }
        if text(owner, "/apiVersion") == "v1" && text(owner, "/kind") == "Event" {
            faults.push(invalid(field, owner, "v1, Kind=Event is disallowed from being an owner"));
        }
        if truth(owner, "/controller") {
            controllers.push(format!("{}/{}", text(owner, "/kind"), text(owner, "/name")));
        }
    }
    if let [first, second, ..] = &controllers[..] {
        let detail = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for \
             {first} and {second}"
        );
        let references = object.pointer(&format!("/{}", field.replace('.', "/")));
        faults.push(invalid(field, references.unwrap_or(&Value::Null), &detail));
    }
}

/// Checks the rules of `metadata` that hold for create and update. Upstream: `ValidateObjectMeta`.
pub fn check(object: &Value, rule: NameRule) -> Vec<Cause> {
    let mut faults = Vec::new();
    let name = text(object, "/metadata/name");
    if name.is_empty() {
        faults.push(required("metadata.name", "name or generateName is required"));
    } else if let Some(fault) = name_fault(rule, name) {
        faults.push(invalid("metadata.name", &name.into(), &fault));
    }
    labels(object, "/metadata/labels", "metadata.labels", &mut faults);
    annotations(object, "/metadata/annotations", "metadata.annotations", &mut faults);
    owner_references(object, &mut faults);
    for finalizer in list(object, "/metadata/finalizers") {
        if let Some(fault) = finalizer.as_str().and_then(qualified_fault) {
            faults.push(invalid("metadata.finalizers", finalizer, &fault));
        }
    }
    faults
}

/// Checks a change of `metadata`: what must not change, and finalizers that are added during a
/// deletion. Upstream: `ValidateObjectMetaUpdate`.
pub fn check_update(new: &Value, old: &Value) -> Vec<Cause> {
    let at = |object: &'_ Value, key: &str| object.pointer(&format!("/metadata/{key}")).cloned();
    let mut faults = Vec::new();
    for key in ["name", "namespace", "uid", "creationTimestamp"] {
        let (new, old) = (at(new, key), at(old, key));
        faults.extend(immutable(&format!("metadata.{key}"), new.as_ref(), old.as_ref()));
    }
    if old.pointer("/metadata/deletionTimestamp").is_some() {
        let before = list(old, "/metadata/finalizers");
        let added: Vec<&str> = list(new, "/metadata/finalizers")
            .iter()
            .filter(|finalizer| !before.contains(finalizer))
            .filter_map(Value::as_str)
            .collect();
        if !added.is_empty() {
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new \
                 finalizers {added:?}"
            );
            faults.push(forbidden("metadata.finalizers", &detail));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_follow_the_rule_of_the_kind() {
        for (rule, name, valid) in [
            (NameRule::Subdomain, "a.b-c.9", true),
            (NameRule::Subdomain, "Bad_1", false),
            (NameRule::Subdomain, "a..b", false),
            (NameRule::Subdomain, "-a", false),
            (NameRule::Dns1123Label, "a.b", false),
            (NameRule::Dns1123Label, "9a", true),
            (NameRule::Dns1035, "9a", false),
            (NameRule::Dns1035, "a9", true),
            (NameRule::PathSegment, "system:Node", true),
            (NameRule::PathSegment, "a/b", false),
            (NameRule::Address, "fe80::42:1dff:fe84:f9e2", true),
            (NameRule::Address, "10.96.0.1", true),
            (NameRule::Address, "2001:db8:0::1", false),
            (NameRule::Address, "example", false),
            (NameRule::Key, "host_0f-1", true),
            (NameRule::Key, "a/b", false),
            (NameRule::Key, "..a", false),
            (NameRule::GroupResource, "apps.deployments", true),
            (NameRule::GroupResource, "pods", false),
            (NameRule::GroupResource, "Apps.deployments", false),
            (NameRule::GroupResource, "apps.9", false),
        ] {
            assert_eq!(name_fault(rule, name).is_none(), valid, "{rule:?} {name}");
        }
        for (key, valid) in [("app", true), ("k8s.io/App_1", true), ("a b", false), ("/a", false)] {
            assert_eq!(qualified_fault(key).is_none(), valid, "{key}");
        }
    }

    #[test]
    fn an_owner_needs_all_its_parts_and_only_one_controls() {
        let owner =
            json!({"apiVersion": "v1", "kind": "A", "name": "a", "uid": "1", "controller": true});
        let object = json!({"metadata": {"name": "a", "ownerReferences": [{}, owner, owner]}});
        let faults = check(&object, NameRule::Subdomain);
        let fields: Vec<&str> = faults.iter().map(|f| f.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "metadata.ownerReferences.apiVersion",
                "metadata.ownerReferences.kind",
                "metadata.ownerReferences.name",
                "metadata.ownerReferences.uid",
                "metadata.ownerReferences"
            ]
        );
        assert_eq!(faults[0].message, "Invalid value: \"\": version must not be empty");
    }
}
