//! The lean views of a ServiceAccount and of a Secret that holds its token.

use serde::{Deserialize, Deserializer};

use crate::objects::{Istr, Meta, Object, Resource, ResourceType, Uid, null_as_default, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServiceAccount {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    /// The names of the Secrets that the account refers to.
    #[serde(deserialize_with = "names")]
    pub secrets: Box<[Box<str>]>,
}

resource!(ServiceAccount, "", "v1", "serviceaccounts", namespaced);

impl ServiceAccount {
    /// Returns whether the account refers to the Secret of this name.
    pub fn names_secret(&self, name: &str) -> bool {
        self.secrets.iter().any(|secret| **secret == *name)
    }
}

/// Reads the names of a list of references.
fn names<'de, D: Deserializer<'de>>(from: D) -> Result<Box<[Box<str>]>, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Reference {
        #[serde(deserialize_with = "null_as_default")]
        name: Box<str>,
    }
    let references = Option::<Vec<Reference>>::deserialize(from)?.unwrap_or_default();
    Ok(references.into_iter().map(|reference| reference.name).collect())
}

/// A Secret of type [`TokenSecret::TYPE`]: its account, and which parts of its content exist. The
/// token itself is not kept.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct TokenSecret {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub data: TokenData,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct TokenData {
    /// The authority in base64, the same in every Secret of a cluster.
    #[serde(rename = "ca.crt")]
    pub ca: Istr,
    #[serde(rename = "namespace", deserialize_with = "is_given")]
    pub has_namespace: bool,
    #[serde(rename = "token", deserialize_with = "is_given")]
    pub has_token: bool,
}

impl Resource for TokenSecret {
    const RESOURCE: ResourceType = ResourceType::fixed("", "v1", "Secret", "secrets", true);
}

impl Object for TokenSecret {
    fn meta(&self) -> &Meta {
        &self.meta
    }
}

impl TokenSecret {
    pub const TYPE: &str = "kubernetes.io/service-account-token";
    /// The annotations that name the account.
    pub const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";
    pub const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";

    /// Returns the name of the account; empty without the annotation.
    pub fn account_name(&self) -> &str {
        self.meta.annotations.get(TokenSecret::ACCOUNT_NAME).unwrap_or_default()
    }

    /// Returns the uid of the account; empty without the annotation.
    pub fn account_uid(&self) -> Uid {
        self.meta.annotations.get(TokenSecret::ACCOUNT_UID).map(Uid::new).unwrap_or_default()
    }

    /// Returns whether the Secret is for the account of this name and, if the Secret has a uid, of
    /// this uid.
    /// Upstream: `serviceaccount.IsServiceAccountToken`.
    pub fn is_for(&self, name: &str, uid: &Uid) -> bool {
        let wanted = self.account_uid();
        self.account_name() == name && (wanted.is_empty() || wanted == *uid)
    }
}

/// Reads whether a string is present and not empty, without copying it.
fn is_given<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    struct Given;
    impl serde::de::Visitor<'_> for Given {
        type Value = bool;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a string")
        }
        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<bool, E> {
            Ok(!text.is_empty())
        }
        fn visit_unit<E: serde::de::Error>(self) -> Result<bool, E> {
            Ok(false)
        }
    }
    from.deserialize_any(Given)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_token_secret_keeps_what_is_there_and_not_the_token() {
        let secret: TokenSecret = serde_json::from_value(json!({
            "metadata": {"name": "s", "annotations": {
                TokenSecret::ACCOUNT_NAME: "a", TokenSecret::ACCOUNT_UID: "1",
            }},
            "data": {"token": "c2VjcmV0", "ca.crt": "Y2E=", "namespace": "", "other": "eA=="},
        }))
        .unwrap();
        let data = TokenData { ca: "Y2E=".into(), has_namespace: false, has_token: true };
        assert_eq!(secret.data, data);
        let is_for = |name, uid| secret.is_for(name, &Uid::new(uid));
        assert_eq!((is_for("a", "1"), is_for("a", "2"), is_for("b", "1")), (true, false, false));
        let open: TokenSecret = serde_json::from_value(json!({
            "metadata": {"annotations": {TokenSecret::ACCOUNT_NAME: "a"}},
        }))
        .unwrap();
        assert!(open.is_for("a", &Uid::new("7")));
    }
}
