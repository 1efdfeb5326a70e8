//! From a Service's pods and slices to what is written. Upstream:
//! `k8s.io/endpointslice.Reconciler`.

use std::collections::HashMap;
use std::sync::Arc;

use super::desired::{self, Shape, address_types, is_owned};
use super::distribution;
use super::metrics::{self, ADDED, CHANGED_PER_SYNC, Distributions, REMOVED};
use super::pack::{Plan, pack};
use super::topology::{self, HintEvent, TopologyCache};
use crate::cache::Lister;
use crate::client::{Client, Delete};
use crate::controllers::Error;
use crate::controllers::services::endpoint_set::EndpointSet;
use crate::controllers::services::endpoint_writes::{Body, LAST_CHANGE, relabelled};
use crate::controllers::services::port_hash::in_order;
use crate::controllers::services::service_pods::belongs;
use crate::controllers::services::slice_counts::{Efficiency, SliceCounts};
use crate::controllers::services::slice_tracker::SliceTracker;
use crate::events::{ObjectReference, Recorder};
use crate::objects::{
    Endpoint, EndpointSlice, Istr, Node, ObjectKey, Pod, Service, SlicePort, Timestamp,
};

/// Writes the slices of Services; the controller calls [`reconcile`](Reconciler::reconcile).
pub struct Reconciler {
    pub client: Client,
    pub recorder: Recorder,
    pub nodes: Lister<Node>,
    /// The most endpoints in one slice.
    pub max: usize,
    pub counts: SliceCounts,
    pub distributions: Distributions,
    pub tracker: Arc<SliceTracker>,
    pub topology: Arc<TopologyCache>,
}

/// The endpoints that offer the same ports.
struct Group {
    ports: Vec<SlicePort>,
    endpoints: Vec<Endpoint>,
}

impl Reconciler {
    /// Drops the counts and the hints of a deleted Service.
    pub fn forget(&self, service: &ObjectKey) {
        self.counts.remove(service);
        self.distributions.set(service, None);
        self.topology.forget(service);
    }

    /// Makes the Service's slices show `pods`. `existing`: its slices that this controller manages
    /// and that are not being deleted. `changed_at`: the time for the annotation `LAST_CHANGE`.
    pub async fn reconcile(
        &self,
        service: &Service,
        pods: &[Arc<Pod>],
        existing: Vec<Arc<EndpointSlice>>,
        changed_at: Option<Timestamp>,
    ) -> Result<(), Error> {
        let mut errors = Vec::new();
        let types = address_types(service);
        let (supported, other): (Vec<_>, Vec<_>) =
            existing.into_iter().partition(|slice| types.contains(&slice.address_type));
        for slice in &other {
            self.topology.remove_hints(&service.meta.key(), &slice.address_type);
        }
        for address_type in &types {
            let of_type = supported.iter().filter(|slice| slice.address_type == *address_type);
            let existing: Vec<_> = of_type.cloned().collect();
            let (groups, faults) = self.group_endpoints(service, pods, address_type);
            errors.extend(faults);
            let plan = self.plan(service, address_type, groups, existing);
            let (plan, events) = self.add_hints(service, address_type, plan);
            if let Err(error) = self.write(service, plan, changed_at).await {
                errors.push(error);
            }
            let about = ObjectReference::to(service);
            for HintEvent { event_type, reason, message } in events {
                self.recorder.event(&about, event_type, reason, message);
            }
        }
        for slice in other {
            if let Err(error) = self.delete("error deleting", service, &slice).await {
                errors.push(error);
            }
        }
        Error::many(errors).map_or(Ok(()), Err)
    }

    /// Groups the endpoints of the pods by the ports that they offer. Returns them with an error
    /// for each pod that was skipped.
    fn group_endpoints(
        &self,
        service: &Service,
        pods: &[Arc<Pod>],
        address_type: &str,
    ) -> (Vec<Group>, Vec<Error>) {
        let (mut groups, mut errors) = (Vec::<Group>::new(), Vec::new());
        let mut places: HashMap<Vec<SlicePort>, usize> = HashMap::new();
        let mut nodes: HashMap<&Istr, Option<Arc<Node>>> = HashMap::new();
        // Pods that are alike offer the same: what the last one offered, and the group it went to.
        let mut last: Option<(Vec<SlicePort>, usize)> = None;
        for pod in pods.iter().filter(|pod| belongs(pod, true)) {
            let offered = desired::ports(service, pod);
            let at = match &last {
                Some((same, at)) if *same == offered => *at,
                _ => {
                    let ports = in_order(offered.clone());
                    let at = *places.entry(ports).or_insert_with_key(|ports| {
                        groups.push(Group { ports: ports.clone(), endpoints: Vec::new() });
                        groups.len() - 1
                    });
                    last = Some((offered, at));
                    at
                }
            };
            let name = &pod.spec.node_name;
            let node =
                nodes.entry(name).or_insert_with(|| self.nodes.get(&ObjectKey::cluster(name)));
            if node.is_none() && !service.spec.publish_not_ready_addresses {
                // A pod of no Node will be collected; until then it must not hold up the others.
                errors.push(Error::other(format!(
                    "skipping Pod {} for Service {}: Node {name} Not Found",
                    pod.meta.name,
                    service.meta.key()
                )));
                continue;
            }
            groups[at].endpoints.extend(desired::endpoint(
                pod,
                node.as_deref(),
                service,
                address_type,
            ));
        }
        (groups, errors)
    }

    /// Plans which slices are to hold `groups`, without hints, and records the numbers in metrics.
    /// Upstream: `reconcileByAddressType`.
    fn plan(
        &self,
        service: &Service,
        address_type: &Istr,
        groups: Vec<Group>,
        existing: Vec<Arc<EndpointSlice>>,
    ) -> Plan {
        let shape = Shape::new(service, address_type);
        let mut plan = Plan::default();
        let mut by_ports: HashMap<Vec<SlicePort>, Vec<Arc<EndpointSlice>>> = HashMap::new();
        for slice in existing {
            if is_owned(&slice, service) {
                let ports = in_order(slice.ports.clone());
                by_ports.entry(ports).or_default().push(slice);
            } else {
                plan.delete.push(slice);
            }
        }
        let mut efficiency: Vec<Efficiency> = Vec::new();
        for Group { ports, endpoints } in groups {
            let existing = by_ports.remove(&ports).unwrap_or_default();
            let desired = EndpointSet::new(endpoints);
            let count = desired.len();
            let packed = pack(&shape, &ports, &existing, desired, self.max);
            let slices = existing.len() + packed.create.len() - packed.delete.len();
            efficiency.push((count, slices));
            plan.append(packed);
        }
        // Ports that no endpoint has any more.
        plan.delete.extend(by_ports.into_values().flatten());

        // A Service without endpoints keeps one empty slice, the placeholder.
        if plan.create.is_empty() && plan.update.is_empty() && plan.unchanged.is_empty() {
            match &plan.delete[..] {
                [only] if shape.is_placeholder(only) => plan.unchanged.append(&mut plan.delete),
                _ => plan.create.push(shape.new_slice(&[])),
            }
            efficiency.push((0, 1));
        }
        ADDED.observe(plan.added as f64);
        REMOVED.observe(plan.removed as f64);
        self.counts.set(&service.meta.key(), efficiency);
        plan
    }

    /// Adds the hints that the Service asks for to the plan, or removes its hints. Returns the plan
    /// with the events about them.
    fn add_hints(
        &self,
        service: &Service,
        address_type: &str,
        mut plan: Plan,
    ) -> (Plan, Vec<HintEvent>) {
        let key = service.meta.key();
        if topology::is_requested(service) {
            self.distributions.set(&key, None);
            let events = self.topology.add_hints(&key, address_type, &mut plan);
            return (plan, events);
        }
        let mut events = Vec::new();
        if self.topology.has_populated_hints(&key) {
            let why = "Topology Aware Hints has been disabled";
            events.push(HintEvent::disabled(why, address_type));
        }
        self.topology.remove_hints(&key, address_type);
        let near = distribution::requested(service);
        let asked = service.spec.traffic_distribution.as_ref().filter(|_| near.is_some());
        self.distributions.set(&key, asked);
        match near {
            Some(near) => distribution::set_hints(&mut plan, near),
            None => distribution::remove_hints(&mut plan),
        }
        (plan, events)
    }

    /// Creates, updates and deletes slices by the plan.
    /// Upstream: `finalize`.
    async fn write(
        &self,
        service: &Service,
        mut plan: Plan,
        changed_at: Option<Timestamp>,
    ) -> Result<(), Error> {
        recycle(service, &mut plan);
        let key = service.meta.key();
        let written = plan.create.len() + plan.update.len() + plan.delete.len();
        let changed_at = changed_at.map(|at| at.to_string());
        for slice in plan.slices_to_write() {
            slice.meta.annotations =
                relabelled(&slice.meta.annotations, &[(LAST_CHANGE, changed_at.as_deref())]);
        }
        // A Service that is being deleted gets no new slices: they would stay after it.
        let create = if service.meta.is_being_deleted() { &[] } else { &plan.create[..] };
        for slice in create {
            match self.client.create(&key.namespace, &Body::new(slice)).await {
                Ok(created) => self.tracker.record_write(&created),
                // It would fail until the Service is deleted too.
                Err(error) if error.is_namespace_terminating() => return Ok(()),
                Err(error) => {
                    let doing = format!("failed to create EndpointSlice for Service {key}");
                    return Err(Error::during(doing, error));
                }
            }
            metrics::count_change("create");
        }
        for slice in &plan.update {
            match self.client.update(&slice.meta.key(), &Body::new(slice)).await {
                Ok(updated) => self.tracker.record_write(&updated),
                Err(error) => {
                    let name = &slice.meta.name;
                    let doing = format!("failed to update {name} EndpointSlice for Service {key}");
                    return Err(Error::during(doing, error));
                }
            }
            metrics::count_change("update");
        }
        for slice in &plan.delete {
            self.delete("failed to delete", service, slice).await?;
        }
        let mode = if topology::is_requested(service) { "Auto" } else { "Disabled" };
        let asked = service.spec.traffic_distribution.as_deref();
        let near = distribution::requested(service).filter(|_| mode == "Disabled");
        let distribution = near.and(asked).unwrap_or_default();
        let changed = CHANGED_PER_SYNC.with_label_values(&[mode, distribution]);
        changed.observe(written as f64);
        Ok(())
    }

    /// Deletes a slice; succeeds if it is gone. `failed`: how the text of an error begins.
    async fn delete(
        &self,
        failed: &str,
        service: &Service,
        slice: &EndpointSlice,
    ) -> Result<(), Error> {
        match self.client.delete::<EndpointSlice>(&slice.meta.key(), Delete::new()).await {
            Ok(()) => self.tracker.expect_deletion(slice),
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => {
                let (name, key) = (&slice.meta.name, service.meta.key());
                let doing = format!("{failed} {name} EndpointSlice for Service {key}");
                return Err(Error::during(doing, error));
            }
        }
        metrics::count_change("delete");
        Ok(())
    }
}

/// Turns deletions and creations of slices into updates, pair by pair, where the address type
/// allows it. Only slices of this very Service are reused: those of an earlier one of its name are
/// the garbage collector's. Upstream: `recycleSlices`.
fn recycle(service: &Service, plan: &mut Plan) {
    let Plan { create, update, delete, .. } = plan;
    delete.retain(|old| {
        let fits = |new: &EndpointSlice| new.address_type == old.address_type;
        if !create.last().is_some_and(fits) || !is_owned(old, service) {
            return true;
        }
        if let Some(mut new) = create.pop() {
            new.meta.name = old.meta.name.clone();
            update.push(new);
        }
        false
    });
}
