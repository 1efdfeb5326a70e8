//! Hints for a Service's `trafficDistribution`. Upstream: `k8s.io/endpointslice/trafficdist`.

use super::pack::Plan;
use crate::objects::{Endpoint, EndpointHints, Hint, Istr, Service};

/// Where an endpoint's traffic should come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Near {
    Zone,
    Node,
}

/// Returns where `trafficDistribution` asks for traffic to come from; `None` if it is unset or
/// unknown.
pub fn requested(service: &Service) -> Option<Near> {
    match service.spec.traffic_distribution.as_deref()? {
        "PreferClose" | "PreferSameZone" => Some(Near::Zone),
        "PreferSameNode" => Some(Near::Node),
        _ => None,
    }
}

/// Sets the hints of `near` on every ready endpoint. Slices whose hints differ are updated. Hints
/// of endpoints that are not ready stay as they are.
pub fn set_hints(plan: &mut Plan, near: Near) {
    plan.update_also(|slice| {
        slice.endpoints.iter().filter(|e| e.is_ready()).any(|endpoint| !has_hints(endpoint, near))
    });
    for slice in plan.slices_to_write() {
        for endpoint in slice.endpoints.iter_mut().filter(|endpoint| endpoint.is_ready()) {
            endpoint.hints = desired_hints(endpoint, near);
        }
    }
}

/// Returns the hints of `near` for an endpoint: its zone, and for [`Near::Node`] its node too.
/// `None` if it has neither.
fn desired_hints(endpoint: &Endpoint, near: Near) -> Option<EndpointHints> {
    let hint = |name: Option<&Istr>| name.map(|name| Hint { name: name.clone() });
    let for_nodes = endpoint.node_name.as_ref().filter(|_| near == Near::Node);
    let hints = EndpointHints {
        for_zones: hint(endpoint.zone.as_ref()).into_iter().collect(),
        for_nodes: hint(for_nodes).into_iter().collect(),
    };
    if hints == EndpointHints::default() {
        return None;
    }
    Some(hints)
}

/// Returns whether the endpoint has exactly the hints of `near`.
fn has_hints(endpoint: &Endpoint, near: Near) -> bool {
    let none = EndpointHints::default();
    let has = endpoint.hints.as_ref().unwrap_or(&none);
    *has == desired_hints(endpoint, near).unwrap_or_default()
}

/// Removes all hints; slices that have some are updated. Upstream: `RemoveHintsFromSlices`.
pub fn remove_hints(plan: &mut Plan) {
    plan.update_also(|slice| slice.endpoints.iter().any(|endpoint| endpoint.hints.is_some()));
    for slice in plan.slices_to_write() {
        slice.endpoints.iter_mut().for_each(|endpoint| endpoint.hints = None);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::objects::EndpointSlice;

    fn slice(ready: bool, zone: Value, node: Value, hints: Value) -> Arc<EndpointSlice> {
        let json = json!({"endpoints": [{
            "conditions": {"ready": ready}, "zone": zone, "nodeName": node, "hints": hints,
        }]});
        Arc::new(serde_json::from_value(json).unwrap())
    }

    #[test]
    fn ready_endpoints_get_the_hints_asked_for() {
        let (zone, node) =
            (json!({"forZones": [{"name": "z"}]}), json!({"forNodes": [{"name": "n"}]}));
        let both = json!({"forZones": [{"name": "z"}], "forNodes": [{"name": "n"}]});
        let elsewhere = json!({"forZones": [{"name": "y"}]});
        let (z, n, no) = (json!("z"), json!("n"), Value::Null);
        for (near, slice, hints) in [
            (Near::Zone, slice(true, z.clone(), n.clone(), no.clone()), Some(zone.clone())),
            (Near::Zone, slice(true, z.clone(), n.clone(), both.clone()), Some(zone.clone())),
            (Near::Zone, slice(true, z.clone(), n.clone(), elsewhere.clone()), Some(zone.clone())),
            (Near::Zone, slice(true, z.clone(), n.clone(), zone.clone()), None),
            (Near::Zone, slice(true, no.clone(), n.clone(), zone.clone()), Some(no.clone())),
            (Near::Zone, slice(true, no.clone(), n.clone(), no.clone()), None),
            (Near::Zone, slice(false, z.clone(), n.clone(), elsewhere.clone()), None),
            (Near::Node, slice(true, z.clone(), n.clone(), zone.clone()), Some(both.clone())),
            (Near::Node, slice(true, no.clone(), n.clone(), no.clone()), Some(node)),
            (Near::Node, slice(true, z.clone(), n, both.clone()), None),
            (Near::Node, slice(true, z, no, both), Some(zone)),
        ] {
            let mut plan = Plan { unchanged: vec![slice.clone()], ..Plan::default() };
            set_hints(&mut plan, near);
            let written = plan
                .update
                .first()
                .map(|slice| serde_json::to_value(&slice.endpoints[0].hints).unwrap());
            assert_eq!(written, hints, "{near:?}: {slice:?}");
        }
    }

    #[test]
    fn hints_go_when_nothing_asks_for_them() {
        let (z, n) = (json!("z"), json!("n"));
        let hinted = || slice(false, z.clone(), n.clone(), json!({"forZones": [{"name": "z"}]}));
        let plain = slice(true, z.clone(), n.clone(), Value::Null);
        let mut plan = Plan {
            create: vec![(*hinted()).clone()],
            unchanged: vec![hinted(), plain.clone()],
            ..Plan::default()
        };
        remove_hints(&mut plan);
        assert_eq!((plan.update.len(), plan.unchanged), (1, vec![plain]));
        assert!(plan.create[0].endpoints[0].hints.is_none());
        assert!(plan.update[0].endpoints[0].hints.is_none());
    }
}
