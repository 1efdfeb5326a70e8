//! Which manager asks the API server for what: each manager has a port of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_lite::StreamExt;
use parking_lot::Mutex;
use serde_json::Value;

use crate::object::text;
use crate::protobuf;
use crate::request::call::{Query, ResourcePath, verb};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::server::http::{Body, Handler, Response};

const LEASE: &str = "kube-controller-manager";
const LEASE_NAMESPACE: &str = "kube-system";
const WRITES: [&str; 5] = ["create", "update", "patch", "delete", "deletecollection"];

/// A process of a manager: its seat, and how many ran there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Writer {
    pub seat: usize,
    pub run: u64,
}

/// What is known of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It has arrived.
    Sent,
    /// It has an answer with this status.
    Answered(u16),
    /// It has changed the managers' lease, which has this holder now. Empty: no holder.
    Holder(String),
}

/// A write of a manager, at one of its stages.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// In monotonic time.
    pub at: Duration,
    pub writer: Writer,
    pub verb: &'static str,
    /// With its group and its subresource.
    pub resource: String,
    pub namespace: String,
    pub name: String,
    pub agent: String,
    pub stage: Stage,
}

/// The records that were not taken yet.
#[derive(Default)]
pub struct Audit {
    records: Mutex<Vec<Record>>,
}

impl Audit {
    pub fn take(&self) -> Vec<Record> {
        std::mem::take(&mut *self.records.lock())
    }

    /// Wraps a server's handler so that it records the writes of the manager in this seat: each
    /// when it arrives and, unless the connection is aborted, when it is answered. `run` counts the
    /// processes that the seat has had.
    pub fn wrap(
        self: &Arc<Self>,
        seat: usize,
        run: Arc<AtomicU64>,
        clock: &SharedClock,
    ) -> impl FnOnce(Handler) -> Handler {
        let (audit, clock) = (self.clone(), clock.clone());
        move |handler: Handler| -> Handler {
            Arc::new(move |request| {
                let path = ResourcePath::parse(&request.path);
                let verb = verb(&request.method, path.as_ref(), &Query::parse(&request.query));
                let Some(path) = path.filter(|_| WRITES.contains(&verb)) else {
                    return handler(request);
                };
                let is_lease = is_lease(&path);
                let record = Record {
                    at: clock.monotonic(),
                    writer: Writer { seat, run: run.load(Ordering::SeqCst) },
                    verb,
                    resource: resource_name(&path),
                    namespace: path.namespace,
                    name: path.name,
                    agent: request.header("user-agent").unwrap_or_default().to_owned(),
                    stage: Stage::Sent,
                };
                audit.records.lock().push(record.clone());
                let (audit, clock, answer) = (audit.clone(), clock.clone(), handler(request));
                Box::pin(async move {
                    let mut response = answer.await;
                    let is_carried_out = response.status < 300;
                    let stage = match &response.body {
                        Body::Abort => return response,
                        _ if is_lease && is_carried_out => {
                            response = with_whole_body(response).await;
                            holder(response.content()).map(Stage::Holder)
                        }
                        _ => Some(Stage::Answered(response.status)),
                    };
                    if let Some(stage) = stage {
                        let record = Record { at: clock.monotonic(), stage, ..record };
                        audit.records.lock().push(record);
                    }
                    response
                })
            })
        }
    }
}

/// Names the resource of a path, such as `replicasets.apps/status`.
fn resource_name(path: &ResourcePath) -> String {
    let mut named = path.resource.clone();
    if !path.group.is_empty() {
        named = format!("{named}.{}", path.group);
    }
    if !path.subresource.is_empty() {
        named = format!("{named}/{}", path.subresource);
    }
    named
}

/// Returns whether a write may be of the managers' lease. A create has no name in its path.
fn is_lease(path: &ResourcePath) -> bool {
    path.resource == "leases"
        && path.namespace == LEASE_NAMESPACE
        && (path.name == LEASE || path.name.is_empty())
}

/// Reads a streamed body to its end, and returns the response with it. A body that breaks off
/// aborts the response.
async fn with_whole_body(mut response: Response) -> Response {
    let mut body = match response.body {
        Body::Stream(body) => body,
        _ => return response,
    };
    let mut whole = Vec::new();
    while let Some(chunk) = body.next().await {
        let Ok(chunk) = chunk else { return Response::abort() };
        whole.extend_from_slice(&chunk);
    }
    response.body = Body::Full(whole.into());
    response
}

/// Returns the holder of the managers' lease in JSON or protobuf; `None` if it is another lease or
/// cannot be decoded.
fn holder(lease: &[u8]) -> Option<String> {
    let lease: Value =
        serde_json::from_slice(lease).ok().or_else(|| protobuf::decode(lease).ok())?;
    let name = text(&lease, "/metadata/name");
    (name == LEASE).then(|| text(&lease, "/spec/holderIdentity").to_owned())
}
