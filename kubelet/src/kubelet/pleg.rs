//! Finds the pods whose state in the runtime has changed: all sandboxes and containers are listed
//! once a second, or less often without pods, by two calls. Upstream: `pleg.GenericPLEG`.

use std::collections::{BTreeMap, BTreeSet};

use futures_lite::future::try_zip;

use crate::cri::{Error, RuntimeService, api};
use crate::pod::Uid;
use crate::runtime::labels;
use crate::runtime::status::State;

/// The sandboxes and containers of each pod with their states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    pods: BTreeMap<Uid, BTreeSet<(String, State)>>,
    /// Pods with a sandbox that is ready.
    running: BTreeSet<Uid>,
    /// How many containers have each state.
    containers: BTreeMap<State, usize>,
}

impl Snapshot {
    /// Lists the runtime's sandboxes and containers, with their states by pod.
    ///
    /// # Errors
    /// When a call fails.
    pub async fn read(runtime: &RuntimeService) -> Result<Snapshot, Error> {
        // Both at once: the thread is woken for both answers together.
        let sandboxes = runtime.list_pod_sandbox(api::ListPodSandboxRequest::default());
        let containers = runtime.list_containers(api::ListContainersRequest::default());
        let (sandboxes, containers) = try_zip(sandboxes, containers).await?;
        let mut snapshot = Snapshot::default();
        for sandbox in sandboxes.items {
            let is_ready = sandbox.state == api::PodSandboxState::SandboxReady as i32;
            let state = if is_ready { State::Running } else { State::Exited };
            let uid = labels::pod_uid(&sandbox.labels);
            snapshot.running.extend(uid.clone().filter(|_| is_ready));
            snapshot.add(uid, sandbox.id, state);
        }
        for container in containers.containers {
            let state = State::of(container.state);
            *snapshot.containers.entry(state).or_default() += 1;
            snapshot.add(labels::pod_uid(&container.labels), container.id, state);
        }
        Ok(snapshot)
    }

    /// Adds the state of a sandbox or container to its pod. What has no pod's uid is another
    /// program's, and is ignored.
    fn add(&mut self, uid: Option<Uid>, id: String, state: State) {
        if let Some(uid) = uid {
            self.pods.entry(uid).or_default().insert((id, state));
        }
    }

    /// Returns the pods that differ from those of an earlier snapshot.
    pub fn changed_since(&self, earlier: &Snapshot) -> BTreeSet<Uid> {
        let all = self.pods.keys().chain(earlier.pods.keys());
        all.filter(|uid| self.pods.get(*uid) != earlier.pods.get(*uid)).cloned().collect()
    }

    /// Returns how many pods have a sandbox that is ready.
    pub fn running_pods(&self) -> usize {
        self.running.len()
    }

    /// Returns how many containers have a state.
    pub fn containers(&self, state: State) -> usize {
        self.containers.get(&state).copied().unwrap_or_default()
    }

    /// Returns the pods of which the runtime has anything.
    pub fn pods(&self) -> impl Iterator<Item = &Uid> {
        self.pods.keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(items: &[(&str, &str, State)]) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for (uid, id, state) in items {
            snapshot.add(Uid::parse(uid), (*id).to_owned(), *state);
        }
        snapshot
    }

    #[test]
    fn changes_name_their_pods() {
        use State::{Exited, Running};
        let old = snapshot(&[("a", "1", Running), ("b", "2", Running), ("c", "3", Running)]);
        let new = snapshot(&[("d", "4", Running), ("b", "2", Exited), ("c", "3", Running)]);
        let changed: Vec<String> =
            new.changed_since(&old).iter().map(ToString::to_string).collect();
        assert_eq!(changed, ["a", "b", "d"]);
        assert!(new.changed_since(&new).is_empty());
    }

    #[test]
    fn containers_without_a_pod_are_ignored() {
        let mut snapshot = Snapshot::default();
        snapshot.add(None, "1".to_owned(), State::Running);
        assert_eq!(snapshot.pods().count(), 0);
    }
}
