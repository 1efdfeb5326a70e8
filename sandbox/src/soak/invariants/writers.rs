//! Who writes: leaders, and the garbage collector.

use std::collections::HashMap;

use super::{Change, Verdict};
use crate::object::{is_deleting, list, text};
use crate::soak::audit::{Record, Stage, Writer};

pub const ONE_LEADER: &str = "only the holder of the lease writes";
pub const LIVING_OWNERS: &str = "no dependent deleted under a living owner";
/// The last part of the garbage collector's user agent.
const COLLECTOR: &str = "generic-garbage-collector";
/// The seconds for which the owners of a deleted object are remembered.
const MEMORY: f64 = 60.0;

/// A manager writes only while it holds the lease.
///
/// Each write counts when it arrives, whether it is carried out or not: a manager without the lease
/// must not send it. Leases, events, tokens and reviews are exempt: those that do not lead write
/// them too. A write that was sent in time may be late by the proxies' stalls, which are shorter than
/// the time between a leader's renew deadline and the end of its lease.
#[derive(Default)]
pub struct OneLeader {
    holder: String,
    /// The holders whose manager is known.
    writers: HashMap<String, Writer>,
}

impl OneLeader {
    /// Returns the manager that holds the lease.
    pub fn leader(&self) -> Option<Writer> {
        self.writers.get(&self.holder).copied()
    }

    /// Checks that a write comes from the manager that holds the lease. Leases, lease candidates,
    /// events, tokens and reviews are exempt, as every manager writes them.
    pub fn observe(&mut self, record: &Record) -> Verdict {
        match &record.stage {
            Stage::Holder(holder) => {
                if !holder.is_empty() {
                    self.writers.insert(holder.clone(), record.writer);
                }
                self.holder.clone_from(holder);
                return Verdict::Unrelated;
            }
            Stage::Answered(_) => return Verdict::Unrelated,
            Stage::Sent => (),
        }
        let resource = record.resource.split(['.', '/']).next().unwrap_or_default();
        let is_exempt = matches!(resource, "leases" | "events" | "leasecandidates")
            || resource.ends_with("reviews")
            || record.resource == "serviceaccounts/token";
        if is_exempt {
            return Verdict::Unrelated;
        }
        match self.leader() {
            Some(writer) if writer == record.writer => Verdict::Holds,
            Some(writer) => Verdict::Broken(format!(
                "{:?} wrote while {writer:?} held the lease",
                record.writer
            )),
            None => {
                Verdict::Broken(format!("{:?} wrote while the lease had no holder", record.writer))
            }
        }
    }
}

/// The garbage collector deletes an object only if none of its owners lives.
///
/// An owner lives if it exists with the uid of the reference and is not being deleted. The owners
/// are checked after the deletion: one that lives then has lived at the deletion, too.
#[derive(Default)]
pub struct LivingOwners {
    /// Whether an object is being deleted, by its uid.
    live: HashMap<String, bool>,
    owners: HashMap<(String, String), Vec<String>>,
    /// The owners of objects that are gone, and since when.
    gone: HashMap<(String, String), (f64, Vec<String>)>,
}

impl LivingOwners {
    /// Follows which objects are alive, and who owns which.
    pub fn observe(&mut self, change: &Change<'_>) {
        let at = (change.table.to_owned(), change.key.to_owned());
        let owners = list(change.new, "/metadata/ownerReferences");
        let owners: Vec<String> = owners.iter().map(|it| text(it, "/uid").to_owned()).collect();
        if change.deleted {
            self.live.remove(change.uid());
            self.owners.remove(&at);
            self.gone.retain(|_, (second, _)| *second > change.second - MEMORY);
            self.gone.insert(at, (change.second, owners));
        } else {
            self.live.insert(change.uid().to_owned(), is_deleting(change.new));
            self.owners.insert(at, owners);
        }
    }

    /// Judges a deletion by the garbage collector: no owner of the object may be alive. `Unrelated`
    /// if its owners are not known.
    pub fn judge(&self, record: &Record, second: f64) -> Verdict {
        let is_deletion = record.verb == "delete"
            && matches!(record.stage, Stage::Answered(..300))
            && record.agent.contains(COLLECTOR);
        if !is_deletion {
            return Verdict::Unrelated;
        }
        let key = match record.namespace.as_str() {
            "" => record.name.clone(),
            namespace => format!("{namespace}/{}", record.name),
        };
        let at = (record.resource.clone(), key);
        // The object of this name may be another one by now: a deletion in the last five seconds
        // is the one that the record is about.
        let gone = self.gone.get(&at).filter(|(gone, _)| *gone > second - 5.0);
        let owners = gone.map(|(_, owners)| owners).or_else(|| self.owners.get(&at));
        let Some(owners) = owners else { return Verdict::Unrelated };
        match owners.iter().find(|uid| self.live.get(*uid) == Some(&false)) {
            None => Verdict::Holds,
            Some(uid) => Verdict::Broken(format!("its owner {uid} lives")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kube_controller_manager::objects::Timestamp;
    use serde_json::{Value, json};

    use super::*;

    fn writer(seat: usize) -> Writer {
        Writer { seat, run: 0 }
    }

    fn record(seat: usize, verb: &'static str, resource: &str) -> Record {
        Record {
            at: Duration::ZERO,
            writer: writer(seat),
            verb,
            resource: resource.to_owned(),
            namespace: "a".to_owned(),
            name: "x".to_owned(),
            agent: "manager".to_owned(),
            stage: Stage::Sent,
        }
    }

    fn lease(seat: usize, holder: &str) -> Record {
        let stage = Stage::Holder(holder.to_owned());
        Record { stage, ..record(seat, "update", "leases.coordination.k8s.io") }
    }

    #[test]
    fn a_write_without_the_lease_is_found() {
        let write = |seat| record(seat, "patch", "pods/status");
        let refused = Record { stage: Stage::Answered(409), ..write(0) };
        for (records, expected) in [
            (vec![write(0)], vec![0]),
            (vec![lease(0, "a"), write(0), write(1)], vec![2]),
            (vec![lease(0, "a"), lease(1, "b"), write(0)], vec![2]),
            (vec![lease(0, "a"), lease(0, ""), write(0)], vec![2]),
            // It was sent before.
            (vec![lease(0, "a"), write(0), lease(1, "b"), refused], vec![]),
            (vec![record(1, "create", "events"), record(1, "create", "tokenreviews")], vec![]),
        ] {
            let mut leader = OneLeader::default();
            let seen = records.iter().map(|record| leader.observe(record)).enumerate();
            let broken = seen.filter(|(_, verdict)| matches!(verdict, Verdict::Broken(_)));
            let broken: Vec<usize> = broken.map(|(n, _)| n).collect();
            assert_eq!(broken, expected, "{records:?}");
        }
    }

    #[test]
    fn a_deletion_under_a_living_owner_is_found() {
        let object = |name: &str, owners: &[&str], deletion: &str| {
            let owners: Vec<Value> = owners.iter().map(|uid| json!({ "uid": uid })).collect();
            json!({ "metadata": {
                "name": name, "uid": name, "ownerReferences": owners,
                "deletionTimestamp": deletion,
            } })
        };
        let deletion =
            Record { agent: format!("m/1 {COLLECTOR}"), ..record(0, "delete", "configmaps") };
        let deletion = Record { stage: Stage::Answered(200), ..deletion };
        let by_another = Record { agent: "m/1 namespace-controller".into(), ..deletion.clone() };
        let refused = Record { stage: Stage::Answered(409), ..deletion.clone() };
        for (owners, is_gone, record, is_broken) in [
            (vec!["living"], true, &deletion, true),
            (vec!["living"], false, &deletion, true),
            (vec!["absent"], true, &deletion, false),
            (vec!["deleting"], true, &deletion, false),
            (vec!["absent", "living"], true, &deletion, true),
            (vec!["living"], true, &by_another, false),
            (vec!["living"], false, &refused, false),
        ] {
            let mut check = LivingOwners::default();
            let mut observe = |key: &str, object: &Value, deleted| {
                let table = "configmaps";
                let now = Timestamp::from_secs(1);
                check.observe(&Change { table, key, new: object, deleted, second: 1.0, now });
            };
            observe("living", &object("living", &[], ""), false);
            observe("deleting", &object("deleting", &[], "now"), false);
            observe("absent", &object("absent", &[], ""), false);
            observe("absent", &object("absent", &[], ""), true);
            observe("a/x", &object("x", &owners, ""), false);
            if is_gone {
                observe("a/x", &object("x", &owners, ""), true);
            }
            let verdict = check.judge(record, 1.5);
            assert_eq!(matches!(verdict, Verdict::Broken(_)), is_broken, "{owners:?} {record:?}");
        }
    }
}
