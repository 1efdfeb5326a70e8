//! Compares objects that are written only once: the content that this manager wanted, and the
//! content that the manager in charge wrote. No I/O: time is an argument.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde_json::Value;

use super::contents::{differences, part};
use super::diff::Change;
use super::intended::{IntendedWrite, Place};
use super::request::Request;

/// How long after a creation by the manager in charge this manager's intended one is compared with
/// it.
const RECENT: Duration = Duration::from_secs(15);

/// The number of recent creations that are kept for each place.
const MAX_RECENT: usize = 50;

/// The number of differing creations of a controller that are kept for the report: each may have
/// many kilobytes.
const KEPT_DIFFERING: usize = 20;

/// A creation whose content this manager wanted to be different.
pub struct Differing {
    /// Without its body, and with the values of the manager in charge as old values of its changes.
    pub intended: IntendedWrite,
    /// The uid of the object's first owner, if it has one.
    owner: Option<String>,
    /// The content that this manager wanted.
    part: Value,
    pub since: Duration,
    pub times: u64,
}

/// How a creation by the manager in charge compares with the one that this manager wants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// `is_first`: this one of several equal creations was not wanted before.
    Agrees {
        is_first: bool,
    },
    Differs,
}

/// A creation by the manager in charge.
struct Made {
    part: Value,
    at: Duration,
    /// Whether this manager has wanted it too.
    is_wanted: bool,
}

/// The creations of the manager in charge that the ledger compares with this manager's.
#[derive(Default)]
pub struct Creations {
    /// The recent creations by the manager in charge.
    recent: HashMap<Place, Vec<Made>>,
    /// At most [`KEPT_DIFFERING`] of each controller.
    differing: Vec<Differing>,
    /// The number of differing creations of each controller that `differing` has no room for.
    beyond: BTreeMap<String, u64>,
}

impl Creations {
    /// Keeps the content of an object that the manager in charge has created, and forgets the
    /// differing creations at its place that this content resolves. Ignores objects of kinds that
    /// are not compared.
    pub fn record_created(&mut self, now: Duration, place: &Place, object: &Value) {
        let Some(part) = part(&place.resource, object) else { return };
        self.differing.retain(|differing| {
            differing.intended.place != *place
                || !differences(&place.resource, &differing.part, &part).is_empty()
        });
        let recent = self.recent.entry(place.clone()).or_default();
        if recent.len() == MAX_RECENT {
            recent.remove(0);
        }
        recent.push(Made { part, at: now, is_wanted: false });
    }

    /// Compares the creation that this manager wants with those of the manager in charge. Returns
    /// `None` if there is no recent creation at this place, or if objects of this kind are not
    /// compared. One equal content among those with the same name prefix is enough: a batch may
    /// begin with any of them. It ends the known differences of this creation; else the closest
    /// content is recorded as a difference.
    pub fn compare_and_record(
        &mut self,
        now: Duration,
        intended: &IntendedWrite,
    ) -> Option<Verdict> {
        let wanted = part(&intended.place.resource, &intended.request.body)?;
        let is_recent = |made: &&mut Made| now.saturating_sub(made.at) < RECENT;
        let recent = self.recent.get_mut(&intended.place)?.iter_mut().filter(is_recent);
        let (made, closest) = recent
            .map(|made| {
                let changes = differences(&intended.place.resource, &wanted, &made.part);
                (made, changes)
            })
            // Among equally close ones, the first that was not wanted before.
            .min_by_key(|(made, changes)| (changes.len(), made.is_wanted))?;
        let of_intended = |known: &Differing| {
            known.intended.place == intended.place
                && known.intended.controller == intended.controller
        };
        if closest.is_empty() {
            let is_first = !std::mem::replace(&mut made.is_wanted, true);
            self.differing.retain(|known| !of_intended(known));
            return Some(Verdict::Agrees { is_first });
        }
        self.record_mismatch(now, intended, closest, wanted);
        Some(Verdict::Differs)
    }

    /// Records that the manager in charge created another object than this one would have. A repeat
    /// by the same controller only counts up. Beyond [`KEPT_DIFFERING`] of a controller only their
    /// number is kept.
    pub fn record_mismatch(
        &mut self,
        now: Duration,
        intended: &IntendedWrite,
        changes: Vec<Change>,
        part: Value,
    ) {
        let known = self.differing.iter_mut().find(|known| {
            known.intended.place == intended.place
                && known.intended.controller == intended.controller
        });
        if let Some(known) = known {
            known.times += 1;
            return;
        }
        let of_controller =
            self.differing.iter().filter(|known| known.intended.controller == intended.controller);
        if of_controller.count() == KEPT_DIFFERING {
            *self.beyond.entry(intended.controller.clone()).or_default() += 1;
            return;
        }
        let owner = intended.request.body["metadata"]["ownerReferences"][0]["uid"].as_str();
        let owner = owner.map(str::to_owned);
        let request = Request { body: Value::Null, ..intended.request.clone() };
        let intended = IntendedWrite { request, changes, ..intended.clone() };
        self.differing.push(Differing { intended, owner, part, since: now, times: 1 });
    }

    /// Forgets the differing creations that a deleted object owned, and its own if it had no owner.
    /// Returns their controllers.
    pub fn record_gone(&mut self, place: &Place, uid: &str) -> Vec<String> {
        let is_of = |known: &mut Differing| match &known.owner {
            Some(owner) => owner == uid,
            None => known.intended.place == *place,
        };
        let gone = self.differing.extract_if(.., is_of);
        gone.map(|known| known.intended.controller).collect()
    }

    pub fn differing(&self) -> impl Iterator<Item = &Differing> {
        self.differing.iter()
    }

    /// Returns how often each controller wanted a differing creation that is not kept.
    pub fn beyond(&self) -> impl Iterator<Item = (&String, &u64)> {
        self.beyond.iter()
    }

    /// Forgets creations that are no longer recent.
    pub fn tick(&mut self, now: Duration) {
        self.recent.retain(|_, made| {
            made.retain(|made| now.saturating_sub(made.at) < RECENT);
            !made.is_empty()
        });
    }
}
