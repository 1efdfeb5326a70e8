//! Whether pods can have a network of their own. Upstream: `runtimeState.networkErrors`.

use std::sync::Arc;

use parking_lot::Mutex;

/// Why pods cannot have a network of their own, as the runtime said last. Cheap to clone: clones are
/// one state.
#[derive(Clone, Debug)]
pub struct NetworkState(Arc<Mutex<Option<String>>>);

impl Default for NetworkState {
    /// Creates the state of a runtime that was not asked yet: its network counts as not ready.
    fn default() -> NetworkState {
        NetworkState(Arc::new(Mutex::new(Some("network state unknown".to_owned()))))
    }
}

impl NetworkState {
    /// Records what the runtime says; `None`: pods can have a network.
    pub fn set(&self, fault: Option<String>) {
        *self.0.lock() = fault;
    }

    /// Returns why pods cannot have a network; `None`: they can.
    pub fn fault(&self) -> Option<String> {
        self.0.lock().clone()
    }
}
