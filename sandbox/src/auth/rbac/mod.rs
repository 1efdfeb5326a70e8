//! Authorizes requests by the roles and bindings in the store.
//! Upstream: `plugin/pkg/auth/authorizer/rbac`, `pkg/registry/rbac/validation`.

mod escalation;
mod impersonation;
mod rule;
mod signers;

use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};

pub use self::impersonation::Modes;
pub use self::rule::Rule;
pub use self::signers::is_certificate_request;
use crate::access::{Access, User};
use crate::failures;
use crate::kinds::RBAC_GROUP as GROUP;
use crate::object::{list, text};
use crate::status::{ApiError, ApiResult};
use crate::storage::store::Store;
use kube_controller_manager::objects::ResourceType;

const CLUSTER_ROLES: &str = "clusterroles.rbac.authorization.k8s.io";
const CLUSTER_BINDINGS: &str = "clusterrolebindings.rbac.authorization.k8s.io";
const ROLES: &str = "roles.rbac.authorization.k8s.io";
const BINDINGS: &str = "rolebindings.rbac.authorization.k8s.io";

/// The group that may do everything, independent of roles.
pub const MASTERS: &str = "system:masters";

/// The roles and bindings, indexed by subject; rebuilt when one of them has changed.
#[derive(Default)]
pub struct Rbac {
    index: RwLock<Arc<Index>>,
    modes: Modes,
}

#[derive(Default)]
struct Index {
    /// The version of the last change to a role or binding in this index.
    version: u64,
    roles: HashMap<RoleKey, Arc<[Rule]>>,
    /// The bindings of the whole cluster.
    cluster: Scope,
    namespaces: HashMap<String, Scope>,
}

/// Namespace and name; the namespace of a cluster role is empty.
type RoleKey = (String, String);

/// The bindings of one namespace, or of the cluster.
#[derive(Default)]
struct Scope {
    bindings: Vec<Binding>,
    users: HashMap<String, Vec<usize>>,
    groups: HashMap<String, Vec<usize>>,
}

struct Binding {
    /// Empty for a ClusterRoleBinding.
    namespace: String,
    name: String,
    /// `Role` or `ClusterRole`, and its name.
    role: (String, String),
    subjects: Vec<Subject>,
}

struct Subject {
    kind: String,
    name: String,
    /// The namespace of a service account.
    namespace: String,
}

/// A role that a binding names but that does not exist.
pub struct Missing {
    kind: String,
    name: String,
}

impl Missing {
    /// Returns the error text of upstream's lister.
    fn text(&self) -> String {
        format!("{}.{GROUP} {:?} not found", self.kind.to_lowercase(), self.name)
    }
}

impl Subject {
    /// Returns whether the subject is this user, or one of its groups.
    fn includes(&self, user: &User) -> bool {
        match self.kind.as_str() {
            "Group" => user.groups.contains(&self.name),
            _ => user.name == self.user_name(),
        }
    }

    /// Returns the name of the user; a service account has a user name of its own form.
    fn user_name(&self) -> String {
        match self.kind.as_str() {
            "ServiceAccount" => format!("system:serviceaccount:{}:{}", self.namespace, self.name),
            _ => self.name.clone(),
        }
    }
}

impl Binding {
    /// Describes the binding and the subject by which it applies to `user`. As upstream, names come
    /// before their namespaces. Upstream: `describeSubject` and the describers of bindings.
    fn described(&self, user: &User) -> String {
        let subject = self.subjects.iter().find(|subject| subject.includes(user));
        let subject = subject.map_or_else(String::new, |Subject { kind, name, namespace }| {
            match kind.as_str() {
                "ServiceAccount" => format!("{kind} {:?}", format!("{name}/{namespace}")),
                _ => format!("{kind} {name:?}"),
            }
        });
        let (kind, role) = &self.role;
        let binding = match self.namespace.as_str() {
            "" => format!("ClusterRoleBinding {:?}", self.name),
            namespace => format!("RoleBinding {:?}", format!("{}/{namespace}", self.name)),
        };
        format!("{binding} of {kind} {role:?} to {subject}")
    }
}

impl Scope {
    /// Adds a binding, found by each of its subjects.
    fn add(&mut self, binding: Binding) {
        let at = self.bindings.len();
        for subject in &binding.subjects {
            let known = match subject.kind.as_str() {
                "Group" => self.groups.entry(subject.name.clone()),
                "User" | "ServiceAccount" => self.users.entry(subject.user_name()),
                _ => continue,
            };
            known.or_default().push(at);
        }
        self.bindings.push(binding);
    }

    /// Returns the bindings of a user, sorted by name.
    fn bindings_of(&self, user: &User) -> impl Iterator<Item = &Binding> {
        let by_group = user.groups.iter().filter_map(|group| self.groups.get(group));
        let found = self.users.get(&user.name).into_iter().chain(by_group);
        let mut found: Vec<usize> = found.flatten().copied().collect();
        found.sort_unstable();
        found.dedup();
        found.into_iter().filter_map(|at| self.bindings.get(at))
    }
}

impl Index {
    /// Reads all roles and bindings of the store into an index by namespace.
    fn new(store: &Store, version: u64) -> Index {
        let mut index = Index { version, ..Index::default() };
        let each = |table: &str, see: &mut dyn FnMut(&Value)| {
            // The newest list is always available.
            let page = store.list(table, "", None, usize::MAX, None, &|_| true);
            page.iter().flat_map(|page| &page.items).for_each(|object| see(&object.value));
        };
        let text_at = |object: &Value, pointer: &str| text(object, pointer).to_owned();
        for table in [CLUSTER_ROLES, ROLES] {
            each(table, &mut |role| {
                let key = (text_at(role, "/metadata/namespace"), text_at(role, "/metadata/name"));
                index.roles.insert(key, Rule::of(role).into());
            });
        }
        for table in [CLUSTER_BINDINGS, BINDINGS] {
            each(table, &mut |binding| {
                let namespace = text_at(binding, "/metadata/namespace");
                let subject = |subject: &Value| Subject {
                    kind: text_at(subject, "/kind"),
                    name: text_at(subject, "/name"),
                    namespace: match text(subject, "/namespace") {
                        "" => namespace.clone(),
                        own => own.to_owned(),
                    },
                };
                let subjects = list(binding, "/subjects").iter().map(subject).collect();
                let scope = match namespace.as_str() {
                    "" => &mut index.cluster,
                    _ => index.namespaces.entry(namespace.clone()).or_default(),
                };
                scope.add(Binding {
                    namespace: namespace.clone(),
                    name: text_at(binding, "/metadata/name"),
                    role: (text_at(binding, "/roleRef/kind"), text_at(binding, "/roleRef/name")),
                    subjects,
                });
            });
        }
        index
    }

    /// Returns the rules of the role that a binding in `namespace` names.
    fn rules(&self, (kind, name): &(String, String), namespace: &str) -> Result<&[Rule], Missing> {
        let namespace = if kind == "Role" { namespace } else { "" };
        let found = self.roles.get(&(namespace.to_owned(), name.clone()));
        // A binding of the cluster cannot name a Role; its key would be that of a ClusterRole.
        let found = found.filter(|_| kind != "Role" || !namespace.is_empty());
        found
            .map(|rules| &**rules)
            .ok_or_else(|| Missing { kind: kind.clone(), name: name.clone() })
    }

    /// Returns the bindings of a user in a namespace, each with the rules of its role.
    fn granted<'a>(
        &'a self,
        user: &'a User,
        namespace: &str,
    ) -> impl Iterator<Item = (&'a Binding, Result<&'a [Rule], Missing>)> {
        let inside = self.namespaces.get(namespace).filter(|_| !namespace.is_empty());
        let scopes = std::iter::once(&self.cluster).chain(inside);
        scopes
            .flat_map(|scope| scope.bindings_of(user))
            .map(|binding| (binding, self.rules(&binding.role, &binding.namespace)))
    }
}

/// Joins the faults without duplicates; several are in brackets. Upstream:
/// `utilerrors.NewAggregate`.
fn aggregate(mut faults: Vec<String>) -> String {
    let mut seen = std::collections::HashSet::new();
    faults.retain(|fault| seen.insert(fault.clone()));
    match faults.as_slice() {
        [one] => one.clone(),
        _ => format!("[{}]", faults.join(", ")),
    }
}

/// Answers whether a user may do something, by the roles and bindings in the store.
#[derive(Clone, Copy)]
pub struct Authorizer<'a> {
    rbac: &'a Rbac,
    store: &'a Store,
}

impl Rbac {
    /// Returns the authorizer by the roles in `store`.
    pub fn authorizer<'a>(&'a self, store: &'a Store) -> Authorizer<'a> {
        Authorizer { rbac: self, store }
    }

    /// Returns the index of all roles and bindings. It is built again if one of them has changed
    /// since.
    fn index(&self, store: &Store) -> Arc<Index> {
        let version = store.changed_at(&[CLUSTER_ROLES, CLUSTER_BINDINGS, ROLES, BINDINGS]);
        let known = self.index.read().clone();
        if known.version == version {
            return known;
        }
        let index = Arc::new(Index::new(store, version));
        *self.index.write() = index.clone();
        index
    }
}

impl Authorizer<'_> {
    fn index(&self) -> Arc<Index> {
        self.rbac.index(self.store)
    }

    /// Decides whether the access is allowed; both results carry upstream's reason, which may be
    /// empty.
    pub fn authorize(&self, user: &User, access: &Access) -> Result<String, String> {
        if user.groups.iter().any(|group| group == MASTERS) {
            return Ok(String::new());
        }
        let index = self.index();
        let mut faults = Vec::new();
        for (binding, rules) in index.granted(user, &access.namespace) {
            match rules {
                Ok(rules) if rules.iter().any(|rule| rule.allows(access)) => {
                    return Ok(format!("RBAC: allowed by {}", binding.described(user)));
                }
                Ok(_) => {}
                Err(missing) => faults.push(missing.text()),
            }
        }
        Err(if faults.is_empty() { String::new() } else { format!("RBAC: {}", aggregate(faults)) })
    }

    /// Checks that the access is allowed. Errors: 403.
    pub fn check(&self, user: &User, access: &Access) -> ApiResult<()> {
        self.authorize(user, access).map(drop).map_err(|why| refusal(user, access, &why))
    }

    /// Returns the rules of a user in a namespace, and the errors of their lookup.
    pub fn rules_for(&self, user: &User, namespace: &str) -> (Vec<Rule>, Vec<Missing>) {
        let index = self.index();
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for (_, rules) in index.granted(user, namespace) {
            match rules {
                Ok(rules) => found.extend(rules.iter().cloned()),
                Err(role) => missing.push(role),
            }
        }
        (found, missing)
    }

    /// Builds the status of a SelfSubjectRulesReview. Upstream: `selfsubjectrulesreview.REST`.
    pub fn rules_review(&self, user: &User, namespace: &str) -> Value {
        let (rules, missing) = self.rules_for(user, namespace);
        let (of_resources, of_paths): (Vec<_>, Vec<_>) =
            rules.iter().partition(|rule| !rule.resources.is_empty());
        let mut status = json!({
            "resourceRules": of_resources, "nonResourceRules": of_paths, "incomplete": false,
        });
        if !missing.is_empty() {
            let missing = missing.iter().map(Missing::text).collect();
            status["evaluationError"] = aggregate(missing).into();
        }
        status
    }
}

/// Builds the 403 for a user without the right. Upstream: `responsewriters.ForbiddenStatusError`.
pub fn refusal(user: &User, access: &Access, why: &str) -> ApiError {
    let (name, Access { verb, group, resource, namespace, path, .. }) = (&user.name, access);
    let mut message = format!("User {name:?} cannot {verb} ");
    message += &match (path.as_str(), namespace.as_str()) {
        ("", "") => {
            format!("resource {resource:?} in API group {group:?} at the cluster scope")
        }
        ("", _) => {
            format!("resource {resource:?} in API group {group:?} in the namespace {namespace:?}")
        }
        _ => format!("path {path:?}"),
    };
    // Upstream escapes the message for HTML.
    let mut message = message.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    if !why.is_empty() {
        message = format!("{message}: {why}");
    }
    if !path.is_empty() {
        let mut error = ApiError::new(403, "Forbidden", format!("forbidden: {message}"));
        error.details = json!({});
        return error;
    }
    let plural = resource.split('/').next().unwrap_or_default().to_owned();
    let resource = ResourceType {
        group: group.clone().into(),
        version: "".into(),
        kind: "".into(),
        plural: plural.into(),
        namespaced: true,
    };
    failures::forbidden(&resource, &access.name, &message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(name: &str, verb: &str, resource: &str) -> Value {
        json!({ "metadata": { "name": name }, "rules": [
            { "verbs": [verb], "apiGroups": [""], "resources": [resource] },
        ] })
    }

    fn binding(name: &str, role: (&str, &str), subjects: &[(&str, &str)]) -> Value {
        let subjects: Value =
            subjects.iter().map(|(kind, name)| json!({ "kind": kind, "name": name })).collect();
        json!({
            "metadata": { "name": name }, "subjects": subjects,
            "roleRef": { "kind": role.0, "name": role.1 },
        })
    }

    fn put(store: &Store, table: &str, namespace: &str, mut object: Value) {
        let name = text(&object, "/metadata/name").to_owned();
        let key = match namespace {
            "" => name,
            _ => format!("{namespace}/{name}"),
        };
        if !namespace.is_empty() {
            object["metadata"]["namespace"] = namespace.into();
        }
        store.create(table, &key, object).ok().unwrap();
    }

    fn access(verb: &str, resource: &str, namespace: &str) -> Access {
        Access {
            verb: verb.to_owned(),
            resource: resource.to_owned(),
            namespace: namespace.to_owned(),
            ..Access::default()
        }
    }

    #[test]
    fn bindings_apply_to_their_namespace_and_subjects() {
        let (rbac, store) = (Rbac::default(), &Store::new(100));
        let authorizer = rbac.authorizer(store);
        put(store, CLUSTER_ROLES, "", role("reader", "get", "pods"));
        put(store, ROLES, "a", role("writer", "create", "pods"));
        let of_cluster = ("ClusterRole", "reader");
        let subjects = [("Group", "readers"), ("User", "bob")];
        put(store, CLUSTER_BINDINGS, "", binding("everywhere", of_cluster, &subjects));
        put(store, BINDINGS, "a", binding("here", of_cluster, &[("ServiceAccount", "robot")]));
        put(store, BINDINGS, "a", binding("more", ("Role", "writer"), &[("User", "bob")]));
        put(store, BINDINGS, "b", binding("none", ("Role", "writer"), &[("User", "bob")]));
        put(store, BINDINGS, "b", binding("twice", ("Role", "writer"), &[("User", "bob")]));

        let bob = User::new("bob", &[]);
        let robot = User::service_account("a", "robot", "");
        let reader = User::new("eve", &["readers"]);
        let missing = r#"RBAC: role.rbac.authorization.k8s.io "writer" not found"#;
        let of_robot = r#"RBAC: allowed by RoleBinding "here/a" of ClusterRole "reader" to ServiceAccount "robot/a""#;
        let of_reader = r#"RBAC: allowed by ClusterRoleBinding "everywhere" of ClusterRole "reader" to Group "readers""#;
        for (user, verb, namespace, wanted) in [
            (&reader, "get", "b", Ok(of_reader)),
            (&reader, "create", "a", Err("")),
            (&robot, "get", "a", Ok(of_robot)),
            (&robot, "get", "b", Err("")),
            (&robot, "get", "", Err("")),
            (&bob, "create", "b", Err(missing)),
            (&bob, "create", "", Err("")),
            (&User::new("root", &[MASTERS]), "create", "b", Ok("")),
        ] {
            let found = authorizer.authorize(user, &access(verb, "pods", namespace));
            let found = found.as_deref().map_err(String::as_str);
            assert_eq!(found, wanted, "{} {verb} {namespace:?}", user.name);
        }
        assert!(authorizer.authorize(&bob, &access("create", "pods", "a")).is_ok());
        // The next check sees the change.
        put(store, ROLES, "b", role("writer", "create", "pods"));
        assert!(authorizer.authorize(&bob, &access("create", "pods", "b")).is_ok());
        let last = store.get(BINDINGS, "a/more").unwrap();
        store.delete(BINDINGS, "a/more", last.version, None).ok().unwrap();
        assert!(authorizer.authorize(&bob, &access("create", "pods", "a")).is_err());
    }

    #[test]
    fn refusals_have_upstreams_messages() {
        let bob = User::new("b<o>b", &[]);
        let mut named = access("get", "pods/log", "d");
        named.name = "p".into();
        let path = Access { verb: "get".into(), path: "/x".into(), ..Access::default() };
        let mut of_group = access("list", "deployments", "");
        of_group.group = "apps".into();
        for (access, why, message) in [
            (
                named,
                "",
                r#"pods "p" is forbidden: User "b&lt;o&gt;b" cannot get resource "pods/log" in API group "" in the namespace "d""#,
            ),
            (
                of_group,
                "RBAC: <x>",
                r#"deployments.apps is forbidden: User "b&lt;o&gt;b" cannot list resource "deployments" in API group "apps" at the cluster scope: RBAC: <x>"#,
            ),
            (path, "", r#"forbidden: User "b&lt;o&gt;b" cannot get path "/x""#),
        ] {
            assert_eq!(refusal(&bob, &access, why).message, message);
        }
    }
}
