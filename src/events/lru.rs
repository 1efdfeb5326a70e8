//! A map that forgets what was not used for longest. Upstream: `k8s.io/utils/lru`.

use std::collections::{BTreeMap, HashMap};

pub(super) struct Lru<V> {
    capacity: usize,
    entries: HashMap<u64, (V, u64)>,
    /// From the time of the last use to the key.
    by_use: BTreeMap<u64, u64>,
    uses: u64,
}

impl<V: Default> Lru<V> {
    pub fn new(capacity: usize) -> Lru<V> {
        Lru { capacity, entries: HashMap::new(), by_use: BTreeMap::new(), uses: 0 }
    }

    /// The value under `key`, a default one if there is none; it counts as used.
    pub fn entry(&mut self, key: u64) -> &mut V {
        if self.entries.len() >= self.capacity
            && !self.entries.contains_key(&key)
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.entries.remove(&oldest);
        }
        self.uses += 1;
        let (value, used) = self.entries.entry(key).or_default();
        self.by_use.remove(used);
        *used = self.uses;
        self.by_use.insert(self.uses, key);
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_goes() {
        let mut lru = Lru::<u32>::new(2);
        *lru.entry(1) = 10;
        *lru.entry(2) = 20;
        lru.entry(1);
        *lru.entry(3) = 30;
        assert_eq!((*lru.entry(1), *lru.entry(3)), (10, 30));
        assert_eq!(*lru.entry(2), 0, "forgotten");
        assert_eq!((lru.entries.len(), lru.by_use.len()), (2, 2));
    }
}
