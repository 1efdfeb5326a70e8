//! Object metadata as the cache holds it.

#![warn(missing_docs)]

use std::fmt;
use std::hash::Hash;
use std::sync::LazyLock;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::objects::values::intern::{Interned, Pool};
use crate::objects::wire::protobuf::Message;
use crate::objects::{
    ArcStr, Encoded, Istr, Labels, Object, ObjectKey, OwnerReference, Resource, Seconds, Timestamp,
    Uid, decode, messages, null_as_default,
};

/// `metav1.ObjectMeta` without `managedFields` and `selfLink`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta {
    /// The name, unique in the namespace.
    #[serde(skip_serializing_if = "str::is_empty", deserialize_with = "name")]
    pub name: ArcStr,
    /// The prefix from which the server made the name; mostly empty.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub generate_name: Istr,
    /// Empty for an object of the whole cluster.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub namespace: Istr,
    /// Different for each object, also of one that is created again under its name.
    #[serde(skip_serializing_if = "Uid::is_empty", deserialize_with = "null_as_default")]
    pub uid: Uid,
    /// Comparable within one resource; 0 when absent.
    #[serde(skip_serializing_if = "is_zero", with = "resource_version")]
    pub resource_version: u64,
    /// Counts changes of the spec; 0 for kinds that do not count them.
    #[serde(skip_serializing_if = "is_zero_i64", deserialize_with = "null_as_default")]
    pub generation: i64,
    /// When the server created it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<Timestamp>,
    /// When it is to be gone at the latest; `None`: it is not being deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<Timestamp>,
    /// The grace period that was granted for the deletion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_grace_period_seconds: Option<Seconds>,
    /// The labels, by which selectors find it.
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// The annotations.
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub annotations: Labels,
    /// One copy for all dependents of the same owners.
    #[serde(skip_serializing_if = "none_or_empty", deserialize_with = "owner_references")]
    pub owner_references: Option<Interned<[OwnerReference]>>,
    /// The names of finalizers: while there is one, the object is not removed.
    #[serde(skip_serializing_if = "none_or_empty", deserialize_with = "finalizer_list")]
    pub finalizers: Option<Interned<[Istr]>>,
}

impl Meta {
    /// Namespace and name.
    pub fn key(&self) -> ObjectKey {
        ObjectKey { namespace: self.namespace.clone(), name: self.name.clone() }
    }

    /// Whether the object was deleted, and stays until its finalizers are removed or its grace
    /// period ends.
    pub fn is_being_deleted(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    /// All owner references.
    pub fn owners(&self) -> &[OwnerReference] {
        self.owner_references.as_deref().unwrap_or_default()
    }

    /// The names of all finalizers.
    pub fn finalizers(&self) -> &[Istr] {
        self.finalizers.as_deref().unwrap_or_default()
    }

    /// Whether the finalizer of this name is set. Upstream: `controllerutil.ContainsFinalizer`.
    pub fn has_finalizer(&self, name: &str) -> bool {
        self.finalizers().iter().any(|finalizer| finalizer == name)
    }

    /// The one owner that manages this object. Upstream: `metav1.GetControllerOf`.
    pub fn controller(&self) -> Option<&OwnerReference> {
        self.owners().iter().find(|owner| owner.is_controller())
    }

    /// Whether the object of this uid is the controller. Upstream: `metav1.IsControlledBy`.
    pub fn is_controlled_by(&self, uid: &Uid) -> bool {
        self.controller().is_some_and(|owner| owner.uid == *uid)
    }

    /// Returns a reference that makes the object of kind `T` with this metadata the controller of
    /// the object that carries the reference.
    /// Upstream: `metav1.NewControllerRef`.
    pub fn controller_ref<T: Resource>(&self) -> OwnerReference {
        OwnerReference {
            api_version: T::RESOURCE.api_version().into(),
            kind: Istr::new(&T::RESOURCE.kind),
            name: Istr::new(&self.name),
            uid: self.uid.clone(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }
}

/// The part of the answer to a write that the writer reads.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Written {
    /// The new metadata.
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: WrittenMeta,
}

impl Written {
    /// The fields' numbers in protobuf.
    pub const MESSAGE: &'static Message = &messages::PARTIAL;
}

/// A part of [`Meta`]; decoding all of it costs three times as much.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WrittenMeta {
    /// The object's name, which the server may have made.
    #[serde(deserialize_with = "name")]
    pub name: ArcStr,
    /// The version that the write made.
    #[serde(with = "resource_version")]
    pub resource_version: u64,
}

/// The identity and version of an object, also of one whose other fields cannot be decoded.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Identity {
    /// The object's name.
    #[serde(deserialize_with = "name")]
    pub name: ArcStr,
    /// Empty for an object of the whole cluster.
    pub namespace: Istr,
    /// Its uid.
    #[serde(deserialize_with = "null_as_default")]
    pub uid: Uid,
    /// 0 when it is absent or not decimal.
    #[serde(deserialize_with = "version_or_zero")]
    pub resource_version: u64,
}

impl Identity {
    /// Returns the identity of an object of any kind; `None` when even its name cannot be read.
    pub fn decode(object: &Encoded) -> Option<Identity> {
        #[derive(Deserialize)]
        struct Identified {
            metadata: Identity,
        }
        let found = decode::<Identified>(object.form, Some(&messages::PARTIAL), &object.bytes);
        found.ok().map(|found| found.metadata).filter(|known| !known.name.is_empty())
    }

    /// Namespace and name.
    pub fn key(&self) -> ObjectKey {
        ObjectKey { namespace: self.namespace.clone(), name: self.name.clone() }
    }
}

/// Reads a version; 0 when it is absent or not decimal.
fn version_or_zero<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let text = Option::<Box<str>>::deserialize(from)?;
    Ok(text.and_then(|text| text.parse().ok()).unwrap_or(0))
}

/// A view whose `meta` holds all metadata, so that a request that replaces the object's status, and
/// with it its metadata, loses nothing.
pub trait WholeMeta: Object + Resource {}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_zero_i64(number: &i64) -> bool {
    *number == 0
}

fn none_or_empty<T>(list: &Option<Interned<[T]>>) -> bool {
    list.as_ref().is_none_or(|list| list.is_empty())
}

/// Decodes a name, which may be null, with a single allocation.
fn name<'de, D: Deserializer<'de>>(from: D) -> Result<ArcStr, D::Error> {
    struct Text;
    impl Visitor<'_> for Text {
        type Value = ArcStr;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a name")
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<ArcStr, E> {
            Ok(text.into())
        }
        fn visit_unit<E: Error>(self) -> Result<ArcStr, E> {
            Ok(ArcStr::new())
        }
    }
    from.deserialize_any(Text)
}

fn owner_references<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Interned<[OwnerReference]>>, D::Error> {
    static OWNERS: LazyLock<Pool<Interned<[OwnerReference]>>> = LazyLock::new(Pool::new);
    intern_list(&OWNERS, from)
}

fn finalizer_list<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Interned<[Istr]>>, D::Error> {
    static FINALIZERS: LazyLock<Pool<Interned<[Istr]>>> = LazyLock::new(Pool::new);
    intern_list(&FINALIZERS, from)
}

/// Reads a list and returns the pool's copy of it; `None` for an empty one.
fn intern_list<'de, T: Deserialize<'de> + Eq + Hash, D: Deserializer<'de>>(
    pool: &Pool<Interned<[T]>>,
    from: D,
) -> Result<Option<Interned<[T]>>, D::Error> {
    let list = Option::<Vec<T>>::deserialize(from)?.unwrap_or_default();
    Ok((!list.is_empty()).then(|| pool.intern(list)))
}

mod resource_version {
    use serde::de::{Deserializer, Error, Visitor};
    use serde::ser::Serializer;

    pub fn serialize<S: Serializer>(version: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(version)
    }

    /// Reads a decimal version; 0 when it is absent or empty.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        struct Decimal;
        impl Visitor<'_> for Decimal {
            type Value = u64;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a decimal resourceVersion")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
                if text.is_empty() {
                    return Ok(0);
                }
                text.parse()
                    .map_err(|_| E::custom(format!("resourceVersion {text:?}: not decimal")))
            }
            fn visit_unit<E: Error>(self) -> Result<u64, E> {
                Ok(0)
            }
        }
        from.deserialize_any(Decimal)
    }
}

/// Only the metadata of an object of any kind. Upstream: `metav1.PartialObjectMetadata`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PartialObjectMetadata {
    /// The metadata.
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
}

impl Object for PartialObjectMetadata {
    const MESSAGE: Option<&'static Message> = Some(&messages::PARTIAL);

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_identified_by_its_metadata_alone() {
        let known = |name: &str, version| {
            let (name, namespace) = (name.into(), "a".into());
            Some(Identity { name, namespace, uid: "u".into(), resource_version: version })
        };
        let json = |text: &str| Identity::decode(&Encoded::json(text));
        for (rest, version) in [
            (r#""resourceVersion":"7","generation":"no number"}}"#, 7),
            (r#""resourceVersion":"7","labels":[],"ownerReferences":1},"spec":[1]}"#, 7),
            (r#""resourceVersion":"seven"}}"#, 0),
            (r#""resourceVersion":null}}"#, 0),
            (r#""labels":null}}"#, 0),
        ] {
            let text = format!(r#"{{"metadata":{{"name":"n","namespace":"a","uid":"u",{rest}"#);
            assert_eq!(json(&text), known("n", version), "{text}");
        }
        for text in ["", "{", "{}", r#"{"metadata":null}"#, r#"{"metadata":{"name":1}}"#] {
            assert_eq!(json(text), None, "{text}");
        }

        let field = |number: u8, bytes: &[u8]| {
            [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
        };
        let metadata = [
            field(1, b"n\xff"),
            field(3, b"a"),
            field(5, b"u"),
            field(6, b"7"),
            // Labels that are numbers, and an entry that is cut off.
            vec![11 << 3, 1],
            field(12, b"\x0a\x05k"),
        ];
        let protobuf = field(1, &metadata.concat());
        assert_eq!(Identity::decode(&Encoded::protobuf(&protobuf[..])), known("n\u{fffd}", 7));
        assert_eq!(Identity::decode(&Encoded::protobuf(&protobuf[..9])), None);
        assert_eq!(Identity::decode(&Encoded::protobuf(&b"\x0a\x00"[..])), None);
    }
}
