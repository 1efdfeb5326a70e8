//! The numbers of existing and of wanted endpoints and slices, as metrics.
//! Upstream: `k8s.io/endpointslice/metrics.Cache`.

use parking_lot::Mutex;
use std::collections::HashMap;

use prometheus::IntGauge;

use crate::objects::ObjectKey;

/// The number of endpoints and of slices of one set of ports.
pub type Efficiency = (usize, usize);

/// The gauges over all Services.
pub struct Gauges {
    pub endpoints: IntGauge,
    pub slices: IntGauge,
    pub desired_slices: IntGauge,
}

/// The counts of each Service, summed up in gauges.
pub struct SliceCounts {
    max_per_slice: usize,
    /// The number of slices that a Service has even without endpoints.
    at_least: usize,
    gauges: Gauges,
    services: Mutex<HashMap<ObjectKey, Totals>>,
}

/// The counts of one Service; `desired`: the fewest slices that can hold its endpoints.
#[derive(Clone, Copy, Default)]
struct Totals {
    endpoints: usize,
    slices: usize,
    desired: usize,
}

impl SliceCounts {
    pub fn new(max_per_slice: usize, at_least: usize, gauges: Gauges) -> SliceCounts {
        SliceCounts { max_per_slice, at_least, gauges, services: Mutex::default() }
    }

    /// Replaces the counts of a Service by the sum of `ports`, the counts for each set of ports.
    pub fn set(&self, service: &ObjectKey, ports: impl IntoIterator<Item = Efficiency>) {
        let mut totals = Totals::default();
        for (endpoints, slices) in ports {
            totals.endpoints += endpoints;
            totals.slices += slices;
            totals.desired += endpoints.div_ceil(self.max_per_slice.max(1));
        }
        totals.desired = totals.desired.max(self.at_least);
        self.replace(service, Some(totals));
    }

    /// Removes a deleted Service from the gauges.
    pub fn remove(&self, service: &ObjectKey) {
        self.replace(service, None);
    }

    /// Stores the totals of a Service, `None` if it is gone, and changes the gauges by the
    /// difference.
    fn replace(&self, service: &ObjectKey, totals: Option<Totals>) {
        let mut services = self.services.lock();
        let before = match totals {
            Some(totals) => services.insert(service.clone(), totals),
            None => services.remove(service),
        };
        let (before, after) = (before.unwrap_or_default(), totals.unwrap_or_default());
        let change = |gauge: &IntGauge, from: usize, to: usize| {
            gauge.add(i64::try_from(to).unwrap_or(0) - i64::try_from(from).unwrap_or(0));
        };
        change(&self.gauges.endpoints, before.endpoints, after.endpoints);
        change(&self.gauges.slices, before.slices, after.slices);
        change(&self.gauges.desired_slices, before.desired, after.desired);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauges_follow_the_services() {
        let gauge = |name: &str| IntGauge::new(name, "for the test").unwrap();
        let gauges =
            Gauges { endpoints: gauge("e"), slices: gauge("s"), desired_slices: gauge("d") };
        let counts = SliceCounts::new(100, 1, gauges);
        let read = || {
            let Gauges { endpoints, slices, desired_slices } = &counts.gauges;
            (endpoints.get(), slices.get(), desired_slices.get())
        };
        let (a, b) = (ObjectKey::new("n", "a"), ObjectKey::new("n", "b"));
        counts.set(&a, [(250, 4), (1, 1)]);
        assert_eq!(read(), (251, 5, 4));
        counts.set(&b, [(0, 1)]);
        assert_eq!(read(), (251, 6, 5));
        counts.set(&a, [(100, 1)]);
        assert_eq!(read(), (100, 2, 2));
        counts.remove(&a);
        counts.remove(&a);
        assert_eq!(read(), (0, 1, 1));
    }
}
