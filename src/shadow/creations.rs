//! What both managers write once: the content that this one wanted against the content that came.
//! No I/O: time is an argument.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::Value;

use super::contents::{differences, part};
use super::diff::Change;
use super::ledger::{IntendedWrite, Place};

/// A creation of the one in charge is compared with what this manager wants up to so much later.
const RECENT: Duration = Duration::from_secs(15);

/// Of one place: how many recent creations are kept.
const KEPT: usize = 50;

/// What this manager wanted otherwise.
pub struct Differing {
    pub wish: IntendedWrite,
    /// With what came instead as the old value.
    pub changes: Vec<Change>,
    /// What it wanted.
    part: Value,
    pub since: Duration,
    pub times: u64,
}

/// How a creation of the one in charge compares with what this manager wants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// `is_first`: this one of several equal creations was not wanted before.
    Agrees {
        is_first: bool,
    },
    Differs,
}

struct Made {
    part: Value,
    at: Duration,
    /// This manager has wanted it too.
    is_wanted: bool,
}

#[derive(Default)]
pub struct Creations {
    /// Of the one in charge.
    recent: HashMap<Place, Vec<Made>>,
    differing: Vec<Differing>,
}

impl Creations {
    /// The one in charge has created an object.
    pub fn made(&mut self, now: Duration, place: &Place, object: &Value) {
        let Some(part) = part(&place.resource, object) else { return };
        self.differing.retain(|differing| {
            differing.wish.place != *place
                || !differences(&place.resource, &differing.part, &part).is_empty()
        });
        let recent = self.recent.entry(place.clone()).or_default();
        if recent.len() == KEPT {
            recent.remove(0);
        }
        recent.push(Made { part, at: now, is_wanted: false });
    }

    /// Whether the one in charge has made what this manager wants to create. `None`: it has lately
    /// created nothing there, or objects of this kind are not compared. One content of those that
    /// share a name's prefix is enough: a batch begins with any of them.
    pub fn agrees(&mut self, now: Duration, wish: &IntendedWrite) -> Option<Verdict> {
        let wanted = part(&wish.place.resource, &wish.request.body)?;
        let is_recent = |made: &&mut Made| now.saturating_sub(made.at) < RECENT;
        let recent = self.recent.get_mut(&wish.place)?.iter_mut().filter(is_recent);
        let (made, closest) = recent
            .map(|made| {
                let changes = differences(&wish.place.resource, &wanted, &made.part);
                (made, changes)
            })
            .min_by_key(|(made, changes)| (changes.len(), made.is_wanted))?;
        let of_wish = |known: &Differing| {
            known.wish.place == wish.place && known.wish.controller == wish.controller
        };
        if closest.is_empty() {
            let is_first = !std::mem::replace(&mut made.is_wanted, true);
            self.differing.retain(|known| !of_wish(known));
            return Some(Verdict::Agrees { is_first });
        }
        self.differs(now, wish, closest, wanted);
        Some(Verdict::Differs)
    }

    /// What is at a place differs for good from what this manager wants.
    pub fn differs(
        &mut self,
        now: Duration,
        wish: &IntendedWrite,
        changes: Vec<Change>,
        part: Value,
    ) {
        let known = self.differing.iter_mut().find(|known| {
            known.wish.place == wish.place && known.wish.controller == wish.controller
        });
        match known {
            Some(known) => known.times += 1,
            None => self.differing.push(Differing {
                wish: wish.clone(),
                changes,
                part,
                since: now,
                times: 1,
            }),
        }
    }

    pub fn differing(&self) -> impl Iterator<Item = &Differing> {
        self.differing.iter()
    }

    /// Forgets what is no longer recent.
    pub fn tick(&mut self, now: Duration) {
        self.recent.retain(|_, made| {
            made.retain(|made| now.saturating_sub(made.at) < RECENT);
            !made.is_empty()
        });
    }
}
