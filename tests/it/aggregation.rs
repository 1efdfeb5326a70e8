//! Aggregated ClusterRoles.

use kube_controller_manager::client::Delete;
use kube_controller_manager::objects::{ClusterRole, ObjectKey, Resource};
use serde_json::{Value, json};

use crate::env::*;

#[test]
fn an_aggregated_role_follows_the_roles_it_selects() {
    everywhere("aggregation", async |env| {
        let _manager = env.manager("manager", &[]);
        let (client, clock) = (&env.client, &env.clock);
        let role = |name: &str, labels: Value, more: Value| {
            let mut role = json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                "metadata": { "name": name, "labels": labels },
            });
            role.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            role
        };
        let verbs = |verbs: &[&str]| {
            let rule =
                |verb: &&str| json!({ "apiGroups": [""], "resources": ["a"], "verbs": [verb] });
            json!({ "rules": verbs.iter().map(rule).collect::<Vec<Value>>() })
        };
        let make = |role: Value| async move {
            let roles = client.resource(&ClusterRole::RESOURCE);
            roles.create::<Value>("", &role).await.expect("create");
        };
        let select = |label: &str| json!({ "matchLabels": { "into": label } });
        let rule =
            json!({ "aggregationRule": { "clusterRoleSelectors": [select("x"), select("y")] } });
        make(role("all", json!({}), rule)).await;
        make(role("b", json!({ "into": "x" }), verbs(&["get", "list"]))).await;
        make(role("a", json!({ "into": "x" }), verbs(&["watch", "get"]))).await;
        make(role("0", json!({ "into": "y" }), verbs(&["patch"]))).await;
        make(role("other", json!({}), verbs(&["delete"]))).await;

        let holds = |wanted: &'static [&'static str]| async move {
            eventually(clock, &format!("the role holds {wanted:?}"), || async {
                let all: ClusterRole = client.get(&ObjectKey::cluster("all")).await.unwrap();
                let found: Vec<&str> =
                    all.rules.iter().map(|rule| rule.verbs[0].as_str()).collect();
                if found == wanted { Ok(()) } else { Err(format!("{found:?}")) }
            })
            .await;
        };
        holds(&["watch", "get", "list", "patch"]).await;
        client.delete::<ClusterRole>(&ObjectKey::cluster("a"), Delete::new()).await.unwrap();
        holds(&["get", "list", "patch"]).await;
        for name in ["b", "0"] {
            client.delete::<ClusterRole>(&ObjectKey::cluster(name), Delete::new()).await.unwrap();
        }
        holds(&[]).await;
    });
}
