//! Whether a user may act as another. Upstream: `apiserver/pkg/endpoints/filters/impersonation`.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use super::{MASTERS, refusal};
use crate::sandbox::api::Api;
use crate::sandbox::auth::{Access, User};
use crate::sandbox::call::decode;
use crate::sandbox::failures;
use crate::sandbox::kinds::subdomain_fault;
use crate::sandbox::status::ApiResult;
use crate::server::http::HeaderMap;

const AUTHENTICATION: &str = "authentication.k8s.io";
/// Of the token of a service account whose pod runs on that node.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
/// So many checks are preceded by one for all of them.
const MANY: usize = 4;

/// How somebody acts as another: the narrow ways, each with verbs of its own, then the old one.
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

/// By which mode each user last came through: it is tried first.
#[derive(Default)]
pub struct Modes(Mutex<HashMap<String, Mode>>);

impl Modes {
    fn last(&self, user: &str) -> Option<Mode> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(user).copied()
    }

    fn came_through(&self, user: &str, mode: Mode) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(user.to_owned(), mode);
    }
}

fn node(user: &str) -> Option<&str> {
    user.strip_prefix("system:node:").filter(|name| subdomain_fault(name).is_none())
}

fn account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    (!namespace.is_empty() && !name.is_empty() && !name.contains(':')).then_some((namespace, name))
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::AssociatedNode => "associated-node",
            Mode::ArbitraryNode => "arbitrary-node",
            Mode::ServiceAccount => "serviceaccount",
            Mode::UserInfo => "user-info",
            Mode::Legacy => "",
        }
    }

    /// Whether this is a way at all for `requestor` to be `wanted`.
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

/// Who the headers say the request shall be made as. Errors: 400 without a name.
fn wanted(headers: &HeaderMap) -> ApiResult<Option<User>> {
    let all = |name: &str| -> Vec<String> {
        let values = headers.get_all(name).iter();
        values.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect()
    };
    let first = |name: &str| all(name).into_iter().next().unwrap_or_default();
    let mut extra = BTreeMap::new();
    for name in headers.keys() {
        if let Some(key) = name.as_str().strip_prefix("impersonate-extra-") {
            extra.insert(decode(key, false), all(name.as_str()));
        }
    }
    let user = User {
        name: first("impersonate-user"),
        uid: first("impersonate-uid"),
        groups: all("impersonate-group"),
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

/// As Go's `%#v` prints it.
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

impl Api {
    /// Who a request is made as: `user`, or whom its headers name, if `user` may act as them.
    /// `access`: what is asked for. Errors: 403; 400 for a group without a user.
    pub fn acting(&self, user: User, headers: &HeaderMap, access: &Access) -> ApiResult<User> {
        let Some(wanted) = wanted(headers)? else { return Ok(user) };
        let last = self.rbac.modes.last(&user.name);
        let others = MODES.into_iter().filter(|mode| Some(*mode) != last);
        let mut first = None;
        for mode in last.into_iter().chain(others) {
            if !mode.applies(&user, &wanted) {
                continue;
            }
            match self.act(mode, &user, &wanted, access) {
                Ok(acting) => {
                    self.rbac.modes.came_through(&user.name, mode);
                    return Ok(acting);
                }
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or_else(|| failures::internal("all impersonation modes failed")))
    }

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
            self.check_access(user, &on)?;
        }
        let what = |group: &str, resource: &str, namespace: &str, name: &str| Access {
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
                what(group, "nodes", "", name)
            }
            (_, Some((namespace, name))) => {
                if wanted.groups.is_empty() {
                    acting.groups = User::service_account(namespace, name, "").groups;
                }
                what(group, "serviceaccounts", namespace, name)
            }
            _ => what(group, "users", "", &wanted.name),
        };
        self.check_access(user, &of_name)?;
        if !wanted.uid.is_empty() {
            self.check_access(user, &what(AUTHENTICATION, "uids", "", &wanted.uid))?;
        }

        for (name, bad) in [("", "empty string"), (MASTERS, MASTERS)] {
            if narrow && wanted.groups.iter().any(|group| group == name) {
                let why = format!("impersonating the {bad} group is not allowed");
                return Err(refusal(user, &what(group, "groups", "", name), &why));
            }
        }
        let all = |access: &Access| narrow && self.authorize(user, access).is_ok();
        if wanted.groups.len() < MANY || !all(&what(group, "groups", "", "*")) {
            for name in &wanted.groups {
                self.check_access(user, &what(group, "groups", "", name))?;
            }
        }
        let of_extra = |key: &str, value: &str| {
            what(AUTHENTICATION, format!("userextras/{key}").trim_end_matches('/'), "", value)
        };
        if let Some(why) = extra_fault(&wanted.extra).filter(|_| narrow) {
            return Err(refusal(user, &of_extra("", ""), &why));
        }
        let values = wanted.extra.values().map(Vec::len).sum::<usize>();
        let many = values.max(wanted.extra.len()) >= MANY;
        if !many || !all(&of_extra("*", "*")) {
            for (key, values) in &wanted.extra {
                for value in values {
                    self.check_access(user, &of_extra(key, value))?;
                }
            }
        }

        let mark = match acting.is_anonymous() {
            true => "system:unauthenticated",
            false => "system:authenticated",
        };
        let marked = |group: &String| group == mark || *group == "system:unauthenticated";
        if !acting.groups.iter().any(marked) {
            acting.groups.push(mark.to_owned());
        }
        Ok(acting)
    }
}

fn extra_fault(extra: &BTreeMap<String, Vec<String>>) -> Option<String> {
    extra.iter().find_map(|(key, values)| {
        let what = match key {
            _ if key.is_empty() => "the empty string key",
            _ if values.is_empty() => "empty values",
            _ if values.iter().any(String::is_empty) => "the empty string value",
            _ => return None,
        };
        Some(format!("impersonating {what} in extra is not allowed"))
    })
}
