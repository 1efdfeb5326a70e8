//! Keeps the pods of a StatefulSet: each with its own name, claims and version.
//! Upstream: `pkg/controller/statefulset`.

mod identity;
mod plan;
mod pods;
mod retention;
mod revisions;
mod status;
mod sync;

use std::sync::Arc;

use crate::cache::Lister;
use crate::client::Client;
use crate::clock::SharedClock;
use crate::controllers::runner::Change;
use crate::controllers::workloads::availability::becomes_available;
use crate::controllers::workloads::changed_revisions::ChangedRevisions;
use crate::controllers::workloads::consistency::Consistency;
use crate::controllers::workloads::creations::{Creations, PodOwner};
use crate::controllers::workloads::owner_records::OwnerRecords;
use crate::controllers::workloads::ref_manager::controller_index;
use crate::controllers::{Controller, QueuePolicy, keys};
use crate::events::Recorder;
use crate::objects::{
    ControllerRevision, LabelSelector, PersistentVolumeClaim, Pod, Selector, StatefulSet,
};

struct StatefulSets {
    client: Client,
    recorder: Recorder,
    clock: SharedClock,
    sets: Lister<StatefulSet>,
    pods: Lister<Pod>,
    claims: Lister<PersistentVolumeClaim>,
    revisions: Lister<ControllerRevision>,
    consistency: Arc<Consistency>,
    creations: Arc<Creations>,
    changed_revisions: Arc<ChangedRevisions>,
    records: OwnerRecords,
    /// Whether an update may replace more than one pod at a time.
    honours_max_unavailable: bool,
    /// Whether a revision that another version of the manager wrote may be the current one.
    compares_semantically: bool,
}

impl PodOwner for StatefulSet {
    fn selector(&self) -> Option<&LabelSelector> {
        self.spec.selector.as_ref()
    }
}

/// Sets up the controller `statefulset-controller`. Upstream: `NewStatefulSetController`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    sync::register_metrics();
    let (sets, pods) = (c.lister::<StatefulSet>(), c.lister::<Pod>());
    let claims = c.lister::<PersistentVolumeClaim>();
    let revisions = c.lister::<ControllerRevision>();
    c.index(&pods, &controller_index());
    c.index(&revisions, &controller_index());
    let consistency = match c.feature("StaleControllerConsistencyStatefulSet") {
        true => Consistency::default().tracking(&pods).tracking(&claims).tracking(&sets),
        false => Consistency::default(),
    };
    let mut records = OwnerRecords::default();
    let this = Arc::new(StatefulSets {
        client: c.client(),
        recorder: c.recorder(),
        clock: c.clock(),
        sets: sets.clone(),
        pods: pods.clone(),
        claims: claims.clone(),
        revisions,
        consistency: records.add(consistency),
        creations: records.add(Creations::new(c.clock())),
        changed_revisions: records.add(ChangedRevisions::new(c.recorder())),
        records,
        honours_max_unavailable: c.feature("MaxUnavailableStatefulSet"),
        compares_semantically: c.feature("StatefulSetSemanticRevisionComparison"),
    });
    let owned = keys::of_controller(&sets)
        .or_matching_orphans(|set: &StatefulSet| Selector::try_from(set.spec.selector.as_ref()))
        .requeue_owner_after(|old: &Pod, new: &Pod, set: &StatefulSet| {
            becomes_available(old, new, set.spec.min_ready_seconds)
        });
    let queue = c.queue(QueuePolicy::default());
    c.watch(&sets, &queue, this.records.mapper());
    c.watch(&pods, &queue, owned.mapper());
    c.watch(&claims, &queue, move |change, queue| {
        // A pod may wait until the claim of the one before it is gone.
        if let Change::Deleted(last) = change {
            let meta = &last.object().meta;
            let sets = sets.in_namespace(&meta.namespace);
            for key in pods::sets_of_claim(&meta.name, &sets) {
                queue.add(key);
            }
        }
    });
    c.sync(queue, &this, StatefulSets::sync);
    Ok(())
}
