//! The selectors of all autoscalers, to find pods that several of them count.
//! Upstream: `pkg/controller/util/selectors`, `hpasControllingPodsUnderSelector`.

use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::objects::{Istr, Labels, ObjectKey, Pod, Selector};

/// Selectors by the keys of autoscalers. An autoscaler that was not synced yet selects nothing.
#[derive(Default)]
pub(super) struct Selectors(Mutex<State>);

#[derive(Default)]
struct State {
    selectors: HashMap<ObjectKey, Selector>,
    /// By namespace.
    index: HashMap<Box<str>, Index>,
}

/// The autoscalers of a namespace, by a label that their selectors require.
#[derive(Default)]
struct Index {
    /// By the label's key and value.
    by_label: HashMap<Istr, HashMap<Istr, HashSet<ObjectKey>>>,
    /// The autoscalers whose selectors require no value.
    without_required_label: HashSet<ObjectKey>,
}

impl Index {
    fn is_empty(&self) -> bool {
        self.by_label.is_empty() && self.without_required_label.is_empty()
    }

    /// Files `key` by a label that `selector` requires, for [`Self::candidates`].
    fn add(&mut self, key: &ObjectKey, selector: &Selector) {
        let keys = match selector.required_label() {
            Some((name, value)) => {
                let by_value = self.by_label.entry(name.clone()).or_default();
                by_value.entry(value.clone()).or_default()
            }
            None => &mut self.without_required_label,
        };
        keys.insert(key.clone());
    }

    /// Removes `key` from where [`Self::add`] has filed it.
    fn remove(&mut self, key: &ObjectKey, selector: &Selector) {
        let Some((name, value)) = selector.required_label() else {
            self.without_required_label.remove(key);
            return;
        };
        let Some(by_value) = self.by_label.get_mut(name) else { return };
        if let Some(keys) = by_value.get_mut(value) {
            keys.remove(key);
            if keys.is_empty() {
                by_value.remove(value);
            }
        }
        if by_value.is_empty() {
            self.by_label.remove(name);
        }
    }

    /// Returns the autoscalers that may select a pod with these labels.
    fn candidates<'a>(&'a self, labels: &'a Labels) -> impl Iterator<Item = &'a ObjectKey> {
        let of_label = |(name, value): (&str, &str)| self.by_label.get(name)?.get(value);
        labels.iter().filter_map(of_label).flatten().chain(&self.without_required_label)
    }
}

impl State {
    /// Replaces the selector of `key`; `None` removes it.
    fn replace(&mut self, key: &ObjectKey, selector: Option<Selector>) {
        let old = self.selectors.remove(key).filter(|old| !old.is_nothing());
        if let Some(old) = old
            && let Some(index) = self.index.get_mut(&*key.namespace)
        {
            index.remove(key, &old);
            if index.is_empty() {
                self.index.remove(&*key.namespace);
            }
        }
        let Some(selector) = selector else { return };
        if !selector.is_nothing() {
            self.index.entry(Box::from(&*key.namespace)).or_default().add(key, &selector);
        }
        self.selectors.insert(key.clone(), selector);
    }
}

impl Selectors {
    /// Registers an autoscaler, which selects nothing yet, and returns whether it is new.
    pub fn register(&self, key: &ObjectKey) -> bool {
        let mut state = self.0.lock();
        let is_new = !state.selectors.contains_key(key);
        if is_new {
            state.replace(key, Some(Selector::nothing()));
        }
        is_new
    }

    /// Drops an autoscaler that is deleted.
    pub fn forget(&self, key: &ObjectKey) {
        self.0.lock().replace(key, None);
    }

    /// Records the selector of a registered autoscaler.
    pub fn set(&self, key: &ObjectKey, selector: &Selector) {
        let mut state = self.0.lock();
        if state.selectors.get(key).is_some_and(|known| known != selector) {
            state.replace(key, Some(selector.clone()));
        }
    }

    /// Returns the autoscalers of a namespace that select one of its `pods`, sorted.
    pub fn selecting(&self, namespace: &str, pods: &[Arc<Pod>]) -> Vec<ObjectKey> {
        let state = self.0.lock();
        let Some(index) = state.index.get(namespace) else { return Vec::new() };
        let mut found = BTreeSet::new();
        // Most pods of one target have the same labels.
        let all: HashSet<&Labels> = pods.iter().map(|pod| &pod.meta.labels).collect();
        for labels in all {
            let selects = |key: &&ObjectKey| {
                state.selectors.get(*key).is_some_and(|selector| selector.matches(labels))
            };
            found.extend(index.candidates(labels).filter(selects));
        }
        found.into_iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_may_be_counted_by_several() {
        let key = |name: &str| ObjectKey::new("ns", name);
        let selectors = Selectors::default();
        for name in ["a", "b", "late"] {
            assert!(selectors.register(&key(name)));
        }
        assert!(!selectors.register(&key("a")));
        selectors.set(&key("a"), &"app=web".parse().unwrap());
        selectors.set(&key("b"), &"tier in (front,back)".parse().unwrap());
        selectors.set(&key("unknown"), &Selector::everything());
        let other = ObjectKey::new("other", "a");
        selectors.register(&other);
        selectors.set(&other, &Selector::everything());
        let pods = |labels: serde_json::Value| -> Vec<Arc<Pod>> {
            let pod = json!({ "metadata": { "name": "p", "labels": labels } });
            vec![Arc::new(serde_json::from_value(pod).unwrap())]
        };
        let both = pods(json!({ "app": "web", "tier": "back" }));
        assert_eq!(selectors.selecting("ns", &both), [key("a"), key("b")]);
        let one = pods(json!({ "app": "web" }));
        assert_eq!(selectors.selecting("ns", &one), [key("a")]);
        selectors.set(&key("a"), &"app in (web,api)".parse().unwrap());
        assert_eq!(selectors.selecting("ns", &both), [key("a"), key("b")]);
        selectors.set(&key("a"), &"app=api".parse().unwrap());
        assert_eq!(selectors.selecting("ns", &both), [key("b")]);
        selectors.set(&key("a"), &"app=web,tier!=front".parse().unwrap());
        assert_eq!(selectors.selecting("ns", &one), [key("a")]);
        selectors.forget(&key("a"));
        assert!(selectors.selecting("ns", &one).is_empty());
        assert!(selectors.selecting("ns", &[]).is_empty());
        for gone in [key("b"), key("late"), other] {
            selectors.forget(&gone);
        }
        let state = selectors.0.lock();
        assert!(state.selectors.is_empty() && state.index.is_empty());
    }
}
