//! A cache of the API server's answers.
//! Upstream: `k8s.io/apimachinery/pkg/util/cache.LRUExpireCache`.

use std::hash::{Hash, Hasher};
use std::num::NonZeroUsize;
use std::time::Duration;

use lru::LruCache;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

/// The most answers that a cache keeps.
const CAPACITY: NonZeroUsize = NonZeroUsize::new(1024).expect("a constant above zero");

/// The digest of a review's attributes. Unauthenticated clients choose these, and they may be long;
/// a digest makes every entry small.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key([u8; 32]);

impl Key {
    /// Returns the digest of a question: tokens are not kept in memory.
    pub fn digest(question: &(impl Hash + ?Sized)) -> Key {
        let mut state = Digesting(Sha256::new());
        question.hash(&mut state);
        Key(state.0.finalize().into())
    }
}

struct Digesting(Sha256);

impl Hasher for Digesting {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Not used: the digest has more bits, and [`Key::digest`] takes it from the state.
    fn finish(&self) -> u64 {
        0
    }
}

/// The most recently used answers, each until it expires.
pub(super) struct Cache<V> {
    entries: Mutex<LruCache<Key, (V, Duration)>>,
}

impl<V: Clone> Cache<V> {
    pub fn new() -> Cache<V> {
        Cache { entries: Mutex::new(LruCache::sparse(CAPACITY)) }
    }

    pub fn get(&self, key: &Key, now: Duration) -> Option<V> {
        let mut entries = self.entries.lock();
        entries.get(key).filter(|(_, until)| now < *until).map(|(value, _)| value.clone())
    }

    pub fn put(&self, key: Key, value: V, until: Duration) {
        self.entries.lock().put(key, (value, until));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn answer_expires() {
        let (cache, key) = (Cache::new(), Key::digest("a"));
        assert_eq!(cache.get(&key, Duration::ZERO), None);
        cache.put(key, 1, SECOND);
        assert_eq!(cache.get(&key, Duration::ZERO), Some(1));
        assert_eq!(cache.get(&key, SECOND), None);
    }

    #[test]
    fn answer_in_use_survives_a_flood_of_others() {
        let (cache, key) = (Cache::new(), Key::digest("in use"));
        cache.put(key, 0, SECOND);
        for n in 1..3 * CAPACITY.get() {
            cache.put(Key::digest(&n), n, SECOND);
            assert_eq!(cache.get(&key, Duration::ZERO), Some(0));
        }
        assert_eq!(cache.entries.lock().len(), CAPACITY.get());
    }

    #[test]
    fn keys_tell_fields_apart() {
        assert!(Key::digest(&("ab", "c")) != Key::digest(&("a", "bc")));
        assert!(Key::digest(&["ab"][..]) != Key::digest(&["ab", ""][..]));
        assert!(Key::digest(&("ab", "c")) == Key::digest(&("ab".to_owned(), "c")));
    }
}
