//! One sync of an autoscaler: reads the Scale and the metrics, scales, writes the status.
//! Upstream: `reconcileAutoscaler`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::Autoscaling;
use super::calculator::{Calculator, Replicas};
use super::decision::{Decision, Proposed, Recent, Reconcile, Scaling};
use super::metrics_api::error_text;
use super::monitor::{self, Action, Fault};
use super::normalize::History;
use super::scaling_mode::ScalingMode;
use super::sources::{self, Computed, Failed, Target};
use super::status::{ABLE_TO_SCALE, SCALING_ACTIVE, without_generations};
use crate::client;
use crate::objects::{
    HorizontalPodAutoscaler, ObjectKey, Pod, Resource, ResourceType, Scale, Selector,
};

/// The number of attempts, and the time between them, when the Scale changes meanwhile.
/// Upstream: `retry.DefaultRetry`.
const TRIES: u32 = 5;
const BETWEEN_TRIES: Duration = Duration::from_millis(10);

const SUCCEEDED_GET_SCALE: &str = "the HPA controller was able to get the target's current scale";

/// Why a sync ended early.
struct ReconcileError {
    fault: Fault,
    error: String,
}

impl From<String> for ReconcileError {
    fn from(error: String) -> ReconcileError {
        ReconcileError { fault: Fault::Internal, error }
    }
}

/// Why the selector of a Scale cannot be used.
struct SelectorRefusal {
    /// The reason of the event, and that of the condition.
    event: &'static str,
    reason: &'static str,
    /// The message of the event, and that of the condition.
    error: String,
    message: String,
}

impl SelectorRefusal {
    fn new(reason: &'static str, error: String) -> SelectorRefusal {
        SelectorRefusal { event: reason, reason, message: error.clone(), error }
    }
}

impl Autoscaling {
    /// Reconciles one autoscaler, and counts how it ended. Upstream: `reconcileAutoscaler`.
    pub(super) async fn reconcile(
        &self,
        autoscaler: &HorizontalPodAutoscaler,
        key: &ObjectKey,
    ) -> Result<(), String> {
        let start = self.clock.monotonic();
        let target = &autoscaler.spec.scale_target_ref;
        let reference = format!("{}/{}/{}", target.kind, key.namespace, target.name);
        let (mut status, action) = (autoscaler.status.clone(), Action::None);
        if !self.settings.observes_generation {
            status = without_generations(&status);
        }
        // A server without the gate counts no generations of autoscalers.
        let generation = autoscaler.meta.generation;
        let is_observed = self.settings.observes_generation && generation > 0;
        let observed_generation = is_observed.then_some(generation);
        let mut subject =
            Reconcile { autoscaler, key, status, observed_generation, reference, action };
        let result = self.run(&mut subject).await;
        let fault = match &result {
            Ok(()) => Fault::None,
            Err(error) => error.fault,
        };
        let took = self.clock.monotonic().saturating_sub(start);
        monitor::observe_reconciliation(subject.action, fault, took);
        result.map_err(|failed| failed.error)
    }

    /// Reads the Scale and the metrics, scales the target, and writes the status.
    async fn run(&self, subject: &mut Reconcile<'_>) -> Result<(), ReconcileError> {
        let (resource, mut scale) = match self.scale_of(subject).await {
            Ok(found) => found,
            Err((cause, error)) => return Err(self.fail_scale(subject, &cause, error).await),
        };
        let found = ("True", "SucceededGetScale", SUCCEEDED_GET_SCALE);
        subject.set_condition(ABLE_TO_SCALE, found, self.clock.now());
        let scaling = Scaling::new(subject.autoscaler, scale.replicas, self.settings.scale_to_zero);
        self.with_history(subject.key, |history, now| history.start(scaling.current, now));
        let proposed = match scaling.mode() {
            ScalingMode::Follow => match self.compute_proposal(subject, &scale).await {
                Ok(proposed) => proposed,
                Err(failed) => return Err(self.fail_metrics(subject, &scale, failed).await),
            },
            ScalingMode::Disabled | ScalingMode::Set(..) => Proposed::default(),
        };

        let (now, window) = (self.clock.now(), self.settings.downscale_stabilization);
        let decision = self.with_history(subject.key, |history, moment| {
            subject.decide(scaling, &proposed, &mut Recent { history, window, moment }, now)
        });

        if decision.desired != scaling.current {
            let rescaled = self.rescale(subject, &resource, &mut scale, decision.desired).await;
            if let Err(error) = rescaled {
                let statuses = proposed.statuses;
                return Err(self.fail_rescale(subject, scaling, &decision, statuses, error).await);
            }
            self.note_rescale(subject, scaling, &decision);
        }
        subject.set_counts(scaling.current, decision.desired, proposed.statuses);
        monitor::set_desired_replicas(&subject.key.namespace, &subject.key.name, decision.desired);
        self.write(subject).await?;
        match proposed.error {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }

    /// Calls `with` with the autoscaler's history and the monotonic time, and returns its result.
    fn with_history<T>(
        &self,
        key: &ObjectKey,
        with: impl FnOnce(&mut History, Duration) -> T,
    ) -> T {
        let mut histories = self.histories.lock();
        with(histories.entry(key.clone()).or_default(), self.clock.monotonic())
    }

    /// Records that the target has its new size: in conditions, event, history and log.
    fn note_rescale(&self, subject: &mut Reconcile<'_>, scaling: Scaling, decision: &Decision) {
        let Decision { desired, reason } = decision;
        subject.record_rescale(scaling, *desired, self.clock.now());
        let event = format!("New size: {desired}; reason: {reason}");
        self.recorder.normal(subject.autoscaler, "SuccessfulRescale", event);
        if let Some(behavior) = &subject.autoscaler.spec.behavior {
            self.with_history(subject.key, |history, now| {
                history.record_scaling(behavior, scaling.current, *desired, now);
            });
        }
        let from = scaling.current;
        log::info!("{}: rescaled from {from} to {desired}: {reason}", subject.reference);
    }

    /// Records the event and the status of a target that could not be scaled; returns the whole
    /// error.
    async fn fail_rescale(
        &self,
        subject: &mut Reconcile<'_>,
        scaling: Scaling,
        Decision { desired, reason }: &Decision,
        statuses: Vec<Value>,
        error: String,
    ) -> ReconcileError {
        let event = format!("New size: {desired}; reason: {reason}; error: {error}");
        self.recorder.warning(subject.autoscaler, "FailedRescale", event);
        let message = format!("the HPA controller was unable to update the target scale: {error}");
        let failed = ("False", "FailedUpdateScale", message);
        subject.set_condition(ABLE_TO_SCALE, failed, self.clock.now());
        subject.set_counts(scaling.current, subject.autoscaler.status.desired_replicas, statuses);
        self.write_or_log(subject).await;
        format!("failed to rescale {}: {error}", subject.reference).into()
    }

    /// Reads the Scale of the target, and returns it with its resource: the first that has one.
    ///
    /// # Errors
    /// The cause, as the status shows it, and the whole error.
    async fn scale_of(
        &self,
        subject: &Reconcile<'_>,
    ) -> Result<(ResourceType, Scale), (String, ReconcileError)> {
        let target = &subject.autoscaler.spec.scale_target_ref;
        let group = group_of(&target.api_version).map_err(|cause| {
            let error = format!("invalid API version in scale target reference: {cause}");
            (cause, ReconcileError { fault: Fault::Spec, error })
        })?;
        let kind = &target.kind;
        let resources = match self.scales.resources_of(group, kind, None).await {
            Ok(resources) if !resources.is_empty() => Ok(resources),
            Ok(_) => Err(format!("no matches for kind {:?} in group {group:?}", kind.as_str())),
            Err(error) => Err(error_text(&error, "get", "")),
        };
        let resources = resources.map_err(|cause| {
            let doing = "unable to determine resource for scale target reference";
            let error = ReconcileError::from(format!("{doing}: {cause}"));
            (cause, error)
        })?;
        let key = ObjectKey::new(&subject.key.namespace, &target.name);
        let mut first_cause = None;
        for resource in resources {
            match self.scales.get(&resource, &key).await {
                Ok(scale) => return Ok((resource, scale)),
                Err(error) => {
                    let what = scale_name(&resource, &target.name);
                    first_cause.get_or_insert_with(|| error_text(&error, "get", &what));
                }
            }
        }
        let cause = first_cause.unwrap_or_default();
        let error = format!("failed to query scale subresource for {}: {cause}", subject.reference);
        Err((cause, error.into()))
    }

    /// Records the event and the status of a target whose Scale was not found; returns `error`.
    async fn fail_scale(
        &self,
        subject: &mut Reconcile<'_>,
        cause: &str,
        error: ReconcileError,
    ) -> ReconcileError {
        self.recorder.warning(subject.autoscaler, "FailedGetScale", cause);
        let message =
            format!("the HPA controller was unable to get the target's current scale: {cause}");
        let failed = ("False", "FailedGetScale", message);
        subject.set_condition(ABLE_TO_SCALE, failed, self.clock.now());
        self.write_or_log(subject).await;
        error
    }

    /// Records the status and the event when no metric has a proposal; returns the whole error.
    async fn fail_metrics(
        &self,
        subject: &mut Reconcile<'_>,
        scale: &Scale,
        (error, statuses): (String, Vec<Value>),
    ) -> ReconcileError {
        let desired = subject.autoscaler.status.desired_replicas;
        subject.set_counts(scale.replicas, desired, statuses);
        self.write_or_log(subject).await;
        self.recorder.warning(subject.autoscaler, "FailedComputeMetricsReplicas", &*error);
        let doing = "failed to compute desired number of replicas based on listed metrics for";
        format!("{doing} {}: {error}", subject.reference).into()
    }

    /// Reads all metrics, and returns their proposal. `Err`: the whole error, and the statuses of
    /// the metrics.
    /// Upstream: `computeReplicasForMetrics`.
    async fn compute_proposal(
        &self,
        subject: &mut Reconcile<'_>,
        scale: &Scale,
    ) -> Result<Proposed, (String, Vec<Value>)> {
        let autoscaler = subject.autoscaler;
        let (selector, pods) = match self.select_pods(subject.key, &scale.selector) {
            Ok(selected) => selected,
            Err(refusal) => {
                self.recorder.warning(autoscaler, refusal.event, &*refusal.error);
                subject.set_condition(
                    SCALING_ACTIVE,
                    ("False", refusal.reason, refusal.message),
                    self.clock.now(),
                );
                return Err((refusal.error, Vec::new()));
            }
        };
        let target = Target {
            namespace: &subject.key.namespace,
            selector: &selector,
            replicas: Replicas { wanted: scale.replicas, existing: scale.status_replicas },
        };
        let results = self.read_metrics(autoscaler, target, &pods).await;
        for failed in results.iter().filter_map(|result| result.as_ref().err()) {
            self.recorder.warning(autoscaler, failed.reason, &*failed.cause);
        }
        subject.propose(results, scale.replicas, self.clock.now())
    }

    /// Computes the result of each metric of the spec, in its order.
    async fn read_metrics(
        &self,
        autoscaler: &HorizontalPodAutoscaler,
        target: Target<'_>,
        pods: &[Arc<Pod>],
    ) -> Vec<Result<Computed, Failed>> {
        let mut results = Vec::with_capacity(autoscaler.spec.metrics.len());
        for spec in &autoscaler.spec.metrics {
            let start = self.clock.monotonic();
            let calculator = Calculator {
                pods,
                tolerances: self.settings.tolerances(autoscaler),
                startup: self.settings.startup,
                now: self.clock.now(),
                pod_level_resources: self.settings.pod_level_resources,
            };
            let result = sources::compute(&self.api, spec, target, calculator).await;
            let took = self.clock.monotonic().saturating_sub(start);
            let (action, fault) = outcome(&result, autoscaler.status.current_replicas);
            monitor::observe_computation(action, fault, &spec.r#type, took);
            results.push(result);
        }
        results
    }

    /// Returns the pods that a Scale selects by `text`, and the parsed selector, which is recorded.
    /// `Err`: it is empty or malformed, or another autoscaler selects one of the pods too.
    /// Upstream: `validateAndParseSelector`.
    fn select_pods(
        &self,
        key: &ObjectKey,
        text: &str,
    ) -> Result<(Selector, Vec<Arc<Pod>>), SelectorRefusal> {
        if text.is_empty() {
            return Err(SelectorRefusal {
                event: "SelectorRequired",
                reason: "InvalidSelector",
                error: "selector is required".to_owned(),
                message: "the HPA target's scale is missing a selector".to_owned(),
            });
        }
        let selector: Selector = text.parse().map_err(|error| {
            let error = format!(
                "couldn't convert selector into a corresponding internal selector object: {error}"
            );
            SelectorRefusal::new("InvalidSelector", error)
        })?;
        self.selectors.set(key, &selector);
        let mut pods = self.pods.in_namespace(&key.namespace);
        pods.retain(|pod| selector.matches(&pod.meta.labels));
        let selecting = self.selectors.selecting(&key.namespace, &pods);
        if selecting.len() > 1 {
            let names: Vec<String> = selecting.iter().map(ToString::to_string).collect();
            let error = format!(
                "pods by selector {text} are controlled by multiple HPAs: [{}]",
                names.join(" ")
            );
            return Err(SelectorRefusal::new("AmbiguousSelector", error));
        }
        Ok((selector, pods))
    }

    /// Writes `replicas` into the Scale; retries when the Scale has changed meanwhile.
    async fn rescale(
        &self,
        subject: &Reconcile<'_>,
        resource: &ResourceType,
        scale: &mut Scale,
        replicas: i32,
    ) -> Result<(), String> {
        let name = &subject.autoscaler.spec.scale_target_ref.name;
        let key = ObjectKey::new(&subject.key.namespace, name);
        let what = scale_name(resource, name);
        for tries in 1.. {
            let error = match self.scales.update(resource, &key, scale, replicas).await {
                Ok(_) => break,
                Err(error) => error,
            };
            if !error.is_conflict() || tries == TRIES {
                return Err(error_text(&error, "put", &what));
            }
            match self.scales.get(resource, &key).await {
                Ok(latest) => *scale = latest,
                Err(error) => log::error!(
                    "error getting latest scale for {} during conflict retry: {error}",
                    subject.reference
                ),
            }
            self.clock.sleep(BETWEEN_TRIES).await;
        }
        Ok(())
    }

    /// Writes the status, if it has changed. Upstream: `updateStatusIfNeeded`.
    async fn write(&self, subject: &Reconcile<'_>) -> Result<(), String> {
        let Reconcile { autoscaler, status, .. } = subject;
        // The decoder of a manager of 1.36 drops the generations that one of 1.37 has written.
        let is_same = match self.settings.observes_generation {
            true => *status == autoscaler.status,
            false => *status == without_generations(&autoscaler.status),
        };
        if is_same {
            return Ok(());
        }
        let written = self.client.update_status(*autoscaler, status).await;
        let record = |written: HorizontalPodAutoscaler| {
            let (uid, version) = (&written.meta.uid, written.meta.resource_version);
            let resource = &HorizontalPodAutoscaler::RESOURCE;
            self.consistency.record_write(subject.key, uid, resource, version);
        };
        written.map(record).map_err(|error: client::Error| {
            let name = &autoscaler.meta.name;
            let what = format!("{} {name}", HorizontalPodAutoscaler::RESOURCE);
            let error = error_text(&error, "put", &what);
            self.recorder.warning(*autoscaler, "FailedUpdateStatus", &*error);
            format!("failed to update status for {name}: {error}")
        })
    }

    /// Writes the status as [`Self::write`] does, and logs a failure: the caller returns another
    /// error already.
    async fn write_or_log(&self, subject: &Reconcile<'_>) {
        if let Err(error) = self.write(subject).await {
            log::error!("horizontal-pod-autoscaler-controller: {error}");
        }
    }
}

/// Returns the name of a Scale in errors, without the group: upstream's client of Scales serves all
/// groups and names none.
fn scale_name(resource: &ResourceType, name: &str) -> String {
    format!("{} {name}", resource.plural)
}

/// Returns the group of `api_version`; empty for the core group. Upstream:
/// `schema.ParseGroupVersion`.
fn group_of(api_version: &str) -> Result<&str, String> {
    match api_version.split_once('/') {
        None => Ok(""),
        Some((_, version)) if version.contains('/') => {
            Err(format!("unexpected GroupVersion string: {api_version}"))
        }
        Some((group, _)) => Ok(group),
    }
}

/// Returns the labels of one computation in the controller's metrics: the action that its result
/// proposes for a target of `current` replicas, and the kind of a failure.
fn outcome(result: &Result<Computed, Failed>, current: i32) -> (Action, Fault) {
    match result {
        Ok(computed) if computed.replicas > current => (Action::ScaleUp, Fault::None),
        Ok(computed) if computed.replicas < current => (Action::ScaleDown, Fault::None),
        Ok(_) => (Action::None, Fault::None),
        Err(failed) if failed.is_spec => (Action::None, Fault::Spec),
        Err(_) => (Action::None, Fault::Internal),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::{BOTH, Fixture};
    use super::*;

    /// Pull request 139142. The store of 1.36 refuses the same pods.
    #[test]
    fn pods_of_several_autoscalers_are_refused_in_either_release() {
        let key = |namespace: &str, name: &str| ObjectKey::new(namespace, name);
        let (a, b) = (key("ns", "a"), key("ns", "b"));
        for release in BOTH {
            let Fixture { this, pods, .. } = Fixture::new(release);
            for (namespace, name) in [("ns", "one"), ("ns", "two"), ("other", "one")] {
                let labels = json!({ "app": "web", "tier": "front" });
                let metadata = json!({ "namespace": namespace, "name": name, "labels": labels });
                let pod: Pod = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
                pods.insert(Arc::new(pod));
            }
            for known in [&a, &b, &key("other", "a")] {
                this.selectors.register(known);
            }
            let selected = |key: &ObjectKey, selector: &str| {
                let found = this.select_pods(key, selector).map(|(_, pods)| pods.len());
                found.map_err(|refusal| (refusal.reason, refusal.error))
            };
            // One that was not synced yet selects nothing, and namespaces are apart.
            assert_eq!(selected(&a, "app=web"), Ok(2), "{release}");
            assert_eq!(selected(&key("other", "a"), "app=web"), Ok(1), "{release}");
            let error = "pods by selector tier=front are controlled by multiple HPAs: [ns/a ns/b]";
            let refused = Err(("AmbiguousSelector", error.to_owned()));
            assert_eq!(selected(&b, "tier=front"), refused, "{release}");
            this.selectors.forget(&a);
            assert_eq!(selected(&b, "tier=front"), Ok(2), "{release}");
            // A sync that ends after the deletion does not bring its selector back.
            this.selectors.set(&a, &Selector::everything());
            assert_eq!(selected(&b, "tier=front"), Ok(2), "{release}");
        }
    }
}
