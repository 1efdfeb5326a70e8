//! Ends the containers of a pod. Upstream: `Kubelet.SyncTerminatingPod`,
//! `SyncTerminatingRuntimePod`.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::FutureExt;
use kube_controller_manager::task;

use crate::causes::chain;
use crate::events;
use crate::kubelet::pod_workers::Outcome;
use crate::kubelet::{Error, Kubelet};
use crate::pod::{Pod, PodExt, Uid};
use crate::prober::Kind;
use crate::runtime::status::PodStatus;
use crate::volumes;

impl Kubelet {
    /// Ends the containers of a pod, with this many seconds of grace. Until they have ended, the
    /// pod's readiness is still published.
    pub(super) async fn sync_terminating_pod(
        &self,
        pod: &Arc<Pod>,
        grace: i64,
    ) -> Result<Outcome, Error> {
        let runtime = self.read(pod).await?;
        // After a restart none is probed yet: the results are those before it.
        self.update_probes(pod, &runtime).await;
        let probes = &self.manager.probes;
        probes.stop_liveness_and_startup(&pod.uid());
        let publish = async { match self.publish_readiness(pod, &runtime).await {} };
        let killed = self.manager.kill_pod(pod, &runtime, Some(grace)).or(publish).await;
        if let Err(error) = &killed {
            let message = format!("error killing pod: {}", chain(error));
            events::warning(pod, None, "FailedKillPod", message);
        }
        killed?;
        let runtime = self.read(pod).await?;
        if runtime.has_running() {
            return Err(Error::StillRunning { pod: pod.display_name() });
        }
        probes.retain(&pod.uid(), &BTreeSet::new());
        self.publish(pod, &runtime, true).await;
        Ok(Outcome::Done(Duration::ZERO))
    }

    /// Publishes the pod's status, and again when the results of its readiness probes change, for
    /// ever.
    async fn publish_readiness(&self, pod: &Arc<Pod>, runtime: &PodStatus) -> Infallible {
        let mut published: Option<Vec<Option<bool>>> = None;
        loop {
            let changed = self.dispatcher.changed();
            let ids = runtime.containers.iter().map(|container| &container.id);
            let results = ids.map(|id| self.manager.probes.result(id, Kind::Readiness));
            let results = Some(results.collect());
            if results != published {
                self.publish(pod, runtime, false).await;
                published = results;
            }
            changed.await;
        }
    }

    /// Ends a pod that no source has, and removes its volumes, folders, logs and cgroup.
    pub(super) async fn end_orphan(&self, uid: &Uid) -> Result<Outcome, Error> {
        self.manager.end_orphan(uid).await?;
        let (folders, of) = (self.manager.folders.clone(), uid.clone());
        let fault = |source| Error::Volumes { pod: uid.to_string(), source };
        self.manager.volumes.tear_down(uid).await.map_err(fault)?;
        let removed = task::blocking(move || volumes::remove_logs(&folders, &of));
        let fault = |source| Error::OrphanFolders { uid: uid.clone(), source };
        removed.await.map_err(fault)?;
        self.manager.remove_cgroup(uid).await?;
        // Until then processes may run as its users.
        self.manager.user_namespaces.release(uid);
        Ok(Outcome::Done(Duration::ZERO))
    }
}
