//! Pods that make a node's shortage worse are not admitted. Upstream: `eviction.managerImpl.Admit`.

use kube_controller_manager::objects::NO_SCHEDULE;

use super::Rejection;
use super::predicates::tolerates;
use crate::eviction::is_critical;
use crate::node::pressure::Pressure;
use crate::pod::{Pod, QosClass};

/// The taint of a node with too little memory.
const MEMORY_PRESSURE: &str = "node.kubernetes.io/memory-pressure";

/// Checks that the node's pressure lets the pod in.
///
/// # Errors
/// The node has too little of something. Critical pods are never rejected; with too little memory
/// alone only best-effort pods that do not tolerate its taint are.
pub fn check(pod: &Pod, pressure: &[Pressure]) -> Result<(), Rejection> {
    if pressure.is_empty() || is_critical(pod) {
        return Ok(());
    }
    let may_use_memory = || {
        QosClass::of(pod) != QosClass::BestEffort
            || tolerates(pod, MEMORY_PRESSURE, "", NO_SCHEDULE)
    };
    if pressure == [Pressure::Memory] && may_use_memory() {
        return Ok(());
    }
    Err(Rejection::Pressure(pressure.to_vec()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pod::CONFIG_SOURCE;

    #[test]
    fn pressure_rejects_pods_by_their_class_and_tolerations() {
        let burstable = json!({"containers": [{"name": "c",
            "resources": {"requests": {"memory": "1Mi"}}}]});
        let tolerating = |key: &str| {
            json!({"containers": [], "tolerations": [
                {"key": key, "operator": "Exists", "effect": "NoSchedule"}]})
        };
        let critical = json!({"containers": [], "priority": 2_000_000_000});
        let plain = json!({"containers": []});
        let (memory, disk) = (vec![Pressure::Memory], vec![Pressure::Disk]);
        let both = vec![Pressure::Memory, Pressure::Disk];
        for (spec, source, pressure, is_admitted) in [
            (&plain, "api", &vec![], true),
            (&plain, "api", &memory, false),
            (&plain, "api", &vec![Pressure::Pid], false),
            (&plain, "file", &both, true),
            (&critical, "api", &both, true),
            (&burstable, "api", &memory, true),
            (&burstable, "api", &disk, false),
            (&burstable, "api", &both, false),
            (&tolerating(MEMORY_PRESSURE), "api", &memory, true),
            (&tolerating("node.kubernetes.io/disk-pressure"), "api", &memory, false),
            (&tolerating("node.kubernetes.io/disk-pressure"), "api", &disk, false),
        ] {
            let metadata = json!({"annotations": {CONFIG_SOURCE: source}});
            let pod = json!({"metadata": metadata, "spec": spec});
            let pod: Pod = serde_json::from_value(pod).expect("a pod");
            assert_eq!(check(&pod, pressure).is_ok(), is_admitted, "{spec} {pressure:?}");
        }
    }
}
