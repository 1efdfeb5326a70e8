//! The writes of a binding. Each replaces the object at the version that the decision was made for,
//! so a change by another writer is a conflict, and each answer is kept in [`AssumeCache`].

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::Binder;
use super::assume_cache::AssumeCache;
use super::edits::{self, Edit};
use crate::client::Client;
use crate::controllers::Error;
use crate::events::EventType;
use crate::objects::{
    Meta, Object, PersistentVolume, PersistentVolumeClaim, RawObject, Resource, from_json,
};

/// A volume or a claim.
pub trait BindingObject: Object + Resource + DeserializeOwned {
    /// The spec's JSON; `None` once the object is bound.
    fn spec_text(&self) -> Option<&str>;
}

impl BindingObject for PersistentVolume {
    fn spec_text(&self) -> Option<&str> {
        self.spec.text.as_deref()
    }
}

impl BindingObject for PersistentVolumeClaim {
    fn spec_text(&self) -> Option<&str> {
        self.spec.text.as_deref()
    }
}

/// The body of an update: the status is not replaced by it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WithSpec<'a> {
    api_version: String,
    kind: &'a str,
    metadata: &'a Meta,
    spec: &'a RawObject,
}

/// Reads the live object. Fails as stale if it is not of the version of `object`.
async fn live<T: BindingObject>(client: &Client, object: &T) -> Result<RawObject, Error> {
    let key = object.meta().key();
    let live: RawObject = client.resource(&T::RESOURCE).get(&key).await?;
    let meta = live.get("metadata").map(|meta| from_json::<Meta>(meta.get()));
    let version = meta.transpose()?.map_or(0, |meta| meta.resource_version);
    match version == object.meta().resource_version {
        true => Ok(live),
        false => Err(Error::Stale(format!("{key} has changed"))),
    }
}

/// Writes an edit of an object, at the version of `object`: from its cached text where that is
/// sufficient, else from the live object. Returns the answer.
pub async fn replace<T: BindingObject>(
    client: &Client,
    latest: &AssumeCache<T>,
    object: &T,
    edit: Edit,
) -> Result<Arc<T>, Error> {
    let (key, verbs) = (object.meta().key(), client.resource(&T::RESOURCE));
    let Edit { annotations, finalizers, spec: fields, forgets_claim_uid } = edit;
    let written: T = match object.spec_text().filter(|_| finalizers.is_none() && !forgets_claim_uid)
    {
        Some(text) => {
            let mut spec = RawObject::parse(text)?;
            for (field, value) in fields {
                spec.set(field, value)?;
            }
            let mut meta = object.meta().clone();
            meta.annotations = annotations.unwrap_or(meta.annotations);
            let api_version = T::RESOURCE.api_version();
            let kind = &*T::RESOURCE.kind;
            let body = WithSpec { api_version, kind, metadata: &meta, spec: &spec };
            verbs.update(&key, &body).await?
        }
        None => {
            let mut body = live(client, object).await?;
            body.edit("metadata", |metadata| {
                if let Some(annotations) = &annotations {
                    metadata.set("annotations", json!(annotations))?;
                }
                finalizers.map_or(Ok(()), |names| metadata.set("finalizers", names))
            })?;
            body.edit("spec", |spec| {
                for (field, value) in fields {
                    spec.set(field, value)?;
                }
                match forgets_claim_uid {
                    true => spec.edit("claimRef", |claim| claim.set("uid", Value::Null)),
                    false => Ok(()),
                }
            })?;
            verbs.update(&key, &body).await?
        }
    };
    Ok(latest.assume(written))
}

/// The event to record: its type, reason and message.
#[derive(Clone, Debug, PartialEq)]
pub struct PendingEvent {
    pub event_type: EventType,
    pub reason: &'static str,
    pub message: String,
}

impl PendingEvent {
    pub fn normal(reason: &'static str, message: impl Into<String>) -> PendingEvent {
        PendingEvent { event_type: EventType::Normal, reason, message: message.into() }
    }

    pub fn warning(reason: &'static str, message: impl Into<String>) -> PendingEvent {
        PendingEvent { event_type: EventType::Warning, reason, message: message.into() }
    }
}

impl Binder {
    /// Records the event about an object.
    pub fn record<T: Object + Resource>(&self, object: &T, notice: PendingEvent) {
        let PendingEvent { event_type, reason, message } = notice;
        let about = crate::events::ObjectReference::to(object);
        self.recorder.event(&about, event_type, reason, message);
    }

    /// Writes `edit` to a volume, and returns the answer, which is kept as its newest state.
    pub async fn edit_volume(
        &self,
        volume: &PersistentVolume,
        edit: Edit,
    ) -> Result<Arc<PersistentVolume>, Error> {
        let written = replace(&self.client, &self.volumes, volume, edit).await?;
        self.free_volumes.lock().update(&written);
        Ok(written)
    }

    /// Writes `edit` to a claim, and returns the answer, which is kept as its newest state.
    pub async fn edit_claim(
        &self,
        claim: &PersistentVolumeClaim,
        edit: Edit,
    ) -> Result<Arc<PersistentVolumeClaim>, Error> {
        replace(&self.client, &self.claims, claim, edit).await
    }

    /// Writes the claim's status for `phase` and `volume`, unless nothing changes, and returns the
    /// claim as it is then. Upstream: `updateClaimStatus`.
    pub async fn set_claim_status(
        &self,
        claim: &Arc<PersistentVolumeClaim>,
        phase: &str,
        volume: Option<&PersistentVolume>,
    ) -> Result<Arc<PersistentVolumeClaim>, Error> {
        let fields = edits::claim_status(claim, phase, volume, self.attributes_classes);
        let Some(fields) = fields.map_err(Error::other)? else { return Ok(claim.clone()) };
        let written: PersistentVolumeClaim = match &claim.status.text {
            Some(text) => {
                let status = with_fields(RawObject::parse(text)?, fields)?;
                self.client.update_status(&**claim, &status).await?
            }
            None => {
                let mut body = live(&self.client, &**claim).await?;
                body.edit("status", |status| {
                    *status = with_fields(std::mem::take(status), fields)?;
                    Ok(())
                })?;
                let verbs = self.client.resource(&PersistentVolumeClaim::RESOURCE);
                verbs.subresource("status").update(&claim.meta.key(), &body).await?
            }
        };
        Ok(self.claims.assume(written))
    }

    /// Sets the claim's phase Lost and records the event, unless it is Lost already. Upstream:
    /// `updateClaimStatusWithEvent`.
    pub async fn lose_claim(
        &self,
        claim: &Arc<PersistentVolumeClaim>,
        notice: PendingEvent,
    ) -> Result<(), Error> {
        if claim.status.phase == "Lost" {
            return Ok(());
        }
        let written = self.set_claim_status(claim, "Lost", None).await?;
        self.record(&*written, notice);
        Ok(())
    }

    /// Sets the volume's phase if it differs, and returns the volume as it is then. Upstream:
    /// `updateVolumePhase`.
    pub async fn set_phase(
        &self,
        volume: &Arc<PersistentVolume>,
        phase: &str,
    ) -> Result<Arc<PersistentVolume>, Error> {
        self.set_phase_with(volume, phase, None).await
    }

    /// Sets the phase as [`Binder::set_phase`] does, and records the event if that is a change. The
    /// event's message is also the status's. Upstream: `updateVolumePhaseWithEvent`.
    pub async fn set_phase_with(
        &self,
        volume: &Arc<PersistentVolume>,
        phase: &str,
        notice: Option<PendingEvent>,
    ) -> Result<Arc<PersistentVolume>, Error> {
        if volume.status.phase == *phase {
            return Ok(volume.clone());
        }
        let message = notice.as_ref().map_or("", |notice| &notice.message);
        let status = edits::volume_status(volume, phase, message);
        let written: PersistentVolume = self.client.update_status(&**volume, &status).await?;
        let written = self.volumes.assume(written);
        self.free_volumes.lock().update(&written);
        if let Some(notice) = notice {
            self.record(&*written, notice);
        }
        Ok(written)
    }

    /// Binds the volume to the claim and the claim to the volume, and sets the phases of both. Only
    /// missing parts are written, so an interrupted binding is completed. Upstream: `bind`.
    pub async fn bind(
        &self,
        volume: &Arc<PersistentVolume>,
        claim: &Arc<PersistentVolumeClaim>,
    ) -> Result<(), Error> {
        let volume = match edits::bound_volume(volume, claim) {
            Some(edit) => self.edit_volume(volume, edit).await?,
            None => volume.clone(),
        };
        let volume = self.set_phase(&volume, "Bound").await?;
        let claim = match edits::bound_claim(claim, &volume.meta.name) {
            Some(edit) => self.edit_claim(claim, edit).await?,
            None => claim.clone(),
        };
        self.set_claim_status(&claim, "Bound", Some(&volume)).await?;
        Ok(())
    }

    /// Removes the claim from a volume, and makes it available again. Upstream: `unbindVolume`.
    pub async fn unbind(&self, volume: &Arc<PersistentVolume>) -> Result<(), Error> {
        let freed = self.edit_volume(volume, edits::unbound_volume(volume)).await?;
        self.set_phase(&freed, "Available").await?;
        Ok(())
    }
}

/// Returns `status` with these fields set; null removes one.
fn with_fields(
    mut status: RawObject,
    fields: Map<String, Value>,
) -> Result<RawObject, serde_json::Error> {
    for (field, value) in fields {
        status.set(&field, value)?;
    }
    Ok(status)
}
