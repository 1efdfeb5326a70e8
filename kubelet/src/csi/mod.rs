//! Drivers of the container storage interface: their registration by sockets in a folder, the calls
//! to them, and what the API server knows of them and of this node for them. Upstream:
//! `pkg/volume/csi`, `pkg/kubelet/pluginmanager`.

mod csi_drivers;
mod driver;
mod error;
mod files;
mod node_info;
mod registration;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use event_listener::{Event, EventListener};
use kube_controller_manager::task::notify_all;
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};

/// The messages of CSI's node service, compiled from `proto/csi/csi.proto`.
#[allow(clippy::all, clippy::allow_attributes, reason = "generated code")]
pub mod api {
    include!(concat!(env!("OUT_DIR"), "/csi.v1.rs"));
}

/// The messages of the registration of plugins, compiled from `proto/pluginregistration/api.proto`.
#[allow(clippy::all, clippy::allow_attributes, reason = "generated code")]
pub mod registration_api {
    include!(concat!(env!("OUT_DIR"), "/pluginregistration.rs"));
}

pub use self::csi_drivers::{CsiDriver, CsiDrivers};
pub use self::driver::{Amounts, Capabilities, Driver, Publish, Stage, TIMEOUT};
pub use self::error::Error;
pub use self::files::{Lifecycle, VolumeData};
pub use self::node_info::NodeInfo;
pub use self::registration::DriverRegistration;

/// The plugin's name in the names of volumes and folders.
pub const PLUGIN: &str = "kubernetes.io/csi";

/// The drivers that are registered, by name. Cheap to clone: clones are the same.
/// Upstream: `DriversStore`.
#[derive(Clone, Default)]
pub struct Drivers(Arc<Inner>);

#[derive(Default)]
struct Inner {
    drivers: Mutex<BTreeMap<String, Driver>>,
    changed: Event,
    changes: AtomicU64,
}

impl Drivers {
    /// Returns the driver of this name.
    ///
    /// # Errors
    /// The driver is not registered now: it may still start, or start again.
    pub fn get(&self, name: &str) -> Result<Driver, Error> {
        let found = self.0.drivers.lock().get(name).cloned();
        found.ok_or_else(|| Error::NotRegistered(name.to_owned()))
    }

    /// Returns whether this very driver is still registered, not another one of its name.
    fn has(&self, driver: &Driver) -> bool {
        self.0.drivers.lock().get(driver.name()).is_some_and(|found| found.is_same(driver))
    }

    /// Returns a listener that wakes when a driver comes or goes.
    pub fn changed(&self) -> EventListener {
        self.0.changed.listen()
    }

    /// Returns how often a driver has come or gone.
    pub fn changes(&self) -> u64 {
        self.0.changes.load(Ordering::SeqCst)
    }

    /// Adds a driver, in place of another one of its name.
    fn set(&self, driver: Driver) {
        self.0.drivers.lock().insert(driver.name().to_owned(), driver);
        self.note_change();
    }

    fn remove(&self, name: &str) {
        self.0.drivers.lock().remove(name);
        self.note_change();
    }

    /// Counts a change of the drivers, and wakes those who wait for it.
    fn note_change(&self) {
        self.0.changes.fetch_add(1, Ordering::SeqCst);
        notify_all(&self.0.changed);
    }
}

/// Returns the SHA-256 hash, in hexadecimal, of texts one after the other.
pub fn sha256(parts: &[&str]) -> String {
    let hash = digest(&SHA256, parts.concat().as_bytes());
    hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the name of the VolumeAttachment of a volume on a node, as the manager computes it.
/// Upstream: `getAttachmentName`.
pub fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{}", sha256(&[handle, driver, node]))
}

/// Returns the handle of a volume that exists as long as its pod. Upstream: `makeVolumeHandle`.
pub fn ephemeral_handle(uid: &str, volume: &str) -> String {
    format!("csi-{}", sha256(&[uid, volume]))
}

/// Returns a volume's name in the status of the Node. Upstream: `UniqueVolumeName`.
pub fn unique_name(driver: &str, handle: &str) -> String {
    format!("{PLUGIN}/{driver}^{handle}")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use kube_controller_manager::clock::SystemClock;

    use super::*;

    #[test]
    fn a_driver_is_registered_until_it_goes_or_is_replaced() {
        let new = || Driver::new("d", Path::new("/nowhere"), SystemClock::shared());
        let (drivers, first, second) = (Drivers::default(), new(), new());
        assert!(!drivers.has(&first));
        drivers.set(first.clone());
        assert!(drivers.has(&first) && !drivers.has(&second));
        drivers.remove("d");
        assert!(!drivers.has(&first));
        drivers.set(second.clone());
        assert!(drivers.has(&second) && !drivers.has(&first));
    }

    #[test]
    fn names_are_those_of_upstream() {
        // `printf hdn | sha256sum`
        let hash = "9072ed11cc1acb5fa433a877ff339b6311d013f33bddd1d0092711a8ace5b16d";
        assert_eq!(attachment_name("h", "d", "n"), format!("csi-{hash}"));
        assert_eq!(ephemeral_handle("hd", "n"), format!("csi-{hash}"));
        assert_eq!(unique_name("d", "h"), "kubernetes.io/csi/d^h");
    }
}
