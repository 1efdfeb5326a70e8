//! What must hold at every moment of a soak, checked on the stream of all changes in the order in
//! which the API server made them. Each invariant says what it permits, and why.

mod budgets;
mod limits;
mod pods;
mod writers;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Serialize;
use serde_json::Value;

use self::budgets::Evictions;
use self::limits::{Attached, NoOverlap, Quotas};
use self::pods::{OneForDaemon, OneForIndex, OneForOrdinal, WithinReplicas};
use self::writers::{LivingOwners, OneLeader};
use super::audit::{Record, Stage, Writer};
use crate::object::{is_deleting, list, text};
use kube_controller_manager::objects::Timestamp;

/// A write to the store.
#[derive(Clone, Copy)]
pub struct Change<'a> {
    /// `pods`, `replicasets.apps`
    pub table: &'a str,
    /// `namespace/name`, or a name.
    pub key: &'a str,
    /// The object, or its last state.
    pub new: &'a Value,
    pub deleted: bool,
    /// The seconds since the start of the soak.
    pub second: f64,
    pub now: Timestamp,
}

impl<'a> Change<'a> {
    fn uid(&self) -> &'a str {
        text(self.new, "/metadata/uid")
    }

    /// Returns the object, unless it is gone.
    fn live(&self) -> Option<&'a Value> {
        (!self.deleted).then_some(self.new)
    }
}

/// What a check says about a change or a write.
#[derive(Debug, PartialEq)]
enum Verdict {
    /// It is about something else.
    Unrelated,
    Holds,
    /// What was seen.
    Broken(String),
}

/// An invariant of objects.
trait Check: Send {
    fn name(&self) -> &'static str;
    fn observe(&mut self, change: &Change<'_>) -> Verdict;
}

/// An invariant that did not hold.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Breach {
    pub invariant: &'static str,
    pub second: f64,
    pub object: String,
    pub seen: String,
}

/// All invariants.
pub struct Invariants {
    checks: Vec<Box<dyn Check>>,
    leader: OneLeader,
    owners: LivingOwners,
    /// How often each was checked.
    pub counts: BTreeMap<&'static str, u64>,
    /// The requests of managers by verb.
    pub writes: BTreeMap<&'static str, u64>,
}

impl Invariants {
    /// Creates all checks, before any change has been seen.
    pub fn new() -> Invariants {
        Invariants {
            checks: vec![
                Box::<OneForIndex>::default(),
                Box::<OneForOrdinal>::default(),
                Box::<OneForDaemon>::default(),
                Box::<WithinReplicas>::default(),
                Box::<Attached>::default(),
                Box::<NoOverlap>::default(),
                Box::<Evictions>::default(),
                Box::<Quotas>::default(),
            ],
            leader: OneLeader::default(),
            owners: LivingOwners::default(),
            counts: BTreeMap::new(),
            writes: BTreeMap::new(),
        }
    }

    /// Checks a change. Changes come in the order of their versions.
    pub fn observe(&mut self, change: &Change<'_>) -> Vec<Breach> {
        self.owners.observe(change);
        let mut breaches = Vec::new();
        for check in &mut self.checks {
            let verdict = check.observe(change);
            let object = || format!("{} {}", change.table, change.key);
            breaches.extend(judge(&mut self.counts, check.name(), verdict, change.second, object));
        }
        breaches
    }

    /// Checks a stage of a manager's write. All changes of the store until then have been seen.
    pub fn observe_write(&mut self, record: &Record, second: f64) -> Vec<Breach> {
        if record.stage == Stage::Sent {
            *self.writes.entry(record.verb).or_default() += 1;
        }
        let verdicts = [
            (writers::ONE_LEADER, self.leader.observe(record)),
            (writers::LIVING_OWNERS, self.owners.judge(record, second)),
        ];
        let object =
            || format!("{} {}/{} {}", record.verb, record.namespace, record.name, record.resource);
        let verdicts = verdicts.into_iter();
        verdicts
            .filter_map(|(name, verdict)| judge(&mut self.counts, name, verdict, second, object))
            .collect()
    }

    /// Returns the manager that holds the lease.
    pub fn leader(&self) -> Option<Writer> {
        self.leader.leader()
    }
}

/// Counts a verdict, unless it is `Unrelated`; returns the breach of a broken invariant.
fn judge(
    counts: &mut BTreeMap<&'static str, u64>,
    invariant: &'static str,
    verdict: Verdict,
    second: f64,
    object: impl Fn() -> String,
) -> Option<Breach> {
    if verdict != Verdict::Unrelated {
        *counts.entry(invariant).or_default() += 1;
    }
    match verdict {
        Verdict::Broken(seen) => Some(Breach { invariant, second, object: object(), seen }),
        Verdict::Unrelated | Verdict::Holds => None,
    }
}

/// Returns the kind and the uid of the controller of an object.
fn controller(object: &Value) -> Option<(&str, &str)> {
    let owners = list(object, "/metadata/ownerReferences");
    let owner = owners.iter().find(|owner| owner["controller"] == true)?;
    Some((text(owner, "/kind"), text(owner, "/uid")))
}

fn has_ended(pod: &Value) -> bool {
    matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
}

/// Returns whether controllers count the pod. Upstream: `controller.IsPodActive`.
fn is_active(pod: &Value) -> bool {
    !has_ended(pod) && !is_deleting(pod)
}

fn has_condition(object: &Value, name: &str) -> bool {
    let mut conditions = list(object, "/status/conditions").iter();
    conditions.any(|it| it["type"] == name && it["status"] == "True")
}

/// Objects in groups.
#[derive(Default)]
struct Groups {
    of: HashMap<String, String>,
    members: HashMap<String, BTreeSet<String>>,
}

impl Groups {
    /// Puts an object into a group, or into none. Returns the group's size if it has grown.
    fn put(&mut self, uid: &str, group: Option<String>) -> Option<usize> {
        if self.of.get(uid) == group.as_ref() {
            return None;
        }
        if let Some(before) = self.of.remove(uid)
            && let Some(members) = self.members.get_mut(&before)
        {
            members.remove(uid);
            if members.is_empty() {
                self.members.remove(&before);
            }
        }
        let group = group?;
        self.of.insert(uid.to_owned(), group.clone());
        let members = self.members.entry(group).or_default();
        members.insert(uid.to_owned());
        Some(members.len())
    }

    fn size(&self, group: &str) -> usize {
        self.members.get(group).map_or(0, BTreeSet::len)
    }
}

/// Returns the verdict about a group that may have one member.
fn at_most_one(grown: Option<usize>, what: &str) -> Verdict {
    match grown {
        None => Verdict::Unrelated,
        Some(1) => Verdict::Holds,
        Some(size) => Verdict::Broken(format!("{size} {what}")),
    }
}

/// Feeds a check with changes: a table, an object, and whether it is deleted. Returns the broken
/// ones.
#[cfg(test)]
fn broken(check: &mut dyn Check, changes: &[(&str, Value, bool)]) -> Vec<usize> {
    let broken = changes.iter().enumerate().filter(|(n, (table, new, deleted))| {
        let [namespace, name] = ["/metadata/namespace", "/metadata/name"].map(|at| text(new, at));
        let key = if namespace.is_empty() { name.into() } else { format!("{namespace}/{name}") };
        let (second, now) = (*n as f64, Timestamp::from_secs(*n as i64));
        let change = Change { table, key: &key, new, deleted: *deleted, second, now };
        matches!(check.observe(&change), Verdict::Broken(_))
    });
    broken.map(|(n, _)| n).collect()
}
