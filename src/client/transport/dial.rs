//! Connecting to a name that has several addresses. RFC 8305 ("happy eyeballs"); upstream:
//! `net.Dialer`.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use async_std::net::{TcpStream, ToSocketAddrs};
use futures_lite::future::poll_fn;

use crate::clock::{SharedClock, Sleep};

/// How long one attempt runs alone before an attempt with the next address starts beside it.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Connects to the first address of `host` that answers.
///
/// An attempt with the next address starts when an attempt fails, and also while earlier attempts
/// are silent: an address that never answers costs [`ATTEMPT_DELAY`], not the whole time for
/// connecting. The caller limits the time of all attempts together.
///
/// # Errors
/// When all attempts have failed: the error of the one that failed first.
pub(super) async fn dial(host: &str, port: u16, clock: &SharedClock) -> io::Result<TcpStream> {
    let fault = |error: io::Error| {
        io::Error::new(error.kind(), format!("connect to {host}:{port}: {error}"))
    };
    let found = (host, port).to_socket_addrs().await.map_err(fault)?;
    race(interleaved(found.collect()), clock, TcpStream::connect).await.map_err(fault)
}

/// Sorts the addresses so that both families alternate, beginning with the family of the first
/// address.
fn interleaved(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let count = addresses.len();
    let first_is_ipv4 = addresses.first().is_some_and(SocketAddr::is_ipv4);
    let (first_family, other_family): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| address.is_ipv4() == first_is_ipv4);
    let mut sorted = Vec::with_capacity(count);
    let (mut first_family, mut other_family) = (first_family.into_iter(), other_family.into_iter());
    loop {
        let before = sorted.len();
        sorted.extend(first_family.next());
        sorted.extend(other_family.next());
        if sorted.len() == before {
            return sorted;
        }
    }
}

/// Connects to one of `addresses`: returns the first connection that `connect` makes, and drops the
/// other attempts. The next attempt starts [`ATTEMPT_DELAY`] after the last one, or at once when
/// one fails.
async fn race<C, F>(
    addresses: Vec<SocketAddr>,
    clock: &SharedClock,
    connect: impl Fn(SocketAddr) -> F,
) -> io::Result<C>
where
    F: Future<Output = io::Result<C>> + Send,
{
    let mut untried = addresses.into_iter();
    let mut attempts: Vec<(SocketAddr, Pin<Box<F>>)> = Vec::new();
    // When the next attempt starts; `None`: now.
    let mut next: Option<Sleep> = None;
    let mut first_error: Option<io::Error> = None;
    poll_fn(move |context| {
        loop {
            if next.is_none()
                && let Some(address) = untried.next()
            {
                attempts.push((address, Box::pin(connect(address))));
                next = Some(clock.sleep(ATTEMPT_DELAY));
            }
            let (mut connected, before) = (None, attempts.len());
            attempts.retain_mut(|(address, attempt)| match attempt.as_mut().poll(context) {
                Poll::Pending => true,
                Poll::Ready(Ok(connection)) => {
                    connected.get_or_insert(connection);
                    false
                }
                Poll::Ready(Err(error)) => {
                    let text = || io::Error::new(error.kind(), format!("{address}: {error}"));
                    first_error.get_or_insert_with(text);
                    false
                }
            });
            if let Some(connection) = connected {
                return Poll::Ready(Ok(connection));
            }
            if untried.len() == 0 {
                return match attempts.is_empty() {
                    true => Poll::Ready(Err(first_error.take().unwrap_or_else(|| {
                        io::Error::new(io::ErrorKind::NotFound, "the name has no address")
                    }))),
                    false => Poll::Pending,
                };
            }
            let has_failed = attempts.len() < before;
            let mut is_late = || next.as_mut().is_some_and(|n| n.as_mut().poll(context).is_ready());
            if !has_failed && !is_late() {
                return Poll::Pending;
            }
            next = None;
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use futures_lite::future::{block_on, poll_once};
    use parking_lot::Mutex;
    use rustix::net::{self, AddressFamily, SocketType};
    use std::net::{Ipv4Addr, SocketAddrV4};

    use super::*;
    use crate::clock::{Clock, FakeClock};
    use crate::objects::Timestamp;

    fn addresses(text: &str) -> Vec<SocketAddr> {
        text.split_whitespace().map(|one| format!("{one}:1").parse().unwrap()).collect()
    }

    #[test]
    fn families_alternate() {
        for (given, expected) in [
            ("", ""),
            ("10.0.0.1 10.0.0.2", "10.0.0.1 10.0.0.2"),
            ("[::1] [::2] 10.0.0.1", "[::1] 10.0.0.1 [::2]"),
            ("10.0.0.1 [::1] [::2] 10.0.0.2 10.0.0.3", "10.0.0.1 [::1] 10.0.0.2 [::2] 10.0.0.3"),
        ] {
            assert_eq!(interleaved(addresses(given)), addresses(expected), "{given}");
        }
    }

    /// The address that connects, and after how many milliseconds. `silent` never answer and
    /// `closed` refuse at once.
    fn race_result(all: &str, silent: &str, closed: &str) -> (u128, Result<SocketAddr, String>) {
        let (silent, closed) = (addresses(silent), addresses(closed));
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let shared: SharedClock = clock.clone();
        let tried = Mutex::new(BTreeSet::new());
        let connect = |address: SocketAddr| {
            assert!(tried.lock().insert(address), "{address} has one attempt");
            let (silent, closed) = (silent.contains(&address), closed.contains(&address));
            async move {
                match (silent, closed) {
                    (true, _) => std::future::pending().await,
                    (_, true) => Err(io::Error::from(io::ErrorKind::ConnectionRefused)),
                    _ => Ok(address),
                }
            }
        };
        let mut racing = Box::pin(race(addresses(all), &shared, connect));
        let ended = (0..100).find_map(|_| {
            let ended = block_on(poll_once(&mut racing));
            if ended.is_none() {
                clock.advance(Duration::from_millis(50));
            }
            ended
        });
        let ended = ended.unwrap_or_else(|| Err(io::Error::other("never")));
        (clock.monotonic().as_millis(), ended.map_err(|error| error.to_string()))
    }

    #[test]
    fn a_silent_address_does_not_keep_the_others_waiting() {
        let first = |text| Ok(addresses(text)[0]);
        assert_eq!(race_result("10.0.0.1 10.0.0.2", "", ""), (0, first("10.0.0.1")));
        assert_eq!(race_result("10.0.0.1 10.0.0.2", "10.0.0.1", ""), (250, first("10.0.0.2")));
        assert_eq!(
            race_result("10.0.0.1 [::1] 10.0.0.2", "10.0.0.1 [::1]", ""),
            (500, first("10.0.0.2"))
        );
        // A refusal is followed by the next address at once.
        assert_eq!(
            race_result("10.0.0.1 10.0.0.2 10.0.0.3", "10.0.0.2", "10.0.0.1"),
            (250, first("10.0.0.3"))
        );
        let (at, error) = race_result("10.0.0.1 [::1]", "", "10.0.0.1 [::1]");
        assert_eq!(at, 0);
        assert!(error.unwrap_err().starts_with("10.0.0.1:1: "), "the first failure is reported");
        assert_eq!(
            race_result("10.0.0.1 10.0.0.2", "10.0.0.1", "10.0.0.2").1,
            Err("never".to_owned())
        );
        assert!(race_result("", "", "").1.unwrap_err().contains("no address"));
    }

    #[test]
    fn a_host_is_connected_to() {
        block_on(async {
            let host = "127.0.0.77";
            let listener = async_std::net::TcpListener::bind((host, 0)).await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let clock = crate::clock::SystemClock::shared();
            let stream = dial(host, port, &clock).await.unwrap();
            assert_eq!(stream.peer_addr().unwrap().port(), port);
            // Bound and not listening: nothing else can listen there meanwhile.
            let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 77), 0)).unwrap();
            let port = SocketAddr::try_from(net::getsockname(&socket).unwrap()).unwrap().port();
            let error = dial(host, port, &clock).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
            assert!(error.to_string().contains(&format!("connect to {host}:{port}")), "{error}");
        });
    }
}
