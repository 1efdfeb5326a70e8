//! Hints for Services that ask for topology mode `Auto`: each zone gets endpoints in proportion to
//! its CPUs. Upstream: `k8s.io/endpointslice/topologycache`.

use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::distribution;
use super::pack::Plan;
use crate::events::EventType;
use crate::objects::{
    Endpoint, EndpointHints, EndpointSlice, Hint, Istr, Labels, Node, ObjectKey, Quantity, Service,
};

/// How much more than its part of the traffic an endpoint may get. Upstream: `overloadThreshold`.
const OVERLOAD: f64 = 0.2;

/// Endpoints by the zone that they are meant for.
type ByZone = BTreeMap<Istr, i64>;

/// Returns whether the Service asks for topology mode `Auto`. If it has both annotations, the older
/// one decides. Upstream: `hintsEnabled`.
pub fn is_requested(service: &Service) -> bool {
    let annotations = &service.meta.annotations;
    let mode = annotations
        .get("service.kubernetes.io/topology-aware-hints")
        .or_else(|| annotations.get("service.kubernetes.io/topology-mode"));
    matches!(mode, Some("Auto" | "auto"))
}

/// An event about a Service's hints. Upstream: `EventBuilder`.
#[derive(Debug, PartialEq)]
pub struct HintEvent {
    pub event_type: EventType,
    pub reason: &'static str,
    pub message: String,
}

impl HintEvent {
    /// Makes the event about hints that are removed because of `why`.
    pub fn disabled(why: &str, address_type: &str) -> HintEvent {
        HintEvent {
            event_type: EventType::Warning,
            reason: "TopologyAwareHintsDisabled",
            message: format!("{why}, addressType: {address_type}"),
        }
    }

    /// Makes the event about the first hints of a Service.
    fn enabled(address_type: &str) -> HintEvent {
        HintEvent {
            event_type: EventType::Normal,
            reason: "TopologyAwareHintsEnabled",
            message: format!("Topology Aware Hints has been enabled, addressType: {address_type}"),
        }
    }
}

/// How CPUs are spread over zones, and the endpoints of each Service that has hints.
#[derive(Default)]
pub struct TopologyCache(Mutex<State>);

#[derive(Default)]
struct State {
    /// Each zone's part of all CPUs; `None`: not known of every Node, or there is one zone only.
    ratios: Option<BTreeMap<Istr, f64>>,
    /// The number of endpoints with a hint for each zone, by Service and address type.
    hinted: HashMap<ObjectKey, BTreeMap<Istr, ByZone>>,
    /// The Services for which an event has said that they have hints.
    populated: HashSet<ObjectKey>,
}

/// How many endpoints a zone should have and may have.
#[derive(Debug, PartialEq)]
struct Allocation {
    desired: f64,
    maximum: i64,
}

impl TopologyCache {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Recomputes the zones' parts of the CPUs.
    pub fn set_nodes(&self, nodes: &[Arc<Node>]) {
        self.state().ratios = cpu_ratios(nodes);
    }

    /// Returns the Services of which a zone has too few endpoints. Upstream:
    /// `GetOverloadedServices`.
    pub fn overloaded(&self) -> Vec<ObjectKey> {
        let state = self.state();
        let is_overloaded = |zones: &ByZone| is_overloaded(zones, state.ratios.as_ref());
        let services = state.hinted.iter();
        let overloaded = services.filter(|(_, types)| types.values().any(is_overloaded));
        overloaded.map(|(service, _)| service.clone()).collect()
    }

    pub fn has_populated_hints(&self, service: &ObjectKey) -> bool {
        self.state().populated.contains(service)
    }

    /// Forgets the hints of a Service for one address type. The next hints that it gets are
    /// reported by an event again.
    pub fn remove_hints(&self, service: &ObjectKey, address_type: &str) {
        let mut state = self.state();
        if let Some(types) = state.hinted.get_mut(service) {
            types.remove(address_type);
            if types.is_empty() {
                state.hinted.remove(service);
            }
        }
        state.populated.remove(service);
    }

    /// Forgets a Service with all its address types.
    pub fn forget(&self, service: &ObjectKey) {
        let mut state = self.state();
        state.hinted.remove(service);
        state.populated.remove(service);
    }

    /// Sets the hints of ready endpoints in slices that will be written, and returns the events
    /// about them. Slices whose hints do not fit any more are updated too. Where that is
    /// impossible, all hints are removed and the event gives the reason. Upstream: `AddHints`.
    pub fn add_hints(
        &self,
        service: &ObjectKey,
        address_type: &str,
        plan: &mut Plan,
    ) -> Vec<HintEvent> {
        let cannot = |why: &str, plan: &mut Plan| {
            log::info!("{service}: no topology hints for {address_type}: {why}");
            self.remove_hints(service, address_type);
            distribution::remove_hints(plan);
            vec![HintEvent::disabled(why, address_type)]
        };
        let count = ready_endpoints(plan);
        let allocations = allocate(self.state().ratios.as_ref(), count);
        let allocations = match allocations {
            Ok(allocations) => allocations,
            Err(why) => return cannot(&why, plan),
        };
        let mut hinted = ByZone::new();
        plan.update_also(|slice| match hints_of(slice, &hinted, &allocations) {
            None => true,
            Some(zones) => {
                zones.into_iter().for_each(|(zone, n)| *hinted.entry(zone).or_default() += n);
                false
            }
        });

        // Each endpoint begins with its own zone.
        let has_zones = |slice: &EndpointSlice| {
            slice.endpoints.iter().filter(|e| e.is_ready()).all(|e| zone_of(e).is_some())
        };
        if !plan.create.iter().chain(&plan.update).all(has_zones) {
            return cannot("One or more endpoints do not have a zone specified", plan);
        }
        for slice in plan.slices_to_write() {
            for endpoint in slice.endpoints.iter_mut().filter(|endpoint| endpoint.is_ready()) {
                if let Some(zone) = zone_of(endpoint) {
                    *hinted.entry(zone.clone()).or_default() += 1;
                    endpoint.hints = Some(for_zone(zone));
                }
            }
        }
        let (mut giving, mut receiving) = giving_and_receiving(&allocations, &hinted);
        redistribute(plan.slices_to_write(), &mut giving, &mut receiving, &mut hinted);
        if hinted.is_empty() {
            return cannot("No hints allocated for zones", plan);
        }
        let mut state = self.state();
        let had_hints = !state.populated.insert(service.clone());
        state.hinted.entry(service.clone()).or_default().insert(address_type.into(), hinted);
        if had_hints { Vec::new() } else { vec![HintEvent::enabled(address_type)] }
    }
}

/// Returns the zone of an endpoint; `None` if it is empty.
fn zone_of(endpoint: &Endpoint) -> Option<Istr> {
    endpoint.zone.clone().filter(|zone| !zone.is_empty())
}

/// Makes the hints for one zone.
fn for_zone(zone: Istr) -> EndpointHints {
    EndpointHints { for_zones: vec![Hint { name: zone }], for_nodes: Vec::new() }
}

/// Counts the ready endpoints in all slices of the plan.
fn ready_endpoints(plan: &Plan) -> i64 {
    let written = plan.create.iter().chain(&plan.update);
    let slices = written.chain(plan.unchanged.iter().map(|slice| &**slice));
    let ready = slices.flat_map(|slice| &slice.endpoints).filter(|e| e.is_ready()).count();
    i64::try_from(ready).unwrap_or(i64::MAX)
}

/// Returns the part of each zone in the CPUs of the ready nodes, without those of the control
/// plane; `None` with fewer than two zones, or if one of these nodes has no zone or CPU.
/// Upstream: `SetNodes`.
fn cpu_ratios(nodes: &[Arc<Node>]) -> Option<BTreeMap<Istr, f64>> {
    let excluded = |labels: &Labels| {
        ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"]
            .iter()
            .any(|label| labels.contains_key(label))
    };
    let (mut zones, mut total) = (BTreeMap::<Istr, Quantity>::new(), Quantity::default());
    for node in nodes {
        if excluded(&node.meta.labels) || !node.is_ready() {
            continue;
        }
        let cpu = node.status.allocatable_cpu;
        if !cpu.is_positive() {
            return None;
        }
        let zone_cpu = zones.entry(node.zone()?.into()).or_default();
        *zone_cpu = *zone_cpu + cpu;
        total = total + cpu;
    }
    let millis = |cpu: Quantity| cpu.milli_value() as f64;
    if zones.len() < 2 {
        return None;
    }
    let ratio = |cpu: Quantity| millis(cpu) / millis(total);
    Some(zones.into_iter().map(|(zone, cpu)| (zone, ratio(cpu))).collect())
}

/// Computes how many of `count` endpoints each zone is to have; an error with the reason if that is
/// impossible.
/// Upstream: `getAllocations`.
fn allocate(
    ratios: Option<&BTreeMap<Istr, f64>>,
    count: i64,
) -> Result<BTreeMap<Istr, Allocation>, String> {
    let Some(ratios) = ratios else {
        return Err(
            "Insufficient Node information: allocatable CPU or zone not specified on one or \
                    more nodes"
                .to_owned(),
        );
    };
    let numbers = format!("({count} endpoints, {} zones)", ratios.len());
    if ratios.len() as i64 > count {
        return Err(format!("Insufficient number of endpoints {numbers}"));
    }
    let desired = |ratio: f64| ratio * count as f64;
    let minimum = |ratio: f64| (desired(ratio) * (1.0 / (1.0 + OVERLOAD))).ceil();
    let spare = count - ratios.values().map(|ratio| minimum(*ratio) as i64).sum::<i64>();
    if spare < 0 {
        return Err(format!(
            "Unable to allocate minimum required endpoints to each zone without exceeding overload \
             threshold {numbers}"
        ));
    }
    let allocation = |ratio: f64| Allocation {
        desired: desired(ratio).max(minimum(ratio)),
        maximum: minimum(ratio) as i64 + spare,
    };
    Ok(ratios.iter().map(|(zone, ratio)| (zone.clone(), allocation(*ratio))).collect())
}

/// Counts the hints of a slice by zone. `None` if the slice has to be updated: a hint is missing or
/// of a zone that needs none, or with those `before` a zone would have too many.
/// Upstream: `getHintsByZone`.
fn hints_of(
    slice: &EndpointSlice,
    before: &ByZone,
    allocations: &BTreeMap<Istr, Allocation>,
) -> Option<ByZone> {
    let mut zones = ByZone::new();
    for endpoint in slice.endpoints.iter().filter(|endpoint| endpoint.is_ready()) {
        let hints = endpoint.hints.as_ref()?;
        if hints.for_zones.is_empty() {
            return None;
        }
        for Hint { name: zone } in &hints.for_zones {
            allocations.get(zone)?;
            *zones.entry(zone.clone()).or_default() += 1;
        }
    }
    for (zone, count) in &zones {
        let before = before.get(zone).copied().unwrap_or(0);
        if before + count > allocations.get(zone)?.maximum {
            return None;
        }
    }
    Some(zones)
}

/// Returns how many endpoints each zone with too many gives, and then how many each zone with too
/// few receives.
/// Upstream: `getGivingAndReceivingZones`.
fn giving_and_receiving(
    allocations: &BTreeMap<Istr, Allocation>,
    hinted: &ByZone,
) -> (ByZone, ByZone) {
    let mut surplus: BTreeMap<Istr, f64> = BTreeMap::new();
    let mut shortage: BTreeMap<Istr, f64> = BTreeMap::new();
    for (zone, Allocation { desired, .. }) in allocations {
        let has = hinted.get(zone).copied().unwrap_or(0) as f64;
        if has > *desired {
            surplus.insert(zone.clone(), has - desired);
        } else if has < *desired {
            shortage.insert(zone.clone(), desired - has);
        }
    }
    let (mut giving, mut receiving) = (ByZone::new(), ByZone::new());
    while let (Some((from, gives)), Some((to, takes))) =
        (largest(&mut surplus), largest(&mut shortage))
    {
        // Upstream's limits: neither zone moves less than half an endpoint, and one of them moves a
        // whole one.
        if (*gives < 1.0 && *takes < 1.0) || *gives < 0.5 || *takes < 0.5 {
            break;
        }
        *giving.entry(from).or_default() += 1;
        *receiving.entry(to).or_default() += 1;
        *gives -= 1.0;
        *takes -= 1.0;
    }
    (giving, receiving)
}

/// Returns the zone with the largest number above 0.
fn largest(zones: &mut BTreeMap<Istr, f64>) -> Option<(Istr, &mut f64)> {
    let positive = zones.iter_mut().filter(|(_, number)| **number > 0.0);
    let most = positive.reduce(|most, next| if *next.1 > *most.1 { next } else { most })?;
    Some((most.0.clone(), most.1))
}

/// Changes the hints of endpoints in giving zones to receiving zones, until one of the two runs
/// out.
/// Upstream: `redistributeHints`.
fn redistribute<'a>(
    slices: impl Iterator<Item = &'a mut EndpointSlice>,
    giving: &mut ByZone,
    receiving: &mut ByZone,
    hinted: &mut ByZone,
) {
    let endpoints = slices.flat_map(|slice| &mut slice.endpoints);
    for endpoint in endpoints.filter(|endpoint: &&mut Endpoint| endpoint.is_ready()) {
        let Some(from) = endpoint.zone.clone().filter(|zone| giving.contains_key(zone)) else {
            continue;
        };
        let Some(to) = receiving.keys().next().cloned() else { return };
        endpoint.hints = Some(for_zone(to.clone()));
        for (zones, zone) in [(&mut *giving, &from), (&mut *receiving, &to)] {
            if let Some(count) = zones.get_mut(zone) {
                *count -= 1;
            }
            zones.retain(|_, count| *count > 0);
        }
        *hinted.entry(from).or_default() -= 1;
        *hinted.entry(to).or_default() += 1;
    }
}

/// Returns whether some zone has fewer endpoints than its part in the CPUs needs. If the parts are
/// not known any more, every Service with hints counts: its sync removes them. Upstream:
/// `serviceOverloaded`.
fn is_overloaded(zones: &ByZone, ratios: Option<&BTreeMap<Istr, f64>>) -> bool {
    if zones.is_empty() {
        return false;
    }
    let Some(ratios) = ratios else { return true };
    let total = zones.values().sum::<i64>() as f64;
    ratios.iter().any(|(zone, ratio)| {
        let minimum = (total * ratio * (1.0 / (1.0 + OVERLOAD))).ceil() as i64;
        zones.get(zone).is_none_or(|count| *count < minimum)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(zone: &str, cpu: &str, ready: bool) -> Arc<Node> {
        Arc::new(
            serde_json::from_value(json!({
                "metadata": {"name": "n", "labels": {"topology.kubernetes.io/zone": zone}},
                "status": {
                    "allocatable": {"cpu": cpu},
                    "conditions": [
                        {"type": "Ready", "status": if ready { "True" } else { "False" }},
                    ],
                },
            }))
            .unwrap(),
        )
    }

    /// Ready endpoints, by their zones, each hinted at a zone or not.
    fn slice(endpoints: &[(&str, &str)]) -> EndpointSlice {
        let endpoint = |(zone, hint): &(&str, &str)| {
            let mut json = json!({"addresses": ["10.0.0.1"], "conditions": {"ready": true}});
            if !zone.is_empty() {
                json["zone"] = json!(zone);
            }
            if !hint.is_empty() {
                json["hints"] = json!({"forZones": [{"name": hint}]});
            }
            json
        };
        let endpoints: Vec<_> = endpoints.iter().map(endpoint).collect();
        serde_json::from_value(json!({"endpoints": endpoints})).unwrap()
    }

    fn hints(slices: &[EndpointSlice]) -> String {
        let hint = |endpoint: &Endpoint| match &endpoint.hints {
            Some(hints) => hints.for_zones[0].name.to_string(),
            None => "-".to_owned(),
        };
        slices.iter().flat_map(|slice| &slice.endpoints).map(hint).collect::<Vec<_>>().join("")
    }

    fn cache(zones: &[(&str, &str)]) -> TopologyCache {
        let cache = TopologyCache::default();
        let nodes: Vec<_> = zones.iter().map(|(zone, cpu)| node(zone, cpu, true)).collect();
        cache.set_nodes(&nodes);
        cache
    }

    #[test]
    fn nodes_count_by_their_cpus() {
        let mut control_plane = Arc::unwrap_or_clone(node("", "4", true));
        control_plane.meta.labels =
            [("node-role.kubernetes.io/control-plane", "")].into_iter().collect();
        let control_plane = Arc::new(control_plane);
        for (nodes, wanted) in [
            (
                vec![node("a", "1", true), node("b", "3", true)],
                Some(vec![("a", 0.25), ("b", 0.75)]),
            ),
            (
                vec![node("a", "500m", true), node("a", "500m", true), node("b", "1", true)],
                Some(vec![("a", 0.5), ("b", 0.5)]),
            ),
            (
                vec![node("a", "1", true), node("b", "1", true), control_plane],
                Some(vec![("a", 0.5), ("b", 0.5)]),
            ),
            (
                vec![node("a", "1", true), node("b", "1", true), node("", "1", false)],
                Some(vec![("a", 0.5), ("b", 0.5)]),
            ),
            (vec![node("a", "1", true), node("a", "1", true)], None),
            (vec![node("a", "1", true), node("b", "1", true), node("", "1", true)], None),
            (vec![node("a", "1", true), node("b", "0", true)], None),
            (vec![], None),
        ] {
            let found: Option<Vec<(String, f64)>> = cpu_ratios(&nodes)
                .map(|ratios| ratios.into_iter().map(|(z, r)| (z.to_string(), r)).collect());
            let wanted = wanted.map(|of| of.into_iter().map(|(z, r)| (z.to_owned(), r)).collect());
            assert_eq!(found, wanted, "{nodes:?}");
        }
    }

    #[test]
    fn endpoints_are_hinted_in_proportion() {
        let even = [("a", "1"), ("b", "1")];
        for (what, zones, endpoints, wanted) in [
            ("in balance", &even[..], vec!["a", "a", "b", "b"], Ok("aabb")),
            ("one zone gives", &even[..], vec!["a", "a", "a", "b"], Ok("baab")),
            ("a zone without endpoints receives", &even[..], vec!["a", "a", "a", "a"], Ok("bbaa")),
            (
                "nearly in balance",
                &even[..],
                vec!["a", "a", "b"],
                Err(
                    "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold (3 endpoints, 2 zones)",
                ),
            ),
            (
                "by size",
                &[("a", "1"), ("b", "3")],
                vec!["a", "a", "a", "b", "b", "b", "b", "b"],
                Ok("baabbbbb"),
            ),
            (
                "too few",
                &even[..],
                vec!["a"],
                Err("Insufficient number of endpoints (1 endpoints, 2 zones)"),
            ),
            (
                "no zone",
                &even[..],
                vec!["a", "b", ""],
                Err(
                    "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold (3 endpoints, 2 zones)",
                ),
            ),
            (
                "no zone for one",
                &even[..],
                vec!["a", "b", "a", ""],
                Err("One or more endpoints do not have a zone specified"),
            ),
            (
                "one zone",
                &[("a", "1")],
                vec!["a", "a"],
                Err(
                    "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes",
                ),
            ),
        ] {
            let cache = cache(zones);
            let endpoints: Vec<(&str, &str)> = endpoints.iter().map(|zone| (*zone, "x")).collect();
            let mut plan = Plan { create: vec![slice(&endpoints)], ..Plan::default() };
            let service = ObjectKey::new("ns", "s");
            let events = cache.add_hints(&service, "IPv4", &mut plan);
            match wanted {
                Ok(wanted) => {
                    assert_eq!(hints(&plan.create), wanted, "{what}");
                    assert_eq!(events, [HintEvent::enabled("IPv4")], "{what}");
                    assert!(cache.has_populated_hints(&service));
                    assert!(cache.overloaded().is_empty(), "{what}");
                    assert!(
                        cache.add_hints(&service, "IPv4", &mut plan).is_empty(),
                        "the event comes once"
                    );
                }
                Err(why) => {
                    assert_eq!(hints(&plan.create), "-".repeat(endpoints.len()), "{what}");
                    assert_eq!(events, [HintEvent::disabled(why, "IPv4")], "{what}");
                    assert!(!cache.has_populated_hints(&service));
                }
            }
        }
    }

    #[test]
    fn slices_whose_hints_still_fit_are_left_alone() {
        for (what, existing, updated) in [
            ("they fit", vec![("a", "a"), ("b", "b"), ("a", "a"), ("b", "b")], None),
            (
                "a hint is missing",
                vec![("a", "a"), ("b", ""), ("a", "a"), ("b", "b")],
                Some("abab"),
            ),
            (
                "of a zone that is gone",
                vec![("a", "a"), ("b", "z"), ("a", "a"), ("b", "b")],
                Some("abab"),
            ),
            (
                "too many for one zone",
                vec![("a", "a"), ("b", "a"), ("a", "a"), ("b", "a")],
                Some("abab"),
            ),
        ] {
            let cache = cache(&[("a", "1"), ("b", "1")]);
            let mut plan = Plan { unchanged: vec![Arc::new(slice(&existing))], ..Plan::default() };
            cache.add_hints(&ObjectKey::new("ns", "s"), "IPv4", &mut plan);
            let found = (!plan.update.is_empty()).then(|| hints(&plan.update));
            assert_eq!(found.as_deref(), updated, "{what}");
        }
    }

    #[test]
    fn services_are_overloaded_when_the_nodes_change() {
        let cache = cache(&[("a", "1"), ("b", "1")]);
        let service = ObjectKey::new("ns", "s");
        let mut plan = Plan {
            create: vec![slice(&[("a", ""), ("a", ""), ("b", ""), ("b", "")])],
            ..Plan::default()
        };
        cache.add_hints(&service, "IPv4", &mut plan);
        assert!(cache.overloaded().is_empty());
        for (zones, overloaded) in [
            (vec![("a", "1"), ("b", "1"), ("c", "1")], true),
            (vec![("a", "1"), ("b", "9")], true),
            (vec![("a", "10"), ("b", "11")], false),
            (vec![("a", "1")], true),
        ] {
            let nodes: Vec<_> = zones.iter().map(|(zone, cpu)| node(zone, cpu, true)).collect();
            cache.set_nodes(&nodes);
            assert_eq!(!cache.overloaded().is_empty(), overloaded, "{zones:?}");
        }
        cache.remove_hints(&service, "IPv4");
        assert!(cache.overloaded().is_empty());
    }
}
