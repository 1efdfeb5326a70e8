//! Refuses grants of rights that the user does not hold. Upstream:
//! `pkg/registry/rbac/*/policybased`.

use serde_json::Value;

use super::rule::quoted;
use super::{Authorizer, GROUP, MASTERS, Missing, Rule};
use crate::access::Access;
use crate::failures;
use crate::object::{list, text};
use crate::request::call::Call;
use crate::status::{ApiError, ApiResult};

impl Authorizer<'_> {
    /// Checks that the caller may write this role or binding; objects of other kinds are not
    /// checked. `old`: the object before an update. Errors: 403; 404 for a role that does not
    /// exist; 500 for a binding whose role is of another kind.
    pub fn check_escalation(&self, call: &Call, old: Option<&Value>, new: &Value) -> ApiResult<()> {
        let resource = &call.kind.resource;
        if *resource.group != *GROUP || call.user.groups.iter().any(|group| group == MASTERS) {
            return Ok(());
        }
        let plural = &*resource.plural;
        let refuse = |why: &str| {
            let error = failures::forbidden(resource, text(new, "/metadata/name"), why);
            Err::<(), ApiError>(error)
        };
        let may = |verb: &str, resource: &str, name: &str| {
            let access = Access {
                verb: verb.to_owned(),
                group: GROUP.to_owned(),
                resource: resource.to_owned(),
                namespace: call.namespace.clone(),
                name: name.to_owned(),
                path: String::new(),
            };
            self.authorize(&call.user, &access).is_ok()
        };
        if matches!(plural, "roles" | "clusterroles") {
            if may("escalate", plural, &call.name)
                || old.is_some_and(|old| is_collector_change(old, new))
            {
                return Ok(());
            }
            if let Some(why) = self.escalates(call, &Rule::of(new)) {
                return refuse(&why);
            }
            let aggregates = |role: &Value| !list(role, AGGREGATED).is_empty();
            if (aggregates(new) || old.is_some_and(aggregates))
                && self.escalates(call, &everything()).is_some()
            {
                return refuse("must have cluster-admin privileges to use the aggregationRule");
            }
            return Ok(());
        }
        let (kind, name) = (text(new, "/roleRef/kind"), text(new, "/roleRef/name"));
        let of_kind = match kind {
            "Role" => "roles",
            "ClusterRole" => "clusterroles",
            _ if old.is_some_and(|old| is_collector_change(old, new)) => return Ok(()),
            _ => {
                let why = format!("unsupported role reference kind: {kind:?}");
                return Err(ApiError::new(500, "", why));
            }
        };
        if old.is_some_and(|old| is_collector_change(old, new)) || may("bind", of_kind, name) {
            return Ok(());
        }
        let index = self.index();
        let rules = index.rules(&(kind.to_owned(), name.to_owned()), &call.namespace);
        // Upstream's error names the binding's resource with the role's name.
        let rules = rules.map_err(|missing| failures::not_found(resource, &missing.name))?;
        self.escalates(call, rules).map_or(Ok(()), |why| refuse(&why))
    }

    /// Returns a message with the rules that the caller does not hold, or `None` if it holds all.
    /// Upstream: `ConfirmNoEscalation`.
    fn escalates(&self, call: &Call, rules: &[Rule]) -> Option<String> {
        let user = &call.user;
        let (owned, unresolved) = self.rules_for(user, &call.namespace);
        let missing = Rule::uncovered(&owned, rules);
        if missing.is_empty() {
            return None;
        }
        let mut why = format!(
            "user {:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
            user.name,
            quoted(&user.groups),
            Rule::described(missing).join("\n")
        );
        if !unresolved.is_empty() {
            let resource = &call.kind.resource;
            let fault = |role: &Missing| format!("{resource} {:?} not found", role.name);
            let faults = super::aggregate(unresolved.iter().map(fault).collect());
            why += &format!("; resolution errors: [{faults}]");
        }
        Some(why)
    }
}

const AGGREGATED: &str = "/aggregationRule/clusterRoleSelectors";

/// Builds the rules that allow every access.
fn everything() -> [Rule; 2] {
    let all = || vec!["*".to_owned()];
    [
        Rule { verbs: all(), api_groups: all(), resources: all(), ..Rule::default() },
        Rule { verbs: all(), paths: all(), ..Rule::default() },
    ]
}

/// Returns whether only fields that the garbage collector writes have changed.
fn is_collector_change(old: &Value, new: &Value) -> bool {
    let rest = |object: &Value| {
        let mut rest = object.clone();
        if let Some(metadata) = rest["metadata"].as_object_mut() {
            for key in ["ownerReferences", "finalizers", "managedFields", "resourceVersion"] {
                metadata.remove(key);
            }
        }
        rest
    };
    rest(old) == rest(new)
}
