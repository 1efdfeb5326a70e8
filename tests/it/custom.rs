//! Kinds that are defined and removed while the manager runs: its controllers find them when they
//! next read discovery.

use kube_controller_manager::client::{Delete, Patch};
use kube_controller_manager::objects::{ObjectKey, ResourceType};
use sandbox::faults::Fault;
use serde_json::{Value, json};

use crate::env::*;
use crate::garbage::Objects;
use crate::kinds::*;
use crate::quota;

#[test]
fn custom_resources_are_collected_as_their_kind_comes_and_goes() {
    everywhere("garbage-custom", async |env| {
        // The discovery of one group always fails.
        register_unreachable_server(env, "away.test.io").await;
        let _manager = env.manager("manager", &[]);
        let (objects, maps) = (Objects(env), &CONFIG_MAPS);
        // The collector runs, with the resources served until now.
        objects.collector_works("start").await;

        for round in ["one", "two"] {
            serve_widgets(env).await;
            let key = |name: &str| format!("default/{round}-{name}");
            for owner in ["background", "orphan", "last"] {
                let parent = objects.make(&WIDGETS, &key(owner), json!({})).await;
                let owned = json!({ "ownerReferences": [parent] });
                objects.make(&WIDGETS, &key(&format!("{owner}-child")), owned.clone()).await;
                objects.make(maps, &key(&format!("{owner}-map")), owned).await;
            }
            objects.delete(&WIDGETS, &key("background"), Delete::background()).await;
            objects.delete(&WIDGETS, &key("orphan"), Delete::orphan()).await;
            objects.gone(&WIDGETS, &key("background-child")).await;
            objects.gone(maps, &key("background-map")).await;
            objects.gone(&WIDGETS, &key("orphan")).await;
            objects.collector_works(round).await;
            for (kind, name) in [(&WIDGETS, "orphan-child"), (maps, "orphan-map")] {
                let left = objects.get(kind, &key(name)).await.expect("an orphan stays");
                assert!(left.owners().is_empty() && !left.is_being_deleted(), "{left:?}");
            }
            // The objects of a removed kind are deleted, and so are their dependents.
            objects.delete(&DEFINITIONS, "widgets.example.com", Delete::new()).await;
            objects.gone(&DEFINITIONS, "widgets.example.com").await;
            objects.gone(maps, &key("last-map")).await;
        }
    });
}

#[test]
fn a_kind_is_counted_once_it_is_defined() {
    everywhere("quota-custom", async |env| {
        let spec = json!({ "hard": { "count/configmaps": "9", "count/widgets.example.com": "3" } });
        create(&env.client, quota::quota("all", spec)).await;
        let _manager = env.manager("manager", &[quota::ONLY, "--resource-quota-sync-period=1s"]);
        quota::uses(env, "all", &[("count/configmaps", "0")]).await;
        // Before this pass a real server refuses to create widgets.
        quota::define_widgets(env).await;
        let both = [("count/configmaps", "0"), ("count/widgets.example.com", "1")];
        quota::uses(env, "all", &both).await;
    });
}

/// Makes the lists of widgets fail: by a fault, or by a second version whose conversion fails.
async fn break_lists_of_widgets(env: &TestCluster) {
    quota::define_widgets(env).await;
    if let Some(faults) = &env.faults {
        for verb in ["list", "watch"] {
            faults.next(usize::MAX, verb, "widgets", Fault::code(500, None));
        }
        return;
    }
    let version = |name: &str, is_stored: bool| {
        json!({
            "name": name, "served": true, "storage": is_stored,
            "schema": { "openAPIV3Schema": { "type": "object" } },
        })
    };
    let patch = Patch::Merge(json!({ "spec": {
        "versions": [version("v1", true), version("v2", false)],
        "conversion": { "strategy": "Webhook", "webhook": {
            "clientConfig": { "url": "https://127.0.0.1:1/" }, "conversionReviewVersions": ["v1"],
        } },
    } }));
    let definitions = env.client.resource(&DEFINITIONS);
    let key = ObjectKey::cluster("widgets.example.com");
    definitions.patch::<Value>(&key, &patch).await.expect("patch");
    let second = ResourceType::fixed("example.com", "v2", "Widget", "widgets", true);
    eventually(&env.clock, "the second version cannot be listed", || async {
        let listed = env.client.resource(&second).list::<Value>(None, &Default::default()).await;
        match listed.map(drop) {
            Err(error) if error.code() == Some(500) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

#[test]
fn a_kind_that_cannot_be_listed_does_not_stop_the_counts_of_others() {
    everywhere("quota-unlisted", async |env| {
        break_lists_of_widgets(env).await;
        let spec = json!({ "hard": { "count/configmaps": "9" } });
        create(&env.client, quota::quota("all", spec)).await;
        let _manager = env.manager("manager", &[quota::ONLY]);
        quota::uses(env, "all", &[("count/configmaps", "0")]).await;
    });
}
