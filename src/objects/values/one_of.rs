//! The values of a selector's `In` or `NotIn`.

use crate::objects::Istr;

/// Fewer values than this are not sorted.
const MANY: usize = 16;

/// A set of values of a label. Large sets are sorted: a user chooses their size, and a selector is
/// matched with the labels of every pod of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OneOf(Box<[Istr]>);

impl OneOf {
    pub fn contains(&self, label: &str) -> bool {
        match self.0.len() < MANY {
            true => self.0.iter().any(|value| value == label),
            false => self.0.binary_search_by(|value| value.as_str().cmp(label)).is_ok(),
        }
    }
}

impl<V: Into<Box<[Istr]>>> From<V> for OneOf {
    fn from(values: V) -> OneOf {
        let mut values = values.into();
        if values.len() >= MANY {
            values.sort_unstable();
        }
        OneOf(values)
    }
}

impl AsRef<[Istr]> for OneOf {
    fn as_ref(&self) -> &[Istr] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_many_values_are_found() {
        for count in [1, 2, MANY - 1, MANY, 1000] {
            // Unsorted values.
            let values: Vec<Istr> =
                (0..count).rev().map(|n| format!("v{}", n * 2).into()).collect();
            let one_of = OneOf::from(values);
            for n in 0..2 * count {
                assert_eq!(one_of.contains(&format!("v{n}")), n % 2 == 0, "v{n} of {count}");
            }
        }
    }
}
