//! The types that are declared by hand: the request, its namespace, the authorizer.
//! Upstream: `admission/plugin/cel`: `BuildRequestType`, `BuildNamespaceType`.

use std::collections::BTreeMap;

use cel_compiler::{Environment, Fields, Type};

/// Makes an environment with all variables except those that depend on the policy.
pub fn environment() -> Environment {
    let mut environment = Environment::default();
    let request = request_type(&mut environment.types);
    let namespace = namespace_type(&mut environment.types);
    let authorizer = Type::structure("kubernetes.authorization.Authorizer", Fields::Unknown);
    environment.variables.insert("request", request);
    environment.variables.insert("namespaceObject", namespace);
    environment.variables.insert("authorizer", authorizer);
    environment
}

/// Declares an object type: adds it to `types`, so that expressions may name it, and returns it.
fn declare<const N: usize>(
    types: &mut BTreeMap<String, Type>,
    name: &str,
    fields: [(&str, Type); N],
) -> Type {
    let fields = fields.into_iter().map(|(name, type_)| (name.to_owned(), type_)).collect();
    let declared = Type::structure(name, Fields::Known(fields));
    types.insert(name.to_owned(), declared.clone());
    declared
}

/// Declares the type of the variable `request` with its parts, and returns it.
fn request_type(types: &mut BTreeMap<String, Type>) -> Type {
    let string = || Type::String;
    let kind = declare(
        types,
        "kubernetes.GroupVersionKind",
        [("group", string()), ("version", string()), ("kind", string())],
    );
    let resource = declare(
        types,
        "kubernetes.GroupVersionResource",
        [("group", string()), ("version", string()), ("resource", string())],
    );
    let user = declare(
        types,
        "kubernetes.UserInfo",
        [
            ("username", string()),
            ("uid", string()),
            ("groups", Type::list(string())),
            ("extra", Type::map(string(), Type::list(string()))),
        ],
    );
    declare(
        types,
        "kubernetes.AdmissionRequest",
        [
            ("kind", kind.clone()),
            ("resource", resource.clone()),
            ("subResource", string()),
            ("requestKind", kind),
            ("requestResource", resource),
            ("requestSubResource", string()),
            ("name", string()),
            ("namespace", string()),
            ("operation", string()),
            ("userInfo", user),
            ("dryRun", Type::Bool),
            ("options", Type::Dyn),
        ],
    )
}

/// Declares the type of the variable `namespaceObject` with its parts, and returns it.
fn namespace_type(types: &mut BTreeMap<String, Type>) -> Type {
    let string = || Type::String;
    let spec =
        declare(types, "kubernetes.NamespaceSpec", [("finalizers", Type::list(Type::String))]);
    let condition = declare(
        types,
        "kubernetes.NamespaceCondition",
        [
            ("status", string()),
            ("type", string()),
            ("lastTransitionTime", Type::Timestamp),
            ("message", string()),
            ("reason", string()),
        ],
    );
    let status = declare(
        types,
        "kubernetes.NamespaceStatus",
        [("conditions", Type::list(condition)), ("phase", string())],
    );
    let metadata = declare(
        types,
        "kubernetes.NamespaceMetadata",
        [
            ("name", string()),
            ("generateName", string()),
            ("namespace", string()),
            ("labels", Type::map(string(), string())),
            ("annotations", Type::map(string(), string())),
            ("UID", string()),
            ("creationTimestamp", Type::Timestamp),
            ("deletionGracePeriodSeconds", Type::Int),
            ("deletionTimestamp", Type::Timestamp),
            ("generation", Type::Int),
            ("resourceVersion", string()),
            ("finalizers", Type::list(string())),
        ],
    );
    declare(
        types,
        "kubernetes.Namespace",
        [("metadata", metadata), ("spec", spec), ("status", status)],
    )
}
