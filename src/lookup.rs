//! Items of a list, found by a key.

use std::collections::HashMap;
use std::hash::Hash;

/// A longer list is hashed.
const FEW: usize = 16;

/// Finds the items of a list by a key. In a short list it compares each item and allocates nothing;
/// the keys of a long list are hashed. For lists whose length a user chooses: without it the
/// comparison of two such lists costs the square of their length.
pub struct Lookup<'a, T, K: ?Sized> {
    items: &'a [T],
    key: fn(&T) -> &K,
    hashed: Option<HashMap<&'a K, usize>>,
}

impl<'a, T, K: Hash + Eq + ?Sized> Lookup<'a, T, K> {
    /// Makes the lookup of `items` by `key`.
    pub fn new(items: &'a [T], key: fn(&T) -> &K) -> Lookup<'a, T, K> {
        // From the end: if several items have one key, the first one counts.
        let places = || items.iter().enumerate().rev().map(|(at, item)| (key(item), at));
        let hashed = (items.len() > FEW).then(|| places().collect());
        Lookup { items, key, hashed }
    }

    /// Returns the first item with this key.
    pub fn get(&self, key: &K) -> Option<&'a T> {
        match &self.hashed {
            Some(hashed) => hashed.get(key).map(|at| &self.items[*at]),
            None => self.items.iter().find(|item| (self.key)(item) == key),
        }
    }

    pub fn contains(&self, key: &K) -> bool {
        self.get(key).is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::hash::Hasher;

    use super::*;

    thread_local! {
        static STEPS: Cell<usize> = const { Cell::new(0) };
    }

    /// A key that counts how often it is compared and hashed.
    struct Counted(usize);

    impl PartialEq for Counted {
        fn eq(&self, other: &Counted) -> bool {
            STEPS.set(STEPS.get() + 1);
            self.0 == other.0
        }
    }

    impl Eq for Counted {}

    impl Hash for Counted {
        fn hash<H: Hasher>(&self, state: &mut H) {
            STEPS.set(STEPS.get() + 1);
            self.0.hash(state);
        }
    }

    #[test]
    fn the_first_item_with_a_key_is_found() {
        for count in [0, 1, FEW, FEW + 1, 1000] {
            let items: Vec<(usize, usize)> = (0..count).map(|at| (at / 2, at)).collect();
            let lookup = Lookup::new(&items, |(key, _)| key);
            for key in 0..count.div_ceil(2) {
                assert_eq!(lookup.get(&key), Some(&(key, 2 * key)), "{key} of {count}");
            }
            assert!(!lookup.contains(&count));
        }
    }

    #[test]
    fn a_long_list_costs_no_more_for_each_item() {
        for count in [10, 1_000, 20_000] {
            let items: Vec<Counted> = (0..count).map(Counted).collect();
            STEPS.set(0);
            let lookup = Lookup::new(&items, |item| item);
            assert!(items.iter().all(|item| lookup.contains(item)));
            let steps = STEPS.get();
            assert!(steps <= FEW * count, "{steps} steps for {count} items");
        }
    }
}
