//! The cgroups of pods and of their classes. Upstream: `podContainerManagerImpl`,
//! `qosContainerManagerImpl`.

use std::io;
use std::sync::Arc;

use kube_controller_manager::task;

use super::{Error, Manager};
use crate::cgroups::PodLimits;
use crate::events;
use crate::metrics;
use crate::pod::{Pod, PodExt, Uid};
use crate::runtime::status::{PodStatus, State};

impl Manager {
    /// Returns the cgroup below which the runtime makes those of a pod's containers; empty: the
    /// runtime decides.
    pub(super) fn cgroup_parent(&self, pod: &Pod) -> String {
        match (&self.cgroups, self.node.cgroup_root.trim_end_matches('/')) {
            (Some(cgroups), _) => cgroups.parent(pod),
            (None, "") => String::new(),
            (None, root) => format!("{root}/pod{}", pod.uid()),
        }
    }

    /// Makes the pod's cgroup if it is missing, after it has given the classes the shares of the
    /// `active` pods. If containers of the pod run in another cgroup, ends them and returns false:
    /// the next sync makes the cgroup. Does nothing where pods have no cgroups by class. Upstream:
    /// `Kubelet.SyncPod`.
    ///
    /// # Errors
    /// It cannot be made, its resources cannot be recorded, or the containers cannot be ended.
    pub async fn ensure_cgroup(
        &self,
        pod: &Arc<Pod>,
        status: &PodStatus,
        active: &(dyn Fn() -> Vec<Arc<Pod>> + Sync),
    ) -> Result<bool, Error> {
        let Some(cgroups) = self.cgroups.clone() else { return Ok(true) };
        let (of, all) = (pod.clone(), cgroups.clone());
        if task::blocking(move || all.has_pod(&of)).await {
            return Ok(true);
        }
        if status.containers.iter().any(|one| one.state == State::Running) {
            log::warn!("pod {}: its containers run outside of its cgroup", pod.display_name());
            self.kill_pod(pod, status, None).await?;
            return Ok(false);
        }
        if let Err(error) = self.update_classes(active).await {
            let pod = pod.display_name();
            log::warn!("Failed to update QoS cgroups while syncing pod {pod}: {error}");
        }
        let of = pod.clone();
        let made = task::blocking(move || cgroups.ensure_pod(&of));
        let made = self.timed("create", made).await;
        made.map_err(|source| {
            let message = format!("unable to ensure pod container exists: {source}");
            events::warning(pod, None, "FailedCreatePodContainer", message);
            Error::MakeCgroup { uid: pod.uid(), source }
        })?;
        if let Some(own) = pod.spec().resources.clone() {
            self.actuated.set_pod_level(&pod.uid(), own).await.map_err(Error::Record)?;
        }
        Ok(true)
    }

    /// Returns what a pod's cgroup limits; `None`: the kubelet limits no cgroups, or its limits
    /// cannot be read.
    pub async fn pod_limits(&self, pod: &Arc<Pod>) -> Option<PodLimits> {
        let (cgroups, pod) = (self.cgroups.clone()?, pod.clone());
        task::blocking(move || cgroups.pod_limits(&pod)).await.ok()
    }

    /// Gives the classes the shares of the `active` pods. Does nothing where pods have no cgroups
    /// by class.
    ///
    /// # Errors
    /// With the path that cannot be written.
    pub async fn update_classes(
        &self,
        active: &(dyn Fn() -> Vec<Arc<Pod>> + Sync),
    ) -> io::Result<()> {
        let Some(cgroups) = self.cgroups.clone() else { return Ok(()) };
        let guard = self.classes.lock_arc().await;
        let active = active();
        // The work holds the guard: it continues when this future does not.
        let update = move || {
            let _guard = guard;
            cgroups.update_classes(active.iter().map(|pod| &**pod))
        };
        self.timed("update", task::blocking(update)).await
    }

    /// Runs an operation on cgroups to its end, and observes its time.
    async fn timed<T>(&self, operation: &'static str, run: impl Future<Output = T>) -> T {
        let begin = self.clock.monotonic();
        let done = run.await;
        let took = self.clock.monotonic().saturating_sub(begin);
        metrics::CGROUP_OPERATION.with_label_values(&[operation]).observe(took.as_secs_f64());
        done
    }

    /// Removes the cgroup of a pod whose containers have ended. Does nothing where pods have no
    /// cgroups by class.
    ///
    /// # Errors
    /// It cannot be removed.
    pub async fn remove_cgroup(&self, uid: &Uid) -> Result<(), Error> {
        let Some(cgroups) = self.cgroups.clone() else { return Ok(()) };
        let of = uid.clone();
        let removed = task::blocking(move || cgroups.remove_pod(&of));
        let removed = self.timed("destroy", removed).await;
        removed.map_err(|source| Error::RemoveCgroup { uid: uid.clone(), source })
    }
}
