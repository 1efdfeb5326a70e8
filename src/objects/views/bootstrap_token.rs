//! A Secret that holds a bootstrap token.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

use crate::objects::{Meta, Object, Resource, ResourceType, null_as_default};

/// A Secret of type [`BootstrapToken::TYPE`].
#[derive(Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct BootstrapToken {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub data: BootstrapTokenData,
}

/// Empty: not given.
#[derive(Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct BootstrapTokenData {
    #[serde(deserialize_with = "bytes")]
    pub token_id: Box<[u8]>,
    #[serde(deserialize_with = "bytes")]
    pub token_secret: Box<[u8]>,
    #[serde(deserialize_with = "bytes")]
    pub expiration: Box<[u8]>,
    #[serde(deserialize_with = "bytes")]
    pub usage_bootstrap_signing: Box<[u8]>,
}

impl BootstrapToken {
    pub const TYPE: &str = "bootstrap.kubernetes.io/token";
}

impl Resource for BootstrapToken {
    const RESOURCE: ResourceType = ResourceType::fixed("", "v1", "Secret", "secrets", true);
}

impl Object for BootstrapToken {
    fn meta(&self) -> &Meta {
        &self.meta
    }
}

/// Without the secret.
impl std::fmt::Debug for BootstrapToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BootstrapToken").field("meta", &self.meta).finish_non_exhaustive()
    }
}

/// Decodes base64; absent or null is empty.
fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Box<[u8]>, D::Error> {
    let text = Option::<Box<str>>::deserialize(from)?.unwrap_or_default();
    STANDARD.decode(&*text).map(Into::into).map_err(D::Error::custom)
}
