//! Lists of resources and their amounts. Upstream: `v1.ResourceList`, `apiserver/pkg/quota/v1`.

use std::cmp::Ordering;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

use crate::objects::{Istr, Quantity};

/// Amounts by the names of resources, in the order of the names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ResourceList(Vec<(Istr, Quantity)>);

impl ResourceList {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn get(&self, name: &str) -> Option<Quantity> {
        self.find(name).ok().map(|at| self.0[at].1)
    }

    /// Returns the index of the resource; `Err`: the index at which to insert it.
    fn find(&self, name: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(other, _)| other.as_str().cmp(name))
    }

    pub fn insert(&mut self, name: impl Into<Istr>, amount: Quantity) {
        let name = name.into();
        match self.find(&name) {
            Ok(at) => self.0[at].1 = amount,
            Err(at) => self.0.insert(at, (name, amount)),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Istr, Quantity)> {
        self.0.iter().map(|(name, amount)| (name, *amount))
    }

    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.0.retain(|(name, _)| keep(name));
    }

    /// Adds to the amount of one resource.
    pub fn add_to(&mut self, name: &Istr, amount: Quantity) {
        match self.find(name) {
            Ok(at) => self.0[at].1 = self.0[at].1 + amount,
            Err(at) => self.0.insert(at, (name.clone(), amount)),
        }
    }

    /// Adds the amounts of another list. Upstream: `quota.Add`.
    pub fn add(&mut self, other: &ResourceList) {
        for (name, amount) in other.iter() {
            self.add_to(name, amount);
        }
    }

    /// Raises each amount to that of `other` where that is larger. Upstream: `maxResourceList`.
    pub fn raise(&mut self, other: &ResourceList) {
        for (name, amount) in other.iter() {
            if self.get(name).is_none_or(|known| amount.compare(known) == Ordering::Greater) {
                self.insert(name.clone(), amount);
            }
        }
    }

    /// Returns whether both have the same resources with the same amounts, in any units. Upstream:
    /// `quota.Equals`.
    pub fn amounts_equal(&self, other: &ResourceList) -> bool {
        self.0.len() == other.0.len()
            && self.iter().all(|(name, amount)| {
                other.get(name).is_some_and(|other| amount.compare(other) == Ordering::Equal)
            })
    }
}

impl<N: Into<Istr>> FromIterator<(N, Quantity)> for ResourceList {
    fn from_iter<I: IntoIterator<Item = (N, Quantity)>>(amounts: I) -> ResourceList {
        let mut list: Vec<_> =
            amounts.into_iter().map(|(name, amount)| (name.into(), amount)).collect();
        // The last amount of a duplicate name counts.
        list.reverse();
        list.sort_by(|(a, _): &(Istr, _), (b, _)| a.cmp(b));
        list.dedup_by(|(later, _), (kept, _)| later == kept);
        ResourceList(list)
    }
}

/// `null` is empty.
impl<'de> Deserialize<'de> for ResourceList {
    /// Reads a map of amounts by the names of resources; null is an empty one.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<ResourceList, D::Error> {
        struct Amounts;

        impl<'de> Visitor<'de> for Amounts {
            type Value = ResourceList;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("amounts by the names of resources")
            }

            fn visit_unit<E>(self) -> Result<ResourceList, E> {
                Ok(ResourceList::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ResourceList, A::Error> {
                let mut list = ResourceList::default();
                while let Some((name, amount)) = map.next_entry::<Istr, Quantity>()? {
                    list.insert(name, amount);
                }
                Ok(list)
            }
        }

        from.deserialize_any(Amounts)
    }
}

impl serde::Serialize for ResourceList {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(name, amount)| (name, amount)))
    }
}
