//! The wanted endpoints, found by their identity.
//! Upstream: `k8s.io/endpointslice/util.EndpointSet`.

use std::borrow::Cow;
use std::cmp::Ordering;

use crate::objects::{AddressList, Endpoint, TargetRef};

/// A set of endpoints. Two are the same when their addresses, their hostname and the name of their
/// target are equal; the rest may change in place.
pub struct EndpointSet {
    /// The endpoints in the order of [`compare`], each with whether it is taken.
    endpoints: Vec<(Endpoint, bool)>,
    /// The number of endpoints that are not taken.
    remaining: usize,
    /// The index up to which all endpoints are taken.
    next: usize,
}

impl EndpointSet {
    /// Makes a set of endpoints. If two have the same identity, the last one counts.
    pub fn new(mut endpoints: Vec<Endpoint>) -> EndpointSet {
        for endpoint in &mut endpoints {
            if let Some(addresses) = endpoint.addresses.sorted() {
                endpoint.addresses = addresses;
            }
        }
        endpoints.reverse();
        endpoints.sort_by(compare);
        endpoints.dedup_by(|later, kept| compare(later, kept).is_eq());
        let remaining = endpoints.len();
        let endpoints = endpoints.into_iter().map(|endpoint| (endpoint, false)).collect();
        EndpointSet { endpoints, remaining, next: 0 }
    }

    pub fn len(&self) -> usize {
        self.remaining
    }

    pub fn is_empty(&self) -> bool {
        self.remaining == 0
    }

    /// Returns the index of the endpoint with the identity of `like`; `None` if it is absent or was
    /// taken.
    fn find(&self, like: &Endpoint) -> Option<usize> {
        let at = self.endpoints.binary_search_by(|(endpoint, _)| compare(endpoint, like)).ok()?;
        (!self.endpoints[at].1).then_some(at)
    }

    /// Returns the endpoint with the identity of `like`, unless it was taken.
    pub fn get(&self, like: &Endpoint) -> Option<&Endpoint> {
        self.find(like).map(|at| &self.endpoints[at].0)
    }

    /// Marks the endpoint at this index as taken, and returns it.
    fn take_at(&mut self, at: usize) -> Endpoint {
        let (endpoint, taken) = &mut self.endpoints[at];
        *taken = true;
        self.remaining -= 1;
        endpoint.clone()
    }

    /// Takes the endpoint with the identity of `like` out of the set; `None` if it is absent or was
    /// taken before.
    pub fn take(&mut self, like: &Endpoint) -> Option<Endpoint> {
        self.find(like).map(|at| self.take_at(at))
    }

    /// Takes the first endpoint out of the set.
    pub fn pop(&mut self) -> Option<Endpoint> {
        self.next += self.endpoints[self.next..].iter().position(|(_, taken)| !taken)?;
        Some(self.take_at(self.next))
    }

    /// Moves endpoints to `endpoints` until it has `max` of them.
    pub fn fill(&mut self, endpoints: &mut Vec<Endpoint>, max: usize) {
        let room = max.saturating_sub(endpoints.len()).min(self.remaining);
        endpoints.reserve_exact(room);
        endpoints.extend(std::iter::from_fn(|| self.pop()).take(room));
    }
}

/// Compares two endpoints by their identity.
fn compare(a: &Endpoint, b: &Endpoint) -> Ordering {
    fn sorted(endpoint: &Endpoint) -> Cow<'_, AddressList> {
        let addresses = &endpoint.addresses;
        addresses.sorted().map_or(Cow::Borrowed(addresses), Cow::Owned)
    }
    fn names(endpoint: &Endpoint) -> (&str, &str, &str) {
        let (namespace, name) = match &endpoint.target_ref {
            Some(target) => (target.namespace.as_str(), &*target.name),
            None => ("", ""),
        };
        (endpoint.hostname.as_deref().unwrap_or_default(), namespace, name)
    }
    sorted(a).cmp(&sorted(b)).then_with(|| names(a).cmp(&names(b)))
}

/// Returns whether two endpoints with one identity are also equal in their other fields, except
/// hints and the version of the target. Upstream: `EndpointsEqualBeyondHash`.
pub fn equal(a: &Endpoint, b: &Endpoint) -> bool {
    a.zone == b.zone
        && a.conditions == b.conditions
        && a.node_name == b.node_name
        && TargetRef::same(a.target_ref.as_ref(), b.target_ref.as_ref())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn endpoint(json: Value) -> Endpoint {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn endpoints_are_found_by_identity_and_taken_once() {
        let plain = |ip: &str| endpoint(json!({"addresses": [ip]}));
        let mut set = EndpointSet::new(vec![
            plain("10.0.0.2"),
            endpoint(json!({"addresses": ["10.0.0.1"], "zone": "old"})),
            endpoint(json!({"addresses": ["10.0.0.1"], "zone": "new"})),
            endpoint(json!({"addresses": ["10.0.0.1"], "hostname": "h"})),
            endpoint(json!({"addresses": ["10.0.0.1"], "targetRef": {"name": "p"}})),
            endpoint(json!({"addresses": ["b", "a"]})),
        ]);
        assert_eq!(set.len(), 5);
        assert_eq!(set.get(&plain("10.0.0.1")).unwrap().zone.as_deref(), Some("new"));
        let turned = endpoint(json!({"addresses": ["b", "a"], "nodeName": "n"}));
        assert_eq!(json!(set.take(&turned).unwrap().addresses), json!(["a", "b"]));
        assert!(set.take(&turned).is_none() && set.get(&plain("10.0.0.3")).is_none());
        let mut filled = vec![Endpoint::default()];
        set.fill(&mut filled, 3);
        assert_eq!((filled.len(), set.len()), (3, 2));
        set.fill(&mut filled, 9);
        assert!(set.is_empty() && set.pop().is_none());
        assert_eq!(filled.len(), 5);
        assert_eq!(json!(filled[4].addresses), json!(["10.0.0.2"]));
    }

    #[test]
    fn fields_beyond_the_identity_are_compared() {
        let base = json!({"addresses": ["a"], "conditions": {"ready": true}, "nodeName": "n"});
        for (part, value, same) in [
            ("hints", json!({"forZones": [{"name": "z"}]}), true),
            ("conditions", json!({"ready": true, "serving": true}), false),
            ("nodeName", json!("m"), false),
            ("zone", json!("z"), false),
            ("targetRef", json!({"name": "p"}), false),
        ] {
            let mut other = base.clone();
            other[part] = value;
            assert_eq!(equal(&endpoint(base.clone()), &endpoint(other)), same, "{part}");
        }
    }
}
