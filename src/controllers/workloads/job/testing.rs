//! The controller of Jobs over caches that a test fills.

use std::sync::Arc;

use super::backoff::BackoffStore;
use super::released::Released;
use super::{Finished, Jobs};
use crate::cache::{Indexer, Lister};
use crate::client::Client;
use crate::clock::FakeClock;
use crate::controllers::QueuePolicy;
use crate::controllers::runner::Queue;
use crate::controllers::workloads::consistency::Consistency;
use crate::controllers::workloads::expectations::Expectations;
use crate::controllers::workloads::owner_records::OwnerRecords;
use crate::controllers::workloads::pod_control::PodControl;
use crate::events::Recorder;
use crate::events::testing::Heard;
use crate::objects::{Job, Pod, Timestamp};

pub(super) struct Caches {
    pub jobs: Arc<Indexer<Job>>,
    pub pods: Arc<Indexer<Pod>>,
    /// The events that the controller records.
    pub events: Arc<Heard>,
}

pub(super) fn controller(client: Client) -> (Arc<Jobs>, Caches) {
    let (jobs, pods) = (Arc::new(Indexer::new()), Arc::new(Indexer::new()));
    let caches = Caches { jobs, pods, events: Arc::default() };
    let (jobs, pods) = (Lister::new(caches.jobs.clone()), Lister::new(caches.pods.clone()));
    let clock = FakeClock::new(Timestamp::from_secs(0));
    let recorder = Recorder::to_sink(caches.events.clone());
    let mut records = OwnerRecords::default();
    let consistency = records.add(Consistency::default().tracking(&pods).tracking(&jobs));
    let pod_control = PodControl::new(client.clone(), recorder.clone(), clock.clone());
    let controller = Jobs {
        pod_control: pod_control.recording(&consistency),
        queue: Queue::new("job", QueuePolicy::default(), clock.clone()),
        orphans: Queue::new("job_orphan_pod", QueuePolicy::default(), clock.clone()),
        expectations: records.add(Expectations::new(clock.clone())),
        released: records.add(Released::seen_in(&pods)),
        backoff: records.add(BackoffStore::default()),
        finished: records.add(Finished::default()),
        records,
        groups: None,
        resets_start_time: true,
        client,
        clock,
        recorder,
        jobs,
        pods,
        consistency,
    };
    (Arc::new(controller), caches)
}
