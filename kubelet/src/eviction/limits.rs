//! Pods that use more of the node's disk than they may. Upstream: `localStorageEviction`.

use kube_controller_manager::objects::Quantity;

use super::{bytes, used};
use crate::cgroups::pod_amount;
use crate::pod::{Container, Pod, PodExt, is_restartable_init, quantity};
use crate::stats::PodStats;

/// Returns whether a pod limits what it may use of the node's disk.
pub fn has_local_limits(pod: &Pod) -> bool {
    let volumes = pod.spec().volumes.iter().flatten();
    let mut volumes = volumes.filter_map(|volume| volume.empty_dir.as_ref());
    volumes.any(|empty| empty.size_limit.is_some())
        || pod.all_containers().any(|container| storage_limit(container).is_some())
}

fn storage_limit(container: &Container) -> Option<Quantity> {
    let limits = container.resources.as_ref()?.limits.as_ref()?;
    quantity(limits, "ephemeral-storage").filter(|limit| limit.is_positive())
}

/// Returns the first local limit that a pod exceeds: the signal and the message. `None`: it exceeds
/// none of which the use is known. Upstream: `localStorageEviction`.
pub fn exceeded_limit(pod: &Pod, stats: &PodStats) -> Option<(&'static str, String)> {
    let exceeds = |used: u64, limit: Quantity| i128::from(used) > i128::from(limit.value());
    for volume in pod.spec().volumes.iter().flatten() {
        let limit = volume.empty_dir.as_ref().and_then(|empty| empty.size_limit.as_ref());
        let limit = limit.and_then(|limit| limit.0.parse::<Quantity>().ok());
        let used = stats.volumes.iter().find(|used| used.name == volume.name);
        if let (Some(limit), Some(used)) = (limit.filter(|limit| limit.is_positive()), used)
            && exceeds(used.fs.used_bytes.unwrap_or(0), limit)
        {
            let (name, limit) = (&volume.name, limit.to_string());
            let message =
                format!("Usage of EmptyDir volume {name:?} exceeds the limit {limit:?}. ");
            return Some(("emptydirfs.limit", message));
        }
    }
    let limit = pod_amount(pod, "ephemeral-storage", true);
    let total = used(stats.ephemeral_storage.as_ref(), false);
    if limit > 0 && i128::from(total) > i128::from(limit) {
        let limit = bytes(limit.unsigned_abs());
        let message = format!(
            "Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "
        );
        return Some(("ephemeralpodfs.limit", message));
    }
    let sidecars = pod.init_containers().iter().filter(|init| is_restartable_init(init));
    for container in pod.spec().containers.iter().chain(sidecars) {
        let own = stats.containers.iter().find(|own| own.name == container.name);
        let own_use = used(own.and_then(|own| own.logs.as_ref()), false)
            .saturating_add(used(own.and_then(|own| own.rootfs.as_ref()), false));
        if let Some(limit) = storage_limit(container).filter(|limit| exceeds(own_use, *limit)) {
            let (name, limit) = (&container.name, limit.to_string());
            let message =
                format!("Container {name} exceeded its local ephemeral storage limit {limit:?}. ");
            return Some(("ephemeralcontainerfs.limit", message));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::stats::{ContainerStats, Fs, VolumeStats};

    #[test]
    fn local_limits_are_compared_with_usage() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p"},
            "spec": {
                "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}],
                "initContainers": [
                    {"name": "init", "resources": {"limits": {"ephemeral-storage": "1"}}},
                    {"name": "side", "restartPolicy": "Always",
                     "resources": {"limits": {"ephemeral-storage": "1Mi"}}},
                ],
                "containers": [
                    {"name": "a", "resources": {"limits": {"ephemeral-storage": "2Mi"}}},
                    {"name": "b", "resources": {"limits": {"ephemeral-storage": "3Mi"}}},
                ],
            },
        }))
        .expect("a pod");
        let fs = |mib: u64| Fs { used_bytes: Some(mib << 20), ..Default::default() };
        let exceeds = |name: &str, limit: &str| {
            format!("Container {name} exceeded its local ephemeral storage limit {limit:?}. ")
        };
        let of_volume = "Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". ".to_owned();
        let of_pod =
            "Pod ephemeral local storage usage exceeds the total limit of containers 6Mi. ";
        for (volume, container, logs, total, expected) in [
            (1, "a", 2, 6, None),
            (2, "a", 2, 6, Some(of_volume)),
            (1, "a", 2, 7, Some(of_pod.to_owned())),
            (1, "a", 3, 6, Some(exceeds("a", "2Mi"))),
            (1, "side", 1, 6, None),
            (1, "side", 2, 6, Some(exceeds("side", "1Mi"))),
            (1, "init", 2, 6, None),
        ] {
            let stats = PodStats {
                containers: vec![ContainerStats {
                    name: container.to_owned(),
                    logs: Some(fs(logs)),
                    ..Default::default()
                }],
                volumes: vec![VolumeStats { fs: fs(volume), name: "v".to_owned(), claim: None }],
                ephemeral_storage: Some(fs(total)),
                ..Default::default()
            };
            let found = exceeded_limit(&pod, &stats).map(|(_, message)| message);
            assert_eq!(found, expected, "{volume} {container} {logs} {total}");
        }
        assert!(has_local_limits(&pod));
        assert!(!has_local_limits(&Pod::default()));
    }
}
