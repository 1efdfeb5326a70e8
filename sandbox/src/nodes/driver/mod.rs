//! A stand-in for a CSI driver and its sidecars: volumes without any storage behind them.
//!
//! Annotations steer it. On a claim, `sandbox/provisioning` is `fail` (no volume is made, again and
//! again) or `reschedule` (the scheduler is asked for another node), and `sandbox/resizing` is
//! `fail`. On a volume, `sandbox/deletion` is `fail`; the provisioner copies it from the claim.

mod provisioner;
mod resizer;

use kube_controller_manager::events::{EventType, ObjectReference, Recorder};
use kube_controller_manager::objects::{Object, Resource};

pub use provisioner::provisioner;
pub use resizer::resizer;

/// The driver's name.
pub const DRIVER: &str = "csi.sandbox.local";

/// Records events about what the driver does, unless events are off.
#[derive(Clone)]
struct Events(Option<Recorder>);

impl Events {
    fn normal<T: Object + Resource>(&self, about: &T, reason: &str, message: String) {
        self.record(about, EventType::Normal, reason, message);
    }

    fn warning<T: Object + Resource>(&self, about: &T, reason: &str, message: String) {
        self.record(about, EventType::Warning, reason, message);
    }

    /// Records an event about an object, if events are wanted.
    fn record<T: Object + Resource>(
        &self,
        about: &T,
        event_type: EventType,
        reason: &str,
        message: String,
    ) {
        if let Some(recorder) = &self.0 {
            recorder.event(&ObjectReference::to(about), event_type, reason, message);
        }
    }
}
