//! What the node and its pods use.

use std::collections::HashMap;
use std::sync::Arc;

use futures_lite::future::zip;
use kube_controller_manager::task;
use parking_lot::Mutex;
use serde::Deserialize;

use super::{Error, Kubelet};
use crate::cgroups::Hierarchy;
use crate::cri::api;
use crate::images::ImageUse;
use crate::kuberuntime::Manager;
use crate::metrics;
use crate::pod::{Pod, PodExt, Uid};
use crate::runtime::labels;
use crate::stats::{self, Sandbox, Stats, StatsSource, Summary};

/// The images of sandboxes by their ids.
pub(super) type SandboxImages = Mutex<HashMap<String, String>>;

/// The part of containerd's details of a sandbox that is read.
#[derive(Deserialize)]
struct SandboxInfo {
    #[serde(default)]
    image: String,
}

/// Returns the image that the details of a sandbox name; empty: they name none.
fn image_in(details: &HashMap<String, String>) -> String {
    let info = details.get("info").and_then(|text| serde_json::from_str(text).ok());
    info.map(|SandboxInfo { image }| image).unwrap_or_default()
}

impl Kubelet {
    /// Measures what the node and its pods use: everything, or only CPU and memory.
    ///
    /// # Errors
    /// Cgroups cannot be read here, or the runtime does not answer.
    pub async fn usage(self: &Arc<Self>, only_cpu_and_memory: bool) -> Result<Summary, Error> {
        let images = match only_cpu_and_memory {
            true => None,
            false => Some(self.manager.images.usage().await.map_err(Error::Images)?),
        };
        // The work keeps its turn, also when its client goes away.
        let turn = match only_cpu_and_memory {
            true => None,
            false => Some(self.stats.lock_walks().await),
        };
        let summary = move |stats: &Stats, source: &StatsSource<'_>| {
            let _turn = turn;
            stats.summary(source)
        };
        self.measure(only_cpu_and_memory, images, summary).await
    }

    /// Builds the answer of `/stats/summary`: [`usage`](Self::usage), with what the volumes of
    /// claims and drivers hold.
    ///
    /// # Errors
    /// See [`usage`](Self::usage).
    pub async fn summary(self: &Arc<Self>) -> Result<Summary, Error> {
        let pods = self.store.pods();
        let (usage, volumes) = zip(self.usage(false), self.manager.volumes.usage(&pods)).await;
        let mut summary = usage?;
        stats::add_volumes(&mut summary, &volumes);
        Ok(summary)
    }

    /// Returns the metrics of volumes, as text.
    pub async fn volume_metrics(&self) -> Vec<u8> {
        let pods = self.store.pods();
        let measured = self.manager.volumes.usage(&pods).await;
        let claims = stats::claim_amounts(&pods, &measured);
        metrics::volumes(&claims, &self.manager.volumes.counts(&pods))
    }

    /// Returns the metrics of pods' certificates, as text.
    pub fn certificate_metrics(&self) -> Vec<u8> {
        metrics::pod_certificates(&self.manager.objects.certificate_counts())
    }

    /// Returns the metrics of the logs of containers, as text.
    pub async fn log_metrics(self: &Arc<Self>) -> Vec<u8> {
        let kubelet = self.clone();
        // The work keeps its turn, also when its client goes away.
        let turn = self.stats.lock_walks().await;
        let measure = move || {
            let _turn = turn;
            let (folders, now) = (&kubelet.manager.folders, kubelet.clock.monotonic());
            metrics::container_logs(&kubelet.stats.logs(folders, &kubelet.pods(), now))
        };
        task::blocking(measure).await
    }

    /// Builds the text of `/metrics/cadvisor`.
    ///
    /// # Errors
    /// Cgroups cannot be read here, or the runtime does not answer.
    pub async fn cadvisor_metrics(self: &Arc<Self>) -> Result<String, Error> {
        let (images, sandboxes) = zip(self.manager.images.usage(), self.sandboxes()).await;
        let (images, sandboxes) = (images.map_err(Error::Images)?, sandboxes?);
        let write =
            move |_: &Stats, source: &StatsSource<'_>| stats::cadvisor_metrics(source, &sandboxes);
        self.measure(false, Some(images), write).await
    }

    /// Returns the newest sandbox that is ready, by pod.
    async fn sandboxes(&self) -> Result<HashMap<Uid, Sandbox>, Error> {
        let request = api::ListPodSandboxRequest::default();
        let listed = self.manager.runtime.list_pod_sandbox(request).await;
        let mut sandboxes = listed.map_err(Error::Runtime)?.items;
        sandboxes.retain(|one| one.state == api::PodSandboxState::SandboxReady as i32);
        // The newest comes last, and replaces the others of its pod.
        sandboxes.sort_by_key(|one| one.created_at);
        let ids: HashMap<Uid, String> = sandboxes
            .into_iter()
            .filter_map(|one| Some((labels::pod_uid(&one.labels)?, one.id)))
            .collect();
        self.sandbox_images.lock().retain(|id, _| ids.values().any(|live| live == id));
        let mut found = HashMap::new();
        for (uid, id) in ids {
            let image = self.sandbox_image(&id).await;
            found.insert(uid, Sandbox { id, image });
        }
        Ok(found)
    }

    /// Returns the image of a sandbox, which the runtime is asked for once; empty: it does not name
    /// it.
    async fn sandbox_image(&self, id: &str) -> String {
        let known = self.sandbox_images.lock().get(id).cloned();
        if let Some(image) = known {
            return image;
        }
        let request = api::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: true };
        // A sandbox that is gone meanwhile has no image.
        let Ok(status) = self.manager.runtime.pod_sandbox_status(request).await else {
            return String::new();
        };
        let image = image_in(&status.info);
        self.sandbox_images.lock().insert(id.to_owned(), image.clone());
        image
    }

    /// Calls `measure` on a thread that may block, with all that it needs to read usage.
    async fn measure<T: Send + 'static>(
        self: &Arc<Self>,
        only_cpu_and_memory: bool,
        images: Option<ImageUse>,
        measure: impl FnOnce(&Stats, &StatsSource<'_>) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let kubelet = self.clone();
        task::blocking(move || {
            let Manager { node, folders, cgroups, clock, .. } = &kubelet.manager;
            let hierarchy = match cgroups {
                Some(cgroups) => cgroups.hierarchy().clone(),
                None => Hierarchy::detect().map_err(Error::Cgroups)?,
            };
            let root = node.cgroup_root.trim_end_matches('/');
            // Without cgroups of classes, a pod's is below the root, or the runtime's own choice.
            let cgroup_of = |pod: &Pod| match cgroups {
                Some(cgroups) => Some(cgroups.pod(pod)),
                None => (!root.is_empty()).then(|| format!("{root}/pod{}", pod.uid())),
            };
            let source = StatsSource {
                node: &node.name,
                memory_bytes: node.memory_bytes.unsigned_abs(),
                folders,
                hierarchy: &hierarchy,
                all_pods: cgroups.as_ref().map(|cgroups| cgroups.all_pods()),
                classes: cgroups.iter().flat_map(|cgroups| cgroups.classes()).collect(),
                system_cgroups: &node.system_cgroups,
                started: kubelet.started,
                cgroup_of: &cgroup_of,
                images,
                pods: &kubelet.pods(),
                starts: &kubelet.store.starts(),
                now: clock.now(),
                monotonic: clock.monotonic(),
                volume_period: kubelet.manager.volumes.usage_period(),
                only_cpu_and_memory,
            };
            Ok(measure(&kubelet.stats, &source))
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_of_sandboxes_are_in_containerds_details() {
        for (details, expected) in [
            (
                &[("info", r#"{"pid": 1, "image": "registry.k8s.io/pause:3.10"}"#)][..],
                "registry.k8s.io/pause:3.10",
            ),
            (&[("info", r#"{"pid": 1}"#)], ""),
            (&[("info", "x")], ""),
            (&[("other", "{}")], ""),
            (&[], ""),
        ] {
            let details = details.iter().map(|(key, text)| (key.to_string(), text.to_string()));
            assert_eq!(image_in(&details.collect()), expected);
        }
    }
}
