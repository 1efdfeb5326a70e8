//! Objects that an API server maintains itself, and its selectors.

use kube_controller_manager::client::{Delete, ListOptions};
use kube_controller_manager::objects::{IPAddress, ObjectKey, Resource, ResourceType};
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
        let object = comes(env, &IPAddress::RESOURCE, &address, |_| true).await;
        let parent = json!({ "resource": "services", "namespace": "default", "name": "web" });
        assert_eq!(object["spec"]["parentRef"], parent);
        let web = ObjectKey::new("default", "web");
        env.client.resource(&SERVICES).delete(&web, Delete::new()).await.unwrap();
        goes(env, &IPAddress::RESOURCE, &address).await;

        // The server's own Service has endpoints with the port that it listens on.
        let own = ObjectKey::new("default", "kubernetes");
        let service = comes(env, &SERVICES, &own, |_| true).await;
        let port = &service["spec"]["ports"][0]["targetPort"];
        let endpoints = comes(env, &ENDPOINTS, &own, |_| true).await;
        assert_eq!(&endpoints["subsets"][0]["ports"][0]["port"], port);
        let slice = comes(env, &SLICES, &own, |_| true).await;
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
        let first = comes(env, &API_SERVICES, &key, available).await;
        assert_eq!(first["spec"]["groupPriorityMinimum"], 1000);
        env.client.resource(&API_SERVICES).delete(&key, Delete::new()).await.unwrap();
        let other = |service: &Value| service["metadata"]["uid"] != first["metadata"]["uid"];
        comes(env, &API_SERVICES, &key, other).await;
        let definition = ObjectKey::cluster("widgets.example.com");
        env.client.resource(&DEFINITIONS).delete(&definition, Delete::new()).await.unwrap();
        goes(env, &API_SERVICES, &key).await;
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
