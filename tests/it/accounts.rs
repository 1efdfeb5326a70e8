//! Service accounts, their tokens in Secrets, and the API server's CA in every namespace.

use std::time::Duration;

use kube_controller_manager::client::{Client, Config, Credentials, Delete, Patch};
use kube_controller_manager::clock::{Clock, FakeClock};
use kube_controller_manager::objects::{ObjectKey, Pod, Resource, ServiceAccount, TokenSecret};
use kube_controller_manager::task::spawn;
use serde_json::{Value, json};

use crate::env::*;
use crate::faults::cut_lists_and_watches;
use crate::kinds::*;

#[test]
fn every_namespace_has_its_account_and_the_ca() {
    everywhere("accounts", async |env| {
        let _manager = env.manager("manager", &[]);
        let client = &env.client;
        make_namespace(client, "later").await;
        let authority = std::fs::read_to_string(env.kubeconfig.with_file_name("ca.crt")).unwrap();
        let good = |map: &Value| map["data"] == json!({ "ca.crt": authority });
        for namespace in ["kube-system", "later"] {
            let account = ObjectKey::new(namespace, "default");
            let first = wait_until_exists(env, &ServiceAccount::RESOURCE, &account, |_| true).await;
            client.delete::<ServiceAccount>(&account, Delete::new()).await.unwrap();
            let other = |again: &Value| again["metadata"]["uid"] != first["metadata"]["uid"];
            wait_until_exists(env, &ServiceAccount::RESOURCE, &account, other).await;

            let key = ObjectKey::new(namespace, "kube-root-ca.crt");
            let map = wait_until_exists(env, &CONFIG_MAPS, &key, good).await;
            let about = &map["metadata"]["annotations"]["kubernetes.io/description"];
            assert!(about.as_str().unwrap().starts_with("Contains a CA bundle"), "{about}");
            let maps = client.resource(&CONFIG_MAPS);
            let wrong = json!({ "data": { "ca.crt": "wrong", "more": "" }, "metadata": {
                "labels": { "kept": "yes" }, "annotations": { "kubernetes.io/description": null },
            } });
            maps.patch::<Value>(&key, &Patch::Merge(wrong)).await.unwrap();
            let map = wait_until_exists(env, &CONFIG_MAPS, &key, good).await;
            assert_eq!(map["metadata"]["labels"]["kept"], "yes");
            maps.delete(&key, Delete::new()).await.unwrap();
            let fresh = |map: &Value| good(map) && map["metadata"]["labels"].is_null();
            wait_until_exists(env, &CONFIG_MAPS, &key, fresh).await;
        }
    });
}

/// The user that the API server sees behind `token`.
async fn user_of(env: &TestCluster, token: &str) -> Result<Value, String> {
    let mut config = Config::from_kubeconfig(&env.kubeconfig, None, None).unwrap();
    (config.tls.certificate, config.tls.key) = (None, None);
    config.credentials = Credentials::Token(token.to_owned());
    let client = Client::new(config, env.clock.clone()).unwrap();
    let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
    let answer = client.resource(&SELF_REVIEWS).create::<Value>("", &review).await;
    answer.map(|review| review["status"]["userInfo"].clone()).map_err(|error| error.to_string())
}

fn secret(name: &str, annotations: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": TokenSecret::TYPE,
        "metadata": { "name": name, "namespace": "default", "annotations": annotations },
    })
}

fn token_of(secret: &Value) -> Option<String> {
    use base64::Engine;
    let token = secret["data"]["token"].as_str()?;
    String::from_utf8(base64::engine::general_purpose::STANDARD.decode(token).ok()?).ok()
}

#[test]
fn a_token_secret_authenticates_until_its_account_goes() {
    everywhere("tokens", async |env| {
        let _manager = env.manager("manager", &[]);
        let client = &env.client;
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "robot" },
            "secrets": [{ "name": "referenced" }, { "name": "other" }],
        });
        let account = create(client, account).await;
        let name = json!({ TokenSecret::ACCOUNT_NAME: "robot" });
        create(client, secret("token", name.clone())).await;
        let key = ObjectKey::new("default", "token");
        let secrets = &TokenSecret::RESOURCE;
        let filled =
            wait_until_exists(env, secrets, &key, |secret| token_of(secret).is_some()).await;
        assert!(filled["data"]["ca.crt"].is_string());
        assert_eq!(filled["data"]["namespace"], "ZGVmYXVsdA==");
        let uid = &account["metadata"]["uid"];
        assert_eq!(filled["metadata"]["annotations"][TokenSecret::ACCOUNT_UID], *uid);
        let token = token_of(&filled).unwrap();
        let user = user_of(env, &token).await.unwrap();
        assert_eq!(
            (&user["username"], &user["uid"]),
            (&json!("system:serviceaccount:default:robot"), uid)
        );
        let used = |secret: &Value| {
            secret["metadata"]["labels"]["kubernetes.io/legacy-token-last-used"].is_string()
        };
        wait_until_exists(env, secrets, &key, used).await;

        // Removed data is put back.
        let patch = Patch::Merge(json!({ "data": { "token": null, "ca.crt": "b2xk" } }));
        client.patch::<TokenSecret>(&key, &patch).await.unwrap();
        let whole = |secret: &Value| {
            token_of(secret).is_some() && secret["data"]["ca.crt"] == filled["data"]["ca.crt"]
        };
        wait_until_exists(env, secrets, &key, whole).await;

        // A Secret for another account of that name is deleted.
        let stranger =
            json!({ TokenSecret::ACCOUNT_NAME: "robot", TokenSecret::ACCOUNT_UID: "other" });
        create(client, secret("stranger", stranger)).await;
        wait_until_deleted(env, secrets, &ObjectKey::new("default", "stranger")).await;

        // A deleted Secret is removed from the account's list.
        let referenced = ObjectKey::new("default", "referenced");
        create(client, secret("referenced", name)).await;
        wait_until_exists(env, secrets, &referenced, |secret| token_of(secret).is_some()).await;
        client.delete::<TokenSecret>(&referenced, Delete::new()).await.unwrap();
        let robot = ObjectKey::new("default", "robot");
        let left = |account: &Value| account["secrets"] == json!([{ "name": "other" }]);
        wait_until_exists(env, &ServiceAccount::RESOURCE, &robot, left).await;

        client.delete::<ServiceAccount>(&robot, Delete::new()).await.unwrap();
        // API servers cache the result of token authentication for some seconds.
        eventually(&env.clock, "the token is refused", || async {
            user_of(env, &token).await.map_or(Ok(()), |user| Err(user.to_string()))
        })
        .await;
        wait_until_deleted(env, secrets, &key).await;
    });
}

#[test]
fn no_token_is_logged() {
    everywhere("tokens-log", async |env| {
        let flags = ["-v=9", "--trace-object=Secret/default/token"];
        let manager = env.manager("manager", &flags);
        let client = &env.client;
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "robot" },
        });
        create(client, account).await;
        create(client, secret("token", json!({ TokenSecret::ACCOUNT_NAME: "robot" }))).await;
        let key = ObjectKey::new("default", "token");
        let filled = wait_until_exists(env, &TokenSecret::RESOURCE, &key, |secret| {
            token_of(secret).is_some()
        })
        .await;
        let token = token_of(&filled).unwrap();
        let log = eventually(&env.clock, "the write comes back", || async {
            let log = std::fs::read_to_string(&manager.log).unwrap();
            if log.contains("seen-again Secret default/token") { Ok(log) } else { Err(log) }
        })
        .await;
        // The token in the Secret, and the first letters of every token, for those of the manager
        // itself.
        for shown in [&*token, filled["data"]["token"].as_str().unwrap(), "eyJ", "ZXlK"] {
            let line = log.lines().find(|line| line.contains(shown));
            assert_eq!(line, None, "{shown}");
        }
    });
}

#[test]
fn an_account_missing_from_the_cache_alone_gets_its_token() {
    Env::run("tokens-live", async |env| {
        let _manager = env.manager("manager", &[]);
        let account = |name: &str| json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": name } });
        let token = |name: &str| secret(name, json!({ TokenSecret::ACCOUNT_NAME: name }));
        let filled = async |name: &str| {
            create(&env.client, account(name)).await;
            create(&env.client, token(name)).await;
            let key = ObjectKey::new("default", name);
            wait_until_exists(env, &TokenSecret::RESOURCE, &key, |it| token_of(it).is_some()).await;
        };
        filled("early").await;
        cut_lists_and_watches(env.cluster.sandbox.faults(), "serviceaccounts");
        filled("late").await;
    });
}

#[test]
fn an_unused_token_is_marked_and_deleted_a_year_later() {
    everywhere("cleaner", async |env| {
        const YEAR: Duration = Duration::from_secs(370 * 24 * 3600);
        let (client, secrets) = (&env.client, &TokenSecret::RESOURCE);
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "robot" },
            "secrets": [{ "name": "unused" }, { "name": "mounted" }],
        });
        create(client, account).await;
        for name in ["unused", "mounted", "manual"] {
            create(client, secret(name, json!({ TokenSecret::ACCOUNT_NAME: "robot" }))).await;
        }
        let volume = json!({ "name": "token", "secret": { "secretName": "mounted" } });
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "user" },
            "spec": {
                "schedulerName": "none", "volumes": [volume],
                "containers": [{ "name": "main", "image": "x:1" }],
            },
        });
        create(client, pod).await;
        let tracking =
            ObjectKey::new("kube-system", "kube-apiserver-legacy-service-account-token-tracking");
        wait_until_exists(env, &CONFIG_MAPS, &tracking, |map| map["data"]["since"].is_string())
            .await;

        // The API server tracks uses since today, a year before this clock.
        let clock = FakeClock::new(env.clock.now() + YEAR);
        let InProcess { cx, factory, stop } = InProcess::new(env, clock.clone(), env.options());
        let controller = controller_of("legacy-serviceaccount-token-cleaner-controller", &cx);
        factory.start(&stop);
        let running = spawn(controller.run(stop.clone()));
        let since = |secret: &Value| {
            let labels = &secret["metadata"]["labels"];
            labels["kubernetes.io/legacy-token-invalid-since"].as_str().map(str::to_owned)
        };
        let unused = ObjectKey::new("default", "unused");
        let marked =
            wait_until_exists(env, secrets, &unused, |secret| since(secret).is_some()).await;
        assert!(clock.now().to_string().starts_with(&since(&marked).unwrap()));
        eventually(&env.clock, "the token goes", || async {
            clock.advance(YEAR);
            match client.get::<TokenSecret>(&unused).await {
                Err(error) if error.is_not_found() => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        // The pass that marked the first token ended before that token was deleted: it has seen
        // these two.
        for name in ["mounted", "manual"] {
            let key = ObjectKey::new("default", name);
            let left = client.resource(secrets).get::<Value>(&key).await.expect("it stays");
            assert_eq!(since(&left), None, "{name} is not marked");
        }
        stop.stop();
        running.await;
        factory.shutdown().await;
    });
}

/// With the admission plugin ServiceAccount a pod needs its account, which the manager creates.
#[test]
fn pods_of_a_new_namespace_come_with_its_account() {
    Env::run_with_service_accounts("admission", async |env| {
        let _manager = env.manager("manager", &[]);
        make_namespace(&env.client, "fresh").await;
        let pod = json!({
            "metadata": { "name": "p" }, "spec": { "containers": [{ "name": "c", "image": "i:1" }] },
        });
        let created = eventually(&env.clock, "the pod is admitted", || async {
            let pods = env.client.resource(&Pod::RESOURCE);
            pods.create::<Value>("fresh", &pod).await.map_err(|error| error.to_string())
        })
        .await;
        assert_eq!(created["spec"]["serviceAccountName"], "default");
        let volume = &created["spec"]["volumes"][0];
        let mounts = &created["spec"]["containers"][0]["volumeMounts"];
        assert_eq!(mounts[0]["name"], volume["name"]);
        let sources = volume["projected"]["sources"].as_array().unwrap();
        let map = sources.iter().find_map(|source| source["configMap"]["name"].as_str());
        assert_eq!(map, Some("kube-root-ca.crt"));
        // And it runs.
        let running = |pod: &Value| pod["status"]["phase"] == "Running";
        wait_until_exists(env, &Pod::RESOURCE, &ObjectKey::new("fresh", "p"), running).await;
    });
}
