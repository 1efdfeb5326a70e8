//! The pods of a Service, the ports that a pod offers, and the Services that a change of a pod
//! queues. Upstream: `k8s.io/endpointslice/util`, `pkg/api/v1/endpoints`.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::cache::Lister;
use crate::controllers::runner::{Change, Mapper};
use crate::lookup::Lookup;
use crate::objects::{
    Istr, Labels, NamedPort, Object, ObjectKey, Pod, Service, ServicePort, TargetPort,
};

/// Returns the pods that `service` selects, in no order.
pub fn pods_of(pods: &Lister<Pod>, service: &Service) -> Vec<Arc<Pod>> {
    let mut all = pods.in_namespace(&service.meta.namespace);
    // Pods of one owner share one map, so the last answer often holds for the next pod.
    let mut last: Option<(Labels, bool)> = None;
    all.retain(|pod| {
        let labels = &pod.meta.labels;
        match &last {
            Some((same, selected)) if same == labels => *selected,
            _ => {
                let selected = service.selects(labels);
                last = Some((labels.clone(), selected));
                selected
            }
        }
    });
    all
}

/// Returns whether a pod belongs into endpoints: it has an address and has not ended. Upstream:
/// `ShouldPodBeInEndpoints`.
pub fn belongs(pod: &Pod, include_terminating: bool) -> bool {
    !pod.is_terminal()
        && pod.ips().next().is_some()
        && (include_terminating || !pod.meta.is_being_deleted())
}

/// Returns the pod's host name in DNS if its subdomain is `service`. Upstream: `ShouldSetHostname`.
pub fn hostname<'a>(pod: &'a Pod, service: &Service) -> Option<&'a Istr> {
    let hostname = pod.hostname()?;
    (*pod.spec.shape.subdomain == *service.meta.name).then_some(hostname)
}

/// A Service's port that a pod offers.
pub struct OfferedPort<'a> {
    /// The port's index in the Service.
    pub at: usize,
    pub port: &'a ServicePort,
    /// The port's number in the pod.
    pub number: i32,
}

/// Returns the ports of a Service that `pod` offers, in the Service's order. If several ports of
/// the pod have one name, the first one counts.
/// Upstream: `FindPort`.
pub fn offered_ports<'a>(service: &'a Service, pod: &Pod) -> Vec<OfferedPort<'a>> {
    let ports = &service.spec.ports;
    let is_named = |port: &ServicePort| matches!(port.target_port, TargetPort::Name(_));
    let named: Vec<&NamedPort> = match ports.iter().any(is_named) {
        true => pod.named_ports().collect(),
        false => Vec::new(),
    };
    let by_key = Lookup::new(&named, |port| &port.key);
    let number = |port: &ServicePort| match &port.target_port {
        TargetPort::Number(number) => Some(*number),
        TargetPort::Name(name) => Some(by_key.get(&(name.clone(), port.protocol.clone()))?.number),
    };
    let offered = |(at, port)| Some(OfferedPort { at, port, number: number(port)? });
    ports.iter().enumerate().filter_map(offered).collect()
}

/// Queues the Services of a changed pod, after `period`: those that select it if endpoints show the
/// change, and those that selected it before if its labels changed.
/// Upstream: `GetPodUpdateProjectionKey`, `GetServicesToUpdate`.
pub fn of_pods(services: Lister<Service>, period: Duration) -> impl Mapper<Pod, ObjectKey> {
    move |change, queue| {
        let selecting = |pod: &Pod| -> HashSet<ObjectKey> {
            let services = services.in_namespace(&pod.meta.namespace);
            let selects = |service: &&Arc<Service>| service.selects(&pod.meta.labels);
            services.iter().filter(selects).map(|service| service.meta.key()).collect()
        };
        let queued = match change {
            Change::Resync { .. } => return,
            Change::Added { new, .. } => selecting(new),
            Change::Deleted(deleted) => selecting(deleted.object()),
            Change::Updated { old, new } => {
                // If only the set of Services changes, those that select both are not concerned.
                match (endpoint_changed(old, new), changes_services(old, new)) {
                    (false, false) => return,
                    (true, false) => selecting(new),
                    (true, true) => &selecting(old) | &selecting(new),
                    (false, true) => &selecting(old) ^ &selecting(new),
                }
            }
        };
        for service in queued {
            queue.add_after(service, period);
        }
    }
}

/// Returns whether the set of Services that show the pod may have changed.
fn changes_services(old: &Pod, new: &Pod) -> bool {
    old.meta.labels != new.meta.labels
        || old.hostname() != new.hostname()
        || old.spec.shape.subdomain != new.spec.shape.subdomain
}

/// Returns whether the change of the pod changes the endpoints of its Services.
fn endpoint_changed(old: &Pod, new: &Pod) -> bool {
    // Every change of a terminating pod counts: readiness may not show its end.
    old.meta().is_being_deleted()
        || new.meta().is_being_deleted()
        || old.is_ready() != new.is_ready()
        || !old.ips().eq(new.ips())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cache::{Deleted, Indexer};
    use crate::clock::FakeClock;
    use crate::controllers::Queue;
    use crate::objects::Timestamp;

    fn pod(version: u64, labels: Value, ready: bool, ip: &str) -> Arc<Pod> {
        let json = json!({
            "metadata": {
                "namespace": "ns", "name": "p", "resourceVersion": version.to_string(),
                "labels": labels,
            },
            "status": {
                "podIPs": ip.split(' ').map(|ip| json!({"ip": ip})).collect::<Vec<_>>(),
                "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
            },
        });
        Arc::new(serde_json::from_value(json).unwrap())
    }

    #[test]
    fn pods_queue_the_services_that_show_them() {
        let services = Arc::new(Indexer::new());
        for (name, selector) in
            [("a", json!({"a": "1"})), ("b", json!({"b": "1"})), ("none", json!({}))]
        {
            let json = json!({
                "metadata": {"namespace": "ns", "name": name}, "spec": {"selector": selector},
            });
            services.insert(Arc::new(serde_json::from_value(json).unwrap()));
        }
        let mut mapper = of_pods(Lister::new(services), Duration::ZERO);
        let queue = Queue::for_test(FakeClock::new(Timestamp::from_secs(0)));
        let mut queues = |change: Change<'_, Pod>| {
            mapper(change, &queue);
            let mut names: Vec<String> = queue.drain().iter().map(|k| k.name.to_string()).collect();
            names.sort();
            names
        };
        let (a, b, both) = (json!({"a": "1"}), json!({"b": "1"}), json!({"a": "1", "b": "1"}));
        let of_a = pod(1, a.clone(), true, "10.0.0.1");
        assert_eq!(queues(Change::Added { new: &of_a, initial: true }), ["a"]);
        assert_eq!(queues(Change::Deleted(&Deleted::Known(of_a.clone()))), ["a"]);
        assert!(queues(Change::Resync { object: &of_a }).is_empty());
        for (new, queued) in [
            (pod(2, a.clone(), true, "10.0.0.1"), vec![]),
            (pod(2, a.clone(), false, "10.0.0.1"), vec!["a"]),
            (pod(2, a.clone(), true, "10.0.0.2"), vec!["a"]),
            (pod(2, a.clone(), true, "10.0.0.1 fd00::1"), vec!["a"]),
            (pod(2, a.clone(), true, "fd00::1"), vec!["a"]),
            (pod(2, b.clone(), true, "10.0.0.1"), vec!["a", "b"]),
            (pod(2, both.clone(), true, "10.0.0.1"), vec!["b"]),
            (pod(2, both.clone(), false, "10.0.0.1"), vec!["a", "b"]),
            (pod(2, json!({}), true, "10.0.0.1"), vec!["a"]),
        ] {
            assert_eq!(queues(Change::Updated { old: &of_a, new: &new }), queued, "{new:?}");
        }
        let going = |version| {
            let mut pod = Arc::unwrap_or_clone(pod(version, a.clone(), false, "10.0.0.1"));
            pod.meta.deletion_timestamp = Some(Timestamp::from_secs(1));
            Arc::new(pod)
        };
        assert_eq!(queues(Change::Updated { old: &going(2), new: &going(3) }), ["a"]);
    }
}
