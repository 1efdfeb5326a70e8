//! Amounts by the names of resources. Upstream: `v1.ResourceList`, `apiserver/pkg/quota/v1`.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde::de::{Deserialize, Deserializer};

use super::{Istr, Quantity};

/// Amounts by the names of resources, in the order of the names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ResourceList(BTreeMap<Istr, Quantity>);

impl ResourceList {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn get(&self, name: &str) -> Option<Quantity> {
        self.0.get(name).copied()
    }

    pub fn insert(&mut self, name: impl Into<Istr>, amount: Quantity) {
        self.0.insert(name.into(), amount);
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Istr, Quantity)> {
        self.0.iter().map(|(name, amount)| (name, *amount))
    }

    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.0.retain(|name, _| keep(name));
    }

    /// Adds to one resource.
    pub fn add_to(&mut self, name: &Istr, amount: Quantity) {
        match self.0.get_mut(name) {
            Some(sum) => *sum = *sum + amount,
            None => self.insert(name.clone(), amount),
        }
    }

    /// Upstream: `quota.Add`.
    pub fn add(&mut self, other: &ResourceList) {
        for (name, amount) in other.iter() {
            self.add_to(name, amount);
        }
    }

    /// The larger amount of each resource. Upstream: `maxResourceList`.
    pub fn raise(&mut self, other: &ResourceList) {
        for (name, amount) in other.iter() {
            if self.get(name).is_none_or(|known| amount.compare(known) == Ordering::Greater) {
                self.insert(name.clone(), amount);
            }
        }
    }

    /// The same resources with the same amounts, whatever their units. Upstream: `quota.Equals`.
    pub fn amounts_equal(&self, other: &ResourceList) -> bool {
        self.0.len() == other.0.len()
            && self.iter().all(|(name, amount)| {
                other.get(name).is_some_and(|other| amount.compare(other) == Ordering::Equal)
            })
    }
}

impl<N: Into<Istr>> FromIterator<(N, Quantity)> for ResourceList {
    fn from_iter<I: IntoIterator<Item = (N, Quantity)>>(amounts: I) -> ResourceList {
        ResourceList(amounts.into_iter().map(|(name, amount)| (name.into(), amount)).collect())
    }
}

/// `null` is empty.
impl<'de> Deserialize<'de> for ResourceList {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<ResourceList, D::Error> {
        Ok(ResourceList(Option::deserialize(from)?.unwrap_or_default()))
    }
}

impl serde::Serialize for ResourceList {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(&self.0)
    }
}
