//! A bounded set of uids. Upstream: `uidCache`.

use std::collections::{HashSet, VecDeque};

use parking_lot::Mutex;

use crate::objects::Uid;

/// Upstream: `maxUIDCacheEntries`.
const MAX_UIDS: usize = 500;

/// The last uids that were added.
#[derive(Default)]
pub struct RecentUids {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    known: HashSet<Uid>,
    /// The same uids, the oldest first.
    order: VecDeque<Uid>,
}

impl RecentUids {
    /// Adds `uid`; of more than [`MAX_UIDS`] the oldest is removed.
    pub fn add(&self, uid: &Uid) {
        let State { known, order } = &mut *self.state.lock();
        if !known.insert(uid.clone()) {
            return;
        }
        order.push_back(uid.clone());
        if order.len() > MAX_UIDS
            && let Some(oldest) = order.pop_front()
        {
            known.remove(&oldest);
        }
    }

    pub fn has(&self, uid: &Uid) -> bool {
        self.state.lock().known.contains(uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_first() {
        let recent = RecentUids::default();
        let uid = |n: usize| Uid::new(&n.to_string());
        for n in 0..=MAX_UIDS {
            recent.add(&uid(n));
            recent.add(&uid(n));
        }
        assert!(!recent.has(&uid(0)));
        assert!((1..=MAX_UIDS).all(|n| recent.has(&uid(n))));
    }
}
