//! Event recording. Upstream: client-go's `tools/record`.
//!
//! A [`Recorder`] queues events; the [`EventBroadcaster`]'s task runs them through the correlator
//! (similar events are combined, repeated ones counted, floods dropped) and sends the result.

mod broadcaster;
mod correlator;
mod event;
mod writer;

use std::sync::Arc;

use crate::objects::{Istr, Meta, Object, Resource, ResourceType};

pub use broadcaster::EventBroadcaster;
pub(crate) use event::random_uuid;
pub use event::{EventType, ObjectReference};

impl ObjectReference {
    pub fn to<T: Object + Resource>(object: &T) -> ObjectReference {
        ObjectReference::of(&T::RESOURCE, object.meta())
    }

    pub fn of(resource: &ResourceType, meta: &Meta) -> ObjectReference {
        ObjectReference {
            api_version: match &*resource.group {
                "" => Istr::new(&resource.version),
                _ => resource.api_version().into(),
            },
            kind: Istr::new(&resource.kind),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
            resource_version: meta.resource_version,
            field_path: Istr::default(),
        }
    }
}

/// Records events of one component. Recording never waits and never fails. Cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    sink: Arc<dyn EventSink>,
}

/// The receiver of a recorder's events.
pub trait EventSink: Send + Sync {
    fn record(&self, about: &ObjectReference, event_type: EventType, reason: &str, message: String);
}

impl Recorder {
    pub fn to_sink(sink: Arc<dyn EventSink>) -> Recorder {
        Recorder { sink }
    }

    /// Upstream: `EventRecorder.Event`.
    pub fn event(
        &self,
        about: &ObjectReference,
        event_type: EventType,
        reason: &str,
        message: impl Into<String>,
    ) {
        self.sink.record(about, event_type, reason, message.into());
    }

    pub fn normal<T: Object + Resource>(
        &self,
        object: &T,
        reason: &str,
        message: impl Into<String>,
    ) {
        self.event(&ObjectReference::to(object), EventType::Normal, reason, message);
    }

    pub fn warning<T: Object + Resource>(
        &self,
        object: &T,
        reason: &str,
        message: impl Into<String>,
    ) {
        self.event(&ObjectReference::to(object), EventType::Warning, reason, message);
    }
}
