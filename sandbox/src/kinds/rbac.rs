//! Rules of roles and bindings. Upstream: `pkg/apis/rbac/{v1,validation}`.

use serde_json::{Value, json};

use super::fault::{invalid, required, unsupported};
use super::json::{drop_nulls, fill, list, list_mut, object, set, text};
use super::metadata::{self, NameRule};
use crate::status::Cause;

/// The API group of roles and bindings.
pub const GROUP: &str = "rbac.authorization.k8s.io";

/// Fills in the defaults of a Role or ClusterRole.
pub fn default_role(role: &mut Value) {
    drop_nulls(role);
    if list(role, "/rules").is_empty() {
        // An empty list is stored, and served, as null.
        set(role, "rules", Value::Null);
    }
    for rule in list_mut(role, "/rules") {
        omit_empty_lists(rule, &["apiGroups", "resources", "resourceNames", "nonResourceURLs"]);
    }
}

/// Drops empty lists, as Go's `omitempty` does when the object is stored.
fn omit_empty_lists(value: &mut Value, keys: &[&str]) {
    for key in keys {
        if value[*key].as_array().is_some_and(Vec::is_empty)
            && let Some(members) = value.as_object_mut()
        {
            members.remove(*key);
        }
    }
}

/// Fills in the defaults of a binding: the API groups of its role and of its users and groups.
pub fn default_binding(binding: &mut Value) {
    drop_nulls(binding);
    fill(object(binding, "roleRef"), "apiGroup", GROUP);
    omit_empty_lists(binding, &["subjects"]);
    for subject in list_mut(binding, "/subjects") {
        if matches!(text(subject, "/kind"), "User" | "Group") {
            fill(subject, "apiGroup", GROUP);
        }
    }
}

/// Validates a Role or ClusterRole: its rules, and the selectors of its aggregation.
pub fn check_role(role: &Value) -> Vec<Cause> {
    let mut faults = metadata::check(role, NameRule::PathSegment);
    let namespaced = text(role, "/kind") == "Role";
    for (n, rule) in list(role, "/rules").iter().enumerate() {
        let at = |field: &str| format!("rules[{n}].{field}");
        let is_empty_list = |field: &str| list(rule, &format!("/{field}")).is_empty();
        if is_empty_list("verbs") {
            faults.push(required(at("verbs"), "verbs must contain at least one value"));
        }
        if is_empty_list("nonResourceURLs") {
            for (field, what) in [("apiGroups", "api group"), ("resources", "resource")] {
                if is_empty_list(field) {
                    let detail = format!("resource rules must supply at least one {what}");
                    faults.push(required(at(field), &detail));
                }
            }
            continue;
        }
        let mut add_path_fault = |detail| {
            faults.push(invalid(at("nonResourceURLs"), &rule["nonResourceURLs"], detail));
        };
        if namespaced {
            add_path_fault("namespaced rules cannot apply to non-resource URLs");
        }
        if !(is_empty_list("apiGroups")
            && is_empty_list("resources")
            && is_empty_list("resourceNames"))
        {
            add_path_fault("rules cannot apply to both regular resources and non-resource URLs");
        }
    }
    let selectors = "aggregationRule.clusterRoleSelectors";
    if role.get("aggregationRule").is_some_and(Value::is_object)
        && list(role, "/aggregationRule/clusterRoleSelectors").is_empty()
    {
        let detail = "at least one clusterRoleSelector required if aggregationRule is non-nil";
        faults.push(required(selectors, detail));
    }
    faults
}

pub fn update_role(new: &Value, old: &Value) -> Vec<Cause> {
    let mut faults = metadata::check_update(new, old);
    faults.extend(check_role(new));
    faults
}

/// Checks a binding: what role it refers to, and its subjects. A ClusterRoleBinding may only refer
/// to a ClusterRole.
pub fn check_binding(binding: &Value) -> Vec<Cause> {
    let mut faults = metadata::check(binding, NameRule::PathSegment);
    let namespaced = text(binding, "/kind") == "RoleBinding";
    let at = |pointer: &str| binding.pointer(pointer).cloned().unwrap_or_else(|| "".into());
    let (group, kind) = (at("/roleRef/apiGroup"), at("/roleRef/kind"));
    if group != GROUP {
        faults.push(unsupported("roleRef.apiGroup", &group, &[GROUP]));
    }
    let kinds: &[&str] = if namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    if !kinds.iter().any(|known| kind == *known) {
        faults.push(unsupported("roleRef.kind", &kind, kinds));
    }
    match text(binding, "/roleRef/name") {
        "" => faults.push(required("roleRef.name", "")),
        name => {
            let fault = metadata::name_fault(NameRule::PathSegment, name);
            faults.extend(fault.map(|why| invalid("roleRef.name", &name.into(), &why)));
        }
    }
    for (n, subject) in list(binding, "/subjects").iter().enumerate() {
        check_subject(subject, namespaced, &format!("subjects[{n}]"), &mut faults);
    }
    faults
}

/// Validates a binding's subject. `namespaced`: the binding is in a namespace, which is then the
/// default of a service account.
fn check_subject(subject: &Value, namespaced: bool, at: &str, faults: &mut Vec<Cause>) {
    let (kind, name, group) =
        (text(subject, "/kind"), text(subject, "/name"), text(subject, "/apiGroup"));
    if name.is_empty() {
        faults.push(required(format!("{at}.name"), ""));
    }
    match kind {
        "ServiceAccount" => {
            if !name.is_empty()
                && let Some(why) = metadata::subdomain_fault(name)
            {
                faults.push(invalid(format!("{at}.name"), &name.into(), &why));
            }
            if !group.is_empty() {
                faults.push(unsupported(format!("{at}.apiGroup"), &group.into(), &[""]));
            }
            if !namespaced && text(subject, "/namespace").is_empty() {
                faults.push(required(format!("{at}.namespace"), ""));
            }
        }
        "User" | "Group" => {
            if group != GROUP {
                faults.push(unsupported(format!("{at}.apiGroup"), &group.into(), &[GROUP]));
            }
        }
        _ => {
            let kinds = ["ServiceAccount", "User", "Group"];
            faults.push(unsupported(format!("{at}.kind"), &kind.into(), &kinds));
        }
    }
}

/// Checks an update of a binding: its `roleRef` may not change.
pub fn update_binding(new: &Value, old: &Value) -> Vec<Cause> {
    let mut faults = check_binding(new);
    faults.extend(metadata::check_update(new, old));
    if new["roleRef"] != old["roleRef"] {
        // Upstream prints its internal type, whose fields have other names.
        let field = |key: &str| text(new, &format!("/roleRef/{key}")).to_owned();
        let [group, kind, name] = ["apiGroup", "kind", "name"].map(field);
        let shown = json!({ "APIGroup": group, "Kind": kind, "Name": name });
        faults.push(invalid("roleRef", &shown, "cannot change roleRef"));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(faults: &[Cause]) -> Vec<String> {
        faults.iter().map(|fault| format!("{}: {}", fault.field, fault.message)).collect()
    }

    #[test]
    fn a_rule_has_resources_or_paths() {
        let role = |kind: &str, rule: Value| {
            let mut role = json!({ "kind": kind, "metadata": { "name": "r" }, "rules": [rule] });
            default_role(&mut role);
            messages(&check_role(&role))
        };
        let paths = json!({ "verbs": ["get"], "nonResourceURLs": ["/x"], "resources": [] });
        assert!(role("ClusterRole", paths.clone()).is_empty());
        let namespaced = "rules[0].nonResourceURLs: Invalid value: [\"/x\"]: namespaced rules cannot apply to non-resource URLs";
        assert_eq!(role("Role", paths), [namespaced]);
        let both = json!({ "nonResourceURLs": ["/x"], "apiGroups": [""], "verbs": ["*"] });
        let words = "rules[0].nonResourceURLs: Invalid value: [\"/x\"]: rules cannot apply to both regular resources and non-resource URLs";
        assert_eq!(role("ClusterRole", both), [words]);
        assert_eq!(
            role("Role", json!({})),
            [
                "rules[0].verbs: Required value: verbs must contain at least one value",
                "rules[0].apiGroups: Required value: resource rules must supply at least one api group",
                "rules[0].resources: Required value: resource rules must supply at least one resource",
            ]
        );
    }

    #[test]
    fn a_bindings_role_is_immutable_and_its_subjects_are_validated() {
        let binding = |kind: &str, role: &str, subject: Value| {
            let mut binding = json!({
                "kind": kind, "metadata": { "name": "b", "resourceVersion": "1" },
                "roleRef": { "kind": role, "name": "r" }, "subjects": [subject],
            });
            default_binding(&mut binding);
            binding
        };
        let bob = json!({ "kind": "User", "name": "bob" });
        let old = binding("RoleBinding", "Role", bob.clone());
        assert!(update_binding(&old, &old).is_empty());
        let new = binding("RoleBinding", "ClusterRole", bob);
        let words = "roleRef: Invalid value: {\"APIGroup\":\"rbac.authorization.k8s.io\",\"Kind\":\"ClusterRole\",\"Name\":\"r\"}: cannot change roleRef";
        assert_eq!(messages(&update_binding(&new, &old)), [words]);
        let account = json!({ "kind": "ServiceAccount", "name": "a" });
        assert!(check_binding(&binding("RoleBinding", "Role", account.clone())).is_empty());
        assert_eq!(
            messages(&check_binding(&binding("ClusterRoleBinding", "Role", account))),
            [
                "roleRef.kind: Unsupported value: \"Role\": supported values: \"ClusterRole\"",
                "subjects[0].namespace: Required value",
            ]
        );
    }
}
