//! Finds the parameters that a binding gives its policy. Upstream: `generic.CollectParams`.

use serde_json::Value;

use super::matching::{labels, selector};
use crate::object::text;
use crate::request::call::Call;
use crate::storage::registry::Registry;
use crate::storage::store::Store;

/// Finds the parameters of a binding, with each of which the policy is evaluated once; a single
/// null when the policy has none. `namespace` is the request's. Errors: a `paramRef` that does not
/// fit the kind, or finds nothing under `Deny`.
pub fn collect(
    store: &Store,
    registry: &Registry,
    policy: &Value,
    binding: &Value,
    namespace: &str,
) -> Result<Vec<Value>, String> {
    let (of, by) = (&policy["spec"]["paramKind"], &binding["spec"]["paramRef"]);
    if !of.is_object() || !by.is_object() {
        return Ok(vec![Value::Null]);
    }
    let (api_version, kind) = (text(of, "/apiVersion"), text(of, "/kind"));
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let known = registry.all().into_iter().find(|known| {
        let resource = &known.resource;
        (&*resource.group, &*resource.version, &*resource.kind) == (group, version, kind)
    });
    let Some(known) = known else {
        return Err(format!("paramKind kind `{api_version}, Kind={kind}` not known"));
    };
    let given = text(by, "/namespace");
    let namespace = match (known.resource.namespaced, given.is_empty()) {
        (true, false) => given,
        (true, true) if namespace.is_empty() => {
            return Err("cannot use namespaced paramRef in policy binding that matches \
                        cluster-scoped resources"
                .to_owned());
        }
        (true, true) => namespace,
        (false, false) => {
            return Err("paramRef.namespace must not be provided for a cluster-scoped `paramKind`"
                .to_owned());
        }
        // Parameters that are objects of the cluster have no namespace.
        (false, true) => "",
    };
    let name = text(by, "/name");
    let at = Call::of(known, namespace, name);
    let found: Vec<Value> = if name.is_empty() {
        let selector = selector(&by["selector"])?;
        let page = store.list(&at.table(), &at.prefix(), None, usize::MAX, None, &|stored| {
            selector.as_ref().is_none_or(|selector| selector.matches(&labels(&stored.value)))
        });
        let items = page.map(|page| page.items).unwrap_or_default();
        items.into_iter().map(|stored| stored.value.clone()).collect()
    } else {
        store
            .get(&at.table(), &at.key(name))
            .map(|stored| stored.value.clone())
            .into_iter()
            .collect()
    };
    if found.is_empty() && text(by, "/parameterNotFoundAction") == "Deny" {
        return Err(
            "no params found for policy binding with `Deny` parameterNotFoundAction".to_owned()
        );
    }
    Ok(found)
}
