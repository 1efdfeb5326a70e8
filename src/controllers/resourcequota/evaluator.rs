//! What measures how much of a resource is used. Upstream: `apiserver/pkg/quota/v1`.

use parking_lot::RwLock;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use crate::cache::{Lister, MetadataInformer};
use crate::controllers::Error;
use crate::objects::{
    Istr, Object, Quantity, Resource, ResourceList, ResourceType, ScopeRequirement, SelectorError,
};

/// Measures the use of one kind of object. Upstream: `quota.Evaluator`.
pub trait Evaluator: Send + Sync {
    /// Returns whether this measures the resource `name` of a quota. Upstream: `MatchingResources`.
    fn measures(&self, name: &str) -> bool;

    /// Measures what the objects of a namespace that match all of `scopes` use, under all names
    /// that may be asked for. Upstream: `UsageStats`.
    ///
    /// # Errors
    /// When the objects are not known yet.
    fn usage(&self, namespace: &str, scopes: &[ScopeRequirement]) -> Result<ResourceList, Error>;
}

/// Makes the error of objects that are not in the cache yet.
fn not_synced(resource: impl std::fmt::Display) -> Error {
    Error::NotYet(format!("failed to list content: {resource} not yet synced"))
}

/// The objects of a cache, each charged by itself.
pub struct Objects<L, M, S, C> {
    /// The Lister of the objects; `None` while they are not known.
    pub lister: L,
    /// Whether the resource of this name is measured.
    pub measures: M,
    /// Whether an object matches a scope.
    pub in_scope: S,
    /// Adds what an object uses.
    pub charge: C,
}

/// Returns `false`: for kinds whose objects match no scope. Upstream: `MatchesNoScopeFunc`.
pub fn in_no_scope<T>(_: &T, _: &ScopeRequirement) -> Result<bool, SelectorError> {
    Ok(false)
}

impl<T, L, M, S, C> Evaluator for Objects<L, M, S, C>
where
    T: Object + Resource,
    L: Fn() -> Option<Lister<T>> + Send + Sync,
    M: Fn(&str) -> bool + Send + Sync,
    S: Fn(&T, &ScopeRequirement) -> Result<bool, SelectorError> + Send + Sync,
    C: Fn(&T, &mut ResourceList) + Send + Sync,
{
    fn measures(&self, name: &str) -> bool {
        (self.measures)(name)
    }

    /// Sums what the objects of a namespace that match all of `scopes` use.
    fn usage(&self, namespace: &str, scopes: &[ScopeRequirement]) -> Result<ResourceList, Error> {
        let lister = (self.lister)().ok_or_else(|| not_synced(T::RESOURCE))?;
        let mut usage = ResourceList::default();
        for object in lister.in_namespace(namespace) {
            let mut is_in_scopes = true;
            for scope in scopes {
                match (self.in_scope)(&object, scope) {
                    Ok(true) => {}
                    Ok(false) => {
                        is_in_scopes = false;
                        break;
                    }
                    // A selector that cannot be read ends the count without an error, as upstream.
                    Err(_) => return Ok(usage),
                }
            }
            if is_in_scopes {
                (self.charge)(&object, &mut usage);
            }
        }
        Ok(usage)
    }
}

/// Counts the objects of any resource. Upstream: `objectCountEvaluator`.
struct Count {
    informer: MetadataInformer,
    /// The same objects in other versions. While one of these is counted, this is not.
    earlier: Box<[Weak<Count>]>,
}

impl Count {
    fn resource(&self) -> &ResourceType {
        &self.informer.scope().resource
    }

    /// Returns whether this counts the objects of `resource`.
    fn counts(&self, resource: &ResourceType) -> bool {
        let known = self.resource();
        known.plural == resource.plural && known.group == resource.group
    }
}

/// Returns the names under which quotas limit the number of objects of a resource:
/// `count/deployments.apps`, and for a few core resources the older name too.
fn names(resource: &ResourceType) -> impl Iterator<Item = Istr> {
    const OLD_NAMES: [&str; 4] =
        ["configmaps", "resourcequotas", "replicationcontrollers", "secrets"];
    let is_old = resource.group.is_empty() && OLD_NAMES.contains(&&*resource.plural);
    let old = is_old.then(|| Istr::new(&resource.plural));
    [Istr::from(format!("count/{resource}"))].into_iter().chain(old)
}

impl Evaluator for Count {
    /// Returns whether `name` is one of [`names`]. False while an earlier count of the same
    /// objects, in another version, lives.
    fn measures(&self, name: &str) -> bool {
        // Cheap, before `names` formats texts: each watched resource has a count, and each count is
        // asked about each name. The group may follow the plural.
        let plural = name.strip_prefix("count/").unwrap_or(name);
        plural.starts_with(&*self.resource().plural)
            && names(self.resource()).any(|known| known == *name)
            && self.earlier.iter().all(|earlier| earlier.strong_count() == 0)
    }

    fn usage(&self, namespace: &str, scopes: &[ScopeRequirement]) -> Result<ResourceList, Error> {
        if !self.informer.has_synced() {
            return Err(not_synced(self.resource()));
        }
        // Counted objects match no scope.
        let count = if scopes.is_empty() { self.informer.count_in(namespace) } else { 0 };
        let count = Quantity::new(i64::try_from(count).unwrap_or(i64::MAX));
        Ok(names(self.resource()).map(|name| (name, count)).collect())
    }
}

/// The evaluators: the built-in ones by their resource, and a `Count` for each other watched one.
/// Upstream: `quota.Registry`.
pub struct Registry {
    built_in: BTreeMap<String, Arc<dyn Evaluator>>,
    /// The handler of each watched resource owns its evaluator, which ends with it.
    counts: RwLock<Vec<Weak<Count>>>,
    /// The names that `counts` measure, or have measured before their resource was gone.
    counted: RwLock<BTreeSet<Istr>>,
}

impl Registry {
    pub fn new(built_in: impl IntoIterator<Item = (ResourceType, Arc<dyn Evaluator>)>) -> Registry {
        let named = built_in.into_iter().map(|(resource, found)| (resource.to_string(), found));
        let (counts, counted) = (RwLock::default(), RwLock::default());
        Registry { built_in: named.collect(), counts, counted }
    }

    pub fn built_in(&self, resource: &ResourceType) -> Option<&Arc<dyn Evaluator>> {
        self.built_in.get(&resource.to_string())
    }

    /// Returns the built-in evaluator of a resource, or a new one that counts its objects. While
    /// discovery of one version of a group fails, a resource may be watched in two: then the first
    /// one counts.
    pub fn evaluator_for(
        &self,
        resource: &ResourceType,
        informer: &MetadataInformer,
    ) -> Arc<dyn Evaluator> {
        if let Some(built_in) = self.built_in(resource) {
            return built_in.clone();
        }
        self.counted.write().extend(names(resource));
        let mut counts = self.counts.write();
        let living = counts
            .iter()
            .filter(|count| count.upgrade().is_some_and(|count| count.counts(resource)));
        let earlier = living.cloned().collect();
        let count = Arc::new(Count { informer: informer.clone(), earlier });
        // Drops the dead ones before the list would grow.
        if counts.len() == counts.capacity() {
            counts.retain(|count| count.strong_count() > 0);
        }
        counts.push(Arc::downgrade(&count));
        count
    }

    /// Returns the built-in evaluators, and those that count the objects of other watched
    /// resources.
    fn evaluators(&self) -> Vec<Arc<dyn Evaluator>> {
        let counts = self.counts.read();
        let counts =
            counts.iter().filter_map(Weak::upgrade).map(|count| count as Arc<dyn Evaluator>);
        self.built_in.values().cloned().chain(counts).collect()
    }

    /// Returns whether any evaluator measures the resource `name` of quotas.
    pub fn measures(&self, name: &str) -> bool {
        self.evaluators().iter().any(|evaluator| evaluator.measures(name))
    }

    /// Returns whether the resource `name` of quotas was measured once and is not any more: its
    /// objects are not watched now.
    pub fn has_lost(&self, name: &str) -> bool {
        self.counted.read().contains(name) && !self.measures(name)
    }

    /// Returns whether several evaluators measure the resource `name` of quotas.
    pub fn is_shared(&self, name: &str) -> bool {
        self.evaluators().iter().filter(|evaluator| evaluator.measures(name)).count() > 1
    }

    /// Measures what is used of the `limited` resources that an evaluator knows. Returns it with
    /// the errors; resources that could not be measured are left out.
    /// Upstream: `CalculateUsage`.
    pub fn measure(
        &self,
        namespace: &str,
        limited: &ResourceList,
        scopes: &[ScopeRequirement],
    ) -> (ResourceList, Vec<Error>) {
        let evaluators = self.evaluators();
        let limited = limited.iter().map(|(name, _)| name.as_str());
        let mut measured: BTreeSet<&str> =
            limited.filter(|name| evaluators.iter().any(|e| e.measures(name))).collect();
        let (mut sum, mut errors) = (ResourceList::default(), Vec::new());
        for evaluator in evaluators {
            let names: Vec<&str> =
                measured.iter().copied().filter(|name| evaluator.measures(name)).collect();
            if names.is_empty() {
                continue;
            }
            match evaluator.usage(namespace, scopes) {
                Ok(usage) => {
                    let amount = |name: &str| usage.get(name).unwrap_or_default();
                    names.iter().for_each(|name| sum.add_to(&Istr::new(name), amount(name)));
                }
                Err(error) => {
                    errors.push(error);
                    measured.retain(|name| !names.contains(name));
                }
            }
        }
        sum.retain(|name| measured.contains(name));
        (sum, errors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::SharedInformerFactory;
    use crate::cache::testing::Script;
    use crate::clock::SystemClock;

    struct Fixed(&'static [(&'static str, i64)], bool);

    impl Evaluator for Fixed {
        fn measures(&self, name: &str) -> bool {
            self.0.iter().any(|(known, _)| *known == name)
        }
        fn usage(&self, _: &str, _: &[ScopeRequirement]) -> Result<ResourceList, Error> {
            if !self.1 {
                return Err(not_synced("x"));
            }
            let known = self.0.iter().filter(|(_, count)| *count > 0);
            Ok(known.map(|(name, count)| (*name, Quantity::new(*count))).collect())
        }
    }

    #[test]
    fn a_count_goes_with_its_resource_and_is_remembered() {
        let factory = SharedInformerFactory::new(Script::new(), SystemClock::shared());
        let registry = Registry::new([]);
        let of = |group: &'static str, plural: &'static str| {
            let resource = ResourceType::fixed(group, "v1", "X", plural, true);
            registry.evaluator_for(&resource, &factory.metadata(&resource))
        };
        let things = of("example.com", "things");
        let maps = of("", "configmaps");
        let names = [
            "count/things.example.com",
            "count/things",
            "things",
            "count/configmaps",
            "configmaps",
        ];
        let measured = || names.map(|name| registry.measures(name));
        let lost = || names.map(|name| registry.has_lost(name));
        assert_eq!((measured(), lost()), ([true, false, false, true, true], [false; 5]));
        drop(things);
        assert_eq!(measured(), [false, false, false, true, true]);
        assert_eq!(lost(), [true, false, false, false, false]);
        drop(maps);
        let capacity = registry.counts.read().capacity();
        for _ in 0..=capacity {
            drop(of("example.com", "things"));
        }
        assert_eq!(registry.counts.read().capacity(), capacity, "no dead entry stays");
    }

    #[test]
    fn objects_that_are_watched_in_two_versions_are_counted_once() {
        let factory = SharedInformerFactory::new(Script::new(), SystemClock::shared());
        let registry = Registry::new([]);
        let of = |version: &'static str| {
            let resource = ResourceType::fixed("example.com", version, "X", "things", true);
            registry.evaluator_for(&resource, &factory.metadata(&resource))
        };
        let name = "count/things.example.com";
        let (first, second) = (of("v2"), of("v1"));
        assert!(first.measures(name) && !second.measures(name));
        assert!(!registry.is_shared(name));
        drop(first);
        assert!(second.measures(name));
        let (third, fourth) = (of("v2"), of("v3"));
        assert!(second.measures(name) && !third.measures(name) && !fourth.measures(name));
        drop(third);
        assert!(second.measures(name) && !fourth.measures(name));
    }

    #[test]
    fn what_cannot_be_measured_is_left_out() {
        let evaluators = [
            ("a", Fixed(&[("pods", 2), ("both", 1), ("none", 0)], true)),
            ("b", Fixed(&[("both", 5), ("more", 1)], true)),
            ("c", Fixed(&[("broken", 1), ("more", 1)], false)),
        ]
        .map(|(plural, evaluator)| {
            let resource = ResourceType::fixed("", "v1", "X", plural, true);
            (resource, Arc::new(evaluator) as Arc<dyn Evaluator>)
        });
        let registry = Registry::new(evaluators);
        let limited = ["pods", "both", "none", "broken", "more", "unknown"];
        let limited = limited.into_iter().map(|name| (name, Quantity::ONE)).collect();
        let (usage, errors) = registry.measure("ns", &limited, &[]);
        let expected = [("both", 6), ("none", 0), ("pods", 2)];
        let expected: ResourceList =
            expected.into_iter().map(|(name, count)| (name, Quantity::new(count))).collect();
        assert_eq!(usage, expected);
        assert_eq!(errors.len(), 1);
    }
}
