//! Which static pod of a full name may run: one at a time, in the order of their creation.
//! Upstream: `startedStaticPodsByFullname`, `waitingToStartStaticPodsByFullname`.

use std::collections::{HashMap, VecDeque};

use crate::pod::Uid;

/// The static pods that run and wait, by full name.
#[derive(Debug, Default)]
pub(super) struct StaticPods {
    started: HashMap<String, Uid>,
    /// In the order of their creation.
    waiting: HashMap<String, VecDeque<Uid>>,
}

impl StaticPods {
    /// Adds a new pod to those that wait until they may start.
    pub(super) fn wait(&mut self, name: &str, uid: Uid) {
        self.waiting.entry(name.to_owned()).or_default().push_back(uid);
    }

    /// Records that a pod starts, unless another one with its name runs or has waited longer.
    /// Returns whether it may run. Upstream: `allowStaticPodStart`.
    pub(super) fn start(&mut self, name: &str, uid: &Uid) -> bool {
        if let Some(started) = self.started.get(name) {
            return started == uid;
        }
        let Some(waiting) = self.waiting.get_mut(name) else { return false };
        if waiting.front() != Some(uid) {
            return false;
        }
        waiting.pop_front();
        if waiting.is_empty() {
            self.waiting.remove(name);
        }
        self.started.insert(name.to_owned(), uid.clone());
        true
    }

    /// Forgets a pod that neither runs nor waits any more.
    pub(super) fn remove(&mut self, name: &str, uid: &str) {
        if self.started.get(name).is_some_and(|started| **started == *uid) {
            self.started.remove(name);
        }
        if let Some(waiting) = self.waiting.get_mut(name) {
            waiting.retain(|waiting| **waiting != *uid);
            if waiting.is_empty() {
                self.waiting.remove(name);
            }
        }
    }
}
