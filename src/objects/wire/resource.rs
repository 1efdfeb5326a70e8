//! Resource types: the kind of an object, and its names in the API.

#![warn(missing_docs)]

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, DeserializeOwned, Deserializer};

use crate::buffer_pool;
use crate::objects::Meta;
use crate::objects::wire::protobuf::{self, Message};

/// A served resource: the parts of its paths and its names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceType {
    /// Empty for the core group.
    pub group: Cow<'static, str>,
    /// `v1`, `v1beta1`.
    pub version: Cow<'static, str>,
    /// The kind in CamelCase, `Deployment`.
    pub kind: Cow<'static, str>,
    /// The plural, lower-case name in paths.
    pub plural: Cow<'static, str>,
    /// Whether its objects are in a namespace.
    pub namespaced: bool,
}

impl ResourceType {
    /// Makes the resource of these names, as a constant.
    pub const fn fixed(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        plural: &'static str,
        namespaced: bool,
    ) -> ResourceType {
        ResourceType {
            group: Cow::Borrowed(group),
            version: Cow::Borrowed(version),
            kind: Cow::Borrowed(kind),
            plural: Cow::Borrowed(plural),
            namespaced,
        }
    }

    /// Returns whether its group is one of Kubernetes' own: the core group, a name without a dot,
    /// or one below `k8s.io`, in which there are also groups of its community's custom resources.
    pub fn is_built_in(&self) -> bool {
        !self.group.contains('.') || self.group.ends_with(".k8s.io")
    }

    /// Returns `v1` or `apps/v1`: the version, with the group unless it is the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            return self.version.to_string();
        }
        format!("{}/{}", self.group, self.version)
    }
}

/// `deployments.apps`, as upstream's GroupResource prints.
impl fmt::Display for ResourceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.plural)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        Ok(())
    }
}

/// A Rust type of the objects of one resource.
pub trait Resource: Send + Sync + 'static {
    /// The resource whose objects the type is for.
    const RESOURCE: ResourceType;
}

/// An object that a cache can hold.
pub trait Object: DeserializeOwned + Send + Sync + 'static {
    /// The fields' numbers in protobuf; `None`: the object is read only from JSON.
    const MESSAGE: Option<&'static Message> = None;

    /// The metadata of the object.
    fn meta(&self) -> &Meta;
}

/// The encodings of objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// Text, as `kubectl -o json` shows it.
    #[default]
    Json,
    /// The message alone, without the envelope.
    Protobuf,
}

/// An object in the API server's encoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// The encoding.
    pub form: Form,
    /// The object, whole.
    pub bytes: Vec<u8>,
}

impl Encoded {
    /// An object in JSON.
    pub fn json(bytes: impl Into<Vec<u8>>) -> Encoded {
        Encoded { form: Form::Json, bytes: bytes.into() }
    }

    /// An object in protobuf, without the envelope.
    pub fn protobuf(bytes: impl Into<Vec<u8>>) -> Encoded {
        Encoded { form: Form::Protobuf, bytes: bytes.into() }
    }

    /// Decodes the object.
    ///
    /// # Errors
    /// When the bytes are not an object of this type.
    pub fn decode<T: Object>(&self) -> Result<T, DecodeError> {
        decode(self.form, T::MESSAGE, &self.bytes)
    }
}

impl Drop for Encoded {
    fn drop(&mut self) {
        buffer_pool::give(&mut self.bytes);
    }
}

/// The reason why bytes cannot be decoded as an object of a kind.
pub type DecodeError = Box<dyn std::error::Error + Send + Sync>;

/// Decodes any type from bytes, without copying them. `message`: its fields' numbers in protobuf.
pub fn decode<T: DeserializeOwned>(
    form: Form,
    message: Option<&'static Message>,
    bytes: &[u8],
) -> Result<T, DecodeError> {
    match (form, message) {
        (Form::Json, _) => Ok(serde_json::from_slice(bytes)?),
        (Form::Protobuf, Some(message)) => Ok(protobuf::from_slice(message, bytes)?),
        (Form::Protobuf, None) => Err("protobuf, which this kind is not read from".into()),
    }
}

/// `resource!(Pod, "", "v1", "pods", namespaced)`: implements [`Resource`] and [`Object`] for a
/// view with a field `meta`. After a comma, the view's [`Message`].
macro_rules! resource {
    ($type:ident, $group:literal, $version:literal, $plural:literal, $scope:ident
        $(, $message:ident)?) => {
        impl $crate::objects::Resource for $type {
            const RESOURCE: $crate::objects::ResourceType = $crate::objects::ResourceType::fixed(
                $group,
                $version,
                stringify!($type),
                $plural,
                $crate::objects::resource!(@$scope),
            );
        }
        impl $crate::objects::Object for $type {
            $(
                const MESSAGE: Option<&'static $crate::objects::protobuf::Message> =
                    Some(&$crate::objects::messages::$message);
            )?

            fn meta(&self) -> &$crate::objects::Meta {
                &self.meta
            }
        }
    };
    (@namespaced) => {
        true
    };
    (@cluster) => {
        false
    };
}
pub(crate) use resource;

/// Parses JSON as `serde_json::from_str` does, but with the decoder for bytes. Answers use that
/// decoder, so a type that is read in both ways is compiled once.
pub(crate) fn from_json<'de, T: Deserialize<'de>>(text: &'de str) -> serde_json::Result<T> {
    serde_json::from_slice(text.as_bytes())
}

/// Reads a field in which an explicit null is the same as an absent one. Used as
/// `#[serde(deserialize_with = "null_as_default")]`.
pub(crate) fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}
