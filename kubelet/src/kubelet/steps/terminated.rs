//! Releases what a pod held whose containers have ended. Upstream: `Kubelet.SyncTerminatedPod`.

use std::sync::Arc;
use std::time::Duration;

use kube_controller_manager::task;

use crate::files::tree;
use crate::kubelet::pod_workers::Outcome;
use crate::kubelet::{Error, Kubelet};
use crate::pod::{Pod, PodExt};
use crate::prober;

impl Kubelet {
    /// Releases the pod's volumes and cgroup, and sets its last status. If no source has the pod
    /// any more, removes its logs, last messages and what the runtime has of it too.
    pub(super) async fn sync_terminated_pod(&self, pod: &Arc<Pod>) -> Result<Outcome, Error> {
        let uid = pod.uid();
        let is_removed = !self.store.contains(&uid);
        if is_removed {
            let runtime = self.read(pod).await?;
            self.manager.prune(&runtime, true).await?;
        }
        let fault = |source| Error::Volumes { pod: pod.display_name(), source };
        let volumes = &self.manager.volumes;
        let ended = match is_removed {
            true => volumes.tear_down(&uid).await,
            false => volumes.tear_down_ended(&uid).await,
        };
        ended.map_err(fault)?;
        if is_removed {
            let logs = self.manager.folders.pod_logs(pod);
            let fault = |source| Error::Folders { pod: pod.display_name(), source };
            task::blocking(move || tree::remove(&logs)).await.map_err(fault)?;
        }
        self.manager.objects.forget(&uid);
        self.manager.remove_cgroup(&uid).await?;
        // Until then processes may run as its users.
        self.manager.user_namespaces.release(&uid);
        prober::remove_metrics(pod);
        self.finish_status(pod);
        log::info!("pod {} has ended", pod.display_name());
        Ok(Outcome::Done(Duration::ZERO))
    }
}
