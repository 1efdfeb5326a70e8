//! Writes the slices that mirror Endpoints.

use std::sync::Arc;

use super::metrics;
use super::mirror::{Plan, desired, plan};
use crate::client::{Client, Delete};
use crate::controllers::Error;
use crate::controllers::services::endpoint_writes::Body;
use crate::controllers::services::slice_counts::SliceCounts;
use crate::controllers::services::slice_tracker::SliceTracker;
use crate::events::Recorder;
use crate::objects::{EndpointSlice, Endpoints, ObjectKey};

/// Writes the slices that mirror Endpoints.
pub struct Reconciler {
    pub client: Client,
    pub recorder: Recorder,
    /// The most addresses of one subset that are mirrored.
    pub max: usize,
    pub counts: SliceCounts,
    pub tracker: Arc<SliceTracker>,
}

impl Reconciler {
    /// Makes slices mirror `endpoints`, of which `existing` are the slices now. Reports addresses
    /// that are not mirrored.
    pub async fn reconcile(
        &self,
        endpoints: &Endpoints,
        existing: Vec<Arc<EndpointSlice>>,
    ) -> Result<(), Error> {
        let desired = desired(endpoints, self.max);
        let (invalid, skipped) = (desired.invalid, desired.skipped);
        if invalid > 0 {
            let text =
                format!("Skipped {invalid} invalid IP addresses when mirroring to EndpointSlices");
            self.recorder.warning(endpoints, "InvalidIPAddress", text);
        }
        if skipped > invalid {
            let text = format!(
                "A max of {} addresses can be mirrored to EndpointSlices per Endpoints subset. \
                 {skipped} addresses were skipped",
                self.max
            );
            self.recorder.warning(endpoints, "TooManyAddressesToMirror", text);
        }
        let plan = plan(endpoints, desired, existing, self.max);
        metrics::observe(plan.changes, skipped);
        self.counts.set(&endpoints.meta.key(), plan.efficiency.iter().copied());
        // A slice that an earlier process wrote is recorded too, so that its deletion by another
        // client queues the Endpoints.
        for slice in plan.current.iter().filter(|slice| !self.tracker.has(slice)) {
            self.tracker.record_write(slice);
        }
        self.write(endpoints, plan).await
    }

    /// Creates, updates and deletes slices by the plan. Upstream: `finalize`.
    async fn write(&self, endpoints: &Endpoints, plan: Plan) -> Result<(), Error> {
        let key = endpoints.meta.key();
        // Endpoints that are being deleted get no new slices: they would stay after them.
        let create = if endpoints.meta.is_being_deleted() { &[] } else { &plan.create[..] };
        for slice in create {
            match self.client.create(&key.namespace, &Body::new(slice)).await {
                Ok(created) => self.tracker.record_write(&created),
                // It would fail until the Endpoints are deleted too.
                Err(error) if error.is_namespace_terminating() => return Ok(()),
                Err(error) => {
                    return Err(Error::during("failed to create EndpointSlice", error));
                }
            }
            metrics::count_change("create");
        }
        for slice in &plan.update {
            let updated = self.client.update(&slice.meta.key(), &Body::new(slice)).await;
            let updated =
                updated.map_err(|error| Error::during("failed to update EndpointSlice", error))?;
            self.tracker.record_write(&updated);
            metrics::count_change("update");
        }
        for slice in &plan.delete {
            match self.client.delete::<EndpointSlice>(&slice.meta.key(), Delete::new()).await {
                Ok(()) => self.tracker.expect_deletion(slice),
                Err(error) if error.is_not_found() => continue,
                Err(error) => {
                    return Err(Error::during("failed to delete EndpointSlice", error));
                }
            }
            metrics::count_change("delete");
        }
        Ok(())
    }

    /// Deletes all slices that mirrored the Endpoints `key`, which are gone or not mirrored any
    /// more. Upstream: `deleteEndpoints`.
    pub async fn remove(
        &self,
        key: &ObjectKey,
        slices: &[Arc<EndpointSlice>],
    ) -> Result<(), Error> {
        self.counts.remove(key);
        let mut errors = Vec::new();
        for slice in slices {
            match self.client.delete::<EndpointSlice>(&slice.meta.key(), Delete::new()).await {
                Err(error) if !error.is_not_found() => errors.push(error.into()),
                _ => {}
            }
        }
        match Error::many(errors) {
            Some(error) => Err(Error::during("error(s) deleting EndpointSlices", error)),
            None => Ok(()),
        }
    }
}
