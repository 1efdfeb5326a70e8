//! `/debug/pipeline`: the informers, queues, syncs and writes of this process, as a page that
//! refreshes itself or as JSON. The numbers are read at each request.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::cache::{InformerStatus, SharedInformerFactory};
use crate::clock::SharedClock;
use crate::controllers::runner::{ControllerStatus, LastError, SyncStatus, Watcher};
use crate::metrics::process_stats;
use crate::objects::Timestamp;
use crate::server::Handler;
use crate::server::page::Page;
use crate::trace;

const PAGE: Page = Page {
    title: "kube-controller-manager: pipeline",
    style: include_str!("page.css"),
    script: include_str!("page.js"),
};

/// The explanation of `bytes`.
const BYTES_COUNT: &str = "Bytes held are an estimate: each cached object with its name, and the \
                           tables that find it. Strings, labels, templates and lists behind it are \
                           not counted; most are shared.";

/// The informers and controllers that run in this process. Cheap to clone.
#[derive(Clone, Default)]
pub struct Pipeline {
    parts: Arc<Mutex<HashMap<u64, Part>>>,
}

/// The informers and controllers under one lease.
#[derive(Clone)]
struct Part {
    factory: SharedInformerFactory,
    controllers: Vec<Watcher>,
}

/// Keeps a part in the pipeline until it is dropped.
#[must_use]
pub struct Shown {
    pipeline: Pipeline,
    number: u64,
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.pipeline.parts.lock().remove(&self.number);
    }
}

impl Pipeline {
    pub fn new() -> Pipeline {
        Pipeline::default()
    }

    /// Shows these parts until the result is dropped.
    pub fn show(&self, factory: &SharedInformerFactory, controllers: Vec<Watcher>) -> Shown {
        let mut parts = self.parts.lock();
        let number = parts.keys().max().map_or(0, |last| last + 1);
        parts.insert(number, Part { factory: factory.clone(), controllers });
        Shown { pipeline: self.clone(), number }
    }

    fn parts(&self) -> Vec<Part> {
        self.parts.lock().values().cloned().collect()
    }

    /// Passes the cached objects to the trace, again and again until it learns nothing new, so that
    /// it follows the existing dependents of traced objects.
    pub fn teach_trace(&self) {
        let parts = self.parts();
        let mut is_new = true;
        // An owner may be visited after its dependents.
        while is_new {
            is_new = false;
            for part in &parts {
                part.factory.for_each(&mut |resource, object| {
                    is_new |= trace::learn(resource, object.meta());
                });
            }
        }
    }

    /// Serves the page and its JSON.
    pub fn handler(&self, clock: &SharedClock) -> Handler {
        let (pipeline, clock, started) = (self.clone(), clock.clone(), clock.monotonic());
        PAGE.handler(move |_| {
            let up = clock.monotonic().saturating_sub(started).as_secs_f64();
            pipeline.status(up, clock.now())
        })
    }

    /// Returns the state of the process, its informers and its controllers as JSON for the page.
    fn status(&self, up: f64, now: Timestamp) -> Value {
        let parts = self.parts();
        let process = process_stats::current();
        let informers = parts.iter().flat_map(|part| part.factory.status());
        let controllers = parts.iter().flat_map(|part| &part.controllers).map(Watcher::status);
        json!({
            "leading": !parts.is_empty(),
            "uptimeSeconds": up,
            "residentBytes": process.resident_bytes,
            "cpuSeconds": process.cpu_seconds,
            "informers": informers.map(|status| informer_json(&status)).collect::<Vec<_>>(),
            "controllers": controllers.map(|status| controller_json(&status, now)).collect::<Vec<_>>(),
            "bytesCount": BYTES_COUNT,
        })
    }
}

/// Returns the state of an informer as JSON.
fn informer_json(status: &InformerStatus) -> Value {
    let InformerStatus { scope, reflector, .. } = status;
    let handlers = status.handlers.iter().map(|handler| {
        json!({ "name": handler.name, "backlog": handler.backlog, "synced": handler.synced })
    });
    json!({
        "scope": scope.to_string(),
        "kind": scope.resource.kind,
        "apiVersion": scope.resource.api_version(),
        "metadataOnly": scope.metadata_only,
        "objects": status.objects,
        "bytes": status.bytes,
        // As the API writes versions.
        "resourceVersion": status.version.to_string(),
        "synced": status.synced,
        "phase": reflector.phase,
        "phaseSeconds": reflector.seconds,
        "lists": reflector.lists,
        "watches": reflector.watches,
        "received": reflector.objects,
        "queued": status.queued,
        "handlers": handlers.collect::<Vec<_>>(),
    })
}

/// Returns the state of a controller with its queues and its counts of writes as JSON.
fn controller_json(status: &ControllerStatus, now: Timestamp) -> Value {
    let writes = &status.writes;
    json!({
        "name": status.name,
        "account": status.account,
        "workers": status.workers,
        "running": status.running,
        "queues": status.queues.iter().map(|queue| queue_json(queue, now)).collect::<Vec<_>>(),
        "writes": {
            "create": writes.create, "update": writes.update, "patch": writes.patch,
            "delete": writes.delete, "events": writes.events, "failed": writes.failed,
        },
    })
}

/// Returns the state of a queue with its counts of syncs as JSON.
fn queue_json(status: &SyncStatus, now: Timestamp) -> Value {
    let queue = &status.queue;
    let aged = |key: &Option<(String, f64)>| {
        key.as_ref().map(|(key, seconds)| json!({ "key": key, "seconds": seconds }))
    };
    let error = status.last_error.as_ref().map(|LastError { key, error, at }| {
        let ago = (now.as_micros() - at.as_micros()) as f64 / 1e6;
        json!({ "key": key, "error": error, "at": at.to_string(), "secondsAgo": ago.max(0.0) })
    });
    json!({
        "name": queue.name,
        "depth": queue.depth,
        "inProgress": queue.in_progress,
        "delayed": queue.delayed,
        "timers": queue.timers,
        "oldest": aged(&queue.oldest),
        "longest": aged(&queue.longest),
        "adds": queue.adds,
        "retries": queue.retries,
        "syncs": status.syncs,
        "failures": status.failures,
        "seconds": status.seconds,
        "lastError": error,
    })
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;

    use super::*;
    use crate::cache::testing::Script;
    use crate::clock::FakeClock;
    use crate::controllers::{Controller, Next, QueuePolicy};
    use crate::objects::{ObjectKey, Pod};
    use crate::server::Request;

    #[test]
    fn shown_parts_appear_until_they_are_dropped() {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let factory = SharedInformerFactory::new(Script::new(), clock.clone());
        let _ = factory.informer::<Pod>();
        let mut test = Controller::for_test("test-controller", 2, clock.clone());
        let queue = test.queue::<ObjectKey>(QueuePolicy::default());
        test.sync(queue.clone(), &Arc::new(()), |_, _| async { Ok(Next::Done) });
        queue.add(ObjectKey::new("ns", "a"));
        queue.add_after(ObjectKey::new("ns", "b"), std::time::Duration::from_secs(60));
        clock.advance(std::time::Duration::from_secs(3));

        let pipeline = Pipeline::new();
        let served = pipeline.handler(&(clock.clone() as SharedClock));
        let ask = || {
            let mut request = Request::get("/debug/pipeline");
            let json = hyper::header::HeaderValue::from_static("application/json");
            request.headers.insert("accept", json);
            let answer = block_on(served(request));
            serde_json::from_slice::<Value>(answer.content()).expect("JSON")
        };
        assert_eq!(ask()["leading"], false);
        let shown = pipeline.show(&factory, vec![test.watcher()]);
        let status = ask();
        let (pods, test) = (&status["informers"][0], &status["controllers"][0]);
        assert_eq!((&pods["kind"], &pods["phase"]), (&"Pod".into(), &"not started".into()));
        let queue = &test["queues"][0];
        assert_eq!((&test["workers"], &test["running"]), (&2.into(), &false.into()));
        assert_eq!((&queue["depth"], &queue["delayed"]), (&1.into(), &1.into()));
        assert_eq!(queue["oldest"], json!({ "key": "ns/a", "seconds": 3.0 }));
        drop(shown);
        assert_eq!(ask()["informers"], json!([]));
    }

    #[test]
    fn page_is_sixteen_kilobytes_at_most() {
        let bytes = PAGE.html().len();
        assert!(bytes < 16_384, "{bytes} bytes");
    }
}
