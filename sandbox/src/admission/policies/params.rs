//! Finds the parameters that a binding gives its policy. Upstream: `generic.CollectParams`.

use serde_json::Value;

use super::matching::{labels, selector};
use crate::object::text;
use crate::request::call::Call;
use crate::storage::registry::Registry;
use crate::storage::store::Store;

/// Returns the objects that a binding names as parameters; the policy is evaluated once for each.
/// Returns a single null if the policy or the binding names none. `namespace` is the request's.
/// Errors: a `paramRef` that does not fit the kind, or finds nothing under `Deny`.
pub fn collect(
    store: &Store,
    registry: &Registry,
    policy: &Value,
    binding: &Value,
    namespace: &str,
) -> Result<Vec<Value>, String> {
    let (param_kind, param_ref) = (&policy["spec"]["paramKind"], &binding["spec"]["paramRef"]);
    if !param_kind.is_object() || !param_ref.is_object() {
        return Ok(vec![Value::Null]);
    }
    let (api_version, kind) = (text(param_kind, "/apiVersion"), text(param_kind, "/kind"));
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let known = registry.all().into_iter().find(|known| {
        let resource = &known.resource;
        (&*resource.group, &*resource.version, &*resource.kind) == (group, version, kind)
    });
    let Some(known) = known else {
        return Err(format!("paramKind kind `{api_version}, Kind={kind}` not known"));
    };
    let given = text(param_ref, "/namespace");
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
    let name = text(param_ref, "/name");
    let params_call = Call::of(known, namespace, name);
    let found: Vec<Value> = if name.is_empty() {
        let selector = selector(&param_ref["selector"])?;
        let page = store.list(
            &params_call.table(),
            &params_call.prefix(),
            None,
            usize::MAX,
            None,
            &|stored| {
                selector.as_ref().is_none_or(|selector| selector.matches(&labels(&stored.value)))
            },
        );
        let items = page.map(|page| page.items).unwrap_or_default();
        items.into_iter().map(|stored| stored.value.clone()).collect()
    } else {
        store
            .get(&params_call.table(), &params_call.key(name))
            .map(|stored| stored.value.clone())
            .into_iter()
            .collect()
    };
    if found.is_empty() && text(param_ref, "/parameterNotFoundAction") == "Deny" {
        return Err(
            "no params found for policy binding with `Deny` parameterNotFoundAction".to_owned()
        );
    }
    Ok(found)
}
