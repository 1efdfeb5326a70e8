//! Shadow mode while another manager is in charge: the Go one where its binary is present, else
//! this one in another process.

use kube_controller_manager::client::{Call, Client, Config, Delete, ListOptions, Patch};
use kube_controller_manager::objects::{
    ObjectKey, Resource, ResourceType, ServiceAccount, TokenSecret,
};
use sandbox::cluster::{Manager, free_port};
use serde_json::{Value, json};

use super::handover::{PROBES, end, other_program, populate, settled, works};
use crate::env::*;
use crate::kinds::{BINDINGS, wait_until_deleted, wait_until_exists};

const ROLES: ResourceType =
    ResourceType::fixed("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", false);
const BUDGETS: ResourceType =
    ResourceType::fixed("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", true);
const QUOTAS: ResourceType = ResourceType::fixed("", "v1", "ResourceQuota", "resourcequotas", true);
const CONFIG_MAPS: ResourceType = ResourceType::fixed("", "v1", "ConfigMap", "configmaps", true);
const NAMESPACES: ResourceType = ResourceType::fixed("", "v1", "Namespace", "namespaces", false);
const REPLICA_SETS: ResourceType =
    ResourceType::fixed("apps", "v1", "ReplicaSet", "replicasets", true);

/// A shadow, and access to its report.
struct Watcher {
    manager: Manager,
    caller: Client,
}

/// For tests in which every write of the manager in charge is expected: on a busy machine one of the two
/// may be some seconds behind the other.
const LONG_GRACE: &str = "--shadow-grace=20s";

/// Starts a shadow that answers at `/debug/shadow` and waits until it compares.
async fn shadow(env: &TestCluster, flags: &[&str]) -> Watcher {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": "shadow" },
        "rules": [{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"] }],
    });
    env.client.resource(&ROLES).create::<Value>("", &role).await.expect("a role");
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": { "name": "shadow" },
        "subjects": [{
            "apiGroup": "rbac.authorization.k8s.io", "kind": "User",
            "name": "system:kube-controller-manager",
        }],
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "shadow",
        },
    });
    env.client.resource(&BINDINGS).create::<Value>("", &binding).await.expect("a binding");
    let port = free_port().expect("a port");
    let ca = env.kubeconfig.with_file_name("ca.crt");
    let own = [
        "--shadow".to_owned(),
        "--shadow-grace=5s".to_owned(),
        format!("--secure-port={port}"),
        format!("--client-ca-file={}", ca.display()),
        format!("--requestheader-client-ca-file={}", ca.display()),
        "--authorization-always-allow-paths=/debug/shadow".to_owned(),
    ];
    let flags: Vec<&str> = own.iter().map(String::as_str).chain(flags.iter().copied()).collect();
    let manager = env.manager("shadow", &flags);
    let mut config = Config::new(format!("https://127.0.0.1:{port}"));
    config.tls.insecure = true;
    let caller = Client::new(config, env.clock.clone()).expect("a client");
    let watcher = Watcher { manager, caller };
    eventually(&env.clock, "the shadow compares", || async {
        let log = std::fs::read_to_string(&watcher.manager.log).unwrap_or_default();
        match log.contains("shadow: comparing") {
            true => Ok(()),
            false => Err(log),
        }
    })
    .await;
    watcher
}

impl Watcher {
    async fn report(&self) -> Result<Value, String> {
        let body = self.caller.get_path("/debug/shadow").await.map_err(|e| e.to_string())?;
        serde_json::from_slice(&body).map_err(|error| error.to_string())
    }

    /// Waits for a report that `is_wanted` accepts.
    async fn reports(
        &self,
        env: &TestCluster,
        what: &str,
        is_wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        eventually(&env.clock, what, || async {
            let report = self.report().await?;
            if is_wanted(&report) { Ok(report) } else { Err(format!("{report:#}")) }
        })
        .await
    }

    /// Waits until nothing is pending or undecided.
    async fn decides(&self, env: &TestCluster) -> Value {
        self.reports(env, "all is decided", |report| {
            count(report, "pending") == 0 && report["undecidedWrites"] == 0
        })
        .await
    }
}

fn count(report: &Value, what: &str) -> usize {
    report[what].as_array().map_or(0, Vec::len)
}

fn is_clean(report: &Value) -> bool {
    ["outstanding", "contradicted", "unexpected"].iter().all(|what| count(report, what) == 0)
}

/// Starts the manager in charge and waits until it has created the objects of each namespace.
async fn incumbent(env: &TestCluster, flags: &[&str]) -> Manager {
    let mut all = vec!["--leader-elect=false".to_owned()];
    all.extend(flags.iter().map(|flag| (*flag).to_owned()));
    let manager = Manager::spawn(&other_program(), &env.kubeconfig, "incumbent", &all);
    let namespaces = env.client.resource(&NAMESPACES);
    let namespaces = namespaces.list::<Value>(None, &ListOptions::default()).await.expect("list");
    for namespace in &namespaces.items {
        let name = namespace["metadata"]["name"].as_str().expect("a name");
        let key = ObjectKey::new(name, "kube-root-ca.crt");
        wait_until_exists(env, &CONFIG_MAPS, &key, |map| map["data"]["ca.crt"].is_string()).await;
    }
    manager.expect("it starts")
}

/// A ReplicaSet whose second Pod a quota refuses.
async fn over_quota(env: &TestCluster) {
    make_namespace(&env.client, "tight").await;
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "one" },
        "spec": { "hard": { "pods": "1" } },
    });
    env.client.resource(&QUOTAS).create::<Value>("tight", &quota).await.expect("create");
    let one = ObjectKey::new("tight", "one");
    wait_until_exists(env, &QUOTAS, &one, |quota| quota["status"]["used"]["pods"] == "0").await;
    let template = json!({
        "metadata": { "labels": { "app": "over" } },
        "spec": { "containers": [{ "name": "main", "image": "one" }] },
    });
    let set = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": { "name": "over" },
        "spec": {
            "replicas": 2, "selector": { "matchLabels": { "app": "over" } }, "template": template,
        },
    });
    env.client.resource(&REPLICA_SETS).create::<Value>("tight", &set).await.expect("create");
}

#[test]
fn a_report_beside_a_manager_that_does_the_same_is_clean() {
    everywhere("shadow-clean", async |env| {
        make_namespace(&env.client, PROBES).await;
        let manager = incumbent(env, &[]).await;
        let watcher = shadow(env, &[LONG_GRACE]).await;
        populate(env).await;
        settled(env).await;
        works(env, 0, false).await;
        over_quota(env).await;
        let report = watcher
            .reports(env, "what is refused to both", |report| count(report, "refused") > 0)
            .await;
        assert_eq!(report["refused"][0]["name"], "over-*");
        env.client
            .resource(&NAMESPACES)
            .delete(&ObjectKey::cluster("tight"), Delete::new())
            .await
            .expect("delete");
        wait_until_deleted(env, &NAMESPACES, &ObjectKey::cluster("tight")).await;
        let report = watcher.decides(env).await;
        assert!(is_clean(&report), "{report:#}");
        assert!(report["expectedWrites"].as_u64() > Some(20), "{report:#}");
        let ended = watcher.manager.stop(&env.clock, PATIENCE).await;
        assert!(ended.expect("it ends").success());
        end(env, manager).await;
    });
}

#[test]
fn a_controller_that_the_manager_in_charge_lacks_is_reported() {
    everywhere("shadow-outstanding", async |env| {
        let manager = incumbent(env, &["--controllers=*,-disruption-controller"]).await;
        let watcher = shadow(env, &["--shadow-for=60s", LONG_GRACE]).await;
        let budget = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": "web" },
            "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "web" } } },
        });
        env.client.resource(&BUDGETS).create::<Value>("default", &budget).await.expect("create");
        create(&env.client, deployment("web", 2, "one")).await;
        let report = watcher
            .reports(env, "an outstanding intention", |report| count(report, "outstanding") > 0)
            .await;
        let found = &report["outstanding"][0];
        assert_eq!(count(&report, "outstanding"), 1, "{report:#}");
        assert_eq!(found["controller"], "disruption-controller");
        assert_eq!((&found["name"], &found["subresource"]), (&json!("web"), &json!("status")));
        assert_eq!((count(&report, "contradicted"), count(&report, "unexpected")), (0, 0));

        let Watcher { manager: mut shadow, .. } = watcher;
        let status = eventually(&env.clock, "the shadow ends", || {
            let ended = shadow.ended().expect("its status");
            async move { ended.ok_or_else(|| "it runs".to_owned()) }
        })
        .await;
        assert_eq!(status.code(), Some(1));
        let log = std::fs::read_to_string(&shadow.log).expect("its output");
        let line = "disruption-controller: update poddisruptionbudgets.policy/status default/web";
        assert!(log.contains(line) && log.contains("\nresult: not clean\n"), "{log}");
        end(env, manager).await;
    });
}

#[test]
fn a_controller_that_the_shadow_lacks_is_seen_by_its_writes() {
    everywhere("shadow-unexpected", async |env| {
        let manager = incumbent(env, &[]).await;
        let off = "--controllers=*,-root-ca-certificate-publisher-controller";
        let watcher = shadow(env, &[off, LONG_GRACE]).await;
        make_namespace(&env.client, "new").await;
        let report = watcher
            .reports(env, "an unexpected write", |report| count(report, "unexpected") > 0)
            .await;
        let found = &report["unexpected"][0];
        assert_eq!((&found["verb"], &found["resource"]), (&json!("create"), &json!("configmaps")));
        assert_eq!(
            (&found["namespace"], &found["name"]),
            (&json!("new"), &json!("kube-root-ca.crt"))
        );
        assert_eq!(count(&report, "unexpected"), 1, "{report:#}");
        assert_eq!((count(&report, "outstanding"), count(&report, "contradicted")), (0, 0));
        end(env, watcher.manager).await;
        end(env, manager).await;
    });
}

#[test]
fn a_value_that_the_manager_in_charge_writes_differently_is_reported() {
    everywhere("shadow-contradicted", async |env| {
        let manager = incumbent(env, &[]).await;
        let key = ObjectKey::new("default", "kube-root-ca.crt");
        let other = env.kubeconfig.with_file_name("other.crt");
        let text = std::fs::read_to_string(env.kubeconfig.with_file_name("ca.crt")).expect("read");
        std::fs::write(&other, format!("{text}\n{text}")).expect("written");
        let watcher = shadow(env, &[&format!("--root-ca-file={}", other.display())]).await;
        let of_default = |item: &&Value| item["namespace"] == "default";
        let find = |report: &Value, what: &str| {
            report[what].as_array().into_iter().flatten().find(of_default).cloned()
        };
        let report = watcher
            .reports(env, "an outstanding intention", |report| {
                find(report, "outstanding").is_some()
            })
            .await;
        let found = find(&report, "outstanding").expect("found");
        assert_eq!(found["controller"], "root-ca-certificate-publisher-controller");
        assert_eq!(found["changes"][0]["path"], "data.ca.crt");
        let patch = Patch::Merge(json!({ "data": { "ca.crt": "damaged" } }));
        env.client.resource(&CONFIG_MAPS).patch::<Value>(&key, &patch).await.expect("patch");
        watcher
            .reports(env, "a contradicted intention", |report| {
                find(report, "contradicted").is_some()
            })
            .await;
        end(env, watcher.manager).await;
        end(env, manager).await;
    });
}

/// A Secret that waits for a token, with a value that the shadow wants to replace.
fn known_secret(known: &str) -> Value {
    let applied = json!({ "stringData": { "ca.crt": known } }).to_string();
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": TokenSecret::TYPE,
        "metadata": { "name": "known", "namespace": "default", "annotations": {
            TokenSecret::ACCOUNT_NAME: "default",
            "kubectl.kubernetes.io/last-applied-configuration": applied,
        } },
        "stringData": { "ca.crt": known, "more": known },
    })
}

#[test]
fn no_secret_is_shown() {
    everywhere("shadow-secrets", async |env| {
        const KNOWN: &str = "hunter2-is-known";
        // Without a key it makes no tokens.
        let manager = incumbent(env, &["--service-account-private-key-file="]).await;
        let account = ObjectKey::new("default", "default");
        wait_until_exists(env, &ServiceAccount::RESOURCE, &account, |_| true).await;
        let watcher = shadow(env, &["-v=9", "--trace-object=Secret/default/known"]).await;
        create(&env.client, known_secret(KNOWN)).await;
        let paths = |report: &Value| -> Vec<String> {
            let items = report["outstanding"].as_array().into_iter().flatten();
            let mut ours = items.filter(|item| item["name"] == "known");
            let changes = ours.next().map(|item| item["changes"].clone()).unwrap_or_default();
            let changes = changes.as_array().into_iter().flatten();
            changes.filter_map(|change| change["path"].as_str().map(str::to_owned)).collect()
        };
        let report =
            watcher.reports(env, "the token is wanted", |report| paths(report).len() > 2).await;
        for path in ["data.ca.crt", "data.token"] {
            assert!(paths(&report).iter().any(|found| found == path), "{report:#}");
        }
        let mut call = Call::new("GET", "/debug/shadow");
        call.accept = "text/html";
        let page = watcher.caller.send(&call).await.expect("the page");
        let page = String::from_utf8(page).expect("a text");
        assert!(page.contains("<html"), "{page}");
        let log = watcher.manager.log.clone();
        end(env, watcher.manager).await;
        let log = std::fs::read_to_string(log).expect("its log and its report");
        assert!(log.contains("      data.ca.crt: \"digest:"), "the report has values");
        assert!(log.contains("received Secret default/known"), "the Secret is traced");
        // The value, the start of a token, and both in base64.
        for secret in [KNOWN, "aHVudGVyMi1pcy1rbm93", "eyJ", "ZXlK"] {
            for text in [&report.to_string(), &page, &log] {
                let line = text.lines().find(|line| line.contains(secret));
                assert_eq!(line, None, "{secret}");
            }
        }
        end(env, manager).await;
    });
}

#[test]
fn a_shadow_alone_sends_no_write() {
    Env::run("shadow-alone", async |env| {
        let watcher = shadow(env, &[]).await;
        create(&env.client, deployment("web", 2, "one")).await;
        let report = watcher
            .reports(env, "the Deployment's ReplicaSet is wanted", |report| {
                report["outstanding"].as_array().into_iter().flatten().any(|item| {
                    item["controller"] == "deployment-controller"
                        && item["verb"] == "create"
                        && item["resource"] == "replicasets.apps"
                })
            })
            .await;
        assert_eq!(count(&report, "unexpected"), 0, "{report:#}");
        let sets = env.client.resource(&REPLICA_SETS);
        let sets = sets.list::<Value>(None, &ListOptions::default()).await.expect("list");
        assert!(sets.items.is_empty());
        let sent = env.cluster.sandbox.traffic().of("kube-controller-manager");
        for (verb, count) in &sent {
            let reads = ["get", "list", "watch"].contains(verb);
            assert!(reads, "{verb}: {count:?}");
        }
        assert!(sent.contains_key("watch"), "{sent:?}");
        end(env, watcher.manager).await;
    });
}
