//! The plan of a soak: which work and which faults come at which second. A seed determines it, so
//! that a run can be replayed, with another manager too.

use std::fmt;
use std::time::Duration;

use fastrand::Rng;

use super::workload::{JobShape, NAMESPACES, Part};
use kube_controller_manager::client::Propagation;

/// The number of nodes.
pub const NODES: usize = 4;
/// The namespace that comes and goes.
const LEAVING: usize = NAMESPACES - 1;
/// Pauses between two steps of work, and between two faults, in milliseconds.
const WORK_PAUSE: std::ops::Range<u64> = 300..1500;
const FAULT_PAUSE: std::ops::Range<u64> = 2000..6000;
/// No fault comes before.
const FIRST_FAULT: u64 = 1500;
/// How long most Jobs stay, in milliseconds.
const JOB_STAYS: u64 = 60_000;
/// The longest time for which a proxy delivers nothing, in milliseconds. With the delays of
/// [`Fault::SlowAdmission`] it is shorter than the time between a leader's renew deadline and the
/// end of its lease: a write that was sent in time must not be carried out under another leader.
const LONGEST_STALL: u64 = 1500;

/// What happens at a time of the soak.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub at: Duration,
    pub action: Action,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Work(Work),
    Fault(Fault),
}

/// A change of a namespace's objects.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    pub namespace: usize,
    pub change: Change,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Creates the object unless it exists.
    Ensure(Part),
    Delete(Part, Propagation),
    Scale(Part, u32),
    /// Gives the pods another image.
    Roll(Part, u32),
    StartJob(u32, JobShape),
    DeleteJob(u32),
    /// Evicts a pod of the Deployment that has a budget: the one with this number, of those that
    /// there are.
    Evict(usize),
    /// Deletes a pod. `at_once`: without its grace period.
    DeletePod {
        nth: usize,
        at_once: bool,
    },
    /// Creates ConfigMaps that belong to one or two other ones.
    Own {
        owner: u32,
        owners: u32,
    },
    /// Deletes the first owner of [`Change::Own`] with this number.
    DeleteOwner(u32, Propagation),
    DeleteNamespace,
    /// Creates the namespace and all its parts.
    EnsureNamespace,
}

impl Change {
    /// Returns the change's name in the report.
    pub fn name(&self) -> &'static str {
        match self {
            Change::Ensure(_) => "create again",
            Change::Delete(..) => "delete",
            Change::Scale(..) => "scale",
            Change::Roll(..) => "roll",
            Change::StartJob(..) => "start a Job",
            Change::DeleteJob(_) => "delete a Job",
            Change::Evict(_) => "evict a pod",
            Change::DeletePod { .. } => "delete a pod",
            Change::Own { .. } => "create dependents",
            Change::DeleteOwner(..) => "delete an owner",
            Change::DeleteNamespace => "delete a namespace",
            Change::EnsureNamespace => "fill a namespace",
        }
    }
}

/// How a manager's connections are disturbed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Impairment {
    /// Each connection is reset once it has passed this number of bytes more.
    CutAfter(usize),
    /// Nothing passes.
    Stall,
    /// Requests pass, answers and events do not.
    StallAnswers,
    /// Answers and events pass in pieces of this size, with a pause of milliseconds after each.
    Slow { bytes: usize, pause: u64 },
    /// No connection is accepted, and the open ones are reset.
    Refuse,
}

/// The managers that a fault affects.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Affected {
    Leader,
    Standby,
    Both,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// Between managers and the API server, for milliseconds. `cut`: the connections are reset in
    /// the end.
    Network { affected: Affected, impairment: Impairment, millis: u64, cut: bool },
    /// SIGKILL.
    Kill(Affected),
    /// SIGTERM.
    Terminate(Affected),
    /// SIGSTOP, and SIGCONT after milliseconds that are longer than a lease.
    Freeze { millis: u64 },
    /// The API server is gone for milliseconds. Afterwards no watch continues where it was.
    Restart { millis: u64 },
    /// etcd is gone for milliseconds; in an embedded server, as [`Fault::Restart`].
    KillEtcd { millis: u64 },
    /// All watches end with 410, and no later one continues where they were.
    Expire,
    /// The next requests fail.
    Answer {
        code: u16,
        retry_after: Option<u64>,
        verb: &'static str,
        resource: &'static str,
        times: usize,
    },
    /// The next writes are carried out, and not answered.
    LoseAnswers { verb: &'static str, resource: &'static str, times: usize },
    /// The next lists or watches are cut after a number of bytes.
    CutBodies { verb: &'static str, resource: &'static str, bytes: usize, times: usize },
    /// The next creations are admitted after milliseconds.
    SlowAdmission { millis: u64, times: usize },
    /// No pod is admitted for milliseconds.
    DenyAdmission { millis: u64 },
    /// The clock of the nodes and of the embedded API server differs by seconds, for milliseconds.
    StepClock { seconds: i64, millis: u64 },
    /// A node is dead for milliseconds.
    Node { node: usize, millis: u64 },
}

impl Fault {
    /// Returns the fault's name in the report.
    pub fn name(&self) -> &'static str {
        match self {
            Fault::Network { impairment, .. } => match impairment {
                Impairment::CutAfter(_) => "connections cut",
                Impairment::Stall => "connections stalled",
                Impairment::StallAnswers => "answers stalled",
                Impairment::Slow { .. } => "connections slow",
                Impairment::Refuse => "connections refused",
            },
            Fault::Kill(Affected::Standby) => "standby killed",
            Fault::Kill(_) => "leader killed",
            Fault::Terminate(_) => "leader terminated",
            Fault::Freeze { .. } => "leader frozen",
            Fault::Restart { .. } => "API server restarted",
            Fault::KillEtcd { .. } => "etcd killed",
            Fault::Expire => "watches expired (410)",
            Fault::Answer { code, .. } => match code {
                409 => "answer 409",
                410 => "answer 410",
                429 => "answer 429",
                504 => "answer 504",
                _ => "answer 500",
            },
            Fault::LoseAnswers { .. } => "answers lost",
            Fault::CutBodies { .. } => "lists and watches cut",
            Fault::SlowAdmission { .. } => "admission slow",
            Fault::DenyAdmission { .. } => "admission denied",
            Fault::StepClock { .. } => "clock stepped",
            Fault::Node { .. } => "node dead",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Work(Work { namespace, change }) => write!(f, "soak-{namespace}: {change:?}"),
            Action::Fault(fault) => write!(f, "{}: {fault:?}", fault.name()),
        }
    }
}

/// The writes of a manager that faults meet.
const WRITES: [(&str, &str); 16] = [
    ("create", "pods"),
    ("delete", "pods"),
    ("patch", "pods"),
    ("update", "pods/status"),
    ("create", "replicasets"),
    ("update", "replicasets"),
    ("update", "replicasets/status"),
    ("update", "deployments/status"),
    ("update", "statefulsets/status"),
    ("update", "jobs/status"),
    ("create", "jobs"),
    ("create", "endpointslices"),
    ("update", "endpointslices"),
    ("update", "resourcequotas/status"),
    ("update", "leases"),
    ("delete", "*"),
];
/// What is listed and watched.
const READ: [&str; 6] = ["pods", "replicasets", "jobs", "statefulsets", "nodes", "*"];

/// Draws the steps.
struct StepSource {
    rng: Rng,
    /// The kinds of faults that were not drawn since the last shuffle: each comes before any is
    /// repeated.
    deck: Vec<usize>,
    jobs: u32,
    owners: u32,
    images: u32,
}

/// The kinds of faults in a deck.
const KINDS: usize = 22;

/// Draws the steps of a soak of this length from the seed, in the order of their times.
pub fn plan(seed: u64, length: Duration) -> Vec<Step> {
    let mut draw =
        StepSource { rng: Rng::with_seed(seed), deck: Vec::new(), jobs: 0, owners: 0, images: 0 };
    let end = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
    let mut steps = Vec::new();
    let mut put = |at: u64, action: Action| {
        if at < end {
            steps.push(Step { at: Duration::from_millis(at), action });
        }
    };
    let mut at = 0;
    while at < end {
        for (after, work) in draw.work() {
            put(at + after, Action::Work(work));
        }
        at += draw.rng.u64(WORK_PAUSE);
    }
    let mut at = FIRST_FAULT;
    while at < end {
        put(at, Action::Fault(draw.fault()));
        at += draw.rng.u64(FAULT_PAUSE);
    }
    steps.sort_by_key(|step| step.at);
    steps
}

impl StepSource {
    /// Draws one of the values.
    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.rng.usize(..all.len())]
    }

    fn propagation(&mut self) -> Propagation {
        self.pick(&[Propagation::Background, Propagation::Foreground, Propagation::Orphan])
    }

    /// Draws one change, and the later ones that belong to it, each with the milliseconds until
    /// then.
    fn work(&mut self) -> Vec<(u64, Work)> {
        let namespace = self.rng.usize(..NAMESPACES);
        let after = self.rng.u64(500..9000);
        let mut steps = Vec::new();
        let mut put = |after, change| steps.push((after, Work { namespace, change }));
        match self.rng.u32(..100) {
            0..20 => {
                let part = self.pick(&[Part::Web, Part::Web, Part::Api, Part::Db]);
                let most = if part == Part::Web { 8 } else { 5 };
                put(0, Change::Scale(part, self.rng.u32(0..=most)));
            }
            20..36 => {
                self.images += 1;
                let part = self.pick(&[Part::Web, Part::Api, Part::Db, Part::Agent]);
                put(0, Change::Roll(part, self.images));
            }
            36..54 => {
                self.jobs += 1;
                let shape = JobShape {
                    indexed: self.rng.u32(..3) > 0,
                    completions: self.rng.u32(2..=6),
                    parallelism: self.rng.u32(1..=4),
                    seconds: self.rng.u32(0..=4),
                    fails: self.rng.u32(..8) == 0,
                    waits_for_end: self.rng.u32(..3) == 0,
                    is_removed: self.rng.u32(..4) == 0,
                };
                put(0, Change::StartJob(self.jobs, shape));
                let is_early = self.rng.u32(..3) == 0;
                let until = if is_early { after } else { JOB_STAYS };
                put(until, Change::DeleteJob(self.jobs));
            }
            54..66 => put(0, Change::Evict(self.rng.usize(..8))),
            66..76 => {
                let (nth, at_once) = (self.rng.usize(..20), self.rng.bool());
                put(0, Change::DeletePod { nth, at_once });
            }
            76..84 => {
                self.owners += 1;
                put(0, Change::Own { owner: self.owners, owners: self.rng.u32(1..=2) });
                put(after, Change::DeleteOwner(self.owners, self.propagation()));
            }
            84..95 => {
                let part = self.pick(&[
                    Part::Web,
                    Part::Api,
                    Part::Db,
                    Part::Agent,
                    Part::Tick,
                    Part::WebService,
                    Part::Budget,
                ]);
                put(0, Change::Delete(part, self.propagation()));
                put(after, Change::Ensure(part));
            }
            _ => {
                let leaving = |change| Work { namespace: LEAVING, change };
                let back = after + 3000;
                return vec![
                    (0, leaving(Change::DeleteNamespace)),
                    (back, leaving(Change::EnsureNamespace)),
                ];
            }
        }
        steps
    }

    /// Draws one fault. All kinds occur before one occurs again: they are a shuffled deck. The last
    /// kind is a dead node, and one time in four a killed standby instead.
    fn fault(&mut self) -> Fault {
        if self.deck.is_empty() {
            self.deck = (0..KINDS).collect();
            self.rng.shuffle(&mut self.deck);
        }
        let kind = self.deck.pop().unwrap_or_default();
        let affected = self.pick(&[Affected::Leader, Affected::Leader, Affected::Both]);
        let cut = self.rng.bool();
        let network = |impairment, millis| Fault::Network { affected, impairment, millis, cut };
        let (verb, resource) = self.pick(&WRITES);
        let times = self.rng.usize(1..=12);
        let mut answer = |code| {
            let retry_after = (code == 429).then(|| self.rng.u64(1..=2));
            Fault::Answer { code, retry_after, verb, resource, times }
        };
        match kind {
            0 => network(Impairment::CutAfter(self.rng.usize(0..6000)), self.rng.u64(500..4000)),
            1 => network(Impairment::Stall, self.rng.u64(200..LONGEST_STALL)),
            2 => network(Impairment::StallAnswers, self.rng.u64(200..6000)),
            3 => {
                let (bytes, pause) = (self.rng.usize(100..8000), self.rng.u64(10..200));
                network(Impairment::Slow { bytes, pause }, self.rng.u64(1000..6000))
            }
            4 => network(Impairment::Refuse, self.rng.u64(200..3000)),
            5 => Fault::Kill(Affected::Leader),
            6 => Fault::Freeze { millis: self.rng.u64(10_000..14_000) },
            7 => Fault::Terminate(Affected::Leader),
            8 => Fault::Restart { millis: self.rng.u64(200..5000) },
            9 => Fault::Expire,
            10 => answer(409),
            11 => Fault::Answer {
                code: 410,
                retry_after: None,
                verb: self.pick(&["list", "watch"]),
                resource: self.pick(&READ),
                times,
            },
            12 => answer(429),
            13 => answer(500),
            14 => answer(504),
            15 => Fault::LoseAnswers { verb, resource, times },
            16 => Fault::CutBodies {
                verb: self.pick(&["list", "watch"]),
                resource: self.pick(&READ),
                bytes: self.rng.usize(0..5000),
                times,
            },
            17 => Fault::SlowAdmission { millis: self.rng.u64(100..1000), times },
            19 => Fault::KillEtcd { millis: self.rng.u64(100..2000) },
            18 => Fault::DenyAdmission { millis: self.rng.u64(1000..6000) },
            20 => {
                let seconds = self.rng.i64(2..=60) * self.pick(&[1, -1]);
                Fault::StepClock { seconds, millis: self.rng.u64(2000..20_000) }
            }
            _ => {
                let node = self.rng.usize(..NODES);
                if self.rng.u32(..4) == 0 {
                    return Fault::Kill(Affected::Standby);
                }
                Fault::Node { node, millis: self.rng.u64(5000..40_000) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_seed_determines_the_plan() {
        let minute = Duration::from_secs(60);
        assert_eq!(plan(7, minute), plan(7, minute));
        assert_ne!(plan(7, minute), plan(8, minute));
        // A longer soak has other steps, but none of them is late or out of order.
        for seed in 0..20 {
            let steps = plan(seed, minute);
            assert!(steps.is_sorted_by_key(|step| step.at) && steps.len() > 50, "{seed}");
            assert!(steps.iter().all(|step| step.at < minute), "{seed}");
        }
    }

    #[test]
    fn each_kind_of_fault_comes_before_any_is_repeated() {
        for seed in 0..20 {
            let steps = plan(seed, Duration::from_secs(600));
            let faults = steps.iter().filter_map(|step| match &step.action {
                Action::Fault(fault) => Some(fault.name()),
                Action::Work(_) => None,
            });
            let faults: Vec<&str> = faults.collect();
            let of_deck: BTreeSet<&str> = faults[..KINDS].iter().copied().collect();
            assert_eq!(of_deck.len(), KINDS, "{seed}: {of_deck:?}");
            let all: BTreeSet<&str> = faults.into_iter().collect();
            assert!(all.len() >= KINDS, "{seed}: {all:?}");
        }
    }

    #[test]
    fn no_request_is_late_by_more_than_a_lease_allows() {
        for seed in 0..50 {
            for step in plan(seed, Duration::from_secs(600)) {
                match step.action {
                    Action::Fault(Fault::Network {
                        impairment: Impairment::Stall, millis, ..
                    }) => assert!(millis < LONGEST_STALL, "{seed}"),
                    Action::Fault(Fault::SlowAdmission { millis, .. }) => {
                        assert!(millis < 1000, "{seed}");
                    }
                    _ => {}
                }
            }
        }
    }
}
