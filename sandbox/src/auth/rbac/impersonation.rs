//! Authorizes requests of a user that act as another user. Upstream:
//! `apiserver/pkg/endpoints/filters/impersonation`.

use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};

use super::{Authorizer, MASTERS, refusal};
use crate::access::{Access, User};
use crate::failures;
use crate::kinds::subdomain_fault;
use crate::status::ApiResult;
use kube_controller_manager::percent::decode;
use kube_controller_manager::server::http::HeaderMap;

const AUTHENTICATION: &str = "authentication.k8s.io";
/// The node on which the pod of a service account runs, in the extra fields of its token.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
/// With at least this number of checks, a check for `*` comes first.
const MANY: usize = 4;

/// The modes of impersonation: the constrained ones, each with its own verbs, then the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    AssociatedNode,
    ArbitraryNode,
    ServiceAccount,
    UserInfo,
    Legacy,
}

const MODES: [Mode; 5] =
    [Mode::AssociatedNode, Mode::ArbitraryNode, Mode::ServiceAccount, Mode::UserInfo, Mode::Legacy];

/// The mode in which each user succeeded last: it is tried first.
#[derive(Default)]
pub struct Modes(Mutex<HashMap<String, Mode>>);

impl Modes {
    fn last(&self, user: &str) -> Option<Mode> {
        self.0.lock().get(user).copied()
    }

    fn record_success(&self, user: &str, mode: Mode) {
        self.0.lock().insert(user.to_owned(), mode);
    }
}

/// Returns the name of the node, if `user` is one.
fn node(user: &str) -> Option<&str> {
    user.strip_prefix("system:node:").filter(|name| subdomain_fault(name).is_none())
}

/// Returns namespace and name of the service account, if `user` is one.
fn account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    (!namespace.is_empty() && !name.is_empty() && !name.contains(':')).then_some((namespace, name))
}

impl Mode {
    /// Returns the name that this mode has in its verbs, `impersonate:NAME`.
    fn name(self) -> &'static str {
        match self {
            Mode::AssociatedNode => "associated-node",
            Mode::ArbitraryNode => "arbitrary-node",
            Mode::ServiceAccount => "serviceaccount",
            Mode::UserInfo => "user-info",
            // Its verb has no suffix: see `act`.
            Mode::Legacy => "",
        }
    }

    /// Returns whether `requestor` can impersonate `wanted` in this mode at all.
    fn applies(self, requestor: &User, wanted: &User) -> bool {
        let bare = wanted.uid.is_empty() && wanted.groups.is_empty() && wanted.extra.is_empty();
        let node = node(&wanted.name);
        match self {
            Mode::AssociatedNode => {
                let own = requestor.extra.get(NODE_NAME).map(Vec::as_slice);
                let own = own.and_then(|names| if let [one] = names { Some(&**one) } else { None });
                bare && node.is_some() && node == own && account(&requestor.name).is_some()
            }
            Mode::ArbitraryNode => bare && node.is_some(),
            Mode::ServiceAccount => bare && account(&wanted.name).is_some(),
            Mode::UserInfo => node.is_none() && account(&wanted.name).is_none(),
            Mode::Legacy => true,
        }
    }
}

/// Reads the impersonated user from the headers; `None` if there are no such headers. Errors: 400
/// without a name.
fn impersonated_user(headers: &HeaderMap) -> ApiResult<Option<User>> {
    let values_of = |name: &str| -> Vec<String> {
        let values = headers.get_all(name).iter();
        values.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect()
    };
    let first = |name: &str| values_of(name).into_iter().next().unwrap_or_default();
    let mut extra = BTreeMap::new();
    for name in headers.keys() {
        if let Some(key) = name.as_str().strip_prefix("impersonate-extra-") {
            extra.insert(decode(key), values_of(name.as_str()));
        }
    }
    let user = User {
        name: first("impersonate-user"),
        uid: first("impersonate-uid"),
        groups: values_of("impersonate-group"),
        extra,
    };
    if !user.name.is_empty() {
        return Ok(Some(user));
    }
    if user == User::default() {
        return Ok(None);
    }
    Err(failures::bad_request(format!(
        "requested {} without impersonating a user name",
        go_syntax(&user)
    )))
}

/// Formats a user as Go's `%#v` prints it.
fn go_syntax(user: &User) -> String {
    let words = |words: &[String]| {
        let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
        words.join(", ")
    };
    let groups = match user.groups.as_slice() {
        [] => "[]string(nil)".to_owned(),
        groups => format!("[]string{{{}}}", words(groups)),
    };
    let extra = if user.extra.is_empty() {
        "map[string][]string(nil)".to_owned()
    } else {
        let extra = user.extra.iter();
        let extra: Vec<String> =
            extra.map(|(key, values)| format!("{key:?}:[]string{{{}}}", words(values))).collect();
        format!("map[string][]string{{{}}}", extra.join(", "))
    };
    let (name, uid) = (&user.name, &user.uid);
    format!("&user.DefaultInfo{{Name:{name:?}, UID:{uid:?}, Groups:{groups}, Extra:{extra}}}")
}

impl Authorizer<'_> {
    /// Returns the user of a request: `user`, or the one that its headers name, if `user` may
    /// impersonate it. `access`: the access requested. Errors: 403; 400 for a group without a user.
    pub fn impersonate(&self, user: User, headers: &HeaderMap, access: &Access) -> ApiResult<User> {
        let Some(wanted) = impersonated_user(headers)? else { return Ok(user) };
        let last = self.rbac.modes.last(&user.name);
        let others = MODES.into_iter().filter(|mode| Some(*mode) != last);
        let mut first = None;
        for mode in last.into_iter().chain(others) {
            if !mode.applies(&user, &wanted) {
                continue;
            }
            match self.act(mode, &user, &wanted, access) {
                Ok(acting) => {
                    self.rbac.modes.record_success(&user.name, mode);
                    return Ok(acting);
                }
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or_else(|| failures::internal("all impersonation modes failed")))
    }

    /// Checks that `user` may impersonate `wanted` in this mode, and returns the user that results.
    /// All modes but the legacy one also check the access itself, and refuse the group of
    /// administrators.
    fn act(&self, mode: Mode, user: &User, wanted: &User, access: &Access) -> ApiResult<User> {
        let narrow = mode != Mode::Legacy;
        let (verb, group) = match mode {
            Mode::Legacy => ("impersonate".to_owned(), ""),
            _ => (format!("impersonate:{}", mode.name()), AUTHENTICATION),
        };
        if narrow {
            let on = Access {
                verb: format!("impersonate-on:{}:{}", mode.name(), access.verb),
                ..access.clone()
            };
            self.check(user, &on)?;
        }
        let access_to = |group: &str, resource: &str, namespace: &str, name: &str| Access {
            verb: verb.clone(),
            group: group.to_owned(),
            resource: resource.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            path: String::new(),
        };
        let mut acting = wanted.clone();
        let of_name = match (node(&wanted.name), account(&wanted.name)) {
            (Some(name), _) if narrow => {
                acting.groups = vec!["system:nodes".to_owned()];
                let name = if mode == Mode::AssociatedNode { "*" } else { name };
                access_to(group, "nodes", "", name)
            }
            (_, Some((namespace, name))) => {
                if wanted.groups.is_empty() {
                    acting.groups = User::service_account(namespace, name, "").groups;
                }
                access_to(group, "serviceaccounts", namespace, name)
            }
            _ => access_to(group, "users", "", &wanted.name),
        };
        self.check(user, &of_name)?;
        if !wanted.uid.is_empty() {
            self.check(user, &access_to(AUTHENTICATION, "uids", "", &wanted.uid))?;
        }

        for (name, bad) in [("", "empty string"), (MASTERS, MASTERS)] {
            if narrow && wanted.groups.iter().any(|group| group == name) {
                let why = format!("impersonating the {bad} group is not allowed");
                return Err(refusal(user, &access_to(group, "groups", "", name), &why));
            }
        }
        let is_allowed = |access: &Access| narrow && self.authorize(user, access).is_ok();
        if wanted.groups.len() < MANY || !is_allowed(&access_to(group, "groups", "", "*")) {
            for name in &wanted.groups {
                self.check(user, &access_to(group, "groups", "", name))?;
            }
        }
        let of_extra = |key: &str, value: &str| {
            access_to(AUTHENTICATION, format!("userextras/{key}").trim_end_matches('/'), "", value)
        };
        if let Some(why) = extra_fault(&wanted.extra).filter(|_| narrow) {
            return Err(refusal(user, &of_extra("", ""), &why));
        }
        let values = wanted.extra.values().map(Vec::len).sum::<usize>();
        let many = values.max(wanted.extra.len()) >= MANY;
        if !many || !is_allowed(&of_extra("*", "*")) {
            for (key, values) in &wanted.extra {
                for value in values {
                    self.check(user, &of_extra(key, value))?;
                }
            }
        }

        // Upstream adds the group that says whether the user is authenticated.
        let status_group = match acting.is_anonymous() {
            true => "system:unauthenticated",
            false => "system:authenticated",
        };
        let has_status_group =
            |group: &String| group == status_group || *group == "system:unauthenticated";
        if !acting.groups.iter().any(has_status_group) {
            acting.groups.push(status_group.to_owned());
        }
        Ok(acting)
    }
}

/// Returns why these extra values of a user may not be impersonated; `None`: they may.
fn extra_fault(extra: &BTreeMap<String, Vec<String>>) -> Option<String> {
    extra.iter().find_map(|(key, values)| {
        let (domain, path) = key.split_once('/').unwrap_or((key, ""));
        let detail;
        let (what, more) = match key {
            _ if key.is_empty() => ("the empty string key", ""),
            _ if path.is_empty() || domain.is_empty() => {
                let why = "must be a domain-prefixed path (such as \"acme.io/foo\")";
                detail = format!(": extra.key: Invalid value: {key:?}: {why}");
                ("an invalid key", &*detail)
            }
            _ if values.iter().any(String::is_empty) => ("the empty string value", ""),
            _ => return None,
        };
        Some(format!("impersonating {what} in extra is not allowed{more}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::rbac::Rbac;
    use crate::storage::store::Store;
    use serde_json::json;

    /// Roles that let `old` act as alice of the developers in the old way, and `new` as alice,
    /// accounts and nodes, but only to list pods.
    fn roles() -> Store {
        let store = Store::new(100);
        let users = ["users", "groups", "userextras/a.b/c"];
        let pods = json!({ "apiGroups": [""], "resources": ["pods"], "verbs": [
            "impersonate-on:user-info:list", "impersonate-on:serviceaccount:list",
            "impersonate-on:arbitrary-node:list", "impersonate-on:associated-node:list",
        ] });
        for (name, rules) in [
            (
                "old",
                json!([{ "apiGroups": ["", AUTHENTICATION], "resources": users,
                "verbs": ["impersonate"], "resourceNames": ["alice", "devs", "x"] }]),
            ),
            (
                "new",
                json!([pods, { "apiGroups": [AUTHENTICATION], "resources": users,
                "verbs": ["impersonate:user-info"], "resourceNames": ["alice", "devs", MASTERS] },
                { "apiGroups": [AUTHENTICATION], "resources": ["serviceaccounts", "nodes"],
                "verbs": ["impersonate:serviceaccount", "impersonate:arbitrary-node"] }]),
            ),
        ] {
            let role = json!({ "metadata": { "name": name }, "rules": rules });
            store.create(super::super::CLUSTER_ROLES, name, role).ok().unwrap();
            let binding = json!({
                "metadata": { "name": name }, "subjects": [{ "kind": "User", "name": name }],
                "roleRef": { "kind": "ClusterRole", "name": name },
            });
            store.create(super::super::CLUSTER_BINDINGS, name, binding).ok().unwrap();
        }
        store
    }

    /// `name group... key=value`
    fn headers(wanted: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (n, word) in wanted.split(' ').enumerate().filter(|(_, word)| !word.is_empty()) {
            let (name, value) = match word.split_once('=') {
                Some((key, value)) => (format!("impersonate-extra-{key}"), value),
                None if n == 0 => ("impersonate-user".to_owned(), word),
                None => ("impersonate-group".to_owned(), word),
            };
            let name = hyper::header::HeaderName::try_from(name).unwrap();
            headers.append(name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn users_impersonate_others_by_their_roles() {
        const ALL: &str = "system:authenticated";
        let account = ["system:serviceaccounts", "system:serviceaccounts:a", ALL].join(" ");
        let refused = |what: &str, verb: &str, resource: &str, group: &str, more: &str| {
            let scope = "at the cluster scope";
            format!(
                "{what} is forbidden: User \"new\" cannot {verb} resource {resource:?} in API group {group:?} {scope}{more}"
            )
        };
        let on = refused("secrets", "impersonate-on:user-info:list", "secrets", "", "");
        let masters = refused(
            &format!("groups.{AUTHENTICATION} \"system:masters\""),
            "impersonate:user-info",
            "groups",
            AUTHENTICATION,
            ": impersonating the system:masters group is not allowed",
        );
        let bert = refused(
            &format!("users.{AUTHENTICATION} \"bert\""),
            "impersonate:user-info",
            "users",
            AUTHENTICATION,
            "",
        );
        for (who, wanted, resource, outcome) in [
            ("nobody", "", "pods", Ok("")),
            ("old", "alice", "pods", Ok(ALL)),
            ("old", "alice devs", "secrets", Ok("devs system:authenticated")),
            ("old", "alice devs a.b%2fc=x", "pods", Ok("devs system:authenticated")),
            ("new", "alice devs", "pods", Ok("devs system:authenticated")),
            ("new", "alice", "secrets", Err(&*on)),
            ("new", "bert", "pods", Err(&*bert)),
            ("new", "alice system:masters", "pods", Err(&*masters)),
            ("new", "system:serviceaccount:a:b", "pods", Ok(&*account)),
            ("new", "system:node:n", "pods", Ok("system:nodes system:authenticated")),
        ] {
            let (rbac, store) = (Rbac::default(), roles());
            let access =
                Access { verb: "list".into(), resource: resource.into(), ..Access::default() };
            let authorizer = rbac.authorizer(&store);
            let found = authorizer.impersonate(User::new(who, &[]), &headers(wanted), &access);
            let found = found.map(|user| user.groups.join(" ")).map_err(|error| error.message);
            let outcome = outcome.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(found, outcome, "{who} as {wanted:?}");
        }
        // A request admitted by one rule gets the reason of that rule.
        let (rbac, store) = (Rbac::default(), roles());
        let authorizer = rbac.authorizer(&store);
        let access = Access { verb: "list".into(), resource: "pods".into(), ..Access::default() };
        let act = |wanted| authorizer.impersonate(User::new("old", &[]), &headers(wanted), &access);
        assert!(act("alice").is_ok());
        let words = "users \"bert\" is forbidden: User \"old\" cannot impersonate resource \"users\" in API group \"\" at the cluster scope";
        assert_eq!(act("bert").unwrap_err().message, words);
        let mut headers = headers("");
        headers.append("impersonate-group", "a".parse().unwrap());
        let words = "requested &user.DefaultInfo{Name:\"\", UID:\"\", Groups:[]string{\"a\"}, Extra:map[string][]string(nil)} without impersonating a user name";
        let error = authorizer.impersonate(User::new("old", &[]), &headers, &access).unwrap_err();
        assert_eq!((error.code, &*error.message), (400, words));
    }
}
