//! The page `/metrics/resource`. Upstream: `resourceMetricsCollector`.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::summary::{PodRef, Summary, Used};

/// A metric of `/metrics/resource` with its values.
struct Family {
    help: &'static str,
    kind: &'static str,
    lines: String,
}

/// Renders the text of `/metrics/resource`. Upstream: `resourceMetricsCollector`.
pub fn resource_metrics(summary: &Summary) -> String {
    let mut families: BTreeMap<&'static str, Family> = BTreeMap::new();
    let millis = summary.time.to_jiff().as_millisecond();
    let mut add = |name: &'static str, help, kind, labels: &str, value: f64, is_timed: bool| {
        let family = families.entry(name).or_insert(Family { help, kind, lines: String::new() });
        let time = if is_timed { format!(" {millis}") } else { String::new() };
        // Writing to a string does not fail.
        let _ = writeln!(family.lines, "{name}{labels} {value}{time}");
    };
    let mut used =
        |names: [&'static str; 3], helps: [&'static str; 3], labels: &str, used: &Used| {
            if let Some(cpu) = &used.cpu {
                let seconds = cpu.usage_core_nano_seconds as f64 / 1e9;
                add(names[0], helps[0], "counter", labels, seconds, true);
            }
            if let Some(memory) = &used.memory {
                add(names[1], helps[1], "gauge", labels, memory.working_set_bytes as f64, true);
            }
            if let Some(swap) = &used.swap {
                add(names[2], helps[2], "gauge", labels, swap.swap_usage_bytes as f64, true);
            }
        };
    let of_node =
        ["node_cpu_usage_seconds_total", "node_memory_working_set_bytes", "node_swap_usage_bytes"];
    let node_help = [
        "[STABLE] Cumulative cpu time consumed by the node in core-seconds",
        "[STABLE] Current working set of the node in bytes",
        "[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems",
    ];
    used(of_node, node_help, "", &summary.node.used);
    let of_pod =
        ["pod_cpu_usage_seconds_total", "pod_memory_working_set_bytes", "pod_swap_usage_bytes"];
    let pod_help = [
        "[STABLE] Cumulative cpu time consumed by the pod in core-seconds",
        "[STABLE] Current working set of the pod in bytes",
        "[ALPHA] Current amount of the pod swap usage in bytes. Reported only on non-windows \
         systems",
    ];
    let of_container = [
        "container_cpu_usage_seconds_total",
        "container_memory_working_set_bytes",
        "container_swap_usage_bytes",
    ];
    let container_help = [
        "[STABLE] Cumulative cpu time consumed by the container in core-seconds",
        "[STABLE] Current working set of the container in bytes",
        "[ALPHA] Current amount of the container swap usage in bytes. Reported only on \
         non-windows systems",
    ];
    for pod in &summary.pods {
        let PodRef { name, namespace, .. } = &pod.pod_ref;
        for container in &pod.containers {
            let labels =
                format!("{{container={:?},namespace={namespace:?},pod={name:?}}}", container.name);
            used(of_container, container_help, &labels, &container.used);
        }
        let labels = format!("{{namespace={namespace:?},pod={name:?}}}");
        used(of_pod, pod_help, &labels, &pod.used);
    }
    let limit = "container_swap_limit_bytes";
    let limit_help = "[ALPHA] Current amount of the container swap limit in bytes. Reported only on \
                      non-windows systems";
    let start = "container_start_time_seconds";
    let help = "[STABLE] Start time of the container since unix epoch in seconds";
    for pod in &summary.pods {
        let PodRef { name, namespace, .. } = &pod.pod_ref;
        for container in &pod.containers {
            let labels =
                format!("{{container={:?},namespace={namespace:?},pod={name:?}}}", container.name);
            if container.started_micros > 0 {
                add(start, help, "gauge", &labels, container.started_micros as f64 / 1e6, false);
            }
            let swap = container.used.swap.as_ref();
            if let Some((swap, available)) =
                swap.and_then(|swap| Some((swap, swap.swap_available_bytes?)))
            {
                let bytes = available.saturating_add(swap.swap_usage_bytes) as f64;
                add(limit, limit_help, "gauge", &labels, bytes, true);
            }
        }
    }
    let mut text = String::new();
    for (name, Family { help, kind, lines }) in families {
        text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{lines}"));
    }
    text + &scrape_error(false)
}

/// Renders the metric that says whether the usage could not be measured. It is alone on the page
/// then.
pub fn scrape_error(is_error: bool) -> String {
    let name = "resource_scrape_error";
    let help = "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise";
    format!("# HELP {name} {help}\n# TYPE {name} gauge\n{name} {}\n", u8::from(is_error))
}
