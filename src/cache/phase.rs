//! The phases of a reflector, and the next phase after an outcome: decided without I/O.

use std::time::Duration;

use super::Error;

/// How old a list may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Any version that the server has in its cache.
    Any,
    /// Not older than this resource version.
    AtLeast(u64),
    /// The newest version.
    Newest,
}

impl Start {
    /// Returns the parameter `resourceVersion` of a list; `None`: the request has none.
    pub fn list_version(self) -> Option<String> {
        match self {
            Start::Any => Some("0".to_owned()),
            Start::AtLeast(version) => Some(version.to_string()),
            Start::Newest => None,
        }
    }
}

/// What the reflector does now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It lists by a watch that begins with all objects and stays open. Upstream: `watchList`.
    Stream {
        /// How old the list may be.
        start: Start,
    },
    /// It lists by a list request. Upstream: `list`.
    List {
        /// How old the list may be.
        start: Start,
    },
    /// It watches. Upstream: `watch`.
    Watch {
        /// The resource version of the last event, from which a new watch begins.
        from: u64,
    },
    /// It asks whether the server still knows `from`, after the connection has broken: a watch from
    /// a version that the server has yet to reach would bring nothing, without an error.
    Verify {
        /// The resource version of the last event.
        from: u64,
    },
    /// It waits before the next request.
    Wait {
        /// For how long.
        delay: Duration,
        /// The part of it for which the server has asked. The end of an outage may end the rest.
        least: Duration,
        /// The phase after the wait.
        then: Box<Phase>,
    },
}

/// How a phase ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The store has the whole list, at this resource version.
    Listed(u64),
    /// The server, or the connection, ended the watch.
    Closed,
    /// The connection of the watch broke, or the server ended it before its time: the server may be
    /// another one now.
    Broke,
    /// The watch ended within a second, without an event. Upstream: `VeryShortWatchError`.
    Short,
    /// The answer cannot be decoded, or the server cannot send it. A retry would fail the same way.
    Garbled,
    /// See [`Error::Expired`].
    Expired,
    /// See [`Error::TooLarge`].
    TooLarge,
    /// See [`Error::Busy`].
    Busy {
        /// The least delay before the next request.
        after: Duration,
    },
    /// See [`Error::Unsupported`].
    Unsupported,
    /// Any other failure.
    Failed,
    /// The server's newest version is not older than the one that was asked about.
    Verified,
    /// The server's newest version is older, or another cache has noticed a loss of versions: it has
    /// been restored from a backup.
    WentBack,
    /// An outage of the server is over, as another request has shown.
    Recovered,
    /// The wait is over.
    Waited,
}

impl From<&Error> for Outcome {
    /// Classifies an error by what the reflector does about it.
    fn from(error: &Error) -> Outcome {
        match error {
            Error::Expired => Outcome::Expired,
            Error::TooLarge => Outcome::TooLarge,
            Error::Busy { after } => Outcome::Busy { after: *after },
            Error::Unsupported => Outcome::Unsupported,
            Error::EndedByServer(_) => Outcome::Garbled,
            Error::Failed(_) if error.is_decode() => Outcome::Garbled,
            Error::Unreachable(_) | Error::Failed(_) => Outcome::Failed,
        }
    }
}

impl Phase {
    /// Returns whether it lists the newest version, now or after a wait.
    pub fn lists_the_newest(&self) -> bool {
        match self {
            Phase::Stream { start } | Phase::List { start } => *start == Start::Newest,
            Phase::Wait { then, .. } => then.lists_the_newest(),
            Phase::Watch { .. } | Phase::Verify { .. } => false,
        }
    }

    /// Returns the phase after `outcome`. This only decides; the [`Reflector`](super::Reflector)
    /// sends and sleeps. `backoff` returns the next delay; it is called only when there is a delay
    /// to wait.
    pub fn after(self, outcome: Outcome, mut backoff: impl FnMut() -> Duration) -> Phase {
        use Outcome::*;
        use Phase::*;
        let mut wait = |least: Duration, then: Phase| Wait {
            delay: backoff().max(least),
            least,
            then: Box::new(then),
        };
        match (self, outcome) {
            (Wait { then, .. }, _) => *then,
            (_, Listed(version)) => Watch { from: version },

            // The newest version cannot be too old or too new: wait before the next request.
            (Stream { start: Start::Newest }, Expired | TooLarge) => {
                wait(Duration::ZERO, Stream { start: Start::Newest })
            }
            (Stream { .. }, Expired | TooLarge) => Stream { start: Start::Newest },
            (same @ Stream { .. }, Busy { after }) => wait(after, same),
            // The list was not whole when the server ended the watch.
            (same @ Stream { .. }, Closed) => wait(Duration::ZERO, same),
            // Any other failure: the server may still answer a list request.
            (Stream { start }, _) => List { start },

            (List { start: Start::Newest }, Expired | TooLarge) => {
                wait(Duration::ZERO, Stream { start: Start::Newest })
            }
            (List { .. }, Expired | TooLarge) => List { start: Start::Newest },
            (List { start }, Busy { after }) => wait(after, Stream { start }),
            (List { start }, _) => wait(Duration::ZERO, Stream { start }),

            // A watch ends regularly after its timeout.
            (same @ Watch { .. }, Closed) => same,
            (Watch { .. }, WentBack) => Stream { start: Start::Newest },
            (Watch { from }, Broke) => Verify { from },
            (same @ Watch { .. }, Busy { after }) => wait(after, same),
            (Watch { from }, Expired | TooLarge | Short | Garbled) => {
                wait(Duration::ZERO, Stream { start: Start::AtLeast(from) })
            }
            // Missed events can still be watched: no list is needed.
            (Watch { from }, _) => wait(Duration::ZERO, Verify { from }),

            (Verify { .. }, WentBack) => Stream { start: Start::Newest },
            (same @ Verify { .. }, Busy { after }) => wait(after, same),
            (same @ Verify { .. }, Failed) => wait(Duration::ZERO, same),
            // This request may have been lost in the outage.
            (same @ Verify { .. }, Recovered) => same,
            // Verified. After any other outcome the watch itself shows what the server knows.
            (Verify { from }, _) => Watch { from },
        }
    }
}

/// Delays that double from 0.8 s to 30 s, each multiplied by a random factor of 1 to 2. They start
/// again at 0.8 s when two minutes have passed since the last such start, and with a
/// [`reset`](Backoff::reset). Upstream: `wait.Backoff.DelayWithReset`.
pub struct Backoff {
    /// Zero at a start.
    next: Duration,
    reset_at: Duration,
    random: fastrand::Rng,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(800);
    const LAST: Duration = Duration::from_secs(30);
    const SPREAD: Duration = Duration::from_millis(400);
    const RESET: Duration = Duration::from_secs(120);

    /// Makes delays that start at `now`, a time of the monotonic clock. `random`: for the factors.
    pub fn new(now: Duration, random: fastrand::Rng) -> Backoff {
        Backoff { next: Duration::ZERO, reset_at: now, random }
    }

    /// Returns the next delay, for an outcome at the monotonic time `now`. The first delay after a
    /// version that is too old or too new, as after a restart of the server, is short: the server
    /// answers, and only must not get the lists of all caches at once.
    pub fn next(&mut self, outcome: Outcome, now: Duration) -> Duration {
        if now.saturating_sub(self.reset_at) > Backoff::RESET {
            self.reset(now);
        }
        let delay = match outcome {
            Outcome::Expired | Outcome::TooLarge if self.next.is_zero() => {
                self.next = Backoff::FIRST;
                return Backoff::SPREAD.mul_f64(self.random.f64());
            }
            _ => self.next.max(Backoff::FIRST),
        };
        self.next = (delay * 2).min(Backoff::LAST);
        delay.mul_f64(1.0 + self.random.f64())
    }

    /// Starts again at `now`.
    pub fn reset(&mut self, now: Duration) {
        self.next = Duration::ZERO;
        self.reset_at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_secs(3);

    fn wait(then: Phase) -> Phase {
        Phase::Wait { delay: DELAY, least: Duration::ZERO, then: Box::new(then) }
    }

    fn wait_as_asked(then: Phase) -> Phase {
        Phase::Wait { delay: DELAY, least: Duration::from_secs(1), then: Box::new(then) }
    }

    /// Every phase with every outcome it can have.
    #[test]
    fn the_next_phase_follows_from_phase_and_outcome() {
        use Outcome::*;
        use Phase::{List, Stream, Verify, Wait, Watch};
        use Start::{Any, AtLeast, Newest};
        let stream = |start| Stream { start };
        let list = |start| List { start };
        let (watch, verify) = (Watch { from: 7 }, Verify { from: 7 });
        let busy = Busy { after: Duration::from_secs(1) };
        for (phase, outcome, next) in [
            (stream(Any), Listed(9), Watch { from: 9 }),
            (stream(Any), Unsupported, list(Any)),
            (stream(AtLeast(7)), Unsupported, list(AtLeast(7))),
            (stream(Any), Failed, list(Any)),
            (stream(Any), Garbled, list(Any)),
            (stream(Any), Short, list(Any)),
            (stream(Any), Closed, wait(stream(Any))),
            (stream(Any), busy, wait_as_asked(stream(Any))),
            (stream(AtLeast(7)), Expired, stream(Newest)),
            (stream(AtLeast(7)), TooLarge, stream(Newest)),
            (stream(Newest), Expired, wait(stream(Newest))),
            (list(Any), Listed(9), Watch { from: 9 }),
            (list(AtLeast(7)), Expired, list(Newest)),
            (list(AtLeast(7)), TooLarge, list(Newest)),
            (list(Newest), Expired, wait(stream(Newest))),
            (list(Newest), Failed, wait(stream(Newest))),
            (list(Any), Failed, wait(stream(Any))),
            (list(Any), Garbled, wait(stream(Any))),
            (list(Any), busy, wait_as_asked(stream(Any))),
            (watch.clone(), Closed, watch.clone()),
            (watch.clone(), Broke, verify.clone()),
            (watch.clone(), WentBack, stream(Newest)),
            (watch.clone(), Failed, wait(verify.clone())),
            (watch.clone(), Unsupported, wait(verify.clone())),
            (verify.clone(), Verified, watch.clone()),
            (verify.clone(), WentBack, stream(Newest)),
            (verify.clone(), busy, wait_as_asked(verify.clone())),
            (verify.clone(), Failed, wait(verify.clone())),
            (verify.clone(), Garbled, watch.clone()),
            (verify.clone(), Expired, watch.clone()),
            (verify.clone(), Recovered, verify.clone()),
            (watch.clone(), busy, wait_as_asked(watch.clone())),
            (watch.clone(), Expired, wait(stream(AtLeast(7)))),
            (watch.clone(), TooLarge, wait(stream(AtLeast(7)))),
            (watch.clone(), Short, wait(stream(AtLeast(7)))),
            (watch.clone(), Garbled, wait(stream(AtLeast(7)))),
            (wait(watch.clone()), Waited, watch.clone()),
            (wait(stream(AtLeast(7))), Recovered, stream(AtLeast(7))),
        ] {
            let found = phase.clone().after(outcome, || DELAY);
            assert_eq!(found, next, "{phase:?} ended: {outcome:?}");
        }
        let long = Busy { after: DELAY * 2 };
        let found = watch.clone().after(long, || DELAY);
        assert_eq!(found, Wait { delay: DELAY * 2, least: DELAY * 2, then: Box::new(watch) });
    }

    #[test]
    fn delays_double_to_a_limit_and_begin_again_after_two_minutes() {
        use Outcome::Failed;
        let mut backoff = Backoff::new(Duration::ZERO, fastrand::Rng::with_seed(1));
        for base in [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0] {
            let delay = backoff.next(Failed, Duration::from_secs(120)).as_secs_f64();
            assert!((base..base * 2.0).contains(&delay), "{delay} at {base}");
        }
        let delay = backoff.next(Failed, Duration::from_millis(120_001)).as_secs_f64();
        assert!((0.8..1.6).contains(&delay), "{delay}");
        let delay = backoff.next(Failed, Duration::from_secs(240)).as_secs_f64();
        assert!((1.6..3.2).contains(&delay), "{delay}");
    }

    #[test]
    fn only_repeated_lists_for_a_version_that_expired_are_delayed() {
        use Outcome::{Expired, Failed, TooLarge};
        let mut backoff = Backoff::new(Duration::ZERO, fastrand::Rng::with_seed(1));
        let mut next = |outcome| backoff.next(outcome, Duration::from_secs(60)).as_secs_f64();
        assert!((0.0..0.4).contains(&next(Expired)));
        for (outcome, base) in [(Expired, 0.8), (TooLarge, 1.6), (Failed, 3.2), (Expired, 6.4)] {
            let delay = next(outcome);
            assert!((base..=base * 2.0).contains(&delay), "{delay} at {base}");
        }
        backoff.reset(Duration::from_secs(60));
        let delay = backoff.next(TooLarge, Duration::from_secs(60));
        assert!(delay < Duration::from_millis(400), "{delay:?}");
        let delay = backoff.next(Failed, Duration::from_secs(180)).as_secs_f64();
        assert!((0.8..1.6).contains(&delay), "{delay}");
    }
}
