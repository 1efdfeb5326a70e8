//! The attachable volumes that this node uses, as its Node says: a controller detaches none of them.
//! Upstream: `GetVolumesInUse`, `MarkVolumesAsReportedInUse`.

use std::collections::BTreeSet;
use std::sync::Arc;

use event_listener::{Event, EventListener};
use kube_controller_manager::task::notify_all;
use parking_lot::Mutex;

/// Cheap to clone: clones are the same.
#[derive(Clone, Default)]
pub struct VolumesInUse(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    changed: Event,
    reported: Event,
}

#[derive(Default)]
struct State {
    /// `None`: what an earlier kubelet has left is not known yet.
    names: Option<BTreeSet<String>>,
    /// Those that the API server knows.
    reported: BTreeSet<String>,
}

impl VolumesInUse {
    /// Adds the volumes that an earlier kubelet has left in use: from now on the names are known.
    pub(super) fn begin(&self, names: impl IntoIterator<Item = String>) {
        self.0.state.lock().names.get_or_insert_default().extend(names);
        notify_all(&self.0.changed);
    }

    /// Records that a pod needs a volume. Returns whether the API server knows already that it is
    /// in use.
    pub(super) fn add(&self, name: &str) -> bool {
        let mut state = self.0.state.lock();
        let is_reported = state.reported.contains(name);
        if state.names.as_mut().is_some_and(|names| names.insert(name.to_owned())) {
            notify_all(&self.0.changed);
        }
        is_reported
    }

    /// Records that nothing uses a volume any more.
    pub(super) fn remove(&self, name: &str) {
        let mut state = self.0.state.lock();
        state.reported.remove(name);
        if state.names.as_mut().is_some_and(|names| names.remove(name)) {
            notify_all(&self.0.changed);
        }
    }

    /// Lists the names of the volumes in order; `None`: they are not known yet.
    pub fn names(&self) -> Option<Vec<String>> {
        Some(self.0.state.lock().names.as_ref()?.iter().cloned().collect())
    }

    /// Records that the API server knows that these volumes are in use, and no others.
    pub fn mark_reported(&self, names: &[String]) {
        let mut state = self.0.state.lock();
        let known: BTreeSet<String> = names.iter().cloned().collect();
        // One that was released meanwhile has to be reported once more.
        let in_use = state.names.clone().unwrap_or_default();
        let reported: BTreeSet<String> = known.intersection(&in_use).cloned().collect();
        if reported != state.reported {
            state.reported = reported;
            notify_all(&self.0.reported);
        }
    }

    /// Returns a listener that wakes when the names change.
    pub fn changed(&self) -> EventListener {
        self.0.changed.listen()
    }

    /// Returns a listener that wakes when [`Self::mark_reported`] changes what the API server
    /// knows.
    pub(super) fn reported(&self) -> EventListener {
        self.0.reported.listen()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_reported_before_they_are_used() {
        let volumes = VolumesInUse::default();
        assert!(!volumes.add("early"), "nothing is known yet");
        assert_eq!(volumes.names(), None);
        volumes.begin(["old".to_owned()]);
        assert!(!volumes.add("new"));
        let names = volumes.names().expect("names");
        assert_eq!(names, ["new", "old"]);
        volumes.mark_reported(&names);
        assert!(volumes.add("new") && volumes.add("old"));
        volumes.remove("new");
        // A report that was on its way does not count for the next use.
        volumes.mark_reported(&names);
        assert!(!volumes.add("new"));
        assert_eq!(volumes.names().expect("names"), ["new", "old"]);
    }
}
