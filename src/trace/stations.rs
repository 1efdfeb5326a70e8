//! The stations. Each is called only while something is traced, and writes at most a few lines.

use std::fmt::Display;
use std::time::Duration;

use super::tracer::{Waiting, name_of};
use super::{current, with};
use crate::objects::{Form, Meta, ObjectKey, ResourceType, Uid};

macro_rules! line {
    ($span:expr, $($rest:tt)+) => {
        log::info!("trace span={} {}", $span, format_args!($($rest)+))
    };
}

fn list(spans: &[u64]) -> String {
    spans.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
}

/// An object came from the API server and was decoded. `event`: `added`, `modified`, `deleted`,
/// or `listed`.
#[cold]
pub fn decoded(
    resource: &ResourceType,
    meta: &Meta,
    event: &str,
    (bytes, form): (usize, Form),
    took: Duration,
    now: Duration,
) {
    let found = with(|tracer| {
        let (span, name) = tracer.event(resource, meta)?;
        Some((span, name, tracer.seen(meta, event == "deleted")))
    });
    let Some((span, name, written)) = found.flatten() else { return };
    let version = meta.resource_version;
    let form = if form == Form::Protobuf { "protobuf" } else { "json" };
    line!(span, "received {name} version={version} event={event} bytes={bytes} form={form}");
    line!(span, "decoded {name} took={took:?}");
    if let Some((by, answered)) = written {
        let after = now.saturating_sub(answered);
        line!(span, "seen-again {name} version={version} by={by} after={after:?}");
    }
}

/// A change entered the DeltaFifo, where `depth` keys wait now.
#[cold]
pub fn queued(meta: &Meta, delta: &str, depth: usize) {
    with(|tracer| {
        if let Some((span, name)) = tracer.of(meta) {
            line!(span, "queued {name} delta={delta} depth={depth}");
        }
    });
}

/// A change did not enter the DeltaFifo.
#[cold]
pub fn dropped(meta: &Meta, why: &str) {
    with(|tracer| {
        if let Some((span, name)) = tracer.of(meta) {
            line!(span, "dropped {name} version={} why={why}", meta.resource_version);
        }
    });
}

/// The cache has the change. `change`: `added`, `updated`, `unchanged` or `removed`.
#[cold]
pub fn cached(meta: &Meta, change: &str, objects: usize) {
    with(|tracer| {
        if let Some((span, name)) = tracer.of(meta) {
            line!(
                span,
                "cached {name} version={} {change} objects={objects}",
                meta.resource_version
            );
        }
        if change == "removed" {
            tracer.gone(&meta.uid);
        }
    });
}

/// A handler is called for a change; `backlog` others wait for it. Returns the span of the change,
/// 0 when the object is not followed.
#[cold]
pub fn handled(meta: &Meta, event: &str, handler: &str, backlog: usize) -> u64 {
    let handled = with(|tracer| {
        let (span, name) = tracer.of(meta)?;
        line!(span, "handler {name} handler={handler} event={event} backlog={backlog}");
        Some(span)
    });
    handled.flatten().unwrap_or(0)
}

/// The way in which a key is queued.
pub enum How {
    Now,
    After(Duration),
    Timer(Duration),
}

/// The current span queues a key. `queue`: its identity and its name; `depth`: keys that wait for a
/// worker already.
#[cold]
pub fn key_queued(
    (queue, name): (usize, &str),
    key: &dyn Display,
    how: How,
    depth: usize,
    now: Duration,
) {
    let by = current();
    if by == 0 {
        return;
    }
    let key = key.to_string();
    match how {
        How::Now => line!(by, "key-queued {key} queue={name} depth={depth}"),
        How::After(delay) => line!(by, "key-queued {key} queue={name} after={delay:?}"),
        How::Timer(delay) => line!(by, "key-queued {key} queue={name} timer={delay:?}"),
    }
    with(|tracer| tracer.queued(queue, key, by, now));
}

/// A sync that is traced.
pub struct SyncSpan {
    pub span: u64,
    began: Duration,
}

/// A worker begins a key; `None` when no followed object queued it.
#[cold]
pub fn sync_begins(
    queue: usize,
    controller: &str,
    key: &dyn Display,
    now: Duration,
) -> Option<SyncSpan> {
    let key = key.to_string();
    let (span, Waiting { causes, since }) = with(|tracer| tracer.taken(queue, &key)).flatten()?;
    let (by, waited) = (list(&causes), now.saturating_sub(since));
    line!(span, "sync-began {key} controller={controller} by={by} waited={waited:?}");
    Some(SyncSpan { span, began: now })
}

/// The sync has ended; `result`: what the queue does with the key.
#[cold]
pub fn sync_ends(
    sync: &SyncSpan,
    controller: &str,
    key: &dyn Display,
    result: &str,
    now: Duration,
) {
    let took = now.saturating_sub(sync.began);
    line!(sync.span, "sync-ended {key} controller={controller} took={took:?} result={result:?}");
}

/// A Lister is read under the current span. `what`: the key, or how many objects a list has.
#[cold]
pub fn read(kind: &'static str, what: &dyn Display, found: Option<&Meta>, cache: u64) {
    let span = current();
    if span == 0 {
        return;
    }
    let kind = kind.rsplit("::").next().unwrap_or(kind);
    match found {
        Some(meta) => {
            let version = meta.resource_version;
            line!(span, "read {kind} {what} version={version} cache={cache}");
        }
        None => line!(span, "read {kind} {what} cache={cache}"),
    }
}

/// A request is sent under the current span.
#[cold]
pub fn sent(request: &dyn Display, bytes: usize, waited: Duration) {
    let span = current();
    if span != 0 {
        line!(span, "request-sent {request} bytes={bytes} waited={waited:?}");
    }
}

/// The answer to a request, or its error.
#[cold]
pub fn answered(request: &dyn Display, answer: &str, took: Duration) {
    let span = current();
    if span != 0 {
        line!(span, "answered {request} code={answer} took={took:?}");
    }
}

/// The answer has confirmed a write: the object has this version, or is deleted (0).
#[cold]
pub fn wrote(kind: &str, key: &ObjectKey, uid: &Uid, version: u64, now: Duration) {
    let span = current();
    if span == 0 {
        return;
    }
    let name = name_of(kind, key);
    match version {
        0 => line!(span, "deleted {name}"),
        _ => line!(span, "wrote {name} version={version}"),
    }
    with(|tracer| match tracer.brought(uid, version) {
        // The watch delivered the write before the answer came.
        Some(seen) => line!(seen, "seen-again {name} version={version} by={span} after=0ns"),
        None => tracer.wrote(uid, version, span, now),
    });
}
