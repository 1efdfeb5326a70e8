//! Kinds that are defined and removed while the manager runs: its controllers find them when they
//! next read discovery.

use kube_controller_manager::client::Delete;
use serde_json::json;

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
