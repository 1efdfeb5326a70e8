//! Checks the expressions of a policy against the types that it matches.
//! Upstream: `admission/plugin/policy/validating`: `TypeChecker`.

use async_lock::Semaphore;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cel_compiler::{Environment, Fields, LazyFields, Type, on_deep_stack};
use serde::Deserialize;

use super::declared;
use super::schema::{Definitions, GroupVersionKind};
use crate::client::{self, Call, Client, Discovery};
use crate::clock::SharedClock;
use crate::controllers::Error;
use crate::objects::{ExpressionWarning, NamedRuleWithOperations, ValidatingAdmissionPolicy};
use crate::task;

/// Upstream: `maxTypesToCheck`.
const MAX_TYPES: usize = 10;
/// The number of kinds whose schemas are cached: documents are large, and policies often match the
/// same few kinds.
const MAX_CACHED: usize = 8;
/// The most bytes of warnings; more are dropped, since the object has a limited size.
const MAX_WARNING_BYTES: usize = 256 << 10;
/// The most parts of a variable's type; a larger type becomes dynamic.
const MAX_TYPE_PARTS: usize = 1000;
/// The groups whose schemas are compiled into upstream, so that it never reads them from a server.
const BUILT_IN_GROUPS: [&str; 22] = [
    "",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apps",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "internal.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
    "storagemigration.k8s.io",
];

/// Checks policies, with the schemas of the API server, of which it caches the last ones.
pub struct TypeChecker {
    client: Client,
    clock: SharedClock,
    /// Held during a check: checks take time and memory, so one runs at a time.
    check_permit: Semaphore,
    /// The definitions from documents, by the documents' addresses, which change with the content.
    cached: Mutex<Vec<CachedDefinitions>>,
}

struct CachedDefinitions {
    kind: GroupVersionKind,
    address: String,
    definitions: Arc<Definitions>,
}

#[derive(Default, Deserialize)]
struct Index {
    paths: BTreeMap<String, IndexEntry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct IndexEntry {
    #[serde(rename = "serverRelativeURL")]
    address: String,
}

impl TypeChecker {
    pub fn new(client: Client, clock: SharedClock) -> TypeChecker {
        TypeChecker { client, clock, check_permit: Semaphore::new(1), cached: Mutex::default() }
    }

    /// Checks the expressions of the policy's validations and their messages, and returns the
    /// warnings. Kinds whose schema the server does not have are skipped.
    ///
    /// # Errors
    /// When a request failed, or the server could not return the schema of a built-in kind.
    pub async fn check(
        &self,
        policy: &Arc<ValidatingAdmissionPolicy>,
    ) -> Result<Vec<ExpressionWarning>, Error> {
        let kinds = self.kinds_to_check(policy).await?;
        if kinds.is_empty() {
            return Ok(Vec::new());
        }
        let index: Index = match self.client.fetch(&Call::new("GET", "/openapi/v3")).await {
            // Without the index no kind has a schema, so that all are skipped.
            Err(error) if matches!(error.code(), Some(403 | 404)) => {
                log::warn!("schemas of kinds: {error}");
                Index::default()
            }
            other => other?,
        };
        let mut types = Vec::new();
        for kind in kinds {
            if let Some(definitions) = self.definitions(&index, &kind).await? {
                let object = self.object_type(&kind, &definitions);
                types.push((kind, object));
            }
        }
        let params = match param_kind(policy) {
            Some(kind) => Some(match self.definitions(&index, &kind).await? {
                Some(definitions) => self.object_type(&kind, &definitions),
                None => Type::Dyn,
            }),
            None => None,
        };
        let _permit = self.check_permit.acquire().await;
        check_off_executor(policy.clone(), types, params).await
    }

    /// Drops the cached definitions.
    pub fn clear_cache(&self) {
        self.cached.lock().clear();
    }

    /// Returns the schema definitions of a kind: from the cache while the document's address is the
    /// same, else from the server's document; `None` if they are not in it, or the server has no
    /// such document or one that cannot be used.
    async fn definitions(
        &self,
        index: &Index,
        kind: &GroupVersionKind,
    ) -> client::Result<Option<Arc<Definitions>>> {
        let document = kind.document_path();
        let Some(IndexEntry { address }) = index.paths.get(&document) else { return Ok(None) };
        let is_same =
            |cached: &&CachedDefinitions| cached.kind == *kind && cached.address == *address;
        if let Some(cached) = self.cached.lock().iter().find(is_same) {
            return Ok(Some(cached.definitions.clone()));
        }
        let body = match self.client.get_path(&format!("/openapi/v3/{document}")).await {
            Err(error) if error.may_pass() && is_built_in(kind) => return Err(error),
            // The kind is skipped, as upstream, and the others are checked.
            Err(error) if error.code().is_some() => {
                log::warn!("schema of {kind}: {error}");
                return Ok(None);
            }
            other => other?,
        };
        let kind_to_read = kind.clone();
        let definitions =
            match task::blocking(move || Definitions::read(&body, &kind_to_read)).await {
                Ok(Some(definitions)) => Arc::new(definitions),
                Ok(None) => return Ok(None),
                Err(error) => {
                    log::warn!("schema of {kind}: {error}");
                    return Ok(None);
                }
            };
        let mut cached = self.cached.lock();
        cached.retain(|cached| cached.kind != *kind);
        if cached.len() >= MAX_CACHED {
            cached.remove(0);
        }
        let (kind, address) = (kind.clone(), address.clone());
        cached.push(CachedDefinitions { kind, address, definitions: definitions.clone() });
        Ok(Some(definitions))
    }

    /// Makes the type of a kind's objects, dynamic if the schema has no type. Its name ends with
    /// nanoseconds, as upstream's.
    fn object_type(&self, kind: &GroupVersionKind, definitions: &Arc<Definitions>) -> Type {
        let nanos = self.clock.now().as_micros().rem_euclid(1_000_000) * 1000;
        definitions.root_type(&format!("{}{nanos}", kind.kind)).unwrap_or(Type::Dyn)
    }

    /// Returns the kinds that the policy's rules name exactly.
    async fn kinds_to_check(
        &self,
        policy: &ValidatingAdmissionPolicy,
    ) -> client::Result<BTreeSet<GroupVersionKind>> {
        let rules = &policy.spec.match_constraints.resource_rules;
        if rules.iter().all(|rule| exact_resources(rule).is_empty()) {
            return Ok(BTreeSet::new());
        }
        let discovery = self.client.discovery().await?;
        let (kinds, has_unknown) = kinds_of_rules(rules, &discovery);
        if !has_unknown {
            return Ok(kinds);
        }
        // A kind that is not in the cached documents may be new.
        self.client.reset_discovery();
        let discovery = self.client.discovery().await?;
        let (kinds, _) = kinds_of_rules(rules, &discovery);
        Ok(kinds)
    }
}

/// Returns the kind of the policy's parameters; `None` without one, or if its version is malformed.
fn param_kind(policy: &ValidatingAdmissionPolicy) -> Option<GroupVersionKind> {
    let param_kind = policy.spec.param_kind.as_ref()?;
    let (group, version) = match param_kind.api_version.split('/').collect::<Vec<_>>()[..] {
        [version] => ("", version),
        [group, version] => (group, version),
        _ => return None,
    };
    let (group, version) = (group.to_owned(), version.to_owned());
    Some(GroupVersionKind { group, version, kind: param_kind.kind.clone() })
}

/// Returns whether the kind's group is one whose schemas upstream has compiled in.
fn is_built_in(kind: &GroupVersionKind) -> bool {
    BUILT_IN_GROUPS.contains(&kind.group.as_str())
}

/// Checks the policy in another thread: a large one takes seconds, and the executor's thread must
/// not wait for that.
async fn check_off_executor(
    policy: Arc<ValidatingAdmissionPolicy>,
    kinds: Vec<(GroupVersionKind, Type)>,
    params: Option<Type>,
) -> Result<Vec<ExpressionWarning>, Error> {
    let name = policy.meta.name.clone();
    let check = move || on_deep_stack(|| check_policy(&policy, kinds, params));
    let checked = task::blocking(check).await;
    checked.map_err(|error| Error::other(format!("type check of {name}: {error}")))
}

/// Compiles the expressions of the policy, and returns the warnings about them, up to
/// [`MAX_WARNING_BYTES`].
fn check_policy(
    policy: &ValidatingAdmissionPolicy,
    kinds: Vec<(GroupVersionKind, Type)>,
    params: Option<Type>,
) -> Vec<ExpressionWarning> {
    let mut environments = Vec::new();
    for (kind, object) in kinds {
        environments.push((kind, policy_environment(policy, object, params.clone())));
    }
    let (mut warnings, mut bytes) = (Vec::new(), 0);
    let mut check = |field: String, expression: &str| {
        if bytes > MAX_WARNING_BYTES {
            return;
        }
        let warning = compile_errors(&environments, expression);
        bytes += warning.len();
        if !warning.is_empty() && bytes <= MAX_WARNING_BYTES {
            warnings.push(ExpressionWarning { field_ref: field, warning });
        }
    };
    for (n, validation) in policy.spec.validations.iter().enumerate() {
        check(format!("spec.validations[{n}].expression"), &validation.expression);
        if !validation.message_expression.is_empty() {
            let field = format!("spec.validations[{n}].messageExpression");
            check(field, &validation.message_expression);
        }
    }
    warnings
}

/// Compiles an expression in the environment of each kind. Returns the faults by kind; empty if it
/// has no fault.
fn compile_errors(environments: &[(GroupVersionKind, Environment)], expression: &str) -> String {
    let mut errors = Vec::new();
    for (kind, environment) in environments {
        if let Err(issues) = environment.compile(expression) {
            errors.push(format!("{kind}: {issues}\n"));
        }
    }
    errors.join("\n")
}

/// Makes the environment for a policy's expressions: all variables, its own included, each of which
/// may use those before it. A variable whose expression has a fault may have any type.
fn policy_environment(
    policy: &ValidatingAdmissionPolicy,
    object: Type,
    params: Option<Type>,
) -> Environment {
    const VARIABLES: &str = "kubernetes.variables";
    let mut environment = declared::environment();
    environment.variables.insert("oldObject", object.clone());
    environment.variables.insert("object", object);
    if let Some(params) = params {
        environment.variables.insert("params", params);
    }
    let fields = Variables::default();
    let variables = Type::structure(VARIABLES, Fields::Lazy(Box::new(fields.clone())));
    environment.types.insert(VARIABLES.to_owned(), variables.clone());
    environment.variables.insert("variables", variables);
    for variable in &policy.spec.variables {
        let variable_type = match environment.compile(&variable.expression) {
            Ok(result) if !result.has_more_parts_than(MAX_TYPE_PARTS) => to_variable_type(&result),
            _ => Type::Dyn,
        };
        fields.0.lock().insert(variable.name.clone(), variable_type);
    }
    environment
}

/// The types of the variables of a policy that have been compiled. Clones share them.
#[derive(Clone, Default)]
struct Variables(Arc<Mutex<BTreeMap<String, Type>>>);

impl LazyFields for Variables {
    fn field(&self, _: &str, name: &str) -> Option<Type> {
        self.0.lock().get(name).cloned()
    }
}

/// Returns the type of a variable whose expression has the type `result`: basic types, lists and maps
/// keep theirs, all others become dynamic. Upstream: `convertCelTypeToDeclType`.
fn to_variable_type(result: &Type) -> Type {
    match result {
        Type::List(_) | Type::Map(_) => result.map_params(&mut |inner| to_variable_type(inner)),
        Type::Struct(_) | Type::Opaque(..) | Type::Kind(_) | Type::Error | Type::Param(_) => {
            Type::Dyn
        }
        other => other.clone(),
    }
}

/// Returns the group, version and resource of each resource that a rule names exactly, sorted.
/// Empty when a group or version has a wildcard; resources with one, and subresources, are left
/// out.
fn exact_resources(rule: &NamedRuleWithOperations) -> Vec<(&str, &str, &str)> {
    let has_wildcard = |names: &[String]| names.iter().any(|name| name.contains('*'));
    if has_wildcard(&rule.api_groups) || has_wildcard(&rule.api_versions) {
        return Vec::new();
    }
    let mut exact = Vec::new();
    for group in &rule.api_groups {
        for version in &rule.api_versions {
            for resource in rule.resources.iter().filter(|name| !name.contains(['*', '/'])) {
                exact.push((group.as_str(), version.as_str(), resource.as_str()));
            }
        }
    }
    exact.sort();
    exact
}

/// Returns the kinds that rules name exactly, and whether discovery lacks one of their resources.
/// Stops at a rule that names [`MAX_TYPES`] kinds, as upstream.
fn kinds_of_rules(
    rules: &[NamedRuleWithOperations],
    discovery: &Discovery,
) -> (BTreeSet<GroupVersionKind>, bool) {
    let mut found = BTreeSet::new();
    let mut has_unknown = false;
    for rule in rules {
        let mut count = 0;
        for (group, version, resource) in exact_resources(rule) {
            let kinds = kinds_for(discovery, group, version, resource);
            has_unknown |= kinds.is_empty();
            for kind in kinds {
                found.insert(kind);
                count += 1;
                if count == MAX_TYPES {
                    return (found, has_unknown);
                }
            }
        }
    }
    (found, has_unknown)
}

/// Returns the kinds of a resource, by its plural or its kind. An empty group means any, and so
/// does an empty version.
/// Upstream: `DefaultRESTMapper.KindsFor`.
fn kinds_for(
    discovery: &Discovery,
    group: &str,
    version: &str,
    name: &str,
) -> Vec<GroupVersionKind> {
    let name = name.to_lowercase();
    let mut kinds = Vec::new();
    for served in &discovery.resources {
        let resource = &served.resource;
        let matches = (group.is_empty() || resource.group == group)
            && (version.is_empty() || resource.version == version)
            && (resource.plural == name || resource.kind.to_lowercase() == name);
        if matches {
            let kind = GroupVersionKind {
                group: resource.group.to_string(),
                version: resource.version.to_string(),
                kind: resource.kind.to_string(),
            };
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
    }
    kinds
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Receiver;
    use std::time::Duration;

    use futures_lite::future::{block_on, poll_once};
    use serde_json::{Value, json};

    use super::*;
    use crate::client::ApiResource;
    use crate::objects::ResourceType;

    fn rule(groups: &[&str], versions: &[&str], resources: &[&str]) -> NamedRuleWithOperations {
        let owned = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
        NamedRuleWithOperations {
            api_groups: owned(groups),
            api_versions: owned(versions),
            resources: owned(resources),
        }
    }

    fn discovery() -> Discovery {
        let resource = |group, version, kind, plural| ApiResource {
            resource: ResourceType::fixed(group, version, kind, plural, true),
            verbs: Vec::new(),
            preferred: true,
        };
        let mut resources = vec![
            resource("", "v1", "Event", "events"),
            resource("events.k8s.io", "v1", "Event", "events"),
            resource("apps", "v1", "Deployment", "deployments"),
            resource("apps", "v1beta1", "Deployment", "deployments"),
        ];
        const MANY: [(&str, &str); 12] = [
            ("A", "as"),
            ("B", "bs"),
            ("C", "cs"),
            ("D", "ds"),
            ("E", "es"),
            ("F", "fs"),
            ("G", "gs"),
            ("H", "hs"),
            ("I", "is"),
            ("J", "js"),
            ("K", "ks"),
            ("L", "ls"),
        ];
        resources.extend(MANY.map(|(kind, plural)| resource("many", "v1", kind, plural)));
        Discovery { resources, ..Discovery::default() }
    }

    fn policy(spec: Value) -> Arc<ValidatingAdmissionPolicy> {
        let policy = json!({ "metadata": { "name": "p" }, "spec": spec });
        Arc::new(serde_json::from_value(policy).unwrap())
    }

    fn kind() -> GroupVersionKind {
        GroupVersionKind { group: "g".into(), version: "v1".into(), kind: "K".into() }
    }

    /// The warnings about a policy, checked for objects without fields.
    fn checked(spec: Value) -> Vec<ExpressionWarning> {
        let object = Type::structure("K", Fields::Known(BTreeMap::new()));
        block_on(check_off_executor(policy(spec), vec![(kind(), object)], None)).unwrap()
    }

    /// Fields that are found once the test has sent a message.
    struct Gate(Mutex<Receiver<()>>);

    impl LazyFields for Gate {
        fn field(&self, _: &str, _: &str) -> Option<Type> {
            let _ = self.0.lock().recv_timeout(Duration::from_secs(10));
            Some(Type::Int)
        }
    }

    #[test]
    fn a_check_does_not_block_the_executor() {
        let (open_gate, gate) = std::sync::mpsc::channel();
        let object = Type::structure("K", Fields::Lazy(Box::new(Gate(Mutex::new(gate)))));
        let policy = policy(json!({ "validations": [{ "expression": "object.a == 'x'" }] }));
        let mut checking = Box::pin(check_off_executor(policy, vec![(kind(), object)], None));
        assert!(block_on(poll_once(&mut checking)).is_none(), "other tasks get their turn");
        open_gate.send(()).unwrap();
        assert_eq!(block_on(checking).unwrap().len(), 1);
    }

    #[test]
    fn variables_use_those_before_them_and_checks_of_large_policies_end() {
        let variable =
            |name: String, expression: String| json!({ "name": name, "expression": expression });
        let found = checked(json!({
            "variables": [
                variable("a".into(), "1".into()),
                variable("b".into(), "variables.a + 1".into()),
                variable("c".into(), "variables.d".into()),
                variable("d".into(), "'text'".into()),
            ],
            "validations": [
                { "expression": "variables.b == 'x'" }, { "expression": "variables.c == 'x'" },
                { "expression": "variables.d == 1" }, { "expression": "variables.e == 1" },
            ],
        }));
        let fields: Vec<&str> = found.iter().map(|warning| &*warning.field_ref).collect();
        assert_eq!(
            fields,
            [0, 2, 3].map(|n| format!("spec.validations[{n}].expression")),
            "c comes before d"
        );

        // Types that double, and types that nest: without bounds the first never ends, and the
        // second has no stack that is deep enough.
        for (first, next) in [("1", "{X: X}"), ("1", "[X]")] {
            let mut variables = vec![variable("v0".into(), first.into())];
            for n in 1..2_000 {
                let next = next.replace('X', &format!("variables.v{}", n - 1));
                variables.push(variable(format!("v{n}"), next));
            }
            let validations = json!([{ "expression": "variables.v1999 == 'x'" }]);
            checked(json!({ "variables": variables, "validations": validations }));
        }
    }

    #[test]
    fn warnings_fit_into_a_status() {
        let expression = format!("object.nothing == '{}'", "x".repeat(10_000));
        let validations = vec![json!({ "expression": expression }); 1_000];
        let found = checked(json!({ "validations": validations }));
        let bytes: usize = found.iter().map(|warning| warning.warning.len()).sum();
        assert!(bytes <= MAX_WARNING_BYTES && bytes > MAX_WARNING_BYTES / 2, "{bytes}");
        assert_eq!(found[0].field_ref, "spec.validations[0].expression");
    }

    #[test]
    fn kinds_are_found_by_the_rules() {
        let many = ["ls", "ks", "js", "is", "hs", "gs", "fs", "es", "ds", "cs", "bs", "as"];
        for (rules, expected, has_unknown) in [
            (vec![rule(&["apps"], &["v1"], &["deployments"])], "apps/v1 Deployment", false),
            // No group is any group.
            (vec![rule(&[""], &["v1"], &["events"])], "/v1 Event,events.k8s.io/v1 Event", false),
            (
                vec![rule(&["apps"], &["v1beta1", "v1"], &["deployments"])],
                "apps/v1 Deployment,apps/v1beta1 Deployment",
                false,
            ),
            (vec![rule(&["apps", "*"], &["v1"], &["deployments"])], "", false),
            (vec![rule(&["apps"], &["*"], &["deployments"])], "", false),
            (vec![rule(&["apps"], &["v1"], &["*", "deployments/scale"])], "", false),
            (
                vec![rule(&["apps"], &["v1"], &["Deployment", "nosuch", "*"])],
                "apps/v1 Deployment",
                true,
            ),
            // At most ten of a rule count, and nothing after that rule.
            (
                vec![rule(&["many"], &["v1"], &many), rule(&["apps"], &["v1"], &["deployments"])],
                "many/v1 A,many/v1 B,many/v1 C,many/v1 D,many/v1 E,many/v1 F,many/v1 G,many/v1 H,\
                 many/v1 I,many/v1 J",
                false,
            ),
        ] {
            let (found, unknown) = kinds_of_rules(&rules, &discovery());
            let found: Vec<String> = found
                .iter()
                .map(|kind| format!("{}/{} {}", kind.group, kind.version, kind.kind))
                .collect();
            assert_eq!((found.join(","), unknown), (expected.to_owned(), has_unknown), "{rules:?}");
        }
    }
}
