//! A store that passes its whole contents to a function after each change.
//! Upstream: `cache.UndeltaStore`.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Receives the contents, ordered by key.
pub type PushFn<T> = Box<dyn Fn(Vec<Arc<T>>) + Send + Sync>;

/// Objects by key, for a consumer that wants states in place of changes: it compares each state
/// with the one before. A kubelet's sources of pods are such producers.
///
/// # What holds
///
/// - After each change the whole contents are pushed, also when the change made no difference.
/// - Pushes come one after the other, in the order of the changes, while the store is locked: the
///   function must be short and must not call the store.
///
/// A list that is not complete yet would be pushed as a state. A producer that adds the objects of
/// a list one by one lets the function ignore them, and calls [`resync`](Self::resync) at the
/// list's end.
///
/// ```
/// use std::sync::Arc;
///
/// use kube_controller_manager::cache::UndeltaStore;
///
/// let store = UndeltaStore::new(Box::new(|pods: Vec<Arc<&str>>| println!("{pods:?}")));
/// store.add("default/a".to_owned(), Arc::new("a"));
/// store.add("default/b".to_owned(), Arc::new("b"));
/// store.delete("default/a"); // prints ["b"]
/// ```
///
/// Upstream: `cache.UndeltaStore`.
pub struct UndeltaStore<T> {
    objects: Mutex<BTreeMap<String, Arc<T>>>,
    push: PushFn<T>,
}

impl<T> UndeltaStore<T> {
    /// Makes an empty store; nothing is pushed before the first change.
    pub fn new(push: PushFn<T>) -> UndeltaStore<T> {
        UndeltaStore { objects: Mutex::default(), push }
    }

    /// Changes the contents and pushes all of them.
    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, Arc<T>>)) {
        let mut objects = self.objects.lock();
        change(&mut objects);
        (self.push)(objects.values().cloned().collect());
    }

    /// Adds or replaces the object of `key`, and pushes the contents.
    pub fn add(&self, key: String, object: Arc<T>) {
        self.change(|objects| _ = objects.insert(key, object));
    }

    /// Removes the object of `key`. Pushes also if there was no such object, as upstream does.
    pub fn delete(&self, key: &str) {
        self.change(|objects| _ = objects.remove(key));
    }

    /// Replaces the contents and pushes them. Of several objects with one key the last one stays.
    pub fn replace(&self, contents: Vec<(String, Arc<T>)>) {
        self.change(|objects| *objects = contents.into_iter().collect());
    }

    /// Pushes the contents as they are. Upstream: `Resync`, which does nothing there.
    pub fn resync(&self) {
        self.change(|_| {});
    }

    /// Returns the object of `key`.
    pub fn get(&self, key: &str) -> Option<Arc<T>> {
        self.objects.lock().get(key).cloned()
    }

    /// Returns all objects, ordered by key.
    pub fn list(&self) -> Vec<Arc<T>> {
        self.objects.lock().values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_contents_are_pushed_after_each_change() {
        let pushed: Arc<Mutex<Vec<Vec<u32>>>> = Arc::default();
        let pushes = pushed.clone();
        let store = UndeltaStore::new(Box::new(move |objects: Vec<Arc<u32>>| {
            pushes.lock().push(objects.iter().map(|object| **object).collect());
        }));
        let object = |number: u32| (number.to_string(), Arc::new(number));
        assert!(pushed.lock().is_empty());
        store.add("2".to_owned(), Arc::new(2));
        store.add("1".to_owned(), Arc::new(1));
        store.delete("2");
        store.delete("2");
        store.replace(vec![object(3), object(4)]);
        store.resync();
        store.replace(Vec::new());
        let expected: [&[u32]; 7] = [&[2], &[1, 2], &[1], &[1], &[3, 4], &[3, 4], &[]];
        assert_eq!(*pushed.lock(), expected);
        store.add("5".to_owned(), Arc::new(5));
        assert_eq!(store.get("5").as_deref(), Some(&5));
        assert_eq!(store.get("3"), None);
        assert_eq!(store.list(), [Arc::new(5)]);
    }
}
