//! The types that are declared by hand: the request, its namespace, the authorizer.
//! Upstream: `admission/plugin/cel`: `BuildRequestType`, `BuildNamespaceType`.

use std::collections::BTreeMap;

use cel_compiler::{Environment, Fields, Type};

/// An environment with all variables except those that depend on the policy.
pub fn environment() -> Environment {
    let mut environment = Environment::default();
    let request = request(&mut environment.types);
    let namespace = namespace(&mut environment.types);
    let authorizer = Type::structure("kubernetes.authorization.Authorizer", Fields::Unknown);
    environment.variables.insert("request", request);
    environment.variables.insert("namespaceObject", namespace);
    environment.variables.insert("authorizer", authorizer);
    environment
}

/// A type that expressions may name.
fn declare<const N: usize>(
    types: &mut BTreeMap<String, Type>,
    name: &str,
    fields: [(&str, Type); N],
) -> Type {
    let fields = fields.into_iter().map(|(name, of)| (name.to_owned(), of)).collect();
    let declared = Type::structure(name, Fields::Known(fields));
    types.insert(name.to_owned(), declared.clone());
    declared
}

fn request(types: &mut BTreeMap<String, Type>) -> Type {
    let text = || Type::String;
    let kind = declare(
        types,
        "kubernetes.GroupVersionKind",
        [("group", text()), ("version", text()), ("kind", text())],
    );
    let resource = declare(
        types,
        "kubernetes.GroupVersionResource",
        [("group", text()), ("version", text()), ("resource", text())],
    );
    let user = declare(
        types,
        "kubernetes.UserInfo",
        [
            ("username", text()),
            ("uid", text()),
            ("groups", Type::list(text())),
            ("extra", Type::map(text(), Type::list(text()))),
        ],
    );
    declare(
        types,
        "kubernetes.AdmissionRequest",
        [
            ("kind", kind.clone()),
            ("resource", resource.clone()),
            ("subResource", text()),
            ("requestKind", kind),
            ("requestResource", resource),
            ("requestSubResource", text()),
            ("name", text()),
            ("namespace", text()),
            ("operation", text()),
            ("userInfo", user),
            ("dryRun", Type::Bool),
            ("options", Type::Dyn),
        ],
    )
}

fn namespace(types: &mut BTreeMap<String, Type>) -> Type {
    let text = || Type::String;
    let spec =
        declare(types, "kubernetes.NamespaceSpec", [("finalizers", Type::list(Type::String))]);
    let condition = declare(
        types,
        "kubernetes.NamespaceCondition",
        [
            ("status", text()),
            ("type", text()),
            ("lastTransitionTime", Type::Timestamp),
            ("message", text()),
            ("reason", text()),
        ],
    );
    let status = declare(
        types,
        "kubernetes.NamespaceStatus",
        [("conditions", Type::list(condition)), ("phase", text())],
    );
    let metadata = declare(
        types,
        "kubernetes.NamespaceMetadata",
        [
            ("name", text()),
            ("generateName", text()),
            ("namespace", text()),
            ("labels", Type::map(text(), text())),
            ("annotations", Type::map(text(), text())),
            ("UID", text()),
            ("creationTimestamp", Type::Timestamp),
            ("deletionGracePeriodSeconds", Type::Int),
            ("deletionTimestamp", Type::Timestamp),
            ("generation", Type::Int),
            ("resourceVersion", text()),
            ("finalizers", Type::list(text())),
        ],
    );
    declare(
        types,
        "kubernetes.Namespace",
        [("metadata", metadata), ("spec", spec), ("status", status)],
    )
}
