//! Checks the service account of a new pod, mounts its token and adds its pull secrets.
//! Upstream: `plugin/pkg/admission/serviceaccount`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::admission::{forbidden, is_pod};
use crate::kinds::Kind;
use crate::object::{generated_name, list, text};
use crate::request::call::Call;
use crate::request::payload::Payload;
use crate::status::ApiResult;
use crate::storage::registry::Registry;
use crate::storage::store::{Store, Stored};
use kube_controller_manager::clock::SharedClock;

const ACCOUNTS: &str = "serviceaccounts";
/// The account that a controller creates in every namespace.
const DEFAULT: &str = "default";
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const VOLUME: &str = "kube-api-access-";
const MIRROR: &str = "/metadata/annotations/kubernetes.io~1config.mirror";
/// How often the default account is polled, and the pause before each poll.
const POLLS: usize = 9;
const POLL_PERIOD: Duration = Duration::from_millis(150);

/// Returns the name of the service account that a pod uses.
fn account_name(pod: &Value) -> &str {
    match text(pod, "/spec/serviceAccountName") {
        "" => DEFAULT,
        name => name,
    }
}

/// Returns whether objects of this kind need an account: pods, where accounts are served.
pub fn is_needed(registry: &Registry, kind: &Kind) -> bool {
    is_pod(kind) && registry.find("", "v1", ACCOUNTS).is_some()
}

/// Returns whether a new pod needs the account `default`; a mirror pod has no account.
fn uses_default(pod: &Value) -> bool {
    pod.pointer(MIRROR).is_none() && account_name(pod) == DEFAULT
}

/// Waits until the service account `default` exists, if the new pod of `call` uses it. Gives up
/// after `POLLS` polls. The account comes from its controller, shortly after the namespace.
pub async fn await_default(store: &Store, clock: &SharedClock, call: &Call, payload: &Payload) {
    let missing = || store.get(ACCOUNTS, &call.key(DEFAULT)).is_none();
    if !missing() {
        return;
    }
    let uses_default = payload.object().is_ok_and(|pod| uses_default(&pod));
    if !uses_default || store.get("namespaces", &call.namespace).is_none() {
        return;
    }
    for _ in 0..POLLS {
        clock.sleep(POLL_PERIOD).await;
        if !missing() {
            return;
        }
    }
}

/// Returns the service account of a new pod, or `None` for a mirror pod, which has none. Errors:
/// 403 when it does not exist.
pub fn account_of(store: &Store, kind: &Kind, pod: &Value) -> ApiResult<Option<Arc<Stored>>> {
    if pod.pointer(MIRROR).is_some() {
        return match text(pod, "/spec/serviceAccountName") {
            "" => Ok(None),
            _ => Err(forbidden(kind, pod, "a mirror pod may not reference service accounts")),
        };
    }
    let (namespace, name) = (text(pod, "/metadata/namespace"), account_name(pod));
    let found = store.get(ACCOUNTS, &format!("{namespace}/{name}"));
    found.map(Some).ok_or_else(|| {
        let why = format!(
            "error looking up service account {namespace}/{name}: serviceaccount {name:?} not found"
        );
        forbidden(kind, pod, &why)
    })
}

/// Adds the token and pull secrets of its account to a new pod.
pub fn add_token_and_secrets(pod: &mut Value, account: &Value) {
    let name = account_name(pod).to_owned();
    let automount = [&pod["spec"], account]
        .into_iter()
        .find_map(|of| of.get("automountServiceAccountToken")?.as_bool());
    let spec = &mut pod["spec"];
    spec["serviceAccountName"] = name.as_str().into();
    spec["serviceAccount"] = name.into();
    if automount.unwrap_or(true) {
        mount_token(spec);
    }
    let secrets = list(account, "/imagePullSecrets");
    if list(spec, "/imagePullSecrets").is_empty() && !secrets.is_empty() {
        let names = secrets.iter().map(|secret| json!({ "name": secret["name"] }));
        spec["imagePullSecrets"] = names.collect();
    }
}

fn push(object: &mut Value, key: &str, item: Value) {
    match object[key].as_array_mut() {
        Some(items) => items.push(item),
        None => object[key] = json!([item]),
    }
}

/// Mounts the service account's token at `MOUNT_PATH` in each container that mounts nothing there.
/// Uses the pod's own token volume if it has one, else adds a projected volume to the pod.
fn mount_token(spec: &mut Value) {
    let volumes = list(spec, "/volumes").iter().map(|volume| text(volume, "/name"));
    let known = volumes.into_iter().find(|name| name.starts_with(VOLUME)).map(str::to_owned);
    let volume = known.clone().unwrap_or_else(|| generated_name(VOLUME));
    let mount = json!({ "name": volume, "readOnly": true, "mountPath": MOUNT_PATH });
    let mut mounted = false;
    for containers in ["initContainers", "containers"] {
        let containers = spec.get_mut(containers).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let mounts = list(container, "/volumeMounts");
            if mounts.iter().all(|mount| mount["mountPath"] != MOUNT_PATH) {
                push(container, "volumeMounts", mount.clone());
                mounted = true;
            }
        }
    }
    if !mounted || known.is_some() {
        return;
    }
    let namespace = json!({ "apiVersion": "v1", "fieldPath": "metadata.namespace" });
    let sources = json!([
        { "serviceAccountToken": { "expirationSeconds": 3607, "path": "token" } },
        { "configMap": {
            "name": "kube-root-ca.crt", "items": [{ "key": "ca.crt", "path": "ca.crt" }],
        } },
        { "downwardAPI": { "items": [{ "path": "namespace", "fieldRef": namespace }] } },
    ]);
    let projected = json!({ "defaultMode": 0o644, "sources": sources });
    push(spec, "volumes", json!({ "name": volume, "projected": projected }));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(spec: Value) -> Value {
        let mut pod = json!({ "spec": { "containers": [{ "name": "a" }, {
            "name": "b", "volumeMounts": [{ "name": "own", "mountPath": MOUNT_PATH }] }] } });
        pod["spec"].as_object_mut().unwrap().extend(spec.as_object().cloned().unwrap());
        pod
    }

    fn volumes(pod: &Value) -> usize {
        list(pod, "/spec/volumes").len()
    }

    #[test]
    fn a_pod_gets_the_token_and_secrets_of_its_account() {
        let account = json!({ "imagePullSecrets": [{ "name": "s" }] });
        let mut plain = pod(json!({}));
        add_token_and_secrets(&mut plain, &account);
        assert_eq!(plain["spec"]["serviceAccountName"], "default");
        assert_eq!(plain["spec"].get("initContainers"), None);
        assert_eq!(plain["spec"]["imagePullSecrets"], json!([{ "name": "s" }]));
        let volume = text(&plain, "/spec/volumes/0/name");
        assert_eq!((volume.len(), &volume[..VOLUME.len()]), (VOLUME.len() + 5, VOLUME));
        let mounts = |n: usize| list(&plain["spec"]["containers"][n], "/volumeMounts");
        assert_eq!(mounts(0)[0]["name"], volume);
        assert_eq!(mounts(1).len(), 1, "it has a mount of its own at that path");

        let mut own = pod(json!({ "imagePullSecrets": [{ "name": "t" }],
            "volumes": [{ "name": "kube-api-access-x" }] }));
        add_token_and_secrets(&mut own, &account);
        assert_eq!(own["spec"]["imagePullSecrets"], json!([{ "name": "t" }]));
        assert_eq!(volumes(&own), 1);
        let mount = &own["spec"]["containers"][0]["volumeMounts"][0];
        assert_eq!(mount["name"], "kube-api-access-x");
    }

    #[test]
    fn mirror_pods_and_pods_of_other_accounts_do_not_wait_for_the_default_one() {
        for (name, is_mirror, waits) in [
            (Value::Null, false, true),
            (json!("default"), false, true),
            (json!("other"), false, false),
            (Value::Null, true, false),
            (json!("default"), true, false),
        ] {
            let mut pod = pod(json!({ "serviceAccountName": name }));
            if is_mirror {
                pod["metadata"] = json!({ "annotations": { "kubernetes.io/config.mirror": "x" } });
            }
            assert_eq!(uses_default(&pod), waits, "{name} {is_mirror}");
        }
    }

    #[test]
    fn the_pod_decides_before_its_account_whether_a_token_is_mounted() {
        for (of_pod, of_account, mounted) in [
            (Value::Null, Value::Null, true),
            (Value::Null, json!(false), false),
            (json!(true), json!(false), true),
            (json!(false), json!(true), false),
        ] {
            let mut pod = pod(json!({ "automountServiceAccountToken": of_pod }));
            add_token_and_secrets(&mut pod, &json!({ "automountServiceAccountToken": of_account }));
            assert_eq!(volumes(&pod) == 1, mounted, "{of_pod} {of_account}");
        }
    }
}
