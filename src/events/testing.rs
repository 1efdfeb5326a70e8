//! Recorders whose events tests read, or drop.

use std::collections::BTreeMap;
use std::mem;

use parking_lot::Mutex;

use super::{EventSink, EventType, ObjectReference};

/// Drops all events.
pub struct NoSink;

impl EventSink for NoSink {
    fn record(
        &self,
        _: &ObjectReference,
        _: EventType,
        _: &str,
        _: String,
        _: BTreeMap<String, String>,
    ) {
    }
}

/// Keeps all events, as `Normal Reason message`.
#[derive(Default)]
pub struct Heard(Mutex<Vec<String>>);

impl Heard {
    pub fn take(&self) -> Vec<String> {
        mem::take(&mut self.0.lock())
    }
}

impl EventSink for Heard {
    fn record(
        &self,
        _: &ObjectReference,
        kind: EventType,
        reason: &str,
        message: String,
        _: BTreeMap<String, String>,
    ) {
        self.0.lock().push(format!("{kind:?} {reason} {message}"));
    }
}
