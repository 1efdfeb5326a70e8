//! Creates, deletes and changes pods and claims of a set, with the events about that.
//! Upstream: `stateful_pod_control.go`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::StatefulSets;
use super::identity::{
    POD_INDEX_LABEL, POD_NAME_LABEL, claim_name, claim_volumes, identity_matches, new_claim,
    new_pod, ordinal, parent_and_ordinal, pod_name, storage_matches,
};
use super::plan::{Step, is_of_current};
use super::retention::Owners;
use super::revisions::Revisions;
use crate::client::Delete;
use crate::controllers::Error;
use crate::controllers::workloads::pod_control::changes;
use crate::lookup::Lookup;
use crate::objects::{
    ObjectKey, OwnerReference, PersistentVolumeClaim, Pod, Resource, StatefulSet, Uid, from_json,
};

/// The delays between attempts to change a pod that others change as well. Upstream:
/// `retry.DefaultBackoff`.
const CONFLICT_PAUSES: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(50), Duration::from_millis(250)];

impl StatefulSets {
    /// Carries out one step of the plan.
    pub(super) async fn perform(
        &self,
        set: &StatefulSet,
        revisions: &Revisions,
        step: &Step,
    ) -> Result<(), Error> {
        match step {
            Step::Create(ordinal) => self.create_pod(set, revisions, *ordinal).await,
            Step::Delete(pod) => self.delete_pod(set, pod).await,
            Step::Claims(pod) => self.complete_claims(set, pod).await,
            Step::Owners(pod) => self.update_owners(set, pod).await,
            Step::Conform(pod) => {
                let conformed = self.conform(set, pod).await;
                // `Ok(false)`: the pod is no member, and nothing was written.
                let is_reported = !matches!(conformed, Ok(false));
                let result = conformed.map(drop);
                if is_reported {
                    self.record_pod(set, "Update", &pod.meta.name, &result);
                }
                result
            }
        }
    }

    /// Creates the pod of an ordinal, and its missing claims before it; then sets the owners of the
    /// claims.
    /// Upstream: `CreateStatefulPod`.
    async fn create_pod(
        &self,
        set: &StatefulSet,
        revisions: &Revisions,
        ordinal: i32,
    ) -> Result<(), Error> {
        let name = pod_name(set, ordinal);
        let revision = match is_of_current(set, ordinal) {
            true => &revisions.current,
            false => &revisions.update,
        };
        let pod = new_pod(set, &revision.template, &revision.name, ordinal)?.encode()?;
        let (pods, namespace) = (self.client.resource(&Pod::RESOURCE), &set.meta.namespace);
        let dry_run = || async {
            let pods = pods.clone().dry_run();
            let created = pods.create_for_whole_metadata(namespace, &pod.body).await?;
            Ok(changes(set, &pod.metadata, &created.meta))
        };
        let permit = self.creations.allow(&set.meta, dry_run).await?;
        let claims = self.create_claims(set, &name, ordinal).await;
        if claims.is_err() {
            self.record_pod(set, "Create", &name, &claims);
            return claims;
        }
        let created = pods.create_for_whole_metadata(namespace, &pod.body).await;
        if let Err(error) = &created
            && error.is_already_exists()
        {
            // Our own pod, which the cache does not show yet, or another's, which must be deleted
            // first.
            return created.map(drop).map_err(Error::from);
        }
        let mut recorded = Ok(());
        let created = created.map_err(Error::from).map(|created| {
            self.record_write::<Pod>(set, created.meta.resource_version);
            let changes = changes(set, &pod.metadata, &created.meta);
            let named = ("Pod", &*name);
            recorded = self.creations.record_created(set, permit, &self.recorder, named, &changes);
        });
        // As upstream, also after a failed creation, and for the pod as it was sent, without a uid:
        // a later sync sets the owners by the real one.
        let owned = self.update_claim_owners(set, &name, &Uid::default(), ordinal).await;
        if owned.is_err() {
            self.record_pod(set, "Update", &name, &owned);
            return owned;
        }
        self.record_pod(set, "Create", &name, &created);
        created.and(recorded)
    }

    /// Deletes this pod, but not another one that has its name by now. Upstream:
    /// `DeleteStatefulPod`.
    async fn delete_pod(&self, set: &StatefulSet, pod: &Pod) -> Result<(), Error> {
        let delete = Delete::new().uid(pod.meta.uid.clone());
        let deleted = match self.client.delete::<Pod>(&pod.meta.key(), delete).await {
            Err(error) if error.is_of_another_uid() => return Err(Error::Stale(error.to_string())),
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        };
        self.record_pod(set, "Delete", &pod.meta.name, &deleted);
        deleted
    }

    /// Creates the missing claims of `pod`, and sets the owners of all its claims. Upstream:
    /// `createMissingPersistentVolumeClaims`.
    async fn complete_claims(&self, set: &StatefulSet, pod: &Pod) -> Result<(), Error> {
        let Some(ordinal) = ordinal(pod) else { return Ok(()) };
        self.create_claims(set, &pod.meta.name, ordinal).await?;
        let owned = self.update_owners(set, pod).await;
        if owned.is_err() {
            self.record_pod(set, "Update", &pod.meta.name, &owned);
        }
        owned
    }

    /// Creates the missing claims of the pod of an ordinal. A claim that is being deleted is an
    /// error. Upstream: `createPersistentVolumeClaims`.
    async fn create_claims(&self, set: &StatefulSet, pod: &str, ordinal: i32) -> Result<(), Error> {
        let mut errors = Vec::new();
        for template in &set.spec.volume_claim_templates {
            let name = claim_name(set, template, ordinal);
            if let Some(claim) = self.claim(set, &name) {
                if claim.meta.is_being_deleted() {
                    errors.push(Error::other(format!("pvc {name} is being deleted")));
                }
                continue;
            }
            let claim = new_claim(set, template, ordinal)?;
            let claims = self.client.resource(&PersistentVolumeClaim::RESOURCE);
            match claims.create_for_metadata(&set.meta.namespace, &claim).await {
                Ok(created) => {
                    self.record_write::<PersistentVolumeClaim>(set, created.meta.resource_version);
                    self.recorder.normal(
                        set,
                        "SuccessfulCreate",
                        format!(
                            "Create Claim {name} Pod {pod} in StatefulSet {} success",
                            set.meta.name
                        ),
                    );
                }
                Err(error) => {
                    let exists = error.is_already_exists();
                    let text = Error::from(error).message();
                    errors.push(Error::other(format!("failed to create PVC {name}: {text}")));
                    if !exists {
                        self.recorder.warning(set, "FailedCreate", format!(
                            "Create Claim {name} for Pod {pod} in StatefulSet {} failed error: {text}",
                            set.meta.name
                        ));
                    }
                }
            }
        }
        Error::many(errors).map_or(Ok(()), Err)
    }

    /// Sets the owners of the claims of an existing pod by the retention policy.
    async fn update_owners(&self, set: &StatefulSet, pod: &Pod) -> Result<(), Error> {
        let Some(ordinal) = ordinal(pod) else { return Ok(()) };
        self.update_claim_owners(set, &pod.meta.name, &pod.meta.uid, ordinal).await
    }

    /// Sets the owners of a pod's claims by the retention policy. `pod`, `uid`: see
    /// [`Owners::new`].
    /// Upstream: `UpdatePodClaimForRetentionPolicy`.
    async fn update_claim_owners(
        &self,
        set: &StatefulSet,
        pod: &str,
        uid: &Uid,
        ordinal: i32,
    ) -> Result<(), Error> {
        let owners = Owners::new(set, pod, uid, ordinal);
        for template in &set.spec.volume_claim_templates {
            let name = claim_name(set, template, ordinal);
            let Some(claim) = self.claim(set, &name) else { continue };
            if owners.has_unexpected_controller(claim.meta.owners()) {
                self.recorder.warning(set, "ConflictingController", format!(
                    "PersistentVolumeClaim {name} has a conflicting OwnerReference that acts as a \
                     manging controller, the retention policy is ignored for this claim"
                ));
            }
            if owners.are_up_to_date(claim.meta.owners()) {
                continue;
            }
            let uid = &claim.meta.uid;
            let change = |live: &mut Value| is_object(live, uid) && set_owners(live, &owners);
            let key = claim.meta.key();
            match self.client.modify::<PersistentVolumeClaim>(&key, change).await {
                Ok(updated) => {
                    self.record_write::<PersistentVolumeClaim>(set, updated.meta.resource_version)
                }
                Err(error) => {
                    let text = Error::from(error).message();
                    return Err(Error::other(format!(
                        "could not update claim {name} for delete policy ownerRefs: {text}"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Sets the identity and storage of a member, and the owners of its claims. Returns `false` if
    /// the pod is no member.
    /// Upstream: `UpdateStatefulPod`.
    async fn conform(&self, set: &StatefulSet, pod: &Pod) -> Result<bool, Error> {
        let Some(ordinal) = ordinal(pod) else { return Ok(false) };
        let name = pod_name(set, ordinal);
        if *pod.meta.name != *name {
            // A pod with leading zeros in its ordinal cannot be given another name.
            return Err(Error::other(format!("pods {name:?} not found")));
        }
        if !storage_matches(set, pod) {
            self.create_claims(set, &name, ordinal).await?;
        }
        self.update_claim_owners(set, &name, &pod.meta.uid, ordinal).await?;
        if identity_matches(set, pod) && storage_matches(set, pod) {
            return Ok(true);
        }
        let mut pauses = CONFLICT_PAUSES.iter();
        loop {
            let change = |live: &mut Value| {
                is_object(live, &pod.meta.uid) && set_identity(live, set, ordinal)
            };
            match self.client.modify::<Pod>(&pod.meta.key(), change).await {
                Ok(updated) => {
                    self.record_write::<Pod>(set, updated.meta.resource_version);
                    return Ok(true);
                }
                Err(error) => match pauses.next().filter(|_| error.is_conflict()) {
                    Some(pause) => self.clock.sleep(*pause).await,
                    None => return Err(error.into()),
                },
            }
        }
    }

    /// Returns the claim of this name in the namespace of `set`, from the cache.
    pub(super) fn claim(
        &self,
        set: &StatefulSet,
        name: &str,
    ) -> Option<Arc<PersistentVolumeClaim>> {
        self.claims.get(&ObjectKey::new(&set.meta.namespace, name))
    }

    /// Records a write, so that the next sync of `set` waits until the cache has seen `version`.
    pub(super) fn record_write<T: Resource>(&self, set: &StatefulSet, version: u64) {
        self.consistency.record_write(&set.meta.key(), &set.meta.uid, &T::RESOURCE, version);
    }

    /// Records the event about a write of a pod.
    /// Upstream: `recordPodEvent`.
    fn record_pod(&self, set: &StatefulSet, verb: &str, pod: &str, result: &Result<(), Error>) {
        let subject = format!("{verb} Pod {pod} in StatefulSet {}", set.meta.name);
        match result {
            Ok(()) => {
                let message = format!("{subject} successful");
                self.recorder.normal(set, &format!("Successful{verb}"), message);
            }
            Err(error) => {
                let message = format!("{subject} failed error: {}", error.message());
                self.recorder.warning(set, &format!("Failed{verb}"), message);
            }
        }
    }
}

/// Returns whether the object read live is still the one of the cache, which has this uid.
fn is_object(live: &Value, uid: &Uid) -> bool {
    live.pointer("/metadata/uid").and_then(Value::as_str).is_some_and(|text| *uid == Uid::new(text))
}

/// Sets the owners in a claim, as JSON so that other references stay as they are written. Returns
/// whether they had to be changed.
fn set_owners(live: &mut Value, owners: &Owners<'_>) -> bool {
    let Some(metadata) = live.get_mut("metadata").and_then(Value::as_object_mut) else {
        return false;
    };
    let written = metadata.get("ownerReferences").and_then(Value::as_array).cloned();
    let written = written.unwrap_or_default();
    let read = |value: &Value| from_json::<OwnerReference>(&value.to_string()).unwrap_or_default();
    let references: Vec<OwnerReference> = written.iter().map(read).collect();
    if owners.are_up_to_date(&references) {
        return false;
    }
    let mut new_references = Vec::new();
    for (value, reference) in written.into_iter().zip(&references) {
        if !owners.replaces(reference) {
            new_references.push(value);
        }
    }
    if let Some(addition) = owners.addition(&references) {
        new_references.push(json!(addition));
    }
    metadata.insert("ownerReferences".to_owned(), Value::Array(new_references));
    true
}

/// Gives a pod the labels and volumes of the member `ordinal`. Returns whether that changed it.
/// Upstream: `updateIdentity`, `updateStorage`.
fn set_identity(live: &mut Value, set: &StatefulSet, ordinal: i32) -> bool {
    let before = live.clone();
    let name = pod_name(set, ordinal);
    let Some(labels) = object_field(live, "metadata")
        .and_then(|metadata| metadata.entry("labels").or_insert_with(|| json!({})).as_object_mut())
    else {
        return false;
    };
    labels.insert(POD_NAME_LABEL.to_owned(), json!(name));
    labels.insert(POD_INDEX_LABEL.to_owned(), json!(ordinal.to_string()));
    let claims = claim_volumes(set, ordinal);
    if !claims.is_empty()
        && let Some(spec) = object_field(live, "spec")
    {
        let known = spec.get("volumes").and_then(Value::as_array).cloned().unwrap_or_default();
        let by_name = Lookup::new(&claims, |(name, _)| *name);
        let (mut right, mut others) = (0, Vec::new());
        for volume in known {
            match volume["name"].as_str().and_then(|name| by_name.get(name)) {
                Some((_, claim)) if volume["persistentVolumeClaim"]["claimName"] == **claim => {
                    right += 1;
                }
                Some(_) => {}
                None => others.push(volume),
            }
        }
        if right < claims.len() {
            let mut volumes = Vec::new();
            for (name, claim) in &claims {
                volumes.push(json!({"name": name, "persistentVolumeClaim": {"claimName": claim}}));
            }
            volumes.append(&mut others);
            spec.insert("volumes".to_owned(), Value::Array(volumes));
        }
    }
    *live != before
}

/// Returns the field `name` of `live`, if it is an object.
fn object_field<'a>(live: &'a mut Value, name: &str) -> Option<&'a mut Map<String, Value>> {
    live.get_mut(name).and_then(Value::as_object_mut)
}

/// Returns the sets that may wait for the deletion of a claim of this name.
pub(super) fn sets_of_claim(claim: &str, sets: &[Arc<StatefulSet>]) -> Vec<ObjectKey> {
    let Some((parent, Some(_))) = parent_and_ordinal(claim) else {
        return Vec::new();
    };
    let is_of = |set: &&Arc<StatefulSet>| {
        set.spec.volume_claim_templates.iter().any(|template| {
            parent
                .strip_prefix(&*template.name)
                .and_then(|rest| rest.strip_prefix('-'))
                .is_some_and(|name| *name == *set.meta.name)
        })
    };
    sets.iter().filter(is_of).map(|set| set.meta.key()).collect()
}
