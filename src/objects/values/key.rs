//! The identifiers of an object: namespace and name, and uid.

#![warn(missing_docs)]

use std::fmt;
use std::num::NonZeroU64;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

use crate::objects::{ArcStr, Istr};

/// Namespace and name; the namespace of cluster-scoped objects is empty.
/// Upstream: `cache.ObjectName`, and the `namespace/name` keys of the workqueues.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectName {
    /// Empty for an object of the whole cluster.
    pub namespace: Istr,
    /// The object's name.
    pub name: ArcStr,
}

/// The key under which caches and workqueues know an object.
pub type ObjectKey = ObjectName;

impl ObjectName {
    /// The name of an object in a namespace, which is empty for one of the whole cluster.
    pub fn new(namespace: &str, name: &str) -> ObjectName {
        ObjectName { namespace: Istr::new(namespace), name: name.into() }
    }

    /// The name of an object of the whole cluster.
    pub fn cluster(name: &str) -> ObjectName {
        ObjectName::new("", name)
    }

    /// Parses `namespace/name`, or `name` alone. Upstream: `SplitMetaNamespaceKey`.
    pub fn parse(text: &str) -> Option<ObjectName> {
        match text.split_once('/') {
            None => Some(ObjectName::cluster(text)),
            Some((_, name)) if name.contains('/') => None,
            Some((namespace, name)) => Some(ObjectName::new(namespace, name)),
        }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            return f.write_str(&self.name);
        }
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Debug for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An object's uid. A UUID in its usual form takes sixteen bytes and no allocation; anything else
/// is kept as it came.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uid(Repr);

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Repr {
    /// The halves. The second is never 0, so the compiler marks the other variant by 0 there, and
    /// no byte is used for a tag.
    Uuid(u64, NonZeroU64),
    Other(Istr),
}

impl Default for Uid {
    fn default() -> Uid {
        Uid(Repr::Other(Istr::default()))
    }
}

impl Uid {
    /// Makes the uid that the API writes as `text`.
    pub fn new(text: &str) -> Uid {
        Uid(match parse_uuid(text) {
            Some((first, second)) => Repr::Uuid(first, second),
            None => Repr::Other(Istr::new(text)),
        })
    }

    /// Whether it is absent: an object that was not created yet has none.
    pub fn is_empty(&self) -> bool {
        matches!(&self.0, Repr::Other(text) if text.is_empty())
    }
}

impl From<&str> for Uid {
    fn from(text: &str) -> Uid {
        Uid::new(text)
    }
}

/// Returns the halves of a lower-case, hyphenated UUID; `None` for any other spelling, so that
/// printing returns the original text, and where the second half is 0.
fn parse_uuid(text: &str) -> Option<(u64, NonZeroU64)> {
    let text: &[u8; 36] = text.as_bytes().try_into().ok()?;
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; 16];
    let mut at = 0;
    for byte in &mut bytes {
        if matches!(at, 8 | 13 | 18 | 23) {
            if text[at] != b'-' {
                return None;
            }
            at += 1;
        }
        *byte = digit(text[at])? << 4 | digit(text[at + 1])?;
        at += 2;
    }
    let both = u128::from_be_bytes(bytes);
    Some(((both >> 64) as u64, NonZeroU64::new(both as u64)?))
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Other(text) => f.write_str(text),
            Repr::Uuid(a, b) => {
                let (low, mid, high) = (a >> 32, a >> 16 & 0xffff, a & 0xffff);
                let (clock, node) = (b.get() >> 48, b.get() & 0xffff_ffff_ffff);
                write!(f, "{low:08x}-{mid:04x}-{high:04x}-{clock:04x}-{node:012x}")
            }
        }
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Uid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Uid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Uid, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Uid;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a uid")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Uid, E> {
                Ok(Uid::new(text))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uids_print_as_they_came() {
        for text in [
            "",
            "0123abcd-4567-89ab-cdef-0123456789ab",
            "0123ABCD-4567-89ab-cdef-0123456789ab",
            "0123abcd-4567-89ab-cdef0123456789abc",
            "0123abcd-4567-89ab-0000-000000000001",
            "0123abcd-4567-89ab-0000-000000000000",
            "00000000-0000-0000-0000-000000000000",
            "not-a-uuid",
        ] {
            assert_eq!(Uid::new(text).to_string(), text);
        }
        assert_eq!(size_of::<Uid>(), 16);
        let uid = |digits: [u8; 2]| {
            let [a, b] = digits;
            format!("{a:02x}000000-0000-4000-8000-0000000000{b:02x}")
        };
        let mut texts = [uid([1, 0]), uid([0, 1]), uid([0x10, 0]), uid([0, 0x10]), uid([0, 0])];
        texts.sort();
        assert!(
            texts.is_sorted_by_key(|text| Uid::new(text)),
            "uids are in the order of their texts"
        );
        assert!(Uid::default().is_empty() && Uid::new("").is_empty());
    }

    #[test]
    fn keys_split_as_upstream_does() {
        assert_eq!(ObjectKey::parse("a/b"), Some(ObjectKey::new("a", "b")));
        assert_eq!(ObjectKey::parse("b"), Some(ObjectKey::cluster("b")));
        assert_eq!(ObjectKey::parse("a/b/c"), None);
        assert_eq!(ObjectKey::new("a", "b").to_string(), "a/b");
        assert_eq!(ObjectKey::cluster("b").to_string(), "b");
    }
}
