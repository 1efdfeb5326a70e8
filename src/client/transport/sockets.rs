//! The number of the process's descriptors that connections to API servers may use.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use crate::open_files;

/// The purpose of a connection. When descriptors become few, the purposes that the process depends
/// on most still get one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::client) enum Purpose {
    /// One resource's events. Its connection carries nothing else.
    Watch,
    /// Any other request, on a connection of the pool.
    Request,
    /// A request of the leader election: it waits for no other request.
    Lease,
}

/// The part of the limit (an eighth) that watches leave to requests, and requests to the lease,
/// to health checks and to files.
const RESERVED_PART: usize = 8;
/// The most descriptors that are left to others in each of the two cases.
const RESERVED_MOST: usize = 256;

/// Returns the most connections that may be open, with one more for this purpose.
fn allowed(limit: usize, purpose: Purpose) -> usize {
    let reserved = (limit / RESERVED_PART).min(RESERVED_MOST);
    match purpose {
        Purpose::Watch => limit - 2 * reserved,
        Purpose::Request => limit - reserved,
        Purpose::Lease => limit,
    }
}

/// Counts connections against the limit of open files.
pub(super) struct Sockets {
    limit: fn() -> usize,
    open: AtomicUsize,
    /// Whether the warning that few descriptors are free has been written.
    warned: AtomicBool,
}

/// The permit of one open connection, returned when it is dropped.
pub(super) struct SocketPermit {
    sockets: Arc<Sockets>,
}

impl Sockets {
    /// Returns the sockets of this process.
    pub fn shared() -> Arc<Sockets> {
        static SHARED: LazyLock<Arc<Sockets>> =
            LazyLock::new(|| Arc::new(Sockets::new(open_files::limit)));
        SHARED.clone()
    }

    pub fn new(limit: fn() -> usize) -> Sockets {
        Sockets { limit, open: AtomicUsize::new(0), warned: AtomicBool::new(false) }
    }

    /// Takes a place for one more connection.
    ///
    /// # Errors
    /// When all places for this purpose are taken.
    pub fn take(self: &Arc<Self>, purpose: Purpose) -> io::Result<SocketPermit> {
        let limit = (self.limit)();
        let open = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        // Counted already: its drop counts down, also after a refusal.
        let place = SocketPermit { sockets: self.clone() };
        if open > allowed(limit, purpose) {
            let what = format!(
                "{} connections are open and the limit of open files is {limit}; the others are \
                 kept for more urgent use: raise the limit (ulimit -n)",
                open - 1
            );
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, what));
        }
        let watches = allowed(limit, Purpose::Watch);
        if open > watches / 4 * 3 && !self.warned.swap(true, Ordering::Relaxed) {
            log::warn!(
                "{open} connections are open and the limit of open files is {limit}: above \
                 {watches} connections no watch is started; raise the limit (ulimit -n)"
            );
        }
        Ok(place)
    }
}

impl Drop for SocketPermit {
    /// Counts the connection down.
    fn drop(&mut self) {
        let sockets = &self.sockets;
        let open = sockets.open.fetch_sub(1, Ordering::Relaxed) - 1;
        // With half of the watches' places free, the next shortage is logged again.
        if sockets.warned.load(Ordering::Relaxed)
            && open < allowed((sockets.limit)(), Purpose::Watch) / 2
        {
            sockets.warned.store(false, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urgent_connections_find_descriptors_when_others_do_not() {
        for (limit, expected) in [
            (8, [6, 7, 8]),
            (1024, [768, 896, 1024]),
            (20_000, [19_488, 19_744, 20_000]),
            (usize::MAX, [usize::MAX - 512, usize::MAX - 256, usize::MAX]),
        ] {
            let places = [Purpose::Watch, Purpose::Request, Purpose::Lease];
            assert_eq!(places.map(|purpose| allowed(limit, purpose)), expected, "{limit}");
        }
        let sockets = Arc::new(Sockets::new(|| 8));
        let mut places = Vec::new();
        for (purpose, count) in [(Purpose::Watch, 6), (Purpose::Request, 1), (Purpose::Lease, 1)] {
            for _ in 0..count {
                places.push(sockets.take(purpose).unwrap());
            }
            let error = sockets.take(purpose).err().expect("all places are taken");
            assert!(error.to_string().contains("limit of open files is 8"), "{error}");
        }
        assert!(sockets.warned.load(Ordering::Relaxed));
        places.truncate(5);
        assert!(sockets.take(Purpose::Watch).is_ok());
        places.truncate(2);
        assert!(!sockets.warned.load(Ordering::Relaxed));
    }
}
