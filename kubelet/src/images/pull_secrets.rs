//! Credentials from the Secrets that a pod names for its images.
//! Upstream: `getPullSecretsForPod`, `pkg/credentialprovider/secrets`.

use super::Error;
use super::credentials::{Coordinates, Keyring, Source};
use crate::events;
use crate::objects::{Kind, PodObjects};
use crate::pod::{Pod, PodExt};

/// Reads the credentials of a pod's own Secrets. Those that are not there are left out, with an
/// event.
///
/// # Errors
/// The content of one is malformed.
pub(super) fn keyring(pod: &Pod, objects: &PodObjects) -> Result<Keyring, Error> {
    let (mut keyring, mut missing) = (Keyring::default(), Vec::new());
    let names = pod.spec().image_pull_secrets.iter().flatten().map(|secret| secret.name.as_str());
    // The API server lets empty names through.
    for name in names.filter(|name| !name.is_empty()) {
        let secret = match objects.get(Kind::Secret, pod.namespace(), name) {
            Ok(secret) => secret,
            Err(error) => {
                let pod = pod.display_name();
                log::info!("Unable to retrieve pull secret {name} of pod {pod}: {error}");
                missing.push(name);
                continue;
            }
        };
        let content = |key: &str| secret.data.get(key).filter(|content| !content.is_empty());
        let mut own = Keyring::default();
        let added = match secret.secret_type.as_str() {
            "kubernetes.io/dockerconfigjson" => {
                content(".dockerconfigjson").map_or(Ok(()), |content| own.add_config_json(content))
            }
            "kubernetes.io/dockercfg" => {
                content(".dockercfg").map_or(Ok(()), |content| own.add_dockercfg(content))
            }
            _ => Ok(()),
        };
        added.map_err(|source| Error::PullSecret { name: name.to_owned(), source })?;
        let coordinates = Coordinates {
            uid: secret.uid.clone(),
            namespace: pod.namespace().to_owned(),
            name: name.to_owned(),
        };
        keyring.add_all(Some(Source::Secret(coordinates)), own);
    }
    if !missing.is_empty() {
        let message = format!(
            "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not \
             succeed.",
            missing.join(", ")
        );
        events::warning(pod, None, "FailedToRetrieveImagePullSecret", message);
    }
    Ok(keyring)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::credentials::Credentials;
    use super::*;
    use crate::causes::chain;

    fn secret(name: &str, kind: &str, key: &str, content: &str) -> String {
        let metadata = json!({"name": name, "namespace": "n", "uid": format!("{name}-uid")});
        let data = json!({key: content});
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata});
        let mut secret = secret;
        secret["type"] = json!(kind);
        secret["stringData"] = data;
        secret.to_string()
    }

    #[test]
    fn secrets_of_both_types_are_read_and_others_left_out() {
        let pod = |names: &[&str]| -> Pod {
            let secrets: Vec<_> = names.iter().map(|name| json!({"name": name})).collect();
            let pod = json!({
                "metadata": {"namespace": "n"},
                "spec": {"containers": [], "imagePullSecrets": secrets},
            });
            serde_json::from_value(pod).expect("a pod")
        };
        let of_user = |user: &str| json!({"r.test": {"username": user, "password": "p"}});
        let (json, cfg) = ("kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg");
        let auths = json!({"auths": of_user("one")}).to_string();
        let secrets = [
            secret("json", json, ".dockerconfigjson", &auths),
            secret("cfg", cfg, ".dockercfg", &of_user("two").to_string()),
            secret("opaque", "Opaque", ".dockerconfigjson", &auths),
            secret("empty", json, ".dockerconfigjson", ""),
            secret("broken", cfg, ".dockercfg", "{s3cret"),
        ];
        let secrets: Vec<&str> = secrets.iter().map(String::as_str).collect();
        for (names, expected) in [
            (&["json", "cfg"][..], Ok("one n/json/json-uid, two n/cfg/cfg-uid")),
            (&["", "none", "opaque", "empty", "cfg"], Ok("two n/cfg/cfg-uid")),
            (&[], Ok("")),
            (&["json", "broken"], Err("pull secret \"broken\": malformed at line 1, column 2")),
        ] {
            let pod = pod(names);
            let users = keyring(&pod, &PodObjects::for_tests(&pod, &secrets)).map(|keyring| {
                let found = keyring.lookup("r.test/image");
                let user = |found: Credentials| match found.source.as_deref() {
                    Some(Source::Secret(Coordinates { uid, namespace, name })) => {
                        format!("{} {namespace}/{name}/{uid}", found.username)
                    }
                    other => format!("{other:?}"),
                };
                found.into_iter().map(user).collect::<Vec<_>>().join(", ")
            });
            let users = users.map_err(|error| chain(&error));
            assert_eq!(users.as_deref().map_err(String::as_str), expected, "{names:?}");
        }
    }
}
