//! Objects that API servers store and few clients write: strings that are not UTF-8, times at the
//! end of the calendar, and quantities with an exponent of more than 32 bits.

use kube_controller_manager::client::{Call, Delete, Patch};
use kube_controller_manager::objects::{Deployment, ObjectKey, Pod, Resource, ResourceType};
use sandbox::protobuf;
use serde_json::{Value, json};

use crate::env::*;
use crate::garbage::Objects;
use crate::kinds::*;
use crate::quota::{quota, uses};

/// Creates an object in `default` whose annotation `note` is the bytes `a\xff`, which only protobuf
/// can hold.
async fn create_odd(env: &TestCluster, resource: &ResourceType, mut object: Value) {
    object["apiVersion"] = resource.api_version().into();
    object["kind"] = (&*resource.kind).into();
    let note = format!("a{}", protobuf::raw_byte(0xff));
    object["metadata"]["annotations"] = json!({ "note": note });
    let body = protobuf::encode(&object).expect("a kind with protobuf");
    let path = format!("/api/v1/namespaces/default/{}", resource.plural);
    let create = Call::new("POST", path.clone()).bytes(protobuf::MEDIA_TYPE, body);
    env.client.send(&create).await.expect("create");

    let name = object["metadata"]["name"].as_str().expect("a name");
    let mut read = Call::new("GET", format!("{path}/{name}"));
    read.accept = protobuf::MEDIA_TYPE;
    let stored = env.client.send(&read).await.expect("the object");
    assert!(stored.windows(2).any(|bytes| bytes == b"a\xff"), "the server keeps the byte");
}

#[test]
fn a_string_that_is_not_utf8_stops_no_cache() {
    everywhere("odd-strings", async |env| {
        let (objects, maps) = (Objects(env), &CONFIG_MAPS);
        let pod = |name: &str| {
            json!({
                "metadata": { "name": name },
                "spec": {
                    "schedulerName": "none", "containers": [{ "name": "main", "image": "x:1" }],
                },
            })
        };
        // In the first lists ...
        create_odd(env, maps, json!({ "metadata": { "name": "first" } })).await;
        create_odd(env, &Pod::RESOURCE, pod("first")).await;
        let _manager = env.manager("manager", &[]);
        objects.collector_works("first").await;
        create(&env.client, deployment("web", 1, "web:1")).await;
        rolled_out(&env.client, &env.clock, "web").await;

        // ... and in the watches. Such an object is garbage-collected itself.
        let owner = objects.make(maps, "default/owner", json!({})).await;
        let owned = json!({ "metadata": { "name": "second", "ownerReferences": [owner] } });
        create_odd(env, maps, owned).await;
        create_odd(env, &Pod::RESOURCE, pod("second")).await;
        objects.delete(maps, "default/owner", Delete::background()).await;
        objects.gone(maps, "default/second").await;
        create(&env.client, deployment("next", 1, "web:1")).await;
        rolled_out(&env.client, &env.clock, "next").await;
        let left = objects.get(maps, "default/first").await;
        assert!(left.is_some_and(|meta| !meta.is_being_deleted()), "it has no owner");
    });
}

/// The generated types of statuses cannot hold the last day of the year 9999.
#[test]
fn a_time_at_the_end_of_the_calendar_stays_as_it_is() {
    const LAST: &str = "9999-12-31T23:59:59Z";
    everywhere("odd-times", async |env| {
        create(&env.client, deployment("web", 1, "web:1")).await;
        let foreign = json!({
            "type": "Foreign", "status": "True", "reason": "r", "message": "m",
            "lastUpdateTime": LAST, "lastTransitionTime": LAST,
        });
        let status = env.client.resource(&Deployment::RESOURCE).subresource("status");
        let key = ObjectKey::new("default", "web");
        let patch = Patch::Merge(json!({ "status": { "conditions": [foreign] } }));
        status.patch::<Value>(&key, &patch).await.expect("patch");

        let _manager = env.manager("manager", &[]);
        rolled_out(&env.client, &env.clock, "web").await;
        let written = wait_until_exists(env, &Deployment::RESOURCE, &key, |web| {
            web["status"]["conditions"].as_array().is_some_and(|found| found.len() > 1)
        })
        .await;
        let conditions = written["status"]["conditions"].as_array().expect("conditions");
        let kept = conditions.iter().find(|condition| condition["type"] == "Foreign");
        assert_eq!(kept, Some(&foreign));
    });
}

/// The API server uses the lower half of 64 bits of an exponent, and stores the text.
#[test]
fn pods_with_odd_quantities_are_counted() {
    everywhere("odd-quantities", async |env| {
        let (client, clock) = (&env.client, &env.clock);
        let hard = json!({ "hard": { "requests.cpu": "1e4294967299", "pods": "9" } });
        create(client, quota("odd", hard)).await;
        let mut web = deployment("web", 2, "web:1");
        web["spec"]["template"]["spec"]["containers"][0]["resources"] = json!({
            "requests": { "cpu": "1e4294967296", "memory": "1e-8589934586" },
        });
        let stored = create(client, web).await;
        let container = &stored["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["resources"]["requests"]["cpu"], "1e4294967296");

        let _manager = env.manager("manager", &[]);
        rolled_out(client, clock, "web").await;
        merge::<Deployment>(client, "web", json!({ "spec": { "replicas": 3 } })).await;
        rolled_out(client, clock, "web").await;
        uses(env, "odd", &[("pods", "3"), ("requests.cpu", "3")]).await;
        assert_eq!(env.pods().await.len(), 3);
    });
}
