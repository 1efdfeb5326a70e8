//! The manager's secure port, with kubeadm's flags.

use kube_controller_manager::client::{Client, Config, Credentials, Delete};
use kube_controller_manager::clock::SystemClock;
use kube_controller_manager::objects::ObjectKey;
use sandbox::cluster::free_port;
use serde_json::{Value, json};

use crate::env::*;
use crate::kinds::{ACCESS_REVIEWS, ACCOUNTS, BINDINGS, CONFIG_MAPS};

/// The token of a service account with all rights.
pub async fn token(client: &Client) -> String {
    let key = ObjectKey::new("default", "prober");
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "prober" },
    });
    let accounts = client.resource(&ACCOUNTS);
    accounts.create::<Value>("default", &account).await.expect("an account");
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": { "name": "prober" },
        "subjects": [{ "kind": "ServiceAccount", "name": "prober", "namespace": "default" }],
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin",
        },
    });
    client.resource(&BINDINGS).create::<Value>("", &binding).await.expect("a binding");
    // A real authorizer learns of it by a watch.
    let user = "system:serviceaccount:default:prober";
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": { "user": user, "nonResourceAttributes": { "verb": "get", "path": "/any" } },
    });
    eventually(&SystemClock::shared(), "the binding is known", || async {
        let answer = client.resource(&ACCESS_REVIEWS).create::<Value>("", &review).await;
        let status = answer.expect("a review")["status"].take();
        if status["allowed"] == true { Ok(()) } else { Err(status.to_string()) }
    })
    .await;
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {},
    });
    let answer: Value =
        accounts.subresource("token").create_for(&key, &request).await.expect("a token");
    answer["status"]["token"].as_str().expect("a token").to_owned()
}

#[test]
fn only_probes_are_served_without_credentials() {
    everywhere("serving", async |site| {
        let port = free_port().expect("a port");
        let conf = site.kubeconfig.display();
        let ca = site.kubeconfig.with_file_name("ca.crt");
        let flags = [
            format!("--secure-port={port}"),
            format!("--authentication-kubeconfig={conf}"),
            format!("--authorization-kubeconfig={conf}"),
            format!("--client-ca-file={}", ca.display()),
            format!("--requestheader-client-ca-file={}", ca.display()),
            "--allocate-node-cidrs=true".into(),
            "--cluster-cidr=10.244.0.0/16".into(),
            "--service-cluster-ip-range=10.96.0.0/16".into(),
            "--cluster-name=kubernetes".into(),
            "--controllers=*,bootstrapsigner,tokencleaner".into(),
        ];
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let manager = site.candidate("manager", &flags);
        let caller = |credentials| {
            let mut config = Config::new(format!("https://127.0.0.1:{port}"));
            config.tls.insecure = true;
            config.credentials = credentials;
            Client::new(config, site.clock.clone()).expect("a client")
        };
        let anonymous = caller(Credentials::None);
        eventually(&site.clock, "the manager is healthy", || async {
            let ok = anonymous.get_path("/healthz").await.map_err(|error| error.to_string())?;
            if ok == b"ok" { Ok(()) } else { Err(String::from_utf8_lossy(&ok).into_owned()) }
        })
        .await;

        let unknown = caller(Credentials::Token("unknown".into()));
        let known = caller(Credentials::Token(token(&site.client).await));
        for (client, path, status) in [
            (&anonymous, "/healthz", 200),
            (&anonymous, "/livez", 200),
            (&anonymous, "/readyz", 200),
            (&anonymous, "/metrics", 403),
            (&anonymous, "/configz", 403),
            (&unknown, "/healthz", 401),
            (&known, "/metrics", 200),
            (&known, "/configz", 200),
            (&known, "/debug/pprof/heap", 404),
        ] {
            let got = match client.get_path(path).await {
                Ok(_) => 200,
                Err(error) => error.code().unwrap_or_else(|| panic!("{path}: {error}")),
            };
            assert_eq!(got, status, "{path}");
        }

        eventually(&site.clock, "all metrics are served", || async {
            let text = known.get_path("/metrics").await.map_err(|error| error.to_string())?;
            let text = String::from_utf8_lossy(&text).into_owned();
            let missing = [
                "leader_election_master_status{name=\"kube-controller-manager\"} 1",
                "workqueue_depth{name=\"deployment\"} ",
                "workqueue_work_duration_seconds_bucket{name=\"replicaset\",",
                "rest_client_requests_total{code=\"200\",",
                "process_cpu_seconds_total ",
                "process_resident_memory_bytes ",
                "kubernetes_build_info{",
                "kubernetes_feature_enabled{name=\"AllAlpha\",stage=\"ALPHA\"} 0",
                "authentication_attempts{result=\"error\"} ",
                "authentication_token_cache_request_total{status=\"hit\"} ",
                "authentication_token_cache_request_total{status=\"miss\"} ",
                "authentication_token_cache_request_duration_seconds_count{status=\"hit\"} ",
                "authentication_token_cache_fetch_total{status=\"ok\"} ",
                "authentication_token_cache_active_fetch_count{status=\"blocked\"} 0",
                "authentication_token_cache_active_fetch_count{status=\"in_flight\"} 0",
            ]
            .into_iter()
            .find(|line| !text.contains(&format!("\n{line}")));
            missing.map_or(Ok(()), |line| Err(format!("no {line}")))
        })
        .await;
        eventually(&site.clock, "the graph of owners is served", || async {
            let path = "/debug/controllers/garbage-collector-controller/graph";
            let text = known.get_path(path).await.map_err(|error| error.to_string())?;
            let text = String::from_utf8_lossy(&text).into_owned();
            if text.starts_with("strict digraph full {") { Ok(()) } else { Err(text) }
        })
        .await;
        let ended = manager.stop(&site.clock, PATIENCE).await;
        assert!(ended.expect("it ended").success());
    });
}

#[test]
fn who_may_call_is_looked_up_in_the_cluster() {
    everywhere("looked-up", async |site| {
        let port = free_port().expect("a port");
        let conf = site.kubeconfig.display();
        let flags = [
            format!("--secure-port={port}"),
            format!("--authentication-kubeconfig={conf}"),
            format!("--authorization-kubeconfig={conf}"),
        ];
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let manager = site.manager("manager", &flags);
        // The manager's own certificate, which has no right to read these paths.
        let itself = {
            let mut config =
                Config::from_kubeconfig(&site.kubeconfig, None, None).expect("a kubeconfig");
            config.host = format!("https://127.0.0.1:{port}");
            config.tls.ca = None;
            config.tls.insecure = true;
            Client::new(config, site.clock.clone()).expect("a client")
        };
        eventually(&site.clock, "a client certificate authenticates", || async {
            let Err(error) = itself.get_path("/metrics").await else {
                return Err("read without the right to".to_owned());
            };
            let error = error.to_string();
            let known = error.contains("User \"system:kube-controller-manager\"");
            if known { Ok(()) } else { Err(error) }
        })
        .await;
        drop(manager);
    });
}

/// On a new cluster the API server writes the settings of authentication once it serves.
#[test]
fn a_cluster_that_lacks_the_settings_of_authentication_keeps_no_manager_from_its_start() {
    Env::run("serving-unsettled", async |env| {
        let key = ObjectKey::new("kube-system", "extension-apiserver-authentication");
        let maps = env.client.resource(&CONFIG_MAPS);
        maps.delete(&key, Delete::new()).await.expect("delete");
        let port = free_port().expect("a port");
        let flags = [
            format!("--secure-port={port}"),
            format!("--authentication-kubeconfig={}", env.kubeconfig.display()),
        ];
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let manager = env.manager("manager", &flags);
        let mut config = Config::new(format!("https://127.0.0.1:{port}"));
        config.tls.insecure = true;
        config.credentials = Credentials::None;
        let anonymous = Client::new(config, env.clock.clone()).expect("a client");
        eventually(&env.clock, "the manager is healthy", || async {
            let ok = anonymous.get_path("/healthz").await.map_err(|error| error.to_string())?;
            if ok == b"ok" { Ok(()) } else { Err(String::from_utf8_lossy(&ok).into_owned()) }
        })
        .await;
        let status = manager.stop(&env.clock, PATIENCE).await.expect("a process");
        assert!(status.success(), "{status}");
    });
}
