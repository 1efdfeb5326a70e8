//! Objects that an API server maintains itself, and its selectors.

use std::collections::BTreeMap;

use base64::Engine;
use kube_controller_manager::client::{Client, Config, Delete, ListOptions};
use kube_controller_manager::objects::{IPAddress, ObjectKey, Resource, ResourceType};
use sandbox::demo;
use serde_json::{Value, json};

use crate::env::*;
use crate::kinds::*;

const SERVICES: ResourceType = ResourceType::fixed("", "v1", "Service", "services", true);
const ENDPOINTS: ResourceType = ResourceType::fixed("", "v1", "Endpoints", "endpoints", true);
const SLICES: ResourceType =
    ResourceType::fixed("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", true);

#[test]
fn a_services_address_is_an_object_while_the_service_exists() {
    everywhere("addresses", async |env| {
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
            "spec": { "ports": [{ "port": 80 }] },
        });
        let made = create(&env.client, service).await;
        let address = ObjectKey::cluster(made["spec"]["clusterIP"].as_str().unwrap());
        let object = wait_until_exists(env, &IPAddress::RESOURCE, &address, |_| true).await;
        let parent = json!({ "resource": "services", "namespace": "default", "name": "web" });
        assert_eq!(object["spec"]["parentRef"], parent);
        let web = ObjectKey::new("default", "web");
        env.client.resource(&SERVICES).delete(&web, Delete::new()).await.unwrap();
        wait_until_deleted(env, &IPAddress::RESOURCE, &address).await;

        // The server's own Service has endpoints with the port that it listens on.
        let own = ObjectKey::new("default", "kubernetes");
        let service = wait_until_exists(env, &SERVICES, &own, |_| true).await;
        let port = &service["spec"]["ports"][0]["targetPort"];
        let endpoints = wait_until_exists(env, &ENDPOINTS, &own, |_| true).await;
        assert_eq!(&endpoints["subsets"][0]["ports"][0]["port"], port);
        let slice = wait_until_exists(env, &SLICES, &own, |_| true).await;
        assert_eq!(&slice["ports"][0]["port"], port);
        assert_eq!(slice["endpoints"][0]["conditions"], json!({ "ready": true }));
    });
}

#[test]
fn a_definition_has_its_apiservice() {
    everywhere("registered", async |env| {
        serve_widgets(env).await;
        let key = ObjectKey::cluster("v1.example.com");
        let available = |service: &Value| service["status"]["conditions"][0]["reason"] == "Local";
        let first = wait_until_exists(env, &API_SERVICES, &key, available).await;
        assert_eq!(first["spec"]["groupPriorityMinimum"], 1000);
        env.client.resource(&API_SERVICES).delete(&key, Delete::new()).await.unwrap();
        let other = |service: &Value| service["metadata"]["uid"] != first["metadata"]["uid"];
        wait_until_exists(env, &API_SERVICES, &key, other).await;
        let definition = ObjectKey::cluster("widgets.example.com");
        env.client.resource(&DEFINITIONS).delete(&definition, Delete::new()).await.unwrap();
        wait_until_deleted(env, &API_SERVICES, &key).await;
    });
}

#[test]
fn label_selectors_compare_numbers() {
    everywhere("selectors", async |env| {
        for (name, n) in [("a", "5"), ("b", "12"), ("c", "many")] {
            let labels = json!({ "n": n });
            let map = json!({ "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": { "name": name, "labels": labels } });
            create(&env.client, map).await;
        }
        let select = async |selector: &str| {
            let options =
                ListOptions { label_selector: Some(selector.to_owned()), ..ListOptions::default() };
            let maps = env.client.resource(&CONFIG_MAPS);
            match maps.list::<Value>(Some("default"), &options).await {
                Ok(list) => {
                    let name = |map: &Value| map["metadata"]["name"].as_str().unwrap().to_owned();
                    list.items.iter().map(name).collect::<Vec<_>>().join(" ")
                }
                Err(error) => error.message().unwrap_or_default().to_owned(),
            }
        };
        for (selector, outcome) in [
            ("n>5", "b"),
            ("n<13", "a b"),
            ("n > 4, n < 12", "a"),
            ("n,n notin (5,12)", "c"),
            (
                "n>x",
                "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must be an integer",
            ),
            ("n,,m", "found ',', expected: identifier after ','"),
        ] {
            assert_eq!(select(selector).await, outcome, "{selector}");
        }
    });
}

#[test]
fn a_new_cluster_has_the_objects_that_components_read() {
    Env::run("birth", async |env| {
        let client = &env.client;
        let read = async |path: &str| -> Value {
            let bytes = client.get_path(path).await.unwrap_or_else(|e| panic!("{path}: {e}"));
            serde_json::from_slice(&bytes).expect("JSON")
        };
        let named = async |resource: &str| -> BTreeMap<String, Value> {
            let mut list = read(&format!("/apis/flowcontrol.apiserver.k8s.io/v1/{resource}")).await;
            let items = list["items"].as_array_mut().expect("items").drain(..);
            let name = |item: &Value| item["metadata"]["name"].as_str().unwrap().to_owned();
            items.map(|item| (name(&item), item)).collect()
        };
        let levels = named("prioritylevelconfigurations").await;
        let schemas = named("flowschemas").await;
        assert_eq!((levels.len(), schemas.len()), (8, 11));
        for (name, schema) in &schemas {
            let level = schema["spec"]["priorityLevelConfiguration"]["name"].as_str().unwrap();
            assert!(levels.contains_key(level), "{name}: {level}");
            assert_eq!(schema["status"]["conditions"][0]["status"], "False", "{name}");
        }

        let path = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
        let settings = read(path).await["data"].take();
        let names = settings["requestheader-allowed-names"].as_str().expect("names");
        assert_eq!(serde_json::from_str::<Vec<String>>(names).unwrap(), ["front-proxy-client"]);
        assert_ne!(settings["requestheader-client-ca-file"], settings["client-ca-file"]);

        // A node that joins reads this without credentials, and reaches the server by it.
        let path = "/api/v1/namespaces/kube-public/configmaps/cluster-info";
        let mut config = Config::from_kubeconfig(&env.kubeconfig, None, None).expect("a config");
        (config.tls.certificate, config.tls.key) = (None, None);
        let stranger = Client::new(config, env.clock.clone()).expect("a client");
        let info = stranger.get_path(path).await.expect("everyone may read it");
        let info: Value = serde_json::from_slice(&info).expect("JSON");
        let text = info["data"]["kubeconfig"].as_str().expect("a text");
        let known = &demo::parse("cluster-info", text).expect("YAML")[0]["clusters"][0]["cluster"];
        assert_eq!(known["server"], env.cluster.sandbox.client_config().server);
        let ca = known["certificate-authority-data"].as_str().expect("a CA");
        let ca = base64::engine::general_purpose::STANDARD.decode(ca).expect("base64");
        assert_eq!(ca, std::fs::read(env.kubeconfig.with_file_name("ca.crt")).unwrap());
    });
}
