//! Event recording. Upstream: client-go's `tools/record`.
//!
//! A [`Recorder`] queues events; the [`EventBroadcaster`]'s task runs them through the correlator
//! (similar events are combined, repeated ones counted, floods dropped) and sends the result. The
//! contract stands above [`EventBroadcaster`].
//!
//! ```no_run
//! use kube_controller_manager::client::Client;
//! use kube_controller_manager::clock::SharedClock;
//! use kube_controller_manager::events::EventBroadcaster;
//! use kube_controller_manager::objects::Pod;
//!
//! async fn report(client: Client, clock: SharedClock, pod: &Pod) {
//!     let broadcaster = EventBroadcaster::new(client, clock);
//!     let recorder = broadcaster.recorder("example-controller");
//!     recorder.normal(pod, "Seen", format!("Pod {} was seen", pod.meta.name));
//!     broadcaster.shutdown().await;
//! }
//! ```

#![warn(missing_docs)]

mod broadcaster;
mod correlator;
mod event;
#[cfg(test)]
pub(crate) mod testing;
mod writer;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::objects::{Istr, Meta, Object, Resource, ResourceType};

pub use broadcaster::EventBroadcaster;
pub(crate) use event::random_uuid;
pub use event::{EventType, ObjectReference};

impl ObjectReference {
    /// Makes a reference to `object` as it is now, its resourceVersion included. Upstream:
    /// `reference.GetReference`.
    pub fn to<T: Object + Resource>(object: &T) -> ObjectReference {
        ObjectReference::of(&T::RESOURCE, object.meta())
    }

    /// Makes a reference to the object of this type with these metadata. The field path is empty.
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

/// Records events of one component. Recording never waits and never fails: an event that cannot be
/// sent is dropped and logged. Cheap to clone. Upstream: `record.EventRecorder`.
#[derive(Clone)]
pub struct Recorder {
    sink: Arc<dyn EventSink>,
}

/// The receiver of a recorder's events: a broadcaster's queue, or what a test puts there.
pub trait EventSink: Send + Sync {
    /// Takes one event. `reason` is a CamelCase word for programs, `message` a sentence for people,
    /// `annotations` are values for programs. Called on the task that records, so it must not wait.
    fn record(
        &self,
        about: &ObjectReference,
        event_type: EventType,
        reason: &str,
        message: String,
        annotations: BTreeMap<String, String>,
    );
}

impl Recorder {
    /// Makes a recorder whose events go to `sink`.
    pub fn to_sink(sink: Arc<dyn EventSink>) -> Recorder {
        Recorder { sink }
    }

    /// Records an event about the object `about`, which need not exist any more. It goes to the
    /// object's namespace, or to `default` for an object without one. Upstream:
    /// `EventRecorder.Event`.
    pub fn event(
        &self,
        about: &ObjectReference,
        event_type: EventType,
        reason: &str,
        message: impl Into<String>,
    ) {
        self.annotated_event(about, event_type, reason, message, BTreeMap::new());
    }

    /// Records an event with annotations: see [`Recorder::event`]. Upstream:
    /// `EventRecorder.AnnotatedEventf`.
    pub fn annotated_event(
        &self,
        about: &ObjectReference,
        event_type: EventType,
        reason: &str,
        message: impl Into<String>,
        annotations: BTreeMap<String, String>,
    ) {
        self.sink.record(about, event_type, reason, message.into(), annotations);
    }

    /// Records an event of type `Normal` about `object`: see [`Recorder::event`].
    pub fn normal<T: Object + Resource>(
        &self,
        object: &T,
        reason: &str,
        message: impl Into<String>,
    ) {
        self.event(&ObjectReference::to(object), EventType::Normal, reason, message);
    }

    /// Records an event of type `Warning` about `object`: see [`Recorder::event`].
    pub fn warning<T: Object + Resource>(
        &self,
        object: &T,
        reason: &str,
        message: impl Into<String>,
    ) {
        self.event(&ObjectReference::to(object), EventType::Warning, reason, message);
    }
}
