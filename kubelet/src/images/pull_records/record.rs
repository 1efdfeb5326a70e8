//! What the files of pull records say, in upstream's form.
//! Upstream: `pkg/kubelet/apis/config`, `pullmanager/image_pull_manager.go`.

use std::collections::BTreeMap;

use kube_controller_manager::objects::Timestamp;
use serde::{Deserialize, Serialize};

use super::super::credentials::{Coordinates, Credentials, Source};
use super::folder::Content;

/// A record with this many Secrets gets no further ones from checks, only from pulls.
/// Upstream: `writeRecordWhileMatchingLimit`.
const MAX_SECRETS_OF_CHECKS: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    ImagePullIntent,
    ImagePulledRecord,
}

/// The versions that are read. Files of the last one are written again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Version {
    #[serde(rename = "kubelet.config.k8s.io/v1beta1")]
    V1beta1,
    #[serde(rename = "kubelet.config.k8s.io/v1alpha1")]
    V1alpha1,
}

/// The pull of an image is under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImagePullIntent {
    pub kind: Kind,
    pub api_version: Version,
    /// The image as pods state it.
    pub image: String,
}

impl ImagePullIntent {
    pub fn new(image: &str) -> ImagePullIntent {
        let (kind, api_version) = (Kind::ImagePullIntent, Version::V1beta1);
        ImagePullIntent { kind, api_version, image: image.to_owned() }
    }
}

impl Content for ImagePullIntent {
    fn image(&self) -> &str {
        &self.image
    }

    fn version(&mut self) -> &mut Version {
        &mut self.api_version
    }
}

/// The kubelet has pulled an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImagePulledRecord {
    pub kind: Kind,
    pub api_version: Version,
    /// In whole seconds, rounded down.
    pub last_updated_time: Timestamp,
    /// The image as the runtime names it.
    pub image_ref: String,
    /// By the image as pods state it, without tag and digest.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub credential_mapping: BTreeMap<String, ImagePullCredentials>,
}

impl ImagePulledRecord {
    /// Returns the record of an image that no credentials are known to have pulled.
    pub fn new(image_ref: &str) -> ImagePulledRecord {
        ImagePulledRecord {
            kind: Kind::ImagePulledRecord,
            api_version: Version::V1beta1,
            last_updated_time: Timestamp::default(),
            image_ref: image_ref.to_owned(),
            credential_mapping: BTreeMap::new(),
        }
    }
}

impl Content for ImagePulledRecord {
    fn image(&self) -> &str {
        &self.image_ref
    }

    fn version(&mut self) -> &mut Version {
        &mut self.api_version
    }
}

/// The credentials that have pulled an image. Where there are none, those of the next pod are
/// verified.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ImagePullCredentials {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kubernetes_secrets: Vec<ImagePullSecret>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kubernetes_service_accounts: Vec<Coordinates>,
    /// All pods of the node may use the image. Then the lists are empty.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub node_pods_accessible: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImagePullSecret {
    uid: String,
    namespace: String,
    name: String,
    /// Empty: it could not be computed.
    credential_hash: String,
}

impl ImagePullSecret {
    /// See [`Coordinates::key`].
    fn key(&self) -> (&str, &str, &str) {
        (&self.namespace, &self.name, &self.uid)
    }
}

impl ImagePullCredentials {
    /// Returns what is recorded of a pull with these credentials, or without any.
    /// Upstream: `trackedToImagePullCreds`.
    pub fn of(credentials: Option<&Credentials>) -> ImagePullCredentials {
        let mut recorded = ImagePullCredentials::default();
        match credentials.and_then(|found| Some((found, found.source.as_deref()?))) {
            None => recorded.node_pods_accessible = true,
            Some((found, Source::Secret(secret))) => {
                let Coordinates { uid, namespace, name } = secret.clone();
                let credential_hash = found.hash();
                let secret = ImagePullSecret { uid, namespace, name, credential_hash };
                recorded.kubernetes_secrets.push(secret);
            }
            Some((_, Source::ServiceAccount(account))) => {
                recorded.kubernetes_service_accounts.push(account.clone());
            }
        }
        recorded
    }

    pub fn is_empty(&self) -> bool {
        *self == ImagePullCredentials::default()
    }

    /// Adds the credentials of another pull; a Secret that is there gets its new hash. Returns
    /// whether anything has changed. Upstream: `pulledRecordMergeNewCreds`.
    pub fn add(&mut self, new: &ImagePullCredentials) -> bool {
        if self.node_pods_accessible {
            return false;
        }
        let before = self.clone();
        if new.node_pods_accessible {
            *self = new.clone();
        }
        for secret in &new.kubernetes_secrets {
            self.kubernetes_secrets.retain(|known| known.key() != secret.key());
            self.kubernetes_secrets.push(secret.clone());
        }
        self.kubernetes_secrets.sort_by(|a, b| a.key().cmp(&b.key()));
        let accounts = &mut self.kubernetes_service_accounts;
        accounts.extend_from_slice(&new.kubernetes_service_accounts);
        accounts.sort_by(|a, b| a.key().cmp(&b.key()));
        accounts.dedup();
        *self != before
    }

    /// Looks for a pod's credentials among these. The hash of another Secret suffices, and so does
    /// the same Secret with another content. Returns what has to be added for the next check;
    /// `None`: the pod has none of them. Upstream: `MustAttemptImagePull`.
    pub fn find(&self, of_pod: &[Credentials]) -> Option<ImagePullCredentials> {
        let has_room = self.kubernetes_secrets.len() < MAX_SECRETS_OF_CHECKS;
        for found in of_pod.iter().filter(|found| found.source.is_some()) {
            let own = ImagePullCredentials::of(Some(found));
            for secret in &own.kubernetes_secrets {
                for known in &self.kubernetes_secrets {
                    let hash = &known.credential_hash;
                    let has_hash = !hash.is_empty() && *hash == secret.credential_hash;
                    let is_same = known.key() == secret.key();
                    if has_hash && (is_same || !has_room) {
                        return Some(ImagePullCredentials::default());
                    }
                    if has_room && (has_hash || is_same) {
                        return Some(own);
                    }
                }
            }
        }
        // A pod has one service account.
        let account = of_pod.iter().find_map(|found| match found.source.as_deref() {
            Some(Source::ServiceAccount(account)) => Some(account),
            _ => None,
        });
        let is_known = |account| self.kubernetes_service_accounts.contains(account);
        account.is_some_and(is_known).then(ImagePullCredentials::default)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Returns a Secret's credentials, or a service account's: NAME:PASSWORD or NAME.
    fn credentials(text: &str) -> Credentials {
        let (name, password) = text.split_once(':').unwrap_or((text, ""));
        let (uid, namespace) = (format!("{name}-uid"), "n".to_owned());
        let coordinates = Coordinates { uid, namespace, name: name.to_owned() };
        let source = match password {
            "" => Source::ServiceAccount(coordinates),
            _ => Source::Secret(coordinates),
        };
        Credentials {
            username: "u".to_owned(),
            password: password.to_owned(),
            email: String::new(),
            source: Some(Arc::new(source)),
        }
    }

    /// Returns what is recorded of pulls with these credentials; `*`: with those of the node.
    fn recorded(texts: &str) -> ImagePullCredentials {
        let mut recorded = ImagePullCredentials::default();
        for text in texts.split_whitespace() {
            let own = (text != "*").then(|| credentials(text));
            recorded.add(&ImagePullCredentials::of(own.as_ref()));
        }
        recorded
    }

    #[test]
    fn credentials_are_added_once_and_sorted() {
        for (before, added, expected) in [
            ("", "b:1", Some("b:1")),
            ("b:1", "b:1", None),
            ("b:1", "b:2", Some("b:2")),
            ("b:1", "a:1", Some("a:1 b:1")),
            ("b:1", "y", Some("b:1 y")),
            ("z", "y", Some("y z")),
            ("y z", "y", None),
            ("b:1 y", "*", Some("*")),
            ("*", "b:1", None),
            ("*", "*", None),
        ] {
            let mut record = recorded(before);
            assert_eq!(record.add(&recorded(added)), expected.is_some(), "{before} + {added}");
            assert_eq!(record, recorded(expected.unwrap_or(before)), "{before} + {added}");
        }
        let sorted = recorded("b:1 a:1");
        let names: Vec<&str> = sorted.kubernetes_secrets.iter().map(|one| &*one.name).collect();
        assert_eq!(names, ["a", "b"]);
    }

    #[test]
    fn pods_use_the_images_of_equal_credentials_and_of_their_own_secrets() {
        let many: String = (0..100).map(|number| format!("s{number}:{number} ")).collect();
        let many = many.as_str();
        // What is recorded, what the pod has, and what is added if one of them is found.
        for (known, of_pod, added) in [
            ("a:1", "a:1", Some("")),
            ("a:1", "b:2 a:1", Some("")),
            ("a:1", "b:1", Some("b:1")),
            ("a:1", "a:2", Some("a:2")),
            ("a:1 b:2", "a:3 b:2", Some("a:3")),
            ("a:1", "b:2", None),
            ("a:1", "", None),
            ("a:1", "y", None),
            ("y", "y", Some("")),
            ("y", "z y", None),
            ("y", "a:1", None),
            ("a:1 y", "b:2 y", Some("")),
            // Without room for more.
            (many, "s7:7", Some("")),
            (many, "t:7", Some("")),
            (many, "s7:x", None),
            (many, "s7:8", Some("")),
        ] {
            let mut of_pod: Vec<_> = of_pod.split_whitespace().map(credentials).collect();
            // Those of the node do not count.
            of_pod.insert(0, Credentials { source: None, ..credentials("node:1") });
            let found = recorded(known).find(&of_pod);
            assert_eq!(found, added.map(recorded), "{known} {of_pod:?}");
        }
        let mut no_hash = recorded("a:1");
        no_hash.kubernetes_secrets[0].credential_hash.clear();
        assert_eq!(no_hash.find(&[credentials("b:1")]), None);
        assert_eq!(no_hash.find(&[credentials("a:1")]), Some(recorded("a:1")));
    }

    #[test]
    fn records_have_the_form_of_the_go_kubelet() {
        let begin = r#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","#;
        let middle = r#""lastUpdatedTime":"2026-05-04T03:02:01Z","imageRef":"sha256:0a""#;
        let mapping = concat!(
            r#","credentialMapping":{"r.io/a":{"kubernetesSecrets":[{"uid":"u","namespace":"n","#,
            r#""name":"s","credentialHash":"h"}],"kubernetesServiceAccounts":[{"uid":"v","#,
            r#""namespace":"n","name":"t"}]},"r.io/b":{"nodePodsAccessible":true},"r.io/c":{}}"#,
        );
        for mapping in ["", mapping] {
            let text = format!("{begin}{middle}{mapping}}}");
            let record: ImagePulledRecord = serde_json::from_str(&text).expect("a record");
            assert_eq!(record.image_ref, "sha256:0a");
            assert_eq!(serde_json::to_string(&record).expect("JSON"), text);
        }
        let text = format!("{begin}{middle}{mapping}}}");
        // As upstream, whose decoder is strict.
        for (from, to) in [
            ("v1beta1", "v2"),
            ("ImagePulledRecord", "Pod"),
            ("\"imageRef\"", "\"ref\""),
            ("{\"nodePods", "{\"newer\":1,\"nodePods"),
            ("\"namespace\":\"n\",\"name\":\"t\"", "\"namespace\":\"n\",\"name\":\"t\",\"x\":1"),
            ("}}}", "}}"),
        ] {
            let text = text.replacen(from, to, 1);
            assert!(serde_json::from_str::<ImagePulledRecord>(&text).is_err(), "{text}");
        }
    }
}
