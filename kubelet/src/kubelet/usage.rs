//! What the node and its pods use.

use std::sync::Arc;

use kube_controller_manager::task;

use super::{Error, Kubelet};
use crate::cgroups::{Driver, Hierarchy};
use crate::kuberuntime::Manager;
use crate::pod::{Pod, PodExt};
use crate::stats::{StatsSource, Summary};

impl Kubelet {
    /// What the node and its pods use. With `only`: only CPU and memory.
    ///
    /// # Errors
    /// Cgroups cannot be read here, or the runtime does not answer.
    pub async fn usage(self: &Arc<Self>, only: bool) -> Result<Summary, Error> {
        let images = match only {
            true => None,
            false => Some(self.manager.images.usage().await.map_err(Error::Images)?),
        };
        let kubelet = self.clone();
        task::blocking(move || {
            let Manager { node, folders, cgroups, clock, .. } = &kubelet.manager;
            let hierarchy = Hierarchy::detect().map_err(Error::Cgroups)?;
            let root = node.cgroup_root.trim_end_matches('/');
            let cgroup_of = |pod: &Pod| match cgroups {
                Some(cgroups) => Some(cgroups.pod(pod)),
                None => (!root.is_empty()).then(|| format!("{root}/pod{}", pod.uid())),
            };
            let source = StatsSource {
                node: &node.name,
                memory_bytes: node.memory_bytes.unsigned_abs(),
                folders,
                hierarchy: &hierarchy,
                driver: cgroups.as_ref().map_or(Driver::Cgroupfs, |cgroups| cgroups.driver()),
                all_pods: cgroups.as_ref().map(|cgroups| cgroups.all_pods()),
                cgroup_of: &cgroup_of,
                images,
                pods: &kubelet.pods(),
                now: clock.now(),
                monotonic: clock.monotonic(),
                only_cpu_and_memory: only,
            };
            Ok(kubelet.stats.summary(&source))
        })
        .await
    }
}
