//! Whether a policy or a binding selects a request. Upstream: `admission/plugin/policy/matching`.

use serde_json::Value;

use super::Request;
use crate::object::{list, text};
use crate::storage::store::Store;
use kube_controller_manager::objects::{LabelSelector, Labels, Selector};

/// Returns whether no policy applies to the request: policies and their bindings are exempt.
pub fn is_exempt(request: &Request<'_>) -> bool {
    let of = &request.call.kind.resource;
    &*of.group == "admissionregistration.k8s.io" && of.plural.contains("admissionpolic")
}

/// Returns whether `matched` (`matchConstraints` or `matchResources`) selects the request. Errors:
/// a selector that cannot be read.
pub fn matches(store: &Store, request: &Request<'_>, matched: &Value) -> Result<bool, String> {
    let by_namespace = in_namespace(store, request, &matched["namespaceSelector"]);
    let by_object = of_object(request, &matched["objectSelector"]);
    // A selector that does not match decides, even if the other one is malformed.
    if by_namespace == Ok(false) || by_object == Ok(false) {
        return Ok(false);
    }
    if list(matched, "/excludeResourceRules").iter().any(|rule| is_of_rule(request, rule)) {
        return Ok(false);
    }
    let rules = list(matched, "/resourceRules");
    if !rules.is_empty() && !rules.iter().any(|rule| is_of_rule(request, rule)) {
        return Ok(false);
    }
    by_namespace?;
    by_object
}

/// Returns whether `rule` names the request: its scope, operation, group, version, resource and
/// name. Upstream: `rules.Matcher`.
fn is_of_rule(request: &Request<'_>, rule: &Value) -> bool {
    let call = request.call;
    let resource_type = &call.kind.resource;
    let names = |key: &str, wanted: &str| {
        let mut names = list(rule, key).iter().filter_map(Value::as_str);
        names.any(|name| name == "*" || name == wanted)
    };
    // A namespace is an object of the cluster, not of a namespace.
    let is_namespace = resource_type.group.is_empty() && &*resource_type.plural == "namespaces";
    let scope = match text(rule, "/scope") {
        "Cluster" => is_namespace || call.namespace.is_empty(),
        "Namespaced" => !is_namespace && !call.namespace.is_empty(),
        _ => true,
    };
    let resource = |name: &Value| {
        let name = name.as_str().unwrap_or_default();
        let (resource, sub) = name.split_once('/').unwrap_or((name, ""));
        (resource == "*" || resource == &*resource_type.plural)
            && (sub == "*" || sub == call.subresource)
    };
    let named = list(rule, "/resourceNames");
    scope
        && names("/operations", request.operation)
        && names("/apiGroups", &resource_type.group)
        && names("/apiVersions", &resource_type.version)
        && list(rule, "/resources").iter().any(resource)
        && (named.is_empty() || named.iter().any(|name| name == request.name()))
}

/// Parses a selector; `None` when it selects everything.
pub fn selector(given: &Value) -> Result<Option<Selector>, String> {
    if given.as_object().is_none_or(serde_json::Map::is_empty) {
        return Ok(None);
    }
    let given: LabelSelector =
        serde_json::from_value(given.clone()).map_err(|error| error.to_string())?;
    Selector::try_from(&given).map(Some).map_err(|error| error.to_string())
}

pub fn labels(object: &Value) -> Labels {
    serde_json::from_value(object["metadata"]["labels"].clone()).unwrap_or_default()
}

/// Returns whether the namespace of the request is selected; a request for a cluster-scoped object
/// always is. Upstream: `namespace.Matcher`.
fn in_namespace(store: &Store, request: &Request<'_>, given: &Value) -> Result<bool, String> {
    let Some(selector) = selector(given)? else { return Ok(true) };
    let call = request.call;
    let is_namespace = call.kind.resource.group.is_empty() && call.table() == "namespaces";
    if is_namespace {
        let object = request.object.or(request.old);
        return Ok(object.is_some_and(|object| selector.matches(&labels(object))));
    }
    if call.namespace.is_empty() {
        return Ok(true);
    }
    let namespace = store.get("namespaces", &call.namespace);
    Ok(namespace.is_some_and(|found| selector.matches(&labels(&found.value))))
}

/// Returns whether the labels of the object, or of the old one, are selected. Upstream:
/// `object.Matcher`.
fn of_object(request: &Request<'_>, given: &Value) -> Result<bool, String> {
    let Some(selector) = selector(given)? else { return Ok(true) };
    let mut objects = [request.object, request.old].into_iter().flatten();
    Ok(objects.any(|object| selector.matches(&labels(object))))
}
