//! The order in which the containers of a pod end, and the number of a container's start.
//! Upstream: `kuberuntime_termination_order.go`, `calcRestartCountByLogDir`.

use crate::pod::{Pod, PodExt, is_restartable_init};

/// Returns the containers that must have ended before a container is stopped: for a sidecar all
/// containers that are no init containers, and the sidecar after it; for others none. Upstream:
/// `newTerminationOrdering`.
pub fn end_before<'a>(pod: &'a Pod, name: &str) -> Vec<&'a str> {
    let mut sidecars = pod.init_containers().iter().filter(|init| is_restartable_init(init));
    if !sidecars.any(|sidecar| sidecar.name == name) {
        return Vec::new();
    }
    // The iterator has stopped behind the sidecar that was found.
    let later = sidecars.next().map(|sidecar| sidecar.name.as_str());
    pod.spec().containers.iter().map(|container| container.name.as_str()).chain(later).collect()
}

/// Returns the number of the next start by the names of the logs of earlier ones: a runtime that
/// has lost its state, or whose containers were removed, does not know it.
pub fn next_start<'a>(logs: impl Iterator<Item = &'a str>) -> u32 {
    let numbers = logs.filter_map(|name| {
        let (number, rest) = name.split_once(".log")?;
        (rest.is_empty() || rest.starts_with('.')).then_some(())?;
        number.bytes().all(|byte| byte.is_ascii_digit()).then(|| number.parse::<u32>().ok())?
    });
    numbers.max().map_or(0, |last| last.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sidecars_end_after_the_containers_in_reverse_order() {
        let init =
            |name: &str, policy: Option<&str>| json!({"name": name, "restartPolicy": policy});
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "initContainers": [init("s1", Some("Always")), init("i", None),
                init("s2", Some("Always")), init("never", Some("Never"))],
            "containers": [{"name": "a"}, {"name": "b"}],
        }}))
        .expect("a pod");
        for (name, expected) in [
            ("a", &[][..]),
            ("b", &[]),
            ("i", &[]),
            ("never", &[]),
            ("s2", &["a", "b"]),
            ("s1", &["a", "b", "s2"]),
            ("unknown", &[]),
        ] {
            assert_eq!(end_before(&pod, name), expected, "{name}");
        }
    }

    #[test]
    fn starts_are_counted_by_logs() {
        for (logs, expected) in [
            (&[][..], 0),
            (&["0.log"], 1),
            (&["0.log", "3.log.20260101-000000", "2.log"], 4),
            (&["x.log", "1.logs", "1.txt", ".log", "-1.log", "+7.log"], 0),
            (&["99999999999.log"], 0),
        ] {
            assert_eq!(next_start(logs.iter().copied()), expected, "{logs:?}");
        }
    }
}
