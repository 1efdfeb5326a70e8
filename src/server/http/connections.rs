//! The table of open connections: the phase of each, its deadline, and the choice of the one to
//! close when there are too many.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::SharedClock;
use crate::task::StopToken;

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The end of the TLS handshake.
    Handshake,
    /// The end of a request's head.
    Head,
    /// The handler's response.
    Response,
    /// The end of a response that is sent in chunks. Only a handler that trusts its client begins
    /// one.
    Stream,
    /// The next request, and before it the client that reads a response that is ready.
    Idle,
}

impl Phase {
    /// Returns how long the phase may last; `None` if it has no limit. Upstream: `http.Server` with
    /// `ReadHeaderTimeout` and `IdleTimeout` of `SecureServingInfo.Serve`, without a limit for a
    /// client that does not read.
    fn limit(self) -> Option<Duration> {
        match self {
            Phase::Handshake | Phase::Head => Some(Duration::from_secs(32)),
            Phase::Response | Phase::Stream => None,
            Phase::Idle => Some(Duration::from_secs(90)),
        }
    }
}

/// The progress of one connection, shared by its task and the table.
pub(super) struct Progress {
    clock: SharedClock,
    /// How long a stream may last.
    stream_limit: Option<Duration>,
    /// The phase and when it began.
    phase: Mutex<(Phase, Duration)>,
    /// Stops when the connection must be closed in favour of another.
    pub evicted: StopToken,
}

impl Progress {
    fn new(clock: SharedClock, stream_limit: Option<Duration>, phase: Phase) -> Arc<Progress> {
        let phase = Mutex::new((phase, clock.monotonic()));
        Arc::new(Progress { clock, stream_limit, phase, evicted: StopToken::new() })
    }

    /// Begins `phase` now.
    pub fn enter(&self, phase: Phase) {
        *self.phase.lock() = (phase, self.clock.monotonic());
    }

    /// Begins the phase of a request if the client was idle: it has sent bytes.
    pub fn record_received(&self) {
        if self.phase.lock().0 == Phase::Idle {
            self.enter(Phase::Head);
        }
    }

    /// Begins the idle phase again if the client is idle: it has taken bytes, so it still reads a
    /// response.
    pub fn record_sent(&self) {
        if self.phase.lock().0 == Phase::Idle {
            self.enter(Phase::Idle);
        }
    }

    /// Returns when the phase ends at the latest; `None` if it has no limit.
    pub fn deadline(&self) -> Option<Duration> {
        let (phase, since) = *self.phase.lock();
        let limit = match phase {
            Phase::Stream => self.stream_limit,
            other => other.limit(),
        };
        limit.map(|limit| since + limit)
    }

    pub fn phase(&self) -> Phase {
        self.phase.lock().0
    }
}

/// The origin of connections: an IPv4 address, or the /64 network of an IPv6 address, within which
/// a host may choose its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Origin(u64);

impl Origin {
    /// Returns the origin of an address: itself for IPv4, its /64 network for IPv6.
    fn new(address: IpAddr) -> Origin {
        match address.to_canonical() {
            IpAddr::V4(address) => Origin(u32::from(address).into()),
            IpAddr::V6(address) => Origin((u128::from(address) >> 64) as u64),
        }
    }
}

/// The table of open connections. There is always room for a new one: beyond `most` connections,
/// an old one is evicted.
pub(super) struct Connections {
    clock: SharedClock,
    most: usize,
    stream_limit: Option<Duration>,
    table: Mutex<Table>,
}

/// The open connections by their ids.
#[derive(Default)]
struct Table {
    next: u64,
    open: HashMap<u64, (Origin, Arc<Progress>)>,
}

/// A connection's entry in the table, until dropped.
pub(super) struct Slot {
    id: u64,
    connections: Arc<Connections>,
    pub progress: Arc<Progress>,
}

impl Connections {
    pub fn new(
        most: usize,
        stream_limit: Option<Duration>,
        clock: SharedClock,
    ) -> Arc<Connections> {
        Arc::new(Connections { clock, most, stream_limit, table: Mutex::default() })
    }

    /// Adds an entry for a connection from `address` that begins in `phase`.
    pub fn admit(self: &Arc<Connections>, address: IpAddr, phase: Phase) -> Slot {
        let progress = Progress::new(self.clock.clone(), self.stream_limit, phase);
        let mut table = self.table.lock();
        let id = table.next;
        table.next += 1;
        table.open.insert(id, (Origin::new(address), progress.clone()));
        if table.open.len() > self.most {
            table.evict();
        }
        Slot { id, connections: self.clone(), progress }
    }

    /// Closes the connection that is least likely to belong to a legitimate client. Called when no
    /// descriptor is left for a new one; see [`Table::evict`] for the choice.
    pub fn evict(&self) {
        self.table.lock().evict();
    }
}

impl Table {
    /// Evicts a connection of the origin with the most connections: the one that has been longest
    /// in its phase. One that waits for its response is evicted only if all of them do. Streams are
    /// not counted, and evicted only if all connections are streams.
    fn evict(&mut self) {
        let mut counts: HashMap<Origin, usize> = HashMap::new();
        for (origin, progress) in self.open.values() {
            let is_stream = progress.phase() == Phase::Stream;
            *counts.entry(*origin).or_default() += usize::from(!is_stream);
        }
        let victim = self.open.iter().min_by_key(|(id, (origin, progress))| {
            let (phase, since) = *progress.phase.lock();
            let count = counts.get(origin).copied().unwrap_or_default();
            let is_stream = phase == Phase::Stream;
            (is_stream, usize::MAX - count, phase == Phase::Response, since, **id)
        });
        let Some(id) = victim.map(|(id, _)| *id) else { return };
        if let Some((_, progress)) = self.open.remove(&id) {
            progress.evicted.stop();
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.connections.table.lock().open.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, FakeClock};
    use crate::objects::Timestamp;

    const SECOND: Duration = Duration::from_secs(1);

    /// How long a stream may last.
    const STREAM_LIMIT: Duration = Duration::from_secs(4);

    /// A table with room for `most` connections, and its clock.
    fn connections(most: usize) -> (Arc<FakeClock>, Arc<Connections>) {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        (clock.clone(), Connections::new(most, Some(STREAM_LIMIT), clock))
    }

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    /// The indices of the evicted connections.
    fn evicted(slots: &[Slot]) -> Vec<usize> {
        let stopped = |slot: &Slot| slot.progress.evicted.is_stopped();
        (0..slots.len()).filter(|n| stopped(&slots[*n])).collect()
    }

    #[test]
    fn oldest_connection_of_the_greediest_origin_makes_room() {
        let (clock, connections) = connections(4);
        let mut slots = Vec::new();
        let admit = |slots: &mut Vec<Slot>, from: &str| {
            clock.advance(SECOND);
            slots.push(connections.admit(address(from), Phase::Handshake));
        };
        for from in ["10.0.0.1", "10.0.0.2", "10.0.0.2", "10.0.0.2"] {
            admit(&mut slots, from);
        }
        assert_eq!(evicted(&slots), [0; 0]);
        admit(&mut slots, "10.0.0.1");
        assert_eq!(evicted(&slots), [1], "10.0.0.2 had three of five");
        slots[2].progress.enter(Phase::Idle);
        admit(&mut slots, "10.0.0.2");
        assert_eq!(evicted(&slots), [1, 3], "2 has changed its phase since");
        slots[2].progress.enter(Phase::Response);
        slots[5].progress.enter(Phase::Response);
        admit(&mut slots, "10.0.0.2");
        assert_eq!(evicted(&slots), [1, 3, 6], "the others of 10.0.0.2 are answered");
        admit(&mut slots, "10.0.0.3");
        assert_eq!(evicted(&slots), [0, 1, 3, 6], "both origins have two: the oldest");
        for stream in [2, 5, 7] {
            slots[stream].progress.enter(Phase::Stream);
        }
        admit(&mut slots, "10.0.0.3");
        assert_eq!(evicted(&slots), [0, 1, 3, 4, 6], "the others are streams");
    }

    #[test]
    fn closed_connections_leave_their_place() {
        let (_, connections) = connections(2);
        let first = connections.admit(address("::1"), Phase::Head);
        for _ in 0..10 {
            drop(connections.admit(address("::2"), Phase::Head));
        }
        assert!(!first.progress.evicted.is_stopped());
        assert_eq!(connections.table.lock().open.len(), 1);
        connections.evict();
        assert!(first.progress.evicted.is_stopped());
        connections.evict();
    }

    #[test]
    fn addresses_of_one_host_have_one_origin() {
        for (one, other, same) in [
            ("10.0.0.1", "10.0.0.2", false),
            ("10.0.0.1", "::ffff:10.0.0.1", true),
            ("2001:db8::1", "2001:db8::ffff:2", true),
            ("2001:db8::1", "2001:db8:0:1::1", false),
        ] {
            assert_eq!(
                Origin::new(address(one)) == Origin::new(address(other)),
                same,
                "{one} {other}"
            );
        }
    }

    #[test]
    fn phases_have_deadlines() {
        let (clock, connections) = connections(1);
        let slot = connections.admit(address("::1"), Phase::Handshake);
        let progress = &slot.progress;
        let left = || Some(progress.deadline()?.saturating_sub(clock.monotonic()).as_secs());
        assert_eq!(left(), Some(32));
        progress.enter(Phase::Head);
        clock.advance(SECOND);
        progress.record_received();
        assert_eq!(left(), Some(31), "bytes do not prolong a head");
        progress.enter(Phase::Response);
        progress.record_received();
        assert_eq!(left(), None);
        progress.enter(Phase::Stream);
        clock.advance(SECOND);
        progress.record_sent();
        assert_eq!(left(), Some(3), "bytes do not prolong a stream");
        progress.enter(Phase::Idle);
        clock.advance(SECOND);
        assert_eq!(left(), Some(89));
        progress.record_sent();
        assert_eq!(left(), Some(90), "the end of the response was sent");
        progress.record_received();
        assert_eq!(left(), Some(32));
    }
}
