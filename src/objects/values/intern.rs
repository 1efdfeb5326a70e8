//! Interned strings and label maps: one copy of values that thousands of objects repeat.

#![warn(missing_docs)]

use parking_lot::Mutex;
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

use arcstr::ArcStr;
use hashbrown::HashSet;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

/// A shared value with one copy, held by one word; the value is behind a second pointer.
pub struct Interned<T: ?Sized>(Arc<Box<T>>);

impl<T: ?Sized> Interned<T> {
    /// A value outside of any pool.
    pub fn alone(value: impl Into<Box<T>>) -> Interned<T> {
        Interned(Arc::new(value.into()))
    }

    /// Whether both are one copy.
    pub fn ptr_eq(one: &Interned<T>, other: &Interned<T>) -> bool {
        Arc::ptr_eq(&one.0, &other.0)
    }
}

impl<T: ?Sized> Default for Interned<T>
where
    Box<T>: Default,
{
    fn default() -> Interned<T> {
        Interned::alone(Box::default())
    }
}

impl<T: ?Sized> Clone for Interned<T> {
    fn clone(&self) -> Interned<T> {
        Interned(self.0.clone())
    }
}

impl<T: ?Sized> Deref for Interned<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: ?Sized> Borrow<T> for Interned<T> {
    fn borrow(&self) -> &T {
        &self.0
    }
}

impl<T: ?Sized + PartialEq> PartialEq for Interned<T> {
    fn eq(&self, other: &Interned<T>) -> bool {
        // A swept value may come back as a second copy, so the pointer only speeds up "equal".
        Interned::ptr_eq(self, other) || **self == **other
    }
}

impl<T: ?Sized + Eq> Eq for Interned<T> {}

impl<T: ?Sized + Ord> PartialOrd for Interned<T> {
    fn partial_cmp(&self, other: &Interned<T>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: ?Sized + Ord> Ord for Interned<T> {
    fn cmp(&self, other: &Interned<T>) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl<T: ?Sized + Hash> Hash for Interned<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Interned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + Serialize> Serialize for Interned<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (**self).serialize(serializer)
    }
}

/// A pointer that counts who holds its value.
pub trait Counted {
    /// Whether this is the only pointer to the value.
    fn is_alone(&self) -> bool;
}

impl<T: ?Sized> Counted for Interned<T> {
    fn is_alone(&self) -> bool {
        self.0.is_alone()
    }
}

impl<T> Counted for Arc<T> {
    fn is_alone(&self) -> bool {
        Arc::strong_count(self) == 1
    }
}

impl Counted for ArcStr {
    fn is_alone(&self) -> bool {
        ArcStr::strong_count(self) == Some(1)
    }
}

/// A pool of values of one type, with one copy of each while something holds it. `P`: the pointer
/// to a value.
pub struct Pool<P> {
    state: Mutex<PoolState<P>>,
}

struct PoolState<P> {
    values: HashSet<P>,
    /// When the pool has this size, values that nothing else holds are removed.
    sweep_at: usize,
}

/// Pools with fewer values are not swept.
const FIRST_SWEEP: usize = 1024;

impl<P: Counted + Clone + Hash + Eq> Pool<P> {
    /// An empty pool.
    pub fn new() -> Pool<P> {
        Pool { state: Mutex::new(PoolState { values: HashSet::new(), sweep_at: FIRST_SWEEP }) }
    }

    /// Returns the pool's copy of `value`, which `share` adds if it is missing.
    fn intern_with<V, Q>(&self, value: V, share: impl FnOnce(V) -> P) -> P
    where
        V: Borrow<Q>,
        P: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut state = self.state.lock();
        if let Some(known) = state.values.get(value.borrow()) {
            return known.clone();
        }
        if state.values.len() >= state.sweep_at {
            state.values.retain(|value| !value.is_alone());
            state.values.shrink_to_fit();
            state.sweep_at = (state.values.len() * 2).max(FIRST_SWEEP);
        }
        let value = share(value);
        state.values.insert(value.clone());
        value
    }
}

impl<T: ?Sized + Hash + Eq> Pool<Interned<T>> {
    /// Returns the pool's copy of `value`, which is added if it is missing.
    pub fn intern(&self, value: impl Borrow<T> + Into<Box<T>>) -> Interned<T> {
        self.intern_with::<_, T>(value, Interned::alone)
    }

    /// Drops `value`, and removes it from the pool if nothing else holds it. For large values that
    /// are replaced often.
    pub fn release(&self, value: Interned<T>) {
        let mut state = self.state.lock();
        // The pool holds the other one.
        if Arc::strong_count(&value.0) == 2 {
            state.values.remove(&*value);
        }
        // Under the lock: else two releases at once would each count the other's pointer.
        drop(value);
    }
}

impl<T: Hash + Eq> Pool<Arc<T>> {
    /// Returns the pool's copy of `value`, which is added if it is missing.
    pub fn intern(&self, value: T) -> Arc<T> {
        self.intern_with::<_, T>(value, Arc::new)
    }
}

impl Pool<ArcStr> {
    /// Returns the pool's copy of `text`, which is added if it is missing.
    pub fn intern(&self, text: &str) -> ArcStr {
        self.intern_with::<_, str>(text, ArcStr::from)
    }
}

/// Gives a type a pool, and the method that returns the copy there.
macro_rules! shared {
    ($type:ident) => {
        impl $type {
            /// Returns the shared copy of the value.
            pub fn shared(self) -> std::sync::Arc<$type> {
                use std::sync::{Arc, LazyLock};

                use $crate::objects::Pool;

                static ALL: LazyLock<Pool<Arc<$type>>> = LazyLock::new(Pool::new);
                ALL.intern(self)
            }
        }
    };
}
pub(crate) use shared;

static STRINGS: LazyLock<Pool<ArcStr>> = LazyLock::new(Pool::new);
static MAPS: LazyLock<Pool<Interned<Pairs>>> = LazyLock::new(Pool::new);

/// The keys and values of a map.
type Pairs = [(Istr, Istr)];

/// An interned string, for values that repeat: namespaces, label keys, node names.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Istr(ArcStr);

impl Istr {
    /// The shared copy of `text`.
    pub fn new(text: &str) -> Istr {
        Istr(STRINGS.intern(text))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Istr {
    fn default() -> Istr {
        Istr(ArcStr::new())
    }
}

impl Deref for Istr {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Istr {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Istr {
    fn from(text: &str) -> Istr {
        Istr::new(text)
    }
}

impl From<String> for Istr {
    fn from(text: String) -> Istr {
        Istr::new(&text)
    }
}

impl From<&Istr> for ArcStr {
    fn from(text: &Istr) -> ArcStr {
        text.0.clone()
    }
}

impl PartialEq<str> for Istr {
    fn eq(&self, other: &str) -> bool {
        &*self.0 == other
    }
}

impl PartialEq<&str> for Istr {
    fn eq(&self, other: &&str) -> bool {
        &*self.0 == *other
    }
}

impl fmt::Debug for Istr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Istr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.as_str(), f)
    }
}

impl Serialize for Istr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Istr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Istr, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Istr;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Istr, E> {
                Ok(Istr::new(text))
            }
            // Go decodes `null` as an empty string.
            fn visit_unit<E: de::Error>(self) -> Result<Istr, E> {
                Ok(Istr::default())
            }
        }
        deserializer.deserialize_any(Text)
    }
}

/// An interned label or annotation map, sorted by key.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Labels(Option<Interned<Pairs>>);

impl Labels {
    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        let pairs = self.pairs();
        let at = pairs.binary_search_by(|(k, _)| k.as_str().cmp(key)).ok()?;
        Some(&pairs[at].1)
    }

    /// Returns whether every pair of `others` is among these.
    pub fn include(&self, others: &Labels) -> bool {
        self == others || others.iter().all(|(key, value)| self.get(key) == Some(value))
    }

    /// Whether the key is there, with any value.
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.pairs().len()
    }

    /// The pairs in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs().iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    pub(super) fn pairs(&self) -> &Pairs {
        self.0.as_deref().unwrap_or_default()
    }

    /// Returns the shared map of these pairs.
    fn from_pairs(mut pairs: Vec<(Istr, Istr)>) -> Labels {
        if pairs.is_empty() {
            return Labels(None);
        }
        // The last value of a duplicate key counts, as in Go.
        pairs.reverse();
        pairs.sort_by(|a, b| a.0.cmp(&b.0));
        pairs.dedup_by(|later, kept| later.0 == kept.0);
        Labels(Some(MAPS.intern(pairs)))
    }
}

impl<K: AsRef<str>, V: AsRef<str>> FromIterator<(K, V)> for Labels {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Labels {
        Labels::from_pairs(
            pairs
                .into_iter()
                .map(|(k, v)| (Istr::new(k.as_ref()), Istr::new(v.as_ref())))
                .collect(),
        )
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Serialize for Labels {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.len()))?;
        for (key, value) in self.iter() {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Labels, D::Error> {
        struct Map;
        impl<'de> Visitor<'de> for Map {
            type Value = Labels;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of strings")
            }
            fn visit_unit<E: de::Error>(self) -> Result<Labels, E> {
                Ok(Labels::default())
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Labels, A::Error> {
                let mut pairs = Vec::with_capacity(map.size_hint().unwrap_or(4));
                while let Some(pair) = map.next_entry::<Istr, Istr>()? {
                    pairs.push(pair);
                }
                Ok(Labels::from_pairs(pairs))
            }
        }
        deserializer.deserialize_any(Map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_maps_share_one_copy_and_the_last_of_a_repeated_key_counts() {
        let a: Labels = serde_json::from_str(r#"{"b":"2","a":"1","b":"3"}"#).unwrap();
        let b: Labels = [("a", "1"), ("b", "3")].into_iter().collect();
        assert_eq!(a, b);
        assert!(Interned::ptr_eq(a.0.as_ref().unwrap(), b.0.as_ref().unwrap()));
        assert_eq!(a.get("b"), Some("3"));
        assert_eq!(serde_json::to_string(&a).unwrap(), r#"{"a":"1","b":"3"}"#);
        let none: Labels = serde_json::from_str("null").unwrap();
        assert!(none.is_empty() && none.get("a").is_none());
    }

    #[test]
    fn a_pool_lets_go_of_what_nobody_holds() {
        let pool: Pool<ArcStr> = Pool::new();
        let kept = pool.intern("kept");
        for i in 0..10 * FIRST_SWEEP {
            pool.intern(format!("gone-{i}").as_str());
        }
        assert!(pool.state.lock().values.len() <= FIRST_SWEEP + 1);
        assert!(ArcStr::ptr_eq(&kept, &pool.intern("kept")));
    }

    #[test]
    fn a_released_value_leaves_its_pool_unless_it_is_held() {
        let pool: Pool<Interned<[u8]>> = Pool::new();
        let (one, same) = (pool.intern([1]), pool.intern([1]));
        pool.release(one);
        assert!(Interned::ptr_eq(&same, &pool.intern([1])), "held");
        pool.release(same);
        assert!(pool.state.lock().values.is_empty());
        let alone = Interned::alone([1]);
        let kept = pool.intern([1]);
        pool.release(alone);
        assert!(Interned::ptr_eq(&kept, &pool.intern([1])), "another value of the same bytes");
    }
}
