//! Picks the leaders of coordinated elections, as an API server with the gate
//! `CoordinatedLeaderElection` does: asks all candidates of a lease for a sign of life, and gives
//! the lease to the one with the oldest emulated version among those that answer.
//! Upstream: `pkg/controlplane/controller/leaderelection`.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use kube_controller_manager::cache::{Lister, Scope};
use kube_controller_manager::client::Client;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::{
    Lease, LeaseCandidate, Meta, Object, ObjectKey, Resource, Timestamp, micro_time,
};

use super::StandIn;
use super::worker::{Event, Next, SyncResult, Worker};

const NAME: &str = "sandbox-coordinator";
/// How long candidates have to answer, and how long an answer counts.
const ELECTION: Duration = Duration::from_secs(5);
/// A candidate that has not renewed within this time is ignored.
const CANDIDATE_VALID: Duration = Duration::from_secs(30 * 60);
/// How long the chosen leader has to renew its lease for the first time.
const FIRST_LEASE_SECONDS: i64 = 5;
/// The delay to the next sync of a lease that has candidates.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The fields of a LeaseCandidate by which a leader is picked.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Candidate {
    #[serde(rename = "metadata")]
    meta: Meta,
    spec: Spec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    lease_name: String,
    #[serde(with = "micro_time")]
    ping_time: Option<Timestamp>,
    #[serde(with = "micro_time")]
    renew_time: Option<Timestamp>,
    binary_version: String,
    emulation_version: String,
    strategy: String,
}

impl Object for Candidate {
    fn meta(&self) -> &Meta {
        &self.meta
    }
}

/// A lease as an election sees it.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct HeldLease {
    holder_identity: Option<String>,
    lease_duration_seconds: Option<i64>,
    #[serde(with = "micro_time")]
    renew_time: Option<Timestamp>,
}

/// The next step of an election.
#[derive(Debug, PartialEq)]
enum Step {
    Wait,
    /// Ask these candidates for a sign of life.
    Ping(Vec<ObjectKey>),
    /// Give the lease, which no process holds.
    Elect(String),
    /// Ask the holder to let its term end in favour of another.
    Prefer(String),
}

struct Coordinator {
    client: Client,
    clock: SharedClock,
    candidates: Lister<Candidate>,
}

/// Stands in for coordinated leader election: watches LeaseCandidates; the future works until the
/// stop.
pub fn coordinator(stand_in: StandIn<'_>) -> impl Future<Output = ()> + Send + use<> {
    let StandIn { factory, client, clock, stop, .. } = stand_in;
    let candidates = factory.informer_for::<Candidate>(Scope::all(LeaseCandidate::RESOURCE));
    let mut worker = Worker::new(NAME, &clock);
    let keys = worker.keys();
    worker.watch(&candidates, move |event: Event<'_, Candidate>| {
        if let Event::Seen(candidate) = event {
            keys.add(ObjectKey::new(&candidate.meta.namespace, &candidate.spec.lease_name));
        }
    });
    let coordinator = Arc::new(Coordinator { client, clock, candidates: candidates.lister() });
    worker.run(1, stop, move |key| coordinator.clone().sync(key))
}

impl Coordinator {
    /// Chooses the holder of one lease among its candidates, and writes the election or the pings.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let now = self.clock.now();
        let mut candidates = self.candidates.in_namespace(&key.namespace);
        candidates.retain(|c| *c.spec.lease_name == *key.name && c.is_valid(now));
        if candidates.is_empty() {
            return Ok(Next::Done);
        }
        let leases = self.client.resource(&Lease::RESOURCE);
        let live: Option<Value> = match leases.get(&key).await {
            Err(error) if error.is_not_found() => None,
            other => Some(other?),
        };
        let spec = live.as_ref().and_then(|live| HeldLease::deserialize(&live["spec"]).ok());
        match step(spec.as_ref(), &candidates, now) {
            Step::Wait => (),
            Step::Ping(pinged) => {
                for candidate in pinged {
                    let ping = |live: &mut Value| {
                        live["spec"]["pingTime"] = now.to_micro_string().into();
                        true
                    };
                    self.client.modify::<LeaseCandidate>(&candidate, ping).await?;
                }
            }
            Step::Elect(holder) => {
                let given = json!({
                    "holderIdentity": holder, "leaseDurationSeconds": FIRST_LEASE_SECONDS,
                    "renewTime": now.to_micro_string(), "strategy": candidates[0].spec.strategy,
                });
                log::info!("{NAME}: {key}: {holder} leads");
                match live {
                    Some(mut live) => {
                        given.as_object().into_iter().flatten().for_each(|(name, value)| {
                            live["spec"][name] = value.clone();
                        });
                        live["spec"]["preferredHolder"] = Value::Null;
                        live["spec"]["acquireTime"] = Value::Null;
                        leases.update::<Value>(&key, &live).await?;
                    }
                    None => {
                        let lease = json!({
                            "apiVersion": Lease::RESOURCE.api_version(), "kind": "Lease",
                            "metadata": { "name": &*key.name, "namespace": &*key.namespace },
                            "spec": given,
                        });
                        leases.create::<Value>(&key.namespace, &lease).await?;
                    }
                }
            }
            Step::Prefer(holder) => {
                let mut live = live.unwrap_or_default();
                if live["spec"]["preferredHolder"] != *holder {
                    live["spec"]["preferredHolder"] = holder.into();
                    leases.update::<Value>(&key, &live).await?;
                }
            }
        }
        Ok(Next::After(RETRY_DELAY))
    }
}

impl Candidate {
    fn is_valid(&self, now: Timestamp) -> bool {
        self.spec.renew_time.is_some_and(|renewed| now < renewed + CANDIDATE_VALID)
    }

    /// Returns whether the candidate has renewed its candidacy in time for this election.
    fn has_answered(&self, now: Timestamp) -> bool {
        self.spec.renew_time.is_some_and(|renewed| now < renewed + ELECTION)
    }

    /// Returns whether the candidate has been pinged, and has not answered since.
    fn is_asked(&self) -> bool {
        self.spec.ping_time > self.spec.renew_time
    }

    /// Orders candidates, the better one first: that of the lowest emulation version, then of the
    /// lowest binary version, then the oldest. Upstream: the strategy `OldestEmulationVersion`.
    fn order(&self, other: &Candidate) -> Ordering {
        let versions = |c: &Candidate| {
            let numbers = |text: &str| -> Vec<u64> {
                text.split('.').map(|number| number.parse().unwrap_or(0)).collect()
            };
            (numbers(&c.spec.emulation_version), numbers(&c.spec.binary_version))
        };
        let created = |c: &Candidate| c.meta.creation_timestamp;
        versions(self).cmp(&versions(other)).then_with(|| created(self).cmp(&created(other)))
    }
}

/// Decides what to do about a lease: nothing while its holder is the best candidate or answers are
/// awaited, ping silent candidates, then elect or prefer the best that answered.
fn step(lease: Option<&HeldLease>, candidates: &[Arc<Candidate>], now: Timestamp) -> Step {
    let best = |of: &mut dyn Iterator<Item = &Arc<Candidate>>| {
        of.min_by(|a, b| a.order(b)).map(|best| best.meta.name.to_string())
    };
    let holder = lease.and_then(|lease| {
        let seconds = lease.lease_duration_seconds.and_then(|seconds| seconds.try_into().ok())?;
        let is_held = now < lease.renew_time? + Duration::from_secs(seconds);
        lease.holder_identity.clone().filter(|holder| is_held && !holder.is_empty())
    });
    if holder.is_some() && holder == best(&mut candidates.iter()) {
        return Step::Wait;
    }
    let waits = |c: &Candidate| c.spec.ping_time.is_some_and(|ping| now < ping + ELECTION);
    if candidates.iter().any(|c| c.is_asked() && waits(c)) {
        return Step::Wait;
    }
    let silent = candidates.iter().filter(|c| !c.has_answered(now) && !c.is_asked());
    let silent: Vec<ObjectKey> = silent.map(|c| c.meta.key()).collect();
    if !silent.is_empty() {
        return Step::Ping(silent);
    }
    match best(&mut candidates.iter().filter(|c| c.has_answered(now))) {
        None => Step::Wait,
        Some(chosen) if holder.is_none() => Step::Elect(chosen),
        Some(chosen) if holder.as_ref() == Some(&chosen) => Step::Wait,
        Some(chosen) => Step::Prefer(chosen),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_secs(1_000_000 + seconds)
    }

    fn candidate(name: &str, version: &str, ping: Option<i64>, renew: i64) -> Arc<Candidate> {
        let mut made = Candidate::default();
        made.meta.name = name.into();
        made.meta.namespace = "kube-system".into();
        made.spec.emulation_version = version.to_owned();
        made.spec.ping_time = ping.map(at);
        made.spec.renew_time = Some(at(renew));
        Arc::new(made)
    }

    fn held(holder: &str, renew: i64) -> Option<HeldLease> {
        Some(HeldLease {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(15),
            renew_time: Some(at(renew)),
        })
    }

    #[test]
    fn oldest_version_that_answers_leads() {
        let ping = |name: &str| Step::Ping(vec![ObjectKey::new("kube-system", name)]);
        let (old, new) = ("1.35.0", "1.36.0");
        let table = [
            ("first", None, vec![candidate("a", new, None, 99)], Step::Elect("a".into())),
            ("late", None, vec![candidate("a", new, None, 90)], ping("a")),
            ("asked", None, vec![candidate("a", new, Some(98), 90)], Step::Wait),
            ("silent", None, vec![candidate("a", new, Some(90), 80)], Step::Wait),
            (
                "one is silent",
                None,
                vec![candidate("a", old, Some(90), 80), candidate("b", new, Some(98), 99)],
                Step::Elect("b".into()),
            ),
            (
                "the best leads",
                held("a", 90),
                vec![candidate("a", old, None, 10), candidate("b", new, None, 99)],
                Step::Wait,
            ),
            (
                "a better one comes",
                held("b", 90),
                vec![candidate("a", old, None, 99), candidate("b", new, Some(98), 99)],
                Step::Prefer("a".into()),
            ),
            (
                "the leader is gone",
                held("a", 80),
                vec![candidate("a", old, Some(90), 80), candidate("b", new, Some(98), 99)],
                Step::Elect("b".into()),
            ),
            (
                "released",
                held("", 99),
                vec![candidate("b", new, None, 99)],
                Step::Elect("b".into()),
            ),
        ];
        for (name, lease, candidates, expected) in table {
            assert_eq!(step(lease.as_ref(), &candidates, at(100)), expected, "{name}");
        }
    }
}
