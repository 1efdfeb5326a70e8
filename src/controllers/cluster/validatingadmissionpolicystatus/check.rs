//! Checks the expressions of a policy against the types that it matches.
//! Upstream: `admission/plugin/policy/validating`: `TypeChecker`.

use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Deserialize;

use super::declared;
use super::schema::{Definitions, GroupVersionKind};
use crate::cel::{Environment, Fields, Type, on_deep_stack};
use crate::client::{self, Call, Client, Discovery};
use crate::clock::SharedClock;
use crate::controllers::Error;
use crate::objects::{ExpressionWarning, NamedRuleWithOperations, ValidatingAdmissionPolicy};
use crate::sort::Order;

/// Upstream: `maxTypesToCheck`.
const MAX_TYPES: usize = 10;
/// Documents are large, and policies often about the same few kinds.
const MAX_KEPT: usize = 8;

pub struct TypeChecker {
    client: Client,
    clock: SharedClock,
    /// What was read from documents, under their addresses, which change with them.
    kept: Mutex<Vec<Kept>>,
}

struct Kept {
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
        TypeChecker { client, clock, kept: Mutex::default() }
    }

    /// What is wrong with the policy's validations and their messages. Kinds whose schema the server
    /// does not give are skipped.
    ///
    /// # Errors
    /// When the server could not be asked.
    pub async fn check(
        &self,
        policy: &ValidatingAdmissionPolicy,
    ) -> Result<Vec<ExpressionWarning>, Error> {
        let kinds = self.kinds_to_check(policy).await?;
        let params = policy.spec.param_kind.as_ref().and_then(|kind| {
            let (group, version) = match kind.api_version.split('/').collect::<Vec<_>>()[..] {
                [version] => ("", version),
                [group, version] => (group, version),
                _ => return None,
            };
            let (group, version) = (group.to_owned(), version.to_owned());
            Some(GroupVersionKind { group, version, kind: kind.kind.clone() })
        });
        if kinds.is_empty() {
            return Ok(Vec::new());
        }
        let index: Index = match self.client.fetch(&Call::new("GET", "/openapi/v3")).await {
            Err(error) if matches!(error.code(), Some(403 | 404)) => {
                log::warn!("schemas of kinds: {error}");
                Index::default()
            }
            other => other?,
        };
        let mut documents = Vec::new();
        for kind in kinds {
            if let Some(definitions) = self.definitions(&index, &kind).await? {
                documents.push((kind, definitions));
            }
        }
        let params = match params {
            Some(kind) => Some((self.definitions(&index, &kind).await?, kind)),
            None => None,
        };
        on_deep_stack(|| self.warnings(policy, documents, params))
            .map_err(|error| Error::other(format!("type check of {}: {error}", policy.meta.name)))
    }

    /// Drops the cached definitions.
    pub fn forget(&self) {
        self.kept().clear();
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.kept.lock()
    }

    /// The definitions of a kind in the server's documents. `None`: there are none.
    async fn definitions(
        &self,
        index: &Index,
        kind: &GroupVersionKind,
    ) -> client::Result<Option<Arc<Definitions>>> {
        let document = kind.document();
        let Some(IndexEntry { address }) = index.paths.get(&document) else { return Ok(None) };
        let known = |kept: &&Kept| kept.kind == *kind && kept.address == *address;
        if let Some(kept) = self.kept().iter().find(known) {
            return Ok(Some(kept.definitions.clone()));
        }
        let body = match self.client.get_path(&format!("/openapi/v3/{document}")).await {
            // The kind is skipped, as upstream, and the others are checked.
            Err(error) if error.code().is_some() => {
                log::warn!("schema of {kind}: {error}");
                return Ok(None);
            }
            other => other?,
        };
        let definitions = match Definitions::read(&body, kind) {
            Ok(Some(definitions)) => Arc::new(definitions),
            Ok(None) => return Ok(None),
            Err(error) => {
                log::warn!("schema of {kind}: {error}");
                return Ok(None);
            }
        };
        let mut kept = self.kept();
        kept.retain(|kept| kept.kind != *kind);
        if kept.len() >= MAX_KEPT {
            kept.remove(0);
        }
        let (kind, address) = (kind.clone(), address.clone());
        kept.push(Kept { kind, address, definitions: definitions.clone() });
        Ok(Some(definitions))
    }

    fn type_of(&self, kind: &GroupVersionKind, definitions: &Arc<Definitions>) -> Type {
        let nanos = self.clock.now().as_micros().rem_euclid(1_000_000) * 1000;
        definitions.root_type(&format!("{}{nanos}", kind.kind)).unwrap_or(Type::Dyn)
    }

    fn warnings(
        &self,
        policy: &ValidatingAdmissionPolicy,
        kinds: Vec<(GroupVersionKind, Arc<Definitions>)>,
        params: Option<(Option<Arc<Definitions>>, GroupVersionKind)>,
    ) -> Vec<ExpressionWarning> {
        let params = params.map(|(definitions, kind)| match definitions {
            Some(definitions) => self.type_of(&kind, &definitions),
            None => Type::Dyn,
        });
        let environments: Vec<(GroupVersionKind, Environment)> = kinds
            .into_iter()
            .map(|(kind, definitions)| {
                let object = self.type_of(&kind, &definitions);
                let environment = environment(policy, object, params.clone());
                (kind, environment)
            })
            .collect();
        let mut warnings = Vec::new();
        let mut check = |field: String, expression: &str| {
            let warning = warning(&environments, expression);
            if !warning.is_empty() {
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

    async fn kinds_to_check(
        &self,
        policy: &ValidatingAdmissionPolicy,
    ) -> client::Result<BTreeSet<GroupVersionKind>> {
        let rules = &policy.spec.match_constraints.resource_rules;
        if rules.iter().all(|rule| triples(rule).is_empty()) {
            return Ok(BTreeSet::new());
        }
        let known = self.client.discovery().await?;
        let (found, missed) = kinds_to_check(rules, &known);
        if !missed {
            return Ok(found);
        }
        // What is not served may be so since a short while.
        self.client.reset_discovery();
        let known = self.client.discovery().await?;
        Ok(kinds_to_check(rules, &known).0)
    }
}

/// What is wrong with an expression, kind by kind.
fn warning(environments: &[(GroupVersionKind, Environment)], expression: &str) -> String {
    let wrong = environments.iter().filter_map(|(kind, environment)| {
        let issues = environment.compile(expression).err()?;
        Some(format!("{kind}: {issues}\n"))
    });
    wrong.collect::<Vec<_>>().join("\n")
}

/// All variables of a policy, its own included: each may use those before it. One whose expression
/// is wrong is of any type.
fn environment(
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
    let mut fields = BTreeMap::new();
    for variable in policy.spec.variables.iter().map(Some).chain([None]) {
        let variables = Type::structure(VARIABLES, Fields::Known(fields.clone()));
        environment.types.insert(VARIABLES.to_owned(), variables.clone());
        environment.variables.insert("variables", variables);
        if let Some(variable) = variable {
            let found = environment.compile(&variable.expression).map(|of| plain(&of));
            fields.insert(variable.name.clone(), found.unwrap_or(Type::Dyn));
        }
    }
    environment
}

/// The type of a variable: objects lose theirs. Upstream: `convertCelTypeToDeclType`.
fn plain(of: &Type) -> Type {
    match of {
        Type::List(_) | Type::Map(_) => of.map_params(&mut |inner| plain(inner)),
        Type::Struct(_) | Type::Opaque(..) | Type::Kind(_) | Type::Error | Type::Param(_) => {
            Type::Dyn
        }
        other => other.clone(),
    }
}

/// Group, version and resource of what a rule names without wildcards, sorted.
fn triples(rule: &NamedRuleWithOperations) -> Vec<(&str, &str, &str)> {
    let wild = |names: &[String]| names.iter().any(|name| name.contains('*'));
    if wild(&rule.api_groups) || wild(&rule.api_versions) {
        return Vec::new();
    }
    let mut triples = Vec::new();
    for group in &rule.api_groups {
        for version in &rule.api_versions {
            let plain = rule.resources.iter().filter(|name| !name.contains(['*', '/']));
            triples.extend(plain.map(|name| (group.as_str(), version.as_str(), name.as_str())));
        }
    }
    triples.order();
    triples
}

/// The kinds that rules name, and whether some resource is not known.
fn kinds_to_check(
    rules: &[NamedRuleWithOperations],
    known: &Discovery,
) -> (BTreeSet<GroupVersionKind>, bool) {
    let mut found = BTreeSet::new();
    let mut missed = false;
    for rule in rules {
        let mut count = 0;
        for (group, version, resource) in triples(rule) {
            let kinds = kinds_for(known, group, version, resource);
            missed |= kinds.is_empty();
            for kind in kinds {
                found.insert(kind);
                count += 1;
                if count == MAX_TYPES {
                    return (found, missed);
                }
            }
        }
    }
    (found, missed)
}

/// No group means any, as no version does. Upstream: `DefaultRESTMapper.KindsFor`.
fn kinds_for(
    known: &Discovery,
    group: &str,
    version: &str,
    resource: &str,
) -> Vec<GroupVersionKind> {
    let name = resource.to_lowercase();
    let mut kinds = Vec::new();
    for found in &known.resources {
        let of = &found.resource;
        let matches = (group.is_empty() || of.group == group)
            && (version.is_empty() || of.version == version)
            && (of.plural == name || of.kind.to_lowercase() == name);
        if matches {
            let kind = GroupVersionKind {
                group: of.group.to_string(),
                version: of.version.to_string(),
                kind: of.kind.to_string(),
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

    #[test]
    fn rules_name_kinds() {
        let many = ["ls", "ks", "js", "is", "hs", "gs", "fs", "es", "ds", "cs", "bs", "as"];
        for (rules, expected, missed) in [
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
            // No more than ten of a rule, and nothing after that rule.
            (
                vec![rule(&["many"], &["v1"], &many), rule(&["apps"], &["v1"], &["deployments"])],
                "many/v1 A,many/v1 B,many/v1 C,many/v1 D,many/v1 E,many/v1 F,many/v1 G,many/v1 H,\
                 many/v1 I,many/v1 J",
                false,
            ),
        ] {
            let (found, unknown) = kinds_to_check(&rules, &discovery());
            let found: Vec<String> = found
                .iter()
                .map(|kind| format!("{}/{} {}", kind.group, kind.version, kind.kind))
                .collect();
            assert_eq!((found.join(","), unknown), (expected.to_owned(), missed), "{rules:?}");
        }
    }
}
