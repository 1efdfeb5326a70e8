//! Which endpoints go into which slice. Upstream: `Reconciler.reconcileByPortMapping`.

use std::sync::Arc;

use super::desired::Shape;
use crate::controllers::services::endpoint_set::{EndpointSet, equal};
use crate::objects::{EndpointSlice, SlicePort};

/// The changes to slices.
#[derive(Debug, Default, PartialEq)]
pub struct Plan {
    pub create: Vec<EndpointSlice>,
    pub update: Vec<EndpointSlice>,
    pub delete: Vec<Arc<EndpointSlice>>,
    pub unchanged: Vec<Arc<EndpointSlice>>,
    /// Endpoints that no slice had, and that no slice has any more.
    pub added: usize,
    pub removed: usize,
}

impl Plan {
    /// Adds the changes of another plan.
    pub fn append(&mut self, mut other: Plan) {
        self.create.append(&mut other.create);
        self.update.append(&mut other.update);
        self.delete.append(&mut other.delete);
        self.unchanged.append(&mut other.unchanged);
        self.added += other.added;
        self.removed += other.removed;
    }

    /// Moves the unchanged slices for which `needs` holds to the updated ones.
    pub fn update_also(&mut self, mut needs: impl FnMut(&EndpointSlice) -> bool) {
        let update = &mut self.update;
        self.unchanged.retain(|slice| {
            let needed = needs(slice);
            if needed {
                update.push((**slice).clone());
            }
            !needed
        });
    }

    /// Returns the slices that will be created or updated.
    pub fn slices_to_write(&mut self) -> impl Iterator<Item = &mut EndpointSlice> {
        self.create.iter_mut().chain(&mut self.update)
    }
}

/// Puts the `desired` endpoints into slices of `ports`, `max` in one. Those that are in a slice
/// stay there, and a slice that loses all is deleted; new ones go into slices that change anyway,
/// the fullest first; the rest goes into one slice that has just the room for it, or else into new
/// ones. So few slices change, and none is changed only to be packed better.
pub fn pack(
    shape: &Shape<'_>,
    ports: &[SlicePort],
    existing: &[Arc<EndpointSlice>],
    mut desired: EndpointSet,
    max: usize,
) -> Plan {
    let mut plan = Plan::default();
    for slice in existing {
        let mut kept = Vec::with_capacity(slice.endpoints.len());
        let mut changed = false;
        for endpoint in &slice.endpoints {
            if let Some(wanted) = desired.take(endpoint) {
                changed |= !equal(&wanted, endpoint);
                kept.push(wanted);
            }
        }
        let removed = slice.endpoints.len() - kept.len();
        plan.removed += removed;
        if changed || removed > 0 {
            match kept.is_empty() {
                true => plan.delete.push(slice.clone()),
                false => plan.update.push(shape.with_endpoints(slice, kept)),
            }
        } else if !shape.has_labels(slice) {
            plan.update.push(shape.with_endpoints(slice, slice.endpoints.clone()));
        } else {
            plan.unchanged.push(slice.clone());
        }
    }
    plan.added = desired.len();

    plan.update.sort_by_key(|slice| std::cmp::Reverse(slice.endpoints.len()));
    for slice in &mut plan.update {
        desired.fill(&mut slice.endpoints, max);
    }
    while !desired.is_empty() {
        match best_fit(&plan.unchanged, desired.len(), max) {
            Some(at) => {
                let mut slice = (*plan.unchanged.swap_remove(at)).clone();
                desired.fill(&mut slice.endpoints, max);
                plan.update.push(slice);
            }
            None => {
                let mut slice = shape.new_slice(ports);
                desired.fill(&mut slice.endpoints, max);
                plan.create.push(slice);
            }
        }
    }
    plan
}

/// Returns the index of the slice that is closest to full with `more` endpoints; `None` if these
/// are too many for one slice, or no slice has the room. Upstream: `getSliceToFill`.
fn best_fit(slices: &[Arc<EndpointSlice>], more: usize, max: usize) -> Option<usize> {
    if more >= max {
        return None;
    }
    let room_after = |slice: &EndpointSlice| max.checked_sub(more + slice.endpoints.len());
    let fits = slices.iter().enumerate().filter_map(|(at, slice)| Some((room_after(slice)?, at)));
    fits.min().map(|(_, at)| at)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::objects::{Endpoint, Istr, Service};

    fn endpoint(n: usize, ready: bool) -> Endpoint {
        serde_json::from_value(json!({
            "addresses": [format!("10.0.{}.{}", n / 256, n % 256)], "conditions": {"ready": ready},
        }))
        .unwrap()
    }

    fn service(labels: &[(&str, &str)]) -> Service {
        let mut service = Service::default();
        service.meta.name = "s".into();
        service.meta.labels = labels.iter().copied().collect();
        service
    }

    /// Slices of the endpoints with these numbers, named by their position.
    fn slices(shape: &Shape<'_>, of: &[std::ops::Range<usize>]) -> Vec<Arc<EndpointSlice>> {
        let slice = |(at, numbers): (usize, &std::ops::Range<usize>)| {
            let mut slice = shape.new_slice(&[]);
            slice.meta.name = at.to_string().into();
            slice.endpoints = numbers.clone().map(|n| endpoint(n, true)).collect();
            Arc::new(slice)
        };
        of.iter().enumerate().map(slice).collect()
    }

    /// The sizes of created, updated (by name) and unchanged slices, and the names of deleted ones.
    fn summary(plan: &Plan) -> (Vec<usize>, Vec<String>, Vec<String>, Vec<usize>) {
        let mut updated: Vec<String> = plan
            .update
            .iter()
            .map(|slice| format!("{}:{}", slice.meta.name, slice.endpoints.len()))
            .collect();
        updated.sort();
        let deleted = plan.delete.iter().map(|slice| slice.meta.name.to_string()).collect();
        let sizes = |slices: &[EndpointSlice]| slices.iter().map(|s| s.endpoints.len()).collect();
        let unchanged = plan.unchanged.iter().map(|slice| slice.endpoints.len()).collect();
        (sizes(&plan.create), updated, deleted, unchanged)
    }

    #[test]
    fn few_slices_change() {
        let (family, service) = (Istr::new("IPv4"), service(&[]));
        let shape = Shape::new(&service, &family);
        let none: Vec<usize> = vec![];
        for (what, existing, wanted, created, updated, deleted, unchanged) in [
            ("from nothing", vec![], 0..250, vec![100, 100, 50], vec![], vec![], none.clone()),
            ("nothing new", vec![0..60, 60..70], 0..70, none.clone(), vec![], vec![], vec![60, 10]),
            (
                "into the best fit",
                vec![0..30, 30..90, 90..190],
                0..220,
                vec![],
                vec!["1:90"],
                vec![],
                vec![30, 100],
            ),
            ("an exact fit", vec![0..30, 30..90], 0..130, vec![], vec!["1:100"], vec![], vec![30]),
            (
                "no fit: a new one",
                vec![0..80, 80..160],
                0..190,
                vec![30],
                vec![],
                vec![],
                vec![80, 80],
            ),
            (
                "as many as fit one: new ones",
                vec![0..50, 50..60],
                0..160,
                vec![100],
                vec![],
                vec![],
                vec![50, 10],
            ),
            (
                "some go",
                vec![0..50, 50..100],
                20..100,
                none.clone(),
                vec!["0:30"],
                vec![],
                vec![50],
            ),
            (
                "a slice runs empty",
                vec![0..50, 50..100],
                50..100,
                none.clone(),
                vec![],
                vec!["0"],
                vec![50],
            ),
            (
                "what changes anyway is filled",
                vec![0..50, 50..100, 100..190],
                10..250,
                none.clone(),
                vec!["0:100"],
                vec![],
                vec![50, 90],
            ),
            (
                "two lose one each",
                vec![0..90, 90..150, 150..200],
                1..199,
                none.clone(),
                vec!["0:89", "2:49"],
                vec![],
                vec![60],
            ),
            (
                "all go",
                vec![0..50, 50..60],
                0..0,
                none.clone(),
                vec![],
                vec!["0", "1"],
                none.clone(),
            ),
        ] {
            let existing = slices(&shape, &existing);
            let had: usize = existing.iter().map(|slice| slice.endpoints.len()).sum();
            let desired = EndpointSet::new(wanted.clone().map(|n| endpoint(n, true)).collect());
            let plan = pack(&shape, &[], &existing, desired, 100);
            let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect::<Vec<_>>();
            let (mut sizes, mut expected) = (summary(&plan), unchanged);
            sizes.3.sort_unstable();
            expected.sort_unstable();
            assert_eq!(sizes, (created, owned(updated), owned(deleted), expected), "{what}");
            assert_eq!(had + plan.added - plan.removed, wanted.len(), "{what}");
        }
    }

    #[test]
    fn the_fullest_of_those_that_change_is_filled_first() {
        let (family, service) = (Istr::new("IPv4"), service(&[]));
        let shape = Shape::new(&service, &family);
        let existing = slices(&shape, &[0..40, 40..120]);
        let desired =
            EndpointSet::new((1..119).chain(200..225).map(|n| endpoint(n, true)).collect());
        let plan = pack(&shape, &[], &existing, desired, 100);
        assert_eq!(summary(&plan).1, ["0:43", "1:100"]);
        assert_eq!((plan.added, plan.removed), (25, 2));
    }

    #[test]
    fn a_change_in_place_and_a_relabelled_service_change_the_slice() {
        let (family, old) = (Istr::new("IPv4"), service(&[("a", "1")]));
        let existing = slices(&Shape::new(&old, &family), &[0..2, 2..4]);
        let desired =
            |ready: bool| EndpointSet::new((0..4).map(|n| endpoint(n, n != 3 || ready)).collect());
        let plan = pack(&Shape::new(&old, &family), &[], &existing, desired(false), 100);
        assert_eq!(summary(&plan).1, ["1:2"]);
        assert_eq!((plan.added, plan.removed), (0, 0));
        assert!(!plan.update[0].endpoints[1].is_ready());

        let new = service(&[("a", "2")]);
        let plan = pack(&Shape::new(&new, &family), &[], &existing, desired(true), 100);
        assert_eq!(summary(&plan).1, ["0:2", "1:2"]);
        assert_eq!(plan.update[0].meta.labels.get("a"), Some("2"));
    }
}
