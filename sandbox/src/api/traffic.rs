//! Counts the requests and bytes of each program.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_lite::StreamExt;
use serde::Serialize;

use crate::request::call::{Query, ResourcePath, verb};
use kube_controller_manager::server::http::{Body, Request, Response};

/// Requests of one verb, and the bytes of their bodies before TLS and chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    pub requests: u64,
    pub received_bytes: u64,
    pub sent_bytes: u64,
}

impl Count {
    /// The difference to `earlier`.
    pub fn since(self, earlier: Count) -> Count {
        Count {
            requests: self.requests - earlier.requests,
            received_bytes: self.received_bytes - earlier.received_bytes,
            sent_bytes: self.sent_bytes - earlier.sent_bytes,
        }
    }
}

/// The counts by program (the user agent up to its first `/`) and verb.
#[derive(Default)]
pub struct Traffic {
    meters: Mutex<BTreeMap<(String, &'static str), Arc<Meter>>>,
}

/// Counts the requests of one program and verb.
#[derive(Default)]
pub struct Meter {
    requests: AtomicU64,
    received: AtomicU64,
    sent: AtomicU64,
}

impl Traffic {
    /// Counts a request; the value returned counts its answer.
    pub fn meter(&self, request: &Request) -> Arc<Meter> {
        let agent = request.header("user-agent").unwrap_or_default();
        let program = agent.split('/').next().unwrap_or_default().to_owned();
        let path = ResourcePath::parse(&request.path);
        let verb = verb(&request.method, path.as_ref(), &Query::parse(&request.query));
        let received = request.header("content-length").and_then(|text| text.parse().ok());
        let mut meters = self.meters.lock();
        let meter = meters.entry((program, verb)).or_default();
        meter.requests.fetch_add(1, Ordering::Relaxed);
        meter.received.fetch_add(received.unwrap_or_default(), Ordering::Relaxed);
        meter.clone()
    }

    /// The requests of `program` so far, by verb.
    pub fn of(&self, program: &str) -> BTreeMap<&'static str, Count> {
        let meters = self.meters.lock();
        let own = meters.iter().filter(|((name, _), _)| name == program);
        own.map(|((_, verb), meter)| (*verb, meter.count())).collect()
    }
}

impl Meter {
    fn count(&self) -> Count {
        Count {
            requests: self.requests.load(Ordering::Relaxed),
            received_bytes: self.received.load(Ordering::Relaxed),
            sent_bytes: self.sent.load(Ordering::Relaxed),
        }
    }

    /// The response, with a body that is counted as it is sent.
    pub fn sending(self: Arc<Self>, response: Response) -> Response {
        let body = match response.body {
            Body::Full(bytes) => {
                self.sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                Body::Full(bytes)
            }
            Body::Stream(stream) => Body::Stream(Box::pin(stream.inspect(move |chunk| {
                let length = chunk.as_ref().map_or(0, |bytes| bytes.len());
                self.sent.fetch_add(length as u64, Ordering::Relaxed);
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
    use kube_controller_manager::server::http::{Bytes, HeaderMap};

    #[test]
    fn programs_are_counted_apart_and_streams_while_they_run() {
        let traffic = Traffic::default();
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
        let response = watch.sending(Response::stream(200, "text/plain", stream));
        let Body::Stream(mut stream) = response.body else { panic!("not a stream") };
        block_on(stream.next());
        let sent = |traffic: &Traffic| traffic.of("manager")["watch"].sent_bytes;
        assert_eq!(sent(&traffic), 2);
        block_on(stream.next());
        let count = Count { requests: 2, received_bytes: 6, sent_bytes: 5 };
        assert_eq!(traffic.of("manager"), BTreeMap::from([("watch", count)]));
    }
}
