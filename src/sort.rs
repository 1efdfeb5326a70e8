//! Sorting, compiled once. The sorts of the standard library are compiled for each type and each
//! comparison, 4 to 6 KB of code every time.

use std::cmp::Ordering;

/// Stable sorts of a slice, for all but the hottest places.
pub trait Order<T> {
    fn order_by(&mut self, compare: impl FnMut(&T, &T) -> Ordering);

    /// Each item's key is made once.
    fn order_by_key<K: Ord>(&mut self, key: impl FnMut(&T) -> K);

    fn order(&mut self)
    where
        T: Ord;
}

impl<T> Order<T> for [T] {
    fn order_by(&mut self, mut compare: impl FnMut(&T, &T) -> Ordering) {
        if self.len() < 2 {
            return;
        }
        let places = permutation(self.len(), &mut |one, other| compare(&self[one], &self[other]));
        arrange(self, places);
    }

    fn order_by_key<K: Ord>(&mut self, key: impl FnMut(&T) -> K) {
        if self.len() < 2 {
            return;
        }
        let keys: Vec<K> = self.iter().map(key).collect();
        let places = permutation(keys.len(), &mut |one, other| keys[one].cmp(&keys[other]));
        arrange(self, places);
    }

    fn order(&mut self)
    where
        T: Ord,
    {
        self.order_by(T::cmp);
    }
}

/// Where the item comes from that belongs at each place.
fn permutation(len: usize, compare: &mut dyn FnMut(usize, usize) -> Ordering) -> Vec<usize> {
    let mut places: Vec<usize> = (0..len).collect();
    places.sort_by(|one, other| compare(*one, *other));
    places
}

/// Moves each item to its place, cycle by cycle.
fn arrange<T>(items: &mut [T], mut places: Vec<usize>) {
    for start in 0..items.len() {
        let mut place = start;
        loop {
            let from = std::mem::replace(&mut places[place], place);
            if from == start || from == place {
                break;
            }
            items.swap(place, from);
            place = from;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorts_are_those_of_the_standard_library() {
        fastrand::seed(7);
        for len in [0, 1, 2, 3, 17, 100] {
            // Few keys, so that stability shows.
            let items: Vec<(u8, usize)> = (0..len).map(|at| (fastrand::u8(..5), at)).collect();
            let (mut expected, mut found) = (items.clone(), items.clone());
            expected.sort_by_key(|item| item.0);
            found.order_by_key(|item| item.0);
            assert_eq!(found, expected);
            expected.sort_by(|one, other| other.cmp(one));
            found.order_by(|one, other| other.cmp(one));
            assert_eq!(found, expected);
            expected.sort();
            found.order();
            assert_eq!(found, expected);
        }
    }
}
