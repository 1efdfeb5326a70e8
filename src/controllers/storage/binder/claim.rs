//! The decision about a claim. Upstream: `syncUnboundClaim` and `syncBoundClaim`.

use std::sync::Arc;

use super::super::annotations::{
    BETA_STORAGE_CLASS, BETA_STORAGE_PROVISIONER, BIND_COMPLETED, BOUND_BY_CONTROLLER,
    SELECTED_NODE, STORAGE_PROVISIONER,
};
use super::super::claims::pods_of;
use super::matching::{self, BY_CLAIM_REF};
use super::metrics::retroactive_class;
use super::writes::PendingEvent;
use super::{Binder, edits};
use crate::cache::IndexValue;
use crate::controllers::{Error, Next, SyncResult};
use crate::objects::{
    ArcStr, Istr, ObjectKey, PersistentVolume, PersistentVolumeClaim, StorageClass,
};

/// What to do with a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum Plan {
    Bind(Arc<PersistentVolume>),
    /// No volume suits it.
    Provide,
    /// It waits; the event gives the reason.
    Wait(Option<PendingEvent>),
    /// It was bound, and is no longer.
    Lose(PendingEvent),
    /// A part of its binding was removed by another client.
    Refuse(PendingEvent, String),
}

/// Decides what to do with a claim that was never bound and that names the volume `named`, which
/// may not exist. `with_classes`: the gate VolumeAttributesClass.
fn plan_named(
    claim: &PersistentVolumeClaim,
    named: Option<Arc<PersistentVolume>>,
    with_classes: bool,
) -> Plan {
    let Some(volume) = named else { return Plan::Wait(None) };
    let name = &volume.meta.name;
    if matching::is_bound_to_claim(&volume, claim) {
        return Plan::Bind(volume);
    }
    let Some(owner) = &volume.spec.claim_ref else {
        return match matching::mismatch(&volume, claim, with_classes) {
            None => Plan::Bind(volume),
            Some(fault) => Plan::Wait(Some(PendingEvent::warning(
                "VolumeMismatch",
                format!("Cannot bind to requested volume {name:?}: {fault}"),
            ))),
        };
    };
    let notice = format!("volume {name:?} already bound to a different claim.");
    let notice = PendingEvent::warning("FailedBinding", notice);
    // The user's choice waits for the volume. A volume that this controller chose must not be
    // another claim's, so that is an error.
    match claim.meta.annotations.contains_key(BOUND_BY_CONTROLLER) {
        false => Plan::Wait(Some(notice)),
        true => Plan::Refuse(
            notice,
            format!(
                "invalid binding of claim \"{}\" to volume {name:?}: volume already claimed by \
                 \"{}\"",
                claim.meta.key(),
                owner.key()
            ),
        ),
    }
}

/// Decides what to do with a claim that was bound to `volume`, which may not exist. A volume that
/// names the claim without a uid is bound to it, unless it is being deleted: both come from a
/// backup, or the uid was removed. Upstream loses the claim.
fn plan_bound(claim: &PersistentVolumeClaim, volume: Option<Arc<PersistentVolume>>) -> Plan {
    const GONE: &str = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
    if claim.spec.volume_name.is_empty() {
        let message =
            "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!";
        return Plan::Lose(PendingEvent::warning("ClaimLost", message));
    }
    let Some(volume) = volume else { return Plan::Lose(PendingEvent::warning("ClaimLost", GONE)) };
    let is_restored =
        || matching::is_bound_to_claim(&volume, claim) && !volume.meta.is_being_deleted();
    match &volume.spec.claim_ref {
        Some(owner) if owner.uid != claim.meta.uid && !is_restored() => {
            Plan::Lose(PendingEvent::warning(
                "ClaimMisbound",
                "Two claims are bound to the same volume, this one is bound incorrectly",
            ))
        }
        // Also a volume that names no claim: the binding is completed, as upstream.
        _ => Plan::Bind(volume),
    }
}

/// Returns the default class: if there are several, the newest, then the first by name. Upstream:
/// `util.GetDefaultClass`.
pub fn default_class(classes: &[Arc<StorageClass>]) -> Option<&StorageClass> {
    let defaults = classes.iter().filter(|class| class.is_default());
    let order = |class: &&Arc<StorageClass>| {
        (std::cmp::Reverse(class.meta.creation_timestamp), class.meta.name.clone())
    };
    defaults.min_by_key(order).map(|class| &**class)
}

/// Returns the event about a claim whose class waits for its first consumer. `pods`: those that use
/// the claim and have no node.
fn waiting_event(mut pods: Vec<String>) -> PendingEvent {
    pods.sort();
    let (reason, message) = match &*pods {
        [] => {
            let message = "waiting for first consumer to be created before binding".to_owned();
            ("WaitForFirstConsumer", message)
        }
        [pod] => ("WaitForPodScheduled", format!("waiting for pod {pod} to be scheduled")),
        pods => {
            ("WaitForPodScheduled", format!("waiting for pods {} to be scheduled", pods.join(",")))
        }
    };
    PendingEvent::normal(reason, message)
}

/// Returns whether the claims of `class` wait for a pod, so that the scheduler chooses their
/// volumes. Without a class they do not; `Err` if the class has no mode.
/// Upstream: `IsDelayBindingMode`.
pub fn is_delayed(class: Option<&StorageClass>) -> Result<bool, Error> {
    let Some(class) = class else { return Ok(false) };
    match &*class.volume_binding_mode {
        "" => {
            let name = &class.meta.name;
            Err(Error::other(format!("VolumeBindingMode not set for StorageClass {name:?}")))
        }
        mode => Ok(mode == "WaitForFirstConsumer"),
    }
}

impl Binder {
    /// Decides what to do with a claim, and does it: binds it, provides a volume, or sets its
    /// phase.
    /// Upstream: `syncClaim`.
    pub async fn sync_claim(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(claim) = self.claims.get(&key) else { return Ok(Next::Done) };
        let claim = self.mark_migrated(claim).await?;
        let was_bound = claim.meta.annotations.contains_key(BIND_COMPLETED);
        let named = || match &*claim.spec.volume_name {
            "" => None,
            name => self.volumes.get(&ObjectKey::cluster(name)),
        };
        let plan = match (was_bound, claim.spec.volume_name.is_empty()) {
            (true, _) => plan_bound(&claim, named()),
            (false, false) => plan_named(&claim, named(), self.attributes_classes),
            (false, true) => self.plan_free(&claim)?,
        };
        match plan {
            Plan::Bind(volume) => {
                let bound = self.bind(&volume, &claim).await;
                if !was_bound && claim.spec.volume_name.is_empty() {
                    self.timestamps.ended(&key.to_string(), bound.is_ok());
                }
                bound?;
                return Ok(Next::Done);
            }
            Plan::Provide => self.provide(&claim).await?,
            Plan::Wait(notice) => self.wait(&claim, notice).await?,
            Plan::Lose(notice) => self.lose_claim(&claim, notice).await?,
            Plan::Refuse(notice, error) => {
                self.record(&*claim, notice);
                return Err(Error::other(error));
            }
        }
        // Later a volume may suit, the class may exist, or an operation may be retried.
        Ok(Next::After(self.period))
    }

    /// Returns the class that the claim names, if it exists.
    fn class_of(&self, claim: &PersistentVolumeClaim) -> Option<Arc<StorageClass>> {
        let name = Some(claim.storage_class()).filter(|name| !name.is_empty())?;
        self.classes.get(&ObjectKey::cluster(name))
    }

    /// Decides what to do with a claim that names no volume: bind the best free one, or provision.
    fn plan_free(&self, claim: &PersistentVolumeClaim) -> Result<Plan, Error> {
        let delayed = is_delayed(self.class_of(claim).as_deref())?;
        let naming = self.volumes.candidates(&BY_CLAIM_REF, &IndexValue::Key(claim.meta.key()));
        let newest = |name: &ArcStr| self.volumes.get(&ObjectKey::cluster(name));
        let free_volumes = self.free_volumes.lock();
        // Of a delayed class the scheduler chooses among the free volumes.
        let free = if delayed { None } else { Some(&*free_volumes) };
        let best = matching::best_match(claim, naming, free, newest, self.attributes_classes);
        drop(free_volumes);
        let best = best.map_err(|error| {
            let key = claim.meta.key();
            Error::other(format!("error finding PV for claim \"{key}\": {error}"))
        })?;
        Ok(best.map_or(Plan::Provide, Plan::Bind))
    }

    /// Sets the phase Pending, and records the event with the reason, if there is one.
    async fn wait(
        &self,
        claim: &Arc<PersistentVolumeClaim>,
        notice: Option<PendingEvent>,
    ) -> Result<(), Error> {
        if let Some(notice) = notice {
            self.record(&**claim, notice);
        }
        self.set_claim_status(claim, "Pending", None).await.map(drop)
    }

    /// Takes the next step for a claim that no volume suits: assigns the default class, waits for
    /// the first consumer, or starts to provision a volume.
    async fn provide(self: &Arc<Self>, claim: &Arc<PersistentVolumeClaim>) -> Result<(), Error> {
        if self.assign_default_class(claim).await? {
            return Ok(());
        }
        let class = self.class_of(claim);
        if is_delayed(class.as_deref())? && !claim.meta.annotations.contains_key(SELECTED_NODE) {
            let pods = pods_of(&self.pods, &claim.meta.key());
            let waiting =
                pods.iter().filter(|pod| !pod.is_terminated() && pod.spec.node_name.is_empty());
            let names = waiting.map(|pod| pod.meta.name.to_string()).collect();
            return self.wait(claim, Some(waiting_event(names))).await;
        }
        if !claim.storage_class().is_empty() {
            // The operation writes the claim, and its volume brings the next sync.
            self.provision(claim, class);
            return Ok(());
        }
        let message = "no persistent volumes available for this claim and no storage class is set";
        self.wait(claim, Some(PendingEvent::normal("FailedBinding", message))).await
    }

    /// Writes the default class, if there is one, into a claim without a class, and returns whether
    /// it did.
    /// Upstream: `assignDefaultStorageClass`.
    async fn assign_default_class(
        &self,
        claim: &Arc<PersistentVolumeClaim>,
    ) -> Result<bool, Error> {
        let has_class = claim.spec.storage_class_name.is_some()
            || claim.meta.annotations.contains_key(BETA_STORAGE_CLASS);
        let classes = if has_class { Vec::new() } else { self.classes.list() };
        let Some(class) = default_class(&classes) else { return Ok(false) };
        let name = Istr::new(&class.meta.name);
        let edit = edits::Edit {
            spec: vec![("storageClassName", name.as_str().into())],
            ..edits::Edit::default()
        };
        let assigned = self.edit_claim(claim, edit).await;
        retroactive_class(assigned.is_ok());
        assigned.map_err(|error| match error {
            stale @ Error::Stale(_) => stale,
            error => Error::during("can't update PersistentVolumeClaim", error),
        })?;
        Ok(true)
    }

    /// Writes the annotation of migration of a claim if it differs, and returns the claim as it is
    /// then. Upstream: `updateClaimMigrationAnnotations`.
    async fn mark_migrated(
        &self,
        claim: Arc<PersistentVolumeClaim>,
    ) -> Result<Arc<PersistentVolumeClaim>, Error> {
        let annotations = &claim.meta.annotations;
        let provisioner =
            annotations.get(STORAGE_PROVISIONER).or(annotations.get(BETA_STORAGE_PROVISIONER));
        match edits::with_migration_annotation(annotations, provisioner) {
            Some(annotations) => {
                self.edit_claim(&claim, edits::Edit::annotations(annotations)).await
            }
            None => Ok(claim),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::objects::Timestamp;

    fn claim(annotations: Value, spec: Value) -> PersistentVolumeClaim {
        let json = json!({
            "metadata": { "name": "c", "namespace": "ns", "uid": "u", "annotations": annotations },
            "spec": spec,
        });
        serde_json::from_value(json).unwrap()
    }

    fn volume(claim_ref: Value, more: Value) -> Option<Arc<PersistentVolume>> {
        let mut json = json!({
            "metadata": { "name": "v" },
            "spec": { "capacity": { "storage": "1Gi" }, "claimRef": claim_ref },
        });
        if let Value::Object(more) = more {
            more.into_iter().for_each(|(field, value)| json["spec"][field] = value);
        }
        Some(Arc::new(serde_json::from_value(json).unwrap()))
    }

    fn reference(name: &str, uid: Option<&str>) -> Value {
        json!({ "namespace": "ns", "name": name, "uid": uid })
    }

    /// The plan as a word, or the reason and the message of its event.
    fn plan_text(plan: Plan) -> String {
        let notice = |notice: PendingEvent| format!("{}: {}", notice.reason, notice.message);
        match plan {
            Plan::Bind(_) => "bind".to_owned(),
            Plan::Provide => "provide".to_owned(),
            Plan::Wait(None) => "wait".to_owned(),
            Plan::Wait(Some(event)) => format!("wait, {}", notice(event)),
            Plan::Lose(event) => format!("lose, {}", notice(event)),
            Plan::Refuse(event, error) => format!("refuse, {}; {error}", notice(event)),
        }
    }

    #[test]
    fn claims_that_name_a_volume() {
        let named = json!({ "volumeName": "v" });
        let by_controller = json!({ BOUND_BY_CONTROLLER: "yes" });
        let taken = "FailedBinding: volume \"v\" already bound to a different claim.";
        for (annotations, volume, expected) in [
            (json!({}), None, "wait".to_owned()),
            (json!({}), volume(Value::Null, Value::Null), "bind".to_owned()),
            (json!({}), volume(reference("c", None), Value::Null), "bind".to_owned()),
            (json!({}), volume(reference("c", Some("u")), Value::Null), "bind".to_owned()),
            (json!({}), volume(reference("other", None), Value::Null), format!("wait, {taken}")),
            (json!({}), volume(reference("c", Some("old")), Value::Null), format!("wait, {taken}")),
            (
                by_controller,
                volume(reference("other", None), Value::Null),
                format!(
                    "refuse, {taken}; invalid binding of claim \"ns/c\" to volume \"v\": volume \
                     already claimed by \"ns/other\""
                ),
            ),
            (
                json!({}),
                volume(Value::Null, json!({ "volumeMode": "Block" })),
                "wait, VolumeMismatch: Cannot bind to requested volume \"v\": incompatible \
                 volumeMode"
                    .to_owned(),
            ),
            // A volume that names the claim is not checked.
            (
                json!({}),
                volume(reference("c", None), json!({ "volumeMode": "Block" })),
                "bind".to_owned(),
            ),
        ] {
            let plan = plan_named(&claim(annotations, named.clone()), volume, true);
            assert_eq!(plan_text(plan), expected);
        }
    }

    #[test]
    fn claims_that_were_bound() {
        let (named, free) = (json!({ "volumeName": "v" }), json!({}));
        let going = |claim_ref: Value| {
            volume(claim_ref, Value::Null).map(|mut volume| {
                Arc::make_mut(&mut volume).meta.deletion_timestamp = Some(Timestamp::from_secs(0));
                volume
            })
        };
        const MISBOUND: &str = "lose, ClaimMisbound: Two claims are bound to the same volume, \
            this one is bound incorrectly";
        for (spec, volume, expected) in [
            (
                free,
                None,
                "lose, ClaimLost: Bound claim has lost reference to PersistentVolume. Data on the volume is lost!",
            ),
            (
                named.clone(),
                None,
                "lose, ClaimLost: Bound claim has lost its PersistentVolume. Data on the volume is lost!",
            ),
            (named.clone(), volume(Value::Null, Value::Null), "bind"),
            (named.clone(), volume(reference("c", Some("u")), Value::Null), "bind"),
            (named.clone(), volume(reference("c", Some("old")), Value::Null), MISBOUND),
            (named.clone(), volume(reference("c", None), Value::Null), "bind"),
            (named.clone(), going(reference("c", None)), MISBOUND),
            (named.clone(), going(reference("c", Some("u"))), "bind"),
            // Only the uid counts, if there is one.
            (named.clone(), volume(reference("other", Some("u")), Value::Null), "bind"),
            (named, volume(reference("other", None), Value::Null), MISBOUND),
        ] {
            assert_eq!(plan_text(plan_bound(&claim(json!({}), spec), volume)), expected);
        }
    }

    #[test]
    fn the_newest_default_class_counts() {
        let class = |name: &str, created: &str, annotation: &str, value: &str| {
            let json = json!({ "metadata": {
                "name": name, "creationTimestamp": created, "annotations": { annotation: value },
            } });
            Arc::new(serde_json::from_value::<StorageClass>(json).unwrap())
        };
        let (new, old) = ("2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z");
        const NAME: &str = "storageclass.kubernetes.io/is-default-class";
        const BETA: &str = "storageclass.beta.kubernetes.io/is-default-class";
        let classes = [
            class("a", old, NAME, "true"),
            class("c", new, NAME, "true"),
            class("b", new, BETA, "true"),
            class("0", new, NAME, "yes"),
        ];
        for (count, expected) in [(0, None), (1, Some("a")), (2, Some("c")), (4, Some("b"))] {
            let found = default_class(&classes[..count]).map(|class| &*class.meta.name);
            assert_eq!(found, expected);
        }
        assert!(default_class(&classes[3..]).is_none());
    }

    #[test]
    fn the_event_of_a_delayed_claim_names_its_pods() {
        for (pods, reason, message) in [
            (
                vec![],
                "WaitForFirstConsumer",
                "waiting for first consumer to be created before binding",
            ),
            (vec!["p"], "WaitForPodScheduled", "waiting for pod p to be scheduled"),
            (vec!["q", "p"], "WaitForPodScheduled", "waiting for pods p,q to be scheduled"),
        ] {
            let notice = waiting_event(pods.into_iter().map(str::to_owned).collect());
            assert_eq!(notice, PendingEvent::normal(reason, message));
        }
    }

    #[test]
    fn a_class_without_a_binding_mode_is_an_error() {
        let class = |mode: &str| StorageClass {
            volume_binding_mode: mode.into(),
            ..StorageClass::default()
        };
        assert!(!is_delayed(None).unwrap());
        assert!(!is_delayed(Some(&class("Immediate"))).unwrap());
        assert!(is_delayed(Some(&class("WaitForFirstConsumer"))).unwrap());
        let error = is_delayed(Some(&class(""))).unwrap_err().to_string();
        assert_eq!(error, "VolumeBindingMode not set for StorageClass \"\"");
    }
}
