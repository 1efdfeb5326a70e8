//! Programs that want a token of the pod's service account. Upstream: `serviceAccountProvider`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube_controller_manager::objects::{ServiceAccount, is_label_key, label_key_fault};
use serde::Deserialize;

use super::super::credentials::{Coordinates, Source};
use super::{Error, TOKEN_VERSION};
use crate::objects::Objects;
use crate::pod::{Pod, PodExt};

/// What the configuration of a program says of tokens.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct TokenAttributes {
    #[serde(default)]
    service_account_token_audience: String,
    /// `ServiceAccount` or `Token`.
    #[serde(default)]
    cache_type: String,
    /// Whether the program is not run for pods without an account.
    require_service_account: Option<bool>,
    #[serde(default)]
    required_service_account_annotation_keys: Vec<String>,
    #[serde(default)]
    optional_service_account_annotation_keys: Vec<String>,
}

/// For whom a program is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// The node, or a pod without an account.
    Node,
    Account(Account),
}

/// The account of a pod, as a program gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) key: AccountKey,
    pub(super) token: Arc<str>,
}

/// What answers for an account are kept by. Upstream: `cacheKeyParams`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AccountKey {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) annotations: BTreeMap<String, String>,
    /// `None`: an answer holds for all tokens of the account.
    pub(super) token: Option<Arc<str>>,
}

impl Caller {
    pub(super) fn account(&self) -> Option<&Account> {
        match self {
            Caller::Node => None,
            Caller::Account(account) => Some(account),
        }
    }

    /// Returns the account as the source of credentials; `None`: they are those of the node.
    pub(super) fn source(&self) -> Option<Source> {
        let AccountKey { namespace, name, uid, .. } = &self.account()?.key;
        Some(Source::ServiceAccount(Coordinates {
            uid: uid.clone(),
            namespace: namespace.clone(),
            name: name.clone(),
        }))
    }

    /// Returns the key by which its answers are kept; `None`: they hold for all pods.
    pub(super) fn key(&self) -> Option<AccountKey> {
        self.account().map(|account| account.key.clone())
    }

    /// Returns whether a password is the caller's token, though the answer holds for later tokens
    /// too.
    pub(super) fn is_lasting_token(&self, password: &str) -> bool {
        let account = self.account().filter(|account| account.key.token.is_none());
        account.is_some_and(|account| *account.token == *password)
    }
}

impl TokenAttributes {
    /// Checks the attributes of a program whose requests have this version. Upstream:
    /// `validateCredentialProviderConfig`.
    pub(super) fn check(&self, version: &str) -> Result<(), Error> {
        let fault = |text: &str| Err(Error::TokenAttributes(text.to_owned()));
        let (required, optional) = (
            &self.required_service_account_annotation_keys,
            &self.optional_service_account_annotation_keys,
        );
        if self.service_account_token_audience.is_empty() {
            return fault("serviceAccountTokenAudience is required");
        }
        if version != TOKEN_VERSION {
            return fault(&format!("only supported for {TOKEN_VERSION} API version"));
        }
        match self.require_service_account {
            None => return fault("requireServiceAccount is required"),
            Some(false) if !required.is_empty() => {
                return fault(
                    "requireServiceAccount cannot be false when \
                     requiredServiceAccountAnnotationKeys is set",
                );
            }
            Some(_) => {}
        }
        let mut seen = BTreeSet::new();
        for key in required.iter().chain(optional) {
            // Case does not matter.
            let lower = key.to_lowercase();
            if !is_label_key(&lower) {
                return fault(&format!("annotation key {key:?}: {}", label_key_fault(&lower)));
            }
            if !seen.insert(key) {
                return fault(&format!("annotation key {key:?} is there twice"));
            }
        }
        match self.cache_type.as_str() {
            "ServiceAccount" | "Token" => Ok(()),
            _ => fault("cacheType is required, as ServiceAccount or Token"),
        }
    }

    /// Returns for whom the program is run when a pod's image is pulled; `None`: it is not run,
    /// since the pod has no account, or the account lacks an annotation.
    ///
    /// # Errors
    /// The account cannot be read, or its token cannot be fetched.
    pub(super) async fn caller(
        &self,
        pod: &Pod,
        objects: &Objects,
    ) -> Result<Option<Caller>, Error> {
        let name = pod.spec().service_account_name.as_deref().unwrap_or_default();
        if name.is_empty() {
            let needs_account = self.require_service_account == Some(true);
            return Ok((!needs_account).then_some(Caller::Node));
        }
        let account = objects.account(pod).await.map_err(Error::Account)?;
        let Some(annotations) = self.annotations(&account) else { return Ok(None) };
        let uid = account.meta.uid.to_string();
        let audience = &self.service_account_token_audience;
        let token = objects.registry_token(pod, audience, &uid).await.map_err(Error::Token)?;
        let key = AccountKey {
            namespace: pod.namespace().to_owned(),
            name: name.to_owned(),
            uid,
            annotations,
            token: (self.cache_type == "Token").then(|| token.clone()),
        };
        Ok(Some(Caller::Account(Account { key, token })))
    }

    /// Returns the annotations of an account that the program gets; `None`: a required one is
    /// absent.
    fn annotations(&self, account: &ServiceAccount) -> Option<BTreeMap<String, String>> {
        let value = |key: &String| {
            let value = account.meta.annotations.get(key)?;
            Some((key.clone(), value.to_owned()))
        };
        let required = self.required_service_account_annotation_keys.iter().map(value);
        let mut found: BTreeMap<_, _> = required.collect::<Option<_>>()?;
        found.extend(self.optional_service_account_annotation_keys.iter().filter_map(value));
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;
    use kube_controller_manager::clock::FakeClock;
    use kube_controller_manager::objects::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use crate::objects::folder::LocalObjects;

    fn attributes(more: Value) -> TokenAttributes {
        let mut all = json!({
            "serviceAccountTokenAudience": "registry", "cacheType": "Token",
            "requireServiceAccount": true,
        });
        for (field, value) in more.as_object().into_iter().flatten() {
            all[field] = value.clone();
        }
        serde_json::from_value(all).expect("attributes")
    }

    #[test]
    fn attributes_are_checked_as_upstream() {
        let (required, optional) =
            ("requiredServiceAccountAnnotationKeys", "optionalServiceAccountAnnotationKeys");
        for (more, fault) in [
            (json!({}), None),
            (json!({"cacheType": "ServiceAccount", required: ["A.io/b"], optional: ["c"]}), None),
            (json!({"serviceAccountTokenAudience": ""}), Some("serviceAccountTokenAudience is")),
            (json!({"requireServiceAccount": null}), Some("requireServiceAccount is required")),
            (
                json!({"requireServiceAccount": false, required: ["a"]}),
                Some("requireServiceAccount cannot be false"),
            ),
            (
                json!({required: ["a"], optional: ["a"]}),
                Some("annotation key \"a\" is there twice"),
            ),
            (json!({optional: ["a b"]}), Some("annotation key \"a b\": ")),
            (json!({"cacheType": ""}), Some("cacheType is required")),
            (json!({"cacheType": "Pod"}), Some("cacheType is required")),
        ] {
            let found = attributes(more.clone()).check(TOKEN_VERSION);
            let found = found.err().map(|error| error.to_string());
            let is_expected = match fault {
                Some(fault) => {
                    found.as_ref().is_some_and(|found| found.contains(&format!(": {fault}")))
                }
                None => found.is_none(),
            };
            assert!(is_expected, "{more}: {found:?}");
        }
        assert!(attributes(json!({})).check("credentialprovider.kubelet.k8s.io/v1beta1").is_err());
    }

    #[test]
    fn pods_without_an_account_are_the_nodes_or_left_out() {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let objects = Objects::new(LocalObjects::default(), clock);
        let standalone = "failed to get service account: cannot get ServiceAccounts when kubelet \
                          is in standalone mode";
        for (account, needs_account, expected) in [
            ("", true, Ok(None)),
            ("", false, Ok(Some(Caller::Node))),
            ("a", false, Err(standalone.to_owned())),
        ] {
            let pod = json!({"spec": {"serviceAccountName": account, "containers": []}});
            let pod: Pod = serde_json::from_value(pod).expect("a pod");
            let attributes = attributes(json!({"requireServiceAccount": needs_account}));
            let found = block_on(attributes.caller(&pod, &objects));
            let found = found.map_err(|error| error.to_string());
            assert_eq!(found, expected, "{account:?} {needs_account}");
        }
    }

    #[test]
    fn programs_get_the_annotations_that_they_name() {
        let account: ServiceAccount = serde_json::from_value(json!({
            "metadata": {"name": "a", "uid": "u", "annotations": {"role": "r", "zone": "z"}},
        }))
        .expect("an account");
        for (required, optional, expected) in [
            (json!([]), json!([]), Some(json!({}))),
            (json!(["role"]), json!(["zone", "none"]), Some(json!({"role": "r", "zone": "z"}))),
            (json!(["role", "none"]), json!([]), None),
        ] {
            let attributes = attributes(json!({
                "requiredServiceAccountAnnotationKeys": required,
                "optionalServiceAccountAnnotationKeys": optional,
            }));
            let found = attributes.annotations(&account).map(|found| json!(found));
            assert_eq!(found, expected, "{required} {optional}");
        }
    }
}
