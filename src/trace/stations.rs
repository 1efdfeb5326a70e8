//! The stations. Each does nothing while nothing is traced, and else writes at most a few lines. A
//! line's place in the source is that of the call: the code at the station, not this file.

use std::fmt::{Debug, Display};
use std::panic::Location;
use std::time::Duration;

use log::{Level, Record};

use super::tracer::{Waiting, name_of};
use super::{TARGET, current, with_tracer};
use crate::objects::{Form, Meta, ObjectKey, ResourceType, Uid};

/// The call of a station, which the trace's line names.
type Place = &'static Location<'static>;

macro_rules! line {
    ($at:expr, $span:expr, $($rest:tt)+) => {
        write($at, format_args!("trace span={} {}", $span, format_args!($($rest)+)))
    };
}

/// Writes a line of the trace, with the place in the source that called the station.
fn write(at: Place, line: std::fmt::Arguments<'_>) {
    if Level::Info > log::max_level() {
        return;
    }
    log::logger().log(
        &Record::builder()
            .level(Level::Info)
            .target(TARGET)
            .module_path_static(Some(TARGET))
            .file_static(Some(at.file()))
            .line(Some(at.line()))
            .args(line)
            .build(),
    );
}

/// Returns the numbers of the spans as a line has them, such as `3,7`.
fn joined(spans: &[u64]) -> String {
    spans.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
}

/// Traces that an object came from the API server and was decoded. `event`: `added`, `modified`,
/// `deleted`, or `listed`.
#[track_caller]
pub fn decoded(
    resource: &ResourceType,
    meta: &Meta,
    event: &str,
    (bytes, form): (usize, Form),
    took: Duration,
    now: Duration,
) {
    let at = Location::caller();
    let found = with_tracer(|tracer| {
        let (span, name) = tracer.event(resource, meta)?;
        Some((span, name, tracer.take_write(meta, event == "deleted")))
    });
    let Some((span, name, written)) = found.flatten() else { return };
    let version = meta.resource_version;
    let form = if form == Form::Protobuf { "protobuf" } else { "json" };
    line!(at, span, "received {name} version={version} event={event} bytes={bytes} form={form}");
    line!(at, span, "decoded {name} took={took:?}");
    if let Some((by, answered)) = written {
        let after = now.saturating_sub(answered);
        line!(at, span, "seen-again {name} version={version} by={by} after={after:?}");
    }
}

/// Traces that a change entered the DeltaFifo, where `depth` keys wait now.
#[track_caller]
pub fn queued(meta: &Meta, delta: &str, depth: impl Fn() -> usize) {
    let at = Location::caller();
    with_tracer(|tracer| {
        if let Some((span, name)) = tracer.span_of(meta) {
            let depth = depth();
            line!(at, span, "queued {name} delta={delta} depth={depth}");
        }
    });
}

/// Traces that a change did not enter the DeltaFifo.
#[track_caller]
pub fn dropped(meta: &Meta, why: &str) {
    let at = Location::caller();
    with_tracer(|tracer| {
        if let Some((span, name)) = tracer.span_of(meta) {
            line!(at, span, "dropped {name} version={} why={why}", meta.resource_version);
        }
    });
}

/// Traces that the cache has the change. `change`: `added`, `updated`, `unchanged` or `removed`.
#[track_caller]
pub fn cached(meta: &Meta, change: &str, objects: impl Fn() -> usize) {
    let at = Location::caller();
    with_tracer(|tracer| {
        if let Some((span, name)) = tracer.span_of(meta) {
            let objects = objects();
            line!(
                at,
                span,
                "cached {name} version={} {change} objects={objects}",
                meta.resource_version
            );
        }
        if change == "removed" {
            tracer.record_deletion(&meta.uid);
        }
    });
}

/// Traces that a handler is called for a change; `backlog` others wait for it. Returns the span of
/// the change, 0 when the object is not followed.
#[track_caller]
pub fn handled(meta: &Meta, event: &str, handler: &str, backlog: impl Fn() -> usize) -> u64 {
    let at = Location::caller();
    let handled = with_tracer(|tracer| {
        let (span, name) = tracer.span_of(meta)?;
        // A blank would end the field in the line.
        let (handler, backlog) = (handler.split(' ').next().unwrap_or_default(), backlog());
        line!(at, span, "handler {name} handler={handler} event={event} backlog={backlog}");
        Some(span)
    });
    handled.flatten().unwrap_or(0)
}

/// The way in which a key is queued.
pub enum How {
    Now,
    /// After a delay, or after a failure.
    After(Duration),
    /// By its timer.
    Timer(Duration),
}

/// Traces that the current span queues a key. `queue`: its identity and its name; `depth`: keys
/// that wait for a worker already.
#[track_caller]
pub fn key_queued(
    (queue, name): (usize, &str),
    key: &dyn Display,
    how: How,
    depth: usize,
    now: Duration,
) {
    let at = Location::caller();
    let by = current();
    if by == 0 {
        return;
    }
    let key = key.to_string();
    match how {
        How::Now => line!(at, by, "key-queued {key} queue={name} depth={depth}"),
        How::After(delay) => line!(at, by, "key-queued {key} queue={name} after={delay:?}"),
        How::Timer(delay) => line!(at, by, "key-queued {key} queue={name} timer={delay:?}"),
    }
    with_tracer(|tracer| tracer.record_cause(queue, key, by, now));
}

/// A sync that is traced.
pub struct SyncSpan {
    pub span: u64,
    began: Duration,
}

/// Traces that a worker begins a key, and returns the span of its sync; `None` when no followed
/// object queued it.
#[track_caller]
pub fn sync_begins(
    queue: usize,
    controller: &str,
    key: &dyn Display,
    now: Duration,
) -> Option<SyncSpan> {
    let at = Location::caller();
    let (span, Waiting { causes, since }) =
        with_tracer(|tracer| tracer.begin_sync(queue, &key.to_string())).flatten()?;
    let (by, waited) = (joined(&causes), now.saturating_sub(since));
    line!(at, span, "sync-began {key} controller={controller} by={by} waited={waited:?}");
    Some(SyncSpan { span, began: now })
}

/// Traces that the sync has ended; `result`: what the queue does with the key.
#[track_caller]
pub fn sync_ends(
    sync: &SyncSpan,
    controller: &str,
    key: &dyn Display,
    result: &str,
    now: Duration,
) {
    let at = Location::caller();
    let took = now.saturating_sub(sync.began);
    line!(
        at,
        sync.span,
        "sync-ended {key} controller={controller} took={took:?} result={result:?}"
    );
}

/// Traces that a Lister is read under the current span. `what`: the key, or how many objects a list
/// has.
#[track_caller]
pub fn read(kind: &'static str, what: &dyn Display, found: Option<&Meta>, cache: impl Fn() -> u64) {
    let at = Location::caller();
    let span = current();
    if span == 0 {
        return;
    }
    let (kind, cache) = (kind.rsplit("::").next().unwrap_or(kind), cache());
    match found {
        Some(meta) => {
            let version = meta.resource_version;
            line!(at, span, "read {kind} {what} version={version} cache={cache}");
        }
        None => line!(at, span, "read {kind} {what} cache={cache}"),
    }
}

/// Traces that a request is sent under the current span.
#[track_caller]
pub fn sent(request: &dyn Display, bytes: usize, waited: Duration) {
    let at = Location::caller();
    let span = current();
    if span != 0 {
        line!(at, span, "request-sent {request} bytes={bytes} waited={waited:?}");
    }
}

/// Traces the answer to a request, or its error.
#[track_caller]
pub fn answered(request: &dyn Display, answer: &str, took: Duration) {
    let at = Location::caller();
    let span = current();
    if span != 0 {
        line!(at, span, "answered {request} code={answer} took={took:?}");
    }
}

/// Traces that an answer has confirmed a write: the object has this version, or is deleted (0).
#[track_caller]
pub fn wrote(kind: &str, key: &ObjectKey, uid: &Uid, version: u64, now: Duration) {
    let at = Location::caller();
    let span = current();
    if span == 0 {
        return;
    }
    let name = name_of(kind, key);
    match version {
        0 => line!(at, span, "deleted {name}"),
        _ => line!(at, span, "wrote {name} version={version}"),
    }
    with_tracer(|tracer| match tracer.brought(uid, version) {
        // The watch delivered the write before the answer came.
        Some(seen) => line!(at, seen, "seen-again {name} version={version} by={span} after=0ns"),
        None => tracer.record_write(uid, version, span, now),
    });
}

/// Traces that a phase of the reflector of a traced kind has ended. `name`: the reflector's.
#[track_caller]
pub fn phase_ended(resource: &ResourceType, name: &str, phase: &dyn Debug, outcome: &dyn Debug) {
    let at = Location::caller();
    let Some(span) = with_tracer(|tracer| tracer.kind_event(resource)).flatten() else { return };
    line!(at, span, "phase-ended {name} phase=\"{phase:?}\" outcome={outcome:?}");
}

/// Begins the span of an attempt to take or renew a lock and returns its number; 0 when its Lease
/// is not traced. `key`: its namespace and name.
pub fn lease_span(key: &str) -> u64 {
    with_tracer(|tracer| tracer.lease_event(key)).flatten().unwrap_or(0)
}

/// Traces that an attempt to take or renew a lock has ended under the current span.
#[track_caller]
pub fn lease_tried(key: &str, is_held: bool, leader: &str) {
    let span = current();
    if span != 0 {
        let at = Location::caller();
        line!(at, span, "lease-tried Lease {key} held={is_held} leader={leader:?}");
    }
}

/// Traces, in `span`, that the lock is ours from now on, or no longer.
#[track_caller]
pub fn lease_changed(span: u64, key: &str, is_held: bool) {
    if span != 0 {
        let change = if is_held { "lease-acquired" } else { "lease-lost" };
        line!(Location::caller(), span, "{change} Lease {key}");
    }
}
