//! Authorization by roles and bindings.

use std::sync::Arc;

use kube_controller_manager::client::{Client, Delete, ListOptions, Result};
use kube_controller_manager::objects::{
    Namespace, ObjectKey, Pod, Resource, ResourceType, ServiceAccount,
};
use serde_json::{Value, json};

use crate::env::*;
use crate::kinds::{ACCESS_REVIEWS, BINDINGS, wait_until_deleted};
use crate::rollouts::populate_namespace;

const GROUP: &str = "rbac.authorization.k8s.io";
const ROLES: ResourceType = ResourceType::fixed(GROUP, "v1", "Role", "roles", true);
const ROLE_BINDINGS: ResourceType =
    ResourceType::fixed(GROUP, "v1", "RoleBinding", "rolebindings", true);
const CLUSTER_ROLES: ResourceType =
    ResourceType::fixed(GROUP, "v1", "ClusterRole", "clusterroles", false);
const SELF_ACCESS: ResourceType = ResourceType::fixed(
    "authorization.k8s.io",
    "v1",
    "SelfSubjectAccessReview",
    "selfsubjectaccessreviews",
    false,
);
const ROBOT: &str = "system:serviceaccount:default:robot";

/// The client of a new service account.
async fn service_account_client(env: &TestCluster) -> Client {
    let account =
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "robot" } });
    create(&env.client, account).await;
    let request =
        json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
    let tokens = env.client.resource(&ServiceAccount::RESOURCE).subresource("token");
    let answer: Value =
        tokens.create_for(&ObjectKey::new("default", "robot"), &request).await.expect("a token");
    let token = answer["status"]["token"].as_str().expect("a token").to_owned();
    let provider = Arc::new(move |_| {
        let token = token.clone();
        Box::pin(async { Ok(token) }) as futures_lite::future::Boxed<_>
    });
    env.client.with_tokens("robot", provider).expect("a client")
}

fn role(name: &str, rules: &Value) -> Value {
    json!({
        "apiVersion": ROLES.api_version(), "kind": ROLES.kind, "metadata": { "name": name },
        "rules": rules,
    })
}

fn binding(name: &str, kind: &str, role: &str) -> Value {
    json!({
        "apiVersion": ROLE_BINDINGS.api_version(), "kind": ROLE_BINDINGS.kind,
        "metadata": { "name": name }, "roleRef": { "apiGroup": GROUP, "kind": kind, "name": role },
        "subjects": [{ "kind": "ServiceAccount", "name": "robot", "namespace": "default" }],
    })
}

async fn make(client: &Client, resource: &ResourceType, object: &Value) -> Result<Value> {
    client.resource(resource).create("default", object).await
}

fn refusal<T: std::fmt::Debug>(result: Result<T>) -> String {
    result.unwrap_err().message().unwrap_or_default().to_owned()
}

async fn pods(client: &Client, namespace: Option<&str>) -> Result<()> {
    client.list::<Pod>(namespace, &ListOptions::default()).await.map(drop)
}

#[test]
fn a_binding_grants_its_role_and_no_more() {
    everywhere("rbac", async |env| {
        let robot = service_account_client(env).await;
        let cannot = |rest: &str| format!("User {ROBOT:?} cannot {rest}");
        let list = "list resource \"pods\" in API group \"\"";
        let here = format!("pods is forbidden: {}", cannot(list)) + " in the namespace \"default\"";
        assert_eq!(refusal(pods(&robot, Some("default")).await), here);

        let rules = json!([
            { "apiGroups": [""], "resources": ["pods"], "verbs": ["list"] },
            { "apiGroups": [GROUP], "resources": ["roles", "rolebindings"], "verbs": ["create"] },
        ]);
        make(&env.client, &ROLES, &role("lister", &rules)).await.expect("a role");
        make(&env.client, &ROLE_BINDINGS, &binding("lister", "Role", "lister")).await.unwrap();
        eventually(&env.clock, "it may list pods", || async {
            pods(&robot, Some("default")).await.map_err(|error| error.to_string())
        })
        .await;
        let elsewhere = here.replace("\"default\"", "\"kube-system\"");
        assert_eq!(refusal(pods(&robot, Some("kube-system")).await), elsewhere);
        let everywhere = format!("pods is forbidden: {} at the cluster scope", cannot(list));
        assert_eq!(refusal(pods(&robot, None).await), everywhere);
        let path = refusal(robot.get_path("/metrics").await);
        assert_eq!(path, format!("forbidden: {}", cannot("get path \"/metrics\"")));

        // Access reviews.
        let own = |verb: &str| {
            json!({
                "apiVersion": SELF_ACCESS.api_version(), "kind": SELF_ACCESS.kind,
                "spec": { "resourceAttributes": {
                    "namespace": "default", "verb": verb, "resource": "pods",
                } },
            })
        };
        let ask = async |verb: &str| {
            let answer: Value =
                robot.resource(&SELF_ACCESS).create("", &own(verb)).await.expect("an answer");
            answer["status"].clone()
        };
        let reason = "RBAC: allowed by RoleBinding \"lister/default\" of Role \"lister\" to ServiceAccount \"robot/default\"";
        assert_eq!(ask("list").await, json!({ "allowed": true, "reason": reason }));
        assert_eq!(ask("watch").await, json!({ "allowed": false }));
        let mut other = own("list");
        (other["kind"], other["spec"]["user"]) = ((*ACCESS_REVIEWS.kind).into(), "bob".into());
        let refused = refusal(robot.resource(&ACCESS_REVIEWS).create::<Value>("", &other).await);
        assert!(refused.starts_with("subjectaccessreviews.authorization.k8s.io is"), "{refused}");
        let answer: Value = env.client.resource(&ACCESS_REVIEWS).create("", &other).await.unwrap();
        assert_eq!(answer["status"], json!({ "allowed": false }));

        // It cannot grant rights that it does not hold.
        let groups = "[\"system:serviceaccounts\" \"system:serviceaccounts:default\" \"system:authenticated\"]";
        let grant = format!(
            "user {ROBOT:?} (groups={groups}) is attempting to grant RBAC permissions not currently held:\n"
        );
        let all = json!([{ "apiGroups": [""], "resources": ["pods", "secrets"],
            "verbs": ["list", "get"] }]);
        let missing = concat!(
            "{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"get\"]}\n",
            "{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"list\" \"get\"]}"
        );
        assert_eq!(
            refusal(make(&robot, &ROLES, &role("more", &all)).await),
            format!("roles.{GROUP} \"more\" is forbidden: {grant}{missing}")
        );
        let bound = refusal(
            make(&robot, &ROLE_BINDINGS, &binding("m", "ClusterRole", "cluster-admin")).await,
        );
        let missing = concat!(
            "{APIGroups:[\"*\"], Resources:[\"*\"], Verbs:[\"*\"]}\n",
            "{NonResourceURLs:[\"*\"], Verbs:[\"*\"]}"
        );
        assert_eq!(bound, format!("rolebindings.{GROUP} \"m\" is forbidden: {grant}{missing}"));
        let own = json!([{ "apiGroups": [""], "resources": ["pods"], "verbs": ["list"] }]);
        make(&robot, &ROLES, &role("own", &own)).await.expect("no more than it has");
        make(&robot, &ROLE_BINDINGS, &binding("own", "Role", "own")).await.expect("its own");
    });
}

#[test]
fn controllers_have_the_rights_they_need() {
    everywhere("rights", async |env| {
        let manager = env.manager("manager", &[]);
        // Requests of many controllers, any of which could be refused.
        populate_namespace(env, "busy").await;
        let namespace = ObjectKey::cluster("busy");
        env.client.delete::<Namespace>(&namespace, Delete::new()).await.expect("delete");
        wait_until_deleted(env, &Namespace::RESOURCE, &namespace).await;
        // Aggregated roles are filled.
        let admin = ObjectKey::cluster("admin");
        eventually(&env.clock, "the role of administrators has its rules", || async {
            let role = env.client.resource(&CLUSTER_ROLES).get::<Value>(&admin).await;
            let role = role.map_err(|error| error.to_string())?;
            let has =
                |resource: &str| role["rules"].to_string().contains(&format!("\"{resource}\""));
            let all = ["rolebindings", "pods/eviction", "resourcequotas"].into_iter().all(has);
            if all { Ok(()) } else { Err(role.to_string()) }
        })
        .await;
        let bound = env.client.resource(&BINDINGS);
        let bound: Value = bound
            .get(&ObjectKey::cluster("system:controller:deployment-controller"))
            .await
            .unwrap();
        assert_eq!(bound["subjects"][0]["name"], "deployment-controller");
        let log = std::fs::read_to_string(&manager.log).unwrap();
        let refused: Vec<&str> =
            log.lines().filter(|line| line.contains("is forbidden: User")).collect();
        assert!(refused.is_empty(), "{refused:#?}");
    });
}
