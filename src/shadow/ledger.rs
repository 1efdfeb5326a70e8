//! Compares the writes that this manager would have made with those of the manager in charge. No
//! I/O: time is an argument.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use serde_json::Value;

use super::contents::other_verdicts;
use super::creations::{Creations, Verdict};
use super::diff::same;
use super::intended::{IntendedWrite, Place};
use super::report::{Item, Outcome, Report, Row, Unexpected};
use super::request::{Effect, Request};
use crate::lookup::Lookup;
use crate::objects::Uid;

/// A write of the manager in charge is expected at once if this manager wanted a write of the same
/// place and kind within this time before it.
const CLAIM_WINDOW: Duration = Duration::from_secs(10);

/// An intention that is not repeated within this time is dropped: it was a single attempt.
const REPEATED_WITHIN: Duration = Duration::from_secs(3 * 60);

/// An intention whose content changes all the time is late after this many times the grace period.
const CHANGING_GRACE_FACTOR: u32 = 4;

/// The first and the longest delay of a key whose sync wanted to write.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(15);

/// The number of unexpected writes, and of met intentions, that are kept for the report.
const SHOWN: usize = 1000;
const SHOWN_MET: usize = 20;

/// A kind of write, to compare what both managers do at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Create,
    /// An update of a subresource, or of the object itself (empty).
    Change(String),
    /// The object was read, most likely to write it.
    Read,
}

/// A write of the manager in charge.
#[derive(Clone, Debug)]
pub struct Write {
    pub place: Place,
    /// The place of its generated name.
    pub generated: Option<Place>,
    /// The place of all objects of its owner, or of all volumes to which its claim may be bound.
    pub siblings: Option<Place>,
    pub kind: Kind,
    pub version: String,
    /// The fields that the manager owns after the write.
    pub fields: Vec<String>,
}

/// The kind of a change of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    Present,
    Gone,
}

/// A write that this manager wants, until it is met or dropped.
struct Intention {
    intended: IntendedWrite,
    /// The time since when it is wanted with this content.
    first: Duration,
    /// The time since when it is wanted with any content.
    since: Duration,
    last: Duration,
    times: u64,
    /// Whether the manager in charge has written to the place since.
    touched: bool,
    /// Whether it has written other values than the wanted ones to a field of the intention.
    rewritten: bool,
    /// When the live object was last compared, after the grace period.
    checked: Option<Duration>,
    /// When it was last found that the API server refuses the same write to the manager in charge.
    refused: Option<Duration>,
}

/// A kind of write that a controller of this manager has wanted at a place.
struct Claim {
    kind: Kind,
    controller: String,
    last: Duration,
}

/// How an intention ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Met,
    Dropped,
    /// The manager in charge has created an object with another content.
    Differs,
}

impl End {
    fn met_if(is_met: bool) -> End {
        if is_met { End::Met } else { End::Dropped }
    }
}

/// A write of the manager in charge that passed before this manager wanted it.
struct Suspect {
    write: Write,
    at: Duration,
}

/// The counts of a controller for its row of the report.
#[derive(Default)]
struct Counts {
    expected: u64,
    met: u64,
    dropped: u64,
}

/// The object with which an intention is compared after its grace period.
pub struct Check {
    pub place: Place,
    pub controller: String,
    pub key: String,
    /// How long ago it was first wanted.
    pub age: Duration,
    pub request: Request,
}

/// The live object at the place of a [`Check`].
#[derive(Clone, Copy, Debug)]
pub enum Live<'a> {
    Object(&'a Value),
    /// There is no object, or it is being deleted.
    Absent,
    /// As absent, and an event of the manager in charge reports that it could not create the
    /// object.
    Refused,
    Unknown,
}

/// The writes that this manager wants and those of the manager in charge, until they are matched.
/// `Shadow` owns it; its clients, watches and syncs fill it.
pub struct Ledger {
    grace: Duration,
    begun: Duration,
    /// The writes that this manager wants and that have not ended.
    open: HashMap<Place, Vec<Intention>>,
    /// What this manager has wanted recently.
    claims: HashMap<Place, Vec<Claim>>,
    /// Writes of the manager in charge that this manager may still want.
    suspects: Vec<Suspect>,
    /// The last judged write at each place: another watch may deliver the same write.
    judged: HashMap<Place, (String, Duration)>,
    unexpected: Vec<Unexpected>,
    unexpected_count: u64,
    expected: u64,
    met: VecDeque<Item>,
    counts: BTreeMap<String, Counts>,
    creations: Creations,
}

impl Intention {
    /// Returns how long the manager in charge may take to make the write.
    fn allowed(&self, grace: Duration) -> Duration {
        grace + self.intended.patience
    }

    /// Returns whether the write has been wanted for longer than allowed: with this content, or
    /// with contents that change all the time.
    fn is_late(&self, grace: Duration, now: Duration) -> bool {
        let allowed = self.allowed(grace);
        now.saturating_sub(self.first) >= allowed
            || now.saturating_sub(self.since) >= allowed * CHANGING_GRACE_FACTOR
    }

    /// Returns how the intention stands: it is pending until the grace period is over and the live
    /// object was checked.
    fn outcome(&self, grace: Duration, now: Duration) -> Outcome {
        if !self.is_late(grace, now) || self.checked.is_none() {
            return Outcome::Pending;
        }
        if self.refused.is_some() {
            return Outcome::Refused;
        }
        if self.rewritten { Outcome::Contradicted } else { Outcome::Outstanding }
    }

    /// Returns whether both are the same request of the same controller; contents may differ.
    fn is_same(&self, intended: &IntendedWrite) -> bool {
        self.intended.controller == intended.controller
            && self.intended.request.method == intended.request.method
            && self.intended.request.subresource == intended.request.subresource
    }

    /// Makes the row of the report for this intention.
    fn item(&self, outcome: Outcome, now: Duration) -> Item {
        item(&self.intended, outcome, now.saturating_sub(self.since), self.times)
    }

    /// Returns whether the write would change nothing in the live object. If it would, a wanted
    /// field whose live value has changed marks the intention as rewritten if `by_incumbent` (the
    /// manager in charge wrote this state); else it only becomes the new old value.
    fn compare(&mut self, live: &Value, by_incumbent: bool) -> bool {
        let found = match self.intended.request.effect(live) {
            Effect::Nothing => return true,
            Effect::Unknown => return false,
            Effect::Changes(found) => found,
        };
        let found = Lookup::new(&found, |change| change.path.as_str());
        for wanted in &mut self.intended.changes {
            let current = found.get(&wanted.path);
            let Some(current) = current.filter(|current| !same(&wanted.old, &current.old)) else {
                continue;
            };
            match by_incumbent {
                true => self.rewritten = true,
                // The manager in charge finds the value of the other writer.
                false => wanted.old = current.old.clone(),
            }
        }
        false
    }
}

impl Ledger {
    /// Makes an empty ledger. `now`: the time from which writes of the manager in charge are
    /// judged.
    pub fn new(grace: Duration, now: Duration) -> Ledger {
        Ledger {
            grace,
            begun: now,
            open: HashMap::new(),
            claims: HashMap::new(),
            suspects: Vec::new(),
            judged: HashMap::new(),
            unexpected: Vec::new(),
            unexpected_count: 0,
            expected: 0,
            met: VecDeque::new(),
            counts: BTreeMap::new(),
            creations: Creations::default(),
        }
    }

    fn counts_of(&mut self, controller: &str) -> &mut Counts {
        self.counts.entry(controller.to_owned()).or_default()
    }

    /// Counts an intention that has ended, and keeps a met one for the report. One that differs
    /// is counted elsewhere.
    fn close(&mut self, intention: &Intention, end: End, now: Duration) {
        let counts = self.counts_of(&intention.intended.controller);
        match end {
            // `creations` keeps it and reports it.
            End::Differs => return,
            End::Dropped => {
                counts.dropped += 1;
                return;
            }
            End::Met => counts.met += 1,
        }
        self.met.push_front(intention.item(Outcome::Met, now));
        self.met.truncate(SHOWN_MET);
    }

    /// Closes the intentions at `place` for which `judge` returns how they end.
    fn settle(
        &mut self,
        place: &Place,
        now: Duration,
        mut judge: impl FnMut(&mut Intention) -> Option<End>,
    ) {
        let Some(mut intentions) = self.open.remove(place) else { return };
        let mut closed = Vec::new();
        intentions = intentions
            .into_iter()
            .filter_map(|mut intention| match judge(&mut intention) {
                None => Some(intention),
                Some(end) => {
                    closed.push((intention, end));
                    None
                }
            })
            .collect();
        for (intention, end) in closed {
            self.close(&intention, end, now);
        }
        if !intentions.is_empty() {
            self.open.insert(place.clone(), intentions);
        }
    }

    /// Records a write that this manager would have made. A repeat replaces the content of the open
    /// intention, but keeps its first old values.
    pub fn record_intended(&mut self, now: Duration, intended: IntendedWrite) {
        self.claim(now, &intended.place, kind_of(&intended.request), &intended.controller);
        let intentions = self.open.entry(intended.place.clone()).or_default();
        let Some(known) = intentions.iter_mut().find(|known| known.is_same(&intended)) else {
            intentions.push(Intention {
                intended,
                first: now,
                since: now,
                last: now,
                times: 1,
                touched: false,
                rewritten: false,
                checked: None,
                refused: None,
            });
            return;
        };
        let former = Lookup::new(&known.intended.changes, |change| change.path.as_str());
        let is_unchanged = known.intended.changes.len() == intended.changes.len()
            && intended.changes.iter().all(|change| {
                former.get(&change.path).is_some_and(|former| same(&former.new, &change.new))
            });
        let mut intended = intended;
        for change in &mut intended.changes {
            if let Some(former) = former.get(&change.path) {
                // The value before either manager wrote.
                known.rewritten |= known.touched && !same(&former.old, &change.old);
                change.old = former.old.clone();
            }
        }
        if !is_unchanged {
            known.first = now;
            known.rewritten = false;
        }
        known.last = now;
        known.times += 1;
        known.intended = intended;
    }

    /// Records that this manager would have made a write of this kind, or has found it done.
    pub fn claim(&mut self, now: Duration, place: &Place, kind: Kind, controller: &str) {
        let claims = self.claims.entry(place.clone()).or_default();
        match claims.iter_mut().find(|c| c.kind == kind && c.controller == controller) {
            Some(claim) => claim.last = now,
            None => claims.push(Claim { kind, controller: controller.to_owned(), last: now }),
        }
    }

    /// Returns whether the manager in charge has recently created the object that this manager
    /// wants to create, with the same content or another; the comparison is recorded.
    pub fn was_created(&mut self, now: Duration, intended: &IntendedWrite) -> bool {
        let agrees = self.creations.compare_and_record(now, intended);
        if agrees == Some(Verdict::Agrees { is_first: true }) {
            self.counts_of(&intended.controller).met += 1;
        }
        agrees.is_some()
    }

    /// Records a difference if the manager in charge was faster and has set other final conditions
    /// than this manager wants. `live`: the object that it has written.
    pub fn record_overtaken(&mut self, now: Duration, intended: &IntendedWrite, live: &Value) {
        let changes = other_verdicts(&intended.place.resource, &intended.request.body, live);
        if !changes.is_empty() {
            self.creations.record_mismatch(now, intended, changes, Value::Null);
        }
    }

    /// Records an object that the manager in charge has created, and closes the intended creations
    /// that it meets or differs from.
    pub fn record_created(&mut self, now: Duration, write: &Write, object: &Value) {
        let mut creations = std::mem::take(&mut self.creations);
        for place in write.generated.iter().chain([&write.place]) {
            creations.record_created(now, place, object);
            self.settle(place, now, |intention| {
                let is_create = intention.intended.request.is_create();
                if !is_create {
                    return None;
                }
                match creations.compare_and_record(now, &intention.intended)? {
                    Verdict::Agrees { .. } => Some(End::Met),
                    Verdict::Differs => Some(End::Differs),
                }
            });
        }
        self.creations = creations;
    }

    /// Records the end of a key's sync that began at `began`. If `is_whole` (it completed and
    /// wanted no write), the key's earlier intentions are closed, because it no longer wants them.
    /// Returns when to call the sync again if it wanted a write: after a quarter of the age of
    /// the key's youngest intention, within bounds.
    pub fn record_sync_end(
        &mut self,
        now: Duration,
        controller: &str,
        key: &str,
        began: Duration,
        is_whole: bool,
    ) -> Duration {
        let of_key = |intention: &Intention| {
            intention.intended.controller == controller && intention.intended.key == key
        };
        let places: Vec<Place> = self
            .open
            .iter()
            .filter(|(_, intentions)| intentions.iter().any(of_key))
            .map(|(place, _)| place.clone())
            .collect();
        if !is_whole {
            // The sync does not reach the writes after its first one, so only the live object shows
            // their state.
            let ages = places.iter().flat_map(|place| &self.open[place]).filter(|i| of_key(i));
            let youngest = ages.map(|intention| now.saturating_sub(intention.since)).min();
            return (youngest.unwrap_or_default() / 4).clamp(FIRST_RETRY, LAST_RETRY);
        }
        for place in places {
            self.settle(&place, now, |intention| {
                (of_key(intention) && intention.last < began)
                    .then(|| End::met_if(intention.touched))
            });
        }
        FIRST_RETRY
    }

    /// Closes the intention of a write that the API server would refuse. `is_met`: the write is
    /// already done.
    pub fn record_refusal(&mut self, now: Duration, intended: &IntendedWrite, is_met: bool) {
        self.settle(&intended.place, now, |intention| {
            intention.is_same(intended).then(|| End::met_if(is_met))
        });
    }

    /// Compares the open intentions at a place with an object that came in a watch, and closes
    /// those that it meets or makes impossible. `generated`: the place of its generated name, for a
    /// new object; `raw`: returns the object, called only if it is needed; `by_incumbent`: the
    /// manager in charge wrote this state.
    pub fn record_seen(
        &mut self,
        now: Duration,
        place: &Place,
        generated: Option<&Place>,
        seen: Seen,
        by_incumbent: bool,
        raw: impl FnOnce() -> Option<Value>,
    ) {
        if let Some(generated) = generated.filter(|_| seen == Seen::Present) {
            self.settle(generated, now, |intention| {
                intention.intended.request.is_create().then_some(End::Met)
            });
        }
        if !self.open.contains_key(place) {
            return;
        }
        let live = raw();
        self.settle(place, now, |intention| {
            intention.touched |= by_incumbent;
            match (seen, &live) {
                (Seen::Gone, _) => Some(End::met_if(intention.intended.request.is_delete())),
                (Seen::Present, Some(live)) => {
                    intention.compare(live, by_incumbent).then_some(End::Met)
                }
                (Seen::Present, None) => None,
            }
        });
    }

    /// Forgets the differing creations that a deleted object settles, and counts them as dropped.
    pub fn record_gone(&mut self, place: &Place, uid: &Uid) {
        for controller in self.creations.record_gone(place, &uid.to_string()) {
            self.counts_of(&controller).dropped += 1;
        }
    }

    /// Returns whether this manager recently wanted such a write, and counts it as expected if so.
    pub fn expects(&mut self, now: Duration, write: &Write) -> bool {
        let since = now.saturating_sub(CLAIM_WINDOW);
        let Some(controller) = self.claimed_since(since, write).map(str::to_owned) else {
            return false;
        };
        if self.is_news(now, write) {
            self.count_expected(&controller);
        }
        true
    }

    fn count_expected(&mut self, controller: &str) {
        self.expected += 1;
        self.counts_of(controller).expected += 1;
    }

    /// Records a write as judged, and returns whether no other watch has seen it before.
    fn is_news(&mut self, now: Duration, write: &Write) -> bool {
        let former = self.judged.insert(write.place.clone(), (write.version.clone(), now));
        former.is_none_or(|(version, _)| version != write.version)
    }

    /// Returns the controller that has wanted such a write at `since` or later.
    fn claimed_since(&self, since: Duration, write: &Write) -> Option<&str> {
        let claims = |place: &Place| self.claims.get(place).into_iter().flatten();
        let related = write.generated.iter().chain(&write.siblings).flat_map(claims);
        claims(&write.place)
            .filter(|claim| claim.kind == write.kind || claim.kind == Kind::Read)
            .chain(related.filter(|claim| claim.kind == Kind::Create || claim.kind == write.kind))
            .filter(|claim| claim.last >= since)
            // A controller that only read the object is the last choice.
            .min_by_key(|claim| claim.kind == Kind::Read)
            .map(|claim| claim.controller.as_str())
    }

    /// Records a write of the manager in charge that this manager has not wanted yet.
    pub fn suspect(&mut self, now: Duration, write: Write) {
        if self.is_news(now, &write) {
            self.suspects.push(Suspect { write, at: now });
        }
    }

    /// Returns the intentions that are late and whose live object is to be read.
    pub fn due(&self, now: Duration) -> Vec<Check> {
        let grace = self.grace;
        let late = self.open.values().flatten().filter(|intention| {
            intention.is_late(grace, now)
                && intention.checked.is_none_or(|at| now.saturating_sub(at) >= grace)
        });
        let check = |intention: &Intention| Check {
            place: intention.intended.place.clone(),
            controller: intention.intended.controller.clone(),
            key: intention.intended.key.clone(),
            age: now.saturating_sub(intention.since),
            request: intention.intended.request.clone(),
        };
        late.map(check).collect()
    }

    /// Records the live object that a [`Check`] has read. Closes the intentions of this write that
    /// it shows to be met or to be without effect; the others were checked at `now`.
    pub fn record_check(&mut self, now: Duration, check: &Check, live: Live<'_>) {
        self.settle(&check.place, now, |intention| {
            if intention.intended.controller != check.controller
                || intention.intended.request.method != check.request.method
                || intention.intended.request.subresource != check.request.subresource
            {
                return None;
            }
            intention.checked = Some(now);
            intention.refused = matches!(live, Live::Refused).then_some(now);
            match live {
                Live::Object(live) => {
                    intention.compare(live, intention.touched).then_some(End::Met)
                }
                Live::Absent if !intention.intended.request.is_create() => {
                    Some(End::met_if(intention.intended.request.is_delete()))
                }
                Live::Absent | Live::Refused | Live::Unknown => None,
            }
        });
    }

    /// Drops intentions that are no longer repeated, judges the suspects whose grace period is
    /// over, and forgets old claims and creations.
    pub fn tick(&mut self, now: Duration) {
        let grace = self.grace;
        let forgotten: Vec<Place> = self
            .open
            .iter()
            .filter(|(_, intentions)| {
                intentions.iter().any(|i| now.saturating_sub(i.last) > longest_pause(i, grace))
            })
            .map(|(place, _)| place.clone())
            .collect();
        for place in forgotten {
            self.settle(&place, now, |i| {
                (now.saturating_sub(i.last) > longest_pause(i, grace)).then_some(End::Dropped)
            });
        }
        let suspects = std::mem::take(&mut self.suspects);
        for suspect in suspects {
            let since = suspect.at.saturating_sub(grace);
            if let Some(controller) = self.claimed_since(since, &suspect.write) {
                let controller = controller.to_owned();
                self.count_expected(&controller);
                continue;
            }
            match now.saturating_sub(suspect.at) >= grace {
                true => self.record_unexpected(suspect.write),
                false => self.suspects.push(suspect),
            }
        }
        self.creations.tick(now);
        let keep_for = grace.max(CLAIM_WINDOW) * 3;
        self.judged.retain(|_, (_, at)| now.saturating_sub(*at) < keep_for);
        self.claims.retain(|_, claims| {
            claims.retain(|claim| now.saturating_sub(claim.last) < keep_for);
            !claims.is_empty()
        });
    }

    /// Counts a write that this manager has not wanted, and keeps it for the report if there is
    /// room.
    fn record_unexpected(&mut self, write: Write) {
        self.unexpected_count += 1;
        let (verb, subresource) = match write.kind {
            Kind::Create => ("create", String::new()),
            Kind::Change(subresource) => ("update", subresource),
            // Reads are only claimed by this manager.
            Kind::Read => return,
        };
        let Place { resource, namespace, name } = write.place;
        let has_room = self.unexpected.len() < SHOWN;
        let known = self.unexpected.iter_mut().find(|known| {
            known.resource == resource
                && known.namespace == namespace
                && known.name == name
                && known.verb == verb
                && known.subresource == subresource
        });
        match known {
            Some(known) => {
                known.times += 1;
                known.resource_version = write.version;
            }
            None if has_room => self.unexpected.push(Unexpected {
                verb,
                resource,
                subresource,
                namespace,
                name,
                resource_version: write.version,
                times: 1,
                fields: write.fields,
            }),
            None => {}
        }
    }

    /// Returns the report as of `now`: the intentions by their outcomes, the unexpected writes, and
    /// a row of counts for each controller.
    pub fn report(&self, now: Duration) -> Report {
        let mut items: Vec<Item> = self
            .open
            .values()
            .flatten()
            .map(|intention| intention.item(intention.outcome(self.grace, now), now))
            .collect();
        items.extend(self.creations.differing().map(|differing| {
            let age = now.saturating_sub(differing.since);
            // Another object of the batch, which agrees, may follow.
            let is_late = age >= self.grace;
            let outcome = if is_late { Outcome::Contradicted } else { Outcome::Pending };
            item(&differing.intended, outcome, age, differing.times)
        }));
        items.sort_by(|a, b| {
            (&a.controller, &a.resource, &a.namespace, &a.name).cmp(&(
                &b.controller,
                &b.resource,
                &b.namespace,
                &b.name,
            ))
        });
        let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
        for (controller, counts) in &self.counts {
            let row = rows.entry(controller).or_default();
            (row.expected, row.met, row.dropped) = (counts.expected, counts.met, counts.dropped);
        }
        for (controller, times) in self.creations.beyond() {
            rows.entry(controller).or_default().contradicted += times;
        }
        for item in &items {
            let row = rows.entry(&item.controller).or_default();
            *match item.outcome {
                Outcome::Outstanding => &mut row.outstanding,
                Outcome::Contradicted => &mut row.contradicted,
                // A refused intention is still open. Met ones are not among these items.
                Outcome::Pending | Outcome::Refused | Outcome::Met => &mut row.pending,
            } += 1;
        }
        let rows = rows
            .into_iter()
            .map(|(controller, row)| Row { controller: controller.to_owned(), ..row })
            .collect();
        let pick = |outcome: Outcome| {
            items.iter().filter(|item| item.outcome == outcome).cloned().collect::<Vec<_>>()
        };
        Report {
            seconds: now.saturating_sub(self.begun).as_secs(),
            grace_seconds: self.grace.as_secs(),
            outstanding: pick(Outcome::Outstanding),
            contradicted: pick(Outcome::Contradicted),
            pending: pick(Outcome::Pending),
            refused: pick(Outcome::Refused),
            unexpected: self.unexpected.clone(),
            unexpected_writes: self.unexpected_count,
            expected_writes: self.expected,
            undecided_writes: self.suspects.len() as u64,
            controllers: rows,
            met: self.met.iter().cloned().collect(),
        }
    }
}

/// Makes a row of the report.
fn item(intended: &IntendedWrite, outcome: Outcome, wanted_for: Duration, tries: u64) -> Item {
    let IntendedWrite { controller, key, place, request, changes, .. } = intended;
    Item {
        controller: controller.clone(),
        key: key.clone(),
        verb: request.verb(!place.name.is_empty()),
        resource: place.resource.clone(),
        subresource: request.subresource.clone(),
        namespace: place.namespace.clone(),
        name: place.name.clone(),
        outcome,
        wanted_for_seconds: wanted_for.as_secs(),
        tries,
        changes: changes.clone(),
    }
}

/// Returns the time after which an intention that was not repeated is dropped.
fn longest_pause(intention: &Intention, grace: Duration) -> Duration {
    REPEATED_WITHIN.max(intention.allowed(grace) * 2)
}

/// Returns the kind of a write: a creation, or a change of the object or of a subresource.
pub fn kind_of(request: &Request) -> Kind {
    match request.is_create() {
        true => Kind::Create,
        false => Kind::Change(request.subresource.clone()),
    }
}

#[cfg(test)]
mod tests;
