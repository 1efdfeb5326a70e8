//! The steps of an attempt to take or keep the lock. Upstream: `tryAcquireOrRenew`.

use std::ops::ControlFlow::{self, Break, Continue};
use std::time::Duration;

use super::LeaderElectionRecord as Record;
use crate::objects::Timestamp;

/// The state of one contender. A lease runs from the time at which this contender saw it change, by
/// its own monotonic clock: the clocks of other machines do not matter.
pub(super) struct Election {
    identity: String,
    lease_duration: Duration,
    /// The API server gives the lock; see [`super::Config::coordinated`].
    coordinated: bool,
    /// The record of the lock that was seen last, and when it was first seen so.
    observed: Record,
    observed_at: Duration,
    /// When our last successful attempt to write the lock began. `None` before the first, and from
    /// the decision to release the lock on.
    written_at: Option<Duration>,
}

/// The request that an attempt makes now.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Attempt {
    /// Write without reading: we lead, so no other contender should have written.
    Renew(Record),
    Read,
    Create(Record),
    /// Overwrite the record that was just read.
    Update(Record),
}

/// How the request ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Outcome {
    Found(Record),
    Missing,
    Written,
    Failed,
}

/// When an attempt began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    pub wall: Timestamp,
    pub monotonic: Duration,
}

impl Election {
    /// Makes the election of a contender that has not read the lock yet.
    pub fn new(identity: &str, lease_duration: Duration, coordinated: bool) -> Election {
        Election {
            identity: identity.to_owned(),
            lease_duration,
            coordinated,
            observed: Record::default(),
            observed_at: Duration::ZERO,
            written_at: None,
        }
    }

    /// Returns the holder last seen; empty when there was none.
    pub fn leader(&self) -> &str {
        &self.observed.holder_identity
    }

    /// Returns whether we are the holder last seen.
    pub fn is_leader(&self) -> bool {
        self.observed.holder_identity == self.identity
    }

    /// Returns whether another contender has led since we did. Then the lock is not taken again,
    /// even if it is free: what our controllers know is from before the other one's writes.
    /// Upstream's leader continues.
    pub fn is_lost(&self) -> bool {
        self.written_at.is_some() && !self.is_leader()
    }

    /// Returns whether the lease is ours for certain: no other contender can have taken it yet.
    pub fn holds_lease(&self, now: Duration) -> bool {
        // The lease names whole seconds.
        let duration = Duration::from_secs(self.lease_duration.as_secs());
        self.is_leader() && self.written_at.is_some_and(|at| now < at + duration)
    }

    /// Returns how long ago we saw the record change.
    pub fn observed_for(&self, now: Duration) -> Duration {
        now.saturating_sub(self.observed_at)
    }

    /// Returns the first request of an attempt that begins now.
    pub fn begin(&self, start: Start) -> Attempt {
        if !self.coordinated && self.is_leader() && self.is_valid(start.monotonic) {
            Attempt::Renew(self.renewed(&self.observed, start))
        } else {
            Attempt::Read
        }
    }

    /// Returns the request that follows `outcome` (`Continue`), or ends the attempt with whether we
    /// hold the lock now (`Break`). `at` is the time of the answer.
    pub fn after(
        &mut self,
        attempt: Attempt,
        outcome: Outcome,
        start: Start,
        at: Duration,
    ) -> ControlFlow<bool, Attempt> {
        match (attempt, outcome) {
            (
                Attempt::Renew(record) | Attempt::Create(record) | Attempt::Update(record),
                Outcome::Written,
            ) => {
                self.observe(record, at);
                self.written_at = Some(start.monotonic);
                Break(true)
            }
            (Attempt::Renew(_), _) => Continue(Attempt::Read),
            (Attempt::Read, Outcome::Missing) if self.coordinated => Break(false),
            (Attempt::Read, Outcome::Missing) => Continue(Attempt::Create(self.new_term(start))),
            (Attempt::Read, Outcome::Found(record)) => {
                if record != self.observed {
                    self.observe(record, at);
                }
                if self.coordinated {
                    return match self.is_mine_to_renew(start.monotonic) {
                        true => Continue(Attempt::Update(Record {
                            strategy: self.observed.strategy.clone(),
                            ..self.renewed(&self.observed, start)
                        })),
                        false => Break(false),
                    };
                }
                if self.is_lost() {
                    return Break(false);
                }
                let held = !self.observed.holder_identity.is_empty();
                if held && !self.is_leader() && self.is_valid(start.monotonic) {
                    return Break(false);
                }
                Continue(Attempt::Update(if self.is_leader() {
                    self.renewed(&self.observed, start)
                } else {
                    let leader_transitions = self.observed.leader_transitions.saturating_add(1);
                    Record { leader_transitions, ..self.new_term(start) }
                }))
            }
            // The request has failed.
            _ => Break(false),
        }
    }

    /// Returns the record that releases the lock, to be written over `current`; `None` if it is not
    /// ours. From now on we do not hold the lock: once the record is on its way, another contender
    /// may take it before we see the answer.
    pub fn release(&mut self, current: &Record, now: Timestamp) -> Option<Record> {
        self.written_at = None;
        (self.is_leader() && current.holder_identity == self.identity).then(|| Record {
            holder_identity: String::new(),
            lease_duration_seconds: 1,
            acquire_time: Some(now),
            renew_time: Some(now),
            leader_transitions: current.leader_transitions,
            ..Record::default()
        })
    }

    /// Records that the lock has had this record since `at`, on the monotonic clock.
    pub fn observe(&mut self, record: Record, at: Duration) {
        self.observed = record;
        self.observed_at = at;
    }

    /// Returns whether the lease that was seen last has not expired at `now`.
    fn is_valid(&self, now: Duration) -> bool {
        let seconds = u64::try_from(self.observed.lease_duration_seconds).unwrap_or(0);
        self.observed_at + Duration::from_secs(seconds) > now
    }

    /// Returns whether we may renew the lock of a coordinated election: we were given it, it has
    /// not expired, and our term has not ended. Upstream: `tryCoordinatedRenew`.
    fn is_mine_to_renew(&self, now: Duration) -> bool {
        self.is_leader() && self.is_valid(now) && self.observed.preferred_holder.is_empty()
    }

    /// Makes the record of a new term.
    fn new_term(&self, start: Start) -> Record {
        Record {
            holder_identity: self.identity.clone(),
            lease_duration_seconds: self.lease_duration.as_secs().try_into().unwrap_or(i32::MAX),
            acquire_time: Some(start.wall),
            renew_time: Some(start.wall),
            ..Record::default()
        }
    }

    /// Makes a record of the same term as `old`.
    fn renewed(&self, old: &Record, start: Start) -> Record {
        Record {
            acquire_time: old.acquire_time,
            leader_transitions: old.leader_transitions,
            ..self.new_term(start)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start_at(secs: i64) -> Start {
        let wall = Timestamp::from_secs(1_000_000 + secs);
        Start { wall, monotonic: Duration::from_secs(secs as u64) }
    }

    fn record(holder: &str, acquired: i64, renewed: i64, transitions: i32) -> Record {
        Record {
            holder_identity: holder.into(),
            lease_duration_seconds: 15,
            acquire_time: Some(start_at(acquired).wall),
            renew_time: Some(start_at(renewed).wall),
            leader_transitions: transitions,
            ..Record::default()
        }
    }

    /// An election in which `observed` was seen at second 100.
    fn election(observed: Record) -> Election {
        let mut election = Election::new("me", Duration::from_secs(15), false);
        election.observe(observed, start_at(100).monotonic);
        election
    }

    /// Every request of an attempt that begins at `start`, given what each is answered.
    fn requests(
        election: &mut Election,
        start: i64,
        answers: Vec<Outcome>,
    ) -> (Vec<Attempt>, Option<bool>) {
        let mut made = vec![election.begin(start_at(start))];
        for answer in answers {
            let last = made[made.len() - 1].clone();
            match election.after(last, answer, start_at(start), start_at(start).monotonic) {
                Continue(next) => made.push(next),
                Break(held) => return (made, Some(held)),
            }
        }
        (made, None)
    }

    #[test]
    fn attempts_take_every_edge() {
        use Attempt::*;
        use Outcome::*;
        let mine = || record("me", 50, 100, 3);
        let other = || record("other", 50, 100, 3);
        let seen = |renewed| record("other", 50, renewed, 3);
        let released = Record { holder_identity: "".into(), ..other() };
        let table = [
            (
                "the lock does not exist yet",
                Record::default(),
                101,
                vec![Missing, Written],
                vec![Read, Create(record("me", 101, 101, 0))],
                Some(true),
            ),
            (
                "another contender creates it first",
                Record::default(),
                101,
                vec![Missing, Failed],
                vec![Read, Create(record("me", 101, 101, 0))],
                Some(false),
            ),
            (
                "we lead: no read",
                mine(),
                102,
                vec![Written],
                vec![Renew(record("me", 50, 102, 3))],
                Some(true),
            ),
            (
                "we lead, the write failed, the lock is still ours",
                mine(),
                102,
                vec![Failed, Found(mine()), Written],
                vec![Renew(record("me", 50, 102, 3)), Read, Update(record("me", 50, 102, 3))],
                Some(true),
            ),
            (
                "we led, the write conflicts, another leads now",
                mine(),
                102,
                vec![Failed, Found(seen(101))],
                vec![Renew(record("me", 50, 102, 3)), Read],
                Some(false),
            ),
            (
                "our own lease has expired: read first",
                mine(),
                115,
                vec![Found(mine()), Written],
                vec![Read, Update(record("me", 50, 115, 3))],
                Some(true),
            ),
            (
                "held by another, unchanged, not expired",
                other(),
                114,
                vec![Found(other())],
                vec![Read],
                Some(false),
            ),
            (
                "held by another, unchanged, expired by our clock",
                other(),
                115,
                vec![Found(other()), Written],
                vec![Read, Update(record("me", 115, 115, 4))],
                Some(true),
            ),
            (
                "expired, but another takes it first",
                other(),
                115,
                vec![Found(other()), Failed],
                vec![Read, Update(record("me", 115, 115, 4))],
                Some(false),
            ),
            (
                "renewed long ago by its holder's clock, just now by ours",
                other(),
                130,
                vec![Found(seen(-9000))],
                vec![Read],
                Some(false),
            ),
            (
                "renewed in the future by its holder's clock, long ago by ours",
                seen(9000),
                130,
                vec![Found(seen(9000)), Written],
                vec![Read, Update(record("me", 130, 130, 4))],
                Some(true),
            ),
            (
                "released: taken at once",
                other(),
                101,
                vec![Found(released), Written],
                vec![Read, Update(record("me", 101, 101, 4))],
                Some(true),
            ),
            ("the API server is away", other(), 130, vec![Failed], vec![Read], Some(false)),
        ];
        for (name, observed, start, answers, expect, held) in table {
            let mut election = election(observed);
            let (made, ended) = requests(&mut election, start, answers);
            assert_eq!((made, ended), (expect, held), "{name}");
            assert!(held != Some(true) || election.is_leader(), "{name}");
            let holds = |secs: i64| election.holds_lease(start_at(secs).monotonic);
            assert_eq!(
                (holds(start + 14), holds(start + 15)),
                (held == Some(true), false),
                "{name}"
            );
        }
    }

    #[test]
    fn a_leader_that_another_one_followed_takes_the_lock_no_more() {
        let other = || record("other", 110, 112, 4);
        let released = || Record { holder_identity: "".into(), ..other() };
        for (found, start) in [(other(), 114), (other(), 200), (released(), 114)] {
            let mut election = election(record("me", 50, 100, 3));
            assert_eq!(requests(&mut election, 101, vec![Outcome::Written]).1, Some(true));
            assert!(!election.is_lost());
            let answers = vec![Outcome::Failed, Outcome::Found(found.clone())];
            let answers = if start < 116 { answers } else { answers[1..].to_vec() };
            assert_eq!(requests(&mut election, start, answers).1, Some(false), "{found:?}");
            assert!(election.is_lost(), "{found:?}");
        }
    }

    #[test]
    fn coordinated_lease_is_renewed_as_given_and_never_taken() {
        use Attempt::*;
        use Outcome::*;
        const STRATEGY: &str = "OldestEmulationVersion";
        let given = |holder: &str, seconds: i32| Record {
            lease_duration_seconds: seconds,
            acquire_time: None,
            strategy: STRATEGY.into(),
            ..record(holder, 0, 100, 0)
        };
        let renewed = Record {
            renew_time: Some(start_at(110).wall),
            lease_duration_seconds: 15,
            ..given("me", 15)
        };
        let ended = Record { preferred_holder: "third".into(), ..given("me", 15) };
        let free = Record { holder_identity: "".into(), ..given("", 15) };
        let table = [
            ("no lease yet", 101, vec![Missing], vec![Read], Some(false)),
            (
                "given to us",
                110,
                vec![Found(given("me", 5)), Written],
                vec![Read, Update(renewed)],
                Some(true),
            ),
            ("given to another", 110, vec![Found(given("other", 5))], vec![Read], Some(false)),
            ("free", 110, vec![Found(free)], vec![Read], Some(false)),
            ("end of term", 110, vec![Found(ended)], vec![Read], Some(false)),
            ("the API server is away", 110, vec![Failed], vec![Read], Some(false)),
        ];
        for (name, start, answers, expect, held) in table {
            let mut election = Election::new("me", Duration::from_secs(15), true);
            assert_eq!(requests(&mut election, start, answers), (expect, held), "{name}");
        }
        for holder in ["me", "other"] {
            let mut election = Election::new("me", Duration::from_secs(15), true);
            election.observe(given(holder, 5), start_at(100).monotonic);
            let answers = vec![Found(given(holder, 5))];
            let made = requests(&mut election, 105, answers);
            assert_eq!(made, (vec![Read], Some(false)), "expired, held by {holder}");
        }
    }

    #[test]
    fn only_own_lease_is_released() {
        let now = start_at(110).wall;
        let ours = record("me", 50, 108, 7);
        let mut holding = election(ours.clone());
        assert_eq!(requests(&mut holding, 109, vec![Outcome::Written]).1, Some(true));
        assert!(holding.holds_lease(start_at(110).monotonic));
        let given_back = holding.release(&ours, now).unwrap();
        assert!(!holding.holds_lease(start_at(110).monotonic), "before the record is written");
        assert_eq!(given_back.holder_identity, "");
        assert_eq!((given_back.lease_duration_seconds, given_back.leader_transitions), (1, 7));
        let theirs = record("other", 109, 109, 8);
        assert_eq!(election(ours.clone()).release(&theirs, now), None, "taken over unseen");
        assert_eq!(election(theirs).release(&ours, now), None);
    }
}
