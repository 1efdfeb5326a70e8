//! Writes events to the API server. Upstream: `record.EventSink`.

use std::future::Future;
use std::pin::Pin;

use serde::de::IgnoredAny;

use super::event::Event;
use crate::client::{self, Client, Patch};
use crate::objects::{ObjectKey, ResourceType};

const EVENTS: ResourceType = ResourceType::fixed("", "v1", "Event", "events", true);

pub(super) type Write<'a> = Pin<Box<dyn Future<Output = Result<(), WriteError>> + Send + 'a>>;

/// Writes events; tests have a writer of their own.
pub(super) trait EventWriter: Send + Sync + 'static {
    fn create<'a>(&'a self, event: &'a Event) -> Write<'a>;
    /// Changes the event of the same name to [`Event::series_patch`].
    fn patch<'a>(&'a self, event: &'a Event) -> Write<'a>;
}

/// Why an event was not written.
#[derive(Debug)]
pub(super) enum WriteError {
    NotFound(String),
    /// The server refuses it; a retry would fail the same way.
    Rejected {
        message: String,
        /// Whether this is routine in a healthy cluster.
        expected: bool,
    },
    /// A retry may succeed.
    Unreachable(String),
}

/// Writes events by a client.
pub(super) struct ClientWriter(pub Client);

impl EventWriter for ClientWriter {
    fn create<'a>(&'a self, event: &'a Event) -> Write<'a> {
        Box::pin(async {
            let events = self.0.resource(&EVENTS);
            let created = events.create::<IgnoredAny>(&event.metadata.namespace, event).await;
            created.map(drop).map_err(write_error)
        })
    }

    fn patch<'a>(&'a self, event: &'a Event) -> Write<'a> {
        Box::pin(async {
            let key = ObjectKey::new(&event.metadata.namespace, &event.metadata.name);
            let patch = Patch::StrategicMerge(event.series_patch());
            let patched = self.0.resource(&EVENTS).patch::<IgnoredAny>(&key, &patch).await;
            patched.map(drop).map_err(write_error)
        })
    }
}

/// Classifies a failure by what it means for a retry.
fn write_error(error: client::Error) -> WriteError {
    let message = error.to_string();
    if error.is_not_found() {
        return WriteError::NotFound(message);
    }
    // A request that cannot be built or is not allowed fails the same way at a retry. As upstream,
    // every error that the server answers with counts as final, also a 500.
    let guard_refused = matches!(error, client::Error::GuardRefused { .. });
    match error.code() {
        None if !guard_refused && !matches!(error, client::Error::Request { .. }) => {
            WriteError::Unreachable(message)
        }
        _ => WriteError::Rejected {
            message,
            expected: guard_refused
                || error.is_already_exists()
                || error.is_namespace_terminating(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_after_a_lost_lease_are_dropped_silently() {
        let request = || "POST /api/v1/namespaces/ns/events".to_owned();
        let guard_refused = write_error(client::Error::GuardRefused { request: request() });
        assert!(
            matches!(guard_refused, WriteError::Rejected { expected: true, .. }),
            "{guard_refused:?}"
        );
        let garbled = client::Error::Request { request: request(), source: "bad".into() };
        let garbled = write_error(garbled);
        assert!(matches!(garbled, WriteError::Rejected { expected: false, .. }), "{garbled:?}");
        let away = client::Error::Transport { request: request(), source: "reset".into() };
        assert!(matches!(write_error(away), WriteError::Unreachable(_)));
    }
}
