//! The time of the change that a Service's endpoints will show.
//! Upstream: `k8s.io/endpointslice/util.TriggerTimeTracker`.

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use crate::objects::{ArcStr, Interned, ObjectKey, Pod, Pool, Service, Timestamp};

/// The state that the last sync of each Service saw.
#[derive(Default)]
pub struct TriggerTimes {
    seen: Mutex<HashMap<ObjectKey, Seen>>,
}

/// The times that the last sync of a Service saw.
#[derive(Default)]
struct Seen {
    service: Option<Timestamp>,
    pods: Option<Interned<PodTimes>>,
}

/// When the readiness of each pod last changed, in the order of the names.
type PodTimes = [(ArcStr, Timestamp)];

/// The Services that select the same pods share one copy, in all controllers.
static POD_TIMES: LazyLock<Pool<Interned<PodTimes>>> = LazyLock::new(Pool::new);

impl Drop for Seen {
    fn drop(&mut self) {
        if let Some(pods) = self.pods.take() {
            POD_TIMES.release(pods);
        }
    }
}

impl TriggerTimes {
    fn seen(&self) -> MutexGuard<'_, HashMap<ObjectKey, Seen>> {
        self.seen.lock()
    }

    /// Returns the time of the earliest change since the last call for this Service; at the first
    /// call, its creation. `None`: no change with a known time. Must not be called twice at the
    /// same time for one Service.
    pub fn observe(&self, service: &Service, pods: &[Arc<Pod>]) -> Option<Timestamp> {
        let key = service.meta.key();
        let before = self.seen().remove(&key);
        let known = before.is_some();
        let before = before.unwrap_or_default();
        let service_now = service.meta.creation_timestamp;
        let mut earliest: Option<Timestamp> = None;
        let mut changed = |at: Timestamp, last: Option<Timestamp>| {
            let is_change = match last {
                Some(last) => at > last,
                None => true,
            };
            if is_change && earliest.is_none_or(|earliest| at < earliest) {
                earliest = Some(at);
            }
        };
        let times = |pod: &Arc<Pod>| Some((pod.meta.name.clone(), pod.status.ready_changed?));
        let mut pods: Vec<_> = pods.iter().filter_map(times).collect();
        pods.sort_unstable();
        let pods = if pods.is_empty() { None } else { Some(POD_TIMES.intern(pods)) };
        let last = before.pods.as_deref().unwrap_or_default();
        for (name, at) in pods.as_deref().unwrap_or_default() {
            let place = last.binary_search_by_key(&name, |(name, _)| name);
            changed(*at, place.ok().map(|place| last[place].1));
        }
        if let Some(at) = service_now {
            changed(at, before.service);
        }
        self.seen().insert(key, Seen { service: service_now, pods });
        if known { earliest } else { service_now }
    }

    pub fn forget(&self, service: &ObjectKey) {
        self.seen().remove(service);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(created: i64) -> Service {
        let created = Timestamp::from_secs(created);
        serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "s", "creationTimestamp": created},
        }))
        .unwrap()
    }

    #[test]
    fn services_of_the_same_pods_share_their_times_until_forgotten() {
        let (one, other) = (TriggerTimes::default(), TriggerTimes::default());
        let alike = pods(&[("shared-a", 2), ("shared-b", 3)]);
        for times in [&one, &other] {
            times.observe(&service(1), &alike);
        }
        let key = ObjectKey::new("ns", "s");
        let held = |times: &TriggerTimes| times.seen()[&key].pods.clone().unwrap();
        assert!(Interned::ptr_eq(&held(&one), &held(&other)));
        let list = held(&one);
        other.observe(&service(1), &pods(&[("shared-a", 2)]));
        assert!(!Interned::ptr_eq(&list, &held(&other)));
        drop(list);
        let name = alike[0].meta.name.clone();
        let holders = || ArcStr::strong_count(&name).unwrap();
        let before = holders();
        one.forget(&key);
        assert_eq!(holders(), before - 1, "the pool keeps no list that nothing else holds");
    }

    fn pods(times: &[(&str, i64)]) -> Vec<Arc<Pod>> {
        let pod = |&(name, ready): &(&str, i64)| {
            let ready = Timestamp::from_secs(ready);
            let json = json!({
                "metadata": {"namespace": "ns", "name": name},
                "status": {"conditions": [
                    {"type": "Ready", "status": "True", "lastTransitionTime": ready},
                ]},
            });
            Arc::new(serde_json::from_value(json).unwrap())
        };
        times.iter().map(pod).collect()
    }

    #[test]
    fn the_earliest_change_since_the_last_sync_counts() {
        let times = TriggerTimes::default();
        for (what, created, seen, expected) in [
            ("a new service: its creation", 1, vec![("a", 2), ("b", 3)], Some(1)),
            ("nothing new", 1, vec![("a", 2), ("b", 3)], None),
            ("one pod", 1, vec![("a", 2), ("b", 7)], Some(7)),
            ("two pods: the earlier", 1, vec![("a", 9), ("b", 8)], Some(8)),
            ("a new pod", 1, vec![("a", 9), ("b", 8), ("c", 5)], Some(5)),
            ("a pod goes: no time is known", 1, vec![("a", 9)], None),
            ("it comes back", 1, vec![("a", 9), ("b", 8)], Some(8)),
            ("time goes back", 1, vec![("a", 4), ("b", 8)], None),
            ("the service is recreated", 6, vec![("a", 20), ("b", 8)], Some(6)),
        ] {
            let found = times.observe(&service(created), &pods(&seen));
            assert_eq!(found, expected.map(Timestamp::from_secs), "{what}");
        }
        times.forget(&ObjectKey::new("ns", "s"));
        assert_eq!(
            times.observe(&service(1), &pods(&[("a", 99)])),
            Some(Timestamp::from_secs(1)),
            "forgotten: as new"
        );
    }
}
