//! Who writes: leaders, and the garbage collector.

use std::collections::HashMap;

use super::{Change, Verdict};
use crate::object::{is_deleting, list, text};
use crate::soak::audit::{Record, Writer};

pub const ONE_LEADER: &str = "only the holder of the lease writes";
pub const LIVING_OWNERS: &str = "no dependent deleted under a living owner";
/// The last part of the garbage collector's user agent.
const COLLECTOR: &str = "generic-garbage-collector";
/// The seconds for which the owners of a deleted object are remembered.
const MEMORY: f64 = 60.0;

/// A manager writes only while it holds the lease.
///
/// Each write counts, whether it was carried out or not: a manager without the lease must not send
/// it. Leases, events, tokens and reviews are exempt: those that do not lead write them too. A
/// write that was sent in time may be late by the proxies' stalls and slow admission, which together
/// are shorter than the time between a leader's renew deadline and the end of its lease.
#[derive(Default)]
pub struct OneLeader {
    holder: String,
    /// The holders whose manager is known.
    writers: HashMap<String, Writer>,
}

impl OneLeader {
    pub fn writer_of(&self, holder: &str) -> Option<Writer> {
        self.writers.get(holder).copied()
    }

    pub fn see(&mut self, record: &Record) -> Verdict {
        if let Some(holder) = &record.holder {
            // The write of a lease that was carried out names the writer.
            if record.code.is_some_and(|code| code < 300) && !holder.is_empty() {
                self.writers.insert(holder.clone(), record.writer);
            }
            self.holder.clone_from(holder);
            return Verdict::Unrelated;
        }
        let resource = record.resource.split(['.', '/']).next().unwrap_or_default();
        let is_exempt = matches!(resource, "leases" | "events" | "leasecandidates")
            || resource.ends_with("reviews")
            || record.resource == "serviceaccounts/token";
        if is_exempt {
            return Verdict::Unrelated;
        }
        match self.writers.get(&self.holder) {
            Some(writer) if *writer == record.writer => Verdict::Holds,
            Some(writer) => Verdict::Broken(format!(
                "{:?} wrote while {writer:?} held the lease",
                record.writer
            )),
            None if self.holder.is_empty() => {
                Verdict::Broken(format!("{:?} wrote while the lease had no holder", record.writer))
            }
            // The answer to its first write of the lease was lost.
            None => Verdict::Unrelated,
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
    pub fn see(&mut self, change: &Change<'_>) {
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

    pub fn judge(&self, record: &Record, second: f64) -> Verdict {
        let is_deletion = record.verb == "delete"
            && record.code.is_some_and(|code| code < 300)
            && record.agent.contains(COLLECTOR);
        if !is_deletion {
            return Verdict::Unrelated;
        }
        let key = match record.namespace.as_str() {
            "" => record.name.clone(),
            namespace => format!("{namespace}/{}", record.name),
        };
        let at = (record.resource.clone(), key);
        // The object of this name may be another one by now.
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
    use serde_json::{Value, json};

    use super::*;

    fn writer(seat: usize) -> Writer {
        Writer { seat, run: 0 }
    }

    fn record(seat: usize, verb: &'static str, resource: &str) -> Record {
        Record {
            writer: writer(seat),
            verb,
            resource: resource.to_owned(),
            namespace: "a".to_owned(),
            name: "x".to_owned(),
            agent: "manager".to_owned(),
            code: Some(200),
            holder: None,
        }
    }

    fn lease(seat: usize, holder: &str, code: Option<u16>) -> Record {
        let holder = Some(holder.to_owned());
        Record { holder, code, ..record(seat, "update", "leases.coordination.k8s.io") }
    }

    #[test]
    fn a_write_without_the_lease_is_found() {
        let write = |seat| record(seat, "patch", "pods/status");
        let refused = Record { code: Some(409), ..write(0) };
        for (records, expected) in [
            (vec![write(0)], vec![0]),
            (vec![lease(0, "a", Some(201)), write(0), write(1)], vec![2]),
            (vec![lease(0, "a", Some(200)), lease(1, "b", Some(200)), refused], vec![2]),
            (vec![lease(0, "a", Some(200)), lease(0, "", Some(200)), write(0)], vec![2]),
            // A refused write of the lease changes nothing.
            (vec![lease(0, "a", Some(200)), lease(1, "a", Some(409)), write(0)], vec![]),
            // Its answer is lost, so its writer is not known yet.
            (vec![lease(0, "a", Some(200)), lease(1, "b", None), write(1)], vec![]),
            (vec![record(1, "create", "events"), record(1, "create", "tokenreviews")], vec![]),
        ] {
            let mut leader = OneLeader::default();
            let seen = records.iter().map(|record| leader.see(record)).enumerate();
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
        let by_another = Record { agent: "m/1 namespace-controller".into(), ..deletion.clone() };
        let refused = Record { code: Some(409), ..deletion.clone() };
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
            let mut see = |key: &str, object: &Value, deleted| {
                let table = "configmaps";
                check.see(&Change { table, key, new: object, deleted, second: 1.0 });
            };
            see("living", &object("living", &[], ""), false);
            see("deleting", &object("deleting", &[], "now"), false);
            see("absent", &object("absent", &[], ""), false);
            see("absent", &object("absent", &[], ""), true);
            see("a/x", &object("x", &owners, ""), false);
            if is_gone {
                see("a/x", &object("x", &owners, ""), true);
            }
            let verdict = check.judge(record, 1.5);
            assert_eq!(matches!(verdict, Verdict::Broken(_)), is_broken, "{owners:?} {record:?}");
        }
    }
}
