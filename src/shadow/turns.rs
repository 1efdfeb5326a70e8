//! In which order the events of a namespace pass where some of them wait: what users ask after a write
//! of the manager in charge comes after it, in each watch.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

/// A namespace is forgotten when nothing in it was wanted for so long.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

#[derive(Default)]
pub struct Turns {
    last: u64,
    namespaces: HashMap<String, Namespace>,
}

#[derive(Default)]
struct Namespace {
    /// The writes of the one in charge that wait.
    writes: BTreeSet<u64>,
    /// When this manager last wanted one of them.
    wanted: Duration,
}

impl Turns {
    /// A write waits, until [`passes`](Self::passes). Returns its number.
    pub fn waits(&mut self, namespace: &str, now: Duration) -> u64 {
        self.last += 1;
        if !self.namespaces.contains_key(namespace) {
            self.namespaces.retain(|_, of| {
                !of.writes.is_empty() || now.saturating_sub(of.wanted) < FORGOTTEN_AFTER
            });
        }
        self.namespaces.entry(namespace.to_owned()).or_default().writes.insert(self.last);
        self.last
    }

    pub fn passes(&mut self, namespace: &str, number: u64) {
        if let Some(of) = self.namespaces.get_mut(namespace) {
            of.writes.remove(&number);
        }
    }

    /// The number of what comes now, if a write in its namespace waits.
    pub fn behind(&self, namespace: &str) -> Option<u64> {
        self.namespaces.get(namespace)?.writes.last().copied()
    }

    /// Whether no write with a number up to this one waits.
    pub fn has_come(&self, namespace: &str, number: u64) -> bool {
        let first = self.namespaces.get(namespace).and_then(|of| of.writes.first());
        first.is_none_or(|first| *first > number)
    }

    pub fn wanted(&mut self, namespace: &str, now: Duration) {
        if let Some(of) = self.namespaces.get_mut(namespace) {
            of.wanted = now;
        }
    }

    /// When a write in this namespace was last wanted.
    pub fn last_wanted(&self, namespace: &str) -> Option<Duration> {
        self.namespaces.get(namespace).map(|of| of.wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    #[test]
    fn what_comes_after_a_write_of_its_namespace_passes_after_it() {
        let mut turns = Turns::default();
        assert_eq!(turns.behind("a"), None);
        let (first, second) = (turns.waits("a", NOW), turns.waits("a", NOW));
        let asked = turns.behind("a").expect("two writes wait");
        let later = turns.waits("a", NOW);
        assert_eq!(turns.behind("b"), None);
        turns.passes("a", second);
        assert!(!turns.has_come("a", asked));
        turns.passes("a", first);
        assert!(turns.has_come("a", asked), "the write that came later does not count");
        turns.passes("a", later);
        assert_eq!(turns.behind("a"), None);
    }

    #[test]
    fn a_namespace_is_forgotten_once_nothing_waits_or_was_wanted_lately() {
        let mut turns = Turns::default();
        let number = turns.waits("wanted", NOW);
        turns.wanted("wanted", FORGOTTEN_AFTER);
        turns.passes("wanted", number);
        let number = turns.waits("idle", NOW);
        turns.waits("waiting", NOW);
        turns.passes("idle", number);
        turns.waits("new", FORGOTTEN_AFTER);
        let mut known: Vec<_> = turns.namespaces.keys().cloned().collect();
        known.sort();
        assert_eq!(known, ["new", "waiting", "wanted"]);
    }
}
