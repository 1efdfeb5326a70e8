//! A token bucket whose rate may change. Upstream: `flowcontrol.RateLimiter` and
//! `golang.org/x/time/rate.Limiter`.

use parking_lot::Mutex;
use std::time::Duration;

use crate::clock::SharedClock;

/// Holds up to `burst` tokens, full at first, and gains `rate` tokens a second. At a rate of zero
/// or less it gains and gives none. Never waits: it returns how long the caller has to wait.
/// Requests are served in the order of the calls. Upstream: `rate.Limiter`.
pub struct TokenBucket {
    clock: SharedClock,
    burst: f64,
    state: Mutex<State>,
}

#[derive(Clone, Copy)]
struct State {
    /// Tokens a second.
    rate: f64,
    /// Below zero: the number of tokens that are reserved ahead of their time.
    tokens: f64,
    /// When the tokens were counted, on the monotonic clock.
    at: Duration,
}

impl TokenBucket {
    /// Makes a full bucket. `rate` is in tokens a second; a `burst` of zero never lets
    /// [`try_take`](TokenBucket::try_take) succeed.
    pub fn new(rate: f64, burst: u32, clock: SharedClock) -> TokenBucket {
        let burst = f64::from(burst);
        let state = State { rate, tokens: burst, at: clock.monotonic() };
        TokenBucket { clock, burst, state: Mutex::new(state) }
    }

    /// Takes a token if there is one now, and returns whether there was. Upstream: `TryAccept`.
    pub fn try_take(&self) -> bool {
        let mut state = self.state.lock();
        let current = self.current_state(&state);
        if current.wait_for_one() != Some(Duration::ZERO) {
            return false;
        }
        *state = State { tokens: current.tokens - 1.0, ..current };
        true
    }

    /// Takes a token that may be there only later, and returns how long the caller waits for it:
    /// zero if it is there, [`Duration::MAX`] at a rate of zero or less, which takes none. A
    /// reservation cannot be given back. Upstream: `Reserve().Delay()`.
    pub fn reserve(&self) -> Duration {
        let mut state = self.state.lock();
        let current = self.current_state(&state);
        let Some(wait) = current.wait_for_one() else { return Duration::MAX };
        *state = State { tokens: current.tokens - 1.0, ..current };
        wait
    }

    /// Returns how long until [`try_take`](TokenBucket::try_take) succeeds at the present rate, if
    /// no token is taken meanwhile; `None`: not before the rate changes.
    pub fn next_in(&self) -> Option<Duration> {
        self.current_state(&self.state.lock()).wait_for_one()
    }

    /// Returns the present rate, in tokens a second.
    pub fn rate(&self) -> f64 {
        self.state.lock().rate
    }

    /// Changes the rate and keeps the tokens, counted at the old rate until now.
    /// Upstream: `rate.Limiter.SetLimit`.
    pub fn set_rate(&self, rate: f64) {
        let mut state = self.state.lock();
        *state = State { rate, ..self.current_state(&state) };
    }

    /// Replaces the bucket by a full one of another rate, less one token if the old one has no
    /// whole token. So with a burst of 1 a change of the rate lets no extra request pass. The same
    /// rate changes nothing. Upstream: `RateLimitedTimedQueue.SwapLimiter`.
    pub fn swap_rate(&self, rate: f64) {
        let mut state = self.state.lock();
        if state.rate == rate {
            return;
        }
        let current = self.current_state(&state);
        let can_give = current.rate > 0.0 && current.wait_for_one() == Some(Duration::ZERO);
        let tokens = if can_give { self.burst } else { self.burst - 1.0 };
        *state = State { rate, tokens, at: current.at };
    }

    /// Returns the state now, with the tokens that have come since.
    fn current_state(&self, state: &State) -> State {
        let now = self.clock.monotonic();
        let gained = now.saturating_sub(state.at).as_secs_f64() * state.rate.max(0.0);
        State { tokens: (state.tokens + gained).min(self.burst), at: now, ..*state }
    }
}

impl State {
    /// Returns how long until there is a token, in whole nanoseconds; `None`: never.
    fn wait_for_one(&self) -> Option<Duration> {
        if self.rate <= 0.0 {
            return None;
        }
        let missing = (1.0 - self.tokens).max(0.0) / self.rate;
        // A conversion from a float saturates.
        Some(Duration::from_nanos((missing * 1e9) as u64))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock::FakeClock;

    fn bucket(rate: f64, burst: u32) -> (Arc<FakeClock>, TokenBucket) {
        let clock = FakeClock::new(Default::default());
        (clock.clone(), TokenBucket::new(rate, burst, clock))
    }

    fn millis(wait: Option<Duration>) -> Option<u128> {
        wait.map(|wait| wait.as_millis())
    }

    #[test]
    fn takes_the_burst_and_then_the_rate() {
        let (clock, bucket) = bucket(0.5, 2);
        let take = || bucket.try_take();
        assert_eq!([take(), take(), take()], [true, true, false]);
        assert_eq!(millis(bucket.next_in()), Some(2_000));
        clock.advance(Duration::from_secs(1));
        assert!(!take());
        assert_eq!(millis(bucket.next_in()), Some(1_000));
        clock.advance(Duration::from_secs(1));
        assert_eq!([take(), take()], [true, false]);
        clock.advance(Duration::from_secs(3600));
        assert_eq!([take(), take(), take()], [true, true, false], "no more than the burst");
    }

    #[test]
    fn a_new_rate_counts_from_its_change() {
        let (clock, bucket) = bucket(1.0, 10);
        (0..10).for_each(|_| assert!(bucket.try_take()));
        clock.advance(Duration::from_secs(2));
        bucket.set_rate(4.0);
        assert_eq!(bucket.rate(), 4.0);
        assert_eq!([bucket.reserve(), bucket.reserve()], [Duration::ZERO; 2], "two were gained");
        assert_eq!(bucket.reserve().as_millis(), 250);
        bucket.set_rate(1.0);
        assert_eq!(bucket.reserve().as_millis(), 2_000, "the reserved one is paid first");
        bucket.set_rate(0.0);
        clock.advance(Duration::from_secs(3600));
        assert_eq!((bucket.try_take(), bucket.next_in()), (false, None));
        assert_eq!(bucket.reserve(), Duration::MAX);
        bucket.set_rate(1.0);
        assert_eq!(millis(bucket.next_in()), Some(3_000), "nothing was gained meanwhile");
    }

    #[test]
    fn a_swap_gives_no_extra_token() {
        // rate before, taken before, seconds passed, rate after, tokens at once after the swap
        for (before, taken, passed, after, at_once) in [
            (0.1, 0, 0, 0.01, 1),
            (0.1, 1, 0, 0.01, 0),
            (0.1, 1, 5, 1.0, 0),
            (0.1, 1, 10, 1.0, 1),
            (0.1, 1, 0, 0.1, 0),
            (0.0, 0, 9, 0.1, 0),
            (0.1, 0, 0, 0.0, 0),
        ] {
            let case = format!("{before} {taken} {passed} {after}");
            let (clock, bucket) = bucket(before, 1);
            (0..taken).for_each(|_| assert!(bucket.try_take(), "{case}"));
            clock.advance(Duration::from_secs(passed));
            bucket.swap_rate(after);
            assert_eq!(bucket.rate(), after);
            assert_eq!((0..3).filter(|_| bucket.try_take()).count(), at_once, "{case}");
            if after > 0.0 {
                clock.advance(Duration::from_secs_f64(1.0 / after));
                assert!(bucket.try_take(), "{case}");
            }
        }
    }
}
