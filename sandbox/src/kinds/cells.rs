//! Table cells that need more than a path. Upstream: `pkg/printers/internalversion`.

use serde_json::Value;

use super::json::{int, list, members, text, truth};
use super::quantity;
use crate::kinds::human_duration;
use kube_controller_manager::objects::Timestamp;

/// Returns the text at a pointer, or `other` when absent.
pub fn or<'a>(object: &'a Value, pointer: &str, other: &'a str) -> &'a str {
    match text(object, pointer) {
        "" => other,
        text => text,
    }
}

fn seconds(object: &Value, pointer: &str) -> Option<i64> {
    text(object, pointer).parse::<Timestamp>().ok().map(Timestamp::as_secs)
}

/// Returns the age of a time in the object. Upstream: `translateTimestampSince`.
pub fn since(object: &Value, pointer: &str, now: i64) -> String {
    seconds(object, pointer)
        .map_or_else(|| "<unknown>".to_owned(), |then| human_duration(now - then))
}

pub fn age(object: &Value, now: i64) -> String {
    since(object, "/metadata/creationTimestamp", now)
}

/// Joins the first `max` items, and adds the number of the others.
fn with_more(mut items: Vec<String>, max: usize) -> String {
    let left = items.len().saturating_sub(max);
    items.truncate(max);
    let shown = items.join(",");
    if left > 0 { format!("{shown} + {left} more...") } else { shown }
}

fn none_if_empty(text: String) -> String {
    if text.is_empty() { "<none>".to_owned() } else { text }
}

/// Formats a map as `a=b,c=d`, sorted. Upstream: `labels.FormatLabels`.
pub fn label_map(object: &Value, pointer: &str) -> String {
    let mut pairs: Vec<String> = members(object, pointer)
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    pairs.sort();
    none_if_empty(pairs.join(","))
}

/// Formats the label selector at `pointer` as text. Upstream: `metav1.FormatLabelSelector`.
pub fn selector(object: &Value, pointer: &str) -> String {
    let parsed = object.pointer(pointer).and_then(|value| {
        serde_json::from_value::<kube_controller_manager::objects::LabelSelector>(value.clone())
            .ok()
    });
    match parsed.as_ref().map(kube_controller_manager::objects::Selector::try_from) {
        None => "<none>".to_owned(),
        Some(Ok(selector)) => none_if_empty(selector.to_string()),
        Some(Err(_)) => "<error>".to_owned(),
    }
}

/// Returns a member of each container, joined. `spec` points to the pod spec.
pub fn containers(object: &Value, spec: &str, member: &str) -> String {
    let containers = list(object, &format!("{spec}/containers"));
    containers.iter().map(|container| text(container, member)).collect::<Vec<_>>().join(",")
}

fn pod_condition(pod: &Value, name: &str) -> bool {
    list(pod, "/status/conditions")
        .iter()
        .any(|c| text(c, "/type") == name && text(c, "/status") == "True")
}

struct PodSummary {
    ready: usize,
    total: usize,
    restarts: i64,
    last_restart: Option<i64>,
    reason: String,
}

/// Returns why a container has ended: its reason, else the signal or the exit code.
fn terminated_reason(terminated: &Value) -> String {
    match (text(terminated, "/reason"), int(terminated, "/signal").unwrap_or(0)) {
        ("", 0) => format!("ExitCode:{}", int(terminated, "/exitCode").unwrap_or(0)),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

/// Computes the cells of a pod's row: ready containers, restarts, and the reason shown as its
/// status. Upstream: `printPod`.
fn summarize(pod: &Value) -> PodSummary {
    let phase = text(pod, "/status/phase");
    let inits = list(pod, "/spec/initContainers");
    let sidecar = |name: &str| {
        inits.iter().any(|c| text(c, "/name") == name && text(c, "/restartPolicy") == "Always")
    };
    let mut reason = or(pod, "/status/reason", phase).to_owned();
    let gated =
        |c: &Value| text(c, "/type") == "PodScheduled" && text(c, "/reason") == "SchedulingGated";
    if list(pod, "/status/conditions").iter().any(gated) {
        reason = "SchedulingGated".to_owned();
    }
    let sidecars = inits.iter().filter(|c| text(c, "/restartPolicy") == "Always").count();
    let total = list(pod, "/spec/containers").len() + sidecars;
    let (mut ready, mut restarts, mut sidecar_restarts) = (0, 0, 0);
    let (mut last, mut sidecar_last) = (None, None);
    let mut initializing = false;
    for (at, status) in list(pod, "/status/initContainerStatuses").iter().enumerate() {
        let count = int(status, "/restartCount").unwrap_or(0);
        let finished = seconds(status, "/lastState/terminated/finishedAt");
        let sidecar = sidecar(text(status, "/name"));
        restarts += count;
        last = last.max(finished);
        if sidecar {
            sidecar_restarts += count;
            sidecar_last = sidecar_last.max(finished);
        }
        let terminated = status.pointer("/state/terminated");
        if terminated.is_some_and(|t| int(t, "/exitCode").unwrap_or(0) == 0) {
            continue;
        }
        if sidecar && truth(status, "/started") {
            ready += usize::from(truth(status, "/ready"));
            continue;
        }
        initializing = true;
        let waiting = text(status, "/state/waiting/reason");
        reason = match terminated {
            Some(terminated) => format!("Init:{}", terminated_reason(terminated)),
            None if !waiting.is_empty() && waiting != "PodInitializing" => {
                format!("Init:{waiting}")
            }
            None => format!("Init:{at}/{}", inits.len()),
        };
        break;
    }
    if !initializing || pod_condition(pod, "Initialized") {
        // Once the pod is initialized, the restarts of init containers do not count; those of
        // sidecars do.
        restarts = sidecar_restarts;
        last = sidecar_last;
        let (mut running, mut error) = (false, String::new());
        for status in list(pod, "/status/containerStatuses").iter().rev() {
            restarts += int(status, "/restartCount").unwrap_or(0);
            last = last.max(seconds(status, "/lastState/terminated/finishedAt"));
            let waiting = text(status, "/state/waiting/reason");
            if !waiting.is_empty() {
                reason = waiting.to_owned();
            } else if let Some(terminated) = status.pointer("/state/terminated") {
                reason = terminated_reason(terminated);
                if int(terminated, "/exitCode").unwrap_or(0) != 0 {
                    error.clone_from(&reason);
                }
            } else if truth(status, "/ready") && status.pointer("/state/running").is_some() {
                running = true;
                ready += 1;
            }
        }
        // A pod is not completed while a container still runs, nor if one has failed.
        if reason == "Completed" {
            if running && pod_condition(pod, "Ready") {
                reason = "Running".to_owned();
            } else if !error.is_empty() {
                reason = error;
            } else if running {
                reason = "NotReady".to_owned();
            }
        }
    }
    if pod.pointer("/metadata/deletionTimestamp").is_some() {
        if text(pod, "/status/reason") == "NodeLost" {
            reason = "Unknown".to_owned();
        } else if !matches!(phase, "Succeeded" | "Failed") {
            reason = "Terminating".to_owned();
        }
    }
    PodSummary { ready, total, restarts, last_restart: last, reason }
}

pub fn pod_ready(pod: &Value) -> String {
    let summary = summarize(pod);
    format!("{}/{}", summary.ready, summary.total)
}

pub fn pod_status(pod: &Value) -> String {
    summarize(pod).reason
}

/// Formats the restarts of a pod, with the age of the last one: `3 (5m ago)`.
pub fn pod_restarts(pod: &Value, now: i64) -> String {
    match summarize(pod) {
        PodSummary { restarts, last_restart: Some(last), .. } if restarts != 0 => {
            format!("{restarts} ({} ago)", human_duration(now - last))
        }
        PodSummary { restarts, .. } => restarts.to_string(),
    }
}

/// Formats how many readiness gates of a pod are open: `1/2`.
pub fn pod_gates(pod: &Value) -> String {
    let gates = list(pod, "/spec/readinessGates");
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let passed =
        gates.iter().filter(|gate| pod_condition(pod, text(gate, "/conditionType"))).count();
    format!("{passed}/{}", gates.len())
}

/// Renders a node's readiness from its `Ready` condition, and whether it is cordoned.
pub fn node_status(node: &Value) -> String {
    let ready = list(node, "/status/conditions").iter().find(|c| text(c, "/type") == "Ready");
    let mut status = match ready.map(|c| text(c, "/status")) {
        None => "Unknown",
        Some("True") => "Ready",
        Some(_) => "NotReady",
    }
    .to_owned();
    if truth(node, "/spec/unschedulable") {
        status.push_str(",SchedulingDisabled");
    }
    status
}

/// Returns the roles that a node's labels name, sorted and joined.
pub fn node_roles(node: &Value) -> String {
    let mut roles: Vec<&str> = members(node, "/metadata/labels")
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None if key == "kubernetes.io/role" => value.as_str(),
            None => None,
        })
        .filter(|role| !role.is_empty())
        .collect();
    roles.sort_unstable();
    roles.dedup();
    none_if_empty(roles.join(","))
}

pub fn node_address(node: &Value, kind: &str) -> String {
    let of = |a: &&Value| text(a, "/type") == kind;
    let address = list(node, "/status/addresses").iter().find(of);
    none_if_empty(address.map(|a| text(a, "/address").to_owned()).unwrap_or_default())
}

pub fn node_kernel(node: &Value) -> String {
    let kernel = or(node, "/status/nodeInfo/kernelVersion", "<unknown>");
    match text(node, "/status/nodeInfo/architecture") {
        "" => kernel.to_owned(),
        arch => format!("{kernel} ({arch})"),
    }
}

/// Returns the addresses of a load balancer, sorted, each one once. An ingress without an IP counts
/// with its host name.
fn ingress_addresses(object: &Value) -> Vec<&str> {
    let mut addresses: Vec<&str> = list(object, "/status/loadBalancer/ingress")
        .iter()
        .map(|ingress| or(ingress, "/ip", text(ingress, "/hostname")))
        .filter(|address| !address.is_empty())
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

pub fn ingress_address(ingress: &Value) -> String {
    ingress_addresses(ingress).join(",")
}

/// Lists the hosts of an Ingress: three of them, and the number of the rules after them; `*` for any
/// host. That number counts all rules but three, with hosts or without, as upstream's does.
pub fn ingress_hosts(ingress: &Value) -> String {
    const MAX: usize = 3;
    let rules = list(ingress, "/spec/rules");
    let mut rest = rules.iter();
    let hosts = rest.by_ref().map(|rule| text(rule, "/host")).filter(|host| !host.is_empty());
    let shown = hosts.take(MAX).collect::<Vec<_>>().join(",");
    match (shown.is_empty(), rest.len()) {
        (true, _) => "*".to_owned(),
        (false, 0) => shown,
        (false, _) => format!("{shown} + {} more...", rules.len() - MAX),
    }
}

/// Renders the external addresses of a Service; which ones it has depends on its type.
pub fn service_external_ip(service: &Value) -> String {
    let external = list(service, "/spec/externalIPs").iter().filter_map(Value::as_str);
    match text(service, "/spec/type") {
        "ClusterIP" | "NodePort" => none_if_empty(external.collect::<Vec<_>>().join(",")),
        "LoadBalancer" => {
            let all: Vec<&str> = ingress_addresses(service).into_iter().chain(external).collect();
            if all.is_empty() { "<pending>".to_owned() } else { all.join(",") }
        }
        "ExternalName" => text(service, "/spec/externalName").to_owned(),
        _ => "<unknown>".to_owned(),
    }
}

/// Renders the ports of a Service, with their node ports if they have any.
pub fn service_ports(service: &Value) -> String {
    let ports = list(service, "/spec/ports").iter().map(|port| {
        let protocol = text(port, "/protocol");
        let number = int(port, "/port").unwrap_or(0);
        match int(port, "/nodePort").unwrap_or(0) {
            0 => format!("{number}/{protocol}"),
            node => format!("{number}:{node}/{protocol}"),
        }
    });
    none_if_empty(ports.collect::<Vec<_>>().join(","))
}

/// Renders the addresses of an Endpoints object: three of them, and the number of the others.
pub fn endpoints(object: &Value) -> String {
    let mut all = Vec::new();
    for subset in list(object, "/subsets") {
        let addresses = list(subset, "/addresses").iter().map(|a| text(a, "/ip"));
        let ports = list(subset, "/ports");
        if ports.is_empty() {
            all.extend(addresses.clone().map(str::to_owned));
        }
        for port in ports {
            let port = int(port, "/port").unwrap_or(0);
            all.extend(addresses.clone().map(|ip| match ip.contains(':') {
                true => format!("[{ip}]:{port}"),
                false => format!("{ip}:{port}"),
            }));
        }
    }
    none_if_empty(with_more(all, 3))
}

/// Renders the ports of an EndpointSlice: three of them, and the number of the others.
pub fn slice_ports(slice: &Value) -> String {
    let ports = list(slice, "/ports").iter().map(|port| match int(port, "/port") {
        Some(number) => number.to_string(),
        None => or(port, "/name", "*").to_owned(),
    });
    // An absent list means no ports, which upstream prints as it prints an empty one.
    match with_more(ports.collect(), 3) {
        text if text.is_empty() => "<unset>".to_owned(),
        text => text,
    }
}

/// Lists the addresses of an EndpointSlice: three of them, and the number of the others.
pub fn slice_endpoints(slice: &Value) -> String {
    let addresses = list(slice, "/endpoints").iter().flat_map(|e| list(e, "/addresses"));
    let addresses = addresses.filter_map(Value::as_str).map(str::to_owned);
    match with_more(addresses.collect(), 3) {
        text if text.is_empty() => "<unset>".to_owned(),
        text => text,
    }
}

/// Formats the age of the last occurrence of an Event, which newer clients keep in its series.
pub fn event_last_seen(event: &Value, now: i64) -> String {
    if event.get("series").is_some_and(|series| !series.is_null()) {
        return since(event, "/series/lastObservedTime", now);
    }
    match text(event, "/lastTimestamp") {
        "" => event_first_seen(event, now),
        _ => since(event, "/lastTimestamp", now),
    }
}

/// Returns the age of an event's first occurrence; a newer event has only `eventTime`.
pub fn event_first_seen(event: &Value, now: i64) -> String {
    match text(event, "/firstTimestamp") {
        "" => since(event, "/eventTime", now),
        _ => since(event, "/firstTimestamp", now),
    }
}

pub fn event_object(event: &Value) -> String {
    let kind = text(event, "/involvedObject/kind").to_lowercase();
    match text(event, "/involvedObject/name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    }
}

/// Returns what has reported an event, and where. Without the fields of `source`, the reporting
/// component and instance.
pub fn event_source(event: &Value) -> String {
    let component = or(event, "/source/component", text(event, "/reportingComponent"));
    match or(event, "/source/host", text(event, "/reportingInstance")) {
        "" => component.to_owned(),
        host => format!("{component}, {host}"),
    }
}

/// Returns how often an event has occurred: the count of its series, if it has one, else its own,
/// of which 0 means 1.
pub fn event_count(event: &Value) -> i64 {
    let count = int(event, "/count").unwrap_or(0);
    int(event, "/series/count").unwrap_or(if count == 0 { 1 } else { count })
}

/// Returns the status of a Job: the first of these states that applies to it.
pub fn job_status(job: &Value) -> &'static str {
    let has = |name: &str| {
        list(job, "/status/conditions")
            .iter()
            .any(|c| text(c, "/type") == name && text(c, "/status") == "True")
    };
    if has("Complete") {
        "Complete"
    } else if has("Failed") {
        "Failed"
    } else if job.pointer("/metadata/deletionTimestamp").is_some() {
        "Terminating"
    } else if has("Suspended") {
        "Suspended"
    } else if has("FailureTarget") {
        "FailureTarget"
    } else if has("SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    }
}

/// Formats the completions of a Job: succeeded and wanted pods. A Job without `completions` wants
/// one success of its `parallelism` pods.
pub fn job_completions(job: &Value) -> String {
    let succeeded = int(job, "/status/succeeded").unwrap_or(0);
    let parallelism = int(job, "/spec/parallelism").unwrap_or(0);
    match int(job, "/spec/completions") {
        Some(completions) => format!("{succeeded}/{completions}"),
        None if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
        None => format!("{succeeded}/1"),
    }
}

/// Returns how long a Job has run, until it completed or until now; empty if it has not started.
pub fn job_duration(job: &Value, now: i64) -> String {
    let Some(start) = seconds(job, "/status/startTime") else { return String::new() };
    human_duration(seconds(job, "/status/completionTime").unwrap_or(now) - start)
}

/// Formats the access modes in short, such as `RWO,RWX`. Upstream: `helper.GetAccessModesAsString`.
pub fn access_modes(object: &Value, pointer: &str) -> String {
    let modes = list(object, pointer);
    let short = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let held = short.iter().filter(|(mode, _)| modes.iter().any(|m| m == mode));
    held.map(|(_, short)| *short).collect::<Vec<_>>().join(",")
}

/// Returns the storage class: an old annotation that is not empty takes precedence over the field.
pub fn storage_class(object: &Value) -> &str {
    let annotation = "/metadata/annotations/volume.beta.kubernetes.io~1storage-class";
    or(object, annotation, text(object, "/spec/storageClassName"))
}

pub fn phase_or_terminating(object: &Value) -> &str {
    match object.pointer("/metadata/deletionTimestamp") {
        Some(_) => "Terminating",
        None => text(object, "/status/phase"),
    }
}

/// Lists the used and hard amounts of a quota: those of resources named `limits.…` if `limits`,
/// else of all others.
pub fn quota(object: &Value, limits: bool) -> String {
    let mut entries: Vec<String> = members(object, "/status/hard")
        .filter(|(name, _)| name.starts_with("limits.") == limits)
        .map(|(name, hard)| {
            let used = object.pointer("/status/used").and_then(|used| used.get(name));
            let used = used.and_then(quantity::canonical).unwrap_or_else(|| "0".to_owned());
            format!("{name}: {used}/{}", hard.as_str().unwrap_or_default())
        })
        .collect();
    entries.sort();
    entries.join(", ")
}

/// Renders current and wanted values of an autoscaler's metrics: two of them, and the number of the
/// others.
pub fn hpa_targets(hpa: &Value) -> String {
    let current = list(hpa, "/status/currentMetrics");
    let targets: Vec<String> = list(hpa, "/spec/metrics")
        .iter()
        .enumerate()
        .map(|(at, metric)| hpa_target(metric, current.get(at).unwrap_or(&Value::Null)))
        .collect();
    if targets.is_empty() {
        return "<none>".to_owned();
    }
    let shown = targets[..targets.len().min(2)].join(", ");
    match targets.len() {
        count @ 3.. => format!("{shown} + {} more...", count - 2),
        _ => shown,
    }
}

/// Formats the current and target value of an autoscaler's metric, such as `cpu: 50%/80%`.
fn hpa_target(metric: &Value, status: &Value) -> String {
    let (source, named) = match text(metric, "/type") {
        "External" => ("external", false),
        "Pods" => ("pods", false),
        "Object" => ("object", false),
        "Resource" => ("resource", true),
        "ContainerResource" => ("containerResource", true),
        _ => return "<unknown type>".to_owned(),
    };
    let prefix = match named {
        true => format!("{}: ", text(metric, &format!("/{source}/name"))),
        false => String::new(),
    };
    let now = |member: &str| or(status, &format!("/{source}/current/{member}"), "<unknown>");
    let target = |member: &str| text(metric, &format!("/{source}/target/{member}"));
    if !target("averageValue").is_empty() {
        let average = if matches!(source, "external" | "object") { " (avg)" } else { "" };
        return format!("{prefix}{}/{}{average}", now("averageValue"), target("averageValue"));
    }
    if !named {
        return format!("{}/{}", now("value"), target("value"));
    }
    let percent = |value: Option<i64>, other: &str| {
        value.map_or_else(|| other.to_owned(), |percent| format!("{percent}%"))
    };
    let current = int(status, &format!("/{source}/current/averageUtilization"));
    let wanted = int(metric, &format!("/{source}/target/averageUtilization"));
    format!("{prefix}{}/{}", percent(current, "<unknown>"), percent(wanted, "<auto>"))
}

/// Returns whether a PodCertificateRequest is answered, and how.
pub fn pod_request_state(request: &Value) -> &str {
    let conditions = list(request, "/status/conditions").iter().rev();
    let mut states = conditions.map(|condition| text(condition, "/type"));
    states.find(|state| ["Issued", "Denied", "Failed"].contains(state)).unwrap_or("Pending")
}

/// Renders the state of a certificate request from its conditions and its certificate.
pub fn csr_condition(csr: &Value) -> String {
    let has = |name: &str| list(csr, "/status/conditions").iter().any(|c| text(c, "/type") == name);
    let mut status = match (has("Denied"), has("Approved")) {
        (true, _) => "Denied",
        (_, true) => "Approved",
        _ => "Pending",
    }
    .to_owned();
    if has("Failed") {
        status.push_str(",Failed");
    }
    if !text(csr, "/status/certificate").is_empty() {
        status.push_str(",Issued");
    }
    status
}

/// Formats the controller of a ControllerRevision, such as `deployment.apps/web`.
pub fn controller(object: &Value) -> String {
    let owners = list(object, "/metadata/ownerReferences");
    let Some(owner) = owners.iter().find(|owner| truth(owner, "/controller")) else {
        return "<none>".to_owned();
    };
    let kind = text(owner, "/kind").to_lowercase();
    match text(owner, "/apiVersion").split_once('/') {
        Some((group, _)) => format!("{kind}.{group}/{}", text(owner, "/name")),
        None => format!("{kind}/{}", text(owner, "/name")),
    }
}

/// Returns the subjects of one kind of a binding.
pub fn subjects(binding: &Value, kind: &str) -> String {
    let of_kind = list(binding, "/subjects").iter().filter(|s| text(s, "/kind") == kind);
    let names = of_kind.map(|subject| match text(subject, "/namespace") {
        "" => text(subject, "/name").to_owned(),
        namespace => format!("{namespace}/{}", text(subject, "/name")),
    });
    names.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_ingress_shows_three_hosts() {
        for (hosts, expected) in [
            (&[][..], "*"),
            (&["", ""], "*"),
            (&["", "a"], "a"),
            (&["a", "", "b", "", "c"], "a,b,c"),
            (&["a", "b", "c"], "a,b,c"),
            (&["a", "b", "c", ""], "a,b,c + 1 more..."),
            (&["", "a", "b", "c"], "a,b,c"),
            (&["", "a", "b", "c", "d"], "a,b,c + 2 more..."),
        ] {
            let rules: Vec<Value> = hosts.iter().map(|host| json!({ "host": host })).collect();
            let ingress = json!({ "spec": { "rules": rules } });
            assert_eq!(ingress_hosts(&ingress), expected, "{hosts:?}");
        }
    }
}
