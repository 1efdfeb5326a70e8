//! Counts the requests and bytes of each program, and notes when its lists have been sent.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_lite::StreamExt;
use serde::Serialize;

use crate::request::call::{Query, ResourcePath, verb};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::server::http::{Body, Request, Response};

/// Requests of one verb, and the bytes of their bodies before TLS and chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    pub requests: u64,
    pub received_bytes: u64,
    pub sent_bytes: u64,
}

impl Count {
    /// Returns the difference to `earlier`.
    pub fn since(self, earlier: Count) -> Count {
        Count {
            requests: self.requests - earlier.requests,
            received_bytes: self.received_bytes - earlier.received_bytes,
            sent_bytes: self.sent_bytes - earlier.sent_bytes,
        }
    }
}

/// The annotation of the bookmark that ends the list at the beginning of a watch.
const INITIAL_EVENTS_END: &[u8] = b"k8s.io/initial-events-end";
/// That bookmark is the last event of its chunk, and no longer than this.
const BOOKMARK_BYTES: usize = 512;

/// The counts by program (the user agent up to its first `/`) and verb.
pub struct Traffic {
    clock: SharedClock,
    meters: Mutex<BTreeMap<(String, &'static str), Arc<Meter>>>,
}

/// Counts the requests of one program and verb.
pub struct Meter {
    clock: SharedClock,
    verb: &'static str,
    requests: AtomicU64,
    received: AtomicU64,
    sent: AtomicU64,
    /// The monotonic nanoseconds at which the last bytes of a list were sent; 0: none yet.
    listed: AtomicU64,
}

impl Traffic {
    pub fn new(clock: SharedClock) -> Traffic {
        Traffic { clock, meters: Mutex::default() }
    }

    /// Counts a request, and returns the meter that counts its response: one for each program and
    /// verb.
    pub fn meter(&self, request: &Request) -> Arc<Meter> {
        let agent = request.header("user-agent").unwrap_or_default();
        let program = agent.split('/').next().unwrap_or_default().to_owned();
        let path = ResourcePath::parse(&request.path);
        let verb = verb(&request.method, path.as_ref(), &Query::parse(&request.query));
        let received = request.header("content-length").and_then(|text| text.parse().ok());
        let mut meters = self.meters.lock();
        let new = || Arc::new(Meter::new(self.clock.clone(), verb));
        let meter = meters.entry((program, verb)).or_insert_with(new);
        meter.requests.fetch_add(1, Ordering::Relaxed);
        meter.received.fetch_add(received.unwrap_or_default(), Ordering::Relaxed);
        meter.clone()
    }

    /// Returns the requests of `program` so far, by verb.
    pub fn of(&self, program: &str) -> BTreeMap<&'static str, Count> {
        let meters = self.meters.lock();
        let own = meters.iter().filter(|((name, _), _)| name == program);
        own.map(|((_, verb), meter)| (*verb, meter.count())).collect()
    }

    /// Returns the monotonic time at which the last bytes of `program`'s latest list were sent,
    /// whether the list was a request of its own or the beginning of a watch.
    pub fn listed(&self, program: &str) -> Option<Duration> {
        let meters = self.meters.lock();
        let own = meters.iter().filter(|((name, _), _)| name == program);
        let latest = own.map(|(_, meter)| meter.listed.load(Ordering::Relaxed)).max()?;
        (latest > 0).then(|| Duration::from_nanos(latest))
    }
}

impl Meter {
    fn new(clock: SharedClock, verb: &'static str) -> Meter {
        let [requests, received, sent, listed] = [0; 4].map(AtomicU64::new);
        Meter { clock, verb, requests, received, sent, listed }
    }

    /// Counts bytes of an answer, and notes the time if they belong to a list, or end the list of a
    /// watch.
    fn count_sent(&self, bytes: &[u8]) {
        self.sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let tail = &bytes[bytes.len().saturating_sub(BOOKMARK_BYTES)..];
        let is_list = match self.verb {
            "list" => true,
            "watch" => tail.windows(INITIAL_EVENTS_END.len()).any(|it| it == INITIAL_EVENTS_END),
            _ => false,
        };
        if is_list {
            let now = self.clock.monotonic().as_nanos();
            self.listed.fetch_max(u64::try_from(now).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    fn count(&self) -> Count {
        Count {
            requests: self.requests.load(Ordering::Relaxed),
            received_bytes: self.received.load(Ordering::Relaxed),
            sent_bytes: self.sent.load(Ordering::Relaxed),
        }
    }

    /// Counts the bytes of a response and returns it; those of a stream are counted as they are
    /// sent.
    pub fn count_response(self: Arc<Self>, response: Response) -> Response {
        let body = match response.body {
            Body::Full(bytes) => {
                self.count_sent(&bytes);
                Body::Full(bytes)
            }
            Body::Stream(stream) => Body::Stream(Box::pin(stream.inspect(move |chunk| {
                self.count_sent(chunk.as_deref().unwrap_or_default());
            }))),
            Body::Abort => Body::Abort,
        };
        Response { body, ..response }
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;

    use super::*;
    use kube_controller_manager::clock::{FakeClock, SystemClock};
    use kube_controller_manager::objects::Timestamp;
    use kube_controller_manager::server::http::{Bytes, HeaderMap};

    #[test]
    fn programs_are_counted_apart_and_streams_while_they_run() {
        let traffic = Traffic::new(SystemClock::shared());
        let ask = |agent: &'static str, query: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("user-agent", agent.parse().unwrap());
            headers.insert("content-length", "3".parse().unwrap());
            traffic.meter(&Request { headers, ..Request::get(&format!("/api/v1/pods?{query}")) })
        };
        let watch = ask("manager/v1 (linux) kubernetes/gc", "watch=1");
        ask("manager/v1 kubernetes/job", "watch=1");
        ask("kubectl/v1", "");
        let chunks = ["ab", "cde"].map(|text| std::io::Result::Ok(Bytes::from(text)));
        let stream = Box::pin(futures_lite::stream::iter(chunks));
        let response = watch.count_response(Response::stream(200, "text/plain", stream));
        let Body::Stream(mut stream) = response.body else { panic!("not a stream") };
        block_on(stream.next());
        let sent = |traffic: &Traffic| traffic.of("manager")["watch"].sent_bytes;
        assert_eq!(sent(&traffic), 2);
        block_on(stream.next());
        let count = Count { requests: 2, received_bytes: 6, sent_bytes: 5 };
        assert_eq!(traffic.of("manager"), BTreeMap::from([("watch", count)]));
    }

    #[test]
    fn the_end_of_a_list_is_noted() {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let traffic = Traffic::new(clock.clone());
        let answer = |query: &str, chunk: &'static str| {
            clock.advance(Duration::from_secs(1));
            let request = Request::get(&format!("/api/v1/pods?{query}"));
            let chunks = Box::pin(futures_lite::stream::once(Ok(Bytes::from(chunk))));
            let response =
                traffic.meter(&request).count_response(Response::stream(200, "", chunks));
            let Body::Stream(mut stream) = response.body else { panic!("not a stream") };
            block_on(stream.next());
            traffic.listed("").map(|at| at.as_secs())
        };
        assert_eq!(answer("watch=1", r#"{"type":"ADDED"}"#), None);
        assert_eq!(answer("watch=1", r#"{"k8s.io/initial-events-end":"true"}"#), Some(2));
        assert_eq!(answer("watch=1", r#"{"type":"ADDED"}"#), Some(2));
        assert_eq!(answer("", "{}"), Some(4));
    }
}
