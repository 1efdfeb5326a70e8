//! A reflector's target that tells the whole state after each change.

use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;

use super::store::{ReflectorStore, Store};
use crate::objects::Object;

/// Hands all its objects to a function after every change: for readers of small sets to whom a
/// state is easier than a change. Calls come one at a time, in order; the function must not call
/// the store. Upstream: `cache.UndeltaStore`.
pub struct UndeltaStore<T> {
    state: Mutex<State<T>>,
    push: Box<dyn Fn(Vec<Arc<T>>) + Send + Sync>,
}

struct State<T> {
    store: Store<T>,
    /// The list under way.
    next: Option<Store<T>>,
}

impl<T: Object> UndeltaStore<T> {
    pub fn new(push: impl Fn(Vec<Arc<T>>) + Send + Sync + 'static) -> UndeltaStore<T> {
        let state = State { store: Store::new(), next: None };
        UndeltaStore { state: Mutex::new(state), push: Box::new(push) }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock()
    }

    fn change(&self, change: impl FnOnce(&mut State<T>)) {
        let mut state = self.lock();
        change(&mut state);
        // Under the lock, or an older state could be told last.
        (self.push)(state.store.iter().cloned().collect());
    }
}

impl<T: Object> ReflectorStore<T> for UndeltaStore<T> {
    fn add(&self, object: Arc<T>) {
        self.change(|state| {
            state.store.insert(object);
        });
    }

    fn update(&self, object: Arc<T>) {
        self.add(object);
    }

    fn delete(&self, object: Arc<T>) {
        let key = object.meta().key();
        if let Some(next) = &mut self.lock().next {
            next.remove(&key);
            return;
        }
        self.change(|state| {
            state.store.remove(&key);
        });
    }

    fn begin_replace(&self) {
        self.lock().next = Some(Store::new());
    }

    fn replace_item(&self, object: Arc<T>) {
        self.lock().next.get_or_insert_default().insert(object);
    }

    fn finish_replace(&self, _: u64) {
        self.change(|state| state.store = state.next.take().unwrap_or_default());
    }

    fn bookmark(&self, _: u64) {}
}

#[cfg(test)]
mod tests {
    use super::super::testing::object;
    use super::*;

    #[test]
    fn each_change_tells_the_whole_state_and_a_list_is_one_change() {
        let (sender, told) = async_channel::unbounded();
        let store = UndeltaStore::new(move |objects: Vec<_>| {
            sender.try_send(objects.len()).expect("the receiver lives");
        });
        store.add(object("a", "x", 1));
        store.update(object("a", "x", 2));
        store.begin_replace();
        store.replace_item(object("a", "y", 3));
        store.replace_item(object("a", "z", 3));
        store.replace_item(object("a", "gone", 3));
        store.delete(object("a", "gone", 3));
        store.finish_replace(3);
        store.delete(object("a", "y", 4));
        let told: Vec<usize> = std::iter::from_fn(|| told.try_recv().ok()).collect();
        assert_eq!(told, [1, 1, 2, 1]);
    }
}
