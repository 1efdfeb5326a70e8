//! Answers ResourcePoolStatusRequests: the pools of a driver, and the number of their allocated
//! devices. Upstream: `pkg/controller/resourcepoolstatusrequest`.

use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cache::Lister;
use crate::client::{Client, Delete, Patch};
use crate::clock::SharedClock;
use crate::controllers::runner::Change;
use crate::controllers::{Controller, Error, Next, Queue, QueuePolicy, SyncResult};
use crate::metrics::{exponential, metrics};
use crate::objects::{
    Allocation, Istr, ObjectKey, PartialObjectMetadata, Resource, ResourceClaim,
    ResourcePoolStatusRequest, ResourceSlice, Timestamp, Uid,
};

/// The number of retries for the missing slices of an incomplete pool.
const MAX_RETRIES: u32 = 5;
/// How long an answered request is kept, and one without an answer.
const ANSWERED_TTL: Duration = Duration::from_secs(60 * 60);
const PENDING_TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// Upstream: `ResourcePoolStatusRequestLimitDefault`.
const DEFAULT_LIMIT: u32 = 100;
/// Upstream: `+k8s:maxBytes` of `validationError`.
const MAX_ERROR_BYTES: usize = 256;

metrics! {
    fn register;
    static PROCESSED: IntCounterVec["driver_name"] =
        "resourcepoolstatusrequest_controller_requests_processed_total",
        "[ALPHA] Total number of ResourcePoolStatusRequests processed";
    static ERRORS: IntCounterVec["driver_name"] =
        "resourcepoolstatusrequest_controller_request_processing_errors_total",
        "[ALPHA] Total number of errors encountered while processing ResourcePoolStatusRequests";
    static DURATION: HistogramVec["driver_name"](exponential(0.001, 2.0, 15)) =
        "resourcepoolstatusrequest_controller_request_processing_duration_seconds",
        "[ALPHA] Time taken to process a ResourcePoolStatusRequest";
}

/// Sets up the controller `resourcepoolstatusrequest-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    register();
    let requests = c.lister::<ResourcePoolStatusRequest>();
    let (slices, claims) = (c.lister::<ResourceSlice>(), c.lister::<ResourceClaim>());
    let queue = c.queue(QueuePolicy::default());
    c.watch(&requests, &queue, |change, queue| {
        let key = change.object().meta.key();
        match change {
            Change::Deleted(_) => {
                queue.cancel_timer(&key);
            }
            _ => queue.add(key),
        }
    });
    let this = PoolStatus {
        client: c.client(),
        clock: c.clock(),
        queue: queue.clone(),
        requests,
        slices,
        claims,
        slice_retries: Mutex::default(),
    };
    let this = Arc::new(this);
    c.sync(queue, &this, PoolStatus::sync);
    Ok(())
}

struct PoolStatus {
    client: Client,
    clock: SharedClock,
    queue: Queue,
    requests: Lister<ResourcePoolStatusRequest>,
    slices: Lister<ResourceSlice>,
    claims: Lister<ResourceClaim>,
    slice_retries: Mutex<SliceRetries>,
}

/// The number of retries of each request for missing slices. Other failures do not count.
#[derive(Default)]
struct SliceRetries(HashMap<ObjectKey, (Uid, u32)>);

impl SliceRetries {
    /// Counts a retry, if the request may have one more. Returns whether it may.
    fn count_retry(&mut self, key: &ObjectKey, uid: &Uid) -> bool {
        let (known_uid, retries) = self.0.entry(key.clone()).or_default();
        if known_uid != uid {
            (*known_uid, *retries) = (uid.clone(), 0);
        }
        if *retries == MAX_RETRIES {
            return false;
        }
        *retries += 1;
        true
    }

    fn remove(&mut self, key: &ObjectKey) {
        self.0.remove(key);
    }
}

impl PoolStatus {
    /// Answers a request that has no status yet, or deletes it if it has expired. Sets the timer
    /// for its expiry.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(request) = self.requests.get(&key) else {
            self.slice_retries.lock().remove(&key);
            return Ok(Next::Done);
        };
        let now = self.clock.now();
        let expiry = expiry(&request);
        if expiry.is_some_and(|expiry| expiry <= now) {
            let delete = Delete::new().uid(request.meta.uid.clone());
            return match self.client.delete::<ResourcePoolStatusRequest>(&key, delete).await {
                Err(error) if !error.is_not_found() => Err(error.into()),
                _ => Ok(Next::Done),
            };
        }
        if let Some(expiry) = expiry {
            self.queue.set_timer_after(key.clone(), expiry.duration_since(now));
        }
        if request.status.is_none() {
            self.write_answer(&key, &request).await?;
        }
        Ok(Next::Done)
    }

    /// Computes the pools that a request asks for, and writes them into its status. While slices
    /// are missing, fails so that it is retried, [`MAX_RETRIES`] times; then writes what is known.
    async fn write_answer(
        &self,
        key: &ObjectKey,
        request: &ResourcePoolStatusRequest,
    ) -> Result<(), Error> {
        let start = self.clock.monotonic();
        let driver = &request.spec.driver;
        let summary = PoolSummary::new(request, &self.slices.list(), &self.claims.list());
        // The driver gets some time to publish the rest.
        if summary.count_incomplete() > 0
            && self.slice_retries.lock().count_retry(key, &request.meta.uid)
        {
            return Err(Error::NotYet("incomplete pools detected, requeueing".to_owned()));
        }
        let version = request.meta.resource_version.to_string();
        let status = summary.status_json(self.clock.now());
        let metadata = json!({ "resourceVersion": version });
        let patch = Patch::Merge(json!({ "metadata": metadata, "status": status }));
        let requests = self.client.resource(&ResourcePoolStatusRequest::RESOURCE).metadata_only();
        let written =
            requests.subresource("status").patch::<PartialObjectMetadata>(key, &patch).await;
        let took = self.clock.monotonic().saturating_sub(start);
        DURATION.with_label_values(&[driver.as_str()]).observe(took.as_secs_f64());
        PROCESSED.with_label_values(&[driver.as_str()]).inc();
        if let Err(error) = written {
            ERRORS.with_label_values(&[driver.as_str()]).inc();
            let why = Error::from(error).message();
            return Err(Error::other(format!("failed to update status for request {key}: {why}")));
        }
        self.slice_retries.lock().remove(key);
        Ok(())
    }
}

/// Returns when a request expires; `None` if the time that counts is not known.
/// Upstream: `shouldDeleteRequest`.
fn expiry(request: &ResourcePoolStatusRequest) -> Option<Timestamp> {
    let created = request.meta.creation_timestamp;
    let Some(status) = &request.status else { return Some(created? + PENDING_TTL) };
    let is_end = |name: &str| matches!(name, "Complete" | "Failed");
    let end = status.conditions.iter().find(|condition| is_end(&condition.r#type));
    let answered = match end {
        Some(condition) => condition.last_transition_time,
        // Answered without a condition of the end: as upstream, from its creation.
        None => created,
    };
    Some(answered? + ANSWERED_TTL)
}

/// A pool at its newest generation.
#[derive(Clone, Debug, Default, PartialEq)]
struct Pool {
    driver: Istr,
    name: Istr,
    generation: i64,
    /// Empty where the slices do not agree.
    node_name: Istr,
    slices: i64,
    expected_slices: i64,
    devices: i64,
    allocated: i64,
}

impl Pool {
    /// Returns why the devices of the pool cannot be counted, in a text for users; `None` if all
    /// its slices are known.
    fn incomplete_error(&self) -> Option<String> {
        let Pool { driver, name, generation, slices, expected_slices, .. } = self;
        if slices >= expected_slices {
            return None;
        }
        let mut text = format!(
            "pool {driver}/{name} is incomplete: observed {slices}/{expected_slices} slices \
             at generation {generation}"
        );
        text.truncate(text.floor_char_boundary(MAX_ERROR_BYTES));
        Some(text)
    }

    /// Builds the entry of the pool in the status of a request.
    fn to_json(&self) -> Value {
        let mut pool = json!({
            "driver": self.driver, "poolName": self.name, "generation": self.generation,
        });
        if !self.node_name.is_empty() {
            pool["nodeName"] = json!(self.node_name);
        }
        let counts = match self.incomplete_error() {
            Some(fault) => json!({ "validationError": fault }),
            None => json!({
                "resourceSliceCount": self.slices,
                "totalDevices": self.devices,
                "allocatedDevices": self.allocated,
                "availableDevices": (self.devices - self.allocated).max(0),
                // Upstream does not consider taints and health yet.
                "unavailableDevices": 0,
            }),
        };
        for (name, count) in counts.as_object().into_iter().flatten() {
            pool[name] = count.clone();
        }
        pool
    }
}

/// The pools that a request asks for. Upstream: `calculatePoolStatus`.
struct PoolSummary {
    /// The number of pools.
    count: usize,
    /// The first pools by name, up to the limit of the request.
    pools: Vec<Pool>,
}

impl PoolSummary {
    /// Counts the slices and devices of the pools that a request asks for; of a pool its newest
    /// generation counts, and its node if all slices are of one. Counts all pools, but keeps only
    /// as many as the request's limit.
    fn new(
        request: &ResourcePoolStatusRequest,
        slices: &[Arc<ResourceSlice>],
        claims: &[Arc<ResourceClaim>],
    ) -> PoolSummary {
        let spec = &request.spec;
        let mut pools: BTreeMap<&Istr, Pool> = BTreeMap::new();
        for slice in slices.iter().map(|slice| &slice.spec) {
            let is_wanted = slice.driver == spec.driver
                && (spec.pool_name.is_empty() || slice.pool.name == spec.pool_name);
            if !is_wanted {
                continue;
            }
            let generation = slice.pool.generation;
            let new = Pool {
                driver: slice.driver.clone(),
                name: slice.pool.name.clone(),
                generation,
                node_name: slice.node_name.clone(),
                expected_slices: slice.pool.resource_slice_count,
                ..Pool::default()
            };
            let pool = pools.entry(&slice.pool.name).or_insert_with(|| new.clone());
            if generation < pool.generation {
                continue;
            }
            if generation > pool.generation {
                *pool = new;
            }
            if pool.node_name != slice.node_name {
                pool.node_name = Istr::default();
            }
            pool.slices += 1;
            pool.devices += i64::try_from(slice.devices.len()).unwrap_or(i64::MAX);
        }
        for claim in claims {
            let Some(Allocation(devices)) = &claim.status.allocation else { continue };
            for device in devices.iter().filter(|device| device.driver == spec.driver) {
                if let Some(pool) = pools.get_mut(&device.pool) {
                    pool.allocated += 1;
                }
            }
        }
        let count = pools.len();
        let limit = usize::try_from(spec.limit.unwrap_or(DEFAULT_LIMIT)).unwrap_or(usize::MAX);
        PoolSummary { count, pools: pools.into_values().take(limit).collect() }
    }

    /// Returns the number of pools whose slices are not all known.
    fn count_incomplete(&self) -> usize {
        self.pools.iter().filter(|pool| pool.incomplete_error().is_some()).count()
    }

    /// Builds the status of the request.
    fn status_json(&self, now: Timestamp) -> Value {
        let mut message = format!("Calculated status for {} pools", self.pools.len());
        let incomplete = self.count_incomplete();
        if incomplete > 0 {
            message.push_str(&format!(" ({incomplete} incomplete)"));
        }
        let condition = json!({
            "type": "Complete", "status": "True", "reason": "CalculationComplete",
            "message": message, "lastTransitionTime": now,
        });
        let mut status = json!({ "poolCount": self.count, "conditions": [condition] });
        if !self.pools.is_empty() {
            status["pools"] = self.pools.iter().map(Pool::to_json).collect();
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(pool: &str, node: &str, devices: usize, generation: i64, count: i64) -> Value {
        let devices: Vec<Value> =
            (0..devices).map(|n| json!({ "name": format!("device-{n}") })).collect();
        json!({ "spec": {
            "driver": "d", "nodeName": node, "devices": devices,
            "pool": { "name": pool, "generation": generation, "resourceSliceCount": count },
        } })
    }

    fn answer(spec: Value, slices: Vec<Value>, claims: &[&str]) -> Value {
        let request = serde_json::from_value(json!({ "spec": spec })).unwrap();
        let slices: Vec<_> =
            slices.into_iter().map(|s| Arc::new(serde_json::from_value(s).unwrap())).collect();
        let claims: Vec<_> = claims
            .iter()
            .map(|pool| {
                let device = json!({ "driver": "d", "pool": pool, "device": "device-0" });
                let allocation = json!({ "devices": { "results": [device] } });
                let claim = json!({ "status": { "allocation": allocation } });
                Arc::new(serde_json::from_value(claim).unwrap())
            })
            .collect();
        let now = Timestamp::from_secs(0);
        PoolSummary::new(&request, &slices, &claims).status_json(now)
    }

    #[test]
    fn a_request_is_answered_with_its_pools() {
        let driver = || json!({ "driver": "d" });
        let mut foreign = slice("p", "n", 9, 1, 1);
        foreign["spec"]["driver"] = json!("e");
        // Pool, node, slices, devices, allocated, available.
        let pool = |name: &str, node: &str, slices: i64, counts: [i64; 3]| {
            let [devices, allocated, available] = counts;
            let mut pool = json!({
                "driver": "d", "poolName": name, "generation": 1, "resourceSliceCount": slices,
                "totalDevices": devices, "allocatedDevices": allocated,
                "availableDevices": available, "unavailableDevices": 0,
            });
            if !node.is_empty() {
                pool["nodeName"] = json!(node);
            }
            pool
        };
        for (what, spec, slices, claims, pools) in [
            ("no pool", driver(), vec![foreign.clone()], &[][..], Value::Null),
            (
                "one pool",
                driver(),
                vec![slice("p", "n", 4, 1, 1), foreign],
                &["p", "p", "q"],
                json!([pool("p", "n", 1, [4, 2, 2])]),
            ),
            (
                "more allocated than published",
                driver(),
                vec![slice("p", "n", 1, 1, 1)],
                &["p", "p"],
                json!([pool("p", "n", 1, [1, 2, 0])]),
            ),
            (
                "sorted",
                driver(),
                vec![slice("q", "n", 1, 1, 1), slice("p", "n", 2, 1, 1)],
                &["q"],
                json!([pool("p", "n", 1, [2, 0, 2]), pool("q", "n", 1, [1, 1, 0])]),
            ),
            (
                "by name",
                json!({ "driver": "d", "poolName": "q" }),
                vec![slice("q", "n", 1, 1, 1), slice("p", "n", 2, 1, 1)],
                &[],
                json!([pool("q", "n", 1, [1, 0, 1])]),
            ),
            (
                "slices of several nodes",
                driver(),
                vec![slice("p", "n", 2, 1, 3), slice("p", "m", 2, 1, 3), slice("p", "n", 2, 1, 3)],
                &[],
                json!([pool("p", "", 3, [6, 0, 6])]),
            ),
            (
                "older slices are ignored",
                driver(),
                vec![slice("p", "m", 7, 0, 1), slice("p", "n", 2, 1, 1), slice("p", "m", 7, 0, 1)],
                &[],
                json!([pool("p", "n", 1, [2, 0, 2])]),
            ),
        ] {
            let found = answer(spec, slices, claims);
            assert_eq!(found["pools"], pools, "{what}");
            let count = pools.as_array().map_or(0, Vec::len);
            assert_eq!(found["poolCount"], count, "{what}");
            assert_eq!(
                found["conditions"][0]["message"],
                format!("Calculated status for {count} pools")
            );
        }
    }

    #[test]
    fn an_incomplete_pool_has_an_error_and_no_counts() {
        let slices =
            vec![slice("p", "n", 4, 2, 5), slice("p", "n", 4, 2, 5), slice("q", "", 1, 1, 1)];
        let found = answer(json!({ "driver": "d" }), slices, &[]);
        assert_eq!(
            found["pools"][0],
            json!({
                "driver": "d", "poolName": "p", "generation": 2, "nodeName": "n",
                "validationError":
                    "pool d/p is incomplete: observed 2/5 slices at generation 2",
            })
        );
        let message = "Calculated status for 2 pools (1 incomplete)";
        assert_eq!(found["conditions"][0]["message"], message);
    }

    #[test]
    fn only_pools_in_the_answer_are_waited_for() {
        let slices = [slice("p", "n", 4, 1, 1), slice("q", "", 1, 1, 2)];
        let slices = slices.map(|slice| Arc::new(serde_json::from_value(slice).unwrap()));
        for (limit, incomplete) in [(json!(null), 1), (json!(2), 1), (json!(1), 0)] {
            let request = json!({ "spec": { "driver": "d", "limit": limit } });
            let request = serde_json::from_value(request).unwrap();
            assert_eq!(
                PoolSummary::new(&request, &slices, &[]).count_incomplete(),
                incomplete,
                "{limit}"
            );
        }
    }

    #[test]
    fn each_request_waits_for_slices_a_limited_number_of_times() {
        let mut slice_retries = SliceRetries::default();
        let (one, two) = (ObjectKey::cluster("one"), ObjectKey::cluster("two"));
        let mut times = |key: &ObjectKey, uid: &str| {
            (0..9).take_while(|_| slice_retries.count_retry(key, &Uid::new(uid))).count()
        };
        for (key, uid, expected) in
            [(&one, "a", 5), (&one, "a", 0), (&two, "b", 5), (&one, "another of this name", 5)]
        {
            assert_eq!(times(key, uid), expected, "{uid}");
        }
        slice_retries.remove(&one);
        assert_eq!(slice_retries.0.len(), 1);
    }

    #[test]
    fn an_answer_has_no_more_pools_than_asked_for() {
        let slices = || (0..150).map(|n| slice(&format!("p{n:03}"), "", 1, 1, 1)).collect();
        for (limit, pools) in [(json!(null), 100), (json!(2), 2), (json!(1000), 150)] {
            let found = answer(json!({ "driver": "d", "limit": limit }), slices(), &[]);
            assert_eq!(found["pools"].as_array().unwrap().len(), pools);
            assert_eq!(found["poolCount"], 150);
        }
    }

    #[test]
    fn a_request_expires_after_its_end_or_after_a_day() {
        let request = |status: Value| {
            let metadata = json!({ "creationTimestamp": "1970-01-01T00:00:00Z" });
            let request = json!({ "metadata": metadata, "status": status });
            serde_json::from_value::<ResourcePoolStatusRequest>(request).unwrap()
        };
        let ended = |name: &str| {
            let time = "1970-01-01T00:01:00Z";
            json!({ "conditions": [{ "type": name, "lastTransitionTime": time }] })
        };
        for (status, seconds) in [
            (Value::Null, 24 * 3600),
            (json!({}), 3600),
            (ended("Complete"), 3660),
            (ended("Failed"), 3660),
            (ended("Other"), 3600),
        ] {
            let found = expiry(&request(status.clone()));
            assert_eq!(found, Some(Timestamp::from_secs(seconds)), "{status}");
        }
    }
}
