//! The CSIDriver objects: what the API server knows of drivers. Upstream: `CSIDriverLister`.

use std::sync::Arc;
use std::time::Duration;

use event_listener::{Event, EventListener};
use k8s_openapi::api::storage::v1 as storage;
use kube_controller_manager::cache::{
    Deleted, EventHandler, Lister, Scope, SharedIndexInformer, Source,
};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::{ObjectKey, ResourceType};
use kube_controller_manager::task::{self, StopToken, notify_all};

use super::error::Error;
use super::files::Lifecycle;
use crate::whole_object::WholeObject;

const CSI_DRIVERS: ResourceType =
    ResourceType::fixed("storage.k8s.io", "v1", "CSIDriver", "csidrivers", false);

/// All CSIDriver objects, which an informer follows. Cheap to clone: clones are the same.
#[derive(Clone)]
pub struct CsiDrivers {
    informer: SharedIndexInformer<WholeObject<storage::CSIDriver>>,
    lister: Lister<WholeObject<storage::CSIDriver>>,
    changed: Arc<Event>,
}

/// Notifies those who wait for a change.
struct Notifier(Arc<Event>);

impl EventHandler<WholeObject<storage::CSIDriver>> for Notifier {
    fn on_add(&mut self, _: &Arc<WholeObject<storage::CSIDriver>>, _: bool) {
        notify_all(&self.0);
    }

    fn on_update(
        &mut self,
        _: &Arc<WholeObject<storage::CSIDriver>>,
        _: &Arc<WholeObject<storage::CSIDriver>>,
    ) {
        notify_all(&self.0);
    }

    fn on_delete(&mut self, _: &Deleted<WholeObject<storage::CSIDriver>>) {
        notify_all(&self.0);
    }
}

/// The CSIDriver object of a driver; a driver may have none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CsiDriver(Option<storage::CSIDriverSpec>);

impl CsiDrivers {
    /// Starts an informer of the CSIDriver objects, which runs until stopped.
    pub fn start(server: Arc<dyn Source>, clock: SharedClock, stop: &StopToken) -> CsiDrivers {
        let informer = SharedIndexInformer::new(server, Scope::all(CSI_DRIVERS), clock);
        let changed = Arc::new(Event::new());
        informer.add_handler("csi-drivers", Notifier(changed.clone()), None);
        let (running, stop) = (informer.clone(), stop.clone());
        drop(task::spawn(async move { running.run(stop).await }));
        CsiDrivers { lister: informer.lister(), informer, changed }
    }

    /// Returns a listener that wakes when a CSIDriver object changes. Listen before you
    /// [`get`](Self::get).
    pub fn changed(&self) -> EventListener {
        self.changed.listen()
    }

    /// Returns the object of a driver.
    ///
    /// # Errors
    /// No list of them is complete yet.
    pub fn get(&self, driver: &str) -> Result<CsiDriver, Error> {
        match self.lister.get(&ObjectKey::cluster(driver)) {
            Some(found) => Ok(CsiDriver(Some(found.object().spec.clone()))),
            None if !self.informer.has_synced() => Err(Error::CsiDriversNotYet),
            None => Ok(CsiDriver(None)),
        }
    }

    /// Waits for the first complete list.
    pub async fn synced(&self) {
        self.informer.synced().await;
    }
}

impl CsiDriver {
    /// Returns whether its volumes have to be attached. Upstream: `skipAttach`.
    pub fn attaches(&self) -> bool {
        self.0.as_ref().and_then(|spec| spec.attach_required) != Some(false)
    }

    /// Returns whether the driver wants to know the pod. Upstream: `podInfoEnabled`.
    pub fn wants_pod(&self) -> bool {
        self.0.as_ref().and_then(|spec| spec.pod_info_on_mount) == Some(true)
    }

    /// Returns whether the driver's volumes are published again at each sync of their pods.
    pub fn republishes(&self) -> bool {
        self.0.as_ref().and_then(|spec| spec.requires_republish) == Some(true)
    }

    /// Returns the audiences of the tokens that the driver wants, and their lives in seconds.
    pub fn tokens(&self) -> Vec<(String, Option<i64>)> {
        let requests = self.0.iter().filter_map(|spec| spec.token_requests.as_ref()).flatten();
        requests.map(|token| (token.audience.clone(), token.expiration_seconds)).collect()
    }

    /// Returns whether the tokens are secrets, in place of attributes.
    pub fn has_tokens_in_secrets(&self) -> bool {
        self.0.as_ref().and_then(|spec| spec.service_account_token_in_secrets) == Some(true)
    }

    /// Returns how often the driver is asked for the number of volumes that the node may have.
    /// `None`: only when it registers. Upstream: `getNodeAllocatableUpdatePeriod`.
    pub fn allocatable_period(&self) -> Option<Duration> {
        let spec = self.0.as_ref()?;
        let seconds = u64::try_from(spec.node_allocatable_update_period_seconds?).ok()?;
        Some(Duration::from_secs(seconds)).filter(|period| !period.is_zero())
    }

    /// Returns the policy by which the kubelet gives a volume to the pod's group. Upstream:
    /// `getFSGroupPolicy`.
    pub fn group_policy(&self) -> &str {
        let policy = self.0.as_ref().and_then(|spec| spec.fs_group_policy.as_deref());
        policy.unwrap_or("ReadWriteOnceWithFSType")
    }

    /// Returns why the driver has no volumes of this lifecycle; `None`: it has them. Upstream:
    /// `supportsVolumeLifecycleMode`.
    pub fn refusal(&self, driver: &str, lifecycle: Lifecycle) -> Option<String> {
        let name = lifecycle.name();
        let Some(spec) = &self.0 else {
            return (lifecycle == Lifecycle::Ephemeral).then(|| {
                format!(
                    "volume mode {name:?} not supported by driver {driver} (no CSIDriver object)"
                )
            });
        };
        // The API server sets a default.
        let modes = spec.volume_lifecycle_modes.clone().unwrap_or_default();
        let is_supported = match modes.is_empty() {
            true => lifecycle == Lifecycle::Persistent,
            false => modes.iter().any(|mode| mode == name),
        };
        (!is_supported).then(|| {
            let modes: Vec<String> = modes.iter().map(|mode| format!("{mode:?}")).collect();
            let modes = modes.join(" ");
            format!(
                "volume mode {name:?} not supported by driver {driver} (only supports [{modes}])"
            )
        })
    }

    /// One with these fields.
    #[cfg(test)]
    pub fn for_tests(spec: serde_json::Value) -> CsiDriver {
        CsiDriver(Some(serde_json::from_value(spec).expect("a spec")))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lifecycles_are_those_of_the_object() {
        let none = CsiDriver::default();
        let both =
            CsiDriver::for_tests(json!({"volumeLifecycleModes": ["Persistent", "Ephemeral"]}));
        let one = CsiDriver::for_tests(json!({"volumeLifecycleModes": ["Ephemeral"]}));
        for (driver, lifecycle, expected) in [
            (&none, Lifecycle::Persistent, None),
            (
                &none,
                Lifecycle::Ephemeral,
                Some("volume mode \"Ephemeral\" not supported by driver d (no CSIDriver object)"),
            ),
            (&both, Lifecycle::Persistent, None),
            (&both, Lifecycle::Ephemeral, None),
            (&one, Lifecycle::Ephemeral, None),
            (
                &one,
                Lifecycle::Persistent,
                Some(
                    "volume mode \"Persistent\" not supported by driver d (only supports \
                     [\"Ephemeral\"])",
                ),
            ),
        ] {
            assert_eq!(driver.refusal("d", lifecycle).as_deref(), expected);
        }
        assert!(none.attaches() && !none.wants_pod() && none.tokens().is_empty());
        assert!(!CsiDriver::for_tests(json!({"attachRequired": false})).attaches());
        let period = |spec| CsiDriver::for_tests(spec).allocatable_period();
        let seconds = json!({"nodeAllocatableUpdatePeriodSeconds": 10});
        assert_eq!(period(seconds), Some(Duration::from_secs(10)));
        assert_eq!(period(json!({"nodeAllocatableUpdatePeriodSeconds": 0})), None);
        assert_eq!((period(json!({})), none.allocatable_period()), (None, None));
    }
}
