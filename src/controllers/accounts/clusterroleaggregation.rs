//! Gives a ClusterRole with an aggregation rule the rules of the ClusterRoles that it selects.
//! Upstream: `pkg/controller/clusterroleaggregation`.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::json;

use crate::cache::{Index, IndexValue, Lister};
use crate::client::{Client, Patch};
use crate::controllers::{Controller, Next, QueuePolicy, SyncResult};
use crate::objects::{
    AggregationRule, ClusterRole, Istr, Object, ObjectKey, PolicyRule, Resource, Selector,
    SelectorError,
};

const FIELD_MANAGER: &str = "clusterrole-aggregation-controller";

/// Indexes the roles that aggregate others; all have one value.
const AGGREGATING: Index<ClusterRole> = Index::new("aggregating", |role, emit| {
    if role.aggregation_rule.is_some() {
        emit(aggregating_value());
    }
});

/// Returns the one value of [`AGGREGATING`].
fn aggregating_value() -> IndexValue {
    IndexValue::Text(Istr::default())
}

/// Sets up the controller `clusterrole-aggregation-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let roles = c.lister::<ClusterRole>();
    c.index(&roles, &AGGREGATING);
    let this = Arc::new(Aggregation { client: c.client(), roles: roles.clone() });
    let queue = c.queue(QueuePolicy::default());
    let all_roles = roles.clone();
    // Each role may be selected by each aggregating role, and there are few of those.
    c.watch(&roles, &queue, move |_, queue| {
        for role in all_roles.by_index(&AGGREGATING, &aggregating_value()) {
            queue.add(role.meta().key());
        }
    });
    c.sync(queue, &this, Aggregation::sync);
    Ok(())
}

struct Aggregation {
    client: Client,
    roles: Lister<ClusterRole>,
}

impl Aggregation {
    /// Gives an aggregating role the rules of the roles that it selects.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(role) = self.roles.get(&key) else { return Ok(Next::Done) };
        let Some(rule) = &role.aggregation_rule else { return Ok(Next::Done) };
        let rules = aggregate_rules(&key.name, rule, self.roles.list())?;
        if *rules != *role.rules {
            self.apply(&key, &rules).await?;
        }
        Ok(Next::Done)
    }

    /// Applies the rules of the role; other fields are kept.
    async fn apply(&self, key: &ObjectKey, rules: &[PolicyRule]) -> SyncResult {
        let resource = ClusterRole::RESOURCE;
        let mut body = json!({
            "apiVersion": resource.api_version(), "kind": resource.kind,
            "metadata": { "name": key.name },
        });
        if !rules.is_empty() {
            body["rules"] = json!(rules);
        }
        let patch = Patch::Apply { manager: FIELD_MANAGER.into(), force: true, body };
        match self.client.patch::<ClusterRole>(key, &patch).await {
            // 415, unsupported media type: the server has no server-side apply.
            Err(error) if error.code() == Some(415) => {
                let replace = |live: &mut serde_json::Value| {
                    live["rules"] = json!(rules);
                    true
                };
                self.client.modify::<ClusterRole>(key, replace).await?;
            }
            Err(error) => return Err(error.into()),
            Ok(_) => {}
        }
        Ok(Next::Done)
    }
}

/// Returns the rules of those of `roles` that `rule` selects, each once: selector by selector, role
/// by role in the order of their names. The role `own_name` adds nothing to itself.
fn aggregate_rules(
    own_name: &str,
    rule: &AggregationRule,
    mut roles: Vec<Arc<ClusterRole>>,
) -> Result<Vec<PolicyRule>, SelectorError> {
    roles.sort_by(|a, b| a.meta.name.cmp(&b.meta.name));
    let (mut seen, mut rules) = (HashSet::new(), Vec::new());
    for selector in &rule.cluster_role_selectors {
        let selector = Selector::try_from(selector)?;
        let selected = |role: &&Arc<ClusterRole>| {
            *role.meta.name != *own_name && selector.matches(&role.meta.labels)
        };
        for rule in roles.iter().filter(selected).flat_map(|role| &role.rules) {
            if seen.insert(rule) {
                rules.push(rule.clone());
            }
        }
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn role(name: &str, labels: Value, verbs: &[&str]) -> Arc<ClusterRole> {
        let rule = |verb: &&str| json!({ "verbs": [verb], "apiGroups": [""], "resources": null });
        let rules: Vec<Value> = verbs.iter().map(rule).collect();
        let role = json!({ "metadata": { "name": name, "labels": labels }, "rules": rules });
        Arc::new(serde_json::from_value(role).unwrap())
    }

    #[test]
    fn each_rule_appears_once_and_in_order() {
        let (a, b) = (json!({ "a": "1" }), json!({ "b": "1" }));
        let roles = vec![
            role("c", a.clone(), &["get", "list"]),
            role("b", a.clone(), &["watch", "get"]),
            role("a", b.clone(), &["patch", "watch"]),
            role("own", a.clone(), &["delete"]),
        ];
        let select = |labels: Value| json!({ "matchLabels": labels });
        let unknown = json!({ "matchExpressions": [{ "key": "a", "operator": "Like" }] });
        for (selectors, verbs) in [
            (json!(null), Some(vec![])),
            (json!([]), Some(vec![])),
            (json!([select(json!({ "none": "1" }))]), Some(vec![])),
            (json!([select(a.clone())]), Some(vec!["watch", "get", "list"])),
            (
                json!([select(a.clone()), select(b.clone())]),
                Some(vec!["watch", "get", "list", "patch"]),
            ),
            (json!([{}]), Some(vec!["patch", "watch", "get", "list"])),
            (json!([select(a.clone()), unknown]), None),
        ] {
            let rule: AggregationRule =
                serde_json::from_value(json!({ "clusterRoleSelectors": selectors })).unwrap();
            let rules = aggregate_rules("own", &rule, roles.clone()).ok();
            let found = rules.as_ref().map(|rules| {
                rules.iter().map(|rule| rule.verbs[0].as_str()).collect::<Vec<&str>>()
            });
            assert_eq!(found, verbs, "{selectors}");
        }
    }

    #[test]
    fn an_absent_list_is_an_empty_one() {
        let role = |rules: Value| -> ClusterRole {
            serde_json::from_value(json!({ "metadata": { "name": "a" }, "rules": rules })).unwrap()
        };
        assert_eq!(role(json!(null)), role(json!([])));
        let (long, short) = (
            json!([{ "verbs": ["get"], "nonResourceURLs": ["/x"], "resources": [] }]),
            json!([{ "verbs": ["get"], "nonResourceURLs": ["/x"] }]),
        );
        assert_eq!(role(long), role(short.clone()));
        assert_eq!(json!(role(short.clone()).rules), short);
    }
}
