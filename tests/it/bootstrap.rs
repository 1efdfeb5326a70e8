//! Bootstrap tokens: the signatures of cluster-info, and expiration.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use kube_controller_manager::client::{Delete, Patch};
use kube_controller_manager::objects::{BootstrapToken, ObjectKey, Resource, Timestamp};
use serde_json::{Value, json};

use crate::env::*;
use crate::kinds::*;

/// The Secret of the bootstrap token `ID.0123456789abcdef`.
pub fn token(id: &str, more: Value) -> Value {
    let mut data = json!({
        "token-id": id, "token-secret": "0123456789abcdef",
        "usage-bootstrap-signing": "true", "usage-bootstrap-authentication": "true",
    });
    data.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": BootstrapToken::TYPE,
        "metadata": { "name": format!("bootstrap-token-{id}"), "namespace": "kube-system" },
        "stringData": data,
    })
}

pub async fn create_token(env: &TestCluster, id: &str, more: Value) -> ObjectKey {
    let secrets = env.client.resource(&BootstrapToken::RESOURCE);
    secrets.create::<Value>("kube-system", &token(id, more)).await.expect("create");
    ObjectKey::new("kube-system", format!("bootstrap-token-{id}").as_str())
}

/// The flag with the controllers that kubeadm adds.
const CONTROLLERS: &str = "--controllers=*,bootstrap-signer-controller,token-cleaner-controller";

#[test]
fn cluster_info_is_signed_by_each_token_while_it_lasts() {
    everywhere("bootstrap", async |env| {
        let manager = env.manager("manager", &[CONTROLLERS]);
        let client = &env.client;
        let key = ObjectKey::new("kube-public", "cluster-info");
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "cluster-info" },
            "data": { "kubeconfig": "apiVersion: v1\n", "jws-kubeconfig-zzzzzz": "old", "x": "y" },
        });
        let maps = client.resource(&CONFIG_MAPS);
        match maps.create::<Value>("kube-public", &map).await {
            Err(error) if error.is_already_exists() => {
                maps.patch::<Value>(&key, &Patch::Merge(map)).await.expect("patch")
            }
            made => made.expect("create"),
        };
        let signature = |map: &Value, id: &str| {
            map["data"][format!("jws-kubeconfig-{id}")].as_str().map(str::to_owned)
        };
        wait_until_exists(env, &CONFIG_MAPS, &key, |map| signature(map, "zzzzzz").is_none()).await;

        let first = create_token(env, "abcdef", json!({})).await;
        let silent = json!({ "usage-bootstrap-signing": "false" });
        create_token(env, "silent", silent).await;
        create_token(env, "second", json!({})).await;
        let both =
            |map: &Value| signature(map, "abcdef").is_some() && signature(map, "second").is_some();
        let signed = wait_until_exists(env, &CONFIG_MAPS, &key, both).await;
        assert_eq!(signature(&signed, "silent"), None);
        assert_eq!(signed["data"]["x"], "y");
        let text = signature(&signed, "abcdef").unwrap();
        let (header, rest) = text.split_once("..").unwrap();
        let header = URL_SAFE_NO_PAD.decode(header).unwrap();
        assert_eq!(header, br#"{"alg":"HS256","kid":"abcdef"}"#);
        // An HMAC-SHA256 of "apiVersion: v1\n" by the token's secret.
        assert_eq!(URL_SAFE_NO_PAD.decode(rest).unwrap().len(), 32);

        // New content gets a new signature, and a deleted token has none.
        let patch = Patch::Merge(json!({ "data": { "kubeconfig": "apiVersion: v2\n" } }));
        maps.patch::<Value>(&key, &patch).await.expect("patch");
        let other = |map: &Value| signature(map, "abcdef").is_some_and(|new| new != text);
        wait_until_exists(env, &CONFIG_MAPS, &key, other).await;
        client.delete::<BootstrapToken>(&first, Delete::new()).await.expect("delete");
        let signed =
            wait_until_exists(env, &CONFIG_MAPS, &key, |map| signature(map, "abcdef").is_none())
                .await;
        assert!(signature(&signed, "second").is_some());

        // Expired tokens are deleted, and so are their signatures.
        let soon = |seconds: u64| env.clock.now() + Duration::from_secs(seconds);
        let ends = |at: Timestamp| json!({ "expiration": at.to_string() });
        let old = create_token(env, "oldold", json!({ "expiration": "sometime" })).await;
        let short = create_token(env, "shorty", ends(soon(3600))).await;
        let long = create_token(env, "longer", ends(soon(3600))).await;
        let last = json!({ "expiration": "9999-12-31T23:59:59Z" });
        let last = create_token(env, "lasted", last).await;
        wait_until_exists(env, &CONFIG_MAPS, &key, |map| signature(map, "shorty").is_some()).await;
        let end = soon(4);
        let patch = Patch::Merge(json!({ "stringData": ends(end) }));
        client.patch::<BootstrapToken>(&short, &patch).await.expect("patch");
        wait_until_deleted(env, &BootstrapToken::RESOURCE, &old).await;
        wait_until_deleted(env, &BootstrapToken::RESOURCE, &short).await;
        assert!(env.clock.now() >= end.truncate_to_secs(), "deleted too early");
        let signed =
            wait_until_exists(env, &CONFIG_MAPS, &key, |map| signature(map, "shorty").is_none())
                .await;
        assert!(signature(&signed, "longer").is_some() && signature(&signed, "lasted").is_some());
        // A token that is created just before its expiration is deleted as well.
        let brief = create_token(env, "briefy", ends(soon(1))).await;
        wait_until_deleted(env, &BootstrapToken::RESOURCE, &brief).await;
        client.get::<BootstrapToken>(&long).await.expect("the token that expires later");
        client.get::<BootstrapToken>(&last).await.expect("the token that lasts");
        drop(manager);
    });
}
