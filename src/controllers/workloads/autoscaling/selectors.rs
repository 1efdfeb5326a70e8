//! The selectors of all autoscalers, to find pods that several of them count.
//! Upstream: `pkg/controller/util/selectors`, `hpasControllingPodsUnderSelector`.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

use crate::objects::{ObjectKey, Pod, Selector};

/// By the keys of autoscalers. One that has not been synced yet selects nothing.
#[derive(Default)]
pub(super) struct Selectors(Mutex<HashMap<ObjectKey, Selector>>);

impl Selectors {
    /// Whether the autoscaler is new.
    pub fn register(&self, key: &ObjectKey) -> bool {
        let mut selectors = self.0.lock();
        let is_new = !selectors.contains_key(key);
        if is_new {
            selectors.insert(key.clone(), Selector::nothing());
        }
        is_new
    }

    pub fn forget(&self, key: &ObjectKey) {
        self.0.lock().remove(key);
    }

    /// Notes the selector of an autoscaler that is registered.
    pub fn set(&self, key: &ObjectKey, selector: &Selector) {
        if let Some(known) = self.0.lock().get_mut(key) {
            *known = selector.clone();
        }
    }

    /// The autoscalers of a namespace that select one of its `pods`, sorted.
    pub fn selecting(&self, namespace: &str, pods: &[Arc<Pod>]) -> Vec<ObjectKey> {
        let selectors = self.0.lock();
        let mut found: Vec<ObjectKey> = selectors
            .iter()
            .filter(|(key, _)| key.namespace == *namespace)
            .filter(|(_, selector)| pods.iter().any(|pod| selector.matches(&pod.meta.labels)))
            .map(|(key, _)| key.clone())
            .collect();
        found.sort();
        found
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
        selectors.forget(&key("a"));
        assert!(selectors.selecting("ns", &one).is_empty());
        assert!(selectors.selecting("ns", &[]).is_empty());
    }
}
